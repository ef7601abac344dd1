//! The version word of a node: optimistic reads, exclusive writes (optimistic lock coupling).
//!
//! Bit 0: locked. Bit 1: obsolete, that is, unlinked or free. Bit 2: claimed. Bit 3: wanted. The rest counts changes.
//! The count never goes back, not even when the node's memory is recycled, so a version seen once identifies one state
//! of one life of a node. Claimed and wanted are no part of that state: versions are handed out without them, except by
//! [`Version::try_read_whole`].
//!
//! * A reader takes the version, reads with relaxed loads, and checks that the version is still [`Version::same`]. If
//!   not, it discards what it read and starts again ([`Restart`]).
//! * A writer locks a node *at the version that it has read* and so knows that everything it read still holds. It never
//!   waits for a lock while it holds another, so there is no deadlock: it gives up and restarts.
//! * A writer may *claim* a node at the version that it has read, and lock it later. A claim keeps other writers out,
//!   as a lock does; readers do not see it, since nothing changes yet. The lock that follows a claim is a plain store,
//!   so it need not wait for a flush (`docs/adr/0019`).
//! * A writer that finds a node claimed marks it *wanted* and gives up. Until the node is locked again, nobody claims
//!   it to hold it over a flush, so a thread that claims one node again and again cannot shut others out.
//!
//! # Memory order
//!
//! Locking is an acquire exchange followed by a release fence, so that no store of the section becomes visible before
//! the lock. Unlocking is a release store. A reader loads the version with acquire and validates after an acquire
//! fence: had it read a value of a later section, the fence would pair with that section's release fence and the
//! version would differ.
//!
//! A claim is an acquire exchange as well. It comes before the lock in the modification order of the word, and only its
//! holder stores to the word meanwhile, except for the mark "wanted". That mark may be lost: the writer that set it
//! sets it again.

use std::sync::atomic::{AtomicU64, Ordering, fence};

const LOCKED: u64 = 1;
const OBSOLETE: u64 = 2;
const CLAIMED: u64 = 4;
const WANTED: u64 = 8;
const STEP: u64 = 16;
const FLAGS: u64 = LOCKED | OBSOLETE;
/// The bits that readers do not see.
const CLAIMS: u64 = CLAIMED | WANTED;

/// The error of an operation whose reads no longer hold: start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restart;

/// The version word. `repr(transparent)`: nodes are arrays of atomic words, of which this is the first.
#[repr(transparent)]
pub(crate) struct Version(AtomicU64);

impl Version {
    /// The version of a cell that lives outside the arena.
    pub(crate) const fn new() -> Self {
        Version(AtomicU64::new(STEP))
    }

    /// The current version; waits out a writer's short section. Fails if the node is obsolete.
    #[inline(always)]
    pub(crate) fn read(&self) -> Result<u64, Restart> {
        let version = self.0.load(Ordering::Acquire);
        if version & FLAGS == 0 { Ok(version & !CLAIMS) } else { self.read_slow() }
    }

    #[cold]
    fn read_slow(&self) -> Result<u64, Restart> {
        let mut spins = 0u32;
        loop {
            let version = self.0.load(Ordering::Acquire);
            if version & OBSOLETE != 0 {
                return Err(Restart);
            }
            if version & LOCKED == 0 {
                return Ok(version & !CLAIMS);
            }
            hither_sync::pause(&mut spins);
        }
    }

    /// The current version if the node is neither locked nor obsolete. For callers that hold locks and must not wait,
    /// and for searches, which wait only at their beginning: a possible wait in the middle of a search costs registers
    /// on its whole way.
    #[inline(always)]
    pub(crate) fn try_read(&self) -> Result<u64, Restart> {
        let version = self.0.load(Ordering::Acquire);
        if version & FLAGS == 0 { Ok(version & !CLAIMS) } else { Err(Restart) }
    }

    /// As [`Version::try_read`], but including the claim bits: for [`Version::check_whole`].
    #[inline(always)]
    pub(crate) fn try_read_whole(&self) -> Result<u64, Restart> {
        let version = self.0.load(Ordering::Acquire);
        if version & FLAGS == 0 { Ok(version) } else { Err(Restart) }
    }

    /// Removes the claim bits from a version that [`Version::try_read_whole`] returned.
    #[inline(always)]
    pub(crate) fn unclaimed(whole: u64) -> u64 {
        whole & !CLAIMS
    }

    /// As [`Version::check`], in one comparison, of a node that nobody ever claims. A claim would count as a change.
    #[inline(always)]
    pub(crate) fn check_whole(&self, seen: u64) -> Result<(), Restart> {
        // As in `same`.
        fence(Ordering::Acquire);
        if self.0.load(Ordering::Relaxed) == seen { Ok(()) } else { Err(Restart) }
    }

