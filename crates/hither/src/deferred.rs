//! Operations that never wait for durability: for servers, whose threads must not sleep in a sync.
//!
//! The outcome of each names the version that it *rests on*; 0 means that it may be told at once. Before that version is durable
//! ([`Db::durable_version`], [`Db::ticket_at`]) the outcome may not be told to anyone who takes what is told for durable. The other operations
//! of this library do the same by waiting.

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

    /// Calls `f` with the value of `key` in place; also gives what the answer rests on. `f` must be short.
    ///
    /// # Errors
    /// Those of [reads](crate#errors).
    #[inline]
    pub fn peek_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8], Found) -> R) -> Result<(Option<R>, u64)> {
        self.store.peek_with(&self.handle, key, f)
    }

    /// Calls `f(key, value, found)` for the pairs between two bounds in order until it breaks; gives what that rests on.
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

    /// Writes `key`, or removes it if there is no `value`.
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn write_deferred(&self, key: &[u8], value: Option<&[u8]>, options: &WriteOptions) -> Result<Deferred> {
        self.store.write_deferred(&self.handle, key, value, Condition::None, options)
    }

    /// Writes `key`, or removes it if there is no `value`, if its version is this (`None`: if it is absent).
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    #[inline]
    pub fn write_if_deferred(&self, key: &[u8], value: Option<&[u8]>, version: Option<u64>, options: &WriteOptions) -> Result<Deferred> {
        self.store.write_deferred(&self.handle, key, value, Condition::Version(version), options)
    }
}

impl Batch {
    /// Applies it if its preconditions hold. A batch without writes only says whether they hold.
    ///
    /// # Errors
    /// See [`Batch::commit`], but for [`crate::Error::PreconditionFailed`]: [`Deferred::applied`] says that.
    pub fn commit_deferred(&self, options: &WriteOptions) -> Result<Deferred> {
        self.ensure_own()?;
        self.store.commit_deferred(&self.inner, options)
    }
}

impl Db {
    /// Everything at or below this version is durable.
    pub fn durable_version(&self) -> u64 {
        self.store.durable_version()
    }

    /// A version that all writes made so far rest on or are below of, whatever their level, for [`Db::ticket_at`]. O(threads).
    pub fn written_version(&self) -> u64 {
        self.store.written_version()
    }

    /// A ticket for everything written so far that rests on `version` or a lower one.
    pub fn ticket_at(&self, version: u64) -> Ticket {
        self.store.ticket_at(version)
    }
}
