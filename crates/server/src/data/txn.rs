//! One command, or all commands between MULTI and EXEC: reads, a private view of its own writes, one atomic commit.
//!
//! A transaction is optimistic: it remembers the version of what it read, which becomes a precondition of the commit.
//! If another writer was faster, the commit is not applied and the caller runs everything again; some writer has then
//! made progress. A transaction that only read is checked in the same way before its outcome counts, so it never
//! reports a state that did not exist.
//!
//! Thread safety: belongs to one thread.

mod commit;
mod gone;
mod scans;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod tests;
mod undo;

use super::databases::Database;
use super::encoding::{self, Head, Type};
use hither::{Error, Keyspace, Result, WriteOptions};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use undo::Undo;

/// A value with its expiry, in the transaction's own view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The entry as on media.
    pub entry: Vec<u8>,
    /// When it expires, in milliseconds since 1970; 0: never.
    pub expires_at_ms: u64,
}

/// Rows sort before keys: a database's writes are committed and become visible in this order, and a head's version
/// stands for all of its rows (rule 2 of [`super`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Space {
    Rows,
    Keys,
}

/// Database, space, key.
type Place = (u16, Space, Vec<u8>);

/// The reads and writes of one command, or of all commands of an EXEC, until they are committed.
pub struct Txn {
    database: Arc<Database>,
    /// All databases that it touched.
    touched: Vec<Arc<Database>>,
    /// Whether every read becomes a precondition, because several commands must see one state.
    isolated: bool,
    /// Versions of the keys that were read; `None`: absent.
    reads: HashMap<(u16, Vec<u8>), Option<u64>>,
    /// A key had another version when it was read again: the reads are not of one moment.
    torn: bool,
    /// The databases in which it has written without a look at what was there, because there were no collections yet.
    unlooked: Vec<u16>,
    /// The writes; `None` deletes.
    writes: BTreeMap<Place, Option<Item>>,
    /// Collections whose heads it removes.
    orphans: BTreeSet<(u16, u64)>,
    rests_on: u64,
    /// Version of the entry that was viewed last.
    viewed: u64,
    /// How many keys its reads found, and did not find.
    pub looked_up: [u64; 2],
    options: WriteOptions,
    /// The first write of this command that no store can hold.
    unfit: Option<Error>,
    /// Isolated only: how to take back what the current command has done.
    undo: Vec<Undo>,
    /// Isolated only: what the commands hold.
    held: Held,
    /// The database in which the current command began.
    began_in: Option<Arc<Database>>,
    /// What later scans skip.
    gone: gone::Gone,
}

/// What several commands hold until they are committed, in bytes.
#[derive(Default)]
struct Held {
    /// What they write.
    now: usize,
    /// The keys that they have read, without watched ones, which count elsewhere.
    read: usize,
    /// `now`, `read` and the bytes of emptied stretches when the current command began.
    before: (usize, usize, usize),
    /// The most that one command has added.
    largest: usize,
}

impl Held {
    /// Notes the end of a command, which has written `written` bytes. Now the emptied stretches take `gone` bytes.
    fn end_command(&mut self, written: usize, gone: usize) {
        self.largest = self.largest.max(written + self.read - self.before.1 + gone.saturating_sub(self.before.2));
    }
}

/// Approximate bytes of a read besides its key: its place in the table, with the free places there.
const PER_READ: usize = 2 * size_of::<((u16, Vec<u8>), Option<u64>)>();

/// Approximate bytes of a write besides its key and entry: its place in the map, and in the undo list.
pub const PER_WRITE: usize = 2 * size_of::<(Place, Option<Item>)>();

fn held_by(key: &[u8], item: Option<&Item>) -> usize {
    PER_WRITE + key.len() + item.map_or(0, |item| item.entry.len())
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// False: another writer was faster; run everything again.
    pub applied: bool,
    /// The version that must be durable before the reply may leave; 0: none.
    pub rests_on: u64,
    /// Collections to announce to the reaper.
    pub orphans: BTreeSet<(u16, u64)>,
    /// Whether it may have overwritten further collections without noticing.
    pub unseen: bool,
}

