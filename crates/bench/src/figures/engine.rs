//! Runs the table of the engine: rounds of groups, yardsticks around each group, rows and verdicts at the end.
//!
//! A run counts only if the yardsticks by which the points of each group are divided lie within 25 % of the scale
//! figures (two threads, 5 M keys), and if there is no other objection to it ([`super::counting`]). Otherwise the table
//! states the reasons.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::args::FiguresArgs;
use super::counting::{Around, ROUNDS, Required, Run, medians};
use super::dram::dram_of_sizes;
use super::kill::{Crash, kill_and_recover};
use super::notes::Notes;
use super::plan::{Group, selected};
use super::process::{Runner, build_peers, find_peers};
use super::row::{Demand, Point, Row};
use super::table::Table;
use crate::harness::machine::Machine;
use crate::harness::spec::require_disk;
use crate::report::Output;
use crate::report::count;
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::yardstick::measure::{Request, Yardsticks, between};

/// Measures the table and prints it; returns true if every row meets its demand.
pub fn run(args: &FiguresArgs, prefix: &[OsString]) -> Result<bool> {
    let here = std::env::current_dir().map_err(|e| Error::io("finding the current directory", e))?;
    if args.peers {
        build_peers(&here)?;
    }
    let demands = selected(&args.only);
    if demands.is_empty() {
        return Err(Error::Config(format!("no row is called {}", args.only.join(" or "))));
    }
    let records = Output::open(args.records.as_deref())?;
    let peers = args.peers_program.clone().or_else(|| find_peers(&here));
    let mut engine = Engine::new(args, Runner::new(prefix, peers)?);
    let groups = Group::ALL.into_iter().filter(|group| group.rows().iter().any(|id| demands.iter().any(|d| d.id == *id)));
    let groups: Vec<Group> = groups.collect();
    if groups.iter().any(|group| matches!(group, Group::FileProcess | Group::FileSync)) {
        require_disk(&engine.disk, "--disk")?;
    }
    for round in 0..engine.rounds {
        for group in &groups {
            eprintln!("round {} of {}: {group:?}", round + 1, engine.rounds);
            engine.group(*group, round);
        }
    }
    if args.full {
        engine.full();
    }
    let row = |demand| engine.row(demand);
    let rows = demands.into_iter().map(row).collect();
    let table = engine.table(rows, required(&groups));
    let printed = table.print(args.json);
    engine.runner.write_records(records).and(printed)?;
    Ok(table.is_good())
}

/// The yardsticks that the groups divide by or are judged by.
fn required(groups: &[Group]) -> Required {
    let each = || groups.iter().map(|group| group.yardsticks());
    Required { append: each().any(|(append, _)| append), map: each().any(|(_, map)| map) }
}

struct Engine {
    runner: Runner,
    points: BTreeMap<&'static str, Vec<Point>>,
    notes: Notes,
    yardsticks: Vec<Around>,
    /// Further reasons why the run does not count.
    objections: Vec<String>,
    rounds: u32,
    keys: u64,
    quick: bool,
    disk: PathBuf,
}

const THREADS: usize = 2;
/// Number of keys that the demands are for.
pub(super) const SCALE_KEYS: u64 = 5_000_000;
/// Number of threads that commit at once in the row on group commit.
const COMMITTERS: usize = 32;
/// The peers whose best rate is the measure of one committing thread.
const PEERS: [&str; 4] = ["lmdb", "redb", "rocksdb", "fjall"];

