//! The hash index under the shared suite, and properties that only its own tests can see.

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

    /// Few keys, few hash bits: splits, wide segments, deletions and reuse, compared with a map.
    #[test]
    fn random_histories_agree_with_a_map(
        mask in prop_oneof![Just(0), Just(u64::MAX), Just(0xf << 60 | line::TAG_BITS), any::<u64>()],
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

/// A log of which some entries are damaged.
pub(super) struct Damaged<'a> {
    pub log: &'a FakeLog,
    pub damaged: &'a [Ref],
    /// Whether damaged entries match any key that they are compared with.
    pub doubts: bool,
}

impl Resolver for Damaged<'_> {
    fn prefetch(&self, _reference: Ref) {}
    fn key(&self, reference: Ref) -> &[u8] {
        if self.is_sound(reference) { self.log.key(reference) } else { &[] }
    }
    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        self.key(reference) == key || (self.doubts && !self.is_sound(reference))
    }
    fn hash(&self, reference: Ref) -> u64 {
        if self.is_sound(reference) { self.log.hash(reference) } else { 0x5bd1_e995_1234_5678 }
    }
    fn doubts(&self) -> bool {
        true
    }
    fn is_sound(&self, reference: Ref) -> bool {
        !self.damaged.contains(&reference)
    }
}

/// Regression: a split moved an unreadable entry to a place where no lookup of its key searched, and its key seemed
/// absent.
#[test]
fn what_cannot_be_read_is_met_after_splits_by_who_looks_for_its_key() {
    for (keys, damaged) in [(400u32, 1), (400, 60), (400, 300), (5_000, 200)] {
        let bench = Bench::new(HashIndex::new());
        let refs: Vec<_> = (0..keys).map(|i| bench.put(&i.to_le_bytes())).collect();
        let resolver = |doubts| Damaged { log: &bench.log, damaged: &refs[..damaged], doubts };
        let _pin = epoch::pin();
        for i in keys..keys + 6_000 {
            let (key, new) = (i.to_le_bytes(), bench.log.append(&i.to_le_bytes()));
            assert_eq!(bench.index.install(bench.index.any_token(), bench.log.key_of(&key), Ref::NONE, new, &resolver(false)), Ok(()));
        }
        for i in 0..keys + 6_000 {
            let (key, is_damaged) = (i.to_le_bytes(), (i as usize) < damaged);
            assert_eq!(bench.index.get(bench.log.key_of(&key), &resolver(false)).is_some(), !is_damaged, "{damaged} of {keys}: key {i}");
            assert!(bench.index.get(bench.log.key_of(&key), &resolver(true)).is_some(), "{damaged} of {keys}: key {i}");
        }
    }
}

/// A locate must not read the log when only one tag matches, and an insert into a token's fresh place must hardly ever
/// read it.
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

/// Bytes of live segments and directory per key, at all sizes. (The example `hash_bench` measures the whole of
/// `memory_bytes`: here, long pins of other tests hold replaced blocks back.)
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

/// Places of many keys at once: the caller does not wait for a pair that is locked already, and each lock ends in an
/// install, a refusal or no change.
#[test]
fn many_places_are_locked_without_waiting() {
    let bench = Bench::new(HashIndex::new());
    let (index, log) = (&bench.index, &bench.log);
    let _pin = epoch::pin();
    let keys: Vec<[u8; 4]> = (0..400u32).map(u32::to_le_bytes).collect();
    for round in 0..3 {
        let mut rest = Vec::new();
        let mut locked = Vec::new();
        for key in &keys {
            let (located, held) = index.lock_place_now(log.key_of(key), log);
            if held { locked.push((key, located)) } else { rest.push(key) }
        }
        assert!(!locked.is_empty() && !rest.is_empty(), "32 pairs cannot be locked 400 times");
        for (i, (key, located)) in locked.into_iter().enumerate() {
            let old = if located.verified || log.matches(located.candidate, key) { located.candidate } else { Ref::NONE };
            if i % 4 == 3 {
                index.unlock_place(located.token);
                rest.push(key);
            } else if !index.install_locked_now(located.token, log.key_of(key), old, log.append(key)) {
                rest.push(key);
            }
        }
        for key in rest {
            bench.write(key, log.append(key));
        }
        bench.check(keys.len());
        assert!(keys.iter().all(|key| bench.get(key).is_some()), "round {round}");
    }
}

/// Two slots of one tag: the log decides, and the pair that holds the key is locked.
#[test]
fn a_place_among_equal_tags_is_the_keys_own() {
    // One hash for all keys: all have one tag and one home pair.
    let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(1, 0) };
    let (index, log) = (&bench.index, &bench.log);
    let _pin = epoch::pin();
    bench.write(b"first", log.append(b"first"));
    let second = log.key_of(b"second");
    let (located, held) = index.lock_place_now(second, log);
    assert!(held && !located.verified && located.candidate.is_some());
    assert!(!index.lock_place_now(second, log).1, "the pair is locked");
    assert!(index.install_locked_now(located.token, second, Ref::NONE, log.append(b"second")));
    bench.check(2);
    let (located, held) = index.lock_place_now(second, log);
    assert!(held && located.verified && log.matches(located.candidate, b"second"));
    assert!(index.install_locked_now(located.token, second, located.candidate, Ref::NONE));
    let (located, held) = index.lock_place_now(second, log);
    assert!(held && !located.verified);
    index.unlock_place(located.token);
    bench.check(1);
}

