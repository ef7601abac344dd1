//! The report of an experiment: a table for people, the same rows as JSON, and a page with charts.
//!
//! Thread safety: plain values.

use std::io::Write;

use serde_json::{Map, Value};

use super::{Output, chart_page};
use crate::harness::machine::Machine;
use crate::target::{Error, Result};

/// The outcome of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The title.
    pub title: String,
    /// Names of the columns; also the fields of the JSON objects.
    pub columns: Vec<&'static str>,
    /// The rows, each with as many values as there are columns.
    pub rows: Vec<Vec<Value>>,
    /// How to read the report, and the results of the paper.
    pub notes: Vec<String>,
    /// The columns that the page shows as bars.
    pub chart: Option<Chart>,
    /// Further charts of the page, each with a title and labelled bars.
    pub courses: Vec<(String, Vec<(String, f64)>)>,
}

/// The columns that become charts.
#[derive(Clone, Copy, Debug)]
pub struct Chart {
    /// Column with the length of a bar.
    pub value: &'static str,
    /// Columns with the label of a bar.
    pub label: &'static [&'static str],
    /// Columns whose values rows of one chart share.
    pub group: &'static [&'static str],
}

impl Report {
    /// Adds a row.
    pub fn push(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// The aligned table, with title and notes.
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

    /// A page with charts, the table and the notes. It loads nothing from elsewhere.
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
        charts.extend(self.courses.iter().cloned());
        let what = self.chart.map_or_else(String::new, |chart| chart.value.replace('_', " "));
        chart_page(&self.title, &what, &charts, &self.text())
    }

    /// A JSON object per row, with the circumstances of the run and the name of the experiment.
    pub fn lines(&self, experiment: &str) -> Result<String> {
        let machine = serde_json::to_value(Machine::here()).map_err(|e| Error::Config(format!("a record that cannot be written: {e}")))?;
        let line = |row: &Vec<Value>| {
            let mut fields = Map::from_iter([("experiment".to_owned(), Value::from(experiment))]);
            fields.extend(self.columns.iter().map(|name| (*name).to_owned()).zip(row.iter().cloned()));
            fields.extend(machine.as_object().cloned().unwrap_or_default());
            Value::Object(fields).to_string()
        };
        Ok(self.rows.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    /// Prints the report as a table or as JSON; then writes the page if `html` is given.
    pub fn print(&self, experiment: &str, json: bool, html: Option<Output>) -> Result<()> {
        let printed = self.say(experiment, json);
        html.map_or(Ok(()), |file| file.write(self.html().as_bytes())).and(printed)
    }

    fn say(&self, experiment: &str, json: bool) -> Result<()> {
        let text = if json { self.lines(experiment)? } else { self.text() };
        match writeln!(std::io::stdout(), "{text}") {
            // A reader that closed the pipe has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|e| Error::io("printing", e)),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_as_table_and_as_json() {
        let mut report =
            Report { title: "T".into(), columns: vec!["system", "remote_reads"], notes: vec!["N".into()], ..Report::default() };
        report.push(vec!["none".into(), 0.5.into()]);
        assert_eq!(report.text(), "T\n\nsystem  remote reads\nnone    0.500\n\nN");
        let line: Value = serde_json::from_str(&report.lines("nstore-accesses").unwrap()).unwrap();
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
}
