//! Background work: commits that nobody waits for, growth of pools, sealing, collection and reuse of segments, sweeping of expired keys, checkpoints of the indexes,
//! reads for scans of other nodes.

use crate::collector::{Need, Turn};
use crate::courtesy::Courtesy;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::store::Core;
use crate::sweeps::{SWEEP, SWEEP_REST};
use hither_log::{TakeBack, Wait};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the maintenance thread looks for work.
const TICK: Duration = Duration::from_millis(20);
/// The same where nothing was written since it looked last, and nothing was left to do: a store that is merely open hardly wakes the processor.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// How often the thread for growth looks whether it is time to end; it is called for that, too.
const READY_TICK: Duration = Duration::from_secs(1);
/// Parts of rest for one part of verification: a fifth of a processor, for others want it, and the memory's bandwidth, too. What is read meanwhile is
/// verified then and there.
const VERIFICATION_REST: u32 = 4;
/// No segment was opened for so long: nobody writes, or so little that collectors have time.
const LULL: Duration = Duration::from_secs(1);
/// Between passes that leave nothing behind.
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
    /// Sleeps; true if it is time to end.
    fn wait(&self, duration: Duration) -> bool {
        let mut guard = self.lock.lock();
        if !self.flag.load(Ordering::Acquire) {
            self.changed.wait_for(&mut guard, duration);
        }
        self.flag.load(Ordering::Acquire)
    }

    /// With the lock: who has looked at the flag and does not sleep yet would miss it, and sleep on.
    fn set(&self) {
        let _held = self.lock.lock();
        self.flag.store(true, Ordering::Release);
        self.changed.notify_all();
    }
}

/// How long a thread rests before it looks for work again.
#[derive(Default)]
struct Rest {
    /// Version up to which it knows of writes.
    seen: u64,
}

impl Rest {
    /// `busy`: there is something to do that comes without writes.
    fn next(&mut self, core: &Core, busy: bool) -> Duration {
        let now = core.log.clock.upper_bound();
        let is_idle = std::mem::replace(&mut self.seen, now) == now;
        if is_idle && !busy { IDLE_TICK } else { TICK }
    }
}

impl Maintenance {
    /// Starts the threads, `collectors` for each node among them, and `readers` for each node if scans delegate.
    ///
    /// # Errors
    /// If the one that commits cannot be had, at a level that nobody else keeps.
    pub fn start(core: &Arc<Core>, collectors: usize, readers: usize) -> Result<Maintenance> {
        let mut starting = Maintenance { stop: Arc::default(), core: core.clone(), threads: Vec::new() };
        if core.techniques.pacing {
            core.log.pace_writers();
        }
        let committing = starting.spawn("hither-commit", |core, stop| core.committer.while_in_background(|| run_commits(core, stop)));
        if let Err(error) = committing {
            core.committer.note_alone();
            if let Durability::Interval(_) = core.durability {
                return Err(Error::Io(format!(
                    "the thread that makes writes durable at each interval cannot be started ({error}); allow more threads (ulimit -u), or open the store at the level sync or process"
                )));
            }
        }
        starting.spawn_if_possible("hither-maintain", run_maintenance);
        starting.spawn_if_possible("hither-expire", run_expiry);
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

    /// Without a thread (limits) the store still works: writers collect when the store is full, who asks for a commit makes it,
    /// scans read by themselves.
    fn spawn(&mut self, name: &str, run: impl FnOnce(&Core, &Stop) + Send + 'static) -> std::io::Result<()> {
        let (core, stop) = (self.core.clone(), self.stop.clone());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&core, &stop))?;
        self.threads.push(thread);
        Ok(())
    }

    /// One that others stand in for: see [`Maintenance::spawn`].
    fn spawn_if_possible(&mut self, name: &str, run: impl FnOnce(&Core, &Stop) + Send + 'static) {
        let _ = self.spawn(name, run);
    }

    /// Whether the calling thread is one of them.
    pub fn runs_here(&self) -> bool {
        let here = std::thread::current().id();
        self.threads.iter().any(|thread| thread.thread().id() == here)
    }

    /// Tells the threads to end, and waits for none.
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

    /// Ends the threads. Not from one of them.
    pub fn stop(self) {
        self.begin_stop();
        for thread in self.threads {
            // A panic there was printed; the store itself is consistent.
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
            // An error poisons the store and reaches every waiter; this thread has nobody to tell.
            let _ = committer.commit(&core.log, version.saturating_sub(u64::from(interval.is_some())));
        }
    }
}

