//! The open store.

use crate::batch::Batch;
use crate::builder::Builder;
use crate::keyspace::{Keyspace, KeyspaceOptions};
use crate::report::{CheckReport, RecoveryReport, Stats};
use crate::snapshot::Snapshot;
use hither_engine::{CompactProgress, CompactReport, Error, KeyspaceInfo, Kind, Result, Store};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Share of garbage from which on [`Db::compact`] empties a segment. Below it, moving the rest is not worth it.
const COMPACT_GARBAGE: f64 = 0.05;

/// An open store. Clones share it.
///
/// Dropping the last handle closes the store as [`Db::close`] does; handles are the clones of `Db` and every
/// [`Keyspace`], [`Iter`](crate::Iter), [`Batch`] and [`Snapshot`]. That drop waits for the close, which may take a
/// checkpoint (O(keys)) and a sync. It reports no error: if the close failed, the next opening recovers the store as
/// after a crash. Call [`Db::close`] where that matters. Nobody else can open the store until all handles, pinned
/// values and tickets are gone.
///
/// ```
/// use hither::{Db, Durability};
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// let db = Db::builder().path(path).capacity(8 << 20).max_capacity(1 << 30).durability(Durability::Process).open()?;
/// let users = db.keyspace("users")?;
/// users.put(b"alice", b"1815")?; // visible, and durable once something syncs
/// db.sync()?;
/// assert_eq!(db.stats().keyspaces[0].keys, 1);
/// drop(users);
/// db.close()?;
/// # Ok::<(), hither::Error>(())
/// ```
#[derive(Clone)]
pub struct Db {
    pub(crate) store: Arc<Store>,
    recovery: Arc<RecoveryReport>,
}

