//! The experiments of the NStore paper, on this store: `hither bench nstore PART`.
//!
//! Each part is a file of its own with a function `run(&NstoreArgs) -> Result<Report>`, a variant of [`Part`] and a line in [`Part::run`]. A [`Report`]
//! is a table for people, the same rows as JSON, a page with charts, and what the paper measured. [`skew`] has the workloads that parts share, [`drive`] the
//! threads, [`datasets`] the keys.

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
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::harness::machine::Machine;
use crate::report::chart_page;
use crate::target::{Error, Result};

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
    /// Threads, of the parts that have a choice; may be repeated [default: 1 and 2]
    #[arg(long, short = 't', value_name = "COUNT")]
    pub threads: Vec<usize>,
    /// Lengths of values, of the parts that have a choice; may be repeated
    #[arg(long, value_name = "BYTES")]
    pub value_bytes: Vec<usize>,
}

impl NstoreArgs {
    /// Keys of the store.
    pub fn keys(&self) -> u64 {
        self.keys.unwrap_or(if self.quick { 50_000 } else { 1_000_000 })
    }

    /// Operations of a row.
    pub fn ops(&self) -> u64 {
        self.ops.unwrap_or(4 * self.keys())
    }

    /// Numbers of threads to measure.
    pub fn threads(&self, usual: &[usize]) -> Vec<usize> {
        if self.threads.is_empty() { usual.into() } else { self.threads.clone() }
    }

    /// Lengths of values to measure.
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

/// The outcome of a part.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What it is about.
    pub title: String,
    /// Names of the columns; also the fields of the JSON objects.
    pub columns: Vec<&'static str>,
    /// Values, as many as columns in each row.
    pub rows: Vec<Vec<Value>>,
    /// How to read it, and what the paper measured.
    pub notes: Vec<String>,
    /// What the page shows as bars.
    pub chart: Option<Chart>,
}

/// Which columns become charts.
#[derive(Clone, Copy, Debug)]
pub struct Chart {
    /// The length of a bar.
    pub value: &'static str,
    /// What is written beside it.
    pub label: &'static [&'static str],
    /// Rows that agree in these share a chart.
    pub group: &'static [&'static str],
}

impl Report {
    /// Adds a row.
    pub fn push(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// The table with title and notes, aligned.
    pub fn text(&self) -> String {
        let head = self.columns.iter().map(|name| name.replace('_', " ")).collect();
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(self.rows.iter().map(|row| row.iter().map(cell).collect())).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let pad = |line: &Vec<String>| {
            let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            cells.join("  ").trim_end().to_string()
        };
        let table: Vec<String> = lines.iter().map(pad).collect();
        format!("{}\n\n{}\n\n{}", self.title, table.join("\n"), self.notes.join("\n"))
    }

    /// A page with charts, the table and the notes. Nothing is loaded from elsewhere.
    pub fn html(&self) -> String {
        let mut charts: Vec<(String, Vec<(String, f64)>)> = Vec::new();
        if let Some(chart) = &self.chart {
            let place = |name: &&str| self.columns.iter().position(|column| column == name);
            let words =
                |row: &Vec<Value>, names: &[&str]| -> Vec<String> { names.iter().filter_map(place).map(|at| cell(&row[at])).collect() };
            for row in &self.rows {
                let named = |name: &&'static str| place(name).map(|at| format!("{} {}", name.replace('_', " "), cell(&row[at])));
                let title = chart.group.iter().filter_map(named).collect::<Vec<_>>().join(", ");
                let value = place(&chart.value).and_then(|at| row[at].as_f64()).unwrap_or(0.0);
                let bar = (words(row, chart.label).join(", "), value);
                match charts.iter_mut().find(|(existing, _)| *existing == title) {
                    Some((_, bars)) => bars.push(bar),
                    None => charts.push((title, vec![bar])),
                }
            }
        }
        let what = self.chart.map_or_else(String::new, |chart| chart.value.replace('_', " "));
        chart_page(&self.title, &what, &charts, &self.text())
    }

    /// A JSON object per row, with the circumstances.
    pub fn lines(&self, part: Part) -> Result<String> {
        let machine = serde_json::to_value(Machine::here()).map_err(|e| Error::Config(format!("a record that cannot be written: {e}")))?;
        let name = part.name();
        let line = |row: &Vec<Value>| {
            let mut fields = Map::from_iter([("experiment".to_owned(), Value::from(format!("nstore-{name}")))]);
            fields.extend(self.columns.iter().map(|name| (*name).to_owned()).zip(row.iter().cloned()));
            fields.extend(machine.as_object().cloned().unwrap_or_default());
            Value::Object(fields).to_string()
        };
        Ok(self.rows.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or(0.0)),
        Value::Null => "–".into(),
        other => other.to_string(),
    }
}

/// Runs an experiment and prints it.
pub fn run(args: &NstoreArgs, prefix: &[OsString]) -> Result<()> {
    args.check()?;
    let report = args.part.run(args, prefix)?;
    if let Some(path) = &args.html {
        std::fs::write(path, report.html()).map_err(|e| Error::io(format!("writing {}", path.display()), e))?;
    }
    let text = if args.json { report.lines(args.part)? } else { report.text() };
    match writeln!(std::io::stdout(), "{text}") {
        // Whoever read the output has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|e| Error::io("printing", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_as_table_and_as_json() {
        let mut report =
            Report { title: "T".into(), columns: vec!["system", "remote_reads"], notes: vec!["N".into()], ..Report::default() };
        report.push(vec!["none".into(), 0.5.into()]);
        assert_eq!(report.text(), "T\n\nsystem  remote reads\nnone    0.500\n\nN");
        let line: Value = serde_json::from_str(&report.lines(Part::Accesses).unwrap()).unwrap();
        assert_eq!((&line["experiment"], &line["remote_reads"]), (&"nstore-accesses".into(), &0.5.into()));
        assert!(line.get("commit").is_some());
    }

    #[test]
    fn a_report_as_charts() {
        let chart = Chart { value: "mops", label: &["index"], group: &["dataset"] };
        let mut report =
            Report { title: "a < b".into(), columns: vec!["dataset", "index", "mops"], chart: Some(chart), ..Report::default() };
        for (dataset, index, mops) in [("x", "hash", 2.0), ("y", "hash", 1.0), ("x", "learned", 4.0)] {
            report.push(vec![dataset.into(), index.into(), mops.into()]);
        }
        let page = report.html();
        assert_eq!(page.matches("<svg").count(), 2, "a chart for each dataset");
        assert!(page.contains("a &lt; b") && page.contains("learned") && page.contains("dataset y"));
    }

    /// Every part runs from end to end at a small size, has the values for its columns and the columns for its chart. (Recovery starts this program, which
    /// a test is not.)
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
