//! `compact`: reclaims the space of all garbage, and reports how much that was.

use std::ops::ControlFlow;

use hither::{CompactProgress, CompactReport};

use crate::args::{CompactArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, tree};
use crate::store::{self, Missing};

/// Runs the command.
pub fn run(args: &StoreArgs, compact: &CompactArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let db = store::open(args, Missing::Refuse)?;
    let bar = store::bar(args.json, "compacting {bar:40} {pos}/{len} segments");
    let show = |progress: CompactProgress| {
        bar.set_length(progress.expected);
        bar.set_position(progress.done);
        ControlFlow::Continue(())
    };
    let report = db.compact_with(f64::from(compact.garbage) / 100.0, show);
    bar.finish_and_clear();
    let report = report?;
    store::close(db, args)?;
    print(&report, out)?;
    Ok(Outcome::Done)
}

fn print(report: &CompactReport, out: &mut Output) -> Result<(), Failure> {
    let document = serde_json::to_value(report).map_err(|error| Failure::Usage(format!("the report cannot be written: {error}")))?;
    if out.is_json() { out.document(&document) } else { out.bytes(tree::render(&document).as_bytes()) }
}
