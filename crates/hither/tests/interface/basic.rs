//! The public interface, operation by operation, on each medium that a test can have.

use hither::{Db, Durability, Error, KeyspaceOptions, Kind, MediumChoice, WriteOptions};
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

/// Runs a scenario over both kinds and several media.
fn everywhere(scenario: impl Fn(&Db, Kind)) {
    for kind in [Kind::Ordered, Kind::Hash] {
        let memory = Db::builder().in_memory().capacity(8 << 20).max_capacity(64 << 20).open().unwrap();
        scenario(&memory, kind);
        let dir = tempfile::tempdir().unwrap();
        let file = Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(8 << 20).max_capacity(64 << 20).open().unwrap();
        scenario(&file, kind);
        assert!(file.check().unwrap().is_sound(), "{:?}", file.check().unwrap().problems);
    }
}

fn create(db: &Db, kind: Kind) -> hither::Keyspace {
    let options = if kind == Kind::Hash { KeyspaceOptions::hash() } else { KeyspaceOptions::ordered() };
    db.create_keyspace("test", options).unwrap()
}

#[test]
fn put_get_delete() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        assert_eq!(ks.get(b"k").unwrap(), None);
        ks.put(b"k", b"v1").unwrap();
        ks.put(b"k", b"v2, longer").unwrap();
        ks.put(b"12345678", b"abcdefgh").unwrap();
        ks.put(b"empty", b"").unwrap();
        ks.put(b"\0\0", b"zeros").unwrap();
        assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v2, longer");
        assert_eq!(ks.get(b"12345678").unwrap().unwrap(), b"abcdefgh");
        assert_eq!(ks.get(b"empty").unwrap().unwrap(), b"");
        assert_eq!(ks.get(b"\0\0").unwrap().unwrap(), b"zeros");
        assert_eq!(ks.get(b"\0").unwrap(), None);
        assert_eq!(ks.len(), 4);
        assert!(ks.delete(b"k").unwrap());
        assert!(!ks.delete(b"k").unwrap());
        assert_eq!(ks.get(b"k").unwrap(), None);
        assert_eq!(ks.multi_get(&[&b"k"[..], b"empty", b"12345678"]).unwrap(), [None, Some(vec![]), Some(b"abcdefgh".to_vec())]);
    });
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let db = Db::builder().in_memory().open().unwrap();
    let ks = db.keyspace("a").unwrap();
    assert!(matches!(ks.put(b"", b"v"), Err(Error::KeyEmpty)));
    assert!(matches!(ks.put(&vec![1; 65_537], b"v"), Err(Error::KeyTooLong { bytes: 65_537 })));
    ks.put(&vec![1; 65_536], b"v").unwrap();
    assert_eq!(ks.get(&vec![1; 65_536]).unwrap().unwrap(), b"v");
    let hash = db.create_keyspace("h", KeyspaceOptions::hash()).unwrap();
    assert!(matches!(hash.range(..), Err(Error::NotOrdered(_))));
    assert!(matches!(db.create_keyspace("h", KeyspaceOptions::hash()), Err(Error::KeyspaceExists(_))));
    let other = Db::builder().in_memory().open().unwrap();
    let mut batch = other.batch();
    batch.put(&ks, b"k", b"v");
    assert!(matches!(batch.commit(), Err(Error::ForeignKeyspace(_))));
}

