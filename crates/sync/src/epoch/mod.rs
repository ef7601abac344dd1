//! Epochs: readers announce that they are inside, reclaimers wait until everybody who might still look has left.
//!
//! One process-wide domain serves all stores. A thread *pins* itself for the length of an operation ([`pin`]); a
//! *writer section* ([`pin_writer`]) is a pin that [`synchronize_writers`] waits for too, which is how the engine finds the
//! largest version below which everything is installed (`docs/adr/0003`).
//!
//! # Cost
//!
//! A pin is a relaxed store and the cheap half of a barrier, whose expensive half runs on the reclaimer's side.
//!
//! # Invariants
//!
//! * E1. A slot's state is 0 (outside) or `epoch << 2 | writer << 1 | 1`, written only by the thread that owns the slot.
//! * E2. A thread pinned at epoch e may hold anything that was reachable when the global epoch became e; whoever made a
//!   thing unreachable before raising the global epoch to e+1 may free it once no slot shows an epoch ≤ e.
//! * E3. Pins nest; the outermost one's epoch protects all. A writer section inside a reader's pin sets the writer bit and keeps the epoch.
//!
//! # Threads that end, panic or fork
//!
//! A guard unpins when it is dropped, also by unwinding. A thread's slot is given back when the thread ends; a pin that a thread-local value takes in its destructor
//! later than that, or ends there, gives back the slot that it used. A forked child must not use
//! a store of its parent (its pool mappings are not inherited), nor open one of its own before it executes another program: a pin that a thread of the parent held
//! at the fork stays in the child's copy, and whoever waits for pins there waits for ever.

mod deferred;
mod domain;

pub use deferred::{collect, defer, pending};
pub use domain::Domain;

#[cfg(not(loom))]
mod global {
    use super::domain::{Domain, Slot};
    use std::cell::Cell;

    static DOMAIN: Domain = Domain::new();

    thread_local! {
        /// The thread's slot and nesting depth. Const-initialised and without destructor, so that access is one offset.
        static LOCAL: Local = const { Local { slot: Cell::new(std::ptr::null()), pins: Cell::new(LONG_WAY) } };
        /// Gives the slot back at thread exit.
        static OWNER: Owner = const { Owner };
    }

    struct Local {
        slot: Cell<*const Slot>,
        /// Guards in the low half, writer sections among them above, and [`LONG_WAY`]. Zero, and one comparison tells, if the thread has a slot, holds no
        /// guard, and needs no fence to announce one. One word: two would be loaded together but stored apart, and such a load waits until the
        /// stores have left the store buffer, which a flush before them holds up.
        pins: Cell<u64>,
    }

    const ONE_GUARD: u64 = 1;
    const ONE_WRITER: u64 = 1 << 32;
    const GUARDS: u64 = ONE_WRITER - 1;
    /// The thread has no slot yet, or the kernel has no barrier that would spare it a fence.
    const LONG_WAY: u64 = 1 << 63;
    /// The thread's values are being destroyed, [`OWNER`] among them: nobody but the last guard gives a slot back. Only with [`LONG_WAY`].
    const ENDING: u64 = 1 << 62;
    const WRITERS: u64 = ENDING - ONE_WRITER;

    struct Owner;

    impl Drop for Owner {
        fn drop(&mut self) {
            LOCAL.with(|local| {
                local.pins.set(local.pins.get() | LONG_WAY | ENDING);
                // A guard may live longer, in another thread-local value: the slot stays its own.
                if local.pins.get() & GUARDS == 0 {
                    give_back(local);
                }
            });
        }
    }

    /// Gives the thread's slot back, which no guard needs any more.
    fn give_back(local: &Local) {
        let slot = local.slot.replace(std::ptr::null());
        if !slot.is_null() {
            // SAFETY: slots are never freed, and this one was acquired by this thread.
            unsafe { (*slot).release() };
        }
    }

    #[cold]
    fn register(local: &Local) -> *const Slot {
        let slot: *const Slot = DOMAIN.acquire();
        local.slot.set(slot);
        // A failure means that the thread is past that destructor, which has left a mark: the last guard then gives the slot back.
        let _ = OWNER.try_with(|_| ());
        if local.pins.get() & ENDING == 0 && DOMAIN.announces_without_fence() {
            local.pins.set(local.pins.get() & !LONG_WAY);
        }
        slot
    }

