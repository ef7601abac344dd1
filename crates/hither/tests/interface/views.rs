//! Ranges and snapshots.

use crate::basic::{create, everywhere};
use hither::{Db, Error, KeyspaceOptions, WriteOptions};
use std::ops::{Bound, ControlFlow};

/// Regression: a snapshot took references from the index of another store and followed them into its own log, wherever
/// they led.
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
        assert!(matches!(snapshot.get_entry(&theirs, b"a"), Err(Error::ForeignKeyspace(_))));
        assert!(matches!(snapshot.multi_get_with(&theirs, &[b"a"], |_, _| panic!("a key")), Err(Error::ForeignKeyspace(_))));
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let scanned = snapshot.scan_with(&theirs, everything.0, everything.1, false, |_, _| panic!("a pair"));
        assert!(matches!(scanned, Err(Error::ForeignKeyspace(_))));
        let scanned = snapshot.scan_first(&theirs, 1, everything.0, everything.1, false, |_, _| panic!("a pair"));
        assert!(matches!(scanned, Err(Error::ForeignKeyspace(_))));
    }
}

/// Regression: keys expired in snapshots, so that of two keys put by one batch one expired before the other.
#[test]
fn nothing_expires_in_a_snapshot() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        ks.put_with(b"gone", b"0", &WriteOptions::new().expires_at_ms(1)).unwrap().wait().unwrap();
        let take = |ms: u64| {
            let soon = db.now_ms() + ms;
            let mut batch = db.batch();
            batch.put_with_expiry(&ks, b"a", b"1", soon).put_with_expiry(&ks, b"b", &[7; 3_000], soon + 1).put(&ks, b"c", b"3");
            batch.commit().unwrap();
            let snapshot = db.snapshot();
            (db.now_ms() < soon).then_some((soon, snapshot))
        };
        // A snapshot taken before the keys expire, however slow the machine is.
        let (soon, snapshot) = (7..).find_map(|power| take(1 << power)).unwrap();
        while db.now_ms() <= soon + 1 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!((ks.get(b"a").unwrap(), ks.get(b"b").unwrap()), (None, None));
        let shown = || {
            assert_eq!(snapshot.get(&ks, b"a").unwrap().as_deref(), Some(&b"1"[..]));
            assert_eq!(snapshot.get(&ks, b"gone").unwrap(), None);
            snapshot.iter(&ks).map(|pair| pair.unwrap().0).collect::<Vec<_>>()
        };
        assert_eq!(shown(), [b"a", b"b", b"c"]);
        // Also after the expired key has been removed.
        ks.delete(b"a").unwrap();
        ks.put(b"a", b"4").unwrap();
        db.reclaim().unwrap();
        assert_eq!(shown(), [b"a", b"b", b"c"]);
        assert_eq!(db.snapshot().iter(&ks).count(), 2);
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

/// A scan finds as many pairs as asked for, whatever lies between them: deleted keys, expired keys, or the ends of
/// groups that are loaded at once.
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

/// A snapshot saved more keys of a range that is gone from the index than it takes at once.
#[test]
fn a_snapshot_of_many_deleted_keys_is_whole_from_both_ends() {
    const KEYS: u16 = 3_000;
    // From none of the keys, over parts of the range, to single ones here and there.
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
fn a_snapshot_knows_what_it_contains_and_many_values_at_once() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        let keys: Vec<_> = (0..200u32).map(u32::to_be_bytes).collect();
        for key in keys.iter().step_by(2) {
            ks.put(key, key).unwrap();
        }
        let before = db.snapshot();
        for key in &keys {
            if key[3] % 3 == 0 { ks.delete(key).map(drop) } else { ks.put(key, b"new") }.unwrap();
        }
        let values = before.multi_get(&ks, &keys).unwrap();
        for (number, (key, value)) in keys.iter().zip(values).enumerate() {
            let expected = (number % 2 == 0).then(|| key.to_vec());
            assert_eq!((before.contains(&ks, key).unwrap(), value), (expected.is_some(), expected), "{number}");
        }
        let other = Db::builder().in_memory().open().unwrap();
        assert!(matches!(other.snapshot().multi_get(&ks, &keys), Err(Error::ForeignKeyspace(_))));
        assert!(matches!(other.snapshot().contains(&ks, b"k"), Err(Error::ForeignKeyspace(_))));
        assert!(matches!(before.multi_get(&ks, &[b""]), Err(Error::KeyEmpty)));
    });
}

