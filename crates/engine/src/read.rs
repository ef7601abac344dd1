//! Lookups: the index, then one dependent read of the log; no lock, no allocation.
//!
//! Thread safety: any number of readers beside writers and collectors, under epoch pins. A reader waits only in two
//! cases: until what it found is durable, if reads must check that, and until the latch of a key that it found expired
//! is free. Crash: a read changes nothing on media.

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

/// Number of keys that a multi-get looks up together.
pub(crate) const GROUP: usize = 32;

impl Store {
    /// Calls `f` with the value of `key`, in place. `f` runs under an epoch pin: it should be short and must not wait
    /// for other threads.
    #[inline(always)]
    pub fn get_with<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        check_key(key)?;
        let core = &*self.core;
        let pin = epoch::pin();
        keyspace.0.ensure_usable()?;
        if core.cache.is_attentive() {
            return core.get_anyhow(&keyspace.0, key, f);
        }
        // For a plain pair, the lookup returns the value from where it compares the key; for a longer entry it returns
        // the value's place. All else is a call away, so that nothing is kept ready for it here.
        if let Ok(word) = key.try_into() {
            let (found, value) = with_index!(keyspace.0, index => index.peek(u64::from_ne_bytes(word), ShortValue(core)));
            if found.is_some() {
                if is_pair(found.0) {
                    let result = f(&u64::to_ne_bytes(value));
                    // Ended here explicitly: an end that the pin shares with other ways out would make the result wait
                    // in memory.
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

    /// Returns the value of `key` with its version. Each write of the key raises the version. After 2³¹ versions a
    /// collection may raise it, too. Each write of the store uses one version, and up to 64 more where many threads
    /// write the same keys or each write waits for a sync of its own (`docs/adr/0024`).
    pub fn get_versioned(&self, keyspace: &KeyspaceHandle, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        self.get_described(keyspace, key, |value, version, _| (value.to_vec(), version))
    }

    /// Calls `f` with the value of `key` and the time at which it expires, in milliseconds since 1970; 0: never.
    pub fn get_expiring<R>(&self, keyspace: &KeyspaceHandle, key: &[u8], f: impl FnOnce(&[u8], u64) -> R) -> Result<Option<R>> {
        self.get_described(keyspace, key, |value, _, expiry_ms| f(value, expiry_ms))
    }

    /// Calls `f` with value, version and expiry.
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

    /// Returns a guard that keeps the value of `key` in place.
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

    /// Looks up many keys with overlapping cache misses. Calls `f(i, value)` for each key in order. `f` runs under an
    /// epoch pin.
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

    /// Starts loading what operations on these keys will touch, with overlapping cache misses. A hint: keys that no
    /// store can hold are skipped.
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

/// Looks at the value if the entry may be read as it lies there: see [`Log::short_value_of`].
struct ShortValue<'a>(&'a Core);

impl Look<u64> for ShortValue<'_> {
    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        self.0.hasher.hash_word(key)
    }

    #[inline(always)]
    fn look(self, found: Ref, key: u64) -> Option<u64> {
        let log = &*self.0.log;
        // Checked after the reference was read: see `Log::note_reason`.
        if !log.reads_are_plain() {
            return None;
        }
        log.short_value_of(found.0, key)
    }
}

/// Calls `f` out of line: what it does with a string must not take registers from the code for pairs.
#[inline(never)]
fn call_aside<R>(f: impl FnOnce(&[u8]) -> R, value: &[u8]) -> R {
    f(value)
}

impl Core {
    /// The value of a key that is not eight bytes long, in a hash keyspace, if it is in the place where most keys are,
    /// does not expire, and reads are plain. `None` means nothing: look the key up. Call under an epoch pin, with the
    /// cache not attentive.
    #[inline(never)]
    fn peek_string(&self, keyspace: &Keyspace, key: &[u8]) -> Option<&[u8]> {
        let AnyIndex::Hash(index) = &*keyspace.index else { return None };
        let log = &*self.log;
        // Whether reads are plain is checked after the reference was read: see `Log::note_reason`.
        let value = |found: Ref| if log.reads_are_plain() { log.value_of_key(found.0, key).map(Some) } else { None };
        index.peek_hash(self.hasher.hash(key), value).1
    }

    /// Looks a key up, whatever the key and the store are like. Call under an epoch pin.
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

    /// Asks the index for a group and prefetches the entries found. Compiled once for all closures.
    #[inline(never)]
    fn find_group(&self, keyspace: &Keyspace, group: &[Key<'_>], found: &mut [Ref]) {
        with_index!(keyspace, index => index.get_many(group, found, &self.resolver()));
        for reference in found {
            self.log.prefetch(reference.0);
        }
    }
}

impl Core {
    /// Calls `f` with the value of `key`, for which the index names `found`, unless it has expired. First waits for its
    /// durability, if reads must. Call under an epoch pin, without latches.
    #[inline(always)]
    pub fn visit<R>(&self, keyspace: &Keyspace, key: &Key<'_>, found: Ref, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.visit_found(keyspace, key, found, |_, value, _| f(value))
    }

    /// As [`Core::visit`]. `f` also gets the reference of the entry, and its expiry in milliseconds since 1970, 0 if
    /// there is none.
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

