//! Branch-free search in sorted words.

use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many of the `count` sorted words at `words` are below `bound`.
///
/// # Safety
/// `count` words must be readable at `words`.
#[inline(always)]
pub(super) unsafe fn lower_bound(words: *const AtomicU64, count: usize, bound: u64) -> usize {
    // SAFETY: passed on; `partition` asks for positions below `count`.
    unsafe { partition(words, count, |word| word < bound) }
}

/// How many of the `count` sorted words at `words` are not above `bound`.
///
/// # Safety
/// `count` words must be readable at `words`.
#[inline(always)]
pub(super) unsafe fn upper_bound(words: *const AtomicU64, count: usize, bound: u64) -> usize {
    // SAFETY: passed on; `partition` asks for positions below `count`.
    unsafe { partition(words, count, |word| word <= bound) }
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

    #[test]
    fn agrees_with_the_standard_library() {
        for count in 0..64u64 {
            let words: Vec<_> = (0..count).map(|i| AtomicU64::new(i / 2 * 10)).collect();
            let plain: Vec<u64> = (0..count).map(|i| i / 2 * 10).collect();
            for bound in (0..330).chain([u64::MAX]) {
                // SAFETY: the vector holds `count` words.
                let (low, high) = unsafe { (lower_bound(words.as_ptr(), words.len(), bound), upper_bound(words.as_ptr(), words.len(), bound)) };
                assert_eq!(low, plain.partition_point(|word| *word < bound));
                assert_eq!(high, plain.partition_point(|word| *word <= bound));
            }
        }
    }
}
