//! `scan`: prints the records of a range.

use std::ops::ControlFlow;

use hither::{Keyspace, Kind};

use crate::args::{ScanArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::range::Range;
use crate::store;

/// Runs the command.
pub fn run(args: &StoreArgs, scan: ScanArgs, out: &mut Output) -> Result<Outcome, Failure> {
    out.refuse_both(scan.raw)?;
    let range = Range::of(scan.range, scan.escape)?;
    let (_db, keyspace) = store::open_keyspace(args, store::Missing::RefuseToRead)?;
    // A hash keyspace has no valid range, not even an empty one.
    if range.is_empty() && keyspace.kind() == Kind::Ordered {
        return Ok(Outcome::Done);
    }
    let limit = scan.limit.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
    if out.is_json() {
        return write_entries(out, &keyspace, &range, scan.reverse, limit);
    }
    let mut written = Ok(());
    keyspace.scan_first(limit, range.from(), range.to(), scan.reverse, |key, value| {
        written = write(out, key, value, scan.raw);
        if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    written.map(|()| Outcome::Done)
}

/// Writes entries for programs, with the expiry of each key.
fn write_entries(out: &mut Output, keyspace: &Keyspace, range: &Range, reverse: bool, limit: usize) -> Result<Outcome, Failure> {
    let mut entries = keyspace.range((range.from(), range.to()))?.entries();
    for _ in 0..limit {
        let Some(entry) = (if reverse { entries.next_back() } else { entries.next() }).transpose()? else { break };
        out.record(&entry.key, &entry.value, entry.expires_at_ms)?;
    }
    Ok(Outcome::Done)
}

fn write(out: &mut Output, key: &[u8], value: &[u8], raw: bool) -> Result<(), Failure> {
    if !raw {
        return out.record(key, value, 0);
    }
    out.bytes(key)?;
    out.bytes(b"\t")?;
    out.bytes(value)?;
    out.bytes(b"\n")
}
