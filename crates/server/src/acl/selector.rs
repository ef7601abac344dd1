//! One set of rights: commands, keys and channels. A user has one, and may have more in parentheses; one of them alone
//! must allow all of a command.

use super::keys::Access;
use crate::commands::table::{Numbered, TABLE, flag};
use crate::glob;
use hither_resp::Args;

/// The categories of Redis 7; those of types that do not exist here have no commands.
pub const CATEGORIES: &[&str] = &[
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// The error text for a refused rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong(pub &'static str);

/// No such rule exists.
pub const SYNTAX: Wrong = Wrong("Syntax error");
const UNKNOWN: Wrong = Wrong("Unknown command or category name in ACL");
const USELESS_PATTERN: Wrong = Wrong(
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns",
);
const USELESS_CHANNEL: Wrong = Wrong(
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels",
);

/// What of a command is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// The command itself.
    Command,
    /// The key at this place.
    Key(usize),
}

/// A key pattern, and the rights to the keys that match it.
#[derive(Clone, PartialEq, Eq)]
struct KeyPattern {
    access: Access,
    pattern: Vec<u8>,
}

/// One set of rights to commands, keys and channels.
#[derive(Clone, Default)]
pub struct Selector {
    /// One bit per command, by command number.
    commands: Vec<u64>,
    /// Whether the last rule about all commands was `+@all`.
    from_all: bool,
    /// The command rules since then, each once: `+get`, `-@write`.
    rules: Vec<String>,
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Vec<u8>>,
}

impl Selector {
    /// Applies one rule.
    ///
    /// # Errors
    /// It is not a rule; the selector is unchanged.
    pub fn apply(&mut self, rule: &[u8]) -> Result<(), Wrong> {
        let text = String::from_utf8_lossy(rule).to_ascii_lowercase();
        match text.as_str() {
            "allkeys" | "~*" => (self.all_keys, self.keys) = (true, Vec::new()),
            "resetkeys" => (self.all_keys, self.keys) = (false, Vec::new()),
            "allchannels" | "&*" => (self.all_channels, self.channels) = (true, Vec::new()),
            "resetchannels" => (self.all_channels, self.channels) = (false, Vec::new()),
            "allcommands" | "+@all" => self.all_commands(true),
            "nocommands" | "-@all" => self.all_commands(false),
            _ => return self.apply_pattern(rule),
        }
        Ok(())
    }

