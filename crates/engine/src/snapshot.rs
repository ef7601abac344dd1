//! Consistent snapshots (`docs/concurrency.md`).
//!
//! A snapshot reads at a stable version S. While it lives, the first overwrite or delete of a key whose entry is not
//! newer than S saves that entry's reference in the snapshot's side table, before the new entry is installed. A lookup
//! takes the index's entry if its version is at most S, else the side table's. If there is neither, the key was absent.
//! Entries in a side table do not count as garbage, so their segments are not reused.
//!
//! # Why no write slips through
//!
//! The snapshot registers itself, then draws S, publishes it, and then waits for writer sections under way. A writer
//! draws its version before it asks whether any snapshot is registered.
//!
//! * If the writer's version is above S, it was drawn after the registration, so the writer sees the snapshot.
//! * If it is at most S, the write belongs to the snapshot, and is installed before the snapshot is handed out.
//!
//! # Expiry
//!
//! An entry that had expired when the snapshot was taken is absent from it, even if it is still stored. The snapshot
//! reads its time once, after it is registered and before S is drawn. So whoever judges expiry after drawing or seeing
//! a version above S does so later than that.
//!
//! * A write may rely on an entry that it found alive, because its condition requires that or because it reports it to
//!   its caller. It judges expiry after it has drawn its version (again, if it has done so before). So a write that
//!   comes after a snapshot finds nothing alive that had expired for that snapshot.
//! * Who is told that an entry has expired, or finds so himself, may write another key next. The report waits for
//!   snapshots that have read an earlier time but no version yet ([`Snapshots::wait_for_those_before`]): such a
//!   snapshot shows the entry, and must not show that write.
//! * A sweep that deletes an expired entry asks, with its version drawn, which snapshots will show the delete. It
//!   leaves the entry if the entry had not expired for one of them ([`Snapshots::agree_that_expired`]). A snapshot that
//!   the sweep does not see reads its time later than the sweep did.
//!
//! # Cost
//!
//! Without snapshots a write pays one load. With them, memory grows with the number of distinct keys that have been
//! overwritten or deleted since.
//!
//! # Thread safety, crashes
//!
//! Any number of threads may read a snapshot. Everything here is in DRAM: snapshots end with the process.

use crate::deferred::Found;
use crate::error::Result;
use crate::keyspace::{Keyspace, KeyspaceHandle, with_index};
use crate::scan::{Direction, ScanRange};
use crate::store::{Core, Store};
use crate::write::check_key;
use hither_index::{Index, Ref};
use hither_log::{EntryView, Log};
use hither_sync::epoch;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The version of a snapshot that is registered and has not drawn its version yet.
const PENDING: u64 = u64::MAX;

/// The snapshots of a store.
#[derive(Default)]
pub(crate) struct Snapshots {
    count: AtomicUsize,
    /// The latest time that a snapshot has read.
    newest_ms: AtomicU64,
    list: RwLock<Vec<Arc<State>>>,
}

/// Most keys that are listed, or let go of, at once: writers may wait for that.
const PIECE: usize = 1_000;
/// Bytes of keys after which a listing ends: the table is locked meanwhile, and writers may wait for it.
const PIECE_BYTES: usize = 256 << 10;

/// Saved keys that were listed together.
pub(crate) struct Listed {
    /// The keys, with their references.
    pub keys: Vec<(Box<[u8]>, Ref)>,
    /// Whether more saved keys follow.
    pub more: bool,
}

impl Listed {
    /// Takes the first of `found`: at least one, at most `most`, and none after [`PIECE_BYTES`] of keys.
    fn of<'a>(mut found: impl Iterator<Item = (&'a Box<[u8]>, &'a Arc<Retained>)>, most: usize) -> Listed {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for (key, retained) in found.by_ref() {
            bytes += key.len();
            keys.push((key.clone(), retained.get()));
            if keys.len() == most || bytes >= PIECE_BYTES {
                break;
            }
        }
        Listed { keys, more: found.next().is_some() }
    }
}

/// One snapshot as writers see it.
pub(crate) struct State {
    version: AtomicU64,
    /// When the snapshot was taken, in milliseconds since 1970, by the store's time. Valid as soon as the version is.
    taken_ms: AtomicU64,
    created: Instant,
    /// The snapshot has ended: nobody reads it, and nothing is saved for it any more.
    ended: AtomicBool,
    saved: Mutex<HashMap<u32, Saved>>,
}

