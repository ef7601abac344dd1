//! Counts the bytes of each segment that writers have made garbage.
//!
//! Each slot counts in a table of its own, so an overwrite takes no locked instruction and shares no line. The counts
//! only grow (and wrap around). To find out how much was added since the last look, a thread reads them beside the
//! writer, without stopping it ([`Log::fold_dead`]).
//!
//! # Invariants
//!
//! * C1. Only the thread that may use the slot adds to its table.
//! * C2. Before a segment is opened again, its counts are folded, after every thread that could have superseded an
//!   entry in it has left. So nothing of one life is counted in the next.

use crate::log::Log;
use crate::zeroed::Zeroed;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the smallest part of a table that is used takes; more where the system's pages are larger.
const PAGE_BYTES: usize = 4 << 10;

/// One slot's counts for the segments of one pool; allocated with the first count. They take memory for segments that
/// exist, although there is a place for each that the pool may ever have.
#[derive(Default)]
pub(crate) struct DeadCounts(OnceLock<Zeroed<AtomicU32>>);

impl DeadCounts {
    /// Counts bytes of a segment (C1). `segments` returns how many segments the pool may have.
    #[inline(always)]
    pub fn add(&self, segment: usize, bytes: u32, segments: impl FnOnce() -> usize) {
        let table = match self.0.get() {
            Some(table) => table,
            None => self.allocate(segments()),
        };
        Self::add_at(&table[segment], bytes);
    }

    /// The count of a segment; `None` before the first count.
    #[inline(always)]
    pub fn count_of(&self, segment: usize) -> Option<&AtomicU32> {
        self.0.get()?.get(segment)
    }

    /// Adds to a count (C1).
    #[inline(always)]
    pub fn add_at(count: &AtomicU32, bytes: u32) {
        // Not a read-modify-write: no other thread stores here.
        count.store(count.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }

    #[cold]
    fn allocate(&self, segments: usize) -> &[AtomicU32] {
        self.0.get_or_init(|| Zeroed::new(segments))
    }

    /// Adds the counts of the first segments to `sums`.
    fn add_to(&self, sums: &mut [u32]) {
        let table = self.0.get().map_or(&[][..], |table| &**table);
        sums.iter_mut().zip(table).for_each(|(sum, count)| *sum = sum.wrapping_add(count.load(Ordering::Relaxed)));
    }

    /// Bytes of DRAM that the table takes if this many segments exist: whole pages.
    pub fn dram_bytes(&self, segments: usize) -> usize {
        self.0.get().map_or(0, |table| (table.len().min(segments) * size_of::<AtomicU32>()).next_multiple_of(PAGE_BYTES))
    }
}

impl Log {
    /// Adds to the segments what slots have counted since the last call. Counts of writer sections that have ended
    /// before are included; those of sections under way may be partly included. O(segments × threads); no thread waits.
    pub(crate) fn fold_dead(&self) {
        for (node, pool) in self.pools.iter().enumerate() {
            let mut folded = pool.folded.lock();
            let mut sums = vec![0; pool.pool.segment_count() as usize];
            self.slots().for_each(|slot| slot.dead[node].add_to(&mut sums));
            if folded.len() < sums.len() {
                folded.resize(sums.len(), 0);
            }
            for ((sum, folded), segment) in sums.iter().zip(&mut *folded).zip(pool.segments.iter()) {
                let new = sum.wrapping_sub(*folded);
                if new != 0 {
                    segment.dead_bytes.fetch_add(u64::from(new), Ordering::Relaxed);
                    *folded = *sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_over_slots_and_wrap_around() {
        let (a, b, none) = (DeadCounts::default(), DeadCounts::default(), DeadCounts::default());
        a.add(2, u32::MAX, || 4);
        a.add(2, 3, || unreachable!("allocated once"));
        b.add(0, 32, || 4);
        b.add(2, 5, || 4);
        let mut sums = [0; 3];
        [&a, &b, &none].into_iter().for_each(|counts| counts.add_to(&mut sums));
        assert_eq!(sums, [32, 0, 7]);
        assert_eq!([1, 4, 4000].map(|segments| a.dram_bytes(segments)), [PAGE_BYTES; 3]);
        assert_eq!(none.dram_bytes(4), 0);
    }

    /// Regression: each slot took memory for the counts of all segments that the pool might ever have.
    #[test]
    fn counts_of_segments_that_do_not_exist_take_no_memory() {
        let before = crate::zeroed::tests::resident_pages();
        let slots = [const { DeadCounts(OnceLock::new()) }; 4];
        slots.iter().for_each(|counts| counts.add(7, 32, || 64 << 20));
        let pages = crate::zeroed::tests::resident_pages().saturating_sub(before);
        assert!(pages < 100_000, "{pages} pages, not those of a gigabyte");
        assert_eq!(slots[0].dram_bytes(5000), 5 * PAGE_BYTES);
    }
}
