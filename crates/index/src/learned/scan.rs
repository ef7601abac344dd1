//! Iteration in key order, forward and backward, through leaves and subtrees.
//!
//! A leaf is read in runs of at most [`RUN`] slots, each validated as a whole. The step to a neighbour is coupled, as
//! in the B+-tree (`btree::cursor`), whose cursors read the subtrees. From a leaf or subtree without a link to its
//! neighbour, a scan goes on by a search for the end of its range: everything before that end has been read. Whenever a
//! version has changed, the scan looks for its place again, after the last key that it returned.

use super::Learned;
use super::block::{Block, WIDTH};
use super::gapped::{Gapped, Hit, Place, Shape};
use super::read::WORD;
use super::subtree::is_subtree;
use crate::btree::cursor::{Cursor as SubtreeCursor, Keyed, Slots};
use crate::btree::protocol::{Point, Protocol, Rule};
use crate::common::node::{INNER_HEAD, Node};
use crate::common::slice::slice_at;
use crate::common::version::Restart;
use crate::common::visit::{CHUNK, go_on_behind, visit_runs};
use crate::{Ref, Resolver, SortedPiece, Start};
use std::cmp::Ordering;
use std::ops::Range;

/// Number of slots read between two validations.
const RUN: usize = 256;

/// A list in which a cursor collects slots: those of subtrees, and those of learned leaves, which are keys of eight
/// bytes.
trait Collecting: Slots {
    /// Appends slots of a block.
    fn add_block(&mut self, block: Block<'_>, slots: Range<usize>, backward: bool);
}

impl Collecting for Vec<Ref> {
    #[inline(always)]
    fn add_block(&mut self, block: Block<'_>, slots: Range<usize>, backward: bool) {
        if backward {
            self.extend(slots.rev().map(|i| Ref(block.value(i))));
        } else {
            self.extend(slots.map(|i| Ref(block.value(i))));
        }
    }
}

impl Collecting for Keyed {
    fn add_block(&mut self, block: Block<'_>, slots: Range<usize>, backward: bool) {
        debug_assert!(!backward, "keys are copied in ascending order");
        slots.for_each(|i| self.push(block.slice(i), Ref(block.value(i))));
    }
}

/// A place in a leaf.
struct LeafCursor<'a> {
    leaf: Gapped<'a>,
    version: u64,
    /// Forward, the next slot; backward, one past the next slot.
    at: Place,
}

enum Inside<'a> {
    Leaf(LeafCursor<'a>),
    /// A place in a subtree, and a slice of the subtree's range.
    Subtree(SubtreeCursor<'a>, u64),
}

/// A place in the index.
struct Cursor<'a> {
    inside: Inside<'a>,
    backward: bool,
}

/// A child, and its range of slices: from `low`, and below `high` if there is one.
pub(super) struct Ranged<'a> {
    pub(super) node: Node<'a>,
    version: u64,
    low: u64,
    pub(super) high: Option<u64>,
}

impl<P: Protocol> Learned<P> {
    /// See [`crate::OrderedIndex::scan`].
    pub(super) fn scan_into<R: Resolver>(&self, start: Start<'_>, backward: bool, limit: usize, out: &mut Vec<Ref>, resolver: &R) {
        let before = out.len();
        out.reserve(limit.min(CHUNK));
        let (mut place, mut spins) = (start, 0);
        while out.len() - before < limit {
            let room = limit - (out.len() - before);
            match self.seek(place, backward, room, resolver).and_then(|mut cursor| cursor.run(self, room, out, resolver)) {
                Ok(()) => return,
                Err(Restart) => {
                    P::reached(Point::ScanReseek);
                    place = go_on_behind(out, before, resolver).map_or(start, Start::After);
                    hither_sync::pause(&mut spins);
                }
            }
        }
    }

    /// See [`crate::OrderedIndex::copy_sorted`].
    pub(super) fn copy_into<R: Resolver>(&self, start: Start<'_>, limit: usize, piece: &mut SortedPiece, resolver: &R) {
        let (mut found, mut word, mut spins) = (Keyed::default(), [0; 8], 0);
        while found.len() < limit {
            let place = found.go_on_behind(&mut word, resolver).map_or(start, Start::After);
            let room = limit - found.len();
            if self.seek(place, false, room, resolver).and_then(|mut cursor| cursor.run(self, room, &mut found, resolver)).is_ok() {
                break;
            }
            hither_sync::pause(&mut spins);
        }
        found.append_to(piece, resolver);
    }

    /// See [`crate::Index::for_each`].
    pub(super) fn visit_all<R: Resolver>(&self, resolver: &R, visit: &mut dyn FnMut(Ref) -> bool) {
        visit_runs(
            resolver,
            visit,
            |place| self.seek(place, false, CHUNK, resolver),
            |cursor, chunk| cursor.run(self, CHUNK, chunk, resolver),
        );
    }

