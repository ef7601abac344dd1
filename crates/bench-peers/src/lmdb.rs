//! LMDB, through the heed crate.
//!
//! Sync: LMDB's default, one `fdatasync` per commit. Process: `MDB_NOSYNC`, which writes a commit to the page cache.
//! Reads keep one read transaction for 1000 operations, which favours LMDB over one transaction per read. LMDB allows
//! one writer at a time.
//!
//! Thread safety: the environment is shared; a session drops its read transaction before it writes.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithoutTls};
use hither_bench::harness::spec::RunSpec;
use hither_bench::target::{Error, Result, Session, Target};

use crate::{setting, wants_sync};

type Pairs = Database<Bytes, Bytes>;
const READS_PER_TRANSACTION: u32 = 1000;

/// An open environment with one database.
pub struct Lmdb {
    env: Env<WithoutTls>,
    pairs: Pairs,
    sync: bool,
}

fn failed(error: heed::Error) -> Error {
    Error::store("lmdb", error.to_string())
}

impl Lmdb {
    /// Creates a store in an empty directory.
    pub fn create(spec: &RunSpec, directory: &Path) -> Result<Self> {
        let sync = wants_sync("lmdb", spec)?;
        let pair = spec.key_bytes as u64 + spec.mean_value_bytes().ceil() as u64 + 64;
        let map = ((spec.keys + 2 * spec.ops()) * pair * 3 + (1 << 30)).next_multiple_of(1 << 20);
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map as usize).max_readers(spec.threads as u32 * 2 + 16);
        let flags = if sync { EnvFlags::empty() } else { EnvFlags::NO_SYNC };
        // SAFETY: the directory is new and private to this process, so nothing else changes the mapped file; `NO_SYNC`
        // changes durability only.
        let env = unsafe { options.flags(flags).open(directory) }.map_err(failed)?;
        let mut txn = env.write_txn().map_err(failed)?;
        let pairs = env.create_database(&mut txn, None).map_err(failed)?;
        txn.commit().map_err(failed)?;
        Ok(Self { env, pairs, sync })
    }
}

impl Target for Lmdb {
    type Session<'a> = LmdbSession<'a>;

    fn name(&self) -> &str {
        "lmdb"
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn settings(&self) -> Vec<(String, String)> {
        let commit = if self.sync { "fdatasync per commit (default flags)" } else { "MDB_NOSYNC: page cache per commit" };
        vec![
            setting("commit", commit),
            setting("read transaction", "renewed every 1000 reads"),
            setting("map", "read-only, no MDB_WRITEMAP"),
        ]
    }

    fn session(&self) -> Result<LmdbSession<'_>> {
        Ok(LmdbSession { store: self, reader: None, reads: 0 })
    }

    fn media_bytes(&self) -> Option<u64> {
        self.env.real_disk_size().ok()
    }
}

/// A thread's read transaction.
pub struct LmdbSession<'a> {
    store: &'a Lmdb,
    reader: Option<RoTxn<'a, WithoutTls>>,
    reads: u32,
}

impl<'a> LmdbSession<'a> {
    #[inline]
    fn reader(&mut self) -> Result<(&RoTxn<'a, WithoutTls>, Pairs)> {
        if self.reads == 0 {
            self.reader = None;
        }
        self.reads = (self.reads + 1) % READS_PER_TRANSACTION;
        if self.reader.is_none() {
            self.reader = Some(self.store.env.read_txn().map_err(failed)?);
        }
        let reader = self.reader.as_ref().expect("a reader was just opened");
        Ok((reader, self.store.pairs))
    }

    fn write<R>(&mut self, f: impl FnOnce(&mut heed::RwTxn<'_>, Pairs) -> heed::Result<R>) -> Result<R> {
        self.reader = None;
        self.reads = 0;
        let mut txn = self.store.env.write_txn().map_err(failed)?;
        let result = f(&mut txn, self.store.pairs).map_err(failed)?;
        txn.commit().map_err(failed)?;
        Ok(result)
    }
}

impl Session for LmdbSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(|txn, pairs| pairs.put(txn, key, value))
    }

    #[inline]
    fn get<R>(&mut self, key: &[u8], f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        let (reader, pairs) = self.reader()?;
        Ok(pairs.get(reader, key).map_err(failed)?.map(f))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.write(|txn, pairs| pairs.delete(txn, key))
    }

    fn read_modify_write(&mut self, key: &[u8], mut f: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
        self.write(|txn, pairs| {
            let mut new = Vec::new();
            f(pairs.get(txn, key)?, &mut new);
            pairs.put(txn, key, &new)
        })
    }

    fn scan(&mut self, from: &[u8], limit: usize, mut f: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let (reader, pairs) = self.reader()?;
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut seen = 0;
        for pair in pairs.range(reader, &range).map_err(failed)?.take(limit) {
            let (key, value) = pair.map_err(failed)?;
            f(key, value);
            seen += 1;
        }
        Ok(seen)
    }

    fn put_batch(&mut self, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()> {
        self.write(|txn, pairs| keys.iter().zip(values).try_for_each(|(key, value)| pairs.put(txn, key, value)))
    }
}
