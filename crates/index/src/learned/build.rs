//! Building a gapped array from sorted entries: model first, then every entry at or near its predicted block (ALEX, sections 4.2 and 5.1),
//! and growing one block by block at its ends.
//!
//! Unlike ALEX's, an array never has an empty block nor a full stretch after it was built: where the model puts too many entries or none, they
//! are spread as ranks say. So an insert always finds a gap nearby at first, whatever the distribution.

use super::block::{Entry, PAGE_BLOCKS, WHOLE};
use super::edit::Run;
use super::gapped::{Gapped, MAX_FENCES, Place, Shape, max_blocks};
use super::model::Model;
use crate::common::arena::Arena;
use crate::common::node::LEAF_HEAD;

/// The share of slots in use after a build.
const DENSITY: f64 = 0.75;
/// The share beyond which an array is not rounded to whole pages.
const DENSEST: f64 = 0.88;
/// A model is bad if it is wrong by more blocks than this on average: in an inner node, which then gets fences, and in a leaf.
const MISFIT_INNER: f64 = 2.0;
const MISFIT_LEAF: f64 = 3.0;
/// The same for a leaf that was filled by a run, block behind block.
const MISFIT_RUN: f64 = 0.75;
/// An array of fewer blocks needs no fences.
const FEWEST_FENCES: usize = 4;
/// An array of more blocks than this fills its pages.
const SMALL: usize = 24;

/// Blocks for `count` slots of this width: not more than the class has.
pub(super) fn blocks_for(count: usize, narrow: bool, class: usize) -> usize {
    let width = 8 - usize::from(narrow);
    let mut blocks = (count as f64 / (width as f64 * DENSITY)).ceil() as usize;
    if blocks > SMALL {
        let least = (count as f64 / (width as f64 * DENSEST)).ceil() as usize;
        let rounded = (blocks + PAGE_BLOCKS / 2) / PAGE_BLOCKS * PAGE_BLOCKS;
        blocks = if rounded >= least { rounded } else { rounded + PAGE_BLOCKS };
        // Two whole pages would be one block too many for fences.
        blocks -= usize::from(class != LEAF_HEAD && blocks == MAX_FENCES + 1 && least <= MAX_FENCES);
    }
    blocks.clamp(1, max_blocks(class)).min(count.max(1))
}

/// Whether `entries` need narrow blocks.
pub(super) fn is_mixed(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.kind != WHOLE)
}

