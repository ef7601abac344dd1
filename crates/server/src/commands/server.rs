//! The server: INFO, CONFIG, COMMAND, SLOWLOG and similar commands.

use super::arguments::{Options, integer, is, parse_float};
use super::failure::Failure;
use super::table::flag::{ADMIN, DANGEROUS, DEBUG, FAST, MOVABLE_KEYS, NO_MULTI, READONLY, SECRET, SHOWN};
use super::table::{Command, Group, TABLE, entries};
use super::{Context, Outcome, help};
use crate::acl::keys::Use;
use crate::glob;
use crate::monitor::Watching;
use crate::shared::Shared;
use hither_resp::parse_integer;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The version of Redis whose commands these are; clients decide by it what they use.
pub const REDIS_VERSION: &str = "7.0.15";

entries!(command, Server);

static CONFIG: &[Command] = &[
    command("get", -3, "2.0.0", "Returns settings whose names match patterns.", config_get).flags(ADMIN).of("config"),
    command("set", -4, "2.0.0", "Changes settings, all or none.", config_set).flags(ADMIN | NO_MULTI | SECRET).of("config"),
    command("resetstat", 2, "2.0.0", "Resets the counters of commands.", config_resetstat).flags(ADMIN).of("config"),
    command("rewrite", 2, "2.8.0", "Refused: settings are not written to a file.", config_rewrite).flags(ADMIN).of("config"),
    help::of("config", Group::Server, "5.0.0"),
];

static COMMAND: &[Command] = &[
    command("count", 2, "2.8.13", "Returns the number of commands.", command_count).of("command"),
    command("list", -2, "7.0.0", "Returns the names of commands.", command_list).of("command"),
    command("info", -2, "2.8.13", "Describes commands for programs.", command_info).of("command"),
    command("docs", -2, "7.0.0", "Describes commands for people.", command_docs).of("command"),
    command("getkeysandflags", -4, "7.0.0", "Returns the keys of a command, and what it does with each.", command_getkeysandflags)
        .of("command"),
    command("getkeys", -4, "2.8.13", "Returns the keys of a command.", command_getkeys).of("command"),
    help::of("command", Group::Server, "5.0.0"),
];

static SLOWLOG: &[Command] = &[
    command("get", -2, "2.2.12", "Returns the commands that took long.", slowlog_get).flags(ADMIN).of("slowlog"),
    command("len", 2, "2.2.12", "Returns how many commands took long.", slowlog_len).flags(ADMIN).of("slowlog"),
    command("reset", 2, "2.2.12", "Forgets the commands that took long.", slowlog_reset).flags(ADMIN).of("slowlog"),
    help::of("slowlog", Group::Server, "6.2.0"),
];

static DEBUG_COMMANDS: &[Command] = &[
    command("sleep", 3, "1.0.0", "Holds up this thread for some seconds.", debug_sleep).flags(ADMIN | NO_MULTI | DEBUG).of("debug"),
    help::of("debug", Group::Server, "5.0.0").flags(ADMIN | NO_MULTI | DEBUG),
];

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("info", -1, "1.0.0", "Describes the server in numbers.", info).flags(DANGEROUS),
    command("time", 1, "2.6.0", "Returns the time.", time).flags(FAST),
    command("lolwut", -1, "5.0.0", "Says what this is.", lolwut).flags(READONLY | FAST),
    command("monitor", 1, "1.0.0", "Shows the client all commands from here on.", monitor).flags(ADMIN | NO_MULTI),
    command("role", 1, "2.8.12", "Returns the part this server has in replication: a master without replicas.", role)
        .flags(FAST | DANGEROUS),
    command("replicaof", 3, "5.0.0", "Accepts NO ONE: this server replicates nobody.", replicaof).flags(ADMIN),
    command("slaveof", 3, "1.0.0", "The same under its old name.", replicaof).flags(ADMIN),
    command("shutdown", -1, "1.0.0", "Ends the server, once everything is durable.", shutdown).flags(ADMIN | DANGEROUS | NO_MULTI),
    Command::container("config", Group::Server, "2.0.0", "Commands about settings.", CONFIG),
    Command::container("slowlog", Group::Server, "2.2.12", "Commands about the log of slow commands.", SLOWLOG),
    Command::container("debug", Group::Server, "1.0.0", "Commands for tests.", DEBUG_COMMANDS).flags(ADMIN),
    command("command", -1, "2.8.13", "Describes all commands; see also its subcommands.", command_all).subcommands(COMMAND),
];

