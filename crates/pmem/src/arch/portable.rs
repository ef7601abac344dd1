//! Other architectures: there is no flush, so direct access is refused and pools are files or volatile memory.

use std::sync::atomic::Ordering;

use super::FlushKind;

/// Whether the streaming functions bypass the caches for the aligned middle; if not, the caller flushes the whole
/// range.
pub(crate) const STREAMS: bool = false;

pub(super) fn supports(_kind: FlushKind) -> bool {
    false
}

pub(super) fn detect() -> FlushKind {
    FlushKind::None
}

/// # Safety
/// Does nothing, so needs nothing.
#[inline(always)]
pub(super) unsafe fn flush_range(_kind: FlushKind, _start: usize, _len: usize) {}

/// Orders earlier stores before later ones.
#[inline(always)]
pub(crate) fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// # Safety
/// `dst` is writable and `src` readable for `len` bytes, and they do not overlap.
pub(crate) unsafe fn stream_copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
}

/// # Safety
/// `dst` is writable for `len` bytes.
pub(crate) unsafe fn stream_zero(dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::write_bytes(dst, 0, len) };
}
