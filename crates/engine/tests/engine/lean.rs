//! Writes by the lean path (puts and deletes, durable by a fence): contended, of all lengths, beside collectors and
//! snapshots, across a crash.

use crate::common::{Random, get, small};
use hither_engine::{
    Batch, Condition, Direction, Durability, Error, Expiry, KeyspaceHandle, Kind, MediumChoice, Options, ScanRange, Store, WriteOptions,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// In memory a fence is all there is to durability.
fn fenced() -> Options {
    Options { in_memory: true, durability: Durability::Sync, latches: 4, ..small() }
}

/// The same for a directory in memory, with the store's own threads.
fn on_persistent_memory(dir: &Path) -> Options {
    Options { paths: vec![(None, dir.into())], medium: MediumChoice::ForcedDax, background: true, in_memory: false, ..fenced() }
}

/// The key with a number: of eight bytes, shorter, or longer than a line.
fn key_of(number: u64) -> Vec<u8> {
    match number % 4 {
        0 | 1 => number.to_be_bytes().to_vec(),
        2 => format!("k{number}").into_bytes(),
        _ => format!("a key that is longer than a line of sixty-four bytes, and then some: {number:08}").into_bytes(),
    }
}

/// A value that says which key it belongs to, of any length from none to some lines, often eight bytes.
fn value_of(number: u64, random: u64) -> Vec<u8> {
    let mut value = (number << 32 | random & 0xffff_ffff).to_be_bytes().to_vec();
    let len = match random >> 40 & 7 {
        0..=2 => 8,
        3 => 0,
        _ => (random >> 43) as usize % 200,
    };
    value.resize(len.max(if len == 0 { 0 } else { 8 }), random as u8);
    value
}

/// Whether a value belongs to this key.
fn belongs(number: u64, value: &[u8]) -> bool {
    value.is_empty() || u64::from_be_bytes(value[..8].try_into().unwrap()) >> 32 == number
}

/// Opens a copy, on persistent memory again, of the store in this directory as a kill would leave it. Nobody writes
/// meanwhile, but collectors may be at work.
fn recover_copy(dir: &Path, options: &Options) -> (Store, TempDir) {
    // A copy takes time. What collectors free during it must keep its content: the copy says that it is in use.
    let pin = hither_sync::epoch::pin();
    let copy = crate::common::crash(dir);
    drop(pin);
    let image = tempfile::tempdir_in("/dev/shm").unwrap();
    for file in std::fs::read_dir(copy.path()).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), image.path().join(file.file_name())).unwrap();
    }
    (Store::open(Options { paths: vec![(None, image.path().into())], ..options.clone() }).unwrap(), image)
}

fn all(store: &Store, keyspace: &KeyspaceHandle, keys: u64) -> BTreeMap<u64, Vec<u8>> {
    (0..keys).filter_map(|number| Some((number, get(store, keyspace, &key_of(number))?))).collect()
}

#[test]
fn keys_and_values_of_all_lengths_agree_with_a_map() {
    for kind in [Kind::Hash, Kind::Ordered] {
        agrees_with_a_map(kind);
    }
}