fn time(context: &mut Context<'_>) -> Outcome {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    context.reply.array(2);
    context.reply.bulk(now.as_secs().to_string().as_bytes());
    context.reply.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

fn lolwut(context: &mut Context<'_>) -> Outcome {
    // A version has only one drawing here, but it must be a number.
    if let Some(version) = context.args.get(2).filter(|_| is(&context.args[1], "version")) {
        integer(version)?;
    }
    context.reply.verbatim(concat!("hither ", env!("CARGO_PKG_VERSION"), "\n"));
    Ok(())
}

fn monitor(context: &mut Context<'_>) -> Outcome {
    if context.session.watching.is_none() {
        context.session.watching = Some(Watching::begin(context.shared, &context.session.client));
    }
    context.reply.ok();
    Ok(())
}

fn role(context: &mut Context<'_>) -> Outcome {
    context.reply.array(3);
    context.reply.bulk(b"master");
    context.reply.integer(0);
    context.reply.array(0);
    Ok(())
}

fn replicaof(context: &mut Context<'_>) -> Outcome {
    if !is(&context.args[1], "no") || !is(&context.args[2], "one") {
        return Err(Failure::text("ERR there is no replication: only NO ONE can be replicated"));
    }
    context.reply.ok();
    Ok(())
}

/// NOSAVE, SAVE, NOW and FORCE make no difference: everything acknowledged is durable anyway. There is nothing to
/// ABORT: no shutdown waits for replicas.
fn shutdown(context: &mut Context<'_>) -> Outcome {
    const WORDS: [&str; 5] = ["abort", "nosave", "save", "now", "force"];
    let mut said = [false; WORDS.len()];
    for word in Options::new(context.args, 1) {
        let known = WORDS.iter().position(|known| is(word, known)).ok_or(Failure::SYNTAX)?;
        said[known] = true;
    }
    let [abort, no_save, save, now, force] = said;
    if abort && (no_save || save || now || force) || no_save && save {
        return Err(Failure::SYNTAX);
    }
    if abort {
        return Err(Failure::text("ERR No shutdown in progress."));
    }
    context.shared.stopping.store(true, Ordering::SeqCst);
    context.session.closing = true;
    Ok(())
}

fn config_get(context: &mut Context<'_>) -> Outcome {
    let patterns: Vec<&[u8]> = context.args.iter().skip(2).collect();
    let found = context.shared.settings.get(&patterns);
    context.reply.map(found.len());
    for (name, value) in found {
        context.reply.bulk(name);
        context.reply.bulk(value.as_bytes());
    }
    Ok(())
}

fn config_set(context: &mut Context<'_>) -> Outcome {
    if !context.args.len().is_multiple_of(2) {
        return Err(Failure::SYNTAX);
    }
    let mut pairs = Vec::new();
    for (name, value) in context.args.iter().skip(2).step_by(2).zip(context.args.iter().skip(3).step_by(2)) {
        let name = String::from_utf8_lossy(name).into_owned();
        let refused = || format!("ERR CONFIG SET failed (possibly related to argument '{name}') - argument is not UTF-8");
        let value = std::str::from_utf8(value).map_err(|_| Failure::made(refused()))?.to_owned();
        pairs.push((name, value));
    }
    context.shared.settings.set(&pairs).map_err(|refused| Failure::made(refused.0))?;
    context.reply.ok();
    Ok(())
}

fn config_resetstat(context: &mut Context<'_>) -> Outcome {
    context.once_applied(|shared, _| reset_counters(shared));
    context.reply.ok();
    Ok(())
}

fn reset_counters(shared: &Shared) {
    for core in &shared.cores {
        let by_command = [&core.calls, &core.failed, &core.refused, &core.nanoseconds, &core.histograms].into_iter().flatten();
        for counter in by_command.chain([&core.errors, &core.rejected, &core.deferred, &core.retries, &core.hits, &core.misses]) {
            counter.store(0, Ordering::Relaxed);
        }
        core.errors_by_code.lock().clear();
    }
}

fn config_rewrite(_: &mut Context<'_>) -> Outcome {
    Err(Failure::text("ERR settings are not written to a file: change the file that --config names"))
}

fn command_all(context: &mut Context<'_>) -> Outcome {
    context.reply.array(TABLE.top().count());
    TABLE.top().for_each(|command| describe(context, command));
    Ok(())
}

fn command_count(context: &mut Context<'_>) -> Outcome {
    context.reply.count(TABLE.top().count());
    Ok(())
}

fn command_list(context: &mut Context<'_>) -> Outcome {
    let mut rest = Options::new(context.args, 2);
    let mut pattern = b"*".to_vec();
    let mut category = None;
    if let Some(word) = rest.next() {
        let kind = rest.value()?;
        if !is(word, "filterby") {
            return Err(Failure::SYNTAX);
        }
        match kind.to_ascii_lowercase().as_slice() {
            b"pattern" => pattern = rest.value()?.to_ascii_lowercase(),
            b"aclcat" => category = Some([b"@", rest.value()?].concat().to_ascii_lowercase()),
            // There are no modules, and no category has this name.
            b"module" => category = Some([b" ", rest.value()?].concat()),
            _ => return Err(Failure::SYNTAX),
        }
        if rest.left() > 0 {
            return Err(Failure::SYNTAX);
        }
    }
    let in_category =
        |command: &Command| category.as_ref().is_none_or(|asked| command.categories().iter().any(|name| name.as_bytes() == asked));
    let names: Vec<String> = TABLE.all().filter(|command| in_category(command)).map(Command::full_name).collect();
    let names: Vec<_> = names.into_iter().filter(|name| glob::matches(&pattern, name.as_bytes())).collect();
    context.reply.array(names.len());
    names.iter().for_each(|name| context.reply.bulk(name.as_bytes()));
    Ok(())
}

fn command_info(context: &mut Context<'_>) -> Outcome {
    if context.args.len() == 2 {
        return command_all(context);
    }
    let args = context.args;
    context.reply.array(args.len() - 2);
    for name in args.iter().skip(2) {
        if context.reply.is_full() {
            break;
        }
        match TABLE.named(name) {
            Some(command) => describe(context, command),
            None => context.reply.null(),
        }
    }
    Ok(())
}

/// Answers the ten fields of COMMAND INFO.
fn describe(context: &mut Context<'_>, command: &Command) {
    let reply = &mut context.reply;
    reply.array(10);
    reply.bulk(command.full_name().as_bytes());
    reply.integer(i64::from(command.arity));
    let flags: Vec<&str> = SHOWN.iter().filter(|(flag, _)| command.has(*flag)).map(|(_, name)| *name).collect();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    let (first, last, step) = command.keys;
    [first, last, step].into_iter().for_each(|place| reply.integer(i64::from(place)));
    let categories = command.categories();
    reply.set(categories.len());
    categories.iter().for_each(|category| reply.simple(category));
    // Tips and key specifications: none.
    reply.set(0);
    reply.set(0);
    // As in Redis, an empty list of subcommands is a set.
    match command.subcommands.len() {
        0 => reply.set(0),
        some => reply.array(some),
    }
    command.subcommands.iter().for_each(|sub| describe(context, sub));
}

fn command_docs(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let commands: Vec<&Command> =
        if args.len() == 2 { TABLE.top().collect() } else { args.iter().skip(2).filter_map(|name| TABLE.named(name)).collect() };
    context.reply.map(commands.len());
    for command in commands {
        if context.reply.is_full() {
            break;
        }
        document(context, command);
    }
    Ok(())
}

fn document(context: &mut Context<'_>, command: &Command) {
    let reply = &mut context.reply;
    reply.bulk(command.full_name().as_bytes());
    reply.map(if command.subcommands.is_empty() { 3 } else { 4 });
    for (key, value) in [("summary", command.summary), ("since", command.since), ("group", command.group.name())] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    if !command.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(command.subcommands.len());
        command.subcommands.iter().for_each(|sub| document(context, sub));
    }
}

