//! ACL: users and their rights; see [`crate::acl`].

use super::arguments::{integer, is};
use super::failure::{Failure, shown};
use super::saving::wait_for;
use super::table::flag::{ADMIN, NO_MULTI, SECRET};
use super::table::{Command, Group, TABLE, entries};
use super::{Context, Outcome, help};
use crate::acl::password::hex;
use crate::acl::selector::{CATEGORIES, Denied, Selector};
use crate::events::Level;
use crate::net::can_be_read_again;
use crate::saving::Work;
use crate::shared::now_ms;
use hither_resp::{Args, Writer};

entries!(command, Server.of("acl"));

static ACL: &[Command] = &[
    command("cat", -2, "6.0.0", "Lists the categories, or the commands of one.", cat),
    command("deluser", -3, "6.0.0", "Deletes users and closes their connections.", deluser).flags(ADMIN | NO_MULTI),
    command("dryrun", -4, "7.0.0", "Says whether a user may run a command.", dryrun).flags(ADMIN | SECRET),
    command("genpass", -2, "6.0.0", "Makes a password that nobody can guess.", genpass),
    command("getuser", 3, "6.0.0", "Returns the rules of a user.", getuser).flags(ADMIN),
    command("list", 2, "6.0.0", "Returns all users with their rules, as they stand in a file.", list).flags(ADMIN),
    command("load", 2, "6.0.0", "Replaces all users by those of the file.", load).flags(ADMIN | NO_MULTI),
    command("log", -2, "6.0.0", "Returns what was refused, or forgets it.", log).flags(ADMIN),
    command("save", 2, "6.0.0", "Writes all users to the file.", save).flags(ADMIN | NO_MULTI),
    command("setuser", -3, "6.0.0", "Makes or changes a user.", setuser).flags(ADMIN | NO_MULTI | SECRET),
    command("users", 2, "6.0.0", "Returns the names of all users.", users).flags(ADMIN),
    command("whoami", 2, "6.0.0", "Returns the name of the client's user.", whoami),
    help::of("acl", Group::Server, "6.0.0"),
];

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[Command::container("acl", Group::Server, "6.0.0", "Commands about users and what they may do.", ACL)];

fn error(text: &str) -> Failure {
    Failure::made(format!("ERR {text}"))
}

fn cat(context: &mut Context<'_>) -> Outcome {
    match context.args.len() {
        2 => {
            context.reply.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|category| context.reply.bulk(category.as_bytes()));
        }
        3 => {
            let asked = &context.args[2];
            let category = CATEGORIES.iter().find(|category| is(asked, category));
            let category = category.ok_or_else(|| error(&format!("Unknown category '{}'", shown(asked))))?;
            let category = format!("@{category}");
            let names: Vec<String> =
                TABLE.all().filter(|command| command.categories().contains(&category.as_str())).map(Command::full_name).collect();
            context.reply.array(names.len());
            names.iter().for_each(|name| context.reply.bulk(name.as_bytes()));
        }
        _ => return Err(Failure::subcommand(context.args)),
    }
    Ok(())
}

fn setuser(context: &mut Context<'_>) -> Outcome {
    let rules: Vec<Vec<u8>> = context.args.iter().skip(3).map(<[u8]>::to_vec).collect();
    context.shared.acl().set_user(&context.args[2], &rules).map_err(|why| error(&why))?;
    context.reply.ok();
    Ok(())
}

fn deluser(context: &mut Context<'_>) -> Outcome {
    if context.args.iter().skip(2).any(|name| name == crate::acl::DEFAULT.as_bytes()) {
        return Err(Failure::text("ERR The 'default' user cannot be removed"));
    }
    let mut deleted = 0;
    for name in context.args.iter().skip(2).filter_map(|name| std::str::from_utf8(name).ok()) {
        deleted += usize::from(context.shared.acl().delete(name));
    }
    if deleted > 0 {
        close_clients_without_user(context);
    }
    context.reply.count(deleted);
    Ok(())
}

/// Closes the clients whose users no longer exist, including idle ones: they may wait, or be shown what others do. A
/// client that has deleted its own user gets its reply first.
fn close_clients_without_user(context: &mut Context<'_>) {
    let is_gone = |name: &str| context.shared.acl().user(name).is_none();
    context.session.closing |= is_gone(&context.session.user.name);
    for client in context.shared.clients.list() {
        if client.id != context.session.client.id && is_gone(&client.user.lock()) {
            context.shared.kill(&client, Level::Info, &"its user was deleted");
        }
    }
}

