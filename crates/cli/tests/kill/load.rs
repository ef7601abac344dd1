//! SIGKILL in the middle of the real `load`, again and again, until the load has ended.
//!
//! Story: a person loads a file and the program is killed. After reopening, the records that `durable N` promised must
//! be there: the first N records of the input, each key with its value in record N or in a later one. Nothing may be
//! there that is not in the input, `check` must find the store sound, and a resumed load must end in the same store as
//! a load that was never disturbed.
//!
//! The input has repeated keys (so the order of writes matters), binary text, empty values and values of several KiB.
//! `HITHER_KILLS` (6) sets the number of kills of each run, `HITHER_SEED` (printed) their moments.

use crate::common;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, SystemTime};

use crate::common::Store;

const RECORDS: u64 = 200_000;

#[test]
fn ordered_on_file() {
    disturbed_load(Store::on_file(), Store::on_file(), "ordered");
}

#[test]
fn hash_on_file() {
    disturbed_load(Store::on_file(), Store::on_file(), "hash");
}

#[test]
fn ordered_on_dax() {
    let Some((store, calm)) = Store::on_dax().and_then(|store| Some((store, Store::on_dax()?))) else { return };
    disturbed_load(store, calm, "ordered");
}

#[test]
fn hash_on_dax() {
    let Some((store, calm)) = Store::on_dax().and_then(|store| Some((store, Store::on_dax()?))) else { return };
    disturbed_load(store, calm, "hash");
}

fn disturbed_load(store: Store, calm: Store, kind: &str) {
    let kills = variable("HITHER_KILLS").unwrap_or(6);
    let seed = variable("HITHER_SEED").unwrap_or_else(now);
    println!("{kind}: {kills} kills, HITHER_SEED={seed}");
    let mut random = Random(seed | 1);
    let input = Input::generate(&mut random);
    let file = store.path("input.kv");
    common::write(&file, &input.text);
    // Checkpoints are taken all the time: most kills meet one in progress, and every restart except the first starts
    // from one.
    let load = ["load", "--checkpoints", "256K", "--kind", kind, "--group", "512", "--threads", "3", file.to_str().unwrap()];

    let (mut durable, mut ever, mut in_the_middle, mut killed) = (0, 0, 0, 0);
    for kill in 0..kills {
        // Alternate between the two ways to resume.
        let by_skip = kill % 2 == 0;
        let skip = durable.to_string();
        let resume: &[&str] = if by_skip { &["--skip", &skip] } else { &["--resume"] };
        let ended = load_and_kill(&store, &[&load, resume].concat(), &mut random, if by_skip { durable } else { 0 });
        // A load from the start may have rewritten an earlier record of a repeated key: for such keys only its own
        // reports count.
        durable = if by_skip { ended.durable.max(durable) } else { ended.durable };
        ever = durable.max(ever);
        in_the_middle += u64::from(ended.in_the_middle);
        killed += 1;
        input.verify(&store, durable, ever, &format!("kill {kill}, seed {seed}"));
        if durable == RECORDS {
            (durable, ever) = (0, 0);
            std::fs::remove_dir_all(store.data()).unwrap();
        }
    }
    println!("HITHER_COUNT kill_runs 1\nHITHER_COUNT kills {killed}\nHITHER_COUNT kills_in_mid_load {in_the_middle}");
    assert!(in_the_middle * 2 >= kills, "only {in_the_middle} of {kills} kills met a load at work");
    let skip = durable.to_string();
    store.run(&[&load[..], &["--skip", &skip]].concat()).done();
    calm.run(&load).done();
    assert!(store.dump("default") == calm.dump("default"), "the disturbed load ended in another store, seed {seed}");
    store.run(&["check"]).done();
}

struct Ended {
    durable: u64,
    in_the_middle: bool,
}

