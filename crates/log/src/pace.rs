//! Pacing: threads owe pauses for space that they take while it is scarce, so that writers slow down in small steps
//! instead of running into a full store (`docs/adr/0016`).
//!
//! A thread that takes a chunk for puts while a pool has fewer free segments than its watermark owes a pause for each
//! byte taken. The nearer the pool is to its reserve, the longer the pause, but never more than a millisecond for one
//! step. The debt belongs to the thread. The layer above pays it when the write is complete: no thread sleeps inside a
//! writer section, with a latch or with a writer slot.
//!
//! While a pool that may grow is collected instead, the room between the point where collectors begin and the point
//! where it grows takes the place of the watermark (`docs/adr/0023`).
//!
//! Deletes and collectors owe nothing: they make space.

use crate::log::{Log, Room};
use crate::node::NodePool;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest pause for one step, in nanoseconds.
const MOST_NS: u64 = 1_000_000;
/// Shorter pauses are saved up: a sleep takes some fifty microseconds longer than it should, and several hundred where
/// processors are busy. The next pauses are shortened by the excess.
const LEAST_NS: i64 = 50_000;
/// Pause for each byte where only the reserve is left: 250 MB/s for a writer.
const NS_PER_BYTE: u64 = 4;

/// By how many segments a collector is ahead of growth: a quarter of the existing ones within these bounds.
const LEAST_LEAD: u64 = 2;
const MOST_LEAD: u64 = 16;

thread_local! {
    /// Nanoseconds. Negative if the thread has paused for longer than it owed.
    static OWED_NS: Cell<i64> = const { Cell::new(0) };
}

/// Whether this thread owes a pause that is worth a sleep.
#[inline(always)]
pub fn is_owed() -> bool {
    OWED_NS.get() >= LEAST_NS
}

/// Pauses for as long as this thread owes. Returns how long the pause was.
pub fn pay() -> Duration {
    let started = Instant::now();
    std::thread::sleep(Duration::from_nanos(OWED_NS.get().max(0) as u64));
    let took = started.elapsed();
    paid(took);
    took
}

fn paid(pause: Duration) {
    let nanos = i64::try_from(pause.as_nanos()).unwrap_or(i64::MAX);
    OWED_NS.set(OWED_NS.get().saturating_sub(nanos).max(-(MOST_NS as i64)));
}

/// The pause for taking `bytes` while `left` segments, free or still to be added, are in a pool.
fn pause_ns(bytes: u64, ns_per_byte: u64, left: u64, reserve: u64, watermark: u64) -> u64 {
    let span = watermark.saturating_sub(reserve).max(1);
    let missing = watermark.saturating_sub(left).min(span);
    // Quadratic, so that pauses begin gently.
    let [bytes, ns_per_byte, missing, span] = [bytes, ns_per_byte, missing, span].map(u128::from);
    (bytes * ns_per_byte * missing * missing / (span * span)).min(MOST_NS.into()) as u64
}

impl Room {
    /// With fewer free segments, collectors look for garbage that is worth collecting. Garbage cannot gather in free
    /// space: the less free space is kept, the emptier victims are. So collectors begin late, with no more space than
    /// they need to stay ahead of the writers; the bell wakes them then.
    pub fn early(&self) -> u64 {
        self.existing / 32 + self.reserve
    }

    /// With fewer free segments, collectors look for garbage that can replace growth, which begins at the reserve. They
    /// begin early enough to have time. 0 in a pool that cannot grow.
    pub fn before_growth(&self) -> u64 {
        match self.growth {
            0 => 0,
            _ => (self.existing / 4).clamp(LEAST_LEAD, MOST_LEAD) + self.early(),
        }
    }

    /// With fewer segments, free or still to be added, writers are paced and collectors take any victim that brings
    /// space.
    pub fn watermark(&self) -> u64 {
        (self.limit / 256).max(4) + self.reserve
    }

    /// Free segments and those still to be added.
    pub fn left(&self) -> u64 {
        self.free + self.growth
    }
}

impl Log {
    /// Paces writers from now on, on nodes where a thread collects in the background.
    pub fn pace_writers(&self) {
        self.paced.store(true, Ordering::Relaxed);
    }

    /// Runs `f`, which collects on `node` from time to time in the background.
    pub fn while_collecting(&self, node: usize, f: impl FnOnce()) {
        self.pools[node].collecting.during(f);
    }

