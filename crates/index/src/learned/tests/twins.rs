//! Planted bugs, each caught by the part of the suite that aims at it; the unplanted twin with the same pauses passes.

use crate::common::twins::{BlindScan, Paused, Uncoupled, runs_to_failure};
use crate::conformance::ordered::concurrent;
use crate::learned::Learned;

#[test]
fn a_scan_that_does_not_validate() {
    let runs = runs_to_failure(|| concurrent::scans_see_what_stays(Learned::<BlindScan>::new, 0), 40);
    assert!(runs.is_some(), "the planted bug goes unnoticed");
    assert_eq!(runs_to_failure(|| concurrent::scans_see_what_stays(Learned::<Paused>::new, 0), 2), None, "the sound twin passes");
}

#[test]
fn a_descent_without_coupling() {
    let runs = runs_to_failure(|| concurrent::roots_grow_and_shrink(Learned::<Uncoupled>::new, 1), 10)
        .or_else(|| runs_to_failure(|| concurrent::gets_see_what_stays(Learned::<Uncoupled>::new, 0), 40));
    assert!(runs.is_some(), "the planted bug goes unnoticed");
    assert_eq!(runs_to_failure(|| concurrent::gets_see_what_stays(Learned::<Paused>::new, 0), 2), None, "the sound twin passes");
}
