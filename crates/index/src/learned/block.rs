//! A block: eight slots in two neighbouring cache lines, slices in the first, values in the second.
//!
//! A *narrow* block has seven slots; the eighth value is the word of their kinds, four bits each. In a wide block every slot is a key of
//! eight bytes (or, in an inner node, a child).
//!
//! # Invariants
//!
//! * B1. Slots in use stand at the front, at least one in each block of a node that is not empty. A slot in use has a value other than zero.
//! * B2. Behind them, slices repeat the last one and values are zero: so the slices of a block ascend, and a search needs no count.

use crate::common::search::Line;
use crate::common::slice::LAYER;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 128;
/// Blocks of a page.
pub(super) const PAGE_BLOCKS: usize = 4096 / BLOCK_BYTES;
const VALUES: usize = 8;
const KINDS: usize = 15;
/// The kind of a key that ends with its slice: of all slots of wide blocks.
pub(super) const WHOLE: u8 = 8;

/// One slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) slice: u64,
    pub(super) kind: u8,
    pub(super) value: u64,
}

/// A block of some page. Copy: it is an address.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    words: *const AtomicU64,
    pub(super) narrow: bool,
    page: PhantomData<&'a AtomicU64>,
}

impl<'a> Block<'a> {
    /// Block `index` of the page at `page`.
    ///
    /// # Safety
    /// A page of an arena that outlives `'a` must begin at `page`, and `index` must be below [`PAGE_BLOCKS`].
    #[inline(always)]
    pub(super) unsafe fn new(page: u64, index: usize, narrow: bool) -> Self {
        debug_assert!(index < PAGE_BLOCKS && page != 0);
        let page: *const AtomicU64 = std::ptr::with_exposed_provenance(page as usize);
        Block { words: page.wrapping_add(index * BLOCK_BYTES / 8), narrow, page: PhantomData }
    }

    /// Slots.
    #[inline(always)]
    pub(super) fn width(self) -> usize {
        8 - usize::from(self.narrow)
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

    /// The value of slot `i` as an address to be followed.
    #[inline(always)]
    pub(super) fn address(self, i: usize) -> u64 {
        // Acquire pairs with the store in `set_value`: what is there is initialised.
        self.value_word(i).load(Acquire)
    }

    #[inline(always)]
    pub(super) fn value_word(self, i: usize) -> &'a AtomicU64 {
        self.word(VALUES + (i & 7))
    }

    #[inline(always)]
    pub(super) fn kind(self, i: usize) -> u8 {
        if self.narrow { (self.word(KINDS).load(Relaxed) >> (i * 4) & 15) as u8 } else { WHOLE }
    }

    /// The first slot that holds a layer.
    #[inline(always)]
    pub(super) fn holds_layer(self, i: usize) -> bool {
        self.narrow && self.kind(i) == LAYER
    }

    pub(super) fn entry(self, i: usize) -> Entry {
        Entry { slice: self.slice(i), kind: self.kind(i), value: self.value(i) }
    }

    /// How many slices (repeated ones included) are below `slice`.
    #[inline(always)]
    pub(super) fn below(self, slice: u64) -> usize {
        // SAFETY: a block is two aligned lines.
        let mask = unsafe { Line(self.words).below(slice) };
        self.run_of(mask)
    }

    /// How many slices (repeated ones included) are not above `slice`.
    #[inline(always)]
    pub(super) fn not_above(self, slice: u64) -> usize {
        // SAFETY: a block is two aligned lines.
        let mask = unsafe { Line(self.words).not_above(slice) };
        self.run_of(mask)
    }

    /// The ones at the beginning of the mask: since slices ascend (B2), there are no others. (One instruction; counting ones takes a dozen
    /// where the compiler may not presume the instruction for it.)
    #[inline(always)]
    fn run_of(self, mask: u32) -> usize {
        (!mask | 1 << self.width()).trailing_zeros() as usize
    }

    #[inline(always)]
    fn mask(self) -> u32 {
        if self.narrow { 0x7f } else { 0xff }
    }

