//! The cost of collecting, by node: bytes of segments emptied, processor time of the threads that emptied them, and how
//! long writers waited for space.
//!
//! Thread safety: the counters are atomic. Processor time is that of the calling thread, so a [`Bill`] stays on the
//! thread that opened it.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the collection of a node has cost since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    segments: AtomicU64,
    bytes: AtomicU64,
    cpu_nanos: AtomicU64,
}

impl Effort {
    /// Counts a segment of `bytes` that was emptied and freed.
    pub fn count(&self, bytes: u64) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the segments, their bytes, and nanoseconds of processor time.
    pub fn read(&self) -> (u64, u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.segments), read(&self.bytes), read(&self.cpu_nanos))
    }
}

/// Charges this thread's processor time to nodes until it is dropped.
pub(crate) struct Bill<'a> {
    efforts: &'a [Effort],
    node: usize,
    since: Duration,
}

impl<'a> Bill<'a> {
    /// Opens a bill that charges `node` first.
    pub fn open(efforts: &'a [Effort], node: usize) -> Bill<'a> {
        Bill { efforts, node, since: thread_time() }
    }

    /// Charges what follows to `node`.
    pub fn turn_to(&mut self, node: usize) {
        if node != self.node {
            self.charge();
            self.node = node;
        }
    }

    fn charge(&mut self) {
        let now = thread_time();
        self.efforts[self.node].cpu_nanos.fetch_add(now.saturating_sub(self.since).as_nanos() as u64, Ordering::Relaxed);
        self.since = now;
    }
}

impl Drop for Bill<'_> {
    fn drop(&mut self) {
        self.charge();
    }
}

/// Adds the time until it is dropped to a counter of nanoseconds.
pub(crate) struct Stopwatch<'a>(&'a AtomicU64, Instant);

impl<'a> Stopwatch<'a> {
    pub fn start(nanos: &'a AtomicU64) -> Stopwatch<'a> {
        Stopwatch(nanos, Instant::now())
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Processor time that this thread has used.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_charges_processor_time_to_the_node_it_turned_to() {
        let efforts = [Effort::default(), Effort::default()];
        let before = thread_time();
        let mut bill = Bill::open(&efforts, 0);
        bill.turn_to(1);
        let end = thread_time() + Duration::from_millis(5);
        while thread_time() < end {}
        drop(bill);
        let used = (thread_time() - before).as_nanos() as u64;
        let charged = [efforts[0].read().2, efforts[1].read().2];
        assert!(charged[1] >= 5_000_000 && charged[0] + charged[1] <= used, "{charged:?} of {used}");
        assert!(charged[0] < charged[1]);
    }
}
