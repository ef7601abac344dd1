//! The table of demands on what the parts of the NStore paper add: `figures nstore`.
//!
//! Each part is a file with its rows (`DEMANDS`) and a function that measures the requested ones; [`PARTS`] lists them.
//! A part measures in this process, unless it starts others itself.

pub mod endurance;
pub mod ordered;
pub mod raf;

use std::ffi::OsString;
use std::io::Write;

use serde::Serialize;

use super::args::FiguresArgs;
use super::counting::{Around, ROUNDS, medians, of_commit, of_counts, of_rounds, of_yardsticks};
use super::engine::SCALE_KEYS;
use super::process::{Runner, build_peers, find_peers};
use super::row::{Demand, Row, table};
use crate::harness::machine::Machine;
use crate::report::Output;
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::yardstick::measure::Yardsticks;

/// Number of threads of every row but those on the cache.
pub const THREADS: usize = 2;
/// The keys of the restart, and the minutes of endless updates, for which the demands are stated.
const RESTART_KEYS: u64 = 50_000_000;
const MINUTES: u32 = 10;

/// The request to a part, and the yardsticks that it adds.
pub struct Request {
    /// Whether to use smaller counts.
    pub quick: bool,
    /// Number of rounds of figures that vary from run to run.
    pub rounds: u32,
    /// Number of keys of the ordered rows.
    pub keys: u64,
    /// Number of keys of the restart.
    pub restart_keys: u64,
    /// Number of minutes of endless updates.
    pub minutes: u32,
    /// The ordered index to measure.
    pub index: Index,
    /// Starts the processes.
    pub runner: Runner,
    /// The yardsticks around each group measured so far.
    pub(super) yardsticks: Vec<Around>,
}

impl Request {
    fn new(args: &FiguresArgs, runner: Runner) -> Request {
        let or = |usual, quick| if args.quick { quick } else { usual };
        Request {
            quick: args.quick,
            rounds: args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS }).max(1),
            keys: args.keys.unwrap_or(or(SCALE_KEYS, 200_000)),
            restart_keys: args.restart_keys.unwrap_or(or(RESTART_KEYS, 500_000)),
            minutes: args.minutes.unwrap_or(if args.quick { 3 } else { MINUTES }),
            index: if args.learned { Index::Learned } else { Index::Ordered },
            runner,
            yardsticks: Vec::new(),
        }
    }

    /// Small counts, for tests.
    #[cfg(test)]
    pub fn small(runner: Runner, keys: u64, index: Index) -> Request {
        Request { quick: true, rounds: 1, keys, restart_keys: keys, minutes: 2, index, runner, yardsticks: Vec::new() }
    }

    /// The reasons why the run does not count, given the measured rows.
    fn disturbance(&self, rows: &[Row], commit: &str) -> Vec<String> {
        let of = |prefix| rows.iter().filter(move |row| row.demand.id.starts_with(prefix));
        let has = |prefix| of(prefix).next().is_some();
        let mut reasons: Vec<String> = of_commit(commit).into_iter().collect();
        if self.quick || has("ordered") {
            reasons.extend(of_counts(self.keys, self.quick));
        }
        // The other rows are measured once: the decisions of RAF do not vary from run to run, and the restart and the
        // endless updates take too long.
        if has("ordered") || has("raf-off") {
            reasons.extend(of_rounds(self.rounds, of("ordered").chain(of("raf-off"))));
        }
        if of_counts(self.keys, self.quick).is_none() {
            reasons.extend(of_yardsticks(&self.yardsticks, ordered::required(rows)));
        }
        if has("restart") && self.restart_keys < RESTART_KEYS {
            reasons.push(format!("the restart is of {} keys instead of {RESTART_KEYS}", self.restart_keys));
        }
        if has("endless") && (self.minutes < MINUTES || self.keys < SCALE_KEYS) {
            reasons.push(format!("endless updates took {} minutes over {} keys", self.minutes, self.keys));
        }
        reasons
    }
}

/// A part of the table.
pub struct Part {
    /// Its rows.
    pub demands: &'static [Demand],
    /// Measures the given rows, all of this part.
    pub measure: fn(&mut Request, &[Demand]) -> Result<Vec<Row>>,
}

/// All parts, in the order of the table.
pub const PARTS: [Part; 3] = [
    Part { demands: &ordered::DEMANDS, measure: ordered::measure },
    Part { demands: &raf::DEMANDS, measure: raf::measure },
    Part { demands: &endurance::DEMANDS, measure: endurance::measure },
];

/// The whole table as JSON.
#[derive(Debug, Serialize)]
struct Table {
    #[serde(flatten)]
    machine: Machine,
    /// True if the run counts.
    counts: bool,
    /// The reasons why it does not count.
    disturbance: Vec<String>,
    /// The ordered index that was measured.
    index: &'static str,
    yardsticks: Yardsticks,
    rows: Vec<Row>,
}

impl Table {
    fn is_good(&self) -> bool {
        self.counts && self.rows.iter().all(|row| row.verdict.is_good())
    }

