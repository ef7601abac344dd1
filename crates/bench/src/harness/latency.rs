//! Latency histograms with three significant digits, from 1 ns to 100 s.
//!
//! Thread safety: one histogram per thread, merged afterwards.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::sampling::nanoseconds;

const HIGHEST_NS: u64 = 100_000_000_000;

/// A histogram of one thread, or of all merged.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    timed: u64,
}

/// The quantiles of a record, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// Median.
    pub p50_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// 99.9 %.
    pub p999_us: f64,
    /// 99.99 %.
    pub p9999_us: f64,
    /// The slowest timed call.
    pub max_us: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { histogram: Histogram::new_with_bounds(1, HIGHEST_NS, 3).expect("the bounds are valid"), timed: 0 }
    }
}

impl Latencies {
    /// Counts one call.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.record_for(latency, 1);
    }

    /// Counts a timed call that stands for so many calls, itself included.
    #[inline]
    pub fn record_for(&mut self, latency: Duration, calls: u64) {
        self.histogram.saturating_record_n(nanoseconds(latency).max(1), calls);
        self.timed += 1;
    }

    /// Adds the calls of another thread's histogram.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
        self.timed += other.timed;
    }

    /// Number of calls that were timed.
    pub fn count(&self) -> u64 {
        self.timed
    }

    /// The quantiles, all 0 if nothing was counted.
    pub fn quantiles(&self) -> Quantiles {
        if self.histogram.is_empty() {
            return Quantiles::default();
        }
        let at = |q| self.histogram.value_at_quantile(q) as f64 / 1000.0;
        Quantiles {
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
            max_us: self.histogram.max() as f64 / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_set() {
        let (mut a, mut b) = (Latencies::default(), Latencies::default());
        (1..=5_000u64).for_each(|us| a.record(Duration::from_micros(us)));
        (5_001..=10_000u64).for_each(|us| b.record(Duration::from_micros(us)));
        a.merge(&b);
        let q = a.quantiles();
        assert_eq!(a.count(), 10_000);
        for (seen, expected) in [(q.p50_us, 5_000.0), (q.p99_us, 9_900.0), (q.p999_us, 9_990.0), (q.p9999_us, 9_999.0)] {
            assert!((seen / expected - 1.0).abs() < 0.002, "{seen} for {expected}");
        }
    }

    /// Regression: slow calls that were timed more densely counted more than they were.
    #[test]
    fn a_timed_call_counts_as_often_as_calls_for_which_it_stands() {
        let mut latencies = Latencies::default();
        (0..10).for_each(|_| latencies.record_for(Duration::from_micros(1), 1_000));
        (0..100).for_each(|_| latencies.record_for(Duration::from_micros(50), 1));
        let q = latencies.quantiles();
        assert_eq!(latencies.count(), 110);
        assert!((q.p50_us, q.p99_us) == (1.0, 1.0) && (50.0..51.0).contains(&q.p999_us) && q.max_us >= 50.0, "{q:?}");
    }

    #[test]
    fn extremes_are_kept_inside() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(1_000));
        assert_eq!(latencies.count(), 2);
        assert!(latencies.quantiles().max_us >= 99_000_000.0);
    }
}
