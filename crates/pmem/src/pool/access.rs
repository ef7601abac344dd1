//! Access to a pool's bytes: stores, flushes, fences and syncs, and their observers.
//!
//! Hot methods are inlined and test one field, `hooks`, for everything that is usually absent (meter, tracer, persisted
//! copy); serving those is out of line.
//!
//! Durability follows the medium: flush and fence for persistent memory, the fence alone with persistent caches, sync
//! for files, nothing for volatile memory. The caller issues all of them; those that the medium does not need cost a
//! branch.
//!
//! Thread safety: words are atomics. While a range is written with `write*`, other threads must not access it, except
//! by raw or atomic reads that tolerate mixtures. Crash: rule 1 of `docs/crash-model.md` rests on `persist`.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hither_topology::Meter;
use parking_lot::{Mutex, MutexGuard};

use super::copy_back::CopyBack;
use crate::arch::{self, FlushKind};
use crate::error::{Error, Place, Result};
use crate::failpoint::{self, Failpoints};
use crate::layout::PAGE_BYTES;
use crate::lock::LockedFile;
use crate::mapping::Mapping;
use crate::medium::{MediumInfo, PersistenceDomain};
use crate::tracer::{StoreKind, SyncPhase, Tracer};

/// Bits of `hooks`.
const METER: u32 = 1;
const TRACER: u32 = 2;
const COPY: u32 = 4;

/// Bytes reported per event when a range is zeroed.
const ZERO_CHUNK: usize = 4096;
static ZEROS: [u8; ZERO_CHUNK] = [0; ZERO_CHUNK];

/// The bytes of a pool and the way to make them durable.
pub(crate) struct Access {
    base: *mut u8,
    hooks: u32,
    flush: FlushKind,
    fences: bool,
    /// The medium needs fences, and no hook observes them.
    fences_unwatched: bool,
    syncs: bool,
    node: u32,
    mapped: AtomicU64,
    poisoned: AtomicBool,
    sync_failure: Mutex<Option<String>>,
    /// Held during a sync until its outcome is noted.
    syncing: Mutex<()>,
    meter: Option<Arc<Meter>>,
    tracer: Option<Arc<dyn Tracer>>,
    failpoints: Option<Arc<Failpoints>>,
    /// Dropped before the files behind it, so that the pool is unmapped before the lock is released.
    mapping: Mapping,
    copy: Option<CopyBack>,
    file: Option<LockedFile>,
    place: Place,
}

// SAFETY: `base` points into `mapping`, which lives as long; access to the memory is through atomics or under the
// callers' promises.
unsafe impl Send for Access {}
// SAFETY: as above.
unsafe impl Sync for Access {}

/// The parts of an `Access`.
pub(crate) struct Parts {
    pub(crate) place: Place,
    pub(crate) mapping: Mapping,
    pub(crate) mapped: u64,
    pub(crate) medium: MediumInfo,
    pub(crate) node: u32,
    pub(crate) file: Option<LockedFile>,
    pub(crate) copy: Option<CopyBack>,
    pub(crate) meter: Option<Arc<Meter>>,
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
    pub(crate) failpoints: Option<Arc<Failpoints>>,
}

impl Access {
    pub(crate) fn new(parts: Parts) -> Access {
        let bit = |present: bool, bit: u32| if present { bit } else { 0 };
        let hooks = bit(parts.meter.is_some(), METER) | bit(parts.tracer.is_some(), TRACER) | bit(parts.copy.is_some(), COPY);
        let domain = parts.medium.domain;
        let fences = matches!(domain, PersistenceDomain::Adr | PersistenceDomain::Eadr);
        Access {
            base: parts.mapping.base(),
            hooks,
            flush: parts.medium.flush,
            fences,
            fences_unwatched: fences && hooks == 0,
            syncs: domain == PersistenceDomain::PageCache,
            node: parts.node,
            mapped: AtomicU64::new(parts.mapped),
            poisoned: AtomicBool::new(false),
            sync_failure: Mutex::new(None),
            syncing: Mutex::new(()),
            meter: parts.meter,
            tracer: parts.tracer,
            failpoints: parts.failpoints,
            copy: parts.copy,
            file: parts.file,
            place: parts.place,
            mapping: parts.mapping,
        }
    }

    #[inline(always)]
    pub(crate) fn base(&self) -> *const u8 {
        self.base
    }

