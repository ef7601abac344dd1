//! Recovery after a SIGKILL. One process loads a store, reports that, and goes on writing. This process kills it in the
//! middle of the writes. A new process opens the store, which recovers it, and reads and checks every key.
//!
//! The rate is the number of loaded keys over the whole time of `open`, per thread. Entries that recovery reads beyond
//! those (the overwrites up to the kill) do not count in its favour.
//!
//! Checkpoints are those of the background, as stores take them by themselves. The part of the log left to scan grows
//! from one checkpoint to the next, so the moment of the kill decides how long the restart takes. That moment is given
//! as a share of what was left to scan just before a checkpoint.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use clap::Args;
use hither::CheckpointMode;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::process::{Runner, json, output};
use crate::harness::closed::Closed;
use crate::harness::sampling::Sampling;
use crate::harness::scratch::{self, Scratch};
use crate::harness::spec::RunSpec;
use crate::harness::team::Team;
use crate::harness::verify::Present;
use crate::harness::{memory, pin};
use crate::target::store::{Index, StoreSession, StoreTarget, builder};
use crate::target::{Error, Result, Session, Target};
use crate::workload::data::DataSet;
use crate::workload::permutation::Permutation;
use crate::workload::{Distribution, Kind, Workload};

const LOADED: &str = "loaded";

/// The hidden commands `leave` and `recover`.
#[derive(Clone, Debug, Args)]
pub struct KillSpec {
    /// The store's directory
    #[arg(long)]
    pub store_dir: PathBuf,
    /// Uses the hash index instead of an ordered one
    #[arg(long)]
    pub hash: bool,
    /// Uses the learned index
    #[arg(long, conflicts_with = "hash")]
    pub learned: bool,
    /// Takes checkpoints of the indexes, and is to be killed when what is left to scan is this share of the most that
    /// they leave; without this there are none
    #[arg(long, value_name = "SHARE")]
    pub behind: Option<f64>,
    /// Without checkpoints: number of overwrites before it is to be killed
    #[arg(long, default_value_t = 0)]
    pub overwrites: u64,
    /// Data and threads
    #[command(flatten)]
    pub spec: RunSpec,
}

/// The result of `recover`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recovered {
    /// Duration of `open`, in seconds.
    pub seconds: f64,
    /// Number of threads that recovered.
    pub threads: usize,
    /// Number of keys that were loaded; all were read back.
    pub keys: u64,
    /// Overwrites before the kill, without those of its last milliseconds.
    #[serde(default)]
    pub overwrites: u64,
    /// The store's own report.
    pub report: serde_json::Value,
}

impl Recovered {
    /// Loaded keys per second and thread.
    pub fn per_thread(&self) -> f64 {
        self.keys as f64 / self.seconds.max(1e-9) / self.threads.max(1) as f64
    }
}

impl KillSpec {
    fn index(&self) -> Index {
        match (self.hash, self.learned) {
            (true, _) => Index::Hash,
            (_, true) => Index::Learned,
            _ => Index::Ordered,
        }
    }

    fn builder(&self) -> hither::Builder {
        let mode = if self.behind.is_some() { CheckpointMode::Auto } else { CheckpointMode::Off };
        builder(&self.spec, &self.store_dir).checkpoints(mode)
    }

    fn load_workload() -> Workload {
        Workload { kind: Kind::Load, distribution: Distribution::Uniform }
    }

