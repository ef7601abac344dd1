//! Placement: no foreground operation writes to another node's memory. The access meter asserts this, operation by
//! operation, on one to four emulated nodes.
//!
//! The stores have no background threads: what the meter counts is what the operation did. What is not foreground work
//! is left out: collection (it marks the ancestors of what it moves, wherever they lie), and the catalogue and the
//! clock, which lie in node 0's pool. The leader of a commit does the late flush of relaxed writes, for all nodes; it
//! stores nothing, and that is asserted, too.

use crate::common::{on_tmpfs, scrambled, skipped};
use hither_engine::{
    Batch, Condition, Durability, Error, KeyspaceHandle, Kind, MediumChoice, MeterReport, Options, ScanRange, Store, WriteOptions,
};
use hither_topology::Topology;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

const SEGMENT: u64 = 64 << 10;
/// Keys written from each node, in each keyspace.
const KEYS: u64 = 300;

struct World {
    store: Store,
    topology: Arc<Topology>,
    nodes: u32,
    ordered: KeyspaceHandle,
    hash: KeyspaceHandle,
    _dir: Option<tempfile::TempDir>,
}

/// The key with this number; the numbers of node `n`'s keys begin at `n * 10_000`.
fn key(number: u64) -> Vec<u8> {
    if number.is_multiple_of(5) { format!("a longer key {number}").into_bytes() } else { number.to_be_bytes().to_vec() }
}

impl World {
    /// A store over `nodes` nodes, with keys from each of them, on media that need flushes or not.
    fn new(nodes: u32, flushed: bool) -> World {
        let dir = flushed.then(|| tempfile::tempdir_in("/dev/shm").unwrap());
        let topology = Arc::new(Topology::emulated(nodes as usize));
        topology.bind_current_thread(0).unwrap();
        let store = Store::open(Options {
            paths: dir.iter().map(|dir| (None, dir.path().to_owned())).collect(),
            in_memory: dir.is_none(),
            medium: if dir.is_some() { MediumChoice::ForcedDax } else { MediumChoice::Auto },
            capacity: u64::from(nodes) * (4 << 20),
            max_capacity: u64::from(nodes) * (8 << 20),
            segment_bytes: SEGMENT,
            topology: Some(topology.clone()),
            meter: true,
            background: false,
            ..Options::default()
        })
        .unwrap();
        let ordered = store.create_keyspace("ordered", Kind::Ordered).unwrap();
        let hash = store.create_keyspace("hash", Kind::Hash).unwrap();
        let world = World { store, topology, nodes, ordered, hash, _dir: dir };
        for node in 0..nodes {
            world.bind(node);
            for number in world.keys_of(node) {
                for space in [&world.ordered, &world.hash] {
                    world.store.write_wait(space, &key(number), Some(&number.to_le_bytes())).unwrap();
                }
            }
        }
        world
    }

    fn bind(&self, node: u32) {
        self.topology.bind_current_thread(node).unwrap();
    }

    fn keys_of(&self, node: u32) -> std::ops::Range<u64> {
        u64::from(node) * 10_000..u64::from(node) * 10_000 + KEYS
    }

    /// A key of each node, chosen by `turn`.
    fn one_of_each(&self, turn: u64) -> Vec<Vec<u8>> {
        (0..self.nodes).map(|node| key(self.keys_of(node).start + turn % KEYS)).collect()
    }

    fn meter(&self) -> MeterReport {
        self.store.stats().meter.expect("the meter is on")
    }

    /// Runs an operation on `node` and asserts that it wrote nowhere else.
    fn local(&self, what: &str, node: u32, operation: impl FnOnce()) -> MeterReport {
        self.bind(node);
        let before = self.meter();
        operation();
        let done = self.meter().since(&before);
        for from in 0..self.nodes {
            for to in (0..self.nodes).filter(|to| *to != from) {
                let count = done.pair(from, to);
                assert_eq!(
                    (count.writes, count.write_bytes, count.flushes),
                    (0, 0, 0),
                    "{what} on node {node} of {}: {from} to {to}",
                    self.nodes
                );
            }
        }
        done
    }

    /// As [`World::local`], for an operation that has to write.
    fn writes(&self, what: &str, node: u32, operation: impl FnOnce()) {
        let done = self.local(what, node, operation);
        assert!(done.pair(node, node).writes > 0, "{what} on node {node} of {} writes at home", self.nodes);
    }

    /// As [`World::local`], for an operation that writes nothing at all.
    fn writes_nothing(&self, what: &str, node: u32, operation: impl FnOnce()) {
        let done = self.local(what, node, operation);
        assert_eq!((done.total().writes, done.total().flushes), (0, 0), "{what} on node {node} of {} writes nothing", self.nodes);
    }