impl Engine {
    fn new(args: &FiguresArgs, runner: Runner) -> Self {
        let keys = args.keys.unwrap_or(if args.quick { 200_000 } else { SCALE_KEYS });
        let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS }).max(1);
        let disk = args.disk.clone().unwrap_or_else(std::env::temp_dir);
        let (points, notes, yardsticks, objections) = (BTreeMap::new(), Notes::default(), Vec::new(), Vec::new());
        Self { runner, points, notes, yardsticks, objections, rounds, keys, quick: args.quick, disk }
    }

    /// Runs a group between two measurements of the yardsticks. An error becomes the note of its rows.
    fn group(&mut self, group: Group, round: u32) {
        let mut points = Points::new();
        match self.between_yardsticks(group, round, &mut points) {
            Ok(yard) => points.into_iter().for_each(|(id, numerator, basis)| {
                self.points.entry(id).or_default().extend(basis.point(numerator, &yard));
            }),
            // Points of a group without yardsticks do not count.
            Err(error) => {
                eprintln!("  {error}");
                group.rows().iter().for_each(|id| self.notes.add(id, &error));
            }
        }
    }

    /// Fails only if the yardsticks were not measured.
    fn between_yardsticks(&mut self, group: Group, round: u32, points: &mut Points) -> Result<Yardsticks> {
        let before = self.measure_yardsticks(group)?;
        if let Err(error) = self.stores(group, round, points) {
            eprintln!("  {error}");
            // What the group measured before it failed is not affected.
            let missing = group.rows().iter().filter(|id| points.iter().all(|(measured, ..)| measured != *id));
            missing.for_each(|id| self.notes.add(id, &error));
        }
        let yardsticks = between(&before, &self.measure_yardsticks(group)?);
        if group.yardsticks() != (false, false) {
            self.yardsticks.push(Around { group: format!("{group:?}, round {}", round + 1), yardsticks });
        }
        Ok(yardsticks)
    }

    fn measure_yardsticks(&self, group: Group) -> Result<Yardsticks> {
        let (append, map) = group.yardsticks();
        if !append && !map {
            return Ok(Yardsticks::default());
        }
        let seconds = if self.quick { 0.3 } else { 2.0 };
        let request = Request {
            threads: THREADS,
            keys: self.keys,
            append_seconds: if append { seconds } else { 0.0 },
            gets: if map { 2 * self.keys } else { 0 },
        };
        self.runner.yardsticks(&request)
    }

    /// The arguments of a run on dax. `--verify` reads everything back after the measurement, whatever the workloads
    /// read.
    fn dax(&self, ops: u64) -> String {
        format!("--keys {} --threads {THREADS} --ops {ops} --medium dax --durability sync --verify", self.keys)
    }

    fn file(&self, keys: u64, threads: usize, durability: &str) -> String {
        format!("--keys {keys} --threads {threads} --medium file --durability {durability} --verify --dir {}", self.disk.display())
    }

    fn stores(&mut self, group: Group, round: u32, out: &mut Points) -> Result<()> {
        match group {
            Group::HashRead => self.hash_read(out),
            Group::HashUpdate => self.hash_write("update:zipf=0.99", "update-zipf", out),
            Group::HashMix => self.hash_write("ycsb-a", "ycsb-a", out),
            Group::HashBatch => self.hash_batch(out),
            Group::Ordered => self.ordered(out),
            Group::FileProcess => self.file_process(out),
            Group::FileSync => self.file_sync(out),
            // Memory does not vary from round to round.
            Group::Dram => {
                if round == 0 {
                    self.dram(out)
                } else {
                    Ok(())
                }
            }
            Group::Recovery => self.recovery(out),
        }
    }

    fn hash_read(&mut self, out: &mut Points) -> Result<()> {
        let workloads = ["load", "get:uniform", "get:zipf=0.99", "multi-get=16:uniform", "delete"];
        let r = self.runner.store(Index::Hash, &self.dax(2 * self.keys), &workloads)?;
        out.push(("load-hash", r[0].ops_per_s, Basis::Append));
        out.push(("get-uniform", r[1].ops_per_s, Basis::MapUniform));
        out.push(("get-zipf", r[2].ops_per_s, Basis::MapZipf));
        out.push(("multi-get-hash", r[3].ops_per_s, Basis::Rate(r[1].ops_per_s)));
        out.push(("delete", r[4].ops_per_s, Basis::Append));
        out.extend(r[0].media_bytes_per_key.map(|bytes| ("media-hash", bytes, Basis::Itself)));
        Ok(())
    }

    fn hash_write(&mut self, workload: &str, id: &'static str, out: &mut Points) -> Result<()> {
        let r = self.runner.store(Index::Hash, &self.dax(2 * self.keys), &["load", workload])?;
        out.push((id, r[1].ops_per_s, Basis::Append));
        Ok(())
    }

    fn hash_batch(&mut self, out: &mut Points) -> Result<()> {
        let r = self.runner.store(Index::Hash, &self.dax(2 * self.keys), &["load-batch=16", "put-batch=16:uniform"])?;
        out.push(("batch-load", r[0].ops_per_s, Basis::Append));
        out.push(("batch-put", r[1].ops_per_s, Basis::Append));
        Ok(())
    }

    fn ordered(&mut self, out: &mut Points) -> Result<()> {
        let r = self.runner.store(Index::Ordered, &self.dax(2 * self.keys), &["load", "get:uniform", "multi-get=16:uniform"])?;
        let scans = self.dax(self.keys / 5);
        let s = self.runner.store(Index::Ordered, &scans, &["scan=100:uniform"])?;
        out.push(("load-ordered", r[0].ops_per_s, Basis::Append));
        out.push(("get-ordered-map", r[1].ops_per_s, Basis::MapUniform));
        out.push(("multi-get-ordered", r[2].ops_per_s, Basis::Rate(r[1].ops_per_s)));
        out.extend(r[0].media_bytes_per_key.map(|bytes| ("media-ordered", bytes, Basis::Itself)));
        // Both stores do the same number of operations, each in a process of its own.
        for (id, ours, ops, workload) in [
            ("get-ordered-lmdb", r[1].ops_per_s, 2 * self.keys, "get:uniform"),
            ("scan", s[0].ops_per_s, self.keys / 5, "scan=100:uniform"),
        ] {
            let args = self.dax(ops).replace("--durability sync", "--durability process");
            match self.runner.peer("lmdb", &args, &[workload]) {
                Ok(lmdb) => out.push((id, ours, Basis::Rate(lmdb[0].ops_per_s))),
                Err(error) => self.notes.add(id, &error),
            }
        }
        Ok(())
    }

    fn file_process(&mut self, out: &mut Points) -> Result<()> {
        let args = self.file(self.keys, THREADS, "process");
        let lmdb = self.runner.peer("lmdb", &args, &["load-batch=1000"])?[0].ops_per_s;
        for (index, id) in [(Index::Hash, "file-load-hash"), (Index::Ordered, "file-load-ordered")] {
            let r = self.runner.store(index, &args, &["load"])?;
            out.push((id, r[0].ops_per_s, Basis::Rate(lmdb)));
        }
        Ok(())
    }

    fn file_sync(&mut self, out: &mut Points) -> Result<()> {
        let limits = format!(" --seconds {} --sample-every 1", if self.quick { 0.5 } else { 4.0 });
        let args = |engine: &Self, threads| engine.file(2_000_000, threads, "sync") + &limits;
        let one = self.runner.store(Index::Hash, &args(self, 1), &["load"])?[0].ops_per_s;
        let many = self.runner.store(Index::Hash, &args(self, COMMITTERS), &["load"])?[0].ops_per_s;
        match plausible_speedup(many, one, COMMITTERS) {
            Ok(()) => out.push(("file-sync-32", many, Basis::Rate(one))),
            // A disturbed single thread also affects the comparison with the peers below, but there it only makes the
            // row worse.
            Err(error) => self.notes.add("file-sync-32", &error),
        }
        let rates = PEERS.map(|peer| (peer, self.runner.peer(peer, &args(self, 1), &["load"]).map(|r| r[0].ops_per_s)));
        match best_of_all(&rates, one) {
            Ok(best) => out.push(("file-sync-1", one, Basis::Rate(best))),
            Err(error) => self.notes.add("file-sync-1", &error),
        }
        Ok(())
    }

    fn dram(&mut self, out: &mut Points) -> Result<()> {
        for (index, id) in [(Index::Hash, "dram-hash"), (Index::Ordered, "dram-ordered")] {
            match dram_of_sizes(&mut self.runner, index, self.keys, THREADS) {
                Ok(sizes) => out.extend(sizes.map(|bytes| (id, bytes, Basis::Itself))),
                Err(error) => self.notes.add(id, &error),
            }
        }
        Ok(())
    }

    fn recovery(&mut self, out: &mut Points) -> Result<()> {
        for (index, id) in [(Index::Hash, "recovery-hash"), (Index::Ordered, "recovery-ordered")] {
            match kill_and_recover(&self.runner, &Crash::new(index, self.keys, THREADS)) {
                Ok(recovered) => out.push((id, recovered.per_thread(), Basis::Itself)),
                Err(error) => self.notes.add(id, &error),
            }
        }
        Ok(())
    }

    /// Makes records for the report only: one thread, larger values, many keys.
    fn full(&mut self) {
        let k = self.keys;
        let sized = |keys: u64, bytes: u32| format!("--keys {keys} --ops {keys} --value-bytes {bytes} --threads {THREADS}");
        let scripts = [
            format!("--keys {k} --ops {k} --threads 1"),
            sized(k, 100),
            sized(k / 5, 1024),
            sized(k / 200, 65_536),
            format!("--keys {} --ops {} --threads {THREADS}", k * 10, k * 2),
        ];
        for args in scripts {
            for (index, workloads) in [
                (Index::Hash, &["load", "get:uniform", "update:zipf=0.99"][..]),
                (Index::Ordered, &["load", "get:uniform", "scan=100:uniform"]),
            ] {
                eprintln!("full: {} {args}", index.store_name());
                if let Err(error) = self.runner.store(index, &args, workloads) {
                    eprintln!("  {error}");
                    let wrong = matches!(error, Error::WrongData(_));
                    self.objections.extend(wrong.then(|| format!("{}, {args}: {error}", index.store_name())));
                }
            }
        }
    }

    fn row(&self, demand: Demand) -> Row {
        let points = self.points.get(demand.id).map_or(&[][..], Vec::as_slice);
        self.notes.row(demand, points, demand.id.starts_with("dram-"), String::new())
    }

    fn table(&self, rows: Vec<Row>, required: Required) -> Table {
        let (yardsticks, machine) = (medians(&self.yardsticks), Machine::here());
        let (keys, quick, rounds, commit) = (self.keys, self.quick, self.rounds, machine.commit.as_str());
        let mut disturbance = Run { keys, quick, rounds, commit, required, yardsticks: &self.yardsticks, rows: &rows }.disturbances();
        disturbance.extend(self.objections.iter().cloned());
        Table { machine, counts: disturbance.is_empty(), disturbance, yardsticks, rows }
    }
}

