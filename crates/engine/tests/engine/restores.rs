//! Files of a store that were replaced by older copies, a clock that jumps, and other settings at the next opening.

use crate::common::crash;
use hither_engine::{
    Batch, CheckpointMode, CollectorKind, Durability, Error, ErrorKind, Expiry, Kind, MediumChoice, Options, OrderedKind, RestartSource,
    ScanRange, Store, WriteOptions,
};
use hither_pmem::{FailAt, Failpoints, OpenOptions, Pool};
use hither_topology::Topology;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SEGMENT: u64 = 64 << 10;

fn options(dir: &Path, nodes: u32) -> Options {
    let topology = Arc::new(Topology::emulated(nodes as usize));
    topology.bind_current_thread(0).unwrap();
    Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        durability: Durability::Process,
        capacity: u64::from(nodes) * 16 * SEGMENT,
        max_capacity: u64::from(nodes) * 64 * SEGMENT,
        segment_bytes: SEGMENT,
        topology: Some(topology),
        background: false,
        ..Options::default()
    }
}

fn pool(dir: &Path, node: u32) -> PathBuf {
    dir.join(format!("node{node}.hither"))
}

fn put_on(store: &Store, options: &Options, node: u32, key: &[u8]) {
    options.topology.as_ref().unwrap().bind_current_thread(node).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    store.write_wait(&keyspace, key, Some(b"value")).unwrap();
}

fn has(store: &Store, key: &[u8]) -> bool {
    store.get_with(&store.open_keyspace("k").unwrap(), key, |_| ()).unwrap().is_some()
}

