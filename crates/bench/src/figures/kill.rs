//! Recovery after a SIGKILL: one process loads a store, says so and goes on writing; this one kills it in the middle of that;
//! a fresh process opens the store, which recovers it, and reads and checks every key.
//!
//! The rate counts the keys that were loaded, over the whole time of `open`, per thread: what recovery reads beyond that (the
//! overwrites up to the kill) is not counted in its favour.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use clap::Args;
use hither::CheckpointMode;
use serde::{Deserialize, Serialize};

use super::process::{Runner, json, output};
use crate::harness::closed::Closed;
use crate::harness::spec::RunSpec;
use crate::harness::team::Team;
use crate::harness::{memory, pin};
use crate::target::store::{Index, StoreTarget, builder};
use crate::target::{Error, Result, Session, Target};
use crate::workload::data::DataSet;
use crate::workload::{Distribution, Kind, Workload};

const LOADED: &str = "loaded";

/// The hidden commands `leave` and `recover`.
#[derive(Clone, Debug, Args)]
pub struct KillSpec {
    /// The store's directory
    #[arg(long)]
    pub store_dir: PathBuf,
    /// Hash instead of ordered
    #[arg(long)]
    pub hash: bool,
    /// Ordered, with the learned index
    #[arg(long, conflicts_with = "hash")]
    pub learned: bool,
    /// Takes a checkpoint of the index after the load; without this there is none
    #[arg(long)]
    pub checkpoint: bool,
    /// Data and threads
    #[command(flatten)]
    pub spec: RunSpec,
}

/// What `recover` found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recovered {
    /// Seconds of `open`.
    pub seconds: f64,
    /// Threads that recovered.
    pub threads: usize,
    /// Keys that were loaded, and all read back.
    pub keys: u64,
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

    /// Only the checkpoint that is asked for: none in the background.
    fn builder(&self) -> hither::Builder {
        let mode = if self.checkpoint { CheckpointMode::Every(u64::MAX) } else { CheckpointMode::Off };
        builder(&self.spec, &self.store_dir).checkpoints(mode)
    }

    fn load_workload() -> Workload {
        Workload { kind: Kind::Load, distribution: Distribution::Uniform }
    }

    /// Loads, says so, and overwrites keys until it is killed.
    pub fn leave(&self) -> Result<()> {
        pin::prepare();
        let (spec, load) = (&self.spec, Self::load_workload());
        let target = StoreTarget::create_with(self.builder(), self.index())?;
        let data = DataSet::new(spec.key_bytes, spec.value_bytes, spec.seed);
        let team =
            Team { target: &target, data: &data, workload: &load, threads: spec.threads, keys: spec.keys, seed: spec.seed, epoch: 0 };
        Closed { ops: 0, warmup_ops: 0, at_most: Duration::MAX, sample_every: 64 }.run(&team)?;
        if self.checkpoint && !target.checkpoint()? {
            return Err(Error::Config("the store keeps no checkpoints".into()));
        }
        let mut out = std::io::stdout();
        writeln!(out, "{LOADED}").and_then(|()| out.flush()).map_err(|e| Error::io("saying that the store is loaded", e))?;
        let (mut session, mut key, mut value) = (target.session()?, data.key_buffer(), vec![0; spec.value_bytes]);
        // Overwrites stay within the space that the store has: a tenth of the keys, then it waits for the kill.
        for id in 0..spec.keys / 10 {
            data.key(id, &mut key);
            data.value(&key, 7, &mut value);
            session.put(&key, &value)?;
        }
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Opens what `leave` left, and checks every key.
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
        let team =
            Team { target: &target, data: &data, workload: &load, threads: spec.threads, keys: spec.keys, seed: spec.seed, epoch: 0 };
        let keys = team.verify(true)?;
        Ok(Recovered { seconds, threads: spec.threads, keys, report: target.recovery() })
    }
}

/// Kills the child when it goes out of scope, so that an error leaves no process behind.
struct Victim(Child);

impl Victim {
    fn kill(&mut self) {
        // `Child::kill` sends SIGKILL. It fails only if the child has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A store to be killed.
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
    /// With a checkpoint of the index behind the load, or with none.
    pub checkpoint: bool,
}

impl Crash {
    /// Values of 8 bytes, no checkpoint.
    pub fn new(index: Index, keys: u64, threads: usize) -> Crash {
        Crash { index, keys, value_bytes: 8, threads, checkpoint: false }
    }
}

/// One kill and one recovery, on tmpfs treated as persistent memory.
pub fn kill_and_recover(runner: &Runner, crash: &Crash) -> Result<Recovered> {
    let parent = Path::new("/dev/shm");
    let directory =
        tempfile::Builder::new().prefix("hither-kill-").tempdir_in(parent).map_err(|e| Error::io("making a directory in /dev/shm", e))?;
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
        if crash.checkpoint {
            command.arg("--checkpoint");
        }
        command
    };
    let mut victim = Victim(command("leave").spawn().map_err(|e| Error::io("starting the loader", e))?);
    wait_for_load(&mut victim)?;
    // Some milliseconds into the overwrites; the moment need not be exact.
    std::thread::sleep(Duration::from_millis(2));
    victim.kill();
    json(&output(command("recover"))?)
}

fn wait_for_load(victim: &mut Victim) -> Result<()> {
    let stdout = victim.0.stdout.take().ok_or_else(|| Error::Config("the loader has no output".into()))?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(|e| Error::io("waiting for the loader", e))?;
    if line.trim() == LOADED { Ok(()) } else { Err(Error::Config("the loader ended before it had loaded".into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_per_thread() {
        let recovered = Recovered { seconds: 0.5, threads: 2, keys: 1_000, report: serde_json::Value::Null };
        assert_eq!(recovered.per_thread(), 1_000.0);
    }
}
