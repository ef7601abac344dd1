//! Writer slots: what one writer at a time needs for appending.
//!
//! A slot holds, for each shard, a chunk of the shard's active segment, and a block of versions. Beside it, the slot
//! counts the garbage that its writes have made (the `dead` module).
//!
//! # Access to a slot
//!
//! The first threads of the process (by their epoch number) own a slot of each node alone. They need no lock; they only
//! have to be inside a writer section and to find the slot not frozen.
//!
//! A thread that wants to inspect other threads' slots freezes them, waits for their writer sections under way, and
//! thaws each slot as soon as it has inspected it ([`Log::with_slots`]). So a thread that was preempted inside its
//! section delays nobody but itself.
//!
//! All further threads, and owners while their slots are frozen, share one slot of their node behind a lock. The lock
//! is held over one operation, fence included, and over a sync only where that opens a segment on files. (A value
//! longer than a segment has its run zeroed there, which may take a second for hundreds of megabytes.)

use crate::address::MAX_NODES;
use crate::dead::DeadCounts;
use crate::dirty::DirtyRanges;
use crate::log::Log;
use crate::segment::Chunk;
use crate::version::VersionBlock;
use hither_sync::{Padded, epoch, pause};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering};

/// The state that belongs to one writer at a time: see the module documentation.
pub(crate) struct SlotState {
    pub block: VersionBlock,
    /// By shard; the last chunk is for hot entries of all shards.
    pub chunks: Box<[Chunk]>,
    /// Ranges written without a flush.
    pub dirty: DirtyRanges,
}

pub(crate) struct Slot {
    locked: AtomicBool,
    /// The owner must not use the slot.
    frozen: AtomicBool,
    /// By node: the garbage that its writes have made. As long as there may be nodes: a reference's node needs no check.
    pub dead: [DeadCounts; MAX_NODES],
    state: UnsafeCell<SlotState>,
}

// SAFETY: `state` is reached only through `SlotUse`, of which one at a time is in use. Either its holder has set
// `locked`, or it is the owner's: then the owner is in a writer section that began while the slot was not frozen, and
// the use does not leave that thread. A thread that locks an owned slot has frozen it before and waited for such
// sections (see the module documentation). The contents may be sent to other threads.
unsafe impl Sync for Slot {}

impl Slot {
    fn new(shards: usize) -> Padded<Slot> {
        Padded(Slot {
            locked: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            dead: std::array::from_fn(|_| DeadCounts::default()),
            state: UnsafeCell::new(SlotState {
                block: VersionBlock::default(),
                chunks: vec![Chunk::NONE; shards].into_boxed_slice(),
                dirty: DirtyRanges::default(),
            }),
        })
    }

    #[inline(always)]
    pub fn lock(&self) -> SlotLock<'_> {
        if self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        SlotLock(self)
    }

    #[cold]
    fn lock_slow(&self) {
        let mut rounds = 0;
        while self.locked.load(Ordering::Relaxed)
            || self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            pause(&mut rounds);
        }
    }
}

/// The slots of one node.
pub(crate) struct Slots {
    /// By thread number.
    owned: Box<[Padded<Slot>]>,
    shared: Padded<Slot>,
}

impl Slots {
    /// `count` slots (at least one) for so many shards, the last of which is shared.
    pub fn new(count: usize, shards: usize) -> Slots {
        let slot = || Slot::new(shards + 1);
        Slots { owned: (1..count).map(|_| slot()).collect(), shared: slot() }
    }

    /// The slot that the current thread, which has this number and is in a writer section, owns here. `None` if it owns
    /// none, or somebody keeps it frozen.
    #[inline(always)]
    pub fn own(&self, number: usize) -> Option<SlotUse<'_>> {
        let slot = self.owned.get(number)?;
        if slot.frozen.load(Ordering::Acquire) {
            return None;
        }
        debug_assert!(epoch::is_writing(), "a slot belongs to its thread in a writer section only");
        Some(SlotUse { slot, _not_send: PhantomData })
    }

    /// The slot behind a lock.
    #[inline(always)]
    pub fn shared(&self) -> &Slot {
        &self.shared
    }

    pub fn all(&self) -> impl Iterator<Item = &Slot> {
        self.owned.iter().chain([&self.shared]).map(|slot| &slot.0)
    }

    /// Number of slots that have an owner.
    fn owned_count(&self) -> usize {
        self.owned.len()
    }
}

