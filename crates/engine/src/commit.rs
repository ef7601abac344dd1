//! Durability of writes that their own fence does not make durable: group commit on files, late flushes on persistent
//! memory.
//!
//! One rule serves all media. A *commit* draws a stable version S (everything at or below S is installed, and no
//! further write will get such a version). It makes everything that was written durable (files: one data sync per pool;
//! persistent memory: flush the remembered ranges and fence). Then it publishes S as the durable version. A thread that
//! needs a version to be durable waits until the durable version reaches it. One of the waiters leads; the writes of
//! the others ride along.
//!
//! A leader that was woken together with others waits a moment for them to write again, until as many wait as last
//! time, at most [`GATHER`]. Otherwise the group would fall apart into halves that take turns.
//!
//! # Callbacks
//!
//! Callbacks may use the store. So a thread leaves them to others if it leads a commit with locks of the store held, as
//! reclaiming and checkpoints do, or under an epoch pin, as reads do.
//!
//! No callback runs inside another one. If a callback leads a commit or asks for another callback, the callbacks that
//! become due are left to the background thread. Where there is none, they run one after the other when the callback
//! has returned. So a chain of callbacks nests no deeper than one. Nor does it keep a thread that merely led a commit:
//! the background thread continues it.
//!
//! # Failed syncs
//!
//! A failed sync poisons the store (`docs/durability.md`): its pages may be marked clean, so no later sync may claim
//! them. Every waiter gets the error, and the store turns read-only.
//!
//! # Thread safety, crashes
//!
//! Any number of threads may ask for commits; one leads at a time. The durable version is in DRAM: recovery reads what
//! has reached the medium.

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

/// How long a leader waits for the group of last time. Shorter than a sync on any device that needs one.
const GATHER: Duration = Duration::from_micros(100);

/// Called once the write is durable, or can no longer become durable.
pub type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A callback that is due, and why its write failed, if it did.
type Due = (Callback, Option<String>);

/// Shared durability state.
pub(crate) struct Committer {
    durable: AtomicU64,
    /// Writes are refused: a sync failed, the store was closed, or it was opened read-only.
    refusing: AtomicBool,
    /// The store was opened read-only.
    read_only: bool,
    /// Reads must check that what they found is durable.
    reads_check: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// Deletes above the durable version.
    pub recent_deletes: RecentDeletes,
    pub commits: AtomicU64,
    pub requested: AtomicU64,
    /// Counts the background threads that run callbacks.
    in_background: Attendance,
    /// The background thread that makes writes durable on request could not be started: a thread that asks commits
    /// itself.
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
    /// Number of threads inside `commit` when the last commit began.
    last_group: usize,
    error: Option<String>,
    callbacks: BTreeMap<u64, Vec<Callback>>,
    /// Callbacks to be run now, with their outcomes, by the next thread that may run callbacks.
    ready: Vec<Due>,
}

