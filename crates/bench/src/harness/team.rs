//! Starts the threads of a measurement together and adds up their results.
//!
//! Thread safety: scoped threads; each has its own session and stream, built before the barrier.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::latency::Latencies;
use super::pin::pin_thread;
use super::worker::Worker;
use crate::target::{Result, Target};
use crate::workload::Workload;
use crate::workload::data::DataSet;
use crate::workload::stream::{Place, Stream};

/// Everything that the threads of a measurement have in common.
#[derive(Clone, Copy)]
pub struct Team<'a, T> {
    /// The store.
    pub target: &'a T,
    /// The makers of keys and values.
    pub data: &'a DataSet,
    /// The workload to run.
    pub workload: &'a Workload,
    /// Number of threads.
    pub threads: usize,
    /// Number of keys that are in the store, or are to be loaded.
    pub keys: u64,
    /// Ids behind those of `keys` that phases before this one may have inserted.
    pub inserted: u64,
    /// Seed of the streams.
    pub seed: u64,
    /// The number of this phase. It gives the phase its own streams, and another beginning of versions.
    pub epoch: u32,
}

/// The result of one thread, or of all together.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Number of operations.
    pub ops: u64,
    /// Number of values and pairs checked.
    pub checked: u64,
    /// When the first thread began.
    pub started: Instant,
    /// When the last thread ended.
    pub ended: Instant,
    /// Latencies of the timed calls.
    pub latencies: Latencies,
}

impl Outcome {
    /// Time from the first start to the last end.
    pub fn elapsed(&self) -> Duration {
        self.ended.duration_since(self.started)
    }

    /// Operations per second.
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.elapsed().as_secs_f64().max(1e-9)
    }

    fn join(mut self, other: &Self) -> Self {
        self.ops += other.ops;
        self.checked += other.checked;
        self.started = self.started.min(other.started);
        self.ended = self.ended.max(other.ended);
        self.latencies.merge(&other.latencies);
        self
    }
}

/// The arguments of a loop: the worker, its stream, and the barrier at which all threads meet.
pub(super) struct Member<'a, S> {
    pub worker: Worker<'a, S>,
    pub stream: Stream,
    pub barrier: &'a Barrier,
    pub thread: usize,
}

impl<T> Team<'_, T> {
    fn place(&self) -> Place {
        Place { keys: self.keys, threads: self.threads, thread: 0, inserted: self.inserted, seed: self.seed }
    }
}

impl<T: Target> Team<'_, T> {
    /// Runs `body` on every thread with a stream of `count` operations per thread. `body` waits at the barrier exactly
    /// once, before it starts its clock. An error of any thread is the error of the measurement.
    pub(super) fn run<F>(&self, count: u64, body: F) -> Result<Outcome>
    where
        F: for<'m> Fn(Member<'m, T::Session<'m>>) -> Result<Outcome> + Sync,
    {
        let barrier = Barrier::new(self.threads);
        let results: Vec<Result<Outcome>> = std::thread::scope(|scope| {
            let spawn = |thread| {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    pin_thread(thread, self.threads);
                    let place = Place { thread, seed: self.seed ^ u64::from(self.epoch), ..self.place() };
                    let stream = Stream::new(self.workload, &place, count);
                    let session = match self.target.session() {
                        Ok(session) => session,
                        Err(error) => {
                            // The other threads wait for this one, too.
                            barrier.wait();
                            return Err(error);
                        }
                    };
                    let epoch = self.epoch.wrapping_mul(self.threads as u32).wrapping_add(thread as u32 + 1);
                    let worker = Worker::new(session, self.data, self.workload, epoch);
                    body(Member { worker, stream, barrier, thread })
                })
            };
            let handles: Vec<_> = (0..self.threads).map(spawn).collect();
            handles.into_iter().map(|h| h.join().expect("a measuring thread does not panic")).collect()
        });
        let mut outcomes = results.into_iter().collect::<Result<Vec<_>>>()?.into_iter();
        let first = outcomes.next().expect("at least one thread");
        Ok(outcomes.fold(first, |all, one| all.join(&one)))
    }
}