/// Regression: a snapshot followed what another store's index says into its own log, to wherever that led.
#[test]
fn a_snapshot_shows_no_keyspace_of_another_store() {
    let (small, large) =
        (Db::builder().in_memory().capacity(1 << 20).max_capacity(1 << 20).open().unwrap(), Db::builder().in_memory().open().unwrap());
    small.keyspace("k").unwrap().put(b"k", b"v").unwrap();
    let snapshot = small.snapshot();
    for options in [KeyspaceOptions::ordered(), KeyspaceOptions::hash()] {
        let theirs = large.create_keyspace(if options == KeyspaceOptions::hash() { "h" } else { "k" }, options).unwrap();
        for number in 0..20_000u32 {
            theirs.put(&number.to_be_bytes(), &[7; 100]).unwrap();
        }
        for number in [0u32, 77, 19_999] {
            assert!(matches!(snapshot.get(&theirs, &number.to_be_bytes()), Err(Error::ForeignKeyspace(_))));
        }
        let mut pairs = snapshot.iter(&theirs);
        assert!(matches!(pairs.next(), Some(Err(Error::ForeignKeyspace(_)))));
        assert!(pairs.next().is_none() && pairs.next_back().is_none());
        assert!(matches!(snapshot.range(&theirs, ..), Err(Error::ForeignKeyspace(_))));
        assert!(matches!(snapshot.prefix(&theirs, b"a"), Err(Error::ForeignKeyspace(_))));
    }
}

/// Regression: each of these waited for the read that it was called from.
#[test]
fn what_waits_for_reads_is_refused_inside_one() {
    let db = Db::builder().in_memory().capacity(1 << 20).max_capacity(1 << 20).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    let fill = |byte| (0..700u32).try_for_each(|number| ks.put(&number.to_be_bytes(), &[byte; 1000]));
    fill(1).unwrap();
    let key = 5u32.to_be_bytes();
    let inside = |f: &dyn Fn() -> Result<(), Error>| ks.get_with(&key, |_| f()).unwrap().unwrap();
    for waiting in [
        &(|| db.reclaim().map(drop)) as &dyn Fn() -> Result<(), Error>,
        &|| db.compact().map(drop),
        &|| db.check().map(drop),
        &|| db.checkpoint().map(drop),
        &|| db.clone().close(),
    ] {
        assert!(matches!(inside(waiting), Err(Error::InsideRead(_))));
        waiting_is_over(&ks);
    }
    // Space can be made of garbage, but not from in here.
    let outcome = inside(&|| (2..20).try_for_each(fill));
    assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
    (2..20).try_for_each(fill).unwrap();
}

fn waiting_is_over(ks: &hither::Keyspace) {
    ks.put(b"after", b"that").unwrap();
}

/// Regression: a callback that panicked took the thread with it that commits in the background, and all callbacks behind it.
#[test]
fn a_callback_that_panics_harms_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder().path(dir.path()).capacity(1 << 20).medium(hither::MediumChoice::File).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    let (told, tell) = std::sync::mpsc::channel();
    for round in 0..2 {
        for number in 0..20u32 {
            let told = told.clone();
            ks.put_with(&number.to_be_bytes(), b"v", &WriteOptions::default()).unwrap().on_durable(move |outcome| {
                told.send(outcome.is_ok()).unwrap();
                assert!(number % 7 > 0, "meant to be seen in the test's output");
            });
        }
        // Nobody waits for them: the background must come.
        for number in 0..20 {
            assert!(
                tell.recv_timeout(std::time::Duration::from_secs(30))
                    .unwrap_or_else(|_| panic!("round {round}, callback {number} was not called"))
            );
        }
    }
}

#[test]
fn compare_and_swap_and_update() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        assert!(ks.compare_and_swap(b"k", None, Some(b"1")).unwrap());
        assert!(!ks.compare_and_swap(b"k", None, Some(b"2")).unwrap());
        assert!(!ks.compare_and_swap(b"k", Some(b"2"), Some(b"3")).unwrap());
        assert!(ks.compare_and_swap(b"k", Some(b"1"), Some(b"2")).unwrap());
        assert_eq!(ks.get(b"k").unwrap().unwrap(), b"2");
        assert!(ks.compare_and_swap(b"k", Some(b"2"), None).unwrap());
        assert_eq!(ks.get(b"k").unwrap(), None);
        for _ in 0..10 {
            ks.update(b"n", |old| Some(vec![old.map_or(0, |old| old[0]) + 1])).unwrap();
        }
        assert_eq!(ks.get(b"n").unwrap().unwrap(), [10]);
    });
}

