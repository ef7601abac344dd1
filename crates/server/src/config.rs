//! Settings: what is fixed at the start, and what `CONFIG SET` may change.

use crate::acl::Acl;
use crate::acl::password::Hash;
use crate::events::{self, Level};
use crate::latency::Monitor;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Gives a setting a value; `None` if it cannot be one.
type Set = fn(&Settings, &str) -> Option<()>;

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked.
    No,
    /// They may.
    Optional,
    /// They must.
    Yes,
}

/// Files for TLS, PEM each.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// TCP port; 0: any free one.
    pub port: u16,
    /// The server's certificate, with those that lead to its authority.
    pub cert_file: std::path::PathBuf,
    /// Its key.
    pub key_file: std::path::PathBuf,
    /// Authorities for clients' certificates.
    pub ca_cert_file: Option<std::path::PathBuf>,
    /// Whether clients show certificates.
    pub clients: ClientCertificates,
    /// How often it is looked whether the files have changed.
    pub check_every: std::time::Duration,
}

impl TlsConfig {
    /// What [`TlsConfig::check_every`] is, unless somebody wants it otherwise.
    pub const CHECK_EVERY: std::time::Duration = std::time::Duration::from_secs(60);
}

/// Who may use DEBUG, whose commands hold up others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugCommand {
    /// Nobody.
    #[default]
    No,
    /// Clients on this machine.
    Local,
    /// Everybody.
    Yes,
}

impl DebugCommand {
    const ALL: [(&'static str, DebugCommand); 3] = [("no", DebugCommand::No), ("local", DebugCommand::Local), ("yes", DebugCommand::Yes)];

    /// The one of this name.
    pub fn named(text: &str) -> Option<DebugCommand> {
        DebugCommand::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, found)| found)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        DebugCommand::ALL[self as usize].0
    }
}

/// How to run a server. The store is opened by the caller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen at.
    pub listen: Vec<std::net::IpAddr>,
    /// TCP port; 0: any free one.
    pub port: u16,
    /// No port without TLS.
    pub tls_only: bool,
    /// Another port, with TLS.
    pub tls: Option<TlsConfig>,
    /// Where `/metrics`, `/healthz` and `/readyz` are served.
    pub metrics_address: Option<std::net::SocketAddr>,
    /// Events that take longer, in milliseconds, are kept for LATENCY; 0: none.
    pub latency_threshold_ms: u64,
    /// Threads that serve connections; 0: one per processor.
    pub threads: usize,
    /// Whether these threads preempt what runs on their processors whenever something arrives for them; otherwise they wait for their turn, as all do that compute much.
    pub wakeup_preemption: bool,
    /// Databases.
    pub databases: u16,
    /// The password of the default user.
    pub requirepass: Option<String>,
    /// Refuses clients from other machines while there is no password.
    pub protected_mode: bool,
    /// Clients at a time.
    pub max_clients: usize,
    /// Seconds after which an idle client is closed; 0: never.
    pub timeout_s: u64,
    /// Bytes of replies that may wait for one client; beyond that it is closed. Bytes of one reply, too: a command with a larger one fails. 0: any number.
    pub max_output_bytes: usize,
    /// Bytes of one request, and of what one client has waiting for EXEC, with the keys that it watches.
    pub max_request_bytes: usize,
    /// Commands that take longer, in microseconds, are put into the slow log; negative: none.
    pub slowlog_slower_than_us: i64,
    /// Entries of the slow log.
    pub slowlog_max_len: usize,
    /// The file with the users; [`crate::Server::start`] loads it.
    pub aclfile: Option<std::path::PathBuf>,
    /// Entries of the log of refusals.
    pub acllog_max_len: usize,
    /// Where SAVE and BGSAVE make backups; none: they make none.
    pub backup_dir: Option<std::path::PathBuf>,
    /// Who may use DEBUG.
    pub enable_debug_command: DebugCommand,
    /// For measurements: requests are parsed and answered, and no command runs. See [`crate::net::null`].
    pub null: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: vec![std::net::Ipv4Addr::LOCALHOST.into()],
            port: 6379,
            tls_only: false,
            tls: None,
            metrics_address: None,
            latency_threshold_ms: 0,
            threads: 0,
            wakeup_preemption: false,
            databases: 16,
            requirepass: None,
            protected_mode: true,
            max_clients: 10_000,
            timeout_s: 0,
            max_output_bytes: 256 << 20,
            max_request_bytes: 1 << 30,
            slowlog_slower_than_us: 10_000,
            slowlog_max_len: 128,
            aclfile: None,
            backup_dir: None,
            acllog_max_len: 128,
            enable_debug_command: DebugCommand::No,
            null: false,
        }
    }
}

