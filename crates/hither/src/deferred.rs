//! Operations that never wait for durability: see "Operations that do not wait" in the documentation of the crate.

use crate::batch::Batch;
use crate::db::Db;
use crate::keyspace::{Keyspace, range_of};
use hither_engine::{Condition, Deferred, Found, Result, Ticket, WriteOptions};
use std::ops::{Bound, ControlFlow};

impl Keyspace {
    /// Begins to load what operations on these keys are about to touch, so that the cache misses of one overlap with those of the others. Changes nothing, and
    /// promises nothing. O(keys); as long as [`Keyspace::multi_get`], without the values.
    #[inline]
    pub fn prefetch<K: AsRef<[u8]>>(&self, keys: &[K]) {
        self.store.prefetch(&self.handle, keys);
    }

    /// Calls `f` with the value of `key` in place; also gives the version that the answer [rests on](crate#operations-that-do-not-wait). `f` must be short.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    #[inline]
    pub fn peek_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8], Found) -> R) -> Result<(Option<R>, u64)> {
        self.store.peek_with(&self.handle, key, f)
    }

    /// Calls `f(key, value, found)` for the pairs between two bounds in order until it breaks; gives the version that it [rests on](crate#operations-that-do-not-wait).
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

    /// Writes `key`, or removes it if there is no `value`, [without a wait](crate#operations-that-do-not-wait).
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn write_deferred(&self, key: &[u8], value: Option<&[u8]>, options: &WriteOptions) -> Result<Deferred> {
        self.store.write_deferred(&self.handle, key, value, Condition::None, options)
    }

    /// Writes `key`, or removes it if there is no `value`, [without a wait](crate#operations-that-do-not-wait), if its version is this (`None`: if it is absent).
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn write_if_deferred(&self, key: &[u8], value: Option<&[u8]>, version: Option<u64>, options: &WriteOptions) -> Result<Deferred> {
        self.store.write_deferred(&self.handle, key, value, Condition::Version(version), options)
    }
}

impl Batch {
    /// Applies it if its preconditions hold, [without a wait](crate#operations-that-do-not-wait). A batch without writes only says whether they hold.
    ///
    /// # Errors
    /// See [`Batch::commit`], but for [`crate::Error::PreconditionFailed`]: [`Deferred::applied`] says that.
    pub fn commit_deferred(&self, options: &WriteOptions) -> Result<Deferred> {
        self.ensure_own()?;
        self.store.commit_deferred(&self.inner, options)
    }
}

impl Db {
    /// Everything at or below this version is durable. O(1), without a wait.
    ///
    /// Not to be waited for in a loop: it rises with syncs, and where the medium needs none (persistent memory, memory) writes are durable without anybody raising it. What waits is a
    /// [ticket](Db::ticket_at).
    pub fn durable_version(&self) -> u64 {
        self.store.durable_version()
    }

    /// A version that all writes made so far rest on or are below of, whatever their level, for [`Db::ticket_at`]. Waits for writes under way (for no sync). O(threads).
    pub fn written_version(&self) -> u64 {
        self.store.written_version()
    }

    /// A ticket for everything written so far that rests on `version` or a lower one.
    pub fn ticket_at(&self, version: u64) -> Ticket {
        self.store.ticket_at(version)
    }
}
