//! The open loop: operations are due at a fixed rate, whatever the store does.
//!
//! Operation `i` of a thread is due at `start + i / rate`. Its latency runs from that moment to its end. After a stall
//! the thread works off the operations that have become due, and each of them carries the wait that a client would have
//! seen. A closed loop would have made fewer calls during the stall and hidden it (coordinated omission).
//!
//! Operations that are still due when the time is up have waited until then, and count with that wait. Otherwise a
//! store that falls behind would be judged only by the calls it got to. Such calls are counted in the latencies, not in
//! the operations.
//!
//! Warm-up operations come first, at full speed, before the barrier.

use std::time::{Duration, Instant};

use super::closed::{run_down, warmup_of_each};
use super::latency::Latencies;
use super::team::{Member, Outcome, Team};
use crate::target::{Result, Session, Target};

/// Rate and length of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Operations per second of all threads together.
    pub rate: f64,
    /// Measured operations of all threads together.
    pub ops: u64,
    /// Operations of all threads before the clock starts; kinds that touch each key once have none.
    pub warmup_ops: u64,
    /// Ends the measurement even if operations are left.
    pub at_most: Duration,
}

/// The moments at which the calls of one thread are due.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    start: Instant,
    interval_ns: f64,
}

impl Schedule {
    fn due(&self, call: u64) -> Instant {
        self.start + Duration::from_nanos((call as f64 * self.interval_ns) as u64)
    }
}

impl Open {
    /// Runs the loop on all threads of the team.
    pub fn run<T: Target>(&self, team: &Team<'_, T>) -> Result<Outcome> {
        let calls_per_s = self.rate / team.workload.kind.group() as f64;
        let interval_ns = team.threads as f64 * 1e9 / calls_per_s;
        let warmup = warmup_of_each(team.workload.kind, self.warmup_ops, team.threads as u64);
        team.run(warmup + self.ops.div_ceil(team.threads as u64), |member| self.drive(member, warmup, interval_ns, team))
    }

    fn drive<T, S>(&self, member: Member<'_, S>, warmup: u64, interval_ns: f64, team: &Team<'_, T>) -> Result<Outcome>
    where
        T: Target,
        S: Session,
    {
        let Member { mut worker, mut stream, barrier, thread } = member;
        let mut latencies = Latencies::default();
        let keep = stream.remaining().saturating_sub(warmup);
        let warmed = run_down(&mut worker, &mut stream, keep);
        barrier.wait();
        warmed?;
        let checked_before = worker.checked();
        let started = Instant::now();
        // The threads are offset against each other, so that their calls do not coincide.
        let offset = Duration::from_nanos((interval_ns * thread as f64 / team.threads as f64) as u64);
        let schedule = Schedule { start: started + offset, interval_ns };
        let (mut ops, mut call, mut now) = (0, 0, started);
        while stream.remaining() > 0 && now.duration_since(started) < self.at_most {
            let due = schedule.due(call);
            wait_until(due);
            ops += worker.call(&mut stream)?;
            now = Instant::now();
            latencies.record(now.saturating_duration_since(due));
            call += 1;
        }
        // At most as many calls as the stream, which is in memory, has left.
        let left = stream.remaining().div_ceil(team.workload.kind.group());
        let overdue = (call..call + left).map(|call| schedule.due(call)).take_while(|due| *due <= now);
        overdue.for_each(|due| latencies.record(now.duration_since(due)));
        worker.finish(team.keys)?;
        Ok(Outcome { ops, checked: worker.checked() - checked_before, started, ended: now, latencies })
    }
}

