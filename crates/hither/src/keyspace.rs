//! A keyspace: a named map of byte strings.

use crate::iter::{Iter, Source};
use hither_engine::{
    Condition, Direction, Error, KeyspaceHandle, KeyspaceInfo, Kind, Result, ScanRange, Store, Ticket, ValueGuard, WriteOptions,
};
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

/// How to create a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyspaceOptions {
    pub(crate) kind: Kind,
}

/// A handle of a keyspace. Cheap to clone; keeps the store open.
///
/// ```
/// use hither::{Durability, WriteOptions};
/// use std::time::Duration;
///
/// # let db = hither::Db::builder().in_memory().open()?;
/// let sessions = db.keyspace("sessions")?;
/// sessions.put_with(b"s1", b"alice", &WriteOptions::new().ttl(Duration::from_secs(1800)))?.wait()?;
/// assert!(sessions.compare_and_swap(b"s1", Some(b"alice"), Some(b"bob"))?); // and it no longer expires
/// sessions.update(b"visits", |old| Some([old.unwrap_or_default(), b"+"].concat()))?;
///
/// // Do not wait now: be called when it is durable.
/// let ticket = sessions.put_with(b"s2", b"carol", &WriteOptions::new().durability(Durability::Sync))?;
/// ticket.on_durable(|outcome| println!("s2: {outcome:?}"));
///
/// let all = sessions.range(&b"s"[..]..&b"t"[..])?.collect::<hither::Result<Vec<_>>>()?;
/// assert_eq!(all.len(), 2);
/// assert!(sessions.delete(b"s1")?);
/// assert_eq!(sessions.get(b"s1")?, None);
/// # Ok::<(), hither::Error>(())
/// ```
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) store: Arc<Store>,
    pub(crate) handle: KeyspaceHandle,
}

impl Keyspace {
    pub(crate) fn new(store: Arc<Store>, handle: KeyspaceHandle) -> Keyspace {
        Keyspace { store, handle }
    }

    /// Whether a store can hold this pair: for programs that want to know before they make one. O(1).
    ///
    /// # Errors
    /// [`Error::KeyEmpty`], [`Error::KeyTooLong`], [`Error::ValueTooLong`].
    pub fn check_pair(key: &[u8], value: &[u8]) -> Result<()> {
        hither_engine::check_key(key).and_then(|()| hither_engine::check_value(value))
    }

    /// Whether a keyspace may have this name. O(length).
    ///
    /// # Errors
    /// [`Error::KeyspaceName`].
    pub fn check_name(name: &str) -> Result<()> {
        hither_engine::check_name(name)
    }

    /// Name, id and kind.
    pub fn info(&self) -> &KeyspaceInfo {
        self.handle.info()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.info().kind
    }

    /// Number of keys, expired ones that were not swept yet included. O(threads).
    pub fn len(&self) -> usize {
        self.handle.len()
    }

    /// Whether it holds no key; as [`Keyspace::len`] counts them.
    pub fn is_empty(&self) -> bool {
        self.handle.is_empty()
    }

