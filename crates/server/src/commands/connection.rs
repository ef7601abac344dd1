//! The connection: greeting, authentication, database, CLIENT.

use super::arguments::{Options, integer, is};
use super::failure::{Failure, shown};
use super::keys::database_number;
use super::table::flag::{ADMIN, FAST, IMMEDIATE, NO_AUTH, NO_MULTI, SECRET};
use super::table::{Command, Group};
use super::{Context, Outcome};
use crate::acl::log::Reason;
use crate::session::Replies;
use crate::shared::Client;
use hither::Durability;
use hither_resp::Protocol;
use std::sync::atomic::Ordering;
use std::time::Duration;

const fn command(
    name: &'static str,
    arity: i32,
    since: &'static str,
    summary: &'static str,
    run: fn(&mut Context<'_>) -> Outcome,
) -> Command {
    Command::new(name, arity, Group::Connection, since, summary, run)
}

const fn client(
    name: &'static str,
    arity: i32,
    since: &'static str,
    summary: &'static str,
    run: fn(&mut Context<'_>) -> Outcome,
) -> Command {
    command(name, arity, since, summary, run).of("client")
}

static CLIENT: &[Command] = &[
    client("id", 2, "5.0.0", "Returns the client's number.", client_id),
    client("getname", 2, "2.6.9", "Returns the client's name.", client_getname),
    client("setname", 3, "2.6.9", "Names the client.", client_setname),
    client("setinfo", 4, "7.2.0", "Tells the name or version of the client's library.", client_setinfo),
    client("info", 2, "6.2.0", "Describes this client.", client_info),
    client("list", -2, "2.4.0", "Describes all clients.", client_list).flags(ADMIN),
    client("kill", -3, "2.4.0", "Closes clients.", client_kill).flags(ADMIN),
    client("reply", 3, "3.2.0", "Chooses whether the client gets replies.", client_reply),
    client("no-evict", 3, "7.0.0", "Accepted for compatibility: nothing is ever evicted.", client_on_off).flags(ADMIN),
    client("no-touch", 3, "7.2.0", "Accepted for compatibility: reads change nothing.", client_on_off),
];

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("ping", -1, "1.0.0", "Answers PONG, or the argument.", ping).flags(FAST),
    command("echo", 2, "1.0.0", "Answers the argument.", echo).flags(FAST),
    command("hello", -1, "6.0.0", "Chooses the version of the protocol, with authentication if need be.", hello)
        .flags(FAST | NO_AUTH | NO_MULTI | SECRET),
    command("auth", -2, "1.0.0", "Says who the client is.", auth).flags(FAST | NO_AUTH | SECRET),
    command("select", 2, "1.0.0", "Chooses the database.", select).flags(FAST),
    command("quit", -1, "1.0.0", "Closes the connection.", quit).flags(FAST | NO_AUTH | IMMEDIATE),
    command("reset", 1, "6.2.0", "Makes the connection as it was at its beginning.", reset).flags(FAST | NO_AUTH | IMMEDIATE),
    Command::container("client", Group::Connection, "2.4.0", "Commands about clients.", CLIENT),
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
    context.session.index = index;
    let database = context.session.database()?;
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
        context.session.note_refusal(Reason::Auth, false, &context.args[0], user);
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
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        *context.session.client.name.lock() = name;
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

/// A name that can stand in `CLIENT LIST`.
fn client_name(name: &[u8]) -> Result<String, Failure> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(String::from_utf8_lossy(name).into_owned());
    }
    Err(Failure::text("ERR Client names cannot contain spaces, newlines or special characters."))
}

fn client_id(context: &mut Context<'_>) -> Outcome {
    context.reply.integer(context.session.client.id as i64);
    Ok(())
}

fn client_getname(context: &mut Context<'_>) -> Outcome {
    let name = context.session.client.name.lock();
    if name.is_empty() {
        context.reply.null()
    } else {
        context.reply.bulk(name.as_bytes())
    }
    Ok(())
}

fn client_setname(context: &mut Context<'_>) -> Outcome {
    *context.session.client.name.lock() = client_name(&context.args[2])?;
    context.reply.ok();
    Ok(())
}

fn client_setinfo(context: &mut Context<'_>) -> Outcome {
    let (attribute, value) = (&context.args[2], &context.args[3]);
    let value = client_name(value)
        .map_err(|_| Failure::made(format!("ERR {} cannot contain spaces, newlines or special characters.", shown(attribute))))?;
    let mut library = context.session.client.library.lock();
    if is(attribute, "lib-name") {
        library.0 = value;
    } else if is(attribute, "lib-ver") {
        library.1 = value;
    } else {
        return Err(Failure::made(format!("ERR Unrecognized option '{}'", shown(attribute))));
    }
    context.reply.ok();
    Ok(())
}