/// Starts a load and kills it after a random report and a random pause.
fn load_and_kill(store: &Store, arguments: &[&str], random: &mut Random, behind: u64) -> Ended {
    let mut child = store.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reports = Reports { lines: BufReader::new(child.stdout.take().unwrap()), durable: 0 };
    // Some kills meet the opening of the store, before the first report.
    let target = behind + random.below((RECORDS - behind) / 3 + 1);
    let early = random.below(8) == 0;
    while !early && reports.durable < target && reports.next() {}
    std::thread::sleep(Duration::from_micros(random.below(if early { 30_000 } else { 1_500 })));
    child.kill().unwrap();
    while reports.next() {}
    let status = child.wait().unwrap();
    let in_the_middle = status.code().is_none() && reports.durable < RECORDS;
    assert!(status.success() || status.signal() == Some(9), "the load failed instead of being killed: {status}");
    Ended { durable: reports.durable, in_the_middle }
}

struct Reports {
    lines: BufReader<ChildStdout>,
    durable: u64,
}

impl Reports {
    /// Reads a report. A report that the kill cut off does not count.
    fn next(&mut self) -> bool {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let Some(count) = line.strip_suffix('\n') else { return false };
        let count = count.strip_prefix("durable ").unwrap().parse().unwrap();
        assert!(count >= self.durable, "reports go back: {} then {count}", self.durable);
        self.durable = count;
        true
    }
}

/// The input, and the positions of each key in it. Keys and values stay in the escaped form, which is canonical.
struct Input {
    text: String,
    occurrences: HashMap<String, Vec<(u64, String)>>,
}

impl Input {
    fn generate(random: &mut Random) -> Self {
        let mut input = Self { text: String::new(), occurrences: HashMap::new() };
        for position in 0..RECORDS {
            let key = key(random.below(RECORDS * 2 / 3));
            let value = value(position, random);
            writeln!(input.text, "{key}\t{value}").unwrap();
            input.occurrences.entry(key).or_default().push((position, value));
        }
        input
    }

    /// Reopens the store and compares it with the input. The last load reported the first `durable` records of it, and
    /// some load reported the first `ever`.
    fn verify(&self, store: &Store, durable: u64, ever: u64, context: &str) {
        if !store.data().exists() || store.run(&["keyspaces"]).status() == 7 {
            return assert_eq!(ever, 0, "{context}: the store has gone");
        }
        store.run(&["check"]).done();
        if store.run(&["get", "no such key"]).err().contains("no keyspace") {
            return assert_eq!(ever, 0, "{context}: the keyspace has gone");
        }
        let dump = String::from_utf8(store.dump("default")).unwrap();
        let stored: HashMap<&str, &str> = dump.lines().map(|line| line.split_once('\t').unwrap()).collect();
        assert_eq!(dump.lines().count(), stored.len(), "{context}: a key is there twice");
        for (key, value) in &stored {
            let known = self.occurrences.get(*key).is_some_and(|all| all.iter().any(|(_, known)| known == value));
            assert!(known, "{context}: {key} = {value:.60} is not in the input");
        }
        for (key, all) in &self.occurrences {
            let reported = if all.len() == 1 { ever } else { durable };
            let Some(promised) = all.iter().rposition(|(position, _)| *position < reported) else { continue };
            let value = stored.get(key.as_str());
            let kept = all[promised..].iter().any(|(_, later)| Some(&later.as_str()) == value);
            assert!(kept, "{context}: record {} of {reported} durable ones is lost: {key} = {value:?}", all[promised].0);
        }
    }
}

/// Key `n`: short, long, or binary.
fn key(n: u64) -> String {
    match n % 4 {
        0 => format!("{n:08}"),
        1 => format!("/usr/share/doc/a rather long common prefix/{n}"),
        2 => format!("\\x00\\xff\\t{n:x}"),
        _ => format!("k{n}"),
    }
}

/// The value of the record at `position`: unique unless it is empty.
fn value(position: u64, random: &mut Random) -> String {
    match random.below(200) {
        0 => String::new(),
        1 => format!("{position} {}", "large ".repeat(random.below(2_000) as usize)),
        2..=100 => format!("{position}"),
        _ => format!("{position} \\x01\\n{}", "v".repeat(random.below(90) as usize)),
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

/// Marsaglia's xorshift: the same seed gives the same input and the same moments.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
