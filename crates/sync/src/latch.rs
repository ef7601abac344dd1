//! Striped key latches (decision 4): a write holds its key's stripe from reading the old reference to installing the new one.
//!
//! Each stripe fills a padded line of its own and remembers the last version that was given out under it, so that versions
//! of one key grow although threads draw them from blocks of their own: no store-wide counter is touched per write.
//!
//! # State word
//!
//! Bit 0: held. Bits 63..8 are reserved for the identity of a transaction that owns the stripe; plain writes will wait for it.
//!
//! # Threads that panic
//!
//! The guard releases on unwinding. The protected state (the index) changes by single steps, so a panic leaves it consistent.

use crate::Padded;
use crate::atomic::{AtomicU64, Ordering, yield_now};

const HELD: u64 = 1;

/// One latch of a table.
pub struct Stripe {
    state: AtomicU64,
    /// Read and written only by the holder; atomic so that statistics may look.
    last_version: AtomicU64,
    /// The last delete among them: whoever finds a key absent may have to wait until that is durable.
    last_delete: AtomicU64,
}

/// A table of latches.
pub struct LatchTable {
    stripes: Box<[Padded<Stripe>]>,
    mask: usize,
}

impl LatchTable {
    /// A table of `stripes` latches, rounded up to a power of two, whose versions start above `floor`.
    pub fn new(stripes: usize, floor: u64) -> Self {
        let count = stripes.next_power_of_two();
        let stripe = || Padded(Stripe { state: AtomicU64::new(0), last_version: AtomicU64::new(floor), last_delete: AtomicU64::new(0) });
        LatchTable { stripes: (0..count).map(|_| stripe()).collect(), mask: count - 1 }
    }

    /// The stripe that guards keys with this hash.
    #[inline(always)]
    pub fn stripe_of(&self, hash: u64) -> usize {
        // The index uses the high bits and the tag bits; the latches use bits of their own.
        (hash >> 20) as usize & self.mask
    }

    /// The latch of keys with this hash.
    #[inline(always)]
    pub fn of(&self, hash: u64) -> &Stripe {
        &self.stripes[self.stripe_of(hash)]
    }

    /// Starts loading the stripe's line for writing.
    #[inline(always)]
    pub fn prefetch(&self, stripe: usize) {
        self.stripes[stripe].prefetch();
    }

    /// The version of the last delete under `stripe`. Readers that did not find a key load it after the lookup.
    #[inline]
    pub fn last_delete(&self, stripe: usize) -> u64 {
        self.stripes[stripe].last_delete.load(Ordering::Acquire)
    }

    /// Takes the latch `stripe`; see [`Stripe::lock`].
    #[inline(always)]
    pub fn lock(&self, stripe: usize) -> LatchGuard<'_> {
        self.stripes[stripe].lock()
    }
}

impl Stripe {
    /// Starts loading its line for writing.
    #[inline(always)]
    pub fn prefetch(&self) {
        crate::prefetch_write(self);
    }

    /// Takes the latch, spinning briefly, then yielding. Not fair, not re-entrant.
    #[inline(always)]
    pub fn lock(&self) -> LatchGuard<'_> {
        if self.state.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        LatchGuard { latch: self }
    }

    #[cold]
    fn lock_slow(&self) {
        let mut spins = 0u32;
        loop {
            if self.state.load(Ordering::Relaxed) == 0
                && self.state.compare_exchange_weak(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            spins += 1;
            if spins < 128 && !cfg!(loom) {
                std::hint::spin_loop();
            } else {
                yield_now();
            }
        }
    }
}

/// A held latch.
#[must_use = "the latch is released when the guard is dropped"]
pub struct LatchGuard<'a> {
    latch: &'a Stripe,
}

impl LatchGuard<'_> {
    /// The last version given out under this latch.
    #[inline(always)]
    pub fn last_version(&self) -> u64 {
        self.latch.last_version.load(Ordering::Relaxed)
    }

    /// Notes that `version` was given out.
    #[inline(always)]
    pub fn set_last_version(&self, version: u64) {
        self.latch.last_version.store(version, Ordering::Relaxed);
    }

    /// Notes that `version` deletes. Call before the delete becomes visible.
    #[inline(always)]
    pub fn set_last_delete(&self, version: u64) {
        self.latch.last_delete.store(version, Ordering::Release);
    }
}

impl Drop for LatchGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Only the holder writes the state, so a plain store releases it.
        self.latch.state.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_orders_versions() {
        let table = LatchTable::new(3, 7);
        assert_eq!(table.mask, 3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let guard = table.lock(2);
                        guard.set_last_version(guard.last_version() + 1);
                    }
                });
            }
        });
        assert_eq!(table.lock(2).last_version(), 40_007);
        assert_eq!(table.lock(1).last_version(), 7);
    }

    #[test]
    fn a_panic_releases() {
        let table = LatchTable::new(1, 0);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = table.lock(0);
            panic!("a planted panic");
        }));
        assert!(caught.is_err());
        drop(table.lock(0));
    }
}
