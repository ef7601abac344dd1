//! Compaction by hand, and the statistics of collections.

use crate::common::{scrambled, small};
use hither_engine::{CollectorKind, Durability, Error, KeyspaceHandle, Kind, MediumChoice, Options, Store};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SEGMENT: u64 = 64 << 10;
const VALUE: [u8; 40] = [1; 40];

fn open(collector: CollectorKind, capacity: u64, gc_threads: usize) -> (Store, KeyspaceHandle) {
    let options = Options { in_memory: true, capacity, max_capacity: capacity, collector, gc_threads, background: true, ..small() };
    let store = Store::open(options).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    (store, keyspace)
}

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64) {
    store.write_wait(keyspace, &key.to_be_bytes(), Some(&VALUE)).unwrap();
}

fn go_on(_: hither_engine::CompactProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Two thirds are garbage, and keys are deleted besides. What is left in use is live, except for the threshold and what
/// is open.
#[test]
fn compaction_leaves_little_but_what_is_live() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let (store, keyspace) = open(collector, 16 << 20, 0);
        for key in (0..20_000).chain(0..20_000).chain(0..20_000) {
            put(&store, &keyspace, key);
        }
        (0..10_000u64).for_each(|key| assert!(store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap()));
        let mut told = 0;
        let report = store
            .compact(0.05, |progress| {
                assert!(progress.done >= told && progress.done <= progress.expected);
                told = progress.done;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(report.complete && told > 0 && report.segments >= told, "{report:?}");
        assert!(report.before.used_bytes > 4 * report.before.live_bytes, "{report:?}");
        // A twentieth may be garbage; the last segment of moved entries is not full.
        let most = report.after.live_bytes * 100 / 94 + 3 * SEGMENT;
        assert!(report.after.used_bytes <= most, "{collector:?}: {report:?}");
        assert_eq!(report.after.live_bytes, report.before.live_bytes);
        assert_eq!(keyspace.len(), 10_000);
        assert!(store.check().unwrap().is_sound());
        assert_eq!(store.compact(0.05, go_on).unwrap().segments, 0, "nothing more can be gained");
    }
}

/// Regression: a compaction that was called by the progress report of another waited for that one, which waited for it.
#[test]
fn a_compaction_within_a_compaction_is_refused() {
    let (store, keyspace) = open(CollectorKind::Batched, 4 << 20, 0);
    put(&store, &keyspace, 1);
    let mut inner = None;
    let outer = store.compact(0.05, |_| {
        inner = Some(store.compact(0.05, go_on));
        ControlFlow::Continue(())
    });
    assert!(outer.unwrap().complete);
    assert!(matches!(inner, Some(Err(Error::InsideCallback("compact")))));
    assert!(store.compact(0.05, go_on).unwrap().complete);
}

/// However often a store with little in it is compacted, and its checkpoint taken, it takes no more room for that.
/// Found when the fourteenth put into a store of one MiB found no space.
#[test]
fn many_compactions_take_no_room() {
    for (collector, checkpoints) in
        [(CollectorKind::Batched, false), (CollectorKind::Batched, true), (CollectorKind::Chain, false), (CollectorKind::Chain, true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            paths: vec![(None, dir.path().to_owned())],
            medium: MediumChoice::File,
            durability: Durability::Process,
            capacity: 32 * SEGMENT,
            max_capacity: 32 * SEGMENT,
            collector,
            gc_threads: 0,
            ..small()
        };
        let store = Store::open(options).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        for round in 0..40u64 {
            put(&store, &keyspace, round);
            put(&store, &keyspace, round / 2);
            let report = store.compact(0.2, go_on).unwrap();
            if checkpoints {
                store.checkpoint().unwrap();
            }
            assert!(report.after.used_bytes <= 4 * SEGMENT, "{collector:?}, round {round}, checkpoints {checkpoints}: {report:?}");
        }
        assert_eq!(keyspace.len(), 40);
        assert!(store.check().unwrap().is_sound());
    }
}

#[test]
fn compaction_ends_beside_writers_and_can_be_told_to() {
    let (store, keyspace) = open(CollectorKind::Batched, 16 << 20, 1);
    (0..60_000).for_each(|key| put(&store, &keyspace, key % 20_000));
    let stopped = store.compact(0.05, |_| ControlFlow::Break(())).unwrap();
    assert!(!stopped.complete && stopped.segments > 0, "{stopped:?}");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, keyspace, stop) = (&store, &keyspace, &stop);
        scope.spawn(move || (0..20_000).cycle().take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|key| put(store, keyspace, key)));
        let ended = store.compact(0.05, go_on);
        stop.store(true, Ordering::Relaxed);
        assert!(ended.unwrap().complete);
    });
    assert!(store.check().unwrap().is_sound());
    assert_eq!(keyspace.len(), 20_000);
}

/// Statistics compared with what is known: this many bytes were written, this many segments emptied, and none of it
/// came free.
#[test]
fn statistics_of_collections_add_up() {
    let (store, keyspace) = open(CollectorKind::Batched, 4 << 20, 1);
    let (keys, rounds) = (30_000, 8);
    (0..keys).for_each(|key| put(&store, &keyspace, key));
    let mut random = 7u64;
    for _ in keys..keys * rounds {
        random = scrambled(random);
        put(&store, &keyspace, (random >> 33) % keys);
    }
    // The collector may end a pass between the counts of the pool and those of the store.
    let settled = |stats: &hither_engine::Stats| stats.pools[0].collected_segments == stats.collections.segments;
    let looks = (0..60_000).inspect(|_| std::thread::sleep(Duration::from_millis(1)));
    let stats = looks.map(|_| store.stats()).find(settled).expect("the collector rests now and then");
    let (pool, done) = (&stats.pools[0], &stats.collections);
    let entry = stats.pools[0].usage.live_bytes / keys;
    let written = entry * keys * rounds;
    assert!((written..written + written / 50).contains(&pool.appended_bytes), "{} written, {pool:?}", written);
    assert_eq!((pool.collected_segments, pool.collected_bytes), (done.segments, done.segments * SEGMENT));
    assert!(done.segments > 50 && pool.collector_cpu_ns > 0, "{pool:?}");
    assert!(pool.copied_bytes >= done.moved_bytes / 2 && pool.copied_bytes <= done.moved_bytes * 2, "{pool:?}, {done:?}");
    assert!(pool.write_amplification() > 1.0 && pool.collected_per_cpu_second() > 1e6, "{pool:?}");
    assert!((pool.utilization() - (entry * keys) as f64 / (4 << 20) as f64).abs() < 0.01, "{pool:?}");
    assert!(stats.garbage_info_bytes > 0 && stats.garbage_info_bytes <= stats.dram_bytes, "{stats:?}");
    assert!(done.stalls == 0 || done.stall_ms <= 60_000);
}