/// An older copy of one pool is put beside a newer pool. What was acknowledged since must not be missing without a
/// word.
#[test]
fn a_pool_older_than_the_others_is_refused_by_name() {
    for (node, crashes, checkpoint) in [(0, false, true), (1, false, true), (1, true, true), (0, true, false), (1, false, false)] {
        let (dir, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let options = options(dir.path(), 2);
        let store = Store::open(options.clone()).unwrap();
        store.create_keyspace("k", Kind::Hash).unwrap();
        store.close().unwrap();
        drop(store);
        let copy = aside.path().join("copy");
        std::fs::copy(pool(dir.path(), node), &copy).unwrap();
        let store = Store::open(options.clone()).unwrap();
        (0..2).for_each(|node| put_on(&store, &options, node, &[node as u8]));
        store.sync().unwrap();
        if crashes {
            // What a crash leaves: the files as they are while the store is open.
            let other = pool(dir.path(), 1 - node);
            std::fs::copy(&other, aside.path().join("other")).unwrap();
            drop(store);
            std::fs::copy(aside.path().join("other"), &other).unwrap();
        } else {
            drop(store);
        }
        std::fs::copy(&copy, pool(dir.path(), node)).unwrap();
        if !checkpoint {
            // With the checkpoint, or what came of it, this would be another case.
            let _ = std::fs::remove_file(dir.path().join("checkpoint.hither"));
        }
        let refused = Store::open(options.clone()).err().expect("it opens as if nothing were missing");
        assert_eq!(refused.kind(), ErrorKind::WrongPool, "{refused}");
        assert!(refused.to_string().starts_with(&format!("pool {} is an older copy", pool(dir.path(), node).display())), "{refused}");
        let store = Store::open(Options { salvage: true, ..options.clone() }).unwrap();
        assert!(store.recovery().salvaged.iter().any(|what| what.contains("older copy")), "{:?}", store.recovery().salvaged);
        assert_eq!([has(&store, &[node as u8]), has(&store, &[1 - node as u8])], [false, true]);
        // What is missing may come back some day: what is written now is newer, and a checkpoint would hide it.
        put_on(&store, &options, 0, b"since");
        let (newest, failure) = (store.stats().version, store.stats().checkpoints.failure);
        assert!(newest > 1 << 40 && failure.contains("salvage"), "{newest} {failure:?}");
        drop(store);
        assert!(has(&Store::open(options).unwrap(), &[1 - node as u8]), "from then on the pools are of one store again");
    }
}

/// Regression: one opening was cut short between its two steps of counting. The next opening went on with the count of
/// that one, so a pool that was copied in between passed for one of the next opening.
#[test]
fn a_pool_copied_after_an_opening_that_was_cut_short_is_older_than_the_next() {
    for odd in [3, 41] {
        let (dir, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let options = options(dir.path(), 2);
        let store = Store::open(options.clone()).unwrap();
        store.create_keyspace("k", Kind::Hash).unwrap();
        drop(store);
        for node in 0..2 {
            let file = OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() };
            Pool::open(&pool(dir.path(), node), &file).unwrap().mark_open(odd).unwrap();
        }
        let copy = aside.path().join("copy");
        std::fs::copy(pool(dir.path(), 1), &copy).unwrap();
        let store = Store::open(options.clone()).unwrap();
        put_on(&store, &options, 1, b"key");
        drop(store);
        std::fs::copy(&copy, pool(dir.path(), 1)).unwrap();
        std::fs::remove_file(dir.path().join("checkpoint.hither")).unwrap();
        let refused = Store::open(options).err().expect("it opens as if nothing were missing");
        assert!(refused.kind() == ErrorKind::WrongPool && refused.to_string().contains("is an older copy"), "{refused}");
    }
}

/// Regression: an opening that did not use a checkpoint because a pool was older made the pools look new before it
/// removed the checkpoint. If it was cut short in between, the next opening used the checkpoint.
#[test]
fn a_checkpoint_that_does_not_count_never_counts_again() {
    let (dir, aside, points) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Failpoints::new());
    let open_in = |dir: &Path| Options { failpoints: Some(points.clone()), ..options(dir, 2) };
    let options = open_in(dir.path());
    let store = Store::open(options.clone()).unwrap();
    store.create_keyspace("k", Kind::Hash).unwrap();
    put_on(&store, &options, 1, b"first");
    let old = aside.path().join("node1.hither");
    std::fs::copy(pool(dir.path(), 1), &old).unwrap();
    (0..2).for_each(|node| put_on(&store, &options, node, &[node as u8]));
    assert!(store.checkpoint().unwrap());
    put_on(&store, &options, 0, b"last");
    // What a crash leaves, except for one pool, which was put back as it had been.
    let left = crash(dir.path());
    std::fs::copy(&old, pool(left.path(), 1)).unwrap();
    drop(store);
    points.arm("checkpoint_remove", FailAt { skip: 0, count: 1, errno: 5 });
    let cut_short = Store::open(open_in(left.path())).err().expect("the checkpoint cannot be removed");
    assert!(cut_short.to_string().contains("cannot remove a checkpoint"), "{cut_short}");
    let store = Store::open(open_in(left.path())).unwrap();
    let recovery = store.recovery();
    assert!(recovery.source == RestartSource::Scan && recovery.checkpoint_refused.contains("newer than the pools"), "{recovery:?}");
    assert_eq!([&b"first"[..], &[0], &[1], b"last"].map(|key| has(&store, key)), [true, true, false, true]);
}

fn copy_pools(from: &Path, to: &Path) {
    for node in 0..2 {
        std::fs::copy(pool(from, node), pool(to, node)).unwrap();
    }
}

/// All pools of an earlier moment are a backup, and open.
#[test]
fn a_whole_older_store_opens() {
    let (dir, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = options(dir.path(), 2);
    let store = Store::open(options.clone()).unwrap();
    store.create_keyspace("k", Kind::Hash).unwrap();
    put_on(&store, &options, 1, b"old");
    drop(store);
    copy_pools(dir.path(), aside.path());
    let store = Store::open(options.clone()).unwrap();
    put_on(&store, &options, 0, b"new");
    drop(store);
    copy_pools(aside.path(), dir.path());
    let store = Store::open(options).unwrap();
    assert_eq!([has(&store, b"old"), has(&store, b"new")], [true, false]);
}

/// Page 0 of an earlier moment knows of fewer segments than there are: their content would be gone without a word.
#[test]
fn an_older_page_0_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), 1);
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    drop(store);
    let page = std::fs::read(pool(dir.path(), 0)).unwrap()[..4096].to_vec();
    let store = Store::open(options.clone()).unwrap();
    drop(keyspace);
    let keyspace = store.open_keyspace("k").unwrap();
    let mut key = 0u64;
    // Growth is ahead of use.
    while store.stats().pools[0].usage.segments < 40 {
        key += 1;
        store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 1000])).unwrap();
    }
    drop(store);
    let mut bytes = std::fs::read(pool(dir.path(), 0)).unwrap();
    bytes[..4096].copy_from_slice(&page);
    std::fs::write(pool(dir.path(), 0), bytes).unwrap();
    let refused = Store::open(options).err().expect("it opens without the segments that it does not know");
    assert!(matches!(&refused, Error::Damaged(what) if what.contains("page 0 is an older copy")), "{refused}");
}

