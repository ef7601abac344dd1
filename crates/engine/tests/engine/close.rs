//! The cost of a clean close is in proportion to what was changed: the close relies on the last checkpoint while that
//! holds nearly everything.

use crate::common;
use hither_engine::{CheckpointMode, CollectorKind, Kind, MediumChoice, Options, RestartSource, Store};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Keys before the changes, in each keyspace.
const KEYS: u64 = 20_000;

type Model = BTreeMap<u64, u64>;

/// Small segments, so that what one change adds to a restart's scan is little beside the keys.
fn open(dir: &Path) -> Store {
    let options = Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        durability: hither_engine::Durability::Process,
        capacity: 16 << 20,
        max_capacity: 64 << 20,
        segment_bytes: 16 << 10,
        shards: 4,
        background: false,
        ..Options::default()
    };
    Store::open(options).unwrap()
}

fn close(store: Store) {
    store.close().unwrap();
}

fn put(store: &Store, model: &mut Model, key: u64, value: u64) {
    for name in ["ordered", "hash"] {
        store.write_wait(&store.open_keyspace(name).unwrap(), &key.to_be_bytes(), Some(&value.to_le_bytes())).unwrap();
    }
    model.insert(key, value);
}

fn delete(store: &Store, model: &mut Model, key: u64) {
    for name in ["ordered", "hash"] {
        store.write_wait(&store.open_keyspace(name).unwrap(), &key.to_be_bytes(), None).unwrap();
    }
    model.remove(&key);
}

/// A store that was closed with `KEYS` keys in each of two keyspaces.
fn filled(dir: &Path) -> Model {
    let store = open(dir);
    store.create_keyspace("ordered", Kind::Ordered).unwrap();
    store.create_keyspace("hash", Kind::Hash).unwrap();
    let mut model = Model::new();
    (0..KEYS).for_each(|key| put(&store, &mut model, key, key * 3));
    close(store);
    model
}

fn assert_holds(store: &Store, model: &Model) {
    for name in ["ordered", "hash"] {
        let keyspace = store.open_keyspace(name).unwrap();
        for key in (0..KEYS + 2_000).filter(|key| key % 50 == 0 || *key >= KEYS - 200 || *key < 200) {
            let found = store.get_with(&keyspace, &key.to_be_bytes(), |value| u64::from_le_bytes(value.try_into().unwrap())).unwrap();
            assert_eq!(found, model.get(&key).copied(), "key {key} of {name}");
        }
        assert_eq!(keyspace.len(), model.len());
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

fn checkpoint(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("checkpoint.hither")).unwrap()
}

#[test]
fn a_close_after_one_change_writes_no_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    let before = checkpoint(dir.path());
    let store = open(dir.path());
    assert_eq!(store.recovery().source, RestartSource::Clean);
    let forecast = store.stats().checkpoints.clean_restart_ms;
    put(&store, &mut model, 7, 1);
    close(store);
    assert!(checkpoint(dir.path()) == before, "the index was written anew for one put");
    let store = open(dir.path());
    let report = store.recovery();
    assert_eq!((report.source, report.clean), (RestartSource::Checkpoint, true));
    assert!((1..=2).contains(&report.segments) && report.segments_skipped > 50, "only what was changed is scanned: {report:?}");
    assert!(store.stats().checkpoints.clean_restart_ms <= forecast + 1 + forecast / 4);
    assert_holds(&store, &model);
    close(store);
    assert!(checkpoint(dir.path()) == before, "nothing was changed since");
}

/// Single changes add up and are written some day. Deletes, batches and crashes in between are kept.
#[test]
fn many_small_changes_are_held_and_written_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    let (mut last, mut written, mut relied) = (checkpoint(dir.path()), 0, 0);
    for life in 0..30u64 {
        let store = open(dir.path());
        assert_holds(&store, &model);
        for i in 0..20 {
            put(&store, &mut model, life * 700 + i, life);
            delete(&store, &mut model, life * 700 + i + 20);
            put(&store, &mut model, KEYS + life * 20 + i, life);
        }
        if life % 4 == 1 {
            delete(&store, &mut model, 7);
            // Tombstones and what they deleted may be in different segments by now.
            store.reclaim().unwrap();
        }
        if life % 3 == 0 {
            let copy = common::crash(dir.path());
            let recovered = open(copy.path());
            assert!(!recovered.recovery().clean && recovered.recovery().source == RestartSource::Checkpoint);
            assert_holds(&recovered, &model);
        }
        close(store);
        let now = checkpoint(dir.path());
        *if now == last { &mut relied } else { &mut written } += 1;
        last = now;
    }
    assert!(written >= 1 && relied > written, "{written} closes wrote the index, {relied} relied on the last one");
    assert_holds(&open(dir.path()), &model);
}

#[test]
fn a_close_after_many_changes_writes_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = filled(dir.path());
    let before = checkpoint(dir.path());
    let store = open(dir.path());
    (0..KEYS / 2).for_each(|key| put(&store, &mut model, key, 1));
    close(store);
    assert!(checkpoint(dir.path()) != before);
    let store = open(dir.path());
    assert_eq!((store.recovery().source, store.recovery().segments), (RestartSource::Clean, 0));
    assert_holds(&store, &model);
}

