//! Settings of `hither serve`, from four places. A flag goes before the environment, that before the file, that before the default.
//!
//! | flag | environment | file (TOML) | default |
//! |---|---|---|---|
//! | `--data` | `HITHER_DATA` | `data = ["DIR"]` | must be given |
//! | `--capacity`, `--max-capacity` | | `capacity = "64M"`, `max-capacity = "64G"` | those of a new store |
//! | `--listen` (repeatable) | `HITHER_LISTEN`, separated by commas | `listen = ["127.0.0.1"]` | 127.0.0.1 |
//! | `--port` | `HITHER_PORT` | `port = 6379` | 6379 |
//! | `--threads` | `HITHER_THREADS` | `threads = 0` | 0: one per processor |
//! | `--databases` | `HITHER_DATABASES` | `databases = 16` | 16 |
//! | | `HITHER_REQUIREPASS` | `requirepass = "…"` | none |
//! | `--aclfile` | `HITHER_ACLFILE` | `aclfile = "FILE"` | none |
//! | `--protected-mode` | `HITHER_PROTECTED_MODE` | `protected-mode = true` | on |
//! | `--max-clients` | `HITHER_MAX_CLIENTS` | `max-clients = 10000` | 10000 |
//! | `--timeout` (seconds) | `HITHER_TIMEOUT` | `timeout = 0` | 0: never |
//! | `--max-output` | `HITHER_MAX_OUTPUT` | `max-output = "256M"` | 256M |
//! | `--max-request` | `HITHER_MAX_REQUEST` | `max-request = "1G"` | 1G |
//!
//! The password has no flag: everybody on the machine can read command lines.

