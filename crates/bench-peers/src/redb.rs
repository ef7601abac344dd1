//! redb. Only *sync* equals one of hither's levels: redb's `Durability::None` does not survive the end of the process.
//!
//! Thread safety: the database is shared; redb allows one writer at a time. Reads keep one read transaction for 1000
//! operations; a session drops it before it writes.

use std::path::Path;

use hither_bench::harness::spec::RunSpec;
use hither_bench::target::{Error, Result, Session, Target};
use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition};

use crate::{setting, wants_sync};

const PAIRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");
const READS_PER_TRANSACTION: u32 = 1000;
const CACHE_BYTES: usize = 2 << 30;

/// An open database.
pub struct Redb {
    database: Database,
}

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::store("redb", error.into())
}

impl Redb {
    /// Creates a store in an empty directory.
    pub fn create(spec: &RunSpec, directory: &Path) -> Result<Self> {
        if !wants_sync("redb", spec)? {
            return Err(Error::Config("redb has no durability that survives the process but not a power loss".into()));
        }
        let database = Database::builder().set_cache_size(CACHE_BYTES).create(directory.join("pairs.redb")).map_err(failed)?;
        let this = Self { database };
        this.write(|_| Ok(()))?;
        Ok(this)
    }

    fn write<R>(&self, f: impl FnOnce(&mut Table<'_, &[u8], &[u8]>) -> std::result::Result<R, redb::StorageError>) -> Result<R> {
        let mut txn = self.database.begin_write().map_err(failed)?;
        txn.set_durability(Durability::Immediate).map_err(failed)?;
        let result = f(&mut txn.open_table(PAIRS).map_err(failed)?).map_err(failed)?;
        txn.commit().map_err(failed)?;
        Ok(result)
    }
}

impl Target for Redb {
    type Session<'a> = RedbSession<'a>;

    fn name(&self) -> &str {
        "redb"
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn settings(&self) -> Vec<(String, String)> {
        vec![
            setting("commit", "Durability::Immediate, one-phase"),
            setting("cache", "2 GiB"),
            setting("read transaction", "renewed every 1000 reads"),
        ]
    }

    fn session(&self) -> Result<RedbSession<'_>> {
        Ok(RedbSession { store: self, table: None, reads: 0 })
    }
}

/// A thread's read transaction.
pub struct RedbSession<'a> {
    store: &'a Redb,
    table: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
    reads: u32,
}

impl RedbSession<'_> {
    fn table(&mut self) -> Result<&ReadOnlyTable<&'static [u8], &'static [u8]>> {
        if self.reads == 0 {
            self.table = None;
        }
        self.reads = (self.reads + 1) % READS_PER_TRANSACTION;
        if self.table.is_none() {
            let txn = self.store.database.begin_read().map_err(failed)?;
            self.table = Some(txn.open_table(PAIRS).map_err(failed)?);
        }
        Ok(self.table.as_ref().expect("a table was just opened"))
    }

    fn leave_reading(&mut self) -> &Redb {
        self.table = None;
        self.reads = 0;
        self.store
    }
}

impl Session for RedbSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.leave_reading().write(|table| table.insert(key, value).map(drop))
    }

    fn get<R>(&mut self, key: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        Ok(self.table()?.get(key).map_err(failed)?.map(|value| f(value.value())))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.leave_reading().write(|table| Ok(table.remove(key)?.is_some()))
    }

    fn read_modify_write(&mut self, key: &[u8], mut f: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
        self.leave_reading().write(|table| {
            let mut new = Vec::new();
            f(table.get(key)?.as_ref().map(|old| old.value()), &mut new);
            table.insert(key, new.as_slice()).map(drop)
        })
    }

    fn scan(&mut self, from: &[u8], limit: usize, mut f: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for pair in self.table()?.range(from..).map_err(failed)?.take(limit) {
            let (key, value) = pair.map_err(failed)?;
            f(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }

    fn put_batch(&mut self, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()> {
        let pairs = || keys.iter().zip(values);
        self.leave_reading().write(|table| pairs().try_for_each(|(key, value)| table.insert(key.as_slice(), value.as_slice()).map(drop)))
    }
}
