//! Striped key latches: a write holds its key's stripe from reading the old reference to installing the new one.
//!
//! Each stripe fills a padded line of its own and remembers the last version that was given out under it. Versions of
//! one key therefore grow although threads draw them from blocks of their own, and no write touches a store-wide
//! counter.
//!
//! # State word
//!
//! Bit 0: held. Bits 63..8 are reserved for the identity of a transaction that owns the stripe; plain writes will wait
//! for that transaction.
//!
//! # Threads that panic
//!
//! The guard releases on unwinding. The protected state (the index) changes by single steps, so a panic leaves it
//! consistent.

use crate::Padded;
use crate::atomic::{AtomicU64, Ordering};
use crate::pause::pause;

const HELD: u64 = 1;

/// One latch of a table.
pub struct Stripe {
    state: AtomicU64,
    /// Written only by the holder; other threads may read it.
    last_version: AtomicU64,
    /// The version of the last delete under this latch: a reader that finds a key absent may have to wait until that
    /// delete is durable.
    last_delete: AtomicU64,
}

/// A table of latches.
pub struct LatchTable {
    /// A power of two of them.
    stripes: Box<[Padded<Stripe>]>,
}

impl LatchTable {
    /// A table of `stripes` latches, rounded up to a power of two, whose versions start above `floor`.
    pub fn new(stripes: usize, floor: u64) -> Self {
        let count = stripes.next_power_of_two();
        let stripe = || Padded(Stripe { state: AtomicU64::new(0), last_version: AtomicU64::new(floor), last_delete: AtomicU64::new(0) });
        LatchTable { stripes: (0..count).map(|_| stripe()).collect() }
    }

    /// The stripe that guards keys with this hash.
    #[inline(always)]
    pub fn stripe_of(&self, hash: u64) -> usize {
        // The hash index chooses its segments and pairs by other bits. Keys of one latch have similar tags there, which
        // does no harm.
        (hash >> 20) as usize & (self.stripes.len() - 1)
    }

    /// The latch of keys with this hash.
    #[inline(always)]
    pub fn of(&self, hash: u64) -> &Stripe {
        // SAFETY: the table has a power of two of stripes, so there is one of that number.
        unsafe { self.stripes.get_unchecked(self.stripe_of(hash)) }
    }

    /// Starts loading the stripe's line for writing.
    #[inline(always)]
    pub fn prefetch(&self, stripe: usize) {
        self.stripes[stripe].prefetch();
    }

    /// The version of the last delete under `stripe`. A reader that did not find a key loads it after the lookup.
    #[inline]
    pub fn last_delete(&self, stripe: usize) -> u64 {
        self.stripes[stripe].last_delete.load(Ordering::Acquire)
    }

