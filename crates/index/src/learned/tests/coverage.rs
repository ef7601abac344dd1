//! A run that never met a structure change is a failed run. Inner nodes split and merge only in indexes that are larger than the suite's.

use crate::btree::protocol::{Point, Protocol};
use crate::common::twins::Counts;
use crate::conformance::Rng;
use crate::conformance::ordered::{self, World};
use crate::learned::Learned;

const POINTS: [Point; 13] = [
    Point::ScanRead,
    Point::ScanReseek,
    Point::Descend,
    Point::Grow,
    Point::LeafSplit,
    Point::EdgeSplit,
    Point::RootSplit,
    Point::InnerSplit,
    Point::NewLayer,
    Point::LeafMerge,
    Point::InnerMerge,
    Point::RootCollapse,
    Point::TokenHit,
];

static REACHED: Counts = Counts::new();

struct Counting;

impl Protocol for Counting {
    fn reached(point: Point) {
        REACHED.reached(point);
    }
}

/// Clusters of clusters, so that no model fits: small leaves, and many of them.
fn large() {
    let mut world = World::new(Learned::<Counting>::new());
    let mut rng = Rng::new(8);
    let keys: Vec<_> = (0..250_000)
        .map(|_| {
            ((rng.below(40) as u64).pow(9) << 12 ^ (rng.below(60) as u64).pow(5) << 6 ^ rng.below(1 << 12) as u64 >> rng.below(12))
                .to_be_bytes()
        })
        .chain((0..150_000).map(|i: u64| ((1 << 63) | (i / 150) << (i / 150 % 40) | (i % 150) << 3).to_be_bytes()))
        .collect();
    keys.iter().for_each(|key| world.put(key));
    world.check_all();
    let mut left: Vec<_> = world.model.keys().cloned().collect();
    (1..left.len()).for_each(|i| left.swap(i, rng.below(i + 1)));
    left.iter().for_each(|key| world.delete(key));
    world.check_all();
}

#[test]
fn every_structure_change_is_reached() {
    ordered::run_all(Learned::<Counting>::new);
    large();
    REACHED.assert_all(&POINTS, 1);
}
