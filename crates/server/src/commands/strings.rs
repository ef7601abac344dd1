//! Commands on strings.

use super::arguments::{Options, expiry, integer, is};
use super::failure::Failure;
use super::floats::add_floats;
use super::table::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::table::{Command, entries};
use super::{Context, Now, Outcome};
use crate::data::encoding::{Type, string_entry};
use crate::data::{Item, Txn};
use hither_resp::parse_integer;

entries!(command, String.keys(1, 1, 1));

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("get", 2, "1.0.0", "Returns the string value of a key.", get).flags(READONLY | FAST),
    command("set", -3, "1.0.0", "Sets the string value of a key, whatever its type was.", set).flags(WRITE | DENYOOM),
    command("setnx", 3, "1.0.0", "Sets the string value of a key if the key does not exist.", setnx).flags(WRITE | DENYOOM | FAST),
    command("setex", 4, "2.0.0", "Sets the string value of a key with an expiry in seconds.", setex).flags(WRITE | DENYOOM),
    command("psetex", 4, "2.6.0", "Sets the string value of a key with an expiry in milliseconds.", psetex).flags(WRITE | DENYOOM),
    command("getset", 3, "1.0.0", "Sets the string value of a key and returns the old one.", getset).flags(WRITE | DENYOOM | FAST),
    command("getdel", 2, "6.2.0", "Returns the string value of a key and deletes it.", getdel).flags(WRITE | FAST),
    command("getex", -2, "6.2.0", "Returns the string value of a key and sets its expiry.", getex).flags(WRITE | FAST),
    command("mget", -2, "1.0.0", "Returns the string values of several keys.", mget).flags(READONLY | FAST).keys(1, -1, 1),
    command("mset", -3, "1.0.1", "Sets the string values of several keys at once.", mset).flags(WRITE | DENYOOM).keys(1, -1, 2),
    command("msetnx", -3, "1.0.1", "Sets the string values of several keys if none of them exists.", msetnx)
        .flags(WRITE | DENYOOM)
        .keys(1, -1, 2),
    command("incr", 2, "1.0.0", "Adds one to the integer value of a key.", incr).flags(WRITE | DENYOOM | FAST),
    command("decr", 2, "1.0.0", "Subtracts one from the integer value of a key.", decr).flags(WRITE | DENYOOM | FAST),
    command("incrby", 3, "1.0.0", "Adds a number to the integer value of a key.", incrby).flags(WRITE | DENYOOM | FAST),
    command("decrby", 3, "1.0.0", "Subtracts a number from the integer value of a key.", decrby).flags(WRITE | DENYOOM | FAST),
    command("incrbyfloat", 3, "2.6.0", "Adds a number to the floating-point value of a key.", incrbyfloat).flags(WRITE | DENYOOM | FAST),
    command("append", 3, "2.0.0", "Appends to the string value of a key.", append).flags(WRITE | DENYOOM | FAST),
    command("strlen", 2, "2.2.0", "Returns the length of the string value of a key.", strlen).flags(READONLY | FAST),
    command("getrange", 4, "2.4.0", "Returns a part of the string value of a key.", getrange).flags(READONLY),
    command("substr", 4, "1.0.0", "Returns a part of the string value of a key.", getrange).flags(READONLY),
    command("setrange", 4, "2.2.0", "Overwrites a part of the string value of a key.", setrange).flags(WRITE | DENYOOM),
];

