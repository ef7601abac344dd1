//! The store: what it consists of and how it is opened and closed.

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

/// What operations need; shared with background threads and guards.
pub(crate) struct Core {
    pub log: Arc<Log>,
    pub hasher: Hasher,
    pub latches: LatchTable,
    pub committer: Committer,
    pub snapshots: Snapshots,
    pub checkpoints: Checkpoints,
    pub durability: Durability,
    /// Most live bytes in per cent, if they are bounded.
    pub utilization: Option<u32>,
    /// Some medium needs a sync for durability.
    pub needs_sync: bool,
    /// A fence makes durable what the store's level asks for.
    pub durable_by_fence: bool,
    /// See [`Options::space_patience`].
    pub space_patience: Duration,
    /// Expiry never runs backwards: max(wall clock, persisted, what anybody was told has expired).
    clock_floor_ms: AtomicU64,
    pub keyspaces: RwLock<BTreeMap<String, Arc<Keyspace>>>,
    catalogue: Mutex<Catalogue>,
    pub collector: Box<dyn Collector>,
    pub shortcuts: Shortcuts,
    pub techniques: Techniques,
    /// What the verification in the background found.
    pub damage: Mutex<Vec<String>>,
    pub collections: Collections,
    /// Held by whoever compacts by hand.
    pub compacting: ReentrantMutex<()>,
    /// Held over each write of the sweeper, and over a check, which has to see one state. Taken before what keeps passes off.
    pub sweeping: Mutex<()>,
    /// Who deletes what has expired, in the background.
    pub expiring: Attendance,
    /// Held by the writer that sweeps because it found no space; what came of it the last time.
    pub space_sweep: Mutex<Option<SpaceSweep>>,
    /// Share of garbage from which on a segment is collected in the background.
    pub gc_threshold: f64,
    /// The index of ordered keyspaces.
    pub ordered_index: OrderedKind,
    /// A full node's threads write to other nodes.
    pub spill: bool,
    pub meter: Option<Arc<hither_topology::Meter>>,
    pub cache: Cache,
    pub delegation: Delegation,
    pub pool_paths: Vec<String>,
    /// What each pool held when the store was opened.
    pub appended_at_open: Vec<hither_log::AppendedBytes>,
}

impl Core {
    #[inline(always)]
    pub fn resolver(&self) -> LogResolver<'_> {
        LogResolver { log: &self.log, hasher: self.hasher }
    }

    /// Whether a delete that was written so may be lost, and what is written after it stay: where stores reach the medium in their order, or by syncs alone, it goes with all
    /// that came after it.
    #[inline(always)]
    pub fn may_be_lost(&self, flush: Flush) -> bool {
        self.needs_sync || (flush == Flush::Later && self.log.needs_flush())
    }

    /// What the log calls to make something durable, with locks held.
    pub fn make_durable(&self) -> impl Fn(u64) -> hither_log::Result<()> + '_ {
        |version| self.committer.commit_with_locks(&self.log, version).map_err(as_log_error)
    }

    /// After an error: a sync that failed leaves the same doubt whatever it was of, a descriptor or zeros, so the store takes no more writes. Callbacks are left to others.
    #[cold]
    pub fn heed_failed_syncs(&self) {
        let mut pools = (0..self.log.nodes()).map(|node| self.log.pool(node));
        if let Some(Err(error)) = pools.find(|pool| pool.is_poisoned()).map(hither_pmem::Pool::sync)
            && self.committer.failure().is_ok()
        {
            self.committer.fail(&error.into());
        }
    }

    /// Passes an outcome on; see [`Core::heed_failed_syncs`].
    pub fn heeding_failed_syncs<T, E>(&self, outcome: std::result::Result<T, E>) -> std::result::Result<T, E> {
        outcome.inspect_err(|_| self.heed_failed_syncs())
    }

    /// A sync that failed on the way is reported as what it is, not as an error of the log.
    pub fn explain(&self, error: hither_log::Error) -> Error {
        self.committer.failure().err().unwrap_or_else(|| error.into())
    }
}

/// The log asks for durability through its own error type.
pub(crate) fn as_log_error(error: Error) -> hither_log::Error {
    hither_log::Error::Durability(error.to_string())
}

impl Store {
    /// Opens a store, creating or recovering it as need be.
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
        let Restart { hasher, keyspaces, mut recovery, checkpoints } = Restart::run(&log, &mut names, &options)?;
        recovery.salvaged.splice(0..0, salvaged);
        recovery.clock_ahead_ms = clock_ms.saturating_sub(wall_clock_ms());
        let mut catalogue = names.catalogue;
        // Only after a salvage: a number with entries on media is never given out again.
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

    /// The time by which keys expire, in milliseconds since 1970: the machine's, but never behind what the store remembers.
    pub fn now_ms(&self) -> u64 {
        self.core.now_ms()
    }

    /// What tells the store from all others, copies of its files aside.
    #[doc(hidden)]
    pub fn uuid(&self) -> [u8; 16] {
        self.core.log.pool(0).superblock().store_uuid
    }

    /// Makes durable that what somebody was told to have expired has, whatever the machine's clock says at the next start. Waits for a sync if that was not so.
    #[doc(hidden)]
    pub fn persist_expiries(&self) -> Result<()> {
        self.core.persist_told()
    }

    /// What recovery did at open.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Makes everything written so far durable.
    pub fn sync(&self) -> Result<()> {
        let version = self.core.log.clock.stable();
        self.core.committer.commit(&self.core.log, version)
    }

