//! Overflow flags that lead on for nothing, and when a segment is rebuilt because of them.
//!
//! A pair that is full when a key arrives gets its overflow flag and keeps it (L4): nobody knows how many keys farther
//! on still need it. Where keys come and go at a constant number, as in queues and caches, a segment is hardly ever
//! full as a whole and so is never replaced, but each of its pairs is full at some time.
//!
//! After some turnovers of the keys nearly all pairs would be flagged. Lookups of absent keys would walk whole paths of
//! eight pairs. So would writes of present keys, to make sure that no other slot has their tag. (Since segments are
//! split now and then, it is nearly half of the pairs: `docs/adr/0008`.)
//!
//! So one in [`SAMPLE`] inserts into a flagged pair looks at all pairs of the segment. If many are flagged although
//! they have room, so that few flags would be set if the keys came now, the segment is replaced by one of the same keys
//! ([`HashTable::renew`]), which takes some ten microseconds. Pairs that are flagged because the segment is well filled
//! have no room and do not count.
//!
//! A segment that was built with references whose keys cannot be read is not renewed either. The pairs before those
//! references are flagged anew each time, so that a lookup of such a key does not miss it.

use super::HashTable;
use super::directory::Segment;
use super::line::{HAS_LOST, OVERFLOW, Pair};
use super::protocol::Protocol;
use crate::{Ref, Resolver};

/// One in so many inserts into flagged pairs inspects the segment.
const SAMPLE: u64 = 256;
/// Free slots of a pair that would not be flagged if its keys came now.
const ROOM: u32 = 2;
/// A segment with so many such pairs that are flagged, of its 32, is worn.
const WORN: usize = 12;

impl<P: Protocol> HashTable<P> {
    /// Called after an insert of `new`, when the caller holds no pair any more.
    #[inline(always)]
    pub fn look_for_wear<R: Resolver>(&self, hash: u64, new: Ref, resolver: &R) {
        // Samples by bits of the hash that decide nothing else in narrow segments, and by the place of the entry, so
        // that a key that comes again and again is neither always nor never in the sample. (References are in words;
        // entries have four at least.)
        if (hash >> 12 ^ new.0 >> 2).is_multiple_of(SAMPLE) {
            self.renew_if_worn(hash, resolver);
        }
    }

    #[cold]
    #[inline(never)]
    fn renew_if_worn<R: Resolver>(&self, hash: u64, resolver: &R) {
        let segment = self.segment(hash);
        // SAFETY: the segment was read from this index's directory under the caller's pin.
        let (home, first) = unsafe { (segment.home_pair(hash), segment.pair(0)) };
        let may_help = !segment.wide() && home.flags() & OVERFLOW != 0 && first.flags() & HAS_LOST == 0;
        if may_help && worn_pairs(segment) >= WORN {
            self.renew(segment, hash, resolver);
        }
    }
}

