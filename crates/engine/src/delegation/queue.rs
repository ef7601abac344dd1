//! The queue of a node's read threads, and the life of a batch.
//!
//! A batch is *asked*, then *running* in one read thread, then *answered*. It is *refused* if no thread will read it.
//! The asking thread may take it back while it is asked.
//!
//! Thread safety: a queue is shared by read threads and scanning threads; everything is volatile. Invariants:
//!
//! * Q1. A batch waits in a queue only while the queue has a server and is open: the last server that leaves, and
//!   `close`, refuse what waits.
//! * Q2. A running batch becomes answered or refused, even if reading it panics.

use super::batch::Batch;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Requests to the read threads of a node.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    /// Number of read threads. Changes under `state`.
    servers: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Request>>,
    closed: bool,
}

struct Request {
    stage: Mutex<Stage>,
    done: Condvar,
}

enum Stage {
    Asked(Batch),
    Running,
    Answered(Batch),
    Refused,
    /// The asking thread has the batch, or no longer wants it.
    Taken,
}

impl Request {
    /// Takes the batch in order to read it. Returns `None` if the asking thread no longer wants it.
    fn begin(&self) -> Option<Batch> {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Running) {
            Stage::Asked(batch) => Some(batch),
            other => {
                *stage = other;
                None
            }
        }
    }

    fn finish(&self, outcome: Stage) {
        *self.stage.lock() = outcome;
        self.done.notify_all();
    }

    /// Marks the request as refused, unless a read thread has begun it.
    fn refuse(&self) {
        if self.begin().is_some() {
            self.finish(Stage::Refused);
        }
    }
}

impl Queue {
    /// Reads batches with `read` until the queue is closed.
    pub fn serve(&self, read: impl Fn(&mut Batch)) {
        let Some(_serving) = self.enter() else { return };
        while let Some(request) = self.next() {
            let Some(mut batch) = request.begin() else { continue };
            // After a panic the batch is not used.
            let outcome = catch_unwind(AssertUnwindSafe(|| read(&mut batch)));
            request.finish(if outcome.is_ok() { Stage::Answered(batch) } else { Stage::Refused });
        }
    }

    pub(super) fn enter(&self) -> Option<Serving<'_>> {
        let state = self.state.lock();
        if state.closed {
            return None;
        }
        self.servers.fetch_add(1, Relaxed);
        Some(Serving(self))
    }

    fn next(&self) -> Option<Arc<Request>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(request) = state.waiting.pop_front() {
                return Some(request);
            }
            self.filled.wait(&mut state);
        }
    }

    /// Hands batches to the read threads, in order. Appends one entry to `pending` for each batch, also if no thread
    /// takes it.
    pub fn submit(&self, batches: Vec<Batch>, pending: &mut Vec<Pending>) {
        let mut state = self.state.lock();
        let open = !state.closed && self.is_served();
        for batch in batches {
            let stage = if open { Stage::Asked(batch) } else { Stage::Refused };
            let request = Arc::new(Request { stage: Mutex::new(stage), done: Condvar::new() });
            if open {
                state.waiting.push_back(request.clone());
                self.filled.notify_one();
            }
            pending.push(Pending { request, answer: None });
        }
    }

    /// Ends the read threads and refuses waiting batches.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting.drain(..).for_each(|request| request.refuse());
        self.filled.notify_all();
    }

    /// Number of read threads that serve the queue.
    pub fn servers(&self) -> usize {
        self.servers.load(Relaxed)
    }

    /// Whether there is a read thread that would take a batch. That may have changed when the batch is handed over.
    #[inline(always)]
    pub fn is_served(&self) -> bool {
        self.servers() > 0
    }
}

/// A read thread at work.
pub(super) struct Serving<'a>(&'a Queue);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if self.0.servers.fetch_sub(1, Relaxed) == 1 {
            state.waiting.drain(..).for_each(|request| request.refuse());
        }
    }
}

/// A batch that was handed over. Dropping it takes the batch back, or waits until the read thread has finished with it.
pub(super) struct Pending {
    request: Arc<Request>,
    /// The answer: the outer option is `None` until it was waited for, the inner one if the batch was refused.
    answer: Option<Option<Batch>>,
}