/// Sleeps for the long part of a wait and spins for the rest.
fn wait_until(due: Instant) {
    const SPIN: Duration = Duration::from_micros(100);
    let left = due.saturating_duration_since(Instant::now());
    if left > SPIN {
        std::thread::sleep(left - SPIN);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Error, Target};
    use crate::workload::Workload;
    use crate::workload::data::DataSet;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Answers at once, but stalls for 50 ms at its hundredth get, or at each one if `always`.
    #[derive(Default)]
    struct Stalling {
        always: bool,
        gets: AtomicU32,
    }
    struct StallingSession<'a>(&'a Stalling, DataSet);

    impl Target for Stalling {
        type Session<'a> = StallingSession<'a>;
        fn name(&self) -> &str {
            "stalling"
        }
        fn settings(&self) -> Vec<(String, String)> {
            Vec::new()
        }
        fn session(&self) -> Result<StallingSession<'_>> {
            Ok(StallingSession(self, DataSet::new(8, 8, 3)))
        }
    }

    impl Session for StallingSession<'_> {
        fn get<R>(&mut self, key: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
            let get = self.0.gets.fetch_add(1, Ordering::Relaxed) + 1;
            if self.0.always || get == 100 {
                std::thread::sleep(Duration::from_millis(50));
            }
            let mut value = [0; 8];
            self.1.value(key, 0, &mut value);
            Ok(Some(f(&value)))
        }
        fn put(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
            Err(Error::Config("unused".into()))
        }
        fn delete(&mut self, _: &[u8]) -> Result<bool> {
            Err(Error::Config("unused".into()))
        }
        fn read_modify_write(&mut self, _: &[u8], _: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
            Err(Error::Config("unused".into()))
        }
        fn scan(&mut self, _: &[u8], _: usize, _: impl FnMut(&[u8], &[u8])) -> Result<usize> {
            Err(Error::Config("unused".into()))
        }
        fn put_batch(&mut self, _: &[Vec<u8>], _: &[Vec<u8>]) -> Result<()> {
            Err(Error::Config("unused".into()))
        }
    }

    /// 2,000 gets at 10,000 per second.
    fn stalling(target: &Stalling, warmup_ops: u64, at_most: Duration) -> Outcome {
        let (data, workload) = (DataSet::new(8, 8, 3), "get:uniform".parse::<Workload>().expect("valid"));
        let team = Team { target, data: &data, workload: &workload, threads: 1, keys: 1000, inserted: 0, seed: 1, epoch: 0 };
        Open { rate: 10_000.0, ops: 2_000, warmup_ops, at_most }.run(&team).expect("a run")
    }

    /// Regression: of the calls due when the time was up only those that were made counted: two of a thousand here.
    /// Each waits 50 ms, so after 100 ms a thousand are due.
    #[test]
    fn calls_that_were_due_and_never_made_have_waited_until_the_end() {
        let outcome = stalling(&Stalling { always: true, ..Stalling::default() }, 0, Duration::from_millis(100));
        let counted = outcome.latencies.count();
        assert!(outcome.ops <= 2 && (1_000..=2_000).contains(&counted), "{} made, {counted} counted", outcome.ops);
    }

    /// Regression: there was no warm-up.
    #[test]
    fn a_warm_up_is_made_and_not_measured() {
        let target = Stalling::default();
        let outcome = stalling(&target, 100, Duration::from_secs(60));
        assert_eq!((outcome.ops, outcome.checked, outcome.latencies.count()), (2_000, 2_000, 2_000));
        assert_eq!(target.gets.load(Ordering::Relaxed), 2_100);
    }

    /// At 10,000 per second a stall of 50 ms covers 500 due operations of 2,000: 25 % of them wait, so p90 shows it. A
    /// loop that measured from the start of the call would show one slow operation. The bounds also hold on a slow
    /// machine, because waits only grow.
    #[test]
    fn a_stall_is_charged_to_every_operation_behind_it() {
        let outcome = stalling(&Stalling::default(), 0, Duration::from_secs(60));
        let q = outcome.latencies.quantiles();
        assert_eq!((outcome.ops, outcome.latencies.count()), (2_000, 2_000));
        assert!(q.max_us >= 50_000.0 && q.p99_us >= 40_000.0, "{q:?}");
    }

    #[test]
    fn due_times_follow_the_rate() {
        let start = Instant::now();
        let schedule = Schedule { start, interval_ns: 250.0 };
        assert_eq!(schedule.due(0), start);
        assert_eq!(schedule.due(4_000_000) - start, Duration::from_secs(1));
    }
}