    fn spaces(&self) -> [&KeyspaceHandle; 2] {
        [&self.ordered, &self.hash]
    }
}

/// Runs a scenario on every node of stores of one to four nodes, on both kinds of media.
fn everywhere(scenario: impl Fn(&World, u32)) {
    // Asked once: without tmpfs there are no media that need flushes.
    let tmpfs = on_tmpfs();
    for flushed in [false, true].into_iter().filter(|flushed| !flushed || tmpfs.is_some()) {
        for nodes in 1..=4 {
            let world = World::new(nodes, flushed);
            (0..nodes).for_each(|node| scenario(&world, node));
            world.bind(0);
            let report = world.store.check().unwrap();
            assert!(report.is_sound(), "{:?}", report.problems);
        }
    }
}

#[test]
fn puts_and_deletes() {
    everywhere(|world, node| {
        let store = &world.store;
        for space in world.spaces() {
            let kind = space.info().kind;
            for (turn, len) in [8, 8, 0, 100, 3_000, 3 * SEGMENT as usize].into_iter().enumerate() {
                for key in world.one_of_each(turn as u64) {
                    world.writes(&format!("a put of {len} bytes, {kind:?}"), node, || {
                        store.write_wait(space, &key, Some(&vec![1; len])).unwrap();
                    });
                }
            }
            world.writes("a put of an absent key", node, || {
                store.write_wait(space, format!("absent {node}").as_bytes(), Some(b"v")).unwrap();
            });
            for key in world.one_of_each(7 + u64::from(node)) {
                world.writes("a delete", node, || assert!(store.write_wait(space, &key, None).unwrap()));
                // (The delete may find the tag of another key, and write a tombstone to be safe.)
                world.local("a delete of nothing", node, || assert!(!store.write_wait(space, &key, None).unwrap()));
            }
            // Many puts: chunks are taken and segments opened.
            world.writes("a thousand puts", node, || {
                for i in 0..1_000u64 {
                    store.write_wait(space, &key(i * 37 % 40_000), Some(&[2; 100])).unwrap();
                }
            });
        }
    });
}

#[test]
fn conditional_writes() {
    fn write(store: &Store, space: &KeyspaceHandle, key: &[u8], value: Option<&[u8]>, condition: Condition<'_>) -> bool {
        let (applied, _, ticket) = store.write(space, key, value, condition, &WriteOptions::new()).unwrap();
        ticket.wait().unwrap();
        applied
    }
    everywhere(|world, node| {
        let store = &world.store;
        for space in world.spaces() {
            for key in world.one_of_each(u64::from(node)) {
                let (old, version) = store.get_versioned(space, &key).unwrap().unwrap();
                world.writes_nothing("a swap that does not apply", node, || {
                    assert!(!write(store, space, &key, Some(b"x"), Condition::Value(Some(b"?"))))
                });
                world.writes("a swap", node, || assert!(write(store, space, &key, Some(b"swapped"), Condition::Value(Some(&old)))));
                world.writes_nothing("a write at an old version", node, || {
                    assert!(!write(store, space, &key, Some(b"x"), Condition::Version(Some(version))));
                });
                world.writes("a read-modify-write", node, || {
                    let (_, version) = store.get_versioned(space, &key).unwrap().unwrap();
                    assert!(write(store, space, &key, Some(b"modified"), Condition::Version(Some(version))));
                });
                world.writes("a removal by value", node, || assert!(write(store, space, &key, None, Condition::Value(Some(b"modified")))));
                world.writes("an insert of what is absent", node, || {
                    assert!(write(store, space, &key, Some(b"again"), Condition::Value(None)))
                });
            }
        }
    });
}

#[test]
fn levels_and_tickets() {
    everywhere(|world, node| {
        let store = &world.store;
        for level in [Durability::Sync, Durability::Interval(Duration::from_millis(1)), Durability::Process] {
            let options = WriteOptions::new().durability(level);
            for (space, key) in world.spaces().into_iter().zip(world.one_of_each(20)) {
                let put = || store.write(space, &key, Some(b"with a ticket"), Condition::None, &options).unwrap().2;
                world.writes("a put with a ticket that is waited for", node, || put().wait().unwrap());
                world.writes("a put with a callback", node, || {
                    put().on_durable(|outcome| outcome.unwrap());
                    store.sync().unwrap();
                });
                world.writes("a delete with a ticket that is asked", node, || {
                    let ticket = store.write(space, &key, None, Condition::None, &options).unwrap().2;
                    store.sync().unwrap();
                    assert!(ticket.is_durable());
                });
                world.writes("a put and a read of it", node, || {
                    drop(put());
                    assert!(store.get_with(space, &key, |_| ()).unwrap().is_some());
                });
                world.local("a sync", node, || store.sync().unwrap());
            }
        }
        world.writes("puts that expire", node, || {
            for at in [1, u64::MAX / 2] {
                let options = WriteOptions::new().expires_at_ms(at);
                store.write(&world.hash, b"expiring", Some(b"v"), Condition::None, &options).unwrap().2.wait().unwrap();
            }
        });
    });
}

