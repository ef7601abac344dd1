//! Regressions: full stores in which nothing made room again, not even deletes and compactions. Also what a snapshot
//! shows while a collector moves it.

use crate::common::{Random, scrambled, small};
use hither_engine::{Batch, CollectorKind, Durability, KeyspaceHandle, Kind, MediumChoice, Options, Store};
use hither_pmem::{CreateOptions, Pool, StoreKind, SyncPhase, Tracer};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn options(collector: CollectorKind, gc_threads: usize) -> Options {
    Options { in_memory: true, background: true, collector, gc_threads, space_patience: Duration::from_millis(20), ..small() }
}

/// Values of up to a third of a segment leave gaps wherever they are moved to. Passes that took the gaps of puts for
/// gain used up the last segments.
#[test]
fn whoever_is_refused_can_still_delete() {
    for (collector, gc_threads) in [(CollectorKind::Batched, 0), (CollectorKind::Batched, 1), (CollectorKind::Chain, 1)] {
        let store = Store::open(options(collector, gc_threads)).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let mut random = Random(5);
        let mut put = |key: u64| {
            let value = vec![1; random.below(20_000) as usize];
            store.write_wait(&keyspace, &key.to_be_bytes(), Some(&value))
        };
        let mut keys = 0;
        while put(keys).is_ok() {
            keys += 1;
        }
        let mut key = 7;
        for _ in 0..100 {
            key = scrambled(key);
            // Most of these are refused.
            let _ = put((key >> 33) % keys);
        }
        // Some deletes may have to be repeated, when others have made room.
        for _ in 0..3 {
            (0..keys).for_each(|key| drop(store.write_wait(&keyspace, &key.to_be_bytes(), None)));
        }
        assert_eq!(keyspace.len(), 0, "{collector:?}, {gc_threads} collectors: keys that cannot be deleted of {keys}");
        store.compact(0.05, |_| ControlFlow::Continue(())).unwrap();
        (0..keys / 2).for_each(|key| assert!(!put(key).unwrap()));
        assert!(store.check().unwrap().is_sound());
    }
}

/// A store of a thousand small segments. For each segment, the space that deletes have beyond that of puts holds less
/// than a hundredth of a segment's entries.
fn many_segments(gc_threads: usize) -> Options {
    let sizes = Options { capacity: 16 << 20, max_capacity: 16 << 20, segment_bytes: 16 << 10, shards: 1, ..small() };
    Options { in_memory: true, background: true, gc_threads, ..sizes }
}

/// Regression: tombstones of keys that lie far apart filled the space kept for deletes before there were enough for a
/// sweep to be due, and before any segment had enough garbage to be emptied. From then on nothing could be deleted, and
/// nothing made room.
#[test]
fn a_full_store_can_be_emptied_in_any_order() {
    for gc_threads in [0, 1] {
        let store = Store::open(many_segments(gc_threads)).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 8]));
        let keys = (0..).find(|key| put(*key).is_err()).unwrap();
        // One key of each segment, then the next of each, and so on.
        let in_turn = (0..400).flat_map(|first| (first..keys).step_by(400));
        for (number, key) in in_turn.take(20_000).enumerate() {
            let deleted = store.write_wait(&keyspace, &key.to_be_bytes(), None);
            assert!(deleted.is_ok_and(|was_there| was_there), "{number} of {keys} were deleted, {gc_threads} collectors");
        }
        assert_eq!(keyspace.len() as u64, keys - 20_000);
        (0..15_000).for_each(|key| assert!(!put(keys + key).unwrap(), "there is room again"));
        assert!(store.check().unwrap().is_sound());
    }
}

/// Fills a store, then deletes a key at random before each put of a new one, some of which are refused; returns the
/// keys that are there.
fn evict(store: &Store, keyspace: &KeyspaceHandle, value_bytes: usize, rounds: u64, what: &str) -> Vec<u64> {
    let put = |key: u64| store.write_wait(keyspace, &key.to_be_bytes(), Some(&vec![1; value_bytes]));
    let keys = (0..).find(|key| put(*key).is_err()).unwrap();
    let mut there: Vec<u64> = (0..keys).collect();
    let mut random = Random(3);
    for number in 0..rounds {
        let at = random.below(there.len() as u64) as usize;
        let deleted = store.write_wait(keyspace, &there.swap_remove(at).to_be_bytes(), None);
        assert!(deleted.is_ok_and(|was_there| was_there), "{number} deletes among {keys} keys, {what}");
        if put(keys + number).is_ok() {
            there.push(keys + number);
        }
    }
    there
}

