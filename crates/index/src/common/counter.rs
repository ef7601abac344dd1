//! The number of keys, counted by threads that do not meet: each of the first thread numbers has a word of its own.
//!
//! A thread number passes from a thread that ends to the next one with acquire/release, so plain loads and stores
//! suffice for owned words. Threads with higher numbers share the last word by atomic addition.

use hither_sync::Padded;
use hither_sync::epoch::thread_number;
use std::sync::atomic::{AtomicU64, Ordering};

/// `OWNED` is the number of threads with a word of their own: small where an empty index must stay small.
pub(crate) struct Counter<const OWNED: usize> {
    words: Box<[Padded<AtomicU64>]>,
}

impl<const OWNED: usize> Counter<OWNED> {
    pub(crate) fn new() -> Self {
        Counter { words: (0..=OWNED).map(|_| Padded(AtomicU64::new(0))).collect() }
    }

    /// Adds `delta`, which may be negative in two's complement.
    #[inline(always)]
    pub(crate) fn add(&self, delta: u64) {
        let number = thread_number();
        if number < OWNED {
            let word = &self.words[number];
            word.store(word.load(Ordering::Relaxed).wrapping_add(delta), Ordering::Relaxed);
        } else {
            self.words[OWNED].fetch_add(delta, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn one_more(&self) {
        self.add(1);
    }

    #[inline(always)]
    pub(crate) fn one_less(&self) {
        self.add(u64::MAX);
    }

    /// The sum: exact while nobody counts, never below zero.
    pub(crate) fn sum(&self) -> usize {
        let sum = self.words.iter().fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
        usize::try_from(sum as i64).unwrap_or(0)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<Padded<AtomicU64>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNED: usize = 64;

    #[test]
    fn sums_over_more_threads_than_words() {
        let counter = Counter::<OWNED>::new();
        let barrier = std::sync::Barrier::new(OWNED + 20);
        std::thread::scope(|scope| {
            for _ in 0..OWNED + 20 {
                scope.spawn(|| {
                    // All at once, so that some thread numbers lie beyond the owned words.
                    let _pin = hither_sync::epoch::pin();
                    barrier.wait();
                    for _ in 0..100 {
                        counter.add(2);
                        counter.add(1u64.wrapping_neg());
                    }
                });
            }
        });
        assert_eq!(counter.sum(), (OWNED + 20) * 100);
    }
}