/// The candidate turns out to be another key, in a full pair: nothing changes under the lock, and the lock ends.
#[test]
fn a_full_pair_refuses_under_the_lock() {
    // One home pair for all keys, but the tags differ.
    let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(1, line::TAG_BITS) };
    let (index, log) = (&bench.index, &bench.log);
    let _pin = epoch::pin();
    let mut by_tag = BTreeMap::new();
    let mut twin = None;
    for key in (0..10_000u32).map(u32::to_le_bytes) {
        match by_tag.get(&line::tag_of(log.hash_of(&key))) {
            Some(_) => twin = Some(key),
            None if by_tag.len() < line::PAIR_SLOTS => {
                by_tag.insert(line::tag_of(log.hash_of(&key)), key);
                bench.write(&key, log.append(&key));
            }
            None => {}
        }
    }
    let twin = twin.expect("10,000 keys have more than one of some tag");
    let (located, held) = index.lock_place_now(log.key_of(&twin), log);
    assert!(held && !located.verified && !log.matches(located.candidate, &twin));
    assert!(!index.install_locked_now(located.token, log.key_of(&twin), Ref::NONE, log.append(&twin)));
    bench.check(line::PAIR_SLOTS);
    bench.write(&twin, log.append(&twin));
    bench.check(line::PAIR_SLOTS + 1);
    assert!(bench.get(&twin).is_some());
}

/// A spot serves for one replacement, until its segment is replaced; only the newest reference has one. Hashes with few
/// bits fill paths.
#[test]
fn spots_serve_as_long_as_they_are_what_the_index_says() {
    for mask in [u64::MAX, 0xf << 60 | line::TAG_BITS] {
        let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(1, mask) };
        let _pin = epoch::pin();
        let keys: Vec<[u8; 4]> = (0..2_000u32).map(u32::to_le_bytes).collect();
        let old: Vec<Ref> = keys.iter().map(|key| bench.put(key)).collect();
        let hash = |key: &[u8; 4]| bench.log.key_of(key).hash;
        let mut spots = Vec::new();
        for (key, &old) in keys.iter().zip(&old) {
            let spot = bench.index.find_reference(hash(key), old).expect("the index names it");
            let copy = bench.log.append(key);
            assert!(bench.index.find_reference(hash(key), copy).is_none());
            assert!(bench.index.swing(spot, old, copy));
            assert_eq!(bench.get(key), copy);
            assert!(!bench.index.swing(spot, old, bench.log.append(key)), "it holds something else now");
            assert!(bench.index.find_reference(hash(key), old).is_none());
            spots.push((spot, bench.index.near_home(hash(key)), copy));
        }
        (2_000..40_000u32).for_each(|key| {
            bench.put(&key.to_le_bytes());
        });
        let mut frozen = 0;
        for (key, (spot, near, copy)) in keys.iter().zip(spots) {
            let next = bench.log.append(key);
            // References that splits have moved are still in their old places, too; references that came later are not.
            assert!(bench.index.find_reference_near(near, hash(key), copy).is_some());
            assert!(bench.index.find_reference_near(near, hash(key), next).is_none());
            if key[0] % 4 == 0 {
                // A segment that splits have left does not learn of later references.
                bench.write(key, next);
                let stale = bench.index.find_reference_near(near, hash(key), copy);
                assert!(
                    stale.is_none_or(|stale| !bench.index.swing(stale, copy, copy))
                        && bench.index.find_reference(hash(key), copy).is_none()
                );
                frozen += 1;
                continue;
            }
            if !bench.index.swing(spot, copy, next) {
                assert_eq!(bench.get(key), copy, "nothing was changed");
                frozen += 1;
            }
        }
        assert!(frozen > 1_900, "of 2,000 keys {frozen} are where splits have been");
        bench.check(40_000);
    }
}

/// `peek_hash` returns what `get` returns, in segments of every kind. It finds most keys, except among hashes that are
/// much alike.
#[test]
fn peeks_by_hash_find_what_gets_find() {
    for (mask, least) in [(u64::MAX, 2700), (line::TAG_BITS, 5), (0, 1), (!(0x1f << 7), 100)] {
        let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(2, mask) };
        (0..3000u32).for_each(|i| _ = bench.put(&i.to_be_bytes()));
        (0..3000u32).step_by(3).for_each(|i| _ = bench.put(&i.to_be_bytes()));
        let (_pin, mut found) = (epoch::pin(), 0);
        for key in (0..4000u32).map(u32::to_be_bytes) {
            let look = |reference: Ref| (reference.is_some() && bench.log.matches(reference, &key)).then_some(7);
            let (reference, seen) = bench.index.peek_hash(bench.log.hash_of(&key), look);
            assert!(reference.is_none() == (seen == 0));
            if reference.is_some() {
                assert_eq!((reference, seen), (bench.index.get(bench.log.key_of(&key), &bench.log), 7));
                found += 1;
            }
        }
        assert!((least..=3000).contains(&found), "mask {mask:#x}: {found}");
    }
}
