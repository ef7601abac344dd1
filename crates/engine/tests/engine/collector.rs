//! The collector: endless overwrites stay within the size, nothing is lost, nothing comes back, and snapshots keep what
//! they show.

use crate::common::{crash, scrambled, small};
use hither_engine::{CollectorKind, Condition, Error, KeyspaceHandle, Kind, MediumChoice, Options, Store, WriteOptions};
use hither_pmem::{FailAt, Failpoints};
use hither_topology::Topology;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn options(collector: CollectorKind, dir: Option<&Path>, capacity: u64) -> Options {
    Options {
        paths: dir.map(|dir| (None, dir.to_owned())).into_iter().collect(),
        in_memory: dir.is_none(),
        capacity,
        max_capacity: capacity,
        collector,
        background: true,
        ..small()
    }
}

fn try_put(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: &[u8]) -> Result<bool, Error> {
    store.write_wait(keyspace, &key.to_be_bytes(), Some(value))
}

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: &[u8]) {
    try_put(store, keyspace, key, value).unwrap();
}

/// Deletes a key; returns whether it was there.
fn delete(store: &Store, keyspace: &KeyspaceHandle, key: u64) -> bool {
    store.write_wait(keyspace, &key.to_be_bytes(), None).unwrap()
}

fn value_of(store: &Store, keyspace: &KeyspaceHandle, key: u64) -> Option<Vec<u8>> {
    store.get_with(keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap()
}

/// A store that is 70 % full takes several times its size in overwrites, from several threads, beside readers who must
/// always find every key.
fn endless_overwrites_stay_within_the_size(kind: CollectorKind) {
    for index in [Kind::Hash, Kind::Ordered] {
        let store = Store::open(options(kind, None, 4 << 20)).unwrap();
        let keyspace = store.create_keyspace("k", index).unwrap();
        let keys = (4 << 20) * 7 / 10 / 72;
        (0..keys).for_each(|key| put(&store, &keyspace, key, &[1; 40]));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u64)
                .map(|thread| {
                    let (store, keyspace) = (&store, &keyspace);
                    scope.spawn(move || {
                        let mut random = thread + 1;
                        for round in 0..100_000u64 {
                            random = scrambled(random);
                            let key = (random >> 33) % keys / 2 * 2 + thread;
                            if key < keys {
                                put(store, keyspace, key, &[round as u8; 40]);
                            }
                        }
                    })
                })
                .collect();
            let (store, keyspace, stop) = (&store, &keyspace, &stop);
            scope.spawn(move || {
                for key in (0..keys).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let value = value_of(store, keyspace, key).expect("a key that is only overwritten is always there");
                    assert!(value.len() == 40 && value.iter().all(|byte| *byte == value[0]), "a value is whole: {value:?}");
                }
            });
            let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            stop.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        assert_eq!(keyspace.len() as u64, keys);
        let stats = store.stats();
        assert!(stats.pools[0].usage.reused > 100, "segments were used again: {:?}", stats.pools[0].usage);
        assert!(stats.collections.segments > 100 && stats.collections.moved_entries > 0, "{:?}", stats.collections);
        assert!(store.check().unwrap().is_sound());
    }
}

/// Deleted keys stay deleted, whatever is collected, and however often the store is closed or killed. (A drop without a
/// clean close is not possible here, so the files are copied before it.)
fn what_was_deleted_stays_deleted_across_collections_and_reopening(kind: CollectorKind) {
    deleted_stays_deleted(|_| kind);
}

/// The same if each life has another collector than the one before: the media do not depend on it.
#[test]
fn what_was_deleted_stays_deleted_when_the_collector_changes() {
    deleted_stays_deleted(|life| if life % 2 == 0 { CollectorKind::Batched } else { CollectorKind::Chain });
}

