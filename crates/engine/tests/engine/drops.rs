//! Keyspaces and snapshots that are dropped while collectors empty their segments. What is counted as garbage then must
//! not be counted in a segment's next life, where it would make live entries pass for dead.

use crate::common::scrambled;
use hither_engine::{CollectorKind, Durability, KeyspaceHandle, Kind, Options, Store};
use hither_topology::Topology;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 6_000;
const ROUNDS: usize = 60;
/// More segments than this are emptied beside what is dropped.
const EMPTIED: u64 = 100;

fn open(collector: CollectorKind) -> Store {
    let options = Options {
        in_memory: true,
        capacity: 3 << 20,
        max_capacity: 3 << 20,
        segment_bytes: 16 << 10,
        shards: 2,
        topology: Some(Arc::new(Topology::single())),
        durability: Durability::Process,
        collector,
        gc_threads: 1,
        ..Options::default()
    };
    Store::open(options).unwrap()
}

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: u8) {
    store.write_wait(keyspace, &key.to_be_bytes(), Some(&[value; 40])).unwrap();
}

/// Overwrites keys in no order until `stop` is set, and checks that each key was there; returns the last value of each
/// key.
fn overwrite(store: &Store, keyspace: &KeyspaceHandle, stop: &AtomicBool) -> Vec<u8> {
    let (mut random, mut last) = (1u64, vec![0; KEYS as usize]);
    (0..KEYS).for_each(|key| put(store, keyspace, key, 0));
    while !stop.load(Ordering::Relaxed) {
        random = scrambled(random);
        let key = (random >> 33) % KEYS;
        assert_is(store, keyspace, key, last[key as usize]);
        last[key as usize] = (random >> 20) as u8;
        put(store, keyspace, key, last[key as usize]);
    }
    last
}

fn assert_is(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: u8) {
    let found = store.get_with(keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap();
    assert_eq!(found.as_deref(), Some(&[value; 40][..]), "key {key}");
}

/// Runs `work` beside a writer until collectors have emptied enough segments; then everything must be there and accounted
/// for.
fn beside_collections(work: impl Fn(&Store, usize)) {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let store = open(collector);
        let kept = store.create_keyspace("kept", Kind::Hash).unwrap();
        let stop = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let writer = scope.spawn(|| overwrite(&store, &kept, &stop));
            let end = Instant::now() + Duration::from_secs(100);
            let emptied = || store.stats().collections.segments;
            let goes_on = |round: &usize| *round < ROUNDS || emptied() <= EMPTIED && Instant::now() < end;
            (0..).take_while(goes_on).for_each(|round| work(&store, round));
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        (0..KEYS).for_each(|key| assert_is(&store, &kept, key, last[key as usize]));
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{collector:?}: {report:?}");
        assert!(store.stats().collections.segments > EMPTIED, "{collector:?}: segments were emptied and used again");
    }
}

#[test]
fn keyspaces_are_dropped_beside_collections() {
    beside_collections(|store, round| {
        let keyspace = store.create_keyspace("passing", if round % 2 == 0 { Kind::Hash } else { Kind::Ordered }).unwrap();
        (0..KEYS).for_each(|key| put(store, &keyspace, key, 1));
        store.drop_keyspace("passing").unwrap();
    });
}

#[test]
fn snapshots_are_dropped_beside_collections() {
    beside_collections(|store, _| {
        let snapshot = store.snapshot();
        std::thread::sleep(Duration::from_millis(5));
        drop(snapshot);
    });
}

/// A collector that has met entries of a keyspace before it is dropped must not move them afterwards: nobody would
/// count the copies as garbage.
#[test]
fn what_is_dropped_is_moved_no_more() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let store = open(collector);
        for round in 0..ROUNDS {
            let keyspace = store.create_keyspace("passing", if round % 2 == 0 { Kind::Hash } else { Kind::Ordered }).unwrap();
            // Two thirds of the first segments are garbage then, and the rest has to be moved.
            (0..KEYS).chain((0..KEYS).filter(|key| key % 3 > 0)).for_each(|key| put(&store, &keyspace, key, 1));
            let moved = || store.stats().collections.moved_entries;
            let before = moved();
            std::thread::scope(|scope| {
                let collecting = scope.spawn(|| store.reclaim().unwrap());
                // Drops the keyspace in the midst of the collection, if that can be hit.
                while moved() == before && !collecting.is_finished() {
                    std::thread::yield_now();
                }
                store.drop_keyspace("passing").unwrap();
                collecting.join().unwrap();
            });
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{collector:?}, round {round}: {report:?}");
            // The next round then begins with what has to be moved.
            store.reclaim().unwrap();
        }
        assert!(store.stats().collections.moved_entries > 0, "{collector:?}: nothing was moved");
    }
}

/// A collector moves nothing of a dropped keyspace, not even for a snapshot, which cannot show it any more. So what the
/// snapshot had kept of the keyspace must be counted as garbage before the snapshot ends: by then other entries lie in
/// its place.
#[test]
fn a_snapshot_keeps_nothing_of_a_dropped_keyspace() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let store = open(collector);
        let kept = store.create_keyspace("kept", Kind::Hash).unwrap();
        for round in 0..6 {
            let passing = store.create_keyspace("passing", if round % 2 == 0 { Kind::Hash } else { Kind::Ordered }).unwrap();
            // Every segment has garbage, so each is worth a pass whatever the snapshot shows of it.
            (0..2 * KEYS).for_each(|number| put(&store, &passing, number / 2, 1));
            let snapshot = store.snapshot();
            (0..KEYS).for_each(|key| put(&store, &passing, key, 2));
            store.drop_keyspace("passing").unwrap();
            assert!(snapshot.get_with(&passing, &7u64.to_be_bytes(), |_| ()).is_err(), "it cannot be read through a snapshot either");
            (0..20).for_each(|_| assert!(store.reclaim().is_ok()));
            (0..KEYS).for_each(|key| put(&store, &kept, key, round));
            drop(snapshot);
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{collector:?}, round {round}: {report:?}");
        }
        (0..KEYS).for_each(|key| assert_is(&store, &kept, key, 5));
        assert!(store.stats().collections.segments > 100, "{collector:?}: segments were emptied and used again");
    }
}
