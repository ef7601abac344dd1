//! The table of demands on compaction: `figures compaction`.
//!
//! Two writers and one collector, on forced dax, durable at return. Each measurement is a process of its own
//! (`hither-bench compaction`). Measurements that several rows of a round share are made once.
//!
//! Ratios compare measurements of one round, made in the order of the rows, so that a disturbance of the machine that
//! lasts for a while affects both.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde_json::Value;

use super::args::FiguresArgs;
use super::counting::{Around, ROUNDS, Required, Run, medians};
use super::engine::SCALE_KEYS;
use super::notes::Notes;
use super::process::{Runner, output};
use super::row::{Demand, Point, Row, Unit, without_aim};
use super::table::Table;
use crate::harness::machine::Machine;
use crate::harness::median;
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::yardstick::measure::{Request as Yard, Yardsticks, between};

const THREADS: usize = 2;
/// The append limit for which demands in operations per second are stated.
const SCALE_APPEND: f64 = 8.9e6;
/// No row divides by the map. But rates, bandwidth and latencies are demanded of one particular machine, and the append
/// limit has no cache misses, so it alone does not identify the machine.
const REQUIRED: Required = Required { append: true, map: true };
/// How often gets and scans are measured with and without a collector in each round, by turns.
const IDLE_TURNS: usize = 3;

/// The rows of the table.
pub const DEMANDS: [Demand; 16] = [
    without_aim("base-50", "update Zipf at 50 % (hash) against a store with room", Unit::WithRoom, 0.9),
    without_aim("zipf-80", "update Zipf 0.99 at 80 % (hash)", Unit::Half, 0.95),
    without_aim("zipf-90", "update Zipf 0.99 at 90 % (hash)", Unit::Half, 0.85),
    without_aim("uniform-80", "update uniform at 80 % (hash)", Unit::Half, 0.72),
    without_aim("uniform-90", "update uniform at 90 % (hash)", Unit::Half, 0.5),
    without_aim("ycsb-a-50", "YCSB-A, twice the keys, 48 B, at 50 % (hash), scaled by the append limit", Unit::PerSecond, 7.5e6),
    without_aim("ycsb-a-80", "YCSB-A, twice the keys, 48 B, at 80 % (hash), scaled by the append limit", Unit::PerSecond, 7.5e6),
    without_aim("ycsb-a-90", "YCSB-A, twice the keys, 48 B, at 90 % (hash), scaled by the append limit", Unit::PerSecond, 5e6),
    without_aim("bandwidth-90", "segments cleaned per second of a collector's processor, Zipf at 90 %", Unit::MegabytesPerSecond, 600.0),
    without_aim("techniques-hash", "all techniques against none, Zipf at 90 %: hash", Unit::AllOff, 1.5),
    without_aim("techniques-ordered", "all techniques against none, Zipf at 90 %: ordered", Unit::AllOff, 1.5),
    without_aim("latency-90", "p99.9 of a put, Zipf at 90 %", Unit::HalfLatency, 5.0),
    without_aim("latency-90-us", "p99.9 of a put, Zipf at 90 %, itself", Unit::Microseconds, 1000.0),
    without_aim("garbage-dram", "DRAM for accounts of garbage, Zipf at 90 %", Unit::LogShare, 0.005),
    without_aim("idle-get", "get uniform (hash), collector idle in place", Unit::NoCollector, 0.98),
    without_aim("idle-scan", "scan of 100 (ordered), collector idle in place", Unit::NoCollector, 0.98),
];

/// One measurement of `hither-bench compaction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    index: &'static str,
    workload: &'static str,
    collector: &'static str,
    utilization: u32,
}

const fn key(workload: &'static str, utilization: u32) -> Key {
    Key { index: "hash", workload, collector: "batched", utilization }
}

const ZIPF: &str = "update:zipf=0.99";
const UNIFORM: &str = "update:uniform";
const YCSB_A: &str = "ycsb-a";

/// The results of all rounds.
struct Compaction {
    runner: Runner,
    keys: u64,
    quick: bool,
    rounds: u32,
    yardsticks: Vec<Around>,
    /// Further reasons why the run does not count.
    objections: Vec<String>,
    points: BTreeMap<&'static str, Vec<Point>>,
    notes: Notes,
}

/// One round: the results so far, or the reason why there is none.
struct Round<'a> {
    all: &'a mut Compaction,
    found: BTreeMap<Key, Result<Value>>,
    append: Option<f64>,
}

