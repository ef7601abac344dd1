//! A run that never met a structure change is a failed run: counts the points of the protocol that the suite reaches.

use crate::btree::BTree;
use crate::btree::protocol::{Point, Protocol};
use crate::conformance::ordered;
use std::sync::atomic::{AtomicUsize, Ordering};

const POINTS: [Point; 16] = [
    Point::ScanRead,
    Point::ScanReseek,
    Point::Descend,
    Point::Grow,
    Point::LeafSplit,
    Point::EdgeSplit,
    Point::RootSplit,
    Point::InnerSplit,
    Point::Redistribute,
    Point::NewLayer,
    Point::PrefixSplit,
    Point::LeafMerge,
    Point::InnerMerge,
    Point::RootCollapse,
    Point::LayerGone,
    Point::TokenHit,
];

static REACHED: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];

struct Counting;

impl Protocol for Counting {
    fn reached(point: Point) {
        REACHED[point as usize].fetch_add(1, Ordering::Relaxed);
        // Gives others a chance to come in between, now and then.
        if point != Point::Descend && REACHED[point as usize].load(Ordering::Relaxed).is_multiple_of(64) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn the_suite_reaches_every_structure_change() {
    ordered::run_all(BTree::<Counting>::new);
    for point in POINTS {
        let times = REACHED[point as usize].load(Ordering::Relaxed);
        assert!(times >= 3, "{point:?} was reached {times} times");
    }
    assert_eq!(REACHED[Point::HalfDone as usize].load(Ordering::Relaxed), 0);
}
