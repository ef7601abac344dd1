//! Consistent snapshots (`docs/concurrency.md`).
//!
//! A snapshot reads at a stable version S. While it lives, the first overwrite or delete of a key whose entry is not newer than S saves that
//! entry's reference in the snapshot's side table, before the new one is installed. A lookup takes the index's entry if its version is at
//! most S, else the side table's, else the key was absent. Entries in a side table do not count as garbage, so their segments are not reused.
//!
//! # Why no write slips through
//!
//! The snapshot registers itself, then draws S, publishes it, then waits for writer sections under way. A writer draws its version before it asks
//! whether any snapshot is registered; if its version is above S it was drawn after the registration and it sees it. If it is below, its write belongs
//! to the snapshot and is installed before the snapshot is handed out.
//!
//! # Expiry
//!
//! What had expired when the snapshot was taken is absent from it, whatever else stays: its time is read once, after S was drawn and before writers are waited for. Not earlier: a
//! sweep that deletes an expired entry at or below S began its section before, and had read the clock before that, so it took nothing that the snapshot would still show. Not later: what is
//! overwritten meanwhile, above S, had not expired yet.
//!
//! # Cost
//!
//! Without snapshots a write pays one load. With them, memory grows with the number of distinct keys overwritten or deleted since.

use crate::error::Result;
use crate::keyspace::{Keyspace, KeyspaceHandle, with_index};
use crate::scan::{Direction, ScanRange};
use crate::store::{Core, Store};
use crate::write::check_key;
use hither_index::{Index, Ref};
use hither_log::Log;
use hither_sync::epoch;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The version of a snapshot that is registered but has not drawn its version yet.
const PENDING: u64 = u64::MAX;

/// The snapshots of a store.
#[derive(Default)]
pub(crate) struct Snapshots {
    count: AtomicUsize,
    list: RwLock<Vec<Arc<State>>>,
}

/// Keys that are listed, or let go of, at a time: writers may wait for that.
const PIECE: usize = 1_000;

/// One snapshot as writers see it.
pub(crate) struct State {
    version: AtomicU64,
    created: Instant,
    /// Nobody reads it any more, and nothing is saved for it.
    ended: AtomicBool,
    saved: Mutex<HashMap<u32, Saved>>,
}

/// Saved references of one keyspace, by key.
type Saved = BTreeMap<Box<[u8]>, Arc<Retained>>;

/// A superseded entry that some snapshot still shows; becomes garbage when the last one lets go.
pub(crate) struct Retained {
    log: Arc<Log>,
    /// A collector moves it.
    reference: AtomicU64,
}

impl Retained {
    /// Where the entry is now. What it leads to stays readable under the caller's epoch pin.
    fn get(&self) -> Ref {
        Ref(self.reference.load(Ordering::Acquire))
    }

    /// The entry was moved: from now on its copy is what counts as garbage in the end. Whoever moved it counts the place where it was.
    pub fn follow(&self, copy: Ref) {
        self.reference.store(copy.0, Ordering::Release);
    }
}

impl Drop for Retained {
    /// Always under a pin that is older than the entry's absence from all snapshots: else its segment could be emptied, freed and in use again by now, and the count
    /// would go to its next life, which might then pass for wholly dead.
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

    /// Saves `old` for every snapshot that shows it; `None` if none does. Call before installing the write of `version`, under the key's latch, and hold what is returned
    /// until that is done: should a collector move the entry before, it must follow it ([`Retained::follow`]), even if the snapshots end meanwhile.
    #[cold]
    pub fn retain(&self, core: &Core, keyspace: &Keyspace, key: &[u8], old: Ref, version: u64) -> Option<Arc<Retained>> {
        // What is damaged is kept, too: who asks for it gets the error.
        let old_version = core.log.readable_entry(old.0).map_or(0, |entry| core.log.version_of(old.0, &entry));
        let mut retained: Option<Arc<Retained>> = None;
        for snapshot in self.list.read().iter() {
            let shows = snapshot.wait_for_version();
            if old_version <= shows && version > shows && !snapshot.has_ended() {
                let mut saved = snapshot.saved.lock();
                // Again: what is saved before it ends it lets go of, under this lock.
                if snapshot.has_ended() {
                    continue;
                }
                let entry = retained.get_or_insert_with(|| Arc::new(Retained { log: core.log.clone(), reference: AtomicU64::new(old.0) }));
                saved.entry(keyspace.info.id).or_default().entry(key.into()).or_insert_with(|| entry.clone());
            }
        }
        retained
    }