impl Db {
    /// Opens the store in a directory with default settings. Creates it if there is none.
    ///
    /// # Errors
    /// See [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder().path(path).open()
    }

    /// Returns a [`Builder`], to open a store with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn from_store(store: Store) -> Db {
        let recovery = Arc::new(RecoveryReport::from(store.recovery()));
        Db { store: Arc::new(store), recovery }
    }

    /// Opens the keyspace of this name, whatever its kind. Creates an ordered one if there is none.
    ///
    /// # Errors
    /// See [`Db::create_keyspace`]; [`Error::KeyspaceDropped`] if another thread drops it meanwhile.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        if let Some(keyspace) = self.open_keyspace(name)? {
            return Ok(keyspace);
        }
        self.create_or_open(name, KeyspaceOptions::ordered())
    }

    /// Opens the keyspace of this name and kind. Creates it if there is none of this name.
    ///
    /// ```
    /// # let db = hither::Db::builder().in_memory().open()?;
    /// use hither::{Error, KeyspaceOptions};
    ///
    /// let seen = db.keyspace_with("seen", KeyspaceOptions::hash())?;
    /// seen.put(b"/etc/motd", b"")?;
    /// assert!(db.keyspace_with("seen", KeyspaceOptions::hash())?.contains(b"/etc/motd")?);
    /// assert!(matches!(db.keyspace_with("seen", KeyspaceOptions::ordered()), Err(Error::KeyspaceKind { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyspaceKind`] if the keyspace of this name is of another kind; those of [`Db::keyspace`].
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let keyspace = match self.open_keyspace(name)? {
            Some(keyspace) => keyspace,
            None => self.create_or_open(name, options)?,
        };
        if keyspace.kind() == options.kind {
            return Ok(keyspace);
        }
        Err(Error::KeyspaceKind { name: name.to_owned(), kind: keyspace.kind().name() })
    }

    fn create_or_open(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        match self.create_keyspace(name, options) {
            // Another thread was faster.
            Err(Error::KeyspaceExists(_)) => self.open_keyspace(name)?.ok_or_else(|| Error::KeyspaceDropped(name.to_owned())),
            outcome => outcome,
        }
    }

    /// Creates a keyspace. The change is durable at return, and crash-atomic.
    ///
    /// # Errors
    /// [`Error::KeyspaceExists`], [`Error::KeyspaceName`], [`Error::TooManyKeyspaces`]; [`Error::InsideCallback`] in
    /// the callback of a ticket; [`Error::SyncFailed`] after a failed sync, in which case the keyspace may or may not
    /// exist at the next opening; [`Error::OpenedReadOnly`], [`Error::Closed`].
    pub fn create_keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        Ok(Keyspace::new(self.store.clone(), self.store.create_keyspace(name, options.kind)?))
    }

    /// Opens the keyspace of this name, or returns `None` if there is none. Waits for a [`Db::swap_keyspaces`] under
    /// way that renames it, except in the callback of a ticket.
    ///
    /// # Errors
    /// None so far.
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        Ok(self.store.open_keyspace(name).map(|handle| Keyspace::new(self.store.clone(), handle)))
    }

    /// Drops a keyspace with all its keys. Returns false if there is none of this name. The change is durable at
    /// return, and crash-atomic. O(keys).
    ///
    /// # Errors
    /// [`Error::InsideCallback`] in the callback of a ticket; [`Error::SyncFailed`] after a failed sync, in which case
    /// the keyspace may or may not exist at the next opening; [`Error::OpenedReadOnly`], [`Error::Closed`].
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.store.drop_keyspace(name)
    }

    /// Exchanges the names of the two keyspaces of each pair, all pairs at once. Returns false and changes nothing if
    /// one of the names does not exist. The pairs apply one after the other, so a name may occur in several of them.
    ///
    /// The change is durable at return, and crash-atomic. Everything written before it is durable then, too, at
    /// whatever level it was written. Handles of keyspaces whose name has changed fail with [`Error::KeyspaceDropped`]
    /// from then on: open them again. O(keyspaces); waits for writers under way and for a sync.
    ///
    /// # Errors
    /// See [`Db::drop_keyspace`].
    pub fn swap_keyspaces(&self, pairs: &[(&str, &str)]) -> Result<bool> {
        self.store.swap_keyspaces(pairs)
    }

    /// Returns all keyspaces in the order of their creation.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.store.keyspaces()
    }

    /// Returns an empty batch.
    pub fn batch(&self) -> Batch {
        Batch::new(self.store.clone())
    }

    /// Takes a snapshot: a consistent view of everything written so far.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.store.clone())
    }

    /// Makes everything written so far durable, at whatever level it was written.
    ///
    /// # Errors
    /// [`Error::SyncFailed`] if a sync failed. Do not take anything written since the last successful sync for durable.
    pub fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    /// Collects garbage now, as the background does when space is short, and returns the number of segments that it
    /// freed. Moves the live entries out of every segment whose share of garbage reaches [`Builder::gc_threshold`], and
    /// frees the segment. Waits for readers that may still look at these segments.
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]; [`Error::SyncFailed`] after a failed sync; [`Error::Damaged`]
    /// and errors of the medium; [`Error::OpenedReadOnly`], [`Error::Closed`]. No error loses live data.
    pub fn reclaim(&self) -> Result<usize> {
        self.store.reclaim()
    }

    /// Reclaims the space of all garbage now, beside readers and writers. Empties each segment of which a twentieth or
    /// more is not live. See [`Db::compact_with`].
    ///
    /// # Errors
    /// See [`Db::compact_with`].
    pub fn compact(&self) -> Result<CompactReport> {
        self.compact_with(COMPACT_GARBAGE, |_| ControlFlow::Continue(()))
    }

    /// Empties every segment of which at least the share `garbage` is not live, until none is left or nothing more can
    /// be gained. `garbage` is between 0 and 1; a value below 0.001 counts as 0.001. Calls `on_progress` after every few
    /// segments; returning [`ControlFlow::Break`] ends the compaction.
    ///
    /// The files keep their size: the freed space serves later writes. Data that snapshots show stays. O(store). One
    /// compaction runs at a time; a second one waits.
    ///
    /// # Errors
    /// [`Error::InsideCallback`] if called by `on_progress` or in the callback of a ticket, [`Error::InsideRead`];
    /// [`Error::Config`] if `garbage` is not a number; [`Error::SyncFailed`] after a failed sync; errors of the medium;
    /// [`Error::OpenedReadOnly`], [`Error::Closed`]. [`Error::DiskFull`] if there is no room for a checkpoint:
    /// everything except deletes was compacted then. [`Error::Damaged`] if it found damage: all undamaged segments were
    /// compacted then. After any error the store is sound, and keeps what was compacted before it.
    pub fn compact_with(&self, garbage: f64, on_progress: impl FnMut(CompactProgress) -> ControlFlow<()>) -> Result<CompactReport> {
        self.store.compact(garbage, on_progress)
    }

    /// Takes a checkpoint of the indexes now instead of in the background, so that a restart scans only what comes
    /// later. Returns false if this store keeps no checkpoints (in memory, switched off, or while a salvage passes over
    /// damage), or if lack of space made the checkpoint void. O(keys).
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`] if the checkpoint cannot be written, [`Error::Damaged`], [`Error::SyncFailed`]
    /// after a failed sync, [`Error::InsideRead`], [`Error::InsideCallback`], [`Error::OpenedReadOnly`],
    /// [`Error::Closed`]. The store is then as before.
    pub fn checkpoint(&self) -> Result<bool> {
        self.store.checkpoint()
    }

    /// Returns the statistics of the store. O(segments).
    pub fn stats(&self) -> Stats {
        Stats::from(&self.store.stats())
    }

    /// Verifies every checksum, reference and count. Run it without writers: it would report counts that they change.
    /// O(store).
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]. Damage is not an error: the report lists it.
    pub fn check(&self) -> Result<CheckReport> {
        Ok(CheckReport::from(self.store.check()?))
    }

    /// The time by which keys expire, in milliseconds since 1970: that of the machine's clock, but never earlier than
    /// the time that the store remembers.
    pub fn now_ms(&self) -> u64 {
        self.store.now_ms()
    }

    /// The UUID of the store. Only copies of its files share it.
    #[doc(hidden)]
    pub fn uuid(&self) -> [u8; 16] {
        self.store.uuid()
    }

    /// Persists the store's time, so that every key that was reported expired stays expired at the next start, even if
    /// the machine's clock is set back. Waits for a sync unless that time is durable already.
    ///
    /// # Errors
    /// Those of a sync.
    #[doc(hidden)]
    pub fn persist_expiries(&self) -> Result<()> {
        self.store.persist_expiries()
    }

    /// Reports what recovery did when the store was opened.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Makes everything durable and marks the store clean. Other handles stay usable for reading. The files are
    /// released when the last handle, snapshot, iterator, pinned value and ticket is dropped (soon afterwards, if that
    /// happens inside a read of another store, or in a callback).
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]: this handle is gone and the others stay as they are. If it was
    /// the last one, the store is closed as if it had been dropped. After any other error the store refuses writes, and
    /// the next opening recovers it as after a crash.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("keyspaces", &self.keyspaces().len()).finish_non_exhaustive()
    }
}

impl KeyspaceOptions {
    /// Keys in bytewise order: allows ranges and prefixes.
    pub fn ordered() -> KeyspaceOptions {
        KeyspaceOptions { kind: Kind::Ordered }
    }

    /// Point access only, without an order of keys: takes less memory, and is faster.
    pub fn hash() -> KeyspaceOptions {
        KeyspaceOptions { kind: Kind::Hash }
    }
}
