//! `copy DIR`: copies all keyspaces, with their kinds and times of expiry, into a new store.

use std::ops::ControlFlow;

use hither::{CopyProgress, Db};

use crate::args::{CopyArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::store::{self, Missing};

/// Runs the command.
pub fn run(args: &StoreArgs, copy: &CopyArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let places = store::places_of(&copy.to, "")?;
    // The sizes on the command line are those of the new store.
    let of_old = StoreArgs { capacity: None, max_capacity: None, ..args.clone() };
    let db = store::open(&of_old, Missing::RefuseToRead)?;
    let target = store::sized(store::at(Db::builder().checkpoints(args.checkpoints), places), args);
    let bar = store::bar(args.json, "copying {bar:40} {pos}/{len} keys");
    let show = |progress: CopyProgress| {
        bar.set_length(progress.expected);
        bar.set_position(progress.keys);
        ControlFlow::Continue(())
    };
    let outcome = db.copy_to_with(target, show);
    bar.finish_and_clear();
    let report = outcome.map_err(Failure::Copy)?;
    if out.is_json() {
        out.document(&report)?;
    } else {
        let (keys, keyspaces) = (report.keys, report.keyspaces);
        out.text(format!("{keys} keys in {keyspaces} {}", if keyspaces == 1 { "keyspace" } else { "keyspaces" }))?;
    }
    Ok(Outcome::Done)
}
