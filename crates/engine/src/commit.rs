//! Durability of writes that their own fence does not make durable: group commit on files, late flushes on persistent memory.
//!
//! One rule serves all media. A *commit* draws a stable version S (everything ≤ S is installed and nothing ≤ S will come), makes all that was
//! written durable (files: one data sync per pool; persistent memory: flush the remembered ranges and fence), and publishes S as the durable
//! version. Whoever waits for a version waits until the durable version reaches it; one of the waiters leads, the others' writes ride along.
//!
//! A leader that was woken together with others waits a moment for them to write again, or the group would fall apart into halves that
//! take turns: until as many wait as last time, at most [`GATHER`].
//!
//! Callbacks may use the store. So whoever leads a commit with locks of the store held, as reclaiming and checkpoints do, or
//! under an epoch pin, as reads do, leaves them to others.
//!
//! A callback that leads commits, or asks for more callbacks, has none run inside itself: they are left to the thread in the background, or, where there is none, run when it has returned, one after the other. So a
//! chain of callbacks nests no deeper than one, and keeps nobody who merely led a commit: the thread in the background goes on with it.
//!
//! A failed sync poisons the store (`docs/durability.md`): the pages may be marked clean, so no later sync may claim them. Every waiter gets the error and
//! the store turns read-only.

use crate::error::{Error, Result};
use crate::options::Durability;
use crate::recent_deletes::RecentDeletes;
use hither_log::Log;
use hither_sync::{Attendance, epoch};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a leader waits for the group of last time: below the time of a sync on any device that needs one.
const GATHER: Duration = Duration::from_micros(100);

/// Called once the write is durable or will not be.
pub type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A callback whose time has come, and why its write failed, if it did.
type Due = (Callback, Option<String>);

/// Shared durability state.
pub(crate) struct Committer {
    durable: AtomicU64,
    /// Writes are refused: a sync failed, or the store was closed, or opened to be read only.
    refusing: AtomicBool,
    /// The store was opened to be read only.
    read_only: bool,
    /// A read must check that what it found is durable.
    reads_check: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// Deletes above the durable version.
    pub recent_deletes: RecentDeletes,
    pub commits: AtomicU64,
    pub requested: AtomicU64,
    /// A thread in the background runs callbacks.
    in_background: Attendance,
    /// No thread could be started that would make durable what it is asked for: whoever asks does it.
    alone: AtomicBool,
    /// Wakes the background committer.
    pub wake: Condvar,
    pub wake_lock: Mutex<bool>,
}

#[derive(Default)]
struct State {
    leading: bool,
    /// Threads inside `commit`, the leader included.
    waiting: usize,
    /// How many there were when the last commit began.
    last_group: usize,
    error: Option<String>,
    callbacks: BTreeMap<u64, Vec<Callback>>,
    /// What is to be called now, with this outcome, by whoever may.
    ready: Vec<Due>,
}

/// What a thread that asks for a commit may do besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// Run callbacks.
    Free,
    /// Not that: it holds locks of the store, which what is called may want, too, or a pin, under which no space can be made.
    Holding,
}

impl Committer {
    pub fn new(durable: u64, level: Durability, needs_sync: bool) -> Committer {
        Committer {
            durable: AtomicU64::new(durable),
            refusing: AtomicBool::new(false),
            read_only: false,
            reads_check: AtomicBool::new(needs_sync && level == Durability::Sync),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            recent_deletes: RecentDeletes::default(),
            commits: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            in_background: Attendance::default(),
            alone: AtomicBool::new(false),
            wake: Condvar::new(),
            wake_lock: Mutex::new(false),
        }
    }

    /// Everything at or below this version is durable.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether a read at the store's level must look at the durable version.
    #[inline(always)]
    pub fn reads_check(&self) -> bool {
        self.reads_check.load(Ordering::Relaxed)
    }