fn deleted_stays_deleted(kind_of: impl Fn(u64) -> CollectorKind) {
    let mut dir = tempfile::tempdir().unwrap();
    let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut random = 7u64;
    for life in 0..4u64 {
        // Both collectors are killed and closed. Nothing may be moved while files are copied.
        let killed = life % 3 != 0;
        let options = Options { background: !killed, ..options(kind_of(life), Some(dir.path()), 2 << 20) };
        let store = Store::open(options).unwrap();
        let keyspace = store.open_keyspace("k").unwrap_or_else(|| store.create_keyspace("k", Kind::Ordered).unwrap());
        for key in 0..2_000 {
            assert_eq!(value_of(&store, &keyspace, key), model.get(&key).cloned(), "key {key} in life {life}");
        }
        for round in 0..30_000u64 {
            random = scrambled(random);
            let key = (random >> 33) % 2_000;
            if random >> 20 & 3 == 0 {
                delete(&store, &keyspace, key);
                model.remove(&key);
            } else {
                let value = vec![(round + life) as u8; 8 + (random >> 40) as usize % 90];
                put(&store, &keyspace, key, &value);
                model.insert(key, value);
            }
        }
        assert!(store.stats().collections.segments > 0, "{:?}", store.stats().collections);
        assert!(store.check().unwrap().is_sound());
        if killed {
            dir = crash(dir.path());
        }
    }
}

