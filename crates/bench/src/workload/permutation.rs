//! Bijections: unique random-looking keys and orders without a table.
//!
//! Purpose: `mix64` turns the consecutive ids of a workload into unique 8-byte keys. [`Permutation`] visits each of
//! `0..n` once, in a random-looking order. Both cost a few multiplications, so the stream of operations never dominates
//! a measurement.
//!
//! Thread safety: plain values, `Copy`. Invariant: both functions are bijective for every seed.

/// The finaliser of SplitMix64: a bijection of the 64-bit integers.
#[inline]
pub const fn mix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The inverse of [`mix64`].
pub const fn unmix64(x: u64) -> u64 {
    let x = x ^ (x >> 31) ^ (x >> 62);
    let x = x.wrapping_mul(0x3196_42B2_D24D_8EC3);
    let x = x ^ (x >> 27) ^ (x >> 54);
    let x = x.wrapping_mul(0x96DE_1B17_3F11_9089);
    x ^ (x >> 30) ^ (x >> 60)
}

/// The multiplicative inverse of [`GOLDEN`].
pub const GOLDEN_INVERSE: u64 = 0xF1DE_83E1_9937_733D;

/// The increment of SplitMix64's sequence.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A permutation of `0..n`: a four-round Feistel network over the next even number of bits, repeated until it lands
/// inside.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    /// The permutation of `0..n` that belongs to `seed`. `n` must be at least 1.
    pub fn new(n: u64, seed: u64) -> Self {
        assert!(n >= 1, "a permutation needs at least one element");
        let bits = 64 - (n - 1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let keys = std::array::from_fn(|i| mix64(seed.wrapping_add(GOLDEN.wrapping_mul(i as u64 + 1))));
        Self { n, half_bits, keys }
    }

    /// The element at position `i` of the order. The walk takes fewer than four steps on average.
    #[inline]
    pub fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n);
        let mut x = i;
        loop {
            x = self.round_trip(x);
            if x < self.n {
                return x;
            }
        }
    }

    #[inline]
    fn round_trip(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix64(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_element_appears_once() {
        for n in [1u64, 2, 3, 5, 16, 17, 1000, 4097] {
            for seed in [0, 1, 99] {
                let order = Permutation::new(n, seed);
                let seen: HashSet<u64> = (0..n).map(|i| order.at(i)).collect();
                assert_eq!(seen.len() as u64, n);
                assert!(seen.iter().all(|&x| x < n));
            }
        }
    }

    #[test]
    fn seeds_differ_and_orders_are_not_sequential() {
        let (a, b) = (Permutation::new(10_000, 1), Permutation::new(10_000, 2));
        let same = (0..10_000).filter(|&i| a.at(i) == b.at(i)).count();
        let fixed = (0..10_000).filter(|&i| a.at(i) == i).count();
        assert!(same < 20 && fixed < 20, "same {same}, fixed {fixed}");
    }

    #[test]
    fn mix_has_no_collision_in_a_million() {
        let seen: HashSet<u64> = (0..1_000_000u64).map(mix64).collect();
        assert_eq!(seen.len(), 1_000_000);
    }
}
