//! `del KEY`: deletes a key; exit status 1 if it was not there.

use serde::Serialize;

use crate::args::{KeyArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Bytes, Output};
use crate::{store, units};

#[derive(Serialize)]
struct Report<'a> {
    deleted: bool,
    key: Bytes<'a>,
}

/// Runs the command.
pub fn run(args: &StoreArgs, del: KeyArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let key = units::bytes(del.key, del.escape)?;
    let (db, keyspace) = store::open_keyspace(args, store::Missing::Refuse)?;
    let deleted = keyspace.delete(&key)?;
    store::close(db, args)?;
    if out.is_json() {
        out.document(&Report { deleted, key: Bytes(&key) })?;
    } else if !deleted {
        return Err(Failure::NotFound(format!("no such key: {}", crate::escape::escaped(&key))));
    }
    Ok(Outcome::from_bool(deleted))
}