/// How long the thread that commits waits to be called, when its last round began this long ago. An interval counts from there: what is written while a sync is under way waits for the next.
fn rest_of(interval: Option<Duration>, since: Duration) -> Duration {
    interval.map_or(Duration::from_millis(100), |interval| interval.saturating_sub(since))
}

/// Verifies what recovery did not read, a segment at a time, finds out what is garbage there, and ends. Damage shows in the statistics, and to whoever reads it.
fn run_verification(core: &Core, stop: &Stop) {
    run_paced(VERIFICATION_REST, || core.verify_next(), |pause| stop.wait(pause));
}

/// Works piece by piece, as long as `work` says that there is more and `pause` that it is not time to end, and rests `rest` times as long as each piece took.
fn run_paced(rest: u32, mut work: impl FnMut() -> bool, mut pause: impl FnMut(Duration) -> bool) {
    loop {
        let started = Instant::now();
        if !work() || pause(started.elapsed() * rest) {
            return;
        }
    }
}

/// Makes segments of a node ready ahead of writers, so that these need not wait for it.
fn run_making_ready(core: &Core, stop: &Stop, node: usize) {
    let mut heard = 0;
    while !stop.flag.load(Ordering::Acquire) {
        // Only if somebody writes: a store that is merely open stays as it is.
        let called = core.log.needs_more(node).wait(&mut heard, READY_TICK);
        if called && !stop.flag.load(Ordering::Acquire) && core.committer.ensure_writable().is_ok() {
            // A writer that needs the segments tells its caller of an error.
            let _ = core.heeding_failed_syncs(core.log.make_ready(node));
        }
    }
}

/// Collects on one node, from a thread of that node, so that copies are local writes. `place`: its number, and how many of them there are.
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
    /// Segments that were opened for writes before.
    openings: u64,
    since: Instant,
    /// Nothing is left to do, or nobody has written since the store was opened: it stays as it is.
    is_used: bool,
}

impl Lull {
    fn begin(openings: u64) -> Lull {
        Lull { openings, since: Instant::now(), is_used: true }
    }

    /// Whether there is one, with something left to do.
    fn has_come(&mut self, openings: u64) -> bool {
        if openings != self.openings {
            *self = Lull { is_used: false, ..Lull::begin(openings) };
        }
        !self.is_used && self.since.elapsed() >= LULL
    }
}

/// Collects some of a store that would have to grow soon although more than half of it is garbage; whether that made room.
fn collect_in_a_lull(core: &Core, node: usize) -> bool {
    // A full store is collected when it needs to be: what is garbage gathers.
    core.log.room(node).growth > 0
        && core.has_much_garbage(node)
        && core.collect(Some(node), Need::Growth, Turn::Round).is_ok_and(|freed| freed > 0)
}

fn run_maintenance(core: &Core, stop: &Stop) {
    let mut rest = Rest::default();
    while !stop.wait(rest.next(core, core.log.has_retiring() || core.may_cache())) {
        if core.log.take_pressure() || core.log.has_retiring() {
            // Errors here come from the medium and reach the next write through the committer or the log.
            let _ = core.seal(TakeBack::Idle).and_then(|()| core.reuse_freed(Wait::No));
        }
        hither_sync::epoch::collect();
        core.tick_cache();
    }
}

/// Deletes keys whose time has come. A thread of its own: to search a large keyspace takes long, and to delete in a full store, too.
fn run_expiry(core: &Core, stop: &Stop) {
    let mut pause = SWEEP_EVERY;
    while !stop.wait(pause) {
        let started = Instant::now();
        let deleted = core.sweep_expired();
        let rest = started.elapsed() * SWEEP_REST;
        pause = if deleted < SWEEP { rest.max(SWEEP_EVERY) } else { rest };
    }
}

