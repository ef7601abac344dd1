//! Hashes: a row for each field, see [`crate::data`]. Fields are returned in bytewise order.

use super::arguments::{float, integer, is, parse_float};
use super::collection::{self, Collection, RowsAt, field_row, glance, open, open_or_new, random_places, walk, walk_after};
use super::failure::Failure;
use super::floats::add_floats;
use super::keys::{ScanOptions, cursor_number, position, reply_cursor};
use super::table::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome, Room, while_it_fits};
use crate::data::Txn;
use crate::data::encoding::{Type, part};
use crate::glob;
use hither_resp::{Protocol, Writer, parse_integer};
use std::ops::ControlFlow;

entries!(command, Hash.keys(1, 1, 1));

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("hset", -4, "2.0.0", "Sets fields of a hash; returns how many are new.", hset).flags(WRITE | DENYOOM | FAST),
    command("hmset", -4, "2.0.0", "Sets fields of a hash.", hmset).flags(WRITE | DENYOOM | FAST),
    command("hsetnx", 4, "2.0.0", "Sets a field of a hash if it does not exist.", hsetnx).flags(WRITE | DENYOOM | FAST),
    command("hget", 3, "2.0.0", "Returns the value of a field of a hash.", hget).flags(READONLY | FAST),
    command("hmget", -3, "2.0.0", "Returns the values of fields of a hash.", hmget).flags(READONLY | FAST),
    command("hgetall", 2, "2.0.0", "Returns all fields of a hash with their values.", hgetall).flags(READONLY),
    command("hkeys", 2, "2.0.0", "Returns all fields of a hash.", hkeys).flags(READONLY),
    command("hvals", 2, "2.0.0", "Returns all values of a hash.", hvals).flags(READONLY),
    command("hlen", 2, "2.0.0", "Returns the number of fields of a hash.", hlen).flags(READONLY | FAST),
    command("hexists", 3, "2.0.0", "Says whether a hash has a field.", hexists).flags(READONLY | FAST),
    command("hstrlen", 3, "3.2.0", "Returns the length of the value of a field of a hash.", hstrlen).flags(READONLY | FAST),
    command("hdel", -3, "2.0.0", "Deletes fields of a hash; the last one takes the key along.", hdel).flags(WRITE | FAST),
    command("hincrby", 4, "2.0.0", "Adds a number to the integer value of a field of a hash.", hincrby).flags(WRITE | DENYOOM | FAST),
    command("hincrbyfloat", 4, "2.6.0", "Adds a number to the floating-point value of a field of a hash.", hincrbyfloat)
        .flags(WRITE | DENYOOM | FAST),
    command("hscan", -3, "2.8.0", "Iterates over the fields of a hash, in order.", hscan).flags(READONLY),
    command("hrandfield", -2, "6.2.0", "Returns random fields of a hash.", hrandfield).flags(READONLY),
];

/// Sets fields from the third argument on; returns how many are new.
fn set_fields(context: &mut Context<'_>, name: &str) -> Result<usize, Failure> {
    let Context { txn, args, shared, .. } = context;
    if !args.len().is_multiple_of(2) {
        return Err(Failure::made(format!("ERR wrong number of arguments for '{name}' command")));
    }
    let mut hash = open_or_new(txn, &shared.databases, &args[1], Type::Hash)?;
    let before = hash.len();
    for (field, value) in args.iter().skip(2).step_by(2).zip(args.iter().skip(3).step_by(2)) {
        set_field(txn, &mut hash, field, value)?;
    }
    hash.save(txn, &args[1])?;
    Ok(hash.len() - before)
}

fn set_field(txn: &mut Txn, hash: &mut Collection, field: &[u8], value: &[u8]) -> Outcome {
    let row = field_row(hash.number(), field)?;
    if txn.row(&row, |_| ())?.is_none() {
        hash.head.count += 1;
    }
    txn.put_row(&row, value.to_vec());
    Ok(())
}

fn hset(context: &mut Context<'_>) -> Outcome {
    let new = set_fields(context, "hset")?;
    context.reply.count(new);
    Ok(())
}

fn hmset(context: &mut Context<'_>) -> Outcome {
    set_fields(context, "hmset")?;
    context.reply.ok();
    Ok(())
}

fn hsetnx(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, shared, .. } = context;
    let mut hash = open_or_new(txn, &shared.databases, &args[1], Type::Hash)?;
    let absent = txn.row(&field_row(hash.number(), &args[2])?, |_| ())?.is_none();
    if absent {
        set_field(txn, &mut hash, &args[2], &args[3])?;
        hash.save(txn, &args[1])?;
    }
    reply.integer(i64::from(absent));
    Ok(())
}

/// Calls `f` with the value of one field, in place.
///
/// The head is only glanced at. If the key may have been given another collection, or this collection another key,
/// before the field was read, everything is read again.
fn field<R>(context: &mut Context<'_>, f: impl FnOnce(&[u8], &mut hither_resp::Writer<'_>) -> R) -> Result<Option<R>, Failure> {
    let Context { txn, reply, args, .. } = context;
    let Some(head) = glance(txn, &args[1], Type::Hash)? else { return Ok(None) };
    txn.row_of_viewed(&args[1], &field_row(head.number, &args[2])?, |value| f(value, reply))?.ok_or(Failure::Again)
}

