//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use hither::Durability;

use crate::output::Form;
use crate::units;

const AFTER_HELP: &str = "\
Exit status: 0 done, found or sound; 1 not found or not sound; 2 wrong use or a bad input line; 3 input/output or other failure;
4 damaged, foreign or newer format; 5 locked by another process; 6 store or disk full; 7 no store, or a pool missing; 8 failed sync.";

const SALVAGE_HELP: &str = "\
Open a damaged store with the data that is readable; unreadable data is left out and named on standard error.
Commands that only read then change no byte of the store, as with --read-only. Commands that write continue from the
readable data and remove the checkpoint; the damage stays where it is, so every later opening needs --salvage, too.
`hither copy --salvage` makes a sound store of the readable data, `hither dump --salvage` saves one keyspace.
Where the newest entry of a key is damaged, an older one counts: the key may have an older value, or exist although it
was deleted.";

/// A key-value store that keeps every byte near the thread that needs it, and loses nothing that it acknowledged.
#[derive(Debug, Parser)]
#[command(name = "hither", version, after_help = AFTER_HELP, max_term_width = 120)]
pub struct Cli {
    /// Which store, and how it is opened.
    #[command(flatten)]
    pub store: StoreArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command: which store, and how it is opened.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Store")]
pub struct StoreArgs {
    /// Directory of the store, or nodeN=DIR once for each node. Default: the environment variable HITHER_DATA
    /// (separated by colons)
    #[arg(long, value_name = "[nodeN=]DIR", global = true)]
    pub data: Vec<OsString>,
    /// Keyspace, for del, dump, get, load, put and scan [default: default]; check and stat require that it exists
    #[arg(long, value_name = "NAME", global = true)]
    pub keyspace: Option<String>,
    /// Print JSON for programs: one document, or one per line; with serve, log in JSON. Bytes that are not UTF-8 are
    /// written as {"base64": "…"}
    #[arg(long, global = true)]
    pub json: bool,
    /// What a durable write survives: sync (a power loss), interval:MS (a power loss, except for the last MS milliseconds and a sync),
    /// process (a crash of the program)
    #[arg(long, value_name = "LEVEL", global = true, value_parser = units::durability, default_value = "sync")]
    pub durability: Durability,
    /// Medium to assume for the store's directories. With copy, for those of the old store: the medium of the new one
    /// is detected
    #[arg(long, value_enum, global = true, default_value = "auto")]
    pub medium: Medium,
    /// Change no byte of the store; others may read it at the same time. For check, copy, dump, get, keyspaces, scan
    /// and stat
    #[arg(long, global = true)]
    pub read_only: bool,
    /// Open a damaged store with the data that is readable; unreadable data is left out and named on standard error
    #[arg(long, global = true, long_help = SALVAGE_HELP)]
    pub salvage: bool,
    /// When to take checkpoints of the indexes, for a fast restart: auto, off, or whenever this much was written, such
    /// as 256M
    #[arg(long, value_name = "WHEN", global = true, value_parser = units::checkpoints, default_value = "auto")]
    pub checkpoints: hither::CheckpointMode,
    /// Size of a new store, such as 64M, 1G or 1GiB; at least 64K [default: 64M, or --max-capacity if that is less]
    #[arg(long, value_name = "SIZE", global = true, value_parser = units::store_size)]
    pub capacity: Option<u64>,
    /// How far a new store may grow [default: 64G, or the capacity if that is larger]
    #[arg(long, value_name = "SIZE", global = true, value_parser = units::store_size)]
    pub max_capacity: Option<u64>,
    /// Limit of live data while this command runs, in per cent of what the store may grow to, 1 to 95 [default: what
    /// fits]
    #[arg(long, value_name = "PERCENT", global = true, value_parser = clap::value_parser!(u32).range(1..=95))]
    pub utilization: Option<u32>,
    /// Whether standard error is the log of a server.
    #[arg(skip)]
    pub logs: bool,
    /// Whether `serve` creates a store that does not exist; it does if this is absent.
    #[arg(skip)]
    pub create: Option<bool>,
    /// How long a write waits for space; the library's default if absent.
    #[arg(skip)]
    pub space_patience: Option<std::time::Duration>,
    /// Bytes of the cache of entries; the library's default if absent.
    #[arg(skip)]
    pub cache_bytes: Option<u64>,
}

impl StoreArgs {
    /// The name of the keyspace: that of the option, or the default.
    pub fn keyspace(&self) -> &str {
        self.keyspace.as_deref().unwrap_or("default")
    }

