//! Garbage collection: emptying segments so that they can be used again (`docs/adr/0011`, `0014`, `0016`).
//!
//! `docs/adr/0011` has the protocol and the argument why it is safe; `hither_log::pass` has the log's half of it. This
//! module decides when to collect and which segments, and runs the collectors' threads. A [`Collector`] knows how to
//! empty one segment.
//!
//! # When
//!
//! * In the background, once few of the existing segments are free: each node's threads collect that node's segments
//!   with at least `gc_threshold` garbage, best first.
//! * Somewhat earlier, in a store that may grow, if more than half of it is garbage; also when nobody writes
//!   (`docs/adr/0023`).
//! * If the store cannot grow and still less is free: any segment that brings more than it costs.
//! * A write that finds no space collects by itself.
//!
//! # Thread safety
//!
//! Any number of passes run at the same time, over different segments, beside writers, readers, snapshots and
//! checkpoints. Writers wait for the chain collector only while it holds the latches of the entries that it is moving:
//! some at a time, for microseconds. They wait for no latch of the batched collector.
//!
//! # Crash
//!
//! A crash may come at any step. Recovery completes the burials of an interrupted pass of the chain collector and gives
//! its victim back (`mending`). An interrupted pass of the batched collector needs no repair: of a copy and its source,
//! either suffices.

mod batched;
mod chain;
#[cfg(test)]
mod damage_tests;
mod effort;
mod movers;
#[cfg(test)]
mod pair_tests;
mod pairs;
mod puts;
mod space;
mod sweep;
#[cfg(test)]
mod tests;
mod victims;

use crate::error::{ErrorKind, Result};
use crate::options::CollectorKind;
use crate::stats::CollectionStats;
use crate::store::Core;
use hither_log::{Pass, ROOM_BELOW, Tombstones, Wait};
use hither_sync::epoch;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use batched::BatchedCollector;
use chain::ChainCollector;
use effort::{Bill, Effort, Stopwatch};
use movers::Movers;
pub(crate) use space::Search;
use sweep::Due;
use victims::Ahead;

/// A pass must gain at least this share of a segment, however short space is: it costs a write of the rest.
const LEAST_GAIN: f64 = 0.05;
/// The same for a write that would fail otherwise: such a pass is expensive, but the write goes on.
const LAST_GAIN: f64 = 0.01;
/// The same where not even a delete would have room.
const STUCK_GAIN: f64 = 1.0 / STUCK_SHARE as f64;
const STUCK_SHARE: u64 = 400;
/// Victims are freed and handed to the writers after this many passes, or earlier if fewer than [`FEW`] free segments
/// are left to move to. Handing them on waits for all readers and writers. Where writers keep all processors busy, each
/// such wait is also a wait for a processor: some milliseconds, in which the writers run out of space
/// (`docs/adr/0022`).
const PASSES_PER_REUSE: usize = 8;
/// Below this number of segments, room to move to is short.
const FEW: u64 = 3;

/// How one segment is emptied.
pub(crate) trait Collector: Send + Sync {
    /// What it does with tombstones.
    fn tombstones(&self) -> Tombstones;

    /// Called before each round of passes. Every pass in progress then began after the first of these calls.
    fn prepare(&self, _core: &Core) -> Result<()> {
        Ok(())
    }

    /// Whether links lead to every superseded entry that is not dead (`docs/adr/0011`, *reach*).
    fn has_chains(&self) -> bool {
        false
    }