impl Txn {
    /// A transaction on `database`. `isolated`: it runs several commands.
    pub fn new(database: Arc<Database>, isolated: bool, options: WriteOptions) -> Txn {
        Txn {
            database,
            touched: Vec::new(),
            isolated,
            reads: HashMap::new(),
            torn: false,
            unlooked: Vec::new(),
            writes: BTreeMap::new(),
            orphans: BTreeSet::new(),
            rests_on: 0,
            viewed: 0,
            looked_up: [0; 2],
            options,
            unfit: None,
            undo: Vec::new(),
            held: Held::default(),
            began_in: None,
            gone: gone::Gone::default(),
        }
    }

    /// Whether there is nothing to commit or to take back: its reads were answered at once, and its writes were written
    /// at once. Then it can serve another command.
    pub fn is_spare(&self) -> bool {
        let has_read = !self.reads.is_empty() || !self.touched.is_empty();
        let has_written = !self.unlooked.is_empty() || !self.writes.is_empty() || !self.orphans.is_empty() || !self.undo.is_empty();
        !has_read && !has_written
    }

    /// Makes a spare transaction like new; `None` if it is on another database.
    #[inline]
    pub fn renew(mut self: Box<Self>, database: &Arc<Database>, isolated: bool, options: WriteOptions) -> Option<Box<Txn>> {
        debug_assert!(self.is_spare(), "only such are kept");
        if !Arc::ptr_eq(&self.database, database) {
            return None;
        }
        (self.isolated, self.options) = (isolated, options);
        (self.rests_on, self.unfit, self.began_in) = (0, None, None);
        (self.looked_up, self.torn) = ([0; 2], false);
        self.gone.clear();
        Some(self)
    }

    /// Begins the next of several commands.
    pub fn begin_command(&mut self) {
        self.undo.clear();
        self.held.before = (self.held.now, self.held.read, self.gone.bytes());
        (self.unfit, self.looked_up) = (None, [0; 2]);
        self.began_in = Some(self.database.clone());
    }

    /// Ends the command.
    ///
    /// # Errors
    /// It wrote what no store can hold, so [`Txn::commit`] would fail.
    pub fn end_command(&mut self) -> Result<()> {
        if let Some(error) = self.unfit.take() {
            return Err(error);
        }
        if self.isolated {
            self.held.end_command(self.held.now.saturating_sub(self.held.before.0), self.gone.bytes());
        }
        Ok(())
    }

    /// Whether what its commands have read and written, and what it knows to be emptied, takes more than `limit` bytes. The largest command does not
    /// count: each may hold what it could hold alone.
    pub fn holds_more_than(&self, limit: usize) -> bool {
        (self.held.now + self.held.read + self.gone.bytes()).saturating_sub(self.held.largest) > limit
    }

    /// Continues in another database.
    pub fn select(&mut self, database: Arc<Database>) {
        self.database = database;
    }

    /// The database that it is in.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Whether several commands share it.
    pub fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// The version that everything it has reported so far rests on.
    pub fn rests_on(&self) -> u64 {
        self.rests_on
    }

    /// Adds a version that its reports rest on.
    pub fn rest_on(&mut self, version: u64) {
        self.note(version);
    }

    /// The places where it leaves a sorted set.
    pub fn sorted_sets(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let is_set = |item: &Item| Type::of(&item.entry) == Some(Type::SortedSet);
        let heads = self.writes.iter().filter(move |((_, space, _), item)| *space == Space::Keys && item.as_ref().is_some_and(is_set));
        heads.map(|((database, _, key), _)| (*database, key.as_slice()))
    }

    /// Makes the commit depend on a key still having the version that the client saw.
    pub fn require(&mut self, database: &Arc<Database>, key: &[u8], version: Option<u64>) {
        self.touch(database.clone());
        self.note_read((database.index, key.to_vec()), version);
    }

    /// The key's version, as [`Txn::require`] takes it.
    pub fn version_of(&mut self, database: &Arc<Database>, key: &[u8]) -> Result<Option<u64>> {
        let (version, rests_on) = database.keys.peek_with(key, |_, found| found.version)?;
        self.note(rests_on);
        Ok(version)
    }

    /// Calls `f` with the key's entry and expiry, in place if possible. A lone command may report what it saw without
    /// further checks if it looked at nothing else; a command that goes on from here uses [`Txn::load`].
    #[inline]
    pub fn view<R>(&mut self, key: &[u8], f: impl FnOnce(Option<(&[u8], u64)>) -> R) -> Result<R> {
        if self.isolated {
            return self.examine(key, f);
        }
        let (told, version) = self.peek(key, f)?;
        self.viewed = version.unwrap_or(self.viewed);
        Ok(told)
    }

