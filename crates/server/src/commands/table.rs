//! The table of all commands: what COMMAND reports of them, and the functions that run them.

use super::failure::{Failure, shown};
use super::{Context, Outcome};
use super::{
    acl, bits, blocking, client, connection, dump, expiry, hashes, keys, latency, lcs, objects, ordered, saving, server, sort, strings,
    transactions, zsets,
};
use hither_resp::Args;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

/// Flags of commands.
pub mod flag {
    /// Changes data.
    pub const WRITE: u32 = 1;
    /// Only reads data.
    pub const READONLY: u32 = 1 << 1;
    /// May need space.
    pub const DENYOOM: u32 = 1 << 2;
    /// For administrators.
    pub const ADMIN: u32 = 1 << 3;
    /// Takes constant or logarithmic time.
    pub const FAST: u32 = 1 << 4;
    /// May be used before AUTH.
    pub const NO_AUTH: u32 = 1 << 5;
    /// May not be used between MULTI and EXEC.
    pub const NO_MULTI: u32 = 1 << 6;
    /// Runs at once between MULTI and EXEC instead of being queued.
    pub const IMMEDIATE: u32 = 1 << 7;
    /// EXEC itself.
    pub const EXEC: u32 = 1 << 8;
    /// Its arguments are secret.
    pub const SECRET: u32 = 1 << 9;
    /// May harm others: takes long, or removes much.
    pub const DANGEROUS: u32 = 1 << 10;
    /// The table does not give the places of all keys; the command finds them.
    pub const MOVABLE_KEYS: u32 = 1 << 11;
    /// May wait.
    pub const BLOCKING: u32 = 1 << 12;
    /// For tests: nobody may use it unless a setting allows it.
    pub const DEBUG: u32 = 1 << 13;

    /// The names of the flags that COMMAND shows.
    pub const SHOWN: &[(u32, &str)] = &[
        (WRITE, "write"),
        (READONLY, "readonly"),
        (DENYOOM, "denyoom"),
        (ADMIN, "admin"),
        (FAST, "fast"),
        (NO_AUTH, "no_auth"),
        (BLOCKING, "blocking"),
        (NO_MULTI, "no_multi"),
        (MOVABLE_KEYS, "movablekeys"),
    ];
}

/// Families, which are also ACL categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Strings.
    String,
    /// Bits of strings.
    Bitmap,
    /// Hashes.
    Hash,
    /// Sorted sets.
    SortedSet,
    /// Keys of any type.
    Generic,
    /// The connection.
    Connection,
    /// The server.
    Server,
    /// MULTI and related commands.
    Transactions,
}

impl Group {
    /// The name in COMMAND DOCS.
    pub const fn name(self) -> &'static str {
        match self {
            Group::String => "string",
            Group::Bitmap => "bitmap",
            Group::Hash => "hash",
            Group::SortedSet => "sorted-set",
            Group::Generic => "generic",
            Group::Connection => "connection",
            Group::Server => "server",
            Group::Transactions => "transactions",
        }
    }

    /// The ACL category; the server's commands have none.
    pub const fn category(self) -> Option<&'static str> {
        match self {
            Group::String => Some("@string"),
            Group::Bitmap => Some("@bitmap"),
            Group::Hash => Some("@hash"),
            Group::SortedSet => Some("@sortedset"),
            Group::Generic => Some("@keyspace"),
            Group::Connection => Some("@connection"),
            Group::Server => None,
            Group::Transactions => Some("@transaction"),
        }
    }
}

