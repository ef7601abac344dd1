//! Iteration in key order, forward and backward, through leaves and the layers below them.
//!
//! A leaf is read in runs of at most [`RUN`] slots, each validated as a whole. The step to a neighbour is coupled, as in the B+-tree
//! (`btree::cursor`), whose cursors read the deeper layers. Whenever a version has changed, the scan looks for its place again, behind the last
//! key that it returned.

use super::Learned;
use super::gapped::{Gapped, Hit, Place, Shape};
use crate::btree::cursor::Cursor as LayerCursor;
use crate::btree::protocol::{Point, Protocol};
use crate::common::slice::{LAYER, LONGER, slice_at};
use crate::common::version::{Restart, back_off};
use crate::common::visit::{CHUNK, visit_runs};
use crate::{Ref, Resolver, Start};
use std::cmp::Ordering;

/// Slots read between two validations.
const RUN: usize = 256;

/// A place in layer 0, and in the layers of the slot before it (backward: behind it).
struct Cursor<'a> {
    leaf: Gapped<'a>,
    version: u64,
    /// Forward, the next slot; backward, one past the next slot.
    at: Place,
    below: Option<LayerCursor<'a>>,
    backward: bool,
}

/// Why a run of slots ended.
enum Stop {
    Limit,
    /// A layer, by the address of its root.
    Layer(u64),
    LeafEnd,
}

impl<P: Protocol> Learned<P> {
    /// See [`crate::OrderedIndex::scan`].
    pub(super) fn scan_into<R: Resolver>(&self, start: Start<'_>, backward: bool, limit: usize, out: &mut Vec<Ref>, resolver: &R) {
        let before = out.len();
        out.reserve(limit.min(CHUNK));
        let (mut place, mut spins) = (start, 0);
        while out.len() - before < limit {
            let room = limit - (out.len() - before);
            match self.seek(place, backward, room, resolver).and_then(|mut cursor| cursor.run(self, room, out)) {
                Ok(()) => return,
                Err(Restart) => {
                    P::reached(Point::ScanReseek);
                    if let Some(last) = out[before..].last() {
                        place = Start::After(resolver.key(*last));
                    }
                    back_off(&mut spins);
                }
            }
        }
    }

    /// See [`crate::Index::for_each`].
    pub(super) fn visit_all<R: Resolver>(&self, resolver: &R, visit: &mut dyn FnMut(Ref) -> bool) {
        visit_runs(resolver, visit, |place| self.seek(place, false, CHUNK, resolver), |cursor, chunk| cursor.run(self, CHUNK, chunk));
    }

    /// One attempt to place a cursor that is going to read `room` slots.
    fn seek<'a, R: Resolver>(&'a self, start: Start<'_>, backward: bool, room: usize, resolver: &R) -> Result<Cursor<'a>, Restart> {
        let (key, inclusive) = match start {
            Start::At(key) => (key, true),
            Start::After(key) => (key, false),
            Start::Edge => {
                let (leaf, version) = self.descend(if backward { u64::MAX } else { 0 })?;
                return Ok(Cursor { leaf, version, at: leaf.edge(backward), below: None, backward });
            }
        };
        let (slice, rank) = slice_at(key, 0);
        let (leaf, version) = self.descend(slice)?;
        let shape = leaf.shape();
        leaf.prefetch_run(shape, leaf.predict(shape, slice), backward, room);
        let Hit { place, kind, value } = leaf.find(shape, slice, rank);
        leaf.0.version().check(version)?;
        let behind = Place { block: place.block, index: place.index + 1 };
        if kind == Some(LAYER) {
            let root = self.tree.follow(leaf.0, version, value)?;
            let below = self.tree.seek_in(root, 8, (key, inclusive), backward, resolver)?;
            return Ok(Cursor { leaf, version, at: if backward { place } else { behind }, below, backward });
        }
        let slot = match kind {
            Some(LONGER) => resolver.key(Ref(value)).cmp(key),
            Some(_) => Ordering::Equal,
            None => Ordering::Greater,
        };
        // Whether the cut lies behind the slot: forward, the slot is left out; backward, it is the first one taken.
        let is_behind = slot == Ordering::Less || (slot == Ordering::Equal && inclusive == backward);
        Ok(Cursor { leaf, version, at: if is_behind { behind } else { place }, below: None, backward })
    }
}

impl Gapped<'_> {
    /// The place where a scan of the whole leaf begins.
    fn edge(self, backward: bool) -> Place {
        let shape = self.shape();
        if backward { Place { block: shape.end().saturating_sub(1), index: 8 } } else { Place { block: shape.first(), index: 0 } }
    }

    /// Starts loading the values of the next blocks from `b` on, enough for `room` slots.
    #[inline(always)]
    fn prefetch_run(self, shape: Shape, b: usize, backward: bool, room: usize) {
        let blocks = room.min(RUN) / 6 + 1;
        let range = if backward { b.saturating_sub(blocks).max(shape.first())..b } else { b + 1..(b + blocks).min(shape.end()) };
        for b in range {
            self.block(shape, b).prefetch_values();
        }
    }
}

