//! What hashes and sorted sets have in common: the head, and walks over rows.

use super::Room;
use super::failure::Failure;
use crate::data::encoding::{self, Head, ROW_PREFIX_BYTES, Type, after_prefix, part, row};
use crate::data::{Databases, Txn};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};

/// A collection that a command works on. The commit depends on the collection being unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    /// Its head; commands change the count as members come and go, then call [`Collection::save`].
    pub head: Head,
    expires_at_ms: u64,
    /// Whether it does not exist yet.
    fresh: bool,
}

/// The longest row of a store.
const MOST_ROW_BYTES: usize = 65_536;
/// The longest name of a field.
const MOST_FIELD_BYTES: usize = MOST_ROW_BYTES - ROW_PREFIX_BYTES;
/// The longest name of a member: in the order of scores its row has a score, too.
const MOST_MEMBER_BYTES: usize = MOST_FIELD_BYTES - size_of::<f64>();

/// The row of a field; an error if no store can hold it.
#[inline]
pub fn field_row(number: u64, field: &[u8]) -> Result<Vec<u8>, Failure> {
    if field.len() > MOST_FIELD_BYTES { Err(too_long("field", field, MOST_FIELD_BYTES)) } else { Ok(row(number, part::FIELD, field)) }
}

/// The row of a member by name; an error if no store can hold it and the one by score.
#[inline]
pub fn member_row(number: u64, member: &[u8]) -> Result<Vec<u8>, Failure> {
    if member.len() > MOST_MEMBER_BYTES {
        Err(too_long("member", member, MOST_MEMBER_BYTES))
    } else {
        Ok(row(number, part::MEMBER, member))
    }
}

#[cold]
fn too_long(what: &str, name: &[u8], most: usize) -> Failure {
    Failure::made(format!("ERR a {what} of {} bytes is too long; {what}s have up to {most} bytes", name.len()))
}

/// The head at a key, for an answer that needs one row only: the commit does not depend on it.
pub fn glance(txn: &mut Txn, key: &[u8], kind: Type) -> Result<Option<Head>, Failure> {
    txn.view(key, |found| found.map(|(entry, _)| of_kind(entry, kind)).transpose())?
}

fn of_kind(entry: &[u8], kind: Type) -> Result<Head, Failure> {
    Head::decode(entry).filter(|head| head.kind == kind).ok_or(Failure::WRONG_TYPE)
}

/// Opens the collection at a key.
pub fn open(txn: &mut Txn, key: &[u8], kind: Type) -> Result<Option<Collection>, Failure> {
    // The head alone, because an entry of another type may be long.
    let found = txn.examine(key, |found| found.map(|(entry, at)| Ok::<_, Failure>((of_kind(entry, kind)?, at))).transpose())??;
    Ok(found.map(|(head, expires_at_ms)| Collection { head, expires_at_ms, fresh: false }))
}

/// Opens the collection at a key, or makes a new one.
pub fn open_or_new(txn: &mut Txn, databases: &Databases, key: &[u8], kind: Type) -> Result<Collection, Failure> {
    match open(txn, key, kind)? {
        Some(collection) => Ok(collection),
        None => new(databases, kind),
    }
}

/// Makes a collection that does not exist yet. It takes a number, and now and then a block of numbers is reserved by a
/// sync, so this is only for what is going to be written.
pub fn new(databases: &Databases, kind: Type) -> Result<Collection, Failure> {
    Ok(Collection::fresh(Head { kind, number: databases.next_number()?, count: 0 }))
}

impl Collection {
    /// A collection that does not exist yet, with a number of its own.
    pub fn fresh(head: Head) -> Collection {
        Collection { head, expires_at_ms: 0, fresh: true }
    }

    /// Sets its expiry, in milliseconds since 1970; 0: none.
    pub fn set_expiry(&mut self, expires_at_ms: u64) {
        self.expires_at_ms = expires_at_ms;
    }

    /// The number.
    pub fn number(&self) -> u64 {
        self.head.number
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.head.count as usize
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.head.count == 0
    }

    /// Counts a removed member. The rows may be newer than the head, and more than it counts: the commit would fail
    /// then, so the command runs again.
    pub fn lose_member(&mut self) -> Result<(), Failure> {
        self.head.count = self.head.count.checked_sub(1).ok_or(Failure::Again)?;
        Ok(())
    }

    /// Writes the head, even if the count is unchanged, because its version stands for all rows. Without members,
    /// removes the key.
    pub fn save(&self, txn: &mut Txn, key: &[u8]) -> Result<(), Failure> {
        match (self.head.count, self.fresh) {
            (0, true) => {}
            (0, false) => drop(txn.delete(key)?),
            (_, fresh) => {
                if fresh {
                    txn.register(self.number(), key)?;
                }
                txn.put(key, self.head.encode(), self.expires_at_ms);
            }
        }
        Ok(())
    }
}

