//! A table with yardsticks: its rows, the circumstances of the run, and the reasons why it does not count.
//!
//! Thread safety: plain values.

use std::io::Write;

use serde::Serialize;

use super::row::{Row, table};
use crate::harness::machine::Machine;
use crate::report::count;
use crate::target::{Error, Result};
use crate::yardstick::measure::Yardsticks;

/// The whole table as JSON.
#[derive(Debug, Serialize)]
pub struct Table {
    /// The machine, the sources and the time.
    #[serde(flatten)]
    pub machine: Machine,
    /// True if the run counts.
    pub counts: bool,
    /// The reasons why it does not count.
    pub disturbance: Vec<String>,
    /// Medians of the yardsticks around all groups of the run.
    pub yardsticks: Yardsticks,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// True if every row is as demanded and the run counts.
    pub fn is_good(&self) -> bool {
        self.counts && self.rows.iter().all(|row| row.verdict.is_good())
    }

    fn text(&self) -> String {
        let show = |value: Option<f64>| value.map_or("–".into(), count);
        let y = &self.yardsticks;
        let mut text = table(&self.rows);
        text += &format!(
            "\n\nyardsticks: append limit {}/s, map get uniform {}/s, Zipf {}/s",
            show(y.append),
            show(y.map_uniform),
            show(y.map_zipf)
        );
        for reason in &self.disturbance {
            text += &format!("\nTHIS RUN DOES NOT COUNT: {reason}");
        }
        let m = &self.machine;
        text + &format!("\ncommit {}, {}, {}, kernel {}", m.commit, m.date, m.cpu, m.kernel)
    }

    /// Prints the table.
    pub fn print(&self, json: bool) -> Result<()> {
        let text = if json {
            serde_json::to_string_pretty(self).map_err(|e| Error::Config(format!("a table that cannot be written: {e}")))?
        } else {
            self.text()
        };
        writeln!(std::io::stdout(), "{text}").map_err(|e| Error::io("printing the table", e))
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Point;
    use super::*;

    #[test]
    fn a_table_with_a_short_row_or_that_does_not_count_is_not_good() {
        let table = |counts, rows| Table {
            machine: Machine::default(),
            counts,
            disturbance: vec!["why".into()],
            yardsticks: Yardsticks::default(),
            rows,
        };
        let row = |value| Row::new(super::super::plan::DEMANDS[0], &[Point { value, rate: None }], false, String::new());
        assert!(table(true, vec![row(0.9), row(0.65)]).is_good());
        assert!(!table(true, vec![row(0.9), row(0.1)]).is_good());
        assert!(!table(false, vec![row(0.9)]).is_good());
        assert!(table(false, vec![]).text().contains("DOES NOT COUNT: why"));
    }
}
