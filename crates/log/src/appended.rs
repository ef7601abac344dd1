//! Bytes ever appended to a pool, by writers and by collectors: what write amplification is made of.
//!
//! A segment counts what is in it; what was in segments that have been freed since is remembered here. Thread safety: sums under the lock of reclamation,
//! so that no segment counts twice or not at all; exact when no writer or collector is in the middle of something. Nothing is on media.

use crate::log::Log;
use crate::reclaim::TakeBack;
use crate::segment::{Segment, SegmentState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of entries appended to a pool since the log was opened, those that were found there included.
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

/// What segments held that were freed.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    fresh: AtomicU64,
    moved: AtomicU64,
}

impl Freed {
    /// Remembers what a segment holds that is about to be free.
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
        // What is freed meanwhile would be missing, or counted twice. First: whoever frees may be at it for long, and others want the other lock for something short.
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
