//! DUMP and RESTORE: values as bytes that Redis understands; see [`crate::rdb`].

use super::arguments::{Options, integer, is};
use super::collection::{Collection, field_row, open, walk};
use super::failure::Failure;
use super::table::flag::{DANGEROUS, DENYOOM, READONLY, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome, zsets};
use crate::data::Txn;
use crate::data::encoding::{Head, Type, part, string_entry};
use crate::rdb::{self, Payload, Refused, Value};
use std::ops::ControlFlow;

entries!(command, Generic.keys(1, 1, 1));

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("dump", 2, "2.6.0", "Returns the value of a key as bytes for RESTORE, here or in Redis.", dump).flags(READONLY),
    command("restore", -4, "2.6.0", "Makes a key of what DUMP has returned.", restore).flags(WRITE | DENYOOM | DANGEROUS),
];

fn dump(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let room = reply.room();
    // What cannot leave is not even copied. A head is shorter than any reply.
    let copied = |entry: &[u8]| if entry.len() > room { Err(Failure::ReplyTooLarge) } else { Ok(entry.to_vec()) };
    let Some(entry) = txn.examine(&args[1], |found| found.map(|(entry, _)| copied(entry)).transpose())?? else {
        reply.null();
        return Ok(());
    };
    let payload = match Head::decode(&entry) {
        None => Payload::string(&entry[1..]),
        Some(head) => dump_members(txn, &args[1], &head, room)?,
    };
    reply.bulk(&payload.finish());
    Ok(())
}

/// Dumps a collection; fails if the payload is larger than `room`.
fn dump_members(txn: &mut Txn, key: &[u8], head: &Head, room: usize) -> Result<Payload, Failure> {
    let while_it_fits = |payload: &Payload| if payload.bytes() > room { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let mut payload = Payload::collection(head.kind, head.count);
    if head.kind == Type::Hash {
        walk(txn, head.number, part::FIELD, false, |field, value| {
            payload.text(field);
            payload.text(value);
            while_it_fits(&payload)
        })?;
    } else if let Some(set) = open(txn, key, Type::SortedSet)? {
        zsets::each(txn, &set, false, |member, score| {
            payload.text(member);
            payload.score(score);
            while_it_fits(&payload)
        })?;
    }
    if payload.bytes() > room { Err(Failure::ReplyTooLarge) } else { Ok(payload) }
}

/// Options of RESTORE. IDLETIME and FREQ are only checked: nothing is evicted.
#[derive(Default)]
struct RestoreOptions {
    replace: bool,
    absolute: bool,
}

impl RestoreOptions {
    fn parse(mut rest: Options<'_>) -> Result<RestoreOptions, Failure> {
        let (mut options, mut idle, mut frequency) = (RestoreOptions::default(), false, false);
        while let Some(word) = rest.next() {
            if is(word, "replace") {
                options.replace = true;
            } else if is(word, "absttl") {
                options.absolute = true;
            } else if is(word, "idletime") && rest.left() > 0 && !frequency {
                idle = true;
                if rest.integer()? < 0 {
                    return Err(Failure::text("ERR Invalid IDLETIME value, must be >= 0"));
                }
            } else if is(word, "freq") && rest.left() > 0 && !idle {
                frequency = true;
                if !(0..=255).contains(&rest.integer()?) {
                    return Err(Failure::text("ERR Invalid FREQ value, must be >= 0 and <= 255"));
                }
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(options)
    }
}

/// `RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
fn restore(context: &mut Context<'_>) -> Outcome {
    let options = RestoreOptions::parse(Options::new(context.args, 4))?;
    let Context { txn, reply, args, shared, now, .. } = &mut *context;
    let key = &args[1];
    if !options.replace && txn.has(key)? {
        return Err(Failure::text("BUSYKEY Target key name already exists."));
    }
    let ttl = u64::try_from(integer(&args[2])?).map_err(|_| Failure::text("ERR Invalid TTL value, must be >= 0"))?;
    let value = rdb::read(&args[3], shared.settings.started.max_request_bytes).map_err(|refused| match refused {
        Refused::Footer => Failure::text("ERR DUMP payload version or checksum are wrong"),
        Refused::Data => Failure::text("ERR Bad data format"),
        Refused::TooLarge => Failure::text("ERR the value takes more memory than max-request"),
    })?;
    // The latest expiry that a reply can express.
    let expires_at_ms = if ttl == 0 || options.absolute { ttl } else { now.ms().saturating_add(ttl).min(i64::MAX as u64) };
    txn.delete(key)?;
    reply.ok();
    if expires_at_ms != 0 && expires_at_ms <= now.ms() {
        return Ok(());
    }
    let kind = match &value {
        Value::String(text) => {
            txn.put(key, string_entry(text), expires_at_ms);
            return Ok(());
        }
        Value::Hash(_) => Type::Hash,
        Value::SortedSet(_) => Type::SortedSet,
    };
    let mut collection = Collection::fresh(Head { kind, number: shared.databases.next_number()?, count: 0 });
    fill(txn, &mut collection, value)?;
    collection.set_expiry(expires_at_ms);
    collection.save(txn, key)?;
    if expires_at_ms != 0 {
        context.note_expiring();
    }
    Ok(())
}

fn fill(txn: &mut Txn, collection: &mut Collection, value: Value) -> Outcome {
    match value {
        Value::String(_) => Ok(()),
        Value::Hash(pairs) => {
            collection.head.count = pairs.len() as u64;
            for (field, value) in pairs {
                txn.put_row(&field_row(collection.number(), &field)?, value);
            }
            Ok(())
        }
        Value::SortedSet(pairs) => pairs.into_iter().try_for_each(|(member, score)| zsets::put(txn, collection, &member, None, score)),
    }
}
