//! Restart after a kill by keys, length of values and threads (NStore, Fig. 16), by a scan of the whole log.
//! Checkpoints are off, because the paper has none.
//!
//! A process loads a store on forced dax and is killed while it overwrites. A new process opens the store, and reads
//! and checks every key (`figures::kill`).

use std::ffi::OsString;

use super::{Chart, NstoreArgs, Report};
use crate::figures::kill::{Crash, kill_and_recover};
use crate::figures::process::Runner;
use crate::target::Result;
use crate::target::store::Index;

/// Runs the experiment; `prefix` holds the words between this program and its commands.
pub fn run(args: &NstoreArgs, prefix: &[OsString]) -> Result<Report> {
    let columns = vec!["keys", "value_bytes", "threads", "index", "seconds", "million_keys_per_s"];
    let chart = Chart { value: "seconds", label: &["threads", "keys"], group: &["index", "value_bytes"] };
    let title = "Restart after a kill by a full scan: time of opening the store".into();
    let mut report = Report { title, columns, notes: notes(), chart: Some(chart), ..Report::default() };
    let runner = Runner::new(prefix, None)?;
    let most = args.keys();
    let sizes = args.value_bytes(&[8, 64, 256]);
    let mut settings: Vec<(u64, usize)> = [most / 4, most / 2].iter().map(|keys| ((*keys).max(1_000), 8)).collect();
    settings.extend(sizes.iter().map(|bytes| (most, *bytes)));
    for (keys, value_bytes) in settings {
        for threads in args.threads(&[1, 2]) {
            for (index, name) in [(Index::Hash, "hash"), (Index::Ordered, "b+-tree"), (Index::Learned, "learned")] {
                let crash = Crash { value_bytes, ..Crash::new(index, keys, threads) };
                let recovered = kill_and_recover(&runner, &crash)?;
                report.push(vec![
                    keys.into(),
                    value_bytes.into(),
                    threads.into(),
                    name.into(),
                    recovered.seconds.into(),
                    (keys as f64 / 1e6 / recovered.seconds.max(1e-9)).into(),
                ]);
            }
        }
    }
    Ok(report)
}

fn notes() -> Vec<String> {
    [
        "The paper (Fig. 16, Optane, learned index): 100 M pairs of 8 B / 8 B in 40.4 s with one thread (2.5 M/s) and 2.4 s with 32 (42 M/s); 50, 100, 150 M in",
        "1.2, 2.4, 5.3 s with 32. With checkpoints most of the scan is saved: `hither-bench restart`.",
    ]
    .map(String::from)
    .into()
}
