//! The experiments of the NStore paper, on this store: `hither bench nstore PART`.
//!
//! Each part is a file of its own with a function `run(&NstoreArgs) -> Result<Report>`, a variant of [`Part`] and a line in [`Part::run`]. A [`Report`]
//! is a table for people, the same rows as JSON, and what the paper measured. [`skew`] has the workloads that parts share.

pub mod accesses;
pub mod skew;

use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::harness::machine::Machine;
use crate::target::{Error, Result};

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Local and remote accesses to the log for each operation, with and without the cache (Fig. 3, 10, 11)
    Accesses,
}

impl Part {
    fn run(self, args: &NstoreArgs) -> Result<Report> {
        match self {
            Part::Accesses => accesses::run(args),
        }
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

    fn check(&self) -> Result<()> {
        let fine = self.keys() >= 1_000
            && self.ops() >= 1
            && self.nodes.iter().all(|nodes| (1..=16).contains(nodes))
            && self.zipf.iter().all(|theta| (0.0..1.0).contains(theta))
            && (0.0..=1.0).contains(&self.affinity);
        if fine {
            return Ok(());
        }
        Err(Error::Config("keys must be at least 1000, operations 1, nodes 1 to 16, exponents 0 to below 1, the affinity 0 to 1".into()))
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

    /// A JSON object per row, with the circumstances.
    pub fn lines(&self, part: Part) -> Result<String> {
        let machine = serde_json::to_value(Machine::here()).map_err(|e| Error::Config(format!("a record that cannot be written: {e}")))?;
        let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
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
pub fn run(args: &NstoreArgs) -> Result<()> {
    args.check()?;
    let report = args.part.run(args)?;
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
}