    /// A pin: while it lives, nothing that was reachable when it was taken is reclaimed. Neither `Send` nor `Sync`.
    #[must_use = "the pin ends when the guard is dropped"]
    pub struct Guard {
        /// The thread's, so that the end of a pin need not look for it again: that costs a call through a pointer where it is not inlined.
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
            if local.pins.get() == 0 {
                local.pins.set(weight(writer));
                // SAFETY: slots are never freed; this one belongs to this thread, which has one, as its word tells.
                DOMAIN.announce_without_fence(unsafe { &*local.slot.get() }, writer);
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

    /// As [`enter`], whatever the thread's word says.
    #[inline(never)]
    fn enter_closely(local: &Local, writer: bool) {
        let mut slot = local.slot.get();
        if slot.is_null() {
            slot = register(local);
        }
        // SAFETY: slots are never freed; this one belongs to this thread.
        let slot = unsafe { &*slot };
        let pins = local.pins.get();
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
        /// Ends the pin, as dropping it does, but always in place: the compiler makes a function of the glue around a drop where it occurs twice.
        #[inline(always)]
        pub fn leave(self) {
            std::mem::ManuallyDrop::new(self).unpin();
        }

        #[inline(always)]
        fn unpin(&self) {
            // SAFETY: the guard is dropped on the thread that took it (it is not `Send`), whose storage has no destructor and lives until the
            // thread has ended.
            let local = unsafe { &*self.local };
            let pins = local.pins.get() - weight(self.writer);
            local.pins.set(pins);
            if pins == 0 {
                // SAFETY: a thread that has held a guard has a slot, and slots are never freed.
                unsafe { (*local.slot.get()).leave() };
            } else {
                leave_closely(local, pins, self.writer);
            }
        }

        /// Whether it is a writer section.
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

    /// What is left to do at the end of a guard after which `pins` are left.
    #[inline(never)]
    fn leave_closely(local: &Local, pins: u64, writer: bool) {
        // SAFETY: as in `Guard::unpin`: while a thread holds a guard it keeps its slot.
        let slot = unsafe { &*local.slot.get() };
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
        LOCAL.with(|local| local.pins.get() & GUARDS > 0)
    }

    /// A small dense number of the current thread, reused after its exit: good for picking a per-thread slot. While the thread's thread-local values are destroyed it
    /// is the thread's for the length of a pin only.
    #[inline(always)]
    pub fn thread_number() -> usize {
        LOCAL.with(|local| {
            let slot = local.slot.get();
            if slot.is_null() {
                return first_number();
            }
            // SAFETY: slots are never freed.
            unsafe { (*slot).number }
        })
    }

    /// The number of a thread that has no slot yet. By a pin, at whose end a slot is given back that the thread's end would not give back.
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

    /// Waits until every writer section that began before this call has ended.
    ///
    /// # Panics
    /// If the current thread is in a writer section.
    pub fn synchronize_writers() {
        assert!(LOCAL.with(|local| local.pins.get() & WRITERS == 0), "synchronize_writers() inside a writer section would wait for itself");
        DOMAIN.synchronize(true);
    }

    /// Raises the epoch and returns a stamp: what was made unreachable before may be reclaimed once [`has_passed`].
    pub fn stamp() -> u64 {
        DOMAIN.stamp()
    }

    /// Whether every pin that began before `stamp` was drawn has ended. Never blocks. O(threads).
    pub fn has_passed(stamp: u64) -> bool {
        DOMAIN.has_passed(stamp, false)
    }

    /// Whether every writer section of the thread with this number that began before `stamp` was drawn has ended. Never blocks.
    pub fn writer_has_passed(stamp: u64, thread_number: usize) -> bool {
        DOMAIN.writer_has_passed(stamp, thread_number)
    }
}

#[cfg(not(loom))]
pub use global::{
    Guard, has_passed, is_pinned, pin, pin_writer, stamp, synchronize, synchronize_writers, thread_number, writer_has_passed,
};

#[cfg(all(test, not(loom)))]
mod tests;
