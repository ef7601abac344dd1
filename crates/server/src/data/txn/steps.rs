//! Counts the steps of scans, for tests: entries that are passed over or shown, and stretches that are skipped. Each
//! thread counts its own.

use std::cell::Cell;

thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

pub fn count() {
    STEPS.set(STEPS.get() + 1);
}

/// The steps since the last call.
pub fn take() -> u64 {
    STEPS.take()
}
