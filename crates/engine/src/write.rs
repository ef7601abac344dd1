//! The path of every single-key write.
//!
//! Order matters for speed (measured): prefetch bucket and latch, take the latch, locate the key, append the entry and start its
//! write-back. Only then, in the shadow of the flush, verify the old entry's key; one fence; install. No locked instruction lies between
//! flush and fence. The latch is held meanwhile: index and recovery must agree on the order of a key's writes. Crash: recovery weighs an
//! entry that was not installed by its version, so an unacknowledged write may have happened.

use crate::commit::Ticket;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, KeyspaceHandle, Kind, with_index};
use crate::options::{Durability, WriteOptions};
use crate::snapshot::Retained;
use crate::store::{Core, Store};
use hither_index::{Index, Key, Located, Ref, Resolver};
use hither_log::entry::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Parts};
use hither_log::{Append, Flush, Op};
use hither_sync::epoch;

/// What must hold for a write to happen.
#[derive(Clone, Copy, Debug)]
pub enum Condition<'a> {
    /// No condition.
    None,
    /// The key has this version, or (`None`) is absent.
    Version(Option<u64>),
    /// The key has this value, or (`None`) is absent.
    Value(Option<&'a [u8]>),
    /// The key has this version, whether it has expired or not: for the sweeper.
    #[doc(hidden)]
    Sweep(u64),
}

impl Condition<'_> {
    /// Whether the condition holds only for a key that is present.
    #[inline(always)]
    fn wants_presence(self) -> bool {
        matches!(self, Condition::Version(Some(_)) | Condition::Value(Some(_)))
    }
}

/// What a write did, in one word. Bit 0: the condition held; bit 1: the key was there before; bit 2: an entry was written. Above them:
/// the entry's version, or, if nothing was written, the last version under the key's latch.
///
/// One word, because it is returned right after the fence. A struct would go through memory and be copied with wide loads. These cannot
/// be forwarded from the narrow stores before them, and would hold up everything until the flush is done (measured: half of all time).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written(u64);

/// Outcome of an attempt. Errors are boxed, so that it fits into registers, for the same reason.
pub(crate) type Attempt<T> = Result<T, Box<Error>>;

impl Written {
    const APPLIED: u64 = 1;
    const EXISTED: u64 = 2;
    const WROTE: u64 = 4;
    const VERSION_SHIFT: u32 = 3;

    #[inline(always)]
    pub fn entry(version: u64, existed: bool) -> Written {
        Written((version << Self::VERSION_SHIFT) | Self::WROTE | Self::APPLIED | (u64::from(existed) * Self::EXISTED))
    }

    #[inline(always)]
    pub fn nothing(observed: u64, applied: bool, existed: bool) -> Written {
        Written((observed << Self::VERSION_SHIFT) | u64::from(applied) | (u64::from(existed) * Self::EXISTED))
    }

    /// Whether the condition held.
    #[inline(always)]
    pub fn applied(self) -> bool {
        self.0 & Self::APPLIED != 0
    }

    /// Whether the key was there before.
    #[inline(always)]
    pub fn existed(self) -> bool {
        self.0 & Self::EXISTED != 0
    }

    /// The version of the entry; 0 if nothing was written.
    #[inline(always)]
    pub fn version(self) -> u64 {
        if self.0 & Self::WROTE != 0 { self.0 >> Self::VERSION_SHIFT } else { 0 }
    }

    /// If nothing was written: the version that must be durable before the outcome may be reported.
    #[inline(always)]
    pub fn observed(self) -> u64 {
        if self.0 & Self::WROTE == 0 { self.0 >> Self::VERSION_SHIFT } else { 0 }
    }
}

/// A write before it is made.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub key: &'a [u8],
    /// `None` deletes.
    pub value: Option<&'a [u8]>,
    pub expiry_ms: u64,
    pub condition: Condition<'a>,
}

