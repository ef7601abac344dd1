//! What a client keeps for its transaction: the commands since MULTI, and the watched keys, both within one limit.
//!
//! Each command was checked against the limit of requests when it arrived. Here the limit applies to all queued
//! commands together, because nothing else bounds their number.

use crate::commands::table::Numbered;
use crate::data::Database;
use hither_resp::Args;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A transaction that is being queued.
#[derive(Default)]
pub struct Multi {
    queue: Vec<Queued>,
    bytes: usize,
    /// A command was refused, so EXEC must fail; set by [`Multi::refuse`], never cleared.
    refused: bool,
}

impl Multi {
    /// Adds a command, if it and all before it take at most `limit` bytes. Otherwise returns false and drops all, and
    /// EXEC must fail. Once EXEC must fail, nothing is kept any more.
    pub fn push(&mut self, found: Numbered, args: Args<'_>, limit: usize) -> bool {
        if self.refused {
            return true;
        }
        let bytes = Queued::bytes(args);
        if self.bytes.saturating_add(bytes) > limit {
            self.refuse();
            return false;
        }
        self.bytes += bytes;
        self.queue.push(Queued::new(found, args));
        true
    }

    /// Notes that a command was refused: EXEC must fail, so nothing need be kept.
    pub fn refuse(&mut self) {
        *self = Multi { refused: true, ..Multi::default() };
    }

    /// Whether EXEC must fail.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// The commands in order.
    pub fn queue(&self) -> &[Queued] {
        &self.queue
    }

    /// Bytes that the commands take.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }
}

/// A command queued for EXEC.
pub struct Queued {
    /// The command.
    pub found: Numbered,
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Queued {
    /// Bytes that it takes to keep these arguments.
    fn bytes(args: Args<'_>) -> usize {
        size_of::<Queued>() + args.iter().map(|argument| argument.len() + size_of::<Range<usize>>()).sum::<usize>()
    }

    fn new(found: Numbered, args: Args<'_>) -> Queued {
        let total = args.iter().map(<[u8]>::len).sum();
        let mut queued = Queued { found, bytes: Vec::with_capacity(total), ranges: Vec::with_capacity(args.len()) };
        for argument in args.iter() {
            let start = queued.bytes.len();
            queued.bytes.extend_from_slice(argument);
            queued.ranges.push(start..queued.bytes.len());
        }
        queued
    }

    /// Its arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }
}

/// A database's number and a key.
type Place = (u16, Vec<u8>);

/// The keys that must stay as they are until EXEC.
#[derive(Default)]
pub struct Watches {
    /// Each key with the version that it had; `None`: it was absent.
    keys: HashMap<Place, Option<u64>>,
    /// The databases of the keys, one for each number; none once EXEC must fail.
    databases: Vec<Arc<Database>>,
    bytes: usize,
    /// A database of the keys was replaced, so EXEC must fail; set by [`Watches::give_up`], never cleared.
    broken: bool,
}

/// Approximate bytes of a watched key besides its name: its place in the map, with the free places there.
const PER_WATCH: usize = 2 * size_of::<(Place, Option<u64>)>();

impl Watches {
    /// Whether a key is watched.
    pub fn has(&self, database: u16, key: &[u8]) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(&(database, key.to_vec()))
    }

    /// Watches a key that is not watched yet; returns false if all would take more than `limit` bytes.
    pub fn add(&mut self, database: &Arc<Database>, key: &[u8], version: Option<u64>, limit: usize) -> bool {
        let bytes = self.bytes.saturating_add(key.len() + PER_WATCH);
        if bytes > limit {
            return false;
        }
        self.bytes = bytes;
        self.keys.insert((database.index, key.to_vec()), version);
        match self.databases.iter().find(|known| known.index == database.index) {
            Some(known) if known.is_same(database) => {}
            Some(_) => self.give_up(),
            None if self.broken => {}
            None => self.databases.push(database.clone()),
        }
        true
    }

    /// Keeps no database any more if one of them is not `current`: it was replaced, so EXEC must fail.
    pub fn check_databases(&mut self, current: impl Fn(&Database) -> bool) {
        if !self.databases.iter().all(|database| current(database)) {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        (self.broken, self.databases) = (true, Vec::new());
    }

    /// Whether EXEC must fail because a database of the keys was replaced.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Stops watching all keys.
    pub fn clear(&mut self) {
        *self = Watches::default();
    }

    /// Each key with its database and the version that it had; nothing once EXEC must fail.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<Database>, &[u8], Option<u64>)> {
        self.keys.iter().filter_map(|((index, key), version)| {
            let database = self.databases.iter().find(|database| database.index == *index)?;
            Some((database, key.as_slice(), *version))
        })
    }

    /// Number of watched keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no key is watched.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes that the watched keys take.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::table::TABLE;

    #[test]
    fn a_queue_is_dropped_when_it_is_too_long() {
        let (bytes, ranges) = (b"GETkey".to_vec(), [0..3, 3..6]);
        let args = Args::new(&bytes, &ranges);
        let Ok(found) = TABLE.find(args) else { panic!("GET is there") };
        let one = Queued::bytes(args);
        let mut multi = Multi::default();
        assert!(multi.push(found, args, 2 * one) && multi.push(found, args, 2 * one));
        assert_eq!((multi.queue().len(), multi.held_bytes(), multi.is_refused()), (2, 2 * one, false));
        assert_eq!(multi.queue()[1].args().iter().collect::<Vec<_>>(), [b"GET", b"key"]);
        assert!(!multi.push(found, args, 2 * one), "the third is too much");
        assert_eq!((multi.queue().len(), multi.held_bytes(), multi.is_refused()), (0, 0, true));
        assert!(multi.push(found, args, 2 * one), "it is told once");
        assert_eq!((multi.queue().len(), multi.held_bytes()), (0, 0), "and nothing is kept any more");
    }
}
