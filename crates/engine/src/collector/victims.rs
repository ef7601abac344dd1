//! The choice of victims.
//!
//! A search weighs every full segment of the store. A round in the background shares one search. But a write that finds
//! no space empties one victim at a time, so its search leaves the next best victims of the node behind for the writes
//! that find no space after it: that is a look at one segment instead of all.
//!
//! Thread safety: one thread at a time chooses, so that no two choose the same victims. Whoever takes a victim that was
//! left behind asks whether it is still one: its keys may have been overwritten, or somebody who searched may have
//! emptied it.

use super::{Core, Growth, Turn, Wanted, lock_until};
use crate::error::Result;
use hither_log::{Candidate, Pass};
use std::ops::RangeInclusive;

/// Bytes of the victims of one round in the background, which share one search and one settling.
const ROUND_BYTES: u64 = 2 << 20;
/// Fewest and most passes of such a round.
const PASSES_PER_ROUND: RangeInclusive<u64> = 4..=16;
/// Victims that a search for one finds.
const FOUND_AT_ONCE: usize = 16;
/// The segments that may be opened before victims left behind count for nothing: there may be better ones by then.
const OPENED_MEANWHILE: u64 = 32;

/// Victims of a node that a search has left behind. Settled ones only.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The best one last.
    victims: Vec<Candidate>,
    /// [`hither_log::Log::opened_bytes`] at the search.
    opened: u64,
}

impl Core {
    /// Whether an earlier search has left victims on `node` behind.
    pub(super) fn has_victims_ahead(&self, node: usize) -> bool {
        self.collections.ahead.try_lock().is_some_and(|ahead| !ahead[node].victims.is_empty() && self.is_recent(&ahead[node]))
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
        let most = match wanted.turn {
            Turn::Pass(_) => 1,
            Turn::Round => (ROUND_BYTES / self.log.pool(0).segment_bytes()).clamp(*PASSES_PER_ROUND.start(), *PASSES_PER_ROUND.end()),
        };
        match wanted.node {
            Some(node) if most == 1 => self.begin_one(wanted, &mut ahead[node], worth),
            _ => {
                let victims = self.find_victims(wanted, most as usize, worth)?;
                let passes: Result<Vec<_>> = victims.iter().map(|victim| self.begin_pass(victim)).collect();
                Ok(passes?.into_iter().flatten().collect())
            }
        }
    }

    /// Begins a pass over one victim: one that was left behind if that is enough, or else the best.
    fn begin_one(&self, wanted: &Wanted, ahead: &mut Ahead, worth: impl Fn(&Candidate) -> bool) -> Result<Vec<Pass<'_>>> {
        if !self.is_recent(ahead) {
            ahead.victims.clear();
        }
        while let Some(victim) = ahead.victims.last() {
            let pass = match self.log.look_again(victim, self.collector.tombstones()) {
                // Perhaps it is enough for whoever needs space more urgently.
                Some(now) if !worth(&now) || now.garbage() < wanted.least => break,
                Some(now) => self.begin_pass(&now)?,
                None => None,
            };
            ahead.victims.pop();
            if let Some(pass) = pass {
                return Ok(vec![pass]);
            }
        }
        let opened = self.log.opened_bytes();
        let mut victims = self.find_victims(wanted, FOUND_AT_ONCE, worth)?;
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

    /// The best victims, at most `most`, best first. Settles them.
    fn find_victims(&self, wanted: &Wanted, most: usize, worth: impl Fn(&Candidate) -> bool) -> Result<Vec<Candidate>> {
        let mut victims = self.log.best_candidates(self.collector.tombstones(), most, worth);
        if wanted.first {
            victims.truncate(victims.iter().take_while(|victim| victim.garbage() >= wanted.least).count());
        }
        if !victims.iter().all(|victim| self.log.is_settled(victim)) {
            self.log.settle(&self.make_durable()).map_err(|error| self.explain(error))?;
        }
        Ok(victims)
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
    use crate::{Kind, Store};
    use hither_log::{TakeBack, Tombstones};

    /// A store whose full segments have different shares of garbage, and their numbers, the best victim first.
    fn uneven() -> (Store, Vec<u32>) {
        let store = small();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[7; 200])).unwrap();
        (0..2000).for_each(|key| _ = put(key));
        // Of each later seventieth more keys are overwritten.
        (0..2000).filter(|key| key % 28 < key / 70).for_each(|key| _ = put(key));
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
    fn a_search_leaves_the_next_best_victims_behind() {
        let (store, best) = uneven();
        let core = &store.core;
        assert!(!core.has_victims_ahead(0));
        let (_pass, first) = begun(core);
        assert!(first == best[0] && core.has_victims_ahead(0));
        // As good as new, should anybody search.
        let (pass, second) = begun(core);
        assert_eq!(second, best[1]);
        drop(pass);
        let (_pass, third) = begun(core);
        assert_eq!(third, best[2], "and not the one that a search would find");
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
        assert!(core.has_victims_ahead(0));
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
        assert!(core.has_victims_ahead(0));
        core.collections.ahead.lock()[0].opened -= bytes;
        assert!(!core.has_victims_ahead(0));
        assert_eq!(begun(core).1, best[0], "there was a search");
    }
}
