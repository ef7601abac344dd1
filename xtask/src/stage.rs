//! Stages: named parts of a run, each with a time budget; and the table at the end.

use crate::exec::Tally;
use crate::{Failure, machine};
use std::time::{Duration, Instant};

/// How a stage ended well.
pub enum Done {
    /// It did its work.
    Passed(Tally),
    /// It did its work, except for something that is impossible on this machine.
    Partly(Tally, String),
    /// It could not do its work on this machine, for this reason, which is not a fault of the code.
    Skipped(String),
}

/// Prefix of the counts of tests that could not do their work on this machine; the rest of the name is the reason.
const SKIPPED: &str = "skipped_";

/// The skipped tests and their reasons, if there are any.
fn lacking(tally: &Tally) -> Option<String> {
    let skipped = tally.counts.iter().filter_map(|(name, count)| Some((name.strip_prefix(SKIPPED)?, count)));
    let told: Vec<String> = skipped.map(|(why, count)| format!("{count} skipped {}", why.replace('_', " "))).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

impl Done {
    /// Returns the same result, but in part if tests could not do their work on this machine.
    fn in_part_if_skipped(self) -> Done {
        match self {
            Done::Passed(tally) => match lacking(&tally) {
                Some(what) => Done::Partly(tally, what),
                None => Done::Passed(tally),
            },
            Done::Partly(tally, before) => {
                let what = lacking(&tally).map_or_else(|| before.clone(), |what| format!("{before}; {what}"));
                Done::Partly(tally, what)
            }
            Done::Skipped(why) => Done::Skipped(why),
        }
    }
}

/// One named part of a run. `C` holds what the stages of a command share.
pub struct Stage<C> {
    /// The name for `--only`.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Seconds after which the table shows a warning; measured on two cores from a cold clone.
    pub budget_s: u64,
    /// The work.
    pub run: fn(&C) -> Result<Done, Failure>,
}

/// The result of a stage.
pub struct Record {
    /// The stage's name.
    pub name: &'static str,
    /// Its budget in seconds.
    pub budget_s: u64,
    /// How long it ran.
    pub elapsed: Duration,
    /// Processor time of its programs on all processors together; zero if the system does not report it.
    pub processor: Duration,
    /// How it ended.
    pub outcome: Result<Done, Failure>,
}

impl Record {
    /// `passed`, `partly`, `skipped` or `failed`.
    pub fn status(&self) -> &'static str {
        match self.outcome {
            Ok(Done::Passed(_)) => "passed",
            Ok(Done::Partly(..)) => "partly",
            Ok(Done::Skipped(_)) => "skipped",
            Err(_) => "failed",
        }
    }

    /// The counts of the stage.
    pub fn tally(&self) -> Tally {
        match &self.outcome {
            Ok(Done::Passed(tally) | Done::Partly(tally, _)) => tally.clone(),
            _ => Tally::default(),
        }
    }

    /// Why the stage was skipped or failed, what it left out, or that it was slow.
    pub fn note(&self) -> String {
        let slow = self.elapsed.as_secs() > self.budget_s;
        match &self.outcome {
            Ok(Done::Skipped(why)) | Err(why) => why.clone(),
            Ok(Done::Partly(_, what)) if slow => format!("over its budget; {what}"),
            Ok(Done::Partly(_, what)) => what.clone(),
            Ok(Done::Passed(_)) if slow => "over its budget".to_owned(),
            Ok(Done::Passed(_)) => String::new(),
        }
    }
}

/// The stages to run, and when to stop.
pub struct Selection {
    /// Only these; all if empty.
    pub only: Vec<String>,
    /// Whether to continue after a failure.
    pub keep_going: bool,
}

/// Prints the stages.
pub fn list<C>(stages: &[Stage<C>]) {
    for stage in stages {
        println!("{:<10} {:>5} s  {}", stage.name, stage.budget_s, stage.about);
    }
}

/// Runs the selected stages in their order.
pub fn run_all<C>(stages: &[Stage<C>], selection: &Selection, context: &C) -> Result<Vec<Record>, Failure> {
    for name in &selection.only {
        if !stages.iter().any(|stage| stage.name == name) {
            return Err(format!("no stage {name}; --list shows them"));
        }
    }
    let mut records = Vec::new();
    for stage in stages {
        if !selection.only.is_empty() && !selection.only.iter().any(|name| name == stage.name) {
            continue;
        }
        println!("\n== {}: {}", stage.name, stage.about);
        let (start, before) = (Instant::now(), machine::processor_time_of_children());
        let outcome = (stage.run)(context).map(Done::in_part_if_skipped);
        let processor = machine::processor_time_of_children().saturating_sub(before);
        let record = Record { name: stage.name, budget_s: stage.budget_s, elapsed: start.elapsed(), processor, outcome };
        println!("== {}: {} after {:.1} s{}", record.name, record.status(), record.elapsed.as_secs_f64(), colon(&record.note()));
        let stop = record.outcome.is_err() && !selection.keep_going;
        records.push(record);
        if stop {
            break;
        }
    }
    Ok(records)
}

