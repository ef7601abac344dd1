use super::TAKEN;
use crate::batch::Batch;
use crate::keyspace::KeyspaceHandle;
use crate::{Condition, Durability, Expiry, Kind, Options, Store, WriteOptions};
use hither_topology::Topology;
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The number of keys that a store has from the beginning.
const OTHERS: u64 = 20_000;

/// In memory a fence is all there is to durability.
fn open() -> (Store, KeyspaceHandle) {
    let options = Options {
        in_memory: true,
        durability: Durability::Sync,
        background: false,
        segment_bytes: 64 << 10,
        shards: 8,
        topology: Some(Arc::new(Topology::single())),
        ..Options::default()
    };
    let store = Store::open(options).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    // So many that two keys of a batch seldom share a pair of the index. No test uses these keys.
    for key in 0..OTHERS {
        store.write_wait(&keyspace, &(key | 1 << 40).to_be_bytes(), Some(&[0; 8])).unwrap();
    }
    (store, keyspace)
}

fn get(store: &Store, keyspace: &KeyspaceHandle, key: u64) -> Option<(u64, u64)> {
    let found = store.get_versioned(keyspace, &key.to_be_bytes()).unwrap();
    found.map(|(value, version)| (u64::from_be_bytes(value[..].try_into().unwrap()), version))
}

fn batch_of(keyspace: &KeyspaceHandle, pairs: &[(u64, u64)]) -> Batch {
    let mut batch = Batch::default();
    pairs.iter().for_each(|(key, value)| batch.put(keyspace, &key.to_be_bytes(), &value.to_be_bytes(), 0));
    batch
}

/// Commits, and returns whether the batch went the lean path.
fn commits_lean(store: &Store, batch: &Batch, options: &WriteOptions) -> bool {
    let before = TAKEN.get();
    store.commit(batch, options).unwrap().wait().unwrap();
    TAKEN.get() > before
}

/// Two keys that share neither a latch nor a pair of the index: a batch of them goes the lean path.
fn two_keys(store: &Store, keyspace: &KeyspaceHandle) -> [u64; 2] {
    let lean = |keys: &[u64; 2]| commits_lean_soon(store, &batch_of(keyspace, &keys.map(|key| (key, 1))));
    (1..20).map(|key| [key, key + 20]).find(lean).expect("most keys share nothing")
}

/// Whether the batch goes the lean path, if not at once: a chunk may be at its end.
fn commits_lean_soon(store: &Store, batch: &Batch) -> bool {
    (0..3).any(|_| commits_lean(store, batch, &WriteOptions::new()))
}