fn run_checkpoints(core: &Core, stop: &Stop) {
    let mut rest = Rest::default();
    let mut pause = TICK;
    while !stop.wait(pause) {
        pause = rest.next(core, false);
        if core.checkpoints.due(&core.log) && core.committer.ensure_writable().is_ok() {
            // At most half of a processor: as long as a piece took, others have it.
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
                // Some eight per cent of a processor in the long run, however much is written: where writers keep all of them busy, each
                // checkpoint costs them as much.
                pause = (started.elapsed() * 5).max(TICK);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::Condition;
    use hither_pmem::Failpoints;

    /// Regression: two milliseconds between segments of eight megabytes, each a few milliseconds of work, kept most of a processor busy.
    #[test]
    fn the_verification_takes_a_fifth_of_a_processor() {
        let piece = Duration::from_millis(5);
        let (mut pieces, mut rest, started) = (0, Duration::ZERO, Instant::now());
        let work = || {
            std::thread::sleep(piece);
            pieces += 1;
            pieces < 4
        };
        run_paced(VERIFICATION_REST, work, |pause| {
            assert!(pause >= piece * 4, "{pause:?} after {piece:?} of work");
            rest += pause;
            false
        });
        assert!(
            pieces == 4 && rest >= piece * 12 && rest <= started.elapsed() * 4,
            "it rests for each piece but the last, by what that took"
        );
    }

    #[test]
    fn paced_work_ends_when_it_is_time() {
        let mut pieces = 0;
        let work = || {
            pieces += 1;
            true
        };
        run_paced(1, work, |_| true);
        assert_eq!(pieces, 1);
    }

    #[test]
    fn threads_rest_longer_while_nobody_writes() {
        let store = crate::Store::open(crate::Options { in_memory: true, background: false, ..crate::Options::default() }).unwrap();
        let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
        let core = &store.core;
        let mut rest = Rest::default();
        assert_eq!([rest.next(core, false), rest.next(core, false), rest.next(core, true)], [TICK, IDLE_TICK, TICK]);
        // More than a block of versions, of which the clock knows only as a whole.
        for key in 0..=hither_log::version::BLOCK {
            store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"v")).unwrap();
        }
        assert_eq!([rest.next(core, false), rest.next(core, false)], [TICK, IDLE_TICK]);
    }

    /// Regression: an interval began when the sync before it had ended, so that a write in the midst of that waited for a sync longer than promised.
    #[test]
    fn an_interval_counts_from_where_the_last_sync_began() {
        let ms = Duration::from_millis;
        assert_eq!([rest_of(Some(ms(100)), ms(30)), rest_of(Some(ms(100)), ms(130))], [ms(70), ms(0)]);
    }

    /// Regression: where the thread that commits could not be started, what was asked of it never came.
    #[test]
    fn who_has_no_thread_that_commits_commits_itself() {
        let dir = tempfile::tempdir().unwrap();
        let store = on_a_file(dir.path(), 8 << 20, &Failpoints::new());
        let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
        store.core.committer.note_alone();
        let (told, outcome) = std::sync::mpsc::channel();
        let (_, _, ticket) = store.write(&keyspace, b"key", Some(b"value"), Condition::None, &crate::WriteOptions::new()).unwrap();
        ticket.on_durable(move |outcome| told.send(outcome.is_ok()).unwrap());
        assert_eq!(outcome.try_recv(), Ok(true));
        let at_intervals = crate::WriteOptions::new().durability(Durability::Interval(Duration::from_secs(3600)));
        let (_, _, ticket) = store.write(&keyspace, b"key", Some(b"other"), Condition::None, &at_intervals).unwrap();
        assert!(ticket.is_durable(), "nobody else would see to it");
    }

    fn on_a_file(dir: &std::path::Path, capacity: u64, failpoints: &Arc<Failpoints>) -> crate::Store {
        use crate::{MediumChoice, Options, Store};
        let sizes = Options { capacity, max_capacity: capacity, segment_bytes: 256 << 10, shards: 2, ..Options::default() };
        let medium = Options { medium: MediumChoice::File, failpoints: Some(failpoints.clone()), ..sizes };
        Store::open(Options { paths: vec![(None, dir.to_owned())], background: false, ..medium }).unwrap()
    }

    /// Bytes of the pages that this thread made dirty in files on a device.
    fn dirtied_bytes() -> u64 {
        let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        counts.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap().parse().unwrap()
    }

    /// Regression: whoever opened a segment on a file zeroed it first, and all its clients waited.
    #[test]
    fn writers_find_segments_zeroed_that_were_made_ready() {
        let dir = tempfile::tempdir().unwrap();
        let store = on_a_file(dir.path(), 8 << 20, &Failpoints::new());
        let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
        let relaxed = crate::WriteOptions::new().durability(Durability::Process);
        let fill = |from: u64| {
            let before = dirtied_bytes();
            for key in from..from + 1_000 {
                drop(store.write(&keyspace, &key.to_be_bytes(), Some(&[1; 1_000]), Condition::None, &relaxed).unwrap());
            }
            dirtied_bytes() - before
        };
        let unready = fill(0);
        std::thread::scope(|scope| drop(scope.spawn(|| store.core.log.make_ready(0).unwrap())));
        let ready = fill(1_000);
        assert!(unready < 1 << 20 || ready < unready * 2 / 3, "{ready} bytes, {unready} where nothing was made ready");
    }

    #[test]
    fn what_is_made_ready_stays_free_for_writers() {
        let dir = tempfile::tempdir().unwrap();
        // More than is kept zeroed, so that writers come upon what is being zeroed.
        let store = on_a_file(dir.path(), 64 << 20, &Failpoints::new());
        let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
        let relaxed = crate::WriteOptions::new().durability(Durability::Process);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let fill = |first: u64| {
            let put = |key: u64| store.write(&keyspace, &key.to_be_bytes(), Some(&[key as u8; 1_000]), Condition::None, &relaxed).map(drop);
            (0..).map(|number| number * 2 + first).find(|key| put(*key).is_err()).unwrap()
        };
        let ends = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    store.core.log.make_ready(0).unwrap();
                }
            });
            let fill = &fill;
            let writers = [0, 1].map(|first| scope.spawn(move || fill(first)));
            let ends = writers.map(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            ends
        });
        // Full, and not merely because what was free was being zeroed.
        assert!(ends.iter().sum::<u64>() / 2 * 1_024 > 56 << 20, "{ends:?}");
        for key in (0..2).flat_map(|first| (first..ends[first as usize]).step_by(2)) {
            assert_eq!(store.get_with(&keyspace, &key.to_be_bytes(), |value| value == [key as u8; 1_000]).unwrap(), Some(true));
        }
        assert!(store.check().unwrap().is_sound());
    }

    #[test]
    fn who_takes_a_segment_that_is_being_zeroed_waits_for_that() {
        let (dir, failpoints) = (tempfile::tempdir().unwrap(), Failpoints::new());
        let store = on_a_file(dir.path(), 8 << 20, &failpoints);
        let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
        let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[7; 1_000])).map(drop);
        failpoints.hold("zero");
        std::thread::scope(|scope| {
            scope.spawn(|| store.core.log.make_ready(0).unwrap());
            scope.spawn(|| {
                while failpoints.waiting("zero") == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                put(1).unwrap();
                // It is not zeroed again, or what was written would be gone.
                assert_eq!(store.get_with(&keyspace, &1u64.to_be_bytes(), |value| value == [7; 1_000]).unwrap(), Some(true));
            });
            while failpoints.waiting("zero") == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            let zeroing = failpoints.waiting("zero");
            failpoints.release("zero");
            assert_eq!(zeroing, 1, "nobody else zeroes it");
        });
        (2..2_000).for_each(|key| put(key).unwrap());
        assert!(store.check().unwrap().is_sound());
    }
}
