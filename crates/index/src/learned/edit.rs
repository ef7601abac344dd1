//! Changing single slots of a gapped array. Everything here is for the holder of its lock.

use super::block::{Entry, WIDTH};
use super::gapped::{Gapped, Place, Shape};
use crate::Ref;

/// A full block passes a slot on towards a gap in one of at most this many blocks on each side.
const REACH: usize = 8;

/// So many inserts in a row, each beside the one before it, are a run.
const RUN: u64 = 16;

/// The order of the most recent inserts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    None,
    Ascending,
    Descending,
}

impl Gapped<'_> {
    /// Inserts at `place`, moving slots by at most [`REACH`] blocks. Returns false, with nothing changed, if no gap is
    /// so near.
    #[inline]
    pub(super) fn insert(self, place: Place, entry: Entry) -> bool {
        let block = self.block(place.block);
        let count = block.count();
        if count < WIDTH {
            block.insert(place.index, count, entry);
        } else if !self.insert_by_moving(self.shape(), place, entry) {
            return false;
        }
        self.set_count(self.count() + 1);
        true
    }

    #[cold]
    fn insert_by_moving(self, shape: Shape, place: Place, entry: Entry) -> bool {
        let has_gap = |b: usize| self.block(b).count() < WIDTH;
        for distance in 1..=REACH {
            if place.block + distance < shape.end() && has_gap(place.block + distance) {
                self.move_up(place, entry, place.block + distance);
                return true;
            }
            if place.block >= shape.first() + distance && has_gap(place.block - distance) {
                self.move_down(place, entry, place.block - distance);
                return true;
            }
        }
        false
    }

    /// Inserts into a full block; one slot of each block up to `target` moves to the next.
    fn move_up(self, place: Place, entry: Entry, target: usize) {
        let (mut carried, mut at) = (entry, place.index);
        for b in place.block..target {
            let block = self.block(b);
            if at < WIDTH {
                let out = block.entry(WIDTH - 1);
                block.remove(WIDTH - 1, WIDTH);
                block.insert(at, WIDTH - 1, carried);
                carried = out;
            }
            at = 0;
        }
        let block = self.block(target);
        block.insert(0, block.count(), carried);
    }

    /// Inserts into a full block; one slot of each block down to `target` moves to the previous one.
    fn move_down(self, place: Place, entry: Entry, target: usize) {
        let (mut carried, mut at) = (entry, place.index);
        for b in (target + 1..=place.block).rev() {
            let block = self.block(b);
            if at > 0 {
                let out = block.entry(0);
                block.remove(0, WIDTH);
                block.insert(at - 1, WIDTH - 1, carried);
                carried = out;
            }
            at = WIDTH;
        }
        let block = self.block(target);
        let count = block.count();
        block.insert(count, count, carried);
    }

    /// Removes the slot at `place`. Returns false, with nothing changed, if that would leave a block empty between
    /// sparse ones; the array must then be rebuilt without the slot.
    #[inline]
    pub(super) fn remove(self, place: Place) -> bool {
        let block = self.block(place.block);
        let count = block.count();
        if count > 1 {
            block.remove(place.index, count);
        } else if !self.empty_block(self.shape(), place.block) {
            return false;
        }
        self.set_count(self.count() - 1);
        true
    }

    /// Removes the only slot of block `b`: a block at an end is dropped, any other gets a slot of a neighbour (B1).
    #[cold]
    fn empty_block(self, shape: Shape, b: usize) -> bool {
        let (first, end) = (shape.first(), shape.end());
        let block = self.block(b);
        if end - first == 1 {
            block.fill(&[]);
        } else if b == first {
            self.set_shape(shape.with_range(first + 1, end));
        } else if b == end - 1 {
            self.set_shape(shape.with_range(first, end - 1));
        } else {
            let (left, right) = (self.block(b - 1), self.block(b + 1));
            let (lefts, rights) = (left.count(), right.count());
            if rights > 1 {
                block.fill(&[right.entry(0)]);
                right.remove(0, rights);
            } else if lefts > 1 {
                block.fill(&[left.entry(lefts - 1)]);
                left.remove(lefts - 1, lefts);
            } else {
                return false;
            }
        }
        true
    }

    /// Whether an insert at `place` comes right after or right before the last one.
    #[inline(always)]
    pub(super) fn beside(self, place: Place) -> Run {
        let block = self.block(place.block);
        let (last, runs) = self.last_insert();
        if place.index > 0 && block.slice(place.index - 1) == last {
            Run::Ascending
        } else if place.index < WIDTH && block.slice(place.index) == last {
            Run::Descending
        } else if place.index > 0 && place.index < WIDTH {
            Run::None
        } else {
            // Only the neighbouring block could tell, which may cost a cache miss: assume that the order is as before.
            Self::run_of(runs)
        }
    }

    /// Records an insert for [`Gapped::run`].
    #[inline(always)]
    pub(super) fn note(self, slice: u64, beside: Run) {
        let (_, runs) = self.last_insert();
        let step = |run: u64, grows: bool| if grows { (run + 1).min(2 * RUN) } else { run / 2 };
        let (up, down) = (step(runs & 0xff, beside == Run::Ascending), step(runs >> 8 & 0xff, beside == Run::Descending));
        self.set_last_insert(slice, runs & !0xffff | up | down << 8);
    }

    /// Records that `slice` was inserted in a run.
    pub(super) fn begin_run(self, slice: u64, run: Run) {
        let runs = match run {
            Run::None => 0,
            Run::Ascending => RUN,
            Run::Descending => RUN << 8,
        };
        self.set_last_insert(slice, runs);
    }

    /// Whether inserts ascend or descend one by one.
    pub(super) fn run(self) -> Run {
        Self::run_of(self.last_insert().1)
    }

    fn run_of(runs: u64) -> Run {
        if runs & 0xff >= RUN {
            Run::Ascending
        } else if runs >> 8 & 0xff >= RUN {
            Run::Descending
        } else {
            Run::None
        }
    }

    /// The slot of `old`: at `place` or, if it is not there, in one of the nearby blocks.
    pub(super) fn slot_of(self, shape: Shape, place: Place, old: Ref) -> Option<Place> {
        let holds = |at: Place| at.index < WIDTH && self.block(at.block).value(at.index) == old.0;
        let named = (shape.first()..shape.end()).contains(&place.block);
        let near = |distance: usize| [place.block.wrapping_sub(distance), place.block + distance];
        let blocks = (0..NEARBY).flat_map(near).filter(|b| named && (shape.first()..shape.end()).contains(b));
        let in_block = |b: usize| (0..8).map(move |index| Place { block: b, index });
        Some(place).filter(|at| named && holds(*at)).or_else(|| blocks.flat_map(in_block).find(|at| holds(*at)))
    }
}

/// Number of blocks to each side of a hint, counting the hinted one, in which its reference is searched.
const NEARBY: usize = 4;