/// A whole batch goes to the node of the thread that commits it, wherever the entries that it overwrites lie, and
/// wherever it was put together.
#[test]
fn batches_lie_on_the_node_of_the_committer() {
    everywhere(|world, node| {
        let store = &world.store;
        for len in [1, 2, 16, 64, 65, 300] {
            // Operations are added on the way through all nodes.
            let mut batch = Batch::default();
            for i in 0..len {
                world.bind(i as u32 % world.nodes);
                let space = world.spaces()[i as usize % 2];
                let number = world.keys_of(i as u32 % world.nodes).start + i;
                match i % 11 {
                    10 => batch.delete(space, &key(number)),
                    9 => batch.put(space, &key(number), &[9; 700], u64::MAX / 2),
                    _ => batch.put(space, &key(number), &number.to_le_bytes(), 0),
                }
            }
            let entries = || world.store.stats().pools.iter().map(|pool| pool.usage.entries).collect::<Vec<_>>();
            let before = entries();
            world.writes(&format!("a batch of {len}"), node, || store.commit_wait(&batch).unwrap());
            for (at, (before, after)) in before.into_iter().zip(entries()).enumerate() {
                assert_eq!(
                    after > before,
                    at as u32 == node,
                    "a batch of {len} on node {node}: pool {at} went from {before} to {after} entries"
                );
            }
            // This batch takes its latches in order, as preconditions and repeated keys demand.
            let present = key(world.keys_of(world.nodes - 1).start);
            let version = store.get_versioned(&world.ordered, &present).unwrap().map(|(_, version)| version);
            let mut repeated = batch.clone();
            repeated.put(&world.ordered, b"twice", b"1", 0);
            repeated.put(&world.ordered, b"twice", b"2", 0);
            repeated.require_version(&world.ordered, &present, version);
            world.writes("a batch with a precondition", node, || {
                let options = WriteOptions::new().durability(Durability::Process).expires_at_ms(u64::MAX / 2);
                store.commit(&repeated, &options).unwrap().wait().unwrap();
                // Otherwise the next batch, which is refused for what it saw, would have to make that durable first.
                store.sync().unwrap();
            });
            repeated.require_version(&world.ordered, &present, Some(u64::MAX >> 9));
            world.writes_nothing("a batch whose precondition does not hold", node, || {
                assert!(matches!(store.commit_wait(&repeated), Err(Error::PreconditionFailed { .. })));
            });
            // Keys that a later round deletes have to be there.
            world.local("puts", node, || {
                for number in (0..world.nodes).flat_map(|node| world.keys_of(node)) {
                    for space in world.spaces() {
                        store.write_wait(space, &key(number), Some(b"there")).unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn writes_while_snapshots_are_held() {
    everywhere(|world, node| {
        let store = &world.store;
        world.bind((node + 1) % world.nodes);
        let snapshots = [store.snapshot(), store.snapshot()];
        for space in world.spaces() {
            for key in world.one_of_each(u64::from(node) + 50) {
                world.writes("an overwrite of what a snapshot shows", node, || {
                    store.write_wait(space, &key, Some(b"newer")).unwrap();
                });
                world.writes("a delete of what a snapshot shows", node, || assert!(store.write_wait(space, &key, None).unwrap()));
                world.writes_nothing("a get from a snapshot", node, || {
                    assert!(snapshots[0].get_with(space, &key, |value| value.len()).unwrap().is_some());
                });
            }
        }
        let all =
            ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: hither_engine::Direction::Backward, expect: usize::MAX };
        world.writes_nothing("a scan of a snapshot", node, || {
            snapshots[1].scan(&world.ordered, &all, |_, _| ControlFlow::Continue(())).unwrap();
        });
        world.writes_nothing("a snapshot and its end", node, || {
            drop(store.snapshot());
            drop(snapshots);
        });
    });
}

#[test]
fn reads_write_nowhere() {
    everywhere(|world, node| {
        let store = &world.store;
        let keys: Vec<_> = (0..world.nodes).flat_map(|node| world.keys_of(node)).map(key).collect();
        for space in world.spaces() {
            world.writes_nothing("gets", node, || {
                for key in &keys {
                    assert!(store.get_with(space, key, |_| ()).unwrap().is_some());
                    assert!(store.get_versioned(space, key).unwrap().is_some());
                    assert!(store.get_pinned(space, key).unwrap().is_some());
                }
                assert!(store.get_with(space, b"absent", |_| ()).unwrap().is_none());
            });
            world.writes_nothing("a multi-get", node, || store.multi_get_with(space, &keys, |_, value| assert!(value.is_some())).unwrap());
            world.writes_nothing("a walk over all", node, || store.for_each(space, |_, _| ControlFlow::Continue(())).unwrap());
        }
        for direction in [hither_engine::Direction::Forward, hither_engine::Direction::Backward] {
            world.writes_nothing("a scan", node, || {
                let range = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction, expect: usize::MAX };
                store.scan(&world.ordered, &range, |_, _| ControlFlow::Continue(())).unwrap();
            });
        }
    });
}

/// A thread that has moved writes to the node that it is on now; threads that move all the time write locally all the
/// time.
#[test]
fn threads_that_move_write_to_the_node_they_are_on() {
    for nodes in 2..=4u32 {
        let world = World::new(nodes, false);
        let hot = key(1);
        for turn in 0..3 * nodes {
            let node = turn % nodes;
            world.writes("a put after a move", node, || {
                store_all(&world, &hot, turn);
            });
        }
        let before = world.meter();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let world = &world;
                scope.spawn(move || {
                    let mut random = thread + 1;
                    for turn in 0..2_000u32 {
                        random = scrambled(random);
                        if turn % 3 == 0 {
                            world.bind((random >> 40) as u32 % nodes);
                        }
                        store_all(world, &key((random >> 33) % KEYS), turn);
                    }
                });
            }
        });
        let done = world.meter().since(&before);
        assert_eq!((done.remote().writes, done.remote().flushes), (0, 0), "{nodes} nodes");
        assert!((0..nodes).all(|node| done.pair(node, node).writes > 0), "all nodes were written to: {done:?}");
        assert!(done.remote().reads > 0, "what is overwritten lies on other nodes, too");
        assert!(world.store.check().unwrap().is_sound());
    }
}

/// A put, a delete, an insert and a batch.
fn store_all(world: &World, key: &[u8], turn: u32) {
    let (store, value) = (&world.store, turn.to_le_bytes());
    store.write_wait(&world.ordered, key, Some(&value)).unwrap();
    if turn.is_multiple_of(4) {
        store.write_wait(&world.hash, key, None).unwrap();
    }
    let mut batch = Batch::default();
    batch.put(&world.hash, key, &value, 0);
    batch.put(&world.ordered, &turn.to_be_bytes(), &value, 0);
    store.commit_wait(&batch).unwrap();
}

/// Regression: the kernel was never asked, so all pools on tmpfs lay on the node of the thread that made them. (Of the
/// two nodes here the machine may have only the first.)
#[test]
fn pools_on_tmpfs_are_asked_for_on_their_nodes() {
    let (nodes, Some(data)) = (tempfile::tempdir().unwrap(), on_tmpfs()) else { return };
    std::fs::write(nodes.path().join("online"), "0-1\n").unwrap();
    for (node, cpus, distances) in [(0, "0\n", "10 20\n"), (1, "\n", "20 10\n")] {
        let folder = nodes.path().join(format!("node{node}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("cpulist"), cpus).unwrap();
        std::fs::write(folder.join("distance"), distances).unwrap();
    }
    let topology = Arc::new(Topology::from_sysfs(nodes.path()).unwrap());
    let paths = vec![(None, data.path().to_owned())];
    let options = Options { paths, capacity: 2 << 20, topology: Some(topology), ..Options::default() };
    let policies = || {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        let of = |name: &str| maps.lines().find(|line| line.contains(&*data.path().join(name).to_string_lossy())).map(str::to_owned);
        [of("node0.hither"), of("node1.hither")]
    };
    let store = Store::open(options).unwrap();
    let [Some(first), Some(second)] = policies() else {
        // This kernel does not report the requested placement of pages.
        return skipped("without_placement");
    };
    let is_filtered = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("Seccomp:\t2"));
    if is_filtered && !first.contains("prefer:") {
        return skipped("with_filtered_calls");
    }
    assert!(first.contains("prefer:0"), "{first}");
    assert!(second.contains("prefer:1") || !std::path::Path::new("/sys/devices/system/node/node1").exists(), "{second}");
    drop(store);
}
