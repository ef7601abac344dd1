//! Consistent views.

use crate::iter::{Entry, Iter, Source};
use crate::keyspace::{Keyspace, first_of, owned, prefix_end, range_of};
use hither_engine::{Error, Kind, Result, Store};
use std::cell::Cell;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

/// Keys that are prefetched together, so that their cache misses overlap.
const PREFETCHED: usize = 64;

/// A consistent view of all keyspaces at one moment. Clones share it; it is `Send + Sync`.
///
/// Keys that had expired when it was taken are absent, and nothing expires in it afterwards. A keyspace that is dropped
/// later is gone from it, too: its reads and iterators fail with [`Error::KeyspaceDropped`]. While a snapshot lives,
/// memory grows with the number of distinct keys that are overwritten or deleted, and the space of their old values is
/// not reclaimed.
///
/// ```
/// # let db = hither::Db::builder().in_memory().open()?;
/// let files = db.keyspace("files")?;
/// files.put(b"a", b"1")?;
/// let before = db.snapshot();
/// files.delete(b"a")?;
/// assert!(!files.contains(b"a")? && before.contains(&files, b"a")?);
/// assert_eq!(before.multi_get(&files, &[b"a", b"b"])?, [Some(b"1".to_vec()), None]);
/// assert_eq!(before.iter(&files).count(), 1);
/// # Ok::<(), hither::Error>(())
/// ```
#[derive(Clone)]
pub struct Snapshot {
    store: Arc<Store>,
    inner: Arc<hither_engine::Snapshot>,
}

impl Snapshot {
    pub(crate) fn new(store: Arc<Store>) -> Snapshot {
        Snapshot::of(store.clone(), store.snapshot())
    }

    /// Wraps a snapshot that was taken of this store.
    pub(crate) fn of(store: Arc<Store>, inner: hither_engine::Snapshot) -> Snapshot {
        Snapshot { inner: Arc::new(inner), store }
    }

    pub(crate) fn inner(&self) -> &hither_engine::Snapshot {
        &self.inner
    }

    /// The version that it shows: writes with higher versions are not in it.
    pub fn version(&self) -> u64 {
        self.inner.version()
    }

