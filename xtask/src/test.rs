//! `cargo xtask test`: everything that a push needs, in 15 minutes on two cores from a cold clone if each stage keeps
//! its budget.
//!
//! Missing compilers, Redis and parts of Rust are installed. A stage is skipped, or done in part, if something else is
//! missing: rustup, the emulator (`--guest` installs it), the tools of the client libraries, or a library that its
//! package manager cannot fetch. The table shows that, and the run passes.
//!
//! The budgets without the guest add up to the 15 minutes. A stage over its budget is reported but does not fail,
//! because machines differ.

use crate::args::Args;
use crate::exec::{Step, Tally};
use crate::stage::{self, Done, Selection, Stage};
use crate::workspace::{Metadata, root, target_dir};
use crate::{Failure, conformance, exec, guest, setup, suites, variants};
use std::process::ExitCode;

/// The settings that the stages share.
pub struct Context {
    metadata: Metadata,
    guest: bool,
}

/// Number of kills of the real program at each push; `soak` does 50.
const KILLS: &str = "4";

const STAGES: &[Stage<Context>] = &[
    Stage { name: "setup", about: "tools that the other stages need", budget_s: 20, run: |_| setup::for_tests().map(passed) },
    Stage { name: "fmt", about: "cargo fmt --check", budget_s: 5, run: fmt },
    Stage { name: "clippy", about: "clippy on all targets, warnings are errors", budget_s: 80, run: clippy },
    Stage { name: "docs", about: "rustdoc, warnings are errors", budget_s: 30, run: docs },
    Stage { name: "unit", about: "unit tests of the crates that the stage asan leaves out", budget_s: 210, run: unit },
    Stage { name: "tests", about: "integration tests that have no stage of their own", budget_s: 200, run: integration },
    Stage { name: "doctests", about: "the examples in the documentation", budget_s: 10, run: |_| suites::doctests().map(Done::Passed) },
    Stage { name: "format", about: "docs/format.md against the constants of the code", budget_s: 5, run: format },
    Stage { name: "explorer", about: "crash explorer: legal post-crash images, planted bugs", budget_s: 50, run: explorer },
    Stage { name: "kill", about: "SIGKILL of the real program in mid-load", budget_s: 30, run: kill },
    Stage { name: "clients", about: "client libraries of Redis: redis-py, ioredis, and YCSB", budget_s: 30, run: |_| conformance::short() },
    Stage { name: "loom", about: "model-checked schedules of the lock-free parts", budget_s: 30, run: |c| variants::loom(&c.metadata, 3) },
    Stage {
        name: "asan",
        about: "tests of the crates with unsafe code, with the address sanitizer",
        budget_s: 150,
        run: |_| variants::address_sanitizer(),
    },
    Stage { name: "cross", about: "the library type-checks for aarch64", budget_s: 20, run: |_| variants::cross() },
    Stage { name: "demo", about: "scripts/demo.sh: load, query, kill, reopen, verify", budget_s: 30, run: demo },
    Stage { name: "guest", about: "two NUMA nodes with NVDIMMs (if the emulator is there, or --guest)", budget_s: 120, run: run_guest },
];

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    let selection = Selection { only: args.values("--only")?, keep_going: args.flag("--keep-going") };
    let guest = args.flag("--guest");
    let list = args.flag("--list");
    args.finish()?;
    if list {
        stage::list(STAGES);
        return Ok(ExitCode::SUCCESS);
    }
    let context = Context { metadata: Metadata::load()?, guest };
    let planned = if selection.only.is_empty() { STAGES.len() } else { selection.only.len() };
    let records = stage::run_all(STAGES, &selection, &context)?;
    Ok(if stage::summarise(&records, planned) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn passed(_: ()) -> Done {
    Done::Passed(Tally::default())
}

fn fmt(_: &Context) -> Result<Done, Failure> {
    Step::cargo().args(["fmt", "--all", "--check"]).run().map(Done::Passed)
}

fn clippy(_: &Context) -> Result<Done, Failure> {
    Step::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run().map(Done::Passed)
}

fn docs(_: &Context) -> Result<Done, Failure> {
    Step::cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").run().map(Done::Passed)
}

/// The crates with unsafe code are tested once, with the sanitizer: building them twice would take two minutes more.
/// The long campaign does both.
fn unit(_: &Context) -> Result<Done, Failure> {
    suites::unit(variants::address_sanitized()).map(Done::Passed)
}

fn integration(context: &Context) -> Result<Done, Failure> {
    let names = suites::ordinary(&context.metadata);
    if names.is_empty() {
        return Err("no crate has such tests".to_owned());
    }
    suites::side_by_side(&names).map(Done::Passed)
}

fn format(context: &Context) -> Result<Done, Failure> {
    suites::of_kind(&context.metadata, suites::FORMAT, &[]).map(Done::Passed)
}

fn explorer(context: &Context) -> Result<Done, Failure> {
    suites::of_kind(&context.metadata, suites::EXPLORER, &[]).map(Done::Passed)
}

fn kill(context: &Context) -> Result<Done, Failure> {
    suites::of_kind(&context.metadata, suites::KILL, &[("HITHER_KILLS", KILLS)]).map(Done::Passed)
}

/// Uses the debug build of the tests: a release build takes minutes, and the long campaign makes it.
fn demo(_: &Context) -> Result<Done, Failure> {
    suites::build_program()?;
    Step::new(root().join("scripts/demo.sh")).env("HITHER_BIN", target_dir().join("debug/hither")).run().map(Done::Passed)
}

fn run_guest(context: &Context) -> Result<Done, Failure> {
    if context.guest {
        setup::install(setup::FOR_GUEST)?;
    } else if !exec::exists("qemu-system-x86_64") {
        return Ok(Done::Skipped("qemu-system-x86_64 is not installed (--guest installs it; soak runs this always)".to_owned()));
    }
    guest::run(guest::Size::Short).map(Done::Passed)
}
