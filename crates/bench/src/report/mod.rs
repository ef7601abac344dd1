//! Reports from a file of records: a Markdown table, and one HTML file with charts that needs no other file.
//!
//! Thread safety: pure functions from records to text.

pub mod experiment;
mod html;
mod markdown;
mod output;
mod svg;

pub use html::{chart_page, html};
pub use markdown::markdown;
pub use output::Output;

use crate::harness::record::Record;

/// Records that belong into one chart: everything but the store is equal.
struct Group<'r> {
    title: String,
    records: Vec<&'r Record>,
}

/// The groups, in the order of their first record.
fn groups(records: &[Record]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for record in records {
        let title = title(record);
        match groups.iter_mut().find(|group| group.title == title) {
            Some(group) => group.records.push(record),
            None => groups.push(Group { title, records: vec![record] }),
        }
    }
    groups
}

fn title(r: &Record) -> String {
    let rate = r.target_ops_per_s.map_or(String::new(), |rate| format!(", {} per s due", count(rate)));
    format!(
        "{} {}, {} threads, {} keys, {} B / {} B, {} {}{rate}",
        r.workload,
        r.distribution,
        r.threads,
        count(r.keys as f64),
        r.key_bytes,
        r.value_bytes,
        r.medium,
        r.durability
    )
}

/// The columns of every table of records.
const COLUMNS: [&str; 9] = ["store", "workload", "per second", "p50 µs", "p99 µs", "p99.9 µs", "p99.99 µs", "DRAM B/key", "media B/key"];

/// The cells of a record, in the order of [`COLUMNS`].
fn cells(r: &Record) -> [String; COLUMNS.len()] {
    [
        r.store.clone(),
        title(r),
        count(r.ops_per_s),
        latency(r.p50_us),
        latency(r.p99_us),
        latency(r.p999_us),
        latency(r.p9999_us),
        optional(r.dram_bytes_per_key),
        optional(r.media_bytes_per_key),
    ]
}

/// A number for people: 7.31 M, 820 k, 56.
pub(crate) fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", three_digits(v / 1e6)),
        v if v >= 1e4 => format!("{} k", three_digits(v / 1e3)),
        v => three_digits(v),
    }
}

fn latency(us: f64) -> String {
    match us {
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

fn optional(value: Option<f64>) -> String {
    value.map_or("–".into(), |v| format!("{v:.1}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Vec<Record> {
        let record = |store: &str, workload: &str, rate: f64| Record {
            store: store.into(),
            workload: workload.into(),
            distribution: "uniform".into(),
            ops_per_s: rate,
            runs: vec![rate],
            p50_us: 0.2,
            p99_us: 3.0,
            p999_us: 40.0,
            ..Record::default()
        };
        vec![record("a<b", "get", 2e6), record("a<b", "load", 1e6), record("c|d", "get", 4e6)]
    }

    #[test]
    fn equal_circumstances_share_a_group() {
        let records = sample();
        let groups = groups(&records);
        assert_eq!(groups.iter().map(|g| g.records.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn numbers_for_people() {
        let pairs = [
            (7_310_000.0, "7.31 M"),
            (820_000.0, "820 k"),
            (56.0, "56"),
            (5_421.0, "5421"),
            (0.25, "0.25"),
            (100.0, "100"),
            (20_600_000.0, "20.6 M"),
        ];
        for (value, text) in pairs {
            assert_eq!(count(value), text);
        }
    }
}