    fn apply_pattern(&mut self, rule: &[u8]) -> Result<(), Wrong> {
        if rule.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0 || *byte == 0x0b) {
            return Err(SYNTAX);
        }
        match rule {
            [b'~', pattern @ ..] => self.add_keys(Access { read: true, write: true }, pattern),
            [b'%', rest @ ..] => {
                let split = rest.iter().position(|byte| *byte == b'~').ok_or(SYNTAX)?;
                let mut access = Access::default();
                for letter in &rest[..split] {
                    match letter.to_ascii_uppercase() {
                        b'R' if !access.read => access.read = true,
                        b'W' if !access.write => access.write = true,
                        _ => return Err(if self.all_keys { USELESS_PATTERN } else { SYNTAX }),
                    }
                }
                if access == Access::default() {
                    return Err(SYNTAX);
                }
                self.add_keys(access, &rest[split + 1..])
            }
            [b'&', pattern @ ..] => {
                if self.all_channels {
                    return Err(USELESS_CHANNEL);
                }
                if !self.channels.iter().any(|known| known == pattern) {
                    self.channels.push(pattern.to_vec());
                }
                Ok(())
            }
            [sign @ (b'+' | b'-'), name @ ..] => self.add_commands(*sign == b'+', name),
            _ => Err(SYNTAX),
        }
    }

    fn add_keys(&mut self, access: Access, pattern: &[u8]) -> Result<(), Wrong> {
        if self.all_keys {
            return Err(USELESS_PATTERN);
        }
        if access.read && access.write && pattern == b"*" {
            return self.apply(b"allkeys");
        }
        match self.keys.iter_mut().find(|known| known.pattern == pattern) {
            Some(known) => {
                known.access.read |= access.read;
                known.access.write |= access.write;
                if pattern == b"*" && known.access.read && known.access.write {
                    return self.apply(b"allkeys");
                }
            }
            None => self.keys.push(KeyPattern { access, pattern: pattern.to_vec() }),
        }
        Ok(())
    }

    fn all_commands(&mut self, allowed: bool) {
        self.commands = vec![if allowed { u64::MAX } else { 0 }; TABLE.len().div_ceil(64)];
        self.from_all = allowed;
        self.rules.clear();
    }

    fn add_commands(&mut self, allowed: bool, name: &[u8]) -> Result<(), Wrong> {
        let name = std::str::from_utf8(name).map_err(|_| UNKNOWN)?.to_ascii_lowercase();
        if self.commands.is_empty() {
            self.all_commands(false);
        }
        if let Some(category) = name.strip_prefix('@') {
            if !CATEGORIES.contains(&category) {
                return Err(UNKNOWN);
            }
            for (number, command) in TABLE.all().enumerate() {
                if command.categories().contains(&name.as_str()) {
                    self.allow(number, allowed);
                }
            }
        } else {
            let named = TABLE.named(name.as_bytes()).ok_or(UNKNOWN)?;
            let number = TABLE.all().position(|command| std::ptr::eq(command, named)).ok_or(UNKNOWN)?;
            // A command and its subcommands, which follow it.
            (number..=number + named.subcommands.len()).for_each(|number| self.allow(number, allowed));
            let inside = format!("{name}|");
            self.rules.retain(|rule| !rule[1..].starts_with(&inside));
        }
        self.rules.retain(|rule| rule[1..] != name);
        self.rules.push(format!("{}{name}", if allowed { '+' } else { '-' }));
        Ok(())
    }

    fn allow(&mut self, number: usize, allowed: bool) {
        let bit = 1 << (number % 64);
        if allowed {
            self.commands[number / 64] |= bit;
        } else {
            self.commands[number / 64] &= !bit;
        }
    }

    /// Whether it allows everything.
    pub fn is_unrestricted(&self) -> bool {
        let all = |number: usize| self.commands.get(number / 64).is_some_and(|bits| bits >> (number % 64) & 1 == 1);
        self.all_keys && (0..TABLE.len()).all(all)
    }

    /// Checks whether it allows a command that touches `keys`.
    ///
    /// # Errors
    /// What it does not allow.
    pub fn check(&self, found: Numbered, keys: &[(usize, Access)], args: Args<'_>) -> Result<(), Denied> {
        let bits = self.commands.get(found.number / 64).copied().unwrap_or(0);
        if bits >> (found.number % 64) & 1 == 0 && !found.command.has(flag::NO_AUTH) {
            return Err(Denied::Command);
        }
        let denied = keys.iter().find(|(place, access)| args.get(*place).is_some_and(|key| !self.allows_key(key, *access)));
        denied.map_or(Ok(()), |(place, _)| Err(Denied::Key(*place)))
    }

    /// Whether a key may be used this way. O(length × patterns).
    pub fn allows_key(&self, key: &[u8], wanted: Access) -> bool {
        let enough = |has: Access| (has.read || !wanted.read) && (has.write || !wanted.write);
        self.all_keys || self.keys.iter().any(|known| enough(known.access) && glob::matches(&known.pattern, key))
    }

    /// Whether a rule explicitly allows reading all keys.
    pub fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|known| known.access.read && known.pattern == b"*")
    }

    /// Its command rules.
    pub fn describe_commands(&self) -> String {
        let base = if self.from_all { "+@all" } else { "-@all" };
        std::iter::once(base).chain(self.rules.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
    }

    /// Its key patterns.
    pub fn describe_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let one = |known: &KeyPattern| {
            let begin: &[u8] = match known.access {
                Access { read: true, write: true } => b"~",
                Access { read: true, .. } => b"%R~",
                _ => b"%W~",
            };
            [begin, &known.pattern].concat()
        };
        self.keys.iter().map(one).collect::<Vec<_>>().join(&b' ')
    }

    /// Its channel patterns.
    pub fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|channel| [b"&", channel.as_slice()].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// All its rules, in a form that can be applied again.
    pub fn describe(&self) -> Vec<u8> {
        let mut parts = vec![self.describe_keys()];
        if !self.all_channels {
            parts.push(b"resetchannels".to_vec());
        }
        parts.extend([self.describe_channels(), self.describe_commands().into_bytes()]);
        parts.retain(|part| !part.is_empty());
        parts.join(&b' ')
    }
}
