//! Sweeping: what the layer with the indexes needs to mark everything that tombstones keep out, so that the tombstones may go (`docs/adr/0014`).
//!
//! # Thread safety
//!
//! Beside writers and passes. A segment is read under a pin, which keeps it from being opened again; it may be freed meanwhile.
//!
//! # Crash
//!
//! Marks are durable after [`Log::barrier`]; how far segments are swept is kept in DRAM only.

use crate::entry::EntryView;
use crate::log::Log;
use crate::segment::{Segment, SegmentState};
use hither_sync::epoch;
use std::sync::atomic::Ordering;

/// One life of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLife {
    /// Node of its pool.
    pub node: u32,
    /// Number in the pool.
    pub index: u32,
    generation: u64,
}

/// Keeps a segment from being opened again; it may be freed meanwhile.
pub(crate) struct PinnedLife<'a> {
    segment: &'a Segment,
}

impl Drop for PinnedLife<'_> {
    fn drop(&mut self) {
        self.segment.pins.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Keys that have tombstones, by hash: never misses one, and takes about one other in a hundred for one.
pub struct TombstoneFilter {
    bits: Box<[u64]>,
}

impl TombstoneFilter {
    /// Room for so many tombstones: two to four bytes each.
    pub fn for_tombstones(count: u64) -> TombstoneFilter {
        TombstoneFilter { bits: vec![0; (count.max(4) / 4).next_power_of_two() as usize].into() }
    }

    /// Takes every key for one with a tombstone.
    pub fn of_everything() -> TombstoneFilter {
        TombstoneFilter { bits: Box::new([u64::MAX]) }
    }

    fn places(&self, hash: u64) -> [(usize, u64); 2] {
        let mask = self.bits.len() - 1;
        let place = |bits: u64| ((bits >> 6) as usize & mask, 1 << (bits & 63));
        [place(hash), place(hash.rotate_right(29).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(24))]
    }

    /// Adds a key.
    pub fn add(&mut self, hash: u64) {
        self.places(hash).into_iter().for_each(|(word, bit)| self.bits[word] |= bit);
    }

    /// Whether a key may have been added.
    pub fn may_hold(&self, hash: u64) -> bool {
        self.places(hash).into_iter().all(|(word, bit)| self.bits[word] & bit != 0)
    }
}

impl Log {
    /// The segments in use.
    pub fn lives(&self) -> Vec<SegmentLife> {
        self.lives_of(Segment::in_use)
    }

    /// The full segments that hold tombstones, and how many they hold. (To an open one a tombstone may be moved after it was looked at.)
    pub fn lives_with_tombstones(&self) -> (Vec<SegmentLife>, u64) {
        let mut tombstones = 0;
        let found = self.lives_of(|segment| {
            let held = segment.tombstones.load(Ordering::Relaxed);
            let wanted = is_full(segment) && held > 0;
            tombstones += u64::from(held) * u64::from(wanted);
            wanted
        });
        (found, tombstones)
    }

    pub(crate) fn lives_of(&self, mut wanted: impl FnMut(&Segment) -> bool) -> Vec<SegmentLife> {
        let mut found = Vec::new();
        for (node, pool) in self.pools.iter().enumerate() {
            for (index, segment) in pool.segments[..pool.pool.segment_count() as usize].iter().enumerate() {
                let generation = segment.generation.load(Ordering::Relaxed);
                if wanted(segment) {
                    found.push(SegmentLife { node: node as u32, index: index as u32, generation });
                }
            }
        }
        found
    }

    /// Bytes of tombstones, in full segments of a node, that no sweep has made free to go.
    pub fn unswept_tombstone_bytes(&self, node: usize) -> u64 {
        let pool = &self.pools[node];
        let unswept = |segment: &&Segment| {
            is_full(segment) && segment.newest_tombstone.load(Ordering::Relaxed) > segment.swept_to.load(Ordering::Relaxed)
        };
        let segments = pool.segments[..pool.pool.segment_count() as usize].iter();
        segments.filter(unswept).map(|segment| segment.tombstone_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Calls `visit(reference, version, keyspace, entry)` for every valid entry of a segment that is in that life still, with the segment pinned, and then
    /// `finish` before the pin ends; false if it is not. Entries that are being appended meanwhile may be visited or not. Call outside epoch pins.
    pub fn visit_life<'a, R>(
        &'a self,
        life: &SegmentLife,
        mut visit: impl FnMut(u64, u64, u32, &EntryView<'a>),
        finish: impl FnOnce() -> R,
    ) -> Option<R> {
        let _pinned = self.pin_life(life)?;
        self.visit_segment(life.node as usize, life.index, &mut visit);
        Some(finish())
    }

    /// Keeps a segment from being opened again, if it is in that life still. Call outside epoch pins.
    pub(crate) fn pin_life(&self, life: &SegmentLife) -> Option<PinnedLife<'_>> {
        let segment = &self.pools[life.node as usize].segments[life.index as usize];
        // As `pin_segment`: whoever frees the segment after this look waits for the epoch pin first, and sees the count then.
        let _pin = epoch::pin();
        if !segment.in_use() || segment.generation.load(Ordering::Relaxed) != life.generation {
            return None;
        }
        segment.pins.fetch_add(1, Ordering::SeqCst);
        Some(PinnedLife { segment })
    }

    /// Notes that of what is older than the tombstones of these segments up to `version` nothing is left alive, durably.
    pub fn end_sweep(&self, lives: &[SegmentLife], version: u64) {
        for life in lives {
            let segment = &self.pools[life.node as usize].segments[life.index as usize];
            // A life that ended meanwhile: the next one's entries are newer than `version`, but for moved ones.
            let _pin = epoch::pin();
            if segment.in_use() && segment.generation.load(Ordering::Relaxed) == life.generation {
                segment.swept_to.fetch_max(version, Ordering::Relaxed);
            }
        }
    }
}

fn is_full(segment: &Segment) -> bool {
    segment.in_use() && matches!(segment.state(), SegmentState::Sealed | SegmentState::Collecting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_misses_none_and_errs_seldom() {
        let mut filter = TombstoneFilter::for_tombstones(1000);
        let hash = |key: u64| (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (key << 40);
        (0..1000).for_each(|key| filter.add(hash(key)));
        assert!((0..1000).all(|key| filter.may_hold(hash(key))));
        let wrong = (1000..101_000).filter(|&key| filter.may_hold(hash(key))).count();
        assert!(wrong < 5_000, "{wrong} of 100,000");
        assert!(TombstoneFilter::of_everything().may_hold(7));
    }
}
