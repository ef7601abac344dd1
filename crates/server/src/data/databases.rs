//! The databases of a server, and the numbers of collections.
//!
//! Thread safety: everything may be used from all threads. A session keeps the [`Database`] that it uses and asks [`Databases::generation`], one
//! load, whether a flush has replaced it meanwhile; if it still uses the old one, the store refuses and the session asks again.

use super::encoding;
use super::reaper::Reaper;
use hither::{Db, Keyspace, Result};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One database.
#[derive(Debug)]
pub struct Database {
    /// What `SELECT` calls it.
    pub index: u16,
    /// Keys; see the head of [`super`].
    pub keys: Keyspace,
    /// Rows of collections.
    pub rows: Keyspace,
    /// Whether there may be collections: until then, nothing that is overwritten needs to be looked at.
    collections: Arc<AtomicBool>,
}

impl Database {
    /// The same database for one session alone: taking and leaving it touches no counter that other threads use.
    pub fn private(&self) -> Arc<Database> {
        let (keys, rows) = (self.keys.clone(), self.rows.clone());
        Arc::new(Database { index: self.index, keys, rows, collections: self.collections.clone() })
    }

    /// Whether there may be collections.
    #[inline]
    pub fn has_collections(&self) -> bool {
        self.collections.load(Ordering::Acquire)
    }

    /// There is going to be one. Call before it is written.
    pub fn note_collection(&self) {
        if !self.has_collections() {
            self.collections.store(true, Ordering::SeqCst);
        }
    }
}

/// All databases.
pub struct Databases {
    /// The store.
    pub db: Db,
    slots: Vec<RwLock<Option<Arc<Database>>>>,
    generation: AtomicU64,
    numbers: Numbers,
    /// Removes rows that no head leads to.
    pub reaper: Reaper,
}

impl Databases {
    /// The databases of a store; those that exist are opened.
    pub fn open(db: Db, count: u16) -> Result<Arc<Databases>> {
        let slots = (0..count).map(|_| RwLock::new(None)).collect();
        let numbers = Numbers::open(db.keyspace("server")?)?;
        let databases = Databases { slots, generation: AtomicU64::new(0), numbers, reaper: Reaper::default(), db };
        for index in 0..count {
            if databases.db.open_keyspace(&keys_name(index))?.is_some() {
                databases.get(index)?;
            }
        }
        Ok(Arc::new(databases))
    }

    /// How many there may be.
    pub fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Changes whenever a database is replaced.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The database `index`, made if it is not there; it must be below [`Databases::count`].
    pub fn get(&self, index: u16) -> Result<Arc<Database>> {
        let slot = &self.slots[usize::from(index)];
        if let Some(database) = &*slot.read() {
            return Ok(database.clone());
        }
        let mut slot = slot.write();
        if let Some(database) = &*slot {
            return Ok(database.clone());
        }
        let database = Arc::new(self.make(index)?);
        *slot = Some(database.clone());
        Ok(database)
    }

    /// The databases that exist.
    pub fn existing(&self) -> Vec<Arc<Database>> {
        self.slots.iter().filter_map(|slot| slot.read().clone()).collect()
    }

    fn make(&self, index: u16) -> Result<Database> {
        let rows = self.db.keyspace(&rows_name(index))?;
        let keys = self.db.keyspace(&keys_name(index))?;
        Ok(Database { index, collections: Arc::new(AtomicBool::new(!rows.is_empty())), keys, rows })
    }

    /// Removes all keys of a database at once. A crash in between leaves rows without heads, which the reaper removes.
    pub fn flush(&self, index: u16) -> Result<()> {
        let mut slot = self.slots[usize::from(index)].write();
        if slot.is_none() {
            return Ok(());
        }
        self.db.drop_keyspace(&keys_name(index))?;
        self.db.drop_keyspace(&rows_name(index))?;
        *slot = None;
        *slot = Some(Arc::new(self.make(index)?));
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Exchanges two databases at once, durably and crash-atomically. Commands under way finish before, or run again after it.
    pub fn swap(&self, a: u16, b: u16) -> Result<()> {
        if a == b {
            return Ok(());
        }
        let (low, high) = (a.min(b), a.max(b));
        let mut slots = [(low, self.slots[usize::from(low)].write()), (high, self.slots[usize::from(high)].write())];
        for (index, slot) in &mut slots {
            if slot.is_none() {
                **slot = Some(Arc::new(self.make(*index)?));
            }
        }
        self.db.swap_keyspaces(&[(&keys_name(low), &keys_name(high)), (&rows_name(low), &rows_name(high))])?;
        for (index, slot) in &mut slots {
            **slot = None;
            **slot = Some(Arc::new(self.make(*index)?));
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        drop(slots);
        // What was announced was announced under the other number.
        self.reaper.sweep_soon();
        Ok(())
    }

    /// A number for a new collection.
    pub fn next_number(&self) -> Result<u64> {
        self.numbers.next()
    }
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
    /// Next number, and the first that is not reserved.
    state: Mutex<(u64, u64)>,
}

impl Numbers {
    const KEY: &[u8] = b"next collection";
    /// Numbers reserved at once.
    const BLOCK: u64 = 1 << 20;

    fn open(keyspace: Keyspace) -> Result<Numbers> {
        let numbers = Numbers { keyspace, state: Mutex::new((0, 0)) };
        *numbers.state.lock() = numbers.reserve()?;
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

    /// Waits for durability: once in a million collections.
    fn reserve(&self) -> Result<(u64, u64)> {
        let read = |bytes: Option<&[u8]>| bytes.and_then(|bytes| bytes.try_into().ok()).map_or(1, u64::from_be_bytes);
        let end = self.keyspace.update(Self::KEY, |bytes| Some((read(bytes) + Self::BLOCK).to_be_bytes().to_vec()))?;
        let end = read(end.as_deref());
        Ok((end - Self::BLOCK, end))
    }
}

/// The bounds of all member rows of a collection.
pub fn member_rows(number: u64) -> ([u8; 9], Option<Vec<u8>>) {
    let prefix = encoding::members_prefix(number);
    let end = encoding::after_prefix(&prefix);
    (prefix, end)
}
