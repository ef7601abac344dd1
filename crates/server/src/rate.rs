//! The recent number of commands per second.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Instant;

/// Samples kept; the first thread takes one in each tick.
const KEPT: usize = 16;

/// Samples of the number of commands run.
#[derive(Default)]
pub struct Rate {
    /// When each sample was taken, and how many commands had run; the oldest first.
    samples: Mutex<VecDeque<(Instant, u64)>>,
}

impl Rate {
    /// Adds a sample: `total` commands have run by now.
    pub fn note(&self, now: Instant, total: u64) {
        let mut samples = self.samples.lock();
        if samples.back().is_some_and(|(_, before)| *before > total) {
            // The counters were reset.
            samples.clear();
        }
        samples.push_back((now, total));
        if samples.len() > KEPT {
            samples.pop_front();
        }
    }

    /// Commands per second between the oldest sample and the newest.
    pub fn per_second(&self) -> u64 {
        let samples = self.samples.lock();
        let (Some((from, before)), Some((to, after))) = (samples.front(), samples.back()) else { return 0 };
        let ms = to.saturating_duration_since(*from).as_millis() as u64;
        (after - before) * 1000 / ms.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_rate_is_that_of_the_samples() {
        let (rate, start) = (Rate::default(), Instant::now());
        let note = |ms, total| {
            rate.note(start + Duration::from_millis(ms), total);
            rate.per_second()
        };
        assert_eq!(rate.per_second(), 0);
        assert_eq!(note(0, 1000), 0);
        assert_eq!(note(100, 1050), 500);
        assert_eq!(note(200, 1050), 250);
        assert_eq!(note(300, 10), 0, "they were reset");
        assert!((4..100).all(|tick| note(100 * tick, 20) <= 100));
        assert_eq!((rate.per_second(), rate.samples.lock().len()), (0, KEPT), "old ones are forgotten");
    }
}