    /// One attempt to place a cursor that will read `room` slots.
    fn seek<'a, R: Resolver>(&'a self, start: Start<'_>, backward: bool, room: usize, resolver: &R) -> Result<Cursor<'a>, Restart> {
        let (key, inclusive) = match start {
            Start::At(key) => (key, true),
            Start::After(key) => (key, false),
            Start::Edge => return self.seek_edge(backward),
        };
        self.seek_in(slice_at(key, 0).0, (key, inclusive), backward, room, resolver)
    }

    fn seek_edge(&self, backward: bool) -> Result<Cursor<'_>, Restart> {
        let slice = if backward { u64::MAX } else { 0 };
        let (node, version) = self.descend(slice)?;
        let inside = if is_subtree(node) {
            let frame = self.tree.edge(node, version, backward)?;
            Inside::Subtree(SubtreeCursor { frame, above: Vec::new(), backward }, slice)
        } else {
            Inside::Leaf(LeafCursor { leaf: Gapped(node), version, at: Gapped(node).edge(backward) })
        };
        Ok(Cursor { inside, backward })
    }

    /// Places a cursor in the leaf or subtree for `slice`: before the first key that is greater than `key` or, if
    /// `inclusive`, equal to it (backward: mirrored).
    #[inline(always)]
    fn seek_in<'a, R: Resolver>(
        &'a self,
        slice: u64,
        (key, inclusive): (&[u8], bool),
        backward: bool,
        room: usize,
        resolver: &R,
    ) -> Result<Cursor<'a>, Restart> {
        let (node, version) = self.descend(slice)?;
        if is_subtree(node) {
            let cursor = self.tree.seek_in((node, version), (key, inclusive), backward, resolver)?;
            let cursor = cursor.expect("layer 0 skips nothing, so no key lies wholly beside it");
            return Ok(Cursor { inside: Inside::Subtree(cursor, slice), backward });
        }
        let (leaf, (wanted, rank)) = (Gapped(node), slice_at(key, 0));
        let shape = leaf.shape();
        leaf.prefetch_run(shape, leaf.predict(shape, wanted), backward, room);
        let Hit { place, value } = leaf.find(shape, wanted);
        node.version().check(version)?;
        // Whether the cut lies after the slot: forward, the slot is then left out; backward, it is the first one taken.
        let is_behind = match WORD.cmp(&rank) {
            order if value != 0 => order == Ordering::Less || (order == Ordering::Equal && inclusive == backward),
            _ => false,
        };
        let at = if is_behind { Place { block: place.block, index: place.index + 1 } } else { place };
        Ok(Cursor { inside: Inside::Leaf(LeafCursor { leaf, version, at }), backward })
    }

    /// The leaf or subtree for `slice`, with its range.
    pub(super) fn descend_ranged(&self, slice: u64) -> Result<Ranged<'_>, Restart> {
        let (mut node, mut version) = self.tree.top()?;
        let (mut low, mut high) = (0, None);
        while node.meta().class() == INNER_HEAD {
            let inner = Gapped(node);
            let shape = inner.shape();
            let place = inner.child_place(shape, slice);
            let block = inner.block(place.block);
            low = block.slice(place.index);
            let next = inner.slot_from(shape, Place { index: place.index + 1, ..place });
            high = next.map(|next| inner.block(next.block).slice(next.index)).or(high);
            (node, version) = self.tree.follow(node, version, block.address(place.index))?;
        }
        Ok(Ranged { node, version, low, high })
    }
}

/// The first of all keys with this slice. Slices of shorter keys are padded with zeros, so it has no trailing zeros.
fn first_key(slice: &[u8; 8]) -> &[u8] {
    let zeros = slice.iter().rev().take_while(|byte| **byte == 0).count();
    &slice[..8 - zeros]
}

impl Gapped<'_> {
    /// The place where a scan of the whole leaf begins.
    fn edge(self, backward: bool) -> Place {
        let shape = self.shape();
        if backward { Place { block: shape.end().saturating_sub(1), index: WIDTH } } else { Place { block: shape.first(), index: 0 } }
    }

    /// Starts loading the values of the next blocks after `b` (backward: before it), enough for `room` slots.
    #[inline(always)]
    fn prefetch_run(self, shape: Shape, b: usize, backward: bool, room: usize) {
        let blocks = room.min(RUN) / 6 + 1;
        let range = if backward { b.saturating_sub(blocks).max(shape.first())..b } else { b + 1..(b + blocks).min(shape.end()) };
        for b in range {
            self.block(b).prefetch_values();
        }
    }
}

impl<'a> Cursor<'a> {
    /// Appends up to `limit` references to `out` and moves past them; fewer mean that the end was reached. If it fails,
    /// the references appended so far are valid, but the cursor is not.
    fn run<P: Protocol, R: Resolver, S: Collecting>(
        &mut self,
        index: &'a Learned<P>,
        limit: usize,
        out: &mut S,
        resolver: &R,
    ) -> Result<(), Restart> {
        let end = out.len().saturating_add(limit);
        loop {
            match &mut self.inside {
                Inside::Subtree(cursor, _) => cursor.run(&index.tree, end - out.len(), out)?,
                Inside::Leaf(cursor) => cursor.run::<P, S>(self.backward, end, out)?,
            }
            if out.len() == end || !self.step(index, end - out.len(), resolver)? {
                return Ok(());
            }
        }
    }

