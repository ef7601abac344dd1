//! The store: what it consists of and how it is opened and closed.
//!
//! Thread safety: a [`Store`] is `Send + Sync`. Operations, background threads, snapshots and tickets share its `Core`.
//!
//! Crash: an opening that is interrupted is repeated by the next one. Only [`Store::close`], or the drop of the last
//! handle, marks the pools clean, as its last step. A store that was not closed, or whose close failed, is recovered as
//! after a crash.

mod clock;
mod keyspaces;

use crate::catalogue::Catalogue;
use crate::checkpoint::Checkpoints;
use crate::collector::{Collections, Collector};
use crate::commit::{self, Committer};
use crate::delegation::Delegation;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, KeyspaceHandle, Kind, OrderedKind, with_index};
use crate::maintenance::Maintenance;
use crate::openings;
use crate::options::{Durability, Options, Techniques, wall_clock_ms};
use crate::recovery::RecoveryReport;
use crate::resolver::LogResolver;
use crate::restart::Restart;
use crate::salvage;
use crate::shortcuts::Shortcuts;
use crate::snapshot::{Snapshot, Snapshots};
use crate::sweeps::SpaceSweep;
use hither_cache::Cache;
use hither_index::{Hasher, Index};
use hither_log::{Flush, Log};
use hither_sync::latch::LatchTable;
use hither_sync::{Attendance, epoch};
use parking_lot::{Mutex, ReentrantMutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// An open store. See the crate's documentation for its guarantees.
pub struct Store {
    pub(crate) core: Arc<Core>,
    maintenance: Mutex<Option<Maintenance>>,
    recovery: RecoveryReport,
}

/// What operations need. Background threads, snapshots and tickets share it.
pub(crate) struct Core {
    pub log: Arc<Log>,
    pub hasher: Hasher,
    pub latches: LatchTable,
    pub committer: Committer,
    pub snapshots: Snapshots,
    pub checkpoints: Checkpoints,
    pub durability: Durability,
    /// Upper bound of live bytes, in per cent of what the store may grow to, if there is a bound.
    pub utilization: Option<u32>,
    /// Some medium needs a sync for durability.
    pub needs_sync: bool,
    /// The store's level is `sync`, and a fence suffices for it.
    pub durable_by_fence: bool,
    /// See [`Options::space_patience`].
    pub space_patience: Duration,
    /// Lower bound of the store's time, so that expiry never runs backwards: the largest of the time that the pool
    /// remembers and every expiry that was reported as past.
    clock_floor_ms: AtomicU64,
    /// The latest expiry that was reported as past. At most `clock_floor_ms`, which is raised first.
    told_ms: AtomicU64,
    pub keyspaces: RwLock<BTreeMap<String, Arc<Keyspace>>>,
    catalogue: Mutex<Catalogue>,
    pub collector: Box<dyn Collector>,
    pub shortcuts: Shortcuts,
    pub techniques: Techniques,
    /// Damage that the verification in the background found.
    pub damage: Mutex<Vec<String>>,
    pub collections: Collections,
    /// Held by a manual compaction.
    pub compacting: ReentrantMutex<()>,
    /// Held during each delete of the sweeper, and during a check, which must see one state. Taken before the lock that
    /// keeps collection passes off.
    pub sweeping: Mutex<()>,
    /// Counts the threads that delete expired keys in the background.
    pub expiring: Attendance,
    /// Held by a writer while it sweeps because it found no space. Contains the outcome of the last such sweep.
    pub space_sweep: Mutex<Option<SpaceSweep>>,
    /// Share of garbage, 0 to 1, from which on a segment is collected in the background.
    pub gc_threshold: f64,
    /// The index of ordered keyspaces.
    pub ordered_index: OrderedKind,
    /// Whether threads of a node whose pool is full write to other nodes.
    pub spill: bool,
    pub meter: Option<Arc<hither_topology::Meter>>,
    pub cache: Cache,
    pub delegation: Delegation,
    pub pool_paths: Vec<String>,
    /// Bytes that had been appended to each pool when the store was opened.
    pub appended_at_open: Vec<hither_log::AppendedBytes>,
}

impl Core {
    #[inline(always)]
    pub fn resolver(&self) -> LogResolver<'_> {
        LogResolver { log: &self.log, hasher: self.hasher }
    }

    /// Whether a crash may lose a delete that was written with `flush`, and keep what is written after it. Elsewhere a
    /// fence makes the delete durable before it is installed, or stores reach the medium in their order, or a crash
    /// loses everything.
    #[inline(always)]
    pub fn may_be_lost(&self, flush: Flush) -> bool {
        self.needs_sync || (flush == Flush::Later && self.log.needs_flush())
    }

    /// Returns the function that the log calls, with locks held, to make everything up to a version durable.
    pub fn make_durable(&self) -> impl Fn(u64) -> hither_log::Result<()> + '_ {
        |version| self.committer.commit_with_locks(&self.log, version).map_err(as_log_error)
    }

    /// Called after an error: if a sync of some pool has failed, makes the store refuse writes. Whatever that sync was
    /// for (a descriptor, zeros), its failure leaves the same doubt. Callbacks are left to other threads.
    #[cold]
    pub fn heed_failed_syncs(&self) {
        let mut pools = (0..self.log.nodes()).map(|node| self.log.pool(node));
        if let Some(Err(error)) = pools.find(|pool| pool.is_poisoned()).map(hither_pmem::Pool::sync)
            && self.committer.failure().is_ok()
        {
            self.committer.fail(&error.into());
        }
    }

    /// Passes an outcome on, after [`Core::heed_failed_syncs`] if it is an error.
    pub fn heeding_failed_syncs<T, E>(&self, outcome: std::result::Result<T, E>) -> std::result::Result<T, E> {
        outcome.inspect_err(|_| self.heed_failed_syncs())
    }

    /// Converts an error of the log. If a sync has failed on the way, returns that failure instead.
    pub fn explain(&self, error: hither_log::Error) -> Error {
        self.committer.failure().err().unwrap_or_else(|| error.into())
    }
}

