//! The table of the server: hither over the wire, beside Redis and beside the null server, with one client program for
//! all.
//!
//! [`load`] is the client, [`ycsb`] the client of YCSB's workloads, [`process`] starts servers. Every ratio compares
//! two servers within one round; one is measured right after the other, at most seconds apart. A row is the median over
//! the rounds.
//!
//! The null server is `hither serve --null`: the network code, which parses and answers, without commands. It bounds
//! the rates that the commands could reach.

pub mod load;
pub mod process;
mod rows;
pub mod ycsb;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::args::FiguresArgs;
use super::counting::{self, ROUNDS, Required};
use super::engine::SCALE_KEYS;
use super::notes::Notes;
use super::row::{Demand, Point, Row, Unit, table, without_aim};
use crate::harness::machine::Machine;
use crate::harness::spec::require_disk;
use crate::report::count;
use crate::target::{Error, Result};
use load::{Ask, Load, fill, read_back};
use process::{Kind, Places, Server};
use rows::{OF_NULL, OTHERS, RATES, YCSB, demanded, ids, of_median};

const CLIENTS: usize = 50;
const KEYS: u64 = 100_000;
const IDLE: usize = 10_000;

/// One measurement of one server.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// The row's short name.
    pub row: &'static str,
    /// The server.
    pub server: Kind,
    /// Commands, or operations of YCSB, per second.
    pub rate: f64,
    /// Latency of a pipeline, or of an operation of YCSB, in microseconds: p50, p99, p99.9, p99.99.
    pub latency_us: [f64; 4],
    /// The server's processor time for one command or operation, in microseconds.
    pub cpu_us: f64,
}

#[derive(Debug, Serialize)]
struct Table {
    #[serde(flatten)]
    machine: Machine,
    /// True if the run counts. No yardstick is required, because the other server of each ratio is measured beside it.
    counts: bool,
    /// The reasons why it does not count.
    disturbance: Vec<String>,
    rows: Vec<Row>,
    measurements: Vec<Measurement>,
}

struct Run<'a> {
    args: &'a FiguresArgs,
    places: Places,
    lasts: Duration,
    rounds: u32,
    points: BTreeMap<&'static str, Vec<Point>>,
    /// The ratio to Redis that each round demands, by row.
    bounds: BTreeMap<&'static str, Vec<f64>>,
    /// What is told of each round, by row, beside the round's value.
    notes: BTreeMap<&'static str, Vec<(f64, String)>>,
    errors: Notes,
    measurements: Vec<Measurement>,
}

/// Measures the table and prints it; returns true if every row meets its demand.
///
/// # Errors
/// Wrong use. A server that does not start or answer is an error of its rows.
pub fn run(args: &FiguresArgs, _prefix: &[OsString]) -> Result<bool> {
    let wanted = |id: &str| args.only.is_empty() || args.only.iter().any(|word| id.contains(word.as_str()));
    if !ids().any(wanted) {
        return Err(Error::Config(format!("no row is called {}", args.only.join(" or "))));
    }
    let disk = args.disk.clone().unwrap_or_else(std::env::temp_dir);
    if wanted("file-set") {
        require_disk(&disk, "--disk")?;
    }
    let places = Places { program: program(args)?, disk };
    let mut run = Run::new(args, places);
    for round in 0..run.rounds {
        eprintln!("round {} of {}", round + 1, run.rounds);
        run.round(&wanted);
    }
    run.print(&wanted)
}

/// The program `hither`: the one given, or the one beside this program.
fn program(args: &FiguresArgs) -> Result<PathBuf> {
    let beside = || std::env::current_exe().ok().map(|program| program.with_file_name("hither"));
    let program = args.server_program.clone().or_else(beside).filter(|program| program.is_file());
    program.ok_or_else(|| Error::Config("the program hither is not there: build it, or say where it is by --server-program".into()))
}

/// Measures the wanted rows of a group.
type Measure<R> = fn(&mut R, &dyn Fn(&str) -> bool) -> Result<()>;

