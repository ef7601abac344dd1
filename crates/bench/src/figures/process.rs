//! The processes of the figures: this program again with another command, and the peers' program.
//!
//! Each prints JSON lines on standard output and messages on standard error. A process that fails is an error of the
//! rows that wait for it, not of the whole table.
//!
//! Thread safety: one process at a time, so that processes do not disturb each other's measurements.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::machine::BUILT_FROM;
use crate::harness::record::{Record, read_lines, write_lines};
use crate::report::Output;
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::yardstick::measure::{Request, Yardsticks};

/// Starts processes and keeps every record that they print.
pub struct Runner {
    program: PathBuf,
    prefix: Vec<OsString>,
    /// The peers' program, and the words before its options.
    peers: Option<Vec<OsString>>,
    /// All records so far.
    pub records: Vec<Record>,
}

/// The peers' program in `CARGO_TARGET_DIR` or below a workspace, if it was built.
pub fn find_peers(start: &Path) -> Option<PathBuf> {
    let name = "hither-bench-peers";
    let below = |dir: PathBuf| [dir.join("release").join(name)].into_iter().find(|p| p.is_file());
    let shared = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).and_then(below);
    shared.or_else(|| start.ancestors().find_map(|dir| below(dir.join("crates/bench-peers/target"))))
}

/// Builds the peers' program with Cargo.
pub fn build_peers(start: &Path) -> Result<()> {
    let manifest = start.ancestors().map(|dir| dir.join("crates/bench-peers/Cargo.toml")).find(|p| p.is_file());
    let manifest = manifest.ok_or_else(|| Error::Config("the peers are built from the source tree: run this inside it".into()))?;
    let status = Command::new("cargo").args(["build", "--release", "--manifest-path"]).arg(&manifest).status();
    match status.map_err(|e| Error::io("starting cargo", e))?.success() {
        true => Ok(()),
        false => Err(Error::Config("the peers do not build: see above (linking them needs librocksdb-dev)".into())),
    }
}

impl Runner {
    /// A runner of this program, with the words that come before its commands (`bench` inside `hither`).
    pub fn new(prefix: &[OsString], peers: Option<PathBuf>) -> Result<Self> {
        let program = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        Ok(Self { program, prefix: prefix.to_vec(), peers: peers.map(|path| vec![path.into()]), records: Vec::new() })
    }

    /// A runner of a shell script in place of both programs. Its arguments are those of the program, from the command
    /// on.
    #[cfg(test)]
    pub fn of_script(script: &str) -> Self {
        let words = |program| ["-c", script, program].map(OsString::from);
        let peers = [&["sh".into()][..], &words("hither-bench-peers")].concat();
        Self { program: "sh".into(), prefix: words("hither-bench").to_vec(), peers: Some(peers), records: Vec::new() }
    }

    /// A script for [`Runner::of_script`]: it runs `first`, and then prints `record` for every workload.
    #[cfg(test)]
    pub fn script_of(first: &str, record: &Record) -> String {
        let line = serde_json::to_string(record).expect("a record is JSON");
        format!("{first}\nfor word; do if [ \"$word\" = -w ]; then echo '{line}'; fi; done")
    }

    /// True if rows against peers can be measured.
    pub fn has_peers(&self) -> bool {
        self.peers.is_some()
    }

    /// A command of this program, ready for further arguments.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.prefix).arg(name).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Runs hither with the words of `args`; returns a record per workload.
    pub fn store(&mut self, index: Index, args: &str, workloads: &[&str]) -> Result<Vec<Record>> {
        let records = records_of(self.command("run"), index.store_name(), args, workloads)?;
        self.records.extend(records.iter().cloned());
        Ok(records)
    }

    /// Runs a peer with the words of `args`; fails if its program was not built from the same harness sources as this
    /// one.
    pub fn peer(&mut self, name: &str, args: &str, workloads: &[&str]) -> Result<Vec<Record>> {
        let words = self.peers.as_deref().and_then(<[OsString]>::split_first);
        let (program, prefix) = words.ok_or_else(|| Error::Config("the peers are not built (--peers builds them)".into()))?;
        let mut command = Command::new(program);
        command.args(prefix).stdin(Stdio::null()).stdout(Stdio::piped());
        let records = records_of(command, name, args, workloads)?;
        records.iter().try_for_each(is_of_these_sources)?;
        self.records.extend(records.iter().cloned());
        Ok(records)
    }