    /// Takes the latch `stripe`; see [`Stripe::lock`].
    #[inline(always)]
    pub fn lock(&self, stripe: usize) -> LatchGuard<'_> {
        self.stripes[stripe].lock()
    }

    /// Waits until nobody holds the latch `stripe`; see [`Stripe::wait_until_free`].
    #[inline]
    pub fn wait_until_free(&self, stripe: usize) {
        self.stripes[stripe].wait_until_free();
    }

    /// Takes all of `stripes`, in the order given, if that is possible without waiting. Returns `None`, with nothing
    /// taken, if one of them is held. A stripe that occurs twice counts as held.
    #[inline(always)]
    pub fn try_lock_set<'a>(&'a self, stripes: &'a [usize]) -> Option<LatchSet<'a>> {
        self.take_free(stripes).ok()
    }

    /// As [`LatchTable::try_lock_set`]; an error names the stripe that is held.
    #[inline(always)]
    fn take_free<'a>(&'a self, stripes: &'a [usize]) -> Result<LatchSet<'a>, usize> {
        let mut set = LatchSet { table: self, stripes: &stripes[..0] };
        for (i, &stripe) in stripes.iter().enumerate() {
            if self.stripes[stripe].state.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
                return Err(stripe);
            }
            // Not an inclusive range, which the compiler builds in memory and passes to a function.
            set.stripes = &stripes[..i + 1];
        }
        Ok(set)
    }

    /// Takes all of `stripes`, waiting for each. They must be in strictly ascending order: then two callers cannot wait
    /// for each other.
    ///
    /// While it waits, it holds none of them, at first: its holder may have lost its processor for milliseconds, and
    /// everyone who needs one of the others would wait as long (`docs/measurements/paths.md`). After some vain attempts
    /// it takes one after the other, and so comes to an end beside any number of shorter sections.
    pub fn lock_set<'a>(&'a self, stripes: &'a [usize]) -> LatchSet<'a> {
        const ATTEMPTS: usize = if cfg!(loom) { 1 } else { 16 };
        debug_assert!(stripes.is_sorted_by(|a, b| a < b), "latches are taken in ascending order");
        for _ in 0..ATTEMPTS {
            match self.take_free(stripes) {
                Ok(set) => return set,
                Err(held) => self.wait_until_free(held),
            }
        }
        self.lock_in_order(stripes)
    }

    #[cold]
    fn lock_in_order<'a>(&'a self, stripes: &'a [usize]) -> LatchSet<'a> {
        let mut set = LatchSet { table: self, stripes: &stripes[..0] };
        for (i, &stripe) in stripes.iter().enumerate() {
            std::mem::forget(self.lock(stripe));
            set.stripes = &stripes[..=i];
        }
        set
    }
}

impl Stripe {
    /// Starts loading the stripe's line for writing.
    #[inline(always)]
    pub fn prefetch(&self) {
        crate::prefetch_write(self);
    }

    /// The last version given out under this latch. Only a hint for a caller that does not hold the latch.
    #[inline(always)]
    pub fn last_version_hint(&self) -> u64 {
        self.last_version.load(Ordering::Relaxed)
    }

