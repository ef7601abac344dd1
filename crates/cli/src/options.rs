//! Checks which options of the store a command accepts. A command refuses `--keyspace` and `--read-only` where it would
//! otherwise ignore them silently.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use crate::args::{Command, StoreArgs};
use crate::failure::Failure;

/// The options of the store that a command line gives, by the names of their fields.
pub fn given(matches: &ArgMatches) -> Vec<String> {
    let all = StoreArgs::augment_args(clap::Command::new("store"));
    let names = all.get_arguments().map(|argument| argument.get_id().to_string());
    names.filter(|name| matches.value_source(name) == Some(ValueSource::CommandLine)).collect()
}

/// Refuses options that have no meaning for this command.
pub fn ensure_meant(command: &Command, given: &[String]) -> Result<(), Failure> {
    given.iter().try_for_each(|option| refusal(command, option).map_or(Ok(()), |what| Err(Failure::Usage(what))))
}

/// Why this command does not accept this option; `None` if it does.
fn refusal(command: &Command, option: &str) -> Option<String> {
    let name = option.replace('_', "-");
    match option {
        _ if matches!(command, Command::Bench(_)) => Some(format!(
            "--{name} is for commands on a store that you name, but bench creates its own; give options of a measurement after its name: \
             `hither bench run --json`"
        )),
        "keyspace" if is_about_all_keyspaces(command) => Some(
            "--keyspace is for commands on one keyspace: check, del, drop, dump, get, load, put, scan and stat; leave it out, because this command acts on all keyspaces"
                .into(),
        ),
        "read_only" if !only_reads(command) => {
            Some("--read-only is for commands that only read: check, copy, dump, get, keyspaces, scan and stat".into())
        }
        "utilization" | "durability" if matches!(command, Command::Copy(_)) => {
            Some(format!("--{name} applies while a store is written, but copy only reads the old store and makes the new one durable at its end; leave it out"))
        }
        _ => None,
    }
}

/// Whether a command acts on every keyspace even if one is named. (`doctor` looks at none, and accepts the options of
/// any command.)
fn is_about_all_keyspaces(command: &Command) -> bool {
    use Command::{Bench, Check, Compact, Copy, Del, Doctor, Drop, Dump, Get, Keyspaces, Load, Put, Scan, Serve, Stat};
    match command {
        Load(_) | Dump(_) | Get(_) | Put(_) | Del(_) | Scan(_) | Drop(_) | Check | Stat | Doctor => false,
        Compact(_) | Copy(_) | Keyspaces | Serve(_) | Bench(_) => true,
    }
}

/// Whether a command changes nothing, not even by a file that it removes again.
fn only_reads(command: &Command) -> bool {
    use Command::{Bench, Check, Compact, Copy, Del, Doctor, Drop, Dump, Get, Keyspaces, Load, Put, Scan, Serve, Stat};
    match command {
        Check | Copy(_) | Dump(_) | Get(_) | Keyspaces | Scan(_) | Stat => true,
        Load(_) | Put(_) | Del(_) | Compact(_) | Drop(_) | Doctor | Serve(_) | Bench(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::{CommandFactory, FromArgMatches};

    #[test]
    fn what_was_given_is_found_on_both_sides_of_the_command() {
        let given = |line: &str| given(&Cli::command().get_matches_from(line.split(' ')));
        assert!(given("hither get k").is_empty(), "defaults were not given");
        assert_eq!(given("hither --durability sync get k --read-only"), ["durability", "read_only"]);
        assert_eq!(given("hither --json bench run --json --data x"), ["json"]);
    }

    #[test]
    fn every_command_takes_what_it_looks_at() {
        // Whether it accepts --keyspace, and --read-only.
        for (line, keyspace, read_only) in [
            ("load", true, false),
            ("dump", true, true),
            ("get k", true, true),
            ("put k v", true, false),
            ("del k", true, false),
            ("scan", true, true),
            ("check", true, true),
            ("stat", true, true),
            ("compact", false, false),
            ("copy d", false, true),
            ("keyspaces", false, true),
            ("drop k", true, false),
            ("doctor", true, false),
            ("serve", false, false),
            ("bench", false, false),
        ] {
            let matches = Cli::command().get_matches_from(["hither"].into_iter().chain(line.split(' ')));
            let command = Cli::from_arg_matches(&matches).unwrap().command;
            let takes = |option: &str| ensure_meant(&command, &[option.to_owned()]).is_ok();
            assert_eq!((takes("keyspace"), takes("read_only")), (keyspace, read_only), "{line}");
            assert_eq!(takes("utilization") && takes("durability"), !matches!(line, "copy d" | "bench"), "{line}");
            assert_eq!(takes("json") && takes("data"), line != "bench", "{line}");
        }
    }
}