#[test]
fn concurrent_updates_lose_nothing() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..50u8 {
                        let add = |old: Option<&[u8]>| {
                            let old = old.map_or(0, |old| u32::from_le_bytes(old.try_into().unwrap()));
                            Some((old + 1).to_le_bytes().to_vec())
                        };
                        ks.update(&[i % 3 + 1], add).unwrap();
                    }
                });
            }
        });
        let total: u32 = (1..=3u8).map(|k| u32::from_le_bytes(ks.get(&[k]).unwrap().unwrap().try_into().unwrap())).sum();
        assert_eq!(total, 200);
    });
}

#[test]
fn ranges_from_both_ends() {
    let db = Db::builder().in_memory().open().unwrap();
    let ks = db.keyspace("r").unwrap();
    let keys: Vec<Vec<u8>> = (0..1000u32).map(|i| format!("key{i:05}").into_bytes()).collect();
    for key in &keys {
        ks.put(key, key).unwrap();
    }
    let got: Vec<_> = ks.iter().map(|pair| pair.unwrap().0).collect();
    assert_eq!(got, keys);
    let got: Vec<_> = ks.iter().rev().map(|pair| pair.unwrap().0).collect();
    assert!(got.iter().eq(keys.iter().rev()));
    let range = (Bound::Excluded(&b"key00010"[..]), Bound::Included(&b"key00020"[..]));
    assert_eq!(ks.range(range).unwrap().count(), 10);
    assert_eq!(ks.prefix(b"key0002").unwrap().count(), 10);
    let mut both = ks.iter();
    let mut seen = Vec::new();
    for i in 0.. {
        let next = if i % 3 == 0 { both.next_back() } else { both.next() };
        let Some(pair) = next else { break };
        seen.push(pair.unwrap().0);
    }
    seen.sort();
    assert_eq!(seen, keys);
}

/// As many pairs as asked for, whatever lies between them: deleted and expired keys, and the ends of what is loaded at once.
#[test]
fn the_first_pairs_of_a_range() {
    let db = Db::builder().in_memory().capacity(64 << 20).open().unwrap();
    let keyspace = db.create_keyspace("k", KeyspaceOptions::ordered()).unwrap();
    let over = WriteOptions::new().expires_at_ms(1);
    for key in 0..2_000u64 {
        match key % 5 {
            0 => drop(keyspace.put_with(&key.to_be_bytes(), b"over", &over).unwrap()),
            1 => continue,
            _ => keyspace.put(&key.to_be_bytes(), &key.to_le_bytes()).unwrap(),
        }
    }
    let left: Vec<u64> = (0..2_000).filter(|key| key % 5 > 1).collect();
    for limit in [0, 1, 2, 76, 77, 127, 128, 129, 500, 1_199, 1_200, 1_201, usize::MAX] {
        for reverse in [false, true] {
            let mut expected = left.clone();
            if reverse {
                expected.reverse();
            }
            expected.truncate(limit);
            let mut found = Vec::new();
            let count = keyspace.scan_first(limit, Bound::Unbounded, Bound::Unbounded, reverse, |key, value| {
                found.push(u64::from_be_bytes(key.try_into().unwrap()));
                assert_eq!(found.last().unwrap().to_le_bytes(), value);
                ControlFlow::Continue(())
            });
            assert_eq!((count.unwrap(), found), (expected.len(), expected), "the first {limit}, reverse: {reverse}");
        }
    }
    let mut seen = 0;
    let stopped = keyspace.scan_first(100, Bound::Included(&9u64.to_be_bytes()), Bound::Unbounded, false, |_, _| {
        seen += 1;
        if seen < 7 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(stopped.unwrap(), 7, "whoever breaks was called for the last one, too");
    let unordered = db.create_keyspace("h", KeyspaceOptions::hash()).unwrap();
    let refused = unordered.scan_first(1, Bound::Unbounded, Bound::Unbounded, false, |_, _| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::NotOrdered(_))));
}

