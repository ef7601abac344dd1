//! The closed loop over a long time: how the rate and the stalls change in its course.
//!
//! The calls are those of the closed loop; keys, values and the values that reads are compared with are built before
//! the calls. Few calls are timed ([`Sampling`]) for the quantiles, which are those of puts.
//!
//! The clock reading at the end of such a call also gives the time since the previous reading, so that no stall goes
//! unseen: each slice of time keeps its longest such stretch.
//!
//! Thread safety: a course per thread, joined under a lock at its end.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::latency::Latencies;
use super::sampling::{Pace, Sampling, nanoseconds};
use super::team::{Member, Outcome, Team};
use crate::target::{Error, Result, Session, Target};
use crate::workload::stream::OpKind;

/// Length of the measurement, how often it samples, and its slices.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// Number of operations of all threads together.
    pub ops: u64,
    /// Ends the measurement even if operations are left.
    pub at_most: Duration,
    /// The calls that are timed.
    pub sampling: Sampling,
    /// The length of a slice.
    pub slice: Duration,
}

/// A slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slice {
    /// Number of operations in the stretches that ended in it.
    pub ops: u64,
    /// The longest time from one timed call to the next that ended in it.
    pub worst: Duration,
}

/// The result of the loop.
#[derive(Clone, Debug)]
pub struct Course {
    /// The result of the whole; latencies are those of puts.
    pub outcome: Outcome,
    /// The slices, from the start on.
    pub slices: Vec<Slice>,
}

impl Steady {
    /// Runs the loop on all threads of the team; the workload must be of a kind without groups.
    pub fn run<T: Target>(&self, team: &Team<'_, T>) -> Result<Course> {
        if team.workload.kind.group() > 1 || !self.sampling.is_valid() || self.slice.is_zero() {
            return Err(Error::Config("a course is of single operations, sampled now and then, in slices of some length".into()));
        }
        let slices = Mutex::new(Vec::new());
        let outcome = team.run(self.ops.div_ceil(team.threads as u64), |member| {
            let (outcome, own) = self.drive(member, team.keys)?;
            join(&mut slices.lock().unwrap_or_else(|poisoned| poisoned.into_inner()), &own);
            Ok(outcome)
        })?;
        Ok(Course { outcome, slices: slices.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) })
    }

    fn drive<S: Session>(&self, member: Member<'_, S>, keys: u64) -> Result<(Outcome, Vec<Slice>)> {
        let Member { mut worker, mut stream, barrier, .. } = member;
        barrier.wait();
        let (mut latencies, mut ops, mut slices) = (Latencies::default(), 0, Vec::new());
        let (mut pace, slice_ns) = (Pace::new(self.sampling), nanoseconds(self.slice));
        let started = Instant::now();
        let mut last = started;
        while stream.remaining() > 0 && last.duration_since(started) < self.at_most {
            let mut stretch = worker.calls(&mut stream, pace.between())?;
            let is_put = stream.peek().is_some_and(|op| op.kind() == OpKind::Put);
            let before = Instant::now();
            stretch += worker.call(&mut stream)?;
            let now = Instant::now();
            if is_put {
                latencies.record_for(now.duration_since(before), pace.calls());
            }
            ops += stretch;
            note(&mut slices, (nanoseconds(now.duration_since(started)) / slice_ns) as usize, stretch, now - last);
            pace.took(now - last);
            last = now;
        }
        worker.finish(keys)?;
        let checked = worker.checked();
        Ok((Outcome { ops, checked, started, ended: last, latencies }, slices))
    }
}

fn note(slices: &mut Vec<Slice>, at: usize, ops: u64, took: Duration) {
    if slices.len() <= at {
        slices.resize(at + 1, Slice::default());
    }
    slices[at].ops += ops;
    slices[at].worst = slices[at].worst.max(took);
}

fn join(all: &mut Vec<Slice>, own: &[Slice]) {
    for (at, slice) in own.iter().enumerate() {
        note(all, at, slice.ops, slice.worst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::map::MapTarget;
    use crate::workload::Workload;
    use crate::workload::data::DataSet;
    use crate::workload::stream::{Place, Stream};

    /// The reads, and the timed puts (each fourth operation), in the streams of both threads.
    fn expected(workload: &str, ops: u64, epoch: u64) -> (u64, u64) {
        let (mut reads, mut timed) = (0, 0);
        for thread in 0..2 {
            let place = Place { keys: 1_000, threads: 2, thread, inserted: 0, seed: 1 ^ epoch };
            let mut stream = Stream::new(&workload.parse().expect("valid"), &place, ops / 2);
            for number in 1..=ops / 2 {
                let is_put = stream.take().kind() == OpKind::Put;
                reads += u64::from(!is_put);
                timed += u64::from(is_put && number % 4 == 0);
            }
        }
        (reads, timed)
    }

    #[test]
    fn slices_add_up_and_only_puts_are_timed() {
        let (map, data) = (MapTarget::new(1_000), DataSet::new(8, 8, 3));
        let run = |workload: &str, ops, epoch| {
            let workload = workload.parse::<Workload>().expect("valid");
            let team = Team { target: &map, data: &data, workload: &workload, threads: 2, keys: 1_000, inserted: 0, seed: 1, epoch };
            let course = Steady { ops, at_most: Duration::from_secs(60), sampling: Sampling::OneIn(4), slice: Duration::from_millis(1) };
            course.run(&team)
        };
        run("load", 0, 0).expect("load");
        let course = run("ycsb-a", 400_000, 1).expect("a course");
        assert_eq!((course.outcome.ops, course.slices.iter().map(|slice| slice.ops).sum::<u64>()), (400_000, 400_000));
        assert!(course.slices.len() > 1 && course.slices.iter().any(|slice| slice.worst > Duration::ZERO));
        let (reads, timed) = expected("ycsb-a", 400_000, 1);
        assert_eq!((course.outcome.checked, course.outcome.latencies.count()), (reads, timed));
        assert!((40_000..60_000).contains(&timed), "half of each fourth are puts: {timed}");
        assert_eq!(run("get", 1_000, 2).expect("gets").outcome.latencies.count(), 0);
        assert!(run("multi-get", 1_000, 3).is_err());
        // Its last stretch has no timed call.
        let short = run("ycsb-a", 14, 4).expect("a course").outcome;
        assert_eq!((short.ops, short.checked, short.latencies.count()), (14, expected("ycsb-a", 14, 4).0, expected("ycsb-a", 14, 4).1));
    }

    #[test]
    fn a_stall_is_seen_wherever_it_falls() {
        let mut slices = Vec::new();
        note(&mut slices, 2, 5, Duration::from_micros(7));
        note(&mut slices, 2, 5, Duration::from_micros(3));
        join(&mut slices, &[Slice { ops: 1, worst: Duration::from_micros(9) }]);
        assert_eq!(slices.iter().map(|slice| (slice.ops, slice.worst.as_micros())).collect::<Vec<_>>(), [(1, 9), (0, 0), (10, 7)]);
    }
}
