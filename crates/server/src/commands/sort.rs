//! SORT and SORT_RO: members of a sorted set, ordered by themselves or by other keys' values.
//!
//! O(n log n), plus a lookup for each member and each pattern. All of it is of one state, as in every command. STORE
//! would make a list, and there are no lists.

use super::arguments::{Options, is, parse_finite};
use super::collection::open;
use super::failure::Failure;
use super::table::flag::{DANGEROUS, DENYOOM, MOVABLE_KEYS, READONLY, WRITE};
use super::table::{Command, Group, Numbered, TABLE};
use super::zsets::each;
use super::{Context, Outcome, Room};
use crate::data::Txn;
use crate::data::encoding::{Type, part, row};
use hither::Keyspace;
use std::cmp::Ordering;
use std::ops::ControlFlow;

const fn command(name: &'static str, since: &'static str, summary: &'static str, run: fn(&mut Context<'_>) -> Outcome) -> Command {
    Command::new(name, -2, Group::Generic, since, summary, run).keys(1, 1, 1)
}

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("sort", "1.0.0", "Returns the members of a sorted set in another order, or what they lead to.", sort)
        .flags(WRITE | DENYOOM | DANGEROUS | MOVABLE_KEYS),
    command("sort_ro", "7.0.0", "Returns the members of a sorted set in another order, or what they lead to.", sort)
        .flags(READONLY | DANGEROUS | MOVABLE_KEYS),
];

/// The options of SORT.
struct SortOptions<'a> {
    /// `None`: by the member itself.
    by: Option<Pattern<'a>>,
    /// What is answered for each member; the member itself if empty.
    get: Vec<Pattern<'a>>,
    offset: i64,
    count: i64,
    alpha: bool,
    descending: bool,
}

/// Where a member leads to.
#[derive(Clone, Copy)]
enum Pattern<'a> {
    /// `#`: to itself.
    Member,
    /// A pattern without `*`: nowhere.
    Nowhere,
    /// To the string at a key, or to a field of the hash there.
    Key { before: &'a [u8], behind: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    fn parse(text: &'a [u8]) -> Pattern<'a> {
        if text == b"#" {
            return Pattern::Member;
        }
        let Some(star) = text.iter().position(|byte| *byte == b'*') else { return Pattern::Nowhere };
        let (before, behind) = (&text[..star], &text[star + 1..]);
        // An arrow with nothing behind it is part of the key.
        match behind.windows(2).position(|two| two == b"->").filter(|at| at + 2 < behind.len()) {
            Some(at) => Pattern::Key { before, behind: &behind[..at], field: Some(&behind[at + 2..]) },
            None => Pattern::Key { before, behind, field: None },
        }
    }

    /// The value that the pattern leads to. The commit depends on the key, so the key is held until then, whether or
    /// not it exists.
    fn follow(self, txn: &mut Txn, member: &[u8], room: &mut Room) -> Result<Option<Vec<u8>>, Failure> {
        let Pattern::Key { before, behind, field } = self else {
            return Ok(matches!(self, Pattern::Member).then(|| member.to_vec()));
        };
        let key = [before, member, behind].concat();
        if is_nowhere(&key) {
            return Ok(None);
        }
        room.take_read(&key)?;
        let Some(item) = txn.load(&key)? else { return Ok(None) };
        match (Type::of(&item.entry), field) {
            (Some(Type::String), None) => Ok(Some(item.entry[1..].to_vec())),
            (Some(Type::Hash), Some(field)) => {
                let Some(hash) = open(txn, &key, Type::Hash)? else { return Ok(None) };
                let row = row(hash.number(), part::FIELD, field);
                if is_nowhere(&row) { Ok(None) } else { Ok(txn.row(&row, <[u8]>::to_vec)?) }
            }
            _ => Ok(None),
        }
    }
}

/// Whether no store can hold this key: it is empty, or too long.
fn is_nowhere(key: &[u8]) -> bool {
    Keyspace::check_pair(key, b"").is_err()
}

