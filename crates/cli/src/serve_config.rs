//! Settings of `hither serve`. They come from four places: a flag takes precedence over the environment, the
//! environment over the file, the file over the default.
//!
//! | flag | environment | file (TOML) | default |
//! |---|---|---|---|
//! | `--data` | `HITHER_DATA` | `data = ["DIR"]` | must be given |
//! | `--create` | `HITHER_CREATE` | `create = true` | yes: a missing store is created |
//! | `--capacity`, `--max-capacity` | | `capacity = "64M"`, `max-capacity = "64G"` | those of a new store |
//! | `--utilization` | `HITHER_UTILIZATION` | `utilization = 80` | what fits |
//! | `--listen` (repeatable) | `HITHER_LISTEN`, separated by commas | `listen = ["127.0.0.1"]` | 127.0.0.1 |
//! | `--port` | `HITHER_PORT` | `port = 6379` | 6379 |
//! | `--threads` | `HITHER_THREADS` | `threads = 0` | 0: one per processor |
//! | `--wakeup-preemption` | `HITHER_WAKEUP_PREEMPTION` | `wakeup-preemption = false` | no |
//! | `--databases` | `HITHER_DATABASES` | `databases = 16` | 16 |
//! | `--tls-port` | `HITHER_TLS_PORT` | `tls-port = 6380` | none |
//! | `--tls-only` | `HITHER_TLS_ONLY` | `tls-only = true` | no |
//! | `--tls-cert-file`, `--tls-key-file`, `--tls-ca-cert-file` | `HITHER_TLS_CERT_FILE` … | `tls-cert-file = "FILE"`, … | with `tls-port` |
//! | `--tls-auth-clients` | `HITHER_TLS_AUTH_CLIENTS` | `tls-auth-clients = "yes"` | yes |
//! | `--metrics-address` | `HITHER_METRICS_ADDRESS` | `metrics-address = "127.0.0.1:9121"` | none |
//! | `--latency-monitor-threshold` (ms) | `HITHER_LATENCY_MONITOR_THRESHOLD` | `latency-monitor-threshold = 0` | 0: off |
//! | `--enable-debug-command` | `HITHER_ENABLE_DEBUG_COMMAND` | `enable-debug-command = "no"` | no |
//! | `--log-level` | `HITHER_LOG_LEVEL` | `log-level = "info"` | info |
//! | `--log-format` | `HITHER_LOG_FORMAT` | `log-format = "text"` | text |
//! | | `HITHER_REQUIREPASS` | `requirepass = "…"` | none |
//! | `--aclfile` | `HITHER_ACLFILE` | `aclfile = "FILE"` | none |
//! | `--backup-dir` | `HITHER_BACKUP_DIR` | `backup-dir = "DIR"` | none |
//! | `--protected-mode` | `HITHER_PROTECTED_MODE` | `protected-mode = true` | on |
//! | `--max-clients` | `HITHER_MAX_CLIENTS` | `max-clients = 10000` | 10000 |
//! | `--timeout` (seconds) | `HITHER_TIMEOUT` | `timeout = 0` | 0: never |
//! | `--max-output` | `HITHER_MAX_OUTPUT` | `max-output = "256M"` | 256M |
//! | `--max-request` | `HITHER_MAX_REQUEST` | `max-request = "1G"` | 1G |
//!
//! The password has no flag, because everybody on the machine can read command lines.

use crate::args::StoreArgs;
use crate::failure::Failure;
use crate::{store, units};
use hither_server::Config;
use hither_server::config::{ClientCertificates, DebugCommand, TlsConfig};
use hither_server::events::{self, Level};
use hither_server::net::listen::colliding;
use serde::Deserialize;
use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Most threads that may be asked for: each has its own counters for every command.
const MOST_THREADS: usize = 1024;

