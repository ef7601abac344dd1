//! The databases of a server, and the numbers of collections.
//!
//! Thread safety: everything may be used from all threads. A session keeps the [`Database`] that it uses and checks with
//! [`Databases::generation`], one load, whether a flush has replaced it. If it still uses the old one, the store refuses and the session
//! asks again.
//!
//! A function that says that it waits for syncs is not for serving threads: those call [`Databases::find`], which never waits, and leave
//! the rest to [`crate::changes`]. One that waits for a sync once in a million calls ([`Databases::next_number`]) or once in the life of a
//! database ([`Database::note_collection`]) is.

use super::encoding::{self, Head};
use super::mark::Mark;
use super::mend::{self, Mended};
use super::reaper::Reaper;
use crate::events::{self, Level};
use hither::{Db, Durability, Keyspace, Kind, Result, WriteOptions, without_bound};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One database.
#[derive(Debug)]
pub struct Database {
    /// Its number in `SELECT`.
    pub index: u16,
    /// The keys; see the head of [`super`].
    pub keys: Keyspace,
    /// The rows of collections.
    pub rows: Keyspace,
    collections: Arc<Collections>,
}

/// What is known about a database's collections.
#[derive(Debug)]
struct Collections {
    /// Whether there may be collections: until then, what is overwritten need not be looked at.
    may_be: AtomicBool,
    /// Whether the [`encoding::MARKER`] row is durable.
    noted: AtomicBool,
}

impl Collections {
    /// The state for these rows. `in_use`: others may still write to them through earlier handles.
    fn of(rows: &Keyspace, in_use: bool) -> Arc<Collections> {
        // If the row cannot be read, it is written once more than needed.
        let noted = !in_use && rows.peek_with(encoding::MARKER, |_, _| ()).is_ok_and(|(there, _)| there.is_some());
        Arc::new(Collections { may_be: AtomicBool::new(in_use || !rows.is_empty()), noted: AtomicBool::new(noted) })
    }
}

impl Database {
    /// A handle for one session alone: cloning and dropping it touches no counter that other threads use.
    pub fn private(&self) -> Arc<Database> {
        let (keys, rows) = (self.keys.clone(), self.rows.clone());
        Arc::new(Database { index: self.index, keys, rows, collections: self.collections.clone() })
    }

    /// Whether both are handles of the same database ([`Database::private`]), and not one from before it was replaced.
    #[inline]
    pub fn is_same(&self, other: &Database) -> bool {
        Arc::ptr_eq(&self.collections, &other.collections)
    }

    /// Whether there may be collections.
    #[inline]
    pub fn has_collections(&self) -> bool {
        self.collections.may_be.load(Ordering::Acquire)
    }

