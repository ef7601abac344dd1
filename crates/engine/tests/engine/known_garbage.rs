//! Garbage that collectors recognise without asking an index: overwrites set bits in DRAM, and recovery finds them
//! again (`docs/adr/0016`).

use crate::common;
use crate::common::scrambled;
use hither_engine::{CheckpointMode, KeyspaceHandle, Kind, Options, Store};
use std::path::Path;

const KEYS: u64 = 30_000;

fn options(dir: &Path) -> Options {
    Options { paths: vec![(None, dir.to_owned())], checkpoints: CheckpointMode::Off, ..common::small() }
}

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64, round: u8) {
    store.write_wait(keyspace, &key.to_be_bytes(), Some(&[round; 48])).unwrap();
}

fn assert_all(store: &Store, keyspace: &KeyspaceHandle, value_of: impl Fn(u64) -> u8) {
    for key in 0..KEYS {
        let value = store.get_with(keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap();
        assert_eq!(value.as_deref(), Some(&[value_of(key); 48][..]), "key {key}");
    }
}

/// Overwrites seven of every ten keys, so that segments are collected with both kinds in them.
fn overwrite(store: &Store, keyspace: &KeyspaceHandle) {
    (0..KEYS).filter(|key| key % 10 < 7).for_each(|key| put(store, keyspace, key, 2));
}

/// Overwrites keys in no order, so that segments hold both garbage and live entries; returns the last value of each
/// key.
fn scatter(store: &Store, keyspace: &KeyspaceHandle, writes: u64) -> Vec<u8> {
    let (mut random, mut last) = (1u64, vec![0; KEYS as usize]);
    for number in 0..writes {
        random = scrambled(random);
        let key = (random >> 33) % KEYS;
        put(store, keyspace, key, number as u8);
        last[key as usize] = number as u8;
    }
    last
}

fn round_of(key: u64) -> u8 {
    if key % 10 < 7 { 2 } else { 1 }
}

#[test]
fn overwrites_tell_collectors_what_is_garbage() {
    for kind in [Kind::Hash, Kind::Ordered] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(options(dir.path())).unwrap();
        let keyspace = store.create_keyspace("k", kind).unwrap();
        (0..KEYS).for_each(|key| put(&store, &keyspace, key, 1));
        overwrite(&store, &keyspace);
        (0..4).for_each(|_| assert!(store.reclaim().is_ok()));
        let done = store.stats().collections;
        assert!(done.segments > 0 && done.moved_entries > 0, "{done:?}");
        assert!(done.known_garbage * 10 >= done.segments * 7 * 500, "all garbage of some 800 entries a segment is known: {done:?}");
        assert_all(&store, &keyspace, round_of);
        assert!(store.check().unwrap().is_sound());
    }
}

#[test]
fn a_recovery_finds_out_again_what_is_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..KEYS).for_each(|key| put(&store, &keyspace, key, 1));
    overwrite(&store, &keyspace);
    drop(store);
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    assert!(store.check().unwrap().is_sound());
    (0..4).for_each(|_| assert!(store.reclaim().is_ok()));
    let done = store.stats().collections;
    assert!(done.segments > 0 && done.known_garbage > done.moved_entries, "{done:?}");
    assert_all(&store, &keyspace, round_of);
    assert!(store.check().unwrap().is_sound());
}

/// A place that was garbage in one life of its segment is not garbage in the next: every segment has many lives here.
#[test]
fn a_new_life_begins_without_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..KEYS).for_each(|key| put(&store, &keyspace, key, 0));
    let last = scatter(&store, &keyspace, 400_000);
    let stats = store.stats();
    assert!(stats.pools[0].usage.reused > 300 && stats.collections.known_garbage > 100_000, "{:?}", stats.collections);
    assert_all(&store, &keyspace, |key| last[key as usize]);
    assert!(store.check().unwrap().is_sound());
}

/// An entry that only a snapshot shows is not garbage.
#[test]
fn what_a_snapshot_shows_is_not_known_as_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..KEYS).for_each(|key| put(&store, &keyspace, key, 1));
    let snapshot = store.snapshot();
    scatter(&store, &keyspace, 200_000);
    assert!(store.stats().collections.known_garbage > 10_000, "{:?}", store.stats().collections);
    for key in 0..KEYS {
        let shown = snapshot.get_with(&keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap();
        assert_eq!(shown.as_deref(), Some(&[1; 48][..]), "key {key}");
    }
}
