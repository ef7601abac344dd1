//! A row of the table: the measured value, the demand and the verdict.
//!
//! Thread safety: plain values.

use serde::Serialize;

use crate::harness::median;
use crate::report::count;

/// The unit of a row's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Times the append limit.
    Append,
    /// Times the map's gets of the same distribution.
    Map,
    /// Times LMDB.
    Lmdb,
    /// Times the best peer.
    BestPeer,
    /// Times the same store's single gets.
    SingleGet,
    /// Times the same store's single thread.
    OneThread,
    /// Bytes per key; less is better.
    BytesPerKey,
    /// Entries per second and thread.
    EntriesPerThread,
    /// Times the cost of the best static choice; less is better.
    Optimum,
    /// Times LFU's; less is better.
    Lfu,
    /// Gets; less is better.
    Gets,
    /// Added share of time; less is better.
    Overhead,
    /// Times the restart by a full scan; less is better.
    FullScan,
    /// Times the updates of the second minute.
    SecondMinute,
    /// Times the rate in a store that never collects.
    WithRoom,
    /// Times the rate at 50 % utilisation.
    Half,
    /// Times the latency at 50 % utilisation; less is better.
    HalfLatency,
    /// Operations per second.
    PerSecond,
    /// Million bytes per second.
    MegabytesPerSecond,
    /// Times the rate with all techniques off.
    AllOff,
    /// Microseconds; less is better.
    Microseconds,
    /// Share of the log's bytes; less is better.
    LogShare,
    /// Times the rate without collectors.
    NoCollector,
    /// Times Redis.
    Redis,
    /// Times Redis with appendfsync always.
    RedisAlways,
    /// Times the cost of Redis; less is better.
    RedisCost,
    /// Megabytes; less is better.
    Megabytes,
}

impl Unit {
    /// True if less is better.
    pub fn less_is_better(self) -> bool {
        let relative = matches!(self, Unit::Optimum | Unit::Lfu | Unit::Overhead | Unit::FullScan | Unit::HalfLatency | Unit::LogShare);
        relative || matches!(self, Unit::BytesPerKey | Unit::Gets | Unit::Microseconds | Unit::RedisCost | Unit::Megabytes)
    }

    /// The value with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Append => format!("{value:.2} × append"),
            Unit::Map => format!("{value:.2} × map"),
            Unit::Lmdb => format!("{value:.2} × LMDB"),
            Unit::BestPeer => format!("{value:.2} × best peer"),
            Unit::SingleGet => format!("{value:.2} × single"),
            Unit::OneThread => format!("{value:.1} × 1 thread"),
            Unit::BytesPerKey => format!("{value:.1} B"),
            Unit::EntriesPerThread => format!("{}/s", count(value)),
            Unit::Optimum => format!("{value:.3} × optimum"),
            Unit::Lfu => format!("{value:.3} × LFU"),
            Unit::Gets => format!("{} gets", count(value)),
            Unit::Overhead => format!("{:.1} %", value * 100.0),
            Unit::FullScan => format!("{value:.3} × full scan"),
            Unit::Redis | Unit::RedisCost => format!("{value:.2} × Redis"),
            Unit::RedisAlways => format!("{value:.2} × Redis, fsync always"),
            Unit::Megabytes => format!("{value:.1} MB"),
            Unit::SecondMinute => format!("{value:.2} × 2nd minute"),
            Unit::WithRoom => format!("{value:.2} × with room"),
            Unit::Half | Unit::HalfLatency => format!("{value:.2} × at 50 %"),
            Unit::PerSecond => format!("{}/s", count(value)),
            Unit::MegabytesPerSecond => format!("{value:.0} MB/s"),
            Unit::AllOff => format!("{value:.2} × all off"),
            Unit::Microseconds => format!("{value:.1} µs"),
            Unit::LogShare => format!("{:.2} %", value * 100.0),
            Unit::NoCollector => format!("{value:.3} × without"),
        }
    }
}

/// A demanded figure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Demand {
    /// Short name, for `--only`.
    pub id: &'static str,
    /// Name in the table.
    pub name: &'static str,
    /// Unit of its value.
    pub unit: Unit,
    /// Bound that the value must reach. 0 where more is better means that nothing is demanded.
    pub at_least: f64,
    /// Bound that the value should reach.
    pub aim: f64,
}

/// A row with a demand and an aim.
pub(super) const fn demand(id: &'static str, name: &'static str, unit: Unit, at_least: f64, aim: f64) -> Demand {
    Demand { id, name, unit, at_least, aim }
}

/// A row without an aim beyond its demand.
pub(super) const fn without_aim(id: &'static str, name: &'static str, unit: Unit, bound: f64) -> Demand {
    demand(id, name, unit, bound, bound)
}

/// The judgement of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The aim is reached.
    Aim,
    /// The demand is met.
    Met,
    /// Nothing is demanded; the value is only reported.
    Told,
    /// The demand is not met.
    Short,
    /// Nothing was measured; counts as short.
    NotMeasured,
}

impl Verdict {
    /// True unless the row is short or was not measured.
    pub fn is_good(self) -> bool {
        matches!(self, Verdict::Aim | Verdict::Met | Verdict::Told)
    }

    /// The word for the verdict in the table.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Aim => "aim reached",
            Verdict::Met => "met",
            Verdict::Told => "no demand",
            Verdict::Short => "SHORT",
            Verdict::NotMeasured => "NOT MEASURED",
        }
    }
}

