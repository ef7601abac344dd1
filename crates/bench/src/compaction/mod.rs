//! Overwrites in a store that is nearly full (Pacman, section 4): `hither bench compaction`.
//!
//! The rows are all combinations of the options that may be repeated; [`case`] measures one. A row has the rate,
//! latencies of puts, the bytes that collectors emptied, their processor time, write amplification, and DRAM for the
//! accounts of garbage. The page has the longest stall in each slice of time. Peers run the same overwrites, which
//! shows the space they use.

pub mod case;
mod peers;
pub mod techniques;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::harness::spec::Collector;
use crate::report::Output;
use crate::report::experiment::{Chart, Report};
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::workload::{Distribution, Workload};
use case::{Case, Measured, Way};
use techniques::Step;

/// Columns, which are also the fields of the JSON objects.
const COLUMNS: [&str; 35] = [
    "store",
    "collector",
    "techniques",
    "shortcuts",
    "cleaners",
    "writers",
    "workload",
    "shift",
    "keys",
    "value_bytes",
    "utilization",
    "due_mops",
    "utilization_measured",
    "mops",
    "p50_us",
    "p99_us",
    "p999_us",
    "p9999_us",
    "max_us",
    "seconds",
    "collected_mb_per_s",
    "collected_mb_per_cpu_s",
    "collector_cpu_s",
    "collector_cpu_share",
    "write_amplification",
    "shortcut_hits",
    "shortcut_sibling_hits",
    "shortcut_fallbacks",
    "stalls",
    "stall_ms",
    "paced_ms",
    "known_garbage",
    "garbage_info_share",
    "space_amplification",
    "note",
];

/// Options of `compaction`. Those that may be repeated make rows.
#[derive(Clone, Debug, Args)]
pub struct CompactionArgs {
    /// Prints a JSON object per row
    #[arg(long)]
    pub json: bool,
    /// Writes a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Smaller counts: shows that everything runs
    #[arg(long)]
    pub quick: bool,
    /// Keys [default: 5,000,000, with --quick 200,000]
    #[arg(long)]
    pub keys: Option<u64>,
    /// Measured operations [default: four for each key]
    #[arg(long)]
    pub ops: Option<u64>,
    /// Live bytes in per cent of the store's size; may be repeated [default: 50, 80 and 90]
    #[arg(long, value_name = "PERCENT")]
    pub utilization: Vec<u32>,
    /// Overwrites, for example update:uniform, ycsb-a, update:etc; may be repeated [default: update:zipf=0.99,
    /// update:uniform and ycsb-a]
    #[arg(long = "workload", short = 'w')]
    pub workloads: Vec<Workload>,
    /// Turns the techniques of collection on one after the other, a row each (Pacman, Fig. 8); without --utilization
    /// and --workload at 80 % under update:zipf=0.99
    #[arg(long, conflicts_with_all = ["collector", "shortcuts"])]
    pub techniques: bool,
    /// Open loop: operations per second that are due, all writers together; latencies count from when they are due. For
    /// updates only
    #[arg(long)]
    pub rate: Option<f64>,
    /// Index; may be repeated [default: hash]
    #[arg(long, value_enum)]
    pub index: Vec<IndexName>,
    /// Collector; may be repeated [default: batched]
    #[arg(long, value_enum)]
    pub collector: Vec<Collector>,
    /// Shortcuts for entries of ordered indexes that are large enough (values of 256 bytes); may be repeated [default:
    /// on]
    #[arg(long, value_enum)]
    pub shortcuts: Vec<Switch>,
    /// Number of background collectors; may be repeated [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub cleaners: Vec<usize>,
    /// Length of values in bytes, with update:etc those of ETC; may be repeated [default: 8]
    #[arg(long, value_name = "BYTES")]
    pub value_bytes: Vec<usize>,
    /// Number of writers
    #[arg(long, short = 't', default_value_t = 2)]
    pub threads: usize,
    /// Moves the hot spot of Zipf workloads when the clock starts
    #[arg(long)]
    pub shift: bool,
    /// How often the store is overwritten before the clock starts
    #[arg(long, default_value_t = 1.0, value_name = "TIMES")]
    pub turnovers: f64,
    /// Ends each row after this many seconds
    #[arg(long, default_value_t = 600.0)]
    pub seconds: f64,
    /// Another store that runs the same overwrites at process durability, to show its space: lmdb, rocksdb or fjall;
    /// may be repeated
    #[arg(long, value_name = "STORE")]
    pub peer: Vec<String>,
}