    /// What some snapshot keeps of `key`, if it is at `reference`. All snapshots that show an entry share it.
    pub fn retained(&self, keyspace: &Keyspace, key: &[u8], reference: Ref) -> Option<Arc<Retained>> {
        self.list.read().iter().find_map(|state| {
            let saved = state.saved.lock();
            saved.get(&keyspace.info.id)?.get(key).filter(|retained| retained.get() == reference).cloned()
        })
    }

    /// Lets go of all entries of a keyspace that was dropped: they cannot be read any more, and collectors do not move them. Call when nothing is written there any
    /// more, under a pin that is older than the drop.
    pub fn forget(&self, keyspace: &Keyspace) {
        let states = self.list.read().clone();
        for state in states {
            // One that ends meanwhile lets go of them with its table locked, so nothing of it is left when there is nothing left here.
            while state.let_go_of(|saved| saved.contains_key(&keyspace.info.id).then_some(keyspace.info.id)) {}
        }
    }

    /// The lowest version that a snapshot shows, if there is one: the lowest that any shows from now on, if the caller has drawn a version before.
    pub fn lowest_version(&self) -> Option<u64> {
        self.list.read().iter().map(|state| state.wait_for_version()).min()
    }

    /// Number of snapshots and the age of the oldest.
    pub fn alive(&self) -> (usize, Duration) {
        let list = self.list.read();
        (list.len(), list.iter().map(|state| state.created.elapsed()).max().unwrap_or_default())
    }
}