/// A measured row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The demand.
    #[serde(flatten)]
    pub demand: Demand,
    /// The median over the rounds (the worst of several sizes for DRAM).
    pub value: Option<f64>,
    /// Each round's value.
    pub rounds: Vec<f64>,
    /// The median rate behind a ratio, per second.
    pub rate: Option<f64>,
    /// The judgement.
    pub verdict: Verdict,
    /// A remark, for example the reason why nothing was measured.
    pub note: String,
    /// True if the values are not those of rounds, but of sizes of which the worst counts.
    #[serde(skip)]
    pub worst: bool,
}

/// One round's contribution to a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The value in the row's unit.
    pub value: f64,
    /// The rate behind it, if it is a ratio.
    pub rate: Option<f64>,
}

impl Row {
    /// Joins the rounds to their median, or to the worst value if `worst`.
    pub fn new(demand: Demand, points: &[Point], worst: bool, note: String) -> Self {
        let rounds: Vec<f64> = points.iter().map(|p| p.value).filter(|v| v.is_finite()).collect();
        let worst_of = || rounds.iter().copied().reduce(if demand.unit.less_is_better() { f64::max } else { f64::min });
        let value = if worst { worst_of() } else { median(&rounds) };
        let rate = median(&points.iter().filter_map(|p| p.rate).collect::<Vec<_>>());
        let verdict = value.map_or(Verdict::NotMeasured, |value| judge(&demand, value));
        Self { demand, value, rounds, rate, verdict, note, worst }
    }
}

impl Demand {
    /// Whether nothing is demanded.
    fn is_none(&self) -> bool {
        self.at_least == 0.0 && !self.unit.less_is_better()
    }
}

fn judge(demand: &Demand, value: f64) -> Verdict {
    if demand.is_none() {
        return Verdict::Told;
    }
    let reaches = |bound: f64| if demand.unit.less_is_better() { value <= bound } else { value >= bound };
    match (reaches(demand.aim), reaches(demand.at_least)) {
        (true, _) => Verdict::Aim,
        (_, true) => Verdict::Met,
        _ => Verdict::Short,
    }
}

/// The aligned table, for people.
pub fn table(rows: &[Row]) -> String {
    let head = ["figure", "value", "per second", "demand", "aim", "verdict"].map(String::from);
    let line = |row: &Row| {
        let d = &row.demand;
        [
            d.name.to_string(),
            row.value.map_or("–".into(), |value| d.unit.show(value)),
            row.rate.map_or("–".into(), count),
            if d.is_none() { "–".into() } else { d.unit.show(d.at_least) },
            if d.is_none() { "–".into() } else { d.unit.show(d.aim) },
            if row.note.is_empty() { row.verdict.word().to_string() } else { format!("{} ({})", row.verdict.word(), row.note) },
        ]
    };
    let lines: Vec<[String; 6]> = std::iter::once(head).chain(rows.iter().map(line)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let pad = |line: &[String; 6]| {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_string()
    };
    lines.iter().map(pad).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Demand = Demand { id: "a", name: "load", unit: Unit::Append, at_least: 0.65, aim: 0.85 };
    const SIZE: Demand = Demand { id: "b", name: "DRAM", unit: Unit::BytesPerKey, at_least: 20.0, aim: 16.0 };

    fn row(demand: Demand, values: &[f64], worst: bool) -> Row {
        let points: Vec<Point> = values.iter().map(|&value| Point { value, rate: Some(value * 2.0) }).collect();
        Row::new(demand, &points, worst, String::new())
    }

    #[test]
    fn verdicts_in_both_directions() {
        let verdict = |demand, value| row(demand, &[value], false).verdict;
        assert_eq!(
            [0.9, 0.85, 0.7, 0.65, 0.6].map(|v| verdict(RATE, v)),
            [Verdict::Aim, Verdict::Aim, Verdict::Met, Verdict::Met, Verdict::Short]
        );
        assert_eq!([15.0, 18.0, 20.5].map(|v| verdict(SIZE, v)), [Verdict::Aim, Verdict::Met, Verdict::Short]);
        assert_eq!(row(RATE, &[], false).verdict, Verdict::NotMeasured);
        assert!(!Verdict::NotMeasured.is_good());
    }

    #[test]
    fn medians_and_worst() {
        assert_eq!(row(RATE, &[0.5, 0.9, 0.7], false).value, Some(0.7));
        assert_eq!(row(SIZE, &[15.0, 19.0, 17.0], true).value, Some(19.0));
        assert_eq!(row(RATE, &[0.5, f64::NAN], false).rounds, [0.5]);
    }

    #[test]
    fn where_nothing_is_demanded_the_value_is_told() {
        let told = row(Demand { at_least: 0.0, aim: 0.0, ..RATE }, &[0.1], false);
        assert!(told.verdict == Verdict::Told && told.verdict.is_good());
        let text = table(&[told]);
        assert!(text.contains("0.10 × append") && !text.contains("0.00") && text.contains("no demand"), "{text}");
        assert_eq!(row(Demand { at_least: 0.0, aim: 0.0, ..RATE }, &[], false).verdict, Verdict::NotMeasured);
    }

    #[test]
    fn the_table_names_what_is_short() {
        let text = table(&[row(RATE, &[0.6], false), row(SIZE, &[], false)]);
        assert!(text.contains("0.60 × append") && text.contains("SHORT") && text.contains("NOT MEASURED"), "{text}");
    }
}
