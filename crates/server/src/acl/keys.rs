//! What a command does with each of its keys: reads what is there, writes, or only asks whether something is there.
//!
//! As in Redis: a command that tells nothing of a value (EXISTS, STRLEN, TYPE …) needs some right to the key; one that replaces or removes a value without telling of
//! it needs to write only.

use crate::commands::table::{Command, Numbered, TABLE, flag};
use hither_resp::{Args, parse_integer};
use std::sync::LazyLock;

/// What a key must be allowed for; nothing: any right will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Values are told of.
    pub read: bool,
    /// Values change.
    pub write: bool,
}

const NONE: Access = Access { read: false, write: false };
const READ: Access = Access { read: true, write: false };
const WRITE: Access = Access { read: false, write: true };
const BOTH: Access = Access { read: true, write: true };

/// Reads that tell nothing of a value.
const METADATA: &[&str] = &[
    "strlen",
    "exists",
    "touch",
    "type",
    "hexists",
    "hlen",
    "hstrlen",
    "zcard",
    "object|encoding",
    "object|freq",
    "object|idletime",
    "object|refcount",
    "memory|usage",
    "watch",
];

/// Writes that tell nothing of a value.
const BLIND: &[&str] = &[
    "append",
    "mset",
    "msetnx",
    "psetex",
    "set",
    "setex",
    "setnx",
    "setrange",
    "del",
    "unlink",
    "expire",
    "expireat",
    "pexpire",
    "pexpireat",
    "persist",
    "hdel",
    "hmset",
    "hset",
    "hsetnx",
    "zadd",
    "zrem",
    "zremrangebylex",
    "zremrangebyrank",
    "zremrangebyscore",
];

/// The accesses to the first key, and to those behind it.
fn of(command: &Command) -> (Access, Access) {
    let name = command.full_name();
    match name.as_str() {
        "copy" => (READ, WRITE),
        "rename" | "renamenx" => (BOTH, WRITE),
        "bitop" | "zrangestore" | "zunionstore" | "zinterstore" | "zdiffstore" => (WRITE, READ),
        name if METADATA.contains(&name) => (NONE, NONE),
        name if BLIND.contains(&name) => (WRITE, WRITE),
        _ if command.has(flag::WRITE) => (BOTH, BOTH),
        _ => (READ, READ),
    }
}

static ACCESSES: LazyLock<Vec<(Access, Access)>> = LazyLock::new(|| TABLE.all().map(of).collect());

/// The places of a command's keys with what it does there.
pub fn accesses(found: Numbered, args: Args<'_>) -> Vec<(usize, Access)> {
    let (mut first, rest) = ACCESSES[found.number];
    // SET tells of the old value if asked to.
    if found.command.name == "set" && args.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get")) {
        first = BOTH;
    }
    // BITFIELD writes only if asked to.
    let writes = |word: &[u8]| word.eq_ignore_ascii_case(b"set") || word.eq_ignore_ascii_case(b"incrby");
    if found.command.name == "bitfield" && !args.iter().skip(2).any(writes) {
        first = READ;
    }
    let places = places_by(found.command, args.len(), |index| args.get(index));
    places.into_iter().enumerate().map(|(index, place)| (place, if index == 0 { first } else { rest })).collect()
}

/// The places of a command's keys.
pub fn places_in(command: &Command, words: &[&[u8]]) -> Vec<usize> {
    places_by(command, words.len(), |index| words.get(index).copied())
}

fn places_by<'a>(command: &Command, len: usize, word: impl Fn(usize) -> Option<&'a [u8]>) -> Vec<usize> {
    let mut places = command.key_places(len);
    if command.has(flag::MOVABLE_KEYS) {
        // [destination | timeout] numkeys key …; a wrong number is the command's to refuse.
        let at = places.len() + if command.has(flag::BLOCKING) { 2 } else { 1 };
        let count = word(at).and_then(parse_integer).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        places.extend((at + 1..len).take(count));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accesses_of(line: &str) -> Vec<(usize, Access)> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let mut at = 0;
        let ranges: Vec<_> = words.iter().map(|word| (at, at += word.len())).map(|(start, ())| start).collect();
        let ranges: Vec<_> = ranges.iter().zip(&words).map(|(start, word)| *start..start + word.len()).collect();
        let bytes = words.concat();
        let args = Args::new(&bytes, &ranges);
        accesses(TABLE.find(args).unwrap_or_else(|_| panic!("{line}")), args)
    }

    #[test]
    fn lists_name_commands_of_the_right_kind() {
        for name in BLIND {
            assert!(TABLE.named(name.as_bytes()).unwrap().has(flag::WRITE), "{name}");
        }
        for name in METADATA {
            assert!(!TABLE.named(name.as_bytes()).unwrap().has(flag::WRITE), "{name}");
        }
    }

    #[test]
    fn keys_and_what_is_done_with_them() {
        assert_eq!(accesses_of("GET a"), [(1, READ)]);
        assert_eq!(accesses_of("SET a get"), [(1, WRITE)]);
        assert_eq!(accesses_of("SET a b Get"), [(1, BOTH)]);
        assert_eq!(accesses_of("INCR a"), [(1, BOTH)]);
        assert_eq!(accesses_of("EXISTS a b"), [(1, NONE), (2, NONE)]);
        assert_eq!(accesses_of("COPY a b"), [(1, READ), (2, WRITE)]);
        assert_eq!(accesses_of("RENAME a b"), [(1, BOTH), (2, WRITE)]);
        assert_eq!(accesses_of("MSET a 1 b 2"), [(1, WRITE), (3, WRITE)]);
        assert_eq!(accesses_of("ZUNIONSTORE d 2 a b WEIGHTS 1 2"), [(1, WRITE), (3, READ), (4, READ)]);
        assert_eq!(accesses_of("ZUNION 2 a b"), [(2, READ), (3, READ)]);
        assert_eq!(accesses_of("ZUNION 99 a b"), [(2, READ), (3, READ)]);
        assert_eq!(accesses_of("ZUNION x a b"), []);
        assert_eq!(accesses_of("BITFIELD a GET u8 0"), [(1, READ)]);
        assert_eq!(accesses_of("BITFIELD a GET u8 0 incrBY u8 0 1"), [(1, BOTH)]);
        assert_eq!(accesses_of("BITOP AND d a b"), [(2, WRITE), (3, READ), (4, READ)]);
        assert_eq!(accesses_of("MEMORY USAGE a"), [(2, NONE)]);
        assert_eq!(accesses_of("PING a"), []);
    }
}
