//! A bound on live bytes: the store runs at a set utilisation (Pacman, section 4), so that collectors always find the garbage that makes their work cheap.
//!
//! Live bytes are summed up when a segment is opened for a put, and not at each write. If they may have reached the bound by then, the store counts as *crowded*: the layer above looks closely at
//! each write that would add to them ([`Log::measure_live`] gathers all counts), until there is room again. Otherwise a write costs a load and a branch.
//!
//! # Granularity
//!
//! Between two looks writers fill what is left of the open segments, so live bytes exceed the bound by at most these segments (2 % of a store; `docs/adr/0016`).
//!
//! Thread safety: any number of threads. Nothing is on media: the bound is one of the open store.

use crate::log::Log;
use crate::reclaim::TakeBack;
use crate::segment::Segment;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bound and whether it is reached.
pub(crate) struct Bound {
    /// Live bytes in all pools; `u64::MAX`: as many as fit.
    most: u64,
    crowded: AtomicBool,
}

impl Bound {
    /// So many per cent of `bytes`; absent: no bound.
    pub fn new(percent: Option<u32>, bytes: u64) -> Bound {
        let most = percent.map_or(u64::MAX, |percent| (u128::from(bytes) * u128::from(percent) / 100) as u64);
        Bound { most, crowded: AtomicBool::new(false) }
    }
}

impl Log {
    /// Whether a write that adds to the live bytes must ask [`Log::measure_live`] first.
    #[inline(always)]
    pub fn is_crowded(&self) -> bool {
        self.bound.crowded.load(Ordering::Relaxed)
    }

    /// The most live bytes that there may be in all pools, if there is a bound.
    pub fn most_live_bytes(&self) -> Option<u64> {
        Some(self.bound.most).filter(|most| *most != u64::MAX)
    }

    /// Live bytes in all pools now, and whether they are below the bound, so that there is room for more. Call outside writer sections. O(segments + slots).
    pub fn measure_live(&self) -> (u64, bool) {
        self.fold_slots(TakeBack::None);
        let live = self.sum_live(|_, _| 0);
        let has_room = live < self.bound.most;
        self.bound.crowded.store(!has_room, Ordering::Relaxed);
        (live, has_room)
    }

    /// A segment was opened for a put: looks whether live bytes may have reached the bound, what is in writers' hands included. O(segments) if there is one.
    pub(crate) fn look_at_bound(&self) {
        if self.bound.most != u64::MAX {
            let in_hands = |segment: &Segment, chunk_bytes| u64::from(segment.open_chunks.load(Ordering::Relaxed)) * chunk_bytes;
            if self.sum_live(in_hands) >= self.bound.most {
                self.bound.crowded.store(true, Ordering::Relaxed);
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
