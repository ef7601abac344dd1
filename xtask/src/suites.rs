//! Assigns test programs to stages.
//!
//! Test programs are found by name (`crates/*/tests/NAME.rs` or `crates/*/tests/NAME/main.rs`), so a new one takes part
//! as soon as it exists. All are built with the same package selection: another selection may unite features
//! differently and build everything twice.

use crate::Failure;
use crate::exec::{Step, Tally};
use crate::programs;
use crate::workspace::{self, Metadata};

/// Prefixes of the names of test programs that belong together.
pub type Kind = &'static [&'static str];

/// Compares `docs/format.md` with the code.
pub const FORMAT: Kind = &["format"];
/// The crash explorer, its oracle and the planted bugs.
pub const EXPLORER: Kind = &["explor", "crash", "planted"];
/// Kills of the real program.
pub const KILL: Kind = &["kill"];
/// Concurrent histories and their check.
pub const HISTORIES: Kind = &["linear", "histor"];

/// Generated commands for the server and for Redis.
pub const REDIS: Kind = &["redis_differential"];

/// Random operations against a model.
pub const MODEL: Kind = &["model"];

/// Seconds after which a run of test programs is ended: one of them hangs. No round of the long campaign takes half as
/// long.
const LIMIT_S: u64 = 2700;

fn belongs(name: &str, kind: Kind) -> bool {
    kind.iter().any(|start| name.starts_with(start))
}

/// Runs the unit tests of all crates except these.
pub fn unit(without: &[&str]) -> Result<Tally, Failure> {
    let step = Step::cargo().args(["test", "--workspace", "--lib", "--bins"]);
    programs::run(without.iter().fold(step, |step, package| step.args(["--exclude", package])))?.some("unit tests")
}

/// Runs the examples in the documentation of all crates.
pub fn doctests() -> Result<Tally, Failure> {
    Step::cargo().args(["test", "--workspace", "--doc"]).run()?.some("examples")
}

/// Builds `hither` into the folder `debug` of the build directory, by building a test program that runs it. `cargo
/// build` would leave out what only tests depend on, unite features differently and so build every layer a second time.
pub fn build_program() -> Result<(), Failure> {
    Step::cargo().args(["test", "--workspace", "--test", "program", "--no-run"]).run().map(drop)
}

/// The names of the test programs that have no stage of their own.
pub fn ordinary(metadata: &Metadata) -> Vec<String> {
    let special = |name: &str| [FORMAT, EXPLORER, KILL].iter().any(|kind| belongs(name, kind));
    metadata.integration_tests().into_iter().filter(|name| !special(name)).collect()
}

/// The command for the test programs with these names, with this environment.
fn named(names: &[String], env: &[(&str, &str)], limit_s: u64) -> Step {
    let step = Step::limited(workspace::cargo(), limit_s).args(["test", "--workspace"]);
    let step = names.iter().fold(step, |step, name| step.args(["--test", name]));
    env.iter().fold(step, |step, (name, value)| step.env(name, value))
}

/// Runs the test programs with these names, several at a time.
pub fn side_by_side(names: &[String]) -> Result<Tally, Failure> {
    programs::run(named(names, &[], LIMIT_S))?.some(&names.join(", "))
}

/// Runs some tests of one test program, which must exist.
pub fn chosen(program: &str, tests: &[&str], env: &[(&str, &str)]) -> Result<Tally, Failure> {
    let tally = named(&[program.to_owned()], env, LIMIT_S).args(["--", "--nocapture"]).args(tests).run()?;
    tally.some(&format!("{program} {}", tests.join(" ")))
}

/// Runs the test programs of one kind and shows what they print. It is a failure if there is none.
pub fn of_kind(metadata: &Metadata, kind: Kind, env: &[(&str, &str)]) -> Result<Tally, Failure> {
    let names: Vec<String> = metadata.integration_tests().into_iter().filter(|name| belongs(name, kind)).collect();
    if names.is_empty() {
        return Err(format!("no test program (crates/*/tests/NAME.rs or NAME/main.rs) whose name begins with {}", kind.join(" or ")));
    }
    named(&names, env, LIMIT_S).args(["--", "--nocapture"]).run()?.some(&names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a test that hung held up the whole campaign, which then wrote no report.
    #[test]
    fn a_run_without_end_is_ended() {
        let step = named(&["program".to_owned()], &[], 7);
        assert!(step.shown().starts_with("timeout --kill-after=10 7 cargo test "), "{}", step.shown());
        let hangs = Step::limited("sleep", 1).arg("600").run();
        assert!(hangs.is_err_and(|why| why.contains("no end")));
    }
}