impl Gapped<'_> {
    /// All slots in use, in order.
    pub(super) fn entries(self) -> Vec<Entry> {
        let shape = self.shape();
        let mut entries = Vec::with_capacity(self.count() + 1);
        for b in shape.first()..shape.end() {
            let block = self.block(shape, b);
            entries.extend((0..block.count()).map(|i| block.entry(i)));
        }
        entries
    }

    /// How many slots are before `place`.
    pub(super) fn rank(self, place: Place) -> usize {
        let shape = self.shape();
        (shape.first()..place.block).map(|b| self.block(shape, b).count()).sum::<usize>() + place.index
    }

    /// Replaces everything. Returns whether the model fits badly. For the holder of the lock or of a fresh node.
    pub(super) fn build(self, arena: &Arena, entries: &[Entry]) -> bool {
        let narrow = is_mixed(entries);
        let blocks = blocks_for(entries.len(), narrow, self.0.meta().class());
        self.own_pages(arena, 0..blocks.div_ceil(PAGE_BLOCKS));
        let slices = entries.iter().map(|entry| entry.slice);
        let model = Model::fit(slices, blocks as f64 / entries.len().max(1) as f64);
        self.set_model(model, 0, blocks, narrow);
        self.set_count(entries.len());
        let off = self.place_all(entries);
        if self.0.meta().class() == LEAF_HEAD {
            return off > MISFIT_LEAF;
        }
        if off > MISFIT_INNER && (FEWEST_FENCES..=MAX_FENCES).contains(&blocks) {
            self.place_evenly(entries);
            self.set_fences();
        }
        off > MISFIT_INNER
    }

    /// Whether the line through the ends of a leaf that a run has filled fits badly.
    pub(super) fn run_misfits(self) -> bool {
        let shape = self.shape();
        let off = |b: usize| self.predict(shape, self.block(shape, b).slice(0)).abs_diff(b);
        (shape.first()..shape.end()).map(off).sum::<usize>() as f64 > MISFIT_RUN * shape.blocks() as f64
    }

    /// Fills all blocks of the shape alike.
    fn place_evenly(self, entries: &[Entry]) {
        let (shape, mut at) = (self.shape(), 0);
        for b in shape.first()..shape.end() {
            let share = (entries.len() - at).div_ceil(shape.end() - b);
            self.block(shape, b).fill(&entries[at..at + share]);
            at += share;
        }
    }

    /// Fills all blocks of the shape.
    fn place_all(self, entries: &[Entry]) -> f64 {
        let shape = self.shape();
        let (blocks, width) = (shape.blocks(), 8 - usize::from(shape.narrow()));
        let most = if entries.len() <= blocks * (width - 1) { width - 1 } else { width };
        let (mut at, mut misses) = (0, 0);
        for b in 0..blocks {
            let (rest, behind) = (entries.len() - at, blocks - b - 1);
            let (low, high) = (rest.saturating_sub(behind * most), rest.saturating_sub(behind).min(most));
            let mut taken = 0;
            while taken < high {
                let predicted = self.predict(shape, entries[at + taken].slice);
                if predicted > b && taken >= low.max(1) {
                    break;
                }
                misses += predicted.abs_diff(b);
                taken += 1;
            }
            self.block(shape, b).fill(&entries[at..at + taken]);
            at += taken;
        }
        debug_assert_eq!(at, entries.len());
        misses as f64 / entries.len().max(1) as f64
    }

    /// Makes the pages of this range the node's own, and no others.
    fn own_pages(self, arena: &Arena, wanted: std::ops::Range<usize>) {
        let mut own: Vec<u64> = self.pages().map(|p| self.page(p)).collect();
        while own.len() < wanted.len() {
            own.push(arena.allocate_page());
        }
        // A reader that is on its way to one of these validates behind the lock that the caller holds.
        own.drain(wanted.len()..).for_each(|page| arena.free_page(page));
        for p in 0..super::gapped::max_pages(self.0.meta().class()) {
            self.set_page(p, own[p.saturating_sub(wanted.start).min(own.len() - 1)]);
        }
        self.set_pages(wanted);
    }

    /// Makes a fresh node an array of one entry at the end (or beginning) of its room, to grow to the other side.
    pub(super) fn begin_with(self, arena: &Arena, entry: Entry, grow_down: bool) {
        let blocks = max_blocks(self.0.meta().class());
        let b = if grow_down { blocks - 1 } else { 0 };
        self.own_pages(arena, b / PAGE_BLOCKS..b / PAGE_BLOCKS + 1);
        self.set_model(Model::constant(b), b, b + 1, entry.kind != WHOLE);
        self.block(self.shape(), b).fill(&[entry]);
        self.set_count(1);
        self.begin_run(entry.slice, if grow_down { Run::Descending } else { Run::Ascending });
    }

    /// Adds a block with this entry behind the last one. False if there is no room.
    pub(super) fn grow_up(self, arena: &Arena, entry: Entry) -> bool {
        let (shape, pages) = (self.shape(), self.pages());
        let b = shape.end();
        if b == max_blocks(self.0.meta().class()) {
            return false;
        }
        if b / PAGE_BLOCKS >= pages.end {
            self.set_page(b / PAGE_BLOCKS, arena.allocate_page());
            self.set_pages(pages.start..b / PAGE_BLOCKS + 1);
        }
        self.block(shape, b).fill(&[entry]);
        self.set_count(self.count() + 1);
        self.draw_line(shape.with_range(shape.first(), b + 1));
        true
    }

    /// Adds a block with this entry before the first one. False if there is no room.
    pub(super) fn grow_down(self, arena: &Arena, entry: Entry) -> bool {
        let (shape, pages) = (self.shape(), self.pages());
        let Some(b) = shape.first().checked_sub(1) else { return false };
        if b / PAGE_BLOCKS < pages.start {
            self.set_page(b / PAGE_BLOCKS, arena.allocate_page());
            self.set_pages(b / PAGE_BLOCKS..pages.end);
        }
        self.block(shape, b).fill(&[entry]);
        self.set_count(self.count() + 1);
        self.draw_line(shape.with_range(b, shape.end()));
        true
    }

    /// Trains the model alone: a line through the first slices of two full blocks, the second one (the first may have been begun from its
    /// end) and the last.
    pub(super) fn draw_line(self, shape: Shape) {
        let (first, last) = (shape.first(), shape.end() - 1);
        let from = first + usize::from(last > first + 1);
        let (low, high) = (self.block(shape, from).slice(0), self.block(shape, last).slice(0));
        let slope = (last - from) as f64 / high.saturating_sub(low) as f64;
        // A little more than the first slot's place, lest rounding put it into the block before.
        self.set_model(Model::line(low, from as f64 + 1.0 / 16.0, slope, high), first, last + 1, shape.narrow());
    }

    /// Drops everything behind the slot before `place`, and returns it.
    pub(super) fn cut_at(self, arena: &Arena, place: Place) -> Vec<Entry> {
        let all = self.entries();
        let kept = self.rank(place);
        let shape = self.shape();
        let block = self.block(shape, place.block);
        let in_block: Vec<_> = (0..place.index.min(block.count())).map(|i| block.entry(i)).collect();
        let end = if in_block.is_empty() { place.block } else { place.block + 1 };
        if !in_block.is_empty() {
            block.fill(&in_block);
        }
        let pages = self.pages();
        let kept_pages = pages.start..(end - 1) / PAGE_BLOCKS + 1;
        for p in kept_pages.end..pages.end {
            arena.free_page(self.page(p));
            self.set_page(p, self.page(kept_pages.start));
        }
        self.set_pages(kept_pages);
        self.set_count(kept);
        self.draw_line(shape.with_range(shape.first(), end));
        all[kept..].to_vec()
    }
}
