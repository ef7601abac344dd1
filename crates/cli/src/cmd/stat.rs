//! `stat`: space, utilisation, garbage, shards, durability domain, and what the last recovery found.

use serde_json::Value;

use crate::args::StoreArgs;
use crate::failure::{Failure, Outcome, all_of_damage};
use crate::output::{Output, tree};
use crate::store::{self, Missing};

/// Runs the command.
pub fn run(args: &StoreArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let db = store::open(args, Missing::RefuseToRead)?;
    let report = report(&db, args.salvage).map_err(|error| Failure::Usage(format!("the statistics cannot be written: {error}")))?;
    if out.is_json() {
        out.document(&report)?;
    } else {
        out.bytes(tree::render(&report).as_bytes())?;
    }
    Ok(Outcome::Done)
}

fn report(db: &hither::Db, salvage: bool) -> serde_json::Result<Value> {
    let mut report = serde_json::to_value(db.stats())?;
    all_of_damage(&mut report["damage"], salvage);
    if let Value::Object(fields) = &mut report {
        fields.insert("recovery".into(), serde_json::to_value(db.recovery())?);
    }
    Ok(report)
}
