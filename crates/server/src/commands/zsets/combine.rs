//! Several sorted sets at once: union, intersection and difference, answered or stored; members of the first set that
//! has some.

use super::ranges::store;
use super::{Scored, command, decode, each, is_with_scores, reply_members, score, take};
use crate::commands::arguments::{Options, float, integer, is};
use crate::commands::collection::{Collection, open, walk_after};
use crate::commands::failure::Failure;
use crate::commands::table::Command;
use crate::commands::table::flag::{DENYOOM, MOVABLE_KEYS, READONLY, WRITE};
use crate::commands::{Context, Outcome, Room};
use crate::data::Txn;
use crate::data::encoding::{Type, part};
use hither_resp::Args;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("zunion", -3, "6.2.0", "Returns the union of sorted sets.", zunion).flags(READONLY | MOVABLE_KEYS).keys(0, 0, 0),
    command("zinter", -3, "6.2.0", "Returns the intersection of sorted sets.", zinter).flags(READONLY | MOVABLE_KEYS).keys(0, 0, 0),
    command("zdiff", -3, "6.2.0", "Returns the difference of sorted sets.", zdiff).flags(READONLY | MOVABLE_KEYS).keys(0, 0, 0),
    command("zintercard", -3, "7.0.0", "Counts the members of the intersection of sorted sets.", zintercard)
        .flags(READONLY | MOVABLE_KEYS)
        .keys(0, 0, 0),
    command("zmpop", -4, "7.0.0", "Removes and returns members of the first sorted set that is not empty.", zmpop)
        .flags(WRITE | MOVABLE_KEYS)
        .keys(0, 0, 0),
    command("zunionstore", -4, "2.0.0", "Stores the union of sorted sets.", zunionstore).flags(WRITE | DENYOOM | MOVABLE_KEYS),
    command("zinterstore", -4, "2.0.0", "Stores the intersection of sorted sets.", zinterstore).flags(WRITE | DENYOOM | MOVABLE_KEYS),
    command("zdiffstore", -4, "6.2.0", "Stores the difference of sorted sets.", zdiffstore).flags(WRITE | DENYOOM | MOVABLE_KEYS),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Least,
    Greatest,
}

impl Aggregate {
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            // Infinities of opposite signs make 0, as in Redis; so does NaN.
            Aggregate::Sum if (a + b).is_nan() => 0.0,
            Aggregate::Sum => a + b,
            Aggregate::Least => a.min(b),
            Aggregate::Greatest => a.max(b),
        }
    }
}

/// Opens the sets whose number stands at `at`, before their keys.
fn open_all(context: &mut Context<'_>, at: usize, name: &str) -> Result<Vec<Option<Collection>>, Failure> {
    let args = context.args;
    let count = usize::try_from(integer(&args[at])?).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| Failure::made(format!("ERR at least 1 input key is needed for '{name}' command")))?;
    if count > args.len() - at - 1 {
        return Err(Failure::SYNTAX);
    }
    // Types are checked before options, as in Redis.
    args.iter().skip(at + 1).take(count).map(|key| open(context.txn, key, Type::SortedSet)).collect()
}

