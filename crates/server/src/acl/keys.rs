//! What a command does with each of its keys: reads the value, writes it, or only asks whether something is there.
//!
//! As in Redis, a command that reveals nothing of a value (EXISTS, STRLEN, TYPE …) needs some right to the key, and one
//! that replaces or removes a value without revealing it needs only the right to write.

use crate::commands::table::{Command, Numbered, TABLE, flag};
use hither_resp::{Args, parse_integer};
use std::sync::LazyLock;

/// The rights that a command needs to a key; neither: any right is enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Values are revealed.
    pub read: bool,
    /// Values change.
    pub write: bool,
}

/// What a command does with a key, in the words of COMMAND GETKEYSANDFLAGS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use(&'static str);

/// Asks whether the key exists, or for something other than its value.
const ASK: Use = Use("RO");
const READ: Use = Use("RO access");
const REPLACE: Use = Use("OW update");
const CREATE: Use = Use("OW insert");
const REMOVE: Use = Use("RM delete");
const TAKE: Use = Use("RW access delete");
const DELETE: Use = Use("RW delete");
const INSERT: Use = Use("RW insert");
const UPDATE: Use = Use("RW update");
const CHANGE: Use = Use("RW access update");

impl Use {
    /// The words of [`Use`].
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.0.split(' ')
    }

    /// The rights that it needs.
    fn access(self) -> Access {
        let write = self.names().any(|name| ["update", "insert", "delete"].contains(&name));
        Access { read: self.names().any(|name| name == "access"), write }
    }
}

/// Commands whose flags in the table are not enough: what they do with their first key, and with the other keys.
const USES: &[(Use, Use, &[&str])] = &[
    (ASK, ASK, &["strlen", "exists", "touch", "type", "hexists", "hlen", "hstrlen", "zcard", "memory|usage", "watch"]),
    (ASK, ASK, &["object|encoding", "object|freq", "object|idletime", "object|refcount"]),
    (REPLACE, REPLACE, &["mset", "psetex", "restore", "set", "setex"]),
    (CREATE, CREATE, &["msetnx", "setnx"]),
    (REMOVE, REMOVE, &["del", "unlink"]),
    (TAKE, TAKE, &["bzmpop", "bzpopmax", "bzpopmin", "getdel", "zmpop", "zpopmax", "zpopmin"]),
    (DELETE, DELETE, &["hdel", "zrem", "zremrangebylex", "zremrangebyrank", "zremrangebyscore"]),
    (INSERT, INSERT, &["append", "hsetnx"]),
    (UPDATE, UPDATE, &["expire", "expireat", "hmset", "hset", "persist", "pexpire", "pexpireat", "setrange", "zadd"]),
    (REPLACE, READ, &["bitop", "zdiffstore", "zinterstore", "zrangestore", "zunionstore"]),
    (READ, REPLACE, &["copy", "sort"]),
    (TAKE, REPLACE, &["rename"]),
    (TAKE, CREATE, &["renamenx"]),
];

/// What a command does with its first key, and with the other keys.
fn of(command: &Command) -> (Use, Use) {
    let name = command.full_name();
    let known = USES.iter().find(|(_, _, names)| names.contains(&name.as_str())).map(|(first, rest, _)| (*first, *rest));
    known.unwrap_or(if command.has(flag::WRITE) { (CHANGE, CHANGE) } else { (READ, READ) })
}

static ACCESSES: LazyLock<Vec<(Use, Use)>> = LazyLock::new(|| TABLE.all().map(of).collect());

/// The places of a command's keys, with the rights needed there.
pub fn accesses(found: Numbered, args: Args<'_>) -> Vec<(usize, Access)> {
    let uses = uses_by(found.command, ACCESSES[found.number], args.len(), |index| args.get(index));
    uses.into_iter().map(|(place, does)| (place, does.access())).collect()
}

/// The places of a command's keys, with what it does there.
pub fn uses_in(command: &Command, words: &[&[u8]]) -> Vec<(usize, Use)> {
    uses_by(command, of(command), words.len(), |index| words.get(index).copied())
}

fn uses_by<'a>(command: &Command, uses: (Use, Use), len: usize, word: impl Fn(usize) -> Option<&'a [u8]>) -> Vec<(usize, Use)> {
    let (mut first, rest) = uses;
    let has = |from: usize, words: &[&str]| {
        (from..len).any(|at| word(at).is_some_and(|word| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))))
    };
    match command.name {
        // With GET, SET reveals the old value.
        "set" if has(3, &["get"]) => first = CHANGE,
        // Without SET and INCRBY, BITFIELD does not write.
        "bitfield" if reads_bits_only(len, &word) => first = READ,
        _ => {}
    }
    let places = places_by(command, len, word);
    places.into_iter().enumerate().map(|(index, place)| (place, if index == 0 { first } else { rest })).collect()
}

/// Whether a BITFIELD command only reads. A malformed one counts as a write, as in Redis.
fn reads_bits_only<'a>(len: usize, word: impl Fn(usize) -> Option<&'a [u8]>) -> bool {
    let mut at = 2;
    while at < len {
        let is = |name: &str| word(at).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
        at += if is("get") {
            3
        } else if is("overflow") {
            2
        } else {
            return false;
        };
    }
    at == len
}

