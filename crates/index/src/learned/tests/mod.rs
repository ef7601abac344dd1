//! White-box tests: coverage of the structure changes, planted bugs, edges of leaves, footprint, hints.

mod coverage;
mod twins;

use super::LearnedIndex;
use super::block::Entry;
use super::subtree::is_subtree;
use crate::conformance::ordered::{self, World};
use crate::conformance::{FakeLog, Rng, point};
use crate::{Index, OrderedIndex, Ref, Start};
use hither_sync::epoch;

#[test]
fn conformance_point() {
    point::run_all(LearnedIndex::new);
}

#[test]
fn eight_byte_keys_need_no_log() {
    let (index, log) = (LearnedIndex::new(), FakeLog::new(1));
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

/// Slices with all nine ranks, at the edges of the key space and between them, so many that leaves split around them.
#[test]
fn slices_with_every_rank() {
    let mut world = World::new(LearnedIndex::new());
    let mut rng = Rng::new(3);
    let mut keys = Vec::new();
    for i in 0..600u64 {
        let slice = [0, u64::MAX, i << 56, i.wrapping_mul(0x9e37_79b9_7f4a_7c15), i][rng.below(5)];
        let bytes = slice.to_be_bytes();
        keys.extend((1..=8).map(|rank| bytes[..rank].to_vec()));
        keys.extend([&[0u8][..], b"\0\0", b"x"].map(|tail| [&bytes[..], tail].concat()));
    }
    for _ in 0..3 {
        (1..keys.len()).for_each(|i| keys.swap(i, rng.below(i + 1)));
        keys.iter().for_each(|key| world.put(key));
        world.check_all();
        keys.iter().step_by(3).filter(|key| rng.below(4) > 0 && !key.is_empty()).for_each(|key| {
            if world.model.contains_key(key.as_slice()) {
                world.delete(key);
            }
        });
        world.check_all();
        for key in keys.iter().step_by(50) {
            world.check_scan(Start::At(key), false, 40);
            world.check_scan(Start::After(key), true, 40);
        }
    }
}

/// A leaf among others that gets a key of another length becomes a subtree. Scans cross its borders in both directions,
/// even where the key at the border is shorter than eight bytes, and when everything around it has been deleted.
#[test]
fn subtrees_among_leaves() {
    let mut world = World::new(LearnedIndex::new());
    (0..20_000u64).for_each(|i| world.put(&(i << 49).to_be_bytes()));
    for i in [3000u64, 9000, 9001, 15_000] {
        world.put(&(i << 49).to_be_bytes()[..7]);
        world.put(&[&(i << 49).to_be_bytes()[..], b"x"].concat());
    }
    world.put(&u64::MAX.to_be_bytes());
    world.check_all();
    (0..20_000u64).step_by(2).for_each(|i| world.put(&(i << 49).to_be_bytes()[..2]));
    world.check_all();
    for i in (0..20_000u64).step_by(500) {
        for backward in [false, true] {
            world.check_scan(Start::At(&(i << 49).to_be_bytes()), backward, 3000);
            world.check_scan(Start::After(&(i << 49).to_be_bytes()[..2]), backward, 3000);
        }
    }
    (0..20_000u64).filter(|i| i % 5000 != 0).for_each(|i| world.delete(&(i << 49).to_be_bytes()));
    world.check_all();
    let left: Vec<_> = world.model.keys().cloned().collect();
    left.iter().for_each(|key| world.delete(key));
    world.check_all();
    (0..500u64).for_each(|i| world.put(&(i << 55).to_be_bytes()));
    world.check_all();
}

/// Where the keys become dense, part of the index becomes subtrees while the rest stays arrays; and where a line fits
/// again, it is used again.
#[test]
fn a_distribution_that_changes() {
    let mut world = World::new(LearnedIndex::new());
    let mut rng = Rng::new(5);
    for phase in 0..6 {
        let around = rng.word();
        for _ in 0..8000 {
            let near = if phase % 2 == 0 { rng.word() } else { around ^ 1 << rng.below(50) ^ (rng.word() >> 20 >> rng.below(40)) };
            world.put(&near.to_be_bytes());
        }
        world.check_all();
        for _ in 0..40 {
            let start = rng.word().to_be_bytes();
            world.check_scan(Start::At(&start), rng.below(2) == 0, 2500);
        }
    }
}

#[test]
fn random_words_stay_within_the_budget() {
    let (index, log) = (LearnedIndex::new(), FakeLog::new(1));
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

/// Ascending, descending, and several streams of each: leaves are filled completely, or nearly so.
#[test]
fn runs_fill_leaves() {
    let n = 200_000u64;
    type Order = fn(u64) -> u64;
    let orders: [(&str, Order, f64); 4] = [
        ("ascending", |i| i, 18.0),
        ("descending", |i| u64::MAX - i, 18.0),
        ("ascending streams", |i| (i % 7) << 40 | i, 22.0),
        ("descending streams", |i| (i % 2 + 1) << 40 | (u64::from(u32::MAX) - i), 40.0),
    ];
    for (name, order, bound) in orders {
        let (index, log) = (LearnedIndex::new(), FakeLog::new(1));
        (0..n).for_each(|i| {
            ordered::put(&index, &log, &order(i).to_be_bytes());
        });
        let per_key = index.memory_bytes() as f64 / n as f64;
        assert!(per_key < bound + (2 << 20) as f64 / n as f64, "{name}: {per_key} bytes per key");
        let _pin = epoch::pin();
        index.check(&log).expect("the invariants hold");
    }
}

/// A hint survives inserts next to it, splits, rebuilds, and deletes of everything around it, or leads nowhere.
#[test]
fn hints_of_any_age() {
    let mut world = World::new(LearnedIndex::new());
    let mut rng = Rng::new(4);
    let mut hints = Vec::new();
    let mut hits = 0;
    for round in 0..6 {
        for _ in 0..4000 {
            let key = (rng.word() >> (4 * round)).to_be_bytes();
            world.put(&key);
            let _pin = epoch::pin();
            let token = world.index.locate(world.log.key_of(&key), &world.log).token;
            hints.push((key, world.index.hint(token).expect("ordered indexes have hints")));
        }
        for i in 0..hints.len() {
            let (key, hint) = hints[rng.below(i + 1)];
            let Some(old) = world.model.get(&key[..]).copied() else { continue };
            let new = world.log.append(&key);
            let _pin = epoch::pin();
            if world.index.update_at_hint(hint, world.log.key_of(&key), old, new) {
                hits += 1;
                world.model.insert(key.to_vec(), new);
            } else {
                assert_eq!(world.index.get(world.log.key_of(&key), &world.log), old);
            }
        }
        for (key, _) in hints.iter().step_by(3) {
            if world.model.contains_key(&key[..]) {
                world.delete(key);
            }
        }
        world.check_all();
    }
    assert!(hits > 5000, "only {hits} hints led anywhere");
}

#[test]
fn bulk_loads_with_doubles() {
    let mut world = World::new(LearnedIndex::new());
    for i in 0..9000u64 {
        for tail in [&b""[..], b"a", b"b"].iter().take(1 + (i % 5 == 0) as usize * 2) {
            let key = [&(i * 3).to_be_bytes()[..], tail].concat();
            let reference = world.log.append(&key);
            world.model.insert(key, reference);
        }
    }
    {
        let _pin = epoch::pin();
        world.index.bulk_load(&mut world.model.values().copied(), &world.log);
    }
    world.check_all();
    (0..9000u64).for_each(|i| world.put(&(i * 3 + 1).to_be_bytes()));
    world.check_all();
}

/// A log that nobody may read.
struct Closed;

impl crate::Resolver for Closed {
    fn prefetch(&self, _: Ref) {
        panic!("the log is asked for an entry");
    }

    fn key(&self, _: Ref) -> &[u8] {
        panic!("the log is read");
    }

    fn hash(&self, _: Ref) -> u64 {
        unreachable!("the index needs no hashes")
    }
}

/// Regression: keys of eight bytes were read from the log, one after the other in the order of keys, though they were
/// at hand.
#[test]
fn words_are_loaded_and_copied_without_the_log() {
    type Order = fn(u64) -> u64;
    // Orders that lines fit, that they do not fit, and that they do not fit from the middle on.
    let orders: [Order; 3] =
        [|i| i << 30, |i| 1 << (i % 63) | i, |i| if i < 30_000 { i << 20 } else { u64::MAX / 2 + (1 << (i % 60) | i) }];
    for order in orders {
        let mut world = World::new(LearnedIndex::new());
        for key in (0..60_000).map(|i| order(i).to_be_bytes()) {
            world.model.insert(key.to_vec(), world.log.append(&key));
        }
        let mut pairs = world.model.iter();
        let mut source = |piece: &mut crate::SortedPiece| {
            piece.clear();
            pairs.by_ref().take(1_000).for_each(|(key, reference)| piece.push(key, *reference));
            !piece.is_empty()
        };
        {
            let _pin = epoch::pin();
            world.index.load_words(&mut [&mut source], &Closed);
            let mut copied = crate::SortedPiece::default();
            world.index.copy_sorted(Start::Edge, 1_000_000, &mut copied, &Closed);
            let words = copied.words().unwrap();
            assert!(words.iter().map(|word| word.to_be_bytes().to_vec()).eq(world.model.keys().cloned()));
            assert!(copied.refs().iter().eq(world.model.values()) && !copied.is_resolved());
        }
        world.check_all();
        (0..3_000u64).for_each(|i| world.put(&(order(i) + 1).to_be_bytes()));
        world.check_all();
    }
}

/// Regression: an index that was loaded with nothing remained a B+-tree for ever.
#[test]
fn loading_nothing_plants_no_subtree() {
    let mut world = World::new(LearnedIndex::new());
    {
        let _pin = epoch::pin();
        world.index.bulk_load(&mut std::iter::empty(), &world.log);
        assert!(world.index.descend(0).is_ok_and(|(root, _)| !is_subtree(root)));
    }
    (0..5000u64).for_each(|i| world.put(&(i << 40).to_be_bytes()));
    world.check_all();
    let _pin = epoch::pin();
    assert!(world.index.descend(0).is_ok_and(|(leaf, _)| !is_subtree(leaf)));
}

/// Regression: an index that was emptied may keep subtrees, and an inner node as its root. A load took its last leaf
/// for its only one, or the root for a subtree's.
#[test]
fn what_was_emptied_is_loaded_again() {
    type Order = fn(u64) -> u64;
    let orders: [Order; 2] = [|i| i << 30, |i| 1 << (i % 63) | i];
    for (order, odd) in orders.into_iter().flat_map(|order| [(order, 0u64), (order, 20_000), (order, 39_999)]) {
        let mut world = World::new(LearnedIndex::new());
        (0..40_000u64).for_each(|i| world.put(&(i << 40).to_be_bytes()));
        world.put(&[&(odd << 40).to_be_bytes()[..], b"x"].concat());
        let left: Vec<_> = world.model.keys().cloned().collect();
        left.iter().for_each(|key| world.delete(key));
        world.check_all();
        for key in (0..9000).map(|i| order(i).to_be_bytes()) {
            world.model.insert(key.to_vec(), world.log.append(&key));
        }
        {
            let _pin = epoch::pin();
            world.index.bulk_load(&mut world.model.values().copied(), &world.log);
        }
        world.check_all();
    }
}

/// Regression: an empty leaf stays if no leaf is beside it, and may get neighbours when inner nodes merge. The check
/// reported that as damage.
#[test]
fn empty_leaves_may_get_neighbours() {
    let mut world = World::new(LearnedIndex::new());
    let key = |i: u64| (i << 40).to_be_bytes();
    // Leaves of one key each; inner nodes split at 9216 children, into halves that together are too large to merge.
    for i in 0..9300u64 {
        let _pin = epoch::pin();
        let reference = world.log.append(&key(i));
        while world.index.append_whole(&[Entry { slice: i << 40, value: reference.0 }]).is_err() {}
        world.index.tree.keys.one_more();
        world.model.insert(key(i).to_vec(), reference);
    }
    world.check_all();
    // The right half except for its last leaf, then that leaf, then nearly all of the left half.
    (4608..9299).chain([9299]).for_each(|i| world.delete(&key(i)));
    world.check_all();
    (2..4608).rev().for_each(|i| world.delete(&key(i)));
    world.check_all();
    (0..9300).step_by(3).for_each(|i| world.put(&key(i)));
    world.check_all();
}

/// Keys loaded after a subtree go into it without a search, but only if no other node takes greater keys: an index that
/// was emptied may have leaves there.
#[test]
fn loads_go_on_behind_subtrees() {
    for odd in [None, Some(10_000u64), Some(39_999)] {
        let mut world = World::new(LearnedIndex::new());
        if let Some(odd) = odd {
            (0..40_000u64).for_each(|i| world.put(&(i << 40).to_be_bytes()));
            world.put(&[&(odd << 40).to_be_bytes()[..], b"x"].concat());
            let left: Vec<_> = world.model.keys().cloned().collect();
            left.iter().for_each(|key| world.delete(key));
        }
        for i in 0..30_000u64 {
            let tail = &b"tail"[..if i < 3000 { 0 } else { i as usize % 3 }];
            let key = [&(i << 40 | 1).to_be_bytes()[..], tail].concat();
            world.model.insert(key.clone(), world.log.append(&key));
        }
        {
            let _pin = epoch::pin();
            world.index.bulk_load(&mut world.model.values().copied(), &world.log);
        }
        world.check_all();
        (0..60_000u64).step_by(7).for_each(|i| world.put(&(i << 39).to_be_bytes()));
        world.check_all();
    }
}

/// Words of one of four distributions; a few keys of other lengths (`often`: one in thirty) plant subtrees among the
/// leaves.
fn mixed_key(rng: &mut Rng, distribution: usize, often: bool) -> Vec<u8> {
    let word = match distribution {
        0 => (rng.below(40_000) as u64) << 48,
        1 => rng.below(30_000) as u64 * 0x1_0000_0001,
        2 => rng.word() >> rng.below(60),
        _ => u64::MAX - ((rng.below(20_000) as u64) << 8),
    };
    let mut key = word.to_be_bytes().to_vec();
    match rng.below(if often { 60 } else { 2000 }) {
        0 => key.truncate(1 + rng.below(7)),
        1 => key.extend(std::iter::repeat_n([0u8, 0xff, 1][rng.below(3)], 1 + rng.below(20))),
        _ => {}
    }
    key
}

/// Random operations on leaves and subtrees beside each other, loaded or grown. Deletes remove the key next to a random
/// one, or all from the left.
#[test]
fn leaves_and_subtrees_agree_with_a_map() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let (distribution, often) = (seed as usize % 4, seed < 4);
        let mut world = World::new(LearnedIndex::new());
        if seed % 3 == 0 {
            let keys: std::collections::BTreeSet<_> = (0..8_000).map(|_| mixed_key(&mut rng, distribution, often)).collect();
            world.model = keys.into_iter().map(|key| (key.clone(), world.log.append(&key))).collect();
            let _pin = epoch::pin();
            world.index.bulk_load(&mut world.model.values().copied(), &world.log);
        }
        for growing in [85, 30, 70, 2] {
            let from_left = rng.below(3) == 0;
            for _ in 0..6_000 {
                let mut key = mixed_key(&mut rng, distribution, often);
                let action = rng.below(100);
                if action < growing {
                    world.put(&key);
                } else if action < 96 {
                    let from = if from_left { Vec::new() } else { key };
                    let next = world.model.range(from..).next().map(|(next, _)| next.clone());
                    next.into_iter().for_each(|next| world.delete(&next));
                } else {
                    ordered::keys::mutate(&mut key, &mut rng);
                    world.check_get(&key);
                    let start = [Start::Edge, Start::At(&key), Start::After(&key)][rng.below(3)];
                    world.check_scan(start, rng.below(2) == 0, [1, 10, 1000][rng.below(3)]);
                }
            }
            world.check_all();
        }
    }
}
