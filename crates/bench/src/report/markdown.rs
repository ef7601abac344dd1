//! The Markdown table: a line per record.

use std::fmt::Write;

use super::{COLUMNS, cells};
use crate::harness::record::Record;

/// All records as one table, and the circumstances below.
pub fn markdown(records: &[Record]) -> String {
    let mut out = format!("| {} |\n|---|---|{}\n", COLUMNS.join(" | "), "---:|".repeat(COLUMNS.len() - 2));
    for r in records {
        let _ = writeln!(out, "| {} |", cells(r).map(|cell| escape(&cell)).join(" | "));
    }
    if let Some(r) = records.first() {
        let m = &r.machine;
        let _ = writeln!(out, "\nCommit {}, {}, {} ({} processors), kernel {}.", m.commit, m.date, m.cpu, m.processors, m.kernel);
    }
    out
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
