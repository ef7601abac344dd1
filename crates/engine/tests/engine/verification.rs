//! After a restart that does not scan, the verification in the background finds garbage again.

use crate::common;
use crate::common::{crash, scrambled};
use hither_engine::{Batch, CheckpointMode, KeyspaceHandle, Kind, Options, RestartSource, Store};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KEYS: u64 = 20_000;

fn options(dir: &Path) -> Options {
    Options { paths: vec![(None, dir.to_owned())], ..common::small() }
}

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: u8) {
    store.write_wait(keyspace, &key.to_be_bytes(), Some(&vec![value; 8 + key as usize % 50])).unwrap();
}

fn read(store: &Store, keyspace: &KeyspaceHandle, key: u64) -> Option<u8> {
    store.get_with(keyspace, &key.to_be_bytes(), |value| value[0]).unwrap()
}

/// Makes keys in keyspaces of two kinds, of which some are overwritten, some deleted, and some written in batches; and
/// a keyspace that is dropped.
fn fill(store: &Store) {
    for kind in [Kind::Hash, Kind::Ordered] {
        let keyspace = store.create_keyspace(&format!("{kind:?}"), kind).unwrap();
        (0..KEYS).for_each(|key| put(store, &keyspace, key, 1));
    }
    let dropped = store.create_keyspace("dropped", Kind::Hash).unwrap();
    (0..KEYS / 10).for_each(|key| put(store, &dropped, key, 1));
    change(store, 0);
    assert!(store.drop_keyspace("dropped").unwrap());
}

/// Changes keys from `first` on.
fn change(store: &Store, first: u64) {
    for kind in [Kind::Hash, Kind::Ordered] {
        let keyspace = store.open_keyspace(&format!("{kind:?}")).unwrap();
        for key in (first..KEYS).step_by(7) {
            put(store, &keyspace, key, 2);
        }
        for key in (first + 1..KEYS).step_by(70) {
            store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap();
        }
        for key in (first + 2..KEYS).step_by(70) {
            let mut batch = Batch::default();
            (0..3).for_each(|member| batch.put(&keyspace, &(key + member).to_be_bytes(), &[3; 20], 0));
            store.commit_wait(&batch).unwrap();
        }
    }
}

fn known(store: &Store) -> Vec<u64> {
    let mut known = store.known_garbage();
    known.sort_unstable();
    known
}

/// Asserts that a restart from `source` and a verification find the same garbage as a scan. One thread restarts: two
/// may lose bits of neighbours, and need not find them (G2).
fn assert_as_by_a_scan(dir: &Path, source: RestartSource) {
    let options = |dir: &Path| Options { threads: 1, ..options(dir) };
    let store = Store::open(options(dir)).unwrap();
    assert_eq!(store.recovery().source, source);
    let before = known(&store).len();
    store.verify_unread();
    assert!(store.check().unwrap().is_sound());
    let verified = known(&store);
    drop(store);
    let store = Store::open(Options { checkpoints: CheckpointMode::Off, ..options(dir) }).unwrap();
    assert_eq!(store.recovery().source, RestartSource::Scan);
    assert!(verified.len() > before + 5_000, "{before} entries before, {} then", verified.len());
    assert!(store.check().unwrap().is_sound());
    assert_same(&verified, &known(&store));
}

fn assert_same(verified: &[u64], scanned: &[u64]) {
    let only = |of: &[u64], not: &[u64]| of.iter().copied().filter(|entry| not.binary_search(entry).is_err()).collect::<Vec<_>>();
    let (unscanned, unverified) = (only(verified, scanned), only(scanned, verified));
    assert!(
        unscanned.is_empty() && unverified.is_empty(),
        "found by the verification only: {unscanned:x?}; by the scan only: {unverified:x?}"
    );
}

#[test]
fn after_a_clean_close_all_garbage_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    fill(&Store::open(options(dir.path())).unwrap());
    assert_as_by_a_scan(dir.path(), RestartSource::Clean);
}

