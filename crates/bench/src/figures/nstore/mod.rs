//! The table of demands on what the NStore paper's parts add: `figures nstore`.
//!
//! Each part is a file with its rows (`DEMANDS`) and a function that measures those asked for; [`PARTS`] lists them. A part measures in this
//! process, unless it starts others itself.

pub mod raf;

use std::io::Write;

use serde::Serialize;

use super::engine::FiguresArgs;
use super::row::{Demand, Row, table};
use crate::harness::machine::Machine;
use crate::target::{Error, Result};

/// What a part is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Smaller counts.
    pub quick: bool,
    /// Rounds of what varies from run to run.
    pub rounds: u32,
}

/// A part of the table.
pub struct Part {
    /// Its rows.
    pub demands: &'static [Demand],
    /// Measures the rows given, all of this part's.
    pub measure: fn(&Request, &[Demand]) -> Result<Vec<Row>>,
}

/// All parts, in the order of the table.
pub const PARTS: [Part; 1] = [Part { demands: &raf::DEMANDS, measure: raf::measure }];

/// The whole table as JSON.
#[derive(Debug, Serialize)]
struct Table {
    #[serde(flatten)]
    machine: Machine,
    /// False if counts were smaller than the demands are for.
    counts: bool,
    rows: Vec<Row>,
}

impl Table {
    fn is_good(&self) -> bool {
        self.counts && self.rows.iter().all(|row| row.verdict.is_good())
    }

    fn text(&self) -> String {
        let counts = if self.counts { "" } else { "\nTHIS RUN DOES NOT COUNT: it has smaller counts than the demands are for" };
        let m = &self.machine;
        format!("{}\n{counts}\ncommit {}, {}, {}, kernel {}", table(&self.rows), m.commit, m.date, m.cpu, m.kernel)
    }
}

/// Measures and prints; true if every row is as demanded.
pub fn run(args: &FiguresArgs) -> Result<bool> {
    let wanted = |demand: &&Demand| args.only.is_empty() || args.only.iter().any(|word| demand.id.contains(word.as_str()));
    let selected = |part: &Part| -> Vec<Demand> { part.demands.iter().filter(wanted).copied().collect() };
    if PARTS.iter().all(|part| selected(part).is_empty()) {
        return Err(Error::Config(format!("no row is called {}", args.only.join(" or "))));
    }
    let request = Request { quick: args.quick, rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }).max(1) };
    let mut rows = Vec::new();
    for part in &PARTS {
        let demands = selected(part);
        if !demands.is_empty() {
            rows.extend((part.measure)(&request, &demands)?);
        }
    }
    let table = Table { machine: Machine::here(), counts: !args.quick, rows };
    let text = if args.json {
        serde_json::to_string_pretty(&table).map_err(|e| Error::Config(format!("a table that cannot be written: {e}")))?
    } else {
        table.text()
    };
    writeln!(std::io::stdout(), "{text}").map_err(|e| Error::io("printing the table", e))?;
    Ok(table.is_good())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_aims_are_not_below_demands() {
        let demands: Vec<Demand> = PARTS.iter().flat_map(|part| part.demands).copied().collect();
        for (i, demand) in demands.iter().enumerate() {
            assert!(demands[..i].iter().all(|other| other.id != demand.id), "{}", demand.id);
            let better = if demand.unit.less_is_better() { demand.aim <= demand.at_least } else { demand.aim >= demand.at_least };
            assert!(better, "{}", demand.id);
        }
    }
}
