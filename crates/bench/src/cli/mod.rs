//! The commands: `run`, `figures`, `nstore`, `compaction`, `report`, `yardstick`.
//!
//! [`main_with_prefix`] is the whole program, so that `hither bench …` can run the same. Exit status: 0 done (figures:
//! every row meets its demand), 1 a figure is short or the data is wrong, 2 wrong use, 3 a failure.

use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::compaction::{self, CompactionArgs};
use crate::figures::args::FiguresArgs;
use crate::figures::compaction as compaction_figures;
use crate::figures::engine;
use crate::figures::kill::KillSpec;
use crate::figures::nstore as nstore_figures;
use crate::figures::restart::{self, RestartArgs};
use crate::figures::server as server_figures;
use crate::harness::record::{Record, read_lines, write_lines};
use crate::harness::scratch;
use crate::harness::script::run_script;
use crate::harness::spec::{MOST_THREADS, RunSpec};
use crate::nstore::{self, NstoreArgs};
use crate::report::{count, html, markdown};
use crate::target::map::MapTarget;
use crate::target::store::{Index, StoreTarget};
use crate::target::{Error, Result};
use crate::workload::Kind;
use crate::workload::stream::{Place, generation_ns};
use crate::yardstick::measure::Request;

/// Benchmarks of hither.
#[derive(Debug, Parser)]
#[command(name = "hither-bench", version, about = "Benchmarks of hither: workloads, yardsticks, figures, reports")]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure workloads on a store
    Run(RunArgs),
    /// Measure the table of demands, which are targets that the project set itself; exit status 1 if a row is short
    Figures(FiguresArgs),
    /// Run an experiment of the NStore paper
    Nstore(NstoreArgs),
    /// Overwrite a store that is nearly full
    Compaction(Box<CompactionArgs>),
    /// Measure a restart after a crash: by a full scan, and from a checkpoint
    Restart(RestartArgs),
    /// Make a report from a file of records
    Report(ReportArgs),
    /// Measure what the machine can do
    Yardstick(YardstickArgs),
    /// Load a store, print that it is loaded and wait to be killed
    #[command(hide = true)]
    Leave(KillSpec),
    /// Open a store that was killed
    #[command(hide = true)]
    Recover(KillSpec),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Store {
    HitherHash,
    /// hither, ordered keyspace with the learned index
    HitherLearned,
    HitherOrdered,
    YardstickMap,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The store to measure
    #[arg(long, value_enum, default_value_t = Store::HitherOrdered)]
    store: Store,
    /// Prints a JSON record per workload
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    spec: RunSpec,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// Files of records, a JSON object per line
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Writes a page with charts to this file
    #[arg(long)]
    html: Option<PathBuf>,
    /// The page's heading
    #[arg(long, default_value = "hither: measurements")]
    heading: String,
}

#[derive(Debug, Args)]
struct YardstickArgs {
    /// Threads
    #[arg(long, short = 't', default_value_t = 2)]
    threads: usize,
    /// Keys in the map
    #[arg(long, default_value_t = 5_000_000)]
    keys: u64,
    /// Seconds of the append limit; 0 leaves it out
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Gets of each distribution; 0 leaves the map out
    #[arg(long, default_value_t = 10_000_000)]
    gets: u64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The program; the first argument is its name. Commands of this program that it starts itself get the words of
/// `prefix` in front: `bench` in `hither bench`.
pub fn main_with_prefix<I, A>(prefix: &[&str], args: I) -> ExitCode
where
    I: IntoIterator<Item = A>,
    A: Into<OsString> + Clone,
{
    let program = match Program::try_parse_from(args) {
        Ok(program) => program,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let prefix: Vec<OsString> = prefix.iter().map(OsString::from).collect();
    match execute(program.command, &prefix) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("hither-bench: {error}");
            exit_code(&error)
        }
    }
}

/// The exit status of an error.
pub fn exit_code(error: &Error) -> ExitCode {
    ExitCode::from(match error {
        Error::WrongData(_) => 1,
        Error::Config(_) | Error::Unsupported { .. } => 2,
        _ => 3,
    })
}

fn execute(command: Command, prefix: &[OsString]) -> Result<bool> {
    match command {
        Command::Run(args) => run(&args).map(|()| true),
        Command::Figures(args) => figures(&args, prefix),
        Command::Nstore(args) => nstore::run(&args, prefix).map(|()| true),
        Command::Compaction(args) => compaction::run(&args, prefix).map(|()| true),
        Command::Restart(args) => restart::run(&args, prefix, say).map(|()| true),
        Command::Report(args) => report(&args).map(|()| true),
        Command::Yardstick(args) => yardstick(&args).map(|()| true),
        Command::Leave(args) => args.leave().map(|()| true),
        Command::Recover(args) => args.recover().and_then(|found| say(&to_json(&found)?)).map(|()| true),
    }
}

