//! Deferred work that panics. This test has a process to itself, because the queue is shared by the whole process.
#![cfg(not(loom))]

use hither_sync::epoch;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Regression: the rest of the work that was due with it was dropped without having run, and the memory that it was to
/// free leaked.
#[test]
fn work_that_panics_takes_no_other_with_it() {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = || {
        let ran = ran.clone();
        epoch::defer(move || _ = ran.fetch_add(1, Ordering::Relaxed));
    };
    count();
    epoch::defer(|| panic!("meant to"));
    (0..3).for_each(|_| count());
    assert!(catch_unwind(AssertUnwindSafe(epoch::collect)).is_err());
    assert_eq!((ran.load(Ordering::Relaxed), epoch::pending()), (1, 3));
    assert_eq!(epoch::collect(), 3);
    assert_eq!((ran.load(Ordering::Relaxed), epoch::pending()), (4, 0));
}
