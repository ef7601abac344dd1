//! CLIENT: which clients are connected, and control over them.

use super::arguments::{Options, integer, is};
use super::failure::{Failure, shown};
use super::table::flag::{ADMIN, NO_MULTI};
use super::table::{Command, Group, entries};
use super::{Context, Outcome, help};
use crate::events::Level;
use crate::pause::Pause;
use crate::session::{Replies, Session};
use crate::shared::{Client, Shared, now_ms};
use hither_resp::parse_integer;
use std::sync::Arc;

entries!(client, Connection.of("client"));

static CLIENT: &[Command] = &[
    client("id", 2, "5.0.0", "Returns the client's number.", client_id),
    client("getname", 2, "2.6.9", "Returns the client's name.", client_getname),
    client("setname", 3, "2.6.9", "Names the client.", client_setname),
    client("setinfo", 4, "7.2.0", "Tells the name or version of the client's library.", client_setinfo),
    client("info", 2, "6.2.0", "Describes this client.", client_info),
    client("list", -2, "2.4.0", "Describes all clients.", client_list).flags(ADMIN),
    client("kill", -3, "2.4.0", "Closes clients.", client_kill).flags(ADMIN),
    client("reply", 3, "3.2.0", "Chooses whether the client gets replies.", client_reply).flags(NO_MULTI),
    client("no-evict", 3, "7.0.0", "Accepted for compatibility: nothing is ever evicted.", client_on_off).flags(ADMIN),
    client("no-touch", 3, "7.2.0", "Accepted for compatibility: reads change nothing.", client_on_off),
    client("pause", -3, "3.0.0", "Holds up all commands, or all that write, for some time.", client_pause).flags(ADMIN),
    client("unpause", 2, "6.2.0", "Ends CLIENT PAUSE.", client_unpause).flags(ADMIN),
    client("unblock", -3, "5.0.0", "Ends the waiting of a client's command.", client_unblock).flags(ADMIN | NO_MULTI),
    client("tracking", -3, "6.0.0", "Refused: there is no client-side caching. OFF is accepted.", client_tracking),
    client("trackinginfo", 2, "6.2.0", "Says that nothing is tracked.", client_trackinginfo),
    client("getredir", 2, "6.0.0", "Returns -1: nothing is tracked.", client_getredir),
    client("caching", 3, "6.0.0", "Refused: there is no client-side caching.", client_caching),
    help::of("client", Group::Connection, "5.0.0"),
];

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[Command::container("client", Group::Connection, "2.4.0", "Commands about clients.", CLIENT)];

/// Maximum length of a client's name, and of its library's name and version: they are kept while it is connected, and
/// shown in logs and lists.
const MOST_NAME_BYTES: usize = 1024;

/// Checks a name, which must be able to stand in `CLIENT LIST`.
pub fn client_name(name: &[u8]) -> Result<String, Failure> {
    check_length(name)?;
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(String::from_utf8_lossy(name).into_owned());
    }
    Err(Failure::text("ERR Client names cannot contain spaces, newlines or special characters."))
}

fn check_length(name: &[u8]) -> Outcome {
    if name.len() <= MOST_NAME_BYTES {
        return Ok(());
    }
    Err(Failure::text("ERR names of clients and libraries have at most 1024 bytes"))
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
    let name = client_name(&context.args[2])?;
    context.once_applied(|_, session| *session.client.name.lock() = name);
    context.reply.ok();
    Ok(())
}

fn client_setinfo(context: &mut Context<'_>) -> Outcome {
    let (attribute, value) = (&context.args[2], &context.args[3]);
    check_length(value)?;
    let value = client_name(value)
        .map_err(|_| Failure::made(format!("ERR {} cannot contain spaces, newlines or special characters.", shown(attribute))))?;
    if is(attribute, "lib-name") {
        context.once_applied(|_, session| session.client.library.lock().0 = value);
    } else if is(attribute, "lib-ver") {
        context.once_applied(|_, session| session.client.library.lock().1 = value);
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
        Some(word) if is(word, "id") && rest.left() > 0 => {
            let wrong = |_| Failure::text("ERR Invalid client ID");
            ids = Some(rest.map(|id| integer(id).map_err(wrong)).collect::<Result<Vec<_>, _>>()?);
        }
        Some(word) if is(word, "type") && rest.left() == 1 => ids = (!is_normal(rest.value()?)?).then(Vec::new),
        Some(_) => return Err(Failure::SYNTAX),
    }
    let clients = &context.shared.clients;
    let listed: &mut dyn Iterator<Item = Arc<Client>> = match ids {
        None => &mut clients.list().into_iter(),
        // In the order given, and as often.
        Some(ids) => &mut ids.into_iter().filter_map(|id| clients.get(u64::try_from(id).ok()?)),
    };
    let (mut text, room) = (String::new(), context.reply.room());
    for client in listed {
        text += &client.describe();
        text.push('\n');
        if text.len() > room {
            return Err(Failure::ReplyTooLarge);
        }
    }
    context.reply.verbatim(&text);
    Ok(())
}