    /// The value of `key`. O(1) for hash, O(log n) for ordered keyspaces; one dependent access to the medium.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Calls `f` with the value in place: no copy, no allocation.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    #[inline(always)]
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.store.get_with(&self.handle, key, f)
    }

    /// The value in place, kept there by the guard, which holds back the reuse of its segment only.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn get_pinned(&self, key: &[u8]) -> Result<Option<ValueGuard>> {
        self.store.get_pinned(&self.handle, key)
    }

    /// The value with its version, for [`crate::Batch::require_version`]. Each write of the key raises it. So may a collection, when 2³¹ writes of the store have gone by.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        self.store.get_versioned(&self.handle, key)
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    /// The values of many keys, in order; memory accesses overlap.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(keys.len());
        self.multi_get_with(keys, |_, value| values.push(value.map(<[u8]>::to_vec)))?;
        Ok(values)
    }

    /// Calls `f(i, value)` for each of `keys` in order, in place.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn multi_get_with<K: AsRef<[u8]>>(&self, keys: &[K], f: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.store.multi_get_with(&self.handle, keys, f)
    }

    /// Writes `key`; durable at the store's level when it returns.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.write_wait(&self.handle, key, Some(value)).map(drop)
    }

    /// Writes `key` and returns at once with a ticket that says when the write is durable. The write is visible at once (to readers
    /// that insist on durability: once it is durable). A ticket that is dropped takes nothing back.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn put_with(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Ticket> {
        let (_, _, ticket) = self.store.write(&self.handle, key, Some(value), Condition::None, options)?;
        Ok(ticket)
    }

    /// Removes `key`; true if it was there. Durable at the store's level when it returns.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.store.write_wait(&self.handle, key, None)
    }

    /// Removes `key` and returns at once; see [`Keyspace::put_with`].
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn delete_with(&self, key: &[u8], options: &WriteOptions) -> Result<(bool, Ticket)> {
        let (_, existed, ticket) = self.store.write(&self.handle, key, None, Condition::None, options)?;
        Ok((existed, ticket))
    }

    /// Writes `new` (`None`: removes the key) if the value is `expected` (`None`: if the key is absent). True if it did; durable at the store's
    /// level when it returns. What it writes does not expire.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn compare_and_swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        self.store.write_wait_if(&self.handle, key, new, Condition::Value(expected), 0)
    }

    /// Read-modify-write: replaces the value by what `f` makes of it (`None` removes the key) and returns the new value. When the key expires stays as it was. `f` may be
    /// called several times if other writers interfere; it runs without any lock held. Durable at the store's level when it returns.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn update(&self, key: &[u8], mut f: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        loop {
            let (current, rests_on) = self.peek_with(key, |value, found| (value.to_vec(), found))?;
            self.store.ticket_at(rests_on).wait()?;
            let new = f(current.as_ref().map(|(value, _)| value.as_slice()));
            let (version, expires_at_ms) = current.map_or((None, 0), |(_, found)| (Some(found.version), found.expires_at_ms));
            if self.store.write_wait_if(&self.handle, key, new.as_deref(), Condition::Version(version), expires_at_ms)? {
                return Ok(new);
            }
        }
    }

    /// All pairs: in key order for an ordered keyspace, in unspecified order for a hash keyspace (whose keys are collected first:
    /// O(n) memory). Not a snapshot: keys that change meanwhile appear in either state. For a consistent view see [`crate::Snapshot::iter`].
    pub fn iter(&self) -> Iter {
        match self.kind() {
            Kind::Hash => Iter::hash(self.source()),
            _ => Iter::ordered(self.source(), Bound::Unbounded, Bound::Unbounded),
        }
    }

    /// The pairs whose keys lie in `range`, in key order, from either end.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<Iter> {
        self.ensure_ordered()?;
        Ok(Iter::ordered(self.source(), owned(range.start_bound()), owned(range.end_bound())))
    }

    /// The pairs whose keys begin with `prefix`, in key order, from either end.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Iter> {
        self.ensure_ordered()?;
        Ok(Iter::ordered(self.source(), Bound::Included(prefix.to_vec()), prefix_end(prefix)))
    }

    /// Calls `f(key, value)` for the pairs between two bounds in order until it breaks: in place, without allocation per pair.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace; those of [reads](crate#errors).
    pub fn scan_with(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let direction = if reverse { Direction::Backward } else { Direction::Forward };
        self.store.scan(&self.handle, &ScanRange { from, to, direction, expect: usize::MAX }, f)
    }

    /// As [`Keyspace::scan_with`], but for the first `limit` pairs; returns for how many `f` was called. Nothing behind them is loaded, which makes short scans cheaper than those that break.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace; those of [reads](crate#errors).
    pub fn scan_first(
        &self,
        limit: usize,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<usize> {
        self.ensure_ordered()?;
        if limit == 0 {
            return Ok(0);
        }
        let mut seen = 0;
        let direction = if reverse { Direction::Backward } else { Direction::Forward };
        self.store.scan(&self.handle, &ScanRange { from, to, direction, expect: limit }, |key, value| {
            seen += 1;
            let flow = f(key, value);
            if seen < limit { flow } else { ControlFlow::Break(()) }
        })?;
        Ok(seen)
    }

    pub(crate) fn ensure_ordered(&self) -> Result<()> {
        if self.kind() == Kind::Ordered { Ok(()) } else { Err(Error::NotOrdered(self.name().to_owned())) }
    }

    fn source(&self) -> Source {
        Source { store: self.store.clone(), handle: self.handle.clone(), snapshot: None }
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.name()).field("kind", &self.kind()).finish_non_exhaustive()
    }
}

pub(crate) fn owned(bound: Bound<&&[u8]>) -> Bound<Vec<u8>> {
    bound.map(|key| key.to_vec())
}

/// The end of the keys that begin with `prefix`: the prefix with its last byte that is not 0xff raised by one.
pub(crate) fn prefix_end(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ends() {
        assert_eq!(prefix_end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), Bound::Unbounded);
        assert_eq!(prefix_end(b""), Bound::Unbounded);
    }
}
