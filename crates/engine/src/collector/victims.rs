//! The choice of victims.
//!
//! A choice weighs every full segment of the store. The victims of a round in the background share one. But a write that
//! finds no space empties one victim at a time, so its choice leaves the next best victims of the node behind for the
//! writes that find no space after it: that is a look at one segment instead of all.
//!
//! Thread safety: one thread at a time chooses, so that no two choose the same victims. Whoever takes a victim that was
//! left behind asks whether it is still one: another thread may have emptied it, or have found damage in it, and there
//! may be less room for what has to be moved.
//!
//! Crash: nothing of this is on media.

use super::{Core, Growth, Need, Turn, Wanted, is_over, lock_until};
use crate::error::Result;
use hither_log::{Candidate, Pass};
use std::ops::RangeInclusive;
use std::time::Instant;

/// Bytes of the victims of one round in the background, which share one choice and one settling.
const ROUND_BYTES: u64 = 2 << 20;
/// Fewest and most passes of such a round.
const PASSES_PER_ROUND: RangeInclusive<u64> = 4..=16;
/// Most victims that a choice of one finds.
const FOUND_AT_ONCE: usize = 16;
/// The segments, of all nodes, that may be opened before victims left behind count for nothing: there may be better ones
/// by then.
const OPENED_MEANWHILE: u64 = 32;

/// Victims of a node that a choice has left behind. Settled ones only.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The best one last.
    victims: Vec<Candidate>,
    /// [`hither_log::Log::opened_bytes`] at the choice.
    opened: u64,
}

impl Core {
    /// Whether an earlier choice has left victims on `node` behind. Waits for a choice under way until `end` at most.
    pub(super) fn has_victims_ahead(&self, node: usize, end: Option<Instant>) -> bool {
        let ahead = lock_until(&self.collections.ahead, end);
        ahead.is_some_and(|ahead| !ahead[node].victims.is_empty() && self.is_recent(&ahead[node]))
    }

    /// Forgets the victims that were left behind: much has become garbage at once, so there are better ones. (Whoever is
    /// choosing just now may leave some behind all the same.)
    pub fn forget_victims(&self) {
        if let Some(mut ahead) = self.collections.ahead.try_lock() {
            ahead.iter_mut().for_each(|ahead| ahead.victims.clear());
        }
    }

    fn is_recent(&self, ahead: &Ahead) -> bool {
        self.log.opened_bytes() - ahead.opened <= OPENED_MEANWHILE * self.log.pool(0).segment_bytes()
    }