    /// Moves everything in the victim of `pass` that is still needed, and ensures that nothing older can come back.
    /// Records in `emptied` what it did.
    ///
    /// # Errors
    /// If there is no space to move to, or the store has become read-only.
    fn empty(&self, core: &Core, pass: &Pass<'_>, emptied: &mut Emptied) -> Result<()>;
}

/// Returns the collector of a kind. `fresh`: the store is empty.
pub(crate) fn make(kind: CollectorKind, fresh: bool) -> Box<dyn Collector> {
    match kind {
        CollectorKind::Batched => Box::new(BatchedCollector),
        CollectorKind::Chain => Box::new(ChainCollector { chained: AtomicBool::new(fresh) }),
    }
}

/// What a pass did.
#[derive(Debug, Default)]
pub(crate) struct Emptied {
    /// Current entries that were moved.
    pub moved: u64,
    /// Entries moved that only a snapshot showed.
    pub for_snapshots: u64,
    /// Tombstones that were moved.
    pub tombstones: u64,
    /// Copies that came too late: their keys were written meanwhile.
    pub too_late: u64,
    /// Entries known to be garbage, for which no index was asked.
    pub known_garbage: u64,
    /// Current entries by the outcome of their shortcuts: found at once, found in the sibling leaf, not found.
    pub shortcuts: [u64; 3],
    /// Bytes of the copies.
    pub bytes: u64,
    /// Ancestors that were marked dead.
    pub buried: u64,
}

/// What collectors have done since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    pub segments: AtomicU64,
    pub moved_entries: AtomicU64,
    pub moved_for_snapshots: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub buried: AtomicU64,
    pub moved_tombstones: AtomicU64,
    pub too_late: AtomicU64,
    pub known_garbage: AtomicU64,
    pub shortcuts: [AtomicU64; 3],
    pub sweeps: AtomicU64,
    pub swept: AtomicU64,
    pub sweep_nanos: AtomicU64,
    /// Segments that sweeps have looked through.
    pub swept_segments: AtomicU64,
    /// Held by the thread that sweeps. Holds what the last sweep left to do, if it was cut short.
    sweeping: Mutex<Option<sweep::Rest>>,
    /// Number of times that a write found no space and collected by itself.
    pub stalls: AtomicU64,
    /// Time that those writes spent making space, in nanoseconds.
    stall_nanos: AtomicU64,
    /// By node.
    pub efforts: [Effort; hither_log::address::MAX_NODES],
    /// By node.
    movers: [Movers; hither_log::address::MAX_NODES],
    /// Number of writes that were slowed down because space was scarce, and the total delay.
    pub paced_writes: AtomicU64,
    pub paced_nanos: AtomicU64,
    /// Time spent in passes, in nanoseconds.
    pub nanos: AtomicU64,
    /// Victims chosen ahead, by node. One thread at a time chooses, so that two threads do not choose the same ones: no
    /// pass begins while another thread holds the lock.
    ahead: Mutex<[Ahead; hither_log::address::MAX_NODES]>,
}

impl Collections {
    pub fn stats(&self) -> CollectionStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CollectionStats {
            segments: read(&self.segments),
            moved_entries: read(&self.moved_entries),
            moved_for_snapshots: read(&self.moved_for_snapshots),
            moved_bytes: read(&self.moved_bytes),
            buried: read(&self.buried),
            moved_tombstones: read(&self.moved_tombstones),
            too_late: read(&self.too_late),
            known_garbage: read(&self.known_garbage),
            shortcut_hits: read(&self.shortcuts[0]),
            shortcut_sibling_hits: read(&self.shortcuts[1]),
            shortcut_fallbacks: read(&self.shortcuts[2]),
            sweeps: read(&self.sweeps),
            swept: read(&self.swept),
            sweep_ms: read(&self.sweep_nanos) / 1_000_000,
            stalls: read(&self.stalls),
            stall_ms: read(&self.stall_nanos) / 1_000_000,
            paced_writes: read(&self.paced_writes),
            paced_ns: read(&self.paced_nanos),
            elapsed_ms: read(&self.nanos) / 1_000_000,
        }
    }
}

/// How urgently space is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// There is enough.
    None,
    /// Segments that are worth it are to be collected.
    Some,
    /// As `Some`; otherwise the store would grow although more than half of it is garbage.
    Growth,
    /// Whatever brings space is to be collected.
    Any,
    /// Whatever brings any space at all is to be collected, before a write fails.
    Last,
}

/// Whether `end` has come; false if there is none.
pub(crate) fn is_over(end: Option<Instant>) -> bool {
    end.is_some_and(|end| Instant::now() >= end)
}

/// Returns the lock if it can be had before `end`; waits as long as it takes if there is no `end`.
pub(crate) fn lock_until<T>(mutex: &Mutex<T>, end: Option<Instant>) -> Option<MutexGuard<'_, T>> {
    end.map_or_else(|| Some(mutex.lock()), |end| mutex.try_lock_until(end))
}

impl Need {
    fn is_urgent(self) -> bool {
        matches!(self, Need::Any | Need::Last)
    }
}

