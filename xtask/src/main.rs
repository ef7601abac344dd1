//! `cargo xtask`: set-up, checks and long campaigns of the workspace, one file per command.
//!
//! One thread does the work; only test programs that run side by side, and readers of child processes' output, have
//! threads of their own.
//!
//! Nothing is written outside the build directory, with these exceptions: what `setup` installs; the report of `soak`
//! under `docs/measurements/`; what the fuzzer builds and finds (`fuzz/target`, `fuzz/corpus`, `fuzz/artifacts`);
//! `crates/bench-peers/target`; and the guest's kernel (`numa-pmem-guest` in the user's cache directory).

#![forbid(unsafe_code)]

mod args;
mod conformance;
mod exec;
mod figures;
mod fuzz;
mod guest;
mod machine;
mod programs;
mod setup;
mod soak;
mod stage;
mod suites;
mod test;
mod variants;
mod workspace;

use args::Args;
use std::process::ExitCode;

/// An error, as a sentence for the person who runs the command.
type Failure = String;

const USAGE: &str = "\
usage: cargo xtask COMMAND [OPTION...]

  test      everything that a push needs, with the time of each stage
              --list         show the stages and stop
              --only STAGE   run this stage (may be given several times)
              --keep-going   go on after a stage that failed
              --guest        run the two-node guest, installing the emulator if it is missing
  soak      the long campaign; writes docs/measurements/soak-DATE.json
              --minutes N    how long to run (75)
              --quick        a few minutes, to see that every stage works
              --only STAGE, --list, --keep-going as above (soak always keeps going)
  figures   measure: `figures engine|nstore|compaction|server [--json] [--quick] ...`; options go to hither-bench
  conformance
            client libraries of Redis against the server; says what ran and what was skipped
              --only CLIENT  only this one (may be given several times)
  setup     install what the other commands need
              --soak         also what only soak needs

exit status: 0 all is well, 1 a stage failed or a figure is short, 2 wrong use";

fn main() -> ExitCode {
    let mut args = Args::from_env();
    let result = match args.command().as_deref() {
        Some("test") => test::run(args),
        Some("soak") => soak::run(args),
        Some("figures") => figures::run(args),
        Some("conformance") => conformance::run(args),
        Some("setup") => setup::run(args),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            let what = other.map_or_else(|| "no command given".to_owned(), |name| format!("unknown command {name}"));
            eprintln!("xtask: {what}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    result.unwrap_or_else(|failure| {
        eprintln!("xtask: {failure}");
        ExitCode::from(2)
    })
}
