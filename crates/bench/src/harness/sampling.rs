//! Which calls are timed.
//!
//! Two clock readings cost half as much as a get. Worse, no call begins before the one that is timed has all its data,
//! and that one begins after all calls before it. So the waits of at least two calls do not overlap with others.
//! [`Sampling::default`] therefore goes by time: fast calls are timed rarely, slow ones (commits to a disk) each.
//!
//! So calls are timed more densely where they are slow. In the quantiles a timed call therefore counts as often as
//! there are calls in its stretch: itself, and those up to its neighbour.
//!
//! Thread safety: a pace per thread. Invariant: how long a timed call takes does not decide whether it is counted; only
//! the calls before it determine when the next one is timed.

use std::time::Duration;

/// The calls between two timed ones, at most.
const MOST_BETWEEN: u64 = 1023;

/// How often a call is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// One call in this many, at least 1.
    OneIn(u32),
    /// One call of each thread in about this much time, but at least one in 1,024.
    Each(Duration),
}

impl Default for Sampling {
    /// A timed call costs about a microsecond more than another one, a hundredth of this time.
    fn default() -> Self {
        Sampling::Each(Duration::from_micros(100))
    }
}

impl Sampling {
    /// `OneIn(calls)` if there is a number, otherwise the default.
    pub fn one_in(calls: Option<u32>) -> Self {
        calls.map_or_else(Self::default, Sampling::OneIn)
    }

    /// True if there is such a sampling.
    pub fn is_valid(self) -> bool {
        !matches!(self, Sampling::OneIn(0))
    }
}

/// Decides how many calls come between two timed ones.
#[derive(Debug)]
pub(super) struct Pace {
    sampling: Sampling,
    between: u64,
}

impl Pace {
    /// With [`Sampling::Each`] it begins with timed calls only, until it knows how long they take.
    pub(super) fn new(sampling: Sampling) -> Self {
        let between = match sampling {
            Sampling::OneIn(calls) => u64::from(calls.max(1) - 1),
            Sampling::Each(_) => 0,
        };
        Self { sampling, between }
    }

    /// The number of calls to make before the next timed one.
    #[inline]
    pub(super) fn between(&self) -> u64 {
        self.between
    }

    /// The number of calls for which the next timed one stands.
    #[inline]
    pub(super) fn calls(&self) -> u64 {
        self.between + 1
    }

    /// Learns that the calls between the last two timed ones, and one of these, took this time together.
    #[inline]
    pub(super) fn took(&mut self, time: Duration) {
        if let Sampling::Each(period) = self.sampling {
            let calls = self.calls() * nanoseconds(period) / nanoseconds(time).max(1);
            // It grows step by step: a few calls say little about the next thousand.
            self.between = calls.saturating_sub(1).min(2 * self.between + 1).min(MOST_BETWEEN);
        }
    }
}

/// Avoids the 128-bit division to which `as_nanos` leads; suffices for 584 years.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of timed calls among the first `calls`, and the longest run of others, if each takes this long.
    fn timed(sampling: Sampling, calls: u64, each: Duration) -> (u64, u64) {
        let (mut pace, mut made, mut timed, mut longest) = (Pace::new(sampling), 0, 0, 0);
        while made < calls {
            longest = longest.max(pace.between());
            let stretch = pace.calls();
            (made, timed) = (made + stretch, timed + 1);
            pace.took(each * stretch as u32);
        }
        (timed, longest)
    }

    #[test]
    fn one_in_so_many_is_timed_whatever_it_takes() {
        for each in [Duration::from_nanos(1), Duration::from_secs(1)] {
            assert_eq!(timed(Sampling::OneIn(8), 8_000, each), (1_000, 7));
            assert_eq!(timed(Sampling::OneIn(1), 1_000, each), (1_000, 0));
        }
        assert!(!Sampling::one_in(Some(0)).is_valid() && Sampling::one_in(Some(1)).is_valid() && Sampling::one_in(None).is_valid());
    }

    #[test]
    fn fast_calls_are_timed_rarely_and_slow_ones_each() {
        let each = Sampling::Each(Duration::from_micros(100));
        let (rare, between) = timed(each, 1_000_000, Duration::from_nanos(200));
        assert!((2_000..2_050).contains(&rare) && between == 499, "{rare} {between}");
        let (rarest, between) = timed(each, 1_000_000, Duration::from_nanos(1));
        assert!((976..1_000).contains(&rarest) && between == MOST_BETWEEN, "{rarest} {between}");
        assert_eq!(timed(each, 1_000, Duration::from_micros(100)), (1_000, 0));
        assert_eq!(timed(each, 1_000, Duration::from_secs(1)), (1_000, 0));
    }

    #[test]
    fn a_pause_is_forgotten_soon() {
        let mut pace = Pace::new(Sampling::Each(Duration::from_micros(100)));
        let steady = |pace: &mut Pace| {
            (0..12).for_each(|_| pace.took(Duration::from_nanos(100) * pace.calls() as u32));
            pace.between()
        };
        assert_eq!(steady(&mut pace), 999);
        pace.took(Duration::from_millis(200));
        assert_eq!(pace.between(), 0);
        assert_eq!(steady(&mut pace), 999);
        pace.took(Duration::ZERO);
        assert_eq!(pace.between(), MOST_BETWEEN);
    }
}
