//! Background work: commits that nobody waits for, growth of pools, sealing, collection and reuse of segments, sweeping
//! of expired keys, checkpoints of the indexes, reads for scans of other nodes.
//!
//! Thread safety: each kind of work has a thread or threads of its own, which use the store's [`Core`] like any other
//! caller. Crash: nothing here is on media; the modules that do the work say what a crash leaves.

use crate::collector::{Need, Turn};
use crate::courtesy::Courtesy;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::store::Core;
use crate::sweeps::{LAG_REST, LONGEST_SEARCH, SWEEP_REST};
use hither_log::{TakeBack, Wait};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the maintenance thread looks for work.
const TICK: Duration = Duration::from_millis(20);
/// The same if nothing was written since the last look, and nothing was left to do: a store that is merely open hardly
/// wakes the processor.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// How often the thread for growth looks whether it is time to end; it is woken for that, too.
const READY_TICK: Duration = Duration::from_secs(1);
/// Parts of rest for one part of verification, which so takes a fifth of a processor: others want that, and the
/// memory's bandwidth, too. What is read meanwhile is verified at once.
const VERIFICATION_REST: u32 = 4;
/// If no segment was opened for this long, nobody writes, or so little that collectors have time.
const LULL: Duration = Duration::from_secs(1);
/// How often the time is persisted, as long as somebody is told that something has expired.
const CLOCK_EVERY: Duration = Duration::from_secs(1);
/// Pause between sweeps that leave nothing behind.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The background threads of a store.
pub(crate) struct Maintenance {
    stop: Arc<Stop>,
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    flag: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps; returns true if it is time to end.
    fn wait(&self, duration: Duration) -> bool {
        let mut guard = self.lock.lock();
        if !self.flag.load(Ordering::Acquire) {
            self.changed.wait_for(&mut guard, duration);
        }
        self.flag.load(Ordering::Acquire)
    }

    /// Sets the flag, with the lock held: otherwise a thread that has looked at the flag and does not sleep yet would
    /// miss it, and sleep on.
    fn set(&self) {
        let _held = self.lock.lock();
        self.flag.store(true, Ordering::Release);
        self.changed.notify_all();
    }
}

/// How long a thread rests before it looks for work again.
#[derive(Default)]
struct Rest {
    /// Version up to which the thread knows of writes.
    seen: u64,
}

impl Rest {
    /// Returns how long to rest. `busy`: there is something to do that comes without writes.
    fn next(&mut self, core: &Core, busy: bool) -> Duration {
        let now = core.log.clock.upper_bound();
        let is_idle = std::mem::replace(&mut self.seen, now) == now;
        if is_idle && !busy { IDLE_TICK } else { TICK }
    }
}

impl Maintenance {
    /// Starts the threads, among them `collectors` for each node, and `readers` for each node if scans are delegated.
    ///
    /// # Errors
    /// If the thread that commits cannot be started, at a level that nobody else keeps.
    pub fn start(core: &Arc<Core>, collectors: usize, readers: usize) -> Result<Maintenance> {
        let mut starting = Maintenance { stop: Arc::default(), core: core.clone(), threads: Vec::new() };
        if core.techniques.pacing {
            core.log.pace_writers();
        }
        let committing = starting.spawn("hither-commit", |core, stop| core.committer.while_in_background(|| run_commits(core, stop)));
        if let Err(error) = committing {
            core.committer.note_alone();
            let wants_syncs = (core.needs_sync || core.log.needs_flush()) && !core.committer.refuses();
            if let (true, Durability::Interval(_)) = (wants_syncs, core.durability) {
                return Err(Error::Io(format!(
                    "the thread that makes writes durable at each interval cannot be started ({error}); allow more threads (ulimit -u), or open the store at the level sync or process"
                )));
            }
        }
        starting.spawn_if_possible("hither-maintain", run_maintenance);
        starting.spawn_if_possible("hither-expire", |core, stop| core.expiring.during(|| run_expiry(core, stop)));
        starting.spawn_if_possible("hither-clock", run_clock);
        if core.log.has_unverified() {
            starting.spawn_if_possible("hither-verify", run_verification);
        }
        if core.checkpoints.enabled() {
            starting.spawn_if_possible("hither-checkpoint", run_checkpoints);
        }
        for node in 0..core.log.nodes() {
            starting.spawn_if_possible("hither-ready", move |core, stop| run_making_ready(core, stop, node));
            for number in 0..collectors {
                starting.spawn_if_possible("hither-collect", move |core, stop| {
                    core.log.while_collecting(node, || run_collector(core, stop, node, (number, collectors)));
                });
            }
        }
        for node in 0..core.delegation.nodes() {
            for _ in 0..readers {
                starting.spawn_if_possible("hither-read", move |core, _| core.delegation.serve(&core.log, node));
            }
        }
        Ok(starting)
    }