/// How much a call collects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// One victim: somebody waits, until this time at most.
    Pass(Option<Instant>),
    /// One round of victims.
    Round,
}

impl Turn {
    /// Until when somebody waits.
    fn end(self) -> Option<Instant> {
        match self {
            Turn::Pass(end) => end,
            Turn::Round => None,
        }
    }
}

/// What is to be collected.
struct Wanted {
    /// The node to collect, or any.
    node: Option<usize>,
    need: Need,
    /// Victims must have at least this share of garbage.
    least: f64,
    /// Take victims only as long as the best of all candidates have that share.
    first: bool,
    turn: Turn,
}

impl Wanted {
    /// Whether the caller waits for readers. A write that needs space waits for them at most as long as it waits for
    /// space.
    fn wait(&self) -> Wait {
        match self.turn {
            _ if !self.need.is_urgent() => Wait::No,
            turn => Wait::up_to(turn.end()),
        }
    }
}

/// How much longer copies may be than their sources, in words beside the four that an entry has at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    None,
    /// A segment of moved entries belongs to one keyspace, so an entry of another keyspace has to name its own. The
    /// segment begins with a base version; a much older entry has to write out its version, if a snapshot of that age
    /// forbids to raise it. Either takes one word, behind a word for extensions.
    ByKeyspaceOrVersion,
    /// Both may come together.
    ByBoth,
}

impl Growth {
    /// The most bytes that copies of `bytes` of entries take.
    fn most_of(self, bytes: u64) -> u64 {
        let words = match self {
            Growth::None => 0,
            Growth::ByKeyspaceOrVersion => 2,
            Growth::ByBoth => 3,
        };
        bytes + bytes * words / 4
    }
}

impl Core {
    /// Collects the best victims of `node`, or of any node; where one is wanted, perhaps one that an earlier choice has
    /// left behind. Returns the number of segments freed. Call outside epoch pins.
    pub fn collect(&self, node: Option<usize>, need: Need, turn: Turn) -> Result<usize> {
        self.committer.ensure_writable()?;
        let least = match need {
            Need::Last if node.is_some_and(|node| self.log.deletes_have_nothing(node)) => STUCK_GAIN,
            Need::Last => LAST_GAIN,
            Need::Any => LEAST_GAIN,
            Need::Growth | Need::Some | Need::None => self.gc_threshold,
        };
        let due = match need {
            Need::Last => Due::Last,
            Need::Any => Due::Urgent,
            Need::Growth | Need::Some | Need::None => Due::WithTime,
        };
        self.sweep_if_due(node, due, turn)?;
        // While there is time, a segment that gains by waiting waits: young segments of hot keys soon lose more
        // entries.
        let first = matches!(need, Need::None | Need::Some) && node.is_some();
        // Opened only now: a sweep has a bill of its own, and what is collected within the sweep has another.
        let mut bill = Bill::open(&self.collections.efforts, node.unwrap_or(0));
        let started = Instant::now();
        let freed = self.collect_from(&Wanted { node, need, least, first, turn }, &mut bill);
        if let (Some(node), Need::Growth) = (node, need) {
            self.log.has_collected_first(node, *freed.as_ref().unwrap_or(&0) as u64, started.elapsed());
        }
        freed
    }

    /// Collects, by hand, a round of the best victims of any node of which at least `least` is garbage. Returns the
    /// number of segments freed. Call outside epoch pins.
    pub fn collect_worth(&self, least: f64) -> Result<usize> {
        self.committer.ensure_writable()?;
        let mut bill = Bill::open(&self.collections.efforts, 0);
        self.collect_from(&Wanted { node: None, need: Need::Some, least, first: false, turn: Turn::Round }, &mut bill)
    }

    fn collect_from(&self, wanted: &Wanted, bill: &mut Bill<'_>) -> Result<usize> {
        self.heeding_failed_syncs(self.try_collect(wanted, bill))
    }

