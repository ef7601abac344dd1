//! The store.

use crate::batch::Batch;
use crate::builder::Builder;
use crate::keyspace::{Keyspace, KeyspaceOptions};
use crate::report::{CheckReport, RecoveryReport, Stats};
use crate::snapshot::Snapshot;
use hither_engine::{CompactProgress, CompactReport, Error, KeyspaceInfo, Kind, Result, Store};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Share of garbage from which on [`Db::compact`] empties a segment: below, moving the rest is not worth it.
const COMPACT_GARBAGE: f64 = 0.05;

/// An open store. Clones share it.
///
/// Whoever drops the last clone, and with it the last [`Keyspace`], [`Iter`](crate::Iter), [`Batch`] and [`Snapshot`], closes the store as [`Db::close`] does, which may take a checkpoint (O(keys)) and
/// a sync: that drop waits for it. Its errors are told to nobody; the store is then as after a crash when it is opened again. So close it where that matters. Until all of them are gone (and the last
/// pinned value and ticket), nobody else can open the store.
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
    /// Opens the store in a directory with default settings; creates it if there is none.
    ///
    /// # Errors
    /// See [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder().path(path).open()
    }

    /// Settings first.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn from_store(store: Store) -> Db {
        let recovery = Arc::new(RecoveryReport::from(store.recovery()));
        Db { store: Arc::new(store), recovery }
    }

    /// Opens a keyspace, of whichever kind, creating an ordered one if there is none of this name.
    ///
    /// # Errors
    /// See [`Db::create_keyspace`].
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        if let Some(keyspace) = self.open_keyspace(name)? {
            return Ok(keyspace);
        }
        self.create_or_open(name, KeyspaceOptions::ordered())
    }

    /// Opens a keyspace of this kind, creating it if there is none of this name.
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
    /// [`Error::KeyspaceKind`] if it is of another kind; those of [`Db::create_keyspace`].
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

    /// Creates a keyspace. The change is durable and crash-atomic.
    ///
    /// # Errors
    /// [`Error::KeyspaceExists`], [`Error::KeyspaceName`], [`Error::TooManyKeyspaces`]; [`Error::InsideCallback`] in the callback of a ticket; [`Error::ReadOnly`] after a failed sync, when it may be
    /// there at the next opening or not; [`Error::OpenedReadOnly`], [`Error::Closed`].
    pub fn create_keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        Ok(Keyspace::new(self.store.clone(), self.store.create_keyspace(name, options.kind)?))
    }

    /// Opens a keyspace if there is one of this name. Waits for keyspaces that are being exchanged.
    ///
    /// # Errors
    /// None so far.
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        Ok(self.store.open_keyspace(name).map(|handle| Keyspace::new(self.store.clone(), handle)))
    }

    /// Drops a keyspace with all its keys; false if there is none. Durable and crash-atomic; O(keys).
    ///
    /// # Errors
    /// [`Error::InsideCallback`] in the callback of a ticket; [`Error::ReadOnly`] after a failed sync, when it may be there at the next opening or not; [`Error::OpenedReadOnly`], [`Error::Closed`].
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.store.drop_keyspace(name)
    }

    /// Exchanges the names of keyspaces: all pairs at once, or none if one of them is not there (false). Where a name is in several pairs, the result is that of one exchange
    /// after the other. Durable and crash-atomic, and everything that was written before is durable then, whatever its level. Handles of what has another name then say
    /// [`Error::KeyspaceDropped`] from then on: open them again. O(keyspaces), and waits for writers under way and a sync.
    ///
    /// # Errors
    /// See [`Db::drop_keyspace`].
    pub fn swap_keyspaces(&self, pairs: &[(&str, &str)]) -> Result<bool> {
        self.store.swap_keyspaces(pairs)
    }

    /// All keyspaces in the order of their creation.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.store.keyspaces()
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch {
        Batch::new(self.store.clone())
    }

    /// A consistent view of everything written so far.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.store.clone())
    }

    /// Makes everything written so far durable, whatever its level.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if a sync failed: nothing since the last good one may be taken for durable.
    pub fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    /// Collects garbage now, as the background does when space is short: empties the segments of which a good part is garbage, moving what is live in them, and frees them; returns how many.
    /// Waits for readers that may still look at them.
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]; [`Error::ReadOnly`] after a failed sync; [`Error::Damaged`] and errors of the medium; [`Error::OpenedReadOnly`], [`Error::Closed`]. Nothing that is live is lost.
    pub fn reclaim(&self) -> Result<usize> {
        self.store.reclaim()
    }

    /// Gives back the space of everything that is garbage, now and beside readers and writers: empties each segment of which a twentieth or more is not live. See
    /// [`Db::compact_with`].
    ///
    /// # Errors
    /// See [`Db::compact_with`].
    pub fn compact(&self) -> Result<CompactReport> {
        self.compact_with(COMPACT_GARBAGE, |_| ControlFlow::Continue(()))
    }

    /// Empties every segment of which at least `garbage` (0 to 1; 0.001 if that is less) is not live, until none is left or nothing more can be gained. `on_progress` is called after some
    /// segments each, and may end it. The files keep their size: the space is free for later writes. What snapshots show stays. O(store); one at a time.
    ///
    /// # Errors
    /// [`Error::InsideCallback`] if called by `on_progress` or the callback of a ticket, [`Error::InsideRead`]; [`Error::Config`] if `garbage` is no number; [`Error::ReadOnly`] after a failed sync; [`Error::DiskFull`] if there
    /// is no room for a checkpoint, when all but deletes was compacted; [`Error::Damaged`] if damage was found, when all segments without any were compacted; errors of the medium; [`Error::OpenedReadOnly`], [`Error::Closed`]. The store is sound, and as compact as it became.
    pub fn compact_with(&self, garbage: f64, on_progress: impl FnMut(CompactProgress) -> ControlFlow<()>) -> Result<CompactReport> {
        self.store.compact(garbage, on_progress)
    }

    /// Takes a checkpoint of the indexes now instead of in the background, so that a restart scans only what comes later. False if this store keeps
    /// none (in memory, or switched off), or if it had to give way to lack of space. O(keys).
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`] if it cannot be written, [`Error::Damaged`], [`Error::ReadOnly`] after a failed sync, [`Error::InsideRead`], [`Error::InsideCallback`], [`Error::OpenedReadOnly`], [`Error::Closed`]; the store is as before.
    pub fn checkpoint(&self) -> Result<bool> {
        self.store.checkpoint()
    }

    /// The store in numbers. O(segments).
    pub fn stats(&self) -> Stats {
        Stats::from(&self.store.stats())
    }

    /// Verifies every checksum, reference and count. Run it without writers. O(store).
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]. What is not sound is no error but in the report.
    pub fn check(&self) -> Result<CheckReport> {
        Ok(CheckReport::from(self.store.check()?))
    }

    /// The time by which keys expire, in milliseconds since 1970: the machine's, but never behind what the store remembers.
    pub fn now_ms(&self) -> u64 {
        self.store.now_ms()
    }

    /// What tells the store from all others, copies of its files aside.
    #[doc(hidden)]
    pub fn uuid(&self) -> [u8; 16] {
        self.store.uuid()
    }

    /// Makes durable that what somebody was told to have expired has, whatever the machine's clock says at the next start. Waits for a sync if that was not so.
    ///
    /// # Errors
    /// Those of a sync.
    #[doc(hidden)]
    pub fn persist_expiries(&self) -> Result<()> {
        self.store.persist_expiries()
    }

    /// What recovery did when the store was opened.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Makes everything durable and marks the store clean. Other handles stay usable for reading; the files are released when
    /// the last one is dropped, and with them the last snapshot, iterator, pinned value and ticket. (Inside a read of another store, or a callback, soon after.)
    ///
    /// # Errors
    /// [`Error::InsideRead`], [`Error::InsideCallback`]: nothing has changed. Others: the store refuses writes from now on, and is as after a crash when it is opened again.
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
    /// Keys in bytewise order.
    pub fn ordered() -> KeyspaceOptions {
        KeyspaceOptions { kind: Kind::Ordered }
    }

    /// Point access only: less memory, faster.
    pub fn hash() -> KeyspaceOptions {
        KeyspaceOptions { kind: Kind::Hash }
    }
}
