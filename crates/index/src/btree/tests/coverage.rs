//! The suite of ordered indexes. It counts the points of the protocol that it reaches: a run that never met some
//! structure change is a failed run.

use crate::btree::BTree;
use crate::btree::protocol::{Point, Protocol};
use crate::common::twins::Counts;
use crate::conformance::ordered;

const POINTS: [Point; 18] = [
    Point::ScanRead,
    Point::ScanReseek,
    Point::Descend,
    Point::Grow,
    Point::LeafSplit,
    Point::EdgeSplit,
    Point::RootSplit,
    Point::InnerSplit,
    Point::InnerRedistribute,
    Point::Redistribute,
    Point::NewLayer,
    Point::PrefixSplit,
    Point::LeafMerge,
    Point::InnerMerge,
    Point::RootCollapse,
    Point::LayerGone,
    Point::Claimed,
    Point::TokenHit,
];

static REACHED: Counts = Counts::new();

struct Counting;

impl Protocol for Counting {
    fn reached(point: Point) {
        REACHED.reached(point);
    }
}

#[test]
fn the_ordered_suite_holds_and_reaches_every_structure_change() {
    ordered::run_all(BTree::<Counting>::new);
    REACHED.assert_all(&POINTS, 3);
}