/// Whether a store can hold this key: 1 to 65,536 bytes.
///
/// # Errors
/// [`Error::KeyEmpty`], [`Error::KeyTooLong`].
#[inline(always)]
pub fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        1..=MAX_KEY_BYTES => Ok(()),
        0 => Err(Error::KeyEmpty),
        bytes => Err(Error::KeyTooLong { bytes }),
    }
}

/// Whether a store can hold this value: up to 512 MiB.
///
/// # Errors
/// [`Error::ValueTooLong`].
#[inline(always)]
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE_BYTES { Ok(()) } else { Err(Error::ValueTooLong { bytes: value.len() }) }
}

impl Store {
    /// Writes `key` if `condition` holds; `value` `None` deletes. Returns whether the condition held, whether the key was there, and a
    /// ticket for durability at the level asked for.
    pub fn write(
        &self,
        keyspace: &KeyspaceHandle,
        key: &[u8],
        value: Option<&[u8]>,
        condition: Condition<'_>,
        options: &WriteOptions,
    ) -> Result<(bool, bool, Ticket)> {
        let (written, level) = self.write_as(keyspace, key, value, condition, options)?;
        self.core.settle_observed(written, level)?;
        Ok((written.applied(), written.existed(), self.core.ticket(written.version(), level)))
    }

    /// Writes as the options say and returns the level of the write. Waiting for durability is left to the caller.
    pub(crate) fn write_as(
        &self,
        keyspace: &KeyspaceHandle,
        key: &[u8],
        value: Option<&[u8]>,
        condition: Condition<'_>,
        options: &WriteOptions,
    ) -> Result<(Written, Durability)> {
        let core = &*self.core;
        let level = options.durability.unwrap_or(core.durability);
        let expiry_ms = if value.is_some() { core.expiry_ms(options) } else { 0 };
        let written = core.write(&keyspace.0, &Change { key, value, expiry_ms, condition }, level).map_err(|error| *error)?;
        Ok((written, level))
    }

    /// The plain put and delete: writes at the store's level and waits if that promises durability. Returns whether the key was there.
    #[inline(always)]
    pub fn write_wait(&self, keyspace: &KeyspaceHandle, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        match self.core.write_lean(&keyspace.0, key, value) {
            Some(written) => Ok(written.existed()),
            None => self.write_anyhow_and_wait(keyspace, key, value),
        }
    }

    #[inline(never)]
    fn write_anyhow_and_wait(&self, keyspace: &KeyspaceHandle, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        let core = &self.core;
        let written = core.write_plain(&keyspace.0, key, value).map_err(|error| *error)?;
        core.settle_written(written)?;
        Ok(written.existed())
    }

    /// As [`Store::write_wait`] if `condition` holds. Returns whether it did.
    pub fn write_wait_if(&self, keyspace: &KeyspaceHandle, key: &[u8], value: Option<&[u8]>, condition: Condition<'_>) -> Result<bool> {
        let (written, _) = self.write_as(keyspace, key, value, condition, &WriteOptions::new())?;
        self.core.settle_written(written)?;
        Ok(written.applied())
    }
}

impl Core {
    /// A ticket for a write at `level`, given that the write path has done its part.
    pub fn ticket(self: &std::sync::Arc<Self>, version: u64, level: Durability) -> Ticket {
        let pending = version != 0
            && match level {
                Durability::Sync => self.needs_sync,
                Durability::Interval(_) => self.needs_sync || self.log.needs_flush(),
                Durability::Process => false,
            };
        if !pending {
            return Ticket::durable(version);
        }
        if !self.commits_in_time(level) {
            // It may be that nobody ever waits, so the background committer is asked.
            self.committer.request(&self.log, version);
        }
        Ticket::pending(self, version)
    }

    /// Waits for a write at the store's level, if that level promises durability, and for what the outcome rests on.
    #[inline(always)]
    fn settle_written(&self, written: Written) -> Result<()> {
        if self.waits() && written.version() != 0 {
            self.committer.commit(&self.log, written.version())?;
        }
        self.settle_observed(written, self.durability)
    }

