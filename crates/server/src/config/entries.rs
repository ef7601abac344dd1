//! The settings that `CONFIG GET` and `CONFIG SET` know.

use super::{KEEP_ALIVE, Settings};
use crate::events::{self, Level};
use crate::net::descriptors;
use std::sync::atomic::Ordering;

/// A refused change of settings, with the error reply that says why.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// Gives a setting a value; returns `None` if the setting cannot have it.
type Set = fn(&Settings, &str) -> Option<()>;

/// A setting as `CONFIG` knows it.
struct Entry {
    name: &'static str,
    get: fn(&Settings) -> String,
    /// `None`: fixed at the start.
    set: Option<(Takes, Set)>,
}

/// Which values a setting takes, for the error reply to any other value.
#[derive(Clone, Copy)]
enum Takes {
    /// Whatever its [`Set`] accepts, which this text describes.
    Text(&'static str),
    /// An integer between these two, both included.
    Integer(i64, i64),
}

impl Takes {
    /// Refuses, in Redis' words, a value that is invalid whatever the other settings are.
    fn ensure(self, text: &str) -> Result<(), String> {
        let Takes::Integer(from, to) = self else { return Ok(()) };
        let number: i64 = text.parse().map_err(|_| "argument couldn't be parsed into an integer".to_owned())?;
        if (from..=to).contains(&number) { Ok(()) } else { Err(format!("argument must be between {from} and {to} inclusive")) }
    }

    /// The reason for the refusal of a value that has passed [`Takes::ensure`].
    fn refusal(self) -> &'static str {
        match self {
            Takes::Text(what) => what,
            // Of the integer settings only the number of clients depends on anything else.
            Takes::Integer(..) => "the limit of open files (ulimit -n) has no room for so many clients",
        }
    }
}

const fn fixed(name: &'static str, get: fn(&Settings) -> String) -> Entry {
    Entry { name, get, set: None }
}

const fn free(name: &'static str, takes: &'static str, get: fn(&Settings) -> String, set: Set) -> Entry {
    Entry { name, get, set: Some((Takes::Text(takes), set)) }
}

/// A setting that takes an integer of `range`; `set` is never called with any other.
const fn integer(name: &'static str, range: (i64, i64), get: fn(&Settings) -> String, set: Set) -> Entry {
    Entry { name, get, set: Some((Takes::Integer(range.0, range.1), set)) }
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn parse_yes_no(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Minimum output limit: below it, the reply to any command would close its client.
const LEAST_OUTPUT: usize = 16 << 10;

pub(super) fn enough_output(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.max(LEAST_OUTPUT) }
}

/// A size as Redis writes it: `1000`, `1k`, and `1kb`, which is 1024.
fn memory(text: &str) -> Option<usize> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<usize>().ok()?.checked_mul(factor)
}

/// Parses `class hard soft seconds …`, or a size alone, and returns the hard limit of normal clients; `Some(None)` if
/// no group is about them. There are no clients of other classes, so their limits are ignored. `None`: the text is
/// wrong.
fn output_limit(text: &str) -> Option<Option<usize>> {
    let words: Vec<&str> = text.split(' ').collect();
    if let [size] = words.as_slice() {
        return memory(size).map(Some);
    }
    let mut normal = None;
    for group in words.chunks(4) {
        let &[class, hard, soft, seconds] = group else { return None };
        let (hard, _, _) = (memory(hard)?, memory(soft)?, seconds.parse::<u32>().ok()?);
        match class.to_ascii_lowercase().as_str() {
            "normal" => normal = Some(hard),
            "slave" | "replica" | "pubsub" => {}
            _ => return None,
        }
    }
    Some(normal)
}

/// Maximum of `acllog-max-len`.
const MAX_ACLLOG: i64 = 65_536;