fn places_by<'a>(command: &Command, len: usize, word: impl Fn(usize) -> Option<&'a [u8]>) -> Vec<usize> {
    let mut places = command.key_places(len);
    let is_store = |at: &usize| word(*at).is_some_and(|word| word.eq_ignore_ascii_case(b"store"));
    if command.name == "sort" {
        // The last STORE counts.
        places.extend((2..len.saturating_sub(1)).rev().find(is_store).map(|at| at + 1));
    } else if command.name == "sort_ro" {
        // Apart from its first key, only its patterns lead to keys.
    } else if command.has(flag::MOVABLE_KEYS) {
        let at = number_of_keys(command, &places);
        match count_of_keys(word(at), len, at) {
            Some(count) => places.extend(at + 1..=at + count),
            // As in Redis. The command refuses such a number before it looks at any key.
            None => places.clear(),
        }
    }
    places
}

/// The place of the number of keys: `[destination | timeout] numkeys key …`.
fn number_of_keys(command: &Command, fixed: &[usize]) -> usize {
    fixed.len() + if command.has(flag::BLOCKING) { 2 } else { 1 }
}

/// The number of keys that stands at place `at`, if that many arguments can follow.
fn count_of_keys(said: Option<&[u8]>, len: usize, at: usize) -> Option<usize> {
    let count = said.and_then(parse_integer).and_then(|count| usize::try_from(count).ok())?;
    (1..=len.saturating_sub(at + 1)).contains(&count).then_some(count)
}

/// Whether as many keys follow as the command announces, if it announces a number.
pub fn are_as_many_as_said(command: &Command, words: &[&[u8]]) -> bool {
    if !command.has(flag::MOVABLE_KEYS) || matches!(command.name, "sort" | "sort_ro") {
        return true;
    }
    let at = number_of_keys(command, &command.key_places(words.len()));
    count_of_keys(words.get(at).copied(), words.len(), at).is_some()
}

#[cfg(test)]
mod tests {
    use super::{Access, USES, uses_in};
    use crate::commands::table::{TABLE, flag};
    use hither_resp::Args;

    const NONE: Access = Access { read: false, write: false };
    const READ: Access = Access { read: true, write: false };
    const WRITE: Access = Access { read: false, write: true };
    const BOTH: Access = Access { read: true, write: true };

    fn accesses_of(line: &str) -> Vec<(usize, Access)> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let mut at = 0;
        let ranges: Vec<_> = words.iter().map(|word| (at, at += word.len())).map(|(start, ())| start).collect();
        let ranges: Vec<_> = ranges.iter().zip(&words).map(|(start, word)| *start..start + word.len()).collect();
        let bytes = words.concat();
        let args = Args::new(&bytes, &ranges);
        super::accesses(TABLE.find(args).unwrap_or_else(|_| panic!("{line}")), args)
    }

    #[test]
    fn lists_name_commands_of_the_right_kind() {
        for (first, rest, names) in USES {
            for name in *names {
                let command = TABLE.named(name.as_bytes()).unwrap();
                assert_eq!(command.has(flag::WRITE), first.access().write || rest.access().write, "{name}");
            }
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
        for wrong in ["ZUNION 99 a b", "ZUNION 0 a b", "ZUNION -1 a b", "ZUNIONSTORE d 3 a b", "BZMPOP 0 3 a MIN"] {
            assert_eq!(accesses_of(wrong), [], "{wrong}");
        }
        assert_eq!(accesses_of("ZUNION x a b"), []);
        assert_eq!(accesses_of("BITFIELD a GET u8 0"), [(1, READ)]);
        assert_eq!(accesses_of("BITFIELD a GET u8 0 incrBY u8 0 1"), [(1, BOTH)]);
        assert_eq!(accesses_of("BITOP AND d a b"), [(2, WRITE), (3, READ), (4, READ)]);
        assert_eq!(accesses_of("MEMORY USAGE a"), [(2, NONE)]);
        assert_eq!(accesses_of("BZMPOP 0 2 a b MIN"), [(3, BOTH), (4, BOTH)]);
        assert_eq!(accesses_of("BZPOPMIN a b 0"), [(1, BOTH), (2, BOTH)]);
        assert_eq!(accesses_of("SORT a STORE b BY x STORE c"), [(1, READ), (7, WRITE)]);
        assert_eq!(accesses_of("SORT_RO a STORE b"), [(1, READ)]);
        assert_eq!(accesses_of("RESTORE a 0 payload"), [(1, WRITE)]);
        assert_eq!(accesses_of("PING a"), []);
    }

    #[test]
    fn uses_in_words() {
        let uses = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let uses = uses_in(TABLE.named(words[0]).unwrap(), &words);
            uses.into_iter().map(|(place, does)| (place, does.names().collect::<Vec<_>>().join("+"))).collect::<Vec<_>>()
        };
        assert_eq!(uses("get a"), [(1, "RO+access".to_owned())]);
        assert_eq!(uses("set a b"), [(1, "OW+update".to_owned())]);
        assert_eq!(uses("rename a b"), [(1, "RW+access+delete".to_owned()), (2, "OW+update".to_owned())]);
    }
}
