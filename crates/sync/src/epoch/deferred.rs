//! Work put off until a grace period has passed: freeing replaced nodes, recycling memory.

#[cfg(not(loom))]
use super::{has_passed, stamp};
use parking_lot::Mutex;
use std::collections::VecDeque;

type Work = Box<dyn FnOnce() + Send>;

/// Deferred work in the order of its stamps.
static QUEUE: Mutex<VecDeque<(u64, Work)>> = Mutex::new(VecDeque::new());

/// How much work may wait before `defer` itself tries to do some.
const BATCH: usize = 32;

/// Runs `work` once every pin that exists now has ended, on some thread that calls `defer` or [`collect`] later.
#[cfg(not(loom))]
pub fn defer(work: impl FnOnce() + Send + 'static) {
    let waiting = {
        let mut queue = QUEUE.lock();
        // Drawn under the lock, so that the queue is ordered by stamp.
        queue.push_back((stamp(), Box::new(work)));
        queue.len()
    };
    if waiting.is_multiple_of(BATCH) {
        collect();
    }
}

/// Runs the deferred work whose grace period has passed; returns how much. Never blocks on pins.
#[cfg(not(loom))]
pub fn collect() -> usize {
    let mut ready = Vec::new();
    {
        let mut queue = QUEUE.lock();
        let passed = queue.iter().rposition(|(stamp, _)| has_passed(*stamp)).map_or(0, |last| last + 1);
        ready.extend(queue.drain(..passed));
    }
    let count = ready.len();
    for (_, work) in ready {
        work();
    }
    count
}

/// Under loom nothing is deferred.
#[cfg(loom)]
pub fn defer(work: impl FnOnce() + Send + 'static) {
    QUEUE.lock().push_back((0, Box::new(work)));
}

/// Under loom nothing is collected.
#[cfg(loom)]
pub fn collect() -> usize {
    0
}

/// How much deferred work waits.
pub fn pending() -> usize {
    QUEUE.lock().len()
}
