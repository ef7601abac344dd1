//! Lookups: index, then one dependent read of the log; no lock, no allocation.

use crate::error::Result;
use crate::keyspace::{AnyIndex, Keyspace, KeyspaceHandle, with_index};
use crate::resolver::Doubting;
use crate::store::{Core, Store};
use crate::write::check_key;
use hither_index::{Index, Key, Located, Look, Ref};
use hither_log::{Log, SegmentPin, is_pair};
use hither_sync::epoch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

/// Keys that a multi-get looks up together.
pub(crate) const GROUP: usize = 32;

impl Store {
    /// Calls `f` with the value of `key`, in place. `f` runs under an epoch pin: it should be short, and must not wait for other threads.
    #[inline(always)]
    pub fn get_with<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        check_key(key)?;
        let core = &*self.core;
        let pin = epoch::pin();
        keyspace.0.ensure_usable()?;
        if core.cache.is_attentive() {
            return core.get_anyhow(&keyspace.0, key, f);
        }
        // Of a plain pair the value comes along from where its key is compared, of a longer one its place. All else is a call away, so that nothing of it is
        // kept ready here.
        if let Ok(word) = key.try_into() {
            let (found, value) = with_index!(keyspace.0, index => index.peek(u64::from_ne_bytes(word), ShortValue(core)));
            if found.is_some() {
                if is_pair(found.0) {
                    let result = f(&u64::to_ne_bytes(value));
                    // Said here, so that the result need not wait in memory for an end of the pin that it shares with other ways out.
                    pin.leave();
                    return Ok(Some(result));
                }
                if let Some(value) = core.log.value_at(found.0, value) {
                    return Ok(Some(call_aside(f, value)));
                }
            }
        } else if let Some(value) = core.peek_string(&keyspace.0, key) {
            return Ok(Some(call_aside(f, value)));
        }
        core.get_anyhow(&keyspace.0, key, f)
    }

    /// The value of `key` with its version. Each write of the key raises it. So may a collection, when 2³¹ versions have gone by: each write takes one, and up to 64 more go with it where many threads write the same keys, or each write waits for a sync of its own (`docs/adr/0024`).
    pub fn get_versioned(&self, keyspace: &KeyspaceHandle, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        self.get_described(keyspace, key, |value, version, _| (value.to_vec(), version))
    }

    /// Calls `f` with the value of `key`, and the time at which it expires, in milliseconds since 1970; 0: never.
    pub fn get_expiring<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8], u64) -> R) -> Result<Option<R>> {
        self.get_described(keyspace, key, |value, _, expiry_ms| f(value, expiry_ms))
    }

    /// Value, version and expiry.
    fn get_described<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8], u64, u64) -> R) -> Result<Option<R>> {
        check_key(key)?;
        let core = &*self.core;
        let key = core.hasher.key(key);
        let _pin = epoch::pin();
        keyspace.0.ensure_usable()?;
        let found = with_index!(keyspace.0, index => index.get(key, &core.resolver()));
        if found.is_none() {
            return core.absent(&keyspace.0, key);
        }
        core.visit_found(&keyspace.0, &key, found, |found, value, expiry_ms| {
            f(value, core.log.version_of(found.0, &core.log.entry(found.0)), expiry_ms)
        })
    }

    /// A guard that keeps the value of `key` where it is.
    pub fn get_pinned(&self, keyspace: &KeyspaceHandle, key: &[u8]) -> Result<Option<ValueGuard>> {
        check_key(key)?;
        let core = &*self.core;
        let key = core.hasher.key(key);
        let _pin = epoch::pin();
        keyspace.0.ensure_usable()?;
        let found = with_index!(keyspace.0, index => index.get(key, &core.resolver()));
        if found.is_none() {
            return core.absent(&keyspace.0, key);
        }
        core.visit_found(&keyspace.0, &key, found, |found, _, _| ValueGuard::new(&core.log, found.0))
    }

    /// Looks up many keys with overlapping cache misses; calls `f(i, value)` for each in order. `f` runs under an epoch pin.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        keyspace: &KeyspaceHandle,
        keys: &[K],
        mut f: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let core = &*self.core;
        let mut group = [Key { bytes: &[], hash: 0 }; GROUP];
        for (number, chunk) in keys.chunks(GROUP).enumerate() {
            for (slot, key) in group.iter_mut().zip(chunk) {
                check_key(key.as_ref())?;
                *slot = core.hasher.key(key.as_ref());
            }
            let _pin = epoch::pin();
            keyspace.0.ensure_usable()?;
            let group = &group[..chunk.len()];
            let mut numbered = |i: usize, value: Option<&[u8]>| f(number * GROUP + i, value);
            if core.cache.is_attentive() {
                core.get_group_through_cache(&keyspace.0, group, &mut numbered)?;
            } else {
                core.get_group(&keyspace.0, group, numbered)?;
            }
        }
        Ok(())
    }

    /// Begins to load what operations on these keys are about to touch, with overlapping cache misses. A hint: keys that no store can hold are left out.
    pub fn prefetch<K: AsRef<[u8]>>(&self, keyspace: &KeyspaceHandle, keys: &[K]) {
        let core = &*self.core;
        let mut group = [Key { bytes: &[], hash: 0 }; GROUP];
        for chunk in keys.chunks(GROUP) {
            let mut count = 0;
            for key in chunk.iter().map(AsRef::as_ref).filter(|key| check_key(key).is_ok()) {
                group[count] = core.hasher.key(key);
                count += 1;
            }
            let _pin = epoch::pin();
            if keyspace.0.ensure_usable().is_ok() {
                let found = &mut [Ref::NONE; GROUP][..count];
                core.find_group(&keyspace.0, &group[..count], found);
                found.iter().filter(|found| !found.is_none()).for_each(|found| core.log.prefetch_rest(found.0));
            }
        }
    }
}