/// An index on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IndexName {
    /// Hash table
    Hash,
    /// B+-tree
    Ordered,
    /// Learned index
    Learned,
}

/// Whether a technique of the collector is used, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// In use
    On,
    /// Not in use
    Off,
}

impl IndexName {
    fn index(self) -> Index {
        match self {
            IndexName::Hash => Index::Hash,
            IndexName::Ordered => Index::Ordered,
            IndexName::Learned => Index::Learned,
        }
    }
}

impl CompactionArgs {
    fn keys(&self) -> u64 {
        self.keys.unwrap_or(if self.quick { 200_000 } else { 5_000_000 })
    }

    fn ops(&self) -> u64 {
        self.ops.unwrap_or(4 * self.keys())
    }

    fn workloads(&self) -> Vec<Workload> {
        let usual = || ["update:zipf=0.99", "update:uniform", "ycsb-a"].map(|text| text.parse().expect("a valid workload")).into();
        match (self.workloads.as_slice(), self.techniques) {
            ([], true) => vec!["update:zipf=0.99".parse().expect("a valid workload")],
            ([], false) => usual(),
            (given, _) => given.to_vec(),
        }
    }

    fn utilizations(&self) -> Vec<u32> {
        match (self.utilization.as_slice(), self.techniques) {
            ([], true) => vec![80],
            ([], false) => vec![50, 80, 90],
            (given, _) => given.to_vec(),
        }
    }

    /// The ways of collecting garbage that make rows, each with or without shortcuts.
    fn ways(&self, index: IndexName) -> Vec<(Way, bool)> {
        let ways: Vec<Way> = match (self.collector.as_slice(), self.techniques) {
            (_, true) => Step::of(index).map(Way::Step).collect(),
            ([], false) => vec![Way::Collector(Collector::Batched)],
            (given, false) => given.iter().copied().map(Way::Collector).collect(),
        };
        let shortcuts = or(&self.shortcuts, &[Switch::On]);
        ways.into_iter().flat_map(|way| shortcuts.iter().map(move |switch| (way, *switch == Switch::On))).collect()
    }

    fn check(&self) -> Result<()> {
        let fine = self.keys() >= 10_000
            && self.utilization.iter().all(|percent| (10..=95).contains(percent))
            && (1..=256).contains(&self.threads)
            && self.cleaners.iter().all(|cleaners| *cleaners <= 64)
            && self.value_bytes.iter().all(|bytes| (1..=1 << 16).contains(bytes))
            && (0.0..=100.0).contains(&self.turnovers)
            && self.rate.is_none_or(|rate| rate.is_finite() && rate > 0.0)
            && self.seconds.is_finite()
            && self.seconds > 0.0;
        if fine {
            return Ok(());
        }
        let what = "keys must be at least 10,000, utilization 10 to 95, threads 1 to 256, cleaners at most 64, values 1 B to 64 KiB, turnovers 0 to 100, rate and seconds above 0";
        Err(Error::Config(what.into()))
    }

    /// The cases of all combinations.
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for index in or(&self.index, &[IndexName::Hash]) {
            for workload in self.workloads() {
                for value_bytes in or(&self.value_bytes, &[8]) {
                    for cleaners in or(&self.cleaners, &[1]) {
                        for (way, shortcuts) in self.ways(index) {
                            for utilization in self.utilizations() {
                                cases.push(Case {
                                    index: index.index(),
                                    way,
                                    shortcuts,
                                    cleaners,
                                    threads: self.threads,
                                    keys: self.keys(),
                                    value_bytes: (workload.distribution != Distribution::Etc).then_some(value_bytes),
                                    utilization,
                                    workload,
                                    shift: self.shift,
                                    turnovers: self.turnovers,
                                    ops: self.ops(),
                                    due: self.rate,
                                    at_most: Duration::from_secs_f64(self.seconds),
                                });
                            }
                        }
                    }
                }
            }
        }
        cases
    }
}