/// `serve`: one layer of settings. A settings file may hold these fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ServeArgs {
    /// File with settings (TOML); see docs/server.md
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Create the store if there is none: yes or no [default: yes]
    #[arg(long, value_name = "YES", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true, action = clap::ArgAction::Set)]
    pub create: Option<bool>,
    /// Address to listen on; may be given several times [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<Vec<IpAddr>>,
    /// TCP port; 0 takes any free one [default: 6379]
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Threads that serve, up to 1024; 0: one for each processor [default: 0]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Let these threads preempt others on their processors when data arrives: yes or no [default: no]
    #[arg(long, value_name = "YES", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true, action = clap::ArgAction::Set)]
    pub wakeup_preemption: Option<bool>,
    /// Number of databases, for SELECT [default: 16]
    #[arg(long, value_name = "N")]
    pub databases: Option<u16>,
    /// Refuse other machines while there is no password: yes or no [default: yes]
    #[arg(long, value_name = "YES", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true, action = clap::ArgAction::Set)]
    pub protected_mode: Option<bool>,
    /// Most clients at a time [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_clients: Option<usize>,
    /// Close clients that are idle for this many seconds; 0: never [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Close clients for which more replies wait than this, and refuse commands with one larger reply; 0: no limit
    /// [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub max_output: Option<String>,
    /// Refuse requests, and transactions, that are longer than this [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub max_request: Option<String>,
    /// File with the users and their rights; see docs/server.md
    #[arg(long, value_name = "FILE")]
    pub aclfile: Option<PathBuf>,
    /// Directory for the backups of SAVE and BGSAVE, each in a directory of its own [default: they make none]
    #[arg(long, value_name = "DIR")]
    pub backup_dir: Option<PathBuf>,
    /// Port for TLS, in addition to --port
    #[arg(long, value_name = "N")]
    pub tls_port: Option<u16>,
    /// Open no port without TLS: yes or no [default: no]
    #[arg(long, value_name = "YES", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true, action = clap::ArgAction::Set)]
    pub tls_only: Option<bool>,
    /// Certificate of the server (PEM), with those that lead to its authority
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,
    /// Certificates of the authorities for clients' certificates (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_ca_cert_file: Option<PathBuf>,
    /// Whether clients must present certificates: no, optional or yes [default: yes]
    #[arg(long, value_name = "WHICH")]
    pub tls_auth_clients: Option<String>,
    /// Serve /metrics, /healthz and /readyz at this address and port
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_address: Option<SocketAddr>,
    /// Who may use DEBUG, whose commands can hold up others: no (nobody), local (clients on this machine) or yes
    /// [default: no]
    #[arg(long, value_name = "WHO")]
    pub enable_debug_command: Option<String>,
    /// Record events that take this many milliseconds or more, for LATENCY; 0: none [default: 0]
    #[arg(long, value_name = "MS")]
    pub latency_monitor_threshold: Option<u64>,
    /// Lowest level of log lines on standard error: debug, info, warn or error [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Format of log lines on standard error: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Answer without running commands, as a baseline for measurements
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub null: bool,
    /// The password of the default user.
    #[arg(skip)]
    pub requirepass: Option<String>,
    /// Directories of the store, as for `--data`.
    #[arg(skip)]
    pub data: Option<Vec<String>>,
    /// Size of a new store.
    #[arg(skip)]
    pub capacity: Option<String>,
    /// Size up to which a new store may grow.
    #[arg(skip)]
    pub max_capacity: Option<String>,
    /// Limit of live data, in per cent of what the store may grow to.
    #[arg(skip)]
    pub utilization: Option<u32>,
}

impl ServeArgs {
    /// Merges two layers: the settings of `self`, and those of `other` where `self` has none.
    fn or(self, other: ServeArgs) -> ServeArgs {
        ServeArgs {
            config: self.config.or(other.config),
            create: self.create.or(other.create),
            listen: self.listen.or(other.listen),
            port: self.port.or(other.port),
            threads: self.threads.or(other.threads),
            wakeup_preemption: self.wakeup_preemption.or(other.wakeup_preemption),
            databases: self.databases.or(other.databases),
            protected_mode: self.protected_mode.or(other.protected_mode),
            max_clients: self.max_clients.or(other.max_clients),
            timeout: self.timeout.or(other.timeout),
            max_output: self.max_output.or(other.max_output),
            max_request: self.max_request.or(other.max_request),
            tls_port: self.tls_port.or(other.tls_port),
            tls_only: self.tls_only.or(other.tls_only),
            tls_cert_file: self.tls_cert_file.or(other.tls_cert_file),
            tls_key_file: self.tls_key_file.or(other.tls_key_file),
            tls_ca_cert_file: self.tls_ca_cert_file.or(other.tls_ca_cert_file),
            tls_auth_clients: self.tls_auth_clients.or(other.tls_auth_clients),
            metrics_address: self.metrics_address.or(other.metrics_address),
            enable_debug_command: self.enable_debug_command.or(other.enable_debug_command),
            latency_monitor_threshold: self.latency_monitor_threshold.or(other.latency_monitor_threshold),
            log_level: self.log_level.or(other.log_level),
            log_format: self.log_format.or(other.log_format),
            aclfile: self.aclfile.or(other.aclfile),
            backup_dir: self.backup_dir.or(other.backup_dir),
            null: self.null || other.null,
            requirepass: self.requirepass.or(other.requirepass),
            data: self.data.or(other.data),
            capacity: self.capacity.or(other.capacity),
            max_capacity: self.max_capacity.or(other.max_capacity),
            utilization: self.utilization.or(other.utilization),
        }
    }

