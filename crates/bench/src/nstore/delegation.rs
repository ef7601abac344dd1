//! Scans by length of values and read threads (NStore, Fig. 9b): the remote reads that delegation saves, and what it
//! costs.
//!
//! A store over two emulated nodes, with the keys written on the nodes by turns. A thread on node 0 scans 100 pairs
//! from random keys on. Read threads of node 1 take the remote entries, whatever their size, so that small ones show
//! what delegation costs. Without read threads the scan reads them itself, with prefetching. Every scan must give
//! exactly the pairs that come next in the order of keys. Every byte of their values is checked; this check is part of
//! the processor time.
//!
//! Both nodes share one memory here, so a remote read takes no longer than a local one. The clock shows the costs of
//! delegation and none of its gain. The gain shows in the read cost: the latencies of all reads per pair by the paper's
//! figures, on the scanning thread and in total. A second run with the meter counts the reads, so that the counting is
//! not timed.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hither::{Builder, Db, Durability, Stats, Topology};

use super::drive::{Opened, Timed, failed, fill, is_of, race};
use super::{Chart, NstoreArgs, Report};
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::workload::permutation::mix64;
use crate::workload::random::Random;

const SCAN: u64 = 100;
const NODES: u32 = 2;
/// The most bytes of values in a store.
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
    let Scanned { timed, pairs, .. } = run_scans(setting, false)?;
    // The second run makes the same scans, so it reads the same pairs.
    let counted = run_scans(setting, true)?.counted;
    let link = |to: u32| Topology::emulated(NODES as usize).link(0, to).read_ns;
    let scanner_ns = counted.local * link(0) + counted.remote * link(1);
    // Delegated reads are local to the thread that makes them.
    let all_ns = scanner_ns + counted.elsewhere * link(0);
    Ok(vec![
        setting.value_bytes.into(),
        setting.read_threads.into(),
        (timed.mops * 1e6).into(),
        (timed.cpu_ns * setting.scans as f64 / pairs).into(),
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

/// Waits until `count` read threads have begun, for at most ten seconds. Before that, scans read everything themselves.
fn await_read_threads(db: &Db, count: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while db.stats().delegation.threads < count && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The time of the scans, and their reads.
struct Scanned {
    timed: Timed,
    counted: Counted,
    /// Number of pairs that the scans visited.
    pairs: f64,
}

fn run_scans(setting: &Setting, metered: bool) -> Result<Scanned> {
    let loaded = Loaded::new(setting, metered)?;
    let db = &loaded.opened.db;
    await_read_threads(db, setting.read_threads as u64 * u64::from(NODES));
    let (before, pairs) = (db.stats(), AtomicU64::new(0));
    let timed = race(1, setting.scans, |_| {
        loaded.bind(0)?;
        let mut random = Random::new(17);
        for _ in 0..setting.scans {
            pairs.fetch_add(loaded.scan(random.below(setting.keys) as usize)?, Ordering::Relaxed);
        }
        Ok(())
    })?;
    Ok(Scanned { timed, counted: Counted::between(&before, &db.stats()), pairs: pairs.into_inner() as f64 })
}

/// A store that holds all items.
struct Loaded {
    opened: Opened,
    topology: Topology,
    value_bytes: usize,
    /// The keys in ascending order, with their items.
    pairs: Vec<([u8; 8], u64)>,
}

impl Loaded {
    fn new(setting: &Setting, metered: bool) -> Result<Loaded> {
        let topology = Topology::emulated(NODES as usize);
        let opened = Opened::new(builder(setting, &topology).meter(metered), Index::Ordered)?;
        let mut pairs: Vec<_> = (0..setting.keys).map(|item| (key(item), item)).collect();
        pairs.sort_unstable();
        let loaded = Loaded { opened, topology, value_bytes: setting.value_bytes, pairs };
        let mut value = vec![0; setting.value_bytes];
        for item in 0..setting.keys {
            loaded.bind((item % u64::from(NODES)) as u32)?;
            fill(&mut value, item);
            loaded.opened.keyspace.put(&key(item), &value).map_err(failed)?;
        }
        Ok(loaded)
    }

    fn bind(&self, node: u32) -> Result<()> {
        self.topology.bind_current_thread(node).map_err(|error| Error::store("hither", error))
    }

    /// Scans from the key with `rank` keys before it; returns the number of pairs visited. They must be exactly the
    /// next ones, each with its value.
    fn scan(&self, rank: usize) -> Result<u64> {
        let expected = &self.pairs[rank..self.pairs.len().min(rank + SCAN as usize)];
        let (mut seen, mut right) = (0, true);
        let visit = |found: &[u8], value: &[u8]| {
            right &= expected.get(seen).is_some_and(|(key, item)| found == key && is_of(value, self.value_bytes, *item));
            seen += 1;
            if seen < SCAN as usize { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let from = Bound::Included(&expected[0].0[..]);
        self.opened.keyspace.scan_with(from, Bound::Unbounded, false, visit).map_err(failed)?;
        if right && seen == expected.len() {
            return Ok(seen as u64);
        }
        Err(Error::WrongData(format!("a scan from item {} on gave pairs that are wrong, missing or out of order", expected[0].1)))
    }
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

    fn setting() -> Setting {
        Setting { keys: 3_000, scans: 50, value_bytes: 256, read_threads: 0 }
    }

    /// Regression: only the first pair of a scan was compared, of its value only eight bytes, and the pairs were not
    /// counted.
    #[test]
    fn a_scan_is_refused_for_any_pair_that_is_wrong_missing_or_too_many() {
        let loaded = Loaded::new(&setting(), false).unwrap();
        let (keyspace, (key, item)) = (&loaded.opened.keyspace, loaded.pairs[1_040]);
        let refused = || matches!(loaded.scan(1_000), Err(Error::WrongData(_)));
        let mut value = vec![0; 256];
        for at in [0, 8, 255] {
            fill(&mut value, item);
            value[at] ^= 1;
            keyspace.put(&key, &value).unwrap();
            assert!(refused(), "byte {at} of the forty-first value");
        }
        keyspace.delete(&key).unwrap();
        assert!(refused(), "it is missing");
        fill(&mut value, item);
        keyspace.put(&key, &value).unwrap();
        assert_eq!((loaded.scan(1_000).unwrap(), loaded.scan(2_990).unwrap()), (100, 10));
        keyspace.put(&[key.as_slice(), &[0]].concat(), &value).unwrap();
        assert!(refused(), "a pair that nobody wrote");
        keyspace.delete(&loaded.pairs[2_999].0).unwrap();
        assert!(loaded.scan(2_990).is_err(), "the last one is missing");
    }

    /// The claim of the experiment, at a small size.
    #[test]
    fn read_threads_take_the_remote_reads_off_the_scanner() {
        let counted = |read_threads| run_scans(&Setting { read_threads, ..setting() }, true).unwrap().counted;
        let (plain, delegated) = (counted(0), counted(2));
        assert!(plain.remote > 2_000.0 && plain.delegated == 0.0);
        // Sixteen pairs of each scan are read directly; half of them are remote.
        assert!(delegated.remote < 0.4 * plain.remote, "{} of {}", delegated.remote, plain.remote);
        assert!(delegated.delegated > 1_500.0);
    }
}
