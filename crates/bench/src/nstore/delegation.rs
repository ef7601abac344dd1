//! Scans by length of values and read threads (NStore, Fig. 9b): what delegation saves in remote reads, and what it costs.
//!
//! A store over two emulated nodes, each key written on one of them in turn; a thread on node 0 scans 100 pairs from random keys on. Read threads of node 1
//! take the remote entries, whatever their size, so that small ones show what they cost; without threads the scan reads them itself, prefetching.
//!
//! The nodes share one memory here, so a remote read takes no longer than a local one: the clock shows the costs of delegation and none of its gain. What it
//! gains is in the read cost: latencies of all reads for each pair by the paper's figures, on the scanning thread and in all. A second run with the meter
//! counts the reads, so that counting is not timed.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hither::{Builder, Db, Durability, Stats, Topology};

use super::drive::{Opened, failed, fill, is_of, race};
use super::{Chart, NstoreArgs, Report};
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::workload::permutation::mix64;
use crate::workload::random::Random;

const SCAN: u64 = 100;
const NODES: u32 = 2;
/// Bytes of values in a store, at most.
const DATA_BYTES: u64 = 256 << 20;

fn key(item: u64) -> [u8; 8] {
    mix64(item).to_be_bytes()
}

struct Setting {
    keys: u64,
    scans: u64,
    value_bytes: usize,
    read_threads: usize,
}

/// Runs the experiment.
pub fn run(args: &NstoreArgs) -> Result<Report> {
    let columns = vec![
        "value_bytes",
        "read_threads",
        "scans_per_s",
        "scanner_cpu_ns",
        "scanner_local_reads",
        "scanner_remote_reads",
        "delegated",
        "scanner_read_ns",
        "all_read_ns",
    ];
    let title = format!("Scans of {SCAN} pairs over {NODES} emulated nodes by read threads of each node; all but the rate for each pair");
    let chart = Chart { value: "scanner_read_ns", label: &["read_threads"], group: &["value_bytes"] };
    let mut report = Report { title, columns, notes: notes(), chart: Some(chart), ..Report::default() };
    for value_bytes in args.value_bytes(&[8, 64, 128, 256, 512, 1024, 4096]) {
        let keys = args.keys().min(DATA_BYTES / (value_bytes as u64 + 32)).max(2_000);
        for read_threads in [0, 1, 2] {
            let setting = Setting { keys, scans: (args.ops() / SCAN).clamp(10, 20_000), value_bytes, read_threads };
            report.push(measure(&setting)?);
        }
    }
    Ok(report)
}

fn measure(setting: &Setting) -> Result<Vec<serde_json::Value>> {
    let (timed, _) = run_scans(setting, false)?;
    let (_, counted) = run_scans(setting, true)?;
    let pairs = (setting.scans * SCAN) as f64;
    let link = |to: u32| Topology::emulated(NODES as usize).link(0, to).read_ns;
    let scanner_ns = counted.local * link(0) + counted.remote * link(1);
    // Delegated reads are local to the thread that makes them.
    let all_ns = scanner_ns + counted.elsewhere * link(0);
    Ok(vec![
        setting.value_bytes.into(),
        setting.read_threads.into(),
        (timed.mops * 1e6).into(),
        (timed.cpu_ns / SCAN as f64).into(),
        (counted.local / pairs).into(),
        (counted.remote / pairs).into(),
        (counted.delegated / pairs).into(),
        (scanner_ns / pairs).into(),
        (all_ns / pairs).into(),
    ])
}

/// Reads between two moments.
struct Counted {
    local: f64,
    remote: f64,
    elsewhere: f64,
    delegated: f64,
}