/// What a thread that asks for a commit may do besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// Run callbacks.
    Free,
    /// Not run callbacks: it holds locks of the store, which callbacks may take, or a pin, under which no space can be
    /// made; or it runs a callback, and the background thread runs those that become due.
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

    /// The durable version: everything at or below it is durable.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether a read at the store's level must look at the durable version.
    #[inline(always)]
    pub fn reads_check(&self) -> bool {
        self.reads_check.load(Ordering::Relaxed)
    }

    /// Makes reads check durability from now on. Call before installing an entry that may not be durable yet.
    pub fn note_relaxed_write(&self, log: &Log) {
        // Acquire: a thread that sees the flag set sees the reason noted, and so does one that sees what is installed
        // afterwards.
        if !self.reads_check.load(Ordering::Acquire) {
            log.note_reason();
            self.reads_check.store(true, Ordering::SeqCst);
        }
    }

    /// Fails if a sync has failed, or the store was closed or opened read-only. Call inside a writer section.
    #[inline(always)]
    pub fn ensure_writable(&self) -> Result<()> {
        if self.refuses() { Err(self.refusal()) } else { Ok(()) }
    }

    /// Whether [`Committer::ensure_writable`] fails.
    #[inline(always)]
    pub fn refuses(&self) -> bool {
        self.refusing.load(Ordering::Relaxed)
    }

    #[cold]
    fn refusal(&self) -> Error {
        if self.read_only {
            return Error::OpenedReadOnly;
        }
        self.state.lock().error.clone().map_or(Error::Closed, Error::SyncFailed)
    }

    /// Refuses writes from the beginning, for a store that is opened read-only.
    pub fn forbid_writes(&mut self) {
        self.read_only = true;
        self.refuse_writes();
    }

    /// The error of a failed sync, if there was one.
    pub fn failure(&self) -> Result<()> {
        self.state.lock().error.clone().map_or(Ok(()), |error| Err(Error::SyncFailed(error)))
    }

    /// Reports a sync that failed outside a commit, with the same consequences as one of a commit. The caller may hold
    /// locks, so callbacks are left to the background thread, or to the next thread that may run them.
    pub fn fail(&self, error: &Error) {
        let mut state = self.state.lock();
        self.give_up(&mut state, error);
        self.changed.notify_all();
        self.see_to_ready(Caller::Holding, &mut state);
    }

    /// Refuses writes from now on. Returns false if they were refused already.
    pub fn refuse_writes(&self) -> bool {
        !self.refusing.swap(true, Ordering::SeqCst)
    }

    /// Returns once `version` is durable. Leads a commit if no other thread does. Call outside writer sections and
    /// without latches.
    pub fn commit(&self, log: &Log, version: u64) -> Result<()> {
        let caller = || if epoch::is_pinned() || self.leaves_callbacks() { Caller::Holding } else { Caller::Free };
        self.commit_as(caller, log, version)
    }

    /// As [`Committer::commit`], for a caller that holds locks of the store. Callbacks are left to the background
    /// thread, or to the next thread that may run them.
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

    /// Whether the calling thread runs a callback, and a background thread can run those that become due meanwhile.
    fn leaves_callbacks(&self) -> bool {
        is_in_callback() && self.in_background.any()
    }

    /// The highest version for which the background committer was asked.
    pub fn requested(&self) -> u64 {
        self.requested.load(Ordering::Acquire)
    }

    /// Notes that no background thread could be started, or that it has ended.
    pub fn note_alone(&self) {
        self.alone.store(true, Ordering::Release);
    }

    /// Whether a thread that asks for a commit must make it itself.
    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    /// Whether callbacks may be ready that no other thread runs.
    pub fn nobody_else_calls_back(&self) -> bool {
        self.is_alone() || !self.in_background.any() && self.state.lock().error.is_some()
    }

    /// Runs `f`, a background loop that runs callbacks from time to time.
    pub fn while_in_background(&self, f: impl FnOnce()) {
        self.in_background.during(f);
    }

    /// Runs the callbacks that other threads have left. Call with no lock of the store held.
    pub fn call_back(&self) {
        Self::run_ready(&mut self.state.lock());
    }

    fn run_ready(state: &mut MutexGuard<'_, State>) {
        if !state.ready.is_empty() {
            let ready = std::mem::take(&mut state.ready);
            MutexGuard::unlocked(state, || run_callbacks(ready));
        }
    }

    /// After a commit: runs the callbacks that are due, or leaves them to the background thread.
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
            // Checked first: a durable version stays durable, whatever has failed since.
            if self.durable() >= version {
                return Ok(());
            }
            if let Some(error) = &state.error {
                return Err(Error::SyncFailed(error.clone()));
            }
            if state.leading {
                self.changed.wait(state);
                continue;
            }
            state.leading = true;
            Self::gather(state);
            let led = MutexGuard::unlocked(state, || catch_unwind(AssertUnwindSafe(|| self.lead(log))));
            state.leading = false;
            // Nobody knows what a commit that panicked has done, so it counts as a failed sync. Others must not wait
            // for it for ever.
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

    /// Waits until as many threads wait as last time, or [`GATHER`] has passed.
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

    /// After a failed sync: refuses writes, keeps the reason for those who wait, and makes all callbacks due with it.
    fn give_up(&self, state: &mut State, error: &Error) {
        self.refusing.store(true, Ordering::SeqCst);
        // Only the reason: [`Error::SyncFailed`] adds its text again when the error is reported.
        let why = if let Error::SyncFailed(why) = error { why.clone() } else { error.to_string() };
        let waiting = std::mem::take(&mut state.callbacks);
        state.ready.extend(waiting.into_values().flatten().map(|callback| (callback, Some(why.clone()))));
        state.error = Some(why);
    }

    /// Has the background committer make `version` durable soon, or does it now where there is none. An error poisons
    /// the store. Call outside writer sections and without latches.
    pub fn request(&self, log: &Log, version: u64) {
        if self.is_alone() {
            let _ = self.commit(log, version);
            // Others, with locks held, may have made it durable and left the callbacks to the next thread.
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

/// Runs the callbacks, or, inside another callback, leaves them until that has returned. A panic ends the callback that
/// panics only. It must reach neither the other callbacks nor the thread that happened to lead the commit, such as the
/// background thread.
fn run_callbacks(callbacks: Vec<Due>) {
    if CALLS_BACK.replace(true) {
        let mut left = ManuallyDrop::into_inner(LEFT.take());
        left.extend(callbacks);
        return LEFT.set(ManuallyDrop::new(left));
    }
    let mut next = callbacks;
    while !next.is_empty() {
        for (callback, error) in next {
            let outcome = error.map_or(Ok(()), |error| Err(Error::SyncFailed(error)));
            // The panic hook has reported it.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(outcome)));
        }
        next = ManuallyDrop::into_inner(LEFT.take());
    }
    CALLS_BACK.set(false);
}

thread_local! {
    /// Whether this thread runs callbacks of tickets.
    static CALLS_BACK: Cell<bool> = const { Cell::new(false) };
    /// Callbacks that this thread runs when the one that it is running has returned; empty otherwise. Without a
    /// destructor, so that it can be used while the thread ends.
    static LEFT: Cell<ManuallyDrop<Vec<Due>>> = const { Cell::new(ManuallyDrop::new(Vec::new())) };
}

/// Whether this thread runs a callback of a ticket. If so, the store's own work may be waiting for this thread, and
/// this thread may hold locks that such work takes.
pub(crate) fn is_in_callback() -> bool {
    CALLS_BACK.get()
}

/// A write that was made and may not be durable yet.
///
/// Dropping a ticket neither undoes the write nor waits. The background thread has been asked to make the write
/// durable, at once or within its interval (at the level `process`: not at all). If that fails, only later writes
/// report it. A ticket keeps the store's files open and locked while it lives.
#[derive(Clone)]
#[must_use = "a ticket says when the write is durable"]
pub struct Ticket {
    core: Option<Arc<crate::store::Core>>,
    version: u64,
}

impl Ticket {
    /// A ticket of a write that is already durable at the level asked for.
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

    /// Waits until the write is durable at the level asked for (at once for a write at
    /// [`crate::Durability::Process`]). Leads a commit if no other thread does.
    ///
    /// # Errors
    /// [`Error::SyncFailed`] if a sync failed.
    pub fn wait(&self) -> Result<()> {
        self.core.as_ref().map_or(Ok(()), |core| core.committer.commit(&core.log, self.version))
    }

    /// Calls `f` once the write is durable at the level asked for, or can no longer become so; at once if that is known
    /// already.
    ///
    /// `f` runs on a thread that led a commit or waited for one, perhaps one of the store's, but inside no other
    /// callback. It must not block. Inside it, closing, checking, compacting, copying or reclaiming the store, taking a
    /// checkpoint, and creating, dropping or renaming keyspaces fail with [`Error::InsideCallback`]. If `f` panics, the
    /// panic hook reports that, and the panic goes no further.
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
