//! The `hither` program: load, query, check and measure a store from the command line.
//!
//! [`cmd`] has one file per command, [`input`] the formats of records, [`escape`] the escape of binary text. Output for
//! people goes to a terminal as text; `--json` gives programs one JSON document per command, or one per line. Errors go
//! to standard error and state what happened, where, and what to do.
//!
//! # Exit status
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done, or found, or sound; also when the reader of standard output went away before that was known |
//! | 1 | the key or keyspace is not there, or the store is not sound |
//! | 2 | wrong use: arguments, a bad input line, a key or value beyond its limits, a range over a hash keyspace |
//! | 3 | input or output failed, or any failure that has no row of its own |
//! | 4 | the store is damaged, of a newer format, or not a store |
//! | 5 | the store is locked by another process |
//! | 6 | the store or the disk is full |
//! | 7 | there is no store in the directory, or one of its pools is missing or belongs to another store |
//! | 8 | a sync failed: the store is read-only until it is opened again |
#![forbid(unsafe_code)]

pub mod args;
pub mod cmd;
pub mod escape;
pub mod failure;
pub mod input;
pub mod notify;
pub mod options;
pub mod output;
pub mod range;
pub mod serve_config;
pub mod stdin;
pub mod store;
pub mod units;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Cli;
use clap::{CommandFactory, FromArgMatches};
use failure::{Failure, Outcome};
use output::Output;

/// Runs one command line and returns its exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let (cli, given) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(refused) if refused.use_stderr() && asks_for_json(&arguments) => return finish(Err(usage(&refused)), true),
        Err(refused) => {
            // Printing fails only when nobody reads; the status reports the refusal all the same.
            let _ = refused.print();
            return ExitCode::from(u8::try_from(refused.exit_code()).unwrap_or(2));
        }
    };
    let json = cli.store.json;
    let mut out = Output::new(json);
    let meant = options::ensure_meant(&cli.command, &given);
    let result = meant.and_then(|()| cmd::run(cli, &mut out)).and_then(|outcome| told(outcome, out.flush()));
    finish(result, json)
}

/// Parses a command line. Also returns the options of the store that it gives.
fn parse(arguments: &[OsString]) -> Result<(Cli, Vec<String>), clap::Error> {
    let matches = Cli::command().try_get_matches_from(arguments)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
    Ok((cli, options::given(&matches)))
}

/// Returns the outcome of a command, given whether its output could be written. If nobody reads the output, the outcome
/// stays: the status reports it, too.
pub(crate) fn told(outcome: Outcome, written: Result<(), Failure>) -> Result<Outcome, Failure> {
    match written {
        Ok(()) | Err(Failure::ClosedPipe) => Ok(outcome),
        Err(failure) => Err(failure),
    }
}

/// Whether a command line that cannot be parsed asks for output for programs.
fn asks_for_json(arguments: &[OsString]) -> bool {
    arguments.iter().skip(1).take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// The error of a command line, in one line: without the usage, which is for people.
fn usage(refused: &clap::Error) -> Failure {
    let text = refused.to_string();
    let what = text.split("\nUsage:").next().unwrap_or(&text).split("\n\nFor more").next().unwrap_or(&text);
    let parts = what.strip_prefix("error: ").unwrap_or(what).split("\n\n");
    let parts: Vec<String> =
        parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|part| !part.is_empty()).collect();
    Failure::Usage(parts.join("; "))
}

fn finish(result: Result<Outcome, Failure>, json: bool) -> ExitCode {
    match result {
        Ok(outcome) => outcome.exit_code(),
        Err(failure) => {
            if !matches!(failure, Failure::ClosedPipe) {
                output::error(&failure, json);
            }
            ExitCode::from(failure.status())
        }
    }
}
