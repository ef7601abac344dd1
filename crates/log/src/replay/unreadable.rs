//! Segments with pages that the device cannot read: which readers check for such pages first, and what becomes of the
//! segments.
//!
//! A page that is found to be unreadable shows zeros from then on (`Pool::cover_unreadable`), which must never pass for
//! what was written. So only those check whose reads nobody trusts blindly: recovery, before there are indexes, and
//! readers of unverified segments, whose entries are verified at each read ([`super::super::verify`]). A page that goes
//! bad later, in a verified segment, ends the process when it is accessed; the next opening finds it.
//!
//! Such a page may be readable again at a later opening. Entries on it could then come back although they were deleted,
//! so from now on tombstones stay.
//!
//! Thread safety: any number of threads, beside readers. In segments that are being filled, only whole pages before the
//! point where filling went on are checked: nobody writes there.

use crate::address;
use crate::entry::{HEADER_BYTES, MOST_SPARE};
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::{Segment, SegmentState};
use hither_pmem::{Pool, Unreadable};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How many bytes are checked together: about what the kernel maps around a fault.
const BLOCK_BYTES: u64 = 64 << 10;

/// An entry's head, which says how long it is, ends within so many bytes.
const HEAD_BYTES: u64 = HEADER_BYTES + MOST_SPARE;

/// The blocks that an opening has checked before it read there.
///
/// An opening that uses a checkpoint reads single entries of segments that it does not scan. Checking all of such a
/// segment would mean reading it.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    is_on: AtomicBool,
    /// By node: a bit for each block of the segments; empty where nothing is checked.
    looked: OnceLock<Vec<Box<[AtomicU64]>>>,
}

/// An opening under way: see [`Log::begin_looking`].
pub struct Looking<'a>(&'a Lookout);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.is_on.store(false, Release);
    }
}

/// Where the last whole page before this offset ends: nobody writes before that when filling goes on at the offset.
fn whole_pages_before(pool: &Pool, tail: u64) -> u64 {
    tail / pool.page_bytes() * pool.page_bytes()
}

impl Log {
    /// Whether, since the log was opened, some page could not be read or a segment was set aside.
    pub fn has_unreadable(&self) -> bool {
        self.unreadable.load(Relaxed)
    }

    /// The version up to which checkpoints and unreadable pages let tombstones go.
    pub(crate) fn tombstones_stay_after(&self) -> u64 {
        if self.has_unreadable() { 0 } else { self.tombstone_floor.load(Relaxed) }
    }

    /// Checks a segment (or run); pages that cannot be read show zeros from now on. During recovery; otherwise see
    /// [`Log::look_at_unverified`].
    pub(crate) fn cover_unreadable(&self, node: usize, index: u32, run_len: u32) -> Unreadable {
        let pool = &self.pools[node].pool;
        self.cover_range(node, pool.segment_offset(index), u64::from(run_len.max(1)) * pool.segment_bytes())
    }

    /// As [`Log::cover_unreadable`], for whole pages before the offset `tail` in the pool.
    fn cover_unreadable_before(&self, node: usize, index: u32, tail: u64) -> Unreadable {
        let pool = &self.pools[node].pool;
        let (start, end) = (pool.segment_offset(index), whole_pages_before(pool, tail));
        self.cover_range(node, start, end.saturating_sub(start))
    }

    /// Checks so many bytes from an offset in the pool on, and remembers that something could not be read.
    fn cover_range(&self, node: usize, offset: u64, len: u64) -> Unreadable {
        let found = self.pools[node].pool.cover_unreadable(offset, len);
        if found.is_any() {
            self.unreadable.store(true, SeqCst);
        }
        found
    }