    /// Begins passes over the best victims.
    pub(super) fn begin_passes(&self, wanted: &Wanted, growth: Growth) -> Result<Vec<Pass<'_>>> {
        // Where room is short, a victim with more to move would get no permit.
        let room: Vec<u64> = (0..self.log.nodes()).map(|node| self.log.room_to_move(node).most()).collect();
        let worth = |candidate: &Candidate| {
            wanted.node.is_none_or(|node| candidate.node as usize == node)
                && candidate.gain > 0
                && (wanted.first || candidate.garbage() >= wanted.least)
                && growth.most_of(candidate.live) <= room[candidate.node as usize]
        };
        // A check may hold this lock for long.
        let Some(mut ahead) = lock_until(&self.collections.ahead, wanted.turn.end()) else { return Ok(Vec::new()) };
        // Asked with the lock held: once a close has waited for the passes under way, no new one begins.
        self.committer.ensure_writable()?;
        self.collector.prepare(self)?;
        match (wanted.turn, wanted.node) {
            (Turn::Pass(_), Some(node)) => self.begin_one(wanted, &mut ahead[node], worth),
            (turn, _) => {
                let most = match turn {
                    Turn::Pass(_) => 1,
                    Turn::Round => {
                        (ROUND_BYTES / self.log.pool(0).segment_bytes()).clamp(*PASSES_PER_ROUND.start(), *PASSES_PER_ROUND.end())
                    }
                };
                let victims = self.choose_victims(wanted, most as usize, worth);
                if !victims.iter().all(|victim| self.log.is_settled(victim)) {
                    self.settle_victims()?;
                }
                victims.iter().filter_map(|victim| self.begin_pass(victim).transpose()).collect()
            }
        }
    }

    /// Begins a pass over one victim: one that was left behind if that is enough, or else the best.
    fn begin_one(&self, wanted: &Wanted, ahead: &mut Ahead, worth: impl Fn(&Candidate) -> bool) -> Result<Vec<Pass<'_>>> {
        // A last attempt takes the best one that there is.
        if !self.is_recent(ahead) || is_over(wanted.turn.end()) {
            ahead.victims.clear();
        }
        while let Some(victim) = ahead.victims.last() {
            let pass = match self.log.look_again(victim, self.collector.tombstones()) {
                Some(now) if worth(&now) && now.garbage() >= wanted.least => self.begin_pass(&now)?,
                // Perhaps it is enough for whoever needs space more urgently.
                Some(_) if wanted.need != Need::Last => break,
                _ => None,
            };
            ahead.victims.pop();
            if let Some(pass) = pass {
                return Ok(vec![pass]);
            }
        }
        let opened = self.log.opened_bytes();
        let mut victims = self.choose_victims(wanted, FOUND_AT_ONCE, worth);
        let Some(best) = victims.first().copied() else { return Ok(Vec::new()) };
        if !self.log.is_settled(&best) {
            self.settle_victims()?;
        }
        // Much worse ones would soon hide better ones.
        victims.retain(|victim| self.log.is_settled(victim) && victim.garbage() >= best.garbage() / 2.0);
        victims.reverse();
        let mut begun = None;
        while begun.is_none()
            && let Some(victim) = victims.pop()
        {
            begun = self.begin_pass(&victim)?;
        }
        if !victims.is_empty() {
            *ahead = Ahead { victims, opened };
        }
        Ok(begun.into_iter().collect())
    }

    /// The best victims, at most `most`, best first. Some may not be settled.
    fn choose_victims(&self, wanted: &Wanted, most: usize, worth: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
        let mut victims = self.log.best_candidates(self.collector.tombstones(), most, worth);
        if wanted.first {
            victims.truncate(victims.iter().take_while(|victim| victim.garbage() >= wanted.least).count());
        }
        victims
    }

    fn settle_victims(&self) -> Result<()> {
        self.log.settle(&self.make_durable()).map_err(|error| self.explain(error))
    }

    fn begin_pass(&self, victim: &Candidate) -> Result<Option<Pass<'_>>> {
        self.log.begin_pass(victim, self.collector.tombstones()).map_err(|error| self.explain(error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::small;
    use super::super::{LEAST_GAIN, Need};
    use super::*;
    use crate::{KeyspaceHandle, Kind, Store};
    use hither_log::{TakeBack, Tombstones, Wait};
    use std::time::Duration;

    fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64) {
        store.write_wait(keyspace, &key.to_be_bytes(), Some(&[7; 200])).unwrap();
    }

    /// A store whose full segments have different shares of garbage, and their numbers, the best victim first.
    fn uneven() -> (Store, Vec<u32>) {
        let store = small();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        (0..2000).for_each(|key| put(&store, &keyspace, key));
        // Of each later seventieth more keys are overwritten.
        (0..2000).filter(|key| key % 28 < key / 70).for_each(|key| put(&store, &keyspace, key));
        store.core.seal(TakeBack::All).unwrap();
        let best = store.core.log.best_candidates(Tombstones::Swept, FOUND_AT_ONCE, |victim| victim.gain > 0);
        assert!(best.len() == FOUND_AT_ONCE && best.iter().all(|victim| victim.garbage() > 2.0 * LEAST_GAIN), "{best:?}");
        (store, best.iter().map(|victim| victim.index).collect())
    }

    /// Begins a pass as a write does that needs space.
    fn begin(core: &Core, least: f64) -> Option<Pass<'_>> {
        let wanted = Wanted { node: Some(0), need: Need::Any, least, first: false, turn: Turn::Pass(None) };
        let mut passes = core.begin_passes(&wanted, Growth::None).unwrap();
        assert!(passes.len() <= 1);
        passes.pop()
    }

    fn begun(core: &Core) -> (Pass<'_>, u32) {
        let pass = begin(core, LEAST_GAIN).expect("a victim");
        let segment = pass.segment();
        (pass, segment)
    }

    #[test]
    fn a_choice_leaves_the_next_best_victims_behind() {
        let (store, best) = uneven();
        let core = &store.core;
        assert!(!core.has_victims_ahead(0, None));
        let (_pass, first) = begun(core);
        assert!(first == best[0] && core.has_victims_ahead(0, None));
        // Dropped, it is the best one again for whoever chooses among all.
        let (pass, second) = begun(core);
        assert_eq!(second, best[1]);
        drop(pass);
        let (_pass, third) = begun(core);
        assert_eq!(third, best[2], "and not the one that a choice among all would find");
    }

    #[test]
    fn a_victim_that_another_thread_has_taken_is_passed_over() {
        let (store, best) = uneven();
        let core = &store.core;
        let (_pass, _) = begun(core);
        let taken = core.log.candidates(Tombstones::Swept, |victim| victim.index == best[1]);
        let _taken = core.log.begin_pass(&taken[0], Tombstones::Swept).unwrap().expect("it is full and settled");
        assert_eq!(begun(core).1, best[2]);
    }

    #[test]
    fn a_victim_that_is_not_enough_stays_for_those_who_need_space_more_urgently() {
        let (store, best) = uneven();
        let core = &store.core;
        let (_pass, _) = begun(core);
        assert!(begin(core, 1.5).is_none(), "no segment has so much garbage");
        assert!(core.has_victims_ahead(0, None));
        assert_eq!(begun(core).1, best[1]);
    }

    #[test]
    fn victims_left_behind_long_ago_count_for_nothing() {
        let (store, best) = uneven();
        let core = &store.core;
        let (pass, _) = begun(core);
        drop(pass);
        let bytes = core.log.pool(0).segment_bytes();
        core.collections.ahead.lock()[0].opened -= OPENED_MEANWHILE * bytes;
        assert!(core.has_victims_ahead(0, None));
        core.collections.ahead.lock()[0].opened -= bytes;
        assert!(!core.has_victims_ahead(0, None));
        assert_eq!(begun(core).1, best[0], "chosen among all");
    }

    /// Regression: a segment that was emptied, opened and filled again passed for the victim that it had been.
    #[test]
    fn a_victim_in_another_life_is_none() {
        let (store, best) = uneven();
        let core = &store.core;
        drop(begun(core));
        let victim = core.log.candidates(Tombstones::Swept, |victim| victim.index == best[1])[0];
        let pass = core.log.begin_pass(&victim, Tombstones::Swept).unwrap().expect("it is full and settled");
        assert!(core.run_pass(&pass, Growth::None, None).unwrap());
        assert_eq!(core.free_victims(vec![pass]).unwrap(), 1);
        core.reuse_freed(Wait::Yes).unwrap();
        let keyspace = store.create_keyspace("others", Kind::Hash).unwrap();
        let is_full_again = || core.log.candidates(Tombstones::Swept, |victim| victim.index == best[1]).len() == 1;
        for key in (0..1300).take_while(|_| !is_full_again()) {
            put(&store, &keyspace, key % 50);
            if key % 70 == 69 {
                core.seal(TakeBack::All).unwrap();
            }
        }
        assert!(is_full_again() && core.has_victims_ahead(0, None));
        core.log.settle(&core.make_durable()).unwrap();
        assert_eq!(begun(core).1, best[2]);
    }

    /// Regression: while another thread chose, there seemed to be none, and every segment was weighed twice.
    #[test]
    fn victims_left_behind_are_seen_while_another_thread_chooses() {
        let (store, _) = uneven();
        let core = &store.core;
        drop(begun(core));
        let (told, wait) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _chooses = core.collections.ahead.lock();
                told.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            });
            wait.recv().unwrap();
            assert!(core.has_victims_ahead(0, None));
        });
    }

    #[test]
    fn a_choice_leaves_no_much_worse_victims_behind_and_a_dropped_keyspace_makes_better_ones() {
        let (store, _) = uneven();
        let core = &store.core;
        let best = core.log.best_candidates(Tombstones::Swept, 1, |victim| victim.gain > 0)[0];
        drop(begun(core));
        let left = core.collections.ahead.lock()[0].victims.clone();
        assert!(!left.is_empty() && left.iter().all(|victim| victim.garbage() * 2.0 >= best.garbage()));
        store.create_keyspace("others", Kind::Hash).unwrap();
        assert!(core.has_victims_ahead(0, None));
        store.drop_keyspace("others").unwrap();
        assert!(!core.has_victims_ahead(0, None));
    }
}
