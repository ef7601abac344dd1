//! Decides when the cache is on: a small state machine, driven by calls of [`Cache::tick`](crate::Cache::tick) from
//! time to time.
//!
//! NStore (section III-B) names three signals for switching off; switching on again is ours.
//!
//! | from | to | when |
//! |---|---|---|
//! | off | probing | its pause is over (1 s at first, doubled by each vain attempt up to 16 s) |
//! | probing | on | gets are 10 % of all operations, and either one get in ten repeats a key that the same probe saw, or all entries fit |
//! | probing | off: no room | the same, but the memory has no room for a bucket, or could not be had |
//! | probing | off | otherwise, or no gets came |
//! | on | off: write-heavy | gets are less than 10 % of all operations |
//! | on | off: few hits | filled, and it serves less than 10 % of gets |
//! | on | off: misfit | most entries offered are too long for the buckets, which were made for the average entry |
//! | on | off: uniform | filled, serves less than half, and frequencies within buckets are as similar as chance makes them |
//!
//! A probe only remembers hashes in a small table: it costs a get one access to that table, and ends within a few
//! ticks. The last signal requires less than half, because a store that fits into the cache has similar frequencies
//! too.
//!
//! While the cache is on, sampling adapts. It is *dense* (each get updates a frequency or offers an item) until the
//! share of misses has stopped falling from one stretch of ten samples per slot to the next. Then it is *sparse* (one
//! get in 32, the paper's figure). Once misses are a tenth more frequent than usual, the hot items have changed: all
//! frequencies are cut to a sixteenth, and sampling is dense again.
//!
//! Thread safety: the state is behind a lock that only the ticking thread and `Cache::stats` take; gets read only
//! atomics of the cache.

use crate::counters::{Count, Sums};

/// The reason why the cache is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffReason {
    /// The cache has no memory, or there is nothing to gain: one node, links of equal cost, or media as fast as DRAM.
    NotWorthwhile,
    /// No probe has found a reason to switch the cache on yet.
    NotNeededYet,
    /// Gets of existing keys were less than a tenth of all operations.
    WriteHeavy,
    /// The cache served less than a tenth of the gets.
    FewHits,
    /// All items of a bucket were about as hot.
    Uniform,
    /// Most items offered were too long for the buckets: the memory will be divided anew.
    Misfit,
    /// The memory has no room for a bucket, or could not be allocated.
    NoRoom,
}

impl OffReason {
    /// The reason in words, for people.
    pub fn text(self) -> &'static str {
        match self {
            OffReason::NotWorthwhile => "nothing to gain on these nodes and media",
            OffReason::NotNeededYet => "no skewed reads seen yet",
            OffReason::WriteHeavy => "gets are less than a tenth of all operations",
            OffReason::FewHits => "it served less than a tenth of the gets",
            OffReason::Uniform => "all keys are about as hot",
            OffReason::Misfit => "entries have become too long for its buckets",
            OffReason::NoRoom => "its memory is too small, or could not be had",
        }
    }
}

/// Whether the cache is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Gets bypass the cache.
    Off(OffReason),
    /// Gets bypass the cache and show it their keys. Holds the reason why it was off before.
    Probing(OffReason),
    /// The cache answers gets.
    On,
}

impl State {
    /// Name of the state in output.
    pub fn name(self) -> &'static str {
        match self {
            State::Off(_) => "off",
            State::Probing(_) => "probing",
            State::On => "on",
        }
    }

    /// Why the cache is not on.
    pub fn why_off(self) -> Option<&'static str> {
        match self {
            State::Off(reason) | State::Probing(reason) => Some(reason.text()),
            State::On => None,
        }
    }
}

/// One get in so many is a sample once the cache is warm.
pub(crate) const SPARSE: u32 = 32;
const FIRST_PAUSE_MS: u64 = 1_000;
const LONGEST_PAUSE_MS: u64 = 16_000;
/// A probe ends after so many gets.
const PROBE_GETS: u64 = 32_768;
const PROBE_MS: u64 = 200;
const FEWEST_PROBED: u64 = 1_000;
/// Number of operations between two judgements.
const WINDOW: u64 = 65_536;
/// Time after which an earlier failure is forgotten, if the cache is still on.
const PROVEN_MS: u64 = 10_000;
/// Samples per slot over which the share of misses must have stopped falling for the cache to be warm; `STRETCH` in all
/// at least, for small caches.
const STRETCH_PER_SLOT: u64 = 10;
const STRETCH: u64 = 262_144;

/// The state of the ticking thread.
#[derive(Debug)]
pub(crate) struct Control {
    pub state: State,
    pause_ms: u64,
    since_ms: u64,
    /// Counts at the start of the state, counts and writes at that of the window, and counts at that of the stretch for
    /// sampling.
    at_start: Sums,
    window: (Sums, u64),
    stretch: Sums,
    /// Share of misses in the previous stretch, and the usual share in windows.
    previous_misses: Option<f64>,
    usual_misses: Option<f64>,
    warm: bool,
}

/// The observations by which a tick judges.
pub(crate) struct Observed<'a> {
    pub now_ms: u64,
    pub sums: Sums,
    /// Number of the store's writes so far.
    pub writes: u64,
    pub slots: u64,
    /// Whether all entries of the store fit.
    pub all_fit: &'a dyn Fn() -> bool,
    /// Whether frequencies within buckets are similar.
    pub similar: &'a dyn Fn() -> bool,
}