    /// The form in which notes and warnings go to standard error.
    pub fn form(&self) -> Form {
        match (self.logs, self.json) {
            (true, _) => Form::Log,
            (false, true) => Form::Json,
            (false, false) => Form::Text,
        }
    }
}

/// The medium to assume for a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Medium {
    /// Detect the medium
    Auto,
    /// Treat tmpfs as persistent memory, with flushes and fences
    ForcedDax,
    /// Treat it as an ordinary file system, with syncs
    File,
    /// Treat it as volatile memory: no syncs, no data survives a power loss
    Volatile,
}

/// How a new keyspace is organised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Keys in order: ranges and prefixes
    Ordered,
    /// Point access only, less memory
    Hash,
}

/// Format of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Key, tab, value; one record per line; \t \n \r \\ \xHH stand for bytes
    Kv,
    /// Comma-separated with a header line; the value is a JSON object of the other columns
    Csv,
    /// One JSON object per line; the value is the whole line
    Jsonl,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load records from a file or standard input
    Load(LoadArgs),
    /// Write every record in the kv format, in key order, from one snapshot
    Dump(DumpArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Store a value
    Put(PutArgs),
    /// Delete a key, or those of a range
    Del(DelArgs),
    /// Print the records of a range: key, tab, value
    Scan(ScanArgs),
    /// Verify every checksum, reference and count
    Check,
    /// Show space, utilisation, garbage, shards and the durability domain
    Stat,
    /// Reclaim the space of all garbage now
    Compact(CompactArgs),
    /// Copy all keyspaces, as of one snapshot, into a new store: for a backup, or to change limits
    Copy(CopyArgs),
    /// List the keyspaces
    Keyspaces,
    /// Remove a keyspace with all its keys
    Drop(DropArgs),
    /// Show what this machine and directory offer: nodes, medium, flush instruction, persistence domain, huge pages
    Doctor,
    /// Serve the store to Redis clients
    Serve(Box<crate::serve_config::ServeArgs>),
    /// Run benchmarks; see `hither bench --help`
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
}

/// `load`
#[derive(Debug, Args)]
#[command(after_help = "\
Reports: each `durable N` on standard output (--json: {\"durable\":N}) says that the first N records of the input are durable at the chosen level.
A later record of the same key wins, so an interrupted load can be started again with the same input and ends in the same store:
  --skip N    skips the first N records: give the N of the last report
  --resume    compares from the start and writes only records that differ; a key that occurs several times in the input may show an
              earlier one of its values again until the load has passed the key's last record")]
pub struct LoadArgs {
    /// Format of the input; default by the file's name (.csv, .jsonl, .ndjson), otherwise kv
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Column (csv, default the first) or field (jsonl, required) that holds the key
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// Kind of the keyspace if it is new [default: ordered]
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Skip records that are already in the store with the same value and expiry
    #[arg(long)]
    pub resume: bool,
    /// Skip the first N records
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Leave out bad lines and count them, instead of stopping at the first one
    #[arg(long)]
    pub skip_bad: bool,
    /// kv: take all bytes literally, including backslashes, carriage returns and a byte order mark
    #[arg(long)]
    pub raw: bool,
    /// Number of threads that write [default: one per processor, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Write and report at most N records together
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub group: u32,
    /// Input file; - is standard input
    #[arg(default_value = "-")]
    pub file: PathBuf,
}

/// `dump`
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Output file; - is standard output. The file appears only when it is complete
    #[arg(default_value = "-")]
    pub file: PathBuf,
}

/// `get`
#[derive(Debug, Args)]
pub struct GetArgs {
    /// The key
    #[command(flatten)]
    pub key: KeyArgs,
    /// Write exactly the bytes of the value, without escapes and newline
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
}

/// A key
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The key; one that begins with a hyphen and is not a number must stand after --
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// Decode \t \n \r \\ \xHH in keys and values on the command line
    #[arg(long)]
    pub escape: bool,
}

