//! Tests the store on fsdax over two NUMA nodes, in a guest that is killed in mid-write (`tools/numa-pmem-guest`).
//!
//! 1. The guest loads records into a store with one pool on each node. When the program has reported enough of them
//!    durable, the guest is killed with SIGKILL, between two instructions. A load that was complete by then is
//!    repeated, a few times.
//! 2. A second guest on the same media opens the store and dumps it. Every record that was reported durable must be
//!    there, and nothing that was not in the input. `hither check` must find the store sound, on both nodes.
//! 3. A third guest loads the whole input again; the dump must then equal the input.
//!
//! The long run also has a disk that fails: [`failing_disk`].
//!
//! This covers the kernel's interfaces, `MAP_SYNC`, two pools and a remount. The emulated NVDIMM keeps every store,
//! flushed or not; the shadow medium covers lost cache lines.

mod failing_disk;

use crate::Failure;
use crate::exec::{Step, Tally};
use crate::suites;
use crate::workspace::{root, target_dir};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// How much to do.
#[derive(Clone, Copy, PartialEq)]
pub enum Size {
    /// One kill.
    Short,
    /// Several kills at different points of the load.
    Long,
}

/// The line by which the script in the guest requests the kill.
const KILL_LINE: &str = "kill me now";
const STORE: &str = "--data node0=/pmem0/store --data node1=/pmem1/store --keyspace guest";
const MEDIA_MIB: &str = "512";

/// The folders and records of one run, below the target directory.
struct Bench {
    dir: PathBuf,
    records: BTreeSet<String>,
}

/// Runs the test; returns its counts.
pub fn run(size: Size) -> Result<Tally, Failure> {
    let (program, records, kills) = if size == Size::Short {
        // Uses the debug build of the tests: a release build takes longer than the rest of this stage.
        suites::build_program()?;
        ("debug/hither", 40_000, vec![3])
    } else {
        Step::cargo().args(["build", "--release", "--package", "hither-cli", "--bin", "hither"]).run()?;
        ("release/hither", 400_000, vec![1, 5, 20, 60])
    };
    let bench = Bench::prepare(&target_dir().join(program), records)?;
    let mut tally = Tally::default();
    for (number, reports) in kills.iter().enumerate() {
        let (durable, kept) = in_mid_load(bench.records.len(), || {
            bench.fresh_media()?;
            let durable = bench.load_and_kill(*reports)?;
            println!("guest killed; {durable} records were durable");
            Ok((durable, bench.reopen(durable)?))
        })?;
        println!("kill {}: {durable} records durable, {kept} found, all of them from the input", number + 1);
        bench.resume()?;
        *tally.counts.entry("guest_kills".to_owned()).or_default() += 1;
        *tally.counts.entry("guest_durable_records".to_owned()).or_default() += durable as u64;
    }
    if size == Size::Long {
        failing_disk::run(&bench, &mut tally)?;
    }
    Ok(tally)
}

/// How often to repeat if the load was complete when it was killed.
const ATTEMPTS: u32 = 4;

/// Repeats `kill` until it hits a load of `all` records that was not complete; other kills show nothing. Returns how
/// many records were durable, and how many were found.
fn in_mid_load(all: usize, mut kill: impl FnMut() -> Result<(usize, usize), Failure>) -> Result<(usize, usize), Failure> {
    for _ in 0..ATTEMPTS {
        let (durable, kept) = kill()?;
        if kept < all {
            return Ok((durable, kept));
        }
        println!("all {all} records were there before the guest was killed; once more");
    }
    Err(format!("{ATTEMPTS} loads of {all} records were complete before the guest was killed: none was in mid-load"))
}