impl State {
    /// The version, once it is drawn: a matter of nanoseconds, unless the drawing thread was preempted.
    fn wait_for_version(&self) -> u64 {
        loop {
            match self.version.load(Ordering::Acquire) {
                PENDING => std::thread::yield_now(),
                version => return version,
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Lets go of some entries, of the keyspace that `which` names, with the table locked; false if it names none. Under a pin, see [`Retained`]'s drop.
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

    /// Some keys that are saved, from a bound on.
    fn saved_behind(&self, keyspace: u32, from: Bound<&[u8]>) -> Vec<Box<[u8]>> {
        let saved = self.saved.lock();
        let keys = saved.get(&keyspace).map(|keys| keys.range::<[u8], _>((from, Bound::Unbounded)));
        keys.into_iter().flatten().take(PIECE).map(|(key, _)| key.clone()).collect()
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
    /// Takes a snapshot: all writes acknowledged before are in it, all that begin afterwards are not. O(threads).
    pub fn snapshot(&self) -> Snapshot {
        let core = self.core.clone();
        let state = Arc::new(State {
            version: AtomicU64::new(PENDING),
            created: Instant::now(),
            ended: AtomicBool::new(false),
            saved: Mutex::default(),
        });
        core.snapshots.list.write().push(state.clone());
        core.snapshots.count.fetch_add(1, Ordering::SeqCst);
        let mut taken_ms = 0;
        let publish = |version| state.version.store(version, Ordering::Release);
        let version = core.log.clock.stable_with(publish, || taken_ms = core.now_ms());
        Snapshot { taken_ms, core, state, version }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // See `Retained`'s drop.
        let _pin = epoch::pin();
        self.state.ended.store(true, Ordering::SeqCst);
        self.core.snapshots.count.fetch_sub(1, Ordering::SeqCst);
        // While it is in the list: whoever drops a keyspace lets go of what is kept of it, under a pin that may be older than this one, and must not miss any.
        while self.state.let_go_of(|saved| saved.keys().next().copied()) {}
        self.core.snapshots.list.write().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}

impl Snapshot {
    /// The version it shows.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Calls `f` with the value that `key` had.
    pub fn get_with<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.get_expiring(keyspace, key, |value, _| f(value))
    }

    /// Calls `f` with the value that `key` had, and the time at which it expires, in milliseconds since 1970; 0: never.
    pub fn get_expiring<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8], u64) -> R) -> Result<Option<R>> {
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
                Ok((!self.has_expired(expiry_ms)).then(|| f(entry.value, expiry_ms)))
            }
            None => {
                // Again: a drop takes what was saved.
                keyspace.0.ensure_usable()?;
                if current.is_none() {
                    self.core.ensure_absent(&keyspace.0, hashed)?;
                }
                self.settle()?;
                Ok(None)
            }
        }
    }

    /// Whether what expires at this time had expired when the snapshot was taken.
    pub(crate) fn has_expired(&self, expiry_ms: u64) -> bool {
        let has_expired = expiry_ms != 0 && expiry_ms <= self.taken_ms;
        if has_expired {
            self.core.remember_time(expiry_ms);
        }
        has_expired
    }

    /// What is absent from the snapshot must be durably absent.
    pub(crate) fn settle(&self) -> Result<()> {
        let core = &self.core;
        if core.committer.reads_check() && self.version > core.committer.durable() {
            core.committer.commit(&core.log, self.version)?;
        }
        Ok(())
    }

    /// What the snapshot shows for `key`, given what the index holds now: a whole entry.
    pub(crate) fn shown(&self, keyspace: &Keyspace, key: &[u8], current: Ref) -> Option<Ref> {
        if current.is_some() && self.core.log.version_of(current.0, &self.core.log.entry(current.0)) <= self.version {
            return Some(current);
        }
        self.saved(keyspace, key)
    }

    /// What the side table has for `key`.
    pub(crate) fn saved(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Ref> {
        self.state.lookup(keyspace.info.id, key)
    }

    /// Some keys saved in the side table, in order, from behind this one on.
    pub(crate) fn saved_behind(&self, keyspace: &Keyspace, key: Option<&[u8]>) -> Vec<Box<[u8]>> {
        self.state.saved_behind(keyspace.info.id, key.map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// The first `most` keys saved in the side table in `range`, which is not empty, in its direction, with their references: what the index may no longer hold.
    pub(crate) fn saved_between(&self, keyspace: &Keyspace, range: &ScanRange<'_>, most: usize) -> Vec<(Box<[u8]>, Ref)> {
        let saved = self.state.saved.lock();
        let Some(keys) = saved.get(&keyspace.info.id) else { return Vec::new() };
        let mut keys = keys.range::<[u8], _>((range.from, range.to));
        let next = || if range.direction == Direction::Forward { keys.next() } else { keys.next_back() };
        std::iter::from_fn(next).take(most).map(|(key, retained)| (key.clone(), retained.get())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::{Need, Turn};
    use crate::{CollectorKind, Condition, Durability, Expiry, Kind, Options, WriteOptions};
    use hither_log::TakeBack;
    use hither_topology::Topology;

    fn open(collector: CollectorKind) -> Store {
        let options = Options {
            in_memory: true,
            capacity: 64 << 20,
            max_capacity: 64 << 20,
            segment_bytes: 16 << 10,
            shards: 1,
            topology: Some(Arc::new(Topology::single())),
            durability: Durability::Process,
            background: false,
            collector,
            ..Options::default()
        };
        Store::open(options).unwrap()
    }

    fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: u8) {
        store.write_wait(keyspace, &key.to_be_bytes(), Some(&[value; 40])).unwrap();
    }

    /// Regression: what a snapshot had told to be gone was there again once the clock was set back.
    #[test]
    fn what_a_snapshot_told_to_have_expired_stays_so() {
        let store = open(CollectorKind::Batched);
        for kind in [Kind::Hash, Kind::Ordered] {
            let keyspace = store.create_keyspace(&format!("{kind:?}"), kind).unwrap();
            let first = store.core.told_ms().max(store.core.now_ms() - 1_000) + 1;
            for key in 0..3u64 {
                let options = WriteOptions { expiry: Some(Expiry::AtMs(first + key)), ..WriteOptions::default() };
                store.write(&keyspace, &key.to_be_bytes(), Some(b"value"), Condition::None, &options).map(drop).unwrap();
            }
            let snapshot = store.snapshot();
            assert!(store.core.told_ms() < first && snapshot.get_with(&keyspace, &0u64.to_be_bytes(), |_| ()).unwrap().is_none());
            assert_eq!(store.core.told_ms(), first);
            match kind {
                Kind::Hash => assert!(snapshot.get_with(&keyspace, &2u64.to_be_bytes(), |_| ()).unwrap().is_none()),
                Kind::Ordered => {
                    let all = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: 9 };
                    snapshot.scan(&keyspace, &all, |_, _| panic!("it has expired")).unwrap();
                }
            }
            assert_eq!(store.core.told_ms(), first + 2);
        }
    }

    /// A snapshot that ends beside the drop of a keyspace has left the list, so that [`Snapshots::forget`] does not meet it, while it keeps entries of the keyspace still; its
    /// pin is younger than the stamp of a segment that was emptied of them.
    #[test]
    fn a_snapshot_that_ends_beside_a_drop_counts_nothing_in_a_next_life() {
        for collector in [CollectorKind::Batched, CollectorKind::Chain] {
            // Should the drop have been too fast, there is nothing to be seen.
            assert!((0..20).any(|_| end_beside_a_drop(collector)), "{collector:?}");
        }
    }

    fn end_beside_a_drop(collector: CollectorKind) -> bool {
        const SHOWN: u64 = 3_000;
        let store = open(collector);
        let core = &store.core;
        let kept = store.create_keyspace("kept", Kind::Hash).unwrap();
        let passing = store.create_keyspace("passing", Kind::Hash).unwrap();
        // Half garbage: worth a pass.
        (0..2 * SHOWN).for_each(|number| put(&store, &passing, number / 2, 1));
        // So that the drop takes long.
        (SHOWN..200_000).for_each(|key| put(&store, &passing, key, 1));
        let snapshot = store.snapshot();
        (0..SHOWN).for_each(|key| put(&store, &passing, key, 2));
        core.seal(TakeBack::All).unwrap();
        let state = snapshot.state.clone();
        let in_time = std::thread::scope(|scope| {
            let dropping = scope.spawn(|| store.drop_keyspace("passing").unwrap());
            while store.open_keyspace("passing").is_some() {
                std::thread::yield_now();
            }
            core.collect(None, Need::Some, Turn::Round).unwrap();
            if !core.log.has_retiring() {
                // Nothing was emptied while the drop lasted.
                dropping.join().unwrap();
                return false;
            }
            // Holds the end of the snapshot up where it is about to let go of what it kept.
            let saved = state.saved.lock();
            if !saved.contains_key(&passing.0.info.id) {
                drop(saved);
                dropping.join().unwrap();
                return false;
            }
            let ending = scope.spawn(move || drop(snapshot));
            while core.snapshots.any() {
                std::thread::yield_now();
            }
            // It has left the list by then, or waits.
            std::thread::sleep(Duration::from_millis(5));
            // The drop must wait for it, or do it itself.
            let begun = Instant::now();
            while !dropping.is_finished() && begun.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            core.reuse_freed(hither_log::Wait::No).unwrap();
            (0..5 * SHOWN).for_each(|key| put(&store, &kept, key, 3));
            drop(saved);
            ending.join().unwrap();
            true
        });
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{collector:?}: {report:?}");
        in_time
    }

    /// Regression: the end of a snapshot held up all writers of what others showed for as long as it let go of what it had kept.
    #[test]
    fn a_snapshot_that_ends_holds_up_no_writer() {
        let store = open(CollectorKind::Batched);
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        (0..10).for_each(|key| put(&store, &keyspace, key, 1));
        let (ending, other) = (store.snapshot(), store.snapshot());
        put(&store, &keyspace, 0, 2);
        let state = ending.state.clone();
        let (told, written) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let saved = state.saved.lock();
            scope.spawn(move || drop(ending));
            while store.core.snapshots.count.load(Ordering::SeqCst) > 1 {
                std::thread::yield_now();
            }
            // It waits for the lock by then, with whatever it holds.
            std::thread::sleep(Duration::from_millis(50));
            let (store, keyspace) = (&store, &keyspace);
            scope.spawn(move || {
                put(store, keyspace, 1, 2);
                told.send(()).unwrap();
            });
            let outcome = written.recv_timeout(Duration::from_secs(20));
            drop(saved);
            outcome.expect("a write waits for the end of a snapshot");
        });
        assert_eq!(other.get_with(&keyspace, &1u64.to_be_bytes(), |value| value[0]).unwrap(), Some(1));
        assert_eq!(store.core.snapshots.alive().0, 1);
        drop(other);
        assert!(store.check().unwrap().is_sound());
    }

    /// Keys that were deleted since are in the side table only; a drop of the keyspace takes them from there while the keys are being listed.
    #[test]
    fn a_list_of_keys_beside_a_drop_is_whole_or_refused() {
        const KEYS: u64 = 20_000;
        let mut refused = 0;
        for round in 0..40 {
            let store = open(CollectorKind::Batched);
            let keyspace = store.create_keyspace("passing", Kind::Hash).unwrap();
            (0..KEYS).for_each(|key| put(&store, &keyspace, key, 1));
            let snapshot = store.snapshot();
            (0..KEYS / 10).for_each(|key| assert!(store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap()));
            std::thread::scope(|scope| {
                let listing = scope.spawn(|| snapshot.sorted_keys(&keyspace));
                std::thread::sleep(Duration::from_micros(50 * round));
                store.drop_keyspace("passing").unwrap();
                match listing.join().unwrap() {
                    Ok(keys) => assert_eq!(keys.len() as u64, KEYS, "round {round}: keys that the snapshot shows are missing"),
                    Err(_) => refused += 1,
                }
            });
        }
        assert!(refused > 0);
    }
}
