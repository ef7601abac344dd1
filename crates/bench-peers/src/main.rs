//! The benchmark's workloads on other stores: LMDB, redb, fjall and RocksDB, each at the requested durability.
//!
//! The command line has the options of `hither-bench run`; the loops, the data and the checks are the same code. A
//! store without a level equal to the requested one refuses, rather than run at another level. The settings that
//! determine the meaning of a figure stand in every record and are printed with the table.
//!
//! `unsafe` is needed for RocksDB's C interface (`rocksdb`) and for opening LMDB's memory map (`lmdb`).

mod fjall;
mod lmdb;
mod redb;
mod rocksdb;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use hither_bench::cli::{exit_code, print_records};
use hither_bench::harness::script::run_script;
use hither_bench::harness::spec::{Durability, Medium, RunSpec, require_tmpfs};
use hither_bench::target::{Error, Result};
use hither_bench::workload::Kind;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Store {
    Lmdb,
    Redb,
    Fjall,
    Rocksdb,
}

/// Measures another store with hither's workloads.
#[derive(Debug, Parser)]
#[command(name = "hither-bench-peers", version)]
struct Program {
    /// The store to measure
    #[arg(long, value_enum)]
    store: Store,
    /// Prints a JSON record per workload
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    spec: RunSpec,
}

fn main() -> ExitCode {
    let program = Program::parse();
    match run(&program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hither-bench-peers: {error}");
            exit_code(&error)
        }
    }
}

fn run(program: &Program) -> Result<()> {
    let spec = &program.spec;
    // hither's persistent memory is simulated there; a peer's files would lie on a disk.
    if spec.medium == Medium::Dax {
        require_tmpfs(&spec.directory(), "--dir")?;
    }
    let preload = Kind::LoadBatch(1000);
    let records = match program.store {
        Store::Lmdb => run_script(spec, preload, |directory| lmdb::Lmdb::create(spec, directory)),
        Store::Redb => run_script(spec, preload, |directory| redb::Redb::create(spec, directory)),
        Store::Fjall => run_script(spec, preload, |directory| fjall::Fjall::create(spec, directory)),
        Store::Rocksdb => run_script(spec, preload, |directory| rocksdb::Rocks::create(spec, directory)),
    }?;
    print_records(&records, program.json)
}

/// True if each write must survive a power loss; the two levels of the peers are *sync* and *process*. On tmpfs (medium
/// dax) a peer's sync is the system call without a disk behind it, which its settings state.
fn wants_sync(store: &str, spec: &RunSpec) -> Result<bool> {
    if spec.medium == Medium::Volatile {
        return Err(Error::Config(format!("{store} has no volatile medium")));
    }
    match spec.durability {
        Durability::Sync => Ok(true),
        Durability::Process => Ok(false),
        Durability::Interval(time) => Err(Error::Config(format!("{store} has no durability after {} ms", Duration::as_millis(&time)))),
    }
}

/// A setting: its name and its value.
fn setting(name: &str, value: impl Into<String>) -> (String, String) {
    (name.into(), value.into())
}
