//! Stores of whole words: the hot path of entries.
//!
//! Thread safety and crash behaviour: as [`Access`].

use super::Access;
use crate::arch;
use std::sync::atomic::{AtomicU64, Ordering};

impl Access {
    /// # Safety
    /// As [`Access::write`], and `off` is a multiple of 8.
    #[inline(always)]
    pub(crate) unsafe fn write_words(&self, off: u64, words: &[u64]) {
        self.check(off, words.len() * 8);
        debug_assert!(off.is_multiple_of(8));
        if self.hooks != 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.observed_words(off, words) };
        }
        // The address is computed once: the compiler must assume that a store changes `base`, and would reload it for
        // each word.
        let at = self.at(off);
        // SAFETY: the caller's promise.
        unsafe { Self::raw_words(at, words) }
    }

    /// As [`Access::write_words`], for words in registers: only the unusual way puts them into memory.
    ///
    /// # Safety
    /// As [`Access::write_words`].
    #[inline(always)]
    pub(crate) unsafe fn write_array<const N: usize>(&self, off: u64, words: &[u64; N]) {
        self.check(off, N * 8);
        debug_assert!(off.is_multiple_of(8));
        if self.hooks != 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.observed_words(off, &{ *words }) };
        }
        // SAFETY: the caller's promise.
        unsafe { Self::raw_words(self.at(off), words) }
    }

    /// [`Access::write_array`] and [`Access::flush`] in fewer instructions than both. Returns the address of the first
    /// word.
    ///
    /// # Safety
    /// As [`Access::write_words`].
    #[inline(always)]
    pub(crate) unsafe fn write_back_array<const N: usize>(&self, off: u64, words: &[u64; N]) -> *const u8 {
        self.check(off, N * 8);
        debug_assert!(off.is_multiple_of(8));
        let at = self.at(off);
        if self.hooks != 0 {
            // SAFETY: the caller's promise.
            unsafe { self.observed_words(off, &{ *words }) };
            self.flush(off, N * 8);
        } else {
            // SAFETY: the caller's promise, and as in `flush`.
            unsafe {
                Self::raw_words(at, words);
                if self.needs_flush() {
                    arch::flush_range(self.flush, at as usize, N * 8);
                }
            }
        }
        at
    }

    /// # Safety
    /// `at` is mapped for writing as many words, and aligned to them.
    #[inline(always)]
    unsafe fn raw_words(at: *mut u8, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            // SAFETY: mapped and aligned by the caller's promise.
            unsafe { AtomicU64::from_ptr(at.add(8 * i).cast()) }.store(word.to_le(), Ordering::Relaxed);
        }
    }
}