/// A command or subcommand.
pub struct Command {
    /// The name in lower case; of a subcommand, without its container's.
    pub name: &'static str,
    /// Number of arguments including the name (for a subcommand, both names); negative: at least that many.
    pub arity: i32,
    /// See [`flag`].
    pub flags: u32,
    /// The family.
    pub group: Group,
    /// First key, last key (negative: from the end), step; zeros: none.
    pub keys: (i32, i32, i32),
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// The version of Redis that introduced it, or "hither".
    pub since: &'static str,
    /// The function that runs it.
    pub run: fn(&mut Context<'_>) -> Outcome,
    /// Subcommands; one of them must be named unless `arity` allows the command alone.
    pub subcommands: &'static [Command],
    container: &'static str,
}

impl Command {
    /// A command without keys and flags.
    pub const fn new(
        name: &'static str,
        arity: i32,
        group: Group,
        since: &'static str,
        summary: &'static str,
        run: fn(&mut Context<'_>) -> Outcome,
    ) -> Command {
        Command { name, arity, flags: 0, group, keys: (0, 0, 0), summary, since, run, subcommands: &[], container: "" }
    }

    /// Sets its flags.
    pub const fn flags(mut self, flags: u32) -> Command {
        self.flags = flags;
        self
    }

    /// Sets the places of its keys.
    pub const fn keys(mut self, first: i32, last: i32, step: i32) -> Command {
        self.keys = (first, last, step);
        self
    }

    /// Makes it a subcommand of `container`.
    pub const fn of(mut self, container: &'static str) -> Command {
        self.container = container;
        self
    }

    /// A command that only has subcommands.
    pub const fn container(
        name: &'static str,
        group: Group,
        since: &'static str,
        summary: &'static str,
        subcommands: &'static [Command],
    ) -> Command {
        let mut command = Command::new(name, -2, group, since, summary, unreachable_container);
        command.subcommands = subcommands;
        command
    }

    /// Sets its subcommands; the command can also be used without one.
    pub const fn subcommands(mut self, subcommands: &'static [Command]) -> Command {
        self.subcommands = subcommands;
        self
    }

    /// The subcommand of this name.
    pub fn named_sub(&self, name: &[u8]) -> Option<&'static Command> {
        self.subcommands.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether it has all of these flags.
    #[inline]
    pub const fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether it takes `count` arguments, its name included.
    #[inline]
    pub fn takes(&self, count: usize) -> bool {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        if self.arity >= 0 { count == self.arity } else { count >= -self.arity }
    }

    /// `name`, or `container|name`.
    pub fn full_name(&self) -> String {
        if self.container.is_empty() { self.name.to_owned() } else { format!("{}|{}", self.container, self.name) }
    }

    /// Its ACL categories.
    pub fn categories(&self) -> Vec<&'static str> {
        let mut all = Vec::new();
        for (flags, name) in [(flag::WRITE, "@write"), (flag::READONLY, "@read"), (flag::ADMIN, "@admin")] {
            if self.has(flags) {
                all.push(name);
            }
        }
        // These two are for administrators, but no harm is done if other users see them.
        if matches!(self.name, "lastsave" | "role") {
            all.push("@admin");
        }
        // Redis gives CLIENT and OBJECT themselves no category, COMMAND and WAIT that of the connection, and SORT those
        // of the types that it sorts.
        match (self.container, self.name) {
            ("command", _) | ("", "command" | "wait" | "waitaof") => all.push("@connection"),
            ("", "client" | "object") => {}
            ("", "sort" | "sort_ro") => all.extend(["@set", "@sortedset", "@list"]),
            _ => all.extend(self.group.category()),
        }
        if self.has(flag::BLOCKING) {
            all.push("@blocking");
        }
        all.push(if self.has(flag::FAST) { "@fast" } else { "@slow" });
        if self.flags & (flag::DANGEROUS | flag::ADMIN) != 0 {
            all.push("@dangerous");
        }
        all
    }