    /// From now on there may be entries that are installed before they are durable.
    pub fn note_relaxed_write(&self, log: &Log) {
        // Acquire: who sees it set sees the reason noted, and so does who sees what is installed afterwards.
        if !self.reads_check.load(Ordering::Acquire) {
            log.note_reason();
            self.reads_check.store(true, Ordering::SeqCst);
        }
    }

    /// Refuses if an earlier sync failed, or the store was closed or opened to be read only. Call inside a writer section.
    #[inline(always)]
    pub fn ensure_writable(&self) -> Result<()> {
        if self.refuses() { Err(self.refusal()) } else { Ok(()) }
    }

    /// Whether [`Committer::ensure_writable`] refuses.
    #[inline(always)]
    pub fn refuses(&self) -> bool {
        self.refusing.load(Ordering::Relaxed)
    }

    #[cold]
    fn refusal(&self) -> Error {
        if self.read_only {
            return Error::OpenedReadOnly;
        }
        self.state.lock().error.clone().map_or(Error::Closed, Error::ReadOnly)
    }

    /// No write is taken from the beginning.
    pub fn forbid_writes(&mut self) {
        self.read_only = true;
        self.refuse_writes();
    }

    /// The error of a failed sync, if there was one.
    pub fn failure(&self) -> Result<()> {
        self.state.lock().error.clone().map_or(Ok(()), |error| Err(Error::ReadOnly(error)))
    }

    /// A sync failed that was not one of a commit: as if it had been. Callbacks are left to the thread in the background, or whoever comes next: the caller may hold locks.
    pub fn fail(&self, error: &Error) {
        let mut state = self.state.lock();
        self.give_up(&mut state, error);
        self.changed.notify_all();
        self.see_to_ready(Caller::Holding, &mut state);
    }

    /// Refuses writes from now on; false if they were refused already.
    pub fn refuse_writes(&self) -> bool {
        !self.refusing.swap(true, Ordering::SeqCst)
    }

    /// Returns once `version` is durable, leading a commit if nobody does. Call outside writer sections and latches.
    pub fn commit(&self, log: &Log, version: u64) -> Result<()> {
        let caller = || if epoch::is_pinned() || self.leaves_callbacks() { Caller::Holding } else { Caller::Free };
        self.commit_as(caller, log, version)
    }

    /// The same for who holds locks of the store: callbacks are left to the thread in the background, or whoever comes next.
    pub fn commit_with_locks(&self, log: &Log, version: u64) -> Result<()> {
        self.commit_as(|| Caller::Holding, log, version)
    }

