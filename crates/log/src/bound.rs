//! A bound on live bytes: the store runs at a set utilisation (Pacman, section 4), so that collectors always find
//! enough garbage to make their work cheap.
//!
//! Live bytes are summed up when a segment is opened for a put, not at each write. If they may have reached the bound
//! by then, the store counts as *crowded*: the layer above checks each write that would add to them
//! ([`Log::measure_live`] gathers all counts), until there is room again. Otherwise a write costs a load and a branch.
//!
//! # Granularity
//!
//! Between two checks writers fill the rest of the open segments, so live bytes exceed the bound by at most these
//! segments (2 % of a store; `docs/adr/0016`).
//!
//! Thread safety: any number of threads. A thread that has measured that there is room withdraws earlier findings, but
//! not those that others have made meanwhile. Nothing is on media: the bound belongs to the open store.

use crate::log::Log;
use crate::reclaim::TakeBack;
use crate::segment::Segment;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bound and whether it is reached.
pub(crate) struct Bound {
    /// The most live bytes in all pools; `u64::MAX`: as many as fit.
    most: u64,
    /// Whether the bound is reached ([`CROWDED`]), and in the bits above how often that was found.
    found: AtomicU64,
}

const CROWDED: u64 = 1;

impl Bound {
    /// A bound of `percent` per cent of `bytes`; `None`: no bound.
    pub fn new(percent: Option<u32>, bytes: u64) -> Bound {
        let most = percent.map_or(u64::MAX, |percent| (u128::from(bytes) * u128::from(percent) / 100) as u64);
        Bound { most, found: AtomicU64::new(0) }
    }

    /// Notes that the bound is reached. Release: a thread that sees this finding also sees the counts behind it.
    fn crowd(&self) {
        let more = |found: u64| Some((found | CROWDED) + (CROWDED + 1));
        let _ = self.found.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    }

    /// Notes that there is room, unless another thread has found otherwise since `found` was read.
    fn relieve(&self, found: u64) {
        if found & CROWDED != 0 {
            let _ = self.found.compare_exchange(found, found & !CROWDED, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl Log {
    /// Whether a write that adds to the live bytes must call [`Log::measure_live`] first.
    #[inline(always)]
    pub fn is_crowded(&self) -> bool {
        self.bound.found.load(Ordering::Relaxed) & CROWDED != 0
    }

    /// The most live bytes allowed in all pools, if there is a bound.
    pub fn most_live_bytes(&self) -> Option<u64> {
        Some(self.bound.most).filter(|most| *most != u64::MAX)
    }

    /// Live bytes in all pools now, and whether they are below the bound, so that there is room for more. Call outside
    /// writer sections. O(segments + slots).
    pub fn measure_live(&self) -> (u64, bool) {
        self.measure_before(|| ())
    }

    /// As [`Log::measure_live`], but calls `between` after the counting.
    fn measure_before(&self, between: impl FnOnce()) -> (u64, bool) {
        let found = self.bound.found.load(Ordering::Acquire);
        self.fold_slots(TakeBack::None);
        let live = self.sum_live(|_, _| 0);
        between();
        let has_room = live < self.bound.most;
        if has_room {
            self.bound.relieve(found)
        } else {
            self.bound.crowd()
        }
        (live, has_room)
    }

    /// Called when a segment was opened for a put: checks whether live bytes, including those in writers' hands, may
    /// have reached the bound. O(segments) if there is a bound.
    pub(crate) fn look_at_bound(&self) {
        if self.bound.most != u64::MAX {
            let in_hands = |segment: &Segment, chunk_bytes| u64::from(segment.open_chunks.load(Ordering::Relaxed)) * chunk_bytes;
            if self.sum_live(in_hands) >= self.bound.most {
                self.bound.crowd();
            }
        }
    }

    fn sum_live(&self, more: impl Fn(&Segment, u64) -> u64) -> u64 {
        let of_pool = |pool: &crate::node::NodePool| -> u64 {
            let existing = pool.existing().iter().filter(|segment| segment.in_use());
            existing.map(|segment| segment.live_bytes() + more(segment, pool.chunk_bytes)).sum()
        };
        self.pools.iter().map(of_pool).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flush;
    use crate::entry::Parts;

    /// Regression: a thread that had measured that there was room withdrew a finding that another had made meanwhile,
    /// and writers exceeded the bound until the next segment was opened.
    #[test]
    fn what_is_found_while_others_measure_stands() {
        let sizes = hither_pmem::CreateOptions { segment_bytes: 4096, ..hither_pmem::CreateOptions::new(1 << 20) };
        let mut log = Log::for_tests(&sizes);
        log.bound = Bound::new(Some(1), 1 << 20);
        let put = |log: &Log, key: u64| {
            let (key, value) = (&key.to_ne_bytes(), &[7; 500][..]);
            log.write_for_tests(Parts { key, value, keyspace: 1, ..Parts::EMPTY }, Flush::Now).0
        };
        put(&log, 0);
        assert!(!log.is_crowded());
        // Simulates an earlier finding.
        log.bound.crowd();
        let mut refs = Vec::new();
        let fill = || refs = (1..30).map(|key| put(&log, key)).collect();
        assert!(log.measure_before(fill).1 && log.is_crowded(), "segments were opened");
        assert!(!log.measure_live().1 && log.is_crowded());
        let section = hither_sync::epoch::pin_writer();
        refs.iter().for_each(|reference| log.writer().lent().mark_dead(*reference));
        drop(section);
        assert!(log.measure_live().1 && !log.is_crowded());
    }
}
