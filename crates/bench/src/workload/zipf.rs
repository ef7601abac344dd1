//! YCSB's Zipf distribution and its scrambled form.
//!
//! YCSB's *scrambled* Zipf is not the textbook distribution over `n` items. It draws a rank from a Zipf distribution
//! over a fixed universe of 10^10 items (with the zeta sum of 0.99 as a constant), hashes the rank with 64-bit FNV-1a,
//! and reduces the hash modulo `n`. Two things follow. The hottest key has the share 1 / zeta(10^10) = 3.8 %, whatever
//! `n` is. And many ranks fall on one key, so the tail is flatter than that of a textbook Zipf over `n` items.
//!
//! For other exponents YCSB sums 10^10 terms at start. Here the Euler–Maclaurin formula gives the same sum; for 0.99 it
//! agrees with the constant to ten digits (there is a test).
//!
//! Thread safety: plain values; each thread draws with its own [`Random`].

use super::random::Random;

/// Number of items in the universe of YCSB's scrambled generator.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// YCSB's constant: the zeta sum of 10^10 items at 0.99.
pub const SCRAMBLED_ZETA_099: f64 = 26.469_028_201_783_02;

/// The sum of `1 / i^theta` for `i` in `1..=n`, for `theta` in `(0, 1)`.
pub fn zeta(n: u64, theta: f64) -> f64 {
    const EXACT: u64 = 10_000;
    let head: f64 = (1..=n.min(EXACT)).map(|i| (i as f64).powf(-theta)).sum();
    if n <= EXACT {
        return head;
    }
    let term = |x: f64| x.powf(-theta);
    let (a, b) = (EXACT as f64, n as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    let slope = |x: f64| -theta * x.powf(-theta - 1.0);
    head + integral + (term(b) - term(a)) / 2.0 + (slope(b) - slope(a)) / 12.0
}

/// Zipf ranks in `0..items` by Gray's method, as YCSB's `ZipfianGenerator` draws them.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    items: f64,
    zeta: f64,
    eta: f64,
    alpha: f64,
    second: f64,
    last: u64,
}

impl Zipf {
    /// Ranks of `0..items` with exponent `theta` in `(0, 1)`.
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    fn with_zeta(items: u64, theta: f64, zeta_n: f64) -> Self {
        assert!(items >= 1 && theta > 0.0 && theta < 1.0, "items at least 1, theta between 0 and 1");
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta(2, theta) / zeta_n);
        let second = 1.0 + 0.5f64.powf(theta);
        Self { items: items as f64, zeta: zeta_n, eta, alpha: 1.0 / (1.0 - theta), second, last: items - 1 }
    }

    /// The probability that [`Zipf::draw`] gives a rank below `rank`. It is exact for the drawn ranks, by the inverse
    /// of Gray's method.
    pub fn share_below(&self, rank: u64) -> f64 {
        let two = (self.second / self.zeta).min(1.0);
        match rank {
            0 => 0.0,
            _ if rank > self.last => 1.0,
            1 => 1.0 / self.zeta,
            _ => {
                let inverse = (((rank as f64 / self.items).powf(1.0 / self.alpha) - 1.0 + self.eta) / self.eta).clamp(0.0, 1.0);
                if rank == 2 { two.max(inverse) } else { inverse.max(two) }
            }
        }
    }

    /// The next rank; 0 is the most frequent.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.second {
            return 1.min(self.last);
        }
        ((self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64).min(self.last)
    }
}

/// YCSB's scrambled Zipf over `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct ScrambledZipf {
    ranks: Zipf,
    n: u64,
}

impl ScrambledZipf {
    /// Items `0..n` with exponent `theta`.
    pub fn new(n: u64, theta: f64) -> Self {
        assert!(n >= 1, "at least one item");
        let exact = (theta - 0.99).abs() < 1e-12;
        let zeta_n = if exact { SCRAMBLED_ZETA_099 } else { zeta(SCRAMBLED_ITEMS, theta) };
        Self { ranks: Zipf::with_zeta(SCRAMBLED_ITEMS, theta, zeta_n), n }
    }

    /// The next item.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        ycsb_fnv64(self.ranks.draw(random)) % self.n
    }
}

/// YCSB's `fnvhash64`: FNV-1a over the eight octets, low one first, and the absolute value of the signed result.
#[inline]
pub fn ycsb_fnv64(value: u64) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for octet in value.to_le_bytes() {
        hash = (hash ^ u64::from(octet)).wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_matches_the_direct_sum_and_the_constant_of_ycsb() {
        let direct: f64 = (1..=200_000u64).map(|i| (i as f64).powf(-0.7)).sum();
        assert!((zeta(200_000, 0.7) - direct).abs() < 1e-8);
        assert!((zeta(SCRAMBLED_ITEMS, 0.99) - SCRAMBLED_ZETA_099).abs() < 1e-6);
    }

    /// Shares of single ranks follow `1 / (rank+1)^theta`. Gray's method is exact for the first two ranks and
    /// approximate for the others.
    #[test]
    fn rank_frequencies() {
        let (n, draws) = (1000u64, 1_000_000u32);
        for theta in [0.5, 0.8, 0.99] {
            let zipf = Zipf::new(n, theta);
            let mut random = Random::new(1);
            let mut counts = vec![0u32; n as usize];
            (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
            let share = |i: u64| ((i + 1) as f64).powf(-theta) / zeta(n, theta);
            for i in [0u64, 1] {
                let seen = f64::from(counts[i as usize]) / f64::from(draws);
                assert!((seen / share(i) - 1.0).abs() < 0.03, "theta {theta}, rank {i}: {seen} against {}", share(i));
            }
            let head: f64 = (0..100).map(share).sum();
            let seen: f64 = counts[..100].iter().map(|&c| f64::from(c) / f64::from(draws)).sum();
            assert!((seen / head - 1.0).abs() < 0.05, "theta {theta}, first hundred: {seen} against {head}");
        }
    }

    #[test]
    fn scrambled_hot_key_has_the_share_of_the_large_universe() {
        let n = 100_000;
        let scrambled = ScrambledZipf::new(n, 0.99);
        let mut random = Random::new(5);
        let mut counts = vec![0u32; n as usize];
        (0..1_000_000).for_each(|_| counts[scrambled.draw(&mut random) as usize] += 1);
        let (hot, &count) = counts.iter().enumerate().max_by_key(|(_, c)| **c).expect("n is not zero");
        assert_eq!(hot as u64, ycsb_fnv64(0) % n);
        let share = f64::from(count) / 1e6;
        assert!((share * SCRAMBLED_ZETA_099 - 1.0).abs() < 0.05, "share {share}");
        let touched = counts.iter().filter(|&&c| c > 0).count();
        assert!(touched > 90_000, "the tail is flat: {touched} keys touched");
    }

    #[test]
    fn fnv_matches_the_published_function() {
        // FNV-1a over eight zero octets, as the reference implementation gives it.
        let mut hash = 0xCBF2_9CE4_8422_2325u64;
        (0..8).for_each(|_| hash = hash.wrapping_mul(0x0000_0100_0000_01B3));
        assert_eq!(ycsb_fnv64(0), (hash as i64).unsigned_abs());
        assert_ne!(ycsb_fnv64(1), ycsb_fnv64(256));
    }
}
