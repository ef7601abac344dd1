//! Planted bugs, each caught by the part of the suite that aims at it; the unplanted twin with the same pauses passes.

use crate::btree::BTree;
use crate::btree::protocol::{Point, Protocol};
use crate::conformance::ordered::concurrent;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Lets other threads come in between: always at a half-done step, at other points every now and then.
fn pause(point: Point) {
    thread_local! {
        static TURN: Cell<u32> = const { Cell::new(0) };
    }
    let turn = TURN.get().wrapping_add(1);
    TURN.set(turn);
    match point {
        Point::HalfDone => std::thread::sleep(Duration::from_micros(200)),
        Point::ScanRead | Point::Descend if turn.is_multiple_of(61) => std::thread::yield_now(),
        _ => {}
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
twin!(UnlinkedSibling, LINK_FIRST);
twin!(TornRoot, ROOT_ATOMIC);
twin!(LateUnlink, UNLINK_ATOMIC);
twin!(Uncoupled, COUPLED);

/// Runs `part` until it fails; how many runs that took, or `None`.
fn runs_to_failure(mut part: impl FnMut(), limit: usize) -> Option<usize> {
    (1..=limit).find(|_| catch_unwind(AssertUnwindSafe(&mut part)).is_err())
}

macro_rules! caught {
    ($test:ident, $twin:ident, $part:path) => {
        #[test]
        fn $test() {
            let runs = runs_to_failure(|| $part(BTree::<$twin>::new, 0), 40);
            assert!(runs.is_some(), "the planted bug goes unnoticed");
            assert_eq!(runs_to_failure(|| $part(BTree::<Paused>::new, 0), 2), None, "the sound twin passes");
        }
    };
}

caught!(a_scan_that_does_not_validate, BlindScan, concurrent::scans_see_what_stays);
caught!(a_sibling_published_before_it_is_linked, UnlinkedSibling, concurrent::gets_see_what_stays);
caught!(a_root_split_in_steps, TornRoot, concurrent::roots_grow_and_shrink);
caught!(a_leaf_unlinked_in_steps, LateUnlink, concurrent::leaves_empty_and_fill);
caught!(a_descent_without_coupling, Uncoupled, concurrent::gets_see_what_stays);

/// For nights: `cargo test -p hither-index --release -- --ignored soak`.
#[test]
#[ignore = "takes minutes"]
fn soak() {
    let make = BTree::<Paused>::new;
    for round in 0..60 {
        concurrent::scans_see_what_stays(make, round);
        concurrent::gets_see_what_stays(make, round);
        concurrent::leaves_empty_and_fill(make, round);
        concurrent::layers_come_and_go(make, round);
        concurrent::roots_grow_and_shrink(make, round);
        concurrent::installs_exclude(make, round);
    }
}
