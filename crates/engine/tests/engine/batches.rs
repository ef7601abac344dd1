//! Batches compared with a map: every size around the limits of the commit's rounds, keys that collide in latches and
//! bucket pairs, mixed keyspaces, splits under way, a full store, and several threads.

use crate::common::{Random, crash, get, put, small};
use hither_engine::{Batch, Condition, Durability, Error, KeyspaceHandle, Kind, MediumChoice, Options, Store, WriteOptions};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

type Map = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

fn open(latches: usize, capacity: u64) -> (Store, [KeyspaceHandle; 3]) {
    let store = Store::open(Options { in_memory: true, latches, capacity, max_capacity: capacity, ..Options::default() }).unwrap();
    let spaces = [("hash", Kind::Hash), ("ordered", Kind::Ordered), ("second", Kind::Hash)];
    let spaces = spaces.map(|(name, kind)| store.create_keyspace(name, kind).unwrap());
    (store, spaces)
}

fn assert_equal(store: &Store, spaces: &[KeyspaceHandle; 3], map: &Map) {
    for ((space, key), value) in map {
        assert_eq!(get(store, &spaces[*space], key).as_ref(), Some(value), "keyspace {space}, key {key:?}");
    }
    assert_eq!(spaces.iter().map(KeyspaceHandle::len).sum::<usize>(), map.len());
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// A batch of `len` operations on random keys, a fifth of them deletes, applied to `map` too.
fn random_batch(
    random: &mut Random,
    len: usize,
    keys: u64,
    space_of: impl Fn(u64) -> usize,
    spaces: &[KeyspaceHandle; 3],
    map: &mut Map,
) -> Batch {
    let mut batch = Batch::default();
    for i in 0..len {
        let number = random.below(keys);
        let space = space_of(number);
        // Most keys and values are words; the others take the general encoding.
        let key = if number.is_multiple_of(7) { format!("a longer key {number}").into_bytes() } else { number.to_be_bytes().to_vec() };
        if random.below(5) == 0 {
            batch.delete(&spaces[space], &key);
            map.remove(&(space, key));
        } else {
            let value = if number.is_multiple_of(5) { vec![i as u8; 3] } else { random.below(u64::MAX).to_le_bytes().to_vec() };
            batch.put(&spaces[space], &key, &value, 0);
            map.insert((space, key), value);
        }
    }
    batch
}

#[test]
fn every_size_agrees_with_a_map() {
    for latches in [1, 16, 4096] {
        let (store, spaces) = open(latches, 32 << 20);
        let (mut random, mut map) = (Random(latches as u64), Map::new());
        for len in [1, 2, 15, 16, 17, 32, 33, 63, 64, 65, 128, 1000, 3] {
            for keys in [5, 100, 5000] {
                let batch = random_batch(&mut random, len, keys, |_| 0, &spaces, &mut map);
                assert_eq!(batch.len(), len);
                store.commit_wait(&batch).unwrap();
            }
            assert_equal(&store, &spaces, &map);
        }
    }
}

#[test]
fn keyspaces_of_both_kinds_mix() {
    let (store, spaces) = open(64, 32 << 20);
    let (mut random, mut map) = (Random(9), Map::new());
    for round in 0..400 {
        let batch = random_batch(&mut random, 1 + round % 70, 3000, |number| (number % 3) as usize, &spaces, &mut map);
        store.commit(&batch, &WriteOptions::new()).unwrap().wait().unwrap();
        // The buffers of the last batch must not show in this one.
        assert!(Batch::default().is_empty());
    }
    assert_equal(&store, &spaces, &map);
    let mut nothing = Batch::default();
    nothing.delete(&spaces[0], b"never there");
    store.commit_wait(&nothing).unwrap();
    store.commit_wait(&Batch::default()).unwrap();
    assert_equal(&store, &spaces, &map);
}

#[test]
fn the_last_operation_of_a_key_counts_and_conditions_hold_or_nothing_happens() {
    let (store, spaces) = open(4096, 8 << 20);
    let mut batch = Batch::default();
    batch.put(&spaces[0], b"twice   ", b"1", 0);
    batch.put(&spaces[1], b"twice   ", b"other keyspace", 0);
    batch.delete(&spaces[0], b"twice   ");
    batch.put(&spaces[0], b"twice   ", b"2", 0);
    batch.put(&spaces[0], b"gone    ", b"x", 0);
    batch.delete(&spaces[0], b"gone    ");
    let again = batch.clone();
    store.commit_wait(&batch).unwrap();
    store.commit_wait(&again).unwrap();
    assert_eq!(get(&store, &spaces[0], b"twice   ").unwrap(), b"2");
    assert_eq!(get(&store, &spaces[0], b"gone    "), None);
    let (_, version) = store.get_versioned(&spaces[0], b"twice   ").unwrap().unwrap();
    for (expected, holds) in [(None, false), (Some(version + 1), false), (Some(version), true)] {
        let mut batch = Batch::default();
        batch.require_version(&spaces[0], b"twice   ", expected);
        batch.put(&spaces[0], b"twice   ", b"3", 0);
        batch.put(&spaces[0], b"new", b"3", 0);
        match store.commit_wait(&batch) {
            Ok(()) => assert!(holds),
            Err(error) => assert!(matches!(error, Error::PreconditionFailed { .. }) && !holds, "{error}"),
        }
        assert_eq!(get(&store, &spaces[0], b"new").is_some(), holds);
    }
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn snapshots_keep_what_batches_replace() {
    let (store, spaces) = open(4096, 8 << 20);
    let fill = |text: &[u8]| {
        let mut batch = Batch::default();
        (0..40u64).for_each(|i| batch.put(&spaces[0], &i.to_be_bytes(), text, 0));
        store.commit_wait(&batch).unwrap();
    };
    fill(b"old");
    let snapshot = store.snapshot();
    fill(b"new");
    fill(b"newest");
    for i in 0..40u64 {
        assert_eq!(snapshot.get_with(&spaces[0], &i.to_be_bytes(), <[u8]>::to_vec).unwrap().unwrap(), b"old");
    }
    drop(snapshot);
    assert!(store.check().unwrap().is_sound());
}

/// A batch that does not fit leaves no place locked and no garbage unaccounted for.
#[test]
fn a_full_store_refuses_whole_batches() {
    let (store, spaces) = open(4096, 4 << 20);
    let mut map = Map::new();
    let mut refused = 0;
    for round in 0..u64::MAX {
        let mut batch = Batch::default();
        let keys = (0..24).map(|i| (round * 24 + i).to_be_bytes());
        keys.clone().for_each(|key| batch.put(&spaces[0], &key, &[round as u8; 3000], 0));
        match store.commit_wait(&batch) {
            Ok(()) => map.extend(keys.map(|key| ((0, key.to_vec()), vec![round as u8; 3000]))),
            Err(Error::Full { .. }) if refused < 3 => refused += 1,
            Err(Error::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!map.is_empty());
    assert_equal(&store, &spaces, &map);
    // The same keys again, one by one: each place must be free.
    let mut batch = Batch::default();
    for key in map.keys() {
        batch.delete(&spaces[0], &key.1);
    }
    store.commit_wait(&batch).unwrap();
    assert_equal(&store, &spaces, &Map::new());
}

/// Threads insert into and update the same small index in batches, so that it splits and their latches and places meet.
/// A batch writes one number everywhere, so keys that are always written together have the same value whenever no batch
/// is under way.
#[test]
fn threads_meet_in_latches_pairs_and_splits() {
    const KEYS: u64 = 12;
    let (store, spaces) = open(256, 64 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, spaces, stop) = (&store, &spaces, &stop);
            scope.spawn(move || {
                for round in 0..3000u64 {
                    let mut batch = Batch::default();
                    for key in 0..KEYS {
                        // In another order each time.
                        let key = (key * 5 + thread + round) % KEYS;
                        batch.put(&spaces[0], &key.to_be_bytes(), &((thread << 32) | round).to_be_bytes(), 0);
                    }
                    for i in 0..8u64 {
                        let own = (1 << 40) | (thread << 32) | (round << 3) | i;
                        batch.put(&spaces[(i % 2) as usize * 2], &own.to_be_bytes(), &own.to_le_bytes(), 0);
                    }
                    store.commit_wait(&batch).unwrap();
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        let (store, spaces, stop) = (&store, &spaces, &stop);
        scope.spawn(move || {
            // Single writes lock places too.
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let key = ((1 << 50) | (round % 1000)).to_be_bytes();
                store.write_wait(&spaces[0], &key, Some(&key)).unwrap();
                store.write_wait(&spaces[0], &key, None).unwrap();
                round += 1;
            }
        });
    });
    let first = get(&store, &spaces[0], &0u64.to_be_bytes()).unwrap();
    (1..KEYS).for_each(|key| assert_eq!(get(&store, &spaces[0], &key.to_be_bytes()).unwrap(), first));
    for own in (0..3u64).flat_map(|thread| (0..24_000u64).map(move |i| (1 << 40) | (thread << 32) | i)) {
        assert_eq!(get(&store, &spaces[(own % 2) as usize * 2], &own.to_be_bytes()).unwrap(), own.to_le_bytes());
    }
    assert_eq!(spaces.iter().map(KeyspaceHandle::len).sum::<usize>() as u64, KEYS + 72_000);
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn what_a_batch_gives_an_expiry_is_swept() {
    let (store, spaces) = open(64, 16 << 20);
    let mut batch = Batch::default();
    for space in &spaces {
        batch.put(space, b"short-lived", b"value", 0);
        store.write_wait(space, b"lives on", Some(b"value")).unwrap();
    }
    store.commit(&batch, &WriteOptions::new().expires_at_ms(1)).unwrap().wait().unwrap();
    assert!(spaces.iter().all(|space| get(&store, space, b"short-lived").is_none() && get(&store, space, b"lives on").is_some()));
    store.sweep_expired();
    assert!(spaces.iter().all(|space| space.len() == 1), "expired keys are gone from the indexes");
}

#[test]
fn an_expiry_is_swept_however_late_its_batch_is_committed() {
    let (store, spaces) = open(64, 16 << 20);
    let mut batch = Batch::default();
    batch.put(&spaces[0], b"short-lived", b"value", 1);
    // The sweeper comes in between, and finds nothing.
    store.sweep_expired();
    store.commit_wait(&batch).unwrap();
    store.sweep_expired();
    assert!(spaces[0].is_empty());
}

#[test]
fn a_batch_that_changes_nothing_makes_durable_what_it_saw() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        paths: vec![(None, directory.path().to_owned())],
        medium: MediumChoice::File,
        capacity: 16 << 20,
        max_capacity: 16 << 20,
        background: false,
        ..Options::default()
    })
    .unwrap();
    let space = store.create_keyspace("k", Kind::Hash).unwrap();
    let pending = |value: Option<&[u8]>| store.write(&space, b"key", value, Condition::None, &WriteOptions::new()).unwrap().2;
    let batch = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::default();
        fill(&mut batch);
        store.commit_wait(&batch)
    };
    store.write_wait(&space, b"key", Some(b"value")).unwrap();

    let delete = pending(None);
    assert!(!delete.is_durable());
    batch(&|batch| batch.delete(&space, b"key")).unwrap();
    assert!(delete.is_durable(), "a delete that found nothing rests on an earlier one");

    let put = pending(Some(b"seen"));
    assert!(!put.is_durable());
    batch(&|batch| batch.require_version(&space, b"key", Some(put.version()))).unwrap();
    assert!(put.is_durable(), "a precondition that held");

    let put = pending(Some(b"seen, too"));
    let error = batch(&|batch| batch.require_version(&space, b"key", None)).unwrap_err();
    assert!(matches!(&error, Error::PreconditionFailed { key, .. } if key == "key"), "{error}");
    assert!(put.is_durable(), "a precondition that did not hold");
}

/// Regression: a batch left out the delete of a key that a delete at a lower level had removed. The batch's other
/// members were durable, but after a power loss that key was there again.
#[test]
fn a_delete_of_what_is_not_durably_gone_is_a_member() {
    let opened = |dir: &std::path::Path, medium| {
        let options = Options { paths: vec![(None, dir.to_owned())], medium, durability: Durability::Sync, ..small() };
        Store::open(options).unwrap()
    };
    for kind in [Kind::Hash, Kind::Ordered] {
        let dir = tempfile::tempdir().unwrap();
        // Writes that were not made durable do not reach the file.
        let store = opened(dir.path(), MediumChoice::ShadowFile);
        let keyspace = store.create_keyspace("k", kind).unwrap();
        put(&store, &keyspace, b"gone", b"value");
        let relaxed = WriteOptions::new().durability(Durability::Process);
        drop(store.write(&keyspace, b"gone", None, Condition::None, &relaxed).unwrap());
        let mut batch = Batch::default();
        batch.delete(&keyspace, b"gone");
        batch.put(&keyspace, b"new", b"value", 0);
        store.commit_wait(&batch).unwrap();
        let left = crash(dir.path());
        assert!(store.check().unwrap().is_sound() && get(&store, &keyspace, b"gone").is_none());
        let store = opened(left.path(), MediumChoice::Auto);
        let keyspace = store.open_keyspace("k").unwrap();
        assert_eq!((get(&store, &keyspace, b"gone"), get(&store, &keyspace, b"new").as_deref()), (None, Some(&b"value"[..])), "{kind:?}");
        assert!(store.check().unwrap().is_sound());
    }
}
