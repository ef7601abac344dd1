//! `serve`: the store for Redis clients, until SIGTERM, SIGINT or the command SHUTDOWN.
//!
//! Standard error gets one line for each event: `time=… level=… event=… key=value …`. No line holds keys, values or passwords.

use crate::args::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::serve_config::ServeArgs;
use crate::store::{self, Missing};
use hither_server::Server;
use hither_server::net::StartError;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs the command.
pub fn run(args: &StoreArgs, serve: ServeArgs) -> Result<Outcome, Failure> {
    let mut args = args.clone();
    let config = serve.resolve(&mut args)?;
    let open_to_all = config.requirepass.is_none() && !config.protected_mode && config.listen.iter().any(|ip| !ip.is_loopback());
    let db = store::open(&args, Missing::Create)?;
    log("info", "recovered", &[("ms", &db.recovery().elapsed_ms), ("keys", &db.stats().keyspaces.iter().map(|k| k.keys).sum::<u64>())]);
    for pool in db.stats().pools {
        let level = if pool.durable { "info" } else { "warn" };
        log(level, "pool", &[("node", &pool.node), ("medium", &pool.medium), ("survives_power_loss", &pool.durable)]);
    }
    if open_to_all {
        log("warn", "unprotected", &[("why", &"no password, no protected mode, and other machines can connect")]);
    }
    let server = Server::start(db.clone(), config).map_err(refused)?;
    server.stop_at_signals().map_err(|source| Failure::Io { what: "taking SIGTERM and SIGINT".into(), source })?;
    log("info", "ready", &[("address", &server.address())]);
    server.wait();
    log("info", "stopping", &[]);
    db.close()?;
    log("info", "closed", &[]);
    Ok(Outcome::Done)
}

fn refused(error: StartError) -> Failure {
    match error {
        StartError::Store(error) => Failure::Store(error),
        StartError::Listen { address, source } => Failure::Io { what: format!("listening at {address}"), source },
        StartError::Acl(text) => Failure::Usage(text),
        StartError::Threads(source) => Failure::Io { what: "starting the threads of the server".into(), source },
    }
}

/// Writes one event. Values with spaces are quoted.
fn log(level: &str, event: &str, pairs: &[(&str, &dyn std::fmt::Display)]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut line = format!("time={}.{:03} level={level} event={event}", now.as_secs(), now.subsec_millis());
    for (key, value) in pairs {
        let value = value.to_string();
        if value.contains([' ', '"']) {
            line += &format!(" {key}={value:?}");
        } else {
            line += &format!(" {key}={value}");
        }
    }
    eprintln!("{line}");
}
