//! Random operations of a [`Life`], by its seed.

use crate::explorer_script::{Level, Life};
use hither_engine::Kind;

impl Life {
    fn key(&mut self) -> Vec<u8> {
        let number = self.rng.below(14) as u64;
        match number % 4 {
            0 | 1 => (number + 1).to_be_bytes().to_vec(),
            2 => format!("key {number} ").repeat(number as usize % 5 + 1).into_bytes(),
            _ => vec![number as u8; 1],
        }
    }

    fn level(&mut self) -> Level {
        [Level::Sync, Level::Sync, Level::Sync, Level::Ticket, Level::Process][self.rng.below(5)]
    }

    fn length(&mut self) -> usize {
        match self.rng.below(20) {
            0..=8 => 8,
            9..=13 => 8 + self.rng.below(60),
            14..=16 => 100 + self.rng.below(400),
            17..=18 => 1000 + self.rng.below(1500),
            _ => 4200 + self.rng.below(5000),
        }
    }

    /// The number of a random keyspace that exists.
    fn alive(&mut self) -> usize {
        let alive: Vec<usize> = (0..self.handles.len()).filter(|&i| self.handles[i].is_some()).collect();
        alive[self.rng.below(alive.len())]
    }

    /// One random operation.
    pub fn random(&mut self) {
        let (keyspace, key, level) = (self.alive(), self.key(), self.level());
        match self.rng.below(100) {
            0..=39 => {
                let len = self.length();
                let value = self.value(len);
                let expired = self.rng.below(12) == 0;
                self.write(keyspace, &key, Some(value), level, expired);
            }
            40..=51 => {
                self.write(keyspace, &key, None, level, false);
            }
            52..=59 => {
                let (len, right, delete) = (self.length(), self.rng.below(3) > 0, self.rng.below(4) == 0);
                let new = (!delete).then(|| self.value(len));
                self.swap(keyspace, &key, new, right);
            }
            60..=75 => self.random_batch(level),
            76..=81 => self.get(keyspace, &key),
            82..=83 => self.sync(),
            84 => self.skip_versions(),
            85..=86 => self.sweep(),
            87..=92 => self.reclaim(),
            93..=95 => {
                let node = self.rng.below(2);
                self.bind(node);
            }
            _ => self.change_keyspaces(),
        }
    }

    fn random_batch(&mut self, level: Level) {
        let members = 2 + self.rng.below(6);
        let changes: Vec<_> = (0..members)
            .map(|_| {
                let len = self.length().min(700);
                (self.alive(), self.key(), (self.rng.below(5) > 0).then(|| self.value(len)))
            })
            .collect();
        self.batch(&changes, level);
    }

    fn change_keyspaces(&mut self) {
        let alive = self.handles.iter().flatten().count();
        if alive > 2 && self.rng.below(2) == 0 {
            let number = self.alive();
            self.drop_keyspace(number);
        } else if alive < 4 {
            let kind = if self.rng.below(2) == 0 { Kind::Ordered } else { Kind::Hash };
            let taken: Vec<&str> = self.handles.iter().flatten().map(|handle| handle.info().name.as_str()).collect();
            if let Some(name) = ["one", "two", "three", "four"].into_iter().find(|name| !taken.contains(name)) {
                self.create(name, kind);
            }
        } else {
            let (a, b) = (self.alive(), self.alive());
            if a != b {
                self.swap_keyspaces(&[(a, b)], false);
            }
        }
    }
}
