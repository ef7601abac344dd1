//! Runs programs: shows the command line, passes the output on as it comes, and counts the test results in it.

use crate::Failure;
use crate::workspace;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The counts read in the output of one or more programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Tests that passed, by the summary lines of cargo's test harness.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were ignored.
    pub ignored: u64,
    /// Sums of the lines `HITHER_COUNT name value`, by name, and the fuzzer's number of runs.
    pub counts: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds the counts in one line of output.
    fn read(&mut self, line: &str) {
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.passed += number_before(summary, " passed");
            self.failed += number_before(summary, " failed");
            self.ignored += number_before(summary, " ignored");
        }
        if let Some(Ok(runs)) = line.strip_prefix("stat::number_of_executed_units:").map(|runs| runs.trim().parse::<u64>()) {
            *self.counts.entry("fuzz_runs".to_owned()).or_default() += runs;
        }
        // The count may stand behind the name of its test: `test long_run ... HITHER_COUNT images 7`.
        if let Some((_, count)) = line.split_once("HITHER_COUNT ") {
            let mut words = count.split_whitespace();
            if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse::<u64>)) {
                *self.counts.entry(name.to_owned()).or_default() += value;
            }
        }
    }

    /// The counts in a whole output.
    pub fn of(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.read(line.trim_end()));
        tally
    }

    /// Returns the tally if a test passed, otherwise an error: a check that has gone missing must not look like one
    /// that passed.
    pub fn some(self, of: &str) -> Result<Tally, Failure> {
        if self.passed == 0 { Err(format!("{of}: no test ran")) } else { Ok(self) }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        for (name, value) in &other.counts {
            *self.counts.entry(name.clone()).or_default() += value;
        }
    }
}