/// The longest string: the value of Redis' `proto-max-bulk-len`, less the type byte.
pub const MAX_STRING: usize = (512 << 20) - 1;
const TOO_LONG: Failure = Failure::text("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

/// The bytes in a string's entry.
#[inline]
pub fn bytes_of(entry: &[u8]) -> Result<&[u8], Failure> {
    match Type::of(entry) {
        Some(Type::String) => Ok(&entry[1..]),
        _ => Err(Failure::WRONG_TYPE),
    }
}

/// The string at a key, with its expiry; the commit depends on it.
pub fn load(txn: &mut Txn, key: &[u8]) -> Result<Option<Item>, Failure> {
    match txn.load(key)? {
        Some(item) => bytes_of(&item.entry).map(drop).map(|()| Some(item)),
        None => Ok(None),
    }
}

fn get(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    txn.view(&args[1], |found| match found {
        Some((entry, _)) => bytes_of(entry).map(|bytes| reply.bulk(bytes)),
        None => {
            reply.null();
            Ok(())
        }
    })?
}

/// The options of SET.
#[derive(Default)]
struct SetOptions {
    if_absent: bool,
    if_present: bool,
    get: bool,
    keep_ttl: bool,
    expires_at_ms: Option<i64>,
}

impl SetOptions {
    fn parse(context: &Context<'_>) -> Result<SetOptions, Failure> {
        let mut parsed = SetOptions::default();
        let mut amount = None;
        let mut rest = Options::new(context.args, 3);
        while let Some(word) = rest.next() {
            if is(word, "nx") && !parsed.if_present {
                parsed.if_absent = true;
            } else if is(word, "xx") && !parsed.if_absent {
                parsed.if_present = true;
            } else if is(word, "get") {
                parsed.get = true;
            } else if is(word, "keepttl") && amount.is_none() {
                parsed.keep_ttl = true;
            } else if let Some(option) = expiry_option(word, &context.now)
                && !parsed.keep_ttl
                && amount.is_none_or(|(_, before)| before == option)
            {
                amount = Some((rest.value()?, option));
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        // Numbers after syntax, as in Redis.
        if let Some((amount, (unit_ms, from))) = amount {
            parsed.expires_at_ms = Some(expiry(integer(amount)?, unit_ms, from, true, "set")?);
        }
        Ok(parsed)
    }

    fn is_plain(&self) -> bool {
        !(self.if_absent || self.if_present || self.get || self.keep_ttl)
    }
}

/// Recognises EX, PX, EXAT, PXAT: the unit in milliseconds, and the time from which it counts (1970 if `None`). An
/// option may be given twice: the last one counts.
fn expiry_option(word: &[u8], now: &Now<'_>) -> Option<(i64, Option<u64>)> {
    match word.to_ascii_lowercase().as_slice() {
        b"ex" => Some((1000, Some(now.ms()))),
        b"px" => Some((1, Some(now.ms()))),
        b"exat" => Some((1000, None)),
        b"pxat" => Some((1, None)),
        _ => None,
    }
}

fn set(context: &mut Context<'_>) -> Outcome {
    let options = SetOptions::parse(context)?;
    let Context { txn, reply, args, now, .. } = context;
    let (key, value) = (&args[1], &args[2]);
    check_length(value.len())?;
    let expires_at_ms = options.expires_at_ms.map_or(0, |at| at as u64);
    if options.is_plain() && (expires_at_ms == 0 || expires_at_ms > now.ms()) {
        write_string(txn, key, value, expires_at_ms)?;
        reply.ok();
        return Ok(());
    }
    let old = txn.examine(key, |found| {
        if options.get {
            match found {
                Some((entry, _)) => reply.bulk(bytes_of(entry)?),
                None => reply.null(),
            }
        }
        Ok::<_, Failure>(found.map(|(_, expires_at_ms)| expires_at_ms))
    })??;
    if (options.if_absent && old.is_some()) || (options.if_present && old.is_none()) {
        if !options.get {
            reply.null();
        }
        return Ok(());
    }
    let kept = old.filter(|_| options.keep_ttl).unwrap_or(0);
    txn.forget_collection(key)?;
    put_until(txn, key, value, if options.keep_ttl { kept } else { expires_at_ms }, now)?;
    if !options.get {
        reply.ok();
    }
    Ok(())
}

/// Writes a string, or deletes the key if the expiry has passed already.
fn put_until(txn: &mut Txn, key: &[u8], value: &[u8], expires_at_ms: u64, now: &Now<'_>) -> Outcome {
    if expires_at_ms != 0 && expires_at_ms <= now.ms() {
        txn.delete(key)?;
    } else {
        txn.put(key, string_entry(value), expires_at_ms);
    }
    Ok(())
}

thread_local! {
    /// Buffer in which entries are put together, the type before the bytes.
    static ENTRY: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Larger buffers are freed.
const SPARE_BYTES: usize = 1 << 16;

/// Writes a string whatever is there, mostly without an allocation.
fn write_string(txn: &mut Txn, key: &[u8], value: &[u8], expires_at_ms: u64) -> Outcome {
    ENTRY.with_borrow_mut(|entry| {
        entry.clear();
        entry.push(Type::String.tag());
        entry.extend_from_slice(value);
        let outcome = txn.overwrite(key, entry, expires_at_ms);
        if entry.capacity() > SPARE_BYTES {
            *entry = Vec::new();
        }
        Ok(outcome?)
    })
}

fn check_length(bytes: usize) -> Outcome {
    if bytes <= MAX_STRING { Ok(()) } else { Err(TOO_LONG) }
}

fn setnx(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    check_length(args[2].len())?;
    let absent = !txn.has(&args[1])?;
    if absent {
        txn.put(&args[1], string_entry(&args[2]), 0);
    }
    reply.integer(i64::from(absent));
    Ok(())
}

fn setex(context: &mut Context<'_>) -> Outcome {
    set_with_ttl(context, 1000, "setex")
}

fn psetex(context: &mut Context<'_>) -> Outcome {
    set_with_ttl(context, 1, "psetex")
}

fn set_with_ttl(context: &mut Context<'_>, unit_ms: i64, name: &str) -> Outcome {
    let Context { txn, reply, args, now, .. } = context;
    let at = expiry(integer(&args[2])?, unit_ms, Some(now.ms()), true, name)?;
    check_length(args[3].len())?;
    write_string(txn, &args[1], &args[3], at as u64)?;
    reply.ok();
    Ok(())
}

fn getset(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    check_length(args[2].len())?;
    match load(txn, &args[1])? {
        Some(item) => reply.bulk(bytes_of(&item.entry)?),
        None => reply.null(),
    }
    txn.put(&args[1], string_entry(&args[2]), 0);
    Ok(())
}

fn getdel(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    match load(txn, &args[1])? {
        Some(item) => {
            reply.bulk(bytes_of(&item.entry)?);
            txn.delete(&args[1])?;
        }
        None => reply.null(),
    }
    Ok(())
}

fn getex(context: &mut Context<'_>) -> Outcome {
    let mut rest = Options::new(context.args, 2);
    let (mut amount, mut persist) = (None, false);
    while let Some(word) = rest.next() {
        if is(word, "persist") && amount.is_none() {
            persist = true;
        } else if let Some(option) = expiry_option(word, &context.now)
            && !persist
            && amount.is_none_or(|(_, before)| before == option)
        {
            amount = Some((rest.value()?, option));
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    let Context { txn, reply, args, now, .. } = context;
    let Some(item) = load(txn, &args[1])? else {
        reply.null();
        return Ok(());
    };
    let change = match amount {
        Some((amount, (unit_ms, from))) => Some(expiry(integer(amount)?, unit_ms, from, true, "getex")?),
        None => persist.then_some(0),
    };
    reply.bulk(bytes_of(&item.entry)?);
    match change {
        Some(at) if at != 0 && at as u64 <= now.ms() => drop(txn.delete(&args[1])?),
        // Even if the expiry is the same as before, which is a change for clients that watch the key.
        Some(at) if at != 0 || item.expires_at_ms != 0 => txn.put(&args[1], item.entry, at as u64),
        _ => {}
    }
    Ok(())
}

fn mget(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    reply.array(args.len() - 1);
    // Of several keys one state is answered: the commit checks that they were so at one moment.
    let alone = args.len() == 2;
    for key in args.iter().skip(1) {
        if reply.is_full() {
            break;
        }
        let tell = |found: Option<(&[u8], u64)>| match found.and_then(|(entry, _)| bytes_of(entry).ok()) {
            Some(bytes) => reply.bulk(bytes),
            None => reply.null(),
        };
        if alone { txn.view(key, tell)? } else { txn.examine(key, tell)? }
    }
    Ok(())
}

fn check_pairs(context: &Context<'_>, name: &str) -> Outcome {
    if context.args.len().is_multiple_of(2) {
        return Err(Failure::made(format!("ERR wrong number of arguments for '{name}' command")));
    }
    context.args.iter().skip(2).step_by(2).try_for_each(|value| check_length(value.len()))
}

fn put_pairs(context: &mut Context<'_>) -> Outcome {
    let Context { txn, args, .. } = context;
    let keys = args.iter().skip(1).step_by(2);
    for (key, value) in keys.zip(args.iter().skip(2).step_by(2)) {
        txn.forget_collection(key)?;
        txn.put(key, string_entry(value), 0);
    }
    Ok(())
}

fn mset(context: &mut Context<'_>) -> Outcome {
    check_pairs(context, "mset")?;
    put_pairs(context)?;
    context.reply.ok();
    Ok(())
}

fn msetnx(context: &mut Context<'_>) -> Outcome {
    check_pairs(context, "msetnx")?;
    for key in context.args.iter().skip(1).step_by(2) {
        if context.txn.has(key)? {
            context.reply.integer(0);
            return Ok(());
        }
    }
    put_pairs(context)?;
    context.reply.integer(1);
    Ok(())
}

fn incr(context: &mut Context<'_>) -> Outcome {
    add(context, 1)
}

fn decr(context: &mut Context<'_>) -> Outcome {
    add(context, -1)
}

fn incrby(context: &mut Context<'_>) -> Outcome {
    let amount = integer(&context.args[2])?;
    add(context, amount)
}

fn decrby(context: &mut Context<'_>) -> Outcome {
    let amount = integer(&context.args[2])?;
    let amount = amount.checked_neg().ok_or(Failure::text("ERR decrement would overflow"))?;
    add(context, amount)
}

fn add(context: &mut Context<'_>, amount: i64) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let old = load(txn, &args[1])?;
    let value = match &old {
        Some(item) => parse_integer(bytes_of(&item.entry)?).ok_or(Failure::NOT_INTEGER)?,
        None => 0,
    };
    let sum = value.checked_add(amount).ok_or(Failure::OVERFLOW)?;
    txn.put(&args[1], string_entry(sum.to_string().as_bytes()), old.map_or(0, |item| item.expires_at_ms));
    reply.integer(sum);
    Ok(())
}

fn incrbyfloat(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let old = load(txn, &args[1])?;
    let sum = add_floats(old.as_ref().map(|item| bytes_of(&item.entry)).transpose()?, &args[2], Failure::NOT_FLOAT)?;
    txn.put(&args[1], string_entry(sum.as_bytes()), old.map_or(0, |item| item.expires_at_ms));
    reply.bulk(sum.as_bytes());
    Ok(())
}

fn append(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let (mut entry, expires_at_ms) = match load(txn, &args[1])? {
        Some(item) => (item.entry, item.expires_at_ms),
        None => (string_entry(b""), 0),
    };
    check_length(entry.len() - 1 + args[2].len())?;
    entry.extend_from_slice(&args[2]);
    reply.count(entry.len() - 1);
    txn.put(&args[1], entry, expires_at_ms);
    Ok(())
}

fn strlen(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let length = txn.view(&args[1], |found| found.map_or(Ok(0), |(entry, _)| bytes_of(entry).map(<[u8]>::len)))??;
    reply.count(length);
    Ok(())
}

fn getrange(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let (start, end) = (integer(&args[2])?, integer(&args[3])?);
    txn.view(&args[1], |found| {
        let bytes = found.map_or(Ok(&[][..]), |(entry, _)| bytes_of(entry))?;
        reply.bulk(&bytes[slice(start, end, bytes.len())]);
        Ok(())
    })?
}

/// The range of `length` bytes from `start` to `end`, both included; negative places count from the end.
fn slice(start: i64, end: i64, length: usize) -> std::ops::Range<usize> {
    let length = length as i64;
    if length == 0 || (start < 0 && end < 0 && start > end) {
        return 0..0;
    }
    let place = |at: i64| if at < 0 { (length.saturating_add(at)).max(0) } else { at };
    let (start, end) = (place(start), place(end).min(length - 1));
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

fn setrange(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let offset = integer(&args[2])?;
    let offset = usize::try_from(offset).map_err(|_| Failure::text("ERR offset is out of range"))?;
    let patch = &args[3];
    let old = load(txn, &args[1])?;
    if patch.is_empty() {
        reply.count(old.map_or(0, |item| item.entry.len() - 1));
        return Ok(());
    }
    let end = offset.checked_add(patch.len()).ok_or(TOO_LONG)?;
    check_length(end)?;
    let (mut entry, expires_at_ms) = old.map_or_else(|| (string_entry(b""), 0), |item| (item.entry, item.expires_at_ms));
    entry.resize(entry.len().max(end + 1), 0);
    entry[offset + 1..=end].copy_from_slice(patch);
    reply.count(entry.len() - 1);
    txn.put(&args[1], entry, expires_at_ms);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_count_from_both_ends() {
        for (start, end, expected) in [
            (0, 3, 0..4),
            (-3, -1, 8..11),
            (0, -1, 0..11),
            (10, 100, 10..11),
            (5, 3, 0..0),
            (-1, -5, 0..0),
            (-100, 2, 0..3),
            (20, 30, 0..0),
        ] {
            assert_eq!(slice(start, end, 11), expected, "{start} {end}");
        }
        assert_eq!(slice(0, -1, 0), 0..0);
    }
}
