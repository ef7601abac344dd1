//! The connection: greeting, authentication, database, durability.

use super::arguments::{Options, integer, is};
use super::client::client_name;
use super::failure::{Failure, shown};
use super::keys::database_number;
use super::table::flag::{FAST, IMMEDIATE, NO_AUTH, NO_MULTI, SECRET};
use super::table::{Command, entries};
use super::{Context, Outcome};
use crate::acl::log::Reason;
use hither::Durability;
use hither_resp::Protocol;
use std::sync::atomic::Ordering;
use std::time::Duration;

entries!(command, Connection);

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("ping", -1, "1.0.0", "Answers PONG, or the argument.", ping).flags(FAST),
    command("echo", 2, "1.0.0", "Answers the argument.", echo).flags(FAST),
    command("hello", -1, "6.0.0", "Chooses the version of the protocol, with authentication if need be.", hello)
        .flags(FAST | NO_AUTH | SECRET),
    command("auth", -2, "1.0.0", "Says who the client is.", auth).flags(FAST | NO_AUTH | SECRET),
    command("select", 2, "1.0.0", "Chooses the database.", select).flags(FAST),
    command("quit", -1, "1.0.0", "Closes the connection.", quit).flags(FAST | NO_AUTH | IMMEDIATE),
    command("reset", 1, "6.2.0", "Makes the connection as it was at its beginning.", reset).flags(FAST | NO_AUTH | IMMEDIATE),
    command("hither.durability", -1, "hither", "Shows or chooses what this connection's acknowledged writes survive.", durability)
        .flags(FAST | NO_MULTI),
];

fn ping(context: &mut Context<'_>) -> Outcome {
    match context.args.len() {
        1 => context.reply.simple("PONG"),
        2 => context.reply.bulk(&context.args[1]),
        _ => return Err(Failure::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

fn echo(context: &mut Context<'_>) -> Outcome {
    context.reply.bulk(&context.args[1]);
    Ok(())
}

fn select(context: &mut Context<'_>) -> Outcome {
    let index = database_number(context, &context.args[1])?;
    let before = std::mem::replace(&mut context.session.index, index);
    let database = match context.session.database() {
        Ok(database) => database,
        Err(failure) => {
            context.session.index = before;
            return Err(failure);
        }
    };
    context.txn.select(database);
    context.session.client.database.store(usize::from(index), Ordering::Relaxed);
    context.reply.ok();
    Ok(())
}

fn quit(context: &mut Context<'_>) -> Outcome {
    context.session.closing = true;
    context.reply.ok();
    Ok(())
}

fn reset(context: &mut Context<'_>) -> Outcome {
    context.session.reset();
    context.reply.set_protocol(Protocol::Resp2);
    context.reply.simple("RESET");
    Ok(())
}

const WRONG_PASSWORD: Failure = Failure::text("WRONGPASS invalid username-password pair or user is disabled.");

fn authenticate(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> Outcome {
    let Some(user) = context.shared.acl().authenticate(user, password) else {
        context.session.note_refusal_once(Reason::Auth, false, &context.args[0], user);
        return Err(WRONG_PASSWORD);
    };
    context.session.log_in(user);
    Ok(())
}

fn auth(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    match args.len() {
        2 => {
            if context.shared.acl().default().nopass {
                return Err(Failure::text(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
                ));
            }
            authenticate(context, b"default", &args[1])?;
        }
        3 => authenticate(context, &args[1], &args[2])?,
        _ => return Err(Failure::SYNTAX),
    }
    context.reply.ok();
    Ok(())
}

fn hello(context: &mut Context<'_>) -> Outcome {
    let mut rest = Options::new(context.args, 1);
    let mut protocol = context.session.protocol;
    if let Some(version) = rest.next() {
        protocol = match integer(version).map_err(|_| Failure::text("ERR Protocol version is not an integer or out of range"))? {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(Failure::text("NOPROTO unsupported protocol version")),
        };
    }
    let (mut credentials, mut name) = (None, None);
    while let Some(word) = rest.next() {
        let wrong = || Failure::made(format!("ERR Syntax error in HELLO option '{}'", shown(word)));
        if is(word, "auth") && rest.left() >= 2 {
            credentials = Some((rest.value()?, rest.value()?));
        } else if is(word, "setname") && rest.left() >= 1 {
            name = Some(client_name(rest.value()?)?);
        } else {
            return Err(wrong());
        }
    }
    if let Some((user, password)) = credentials {
        authenticate(context, user, password)?;
    }
    if !context.session.authenticated {
        return Err(Failure::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        context.once_applied(|_, session| *session.client.name.lock() = name);
    }
    context.session.protocol = protocol;
    let version = if protocol == Protocol::Resp3 { 3 } else { 2 };
    context.session.client.protocol.store(version, Ordering::Relaxed);
    let reply = &mut context.reply;
    reply.set_protocol(protocol);
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", super::server::REDIS_VERSION)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.count(version);
    reply.bulk(b"id");
    reply.integer(context.session.client.id as i64);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

/// `HITHER.DURABILITY [SYNC | INTERVAL ms | PROCESS | DEFAULT]`
fn durability(context: &mut Context<'_>) -> Outcome {
    let mut rest = Options::new(context.args, 1);
    let Some(level) = rest.next() else {
        let text = match context.session.options.durability {
            None => "default".to_owned(),
            Some(Durability::Sync) => "sync".to_owned(),
            Some(Durability::Process) => "process".to_owned(),
            Some(Durability::Interval(time)) => format!("interval {}", time.as_millis()),
        };
        context.reply.bulk(text.as_bytes());
        return Ok(());
    };
    let level = if is(level, "sync") {
        Some(Durability::Sync)
    } else if is(level, "process") {
        Some(Durability::Process)
    } else if is(level, "interval") {
        let ms = u64::try_from(rest.integer()?).ok().filter(|ms| *ms > 0).ok_or(Failure::NOT_INTEGER)?;
        Some(Durability::Interval(Duration::from_millis(ms)))
    } else if is(level, "default") {
        None
    } else {
        return Err(Failure::SYNTAX);
    };
    if rest.left() > 0 {
        return Err(Failure::SYNTAX);
    }
    context.session.options.durability = level;
    context.reply.ok();
    Ok(())
}