    #[inline(always)]
    fn commit_as(&self, caller: impl FnOnce() -> Caller, log: &Log, version: u64) -> Result<()> {
        if self.durable() >= version {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.waiting += 1;
        let outcome = self.commit_locked(caller(), log, version, &mut state);
        state.waiting -= 1;
        outcome
    }

    /// Whether the calling thread runs a callback, and another thread may run what comes of that.
    fn leaves_callbacks(&self) -> bool {
        is_in_callback() && self.in_background.any()
    }

    /// No thread in the background could be started.
    pub fn note_alone(&self) {
        self.alone.store(true, Ordering::Release);
    }

    /// Whether whoever asks for a commit has to make it.
    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    /// Runs `f`, which runs callbacks from time to time, in the background.
    pub fn while_in_background(&self, f: impl FnOnce()) {
        self.in_background.during(f);
    }

    /// Runs the callbacks that others have left. Call with no lock of the store held.
    pub fn call_back(&self) {
        Self::run_ready(&mut self.state.lock());
    }

    fn run_ready(state: &mut MutexGuard<'_, State>) {
        if !state.ready.is_empty() {
            let ready = std::mem::take(&mut state.ready);
            MutexGuard::unlocked(state, || run_callbacks(ready));
        }
    }

    /// After a commit: runs the callbacks that are ready, or leaves them.
    fn see_to_ready(&self, caller: Caller, state: &mut MutexGuard<'_, State>) {
        match caller {
            Caller::Free => Self::run_ready(state),
            Caller::Holding if state.ready.is_empty() => {}
            Caller::Holding => MutexGuard::unlocked(state, || self.wake_background()),
        }
    }

    fn commit_locked(&self, caller: Caller, log: &Log, version: u64, state: &mut MutexGuard<'_, State>) -> Result<()> {
        loop {
            if caller == Caller::Free {
                Self::run_ready(state);
            }
            // First of all: what is durable stays so, whatever failed since.
            if self.durable() >= version {
                return Ok(());
            }
            if let Some(error) = &state.error {
                return Err(Error::ReadOnly(error.clone()));
            }
            if state.leading {
                self.changed.wait(state);
                continue;
            }
            state.leading = true;
            Self::gather(state);
            let led = MutexGuard::unlocked(state, || catch_unwind(AssertUnwindSafe(|| self.lead(log))));
            state.leading = false;
            // What a commit has done that panicked nobody knows: as if a sync had failed. The others must not wait for it for ever.
            let (outcome, panic) = match led {
                Ok(outcome) => (outcome, None),
                Err(panic) => (Err(Error::Io("a commit panicked".to_owned())), Some(panic)),
            };
            self.conclude(state, outcome);
            self.changed.notify_all();
            self.see_to_ready(caller, state);
            if let Some(panic) = panic {
                state.waiting -= 1;
                MutexGuard::unlocked(state, || resume_unwind(panic));
            }
        }
    }

    /// Waits until as many threads wait as last time, or the time is up.
    fn gather(state: &mut MutexGuard<'_, State>) {
        if state.last_group > 1 {
            let end = Instant::now() + GATHER;
            while state.waiting < state.last_group && Instant::now() < end {
                MutexGuard::unlocked(state, std::thread::yield_now);
            }
        }
        state.last_group = state.waiting;
    }

    fn lead(&self, log: &Log) -> Result<u64> {
        let stable = log.clock.stable();
        log.flush_dirty();
        for node in 0..log.nodes() {
            log.pool(node).sync()?;
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(stable)
    }

    fn conclude(&self, state: &mut State, outcome: Result<u64>) {
        match outcome {
            Ok(stable) => {
                self.durable.fetch_max(stable, Ordering::AcqRel);
                self.recent_deletes.forget(stable);
                let later = state.callbacks.split_off(&(stable + 1));
                let durable = std::mem::replace(&mut state.callbacks, later);
                state.ready.extend(durable.into_values().flatten().map(|callback| (callback, None)));
            }
            Err(error) => self.give_up(state, &error),
        }
    }

    /// Nothing becomes durable any more; those who wait are to hear of it.
    fn give_up(&self, state: &mut State, error: &Error) {
        self.refusing.store(true, Ordering::SeqCst);
        // What a read-only store is, is said again when it is told.
        let why = if let Error::ReadOnly(why) = error { why.clone() } else { error.to_string() };
        let waiting = std::mem::take(&mut state.callbacks);
        state.ready.extend(waiting.into_values().flatten().map(|callback| (callback, Some(why.clone()))));
        state.error = Some(why);
    }

    /// Has `version` made durable soon by the background committer, or now where there is none. An error poisons the store. Call outside writer sections and latches.
    pub fn request(&self, log: &Log, version: u64) {
        if self.is_alone() {
            let _ = self.commit(log, version);
            // Others, with locks held, may have made it durable and left the callbacks to whoever comes next.
            if !epoch::is_pinned() {
                self.call_back();
            }
        } else {
            self.ask(version);
        }
    }

    fn ask(&self, version: u64) {
        if self.requested.fetch_max(version, Ordering::AcqRel) < version {
            self.wake_background();
        }
    }

    fn wake_background(&self) {
        let mut wanted = self.wake_lock.lock();
        if !*wanted {
            *wanted = true;
            self.wake.notify_one();
        }
    }

    fn on_durable(&self, log: &Log, version: u64, callback: Callback) {
        let mut state = self.state.lock();
        if state.error.is_none() && self.durable() < version {
            state.callbacks.entry(version).or_default().push(callback);
            drop(state);
            return self.request(log, version);
        }
        let error = state.error.clone().filter(|_| self.durable() < version);
        if self.leaves_callbacks() {
            state.ready.push((callback, error));
            return self.see_to_ready(Caller::Holding, &mut state);
        }
        drop(state);
        run_callbacks(vec![(callback, error)]);
    }
}

/// Runs them all, or, inside another callback, leaves them until that has returned. A panic of one ends that one only: it must reach neither the others nor whoever happened to lead the commit,
/// such as the thread in the background.
fn run_callbacks(callbacks: Vec<Due>) {
    if CALLS_BACK.replace(true) {
        let mut left = ManuallyDrop::into_inner(LEFT.take());
        left.extend(callbacks);
        return LEFT.set(ManuallyDrop::new(left));
    }
    let mut next = callbacks;
    while !next.is_empty() {
        for (callback, error) in next {
            let outcome = error.map_or(Ok(()), |error| Err(Error::ReadOnly(error)));
            // The hook for panics has reported it.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(outcome)));
        }
        next = ManuallyDrop::into_inner(LEFT.take());
    }
    CALLS_BACK.set(false);
}

thread_local! {
    /// Whether this thread runs callbacks of tickets.
    static CALLS_BACK: Cell<bool> = const { Cell::new(false) };
    /// What this thread calls when the callback has returned that it runs: empty otherwise. Without a destructor, so that it can be had while the thread ends.
    static LEFT: Cell<ManuallyDrop<Vec<Due>>> = const { Cell::new(ManuallyDrop::new(Vec::new())) };
}

/// Whether this thread runs a callback of a ticket: then it may be one that the store's own work waits for, and may hold what that work takes.
pub(crate) fn is_in_callback() -> bool {
    CALLS_BACK.get()
}

/// A write that was made and may not be durable yet.
///
/// Dropping it neither undoes the write nor waits: the thread in the background has been asked to make the write durable, at once or within its interval (at the level `process`: not at all), and
/// nobody is told if that fails but those who write afterwards. While it lives it keeps the store's files open and locked.
#[derive(Clone)]
#[must_use = "a ticket says when the write is durable"]
pub struct Ticket {
    core: Option<Arc<crate::store::Core>>,
    version: u64,
}

impl Ticket {
    /// A ticket that is durable already at the level asked for.
    pub(crate) fn durable(version: u64) -> Ticket {
        Ticket { core: None, version }
    }

    pub(crate) fn pending(core: &Arc<crate::store::Core>, version: u64) -> Ticket {
        Ticket { core: Some(core.clone()), version }
    }

    /// The write's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the write is durable at the level asked for. Never blocks.
    pub fn is_durable(&self) -> bool {
        self.core.as_ref().is_none_or(|core| core.committer.durable() >= self.version)
    }

    /// Waits until the write is durable, leading a commit if nobody does.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if a sync failed.
    pub fn wait(&self) -> Result<()> {
        self.core.as_ref().map_or(Ok(()), |core| core.committer.commit(&core.log, self.version))
    }

    /// Calls `f` once the write is durable or can no longer become so; at once if that is known. `f` runs on a thread that led a commit or waited for one, perhaps
    /// one of the store's, but inside no other callback, and must not block: to close, check, compact, copy or reclaim the store, to take a checkpoint, or to make, drop or rename keyspaces is refused there ([`Error::InsideCallback`]). If it panics,
    /// that is reported as for a thread that panics, and goes no further.
    pub fn on_durable(self, f: impl FnOnce(Result<()>) + Send + 'static) {
        match &self.core {
            None => run_callbacks(vec![(Box::new(f), None)]),
            Some(core) => core.committer.on_durable(&core.log, self.version, Box::new(f)),
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("version", &self.version).field("durable", &self.is_durable()).finish()
    }
}
