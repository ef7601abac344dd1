//! A counter that threads change without meeting: each thread number has a word of its own.
//!
//! Thread numbers are dense and reused, so the first [`OWNED`] words cover all but the largest processes; threads beyond share one
//! word by atomic addition. A number passes from a thread that ends to the next one with acquire/release, so that plain
//! loads and stores suffice.

use hither_sync::Padded;
use hither_sync::epoch::thread_number;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads with a word of their own.
const OWNED: usize = 64;

pub(super) struct Counter {
    words: Box<[Padded<AtomicU64>]>,
}

impl Counter {
    pub(super) fn new() -> Self {
        Counter { words: (0..=OWNED).map(|_| Padded(AtomicU64::new(0))).collect() }
    }

    /// Adds `delta`, which may stand for a negative number in two's complement.
    #[inline(always)]
    pub(super) fn add(&self, delta: u64) {
        let number = thread_number();
        if number < OWNED {
            let word = &self.words[number];
            word.store(word.load(Ordering::Relaxed).wrapping_add(delta), Ordering::Relaxed);
        } else {
            self.words[OWNED].fetch_add(delta, Ordering::Relaxed);
        }
    }

    /// The sum; while others count, possibly off by what is under way, but never below zero.
    pub(super) fn sum(&self) -> usize {
        let sum = self.words.iter().fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
        usize::try_from(sum as i64).unwrap_or(0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<Padded<AtomicU64>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_more_threads_than_words() {
        let counter = Counter::new();
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
