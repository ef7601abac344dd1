//! Ranges of sorted sets: by place, by score, by name.
//!
//! By score: O(log n + members passed). By place: O(offset from the nearer end + members returned). By name, which
//! Redis defines for members of equal score: O(log n + members passed) if all have one score, otherwise in the order of
//! scores, O(n).

use super::{Limit, Scored, command, each, is_with_scores, put, remove, reply_members, split};
use crate::commands::arguments::{Options, integer, parse_float};
use crate::commands::collection::{Collection, open};
use crate::commands::failure::Failure;
use crate::commands::table::Command;
use crate::commands::table::flag::{DENYOOM, FAST, READONLY, WRITE};
use crate::commands::{Context, Outcome, Room};
use crate::data::Txn;
use crate::data::encoding::{Head, Type, after_prefix, part, row, score_bytes, score_row};
use std::ops::{Bound, ControlFlow};

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("zrange", -4, "1.2.0", "Returns a stretch of a sorted set, by place, score or name.", zrange).flags(READONLY),
    command("zrangestore", -5, "6.2.0", "Stores a stretch of a sorted set in another.", zrangestore).flags(WRITE | DENYOOM).keys(1, 2, 1),
    command("zrevrange", -4, "1.2.0", "Returns a stretch of a sorted set by place, from the highest score on.", zrevrange).flags(READONLY),
    command("zrangebyscore", -4, "1.0.5", "Returns the members with scores in a range.", zrangebyscore).flags(READONLY),
    command("zrevrangebyscore", -4, "2.2.0", "Returns the members with scores in a range, from the highest on.", zrevrangebyscore)
        .flags(READONLY),
    command("zrangebylex", -4, "2.8.9", "Returns the members with names in a range.", zrangebylex).flags(READONLY),
    command("zrevrangebylex", -4, "2.8.9", "Returns the members with names in a range, from the last on.", zrevrangebylex).flags(READONLY),
    command("zcount", 4, "2.0.0", "Counts the members with scores in a range.", zcount).flags(READONLY | FAST),
    command("zlexcount", 4, "2.8.9", "Counts the members with names in a range.", zlexcount).flags(READONLY | FAST),
    command("zremrangebyscore", 4, "1.2.0", "Removes the members with scores in a range.", zremrangebyscore).flags(WRITE),
    command("zremrangebyrank", 4, "2.0.0", "Removes a stretch of a sorted set by place.", zremrangebyrank).flags(WRITE),
    command("zremrangebylex", 4, "2.8.9", "Removes the members with names in a range.", zremrangebylex).flags(WRITE),
];

/// Which members a command asks for.
#[derive(Clone, Debug)]
enum Range {
    /// From place to place, both included; negative places count from the end.
    Places(i64, i64),
    /// Between two bounds.
    Stretch(Stretch),
}

/// A range in which each member by itself shows whether it belongs.
#[derive(Clone, Debug)]
enum Stretch {
    /// Between two scores.
    Scores(Bound<f64>, Bound<f64>),
    /// Between two names.
    Names(NameBound, NameBound),
}

#[derive(Clone, Debug)]
enum NameBound {
    BeforeAll,
    BehindAll,
    At(Bound<Vec<u8>>),
}

/// A range of a set, with its order and limit.
#[derive(Clone, Debug)]
struct Query {
    range: Range,
    reverse: bool,
    limit: Limit,
}

/// Parses the number of a bound, as C does for Redis: an empty text is 0, and blanks may stand before the number.
fn score(text: &[u8]) -> Result<f64, Failure> {
    if text.is_empty() {
        return Ok(0.0);
    }
    let blanks = text.iter().take_while(|byte| byte.is_ascii_whitespace() || **byte == 0x0b).count();
    parse_float(&text[blanks..]).ok_or(Failure::text("ERR min or max is not a float"))
}

fn score_bound(argument: &[u8]) -> Result<Bound<f64>, Failure> {
    match argument {
        [b'(', rest @ ..] => Ok(Bound::Excluded(score(rest)?)),
        _ => Ok(Bound::Included(score(argument)?)),
    }
}

fn name_bound(argument: &[u8]) -> Result<NameBound, Failure> {
    match argument {
        b"-" => Ok(NameBound::BeforeAll),
        b"+" => Ok(NameBound::BehindAll),
        [b'[', name @ ..] => Ok(NameBound::At(Bound::Included(name.to_vec()))),
        [b'(', name @ ..] => Ok(NameBound::At(Bound::Excluded(name.to_vec()))),
        _ => Err(Failure::text("ERR min or max not valid string range item")),
    }
}

impl Range {
    fn places(from: &[u8], to: &[u8]) -> Result<Range, Failure> {
        Ok(Range::Places(integer(from)?, integer(to)?))
    }
}

