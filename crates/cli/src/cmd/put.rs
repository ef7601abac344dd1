//! `put KEY VALUE`: stores a value; it is durable at the chosen level when the program ends. Makes the store and keyspace if need be.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use hither::{Keyspace, WriteOptions};
use rustix::fs::OFlags;
use serde::Serialize;

use crate::args::{PutArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Bytes, Output};
use crate::{store, units};

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
    if is_closed(std::io::stdin()) {
        let what = "the value was to come from standard input, which is closed; give it one, or the value \"\" on the command line";
        return Err(Failure::Usage(what.into()));
    }
    let mut value = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut value)
        .map_err(|source| Failure::Io { what: "reading the value from standard input".into(), source })?;
    Ok(value)
}

/// Whether a standard stream was closed when the program began: Rust opens the null device in its place then, for reading and writing.
fn is_closed(stream: impl AsFd) -> bool {
    let null = std::fs::metadata("/dev/null").map(|metadata| metadata.rdev());
    let here = rustix::fs::fstat(&stream).map(|stat| stat.st_rdev);
    let both_ways = rustix::fs::fcntl_getfl(&stream).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    both_ways && matches!((null, here), (Ok(null), Ok(here)) if null == here)
}
