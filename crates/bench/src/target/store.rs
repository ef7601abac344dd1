//! hither itself as a target, through its public in-process API.
//!
//! Thread safety: a session holds its own clone of the keyspace handle. The medium `dax` is forced, so that flushes and
//! fences run on tmpfs. The durability is that of the request.

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use hither::{Builder, CollectorKind, Db, Durability, Keyspace, KeyspaceOptions, MediumChoice, OrderedKind};

use super::{Error, Result, Session, Target};
use crate::harness::spec::{self, Medium, RunSpec};

/// The kind of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Hash table, for point access.
    Hash,
    /// Ordered, with the B+-tree.
    Ordered,
    /// Ordered, with the learned index.
    Learned,
}

impl Index {
    /// The name in records.
    pub fn store_name(self) -> &'static str {
        match self {
            Index::Hash => "hither-hash",
            Index::Ordered => "hither-ordered",
            Index::Learned => "hither-learned",
        }
    }

    /// The store's option for the index of ordered keyspaces.
    fn kind(self) -> OrderedKind {
        if self == Index::Learned { OrderedKind::Learned } else { OrderedKind::BTree }
    }
}

const KEYSPACE: &str = "bench";

/// An open store with one keyspace.
pub struct StoreTarget {
    db: Db,
    keyspace: Keyspace,
    index: Index,
    /// Settings that the store was opened with and does not tell by itself.
    asked: Vec<(String, String)>,
}

fn failed(error: hither::Error) -> Error {
    Error::store("hither", error)
}

fn setting(name: &str, value: impl ToString) -> (String, String) {
    (name.into(), value.to_string())
}

/// The settings of collection and size.
fn settings_of(builder: Builder) -> (Builder, Vec<(String, String)>) {
    let mut found = Vec::new();
    let builder = builder.with_options(|options| {
        let collector = if options.collector == CollectorKind::Chain { "chain" } else { "batched" };
        found = vec![
            setting("collector", collector),
            setting("cleaners", options.gc_threads),
            setting("capacity", options.capacity),
            setting("max capacity", options.max_capacity),
        ];
    });
    (builder, found)
}

/// The builder for a request.
pub fn builder(spec: &RunSpec, directory: &Path) -> Builder {
    let durability = match spec.durability {
        spec::Durability::Sync => Durability::Sync,
        spec::Durability::Interval(time) => Durability::Interval(time),
        spec::Durability::Process => Durability::Process,
    };
    let capacity = spec.capacity.unwrap_or((spec.log_bytes() / 8 * 9 + (512 << 20)).next_multiple_of(8 << 20));
    let builder = Db::builder().capacity(capacity).max_capacity(capacity.saturating_mul(2)).durability(durability);
    let builder = builder.collector(spec.collector.kind()).gc_threads(spec.cleaners.unwrap_or(1));
    match spec.medium {
        Medium::Dax => builder.path(directory).medium(MediumChoice::ForcedDax),
        Medium::File => builder.path(directory).medium(MediumChoice::File),
        Medium::Volatile => builder.in_memory(),
    }
}

impl StoreTarget {
    /// Creates a store for a request in an empty directory.
    pub fn create(spec: &RunSpec, index: Index, directory: &Path) -> Result<Self> {
        Self::create_with(builder(spec, directory), index)
    }

    /// Creates a store with these settings.
    pub fn create_with(builder: Builder, index: Index) -> Result<Self> {
        let (builder, asked) = settings_of(builder);
        let db = builder.ordered_index(index.kind()).open().map_err(failed)?;
        let options = match index {
            Index::Hash => KeyspaceOptions::hash(),
            Index::Ordered | Index::Learned => KeyspaceOptions::ordered(),
        };
        let keyspace = db.create_keyspace(KEYSPACE, options).map_err(failed)?;
        Ok(Self { db, keyspace, index, asked })
    }

    /// Opens a store that [`StoreTarget::create`] left behind.
    pub fn reopen(builder: Builder, index: Index) -> Result<Self> {
        let (builder, asked) = settings_of(builder);
        let db = builder.ordered_index(index.kind()).create(false).open().map_err(failed)?;
        let keyspace = db.open_keyspace(KEYSPACE).map_err(failed)?;
        let keyspace = keyspace.ok_or_else(|| Error::WrongData("the keyspace is gone after the kill".into()))?;
        Ok(Self { db, keyspace, index, asked })
    }

