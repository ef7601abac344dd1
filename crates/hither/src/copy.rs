//! Copies of a store that is in use: all keyspaces as they are at one moment, in a new store.
//!
//! A copy is made from a [`Snapshot`], so readers and writers go on; what they overwrite and delete meanwhile is kept until the copy is done. Nothing of the format is copied: it is a store of its own, with
//! its own limits, nodes, segments and versions.

use crate::builder::Builder;
use crate::db::Db;
use crate::iter::Entry;
use crate::keyspace::{Keyspace, KeyspaceOptions};
use crate::snapshot::Snapshot;
use hither_engine::{CheckpointMode, Durability, Error, ErrorKind, Kind, Options, StoreDraft, WriteOptions};
use serde::Serialize;
use std::ops::ControlFlow;

/// Keys and bytes after which progress is told.
const TELL_KEYS: u64 = 1024;
const TELL_BYTES: u64 = 8 << 20;
/// Bytes after which what was copied is made durable: the end does not wait for all of it.
const SYNC_BYTES: u64 = 64 << 20;
/// Keys of a hash keyspace whose cache misses overlap.
const PREFETCHED: usize = 64;

/// Why there is no copy.
#[derive(Debug)]
#[non_exhaustive]
pub enum CopyError {
    /// The store that was to be copied. [`Error::KeyspaceDropped`]: somebody has dropped or renamed a keyspace meanwhile; try again.
    Source(Error),
    /// The copy: its directory, its disk, its size.
    Target(Error),
    /// Whoever looked at the progress did not want to go on.
    Stopped,
}

impl CopyError {
    /// The kind of what failed, if something did.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            CopyError::Source(error) | CopyError::Target(error) => Some(error.kind()),
            CopyError::Stopped => None,
        }
    }
}

impl std::fmt::Display for CopyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CopyError::Source(error) => write!(f, "the store cannot be copied: {error}"),
            CopyError::Target(error) => write!(f, "the copy cannot be made: {error}"),
            CopyError::Stopped => f.write_str("the copy was given up before it was whole"),
        }
    }
}

impl std::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CopyError::Source(error) | CopyError::Target(error) => Some(error),
            CopyError::Stopped => None,
        }
    }
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Keys that were copied.
    pub keys: u64,
    /// About how many there are.
    pub expected: u64,
}

/// What a copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// Keyspaces, empty ones included.
    pub keyspaces: usize,
    /// Keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// The version of the store that was copied: later writes are not in it.
    pub version: u64,
}

impl Db {
    /// Copies the store, as it is now, into a new one; see [`Db::copy_to_with`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, backup) = (dir.path().join("store"), dir.path().join("backup"));
    /// use hither::Db;
    ///
    /// let db = Db::builder().path(path).max_capacity(64 << 20).open()?;
    /// db.keyspace("users")?.put(b"alice", b"1815")?;
    /// let report = db.copy_to(Db::builder().path(&backup).max_capacity(1 << 30)).unwrap();
    /// assert_eq!((report.keyspaces, report.keys), (1, 1));
    /// let copy = Db::open(&backup)?;
    /// assert_eq!(copy.keyspace("users")?.get(b"alice")?.as_deref(), Some(&b"1815"[..]));
    /// # Ok::<(), hither::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Db::copy_to_with`].
    pub fn copy_to(&self, target: Builder) -> Result<CopyReport, CopyError> {
        self.copy_to_with(target, |_| ControlFlow::Continue(()))
    }

    /// Copies all keyspaces, as they are at one moment, into a new store: a backup of a store that is in use, or the way to other limits. `target` names its directories, in which there must be no
    /// store, and its settings; without a [`Builder::max_capacity`] it may grow as far as this one. Keys keep their times of expiry; versions are new. `on_progress` is called now and then, and may
    /// end it.
    ///
    /// The copy is there, durable and closed, when this returns, and not before: until then it lies in a directory `NAME.PID.N.part` beside its place (`copy.PID.N.part` in a directory
    /// that was there before), which a crash leaves. After an error nothing is left of it.
    ///
    /// O(keys). Readers and writers go on. The new store's indexes take as much DRAM as this one's until it is closed. Memory grows with the number of distinct keys that are overwritten or deleted meanwhile, too, and what they
    /// held takes space in the store, as for any [`Snapshot`].
    ///
    /// # Errors
    /// [`CopyError`] tells whether it is the store, the copy or `on_progress`. In the callback of a ticket, or the closure of a read, [`Error::InsideCallback`] and [`Error::InsideRead`].
    pub fn copy_to_with(&self, target: Builder, on_progress: impl FnMut(CopyProgress) -> ControlFlow<()>) -> Result<CopyReport, CopyError> {
        let mut options = target.into_options();
        self.adapt(&mut options);
        let draft = StoreDraft::begin(&mut options).map_err(CopyError::Target)?;
        let target = Builder::from_options(options).open().map_err(CopyError::Target)?;
        let report = Copy::new(&target, on_progress).fill(self);
        if report.is_err() {
            // Nobody waits until what is removed is durable.
            target.store.abandon();
        }
        let (report, nodes) = (report?, target.stats().pools.len());
        target.close().map_err(CopyError::Target)?;
        draft.publish(nodes).map_err(CopyError::Target)?;
        Ok(report)
    }

