//! Epochs: readers announce that they are inside; reclaimers wait until every thread that may still read has left.
//!
//! One process-wide domain serves all stores. A thread *pins* itself for the length of an operation ([`pin`]). A
//! *writer section* ([`pin_writer`]) is a pin that [`synchronize_writers`] waits for, too; the engine uses this to find
//! the largest version below which everything is installed (`docs/adr/0003`).
//!
//! # Cost
//!
//! A pin is a relaxed store and the cheap half of a barrier, whose expensive half runs on the reclaimer's side.
//!
//! # Invariants
//!
//! * E1. A slot's state is 0 (outside) or `epoch << 2 | writer << 1 | 1`, written only by the thread that owns the
//!   slot.
//! * E2. A thread pinned at epoch e may hold anything that was reachable when the global epoch became e. A thread that
//!   made an object unreachable before it raised the global epoch to e+1 may free that object once no slot shows an
//!   epoch ≤ e.
//! * E3. Pins nest; the epoch of the outermost pin protects all. A writer section inside a reader's pin sets the writer
//!   bit and keeps the epoch.
//!
//! # Threads that end, panic or fork
//!
//! A guard unpins when it is dropped, also by unwinding. A thread's slot is given back when the thread ends. The
//! destructor of a thread-local value may take a pin after that, or end an older one; the end of that pin gives back
//! the slot that it used.
//!
//! A forked child must not use a store of its parent (its pool mappings are not inherited). It must not open a store of
//! its own either before it executes another program: a pin that a thread of the parent held at the fork stays in the
//! child's copy, and a thread that waits for pins there waits for ever.

mod deferred;
mod domain;

pub use deferred::{collect, defer, pending};
pub use domain::Domain;

#[cfg(not(loom))]
mod global {
    use super::domain::{Domain, Slot};
    use std::cell::Cell;
    use std::time::Instant;

    static DOMAIN: Domain = Domain::new();
    /// Belongs to no thread: [`Local::quick`] points here while the thread must take the long way.
    static OCCUPIED: Slot = Slot::occupied();

    thread_local! {
        /// The thread's slot and nesting depth. Const-initialised and without destructor, so that access is one offset.
        static LOCAL: Local =
            const { Local { quick: Cell::new(&raw const OCCUPIED), slot: Cell::new(std::ptr::null()), pins: Cell::new(LONG_WAY) } };
        /// Gives the slot back at thread exit.
        static OWNER: Owner = const { Owner };
    }

    struct Local {
        /// The thread's slot, if announcing a guard in it needs no fence; else [`OCCUPIED`]. A guard only has to check
        /// whether this slot is free.
        quick: Cell<*const Slot>,
        slot: Cell<*const Slot>,
        /// The number of guards in the low half, the number of writer sections among them above, and the flags
        /// [`LONG_WAY`] and [`ENDING`].
        ///
        /// A guard that announced itself in `quick` is not counted until another one comes: zero means one such guard
        /// or none, and the slot's state distinguishes the two.
        ///
        /// This is one word on purpose: two would be loaded together but stored apart, and such a load waits until the
        /// stores have left the store buffer, which an earlier flush holds up.
        pins: Cell<u64>,
    }

    impl Local {
        /// The thread's slot, if it has one.
        fn slot(&self) -> Option<&'static Slot> {
            // SAFETY: slots are never freed.
            unsafe { self.slot.get().as_ref() }
        }

