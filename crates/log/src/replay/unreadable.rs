//! Segments of which the device cannot give some page: who looks for such before it reads, and what becomes of them.
//!
//! A page that is found shows zeros from then on (`Pool::cover_unreadable`), which must never pass for what was written. So only those look whom nobody trusts blindly anyway: recovery, before there are
//! indexes, and whoever reads segments that are not verified, whose entries are verified at each read ([`super::super::verify`]). A page that goes bad later, in a verified segment, ends the
//! process when it is touched; the next opening finds it.
//!
//! Such a page may be well again at a later opening. What it holds could come back then, where a delete had kept it out: so from now on tombstones stay.
//!
//! Thread safety: any number of threads, beside readers. Of segments that are being filled only whole pages before the place where that went on are looked at: nobody writes there.

use crate::log::Log;
use crate::segment::SegmentState;
use hither_pmem::Unreadable;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Log {
    /// Whether some page could not be read since the log was opened.
    pub fn has_unreadable(&self) -> bool {
        self.unreadable.load(Relaxed)
    }

    /// The version up to which tombstones may go, as far as checkpoints and pages that cannot be read are concerned.
    pub(crate) fn tombstones_stay_after(&self) -> u64 {
        if self.has_unreadable() { 0 } else { self.tombstone_floor.load(Relaxed) }
    }

    /// Looks at a segment (or run), and has what cannot be read show zeros. During recovery; otherwise see [`Log::look_at_unverified`].
    pub(crate) fn cover_unreadable(&self, node: usize, index: u32, run_len: u32) -> Unreadable {
        let pool = &self.pools[node].pool;
        self.cover_range(node, index, u64::from(run_len.max(1)) * pool.segment_bytes())
    }

    /// As [`Log::cover_unreadable`], of whole pages before the offset `tail` in the pool.
    fn cover_unreadable_before(&self, node: usize, index: u32, tail: u64) -> Unreadable {
        let pool = &self.pools[node].pool;
        let end = tail / pool.page_bytes() * pool.page_bytes();
        self.cover_range(node, index, end.saturating_sub(pool.segment_offset(index)))
    }

    fn cover_range(&self, node: usize, index: u32, len: u64) -> Unreadable {
        let pool = &self.pools[node].pool;
        let found = pool.cover_unreadable(pool.segment_offset(index), len);
        if found.is_any() {
            self.unreadable.store(true, SeqCst);
        }
        found
    }

    /// As [`Log::cover_unreadable`], if the segment is not verified. The segment must not be freed, or be pinned.
    pub(crate) fn look_at_unverified(&self, node: usize, index: u32) -> Unreadable {
        let segment = &self.pools[node].segments[index as usize];
        if !segment.unverified.load(SeqCst) {
            return Unreadable::default();
        }
        let found = if matches!(segment.state(), SegmentState::Open | SegmentState::Closed) {
            self.cover_unreadable_before(node, index, segment.tail_at_open.load(Relaxed))
        } else {
            self.cover_unreadable(node, index, segment.run_len.load(Relaxed))
        };
        segment.looked_at.store(true, SeqCst);
        if found.is_any() && !segment.unverified.load(SeqCst) {
            // Verified by another thread just before.
            segment.damaged.store(true, SeqCst);
            self.count_as_unverified(segment);
        }
        found
    }
}