/// Wraps an error for the log, whose callbacks report failures of durability in its own error type.
pub(crate) fn as_log_error(error: Error) -> hither_log::Error {
    hither_log::Error::Durability(error.to_string())
}

impl Store {
    /// Opens a store; creates or recovers it as needed.
    pub fn open(mut options: Options) -> Result<Store> {
        options.settle_read_only();
        let opened = crate::pools::open(&options)?;
        let older_copy = openings::older_copy(&opened.pools);
        if let Some(what) = older_copy.as_ref().filter(|_| !options.salvage) {
            return Err(Error::OlderCopy(what.clone()));
        }
        let mut salvaged: Vec<String> = opened.pools.iter().flat_map(|pool| pool.salvage_notes().iter().cloned()).collect();
        salvaged.extend(older_copy);
        let mut names = salvage::names(&opened.pools[0], &mut salvaged)?;
        let log_options = crate::pools::log_options(&options, &opened);
        let needs_sync = opened.pools.iter().any(hither_pmem::Pool::needs_sync);
        let pool_paths =
            opened.pools.iter().map(|pool| pool.path().map_or_else(|| "(memory)".to_owned(), |path| path.display().to_string())).collect();
        let clock_ms = opened.pools[0].clock_ms();
        let log = Arc::new(Log::new(opened.pools, &log_options, 0));
        let Restart { hasher, keyspaces, mut recovery, checkpoints } = Restart::run(&log, &mut names, &options, salvaged)?;
        recovery.clock_ahead_ms = clock_ms.saturating_sub(wall_clock_ms());
        let mut catalogue = names.catalogue;
        // Matters only after a salvage: a keyspace number that entries on media carry is never assigned again.
        catalogue.next_id = catalogue.next_id.max(recovery.newest_keyspace.saturating_add(1));
        let mut committer = Committer::new(recovery.last_version, options.durability, needs_sync);
        if options.read_only {
            committer.forbid_writes();
        }
        if committer.reads_check() {
            log.note_reason();
        }
        let core = Arc::new(Core {
            latches: LatchTable::new(options.latches, recovery.last_version),
            committer,
            snapshots: Snapshots::default(),
            checkpoints,
            durability: options.durability,
            utilization: options.utilization,
            needs_sync,
            durable_by_fence: !needs_sync && options.durability == Durability::Sync,
            space_patience: options.space_patience,
            clock_floor_ms: AtomicU64::new(clock_ms),
            told_ms: AtomicU64::new(clock_ms),
            keyspaces: RwLock::new(keyspaces.into_iter().map(|keyspace| (keyspace.info.name.clone(), keyspace)).collect()),
            catalogue: Mutex::new(catalogue),
            shortcuts: Shortcuts::new(&options)?,
            collector: crate::collector::make(options.collector, recovery.last_version == 0),
            techniques: options.techniques,
            damage: Mutex::default(),
            collections: Collections::default(),
            compacting: ReentrantMutex::default(),
            sweeping: Mutex::default(),
            expiring: Attendance::default(),
            space_sweep: Mutex::default(),
            gc_threshold: options.gc_threshold.clamp(0.01, 1.0),
            spill: options.spill,
            ordered_index: options.ordered_index,
            cache: crate::cache::for_store(&options, &log),
            delegation: Delegation::new(options.delegation, &log),
            meter: opened.meter,
            appended_at_open: log.appended(),
            pool_paths,
            hasher,
            log,
        });
        openings::count(&core.log)?;
        if options.utilization.is_some() {
            core.log.measure_live();
        }
        let maintenance =
            options.background.then(|| Maintenance::start(&core, options.gc_threads, options.delegation.threads)).transpose()?;
        Ok(Store { core, maintenance: Mutex::new(maintenance), recovery })
    }