    fn team<'a>(&self, target: &'a StoreTarget, data: &'a DataSet, workload: &'a Workload) -> Team<'a, StoreTarget> {
        let spec = &self.spec;
        Team { target, data, workload, threads: spec.threads, keys: spec.keys, inserted: 0, seed: spec.seed, epoch: 0 }
    }

    /// Loads, overwrites keys until the requested moment, reports that, and goes on until it is killed, or until the
    /// thread that started it has ended.
    pub fn leave(&self) -> Result<()> {
        // If the parent ends before this, nobody reads the report, so that writing it fails.
        let ends = set_parent_process_death_signal(Some(Signal::KILL));
        ends.map_err(|e| Error::io("asking to end with the parent", e))?;
        pin::prepare();
        let (spec, load) = (&self.spec, Self::load_workload());
        let target = StoreTarget::create_with(self.builder(), self.index())?;
        let data = DataSet::new(spec.key_bytes, spec.value_bytes, spec.seed);
        let team = self.team(&target, &data, &load);
        Closed { ops: 0, warmup_ops: 0, at_most: Duration::MAX, sampling: Sampling::default() }.run(&team)?;
        let mut overwrites = Overwrites::new(&target, &data, spec)?;
        match self.behind {
            Some(share) => overwrites.until_behind(share)?,
            None => overwrites.run(self.overwrites)?,
        }
        let mut out = std::io::stdout();
        writeln!(out, "{LOADED} {}", overwrites.done).and_then(|()| out.flush()).map_err(|e| Error::io("saying that it is loaded", e))?;
        overwrites.run(spec.keys / 10)?;
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Opens the store that `leave` left, and checks every key.
    pub fn recover(&self) -> Result<Recovered> {
        pin::prepare();
        let (spec, load) = (&self.spec, Self::load_workload());
        memory::warm(spec.keys as usize * 40);
        let start = Instant::now();
        let target = StoreTarget::reopen(self.builder().threads(spec.threads), self.index())?;
        let seconds = start.elapsed().as_secs_f64();
        if target.pairs() != spec.keys {
            return Err(Error::WrongData(format!("{} keys came back of {}", target.pairs(), spec.keys)));
        }
        let data = DataSet::new(spec.key_bytes, spec.value_bytes, spec.seed);
        let team = self.team(&target, &data, &load);
        let keys = team.verify(Present::All, &[])?;
        Ok(Recovered { seconds, threads: spec.threads, keys, overwrites: 0, report: target.recovery() })
    }
}

/// Number of overwrites between two looks at the checkpoints.
const LOOK_EVERY: u64 = 4096;

/// Overwrites loaded keys, in an order unrelated to that of the load.
struct Overwrites<'a> {
    target: &'a StoreTarget,
    data: &'a DataSet,
    session: StoreSession<'a>,
    order: Permutation,
    keys: u64,
    done: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'a> Overwrites<'a> {
    fn new(target: &'a StoreTarget, data: &'a DataSet, spec: &RunSpec) -> Result<Self> {
        let (key, value, order) = (data.key_buffer(), vec![0; spec.value_bytes], Permutation::new(spec.keys, spec.seed));
        Ok(Self { target, data, session: target.session()?, order, keys: spec.keys, done: 0, key, value })
    }

    fn run(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.data.key(self.order.at(self.done % self.keys), &mut self.key);
            self.data.value(&self.key, 1 + (self.done / self.keys) as u32, &mut self.value);
            self.session.put(&self.key, &self.value)?;
            self.done += 1;
        }
        Ok(())
    }

    /// Overwrites until two checkpoints of the background have come, and then until `share` of the most that was left
    /// to scan between the two is left again.
    fn until_behind(&mut self, mut share: f64) -> Result<()> {
        let (mut last, mut seen, mut most, enough) = (self.target.stats().checkpoints.taken, 0, 0, 8 * self.keys + (64 << 20));
        while self.done < enough {
            self.run(LOOK_EVERY)?;
            let now = self.target.stats().checkpoints;
            if now.taken != last {
                (last, seen) = (now.taken, seen + 1);
                // Intervals vary. If one ends before the share is reached, a smaller share suffices in the next.
                share *= if seen > 2 { 0.95 } else { 1.0 };
            }
            match seen {
                0 => {}
                1 => most = most.max(now.scan_bytes),
                _ if now.scan_bytes as f64 >= share * most as f64 => return Ok(()),
                _ => {}
            }
        }
        Err(Error::Config(format!("checkpoints did not come, or came too soon, in {} overwrites", self.done)))
    }
}

/// Kills the child when it goes out of scope, so that an error leaves no process behind.
struct Victim(Child);

