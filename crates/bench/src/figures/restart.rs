//! Restart after a crash: with checkpoints of the index as stores take them by themselves, compared with a scan of the
//! whole log.
//!
//! Stores are loaded with the same keys and overwritten until two checkpoints of the background have come. The middle
//! case is killed when half of the most that checkpoints leave to scan is left again. The worst case is killed when
//! nearly all of it is left, just before the next checkpoint. The store without checkpoints gets as many overwrites as
//! the middle case. Every key is read back and checked ([`super::kill`]).

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use super::kill::{Crash, Recovered, kill_and_recover};
use super::process::Runner;
use crate::target::store::Index;
use crate::target::{Error, Result};

/// Options of `restart`.
#[derive(Clone, Debug, Args)]
pub struct RestartArgs {
    /// Number of keys
    #[arg(long, default_value_t = 5_000_000)]
    pub keys: u64,
    /// Number of threads
    #[arg(long, short = 't', default_value_t = 2)]
    pub threads: usize,
    /// Rounds of each index
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
}

/// The restarts of one store, with and without checkpoints.
#[derive(Clone, Debug, Serialize)]
pub struct Restart {
    /// By a scan of the whole log.
    pub scan: Recovered,
    /// From the checkpoint and what is newer, half-way between two checkpoints: the average case of a crash.
    pub checkpoint: Recovered,
    /// From the checkpoint and what is newer, just before the next checkpoint.
    pub worst: Recovered,
}

impl Restart {
    /// Time of the restart half-way between two checkpoints, as a share of the scan's.
    pub fn share(&self) -> f64 {
        self.checkpoint.seconds / self.scan.seconds.max(1e-9)
    }

    /// Time of the worst restart, as a share of the scan's.
    pub fn worst_share(&self) -> f64 {
        self.worst.seconds / self.scan.seconds.max(1e-9)
    }
}

/// What is left to scan at the kill, as a share of what is left just before a checkpoint.
const MIDDLE: f64 = 0.5;
const WORST: f64 = 0.95;

/// Kills and restarts a store with `keys` keys, without and with checkpoints.
pub fn restart(runner: &Runner, index: Index, keys: u64, threads: usize) -> Result<Restart> {
    let crash = Crash::new(index, keys, threads);
    let behind = |share| {
        let recovered = kill_and_recover(runner, &Crash { behind: Some(share), ..crash })?;
        match recovered.report["source"].as_str() {
            Some("checkpoint") => Ok(recovered),
            source => Err(Error::WrongData(format!("the restart came from {source:?} instead of the checkpoint"))),
        }
    };
    let (checkpoint, worst) = (behind(MIDDLE)?, behind(WORST)?);
    let scan = kill_and_recover(runner, &Crash { overwrites: checkpoint.overwrites, ..crash })?;
    Ok(Restart { scan, checkpoint, worst })
}

/// Runs the command: prints one JSON line per round and index.
pub fn run(args: &RestartArgs, prefix: &[OsString], mut say: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let runner = Runner::new(prefix, None)?;
    for _ in 0..args.rounds {
        for index in [Index::Ordered, Index::Hash] {
            let both = restart(&runner, index, args.keys, args.threads)?;
            let line = serde_json::json!({ "store": index.store_name(), "share": both.share(), "worst_share": both.worst_share(), "restarts": both });
            say(&line.to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_scan() {
        let recovered = |seconds| Recovered { seconds, threads: 2, keys: 1_000, overwrites: 0, report: serde_json::Value::Null };
        let both = Restart { scan: recovered(2.0), checkpoint: recovered(0.5), worst: recovered(1.0) };
        assert_eq!((both.share(), both.worst_share()), (0.25, 0.5));
    }
}