fn clock_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

const HOUR_MS: u64 = 3_600_000;

/// Makes the store remember a time, as a run under a wrong clock does.
fn remember(dir: &Path, ms: u64) {
    let pool = Pool::open(&pool(dir, 0), &OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() }).unwrap();
    pool.set_clock_ms(ms).unwrap();
}

/// A clock that was ahead was set right. What has expired stays so, everything else stays, and the report says that the
/// times differ. A key written with an expiry counted from the store's time is there.
#[test]
fn a_clock_that_is_set_back_revives_nothing_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), 1);
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    let now = clock_ms();
    let put = |store: &Store, key: &[u8], expiry: Option<Expiry>| {
        let options = WriteOptions { expiry, ..WriteOptions::new() };
        let keyspace = store.open_keyspace("k").unwrap();
        let _ = store.write(&keyspace, key, Some(b"v"), hither_engine::Condition::None, &options).unwrap();
    };
    put(&store, b"never", None);
    put(&store, b"soon", Some(Expiry::AtMs(now + HOUR_MS)));
    put(&store, b"late", Some(Expiry::AtMs(now + 3 * HOUR_MS)));
    drop(keyspace);
    assert!(store.recovery().clock_ahead_ms == 0 && has(&store, b"soon"));
    drop(store);
    remember(dir.path(), now + 2 * HOUR_MS);
    for _ in 0..2 {
        let store = Store::open(options.clone()).unwrap();
        let ahead = store.recovery().clock_ahead_ms;
        assert!((HOUR_MS..=2 * HOUR_MS).contains(&ahead), "{ahead}");
        store.sweep_expired();
        assert_eq!([&b"never"[..], b"soon", b"late"].map(|key| has(&store, key)), [true, false, true]);
        // Counted from the store's time: by the machine's clock the key would have expired.
        put(&store, b"new", Some(Expiry::After(Duration::from_secs(60))));
        assert!(has(&store, b"new"));
        assert!(store.check().unwrap().is_sound());
    }
    // A clock that jumps ahead ends what has expired by its time, and nothing else.
    remember(dir.path(), now + 4 * HOUR_MS);
    let store = Store::open(options).unwrap();
    assert_eq!([&b"never"[..], b"soon", b"late", b"new"].map(|key| has(&store, key)), [true, false, false, false]);
}

