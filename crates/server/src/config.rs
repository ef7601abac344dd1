//! Settings: what is fixed at the start, and what `CONFIG SET` may change.

mod entries;

pub use entries::Refused;

use crate::acl::Acl;
use crate::acl::password::Hash;
use crate::events::{self, Level};
use crate::latency::Monitor;
use crate::net::descriptors;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::time::Duration;

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
    /// Descriptors that are not clients'; see [`crate::net::descriptors`].
    pub reserved_files: AtomicUsize,
    /// Events that took long.
    pub latency: Monitor,
    /// The users.
    pub acl: Acl,
}

/// How long nothing comes from another machine until the system asks whether it is still there; as in Redis.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(300);

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
            reserved_files: AtomicUsize::new(descriptors::reserve(config.threads, 1)),
            max_output_bytes: AtomicUsize::new(entries::enough_output(config.max_output_bytes)),
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
}
