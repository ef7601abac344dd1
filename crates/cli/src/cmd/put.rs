//! `put KEY VALUE`: stores a value; it is durable at the chosen level when the program ends. Makes the store and keyspace if need be.

use std::io::Read;

use hither::{Keyspace, WriteOptions};
use serde::Serialize;

use crate::args::{PutArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Bytes, Output};
use crate::{stdin, store, units};

#[derive(Serialize)]
struct Report<'a> {
    stored: bool,
    key: Bytes<'a>,
    value_bytes: usize,
}

/// Runs the command.
pub fn run(args: &StoreArgs, put: PutArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let key = units::bytes(put.key.key, put.key.escape)?;
    let value = if put.value == "-" { read_stdin()? } else { units::bytes(put.value, put.key.escape)? };
    // Before there is a store: a bad call leaves none behind.
    Keyspace::check_pair(&key, &value)?;
    let (db, keyspace) = store::create_keyspace(args, None)?;
    let mut options = WriteOptions::default();
    if let Some(ttl) = put.ttl {
        options = options.ttl(ttl);
    }
    keyspace.put_with(&key, &value, &options)?.wait()?;
    store::close(db, args)?;
    if out.is_json() {
        out.document(&Report { stored: true, key: Bytes(&key), value_bytes: value.len() })?;
    }
    Ok(Outcome::Done)
}

fn read_stdin() -> Result<Vec<u8>, Failure> {
    let stdin = stdin::open("give the value on the command line")?;
    let mut value = Vec::new();
    stdin.lock().read_to_end(&mut value).map_err(|source| Failure::Io { what: "reading the value from standard input".into(), source })?;
    Ok(value)
}
