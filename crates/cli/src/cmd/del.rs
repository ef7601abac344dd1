//! `del KEY` deletes a key; `del` with `--prefix P`, `--from K` or `--to K` deletes the keys of a range. Exit status 1
//! if no key was there.

use hither::Kind;
use serde::Serialize;

use crate::args::{DelArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Bytes, Output};
use crate::range::Range;
use crate::{store, units};

#[derive(Serialize)]
struct Report<'a> {
    deleted: bool,
    key: Bytes<'a>,
}

#[derive(Serialize)]
struct RangeReport {
    deleted: bool,
    keys: u64,
}

/// Runs the command.
pub fn run(args: &StoreArgs, del: DelArgs, out: &mut Output) -> Result<Outcome, Failure> {
    // Most often the cause is a shell variable that was not set.
    for (option, bound) in [("--prefix", &del.range.prefix), ("--from", &del.range.from)] {
        if bound.as_ref().is_some_and(|bound| bound.is_empty()) {
            return Err(Failure::Usage(format!(
                "an empty {option} excludes no key; leave the option out, or use `hither drop` to remove all keys"
            )));
        }
    }
    let Some(key) = del.key else {
        return delete_range(args, &Range::of(del.range, del.escape)?, out);
    };
    let key = units::bytes(key, del.escape)?;
    let (db, keyspace) = store::change_keyspace(args)?;
    let deleted = keyspace.delete(&key)?;
    store::close(db, args)?;
    if out.is_json() {
        out.document(&Report { deleted, key: Bytes(&key) })?;
    } else if !deleted {
        return Err(Failure::NotFound(format!("no such key: {}", crate::escape::escaped(&key))));
    }
    Ok(Outcome::from_bool(deleted))
}

fn delete_range(args: &StoreArgs, range: &Range, out: &mut Output) -> Result<Outcome, Failure> {
    let (db, keyspace) = store::change_keyspace(args)?;
    if keyspace.kind() != Kind::Ordered {
        let what = format!(
            "keyspace \"{}\" is a hash keyspace, which has no ranges; delete keys one by one, or all of them with `hither drop`",
            keyspace.name()
        );
        return Err(Failure::Usage(what));
    }
    let keys = keyspace.delete_range((range.from(), range.to()))?;
    store::close(db, args)?;
    if out.is_json() {
        out.document(&RangeReport { deleted: keys > 0, keys })?;
    } else if keys == 0 {
        return Err(Failure::NotFound("there is no key in this range".into()));
    } else {
        out.text(format!("{keys} keys"))?;
    }
    Ok(Outcome::from_bool(keys > 0))
}
