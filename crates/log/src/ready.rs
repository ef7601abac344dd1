//! What is made ready for writers in the background: space, and on files zeros.
//!
//! A segment is zeroed before it is opened: one that was used before on every medium, on files also one that never was, where writes wait for syncs (`docs/adr/0004`). On a file that takes
//! a write and a sync of all of it, some milliseconds. So a few free segments are kept zeroed there. They stay free meanwhile: whoever takes one that is just being zeroed waits for the end of that,
//! and nobody is told that the store is full because of it.
//!
//! Thread safety: one segment of a pool is zeroed ahead at a time, under a lock of its own; the list of free segments is locked within it, for a look. Who has taken segments zeroes them under no lock, but
//! passes through that one first.
//!
//! Crash: what a free segment holds means nothing, and no memory of its zeros outlives the process.

use crate::error::Result;
use crate::log::Log;
use crate::node::NodePool;
use hither_sync::Bell;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes of free segments that are kept zeroed, but at least [`FEWEST`].
const AHEAD_BYTES: u64 = 16 << 20;
/// Shards open segments independently, perhaps two at once.
const FEWEST: usize = 2;

impl Log {
    /// Makes segments of `node` ready for writers: grows its pool if puts have used it up and it may grow, and zeroes some free ones where that is worth while. For a thread that waits for
    /// [`Log::needs_more`].
    ///
    /// # Errors
    /// The medium's; a writer that needs the segments meets them, too.
    pub fn make_ready(&self, node: usize) -> Result<()> {
        let pool = &self.pools[node];
        pool.grow_ahead()?;
        if self.zeroes_fresh(pool) {
            while let Some(segment) = pool.first_to_zero() {
                pool.zero_if_free(segment)?;
            }
        }
        Ok(())
    }

    /// Rung whenever puts have opened a segment of `node` and there may be something to make ready.
    pub fn needs_more(&self, node: usize) -> &Bell {
        &self.needs_more[node]
    }

    /// Whether segments that were never used are zeroed, too, before they are opened. The first write into an extent of a file that was only reserved costs a commit of the file system's
    /// journal with every sync.
    pub(crate) fn zeroes_fresh(&self, pool: &NodePool) -> bool {
        self.zero_ahead && pool.pool.needs_sync()
    }
}

impl NodePool {
    /// The next free segment that should be zeroed.
    fn first_to_zero(&self) -> Option<u32> {
        let ahead = FEWEST.max((AHEAD_BYTES >> self.segment_shift) as usize);
        let alloc = self.alloc.lock();
        alloc.free.iter().take(ahead).copied().find(|segment| !self.is_zeroed(*segment))
    }

    fn is_zeroed(&self, segment: u32) -> bool {
        self.segments[segment as usize].zeroed.load(Ordering::Acquire)
    }

    fn zero_if_free(&self, segment: u32) -> Result<()> {
        let _one_at_a_time = self.zeroing.lock();
        // Whoever takes it from here on finds that it is not zeroed, and waits.
        if self.is_zeroed(segment) || !self.alloc.lock().free.contains(&segment) {
            return Ok(());
        }
        self.pool.zero_segment(segment, 1)?;
        self.segments[segment as usize].zeroed.store(true, Ordering::Release);
        Ok(())
    }

    /// Zeroes what has to be of a run that the caller has taken from the free segments: what was used before and, where fresh segments are zeroed, everything, unless that was done ahead. All at
    /// once: what lies in between is zeroed with it.
    pub fn ensure_zeroed(&self, log: &Log, run: Range<u32>) -> Result<()> {
        let fresh = log.zeroes_fresh(self);
        if fresh && run.clone().any(|part| !self.is_zeroed(part)) {
            // Somebody may be zeroing one ahead. Nobody begins: they are taken.
            drop(self.zeroing.lock());
        }
        let mut lacking = run.filter(|part| !self.is_zeroed(*part) && (fresh || self.was_used(*part)));
        let Some(first) = lacking.next() else { return Ok(()) };
        let last = lacking.last().unwrap_or(first);
        Ok(self.pool.zero_segment(first, last + 1 - first)?)
    }

    pub fn was_used(&self, segment: u32) -> bool {
        self.segments[segment as usize].generation.load(Ordering::Relaxed) != 0
    }
}