    /// Returns the value that `key` had.
    ///
    /// # Errors
    /// [`Error::ForeignKeyspace`] for a keyspace of another store; those of [reads](crate#errors).
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(keyspace, key, <[u8]>::to_vec)
    }

    /// Calls `f` with the value that `key` had, in place.
    ///
    /// # Errors
    /// [`Error::ForeignKeyspace`] for a keyspace of another store; those of [reads](crate#errors).
    pub fn get_with<R>(&self, keyspace: &Keyspace, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.ensure_own(keyspace)?;
        self.inner.get_with(&keyspace.handle, key, f)
    }

    /// Returns the value that `key` had and its version, for [`crate::Batch::require_version`]: a batch that requires
    /// the versions of all that it was made from is applied only if all of it has the state that the snapshot shows.
    /// (Rarely it is refused although it has: see [`Keyspace::get_versioned`] on what raises a version.)
    ///
    /// # Errors
    /// [`Error::ForeignKeyspace`] for a keyspace of another store; those of [reads](crate#errors).
    pub fn get_versioned(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        self.ensure_own(keyspace)?;
        self.inner.get_found(&keyspace.handle, key, |value, found| (value.to_vec(), found.version))
    }

    /// Returns the value that `key` had and the time when it expires.
    ///
    /// # Errors
    /// [`Error::ForeignKeyspace`] for a keyspace of another store; those of [reads](crate#errors).
    pub fn get_entry(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Entry>> {
        self.ensure_own(keyspace)?;
        self.inner.get_expiring(&keyspace.handle, key, |value, expires_at_ms| Entry::copied(key, value, expires_at_ms))
    }

    /// Whether `key` existed.
    ///
    /// # Errors
    /// [`Error::ForeignKeyspace`] for a keyspace of another store; those of [reads](crate#errors).
    pub fn contains(&self, keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
        Ok(self.get_with(keyspace, key, |_| ())?.is_some())
    }

    /// Returns the values that these keys had, in the order of `keys`; memory accesses overlap.
    ///
    /// # Errors
    /// [`Error::ForeignKeyspace`] for a keyspace of another store; those of [reads](crate#errors).
    pub fn multi_get<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(keys.len());
        self.multi_get_with(keyspace, keys, |_, value| values.push(value.map(<[u8]>::to_vec)))?;
        Ok(values)
    }

    /// Calls `f(i, value)` with the value that each of `keys` had, in place and in their order.
    ///
    /// # Errors
    /// [`Error::ForeignKeyspace`] for a keyspace of another store; those of [reads](crate#errors).
    pub fn multi_get_with<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K], mut f: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.ensure_own(keyspace)?;
        for (group, first) in keys.chunks(PREFETCHED).zip((0..).step_by(PREFETCHED)) {
            keyspace.prefetch(group);
            for (key, number) in group.iter().zip(first..) {
                if self.inner.get_with(&keyspace.handle, key.as_ref(), |value| f(number, Some(value)))?.is_none() {
                    f(number, None);
                }
            }
        }
        Ok(())
    }

    /// Calls `f(key, value)` for the pairs between two bounds, in order, until it breaks. Pairs are read in place,
    /// without an allocation per pair.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace, [`Error::ForeignKeyspace`] for one of another store; those of [reads](crate#errors).
    pub fn scan_with(
        &self,
        keyspace: &Keyspace,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.ensure_own(keyspace)?;
        self.inner.scan(&keyspace.handle, &range_of(from, to, reverse, usize::MAX), f)
    }

    /// As [`Snapshot::scan_with`], but for the first `limit` pairs. Returns how often it called `f`.
    ///
    /// # Errors
    /// Those of [`Snapshot::scan_with`].
    pub fn scan_first(
        &self,
        keyspace: &Keyspace,
        limit: usize,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<usize> {
        self.ensure_own(keyspace)?;
        keyspace.ensure_ordered()?;
        let seen = Cell::new(0);
        if limit > 0 {
            self.inner.scan(&keyspace.handle, &range_of(from, to, reverse, limit), first_of(limit, &seen, f))?;
        }
        Ok(seen.get())
    }

    /// Returns an iterator over all pairs in key order. Keys of a hash keyspace are collected and sorted first. For a
    /// keyspace of another store it yields [`Error::ForeignKeyspace`] and nothing else.
    pub fn iter(&self, keyspace: &Keyspace) -> Iter {
        if let Err(error) = self.ensure_own(keyspace) {
            return Iter::failed(self.source(keyspace), error);
        }
        match keyspace.kind() {
            Kind::Hash => Iter::hash(self.source(keyspace)),
            _ => Iter::ordered(self.source(keyspace), Bound::Unbounded, Bound::Unbounded),
        }
    }

    /// Returns an iterator over the pairs whose keys lie in `range`, in key order, from either end.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace, [`Error::ForeignKeyspace`] for one of another store.
    pub fn range<'k>(&self, keyspace: &Keyspace, range: impl RangeBounds<&'k [u8]>) -> Result<Iter> {
        self.ensure_own(keyspace)?;
        keyspace.ensure_ordered()?;
        Ok(Iter::ordered(self.source(keyspace), owned(range.start_bound()), owned(range.end_bound())))
    }

    /// Returns an iterator over the pairs whose keys begin with `prefix`, in key order, from either end.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace, [`Error::ForeignKeyspace`] for one of another store.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: &[u8]) -> Result<Iter> {
        self.ensure_own(keyspace)?;
        keyspace.ensure_ordered()?;
        Ok(Iter::ordered(self.source(keyspace), Bound::Included(prefix.to_vec()), prefix_end(prefix)))
    }

    /// Refuses a keyspace of another store: its index refers to another log.
    #[inline]
    fn ensure_own(&self, keyspace: &Keyspace) -> Result<()> {
        if Arc::ptr_eq(&self.store, &keyspace.store) { Ok(()) } else { Err(Error::ForeignKeyspace(keyspace.name().to_owned())) }
    }

    fn source(&self, keyspace: &Keyspace) -> Source {
        Source { store: self.store.clone(), handle: keyspace.handle.clone(), snapshot: Some(self.inner.clone()) }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("version", &self.version()).finish_non_exhaustive()
    }
}
