//! Walks over all keys of a keyspace, as searches for expired keys make them: complete beside writers and past damage,
//! and in pieces that hold up nothing.

use crate::common;
use hither_engine::{Condition, KeyspaceHandle, Kind, Options, OrderedKind, RestartSource, Store, WriteOptions};
use hither_sync::epoch;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn options(dir: &Path) -> Options {
    Options { paths: vec![(None, dir.to_owned())], capacity: 32 << 20, max_capacity: 32 << 20, ..common::small() }
}

fn put_expiring(store: &Store, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8], after: Duration) {
    let expiring = WriteOptions::new().ttl(after);
    store.write(keyspace, key, Some(value), Condition::None, &expiring).unwrap().2.wait().unwrap();
}

/// Whether, in each of five walks, what is freed while `walk` runs can be used again before it ends.
fn holds_up_nothing(walk: impl Fn() + Sync) -> bool {
    let (walks, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                // Odd while a walk is under way.
                walks.fetch_add(1, Ordering::SeqCst);
                walk();
                walks.fetch_add(1, Ordering::SeqCst);
            }
        });
        let until = Instant::now() + Duration::from_secs(60);
        let mut seen = 0;
        while seen < 5 && Instant::now() < until {
            let number = walks.load(Ordering::SeqCst);
            if number % 2 == 0 {
                std::thread::yield_now();
                continue;
            }
            let stamp = epoch::stamp();
            while walks.load(Ordering::SeqCst) == number && !epoch::has_passed(stamp) {
                std::thread::yield_now();
            }
            seen += u64::from(walks.load(Ordering::SeqCst) == number);
        }
        enough.store(true, Ordering::Relaxed);
        seen == 5
    })
}

/// Regression: a search for expired keys, and a walk through a hash keyspace, held one epoch pin until they ended. In a
/// large keyspace no freed segment was used again for seconds.
#[test]
fn walks_hold_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    for (name, kind) in [("hash", Kind::Hash), ("ordered", Kind::Ordered)] {
        let keyspace = store.create_keyspace(name, kind).unwrap();
        for key in 0..100_000u64 {
            put_expiring(&store, &keyspace, &key.to_be_bytes(), b"value", Duration::from_secs(3600));
        }
        let search = || {
            // Otherwise no search is due after the first.
            put_expiring(&store, &keyspace, &0u64.to_be_bytes(), b"value", Duration::from_secs(3600));
            assert_eq!(store.sweep_expired(), 0);
        };
        assert!(holds_up_nothing(search), "{name}: a search for expired keys");
        let count_all = || {
            let mut count = 0;
            let each = |_: &[u8], _: &[u8]| {
                count += 1;
                ControlFlow::Continue(())
            };
            store.for_each(&keyspace, each).unwrap();
            assert_eq!(count, 100_000);
        };
        assert!(holds_up_nothing(count_all), "{name}: a walk");
        let snapshot = store.snapshot();
        assert!(holds_up_nothing(|| assert_eq!(snapshot.sorted_keys(&keyspace).unwrap().len(), 100_000)), "{name}: the keys of a snapshot");
        drop(snapshot);
        store.drop_keyspace(name).unwrap();
    }
}

/// Keys come and go, and the index is split, between the pieces of a walk.
#[test]
fn what_stays_is_met_beside_writers() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let staying = 0..5_000u64;
    staying.clone().for_each(|key| common::put(&store, &keyspace, &key.to_be_bytes(), b"stays"));
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in 10_000..150_000u64 {
                common::put(&store, &keyspace, &key.to_be_bytes(), b"comes");
                if key % 3 > 0 {
                    store.write_wait(&keyspace, &(key - 50).to_be_bytes(), None).unwrap();
                }
            }
            written.store(true, Ordering::Release);
        });
        let mut walks = 0;
        while !written.load(Ordering::Acquire) || walks < 2 {
            let mut met = HashSet::new();
            let each = |key: &[u8], _: &[u8]| {
                met.insert(u64::from_be_bytes(key.try_into().unwrap()));
                ControlFlow::Continue(())
            };
            store.for_each(&keyspace, each).unwrap();
            assert!(staying.clone().all(|key| met.contains(&key)), "walk {walks}");
            walks += 1;
        }
    });
}

/// Regression: keys that another thread had swept meanwhile were counted again. A writer without space took that for
/// space.
#[test]
fn what_is_swept_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..9_000u64).for_each(|key| put_expiring(&store, &keyspace, &key.to_be_bytes(), b"value", Duration::from_millis(1)));
    std::thread::sleep(Duration::from_millis(5));
    let sweeps = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| store.sweep_expired())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(sweeps.iter().sum::<usize>(), 9_000, "{sweeps:?}");
    assert_eq!(keyspace.len(), 0);
}

/// Where a piece of the walk ends, and for more than a whole piece, nothing shows which key comes next. The keys behind
/// are found all the same.
#[test]
fn expired_keys_behind_damage_are_found() {
    const KEYS: u64 = 1_200;
    let key_of = |number: u64| format!("a long beginning that all keys share {number:016}").into_bytes();
    let value_of = |number: u64| format!("the value of key {number:016}").into_bytes();
    for ordered_index in [OrderedKind::BTree, OrderedKind::Learned] {
        for damaged in [250..256, 200..800, 900..KEYS] {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { ordered_index, ..options(dir.path()) };
            let store = Store::open(options.clone()).unwrap();
            let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
            for number in 0..KEYS {
                put_expiring(&store, &keyspace, &key_of(number), &value_of(number), Duration::from_millis(1));
            }
            drop((store, keyspace));
            let store = Store::open(options).unwrap();
            assert_eq!(store.recovery().source, RestartSource::Clean, "nothing was read");
            let file = std::fs::File::options().read(true).write(true).open(dir.path().join("node0.hither")).unwrap();
            // All entries are at the beginning of the file.
            let mut bytes = vec![0; 2 << 20];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let begin = b"the value of key ";
            let places = (0..bytes.len() - begin.len()).filter(|at| bytes[*at..].starts_with(begin));
            let damaged_places = places.filter(|at| damaged.clone().any(|number| bytes[*at..].starts_with(&value_of(number))));
            damaged_places.for_each(|at| file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap());
            let keyspace = store.open_keyspace("k").unwrap();
            assert_eq!(store.sweep_expired() as u64, KEYS - (damaged.end - damaged.start), "{damaged:?}");
            assert_eq!(keyspace.len() as u64, damaged.end - damaged.start, "{damaged:?}");
        }
    }
}
