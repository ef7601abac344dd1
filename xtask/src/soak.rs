//! `cargo xtask soak`: the long campaign, to be run before a piece of work is called finished.
//!
//! It never stops at a failure, because the report is worth most when something failed. The time is shared out among
//! the stages that can use any amount of it; the others take what they need.
//!
//! The report of a full run goes to `docs/measurements/soak-DATE.json`, or to `soak-DATE-2.json` and so on if that file
//! exists. The report of a quick or partial run goes to the build directory. It names date and commit as they were at
//! the beginning. A run has passed only if no stage failed, was skipped or was done in part. The stages that `--only`
//! leaves out are listed.

use crate::args::Args;
use crate::exec::{Step, Tally, repeat_for};
use crate::stage::{self, Done, Record, Selection, Stage};
use crate::workspace::{Metadata, root, target_dir};
use crate::{Failure, conformance, fuzz, guest, machine, setup, suites, variants};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The settings that the stages share.
pub struct Context {
    metadata: Metadata,
    /// Seconds that the elastic stages share.
    elastic_s: u64,
    minutes: u64,
    quick: bool,
    seed: u64,
    start: Start,
}

/// The circumstances at the beginning of the run, which hold for all of it: a run takes an hour or more, and the day
/// and the work tree may change meanwhile.
struct Start {
    date: String,
    commit: Option<String>,
    at: Instant,
}

/// Distance between the first seeds of two rounds. A round takes fewer consecutive seeds than that.
const SEEDS_OF_ROUND: u64 = 10_000_019;
const MINUTES: u64 = 75;
/// Minutes that the inelastic stages need: 50 kills, the thread sanitizer, the guest, and building.
const FIXED_MINUTES: u64 = 25;