    /// Writes all records so far, if there is a file for them.
    pub fn write_records(&self, file: Option<Output>) -> Result<()> {
        let mut lines = Vec::new();
        write_lines(&self.records, &mut lines)?;
        file.map_or(Ok(()), |file| file.write(&lines))
    }

    /// Runs the yardsticks.
    pub fn yardsticks(&self, request: &Request) -> Result<Yardsticks> {
        let mut command = self.command("yardstick");
        command.arg("--json").args(["--threads", &request.threads.to_string(), "--keys", &request.keys.to_string()]);
        command.args(["--seconds", &request.append_seconds.to_string(), "--gets", &request.gets.to_string()]);
        json(&output(command)?)
    }
}

/// The records of a process, one per workload.
fn records_of(mut command: Command, store: &str, args: &str, workloads: &[&str]) -> Result<Vec<Record>> {
    command.args(["--json", "--store", store]).args(args.split_whitespace());
    workloads.iter().for_each(|workload| {
        command.args(["-w", workload]);
    });
    let records = read_lines(output(command)?.as_slice())?;
    if records.len() != workloads.len() {
        return Err(Error::Process(format!("{store} gave {} records for {} workloads", records.len(), workloads.len())));
    }
    Ok(records)
}

/// Fails if the program that measured a peer was built from other harness sources. The peers' program is built by
/// itself, so an old one may still be in place.
fn is_of_these_sources(record: &Record) -> Result<()> {
    if record.machine.built_from == BUILT_FROM {
        return Ok(());
    }
    Err(Error::Config("the peers were built from other sources of the harness (--peers builds them anew)".into()))
}

/// Runs a command to its end; returns its standard output. Exit status 1 becomes [`Error::WrongData`]. Every other
/// failure is a failure of the process, not wrong use of this program.
pub fn output(mut command: Command) -> Result<Vec<u8>> {
    let name = format!("{:?}", command.get_program());
    let output = command.stderr(Stdio::piped()).output().map_err(|e| Error::io(format!("starting {name}"), e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let last = message.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(match output.status.code() {
        Some(1) => Error::WrongData(last.rsplit("wrong data: ").next().unwrap_or(last).to_owned()),
        _ => Error::Process(format!("{last} ({})", output.status)),
    })
}

/// Reads one JSON value.
pub fn json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::Process(format!("a measuring process gave no JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::machine::Machine;

    #[test]
    fn a_failing_process_is_told_by_its_last_line() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo disk full >&2; exit 3"]);
        let message = output(command).expect_err("it failed").to_string();
        assert!(message.contains("disk full") && !message.contains("first"), "{message}");
    }

    /// Regression: every failure of a process was reported as wrong use.
    #[test]
    fn wrong_data_stays_that_and_all_else_is_a_failure() {
        let failed = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            output(command).expect_err("it failed")
        };
        let wrong = failed("echo 'hither-bench: wrong data: key 7' >&2; exit 1");
        assert_eq!(wrong.to_string(), "wrong data: key 7");
        let status = |error: &Error| format!("{:?}", crate::cli::exit_code(error));
        let expected = |status: u8| format!("{:?}", std::process::ExitCode::from(status));
        assert_eq!(status(&wrong), expected(1));
        for script in ["exit 2", "exit 3", "exit 101", "kill -9 $$"] {
            assert_eq!(status(&failed(script)), expected(3), "{script}");
        }
        assert_eq!(status(&json::<u64>(b"").expect_err("it is nothing")), expected(3));
    }

    /// Regression: a peers' program was used whatever its sources were.
    #[test]
    fn peers_of_other_sources_are_refused() {
        let lmdb = |built_from: &str| {
            let machine = Machine { built_from: built_from.to_owned(), ..Machine::default() };
            let mut runner = Runner::of_script(&Runner::script_of("", &Record { machine, ..Record::default() }));
            runner.peer("lmdb", "", &["load"]).map(|records| (records.len(), runner.records.len()))
        };
        assert_eq!(lmdb(&Machine::here().built_from).expect("of these sources"), (1, 1));
        // A program from before the hash was introduced reports none.
        for other in ["", "0123456789abcdef"] {
            assert!(lmdb(other).expect_err("another").to_string().contains("--peers"));
        }
    }

    #[test]
    fn missing_peers_are_an_error_with_the_remedy() {
        let mut runner = Runner::new(&[], None).expect("this program");
        let message = runner.peer("lmdb", "", &["load"]).expect_err("no peers").to_string();
        assert!(message.contains("--peers"), "{message}");
        assert!(!runner.has_peers());
    }
}