    /// Until the result is dropped, [`Log::look_before`] checks entries before they are read for the first time. Only
    /// while a store is opened: later, readers that trust verified segments must not be shown zeros.
    pub fn begin_looking(&self) -> Looking<'_> {
        self.lookout.looked.get_or_init(|| {
            let blocks = |pool: &NodePool| u64::from(pool.pool.segment_count()) * pool.segment_bytes().div_ceil(BLOCK_BYTES);
            let words = |pool: &NodePool| if pool.pool.may_be_unreadable() { blocks(pool).div_ceil(64) } else { 0 };
            self.pools.iter().map(|pool| (0..words(pool)).map(|_| AtomicU64::new(0)).collect()).collect()
        });
        self.lookout.is_on.store(true, Release);
        Looking(&self.lookout)
    }

    /// Whether the entry behind a reference can be read, or its first `most` bytes if it is longer, as far as this
    /// opening must check. Pages that cannot be read show zeros.
    #[inline]
    pub fn look_before(&self, reference: u64, most: u64) -> bool {
        !self.lookout.is_on.load(Acquire) || self.look_at_entry(reference, most)
    }

    /// As [`Log::size_of`]. What has to be read for it is checked first.
    #[inline]
    pub fn size_to_load(&self, reference: u64) -> u64 {
        if address::tagged_size(reference).is_none() {
            // Of what cannot be read the size is 0, and the verification reports it.
            let _ = self.look_before(reference, HEAD_BYTES);
        }
        self.size_of(reference)
    }

    #[cold]
    fn look_at_entry(&self, reference: u64, most: u64) -> bool {
        let at = address::unpack(reference);
        let looked = self.lookout.looked.get().and_then(|looked| looked.get(at.node as usize));
        let Some(looked) = looked.filter(|bits| !bits.is_empty()) else { return true };
        let look = |len| self.look_at_blocks(looked, at.node as usize, (at.offset, len));
        match address::tagged_size(reference) {
            Some(size) => look(size.min(most)),
            None => look(HEAD_BYTES) && (most <= HEAD_BYTES || look(self.size_of(reference).min(most))),
        }
    }

    fn look_at_blocks(&self, looked: &[AtomicU64], node: usize, (offset, len): (u64, u64)) -> bool {
        let pool = &self.pools[node].pool;
        let (start, block_bytes) = (pool.segment_offset(0), BLOCK_BYTES.min(pool.segment_bytes()));
        let end = (offset + len.max(1)).min(pool.segment_offset(pool.segment_count()));
        for block in (offset - start) / block_bytes..(end - start).div_ceil(block_bytes) {
            let (word, bit) = (&looked[(block / 64) as usize], 1 << (block % 64));
            if word.load(Acquire) & bit == 0 {
                self.cover_range(node, start + block * block_bytes, block_bytes);
                word.fetch_or(bit, Release);
            }
        }
        !self.has_unreadable() || !pool.cover_unreadable(offset, end - offset).is_any()
    }

    /// As [`Log::cover_unreadable`], if the segment is not verified. The segment must not be freed, or must be pinned.
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
        self.note_in_unverified(&found, segment);
        found
    }

    /// Whether two references lead into the same segment.
    pub fn is_same_segment(&self, a: u64, b: u64) -> bool {
        let segment = |reference: u64| {
            let at = address::unpack(reference);
            (at.node, self.pools[at.node as usize].segment_index(at.offset))
        };
        segment(a) == segment(b)
    }

    /// Checks the entry behind a reference before it is read, or its first `most` bytes if it is longer, if its segment
    /// is not verified. Call under the epoch pin under which the reference was found. A system call each time.
    pub fn look_at_unverified_entry(&self, reference: u64, most: u64) {
        let at = address::unpack(reference);
        let NodePool { pool, segments, .. } = &self.pools[at.node as usize];
        let Some(segment) = pool.segment_of(at.offset).map(|index| &segments[index as usize]) else { return };
        if !segment.unverified.load(SeqCst) || !pool.may_be_unreadable() {
            return;
        }
        // What was appended since the opening is not part of what is verified: zeros there would pass for verified.
        // Nor can it be written any more, so the page in which writing went on is not checked either.
        let end = match segment.tail_at_open.load(Relaxed) {
            0 => pool.segment_offset(pool.segment_count()),
            tail => whole_pages_before(pool, tail),
        };
        if at.offset >= end {
            return;
        }
        let cover = |len: u64| self.cover_range(at.node as usize, at.offset, len.min(end - at.offset));
        let mut found = cover(address::tagged_size(reference).unwrap_or(HEAD_BYTES).min(most));
        if !found.is_any() && address::tagged_size(reference).is_none() {
            found = cover(self.size_of(reference).min(most));
        }
        self.note_in_unverified(&found, segment);
    }

    /// What was found in an unverified segment is damage also if another thread has verified the segment just before.
    fn note_in_unverified(&self, found: &Unreadable, segment: &Segment) {
        if found.is_any() && !segment.unverified.load(SeqCst) {
            segment.damaged.store(true, SeqCst);
            self.count_as_unverified(segment);
        }
    }
}