/// Regression: where each put came after a delete, puts filled the segments that deletes had opened from the space kept
/// for them, until neither had any.
#[test]
fn puts_leave_to_deletes_what_is_theirs() {
    for gc_threads in [0, 1] {
        let store = Store::open(many_segments(gc_threads)).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let there = evict(&store, &keyspace, 100, 10_000, &format!("{gc_threads} collectors"));
        assert_eq!(keyspace.len(), there.len());
        there.iter().for_each(|key| assert!(store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap()));
        assert!(store.check().unwrap().is_sound());
    }
}

/// Regression: where entries of several keyspaces are moved, their copies may be longer. What deletes left of a small
/// pool was too little for the copies of one victim.
#[test]
fn a_small_store_of_several_keyspaces_goes_on_to_evict() {
    for (capacity, value_bytes) in [(1 << 20, 8), (2 << 20, 8), (4 << 20, 100)] {
        let sizes = Options { capacity, max_capacity: capacity, segment_bytes: 64 << 10, shards: 4, ..small() };
        let store = Store::open(Options { in_memory: true, ..sizes }).unwrap();
        store.create_keyspace("other", Kind::Hash).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        evict(&store, &keyspace, value_bytes, 4_000, &format!("{capacity} bytes"));
        assert!(store.check().unwrap().is_sound());
    }
}

/// Regression: the segments that deletes had opened from the last space took no puts, not even those without which a
/// field of a collection cannot be deleted.
#[test]
fn batches_that_delete_more_than_they_put_go_on_in_a_full_store() {
    let store = Store::open(many_segments(0)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 100]));
    put(u64::MAX).unwrap();
    let keys = (0..).find(|key| put(*key).is_err()).unwrap();
    for number in 0..10_000 {
        let mut batch = Batch::default();
        batch.delete(&keyspace, &(number * 7 % keys).to_be_bytes());
        batch.put(&keyspace, &u64::MAX.to_be_bytes(), &number.to_be_bytes(), 0);
        store.commit_wait(&batch).unwrap_or_else(|error| panic!("{number} of {keys}: {error}"));
    }
    assert_eq!(keyspace.len() as u64, keys + 1 - 10_000);
    assert!(store.check().unwrap().is_sound());
}

/// Regression: batches of puts took what a delete had opened, until there was nothing left for another delete.
#[test]
fn batches_of_puts_leave_to_deletes_what_is_theirs() {
    let store = Store::open(many_segments(0)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let put_two = |key: u64| {
        let mut batch = Batch::default();
        [0, 1].iter().for_each(|more| batch.put(&keyspace, &(2 * key + more).to_be_bytes(), &[1; 1_000], 0));
        store.commit_wait(&batch)
    };
    let mut next = (0..).find(|key| put_two(*key).is_err()).unwrap();
    for key in 0..600u64 {
        assert!(store.write_wait(&keyspace, &key.to_be_bytes(), None).is_ok_and(|was_there| was_there), "{key} deletes");
        next = (next..).find(|key| put_two(*key).is_err()).unwrap();
    }
    assert!(store.check().unwrap().is_sound());
}

/// Regression: in a small pool puts took all of what a delete had opened, and nothing was left for another delete.
#[test]
fn puts_leave_to_deletes_what_is_theirs_in_small_pools_too() {
    for (capacity, value_bytes) in [(512 << 10, 50), (1 << 20, 8), (3 << 20, 300)] {
        let segment_bytes = (capacity / 16).min(64 << 10);
        let sizes = Options { capacity, max_capacity: capacity, segment_bytes, shards: 2, ..small() };
        let store = Store::open(Options { in_memory: true, ..sizes }).unwrap();
        store.create_keyspace("other", Kind::Hash).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&vec![1; value_bytes]));
        let mut next = (0..).find(|key| put(*key).is_err()).unwrap();
        for key in 0..1_000u64 {
            let deleted = store.write_wait(&keyspace, &key.to_be_bytes(), None);
            assert!(deleted.is_ok_and(|was_there| was_there), "{key} deletes, {capacity} bytes");
            next = (next..).find(|key| put(*key).is_err()).unwrap();
        }
        assert!(store.check().unwrap().is_sound());
    }
}

/// Regression: a collector's chunk was half a segment, and an entry that did not fit into the rest of one left a gap in
/// the middle. So the entries of one segment could take two, and a full store had nothing left for deletes.
#[test]
fn copies_leave_gaps_at_the_ends_of_segments_only() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let store = Store::open(Options { background: false, ..options(collector, 0) }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let put = |key: u64, len| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&vec![1; len])).unwrap();
        // A segment of 64 KiB has room for five large entries, but its half only for two. The entries beside them are
        // deleted.
        for key in 0..100 {
            put(key, 12_000);
            put(1000 + key, 8_000);
        }
        for key in 1000..1100 {
            store.write_wait(&keyspace, &u64::to_be_bytes(key), None).unwrap();
        }
        store.compact(0.05, |_| ControlFlow::Continue(())).unwrap();
        let usage = store.stats().pools[0].usage.clone();
        assert!(usage.open + usage.closed <= 22, "{collector:?}: {usage:?}");
        assert!((0..100u64).all(|key| store.get_with(&keyspace, &key.to_be_bytes(), <[u8]>::len).unwrap() == Some(12_000)));
    }
}