/// Pairs that are flagged although they have room.
pub(super) fn worn_pairs(segment: Segment) -> usize {
    let is_worn = |pair: &&Pair| pair.flags() & OVERFLOW != 0 && (pair.slots(0).count_ones() >= ROOM);
    // SAFETY: callers have read the segment from the directory under their pin.
    unsafe { segment.all() }.filter(is_worn).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Index;
    use crate::conformance::Rng;
    use crate::conformance::point::Bench;
    use crate::hash::HashIndex;
    use crate::hash::tests::Damaged;
    use hither_sync::epoch;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// The shares of all pairs that are flagged, and that are worn.
    fn shares(index: &HashIndex) -> [f64; 2] {
        let _pin = epoch::pin();
        let (mut pairs, mut flagged, mut worn) = (0, 0, 0);
        index.each_segment(|_, segment| {
            pairs += segment.pairs();
            // SAFETY: the segment was read from the directory under this pin.
            flagged += unsafe { segment.all() }.filter(|pair| pair.flags() & OVERFLOW != 0).count();
            worn += worn_pairs(segment);
            true
        });
        [flagged, worn].map(|count| count as f64 / pairs as f64)
    }

    /// Regression: after some turnovers of its keys nearly every pair of an index was flagged, so that lookups of
    /// absent keys and updates looked at all pairs of a path.
    #[test]
    fn flags_go_where_keys_come_and_go() {
        const KEYS: u64 = 12_000;
        let bench = Bench::new(HashIndex::new());
        (0..KEYS).for_each(|key| _ = bench.put(&key.to_le_bytes()));
        let [fresh, worn] = shares(&bench.index);
        assert!(fresh < 0.3 && worn == 0.0, "{fresh} of the pairs are flagged when nothing has gone yet");
        // Oldest first.
        for key in 0..15 * KEYS {
            assert!(bench.write(&key.to_le_bytes(), Ref::NONE).is_some());
            bench.put(&(key + KEYS).to_le_bytes());
        }
        let [flagged, worn] = shares(&bench.index);
        assert!(flagged < 0.35 && worn < 0.3, "{flagged} of the pairs are flagged, {worn} though they have room; at first it was {fresh}");
        (15 * KEYS..16 * KEYS).for_each(|key| assert!(bench.get(&key.to_le_bytes()).is_some()));
        bench.check(KEYS as usize);
    }

    /// Segments are renewed all the time while other threads look up, insert, replace and remove: every key that stays
    /// is found, and every write counts.
    #[test]
    fn a_renewal_loses_nothing() {
        const KEYS: u64 = 2_000;
        let bench = Bench::new(HashIndex::new());
        let key = |group: u64, number: u64| (group << 32 | number).to_le_bytes();
        (0..KEYS).for_each(|number| _ = bench.put(&key(0, number)));
        let (done, renewed) = (AtomicBool::new(false), AtomicU64::new(0));
        let write = |group: u64| {
            let (mut random, mut there) = (Rng::new(group), std::collections::BTreeMap::new());
            // Runs until segments have been replaced often enough, however the threads take turns.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
            while renewed.load(Ordering::Relaxed) < 300 && std::time::Instant::now() < end {
                let key = key(group, random.below(KEYS as usize) as u64);
                let new = if random.below(3) == 0 { Ref::NONE } else { bench.log.append(&key) };
                assert_eq!(bench.write(&key, new), there.insert(key, new).unwrap_or(Ref::NONE));
                assert_eq!(bench.get(&key), new);
            }
            there.values().filter(|reference| reference.is_some()).count()
        };
        let renew_all = || {
            while !done.load(Ordering::Relaxed) {
                let _pin = epoch::pin();
                for number in 0..20 {
                    let hash = bench.log.hash_of(&key(0, number * 97));
                    let segment = bench.index.segment(hash);
                    if !segment.wide() {
                        bench.index.renew(segment, hash, &bench.log);
                        renewed.fetch_add(u64::from(bench.index.segment(hash) != segment), Ordering::Relaxed);
                    }
                }
            }
        };
        let look_up = || {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                number = (number + 1) % KEYS;
                assert!(bench.get(&key(0, number)).is_some(), "key {number}");
                assert!(bench.get(&key(3, number)).is_none(), "absent key {number}");
            }
        };
        let written = std::thread::scope(|scope| {
            let renewing = scope.spawn(renew_all);
            let looking = scope.spawn(look_up);
            let writers = [1, 2].map(|group| scope.spawn(move || write(group)));
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, Ordering::Relaxed);
            [renewing, looking].into_iter().for_each(|thread| thread.join().unwrap());
            written.into_iter().map(|count| count.unwrap()).sum::<usize>()
        });
        assert!(renewed.into_inner() >= 300);
        bench.check(KEYS as usize + written);
    }

    /// All keys share a home pair: those beyond it stay reachable.
    #[test]
    fn a_renewal_keeps_the_flags_that_are_needed() {
        let bench = Bench { index: HashIndex::new(), log: crate::conformance::FakeLog::degenerate(3, super::super::line::TAG_BITS | 1) };
        (0..100u64).for_each(|key| _ = bench.put(&key.to_le_bytes()));
        let _pin = epoch::pin();
        let hash = bench.log.hash_of(&0u64.to_le_bytes());
        let segment = bench.index.segment(hash);
        assert!(!segment.wide());
        bench.index.renew(segment, hash, &bench.log);
        assert_ne!(bench.index.segment(hash), segment);
        assert_eq!(worn_pairs(bench.index.segment(hash)), 0);
        (0..100u64).for_each(|key| assert!(bench.get(&key.to_le_bytes()).is_some()));
        bench.check(100);
    }

    /// Regression: the paths to unreadable entries were flagged anew in each renewal, so that one of the next few
    /// inserts renewed the segment again.
    #[test]
    fn a_segment_with_damaged_entries_is_renewed_once() {
        const KEYS: usize = 200;
        for damaged in [0, 8] {
            let bench = Bench::new(HashIndex::new());
            let refs: Vec<_> = (0..KEYS as u64).map(|key| bench.put(&key.to_le_bytes())).collect();
            let hash = |key: u64| bench.log.hash_of(&key.to_le_bytes());
            let resolver = Damaged { log: &bench.log, damaged: &refs[..damaged], doubts: true };
            let _pin = epoch::pin();
            let first = bench.index.segment(hash(0));
            // SAFETY: the segment was read from the directory under this pin.
            unsafe { first.all() }.for_each(|pair| _ = pair.lines[0].meta.fetch_or(OVERFLOW, Ordering::Relaxed));
            let (mut renewals, mut segment) = (0, first);
            for key in 0..KEYS as u64 {
                bench.index.renew_if_worn(hash(key), &resolver);
                let now = bench.index.segment(hash(key));
                renewals += usize::from(now != std::mem::replace(&mut segment, now));
            }
            assert_eq!(renewals, 1, "{damaged} damaged entries");
            assert!(damaged == 0 || worn_pairs(segment) >= WORN, "the paths to them are flagged");
            (0..KEYS as u64).for_each(|key| assert!(bench.index.get(bench.log.key_of(&key.to_le_bytes()), &resolver).is_some()));
        }
    }
}
