//! `get KEY`: prints a value.
//!
//! As text the value has the escape of [`crate::escape`] and a newline; with `--raw` exactly its bytes; with `--json`
//! `{"found": true, "key": …, "value": …}`.

use serde::Serialize;

use crate::args::{GetArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Bytes, Output};
use crate::{store, units};

#[derive(Serialize)]
struct Report<'a> {
    found: bool,
    key: Bytes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Bytes<'a>>,
}

/// Runs the command.
pub fn run(args: &StoreArgs, get: GetArgs, out: &mut Output) -> Result<Outcome, Failure> {
    out.refuse_both(get.raw)?;
    let key = units::bytes(get.key.key, get.key.escape)?;
    let (_db, keyspace) = store::open_keyspace(args, store::Missing::RefuseToRead)?;
    let value = keyspace.get(&key)?;
    if out.is_json() {
        out.document(&Report { found: value.is_some(), key: Bytes(&key), value: value.as_deref().map(Bytes) })?;
        return Ok(Outcome::from_bool(value.is_some()));
    }
    match value {
        None => Err(Failure::NotFound(format!("no such key: {}", crate::escape::escaped(&key)))),
        Some(value) if get.raw => out.bytes(&value).map(|()| Outcome::Done),
        Some(value) => out.escaped(&value).map(|()| Outcome::Done),
    }
}
