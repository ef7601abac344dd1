//! The request for a measurement, as the command line gives it. `hither-bench run` and the peers' program share it, so
//! that every store gets the same request in the same words.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hither::CollectorKind;

use crate::target::{Error, Result};
use crate::workload::data::DataSet;
use crate::workload::{Distribution, Workload, etc};

/// Where the pairs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Medium {
    /// A directory on tmpfs, treated as persistent memory: flushes and fences run.
    Dax,
    /// A directory on a disk's file system.
    File,
    /// Memory that does not survive.
    Volatile,
}

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It survives a power loss.
    Sync,
    /// It survives a power loss after this time.
    Interval(Duration),
    /// It survives the end of the process.
    Process,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Dax => "dax",
            Medium::File => "file",
            Medium::Volatile => "volatile",
        })
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Sync => f.write_str("sync"),
            Durability::Interval(time) => write!(f, "interval={}", time.as_millis()),
            Durability::Process => f.write_str("process"),
        }
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match (text, text.strip_prefix("interval=").map(str::parse)) {
            ("sync", _) => Ok(Durability::Sync),
            ("process", _) => Ok(Durability::Process),
            (_, Some(Ok(ms))) => Ok(Durability::Interval(Duration::from_millis(ms))),
            _ => Err(format!("`{text}` is none of sync, process, interval=MILLISECONDS")),
        }
    }
}

/// The most threads of a measurement; systems refuse to start many more.
pub const MOST_THREADS: usize = 1024;

/// What to measure, on which data, and how often.
#[derive(Clone, Debug, Args)]
pub struct RunSpec {
    /// Workload, for example load, get:zipf=0.99, scan=100, ycsb-a; repeat it to run several on one store, in order
    #[arg(long = "workload", short = 'w', default_value = "load")]
    pub workloads: Vec<Workload>,
    /// Number of keys that are loaded
    #[arg(long, default_value_t = 1_000_000)]
    pub keys: u64,
    /// Length of a key in bytes (4 to 65,536)
    #[arg(long, default_value_t = 8)]
    pub key_bytes: usize,
    /// Length of a value in bytes; if a workload has the distribution etc, all values have ETC's lengths
    #[arg(long, default_value_t = 8)]
    pub value_bytes: usize,
    /// Number of threads
    #[arg(long, short = 't', default_value_t = 2)]
    pub threads: usize,
    /// Operations of each workload, all threads together (load and delete: every key once) [default: the number of
    /// keys]
    #[arg(long)]
    pub ops: Option<u64>,
    /// Operations before the clock starts [default: a tenth of the operations]
    #[arg(long)]
    pub warmup: Option<u64>,
    /// Ends each workload after this many seconds
    #[arg(long, default_value_t = 600.0)]
    pub seconds: f64,
    /// Open loop: operations per second that are due, all threads together; loads stay closed
    #[arg(long)]
    pub rate: Option<f64>,
    /// Number of runs, each on a new store; records carry medians
    #[arg(long, default_value_t = 1)]
    pub runs: u32,
    /// Seed of keys and streams
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Medium
    #[arg(long, value_enum, default_value_t = Medium::Dax)]
    pub medium: Medium,
    /// Durability: sync, process or interval=MILLISECONDS
    #[arg(long, default_value = "sync")]
    pub durability: Durability,
    /// Directory in which stores are created and removed [default: /dev/shm for dax, the temporary directory for file]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// One call in this many is timed in the closed loop [default: one of each thread in 100 µs]
    #[arg(long)]
    pub sample_every: Option<u32>,
    /// Reads and checks every key after the last workload, and scans them all if the store has an order
    #[arg(long)]
    pub verify: bool,
    /// Capacity of the store in bytes [default: estimated from the workloads]
    #[arg(long)]
    pub capacity: Option<u64>,
    /// How hither collects garbage
    #[arg(long, value_enum, default_value_t = Collector::Batched)]
    pub collector: Collector,
    /// Number of garbage collectors on each node of hither [default: 1]
    #[arg(long)]
    pub cleaners: Option<usize>,
}

/// How hither collects garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Collector {
    /// Pacman's way: in batches, without latches
    Batched,
    /// NStore's way: by chains
    Chain,
}

impl Collector {
    /// The collector as the store's options name it.
    pub fn kind(self) -> CollectorKind {
        match self {
            Collector::Batched => CollectorKind::Batched,
            Collector::Chain => CollectorKind::Chain,
        }
    }
}

impl RunSpec {
    /// Number of measured operations of a workload.
    pub fn ops(&self) -> u64 {
        self.ops.unwrap_or(self.keys)
    }

    /// Number of operations before the clock starts.
    pub fn warmup(&self) -> u64 {
        self.warmup.unwrap_or(self.ops() / 10)
    }

    /// An upper bound of the ids that a workload inserts: each thread may do one operation more than its share.
    pub fn most_inserts(&self) -> u64 {
        self.ops() + self.warmup() + self.threads as u64
    }

    /// Keys and values of all workloads. A key has one length of value, whichever workload writes it.
    pub fn data(&self) -> DataSet {
        if self.has_etc() { DataSet::etc(self.seed) } else { DataSet::new(self.key_bytes, self.value_bytes, self.seed) }
    }

    fn has_etc(&self) -> bool {
        self.workloads.iter().any(|workload| workload.distribution == Distribution::Etc)
    }

    /// Mean length of the values of all keys.
    pub fn mean_value_bytes(&self) -> f64 {
        if self.has_etc() { etc::mean_value_bytes(self.keys) } else { self.value_bytes as f64 }
    }

