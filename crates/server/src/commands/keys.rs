//! Commands on keys of any type.

use super::arguments::{Options, integer, is};
use super::failure::Failure;
use super::table::flag::{DANGEROUS, DENYOOM, FAST, NO_MULTI, READONLY, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome, Room};
use crate::changes::Change;
use crate::cursors::{Over, Scope};
use crate::data::databases::member_rows;
use crate::data::encoding::{self, Head, Type, after_prefix};
use crate::data::{Item, Txn};
use crate::glob;
use crate::waiting::Request;
use std::ops::{Bound, ControlFlow};

entries!(command, Generic.keys(1, 1, 1));

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("del", -2, "1.0.0", "Deletes keys.", del).flags(WRITE).keys(1, -1, 1),
    command("unlink", -2, "4.0.0", "Deletes keys; as DEL, which does not wait for large values either.", del)
        .flags(WRITE | FAST)
        .keys(1, -1, 1),
    command("exists", -2, "1.0.0", "Counts how many of the keys exist.", exists).flags(READONLY | FAST).keys(1, -1, 1),
    command("touch", -2, "3.2.1", "Counts how many of the keys exist.", exists).flags(READONLY | FAST).keys(1, -1, 1),
    command("type", 2, "1.0.0", "Returns the type of the value at a key.", type_of).flags(READONLY | FAST),
    command("rename", 3, "1.0.0", "Renames a key; what has the new name is overwritten.", rename).flags(WRITE).keys(1, 2, 1),
    command("renamenx", 3, "1.0.0", "Renames a key if the new name is free.", renamenx).flags(WRITE | FAST).keys(1, 2, 1),
    command("copy", -3, "6.2.0", "Copies the value of a key to another.", copy).flags(WRITE | DENYOOM).keys(1, 2, 1),
    command("move", 3, "1.0.0", "Moves a key to another database.", move_key).flags(WRITE | FAST),
    command("keys", 2, "1.0.0", "Returns the keys that match a pattern, in order.", keys).flags(READONLY | DANGEROUS).keys(0, 0, 0),
    command("scan", -2, "2.8.0", "Iterates over the keys, in order.", scan).flags(READONLY).keys(0, 0, 0),
    command("randomkey", 1, "1.0.0", "Returns some key.", randomkey).flags(READONLY).keys(0, 0, 0),
    command("dbsize", 1, "1.0.0", "Returns the number of keys.", dbsize).flags(READONLY | FAST).keys(0, 0, 0),
    command("swapdb", 3, "4.0.0", "Exchanges two databases.", swapdb).flags(WRITE | FAST | DANGEROUS | NO_MULTI).keys(0, 0, 0),
    command("flushdb", -1, "1.0.0", "Removes all keys of the database.", flushdb).flags(WRITE | DANGEROUS | NO_MULTI).keys(0, 0, 0),
    command("flushall", -1, "1.0.0", "Removes all keys of all databases.", flushall).flags(WRITE | DANGEROUS | NO_MULTI).keys(0, 0, 0),
];

fn del(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let mut deleted = 0;
    for key in args.iter().skip(1) {
        deleted += i64::from(txn.delete(key)?);
    }
    reply.integer(deleted);
    Ok(())
}

fn exists(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let mut found = 0;
    let alone = args.len() == 2;
    for key in args.iter().skip(1) {
        found += i64::from(if alone { txn.view(key, |found| found.is_some())? } else { txn.has(key)? });
    }
    reply.integer(found);
    Ok(())
}

fn type_of(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let kind = txn.view(&args[1], |found| found.and_then(|(entry, _)| Type::of(entry)))?;
    reply.simple(kind.map_or("none", Type::name));
    Ok(())
}

fn rename(context: &mut Context<'_>) -> Outcome {
    rename_to(context, false).map(|_| context.reply.ok())
}

fn renamenx(context: &mut Context<'_>) -> Outcome {
    let done = rename_to(context, true)?;
    context.reply.integer(i64::from(done));
    Ok(())
}

/// O(1) for a collection, which keeps its number; a string is written anew.
fn rename_to(context: &mut Context<'_>, if_absent: bool) -> Result<bool, Failure> {
    let Context { txn, args, .. } = context;
    let (from, to) = (&args[1], &args[2]);
    let item = txn.load(from)?.ok_or(Failure::NO_KEY)?;
    if if_absent && txn.has(to)? {
        return Ok(false);
    }
    if from == to {
        return Ok(!if_absent);
    }
    txn.delete(to)?;
    txn.delete(from)?;
    if let Some(head) = Head::decode(&item.entry) {
        txn.register(head.number, to)?;
    }
    txn.put(to, item.entry, item.expires_at_ms);
    Ok(true)
}