    /// Returns whether nothing has changed since the version was `seen`: all loads before this call saw that state.
    #[inline(always)]
    pub(crate) fn same(&self, seen: u64) -> bool {
        // Orders the reader's relaxed loads before the load of the version.
        fence(Ordering::Acquire);
        (self.0.load(Ordering::Relaxed) ^ seen) & !CLAIMS == 0
    }

    /// [`Version::same`] as a result.
    #[inline(always)]
    pub(crate) fn check(&self, seen: u64) -> Result<(), Restart> {
        if self.same(seen) { Ok(()) } else { Err(Restart) }
    }

    /// Locks the node if its version is still `seen` and nobody has claimed it.
    #[inline(always)]
    pub(crate) fn lock(&self, seen: u64) -> Result<Locked<'_>, Restart> {
        debug_assert_eq!(seen & (FLAGS | CLAIMS), 0);
        if self.0.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.lock_slow(seen);
        }
        // No store of the section may be seen before the lock bit.
        fence(Ordering::Release);
        Ok(Locked::new(self, seen, 0))
    }

    /// Locks a node that is marked as wanted; marks a claimed one as wanted.
    #[cold]
    fn lock_slow(&self, seen: u64) -> Result<Locked<'_>, Restart> {
        self.exchange_wanted(seen, seen | LOCKED)?;
        fence(Ordering::Release);
        Ok(Locked::new(self, seen, 0))
    }

    /// Changes the word from `seen` and wanted to `next`; if somebody has claimed the node, marks it as wanted and
    /// fails.
    fn exchange_wanted(&self, seen: u64, next: u64) -> Result<(), Restart> {
        if self.0.compare_exchange(seen | WANTED, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(());
        }
        let _ = self.0.compare_exchange(seen | CLAIMED, seen | CLAIMS, Ordering::Relaxed, Ordering::Relaxed);
        Err(Restart)
    }

    /// Claims the node, for as long as a flush takes, if its version is still `seen`. Fails if somebody wants it.
    #[inline(always)]
    pub(crate) fn claim(&self, seen: u64) -> Result<Claimed<'_>, Restart> {
        debug_assert_eq!(seen & (FLAGS | CLAIMS), 0);
        match self.0.compare_exchange(seen, seen | CLAIMED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Claimed { word: self, seen }),
            Err(_) => Err(Restart),
        }
    }

    /// As [`Version::claim`], for a structure change, which may claim a wanted node as every lock may lock one.
    pub(crate) fn claim_wanted(&self, seen: u64) -> Result<Claimed<'_>, Restart> {
        self.claim(seen).or_else(|Restart| {
            self.exchange_wanted(seen, seen | CLAIMED)?;
            Ok(Claimed { word: self, seen })
        })
    }

    /// Takes up a claim that [`Claimed::keep`] left. Only for the claim's holder.
    #[inline(always)]
    pub(crate) fn resume(&self) -> Claimed<'_> {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(word & (FLAGS | CLAIMED), CLAIMED, "the claim is the caller's");
        Claimed { word: self, seen: word & !CLAIMS }
    }

    /// Marks fresh memory as not yet alive. Only for the thread to which the arena has just given it.
    pub(crate) fn begin_life(&self) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version | OBSOLETE, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Ends the preparation of a fresh node: readers may now find it.
    pub(crate) fn come_alive(&self) {
        let version = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(version & (FLAGS | CLAIMS), OBSOLETE);
        self.0.store((version & !FLAGS) + STEP, Ordering::Release);
    }
}

/// A locked version. Dropping it unlocks *without* a change: the holder must have stored nothing.
#[must_use = "the node is unlocked when this is dropped"]
pub(crate) struct Locked<'a> {
    word: &'a Version,
    seen: u64,
    /// [`WANTED`] if another writer came by while the node was claimed, else 0.
    wanted: u64,
}

impl<'a> Locked<'a> {
    #[inline(always)]
    fn new(word: &'a Version, seen: u64, wanted: u64) -> Locked<'a> {
        held::add(1);
        Locked { word, seen, wanted }
    }

    /// Unlocks after a change; returns the new version.
    #[inline(always)]
    pub(crate) fn done(self) -> u64 {
        held::add(-1);
        let next = self.seen + STEP;
        self.word.0.store(next | self.wanted, Ordering::Release);
        std::mem::forget(self);
        next
    }

    /// Unlocks a node that was unlinked: a thread that still finds it starts again.
    pub(crate) fn obsolete(self) {
        held::add(-1);
        self.word.0.store((self.seen + STEP) | OBSOLETE, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        held::add(-1);
        self.word.0.store(self.seen | self.wanted, Ordering::Release);
    }
}

/// The number of nodes that this thread has locked. Used in assertions only; builds without them do not count.
pub(crate) mod held {
    #[cfg(debug_assertions)]
    thread_local! {
        static LOCKS: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
    }

    #[inline(always)]
    pub(super) fn add(_locks: i64) {
        #[cfg(debug_assertions)]
        LOCKS.set(LOCKS.get() + _locks);
    }

    /// Returns whether no node is known to be locked.
    #[inline(always)]
    pub(crate) fn none() -> bool {
        #[cfg(debug_assertions)]
        return LOCKS.get() == 0;
        #[cfg(not(debug_assertions))]
        true
    }
}

/// A claimed version. Dropping it ends the claim.
#[must_use = "the claim ends when this is dropped"]
pub(crate) struct Claimed<'a> {
    word: &'a Version,
    seen: u64,
}

impl<'a> Claimed<'a> {
    /// Locks the node, by a plain store.
    #[inline(always)]
    pub(crate) fn lock(self) -> Locked<'a> {
        let wanted = self.word.0.load(Ordering::Relaxed) & WANTED;
        self.word.0.store(self.seen | LOCKED, Ordering::Relaxed);
        // No store of the section may be seen before the lock bit.
        fence(Ordering::Release);
        let lock = Locked::new(self.word, self.seen, wanted);
        std::mem::forget(self);
        lock
    }

