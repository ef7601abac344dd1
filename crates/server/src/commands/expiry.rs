//! The expiry of keys.

use super::arguments::{Options, expiry, integer};
use super::failure::Failure;
use super::table::flag::{FAST, READONLY, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome};
use crate::data::encoding::Head;

entries!(command, Generic.keys(1, 1, 1));

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("expire", -3, "1.0.0", "Sets the expiry of a key, in seconds from now.", expire).flags(WRITE | FAST),
    command("pexpire", -3, "2.6.0", "Sets the expiry of a key, in milliseconds from now.", pexpire).flags(WRITE | FAST),
    command("expireat", -3, "1.2.0", "Sets the expiry of a key, in seconds since 1970.", expireat).flags(WRITE | FAST),
    command("pexpireat", -3, "2.6.0", "Sets the expiry of a key, in milliseconds since 1970.", pexpireat).flags(WRITE | FAST),
    command("ttl", 2, "1.0.0", "Returns the seconds that a key has left.", ttl).flags(READONLY | FAST),
    command("pttl", 2, "2.6.0", "Returns the milliseconds that a key has left.", pttl).flags(READONLY | FAST),
    command("expiretime", 2, "7.0.0", "Returns the expiry of a key, in seconds since 1970.", expiretime).flags(READONLY | FAST),
    command("pexpiretime", 2, "7.0.0", "Returns the expiry of a key, in milliseconds since 1970.", pexpiretime).flags(READONLY | FAST),
    command("persist", 2, "2.2.0", "Removes the expiry of a key.", persist).flags(WRITE | FAST),
];

fn expire(context: &mut Context<'_>) -> Outcome {
    let now = context.now.ms();
    set_expiry(context, 1000, Some(now), "expire")
}

fn pexpire(context: &mut Context<'_>) -> Outcome {
    let now = context.now.ms();
    set_expiry(context, 1, Some(now), "pexpire")
}

fn expireat(context: &mut Context<'_>) -> Outcome {
    set_expiry(context, 1000, None, "expireat")
}

fn pexpireat(context: &mut Context<'_>) -> Outcome {
    set_expiry(context, 1, None, "pexpireat")
}

/// The conditions NX, XX, GT and LT.
#[derive(Default)]
struct ExpiryConditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_sooner: bool,
}

impl ExpiryConditions {
    fn parse(context: &Context<'_>) -> Result<ExpiryConditions, Failure> {
        let mut all = ExpiryConditions::default();
        for word in Options::new(context.args, 3) {
            match word.to_ascii_lowercase().as_slice() {
                b"nx" => all.if_none = true,
                b"xx" => all.if_some = true,
                b"gt" => all.if_later = true,
                b"lt" => all.if_sooner = true,
                _ => return Err(Failure::made(format!("ERR Unsupported option {}", super::failure::shown(word)))),
            }
        }
        if all.if_none && (all.if_some || all.if_later || all.if_sooner) {
            return Err(Failure::text("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if all.if_later && all.if_sooner {
            return Err(Failure::text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(all)
    }

    /// Whether `new` may replace `old` (0: no expiry, which is later than any).
    fn allow(&self, old: u64, new: i64) -> bool {
        let later = old != 0 && new > old as i64;
        let sooner = old == 0 || new < old as i64;
        !(self.if_none && old != 0 || self.if_some && old == 0 || self.if_later && !later || self.if_sooner && !sooner)
    }
}

fn set_expiry(context: &mut Context<'_>, unit_ms: i64, from: Option<u64>, name: &str) -> Outcome {
    let conditions = ExpiryConditions::parse(context)?;
    let amount = integer(&context.args[2])?;
    let at = expiry(amount, unit_ms, from, false, name)?;
    let Context { txn, reply, args, now, .. } = &mut *context;
    let Some(item) = txn.load(&args[1])? else {
        reply.integer(0);
        return Ok(());
    };
    if !conditions.allow(item.expires_at_ms, at) {
        reply.integer(0);
        return Ok(());
    }
    reply.integer(1);
    if at <= now.ms() as i64 {
        txn.delete(&args[1])?;
        return Ok(());
    }
    let is_collection = Head::decode(&item.entry).is_some();
    txn.put(&args[1], item.entry, at as u64);
    if is_collection {
        context.note_expiring();
    }
    Ok(())
}

/// The expiry of a key; −2: no such key, −1: no expiry.
fn expiry_of(context: &mut Context<'_>) -> Result<i64, Failure> {
    let found = context.txn.view(&context.args[1], |found| found.map(|(_, at)| at))?;
    Ok(match found {
        None => -2,
        Some(0) => -1,
        Some(at) => at as i64,
    })
}

fn ttl(context: &mut Context<'_>) -> Outcome {
    let at = expiry_of(context)?;
    let left = if at < 0 { at } else { (at - context.now.ms() as i64).max(0).saturating_add(500) / 1000 };
    context.reply.integer(left);
    Ok(())
}

fn pttl(context: &mut Context<'_>) -> Outcome {
    let at = expiry_of(context)?;
    let left = if at < 0 { at } else { (at - context.now.ms() as i64).max(0) };
    context.reply.integer(left);
    Ok(())
}

fn expiretime(context: &mut Context<'_>) -> Outcome {
    let at = expiry_of(context)?;
    context.reply.integer(if at < 0 { at } else { at.saturating_add(500) / 1000 });
    Ok(())
}

fn pexpiretime(context: &mut Context<'_>) -> Outcome {
    let at = expiry_of(context)?;
    context.reply.integer(at);
    Ok(())
}

fn persist(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let expires = txn.examine(&args[1], |found| found.is_some_and(|(_, at)| at != 0))?;
    let item = if expires { txn.load(&args[1])? } else { None };
    reply.integer(i64::from(item.is_some()));
    if let Some(item) = item {
        txn.put(&args[1], item.entry, 0);
    }
    Ok(())
}
