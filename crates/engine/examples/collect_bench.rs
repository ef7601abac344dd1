//! What emptying a segment costs when nobody else is at work: pairs of 8 and 8 bytes on forced dax, some of them overwritten, then a compaction, by processor time of the
//! one thread. For profiles and instruction counts; `hither-bench compaction` measures beside writers.
//!
//! `cargo run --release -p hither-engine --example collect_bench [KEYS] [OVERWRITTEN PER CENT] [hash|ordered]`

use hither_engine::{CheckpointMode, Kind, MediumChoice, Options, Store};
use std::ops::ControlFlow;
use std::time::Duration;

const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |number: usize| std::env::args().nth(number);
    let keys: u64 = argument(1).map_or(Ok(2_000_000), |text| text.parse())?;
    let overwritten: u64 = argument(2).map_or(Ok(15), |text| text.parse())?;
    let kind = if argument(3).as_deref() == Some("ordered") { Kind::Ordered } else { Kind::Hash };
    let dir = tempfile::Builder::new().prefix("hither-collect-").tempdir_in("/dev/shm")?;
    let capacity = keys * 32 * 2;
    let store = Store::open(Options {
        paths: vec![(None, dir.path().to_owned())],
        capacity,
        max_capacity: capacity,
        medium: MediumChoice::ForcedDax,
        background: false,
        checkpoints: CheckpointMode::Off,
        ..Options::default()
    })?;
    let keyspace = store.create_keyspace("pairs", kind)?;
    let mut random = 1u64;
    for number in 0..keys {
        store.write_wait(&keyspace, &scattered(number), Some(&number.to_le_bytes()))?;
    }
    for round in 0..ROUNDS as u64 {
        for _ in 0..keys * overwritten / 100 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            store.write_wait(&keyspace, &scattered((random >> 20) % keys), Some(&round.to_le_bytes()))?;
        }
        let (before, started) = (store.stats().collections.moved_entries, processor_time());
        let report = store.compact(0.01, |_| ControlFlow::Continue(()))?;
        let (time, moved) = (processor_time() - started, store.stats().collections.moved_entries - before);
        println!(
            "{moved} entries moved, {} segments: {:.0} ns for each entry, {:.0} MB/s of segments",
            report.segments,
            time.as_nanos() as f64 / moved as f64,
            (report.before.used_bytes - report.after.used_bytes + report.moved_bytes) as f64 / 1e6 / time.as_secs_f64()
        );
    }
    Ok(())
}

fn scattered(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
