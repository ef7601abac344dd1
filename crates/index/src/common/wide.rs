//! Eight words per instruction, or four: comparisons for `search`, moves for `shift`.
//!
//! Written in assembly, because Rust has no relaxed atomic load or store of a vector. On x86-64 an aligned vector load
//! reads each aligned word of it whole, so a comparison of a block stands for 64 relaxed loads. Moves are aligned to
//! words only: see `shift`.

use std::arch::asm;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The processor's features: 0: not asked yet; 1: none of these; 2: AVX-512, for whole lines; 3: AVX2, for halves of
/// lines.
static WIDE: AtomicU8 = AtomicU8::new(0);

/// Returns whether the processor supports the functions for whole lines. One comparison after the first call, since a
/// search asks several times.
#[inline(always)]
pub(crate) fn available() -> bool {
    let wide = WIDE.load(Ordering::Relaxed);
    wide == 2 || (wide == 0 && detect())
}

/// Returns whether it supports the functions for halves of lines. Call [`available`] first.
#[inline(always)]
pub(crate) fn halves_available() -> bool {
    WIDE.load(Ordering::Relaxed) == 3
}

#[cold]
fn detect() -> bool {
    let wide = std::arch::is_x86_feature_detected!("avx512bw") && std::arch::is_x86_feature_detected!("avx512f");
    let has = if wide { 2 } else { 1 + 2 * u8::from(std::arch::is_x86_feature_detected!("avx2")) };
    WIDE.store(has, Ordering::Relaxed);
    wide
}