const STAGES: &[Stage<Context>] = &[
    Stage { name: "explore", about: "crash exploration with new seeds", budget_s: 2400, run: explore },
    Stage { name: "histories", about: "long concurrent histories across crashes", budget_s: 1200, run: histories },
    Stage { name: "model", about: "random operations against a model, reopened and crashed", budget_s: 900, run: model },
    Stage {
        name: "schedules",
        about: "the protocol's model in wide bounds, ten times the schedules of snapshots",
        budget_s: 600,
        run: schedules,
    },
    Stage { name: "redis", about: "generated commands for the server and for Redis, the same replies", budget_s: 300, run: redis },
    Stage { name: "kill", about: "50 SIGKILLs of the real program in mid-load", budget_s: 600, run: kill },
    Stage { name: "clients", about: "client libraries of Redis against the server", budget_s: 600, run: |_| conformance::all() },
    Stage { name: "fuzz", about: "decoding of damaged entries and segments", budget_s: 1200, run: fuzz_replay },
    Stage { name: "loom", about: "model-checked schedules, one more preemption", budget_s: 900, run: |c| variants::loom(&c.metadata, 4) },
    Stage {
        name: "unit",
        about: "unit tests of all crates, without a sanitizer",
        budget_s: 300,
        run: |_| suites::unit(&[]).map(Done::Passed),
    },
    Stage {
        name: "asan",
        about: "tests of the crates with unsafe code, with the address sanitizer",
        budget_s: 300,
        run: |_| variants::address_sanitizer(),
    },
    Stage { name: "peers", about: "the benchmark's program for other stores still compiles", budget_s: 120, run: peers },
    Stage { name: "demo", about: "scripts/demo.sh with a release build", budget_s: 600, run: demo },
    Stage { name: "tsan", about: "thread sanitizer on the crates with threads", budget_s: 600, run: |_| variants::thread_sanitizer() },
    Stage { name: "guest", about: "fsdax on two nodes: killed in mid-write, reopened", budget_s: 600, run: run_guest },
];

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    let start = Start { date: machine::today(), commit: machine::commit(), at: Instant::now() };
    let selection = Selection { only: args.values("--only")?, keep_going: true };
    let quick = args.flag("--quick");
    let minutes = args.number("--minutes")?.unwrap_or(MINUTES);
    let list = args.flag("--list");
    args.flag("--keep-going");
    args.finish()?;
    if list {
        stage::list(STAGES);
        return Ok(ExitCode::SUCCESS);
    }
    let elastic_s = if quick { 40 } else { minutes.saturating_sub(FIXED_MINUTES).max(2) * 60 };
    let context = Context { metadata: Metadata::load()?, elastic_s, minutes, quick, seed: seed()?, start };
    println!("seed {} (HITHER_SEED={} repeats this run's first round)", context.seed, context.seed);
    let records = stage::run_all(STAGES, &selection, &context)?;
    let planned = if selection.only.is_empty() { STAGES.len() } else { selection.only.len() };
    stage::summarise(&records, planned);
    let partial = quick || !selection.only.is_empty();
    write_report(&context, &records, partial)?;
    Ok(if has_passed(&records) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first seed: `HITHER_SEED`, or the time.
fn seed() -> Result<u64, Failure> {
    match std::env::var("HITHER_SEED") {
        Ok(text) => text.parse().map_err(|_| format!("HITHER_SEED={text} is not a whole number")),
        Err(_) => Ok(machine::now_s()),
    }
}

/// The first seed of a round.
fn seed_of(first: u64, round: u64) -> u64 {
    first.wrapping_add(round.wrapping_mul(SEEDS_OF_ROUND))
}

/// Runs a kind of test program with one seed after the other for `percent` of the elastic time. `amount` is the
/// variable that sets the amount of work of each round, with its values in quick and in long runs.
fn seeded(context: &Context, kind: suites::Kind, percent: u64, amount: (&str, &str, &str)) -> Result<Done, Failure> {
    let (name, quick, long) = amount;
    let value = if context.quick { quick } else { long };
    let total = repeat_for(context.elastic_s * percent / 100, |round| {
        let seed = seed_of(context.seed, round).to_string();
        suites::of_kind(&context.metadata, kind, &[("HITHER_SEED", &seed), (name, value)]).map_err(|why| format!("seed {seed}: {why}"))
    });
    total.map(Done::Passed)
}

/// The peers' program is no member of the workspace, so no other stage checks that it compiles. Checking it needs no
/// library of a peer.
fn peers(_: &Context) -> Result<Done, Failure> {
    let manifest = root().join("crates/bench-peers/Cargo.toml");
    Step::cargo().args(["clippy", "--locked", "--manifest-path"]).arg(manifest).args(["--", "-D", "warnings"]).run().map(Done::Passed)
}

fn explore(context: &Context) -> Result<Done, Failure> {
    match seeded(context, suites::EXPLORER, 40, ("HITHER_EXPLORE_BUDGET", "20000", "100000"))? {
        Done::Passed(tally) => counted(tally, "explorer_images", 1).map(Done::Passed),
        other => Ok(other),
    }
}

fn histories(context: &Context) -> Result<Done, Failure> {
    seeded(context, suites::HISTORIES, 20, ("HITHER_LINEARIZABILITY_SECONDS", "2", "20"))
}

fn model(context: &Context) -> Result<Done, Failure> {
    seeded(context, suites::MODEL, 15, ("HITHER_MODEL_CASES", "20", "400"))
}

fn schedules(context: &Context) -> Result<Done, Failure> {
    let mut tally =
        suites::chosen("testkit", &["concurrency::"], &[("HITHER_SHUTTLE_SCHEDULES", if context.quick { "6000" } else { "60000" })])?;
    if !context.quick {
        tally.add(&suites::chosen("testkit", &["--ignored", "protocol::"], &[])?);
    }
    Ok(Done::Passed(tally))
}

fn redis(context: &Context) -> Result<Done, Failure> {
    setup::for_tests()?;
    seeded(context, suites::REDIS, 5, ("HITHER_COMMANDS", "10000", "200000"))
}

fn kill(context: &Context) -> Result<Done, Failure> {
    let kills: u64 = if context.quick { 6 } else { 50 };
    let seed = context.seed.to_string();
    let tally = suites::of_kind(&context.metadata, suites::KILL, &[("HITHER_KILLS", &kills.to_string()), ("HITHER_SEED", &seed)])?;
    // Each run of kills counts itself.
    let runs = tally.counts.get("kill_runs").copied().unwrap_or(0).max(1);
    counted(tally, "kills", kills * runs).map(Done::Passed)
}

/// Returns the tally if its programs counted at least `least`: a program that does nothing must not look like one that
/// found nothing.
fn counted(tally: Tally, name: &str, least: u64) -> Result<Tally, Failure> {
    match tally.counts.get(name).copied().unwrap_or(0) {
        count if count < least => Err(format!("{name}: {count} were counted, and {least} asked for")),
        _ => Ok(tally),
    }
}

fn demo(_: &Context) -> Result<Done, Failure> {
    Step::new(root().join("scripts/demo.sh")).run().map(Done::Passed)
}

fn fuzz_replay(context: &Context) -> Result<Done, Failure> {
    setup::install(setup::FOR_FUZZING)?;
    setup::cargo_fuzz()?;
    fuzz::fetch()?;
    let mut tally = fuzz::run("entry", context.elastic_s / 20)?;
    tally.add(&fuzz::run("resp", context.elastic_s / 20)?);
    tally.add(&fuzz::run("replay", context.elastic_s / 5)?);
    Ok(Done::Passed(tally))
}

fn run_guest(context: &Context) -> Result<Done, Failure> {
    setup::install(setup::FOR_GUEST)?;
    guest::run(if context.quick { guest::Size::Short } else { guest::Size::Long }).map(Done::Passed)
}

/// Whether all stages did the whole of their work and found nothing.
fn has_passed(records: &[Record]) -> bool {
    records.iter().all(|record| record.status() == "passed")
}

fn report(context: &Context, records: &[Record]) -> Value {
    let named = |status: &str| records.iter().filter(|record| record.status() == status).map(|record| record.name).collect::<Vec<_>>();
    let left_out = STAGES.iter().map(|stage| stage.name).filter(|name| !records.iter().any(|record| record.name == *name));
    json!({
        "date": context.start.date,
        "commit": context.start.commit,
        "machine": machine::describe(),
        "quick": context.quick,
        "minutes": context.minutes,
        "minutes_taken": tenths(context.start.at.elapsed() / 60),
        "seed": context.seed,
        "passed": has_passed(records),
        "failed": named("failed"),
        "skipped": named("skipped"),
        "partly": named("partly"),
        "left_out": left_out.collect::<Vec<_>>(),
        "stages": records.iter().map(stage_report).collect::<Vec<_>>(),
    })
}

fn write_report(context: &Context, records: &[Record], partial: bool) -> Result<(), Failure> {
    let (report, day) = (report(context, records), &context.start.date);
    let folder = if partial { target_dir() } else { root().join("docs/measurements") };
    let path = if partial { folder.join(format!("soak-{day}.json")) } else { unused(&folder, day) };
    let text = serde_json::to_string_pretty(&report).map_err(|error| format!("the report: {error}"))?;
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&path, text + "\n"))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    println!("report: {}", path.display());
    Ok(())
}

