//! Mends collections that a loss of power has left half changed.
//!
//! Of changes that were not durable yet, any may survive while earlier ones are lost (`docs/durability.md`). A change
//! of a collection builds on the one before. So a head may count rows that are lost, a score row may stay that a lost
//! change has removed, the registry row of a new collection may be lost, or a lost RENAME may leave a second head with
//! its number. All of this is between rows and heads; each batch by itself is there as a whole or not at all.
//!
//! # What it looks at
//!
//! Everything that was changed since the last moment when everything was durable ([`super::mark`]). Each change writes
//! the head (rule 2 of [`super`]), so these are the collections whose head has a higher version. A lost RENAME leaves
//! the earlier head, but if a later RENAME was kept, the registry row shows it. So these are also the collections whose
//! registry row has a higher version, or names another key.
//!
//! To find them, mending walks all keys and looks at the registry row of each collection; it then counts the rows of
//! those collections. Nothing is walked after an orderly end, nor in a database in which there is no row at all.
//! ([`encoding::MARKER`] is such a row, written before the first collection.) So a database of strings starts as fast
//! as ever.
//!
//! One case is not noticed: a lost RENAME, then a change under the new name that was kept, and the removal of that name
//! that was kept, too. The old name has its earlier head and registry row, whose number of members may be that of
//! before the change. The commands that walk rows answer with what is there.
//!
//! # Why it may be cut short
//!
//! Nothing runs beside it. Every step leaves a state that mending would repair, and the mark stays until everything is
//! done and durable: the next start then does the rest.
//!
//! Memory: [`PORTION`] keys or rows.

use super::databases::{self, Database};
use super::encoding::{self, HEAD_BYTES, Head, MEMBERS, ROW_PREFIX_BYTES, Type, after_prefix, part};
use crate::events::{self, Level};
use hither::{Batch, Db, Result, WriteOptions};
use std::ops::{Bound, ControlFlow};

/// Keys or rows looked at between two batches.
const PORTION: usize = 256;
/// Keys between two lines in the log.
const KEYS_PER_LINE: u64 = 1 << 22;
/// The key under which rows are registered for the reaper if their key is unknown: if this key has an entry, its number
/// is a registered one.
const NOBODYS: &[u8] = b"\0";

/// What mending has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Keys walked; twice for databases with collections to be counted.
    pub keys: u64,
    /// Collections whose rows were counted.
    pub collections: u64,
    /// Heads corrected or removed.
    pub heads: u64,
    /// Rows corrected or removed, including registry rows.
    pub rows: u64,
}

/// Mends the collections with heads above version `above` in all databases of a store, including those that this server
/// does not serve.
///
/// # Errors
/// The first error; mending has gone on with the other databases.
pub fn run(db: &Db, above: u64) -> Result<Mended> {
    let (mut done, mut first_error) = (Mended::default(), None);
    for database in databases::all(db)?.into_iter().filter(Database::has_collections) {
        let mut mender = Mender { db, database: &database, above, suspects: false, done: &mut done };
        let outcome = mender.heads().and_then(|()| mender.strays());
        first_error = first_error.or(outcome.err());
    }
    tell("collections-mended", &done);
    first_error.map_or(Ok(done), Err)
}

fn tell(event: &str, done: &Mended) {
    events::log(
        Level::Info,
        event,
        &[("keys", &done.keys), ("collections", &done.collections), ("heads", &done.heads), ("rows", &done.rows)],
    );
}

/// A head, as it was seen.
struct Seen {
    key: Vec<u8>,
    head: Head,
    version: u64,
    expires_at_ms: u64,
}

/// A row, and its value as far as it may be a score.
type Row = (Vec<u8>, Vec<u8>);

struct Mender<'a> {
    db: &'a Db,
    database: &'a Database,
    above: u64,
    /// Whether some collection's rows have to be counted.
    suspects: bool,
    done: &'a mut Mended,
}

