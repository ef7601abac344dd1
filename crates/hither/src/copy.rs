//! Copies of a store that is in use: all keyspaces as they are at one moment, in a new store.
//!
//! A copy is made from a [`Snapshot`], so readers and writers go on; the store keeps what they overwrite and delete
//! until the copy is done. A copy does not copy the format: it is a store of its own, with its own limits, nodes,
//! segments and versions.

use crate::builder::Builder;
use crate::db::Db;
use crate::iter::Entry;
use crate::keyspace::{Keyspace, KeyspaceOptions};
use crate::snapshot::Snapshot;
use hither_engine::{CheckpointMode, Durability, Error, ErrorKind, Kind, Options, StoreDraft, WriteOptions};
use serde::Serialize;
use std::ops::ControlFlow;

/// Keys, and bytes, after which progress is reported.
const TELL_KEYS: u64 = 1024;
const TELL_BYTES: u64 = 8 << 20;
/// Bytes after which the copied data is made durable, so that the end does not wait for all of it.
const SYNC_BYTES: u64 = 64 << 20;
/// Keys of a hash keyspace that are prefetched together, so that their cache misses overlap.
const PREFETCHED: usize = 64;

/// Why a copy failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CopyError {
    /// The store to be copied failed. With [`Error::KeyspaceDropped`] a keyspace was dropped or renamed meanwhile: try
    /// again.
    Source(Error),
    /// The copy failed: its directory, its disk, its size.
    Target(Error),
    /// `on_progress` ended the copy.
    Stopped,
}

impl CopyError {
    /// The kind of the error, if there was one.
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
            CopyError::Stopped => f.write_str("the copy was stopped before it was complete"),
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

/// Progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Keys copied so far.
    pub keys: u64,
    /// Approximate number of keys to copy.
    pub expected: u64,
}

/// Content of a finished copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// Number of keyspaces, empty ones included.
    pub keyspaces: usize,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// The version of the copied store that the copy shows: later writes are not in it.
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

    /// Copies all keyspaces, as they are at one moment, into a new store. Use it to back up a store that is in use, or
    /// to move the data to a store with other limits.
    ///
    /// `target` gives the settings of the new store and its directories, which must not hold a store. Without a
    /// [`Builder::max_capacity`] the copy may grow as far as this store. Keys keep their times of expiry; versions are
    /// new. `on_progress` is called now and then, and ends the copy by returning [`ControlFlow::Break`].
    ///
    /// When this returns, the copy is in its place, durable and closed. Until then it lies in a directory
    /// `NAME.PID.N.part` beside its place (`copy.PID.N.part` inside a directory that existed before), which a crash
    /// leaves behind. After an error nothing is left of it.
    ///
    /// O(keys). Readers and writers go on. The new store's indexes take as much DRAM as this one's until it is closed.
    /// As for any [`Snapshot`], memory grows with the number of distinct keys that are overwritten or deleted
    /// meanwhile, and their old values take space in the store.
    ///
    /// # Errors
    /// [`CopyError`] distinguishes failures of the store, of the copy, and a stop by `on_progress`. In the callback of
    /// a ticket: [`Error::InsideCallback`]; in the closure of a read: [`Error::InsideRead`].
    pub fn copy_to_with(&self, target: Builder, on_progress: impl FnMut(CopyProgress) -> ControlFlow<()>) -> Result<CopyReport, CopyError> {
        let mut options = target.into_options();
        self.adapt(&mut options);
        let draft = StoreDraft::begin(&mut options).map_err(CopyError::Target)?;
        let target = Builder::from_options(options).open().map_err(CopyError::Target)?;
        let report = Copy::new(&target, on_progress).fill(self);
        if report.is_err() {
            // The files are about to be removed, so nothing of them need become durable.
            target.store.abandon();
        }
        let (report, nodes) = (report?, target.stats().pools.len());
        target.close().map_err(CopyError::Target)?;
        draft.publish(nodes).map_err(CopyError::Target)?;
        Ok(report)
    }

    /// Without a limit of its own, the copy gets this store's limit, or its own capacity if that is larger. It takes
    /// only one checkpoint, at its close.
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

/// A copy in progress.
struct Copy<'a, P> {
    target: &'a Db,
    on_progress: P,
    keys: u64,
    bytes: u64,
    expected: u64,
    /// Keys and bytes at the last progress report.
    told: (u64, u64),
    /// Bytes at the last sync.
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

    /// Copies in no order: sorting would take the memory of all keys.
    fn take_hash(&mut self, snapshot: &Snapshot, from: &Keyspace, into: &Keyspace) -> Result<(), CopyError> {
        let mut pieces = snapshot.inner().key_pieces(&from.handle);
        loop {
            let may_be_there = pieces.has_met_all();
            let Some(keys) = pieces.next() else { return Ok(()) };
            // Reports progress even if all of these keys are there by now.
            self.tell()?;
            for keys in keys.map_err(CopyError::Source)?.chunks(PREFETCHED) {
                from.prefetch(keys);
                for key in keys {
                    if may_be_there && into.contains(key).map_err(CopyError::Target)? {
                        continue;
                    }
                    let found = snapshot.inner().get_expiring(&from.handle, key, |value, expires_at_ms| (value.to_vec(), expires_at_ms));
                    // Keys written since come, too; the snapshot does not show them.
                    if let Some((value, expires_at_ms)) = found.map_err(CopyError::Source)? {
                        self.put(into, key, &value, expires_at_ms)?;
                    }
                }
            }
        }
    }

    fn put(&mut self, into: &Keyspace, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), CopyError> {
        // Closing the copy makes all of it durable.
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
