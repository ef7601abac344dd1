//! Sorted sets: two rows for each member, by name and by score, see [`crate::data`]. This file handles members one by
//! one, [`ranges`] ranges of them, [`combine`] several sets at once.
//!
//! Ranks count from the end that the command names: ZRANK from the lowest score, ZREVRANK from the highest. O(rank).

pub mod combine;
pub mod ranges;

use super::arguments::{Options, float, integer, is};
use super::collection::{self, Collection, glance, member_row, open, open_or_new, walk};
use super::failure::Failure;
use super::hashes::{random_rows, scan_collection};
use super::table::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome, Room};
use crate::data::Txn;
use crate::data::encoding::{Type, part, score_bytes, score_of, score_row, split_score_row};
use hither_resp::{Protocol, Writer, format_double};
use std::ops::ControlFlow;

entries!(command, SortedSet.keys(1, 1, 1));

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("zadd", -4, "1.2.0", "Adds members to a sorted set, or changes their scores.", zadd).flags(WRITE | DENYOOM | FAST),
    command("zincrby", 4, "1.2.0", "Adds a number to the score of a member of a sorted set.", zincrby).flags(WRITE | DENYOOM | FAST),
    command("zrem", -3, "1.2.0", "Removes members of a sorted set; the last one takes the key along.", zrem).flags(WRITE | FAST),
    command("zcard", 2, "1.2.0", "Returns the number of members of a sorted set.", zcard).flags(READONLY | FAST),
    command("zscore", 3, "1.2.0", "Returns the score of a member of a sorted set.", zscore).flags(READONLY | FAST),
    command("zmscore", -3, "6.2.0", "Returns the scores of members of a sorted set.", zmscore).flags(READONLY | FAST),
    command("zrank", 3, "2.0.0", "Returns the place of a member of a sorted set, by ascending score.", zrank).flags(READONLY | FAST),
    command("zrevrank", 3, "2.0.0", "Returns the place of a member of a sorted set, by descending score.", zrevrank).flags(READONLY | FAST),
    command("zpopmin", -2, "5.0.0", "Removes and returns the members of lowest score.", zpopmin).flags(WRITE | FAST),
    command("zpopmax", -2, "5.0.0", "Removes and returns the members of highest score.", zpopmax).flags(WRITE | FAST),
    command("zscan", -3, "2.8.0", "Iterates over the members of a sorted set, by name.", zscan).flags(READONLY),
    command("zrandmember", -2, "6.2.0", "Returns random members of a sorted set.", zrandmember).flags(READONLY),
];

/// A member with its score.
pub type Scored = (Vec<u8>, f64);

/// The score in a member's row by name.
fn decode(value: &[u8]) -> f64 {
    value.try_into().map_or(0.0, score_of)
}

/// The score of a member.
pub fn score(txn: &mut Txn, set: &Collection, member: &[u8]) -> Result<Option<f64>, Failure> {
    Ok(txn.row(&member_row(set.number(), member)?, decode)?)
}

/// Sets a member's score; `old` must be the score that it has.
pub fn put(txn: &mut Txn, set: &mut Collection, member: &[u8], old: Option<f64>, new: f64) -> Outcome {
    let by_name = member_row(set.number(), member)?;
    match old {
        Some(old) if old == new => return Ok(()),
        Some(old) => txn.delete_row(&score_row(set.number(), old, member)),
        None => set.head.count += 1,
    }
    txn.put_row(&by_name, score_bytes(new).to_vec());
    txn.put_row(&score_row(set.number(), new, member), Vec::new());
    Ok(())
}

/// Removes a member that has this score.
pub fn remove(txn: &mut Txn, set: &mut Collection, member: &[u8], score: f64) -> Outcome {
    txn.delete_row(&member_row(set.number(), member)?);
    txn.delete_row(&score_row(set.number(), score, member));
    set.lose_member()
}

/// Calls `f(member, score)` in the order of scores until it breaks.
pub fn each(txn: &mut Txn, set: &Collection, reverse: bool, mut f: impl FnMut(&[u8], f64) -> ControlFlow<()>) -> Outcome {
    walk(txn, set.number(), part::SCORE, reverse, |name, _| match name.split_first_chunk::<8>() {
        Some((score, member)) => f(member, score_of(*score)),
        None => ControlFlow::Continue(()),
    })
}

/// Score and member of a whole row.
pub fn split(row: &[u8]) -> Option<(f64, &[u8])> {
    split_score_row(row)
}

/// Writes members, with their scores if asked for: as pairs in version 3 of the protocol, otherwise one after the
/// other.
pub fn reply_members(reply: &mut Writer<'_>, members: &[Scored], with_scores: bool) {
    let pairs = with_scores && reply.protocol() == Protocol::Resp3;
    reply.array(if with_scores && !pairs { members.len() * 2 } else { members.len() });
    for (member, score) in members {
        if reply.is_full() {
            return;
        }
        if pairs {
            reply.array(2);
        }
        reply.bulk(member);
        if with_scores {
            reply.double(*score);
        }
    }
}

