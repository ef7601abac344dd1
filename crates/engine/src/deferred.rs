//! Operations that never wait for durability: for servers, where a thread that sleeps in a sync would hold up all its connections.
//!
//! Each says what it *rests on*: the version that must be durable before its outcome may be told to anyone who expects what is told to survive
//! (`docs/durability.md`). 0 means that it may be told at once. [`Store::ticket_at`] turns the largest such version of many operations into one ticket.
//!
//! What an operation rests on covers all that it saw: for a write its own version (the watermark moves in version order, so what it overwrote is
//! durable with it), for a read the entry's version, for what was absent the last delete under the key's latch.
//!
//! # Batches are seen whole
//!
//! A batch is installed key by key. Whoever has seen one member by [`Store::peek_with`] or [`Store::scan_deferred`] sees every member, or what came after it,
//! in all later operations: a lookup that meets a member waits until its latch is free, which is so only once the whole batch is installed,
//! since a batch holds all of its latches until then. The same goes for a key that is absent, by a batch's delete perhaps. (Copies that a
//! collector made have no tag: it starts from what is settled, thus installed.) An entry that is no batch's pays for a test of a bit.
//! A scan waits for what it finds, not for what it does not find. The wait is as long as an installation, or as the writer is preempted in one or opens a segment; a
//! holder of latches waits for no reader. Keys that have expired are waited for in the same way, by all reads ([`Core::after_expired`]).
//!
//! Where the thread that commits could not be started, whoever asks for a commit makes it, and does wait.

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

/// References that a scan takes at once.
const GROUP: usize = 64;

/// What is known of an entry besides its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Its version, for conditions.
    pub version: u64,
    /// When it expires, in milliseconds since 1970; 0: never.
    pub expires_at_ms: u64,
}

/// What came of a write that waits for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deferred {
    /// Whether its conditions held, so that it was made.
    pub applied: bool,
    /// Whether the key was there before; of a batch always false.
    pub existed: bool,
    /// The version that must be durable before the outcome may be told to anyone who takes what is told for durable; 0: it may be told at once. A ticket at this version or a higher one
    /// (`Db::ticket_at`) waits for it.
    pub rests_on: u64,
}

impl Store {
    /// Calls `f` with the value of `key` in place, and gives what the answer rests on. `f` runs under an epoch pin.
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

    /// Calls `f(key, value, found)` for the keys in `range` in order until it breaks, and gives what that rests on. `f` runs under an epoch pin.
    ///
    /// # Errors
    /// [`crate::Error::NotOrdered`] for a hash keyspace.
    pub fn scan_deferred(
        &self,
        keyspace: &KeyspaceHandle,
        range: &ScanRange<'_>,
        mut f: impl FnMut(&[u8], &[u8], Found) -> ControlFlow<()>,
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
        // Whatever was found absent was deleted before now.
        let delete = keyspace.0.last_delete.load(std::sync::atomic::Ordering::Acquire);
        Ok(core.observed(newest.max(delete)))
    }

    /// Writes as [`Store::write`] does, and waits for nothing.
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

    /// Applies `batch` if all its preconditions hold, and waits for nothing. A batch without writes only says whether they hold.
    pub fn commit_deferred(&self, batch: &Batch, options: &WriteOptions) -> Result<Deferred> {
        batch.validate()?;
        let level = options.durability.unwrap_or(self.core.durability);
        let written = self.core.commit_unsettled(batch, level, self.core.expiry_ms(options))?;
        let deferred = self.core.deferred(written, level);
        let rests_on = deferred.rests_on.max(self.core.rests_on_conditions(batch, written, level));
        Ok(Deferred { rests_on, ..deferred })
    }

    /// Everything at or below this version is durable. Without a wait, and exact only where something can rest on a version.
    pub fn durable_version(&self) -> u64 {
        self.core.committer.durable()
    }

    /// A version at or above all that was written so far, whatever its level, and below all that is written later. Waits for writers under way; O(threads).
    pub fn written_version(&self) -> u64 {
        self.core.log.clock.stable()
    }

    /// A ticket for everything written so far that rests on `version`; a commit is under way or asked for when this returns.
    pub fn ticket_at(&self, version: u64) -> Ticket {
        // One that was never given out stands for all that were.
        let version = version.min(self.core.log.clock.upper_bound() - 1);
        if version <= self.core.committer.durable() {
            return Ticket::durable(version);
        }
        self.core.committer.request(&self.core.log, version);
        Ticket::pending(&self.core, version)
    }

    /// Waits until what rests on `version` is durable, by a commit of its own if none is under way: as [`Store::ticket_at`], but for who waits at once.
    pub fn wait_until_durable(&self, version: u64) -> Result<()> {
        let version = version.min(self.core.log.clock.upper_bound() - 1);
        self.core.committer.commit(&self.core.log, version)
    }
}

impl Core {
    /// What an operation that saw this version rests on.
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
            // Nobody may ever wait for it.
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

    /// The entry behind a verified reference; of a batch once that is installed.
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
        f: &mut impl FnMut(&[u8], &[u8], Found) -> ControlFlow<()>,
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
                    return Ok(f(entry.key, entry.value, found));
                }
                match self.after_expired(keyspace, hashed(entry.key), reference) {
                    Some(other) if other.is_some() => reference = other,
                    _ => return Ok(ControlFlow::Continue(())),
                }
            }
        })
    }
}
