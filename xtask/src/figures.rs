//! `cargo xtask figures SET`: measures, compares with what was demanded, and passes the verdict through.
//!
//! The measuring itself is `hither-bench figures`; this command builds it with release settings and shows nothing of its own on
//! standard output, so that `--json` stays parsable.

use crate::args::Args;
use crate::{Failure, workspace};
use std::process::{Command, ExitCode};

/// The sets of figures there are.
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

/// The program that is measured; it is looked for beside the one that measures.
fn build_server() -> Result<(), Failure> {
    let status = Command::new(workspace::cargo())
        .current_dir(workspace::root())
        .args(["build", "--release", "--quiet", "--package", "hither-cli", "--bin", "hither"])
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("hither does not build".to_owned()) }
}
