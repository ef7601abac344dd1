//! The experiments of the NStore paper, on this store: `hither bench nstore PART`.
//!
//! Each part is a file of its own with a function `run(&NstoreArgs) -> Result<Report>`, a variant of [`Part`] and a
//! line in [`Part::run`]. A [`Report`] is a table for people, the same rows as JSON, a page with charts, and the
//! paper's results. [`skew`] has the workloads that parts share, [`drive`] the threads, [`datasets`] the keys.

pub mod accesses;
pub mod collection;
pub mod datasets;
pub mod delegation;
pub mod drive;
pub mod indexes;
pub mod projection;
pub mod recovery;
pub mod shards;
pub mod skew;

use std::ffi::OsString;
use std::path::PathBuf;

use crate::report::Output;
pub use crate::report::experiment::{Chart, Report};
use crate::target::{Error, Result};
use clap::{Args, ValueEnum};

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Local and remote accesses to the log for each operation, with and without the cache (Fig. 3, 10, 11)
    Accesses,
    /// Throughput of 1 to 32 threads on the paper's machine, projected from counted accesses (Fig. 7, 8, 12)
    Projection,
    /// Puts and gets by index and distribution of keys (Fig. 13)
    Indexes,
    /// Throughput by the number of shards (Fig. 14)
    Shards,
    /// What collecting garbage costs, by threshold and by threads (Fig. 15)
    Collection,
    /// Restart after a kill by keys, length of values and threads (Fig. 16)
    Recovery,
    /// Scans by length of values and read threads (Fig. 9b)
    Delegation,
}

impl Part {
    fn run(self, args: &NstoreArgs, prefix: &[OsString]) -> Result<Report> {
        match self {
            Part::Accesses => accesses::run(args),
            Part::Projection => projection::run(args),
            Part::Indexes => indexes::run(args),
            Part::Shards => shards::run(args),
            Part::Collection => collection::run(args),
            Part::Recovery => recovery::run(args, prefix),
            Part::Delegation => delegation::run(args),
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Options of `nstore`.
#[derive(Clone, Debug, Args)]
pub struct NstoreArgs {
    /// Which experiment
    #[arg(value_enum)]
    pub part: Part,
    /// Prints a JSON object per row
    #[arg(long)]
    pub json: bool,
    /// Writes a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Smaller counts: shows that everything runs
    #[arg(long)]
    pub quick: bool,
    /// Keys [default: 1,000,000, with --quick 50,000]
    #[arg(long)]
    pub keys: Option<u64>,
    /// Measured operations [default: four for each key]
    #[arg(long)]
    pub ops: Option<u64>,
    /// Emulated nodes; may be repeated [default: 2 and 4]
    #[arg(long, value_name = "COUNT")]
    pub nodes: Vec<u32>,
    /// Exponents of the Zipf distribution, 0 is uniform; may be repeated [default: 0, 0.5, 0.7, 0.9 and 0.99]
    #[arg(long, value_name = "THETA")]
    pub zipf: Vec<f64>,
    /// Share of each item's gets from its favourite node, in the rows on readers with affinity
    #[arg(long, default_value_t = 0.9)]
    pub affinity: f64,
    /// Numbers of threads, for parts with a choice; may be repeated [default: 1 and 2]
    #[arg(long, short = 't', value_name = "COUNT")]
    pub threads: Vec<usize>,
    /// Lengths of values in bytes, for parts with a choice; may be repeated
    #[arg(long, value_name = "BYTES")]
    pub value_bytes: Vec<usize>,
}

impl NstoreArgs {
    /// Number of keys of the store.
    pub fn keys(&self) -> u64 {
        self.keys.unwrap_or(if self.quick { 50_000 } else { 1_000_000 })
    }

    /// Number of operations of a row.
    pub fn ops(&self) -> u64 {
        self.ops.unwrap_or(4 * self.keys())
    }

    /// The numbers of threads to measure.
    pub fn threads(&self, usual: &[usize]) -> Vec<usize> {
        if self.threads.is_empty() { usual.into() } else { self.threads.clone() }
    }

    /// The lengths of values to measure.
    pub fn value_bytes(&self, usual: &[usize]) -> Vec<usize> {
        if self.value_bytes.is_empty() { usual.into() } else { self.value_bytes.clone() }
    }

    fn check(&self) -> Result<()> {
        let fine = self.keys() >= 1_000
            && self.ops() >= 1
            && self.nodes.iter().all(|nodes| (1..=16).contains(nodes))
            && self.zipf.iter().all(|theta| (0.0..1.0).contains(theta))
            && (0.0..=1.0).contains(&self.affinity)
            && self.threads.iter().all(|threads| (1..=256).contains(threads))
            && self.value_bytes.iter().all(|bytes| (1..=1 << 20).contains(bytes));
        if fine {
            return Ok(());
        }
        let what = "keys must be at least 1000, operations 1, nodes 1 to 16, exponents 0 to below 1, the affinity 0 to 1, threads 1 to 256, values 1 B to 1 MiB";
        Err(Error::Config(what.into()))
    }
}

/// Runs an experiment and prints it; `prefix` holds the words between this program and its commands.
pub fn run(args: &NstoreArgs, prefix: &[OsString]) -> Result<()> {
    args.check()?;
    let html = Output::open(args.html.as_deref())?;
    let report = args.part.run(args, prefix)?;
    report.print(&format!("nstore-{}", args.part.name()), args.json, html)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every part runs from end to end at a small size, and has the values for its columns and the columns for its
    /// chart. (Recovery is left out: it starts this program, which a test is not.)
    #[test]
    fn every_part_runs() {
        for part in Part::value_variants().iter().filter(|part| **part != Part::Recovery) {
            let args = NstoreArgs {
                part: *part,
                json: false,
                html: None,
                quick: true,
                keys: Some(2_000),
                ops: Some(2_000),
                nodes: vec![2],
                zipf: vec![0.99],
                affinity: 0.9,
                threads: vec![2],
                value_bytes: vec![300],
            };
            let report = part.run(&args, &[]).unwrap_or_else(|error| panic!("{part:?}: {error}"));
            assert!(!report.rows.is_empty() && report.rows.iter().all(|row| row.len() == report.columns.len()), "{part:?}");
            let chart = report.chart.expect("a chart");
            let known = |name: &&str| report.columns.contains(name);
            assert!(known(&chart.value) && chart.label.iter().all(known) && chart.group.iter().all(known), "{part:?}");
        }
    }
}
