//! Runs test programs side by side.
//!
//! `cargo test` runs them one after the other. Most of them wait for a part of their time (for a child, a disk or their
//! last test). With several at a time the processors stay busy, and the whole takes half as long. The output of each
//! program is shown when it has ended, or was ended because its time was up; otherwise nobody could see where it hangs.

use crate::Failure;
use crate::exec::{self, Step, TIME_WAS_UP, Tally};
use serde_json::Value;
use std::cmp::Reverse;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seconds that a program may take on any machine; the slowest take one or two minutes.
const LIMIT_S: u64 = 900;

/// A test program and the folder of its package, where cargo would run it.
#[derive(Debug, PartialEq)]
struct Program {
    path: PathBuf,
    folder: PathBuf,
}

impl Program {
    fn step(&self, environment: &[(String, String)], limit_s: u64) -> Step {
        let step = Step::limited(&self.path, limit_s).within(&self.folder);
        environment.iter().fold(step, |step, (name, value)| step.env_unseen(name, value))
    }

    /// The number of tests that it lists.
    fn tests(&self, environment: &[(String, String)]) -> usize {
        let listed = self.step(environment, LIMIT_S).arg("--list").collect();
        listed.map_or(0, |(_, output)| String::from_utf8_lossy(&output).lines().filter(|line| line.ends_with(": test")).count())
    }

    fn run(&self, environment: &[(String, String)], limit_s: u64) -> Result<Tally, Failure> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let (status, output) = self.step(environment, limit_s).collect()?;
        {
            let mut stdout = std::io::stdout().lock();
            // If the reader of the output is gone, the tests still continue.
            let _ = writeln!(stdout, "\n$ {name}").and_then(|()| stdout.write_all(&output));
        }
        match status {
            Some(0) => Ok(Tally::of(&String::from_utf8_lossy(&output))),
            Some(TIME_WAS_UP) => Err(format!("{name}: no end after {limit_s} s; what it printed is above")),
            status => Err(exec::failure(&name, status)),
        }
    }
}

/// Has cargo build the programs that `step`, a `cargo test`, would run. Runs as many at a time as there are processors,
/// and all of them even if some fail. They get the environment of `step`, too.
pub fn run(step: Step) -> Result<Tally, Failure> {
    let environment = step.environment();
    let (status, messages) = step.args(["--no-run", "--message-format=json-render-diagnostics"]).capture()?;
    if status != Some(0) {
        return Err("the tests do not compile".to_owned());
    }
    let mut programs = programs_in(&messages);
    // The program with the most tests begins first, so that it does not end last.
    programs.sort_by_cached_key(|program| Reverse(program.tests(&environment)));
    let next = AtomicUsize::new(0);
    let work = || {
        let mine = std::iter::from_fn(|| programs.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.map(|program| program.run(&environment, LIMIT_S)).collect::<Vec<_>>()
    };
    let width = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..width).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("what runs a program does not panic")).collect::<Vec<_>>()
    });
    let (mut total, mut failed) = (Tally::default(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(tally) => total.add(&tally),
            Err(why) => failed.push(why),
        }
    }
    if failed.is_empty() { Ok(total) } else { Err(failed.join("\n")) }
}

/// The test programs among cargo's messages, which are one JSON object per line.
fn programs_in(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let path = message["executable"].as_str().filter(|_| is_test)?.into();
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some(Program { path, folder })
    };
    messages.lines().filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_test_programs_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":false},"executable":"/t/tool"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":true},"executable":null}"#,
            "\nno message\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/b/Cargo.toml","profile":{"test":true},"executable":"/t/b-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(programs_in(messages), [Program { path: "/t/b-1".into(), folder: "/w/b".into() }]);
    }

    #[test]
    fn a_program_that_fails_is_named() {
        let run = |path: &str| Program { path: path.into(), folder: "/".into() }.run(&[], 60);
        assert_eq!(run("/bin/true"), Ok(Tally::default()));
        assert_eq!(run("/bin/false"), Err("false: exit status 1".to_owned()));
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let hangs = Program { path: "/bin/sleep".into(), folder: "/".into() };
        assert_eq!(hangs.step(&[], 1).arg("600").collect(), Ok((Some(TIME_WAS_UP), Vec::new())));
    }
}
