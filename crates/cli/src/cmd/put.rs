//! `put KEY VALUE`: stores a value, durable at the chosen level when the program ends. Creates the store and the
//! keyspace if needed.

use std::io::Read;

use hither::{Keyspace, WriteOptions};
use serde::Serialize;

use crate::args::{PutArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::input::MAX_VALUE;
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
    // Checked before the store is opened, so that a bad call does not create one.
    Keyspace::check_pair(&key, b"")?;
    let value = if put.value == "-" { read_stdin()? } else { units::bytes(put.value, put.key.escape)? };
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
    read_at_most(MAX_VALUE, stdin.lock())
}

/// Reads `input`, but not to the end if it is larger than a value can be.
fn read_at_most(limit: usize, input: impl Read) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let read = input.take(limit as u64 + 1).read_to_end(&mut value);
    read.map_err(|source| Failure::Io { what: "reading the value from standard input".into(), source })?;
    if value.len() > limit {
        return Err(Failure::Usage(format!("standard input has more than {limit} bytes, and no value can be larger")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the input was read until memory was full.
    #[test]
    fn an_input_without_end_is_refused() {
        assert_eq!(read_at_most(100, &[1; 100][..]).unwrap().len(), 100);
        let refused = read_at_most(100, std::io::repeat(0)).unwrap_err();
        assert!(refused.status() == 2 && refused.to_string().contains("more than 100 bytes"), "{refused}");
    }
}
