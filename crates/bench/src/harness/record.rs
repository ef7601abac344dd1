//! The JSON record of a measurement: one line per workload. Every reader may rely on the fields in [`FIELDS`].

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use super::latency::Quantiles;
use super::machine::Machine;
use crate::target::{Error, Result};

/// Fields that every record has.
pub const FIELDS: [&str; 16] = [
    "store",
    "workload",
    "distribution",
    "threads",
    "keys",
    "key_bytes",
    "value_bytes",
    "medium",
    "durability",
    "ops_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "dram_bytes_per_key",
    "media_bytes_per_key",
    "commit",
];

/// One measured workload; figures are medians over its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The store, for example `hither-hash` or `lmdb`.
    pub store: String,
    /// The workload's name.
    pub workload: String,
    /// The distribution of keys.
    pub distribution: String,
    /// Number of threads.
    pub threads: usize,
    /// Number of keys in the store.
    pub keys: u64,
    /// Length of a key in bytes.
    pub key_bytes: usize,
    /// Length of a value in bytes; for ETC the mean.
    pub value_bytes: usize,
    /// `dax` (forced on tmpfs), `file` or `volatile`; of a yardstick its own, whatever was requested.
    pub medium: String,
    /// `sync`, `interval=MS` or `process`; `none` of a yardstick that keeps nothing.
    pub durability: String,
    /// `closed` or `open`.
    pub mode: String,
    /// The rate requested of the open loop.
    pub target_ops_per_s: Option<f64>,
    /// Number of operations of a run: keys, or scans.
    pub ops: u64,
    /// Operations before the clock starts, as requested; kinds that touch each key once have none. 0 in records from
    /// before 2026-11-30.
    #[serde(default)]
    pub warmup_ops: u64,
    /// Seed of keys and streams. 0 in records from before 2026-11-30.
    #[serde(default)]
    pub seed: u64,
    /// Median rate over the runs.
    pub ops_per_s: f64,
    /// The rate of each run.
    pub runs: Vec<f64>,
    /// Median latency. This and the next four are medians over the runs.
    pub p50_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// 99.9 %.
    pub p999_us: f64,
    /// 99.99 %.
    pub p9999_us: f64,
    /// Slowest timed call.
    pub max_us: f64,
    /// `RssAnon` after the load minus before the open, per key.
    pub dram_bytes_per_key: Option<f64>,
    /// Bytes of the segments in use on the medium after the load, per key; open segments count in full. In records from
    /// before 2026-11-26: bytes of the entries in them.
    pub media_bytes_per_key: Option<f64>,
    /// Bytes that the file system has allocated to the store's directory after the workload, per key; for hither that
    /// is its capacity.
    #[serde(default)]
    pub disk_bytes_per_key: Option<f64>,
    /// Values and pairs that a run read and checked, byte by byte.
    pub checked: u64,
    /// Settings of the store that determine the meaning of the figure.
    pub settings: BTreeMap<String, String>,
    /// The machine, the sources and the time.
    #[serde(flatten)]
    pub machine: Machine,
}

impl Record {
    /// Copies quantiles into the record.
    pub fn set_quantiles(&mut self, q: &Quantiles) {
        (self.p50_us, self.p99_us, self.p999_us, self.p9999_us, self.max_us) = (q.p50_us, q.p99_us, q.p999_us, q.p9999_us, q.max_us);
    }

    /// Workload and distribution as one text.
    pub fn label(&self) -> String {
        format!("{} {}", self.workload, self.distribution)
    }
}

/// Writes records, one per line, and what `out` may have kept of them.
pub fn write_lines(records: &[Record], mut out: impl Write) -> Result<()> {
    for record in records {
        let line = serde_json::to_string(record).map_err(|e| Error::Config(format!("a record that cannot be written: {e}")))?;
        writeln!(out, "{line}").map_err(|e| Error::io("writing records", e))?;
    }
    out.flush().map_err(|e| Error::io("writing records", e))
}

/// Reads records. Empty lines are skipped; a line that is no record is an error with its number.
pub fn read_lines(input: impl BufRead) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for (i, line) in input.lines().enumerate() {
        let line = line.map_err(|e| Error::io("reading records", e))?;
        if !line.trim().is_empty() {
            records.push(serde_json::from_str(&line).map_err(|e| Error::Config(format!("line {} is not a record: {e}", i + 1)))?);
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_every_promised_field_and_returns() {
        let record = Record { store: "x".into(), keys: 3, machine: Machine::here(), runs: vec![1.0, 2.5], ..Record::default() };
        let value = serde_json::to_value(&record).expect("a value");
        for field in FIELDS.into_iter().chain(["date", "cpu", "p9999_us"]) {
            assert!(value.get(field).is_some(), "{field} is missing");
        }
        let mut bytes = Vec::new();
        write_lines(&[record.clone(), Record::default()], &mut bytes).expect("written");
        assert_eq!(read_lines(bytes.as_slice()).expect("read"), vec![record, Record::default()]);
    }

    /// Regression: what a buffer still held was written when it was dropped, and an error of that was lost.
    #[test]
    fn records_that_do_not_reach_their_file_are_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        assert!(write_lines(&[Record::default()], std::io::BufWriter::new(Full)).is_err());
    }

    #[test]
    fn a_wrong_line_is_named() {
        let message = read_lines("\n{}\n".as_bytes()).expect_err("not a record").to_string();
        assert!(message.contains("line 2"), "{message}");
    }
}