impl Stretch {
    fn scores(from: &[u8], to: &[u8]) -> Result<Stretch, Failure> {
        Ok(Stretch::Scores(score_bound(from)?, score_bound(to)?))
    }

    fn names(from: &[u8], to: &[u8]) -> Result<Stretch, Failure> {
        Ok(Stretch::Names(name_bound(from)?, name_bound(to)?))
    }

    /// Whether every possible member is in it.
    fn is_all(&self) -> bool {
        match self {
            Stretch::Scores(from, to) => *from == Bound::Included(f64::NEG_INFINITY) && *to == Bound::Included(f64::INFINITY),
            Stretch::Names(from, to) => matches!((from, to), (NameBound::BeforeAll, NameBound::BehindAll)),
        }
    }

    /// Calls `f` for its members in order, until it breaks.
    fn each(&self, txn: &mut Txn, set: &Collection, reverse: bool, mut f: impl FnMut(&[u8], f64) -> ControlFlow<()>) -> Outcome {
        match self {
            Stretch::Scores(from, to) => scores(txn, set, (*from, *to), reverse, f),
            Stretch::Names(from, to) => match common_score(txn, set)? {
                Some(score) => names(txn, set, score, (from, to), reverse, f),
                None => each(txn, set, reverse, |member, score| {
                    if from.is_below(member) && to.is_above(member) { f(member, score) } else { ControlFlow::Continue(()) }
                }),
            },
        }
    }
}

impl Query {
    /// All of `range`.
    fn all(range: Range) -> Query {
        Query { range, reverse: false, limit: Limit::NONE }
    }