/// The number that stands directly before `unit`, or 0.
fn number_before(text: &str, unit: &str) -> u64 {
    let head = text.split(unit).next().unwrap_or_default();
    head.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The name under which a program is shown. Records of a run must not contain paths of the machine.
fn name_of(program: &OsStr) -> String {
    std::path::Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The exit statuses of `timeout` for a program whose time was up, and for one that had to be killed then.
pub const TIME_WAS_UP: i32 = 124;
const WAS_KILLED: i32 = 137;

/// One program to run.
pub struct Step {
    command: Command,
    shown: String,
    merged: bool,
}

impl Step {
    /// Runs `program` in the workspace's root folder.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program.as_ref());
        command.current_dir(workspace::root());
        Step { command, shown: name_of(program.as_ref()), merged: false }
    }

    /// Runs the cargo that runs this program.
    pub fn cargo() -> Self {
        Self::new(workspace::cargo())
    }

    /// Runs `program`, but kills it and all its children after `limit_s` seconds, for unattended runs.
    ///
    /// `timeout` makes a group of its own, which an interrupt at the terminal does not reach. So it is ended with this
    /// program, where the system has the tool for that.
    pub fn limited(program: impl AsRef<OsStr>, limit_s: u64) -> Self {
        let limit_s = limit_s.to_string();
        let mut step = match exists("setpriv") {
            true => Self::new("setpriv").args(["--pdeathsig", "TERM", "timeout"]),
            false => Self::new("timeout"),
        };
        step = step.args(["--kill-after=10", &limit_s]);
        step.shown = format!("timeout --kill-after=10 {limit_s} {}", name_of(program.as_ref()));
        step.command.arg(program.as_ref());
        step
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.shown = format!("{} {}", self.shown, arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Step::arg)
    }

    /// Also counts in standard error, where some programs report.
    pub fn merged(mut self) -> Self {
        self.merged = true;
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let value = value.as_ref().to_string_lossy().into_owned();
        let quote = if value.contains(' ') { "'" } else { "" };
        self.shown = format!("{name}={quote}{value}{quote} {}", self.shown);
        self.command.env(name, value);
        self
    }

    /// As [`Step::env`], but not shown.
    pub fn env_unseen(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs the program in another folder.
    pub fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// The command as it is shown.
    #[cfg(test)]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The variables set for the program.
    pub fn environment(&self) -> Vec<(String, String)> {
        let set = self.command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        set.map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())).collect()
    }

    /// As [`Step::env`], unless the variable is set in the environment of xtask.
    pub fn env_default(self, name: &str, value: &str) -> Self {
        if std::env::var_os(name).is_some() { self } else { self.env(name, value) }
    }

    /// Runs the program; fails if it fails. Both streams stay visible; standard output is counted.
    pub fn run(self) -> Result<Tally, Failure> {
        let shown = self.shown.clone();
        let (status, tally) = self.stream()?;
        if status == Some(0) {
            return Ok(tally);
        }
        Err(failure(&shown, status))
    }

    /// Runs the program; returns its exit status (`None`: killed by a signal) and the counts in its output.
    pub fn stream(self) -> Result<(Option<i32>, Tally), Failure> {
        self.stream_to(&mut std::io::stdout())
    }

    /// As [`Step::stream`], with the output passed on to `out`.
    fn stream_to(mut self, out: &mut impl Write) -> Result<(Option<i32>, Tally), Failure> {
        // If the reader of the output is gone, the tests still continue.
        let _ = writeln!(out, "$ {}", self.shown);
        let failed = |error: std::io::Error| format!("cannot start {}: {error}", self.shown);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        if self.merged {
            self.command.stderr(writer.try_clone().map_err(failed)?);
        }
        let mut child = self.command.stdout(writer).spawn().map_err(failed)?;
        // The command holds the writing ends of the pipe in this process; reading would never end while they are open.
        self.command = Command::new("true");
        let mut tally = Tally::default();
        let mut lines = BufReader::new(reader);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).map_err(|error| format!("{}: {error}", self.shown))? > 0 {
            let _ = out.write_all(&line);
            tally.read(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
        let status = child.wait().map_err(|error| format!("{}: {error}", self.shown))?;
        Ok((status.code(), tally))
    }

    /// Runs the program quietly; returns its exit status, and both outputs joined.
    pub fn collect(mut self) -> Result<(Option<i32>, Vec<u8>), Failure> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.shown);
        let (mut reader, writer) = std::io::pipe().map_err(failed)?;
        self.command.stderr(writer.try_clone().map_err(failed)?).stdout(writer).stdin(Stdio::null());
        let mut child = self.command.spawn().map_err(failed)?;
        // As in `stream_to`.
        self.command = Command::new("true");
        let mut output = Vec::new();
        reader.read_to_end(&mut output).map_err(failed)?;
        let status = child.wait().map_err(failed)?;
        Ok((status.code(), output))
    }

    /// Runs the program quietly; returns its exit status and its standard output. Standard error stays visible.
    pub fn capture(mut self) -> Result<(Option<i32>, String), Failure> {
        println!("$ {}", self.shown);
        let output = self.command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot start {}: {error}", self.shown))?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}

/// The message about a program that ended with this status (`None`: killed by a signal).
pub fn failure(shown: &str, status: Option<i32>) -> Failure {
    match status {
        Some(TIME_WAS_UP | WAS_KILLED) => format!("{shown}: no end in the time that it had"),
        Some(code) => format!("{shown}: exit status {code}"),
        None => format!("{shown}: a signal"),
    }
}

/// Whether `program` is found in PATH.
pub fn exists(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Calls `round` with 0, 1, … until `seconds` have passed, at least once; adds up the tallies.
pub fn repeat_for(seconds: u64, mut round: impl FnMut(u64) -> Result<Tally, Failure>) -> Result<Tally, Failure> {
    let start = Instant::now();
    let mut total = Tally::default();
    for number in 0.. {
        total.add(&round(number)?);
        *total.counts.entry("rounds".to_owned()).or_default() += 1;
        if start.elapsed().as_secs() >= seconds {
            break;
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_summaries_and_named_counts() {
        let mut tally = Tally::default();
        tally.read("running 3 tests");
        tally.read("test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        tally.read("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        tally.read("test explores ... HITHER_COUNT images 40");
        tally.read("HITHER_COUNT images 2");
        tally.read("HITHER_COUNT images many");
        assert_eq!((tally.passed, tally.failed, tally.ignored), (13, 2, 3));
        assert_eq!(tally.counts, BTreeMap::from([("images".to_owned(), 42)]));
    }

    #[test]
    fn nothing_is_not_enough() {
        let one = Tally { passed: 1, ..Tally::default() };
        assert_eq!(one.clone().some("x"), Ok(one));
        assert_eq!(Tally { ignored: 1, ..Tally::default() }.some("x"), Err("x: no test ran".to_owned()));
    }

    /// Regression: the line was passed on to standard output, where the long campaign counted it as its own.
    #[test]
    fn passes_on_the_status_and_reads_the_output() {
        let mut out = Vec::new();
        let (status, tally) = Step::new("sh").args(["-c", "echo HITHER_COUNT example 6; exit 3"]).stream_to(&mut out).unwrap();
        assert_eq!((status, tally.counts["example"]), (Some(3), 6));
        assert!(String::from_utf8(out).unwrap().ends_with("\nHITHER_COUNT example 6\n"));
        assert!(Step::new("sh").args(["-c", "exit 3"]).run().unwrap_err().ends_with("exit status 3"));
    }

    #[test]
    fn repeats_at_least_once() {
        let tally = repeat_for(0, |_| Ok(Tally { passed: 1, ..Tally::default() })).unwrap();
        assert_eq!((tally.passed, tally.counts["rounds"]), (1, 1));
    }
}