impl Victim {
    fn kill(&mut self) {
        // `Child::kill` sends SIGKILL. It fails only if the child has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A store to be killed, and when.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Its index.
    pub index: Index,
    /// Keys of 8 bytes.
    pub keys: u64,
    /// Length of values.
    pub value_bytes: usize,
    /// Threads that load and recover.
    pub threads: usize,
    /// With checkpoints: the share of the most left to scan at which the kill comes. `None`: without checkpoints.
    pub behind: Option<f64>,
    /// Without checkpoints: number of overwrites before the kill.
    pub overwrites: u64,
}

impl Crash {
    /// A crash with values of 8 bytes and no checkpoints, soon after the load.
    pub fn new(index: Index, keys: u64, threads: usize) -> Crash {
        Crash { index, keys, value_bytes: 8, threads, behind: None, overwrites: 0 }
    }
}

/// Makes one kill and one recovery, on tmpfs treated as persistent memory.
pub fn kill_and_recover(runner: &Runner, crash: &Crash) -> Result<Recovered> {
    let directory = Scratch::new(scratch::Kind::Kill, Path::new("/dev/shm"))?;
    let command = |name: &str| {
        let mut command = runner.command(name);
        command.arg("--store-dir").arg(directory.path());
        command.args(["--keys", &crash.keys.to_string(), "--threads", &crash.threads.to_string()]);
        command.args(["--value-bytes", &crash.value_bytes.to_string()]);
        match crash.index {
            Index::Hash => command.arg("--hash"),
            Index::Learned => command.arg("--learned"),
            Index::Ordered => &mut command,
        };
        match crash.behind {
            Some(share) => command.args(["--behind", &share.to_string()]),
            None => command.args(["--overwrites", &crash.overwrites.to_string()]),
        };
        command
    };
    let mut victim = Victim(command("leave").spawn().map_err(|e| Error::io("starting the loader", e))?);
    let overwrites = wait_for_load(&mut victim)?;
    // The kill comes some milliseconds into the further overwrites; the moment need not be exact.
    std::thread::sleep(Duration::from_millis(2));
    victim.kill();
    let recovered: Recovered = json(&output(command("recover"))?)?;
    Ok(Recovered { overwrites, ..recovered })
}

/// Waits for the report of the loader; returns the number of overwrites until then.
fn wait_for_load(victim: &mut Victim) -> Result<u64> {
    let stdout = victim.0.stdout.take().ok_or_else(|| Error::Config("the loader has no output".into()))?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(|e| Error::io("waiting for the loader", e))?;
    let overwrites = line.trim().strip_prefix(LOADED).and_then(|count| count.trim().parse().ok());
    overwrites.ok_or_else(|| Error::Config("the loader ended before it had loaded".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_per_thread() {
        let recovered = Recovered { seconds: 0.5, threads: 2, keys: 1_000, overwrites: 0, report: serde_json::Value::Null };
        assert_eq!(recovered.per_thread(), 1_000.0);
    }

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        spec: KillSpec,
    }

    /// A store with short intervals is left at the requested moment: in the middle of an interval, after a checkpoint
    /// of the background.
    #[test]
    fn a_store_is_left_between_two_checkpoints() {
        use clap::Parser;
        let directory = Scratch::new(scratch::Kind::Kill, Path::new("/dev/shm")).expect("a directory");
        let place = directory.path().to_str().expect("UTF-8");
        let spec = Program::parse_from(["x", "--store-dir", place, "--keys", "3000", "--behind", "0.5"]).spec.spec;
        let builder = builder(&spec, directory.path()).segment_bytes(64 << 10).checkpoints(CheckpointMode::Every(2 << 20));
        let target = StoreTarget::create_with(builder, Index::Hash).expect("a store");
        let data = DataSet::new(spec.key_bytes, spec.value_bytes, spec.seed);
        let mut overwrites = Overwrites::new(&target, &data, &spec).expect("a session");
        overwrites.run(spec.keys).expect("room");
        overwrites.until_behind(0.5).expect("a checkpoint of the background");
        let left = target.stats().checkpoints;
        assert!(left.taken >= 2 && left.scan_bytes >= 512 << 10, "{left:?}");
        assert_eq!(target.pairs(), spec.keys);
    }
}
