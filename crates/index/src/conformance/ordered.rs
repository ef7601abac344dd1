//! The suite of ordered indexes: agreement with a `BTreeMap` on adversarial keys, load orders, scans in both
//! directions, structure changes under concurrency, memory under churn, stale tokens and hints.
//!
//! Published bugs that it aims at: FAST&FAIR (transient duplicates after a delete, root split and merge not atomic,
//! keys misplaced by a concurrent inner split, equal or zero values), the Masstree family (root split not atomic, keys
//! lost when leaves empty).
//!
//! [`run_all`] runs everything. The parts are public, so that a twin with a planted bug can be shown to fail the part
//! that aims at it.

pub mod concurrent;
pub mod keys;
pub mod structure;

use super::{FakeLog, Rng};
use crate::{Index, OrderedIndex, Ref, Start};
use hither_sync::epoch;
use keys::Shape;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Runs the whole suite on indexes made by `make`.
pub fn run_all<I: OrderedIndex>(make: impl Fn() -> I) {
    empty(&make);
    for shape in Shape::ALL {
        model(&make, shape, 0x5eed ^ shape as u64);
    }
    structure::load_orders(&make);
    structure::bulk_then_modify(&make);
    structure::copy_and_load(&make);
    concurrent::copies_see_what_stays(&make);
    structure::drain_and_refill(&make);
    structure::odd_references(&make);
    structure::stale_tokens(&make);
    structure::hints(&make);
    structure::churn(&make);
    structure::deep_prefixes(&make);
    for round in 0..3 {
        concurrent::scans_see_what_stays(&make, round);
        concurrent::gets_see_what_stays(&make, round);
        concurrent::leaves_empty_and_fill(&make, round);
        concurrent::layers_come_and_go(&make, round);
        concurrent::roots_grow_and_shrink(&make, round);
        concurrent::installs_exclude(&make, round);
        concurrent::places_exclude(&make, round);
        concurrent::hints_beside_writers(&make, round);
    }
    concurrent::nobody_is_shut_out(&make);
}

/// An index, its log and a model of its content.
pub struct World<I> {
    /// The index under test.
    pub index: I,
    /// Its log.
    pub log: FakeLog,
    /// The content that the index should have.
    pub model: BTreeMap<Vec<u8>, Ref>,
}

impl<I: OrderedIndex> World<I> {
    /// An empty world.
    pub fn new(index: I) -> Self {
        World { index, log: FakeLog::new(7), model: BTreeMap::new() }
    }

    /// Inserts or updates `key` the way the engine does.
    pub fn put(&mut self, key: &[u8]) {
        let new = put(&self.index, &self.log, key);
        self.model.insert(key.to_vec(), new);
    }

    /// Removes `key` if it is there.
    pub fn delete(&mut self, key: &[u8]) {
        let removed = delete(&self.index, &self.log, key);
        assert_eq!(removed, self.model.remove(key).is_some(), "delete of {}", show(key));
    }

    /// Checks that a lookup agrees with the model.
    pub fn check_get(&self, key: &[u8]) {
        let _pin = epoch::pin();
        let found = self.index.get(self.log.key_of(key), &self.log);
        assert_eq!(found, self.model.get(key).copied().unwrap_or(Ref::NONE), "get of {}", show(key));
    }

    /// Checks that a scan agrees with the model.
    pub fn check_scan(&self, start: Start<'_>, backward: bool, limit: usize) {
        let _pin = epoch::pin();
        let expected = self.expected(start, backward, limit);
        let mut out = vec![Ref(42)];
        self.index.scan(start, backward, limit, &mut out, &self.log);
        assert_eq!(out[0], Ref(42), "a scan appends");
        if out[1..] != expected {
            let found: Vec<_> = out[1..].iter().map(|r| show(self.log.peek(*r))).collect();
            let expected: Vec<_> = expected.iter().map(|r| show(self.log.peek(*r))).collect();
            panic!("scan from {start:?}, backward {backward}, limit {limit}: found {found:?}, expected {expected:?}");
        }
    }

    fn expected(&self, start: Start<'_>, backward: bool, limit: usize) -> Vec<Ref> {
        let bound = match start {
            Start::Edge => Bound::Unbounded,
            Start::At(key) => Bound::Included(key.to_vec()),
            Start::After(key) => Bound::Excluded(key.to_vec()),
        };
        if backward {
            self.model.range((Bound::Unbounded, bound)).rev().take(limit).map(|(_, r)| *r).collect()
        } else {
            self.model.range((bound, Bound::Unbounded)).take(limit).map(|(_, r)| *r).collect()
        }
    }

