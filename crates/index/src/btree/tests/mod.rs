//! White-box tests: coverage of the structure changes, planted bugs, reads of the log, footprint.

mod chains;
mod coverage;
mod damage;
mod full_leaf;
mod peek;
mod twins;

use super::BTreeIndex;
use crate::conformance::ordered::{self, World};
use crate::conformance::{FakeLog, Rng, point};
use crate::{Index, OrderedIndex, Ref, Start};
use hither_sync::epoch;

#[test]
fn conformance_point() {
    point::run_all(BTreeIndex::new);
}

#[test]
fn eight_byte_keys_need_no_log() {
    let (index, log) = (BTreeIndex::new(), FakeLog::new(1));
    let mut rng = Rng::new(1);
    let keys: Vec<_> = (0..20_000).map(|_| rng.word().to_be_bytes()).collect();
    for key in &keys {
        ordered::put(&index, &log, key);
    }
    let _pin = epoch::pin();
    let mut out = Vec::new();
    for key in &keys {
        assert!(index.get(log.key_of(key), &log).is_some());
        assert!(index.locate(log.key_of(key), &log).verified);
        out.clear();
        index.scan(Start::After(key), false, 10, &mut out, &log);
    }
    let hashed: Vec<_> = keys.iter().map(|key| log.key_of(key)).collect();
    index.get_many(&hashed, &mut vec![Ref::NONE; keys.len()], &log);
    assert_eq!(log.reads(), 0);
}

#[test]
fn long_keys_need_one_look_at_the_log() {
    let (index, log) = (BTreeIndex::new(), FakeLog::new(1));
    // Seven groups, each with a common prefix of three slices, which its layer skips.
    let keys: Vec<_> = (0..5000).map(|i| format!("/group-{}/with a long common prefix/{:05}", i % 7, i).into_bytes()).collect();
    for key in &keys {
        ordered::put(&index, &log, key);
    }
    let _pin = epoch::pin();
    let before = log.reads();
    for key in &keys {
        assert!(index.locate(log.key_of(key), &log).candidate.is_some());
    }
    assert_eq!(log.reads(), before, "locate leaves the verification to the caller");
    for key in &keys {
        assert!(index.get(log.key_of(key), &log).is_some());
    }
    assert_eq!(log.reads(), before + keys.len() as u64);
}

#[test]
fn random_words_stay_within_the_budget() {
    let (index, log) = (BTreeIndex::new(), FakeLog::new(1));
    let mut rng = Rng::new(2);
    for n in 1..=400_000usize {
        ordered::put(&index, &log, &rng.word().to_be_bytes());
        if n >= 200_000 && n % 20_000 == 0 {
            let per_key = index.memory_bytes() as f64 / n as f64;
            // Up to 2 MiB of this are the spare end of the last chunk.
            let spare = (2 << 20) as f64 / n as f64;
            assert!(per_key < 24.0 + spare, "{per_key} bytes per key at {n}");
        }
    }
}

#[test]
fn sequential_loads_fill_leaves() {
    for descending in [false, true] {
        let (index, log) = (BTreeIndex::new(), FakeLog::new(1));
        let n = 400_000u64;
        for i in 0..n {
            let i = if descending { n - i } else { i };
            ordered::put(&index, &log, &i.to_be_bytes());
        }
        let per_key = index.memory_bytes() as f64 / n as f64;
        assert!(per_key < 18.5 + (2 << 20) as f64 / n as f64, "{per_key} bytes per key, descending {descending}");
    }
}

/// A key before a full leaf gets a leaf of its own. Keys that later come between the two go there, and not to the full
/// leaf, where each of them would split off one more leaf.
#[test]
fn keys_before_a_full_leaf_share_one() {
    let (index, log) = (BTreeIndex::new(), FakeLog::new(1));
    let put = |keys: std::ops::Range<u64>| {
        keys.for_each(|i| {
            ordered::put(&index, &log, &i.to_be_bytes());
        })
    };
    put(1000..1060);
    let full = index.memory_bytes();
    put(0..50);
    let grown = index.memory_bytes() - full;
    assert!(grown <= 4096, "{grown} bytes for a leaf and a root");
    let _pin = epoch::pin();
    index.check(&log).expect("the invariants hold");
}

#[test]
fn bulk_loads_leave_room() {
    let (index, log) = (BTreeIndex::new(), FakeLog::new(1));
    let refs: Vec<_> = (0..300_000u64).map(|i| log.append(&(i * 10).to_be_bytes())).collect();
    let _pin = epoch::pin();
    index.bulk_load(&mut refs.iter().copied(), &log);
    let loaded = index.memory_bytes();
    for i in (0..300_000u64).step_by(20) {
        ordered::put(&index, &log, &(i * 10 + 5).to_be_bytes());
    }
    assert!(index.memory_bytes() <= loaded + (2 << 20), "5 % more keys fit into the leaves' room");
    index.check(&log).expect("the invariants hold");
}

#[test]
fn a_layer_leaves_with_its_last_key() {
    let mut world = World::new(BTreeIndex::new());
    for depth in [0usize, 8, 9, 24, 1000] {
        let prefix = vec![b'q'; depth];
        let keys: Vec<Vec<u8>> = [&b"0123456789"[..], b"0123456788", b"01234567", b"0123456788x", b"0123456788y"]
            .iter()
            .map(|tail| [&prefix[..], tail].concat())
            .collect();
        for _ in 0..3 {
            keys.iter().for_each(|key| world.put(key));
            world.check_all();
            keys.iter().for_each(|key| world.delete(key));
            world.check_all();
        }
    }
}

#[test]
fn nested_layers_leave_together() {
    // Prefixes of one key, eight bytes apart: once the shorter ones are gone, they form a chain of layers of one slot
    // each.
    let mut world = World::new(BTreeIndex::new());
    let key: Vec<u8> = (0..4000u32).map(|i| ((i * i) >> 3) as u8).collect();
    for round in 0..2 {
        for len in (5..=key.len()).step_by(8) {
            world.put(&key[..len]);
        }
        world.check_all();
        for len in (5..=key.len()).step_by(8) {
            world.delete(&key[..len]);
            if len % 400 == 5 {
                world.check_all();
            }
        }
        world.check_all();
        assert!(world.model.is_empty(), "round {round}");
    }
}

#[test]
fn a_visit_stops_when_told() {
    let mut world = World::new(BTreeIndex::new());
    (0..2000u32).for_each(|i| world.put(&i.to_be_bytes()));
    let _pin = epoch::pin();
    let mut seen = 0;
    world.index.for_each(&world.log, &mut |_| {
        seen += 1;
        seen < 700
    });
    assert_eq!(seen, 700);
}

#[test]
fn an_index_outlived_by_its_deferred_work() {
    for _ in 0..20 {
        let mut world = World::new(BTreeIndex::new());
        for i in 0..3000u32 {
            world.put(&i.to_be_bytes());
        }
        for i in 0..3000u32 {
            world.delete(&i.to_be_bytes());
        }
    }
    epoch::collect();
}