/// Saved references of one keyspace, by key.
type Saved = BTreeMap<Box<[u8]>, Arc<Retained>>;

/// A superseded entry that some snapshot still shows. It becomes garbage when the last snapshot lets go of it.
pub(crate) struct Retained {
    log: Arc<Log>,
    /// Changes when a collector moves the entry.
    reference: AtomicU64,
}

impl Retained {
    /// Where the entry is now. The entry there stays readable under the caller's epoch pin.
    fn get(&self) -> Ref {
        Ref(self.reference.load(Ordering::Acquire))
    }

    /// Notes that the entry was moved: from now on its copy is what counts as garbage in the end. The mover counts the
    /// old place.
    pub fn follow(&self, copy: Ref) {
        self.reference.store(copy.0, Ordering::Release);
    }
}

impl Drop for Retained {
    /// Runs under a pin that is older than the entry's absence from all snapshots. Otherwise the entry's segment could
    /// have been emptied, freed and reused by now. The count would go to its next life, which might then be taken for
    /// wholly dead.
    fn drop(&mut self) {
        debug_assert!(epoch::is_pinned(), "the segment must not begin a new life");
        let reference = self.reference.load(Ordering::Acquire);
        self.log.count_dead(reference, self.log.size_of(reference), false);
    }
}

impl Snapshots {
    /// Whether any snapshot is registered. SeqCst: ordered after the caller's draw of a version.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Saves `old` for every snapshot that shows it. Returns `None` if none does.
    ///
    /// Call under the key's latch, before installing the write of `version`, and hold the result until that is done. If
    /// a collector moves the entry before, the result must follow it ([`Retained::follow`]), even if the snapshots end
    /// meanwhile.
    #[cold]
    pub fn retain(&self, core: &Core, keyspace: &Keyspace, key: &[u8], old: Ref, version: u64) -> Option<Arc<Retained>> {
        // A damaged entry is kept, too: a reader of it gets the error.
        let old_version = core.log.readable_entry(old.0).map_or(0, |entry| core.log.version_of(old.0, &entry));
        let mut retained: Option<Arc<Retained>> = None;
        for snapshot in self.list.read().iter() {
            let shows = snapshot.wait_for_version();
            if old_version <= shows && version > shows && !snapshot.has_ended() {
                let mut saved = snapshot.saved.lock();
                // Checked again under this lock: the end of the snapshot takes it to let go of what was saved, and
                // nothing may be saved after that.
                if snapshot.has_ended() {
                    continue;
                }
                let entry = retained.get_or_insert_with(|| Arc::new(Retained { log: core.log.clone(), reference: AtomicU64::new(old.0) }));
                saved.entry(keyspace.info.id).or_default().entry(key.into()).or_insert_with(|| entry.clone());
            }
        }
        retained
    }

    /// Returns what some snapshot keeps of `key`, if that is at `reference`. All snapshots that show an entry share one
    /// [`Retained`].
    pub fn retained(&self, keyspace: &Keyspace, key: &[u8], reference: Ref) -> Option<Arc<Retained>> {
        self.list.read().iter().find_map(|state| {
            let saved = state.saved.lock();
            saved.get(&keyspace.info.id)?.get(key).filter(|retained| retained.get() == reference).cloned()
        })
    }

    /// Lets go of all entries of a dropped keyspace: they can no longer be read, and collectors do not move them. Call
    /// when nothing is written there any more, under a pin that is older than the drop.
    pub fn forget(&self, keyspace: &Keyspace) {
        let states = self.list.read().clone();
        for state in states {
            // A snapshot that ends meanwhile lets go of entries with its table locked. So when none is left in the
            // table, none is left at all.
            while state.let_go_of(|saved| saved.contains_key(&keyspace.info.id).then_some(keyspace.info.id)) {}
        }
    }

    /// Returns the lowest version that a snapshot shows, if there is one. If the caller has drawn a version before, no
    /// snapshot shows a lower one from now on.
    pub fn lowest_version(&self) -> Option<u64> {
        self.list.read().iter().map(|state| state.wait_for_version()).min()
    }

    /// Waits until no snapshot is left that has read a time before `expiry_ms` and has no version yet: for nanoseconds,
    /// unless a thread that takes a snapshot was preempted.
    #[inline]
    pub fn wait_for_those_before(&self, expiry_ms: u64) {
        if self.any() {
            self.wait_for_each_before(expiry_ms);
        }
    }

