//! The cache of entries: histories of several threads over two emulated nodes must be linearizable with it, and caches
//! with a planted mistake must be detected.
//!
//! The store's own test (`crates/engine/tests/engine/cache.rs`) shows the effect of single changes. Here threads on
//! both nodes write, delete, batch and read few hot keys. The store is so small that segments are reused all the time.
//! The cache is forced on, and the run fails if the cache served no reads or no segment was reused.
//!
//! The planted caches stand in a model of the read path around the real [`Cache`]: a log of few places that are reused
//! at once, an index, and gets. The gets validate fully, by reference only, or not at all (as the prototype of the
//! paper does between a write to its index and one to its cache).

#![forbid(unsafe_code)]

use crate::common;
use crate::common::{Rng, now};
use hither_cache::{Cache, CacheOptions, Holdings, Policy, Record, Weights};
use hither_engine::{Batch, CacheSetting, Condition, KeyspaceHandle, Options, Store, WriteOptions};
use hither_sync::epoch;
use hither_testkit::history::{Action, Content, Operation, check};
use hither_topology::Topology;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of hot keys in each of the two keyspaces.
const KEYS: u64 = 3;
const THREADS: u64 = 4;
const OPERATIONS: u64 = 12_000;

fn open(topology: &Topology, capacity: u64) -> Store {
    let options = Options {
        in_memory: true,
        capacity,
        max_capacity: capacity,
        segment_bytes: 4 << 10,
        topology: Some(Arc::new(topology.clone())),
        cache: CacheSetting { bytes: Some(1 << 20), forced: true, policy: Policy::Adaptive },
        ..Options::default()
    };
    let store = Store::open(options).unwrap();
    store.tick_cache();
    store
}

/// The bytes of a value: one number, repeated, so that a mixture of two values shows.
fn bytes(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(1 + (value % 5) as usize)
}

fn content(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, bytes(number), "a torn value");
    number
}

struct Thread<'a> {
    store: &'a Store,
    keyspaces: &'a [KeyspaceHandle; 2],
    deletes: bool,
    rng: Rng,
    next_value: u64,
    last_seen: Content,
    history: Vec<(u64, Operation)>,
}

impl Thread<'_> {
    fn act(&mut self) {
        let place = self.rng.below(2 * KEYS);
        let (keyspace, key) = (&self.keyspaces[(place / KEYS) as usize], (place % KEYS).to_be_bytes());
        let start = now();
        let plain = WriteOptions::new();
        let action = match self.rng.below(12) {
            0..7 => {
                self.last_seen = self.read(keyspace, &key);
                Action::Read(self.last_seen)
            }
            7..=9 if !self.deletes || self.rng.below(3) > 0 => {
                self.next_value += 1;
                self.store.write_wait(keyspace, &key, Some(&bytes(self.next_value))).unwrap();
                Action::Write(Some(self.next_value))
            }
            7..=9 => Action::Delete { existed: self.store.write_wait(keyspace, &key, None).unwrap() },
            10 => {
                self.next_value += 1;
                let (expected, old) = (self.last_seen, self.last_seen.map(bytes));
                let condition = Condition::Value(old.as_deref());
                let (applied, _, done) = self.store.write(keyspace, &key, Some(&bytes(self.next_value)), condition, &plain).unwrap();
                done.wait().unwrap();
                Action::Cas { expected, new: Some(self.next_value), applied }
            }
            _ => return self.batch(start, place % KEYS),
        };
        self.history.push((place, Operation { start, end: now(), complete: true, action }));
    }

    fn read(&mut self, keyspace: &KeyspaceHandle, key: &[u8]) -> Content {
        if self.rng.below(3) > 0 {
            return self.store.get_with(keyspace, key, content).unwrap();
        }
        let mut seen = None;
        self.store
            .multi_get_with(keyspace, &[key, b"nothing", key], |i, value| {
                if i == 2 {
                    seen = value.map(content)
                }
            })
            .unwrap();
        seen
    }

    /// Writes one key in both keyspaces by one batch.
    fn batch(&mut self, start: u64, key: u64) {
        self.next_value += 1;
        let mut batch = Batch::default();
        for keyspace in self.keyspaces {
            batch.put(keyspace, &key.to_be_bytes(), &bytes(self.next_value), 0);
        }
        self.store.commit_wait(&batch).unwrap();
        let operation = Operation { start, end: now(), complete: true, action: Action::Write(Some(self.next_value)) };
        self.history.extend([(key, operation), (KEYS + key, operation)]);
    }
}

#[test]
fn histories_with_deletes_are_linearizable() {
    explore(true, 64 << 20);
}

/// There are no deletes, because tombstones keep segments from being reused as long as older entries exist anywhere.
#[test]
fn histories_in_a_store_that_reuses_segments_are_linearizable() {
    let reused = explore(false, 1 << 20);
    assert!(reused > 20, "{reused} segments reused");
}

