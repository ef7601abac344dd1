//! The Markdown table: a line per record.

use std::fmt::Write;

use super::{count, optional, title};
use crate::harness::record::Record;

const HEAD: &str = "| store | workload | per second | p50 µs | p99 µs | p99.9 µs | p99.99 µs | DRAM B/key | media B/key |\n\
                    |---|---|---:|---:|---:|---:|---:|---:|---:|\n";

/// All records as one table, and the circumstances below.
pub fn markdown(records: &[Record]) -> String {
    let mut out = String::from(HEAD);
    for r in records {
        let cells = [
            escape(&r.store),
            escape(&title(r)),
            count(r.ops_per_s),
            latency(r.p50_us),
            latency(r.p99_us),
            latency(r.p999_us),
            latency(r.p9999_us),
            optional(r.dram_bytes_per_key),
            optional(r.media_bytes_per_key),
        ];
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    if let Some(r) = records.first() {
        let m = &r.machine;
        let _ = writeln!(out, "\nCommit {}, {}, {} ({} processors), kernel {}.", m.commit, m.date, m.cpu, m.processors, m.kernel);
    }
    out
}

pub(super) fn latency(us: f64) -> String {
    match us {
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_per_record_and_no_broken_cells() {
        let text = markdown(&super::super::tests::sample());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.iter().filter(|line| line.starts_with('|')).count(), 5);
        assert!(lines[4].contains("c\\|d") && lines[4].contains("4 M"), "{}", lines[4]);
        assert!(text.contains("Commit"));
    }
}
