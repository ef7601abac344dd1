//! The epoch algorithm proper, free of thread-local state so that loom can drive it.

use crate::Padded;
use crate::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use crate::barrier::Barrier;

const ACTIVE: u64 = 1;
const WRITER: u64 = 2;
const EPOCH_SHIFT: u32 = 2;
const CHUNK: usize = 64;

/// One thread's announcement.
pub struct Slot {
    state: AtomicU64,
    taken: AtomicBool,
    /// The slot's position in the domain.
    pub(super) number: usize,
}

impl Slot {
    /// A slot that is never free, for a thread that looks for a free slot of its own and has none.
    #[cfg(not(loom))]
    pub(super) const fn occupied() -> Self {
        Slot { state: AtomicU64::new(ACTIVE), taken: AtomicBool::new(true), number: usize::MAX }
    }

    /// Whether the owner holds a pin. Only the owner may ask.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn is_announced(&self) -> bool {
        self.state.load(Ordering::Relaxed) != 0
    }

    /// Whether the owner is in a writer section. Only the owner may ask.
    #[cfg(not(loom))]
    pub(super) fn is_writer(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WRITER != 0
    }

    /// Ends the outermost pin. Release: everything the thread read or wrote inside happens before a reclaimer's load
    /// that sees 0.
    #[inline(always)]
    pub fn leave(&self) {
        self.state.store(0, Ordering::Release);
    }

    /// Ends a writer section inside a longer pin.
    #[inline]
    pub(super) fn clear_writer(&self) {
        self.state.store(self.state.load(Ordering::Relaxed) & !WRITER, Ordering::Release);
    }

    /// Gives the slot back.
    pub(super) fn release(&self) {
        self.state.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }
}

struct Chunk {
    slots: [Padded<Slot>; CHUNK],
    next: AtomicPtr<Chunk>,
}

/// An epoch counter and the slots of the threads that announce themselves in it.
pub struct Domain {
    epoch: AtomicU64,
    chunks: AtomicPtr<Chunk>,
    /// Stands between an announcement and every later load of the same thread, and between an unlinking and the scan of
    /// the announcements.
    barrier: Barrier,
}

