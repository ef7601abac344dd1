//! Sweeping: the functions that the layer with the indexes needs to mark every entry that tombstones keep out, so that
//! the tombstones may go (`docs/adr/0014`).
//!
//! # Thread safety
//!
//! Runs beside writers and passes. A segment is read under a pin, which keeps it from being opened again; it may be
//! freed meanwhile.
//!
//! # Crash
//!
//! Marks are durable after [`Log::barrier`]. How far segments are swept is kept in DRAM only.
//!
//! Invariant: nobody relies on a mark that is not certain to be durable. A mark that is met may be of a process that
//! died, or of a sweep that is under way or was cut short; a sweep that needs such a mark makes it again
//! ([`Sweeping::may_trust`]). The doubt remains until the segment is used again, because a sweep that ends has remade
//! only the marks that it needed itself.

use crate::entry::EntryView;
use crate::error::Result;
use crate::log::Log;
use crate::opening::Filler;
use crate::pass::Tombstones;
use crate::segment::{Segment, SegmentState};
use hither_sync::epoch;
use std::sync::atomic::{AtomicU64, Ordering, fence};

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

/// The set of keys that have tombstones, by hash. It never misses one. It takes one other key in some hundreds for one,
/// whose dead entries may then be marked again.
#[derive(Debug)]
pub struct TombstoneFilter {
    bits: Box<[u64]>,
}

impl TombstoneFilter {
    /// A filter for `count` tombstones: two to four bytes each.
    pub fn for_tombstones(count: u64) -> TombstoneFilter {
        TombstoneFilter { bits: vec![0; (count.max(4) / 4).next_power_of_two() as usize].into() }
    }

    /// A filter that takes every key for one with a tombstone.
    pub fn of_everything() -> TombstoneFilter {
        TombstoneFilter { bits: Box::new([u64::MAX]) }
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let mask = self.bits.len() - 1;
        let step = hash.rotate_right(29).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(24) | 1;
        (0..4u64)
            .map(move |number| hash.wrapping_add(number.wrapping_mul(step)))
            .map(move |bits| ((bits >> 6) as usize & mask, 1 << (bits & 63)))
    }

    /// Adds a key.
    pub fn add(&mut self, hash: u64) {
        let places = self.places(hash);
        places.for_each(|(word, bit)| self.bits[word] |= bit);
    }

    /// Whether a key may have been added.
    pub fn may_hold(&self, hash: u64) -> bool {
        self.places(hash).all(|(word, bit)| self.bits[word] & bit != 0)
    }
}

/// A sweep under way, from before its first mark until its marks are durable.
pub struct Sweeping<'a> {
    log: &'a Log,
    /// The segments in which it has marked.
    lives: Vec<SegmentLife>,
}

impl Sweeping<'_> {
    /// Announces that this segment is going to be searched.
    pub fn enter(&mut self, life: &SegmentLife) {
        self.lives.push(*life);
    }

    /// Whether the marks that were met in a segment are durable. Call after they were read.
    pub fn may_trust(&self, life: &SegmentLife) -> bool {
        // Pairs with the fence in `begin_sweep`: a thread that has read another sweep's mark sees that sweep counted.
        // If it does not, that sweep has ended, and its marks are durable or the segment is noted as unsure.
        fence(Ordering::Acquire);
        self.log.sweeps.load(Ordering::Acquire) == 1 && !self.log.segment_in(life).marks_unsure.load(Ordering::Relaxed)
    }

    /// Makes the marks durable, and notes that no older entry of the keys of the tombstones up to `version` in `swept`
    /// is left alive.
    ///
    /// # Errors
    /// If that failed; then no mark is relied on.
    pub fn end(mut self, swept: &[SegmentLife], version: u64) -> Result<()> {
        self.log.barrier()?;
        self.lives.clear();
        self.log.end_sweep(swept, version);
        Ok(())
    }
}

impl Drop for Sweeping<'_> {
    fn drop(&mut self) {
        self.log.note_unsure(&self.lives);
        self.log.sweeps.fetch_sub(1, Ordering::Release);
    }
}