fn client_info(context: &mut Context<'_>) -> Outcome {
    context.reply.verbatim(&(context.session.client.describe() + "\n"));
    Ok(())
}

fn client_list(context: &mut Context<'_>) -> Outcome {
    let mut rest = Options::new(context.args, 2);
    let mut ids = None;
    match rest.next() {
        None => {}
        Some(word) if is(word, "id") && rest.left() > 0 => ids = Some(rest.map(integer).collect::<Result<Vec<_>, _>>()?),
        Some(word) if is(word, "type") && rest.left() == 1 && is(rest.value()?, "normal") => {}
        Some(_) => return Err(Failure::SYNTAX),
    }
    let mut text = String::new();
    for client in context.shared.clients.list() {
        if ids.as_ref().is_none_or(|ids| ids.contains(&(client.id as i64))) {
            text += &client.describe();
            text.push('\n');
        }
    }
    context.reply.verbatim(&text);
    Ok(())
}

/// Which clients to close.
#[derive(Default)]
struct KillFilter {
    id: Option<u64>,
    address: Option<Vec<u8>>,
    local_address: Option<Vec<u8>>,
    user: Option<String>,
    none: bool,
    skip_me: bool,
}

impl KillFilter {
    fn parse(context: &Context<'_>) -> Result<KillFilter, Failure> {
        let mut filter = KillFilter { skip_me: true, ..KillFilter::default() };
        let mut rest = Options::new(context.args, 2);
        while let Some(word) = rest.next() {
            let value = rest.value()?;
            match word.to_ascii_lowercase().as_slice() {
                b"id" => {
                    let id = u64::try_from(integer(value)?).ok().filter(|id| *id > 0);
                    filter.id = Some(id.ok_or(Failure::text("ERR client-id should be greater than 0"))?);
                }
                b"addr" => filter.address = Some(value.to_vec()),
                b"laddr" => filter.local_address = Some(value.to_vec()),
                b"type" => filter.none |= !is(value, "normal"),
                b"user" => {
                    let user = String::from_utf8_lossy(value).into_owned();
                    if context.shared.acl().user(&user).is_none() {
                        return Err(Failure::made(format!("ERR No such user '{}'", shown(value))));
                    }
                    filter.user = Some(user);
                }
                b"skipme" if is(value, "yes") || is(value, "no") => filter.skip_me = is(value, "yes"),
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(filter)
    }

    fn takes(&self, client: &Client, own: u64) -> bool {
        let left_out = self.none || self.skip_me && client.id == own;
        !left_out
            && self.id.is_none_or(|id| id == client.id)
            && self.user.as_ref().is_none_or(|user| *user == *client.user.lock())
            && self.address.as_ref().is_none_or(|address| address == client.address.as_bytes())
            && self.local_address.as_ref().is_none_or(|address| address == client.local_address.as_bytes())
    }
}

fn client_kill(context: &mut Context<'_>) -> Outcome {
    let own = context.session.client.id;
    let old_form = context.args.len() == 3;
    let filter = if old_form {
        KillFilter { address: context.args.get(2).map(<[u8]>::to_vec), ..KillFilter::default() }
    } else {
        KillFilter::parse(context)?
    };
    let mut killed = 0;
    for client in context.shared.clients.list() {
        if filter.takes(&client, own) {
            client.killed.store(true, Ordering::Release);
            killed += 1;
        }
    }
    match (old_form, killed) {
        (true, 0) => return Err(Failure::text("ERR No such client")),
        (true, _) => context.reply.ok(),
        (false, _) => context.reply.integer(killed),
    }
    Ok(())
}

fn client_reply(context: &mut Context<'_>) -> Outcome {
    let mode = &context.args[2];
    context.session.replies = if is(mode, "on") {
        Replies::On
    } else if is(mode, "off") {
        Replies::Off
    } else if is(mode, "skip") {
        Replies::SkipNext
    } else {
        return Err(Failure::SYNTAX);
    };
    if context.session.replies == Replies::On {
        context.reply.ok();
    }
    Ok(())
}

fn client_on_off(context: &mut Context<'_>) -> Outcome {
    if !is(&context.args[2], "on") && !is(&context.args[2], "off") {
        return Err(Failure::SYNTAX);
    }
    context.reply.ok();
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
        let ms = u64::try_from(rest.integer()?).map_err(|_| Failure::NOT_INTEGER)?;
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