impl Mender<'_> {
    /// In two walks: a corrected head has a higher version, and would win against another one with the same number. So
    /// the first walk settles which head has which number.
    fn heads(&mut self) -> Result<()> {
        self.each_head(&mut Self::claim)?;
        if !self.suspects {
            return Ok(());
        }
        self.db.ticket_at(self.db.written_version()).wait()?;
        self.each_head(&mut |mender, seen| if mender.is_suspect(seen)? { mender.recount(seen) } else { Ok(()) })
    }

    /// Whether its number was used since everything was durable, whether by a change of its own, by a RENAME that was
    /// lost, or by [`Mender::claim`].
    fn is_suspect(&self, seen: &Seen) -> Result<bool> {
        if seen.version > self.above {
            return Ok(true);
        }
        let registry = encoding::registry_row(seen.head.number);
        let (registered, _) = self.database.rows.peek_with(&registry, |_, found| found.version)?;
        Ok(registered.is_none_or(|version| version > self.above))
    }

    fn each_head(&mut self, f: &mut impl FnMut(&mut Self, &Seen) -> Result<()>) -> Result<()> {
        let mut after = None::<Vec<u8>>;
        loop {
            let heads = self.next_heads(after.as_deref())?;
            for seen in &heads {
                f(self, seen)?;
            }
            if heads.len() < PORTION {
                return Ok(());
            }
            after = heads.into_iter().next_back().map(|seen| seen.key);
        }
    }

    fn next_heads(&mut self, after: Option<&[u8]>) -> Result<Vec<Seen>> {
        let (mut heads, done) = (Vec::new(), &mut *self.done);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.database.keys.scan_deferred(from, Bound::Unbounded, false, |key, entry, found| {
            done.keys += 1;
            if done.keys.is_multiple_of(KEYS_PER_LINE) {
                tell("mending-collections", done);
            }
            let head = Head::decode(&entry[..entry.len().min(HEAD_BYTES)]);
            heads.extend(head.map(|head| Seen { key: key.to_vec(), head, version: found.version, expires_at_ms: found.expires_at_ms }));
            if heads.len() == PORTION { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(heads)
    }

    /// Counts a collection's rows, after removing those that do not belong there.
    fn recount(&mut self, seen: &Seen) -> Result<()> {
        self.done.collections += 1;
        let count = match seen.head.kind {
            Type::SortedSet => {
                self.remove_ghosts(seen)?;
                self.members(seen)?
            }
            _ => self.count(&encoding::row(seen.head.number, part::FIELD, b""))?,
        };
        if count == seen.head.count {
            return Ok(());
        }
        let mut batch = self.batch(seen);
        match count {
            0 => batch.delete(&self.database.keys, &seen.key),
            _ => batch.put_with_expiry(&self.database.keys, &seen.key, &Head { count, ..seen.head }.encode(), seen.expires_at_ms),
        };
        self.done.heads += self.commit(batch)?;
        Ok(())
    }

    /// Makes sure that the registry names the key, and that no other key has this number. Of two heads, the one that
    /// was written later keeps the number, because the collection was renamed.
    fn claim(&mut self, seen: &Seen) -> Result<()> {
        // No client writes meanwhile, but keys expire: then the head is looked at again.
        while !self.try_claim(seen)? {
            let (version, _) = self.database.keys.peek_with(&seen.key, |_, found| found.version)?;
            if version != Some(seen.version) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns false if something has changed.
    fn try_claim(&mut self, seen: &Seen) -> Result<bool> {
        let Database { keys, rows, .. } = self.database;
        let registry = encoding::registry_row(seen.head.number);
        let (found, _) = rows.peek_with(&registry, |key, found| (key.to_vec(), found.version))?;
        let (named, registered) = found.unzip();
        let is_right = named.as_ref() == Some(&seen.key);
        self.suspects |= !is_right || seen.version.max(registered.unwrap_or(0)) > self.above;
        if is_right {
            return Ok(true);
        }
        let mut batch = self.batch(seen);
        let named = named.unwrap_or_else(|| seen.key.clone());
        let (other, _) = keys.peek_with(&named, |entry, found| (Head::decode(entry), found.version))?;
        let other = other.and_then(|(head, version)| head.filter(|head| head.number == seen.head.number).map(|_| version));
        let other = other.filter(|_| named != seen.key);
        if other.is_some_and(|version| version > seen.version) {
            batch.delete(keys, &seen.key);
            let removed = self.commit(batch)?;
            self.done.heads += removed;
            return Ok(removed > 0);
        }
        if let Some(version) = other {
            batch.require_version(keys, &named, Some(version)).delete(keys, &named);
        }
        batch.put(rows, &registry, &seen.key);
        let written = self.commit(batch)?;
        self.done.heads += written.saturating_sub(1);
        self.done.rows += written.min(1);
        Ok(written > 0)
    }

    /// Removes score rows whose member has another score, or is gone.
    fn remove_ghosts(&mut self, seen: &Seen) -> Result<()> {
        let rows = &self.database.rows;
        self.portions(seen, part::SCORE, |mender, portion| {
            let mut batch = mender.batch(seen);
            for (row, _) in portion {
                let Some((score, member)) = row[ROW_PREFIX_BYTES..].split_first_chunk::<8>() else { continue };
                let (is_so, _) = rows.peek_with(&encoding::row(seen.head.number, part::MEMBER, member), |value, _| value == score)?;
                if is_so != Some(true) {
                    batch.delete(rows, row);
                }
            }
            mender.done.rows += mender.commit(batch)?;
            Ok(())
        })
    }

    /// Counts members, and adds score rows that are missing.
    fn members(&mut self, seen: &Seen) -> Result<u64> {
        let (rows, mut count) = (&self.database.rows, 0);
        self.portions(seen, part::MEMBER, |mender, portion| {
            count += portion.len() as u64;
            let mut batch = mender.batch(seen);
            for (row, score) in portion {
                let by_score = encoding::row(seen.head.number, part::SCORE, &[score, &row[ROW_PREFIX_BYTES..]].concat());
                if rows.peek_with(&by_score, |_, _| ())?.0.is_none() {
                    batch.put(rows, &by_score, b"");
                }
            }
            mender.done.rows += mender.commit(batch)?;
            Ok(())
        })?;
        Ok(count)
    }

    /// Calls `f` with all rows of one part, some at a time.
    fn portions(&mut self, seen: &Seen, part: u8, mut f: impl FnMut(&mut Self, &[Row]) -> Result<()>) -> Result<()> {
        let start = encoding::row(seen.head.number, part, b"");
        let (end, mut after) = (after_prefix(&start), None::<Vec<u8>>);
        loop {
            let mut portion = Vec::with_capacity(PORTION);
            let from = after.as_deref().map_or(Bound::Included(start.as_slice()), Bound::Excluded);
            let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            self.database.rows.scan_deferred(from, to, false, |row, value, _| {
                portion.push((row.to_vec(), value[..value.len().min(8)].to_vec()));
                if portion.len() == PORTION { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            f(self, &portion)?;
            if portion.len() < PORTION {
                return Ok(());
            }
            after = portion.pop().map(|(row, _)| row);
        }
    }

    fn count(&self, prefix: &[u8]) -> Result<u64> {
        let (end, mut count) = (after_prefix(prefix), 0);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.database.rows.scan_deferred(Bound::Included(prefix), to, false, |_, _, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Registers rows that are not registered, for the reaper. All rows that have a head are registered by now.
    fn strays(&mut self) -> Result<()> {
        let (rows, mut from) = (&self.database.rows, vec![MEMBERS]);
        loop {
            let mut number = None;
            rows.scan_first(1, Bound::Included(&from), Bound::Unbounded, false, |row, _| {
                number = encoding::number_of(row);
                ControlFlow::Break(())
            })?;
            let Some(number) = number else { return Ok(()) };
            let registry = encoding::registry_row(number);
            if rows.peek_with(&registry, |_, _| ())?.0.is_none() {
                rows.write_deferred(&registry, Some(NOBODYS), &WriteOptions::new())?;
                self.done.rows += 1;
            }
            let Some(next) = after_prefix(&encoding::members_prefix(number)) else { return Ok(()) };
            from = next;
        }
    }

    /// A batch on the condition that the head is as it was seen.
    fn batch(&self, seen: &Seen) -> Batch {
        let mut batch = self.db.batch();
        batch.require_version(&self.database.keys, &seen.key, Some(seen.version));
        batch
    }

    /// Commits a batch and returns how many writes it applied.
    fn commit(&self, batch: Batch) -> Result<u64> {
        let writes = batch.len() as u64;
        Ok(if writes > 0 && batch.commit_deferred(&WriteOptions::new())?.applied { writes } else { 0 })
    }
}
