//! Entries that are moved so many writes after they were written that their versions have no place in new segments.
//! Their copies get higher versions, and nobody can tell.

use crate::common;
use hither_engine::{CheckpointMode, CollectorKind, KeyspaceHandle, Kind, Options, Snapshot, Store};
use std::collections::BTreeMap;

/// More versions than a segment has room for beside its base.
const MANY: u64 = 1 << 33;

type Model = BTreeMap<u64, Vec<u8>>;

/// Pairs of eight bytes and longer ones.
fn key_of(number: u64) -> Vec<u8> {
    if number.is_multiple_of(3) { format!("a key of some length {number}").into_bytes() } else { number.to_be_bytes().to_vec() }
}

fn value_of(number: u64, round: u64) -> Vec<u8> {
    (number << 32 | round).to_be_bytes().repeat(1 + (number % 4) as usize)
}

fn assert_same(store: &Store, keyspace: &KeyspaceHandle, model: &Model, keys: u64, what: &str) {
    for number in 0..keys {
        assert_eq!(common::get(store, keyspace, &key_of(number)).as_ref(), model.get(&number), "{what}: key {number}");
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{what}: {:?}", report.problems);
}

fn assert_shows(snapshot: &Snapshot, keyspace: &KeyspaceHandle, model: &Model, keys: u64, what: &str) {
    for number in 0..keys {
        let found = snapshot.get_with(keyspace, &key_of(number), <[u8]>::to_vec).unwrap();
        assert_eq!(found.as_ref(), model.get(&number), "{what}: key {number} of a snapshot");
    }
}

/// A snapshot shows what was there, however much is written, left out and moved. So does a snapshot that is taken
/// later, and so do both at once.
#[test]
fn snapshots_show_what_is_moved_under_higher_versions() {
    const KEYS: u64 = 3_000;
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        for kind in [Kind::Hash, Kind::Ordered] {
            let what = format!("{collector:?}, {kind:?}");
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(Options { paths: vec![(None, dir.path().to_owned())], collector, ..common::small() }).unwrap();
            let keyspace = store.create_keyspace("k", kind).unwrap();
            let mut model = Model::new();
            let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
            for round in 0..8u64 {
                for number in (0..KEYS).filter(|number| round == 0 || (number + round).is_multiple_of(5)) {
                    let value = (!(number * 7 + round).is_multiple_of(11)).then(|| value_of(number, round));
                    store.write_wait(&keyspace, &key_of(number), value.as_deref()).unwrap();
                    match value {
                        Some(value) => model.insert(number, value),
                        None => model.remove(&number),
                    };
                }
                if round % 3 == 1 {
                    snapshots.push((store.snapshot(), model.clone()));
                }
                if round == 5 {
                    snapshots.remove(0);
                }
                store.skip_versions(MANY);
                (0..3).for_each(|_| _ = store.reclaim().unwrap());
                store.compact(0.05, |_| std::ops::ControlFlow::Continue(())).unwrap();
                snapshots.iter().for_each(|(snapshot, model)| assert_shows(snapshot, &keyspace, model, KEYS, &what));
            }
            assert!(store.stats().collections.moved_entries > KEYS, "{what}: {:?}", store.stats().collections);
            assert!(store.stats().collections.moved_for_snapshots > 0, "{what}: {:?}", store.stats().collections);
            assert_same(&store, &keyspace, &model, KEYS, &what);
        }
    }
}

/// Random changes, collections, checkpoints and skipped versions, with kills in between; each life has another
/// collector.
#[test]
fn nothing_is_lost_or_comes_back_after_kills() {
    const KEYS: u64 = 400;
    for seed in 0..4u64 {
        let mut random = common::Random(seed);
        let (mut dir, mut model) = (tempfile::tempdir().unwrap(), Model::new());
        for life in 0..6 {
            let what = format!("seed {seed}, life {life}");
            let collector = if random.below(2) == 0 { CollectorKind::Batched } else { CollectorKind::Chain };
            let options = Options {
                paths: vec![(None, dir.path().to_owned())],
                collector,
                checkpoints: if seed % 2 == 0 { CheckpointMode::Off } else { Options::default().checkpoints },
                capacity: 1 << 20,
                max_capacity: 1 << 20,
                segment_bytes: 16 << 10,
                ..common::small()
            };
            let store = Store::open(options).unwrap();
            let keyspace = store.open_keyspace("k").unwrap_or_else(|| store.create_keyspace("k", Kind::Hash).unwrap());
            assert_same(&store, &keyspace, &model, KEYS, &what);
            for step in 0..4_000u64 {
                let number = random.below(KEYS);
                match random.below(400) {
                    0 => store.skip_versions(MANY),
                    1..=4 => _ = store.reclaim().unwrap(),
                    5 if seed % 2 == 1 => _ = store.checkpoint().unwrap(),
                    6..=150 => {
                        store.write_wait(&keyspace, &key_of(number), None).unwrap();
                        model.remove(&number);
                    }
                    _ => {
                        let value = value_of(number, step);
                        store.write_wait(&keyspace, &key_of(number), Some(&value)).unwrap();
                        model.insert(number, value);
                    }
                }
            }
            // Everything that a killed process has written is there.
            let copy = common::crash(dir.path());
            drop((keyspace, store));
            dir = copy;
        }
    }
}
