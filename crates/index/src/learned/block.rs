//! A block: eight slots in two neighbouring cache lines, with the slices in the first and the values in the second.
//!
//! Every slot is a key of eight bytes or, in an inner node, a child.
//!
//! # Invariants
//!
//! * B1. Slots in use stand at the front, at least one in each block of a node that is not empty. A slot in use has a
//!   value other than zero.
//! * B2. In the slots after them, slices repeat the last one and values are zero. So the slices of a block ascend, and
//!   a search needs no count.

use crate::common::search::Line;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 128;
/// Blocks of a page.
pub(super) const PAGE_BLOCKS: usize = 4096 / BLOCK_BYTES;
const VALUES: usize = WIDTH;
/// Slots of a block.
pub(super) const WIDTH: usize = 8;

/// One slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) slice: u64,
    pub(super) value: u64,
}

/// A block of some page. Copy: it is an address.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    words: *const AtomicU64,
    page: PhantomData<&'a AtomicU64>,
}

impl<'a> Block<'a> {
    /// Block `index` of the page at `page`.
    ///
    /// # Safety
    /// A page of an arena that outlives `'a` must begin at `page`, and `index` must be below [`PAGE_BLOCKS`].
    #[inline(always)]
    pub(super) unsafe fn new(page: u64, index: usize) -> Self {
        debug_assert!(index < PAGE_BLOCKS && page != 0);
        let page: *const AtomicU64 = std::ptr::with_exposed_provenance(page as usize);
        Block { words: page.wrapping_add(index * BLOCK_BYTES / 8), page: PhantomData }
    }

    #[inline(always)]
    fn word(self, i: usize) -> &'a AtomicU64 {
        debug_assert!(i < 16);
        // SAFETY: the block lies inside a page (see `new`), pages stay mapped, and all callers stay below 16.
        unsafe { &*self.words.add(i) }
    }

    #[inline(always)]
    pub(super) fn slice(self, i: usize) -> u64 {
        self.word(i & 7).load(Relaxed)
    }

    /// The value of slot `i`; zero if it is not in use.
    #[inline(always)]
    pub(super) fn value(self, i: usize) -> u64 {
        self.value_word(i).load(Relaxed)
    }

    /// The value of slot `i`, as an address that is to be followed.
    #[inline(always)]
    pub(super) fn address(self, i: usize) -> u64 {
        // Acquire pairs with the store in `set_value`: the memory at the address is initialised.
        self.value_word(i).load(Acquire)
    }

    #[inline(always)]
    pub(super) fn value_word(self, i: usize) -> &'a AtomicU64 {
        self.word(VALUES + (i & 7))
    }

    pub(super) fn entry(self, i: usize) -> Entry {
        Entry { slice: self.slice(i), value: self.value(i) }
    }

    /// Returns how many slices (repeated ones included) are below `slice`.
    #[inline(always)]
    pub(super) fn below(self, slice: u64) -> usize {
        // SAFETY: a block is two aligned lines.
        let mask = unsafe { Line(self.words).below(slice) };
        Self::run_of(mask)
    }

    /// Returns how many slices (repeated ones included) are not above `slice`.
    #[inline(always)]
    pub(super) fn not_above(self, slice: u64) -> usize {
        // SAFETY: a block is two aligned lines.
        let mask = unsafe { Line(self.words).not_above(slice) };
        Self::run_of(mask)
    }

    /// The number of ones at the beginning of the mask: since slices ascend (B2), there are no others. (This takes one
    /// instruction. Counting ones takes a dozen where the compiler may not assume an instruction for it.)
    #[inline(always)]
    fn run_of(mask: u32) -> usize {
        (!mask | 1 << WIDTH).trailing_zeros() as usize
    }

    /// Bit i is set if slot i is in use.
    #[inline(always)]
    pub(super) fn used(self) -> u32 {
        // SAFETY: a block is two aligned lines.
        unsafe { Line(self.words.add(VALUES)).filled() }
    }

    /// Number of slots in use.
    #[inline(always)]
    pub(super) fn count(self) -> usize {
        // Slots in use stand at the front (B1).
        Self::run_of(self.used())
    }

    /// Starts loading both lines.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        hither_sync::prefetch_read(self.words);
        hither_sync::prefetch_read(self.words.wrapping_add(VALUES));
    }

    /// Starts loading the line of the values.
    #[inline(always)]
    pub(super) fn prefetch_values(self) {
        hither_sync::prefetch_read(self.words.wrapping_add(VALUES));
    }

    // ---- for the holder of the node's lock ----

    #[inline(always)]
    fn set_slice(self, i: usize, slice: u64) {
        self.word(i).store(slice, Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_value(self, i: usize, value: u64) {
        self.word(VALUES + i).store(value, Release);
    }

    /// Replaces all slots by these entries, at most as many as there are slots.
    pub(super) fn fill(self, entries: &[Entry]) {
        let last = entries.last().map_or(0, |entry| entry.slice);
        for i in 0..WIDTH {
            let entry = entries.get(i).copied().unwrap_or(Entry { slice: last, value: 0 });
            self.set_slice(i, entry.slice);
            self.set_value(i, entry.value);
        }
    }

    /// Inserts before slot `at` of the `count` slots in use; at least one slot must be free.
    #[inline]
    pub(super) fn insert(self, at: usize, count: usize, entry: Entry) {
        debug_assert!(at <= count && count < WIDTH);
        for i in (at..count).rev() {
            self.set_slice(i + 1, self.slice(i));
            self.set_value(i + 1, self.value(i));
        }
        self.set_value(at, entry.value);
        let repeats = if at == count { WIDTH } else { at + 1 };
        (at..repeats).for_each(|i| self.set_slice(i, entry.slice));
    }

    /// Removes slot `at` of the `count` slots in use, which must be at least two (B1).
    #[inline]
    pub(super) fn remove(self, at: usize, count: usize) {
        debug_assert!(at < count && count > 1);
        for i in at..count - 1 {
            self.set_slice(i, self.slice(i + 1));
            self.set_value(i, self.value(i + 1));
        }
        self.set_value(count - 1, 0);
        let last = self.slice(count - 2);
        (count - 1..WIDTH).for_each(|i| self.set_slice(i, last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::arena::Arena;

    #[test]
    fn slots_match_a_vector() {
        let arena = Arena::new();
        // SAFETY: the arena's page.
        let block = unsafe { Block::new(arena.allocate_page(), 3) };
        block.fill(&[]);
        let mut model: Vec<Entry> = Vec::new();
        let mut state = 1u64;
        for round in 0..4000u64 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let entry = Entry { slice: state >> 30, value: state | 1 };
            let at = model.partition_point(|e| e.slice < entry.slice);
            assert_eq!(block.below(entry.slice), if at == model.len() { WIDTH } else { at });
            if model.len() < WIDTH && round % 3 > 0 {
                block.insert(at, model.len(), entry);
                model.insert(at, entry);
            } else if model.len() > 1 {
                let at = (state >> 20) as usize % model.len();
                block.remove(at, model.len());
                model.remove(at);
            }
            assert_eq!((block.count(), block.used().trailing_ones() as usize), (model.len(), model.len()));
            assert!((0..model.len()).all(|i| block.entry(i) == model[i]));
            if let Some(last) = model.last() {
                assert!((model.len()..WIDTH).all(|i| block.slice(i) == last.slice));
                assert_eq!(block.not_above(last.slice), WIDTH);
            }
        }
    }
}
