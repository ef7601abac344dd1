//! Iteration in key order, forward and backward, through leaves and layers.
//!
//! A cursor is a stack of frames, one per layer on its way. Each frame holds a leaf, the version at which it was read
//! and the position reached. The slots of a leaf are copied out and then validated as a whole, so each leaf is read
//! atomically.
//!
//! The step to a neighbour is coupled: the neighbour's version is taken while this leaf still has the version at which
//! it was read, so nothing can have moved between the two in the meantime. The same holds for the way into a layer and
//! back.
//!
//! Whenever a version has changed, the scan looks for its place again, after the last sound key that it returned. (An
//! entry that is not sound may seem to have any key.)

use super::BTree;
use super::leaf::Leaf;
use super::protocol::{Point, Protocol, Rule};
use crate::common::node::{Meta, Node};
use crate::common::slice::LAYER;
use crate::common::version::Restart;
use crate::common::visit::{CHUNK, go_on_behind, visit_runs};
use crate::{Ref, Resolver, SortedPiece, Start};
use std::ops::Range;

/// Number of layers that are loaded ahead, and of lines of their roots: most layers are a leaf of 128 bytes.
const LAYERS_AHEAD: usize = 4;
const SMALL_LINES: usize = 2;

/// Number of entries of a scan that are prefetched while its leaves are read.
const REQUESTED: usize = 32;

/// A place in one layer. Forward, `at` is the next slot; backward, it is one past the next slot.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(super) leaf: Leaf<'a>,
    pub(super) version: u64,
    pub(super) at: usize,
}

/// A place in the tree.
pub(crate) struct Cursor<'a> {
    pub(crate) frame: Frame<'a>,
    /// The frames of the layers above, where the scan goes on when this layer is finished.
    pub(crate) above: Vec<Frame<'a>>,
    pub(crate) backward: bool,
}

/// A list in which a cursor collects slots. The slots of a leaf are removed again if the leaf turns out to have
/// changed.
pub(crate) trait Slots {
    fn len(&self) -> usize;
    fn truncate(&mut self, len: usize);
    /// Appends slots of a leaf; `top` tells whether the leaf belongs to layer 0.
    fn add(&mut self, leaf: Leaf<'_>, meta: Meta, slots: Range<usize>, backward: bool, top: bool);
}

impl Slots for Vec<Ref> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len()
    }

    fn truncate(&mut self, len: usize) {
        self.truncate(len);
    }

    #[inline(always)]
    fn add(&mut self, leaf: Leaf<'_>, meta: Meta, slots: Range<usize>, backward: bool, _top: bool) {
        if backward {
            self.extend(slots.rev().map(|i| Ref(leaf.value(meta, i))));
        } else {
            self.extend(slots.map(|i| Ref(leaf.value(meta, i))));
        }
    }
}

/// A list of references. The entries of the first ones are prefetched at once, so that they load together with the next
/// leaf.
struct Requesting<'a, R> {
    refs: &'a mut Vec<Ref>,
    /// Entries before this position in the list are prefetched.
    end: usize,
    resolver: &'a R,
}

impl<R: Resolver> Slots for Requesting<'_, R> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.refs.len()
    }

    fn truncate(&mut self, len: usize) {
        self.refs.truncate(len);
    }

    #[inline(always)]
    fn add(&mut self, leaf: Leaf<'_>, meta: Meta, slots: Range<usize>, backward: bool, top: bool) {
        let mark = self.refs.len();
        self.refs.add(leaf, meta, slots, backward, top);
        let asked = mark..self.refs.len().min(self.end);
        self.refs.get(asked).unwrap_or_default().iter().for_each(|reference| self.resolver.prefetch(*reference));
    }
}

/// References with their keys, where the slot holds the whole key.
#[derive(Default)]
pub(crate) struct Keyed {
    refs: Vec<Ref>,
    words: Vec<Option<u64>>,
}

impl Slots for Keyed {
    fn len(&self) -> usize {
        self.refs.len()
    }

    fn truncate(&mut self, len: usize) {
        self.refs.truncate(len);
        self.words.truncate(len);
    }

    fn add(&mut self, leaf: Leaf<'_>, meta: Meta, slots: Range<usize>, backward: bool, top: bool) {
        debug_assert!(!backward, "keys are copied in ascending order");
        // Layer 0 skips no slices, so a slot of kind 8 in it is a whole key.
        self.words.extend(slots.clone().map(|i| (top && leaf.kind(i) == 8).then(|| leaf.slice(i))));
        self.refs.extend(slots.map(|i| Ref(leaf.value(meta, i))));
    }
}

impl Keyed {
    /// Appends a key of eight bytes.
    #[inline(always)]
    pub(crate) fn push(&mut self, word: u64, reference: Ref) {
        self.words.push(Some(word));
        self.refs.push(reference);
    }

