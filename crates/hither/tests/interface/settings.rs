//! The settings of a store and their effects, and operations with settings of their own.

use hither::{CachePolicy, CheckpointMode, Db, Durability, Error, MediumChoice, Topology, WriteOptions};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Each method of the builder changes exactly its own option.
#[test]
fn every_setting_is_its_own() {
    let builder = Db::builder().cache_bytes(11 << 20).cache_policy(CachePolicy::Lru).read_threads(3).delegate_from_bytes(77);
    let builder = builder.shortcut_from_bytes(Some(99)).shards(4).threads(5).segment_bytes(1 << 17).gc_threads(6).gc_threshold(0.25);
    let builder = builder.capacity(13 << 20).max_capacity(14 << 20).space_patience(Duration::from_secs(15)).utilization(61);
    let _ = builder.with_options(|options| {
        let cache = &options.cache;
        assert_eq!((cache.bytes, cache.policy, cache.forced), (Some(11 << 20), CachePolicy::Lru, false));
        assert_eq!((options.delegation.threads, options.delegation.from_bytes), (3, 77));
        assert_eq!((options.shortcut_from_bytes, options.shards, options.threads), (Some(99), 4, 5));
        assert_eq!((options.segment_bytes, options.gc_threads, options.gc_threshold), (1 << 17, 6, 0.25));
        assert_eq!((options.capacity, options.max_capacity, options.utilization), (13 << 20, 14 << 20, Some(61)));
        assert_eq!(options.space_patience, Duration::from_secs(15));
    });
    // Of the settings that are on or off, each change sets only one.
    let changes: [fn(hither::Builder) -> hither::Builder; 7] = [
        |builder| builder.meter(true),
        |builder| builder.cache_forced(true),
        |builder| builder.create(false),
        |builder| builder.spill(false),
        |builder| builder.separate_hot(false),
        |builder| builder.salvage(true),
        |builder| builder.in_memory(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let _ = change(Db::builder()).with_options(|options| {
            let negated = [!options.create, !options.spill, !options.separate_hot];
            let changed = [&[options.meter, options.cache.forced][..], &negated, &[options.salvage, options.in_memory]].concat();
            assert!(changed.into_iter().enumerate().all(|(number, changed)| changed == (number == at)), "change {at}");
        });
    }
}

/// Regression: a directory for all nodes beside one for node 0 was ignored.
#[test]
fn a_directory_for_all_nodes_beside_one_for_a_node_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    for both in [Db::builder().path(&a).node_path(0, &b), Db::builder().node_path(0, &b).path(&a)] {
        let refused = both.open();
        assert!(matches!(&refused, Err(Error::Config(what)) if what.contains("one directory is for all nodes")), "{:?}", refused.err());
    }
    assert!(!a.exists() && !b.exists());
}

/// Regression: a limit below the default capacity was refused with a message about a capacity that nobody had given.
#[test]
fn a_capacity_that_is_not_given_is_no_more_than_the_limit() {
    let sizes = |builder: hither::Builder| {
        let pool = builder.in_memory().topology(Arc::new(Topology::single())).open().unwrap().stats().pools.remove(0);
        (pool.capacity_bytes, pool.max_bytes)
    };
    assert_eq!(sizes(Db::builder().max_capacity(4 << 20)), (4 << 20, 4 << 20));
    assert_eq!(sizes(Db::builder()), (64 << 20, 64 << 30));
    assert_eq!(sizes(Db::builder().max_capacity(128 << 20)), (64 << 20, 128 << 20));
    let refused = Db::builder().in_memory().capacity(8 << 20).max_capacity(4 << 20).open();
    assert!(refused.is_err_and(|error| error.to_string().contains("below capacity 8388608")));
}

fn over_two_nodes() -> hither::Builder {
    Db::builder().in_memory().topology(Arc::new(Topology::emulated(2))).capacity(4 << 20).max_capacity(4 << 20)
}

#[test]
fn statistics_show_what_was_set() {
    let db = over_two_nodes().shards(2).meter(true).cache_bytes(3 << 20).cache_policy(CachePolicy::Lru).cache_forced(true).open().unwrap();
    let stats = db.stats();
    assert_eq!((stats.cache.policy, stats.cache.capacity_bytes, stats.shards), ("lru", 3 << 20, 2));
    let ks = db.keyspace("k").unwrap();
    ks.put(b"k", b"v").unwrap();
    assert!(db.stats().meter.is_some_and(|meter| meter.accesses.iter().any(|access| access.writes > 0)));
    let plain = over_two_nodes().cache_bytes(0).open().unwrap().stats();
    assert!(plain.meter.is_none() && plain.cache.capacity_bytes == 0 && plain.cache.policy != "lru");
}

