//! Work deferred until a grace period has passed: freeing replaced nodes, recycling memory.
//!
//! Work gathers in a batch. A full batch gets one stamp, so that its work shares the cost of the stamp (a barrier on
//! all processors). A batch runs once its stamp has passed, on the thread that fills a later batch or calls
//! [`collect`].
//!
//! Panics: work that panics is gone, and the panic reaches the thread that ran it. The rest of the work that was about
//! to run waits again.

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

/// How many pieces of work share a stamp.
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

/// Work that may run. Any of it that has not run when this is dropped waits again.
#[cfg(not(loom))]
struct Ready(VecDeque<Work>);

#[cfg(not(loom))]
impl Drop for Ready {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // The stamp of this work has passed. So has stamp 0, which is older than all others and keeps the batches
            // in order.
            QUEUE.lock().stamped.push_front((0, self.0.drain(..).collect()));
        }
    }
}

/// Stamps the work that has gathered and runs all work that may run by now. Returns how many pieces ran. Never blocks
/// on pins.
#[cfg(not(loom))]
pub fn collect() -> usize {
    let mut ready = Ready(VecDeque::new());
    {
        let mut queue = QUEUE.lock();
        if !queue.fresh.is_empty() {
            let batch = std::mem::take(&mut queue.fresh);
            // The stamp is drawn under the lock, so the batches are in the order of their stamps, and after the work
            // was deferred, so the pins that the work has to wait for are older than the stamp.
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

/// How many pieces of deferred work wait.
pub fn pending() -> usize {
    let queue = QUEUE.lock();
    queue.fresh.len() + queue.stamped.iter().map(|(_, batch)| batch.len()).sum::<usize>()
}