/// The keys of the command in the arguments, each with what the command does to it.
fn keys_of_command<'a>(context: &Context<'a>) -> Result<Vec<(&'a [u8], Use)>, Failure> {
    let words: Vec<&[u8]> = context.args.iter().skip(2).collect();
    let command = TABLE.named(words[0]).ok_or(Failure::text("ERR Invalid command specified"))?;
    // A subcommand is named by two words.
    let command = words.get(1).and_then(|sub| command.named_sub(sub)).unwrap_or(command);
    if command.keys == (0, 0, 0) && !command.has(MOVABLE_KEYS) {
        return Err(Failure::text("ERR The command has no key arguments"));
    }
    if !command.takes(words.len()) {
        return Err(Failure::text("ERR Invalid number of arguments specified for command"));
    }
    if !crate::acl::keys::are_as_many_as_said(command, &words) {
        return Err(Failure::text("ERR Invalid arguments specified for command"));
    }
    let uses = crate::acl::keys::uses_in(command, &words);
    if uses.is_empty() {
        return Err(Failure::text("ERR The command has no key arguments"));
    }
    Ok(uses.into_iter().filter_map(|(place, does)| Some((*words.get(place)?, does))).collect())
}

fn command_getkeys(context: &mut Context<'_>) -> Outcome {
    let keys = keys_of_command(context)?;
    context.reply.array(keys.len());
    keys.into_iter().for_each(|(key, _)| context.reply.bulk(key));
    Ok(())
}

