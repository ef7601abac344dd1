//! Operations that never wait for durability: see "Operations that do not wait" in the documentation of the crate.

use crate::batch::Batch;
use crate::db::Db;
use crate::keyspace::{Keyspace, range_of};
use hither_engine::{Condition, Deferred, Found, Result, Ticket, WriteOptions};
use std::ops::{Bound, ControlFlow};

impl Keyspace {
    /// Starts to load the data that operations on these keys will touch, so that their cache misses overlap. A hint: it
    /// changes nothing and promises nothing. O(keys); takes as long as [`Keyspace::multi_get`] without the values.
    #[inline]
    pub fn prefetch<K: AsRef<[u8]>>(&self, keys: &[K]) {
        self.store.prefetch(&self.handle, keys);
    }

    /// Calls `f` with the value of `key` in place. Also returns the version that the answer [rests
    /// on](crate#operations-that-do-not-wait). `f` must be short.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    #[inline]
    pub fn peek_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8], Found) -> R) -> Result<(Option<R>, u64)> {
        self.store.peek_with(&self.handle, key, f)
    }

    /// Calls `f(key, value, found)` for the pairs between two bounds, in order, until it breaks. Returns the version
    /// that the result [rests on](crate#operations-that-do-not-wait).
    ///
    /// # Errors
    /// [`crate::Error::NotOrdered`] for a hash keyspace; those of [reads](crate#errors).
    pub fn scan_deferred(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8], Found) -> ControlFlow<()>,
    ) -> Result<u64> {
        self.store.scan_deferred(&self.handle, &range_of(from, to, reverse, usize::MAX), f)
    }

    /// As [`Keyspace::scan_deferred`], but also calls `f(key, None)` for keys that it passes over because they have
    /// expired and were not removed yet. There may be many of them in a row, over which `f` can end the scan.
    ///
    /// # Errors
    /// See [`Keyspace::scan_deferred`].
    pub fn scan_deferred_with_expired(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], Option<(&[u8], Found)>) -> ControlFlow<()>,
    ) -> Result<u64> {
        self.store.scan_with_expired(&self.handle, &range_of(from, to, reverse, usize::MAX), f)
    }

    /// Writes `key`, or removes it if `value` is `None`, [without waiting](crate#operations-that-do-not-wait).
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn write_deferred(&self, key: &[u8], value: Option<&[u8]>, options: &WriteOptions) -> Result<Deferred> {
        self.store.write_deferred(&self.handle, key, value, Condition::None, options)
    }

    /// Writes `key`, or removes it if `value` is `None`, provided that the key has this version (`None`: that it is
    /// absent). [Does not wait](crate#operations-that-do-not-wait).
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn write_if_deferred(&self, key: &[u8], value: Option<&[u8]>, version: Option<u64>, options: &WriteOptions) -> Result<Deferred> {
        self.store.write_deferred(&self.handle, key, value, Condition::Version(version), options)
    }
}

impl Batch {
    /// Applies the batch if its preconditions hold, [without waiting](crate#operations-that-do-not-wait). A batch
    /// without writes only reports whether they hold.
    ///
    /// # Errors
    /// See [`Batch::commit`], except [`crate::Error::PreconditionFailed`]: [`Deferred::applied`] reports that instead.
    pub fn commit_deferred(&self, options: &WriteOptions) -> Result<Deferred> {
        self.ensure_own()?;
        self.store.commit_deferred(&self.inner, options)
    }
}

impl Db {
    /// The durable version: everything at or below it is durable. O(1); never waits.
    ///
    /// Do not poll it in a loop: only syncs raise it. On a medium that needs no sync (persistent memory, memory),
    /// writes are durable although nothing raises it. To wait, use a [ticket](Db::ticket_at).
    pub fn durable_version(&self) -> u64 {
        self.store.durable_version()
    }

    /// A version at or above that of every write made so far, at whatever level, for [`Db::ticket_at`]. Waits for
    /// writes under way, but for no sync. O(threads).
    pub fn written_version(&self) -> u64 {
        self.store.written_version()
    }

    /// Returns a ticket for everything written so far that rests on `version` or a lower one.
    pub fn ticket_at(&self, version: u64) -> Ticket {
        self.store.ticket_at(version)
    }
}
