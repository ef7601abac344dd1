//! Search in the sorted words of a node.
//!
//! Large nodes are searched by comparing all their words at once where the processor can (AVX-512), else like small ones by a branch-free
//! binary search; single lines are compared at once with AVX2 as well. Readers search words that a writer may be changing: the result is then any number up to the count, and the version
//! tells.

use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a large node, with a run of sorted ones among them.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// 64 words, aligned to 64 bytes.
    pub(crate) words: *const AtomicU64,
    /// Where the sorted words begin.
    pub(crate) first: usize,
    /// How many they are, less than 64; `first + count` is at most 64.
    pub(crate) count: usize,
}

impl Block {
    /// How many of the sorted words are below `bound`.
    ///
    /// # Safety
    /// 64 words must be readable at `words`, aligned to 64 bytes, `count` less than 64 and `first + count` at most 64.
    #[inline(always)]
    pub(crate) unsafe fn lower_bound(self, bound: u64) -> usize {
        #[cfg(target_arch = "x86_64")]
        if x86_64::available() {
            // SAFETY: available, and the words are readable and aligned.
            return self.count_in(unsafe { x86_64::below(self.words, bound) });
        }
        // SAFETY: the sorted words lie inside the block.
        unsafe { lower_bound(self.words.add(self.first), self.count, bound) }
    }

    /// How many of the sorted words are not above `bound`.
    ///
    /// # Safety
    /// As for [`Block::lower_bound`].
    #[inline(always)]
    pub(crate) unsafe fn upper_bound(self, bound: u64) -> usize {
        #[cfg(target_arch = "x86_64")]
        if x86_64::available() {
            // SAFETY: available, and the words are readable and aligned.
            return self.count_in(unsafe { x86_64::not_above(self.words, bound) });
        }
        // SAFETY: the sorted words lie inside the block.
        unsafe { partition(self.words.add(self.first), self.count, |word| word <= bound) }
    }

    /// The length of the run of ones at the sorted words' beginning: they ascend, so no one comes behind a zero.
    #[inline(always)]
    fn count_in(self, mask: u64) -> usize {
        (!(mask >> self.first) | 1 << self.count).trailing_zeros() as usize
    }
}

/// Eight words in one cache line.
#[derive(Clone, Copy)]
pub(crate) struct Line(pub(crate) *const AtomicU64);

impl Line {
    /// Bit i is set if word i is below `bound`.
    ///
    /// # Safety
    /// Eight words must be readable, aligned to 64 bytes.
    #[inline(always)]
    pub(crate) unsafe fn below(self, bound: u64) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if x86_64::available() {
            // SAFETY: available; passed on.
            return unsafe { x86_64::line_below(self.0, bound) };
        }
        #[cfg(target_arch = "x86_64")]
        if x86_64::halves_available() {
            // SAFETY: available; passed on.
            return unsafe { x86_64::halves_below(self.0, bound) };
        }
        // SAFETY: passed on.
        unsafe { self.mask(|word| word < bound) }
    }

    /// Bit i is set if word i is not above `bound`.
    ///
    /// # Safety
    /// As for [`Line::below`].
    #[inline(always)]
    pub(crate) unsafe fn not_above(self, bound: u64) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if x86_64::available() {
            // SAFETY: available; passed on.
            return unsafe { x86_64::line_not_above(self.0, bound) };
        }
        #[cfg(target_arch = "x86_64")]
        if x86_64::halves_available() {
            // SAFETY: available; passed on.
            return !unsafe { x86_64::halves_above(self.0, bound) } & 0xff;
        }
        // SAFETY: passed on.
        unsafe { self.mask(|word| word <= bound) }
    }

    /// Bit i is set if word i is not zero.
    ///
    /// # Safety
    /// As for [`Line::below`].
    #[inline(always)]
    pub(crate) unsafe fn filled(self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if x86_64::available() {
            // SAFETY: available; passed on.
            return unsafe { x86_64::line_other(self.0, 0) };
        }
        #[cfg(target_arch = "x86_64")]
        if x86_64::halves_available() {
            // SAFETY: available; passed on.
            return !unsafe { x86_64::halves_equal(self.0, 0) } & 0xff;
        }
        // SAFETY: passed on.
        unsafe { self.mask(|word| word != 0) }
    }

    unsafe fn mask(self, test: impl Fn(u64) -> bool) -> u32 {
        // SAFETY: the caller vouches for eight words.
        (0..8).fold(0, |mask, i| mask | u32::from(test(unsafe { &*self.0.add(i) }.load(Ordering::Relaxed))) << i)
    }
}

/// How many of the `count` sorted words at `words` are below `bound`.
///
/// # Safety
/// `count` words must be readable at `words`.
#[inline(always)]
pub(crate) unsafe fn lower_bound(words: *const AtomicU64, count: usize, bound: u64) -> usize {
    // SAFETY: passed on; `partition` asks for positions below `count`.
    unsafe { partition(words, count, |word| word < bound) }
}

