//! Builds of the same code with other flags: model checkers, sanitizers, another architecture.
//!
//! Each variant has a target directory of its own inside the ordinary one; otherwise every switch would rebuild
//! everything.

use crate::Failure;
use crate::exec::Step;
use crate::stage::Done;
use crate::workspace::{Metadata, root, target_dir};
use crate::{exec, programs, setup};
use std::path::Path;

/// The crates that may contain unsafe code.
const UNSAFE_CRATES: [&str; 4] = ["hither-sync", "hither-pmem", "hither-log", "hither-index"];
/// The crates whose tests run threads against each other.
const THREADED_CRATES: [&str; 3] = ["hither-sync", "hither-log", "hither-index"];
/// Whether the sanitizers are set up for this kind of machine.
const SANITIZERS: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));
const HOST: &str = "x86_64-unknown-linux-gnu";
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Runs tests under loom, in the crates that declare it. Unless `LOOM_MAX_PREEMPTIONS` is set, a schedule takes the
/// processor from a thread at most `preemptions` times. This bound keeps the number of schedules finite in practice.
pub fn loom(metadata: &Metadata, preemptions: u32) -> Result<Done, Failure> {
    let packages = metadata.packages_with("cfg(loom)");
    if packages.is_empty() {
        return Err("no package depends on loom under cfg(loom)".to_owned());
    }
    let step = schedule_step("loom", metadata, &packages);
    step.env_default("LOOM_MAX_PREEMPTIONS", &preemptions.to_string()).run()?.some("loom").map(Done::Passed)
}

/// The command for the unit tests of these packages and for those of their test programs whose names begin with the
/// checker's name; the other programs cannot run inside it. Their dependencies are not optimised, because that takes
/// longer than all schedules up to three preemptions.
fn schedule_step(checker: &str, metadata: &Metadata, packages: &[String]) -> Step {
    let step = Step::cargo().args(["--config", r#"profile.dev.package."*".opt-level=0"#, "test", "--lib"]);
    let step = packages.iter().fold(step, |step, package| step.args(["--package", package]));
    let programs = metadata.integration_tests_of(packages).into_iter().filter(|name| name.starts_with(checker));
    let step = programs.fold(step, |step, name| step.args(["--test", &name]));
    with_flags(step, checker, &format!("--cfg {checker}"))
}

/// The crates whose tests [`address_sanitizer`] runs on this machine.
pub fn address_sanitized() -> &'static [&'static str] {
    if SANITIZERS { &UNSAFE_CRATES } else { &[] }
}

/// Tests the crates with unsafe code under the address sanitizer, which must leave bus errors to the tests that provoke
/// them.
pub fn address_sanitizer() -> Result<Done, Failure> {
    let leaks = format!("print_suppressions=0:{}", suppressions("lsan"));
    sanitized("address", &UNSAFE_CRATES, |step| step.env("LSAN_OPTIONS", leaks).env("ASAN_OPTIONS", "handle_sigbus=0"))
}

/// Tests the crates with threads under the thread sanitizer, with an instrumented standard library.
pub fn thread_sanitizer() -> Result<Done, Failure> {
    setup::rust_source()?;
    sanitized("thread", &THREADED_CRATES, |step| step.arg("-Zbuild-std").env("TSAN_OPTIONS", suppressions("tsan")))
}

/// The option that names the file of reports to suppress; the file gives the reasons.
fn suppressions(sanitizer: &str) -> String {
    option_of(&root().join(format!("xtask/{sanitizer}-suppressions.txt")))
}

/// The path is quoted, because a space or a colon would end the option.
fn option_of(path: &Path) -> String {
    format!("suppressions=\"{}\"", path.display())
}

/// Runs tests under a sanitizer. The flags are unstable; `RUSTC_BOOTSTRAP` lets the stable compiler take them, which
/// suffices for a check.
fn sanitized(sanitizer: &str, packages: &[&str], adjust: impl FnOnce(Step) -> Step) -> Result<Done, Failure> {
    if !SANITIZERS {
        return Ok(Done::Skipped(format!("the {sanitizer} sanitizer is set up for x86-64 Linux only")));
    }
    let step = Step::cargo().args(["test", "--target", HOST, "--tests"]);
    let step = packages.iter().fold(step, |step, package| step.args(["--package", package]));
    let step = with_flags(step, sanitizer, &format!("-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer"));
    programs::run(adjust(step.env("RUSTC_BOOTSTRAP", "1")))?.some(sanitizer).map(Done::Passed)
}

/// Type-checks the library, with every layer below it, for aarch64.
pub fn cross() -> Result<Done, Failure> {
    if !exec::exists("rustup") {
        return Ok(Done::Skipped("without rustup there is no standard library for aarch64".to_owned()));
    }
    if let Err(why) = setup::rustup(&["target", "add", AARCH64]) {
        return Ok(Done::Skipped(format!("the aarch64 standard library cannot be installed: {why}")));
    }
    Step::cargo().args(["check", "--package", "hither", "--target", AARCH64]).run().map(Done::Passed)
}

fn with_flags(step: Step, variant: &str, flags: &str) -> Step {
    step.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", target_dir().join(variant))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: in a folder with a space in its name the sanitizers did not find the file.
    #[test]
    fn the_file_of_a_sanitizer_is_one_option() {
        assert_eq!(option_of(Path::new("/a b/c:d.txt")), "suppressions=\"/a b/c:d.txt\"");
        assert!(suppressions("lsan").ends_with("xtask/lsan-suppressions.txt\""));
    }
}
