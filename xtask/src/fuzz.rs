//! Runs a target of `fuzz/` for a while.

use crate::Failure;
use crate::exec::{Step, Tally};
use crate::workspace::{cargo, root};
use std::path::Path;

/// Fetches the dependencies of the targets, which must be those in `fuzz/Cargo.lock`: cargo-fuzz itself would change
/// that file without notice.
pub fn fetch() -> Result<(), Failure> {
    Step::cargo().args(["fetch", "--locked", "--manifest-path"]).arg(root().join("fuzz/Cargo.toml")).run().map(drop)
}

/// Fuzzes `target` for `seconds`. A crash, a hang or running out of memory fails; the input stays in `fuzz/artifacts/`.
pub fn run(target: &str, seconds: u64) -> Result<Tally, Failure> {
    // Without a sanitizer the stable compiler suffices; the stage `asan` covers memory errors. The build does not count
    // as fuzzing time.
    fuzz(["build", target, "--sanitizer", "none"], 900).run()?;
    let step = fuzz(["run", target, "--sanitizer", "none"], seconds + 300);
    let limits = [
        format!("-max_total_time={seconds}"),
        "-timeout=20".to_owned(),
        "-rss_limit_mb=4096".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    let mut tally = step.arg("--").args(limits).merged().run()?;
    tally.counts.insert("corpus".to_owned(), count(&root().join("fuzz/corpus").join(target)));
    Ok(tally)
}

fn fuzz(args: [&str; 4], limit_s: u64) -> Step {
    Step::limited(cargo(), limit_s).arg("fuzz").args(args).env("RUSTC_BOOTSTRAP", "1")
}

/// Number of files in a folder; those of a corpus are the inputs that reached something new.
fn count(folder: &Path) -> u64 {
    std::fs::read_dir(folder).map_or(0, |entries| entries.count() as u64)
}