impl Log {
    /// Begins a sweep.
    pub fn begin_sweep(&self) -> Sweeping<'_> {
        self.sweeps.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        Sweeping { log: self, lives: Vec::new() }
    }

    fn note_unsure(&self, lives: &[SegmentLife]) {
        for life in lives {
            let _pin = epoch::pin();
            let segment = self.segment_in(life);
            if segment.in_use() && segment.generation.load(Ordering::Relaxed) == life.generation {
                segment.marks_unsure.store(true, Ordering::Relaxed);
            }
        }
    }

    fn segment_in(&self, life: &SegmentLife) -> &Segment {
        &self.pools[life.node as usize].segments[life.index as usize]
    }

    /// The segments in use.
    pub fn lives(&self) -> Vec<SegmentLife> {
        self.lives_of(Segment::in_use)
    }

    /// The full segments that hold tombstones, and the number of these tombstones. (A tombstone may be moved to an open
    /// segment after that was searched.)
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

    /// Whether tombstones that stay only until the next checkpoint hold back at least the share `least` of some full
    /// segment of `node`, or of any node. Under [`Tombstones::Buried`] a tombstone holds back everything in its segment
    /// that is not live; under [`Tombstones::Swept`] tombstones hold back only themselves, once a sweep has released them.
    pub fn tombstones_hold_garbage(&self, node: Option<usize>, least: f64, tombstones: Tombstones) -> bool {
        if self.has_unreadable() {
            return false;
        }
        let floor = self.tombstone_floor.load(Ordering::Relaxed);
        let is_swept =
            |segment: &Segment| segment.newest_tombstone.load(Ordering::Relaxed).min(segment.swept_to.load(Ordering::Relaxed)) > floor;
        let held = self.select(|segment| awaits_checkpoint(segment, floor) && (tombstones == Tombstones::Buried || is_swept(segment)));
        held.into_iter().filter(|(other, _)| node.is_none_or(|node| node == *other)).any(|(node, index)| {
            let pool = &self.pools[node];
            let segment = &pool.segments[index as usize];
            let bytes = u64::from(segment.run_len.load(Ordering::Relaxed)) * pool.segment_bytes();
            let gain = match tombstones {
                Tombstones::Buried => bytes.saturating_sub(segment.live_bytes()),
                Tombstones::Swept => segment.tombstone_bytes.load(Ordering::Relaxed),
            };
            gain as f64 >= least * bytes as f64
        })
    }

    /// Whether full segments contain tombstones that stay only until the next checkpoint. O(segments).
    pub fn tombstones_await_checkpoint(&self) -> bool {
        if self.has_unreadable() {
            return false;
        }
        let floor = self.tombstone_floor.load(Ordering::Relaxed);
        let awaits = |segment: &Segment| awaits_checkpoint(segment, floor);
        self.pools.iter().any(|pool| pool.existing().iter().any(awaits))
    }

    /// The next segment that is wanted, from where the last call with `cursor` stopped. Over all calls each segment is
    /// examined once, and those that are returned once more.
    pub(crate) fn next_life(&self, cursor: &AtomicU64, mut wanted: impl FnMut(&Segment) -> bool) -> Option<SegmentLife> {
        let from = cursor.load(Ordering::Relaxed);
        let (first_node, first_index) = ((from >> 32) as usize, (from & u64::from(u32::MAX)) as usize);
        for (node, pool) in self.pools.iter().enumerate().skip(first_node) {
            let first = if node == first_node { first_index } else { 0 };
            for (index, segment) in pool.existing().iter().enumerate().skip(first) {
                let generation = segment.generation.load(Ordering::Relaxed);
                if wanted(segment) {
                    // Other threads may be ahead.
                    cursor.fetch_max((node as u64) << 32 | index as u64, Ordering::Relaxed);
                    return Some(SegmentLife { node: node as u32, index: index as u32, generation });
                }
            }
        }
        None
    }

    pub(crate) fn lives_of(&self, mut wanted: impl FnMut(&Segment) -> bool) -> Vec<SegmentLife> {
        let mut found = Vec::new();
        for (node, pool) in self.pools.iter().enumerate() {
            for (index, segment) in pool.existing().iter().enumerate() {
                let generation = segment.generation.load(Ordering::Relaxed);
                if wanted(segment) {
                    found.push(SegmentLife { node: node as u32, index: index as u32, generation });
                }
            }
        }
        found
    }

    /// Bytes of the segments of a node that deletes may open when puts may open none. Once tombstones fill them, only
    /// collection makes room.
    pub fn bytes_for_deletes(&self, node: usize) -> u64 {
        let pool = &self.pools[node];
        (pool.reserve(Filler::Put) - pool.reserve(Filler::Delete)) * pool.segment_bytes()
    }

    /// Whether half of those bytes are used up.
    pub fn deletes_run_short(&self, node: usize) -> bool {
        let pool = &self.pools[node];
        let (for_puts, for_deletes) = (pool.reserve(Filler::Put), pool.reserve(Filler::Delete));
        pool.within_reach() < for_puts - (for_puts - for_deletes) / 2
    }

    /// Whether all of those bytes are used up.
    pub fn deletes_have_nothing(&self, node: usize) -> bool {
        let pool = &self.pools[node];
        pool.within_reach() <= pool.reserve(Filler::Delete)
    }

    /// Whether a sweep would release at least one part in `share` of some full segment of the node.
    pub fn has_unswept_of(&self, node: usize, share: u64) -> bool {
        let pool = &self.pools[node];
        pool.existing().iter().any(|segment| unswept_bytes(segment) > pool.segment_bytes() / share)
    }

    /// Bytes of the tombstones in full segments of a node that no sweep has released.
    pub fn unswept_tombstone_bytes(&self, node: usize) -> u64 {
        self.pools[node].existing().iter().map(unswept_bytes).sum()
    }

    /// Calls `visit(reference, version, keyspace, entry)` for every valid entry of a segment that is still in that
    /// life, with the segment pinned, and then `finish` before the pin ends. `None` if the life is over. Entries that
    /// are being appended meanwhile may be visited or not. Call outside epoch pins.
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

    /// Keeps a segment from being opened again, if it is still in that life. Call outside epoch pins.
    pub(crate) fn pin_life(&self, life: &SegmentLife) -> Option<PinnedLife<'_>> {
        let segment = self.segment_in(life);
        // As in `pin_segment`: a thread that frees the segment after this check waits for the epoch pin first, and then
        // sees the count.
        let _pin = epoch::pin();
        if !segment.in_use() || segment.generation.load(Ordering::Relaxed) != life.generation {
            return None;
        }
        segment.pins.fetch_add(1, Ordering::SeqCst);
        Some(PinnedLife { segment })
    }

    /// Notes that no older entry of the keys of these segments' tombstones up to `version` is left alive, durably.
    fn end_sweep(&self, lives: &[SegmentLife], version: u64) {
        for life in lives {
            let segment = self.segment_in(life);
            // A life that has ended is skipped: the next life's entries are newer than `version`, but moved ones may
            // not be.
            let _pin = epoch::pin();
            if segment.in_use() && segment.generation.load(Ordering::Relaxed) == life.generation {
                segment.swept_to.fetch_max(version, Ordering::Relaxed);
            }
        }
    }
}

/// Bytes of a full segment's tombstones that no sweep has released.
fn unswept_bytes(segment: &Segment) -> u64 {
    let is_unswept = is_full(segment) && segment.newest_tombstone.load(Ordering::Relaxed) > segment.swept_to.load(Ordering::Relaxed);
    if is_unswept { segment.tombstone_bytes.load(Ordering::Relaxed) } else { 0 }
}

/// Whether tombstones of a segment stay only until a checkpoint covers more than this version.
fn awaits_checkpoint(segment: &Segment, floor: u64) -> bool {
    is_full(segment) && segment.tombstones.load(Ordering::Relaxed) > 0 && segment.newest_tombstone.load(Ordering::Relaxed) > floor
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
        assert!(wrong < 400, "{wrong} of 100,000");
        assert!(TombstoneFilter::of_everything().may_hold(7));
    }
}