/// Measures the table and prints it; returns true if every row meets its demand.
pub fn run(args: &FiguresArgs, prefix: &[OsString]) -> Result<bool> {
    let wanted = |demand: &&Demand| args.only.is_empty() || args.only.iter().any(|word| demand.id.contains(word.as_str()));
    let demands: Vec<Demand> = DEMANDS.iter().filter(wanted).copied().collect();
    if demands.is_empty() {
        return Err(Error::Config(format!("no row is called {}", args.only.join(" or "))));
    }
    let mut all = Compaction {
        runner: Runner::new(prefix, None)?,
        keys: args.keys.unwrap_or(if args.quick { 200_000 } else { SCALE_KEYS }),
        quick: args.quick,
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS }).max(1),
        yardsticks: Vec::new(),
        objections: Vec::new(),
        points: BTreeMap::new(),
        notes: Notes::default(),
    };
    for number in 0..all.rounds {
        eprintln!("round {} of {}", number + 1, all.rounds);
        all.round(number + 1, &demands);
    }
    let table = all.table(&demands);
    table.print(args.json)?;
    Ok(table.is_good())
}

impl Compaction {
    /// Measures a round. If a yardstick fails, the round's rows get a note, and the run does not count.
    fn round(&mut self, number: u32, demands: &[Demand]) {
        if let Err(error) = self.between_yardsticks(number, demands) {
            eprintln!("  {error}");
            demands.iter().for_each(|demand| self.notes.add(demand.id, &error));
            self.objections.push(format!("round {number}: {error}"));
        }
    }

    fn between_yardsticks(&mut self, number: u32, demands: &[Demand]) -> Result<()> {
        let before = self.measure_yardsticks()?;
        let append = before.append;
        let mut round = Round { all: self, found: BTreeMap::new(), append };
        for demand in demands {
            match round.point_of(demand.id) {
                Ok(point) => round.all.points.entry(demand.id).or_default().push(point),
                Err(error) => {
                    eprintln!("  {}: {error}", demand.id);
                    round.all.notes.add(demand.id, &error);
                }
            }
        }
        let after = self.measure_yardsticks()?;
        // Rows that are scaled divide by the append limit measured before the round.
        let scaled_by = Yardsticks { append, append_on_huge_pages: before.append_on_huge_pages, ..Yardsticks::default() };
        self.yardsticks.push(Around { group: format!("round {number}, before"), yardsticks: scaled_by });
        self.yardsticks.push(Around { group: format!("round {number}"), yardsticks: between(&before, &after) });
        Ok(())
    }

    fn measure_yardsticks(&self) -> Result<Yardsticks> {
        let append_seconds = if self.quick { 0.3 } else { 2.0 };
        self.runner.yardsticks(&Yard { threads: THREADS, keys: self.keys, append_seconds, gets: 2 * self.keys })
    }

    fn table(&self, demands: &[Demand]) -> Table {
        let row = |demand: &Demand| {
            let points = self.points.get(demand.id).map_or(&[][..], Vec::as_slice);
            self.notes.row(*demand, points, false, String::new())
        };
        let rows: Vec<Row> = demands.iter().map(row).collect();
        let (yardsticks, machine) = (medians(&self.yardsticks), Machine::here());
        let (keys, quick, rounds, commit) = (self.keys, self.quick, self.rounds, machine.commit.as_str());
        let mut disturbance =
            Run { keys, quick, rounds, commit, required: REQUIRED, yardsticks: &self.yardsticks, rows: &rows }.disturbances();
        disturbance.extend(self.objections.iter().cloned());
        Table { machine, counts: disturbance.is_empty(), disturbance, yardsticks, rows }
    }
}