/// A snapshot shows what it showed while everything around it is overwritten and collected many times.
fn a_snapshot_survives_collections(kind: CollectorKind) {
    let store = Store::open(options(kind, None, 4 << 20)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    (0..4_000).for_each(|key| put(&store, &keyspace, key, &key.to_be_bytes()));
    let snapshot = store.snapshot();
    for round in 0..60u64 {
        (0..4_000).for_each(|key| put(&store, &keyspace, key, &(round << 32 | key).to_be_bytes()));
        (0..4_000).step_by(7).for_each(|key| assert!(delete(&store, &keyspace, key)));
        for key in (0..4_000u64).step_by(if round == 59 { 1 } else { 61 }) {
            let shown = snapshot.get_with(&keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap();
            assert_eq!(shown.as_deref(), Some(&key.to_be_bytes()[..]), "key {key} in round {round}");
        }
    }
    assert!(store.stats().collections.segments > 50, "{:?}", store.stats().collections);
    drop(snapshot);
    store.reclaim().unwrap();
    assert!(store.check().unwrap().is_sound());
}

/// A store that is truly full says so, serves reads, and takes writes again once something was deleted.
fn a_full_store_recovers_when_space_returns(kind: CollectorKind) {
    let store = Store::open(options(kind, None, 2 << 20)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let mut keys = 0u64;
    loop {
        match try_put(&store, &keyspace, keys, &[3; 1000]) {
            Ok(_) => keys += 1,
            Err(error) => break assert!(matches!(error, Error::Full { .. }), "{error}"),
        }
    }
    assert!(keys > 1_200, "most of the store can be filled: {keys}");
    for key in 0..keys / 2 {
        assert!(delete(&store, &keyspace, key));
    }
    for key in 0..keys / 4 {
        put(&store, &keyspace, key, &[4; 1000]);
    }
    for key in 0..keys {
        let expected = if key < keys / 4 {
            Some(4)
        } else if key < keys / 2 {
            None
        } else {
            Some(3)
        };
        assert_eq!(value_of(&store, &keyspace, key).map(|value| value[0]), expected, "key {key}");
    }
}

/// An entry that is moved keeps its expiry, and its version.
fn moved_entries_keep_version_and_expiry(kind: CollectorKind) {
    let store = Store::open(Options { background: false, ..options(kind, None, 4 << 20) }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    // Each key that expires in the future does so at a time of its own.
    let expiry = |key: u64| [u64::MAX / 2 + key, 1, 0][key as usize % 3];
    // Each key lies beside what will be garbage, so that it is moved.
    for key in 0..3_000u64 {
        let options = if key % 3 == 2 { WriteOptions::new() } else { WriteOptions::new().expires_at_ms(expiry(key)) };
        store.write(&keyspace, &key.to_be_bytes(), Some(b"payload"), Condition::None, &options).unwrap().2.wait().unwrap();
        put(&store, &keyspace, key + 3_000, &[1; 90]);
    }
    let versions: Vec<_> = (0..3_000u64).map(|key| store.get_versioned(&keyspace, &key.to_be_bytes()).unwrap()).collect();
    (3_000..6_000).for_each(|key| put(&store, &keyspace, key, &[2; 90]));
    store.reclaim().unwrap();
    assert!(store.stats().collections.moved_entries >= 1_000, "{:?}", store.stats().collections);
    for (key, before) in versions.into_iter().enumerate() {
        assert_eq!(store.get_versioned(&keyspace, &(key as u64).to_be_bytes()).unwrap(), before, "key {key}");
        assert_eq!(before.is_some(), key % 3 != 1);
        let expires = store.get_expiring(&keyspace, &(key as u64).to_be_bytes(), |_, at| at).unwrap();
        assert_eq!(expires, before.map(|_| expiry(key as u64)), "when key {key} expires");
    }
}

/// Regression: the number of segments that a collection reported as freed left out those that it had already handed on,
/// which were mostly all of them.
fn a_collection_by_hand_tells_how_many_segments_became_free(kind: CollectorKind) {
    let store = Store::open(Options { background: false, ..options(kind, None, 4 << 20) }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..20_000).for_each(|number| put(&store, &keyspace, number % 5_000, &[1; 90]));
    let freed = store.reclaim().unwrap();
    assert_eq!(freed as u64, store.stats().collections.segments);
    assert!(freed > 10, "{:?}", store.stats().collections);
}

/// Regression: the segments with most garbage were those whose tombstones wait for the next checkpoint, which stay
/// until then. The others were not even tried.
#[test]
fn tombstones_that_wait_for_a_checkpoint_hold_up_no_other_segment() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options { background: false, ..options(CollectorKind::Chain, Some(dir.path()), 8 << 20) }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..16_000).for_each(|key| put(&store, &keyspace, key, &[1; 90]));
    assert!(store.checkpoint().unwrap());
    // More segments that are all garbage than a round takes.
    for key in 20_000..36_000 {
        put(&store, &keyspace, key, &[2; 90]);
        assert!(delete(&store, &keyspace, key));
    }
    (0..16_000).filter(|key| key % 10 < 6).for_each(|key| put(&store, &keyspace, key, &[3; 90]));
    let freed = store.reclaim().unwrap();
    assert!(freed > 10, "{freed} of some 30 segments that are worth it: {:?}", store.stats().collections);
    assert!(store.check().unwrap().is_sound());
    store.checkpoint().unwrap();
    assert!(store.reclaim().unwrap() > 10, "those with tombstones");
    assert!((0..16_000).all(|key| value_of(&store, &keyspace, key) == Some(vec![if key % 10 < 6 { 3 } else { 1 }; 90])));
}

/// If they may, threads of a full node write to the other node; then both are filled.
fn a_full_node_spills(kind: CollectorKind) {
    for spill in [true, false] {
        let topology = Arc::new(Topology::emulated(2));
        topology.bind_current_thread(0).unwrap();
        let store = Store::open(Options { topology: Some(topology), spill, ..options(kind, None, 4 << 20) }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let mut keys = 0;
        while try_put(&store, &keyspace, keys, &[7; 200]).is_ok() {
            keys += 1;
        }
        let pools = store.stats().pools;
        assert_eq!(pools[1].usage.live_bytes > 1 << 20, spill, "{:?}", pools[1].usage);
        assert_eq!((pools[0].usage.spilling, pools[0].usage.spills > 0), (spill, spill));
        assert!(pools[0].usage.live_bytes > 1 << 20);
        // Deletes make room at home again.
        (0..keys).for_each(|key| assert!(delete(&store, &keyspace, key)));
        store.reclaim().unwrap();
        (0..1_000).for_each(|key| put(&store, &keyspace, key, &[8; 200]));
        assert!(!store.stats().pools[0].usage.spilling && store.check().unwrap().is_sound());
    }
}

/// Two pools in memory, of two megabytes each, and a thread of the first one's node.
fn over_two_nodes() -> (Store, KeyspaceHandle) {
    let topology = Arc::new(Topology::emulated(2));
    topology.bind_current_thread(0).unwrap();
    let sizes = options(CollectorKind::Batched, None, 4 << 20);
    let store = Store::open(Options { topology: Some(topology), background: false, ..sizes }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (store, keyspace)
}

/// Regression: one value for which there was no place made the whole node count as full, for good. Everything that its
/// threads wrote went to the other node, until that was full, too.
#[test]
fn a_value_without_a_place_leaves_its_node_in_use() {
    let (store, keyspace) = over_two_nodes();
    try_put(&store, &keyspace, 1, &[1; 3 << 20]).unwrap_err();
    // One large value for each node, and one that is too much.
    put(&store, &keyspace, 2, &[2; 1_200_000]);
    put(&store, &keyspace, 3, &[3; 1_200_000]);
    try_put(&store, &keyspace, 4, &[4; 1_200_000]).unwrap_err();
    let before = store.stats().pools;
    assert!(before.iter().all(|pool| pool.usage.live_bytes > 1 << 20), "a large value goes where there is a place for it");
    (10..1_010).for_each(|key| put(&store, &keyspace, key, &[5; 200]));
    let after = store.stats().pools;
    assert!(!after[0].usage.spilling && after[0].usage.spills == 0, "{:?}", after[0].usage);
    assert!(after[0].usage.live_bytes >= before[0].usage.live_bytes + 200_000, "{:?}", after[0].usage);
    assert_eq!(after[1].usage.live_bytes, before[1].usage.live_bytes);
}

/// Regression: a writer that had gone to the other node, because its own was full, collected only there. It gave up
/// when that node was full, too, although its own had garbage by then.
#[test]
fn a_writer_away_from_home_makes_space_at_home() {
    let (store, keyspace) = over_two_nodes();
    let full = (0..).find(|key| try_put(&store, &keyspace, *key, &[1; 200]).is_err()).unwrap();
    let pools = store.stats().pools;
    assert!(pools[0].usage.spilling && pools[1].usage.live_bytes > 1 << 20);
    // The first keys lie at home. (They are so few that there is a place for their tombstones, and no sweep is due. The
    // segments that deletes have opened for these are not for puts.)
    assert!(full > 10_000);
    (0..900).for_each(|key| assert!(delete(&store, &keyspace, key)));
    (0..500).for_each(|key| put(&store, &keyspace, key, &[2; 200]));
    assert!(store.check().unwrap().is_sound());
}

/// Regression: a node whose disk had been full for a moment never grew again.
#[test]
fn a_node_grows_again_once_its_disk_has_room() {
    let (dir, failpoints) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let topology = Arc::new(Topology::emulated(2));
    topology.bind_current_thread(0).unwrap();
    let medium = Options { medium: MediumChoice::File, failpoints: Some(failpoints.clone()), topology: Some(topology), ..small() };
    let paths = vec![(None, dir.path().to_owned())];
    let store = Store::open(Options { paths, capacity: 4 << 20, max_capacity: 64 << 20, ..medium }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let existing = store.stats().pools[0].usage.segments;
    failpoints.arm("fallocate", FailAt { skip: 0, count: u64::MAX, errno: 28 });
    let mut keys = 0..10_000;
    while !store.stats().pools[0].usage.spilling {
        put(&store, &keyspace, keys.next().unwrap(), &[1; 1_000]);
    }
    failpoints.disarm("fallocate");
    // For a second the disk is taken for one that stays full.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    keys.take(4_000).for_each(|key| put(&store, &keyspace, key, &[1; 1_000]));
    let usage = &store.stats().pools[0].usage;
    assert!(usage.segments > existing && !usage.spilling, "{usage:?}");
}

/// One suite for either collector.
macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        mod batched {
            $(#[test] fn $name() { super::$name(super::CollectorKind::Batched); })*
        }
        mod chain {
            $(#[test] fn $name() { super::$name(super::CollectorKind::Chain); })*
        }
    };
}

suite! {
    endless_overwrites_stay_within_the_size,
    what_was_deleted_stays_deleted_across_collections_and_reopening,
    a_snapshot_survives_collections,
    a_full_store_recovers_when_space_returns,
    moved_entries_keep_version_and_expiry,
    a_collection_by_hand_tells_how_many_segments_became_free,
    a_full_node_spills,
}