    /// Where no limit is named the copy has this store's, if that is not below what is to be preallocated. One checkpoint, at its close, is enough.
    fn adapt(&self, options: &mut Options) {
        if options.max_capacity == 0 {
            let limit: u64 = self.stats().pools.iter().map(|pool| pool.max_bytes).sum();
            options.max_capacity = limit.max(options.capacity);
        }
        if options.checkpoints != CheckpointMode::Off {
            options.checkpoints = CheckpointMode::Every(u64::MAX);
        }
    }
}

/// A copy under way.
struct Copy<'a, P> {
    target: &'a Db,
    on_progress: P,
    keys: u64,
    bytes: u64,
    expected: u64,
    /// Of keys and bytes, when progress was told last.
    told: (u64, u64),
    /// Of bytes, when they were made durable last.
    synced: u64,
}

impl<'a, P: FnMut(CopyProgress) -> ControlFlow<()>> Copy<'a, P> {
    fn new(target: &'a Db, on_progress: P) -> Self {
        Copy { target, on_progress, keys: 0, bytes: 0, expected: 0, told: (0, 0), synced: 0 }
    }

    fn fill(&mut self, source: &Db) -> Result<CopyReport, CopyError> {
        let (snapshot, keyspaces) = source.store.view().map_err(CopyError::Source)?;
        let snapshot = Snapshot::of(source.store.clone(), snapshot);
        let keyspaces: Vec<_> = keyspaces.into_iter().map(|handle| Keyspace::new(source.store.clone(), handle)).collect();
        self.expected = keyspaces.iter().map(|keyspace| keyspace.len() as u64).sum();
        self.tell()?;
        let mut keys = 0;
        for from in &keyspaces {
            let options = KeyspaceOptions { kind: from.kind() };
            let into = self.target.create_keyspace(from.name(), options).map_err(CopyError::Target)?;
            match from.kind() {
                Kind::Hash => self.take_hash(&snapshot, from, &into)?,
                _ => self.take_ordered(&snapshot, from, &into)?,
            }
            keys += into.len() as u64;
        }
        self.tell()?;
        Ok(CopyReport { keyspaces: keyspaces.len(), keys, bytes: self.bytes, version: snapshot.version() })
    }

    fn take_ordered(&mut self, snapshot: &Snapshot, from: &Keyspace, into: &Keyspace) -> Result<(), CopyError> {
        for entry in snapshot.iter(from).entries() {
            let Entry { key, value, expires_at_ms } = entry.map_err(CopyError::Source)?;
            self.put(into, &key, &value, expires_at_ms)?;
        }
        Ok(())
    }

    /// In no order: sorting would take the memory of all keys.
    fn take_hash(&mut self, snapshot: &Snapshot, from: &Keyspace, into: &Keyspace) -> Result<(), CopyError> {
        let mut pieces = snapshot.inner().key_pieces(&from.handle);
        loop {
            let may_be_there = pieces.has_met_all();
            let Some(keys) = pieces.next() else { return Ok(()) };
            // Also if all of them are there by now.
            self.tell()?;
            for keys in keys.map_err(CopyError::Source)?.chunks(PREFETCHED) {
                from.prefetch(keys);
                for key in keys {
                    if may_be_there && into.contains(key).map_err(CopyError::Target)? {
                        continue;
                    }
                    let found = snapshot.inner().get_expiring(&from.handle, key, |value, expires_at_ms| (value.to_vec(), expires_at_ms));
                    // New ones come, too, which the snapshot does not show.
                    if let Some((value, expires_at_ms)) = found.map_err(CopyError::Source)? {
                        self.put(into, key, &value, expires_at_ms)?;
                    }
                }
            }
        }
    }

    fn put(&mut self, into: &Keyspace, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), CopyError> {
        // Closing it makes all of it durable.
        let options = WriteOptions::new().durability(Durability::Process).expires_at_ms(expires_at_ms);
        let _ = into.put_with(key, value, &options).map_err(CopyError::Target)?;
        self.keys += 1;
        self.bytes += (key.len() + value.len()) as u64;
        if self.bytes - self.synced >= SYNC_BYTES {
            self.synced = self.bytes;
            self.target.sync().map_err(CopyError::Target)?;
        }
        if self.keys - self.told.0 >= TELL_KEYS || self.bytes - self.told.1 >= TELL_BYTES { self.tell() } else { Ok(()) }
    }

    fn tell(&mut self) -> Result<(), CopyError> {
        self.told = (self.keys, self.bytes);
        let progress = CopyProgress { keys: self.keys, expected: self.expected.max(self.keys) };
        if (self.on_progress)(progress).is_break() { Err(CopyError::Stopped) } else { Ok(()) }
    }
}