/// The thread stays on its node, whose pool is full while the other one has room.
#[test]
fn without_spilling_a_full_node_is_full() {
    let topology = Arc::new(Topology::emulated(2));
    topology.bind_current_thread(0).unwrap();
    let db = over_two_nodes().topology(topology).spill(false).space_patience(Duration::ZERO).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    let error = (0..20_000u64).find_map(|key| ks.put(&key.to_be_bytes(), &[1; 400]).err());
    assert!(matches!(error, Some(Error::Full { .. })), "{error:?}");
    let pools = db.stats().pools;
    assert!(pools[0].full && !pools[0].spilling && pools[1].live_bytes == 0, "{pools:?}");
}

#[test]
fn a_scan_has_threads_of_the_other_node_read() {
    let topology = Arc::new(Topology::emulated(2));
    let db = over_two_nodes().topology(topology.clone()).read_threads(1).delegate_from_bytes(1).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    for key in 0..2_000u64 {
        topology.bind_current_thread((key % 2) as u32).unwrap();
        ks.put(&key.to_be_bytes(), &[1; 200]).unwrap();
    }
    while db.stats().delegation.threads < 2 {
        std::thread::yield_now();
    }
    assert_eq!(ks.iter().filter_map(Result::ok).count(), 2_000);
    assert!(db.stats().delegation.entries > 0, "{:?}", db.stats().delegation);
}

#[test]
fn recovery_tells_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let builder = || Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(4 << 20).checkpoints(CheckpointMode::Off);
    let db = builder().open().unwrap();
    let ks = db.keyspace("k").unwrap();
    (0..100u64).for_each(|key| ks.put(&key.to_be_bytes(), b"value").unwrap());
    drop(ks);
    db.close().unwrap();
    let most = Arc::new(AtomicU64::new(0));
    let seen = most.clone();
    let _db = builder()
        .on_progress(move |progress| {
            seen.fetch_max(progress.entries, Ordering::Relaxed);
        })
        .open()
        .unwrap();
    assert!(most.load(Ordering::Relaxed) >= 100);
}

#[test]
fn a_batch_takes_a_level_and_an_expiry() {
    let db = Db::builder().in_memory().capacity(4 << 20).open().unwrap();
    let (ks, options) = (db.keyspace("k").unwrap(), WriteOptions::new().durability(Durability::Process).expires_at_ms(1));
    let mut batch = db.batch();
    batch.put(&ks, b"gone", b"v");
    batch.put_with_expiry(&ks, b"there", b"v", 1 << 45);
    batch.commit_with(&options).unwrap().wait().unwrap();
    assert_eq!((ks.get(b"gone").unwrap(), ks.get(b"there").unwrap()), (None, Some(b"v".to_vec())));
    let mut foreign = Db::builder().in_memory().capacity(4 << 20).open().unwrap().batch();
    foreign.put(&ks, b"k", b"v");
    assert!(matches!(foreign.commit_with(&WriteOptions::new()), Err(Error::ForeignKeyspace(_))));
}

#[test]
fn a_scan_in_place_keeps_bounds_and_direction_and_ends_when_told() {
    let db = Db::builder().in_memory().capacity(4 << 20).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    (0..10u8).for_each(|key| ks.put(&[key], &[key + 100]).unwrap());
    let scan = |from, to, reverse, most: usize| {
        let mut found = Vec::new();
        let visit = |key: &[u8], value: &[u8]| {
            assert_eq!(value, [key[0] + 100]);
            found.push(key[0]);
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        ks.scan_with(from, to, reverse, visit).unwrap();
        found
    };
    let (from, to) = (Bound::Excluded(&[2u8][..]), Bound::Included(&[6u8][..]));
    assert_eq!(scan(from, to, false, 99), [3, 4, 5, 6]);
    assert_eq!(scan(from, to, true, 99), [6, 5, 4, 3]);
    assert_eq!(scan(from, to, true, 2), [6, 5]);
    assert_eq!(scan(Bound::Unbounded, Bound::Excluded(&[2][..]), false, 99), [0, 1]);
    let hash = db.create_keyspace("h", hither::KeyspaceOptions::hash()).unwrap();
    let refused = hash.scan_with(Bound::Unbounded, Bound::Unbounded, false, |_, _| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::NotOrdered(_))));
}
