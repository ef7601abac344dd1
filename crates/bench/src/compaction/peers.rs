//! The same overwrites on other stores, to show the space that they use.
//!
//! Peers run at process durability, after the cases. Whether they can run at all is known before: a mistake on the
//! command line must not cost the cases.
//!
//! Thread safety: one process at a time.

use std::ffi::OsString;

use serde_json::Value;

use super::{COLUMNS, CompactionArgs};
use crate::figures::process::{Runner, find_peers};
use crate::harness::record::Record;
use crate::report::experiment::Report;
use crate::target::{Error, Result};
use crate::workload::{Distribution, Workload, etc};

/// The stores that have process durability.
const PEERS: [&str; 3] = ["lmdb", "rocksdb", "fjall"];

/// The runner of the requested peers, if there are any.
///
/// # Errors
/// A peer that cannot run, or peers that are not built.
pub(super) fn runner(args: &CompactionArgs, prefix: &[OsString]) -> Result<Option<Runner>> {
    for peer in &args.peer {
        check(peer)?;
    }
    if args.peer.is_empty() {
        return Ok(None);
    }
    let here = std::env::current_dir().map_err(|e| Error::io("finding the current directory", e))?;
    let runner = Runner::new(prefix, find_peers(&here))?;
    if !runner.has_peers() {
        let how = "cargo build --release --manifest-path crates/bench-peers/Cargo.toml";
        return Err(Error::Config(format!("the peers are not built: {how}")));
    }
    Ok(Some(runner))
}

fn check(peer: &str) -> Result<()> {
    if PEERS.contains(&peer) {
        return Ok(());
    }
    let others = PEERS.join(", ");
    Err(Error::Config(match peer {
        "redb" => format!("redb has no process durability, at which peers run here; there are {others}"),
        _ => format!("no peer is called {peer}; there are {others}"),
    }))
}

/// Adds a row for each peer and workload: the space that the peer uses after as many overwrites. A peer that fails gets
/// a row with a note.
///
/// # Errors
/// Wrong data, after all rows.
pub(super) fn measure(args: &CompactionArgs, runner: Option<&mut Runner>, report: &mut Report) -> Result<()> {
    let (Some(runner), mut wrong) = (runner, None) else { return Ok(()) };
    for peer in &args.peer {
        for workload in args.workloads() {
            match measured(args, runner, peer, &workload) {
                Ok(record) => report.push(row(args, peer, &workload, Some(&record), "process durability".into())),
                Err(error) => {
                    eprintln!("  {peer}: {error}");
                    report.push(row(args, peer, &workload, None, error.to_string()));
                    wrong = wrong.or(matches!(error, Error::WrongData(_)).then_some(error));
                }
            }
        }
    }
    wrong.map_or(Ok(()), Err)
}

fn measured(args: &CompactionArgs, runner: &mut Runner, peer: &str, workload: &Workload) -> Result<Record> {
    eprintln!("{peer} {workload}, {} keys", args.keys());
    let request = format!(
        "--keys {} --ops {} --threads {} --value-bytes {} --medium dax --durability process",
        args.keys(),
        args.ops(),
        args.threads,
        value_bytes(args)
    );
    let record = runner.peer(peer, &request, &["load-batch=1000", &workload.to_string()])?.pop();
    record.ok_or_else(|| Error::Process(format!("{peer} gave no record")))
}

fn value_bytes(args: &CompactionArgs) -> usize {
    args.value_bytes.first().copied().unwrap_or(8)
}

fn row(args: &CompactionArgs, peer: &str, workload: &Workload, record: Option<&Record>, note: String) -> Vec<Value> {
    let fixed = (workload.distribution != Distribution::Etc).then_some(value_bytes(args));
    let pair = 8.0 + fixed.map_or_else(|| etc::mean_value_bytes(args.keys()), |bytes| bytes as f64);
    let mut row = vec![Value::Null; COLUMNS.len()];
    let mut set = |name: &str, value: Value| COLUMNS.iter().position(|column| *column == name).map(|at| row[at] = value);
    set("store", peer.into());
    set("workload", workload.to_string().into());
    set("writers", args.threads.into());
    set("keys", args.keys().into());
    set("value_bytes", fixed.into());
    if let Some(record) = record {
        set("mops", (record.ops_per_s / 1e6).into());
        set("p50_us", record.p50_us.into());
        set("p99_us", record.p99_us.into());
        set("p999_us", record.p999_us.into());
        set("p9999_us", record.p9999_us.into());
        set("max_us", record.max_us.into());
        set("space_amplification", record.disk_bytes_per_key.map(|disk| disk / pair).into());
    }
    set("note", note.into());
    row
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;
    use crate::harness::machine::Machine;

    #[test]
    fn peers_that_are_not_built_are_an_error_with_the_remedy() {
        let args = CompactionArgs { peer: vec!["no-such-store".into()], ..parse("--keys 10000") };
        assert!(runner(&args, &[]).is_err());
        assert!(runner(&parse("--keys 10000"), &[]).expect("nothing is wanted").is_none());
    }

    /// Regression: redb was refused by its program, after all cases, and with their rows.
    #[test]
    fn a_store_without_process_durability_is_refused_before_the_cases() {
        let refused = |peer: &str| check(peer).expect_err("refused").to_string();
        assert!(refused("redb").contains("no process durability") && refused("redb").contains("lmdb, rocksdb, fjall"));
        assert!(refused("sqlite").contains("no peer is called sqlite"));
        assert!(PEERS.iter().all(|peer| check(peer).is_ok()));
    }

    /// Regression: a peer that failed took the rows of all cases with it.
    #[test]
    fn a_peer_that_fails_is_a_row_with_a_note() {
        let record = Record { ops_per_s: 5e6, machine: Machine::here(), ..Record::default() };
        let measured = |first: &str| {
            let mut report = Report { columns: COLUMNS.into(), ..Report::default() };
            let args = CompactionArgs { peer: vec!["lmdb".into(), "fjall".into()], ..parse("--keys 10000 -w update:uniform") };
            let mut runner = Runner::of_script(&Runner::script_of(first, &record));
            let outcome = measure(&args, Some(&mut runner), &mut report);
            let last = |row: &Vec<Value>| row.last().and_then(Value::as_str).expect("a note").to_owned();
            (outcome, report.rows.iter().map(last).collect::<Vec<_>>())
        };
        let (outcome, notes) = measured("case \"$*\" in *lmdb*) echo no room >&2; exit 3;; esac");
        assert!(outcome.is_ok() && notes[0].contains("no room") && notes[1] == "process durability", "{notes:?}");
        let (outcome, notes) = measured("case \"$*\" in *lmdb*) echo wrong data: key 7 >&2; exit 1;; esac");
        assert!(matches!(outcome, Err(Error::WrongData(_))) && notes.len() == 2 && notes[0].contains("key 7"), "{notes:?}");
    }
}
