//! Reports accesses to the observers: the meter counts, the tracer records, the persisted copy follows. Out of line,
//! because usually there are none.
//!
//! Thread safety: any number of threads; the observers are `Sync`. Crash: durability needs none of this except the
//! persisted copy, whose failure poisons the pool.

use super::{Access, StoreKind, SyncPhase};
use std::sync::atomic::{AtomicU64, Ordering};

impl Access {
    /// # Safety
    /// As [`Access::write`].
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn observed_write(&self, off: u64, src: &[u8]) {
        self.before_store(off, src, StoreKind::Plain);
        // SAFETY: the caller's promise.
        unsafe { self.raw_write(off, src) };
        self.after_store(off, src.len(), StoreKind::Plain);
    }

    /// # Safety
    /// As [`Access::write_words`].
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn observed_words(&self, off: u64, words: &[u64]) {
        if self.tracer.is_some() {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.before_store(off, &bytes, StoreKind::Plain);
        }
        for (i, word) in words.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.word(off + 8 * i as u64) }.store(word.to_le(), Ordering::Relaxed);
        }
        self.after_store(off, words.len() * 8, StoreKind::Plain);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn observed_store_u64(&self, off: u64, word: &AtomicU64, value: u64) {
        self.before_store(off, &value.to_le_bytes(), StoreKind::Plain);
        word.store(value.to_le(), Ordering::Release);
        self.after_store(off, 8, StoreKind::Plain);
    }

    /// The tracer gets a store before other threads can see it: then the order of reports respects causality.
    pub(super) fn before_store(&self, off: u64, bytes: &[u8], kind: StoreKind) {
        if let Some(tracer) = &self.tracer
            && !bytes.is_empty()
        {
            tracer.store(off, bytes, kind);
        }
    }

    /// The persisted copy gets a store only once it is in memory: a page must not count as copied before that.
    pub(super) fn after_store(&self, off: u64, len: usize, kind: StoreKind) {
        if len == 0 {
            return;
        }
        if let Some(meter) = &self.meter {
            meter.record_write(self.node, off, len);
        }
        if let Some(copy) = &self.copy {
            copy.stored(off, len, kind);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn observe_flush(&self, off: u64, len: usize) {
        if len == 0 {
            return;
        }
        if let Some(meter) = &self.meter {
            meter.record_flush(self.node, off, len);
        }
        if let Some(tracer) = &self.tracer {
            tracer.flush(off, len);
        }
        if let Some(copy) = &self.copy {
            copy.flushed(off, len);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn observe_fence(&self) {
        if let Some(meter) = &self.meter {
            meter.record_fence(self.node);
        }
        if let Some(tracer) = &self.tracer {
            tracer.fence();
        }
        if let Some(copy) = &self.copy
            && let Err(e) = copy.fenced(self.base)
        {
            // A fence returns no result: the failed copy is reported by the next sync or persist, as that of a failed
            // device would be.
            let _ = self.poison(&e.to_string());
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn observe_read(&self, off: u64, len: usize) {
        if let Some(meter) = &self.meter {
            meter.record_read(self.node, off, len);
        }
    }

    pub(super) fn observe_sync(&self, phase: SyncPhase) {
        if let Some(tracer) = &self.tracer {
            tracer.sync(phase);
        }
    }
}