/// Whether a client type is `normal`, which all clients are.
fn is_normal(kind: &[u8]) -> Result<bool, Failure> {
    if !["normal", "slave", "replica", "pubsub", "master"].iter().any(|known| is(kind, known)) {
        return Err(Failure::made(format!("ERR Unknown client type '{}'", shown(kind))));
    }
    Ok(is(kind, "normal"))
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
                    let id = integer(value).ok().and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
                    filter.id = Some(id.ok_or(Failure::text("ERR client-id should be greater than 0"))?);
                }
                b"addr" => filter.address = Some(value.to_vec()),
                b"laddr" => filter.local_address = Some(value.to_vec()),
                b"type" => filter.none |= !is_normal(value)?,
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
    let mut taken = context.shared.clients.list();
    taken.retain(|client| filter.takes(client, own));
    match (old_form, taken.len()) {
        (true, 0) => return Err(Failure::text("ERR No such client")),
        (true, _) => context.reply.ok(),
        (false, killed) => context.reply.count(killed),
    }
    context.once_applied(move |shared, session| taken.iter().for_each(|client| close(shared, session, client)));
    Ok(())
}

/// Closes a client for the one that sent CLIENT KILL.
fn close(shared: &Shared, session: &mut Session, client: &Client) {
    let why = format!("CLIENT KILL by client {}", session.client.id);
    if client.id == session.client.id {
        // A client that kills itself gets its reply first.
        session.closing = true;
        client.log_closed(Level::Info, &why);
    } else {
        shared.kill(client, Level::Info, &why);
    }
}

fn client_reply(context: &mut Context<'_>) -> Outcome {
    let mode = &context.args[2];
    context.session.replies = if is(mode, "on") {
        Replies::On
    } else if is(mode, "off") {
        Replies::Off
    } else if is(mode, "skip") {
        // A client with replies off gets none behind SKIP either.
        if context.session.replies == Replies::Off { Replies::Off } else { Replies::SkipNext }
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

/// `CLIENT PAUSE ms [ALL | WRITE]`
fn client_pause(context: &mut Context<'_>) -> Outcome {
    let writes_only = match context.args.get(3) {
        None => false,
        Some(mode) if context.args.len() == 4 && is(mode, "write") => true,
        Some(mode) if context.args.len() == 4 && is(mode, "all") => false,
        Some(_) => return Err(Failure::text("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let ms = parse_integer(&context.args[2]).ok_or(Failure::text("ERR timeout is not an integer or out of range"))?;
    let ms = u64::try_from(ms).map_err(|_| Failure::text("ERR timeout is negative"))?;
    // By the clock that ends the pause: the store's may be ahead.
    let pause = Pause { until_ms: now_ms().saturating_add(ms), writes_only };
    context.once_applied(move |shared, _| shared.pause.begin(pause));
    context.reply.ok();
    Ok(())
}

fn client_unpause(context: &mut Context<'_>) -> Outcome {
    context.once_applied(|shared, _| shared.pause.end());
    context.reply.ok();
    Ok(())
}

fn client_unblock(context: &mut Context<'_>) -> Outcome {
    if context.args.len() > 4 {
        return Err(Failure::subcommand(context.args));
    }
    if context.args.get(3).is_some_and(|how| !is(how, "timeout") && !is(how, "error")) {
        return Err(Failure::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
    }
    let refuse = context.args.get(3).is_some_and(|how| is(how, "error"));
    let id = u64::try_from(integer(&context.args[2])?).ok();
    let client = id.and_then(|id| context.shared.clients.get(id));
    context.reply.integer(i64::from(client.is_some_and(|client| context.shared.waiting.unblock(&client, refuse))));
    Ok(())
}

fn client_tracking(context: &mut Context<'_>) -> Outcome {
    if context.args.len() == 3 && is(&context.args[2], "off") {
        context.reply.ok();
        return Ok(());
    }
    if !is(&context.args[2], "on") && !is(&context.args[2], "off") {
        return Err(Failure::SYNTAX);
    }
    Err(Failure::text("ERR client-side caching is not supported: CLIENT TRACKING can only be OFF"))
}

fn client_trackinginfo(context: &mut Context<'_>) -> Outcome {
    let reply = &mut context.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(1);
    reply.bulk(b"off");
    reply.bulk(b"redirect");
    reply.integer(-1);
    reply.bulk(b"prefixes");
    reply.array(0);
    Ok(())
}

fn client_getredir(context: &mut Context<'_>) -> Outcome {
    context.reply.integer(-1);
    Ok(())
}

fn client_caching(_: &mut Context<'_>) -> Outcome {
    Err(Failure::text("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"))
}