#[test]
fn after_a_crash_garbage_is_found_in_what_the_checkpoint_covers_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    fill(&store);
    store.reclaim().unwrap();
    assert!(store.checkpoint().unwrap());
    change(&store, 3);
    assert_as_by_a_scan(crash(dir.path()).path(), RestartSource::Checkpoint);
}

#[test]
fn what_a_snapshot_shows_is_not_garbage() {
    let dir = tempfile::tempdir().unwrap();
    fill(&Store::open(options(dir.path())).unwrap());
    for verify_first in [false, true] {
        // What a snapshot shows counts as live, so segments with little garbage have to be worth a pass here.
        let store = Store::open(Options { gc_threshold: 0.05, ..options(dir.path()) }).unwrap();
        let keyspace = store.open_keyspace("Hash").unwrap();
        // Every segment has garbage, so each is worth a pass whatever the snapshot shows of it.
        (0..KEYS).filter(|key| key % 3 == 0).for_each(|key| put(&store, &keyspace, key, 8));
        let shown: Vec<_> = (0..KEYS).map(|key| read(&store, &keyspace, key)).collect();
        let snapshot = store.snapshot();
        if verify_first {
            store.verify_unread();
        }
        (0..KEYS).filter(|key| key % 5 > 0).for_each(|key| put(&store, &keyspace, key, 9));
        store.verify_unread();
        // Each call collects four segments.
        let enough = (0..200).any(|_| {
            store.reclaim().unwrap();
            let done = store.stats().collections;
            done.moved_for_snapshots > 300 && done.known_garbage > 1_000
        });
        assert!(enough, "{:?}", store.stats().collections);
        for key in 0..KEYS {
            let found = snapshot.get_with(&keyspace, &key.to_be_bytes(), |value| value[0]).unwrap();
            assert_eq!(found, shown[key as usize], "key {key}");
        }
        drop(snapshot);
        assert!(store.check().unwrap().is_sound());
    }
}

/// Writers, collectors and snapshots at work while garbage is looked for: nothing that is live, or that a snapshot
/// shows, ever passes for garbage.
#[test]
fn nothing_live_is_taken_for_garbage_beside_writers_collectors_and_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    fill(&Store::open(options(dir.path())).unwrap());
    for round in 0..3u8 {
        let store = Store::open(Options { background: true, gc_threads: 2, ..options(dir.path()) }).unwrap();
        assert_eq!(store.recovery().source, RestartSource::Clean);
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (store, stop, writes) = (&store, &stop, &writes);
                scope.spawn(move || overwrite(store, thread, round, stop, writes));
            }
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    look_twice(&store);
                }
            });
            store.verify_unread();
            // The segments that were verified are collected now.
            while writes.load(Ordering::Relaxed) < 60_000 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!store.has_unverified() && store.stats().damage.is_empty(), "{:?}", store.stats().damage);
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        store.close().unwrap();
    }
}

/// Overwrites every second key, after reading it.
fn overwrite(store: &Store, thread: u64, round: u8, stop: &AtomicBool, writes: &AtomicU64) {
    let keyspaces = ["Hash", "Ordered"].map(|name| store.open_keyspace(name).unwrap());
    let mut last: Vec<[Option<u8>; 2]> = (0..KEYS).map(|key| [0, 1].map(|at| read(store, &keyspaces[at], key))).collect();
    let (mut random, mut number) = (thread + 1, round);
    while !stop.load(Ordering::Relaxed) {
        random = scrambled(random);
        let (key, at) = ((random >> 33) % (KEYS / 2) * 2 + thread, (random >> 32) as usize % 2);
        assert_eq!(read(store, &keyspaces[at], key), last[key as usize][at], "key {key}");
        number = number.wrapping_add(1);
        put(store, &keyspaces[at], key, number);
        last[key as usize][at] = Some(number);
        writes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks that what a snapshot shows stays the same.
fn look_twice(store: &Store) {
    let keyspace = store.open_keyspace("Hash").unwrap();
    let snapshot = store.snapshot();
    let look =
        || (0..KEYS).step_by(5).map(|key| snapshot.get_with(&keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap()).collect::<Vec<_>>();
    let first = look();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(look() == first, "a snapshot changed");
}
