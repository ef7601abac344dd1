//! The version word of a node: optimistic reads, exclusive writes (optimistic lock coupling).
//!
//! Bit 0: locked. Bit 1: obsolete, that is, unlinked or free. The rest counts changes; it never goes back, not even when the node's
//! memory is recycled, so that a version seen once names one state of one life of a node.
//!
//! * A reader takes the version, reads with relaxed loads, and asks whether the version is still [`Version::same`]. If not,
//!   it throws away what it read and starts again ([`Restart`]).
//! * A writer locks a node *at the version that it has read* and so knows that all it read still holds. It never waits for a
//!   lock while it holds another, so there is no deadlock: it gives up and restarts.
//!
//! # Memory order
//!
//! Locking is an acquire exchange followed by a release fence, so that no store of the section becomes visible before the
//! lock; unlocking is a release store. A reader loads the version with acquire and validates behind an acquire fence: had it read
//! a value of a later section, the fence pairs with that section's release fence and the version differs.

use std::sync::atomic::{AtomicU64, Ordering, fence};

const LOCKED: u64 = 1;
const OBSOLETE: u64 = 2;
const STEP: u64 = 4;
const FLAGS: u64 = LOCKED | OBSOLETE;

/// What was read no longer holds: start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restart;

/// The word. `repr(transparent)`: nodes are arrays of atomic words and the first one is this.
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
        if version & FLAGS == 0 { Ok(version) } else { self.read_slow() }
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
                return Ok(version);
            }
            back_off(&mut spins);
        }
    }

    /// The current version if the node is neither locked nor obsolete. For whoever holds locks and must not wait, and for searches, which
    /// wait at their beginning: the way to a wait in their midst costs registers all along.
    #[inline(always)]
    pub(crate) fn try_read(&self) -> Result<u64, Restart> {
        let version = self.0.load(Ordering::Acquire);
        if version & FLAGS == 0 { Ok(version) } else { Err(Restart) }
    }

    /// Whether nothing has changed since the version was `seen`: all loads before this call saw that state.
    #[inline(always)]
    pub(crate) fn same(&self, seen: u64) -> bool {
        // Orders the reader's relaxed loads before the load of the version.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == seen
    }

    /// [`Version::same`] as a result.
    #[inline(always)]
    pub(crate) fn check(&self, seen: u64) -> Result<(), Restart> {
        if self.same(seen) { Ok(()) } else { Err(Restart) }
    }

    /// Locks the node if its version is still `seen`.
    #[inline(always)]
    pub(crate) fn lock(&self, seen: u64) -> Result<Locked<'_>, Restart> {
        debug_assert_eq!(seen & FLAGS, 0);
        if self.0.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(Restart);
        }
        // No store of the section may be seen before the lock bit.
        fence(Ordering::Release);
        Ok(Locked { word: self, seen })
    }

    /// Marks fresh memory as not yet alive. Only for whoever the arena has just given it.
    pub(crate) fn begin_life(&self) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version | OBSOLETE, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Ends the preparation of a fresh node: readers may now find it.
    pub(crate) fn come_alive(&self) {
        let version = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(version & FLAGS, OBSOLETE);
        self.0.store((version & !FLAGS) + STEP, Ordering::Release);
    }
}

/// A locked version. Dropping it unlocks *without* a change: the holder has stored nothing.
#[must_use = "the node is unlocked when this is dropped"]
pub(crate) struct Locked<'a> {
    word: &'a Version,
    seen: u64,
}

impl Locked<'_> {
    /// Unlocks after a change; returns the new version.
    #[inline(always)]
    pub(crate) fn done(self) -> u64 {
        let next = self.seen + STEP;
        self.word.0.store(next, Ordering::Release);
        std::mem::forget(self);
        next
    }

    /// Unlocks a node that was unlinked: whoever finds it starts again.
    pub(crate) fn obsolete(self) {
        self.word.0.store((self.seen + STEP) | OBSOLETE, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.0.store(self.seen, Ordering::Release);
    }
}

/// Makes `attempt` until it succeeds, waiting a little before each: for what has failed once already.
#[cold]
#[inline(never)]
pub(crate) fn retry<T>(mut attempt: impl FnMut() -> Result<T, Restart>) -> T {
    let mut spins = 0;
    loop {
        back_off(&mut spins);
        if let Ok(done) = attempt() {
            return done;
        }
    }
}

/// Spins at first, then lets others run.
pub(crate) fn back_off(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
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
}
