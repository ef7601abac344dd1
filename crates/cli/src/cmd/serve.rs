//! `serve`: serves the store to Redis clients, until SIGTERM, SIGINT or the command SHUTDOWN.
//!
//! Standard error gets one line for each event, see [`hither_server::events`]; a thread of its own writes them. With
//! NOTIFY_SOCKET (systemd, `Type=notify`) the service manager is notified when the server is ready and when it stops,
//! and is asked for more time before and after ([`crate::notify`]).

use crate::args::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::notify::{self, Patience};
use crate::serve_config::ServeArgs;
use crate::store::{self, Missing};
use hither_server::backup;
use hither_server::events::writer::Writer;
use hither_server::events::{Level, log};
use hither_server::net::{StartError, check_files, listen};
use hither_server::{Config, Server};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How long a writing command waits for space in a full store before it fails with -OOM: all clients of its thread wait
/// with it.
const SPACE_PATIENCE: Duration = Duration::from_secs(1);

/// Options of a store that is served. Reads of the server do not use the cache of entries (`peek_with`), so there is
/// none: it would only take memory and attention.
fn of_server(args: &StoreArgs) -> StoreArgs {
    StoreArgs { space_patience: Some(SPACE_PATIENCE), cache_bytes: Some(0), logs: true, ..args.clone() }
}

/// Runs the command. A failure is an event of its log, too.
pub fn run(args: &StoreArgs, serve: ServeArgs) -> Outcome {
    // To the end, so that nothing that is logged here waits for whoever reads it.
    let _writer = Writer::begin();
    serve_until_told(args, serve).unwrap_or_else(|failure| {
        log(Level::Error, "failed", &[("status", &failure.status()), ("why", &failure)]);
        Outcome::Exit(ExitCode::from(failure.status()))
    })
}

fn serve_until_told(args: &StoreArgs, serve: ServeArgs) -> Result<Outcome, Failure> {
    let mut args = of_server(args);
    let serve = if args.json { serve.for_programs()? } else { serve };
    let config = serve.resolve(&mut args)?;
    let is_reachable = !config.protected_mode && config.listen.iter().any(|ip| !ip.is_loopback());
    backup::ensure_directory(&config).map_err(refused)?;
    check_files(&config).map_err(|error| refused_file(error, &config))?;
    ensure_free(&config)?;
    let patience = Patience::begin();
    let missing = if args.create.unwrap_or(true) { Missing::Create } else { Missing::Refuse };
    let db = store::open(&args, missing)?;
    log(
        Level::Info,
        "recovered",
        &[("ms", &db.recovery().elapsed_ms), ("keys", &db.stats().keyspaces.iter().map(|k| k.keys).sum::<u64>())],
    );
    for pool in db.stats().pools {
        let level = if pool.durable { Level::Info } else { Level::Warn };
        log(level, "pool", &[("node", &pool.node), ("medium", &pool.medium), ("survives_power_loss", &pool.durable)]);
    }
    let server = Server::start(db.clone(), config).map_err(refused)?;
    if is_reachable && server.shared().acl().is_open() {
        log(Level::Warn, "unprotected", &[("why", &"no password, no protected mode, and other machines can connect")]);
    }
    server.stop_at_signals().map_err(|source| Failure::Io { what: "handling SIGTERM and SIGINT".into(), source })?;
    if let Some(address) = server.tls_address() {
        log(Level::Info, "tls", &[("address", &address)]);
    }
    if let Some(address) = server.metrics_address() {
        log(Level::Info, "metrics", &[("address", &address)]);
    }
    log(Level::Info, "ready", &[("address", &server.address())]);
    drop(patience);
    notify::tell(notify::READY);
    let ended = server.wait();
    notify::tell(notify::STOPPING);
    log(Level::Info, "stopping", &[]);
    let patience = Patience::begin();
    db.close()?;
    drop(patience);
    log(Level::Info, "closed", &[]);
    // With an exit status at which a service manager starts it again.
    ended.map_err(|why| Failure::Io { what: "serving".into(), source: std::io::Error::other(why) })?;
    Ok(Outcome::Done)
}

/// Checks that the server can listen before it creates a store or recovers a large one. An address that somebody takes
/// afterwards is an error later.
fn ensure_free(config: &Config) -> Result<(), Failure> {
    let ports = (!config.tls_only).then_some(config.port).into_iter().chain(config.tls.as_ref().map(|tls| tls.port));
    for port in ports {
        try_to_bind(&config.listen, port)?;
    }
    config.metrics_address.map_or(Ok(()), |address| try_to_bind(&[address.ip()], address.port()))
}

/// Binds the addresses and releases them again, without a moment in which clients could connect.
fn try_to_bind(addresses: &[IpAddr], port: u16) -> Result<(), Failure> {
    for ip in addresses {
        let address = SocketAddr::new(*ip, port);
        listen::bind(*ip, port, addresses).map_err(|source| refused(StartError::Listen { address, source }))?;
    }
    Ok(())
}

/// The failure of a start. For a file that cannot be read, it names the setting that names the file.
fn refused_file(error: StartError, config: &Config) -> Failure {
    match error {
        StartError::File { path, source } => {
            let setting = setting_of(&path, config).map_or_else(String::new, |setting| format!("the file of {setting}, "));
            Failure::Io { what: format!("reading {setting}{}", path.display()), source }
        }
        error => refused(error),
    }
}

/// The setting that names this file. If several name it, the first: that one is read first.
fn setting_of(path: &Path, config: &Config) -> Option<&'static str> {
    let tls = config.tls.as_ref();
    let files = [
        ("tls-cert-file", tls.map(|tls| &tls.cert_file)),
        ("tls-key-file", tls.map(|tls| &tls.key_file)),
        ("tls-ca-cert-file", tls.and_then(|tls| tls.ca_cert_file.as_ref())),
        ("aclfile", config.aclfile.as_ref()),
    ];
    files.into_iter().find(|(_, file)| file.is_some_and(|file| file == path)).map(|(setting, _)| setting)
}

fn refused(error: StartError) -> Failure {
    match error {
        StartError::Store(error) => Failure::Store(error),
        StartError::Listen { address, source } => Failure::Io { what: format!("listening at {address}"), source },
        StartError::Acl(text) | StartError::Tls(text) => Failure::Usage(text),
        StartError::File { path, source } => Failure::Io { what: format!("reading {}", path.display()), source },
        error @ StartError::Backup(_) => {
            Failure::Io { what: "checking the directory for backups".into(), source: std::io::Error::other(error) }
        }
        StartError::Threads(source) => Failure::Io { what: "starting the threads of the server".into(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Found by reading: the metrics showed a cache of 64 MiB that no read of the server ever used.
    #[test]
    fn a_served_store_has_no_cache_of_entries() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let args = crate::args::Cli::try_parse_from(["hither", "serve", "--data", path, "--capacity", "8M", "--max-capacity", "8M"])
            .unwrap()
            .store;
        let cache_bytes = |args: &StoreArgs| {
            let topology = std::sync::Arc::new(hither::Topology::emulated(2));
            store::builder(args).unwrap().topology(topology).open().unwrap().stats().cache.capacity_bytes
        };
        assert_eq!([cache_bytes(&args), cache_bytes(&of_server(&args))], [64 << 20, 0]);
    }
}
