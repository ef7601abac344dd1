//! `cargo xtask setup`: installs what the checks need and the machine lacks. Running it again changes nothing.
//!
//! Debian's `apt-get` (through `sudo -n` unless run as root) and `rustup` do the work. If one of them is missing or
//! fails, the message says what to install by hand. Debian starts the Redis that it installs, also at each boot; this
//! is undone at once, because the tests start their own servers.

use crate::args::Args;
use crate::exec::{self, Step};
use crate::{Failure, workspace};
use std::path::Path;
use std::process::ExitCode;

/// A program that must be installed, and the Debian package that holds it.
pub struct Tool {
    program: &'static str,
    package: &'static str,
}

/// The name of the program, of its package and of its service.
const REDIS: &str = "redis-server";

/// The tools that building and the tests need.
pub const FOR_TESTS: &[Tool] = &[
    Tool { program: "cc", package: "gcc" },
    Tool { program: "timeout", package: "coreutils" },
    // The server that hither's is compared with, and its client.
    Tool { program: REDIS, package: REDIS },
    Tool { program: "redis-cli", package: "redis-tools" },
];

/// The tools that the fuzzer needs: libFuzzer is compiled from C++.
pub const FOR_FUZZING: &[Tool] = &[Tool { program: "g++", package: "g++" }];

/// The tools that `tools/numa-pmem-guest` needs.
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

/// The version of cargo-fuzz that is installed. Any other version that is already installed suffices.
const CARGO_FUZZ: &str = "cargo-fuzz@0.13.2";

/// Installs cargo-fuzz unless it is there.
pub fn cargo_fuzz() -> Result<(), Failure> {
    if works(workspace::cargo(), &["fuzz", "--version"]) {
        return Ok(());
    }
    Step::cargo().args(["install", "--locked", CARGO_FUZZ]).run().map(drop)
}

/// Installs the sources of the standard library; the thread sanitizer needs it instrumented.
pub fn rust_source() -> Result<(), Failure> {
    rustup(&["component", "add", "rust-src"])
}

/// Runs rustup.
pub fn rustup(args: &[&str]) -> Result<(), Failure> {
    if !exec::exists("rustup") {
        return Err(format!("rustup is missing; do by hand what `rustup {}` would do", args.join(" ")));
    }
    Step::new("rustup").args(args).run().map(drop)
}

/// Installs the packages of the missing tools.
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
        // The tests use ports of their own, so a service that cannot be stopped does no harm.
        if let Err(why) = privileged().args(["systemctl", "disable", "--now", REDIS]).run() {
            println!("note: the service of {REDIS} could not be stopped: {why}");
        }
    }
    Ok(())
}

fn install_packages(missing: &[&str]) -> Result<(), Failure> {
    let install = || privileged().args(["apt-get", "install", "--yes", "--no-install-recommends"]).args(missing).run();
    // On a fresh machine the package lists are empty or old; they are fetched only if needed.
    if install().is_err() {
        privileged().args(["apt-get", "update"]).run()?;
        install()?;
    }
    Ok(())
}

/// The program `env`, through sudo unless this process runs as root.
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