/// Reads the sets and combines them; returns the members by score, then by name, and whether scores are wanted.
fn combine(context: &mut Context<'_>, at: usize, operation: Operation, name: &str) -> Result<(Vec<Scored>, bool), Failure> {
    let args = context.args;
    let opened = open_all(context, at, name)?;
    let count = opened.len();
    let (mut weights, mut aggregate, mut with_scores) = (vec![1.0; count], Aggregate::Sum, false);
    let mut rest = Options::new(args, at + 1 + count);
    while let Some(word) = rest.next() {
        // With too few arguments behind it, the word is not an option.
        if is(word, "weights") && operation != Operation::Difference && rest.left() >= count {
            for weight in &mut weights {
                *weight = float(rest.value()?).map_err(|_| Failure::text("ERR weight value is not a float"))?;
            }
        } else if is(word, "aggregate") && operation != Operation::Difference {
            aggregate = match rest.value()?.to_ascii_lowercase().as_slice() {
                b"sum" => Aggregate::Sum,
                b"min" => Aggregate::Least,
                b"max" => Aggregate::Greatest,
                _ => return Err(Failure::SYNTAX),
            };
        } else if is_with_scores(word) && at == 1 {
            with_scores = true;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    // A stored set is not a reply.
    let room = if at == 1 { Room::of(&context.reply) } else { Room::of_members(context.shared) };
    let sets: Vec<Weighed> = opened.into_iter().zip(weights).map(|(set, weight)| Weighed { set, weight }).collect();
    let mut merged = match operation {
        Operation::Union => union(context.txn, sets, aggregate, room)?,
        Operation::Intersection => intersection(context.txn, sets, aggregate, room)?,
        Operation::Difference => difference(context.txn, &sets, room, Room::held(context.shared))?,
    };
    // −0 is 0.
    merged.sort_by(|a, b| (a.1 + 0.0).total_cmp(&(b.1 + 0.0)).then_with(|| a.0.cmp(&b.0)));
    Ok((merged, with_scores))
}

/// One of the sets, if it exists, and the weight of its scores.
struct Weighed {
    set: Option<Collection>,
    weight: f64,
}

impl Weighed {
    fn len(&self) -> usize {
        self.set.as_ref().map_or(0, Collection::len)
    }

    fn weigh(&self, score: f64) -> f64 {
        if (score * self.weight).is_nan() { 0.0 } else { score * self.weight }
    }

    /// Calls `f(member, weighed score)` until it breaks.
    fn each(&self, txn: &mut Txn, mut f: impl FnMut(&[u8], f64) -> ControlFlow<()>) -> Outcome {
        match &self.set {
            Some(set) => each(txn, set, false, |member, score| f(member, self.weigh(score))),
            None => Ok(()),
        }
    }
}

/// All members. Holds each once, however many sets have it. As in Redis, scores are added from the smallest set to the
/// largest, which shows in rounding.
fn union(txn: &mut Txn, mut sets: Vec<Weighed>, aggregate: Aggregate, mut room: Room) -> Result<Vec<Scored>, Failure> {
    sets.sort_by_key(Weighed::len);
    let mut all: HashMap<Vec<u8>, f64> = HashMap::new();
    for set in &sets {
        set.each(txn, |member, score| {
            match all.get_mut(member) {
                Some(known) => *known = aggregate.apply(*known, score),
                None => {
                    room.take(member.len())?;
                    all.insert(member.to_vec(), score);
                }
            }
            ControlFlow::Continue(())
        })?;
        room.check()?;
    }
    Ok(all.into_iter().collect())
}

/// The members that all sets have: those of the smallest that are in the others, too. Scores are added in the same
/// order as for a union.
fn intersection(txn: &mut Txn, mut sets: Vec<Weighed>, aggregate: Aggregate, mut room: Room) -> Result<Vec<Scored>, Failure> {
    sets.sort_by_key(Weighed::len);
    let others = sets[1..].iter().map(|other| Some((other.set.as_ref()?, other.weight))).collect::<Option<Vec<_>>>();
    let (Some(smallest), Some(others)) = (&sets[0].set, others) else { return Ok(Vec::new()) };
    let mut common = Vec::new();
    in_portions(txn, smallest, |txn, member, known| {
        let mut sum = sets[0].weigh(known);
        for (other, weight) in &others {
            // As in Redis: 0 times infinity is 0 in the first set only; in the others it is NaN, which the aggregate
            // handles.
            let Some(score) = score(txn, other, &member)? else { return Ok(ControlFlow::Continue(())) };
            sum = aggregate.apply(sum, score * weight);
        }
        let fits = room.take(member.len());
        common.push((member, sum));
        Ok(fits)
    })?;
    room.check()?;
    Ok(common)
}

/// The members of the first set that are in no other. The members of the others are held if they are fewer, all
/// together, and there is room; otherwise each member of the first set is looked up in them.
fn difference(txn: &mut Txn, sets: &[Weighed], mut room: Room, for_others: Room) -> Result<Vec<Scored>, Failure> {
    let number = |set: &Weighed| set.set.as_ref().map(Collection::number);
    let Some(first) = &sets[0].set else { return Ok(Vec::new()) };
    if sets[1..].iter().any(|set| number(set) == Some(first.number())) {
        return Ok(Vec::new());
    }
    let others: Vec<&Collection> = sets[1..].iter().filter_map(|set| set.set.as_ref()).collect();
    let are_fewer = others.iter().map(|set| set.len()).sum::<usize>() < first.len();
    let held = if are_fewer { names(txn, &others, for_others)? } else { None };
    let mut left = Vec::new();
    in_portions(txn, first, |txn, member, known| {
        let mut is_elsewhere = held.as_ref().is_some_and(|held| held.contains(&member));
        for other in others.iter().filter(|_| held.is_none()) {
            is_elsewhere = is_elsewhere || score(txn, other, &member)?.is_some();
        }
        if is_elsewhere {
            return Ok(ControlFlow::Continue(()));
        }
        let fits = room.take(member.len());
        left.push((member, known));
        Ok(fits)
    })?;
    room.check()?;
    Ok(left)
}

/// The names of all members of these sets, if there is room for them.
fn names(txn: &mut Txn, sets: &[&Collection], mut room: Room) -> Result<Option<HashSet<Vec<u8>>>, Failure> {
    let mut names = HashSet::new();
    for set in sets {
        each(txn, set, false, |member, _| {
            if names.contains(member) {
                return ControlFlow::Continue(());
            }
            names.insert(member.to_vec());
            room.take(member.len())
        })?;
        if room.check().is_err() {
            return Ok(None);
        }
    }
    Ok(Some(names))
}

/// Calls `f(transaction, member, score)` for the members by name until it breaks. Members are read some at a time,
/// because `f` cannot look up others during a walk.
fn in_portions(txn: &mut Txn, set: &Collection, mut f: impl FnMut(&mut Txn, Vec<u8>, f64) -> Result<ControlFlow<()>, Failure>) -> Outcome {
    let mut last = None::<Vec<u8>>;
    loop {
        let (mut some, mut bytes) = (Vec::new(), 0);
        walk_after(txn, set.number(), part::MEMBER, last.take().as_deref(), |member, score| {
            some.push((member.to_vec(), decode(score)));
            bytes += member.len();
            if some.len() < AT_ONCE && bytes < BYTES_AT_ONCE {
                return ControlFlow::Continue(());
            }
            last = Some(member.to_vec());
            ControlFlow::Break(())
        })?;
        for (member, score) in some {
            if f(txn, member, score)?.is_break() {
                return Ok(());
            }
        }
        if last.is_none() {
            return Ok(());
        }
    }
}

fn answer(context: &mut Context<'_>, operation: Operation, name: &str) -> Outcome {
    let (found, with_scores) = combine(context, 1, operation, name)?;
    reply_members(&mut context.reply, &found, with_scores);
    Ok(())
}

fn store_result(context: &mut Context<'_>, operation: Operation, name: &str) -> Outcome {
    let (found, _) = combine(context, 2, operation, name)?;
    store(context, found)
}

fn zunion(context: &mut Context<'_>) -> Outcome {
    answer(context, Operation::Union, "zunion")
}

fn zinter(context: &mut Context<'_>) -> Outcome {
    answer(context, Operation::Intersection, "zinter")
}

fn zdiff(context: &mut Context<'_>) -> Outcome {
    answer(context, Operation::Difference, "zdiff")
}

fn zunionstore(context: &mut Context<'_>) -> Outcome {
    store_result(context, Operation::Union, "zunionstore")
}

fn zinterstore(context: &mut Context<'_>) -> Outcome {
    store_result(context, Operation::Intersection, "zinterstore")
}

fn zdiffstore(context: &mut Context<'_>) -> Outcome {
    store_result(context, Operation::Difference, "zdiffstore")
}

fn zintercard(context: &mut Context<'_>) -> Outcome {
    let opened = open_all(context, 1, "zintercard")?;
    let mut rest = Options::new(context.args, 2 + opened.len());
    let mut limit = 0;
    while let Some(word) = rest.next() {
        if !is(word, "limit") {
            return Err(Failure::SYNTAX);
        }
        let parsed = hither_resp::parse_integer(rest.value()?).and_then(|limit| usize::try_from(limit).ok());
        limit = parsed.ok_or(Failure::text("ERR LIMIT can't be negative"))?;
    }
    let limit = if limit == 0 { usize::MAX } else { limit };
    let sets = opened.into_iter().collect::<Option<Vec<_>>>();
    let common = sets.map_or(Ok(0), |sets| count_common(context.txn, sets, limit))?;
    context.reply.count(common);
    Ok(())
}

/// Members that are read before they are looked up in other sets.
const AT_ONCE: usize = 256;

/// Maximum bytes of their names, or a little more: each may have 64 KiB.
const BYTES_AT_ONCE: usize = 256 << 10;

/// Counts the members that are in all sets, up to `limit`. Holds some members of the smallest set.
fn count_common(txn: &mut Txn, mut sets: Vec<Collection>, limit: usize) -> Result<usize, Failure> {
    sets.sort_by_key(|set| (set.len(), set.number()));
    // A set that was named twice.
    sets.dedup_by_key(|set| set.number());
    if let [only] = sets.as_slice() {
        return Ok(only.len().min(limit));
    }
    let mut common = 0;
    in_portions(txn, &sets[0], |txn, member, _| {
        for set in &sets[1..] {
            if score(txn, set, &member)?.is_none() {
                return Ok(ControlFlow::Continue(()));
            }
        }
        common += 1;
        Ok(if common == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(common)
}

/// The arguments of ZMPOP and BZMPOP.
pub struct PopOptions<'a> {
    args: Args<'a>,
    first: usize,
    keys: usize,
    reverse: bool,
    count: usize,
}

impl<'a> PopOptions<'a> {
    /// Parses `numkeys key … MIN | MAX [COUNT n]` from argument `at` on.
    pub fn parse(args: Args<'a>, at: usize) -> Result<PopOptions<'a>, Failure> {
        let above_zero = |text: &[u8]| hither_resp::parse_integer(text).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let keys = above_zero(&args[at]).ok_or(Failure::text("ERR numkeys should be greater than 0"))?;
        let mut rest = Options::new(args, keys.saturating_add(at + 1));
        let reverse = match rest.value()?.to_ascii_lowercase().as_slice() {
            b"min" => false,
            b"max" => true,
            _ => return Err(Failure::SYNTAX),
        };
        let mut count = None;
        while let Some(word) = rest.next() {
            if !is(word, "count") || count.is_some() {
                return Err(Failure::SYNTAX);
            }
            count = Some(above_zero(rest.value()?).ok_or(Failure::text("ERR count should be greater than 0"))?);
        }
        Ok(PopOptions { args, first: at + 1, keys, reverse, count: count.unwrap_or(1) })
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.args.iter().skip(self.first).take(self.keys)
    }

    /// Takes from the set at a key, and answers.
    pub fn pop(&self, context: &mut Context<'_>, key: &[u8], mut set: Collection) -> Outcome {
        let taken = take(context, key, &mut set, self.reverse, self.count)?;
        let reply = &mut context.reply;
        reply.array(2);
        reply.bulk(key);
        reply.array(taken.len());
        for (member, score) in taken {
            reply.array(2);
            reply.bulk(&member);
            reply.double(score);
        }
        Ok(())
    }
}

/// `ZMPOP numkeys key … MIN | MAX [COUNT n]`
fn zmpop(context: &mut Context<'_>) -> Outcome {
    let options = PopOptions::parse(context.args, 1)?;
    for key in options.keys() {
        if let Some(set) = open(context.txn, key, Type::SortedSet)? {
            return options.pop(context, key, set);
        }
    }
    context.reply.null_array();
    Ok(())
}
