//! Turns: each thread frequently takes a turn of its own; rarely, one thread takes all turns.
//!
//! This is a reader–writer lock whose common case costs two plain stores. A lock word that is changed by a locked
//! instruction would be correct too. But such an instruction waits until all earlier stores have left the processor,
//! and thereby for the flush of the write that was made in the turn: the flush could not overlap with the thread's next
//! write.
//!
//! # Contract
//!
//! 1. While a thread holds all turns ([`Turns::all`]), no other thread holds any. Everything done in any earlier turn
//!    is visible to the holder of all turns, and everything that holder has done is visible to each later turn.
//! 2. A thread takes only its own turn ([`Turns::own`]), and one at a time; a thread that holds its own turn must not
//!    call [`Turns::all`]. Then there is no deadlock.
//! 3. A thread that wants all turns waits until each turn has ended once. A thread that wants its own turn while
//!    another holds all turns waits at the same gate as the threads that want all, and takes its turn there. It
//!    therefore gets its turn however many of those threads there are; the gate is fair in the long run.
//!
//! # How
//!
//! A thread stores its `busy`, then loads `alone`; the thread that wants all turns stores `alone`, then loads every
//! `busy`. At least one of the two sees the other's store ([`Barrier`]).
//!
//! Thread safety: any thread. A panic in a turn ends the turn. Nothing is on media.

use crate::Padded;
use crate::atomic::{AtomicBool, Ordering};
use crate::barrier::Barrier;
use crate::pause::pause;

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use parking_lot::{Mutex, MutexGuard};

/// The turns of all threads.
pub struct Turns {
    /// Whether a thread has its turn; only that thread stores it.
    busy: Box<[Padded<AtomicBool>]>,
    /// A thread has all turns, or waits for the last turns to end.
    alone: Padded<AtomicBool>,
    /// Held while `alone` is set.
    gate: Mutex<()>,
    barrier: Barrier,
}

/// A thread's turn; it ends when this is dropped.
#[must_use]
pub struct Own<'a>(&'a AtomicBool);

/// All turns, until this is dropped.
#[must_use]
pub struct All<'a> {
    alone: &'a AtomicBool,
    _gate: MutexGuard<'a, ()>,
}

impl Turns {
    /// Turns for `threads` threads.
    pub fn new(threads: usize) -> Turns {
        let barrier = Barrier::new();
        barrier.detect();
        let busy = (0..threads).map(|_| Padded(AtomicBool::new(false))).collect();
        Turns { busy, alone: Padded(AtomicBool::new(false)), gate: Mutex::new(()), barrier }
    }

    /// Takes the turn of `thread`. Call on that thread.
    #[inline]
    pub fn own(&self, thread: usize) -> Own<'_> {
        let busy = &self.busy[thread].0;
        busy.store(true, Ordering::Relaxed);
        self.barrier.light();
        // Acquire: to see what the last holder of all turns has done.
        if self.alone.load(Ordering::Acquire) {
            self.wait(busy);
        }
        Own(busy)
    }

    #[cold]
    fn wait(&self, busy: &AtomicBool) {
        busy.store(false, Ordering::Release);
        let _gate = self.enter();
        // The gate orders this store: the next thread that passes the gate sees it.
        busy.store(true, Ordering::Relaxed);
    }

    /// Takes all turns. Waits until those under way have ended.
    #[cold]
    pub fn all(&self) -> All<'_> {
        let gate = self.enter();
        self.alone.store(true, Ordering::Relaxed);
        let all = All { alone: &self.alone, _gate: gate };
        self.barrier.heavy();
        // Most turns take microseconds; one whose write waits for space may take a second.
        let mut rounds = 0;
        for busy in &self.busy {
            // Acquire: to see what was done in that turn.
            while busy.load(Ordering::Acquire) {
                pause(&mut rounds);
            }
        }
        all
    }

    fn enter(&self) -> MutexGuard<'_, ()> {
        #[cfg(loom)]
        return self.gate.lock().unwrap();
        #[cfg(not(loom))]
        self.gate.lock()
    }
}

impl Drop for Own<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for All<'_> {
    fn drop(&mut self) {
        self.alone.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicU64;

    /// The data that the turns protect: a counter for each thread. Its owner changes it in its turn, and the holder of
    /// all turns may change it, too.
    struct Counters(Vec<Padded<UnsafeCell<u64>>>);

    // SAFETY: the turns decide which thread may access which counter; the test checks that they do.
    unsafe impl Sync for Counters {}

    #[test]
    fn no_step_is_lost_between_owners_and_those_alone() {
        const THREADS: usize = 3;
        const STEPS: u64 = 20_000;
        let (turns, counters) = (Turns::new(THREADS), Counters((0..THREADS).map(|_| Padded(UnsafeCell::new(0))).collect()));
        let (turns, counters, rounds) = (&turns, &counters, &AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for _ in 0..STEPS {
                        let _turn = turns.own(thread);
                        // SAFETY: contract 1.
                        unsafe { *counters.0[thread].0.get() += 1 };
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _all = turns.all();
                        rounds.fetch_add(1, Ordering::Relaxed);
                        // SAFETY: contract 1.
                        counters.0.iter().for_each(|counter| unsafe { *counter.0.get() += 1 });
                    }
                });
            }
        });
        let rounds = rounds.load(Ordering::Relaxed);
        // SAFETY: nobody else is left.
        assert!(counters.0.iter().all(|counter| unsafe { *counter.0.get() } == STEPS + rounds));
    }

    #[test]
    fn a_panic_ends_the_turn() {
        let turns = Turns::new(1);
        for all in [false, true] {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _held = (all.then(|| turns.all()), (!all).then(|| turns.own(0)));
                panic!("for the test");
            }));
            assert!(panicked.is_err());
        }
        drop(turns.all());
        drop(turns.own(0));
    }
}
