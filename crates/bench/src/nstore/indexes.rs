//! Puts and gets by index and distribution of keys (NStore, Fig. 13): the gain of the learned index, where a B+-tree is
//! better, and the cost of an order compared with a hash table.
//!
//! The store is in memory that does not survive, so that only the index differs. Writes are durable at return, so that
//! they take the same path as on persistent memory. Every key is put once, then read in a permuted order; values are
//! checked.

use hither::{Db, Durability};

use super::datasets::ALL;
use super::drive::Opened;
use super::{Chart, NstoreArgs, Report};
use crate::target::Result;
use crate::target::store::Index;

/// Runs the experiment.
pub fn run(args: &NstoreArgs) -> Result<Report> {
    let columns = vec!["dataset", "keys", "threads", "index", "put_mops", "put_cpu_ns", "get_mops", "get_cpu_ns", "index_bytes_per_key"];
    let chart = Chart { value: "get_mops", label: &["index"], group: &["dataset", "threads"] };
    let title = "Puts and gets by index and distribution of keys, values of 8 bytes, million operations per second".into();
    let mut report = Report { title, columns, notes: notes(), chart: Some(chart), ..Report::default() };
    for dataset in ALL {
        let keys = dataset.keys(args.keys())?;
        let count = keys.len() as u64;
        let bytes: u64 = keys.iter().map(|key| key.len() as u64 + 64).sum();
        for threads in args.threads(&[1, 2]) {
            for (index, name) in [(Index::Hash, "hash"), (Index::Ordered, "b+-tree"), (Index::Learned, "learned")] {
                let capacity = (64 << 20) + 2 * bytes;
                let opened = Opened::new(
                    Db::builder().in_memory().durability(Durability::Sync).capacity(capacity).max_capacity(4 * capacity),
                    index,
                )?;
                let key = |item: u64| &keys[item as usize];
                let put = opened.put_all(count, 8, threads, key)?;
                let get = opened.get_permuted(count, 8, args.ops().min(2 * count) / threads as u64, threads, key)?;
                let index_bytes = opened.db.stats().keyspaces.iter().map(|keyspace| keyspace.index_bytes).sum::<u64>();
                report.push(vec![
                    dataset.name().into(),
                    count.into(),
                    threads.into(),
                    name.into(),
                    put.mops.into(),
                    put.cpu_ns.into(),
                    get.mops.into(),
                    get.cpu_ns.into(),
                    (index_bytes as f64 / count as f64).into(),
                ]);
            }
        }
    }
    Ok(report)
}

fn notes() -> Vec<String> {
    [
        "Datasets: see `crates/bench/src/nstore/datasets.rs`; strings are as many paths of files as the machine has.",
        "The paper (Fig. 13, 200 M keys, up to 32 threads): with its learned index puts and gets are significantly faster than with a B+-tree at high",
        "thread counts, and the lead of puts grows with the threads. Two processors cannot show that.",
    ]
    .map(String::from)
    .into()
}
