//! Operations that never wait for durability. They are for servers, where a thread that sleeps in a sync would hold up
//! all its connections.
//!
//! Each operation returns the version that it *rests on*. Until that version is durable, its outcome must not be
//! reported to anyone who expects what is reported to survive (`docs/durability.md`). 0 means that it may be reported
//! at once. [`Store::ticket_at`] turns the largest such version of many operations into one ticket.
//!
//! The version covers everything that the operation saw. For a write it is the write's own version: the watermark moves
//! in version order, so what the write replaced is durable with it. For a read it is the entry's version, and for an
//! absent key the last delete under the key's latch.
//!
//! # Batches are seen whole
//!
//! A batch is installed key by key. A client that has seen one member by [`Store::peek_with`] or
//! [`Store::scan_deferred`] sees every member, or what came after it, in all later operations. The reason is that a
//! lookup that meets a member waits until its latch is free, and a batch holds all of its latches until it is installed
//! as a whole. The same holds for a key that is absent, perhaps by a batch's delete. Copies that a collector made have
//! no batch tag: a collector copies only what is settled, and so installed. An entry without a tag costs the test of a
//! bit.
//!
//! A scan waits for what it finds, not for what it does not find. The wait lasts as long as the installation, including
//! the time in which the writer is preempted in it or opens a segment. A holder of latches waits for no reader. All
//! reads wait in the same way for keys that they find expired ([`Core::after_expired`]).
//!
//! If the thread that commits could not be started, a thread that asks for a commit makes it itself, and does wait.
//!
//! Thread safety: any number of threads. Crash: as for the operations that wait; an outcome that rests on a version
//! that is not durable may be lost.

use crate::batch::Batch;
use crate::commit::Ticket;
use crate::error::Result;
use crate::keyspace::{Keyspace, KeyspaceHandle, with_index};
use crate::options::{Durability, WriteOptions};
use crate::scan::{Direction, Part, ScanRange};
use crate::store::{Core, Store};
use crate::write::{Condition, Written, check_key};
use hither_index::{Index, Key, Ref, Start};
use hither_log::EntryView;
use hither_sync::epoch;
use std::ops::{Bound, ControlFlow};

/// Number of references that a scan takes at once.
const GROUP: usize = 64;

/// What is known of an entry besides its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Version of the entry, for conditions.
    pub version: u64,
    /// When the entry expires, in milliseconds since 1970; 0: never.
    pub expires_at_ms: u64,
}

/// Outcome of a write that waits for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deferred {
    /// Whether the conditions held, so that the write was made.
    pub applied: bool,
    /// Whether the key was there before; always false for a batch.
    pub existed: bool,
    /// The version that must be durable before the outcome may be reported to anyone who takes what is reported for
    /// durable; 0: it may be reported at once. A ticket at this version or a higher one (`Db::ticket_at`) waits for it.
    pub rests_on: u64,
}