    /// Whether writes at the store's level wait for a commit. Below `sync` the background committer makes them durable.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        self.needs_sync && self.durability == Durability::Sync
    }

    /// Whether the background committer commits soon enough for a write at this level without being asked.
    pub fn commits_in_time(&self, level: Durability) -> bool {
        matches!((level, self.durability), (Durability::Interval(wanted), Durability::Interval(own)) if own <= wanted)
    }

    /// If nothing was written (condition unmet, nothing to delete): waits until what was seen is durable, if the level promises that.
    #[inline(always)]
    pub fn settle_observed(&self, written: Written, level: Durability) -> Result<()> {
        match self.rests_on_observed(written, level) {
            0 => Ok(()),
            version => self.committer.commit(&self.log, version),
        }
    }

    /// The version that must be durable before it may be reported that nothing was written; 0 if there is none.
    #[inline(always)]
    pub fn rests_on_observed(&self, written: Written, level: Durability) -> u64 {
        let seen = written.observed();
        // In a store below `sync`, reads promise nothing, but a write at `sync` does.
        let promises = seen != 0 && (self.committer.reads_check() || level == Durability::Sync && self.log.may_lag());
        if promises && seen > self.committer.durable() { seen } else { 0 }
    }

    /// A put or delete at the store's level: arguments and outcome in registers (see [`Written`]).
    #[inline(never)]
    fn write_plain(&self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Attempt<Written> {
        self.write_inline(keyspace, &Change { key, value, expiry_ms: 0, condition: Condition::None }, self.durability)
    }

    /// A write with a condition, an expiry or a level of its own. Compiled once: inlined it would be 50 KB for each caller.
    #[inline(never)]
    pub fn write(&self, keyspace: &Keyspace, change: &Change<'_>, level: Durability) -> Attempt<Written> {
        self.write_inline(keyspace, change, level)
    }

    #[inline(always)]
    fn write_inline(&self, keyspace: &Keyspace, change: &Change<'_>, level: Durability) -> Attempt<Written> {
        check_key(change.key)?;
        if let Some(value) = change.value {
            check_value(value)?;
        }
        with_index!(keyspace, index => self.write_with(keyspace, index, change, level))
    }

    #[inline(always)]
    fn write_with<I: Index>(&self, keyspace: &Keyspace, index: &I, change: &Change<'_>, level: Durability) -> Attempt<Written> {
        let key = self.hasher.key(change.key);
        let outcome = match self.try_write(keyspace, index, key, change, level) {
            Err(error) => {
                // Not `with_room`: the retry takes copies, so that on the hot path neither key nor change need be in memory.
                let change = *change;
                self.after_vain_attempt(error, move || self.try_write(keyspace, index, key, &change, level))
            }
            outcome => outcome,
        };
        self.pay_if_owed();
        outcome
    }

    #[inline(always)]
    fn try_write<I: Index>(
        &self,
        keyspace: &Keyspace,
        index: &I,
        key: Key<'_>,
        change: &Change<'_>,
        level: Durability,
    ) -> Attempt<Written> {
        let resolver = self.resolver();
        let stripe = self.latches.of(key.hash);
        stripe.prefetch();
        let _section = epoch::pin_writer();
        self.committer.ensure_writable()?;
        keyspace.ensure_usable()?;
        let prepared = index.prepare_write(key, &resolver);
        let latch = stripe.lock();
        if !matches!(change.condition, Condition::None) {
            self.ensure_readable(keyspace, key)?;
        }
        // Before the place: a thread that waits for a locked place may hold a slot, so none may wait for a slot with a place locked.
        let mut guard = self.log.writer();
        let mut writer = guard.lent();
        let (mut located, locked) = index.lock_place(key, prepared, &resolver);
        let place = PlaceGuard { index, token: located.token, locked };
        if keyspace.info.kind == Kind::Ordered {
            // An ordered index must know where a key belongs beside its neighbour.
            self.ensure_writable_beside(keyspace, key, &located)?;
        }
        if located.candidate.is_some() {
            resolver.prefetch(located.candidate);
            writer.prefetch_mark(located.candidate.0);
        }
        if !matches!(change.condition, Condition::None) {
            if !located.verified && !resolver.matches(located.candidate, key.bytes) {
                located.candidate = Ref::NONE;
            }
            located.verified = true;
            // Expiry is judged once, for the condition and for the caller.
            let is_there = self.is_there(located.candidate);
            if !self.holds(change.condition, located.candidate, |_| !is_there) {
                return Ok(Written::nothing(latch.last_version(), false, is_there));
            }
        }
        // Whether a delete finds its key is asked before it takes space: what writes nothing fails in no full store. (The
        // lean path writes a tombstone where another key of the tag is in the place.) Not of an entry that may be damaged:
        // it may be the key's.
        let is_absent = || !self.log.has_unverified() && self.verify(located, key.bytes).0.is_none();
        if change.value.is_none() && (located.candidate.is_none() || is_absent()) {
            return Ok(Written::nothing(latch.last_version(), true, false));
        }
        if let Some(value) = change.value
            && self.is_bounded()
            && Core::live_size(key.bytes, value) > self.live_size_of(located.candidate, located.verified, key.bytes)
        {
            return self.refuse_growth();
        }

        let version = writer.draw_versions(latch.last_version(), 1);
        if !self.holds_still(change.condition, located.candidate, version) {
            return Ok(Written::nothing(latch.last_version(), false, false));
        }
        let name = (keyspace.info.id, key.hash);
        let deleted = self.committer.recent_deletes.get(name);
        let parent = deleted.unwrap_or(located.candidate).0;
        let parts = Parts {
            op: op_of(change.value.is_some(), located.candidate),
            key: key.bytes,
            value: change.value.unwrap_or(&[]),
            version,
            parent,
            parent_generation: writer.generation_tag(parent),
            keyspace: keyspace.info.id,
            expiry_ms: change.expiry_ms,
            batch: None,
            shortcut: change.value.map_or(0, |value| self.shortcuts.to(index, located.token, key.bytes.len() + value.len())),
            frees: false,
        };
        let flush = if level == Durability::Sync { Flush::Now } else { Flush::Later };
        let reference = Ref(writer.append(&parts, Append { hash: key.hash, flush }).map_err(|error| Box::new(Error::from(error)))?);
        latch.set_last_version(version);
        // Before the delete is noted: from here on deletes are remembered for readers.
        if flush == Flush::Later && self.durability == Durability::Sync {
            self.committer.note_relaxed_write(&self.log);
        }
        if change.value.is_none() {
            latch.set_last_delete(version);
            self.note_delete(keyspace, version);
            if self.may_be_lost(flush) {
                self.committer.recent_deletes.note(name, reference, version);
            }
        } else if deleted.is_some() {
            self.committer.recent_deletes.remove(name);
        }

        // In the shadow of the flush: does the candidate really have this key?
        let (old, old_expired) = self.verify(located, key.bytes);
        if flush == Flush::Now {
            writer.fence();
        }
        let new = if change.value.is_some() { reference } else { Ref::NONE };
        self.replace(keyspace, place, key, old, new, version, &mut writer);
        if change.expiry_ms != 0 {
            keyspace.expiries.note();
        }
        // An entry that the condition found alive counts as present, whatever the time is now.
        let was_there = !old_expired || change.condition.wants_presence();
        Ok(Written::entry(version, old.is_some() && was_there))
    }

    /// Returns the entry of `located` if it has this key (none otherwise), and whether it has expired.
    #[inline(always)]
    pub fn verify<T>(&self, located: Located<T>, key: &[u8]) -> (Ref, bool) {
        let candidate = located.candidate;
        if candidate.is_none() {
            return (Ref::NONE, false);
        }
        match self.log.plain_key(candidate.0) {
            // Plain entries do not expire.
            Some(word) if located.verified || <[u8; 8]>::try_from(key).is_ok_and(|key| key == word) => (candidate, false),
            Some(_) => (Ref::NONE, false),
            None if located.verified || self.log.key_matches(candidate.0, key) => {
                (candidate, self.is_expired(self.log.expiry_of(candidate.0)))
            }
            None => (Ref::NONE, false),
        }
    }

    /// Installs `new` over `old`, even if a collector has moved `old` in between, and accounts for the garbage.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    pub fn replace<I: Index>(
        &self,
        keyspace: &Keyspace,
        mut place: PlaceGuard<'_, I>,
        key: Key<'_>,
        mut old: Ref,
        new: Ref,
        version: u64,
        writer: &mut hither_log::Writer<'_>,
    ) {
        // The version was drawn before this load, so a snapshot that may need `old` is visible by now.
        let shown = old.is_some() && self.snapshots.any();
        let retained = if shown { self.snapshots.retain(self, keyspace, key.bytes, old, version) } else { None };
        if place.locked {
            place.locked = false;
            place.index.install_locked(place.token, key, old, new, &self.resolver());
        } else {
            old = self.install(&place, key, old, new, retained.as_deref());
        }
        if old.is_some() && retained.is_none() {
            writer.mark_dead(old.0);
        }
    }

    /// Installs at a place that is not locked. Returns the entry that was replaced.
    #[inline(always)]
    fn install<I: Index>(&self, place: &PlaceGuard<'_, I>, key: Key<'_>, mut old: Ref, new: Ref, retained: Option<&Retained>) -> Ref {
        while old != new {
            match place.index.install(place.token, key, old, new, &self.resolver()) {
                Ok(()) => break,
                // The latch is held, so only a collector that moved the entry, or an earlier member of the same batch, can interfere.
                Err(conflict) => {
                    // Before it is replaced: from then on a collector moves only entries that snapshots keep, and must find this one.
                    if let Some(retained) = retained {
                        retained.follow(conflict.current);
                    }
                    old = conflict.current;
                }
            }
        }
        old
    }

    /// Whether the verified reference `current` leads to an entry that has not expired.
    #[cold]
    fn is_there(&self, current: Ref) -> bool {
        current.is_some() && !self.is_expired(self.log.expiry_of(current.0))
    }

    /// Whether a condition that held for `current` holds by the time after the draw of `version`: see the head of [`crate::snapshot`].
    #[inline(always)]
    fn holds_still(&self, condition: Condition<'_>, current: Ref, version: u64) -> bool {
        match condition {
            Condition::Sweep(_) => !self.snapshots.any() || self.snapshots.agree_that_expired(self.log.expiry_of(current.0), version),
            condition => !condition.wants_presence() || !self.is_expired(self.log.expiry_of(current.0)),
        }
    }

    /// Whether `condition` holds for the verified `current`, which is absent if its expiry `is_expired`. Call with the key's latch held.
    #[cold]
    pub fn holds(&self, condition: Condition<'_>, current: Ref, is_expired: impl FnOnce(u64) -> bool) -> bool {
        if let Condition::Sweep(version) = condition {
            return current.is_some() && self.log.version_of(current.0, &self.log.entry(current.0)) == version;
        }
        let entry = current.is_some().then(|| self.log.entry(current.0)).filter(|entry| !is_expired(entry.expiry_ms()));
        match (condition, entry) {
            (Condition::None, _) | (Condition::Version(None) | Condition::Value(None), None) => true,
            (Condition::Version(Some(version)), Some(entry)) => self.log.version_of(current.0, &entry) == version,
            (Condition::Value(Some(value)), Some(entry)) => entry.value == value,
            _ => false,
        }
    }
}

/// A place in an index that a write is about to change. Unlocked when dropped, unless the write has installed there.
pub(crate) struct PlaceGuard<'a, I: Index> {
    pub index: &'a I,
    pub token: I::Token,
    pub locked: bool,
}

impl<I: Index> Drop for PlaceGuard<'_, I> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.locked {
            self.index.unlock_place(self.token);
        }
    }
}

#[inline(always)]
pub(crate) fn op_of(puts: bool, candidate: Ref) -> Op {
    match (puts, candidate.is_some()) {
        (false, _) => Op::Delete,
        (true, true) => Op::Update,
        (true, false) => Op::Insert,
    }
}

pub(crate) mod room;