impl<'a> Cursor<'a> {
    /// Appends up to `limit` references to `out` and moves behind them; fewer mean that the end was reached. If it fails,
    /// what it has appended is valid, and the cursor is not.
    fn run<P: Protocol>(&mut self, index: &'a Learned<P>, limit: usize, out: &mut Vec<Ref>) -> Result<(), Restart> {
        let end = out.len().saturating_add(limit);
        loop {
            if let Some(below) = &mut self.below {
                below.run(&index.tree, end - out.len(), out)?;
                if out.len() == end {
                    return Ok(());
                }
                self.below = None;
            }
            let room = end - out.len();
            match if self.backward { self.read_down::<P>(room, out)? } else { self.read_up::<P>(room, out)? } {
                Stop::Limit if out.len() == end => return Ok(()),
                Stop::Limit => {}
                Stop::Layer(root) => self.enter(index, root)?,
                Stop::LeafEnd => {
                    if !self.step(index, end - out.len())? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads slots upward to the next layer, the leaf's end or the limit of a run.
    #[inline(always)]
    fn read_up<P: Protocol>(&mut self, room: usize, out: &mut Vec<Ref>) -> Result<Stop, Restart> {
        let (shape, mark, room) = (self.leaf.shape(), out.len(), room.min(RUN));
        let mut at = self.at;
        let mut stop = Stop::LeafEnd;
        'blocks: while at.block < shape.end() {
            let block = self.leaf.block(shape, at.block);
            while at.index < block.width() && block.value(at.index) != 0 {
                if out.len() - mark == room {
                    stop = Stop::Limit;
                    break 'blocks;
                }
                let value = block.value(at.index);
                if block.holds_layer(at.index) {
                    stop = Stop::Layer(value);
                    break 'blocks;
                }
                out.push(Ref(value));
                at.index += 1;
            }
            at = Place { block: at.block + 1, index: 0 };
        }
        self.validate::<P>(mark, out)?;
        self.at = at;
        Ok(stop)
    }

    /// Reads slots downward to the next layer, the leaf's beginning or the limit of a run.
    #[inline(always)]
    fn read_down<P: Protocol>(&mut self, room: usize, out: &mut Vec<Ref>) -> Result<Stop, Restart> {
        let (shape, mark, room) = (self.leaf.shape(), out.len(), room.min(RUN));
        let mut at = self.at;
        let mut stop = Stop::LeafEnd;
        'blocks: while at.block >= shape.first() && at.block < shape.end() {
            let block = self.leaf.block(shape, at.block);
            at.index = at.index.min(block.count());
            while at.index > 0 {
                if out.len() - mark == room {
                    stop = Stop::Limit;
                    break 'blocks;
                }
                let value = block.value(at.index - 1);
                if block.holds_layer(at.index - 1) {
                    stop = Stop::Layer(value);
                    break 'blocks;
                }
                out.push(Ref(value));
                at.index -= 1;
            }
            if at.block == shape.first() {
                break;
            }
            at = Place { block: at.block - 1, index: 8 };
        }
        self.validate::<P>(mark, out)?;
        self.at = at;
        Ok(stop)
    }

    /// Drops what was read since `mark` if the leaf has changed.
    #[inline(always)]
    fn validate<P: Protocol>(&self, mark: usize, out: &mut Vec<Ref>) -> Result<(), Restart> {
        P::reached(Point::ScanRead);
        if P::SCAN_VALIDATES && !self.leaf.0.version().same(self.version) {
            out.truncate(mark);
            return Err(Restart);
        }
        Ok(())
    }

    /// Goes into the layer of the next slot, to come back behind it.
    fn enter<P: Protocol>(&mut self, index: &'a Learned<P>, root: u64) -> Result<(), Restart> {
        let (root, version) = index.tree.follow(self.leaf.0, self.version, root)?;
        if self.backward {
            self.at.index -= 1
        } else {
            self.at.index += 1
        }
        let frame = index.tree.edge(root, version, self.backward)?;
        self.below = Some(LayerCursor { frame, above: Vec::new(), backward: self.backward });
        Ok(())
    }

    /// Goes to the next (backward: previous) leaf; false at the end.
    fn step<P: Protocol>(&mut self, index: &'a Learned<P>, room: usize) -> Result<bool, Restart> {
        let next = if self.backward { self.leaf.previous() } else { self.leaf.next() };
        if next == 0 {
            self.leaf.0.version().check(self.version)?;
            return Ok(false);
        }
        let (node, version) = index.tree.follow(self.leaf.0, self.version, next)?;
        let leaf = Gapped(node);
        if self.backward {
            // A writer may be between the two links; only the forward one decides.
            let linked = leaf.next() == self.leaf.0.address();
            node.version().check(version)?;
            self.leaf.0.version().check(self.version)?;
            if !linked {
                return Err(Restart);
            }
        }
        let at = leaf.edge(self.backward);
        let shape = leaf.shape();
        if shape.first() < shape.end() {
            leaf.prefetch_run(shape, at.block, self.backward, room);
        }
        *self = Cursor { leaf, version, at, below: None, backward: self.backward };
        Ok(true)
    }
}