    /// Collects garbage now, as the background does when space is short: seals full segments, empties those of which at least `gc_threshold` is garbage and
    /// frees them; returns the number of segments that became free. Waits for readers that may still look at them.
    pub fn reclaim(&self) -> Result<usize> {
        ensure_may_wait("reclaim")?;
        self.core.reclaim()
    }

    /// Takes a checkpoint of the indexes now, so that a restart scans only what comes later. False if this store keeps none, or if lack of space made it
    /// void.
    pub fn checkpoint(&self) -> Result<bool> {
        ensure_may_wait("checkpoint")?;
        self.core.committer.ensure_writable()?;
        self.core.checkpoints.take(&self.core, false, &mut || true)
    }

    /// Deletes keys whose time has come, as maintenance does, and returns how many; for tests, which run without it.
    #[doc(hidden)]
    pub fn sweep_expired(&self) -> usize {
        self.core.sweep_expired()
    }

    /// Leaves out versions, as if so many writes had been made; for tests of what comes after them.
    #[doc(hidden)]
    pub fn skip_versions(&self, count: u64) {
        let clock = &self.core.log.clock;
        clock.raise(clock.upper_bound() + count);
    }

    /// Refuses further writes, stops background work, makes everything durable and marks the store clean. Also done when the last handle is
    /// dropped; inside a read, of another store, that is left to a thread of its own. Reads go on.
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]; then nothing has changed. Otherwise the store refuses writes from now on, and is as after a crash when it is
    /// opened again.
    pub fn close(&self) -> Result<()> {
        ensure_may_wait("close")?;
        self.shut()
    }

    /// Ends it without making anything durable, nor telling other handles, for who is about to remove its files: it would be a store after a crash. Takes no more writes.
    #[doc(hidden)]
    pub fn abandon(&self) {
        let mut maintenance = self.maintenance.lock();
        // Whoever closes it now has nothing left to do.
        self.core.committer.refuse_writes();
        if let Some(maintenance) = maintenance.take() {
            maintenance.stop();
        }
    }

    /// All keyspaces, in the order of their creation, and a snapshot that shows them with these names: none is made, dropped or renamed around its moment.
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
        // Held to the end: who closes it beside another returns when it is closed.
        let mut maintenance = self.maintenance.lock();
        self.core.shut(maintenance.take())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let maintenance = self.maintenance.get_mut().take();
        // The callback of a ticket had the last handle: its thread is one of those that a close waits for, and may hold what a close takes. Or this is inside a read, of another store: a close waits
        // for collectors, and they for all reads.
        let waits_for_itself = maintenance.as_ref().is_some_and(Maintenance::runs_here) || epoch::is_pinned();
        if waits_for_itself {
            maintenance.iter().for_each(Maintenance::begin_stop);
            let core = self.core.clone();
            let close = move || drop(core.shut(maintenance));
            // Without a thread (limits) the store is as after a crash when it is opened again.
            let _ = std::thread::Builder::new().name("hither-close".to_owned()).spawn(close);
        } else {
            // An error here was either reported by an earlier write (the store is poisoned) or only leaves the clean flag unset.
            drop(self.core.shut(maintenance));
        }
    }
}

/// Refuses what waits until readers have left, or for threads and locks of the store, if this thread is such a reader or may be such a thread: it would wait for itself.
pub(crate) fn ensure_may_wait(what: &'static str) -> Result<()> {
    ensure_outside_callbacks(what)?;
    if epoch::is_pinned() { Err(Error::InsideRead(what)) } else { Ok(()) }
}

/// Refuses what takes locks of the store, if this thread may hold them: it may have led a commit with them, and callbacks run behind that.
fn ensure_outside_callbacks(what: &'static str) -> Result<()> {
    if commit::is_in_callback() { Err(Error::InsideCallback(what)) } else { Ok(()) }
}

impl Core {
    /// See [`Store::close`]; ends the background work, if there is any.
    fn shut(&self, maintenance: Option<Maintenance>) -> Result<()> {
        let first = self.committer.refuse_writes();
        if let Some(maintenance) = maintenance {
            maintenance.stop();
        }
        if !first {
            // A store without a thread in the background has nobody else to tell those who wait of a failed sync.
            self.committer.call_back();
            return self.committer.failure();
        }
        // Waits for writers under way, too: whoever begins later is refused.
        let durable = self.committer.commit(&self.log, self.log.clock.stable());
        self.committer.call_back();
        durable?;
        self.persist_clock()?;
        // A pass of a thread of the caller's may be under way still: what it has copied counts.
        self.without_passes(|| self.log.record_totals())?;
        self.checkpoints.take_final(self);
        for node in 0..self.log.nodes() {
            self.log.pool(node).mark_clean()?;
        }
        Ok(())
    }

    /// Keys of all ordered and of all hash keyspaces.
    pub fn keys_by_kind(&self) -> [u64; 2] {
        let keyspaces = self.keyspaces.read();
        let of = |kind| keyspaces.values().filter(|keyspace| keyspace.info.kind == kind).map(|keyspace| keyspace.len() as u64).sum();
        [of(Kind::Ordered), of(Kind::Hash)]
    }

    /// Total DRAM of the indexes.
    pub fn index_bytes(&self) -> usize {
        self.keyspaces.read().values().map(|keyspace| with_index!(keyspace, index => index.memory_bytes())).sum()
    }
}