impl Round<'_> {
    /// The point of a row in this round.
    fn point_of(&mut self, id: &str) -> Result<Point> {
        match id {
            "base-50" => self.against_room(),
            "zipf-80" => self.against_half(ZIPF, 80),
            "zipf-90" => self.against_half(ZIPF, 90),
            "uniform-80" => self.against_half(UNIFORM, 80),
            "uniform-90" => self.against_half(UNIFORM, 90),
            "ycsb-a-50" => self.scaled(50),
            "ycsb-a-80" => self.scaled(80),
            "ycsb-a-90" => self.scaled(90),
            "bandwidth-90" => Ok(itself(self.field(key(ZIPF, 90), "collected_mb_per_cpu_s")?)),
            "techniques-hash" => self.against_all_off("hash"),
            "techniques-ordered" => self.against_all_off("ordered"),
            "latency-90" => Ok(itself(self.field(key(ZIPF, 90), "p999_us")? / self.field(key(ZIPF, 50), "p999_us")?)),
            "latency-90-us" => Ok(itself(self.field(key(ZIPF, 90), "p999_us")?)),
            "garbage-dram" => Ok(itself(self.field(key(ZIPF, 90), "garbage_info_share")?)),
            "idle-get" => self.idle(Index::Hash, "get:uniform", 2),
            _ => self.idle(Index::Ordered, "scan=100:uniform", 0),
        }
    }

    fn rate(&mut self, key: Key) -> Result<f64> {
        Ok(self.field(key, "mops")? * 1e6)
    }

    fn against_half(&mut self, workload: &'static str, utilization: u32) -> Result<Point> {
        let (full, half) = (self.rate(key(workload, utilization))?, self.rate(key(workload, 50))?);
        Ok(Point { value: full / half, rate: Some(full) })
    }

    /// The ratio to the update figure of the engine's table, measured in the same round.
    fn against_room(&mut self) -> Result<Point> {
        let half = self.rate(key(ZIPF, 50))?;
        let args = format!("--keys {} --ops {} --threads {THREADS} --verify", self.all.keys, 2 * self.all.keys);
        let room = self.all.runner.store(Index::Hash, &args, &["load", ZIPF])?[1].ops_per_s;
        Ok(Point { value: half / room, rate: Some(half) })
    }

    fn scaled(&mut self, utilization: u32) -> Result<Point> {
        let append = self.append.ok_or_else(|| Error::Config("the append limit was not measured".into()))?;
        let rate = self.rate(key(YCSB_A, utilization))?;
        Ok(Point { value: rate * SCALE_APPEND / append, rate: Some(rate) })
    }

    fn against_all_off(&mut self, index: &'static str) -> Result<Point> {
        let on = self.rate(Key { index, ..key(ZIPF, 90) })?;
        let off = self.rate(Key { index, collector: "chain", ..key(ZIPF, 90) })?;
        Ok(Point { value: on / off, rate: Some(on) })
    }

    /// Measures with a collector that has nothing to do and without one, by turns. The median of the turns is the
    /// round's only point, because a row needs points of several rounds.
    fn idle(&mut self, index: Index, workload: &str, ops_per_key: u64) -> Result<Point> {
        let ops = if ops_per_key == 0 { self.all.keys / 5 } else { ops_per_key * self.all.keys };
        let (keys, runner) = (self.all.keys, &mut self.all.runner);
        let mut measure = |cleaners: u32| {
            let args = format!("--keys {keys} --ops {ops} --threads {THREADS} --cleaners {cleaners}");
            Ok(runner.store(index, &args, &[workload])?[0].ops_per_s)
        };
        let turn = |_| {
            let (without, with): (f64, f64) = (measure(0)?, measure(1)?);
            Ok((with / without, with))
        };
        let (ratios, rates): (Vec<f64>, Vec<f64>) = (0..IDLE_TURNS).map(turn).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Point { value: median(&ratios).unwrap_or(f64::NAN), rate: median(&rates) })
    }

    fn field(&mut self, key: Key, name: &str) -> Result<f64> {
        if !self.found.contains_key(&key) {
            let found = self.all.measure(key);
            self.found.insert(key, found);
        }
        match &self.found[&key] {
            Ok(row) => number(row, name),
            // Every row that needs the measurement gets its error, and wrong data stays wrong for all of them.
            Err(Error::WrongData(text)) => Err(Error::WrongData(text.clone())),
            Err(error) => Err(Error::Process(error.to_string())),
        }
    }
}

impl Compaction {
    /// Measures a row of `hither-bench compaction`.
    fn measure(&self, key: Key) -> Result<Value> {
        eprintln!("  {} {} at {} %, {}", key.index, key.workload, key.utilization, key.collector);
        let (keys, bytes) = if key.workload == YCSB_A { (2 * self.keys, 48) } else { (self.keys, 8) };
        let mut command = self.runner.command("compaction");
        command.args(["--json", "--index", key.index, "--workload", key.workload, "--collector", key.collector, "--cleaners", "1"]);
        command.args(["--utilization", &key.utilization.to_string(), "--keys", &keys.to_string(), "--value-bytes", &bytes.to_string()]);
        // The number of operations is the same for all: the store varies, not the length of the run.
        command.args(["--threads", &THREADS.to_string(), "--ops", &(4 * self.keys).to_string()]);
        super::process::json(&output(command)?)
    }
}

fn itself(value: f64) -> Point {
    Point { value, rate: None }
}