    #[cold]
    fn wait_for_each_before(&self, expiry_ms: u64) {
        for state in self.list.read().iter() {
            // 0 as long as it has not read its time.
            if state.taken_ms.load(Ordering::Relaxed) < expiry_ms {
                state.wait_for_version();
            }
        }
    }

    /// Whether an entry with this expiry had expired for all snapshots that will show the write of `version`, which the
    /// caller has drawn before.
    #[cold]
    pub fn agree_that_expired(&self, expiry_ms: u64, version: u64) -> bool {
        let shows = |state: &Arc<State>| state.wait_for_version() >= version;
        self.list.read().iter().all(|state| !shows(state) || expiry_ms <= state.taken_ms.load(Ordering::Relaxed))
    }

    /// The latest time that a snapshot has read, in milliseconds since 1970; 0 if none was taken. No write that comes
    /// after a snapshot sees an earlier one.
    pub fn newest_ms(&self) -> u64 {
        self.newest_ms.load(Ordering::Relaxed)
    }

    /// Number of snapshots and the age of the oldest.
    pub fn alive(&self) -> (usize, Duration) {
        let list = self.list.read();
        (list.len(), list.iter().map(|state| state.created.elapsed()).max().unwrap_or_default())
    }
}

impl State {
    /// The state of a snapshot that has read neither its time nor its version.
    fn pending() -> State {
        State {
            version: AtomicU64::new(PENDING),
            taken_ms: AtomicU64::new(0),
            created: Instant::now(),
            ended: AtomicBool::new(false),
            saved: Mutex::default(),
        }
    }

    /// Returns the version once it is drawn: within nanoseconds, unless the drawing thread was preempted.
    fn wait_for_version(&self) -> u64 {
        let mut rounds = 0;
        loop {
            match self.version.load(Ordering::Acquire) {
                PENDING => hither_sync::pause(&mut rounds),
                version => return version,
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Lets go of some entries of the keyspace that `which` names, with the table locked. Returns false if it names
    /// none. Call under a pin, see [`Retained`]'s drop.
    fn let_go_of(&self, which: impl FnOnce(&HashMap<u32, Saved>) -> Option<u32>) -> bool {
        let mut saved = self.saved.lock();
        let Some(keyspace) = which(&saved) else { return false };
        let keys = saved.get_mut(&keyspace).expect("a table that is there");
        (0..PIECE).map_while(|_| keys.pop_first()).for_each(drop);
        if keys.is_empty() {
            saved.remove(&keyspace);
        }
        true
    }

    /// Lists some of the saved keys, from a bound on.
    fn saved_behind(&self, keyspace: u32, from: Bound<&[u8]>) -> Vec<Box<[u8]>> {
        let saved = self.saved.lock();
        let keys = saved.get(&keyspace).map(|keys| keys.range::<[u8], _>((from, Bound::Unbounded)));
        Listed::of(keys.into_iter().flatten(), PIECE).keys.into_iter().map(|(key, _)| key).collect()
    }

    fn lookup(&self, keyspace: u32, key: &[u8]) -> Option<Ref> {
        self.saved.lock().get(&keyspace)?.get(key).map(|retained| retained.get())
    }
}

/// A consistent view of the whole store at one version.
pub struct Snapshot {
    pub(crate) core: Arc<Core>,
    state: Arc<State>,
    version: u64,
    /// When it was taken, in milliseconds since 1970, by the store's time.
    taken_ms: u64,
}

impl Store {
    /// Takes a snapshot. All writes acknowledged before are in it, all that begin afterwards are not. O(threads).
    pub fn snapshot(&self) -> Snapshot {
        let core = self.core.clone();
        let state = Arc::new(State::pending());
        core.snapshots.list.write().push(state.clone());
        core.snapshots.count.fetch_add(1, Ordering::SeqCst);
        // After the count and before the version: see the module's head.
        let taken_ms = core.now_ms();
        // A later judgement of expiry must not use an earlier time.
        core.snapshots.newest_ms.fetch_max(taken_ms, Ordering::Relaxed);
        state.taken_ms.store(taken_ms, Ordering::Relaxed);
        let version = core.log.clock.stable_with(|version| state.version.store(version, Ordering::Release));
        Snapshot { taken_ms, core, state, version }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // See `Retained`'s drop.
        let _pin = epoch::pin();
        self.state.ended.store(true, Ordering::SeqCst);
        self.core.snapshots.count.fetch_sub(1, Ordering::SeqCst);
        // While the snapshot is still in the list: a drop of a keyspace lets go of its entries, under a pin that may be
        // older than this one, and must not miss any.
        while self.state.let_go_of(|saved| saved.keys().next().copied()) {}
        self.core.snapshots.list.write().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}

impl Snapshot {
    /// The version that the snapshot shows.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Calls `f` with the value that `key` had when the snapshot was taken.
    pub fn get_with<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.get_expiring(keyspace, key, |value, _| f(value))
    }

    /// Calls `f` with the value that `key` had, and its expiry in milliseconds since 1970; 0: never.
    pub fn get_expiring<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8], u64) -> R) -> Result<Option<R>> {
        self.get_entry(keyspace, key, |_, entry, expiry_ms| f(entry.value, expiry_ms))
    }