    /// Goes to the next (backward: previous) leaf or subtree; returns false at the end.
    fn step<P: Protocol, R: Resolver>(&mut self, index: &'a Learned<P>, room: usize, resolver: &R) -> Result<bool, Restart> {
        let range = match &self.inside {
            Inside::Leaf(cursor) => {
                if let Some(next) = cursor.neighbour(index, self.backward, room)? {
                    self.inside = Inside::Leaf(next);
                    return Ok(true);
                }
                let range = index.descend_ranged(cursor.leaf.low())?;
                if range.node != cursor.leaf.0 || range.version != cursor.version {
                    return Err(Restart);
                }
                range
            }
            Inside::Subtree(_, slice) => index.descend_ranged(*slice)?,
        };
        *self = if self.backward {
            let Some(below) = range.low.checked_sub(1) else { return Ok(false) };
            index.seek_in(below, (first_key(&range.low.to_be_bytes()), false), true, room, resolver)?
        } else {
            let Some(high) = range.high else { return Ok(false) };
            index.seek_in(high, (first_key(&high.to_be_bytes()), true), false, room, resolver)?
        };
        Ok(true)
    }
}

impl<'a> LeafCursor<'a> {
    /// Reads up to the leaf's end or until `out` has `end` references.
    #[inline(always)]
    fn run<P: Protocol, S: Collecting>(&mut self, backward: bool, end: usize, out: &mut S) -> Result<(), Restart> {
        loop {
            let (mark, room) = (out.len(), (end - out.len()).min(RUN));
            let at = if backward { self.read_down(room, out) } else { self.read_up(room, out) };
            self.validate::<P, S>(mark, out)?;
            self.at = at;
            if out.len() == end || out.len() - mark < room {
                return Ok(());
            }
        }
    }

    /// Reads up to `room` slots upward; returns where it ended.
    #[inline(always)]
    fn read_up<S: Collecting>(&self, mut room: usize, out: &mut S) -> Place {
        let (end, mut at) = (self.leaf.shape().end(), self.at);
        while at.block < end && room > 0 {
            let block = self.leaf.block(at.block);
            let (from, count) = (at.index, block.count());
            let to = count.min(from + room);
            out.add_block(block, from..to, false);
            if to < count {
                return Place { block: at.block, index: to };
            }
            room -= to.saturating_sub(from);
            at = Place { block: at.block + 1, index: 0 };
        }
        at
    }

    /// Reads up to `room` slots downward; returns where it ended.
    #[inline(always)]
    fn read_down<S: Collecting>(&self, mut room: usize, out: &mut S) -> Place {
        let (shape, mut at) = (self.leaf.shape(), self.at);
        while (shape.first()..shape.end()).contains(&at.block) && room > 0 {
            let block = self.leaf.block(at.block);
            let to = at.index.min(block.count());
            let from = to.saturating_sub(room);
            out.add_block(block, from..to, true);
            if from > 0 || at.block == shape.first() {
                return Place { block: at.block, index: from };
            }
            room -= to;
            at = Place { block: at.block - 1, index: WIDTH };
        }
        at
    }

    /// Drops what was read since `mark` if the leaf has changed.
    #[inline(always)]
    fn validate<P: Protocol, S: Collecting>(&self, mark: usize, out: &mut S) -> Result<(), Restart> {
        P::reached(Point::ScanRead);
        if P::heeds(Rule::ScanValidates) && !self.leaf.0.version().same(self.version) {
            out.truncate(mark);
            return Err(Restart);
        }
        Ok(())
    }

    /// The beginning of the next (backward: the end of the previous) leaf, if a link leads there.
    fn neighbour<P: Protocol>(&self, index: &'a Learned<P>, backward: bool, room: usize) -> Result<Option<LeafCursor<'a>>, Restart> {
        let next = if backward { self.leaf.previous() } else { self.leaf.next() };
        if next == 0 {
            return Ok(None);
        }
        let (node, version) = index.tree.follow(self.leaf.0, self.version, next)?;
        let leaf = Gapped(node);
        if backward {
            // A writer may be between its changes of the two links; only the forward link decides.
            let linked = leaf.next() == self.leaf.0.address();
            node.version().check(version)?;
            self.leaf.0.version().check(self.version)?;
            if !linked {
                return Err(Restart);
            }
        }
        let (at, shape) = (leaf.edge(backward), leaf.shape());
        if shape.first() < shape.end() {
            leaf.prefetch_run(shape, at.block, backward, room);
        }
        Ok(Some(LeafCursor { leaf, version, at }))
    }
}
