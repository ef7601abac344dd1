//! Scans that are delegated to threads of other nodes: they return the same as a plain scan, whatever happens
//! meanwhile; their reads are local by the meter; no thread is left.

use hither_engine::{
    Condition, DelegationSetting, Direction, Durability, KeyspaceHandle, Kind, MediumChoice, Options, OrderedKind, ScanRange, Snapshot,
    Store, WriteOptions,
};
use hither_topology::Topology;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Tests here count threads, so they run one at a time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

const EVERYTHING: ScanRange<'_> =
    ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: usize::MAX };

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn options(nodes: usize) -> Options {
    Options {
        in_memory: true,
        topology: Some(Arc::new(Topology::emulated(nodes))),
        meter: true,
        capacity: 64 << 20,
        durability: Durability::Process,
        delegation: DelegationSetting { threads: 2, from_bytes: 1 },
        ..Options::default()
    }
}

/// An open store whose read threads are there.
fn open(options: Options) -> (Store, KeyspaceHandle) {
    let threads = options.delegation.threads as u64 * u64::from(options.topology.as_ref().unwrap().node_count());
    let store = Store::open(options).unwrap();
    while store.stats().delegation.threads != threads {
        std::thread::sleep(Duration::from_millis(1));
    }
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    (store, keyspace)
}

fn bind(topology: &Topology, node: u64) {
    topology.bind_current_thread(node as u32).unwrap();
}

fn put(store: &Store, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8]) {
    store.write_wait(keyspace, key, Some(value)).unwrap();
}

fn collect(into: &mut Pairs) -> impl FnMut(&[u8], &[u8]) -> ControlFlow<()> + '_ {
    |key, value| {
        into.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    }
}

fn scan(store: &Store, keyspace: &KeyspaceHandle, range: &ScanRange<'_>) -> Pairs {
    let mut pairs = Vec::new();
    store.scan(keyspace, range, collect(&mut pairs)).unwrap();
    pairs
}

fn scan_snapshot(snapshot: &Snapshot, keyspace: &KeyspaceHandle, range: &ScanRange<'_>) -> Pairs {
    let mut pairs = Vec::new();
    snapshot.scan(keyspace, range, collect(&mut pairs)).unwrap();
    pairs
}

fn model_scan(model: &BTreeMap<Vec<u8>, Vec<u8>>, range: &ScanRange<'_>) -> Pairs {
    let pairs = model.range::<[u8], _>((range.from, range.to)).map(|(key, value)| (key.clone(), value.clone()));
    if range.direction == Direction::Forward { pairs.collect() } else { pairs.rev().collect() }
}

/// Keys of eight bytes and others, with shared beginnings.
fn key(i: u64) -> Vec<u8> {
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    match i % 3 {
        0 => mixed.to_be_bytes().to_vec(),
        1 => [b"a common beginning ".as_slice(), &mixed.to_be_bytes()].concat(),
        _ => mixed.to_be_bytes()[..1 + (i % 7) as usize].to_vec(),
    }
}