/// Asks for the value, if it may be read as it lies there: see [`Log::short_value_of`].
struct ShortValue<'a>(&'a Core);

impl Look<u64> for ShortValue<'_> {
    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        self.0.hasher.hash_word(key)
    }

    #[inline(always)]
    fn look(self, found: Ref, key: u64) -> Option<u64> {
        let log = &*self.0.log;
        // Asked after the reference was read: see `Log::note_reason`.
        if !log.reads_are_plain() {
            return None;
        }
        log.short_value_of(found.0, key)
    }
}

/// Calls `f`, out of line: what it does with a string shall not take registers from what is done with a pair.
#[inline(never)]
fn call_aside<R>(f: impl FnOnce(&[u8]) -> R, value: &[u8]) -> R {
    f(value)
}

impl Core {
    /// The value of a key of another length than eight bytes in a hash keyspace, if it is where most are and neither expires nor must be asked about; `None` says nothing.
    /// Call under an epoch pin, with the cache not attentive.
    #[inline(never)]
    fn peek_string(&self, keyspace: &Keyspace, key: &[u8]) -> Option<&[u8]> {
        let AnyIndex::Hash(index) = &*keyspace.index else { return None };
        let log = &*self.log;
        // Whether reads are plain is asked after the reference was read: see `Log::note_reason`.
        let value = |found: Ref| if log.reads_are_plain() { log.value_of_key(found.0, key).map(Some) } else { None };
        index.peek_hash(self.hasher.hash(key), value).1
    }

    /// Looks a key up whatever it and the store are like. Call under an epoch pin.
    #[inline(never)]
    fn get_anyhow<R>(&self, keyspace: &Keyspace, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let key = self.hasher.key(key);
        if self.cache.is_attentive() {
            return self.get_through_cache(keyspace, key, f);
        }
        let found = with_index!(keyspace, index => index.get(key, &self.resolver()));
        if found.is_none() {
            return self.absent(keyspace, key);
        }
        self.visit(keyspace, &key, found, f)
    }