        /// `pins`, including the guard that was not counted.
        fn counted(&self) -> u64 {
            let pins = self.pins.get();
            match self.slot() {
                Some(slot) if pins == 0 && slot.is_announced() => weight(slot.is_writer()),
                _ => pins,
            }
        }
    }

    const ONE_GUARD: u64 = 1;
    const ONE_WRITER: u64 = 1 << 32;
    const GUARDS: u64 = ONE_WRITER - 1;
    /// The thread has no slot yet, or the kernel has no barrier that would spare the thread a fence.
    const LONG_WAY: u64 = 1 << 63;
    /// The thread's values are being destroyed, [`OWNER`] among them: only the end of the last guard gives a slot back.
    /// Set only together with [`LONG_WAY`].
    const ENDING: u64 = 1 << 62;
    const WRITERS: u64 = ENDING - ONE_WRITER;

    struct Owner;

    impl Drop for Owner {
        fn drop(&mut self) {
            LOCAL.with(|local| {
                local.pins.set(local.counted() | LONG_WAY | ENDING);
                local.quick.set(&raw const OCCUPIED);
                // A guard may live longer, in another thread-local value: it keeps the slot.
                if local.pins.get() & GUARDS == 0 {
                    give_back(local);
                }
            });
        }
    }

    /// Gives the thread's slot back. No guard may need it any more.
    fn give_back(local: &Local) {
        if let Some(slot) = local.slot() {
            local.slot.set(std::ptr::null());
            slot.release();
        }
    }

    #[cold]
    fn register(local: &Local) -> &'static Slot {
        let slot = DOMAIN.acquire();
        local.slot.set(slot);
        // A failure means that `OWNER` has been destroyed already, which set `ENDING`: the end of the last guard then
        // gives the slot back.
        let _ = OWNER.try_with(|_| ());
        if local.pins.get() & ENDING == 0 && DOMAIN.announces_without_fence() {
            local.pins.set(local.pins.get() & !LONG_WAY);
            local.quick.set(slot);
        }
        slot
    }

    /// A pin: while it lives, nothing that was reachable when it was taken is reclaimed. Neither `Send` nor `Sync`.
    #[must_use = "the pin ends when the guard is dropped"]
    pub struct Guard {
        /// The thread's `LOCAL`, so that the end of a pin need not look it up again: the lookup costs a call through a
        /// pointer where it is not inlined.
        local: *const Local,
        writer: bool,
    }

    /// Pins the current thread. O(1), no locked instruction.
    #[inline(always)]
    pub fn pin() -> Guard {
        enter(false)
    }

    /// Pins the current thread in a writer section (see [`synchronize_writers`]).
    #[inline(always)]
    pub fn pin_writer() -> Guard {
        enter(true)
    }

    #[inline(always)]
    fn enter(writer: bool) -> Guard {
        LOCAL.with(|local| {
            // SAFETY: slots are never freed; a free one here belongs to this thread.
            let slot = unsafe { &*local.quick.get() };
            if !slot.is_announced() {
                DOMAIN.announce_without_fence(slot, writer);
            } else {
                enter_closely(local, writer);
            }
            Guard { local, writer }
        })
    }

    #[inline(always)]
    fn weight(writer: bool) -> u64 {
        if writer { ONE_GUARD + ONE_WRITER } else { ONE_GUARD }
    }

    /// As [`enter`], whatever slot and guards the thread has.
    #[inline(never)]
    fn enter_closely(local: &Local, writer: bool) {
        let slot = local.slot().unwrap_or_else(|| register(local));
        let pins = local.counted();
        local.pins.set(pins + weight(writer));
        if pins & GUARDS == 0 {
            DOMAIN.announce(slot, writer);
        } else if writer {
            DOMAIN.mark_writer(slot);
        }
    }

    impl Drop for Guard {
        #[inline(always)]
        fn drop(&mut self) {
            self.unpin();
        }
    }

    impl Guard {
        /// Ends the pin as dropping the guard does, but always inline: where drop glue occurs twice, the compiler makes
        /// it a function of its own.
        #[inline(always)]
        pub fn leave(self) {
            std::mem::ManuallyDrop::new(self).unpin();
        }

        #[inline(always)]
        fn unpin(&self) {
            // SAFETY: the guard is dropped on the thread that took it (it is not `Send`). That thread's `LOCAL` has no
            // destructor and lives until the thread has ended.
            let local = unsafe { &*self.local };
            if local.pins.get() == 0 {
                // SAFETY: slots are never freed, and this one is the thread's: a guard that is not counted was
                // announced in it.
                unsafe { (*local.quick.get()).leave() };
            } else {
                leave_closely(local, self.writer);
            }
        }

        /// Whether this is a writer section.
        pub fn is_writer(&self) -> bool {
            self.writer
        }

        /// As [`thread_number`].
        #[inline(always)]
        pub fn thread_number(&self) -> usize {
            // SAFETY: as in `unpin`.
            unsafe { (*(*self.local).slot.get()).number }
        }
    }

    /// As [`Guard::unpin`], where there are several guards or the way is long: then all guards are counted.
    #[inline(never)]
    fn leave_closely(local: &Local, writer: bool) {
        let pins = local.pins.get() - weight(writer);
        local.pins.set(pins);
        let slot = local.slot().expect("a thread keeps its slot while it holds a guard");
        if pins & GUARDS == 0 {
            slot.leave();
            if pins & ENDING != 0 {
                give_back(local);
            }
        } else if writer && pins & WRITERS == 0 {
            slot.clear_writer();
        }
    }

    /// Whether the current thread holds a guard.
    pub fn is_pinned() -> bool {
        LOCAL.with(|local| local.slot().is_some_and(Slot::is_announced))
    }

    /// Whether the current thread is in a writer section.
    pub fn is_writing() -> bool {
        LOCAL.with(|local| local.slot().is_some_and(Slot::is_writer))
    }

    /// A small dense number of the current thread, reused after the thread's exit: good for picking a per-thread slot.
    /// While the thread's thread-local values are destroyed, the number is the thread's only for the length of a pin.
    #[inline(always)]
    pub fn thread_number() -> usize {
        LOCAL.with(|local| local.slot().map_or_else(first_number, |slot| slot.number))
    }

    /// The number of a thread that has no slot yet. Takes a pin for it, because the end of that pin gives back a slot
    /// that the thread's exit would no longer give back.
    #[cold]
    fn first_number() -> usize {
        pin().thread_number()
    }

    /// Waits until every pin that began before this call has ended.
    ///
    /// # Panics
    /// If the current thread is pinned: it would wait for itself.
    pub fn synchronize() {
        assert!(!is_pinned(), "synchronize() inside an epoch pin would wait for itself");
        DOMAIN.synchronize(false);
    }

    /// As [`synchronize`], but waits until `end` at most. Returns whether all those pins have ended.
    ///
    /// # Panics
    /// If the current thread is pinned.
    pub fn synchronize_until(end: Instant) -> bool {
        assert!(!is_pinned(), "synchronize_until() inside an epoch pin would wait for itself");
        let (stamp, mut rounds) = (stamp(), 0);
        while !has_passed(stamp) {
            if Instant::now() >= end {
                return false;
            }
            crate::pause(&mut rounds);
        }
        true
    }

    /// Waits until every writer section that began before this call has ended, and also every later one inside a
    /// reader's pin that began before this call, because it keeps that pin's epoch (E3).
    ///
    /// # Panics
    /// If the current thread is in a writer section.
    pub fn synchronize_writers() {
        assert!(!is_writing(), "synchronize_writers() inside a writer section would wait for itself");
        DOMAIN.synchronize(true);
    }

    /// Raises the epoch and returns a stamp: everything that was made unreachable before may be reclaimed once
    /// [`has_passed`] returns true.
    pub fn stamp() -> u64 {
        DOMAIN.stamp()
    }

    /// Whether every pin that began before `stamp` was drawn has ended. Never blocks. O(threads).
    pub fn has_passed(stamp: u64) -> bool {
        DOMAIN.has_passed(stamp, false)
    }

    /// Whether every writer section of the thread with this number that began before `stamp` was drawn has ended. Never
    /// blocks.
    pub fn writer_has_passed(stamp: u64, thread_number: usize) -> bool {
        DOMAIN.writer_has_passed(stamp, thread_number)
    }
}

#[cfg(not(loom))]
pub use global::{
    Guard, has_passed, is_pinned, is_writing, pin, pin_writer, stamp, synchronize, synchronize_until, synchronize_writers, thread_number,
    writer_has_passed,
};

#[cfg(all(test, not(loom)))]
mod tests;
