//! Search in the sorted words of a node.
//!
//! Large nodes, or the half that one comparison chooses, are searched by comparing all words at once where the
//! processor can (AVX-512). Otherwise they are searched like small ones, by a branch-free binary search. Single lines
//! are compared at once with AVX2 as well.
//!
//! Readers search words that a writer may be changing. The result is then any number up to the count (for halves and
//! positions: up to the number of words), and the version reveals the change.

#[cfg(target_arch = "x86_64")]
use super::wide;
use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns whether all words of a large node are compared at once. A caller that searches several nodes asks once.
#[inline(always)]
pub(crate) fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return wide::available();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Words of a large node, with a run of sorted ones among them.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// 64 words, aligned to 64 bytes.
    pub(crate) words: *const AtomicU64,
    /// Where the sorted words begin.
    pub(crate) first: usize,
    /// The number of sorted words, less than 64; `first + count` is at most 64.
    pub(crate) count: usize,
}

impl Block {
    /// Returns how many of the sorted words are below `bound`.
    ///
    /// # Safety
    /// 64 words must be readable at `words`, aligned to 64 bytes, `count` less than 64 and `first + count` at most 64.
    #[inline(always)]
    pub(crate) unsafe fn lower_bound(self, bound: u64) -> usize {
        #[cfg(target_arch = "x86_64")]
        if wide::available() {
            // SAFETY: available, and the words are readable and aligned.
            return self.count_in(unsafe { wide::below(self.words, bound) });
        }
        // SAFETY: the sorted words lie inside the block.
        unsafe { lower_bound(self.words.add(self.first), self.count, bound) }
    }

    /// Returns how many of the sorted words are not above `bound`.
    ///
    /// # Safety
    /// As for [`Block::lower_bound`].
    #[inline(always)]
    pub(crate) unsafe fn upper_bound(self, bound: u64) -> usize {
        #[cfg(target_arch = "x86_64")]
        if wide::available() {
            // SAFETY: available, and the words are readable and aligned.
            return self.count_in(unsafe { wide::not_above(self.words, bound) });
        }
        // SAFETY: the sorted words lie inside the block.
        unsafe { partition(self.words.add(self.first), self.count, |word| word <= bound) }
    }

    /// Returns the first position of `word` among all 64 words, unsorted ones included, or 64. (Where not all words can
    /// be compared at once, only the sorted ones are searched.) `wide` is the result of [`is_wide`].
    ///
    /// # Safety
    /// As for [`Block::lower_bound`].
    #[inline(always)]
    pub(crate) unsafe fn position(self, wide: bool, word: u64) -> usize {
        #[cfg(target_arch = "x86_64")]
        if wide {
            // SAFETY: available, and the words are readable and aligned.
            return unsafe { wide::equal(self.words, word) }.trailing_zeros() as usize;
        }
        let _ = wide;
        // SAFETY: the sorted words lie inside the block.
        let sorted = unsafe { self.words.add(self.first) };
        // SAFETY: as above.
        let at = unsafe { lower_bound(sorted, self.count, word) };
        // SAFETY: below the count.
        let hit = at < self.count && unsafe { &*sorted.add(at) }.load(Ordering::Relaxed) == word;
        if hit { self.first + at } else { 64 }
    }

    /// The length of the run of ones at the start of the sorted words: these ascend, so no one follows a zero.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn count_in(self, mask: u64) -> usize {
        (!(mask >> self.first) | 1 << self.count).trailing_zeros() as usize
    }
}

/// Number of words in a [`Half`].
pub(crate) const HALF_WORDS: usize = 32;

/// Thirty-two words; the sorted ones follow the first few.
#[derive(Clone, Copy)]
pub(crate) struct Half {
    /// [`HALF_WORDS`], aligned to 64 bytes.
    pub(crate) words: *const AtomicU64,
    /// Where the sorted words begin. The words before them count as not above anything.
    pub(crate) ahead: usize,
}

impl Half {
    /// Returns how many words are not above `bound`. `wide` is the result of [`is_wide`].
    ///
    /// # Safety
    /// 32 words must be readable at `words`, aligned to 64 bytes, and `ahead` less than 32.
    #[inline(always)]
    pub(crate) unsafe fn not_above(self, wide: bool, bound: u64) -> usize {
        #[cfg(target_arch = "x86_64")]
        if wide {
            // SAFETY: available, and the words are readable and aligned.
            let mask = unsafe { wide::half_not_above(self.words, bound) };
            // The upper half of the 64 bits ends the count.
            return (!u64::from(mask) & u64::MAX << self.ahead).trailing_zeros() as usize;
        }
        let _ = wide;
        // SAFETY: the sorted words lie inside the half.
        self.ahead + unsafe { partition(self.words.add(self.ahead), HALF_WORDS - self.ahead, |word| word <= bound) }
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
        if wide::available() {
            // SAFETY: available; passed on.
            return unsafe { wide::line_below(self.0, bound) };
        }
        #[cfg(target_arch = "x86_64")]
        if wide::halves_available() {
            // SAFETY: available; passed on.
            return unsafe { wide::halves_below(self.0, bound) };
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
        if wide::available() {
            // SAFETY: available; passed on.
            return unsafe { wide::line_not_above(self.0, bound) };
        }
        #[cfg(target_arch = "x86_64")]
        if wide::halves_available() {
            // SAFETY: available; passed on.
            return !unsafe { wide::halves_above(self.0, bound) } & 0xff;
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
        if wide::available() {
            // SAFETY: available; passed on.
            return unsafe { wide::line_other(self.0, 0) };
        }
        #[cfg(target_arch = "x86_64")]
        if wide::halves_available() {
            // SAFETY: available; passed on.
            return !unsafe { wide::halves_equal(self.0, 0) } & 0xff;
        }
        // SAFETY: passed on.
        unsafe { self.mask(|word| word != 0) }
    }

    unsafe fn mask(self, test: impl Fn(u64) -> bool) -> u32 {
        // SAFETY: the caller vouches for eight words.
        (0..8).fold(0, |mask, i| mask | u32::from(test(unsafe { &*self.0.add(i) }.load(Ordering::Relaxed))) << i)
    }
}

/// Returns how many of the `count` sorted words at `words` are below `bound`.
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
                // The words around the sorted ones must not count.
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
    fn halves_and_positions_agree_with_the_standard_library() {
        for (ahead, seed) in [0, 2, 5].into_iter().flat_map(|ahead| (1..=8u64).map(move |seed| (ahead, seed))) {
            let block = Aligned(std::array::from_fn(|i| AtomicU64::new((i.min(62) as u64 / 3 * 10) << (seed * 7))));
            let sorted: Vec<u64> = block.0[ahead..HALF_WORDS].iter().map(|word| word.load(Ordering::Relaxed)).collect();
            for bound in (0..250).map(|bound| bound << (seed * 7)).chain([u64::MAX - 1, u64::MAX]) {
                let expected = ahead + sorted.partition_point(|word| *word <= bound);
                let place = block.0.iter().position(|word| word.load(Ordering::Relaxed) == bound).unwrap_or(64);
                for wide in [false, is_wide()] {
                    // SAFETY: the block has 64 aligned words.
                    unsafe {
                        assert_eq!(Half { words: block.0.as_ptr(), ahead }.not_above(wide, bound), expected);
                        assert_eq!(Block { words: block.0.as_ptr(), first: 0, count: 63 }.position(wide, bound), place);
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
