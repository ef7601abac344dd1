//! Throughput by the number of shards (NStore, Fig. 14). With few shards, threads wait for each other's tails; with
//! many, writes are scattered.
//!
//! Forced dax on tmpfs, durable at return. The rows have the number of shards that the store really uses, which is a
//! power of two.

use hither::{Db, Durability, MediumChoice};

use super::drive::{Opened, directory, failed, fill, race};
use super::{Chart, NstoreArgs, Report};
use crate::target::Result;
use crate::target::store::Index;
use crate::workload::permutation::mix64;
use crate::workload::random::Random;
use crate::workload::zipf::ScrambledZipf;

const SEGMENT_BYTES: u64 = 512 << 10;
const SHARDS: [u32; 6] = [1, 4, 16, 64, 128, 256];

/// Runs the experiment.
pub fn run(args: &NstoreArgs) -> Result<Report> {
    let columns = vec!["threads", "operation", "shards", "mops", "cpu_ns"];
    let keys = args.keys();
    let title = format!("Throughput by the number of shards, {keys} keys of 8 B / 8 B, hash keyspace, million operations per second");
    let chart = Chart { value: "mops", label: &["shards"], group: &["operation", "threads"] };
    let mut report = Report { title, columns, notes: notes(), chart: Some(chart), ..Report::default() };
    for threads in args.threads(&[1, 2]) {
        for shards in SHARDS {
            let directory = directory()?;
            let capacity = keys * 32 * 6 + 3 * u64::from(shards) * SEGMENT_BYTES + (32 << 20);
            let builder = Db::builder().path(directory.path()).medium(MediumChoice::ForcedDax).durability(Durability::Sync);
            let builder = builder.capacity(capacity).max_capacity(2 * capacity).segment_bytes(SEGMENT_BYTES).shards(shards);
            let opened = Opened::new(builder, Index::Hash)?;
            let key = |item: u64| mix64(item).to_be_bytes();
            let (zipf, updates) = (ScrambledZipf::new(keys, 0.9), args.ops().min(2 * keys) / threads as u64);
            let put = opened.put_all(keys, 8, threads, key)?;
            let update = race(threads, updates, |thread| {
                let (mut random, mut value) = (Random::for_thread(3, thread), [0; 8]);
                for _ in 0..updates {
                    let item = zipf.draw(&mut random);
                    fill(&mut value, item);
                    opened.keyspace.put(&key(item), &value).map_err(failed)?;
                }
                Ok(())
            })?;
            let get = opened.get_permuted(keys, 8, updates, threads, key)?;
            for (operation, timed) in [("put", put), ("update zipf 0.9", update), ("get", get)] {
                let taken = opened.db.stats().shards;
                report.push(vec![threads.into(), operation.into(), taken.into(), timed.mops.into(), timed.cpu_ns.into()]);
            }
        }
    }
    let order = |row: &Vec<serde_json::Value>| (row[0].as_u64(), row[1].to_string(), row[2].as_u64());
    report.rows.sort_by_key(order);
    Ok(report)
}

fn notes() -> Vec<String> {
    [
        "The paper (Fig. 14): puts, and updates with Zipf 0.9, are best with 16 shards at 2 threads, 64 at 16 and 128 at 32; reads do not depend on the number.",
        "Here the default on media with direct access is 4 for each processor of a node, 16 at least and 64 at most, or fewer in a small store.",
    ]
    .map(String::from)
    .into()
}