    /// The time by which keys expire, in milliseconds since 1970: the machine's, but never behind the time that the
    /// store remembers.
    pub fn now_ms(&self) -> u64 {
        self.core.now_ms()
    }

    /// The UUID of the store. Only copies of its files share it.
    #[doc(hidden)]
    pub fn uuid(&self) -> [u8; 16] {
        self.core.log.pool(0).superblock().store_uuid
    }

    /// Persists the store's time, so that every key that was reported expired stays expired at the next start, whatever
    /// the machine's clock says then. Waits for a sync unless that time is durable already.
    #[doc(hidden)]
    pub fn persist_expiries(&self) -> Result<()> {
        self.core.persist_told()
    }

    /// Reports what recovery did when the store was opened.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Makes everything written so far durable.
    pub fn sync(&self) -> Result<()> {
        let version = self.core.log.clock.stable();
        self.core.committer.commit(&self.core.log, version)
    }

    /// Collects garbage now, as the background does when space is short, and returns the number of segments that became
    /// free. Seals full segments, empties those of which at least `gc_threshold` is garbage, and frees them. Waits for
    /// readers that may still look at these segments.
    pub fn reclaim(&self) -> Result<usize> {
        ensure_may_wait("reclaim")?;
        self.core.reclaim()
    }

    /// Takes a checkpoint of the indexes now, so that a restart scans only what comes later. Returns false if this
    /// store keeps no checkpoints, or if lack of space made the checkpoint void.
    pub fn checkpoint(&self) -> Result<bool> {
        ensure_may_wait("checkpoint")?;
        self.core.committer.ensure_writable()?;
        self.core.checkpoints.take(&self.core, false, &mut || true)
    }

    /// Deletes expired keys, as maintenance does, and returns how many. For tests, which run without maintenance.
    #[doc(hidden)]
    pub fn sweep_expired(&self) -> usize {
        self.core.sweep_expired()
    }

    /// Skips `count` versions, as if as many writes had been made; for tests of what happens after that many.
    #[doc(hidden)]
    pub fn skip_versions(&self, count: u64) {
        let clock = &self.core.log.clock;
        clock.raise(clock.upper_bound() + count);
    }