#[test]
fn batches_apply_entirely_or_not_at_all() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        let other = db.keyspace("other").unwrap();
        ks.put(b"gone", b"x").unwrap();
        let mut batch = db.batch();
        batch.put(&ks, b"a", b"1").put(&other, b"b", b"2").delete(&ks, b"gone").put(&ks, b"a", b"3").delete(&ks, b"never there");
        batch.commit().unwrap();
        assert_eq!(ks.get(b"a").unwrap().unwrap(), b"3");
        assert_eq!(other.get(b"b").unwrap().unwrap(), b"2");
        assert_eq!(ks.get(b"gone").unwrap(), None);
        let (_, version) = ks.get_versioned(b"a").unwrap().unwrap();
        let mut batch = db.batch();
        batch.require_version(&ks, b"a", Some(version)).require_version(&ks, b"gone", None).put(&ks, b"a", b"4");
        batch.commit().unwrap();
        let mut stale = db.batch();
        stale.require_version(&ks, b"a", Some(version)).put(&ks, b"a", b"5").put(&ks, b"c", b"5");
        assert!(matches!(stale.commit(), Err(Error::PreconditionFailed { .. })));
        assert_eq!(ks.get(b"a").unwrap().unwrap(), b"4");
        assert_eq!(ks.get(b"c").unwrap(), None);
    });
}

#[test]
fn snapshots_stand_still() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        for i in 0..200u8 {
            ks.put(&[i], &[i, 1]).unwrap();
        }
        let snapshot = db.snapshot();
        for i in 0..200u8 {
            match i % 4 {
                0 => ks.put(&[i], &[i, 2]).unwrap(),
                1 => drop(ks.delete(&[i]).unwrap()),
                2 => {
                    ks.delete(&[i]).unwrap();
                    ks.put(&[i], &[i, 3]).unwrap();
                }
                _ => {}
            }
        }
        ks.put(b"new key", b"x").unwrap();
        for i in 0..200u8 {
            assert_eq!(snapshot.get(&ks, &[i]).unwrap().unwrap(), [i, 1]);
        }
        assert_eq!(snapshot.get(&ks, b"new key").unwrap(), None);
        let pairs: Vec<_> = snapshot.iter(&ks).map(|pair| pair.unwrap()).collect();
        assert_eq!(pairs, (0..200u8).map(|i| (vec![i], vec![i, 1])).collect::<Vec<_>>());
        let backward: Vec<_> = snapshot.iter(&ks).rev().map(|pair| pair.unwrap().0[0]).collect();
        assert!(backward.into_iter().eq((0..200u8).rev()));
        drop(snapshot);
        assert_eq!(ks.len(), 151);
    });
}

/// Of a stretch that is gone from the index a snapshot saved more than is taken at once.
#[test]
fn a_snapshot_of_many_deleted_keys_is_whole_from_both_ends() {
    const KEYS: u16 = 3_000;
    // From all of a stretch to a few here and there.
    for stays in [|_: u16| false, |key| key < 1_000, |key| key >= 2_000, |key| key % 300 == 7, |key| key % 2 == 0, |key| key % 1_000 == 255]
    {
        let db = Db::builder().in_memory().capacity(8 << 20).open().unwrap();
        let ks = db.keyspace("k").unwrap();
        (0..KEYS).for_each(|key| ks.put(&key.to_be_bytes(), &key.to_le_bytes()).unwrap());
        let snapshot = db.snapshot();
        for key in (0..KEYS).filter(|key| !stays(*key)) {
            assert!(ks.delete(&key.to_be_bytes()).unwrap());
        }
        let number = |pair: hither::Result<(Vec<u8>, Vec<u8>)>| {
            let (key, value) = pair.unwrap();
            let number = u16::from_be_bytes(key.try_into().unwrap());
            assert_eq!(value, number.to_le_bytes());
            number
        };
        assert!(snapshot.iter(&ks).map(number).eq(0..KEYS));
        assert!(snapshot.iter(&ks).rev().map(number).eq((0..KEYS).rev()));
        let (from, to) = (100u16.to_be_bytes(), 2_900u16.to_be_bytes());
        assert!(snapshot.range(&ks, &from[..]..&to[..]).unwrap().map(number).eq(100..2_900));
        assert!(snapshot.range(&ks, &from[..]..=&to[..]).unwrap().rev().map(number).eq((100..=2_900).rev()));
    }
}

