//! The store: what it consists of and how it is opened, changed in its keyspaces, and closed.

use crate::catalogue::Catalogue;
use crate::checkpoint::Checkpoints;
use crate::collector::{Collections, Collector};
use crate::commit::{self, Committer};
use crate::delegation::Delegation;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, KeyspaceHandle, KeyspaceInfo, Kind, OrderedKind, with_index};
use crate::maintenance::Maintenance;
use crate::openings;
use crate::options::{Durability, Expiry, Options, Techniques, WriteOptions, wall_clock_ms};
use crate::recovery::RecoveryReport;
use crate::resolver::LogResolver;
use crate::restart::Restart;
use crate::salvage;
use crate::shortcuts::Shortcuts;
use crate::snapshot::{Snapshot, Snapshots};
use crate::sweeps::SpaceSweep;
use hither_cache::Cache;
use hither_index::{Hasher, Index};
use hither_log::Log;
use hither_sync::epoch;
use hither_sync::latch::LatchTable;
use parking_lot::{Mutex, ReentrantMutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

    /// The keyspaces that exist now, by number.
    pub fn keyspaces_by_id(&self) -> HashMap<u32, Arc<Keyspace>> {
        self.keyspaces.read().values().map(|keyspace| (keyspace.info.id, keyspace.clone())).collect()
    }

    /// The time for expiry, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        wall_clock_ms().max(self.clock_floor_ms.load(Ordering::Relaxed))
    }

    /// When what is written now with these options expires; 0: never.
    pub fn expiry_ms(&self, options: &WriteOptions) -> u64 {
        match options.expiry {
            None => 0,
            Some(Expiry::AtMs(at)) => at,
            // Not less than what was asked for: of a time below a millisecond nothing would be left.
            Some(Expiry::After(ttl)) => self.now_ms().saturating_add(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)),
        }
    }

    /// Whether an entry with this expiry counts as absent.
    #[inline(always)]
    pub fn is_expired(&self, expiry_ms: u64) -> bool {
        expiry_ms != 0 && (expiry_ms <= self.clock_floor_ms.load(Ordering::Relaxed) || self.expires_now(expiry_ms))
    }

    /// Whether this time has come by the machine's clock. Once somebody was told so it is remembered, should that clock be set back.
    #[inline(never)]
    fn expires_now(&self, expiry_ms: u64) -> bool {
        let has_come = expiry_ms <= wall_clock_ms();
        if has_come {
            self.remember_time(expiry_ms);
        }
        has_come
    }

    /// What expires up to then somebody may have been told to be gone.
    #[cfg(test)]
    pub fn told_ms(&self) -> u64 {
        self.clock_floor_ms.load(Ordering::Relaxed)
    }

    /// Somebody was told that what expires at this time is not there any more.
    pub fn remember_time(&self, expiry_ms: u64) {
        if expiry_ms > self.clock_floor_ms.load(Ordering::Relaxed) {
            self.clock_floor_ms.fetch_max(expiry_ms, Ordering::Relaxed);
        }
    }

    /// Persists the time, so that a clock that is set back revives nothing.
    pub fn persist_clock(&self) -> Result<()> {
        let now = self.now_ms();
        self.clock_floor_ms.fetch_max(now, Ordering::Relaxed);
        Ok(self.heeding_failed_syncs(self.log.pool(0).set_clock_ms(now))?)
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
        let maintenance = options.background.then(|| Maintenance::start(&core, options.gc_threads, options.delegation.threads));
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
        let told = self.core.clock_floor_ms.load(Ordering::Relaxed);
        if told > self.core.log.pool(0).clock_ms() { self.core.persist_clock() } else { Ok(()) }
    }

    /// What recovery did at open.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// All keyspaces, by id.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let mut infos: Vec<_> = self.core.keyspaces.read().values().map(|keyspace| keyspace.info.clone()).collect();
        infos.sort_by_key(|info| info.id);
        infos
    }

    /// A handle of an existing keyspace. Waits for an exchange of names under way, unless in the callback of a ticket, where it may be refused from the start.
    pub fn open_keyspace(&self, name: &str) -> Option<KeyspaceHandle> {
        let find = || self.core.keyspaces.read().get(name).cloned();
        let mut found = find();
        if found.as_ref().is_some_and(|keyspace| keyspace.is_dropped()) && !commit::is_in_callback() {
            let _exchanged = self.core.catalogue.lock();
            found = find();
        }
        found.map(KeyspaceHandle)
    }

    /// Creates a keyspace; durable at return. Refused in the callback of a ticket, like whatever changes the catalogue ([`Error::InsideCallback`]).
    pub fn create_keyspace(&self, name: &str, kind: Kind) -> Result<KeyspaceHandle> {
        ensure_outside_callbacks("create_keyspace")?;
        self.core.committer.ensure_writable()?;
        let mut catalogue = self.core.catalogue.lock();
        let mut changed = catalogue.clone();
        let info = changed.add(name, kind)?;
        self.core.set_catalogue(&changed)?;
        *catalogue = changed;
        let keyspace = Arc::new(Keyspace::new(info, self.core.hasher, self.core.ordered_index));
        self.core.keyspaces.write().insert(name.to_owned(), keyspace.clone());
        Ok(KeyspaceHandle(keyspace))
    }

    /// Drops a keyspace with all its keys; durable at return. False if there is none of this name. O(keys) for the accounting.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        ensure_outside_callbacks("drop_keyspace")?;
        self.core.committer.ensure_writable()?;
        // Begins before collectors can find the keyspace missing and ends when its entries are counted: until then no segment that they empty begins a new life, to
        // which the count would go (`live_bytes` would be too small there, and live entries might pass for dead).
        let pin;
        let dropped = {
            let mut catalogue = self.core.catalogue.lock();
            let mut changed = catalogue.clone();
            if changed.remove(name).is_none() {
                return Ok(false);
            }
            self.core.set_catalogue(&changed)?;
            *catalogue = changed;
            pin = epoch::pin();
            let mut keyspaces = self.core.keyspaces.write();
            // With the lock held: a reader that does not see the flag began before collectors could find the keyspace missing, so what it reads there stays.
            keyspaces.remove(name).inspect(|keyspace| {
                keyspace.dropped.store(true, Ordering::SeqCst);
                keyspace.discarded.store(true, Ordering::SeqCst);
            })
        };
        if let Some(keyspace) = dropped {
            // Writers that did not see the flags finish first; later ones refuse, and collectors move nothing of it any more: nobody would count the copies.
            epoch::synchronize_writers();
            self.core.discard_all(&keyspace);
            self.core.snapshots.forget(&keyspace);
        }
        drop(pin);
        Ok(true)
    }

    /// Exchanges the names of keyspaces: all pairs at once, or none if one of the names is not there (false). Where a name is in several pairs, the result is that of
    /// one exchange after the other. Durable and crash-atomic, and so is everything that was
    /// written before: it is durable first. Handles of what has another name then refuse from then on ([`crate::Error::KeyspaceDropped`]), so nothing is written any more
    /// under a name that it had; open them again.
    pub fn swap_keyspaces(&self, pairs: &[(&str, &str)]) -> Result<bool> {
        ensure_outside_callbacks("swap_keyspaces")?;
        self.core.committer.ensure_writable()?;
        let mut catalogue = self.core.catalogue.lock();
        let mut changed = catalogue.clone();
        if !pairs.iter().all(|(a, b)| changed.swap(a, b)) {
            return Ok(false);
        }
        // By number: what has which name in the end, the catalogue says.
        let keyspaces = self.core.keyspaces_by_id();
        let held = changed.keyspaces.iter().filter_map(|info| Some((info.name.as_str(), keyspaces.get(&info.id)?.clone())));
        let old: Vec<(&str, Arc<Keyspace>)> = held.filter(|(name, keyspace)| keyspace.info.name != *name).collect();
        old.iter().for_each(|(_, keyspace)| keyspace.dropped.store(true, Ordering::SeqCst));
        // Writers that did not see the flag finish first; later ones refuse.
        epoch::synchronize_writers();
        let everything = self.core.log.clock.stable();
        let durable = self.core.committer.commit_with_locks(&self.core.log, everything);
        if let Err(error) = durable.and_then(|()| self.core.set_catalogue(&changed)) {
            old.iter().for_each(|(_, keyspace)| keyspace.dropped.store(false, Ordering::SeqCst));
            return Err(error);
        }
        let mut keyspaces = self.core.keyspaces.write();
        for (name, keyspace) in old {
            keyspaces.insert(name.to_owned(), Arc::new(keyspace.renamed(name)));
        }
        *catalogue = changed;
        Ok(true)
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

    /// Replaces the catalogue, durably. After a sync that failed it may have happened or not: then nothing more is acknowledged.
    fn set_catalogue(&self, catalogue: &Catalogue) -> Result<()> {
        Ok(self.heeding_failed_syncs(self.log.pool(0).set_catalogue(&catalogue.encode()))?)
    }

    /// Counts all entries of a dropped keyspace as garbage, under the pin that its caller has held since before it was dropped.
    fn discard_all(&self, keyspace: &Keyspace) {
        debug_assert!(epoch::is_pinned(), "their segments must not begin new lives");
        let resolver = self.resolver();
        let mut discard = |reference: hither_index::Ref| {
            self.log.count_dead(reference.0, self.log.size_of(reference.0), false);
            true
        };
        with_index!(keyspace, index => index.for_each(&resolver, &mut discard));
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
