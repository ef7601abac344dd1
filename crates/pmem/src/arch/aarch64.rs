//! aarch64: `dc cvap` / `dc cvac` and `dsb`. Written from the architecture manual; untested on hardware.

use core::arch::asm;
use std::sync::OnceLock;

use super::{FlushKind, for_each_line};
use crate::LINE_BYTES;

/// `HWCAP_DCPOP`: `dc cvap` may be used from user space.
const HWCAP_DCPOP: u64 = 1 << 16;

/// Bytes of the smallest data cache line in the system.
fn smallest_line_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let ctr: u64;
        // SAFETY: Linux lets user space read CTR_EL0 (or emulates it); reading it changes nothing.
        unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
        4usize << ((ctr >> 16) & 0xf)
    })
}

/// Whether the streaming functions bypass the caches for the aligned middle; if not, the caller flushes the whole
/// range.
pub(crate) const STREAMS: bool = false;

pub(super) fn supports(kind: FlushKind) -> bool {
    // With smaller lines the shared loop would skip some. Then no flush is supported, and direct access is refused.
    if smallest_line_bytes() < LINE_BYTES {
        return false;
    }
    match kind {
        // SAFETY: `getauxval` only reads the auxiliary vector.
        FlushKind::DcCvap => unsafe { libc::getauxval(libc::AT_HWCAP) & HWCAP_DCPOP != 0 },
        FlushKind::DcCvac => true,
        _ => false,
    }
}

pub(super) fn detect() -> FlushKind {
    let best = [FlushKind::DcCvap, FlushKind::DcCvac].into_iter().find(|&kind| supports(kind));
    best.unwrap_or(FlushKind::None)
}

/// # Safety
/// The processor has `kind`, and the lines of the range are mapped.
#[inline(always)]
pub(super) unsafe fn flush_range(kind: FlushKind, start: usize, len: usize) {
    match kind {
        FlushKind::DcCvap => for_each_line(start, len, |line| {
            // `dc cvap` by its system-register form, which needs no assembler feature.
            // SAFETY: the line is mapped and the instruction exists, by the caller's promise; a write-back changes no
            // memory.
            unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags)) };
        }),
        FlushKind::DcCvac => for_each_line(start, len, |line| {
            // SAFETY: the line is mapped and the instruction exists, by the caller's promise; a write-back changes no
            // memory.
            unsafe { asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) };
        }),
        FlushKind::None | FlushKind::Clwb | FlushKind::ClflushOpt | FlushKind::Clflush => {}
    }
}

/// Waits until earlier stores and cleanings are complete.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: a barrier changes no memory. `sy`, because persistence reaches beyond the inner shareable domain.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

/// An ordinary copy: aarch64's non-temporal hints do not bypass the caches, so the caller flushes the whole range.
///
/// # Safety
/// `dst` is writable and `src` readable for `len` bytes, and they do not overlap.
pub(crate) unsafe fn stream_copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
}

/// Ordinary zeroing.
///
/// # Safety
/// `dst` is writable for `len` bytes.
pub(crate) unsafe fn stream_zero(dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::write_bytes(dst, 0, len) };
}