    #[inline(always)]
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Acquire)
    }

    pub(crate) fn set_mapped(&self, len: u64) {
        self.mapped.store(len, Ordering::Release);
        if let Some(tracer) = &self.tracer {
            tracer.resize(len);
        }
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    pub(crate) fn copy(&self) -> Option<&CopyBack> {
        self.copy.as_ref()
    }

    pub(crate) fn failpoints(&self) -> Option<&Arc<Failpoints>> {
        self.failpoints.as_ref()
    }

    pub(crate) fn tracer(&self) -> Option<&Arc<dyn Tracer>> {
        self.tracer.as_ref()
    }

    #[inline(always)]
    pub(crate) fn needs_flush(&self) -> bool {
        self.flush as u8 != FlushKind::None as u8
    }

    #[inline(always)]
    pub(crate) fn needs_sync(&self) -> bool {
        self.syncs
    }

    #[inline(always)]
    fn check(&self, off: u64, len: usize) {
        debug_assert!(off.checked_add(len as u64).is_some_and(|end| end <= self.mapped()), "{}: {off} + {len} is not mapped", self.place);
    }

    #[inline(always)]
    fn at(&self, off: u64) -> *mut u8 {
        // SAFETY: callers keep offsets inside the reserve, of which `base` is the start.
        unsafe { self.base.add(off as usize) }
    }

    /// # Safety
    /// `[off, off + src.len())` is mapped for writing, and nobody else accesses it except by reads that tolerate
    /// mixtures.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, off: u64, src: &[u8]) {
        self.check(off, src.len());
        if self.hooks != 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.observed_write(off, src) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.raw_write(off, src) }
    }

    /// # Safety
    /// As [`Access::write`].
    #[inline(always)]
    unsafe fn raw_write(&self, off: u64, src: &[u8]) {
        // SAFETY: mapped and unshared by the caller's promise; whole aligned words are stored as atomics.
        unsafe {
            if src.len() <= 64 && (off | src.len() as u64) & 7 == 0 {
                let at = self.at(off);
                for (i, word) in src.as_chunks::<8>().0.iter().enumerate() {
                    AtomicU64::from_ptr(at.add(8 * i).cast()).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                }
            } else {
                std::ptr::copy_nonoverlapping(src.as_ptr(), self.at(off), src.len());
            }
        }
    }

    /// # Safety
    /// As [`Access::write`]; the bytes are durable after the next fence, without a flush.
    pub(crate) unsafe fn write_streaming(&self, off: u64, src: &[u8]) {
        self.check(off, src.len());
        let edges = Edges::of(off, src.len());
        self.before_streaming(off, src, edges);
        // SAFETY: mapped and unshared by the caller's promise; `src` cannot overlap memory that nobody else accesses.
        unsafe { arch::stream_copy(self.at(off), src.as_ptr(), src.len()) };
        self.after_streaming(off, src.len(), edges);
    }

    /// # Safety
    /// As [`Access::write_streaming`].
    pub(crate) unsafe fn zero_streaming(&self, off: u64, len: u64) {
        let (mut at, end) = (off, off + len);
        self.check(off, len as usize);
        while at < end {
            // Chunks end at multiples of their size, so only the first and the last can have edges.
            let part = (ZERO_CHUNK as u64 - at % ZERO_CHUNK as u64).min(end - at) as usize;
            let edges = Edges::of(at, part);
            self.before_streaming(at, &ZEROS[..part], edges);
            // SAFETY: mapped and unshared by the caller's promise.
            unsafe { arch::stream_zero(self.at(at), part) };
            self.after_streaming(at, part, edges);
            at += part as u64;
        }
    }

    fn before_streaming(&self, off: u64, src: &[u8], edges: Edges) {
        if self.hooks != 0 {
            self.before_store(off, &src[..edges.head], StoreKind::Plain);
            self.before_store(off + edges.head as u64, &src[edges.head..edges.tail_start], self.streaming_kind());
            self.before_store(off + edges.tail_start as u64, &src[edges.tail_start..], StoreKind::Plain);
        }
    }

    fn streaming_kind(&self) -> StoreKind {
        if arch::STREAMS { StoreKind::Streaming } else { StoreKind::Plain }
    }

    /// Flushes the bytes that did not go around the caches. Where no fence will follow, it also orders the other bytes
    /// before later stores: non-temporal stores are weakly ordered, and a reader on another thread must not see a
    /// reference before the bytes it refers to.
    fn after_streaming(&self, off: u64, len: usize, edges: Edges) {
        if self.hooks != 0 {
            self.after_store(off, len, self.streaming_kind());
        }
        if !arch::STREAMS {
            self.flush(off, len);
        } else {
            self.flush(off, edges.head);
            self.flush(off + edges.tail_start as u64, len - edges.tail_start);
        }
        if !self.fences {
            arch::fence();
        }
    }

    /// # Safety
    /// `off` is a multiple of 8 and the word is mapped.
    #[inline(always)]
    unsafe fn word(&self, off: u64) -> &AtomicU64 {
        // SAFETY: aligned (the base is) and mapped for as long as `self` lives.
        unsafe { AtomicU64::from_ptr(self.at(off).cast()) }
    }

    #[inline(always)]
    fn checked_word(&self, off: u64) -> &AtomicU64 {
        assert!(off.is_multiple_of(8) && off < self.mapped.load(Ordering::Relaxed), "a word of a pool is aligned and inside it");
        // SAFETY: just checked; the mapped length is a multiple of 8.
        unsafe { self.word(off) }
    }

    #[inline(always)]
    pub(crate) fn store_u64(&self, off: u64, value: u64) {
        let word = self.checked_word(off);
        if self.hooks != 0 {
            return self.observed_store_u64(off, word, value);
        }
        word.store(value.to_le(), Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn load_u64(&self, off: u64) -> u64 {
        u64::from_le(self.checked_word(off).load(Ordering::Acquire))
    }

    /// Rewrites one word of every page of a range with its own value, so that the page is dirty. Nobody else may write
    /// there.
    pub(crate) fn touch_pages(&self, from: u64, to: u64) {
        assert!(from <= to && to <= self.mapped(), "pages are touched inside the pool");
        let page = PAGE_BYTES;
        for off in (from / page * page..to).step_by(page as usize) {
            let word = self.at(off).cast::<u64>();
            // SAFETY: aligned, mapped for writing, and nobody else writes there by the caller's promise. Volatile,
            // because the compiler would otherwise omit the accesses.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
    }

    /// Copies bytes out. Concurrent writers may cause a mixture, which the caller detects by a checksum.
    pub(crate) fn read(&self, off: u64, into: &mut [u8]) {
        assert!(off.checked_add(into.len() as u64).is_some_and(|end| end <= self.mapped()), "reads stay inside the pool");
        // SAFETY: just checked.
        unsafe { std::ptr::copy_nonoverlapping(self.at(off), into.as_mut_ptr(), into.len()) };
    }

    #[inline(always)]
    pub(crate) fn flush(&self, off: u64, len: usize) {
        if self.needs_flush() {
            self.check(off, len);
            // SAFETY: the medium's detection chose a supported kind; callers flush what they wrote, which is mapped.
            unsafe { arch::flush_range(self.flush, self.base as usize + off as usize, len) };
            if self.hooks != 0 {
                self.observe_flush(off, len);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn fence(&self) {
        // Only one branch: the instructions between the last cache miss of a write and the first one of the next write
        // count (`docs/adr/0010`).
        if self.fences_unwatched { arch::fence() } else { self.fence_otherwise() }
    }

    #[inline(never)]
    fn fence_otherwise(&self) {
        if self.fences {
            arch::fence();
            self.observe_fence();
        }
    }

    pub(crate) fn is_metered(&self) -> bool {
        self.hooks & METER != 0
    }

    #[inline(always)]
    pub(crate) fn meter_read(&self, off: u64, len: usize) {
        if self.hooks & METER != 0 {
            self.observe_read(off, len);
        }
    }

    /// Makes everything stored so far as durable as the medium can.
    pub(crate) fn sync(&self) -> Result<()> {
        if !self.syncs {
            self.fence();
            return if self.is_poisoned() { Err(self.sync_failed()) } else { Ok(()) };
        }
        // One at a time: the kernel reports a failure only once. Of two concurrent syncs, the one that does not get the
        // report must not return before the other has noted the failure.
        let _alone = self.alone_at_sync();
        if self.is_poisoned() {
            return Err(self.sync_failed());
        }
        self.observe_sync(SyncPhase::Begin);
        match self.sync_device() {
            Ok(()) => {
                self.observe_sync(SyncPhase::End);
                Ok(())
            }
            Err(e) => {
                self.sync_failure.lock().get_or_insert_with(|| e.to_string());
                self.poisoned.store(true, Ordering::SeqCst);
                self.observe_sync(SyncPhase::Failed);
                Err(self.sync_failed())
            }
        }
    }

    /// Blocks other syncs until the outcome of the caller's sync is noted.
    pub(crate) fn alone_at_sync(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock()
    }

    fn sync_device(&self) -> std::io::Result<()> {
        failpoint::check(self.failpoints.as_ref(), "sync")?;
        if let Some(copy) = &self.copy {
            return copy.sync(self.base);
        }
        match &self.file {
            // A sync through the file also covers its shared mappings.
            Some(file) => file.sync_data(),
            None => Ok(()),
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::SeqCst)
    }

    /// Poisons the pool for a failure outside `sync`.
    pub(crate) fn poison(&self, detail: &str) -> Error {
        self.sync_failure.lock().get_or_insert_with(|| detail.to_owned());
        self.poisoned.store(true, Ordering::SeqCst);
        self.sync_failed()
    }

    pub(crate) fn sync_failed(&self) -> Error {
        let detail = self.sync_failure.lock().clone().unwrap_or_else(|| "an earlier sync failed".to_owned());
        Error::SyncFailed { pool: self.place.clone(), detail }
    }

    /// Makes a range durable: flush and fence, or sync.
    pub(crate) fn persist(&self, off: u64, len: usize) -> Result<()> {
        self.flush(off, len);
        self.persist_flushed()
    }

    /// Makes everything that was flushed durable: fence, or sync.
    pub(crate) fn persist_flushed(&self) -> Result<()> {
        self.sync()?;
        if self.is_poisoned() { Err(self.sync_failed()) } else { Ok(()) }
    }
}

/// Splits a range into its whole aligned words and the edges before and after them.
#[derive(Clone, Copy)]
struct Edges {
    head: usize,
    tail_start: usize,
}

impl Edges {
    fn of(off: u64, len: usize) -> Edges {
        let head = ((8 - off % 8) % 8).min(len as u64) as usize;
        Edges { head, tail_start: head + ((len - head) & !7) }
    }
}

mod observe;
mod words;
