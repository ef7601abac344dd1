//! `keyspaces`: lists the keyspaces with their kinds and numbers of keys.

use serde::Serialize;

use crate::args::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::store::{self, Missing};

#[derive(Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    id: u32,
    keys: usize,
}

/// Runs the command.
pub fn run(args: &StoreArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let rows = rows(&store::open(args, Missing::RefuseToRead)?)?;
    if out.is_json() {
        out.document(&rows)?;
        return Ok(Outcome::Done);
    }
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    for row in &rows {
        out.text(format!("{:width$}  {:7}  {} keys", row.name, row.kind, row.keys))?;
    }
    Ok(Outcome::Done)
}

fn rows(db: &hither::Db) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for info in db.keyspaces() {
        let keys = db.open_keyspace(&info.name)?.map_or(0, |keyspace| keyspace.len());
        rows.push(Row { kind: info.kind.name(), id: info.id, keys, name: info.name });
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}