    /// Notes that there is going to be a collection; call before writing it. Waits for a sync whatever the store's level is, once in a
    /// database's life: a loss of power may take all rows of the first collection and leave its head, and mending has to find it.
    pub fn note_collection(&self) -> Result<()> {
        if !self.collections.noted.load(Ordering::Acquire) {
            let durably = WriteOptions::new().durability(Durability::Sync);
            without_bound(|| self.rows.put_with(encoding::MARKER, b"", &durably))?.wait()?;
            self.collections.may_be.store(true, Ordering::SeqCst);
            self.collections.noted.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// What there is under a number.
pub enum Found {
    /// This database.
    There(Arc<Database>),
    /// No database yet.
    Absent,
    /// A database that is being replaced.
    Changing,
}

/// A database's slot.
#[derive(Default)]
struct Slot {
    database: Option<Arc<Database>>,
    /// The database is being replaced: what is here refuses commands, or will.
    changing: bool,
    /// A change that failed half way has left nothing in the store: what is here refuses access to keys, and is made anew when needed.
    lost: bool,
}

impl Slot {
    /// The database, if the store has it.
    fn whole(&self) -> Option<&Arc<Database>> {
        self.database.as_ref().filter(|_| !self.lost)
    }
}

/// All databases.
pub struct Databases {
    /// The store.
    pub db: Db,
    slots: Vec<RwLock<Slot>>,
    generation: AtomicU64,
    /// Held during a change: one at a time.
    changing: Mutex<()>,
    numbers: Numbers,
    /// The version up to which collections are whole.
    pub mark: Mark,
    /// What was mended at the start; [`None`] after an orderly end, and if mending failed.
    pub mended: Option<Mended>,
    /// Removes rows that no head leads to.
    pub reaper: Reaper,
}

impl Databases {
    /// Opens the existing databases of a store and makes the first one, after mending what a loss of power has left. Waits for syncs.
    pub fn open(db: Db, count: u16) -> Result<Arc<Databases>> {
        let slots = (0..count).map(|_| RwLock::default()).collect();
        let keyspace = db.keyspace(OWN)?;
        let mark = Mark::new(keyspace.clone());
        let mended = mend_if_due(&db, &mark)?;
        let numbers = Numbers::open(&db, keyspace)?;
        mark.begin(&db)?;
        let (generation, changing) = (AtomicU64::new(0), Mutex::new(()));
        let databases = Databases { slots, generation, changing, numbers, mark, mended, reaper: Reaper::default(), db };
        for index in 0..count {
            if index == 0 || is_there(&databases.db, index)? {
                databases.get(index)?;
            }
        }
        Ok(Arc::new(databases))
    }

    /// How many databases there may be.
    pub fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Changes whenever a database is replaced.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What there is under a number, which must be below [`Databases::count`].
    pub fn find(&self, index: u16) -> Found {
        let slot = self.slots[usize::from(index)].read();
        match &slot.database {
            _ if slot.changing => Found::Changing,
            Some(database) => Found::There(database.clone()),
            None => Found::Absent,
        }
    }

    /// Returns database `index`, made if it does not exist; it must be below [`Databases::count`]. Waits for changes under way, and for
    /// syncs if it has to make it.
    pub fn get(&self, index: u16) -> Result<Arc<Database>> {
        let _alone = self.changing.lock();
        self.get_alone(index)
    }

    fn get_alone(&self, index: u16) -> Result<Arc<Database>> {
        if let Some(database) = self.slots[usize::from(index)].read().whole() {
            return Ok(database.clone());
        }
        let database = Arc::new(make(&self.db, index)?);
        *self.slots[usize::from(index)].write() = Slot { database: Some(database.clone()), ..Slot::default() };
        Ok(database)
    }

    /// The databases that exist.
    pub fn existing(&self) -> Vec<Arc<Database>> {
        self.slots.iter().filter_map(|slot| slot.read().whole().cloned()).collect()
    }

    /// The database that a keyspace of this name was part of, if a failed change has left nothing of it.
    pub fn lost(&self, name: &str) -> Option<u16> {
        index_of(name).filter(|index| self.slots.get(usize::from(*index)).is_some_and(|slot| slot.read().lost))
    }

    /// Removes all keys of a database at once. Waits for syncs. A crash in between leaves rows without heads, which the reaper removes.
    pub fn flush(&self, index: u16) -> Result<()> {
        let _alone = self.changing.lock();
        if self.slots[usize::from(index)].read().database.is_none() {
            return Ok(());
        }
        self.replace(&[index], || {
            self.db.drop_keyspace(&keys_name(index))?;
            self.db.drop_keyspace(&rows_name(index))?;
            make(&self.db, index).map(drop)
        })
    }

    /// Exchanges two databases at once, durably and crash-atomically. Waits for syncs. Commands under way finish before, or run again.
    pub fn swap(&self, a: u16, b: u16) -> Result<()> {
        if a == b {
            return Ok(());
        }
        let _alone = self.changing.lock();
        let names = [(&*keys_name(a), &*keys_name(b)), (&*rows_name(a), &*rows_name(b))];
        self.get_alone(a)?;
        self.get_alone(b)?;
        self.replace(&[a, b], || self.db.swap_keyspaces(&names).map(drop))?;
        // Collections were announced to the reaper under the other number.
        self.reaper.sweep_soon();
        Ok(())
    }

    /// Puts in the databases' slots what `change` leaves in the store, even if it fails half way. If that is nothing, the old handle stays,
    /// for commands that touch no key. Meanwhile [`Databases::find`] reports the change.
    pub(crate) fn replace(&self, indexes: &[u16], change: impl FnOnce() -> Result<()>) -> Result<()> {
        let slot = |index: u16| self.slots[usize::from(index)].write();
        indexes.iter().for_each(|index| slot(*index).changing = true);
        let _end = EndOfReplacement { databases: self, indexes };
        let outcome = change();
        for index in indexes {
            let database = reopen(&self.db, *index, outcome.is_err()).map(Arc::new);
            let mut slot = slot(*index);
            slot.changing = false;
            slot.lost = database.is_none() && slot.database.is_some();
            slot.database = database.or(slot.database.take());
        }
        outcome
    }

    /// Returns a number for a new collection. Waits for a sync once in a million calls.
    pub fn next_number(&self) -> Result<u64> {
        self.numbers.next()
    }
}

/// Ends a replacement when it is dropped, also after a panic: then it is not known what is left of the databases, so
/// they are lost.
struct EndOfReplacement<'a> {
    databases: &'a Databases,
    indexes: &'a [u16],
}

impl Drop for EndOfReplacement<'_> {
    fn drop(&mut self) {
        for index in self.indexes {
            let mut slot = self.databases.slots[usize::from(*index)].write();
            if std::mem::take(&mut slot.changing) {
                slot.lost = slot.database.is_some();
            }
        }
        self.databases.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// A store that cannot be mended (it may be full) is served all the same. The bound of live data does not apply: without its rows in order,
/// nothing that is deleted gives space back.
fn mend_if_due(db: &Db, mark: &Mark) -> Result<Option<Mended>> {
    let Some(above) = mark.due(db)? else { return Ok(None) };
    let mended = without_bound(|| mend::run(db, above));
    if let Err(error) = &mended {
        events::log(Level::Error, "mending-incomplete", &[("why", error)]);
        mark.hold();
    }
    Ok(mended.ok())
}

/// Opens the database in the store if both parts are there. `in_use`: others may still write to it through earlier handles.
fn reopen(db: &Db, index: u16, in_use: bool) -> Option<Database> {
    let open = |name: String| db.open_keyspace(&name).ok().flatten();
    let (rows, keys) = (open(rows_name(index))?, open(keys_name(index))?);
    Some(Database { index, collections: Collections::of(&rows, in_use), keys, rows })
}

/// Whether there is a database, or a part of one: a flush that was cut short leaves its rows.
fn is_there(db: &Db, index: u16) -> Result<bool> {
    Ok(db.open_keyspace(&keys_name(index))?.is_some() || db.open_keyspace(&rows_name(index))?.is_some())
}

/// The keyspace that the server keeps for itself.
const OWN: &str = "server";

fn make(db: &Db, index: u16) -> Result<Database> {
    let rows = db.keyspace(&rows_name(index))?;
    let keys = db.keyspace(&keys_name(index))?;
    Ok(Database { index, collections: Collections::of(&rows, false), keys, rows })
}

/// The databases in a store, including those that this server does not serve. Incomplete ones are completed.
pub fn all(db: &Db) -> Result<Vec<Database>> {
    let keyspaces = db.keyspaces();
    let indexes: BTreeSet<u16> = keyspaces.iter().filter_map(|keyspace| index_of(&keyspace.name)).collect();
    let mut all = Vec::new();
    for index in indexes {
        if is_there(db, index)? {
            all.push(make(db, index)?);
        }
    }
    Ok(all)
}

/// The database that a keyspace of this name is part of.
fn index_of(name: &str) -> Option<u16> {
    let index = name.strip_prefix("db")?.trim_end_matches(".rows").parse().ok()?;
    // "db07" is none.
    (name == keys_name(index) || name == rows_name(index)).then_some(index)
}

/// Whether a server's data depends on the keyspace of this name: its contents lead into others, or others into it. In a store that no
/// server has opened, such names mean nothing.
pub fn rest_on(db: &Db, name: &str) -> Result<bool> {
    let was_served = || db.open_keyspace(OWN)?.map_or(Ok(false), |own| own.contains(Numbers::KEY));
    Ok(is_a_name_of_ours(name) && was_served()?)
}

/// Whether a server has opened this store and the keyspace of this name is its own. What dumps of another store's databases have brought
/// here belongs to no server yet.
pub fn is_served(db: &Db, name: &str) -> Result<bool> {
    let was_served = || db.open_keyspace(OWN)?.map_or(Ok(false), |own| Mark::new(own).is_own(db));
    Ok(is_a_name_of_ours(name) && was_served()?)
}

fn is_a_name_of_ours(name: &str) -> bool {
    name == OWN || index_of(name).is_some()
}

fn keys_name(index: u16) -> String {
    format!("db{index}")
}

fn rows_name(index: u16) -> String {
    format!("db{index}.rows")
}

/// Numbers that are never given out twice: the counter on media is always ahead.
struct Numbers {
    keyspace: Keyspace,
    /// Above the numbers that existed when it was opened.
    least: u64,
    /// The next number, and the first that is not reserved.
    state: Mutex<(u64, u64)>,
}

impl Numbers {
    const KEY: &[u8] = b"next collection";
    /// Numbers reserved at once.
    const BLOCK: u64 = 1 << 20;
    /// No server gets this far: a counter beyond it was written by something else.
    const END: u64 = 1 << 63;

    /// Starts above all numbers in the store. If the store is full, none is reserved before it is needed. O(databases); without a counter,
    /// O(keys).
    fn open(db: &Db, keyspace: Keyspace) -> Result<Numbers> {
        let mut used = Used::default();
        used.see_rows(db)?;
        if read_counter(&keyspace)?.is_none() {
            used.see_heads(db)?;
        }
        let numbers = Numbers { keyspace, least: used.least(), state: Mutex::new((0, 0)) };
        match numbers.reserve() {
            Ok(block) => *numbers.state.lock() = block,
            Err(error) if error.kind().is_lack_of_space() => {}
            Err(error) => return Err(error),
        }
        Ok(numbers)
    }

    fn next(&self) -> Result<u64> {
        let mut state = self.state.lock();
        if state.0 == state.1 {
            *state = self.reserve()?;
        }
        state.0 += 1;
        Ok(state.0 - 1)
    }

    /// Waits for durability whatever the store's level is, once in a million collections: one that survives a loss of power must not share
    /// its number with a later one.
    fn reserve(&self) -> Result<(u64, u64)> {
        let first = read_counter(&self.keyspace)?.unwrap_or(0).max(self.least);
        let end = first + Self::BLOCK;
        let durably = WriteOptions::new().durability(Durability::Sync);
        without_bound(|| self.keyspace.put_with(Self::KEY, &end.to_be_bytes(), &durably))?.wait()?;
        Ok((first, end))
    }
}

/// The first number that is not reserved. A row that no server writes counts as absent.
fn read_counter(keyspace: &Keyspace) -> Result<Option<u64>> {
    let row = keyspace.get(Numbers::KEY)?;
    Ok(row.and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes).filter(|first| *first < Numbers::END))
}

/// The numbers that a store's collections have: the counter may come from an older dump than the rows, or be lost with a damaged segment.
#[derive(Default)]
struct Used {
    /// The highest number; 0 if there is none.
    last: u64,
    /// Something that may have a higher number could not be read.
    unread: bool,
}

impl Used {
    /// Numbers left out where something could not be read: more than anybody has used of them.
    const GAP: u64 = 1 << 40;

    /// Looks at the rows of all databases, which are in the order of numbers.
    fn see_rows(&mut self, db: &Db) -> Result<()> {
        for rows in keyspaces_where(db, rows_name)? {
            for number_row in [encoding::registry_row, encoding::members_prefix] {
                match rows.range(&number_row(0)[..]..&number_row(Numbers::END)[..])?.next_back() {
                    None => {}
                    Some(Ok((row, _))) => self.last = self.last.max(encoding::number_of(&row).unwrap_or(0)),
                    Some(Err(_)) => self.unread = true,
                }
            }
        }
        Ok(())
    }

    /// Looks at the heads in all databases.
    fn see_heads(&mut self, db: &Db) -> Result<()> {
        for keys in keyspaces_where(db, keys_name)? {
            for pair in keys.range(..)? {
                let Ok((_, entry)) = pair else {
                    // Nothing comes behind an error.
                    self.unread = true;
                    break;
                };
                let number = Head::decode(&entry).map_or(0, |head| head.number);
                self.last = self.last.max(if number < Numbers::END { number } else { 0 });
            }
        }
        Ok(())
    }

    /// The first number that no collection has.
    fn least(&self) -> u64 {
        self.last + 1 + if self.unread { Self::GAP } else { 0 }
    }
}

/// The keyspaces that have this name for some database, including those that this server does not serve. A server's are ordered; others may
/// have such a name by chance.
fn keyspaces_where(db: &Db, name_for: impl Fn(u16) -> String) -> Result<Vec<Keyspace>> {
    let mut found = Vec::new();
    for keyspace in db.keyspaces() {
        if keyspace.kind == Kind::Ordered && index_of(&keyspace.name).is_some_and(|index| keyspace.name == name_for(index)) {
            found.extend(db.open_keyspace(&keyspace.name)?);
        }
    }
    Ok(found)
}

/// The bounds of all member rows of a collection.
pub fn member_rows(number: u64) -> ([u8; 9], Option<Vec<u8>>) {
    let prefix = encoding::members_prefix(number);
    let end = encoding::after_prefix(&prefix);
    (prefix, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::reaper;

    /// Regression: what an interrupted FLUSHDB had left of a database was not found before somebody used that database.
    #[test]
    fn rows_without_keys_are_removed() {
        let db = Db::builder().in_memory().open().unwrap();
        let rows = db.keyspace(&rows_name(3)).unwrap();
        rows.put(&encoding::registry_row(1), b"hash").unwrap();
        rows.put(&encoding::row(1, encoding::part::FIELD, b"field"), b"value").unwrap();
        let databases = Databases::open(db, 16).unwrap();
        assert_eq!(databases.existing().len(), 2);
        assert_eq!(reaper::sweep(&databases).unwrap(), 1);
        assert!(rows.is_empty());
    }

    /// The first new number in a store with this counter, rows of collection `row` and a key that leads to collection `head`.
    fn first_number(counter: Option<&[u8]>, row: u64, head: u64) -> u64 {
        let db = Db::builder().in_memory().open().unwrap();
        let [own, keys, rows] = [OWN, &keys_name(40), &rows_name(40)].map(|name| db.keyspace(name).unwrap());
        // No server has made these.
        for name in [keys_name(41), rows_name(41)] {
            db.create_keyspace(&name, hither::KeyspaceOptions::hash()).unwrap();
        }
        if let Some(counter) = counter {
            own.put(Numbers::KEY, counter).unwrap();
        }
        rows.put(&encoding::registry_row(row - 1), b"lower").unwrap();
        rows.put(&encoding::row(row, encoding::part::FIELD, b"field"), b"value").unwrap();
        rows.put(encoding::MARKER, b"").unwrap();
        keys.put(b"string", &encoding::string_entry(&u64::MAX.to_be_bytes())).unwrap();
        keys.put(b"hash", &Head { kind: encoding::Type::Hash, number: head, count: 1 }.encode()).unwrap();
        Databases::open(db, 16).unwrap().next_number().unwrap()
    }

    /// Regression: numbers began at 1 without a counter or with a row of another length, and at an older counter that a dump had brought.
    #[test]
    fn a_number_in_use_is_not_given_out_whatever_the_counter_says() {
        assert_eq!(first_number(None, 7, 5), 8);
        assert_eq!(first_number(None, 5, 7), 8);
        assert_eq!(first_number(Some(&3u64.to_be_bytes()), 7, 7), 8);
        assert_eq!(first_number(Some(b"oops"), 5, 9), 10);
        assert_eq!(first_number(Some(&100u64.to_be_bytes()), 7, 7), 100);
        assert_eq!(first_number(Some(&u64::MAX.to_be_bytes()), u64::MAX, 7), 8, "of nonsense");
        let far = Used { last: 7, unread: true }.least();
        assert!(far > 1 << 40 && far < Numbers::END, "what cannot be read is left far behind");
    }
}