fn figures(args: &FiguresArgs, prefix: &[OsString]) -> Result<bool> {
    args.check()?;
    // Processes that measure do this, too, but what they say is shown only if they fail.
    scratch::sweep(Path::new("/dev/shm"));
    scratch::sweep(&args.disk.clone().unwrap_or_else(std::env::temp_dir));
    match args.table.as_str() {
        "compaction" => compaction_figures::run(args, prefix),
        "nstore" => nstore_figures::run(args, prefix),
        "server" => server_figures::run(args, prefix),
        _ => engine::run(args, prefix),
    }
}

fn run(args: &RunArgs) -> Result<()> {
    let spec = &args.spec;
    let store = |index| run_script(spec, Kind::Load, |directory| StoreTarget::create(spec, index, directory));
    let records = match args.store {
        Store::HitherHash => store(Index::Hash),
        Store::HitherLearned => store(Index::Learned),
        Store::HitherOrdered => store(Index::Ordered),
        Store::YardstickMap => run_script(spec, Kind::Load, |_| Ok(MapTarget::new(spec.keys))),
    }?;
    print_records(&records, args.json)
}

/// Prints records as JSON lines or as a table with the settings.
pub fn print_records(records: &[Record], json: bool) -> Result<()> {
    if json {
        return write_lines(records, std::io::stdout().lock());
    }
    say(&markdown(records))?;
    let settings = records.first().map_or(String::new(), |r| {
        let each: Vec<String> = r.settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        format!("Settings of {}: {}.", r.store, each.join("; "))
    });
    say(&settings)
}

fn report(args: &ReportArgs) -> Result<()> {
    let mut records = Vec::new();
    for path in &args.files {
        let file = std::fs::File::open(path).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
        records.extend(read_lines(BufReader::new(file))?);
    }
    match &args.html {
        Some(path) => std::fs::write(path, html(&records, &args.heading)).map_err(|e| Error::io(format!("writing {}", path.display()), e)),
        None => say(&markdown(&records)),
    }
}

fn yardstick(args: &YardstickArgs) -> Result<()> {
    if !(1..=MOST_THREADS).contains(&args.threads) || args.keys == 0 || !(0.0..=3600.0).contains(&args.seconds) {
        return Err(Error::Config(format!("threads must be 1 to {MOST_THREADS}, keys at least 1, seconds 0 to 3600")));
    }
    let request = Request { threads: args.threads, keys: args.keys, append_seconds: args.seconds, gets: args.gets };
    let found = request.run()?;
    if args.json {
        return say(&to_json(&found)?);
    }
    let show = |name: &str, value: Option<f64>| value.map_or(Ok(()), |value| say(&format!("{name}: {}/s", count(value))));
    show("append limit", found.append)?;
    if found.append_on_huge_pages == Some(false) {
        say("(the append limit ran on small pages: the kernel refused huge ones on /dev/shm)")?;
    }
    show("map get uniform", found.map_uniform)?;
    show("map get Zipf 0.99", found.map_zipf)?;
    if found.map_on_huge_pages == Some(false) {
        say("(the map was on small pages: the kernel refused huge ones)")?;
    }
    let place = Place { keys: args.keys, threads: 1, thread: 0, inserted: 0, seed: 1 };
    for workload in ["load", "get:uniform", "get:zipf", "delete"] {
        let workload = workload.parse().expect("a valid workload");
        say(&format!("stream of {workload}: {:.2} ns per operation in the measured loop", generation_ns(&workload, &place, 2_000_000)))?;
    }
    Ok(())
}

fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Config(format!("a result that cannot be written: {e}")))
}

fn say(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        // A reader that closed the pipe has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|e| Error::io("printing", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn wrong_use_is_status_two() {
        let code = |args: &[&str]| format!("{:?}", main_with_prefix(&[], ["hither-bench"].iter().chain(args)));
        let expected = |n: u8| format!("{:?}", ExitCode::from(n));
        assert_eq!(code(&["run", "--workload", "nonsense"]), expected(2));
        assert_eq!(code(&["figures", "--only", "no-such-row"]), expected(2));
        assert_eq!(code(&["figures", "nstore", "--only", "no-such-row"]), expected(2));
        assert_eq!(code(&["figures", "compaction", "--only", "no-such-row"]), expected(2));
        assert_eq!(code(&["figures", "server", "--only", "no-such-row"]), expected(2));
        // Rows on files must be measured on a disk.
        assert_eq!(code(&["figures", "--only", "file-sync", "--disk", "/dev/shm"]), expected(2));
        assert_eq!(code(&["figures", "server", "--only", "file-set", "--disk", "/dev/shm"]), expected(2));
        assert_eq!(code(&["nstore", "accesses", "--nodes", "17"]), expected(2));
        assert_eq!(code(&["nstore", "shards", "--threads", "0"]), expected(2));
        assert_eq!(code(&["compaction", "--utilization", "99"]), expected(2));
        assert_eq!(code(&["yardstick", "--threads", "0"]), expected(2));
        assert_eq!(code(&["report", "/nowhere/at/all"]), expected(3));
        assert_eq!(code(&["--help"]), expected(0));
        // Regression: the option of another table was ignored, and the measurement began.
        assert_eq!(code(&["figures", "compaction", "--records", "f", "--only", "latency-90-us"]), expected(2));
    }
}