/// Tombstones that may go are not moved, so they need no room. With several keyspaces they were thought to need half as
/// much again, and when one segment was left, no pass began.
#[test]
fn keys_that_come_and_go_need_no_room() {
    [CollectorKind::Batched, CollectorKind::Chain].into_iter().for_each(let_keys_come_and_go);
}

fn let_keys_come_and_go(collector: CollectorKind) {
    let options = Options { space_patience: Duration::from_secs(60), ..options(collector, 1) };
    let store = Store::open(Options { capacity: 4 << 20, max_capacity: 4 << 20, ..options }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    store.create_keyspace("another", Kind::Hash).unwrap();
    let mut key = 0u64;
    for round in 0..80 {
        for puts in [true, false] {
            for key in key..key + 5_000 {
                if let Err(error) = store.write_wait(&keyspace, &key.to_be_bytes(), puts.then_some(b"t")) {
                    panic!("{collector:?}, round {round}, {} keys are live: {error}", keyspace.len());
                }
            }
        }
        key += 5_000;
    }
    assert_eq!(keyspace.len(), 0);
}

/// Looks at a store just before copies are written.
#[derive(Default)]
struct Watch {
    look: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl Tracer for Watch {
    fn store(&self, _: u64, _: &[u8], kind: StoreKind) {
        let look = self.look.lock().unwrap().clone();
        if kind == StoreKind::Streaming
            && let Some(look) = look
        {
            look();
        }
    }
    fn flush(&self, _: u64, _: usize) {}
    fn fence(&self) {}
    fn sync(&self, _: SyncPhase) {}
}

/// Copies are gathered and then written together: no snapshot may look for a copy before that.
#[test]
fn a_snapshot_follows_what_is_moved_when_it_is_there() {
    const KEYS: u64 = 4_000;
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let (dir, watch) = (tempfile::tempdir().unwrap(), Arc::new(Watch::default()));
        let (path, tracer) = (dir.path().join("node0.hither"), watch.clone());
        let pools = move || {
            let create = CreateOptions {
                medium: MediumChoice::File,
                segment_bytes: 64 << 10,
                tracer: Some(tracer.clone() as Arc<dyn Tracer>),
                ..CreateOptions::new(8 << 20)
            };
            let pool = Pool::create(&path, &create)?;
            pool.finish_creation()?;
            Ok(vec![pool])
        };
        let options = Options { pools: Some(Arc::new(pools)), in_memory: false, background: false, ..options(collector, 0) };
        let store = Store::open(Options { durability: Durability::Process, ..options }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let put = |key: u64, byte: u8| assert!(store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[byte; 100])).is_ok());
        // Of each segment, a third is garbage, a third is shown by the snapshot only, and a third is live.
        (0..KEYS).for_each(|key| put(key, 1));
        (0..KEYS).filter(|key| key % 3 == 0).for_each(|key| put(key, 1));
        let (snapshot, looks, wrong) = (Arc::new(store.snapshot()), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        (0..KEYS).filter(|key| key % 3 == 1).for_each(|key| put(key, 2));
        *watch.look.lock().unwrap() = Some({
            let (snapshot, keyspace, looks, wrong) = (snapshot.clone(), keyspace.clone(), looks.clone(), wrong.clone());
            Arc::new(move || {
                looks.fetch_add(1, Ordering::Relaxed);
                let shown = |key: u64| snapshot.get_with(&keyspace, &key.to_be_bytes(), |value| value == [1; 100]);
                let is_right = |key: &u64| matches!(catch_unwind(AssertUnwindSafe(|| shown(*key))), Ok(Ok(Some(true))));
                wrong.fetch_add((0..KEYS).filter(|key| !is_right(key)).count() as u64, Ordering::Relaxed);
            })
        });
        store.compact(0.05, |_| ControlFlow::Continue(())).unwrap();
        *watch.look.lock().unwrap() = None;
        let (moved, looks) = (store.stats().collections.moved_for_snapshots, looks.load(Ordering::Relaxed));
        assert!(moved > KEYS / 4 && looks > 3, "{collector:?}: {moved} moved for snapshots, {looks} looks");
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "{collector:?}: values that a snapshot did not find");
    }
}