/// A pass of a caller's thread goes on while the store is closed. What it has copied must be in the totals that the
/// close records.
#[test]
fn a_close_beside_a_collection_leaves_a_store_that_opens() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        for round in (0..20u64).step_by(3) {
            let dir = tempfile::tempdir().unwrap();
            let options = || Options {
                paths: vec![(None, dir.path().to_owned())],
                collector,
                checkpoints: CheckpointMode::Off,
                capacity: 16 << 20,
                max_capacity: 16 << 20,
                segment_bytes: 1 << 20,
                shards: 1,
                ..common::small()
            };
            let store = Store::open(options()).unwrap();
            let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
            (0..60_000u64).for_each(|key| common::put(&store, &keyspace, &key.to_be_bytes(), &[1; 40]));
            (0..60_000u64).filter(|key| key % 3 > 0).for_each(|key| common::put(&store, &keyspace, &key.to_be_bytes(), &[2; 40]));
            std::thread::scope(|scope| {
                scope.spawn(|| while store.reclaim().is_ok() {});
                std::thread::sleep(Duration::from_millis(4 * round + 1));
                store.close().unwrap();
            });
            drop(store);
            let store = Store::open(options()).unwrap_or_else(|error| panic!("{collector:?}, round {round}: {error}"));
            let keyspace = store.open_keyspace("keys").unwrap();
            for key in 0..60_000u64 {
                let value = if key % 3 > 0 { 2 } else { 1 };
                assert_eq!(
                    common::get(&store, &keyspace, &key.to_be_bytes()).as_deref(),
                    Some(&[value; 40][..]),
                    "{collector:?}, round {round}: key {key}"
                );
            }
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{collector:?}, round {round}: {report:?}");
        }
    }
}

/// Regression: a call that closed a store while another thread did so returned at once that the store was closed,
/// before anything was durable.
#[test]
fn a_close_beside_another_returns_when_the_store_is_closed() {
    let (dir, points) = (tempfile::tempdir().unwrap(), hither_pmem::Failpoints::new());
    let options = Options { paths: vec![(None, dir.path().to_owned())], medium: MediumChoice::File, ..common::small() };
    let store = Store::open(Options { failpoints: Some(points.clone()), ..options }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    common::put(&store, &keyspace, b"key", b"value");
    points.hold("sync");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| store.close());
        while points.waiting("sync") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let second = scope.spawn(|| store.close());
        // Long enough for an early return; the test does not depend on it otherwise.
        std::thread::sleep(Duration::from_millis(100));
        let early = second.is_finished();
        points.release("sync");
        assert!(first.join().unwrap().is_ok() && second.join().unwrap().is_ok());
        assert!(!early, "nothing was durable yet");
    });
}

/// Checkpoints and compactions of a caller's threads go on while the store is closed, beside deletes. Whatever comes of
/// them, the next opening finds what was acknowledged.
#[test]
fn a_close_beside_checkpoints_and_compactions_loses_nothing() {
    const KEYS: u64 = 1_000;
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let dir = tempfile::tempdir().unwrap();
        let mut model: Vec<Option<u64>> = vec![None; KEYS as usize];
        for round in 0..4u64 {
            let paths = vec![(None, dir.path().to_owned())];
            let sizes = Options { capacity: 2 << 20, max_capacity: 2 << 20, segment_bytes: 16 << 10, shards: 1, ..common::small() };
            let store = Store::open(Options { paths, collector, ..sizes }).unwrap_or_else(|error| panic!("round {round}: {error}"));
            let keyspace = store.open_keyspace("keys").unwrap_or_else(|| store.create_keyspace("keys", Kind::Hash).unwrap());
            for (key, value) in model.iter().enumerate() {
                let found = common::get(&store, &keyspace, &(key as u64).to_be_bytes());
                assert_eq!(found, value.map(|value| value.to_be_bytes().repeat(5)), "{collector:?}, round {round}: key {key}");
            }
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{collector:?}, round {round}: {report:?}");
            std::thread::scope(|scope| {
                scope.spawn(|| while store.checkpoint().is_ok() {});
                scope.spawn(|| while store.compact(0.1, |_| std::ops::ControlFlow::Continue(())).is_ok() {});
                scope.spawn(|| {
                    for step in 0.. {
                        let (key, puts) = ((step * 7919 + round) % KEYS, (step + round) % 3 > 0);
                        let value = step.to_be_bytes().repeat(5);
                        if store.write_wait(&keyspace, &key.to_be_bytes(), puts.then_some(&value)).is_err() {
                            break;
                        }
                        model[key as usize] = puts.then_some(step);
                    }
                });
                std::thread::sleep(Duration::from_millis(7 * round + 3));
                store.close().unwrap();
            });
        }
    }
}

/// Regression: the last handle of a store was dropped inside a read of another store, and waited for a collector that
/// waited for that read.
#[test]
fn a_store_is_dropped_inside_a_read_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { paths: vec![(None, dir.path().to_owned())], medium: MediumChoice::File, background: true, ..common::small() };
    let (told, dropped) = std::sync::mpsc::channel();
    let other = options.clone();
    std::thread::spawn(move || {
        let reading = Store::open(Options { in_memory: true, ..common::small() }).unwrap();
        let read = reading.create_keyspace("k", Kind::Hash).unwrap();
        common::put(&reading, &read, b"key", b"value");
        let store = Store::open(other).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        reading
            .get_with(&read, b"key", |_| {
                // Until no more space can be had: by then collectors wait for this thread, to hand on what they have
                // freed.
                (0..100_000u64).find(|number| store.write_wait(&keyspace, &(number % 100).to_be_bytes(), Some(&[1; 1_000])).is_err());
                std::thread::sleep(Duration::from_millis(200));
                drop(keyspace);
                drop(store);
                told.send(()).unwrap();
            })
            .unwrap();
    });
    dropped.recv_timeout(Duration::from_secs(60)).expect("it waits for its own thread");
    let begun = std::time::Instant::now();
    let again = loop {
        match Store::open(options.clone()) {
            Ok(store) => break store,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "the files are still in use: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(again.check().unwrap().is_sound());
}
