//! Ordered access to the keys of a database, for which Redis has no command.
//!
//! `HITHER.RANGE start end [REV] [LIMIT n] [VALUES] [MATCH pattern]` and `HITHER.PREFIX prefix [AFTER key] …` return
//! keys in bytewise order. `start` and `end` are `-` (before all), `+` (behind all), `[key` (inclusive) or `(key`
//! (exclusive).
//!
//! The cursor of such an iteration is the last key of the reply: `(key` for the next RANGE, `AFTER key` for the next
//! PREFIX. It takes no memory in the server and stays valid for ever. O(log n + keys passed).

use super::arguments::Options;
use super::failure::Failure;
use super::strings::bytes_of;
use super::table::flag::READONLY;
use super::table::{Command, Group, TABLE};
use super::{Context, Outcome, Room};
use crate::data::encoding::after_prefix;
use crate::glob;
use std::ops::{Bound, ControlFlow};

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    Command::new("hither.range", -3, Group::Generic, "hither", "Returns the keys between two bounds, in order.", range).flags(READONLY),
    Command::new("hither.prefix", -2, Group::Generic, "hither", "Returns the keys with a prefix, in order.", prefix).flags(READONLY),
];

/// Maximum number of keys in a reply if no LIMIT is given.
const DEFAULT_LIMIT: usize = 1000;

/// The options behind the bounds.
struct Wanted {
    reverse: bool,
    limit: usize,
    values: bool,
    pattern: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

impl Wanted {
    fn parse(mut rest: Options<'_>, with_after: bool) -> Result<Wanted, Failure> {
        let mut wanted = Wanted { reverse: false, limit: DEFAULT_LIMIT, values: false, pattern: None, after: None };
        while let Some(word) = rest.next() {
            match word.to_ascii_lowercase().as_slice() {
                b"rev" => wanted.reverse = true,
                b"values" => wanted.values = true,
                b"limit" => wanted.limit = usize::try_from(rest.integer()?).map_err(|_| Failure::SYNTAX)?,
                b"match" => wanted.pattern = Some(rest.value()?.to_vec()),
                b"after" if with_after => wanted.after = Some(rest.value()?.to_vec()),
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(wanted)
    }
}

fn bound(argument: &[u8]) -> Result<Bound<&[u8]>, Failure> {
    match argument {
        b"-" | b"+" => Ok(Bound::Unbounded),
        [b'[', key @ ..] => Ok(Bound::Included(key)),
        [b'(', key @ ..] => Ok(Bound::Excluded(key)),
        _ => Err(Failure::text("ERR a bound is -, +, [key or (key")),
    }
}

fn range(context: &mut Context<'_>) -> Outcome {
    let wanted = Wanted::parse(Options::new(context.args, 3), false)?;
    let args = context.args;
    // As in ZRANGE, with REV the first bound is the upper one.
    let (start, end) = if wanted.reverse { (&args[2], &args[1]) } else { (&args[1], &args[2]) };
    if start == b"+" || end == b"-" {
        context.reply.array(0);
        return Ok(());
    }
    collect(context, bound(start)?, bound(end)?, &wanted)
}

fn prefix(context: &mut Context<'_>) -> Outcome {
    let wanted = Wanted::parse(Options::new(context.args, 2), true)?;
    let args = context.args;
    let start = &args[1];
    let end = after_prefix(start);
    let (mut from, mut to) = (Bound::Included(start), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
    if let Some(after) = wanted.after.as_deref() {
        if !after.starts_with(start) {
            return Err(Failure::text("ERR AFTER needs a key with the prefix"));
        }
        *(if wanted.reverse { &mut to } else { &mut from }) = Bound::Excluded(after);
    }
    collect(context, from, to, &wanted)
}

fn collect(context: &mut Context<'_>, from: Bound<&[u8]>, to: Bound<&[u8]>, wanted: &Wanted) -> Outcome {
    let mut found: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    let (user, args) = (context.session.user.clone(), context.args);
    // A user sees only the keys that it may read.
    let command = if user.unrestricted { None } else { Some(TABLE.find(args)?) };
    let mut room = Room::of(&context.reply);
    let seen = |key: &[u8]| command.is_none_or(|command| user.may_read(command, args, key));
    if wanted.limit > 0 {
        context.txn.keys(from, to, wanted.reverse, |key, entry| {
            if wanted.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, key)) && seen(key) {
                let value = if wanted.values { bytes_of(entry).ok() } else { None };
                room.take(key.len() + value.map_or(0, <[u8]>::len))?;
                found.push((key.to_vec(), value.map(<[u8]>::to_vec)));
            }
            if found.len() >= wanted.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    room.check()?;
    let reply = &mut context.reply;
    reply.array(found.len() * if wanted.values { 2 } else { 1 });
    for (key, value) in &found {
        reply.bulk(key);
        match value {
            Some(value) => reply.bulk(value),
            // The value is not a string.
            None if wanted.values => reply.null(),
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        assert_eq!(bound(b"[a").unwrap(), Bound::Included(&b"a"[..]));
        assert_eq!(bound(b"(").unwrap(), Bound::Excluded(&b""[..]));
        assert!(bound(b"a").is_err() && bound(b"").is_err());
    }
}
