//! The suite of ordered indexes. A run that never met some structure change is a failed run. Inner nodes split only in
//! an index larger than the suite's ([`large`]). They merge only in indexes that hardly have subtrees, which stay, so
//! this run does not demand that.

use crate::btree::protocol::{Point, Protocol};
use crate::common::twins::Counts;
use crate::conformance::Rng;
use crate::conformance::ordered::{self, World};
use crate::learned::Learned;
use crate::learned::gapped::Gapped;
use crate::learned::subtree::is_subtree;
use hither_sync::epoch;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

const POINTS: [Point; 13] = [
    Point::ScanRead,
    Point::ScanReseek,
    Point::Descend,
    Point::NewLayer,
    Point::TokenHit,
    Point::Subtree,
    Point::ArrayGrow,
    Point::ArraySplit,
    Point::ArrayEdgeSplit,
    Point::ArrayRootSplit,
    Point::ArrayInnerSplit,
    Point::ArrayMerge,
    Point::ArrayCollapse,
];

static REACHED: Counts = Counts::new();

struct Counting;

impl Protocol for Counting {
    fn reached(point: Point) {
        REACHED.reached(point);
    }
}

/// Many short runs at places that no line fits, while a line fits each run: many small leaves below inner nodes that
/// are split. Then words that no line fits.
fn large() {
    let mut world = World::new(Learned::<Counting>::new());
    let mut rng = Rng::new(8);
    let mut runs: Vec<u64> = (0..2500).map(|i: u64| (1 << 40) + (i << 16) * (i / 50).pow(4)).collect();
    (1..runs.len()).for_each(|i| runs.swap(i, rng.below(i + 1)));
    for run in runs {
        (0..120u64).for_each(|i| world.put(&(run + i).to_be_bytes()));
    }
    (0..20_000).for_each(|_| world.put(&(1 << 63 | 1 << rng.below(62) | rng.word() >> 40).to_be_bytes()));
    world.check_all();
    let mut left: Vec<_> = world.model.keys().cloned().collect();
    // First leaf by leaf, so that inner nodes are left with few children; then in random order.
    let half = left.len() / 2;
    (half + 1..left.len()).for_each(|i| left.swap(i, half + rng.below(i + 1 - half)));
    left.iter().for_each(|key| world.delete(key));
    world.check_all();
}

#[test]
fn the_ordered_suite_holds_and_every_structure_change_is_reached() {
    ordered::run_all(Learned::<Counting>::new);
    large();
    REACHED.assert_all(&POINTS, 1);
}

static PAIRS: AtomicUsize = AtomicUsize::new(0);

struct CountingPairs;

impl Protocol for CountingPairs {
    fn reached(point: Point) {
        PAIRS.fetch_add(usize::from(matches!(point, Point::ArrayPair)), Relaxed);
    }
}

/// Regression: a delete in a leaf of few slots beside a full one locked both, and the inner node above, before it saw
/// that they have too many slots to merge.
#[test]
fn a_small_leaf_beside_a_full_one_locks_nothing_in_vain() {
    let mut world = World::new(Learned::<CountingPairs>::new());
    let key = |i: u64| (i << 40).to_be_bytes();
    (0..40_000u64).for_each(|i| world.put(&key(i)));
    let first = |world: &World<Learned<CountingPairs>>| {
        let _pin = epoch::pin();
        let (leaf, _) = world.index.descend(0).unwrap();
        assert!(!is_subtree(leaf));
        Gapped(leaf).count()
    };
    let mut least = 0;
    while first(&world) > 2 {
        world.delete(&key(least));
        least += 1;
    }
    for _ in 0..100 {
        world.delete(&key(least));
        world.put(&key(least));
    }
    assert_eq!((first(&world), PAIRS.load(Relaxed)), (2, 0));
    // The last key is removed with its leaf.
    (least..least + 2).for_each(|i| world.delete(&key(i)));
    assert_eq!(PAIRS.load(Relaxed), 1);
    world.check_all();
}
