//! fjall. Sync: the journal is synced (`SyncData`) before a write returns. Process: the default, which writes the
//! journal to the page cache.
//!
//! Thread safety: handles are shared. A delete reads first, because fjall's delete does not report whether the key
//! existed. Read-modify-write is a read and a write under a lock of this program.

use std::path::Path;
use std::sync::Mutex;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use hither_bench::harness::spec::RunSpec;
use hither_bench::target::{Error, Result, Session, Target};

use crate::{setting, wants_sync};

const CACHE_BYTES: u64 = 2 << 30;

/// An open database with one keyspace.
pub struct Fjall {
    database: Database,
    pairs: Keyspace,
    sync: bool,
    changing: Mutex<()>,
}

fn failed(error: fjall::Error) -> Error {
    Error::store("fjall", error)
}

impl Fjall {
    /// Creates a store in an empty directory.
    pub fn create(spec: &RunSpec, directory: &Path) -> Result<Self> {
        let sync = wants_sync("fjall", spec)?;
        let database = Database::builder(directory.join("fjall")).cache_size(CACHE_BYTES).open().map_err(failed)?;
        let pairs = database.keyspace("pairs", KeyspaceCreateOptions::default).map_err(failed)?;
        Ok(Self { database, pairs, sync, changing: Mutex::new(()) })
    }

    fn settle(&self) -> Result<()> {
        if self.sync { self.database.persist(PersistMode::SyncData).map_err(failed) } else { Ok(()) }
    }
}

impl Target for Fjall {
    type Session<'a> = FjallSession<'a>;

    fn name(&self) -> &str {
        "fjall"
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn settings(&self) -> Vec<(String, String)> {
        let commit = if self.sync { "journal SyncData per write" } else { "journal to the page cache per write" };
        vec![setting("commit", commit), setting("cache", "2 GiB"), setting("delete", "reads first"), setting("keyspace", "default options")]
    }

    fn session(&self) -> Result<FjallSession<'_>> {
        Ok(FjallSession { store: self })
    }

    fn media_bytes(&self) -> Option<u64> {
        self.database.disk_space().ok()
    }
}

/// A thread's handle.
pub struct FjallSession<'a> {
    store: &'a Fjall,
}

impl Session for FjallSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.pairs.insert(key, value).map_err(failed)?;
        self.store.settle()
    }

    fn get<R>(&mut self, key: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        Ok(self.store.pairs.get(key).map_err(failed)?.map(|value| f(&value)))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let found = self.store.pairs.contains_key(key).map_err(failed)?;
        self.store.pairs.remove(key).map_err(failed)?;
        self.store.settle()?;
        Ok(found)
    }

    fn read_modify_write(&mut self, key: &[u8], mut f: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
        let guard = self.store.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut new = Vec::new();
        f(self.store.pairs.get(key).map_err(failed)?.as_deref(), &mut new);
        self.store.pairs.insert(key, new).map_err(failed)?;
        drop(guard);
        self.store.settle()
    }

    fn scan(&mut self, from: &[u8], limit: usize, mut f: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for pair in self.store.pairs.range(from..).take(limit) {
            let (key, value) = pair.into_inner().map_err(failed)?;
            f(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }

    fn put_batch(&mut self, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()> {
        let mut batch = self.store.database.batch();
        for (key, value) in keys.iter().zip(values) {
            batch.insert(&self.store.pairs, key.as_slice(), value.as_slice());
        }
        batch.commit().map_err(failed)?;
        self.store.settle()
    }
}