    /// Checks that everything agrees: invariants, count, both full scans, every key, `get_many` and `for_each`.
    pub fn check_all(&self) {
        let _pin = epoch::pin();
        self.index.check(&self.log).expect("the index's invariants hold");
        assert_eq!(self.index.len(), self.model.len());
        for backward in [false, true] {
            self.check_scan(Start::Edge, backward, usize::MAX);
        }
        let keys: Vec<_> = self.model.keys().map(|key| self.log.key_of(key)).collect();
        let mut found = vec![Ref::NONE; keys.len()];
        self.index.get_many(&keys, &mut found, &self.log);
        assert!(found.iter().eq(self.model.values()), "get_many finds every key");
        let mut visited = Vec::new();
        self.index.for_each(&self.log, &mut |reference| {
            visited.push(reference);
            true
        });
        visited.sort_unstable();
        visited.dedup();
        let mut expected: Vec<_> = self.model.values().copied().collect();
        expected.sort_unstable();
        assert_eq!(visited, expected, "for_each visits every key");
    }
}

/// Inserts or updates `key` the way the engine does. Returns the new reference.
pub fn put<I: Index>(index: &I, log: &FakeLog, key: &[u8]) -> Ref {
    let _pin = epoch::pin();
    let new = log.append(key);
    write(index, log, key, new);
    new
}

/// Removes `key`; returns whether it was present.
pub fn delete<I: Index>(index: &I, log: &FakeLog, key: &[u8]) -> bool {
    let _pin = epoch::pin();
    write(index, log, key, Ref::NONE).is_some()
}

/// Locates, verifies, installs: by turns as a member of a batch does, and as a single write does, which locks its place
/// first. Returns the key's previous reference.
fn write<I: Index>(index: &I, log: &FakeLog, key: &[u8], new: Ref) -> Ref {
    let hashed = log.key_of(key);
    let (located, locked) = if (log.len() ^ key.len()).is_multiple_of(2) {
        index.lock_place(hashed, index.prepare_write(hashed, log), log)
    } else {
        (index.locate(hashed, log), false)
    };
    let present = located.candidate.is_some() && (located.verified || log.peek(located.candidate) == key);
    let old = if present { located.candidate } else { Ref::NONE };
    match (locked, old == new) {
        (true, true) => index.unlock_place(located.token),
        (true, false) => index.install_locked(located.token, hashed, old, new, log),
        (false, true) => {}
        (false, false) => {
            let done = index.install(located.token, hashed, old, new, log);
            assert_eq!(done, Ok(()), "the only writer of {} meets no conflict", show(key));
        }
    }
    old
}

/// A key for messages, shortened.
pub fn show(key: &[u8]) -> String {
    let tail = &key[key.len().saturating_sub(20)..];
    format!("{} bytes ..{}", key.len(), tail.escape_ascii())
}

/// An empty index finds nothing and stays small.
pub fn empty<I: OrderedIndex>(make: impl Fn() -> I) {
    let world = World::new(make());
    world.check_all();
    assert!(world.index.is_empty());
    for key in [&b"a"[..], b"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
        for backward in [false, true] {
            world.check_scan(Start::At(key), backward, 10);
            world.check_scan(Start::After(key), backward, 10);
        }
        world.check_scan(Start::Edge, false, 0);
    }
    assert!(!delete(&world.index, &world.log, b"a"));
    assert!(world.index.memory_bytes() < 256 << 10, "an empty index holds {} bytes", world.index.memory_bytes());
}

/// Random operations on keys of one shape, compared with the model after every step.
pub fn model<I: OrderedIndex>(make: impl Fn() -> I, shape: Shape, seed: u64) {
    let mut rng = Rng::new(seed);
    let pool = shape.pool(&mut rng);
    let mut world = World::new(make());
    // Phases of growth and decline, so that every structure change is met in both directions.
    for phase in 0..6 {
        let growing = [85, 20, 60, 5, 90, 0][phase];
        for step in 0..shape.steps() {
            let key = &pool[rng.below(pool.len())];
            match rng.below(100) {
                n if n < growing => world.put(key),
                n if n < 90 => world.delete(key),
                _ => probe(&world, &pool, &mut rng),
            }
            if step % 64 == 0 {
                world.check_get(key);
            }
        }
        world.check_all();
    }
    let rest: Vec<_> = world.model.keys().cloned().collect();
    for key in rest {
        world.delete(&key);
    }
    world.check_all();
}

/// One random lookup and scan.
fn probe<I: OrderedIndex>(world: &World<I>, pool: &[Vec<u8>], rng: &mut Rng) {
    let mut key = pool[rng.below(pool.len())].clone();
    if rng.below(2) == 0 {
        keys::mutate(&mut key, rng);
    }
    world.check_get(&key);
    let start = match rng.below(8) {
        0 => Start::Edge,
        n if n < 5 => Start::At(&key),
        _ => Start::After(&key),
    };
    let limit = [1, 2, 10, 100, 1000][rng.below(5)];
    world.check_scan(start, rng.below(2) == 0, limit);
}