    /// As [`Txn::view`], but the commit depends on the entry from here on: for commands that need only a part of an
    /// entry that may be long.
    pub fn examine<R>(&mut self, key: &[u8], f: impl FnOnce(Option<(&[u8], u64)>) -> R) -> Result<R> {
        let place = (self.database.index, Space::Keys, key.to_vec());
        if let Some(written) = self.writes.get(&place) {
            self.looked_up[usize::from(written.is_none())] += 1;
            return Ok(f(written.as_ref().map(|item| (item.entry.as_slice(), item.expires_at_ms))));
        }
        let (told, version) = self.peek(key, f)?;
        self.touch(self.database.clone());
        if self.note_read((place.0, place.2), version) && self.isolated {
            self.held.read += PER_READ + key.len();
        }
        Ok(told)
    }

    /// Whether the key exists; the commit depends on that.
    pub fn has(&mut self, key: &[u8]) -> Result<bool> {
        self.examine(key, |found| found.is_some())
    }

    /// Returns what `f` reads from the entry in the store, and the entry's version.
    #[inline]
    fn peek<R>(&mut self, key: &[u8], f: impl FnOnce(Option<(&[u8], u64)>) -> R) -> Result<(R, Option<u64>)> {
        let (mut f, mut version) = (Some(f), None);
        let (told, rests_on) = self.database.keys.peek_with(key, |entry, found| {
            version = Some(found.version);
            f.take().map(|f| f(Some((entry, found.expires_at_ms))))
        })?;
        self.note(rests_on);
        self.looked_up[usize::from(told.is_none())] += 1;
        match (told.flatten(), f) {
            (Some(told), _) => Ok((told, version)),
            (None, Some(f)) => Ok((f(None), None)),
            (None, None) => unreachable!("f was called, so it told something"),
        }
    }

    /// Calls `f` with the value of a row of the collection whose head was viewed last, at `key`. Returns [`None`] in
    /// place of an answer if row and head may not have been so at one moment.
    ///
    /// The row belongs to the head's key as long as the head is the same. By now it may belong to another key, because
    /// RENAME takes rows along, and may not have had this value before. But whatever changes a row also writes its head
    /// and has a higher version than the head that was viewed. So a row with a lower version was there when the head
    /// was viewed.
    pub fn row_of_viewed<R>(&mut self, key: &[u8], row: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<Option<R>>> {
        if self.isolated {
            // The commit depends on the head.
            return self.row(row, f).map(Some);
        }
        let head = self.viewed;
        let (told, rests_on) = self.database.rows.peek_with(row, |value, found| (f(value), found.version < head))?;
        self.note(rests_on);
        let same = match told {
            Some((_, true)) => true,
            _ => {
                let (same, rests_on) = self.database.keys.peek_with(key, |_, found| found.version == head)?;
                self.note(rests_on);
                same == Some(true)
            }
        };
        Ok(same.then_some(told.map(|(told, _)| told)))
    }

    /// The key's value; the commit depends on it from here on.
    pub fn load(&mut self, key: &[u8]) -> Result<Option<Item>> {
        self.examine(key, |found| found.map(|(entry, expires_at_ms)| Item { entry: entry.to_vec(), expires_at_ms }))
    }

    /// Notes a read. The first version counts: if it has changed by the commit, the commit must fail. But a key may be
    /// absent again by then and have been there in between, which `torn` records. Returns whether the key had not been
    /// read before.
    fn note_read(&mut self, key: (u16, Vec<u8>), version: Option<u64>) -> bool {
        let known = self.reads.len();
        self.torn |= *self.reads.entry(key).or_insert(version) != version;
        self.reads.len() > known
    }

    /// Writes a key's entry whatever is there, and at once if this is a lone command: for values that do not depend on
    /// anything.
    pub fn overwrite(&mut self, key: &[u8], entry: &[u8], expires_at_ms: u64) -> Result<()> {
        if self.isolated || self.database.has_collections() || !self.writes.is_empty() || !self.reads.is_empty() {
            self.forget_collection(key)?;
            self.put(key, entry.to_vec(), expires_at_ms);
            return Ok(());
        }
        self.overwrite_unlooked(key, entry, expires_at_ms)
    }

    /// The same at once. If the first collection has come since there was none, it may have been here.
    pub(in crate::data) fn overwrite_unlooked(&mut self, key: &[u8], entry: &[u8], expires_at_ms: u64) -> Result<()> {
        let options = if expires_at_ms == 0 { self.options } else { self.options.expires_at_ms(expires_at_ms) };
        let done = self.database.keys.write_deferred(key, Some(entry), &options)?;
        self.note(done.rests_on);
        if self.database.has_collections() {
            self.unlooked.push(self.database.index);
        }
        Ok(())
    }

    /// Writes a key's entry. If a collection may be there, the caller must call [`Txn::forget_collection`] first.
    pub fn put(&mut self, key: &[u8], entry: Vec<u8>, expires_at_ms: u64) {
        self.write(Space::Keys, key, Some(Item { entry, expires_at_ms }));
    }

    /// Removes a key; returns whether it was there. A collection's rows are removed in the background.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let Some(head) = self.head_of(key)? else { return Ok(false) };
        self.orphan(head);
        self.write(Space::Keys, key, None);
        Ok(true)
    }

