//! Several sorted sets at once: union, intersection, difference, as an answer or stored.

use super::ranges::store;
use super::{Scored, command, is_with_scores, members, reply_members};
use crate::commands::arguments::{Options, float, integer, is};
use crate::commands::collection::open;
use crate::commands::failure::Failure;
use crate::commands::table::Command;
use crate::commands::table::flag::{DENYOOM, MOVABLE_KEYS, READONLY, WRITE};
use crate::commands::{Context, Outcome};
use crate::data::encoding::Type;
use std::collections::HashMap;

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("zunion", -3, "6.2.0", "Returns the union of sorted sets.", zunion).flags(READONLY | MOVABLE_KEYS).keys(0, 0, 0),
    command("zinter", -3, "6.2.0", "Returns the intersection of sorted sets.", zinter).flags(READONLY | MOVABLE_KEYS).keys(0, 0, 0),
    command("zdiff", -3, "6.2.0", "Returns the difference of sorted sets.", zdiff).flags(READONLY | MOVABLE_KEYS).keys(0, 0, 0),
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

/// Reads the sets and combines them: members by score, then by name. Also whether scores are wanted.
fn combine(context: &mut Context<'_>, at: usize, operation: Operation, name: &str) -> Result<(Vec<Scored>, bool), Failure> {
    let args = context.args;
    let count = usize::try_from(integer(&args[at])?).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| Failure::made(format!("ERR at least 1 input key is needed for '{name}' command")))?;
    if count > args.len() - at - 1 {
        return Err(Failure::SYNTAX);
    }
    // Types before options, as in Redis.
    let opened = args.iter().skip(at + 1).take(count).map(|key| open(context.txn, key, Type::SortedSet));
    let opened = opened.collect::<Result<Vec<_>, Failure>>()?;
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