/// Lets threads on two nodes work in a store of `capacity` bytes; returns how many segments were reused.
fn explore(deletes: bool, capacity: u64) -> u64 {
    let topology = Topology::emulated(2);
    let store = open(&topology, capacity);
    let keyspaces = common::keyspaces(&store);
    let mut histories: HashMap<u64, Vec<Operation>> = HashMap::new();
    let start = std::sync::Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let work = |number: u64| {
            let (store, keyspaces, topology, start) = (&store, &keyspaces, &topology, &start);
            scope.spawn(move || {
                topology.bind_current_thread((number % 2) as u32).unwrap();
                let (rng, history) = (Rng(number + 1), Vec::new());
                let mut thread = Thread { store, keyspaces, deletes, rng, next_value: number << 32, last_seen: None, history };
                start.wait();
                for operation in 0..OPERATIONS {
                    thread.act();
                    if operation % 64 == 0 {
                        // With fewer processors than threads, the threads would otherwise run one after the other.
                        std::thread::yield_now();
                    }
                }
                thread.history
            })
        };
        for thread in (0..THREADS).map(work).collect::<Vec<_>>() {
            for (place, operation) in thread.join().unwrap() {
                histories.entry(place).or_default().push(operation);
            }
        }
    });
    for (place, history) in histories {
        if let Err(violation) = check(None, &history) {
            panic!("key {place}, {} of {} operations ordered: {:#?}", violation.ordered, history.len(), violation.around);
        }
    }
    let stats = store.stats();
    let reused: u64 = stats.pools.iter().map(|pool| pool.usage.reused).sum();
    let hits = stats.cache.local_hits + stats.cache.remote_hits;
    assert!(hits > 1_000 && stats.cache.remote_hits > 0, "{hits} hits");
    reused
}

/// How a get decides whether the cached copy is valid.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Validation {
    /// Reference and generation must match.
    Full,
    /// The planted bug: a reused place passes for the same entry.
    ReferenceOnly,
    /// The planted bug: every cached copy is valid.
    Nothing,
}

/// A log of few places, each of which counts as a segment; an index over it; and the real cache.
struct Model {
    validation: Validation,
    cache: Cache,
    /// Value and generation by place.
    log: Vec<(u64, u64)>,
    index: HashMap<u64, usize>,
    next_generation: u64,
}

impl Model {
    fn new(validation: Validation) -> Model {
        let weights = Weights::of(&Topology::emulated(2));
        let options = CacheOptions { capacity_bytes: 64 << 10, policy: Policy::Adaptive, weights, forced: true, sampling: None };
        let cache = Cache::new(options);
        cache.tick(0, 0, &|| Holdings { entries: 10, pair_bytes: 16 });
        Model { validation, cache, log: vec![(0, 0); 8], index: HashMap::new(), next_generation: 1 }
    }

    fn put(&mut self, key: u64, value: u64) {
        let free = (0..self.log.len()).find(|place| !self.index.values().any(|used| used == place)).unwrap();
        self.log[free] = (value, self.next_generation);
        self.next_generation += 1;
        self.index.insert(key, free);
    }

    fn get(&self, key: u64) -> Option<u64> {
        let _pin = epoch::pin();
        let (hash, bytes) = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15), key.to_le_bytes());
        let entry = self.index.get(&key).map(|place| (*place as u64 + 1, self.log[*place]));
        if let Some(found) = self.cache.look(hash, &bytes) {
            let valid = match self.validation {
                Validation::Full => {
                    entry.is_some_and(|(reference, (_, generation))| (reference, generation) == (found.reference, found.generation))
                }
                Validation::ReferenceOnly => entry.is_some_and(|(reference, _)| reference == found.reference),
                Validation::Nothing => true,
            };
            let mut value = [0; 8];
            if valid && self.cache.copy_value(&found, &mut value) {
                return Some(u64::from_le_bytes(value));
            }
        }
        let (reference, (value, generation)) = entry?;
        let record = Record { reference, generation, expiry_ms: 0, key: &bytes, value: &value.to_le_bytes() };
        self.cache.offer(hash, 0, 1, true, &record);
        Some(value)
    }

    /// The history of key 0 among others, one operation after the other.
    fn history(mut self) -> Vec<Operation> {
        let (mut rng, mut history) = (Rng(11), Vec::new());
        for value in 1..3_000u64 {
            let key = rng.below(4);
            let action = match rng.below(4) {
                0 => {
                    self.put(key, value);
                    Action::Write(Some(value))
                }
                1 if rng.below(4) == 0 => Action::Delete { existed: self.index.remove(&key).is_some() },
                _ => Action::Read(self.get(key)),
            };
            if key == 0 {
                history.push(Operation { start: 2 * value, end: 2 * value + 1, complete: true, action });
            }
        }
        history
    }
}

#[test]
fn caches_that_validate_too_little_are_caught() {
    assert_eq!(check(None, &Model::new(Validation::Full).history()), Ok(()));
    for planted in [Validation::ReferenceOnly, Validation::Nothing] {
        assert!(check(None, &Model::new(planted).history()).is_err(), "{planted:?}");
    }
}