    /// The layer of the environment; `variable` reads one variable.
    fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<ServeArgs, Failure> {
        fn parse<T: FromStr>(name: &str, text: Option<String>) -> Result<Option<T>, Failure> {
            text.map(|text| text.parse().map_err(|_| Failure::Usage(format!("{name} is \"{text}\", which is not valid")))).transpose()
        }
        let number = |name: &str| parse::<u64>(name, variable(name));
        let fits = |name: &str| -> Result<Option<usize>, Failure> { parse::<usize>(name, variable(name)) };
        let listen = variable("HITHER_LISTEN");
        let listen = listen.map(|text| text.split(',').map(|one| parse("HITHER_LISTEN", Some(one.trim().to_owned()))).collect());
        let yes_no = |name: &str| match variable(name).map(|text| text.to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("yes" | "true" | "on" | "1") => Ok(Some(true)),
            Some("no" | "false" | "off" | "0") => Ok(Some(false)),
            Some(text) => Err(Failure::Usage(format!("{name} is \"{text}\"; give yes or no"))),
        };
        let path = |name: &str| variable(name).map(PathBuf::from);
        // Most likely a script found no password. An empty one would take precedence over that of the file and let
        // everybody in.
        let not_empty = |name: &str| match variable(name) {
            Some(text) if text.is_empty() => Err(Failure::Usage(format!("{name} is empty; unset it if there is to be no password"))),
            given => Ok(given),
        };
        Ok(ServeArgs {
            listen: listen.map(|all: Result<Option<Vec<IpAddr>>, Failure>| all).transpose()?.flatten(),
            create: yes_no("HITHER_CREATE")?,
            port: parse("HITHER_PORT", variable("HITHER_PORT"))?,
            threads: fits("HITHER_THREADS")?,
            wakeup_preemption: yes_no("HITHER_WAKEUP_PREEMPTION")?,
            databases: parse("HITHER_DATABASES", variable("HITHER_DATABASES"))?,
            protected_mode: yes_no("HITHER_PROTECTED_MODE")?,
            max_clients: fits("HITHER_MAX_CLIENTS")?,
            timeout: number("HITHER_TIMEOUT")?,
            max_output: variable("HITHER_MAX_OUTPUT"),
            utilization: parse("HITHER_UTILIZATION", variable("HITHER_UTILIZATION"))?,
            max_request: variable("HITHER_MAX_REQUEST"),
            aclfile: path("HITHER_ACLFILE"),
            backup_dir: path("HITHER_BACKUP_DIR"),
            tls_port: parse("HITHER_TLS_PORT", variable("HITHER_TLS_PORT"))?,
            tls_only: yes_no("HITHER_TLS_ONLY")?,
            tls_cert_file: path("HITHER_TLS_CERT_FILE"),
            tls_key_file: path("HITHER_TLS_KEY_FILE"),
            tls_ca_cert_file: path("HITHER_TLS_CA_CERT_FILE"),
            tls_auth_clients: variable("HITHER_TLS_AUTH_CLIENTS"),
            metrics_address: parse("HITHER_METRICS_ADDRESS", variable("HITHER_METRICS_ADDRESS"))?,
            enable_debug_command: variable("HITHER_ENABLE_DEBUG_COMMAND"),
            latency_monitor_threshold: number("HITHER_LATENCY_MONITOR_THRESHOLD")?,
            log_level: variable("HITHER_LOG_LEVEL"),
            log_format: variable("HITHER_LOG_FORMAT"),
            requirepass: not_empty("HITHER_REQUIREPASS")?,
            ..ServeArgs::default()
        })
    }

    /// The layer of a file.
    fn from_file(path: &Path) -> Result<ServeArgs, Failure> {
        let text = std::fs::read_to_string(path).map_err(|source| Failure::path("reading the settings", path, source))?;
        toml::from_str(&text).map_err(|error| Failure::Usage(format!("{}:{}", path.display(), wrong_line(&text, &error))))
    }

