//! Work put off until a grace period has passed: freeing replaced nodes, recycling memory.
//!
//! Work gathers in a batch; a full batch gets one stamp, so that the cost of a stamp (a barrier on all processors) is shared. A batch
//! runs once its stamp has passed, on whichever thread fills a later batch or calls [`collect`].
//!
//! Panics: work that panics is gone, and the panic goes to whoever ran it; what had its turn with it waits again.

#[cfg(not(loom))]
use super::{has_passed, stamp};
use parking_lot::Mutex;
use std::collections::VecDeque;

type Work = Box<dyn FnOnce() + Send>;

struct Queue {
    /// Not stamped yet.
    fresh: Vec<Work>,
    /// Stamped batches, oldest first.
    stamped: VecDeque<(u64, Vec<Work>)>,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { fresh: Vec::new(), stamped: VecDeque::new() });

/// Work that shares a stamp.
const BATCH: usize = 64;

/// Runs `work` once every pin that exists now has ended, on some thread that calls `defer` or [`collect`] later.
pub fn defer(work: impl FnOnce() + Send + 'static) {
    let full = {
        let mut queue = QUEUE.lock();
        queue.fresh.push(Box::new(work));
        queue.fresh.len() >= BATCH
    };
    if full {
        collect();
    }
}

/// Work that may run. What has not run when this is dropped waits again.
#[cfg(not(loom))]
struct Ready(VecDeque<Work>);

#[cfg(not(loom))]
impl Drop for Ready {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // Its stamp has passed, as this one has, which is older than all.
            QUEUE.lock().stamped.push_front((0, self.0.drain(..).collect()));
        }
    }
}

/// Stamps the work that has gathered and runs what may run by now; returns how much. Never blocks on pins.
#[cfg(not(loom))]
pub fn collect() -> usize {
    let mut ready = Ready(VecDeque::new());
    {
        let mut queue = QUEUE.lock();
        if !queue.fresh.is_empty() {
            let batch = std::mem::take(&mut queue.fresh);
            // Drawn under the lock and after the work was put off, so that batches are ordered and their pins are older.
            queue.stamped.push_back((stamp(), batch));
        }
        while queue.stamped.front().is_some_and(|(stamp, _)| has_passed(*stamp)) {
            ready.0.extend(queue.stamped.pop_front().into_iter().flat_map(|(_, batch)| batch));
        }
    }
    let count = ready.0.len();
    while let Some(work) = ready.0.pop_front() {
        work();
    }
    count
}

/// Under loom nothing is collected.
#[cfg(loom)]
pub fn collect() -> usize {
    0
}

/// How much deferred work waits.
pub fn pending() -> usize {
    let queue = QUEUE.lock();
    queue.fresh.len() + queue.stamped.iter().map(|(_, batch)| batch.len()).sum::<usize>()
}
