//! Commands that wait: BZPOPMIN, BZPOPMAX, BZMPOP, WAIT, WAITAOF. [`crate::waiting`] explains what waiting means.

use super::arguments::{Options, integer, parse_finite, parse_float};
use super::collection::{Collection, open};
use super::failure::Failure;
use super::table::flag::{BLOCKING, FAST, MOVABLE_KEYS, WRITE};
use super::table::{Command, entries};
use super::zsets::combine::PopOptions;
use super::zsets::take;
use super::{Context, Outcome};
use crate::data::encoding::Type;
use crate::waiting::{End, MOST_KEY_BYTES, MOST_KEYS, Request};
use hither_resp::{Writer, parse_integer};
use std::sync::Arc;
use std::time::{Duration, Instant};

entries!(pop, SortedSet.flags(WRITE | BLOCKING));

entries!(wait, Generic);

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    pop(
        "bzpopmin",
        -3,
        "5.0.0",
        "Removes and returns the member of lowest score of the first sorted set that has one; waits for it.",
        bzpopmin,
    )
    .flags(WRITE | BLOCKING | FAST)
    .keys(1, -2, 1),
    pop(
        "bzpopmax",
        -3,
        "5.0.0",
        "Removes and returns the member of highest score of the first sorted set that has one; waits for it.",
        bzpopmax,
    )
    .flags(WRITE | BLOCKING | FAST)
    .keys(1, -2, 1),
    pop("bzmpop", -5, "7.0.0", "Removes and returns members of the first sorted set that is not empty; waits for one.", bzmpop)
        .flags(WRITE | BLOCKING | MOVABLE_KEYS),
    wait("wait", 3, "3.0.0", "Waits for replicas: there are none, so until the time is over if one is asked for.", wait_for_replicas),
    wait(
        "waitaof",
        4,
        "7.2.0",
        "Waits until everything written so far is durable; for replicas until the time is over.",
        wait_for_durability,
    ),
];

/// Parses a timeout in seconds, possibly with a fraction, into a deadline. `None`: wait for ever.
fn seconds(argument: &[u8]) -> Result<Option<Instant>, Failure> {
    let seconds = parse_float(argument).ok_or(Failure::text("ERR timeout is not a float or out of range"))?;
    // In milliseconds, rounded up; so is a number that is too small for a float and parses to 0.
    let is_underflow = seconds == 0.0 && seconds.is_sign_positive() && parse_finite(argument).is_none();
    let ms = if is_underflow { 1.0 } else { (seconds * 1000.0).ceil() };
    if ms >= i64::MAX as f64 {
        return Err(Failure::text("ERR timeout is out of range"));
    }
    from_now(ms as i64)
}

fn milliseconds(argument: &[u8]) -> Result<Option<Instant>, Failure> {
    from_now(parse_integer(argument).ok_or(Failure::text("ERR timeout is not an integer or out of range"))?)
}

fn from_now(ms: i64) -> Result<Option<Instant>, Failure> {
    let ms = u64::try_from(ms).map_err(|_| Failure::text("ERR timeout is negative"))?;
    if i64::try_from(crate::shared::now_ms().saturating_add(ms)).is_err() {
        return Err(Failure::text("ERR timeout is out of range"));
    }
    // 0 is for ever, and so is a time that no clock can hold.
    Ok((ms > 0).then(|| Instant::now().checked_add(Duration::from_millis(ms))).flatten())
}

