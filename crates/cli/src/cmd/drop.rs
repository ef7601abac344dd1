//! `drop NAME`: removes a keyspace with all its keys, durably, and reports how many keys it had.

use hither_server::data::databases;

use crate::args::{DropArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::store::{self, Missing};

/// Runs the command.
pub fn run(args: &StoreArgs, drop: &DropArgs, out: &mut Output) -> Result<Outcome, Failure> {
    if args.keyspace.as_ref().is_some_and(|name| *name != drop.name) {
        return Err(Failure::Usage(format!("which keyspace? \"{}\" and --keyspace \"{}\" were given", drop.name, args.keyspace())));
    }
    // The name is an argument of the command, so that nobody drops the default keyspace by forgetting a name.
    let named = StoreArgs { keyspace: Some(drop.name.clone()), ..args.clone() };
    let (db, keyspace) = store::open_keyspace(&named, Missing::Refuse)?;
    if databases::rest_on(&db, &drop.name)? {
        let what = format!("keyspace \"{}\" belongs to a server's databases; to empty a database, send FLUSHDB to the server", drop.name);
        return Err(Failure::Usage(what));
    }
    let keys = keyspace.len();
    std::mem::drop(keyspace);
    db.drop_keyspace(&drop.name)?;
    store::close(db, args)?;
    if out.is_json() {
        out.document(&serde_json::json!({ "keys": keys }))?;
    } else {
        out.text(format!("{keys} keys"))?;
    }
    Ok(Outcome::Done)
}