type Points = Vec<(&'static str, f64, Basis)>;

/// The value that a point is divided by.
#[derive(Clone, Copy, Debug)]
enum Basis {
    Itself,
    Rate(f64),
    Append,
    MapUniform,
    MapZipf,
}

impl Basis {
    /// The point of a rate or size, unless the yardstick is missing.
    fn point(self, numerator: f64, yard: &Yardsticks) -> Option<Point> {
        let by = |divisor: f64| Point { value: numerator / divisor, rate: Some(numerator) };
        match self {
            Basis::Itself => Some(Point { value: numerator, rate: None }),
            Basis::Rate(rate) => Some(by(rate)),
            Basis::Append => yard.append.map(by),
            Basis::MapUniform => yard.map_uniform.map(by),
            Basis::MapZipf => yard.map_zipf.map(by),
        }
    }
}

/// Fails if `many` is more than `threads` times `one`. Each thread has one commit outstanding, so a larger ratio means
/// that the single thread was disturbed or that syncs are missing. Then no figure is better than a splendid one.
fn plausible_speedup(many: f64, one: f64, threads: usize) -> Result<()> {
    if many <= one * threads as f64 {
        return Ok(());
    }
    let (ratio, one) = (many / one, count(one));
    Err(Error::Config(format!(
        "{ratio:.0} × is more than {threads} threads can give: the single thread ({one}/s) was disturbed, or syncs are missing"
    )))
}

/// The best rate of all peers; an error if one is missing, because the best of some peers may be too low a measure.
fn best_of_all(rates: &[(&str, Result<f64>)], ours: f64) -> Result<f64> {
    let best = rates.iter().filter_map(|(_, rate)| rate.as_ref().ok().copied()).reduce(f64::max);
    let missing: Vec<String> =
        rates.iter().filter_map(|(peer, rate)| rate.as_ref().err().map(|error| format!("{peer} ({error})"))).collect();
    match best {
        Some(best) if missing.is_empty() => Ok(best),
        Some(best) => Err(Error::Config(format!("missing: {}; {:.2} × the best of the others", missing.join(", "), ours / best))),
        None => Err(Error::Config(format!("missing: {}", missing.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::record::Record;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: FiguresArgs,
    }

    /// An engine with a script in place of the measuring program.
    fn engine(script: &str) -> Engine {
        let args = <Program as clap::Parser>::try_parse_from(["figures", "engine"]).expect("valid arguments").args;
        Engine::new(&args, Runner::of_script(script))
    }

    #[test]
    fn a_table_requires_the_yardsticks_of_its_groups() {
        assert_eq!(required(&Group::ALL), Required { append: true, map: true });
        assert_eq!(required(&[Group::HashUpdate, Group::FileSync]), Required { append: true, map: false });
        assert_eq!(required(&[Group::Dram]), Required::default());
    }

    #[test]
    fn the_best_of_some_peers_is_no_measure() {
        let failed = || Err(Error::Config("not built".into()));
        assert_eq!(best_of_all(&[("lmdb", Ok(3.0)), ("redb", Ok(5.0)), ("fjall", Ok(4.0))], 10.0).expect("all are there"), 5.0);
        let some = best_of_all(&[("lmdb", Ok(3.0)), ("redb", failed()), ("fjall", Ok(5.0))], 10.0).expect_err("one is missing").to_string();
        assert!(some.contains("redb (not built)") && some.contains("2.00 ×") && !some.contains("lmdb"), "{some}");
        assert!(best_of_all(&[("lmdb", failed())], 10.0).is_err());
    }

    /// Regression: the row had the worst of the sizes up to the one that failed; and if one index failed, the other was
    /// not measured.
    #[test]
    fn memory_is_that_of_all_sizes_or_not_measured() {
        let record = Record { dram_bytes_per_key: Some(15.0), ..Record::default() };
        let script = Runner::script_of("case \"$*\" in *'hither-hash --keys 6000000'*) echo killed >&2; exit 3;; esac", &record);
        let mut engine = engine(&script);
        engine.group(Group::Dram, 0);
        let rows = ["dram-hash", "dram-ordered"].map(|id| engine.row(selected(&[id.to_owned()])[0]));
        assert_eq!(rows.each_ref().map(|row| row.value), [None, Some(15.0)]);
        assert!(rows[0].note.contains("killed"), "{}", rows[0].note);
    }

    /// Regression: the runs for rows of updates, batches and files read nothing back.
    #[test]
    fn what_is_written_for_a_row_is_read_back() {
        let record = Record { machine: Machine::here(), ..Record::default() };
        let script = Runner::script_of("case \"$*\" in *--verify*) ;; *) echo unread >&2; exit 3;; esac", &record);
        let groups =
            [Group::HashRead, Group::HashUpdate, Group::HashMix, Group::HashBatch, Group::Ordered, Group::FileProcess, Group::FileSync];
        for group in groups {
            let mut engine = engine(&script);
            engine.stores(group, 0, &mut Points::new()).unwrap_or_else(|error| panic!("{group:?}: {error}"));
            assert!(engine.notes.is_empty(), "{group:?}: {:?}", engine.notes);
        }
    }

    /// Regression: a yardstick that failed took the rows of all groups and rounds with it.
    #[test]
    fn a_yardstick_that_fails_is_a_note_of_its_group() {
        let directory = tempfile::tempdir().expect("a directory");
        let record = Record { machine: Machine::here(), ops_per_s: 4e6, ..Record::default() };
        let first = format!(
            "if [ $1 = yardstick ]; then mkdir {}/failed 2>/dev/null && echo no memory >&2 && exit 3; echo '{{\"append\": 8e6}}'; fi",
            directory.path().display()
        );
        let mut engine = engine(&Runner::script_of(&first, &record));
        (0..3).for_each(|round| engine.group(Group::HashUpdate, round));
        let row = engine.row(selected(&["update-zipf".into()])[0]);
        assert!(row.rounds == [0.5; 2] && row.note.contains("no memory"), "{row:?}");
        let reasons = engine.table(vec![row], Required::default()).disturbance;
        assert!(reasons.iter().any(|reason| reason.contains("only 2 times")), "{reasons:?}");
    }

    /// Regression: files were made after all measurements, so that a wrong path cost them.
    #[test]
    fn a_file_of_records_is_made_before_the_measurements() {
        let args = ["figures", "engine", "--only", "update-zipf", "--records", "/nowhere/at/all"];
        let args = <Program as clap::Parser>::try_parse_from(args).expect("valid arguments").args;
        let message = run(&args, &[]).expect_err("there is no such directory").to_string();
        assert!(message.contains("/nowhere/at/all"), "{message}");
    }

    /// Regression: one of four restarts lost a key, and the row was met by the other three.
    #[test]
    fn a_wrong_key_in_any_round_leaves_no_figure() {
        let directory = tempfile::tempdir().expect("a directory");
        let recovered = r#"{"seconds": 0.1, "threads": 2, "keys": 20000000, "report": null}"#;
        let script = format!(
            "case $1 in
            yardstick) echo '{{\"append\": 8e6, \"map_uniform\": 2e7, \"map_zipf\": 2e7}}';;
            leave) echo loaded 0;;
            recover) mkdir {}/lost 2>/dev/null && echo 'wrong data: key 7' >&2 && exit 1; echo '{recovered}';;
            esac",
            directory.path().display()
        );
        let mut engine = engine(&script);
        (0..4).for_each(|round| engine.group(Group::Recovery, round));
        let rows = ["recovery-hash", "recovery-ordered"].map(|id| engine.row(selected(&[id.to_owned()])[0]));
        assert_eq!(rows.each_ref().map(|row| row.value), [None, Some(1e8)]);
        assert!(!rows[0].verdict.is_good() && rows[0].note.contains("key 7"), "{}", rows[0].note);
    }

    #[test]
    fn a_speedup_beyond_the_threads_is_no_figure() {
        assert!(plausible_speedup(14_000.0, 1_000.0, 32).is_ok());
        assert!(plausible_speedup(79_200.0, 328.0, 32).is_err());
        assert!(plausible_speedup(10.0, 0.0, 32).is_err());
    }
}
