//! The closed loop: the threads do as many operations as they can.
//!
//! Few calls are timed ([`Sampling`]). The clock of these calls also shows whether the time is up, so the loop reads no
//! other clock. Warm-up operations come before the barrier.

use std::time::{Duration, Instant};

use super::latency::Latencies;
use super::sampling::{Pace, Sampling};
use super::team::{Member, Outcome, Team};
use super::worker::Worker;
use crate::target::{Result, Session, Target};
use crate::workload::stream::Stream;

/// Length of the measurement, and how often it samples.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    /// Measured operations of all threads together (load and delete: every key once).
    pub ops: u64,
    /// Operations of all threads before the clock starts; kinds that touch each key once have none.
    pub warmup_ops: u64,
    /// Ends the measurement even if operations are left.
    pub at_most: Duration,
    /// The calls that are timed.
    pub sampling: Sampling,
}

impl Closed {
    /// Runs the loop on all threads of the team.
    pub fn run<T: Target>(&self, team: &Team<'_, T>) -> Result<Outcome> {
        let threads = team.threads as u64;
        let warmup = warmup_of_each(team.workload.kind, self.warmup_ops, threads);
        let count = warmup + self.ops.div_ceil(threads);
        team.run(count, |member| self.drive(member, warmup, team.keys))
    }

    fn drive<S: Session>(&self, member: Member<'_, S>, warmup: u64, keys: u64) -> Result<Outcome> {
        let Member { mut worker, mut stream, barrier, .. } = member;
        let keep = stream.remaining().saturating_sub(warmup);
        let warmed = run_down(&mut worker, &mut stream, keep);
        barrier.wait();
        warmed?;
        let checked_before = worker.checked();
        let (mut latencies, mut ops, mut pace) = (Latencies::default(), 0, Pace::new(self.sampling));
        let started = Instant::now();
        let mut now = started;
        while stream.remaining() > 0 && now.duration_since(started) < self.at_most {
            let before = now;
            ops += worker.call(&mut stream)?;
            latencies.record_for(before.elapsed(), pace.calls());
            ops += worker.calls(&mut stream, pace.between())?;
            now = Instant::now();
            pace.took(now.duration_since(before));
        }
        worker.finish(keys)?;
        Ok(Outcome { ops, checked: worker.checked() - checked_before, started, ended: now, latencies })
    }
}

/// Warm-up operations of each thread. They are whole groups, so that no group spans the end of the warm-up. Kinds that
/// touch each key once have none.
pub(super) fn warmup_of_each(kind: crate::workload::Kind, ops: u64, threads: u64) -> u64 {
    let once = kind.write_share() >= 1.0 && !repeats(kind);
    if once { 0 } else { ops / threads / kind.group() * kind.group() }
}

fn repeats(kind: crate::workload::Kind) -> bool {
    use crate::workload::Kind;
    matches!(kind, Kind::Update | Kind::PutBatch(_) | Kind::Rmw)
}

/// Does operations until only `keep` are left.
pub(super) fn run_down<S: Session>(worker: &mut Worker<'_, S>, stream: &mut Stream, keep: u64) -> Result<()> {
    while stream.remaining() > keep {
        worker.call(stream)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::verify::Present;
    use crate::target::map::MapTarget;
    use crate::target::store::{Index, StoreTarget};
    use crate::workload::Workload;
    use crate::workload::data::DataSet;

    fn measure(target: &MapTarget, workload: &str, ops: u64, epoch: u32) -> Result<Outcome> {
        let (data, workload) = (DataSet::new(8, 8, 3), workload.parse::<Workload>().expect("valid"));
        let team = Team { target, data: &data, workload: &workload, threads: 2, keys: 10_001, inserted: 0, seed: 1, epoch };
        Closed { ops, warmup_ops: 100, at_most: Duration::from_secs(60), sampling: Sampling::OneIn(8) }.run(&team)
    }

    #[test]
    fn counts_checks_and_samples() {
        let map = MapTarget::new(10_001);
        assert_eq!(measure(&map, "load", 0, 0).expect("load").ops, 10_001);
        let got = measure(&map, "get:zipf", 20_000, 1).expect("get");
        assert_eq!((got.ops, got.checked), (20_000, 20_000));
        assert_eq!(got.latencies.count(), 2_500);
        assert_eq!(measure(&map, "ycsb-d", 20_000, 2).expect("mix").ops, 20_000);
        assert_eq!(measure(&map, "multi-get=16:uniform", 16_000, 3).expect("multi-get").ops, 16_000);
        assert_eq!(measure(&map, "delete", 0, 4).expect("delete").ops, 10_001);
        assert!(measure(&map, "get", 100, 5).is_err(), "a missing key is an error, not a fast read");
    }

    /// Values of more than eight bytes are built ahead of the calls, and so are the values that reads are compared
    /// with.
    #[test]
    fn long_values_are_counted_and_checked_as_short_ones() {
        let store = StoreTarget::create_with(hither::Db::builder().in_memory(), Index::Hash).expect("a store");
        let measure = |value_bytes, workload: &str, ops, epoch| {
            let (data, workload) = (DataSet::new(8, value_bytes, 3), workload.parse::<Workload>().expect("valid"));
            let team = Team { target: &store, data: &data, workload: &workload, threads: 2, keys: 3_001, inserted: 0, seed: 1, epoch };
            Closed { ops, warmup_ops: 100, at_most: Duration::from_secs(60), sampling: Sampling::OneIn(8) }.run(&team)
        };
        for (epoch, value_bytes) in [(0, 48), (10, 53), (20, 256), (30, 257)] {
            let load = if epoch == 0 { "load" } else { "update" };
            assert!(measure(value_bytes, load, 3_001, epoch).expect(load).ops >= 3_001);
            // Updates draw their keys at random; a load writes all keys once more, in order.
            assert_eq!(measure(value_bytes, "load", 0, epoch + 1).expect("load").ops, 3_001);
            let got = measure(value_bytes, "get:zipf", 20_000, epoch + 2).expect("get");
            assert_eq!((got.ops, got.checked), (20_000, 20_000));
            assert_eq!(measure(value_bytes, "ycsb-a", 20_000, epoch + 3).expect("reads and updates").ops, 20_000);
            assert_eq!(measure(value_bytes, "ycsb-f", 20_000, epoch + 4).expect("read-modify-writes").ops, 20_000);
            assert!(measure(value_bytes + 1, "get", 100, epoch + 5).is_err(), "a value of another length is an error");
        }
        assert_eq!(measure(257, "delete", 0, 40).expect("delete").ops, 3_001);
        assert!(measure(48, "get", 100, 41).is_err(), "a missing key is an error, not a fast read");
    }

    #[test]
    fn verification_sees_presence_and_absence() {
        let (map, data, workload) = (MapTarget::new(10), DataSet::new(8, 8, 3), "load".parse::<Workload>().expect("valid"));
        let team = Team { target: &map, data: &data, workload: &workload, threads: 2, keys: 500, inserted: 0, seed: 1, epoch: 0 };
        assert_eq!(team.verify(Present::None, &[]).expect("empty"), 500);
        assert!(team.verify(Present::All, &[]).is_err());
        Closed { ops: 0, warmup_ops: 0, at_most: Duration::from_secs(9), sampling: Sampling::OneIn(1) }.run(&team).expect("load");
        assert_eq!(team.verify(Present::All, &[]).expect("full"), 500);
        assert!(team.verify(Present::None, &[]).is_err());
    }
}