impl Store {
    /// Calls `f` with the value of `key` in place, and returns what the answer rests on. `f` runs under an epoch pin.
    pub fn peek_with<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8], Found) -> R) -> Result<(Option<R>, u64)> {
        check_key(key)?;
        let core = &*self.core;
        let key = core.hasher.key(key);
        let _pin = epoch::pin();
        keyspace.0.ensure_usable()?;
        let mut found = with_index!(keyspace.0, index => index.get(key, &core.resolver()));
        loop {
            if found.is_none() {
                core.ensure_absent(&keyspace.0, key)?;
                core.latches.wait_until_free(core.latches.stripe_of(key.hash));
                let rests_on = if core.committer.reads_check() { core.latches.last_delete(core.latches.stripe_of(key.hash)) } else { 0 };
                return Ok((None, core.unless_durable(rests_on)));
            }
            let (entry, what) = core.describe(found, |_| key)?;
            if !core.is_expired(what.expires_at_ms) {
                return Ok((Some(f(entry.value, what)), core.observed(what.version)));
            }
            match core.after_expired(&keyspace.0, key, found) {
                Some(other) => found = other,
                None => return Ok((None, core.observed(what.version))),
            }
        }
    }

    /// Calls `f(key, value, found)` for the keys in `range`, in order, until it breaks. Returns what the result rests
    /// on. `f` runs under an epoch pin.
    ///
    /// # Errors
    /// [`crate::Error::NotOrdered`] for a hash keyspace.
    pub fn scan_deferred(
        &self,
        keyspace: &KeyspaceHandle,
        range: &ScanRange<'_>,
        mut f: impl FnMut(&[u8], &[u8], Found) -> ControlFlow<()>,
    ) -> Result<u64> {
        self.scan_with_expired(keyspace, range, |key, there| match there {
            Some((value, found)) => f(key, value, found),
            None => ControlFlow::Continue(()),
        })
    }

    /// As [`Store::scan_deferred`], but also calls `f(key, None)` for keys that it passes over because they have
    /// expired, so that `f` can end a scan over many of them.
    pub fn scan_with_expired(
        &self,
        keyspace: &KeyspaceHandle,
        range: &ScanRange<'_>,
        mut f: impl FnMut(&[u8], Option<(&[u8], Found)>) -> ControlFlow<()>,
    ) -> Result<u64> {
        let core = &*self.core;
        keyspace.0.ensure_ordered()?;
        if range.is_empty() {
            return Ok(0);
        }
        let backward = range.direction == Direction::Backward;
        let (mut newest, mut after, mut refs) = (0, None::<Vec<u8>>, Vec::with_capacity(GROUP));
        loop {
            let _pin = epoch::pin();
            keyspace.0.ensure_usable()?;
            refs.clear();
            let start = match (&after, range.start()) {
                (Some(key), _) => Start::After(key),
                (None, Bound::Included(key)) => Start::At(key),
                (None, Bound::Excluded(key)) => Start::After(key),
                (None, Bound::Unbounded) => Start::Edge,
            };
            keyspace.0.scan(start, backward, GROUP, &mut refs, &core.resolver());
            let flow = core.visit_deferred(&keyspace.0, &refs, range, &mut newest, &mut f)?;
            if refs.len() < GROUP || flow.is_break() {
                break;
            }
            after = refs.last().map(|last| core.log.key(last.0).to_vec());
        }
        // Deletes of all keys that were found absent were noted before now.
        let delete = keyspace.0.last_delete.load(std::sync::atomic::Ordering::Acquire);
        Ok(core.observed(newest.max(delete)))
    }

    /// As [`Store::write`], but waits for nothing.
    pub fn write_deferred(
        &self,
        keyspace: &KeyspaceHandle,
        key: &[u8],
        value: Option<&[u8]>,
        condition: Condition<'_>,
        options: &WriteOptions,
    ) -> Result<Deferred> {
        let (written, level) = self.write_as(keyspace, key, value, condition, options)?;
        Ok(self.core.deferred(written, level))
    }

    /// Applies `batch` if all its preconditions hold, and waits for nothing. A batch without writes only reports
    /// whether they hold.
    pub fn commit_deferred(&self, batch: &Batch, options: &WriteOptions) -> Result<Deferred> {
        batch.validate()?;
        let level = options.durability.unwrap_or(self.core.durability);
        let written = self.core.commit_unsettled(batch, level, self.core.expiry_ms(options))?;
        let deferred = self.core.deferred(written, level);
        let rests_on = deferred.rests_on.max(self.core.rests_on_conditions(batch, written, level));
        Ok(Deferred { rests_on, ..deferred })
    }

    /// The durable version: everything at or below it is durable. Never waits. Exact only where an outcome can rest on
    /// a version.
    pub fn durable_version(&self) -> u64 {
        self.core.committer.durable()
    }

    /// A version at or above that of everything written so far, at whatever level, and below that of everything written
    /// later. Waits for writers under way. O(threads).
    pub fn written_version(&self) -> u64 {
        self.core.log.clock.stable()
    }

    /// Returns a ticket for everything written so far that rests on `version`. When it returns, a commit is under way
    /// or asked for.
    pub fn ticket_at(&self, version: u64) -> Ticket {
        // A version that was never given out stands for all that were.
        let version = version.min(self.core.log.clock.upper_bound() - 1);
        if version <= self.core.committer.durable() {
            return Ticket::durable(version);
        }
        self.core.committer.request(&self.core.log, version);
        Ticket::pending(&self.core, version)
    }

    /// Waits until what rests on `version` is durable. Makes a commit if none is under way. As [`Store::ticket_at`],
    /// for a caller that waits at once.
    pub fn wait_until_durable(&self, version: u64) -> Result<()> {
        let version = version.min(self.core.log.clock.upper_bound() - 1);
        self.core.committer.commit(&self.core.log, version)
    }
}

impl Core {
    /// The version that an operation rests on that saw `version`.
    fn observed(&self, version: u64) -> u64 {
        if self.committer.reads_check() { self.unless_durable(version) } else { 0 }
    }

    fn unless_durable(&self, version: u64) -> u64 {
        if self.durability == Durability::Sync && version > self.committer.durable() { version } else { 0 }
    }

    fn deferred(&self, written: Written, level: Durability) -> Deferred {
        let made = written.version();
        let rests_on = match level {
            Durability::Sync if made != 0 && self.needs_sync => made,
            // It may be that nobody ever waits for it.
            Durability::Interval(_) if made != 0 && (self.needs_sync || self.log.needs_flush()) => {
                if !self.commits_in_time(level) {
                    self.committer.request(&self.log, made);
                }
                0
            }
            _ => self.rests_on_observed(written, level),
        };
        Deferred { applied: written.applied(), existed: written.existed(), rests_on }
    }

    /// Returns the entry behind a verified reference. If it belongs to a batch, waits until the batch is installed.
    #[inline(always)]
    fn describe<'a>(&'a self, found: Ref, key: impl FnOnce(&'a [u8]) -> Key<'a>) -> Result<(EntryView<'a>, Found)> {
        self.ensure_whole(found)?;
        let entry = self.log.entry(found.0);
        if entry.batch().is_some() {
            self.latches.wait_until_free(self.latches.stripe_of(key(entry.key).hash));
        }
        let what = Found { version: self.log.version_of(found.0, &entry), expires_at_ms: entry.expiry_ms() };
        Ok((entry, what))
    }

    fn visit_deferred(
        &self,
        keyspace: &Keyspace,
        refs: &[Ref],
        range: &ScanRange<'_>,
        newest: &mut u64,
        f: &mut impl FnMut(&[u8], Option<(&[u8], Found)>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.visit_ahead(refs, Part::Whole, |mut reference| {
            let hashed = |key| self.hasher.key(key);
            loop {
                let (entry, found) = self.describe(reference, hashed)?;
                if range.is_past_end(entry.key) {
                    return Ok(ControlFlow::Break(()));
                }
                *newest = found.version.max(*newest);
                if !self.is_expired(found.expires_at_ms) {
                    return Ok(f(entry.key, Some((entry.value, found))));
                }
                match self.after_expired(keyspace, hashed(entry.key), reference) {
                    Some(other) if other.is_some() => reference = other,
                    _ => return Ok(f(entry.key, None)),
                }
            }
        })
    }
}