    /// Bit i is set if slot i is in use.
    #[inline(always)]
    pub(super) fn used(self) -> u32 {
        // SAFETY: a block is two aligned lines.
        unsafe { Line(self.words.add(VALUES)).filled() & self.mask() }
    }

    /// Slots in use.
    #[inline(always)]
    pub(super) fn count(self) -> usize {
        // Slots in use stand at the front (B1).
        self.run_of(self.used())
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

    pub(super) fn set_kind(self, i: usize, kind: u8) {
        debug_assert!(self.narrow);
        let kinds = self.word(KINDS).load(Relaxed) & !(15 << (i * 4)) | u64::from(kind) << (i * 4);
        self.word(KINDS).store(kinds, Relaxed);
    }

    /// Replaces everything by these entries, at most as many as there are slots.
    pub(super) fn fill(self, entries: &[Entry]) {
        let (width, mut kinds) = (self.width(), 0);
        let last = entries.last().map_or(0, |entry| entry.slice);
        for i in 0..width {
            let entry = entries.get(i).copied().unwrap_or(Entry { slice: last, kind: 0, value: 0 });
            kinds |= u64::from(entry.kind) << (i * 4);
            self.set_slice(i, entry.slice);
            self.set_value(i, entry.value);
        }
        if self.narrow {
            self.word(KINDS).store(kinds, Relaxed);
        }
    }

    /// Inserts before slot `at` of the `count` slots in use, which must not be all.
    #[inline]
    pub(super) fn insert(self, at: usize, count: usize, entry: Entry) {
        debug_assert!(at <= count && count < self.width());
        for i in (at..count).rev() {
            self.set_slice(i + 1, self.slice(i));
            self.set_value(i + 1, self.value(i));
        }
        if self.narrow {
            let kinds = self.word(KINDS).load(Relaxed);
            let below = (1u64 << (at * 4)) - 1;
            self.word(KINDS).store(kinds & below | u64::from(entry.kind) << (at * 4) | (kinds & !below) << 4, Relaxed);
        }
        self.set_value(at, entry.value);
        let repeats = if at == count { self.width() } else { at + 1 };
        (at..repeats).for_each(|i| self.set_slice(i, entry.slice));
    }

    /// Removes slot `at` of the `count` slots in use, which are two at least (B1).
    #[inline]
    pub(super) fn remove(self, at: usize, count: usize) {
        debug_assert!(at < count && count > 1);
        for i in at..count - 1 {
            self.set_slice(i, self.slice(i + 1));
            self.set_value(i, self.value(i + 1));
        }
        self.set_value(count - 1, 0);
        if self.narrow {
            let kinds = self.word(KINDS).load(Relaxed);
            let below = (1u64 << (at * 4)) - 1;
            self.word(KINDS).store(kinds & below | kinds >> 4 & !below, Relaxed);
        }
        let last = self.slice(count - 2);
        (count - 1..self.width()).for_each(|i| self.set_slice(i, last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::arena::Arena;

    #[test]
    fn slots_match_a_vector() {
        let arena = Arena::new();
        for narrow in [false, true] {
            // SAFETY: the arena's page.
            let block = unsafe { Block::new(arena.allocate_page(), 3, narrow) };
            block.fill(&[]);
            let mut model: Vec<Entry> = Vec::new();
            let mut state = 1u64;
            for round in 0..4000u64 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let entry = Entry { slice: state >> 30, kind: if narrow { (state >> 40) as u8 % 11 } else { WHOLE }, value: state | 1 };
                let at = model.partition_point(|e| e.slice < entry.slice);
                assert_eq!(block.below(entry.slice), if at == model.len() { block.width() } else { at });
                if model.len() < block.width() && round % 3 > 0 {
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
                    assert!((model.len()..block.width()).all(|i| block.slice(i) == last.slice));
                    assert_eq!(block.not_above(last.slice), block.width());
                }
            }
        }
    }
}
