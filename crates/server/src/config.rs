//! Settings: those fixed at the start, and those that `CONFIG SET` may change.

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

/// Whether TLS clients have to show certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Clients are not asked for a certificate.
    No,
    /// A client may show a certificate.
    Optional,
    /// A client must show a certificate.
    Yes,
}

/// The TLS port and its PEM files.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// TCP port; 0: any free port.
    pub port: u16,
    /// The server's certificate, followed by the chain up to its authority.
    pub cert_file: std::path::PathBuf,
    /// The private key of the certificate.
    pub key_file: std::path::PathBuf,
    /// Authorities that sign clients' certificates.
    pub ca_cert_file: Option<std::path::PathBuf>,
    /// Whether clients have to show certificates.
    pub clients: ClientCertificates,
    /// How often the server checks whether the files have changed.
    pub check_every: std::time::Duration,
}

impl TlsConfig {
    /// The default of [`TlsConfig::check_every`].
    pub const CHECK_EVERY: std::time::Duration = std::time::Duration::from_secs(60);
}

/// Who may use DEBUG, whose commands can hold up other clients.
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

    /// The variant of this name, in any case.
    pub fn named(text: &str) -> Option<DebugCommand> {
        DebugCommand::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, found)| found)
    }

    /// Its name in the settings.
    pub fn name(self) -> &'static str {
        DebugCommand::ALL[self as usize].0
    }
}

/// How to run a server. The store is opened by the caller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen on.
    pub listen: Vec<std::net::IpAddr>,
    /// TCP port; 0: any free port.
    pub port: u16,
    /// Whether there is no port without TLS.
    pub tls_only: bool,
    /// A second port, with TLS.
    pub tls: Option<TlsConfig>,
    /// Address at which `/metrics`, `/healthz` and `/readyz` are served.
    pub metrics_address: Option<std::net::SocketAddr>,
    /// Events that take at least this long, in milliseconds, are kept for LATENCY; 0: none.
    pub latency_threshold_ms: u64,
    /// Number of threads that serve connections; 0: one per processor.
    pub threads: usize,
    /// Whether a serving thread preempts whatever runs on its processor as soon as something arrives for it. Otherwise
    /// it waits for its turn, like a thread that computes all the time.
    pub wakeup_preemption: bool,
    /// Number of databases.
    pub databases: u16,
    /// The password of the default user; `None` or empty: it needs none.
    pub requirepass: Option<String>,
    /// Whether clients from other machines are refused while the default user needs no password.
    pub protected_mode: bool,
    /// Maximum number of clients at a time.
    pub max_clients: usize,
    /// Idle time in seconds after which a client is closed; 0: never.
    pub timeout_s: u64,
    /// Bytes of replies that may wait for one client; a client with more is closed. Also the limit of a single reply: a
    /// command with a larger one fails. 0: no limit.
    pub max_output_bytes: usize,
    /// Limit, in bytes, of one request, and of the commands that one client has queued for EXEC together with the keys
    /// that it watches.
    pub max_request_bytes: usize,
    /// Commands that take at least this long, in microseconds, enter the slow log; negative: none.
    pub slowlog_slower_than_us: i64,
    /// Maximum number of entries in the slow log.
    pub slowlog_max_len: usize,
    /// The ACL file with the users; [`crate::Server::start`] loads it.
    pub aclfile: Option<std::path::PathBuf>,
    /// Maximum number of entries in the log of refusals (ACL LOG).
    pub acllog_max_len: usize,
    /// Directory in which SAVE and BGSAVE make backups; `None`: they make none.
    pub backup_dir: Option<std::path::PathBuf>,
    /// Who may use DEBUG.
    pub enable_debug_command: DebugCommand,
    /// For measurements: requests are parsed and answered, but no command runs. See [`crate::net::null`].
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

/// The settings in force: the configuration of the start, and the current values of the settings that `CONFIG SET` may
/// change.
pub struct Settings {
    /// The configuration that the server was started with.
    pub started: Config,
    /// Current value of [`Config::requirepass`].
    pub requirepass: RwLock<Option<String>>,
    /// Current value of [`Config::protected_mode`].
    pub protected_mode: AtomicBool,
    /// Current value of [`Config::max_clients`].
    pub max_clients: AtomicUsize,
    /// Current value of [`Config::timeout_s`].
    pub timeout_s: AtomicU64,
    /// Current value of [`Config::max_output_bytes`].
    pub max_output_bytes: AtomicUsize,
    /// Current value of [`Config::slowlog_slower_than_us`].
    pub slowlog_slower_than_us: AtomicI64,
    /// Current value of [`Config::slowlog_max_len`].
    pub slowlog_max_len: AtomicUsize,
    /// Current value of [`Config::acllog_max_len`].
    pub acllog_max_len: AtomicUsize,
    /// Descriptors that are not available to clients; see [`crate::net::descriptors`]. [`crate::Server::start`] sets it
    /// for the number of pools.
    pub reserved_files: AtomicUsize,
    /// The latency monitor.
    pub latency: Monitor,
    /// The users.
    pub acl: Acl,
}

/// Idle time of a connection from another machine after which the system probes whether the peer is still there; as in
/// Redis.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(300);

impl Settings {
    /// The settings of a server that starts with this configuration.
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

    /// Replaces the users by those of the ACL file. If the file has rules for the default user that do not accept
    /// `requirepass`, `requirepass` is unset, as in Redis, and the log reports it.
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
