//! Rows on long runs: a restart with many keys after a crash, and updates that never end.
//!
//! *Endless updates*: the log is so small that the live entries fill 70 % of it. Two threads make Zipf updates without
//! a pause, durable at return. The updates of each minute are counted, and the last minute is compared with the second.
//! At the end every key is read and checked.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Request, THREADS};
use crate::figures::restart::restart;
use crate::figures::row::{Demand, Point, Row, Unit};
use crate::harness::pin;
use crate::harness::scratch::{self, Scratch};
use crate::report::count;
use crate::target::store::StoreTarget;
use crate::target::{Error, Result, Session, Target};
use crate::workload::data::DataSet;
use crate::workload::random::Random;
use crate::workload::zipf::ScrambledZipf;
use hither::{Db, Durability, MediumChoice};

/// The rows.
pub const DEMANDS: [Demand; 2] = [
    Demand {
        id: "restart",
        name: "restart after a crash half-way between two checkpoints",
        unit: Unit::FullScan,
        at_least: 0.15,
        aim: 0.15,
    },
    Demand { id: "endless", name: "endless Zipf updates at 70 % utilisation", unit: Unit::SecondMinute, at_least: 0.9, aim: 0.9 },
];

/// The smallest log in bytes that has room for its open segments.
const MIN_LOG_BYTES: u64 = 64 << 20;
/// Length of a plain entry in bytes.
const ENTRY_BYTES: u64 = 32;
const UTILISATION: f64 = 0.7;

/// Measures the requested rows.
pub fn measure(request: &mut Request, demands: &[Demand]) -> Result<Vec<Row>> {
    let row = |demand: &Demand| {
        let measured = if demand.id == "restart" { restarts(request) } else { endless(request) };
        match measured {
            Ok((points, note)) => Row::new(*demand, &points, false, note),
            Err(error) => Row::new(*demand, &[], false, error.to_string()),
        }
    };
    Ok(demands.iter().map(row).collect())
}

fn restarts(request: &Request) -> Result<(Vec<Point>, String)> {
    let keys = request.restart_keys;
    eprintln!("restart: {} keys", count(keys as f64));
    let both = restart(&request.runner, request.index, keys, THREADS)?;
    let note = format!(
        "{} keys: {:.2} s, just before the next checkpoint {:.2} s ({:.3} ×), by a full scan {:.2} s",
        count(keys as f64),
        both.checkpoint.seconds,
        both.worst.seconds,
        both.worst_share(),
        both.scan.seconds
    );
    Ok((vec![Point { value: both.share(), rate: None }], note))
}

/// The updates of each minute, and the utilisation of the log.
struct Endless {
    keys: u64,
    minutes: Vec<f64>,
    utilisation: f64,
    segments_collected: u64,
}

fn endless(request: &Request) -> Result<(Vec<Point>, String)> {
    let minute = Duration::from_secs(if request.quick { 2 } else { 60 });
    let done = run_endless(request, minute, MIN_LOG_BYTES)?;
    let (Some(second), Some(last)) = (done.minutes.get(1), done.minutes.last()) else {
        return Err(Error::Config("endless updates take at least two minutes".into()));
    };
    let per_minute: Vec<String> = done.minutes.iter().map(|updates| count(updates / minute.as_secs_f64())).collect();
    let note = format!(
        "{} keys at {:.0} %, {} × {} s, {} segments collected; per second: {}",
        count(done.keys as f64),
        done.utilisation * 100.0,
        done.minutes.len(),
        minute.as_secs(),
        count(done.segments_collected as f64),
        per_minute.join(", ")
    );
    Ok((vec![Point { value: last / second.max(1.0), rate: Some(last / minute.as_secs_f64()) }], note))
}

