//! Recognises hot keys: their entries get segments of their own, so that most of such a segment is garbage soon, and
//! cold entries are copied less often (Pacman, section 3.4).
//!
//! A small sketch counts a sample of the writes: each key has two counters, of which the lower one decides. All
//! counters are halved from time to time, so the sketch follows a shift by itself. It switches itself off while few
//! writes are hot, as on uniform load, but goes on counting.
//!
//! # Thread safety
//!
//! Counters are changed without a locked instruction, so some samples get lost. A wrong answer only means another
//! segment.

use hither_sync::Padded;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

/// Counters in each of two rows: 8 KiB in all, which stay in the nearest cache.
const ROW: usize = 4096;
/// One version in so many is counted. Seldom, because the counters' lines move from processor to processor.
pub(crate) const SAMPLE_EVERY: u64 = 64;
/// Number of samples after which counters are halved: two for each counter of a row.
const WINDOW: u32 = 2 * ROW as u32;
/// A key is hot from this count on: twice the most that a counter has on average.
const HOT: u8 = 8;
/// The sketch is on while at least one sample in so many is hot.
const LEAST_SHARE: u32 = 10;

/// The sketch of one pool.
pub(crate) struct HotSet {
    /// Two rows. Of a fixed length: no index of [`HotSet::counters`] needs a check.
    counters: Box<[AtomicU8; 2 * ROW]>,
    samples: AtomicU32,
    hot: AtomicU32,
    /// On cache lines of its own: every write reads it.
    on: Padded<AtomicBool>,
}

impl HotSet {
    pub fn new() -> HotSet {
        let counters = Box::new([const { AtomicU8::new(0) }; 2 * ROW]);
        HotSet { counters, samples: AtomicU32::new(0), hot: AtomicU32::new(0), on: Padded(AtomicBool::new(false)) }
    }

    #[inline(always)]
    fn counters(&self, hash: u64) -> [&AtomicU8; 2] {
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [&self.counters[(mixed >> 52) as usize], &self.counters[ROW + (mixed >> 40) as usize % ROW]]
    }

    /// Whether both of the key's counters say so: the lower one is the better estimate. For most keys the first one does
    /// not.
    #[inline(always)]
    fn is_often(&self, hash: u64) -> bool {
        self.counters(hash).iter().all(|counter| counter.load(Relaxed) >= HOT)
    }

    /// Whether the entry should go to a segment for hot entries.
    #[inline(always)]
    pub fn is_hot(&self, hash: u64) -> bool {
        self.on.0.load(Relaxed) && self.is_often(hash)
    }

    /// Counts a write.
    #[cold]
    pub fn sample(&self, hash: u64) {
        if self.is_often(hash) {
            self.hot.store(self.hot.load(Relaxed) + 1, Relaxed);
        }
        for counter in self.counters(hash) {
            counter.store(counter.load(Relaxed).saturating_add(1), Relaxed);
        }
        let samples = self.samples.load(Relaxed) + 1;
        self.samples.store(samples, Relaxed);
        if samples >= WINDOW {
            self.end_window(samples);
        }
    }

    fn end_window(&self, samples: u32) {
        self.samples.store(0, Relaxed);
        let hot = self.hot.load(Relaxed);
        self.hot.store(0, Relaxed);
        self.on.0.store(hot * LEAST_SHARE >= samples, Relaxed);
        self.counters.iter().for_each(|counter| counter.store(counter.load(Relaxed) / 2, Relaxed));
    }

    /// Whether hot entries are separated now.
    pub fn is_on(&self) -> bool {
        self.on.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts `windows` windows of samples. If `skewed`, half of them are of eight keys from `first` on, the others
    /// uniform.
    fn load(set: &HotSet, windows: u32, skewed: bool, first: u64) {
        let mut random = 1u64;
        for _ in 0..windows * WINDOW {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = if skewed && random >> 33 & 1 == 0 { first + (random >> 40) % 8 } else { random >> 20 };
            set.sample(key.wrapping_mul(0xd6e8_feb8_6659_fd93));
        }
    }

    fn hot_among_eight(set: &HotSet, first: u64) -> usize {
        (first..first + 8).filter(|key| set.is_hot(key.wrapping_mul(0xd6e8_feb8_6659_fd93))).count()
    }

    #[test]
    fn it_is_on_for_skew_and_off_for_uniform_load_and_follows_a_shift() {
        let set = HotSet::new();
        load(&set, 4, false, 0);
        assert!(!set.is_on(), "uniform");
        load(&set, 3, true, 0);
        assert!(set.is_on() && hot_among_eight(&set, 0) == 8);
        let others = (1000..2000u64).filter(|key| set.is_hot(key.wrapping_mul(0xd6e8_feb8_6659_fd93))).count();
        assert!(others < 50, "{others} of 1000 cold keys are taken for hot ones");
        load(&set, 10, true, 100);
        assert!(hot_among_eight(&set, 100) == 8 && hot_among_eight(&set, 0) < 8, "the old ones cool down");
        load(&set, 12, false, 0);
        assert!(!set.is_on(), "uniform again");
    }
}