    /// The files for TLS, if a port for TLS is set.
    fn tls(&self) -> Result<Option<TlsConfig>, Failure> {
        let Some(port) = self.tls_port else { return self.without_tls_port() };
        let needed = |file: &Option<PathBuf>, name: &str| file.clone().ok_or_else(|| Failure::Usage(format!("with tls-port, give {name}")));
        let clients = match self.tls_auth_clients.as_deref() {
            None | Some("yes") => ClientCertificates::Yes,
            Some("optional") => ClientCertificates::Optional,
            Some("no") => ClientCertificates::No,
            Some(text) => return Err(Failure::Usage(format!("tls-auth-clients is \"{text}\"; give no, optional or yes"))),
        };
        Ok(Some(TlsConfig {
            port,
            cert_file: needed(&self.tls_cert_file, "tls-cert-file")?,
            key_file: needed(&self.tls_key_file, "tls-key-file")?,
            ca_cert_file: self.tls_ca_cert_file.clone(),
            check_every: TlsConfig::CHECK_EVERY,
            clients,
        }))
    }

    /// The addresses to listen on. They must not collide with one another.
    fn addresses(&self, default: Vec<IpAddr>) -> Result<Vec<IpAddr>, Failure> {
        let listen = self.listen.clone().unwrap_or(default);
        if listen.is_empty() {
            return Err(Failure::Usage("listen has no address: nobody could be served".into()));
        }
        match colliding(&listen) {
            Some((a, b)) => {
                Err(Failure::Usage(format!("listen: {a} and {b} cannot be used together, because one takes the clients of the other")))
            }
            None => Ok(listen),
        }
    }

    /// Refuses settings for TLS without a port: whoever gives them expects TLS, and would get a server without it.
    fn without_tls_port(&self) -> Result<Option<TlsConfig>, Failure> {
        let given = [
            ("tls-cert-file", self.tls_cert_file.is_some()),
            ("tls-key-file", self.tls_key_file.is_some()),
            ("tls-ca-cert-file", self.tls_ca_cert_file.is_some()),
            ("tls-auth-clients", self.tls_auth_clients.is_some()),
            ("tls-only", self.tls_only == Some(true)),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Failure::Usage(format!("with {name}, give tls-port"))),
            None => Ok(None),
        }
    }

    fn debug_command(&self) -> Result<DebugCommand, Failure> {
        let named = |text: &String| {
            DebugCommand::named(text).ok_or_else(|| Failure::Usage(format!("enable-debug-command is \"{text}\"; give no, local or yes")))
        };
        self.enable_debug_command.as_ref().map_or(Ok(DebugCommand::No), named)
    }

    /// Sets how events are logged from now on.
    fn set_log(&self) -> Result<(), Failure> {
        if let Some(text) = &self.log_level {
            let level = Level::named(text);
            events::set_level(
                level.ok_or_else(|| {
                    Failure::Usage(format!("log-level is \"{text}\"; give debug, info, warn, error or one of Redis' names"))
                })?,
            );
        }
        match self.log_format.as_deref() {
            None | Some("text") => {}
            Some("json") => events::set_json(true),
            Some(text) => return Err(Failure::Usage(format!("log-format is \"{text}\"; give text or json"))),
        }
        Ok(())
    }

    /// Applies `--json`, which for `serve` sets the format of the log.
    pub fn for_programs(self) -> Result<ServeArgs, Failure> {
        events::set_json(true);
        match self.log_format.as_deref() {
            None | Some("json") => Ok(ServeArgs { log_format: Some("json".into()), ..self }),
            Some(other) => {
                Err(Failure::Usage(format!("--json asks for a log in JSON, --log-format {other} does not; leave one of them out")))
            }
        }
    }

    /// Merges all layers, the defaults last. Settings of the store go into `store`, unless they are set there.
    pub fn resolve(self, store: &mut StoreArgs) -> Result<Config, Failure> {
        // First of all, so that errors in the other settings are reported in this form.
        self.set_log()?;
        let unreadable = std::env::vars_os().find(|(name, value)| is_unreadable(name, value));
        if let Some((name, _)) = unreadable {
            return Err(Failure::Usage(format!("{} is not UTF-8", name.display())));
        }
        let environment = ServeArgs::from_environment(|name| std::env::var(name).ok())?;
        let file = self.config.as_deref().map(ServeArgs::from_file).transpose()?.unwrap_or_default();
        let all = self.or(environment).or(file);
        all.set_log()?;
        if store.data.is_empty() && store::variable().is_none() {
            store.data = all.data.clone().unwrap_or_default().into_iter().map(Into::into).collect();
        }
        store.create = all.create;
        store.capacity = store.capacity.or(size_of("capacity", all.capacity.as_ref(), units::store_size)?);
        store.max_capacity = store.max_capacity.or(size_of("max-capacity", all.max_capacity.as_ref(), units::store_size)?);
        store.utilization = store.utilization.or(all.utilization);
        let bytes = |name: &str, text: Option<&String>| {
            let size = size_of(name, text, units::size)?;
            Ok::<_, Failure>(size.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)))
        };
        let default = Config::default();
        let databases = all.databases.unwrap_or(default.databases);
        if !(1..=256).contains(&databases) {
            return Err(Failure::Usage(format!("{databases} databases are not possible; give 1 to 256")));
        }
        let threads = all.threads.unwrap_or(default.threads);
        if threads > MOST_THREADS {
            return Err(Failure::Usage(format!(
                "{threads} threads are not possible; give 1 to {MOST_THREADS}, or 0 for one per processor"
            )));
        }
        let max_clients = all.max_clients.unwrap_or(default.max_clients);
        let max_request_bytes = bytes("max-request", all.max_request.as_ref())?.unwrap_or(default.max_request_bytes);
        if max_clients == 0 || max_request_bytes == 0 {
            return Err(Failure::Usage("max-clients and max-request must be more than 0, or nobody could be served".into()));
        }
        let port = all.port.unwrap_or(default.port);
        if port != 0 && all.tls_port == Some(port) && all.tls_only != Some(true) {
            return Err(Failure::Usage(format!("port and tls-port are both {port}; give each its own port, or set tls-only")));
        }
        let config = Config {
            port,
            threads,
            wakeup_preemption: all.wakeup_preemption.unwrap_or(default.wakeup_preemption),
            databases,
            protected_mode: all.protected_mode.unwrap_or(default.protected_mode),
            max_clients,
            timeout_s: all.timeout.unwrap_or(default.timeout_s),
            max_output_bytes: bytes("max-output", all.max_output.as_ref())?.unwrap_or(default.max_output_bytes),
            max_request_bytes,
            listen: all.addresses(default.listen)?,
            tls: all.tls()?,
            tls_only: all.tls_only.unwrap_or(default.tls_only),
            enable_debug_command: all.debug_command()?,
            metrics_address: all.metrics_address,
            latency_threshold_ms: all.latency_monitor_threshold.unwrap_or(default.latency_threshold_ms),
            aclfile: all.aclfile,
            backup_dir: all.backup_dir,
            requirepass: all.requirepass,
            null: all.null,
            ..Config::default()
        };
        ensure_own_metrics_address(&config)?;
        Ok(config)
    }
}

