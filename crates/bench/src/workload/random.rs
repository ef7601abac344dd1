//! A small deterministic random source (SplitMix64). The same seed gives the same stream on every machine and version.
//!
//! Thread safety: one per thread.

use super::permutation::{GOLDEN, mix64};

/// SplitMix64: one addition and one mix per number.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: mix64(seed ^ 0x6869_7468_6572) }
    }

    /// The stream of one thread for a seed.
    pub fn for_thread(seed: u64, thread: usize) -> Self {
        Self::new(seed.wrapping_add(mix64(thread as u64 + 1)))
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix64(self.state)
    }

    /// A number below `bound` (which must not be 0), without a division.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `[0, 1)` with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_is_even_and_in_range() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
    }

    #[test]
    fn unit_stays_below_one() {
        let mut random = Random::new(3);
        assert!((0..100_000).map(|_| random.unit()).all(|u| (0.0..1.0).contains(&u)));
    }

    #[test]
    fn streams_are_reproducible_and_threads_differ() {
        let draw = |thread| Random::for_thread(42, thread).next_u64();
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }
}
