//! A gapped array: a header node, and blocks in pages. Both the leaves of the learned layer and its inner nodes are of
//! this kind.
//!
//! ```text
//! word 0 version | 1 meta | 2 shape | 3 to 5 the model: middle, slope, start | 6 slots in use and pages
//! 7 runs | 8 next | 9 previous | 10 last slice inserted | 11 lowest slice of a leaf's range | 16.. addresses of pages | in inner nodes: 64..127 fences
//! ```
//!
//! An inner node whose model fits badly has *fences* instead, unless it is too large: the first slice of every block at
//! the time when it was built. It then behaves like a B+-tree's node of two levels.
//!
//! Blocks are numbered through all pages that the header has words for; those from `first` to `end` are in use. The
//! header stays in place for its node's life; the blocks that it leads to are rewritten in place under its lock.
//!
//! # Invariants
//!
//! * G1. Slices ascend strictly over all blocks (and B1, B2 hold in each).
//! * G2. From the node's first life on, every word for a page holds the address of some page of the arena, its own or
//!   not. Readers may follow a word that a writer is changing, since pages stay mapped; what they read there is
//!   validated by the version.
//! * G3. The shape always names blocks that the class has.

use super::block::{BLOCK_BYTES, Block, PAGE_BLOCKS, WIDTH};
use super::model::Model;
use crate::common::node::{LEAF_HEAD, Node};
use crate::common::search;
use std::hint::select_unpredictable;
use std::sync::atomic::Ordering::Relaxed;

const SHAPE: usize = 2;
const MIDDLE: usize = 3;
const SLOPE: usize = 4;
const START: usize = 5;
const EXTENT: usize = 6;
const RUNS: usize = 7;
const NEXT: usize = 8;
const PREVIOUS: usize = 9;
const LAST: usize = 10;
const LOW: usize = 11;
const PAGES: usize = 16;
const FENCES: usize = 64;
/// Number of blocks beside the predicted ones that are searched one by one.
const NEAR: usize = 3;
/// Number of blocks that a write starts to load together: 1 KiB, like a leaf of the B+-tree. Divides [`PAGE_BLOCKS`].
const AROUND: usize = 8;
/// An array of more blocks than this has no fences.
pub(super) const MAX_FENCES: usize = 63;

/// The greatest number of pages of a node of this class: leaves are limited to 64 KiB.
#[inline(always)]
pub(super) const fn max_pages(class: usize) -> usize {
    if class == LEAF_HEAD { 16 } else { FENCES - PAGES }
}

/// The greatest number of blocks of a node of this class.
pub(super) const fn max_blocks(class: usize) -> usize {
    max_pages(class) * PAGE_BLOCKS
}

/// Word 2: the first block in bits 0..15, the end in bits 16..31; bit 57 is set if there are fences instead of a model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape(u64);

impl Shape {
    pub(super) fn new(first: usize, end: usize) -> Shape {
        debug_assert!(first < end && end <= 0xffff);
        Shape(first as u64 | (end as u64) << 16)
    }

    #[inline(always)]
    pub(super) fn first(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    #[inline(always)]
    pub(super) fn end(self) -> usize {
        (self.0 >> 16 & 0xffff) as usize
    }

    #[inline(always)]
    pub(super) fn fenced(self) -> bool {
        self.0 >> 57 & 1 == 1
    }

    pub(super) fn with_fences(self) -> Shape {
        debug_assert!(self.blocks() <= MAX_FENCES);
        Shape(self.0 | 1 << 57)
    }

    pub(super) fn blocks(self) -> usize {
        self.end() - self.first()
    }

    pub(super) fn with_range(self, first: usize, end: usize) -> Shape {
        debug_assert!(first < end && end <= 0xffff);
        Shape(self.0 & !0xffff_ffff | first as u64 | (end as u64) << 16)
    }
}

/// The place of a slot, or the slot of a block before which a new one would go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) block: usize,
    pub(super) index: usize,
}

impl Place {
    /// The place as a number of 16 bits.
    #[inline(always)]
    pub(super) fn slot(self) -> u16 {
        (self.block * 8 + self.index) as u16
    }

    /// The place of a slot number. Index eight (after a block's last slot) becomes the first of the next block, which
    /// is no place to insert, so this is only for slots that exist.
    #[inline(always)]
    pub(super) fn of_slot(slot: u16) -> Place {
        Place { block: usize::from(slot) / 8, index: usize::from(slot) % 8 }
    }
}

/// The result of a search in an array.
#[derive(Clone, Copy)]
pub(super) struct Hit {
    /// Where the slot is or would go.
    pub(super) place: Place,
    /// The slot's value; zero if there is none.
    pub(super) value: u64,
}