fn number(row: &Value, name: &str) -> Result<f64> {
    let note = || row["note"].as_str().map_or_else(|| format!("no {name} was measured"), str::to_owned);
    row[name].as_f64().ok_or_else(|| Error::Config(note()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::record::Record;
    use serde_json::json;

    #[test]
    fn rows_have_names_of_their_own() {
        for (i, demand) in DEMANDS.iter().enumerate() {
            assert!(DEMANDS[..i].iter().all(|other| other.id != demand.id), "{}", demand.id);
        }
    }

    fn compaction(runner: Runner) -> Compaction {
        let (points, notes) = (BTreeMap::new(), Notes::default());
        Compaction { runner, keys: 1_000, quick: true, rounds: 1, yardsticks: Vec::new(), objections: Vec::new(), points, notes }
    }

    /// Regression: each turn was a point, so that one round gave a row enough points.
    #[test]
    fn rows_on_idle_collectors_have_one_point_for_each_round() {
        let record = Record { ops_per_s: 5e6, ..Record::default() };
        // The same script also answers the requests for yardsticks.
        let first = "if [ \"$1\" = yardstick ]; then echo '{\"append\": 8e6, \"map_uniform\": 2e7, \"map_zipf\": 2e7}'; fi";
        let mut all = compaction(Runner::of_script(&Runner::script_of(first, &record)));
        let demands: Vec<Demand> = DEMANDS.into_iter().filter(|demand| demand.id.starts_with("idle")).collect();
        all.round(1, &demands);
        let rows = all.table(&demands).rows;
        assert!(rows.len() == 2 && rows.iter().all(|row| row.rounds == [1.0] && row.rate == Some(5e6)), "{rows:?}");
    }

    /// Regression: a yardstick that failed took the rows of all rounds with it.
    #[test]
    fn a_yardstick_that_fails_is_a_note_and_an_objection() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = format!(
            "case $1 in
            yardstick) mkdir {}/failed 2>/dev/null && echo no memory >&2 && exit 3; echo '{{\"append\": 8e6}}';;
            *) echo '{{\"p999_us\": 9}}';;
            esac",
            directory.path().display()
        );
        let mut all = Compaction { rounds: 2, ..compaction(Runner::of_script(&script)) };
        let demands: Vec<Demand> = DEMANDS.into_iter().filter(|demand| demand.id == "latency-90-us").collect();
        (1..3).for_each(|number| all.round(number, &demands));
        let table = all.table(&demands);
        assert!(table.rows[0].rounds == [9.0] && table.rows[0].note.contains("no memory"), "{table:?}");
        assert!(table.disturbance.iter().any(|reason| reason.starts_with("round 1: no memory")), "{:?}", table.disturbance);
    }

    /// Regression: a key was wrong in one of four rounds, and the rows had the values of the others.
    #[test]
    fn a_wrong_key_in_any_round_leaves_no_figure() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = format!(
            "case $1 in
            yardstick) echo '{{\"append\": 8e6, \"map_uniform\": 2e7, \"map_zipf\": 2e7}}';;
            *) mkdir {}/lost 2>/dev/null && echo 'wrong data: key 7' >&2 && exit 1
               echo '{{\"mops\": 5, \"p999_us\": 9, \"garbage_info_share\": 0.001}}';;
            esac",
            directory.path().display()
        );
        let mut all = Compaction { rounds: 4, ..compaction(Runner::of_script(&script)) };
        let demands: Vec<Demand> = DEMANDS.into_iter().filter(|demand| ["latency-90-us", "garbage-dram"].contains(&demand.id)).collect();
        (1..5).for_each(|number| all.round(number, &demands));
        let rows = all.table(&demands).rows;
        assert!(rows.len() == 2 && rows.iter().all(|row| row.value.is_none() && row.note.contains("key 7")), "{rows:?}");
    }

    /// A measurement of one process serves all rows of the round that need it.
    #[test]
    fn ratios_of_one_round() {
        let mut all = compaction(Runner::new(&[], None).expect("this program"));
        let row = |mops: f64, p999: f64| {
            Ok(json!({ "mops": mops, "p999_us": p999, "garbage_info_share": 0.002, "collected_mb_per_cpu_s": 700.0, "note": null }))
        };
        let found = BTreeMap::from([
            (key(ZIPF, 50), row(8.0, 10.0)),
            (key(ZIPF, 90), row(6.0, 40.0)),
            (Key { collector: "chain", ..key(ZIPF, 90) }, row(3.0, 900.0)),
            (key(YCSB_A, 90), row(4.0, 1.0)),
            (key(UNIFORM, 80), Ok(json!({ "mops": null, "note": "the store is full" }))),
            (key(UNIFORM, 50), Err(Error::Process("killed".to_owned()))),
        ]);
        let mut round = Round { all: &mut all, found, append: Some(4.45e6) };
        let mut value = |id: &str| round.point_of(id).map(|point| point.value);
        for (id, expected) in [
            ("zipf-90", 0.75),
            ("ycsb-a-90", 8e6),
            ("techniques-hash", 2.0),
            ("latency-90", 4.0),
            ("latency-90-us", 40.0),
            ("garbage-dram", 0.002),
            ("bandwidth-90", 700.0),
        ] {
            let got = value(id).expect(id);
            assert!((got / expected - 1.0).abs() < 1e-9, "{id}: {got}");
        }
        assert!(value("uniform-80").expect_err("not measured").to_string().contains("full"));
        assert!(value("uniform-90").is_err());
    }
}
