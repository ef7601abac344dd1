//! Building a gapped array from sorted entries: the model first, then every entry at or near its predicted block (ALEX,
//! sections 4.2 and 5.1). Also growing block by block at its ends.
//!
//! Unlike in ALEX, an array that was just built never has an empty block or a full stretch: where the model predicts
//! too many entries for a block, or none, they are spread according to their ranks. So at first an insert always finds
//! a gap nearby, whatever the distribution.

use super::block::{Entry, PAGE_BLOCKS, WIDTH};
use super::edit::Run;
use super::gapped::{Gapped, MAX_FENCES, Place, Shape, max_blocks};
use super::model::Model;
use crate::common::arena::Arena;
use crate::common::node::LEAF_HEAD;

/// The share of slots in use after a build.
const DENSITY: f64 = 0.75;
/// The greatest share of slots in use to which rounding to whole pages may lead.
const DENSEST: f64 = 0.88;
/// The model of an inner node is bad if it is wrong by more blocks than this on average. The node then gets fences.
const MISFIT_INNER: f64 = 2.0;
/// The model of a leaf is bad if more than this share of the slots is in neither of the two blocks that a search reads
/// first.
const MISFIT_LEAF: f64 = 0.3;
/// The model of a leaf that a run has filled block after block is bad if it is wrong by more blocks than this on
/// average, for the first slices of the blocks.
const MISFIT_RUN: f64 = 0.75;
/// An array of fewer blocks than this needs no fences.
const FEWEST_FENCES: usize = 4;
/// An array of more blocks than this fills its last page.
const SMALL: usize = 24;

/// The number of blocks for `count` slots: no more than the class has.
fn blocks_for(count: usize, class: usize) -> usize {
    let mut blocks = (count as f64 / (WIDTH as f64 * DENSITY)).ceil() as usize;
    if blocks > SMALL {
        let least = (count as f64 / (WIDTH as f64 * DENSEST)).ceil() as usize;
        let rounded = (blocks + PAGE_BLOCKS / 2) / PAGE_BLOCKS * PAGE_BLOCKS;
        blocks = if rounded >= least { rounded } else { rounded + PAGE_BLOCKS };
        // Two whole pages would be one block too many for fences.
        blocks -= usize::from(class != LEAF_HEAD && blocks == MAX_FENCES + 1 && least <= MAX_FENCES);
    }
    blocks.clamp(1, max_blocks(class)).min(count.max(1))
}

/// How the slots of an array are laid out: each in its predicted block or near it. No block is left empty or filled
/// completely without need.
struct Layout {
    blocks: usize,
    model: Model,
}

/// How far a layout's predictions are off.
#[derive(Default)]
struct Misses {
    slots: usize,
    /// Total distance in blocks, over all slots.
    distance: usize,
    /// Number of slots that are neither in the predicted block nor in the next one.
    beyond: usize,
}

impl Layout {
    fn new(entries: &[Entry], class: usize) -> Layout {
        let blocks = blocks_for(entries.len(), class);
        let slices = entries.iter().map(|entry| entry.slice);
        Layout { blocks, model: Model::fit(slices, blocks as f64 / entries.len().max(1) as f64) }
    }

    /// Calls `fill` with the entries of each block in turn.
    fn deal(&self, entries: &[Entry], mut fill: impl FnMut(usize, &[Entry])) -> Misses {
        // A block is filled completely only if there are so many slots that they would otherwise pile up before it.
        let most = if entries.len() * 5 <= self.blocks * WIDTH * 4 { WIDTH - 1 } else { WIDTH };
        let (mut at, mut misses) = (0, Misses { slots: entries.len(), ..Misses::default() });
        for b in 0..self.blocks {
            let (rest, behind) = (entries.len() - at, self.blocks - b - 1);
            let (low, high) = (rest.saturating_sub(behind * most), rest.saturating_sub(behind).min(most));
            let mut taken = 0;
            while taken < high {
                let predicted = self.model.predict(entries[at + taken].slice).clamp(0, self.blocks as i64 - 1) as usize;
                if predicted > b && taken >= low.max(1) {
                    break;
                }
                misses.distance += predicted.abs_diff(b);
                misses.beyond += usize::from(b.wrapping_sub(predicted) > 1);
                taken += 1;
            }
            fill(b, &entries[at..at + taken]);
            at += taken;
        }
        debug_assert_eq!(at, entries.len());
        misses
    }
}

impl Misses {
    fn too_many(&self, class: usize) -> bool {
        if class == LEAF_HEAD {
            self.beyond as f64 > MISFIT_LEAF * self.slots as f64
        } else {
            self.distance as f64 > MISFIT_INNER * self.slots as f64
        }
    }
}

/// Whether a line fits a leaf of these entries.
pub(super) fn fits(entries: &[Entry]) -> bool {
    !Layout::new(entries, LEAF_HEAD).deal(entries, |_, _| ()).too_many(LEAF_HEAD)
}