    /// The places of its keys among `count` arguments.
    pub fn key_places(&self, count: usize) -> Vec<usize> {
        let (first, last, step) = self.keys;
        if first <= 0 || step <= 0 {
            return Vec::new();
        }
        let last = if last < 0 { count as i64 + i64::from(last) } else { i64::from(last).min(count as i64 - 1) };
        (i64::from(first)..=last).step_by(step as usize).map(|place| place as usize).collect()
    }
}

/// Defines the function that makes the entries of a family: `entries!(command, Generic.keys(1, 1, 1))`. The function
/// takes name, arity, since, summary, and what runs.
macro_rules! entries {
    ($make:ident, $group:ident $($more:tt)*) => {
        const fn $make(
            name: &'static str,
            arity: i32,
            since: &'static str,
            summary: &'static str,
            run: fn(&mut $crate::commands::Context<'_>) -> $crate::commands::Outcome,
        ) -> $crate::commands::table::Command {
            use $crate::commands::table::{Command, Group};
            Command::new(name, arity, Group::$group, since, summary, run)$($more)*
        }
    };
}
pub(crate) use entries;

fn unreachable_container(_: &mut Context<'_>) -> Outcome {
    Err(Failure::SYNTAX)
}

/// A command with its number in the table.
#[derive(Clone, Copy)]
pub struct Numbered {
    /// The command.
    pub command: &'static Command,
    /// Its number.
    pub number: usize,
}

/// All commands, found by name.
pub struct Table {
    /// Each command before its subcommands.
    all: Vec<&'static Command>,
    by_name: HashMap<&'static [u8], Numbered, BuildHasherDefault<NameHasher>>,
}

/// Hashes the names of commands. They are looked up for every request, and no client can add any, so the hash need not
/// withstand attackers.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let word = word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.write_u64(word);
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Length of the longest name.
const MAX_NAME: usize = 32;

/// The one table.
pub static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let families = [
        strings::COMMANDS,
        lcs::COMMANDS,
        bits::COMMANDS,
        hashes::COMMANDS,
        zsets::COMMANDS,
        zsets::ranges::COMMANDS,
        zsets::combine::COMMANDS,
        blocking::COMMANDS,
        keys::COMMANDS,
        expiry::COMMANDS,
        ordered::COMMANDS,
        dump::COMMANDS,
        sort::COMMANDS,
        connection::COMMANDS,
        client::COMMANDS,
        server::COMMANDS,
        saving::COMMANDS,
        objects::COMMANDS,
        acl::COMMANDS,
        latency::COMMANDS,
        transactions::COMMANDS,
    ];
    let mut table = Table { all: Vec::new(), by_name: HashMap::default() };
    for command in families.into_iter().flatten() {
        table.by_name.insert(command.name.as_bytes(), Numbered { command, number: table.all.len() });
        table.all.extend(std::iter::once(command).chain(command.subcommands));
    }
    table
});

impl Table {
    /// Number of commands, including subcommands.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The command with this number.
    pub fn by_number(&self, number: usize) -> Option<&'static Command> {
        self.all.get(number).copied()
    }

    /// The commands, without subcommands.
    pub fn top(&self) -> impl Iterator<Item = &'static Command> {
        self.all.iter().copied().filter(|command| command.container.is_empty())
    }

    /// All commands, with subcommands.
    pub fn all(&self) -> impl Iterator<Item = &'static Command> {
        self.all.iter().copied()
    }

    /// The command of this name; `container|name` for subcommands.
    pub fn named(&self, name: &[u8]) -> Option<&'static Command> {
        let mut parts = name.splitn(2, |byte| *byte == b'|');
        let found = self.top_named(parts.next()?)?;
        match parts.next() {
            None => Some(found.command),
            Some(sub) => found.subcommand(sub).map(|found| found.command),
        }
    }

    /// The command of this name, which is not a subcommand.
    #[inline]
    pub fn top_named(&self, name: &[u8]) -> Option<Numbered> {
        let mut lower = [0; MAX_NAME];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.by_name.get(&*lower).copied()
    }

    /// The command or subcommand that the arguments name.
    #[inline]
    pub fn find(&self, args: Args<'_>) -> Result<Numbered, Failure> {
        let Some(found) = args.get(0).and_then(|name| self.top_named(name)) else { return Err(unknown(args)) };
        let command = found.command;
        if command.subcommands.is_empty() {
            return Ok(found);
        }
        let Some(name) = args.get(1) else { return if command.takes(1) { Ok(found) } else { Err(Failure::arity(command)) } };
        found.subcommand(name).ok_or_else(|| {
            Failure::made(format!("ERR unknown subcommand '{}'. Try {} HELP.", shown(name), command.name.to_ascii_uppercase()))
        })
    }
}