const ENTRIES: &[Entry] = &[
    // Redis' own persistence settings, which benchmarks and tools ask for.
    fixed("appendonly", |_| "no".to_owned()),
    fixed("save", |_| String::new()),
    fixed("bind", |s| s.started.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
    fixed("databases", |s| s.started.databases.to_string()),
    fixed("port", |s| s.started.port.to_string()),
    fixed("tls-port", |s| s.started.tls.as_ref().map_or(0, |tls| tls.port).to_string()),
    fixed("tls-cert-file", |s| s.started.tls.as_ref().map_or_else(String::new, |tls| tls.cert_file.display().to_string())),
    fixed("tls-key-file", |s| s.started.tls.as_ref().map_or_else(String::new, |tls| tls.key_file.display().to_string())),
    fixed("io-threads", |s| s.started.threads.to_string()),
    fixed("maxmemory", |_| "0".to_owned()),
    fixed("maxmemory-policy", |_| "noeviction".to_owned()),
    fixed("tcp-keepalive", |_| KEEP_ALIVE.as_secs().to_string()),
    fixed("proto-max-bulk-len", |_| (512usize << 20).to_string()),
    fixed("client-query-buffer-limit", |s| s.started.max_request_bytes.to_string()),
    fixed("enable-debug-command", |s| s.started.enable_debug_command.name().to_owned()),
    fixed("aclfile", |s| s.started.aclfile.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
    fixed("backup-dir", |s| s.started.backup_dir.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
    integer(
        "acllog-max-len",
        (0, MAX_ACLLOG),
        |s| s.acllog_max_len.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|len| s.acllog_max_len.store(len, Ordering::Relaxed)),
    ),
    free(
        "client-output-buffer-limit",
        "argument must be a size, or class, hard and soft limit and seconds, as in normal 256mb 0 0",
        |s| format!("normal {} 0 0", s.max_output_bytes.load(Ordering::Relaxed)),
        |s, text| {
            if let Some(bytes) = output_limit(text)? {
                s.max_output_bytes.store(enough_output(bytes), Ordering::Relaxed);
            }
            Some(())
        },
    ),
    integer(
        "latency-monitor-threshold",
        (0, i64::MAX),
        |s| s.latency.threshold_ms.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|ms| s.latency.threshold_ms.store(ms, Ordering::Relaxed)),
    ),
    free(
        "loglevel",
        "argument must be one of the following: debug, verbose, info, notice, warn, warning, error",
        |_| events::level().name().to_owned(),
        |_, text| Level::named(text).map(events::set_level),
    ),
    integer(
        "maxclients",
        (1, u32::MAX as i64),
        |s| s.max_clients.load(Ordering::Relaxed).to_string(),
        |s, text| {
            let count: usize = text.parse().ok()?;
            // A lower count fits anyway; a higher one must fit into the limit of open files.
            let is_less = count <= s.max_clients.load(Ordering::Relaxed);
            let fits = is_less || descriptors::room_for(count, s.reserved_files.load(Ordering::Relaxed)) == count;
            fits.then(|| s.max_clients.store(count, Ordering::Relaxed))
        },
    ),
    free(
        "protected-mode",
        "argument must be 'yes' or 'no'",
        |s| yes_no(s.protected_mode.load(Ordering::Relaxed)),
        |s, text| parse_yes_no(text).map(|on| s.protected_mode.store(on, Ordering::Relaxed)),
    ),
    free(
        "requirepass",
        "the rules of the default user are too long",
        |s| s.requirepass.read().clone().unwrap_or_default(),
        |s, text| {
            let password = Some(text.to_owned()).filter(|text| !text.is_empty());
            s.acl.set_default_password(password.as_deref()).then(|| *s.requirepass.write() = password)
        },
    ),
    integer(
        "slowlog-log-slower-than",
        (-1, i64::MAX),
        |s| s.slowlog_slower_than_us.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|us| s.slowlog_slower_than_us.store(us, Ordering::Relaxed)),
    ),
    integer(
        "slowlog-max-len",
        (0, i64::MAX),
        |s| s.slowlog_max_len.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|len| s.slowlog_max_len.store(len, Ordering::Relaxed)),
    ),
    integer(
        "timeout",
        (0, i32::MAX as i64),
        |s| s.timeout_s.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|seconds| s.timeout_s.store(seconds, Ordering::Relaxed)),
    ),
];