/// The options of ZADD.
#[derive(Default)]
struct AddOptions {
    if_absent: bool,
    if_present: bool,
    if_greater: bool,
    if_less: bool,
    count_changed: bool,
    increment: bool,
}

impl AddOptions {
    /// Parses the options; also returns the place of the first score.
    fn parse(context: &Context<'_>) -> Result<(AddOptions, usize), Failure> {
        let mut options = AddOptions::default();
        let mut at = 2;
        while let Some(word) = context.args.get(at) {
            match word.to_ascii_lowercase().as_slice() {
                b"nx" => options.if_absent = true,
                b"xx" => options.if_present = true,
                b"gt" => options.if_greater = true,
                b"lt" => options.if_less = true,
                b"ch" => options.count_changed = true,
                b"incr" => options.increment = true,
                _ => break,
            }
            at += 1;
        }
        let left = context.args.len() - at;
        if left == 0 || !left.is_multiple_of(2) {
            return Err(Failure::SYNTAX);
        }
        if options.if_absent && options.if_present {
            return Err(Failure::text("ERR XX and NX options at the same time are not compatible"));
        }
        if (options.if_greater && (options.if_absent || options.if_less)) || (options.if_less && options.if_absent) {
            return Err(Failure::text("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if options.increment && left > 2 {
            return Err(Failure::text("ERR INCR option supports a single increment-element pair"));
        }
        Ok((options, at))
    }

    fn allow(&self, old: Option<f64>, new: f64) -> bool {
        match old {
            None => !self.if_present,
            Some(old) => !(self.if_absent || (self.if_greater && new <= old) || (self.if_less && new >= old)),
        }
    }
}

const NAN: Failure = Failure::text("ERR resulting score is not a number (NaN)");

fn zadd(context: &mut Context<'_>) -> Outcome {
    let (options, at) = AddOptions::parse(context)?;
    let Context { txn, reply, args, shared, .. } = context;
    let pairs = args.iter().skip(at).step_by(2).zip(args.iter().skip(at + 1).step_by(2));
    let scores = pairs.map(|(score, member)| Ok((float(score)?, member))).collect::<Result<Vec<_>, Failure>>()?;
    let mut set = match open(txn, &args[1], Type::SortedSet)? {
        Some(set) => set,
        // There is no member that could change.
        None if options.if_present => return answer(reply, &options, 0, None),
        None => collection::new(&shared.databases, Type::SortedSet)?,
    };
    let (mut added, mut changed, mut result) = (0, 0, None);
    for (given, member) in scores {
        let old = score(txn, &set, member)?;
        let new = if options.increment { sum(old, given) } else { given };
        // NX leaves an existing member alone, whatever the sum would be.
        if new.is_nan() && !(options.if_absent && old.is_some()) {
            return Err(NAN);
        }
        if !options.allow(old, new) {
            continue;
        }
        put(txn, &mut set, member, old, new)?;
        added += i64::from(old.is_none());
        changed += i64::from(old.is_none_or(|old| old != new));
        result = Some(new);
    }
    if changed > 0 {
        set.save(txn, &args[1])?;
    }
    answer(reply, &options, if options.count_changed { changed } else { added }, result)
}

/// The reply of ZADD: the number of members, or the score of the member that it has incremented.
fn answer(reply: &mut Writer<'_>, options: &AddOptions, count: i64, score: Option<f64>) -> Outcome {
    match (options.increment, score) {
        (true, Some(score)) => reply.double(score),
        (true, None) => reply.null(),
        (false, _) => reply.integer(count),
    }
    Ok(())
}

/// The score after an increment, as it is stored. A new member starts from 0, so that -0 becomes 0.
fn sum(old: Option<f64>, increment: f64) -> f64 {
    old.unwrap_or(0.0) + increment
}

fn zincrby(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, shared, .. } = context;
    // Redis takes these for options of ZADD here.
    if ["nx", "xx", "gt", "lt", "ch", "incr"].iter().any(|option| is(&args[2], option)) {
        return Err(Failure::SYNTAX);
    }
    let amount = float(&args[2])?;
    let mut set = open_or_new(txn, &shared.databases, &args[1], Type::SortedSet)?;
    let old = score(txn, &set, &args[3])?;
    let new = sum(old, amount);
    if new.is_nan() {
        return Err(NAN);
    }
    if old != Some(new) {
        put(txn, &mut set, &args[3], old, new)?;
        set.save(txn, &args[1])?;
    }
    reply.double(new);
    Ok(())
}

fn zrem(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let Some(mut set) = open(txn, &args[1], Type::SortedSet)? else {
        reply.integer(0);
        return Ok(());
    };
    let before = set.len();
    for member in args.iter().skip(2) {
        if let Some(old) = score(txn, &set, member)? {
            remove(txn, &mut set, member, old)?;
        }
    }
    reply.count(before - set.len());
    if set.len() < before {
        set.save(txn, &args[1])?;
    }
    Ok(())
}

fn zcard(context: &mut Context<'_>) -> Outcome {
    let head = glance(context.txn, &context.args[1], Type::SortedSet)?;
    context.reply.count(head.map_or(0, |head| head.count as usize));
    Ok(())
}

/// As for a field of a hash: one row of a head that was only glanced at.
fn zscore(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let found = match glance(txn, &args[1], Type::SortedSet)? {
        None => None,
        Some(head) => txn.row_of_viewed(&args[1], &member_row(head.number, &args[2])?, decode)?.ok_or(Failure::Again)?,
    };
    match found {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
    Ok(())
}

fn zmscore(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let set = open(txn, &args[1], Type::SortedSet)?;
    reply.array(args.len() - 2);
    for member in args.iter().skip(2) {
        match set.as_ref().map(|set| score(txn, set, member)).transpose()?.flatten() {
            Some(score) => reply.double(score),
            None => reply.null(),
        }
    }
    Ok(())
}

fn zrank(context: &mut Context<'_>) -> Outcome {
    rank(context, false)
}

fn zrevrank(context: &mut Context<'_>) -> Outcome {
    rank(context, true)
}

fn rank(context: &mut Context<'_>, reverse: bool) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let Some(set) = open(txn, &args[1], Type::SortedSet)? else {
        reply.null();
        return Ok(());
    };
    if score(txn, &set, &args[2])?.is_none() {
        reply.null();
        return Ok(());
    }
    let mut before = 0;
    each(txn, &set, reverse, |member, _| {
        if *member == args[2] {
            return ControlFlow::Break(());
        }
        before += 1;
        ControlFlow::Continue(())
    })?;
    reply.integer(before);
    Ok(())
}

fn zpopmin(context: &mut Context<'_>) -> Outcome {
    pop(context, false)
}

fn zpopmax(context: &mut Context<'_>) -> Outcome {
    pop(context, true)
}

/// Removes up to `count` members from the lower end of a sorted set, or the upper. Fails if the reply has no room for
/// them, or if removing them would hold too much.
pub fn take(context: &mut Context<'_>, key: &[u8], set: &mut Collection, reverse: bool, count: usize) -> Result<Vec<Scored>, Failure> {
    let Context { txn, reply, shared, .. } = context;
    let (mut room, mut held) = (Room::of(reply), Room::of_members(shared));
    let mut taken: Vec<Scored> = Vec::new();
    if count == 0 {
        return Ok(taken);
    }
    each(txn, set, reverse, |member, score| {
        room.take(member.len())?;
        held.take(member.len())?;
        taken.push((member.to_vec(), score));
        if taken.len() >= count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    room.check()?;
    held.check()?;
    for (member, score) in &taken {
        remove(txn, set, member, *score)?;
    }
    set.save(txn, key)?;
    Ok(taken)
}

fn pop(context: &mut Context<'_>, reverse: bool) -> Outcome {
    let args = context.args;
    let count = match args.get(2) {
        None => None,
        Some(count) if args.len() == 3 => {
            let count = hither_resp::parse_integer(count).and_then(|count| usize::try_from(count).ok());
            Some(count.ok_or(Failure::text("ERR value is out of range, must be positive"))?)
        }
        Some(_) => return Err(Failure::SYNTAX),
    };
    let popped = match open(context.txn, &args[1], Type::SortedSet)? {
        Some(mut set) => take(context, &args[1], &mut set, reverse, count.unwrap_or(1))?,
        None => Vec::new(),
    };
    let reply = &mut context.reply;
    match (count, popped.first()) {
        // Without a count, one pair and not a list of pairs.
        (None, Some((member, score))) => {
            reply.array(2);
            reply.bulk(member);
            reply.double(*score);
        }
        _ => reply_members(reply, &popped, true),
    }
    Ok(())
}

fn zscan(context: &mut Context<'_>) -> Outcome {
    scan_collection(context, Type::SortedSet, |value| format_double(decode(value)).into_bytes())
}

fn zrandmember(context: &mut Context<'_>) -> Outcome {
    random_rows(context, Type::SortedSet, "withscores", |reply, value| reply.double(decode(value)))
}

/// LIMIT offset count: a negative count is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    offset: usize,
    count: usize,
    /// Whether a count other than -1 was given.
    bounds: bool,
}

impl Limit {
    /// Everything.
    pub const NONE: Limit = Limit { offset: 0, count: usize::MAX, bounds: false };

    /// Parses the two numbers.
    pub fn parse(rest: &mut Options<'_>) -> Result<Limit, Failure> {
        // Both must be present before either is parsed.
        let (offset, count) = (rest.value()?, rest.value()?);
        let (offset, count) = (integer(offset)?, integer(count)?);
        let bounds = count != -1;
        // A negative offset yields nothing.
        let count = if offset < 0 { 0 } else { usize::try_from(count).unwrap_or(usize::MAX) };
        Ok(Limit { offset: usize::try_from(offset).unwrap_or(0), count, bounds })
    }
}

/// Whether a word is WITHSCORES.
pub fn is_with_scores(word: &[u8]) -> bool {
    is(word, "withscores")
}