    /// Whether a thread collects on `node` in the background.
    pub fn has_collectors(&self, node: usize) -> bool {
        self.pools[node].collecting.any()
    }
}

impl NodePool {
    /// Notes the pause that the calling thread owes for `bytes` that it takes for puts.
    pub fn owe_pause(&self, log: &Log, bytes: u64) {
        if !log.paced.load(Ordering::Relaxed) || !log.has_collectors(self.node as usize) {
            return;
        }
        let room = log.room(self.node as usize);
        let owed = if room.growth > 0 && self.collected_first.load(Ordering::Relaxed) {
            // A writer runs at half of a collector's present speed, so that the collector stays ahead.
            let ns_per_byte = NS_PER_BYTE.max(2 * self.collection_ns_per_byte.load(Ordering::Relaxed));
            pause_ns(bytes, ns_per_byte, room.free, room.reserve, room.before_growth())
        } else {
            pause_ns(bytes, NS_PER_BYTE, room.left(), room.reserve, room.watermark())
        };
        if owed > 0 {
            OWED_NS.set((OWED_NS.get() + owed as i64).min(MOST_NS as i64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_in_small_steps_towards_the_reserve() {
        let pauses: Vec<u64> = (0..=12).rev().map(|left| pause_ns(32 << 10, NS_PER_BYTE, left, 3, 11)).collect();
        assert_eq!(pauses[..2], [0, 0], "none above the watermark, {pauses:?}");
        assert!(pauses[2..10].windows(2).all(|pair| pair[0] < pair[1]), "{pauses:?}");
        assert!(pauses[2] * 20 < pauses[9] && pauses[9..].iter().all(|pause| *pause == pauses[9]), "{pauses:?}");
        assert_eq!(pause_ns(1 << 30, NS_PER_BYTE, 0, 3, 11), MOST_NS, "however much is taken");
        assert_eq!(pause_ns(512 << 20, NS_PER_BYTE, 0, 3, 1 << 17), MOST_NS, "of however large a pool");
    }

    #[test]
    fn a_collector_is_ahead_of_growth_in_stores_of_any_size_that_may_grow() {
        let room = |existing: u64, growth| Room { free: 0, existing, growth, limit: existing + growth, reserve: 9.min(existing / 2) };
        for existing in [8, 16, 32, 64, 1024, 8192] {
            let room = room(existing, 1);
            let lead = room.before_growth() - room.reserve;
            assert!((2..=existing / 2).contains(&lead) && room.before_growth() > room.early(), "{lead} of {existing}");
        }
        assert_eq!(room(64, 0).before_growth(), 0, "there is no growth to be ahead of");
    }

    /// Regression: writers were paced for ever, also where the only collector had ended by a panic or had never begun.
    #[test]
    fn nobody_is_paced_where_nobody_collects_any_more() {
        let log = Log::for_tests(&hither_pmem::CreateOptions::new(8 << 20));
        log.pace_writers();
        let owed = || {
            OWED_NS.set(0);
            let pool = &log.pools[0];
            pool.collected_first.store(true, Ordering::Relaxed);
            (0..4096).for_each(|_| pool.owe_pause(&log, 1 << 30));
            OWED_NS.get()
        };
        assert_eq!(owed(), 0, "nobody has begun");
        let collects = std::panic::AssertUnwindSafe(|| log.while_collecting(0, || panic!("{} ns", owed())));
        let panic = std::panic::catch_unwind(collects).unwrap_err();
        assert_ne!(panic.downcast_ref::<String>().unwrap(), "0 ns", "it is as full as can be");
        assert!(owed() == 0 && !log.has_collectors(0));
    }

    #[test]
    fn a_debt_is_paid_once() {
        OWED_NS.set(LEAST_NS);
        assert!(is_owed());
        assert!(pay() >= Duration::from_nanos(LEAST_NS as u64));
        assert!(!is_owed());
    }

    #[test]
    fn what_a_pause_took_too_long_is_owed_less_later() {
        OWED_NS.set(LEAST_NS);
        paid(Duration::from_nanos(3 * LEAST_NS as u64));
        assert_eq!(OWED_NS.get(), -2 * LEAST_NS);
        paid(Duration::from_secs(3600));
        assert_eq!(OWED_NS.get(), -(MOST_NS as i64), "one that took very long is not remembered for ever");
    }
}
