//! Atomic batches.

use crate::keyspace::Keyspace;
use hither_engine::{Error, Result, Store, Ticket, WriteOptions};
use std::sync::Arc;

/// Several writes, over any keys and keyspaces, that take effect entirely or not at all. Of several writes of one key,
/// the last one counts.
///
/// While a batch is applied, plain readers may see some of its keys before others; those of ordered keyspaces become
/// visible in the order in which they were added. A [`crate::Snapshot`] sees all of the batch or nothing.
///
/// ```
/// # let db = hither::Db::builder().in_memory().open()?;
/// let accounts = db.keyspace("accounts")?;
/// accounts.put(b"ada", b"10")?;
/// let (_, version) = accounts.get_versioned(b"ada")?.unwrap();
///
/// let mut batch = db.batch();
/// batch.require_version(&accounts, b"ada", Some(version)).put(&accounts, b"ada", b"7").put(&accounts, b"bob", b"3");
/// batch.commit()?; // Error::PreconditionFailed if somebody has written ada's meanwhile
/// # Ok::<(), hither::Error>(())
/// ```
#[must_use = "a batch does nothing before `commit`"]
pub struct Batch {
    pub(crate) store: Arc<Store>,
    pub(crate) inner: hither_engine::Batch,
    foreign: Option<String>,
}

impl Batch {
    pub(crate) fn new(store: Arc<Store>) -> Batch {
        Batch { store, inner: hither_engine::Batch::default(), foreign: None }
    }

    /// Adds a put.
    #[inline]
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> &mut Self {
        self.put_with_expiry(keyspace, key, value, 0)
    }

    /// Adds a put of a key that expires at this time, in milliseconds since 1970. With 0, the options of the commit
    /// decide; by default the key never expires.
    #[inline]
    pub fn put_with_expiry(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8], expires_at_ms: u64) -> &mut Self {
        self.note_store(keyspace);
        self.inner.put(&keyspace.handle, key, value, expires_at_ms);
        self
    }

    /// Adds a delete.
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) -> &mut Self {
        self.note_store(keyspace);
        self.inner.delete(&keyspace.handle, key);
        self
    }

    /// Makes the whole batch depend on the key having this version (`None`: on the key being absent). A batch at level
    /// `sync` becomes durable no earlier than the data that its conditions rest on.
    pub fn require_version(&mut self, keyspace: &Keyspace, key: &[u8], version: Option<u64>) -> &mut Self {
        self.note_store(keyspace);
        self.inner.require_version(&keyspace.handle, key, version);
        self
    }

    /// Number of writes in the batch.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Bytes of the keys and values in the batch, for programs that commit from a certain size on. O(1).
    pub fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    /// Removes everything from the batch, conditions included. Keeps the allocated memory.
    pub fn clear(&mut self) {
        self.inner.clear();
        self.foreign = None;
    }

    /// Whether the batch holds neither writes nor conditions.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Applies the batch. It is durable at the store's level when this returns. The batch keeps its content, so that it
    /// can be committed again after an error.
    ///
    /// # Errors
    /// [`Error::PreconditionFailed`], [`Error::ForeignKeyspace`], [`Error::BatchTooLarge`]: nothing was applied; those
    /// of [writes](crate#errors).
    #[inline]
    pub fn commit(&self) -> Result<()> {
        self.ensure_own()?;
        self.store.commit_wait(&self.inner)
    }

    /// Starts the commit and returns a [`Ticket`] without waiting for durability.
    ///
    /// The writes are visible at return; the ticket reports when they are durable at their level (at once for
    /// [`crate::Durability::Process`]). A batch that has conditions, or
    /// writes nothing, may wait until the data that it saw is durable ([`Batch::commit_deferred`] never waits). An
    /// expiry among the options applies to the puts that have none of their own.
    ///
    /// # Errors
    /// See [`Batch::commit`].
    pub fn commit_with(&self, options: &WriteOptions) -> Result<Ticket> {
        self.ensure_own()?;
        self.store.commit(&self.inner, options)
    }

    #[inline]
    pub(crate) fn ensure_own(&self) -> Result<()> {
        self.foreign.as_ref().map_or(Ok(()), |name| Err(Error::ForeignKeyspace(name.clone())))
    }

    #[inline(always)]
    fn note_store(&mut self, keyspace: &Keyspace) {
        if !Arc::ptr_eq(&self.store, &keyspace.store) {
            self.foreign.get_or_insert_with(|| keyspace.name().to_owned());
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}