impl Numbered {
    fn subcommand(self, name: &[u8]) -> Option<Numbered> {
        let index = self.command.subcommands.iter().position(|command| command.name.as_bytes().eq_ignore_ascii_case(name))?;
        Some(Numbered { command: &self.command.subcommands[index], number: self.number + 1 + index })
    }
}

#[cold]
fn unknown(args: Args<'_>) -> Failure {
    let name = shown(args.get(0).unwrap_or_default());
    let mut begin = String::new();
    for argument in args.iter().skip(1) {
        if begin.len() >= 128 {
            break;
        }
        begin.push_str(&format!("'{}' ", shown(argument)));
    }
    Failure::made(format!("ERR unknown command '{name}', with args beginning with: {begin}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let mut seen = std::collections::HashSet::new();
        for command in TABLE.all() {
            assert!(seen.insert(command.full_name()), "{} is there twice", command.full_name());
            assert!(command.name.len() <= MAX_NAME && command.name == command.name.to_ascii_lowercase());
            assert!(!command.summary.is_empty() && command.summary.ends_with('.'), "{}", command.name);
            assert!(!(command.has(flag::WRITE) && command.has(flag::READONLY)), "{}", command.name);
            for sub in command.subcommands {
                assert_eq!(sub.container, command.name);
            }
            assert!(std::ptr::eq(TABLE.named(command.full_name().as_bytes()).unwrap(), command));
        }
    }

    #[test]
    fn numbers_lead_back() {
        for words in [&b"GET k"[..], b"client ID", b"Config Set a b", b"command", b"COMMAND docs"] {
            let words: Vec<&[u8]> = words.split(|byte| *byte == b' ').collect();
            let mut ranges = Vec::new();
            let bytes = words.concat();
            words.iter().fold(0, |at, word| {
                ranges.push(at..at + word.len());
                at + word.len()
            });
            let Ok(found) = TABLE.find(Args::new(&bytes, &ranges)) else { panic!("{words:?} is not found") };
            assert!(std::ptr::eq(TABLE.by_number(found.number).unwrap(), found.command));
        }
    }

    /// As COMMAND INFO of Redis 7.0 shows them.
    #[test]
    fn categories_are_those_of_redis() {
        for (name, expected) in [
            ("object", "@slow"),
            ("object|encoding", "@keyspace @read @slow"),
            ("client", "@slow"),
            ("client|getname", "@connection @slow"),
            ("wait", "@connection @slow"),
            ("bzpopmin", "@blocking @fast @sortedset @write"),
            ("debug", "@admin @dangerous @slow"),
            ("lastsave", "@admin @dangerous @fast"),
            ("role", "@admin @dangerous @fast"),
        ] {
            let command = TABLE.named(name.as_bytes()).unwrap();
            let mut categories = command.categories();
            categories.sort_unstable();
            assert_eq!(categories.join(" "), expected, "{name}");
            assert!(!command.has(flag::ADMIN) || name == "debug", "{name}");
        }
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let places = |name: &str, count| TABLE.named(name.as_bytes()).unwrap().key_places(count);
        assert_eq!(places("get", 2), [1]);
        assert_eq!(places("mset", 5), [1, 3]);
        assert_eq!(places("del", 4), [1, 2, 3]);
        assert!(places("ping", 2).is_empty());
    }
}