impl Counted {
    fn between(before: &Stats, after: &Stats) -> Counted {
        let mut counted =
            Counted { local: 0.0, remote: 0.0, elsewhere: 0.0, delegated: (after.delegation.entries - before.delegation.entries) as f64 };
        if let (Some(before), Some(after)) = (&before.meter, &after.meter) {
            for (then, now) in before.accesses.iter().zip(&after.accesses) {
                let reads = (now.reads - then.reads) as f64;
                match (now.from, now.to) {
                    (0, 0) => counted.local += reads,
                    (0, _) => counted.remote += reads,
                    _ => counted.elsewhere += reads,
                }
            }
        }
        counted
    }
}

fn builder(setting: &Setting, topology: &Topology) -> Builder {
    let capacity = (setting.keys * (setting.value_bytes as u64 + 48) * 3 + (64 << 20)).next_multiple_of(8 << 20);
    let builder = Db::builder().in_memory().durability(Durability::Process).topology(Arc::new(topology.clone()));
    builder.capacity(capacity).max_capacity(capacity).cache_bytes(0).gc_threads(0).read_threads(setting.read_threads).delegate_from_bytes(1)
}

/// Waits until so many read threads have begun (for ten seconds at most): before, scans read everything themselves.
fn await_read_threads(db: &Db, count: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while db.stats().delegation.threads < count && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn run_scans(setting: &Setting, metered: bool) -> Result<(super::drive::Timed, Counted)> {
    let topology = Topology::emulated(NODES as usize);
    let bind = |node: u32| topology.bind_current_thread(node).map_err(|error| Error::store("hither", error));
    let opened = Opened::new(builder(setting, &topology).meter(metered), Index::Ordered)?;
    let mut value = vec![0; setting.value_bytes];
    for item in 0..setting.keys {
        bind((item % u64::from(NODES)) as u32)?;
        fill(&mut value, item);
        opened.keyspace.put(&key(item), &value).map_err(failed)?;
    }
    await_read_threads(&opened.db, setting.read_threads as u64 * u64::from(NODES));
    let before = opened.db.stats();
    let timed = race(1, setting.scans, |_| {
        bind(0)?;
        let mut random = Random::new(17);
        (0..setting.scans).try_for_each(|_| scan(&opened, random.below(setting.keys)))
    })?;
    Ok((timed, Counted::between(&before, &opened.db.stats())))
}

/// Scans from an item's key on; the first pair must be that item's.
fn scan(opened: &Opened, item: u64) -> Result<()> {
    let (from, mut seen, mut right) = (key(item), 0, false);
    let visit = |found: &[u8], value: &[u8]| {
        if seen == 0 {
            right = found == from && is_of(value, item);
        }
        seen += 1;
        if seen < SCAN { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    opened.keyspace.scan_with(Bound::Included(&from[..]), Bound::Unbounded, false, visit).map_err(failed)?;
    if right { Ok(()) } else { Err(Error::WrongData(format!("a scan from item {item} does not begin with it"))) }
}

fn notes() -> Vec<String> {
    [
        "Read ns: the latencies of the paper (113.4 ns local, 180.7 ns remote) summed up; prefetching overlaps them, so they are upper bounds of what waits.",
        "A scan's first 16 pairs are never delegated.",
        "The paper (Fig. 9b, 32 scanning threads, 2 to 16 read threads): with values of 8 B the communication of threads makes scans much slower, with 512 B",
        "the advantage is very apparent; in between, the larger the value, the easier it is to gain.",
    ]
    .map(String::from)
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The claim of the experiment, at a small size.
    #[test]
    fn read_threads_take_the_remote_reads_off_the_scanner() {
        let counted = |read_threads| run_scans(&Setting { keys: 3_000, scans: 50, value_bytes: 256, read_threads }, true).unwrap().1;
        let (plain, delegated) = (counted(0), counted(2));
        assert!(plain.remote > 2_000.0 && plain.delegated == 0.0);
        // Sixteen pairs of each scan are read directly, half of them remote.
        assert!(delegated.remote < 0.4 * plain.remote, "{} of {}", delegated.remote, plain.remote);
        assert!(delegated.delegated > 1_500.0);
    }
}
