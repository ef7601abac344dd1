//! The command line of `figures`; the same for every table.
//!
//! Thread safety: plain values.

use std::path::PathBuf;

use clap::Args;

/// Options of `figures`.
#[derive(Clone, Debug, Args)]
pub struct FiguresArgs {
    /// Which table to measure
    #[arg(value_parser = ["engine", "nstore", "compaction", "server"], default_value = "engine")]
    pub table: String,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Smaller counts and one round: shows that everything runs, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Only rows whose short name contains this; may be repeated
    #[arg(long, value_name = "ROW")]
    pub only: Vec<String>,
    /// Builds the peers' program first
    #[arg(long)]
    pub peers: bool,
    /// The peers' program [default: where --peers builds it]
    #[arg(long, value_name = "PROGRAM")]
    pub peers_program: Option<PathBuf>,
    /// The program `hither`, for `server` [default: beside this one]
    #[arg(long, value_name = "PROGRAM")]
    pub server_program: Option<PathBuf>,
    /// Rounds; figures are medians [default: 3, with --quick 1]
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Keys [default: 5,000,000, with --quick 200,000]
    #[arg(long)]
    pub keys: Option<u64>,
    /// Also measures one thread, larger values and 50 M keys, for the report
    #[arg(long)]
    pub full: bool,
    /// Measures the ordered rows of `nstore` with the learned index instead of the B+-tree
    #[arg(long)]
    pub learned: bool,
    /// Keys of the restart in `nstore` [default: 50,000,000, with --quick 500,000]
    #[arg(long)]
    pub restart_keys: Option<u64>,
    /// Minutes of endless updates in `nstore` [default: 10; with --quick 3 of two seconds each]
    #[arg(long)]
    pub minutes: Option<u32>,
    /// A directory on a disk, for the rows on files [default: the temporary directory]
    #[arg(long)]
    pub disk: Option<PathBuf>,
    /// Writes every record of the run to this file, for `report`
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
}
