//! Bytes ever appended to a pool, by writers and by collectors: the basis of write amplification.
//!
//! A segment counts the bytes in it; the bytes of segments freed since are remembered here. Thread safety: the sums are
//! taken under the locks of reuse and reclamation, so that every segment counts exactly once. They are exact when no
//! writer or collector is in the middle of something. Nothing is on media.

use crate::log::Log;
use crate::reclaim::TakeBack;
use crate::segment::{Segment, SegmentState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of entries appended to a pool since the log was opened, including those found there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendedBytes {
    /// By writers.
    pub fresh: u64,
    /// By collectors: copies.
    pub moved: u64,
}

impl AppendedBytes {
    fn add(&mut self, segment: &Segment) {
        let bytes = segment.written_bytes.load(Ordering::Relaxed);
        *(if segment.is_cold() { &mut self.moved } else { &mut self.fresh }) += bytes;
    }
}

/// Bytes that freed segments held.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    fresh: AtomicU64,
    moved: AtomicU64,
}

impl Freed {
    /// Remembers the bytes in a segment that is about to be free.
    pub fn remember(&self, segment: &Segment) {
        let mut bytes = AppendedBytes::default();
        bytes.add(segment);
        self.fresh.fetch_add(bytes.fresh, Ordering::Relaxed);
        self.moved.fetch_add(bytes.moved, Ordering::Relaxed);
    }
}

impl Log {
    /// Bytes appended so far, by node. O(segments).
    pub fn appended(&self) -> Vec<AppendedBytes> {
        // A segment freed meanwhile would be missing or counted twice. Taken first: the thread that frees may hold this
        // lock for long, and others want the other lock for something short.
        let _none_freed = self.reuse.lock();
        let _one_at_a_time = self.reclaim.lock();
        self.fold_slots(TakeBack::None);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of_pool = |pool: &crate::node::NodePool| {
            let mut sum = AppendedBytes { fresh: read(&pool.freed.fresh), moved: read(&pool.freed.moved) };
            let existing = pool.existing();
            existing.iter().filter(|segment| segment.state() != SegmentState::Free).for_each(|segment| sum.add(segment));
            sum
        };
        self.pools.iter().map(of_pool).collect()
    }
}