use crate::args::StoreArgs;
use crate::failure::Failure;
use crate::units;
use hither_server::Config;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `serve`: one layer of settings; also what a file may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ServeArgs {
    /// File with settings (TOML); see docs/server.md
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Address to listen at; may be given several times [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<Vec<IpAddr>>,
    /// TCP port; 0 takes any free one [default: 6379]
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Threads that serve; 0: one for each processor [default: 0]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Databases for SELECT [default: 16]
    #[arg(long, value_name = "N")]
    pub databases: Option<u16>,
    /// Refuse other machines while there is no password: yes or no [default: yes]
    #[arg(long, value_name = "YES", value_parser = clap::builder::BoolishValueParser::new(), action = clap::ArgAction::Set)]
    pub protected_mode: Option<bool>,
    /// Clients at a time [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_clients: Option<usize>,
    /// Close clients that are idle for so many seconds; 0: never [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Close clients for which more replies wait than this [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub max_output: Option<String>,
    /// Refuse requests that are longer than this [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub max_request: Option<String>,
    /// File with the users and their rights; see docs/server.md
    #[arg(long, value_name = "FILE")]
    pub aclfile: Option<PathBuf>,
    /// The password of the default user.
    #[arg(skip)]
    pub requirepass: Option<String>,
    /// Directories of the store, as for `--data`.
    #[arg(skip)]
    pub data: Option<Vec<String>>,
    /// Size of a new store.
    #[arg(skip)]
    pub capacity: Option<String>,
    /// How far a new store may grow.
    #[arg(skip)]
    pub max_capacity: Option<String>,
}

impl ServeArgs {
    /// What is set here, and else what is set there.
    fn or(self, other: ServeArgs) -> ServeArgs {
        ServeArgs {
            config: self.config.or(other.config),
            listen: self.listen.or(other.listen),
            port: self.port.or(other.port),
            threads: self.threads.or(other.threads),
            databases: self.databases.or(other.databases),
            protected_mode: self.protected_mode.or(other.protected_mode),
            max_clients: self.max_clients.or(other.max_clients),
            timeout: self.timeout.or(other.timeout),
            max_output: self.max_output.or(other.max_output),
            max_request: self.max_request.or(other.max_request),
            aclfile: self.aclfile.or(other.aclfile),
            requirepass: self.requirepass.or(other.requirepass),
            data: self.data.or(other.data),
            capacity: self.capacity.or(other.capacity),
            max_capacity: self.max_capacity.or(other.max_capacity),
        }
    }

    /// The environment's layer; `variable` reads one.
    fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<ServeArgs, Failure> {
        fn parse<T: FromStr>(name: &str, text: Option<String>) -> Result<Option<T>, Failure> {
            text.map(|text| text.parse().map_err(|_| Failure::Usage(format!("{name} is \"{text}\", which cannot be read")))).transpose()
        }
        let number = |name: &str| parse::<u64>(name, variable(name));
        let fits = |name: &str| -> Result<Option<usize>, Failure> { parse::<usize>(name, variable(name)) };
        let listen = variable("HITHER_LISTEN");
        let listen = listen.map(|text| text.split(',').map(|one| parse("HITHER_LISTEN", Some(one.trim().to_owned()))).collect());
        let protected_mode = match variable("HITHER_PROTECTED_MODE").map(|text| text.to_ascii_lowercase()).as_deref() {
            None => None,
            Some("yes" | "true" | "on" | "1") => Some(true),
            Some("no" | "false" | "off" | "0") => Some(false),
            Some(text) => return Err(Failure::Usage(format!("HITHER_PROTECTED_MODE is \"{text}\"; say yes or no"))),
        };
        Ok(ServeArgs {
            listen: listen.map(|all: Result<Option<Vec<IpAddr>>, Failure>| all).transpose()?.flatten(),
            port: parse("HITHER_PORT", variable("HITHER_PORT"))?,
            threads: fits("HITHER_THREADS")?,
            databases: parse("HITHER_DATABASES", variable("HITHER_DATABASES"))?,
            protected_mode,
            max_clients: fits("HITHER_MAX_CLIENTS")?,
            timeout: number("HITHER_TIMEOUT")?,
            max_output: variable("HITHER_MAX_OUTPUT"),
            max_request: variable("HITHER_MAX_REQUEST"),
            aclfile: variable("HITHER_ACLFILE").map(PathBuf::from),
            requirepass: variable("HITHER_REQUIREPASS"),
            ..ServeArgs::default()
        })
    }

    /// A file's layer.
    fn from_file(path: &Path) -> Result<ServeArgs, Failure> {
        let text = std::fs::read_to_string(path).map_err(|source| Failure::path("reading the settings", path, source))?;
        // The message quotes the line at fault, but no other: passwords stay where they are.
        toml::from_str(&text).map_err(|error| Failure::Usage(format!("{}: {}", path.display(), error.message())))
    }

    /// All layers, the defaults last; what concerns the store goes into `store` where that is not set.
    pub fn resolve(self, store: &mut StoreArgs) -> Result<Config, Failure> {
        let environment = ServeArgs::from_environment(|name| std::env::var(name).ok())?;
        let file = self.config.as_deref().map(ServeArgs::from_file).transpose()?.unwrap_or_default();
        let all = self.or(environment).or(file);
        if store.data.is_empty() && std::env::var_os("HITHER_DATA").is_none() {
            store.data = all.data.clone().unwrap_or_default().into_iter().map(Into::into).collect();
        }
        let size = |text: Option<&String>| text.map(|text| units::size(text)).transpose().map_err(Failure::Usage);
        let store_size = |text: Option<&String>| text.map(|text| units::store_size(text)).transpose().map_err(Failure::Usage);
        store.capacity = store.capacity.or(store_size(all.capacity.as_ref())?);
        store.max_capacity = store.max_capacity.or(store_size(all.max_capacity.as_ref())?);
        let bytes = |text: Option<&String>| Ok::<_, Failure>(size(text)?.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)));
        let default = Config::default();
        let databases = all.databases.unwrap_or(default.databases);
        if !(1..=256).contains(&databases) {
            return Err(Failure::Usage(format!("{databases} databases are not possible; have 1 to 256")));
        }
        Ok(Config {
            port: all.port.unwrap_or(default.port),
            threads: all.threads.unwrap_or(default.threads),
            databases,
            protected_mode: all.protected_mode.unwrap_or(default.protected_mode),
            max_clients: all.max_clients.unwrap_or(default.max_clients),
            timeout_s: all.timeout.unwrap_or(default.timeout_s),
            max_output_bytes: bytes(all.max_output.as_ref())?.unwrap_or(default.max_output_bytes),
            max_request_bytes: bytes(all.max_request.as_ref())?.unwrap_or(default.max_request_bytes),
            listen: all.listen.unwrap_or(default.listen),
            aclfile: all.aclfile,
            requirepass: all.requirepass,
            ..Config::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_environment_and_that_before_the_file() {
        let flags = ServeArgs { port: Some(1), ..ServeArgs::default() };
        let environment = ServeArgs::from_environment(|name| match name {
            "HITHER_PORT" => Some("2".into()),
            "HITHER_THREADS" => Some("2".into()),
            "HITHER_LISTEN" => Some("127.0.0.1, ::1".into()),
            "HITHER_PROTECTED_MODE" => Some("No".into()),
            _ => None,
        })
        .unwrap();
        let file: ServeArgs = toml::from_str("port = 3\nthreads = 3\ntimeout = 3\nlisten = [\"0.0.0.0\"]\nrequirepass = \"x\"").unwrap();
        let all = flags.or(environment).or(file);
        assert_eq!((all.port, all.threads, all.timeout), (Some(1), Some(2), Some(3)));
        assert_eq!(all.listen.unwrap().len(), 2);
        assert_eq!((all.protected_mode, all.requirepass.as_deref()), (Some(false), Some("x")));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert!(ServeArgs::from_environment(|name| (name == "HITHER_PORT").then(|| "many".into())).is_err());
        assert!(ServeArgs::from_environment(|name| (name == "HITHER_LISTEN").then(|| "here".into())).is_err());
        assert!(toml::from_str::<ServeArgs>("prot = 1").is_err());
        assert!(toml::from_str::<ServeArgs>("port = 70000").is_err());
    }
}