    fn text(&self) -> String {
        let reasons: String = self.disturbance.iter().map(|reason| format!("\nTHIS RUN DOES NOT COUNT: {reason}")).collect();
        let m = &self.machine;
        let circumstances = format!("commit {}, {}, {}, kernel {}, {}", m.commit, m.date, m.cpu, m.kernel, self.index);
        format!("{}\n{reasons}\n{circumstances}", table(&self.rows))
    }
}

/// Measures the table and prints it; returns true if every row meets its demand.
pub fn run(args: &FiguresArgs, prefix: &[OsString]) -> Result<bool> {
    let wanted = |demand: &&Demand| args.only.is_empty() || args.only.iter().any(|word| demand.id.contains(word.as_str()));
    let selected = |part: &Part| -> Vec<Demand> { part.demands.iter().filter(wanted).copied().collect() };
    if PARTS.iter().all(|part| selected(part).is_empty()) {
        return Err(Error::Config(format!("no row is called {}", args.only.join(" or "))));
    }
    let here = std::env::current_dir().map_err(|e| Error::io("finding the current directory", e))?;
    if args.peers {
        build_peers(&here)?;
    }
    let records = Output::open(args.records.as_deref())?;
    let peers = args.peers_program.clone().or_else(|| find_peers(&here));
    let mut request = Request::new(args, Runner::new(prefix, peers)?);
    let mut rows = Vec::new();
    for part in &PARTS {
        let demands = selected(part);
        if !demands.is_empty() {
            rows.extend((part.measure)(&mut request, &demands)?);
        }
    }
    let machine = Machine::here();
    let disturbance = request.disturbance(&rows, &machine.commit);
    let yardsticks = medians(&request.yardsticks);
    let table = Table { machine, counts: disturbance.is_empty(), disturbance, index: request.index.store_name(), yardsticks, rows };
    let text = if args.json {
        serde_json::to_string_pretty(&table).map_err(|e| Error::Config(format!("a table that cannot be written: {e}")))?
    } else {
        table.text()
    };
    let printed = writeln!(std::io::stdout(), "{text}").map_err(|e| Error::io("printing the table", e));
    request.runner.write_records(records).and(printed)?;
    Ok(table.is_good())
}

#[cfg(test)]
mod tests {
    use super::super::row::Point;
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

    #[test]
    fn a_run_with_smaller_counts_does_not_count() {
        let runner = || Runner::new(&[], None).unwrap();
        let demand = |id: &str| PARTS.iter().flat_map(|part| part.demands).find(|demand| demand.id == id).copied();
        let row = |id: &str| Row::new(demand(id).expect("a row"), &[], false, String::new());
        let full = || Request {
            quick: false,
            restart_keys: RESTART_KEYS,
            minutes: MINUTES,
            rounds: ROUNDS,
            ..Request::small(runner(), SCALE_KEYS, Index::Ordered)
        };
        let reasons = |request: Request, ids: &[&'static str]| {
            let rows: Vec<Row> = ids.iter().map(|id| row(id)).collect();
            request.disturbance(&rows, "0123456789ab").len()
        };
        assert_eq!(reasons(full(), &["restart", "endless", "ordered-dram"]), 0);
        assert_eq!(reasons(Request { restart_keys: 1_000_000, ..full() }, &["restart"]), 1);
        assert_eq!(reasons(Request { minutes: 2, ..full() }, &["endless"]), 1);
        assert_eq!(reasons(Request { keys: 1_000, ..full() }, &["ordered-load", "endless"]), 2);
        assert_eq!(reasons(Request { quick: true, ..full() }, &[]), 1);
        assert_eq!(full().disturbance(&[], "0123456789ab+").len(), 1);
        let once = || Request { rounds: 1, ..full() };
        assert_eq!([&["ordered-dram"][..], &["raf-off-cost"], &["restart"]].map(|ids| reasons(once(), ids)), [1, 1, 0]);
        let rows = |ids: &[&str], points: usize| {
            let points = vec![Point { value: 0.5, rate: None }; points];
            ids.iter().map(|id| Row::new(demand(id).expect("a row"), &points, false, String::new())).collect::<Vec<_>>()
        };
        let of_rows = |ids: &[&str], points| full().disturbance(&rows(ids, points), "0123456789ab");
        assert!(of_rows(&["raf-cost-2", "restart", "endless"], 1).is_empty(), "they are measured once");
        assert!(of_rows(&["ordered-scan", "raf-off-cost"], 3).is_empty());
        let twice = of_rows(&["ordered-scan", "raf-off-cost"], 2);
        assert!(twice.len() == 2 && twice.iter().all(|reason| reason.contains("only 2 times")), "{twice:?}");
        // Neither the append limit nor the two figures of the map were measured.
        assert_eq!(reasons(full(), &["ordered-load"]), 1);
        assert_eq!(reasons(full(), &["ordered-update-zipf", "ordered-get-zipf"]), 3);
    }
}
