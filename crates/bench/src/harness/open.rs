//! The open loop: operations are due at a fixed rate, whatever the store does.
//!
//! Operation `i` of a thread is due at `start + i / rate`. Its latency runs from that moment to its end. After a stall the
//! thread works off what has become due, and each of those operations carries the wait that a client would have seen; a closed
//! loop would have asked fewer questions during the stall and hidden it (coordinated omission).

use std::time::{Duration, Instant};

use super::latency::Latencies;
use super::team::{Member, Outcome, Team};
use crate::target::{Result, Session, Target};

/// The rate and how long.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Operations per second of all threads.
    pub rate: f64,
    /// Operations of all threads.
    pub ops: u64,
    /// Ends the measurement even if operations are left.
    pub at_most: Duration,
}

/// The moments at which one thread's calls are due.
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
    /// Runs it.
    pub fn run<T: Target>(&self, team: &Team<'_, T>) -> Result<Outcome> {
        let calls_per_s = self.rate / team.workload.kind.group() as f64;
        let interval_ns = team.threads as f64 * 1e9 / calls_per_s;
        team.run(self.ops.div_ceil(team.threads as u64), |member| self.drive(member, interval_ns, team))
    }

    fn drive<T: Target, S: Session>(&self, member: Member<'_, S>, interval_ns: f64, team: &Team<'_, T>) -> Result<Outcome> {
        let Member { mut worker, mut stream, barrier, thread } = member;
        let mut latencies = Latencies::default();
        barrier.wait();
        let started = Instant::now();
        // Threads are offset against each other, so that calls of different threads do not fall together.
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
        worker.finish(team.keys)?;
        Ok(Outcome { ops, checked: worker.checked(), started, ended: now, latencies })
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
    use std::cell::Cell;

    /// Answers at once, but stalls once for 50 ms at its hundredth get.
    struct Stalling;
    struct StallingSession(Cell<u32>, DataSet);

    impl Target for Stalling {
        type Session<'a> = StallingSession;
        fn name(&self) -> &str {
            "stalling"
        }
        fn settings(&self) -> Vec<(String, String)> {
            Vec::new()
        }
        fn session(&self) -> Result<StallingSession> {
            Ok(StallingSession(Cell::new(0), DataSet::new(8, 8, 3)))
        }
    }

    impl Session for StallingSession {
        fn get<R>(&mut self, key: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
            self.0.set(self.0.get() + 1);
            if self.0.get() == 100 {
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

    /// At 10,000 per second a stall of 50 ms covers 500 due operations of 2,000: 25 % of them wait, so p90 shows it. A loop
    /// that measured from the call's start would show one slow operation. The bounds hold on a slow machine: waits only grow.
    #[test]
    fn a_stall_is_charged_to_every_operation_behind_it() {
        let (data, workload) = (DataSet::new(8, 8, 3), "get:uniform".parse::<Workload>().expect("valid"));
        let team = Team { target: &Stalling, data: &data, workload: &workload, threads: 1, keys: 1000, seed: 1, epoch: 0 };
        let outcome = Open { rate: 10_000.0, ops: 2_000, at_most: Duration::from_secs(60) }.run(&team).expect("a run");
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