/// A pseudo-random number below `limit`.
fn below(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

/// Batches of all sizes over few and many keys: new ones, known ones, keys of batches and of single writes, keys that
/// expire, the same key twice. Few keys share pairs and latches, so that many batches are left to the general path.
#[test]
fn batches_of_pairs_agree_with_a_map() {
    for (keys, least_lean) in [(40, 100), (3_000, 1_000), (100_000, 1_100)] {
        let ((store, keyspace), mut model, mut random) = (open(), BTreeMap::new(), keys);
        let mut lean = 0;
        for round in 0..2_000u64 {
            let most = [3, 16, 64, 70][below(&mut random, 4) as usize];
            let members = 2 + below(&mut random, most - 1);
            let pairs: Vec<(u64, u64)> = (0..members).map(|i| (below(&mut random, keys), round << 8 | i)).collect();
            lean += u64::from(commits_lean(&store, &batch_of(&keyspace, &pairs), &WriteOptions::new()));
            model.extend(pairs.iter().copied());
            pairs.iter().for_each(|(key, _)| assert_eq!(get(&store, &keyspace, *key).map(|(value, _)| value), model.get(key).copied()));
            for step in 0..3 {
                let (key, value) = (below(&mut random, keys), round << 8 | 0xf0 | step);
                let (put, expires) = (step > 0, step == 1 && round % 5 == 0);
                let expiry = expires.then_some(Expiry::After(Duration::from_secs(3_600)));
                let value_bytes = value.to_be_bytes();
                let options = WriteOptions { expiry, ..WriteOptions::new() };
                let _ = store.write(&keyspace, &key.to_be_bytes(), put.then_some(&value_bytes[..]), Condition::None, &options).unwrap();
                if put {
                    model.insert(key, value);
                } else {
                    model.remove(&key);
                }
            }
            if round % 500 == 0 {
                store.reclaim().unwrap();
            }
        }
        assert!(lean >= least_lean, "{lean} of 2,000 batches over {keys} keys went the lean path");
        assert_eq!(keyspace.len(), model.len() + OTHERS as usize);
        for key in 0..keys {
            assert_eq!(get(&store, &keyspace, key).map(|(value, _)| value), model.get(&key).copied(), "key {key}");
        }
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
}

/// Of a key that is given twice the last value counts, and the batch's versions follow each other and those before.
#[test]
fn versions_rise_and_the_last_value_of_a_key_counts() {
    let (store, keyspace) = open();
    // Groups of keys that share neither a latch nor a pair of the index.
    let lean = |keys: &[u64; 5]| commits_lean_soon(&store, &batch_of(&keyspace, &keys.map(|key| (key, 1))));
    let groups = (10..100).map(|first| std::array::from_fn(|i| 1_000 * i as u64 + first)).filter(lean);
    let groups: Vec<[u64; 5]> = groups.take(3).collect();
    let mut newest = get(&store, &keyspace, groups[2][4]).unwrap().1;
    let mut lean = 0;
    for round in 0..500u64 {
        let pairs = groups[round as usize % 3].map(|key| (key, round));
        // Not where a chunk ends.
        lean += u64::from(commits_lean(&store, &batch_of(&keyspace, &pairs), &WriteOptions::new()));
        let versions: Vec<u64> = pairs.iter().map(|(key, _)| get(&store, &keyspace, *key).unwrap().1).collect();
        assert!(versions[0] > newest && versions.is_sorted_by(|a, b| *b == a + 1), "{versions:?} after {newest}");
        newest = versions[4];
    }
    assert!(lean > 400, "{lean} of 500");
    let twice = batch_of(&keyspace, &[(7, 1), (8, 2), (7, 3)]);
    assert!(!commits_lean(&store, &twice, &WriteOptions::new()));
    assert_eq!([7, 8].map(|key| get(&store, &keyspace, key).unwrap().0), [3, 2]);
}

/// Threads draw versions in blocks, and one of them goes on with an older block than the other. Still a key's versions
/// grow, whether a batch or a single put comes first.
#[test]
fn versions_of_a_key_grow_whoever_commits() {
    let (store, keyspace) = open();
    let [one, other] = two_keys(&store, &keyspace);
    let version = || get(&store, &keyspace, one).unwrap().1;
    let commit = || {
        assert!(commits_lean_soon(&store, &batch_of(&keyspace, &[(other, 1), (one, 2)])));
        version()
    };
    let put = || {
        store.write_wait(&keyspace, &one.to_be_bytes(), Some(&3u64.to_be_bytes())).unwrap();
        version()
    };
    let aside = |write: &(dyn Fn() -> u64 + Sync)| std::thread::scope(|scope| scope.spawn(write).join().unwrap());
    let versions = [aside(&commit), commit(), aside(&commit), put(), aside(&commit), commit(), aside(&put), commit()];
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
}

/// What makes a batch unusual sends it the general way, with the same outcome.
#[test]
fn unusual_batches_go_the_general_way() {
    let (store, keyspace) = open();
    let ordered = store.create_keyspace("ordered", Kind::Ordered).unwrap();
    let plain = WriteOptions::new();
    let [one, other] = two_keys(&store, &keyspace);
    let two = || batch_of(&keyspace, &[(one, 1), (other, 2)]);
    let with = |change: &dyn Fn(&mut Batch)| {
        let mut batch = two();
        change(&mut batch);
        batch
    };
    assert!(commits_lean_soon(&store, &two()));
    let unusual: [(&str, Batch, WriteOptions); 9] = [
        ("a single put", batch_of(&keyspace, &[(one, 1)]), plain),
        ("too many puts", batch_of(&keyspace, &std::array::from_fn::<_, 65, _>(|i| (i as u64 + one, 1))), plain),
        ("a delete", with(&|batch| batch.delete(&keyspace, b"12345678")), plain),
        ("a long value", with(&|batch| batch.put(&keyspace, b"12345678", b"more than eight", 0)), plain),
        ("an expiry", with(&|batch| batch.put(&keyspace, b"12345678", b"12345678", u64::MAX >> 20)), plain),
        ("two keyspaces", with(&|batch| batch.put(&ordered, b"12345678", b"12345678", 0)), plain),
        ("a precondition", with(&|batch| batch.require_version(&keyspace, b"absent", None)), plain),
        ("a default expiry", two(), WriteOptions { expiry: Some(Expiry::After(Duration::from_secs(3_600))), ..plain }),
        ("a weaker level", two(), WriteOptions { durability: Some(Durability::Process), ..plain }),
    ];
    for (what, batch, options) in unusual {
        let before = get(&store, &keyspace, one).unwrap().1;
        assert!(!commits_lean(&store, &batch, &options), "{what}");
        let (value, version) = get(&store, &keyspace, one).unwrap();
        assert!(value == 1 && version > before, "{what}: {value}, version {version} after {before}");
    }
    // After a write at a weaker level, deletes may have to be noted.
    assert!(!commits_lean_soon(&store, &two()));
}

/// Regression: a batch that found no room without extensions, because the open segment was another keyspace's, took a
/// chunk each time. In small segments it even made the thread's chunk shorter, where the arithmetic was not checked.
#[test]
fn a_segment_of_another_keyspace_costs_no_room() {
    let (store, a) = open();
    let b = store.create_keyspace("b", Kind::Hash).unwrap();
    let used = || store.stats().pools.iter().map(|pool| pool.usage.segments - pool.usage.free).sum::<u64>();
    let write = |keyspace: &KeyspaceHandle, members: u64, round: u64| {
        let pairs: Vec<(u64, u64)> = (0..members).map(|i| ((i << 20) + round % 50, round)).collect();
        store.commit_wait(&batch_of(keyspace, &pairs)).unwrap();
    };
    let before = used();
    // The threads take turns. If one panics, the other ends, too.
    let [(first, first_turn), (second, second_turn)] = [mpsc::channel::<u64>(), mpsc::channel()];
    first.send(0).unwrap();
    std::thread::scope(|scope| {
        for (turns, other) in [(first_turn, second), (second_turn, first)] {
            let (write, a, b) = (&write, &a, &b);
            scope.spawn(move || {
                for round in turns.into_iter().take_while(|round| *round < 600) {
                    write(if round % 4 < 2 { a } else { b }, [2, 12, 30][round as usize % 3], round);
                    // At the end the other thread may be gone.
                    let _ = other.send(round + 1);
                }
            });
        }
    });
    // Some 9,000 members of at most 48 bytes, and a segment more for each of eight shards.
    let (taken, most) = (used() - before, 600 * 15 * 48 / (64 << 10) + 9);
    assert!(taken <= most, "{taken} segments, where {most} suffice");
    assert!(store.check().unwrap().is_sound());
}

/// Regression: where a batch had room but its last versions did not suit the segment, the chunk was to be made longer by
/// less than nothing.
#[test]
fn a_segment_whose_versions_end_within_a_batch_is_left_alone() {
    let (store, keyspace) = open();
    let core = &store.core;
    // The next write opens a segment with room for much. So early, the versions of a segment begin with 0.
    core.log.close_open(core.collector.tombstones(), |_| true);
    core.seal(hither_log::TakeBack::All).unwrap();
    store.write_wait(&keyspace, &1u64.to_be_bytes(), Some(&[0; 8])).unwrap();
    let last = u64::from(u32::MAX);
    store.skip_versions(last - 30 - core.log.clock.upper_bound());
    let newest = |round: u64| {
        let pairs: Vec<(u64, u64)> = (1..13).map(|key| (key, round)).collect();
        store.commit_wait(&batch_of(&keyspace, &pairs)).unwrap();
        pairs.iter().for_each(|(key, _)| assert_eq!(get(&store, &keyspace, *key).unwrap().0, round));
        get(&store, &keyspace, 12).unwrap().1
    };
    let versions: Vec<u64> = (1..10).map(newest).collect();
    assert!(versions[0] < last && versions[8] > last + 12, "{versions:?} around {last}");
    assert!(store.check().unwrap().is_sound());
}

/// While there is a snapshot, the entries that it shows must be kept for it.
#[test]
fn snapshots_send_batches_the_general_way() {
    let (store, keyspace) = open();
    let [one, other] = two_keys(&store, &keyspace);
    let values = |first: u64| batch_of(&keyspace, &[(one, first), (other, first + 1)]);
    assert!(commits_lean_soon(&store, &values(1)));
    let snapshot = store.snapshot();
    assert!(!commits_lean_soon(&store, &values(3)));
    let seen = [one, other].map(|key| snapshot.get_with(&keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap().unwrap());
    assert_eq!(seen, [1u64, 2].map(|value| value.to_be_bytes().to_vec()));
    drop(snapshot);
    assert!(commits_lean_soon(&store, &values(5)));
    assert_eq!([one, other].map(|key| get(&store, &keyspace, key).unwrap().0), [5, 6]);
}
