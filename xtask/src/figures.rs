//! `cargo xtask figures SET`: measures, compares with the demands, and passes the verdict through.
//!
//! `hither-bench figures` measures. This command builds it with release settings and prints nothing of its own on
//! standard output, so that the output of `--json` can be parsed.

use crate::args::Args;
use crate::{Failure, workspace};
use std::process::{Command, ExitCode};

/// The sets of figures.
const SETS: [&str; 4] = ["engine", "nstore", "compaction", "server"];

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    let set = args.command().ok_or_else(|| format!("which figures? There are: {}", SETS.join(", ")))?;
    if !SETS.contains(&set.as_str()) {
        return Err(format!("no figures named {set}; there are: {}", SETS.join(", ")));
    }
    if set == "server" {
        crate::setup::install(crate::setup::FOR_TESTS)?;
        build_server()?;
    }
    let status = Command::new(workspace::cargo())
        .current_dir(workspace::root())
        .args(["run", "--release", "--quiet", "--package", "hither-bench", "--bin", "hither-bench", "--", "figures"])
        .arg(set)
        .args(args.into_rest())
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Builds the measured program, which the measuring one looks for beside itself.
fn build_server() -> Result<(), Failure> {
    let status = Command::new(workspace::cargo())
        .current_dir(workspace::root())
        .args(["build", "--release", "--quiet", "--package", "hither-cli", "--bin", "hither"])
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("hither does not build".to_owned()) }
}
