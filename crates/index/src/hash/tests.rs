//! The hash index under the shared suite, and what only its own tests can see.

use super::*;
use crate::conformance::FakeLog;
use crate::conformance::point::{self, Bench};
use hither_sync::epoch;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

#[test]
fn sequential_conformance() {
    point::run_sequential(&HashIndex::new);
}

#[test]
fn concurrent_conformance() {
    point::run_concurrent(&HashIndex::new, 30_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Few keys, few hash bits: splits, wide segments, deletions and reuse against a map.
    #[test]
    fn random_histories_agree_with_a_map(
        mask in prop_oneof![Just(0), Just(u64::MAX), Just(0xf << 60 | 0xff), any::<u64>()],
        operations in proptest::collection::vec((0u16..900, 0u8..5), 1..3000),
    ) {
        let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(1, mask) };
        let mut map = BTreeMap::new();
        for (key, action) in operations {
            let bytes = key.to_be_bytes();
            let expected = map.get(&key).copied().unwrap_or(Ref::NONE);
            if action == 0 {
                prop_assert_eq!(bench.write(&bytes, Ref::NONE), expected);
                map.remove(&key);
            } else if action < 4 {
                let new = bench.log.append(&bytes);
                prop_assert_eq!(bench.write(&bytes, new), expected);
                map.insert(key, new);
            } else {
                prop_assert_eq!(bench.get(&bytes), expected);
            }
        }
        bench.check(map.len());
    }
}

/// A log whose hashes can be made to fail.
struct Failing<'a> {
    log: &'a FakeLog,
    fail: AtomicBool,
}

impl Resolver for Failing<'_> {
    fn prefetch(&self, _reference: Ref) {}
    fn key(&self, reference: Ref) -> &[u8] {
        self.log.key(reference)
    }
    fn hash(&self, reference: Ref) -> u64 {
        assert!(!self.fail.load(Ordering::Relaxed), "planted failure");
        self.log.hash(reference)
    }
}

#[test]
fn a_panic_in_a_split_leaves_the_index_usable() {
    let bench = Bench::new(HashIndex::new());
    let failing = Failing { log: &bench.log, fail: AtomicBool::new(true) };
    let mut keys = 0u32;
    let insert = |i: u32| {
        let _pin = epoch::pin();
        let key = i.to_le_bytes();
        bench.index.install(bench.index.any_token(), bench.log.key_of(&key), Ref::NONE, bench.log.append(&key), &failing)
    };
    while catch_unwind(AssertUnwindSafe(|| insert(keys))).is_ok() {
        keys += 1;
        assert!(keys < 1000, "a segment takes at most 448 keys");
    }
    bench.check(keys as usize);
    bench.put(&0u32.to_le_bytes());
    failing.fail.store(false, Ordering::Relaxed);
    for i in keys..keys + 1000 {
        assert_eq!(insert(i), Ok(()));
    }
    bench.check(keys as usize + 1000);
}

/// A locate must not read the log when one tag matches, and an insert into a token's fresh place hardly ever.
#[test]
fn writers_leave_the_log_alone() {
    let bench = Bench::new(HashIndex::new());
    bench.index.reserve(20_000);
    for i in 0..10_000u32 {
        bench.put(&i.to_le_bytes());
    }
    let before = bench.log.reads();
    for i in 0..10_000u32 {
        bench.put(&i.to_le_bytes());
    }
    let reads = bench.log.reads() - before;
    assert!(reads < 2_000, "{reads} log reads in 10,000 updates: only keys of equal tag need them");
}

#[test]
fn a_reserved_index_hardly_splits_and_is_well_filled() {
    for keys in [1_000usize, 30_000, 100_000, 250_000] {
        let bench = Bench::new(HashIndex::new());
        bench.index.reserve(keys);
        let count = || {
            let mut segments = 0;
            bench.index.each_segment(|_, _| {
                segments += 1;
                true
            });
            segments
        };
        let _pin = epoch::pin();
        let before = count();
        for i in 0..keys as u64 {
            bench.put(&i.to_le_bytes());
        }
        let splits = count() - before;
        assert!(splits * 50 <= before, "{splits} splits of {before} segments");
        let fill = keys as f64 / (before * 448) as f64;
        assert!(fill > 0.5 || keys < 10_000, "{keys} keys fill {fill:.2}");
        bench.check(keys);
    }
}

/// Live segments and directory per key, at all sizes. (The whole of `memory_bytes` is measured by the example `hash_bench`: here, other
/// tests' long pins hold replaced blocks back.)
#[test]
fn memory_per_key_is_even_at_all_sizes() {
    let bench = Bench::new(HashIndex::new());
    let mut worst = 0f64;
    for i in 1..400_000u64 {
        bench.put(&i.to_le_bytes());
        if i > 50_000 && i % 10_000 == 0 {
            let _pin = epoch::pin();
            let mut live = bench.index.directory.lock().memory_bytes();
            bench.index.each_segment(|_, segment| {
                live += segment.pairs() * size_of::<line::Pair>();
                true
            });
            worst = worst.max(live as f64 / i as f64);
        }
    }
    assert!(worst < 15.5, "{worst:.2} B per key");
}

#[test]
fn an_index_can_go_while_blocks_wait_for_their_grace_period() {
    let _pin = epoch::pin();
    let bench = Bench::new(HashIndex::new());
    for i in 0..20_000u64 {
        bench.put(&i.to_le_bytes());
    }
    drop(bench);
    epoch::collect();
}

#[test]
fn tokens_of_other_shapes_are_harmless() {
    let bench = Bench::new(HashIndex::new());
    let first = bench.put(b"key");
    let _pin = epoch::pin();
    let segment = bench.index.segment(bench.log.hash_of(b"key"));
    let slots = [0, 1, segment.block() as u64 - 64, segment.block() as u64 + 63, segment.block() as u64 + 4096 * 2, u64::MAX];
    for slot in slots {
        let token = Token { segment: segment.0, slot };
        assert_eq!(bench.install(token, b"key", first, first), Ok(()));
    }
    bench.check(1);
}