/// The number of leading words for which `before` holds. If the words change meanwhile, some number up to `count`.
#[inline(always)]
unsafe fn partition(words: *const AtomicU64, count: usize, before: impl Fn(u64) -> bool) -> usize {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller vouches for positions below `count`.
    let test = |i: usize| before(unsafe { &*words.add(i) }.load(Ordering::Relaxed));
    let (mut base, mut len) = (0, count);
    while len > 1 {
        let half = len / 2;
        base = select_unpredictable(test(base + half - 1), base + half, base);
        len -= half;
    }
    base + usize::from(test(base))
}

/// Eight words per instruction. In assembly, because Rust has no relaxed atomic load of a vector: on x86-64 an aligned vector load
/// reads each aligned word of it whole, so the block stands for 64 relaxed loads.
#[cfg(target_arch = "x86_64")]
pub(super) mod x86_64 {
    use super::AtomicU64;
    use std::arch::asm;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// What the processor has: 0: not asked yet; 1: none of it; 2: AVX-512, for whole lines; 3: AVX2, for halves of them.
    static WIDE: AtomicU8 = AtomicU8::new(0);

    /// Whether the processor has what the functions of whole lines need. One comparison after the first call: a search asks several times.
    #[inline(always)]
    pub(crate) fn available() -> bool {
        let wide = WIDE.load(Ordering::Relaxed);
        wide == 2 || (wide == 0 && detect())
    }

    /// Whether it has what the functions of halves need. After [`available`].
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
                // SAFETY: reads the 512 bytes that the caller vouches for, and writes only the registers listed. Register 16 does not
                // share its upper half with the compiler's SSE code, so no cleaning up is needed.
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
            pub(super) unsafe fn $name(words: *const AtomicU64, bound: u64) -> u32 {
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

    /// Ends the use of upper halves where the code around knows nothing of them. Code compiled for AVX may hold values there, of which the instruction would leave nothing.
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
            pub(super) unsafe fn $name(words: *const AtomicU64, bound: u64) -> u32 {
                let (mask, high): (u32, u32);
                // SAFETY: reads the 64 bytes that the caller vouches for, and writes only the registers listed; no upper half stays in use.
                // Comparisons are signed, so the highest bits are flipped first.
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

    /// Moves eight words: reads all, then writes all, so that the runs may overlap.
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

    /// Moves up to seven words, as [`move_eight`].
    ///
    /// # Safety
    /// [`available`]; `count` words, at most 7, readable at `from` and writable at `to`, aligned to 8 bytes.
    #[inline(always)]
    pub(crate) unsafe fn move_some(from: *const AtomicU64, to: *const AtomicU64, count: usize) {
        debug_assert!(count < 8);
        // SAFETY: by the caller's promise: words that the mask leaves out are neither read nor written.
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

    /// Moves four words, as [`move_eight`].
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 64;

    #[repr(align(64))]
    struct Aligned([AtomicU64; WORDS]);

    #[test]
    fn agrees_with_the_standard_library() {
        for first in [0, 2, 5] {
            for count in 0..WORDS - first {
                // Around the sorted words lies what must not count.
                let block = Aligned(std::array::from_fn(|i| AtomicU64::new(i as u64 * 97 % 50)));
                let plain: Vec<u64> = (0..count as u64).map(|i| if i == 62 { u64::MAX } else { i / 2 * 10 }).collect();
                plain.iter().enumerate().for_each(|(i, word)| block.0[first + i].store(*word, Ordering::Relaxed));
                let search = Block { words: block.0.as_ptr(), first, count };
                for bound in (0..330).chain([1 << 63, u64::MAX - 1, u64::MAX]) {
                    let below = plain.partition_point(|word| *word < bound);
                    // SAFETY: the block has 64 aligned words.
                    unsafe {
                        assert_eq!(search.lower_bound(bound), below);
                        assert_eq!(lower_bound(search.words.add(first), count, bound), below);
                        assert_eq!(search.upper_bound(bound), plain.partition_point(|word| *word <= bound));
                    }
                }
            }
        }
    }

    #[test]
    fn lines_agree_with_plain_comparisons() {
        for seed in 0..200u64 {
            let block = Aligned(std::array::from_fn(|i| AtomicU64::new((i as u64).wrapping_mul(seed) % 11 * (u64::MAX / 10))));
            let word = |i: usize| block.0[i].load(Ordering::Relaxed);
            let mask = |test: &dyn Fn(u64) -> bool| (0..8).fold(0u32, |mask, i| mask | u32::from(test(word(i))) << i);
            let line = Line(block.0.as_ptr());
            for bound in [0, 1, u64::MAX / 10 * 5, u64::MAX / 10 * 5 + 1, u64::MAX] {
                // SAFETY: the block has 64 aligned words.
                unsafe {
                    assert_eq!(line.below(bound), mask(&|word| word < bound));
                    assert_eq!(line.not_above(bound), mask(&|word| word <= bound));
                    assert_eq!(line.filled(), mask(&|word| word != 0));
                }
            }
        }
    }
}