/// Calls `f(name, value)` for the rows of one part in order until it breaks; `name` is what follows the part's byte.
pub fn walk(
    txn: &mut Txn,
    number: u64,
    which: u8,
    reverse: bool,
    mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let start = encoding::row(number, which, b"");
    let end = after_prefix(&start);
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    Ok(txn.rows(Bound::Included(&start), to, reverse, |row, value| f(&row[ROW_PREFIX_BYTES..], value))?)
}

/// As [`walk`], forward from behind `after`.
pub fn walk_after(
    txn: &mut Txn,
    number: u64,
    which: u8,
    after: Option<&[u8]>,
    mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let start = encoding::row(number, which, after.unwrap_or_default());
    let end = after_prefix(&encoding::row(number, which, b""));
    let from = if after.is_some() { Bound::Excluded(start.as_slice()) } else { Bound::Included(start.as_slice()) };
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    Ok(txn.rows(from, to, false, |row, value| f(&row[ROW_PREFIX_BYTES..], value))?)
}

/// Places for HRANDFIELD and ZRANDMEMBER: `count` different ones of `len`, or, if `count` is negative, `-count` of
/// which some may be equal.
pub fn random_places(len: usize, count: i64) -> Vec<usize> {
    // Without a source of randomness, any member will do.
    let mut state = getrandom::u64().unwrap_or(1) | 1;
    let mut random = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    if len == 0 {
        return Vec::new();
    }
    if count < 0 {
        return (0..count.unsigned_abs()).map(|_| random(len)).collect();
    }
    let wanted = (count as usize).min(len);
    if wanted <= len / 4 {
        // So few that hardly any is drawn twice.
        let mut drawn = HashSet::with_capacity(wanted);
        return std::iter::repeat_with(|| random(len)).filter(|place| drawn.insert(*place)).take(wanted).collect();
    }
    // The first `wanted` places of a shuffle.
    let mut places: Vec<usize> = (0..len).collect();
    for at in 0..wanted {
        let other = at + random(len - at);
        places.swap(at, other);
    }
    places.truncate(wanted);
    places
}

/// Rows of one part at some places.
#[derive(Default)]
pub struct RowsAt {
    /// Place, name and value, in order.
    rows: Vec<(usize, Vec<u8>, Vec<u8>)>,
}

impl RowsAt {
    /// Reads rows in one walk, from the end that makes the walk shorter; values only if they are wanted. Fails if the
    /// reply has no room for them.
    pub fn read(txn: &mut Txn, set: &Collection, places: &[usize], with_values: bool, mut room: Room) -> Result<RowsAt, Failure> {
        let mut wanted = places.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Ok(RowsAt::default()) };
        let reverse = set.len() - first < last + 1;
        if reverse {
            wanted.reverse();
        }
        let mut wanted = wanted.into_iter().peekable();
        let (mut rows, mut passed) = (Vec::new(), 0);
        walk(txn, set.number(), part_of(set.head.kind), reverse, |name, value| {
            passed += 1;
            let at = if reverse { set.len().checked_sub(passed) } else { Some(passed - 1) };
            if let Some(at) = wanted.next_if(|wanted| at == Some(*wanted)) {
                let value = if with_values { value } else { b"" };
                room.take(name.len() + value.len())?;
                rows.push((at, name.to_vec(), value.to_vec()));
            }
            if wanted.peek().is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        room.check()?;
        if reverse {
            rows.reverse();
        }
        Ok(RowsAt { rows })
    }

    /// Name and value at a place that was asked for.
    pub fn get(&self, place: usize) -> Result<(&[u8], &[u8]), Failure> {
        // The places come from a count of members that is older than the rows.
        let found = self.rows.binary_search_by_key(&place, |(at, ..)| *at).map_err(|_| Failure::Again)?;
        let (_, name, value) = &self.rows[found];
        Ok((name, value))
    }
}

/// The row part over which a type iterates.
pub const fn part_of(kind: Type) -> u8 {
    match kind {
        Type::SortedSet => part::MEMBER,
        _ => part::FIELD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Session, Shared};
    use hither_resp::Args;

    #[test]
    fn rows_are_read_from_the_nearer_end() {
        let shared = Shared::new(hither::Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
        let client = shared.clients.add("test".into(), "test".into(), 0);
        let mut session = Session::new(shared.clone(), client);
        for number in 0..100 {
            let line = format!("HSETh{number:02}v{number:02}");
            session.execute(&shared, Args::new(line.as_bytes(), &[0..4, 4..5, 5..7, 7..10]), &mut Vec::new());
        }
        let mut txn = session.take_txn(false).unwrap_or_else(|_| panic!("it is there"));
        let hash = open(&mut txn, b"h", Type::Hash).ok().flatten().unwrap();
        for places in [&[0][..], &[99], &[49], &[50], &[98, 3], &[70, 99, 70, 60], &[2, 40], &[]] {
            let found = RowsAt::read(&mut txn, &hash, places, true, Room::held(&shared)).unwrap_or_else(|_| panic!("{places:?}"));
            for place in places {
                let (name, value) = found.get(*place).unwrap_or_else(|_| panic!("{places:?}"));
                assert_eq!((name, value), (format!("{place:02}").as_bytes(), format!("v{place:02}").as_bytes()), "{places:?}");
            }
        }
    }
}