impl<'a> SortOptions<'a> {
    fn parse(context: &Context<'a>) -> Result<SortOptions<'a>, Failure> {
        let read_only = is(&context.args[0], "sort_ro");
        let mut options = SortOptions { by: None, get: Vec::new(), offset: 0, count: -1, alpha: false, descending: false };
        let mut stores = false;
        let mut rest = Options::new(context.args, 2);
        while let Some(word) = rest.next() {
            match word.to_ascii_lowercase().as_slice() {
                b"asc" => options.descending = false,
                b"desc" => options.descending = true,
                b"alpha" => options.alpha = true,
                b"limit" if rest.left() >= 2 => (options.offset, options.count) = (rest.integer()?, rest.integer()?),
                b"store" if rest.left() >= 1 && !read_only => stores = rest.value().is_ok(),
                b"by" if rest.left() >= 1 => {
                    let pattern = rest.value()?;
                    options.by = Some(match (options.by, Pattern::parse(pattern)) {
                        // As in Redis, one that leads nowhere stays in force whatever follows.
                        (Some(Pattern::Nowhere), _) | (_, Pattern::Member) => Pattern::Nowhere,
                        (_, pattern) => pattern,
                    });
                    if pattern.contains(&b'*') {
                        check_rights(context, "BY")?;
                    }
                }
                b"get" if rest.left() >= 1 => {
                    check_rights(context, "GET")?;
                    options.get.push(Pattern::parse(rest.value()?));
                }
                _ => return Err(Failure::SYNTAX),
            }
        }
        if stores {
            return Err(Failure::text("ERR there are no lists: SORT cannot STORE its result"));
        }
        Ok(options)
    }

    /// The part of `len` members that LIMIT asks for.
    fn stretch(&self, len: usize) -> std::ops::Range<usize> {
        let bounded = |number: i64| usize::try_from(number).unwrap_or(0).min(len);
        let start = bounded(self.offset);
        let end = if self.count < 0 { len } else { (start + bounded(self.count)).min(len) };
        start..end
    }
}

/// Patterns can read any key, so the user must be allowed to read all keys.
fn check_rights(context: &Context<'_>, option: &str) -> Outcome {
    let allowed = context.session.user.unrestricted
        || TABLE.find(context.args).is_ok_and(|found: Numbered| context.session.user.may_read_all(found, context.args));
    if allowed {
        return Ok(());
    }
    Err(Failure::made(format!("ERR {option} option of SORT denied due to insufficient ACL permissions.")))
}

/// Parses a number as SORT does: an empty text is 0, and white space may precede a number, but is none by itself.
fn weight(text: &[u8]) -> Result<f64, Failure> {
    // What is white space in C.
    let start = text.iter().position(|byte| !byte.is_ascii_whitespace() && *byte != 0x0b);
    let weight = if text.is_empty() { Some(0.0) } else { start.and_then(|start| parse_finite(&text[start..])) };
    let named = text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'n'));
    let fits = |weight: &f64| weight.is_finite() || named;
    weight.filter(fits).ok_or(Failure::text("ERR One or more scores can't be converted into double"))
}

/// What a member is ordered by.
enum Rank {
    Number(f64),
    Text(Option<Vec<u8>>),
}

impl Rank {
    fn compare(&self, other: &Rank) -> Ordering {
        match (self, other) {
            (Rank::Number(a), Rank::Number(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
            (Rank::Text(a), Rank::Text(b)) => a.cmp(b),
            _ => Ordering::Equal,
        }
    }
}

fn ranked(txn: &mut Txn, options: &SortOptions<'_>, members: Vec<Vec<u8>>, room: &mut Room) -> Result<Vec<Vec<u8>>, Failure> {
    let mut ranked = Vec::with_capacity(members.len());
    for member in members {
        let by = options.by.map_or_else(|| Ok(Some(member.clone())), |by| by.follow(txn, &member, room))?;
        let rank = match (options.alpha, by) {
            (true, text) => Rank::Text(text),
            (false, Some(text)) => Rank::Number(weight(&text)?),
            (false, None) => Rank::Number(0.0),
        };
        let held = if let Rank::Text(Some(text)) = &rank { text.len() } else { 0 };
        if room.take(held).is_break() {
            room.check()?;
        }
        ranked.push((rank, member));
    }
    ranked.sort_by(|a, b| a.0.compare(&b.0).then_with(|| a.1.cmp(&b.1)));
    if options.descending {
        ranked.reverse();
    }
    Ok(ranked.into_iter().map(|(_, member)| member).collect())
}

/// The members to answer, in order.
fn chosen(txn: &mut Txn, options: &SortOptions<'_>, key: &[u8], room: &mut Room) -> Result<Vec<Vec<u8>>, Failure> {
    let Some(set) = open(txn, key, Type::SortedSet)? else { return Ok(Vec::new()) };
    let unsorted = matches!(options.by, Some(Pattern::Nowhere));
    // A set in its own order is not read beyond the last member asked for.
    let read = if unsorted { options.stretch(set.len()) } else { 0..set.len() };
    let (mut members, mut passed) = (Vec::with_capacity(read.len()), 0);
    if !read.is_empty() {
        each(txn, &set, unsorted && options.descending, |member, _| {
            passed += 1;
            if passed > read.start {
                members.push(member.to_vec());
                room.take(member.len())?;
            }
            if passed < read.end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        room.check()?;
    }
    if unsorted {
        return Ok(members);
    }
    let mut members = ranked(txn, options, members, room)?;
    let stretch = options.stretch(members.len());
    members.truncate(stretch.end);
    Ok(members.split_off(stretch.start))
}

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern …] [ASC | DESC] [ALPHA]`
fn sort(context: &mut Context<'_>) -> Outcome {
    let options = SortOptions::parse(context)?;
    let Context { txn, reply, args, shared, .. } = context;
    let mut room = Room::held(shared);
    let chosen = chosen(txn, &options, &args[1], &mut room)?;
    let get: &[Pattern<'_>] = if options.get.is_empty() { &[Pattern::Member] } else { &options.get };
    reply.array(chosen.len() * get.len());
    for member in &chosen {
        for pattern in get {
            if reply.is_full() {
                return Ok(());
            }
            match pattern.follow(txn, member, &mut room)? {
                Some(value) => reply.bulk(&value),
                None => reply.null(),
            }
        }
    }
    Ok(())
}
