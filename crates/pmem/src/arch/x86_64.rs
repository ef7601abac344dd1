//! x86-64: `clwb`, `clflushopt`, `clflush`, `sfence`, non-temporal stores.
//!
//! Stable `core::arch` lacks the optimised flushes, hence `asm!`. An `asm!` without `nomem` is also a compiler barrier:
//! stores before it in program order are issued before it.

use core::arch::asm;
use core::arch::x86_64::{
    __cpuid, __cpuid_count, __m128i, _mm_loadu_si128, _mm_setzero_si128, _mm_sfence, _mm_stream_si64, _mm_stream_si128,
};
use std::sync::OnceLock;

use super::{FlushKind, for_each_line};

#[derive(Clone, Copy)]
struct Features {
    clwb: bool,
    clflushopt: bool,
    clflush: bool,
}

fn features() -> Features {
    static FEATURES: OnceLock<Features> = OnceLock::new();
    *FEATURES.get_or_init(|| {
        let highest = __cpuid(0).eax;
        let extended = if highest >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let clflush = __cpuid(1).edx & (1 << 19) != 0;
        Features { clwb: extended & (1 << 24) != 0, clflushopt: extended & (1 << 23) != 0, clflush }
    })
}

/// Whether the streaming functions bypass the caches for the aligned middle; if not, the caller flushes the whole
/// range.
pub(crate) const STREAMS: bool = true;

pub(super) fn supports(kind: FlushKind) -> bool {
    let features = features();
    match kind {
        FlushKind::Clwb => features.clwb,
        FlushKind::ClflushOpt => features.clflushopt,
        FlushKind::Clflush => features.clflush,
        _ => false,
    }
}

pub(super) fn detect() -> FlushKind {
    let best = [FlushKind::Clwb, FlushKind::ClflushOpt].into_iter().find(|&kind| supports(kind));
    // Every x86-64 processor has clflush: it came with SSE2, which the architecture includes.
    best.unwrap_or(FlushKind::Clflush)
}

/// # Safety
/// The processor has `kind`, and the lines of the range are mapped.
#[inline(always)]
pub(super) unsafe fn flush_range(kind: FlushKind, start: usize, len: usize) {
    if kind as u8 == FlushKind::Clwb as u8 {
        for_each_line(start, len, |line| {
            // SAFETY: the line is mapped and the instruction exists, by the caller's promise; a write-back changes no
            // memory.
            unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
        });
    } else {
        // SAFETY: the caller's promise.
        unsafe { flush_range_evicting(kind, start, len) };
    }
}

/// The older instructions, out of line: they cost more than the call does.
///
/// # Safety
/// As [`flush_range`].
#[inline(never)]
unsafe fn flush_range_evicting(kind: FlushKind, start: usize, len: usize) {
    match kind {
        FlushKind::ClflushOpt => for_each_line(start, len, |line| {
            // SAFETY: the line is mapped and the instruction exists, by the caller's promise; a write-back changes no
            // memory.
            unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }),
        FlushKind::Clflush => for_each_line(start, len, |line| {
            // SAFETY: as above.
            unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }),
        FlushKind::Clwb | FlushKind::None | FlushKind::DcCvap | FlushKind::DcCvac => {}
    }
}

/// Orders earlier stores, flushes and streaming stores before later ones.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: every x86-64 processor has SSE; a fence changes no memory.
    unsafe { _mm_sfence() };
}

/// Copies around the caches: the 8-byte-aligned middle uses non-temporal stores, the up to 7 bytes at either end
/// ordinary ones. The ends therefore need a flush, and the whole range needs a [`fence`].
///
/// # Safety
/// `dst` is writable and `src` readable for `len` bytes, they do not overlap, and nobody reads `dst` at the same time.
pub(crate) unsafe fn stream_copy(dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(8).min(len);
    let middle = (len - head) & !7;
    // SAFETY: head + middle + tail = len, so every access stays in the two ranges; the middle of `dst` is aligned to 8,
    // and the 16-byte stores are only used where it is aligned to 16.
    unsafe {
        core::ptr::copy_nonoverlapping(src, dst, head);
        let (mut d, mut s) = (dst.add(head), src.add(head));
        let end = d.add(middle);
        if d < end && (d as usize) & 15 != 0 {
            _mm_stream_si64(d.cast(), s.cast::<i64>().read_unaligned());
            (d, s) = (d.add(8), s.add(8));
        }
        while (end as usize) - (d as usize) >= 16 {
            _mm_stream_si128(d.cast::<__m128i>(), _mm_loadu_si128(s.cast::<__m128i>()));
            (d, s) = (d.add(16), s.add(16));
        }
        if d < end {
            _mm_stream_si64(d.cast(), s.cast::<i64>().read_unaligned());
            (d, s) = (d.add(8), s.add(8));
        }
        core::ptr::copy_nonoverlapping(s, d, len - head - middle);
    }
}

/// Writes zeros as [`stream_copy`] writes bytes.
///
/// # Safety
/// `dst` is writable for `len` bytes, and nobody reads it at the same time.
pub(crate) unsafe fn stream_zero(dst: *mut u8, len: usize) {
    let head = dst.align_offset(8).min(len);
    let middle = (len - head) & !7;
    // SAFETY: as in `stream_copy`.
    unsafe {
        core::ptr::write_bytes(dst, 0, head);
        let mut d = dst.add(head);
        let end = d.add(middle);
        if d < end && (d as usize) & 15 != 0 {
            _mm_stream_si64(d.cast(), 0);
            d = d.add(8);
        }
        while (end as usize) - (d as usize) >= 16 {
            _mm_stream_si128(d.cast::<__m128i>(), _mm_setzero_si128());
            d = d.add(16);
        }
        if d < end {
            _mm_stream_si64(d.cast(), 0);
            d = d.add(8);
        }
        core::ptr::write_bytes(d, 0, len - head - middle);
    }
}