/// A node seen as a gapped array.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Gapped<'a>(pub(super) Node<'a>);

impl<'a> Gapped<'a> {
    #[inline(always)]
    pub(super) fn load(self, word: usize) -> u64 {
        // SAFETY: callers stay below the class's words: fixed ones, and pages by blocks that the class has (G3).
        unsafe { self.0.word(word) }.load(Relaxed)
    }

    fn store(self, word: usize, value: u64) {
        // SAFETY: as in `load`.
        unsafe { self.0.word(word) }.store(value, Relaxed);
    }

    #[inline(always)]
    pub(super) fn shape(self) -> Shape {
        Shape(self.load(SHAPE))
    }

    /// Block `b`, which must be one that the shape names.
    #[inline(always)]
    pub(super) fn block(self, b: usize) -> Block<'a> {
        debug_assert!(b / PAGE_BLOCKS < max_pages(self.0.meta().class()));
        // SAFETY: the word holds a page's address (G2).
        unsafe { Block::new(self.load(PAGES + b / PAGE_BLOCKS), b % PAGE_BLOCKS) }
    }

    /// The block that the model (or the fences) predicts for `slice`.
    #[inline(always)]
    pub(super) fn predict(self, shape: Shape, slice: u64) -> usize {
        if shape.fenced() {
            let count = shape.blocks().min(MAX_FENCES);
            // SAFETY: only inner nodes have fences; their headers have 128 words and are aligned to their size.
            let fences = search::Block { words: unsafe { self.0.word(FENCES) }, first: 0, count };
            // SAFETY: the second half of the header is 64 words, and there are at most 63 fences.
            return shape.first() + unsafe { fences.upper_bound(slice) }.max(1) - 1;
        }
        let [slope, start] = [SLOPE, START].map(|word| f64::from_bits(self.load(word)));
        let predicted = Model { middle: self.load(MIDDLE), slope, start }.predict(slice);
        predicted.min(shape.end() as i64 - 1).max(shape.first() as i64) as usize
    }

    /// Number of slots in use.
    #[inline(always)]
    pub(super) fn count(self) -> usize {
        (self.load(EXTENT) & 0xffff_ffff) as usize
    }

    /// The range of the node's own pages: from its first page to one past the last.
    pub(super) fn pages(self) -> std::ops::Range<usize> {
        let extent = self.load(EXTENT);
        (extent >> 32 & 0xffff) as usize..(extent >> 48) as usize
    }

    /// The address of page `p`.
    pub(super) fn page(self, p: usize) -> u64 {
        self.load(PAGES + p)
    }

    /// The address of the next leaf, or 0. May be followed only after the version is validated (N2).
    #[inline(always)]
    pub(super) fn next(self) -> u64 {
        self.load(NEXT)
    }

    /// The address of the previous leaf, or 0.
    #[inline(always)]
    pub(super) fn previous(self) -> u64 {
        self.load(PREVIOUS)
    }

    /// Starts loading block `b`, if the header has a page for it. Harmless in any state, even for a node that was never
    /// alive.
    pub(super) fn prefetch_block(self, b: usize) {
        if b < max_blocks(self.0.meta().class()) {
            let block = self.load(PAGES + b / PAGE_BLOCKS) as usize + b % PAGE_BLOCKS * BLOCK_BYTES;
            hither_sync::prefetch_read(block as *const u8);
            hither_sync::prefetch_read((block + BLOCK_BYTES / 2) as *const u8);
        }
    }

    /// Finds the slot of `slice`, or the place where it would go.
    #[inline(always)]
    pub(super) fn find(self, shape: Shape, slice: u64) -> Hit {
        let (place, value) = self.probe(shape, self.predict(shape, slice), slice);
        if value != 0 || (1..WIDTH).contains(&place.index) {
            return Hit { place, value };
        }
        self.find_beside(shape, place, slice)
    }

    /// Looks for `slice` in the predicted block and in the next one, which holds most slots that found no room in their
    /// own. Both are searched without deciding between them first, since a wrong guess costs as much as the search.
    /// Returns the value, or zero without a hit. In that case the place is where the slice would go, provided that the
    /// index is neither 0 nor 8.
    #[inline(always)]
    pub(super) fn probe(self, shape: Shape, predicted: usize, slice: u64) -> (Place, u64) {
        let next = predicted + usize::from(predicted + 1 < shape.end());
        let (here, there) = (self.block(predicted), self.block(next));
        here.prefetch_values();
        there.prefetch_values();
        let (below, further) = (here.below(slice), there.below(slice));
        let on = below == 8;
        let block = select_unpredictable(on, there, here);
        let place = Place { block: select_unpredictable(on, next, predicted), index: select_unpredictable(on, further, below) };
        let hit = place.index < 8 && block.slice(place.index) == slice;
        (place, if hit { block.value(place.index) } else { 0 })
    }

    /// Starts loading the lines that [`Gapped::probe`] reads.
    #[inline(always)]
    pub(super) fn prefetch_probe(self, shape: Shape, predicted: usize) {
        self.block(predicted).prefetch();
        self.block(predicted + usize::from(predicted + 1 < shape.end())).prefetch();
    }

    /// Starts loading the group of [`AROUND`] blocks that contains block `b`. The misses of one write hardly overlap
    /// with those of the next (`docs/adr/0010`). Loading neighbouring blocks as well saves later writes their misses.
    #[inline(always)]
    pub(super) fn prefetch_around(self, b: usize) {
        let first = self.load(PAGES + b / PAGE_BLOCKS) as usize + (b % PAGE_BLOCKS) / AROUND * AROUND * BLOCK_BYTES;
        for line in 0..AROUND * BLOCK_BYTES / 64 {
            hither_sync::prefetch_read((first + line * 64) as *const u8);
        }
    }

    /// As [`Gapped::find`], after [`Gapped::probe`] has ended at `place`, before or after all slots of its block.
    /// Searches block by block at first, since most of these slots are in the very next block.
    #[inline(never)]
    pub(super) fn find_beside(self, shape: Shape, place: Place, slice: u64) -> Hit {
        let absent = |place| Hit { place, value: 0 };
        let mut b = place.block;
        for _ in 0..NEAR {
            let neighbour = if place.index == 0 {
                if b <= shape.first() {
                    return absent(Place { block: b, index: 0 });
                }
                b - 1
            } else {
                if b + 1 >= shape.end() {
                    return absent(self.normal(Place { block: b, index: WIDTH }));
                }
                b + 1
            };
            let block = self.block(neighbour);
            block.prefetch_values();
            let below = block.below(slice);
            if below < 8 && block.slice(below) == slice {
                return Hit { place: Place { block: neighbour, index: below }, value: block.value(below) };
            }
            match (place.index == 0, below) {
                (true, 0) | (false, 8) => b = neighbour,
                (true, 8) => return absent(self.between(neighbour)),
                (false, 0) => return absent(self.between(b)),
                _ => return absent(Place { block: neighbour, index: below }),
            }
        }
        self.find_from(shape, b, slice)
    }

    /// The place after block `b`'s slots and before those of the next block: in the block that has room, if one has.
    fn between(self, b: usize) -> Place {
        let count = self.block(b).count();
        if count < WIDTH { Place { block: b, index: count } } else { Place { block: b + 1, index: 0 } }
    }

    /// As [`Gapped::find`], by exponential search from block `from`.
    #[inline(never)]
    fn find_from(self, shape: Shape, from: usize, slice: u64) -> Hit {
        let block = self.last_block(shape, from, |first| first < slice);
        let mut place = self.normal(Place { block, index: self.block(block).below(slice) });
        if place.index == self.block(place.block).count() && place.block < from {
            // Equally right, and nearer to the block where searches begin.
            place = Place { block: place.block + 1, index: 0 };
        }
        match self.slot_from(shape, place) {
            Some(at) if self.block(at.block).slice(at.index) == slice => Hit { place: at, value: self.block(at.block).value(at.index) },
            _ => Hit { place, value: 0 },
        }
    }

    /// The place, with an index that is not beyond the slots in use.
    fn normal(self, place: Place) -> Place {
        Place { index: place.index.min(self.block(place.block).count()), ..place }
    }

    /// The first slot in use at or after `place`.
    #[inline(always)]
    pub(super) fn slot_from(self, shape: Shape, place: Place) -> Option<Place> {
        if place.index < self.block(place.block).count() {
            return Some(place);
        }
        let next = place.block + 1;
        (next < shape.end() && self.block(next).value(0) != 0).then_some(Place { block: next, index: 0 })
    }

    /// The last block whose first slice is `before`, or else the first block. Uses exponential search from block
    /// `from`.
    #[inline]
    pub(super) fn last_block(self, shape: Shape, from: usize, before: impl Fn(u64) -> bool) -> usize {
        let is_before = |b: usize| before(self.block(b).slice(0));
        let (first, end) = (shape.first(), shape.end());
        let (mut low, mut high, mut step) = (from, from, 1);
        if is_before(from) {
            loop {
                high = low + step;
                if high >= end {
                    high = end;
                    break;
                }
                if !is_before(high) {
                    break;
                }
                low = high;
                step *= 2;
            }
        } else {
            loop {
                if high <= first {
                    return first;
                }
                low = high.saturating_sub(step).max(first);
                if is_before(low) {
                    break;
                }
                high = low;
                step *= 2;
            }
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if is_before(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// The place of the child for `slice`, in an inner node. A single branch decides whether the prediction was right,
    /// since the processor would guess several of them wrong.
    #[inline(always)]
    pub(super) fn child_place(self, shape: Shape, slice: u64) -> Place {
        let predicted = self.predict(shape, slice);
        let block = self.block(predicted);
        let upto = block.not_above(slice);
        let last = predicted + 1 >= shape.end();
        let next = self.block(predicted + usize::from(!last));
        let here = (upto > 0) & (last | (next.slice(0) > slice));
        let (at, block, upto) = if here { (predicted, block, upto) } else { self.child_block(shape, predicted, slice) };
        // The last slot in use among the first `upto`; the first slot if all separators are greater.
        let used = block.used() & ((1 << upto) - 1) | 1;
        Place { block: at, index: 31 - used.leading_zeros() as usize }
    }

    #[inline(never)]
    fn child_block(self, shape: Shape, from: usize, slice: u64) -> (usize, Block<'a>, usize) {
        let at = self.last_block(shape, from, |first| first <= slice);
        let block = self.block(at);
        (at, block, block.not_above(slice))
    }

    /// The address of the child for `slice`, in an inner node. May be followed only after the version is validated
    /// (N2).
    #[inline(always)]
    pub(super) fn child(self, slice: u64) -> u64 {
        let shape = self.shape();
        let place = self.child_place(shape, slice);
        self.block(place.block).address(place.index)
    }

    /// Starts loading the lines of the header of the child at `address` that a search reads.
    #[inline(always)]
    pub(super) fn prefetch_child(self, address: u64) {
        let load = |line: usize| hither_sync::prefetch_read((address as *const u8).wrapping_add(line * 64));
        load(0);
        load(2);
        load(3);
        if self.0.meta().level() > 1 {
            (8..16).for_each(load);
        }
    }

    // ---- for the holder of the lock or of a fresh node ----

    pub(super) fn set_shape(self, shape: Shape) {
        self.store(SHAPE, shape.0);
    }

    /// Sets the model and the range of blocks.
    pub(super) fn set_model(self, model: Model, first: usize, end: usize) {
        self.store(MIDDLE, model.middle);
        self.store(SLOPE, model.slope.to_bits());
        self.store(START, model.start.to_bits());
        self.set_shape(Shape::new(first, end));
    }

    /// Sets the fences to the first slices of all blocks.
    pub(super) fn set_fences(self) {
        let shape = self.shape();
        for b in shape.first()..shape.end() {
            self.store(FENCES + b - shape.first(), self.block(b).slice(0));
        }
        self.set_shape(shape.with_fences());
    }

    #[inline(always)]
    pub(super) fn set_count(self, count: usize) {
        self.store(EXTENT, self.load(EXTENT) & !0xffff_ffff | count as u64);
    }

    pub(super) fn set_pages(self, pages: std::ops::Range<usize>) {
        self.store(EXTENT, self.load(EXTENT) & 0xffff_ffff | (pages.start as u64) << 32 | (pages.end as u64) << 48);
    }

    pub(super) fn set_page(self, p: usize, address: u64) {
        debug_assert!(p < max_pages(self.0.meta().class()));
        self.store(PAGES + p, address);
    }

    pub(super) fn set_next(self, address: u64) {
        self.store(NEXT, address);
    }

    pub(super) fn set_previous(self, address: u64) {
        self.store(PREVIOUS, address);
    }

    /// The lowest slice that belongs into this leaf (X4).
    pub(super) fn low(self) -> u64 {
        self.load(LOW)
    }

    pub(super) fn set_low(self, slice: u64) {
        self.store(LOW, slice);
    }

    /// The slice inserted last, and the word with the counts of runs.
    pub(super) fn last_insert(self) -> (u64, u64) {
        (self.load(LAST), self.load(RUNS))
    }

    pub(super) fn set_last_insert(self, slice: u64, runs: u64) {
        self.store(LAST, slice);
        self.store(RUNS, runs);
    }

    /// Takes over pages, model and slots of the leaf `other`, of which only the header is to be retired then.
    pub(super) fn take_over(self, other: Gapped<'_>) {
        debug_assert!(self.0.meta().class() == LEAF_HEAD && other.0.meta().class() == LEAF_HEAD);
        for word in (SHAPE..=RUNS).chain([LAST]).chain(PAGES..PAGES + max_pages(LEAF_HEAD)) {
            self.store(word, other.load(word));
        }
    }
}