    fn try_collect(&self, wanted: &Wanted, bill: &mut Bill<'_>) -> Result<usize> {
        let growth = self.growth_of_copies();
        let (mut freed, mut damage) = (0, None);
        let mut emptied = Vec::new();
        for pass in self.begin_passes(wanted, growth)? {
            let node = pass.node();
            bill.turn_to(node);
            match self.run_pass(&pass, growth, wanted.turn.end()) {
                Ok(true) => emptied.push(pass),
                // No room to move to: the space of freed victims may be had once readers have left.
                Ok(false) => {}
                Err(error) if error.kind().is_lack_of_space() || error.kind() == ErrorKind::TooLarge => {}
                // The damaged victim stays where it is; the damage is in the statistics.
                Err(error) if error.kind() == ErrorKind::Damaged => damage = damage.or(Some(error)),
                Err(error) => return Err(error),
            }
            // Early where the next pass may need the space.
            let is_short = || self.log.room_to_move(node).fresh < FEW * self.log.pool(node).segment_bytes();
            if emptied.len() == PASSES_PER_REUSE || is_short() {
                freed += self.free_victims(std::mem::take(&mut emptied))?;
                self.reuse_what_can_be(wanted.wait())?;
            }
        }
        freed += self.free_victims(emptied)?;
        self.reuse_what_can_be(wanted.wait())?;
        // A collection by hand reports the damage. A write that needs space has nothing to do with it.
        match damage.filter(|_| wanted.node.is_none()) {
            Some(damage) => Err(damage),
            None => Ok(freed),
        }
    }

    /// Frees victims that were emptied; returns how many there were.
    fn free_victims(&self, emptied: Vec<Pass<'_>>) -> Result<usize> {
        let count = emptied.len();
        for pass in &emptied {
            self.collections.efforts[pass.node()].count(pass.bytes());
        }
        self.log.free_victims(emptied, &self.make_durable()).map_err(|error| self.explain(error))?;
        self.collections.segments.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Returns how much longer copies of the passes to come may be. Lets copies have higher versions where old ones
    /// would have to be written out (`docs/adr/0024`).
    fn growth_of_copies(&self) -> Growth {
        // Segments that are opened meanwhile will have no higher base than this.
        let enough = self.log.clock.upper_bound().saturating_sub(ROOM_BELOW / 2);
        let is_enough = |version: u64| version >= enough;
        if !is_enough(self.log.settled_for_copies()) && self.snapshots.lowest_version().is_none_or(is_enough) {
            let stable = self.log.clock.stable();
            let shown = self.snapshots.lowest_version().unwrap_or(stable);
            self.log.may_raise_versions(stable.min(shown));
        }
        let writes_versions = !is_enough(self.log.settled_for_copies());
        match (self.keyspaces.read().len() > 1, writes_versions) {
            (false, false) => Growth::None,
            (true, true) => Growth::ByBoth,
            _ => Growth::ByKeyspaceOrVersion,
        }
    }

    /// Empties the victim. Returns false, with nothing done, if there is no room for what has to be moved, or none
    /// before `end` beside other passes.
    fn run_pass(&self, pass: &Pass<'_>, growth: Growth, end: Option<Instant>) -> Result<bool> {
        debug_assert!(!epoch::is_pinned(), "a pass waits for readers and writers");
        let node = pass.node();
        let _permit = match growth.most_of(pass.bytes_to_move()) {
            0 => None,
            most => {
                let gap = self.log.pool(node).segment_bytes();
                match self.collections.movers[node].enter(most, gap, end, || self.log.room_to_move(node)) {
                    None => return Ok(false),
                    permit => permit,
                }
            }
        };
        let _time = Stopwatch::start(&self.collections.nanos);
        let mut emptied = Emptied::default();
        let outcome = self.collector.empty(self, pass, &mut emptied);
        let done = &self.collections;
        done.moved_entries.fetch_add(emptied.moved + emptied.for_snapshots, Ordering::Relaxed);
        done.moved_for_snapshots.fetch_add(emptied.for_snapshots, Ordering::Relaxed);
        done.moved_bytes.fetch_add(emptied.bytes, Ordering::Relaxed);
        done.buried.fetch_add(emptied.buried, Ordering::Relaxed);
        done.moved_tombstones.fetch_add(emptied.tombstones, Ordering::Relaxed);
        done.too_late.fetch_add(emptied.too_late, Ordering::Relaxed);
        done.known_garbage.fetch_add(emptied.known_garbage, Ordering::Relaxed);
        for (counter, count) in done.shortcuts.iter().zip(emptied.shortcuts) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
        if let Err(damage) = &outcome
            && damage.kind() == ErrorKind::Damaged
        {
            self.damage.lock().push(damage.finding());
        }
        outcome.map(|()| true)
    }
}