    /// Appends everything to a piece; keys that are not known are read from the log.
    pub(crate) fn append_to<R: Resolver>(&self, piece: &mut SortedPiece, resolver: &R) {
        let mut at = 0;
        for stretch in self.words.chunk_by(|a, b| a.is_some() == b.is_some()) {
            let refs = &self.refs[at..at + stretch.len()];
            match stretch[0] {
                None => piece.extend_resolved(refs, resolver),
                Some(_) => {
                    stretch.iter().flatten().zip(refs).for_each(|(word, reference)| piece.push(&word.to_be_bytes(), *reference));
                }
            }
            at += stretch.len();
        }
    }

    /// As [`go_on_behind`]; a key that the slot holds is put into `word`.
    pub(crate) fn go_on_behind<'a, R: Resolver>(&mut self, word: &'a mut [u8; 8], resolver: &'a R) -> Option<&'a [u8]> {
        while let Some((reference, known)) = self.refs.last().zip(self.words.last()) {
            if let Some(known) = known {
                *word = known.to_be_bytes();
                return Some(word);
            }
            if let Some(key) = resolver.sound_key(*reference) {
                return Some(key);
            }
            self.truncate(self.len() - 1);
        }
        None
    }
}

/// Why a run of slots ended.
enum Stop {
    Limit,
    /// At a layer, with the address of its root.
    Layer(u64),
    LeafEnd,
}