impl<'a> Run<'a> {
    fn new(args: &'a FiguresArgs, places: Places) -> Self {
        let lasts = Duration::from_millis(if args.quick { 300 } else { 4000 });
        let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS }).max(1);
        let (points, bounds, notes, errors) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), Notes::default());
        Self { args, places, lasts, rounds, points, bounds, notes, errors, measurements: Vec::new() }
    }

    fn round(&mut self, wanted: &impl Fn(&str) -> bool) {
        self.step(Self::rates, |id| RATES.iter().any(|rate| rate.0 == id), wanted);
        self.step(Self::cpu, |id| id == "cpu-1", wanted);
        self.step(Self::on_file, |id| id == "file-set", wanted);
        self.step(Self::ycsb, |id| id.starts_with("ycsb"), wanted);
        self.step(Self::dram, |id| id == "dram", wanted);
        self.step(Self::idle, |id| id == "idle", wanted);
        self.step(Self::restart, |id| id.starts_with("restart"), wanted);
    }

    /// Runs a group if one of its rows is wanted; notes an error with each wanted row of the group.
    fn step(&mut self, measure: Measure<Self>, member: impl Fn(&str) -> bool, wanted: &impl Fn(&str) -> bool) {
        let rows: Vec<&'static str> = ids().filter(|id| member(id) && wanted(id)).collect();
        if !rows.is_empty()
            && let Err(error) = measure(self, wanted)
        {
            eprintln!("  {error}");
            for id in rows {
                self.errors.add(id, &error);
            }
        }
    }

    fn add(&mut self, id: &'static str, value: f64, rate: Option<f64>) {
        self.points.entry(id).or_default().push(Point { value, rate });
    }

    /// Adds a value with what is told of its round.
    fn add_told(&mut self, id: &'static str, value: f64, remark: String) {
        self.notes.entry(id).or_default().push((value, remark));
        self.add(id, value, None);
    }

    fn load(&mut self, row: &'static str, kind: Kind, server: &Server, ask: Ask, pipeline: usize) -> Result<Measurement> {
        let load = Load { address: server.address, ask, clients: CLIENTS, pipeline, keys: KEYS, lasts: self.lasts };
        let cpu_s = server.cpu_s();
        let outcome = load.run()?;
        let cpu_us = (server.cpu_s() - cpu_s) * 1e6 / outcome.requests.max(1) as f64;
        let measurement = Measurement { row, server: kind, rate: outcome.rate, latency_us: outcome.latency_us, cpu_us };
        self.measurements.push(measurement.clone());
        Ok(measurement)
    }

    fn rates(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let servers = [Kind::Dax, Kind::Redis, Kind::Null].map(|kind| Server::fresh(kind, &self.places));
        let [dax, redis, null] = servers;
        let (dax, redis, nothing) = (dax?, redis?, null?);
        fill(dax.address, KEYS)?;
        fill(redis.address, KEYS)?;
        for (id, _, pipeline, ask, times) in RATES {
            if !wanted(id) {
                continue;
            }
            let ours = self.load(id, Kind::Dax, &dax, ask, pipeline)?;
            let theirs = self.load(id, Kind::Redis, &redis, ask, pipeline)?;
            let of_null = if ask == Ask::Get { Ask::GetAny } else { ask };
            let null = self.load(id, Kind::Null, &nothing, of_null, pipeline)?;
            self.add(id, ours.rate / theirs.rate, Some(ours.rate));
            self.bounds.entry(id).or_default().push(demanded(times, ours.rate, theirs.rate, null.rate));
        }
        Ok(())
    }

    fn cpu(&mut self, _: &dyn Fn(&str) -> bool) -> Result<()> {
        let (dax, redis) = (Server::fresh(Kind::Dax, &self.places)?, Server::fresh(Kind::Redis, &self.places)?);
        let ours = self.load("cpu-1", Kind::Dax, &dax, Ask::Set, 1)?;
        let theirs = self.load("cpu-1", Kind::Redis, &redis, Ask::Set, 1)?;
        let remark = format!("{:.2} µs against {:.2} µs", ours.cpu_us, theirs.cpu_us);
        self.add_told("cpu-1", ours.cpu_us / theirs.cpu_us, remark);
        Ok(())
    }

    fn on_file(&mut self, _: &dyn Fn(&str) -> bool) -> Result<()> {
        let (file, redis) = (Server::fresh(Kind::File, &self.places)?, Server::fresh(Kind::RedisAlways, &self.places)?);
        let ours = self.load("file-set", Kind::File, &file, Ask::Set, 1)?;
        let theirs = self.load("file-set", Kind::RedisAlways, &redis, Ask::Set, 1)?;
        self.add("file-set", ours.rate / theirs.rate, Some(ours.rate));
        Ok(())
    }

    fn ycsb(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let records = if self.args.quick { 10_000 } else { KEYS };
        let (dax, redis) = (Server::fresh(Kind::Dax, &self.places)?, Server::fresh(Kind::Redis, &self.places)?);
        ycsb::fill(dax.address, records)?;
        ycsb::fill(redis.address, records)?;
        for (id, _, letter) in YCSB.into_iter().filter(|(id, ..)| wanted(id)) {
            let mut rate = |kind: Kind, server: &Server| -> Result<f64> {
                let cpu_s = server.cpu_s();
                let outcome = ycsb::run(&ycsb::Run { address: server.address, letter, records, lasts: self.lasts })?;
                let cpu_us = (server.cpu_s() - cpu_s) * 1e6 / outcome.requests.max(1) as f64;
                self.measurements.push(Measurement { row: id, server: kind, rate: outcome.rate, latency_us: outcome.latency_us, cpu_us });
                Ok(outcome.rate)
            };
            let (ours, theirs) = (rate(Kind::Dax, &dax)?, rate(Kind::Redis, &redis)?);
            self.add(id, ours / theirs, Some(ours));
        }
        Ok(())
    }

    fn pairs(&self) -> u64 {
        self.args.keys.unwrap_or(if self.args.quick { 100_000 } else { SCALE_KEYS })
    }

    fn dram(&mut self, _: &dyn Fn(&str) -> bool) -> Result<()> {
        let pairs = self.pairs().min(1_000_000);
        let per_pair = |server: Server| -> Result<f64> {
            let before = server.private_bytes();
            fill(server.address, pairs)?;
            Ok((server.private_bytes() - before) / pairs as f64)
        };
        let ours = per_pair(Server::fresh(Kind::Dax, &self.places)?)?;
        let theirs = per_pair(Server::fresh(Kind::Redis, &self.places)?)?;
        self.add_told("dram", ours / theirs, format!("{ours:.0} B against {theirs:.0} B, of {} pairs", count(pairs as f64)));
        Ok(())
    }

    fn idle(&mut self, _: &dyn Fn(&str) -> bool) -> Result<()> {
        allow_descriptors(IDLE as u64 + 200)?;
        let server = Server::fresh(Kind::Dax, &self.places)?;
        let before = server.private_bytes();
        let mut connections = Vec::new();
        for _ in 0..IDLE {
            let stream = std::net::TcpStream::connect(server.address);
            connections.push(stream.map_err(|error| Error::io(format!("opening connection {}", connections.len()), error))?);
        }
        // The answers show that the server has accepted all connections.
        for stream in &mut connections {
            std::io::Write::write_all(stream, b"PING\r\n").map_err(|error| Error::io("sending".to_owned(), error))?;
        }
        for stream in &mut connections {
            let mut reply = [0; 7];
            std::io::Read::read_exact(stream, &mut reply).map_err(|error| Error::io("receiving".to_owned(), error))?;
        }
        self.add("idle", (server.private_bytes() - before) / 1e6, None);
        Ok(())
    }

    fn restart(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let pairs = self.pairs();
        let redis = self.restart_of(Kind::Redis, pairs, true)?;
        for (id, clean) in [("restart-clean", true), ("restart-kill", false)] {
            if wanted(id) {
                let ours = self.restart_of(Kind::Dax, pairs, clean)?;
                self.add_told(id, ours / redis, format!("{ours:.2} s against {redis:.2} s, {} pairs", count(pairs as f64)));
            }
        }
        Ok(())
    }

    /// Seconds from the start of the process to its first answer. The content is checked after that time.
    fn restart_of(&self, kind: Kind, pairs: u64, clean: bool) -> Result<f64> {
        let directory = process::directory(kind, &self.places)?;
        let mut server = Server::on(kind, &self.places, directory.path())?;
        fill(server.address, pairs)?;
        if kind == Kind::Redis {
            let saved = server.ask("SAVE").map_err(|error| Error::io("saving the RDB".to_owned(), error))?;
            if !saved.starts_with("+OK") {
                return Err(Error::Config(format!("Redis does not save: {saved}")));
            }
        }
        if clean && kind != Kind::Redis {
            server.terminate();
        }
        drop(server);
        let server = Server::on(kind, &self.places, directory.path())?;
        read_back(server.address, pairs)?;
        Ok(server.started_in.as_secs_f64())
    }

    fn row(&self, demand: Demand) -> Row {
        let points = self.points.get(demand.id).map_or(&[][..], Vec::as_slice);
        let remark = self.notes.get(demand.id).map_or_else(String::new, |remarks| of_median(remarks));
        self.errors.row(demand, points, false, remark)
    }

    fn rows(&self, wanted: &impl Fn(&str) -> bool) -> Vec<Row> {
        let rates = RATES.iter().map(|(id, name, _, _, times)| {
            let bound = self.bounds.get(id).and_then(|all| crate::harness::median(all)).unwrap_or(*times);
            let mut row = self.row(without_aim(id, name, Unit::Redis, bound));
            if bound < *times && row.note.is_empty() {
                row.note = format!("bounded by {OF_NULL} × null; {times} × Redis would be {:.2} × null", times / bound * OF_NULL);
            }
            row
        });
        let others = OTHERS.iter().map(|demand| self.row(*demand));
        let ycsb = YCSB.iter().map(|(id, name, _)| self.row(without_aim(id, name, Unit::Redis, 0.0)));
        rates.chain(others).chain(ycsb).filter(|row| wanted(row.demand.id)).collect()
    }

    /// The reasons why the run does not count.
    fn disturbances(&self, commit: &str, rows: &[Row]) -> Vec<String> {
        let (keys, quick, rounds) = (self.pairs(), self.args.quick, self.rounds);
        let (required, yardsticks) = (Required::default(), &[]);
        counting::Run { keys, quick, rounds, commit, required, yardsticks, rows }.disturbances()
    }

    fn print(self, wanted: &impl Fn(&str) -> bool) -> Result<bool> {
        let rows = self.rows(wanted);
        let machine = Machine::here();
        let disturbance = self.disturbances(&machine.commit, &rows);
        let good = disturbance.is_empty() && rows.iter().all(|row| row.verdict.is_good());
        let table = Table { machine, counts: disturbance.is_empty(), disturbance, rows, measurements: self.measurements };
        let text = if self.args.json {
            serde_json::to_string(&table).map_err(|error| Error::Config(format!("a result that cannot be written: {error}")))?
        } else {
            text(&table)
        };
        match writeln!(std::io::stdout(), "{text}") {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("printing".to_owned(), error)),
            _ => Ok(good),
        }
    }
}