/// The path of the next report of a day, behind those that exist.
fn unused(folder: &Path, day: &str) -> PathBuf {
    let numbered = (2u32..).map(|number| format!("soak-{day}-{number}.json"));
    let names = std::iter::once(format!("soak-{day}.json")).chain(numbered);
    names.map(|name| folder.join(name)).find(|path| !path.exists()).expect("there are more numbers than files")
}

fn stage_report(record: &Record) -> Value {
    let tally = record.tally();
    json!({
        "stage": record.name,
        "status": record.status(),
        "seconds": tenths(record.elapsed),
        "processor_seconds": tenths(record.processor),
        "note": record.note(),
        "tests": tally.passed,
        "counts": tally.counts,
    })
}

fn tenths(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the first seeds of two rounds differed by one. Tests go on to the next seeds themselves, so a round
    /// repeated all but one seed of the round before.
    #[test]
    fn rounds_share_no_seeds() {
        let firsts: Vec<u64> = (0..200).map(|round| seed_of(1_795_000_000, round)).collect();
        assert_eq!(firsts[0], 1_795_000_000);
        assert!(firsts.windows(2).all(|two| two[1] - two[0] > 1_000_000));
        assert_eq!(seed_of(u64::MAX, 1), SEEDS_OF_ROUND - 1);
    }

    fn context() -> Context {
        let metadata = Metadata::load().unwrap();
        let start = Start { date: "2026-01-02".to_owned(), commit: Some("abc".to_owned()), at: Instant::now() };
        Context { metadata, elastic_s: 1, minutes: 75, quick: false, seed: 7, start }
    }

    /// Regression: date and commit were those of the end, and a run passed although stages were skipped.
    #[test]
    fn a_report_is_of_the_beginning_and_tells_what_was_not_done() {
        let record = |name, outcome| Record { name, budget_s: 9, elapsed: Duration::ZERO, processor: Duration::ZERO, outcome };
        let passed = || record("explore", Ok(Done::Passed(Tally::default())));
        let report = |records: &[Record]| report(&context(), records);
        let good = report(&[passed()]);
        assert_eq!((&good["date"], &good["commit"], &good["passed"]), (&json!("2026-01-02"), &json!("abc"), &json!(true)));
        assert!(good["minutes_taken"].is_number());
        assert_eq!(good["left_out"].as_array().unwrap().len(), STAGES.len() - 1);
        let skipped = report(&[passed(), record("guest", Ok(Done::Skipped("no emulator".to_owned())))]);
        assert_eq!((&skipped["skipped"], &skipped["passed"]), (&json!(["guest"]), &json!(false)));
        // Regression: a stage that had left something out passed like any other.
        let partly = report(&[passed(), record("clients", Ok(Done::Partly(Tally::default(), "without jedis".to_owned())))]);
        assert_eq!((&partly["partly"], &partly["skipped"], &partly["passed"]), (&json!(["clients"]), &json!([]), &json!(false)));
        let failed = report(&[passed(), record("kill", Err("broken".to_owned()))]);
        assert_eq!((&failed["failed"], &failed["passed"]), (&json!(["kill"]), &json!(false)));
    }

    /// Regression: the number of kills was not recorded.
    #[test]
    fn fewer_than_were_asked_for_are_a_failure() {
        let tally = || Tally::of("HITHER_COUNT kills 50\nHITHER_COUNT kills 49");
        assert_eq!(counted(tally(), "kills", 99), Ok(tally()));
        assert!(counted(tally(), "kills", 100).unwrap_err().contains("99 were counted"));
        assert!(counted(tally(), "explorer_images", 1).is_err());
    }

    /// Regression: the second full run of a day replaced the record of the first.
    #[test]
    fn a_report_replaces_none() {
        let folder = target_dir().join(format!("reports-{}", std::process::id()));
        // Removes what a failed run of a process with this number left.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        for expected in ["soak-2026-01-02.json", "soak-2026-01-02-2.json", "soak-2026-01-02-3.json"] {
            let path = unused(&folder, "2026-01-02");
            assert_eq!(path, folder.join(expected));
            std::fs::write(path, "{}").unwrap();
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
