//! Runs the real program on stores in temporary directories.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub mod wire;

/// A store in a temporary directory, and the options that every command on it gets.
pub struct Store {
    dir: TempDir,
    medium: &'static str,
}

impl Store {
    /// A store in an ordinary directory, with syncs.
    pub fn on_file() -> Self {
        Self { dir: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), medium: "file" }
    }

    /// A store on tmpfs that is treated as persistent memory, if there is a tmpfs with enough room: a page that it
    /// cannot provide would be a bus error. Otherwise the test that needs this medium is skipped, and counted as such.
    pub fn on_dax() -> Option<Self> {
        let store = Self::in_memory();
        if store.is_none() {
            skipped("without_shm");
        }
        store
    }

    fn in_memory() -> Option<Self> {
        let free = rustix::fs::statvfs("/dev/shm").map(|stats| stats.f_bavail * stats.f_frsize);
        if free.is_ok_and(|bytes| bytes < 1 << 30) {
            return None;
        }
        let dir = TempDir::new_in("/dev/shm").ok()?;
        Some(Self { dir, medium: "forced-dax" })
    }

    /// A store on the fastest medium available, for tests that do not depend on the medium.
    pub fn any() -> Self {
        Self::in_memory().unwrap_or_else(Self::on_file)
    }

    /// The path of a file next to the store.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of the store.
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// A command on this store.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(arguments).arg("--data").arg(self.data()).args(["--medium", self.medium]);
        command.args(["--capacity", "64M", "--max-capacity", "1G"]);
        command
    }

    /// Runs a command on this store.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// Runs a command that must succeed within the limit; its output is discarded.
    #[track_caller]
    pub fn run_within(&self, arguments: &[&str], limit: Duration) {
        let mut child = self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if started.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    child.kill().unwrap();
                    panic!("{arguments:?} hangs: no end after {limit:?}");
                }
            }
        };
        assert!(status.success(), "{arguments:?}: {status}");
    }

    /// Runs a command on this store with `input` as standard input.
    pub fn feed(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        write_input(&mut child, input);
        Ran(child.wait_with_output().unwrap())
    }

    /// A dump, as bytes.
    pub fn dump(&self, keyspace: &str) -> Vec<u8> {
        self.run(&["dump", "--keyspace", keyspace]).done().0.stdout
    }
}

/// Counts a test that cannot run here. Writes to standard output itself, because the output of a passing test is not
/// shown; the reader may be gone.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "HITHER_COUNT skipped_{why} 1");
}

/// Lets the program run as a user who is bound by permissions; the superuser is not.
pub fn bind(command: &mut Command) -> &mut Command {
    if rustix::process::getuid().is_root() { command.uid(65534).gid(65534) } else { command }
}

/// Whether [`bind`] works here; if not, the test is counted as skipped.
pub fn can_bind() -> bool {
    let can = bind(program().arg("--version")).output().is_ok();
    if !can {
        skipped("without_other_user");
    }
    can
}

fn write_input(child: &mut Child, input: &[u8]) {
    // A program that stops at a bad line does not read the rest.
    let _ = child.stdin.take().unwrap().write_all(input);
}

/// The program, without options and without a store from the environment.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hither"));
    command.env_remove("HITHER_DATA").stdin(Stdio::null());
    command
}

/// Runs the program.
pub fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    Ran::of(program().args(arguments))
}

/// Writes a file.
pub fn write(path: &Path, content: impl AsRef<[u8]>) {
    std::fs::write(path, content).unwrap();
}

/// Flips a bit in the first place of a pool that holds these bytes. Returns the new content of the pool.
pub fn flip(pool: &Path, held: &[u8]) -> Vec<u8> {
    let mut bytes = std::fs::read(pool).unwrap();
    let at = bytes.windows(held.len()).position(|window| window == held).unwrap();
    bytes[at] ^= 1;
    write(pool, &bytes);
    bytes
}

/// A command that has ended.
pub struct Ran(pub Output);

impl Ran {
    fn of(command: &mut Command) -> Self {
        Self(command.output().unwrap())
    }

    /// The exit status of the command; -1 if a signal ended it.
    pub fn status(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    /// Asserts the exit status of the command.
    #[track_caller]
    pub fn expect(self, status: i32) -> Self {
        assert_eq!(self.status(), status, "stdout: {}\nstderr: {}", self.out(), self.err());
        self
    }

    /// Asserts exit status 0.
    #[track_caller]
    pub fn done(self) -> Self {
        self.expect(0)
    }

    /// Standard output.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// Standard error.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// Standard output as JSON documents, one per line.
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The only JSON document of standard output.
    #[track_caller]
    pub fn document(&self) -> serde_json::Value {
        let mut documents = self.json();
        assert_eq!(documents.len(), 1, "{}", self.out());
        documents.remove(0)
    }
}