fn command_getkeysandflags(context: &mut Context<'_>) -> Outcome {
    let keys = keys_of_command(context)?;
    let reply = &mut context.reply;
    reply.array(keys.len());
    for (key, does) in keys {
        reply.array(2);
        reply.bulk(key);
        let names: Vec<&str> = does.names().collect();
        reply.set(names.len());
        names.into_iter().for_each(|name| reply.simple(name));
    }
    Ok(())
}

fn slowlog_get(context: &mut Context<'_>) -> Outcome {
    if context.args.len() > 3 {
        return Err(Failure::subcommand(context.args));
    }
    let wanted = context.args.get(2).map_or(Some(10), parse_integer).filter(|count| *count >= -1);
    let wanted = wanted.ok_or(Failure::text("ERR count should be greater than or equal to -1"))?;
    let count = usize::try_from(wanted).unwrap_or(usize::MAX);
    let found = context.shared.slowlog.newest(count);
    let reply = &mut context.reply;
    reply.array(found.len());
    for slow in found {
        reply.array(6);
        reply.integer(slow.id as i64);
        reply.integer(slow.at_s as i64);
        reply.integer(slow.took_us as i64);
        reply.array(slow.arguments.len());
        slow.arguments.iter().for_each(|argument| reply.bulk(argument));
        reply.bulk(slow.address.as_bytes());
        reply.bulk(&slow.name);
    }
    Ok(())
}

fn slowlog_len(context: &mut Context<'_>) -> Outcome {
    context.reply.count(context.shared.slowlog.len());
    Ok(())
}

fn slowlog_reset(context: &mut Context<'_>) -> Outcome {
    context.once_applied(|shared, _| shared.slowlog.clear());
    context.reply.ok();
    Ok(())
}

/// At most a minute, since it holds up all clients of this thread.
fn debug_sleep(context: &mut Context<'_>) -> Outcome {
    let seconds = parse_float(&context.args[2]).filter(|seconds| (0.0..=60.0).contains(seconds)).ok_or(Failure::NOT_FLOAT)?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    context.reply.ok();
    Ok(())
}

fn info(context: &mut Context<'_>) -> Outcome {
    let asked: Vec<Vec<u8>> = context.args.iter().skip(1).map(<[u8]>::to_ascii_lowercase).collect();
    let known: Vec<&str> = crate::info::SECTIONS.iter().map(|section| section.0).collect();
    let is_asked = |names: &[&str]| asked.iter().any(|asked| names.iter().any(|name| asked == name.as_bytes()));
    let (usual, all) = (asked.is_empty() || is_asked(&["default"]), is_asked(&["all", "everything"]));
    let wanted = |name: &str| all || is_asked(&[name]) || usual && !crate::info::is_extra(name);
    let mut text = String::new();
    for name in known.into_iter().filter(|name| wanted(name)) {
        crate::info::section(context.shared, name, &mut text);
    }
    context.reply.verbatim(&text);
    Ok(())
}