fn agrees_with_a_map(kind: Kind) {
    let store = Store::open(fenced()).unwrap();
    let keyspace = store.create_keyspace("k", kind).unwrap();
    let (mut model, mut random) = (BTreeMap::new(), Random(5));
    for round in 0..40_000u64 {
        let number = random.below(700);
        let key = key_of(number);
        let existed = if random.below(4) == 0 {
            assert_eq!(store.write_wait(&keyspace, &key, None).unwrap(), model.contains_key(&number), "round {round}");
            model.remove(&number).is_some()
        } else if random.below(50) == 0 {
            // An old entry that expires: the lean path has to check it.
            let options = WriteOptions { expiry: Some(Expiry::After(std::time::Duration::from_secs(3600))), ..WriteOptions::new() };
            let value = value_of(number, random.0);
            let (_, existed, _) = store.write(&keyspace, &key, Some(&value), Condition::None, &options).unwrap();
            assert_eq!(existed, model.insert(number, value).is_some(), "round {round}");
            existed
        } else if random.below(20) == 0 {
            // Members of a batch, which the lean path replaces like other entries.
            let mut batch = Batch::default();
            let neighbour = (number + 1) % 700;
            let existed = model.contains_key(&number);
            for number in [number, neighbour] {
                let value = value_of(number, random.0);
                batch.put(&keyspace, &key_of(number), &value, 0);
                model.insert(number, value);
            }
            store.commit_wait(&batch).unwrap();
            existed
        } else {
            let value = value_of(number, random.0);
            let existed = store.write_wait(&keyspace, &key, Some(&value)).unwrap();
            assert_eq!(existed, model.insert(number, value).is_some(), "round {round}");
            existed
        };
        assert_eq!(get(&store, &keyspace, &key), model.get(&number).cloned(), "round {round}, key {number}, was there: {existed}");
        if round % 5_000 == 0 {
            store.reclaim().unwrap();
        }
    }
    assert_eq!(all(&store, &keyspace, 700), model);
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Writers of the same few keys overtake each other between draw and latch all the time. No write is lost, none is
/// counted twice, and recovery makes of the log what the index held.
#[test]
fn contended_writes_are_neither_lost_nor_doubled() {
    for (kind, keys) in [Kind::Hash, Kind::Ordered].into_iter().flat_map(|kind| [(kind, 1u64), (kind, 9), (kind, 400)]) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = on_persistent_memory(dir.path());
        let store = Store::open(options.clone()).unwrap();
        let keyspace = store.create_keyspace("k", kind).unwrap();
        let (there, stop) = (AtomicI64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4u64)
                .map(|thread| {
                    let (store, keyspace, there) = (&store, &keyspace, &there);
                    scope.spawn(move || {
                        let mut random = Random(thread + 1);
                        for _ in 0..20_000 {
                            let number = random.below(keys);
                            let puts = random.below(3) > 0;
                            let value = value_of(number, random.0);
                            let existed = store.write_wait(keyspace, &key_of(number), puts.then_some(&value[..])).unwrap();
                            there.fetch_add(i64::from(puts) - i64::from(existed), Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    for number in 0..keys.min(50) {
                        let look = || snapshot.get_with(&keyspace, &key_of(number), <[u8]>::to_vec).unwrap();
                        let first = look();
                        assert!(first.as_ref().is_none_or(|value| belongs(number, value)));
                        std::thread::yield_now();
                        assert_eq!(look(), first, "a snapshot does not change");
                    }
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(there.into_inner(), keyspace.len() as i64, "each put says whether the key was there, each delete too");
        let before = all(&store, &keyspace, keys);
        assert!(before.iter().all(|(number, value)| belongs(*number, value)));
        assert!(store.check().unwrap().is_sound());
        let (again, _image) = recover_copy(dir.path(), &options);
        let keyspace = again.open_keyspace("k").unwrap();
        assert_eq!(all(&again, &keyspace, keys), before, "recovery takes the newest of each key");
        assert!(again.check().unwrap().is_sound());
    }
}

/// Threads write groups of keys, each group by one batch of plain pairs, and single keys beside them. Whoever looks at
/// one moment finds a group's keys with one value: in snapshots, at the end, and after a recovery.
#[test]
fn groups_that_are_written_together_stay_together() {
    const GROUPS: u64 = 60;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = Options { latches: 4096, ..on_persistent_memory(dir.path()) };
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let keys_of = |group: u64| (0..2 + group % 9).map(move |i| (group << 32 | i).to_be_bytes());
    let write = |group: u64, value: u64| {
        let mut batch = Batch::default();
        keys_of(group).for_each(|key| batch.put(&keyspace, &key, &value.to_be_bytes(), 0));
        store.commit_wait(&batch).unwrap();
    };
    (0..GROUPS).for_each(|group| write(group, 0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u64)
            .map(|thread| {
                let (store, keyspace, write) = (&store, &keyspace, &write);
                scope.spawn(move || {
                    let mut random = Random(thread + 1);
                    for round in 1..8_000u64 {
                        write(random.below(GROUPS), round << 8 | thread);
                        let single = (1 << 60 | random.below(500)).to_be_bytes();
                        store.write_wait(keyspace, &single, (round % 3 > 0).then_some(&single[..])).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let snapshot = store.snapshot();
                for group in 0..GROUPS {
                    let look = |key: [u8; 8]| snapshot.get_with(&keyspace, &key, <[u8]>::to_vec).unwrap();
                    let values: BTreeSet<_> = keys_of(group).map(look).collect();
                    assert!(values.len() == 1 && !values.contains(&None), "group {group}: {values:?}");
                }
                drop(snapshot);
                // Most batches are to meet no snapshot.
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    let content = |store: &Store| {
        let keyspace = store.open_keyspace("k").unwrap();
        let singles = (0..500).map(|number: u64| get(store, &keyspace, &(1 << 60 | number).to_be_bytes()));
        let groups = (0..GROUPS).map(|group| {
            let values: BTreeSet<_> = keys_of(group).map(|key| get(store, &keyspace, &key)).collect();
            assert!(values.len() == 1, "group {group}: {values:?}");
            values.into_iter().next().flatten()
        });
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
        groups.chain(singles).collect::<Vec<_>>()
    };
    let before = content(&store);
    let (again, _image) = recover_copy(dir.path(), &options);
    assert_eq!(content(&again), before, "recovery takes the newest of each key");
}

/// Scans, gets of many and single gets read entries of every layout alike.
#[test]
fn what_is_read_is_the_same_whoever_reads() {
    let store = Store::open(fenced()).unwrap();
    for kind in [Kind::Hash, Kind::Ordered] {
        let keyspace = store.create_keyspace(&format!("{kind:?}"), kind).unwrap();
        let mut random = Random(9);
        for number in 0..900 {
            let value = value_of(number, random.below(u64::MAX >> 34) << 31 | random.below(1 << 31));
            let expiry = (number % 7 == 0).then_some(Expiry::After(std::time::Duration::from_secs(3600)));
            let options = WriteOptions { expiry, ..WriteOptions::new() };
            let _ = store.write(&keyspace, &key_of(number), Some(&value), Condition::None, &options).unwrap();
        }
        let mut lengths = BTreeSet::new();
        for number in (0..900).step_by(5) {
            // Members of a batch of two.
            let mut batch = Batch::default();
            for number in [number, number + 1] {
                let value = value_of(number, random.below(u64::MAX >> 34) << 31 | random.below(1 << 31));
                lengths.insert(value.len());
                batch.put(&keyspace, &key_of(number), &value, 0);
            }
            store.commit_wait(&batch).unwrap();
        }
        assert!(lengths.contains(&0) && lengths.contains(&8) && lengths.last() > Some(&64), "{lengths:?}");
        let single: BTreeMap<Vec<u8>, Vec<u8>> =
            all(&store, &keyspace, 900).into_iter().map(|(number, value)| (key_of(number), value)).collect();
        assert_eq!(single.len(), 900);
        let keys: Vec<&Vec<u8>> = single.keys().collect();
        let mut seen = 0;
        store
            .multi_get_with(&keyspace, &keys, |i, value| {
                assert_eq!(value, single.get(keys[i]).map(Vec::as_slice));
                seen += 1;
            })
            .unwrap();
        assert_eq!(seen, 900);
        for (key, value) in &single {
            assert_eq!(store.get_versioned(&keyspace, key).unwrap().map(|(value, _)| value).as_ref(), Some(value));
            assert_eq!(store.get_pinned(&keyspace, key).unwrap().as_deref(), Some(&value[..]));
        }
        if kind == Kind::Ordered {
            let range = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: usize::MAX };
            let mut scanned = BTreeMap::new();
            let collect = |key: &[u8], value: &[u8]| {
                scanned.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            };
            store.scan(&keyspace, &range, collect).unwrap();
            assert_eq!(scanned, single);
        }
    }
}

/// Puts and deletes, of pairs of eight bytes and of others, that need only be appended. They are still refused where
/// any write is.
#[test]
fn the_shortest_writes_are_refused_like_others() {
    for kind in [Kind::Hash, Kind::Ordered] {
        let store = Store::open(fenced()).unwrap();
        let [kept, dropped, swapped, _other] =
            ["kept", "dropped", "swapped", "other"].map(|name| store.create_keyspace(name, kind).unwrap());
        let pairs: [(&[u8], &[u8]); 2] = [(b"8 bytes.", b"8 bytes."), (b"key", b"another value")];
        for (keyspace, (key, value)) in [&kept, &dropped, &swapped].into_iter().flat_map(|keyspace| pairs.map(|pair| (keyspace, pair))) {
            assert!(!store.write_wait(keyspace, key, Some(value)).unwrap());
        }
        let refused = |keyspace: &KeyspaceHandle, why: fn(&Error) -> bool| {
            for (key, value) in pairs {
                for value in [Some(value), None] {
                    let outcome = store.write_wait(keyspace, key, value);
                    assert!(outcome.as_ref().is_err_and(why), "{kind:?} {key:?} {value:?}: {outcome:?}");
                }
            }
        };
        store.drop_keyspace("dropped").unwrap();
        store.swap_keyspaces(&[("swapped", "other")]).unwrap();
        for keyspace in [&dropped, &swapped] {
            refused(keyspace, |error| matches!(error, Error::KeyspaceDropped(_)));
        }
        store.close().unwrap();
        refused(&kept, |error| matches!(error, Error::Closed));
        assert!(pairs.iter().all(|(key, value)| get(&store, &kept, key).as_deref() == Some(value)), "{kind:?}");
    }
}

/// Threads draw versions in blocks, and one of them begins with an older block than the other. Still a key's versions
/// grow; otherwise a recovery would take the wrong entry.
#[test]
fn versions_of_a_key_grow_whoever_writes() {
    for kind in [Kind::Hash, Kind::Ordered] {
        let store = Store::open(fenced()).unwrap();
        let keyspace = store.create_keyspace("k", kind).unwrap();
        let write = || {
            store.write_wait(&keyspace, b"8 bytes.", Some(b"8 bytes.")).unwrap();
            store.get_versioned(&keyspace, b"8 bytes.").unwrap().unwrap().1
        };
        let aside = || std::thread::scope(|scope| scope.spawn(write).join().unwrap());
        let versions = [aside(), write(), aside(), write()];
        assert!(versions.is_sorted_by(|a, b| a < b), "{kind:?}: {versions:?}");
    }
}

/// A delete that finds nothing writes nothing and uses no version, by which others tell whether a store is written to.
#[test]
fn deletes_of_absent_keys_use_no_version() {
    for kind in [Kind::Hash, Kind::Ordered] {
        let store = Store::open(fenced()).unwrap();
        let keyspace = store.create_keyspace("k", kind).unwrap();
        let version = |key: u64| {
            store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"12345678")).unwrap();
            store.get_versioned(&keyspace, &key.to_be_bytes()).unwrap().unwrap().1
        };
        let before = version(1);
        (2..20_000u64).for_each(|absent| assert!(!store.write_wait(&keyspace, &absent.to_be_bytes(), None).unwrap()));
        // The store's own work may make a put begin a block of versions; each delete in vain would use a version.
        assert!(version(1) < before + 10_000, "{}", kind.name());
    }
}

/// Found by a program: a delete whose key was absent wrote a tombstone where the index had another key of the same tag,
/// so it could fail for lack of space.
#[test]
fn deletes_of_absent_keys_take_no_space_whatever_is_in_their_places() {
    let store = Store::open(Options { durability: Durability::Process, background: false, ..fenced() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    for key in 0..2_000u64 {
        store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"value of its own")).unwrap();
    }
    let options = WriteOptions { expiry: Some(Expiry::After(Duration::from_secs(3600))), ..WriteOptions::new() };
    let version = || store.write(&keyspace, b"last", Some(b"v"), Condition::None, &options).unwrap().2.version();
    let before = version();
    // One in twenty meets such a place.
    for absent in 2_000..20_000u64 {
        assert!(!store.write(&keyspace, &absent.to_be_bytes(), None, Condition::None, &WriteOptions::new()).unwrap().1);
    }
    assert!(version() < before + 100, "{} versions", version() - before);
}