fn colon(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(": {note}") }
}

/// Prints the table and the line that counts the tests; returns whether all went well.
pub fn summarise(records: &[Record], planned: usize) -> bool {
    println!("\n{:<10} {:<8} {:>8} {:>10} {:>8} {:>7}  note", "stage", "result", "seconds", "processor", "budget", "tests");
    let mut total = Tally::default();
    let (mut elapsed, mut processor) = (Duration::ZERO, Duration::ZERO);
    for record in records {
        let tally = record.tally();
        // The whole note was printed when the stage ended.
        let note: String = record.note().lines().next().unwrap_or_default().chars().take(90).collect();
        let (seconds, busy) = (record.elapsed.as_secs_f64(), record.processor);
        let (name, status, budget_s) = (record.name, record.status(), record.budget_s);
        println!("{name:<10} {status:<8} {seconds:>8.1} {:>10.1} {budget_s:>8} {:>7}  {note}", busy.as_secs_f64(), tally.passed);
        total.add(&tally);
        elapsed += record.elapsed;
        processor += busy;
    }
    println!("{:<10} {:<8} {:>8.1} {:>10.1}", "total", "", elapsed.as_secs_f64(), processor.as_secs_f64());
    let failed = records.iter().filter(|record| record.outcome.is_err()).count();
    let count = |status| records.iter().filter(|record| record.status() == status).count();
    let (passed, partly, skipped) = (count("passed"), count("partly"), count("skipped"));
    let unreached = planned.saturating_sub(records.len());
    println!(
        "\n{} tests passed, {} ignored; stages: {passed} passed, {partly} in part, {skipped} skipped, {failed} failed, {unreached} not reached",
        total.passed, total.ignored,
    );
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages() -> Vec<Stage<u64>> {
        vec![
            Stage { name: "one", about: "", budget_s: 9, run: |n| Ok(Done::Passed(Tally { passed: *n, ..Tally::default() })) },
            Stage { name: "two", about: "", budget_s: 9, run: |_| Err("broken".to_owned()) },
            Stage { name: "three", about: "", budget_s: 9, run: |_| Ok(Done::Skipped("no tool".to_owned())) },
        ]
    }

    fn run(only: &[&str], keep_going: bool) -> Vec<&'static str> {
        let selection = Selection { only: only.iter().map(|name| (*name).to_owned()).collect(), keep_going };
        let records = run_all(&stages(), &selection, &5).unwrap();
        assert_eq!(summarise(&records, 3), records.iter().all(|record| record.outcome.is_ok()));
        records.iter().map(Record::status).collect()
    }

    #[test]
    fn stops_at_the_first_failure_unless_told_otherwise() {
        assert_eq!(run(&[], false), ["passed", "failed"]);
        assert_eq!(run(&[], true), ["passed", "failed", "skipped"]);
        assert_eq!(run(&["three", "one"], false), ["passed", "skipped"]);
    }

    #[test]
    fn what_was_left_out_is_noted() {
        let (elapsed, processor) = (Duration::from_secs(9), Duration::ZERO);
        let outcome = || Ok(Done::Partly(Tally { passed: 2, ..Tally::default() }, "without: a".to_owned()));
        let record = |budget_s| Record { name: "one", budget_s, elapsed, processor, outcome: outcome() };
        assert_eq!((record(9).status(), record(9).tally().passed, record(9).note()), ("partly", 2, "without: a".to_owned()));
        assert_eq!(record(8).note(), "over its budget; without: a");
    }

    /// Regression: tests that found too little memory, or could not mount, passed like any other.
    #[test]
    fn tests_that_were_skipped_are_noted() {
        let tally = |output: &str| Tally::of(output);
        let lacking = || tally("test on_dax ... HITHER_COUNT skipped_without_shm 1\nHITHER_COUNT skipped_without_shm 2");
        let note = |done: Done| {
            let outcome = Ok(done.in_part_if_skipped());
            Record { name: "one", budget_s: 9, elapsed: Duration::ZERO, processor: Duration::ZERO, outcome }.note()
        };
        assert_eq!(note(Done::Passed(lacking())), "3 skipped without shm");
        assert_eq!(note(Done::Partly(lacking(), "without: a".to_owned())), "without: a; 3 skipped without shm");
        assert_eq!(note(Done::Partly(tally(""), "without: a".to_owned())), "without: a");
        let two = "HITHER_COUNT skipped_without_mounting 1\nHITHER_COUNT skipped_with_one_processor 2\nHITHER_COUNT images 2";
        assert_eq!(note(Done::Passed(tally(two))), "2 skipped with one processor, 1 skipped without mounting");
        assert_eq!(note(Done::Passed(tally("HITHER_COUNT images 2"))), "");
    }

    #[test]
    fn refuses_unknown_names() {
        let selection = Selection { only: vec!["four".to_owned()], keep_going: false };
        assert!(run_all(&stages(), &selection, &5).is_err());
    }
}