/// Reads in place return the same pairs from a snapshot as reads that copy, whatever has been written since.
#[test]
fn reads_in_place_show_the_snapshot() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        let at = 33_177_117_420_000;
        (0..300u32).for_each(|number| ks.put(&number.to_be_bytes(), &number.to_le_bytes()).unwrap());
        ks.put_with(&7u32.to_be_bytes(), b"expires", &WriteOptions::new().expires_at_ms(at)).unwrap().wait().unwrap();
        let snapshot = db.snapshot();
        let entry = |number: u32| (snapshot.get_entry(&ks, &number.to_be_bytes()).unwrap(), ks.get_entry(&number.to_be_bytes()).unwrap());
        assert_eq!(entry(7).0, entry(7).1);
        assert_eq!(
            entry(7).0.map(|entry| (entry.key, entry.value, entry.expires_at_ms)),
            Some((vec![0, 0, 0, 7], b"expires".to_vec(), at))
        );
        (100..200u32).for_each(|number| assert!(ks.delete(&number.to_be_bytes()).unwrap()));
        (0..100u32).for_each(|number| ks.put(&number.to_be_bytes(), b"new").unwrap());
        ks.put(&400u32.to_be_bytes(), b"new").unwrap();
        assert_eq!((entry(150).0.unwrap().value, entry(150).1), (150u32.to_le_bytes().to_vec(), None));
        assert_eq!(entry(400), (None, ks.get_entry(&400u32.to_be_bytes()).unwrap()));

        let keys: Vec<_> = [150u32, 400, 8, 250].iter().chain(&vec![299; 100]).map(|number| number.to_be_bytes()).collect();
        let mut seen = Vec::new();
        snapshot.multi_get_with(&ks, &keys, |number, value| seen.push((number, value.map(<[u8]>::to_vec)))).unwrap();
        let copies = snapshot.multi_get(&ks, &keys).unwrap();
        assert_eq!(seen, copies.into_iter().enumerate().collect::<Vec<_>>());
        assert_eq!((&seen[0].1, &seen[1].1), (&Some(150u32.to_le_bytes().to_vec()), &None));

        let mut pairs = std::collections::BTreeMap::new();
        let visit = |key: &[u8], value: &[u8]| {
            assert!(pairs.insert(key.to_vec(), value.to_vec()).is_none(), "twice");
            ControlFlow::Continue(())
        };
        ks.for_each(visit).unwrap();
        assert!(pairs.into_iter().eq(ks.iter().map(Result::unwrap).collect::<std::collections::BTreeMap<_, _>>()));

        let (from, to) = (120u32.to_be_bytes(), 180u32.to_be_bytes());
        let (from, to) = (Bound::Excluded(&from[..]), Bound::Included(&to[..]));
        let mut scanned = Vec::new();
        let visit = |key: &[u8], value: &[u8]| {
            scanned.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        if kind == hither::Kind::Hash {
            assert!(matches!(snapshot.scan_with(&ks, from, to, true, visit), Err(Error::NotOrdered(_))));
            assert!(matches!(snapshot.scan_first(&ks, 0, from, to, true, |_, _| panic!("a pair")), Err(Error::NotOrdered(_))));
            return;
        }
        snapshot.scan_with(&ks, from, to, true, visit).unwrap();
        let expected: Vec<_> = (121..=180u32).rev().map(|number| (number.to_be_bytes().to_vec(), number.to_le_bytes().to_vec())).collect();
        assert_eq!(scanned, expected);
        for limit in [0, 1, 5, 59, 60, 61] {
            scanned = Vec::new();
            let visit = |key: &[u8], value: &[u8]| {
                scanned.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            assert_eq!(snapshot.scan_first(&ks, limit, from, to, true, visit).unwrap(), limit.min(60));
            assert_eq!(scanned, expected[..limit.min(60)]);
        }
    });
}

/// A refused batch can be committed again, and its memory can be used for the next batch.
#[test]
fn a_batch_outlives_its_commit() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        let mut batch = db.batch();
        batch.require_version(&ks, b"a", None).put(&ks, b"b", b"12345");
        assert_eq!((batch.len(), batch.bytes() >= 6), (1, true));
        ks.put(b"a", b"1").unwrap();
        for _ in 0..2 {
            assert!(matches!(batch.commit(), Err(Error::PreconditionFailed { .. })));
            assert!(!ks.contains(b"b").unwrap());
        }
        ks.delete(b"a").unwrap();
        batch.commit().unwrap();
        let first = ks.get_versioned(b"b").unwrap().unwrap();
        batch.commit_with(&WriteOptions::new()).unwrap().wait().unwrap();
        let second = ks.get_versioned(b"b").unwrap().unwrap();
        assert!(first.0 == b"12345" && first.0 == second.0 && first.1 < second.1);
        batch.clear();
        assert!(batch.is_empty() && batch.bytes() == 0);
        ks.put(b"a", b"1").unwrap();
        batch.put(&ks, b"c", b"2").commit().unwrap();
        assert_eq!((ks.get(b"c").unwrap().unwrap(), ks.get_versioned(b"b").unwrap().unwrap()), (b"2".to_vec(), second));
    });
}
