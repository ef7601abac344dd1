//! One file per command.

mod bench;
mod check;
mod compact;
mod copy;
mod del;
mod doctor;
mod drop;
mod dump;
mod get;
mod keyspaces;
mod load;
mod put;
mod scan;
mod serve;
mod stat;

use crate::args::{Cli, Command};
use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Runs a command.
pub fn run(cli: Cli, out: &mut Output) -> Result<Outcome, Failure> {
    let store = &cli.store;
    match cli.command {
        Command::Load(args) => load::run(store, args, out),
        Command::Dump(args) => dump::run(store, &args, out),
        Command::Get(args) => get::run(store, args, out),
        Command::Put(args) => put::run(store, args, out),
        Command::Del(args) => del::run(store, args, out),
        Command::Scan(args) => scan::run(store, args, out),
        Command::Check => check::run(store, out),
        Command::Stat => stat::run(store, out),
        Command::Compact(args) => compact::run(store, &args, out),
        Command::Copy(args) => copy::run(store, &args, out),
        Command::Keyspaces => keyspaces::run(store, out),
        Command::Drop(args) => drop::run(store, &args, out),
        Command::Doctor => doctor::run(store, out),
        Command::Serve(args) => Ok(serve::run(store, *args)),
        Command::Bench(args) => Ok(bench::run(args)),
    }
}