/// Whether the server, which listens at `ip` (one of `all`), also listens where `other` would. `::` takes addresses of
/// both families, unless the server listens at IPv4 addresses by themselves (`listen::bind`).
fn share_a_place(ip: IpAddr, all: &[IpAddr], other: IpAddr) -> bool {
    let any = |wide: IpAddr, both: bool, one: IpAddr| wide.is_unspecified() && (wide.is_ipv4() == one.is_ipv4() || wide.is_ipv6() && both);
    let (one, two) = (ip.to_canonical(), other.to_canonical());
    one == two || any(one, !all.iter().any(IpAddr::is_ipv4), two) || any(two, true, one)
}

/// Refuses a metrics address at which clients are to be served: it would be found taken only when the store is open.
fn ensure_own_metrics_address(config: &Config) -> Result<(), Failure> {
    let Some(address) = config.metrics_address.filter(|address| address.port() != 0) else { return Ok(()) };
    let is_clients_port = !config.tls_only && config.port == address.port();
    let is_port_taken = is_clients_port || config.tls.as_ref().is_some_and(|tls| tls.port == address.port());
    if is_port_taken && config.listen.iter().any(|ip| share_a_place(*ip, &config.listen, address.ip())) {
        return Err(Failure::Usage(format!("metrics-address {address} is an address for clients; give it a port of its own")));
    }
    Ok(())
}

/// Reads a size with `read`; an error names the setting.
fn size_of(name: &str, text: Option<&String>, read: fn(&str) -> Result<u64, String>) -> Result<Option<u64>, Failure> {
    text.map(|text| read(text)).transpose().map_err(|why| Failure::Usage(format!("{name}: {why}")))
}

/// Whether a variable is a setting that would be ignored because it is not UTF-8. Names of directories need not be
/// UTF-8.
fn is_unreadable(name: &OsStr, value: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"HITHER_") && name != "HITHER_DATA" && value.to_str().is_none()
}

/// The number of the line at fault, and what is wrong with it. The parser's message may quote a value, but must not
/// show a password.
fn wrong_line(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let (before, rest) = text.as_bytes().split_at(at);
    let number = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    let start = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let end = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = [start, end].concat();
    let is_secret = line.windows(11).any(|word| word == b"requirepass") && !error.message().starts_with("unknown field");
    let what = if is_secret { "requirepass takes one text in quotes" } else { error.message() };
    format!("{number}: {what}")
}

#[cfg(test)]
mod tests;