fn dryrun(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let user = std::str::from_utf8(&args[2]).ok().and_then(|name| context.shared.acl().user(name));
    let user = user.ok_or_else(|| error(&format!("User '{}' not found", shown(&args[2]))))?;
    let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
    for word in args.iter().skip(3) {
        ranges.push(bytes.len()..bytes.len() + word.len());
        bytes.extend_from_slice(word);
    }
    let words = Args::new(&bytes, &ranges);
    if let Some(alone) = TABLE.top_named(&words[0]).filter(|found| words.len() == 1 && !found.command.takes(1)) {
        return Err(Failure::arity(alone.command));
    }
    let found = TABLE.find(words).map_err(|_| error(&format!("Command '{}' not found", shown(&words[0]))))?;
    if !found.command.takes(words.len()) {
        return Err(Failure::arity(found.command));
    }
    match user.check(found, words) {
        Ok(()) => context.reply.ok(),
        Err(Denied::Command) => {
            let text = format!("This user has no permissions to run the '{}' command", found.command.full_name());
            context.reply.bulk(text.as_bytes());
        }
        Err(Denied::Key(place)) => {
            let text = [b"This user has no permissions to access the '", words.get(place).unwrap_or_default(), b"' key"].concat();
            context.reply.bulk(&text);
        }
    }
    Ok(())
}

fn genpass(context: &mut Context<'_>) -> Outcome {
    let bits = match context.args.len() {
        2 => 256,
        3 => integer(&context.args[2])?,
        _ => return Err(Failure::subcommand(context.args)),
    };
    let wrong = "ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096";
    let bits = usize::try_from(bits).ok().filter(|bits| (1..=4096).contains(bits)).ok_or_else(|| error(wrong))?;
    let mut random = vec![0; bits.div_ceil(8)];
    getrandom::fill(&mut random).map_err(|source| error(&format!("the system gives no random numbers: {source}")))?;
    context.reply.bulk(&hex(&random).as_bytes()[..bits.div_ceil(4)]);
    Ok(())
}

fn getuser(context: &mut Context<'_>) -> Outcome {
    let user = std::str::from_utf8(&context.args[2]).ok().and_then(|name| context.shared.acl().user(name));
    let reply = &mut context.reply;
    let Some(user) = user else {
        reply.null();
        return Ok(());
    };
    reply.map(6);
    reply.bulk(b"flags");
    let flags = user.flags();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    let passwords = user.password_hashes();
    reply.array(passwords.len());
    passwords.iter().for_each(|hash| reply.bulk(hash.as_bytes()));
    show_selector(reply, user.root());
    reply.bulk(b"selectors");
    reply.array(user.selectors().len());
    for selector in user.selectors() {
        reply.map(3);
        show_selector(reply, selector);
    }
    Ok(())
}

fn show_selector(reply: &mut Writer<'_>, selector: &Selector) {
    reply.bulk(b"commands");
    reply.bulk(selector.describe_commands().as_bytes());
    reply.bulk(b"keys");
    reply.bulk(&selector.describe_keys());
    reply.bulk(b"channels");
    reply.bulk(&selector.describe_channels());
}

fn list(context: &mut Context<'_>) -> Outcome {
    let all = context.shared.acl().list();
    context.reply.array(all.len());
    for user in all {
        context.reply.bulk(&[b"user ", user.name.as_bytes(), b" ", &user.describe()].concat());
    }
    Ok(())
}

fn users(context: &mut Context<'_>) -> Outcome {
    let all = context.shared.acl().list();
    context.reply.array(all.len());
    all.iter().for_each(|user| context.reply.bulk(user.name.as_bytes()));
    Ok(())
}

fn whoami(context: &mut Context<'_>) -> Outcome {
    let Context { reply, session, .. } = context;
    reply.bulk(session.user.name.as_bytes());
    Ok(())
}

fn load(context: &mut Context<'_>) -> Outcome {
    let settings = &context.shared.settings;
    let read = settings.acl.file().and_then(can_be_read_again).and_then(|()| settings.load_users());
    read.map_err(|why| error(&why))?;
    close_clients_without_user(context);
    context.reply.ok();
    Ok(())
}

fn save(context: &mut Context<'_>) -> Outcome {
    // Answers at once if there is no file to write to.
    context.shared.acl().file().map_err(|why| error(&why))?;
    wait_for(context, Work::Users)
}

fn log(context: &mut Context<'_>) -> Outcome {
    let count = match context.args.get(2) {
        _ if context.args.len() > 3 => return Err(Failure::subcommand(context.args)),
        None => 10,
        Some(word) if is(word, "reset") => {
            context.once_applied(|shared, _| shared.acl().log.clear());
            context.reply.ok();
            return Ok(());
        }
        Some(count) => usize::try_from(integer(count)?).unwrap_or(0),
    };
    let found = context.shared.acl().log.newest(count);
    let reply = &mut context.reply;
    reply.array(found.len());
    for refusal in found {
        reply.map(7);
        reply.bulk(b"count");
        reply.integer(refusal.count as i64);
        let place: &[u8] = if refusal.in_exec { b"multi" } else { b"toplevel" };
        let texts: [(&str, &[u8]); 4] =
            [("reason", refusal.reason.name().as_bytes()), ("context", place), ("object", &refusal.object), ("username", &refusal.user)];
        for (name, text) in texts {
            reply.bulk(name.as_bytes());
            reply.bulk(text);
        }
        reply.bulk(b"age-seconds");
        reply.double(now_ms().saturating_sub(refusal.at_ms) as f64 / 1000.0);
        reply.bulk(b"client-info");
        reply.bulk(refusal.client.as_bytes());
    }
    Ok(())
}
