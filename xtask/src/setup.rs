//! `cargo xtask setup`: installs what the checks need and the machine lacks. Running it again changes nothing.
//!
//! Debian's `apt-get` (by way of `sudo -n` for those who are not root) and `rustup` do the work; where one of them is missing or fails, the message says what to
//! install by hand. Debian starts the Redis that it installs, and at each boot: that is undone at once, for the tests start their own.

use crate::args::Args;
use crate::exec::{self, Step};
use crate::{Failure, workspace};
use std::path::Path;
use std::process::ExitCode;

/// A program that must be there, and the Debian package that holds it.
pub struct Tool {
    program: &'static str,
    package: &'static str,
}

/// A program, its package and its service.
const REDIS: &str = "redis-server";

/// What building and the tests need.
pub const FOR_TESTS: &[Tool] = &[
    Tool { program: "cc", package: "gcc" },
    Tool { program: "timeout", package: "coreutils" },
    // What the server is compared with, and its clients.
    Tool { program: REDIS, package: REDIS },
    Tool { program: "redis-cli", package: "redis-tools" },
];

/// What the fuzzer needs: libFuzzer is compiled from C++.
pub const FOR_FUZZING: &[Tool] = &[Tool { program: "g++", package: "g++" }];

/// What `tools/numa-pmem-guest` needs.
pub const FOR_GUEST: &[Tool] = &[
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Tool { program: "cpio", package: "cpio" },
    Tool { program: "xz", package: "xz-utils" },
    Tool { program: "mke2fs", package: "e2fsprogs" },
];

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    let soak = args.flag("--soak");
    args.finish()?;
    for_tests()?;
    if soak {
        install(FOR_FUZZING)?;
        install(FOR_GUEST)?;
        cargo_fuzz()?;
        rust_source()?;
    }
    println!("everything is there");
    Ok(ExitCode::SUCCESS)
}

/// Installs what `cargo xtask test` needs.
pub fn for_tests() -> Result<(), Failure> {
    install(FOR_TESTS)?;
    for (program, component) in [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")] {
        if !works(workspace::cargo(), &[&program["cargo-".len()..], "--version"]) {
            rustup(&["component", "add", component])?;
        }
    }
    Ok(())
}

/// The version of cargo-fuzz that is installed. Another one that is there will do.
const CARGO_FUZZ: &str = "cargo-fuzz@0.13.2";

/// Installs cargo-fuzz.
pub fn cargo_fuzz() -> Result<(), Failure> {
    if works(workspace::cargo(), &["fuzz", "--version"]) {
        return Ok(());
    }
    Step::cargo().args(["install", "--locked", CARGO_FUZZ]).run().map(drop)
}

/// Installs the sources of the standard library, which the thread sanitizer needs instrumented.
pub fn rust_source() -> Result<(), Failure> {
    rustup(&["component", "add", "rust-src"])
}

/// Calls rustup.
pub fn rustup(args: &[&str]) -> Result<(), Failure> {
    if !exec::exists("rustup") {
        return Err(format!("rustup is missing; do by hand what `rustup {}` would do", args.join(" ")));
    }
    Step::new("rustup").args(args).run().map(drop)
}

/// Installs the packages of those tools that are missing.
pub fn install(tools: &[Tool]) -> Result<(), Failure> {
    let found = |program: &str| exec::exists(program) || ["/usr/sbin", "/sbin"].iter().any(|dir| Path::new(dir).join(program).is_file());
    let missing: Vec<&str> = tools.iter().filter(|tool| !found(tool.program)).map(|tool| tool.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("install these Debian packages or their like by hand: {}", missing.join(" "));
    if !exec::exists("apt-get") {
        return Err(by_hand);
    }
    println!("installing Debian packages: {}", missing.join(" "));
    install_packages(&missing).map_err(|why| format!("{why}; {by_hand}"))?;
    if missing.contains(&REDIS) && Path::new("/run/systemd/system").exists() {
        // The tests use ports of their own: one that cannot be stopped disturbs nobody.
        if let Err(why) = privileged().args(["systemctl", "disable", "--now", REDIS]).run() {
            println!("note: the service of {REDIS} could not be stopped: {why}");
        }
    }
    Ok(())
}

fn install_packages(missing: &[&str]) -> Result<(), Failure> {
    let install = || privileged().args(["apt-get", "install", "--yes", "--no-install-recommends"]).args(missing).run();
    // The package lists of a fresh machine are empty or old: fetch them only if needed.
    if install().is_err() {
        privileged().args(["apt-get", "update"]).run()?;
        install()?;
    }
    Ok(())
}

/// `env`, by way of sudo for those who are not root.
fn privileged() -> Step {
    let root = works("sh", &["-c", "test \"$(id -u)\" = 0"]);
    let step = if root { Step::new("env") } else { Step::new("sudo").args(["-n", "env"]) };
    step.arg("DEBIAN_FRONTEND=noninteractive")
}

/// Whether the program runs and ends well; its output is dropped.
fn works(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> bool {
    let output = std::process::Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}