impl Pending {
    /// Waits for the answer. Returns `None` if the batch was refused.
    #[inline(always)]
    pub fn wait(&mut self) -> Option<&Batch> {
        if self.answer.is_none() {
            self.answer = Some(self.receive());
        }
        self.waited()
    }

    /// The answer, if it was waited for and not refused.
    #[inline(always)]
    pub fn waited(&self) -> Option<&Batch> {
        self.answer.as_ref()?.as_ref()
    }

    /// Returns the batch with its buffers, if its answer has been received.
    pub fn into_batch(mut self) -> Option<Batch> {
        self.answer.take().flatten()
    }

    #[cold]
    fn receive(&self) -> Option<Batch> {
        let mut stage = self.request.stage.lock();
        while matches!(*stage, Stage::Asked(_) | Stage::Running) {
            self.request.done.wait(&mut stage);
        }
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::Answered(batch) => Some(batch),
            _ => None,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut stage = self.request.stage.lock();
        while matches!(*stage, Stage::Running) {
            self.request.done.wait(&mut stage);
        }
        *stage = Stage::Taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_index::Ref;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    fn batch(entries: usize) -> Batch {
        let mut batch = Batch::default().start(false);
        (0..entries).for_each(|_| batch.push(Ref(1), 1));
        batch
    }

    fn submit(queue: &Queue, entries: usize) -> Pending {
        let mut pending = Vec::new();
        queue.submit(vec![batch(entries)], &mut pending);
        pending.pop().unwrap()
    }

    fn wait_for_servers(queue: &Queue, count: usize) {
        while queue.servers() != count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn without_a_server_everything_is_refused() {
        let queue = Queue::default();
        assert!(submit(&queue, 1).wait().is_none());
        queue.close();
        assert!(submit(&queue, 1).wait().is_none());
        queue.serve(|_| panic!("a closed queue has nothing to read"));
        assert_eq!(queue.servers(), 0);
    }

    #[test]
    fn close_refuses_what_nobody_began_and_ends_the_servers() {
        let queue = Queue::default();
        let begun = AtomicBool::new(false);
        let go = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                queue.serve(|_| {
                    begun.store(true, Ordering::Release);
                    while !go.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                })
            });
            wait_for_servers(&queue, 1);
            let mut first = submit(&queue, 1);
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let mut second = submit(&queue, 1);
            queue.close();
            assert!(second.wait().is_none());
            go.store(true, Ordering::Release);
            assert_eq!(first.wait().map(Batch::len), Some(1), "what was begun is answered");
        });
        assert_eq!(queue.servers(), 0);
    }

    /// D1: dropping a batch that is being read must not return before the read thread has finished with it.
    #[test]
    fn a_dropped_batch_is_waited_for_if_it_was_begun_and_taken_back_if_not() {
        let queue = Queue::default();
        let [begun, taken_back, ended] = [const { AtomicBool::new(false) }; 3];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                queue.serve(|batch| {
                    assert_eq!(batch.len(), 1, "the second was taken back");
                    begun.store(true, Ordering::Release);
                    // If taking back waits for this batch, nobody says that it is done.
                    let end = Instant::now() + Duration::from_secs(60);
                    while !taken_back.load(Ordering::Acquire) && Instant::now() < end {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(Duration::from_millis(30));
                    ended.store(true, Ordering::Release);
                })
            });
            wait_for_servers(&queue, 1);
            let first = submit(&queue, 1);
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            drop(submit(&queue, 2));
            assert!(!ended.load(Ordering::Acquire), "taking back does not wait");
            taken_back.store(true, Ordering::Release);
            drop(first);
            assert!(ended.load(Ordering::Acquire));
            queue.close();
        });
    }

    #[test]
    fn a_panic_while_reading_refuses_that_batch_only() {
        let queue = Queue::default();
        std::thread::scope(|scope| {
            scope.spawn(|| queue.serve(|batch| assert_ne!(batch.len(), 3, "on purpose")));
            wait_for_servers(&queue, 1);
            assert!(submit(&queue, 3).wait().is_none());
            assert_eq!(submit(&queue, 2).wait().map(Batch::len), Some(2));
            queue.close();
        });
    }
}