    /// Parses two bounds from argument `at` on, then the options of ZRANGE. `form` fixes the kind of the range and
    /// whether it is reversed; then LIMIT is the only option. By place, a LIMIT without a count is ignored, as in
    /// Redis.
    fn parse(context: &Context<'_>, at: usize, form: Option<Form>) -> Result<(Query, bool), Failure> {
        let args = context.args;
        let (mut by_score, mut by_name, mut reverse, mut limit, mut with_scores) = (false, false, false, None, false);
        let mut rest = Options::new(args, at + 2);
        while let Some(word) = rest.next() {
            match word.to_ascii_lowercase().as_slice() {
                b"byscore" if form.is_none() && !by_score && !by_name => by_score = true,
                b"bylex" if form.is_none() && !by_score && !by_name => by_name = true,
                b"rev" if form.is_none() && !reverse => reverse = true,
                b"limit" => limit = Some(Limit::parse(&mut rest)?),
                // A stored set always has its scores.
                _ if is_with_scores(word) && at == 2 => with_scores = true,
                _ => return Err(Failure::SYNTAX),
            }
        }
        if let Some(form) = form {
            (by_score, by_name, reverse) = (form.by_score, form.by_name, form.reverse);
        }
        if !by_score && !by_name {
            if limit.is_some_and(|limit| limit.bounds) {
                return Err(Failure::text("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"));
            }
            limit = None;
        }
        if with_scores && by_name {
            return Err(Failure::text("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        let (mut from, mut to) = (&args[at], &args[at + 1]);
        if reverse && (by_score || by_name) {
            std::mem::swap(&mut from, &mut to);
        }
        let range = match (by_score, by_name) {
            (true, _) => Range::Stretch(Stretch::scores(from, to)?),
            (_, true) => Range::Stretch(Stretch::names(from, to)?),
            _ => Range::places(from, to)?,
        };
        Ok((Query { range, reverse, limit: limit.unwrap_or(Limit::NONE) }, with_scores))
    }

    /// Returns the members, in order. Fails if there is no `room` for them.
    fn run(&self, txn: &mut Txn, set: &Collection, room: Room) -> Result<Vec<Scored>, Failure> {
        let mut taken = Taken { skip: self.limit.offset, left: self.limit.count, room, found: Vec::new() };
        if taken.left == 0 {
            return Ok(taken.found);
        }
        match &self.range {
            Range::Places(from, to) => places(txn, set, (*from, *to), self.reverse, &mut taken)?,
            Range::Stretch(stretch) => stretch.each(txn, set, self.reverse, |member, score| taken.take(member, score))?,
        }
        taken.room.check()?;
        Ok(taken.found)
    }
}

impl NameBound {
    fn is_below(&self, name: &[u8]) -> bool {
        match self {
            NameBound::BeforeAll => true,
            NameBound::BehindAll => false,
            NameBound::At(Bound::Excluded(bound)) => name > bound.as_slice(),
            NameBound::At(Bound::Included(bound)) => name >= bound.as_slice(),
            NameBound::At(Bound::Unbounded) => true,
        }
    }

    fn is_above(&self, name: &[u8]) -> bool {
        match self {
            NameBound::BeforeAll => false,
            NameBound::BehindAll => true,
            NameBound::At(Bound::Excluded(bound)) => name < bound.as_slice(),
            NameBound::At(Bound::Included(bound)) => name <= bound.as_slice(),
            NameBound::At(Bound::Unbounded) => true,
        }
    }
}

/// Members collected under a limit.
struct Taken {
    skip: usize,
    left: usize,
    room: Room,
    found: Vec<Scored>,
}

impl Taken {
    fn take(&mut self, member: &[u8], score: f64) -> ControlFlow<()> {
        if self.skip > 0 {
            self.skip -= 1;
            return ControlFlow::Continue(());
        }
        self.room.take(member.len())?;
        self.found.push((member.to_vec(), score));
        self.left -= 1;
        if self.left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Places of a set of `len` members, counted from its beginning. There are no members if the second place is less than
/// the first, or the first is `len` or more.
fn from_beginning(len: i64, from: i64, to: i64) -> (i64, i64) {
    let first = if from < 0 { len.saturating_add(from).max(0) } else { from };
    (first, if to < 0 { len.saturating_add(to) } else { to.min(len - 1) })
}

/// Takes the members between two places, in the order asked for; walks from the nearer end.
fn places(txn: &mut Txn, set: &Collection, (from, to): (i64, i64), reverse: bool, taken: &mut Taken) -> Outcome {
    let len = set.len() as i64;
    let (from, to) = from_beginning(len, from, to);
    if from > to || from >= len {
        return Ok(());
    }
    let count = (to - from + 1) as usize;
    let far = from > len - 1 - to;
    (taken.skip, taken.left) = (if far { len - 1 - to } else { from } as usize, count);
    each(txn, set, reverse != far, |member, score| taken.take(member, score))?;
    if far {
        taken.found.reverse();
    }
    Ok(())
}

/// Calls `f` for the members between two scores in order.
fn scores(
    txn: &mut Txn,
    set: &Collection,
    (from, to): (Bound<f64>, Bound<f64>),
    reverse: bool,
    f: impl FnMut(&[u8], f64) -> ControlFlow<()>,
) -> Outcome {
    // All rows of one score have it as their prefix, so the end of that prefix is behind the score.
    let at = |score: f64| row(set.number(), part::SCORE, &score_bytes(score));
    let behind = |score: f64| after_prefix(&at(score));
    let from = match from {
        Bound::Included(score) => Some(at(score)),
        Bound::Excluded(score) => behind(score),
        Bound::Unbounded => Some(row(set.number(), part::SCORE, b"")),
    };
    let to = match to {
        Bound::Included(score) => behind(score),
        Bound::Excluded(score) => Some(at(score)),
        Bound::Unbounded => after_prefix(&row(set.number(), part::SCORE, b"")),
    };
    let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
    rows(txn, (Bound::Included(&from), Bound::Excluded(&to)), reverse, f)
}

/// The score that all members have, if they have the same.
fn common_score(txn: &mut Txn, set: &Collection) -> Result<Option<f64>, Failure> {
    let mut ends = [None; 2];
    for (end, reverse) in ends.iter_mut().zip([false, true]) {
        each(txn, set, reverse, |_, score| {
            *end = Some(score);
            ControlFlow::Break(())
        })?;
    }
    Ok(ends[0].filter(|_| ends[0] == ends[1]))
}

/// Calls `f` for the members between two names in order; all members must have this score.
fn names(
    txn: &mut Txn,
    set: &Collection,
    score: f64,
    (from, to): (&NameBound, &NameBound),
    reverse: bool,
    f: impl FnMut(&[u8], f64) -> ControlFlow<()>,
) -> Outcome {
    let at = |name: &[u8]| score_row(set.number(), score, name);
    let first = at(b"");
    let Some(end) = after_prefix(&first) else { return Ok(()) };
    let from = match from {
        NameBound::BeforeAll => Bound::Included(first),
        NameBound::At(name) => name.as_ref().map(|name| at(name)),
        NameBound::BehindAll => return Ok(()),
    };
    let to = match to {
        NameBound::BeforeAll => return Ok(()),
        NameBound::At(name) => name.as_ref().map(|name| at(name)),
        NameBound::BehindAll => Bound::Excluded(end),
    };
    rows(txn, (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice)), reverse, f)
}

/// Calls `f` for the members whose rows by score lie between two bounds, in order.
fn rows(
    txn: &mut Txn,
    (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    reverse: bool,
    mut f: impl FnMut(&[u8], f64) -> ControlFlow<()>,
) -> Outcome {
    Ok(txn.rows(from, to, reverse, |row, _| match split(row) {
        Some((score, member)) => f(member, score),
        None => ControlFlow::Continue(()),
    })?)
}

/// What the older commands fix.
#[derive(Clone, Copy)]
struct Form {
    by_score: bool,
    by_name: bool,
    reverse: bool,
}

fn answer(context: &mut Context<'_>, form: Option<Form>) -> Outcome {
    let (query, with_scores) = Query::parse(context, 2, form)?;
    let Context { txn, reply, args, .. } = context;
    let found = match open(txn, &args[1], Type::SortedSet)? {
        Some(set) => query.run(txn, &set, Room::of(reply))?,
        None => Vec::new(),
    };
    reply_members(reply, &found, with_scores);
    Ok(())
}

fn zrange(context: &mut Context<'_>) -> Outcome {
    answer(context, None)
}

fn zrevrange(context: &mut Context<'_>) -> Outcome {
    answer(context, Some(Form { by_score: false, by_name: false, reverse: true }))
}

fn zrangebyscore(context: &mut Context<'_>) -> Outcome {
    answer(context, Some(Form { by_score: true, by_name: false, reverse: false }))
}

fn zrevrangebyscore(context: &mut Context<'_>) -> Outcome {
    answer(context, Some(Form { by_score: true, by_name: false, reverse: true }))
}

fn zrangebylex(context: &mut Context<'_>) -> Outcome {
    answer(context, Some(Form { by_score: false, by_name: true, reverse: false }))
}

fn zrevrangebylex(context: &mut Context<'_>) -> Outcome {
    answer(context, Some(Form { by_score: false, by_name: true, reverse: true }))
}

fn zrangestore(context: &mut Context<'_>) -> Outcome {
    let (query, _) = Query::parse(context, 3, None)?;
    let source = open(context.txn, &context.args[2], Type::SortedSet)?;
    let found = match source {
        Some(set) => query.run(context.txn, &set, Room::of_members(context.shared))?,
        None => Vec::new(),
    };
    store(context, found)
}

/// Replaces what is at the first key by a new set of these members; answers their number.
pub fn store(context: &mut Context<'_>, members: Vec<Scored>) -> Outcome {
    let Context { txn, reply, args, shared, .. } = context;
    txn.delete(&args[1])?;
    reply.count(members.len());
    if members.is_empty() {
        return Ok(());
    }
    let head = Head { kind: Type::SortedSet, number: shared.databases.next_number()?, count: 0 };
    let mut set = Collection::fresh(head);
    for (member, score) in members {
        put(txn, &mut set, &member, None, score)?;
    }
    set.save(txn, &args[1])
}

fn count(context: &mut Context<'_>, stretch: Stretch) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let mut found = 0;
    if let Some(set) = open(txn, &args[1], Type::SortedSet)? {
        stretch.each(txn, &set, false, |_, _| {
            found += 1;
            ControlFlow::Continue(())
        })?;
    }
    reply.count(found);
    Ok(())
}

fn zcount(context: &mut Context<'_>) -> Outcome {
    let stretch = Stretch::scores(&context.args[2], &context.args[3])?;
    count(context, stretch)
}

fn zlexcount(context: &mut Context<'_>) -> Outcome {
    let stretch = Stretch::names(&context.args[2], &context.args[3])?;
    count(context, stretch)
}

fn remove_range(context: &mut Context<'_>, range: Range) -> Outcome {
    let Context { txn, reply, args, shared, .. } = context;
    let Some(mut set) = open(txn, &args[1], Type::SortedSet)? else {
        reply.integer(0);
        return Ok(());
    };
    let found = match range {
        Range::Places(from, to) if from_beginning(set.len() as i64, from, to) == (0, set.len() as i64 - 1) => None,
        Range::Stretch(stretch) if stretch.is_all() => None,
        range => Some(Query::all(range).run(txn, &set, Room::held(shared))?).filter(|found| found.len() != set.len()),
    };
    let Some(found) = found else {
        // All members: without the key nothing leads to their rows, which the reaper removes in the background.
        txn.delete(&args[1])?;
        reply.count(set.len());
        return Ok(());
    };
    let mut rows = Room::of_members(shared);
    if found.iter().any(|(member, _)| rows.take(member.len()).is_break()) {
        return rows.check();
    }
    for (member, score) in &found {
        remove(txn, &mut set, member, *score)?;
    }
    if !found.is_empty() {
        set.save(txn, &args[1])?;
    }
    reply.count(found.len());
    Ok(())
}

fn zremrangebyscore(context: &mut Context<'_>) -> Outcome {
    let stretch = Stretch::scores(&context.args[2], &context.args[3])?;
    remove_range(context, Range::Stretch(stretch))
}

fn zremrangebyrank(context: &mut Context<'_>) -> Outcome {
    let range = Range::places(&context.args[2], &context.args[3])?;
    remove_range(context, range)
}

fn zremrangebylex(context: &mut Context<'_>) -> Outcome {
    let stretch = Stretch::names(&context.args[2], &context.args[3])?;
    remove_range(context, Range::Stretch(stretch))
}
