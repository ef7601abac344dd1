//! Full stores, and what makes room in them again.

use hither::{Db, Durability, Error, Keyspace, KeyspaceOptions, WriteOptions};
use std::time::Duration;

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

/// Found by a program: batches of a delete and many overwrites, which take more than they give back, used up what a full
/// store keeps for deletes. Then nothing could be deleted any more, and nothing that expired went.
#[test]
fn batches_that_take_more_than_they_free_leave_room_for_deletes() {
    let later = |db: &Db, number: u64| (&[2; 8][..], db.now_ms() + 3_600_000 + number);
    // A value of seven bytes has a length of its own in its entry.
    let shorter = |_: &Db, _: u64| (&[2; 7][..], 0);
    type Overwrite<'a> = &'a dyn Fn(&Db, u64) -> (&'static [u8], u64);
    for (overwrite, ordered) in [(&later as Overwrite<'_>, false), (&later, true), (&shorter, false)] {
        let sizes = Db::builder().in_memory().capacity(4 << 20).max_capacity(4 << 20).segment_bytes(64 << 10);
        let db = sizes.space_patience(Duration::from_millis(200)).durability(Durability::Process).open().unwrap();
        let options = if ordered { KeyspaceOptions::ordered() } else { KeyspaceOptions::hash() };
        let ks = db.create_keyspace("k", options).unwrap();
        (0..1_000u32).for_each(|key| ks.put(&key.to_be_bytes()[1..], b"").unwrap());
        let stored = (0..).find(|key: &u64| ks.put(&key.to_be_bytes(), &[1; 8]).is_err()).unwrap();
        let mut next = 0;
        let refused = (0..1_000u32).find(|key| {
            let mut batch = db.batch();
            batch.delete(&ks, &key.to_be_bytes()[1..]);
            (0..50).for_each(|_| {
                let (value, expiry_ms) = overwrite(&db, next);
                batch.put_with_expiry(&ks, &(next % stored).to_be_bytes(), value, expiry_ms);
                next += 1;
            });
            batch.commit().is_err()
        });
        let deleted = (0..stored).filter(|key| ks.delete(&key.to_be_bytes()).is_ok()).count() as u64;
        assert_eq!(deleted, stored, "after {refused:?} batches");
        ks.put(b"more", &[1; 1000]).unwrap();
    }
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

/// Threads of a full node write to the next node's pool, and the statistics report that.
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

/// Regression: a store full of expired keys refused writes until the sweeper, at ten thousand keys a second, had
/// removed some.
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

/// Regression: after a sweep that found nothing, writes were refused for a second, whatever expired meanwhile.
#[test]
fn what_expires_after_a_vain_sweep_makes_room() {
    for utilization in [None, Some(50)] {
        let open = || {
            let builder = Db::builder().in_memory().capacity(4 << 20).max_capacity(4 << 20);
            utilization.into_iter().fold(builder, hither::Builder::utilization).open().unwrap()
        };
        // A slow machine needs longer to fill the store. If the vain sweep was slow, the next one may come later: the
        // sweeper rests nine times as long as a sweep took.
        let outcomes = [1_500, 6_000, 24_000].into_iter().map(|ms| {
            let ks = open().keyspace("k").unwrap();
            let refused = write_until_all_expires(&ks, Duration::from_millis(ms));
            let soon = (0..40).any(|_| {
                std::thread::sleep(Duration::from_millis(20));
                ks.put(b"last", &[2; 1024]).is_ok()
            });
            (refused > 0, soon)
        });
        assert!(outcomes.into_iter().any(|outcome| outcome == (true, true)), "it was not filled, or took nothing for a second");
    }
}

/// Puts new keys that all expire at the same time, until that time. Returns how many puts were refused.
fn write_until_all_expires(ks: &Keyspace, after: Duration) -> u64 {
    let end = std::time::SystemTime::now() + after;
    let at_end = || WriteOptions::default().ttl(end.duration_since(std::time::SystemTime::now()).unwrap_or_default());
    let (mut number, mut refused) = (0u64, 0);
    while std::time::SystemTime::now() < end {
        match ks.put_with(&number.to_be_bytes(), &[1; 1024], &at_end()) {
            Ok(_) => number += 1,
            Err(_) => refused += 1,
        }
        if refused > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    refused
}