fn hget(context: &mut Context<'_>) -> Outcome {
    if field(context, |value, reply| reply.bulk(value))?.is_none() {
        context.reply.null();
    }
    Ok(())
}

fn hexists(context: &mut Context<'_>) -> Outcome {
    let found = field(context, |_, _| ())?.is_some();
    context.reply.integer(i64::from(found));
    Ok(())
}

fn hstrlen(context: &mut Context<'_>) -> Outcome {
    let length = field(context, |value, _| value.len())?.unwrap_or(0);
    context.reply.count(length);
    Ok(())
}

fn hmget(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let hash = open(txn, &args[1], Type::Hash)?;
    reply.array(args.len() - 2);
    for field in args.iter().skip(2) {
        if reply.is_full() {
            break;
        }
        let found = match &hash {
            Some(hash) => txn.row(&field_row(hash.number(), field)?, |value| reply.bulk(value))?,
            None => None,
        };
        if found.is_none() {
            reply.null();
        }
    }
    Ok(())
}

/// Answers with every field; `begin` is given their number. If the number has changed meanwhile, so has the head, and
/// everything is read again. A head with a wrong number is not trusted: a reply whose length differs from what it
/// announces would leave the client out of step.
fn reply_all(context: &mut Context<'_>, begin: fn(&mut Writer<'_>, usize), show: fn(&mut Writer<'_>, &[u8], &[u8])) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let Some(hash) = open(txn, &args[1], Type::Hash)? else {
        begin(reply, 0);
        return Ok(());
    };
    let (mark, mut count) = (reply.len(), hash.len());
    for _ in 0..2 {
        begin(reply, count);
        let mut shown = 0;
        walk(txn, hash.number(), part::FIELD, false, |field, value| {
            shown += 1;
            show(reply, field, value);
            while_it_fits(reply)
        })?;
        if shown == count || reply.is_full() {
            return Ok(());
        }
        reply.truncate(mark);
        count = shown;
    }
    Err(Failure::Again)
}

fn hgetall(context: &mut Context<'_>) -> Outcome {
    reply_all(
        context,
        |reply, fields| reply.map(fields),
        |reply, field, value| {
            reply.bulk(field);
            reply.bulk(value);
        },
    )
}

fn hkeys(context: &mut Context<'_>) -> Outcome {
    reply_all(context, |reply, fields| reply.array(fields), |reply, field, _| reply.bulk(field))
}

fn hvals(context: &mut Context<'_>) -> Outcome {
    reply_all(context, |reply, fields| reply.array(fields), |reply, _, value| reply.bulk(value))
}

fn hlen(context: &mut Context<'_>) -> Outcome {
    let head = glance(context.txn, &context.args[1], Type::Hash)?;
    context.reply.count(head.map_or(0, |head| head.count as usize));
    Ok(())
}

fn hdel(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let Some(mut hash) = open(txn, &args[1], Type::Hash)? else {
        reply.integer(0);
        return Ok(());
    };
    let before = hash.len();
    for field in args.iter().skip(2) {
        let row = field_row(hash.number(), field)?;
        if txn.row(&row, |_| ())?.is_some() {
            txn.delete_row(&row);
            hash.lose_member()?;
        }
    }
    reply.count(before - hash.len());
    if hash.len() < before {
        hash.save(txn, &args[1])?;
    }
    Ok(())
}

fn hincrby(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, shared, .. } = context;
    let amount = integer(&args[3])?;
    let mut hash = open_or_new(txn, &shared.databases, &args[1], Type::Hash)?;
    let old = txn.row(&field_row(hash.number(), &args[2])?, parse_integer)?;
    let value = old.unwrap_or(Some(0)).ok_or(Failure::text("ERR hash value is not an integer"))?;
    let sum = value.checked_add(amount).ok_or(Failure::OVERFLOW)?;
    set_field(txn, &mut hash, &args[2], sum.to_string().as_bytes())?;
    hash.save(txn, &args[1])?;
    reply.integer(sum);
    Ok(())
}

fn hincrbyfloat(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, shared, .. } = context;
    // An increment that is 0 as an `f64` is added, as in Redis; one that is too large for an `f64` is an error.
    let is_finite = parse_float(&args[3]).is_some_and(f64::is_finite);
    if !is_finite && float(&args[3])?.is_infinite() {
        return Err(Failure::text("ERR value is NaN or Infinity"));
    }
    let mut hash = open_or_new(txn, &shared.databases, &args[1], Type::Hash)?;
    let old = txn.row(&field_row(hash.number(), &args[2])?, <[u8]>::to_vec)?;
    let sum = add_floats(old.as_deref(), &args[3], Failure::text("ERR hash value is not a float"))?;
    set_field(txn, &mut hash, &args[2], sum.as_bytes())?;
    hash.save(txn, &args[1])?;
    reply.bulk(sum.as_bytes());
    Ok(())
}

