//! A pool: the storage of one node.
//!
//! Thread safety: all methods take `&self`. One mutex serialises metadata changes; the caller orders data accesses.
//!
//! Invariants: segments `0..segment_count` are mapped and preallocated; the mapping never moves. After a failed sync
//! the pool is poisoned and refuses metadata changes.
//!
//! Crash: every metadata change is one change of a commit word or of one checked word.

mod access;
mod copy_back;
mod create;
mod metadata;
mod open;
mod page0;
mod salvage;
mod segments;
mod storage;
#[cfg(test)]
pub(crate) mod tests;
mod unreadable;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) use access::Access;
pub use unreadable::Unreadable;

use crate::error::Result;
use crate::layout::Geometry;
use crate::medium::MediumInfo;
use crate::superblock::SuperblockInfo;

/// The storage of one NUMA node. See the crate's documentation.
pub struct Pool {
    access: Access,
    geometry: Geometry,
    segment_shift: u32,
    segments: AtomicU64,
    /// The superblock as it is on the medium. Its lock serialises all metadata changes of the pool.
    superblock: Mutex<SuperblockInfo>,
    /// Held while the pool grows. Taken before the superblock's lock, which is not held while space is allocated,
    /// because that may take long.
    growing: Mutex<()>,
    settled: AtomicU64,
    clock_ms: AtomicU64,
    oldest_checkpoint: AtomicU64,
    was_clean: bool,
    salvage: salvage::Notes,
    lost_settled: bool,
    /// Changes never reach the file.
    is_private: bool,
    /// Pages that could not be read and show zeros instead (`unreadable`).
    covered: Mutex<BTreeSet<u64>>,
    hugepages: bool,
    bind_os_node: Option<u32>,
    node: u32,
    pool_uuid: [u8; 16],
    medium: MediumInfo,
    _guard: Option<crate::sigbus::Registration>,
}

impl Pool {
    /// The current superblock.
    pub fn superblock(&self) -> SuperblockInfo {
        self.superblock.lock().clone()
    }

    /// The node to which this storage belongs.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// What the storage is and promises.
    pub fn medium(&self) -> MediumInfo {
        self.medium.clone()
    }

    /// The error of an attempt to get so many bytes where the device had no room a short time ago.
    pub fn disk_full(&self, bytes: u64) -> crate::Error {
        crate::Error::DiskFull { pool: self.access.place().clone(), bytes }
    }

    /// The pool's file; `None` for in-memory pools.
    pub fn path(&self) -> Option<&Path> {
        self.access.place().0.as_deref()
    }

    /// The address at which the pool begins. Stays the same for the life of the pool.
    #[inline(always)]
    pub fn base(&self) -> *const u8 {
        self.access.base()
    }

    /// How many bytes are mapped; only grows.
    #[inline(always)]
    pub fn len_mapped(&self) -> u64 {
        self.access.mapped()
    }