    /// Refuses further writes, stops background work, makes everything durable and marks the store clean. Reads stay
    /// possible.
    ///
    /// Dropping the last handle does the same. If that happens inside a read (of another store), or in a callback on a
    /// thread of the store, the close is left to a thread of its own.
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]: nothing has changed. After any other error the store refuses
    /// writes, and the next opening recovers it as after a crash.
    pub fn close(&self) -> Result<()> {
        ensure_may_wait("close")?;
        self.shut()
    }

    /// Ends background work and refuses writes, but makes nothing durable and does not notify other handles. For a
    /// caller that is about to remove the store's files: it leaves the store as after a crash.
    #[doc(hidden)]
    pub fn abandon(&self) {
        let mut maintenance = self.maintenance.lock();
        // A close from now on has nothing left to do.
        self.core.committer.refuse_writes();
        if let Some(maintenance) = maintenance.take() {
            maintenance.stop();
        }
        self.core.committer.note_alone();
    }

    /// Takes a snapshot, and returns it with handles of all keyspaces in the order of their creation. The snapshot
    /// shows the keyspaces with these names: none is created, dropped or renamed meanwhile.
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`].
    pub fn view(&self) -> Result<(Snapshot, Vec<KeyspaceHandle>)> {
        ensure_may_wait("view")?;
        let _unchanged = self.core.catalogue.lock();
        let snapshot = self.snapshot();
        let mut keyspaces: Vec<_> = self.core.keyspaces.read().values().cloned().map(KeyspaceHandle).collect();
        keyspaces.sort_by_key(|keyspace| keyspace.info().id);
        Ok((snapshot, keyspaces))
    }

    fn shut(&self) -> Result<()> {
        // Held to the end: a second concurrent close returns only when the store is closed.
        let mut maintenance = self.maintenance.lock();
        self.core.shut(maintenance.take())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let maintenance = self.maintenance.get_mut().take();
        // A close would wait for itself in two cases. The callback of a ticket may have had the last handle: its thread
        // is one of those that a close waits for, and may hold locks that a close takes. Or this runs inside a read of
        // another store: a close waits for collectors, and collectors wait for all reads.
        let waits_for_itself = maintenance.as_ref().is_some_and(Maintenance::runs_here) || epoch::is_pinned();
        if waits_for_itself {
            maintenance.iter().for_each(Maintenance::begin_stop);
            let core = self.core.clone();
            let close = move || drop(core.shut(maintenance));
            // If no thread can be started (limits), the next opening recovers the store as after a crash.
            if std::thread::Builder::new().name("hither-close".to_owned()).spawn(close).is_err() {
                self.core.committer.note_alone();
            }
        } else {
            // An error here was either reported by an earlier write (the store is poisoned) or only leaves the clean
            // flag unset.
            drop(self.core.shut(maintenance));
        }
    }
}

/// Fails if this thread is inside a read or in a callback. For operations that wait until readers have left, or for
/// threads and locks of the store: there they would wait for themselves.
pub(crate) fn ensure_may_wait(what: &'static str) -> Result<()> {
    ensure_outside_callbacks(what)?;
    if epoch::is_pinned() { Err(Error::InsideRead(what)) } else { Ok(()) }
}

/// Fails if this thread is in a callback. For operations that take locks of the store: the thread may hold them, since
/// callbacks run after a commit, which it may have led with locks held.
fn ensure_outside_callbacks(what: &'static str) -> Result<()> {
    if commit::is_in_callback() { Err(Error::InsideCallback(what)) } else { Ok(()) }
}

impl Core {
    /// See [`Store::close`]. `maintenance` is the background work to stop, if there is any.
    fn shut(&self, maintenance: Option<Maintenance>) -> Result<()> {
        let first = self.committer.refuse_writes();
        if let Some(maintenance) = maintenance {
            maintenance.stop();
        }
        // Who asks for a commit from now on has to make it: tickets outlive the close.
        self.committer.note_alone();
        // Whoever closes the store again is told of a sync that failed here.
        let outcome = if first { self.heeding_failed_syncs(self.shut_quiet()) } else { self.committer.failure() };
        // Also of what became durable with locks held; and of those who wait for a sync that has failed.
        self.committer.call_back();
        outcome
    }

    /// As [`Core::shut`], when no write begins any more and there are no background threads.
    fn shut_quiet(&self) -> Result<()> {
        // Waits for writers under way, too. Somebody may have asked for more than they have written.
        let durable = self.committer.commit(&self.log, self.log.clock.stable().max(self.committer.requested()));
        self.committer.call_back();
        durable?;
        self.persist_clock()?;
        // Nothing is being written any more: the next opening need not count the members of any batch.
        self.log.note_settled(self.log.clock.stable())?;
        // A pass on a thread of the caller's may still be under way: the totals must count what it has copied.
        self.without_passes(|| self.log.record_totals())?;
        self.checkpoints.take_final(self);
        for node in 0..self.log.nodes() {
            self.log.pool(node).mark_clean()?;
        }
        Ok(())
    }

    /// Number of keys of all ordered keyspaces, and of all hash keyspaces.
    pub fn keys_by_kind(&self) -> [u64; 2] {
        let keyspaces = self.keyspaces.read();
        let of = |kind| keyspaces.values().filter(|keyspace| keyspace.info.kind == kind).map(|keyspace| keyspace.len() as u64).sum();
        [of(Kind::Ordered), of(Kind::Hash)]
    }

    /// DRAM of all indexes, in bytes.
    pub fn index_bytes(&self) -> usize {
        self.keyspaces.read().values().map(|keyspace| with_index!(keyspace, index => index.memory_bytes())).sum()
    }
}