impl Settings {
    /// Returns the settings whose names match one of the patterns, each once.
    pub fn get<'a>(&self, patterns: &[&'a [u8]]) -> Vec<(&'a [u8], String)> {
        let name_of = |entry: &Entry| {
            let asked = patterns.iter().find(|pattern| crate::glob::matches(&pattern.to_ascii_lowercase(), entry.name.as_bytes()))?;
            Some(if asked.eq_ignore_ascii_case(entry.name.as_bytes()) { *asked } else { entry.name.as_bytes() })
        };
        ENTRIES.iter().filter_map(|entry| Some((name_of(entry)?, (entry.get)(self)))).collect()
    }

    /// Changes settings: all of them or none.
    pub fn set(&self, pairs: &[(String, String)]) -> Result<(), Refused> {
        let mut changes = Vec::new();
        for (number, (name, value)) in pairs.iter().enumerate() {
            let entry = ENTRIES.iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
            let entry = entry.ok_or_else(|| Refused(format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")))?;
            let why = |why: &str| Refused(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"));
            let (takes, set) = entry.set.ok_or_else(|| why("can't set immutable config"))?;
            if pairs[..number].iter().any(|(before, _)| before.eq_ignore_ascii_case(name)) {
                return Err(why("duplicate parameter"));
            }
            takes.ensure(value).map_err(|what| why(&what))?;
            changes.push((entry.name, set, (entry.get)(self), value, why(takes.refusal())));
        }
        // The password comes last, because it cannot be restored: if ACL SETUSER has changed the default user's
        // password, `requirepass` is not the password that the user has.
        changes.sort_by_key(|(name, ..)| *name == "requirepass");
        let mut done: Vec<(Set, String)> = Vec::new();
        for (_, set, before, value, refusal) in changes {
            if set(self, value).is_none() {
                for (set, before) in done {
                    // The value was in force before, so it is valid.
                    let _ = set(self, &before);
                }
                return Err(refusal);
            }
            done.push((set, before));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DebugCommand};

    #[test]
    fn settings_change_together_or_not_at_all() {
        let settings = Settings::new(Config::default());
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        settings.set(&[pair("timeout", "7"), pair("MaxClients", "9")]).unwrap();
        assert_eq!(settings.get(&[b"TimeOut", b"MaxCl*"]), [(&b"maxclients"[..], "9".into()), (b"TimeOut", "7".into())]);
        assert!(settings.set(&[pair("timeout", "8"), pair("maxclients", "x")]).is_err());
        assert!(settings.set(&[pair("timeout", "8"), pair("port", "1")]).is_err());
        assert!(settings.set(&[pair("nothing", "8")]).is_err());
        assert!(settings.set(&[pair("slowlog-log-slower-than", "-1")]).is_ok());
        assert!(settings.set(&[pair("slowlog-log-slower-than", "-2")]).is_err());
        for (value, why) in [
            ("x", "couldn't be parsed into an integer"),
            ("-1", "must be between 0 and 2147483647 inclusive"),
            ("99999999999", "must be between 0 and 2147483647 inclusive"),
        ] {
            let refused = settings.set(&[pair("timeout", value)]).unwrap_err();
            assert!(refused.0.ends_with(&format!("related to argument 'timeout') - argument {why}")), "{refused:?}");
        }
        assert!(settings.set(&[pair("timeout", "8"), pair("TIMEOUT", "9")]).is_err());
        assert_eq!(settings.get(&[b"timeout"]), [(&b"timeout"[..], "7".into())]);
    }

    /// Regression: units and other classes were refused, the fields behind the first number were not checked, and a
    /// limit of a few bytes closed every client for good.
    #[test]
    fn limits_of_output_are_those_of_redis() {
        let settings = Settings::new(Config { max_output_bytes: 1, ..Config::default() });
        let limit = || settings.get(&[b"client-output-buffer-limit"])[0].1.clone();
        let set = |text: &str| settings.set(&[("client-output-buffer-limit".into(), text.into())]).is_ok().then(limit);
        assert_eq!(limit(), "normal 16384 0 0");
        for (text, expected) in [
            ("normal 1gb 0 0", "normal 1073741824 0 0"),
            ("normal 1mb 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60", "normal 1048576 0 0"),
            ("pubsub 32mb 8mb 60", "normal 1048576 0 0"),
            ("NORMAL 2M 1 1", "normal 2000000 0 0"),
            ("normal 1 0 0", "normal 16384 0 0"),
            ("3000000", "normal 3000000 0 0"),
            ("0", "normal 0 0 0"),
        ] {
            assert_eq!(set(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "normal",
            "x",
            "normal 1",
            "normal 1 0",
            "normal 1 x 0",
            "normal -1 0 0",
            "normal 1 0 x",
            "master 1 0 0",
            "normal 1tb 0 0",
            "normal 99999999999gb 0 0",
        ] {
            assert_eq!(set(text), None, "{text}");
        }
    }

    #[test]
    fn names_of_who_may_debug_lead_back() {
        for (name, who) in DebugCommand::ALL {
            assert_eq!((DebugCommand::named(&name.to_uppercase()), who.name()), (Some(who), name));
        }
        assert_eq!(DebugCommand::named("true"), None);
    }

    #[test]
    fn every_setting_takes_its_own_value() {
        let settings = Settings::new(Config::default());
        for entry in ENTRIES {
            let value = (entry.get)(&settings);
            if let Some((_, set)) = entry.set {
                assert_eq!(set(&settings, &value), Some(()), "{}", entry.name);
                assert_eq!((entry.get)(&settings), value, "{}", entry.name);
            }
        }
    }
}
