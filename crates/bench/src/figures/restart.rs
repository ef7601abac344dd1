//! Restart after a crash: with a checkpoint of the index, against a scan of the whole log.
//!
//! Both stores are loaded with the same keys, then a tenth of them is overwritten behind the checkpoint until the process is killed; so the fast restart
//! loads and scans. Every key is read back and checked ([`super::kill`]).

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
    /// Keys
    #[arg(long, default_value_t = 5_000_000)]
    pub keys: u64,
    /// Threads
    #[arg(long, short = 't', default_value_t = 2)]
    pub threads: usize,
    /// Rounds of each index
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
}

/// Both restarts of one store.
#[derive(Clone, Debug, Serialize)]
pub struct Restart {
    /// By a scan of the whole log.
    pub scan: Recovered,
    /// From the checkpoint and what is newer.
    pub checkpoint: Recovered,
}

impl Restart {
    /// Time of the restart from the checkpoint as a share of the scan's.
    pub fn share(&self) -> f64 {
        self.checkpoint.seconds / self.scan.seconds.max(1e-9)
    }
}

/// Kills and restarts a store with `keys` keys, without and with a checkpoint.
pub fn restart(runner: &Runner, index: Index, keys: u64, threads: usize) -> Result<Restart> {
    let crash = Crash::new(index, keys, threads);
    let scan = kill_and_recover(runner, &crash)?;
    let checkpoint = kill_and_recover(runner, &Crash { checkpoint: true, ..crash })?;
    let source = &checkpoint.report["source"];
    if source != "checkpoint" {
        return Err(Error::WrongData(format!("the restart came from {source} instead of the checkpoint")));
    }
    Ok(Restart { scan, checkpoint })
}

/// The command: one JSON line per round and index.
pub fn run(args: &RestartArgs, prefix: &[OsString], mut say: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let runner = Runner::new(prefix, None)?;
    for _ in 0..args.rounds {
        for index in [Index::Ordered, Index::Hash] {
            let both = restart(&runner, index, args.keys, args.threads)?;
            let line = serde_json::json!({ "store": index.store_name(), "share": both.share(), "restarts": both });
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
        let recovered = |seconds| Recovered { seconds, threads: 2, keys: 1_000, report: serde_json::Value::Null };
        assert_eq!(Restart { scan: recovered(2.0), checkpoint: recovered(0.5) }.share(), 0.25);
    }
}