fn text(shown: &Table) -> String {
    let mut text = table(&shown.rows);
    text += "\n\nrow, server: per second; processor µs per command (YCSB: operation); µs of a pipeline at p50, p99, p99.9, p99.99";
    for m in &shown.measurements {
        let [p50, p99, p999, p9999] = m.latency_us;
        text += &format!("\n{} {:?}: {}/s; {:.2}; {p50:.0}, {p99:.0}, {p999:.0}, {p9999:.0}", m.row, m.server, count(m.rate), m.cpu_us);
    }
    for reason in &shown.disturbance {
        text += &format!("\nTHIS RUN DOES NOT COUNT: {reason}");
    }
    let m = &shown.machine;
    text + &format!("\ncommit {}, {}, {}, kernel {}", m.commit, m.date, m.cpu, m.kernel)
}

/// Raises the limit of open files of this process and of the servers that it starts.
fn allow_descriptors(count: u64) -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    limit.current = Some(limit.maximum.map_or(count, |maximum| maximum.min(count)));
    setrlimit(Resource::Nofile, limit).map_err(|error| Error::io("raising the limit of open files", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: FiguresArgs,
    }

    fn args(words: &str) -> FiguresArgs {
        let words = ["figures", "server"].into_iter().chain(words.split_whitespace());
        <Program as clap::Parser>::try_parse_from(words).expect("valid arguments").args
    }

    fn nowhere() -> Places {
        Places { program: "/nowhere/hither".into(), disk: "/nowhere".into() }
    }

    fn reasons(words: &str, commit: &str, rows: &[Row]) -> Vec<String> {
        Run::new(&args(words), nowhere()).disturbances(commit, rows)
    }

    #[test]
    fn a_quick_run_few_rounds_other_counts_and_a_changed_tree_do_not_count() {
        let reasons = |words, commit| reasons(words, commit, &[]).len();
        assert_eq!([reasons("", "0123456789ab"), reasons("--quick --rounds 3", "0123456789ab")], [0, 1]);
        assert_eq!([reasons("--rounds 1", "0123456789ab+"), reasons("--keys 1000000", "0123456789ab")], [2, 1]);
    }

    #[test]
    fn a_row_of_few_rounds_does_not_count() {
        let row = |points| Row::new(OTHERS[0], &vec![Point { value: 0.9, rate: None }; points], false, String::new());
        assert!(reasons("", "0123456789ab", &[row(3), row(0)]).is_empty());
        let reasons = reasons("", "0123456789ab", &[row(3), row(2)]);
        assert!(reasons.len() == 1 && reasons[0].contains("only 2 times"), "{reasons:?}");
    }

    /// Regression: the error stood with the first row of the group, wanted or not, until the next round overwrote it
    /// with its note.
    #[test]
    fn what_goes_wrong_is_noted_with_every_row_of_the_group_that_is_wanted() {
        let args = args("");
        let mut run = Run::new(&args, nowhere());
        let wanted = |id: &str| id.ends_with("-16") || id.starts_with("restart");
        run.step(|_, _| Err(Error::Config("no server".into())), |id| id.starts_with("set") || id.starts_with("get"), &wanted);
        run.notes.insert("get-16", vec![(1.0, "told later".into())]);
        let noted: Vec<_> = run.rows(&wanted).into_iter().map(|row| (row.demand.id, row.note)).collect();
        let expected = [("set-16", "no server"), ("get-16", "no server"), ("restart-clean", ""), ("restart-kill", "")];
        assert_eq!(noted, expected.map(|(id, note)| (id, note.to_owned())));
    }

    /// Regression: the remark was that of the last round, beside the median of all.
    #[test]
    fn a_row_tells_of_its_median_round() {
        let args = args("");
        let mut run = Run::new(&args, nowhere());
        [1.2, 1.1, 0.9].into_iter().for_each(|value| run.add_told("cpu-1", value, format!("of {value}")));
        let rows = run.rows(&|id: &str| id == "cpu-1");
        assert_eq!((rows[0].value, rows[0].note.as_str()), (Some(1.1), "of 1.1"));
    }

    /// Regression: a value was wrong in one of four rounds, and the row had those of the others.
    #[test]
    fn a_wrong_value_in_any_round_leaves_no_figure() {
        let args = args("--rounds 4");
        let mut run = Run::new(&args, nowhere());
        let wanted = |id: &str| id == "idle";
        run.step(|_, _| Err(Error::WrongData("an unexpected reply".into())), wanted, &wanted);
        (0..3).for_each(|_| run.add("idle", 20.0, None));
        let rows = run.rows(&wanted);
        assert!(rows.len() == 1 && rows[0].value.is_none() && rows[0].note.contains("unexpected"), "{rows:?}");
    }

    /// Regression: memory was accepted in place of a disk.
    #[test]
    fn the_row_on_a_file_needs_a_disk() {
        let message = run(&args("--only file-set --disk /dev/shm"), &[]).expect_err("it is memory").to_string();
        assert!(message.contains("--disk"), "{message}");
    }
}