    /// Copies bytes to `off`. Up to 64 bytes of whole aligned words are written with 8-byte stores.
    ///
    /// # Safety
    /// `[off, off + src.len())` is inside the pool, the pool is open for writing, and nobody else accesses the range
    /// except by raw or atomic reads that tolerate mixtures.
    #[inline(always)]
    pub unsafe fn write(&self, off: u64, src: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.access.write(off, src) }
    }

    /// Stores words (as little-endian) at `off` with relaxed 8-byte stores: the hot path of entries.
    ///
    /// # Safety
    /// As [`Pool::write`], and `off` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn write_words(&self, off: u64, words: &[u64]) {
        // SAFETY: the caller's promise.
        unsafe { self.access.write_words(off, words) }
    }

    /// As [`Pool::write_words`], for few words that are at hand in registers.
    ///
    /// # Safety
    /// As [`Pool::write_words`].
    #[inline(always)]
    pub unsafe fn write_array<const N: usize>(&self, off: u64, words: &[u64; N]) {
        // SAFETY: the caller's promise.
        unsafe { self.access.write_array(off, words) }
    }

    /// [`Pool::write_array`] and [`Pool::flush`] of these words. Returns the address of the first one.
    ///
    /// # Safety
    /// As [`Pool::write_words`].
    #[inline(always)]
    pub unsafe fn write_back_array<const N: usize>(&self, off: u64, words: &[u64; N]) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { self.access.write_back_array(off, words) }
    }

    /// Copies bytes around the caches. They are durable after the next [`Pool::fence`] without a flush (on a file,
    /// after a sync).
    ///
    /// # Safety
    /// As [`Pool::write`].
    pub unsafe fn write_streaming(&self, off: u64, src: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.access.write_streaming(off, src) }
    }

    /// Writes zeros as [`Pool::write_streaming`] writes bytes.
    ///
    /// # Safety
    /// As [`Pool::write`].
    pub unsafe fn zero_streaming(&self, off: u64, len: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.access.zero_streaming(off, len) }
    }

    /// Stores one word with release order.
    ///
    /// # Panics
    /// If `off` is not aligned or not inside the pool.
    #[inline(always)]
    pub fn store_u64(&self, off: u64, value: u64) {
        self.access.store_u64(off, value);
    }

    /// Loads one word with acquire order.
    ///
    /// # Panics
    /// If `off` is not aligned or not inside the pool.
    #[inline(always)]
    pub fn load_u64(&self, off: u64) -> u64 {
        self.access.load_u64(off)
    }

    /// Starts the write-back of the lines of a range. Does nothing where the medium needs no flush.
    #[inline(always)]
    pub fn flush(&self, off: u64, len: usize) {
        self.access.flush(off, len);
    }

    /// Waits until everything this thread flushed or streamed is durable. Does nothing where the medium needs no fence.
    #[inline(always)]
    pub fn fence(&self) {
        self.access.fence();
    }

    /// Whether [`Pool::flush`] does anything.
    #[inline(always)]
    pub fn needs_flush(&self) -> bool {
        self.access.needs_flush()
    }

    /// Whether durability needs [`Pool::sync`].
    #[inline(always)]
    pub fn needs_sync(&self) -> bool {
        self.access.needs_sync()
    }

    /// Makes everything stored before the call durable: a sync on a file, elsewhere a fence. A failure poisons the
    /// pool.
    pub fn sync(&self) -> Result<()> {
        self.access.sync()
    }

    /// Makes a range durable: flush and fence, or sync. For metadata; the hot path issues its own.
    pub fn persist(&self, off: u64, len: usize) -> Result<()> {
        self.access.persist(off, len)
    }

    /// Whether there is a meter that counts reads.
    pub fn is_metered(&self) -> bool {
        self.access.is_metered()
    }

    /// Reports a read to the meter.
    #[inline(always)]
    pub fn meter_read(&self, off: u64, len: usize) {
        self.access.meter_read(off, len);
    }

    /// Passes a note to the tracer, such as which operation was acknowledged.
    pub fn mark(&self, note: u64) {
        if let Some(tracer) = self.access.tracer() {
            tracer.mark(note);
        }
    }

    /// Whether a sync failed: nothing written since the last successful one may be acknowledged.
    pub fn is_poisoned(&self) -> bool {
        self.access.is_poisoned()
    }

    /// Bytes of a segment.
    #[inline(always)]
    pub fn segment_bytes(&self) -> u64 {
        self.geometry.segment_bytes
    }

    /// How many segments exist.
    #[inline(always)]
    pub fn segment_count(&self) -> u32 {
        self.segments.load(Ordering::Acquire) as u32
    }

    /// How many segments the pool may have.
    pub fn max_segments(&self) -> u32 {
        self.geometry.max_segments as u32
    }

    /// Where segment `i` begins.
    #[inline(always)]
    pub fn segment_offset(&self, i: u32) -> u64 {
        self.geometry.segment_offset(i)
    }

    /// The segment that contains `off`; `None` for metadata and beyond the last segment.
    #[inline(always)]
    pub fn segment_of(&self, off: u64) -> Option<u32> {
        let i = off.checked_sub(self.geometry.data_offset)? >> self.segment_shift;
        (i < u64::from(self.segment_count())).then_some(i as u32)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("place", self.access.place())
            .field("node", &self.node)
            .field("medium", &self.medium.kind)
            .field("segments", &self.segment_count())
            .field("poisoned", &self.is_poisoned())
            .finish_non_exhaustive()
    }
}