/// Empty, short, plain, long, and beyond what a reference's size tag holds.
fn value(i: u64, round: u64) -> Vec<u8> {
    let len = match i % 50 {
        0 => 0,
        1..10 => 8,
        10..40 => (i * 37 % 900) as usize,
        40..49 => (i * 37 % 9_000) as usize,
        _ if i.is_multiple_of(1_000) => 600_000,
        _ => 70_000,
    };
    (0..len).map(|at| (i + round + at as u64 / 8) as u8).collect()
}

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn ranges(model: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<Bounds> {
    let keys: Vec<&Vec<u8>> = model.keys().collect();
    let at = |share: usize| keys[keys.len() * share / 100].clone();
    vec![
        (Bound::Unbounded, Bound::Unbounded),
        (Bound::Included(at(10)), Bound::Excluded(at(90))),
        (Bound::Excluded(at(30)), Bound::Included(at(31))),
        (Bound::Unbounded, Bound::Included(at(50))),
        (Bound::Excluded(at(99)), Bound::Unbounded),
    ]
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Every range, in both directions, of the current state and from a snapshot after which two thirds changed, compared
/// with a model.
#[test]
fn a_delegated_scan_returns_what_a_plain_one_does() {
    let _turn = turn();
    for ordered_index in [OrderedKind::BTree, OrderedKind::Learned] {
        for nodes in [2, 4] {
            let options = Options { ordered_index, ..options(nodes) };
            let topology = options.topology.clone().unwrap();
            let (store, keyspace) = open(options);
            let mut model = BTreeMap::new();
            let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64 + 1;
            for i in 0..4_000 {
                bind(&topology, i % nodes as u64);
                put(&store, &keyspace, &key(i), &value(i, 0));
                model.insert(key(i), value(i, 0));
                let short_lived = [b"expired ".as_slice(), &key(i)].concat();
                if i % 5 == 0 {
                    let write = WriteOptions::new().expires_at_ms(soon);
                    store.write(&keyspace, &short_lived, Some(&[1; 100]), Condition::None, &write).unwrap().2.wait().unwrap();
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            let (before, snapshot) = (model.clone(), store.snapshot());
            for i in 0..4_000u64 {
                bind(&topology, (i + 1) % nodes as u64);
                match i % 3 {
                    0 => put(&store, &keyspace, &key(i), &value(i, 1)),
                    1 => drop(store.write_wait(&keyspace, &key(i), None).unwrap()),
                    _ => continue,
                }
                if i % 3 == 0 {
                    model.insert(key(i), value(i, 1))
                } else {
                    model.remove(&key(i))
                };
            }
            bind(&topology, 0);
            let delegated = store.stats().delegation.entries;
            for (from, to) in ranges(&model) {
                for direction in [Direction::Forward, Direction::Backward] {
                    let range = ScanRange { from: as_slice(&from), to: as_slice(&to), direction, expect: usize::MAX };
                    assert!(scan(&store, &keyspace, &range) == model_scan(&model, &range), "{range:?} on {nodes} nodes");
                    assert!(scan_snapshot(&snapshot, &keyspace, &range) == model_scan(&before, &range), "snapshot, {range:?}");
                }
            }
            assert!(store.stats().delegation.entries > delegated + 10_000, "scans were delegated");
        }
    }
}

/// Counts the reads of `act`: those of node 0 in node 1's pool, and those of node 1 in its own.
fn reads(store: &Store, act: impl FnOnce()) -> (u64, u64) {
    let before = store.stats().meter.unwrap();
    act();
    let counted = store.stats().meter.unwrap().since(&before);
    (counted.pair(0, 1).reads, counted.pair(1, 1).reads)
}

#[test]
fn what_is_delegated_is_read_locally() {
    let _turn = turn();
    const KEYS: u64 = 10_000;
    for threads in [0, 1, 2] {
        // Checkpoints and collectors read the log, too.
        let checkpoints = hither_engine::CheckpointMode::Off;
        let options = Options { delegation: DelegationSetting { threads, from_bytes: 64 }, gc_threads: 0, checkpoints, ..options(2) };
        let topology = options.topology.clone().unwrap();
        let (store, keyspace) = open(options);
        for i in 0..KEYS {
            bind(&topology, i % 2);
            put(&store, &keyspace, &i.to_be_bytes(), &[i as u8; 300]);
        }
        bind(&topology, 0);
        let snapshot = store.snapshot();
        for live in [true, false] {
            let (remote, delegated) = reads(&store, || {
                let pairs = if live { scan(&store, &keyspace, &EVERYTHING) } else { scan_snapshot(&snapshot, &keyspace, &EVERYTHING) };
                assert_eq!(pairs.len(), KEYS as usize);
            });
            if threads == 0 {
                assert!(remote >= KEYS / 2 && delegated == 0, "without threads the scan reads all: {remote}, {delegated}");
            } else {
                // The head of the scan is read directly.
                assert!(remote <= 64, "{remote} remote reads of {} entries", KEYS / 2);
                assert!(delegated >= KEYS / 2 - 16, "{delegated}");
            }
        }
    }
}

#[test]
fn a_scan_that_ends_early_asks_nobody() {
    let _turn = turn();
    let options = options(2);
    let topology = options.topology.clone().unwrap();
    let (store, keyspace) = open(options);
    bind(&topology, 1);
    (0..1_000u64).for_each(|i| put(&store, &keyspace, &i.to_be_bytes(), &[1; 500]));
    bind(&topology, 0);
    for length in [1, 16] {
        let mut left = length;
        let stop = |_: &[u8], _: &[u8]| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        store.scan(&keyspace, &EVERYTHING, stop).unwrap();
    }
    assert_eq!(store.stats().delegation.batches, 0);
    assert_eq!(scan(&store, &keyspace, &EVERYTHING).len(), 1_000);
    assert!(store.stats().delegation.entries >= 900);
}

#[test]
fn it_is_off_where_it_cannot_help() {
    let _turn = turn();
    let with = |options: Options, nodes: u64, value: usize| {
        let topology = options.topology.clone().unwrap();
        let store = Store::open(options).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
        for i in 0..500u64 {
            bind(&topology, i % nodes);
            put(&store, &keyspace, &i.to_be_bytes(), &vec![1; value]);
        }
        bind(&topology, 0);
        while store.stats().delegation.threads == 0 && value < 100 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(scan(&store, &keyspace, &EVERYTHING).len(), 500);
        store.stats().delegation
    };
    let nothing = hither_engine::DelegationStats::default();
    assert_eq!(with(options(1), 1, 500), nothing);
    assert_eq!(with(Options { delegation: DelegationSetting { threads: 0, from_bytes: 1 }, ..options(2) }, 2, 500), nothing);
    assert_eq!(with(Options { delegation: DelegationSetting { threads: 2, from_bytes: 0 }, ..options(2) }, 2, 500), nothing);
    assert_eq!(with(Options { background: false, ..options(2) }, 2, 500), nothing);
    assert_eq!(with(Options { delegation: DelegationSetting::default(), ..options(2) }, 2, 500), nothing, "it must be asked for");
    let small = with(Options { delegation: DelegationSetting { threads: 2, from_bytes: 512 }, ..options(2) }, 2, 8);
    assert_eq!((small.threads > 0, small.batches), (true, 0), "small entries are not worth it");
}

/// Scans beside writers and collectors that move the entries and reuse their segments: every value belongs to its key.
#[test]
fn scans_are_right_while_segments_are_reused() {
    let _turn = turn();
    const KEYS: u64 = 4_000;
    let options = Options { capacity: 8 << 20, max_capacity: 8 << 20, segment_bytes: 64 << 10, shards: 2, ..options(2) };
    let topology = options.topology.clone().unwrap();
    let (store, keyspace) = open(options);
    let value_of = |i: u64, round: u64| [i.to_le_bytes(), round.to_le_bytes()].concat().repeat(20);
    for i in 0..KEYS {
        bind(&topology, i % 2);
        put(&store, &keyspace, &i.to_be_bytes(), &value_of(i, 0));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in 0..2u64 {
            let (store, keyspace, topology, stop) = (&store, &keyspace, &topology, &stop);
            scope.spawn(move || {
                bind(topology, node);
                for round in 1..=60 {
                    (node..KEYS).step_by(2).for_each(|i| put(store, keyspace, &i.to_be_bytes(), &value_of(i, round)));
                }
                stop.store(true, Ordering::Release);
            });
        }
        bind(&topology, 0);
        let snapshot = store.snapshot();
        let first = scan_snapshot(&snapshot, &keyspace, &EVERYTHING);
        while !stop.load(Ordering::Acquire) {
            let mut next = 0u64;
            store
                .scan(&keyspace, &EVERYTHING, |key, value| {
                    assert_eq!(key, next.to_be_bytes(), "every key once, in order");
                    let round = u64::from_le_bytes(value[8..16].try_into().unwrap());
                    assert!(value == value_of(next, round), "key {next}: a value that was never written");
                    next += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(next, KEYS);
        }
        assert!(scan_snapshot(&snapshot, &keyspace, &EVERYTHING) == first, "a snapshot does not change");
    });
    let stats = store.stats();
    assert!(stats.pools.iter().map(|pool| pool.usage.reused).sum::<u64>() > 0, "segments were reused");
    assert!(stats.delegation.entries > KEYS, "scans were delegated");
}

#[test]
fn a_panic_in_a_scan_leaves_the_read_threads_at_work() {
    let _turn = turn();
    let options = options(2);
    let topology = options.topology.clone().unwrap();
    let (store, keyspace) = open(options);
    bind(&topology, 1);
    (0..2_000u64).for_each(|i| put(&store, &keyspace, &i.to_be_bytes(), &[1; 300]));
    bind(&topology, 0);
    for after in [0, 17, 100] {
        let mut seen = 0;
        let scan = std::panic::AssertUnwindSafe(|| {
            store.scan(&keyspace, &EVERYTHING, |_, _| {
                assert!(seen < after, "on purpose");
                seen += 1;
                ControlFlow::Continue(())
            })
        });
        assert!(std::panic::catch_unwind(scan).is_err());
    }
    assert_eq!(scan(&store, &keyspace, &EVERYTHING).len(), 2_000);
    assert_eq!(store.stats().delegation.threads, 4);
    assert!(!hither_sync::epoch::is_pinned());
}

/// Number of threads of this process that read for scans.
fn read_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "hither-read").count()
}

/// A thread that was joined may still be listed for a moment.
#[track_caller]
fn assert_read_threads(count: usize) {
    let end = Instant::now() + Duration::from_secs(10);
    while read_threads() != count {
        assert!(Instant::now() < end, "{} read threads", read_threads());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn close_joins_the_threads_and_scans_go_on() {
    let _turn = turn();
    assert_read_threads(0);
    for close in [true, false] {
        let options = options(2);
        let topology = options.topology.clone().unwrap();
        let (store, keyspace) = open(options);
        assert_read_threads(4);
        bind(&topology, 1);
        (0..3_000u64).for_each(|i| put(&store, &keyspace, &i.to_be_bytes(), &[1; 300]));
        bind(&topology, 0);
        let snapshot = store.snapshot();
        if close {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        bind(&topology, 0);
                        while !stop.load(Ordering::Acquire) {
                            assert_eq!(scan(&store, &keyspace, &EVERYTHING).len(), 3_000);
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(20));
                store.close().unwrap();
                stop.store(true, Ordering::Release);
            });
            assert_read_threads(0);
            assert_eq!(store.stats().delegation.threads, 0);
            assert_eq!(scan(&store, &keyspace, &EVERYTHING).len(), 3_000);
        }
        drop(store);
        assert_read_threads(0);
        assert_eq!(scan_snapshot(&snapshot, &keyspace, &EVERYTHING).len(), 3_000, "a snapshot outlives the store");
    }
}

/// What a scan returns at level sync is durable, also if another thread read it. The first entries of a scan are read
/// directly, and what they wait for covers everything that was written before. So an entry that comes later is
/// overwritten after those were read.
#[test]
fn a_delegated_read_waits_for_durability() {
    let _turn = turn();
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let options = Options {
        in_memory: false,
        paths: directories.iter().enumerate().map(|(node, dir)| (Some(node as u32), dir.path().to_owned())).collect(),
        medium: MediumChoice::File,
        durability: Durability::Sync,
        gc_threads: 0,
        checkpoints: hither_engine::CheckpointMode::Off,
        ..options(2)
    };
    let topology = options.topology.clone().unwrap();
    let (store, keyspace) = open(options);
    let relaxed = WriteOptions::new().durability(Durability::Process);
    let write = |i: u64, value: u8| {
        bind(&topology, 1);
        let written = store.write(&keyspace, &i.to_be_bytes(), Some(&[value; 300]), Condition::None, &relaxed).unwrap();
        bind(&topology, 0);
        written.2.version()
    };
    let newest = (0..100).map(|i| write(i, 1)).max().unwrap();
    let (mut overwritten, mut met) = (0, false);
    store
        .scan(&keyspace, &EVERYTHING, |key, value| {
            let durable = store.stats().durable_version;
            assert!(durable >= newest, "{durable} of {newest}");
            if key == 5u64.to_be_bytes() {
                // Nobody asks for this write to be durable, but the background may commit at any time.
                while store.stats().durable_version >= overwritten {
                    overwritten = write(50, 2);
                }
            }
            if key == 50u64.to_be_bytes() {
                assert_eq!(value, [2; 300], "the scan comes to the new entry");
                assert!(durable >= overwritten, "passed on at {durable}, before its version {overwritten} was durable");
                met = true;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(met && overwritten > newest);
    assert!(store.stats().delegation.entries >= 80);
}