    /// If a collection is there, notes that its rows become unreachable.
    pub fn forget_collection(&mut self, key: &[u8]) -> Result<()> {
        if !self.database.has_collections() {
            self.unlooked.push(self.database.index);
        } else if let Some(head) = self.head_of(key)? {
            self.orphan(head);
        }
        Ok(())
    }

    /// Returns `None` if the key is absent, else its head if it is a collection.
    fn head_of(&mut self, key: &[u8]) -> Result<Option<Option<Head>>> {
        self.examine(key, |found| found.map(|(entry, _)| Head::decode(entry)))
    }

    fn orphan(&mut self, head: Option<Head>) {
        if let Some(head) = head {
            let orphan = (self.database.index, head.number);
            if self.orphans.insert(orphan) {
                self.remember(|| Undo::Added(orphan));
            }
        }
    }

    /// Registers the key under which a collection is. Waits for a sync at the first collection of a database.
    pub fn register(&mut self, number: u64, key: &[u8]) -> Result<()> {
        self.database.note_collection()?;
        // A transaction may make and remove a collection several times: the last step counts.
        let found = (self.database.index, number);
        if self.orphans.remove(&found) {
            self.remember(|| Undo::Removed(found));
        }
        self.put_row(&encoding::registry_row(number), key.to_vec());
        Ok(())
    }

    /// Calls `f` with a row's value.
    pub fn row<R>(&mut self, row: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        if !self.writes.is_empty()
            && let Some(written) = self.writes.get(&(self.database.index, Space::Rows, row.to_vec()))
        {
            return Ok(written.as_ref().map(|item| f(&item.entry)));
        }
        let (told, rests_on) = self.database.rows.peek_with(row, |value, _| f(value))?;
        self.note(rests_on);
        Ok(told)
    }

    /// Writes a row.
    pub fn put_row(&mut self, row: &[u8], value: Vec<u8>) {
        self.write(Space::Rows, row, Some(Item { entry: value, expires_at_ms: 0 }));
    }

    /// Removes a row.
    pub fn delete_row(&mut self, row: &[u8]) {
        self.write(Space::Rows, row, None);
    }

    fn write(&mut self, space: Space, key: &[u8], item: Option<Item>) {
        let value = item.as_ref().map_or(&[][..], |item| &item.entry);
        if let Err(error) = Keyspace::check_pair(key, value) {
            self.unfit.get_or_insert(error);
            return;
        }
        self.touch(self.database.clone());
        let place = (self.database.index, space, key.to_vec());
        if item.is_some() {
            self.gone.cut(&place);
        }
        if self.isolated {
            self.held.now += held_by(key, item.as_ref());
            let before = self.writes.insert(place.clone(), item);
            self.held.now -= before.as_ref().map_or(0, |before| held_by(key, before.as_ref()));
            self.undo.push(Undo::Write(place, before));
        } else {
            self.writes.insert(place, item);
        }
    }

    fn touch(&mut self, database: Arc<Database>) {
        if !self.touched.iter().any(|known| known.is_same(&database)) {
            self.touched.push(database);
        }
    }

    #[inline]
    fn note(&mut self, rests_on: u64) {
        self.rests_on = self.rests_on.max(rests_on);
    }

    fn keyspace(&self, place: &Place) -> &Keyspace {
        let database = self.touched_database(place.0);
        if place.1 == Space::Keys { &database.keys } else { &database.rows }
    }

    fn touched_database(&self, index: u16) -> &Database {
        self.touched.iter().find(|database| database.index == index).unwrap_or(&self.database)
    }
}