/// `put`
#[derive(Debug, Args)]
pub struct PutArgs {
    /// The key
    #[command(flatten)]
    pub key: KeyArgs,
    /// The value; - reads it from standard input. A value that begins with a hyphen and is not a number must stand
    /// after --
    #[arg(allow_negative_numbers = true)]
    pub value: OsString,
    /// Expire the record after this time: a whole number with a unit, such as 500ms, 30s, 5m, 2h or 7d; without a unit,
    /// seconds
    #[arg(long, value_name = "TIME", value_parser = units::time_to_live)]
    pub ttl: Option<Duration>,
}

/// A range of keys.
#[derive(Debug, Args)]
#[group(id = "range", multiple = true)]
pub struct RangeArgs {
    /// Only keys that begin with P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub prefix: Option<OsString>,
    /// First key of the range
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub from: Option<OsString>,
    /// End of the range: the first key that is not in it
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub to: Option<OsString>,
}

/// `del`
#[derive(Debug, Args)]
pub struct DelArgs {
    /// The key
    #[arg(required_unless_present = "range", conflicts_with = "range", allow_negative_numbers = true)]
    pub key: Option<OsString>,
    /// The range of keys, of an ordered keyspace
    #[command(flatten)]
    pub range: RangeArgs,
    /// Decode \t \n \r \\ \xHH in keys on the command line
    #[arg(long)]
    pub escape: bool,
}

/// `scan`
#[derive(Debug, Args)]
pub struct ScanArgs {
    /// Which keys
    #[command(flatten)]
    pub range: RangeArgs,
    /// Print records from the last to the first
    #[arg(long)]
    pub reverse: bool,
    /// Print at most N records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Decode \t \n \r \\ \xHH in --prefix, --from and --to
    #[arg(long)]
    pub escape: bool,
    /// Write keys and values as they are, without escapes
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
}

/// `compact`
#[derive(Debug, Args)]
pub struct CompactArgs {
    /// Empty segments of which at least PERCENT is garbage; a lower value frees more space and moves more data
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub garbage: u8,
}

/// `copy`
#[derive(Debug, Args)]
#[command(after_help = "\
--data, --medium, --read-only and --salvage apply to the old store, --capacity and --max-capacity to the new one, --checkpoints to
both; --durability and --utilization are refused. Without --max-capacity the new store may grow as far as the old one. Its medium
is detected, whatever --medium says. With --salvage the new store is sound and has the readable data of the old one, which is not
changed. The new store appears in its place when it is complete and synced; a copy that is killed leaves a directory DIR.PID.N.part
(DIR/copy.PID.N.part if DIR existed), which may be removed.")]
pub struct CopyArgs {
    /// Directory of the new store, which must not hold a store yet; or nodeN=DIR, once for each node
    #[arg(required = true, value_name = "[nodeN=]DIR")]
    pub to: Vec<OsString>,
}

/// `drop`
#[derive(Debug, Args)]
pub struct DropArgs {
    /// The keyspace
    pub name: String,
}

/// `bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Arguments of the benchmark program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_the_store_may_stand_before_or_after_the_command() {
        for line in ["hither --data /x --json get k", "hither get k --data /x --json"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(cli.store.data, ["/x"]);
            assert!(cli.store.json);
        }
        let cli = Cli::try_parse_from("hither scan --data node0=/a --data node1=/b --capacity 64M".split(' ')).unwrap();
        assert_eq!((cli.store.data.len(), cli.store.capacity), (2, Some(64 << 20)));
    }

    #[test]
    fn wrong_use_is_refused() {
        for line in ["hither", "hither get", "hither load --threads 0", "hither get k --medium disk", "hither stat --capacity many"] {
            assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_value_may_begin_with_a_hyphen() {
        let cli = Cli::try_parse_from(["hither", "put", "k", "-5"]).unwrap();
        assert!(matches!(cli.command, Command::Put(put) if put.value == "-5"));
    }
}