/// The right to use a slot: its owner's, in a writer section, or that of a [`SlotLock`]'s holder.
pub(crate) struct SlotUse<'a> {
    slot: &'a Slot,
    /// An owned slot belongs to its thread only while the thread is in its writer section.
    _not_send: PhantomData<*const ()>,
}

impl<'a> SlotUse<'a> {
    #[inline(always)]
    pub fn slot(&self) -> &'a Slot {
        self.slot
    }

    /// The same right for a while.
    #[inline(always)]
    pub fn lent(&mut self) -> SlotUse<'_> {
        SlotUse { slot: self.slot, _not_send: PhantomData }
    }
}

impl Deref for SlotUse<'_> {
    type Target = SlotState;

    #[inline(always)]
    fn deref(&self) -> &SlotState {
        // SAFETY: the slot is locked by whoever holds this, or its thread owns the slot and is in a writer section (see
        // the module documentation).
        unsafe { &*self.slot.state.get() }
    }
}

impl DerefMut for SlotUse<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut SlotState {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { &mut *self.slot.state.get() }
    }
}

/// A locked slot.
pub(crate) struct SlotLock<'a>(&'a Slot);

impl<'a> SlotLock<'a> {
    /// The state of the slot, as long as it is locked.
    pub fn state(&mut self) -> &mut SlotState {
        // SAFETY: this holds the slot's lock, and `&mut self` makes this the only reference.
        unsafe { &mut *self.0.state.get() }
    }

    /// The use of the slot for a writer that is kept beside the lock.
    ///
    /// # Safety
    /// The use ends before the lock does, and there is no other one.
    #[inline(always)]
    pub unsafe fn slot_use(&self) -> SlotUse<'a> {
        SlotUse { slot: self.0, _not_send: PhantomData }
    }
}

impl Drop for SlotLock<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

impl Log {
    /// Calls `f(node, state)` for every slot, in no particular order, while no writer uses that slot. It sees
    /// everything done by writer sections that ended before this call. `f` must not wait for writers. Call outside
    /// writer sections.
    pub(crate) fn with_slots(&self, mut f: impl FnMut(usize, &mut SlotState)) {
        let _one_at_a_time = self.freezing.lock();
        let owned = self.pools[0].slots.owned_count();
        self.set_frozen(0..owned, true);
        let stamp = epoch::stamp();
        let mut waiting: Vec<usize> = (0..owned).collect();
        let mut rounds = 0;
        while !waiting.is_empty() {
            waiting.retain(|&number| {
                let passed = epoch::writer_has_passed(stamp, number);
                if passed {
                    self.slots_of(number).for_each(|(node, slot)| f(node, slot.lock().state()));
                    self.set_frozen(number..number + 1, false);
                }
                !passed
            });
            pause(&mut rounds);
        }
        self.pools.iter().enumerate().for_each(|(node, pool)| f(node, pool.slots.shared().lock().state()));
    }

    /// All slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.pools.iter().flat_map(|pool| pool.slots.all())
    }

    /// The slots of a thread number, with their nodes.
    fn slots_of(&self, number: usize) -> impl Iterator<Item = (usize, &Slot)> {
        self.pools.iter().map(move |pool| &pool.slots.owned[number].0).enumerate()
    }

    fn set_frozen(&self, numbers: Range<usize>, frozen: bool) {
        for (_, slot) in numbers.flat_map(|number| self.slots_of(number)) {
            // Release: the owner that comes back sees the changes. (The stamp's barrier orders the freezing.)
            slot.frozen.store(frozen, Ordering::Release);
        }
    }
}