/// The settings in force.
pub struct Settings {
    /// As started.
    pub started: Config,
    /// See [`Config`].
    pub requirepass: RwLock<Option<String>>,
    /// See [`Config`].
    pub protected_mode: AtomicBool,
    /// See [`Config`].
    pub max_clients: AtomicUsize,
    /// See [`Config`].
    pub timeout_s: AtomicU64,
    /// See [`Config`].
    pub max_output_bytes: AtomicUsize,
    /// See [`Config`].
    pub slowlog_slower_than_us: AtomicI64,
    /// See [`Config`].
    pub slowlog_max_len: AtomicUsize,
    /// See [`Config`].
    pub acllog_max_len: AtomicUsize,
    /// Events that took long.
    pub latency: Monitor,
    /// The users.
    pub acl: Acl,
}

/// A setting that cannot be changed so, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// A setting as `CONFIG` knows it.
struct Entry {
    name: &'static str,
    get: fn(&Settings) -> String,
    /// Absent: fixed at the start. With what it takes, for those who have given something else.
    set: Option<(&'static str, Set)>,
}

const fn fixed(name: &'static str, get: fn(&Settings) -> String) -> Entry {
    Entry { name, get, set: None }
}

const fn free(name: &'static str, takes: &'static str, get: fn(&Settings) -> String, set: Set) -> Entry {
    Entry { name, get, set: Some((takes, set)) }
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

/// How long nothing comes from another machine until the system asks whether it is still there; as in Redis.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(300);

/// Least limit of output: below that, clients would be closed for the reply to any command.
const LEAST_OUTPUT: usize = 16 << 10;

fn enough_output(bytes: usize) -> usize {
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

/// The hard limit of normal clients in `class hard soft seconds …`, or a size alone; clients of other classes are not there. `None` if it is wrong.
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

/// Entries of the log of refusals at most.
const MAX_ACLLOG: usize = 65_536;

const ENTRIES: &[Entry] = &[
    // Redis' own persistence: benchmarks and tools ask for it.
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
    free(
        "acllog-max-len",
        "argument must be between 0 and 65536 inclusive",
        |s| s.acllog_max_len.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().filter(|len| *len <= MAX_ACLLOG).map(|len| s.acllog_max_len.store(len, Ordering::Relaxed)),
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
    free(
        "latency-monitor-threshold",
        "argument must be an integer from 0 on",
        |s| s.latency.threshold_ms.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|ms| s.latency.threshold_ms.store(ms, Ordering::Relaxed)),
    ),
    free(
        "loglevel",
        "argument must be one of the following: debug, info, warn, error",
        |_| events::level().name().to_owned(),
        |_, text| Level::named(text).map(events::set_level),
    ),
    free(
        "maxclients",
        "argument must be an integer from 1 on",
        |s| s.max_clients.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().filter(|count| *count > 0).map(|count| s.max_clients.store(count, Ordering::Relaxed)),
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
    free(
        "slowlog-log-slower-than",
        "argument must be between -1 and 9223372036854775807 inclusive",
        |s| s.slowlog_slower_than_us.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().filter(|us| *us >= -1).map(|us| s.slowlog_slower_than_us.store(us, Ordering::Relaxed)),
    ),
    free(
        "slowlog-max-len",
        "argument must be an integer from 0 on",
        |s| s.slowlog_max_len.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|len| s.slowlog_max_len.store(len, Ordering::Relaxed)),
    ),
    free(
        "timeout",
        "argument must be an integer from 0 on",
        |s| s.timeout_s.load(Ordering::Relaxed).to_string(),
        |s, text| text.parse().ok().map(|seconds| s.timeout_s.store(seconds, Ordering::Relaxed)),
    ),
];

impl Settings {
    /// The settings of a start.
    pub fn new(config: Config) -> Settings {
        Settings {
            acl: Acl::new(config.requirepass.as_deref().filter(|password| !password.is_empty()), config.aclfile.clone()),
            latency: Monitor::new(config.latency_threshold_ms),
            acllog_max_len: AtomicUsize::new(config.acllog_max_len),
            requirepass: RwLock::new(config.requirepass.clone().filter(|password| !password.is_empty())),
            protected_mode: AtomicBool::new(config.protected_mode),
            max_clients: AtomicUsize::new(config.max_clients),
            timeout_s: AtomicU64::new(config.timeout_s),
            max_output_bytes: AtomicUsize::new(enough_output(config.max_output_bytes)),
            slowlog_slower_than_us: AtomicI64::new(config.slowlog_slower_than_us.max(-1)),
            slowlog_max_len: AtomicUsize::new(config.slowlog_max_len),
            started: config,
        }
    }

    /// Replaces the users by those of the file. If its rules of the default user do not have `requirepass`, that is none any more, as in Redis; the log says so.
    ///
    /// # Errors
    /// See [`Acl::load`]; nothing has changed then.
    pub fn load_users(&self) -> Result<(), String> {
        self.acl.load()?;
        let mut requirepass = self.requirepass.write();
        let default = self.acl.default();
        let counts = |password: &String| !default.nopass && default.accepts(&Hash::of(password.as_bytes()));
        if requirepass.as_ref().is_some_and(|password| !counts(password)) {
            *requirepass = None;
            let why = "the ACL file has rules for the user default, and this password is none of them";
            events::log(Level::Warn, "requirepass-ignored", &[("why", &why)]);
        }
        Ok(())
    }

    /// The settings whose names match one of the patterns, each once.
    pub fn get<'a>(&self, patterns: &[&'a [u8]]) -> Vec<(&'a [u8], String)> {
        let name_of = |entry: &Entry| {
            let asked = patterns.iter().find(|pattern| crate::glob::matches(&pattern.to_ascii_lowercase(), entry.name.as_bytes()))?;
            Some(if asked.eq_ignore_ascii_case(entry.name.as_bytes()) { *asked } else { entry.name.as_bytes() })
        };
        ENTRIES.iter().filter_map(|entry| Some((name_of(entry)?, (entry.get)(self)))).collect()
    }

    /// Changes settings: all or none of them.
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
            changes.push((entry.name, set, (entry.get)(self), value, why(takes)));
        }
        // The password last: it is not what the default user has if that was changed by ACL SETUSER, so it cannot be given back.
        changes.sort_by_key(|(name, ..)| *name == "requirepass");
        let mut done: Vec<(Set, String)> = Vec::new();
        for (_, set, before, value, refusal) in changes {
            if set(self, value).is_none() {
                for (set, before) in done {
                    // It was in force: it can be set.
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
        assert!(settings.set(&[pair("timeout", "8"), pair("TIMEOUT", "9")]).is_err());
        assert_eq!(settings.get(&[b"timeout"]), [(&b"timeout"[..], "7".into())]);
    }

    /// Regression: units and other classes were refused, what stood behind the first number was not looked at, and a few bytes closed every client for good.
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
