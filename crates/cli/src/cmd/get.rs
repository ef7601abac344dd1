//! `get KEY`: prints a value.
//!
//! As text the value is escaped as in [`crate::escape`] and ends with a newline; with `--raw` its bytes are printed
//! unchanged; with `--json` the output is `{"found": true, "key": …, "value": …}`, with `"expires_at_ms"` if the key
//! expires.

use hither::Keyspace;
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
    /// In milliseconds since 1970; absent if the key does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
}

/// Runs the command.
pub fn run(args: &StoreArgs, get: GetArgs, out: &mut Output) -> Result<Outcome, Failure> {
    out.refuse_both(get.raw)?;
    let key = units::bytes(get.key.key, get.key.escape)?;
    let (_db, keyspace) = store::open_keyspace(args, store::Missing::RefuseToRead)?;
    if out.is_json() {
        return report(&keyspace, &key, out);
    }
    match keyspace.get(&key)? {
        None => Err(Failure::NotFound(format!("no such key: {}", crate::escape::escaped(&key)))),
        Some(value) if get.raw => out.bytes(&value).map(|()| Outcome::Done),
        Some(value) => out.escaped(&value).map(|()| Outcome::Done),
    }
}

/// Prints the value and its expiry, as of one moment.
fn report(keyspace: &Keyspace, key: &[u8], out: &mut Output) -> Result<Outcome, Failure> {
    let entry = keyspace.get_entry(key)?;
    let value = entry.as_ref().map(|entry| Bytes(&entry.value));
    let expires_at_ms = entry.as_ref().map(|entry| entry.expires_at_ms).filter(|at| *at != 0);
    out.document(&Report { found: entry.is_some(), key: Bytes(key), value, expires_at_ms })?;
    Ok(Outcome::from_bool(entry.is_some()))
}