    /// Starts a thread. Without it (limits) the store still works: writers collect when the store is full, a caller
    /// that asks for a commit makes it, scans read by themselves.
    fn spawn(&mut self, name: &str, run: impl FnOnce(&Core, &Stop) + Send + 'static) -> std::io::Result<()> {
        let (core, stop) = (self.core.clone(), self.stop.clone());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&core, &stop))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Starts a thread that others can stand in for: see [`Maintenance::spawn`].
    fn spawn_if_possible(&mut self, name: &str, run: impl FnOnce(&Core, &Stop) + Send + 'static) {
        let _ = self.spawn(name, run);
    }

    /// Whether the calling thread is one of these threads.
    pub fn runs_here(&self) -> bool {
        let here = std::thread::current().id();
        self.threads.iter().any(|thread| thread.thread().id() == here)
    }

    /// Tells the threads to end, without waiting for them.
    pub fn begin_stop(&self) {
        self.stop.set();
        for node in 0..self.core.log.nodes() {
            self.core.log.few_free(node).ring();
            self.core.log.needs_more(node).ring();
        }
        *self.core.committer.wake_lock.lock() = true;
        self.core.committer.wake.notify_all();
        self.core.delegation.close();
    }

    /// Ends the threads. Must not be called by one of them.
    pub fn stop(self) {
        self.begin_stop();
        for thread in self.threads {
            // A panic of the thread was printed; the store itself is consistent.
            let _ = thread.join();
        }
    }
}

fn run_commits(core: &Core, stop: &Stop) {
    let committer = &core.committer;
    let interval = match core.durability {
        Durability::Interval(interval) => Some(interval.max(Duration::from_millis(1))),
        _ => None,
    };
    let (mut courtesy, mut began) = (Courtesy::default(), Instant::now());
    loop {
        {
            let mut wanted = committer.wake_lock.lock();
            if !*wanted {
                committer.wake.wait_for(&mut wanted, rest_of(interval, began.elapsed()));
            }
            *wanted = false;
        }
        began = Instant::now();
        committer.call_back();
        if stop.flag.load(Ordering::Acquire) {
            return;
        }
        let version = match interval {
            Some(_) => core.log.clock.upper_bound(),
            None => {
                if committer.requested.load(Ordering::Acquire) > committer.durable() {
                    courtesy.let_others_write();
                }
                committer.requested.load(Ordering::Acquire)
            }
        };
        if version > committer.durable() && (interval.is_none() || core.log.clock.upper_bound() > committer.durable() + 1) {
            // An error poisons the store and reaches every waiter; this thread has nobody to report it to.
            let _ = committer.commit(&core.log, version.saturating_sub(u64::from(interval.is_some())));
        }
    }
}

/// Returns how long the thread that commits waits to be called, when its last round began `since` ago. An interval
/// counts from there: what is written while a sync is under way waits for the next.
fn rest_of(interval: Option<Duration>, since: Duration) -> Duration {
    interval.map_or(Duration::from_millis(100), |interval| interval.saturating_sub(since))
}

/// Verifies what recovery did not read, segment by segment, finds out what is garbage there, and ends. Damage is in the
/// statistics, and is reported to whoever reads it.
fn run_verification(core: &Core, stop: &Stop) {
    run_paced(VERIFICATION_REST, || core.verify_next(), |pause| stop.wait(pause));
}

/// Works piece by piece, until `work` returns false because nothing is left, or `pause` returns true because it is time
/// to end. Rests `rest` times as long as each piece took.
fn run_paced(rest: u32, mut work: impl FnMut() -> bool, mut pause: impl FnMut(Duration) -> bool) {
    loop {
        let started = Instant::now();
        if !work() || pause(started.elapsed() * rest) {
            return;
        }
    }
}

/// Makes segments of a node ready ahead of writers, so that writers need not wait for that.
fn run_making_ready(core: &Core, stop: &Stop, node: usize) {
    let mut heard = 0;
    while !stop.flag.load(Ordering::Acquire) {
        // Only if somebody writes: a store that is merely open stays as it is.
        let called = core.log.needs_more(node).wait(&mut heard, READY_TICK);
        if called && !stop.flag.load(Ordering::Acquire) && core.committer.ensure_writable().is_ok() {
            // A writer that needs the segments reports an error to its caller.
            let _ = core.heeding_failed_syncs(core.log.make_ready(node));
        }
    }
}