impl Domain {
    /// An empty domain.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Domain { epoch: AtomicU64::new(1), chunks: AtomicPtr::new(std::ptr::null_mut()), barrier: Barrier::new() }
    }

    /// An empty domain.
    #[cfg(loom)]
    pub fn new() -> Self {
        Domain { epoch: AtomicU64::new(1), chunks: AtomicPtr::new(std::ptr::null_mut()), barrier: Barrier::new() }
    }

    /// Acquires a slot for the caller alone, until the slot is released.
    pub fn acquire(&self) -> &Slot {
        self.barrier.detect();
        let mut link = &self.chunks;
        let mut base = 0;
        loop {
            let mut chunk = link.load(Ordering::Acquire);
            if chunk.is_null() {
                chunk = Self::append_chunk(link, base);
            }
            // SAFETY: chunks are never freed (the domain leaks them on purpose: there is one per 64 concurrent
            // threads).
            let chunk = unsafe { &*chunk };
            for slot in &chunk.slots {
                if !slot.taken.load(Ordering::Relaxed)
                    && slot.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    return slot;
                }
            }
            link = &chunk.next;
            base += CHUNK;
        }
    }

    /// Appends a chunk at `link`, or returns the one that another thread appended first.
    fn append_chunk(link: &AtomicPtr<Chunk>, base: usize) -> *mut Chunk {
        let slots = std::array::from_fn(|i| Padded(Slot { state: AtomicU64::new(0), taken: AtomicBool::new(false), number: base + i }));
        let fresh = Box::into_raw(Box::new(Chunk { slots, next: AtomicPtr::new(std::ptr::null_mut()) }));
        match link.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: the exchange failed, so nobody else has seen `fresh`.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        }
    }

    /// Announces the owner of `slot` at the current epoch (E1).
    #[inline(always)]
    pub fn announce(&self, slot: &Slot, writer: bool) {
        self.announce_alone(slot, writer);
        self.barrier.light();
    }

    /// Whether [`Domain::announce_without_fence`] may be used.
    #[cfg(not(loom))]
    pub fn announces_without_fence(&self) -> bool {
        self.barrier.is_asymmetric()
    }

    /// As [`Domain::announce`], for callers that know that the barrier's light half only restrains the compiler
    /// ([`Domain::announces_without_fence`]).
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn announce_without_fence(&self, slot: &Slot, writer: bool) {
        self.announce_alone(slot, writer);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn announce_alone(&self, slot: &Slot, writer: bool) {
        // Acquire: a thread that announces a new epoch also sees everything done before that epoch was raised. Release:
        // a reclaimer that sees this announcement instead of the end of the previous section still sees what that
        // section did. Both are free on x86-64.
        let epoch = self.epoch.load(Ordering::Acquire);
        let flags = if writer { WRITER | ACTIVE } else { ACTIVE };
        slot.state.store((epoch << EPOCH_SHIFT) | flags, Ordering::Release);
    }

    /// Adds the writer bit to an existing pin (E3).
    #[inline]
    pub fn mark_writer(&self, slot: &Slot) {
        slot.state.store(slot.state.load(Ordering::Relaxed) | WRITER, Ordering::Release);
        self.barrier.light();
    }

    /// Raises the epoch. Nobody needs to wait for pins that begin afterwards.
    pub fn stamp(&self) -> u64 {
        let stamp = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        self.barrier.heavy();
        stamp
    }

    /// Whether no pin (no writer section, if `writers`) older than `stamp` is left. The barrier in [`Domain::stamp`]
    /// suffices: an announcement made before it is visible here, and a thread that announces itself later sees what was
    /// unlinked before the barrier.
    pub fn has_passed(&self, stamp: u64, writers: bool) -> bool {
        self.each_slot(|slot| Self::slot_passed(slot, stamp, writers))
    }

    /// Whether the owner of slot `number` has left every writer section older than `stamp`.
    pub fn writer_has_passed(&self, stamp: u64, number: usize) -> bool {
        let mut chunk = self.chunks.load(Ordering::Acquire);
        for _ in 0..number / CHUNK {
            // SAFETY: chunks are never freed.
            let Some(current) = (unsafe { chunk.as_ref() }) else { break };
            chunk = current.next.load(Ordering::Acquire);
        }
        // SAFETY: as above. A number that no thread has had yet has no chunk.
        unsafe { chunk.as_ref() }.is_none_or(|chunk| Self::slot_passed(&chunk.slots[number % CHUNK], stamp, true))
    }

    /// Waits for all pins (only writer sections, if `writers`) that began before the call.
    pub fn synchronize(&self, writers: bool) {
        let stamp = self.stamp();
        self.each_slot(|slot| {
            let mut rounds = 0;
            while !Self::slot_passed(slot, stamp, writers) {
                crate::pause(&mut rounds);
            }
            true
        });
    }

    /// Acquire pairs with the release in `leave`: the waiting thread sees what the section did.
    fn slot_passed(slot: &Slot, stamp: u64, writers: bool) -> bool {
        let state = slot.state.load(Ordering::Acquire);
        state & ACTIVE == 0 || state >> EPOCH_SHIFT >= stamp || (writers && state & WRITER == 0)
    }

    fn each_slot(&self, mut f: impl FnMut(&Slot) -> bool) -> bool {
        let mut chunk = self.chunks.load(Ordering::Acquire);
        while !chunk.is_null() {
            // SAFETY: chunks are never freed.
            let current = unsafe { &*chunk };
            for slot in &current.slots {
                if !f(slot) {
                    return false;
                }
            }
            chunk = current.next.load(Ordering::Acquire);
        }
        true
    }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}