    /// The directory in which stores are created.
    pub fn directory(&self) -> PathBuf {
        let default = || if self.medium == Medium::File { std::env::temp_dir() } else { PathBuf::from("/dev/shm") };
        self.dir.clone().unwrap_or_else(default)
    }

    /// Refuses requests that cannot be measured, and a file medium that is really memory.
    pub fn validate(&self) -> Result<()> {
        let refuse = |text: &str| Err(Error::Config(text.into()));
        if self.keys == 0 || self.threads == 0 || self.runs == 0 || self.sample_every == Some(0) {
            return refuse("keys, threads, runs and sample-every must be at least 1");
        }
        if self.threads > MOST_THREADS {
            return Err(Error::Config(format!("{} threads are too many; give {MOST_THREADS} at most", self.threads)));
        }
        if self.keys > 1 << 40 || !(4..=65_536).contains(&self.key_bytes) || self.value_bytes > 512 << 20 {
            return refuse("at most 2^40 keys, keys of 4 to 65,536 bytes, values of at most 512 MiB");
        }
        let inserting = self.workloads.iter().filter(|workload| workload.kind.inserts()).count() as u64;
        let ids = inserting.max(1).saturating_mul(self.most_inserts()).saturating_add(self.keys);
        if self.key_bytes < 8 && ids > 1 << (8 * self.key_bytes - 1) {
            return refuse("keys that short cannot be that many");
        }
        if self.has_etc() && self.key_bytes != 8 {
            return refuse("keys of ETC have 8 bytes");
        }
        if self.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) || !(self.seconds.is_finite() && self.seconds > 0.0) {
            return refuse("the rate and the seconds must be above 0");
        }
        if self.medium == Medium::File { require_disk(&self.directory(), "--dir") } else { Ok(()) }
    }

    /// Bytes that a log-structured store writes for all workloads if it reuses nothing.
    pub fn log_bytes(&self) -> u64 {
        let plain = self.key_bytes == 8 && self.value_bytes == 8 && !self.has_etc();
        let value_bytes = self.mean_value_bytes().ceil() as usize;
        let entry = (if plain { 40 } else { 40 + self.key_bytes + value_bytes }).next_multiple_of(8) as f64;
        let each = (self.ops() + self.warmup()) as f64;
        let phase = |w: &Workload| if w.kind.loads() { 0.0 } else { w.kind.write_share() * each.max(self.keys as f64) };
        let writes = self.keys as f64 + self.workloads.iter().map(phase).sum::<f64>();
        (writes * entry) as u64
    }
}

/// Refuses a directory on tmpfs where a disk is needed; `option` is the option that names another directory.
pub fn require_disk(directory: &std::path::Path, option: &str) -> Result<()> {
    if is_tmpfs(directory)? {
        return Err(Error::Config(format!("{} is tmpfs, not a disk: give {option} a directory on a disk", directory.display())));
    }
    Ok(())
}

/// Refuses a directory that is not on tmpfs, for a store that only tmpfs keeps in memory; `option` is the option that
/// names another directory.
pub fn require_tmpfs(directory: &std::path::Path, option: &str) -> Result<()> {
    if is_tmpfs(directory)? {
        return Ok(());
    }
    Err(Error::Config(format!("{} is not tmpfs: give {option} a directory on one, or the medium file", directory.display())))
}

/// True if a directory is on tmpfs.
fn is_tmpfs(directory: &std::path::Path) -> Result<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let info = rustix::fs::statfs(directory).map_err(|e| Error::io(format!("asking for the file system of {}", directory.display()), e))?;
    Ok(info.f_type as u64 == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        spec: RunSpec,
    }

    fn parse(args: &[&str]) -> RunSpec {
        Program::try_parse_from(["x"].iter().chain(args)).expect("valid arguments").spec
    }

    #[test]
    fn defaults_and_repeats() {
        let spec = parse(&["-w", "load", "-w", "get:zipf=0.8", "--durability", "interval=20"]);
        assert_eq!(spec.workloads.len(), 2);
        assert_eq!(spec.durability, Durability::Interval(Duration::from_millis(20)));
        assert_eq!((spec.ops(), spec.warmup()), (1_000_000, 100_000));
        assert!(spec.validate().is_ok());
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [
            &["--threads", "0"][..],
            &["--threads", "99999"],
            &["--key-bytes", "3"],
            &["--rate", "0"],
            &["--key-bytes", "4", "--keys", "4000000000"],
            &["--key-bytes", "4", "--keys", "1000", "--ops", "500000000", "-w", "insert", "-w", "ycsb-d", "-w", "insert", "-w", "insert"],
            &["--key-bytes", "16", "-w", "update:etc"],
        ] {
            assert!(parse(args).validate().is_err(), "{args:?}");
        }
        assert!(parse(&["--medium", "file", "--dir", "/nowhere/at/all"]).validate().is_err());
    }

    /// Regression: peers took a directory on a disk for tmpfs.
    #[test]
    fn a_disk_is_no_tmpfs() {
        let shm = std::path::Path::new("/dev/shm");
        assert!(require_tmpfs(shm, "--dir").is_ok() && require_disk(shm, "--dir").is_err());
        let disk = std::path::Path::new("/proc");
        let message = require_tmpfs(disk, "--dir").expect_err("it is no tmpfs").to_string();
        assert!(message.contains("--dir") && message.contains("/proc"), "{message}");
    }

    #[test]
    fn the_log_estimate_counts_writes() {
        let reads = parse(&["-w", "load", "-w", "get"]).log_bytes();
        let updates = parse(&["-w", "load", "-w", "update"]).log_bytes();
        assert_eq!(reads, 40_000_000);
        assert_eq!(updates, 40_000_000 + 44_000_000);
    }
}
