//! Planted bugs, each caught by the part of the suite that aims at it. The sound twin with the same pauses passes.

use crate::btree::protocol::Rule;
use crate::common::twins::{Twin, assert_caught};
use crate::conformance::ordered::concurrent;
use crate::learned::Learned;

#[test]
fn a_scan_that_does_not_validate() {
    assert_caught(Rule::ScanValidates, || concurrent::scans_see_what_stays(Learned::<Twin>::new, 0), 40);
}

#[test]
fn a_descent_without_coupling() {
    let part = || {
        concurrent::gets_see_what_stays(Learned::<Twin>::new, 0);
        concurrent::roots_grow_and_shrink(Learned::<Twin>::new, 1);
    };
    assert_caught(Rule::Coupled, part, 40);
}