fn copy(context: &mut Context<'_>) -> Outcome {
    let (mut replace, mut index) = (false, context.session.index);
    let mut rest = Options::new(context.args, 3);
    while let Some(word) = rest.next() {
        if is(word, "replace") {
            replace = true;
        } else if is(word, "db") {
            index = database_number(context, rest.value()?)?;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    if index == context.session.index && context.args[1] == context.args[2] {
        return Err(Failure::text("ERR source and destination objects are the same"));
    }
    let done = copy_to(context, index, replace, false)?;
    context.reply.integer(i64::from(done));
    Ok(())
}

fn move_key(context: &mut Context<'_>) -> Outcome {
    let index = database_number(context, &context.args[2])?;
    if index == context.session.index {
        return Err(Failure::text("ERR source and destination objects are the same"));
    }
    let done = copy_to(context, index, false, true)?;
    context.reply.integer(i64::from(done));
    Ok(())
}

/// Parses the number of a database.
pub fn database_number(context: &Context<'_>, argument: &[u8]) -> Result<u16, Failure> {
    const NO_INT: Failure = Failure::text("ERR value is out of range, value must between -2147483648 and 2147483647");
    let number = i32::try_from(integer(argument)?).map_err(|_| NO_INT)?;
    let count = context.shared.databases.count();
    u16::try_from(number).ok().filter(|number| *number < count).ok_or(Failure::text("ERR DB index is out of range"))
}

/// Copies the first key to a database under the second name, or moves it there under its own. Returns whether it did.
/// O(members).
fn copy_to(context: &mut Context<'_>, index: u16, replace: bool, remove: bool) -> Result<bool, Failure> {
    let args = context.args;
    let txn = &mut *context.txn;
    let (from, to) = (&args[1], if remove { &args[1] } else { &args[2] });
    let source = txn.database().clone();
    let target = if index == source.index { source.clone() } else { context.session.open_database(index)? };
    let Some(item) = txn.load(from)? else { return Ok(false) };
    txn.select(target.clone());
    let is_taken = txn.has(to)?;
    txn.select(source.clone());
    // Checked before the rows are read.
    if is_taken && !replace {
        return Ok(false);
    }
    let rows = rows_of(txn, &item, Room::of_rows(context.shared))?;
    txn.select(target);
    paste(context, &item, rows)?;
    context.txn.select(source);
    if remove {
        context.txn.delete(from)?;
    }
    Ok(true)
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// The rows of a collection.
fn rows_of(txn: &mut Txn, item: &Item, mut room: Room) -> Result<Rows, Failure> {
    let mut rows = Vec::new();
    if let Some(head) = Head::decode(&item.entry) {
        let (start, end) = member_rows(head.number);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        txn.rows(Bound::Included(&start), end, false, |row, value| {
            rows.push((row.to_vec(), value.to_vec()));
            room.take(row.len() + value.len())
        })?;
        room.check()?;
    }
    Ok(rows)
}

/// Writes a copy of `item` under the name that COPY or MOVE gives, in the database that the transaction is in.
fn paste(context: &mut Context<'_>, item: &Item, rows: Rows) -> Outcome {
    let Context { txn, args, shared, .. } = &mut *context;
    let to = if args.len() == 3 && is(&args[0], "move") { &args[1] } else { &args[2] };
    txn.delete(to)?;
    let Some(head) = Head::decode(&item.entry) else {
        txn.put(to, item.entry.clone(), item.expires_at_ms);
        return Ok(());
    };
    let number = shared.databases.next_number()?;
    txn.register(number, to)?;
    let prefix = encoding::members_prefix(number);
    for (mut row, value) in rows {
        row[..prefix.len()].copy_from_slice(&prefix);
        txn.put_row(&row, value);
    }
    txn.put(to, Head { number, ..head }.encode(), item.expires_at_ms);
    if item.expires_at_ms != 0 {
        context.note_expiring();
    }
    Ok(())
}

/// The range of keys that may match a pattern: those that begin with its literal prefix.
pub fn range_of(pattern: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
    let prefix = glob::literal_prefix(pattern);
    let end = after_prefix(&prefix);
    (prefix, end)
}

fn keys(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let pattern = &args[1];
    let (from, to) = range_of(pattern);
    let (mut found, mut room) = (Vec::new(), Room::of(reply));
    txn.keys(Bound::Included(&from), to.as_deref().map_or(Bound::Unbounded, Bound::Excluded), false, |key, _| {
        if !glob::matches(pattern, key) {
            return ControlFlow::Continue(());
        }
        found.push(key.to_vec());
        room.take(key.len())
    })?;
    room.check()?;
    reply.array(found.len());
    found.iter().for_each(|key| reply.bulk(key));
    Ok(())
}

/// The options of the SCAN family.
pub struct ScanOptions {
    /// MATCH: the pattern; everything by default.
    pub pattern: Vec<u8>,
    /// COUNT: how many keys or members to look at.
    pub count: usize,
    /// TYPE: the type, in lower case.
    pub kind: Option<Vec<u8>>,
}

impl ScanOptions {
    /// Parses the options from argument `at` on; `with_type` allows TYPE.
    pub fn parse(context: &Context<'_>, at: usize, with_type: bool) -> Result<ScanOptions, Failure> {
        let mut options = ScanOptions { pattern: b"*".to_vec(), count: 10, kind: None };
        let mut rest = Options::new(context.args, at);
        while let Some(word) = rest.next() {
            if is(word, "match") {
                options.pattern = rest.value()?.to_vec();
            } else if is(word, "count") {
                options.count = usize::try_from(rest.integer()?).ok().filter(|count| *count > 0).ok_or(Failure::SYNTAX)?;
            } else if with_type && is(word, "type") {
                options.kind = Some(rest.value()?.to_ascii_lowercase());
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(options)
    }

    /// The most keys, expired ones included, that one call passes over.
    fn most_passed(&self) -> usize {
        self.count.saturating_mul(10).max(100)
    }

    fn asks_for(&self, key: &[u8], entry: &[u8]) -> bool {
        let kind = Type::of(entry).map_or("none", Type::name);
        self.kind.as_ref().is_none_or(|asked| asked == kind.as_bytes()) && glob::matches(&self.pattern, key)
    }
}

const BAD_CURSOR: Failure = Failure::text("ERR invalid cursor");
const FORGOTTEN_CURSOR: Failure = Failure::text(
    "ERR invalid cursor: it is too old, or of another command, key, database or run of the server; start again with 0, or use HITHER.RANGE",
);

/// Parses a cursor as Redis does, by C's rules: zeroes and a sign may stand before the digits, and the text may be
/// empty.
pub fn cursor_number(text: &[u8]) -> Result<u64, Failure> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        _ => (false, text),
    };
    let add =
        |number: u64, digit: &u8| number.checked_mul(10)?.checked_add(u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?));
    let number = digits.iter().try_fold(0, add).filter(|_| text.is_empty() || !digits.is_empty()).ok_or(BAD_CURSOR)?;
    Ok(if negative { number.wrapping_neg() } else { number })
}

/// The key behind which an iteration goes on; `None`: it begins.
pub fn position(context: &Context<'_>, scope: Scope, cursor: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
    let cursor = cursor_number(cursor)?;
    if cursor == 0 {
        return Ok(None);
    }
    context.shared.cursors.position(scope, cursor).map(Some).ok_or(FORGOTTEN_CURSOR)
}

/// Answers with the cursor for what follows `last`; 0 if nothing follows.
pub fn reply_cursor(context: &mut Context<'_>, scope: Scope, last: Option<Vec<u8>>) {
    let cursor = last.map_or(0, |last| {
        let cursor = context.shared.cursors.number();
        context.session.cursors.push(cursor, scope, last);
        cursor
    });
    context.reply.bulk(cursor.to_string().as_bytes());
}

fn scan(context: &mut Context<'_>) -> Outcome {
    let scope = (context.session.index, Over::Keys);
    let after = position(context, scope, &context.args[1])?;
    let options = ScanOptions::parse(context, 2, true)?;
    let (start, end) = range_of(&options.pattern);
    let from = match &after {
        Some(after) => Bound::Excluded(after.as_slice()),
        None => Bound::Included(start.as_slice()),
    };
    let (mut found, mut last, mut room) = (Vec::new(), None, Room::of(&context.reply));
    let (mut seen, mut passed, most) = (0, 0, options.most_passed());
    context.txn.keys_and_expired(from, end.as_deref().map_or(Bound::Unbounded, Bound::Excluded), |key, entry| {
        passed += 1;
        seen += usize::from(entry.is_some());
        if entry.is_some_and(|entry| options.asks_for(key, entry)) {
            found.push(key.to_vec());
            room.take(key.len())?;
        }
        if seen == options.count || passed == most {
            last = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    room.check()?;
    context.reply.array(2);
    reply_cursor(context, scope, last);
    context.reply.array(found.len());
    found.iter().for_each(|key| context.reply.bulk(key));
    Ok(())
}

/// Returns some key: the first behind a random point between the first key and the last. Not uniform; O(log n).
fn randomkey(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, .. } = context;
    let mut edge = |from: Bound<&[u8]>, reverse| {
        let mut found = None;
        txn.keys(from, Bound::Unbounded, reverse, |key, _| {
            found = Some(key.to_vec());
            ControlFlow::Break(())
        })
        .map(|()| found)
    };
    let (Some(first), Some(last)) = (edge(Bound::Unbounded, false)?, edge(Bound::Unbounded, true)?) else {
        reply.null();
        return Ok(());
    };
    let random = random_between(&first, &last);
    let key = edge(Bound::Included(&random), false)?.unwrap_or(first);
    reply.bulk(&key);
    Ok(())
}

/// Bytes between two keys, random behind their common prefix.
fn random_between(first: &[u8], last: &[u8]) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let word = |key: &[u8]| {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(&key[common..]) {
            *to = *from;
        }
        u64::from_be_bytes(bytes)
    };
    let (low, high) = (word(first), word(last));
    // Without a source of randomness, any key will do.
    let random = getrandom::u64().unwrap_or(0);
    let point = low + ((u128::from(random) * (u128::from(high.saturating_sub(low)) + 1)) >> 64) as u64;
    [&first[..common], &point.to_be_bytes()].concat()
}

fn dbsize(context: &mut Context<'_>) -> Outcome {
    let keys = &context.txn.database().keys;
    // After a flush that failed half way, the old handle still counts keys that are gone; nothing else here would
    // notice.
    if context.shared.databases.lost(keys.name()).is_some() {
        return Err(Failure::Store(hither::Error::KeyspaceDropped(keys.name().to_owned())));
    }
    let count = keys.len();
    context.reply.count(count);
    Ok(())
}

/// SYNC and ASYNC are the same here: when the command answers, after some syncs and O(keys) in memory, the keys are
/// gone; their space is freed in the background.
fn check_flush_mode(context: &Context<'_>) -> Outcome {
    match context.args.get(1) {
        None => Ok(()),
        Some(mode) if context.args.len() == 2 && (is(mode, "async") || is(mode, "sync")) => Ok(()),
        Some(_) => Err(Failure::SYNTAX),
    }
}

/// Has databases changed, and answers when that is done: see [`crate::changes`]. If the change fails, the command does
/// not run again.
fn change(context: &mut Context<'_>, change: Change) -> Outcome {
    if context.session.has_changed() {
        context.reply.ok();
        return Ok(());
    }
    let pending = context.shared.changes.begin(context.shared, change, &context.session.client)?;
    Err(Failure::Wait(Box::new(Request::for_change(pending))))
}

/// In Redis' words, which say which argument is not a number.
fn swapdb(context: &mut Context<'_>) -> Outcome {
    let read = |at: usize, wrong| {
        let number = integer(&context.args[at]).ok().and_then(|number| i32::try_from(number).ok());
        number.ok_or(Failure::text(wrong))
    };
    let numbers = [read(1, "ERR invalid first DB index")?, read(2, "ERR invalid second DB index")?];
    let count = context.shared.databases.count();
    let [Some(a), Some(b)] = numbers.map(|number| u16::try_from(number).ok().filter(|number| *number < count)) else {
        return Err(Failure::text("ERR DB index is out of range"));
    };
    change(context, Change::Swap(a, b))
}

fn flushdb(context: &mut Context<'_>) -> Outcome {
    check_flush_mode(context)?;
    let index = context.session.index;
    change(context, Change::Flush(index))
}

fn flushall(context: &mut Context<'_>) -> Outcome {
    check_flush_mode(context)?;
    change(context, Change::FlushAll)
}