macro_rules! compare {
    ($name:ident, $predicate:literal, $what:literal) => {
        #[doc = $what]
        ///
        /// # Safety
        /// [`available`]; 64 words readable at `words`, aligned to 64 bytes.
        #[inline(always)]
        pub(crate) unsafe fn $name(words: *const AtomicU64, bound: u64) -> u64 {
            let mask;
            // SAFETY: reads the 512 bytes that the caller vouches for, and writes only the registers listed. Register
            // 16 does not share its upper half with the compiler's SSE code, so no clean-up is needed.
            unsafe {
                asm!(
                    "vpbroadcastq zmm16, {bound}",
                    concat!("vpcmpuq k0, zmm16, [{words}], ", $predicate),
                    concat!("vpcmpuq k1, zmm16, [{words} + 64], ", $predicate),
                    concat!("vpcmpuq k2, zmm16, [{words} + 128], ", $predicate),
                    concat!("vpcmpuq k3, zmm16, [{words} + 192], ", $predicate),
                    concat!("vpcmpuq k4, zmm16, [{words} + 256], ", $predicate),
                    concat!("vpcmpuq k5, zmm16, [{words} + 320], ", $predicate),
                    concat!("vpcmpuq k6, zmm16, [{words} + 384], ", $predicate),
                    concat!("vpcmpuq k7, zmm16, [{words} + 448], ", $predicate),
                    "kunpckbw k1, k1, k0",
                    "kunpckbw k3, k3, k2",
                    "kunpckbw k5, k5, k4",
                    "kunpckbw k7, k7, k6",
                    "kunpckwd k3, k3, k1",
                    "kunpckwd k7, k7, k5",
                    "kunpckdq k7, k7, k3",
                    "kmovq {mask}, k7",
                    words = in(reg) words,
                    bound = in(reg) bound,
                    mask = lateout(reg) mask,
                    out("zmm16") _,
                    out("k0") _, out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _, out("k7") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
            mask
        }
    };
}

macro_rules! compare_line {
    ($name:ident, $predicate:literal, $what:literal) => {
        #[doc = $what]
        ///
        /// # Safety
        /// [`available`]; 8 words readable at `words`, aligned to 64 bytes.
        #[inline(always)]
        pub(crate) unsafe fn $name(words: *const AtomicU64, bound: u64) -> u32 {
            let mask: u32;
            // SAFETY: reads the 64 bytes that the caller vouches for, and writes only the registers listed.
            unsafe {
                asm!(
                    "vpbroadcastq zmm16, {bound}",
                    concat!("vpcmpuq k1, zmm16, [{words}], ", $predicate),
                    "kmovd {mask:e}, k1",
                    words = in(reg) words,
                    bound = in(reg) bound,
                    mask = lateout(reg) mask,
                    out("zmm16") _,
                    out("k1") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
            mask
        }
    };
}

/// Clears the upper register halves where the surrounding code is not compiled for AVX. Code compiled for AVX may hold
/// values there, which the instruction would destroy.
#[cfg(not(target_feature = "avx"))]
macro_rules! leave_upper_halves {
    () => {
        "vzeroupper"
    };
}
#[cfg(target_feature = "avx")]
macro_rules! leave_upper_halves {
    () => {
        ""
    };
}

macro_rules! compare_halves {
    ($name:ident, $low:literal, $high:literal, $what:literal) => {
        #[doc = $what]
        ///
        /// # Safety
        /// [`halves_available`]; 8 words readable at `words`, aligned to 64 bytes.
        #[inline(always)]
        pub(crate) unsafe fn $name(words: *const AtomicU64, bound: u64) -> u32 {
            let (mask, high): (u32, u32);
            // SAFETY: reads the 64 bytes that the caller vouches for, and writes only the registers listed; no upper
            // half stays in use. Comparisons are signed, so the highest bits are flipped first.
            unsafe {
                asm!(
                    "vmovq xmm0, {bound}",
                    "vpcmpeqd ymm1, ymm1, ymm1",
                    "vpsllq ymm1, ymm1, 63",
                    "vpbroadcastq ymm0, xmm0",
                    "vpxor ymm0, ymm0, ymm1",
                    "vpxor ymm2, ymm1, [{words}]",
                    "vpxor ymm1, ymm1, [{words} + 32]",
                    $low,
                    $high,
                    "vmovmskpd {mask:e}, ymm2",
                    "vmovmskpd {high:e}, ymm1",
                    leave_upper_halves!(),
                    words = in(reg) words,
                    bound = in(reg) bound,
                    mask = out(reg) mask,
                    high = out(reg) high,
                    out("ymm0") _, out("ymm1") _, out("ymm2") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
            mask | high << 4
        }
    };
}

/// Moves eight words. Reads all before it writes any, so the runs may overlap.
///
/// # Safety
/// [`available`]; 8 words readable at `from` and writable at `to`, aligned to 8 bytes.
#[inline(always)]
pub(crate) unsafe fn move_eight(from: *const AtomicU64, to: *const AtomicU64) {
    // SAFETY: by the caller's promise; writes only these words and the register.
    unsafe {
        asm!("vmovdqu64 zmm16, [{from}]", "vmovdqu64 [{to}], zmm16", from = in(reg) from, to = in(reg) to, out("zmm16") _, options(nostack, preserves_flags));
    }
}

/// Moves up to seven words, in the manner of [`move_eight`].
///
/// # Safety
/// [`available`]; `count` words, at most 7, readable at `from` and writable at `to`, aligned to 8 bytes.
#[inline(always)]
pub(crate) unsafe fn move_some(from: *const AtomicU64, to: *const AtomicU64, count: usize) {
    debug_assert!(count < 8);
    // SAFETY: by the caller's promise; words that the mask leaves out are neither read nor written.
    unsafe {
        asm!(
            "kmovd k1, {mask:e}",
            "vmovdqu64 zmm16 {{k1}}{{z}}, [{from}]",
            "vmovdqu64 [{to}] {{k1}}, zmm16",
            mask = in(reg) (1u32 << count) - 1,
            from = in(reg) from,
            to = in(reg) to,
            out("zmm16") _,
            out("k1") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Moves four words, in the manner of [`move_eight`].
///
/// # Safety
/// [`halves_available`]; 4 words readable at `from` and writable at `to`, aligned to 8 bytes.
#[inline(always)]
pub(crate) unsafe fn move_four(from: *const AtomicU64, to: *const AtomicU64) {
    // SAFETY: by the caller's promise; writes only these words and the register, of which no upper half stays in use.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu [{to}], ymm0",
            leave_upper_halves!(),
            from = in(reg) from,
            to = in(reg) to,
            out("ymm0") _,
            options(nostack, preserves_flags),
        );
    }
}

compare_halves!(halves_below, "vpcmpgtq ymm2, ymm0, ymm2", "vpcmpgtq ymm1, ymm0, ymm1", "Bit i is set if word i is below `bound`.");
compare_halves!(halves_above, "vpcmpgtq ymm2, ymm2, ymm0", "vpcmpgtq ymm1, ymm1, ymm0", "Bit i is set if word i is above `bound`.");
compare_halves!(halves_equal, "vpcmpeqq ymm2, ymm2, ymm0", "vpcmpeqq ymm1, ymm1, ymm0", "Bit i is set if word i is `bound`.");
compare_line!(line_below, "6", "Bit i is set if word i is below `bound`.");
compare_line!(line_not_above, "5", "Bit i is set if word i is not above `bound`.");
compare_line!(line_other, "4", "Bit i is set if word i is not `bound`.");
compare!(below, "6", "Bit i is set if word i is below `bound`.");
compare!(not_above, "5", "Bit i is set if word i is not above `bound`.");

compare!(equal, "0", "Bit i is set if word i is `bound`.");

/// Bit i is set if word i is not above `bound`.
///
/// # Safety
/// [`available`]; 32 words readable at `words`, aligned to 64 bytes.
#[inline(always)]
pub(crate) unsafe fn half_not_above(words: *const AtomicU64, bound: u64) -> u32 {
    let mask;
    // SAFETY: reads the 256 bytes that the caller vouches for, and writes only the registers listed.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {bound}",
            "vpcmpuq k0, zmm16, [{words}], 5",
            "vpcmpuq k1, zmm16, [{words} + 64], 5",
            "vpcmpuq k2, zmm16, [{words} + 128], 5",
            "vpcmpuq k3, zmm16, [{words} + 192], 5",
            "kunpckbw k1, k1, k0",
            "kunpckbw k3, k3, k2",
            "kunpckwd k3, k3, k1",
            "kmovd {mask:e}, k3",
            words = in(reg) words,
            bound = in(reg) bound,
            mask = lateout(reg) mask,
            out("zmm16") _,
            out("k0") _, out("k1") _, out("k2") _, out("k3") _,
            options(nostack, readonly, preserves_flags),
        );
    }
    mask
}