/// Collects on one node, from a thread of that node, so that copies are local writes. `place`: the number of this
/// collector, and how many the node has.
fn run_collector(core: &Core, stop: &Stop, node: usize, place: (usize, usize)) {
    // A node without processors cannot run a thread; its segments are collected from wherever this one runs.
    let _ = core.log.topology().pin_current_thread_to_node(node as u32);
    let (mut heard, mut lull) = (0, Lull::begin(core.log.openings(node)));
    let (mut rest, mut is_needed) = (Rest::default(), false);
    loop {
        core.log.few_free(node).wait(&mut heard, rest.next(core, is_needed));
        if place.0 == 0 && lull.has_come(core.log.openings(node)) {
            lull.is_used = !collect_in_a_lull(core, node);
        }
        let mut freed = 1;
        while freed > 0 {
            if stop.flag.load(Ordering::Acquire) {
                return;
            }
            let need = core.need_of_collector(node, place.0, place.1);
            is_needed = need != Need::None;
            // Errors come from the medium and reach the next write through the committer or the log.
            let collect = || core.seal(TakeBack::Idle).and_then(|()| core.collect(Some(node), need, Turn::Round));
            freed = if is_needed { collect().unwrap_or(0) } else { 0 };
        }
    }
}

/// A time in which nobody writes, as collectors see it.
struct Lull {
    /// Number of segments that had been opened for writes when the lull began.
    openings: u64,
    since: Instant,
    /// Nothing is left to do; or nobody has written since the store was opened, which then stays as it is.
    is_used: bool,
}

impl Lull {
    fn begin(openings: u64) -> Lull {
        Lull { openings, since: Instant::now(), is_used: true }
    }

    /// Whether there is a lull, with something left to do.
    fn has_come(&mut self, openings: u64) -> bool {
        if openings != self.openings {
            *self = Lull { is_used: false, ..Lull::begin(openings) };
        }
        !self.is_used && self.since.elapsed() >= LULL
    }
}

/// Collects some of a store that would have to grow soon although more than half of it is garbage. Returns whether that
/// made room.
fn collect_in_a_lull(core: &Core, node: usize) -> bool {
    // A full store is collected when it needs to be: until then garbage gathers.
    core.log.room(node).growth > 0
        && core.has_much_garbage(node)
        && core.collect(Some(node), Need::Growth, Turn::Round).is_ok_and(|freed| freed > 0)
}

fn run_maintenance(core: &Core, stop: &Stop) {
    let mut rest = Rest::default();
    while !stop.wait(rest.next(core, core.log.has_retiring(None) || core.may_cache())) {
        if core.log.take_pressure() || core.log.has_retiring(None) {
            // Errors here come from the medium and reach the next write through the committer or the log.
            let _ = core.seal(TakeBack::Idle).and_then(|()| core.reuse_freed(Wait::No));
        }
        hither_sync::epoch::collect();
        core.tick_cache();
    }
}

/// Deletes keys whose time has come. It has a thread of its own because it takes long to search a large keyspace, and
/// to delete in a full store.
fn run_expiry(core: &Core, stop: &Stop) {
    let mut pause = SWEEP_EVERY;
    while !stop.wait(pause) {
        let swept = core.sweep_those_there(Some(LONGEST_SEARCH));
        // Many expired keys must not become more, although clients go on writing such keys.
        let lags = swept.more && swept.deleted > 0;
        pause = if lags { swept.busy * LAG_REST } else { (swept.busy * SWEEP_REST).max(SWEEP_EVERY) };
    }
}

/// Persists the time up to which somebody was told of expiry. It has a thread of its own so that nothing that takes
/// long delays it.
fn run_clock(core: &Core, stop: &Stop) {
    while !stop.wait(CLOCK_EVERY) {
        if core.committer.ensure_writable().is_ok() {
            // The next write reports an error.
            let _ = core.persist_told();
        }
    }
}

fn run_checkpoints(core: &Core, stop: &Stop) {
    let mut rest = Rest::default();
    let mut pause = TICK;
    while !stop.wait(pause) {
        pause = rest.next(core, false);
        if core.checkpoints.due(&core.log) && core.committer.ensure_writable().is_ok() {
            // At most half of a processor: others have it for as long as a piece took.
            let started = Instant::now();
            let mut last = started;
            let mut go_on = || {
                let ended = stop.wait(last.elapsed().min(TICK));
                last = Instant::now();
                !ended
            };
            // An error is in the statistics; the store needs no checkpoint.
            let _ = core.checkpoints.take(core, false, &mut go_on);
            if core.checkpoints.is_paced() {
                // Some eight per cent of a processor in the long run, however much is written: where writers keep all
                // of them busy, each checkpoint costs them as much.
                pause = (started.elapsed() * 5).max(TICK);
            }
        }
    }
}

#[cfg(test)]
mod tests;
