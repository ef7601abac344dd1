//! RocksDB through Debian's library. Sync: the write-ahead log is synced per write. Process: the log is written to the
//! page cache and not synced. No compression (the values do not compress), default levels.
//!
//! Thread safety: the handle is shared. Read-modify-write is a read and a write under a lock of this program.

mod ffi;
mod handle;

use std::path::Path;
use std::sync::Mutex;

use hither_bench::harness::spec::RunSpec;
use hither_bench::target::{Error, Result, Session, Target};

use self::handle::Handle;
use crate::{setting, wants_sync};

const CACHE_BYTES: usize = 2 << 30;

/// An open database.
pub struct Rocks {
    handle: Handle,
    sync: bool,
    changing: Mutex<()>,
}

fn failed(message: String) -> Error {
    Error::store("rocksdb", message)
}

impl Rocks {
    /// Creates a store in an empty directory.
    pub fn create(spec: &RunSpec, directory: &Path) -> Result<Self> {
        let sync = wants_sync("rocksdb", spec)?;
        let handle = Handle::open(directory, spec.threads.clamp(1, 16) as i32, CACHE_BYTES, sync).map_err(failed)?;
        Ok(Self { handle, sync, changing: Mutex::new(()) })
    }
}

impl Target for Rocks {
    type Session<'a> = RocksSession<'a>;

    fn name(&self) -> &str {
        "rocksdb"
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn settings(&self) -> Vec<(String, String)> {
        let commit = if self.sync { "WAL synced per write" } else { "WAL to the page cache per write" };
        vec![setting("commit", commit), setting("block cache", "2 GiB"), setting("compression", "none"), setting("delete", "reads first")]
    }

    fn session(&self) -> Result<RocksSession<'_>> {
        Ok(RocksSession { store: self })
    }
}

/// A thread's handle.
pub struct RocksSession<'a> {
    store: &'a Rocks,
}

impl Session for RocksSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.handle.put(key, value).map_err(failed)
    }

    fn get<R>(&mut self, key: &[u8], f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        self.store.handle.get(key, f).map_err(failed)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let found = self.store.handle.get(key, |_| ()).map_err(failed)?.is_some();
        self.store.handle.delete(key).map_err(failed)?;
        Ok(found)
    }

    fn read_modify_write(&mut self, key: &[u8], mut f: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
        let _guard = self.store.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut new = Vec::new();
        if self.store.handle.get(key, |old| f(Some(old), &mut new)).map_err(failed)?.is_none() {
            f(None, &mut new);
        }
        self.store.handle.put(key, &new).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], limit: usize, f: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        self.store.handle.scan(from, limit, f).map_err(failed)
    }

    fn put_batch(&mut self, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()> {
        self.store.handle.put_batch(keys, values).map_err(failed)
    }
}