    /// The number of pairs that the store reports.
    pub fn pairs(&self) -> u64 {
        self.keyspace.len() as u64
    }

    /// The report of recovery, as JSON.
    pub fn recovery(&self) -> serde_json::Value {
        serde_json::to_value(self.db.recovery()).unwrap_or_default()
    }

    /// Takes a checkpoint of the index.
    pub fn checkpoint(&self) -> Result<bool> {
        self.db.checkpoint().map_err(failed)
    }

    /// Bytes of entries, live and dead.
    pub fn entry_bytes(&self) -> u64 {
        self.db.stats().pools.iter().map(|pool| pool.live_bytes + pool.dead_bytes).sum()
    }

    /// The statistics of the store.
    pub fn stats(&self) -> hither::Stats {
        self.db.stats()
    }

    /// Makes every write durable.
    pub fn sync(&self) -> Result<()> {
        self.db.sync().map_err(failed)
    }
}

impl Target for StoreTarget {
    type Session<'a> = StoreSession<'a>;

    fn name(&self) -> &str {
        self.index.store_name()
    }

    fn settings(&self) -> Vec<(String, String)> {
        let stats = self.db.stats();
        let Some(pool) = stats.pools.first() else { return Vec::new() };
        let found = [
            setting("medium", &pool.medium),
            setting("persistence domain", &pool.persistence_domain),
            setting("flush", &pool.flush),
            setting("shards", stats.shards),
        ];
        found.into_iter().chain(self.asked.iter().cloned()).collect()
    }

    fn session(&self) -> Result<StoreSession<'_>> {
        Ok(StoreSession { db: &self.db, keyspace: self.keyspace.clone() })
    }

    fn is_ordered(&self) -> bool {
        self.index != Index::Hash
    }

    /// Counts whole segments, because nothing else can use the rest of an open one.
    fn media_bytes(&self) -> Option<u64> {
        Some(self.db.stats().pools.iter().map(|pool| (pool.segments - pool.segments_free) * pool.segment_bytes).sum())
    }
}

/// A thread's handle.
pub struct StoreSession<'a> {
    db: &'a Db,
    keyspace: Keyspace,
}

impl Session for StoreSession<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put(key, value).map_err(failed)
    }

    #[inline(always)]
    fn get<R>(&mut self, key: &[u8], f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        self.keyspace.get_with(key, f).map_err(failed)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.keyspace.delete(key).map_err(failed)
    }

    fn read_modify_write(&mut self, key: &[u8], mut f: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
        let change = |old: Option<&[u8]>| {
            let mut new = Vec::new();
            f(old, &mut new);
            Some(new)
        };
        self.keyspace.update(key, change).map(drop).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], limit: usize, mut f: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let visit = |key: &[u8], value: &[u8]| {
            f(key, value);
            ControlFlow::Continue(())
        };
        self.keyspace.scan_first(limit, Bound::Included(from), Bound::Unbounded, false, visit).map_err(failed)
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], f: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.keyspace.multi_get_with(keys, f).map_err(failed)
    }

    fn put_batch(&mut self, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()> {
        let mut batch = self.db.batch();
        for (key, value) in keys.iter().zip(values) {
            batch.put(&self.keyspace, key, value);
        }
        batch.commit().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_medium_gives_whole_segments_and_takes_them_back() {
        const SEGMENT: u64 = 64 << 10;
        let builder = Db::builder().in_memory().durability(Durability::Process).capacity(8 << 20).max_capacity(8 << 20);
        let target = StoreTarget::create_with(builder.segment_bytes(SEGMENT).shards(1).gc_threads(0), Index::Hash).expect("a store");
        let mut session = target.session().expect("a session");
        for key in 0..10_000u64 {
            session.put(&key.to_be_bytes(), &key.to_le_bytes()).expect("room");
        }
        let (entries, media) = (target.entry_bytes(), target.media_bytes().expect("known"));
        assert_eq!(entries, 320_000);
        // Segments have heads, and the last one is not full.
        assert!(media % SEGMENT == 0 && media > entries && media <= entries + 4 * SEGMENT, "{media}");
    }
}