impl Gapped<'_> {
    /// All slots in use, in order.
    pub(super) fn entries(self) -> Vec<Entry> {
        let shape = self.shape();
        let mut entries = Vec::with_capacity(self.count() + 1);
        for b in shape.first()..shape.end() {
            let block = self.block(b);
            entries.extend((0..block.count()).map(|i| block.entry(i)));
        }
        entries
    }

    /// Returns how many slots are before `place`.
    pub(super) fn rank(self, place: Place) -> usize {
        let shape = self.shape();
        (shape.first()..place.block).map(|b| self.block(b).count()).sum::<usize>() + place.index
    }

    /// Replaces all slots. Returns whether the model fits badly. For the holder of the lock or of a fresh node.
    pub(super) fn build(self, arena: &Arena, entries: &[Entry]) -> bool {
        let class = self.0.meta().class();
        let layout = Layout::new(entries, class);
        self.own_pages(arena, 0..layout.blocks.div_ceil(PAGE_BLOCKS));
        self.set_model(layout.model, 0, layout.blocks);
        self.set_count(entries.len());
        let misfits = layout.deal(entries, |b, entries| self.block(b).fill(entries)).too_many(class);
        if misfits && class != LEAF_HEAD && (FEWEST_FENCES..=MAX_FENCES).contains(&layout.blocks) {
            self.place_evenly(entries);
            self.set_fences();
        }
        misfits
    }

    /// Whether the line through the ends of a leaf that a run has filled fits badly.
    pub(super) fn run_misfits(self) -> bool {
        let shape = self.shape();
        let off = |b: usize| self.predict(shape, self.block(b).slice(0)).abs_diff(b);
        (shape.first()..shape.end()).map(off).sum::<usize>() as f64 > MISFIT_RUN * shape.blocks() as f64
    }

    /// Fills all blocks of the shape evenly.
    fn place_evenly(self, entries: &[Entry]) {
        let (shape, mut at) = (self.shape(), 0);
        for b in shape.first()..shape.end() {
            let share = (entries.len() - at).div_ceil(shape.end() - b);
            self.block(b).fill(&entries[at..at + share]);
            at += share;
        }
    }

    /// Makes the pages of this range the node's own, and releases its other pages.
    fn own_pages(self, arena: &Arena, wanted: std::ops::Range<usize>) {
        let mut own: Vec<u64> = self.pages().map(|p| self.page(p)).collect();
        while own.len() < wanted.len() {
            own.push(arena.allocate_page());
        }
        // A reader that is on its way to one of these pages notices, when it validates, the lock that the caller holds.
        own.drain(wanted.len()..).for_each(|page| arena.free_page(page));
        for p in 0..super::gapped::max_pages(self.0.meta().class()) {
            self.set_page(p, own[p.saturating_sub(wanted.start).min(own.len() - 1)]);
        }
        self.set_pages(wanted);
    }

    /// Makes a fresh node an array of one entry at the beginning (or end) of its room, to grow towards the other side.
    pub(super) fn begin_with(self, arena: &Arena, entry: Entry, grow_down: bool) {
        let blocks = max_blocks(self.0.meta().class());
        let b = if grow_down { blocks - 1 } else { 0 };
        self.own_pages(arena, b / PAGE_BLOCKS..b / PAGE_BLOCKS + 1);
        self.set_model(Model::constant(b), b, b + 1);
        self.block(b).fill(&[entry]);
        self.set_count(1);
        self.begin_run(entry.slice, if grow_down { Run::Descending } else { Run::Ascending });
    }

    /// Adds a block with this entry after the last one. Returns false if there is no room.
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
        self.block(b).fill(&[entry]);
        self.set_count(self.count() + 1);
        self.draw_line(shape.with_range(shape.first(), b + 1));
        true
    }

    /// Adds a block with this entry before the first one. Returns false if there is no room.
    pub(super) fn grow_down(self, arena: &Arena, entry: Entry) -> bool {
        let (shape, pages) = (self.shape(), self.pages());
        let Some(b) = shape.first().checked_sub(1) else { return false };
        if b / PAGE_BLOCKS < pages.start {
            self.set_page(b / PAGE_BLOCKS, arena.allocate_page());
            self.set_pages(b / PAGE_BLOCKS..pages.end);
        }
        self.block(b).fill(&[entry]);
        self.set_count(self.count() + 1);
        self.draw_line(shape.with_range(b, shape.end()));
        true
    }

    /// Trains the model alone: a line through the first slices of two full blocks. These are the second block (the
    /// first one may still be filling from its end) and the last one.
    pub(super) fn draw_line(self, shape: Shape) {
        let (first, last) = (shape.first(), shape.end() - 1);
        let from = first + usize::from(last > first + 1);
        let (low, high) = (self.block(from).slice(0), self.block(last).slice(0));
        let slope = (last - from) as f64 / high.saturating_sub(low) as f64;
        // Slightly above the first slot's place, lest rounding put the slot into the block before.
        self.set_model(Model::line(low, from as f64 + 1.0 / 16.0, slope, high), first, last + 1);
    }

    /// Removes all slots from `place` on, and returns them.
    pub(super) fn cut_at(self, arena: &Arena, place: Place) -> Vec<Entry> {
        let all = self.entries();
        let kept = self.rank(place);
        let shape = self.shape();
        let block = self.block(place.block);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Rng;

    fn entries(mut slices: Vec<u64>) -> Vec<Entry> {
        slices.sort_unstable();
        slices.dedup();
        slices.into_iter().map(|slice| Entry { slice, value: 1 }).collect()
    }

    #[test]
    fn lines_fit_random_slices_of_any_number_and_no_others() {
        let mut rng = Rng::new(6);
        for n in (200..=3072).step_by(13) {
            assert!(fits(&entries((0..n).map(|_| rng.word() >> (n % 30)).collect())), "{n} random slices");
            assert!(fits(&entries((0..n as u64).collect())), "{n} slices in a row");
            assert!(!fits(&entries((0..n).map(|_| (rng.word() >> 1) >> rng.below(50)).collect())), "{n} slices of any magnitude");
        }
    }
}