#[test]
fn expiry_hides_and_sweeps() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        ks.put(b"short", b"old").unwrap();
        ks.put_with(b"short", b"x", &WriteOptions::new().ttl(Duration::from_millis(5))).unwrap().wait().unwrap();
        ks.put_with(b"long", b"y", &WriteOptions::new().ttl(Duration::from_secs(3600))).unwrap().wait().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(ks.get(b"short").unwrap(), None);
        assert_eq!(ks.get(b"long").unwrap().unwrap(), b"y");
        assert!(!ks.delete(b"short").unwrap(), "an expired key was not there");
    });
}

#[test]
fn values_of_every_size_and_guards() {
    let db = Db::builder().in_memory().capacity(8 << 20).max_capacity(256 << 20).open().unwrap();
    let ks = db.keyspace("v").unwrap();
    let sizes = [0, 1, 7, 8, 9, 100, 4096, 70_000, 600_000, 3 << 20, 20 << 20];
    let value = |size: usize| (0..size).map(|i| (i * 31 + size) as u8).collect::<Vec<_>>();
    for size in sizes {
        ks.put(format!("{size}").as_bytes(), &value(size)).unwrap();
    }
    let guard = ks.get_pinned(b"600000").unwrap().unwrap();
    for size in sizes {
        ks.put(format!("{size}").as_bytes(), &value(size + 1)).unwrap();
    }
    db.reclaim().unwrap();
    assert_eq!(*guard, value(600_000)[..], "a guard keeps its value");
    for size in sizes {
        assert_eq!(ks.get(format!("{size}").as_bytes()).unwrap().unwrap(), value(size + 1));
    }
}

#[test]
fn everything_is_back_after_reopen() {
    for kind in [Kind::Ordered, Kind::Hash] {
        let dir = tempfile::tempdir().unwrap();
        let open = |shards| Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(4 << 20).shards(shards).open().unwrap();
        {
            let db = open(4);
            let ks = create(&db, kind);
            for i in 0..3000u32 {
                ks.put_with(&i.to_be_bytes(), &i.to_le_bytes(), &WriteOptions::new().durability(Durability::Process))
                    .unwrap()
                    .wait()
                    .unwrap();
            }
            for i in (0..3000u32).step_by(3) {
                let (existed, _) = ks.delete_with(&i.to_be_bytes(), &WriteOptions::new().durability(Durability::Process)).unwrap();
                assert!(existed);
            }
            db.close().unwrap();
        }
        for shards in [1, 8, 2] {
            let db = open(shards);
            let ks = db.open_keyspace("test").unwrap().unwrap();
            assert_eq!(ks.len(), 2000);
            for i in 0..3000u32 {
                assert_eq!(ks.get(&i.to_be_bytes()).unwrap().is_some(), i % 3 != 0, "key {i}");
            }
            assert!(db.check().unwrap().is_sound(), "{:?}", db.check().unwrap().problems);
            ks.put(b"another", b"one").unwrap();
            ks.delete(b"another").unwrap();
        }
    }
}

#[test]
fn a_full_store_refuses_and_recovers() {
    let db = Db::builder().in_memory().capacity(1 << 20).max_capacity(1 << 20).segment_bytes(64 << 10).shards(1).open().unwrap();
    let ks = db.keyspace("f").unwrap();
    let mut stored = 0u32;
    let error = loop {
        match ks.put(&stored.to_be_bytes(), &[7; 1000]) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 2000, "a store of 1 MiB took 2 MB");
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    for i in 0..stored {
        assert_eq!(ks.get(&i.to_be_bytes()).unwrap().unwrap(), [7; 1000]);
    }
    assert!(ks.delete(&0u32.to_be_bytes()).unwrap(), "deletes work in a full store");
}