    /// Leaves the node claimed, for [`Version::resume`].
    #[inline(always)]
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Claimed<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let wanted = self.word.0.load(Ordering::Relaxed) & WANTED;
        self.word.0.store(self.seen | wanted, Ordering::Release);
    }
}

/// Repeats `attempt` until it succeeds, waiting a little before each try. For an operation that has failed once
/// already.
#[cold]
#[inline(never)]
pub(crate) fn retry<T>(mut attempt: impl FnMut() -> Result<T, Restart>) -> T {
    let mut spins = 0;
    loop {
        hither_sync::pause(&mut spins);
        if let Ok(done) = attempt() {
            return done;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_exclude_and_count() {
        let version = Version::new();
        let seen = version.read().expect("alive");
        let lock = version.lock(seen).expect("free");
        assert!(version.lock(seen).is_err());
        assert!(version.try_read().is_err());
        drop(lock);
        assert!(version.same(seen), "no change, no new version");
        let next = version.lock(seen).expect("free").done();
        assert!(!version.same(seen) && version.same(next));
        version.lock(next).expect("free").obsolete();
        assert_eq!(version.read(), Err(Restart));
        version.come_alive();
        assert!(version.read().expect("alive again") > next);
    }

    #[test]
    fn claims_keep_writers_out_and_readers_do_not_see_them() {
        let version = Version::new();
        let seen = version.read().expect("alive");
        version.claim(seen).expect("free").keep();
        assert_eq!(version.read(), Ok(seen));
        assert_eq!(version.try_read(), Ok(seen));
        assert!(version.same(seen), "a claim is no change");
        assert!(version.lock(seen).is_err() && version.claim(seen).is_err());
        assert_eq!(version.read(), Ok(seen), "nor is the mark of a writer that waits");
        let lock = version.resume().lock();
        assert!(version.try_read().is_err());
        let next = lock.done();
        assert_eq!(version.try_read(), Ok(next));
        assert!(!version.same(seen) && version.same(next));
    }

    #[test]
    fn a_wanted_node_is_locked_before_it_is_claimed_over_a_flush() {
        let version = Version::new();
        let mut seen = version.read().expect("alive");
        for change in [true, false] {
            let claim = version.claim(seen).expect("free");
            assert!(version.lock(seen).is_err());
            if change {
                seen = claim.lock().done();
            } else {
                drop(claim);
            }
            assert!(version.claim(seen).is_err(), "somebody waits");
            drop(version.claim_wanted(seen).expect("a structure change need not stand back"));
            drop(version.claim(seen).expect("it has had the node"));
        }
        drop(version.claim(seen).expect("free"));
        assert!(version.lock(seen).is_ok(), "nobody waits");
    }

    #[test]
    fn claims_locks_and_reads_exclude() {
        let (version, words) = (Version::new(), [AtomicU64::new(0), AtomicU64::new(0)]);
        let bump = || words.iter().for_each(|word| word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
        let write = |claims: bool| {
            let Ok(seen) = version.try_read() else { return false };
            let lock = if claims { version.claim(seen).map(Claimed::lock) } else { version.lock(seen) };
            lock.map(|lock| (bump(), lock.done())).is_ok()
        };
        const TIMES: usize = 20_000;
        std::thread::scope(|scope| {
            for claims in [true, false, true] {
                scope.spawn(move || {
                    (0..TIMES).for_each(|_| {
                        while !write(claims) {
                            std::thread::yield_now()
                        }
                    })
                });
            }
            scope.spawn(|| {
                while words[0].load(Ordering::Relaxed) < 3 * TIMES as u64 {
                    let Ok(seen) = version.read() else { continue };
                    let read = [0, 1].map(|i: usize| words[i].load(Ordering::Relaxed));
                    assert!(!version.same(seen) || read[0] == read[1], "torn: {read:?}");
                }
            });
        });
        assert_eq!(words[1].load(Ordering::Relaxed), 3 * TIMES as u64);
    }
}