    /// Calls `f` with the value that `key` had, its version and its expiry.
    pub fn get_found<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8], Found) -> R) -> Result<Option<R>> {
        self.get_entry(keyspace, key, |reference, entry, expires_at_ms| {
            f(entry.value, Found { version: self.core.log.version_of(reference.0, entry), expires_at_ms })
        })
    }

    fn get_entry<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(Ref, &EntryView<'_>, u64) -> R) -> Result<Option<R>> {
        check_key(key)?;
        let hashed = self.core.hasher.key(key);
        let _pin = epoch::pin();
        keyspace.0.ensure_usable()?;
        let current = with_index!(keyspace.0, index => index.get(hashed, &self.core.resolver()));
        if current.is_some() {
            self.core.ensure_whole(current)?;
        }
        match self.shown(&keyspace.0, key, current) {
            Some(reference) => {
                self.core.ensure_settled(reference)?;
                let entry = self.core.log.entry(reference.0);
                let expiry_ms = entry.expiry_ms();
                Ok((!self.has_expired(expiry_ms)).then(|| f(reference, &entry, expiry_ms)))
            }
            None => {
                // Checked again: a drop of the keyspace discards what was saved.
                keyspace.0.ensure_usable()?;
                if current.is_none() {
                    self.core.ensure_absent(&keyspace.0, hashed)?;
                }
                self.settle()?;
                Ok(None)
            }
        }
    }

    /// Whether an entry with this expiry had expired when the snapshot was taken.
    pub(crate) fn has_expired(&self, expiry_ms: u64) -> bool {
        let has_expired = expiry_ms != 0 && expiry_ms <= self.taken_ms;
        if has_expired {
            self.core.tell_expired(expiry_ms);
        }
        has_expired
    }

    /// Makes everything up to the snapshot's version durable, if reads must check: what is absent from it must be
    /// durably absent.
    pub(crate) fn settle(&self) -> Result<()> {
        let core = &self.core;
        if core.committer.reads_check() && self.version > core.committer.durable() {
            core.committer.commit(&core.log, self.version)?;
        }
        Ok(())
    }

    /// Returns the entry that the snapshot shows for `key`. `current` is what the index holds now, verified as
    /// undamaged.
    pub(crate) fn shown(&self, keyspace: &Keyspace, key: &[u8], current: Ref) -> Option<Ref> {
        if current.is_some() && self.core.log.version_of(current.0, &self.core.log.entry(current.0)) <= self.version {
            return Some(current);
        }
        self.saved(keyspace, key)
    }

    /// Returns the side table's entry of `key`.
    pub(crate) fn saved(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Ref> {
        self.state.lookup(keyspace.info.id, key)
    }

    /// Lists some keys of the side table in order, beginning after `key`.
    pub(crate) fn saved_behind(&self, keyspace: &Keyspace, key: Option<&[u8]>) -> Vec<Box<[u8]>> {
        self.state.saved_behind(keyspace.info.id, key.map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// Lists the first keys of the side table in `range`, in its direction, at most `most`; the index may no longer
    /// hold them. `range` must not be empty.
    pub(crate) fn saved_between(&self, keyspace: &Keyspace, range: &ScanRange<'_>, most: usize) -> Listed {
        let saved = self.state.saved.lock();
        let Some(keys) = saved.get(&keyspace.info.id) else { return Listed { keys: Vec::new(), more: false } };
        let mut keys = keys.range::<[u8], _>((range.from, range.to));
        let next = || if range.direction == Direction::Forward { keys.next() } else { keys.next_back() };
        Listed::of(std::iter::from_fn(next), most)
    }
}

#[cfg(test)]
mod tests;