#[test]
fn overwrites_reuse_dead_segments() {
    let db = Db::builder().in_memory().capacity(2 << 20).max_capacity(2 << 20).segment_bytes(64 << 10).shards(1).open().unwrap();
    let ks = db.create_keyspace("o", KeyspaceOptions::hash()).unwrap();
    for round in 0..200u32 {
        for key in 0..100u32 {
            ks.put(&key.to_be_bytes(), &[round as u8; 500]).unwrap();
        }
    }
    let stats = db.stats();
    assert!(stats.pools[0].segments_reused > 50, "10 MB through 2 MB: {stats:?}");
    for key in 0..100u32 {
        assert_eq!(ks.get(&key.to_be_bytes()).unwrap().unwrap(), [199; 500]);
    }
    assert!(db.check().unwrap().is_sound(), "{:?}", db.check().unwrap().problems);
}

#[test]
fn a_closed_store_reads_but_does_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let ks = db.keyspace("a").unwrap();
    ks.put(b"k", b"v").unwrap();
    db.clone().close().unwrap();
    assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v");
    assert!(matches!(ks.put(b"k", b"w"), Err(Error::Closed)));
    assert!(matches!(db.keyspace("b"), Err(Error::Closed)));
    let mut batch = db.batch();
    batch.put(&ks, b"k", b"w");
    assert!(matches!(batch.commit(), Err(Error::Closed)));
    drop((db, ks));
    let db = Db::open(dir.path()).unwrap();
    assert!(db.recovery().clean);
    assert_eq!(db.keyspace("a").unwrap().get(b"k").unwrap().unwrap(), b"v");
}

/// A byte that changes in a half-filled segment of a store that was closed cleanly is damage, not a crash's torn entry.
#[test]
fn damage_in_a_half_filled_segment_is_noticed() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    {
        let db = Db::builder().path(dir.path()).capacity(1 << 20).open().unwrap();
        let ks = db.keyspace("a").unwrap();
        ks.put(b"a key to find", b"a value to damage").unwrap();
        ks.put(b"another key", b"another value").unwrap();
    }
    let path = dir.path().join("node0.hither");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(17).position(|window| window == b"a value to damage").unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"A", at as u64).unwrap();
    // A clean restart reads the checkpoint of the indexes only: the damage is found when it is read, by the verification in the background,
    // by `check`, and by an open that scans.
    let db = Db::open(dir.path()).unwrap();
    assert_eq!(db.recovery().source, "clean");
    let ks = db.keyspace("a").unwrap();
    assert!(matches!(ks.get(b"a key to find"), Err(Error::Damaged(_))));
    assert_eq!(ks.get(b"another key").unwrap().unwrap(), b"another value");
    while db.stats().damage.is_empty() {
        std::thread::yield_now();
    }
    assert!(matches!(ks.get(b"a key to find"), Err(Error::Damaged(_))), "still not served");
    assert!(!db.check().unwrap().is_sound());
    drop((db, ks));
    std::fs::remove_file(dir.path().join("checkpoint.hither")).unwrap();
    let error = Db::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Damaged(_)), "{error}");
    let salvaged = Db::builder().path(dir.path()).salvage(true).open().unwrap();
    assert_eq!(salvaged.recovery().salvaged.len(), 1);
    assert_eq!(salvaged.keyspace("a").unwrap().get(b"another key").unwrap().unwrap(), b"another value");
}

/// Zeros where the magic or the catalogue were: a store full of data must not be taken for one that was never finished.
#[test]
fn lost_first_bytes_or_catalogue_are_damage() {
    use std::os::unix::fs::FileExt;
    for (at, len) in [(0, 8), (0, 64), (0, 4096), (0, 65_536), (4096, 8)] {
        let dir = tempfile::tempdir().unwrap();
        {
            let db = Db::builder().path(dir.path()).capacity(1 << 20).open().unwrap();
            let ks = db.keyspace("a").unwrap();
            ks.put(b"key", b"value").unwrap();
        }
        let path = dir.path().join("node0.hither");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&vec![0; len], at).unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = Db::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{len} bytes at {at}: {error}");
        assert!(std::fs::read(&path).unwrap() == before, "nothing is changed");
    }
}