    /// Called when `expired` was found to be the expired entry of `key`: returns the key's entry that has not expired,
    /// if there is one (see [`Core::after_expired`]). First waits for the durability of that entry, or of a delete, if
    /// reads must.
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

    /// Waits until every write that may have found `expired` alive has ended. Returns what the index names for `key`
    /// then, if that is no longer `expired`.
    ///
    /// A conditional write that found the entry alive counts as made before it expired, though it may be installed
    /// later. So a reader that reports the key absent must come after that write. A thread that takes the latch from
    /// now on finds the entry expired, too: its time has come and is remembered ([`Core::is_expired`]).
    ///
    /// The wait cannot deadlock, as `docs/adr/0018` explains: a thread that holds a latch waits for no reader. Call
    /// under an epoch pin, without latches.
    #[cold]
    #[inline(never)]
    pub fn after_expired(&self, keyspace: &Keyspace, key: Key<'_>, expired: Ref) -> Option<Ref> {
        // The time is remembered before the latch is looked at.
        fence(Ordering::SeqCst);
        self.latches.wait_until_free(self.latches.stripe_of(key.hash));
        let current = with_index!(keyspace, index => index.get(key, &self.resolver()));
        (current != expired).then_some(current)
    }

    /// Fails if the entry is damaged, and waits for its durability if reads must.
    #[inline(always)]
    pub fn ensure_settled(&self, reference: Ref) -> Result<()> {
        self.ensure_whole(reference)?;
        if self.committer.reads_check() {
            self.wait_until_durable(reference)?;
        }
        Ok(())
    }

    /// Fails if the entry is damaged, which is checked if its segment is still unverified. Call under an epoch pin,
    /// before anything of the entry is used.
    #[inline(always)]
    pub fn ensure_whole(&self, reference: Ref) -> Result<()> {
        if self.log.has_unverified() {
            self.log.verify_entry(reference.0)?;
        }
        Ok(())
    }

    /// Fails for a key that the index does not find, if a damaged entry may have that key. Call under an epoch pin.
    #[inline(always)]
    pub fn ensure_absent(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<()> {
        if self.log.has_unverified() { self.look_for_damage(keyspace, key) } else { Ok(()) }
    }

    /// Fails if the key's entry is damaged, or a damaged entry may have this key. Call under an epoch pin.
    #[inline(always)]
    pub fn ensure_readable(&self, keyspace: &Keyspace, key: Key<'_>) -> Result<()> {
        if self.log.has_unverified() { self.look_whether_readable(keyspace, key) } else { Ok(()) }
    }

    /// Fails for a write whose place in the index has a damaged entry. Call under an epoch pin.
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

    /// Fails if the key's entry is damaged, if a damaged entry may have this key, or if the key would be placed beside
    /// a damaged entry.
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

    /// The answer for an absent key. First waits until the delete that may have removed the key is durable, if reads
    /// must.
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

    /// Notes the version of the keyspace's newest delete for scans, which cannot ask key by key.
    #[inline(always)]
    pub fn note_delete(&self, keyspace: &Keyspace, version: u64) {
        if self.committer.reads_check() {
            keyspace.last_delete.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Called after a scan of the keyspace's current state: waits until what the scan found absent is durably absent.
    pub fn settle_deletes(&self, keyspace: &Keyspace) -> Result<()> {
        let delete = keyspace.last_delete.load(Ordering::Acquire);
        if self.committer.reads_check() && delete > self.committer.durable() {
            self.committer.commit(&self.log, delete)?;
        }
        Ok(())
    }

    /// Waits until the entry is durable, at level `sync`: a read at the store's level never returns what could still be
    /// lost.
    #[inline(never)]
    pub fn wait_until_durable(&self, reference: Ref) -> Result<()> {
        if self.durability != crate::Durability::Sync {
            return Ok(());
        }
        self.wait_until_version_is_durable(self.log.version_of(reference.0, &self.log.entry(reference.0)))
    }

    /// As [`Core::wait_until_durable`], for an entry with this version.
    #[inline(never)]
    pub fn wait_until_version_is_durable(&self, version: u64) -> Result<()> {
        if self.durability != crate::Durability::Sync || version <= self.committer.durable() {
            return Ok(());
        }
        self.committer.commit(&self.log, version)
    }
}

/// Number of guards alive in the process. `OLDEST_MS` is the uptime when the oldest of them was taken, or earlier: an
/// upper bound of its age.
static GUARDS: AtomicUsize = AtomicUsize::new(0);
static OLDEST_MS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn uptime_ms() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64
}

/// A value that stays readable in place. It pins its segment, not the epoch, so everything else can be reclaimed.
pub struct ValueGuard {
    log: Arc<Log>,
    reference: u64,
    _pin: SegmentPin,
}

impl ValueGuard {
    /// Call under an epoch pin, with a reference that was read under it.
    fn new(log: &Arc<Log>, reference: u64) -> ValueGuard {
        if GUARDS.fetch_add(1, Ordering::Relaxed) == 0 {
            OLDEST_MS.store(uptime_ms(), Ordering::Relaxed);
        }
        ValueGuard { _pin: log.pin_segment(reference), log: log.clone(), reference }
    }

    /// Number of guards alive in the process, and an upper bound of the age of the oldest.
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