impl<P: Protocol> BTree<P> {
    /// See [`crate::OrderedIndex::scan`].
    pub(super) fn scan_into<R: Resolver>(&self, start: Start<'_>, backward: bool, limit: usize, out: &mut Vec<Ref>, resolver: &R) {
        let before = out.len();
        out.reserve(limit.min(CHUNK));
        let (mut place, mut spins) = (start, 0);
        while out.len() - before < limit {
            let room = limit - (out.len() - before);
            let mut requesting = Requesting { end: before + REQUESTED, resolver, refs: &mut *out };
            let done = self.seek(place, backward, resolver).and_then(|mut cursor| cursor.run(self, room, &mut requesting));
            match done {
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
            if self.seek(place, false, resolver).and_then(|mut cursor| cursor.run(self, room, &mut found)).is_ok() {
                break;
            }
            hither_sync::pause(&mut spins);
        }
        found.append_to(piece, resolver);
    }

    /// See [`crate::Index::for_each`].
    pub(super) fn visit_all<R: Resolver>(&self, resolver: &R, visit: &mut dyn FnMut(Ref) -> bool) {
        visit_runs(resolver, visit, |place| self.seek(place, false, resolver), |cursor, chunk| cursor.run(self, CHUNK, chunk));
    }

    /// The first (backward: last) place in the layer with this root.
    pub(crate) fn edge<'a>(&'a self, root: Node<'a>, version: u64, backward: bool) -> Result<Frame<'a>, Restart> {
        let (leaf, version) = self.descend(root, version, if backward { u64::MAX } else { 0 })?;
        let at = if backward { leaf.count(leaf.0.meta()) } else { 0 };
        Ok(Frame { leaf, version, at })
    }
}

impl<'a> Cursor<'a> {
    /// Appends up to `limit` references to `out` and moves past them; fewer mean that the end was reached. If it fails,
    /// the references appended so far are valid, but the cursor is not.
    pub(crate) fn run<P: Protocol, S: Slots>(&mut self, tree: &'a BTree<P>, limit: usize, out: &mut S) -> Result<(), Restart> {
        let end = out.len().saturating_add(limit);
        loop {
            let room = end - out.len();
            let stop = if self.backward { self.read_down::<P, S>(room, out)? } else { self.read_up::<P, S>(room, out)? };
            match stop {
                Stop::Limit => return Ok(()),
                Stop::Layer(root) => self.enter(tree, root)?,
                Stop::LeafEnd if self.backward => {
                    if !self.step_back(tree)? {
                        return Ok(());
                    }
                }
                Stop::LeafEnd => {
                    if !self.step_on(tree)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads slots upward to the next layer, the leaf's end or the limit.
    #[inline(always)]
    fn read_up<P: Protocol, S: Slots>(&mut self, room: usize, out: &mut S) -> Result<Stop, Restart> {
        let Frame { leaf, version, at } = self.frame;
        let meta = leaf.0.meta();
        let count = leaf.count(meta);
        let at = at.min(count);
        if room > count - at {
            Leaf::prefetch_for_scan(leaf.next());
        }
        let layer = leaf.layer_from(at, count);
        let end = layer.min(at.saturating_add(room));
        let mark = out.len();
        out.add(leaf, meta, at..end, false, self.above.is_empty());
        let stop = if end < layer || end - at == room {
            Stop::Limit
        } else if layer < count {
            Stop::Layer(leaf.value(meta, layer))
        } else {
            Stop::LeafEnd
        };
        self.validate::<P, S>(version, mark, out)?;
        self.frame.at = end;
        Ok(stop)
    }

    /// Reads slots downward to the next layer, the leaf's beginning or the limit.
    #[inline(always)]
    fn read_down<P: Protocol, S: Slots>(&mut self, room: usize, out: &mut S) -> Result<Stop, Restart> {
        let Frame { leaf, version, at } = self.frame;
        let meta = leaf.0.meta();
        let at = at.min(leaf.count(meta));
        if room > at {
            Leaf::prefetch_for_scan(leaf.previous());
        }
        let layer = leaf.layer_before(at);
        let end = layer.max(at.saturating_sub(room));
        let mark = out.len();
        out.add(leaf, meta, end..at, true, self.above.is_empty());
        let stop = if end > layer || at - end == room {
            Stop::Limit
        } else if layer > 0 {
            Stop::Layer(leaf.value(meta, layer - 1))
        } else {
            Stop::LeafEnd
        };
        self.validate::<P, S>(version, mark, out)?;
        self.frame.at = end;
        Ok(stop)
    }

    /// Drops what was read since `mark` if the leaf has changed.
    #[inline(always)]
    fn validate<P: Protocol, S: Slots>(&self, version: u64, mark: usize, out: &mut S) -> Result<(), Restart> {
        P::reached(Point::ScanRead);
        if P::heeds(Rule::ScanValidates) && !self.frame.leaf.0.version().same(version) {
            out.truncate(mark);
            return Err(Restart);
        }
        Ok(())
    }

    /// Goes into the layer of the next slot, and arranges to come back after it.
    fn enter<P: Protocol>(&mut self, tree: &'a BTree<P>, root: u64) -> Result<(), Restart> {
        let Frame { leaf, version, at } = self.frame;
        let (root, root_version) = tree.follow(leaf.0, version, root)?;
        let behind = if self.backward { at - 1 } else { at + 1 };
        self.prefetch_layers(behind);
        self.above.push(Frame { leaf, version, at: behind });
        self.frame = tree.edge(root, root_version, self.backward)?;
        Ok(())
    }

    /// Starts loading the layers that the scan will meet after this one.
    fn prefetch_layers(&self, behind: usize) {
        let leaf = self.frame.leaf;
        let meta = leaf.0.meta();
        let slots = if self.backward { behind.saturating_sub(LAYERS_AHEAD)..behind } else { behind..behind + LAYERS_AHEAD };
        for i in slots.start..slots.end.min(leaf.count(meta)) {
            if leaf.kind(i) == LAYER {
                Node::prefetch(leaf.value(meta, i), SMALL_LINES);
            }
        }
    }

    /// Goes to the next leaf, or back to the layer above; returns false at the end.
    fn step_on<P: Protocol>(&mut self, tree: &'a BTree<P>) -> Result<bool, Restart> {
        let Frame { leaf, version, .. } = self.frame;
        let next = leaf.next();
        if next == 0 {
            return self.leave();
        }
        let (node, version) = if P::heeds(Rule::ScanValidates) { tree.follow(leaf.0, version, next)? } else { Self::follow_blindly(next)? };
        self.frame = Frame { leaf: Leaf(node), version, at: 0 };
        Ok(true)
    }

    /// Planted bug (only for twins): does not check whether the leaf that was left is unchanged.
    #[cold]
    fn follow_blindly(next: u64) -> Result<(Node<'a>, u64), Restart> {
        // SAFETY: a leaf's `next` is a leaf, and under the caller's pin neither is recycled.
        let node: Node<'a> = unsafe { Node::from_address(next) };
        Ok((node, node.version().read()?))
    }

    /// Goes to the previous leaf, or back to the layer above; returns false at the beginning.
    fn step_back<P: Protocol>(&mut self, tree: &'a BTree<P>) -> Result<bool, Restart> {
        let Frame { leaf, version, .. } = self.frame;
        let previous = leaf.previous();
        if previous == 0 {
            return self.leave();
        }
        let (node, before) = tree.follow(leaf.0, version, previous)?;
        let neighbour = Leaf(node);
        // A writer may be between its changes of the two links (L3); only the forward link decides.
        let (linked, at) = (neighbour.next() == leaf.0.address(), neighbour.count(node.meta()));
        node.version().check(before)?;
        leaf.0.version().check(version)?;
        if !linked {
            return Err(Restart);
        }
        self.frame = Frame { leaf: neighbour, version: before, at };
        Ok(true)
    }

    /// Goes back to the layer above. The frame there is validated when it is read.
    fn leave(&mut self) -> Result<bool, Restart> {
        self.frame.leaf.0.version().check(self.frame.version)?;
        match self.above.pop() {
            Some(frame) => {
                self.frame = frame;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}