/// Ends an attempt that has nothing to answer yet: the client waits. If its time is over, or within MULTI, it gets the
/// reply of `give_up`; after CLIENT UNBLOCK with ERROR, an error.
pub fn wait_or(context: &mut Context<'_>, request: Request, give_up: impl FnOnce(&mut Writer<'_>)) -> Outcome {
    let end = if context.txn.is_isolated() { Some(End::TimedOut) } else { context.session.wait.as_ref().and_then(|wait| wait.end()) };
    match end {
        None => Err(Failure::Wait(Box::new(request))),
        Some(End::Refused) => Err(Failure::text("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
        Some(End::TimedOut) => {
            give_up(&mut context.reply);
            Ok(())
        }
    }
}

/// Refuses more keys than a command may wait for, or longer ones, whether or not it has to wait.
fn check_keys<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let (mut number, mut bytes) = (0, 0);
    keys.for_each(|key| (number, bytes) = (number + 1, bytes + key.len()));
    if number > MOST_KEYS {
        return Err(Failure::made(format!("ERR a command waits for at most {MOST_KEYS} keys")));
    }
    if bytes > MOST_KEY_BYTES {
        return Err(Failure::made(format!("ERR a command waits for keys of at most {MOST_KEY_BYTES} bytes in all")));
    }
    Ok(())
}

/// The set at a key, if this command may take from it now. A key of another type is an error for a command that has
/// just come, whichever clients wait there.
fn open_in_turn(context: &mut Context<'_>, key: &[u8]) -> Result<Option<Collection>, Failure> {
    let Context { txn, session, shared, .. } = context;
    let wait = session.wait.as_deref();
    if wait.is_some_and(|wait| wait.over) {
        return Ok(None);
    }
    let set = match open(txn, key, Type::SortedSet) {
        // A client that waits already goes on when a key of another type has come: as in Redis.
        Err(Failure::Text(_)) if wait.is_some() => return Ok(None),
        outcome => outcome?,
    };
    Ok(set.filter(|_| txn.is_isolated() || shared.waiting.is_first(wait, txn.database().index, key)))
}

fn bzpopmin(context: &mut Context<'_>) -> Outcome {
    pop_one(context, false)
}

fn bzpopmax(context: &mut Context<'_>) -> Outcome {
    pop_one(context, true)
}

/// `BZPOPMIN key … timeout`
fn pop_one(context: &mut Context<'_>, reverse: bool) -> Outcome {
    let args = context.args;
    let last = args.len() - 1;
    check_keys(args.iter().skip(1).take(last - 1))?;
    let deadline = seconds(&args[last])?;
    for key in args.iter().skip(1).take(last - 1) {
        let Some(mut set) = open_in_turn(context, key)? else { continue };
        let taken = take(context, key, &mut set, reverse, 1)?;
        let Some((member, score)) = taken.first() else { continue };
        context.reply.array(3);
        context.reply.bulk(key);
        context.reply.bulk(member);
        context.reply.double(*score);
        return Ok(());
    }
    let keys = args.iter().skip(1).take(last - 1).map(Arc::from).collect();
    wait_or(context, Request { keys, deadline, ..Request::default() }, |reply| reply.null_array())
}

/// `BZMPOP timeout numkeys key … MIN | MAX [COUNT n]`
fn bzmpop(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let options = PopOptions::parse(args, 2)?;
    check_keys(options.keys())?;
    let deadline = seconds(&args[1])?;
    for key in options.keys() {
        if let Some(set) = open_in_turn(context, key)? {
            return options.pop(context, key, set);
        }
    }
    let keys = options.keys().map(Arc::from).collect();
    wait_or(context, Request { keys, deadline, ..Request::default() }, |reply| reply.null_array())
}

/// `WAIT numreplicas timeout`
fn wait_for_replicas(context: &mut Context<'_>) -> Outcome {
    let asked = integer(&context.args[1])?;
    let deadline = milliseconds(&context.args[2])?;
    if asked <= 0 {
        context.reply.integer(0);
        return Ok(());
    }
    wait_or(context, Request { deadline, ..Request::default() }, |reply| reply.integer(0))
}

/// `WAITAOF numlocal numreplicas timeout`. The reply rests on all writes so far, whatever their durability level.
fn wait_for_durability(context: &mut Context<'_>) -> Outcome {
    let mut rest = Options::new(context.args, 1);
    let out_of_range = |_| Failure::text("ERR value is out of range, must be positive");
    let (local, replicas) = (u64::try_from(rest.integer()?).map_err(out_of_range)?, u64::try_from(rest.integer()?).map_err(out_of_range)?);
    if local > 1 {
        return Err(Failure::text("ERR value is out of range, value must between 0 and 1"));
    }
    let deadline = milliseconds(rest.value()?)?;
    let rests_on = if local == 1 { context.shared.databases.db.written_version() } else { 0 };
    context.txn.rest_on(rests_on);
    let answer = |reply: &mut Writer<'_>| {
        reply.array(2);
        reply.integer(local as i64);
        reply.integer(0);
    };
    if replicas == 0 {
        answer(&mut context.reply);
        return Ok(());
    }
    wait_or(context, Request { deadline, ..Request::default() }, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `1e-400`, which parses to 0, was for ever.
    #[test]
    fn only_a_timeout_of_zero_is_for_ever() {
        let ends = |text: &str| seconds(text.as_bytes()).unwrap_or_else(|_| panic!("{text}")).is_some();
        for text in ["1", "0.001", "0.0001", ".0000000001", "1e-320", "1e-400", "0.1E-999", "+1e-400"] {
            assert!(ends(text), "{text}");
        }
        for text in ["0", "0.0", "-0", ".0", "0e5", "0e-400", "00.0E9"] {
            assert!(!ends(text), "{text}");
        }
    }
}
