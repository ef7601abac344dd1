//! Counts of gets, by stripe: each thread counts in a stripe of its own. (Threads beyond the number of stripes share
//! one and may then lose a count now and then.)
//!
//! Counting is a plain load and store. The counts steer the cache and are shown to people; nothing depends on their
//! being exact.

use hither_sync::{Padded, epoch};
use std::sync::atomic::{AtomicU64, Ordering};

const STRIPES: usize = 64;

/// What a stripe counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    LocalHits = 0,
    RemoteHits = 1,
    LocalMisses = 2,
    RemoteMisses = 3,
    /// Gets that updated a frequency or offered an item.
    Samples = 4,
    /// Gets seen by a probe.
    Probed = 5,
    /// Probed gets of a key that the same probe had seen before.
    Repeated = 6,
    /// Items offered that are too long for a bucket.
    Misfits = 7,
}

const KINDS: usize = 8;

/// A thread's counts, and the distance to its next sample.
#[derive(Debug, Default)]
struct Stripe {
    counts: [AtomicU64; KINDS],
    until_sample: AtomicU64,
    random: AtomicU64,
}

/// The counts of all threads.
#[derive(Debug)]
pub(crate) struct Counters {
    stripes: Box<[Padded<Stripe>]>,
}

/// Sums at one moment, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums(pub [u64; KINDS]);

impl Sums {
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    pub fn since(&self, earlier: &Sums) -> Sums {
        Sums(std::array::from_fn(|i| self.0[i].saturating_sub(earlier.0[i])))
    }

    pub fn hits(&self) -> u64 {
        self.get(Count::LocalHits) + self.get(Count::RemoteHits)
    }

    pub fn gets(&self) -> u64 {
        self.hits() + self.get(Count::LocalMisses) + self.get(Count::RemoteMisses)
    }
}

impl Counters {
    pub fn new() -> Counters {
        Counters { stripes: (0..STRIPES).map(|_| Padded::default()).collect() }
    }

    /// Bytes of DRAM that the counters take.
    pub const MEMORY_BYTES: usize = STRIPES * size_of::<Padded<Stripe>>();

    #[inline(always)]
    fn own(&self) -> &Stripe {
        &self.stripes[epoch::thread_number() % STRIPES]
    }

    /// Counts a get. Returns true if it is to be a sample, which one get in `interval` is, at random distances.
    #[inline(always)]
    pub fn count_get(&self, count: Count, interval: u32) -> bool {
        let stripe = self.own();
        add(&stripe.counts[count as usize]);
        let left = stripe.until_sample.load(Ordering::Relaxed);
        if left > 0 && interval > 1 {
            stripe.until_sample.store(left - 1, Ordering::Relaxed);
            return false;
        }
        add(&stripe.counts[Count::Samples as usize]);
        // Not every n-th get: a program that reads periodically would show the same keys again and again.
        let random = stripe.random.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        stripe.random.store(random, Ordering::Relaxed);
        let interval = u64::from(interval);
        let distance = ((u128::from(random) * u128::from(2 * interval - 1)) >> 64) as u64;
        stripe.until_sample.store(distance, Ordering::Relaxed);
        true
    }

    #[inline(always)]
    pub fn count(&self, count: Count) {
        add(&self.own().counts[count as usize]);
    }

    pub fn sums(&self) -> Sums {
        let sum = |i: usize| self.stripes.iter().map(|stripe| stripe.counts[i].load(Ordering::Relaxed)).sum();
        Sums(std::array::from_fn(sum))
    }
}

#[inline(always)]
fn add(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_the_interval_is_a_sample() {
        let counters = Counters::new();
        for interval in [1, 2, 32] {
            let before = counters.sums();
            let taken = (0..64_000).filter(|_| counters.count_get(Count::LocalHits, interval)).count() as f64;
            let expected = 64_000.0 / f64::from(interval);
            assert!((taken / expected - 1.0).abs() < 0.1, "{taken} samples instead of {expected}");
            let counted = counters.sums().since(&before);
            assert_eq!((counted.gets(), counted.get(Count::Samples)), (64_000, taken as u64));
        }
    }
}
