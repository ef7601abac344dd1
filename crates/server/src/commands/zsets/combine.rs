//! Several sorted sets at once: union, intersection, difference, as an answer or stored; members of the first that has some.

use super::ranges::store;
use super::{Scored, command, is_with_scores, members, reply_members, score, take};
use crate::commands::arguments::{Options, float, integer, is};
use crate::commands::collection::{Collection, open};
use crate::commands::failure::Failure;
use crate::commands::table::Command;
use crate::commands::table::flag::{DENYOOM, MOVABLE_KEYS, READONLY, WRITE};
use crate::commands::{Context, Outcome};
use crate::data::encoding::Type;
use hither_resp::Args;
use std::collections::HashMap;

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
            // Infinities of both signs make 0, as in Redis.
            Aggregate::Sum if (a + b).is_nan() => 0.0,
            Aggregate::Sum => a + b,
            Aggregate::Least => a.min(b),
            Aggregate::Greatest => a.max(b),
        }
    }
}

/// The sets whose number stands at `at`, before their keys.
fn open_all(context: &mut Context<'_>, at: usize, name: &str) -> Result<Vec<Option<Collection>>, Failure> {
    let args = context.args;
    let count = usize::try_from(integer(&args[at])?).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| Failure::made(format!("ERR at least 1 input key is needed for '{name}' command")))?;
    if count > args.len() - at - 1 {
        return Err(Failure::SYNTAX);
    }
    // Types before options, as in Redis.
    args.iter().skip(at + 1).take(count).map(|key| open(context.txn, key, Type::SortedSet)).collect()
}

/// Reads the sets and combines them: members by score, then by name. Also whether scores are wanted.
fn combine(context: &mut Context<'_>, at: usize, operation: Operation, name: &str) -> Result<(Vec<Scored>, bool), Failure> {
    let args = context.args;
    let opened = open_all(context, at, name)?;
    let count = opened.len();
    let (mut weights, mut aggregate, mut with_scores) = (vec![1.0; count], Aggregate::Sum, false);
    let mut rest = Options::new(args, at + 1 + count);
    while let Some(word) = rest.next() {
        if is(word, "weights") && operation != Operation::Difference {
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
    let mut sets = Vec::with_capacity(count);
    for (set, weight) in opened.into_iter().zip(weights) {
        let found = match set {
            Some(set) => members(context.txn, &set)?,
            None => Vec::new(),
        };
        let weighed = |score: f64| if (score * weight).is_nan() { 0.0 } else { score * weight };
        sets.push(found.into_iter().map(|(member, score)| (member, weighed(score))).collect::<Vec<_>>());
    }
    Ok((merge(sets, operation, aggregate), with_scores))
}

fn merge(sets: Vec<Vec<Scored>>, operation: Operation, aggregate: Aggregate) -> Vec<Scored> {
    let total = sets.len();
    let mut all: HashMap<Vec<u8>, (f64, usize)> = HashMap::new();
    for (number, set) in sets.into_iter().enumerate() {
        for (member, score) in set {
            match operation {
                Operation::Difference if number > 0 => drop(all.remove(&member)),
                // It was not in all sets before this one.
                Operation::Intersection if number > 0 && !all.contains_key(&member) => {}
                _ => {
                    let known = all.entry(member).and_modify(|known| known.0 = aggregate.apply(known.0, score)).or_insert((score, 0));
                    known.1 += 1;
                }
            }
        }
    }
    let whole = |seen: usize| operation != Operation::Intersection || seen == total;
    let mut merged: Vec<Scored> =
        all.into_iter().filter(|(_, (_, seen))| whole(*seen)).map(|(member, (score, _))| (member, score)).collect();
    // −0 is 0.
    merged.sort_by(|a, b| (a.1 + 0.0).total_cmp(&(b.1 + 0.0)).then_with(|| a.0.cmp(&b.0)));
    merged
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
    let mut common = 0;
    if let Some(mut sets) = opened.into_iter().collect::<Option<Vec<_>>>() {
        sets.sort_by_key(Collection::len);
        for (member, _) in members(context.txn, &sets[0])? {
            let mut in_all = true;
            for set in &sets[1..] {
                in_all = in_all && score(context.txn, set, &member)?.is_some();
            }
            common += usize::from(in_all);
            if common == limit && limit > 0 {
                break;
            }
        }
    }
    context.reply.count(common);
    Ok(())
}

/// What ZMPOP and BZMPOP were asked for.
pub struct PopOptions<'a> {
    args: Args<'a>,
    first: usize,
    keys: usize,
    reverse: bool,
    count: usize,
}

impl<'a> PopOptions<'a> {
    /// Reads `numkeys key … MIN | MAX [COUNT n]` from the argument `at` on.
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
        let taken = take(context.txn, key, &mut set, self.reverse, self.count)?;
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
