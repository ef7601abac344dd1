//! `scan`: prints the records of a range. `--from` is included, `--to` is not, `--prefix` narrows both.

use std::ops::{Bound, ControlFlow};

use hither::{Keyspace, Kind};

use crate::args::{ScanArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::{store, units};

/// Runs the command.
pub fn run(args: &StoreArgs, scan: ScanArgs, out: &mut Output) -> Result<Outcome, Failure> {
    out.refuse_both(scan.raw)?;
    let decode = |text: Option<_>| text.map(|text| units::bytes(text, scan.escape)).transpose();
    let range = Range::new(decode(scan.prefix)?, decode(scan.from)?, decode(scan.to)?);
    let (_db, keyspace) = store::open_keyspace(args, store::Missing::RefuseToRead)?;
    // Over a hash keyspace no range is right, not even one that can hold nothing.
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

/// For programs, which see when a key expires, too.
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

/// Keys from `from` (included) to `to` (not included).
#[derive(Debug, PartialEq, Eq)]
struct Range {
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
}

impl Range {
    fn new(prefix: Option<Vec<u8>>, from: Option<Vec<u8>>, to: Option<Vec<u8>>) -> Self {
        let behind = prefix.as_deref().and_then(behind_prefix);
        let to = match (to, behind) {
            (Some(to), Some(behind)) => Some(to.min(behind)),
            (to, behind) => to.or(behind),
        };
        // `None` is less than any key: the larger one is the narrower one.
        Self { from: from.max(prefix), to }
    }

    fn is_empty(&self) -> bool {
        matches!(&self.to, Some(to) if self.from.as_ref().map_or(to.is_empty(), |from| from >= to))
    }

    fn from(&self) -> Bound<&[u8]> {
        self.from.as_deref().map_or(Bound::Unbounded, Bound::Included)
    }

    fn to(&self) -> Bound<&[u8]> {
        self.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded)
    }
}

/// The first key behind all keys that begin with `prefix`, if there is one.
fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(behind_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(behind_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(behind_prefix(b"\xff"), None);
        assert_eq!(behind_prefix(b""), None);
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 0..4)
    }

    proptest! {
        #[test]
        fn a_range_holds_exactly_what_was_asked(
            prefix in proptest::option::of(key()), from in proptest::option::of(key()), to in proptest::option::of(key()), k in key()
        ) {
            let asked = prefix.as_ref().is_none_or(|p| k.starts_with(p))
                && from.as_ref().is_none_or(|f| k >= *f)
                && to.as_ref().is_none_or(|t| k < *t);
            let range = Range::new(prefix, from, to);
            let inside = range.from.as_ref().is_none_or(|f| k >= *f) && range.to.as_ref().is_none_or(|t| k < *t);
            prop_assert_eq!(asked, inside && !range.is_empty());
        }
    }
}
