//! A keyspace: a named map of byte strings.

use crate::batch::Batch;
use crate::iter::{Entry, Iter, Source, borrowed};
use hither_engine::{
    Condition, Direction, Error, ErrorKind, KeyspaceHandle, KeyspaceInfo, Kind, Result, ScanRange, Store, Ticket, ValueGuard, WriteOptions,
};
use std::cell::Cell;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

/// Most keys, and bytes of keys, that one batch of a deletion of many keys removes.
const DELETES_AT_ONCE: usize = 1 << 10;
const DELETED_BYTES_AT_ONCE: usize = 1 << 20;

/// Options of a keyspace to be created: its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyspaceOptions {
    pub(crate) kind: Kind,
}

/// A handle of a keyspace. Cheap to clone or share between threads. Keeps the store open.
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

    /// Checks whether a store can hold this pair, for programs that want to know before they create one. O(1).
    ///
    /// # Errors
    /// [`Error::KeyEmpty`], [`Error::KeyTooLong`], [`Error::ValueTooLong`].
    pub fn check_pair(key: &[u8], value: &[u8]) -> Result<()> {
        hither_engine::check_key(key).and_then(|()| hither_engine::check_value(value))
    }

    /// Checks whether a keyspace may have this name. O(length).
    ///
    /// # Errors
    /// [`Error::KeyspaceName`].
    pub fn check_name(name: &str) -> Result<()> {
        hither_engine::check_name(name)
    }

    /// The keyspace's name, id and kind.
    pub fn info(&self) -> &KeyspaceInfo {
        self.handle.info()
    }

    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// The keyspace's kind.
    pub fn kind(&self) -> Kind {
        self.info().kind
    }

    /// Number of keys, including expired ones that are not swept yet. O(threads).
    pub fn len(&self) -> usize {
        self.handle.len()
    }

    /// Whether the keyspace holds no key, by the count of [`Keyspace::len`].
    pub fn is_empty(&self) -> bool {
        self.handle.is_empty()
    }

    /// Returns the value of `key`. O(1) for a hash keyspace, O(log n) for an ordered one; one dependent access to the
    /// medium.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Calls `f` with the value of `key` in place: no copy, no allocation.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    #[inline(always)]
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.store.get_with(&self.handle, key, f)
    }

    /// Returns a guard that keeps the value of `key` in place. It holds back the reuse of the value's segment only.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn get_pinned(&self, key: &[u8]) -> Result<Option<ValueGuard>> {
        self.store.get_pinned(&self.handle, key)
    }

    /// Returns the value of `key` and its version, for [`crate::Batch::require_version`].
    ///
    /// Each write of the key raises the version. After 2³¹ versions a collection may raise it, too. Each write of the
    /// store uses one version, and up to 64 more where many threads write the same keys or each write waits for a sync
    /// of its own.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        self.store.get_versioned(&self.handle, key)
    }

    /// Returns the value of `key` and the time when it expires.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn get_entry(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.store.get_expiring(&self.handle, key, |value, expires_at_ms| Entry::copied(key, value, expires_at_ms))
    }

    /// Whether `key` exists.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    /// Returns the values of many keys, in the order of `keys`; memory accesses overlap. Each key is read by itself:
    /// for a consistent view see [`crate::Snapshot::multi_get`].
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(keys.len());
        self.multi_get_with(keys, |_, value| values.push(value.map(<[u8]>::to_vec)))?;
        Ok(values)
    }

    /// Calls `f(i, value)` with the value of each of `keys` in place, in their order.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn multi_get_with<K: AsRef<[u8]>>(&self, keys: &[K], f: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.store.multi_get_with(&self.handle, keys, f)
    }

    /// Writes `key`. The write is durable at the store's level when this returns.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.write_wait(&self.handle, key, Some(value)).map(drop)
    }

    /// Starts a write of `key` and returns a [`Ticket`] without waiting for durability.
    ///
    /// The write is visible at once. A read that must not return data that could still be lost waits until it is
    /// durable. The ticket reports when it is, at the level of the write: that of a write at
    /// [`crate::Durability::Process`] is complete at once. Dropping the ticket does not undo the write.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn put_with(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Ticket> {
        let (_, _, ticket) = self.store.write(&self.handle, key, Some(value), Condition::None, options)?;
        Ok(ticket)
    }

    /// Removes `key` and returns whether it existed. The delete is durable at the store's level when this returns.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.store.write_wait(&self.handle, key, None)
    }

    /// Starts a delete of `key` and returns whether it existed and a [`Ticket`], without waiting for durability.
    ///
    /// See [`Keyspace::put_with`]. If the key was absent, this may wait until its absence is durable
    /// ([`Keyspace::write_deferred`] never waits).
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn delete_with(&self, key: &[u8], options: &WriteOptions) -> Result<(bool, Ticket)> {
        let (_, existed, ticket) = self.store.write(&self.handle, key, None, Condition::None, options)?;
        Ok((existed, ticket))
    }

    /// Writes `new` (`None`: removes the key) if the current value is `expected` (`None`: if the key is absent).
    /// Returns whether it did. The write is durable at the store's level when this returns. The new value does not
    /// expire.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn compare_and_swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        self.store.write_wait_if(&self.handle, key, new, Condition::Value(expected))
    }

    /// Starts a compare-and-swap and returns its outcome and a [`Ticket`], without waiting for the write to be durable.
    ///
    /// As [`Keyspace::compare_and_swap`], with options; see [`Keyspace::put_with`]. If it writes nothing, this may wait
    /// until the data that it saw is durable ([`Keyspace::write_if_deferred`] never waits).
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn compare_and_swap_with(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: &WriteOptions,
    ) -> Result<(bool, Ticket)> {
        let (swapped, _, ticket) = self.store.write(&self.handle, key, new, Condition::Value(expected), options)?;
        Ok((swapped, ticket))
    }

    /// Removes the keys in `range`. Returns for how many keys it made a delete; others may have removed some of them
    /// first. O(keys), in little memory. To remove all keys of a keyspace at once, drop it
    /// ([`crate::Db::drop_keyspace`]).
    ///
    /// The deletes are durable at the store's level when this returns. They are not one batch: keys go in order, about
    /// a thousand at a time. A crash may leave some of them, and keys that others put there meanwhile may stay.
    ///
    /// ```
    /// # let db = hither::Db::builder().in_memory().open()?;
    /// let events = db.keyspace("events")?;
    /// (0..100u32).try_for_each(|day| events.put(&day.to_be_bytes(), b"what happened"))?;
    /// assert_eq!(events.delete_range(..&30u32.to_be_bytes()[..])?, 30);
    /// assert_eq!(events.len(), 70);
    /// # Ok::<(), hither::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace; those of [writes](crate#errors), after which some of the keys may be
    /// gone.
    pub fn delete_range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<u64> {
        self.delete_between(owned(range.start_bound()), &owned(range.end_bound()))
    }

    /// Removes the keys that begin with `prefix`, as [`Keyspace::delete_range`] does.
    ///
    /// # Errors
    /// See [`Keyspace::delete_range`].
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<u64> {
        self.delete_between(Bound::Included(prefix.to_vec()), &prefix_end(prefix))
    }

    fn delete_between(&self, mut from: Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> Result<u64> {
        let (mut deleted, mut rests_on, [mut most, mut limit]) = (0, 0, [DELETES_AT_ONCE; 2]);
        // Keys that others append behind it meanwhile do not count, or the loop might never end.
        let Some(newest) = self.last_between(&from, to)? else { return Ok(0) };
        loop {
            let (mut batch, mut last) = (Batch::new(self.store.clone()), Vec::new());
            let seen = self.scan_deferred(borrowed(&from), Bound::Included(&newest), false, |key, _, _| {
                last.clear();
                last.extend_from_slice(key);
                batch.delete(self, key);
                let is_full = batch.len() >= most || batch.bytes() >= DELETED_BYTES_AT_ONCE;
                if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            rests_on = seen.max(rests_on);
            if batch.is_empty() {
                self.store.wait_until_durable(rests_on)?;
                return Ok(deleted);
            }
            match batch.commit_deferred(&WriteOptions::new()) {
                // A full store has room for only a few deletes at a time.
                Err(error) if batch.len() > 1 && (error.kind().is_lack_of_space() || error.kind() == ErrorKind::TooLarge) => {
                    (most, limit) = (1, batch.len() / 2);
                }
                done => {
                    rests_on = done?.rests_on.max(rests_on);
                    deleted += batch.len() as u64;
                    from = Bound::Excluded(last);
                    most = (2 * most).min(limit);
                }
            }
        }
    }

    /// The last key between two bounds. If it returns `None`, that is durable.
    fn last_between(&self, from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        let mut last = None;
        self.scan_first(1, borrowed(from), borrowed(to), true, |key, _| {
            last = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        Ok(last)
    }

    /// Calls `f(key, value)` for each pair, in place, until it breaks. Pairs come in key order for an ordered keyspace,
    /// and in unspecified order for a hash keyspace, where this takes no memory for the keys, unlike
    /// [`Keyspace::iter`].
    ///
    /// Not a snapshot: keys that change meanwhile appear in either state. A key of a hash keyspace that is deleted and
    /// put again meanwhile may come twice. `f` runs within a read, see [thread safety](crate#thread-safety).
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    pub fn for_each(&self, f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.store.for_each(&self.handle, f)
    }

    /// Returns an iterator over all pairs: in key order for an ordered keyspace, in unspecified order for a hash
    /// keyspace. It first collects the keys of a hash keyspace, in O(n) memory; [`Keyspace::for_each`] does not.
    ///
    /// Not a snapshot: keys that change meanwhile appear in either state. A key of a hash keyspace that is deleted and
    /// put again meanwhile may come twice. For a consistent view see [`crate::Snapshot::iter`].
    pub fn iter(&self) -> Iter {
        match self.kind() {
            Kind::Hash => Iter::hash(self.source()),
            _ => Iter::ordered(self.source(), Bound::Unbounded, Bound::Unbounded),
        }
    }

    /// Returns an iterator over the pairs whose keys lie in `range`, in key order, from either end.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<Iter> {
        self.ensure_ordered()?;
        Ok(Iter::ordered(self.source(), owned(range.start_bound()), owned(range.end_bound())))
    }

    /// Returns an iterator over the pairs whose keys begin with `prefix`, in key order, from either end.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Iter> {
        self.ensure_ordered()?;
        Ok(Iter::ordered(self.source(), Bound::Included(prefix.to_vec()), prefix_end(prefix)))
    }

    /// Calls `f(key, value)` for the pairs between two bounds, in order, until it breaks. Pairs are read in place,
    /// without an allocation per pair.
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
        self.store.scan(&self.handle, &range_of(from, to, reverse, usize::MAX), f)
    }

    /// As [`Keyspace::scan_with`], but for the first `limit` pairs. Returns how often it called `f`. It loads nothing
    /// behind these pairs, so short scans are cheaper than with a closure that breaks.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for a hash keyspace; those of [reads](crate#errors).
    pub fn scan_first(
        &self,
        limit: usize,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<usize> {
        self.ensure_ordered()?;
        let seen = Cell::new(0);
        if limit > 0 {
            self.store.scan(&self.handle, &range_of(from, to, reverse, limit), first_of(limit, &seen, f))?;
        }
        Ok(seen.get())
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

/// The range of a scan that expects to visit `expect` pairs.
pub(crate) fn range_of<'k>(from: Bound<&'k [u8]>, to: Bound<&'k [u8]>, reverse: bool, expect: usize) -> ScanRange<'k> {
    ScanRange { from, to, direction: if reverse { Direction::Backward } else { Direction::Forward }, expect }
}

/// Wraps `f` so that it breaks after `limit` pairs (at least one), and counts the pairs in `seen`.
#[inline(always)]
pub(crate) fn first_of<'a>(
    limit: usize,
    seen: &'a Cell<usize>,
    mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a,
) -> impl FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a {
    move |key, value| {
        seen.set(seen.get() + 1);
        let flow = f(key, value);
        if seen.get() < limit { flow } else { ControlFlow::Break(()) }
    }
}

/// The first key behind all keys that begin with `prefix`. `None` if there is no such key, because every byte of the
/// prefix is 0xff. O(length).
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The upper bound of the keys that begin with `prefix`.
pub(crate) fn prefix_end(prefix: &[u8]) -> Bound<Vec<u8>> {
    after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded)
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
