//! The latency monitor: events that took at least `latency-monitor-threshold` milliseconds, as in Redis.
//!
//! Events: `command` and `fast-command` (the run time of a command), `durability-wait` (replies that waited for a
//! sync), `loop` (one round of a thread, without its wait for events). A threshold of 0 turns the monitor off. Memory:
//! [`SAMPLES`] samples of each event.

use crate::shared::now_ms;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Samples kept of an event, at most one per second.
pub const SAMPLES: usize = 160;

/// The samples of one event.
#[derive(Clone, Default)]
pub struct Samples {
    /// Seconds since 1970, and the longest time of that second in milliseconds; the oldest first.
    pub newest: VecDeque<(u64, u64)>,
    /// The longest time ever, in milliseconds.
    pub longest_ms: u64,
    /// How often the event took too long.
    pub count: u64,
}

/// The latency monitor: its threshold, and samples by event.
#[derive(Default)]
pub struct Monitor {
    /// Threshold in milliseconds; 0: off.
    pub threshold_ms: AtomicU64,
    events: Mutex<BTreeMap<&'static str, Samples>>,
}

impl Monitor {
    /// A monitor with this threshold.
    pub fn new(threshold_ms: u64) -> Monitor {
        Monitor { threshold_ms: AtomicU64::new(threshold_ms), events: Mutex::default() }
    }

    /// Notes an event, if it took too long.
    #[inline]
    pub fn note(&self, event: &'static str, took: Duration) {
        let threshold = self.threshold_ms.load(Ordering::Relaxed);
        if threshold != 0 && took.as_millis() as u64 >= threshold {
            self.add(event, now_ms() / 1000, took.as_millis() as u64);
        }
    }

    /// As [`Monitor::note`], for an event that ends now; reads the clock only if the monitor is on.
    #[inline]
    pub fn note_since(&self, event: &'static str, began: Instant) {
        if self.threshold_ms.load(Ordering::Relaxed) != 0 {
            self.note(event, began.elapsed());
        }
    }

    #[cold]
    fn add(&self, event: &'static str, at_s: u64, ms: u64) {
        let mut events = self.events.lock();
        let samples = events.entry(event).or_default();
        samples.longest_ms = samples.longest_ms.max(ms);
        samples.count += 1;
        match samples.newest.back_mut() {
            Some((second, longest)) if *second == at_s => *longest = ms.max(*longest),
            _ => samples.newest.push_back((at_s, ms)),
        }
        if samples.newest.len() > SAMPLES {
            samples.newest.pop_front();
        }
    }

    /// All events that have been noted, with their samples.
    pub fn events(&self) -> Vec<(&'static str, Samples)> {
        self.events.lock().iter().map(|(event, samples)| (*event, samples.clone())).collect()
    }

    /// Drops the events for which `asked` is true; returns how many.
    pub fn reset(&self, asked: impl Fn(&str) -> bool) -> usize {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|event, _| !asked(event));
        before - events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_kept_by_the_second_and_bounded() {
        let monitor = Monitor::default();
        monitor.note("command", Duration::from_secs(9));
        assert!(monitor.events().is_empty(), "it is off");
        for second in 0..1000 {
            monitor.add("command", second, second % 7);
            monitor.add("command", second, 3);
        }
        let samples = monitor.events().remove(0).1;
        assert_eq!((samples.newest.len(), samples.longest_ms, samples.count), (SAMPLES, 6, 2000));
        assert_eq!(samples.newest.back(), Some(&(999, 5)));
        monitor.threshold_ms.store(5, Ordering::Relaxed);
        monitor.note("loop", Duration::from_millis(4));
        monitor.note("loop", Duration::from_millis(5));
        assert_eq!(monitor.events().len(), 2);
        assert_eq!(monitor.reset(|event| event == "loop"), 1);
        assert_eq!(monitor.reset(|_| true), 1);
    }
}
