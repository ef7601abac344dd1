//! Planted bugs, each caught by the part of the suite that aims at it; the unplanted twin with the same pauses passes.

use crate::btree::protocol::{Point, Protocol};
use crate::conformance::ordered::concurrent;
use crate::learned::Learned;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Lets other threads come in between, every now and then.
fn pause(point: Point) {
    thread_local! {
        static TURN: Cell<u32> = const { Cell::new(0) };
    }
    let turn = TURN.get().wrapping_add(1);
    TURN.set(turn);
    if matches!(point, Point::ScanRead | Point::Descend) && turn.is_multiple_of(61) {
        std::thread::yield_now();
    }
}

macro_rules! twin {
    ($name:ident $(, $constant:ident)?) => {
        struct $name;
        impl Protocol for $name {
            $(const $constant: bool = false;)?
            fn reached(point: Point) {
                pause(point);
            }
        }
    };
}

twin!(Paused);
twin!(BlindScan, SCAN_VALIDATES);
twin!(Uncoupled, COUPLED);

/// Runs `part` until it fails; how many runs that took, or `None`.
fn runs_to_failure(mut part: impl FnMut(), limit: usize) -> Option<usize> {
    (1..=limit).find(|_| catch_unwind(AssertUnwindSafe(&mut part)).is_err())
}

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