fn or<T: Clone>(given: &[T], usual: &[T]) -> Vec<T> {
    if given.is_empty() { usual.to_vec() } else { given.to_vec() }
}

/// Runs the experiment and prints it; `prefix` holds the words between this program and its commands.
pub fn run(args: &CompactionArgs, prefix: &[OsString]) -> Result<()> {
    args.check()?;
    let mut peers = peers::runner(args, prefix)?;
    let html = Output::open(args.html.as_deref())?;
    let mut report = report();
    let measured = measure(args, &mut report).and_then(|()| peers::measure(args, peers.as_mut(), &mut report));
    // What was measured before an error is printed all the same.
    let printed = if report.rows.is_empty() { Ok(()) } else { report.print("compaction", args.json, html) };
    measured.and(printed)
}

fn report() -> Report {
    let chart = Chart {
        value: "mops",
        label: &["utilization", "collector", "techniques", "shortcuts", "cleaners"],
        group: &["store", "workload", "value_bytes"],
    };
    let title = "Overwrites in a store of fixed size, forced dax, durable at return".into();
    Report { title, columns: COLUMNS.into(), notes: notes(), chart: Some(chart), ..Report::default() }
}

/// Adds a row for each case.
fn measure(args: &CompactionArgs, report: &mut Report) -> Result<()> {
    for case in args.cases() {
        eprintln!("{} {} at {} %, {} keys", case.index.store_name(), case.workload, case.utilization, case.keys);
        match case.run() {
            Ok(measured) => {
                report.courses.push(course(&case, &measured));
                report.push(row(&case, &measured));
            }
            // A case that cannot be done at all is a result, too: the store is too full for its collector.
            Err(error @ Error::Store { .. }) => report.push(failed_row(&case, &error)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The settings of a row, which are its first columns.
fn settings(case: &Case) -> Vec<Value> {
    vec![
        case.index.store_name().into(),
        case.way.collector().into(),
        case.way.techniques().into(),
        (case.shortcuts && case.way.has_shortcuts()).into(),
        case.cleaners.into(),
        case.threads.into(),
        case.workload.to_string().into(),
        case.shift.into(),
        case.keys.into(),
        case.value_bytes.into(),
        case.utilization.into(),
        case.due.map(|rate| rate / 1e6).into(),
    ]
}

fn row(case: &Case, found: &Measured) -> Vec<Value> {
    let mb = |bytes: f64| bytes / 1e6;
    let share = |which: usize| found.shortcut_shares().map(|shares| shares[which]).into();
    let mut row = settings(case);
    row.extend([
        Value::from(found.utilization),
        (found.ops_per_s / 1e6).into(),
        found.puts.p50_us.into(),
        found.puts.p99_us.into(),
        found.puts.p999_us.into(),
        found.puts.p9999_us.into(),
        found.puts.max_us.into(),
        found.seconds.into(),
        mb(found.collected_bytes as f64 / found.seconds.max(1e-9)).into(),
        found.per_cpu_second().map(mb).into(),
        found.collector_cpu_s.into(),
        (found.collector_cpu_s / found.seconds.max(1e-9)).into(),
        found.write_amplification.into(),
        share(0),
        share(1),
        share(2),
        found.stalls.into(),
        found.stall_ms.into(),
        found.paced_ms.into(),
        found.known_garbage.into(),
        found.garbage_info.into(),
        found.space_amplification.into(),
        Value::Null,
    ]);
    row
}

/// A row with settings and a note, without measurements.
fn failed_row(case: &Case, error: &Error) -> Vec<Value> {
    let mut row = settings(case);
    row.resize(COLUMNS.len() - 1, Value::Null);
    row.push(error.to_string().into());
    row
}

/// The longest stretch of calls in each slice of time.
fn course(case: &Case, found: &Measured) -> (String, Vec<(String, f64)>) {
    let title = format!(
        "Longest stall in each quarter of a second, ms: {} {}, {} %, {} collector, {}, {} cleaners",
        case.index.store_name(),
        case.workload,
        case.utilization,
        case.way.collector(),
        case.way.techniques(),
        case.cleaners
    );
    let bar = |(at, slice): (usize, &crate::harness::steady::Slice)| (format!("{:.2} s", at as f64 / 4.0), slice.worst.as_secs_f64() * 1e3);
    (title, found.slices.iter().enumerate().map(bar).collect())
}

fn notes() -> Vec<String> {
    [
        "Shortcut hits, sibling hits and fallbacks: shares of the current entries with a shortcut that collectors met. Collector cpu share: processors that collecting kept busy, that of writers who found no space included. Latencies are those of puts, in the open loop (due) from when they were due. Space amplification: the store's",
        "size (of peers: what the file system gave their files) over the bytes of keys and values. The paper's store (200 M pairs of 8 B and 48 B, Optane, 12 writers and 4 collectors): at 90 % utilisation",
        "90 % of the throughput is kept with a B+-tree-like index; uniform overwrites lose 15 % at 80 % and 50 % at 90 %; 299 to 308 MB/s of each collector.",
    ]
    .map(String::from)
    .into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: CompactionArgs,
    }

    pub(super) fn parse(line: &str) -> CompactionArgs {
        Program::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).expect("valid arguments").args
    }

    fn measured(args: &CompactionArgs) -> Report {
        let mut report = report();
        measure(args, &mut report).expect("a report");
        report
    }

    #[test]
    fn options_that_are_repeated_make_all_combinations() {
        assert_eq!(parse("").cases().len(), 9);
        let cases =
            parse("--index hash --index learned --collector chain --collector batched --cleaners 2 --utilization 70 -w update:etc").cases();
        assert_eq!(cases.len(), 4);
        assert!(cases.iter().all(|case| case.cleaners == 2 && case.value_bytes.is_none()));
        let switched = parse("--shortcuts on --shortcuts off --utilization 70 -w update:uniform").cases();
        assert_eq!(switched.iter().map(|case| case.shortcuts).collect::<Vec<_>>(), [true, false]);
        for wrong in ["--keys 5", "--utilization 99", "--threads 0", "--seconds 0", "--value-bytes 0", "--rate 0"] {
            assert!(parse(wrong).check().is_err(), "{wrong}");
        }
    }

    #[test]
    fn techniques_are_turned_on_row_by_row() {
        let args = parse("--techniques --keys 30000 --ops 40000 --index hash --index ordered");
        assert_eq!(args.cases().len(), 5 + 7);
        assert!(args.cases().iter().all(|case| case.utilization == 80));
        assert!(Program::try_parse_from(["x", "--techniques", "--collector", "chain"]).is_err());
        let report = measured(&CompactionArgs { index: vec![IndexName::Hash], utilization: vec![70], ..args });
        let column = |name: &str| COLUMNS.iter().position(|column| *column == name).expect("a column");
        let of = |name: &str| report.rows.iter().map(|row| row[column(name)].clone()).collect::<Vec<_>>();
        assert_eq!(of("techniques"), ["none (chain)", "batches", "+ garbage bits", "+ hot and cold", "+ pacing"]);
        assert_eq!(of("collector"), ["chain", "batched", "batched", "batched", "batched"]);
        let known: Vec<bool> = of("known_garbage").iter().map(|count| count.as_u64().expect("a count") > 0).collect();
        assert_eq!(known, [false, false, true, true, true], "{:?}", of("known_garbage"));
        assert!(of("paced_ms")[..4].iter().all(|paced| paced.as_f64() == Some(0.0)), "{:?}", of("paced_ms"));
    }

    #[test]
    fn the_report_has_rows_courses_and_their_columns() {
        let args = parse("--keys 10000 --ops 20000 --utilization 60 -w update:zipf --index ordered");
        let report = measured(&args);
        assert_eq!((report.rows.len(), report.courses.len()), (1, 1));
        assert_eq!(report.rows[0].len(), COLUMNS.len());
        assert!(report.html().contains("Longest stall"));
        let failed = failed_row(&args.cases()[0], &Error::Config("full".into()));
        assert_eq!((failed.len(), failed.last().and_then(Value::as_str)), (COLUMNS.len(), Some("full")));
    }
}
