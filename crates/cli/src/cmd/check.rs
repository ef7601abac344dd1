//! `check`: verifies every checksum, reference and count. Exit status 1 if the store is not sound.

use hither::ErrorKind;
use serde_json::{Value, json};

use crate::args::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, tree};
use crate::store;

/// Runs the command.
pub fn run(args: &StoreArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let (report, verdict) = match examine(args) {
        // A store that is too damaged to open is not sound: that answers the question.
        Err(Failure::Store(error)) if error.kind() == ErrorKind::Damaged => (unopened(&error.finding(), out.is_json()), Verdict::NotSound),
        Err(Failure::Salvage { error, .. }) if error.kind() == ErrorKind::Damaged => {
            (unopened(&error.finding(), out.is_json()), Verdict::Lost)
        }
        other => other?,
    };
    crate::told(Outcome::from_bool(verdict == Verdict::Sound), print(report, verdict, out))
}

/// Verdict on a store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Sound,
    NotSound,
    /// What `--salvage` has passed over, at least, is damaged.
    PassedOver,
    /// Not even `--salvage` opens it.
    Lost,
}

fn examine(args: &StoreArgs) -> Result<(Value, Verdict), Failure> {
    let db = store::open_whole(args)?;
    let report = db.check()?;
    let verdict = match report.is_sound() {
        true => Verdict::Sound,
        false if args.salvage => Verdict::PassedOver,
        false => Verdict::NotSound,
    };
    let report = serde_json::to_value(report).map_err(|error| Failure::Usage(format!("the report cannot be written: {error}")))?;
    Ok((report, verdict))
}

/// The report on a store that does not open. Programs get all fields; those that nobody has counted are null.
fn unopened(problem: &str, all: bool) -> Value {
    let mut report = json!({ "problems": [problem], "problem_count": 1 });
    if let Value::Object(fields) = &mut report
        && all
    {
        fields.extend(["segments", "entries", "bytes", "torn", "keys"].map(|field| (field.to_owned(), Value::Null)));
    }
    report
}

fn print(mut report: Value, verdict: Verdict, out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        if let Value::Object(fields) = &mut report {
            fields.insert("sound".into(), (verdict == Verdict::Sound).into());
        }
        return out.document(&report);
    }
    out.bytes(tree::render(&report).as_bytes())?;
    out.text(match verdict {
        Verdict::Sound => "sound",
        Verdict::NotSound => {
            "NOT SOUND: the problems are listed above; restore the pools from a backup, or use --salvage with dump to save what is readable"
        }
        Verdict::PassedOver => {
            "NOT SOUND: the problems are listed above; restore the pools from a backup, or make a sound store of what is readable (hither copy --salvage)"
        }
        Verdict::Lost => "NOT SOUND, and --salvage does not open it either: restore the pools from a backup",
    })
}
