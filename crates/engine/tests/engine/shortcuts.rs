//! Shortcuts (`docs/adr/0020`): collectors that follow them lose nothing, whatever has moved in the index since. Also
//! which entries carry one, and what a restart makes of old ones.

use crate::common;
use crate::common::Random;
use hither_engine::{Batch, CheckpointMode, CollectionStats, CollectorKind, KeyspaceHandle, Kind, Options, OrderedKind, Store};
use hither_pmem::Randomness;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn options(dir: Option<&Path>, ordered_index: OrderedKind) -> Options {
    Options {
        paths: dir.map(|dir| (None, dir.to_owned())).into_iter().collect(),
        in_memory: dir.is_none(),
        checkpoints: CheckpointMode::Off,
        ordered_index,
        gc_threshold: 0.2,
        shortcut_from_bytes: Some(64),
        ..common::small()
    }
}

const INDEXES: [OrderedKind; 2] = [OrderedKind::BTree, OrderedKind::Learned];

/// Words, and texts that share everything before their number, so that there are layers.
fn key_of(number: u64) -> Vec<u8> {
    match number % 3 {
        0 => format!("text with a number {number:06}").into_bytes(),
        _ => number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn assert_all(store: &Store, keyspace: &KeyspaceHandle, model: &Model, keys: u64) {
    for key in (0..keys).map(key_of) {
        assert_eq!(store.get_with(keyspace, &key, <[u8]>::to_vec).unwrap().as_ref(), model.get(&key), "key {key:?}");
    }
    assert_eq!(keyspace.len(), model.len());
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// Makes one write: a put, a delete, or a batch of puts.
fn write(store: &Store, keyspace: &KeyspaceHandle, model: &mut Model, random: &mut Random, keys: u64) {
    let value = vec![random.below(256) as u8; [8, 56, 60, 64, 100, 300][random.below(6) as usize]];
    match random.below(10) {
        0 => {
            let key = key_of(random.below(keys));
            store.write_wait(keyspace, &key, None).unwrap();
            model.remove(&key);
        }
        1 => {
            let mut batch = Batch::default();
            for _ in 0..random.below(5) + 1 {
                let key = key_of(random.below(keys));
                batch.put(keyspace, &key, &value, 0);
                model.insert(key, value.clone());
            }
            store.commit_wait(&batch).unwrap();
        }
        _ => {
            let key = key_of(random.below(keys));
            store.write_wait(keyspace, &key, Some(&value)).unwrap();
            model.insert(key, value);
        }
    }
}

/// The number of keys grows and shrinks, so that leaves split and merge between a write and the collector that meets
/// its entry.
#[test]
fn collections_by_shortcuts_keep_everything() {
    for index in INDEXES {
        let store = Store::open(options(None, index)).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
        let (mut model, mut random) = (Model::new(), Random(1));
        let keys = 24_000;
        for round in 0..12u64 {
            let range = [2000, 8000, keys, keys, 3000, 300][round as usize % 6];
            for _ in 0..20_000 {
                write(&store, &keyspace, &mut model, &mut random, range);
            }
            if round % 6 == 5 {
                for key in (0..keys).filter(|number| number % 7 != 0).map(key_of) {
                    store.write_wait(&keyspace, &key, None).unwrap();
                    model.remove(&key);
                }
            }
            (0..2).for_each(|_| assert!(store.reclaim().is_ok()));
            assert_all(&store, &keyspace, &model, keys);
        }
        let done = store.stats().collections;
        assert!(done.shortcut_hits > 1000 && done.shortcut_sibling_hits > 50 && done.shortcut_fallbacks > 50, "{index:?}: {done:?}");
    }
}

/// The same beside writers, readers and the store's own collector.
#[test]
fn writers_beside_a_collector_that_follows_shortcuts() {
    for index in INDEXES {
        let store = Store::open(Options { background: true, ..options(None, index) }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
        let keys = 24_000u64;
        let put = |number: u64, value: u8| store.write_wait(&keyspace, &key_of(number), Some(&[value; 128])).unwrap();
        for number in 0..keys {
            put(number, 0);
        }
        let stop = AtomicBool::new(false);
        let last: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let (stop, put, store, keyspace) = (&stop, &put, &store, &keyspace);
            let writers = [0, 1].map(|thread| {
                scope.spawn(move || {
                    let (mut random, mut last) = (Random(thread + 7), vec![0; keys as usize]);
                    for round in 0..120_000u64 {
                        let number = random.below(keys / 2) * 2 + thread;
                        assert!(put(number, round as u8), "a key that is only overwritten is there");
                        last[number as usize] = round as u8;
                        if round % 5 == 0 {
                            // Keys that come and go between the others.
                            let number = keys + random.below(keys / 2) * 2 + thread;
                            put(number, 1);
                            store.write_wait(keyspace, &key_of(number), None).unwrap();
                        }
                    }
                    last
                })
            });
            scope.spawn(move || {
                for number in (0..keys).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let value = store.get_with(keyspace, &key_of(number), <[u8]>::to_vec).unwrap().expect("it is always there");
                    assert!(value.len() == 128 && value.iter().all(|byte| *byte == value[0]), "a value is whole: {value:?}");
                }
            });
            let outcomes = writers.map(|writer| writer.join());
            stop.store(true, Ordering::Relaxed);
            outcomes.map(Result::unwrap).into()
        });
        for number in 0..keys {
            let value = store.get_with(&keyspace, &key_of(number), <[u8]>::to_vec).unwrap();
            assert_eq!(value.as_deref(), Some(&[last[number as usize % 2][number as usize]; 128][..]), "key {number}");
        }
        let done = store.stats().collections;
        assert!(done.segments > 100 && done.shortcut_hits > 1000, "{index:?}: {done:?}");
        assert!(store.check().unwrap().is_sound());
    }
}

/// Shortcuts that an earlier opening wrote are ignored: the leaves have other numbers now.
#[test]
fn a_restart_forgets_shortcuts() {
    let dir = tempfile::tempdir().unwrap();
    let fill = |store: &Store, keyspace: &KeyspaceHandle, model: &mut Model| {
        let mut random = Random(3);
        for _ in 0..30_000 {
            write(store, keyspace, model, &mut random, 9000);
        }
    };
    let collect = |store: &Store| {
        (0..60).for_each(|_| assert!(store.reclaim().is_ok()));
        let CollectionStats { moved_entries, shortcut_hits, shortcut_sibling_hits, shortcut_fallbacks, .. } = store.stats().collections;
        (moved_entries, shortcut_hits, shortcut_sibling_hits, shortcut_fallbacks)
    };
    let mut model = Model::new();
    // By random numbers of the system, two openings would have the same number once in 65,535 times.
    let mut openings = 0;
    for (index, kept) in [(OrderedKind::BTree, false), (OrderedKind::Learned, true), (OrderedKind::BTree, true)] {
        let checkpoints = if kept { CheckpointMode::Auto } else { CheckpointMode::Off };
        let mut reopen = || {
            openings += 1;
            let random = Randomness::seeded(openings);
            Store::open(Options { checkpoints, random, ..options(Some(dir.path()), index) }).unwrap()
        };
        let store = reopen();
        let keyspace = store.open_keyspace("k").unwrap_or_else(|| store.create_keyspace("k", Kind::Ordered).unwrap());
        fill(&store, &keyspace, &mut model);
        store.close().unwrap();
        drop((store, keyspace));
        let store = reopen();
        let keyspace = store.open_keyspace("k").unwrap();
        let (moved, hits, siblings, fallbacks) = collect(&store);
        assert!(moved > 500 && (hits, siblings, fallbacks) == (0, 0, 0), "{moved} {hits} {siblings} {fallbacks}");
        assert_all(&store, &keyspace, &model, 9000);
        fill(&store, &keyspace, &mut model);
        let (moved, hits, siblings, fallbacks) = collect(&store);
        assert!(hits > 100, "new ones count: {moved} {hits} {siblings} {fallbacks}");
        assert_all(&store, &keyspace, &model, 9000);
        store.close().unwrap();
    }
}

/// Returns the bytes of each of a thousand entries with values of this length.
fn entry_bytes(options: Options, kind: Kind, value_bytes: usize, members: u64) -> u64 {
    let store = Store::open(options).unwrap();
    let keyspace = store.create_keyspace("k", kind).unwrap();
    for first in (0..1000).step_by(members as usize) {
        let mut batch = Batch::default();
        (first..first + members).for_each(|number: u64| batch.put(&keyspace, &number.to_be_bytes(), &vec![1; value_bytes], 0));
        match members {
            1 => assert!(!store.write_wait(&keyspace, &first.to_be_bytes(), Some(&vec![1; value_bytes])).unwrap()),
            _ => store.commit_wait(&batch).unwrap(),
        }
    }
    let bytes = store.stats().pools[0].usage.live_bytes;
    assert_eq!(bytes % 1000, 0, "all entries are alike: {bytes}");
    bytes / 1000
}

#[test]
fn who_carries_one() {
    let from = |bytes| Options { shortcut_from_bytes: bytes, ..options(None, OrderedKind::BTree) };
    let chain = Options { collector: CollectorKind::Chain, ..from(Some(0)) };
    let learned = options(None, OrderedKind::Learned);
    let cases = [
        ("a pair of 8 and 8 bytes never does", from(Some(0)), Kind::Ordered, 8, 1, 32),
        ("nor does it in a batch", from(Some(0)), Kind::Ordered, 8, 2, 40),
        ("one that is large enough does", from(Some(72)), Kind::Ordered, 64, 1, 96 + 16),
        ("with the learned index as well", learned, Kind::Ordered, 64, 1, 96 + 16),
        ("one that is smaller does not", from(Some(73)), Kind::Ordered, 64, 1, 96),
        ("in a batch there is an extension already", from(Some(72)), Kind::Ordered, 64, 2, 104 + 8),
        ("a smaller one in a batch does not", from(Some(73)), Kind::Ordered, 64, 2, 104),
        ("none does if they are off", from(None), Kind::Ordered, 1000, 1, 1032),
        ("a hash index has none", from(Some(0)), Kind::Hash, 64, 1, 96),
        ("the chain collector follows none", chain, Kind::Ordered, 64, 1, 96),
        (
            "by default from 256 bytes on",
            Options { shortcut_from_bytes: Options::default().shortcut_from_bytes, ..from(None) },
            Kind::Ordered,
            248,
            1,
            280 + 16,
        ),
        (
            "and not below",
            Options { shortcut_from_bytes: Options::default().shortcut_from_bytes, ..from(None) },
            Kind::Ordered,
            240,
            1,
            272,
        ),
    ];
    for (what, options, kind, value_bytes, members, expected) in cases {
        assert_eq!(entry_bytes(options, kind, value_bytes, members), expected, "{what}");
    }
}

/// Once keys that are written all the time are known as hot, their entries take no more than they need.
#[test]
fn entries_of_hot_keys_carry_none() {
    let store = Store::open(options(None, OrderedKind::BTree)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    // Not a divisor of the distance between two samples.
    let keys = 17u64;
    let put =
        |number: u64| assert_eq!(store.write_wait(&keyspace, &(number % keys).to_be_bytes(), Some(&[1; 64])).unwrap(), number >= keys);
    let live = || store.stats().pools[0].usage.live_bytes;
    (0..keys).for_each(put);
    assert_eq!(live(), keys * 112);
    (keys..600_000).for_each(put);
    assert_eq!(live(), keys * 96);
}

/// A copy carries no shortcut: an entry that was moved is smaller by that, and is looked up if it is moved again.
#[test]
fn copies_carry_none() {
    let store = Store::open(options(None, OrderedKind::BTree)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    for number in 0..20_000u64 {
        store.write_wait(&keyspace, &number.to_be_bytes(), Some(&[1; 64])).unwrap();
    }
    // Nine of every ten entries are deleted, so every segment is worth a pass.
    for number in (0..20_000u64).filter(|number| number % 10 != 0) {
        store.write_wait(&keyspace, &number.to_be_bytes(), None).unwrap();
    }
    (0..6).for_each(|_| assert!(store.reclaim().is_ok()));
    let stats = store.stats();
    let done = stats.collections;
    let moved = done.shortcut_hits + done.shortcut_sibling_hits + done.shortcut_fallbacks;
    assert!(moved > 500, "{done:?}");
    assert_eq!(stats.pools[0].usage.live_bytes, 2000 * 112 - moved * 16, "{done:?}");
}