/// Shards, threads, collectors and indexes are choices of an opening, not of the store.
#[test]
fn every_opening_may_choose_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let rounds = [
        (1, 1, CollectorKind::Batched, OrderedKind::BTree, 0),
        (16, 2, CollectorKind::Chain, OrderedKind::Learned, 2),
        (2, 8, CollectorKind::Chain, OrderedKind::BTree, 0),
        (32, 1, CollectorKind::Batched, OrderedKind::Learned, 1),
        (1, 3, CollectorKind::Chain, OrderedKind::BTree, 4),
        (8, 1, CollectorKind::Batched, OrderedKind::BTree, 1),
    ];
    for (round, (shards, threads, collector, ordered_index, gc_threads)) in rounds.into_iter().enumerate() {
        let background = gc_threads > 0;
        let options = Options {
            shards,
            threads,
            collector,
            ordered_index,
            gc_threads,
            background,
            max_capacity: 1024 * SEGMENT,
            ..options(dir.path(), 2)
        };
        let store = Store::open(options.clone()).unwrap();
        let keyspace = store.open_keyspace("k").unwrap_or_else(|| store.create_keyspace("k", Kind::Ordered).unwrap());
        let shown = |store: &Store| {
            let (mut found, all) = (
                BTreeMap::new(),
                ScanRange {
                    from: Bound::Unbounded,
                    to: Bound::Unbounded,
                    direction: hither_engine::Direction::Forward,
                    expect: usize::MAX,
                },
            );
            let note = |key: &[u8], value: &[u8]| {
                found.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            };
            store.scan(&store.open_keyspace("k").unwrap(), &all, note).unwrap();
            found
        };
        assert!(shown(&store) == expected, "round {round} begins with what was there");
        for number in 0..600u32 {
            options.topology.as_ref().unwrap().bind_current_thread(number % 2).unwrap();
            let key = format!("key {}", number * 7 % 400).into_bytes();
            if (number as usize + round).is_multiple_of(5) {
                store.write_wait(&keyspace, &key, None).unwrap();
                expected.remove(&key);
            } else if number.is_multiple_of(11) {
                let other = format!("other {number}").into_bytes();
                let value = format!("{round} {number}").into_bytes();
                let mut batch = Batch::default();
                batch.put(&keyspace, &key, &value, 0);
                batch.put(&keyspace, &other, &value, 0);
                let _ = store.commit(&batch, &WriteOptions::new()).unwrap();
                expected.insert(key, value.clone());
                expected.insert(other, value);
            } else {
                let value = format!("{round} {number} ").repeat(1 + number as usize % 90).into_bytes();
                store.write_wait(&keyspace, &key, Some(&value)).unwrap();
                expected.insert(key, value);
            }
            if number.is_multiple_of(150) {
                store.reclaim().unwrap();
            }
        }
        let found = shown(&store);
        let differs = |key: &&Vec<u8>| found.get(*key) != expected.get(*key);
        let wrong: Vec<_> = expected.keys().chain(found.keys()).filter(differs).map(|key| String::from_utf8_lossy(key)).collect();
        assert!(wrong.is_empty(), "round {round}: {wrong:?}");
        let checked = store.check().unwrap();
        assert!(checked.is_sound(), "round {round}: {:?}", checked.problems);
        if round % 2 == 0 {
            store.close().unwrap();
        }
    }
}

/// Bytes that a crash has torn in a segment that stays open count in no total. So a checkpoint from before the crash
/// does not show where writing may go on.
///
/// Regression: after an orderly close that wrote nothing, the older checkpoint was taken for whole, and writing went on
/// over the torn bytes. The segment was damaged when it was sealed.
#[test]
fn torn_bytes_are_found_again_after_a_close_that_wrote_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = |dir: &Path| Options { shards: 1, ..options(dir, 1) };
    let write = |store: &Store, key: &str, bytes: usize| {
        store.write_wait(&store.open_keyspace("k").unwrap(), key.as_bytes(), Some(&vec![b'v'; bytes])).unwrap();
    };
    let store = Store::open(options(dir.path())).unwrap();
    store.create_keyspace("k", Kind::Hash).unwrap();
    (0..20).for_each(|number| write(&store, &format!("key {number:02}"), 40));
    store.close().unwrap();
    drop(store);
    let store = Store::open(options(dir.path())).unwrap();
    assert_eq!(store.recovery().source, RestartSource::Clean);
    let torn = crash(dir.path());
    drop(store);
    tear_behind(&pool(torn.path(), 0), b"key 19");
    for _ in 0..2 {
        let store = Store::open(options(torn.path())).unwrap();
        assert_eq!((store.recovery().torn, store.recovery().keys), (1, 20));
        assert!(has(&store, b"key 03"));
        store.close().unwrap();
    }
    let store = Store::open(options(torn.path())).unwrap();
    (0..30).for_each(|number| write(&store, &format!("another {number}"), 5_000));
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    drop(store);
    let store = Store::open(Options { checkpoints: CheckpointMode::Off, ..options(torn.path()) }).unwrap();
    assert_eq!(store.recovery().keys, 50);
}

/// Leaves bytes behind the entry of a key, as a write under way may have done.
fn tear_behind(pool: &Path, key: &[u8]) {
    let mut image = std::fs::read(pool).unwrap();
    let at = image.windows(key.len()).rposition(|bytes| bytes == key).expect("the key is there").next_multiple_of(64);
    image[at + 256..at + 20_000].fill(0xab);
    std::fs::write(pool, image).unwrap();
}