#[test]
fn keyspaces_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    {
        let db = Db::builder().path(dir.path()).open().unwrap();
        let a = db.keyspace("a").unwrap();
        a.put(b"k", b"a").unwrap();
        assert!(db.drop_keyspace("a").unwrap());
        assert!(!db.drop_keyspace("a").unwrap());
        assert!(matches!(a.put(b"k", b"v"), Err(Error::KeyspaceDropped(_))));
        let again = db.create_keyspace("a", KeyspaceOptions::hash()).unwrap();
        assert!(again.info().id > a.info().id);
        assert_eq!(again.get(b"k").unwrap(), None);
    }
    let db = Db::builder().path(dir.path()).open().unwrap();
    assert_eq!(db.keyspaces().len(), 1);
    assert_eq!(db.open_keyspace("a").unwrap().unwrap().get(b"k").unwrap(), None);
    assert!(matches!(Db::open(dir.path()), Err(Error::Locked(_))));
    assert!(matches!(Db::builder().path(dir.path().join("none")).create(false).open(), Err(Error::NotFound(_))));
}

/// A full node's threads write to the next one, and the statistics say so.
#[test]
fn a_spilling_node_shows_in_the_statistics() {
    let topology = std::sync::Arc::new(hither::Topology::emulated(2));
    topology.bind_current_thread(0).unwrap();
    let db = Db::builder().in_memory().topology(topology.clone()).capacity(4 << 20).max_capacity(4 << 20).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    let mut key = 0u64;
    let state = |db: &Db| db.stats().pools.iter().map(|pool| (pool.full, pool.spilling, pool.spills > 0)).collect::<Vec<_>>();
    assert_eq!(state(&db), [(false, false, false); 2]);
    while !db.stats().pools[0].spilling {
        (0..100).for_each(|_| {
            ks.put(&key.to_be_bytes(), &[1; 400]).unwrap();
            key += 1;
        });
        assert!(key < 10_000, "two megabytes are full by now: {:?}", db.stats().pools);
    }
    assert_eq!(state(&db), [(true, true, true), (false, false, false)]);
}

/// Regression: a store full of expired keys refused writes until the sweeper had come by, ten thousand keys a second.
#[test]
fn what_has_expired_makes_room() {
    for utilization in [None, Some(50)] {
        let builder = Db::builder().in_memory().capacity(4 << 20).max_capacity(4 << 20);
        let db = utilization.into_iter().fold(builder, hither::Builder::utilization).open().unwrap();
        let ks = db.keyspace("k").unwrap();
        for number in 0..400_000u64 {
            let soon = WriteOptions::default().ttl(Duration::from_millis(20));
            ks.put_with(&number.to_be_bytes(), &[1; 16], &soon).map(drop).unwrap_or_else(|error| panic!("{number}: {error}"));
            if number % 10_000 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Regression: a sweep that found nothing kept the next second's writes out, whatever expired in it.
#[test]
fn what_expires_after_a_vain_sweep_makes_room() {
    for utilization in [None, Some(50)] {
        let builder = Db::builder().in_memory().capacity(4 << 20).max_capacity(4 << 20);
        let db = utilization.into_iter().fold(builder, hither::Builder::utilization).open().unwrap();
        let ks = db.keyspace("k").unwrap();
        let end = std::time::SystemTime::now() + Duration::from_millis(1500);
        let at_end = || WriteOptions::default().ttl(end.duration_since(std::time::SystemTime::now()).unwrap_or_default());
        let put = |number: u64| ks.put_with(&number.to_be_bytes(), &[1; 1024], &at_end()).map(drop);
        let (mut number, mut refused) = (0, 0);
        while std::time::SystemTime::now() < end {
            match put(number) {
                Ok(()) => number += 1,
                Err(_) => refused += 1,
            }
            if refused > 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(refused > 0, "it holds four megabytes at most");
        std::thread::sleep(Duration::from_millis(20));
        ks.put(b"last", &[2; 1024]).unwrap();
    }
}