fn run_endless(request: &Request, minute: Duration, least_log_bytes: u64) -> Result<Endless> {
    let directory = Scratch::new(scratch::Kind::Endless, Path::new("/dev/shm"))?;
    let keys = request.keys.max((least_log_bytes as f64 * UTILISATION) as u64 / ENTRY_BYTES);
    let capacity = ((keys * ENTRY_BYTES) as f64 / UTILISATION) as u64;
    pin::prepare();
    let builder = Db::builder().path(directory.path()).medium(MediumChoice::ForcedDax).durability(Durability::Sync);
    let target = StoreTarget::create_with(builder.capacity(capacity).max_capacity(capacity), request.index)?;
    let data = DataSet::new(8, 8, 1);
    let (counts, stop) = ([const { AtomicU64::new(0) }; THREADS], AtomicBool::new(false));
    let done = || counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
    let mut minutes = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        load(&target, &data, keys)?;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (target, data, count, stop) = (&target, &data, &counts[thread], &stop);
                scope.spawn(move || {
                    let result = update(target, data, keys, thread, count, stop);
                    // If one thread fails, the rate of the other alone must not be measured.
                    stop.store(true, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        for number in 0..request.minutes {
            let (before, start) = (done(), Instant::now());
            eprintln!("endless updates: minute {} of {}", number + 1, request.minutes);
            while start.elapsed() < minute && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10).min(minute.saturating_sub(start.elapsed())));
            }
            minutes.push((done() - before) as f64 * minute.as_secs_f64() / start.elapsed().as_secs_f64());
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    check(&target, &data, keys)?;
    let stats = target.stats();
    let sum = |of: fn(&hither::PoolStats) -> u64| stats.pools.iter().map(of).sum::<u64>() as f64;
    Ok(Endless {
        keys,
        minutes,
        utilisation: sum(|pool| pool.live_bytes) / sum(|pool| pool.max_bytes).max(1.0),
        segments_collected: stats.collections.segments,
    })
}

fn load(target: &StoreTarget, data: &DataSet, keys: u64) -> Result<()> {
    let (mut session, mut key, mut value) = (target.session()?, data.key_buffer(), [0; 8]);
    for id in 0..keys {
        data.key(id, &mut key);
        data.value(&key, 0, &mut value);
        session.put(&key, &value)?;
    }
    Ok(())
}

/// Updates until `stop` is set.
fn update(target: &StoreTarget, data: &DataSet, keys: u64, thread: usize, count: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    pin::pin_thread(thread, THREADS);
    let (mut session, mut key, mut value) = (target.session()?, data.key_buffer(), [0; 8]);
    let (zipf, mut random) = (ScrambledZipf::new(keys, 0.99), Random::for_thread(1, thread));
    let mut version = 0u32;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            version = version.wrapping_add(1);
            data.key(zipf.draw(&mut random), &mut key);
            data.value(&key, version, &mut value);
            session.put(&key, &value)?;
        }
        count.fetch_add(64, Ordering::Relaxed);
    }
    Ok(())
}

/// Checks that every key is there, with a value that was written for it.
fn check(target: &StoreTarget, data: &DataSet, keys: u64) -> Result<()> {
    let (mut session, mut key) = (target.session()?, data.key_buffer());
    for id in 0..keys {
        data.key(id, &mut key);
        let mut sound = false;
        session.get(&key, |value| sound = data.check(&key, value).is_some())?;
        if !sound {
            return Err(Error::WrongData(format!("key {id} is missing or wrong after the updates")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::process::Runner;
    use crate::target::store::Index;

    /// The whole path at a small size: more is written than the log has room for, so segments are reused. The store
    /// keeps its size and every key.
    #[test]
    fn updates_do_not_end_at_the_size_of_the_log() {
        let runner = Runner::new(&[], None).unwrap();
        let request = Request { minutes: 3, ..Request::small(runner, 1_000, Index::Ordered) };
        // On a busy machine there may be few updates in short minutes.
        let run = |millis| run_endless(&request, Duration::from_millis(millis), 4 << 20).unwrap();
        let met_enough = |done: &Endless| done.segments_collected > 0 && done.minutes.iter().all(|updates| *updates > 0.0);
        let done = [100, 1_000].into_iter().map(run).find(met_enough).unwrap_or_else(|| run(10_000));
        assert_eq!(done.minutes.len(), 3);
        assert!(done.segments_collected > 0, "more was written than there is room for");
        assert!(done.minutes.iter().all(|updates| *updates > 0.0));
        assert!((0.65..0.75).contains(&done.utilisation), "{}", done.utilisation);
    }
}