fn hscan(context: &mut Context<'_>) -> Outcome {
    scan_collection(context, Type::Hash, |value| value.to_vec())
}

/// HSCAN and ZSCAN: answers the cursor, and names with what `show` makes of their rows' values.
pub fn scan_collection(context: &mut Context<'_>, kind: Type, show: impl Fn(&[u8]) -> Vec<u8>) -> Outcome {
    // A bad cursor is an error whatever the key holds.
    cursor_number(&context.args[2])?;
    let scope = (context.session.index, context.shared.cursors.members_of(&context.args[1]));
    let Some(hash) = open(context.txn, &context.args[1], kind)? else {
        // Options are not checked where there is nothing to scan, as in Redis.
        context.reply.array(2);
        reply_cursor(context, scope, None);
        context.reply.array(0);
        return Ok(());
    };
    let after = position(context, scope, &context.args[2])?;
    let options = ScanOptions::parse(context, 3, false)?;
    let (mut found, mut seen, mut last, mut room) = (Vec::new(), 0, None, Room::of(&context.reply));
    walk_after(context.txn, hash.number(), collection::part_of(kind), after.as_deref(), |name, value| {
        seen += 1;
        if glob::matches(&options.pattern, name) {
            let value = show(value);
            let fits = room.take(name.len() + value.len());
            found.extend([name.to_vec(), value]);
            fits?;
        }
        if seen == options.count {
            last = Some(name.to_vec());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    room.check()?;
    context.reply.array(2);
    reply_cursor(context, scope, last);
    context.reply.array(found.len());
    found.iter().for_each(|part| context.reply.bulk(part));
    Ok(())
}

/// The most places of HRANDFIELD and ZRANDMEMBER with a negative count.
const MOST_RANDOM: i64 = 1 << 20;
const OUT_OF_RANGE: Failure = Failure::text("ERR value is out of range");

/// The count of HRANDFIELD and ZRANDMEMBER, and whether values are wanted too.
fn random_arguments(context: &Context<'_>, with: &str) -> Result<(Option<i64>, bool), Failure> {
    let Some(count) = context.args.get(2) else { return Ok((None, false)) };
    let count = integer(count)?;
    if count == i64::MIN {
        return Err(Failure::text("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807"));
    }
    match context.args.get(3) {
        None => Ok((Some(count), false)),
        Some(word) if is(word, with) && context.args.len() == 4 => {
            // Twice the count must be a number, as in Redis.
            if count.unsigned_abs() > i64::MAX as u64 / 2 { Err(OUT_OF_RANGE) } else { Ok((Some(count), true)) }
        }
        Some(_) => Err(Failure::SYNTAX),
    }
}

fn hrandfield(context: &mut Context<'_>) -> Outcome {
    random_rows(context, Type::Hash, "withvalues", |reply, value| reply.bulk(value))
}

/// Checks, before anything of that size is allocated, whether so many of `len` members may be drawn and can leave.
fn check_random(count: i64, len: usize, room: usize) -> Outcome {
    if count < -MOST_RANDOM {
        return Err(OUT_OF_RANGE);
    }
    let drawn = if count < 0 { count.unsigned_abs() as usize } else { len.min(count as usize) };
    if drawn.saturating_mul(Room::LEAST_BYTES) > room { Err(Failure::ReplyTooLarge) } else { Ok(()) }
}

/// HRANDFIELD and ZRANDMEMBER: each member is equally likely, which takes a walk to it, from the nearer end. The word
/// `with` asks for what `show` writes of the rows' values.
pub fn random_rows(context: &mut Context<'_>, kind: Type, with: &str, show: fn(&mut Writer<'_>, &[u8])) -> Outcome {
    let (count, with_values) = random_arguments(context, with)?;
    let Context { txn, reply, args, .. } = context;
    let collection = open(txn, &args[1], kind)?;
    if let Some(collection) = &collection {
        check_random(count.unwrap_or(1), collection.len(), reply.room())?;
    }
    let places = random_places(collection.as_ref().map_or(0, Collection::len), count.unwrap_or(1));
    let rows = match collection {
        Some(collection) => RowsAt::read(txn, &collection, &places, with_values, Room::of(reply))?,
        None => RowsAt::default(),
    };
    if count.is_none() {
        match places.first() {
            Some(place) => reply.bulk(rows.get(*place)?.0),
            None => reply.null(),
        }
        return Ok(());
    }
    let pairs = with_values && reply.protocol() == Protocol::Resp3;
    reply.array(if with_values && !pairs { places.len() * 2 } else { places.len() });
    for place in places {
        if reply.is_full() {
            break;
        }
        let (name, value) = rows.get(place)?;
        if pairs {
            reply.array(2);
        }
        reply.bulk(name);
        if with_values {
            show(reply, value);
        }
    }
    Ok(())
}