/// What to do after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Stay,
    Probe,
    SwitchOn,
    SwitchOff(OffReason),
    /// Warm: sample sparsely from now on.
    Warm,
    /// The hot items have changed: forget most of the past and sample densely.
    Shifted,
}

impl Control {
    pub fn new() -> Control {
        let none = Sums::default();
        Control {
            state: State::Off(OffReason::NotNeededYet),
            // The first probe comes at once.
            pause_ms: 0,
            since_ms: 0,
            at_start: none,
            window: (none, 0),
            stretch: none,
            previous_misses: None,
            usual_misses: None,
            warm: false,
        }
    }

    /// Enters a state.
    pub fn enter(&mut self, state: State, now_ms: u64, sums: Sums, writes: u64) {
        self.state = state;
        self.since_ms = now_ms;
        self.at_start = sums;
        self.window = (sums, writes);
        self.stretch = sums;
        self.previous_misses = None;
        self.usual_misses = None;
        self.warm = false;
    }

    pub fn tick(&mut self, seen: &Observed<'_>) -> Verdict {
        match self.state {
            State::Off(_) if seen.now_ms.saturating_sub(self.since_ms) >= self.pause_ms => Verdict::Probe,
            State::Off(_) => Verdict::Stay,
            State::Probing(before) => self.judge_probe(seen, before),
            State::On => self.judge_window(seen),
        }
    }

    fn judge_probe(&mut self, seen: &Observed<'_>, before: OffReason) -> Verdict {
        let (counted, elapsed) = (seen.sums.since(&self.at_start), seen.now_ms.saturating_sub(self.since_ms));
        let probed = counted.get(Count::Probed);
        if probed < PROBE_GETS && elapsed < PROBE_MS {
            return Verdict::Stay;
        }
        let few_writes = is_tenth(probed, probed + seen.writes.saturating_sub(self.window.1));
        let skewed = is_tenth(counted.get(Count::Repeated), probed);
        if probed >= FEWEST_PROBED && few_writes && (skewed || (seen.all_fit)()) {
            return Verdict::SwitchOn;
        }
        // An idle store is probed again soon: it has not shown anything.
        if probed < FEWEST_PROBED {
            self.pause_ms = self.pause_ms.max(FIRST_PAUSE_MS);
        } else {
            self.lengthen_pause();
        }
        Verdict::SwitchOff(before)
    }

    /// Ends a probe that found a reason to switch the cache on although it cannot have its memory.
    pub fn give_up(&mut self, now_ms: u64, sums: Sums, writes: u64) {
        self.lengthen_pause();
        self.enter(State::Off(OffReason::NoRoom), now_ms, sums, writes);
    }

    fn lengthen_pause(&mut self) {
        self.pause_ms = (self.pause_ms * 2).clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
    }

    fn judge_window(&mut self, seen: &Observed<'_>) -> Verdict {
        let counted = seen.sums.since(&self.window.0);
        let (gets, writes) = (counted.gets(), seen.writes.saturating_sub(self.window.1));
        if gets + writes < WINDOW {
            return Verdict::Stay;
        }
        self.window = (seen.sums, seen.writes);
        if let Some(reason) = self.reason_to_stop(&counted, writes, seen) {
            self.lengthen_pause();
            return Verdict::SwitchOff(reason);
        }
        if seen.now_ms.saturating_sub(self.since_ms) > PROVEN_MS {
            self.pause_ms = 0;
        }
        self.adapt_sampling(&counted, seen)
    }

    fn reason_to_stop(&self, counted: &Sums, writes: u64, seen: &Observed<'_>) -> Option<OffReason> {
        let (hits, gets) = (counted.hits(), counted.gets());
        if !is_tenth(gets, gets + writes) {
            return Some(OffReason::WriteHeavy);
        }
        if counted.get(Count::Misfits) * 2 > counted.get(Count::Samples) && gets > 0 {
            return Some(OffReason::Misfit);
        }
        // Before the cache could be filled, its hits prove nothing.
        if seen.sums.since(&self.at_start).get(Count::Samples) < 2 * seen.slots {
            return None;
        }
        if !is_tenth(hits, gets) {
            return Some(OffReason::FewHits);
        }
        (hits * 2 < gets && (seen.similar)()).then_some(OffReason::Uniform)
    }

    fn adapt_sampling(&mut self, window: &Sums, seen: &Observed<'_>) -> Verdict {
        let misses = miss_share(window);
        let usual = self.usual_misses.unwrap_or(misses);
        if misses > usual * 1.1 + 0.005 {
            (self.warm, self.previous_misses, self.usual_misses, self.stretch) = (false, None, None, seen.sums);
            return Verdict::Shifted;
        }
        self.usual_misses = Some(usual * 0.75 + misses * 0.25);
        let stretch = seen.sums.since(&self.stretch);
        if self.warm || stretch.get(Count::Samples) < STRETCH.max(STRETCH_PER_SLOT * seen.slots) {
            return Verdict::Stay;
        }
        let misses = miss_share(&stretch);
        self.stretch = seen.sums;
        self.warm = self.previous_misses.is_some_and(|before| misses > before * 0.995);
        self.previous_misses = Some(misses);
        if self.warm { Verdict::Warm } else { Verdict::Stay }
    }
}

fn miss_share(counted: &Sums) -> f64 {
    1.0 - counted.hits() as f64 / counted.gets().max(1) as f64
}

fn is_tenth(part: u64, whole: u64) -> bool {
    part * 10 >= whole
}