impl Bench {
    /// Prepares the folders: `app` is copied into the guest, `share` is seen by both sides, `media` holds the NVDIMMs.
    fn prepare(program: &Path, count: usize) -> Result<Self, Failure> {
        let dir = target_dir().join("guest");
        for name in ["app", "share", "media"] {
            std::fs::create_dir_all(dir.join(name)).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        std::fs::copy(program, dir.join("app/hither")).map_err(|error| format!("{}: {error}", program.display()))?;
        let lines: Vec<String> = (0..count).map(record).collect();
        write(&dir.join("share/input.kv"), &(lines.join("\n") + "\n"))?;
        Ok(Bench { dir, records: lines.into_iter().collect() })
    }

    fn fresh_media(&self) -> Result<(), Failure> {
        for node in 0..2 {
            match std::fs::remove_file(self.dir.join(format!("media/pmem{node}.img"))) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(format!("old media: {error}")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs `script` in the guest; returns the exit status and the output.
    fn guest(&self, script: &str, kill_on: Option<&str>) -> Result<(Option<i32>, String), Failure> {
        write(&self.dir.join("app/job.sh"), script)?;
        let mut step = Step::new(root().join("tools/numa-pmem-guest"));
        for (option, name) in [("--bin", "app"), ("--share", "share"), ("--pmem-dir", "media")] {
            step = step.arg(option).arg(self.dir.join(name));
        }
        step = step.args(["--pmem-size", MEDIA_MIB, "--timeout", "900"]);
        if let Some(text) = kill_on {
            step = step.args(["--kill-on", text]);
        }
        step.args(["--", "sh", "/app/job.sh"]).capture()
    }

    /// Loads until `reports` durable reports have come; then the guest is killed. Returns the last reported number.
    fn load_and_kill(&self, reports: u64) -> Result<usize, Failure> {
        let script = format!(
            "/app/hither load {STORE} --json /share/input.kv | {{ n=0; while read -r line; do echo \"$line\"\n\
             case $line in *durable*) n=$((n + 1)); [ $n -ne {reports} ] || echo {KILL_LINE} ;; esac; done; }}\n"
        );
        let (status, output) = self.guest(&script, Some(KILL_LINE))?;
        if status != Some(137) {
            return Err(format!("the guest was to be killed in mid-load but ended with {status:?}:\n{}", tail(&output)));
        }
        last_durable(&output).ok_or_else(|| format!("no durable report in the output:\n{}", tail(&output)))
    }

    /// Reopens the store and compares it with the input. Returns how many records it holds.
    fn reopen(&self, durable: usize) -> Result<usize, Failure> {
        let script =
            format!("set -e\n/app/hither check {STORE}\n/app/hither stat {STORE} --json\n/app/hither dump {STORE} >/share/dump.kv\n");
        let output = self.expect_success(&script)?;
        let pools_on_dax = output.matches(r#""medium":"fsdax""#).count();
        if pools_on_dax != 2 {
            return Err(format!("{pools_on_dax} pools on fsdax instead of 2:\n{}", tail(&output)));
        }
        let kept = self.read_dump()?;
        if let Some(alien) = kept.difference(&self.records).next() {
            return Err(format!("the store holds a record that was never written: {alien}"));
        }
        match (0..durable).map(record).find(|record| !kept.contains(record)) {
            Some(lost) => Err(format!("reported durable, but lost: {lost}")),
            None => Ok(kept.len()),
        }
    }

    /// Loads the whole input again; the store must then equal the input.
    fn resume(&self) -> Result<(), Failure> {
        let script = format!(
            "set -e\n/app/hither load {STORE} /share/input.kv\n/app/hither check {STORE}\n/app/hither dump {STORE} >/share/dump.kv\n"
        );
        self.expect_success(&script)?;
        if self.read_dump()? == self.records { Ok(()) } else { Err("after resuming, the dump differs from the input".to_owned()) }
    }

    /// Runs `script` in the guest, which must succeed; returns its output.
    fn expect_success(&self, script: &str) -> Result<String, Failure> {
        match self.guest(script, None)? {
            (Some(0), output) => Ok(output),
            (status, output) => Err(format!("the guest ended with {status:?}:\n{}", tail(&output))),
        }
    }

    fn read_dump(&self) -> Result<BTreeSet<String>, Failure> {
        self.read_records("dump.kv")
    }

    /// The lines of a file that the guest wrote.
    fn read_records(&self, name: &str) -> Result<BTreeSet<String>, Failure> {
        let path = self.dir.join("share").join(name);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// Record `number` of the input: keys in an order that is not sorted, values of different lengths.
fn record(number: usize) -> String {
    let scattered = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let mut line = format!("key-{scattered:011x}\tvalue of record {number} ");
    for digit in 0..number % 7 {
        let _ = write!(line, "{:08x}", scattered.rotate_left(digit as u32));
    }
    line
}

/// The number in the last line that reports durable records.
fn last_durable(output: &str) -> Option<usize> {
    let line = output.lines().rfind(|line| line.contains("durable"))?;
    let digits = line.split_once("durable")?.1.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_last_report_in_either_form() {
        assert_eq!(last_durable("durable 10\n{\"durable\":25,\"x\":1}\nkill me now"), Some(25));
        assert_eq!(last_durable("durable 10\ndurable 31\n"), Some(31));
        assert_eq!(last_durable("nothing"), None);
    }

    /// Regression: a guest that was killed after the load was complete counted as killed in mid-load.
    #[test]
    fn a_kill_that_comes_too_late_is_no_kill() {
        let mut found = [9, 9, 5, 9].into_iter();
        assert_eq!(in_mid_load(9, || Ok((4, found.next().unwrap()))), Ok((4, 5)));
        assert_eq!(found.next(), Some(9), "no more than that");
        assert!(in_mid_load(9, || Ok((4, 9))).unwrap_err().contains("none was in mid-load"));
        assert_eq!(in_mid_load(9, || Err("lost".to_owned())), Err("lost".to_owned()));
    }

    #[test]
    fn records_are_distinct() {
        let keys: BTreeSet<String> = (0..50_000).map(|n| record(n).split('\t').next().unwrap().to_owned()).collect();
        assert_eq!(keys.len(), 50_000);
    }
}
