//! Planted bugs of the protocol that the ordered indexes share, and counting of its points: what their tests are made of.

use crate::btree::protocol::{Point, Protocol};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
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
        Point::ScanRead | Point::Descend | Point::Claimed if turn.is_multiple_of(61) => std::thread::yield_now(),
        _ => {}
    }
}

macro_rules! twin {
    ($name:ident, $what:literal $(, $constant:ident)?) => {
        #[doc = $what]
        pub(crate) struct $name;
        impl Protocol for $name {
            $(const $constant: bool = false;)?
            fn reached(point: Point) {
                pause(point);
            }
        }
    };
}

twin!(Paused, "No bug, but the pauses of the others.");
twin!(BlindScan, "A scan does not validate what it read.", SCAN_VALIDATES);
twin!(UnlinkedSibling, "A sibling is published before it is filled and linked.", LINK_FIRST);
twin!(TornRoot, "A root is split in steps.", ROOT_ATOMIC);
twin!(LateUnlink, "An emptied leaf is unlinked in steps.", UNLINK_ATOMIC);
twin!(Uncoupled, "A descent does not couple versions.", COUPLED);
twin!(LooseClaim, "A claimed place does not keep other writers out.", CLAIMS_EXCLUDE);
twin!(LooseHint, "A hint's slot is changed in whatever state its leaf is by then.", HINTS_HOLD);

/// Runs `part` until it fails; how many runs that took, or `None`.
pub(crate) fn runs_to_failure(mut part: impl FnMut(), limit: usize) -> Option<usize> {
    (1..=limit).find(|_| catch_unwind(AssertUnwindSafe(&mut part)).is_err())
}

/// How often each point of the protocol was reached, by one test.
pub(crate) struct Counts([AtomicUsize; 32]);

impl Counts {
    pub(crate) const fn new() -> Counts {
        Counts([const { AtomicUsize::new(0) }; 32])
    }

    /// Counts, and gives others a chance to come in between, now and then.
    pub(crate) fn reached(&self, point: Point) {
        let times = self.0[point as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if point != Point::Descend && times.is_multiple_of(64) {
            std::thread::yield_now();
        }
    }

    /// A run that met one of these structure changes fewer than `least` times is a failed run; one that met a half-done one, too.
    pub(crate) fn assert_all(&self, points: &[Point], least: usize) {
        let times = |point: Point| self.0[point as usize].load(Ordering::Relaxed);
        for point in points {
            assert!(times(*point) >= least, "{point:?} was reached {} times", times(*point));
        }
        assert_eq!(times(Point::HalfDone), 0);
    }
}