    /// Takes the latch, waiting as in [`crate::pause()`]. Not fair, not re-entrant.
    #[inline(always)]
    pub fn lock(&self) -> LatchGuard<'_> {
        if self.state.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        LatchGuard { latch: self }
    }

    #[cold]
    fn lock_slow(&self) {
        let mut rounds = 0;
        loop {
            if self.state.load(Ordering::Relaxed) == 0
                && self.state.compare_exchange_weak(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            pause(&mut rounds);
        }
    }

    /// Returns once nobody holds the latch. A caller that has seen an effect of the holder's section then sees
    /// everything that this holder did.
    ///
    /// Costs one load if the latch is free. Does not wait for later holders on purpose, but may meet them.
    #[inline(always)]
    pub fn wait_until_free(&self) {
        if self.state.load(Ordering::Acquire) != 0 {
            self.wait_slow();
        }
    }

    #[cold]
    fn wait_slow(&self) {
        let mut rounds = 0;
        while self.state.load(Ordering::Acquire) != 0 {
            pause(&mut rounds);
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

    /// Notes that `version` is a delete. Call before the delete becomes visible.
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

/// Several held latches.
#[must_use = "the latches are released when the set is dropped"]
pub struct LatchSet<'a> {
    table: &'a LatchTable,
    /// The latches that are held.
    stripes: &'a [usize],
}

impl<'a> LatchSet<'a> {
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = &'a Stripe> {
        let table = self.table;
        self.stripes.iter().map(move |&stripe| &table.stripes[stripe].0)
    }

    /// The largest last version given out under any of them.
    #[inline(always)]
    pub fn last_version(&self) -> u64 {
        self.each().fold(0, |last, latch| last.max(latch.last_version.load(Ordering::Relaxed)))
    }

    /// As [`LatchGuard::set_last_version`], for each.
    #[inline(always)]
    pub fn set_last_version(&self, version: u64) {
        self.each().for_each(|latch| latch.last_version.store(version, Ordering::Relaxed));
    }

    /// As [`LatchGuard::set_last_delete`], for one of the held stripes.
    pub fn set_last_delete(&self, stripe: usize, version: u64) {
        debug_assert!(self.stripes.contains(&stripe), "stripe {stripe} is not held");
        self.table.stripes[stripe].0.last_delete.store(version, Ordering::Release);
    }
}

impl Drop for LatchSet<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // As for one latch: only the holder writes the states.
        self.each().for_each(|latch| latch.state.store(0, Ordering::Release));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn excludes_and_orders_versions() {
        let table = LatchTable::new(3, 7);
        assert_eq!(table.stripes.len(), 4);
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

    /// Regression: whoever waited for a thread that waited for a disk kept a processor busy.
    #[test]
    fn who_waits_for_long_leaves_the_processor_to_others() {
        let table = LatchTable::new(1, 0);
        let held = table.lock(0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                drop(table.lock(0));
                crate::pause::tests::processor_time()
            });
            std::thread::sleep(Duration::from_millis(500));
            drop(held);
            let used = waiter.join().expect("it ends");
            assert!(used < Duration::from_millis(200), "{used:?} of processor time");
        });
    }

    #[test]
    fn sets_are_taken_wholly_or_not_at_all() {
        let table = LatchTable::new(8, 3);
        assert!(table.try_lock_set(&[5, 1, 5]).is_none(), "a stripe that occurs twice is held already");
        let single = table.lock(4);
        assert!(table.try_lock_set(&[6, 4, 2]).is_none());
        drop(single);
        let set = table.try_lock_set(&[6, 4, 2]).expect("what a vain attempt took is free again");
        set.set_last_version(9);
        set.set_last_delete(4, 8);
        assert!(table.try_lock_set(&[2]).is_none());
        drop(set);
        let set = table.lock_set(&[1, 2, 4, 5]);
        assert_eq!((set.last_version(), table.last_delete(4), table.last_delete(2)), (9, 8, 0));
        drop(set);
        drop(table.lock_set(&[]));
        for stripe in 0..8 {
            drop(table.lock(stripe));
        }
    }

    /// Regression: who waited for one latch of a set kept the others, and everyone who needed those waited, too.
    #[test]
    fn who_waits_for_one_latch_of_a_set_holds_none() {
        let table = LatchTable::new(8, 0);
        let began = AtomicU64::new(0);
        let held = table.lock(5);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                began.store(1, Ordering::Relaxed);
                table.lock_set(&[1, 2, 5]).last_version()
            });
            while began.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            let others = table.try_lock_set(&[1, 2]);
            drop(held);
            others.expect("a latch is held by a thread that waits").set_last_version(7);
            assert_eq!(waiter.join().expect("it ends"), 7);
        });
    }

    /// In either way: by attempts, and one by one where these are used up.
    #[test]
    fn a_set_keeps_others_out_however_it_was_taken() {
        let table = LatchTable::new(8, 0);
        let (ends, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for stripe in [3, 6] {
                scope.spawn({
                    let (table, ends, taken) = (&table, &ends, &taken);
                    move || {
                        while ends.load(Ordering::Relaxed) == 0 {
                            let guard = table.lock(stripe);
                            guard.set_last_version(guard.last_version() + 1);
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for round in 0..200 {
                let set = if round % 2 == 0 { table.lock_set(&[3, 6]) } else { table.lock_in_order(&[3, 6]) };
                let (last, before) = (set.last_version(), taken.load(Ordering::Relaxed));
                set.set_last_version(last + 1);
                std::thread::yield_now();
                assert_eq!(taken.load(Ordering::Relaxed), before, "others hold a latch of the set");
            }
            ends.store(1, Ordering::Relaxed);
        });
    }

    #[test]
    fn waiting_ends_with_the_holder() {
        let table = LatchTable::new(4, 0);
        let done = AtomicU64::new(0);
        table.wait_until_free(2);
        let guard = table.lock(2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                table.wait_until_free(2);
                done.load(Ordering::Relaxed)
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(!waiter.is_finished());
            done.store(1, Ordering::Relaxed);
            drop(guard);
            assert_eq!(waiter.join().unwrap(), 1);
        });
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
