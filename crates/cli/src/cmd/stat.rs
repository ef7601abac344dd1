//! `stat`: reports space, utilisation, garbage, shards, durability domain, and the results of the last recovery.

use serde_json::Value;

use crate::args::StoreArgs;
use crate::failure::{AGAINST_DAMAGE, Failure, Outcome};
use crate::output::{self, Output, tree};
use crate::store;

/// Runs the command.
pub fn run(args: &StoreArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let db = store::open_whole(args)?;
    let report = report(&db, args).map_err(|error| Failure::Usage(format!("the statistics cannot be written: {error}")))?;
    if out.is_json() {
        out.document(&report)?;
    } else {
        out.bytes(tree::render(&report).as_bytes())?;
    }
    if !args.salvage && report["damage"].as_array().is_some_and(|findings| !findings.is_empty()) {
        output::warning(&format!("the store is damaged; {AGAINST_DAMAGE} (`hither check` lists all damage)"), args.form());
    }
    Ok(Outcome::Done)
}

fn report(db: &hither::Db, args: &StoreArgs) -> serde_json::Result<Value> {
    let mut stats = db.stats();
    stats.keyspaces.retain(|keyspace| args.keyspace.as_ref().is_none_or(|name| *name == keyspace.name));
    let mut report = serde_json::to_value(stats)?;
    if let Value::Object(fields) = &mut report {
        fields.insert("recovery".into(), serde_json::to_value(db.recovery())?);
    }
    Ok(report)
}