    /// Looks up to [`GROUP`] keys up. Call under an epoch pin.
    #[inline(always)]
    pub fn get_group(&self, keyspace: &Keyspace, group: &[Key<'_>], mut f: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let mut found = [Ref::NONE; GROUP];
        let found = &mut found[..group.len()];
        self.find_group(keyspace, group, found);
        for (i, &reference) in found.iter().enumerate() {
            if reference.is_none() {
                self.absent::<()>(keyspace, group[i])?;
                f(i, None);
            } else if self.visit(keyspace, &group[i], reference, |value| f(i, Some(value)))?.is_none() {
                f(i, None);
            }
        }
        Ok(())
    }

    /// Asks the index for a group, and prefetches what it found. Compiled once for all closures.
    #[inline(never)]
    fn find_group(&self, keyspace: &Keyspace, group: &[Key<'_>], found: &mut [Ref]) {
        with_index!(keyspace, index => index.get_many(group, found, &self.resolver()));
        for reference in found {
            self.log.prefetch(reference.0);
        }
    }
}

impl Core {
    /// Calls `f` with the value of `key`, which the index leads to `found`, unless it has expired; first waits for its durability if reads must.
    /// Call under an epoch pin, without latches.
    #[inline(always)]
    pub fn visit<R>(&self, keyspace: &Keyspace, key: &Key<'_>, found: Ref, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.visit_found(keyspace, key, found, |_, value, _| f(value))
    }

    /// As [`Core::visit`]; `f` also gets the entry that it is the value of, and the time of expiry, 0 if there is none.
    #[inline(always)]
    pub fn visit_found<R>(
        &self,
        keyspace: &Keyspace,
        key: &Key<'_>,
        found: Ref,
        f: impl FnOnce(Ref, &[u8], u64) -> R,
    ) -> Result<Option<R>> {
        self.ensure_settled(found)?;
        if let Some(value) = self.log.plain_value(found.0) {
            return Ok(Some(f(found, &value, 0)));
        }
        if let Some(value) = self.log.lasting_value(found.0) {
            return Ok(Some(f(found, value, 0)));
        }
        let entry = self.log.entry(found.0);
        let expiry_ms = entry.expiry_ms();
        if !self.is_expired(expiry_ms) {
            return Ok(Some(f(found, entry.value, expiry_ms)));
        }
        Ok(self.after_expiry(keyspace, key, found)?.map(|found| {
            let entry = self.log.entry(found.0);
            f(found, entry.value, entry.expiry_ms())
        }))
    }

    /// The entry of `key` that has not expired, after `expired` was found so: see [`Core::after_expired`]. First waits for its durability, or that of the delete, if reads must.
    #[cold]
    #[inline(never)]
    pub fn after_expiry(&self, keyspace: &Keyspace, key: &Key<'_>, mut expired: Ref) -> Result<Option<Ref>> {
        while let Some(found) = self.after_expired(keyspace, *key, expired) {
            if found.is_none() {
                return self.absent(keyspace, *key);
            }
            self.ensure_settled(found)?;
            if !self.is_expired(self.log.expiry_of(found.0)) {
                return Ok(Some(found));
            }
            expired = found;
        }
        Ok(None)
    }

    /// What the index names for `key`, if that is no longer `expired`, once whoever may have found that alive has ended. A write on conditions that found it so counts as made
    /// before it expired, though it may be installed later: who says that the key has gone must come behind that. Whoever takes the latch from now on finds it expired, too, for the
    /// time has come and is remembered ([`Core::is_expired`]). Waits as `docs/adr/0018` says: whoever holds a latch waits for no reader. Call under an epoch pin, without latches.
    #[cold]
    #[inline(never)]
    pub fn after_expired(&self, keyspace: &Keyspace, key: Key<'_>, expired: Ref) -> Option<Ref> {
        // The time is remembered before the latch is looked at.
        fence(Ordering::SeqCst);
        self.latches.wait_until_free(self.latches.stripe_of(key.hash));
        let current = with_index!(keyspace, index => index.get(key, &self.resolver()));
        (current != expired).then_some(current)
    }

    /// Refuses an entry that is damaged, and waits for its durability if reads must.
    #[inline(always)]
    pub fn ensure_settled(&self, reference: Ref) -> Result<()> {
        self.ensure_whole(reference)?;
        if self.committer.reads_check() {
            self.wait_until_durable(reference)?;
        }
        Ok(())
    }

    /// Refuses an entry that is damaged, if nobody has looked since the store was opened. Call under an epoch pin, before anything of the entry is used.
    #[inline(always)]
    pub fn ensure_whole(&self, reference: Ref) -> Result<()> {
        if self.log.has_unverified() {
            self.log.verify_entry(reference.0)?;
        }
        Ok(())
    }

    /// Refuses to call a key absent that the index does not find, if it may be the key of a damaged entry. Call under an epoch pin.
    #[inline(always)]
    pub fn ensure_absent(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<()> {
        if self.log.has_unverified() { self.look_for_damage(keyspace, key) } else { Ok(()) }
    }

    /// Refuses a key whose entry is damaged, or may be. Call under an epoch pin.
    #[inline(always)]
    pub fn ensure_readable(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<()> {
        if self.log.has_unverified() { self.look_whether_readable(keyspace, key) } else { Ok(()) }
    }

    /// Refuses a write whose place in the index has a damaged entry. Call under an epoch pin.
    #[inline(always)]
    pub fn ensure_writable_beside<T>(&self, keyspace: &Keyspace, key: Key<'_>, located: &Located<T>) -> Result<()> {
        if !self.log.has_unverified() {
            return Ok(());
        }
        let candidate = located.candidate;
        if candidate.is_some() {
            self.ensure_whole(candidate)?;
        }
        if candidate.is_some() && located.verified { Ok(()) } else { self.look_whether_placeable(keyspace, key) }
    }

    #[cold]
    #[inline(never)]
    fn look_whether_readable(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<()> {
        let found = with_index!(keyspace, index => index.get(key, &self.resolver()));
        if found.is_some() { self.ensure_whole(found) } else { self.look_for_damage(keyspace, key) }
    }

    /// Refuses a key whose entry is damaged, or may be, or that would get its place beside a damaged one.
    #[cold]
    #[inline(never)]
    pub fn look_whether_placeable(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<()> {
        let found = with_index!(keyspace, index => index.get(key, &self.resolver()));
        if found.is_some() {
            return self.ensure_whole(found);
        }
        self.look_for_damage(keyspace, key)?;
        let beside = with_index!(keyspace, index => index.unreadable_beside(key, &self.resolver()));
        if beside.is_some() { self.ensure_whole(beside) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn look_for_damage(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<()> {
        let found = with_index!(keyspace, index => index.get(key, &Doubting(self.resolver())));
        if found.is_some() { self.ensure_whole(found) } else { Ok(()) }
    }

    /// The answer for a key that is not there: a delete that made it so must be durable first.
    #[inline(always)]
    pub fn absent<R>(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<Option<R>> {
        self.ensure_absent(keyspace, key)?;
        let hash = key.hash;
        if self.committer.reads_check() {
            let delete = self.latches.last_delete(self.latches.stripe_of(hash));
            if delete > self.committer.durable() {
                self.committer.commit(&self.log, delete)?;
            }
        }
        Ok(None)
    }

    /// Remembers the keyspace's newest delete, for scans, which cannot ask key by key.
    #[inline(always)]
    pub fn note_delete(&self, keyspace: &Keyspace, version: u64) {
        if self.committer.reads_check() {
            keyspace.last_delete.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// After a scan of the keyspace as it is: what it found absent must be durably absent.
    pub fn settle_deletes(&self, keyspace: &Keyspace) -> Result<()> {
        let delete = keyspace.last_delete.load(Ordering::Acquire);
        if self.committer.reads_check() && delete > self.committer.durable() {
            self.committer.commit(&self.log, delete)?;
        }
        Ok(())
    }

    /// A read at the store's level never returns what could still be lost at that level.
    #[inline(never)]
    pub fn wait_until_durable(&self, reference: Ref) -> Result<()> {
        if self.durability != crate::Durability::Sync {
            return Ok(());
        }
        self.wait_until_version_is_durable(self.log.version_of(reference.0, &self.log.entry(reference.0)))
    }

    /// As [`Core::wait_until_durable`], for an entry of this version.
    #[inline(never)]
    pub fn wait_until_version_is_durable(&self, version: u64) -> Result<()> {
        if self.durability != crate::Durability::Sync || version <= self.committer.durable() {
            return Ok(());
        }
        self.committer.commit(&self.log, version)
    }
}

/// Guards alive, and when the oldest of them was taken (an upper bound of its age).
static GUARDS: AtomicUsize = AtomicUsize::new(0);
static OLDEST_MS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn uptime_ms() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64
}

/// A value that stays readable in place. It pins its segment, not the epoch: everything else can be reclaimed.
pub struct ValueGuard {
    log: Arc<Log>,
    reference: u64,
    _pin: SegmentPin,
}

impl ValueGuard {
    /// Call under an epoch pin with a reference read under the same pin.
    fn new(log: &Arc<Log>, reference: u64) -> ValueGuard {
        if GUARDS.fetch_add(1, Ordering::Relaxed) == 0 {
            OLDEST_MS.store(uptime_ms(), Ordering::Relaxed);
        }
        ValueGuard { _pin: log.pin_segment(reference), log: log.clone(), reference }
    }

    /// Number of guards in the process, and an upper bound of the age of the oldest.
    pub fn alive() -> (usize, Duration) {
        let count = GUARDS.load(Ordering::Relaxed);
        let since = uptime_ms().saturating_sub(OLDEST_MS.load(Ordering::Relaxed));
        (count, if count == 0 { Duration::ZERO } else { Duration::from_millis(since) })
    }
}

impl std::ops::Deref for ValueGuard {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.log.entry(self.reference).value
    }
}

impl AsRef<[u8]> for ValueGuard {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for ValueGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ValueGuard").field(&&**self).finish()
    }
}

impl Drop for ValueGuard {
    fn drop(&mut self) {
        GUARDS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
