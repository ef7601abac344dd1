//! The writer's search: like a lookup, but it remembers the nodes that a structure change must lock.

use super::BTree;
use super::inner::{Bounds, Inner, MAX_SEPARATORS, MIN_SEPARATORS};
use super::leaf::Leaf;
use super::protocol::Protocol;
use crate::common::node::Node;
use crate::common::slice::{LAYER, slice_at};
use crate::common::version::{Restart, Version};
use std::sync::atomic::{AtomicU64, Ordering};

/// What holds the address of a layer's root: the tree's own cell or a slot of the leaf above (T2).
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a> {
    pub(crate) guard: &'a Version,
    pub(crate) version: u64,
    pub(crate) word: &'a AtomicU64,
}

/// What holds the first layer: the tree itself, or a slot of an index that the tree is a part of.
pub(crate) trait Above<'a> {
    /// The cell of the first layer's root, for the key at hand.
    fn origin(&self) -> Result<Cell<'a>, Restart>;
}

/// The tree as the holder of its own layer 0.
pub(crate) struct Whole<'a, P: Protocol>(pub(crate) &'a BTree<P>);

impl<'a, P: Protocol> Above<'a> for Whole<'a, P> {
    fn origin(&self) -> Result<Cell<'a>, Restart> {
        self.0.top_cell()
    }
}

/// An inner node, and the child that the search took.
#[derive(Clone, Copy)]
pub(super) struct Parent<'a> {
    pub(super) inner: Inner<'a>,
    pub(super) version: u64,
    pub(super) index: usize,
}

/// A slot's place, with everything above it in its layer.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) cell: Cell<'a>,
    pub(super) root: Node<'a>,
    /// `None`: the leaf is the layer's root.
    pub(super) parent: Option<Parent<'a>>,
    pub(super) leaf: Leaf<'a>,
    pub(super) version: u64,
    pub(super) position: usize,
    /// The kind of the slot at the position, if slice and rank agree.
    pub(super) kind: Option<u8>,
    pub(super) value: u64,
    /// The byte at which the layer's slices begin.
    pub(super) depth: usize,
}

/// What a search does to inner nodes on its way, so that the structure change at its end never has to change nodes
/// farther up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prepare {
    /// Full nodes give entries to a sibling or are split.
    ForSplit,
    /// Nodes with few children are merged or evened out.
    ForMerge,
}

impl<P: Protocol> BTree<P> {
    /// The cell of layer 0.
    pub(crate) fn top_cell(&self) -> Result<Cell<'_>, Restart> {
        Ok(Cell { guard: &self.root.version, version: self.root.version.read()?, word: &self.root.address })
    }

    /// The bounds of an inner node that becomes the root in `cell` (I4).
    pub(super) fn bounds_of_root(&self, cell: Cell<'_>) -> Bounds {
        let is_first = self.root.radix.is_used() && std::ptr::eq(cell.guard, &self.root.version);
        if is_first { Bounds::ALL } else { Bounds::NOTHING }
    }

    /// The root that `cell` holds, with its version, coupled with the cell's.
    pub(crate) fn root_of<'a>(&'a self, cell: Cell<'a>) -> Result<(Node<'a>, u64), Restart> {
        let address = cell.word.load(Ordering::Acquire);
        cell.guard.check(cell.version)?;
        // SAFETY: the guard says that the word held the address of a live root (N2); the caller's pin keeps it from
        // being recycled.
        let root = unsafe { Node::from_address(address) };
        let version = root.version().read()?;
        cell.guard.check(cell.version)?;
        Ok((root, version))
    }

    /// One attempt to find the spot of `key`, starting at the first layer's cell. Each layer's spot is passed to
    /// `note`.
    pub(super) fn try_spot<'a>(
        &'a self,
        origin: Cell<'a>,
        key: &[u8],
        prepare: Prepare,
        mut note: impl FnMut(Spot<'a>),
    ) -> Result<Spot<'a>, Restart> {
        let (mut cell, mut base) = (origin, 0);
        loop {
            let spot = self.spot_in_layer(cell, base, key, prepare)?;
            note(spot);
            if spot.kind != Some(LAYER) {
                return Ok(spot);
            }
            cell = spot.cell_below();
            base = spot.depth + 8;
        }
    }

    /// The spot of `key` in the layer that `cell` holds.
    pub(super) fn spot_in_layer<'a>(&'a self, cell: Cell<'a>, base: usize, key: &[u8], prepare: Prepare) -> Result<Spot<'a>, Restart> {
        let (root, version) = self.root_of(cell)?;
        let depth = base + 8 * root.meta().skip();
        let (slice, rank) = slice_at(key, depth);
        let (mut node, mut version, mut parent) = (root, version, None);
        while node.meta().level() > 0 {
            let inner = Inner(node);
            self.prepare(prepare, cell, root, parent, inner, version)?;
            let index = inner.find(node.meta(), slice);
            let address = inner.child(index);
            parent = Some(Parent { inner, version, index });
            (node, version) = self.follow(node, version, address)?;
        }
        let leaf = Leaf(node);
        let (position, kind, value) = leaf.find_at(version, slice, rank)?;
        Ok(Spot { cell, root, parent, leaf, version, position, kind, value, depth })
    }

    /// Changes `inner` if the structure change below might need it, and then requests a restart.
    fn prepare<'a>(
        &'a self,
        prepare: Prepare,
        cell: Cell<'a>,
        root: Node<'a>,
        parent: Option<Parent<'a>>,
        inner: Inner<'a>,
        version: u64,
    ) -> Result<(), Restart> {
        let count = inner.count(inner.0.meta());
        match (prepare, parent) {
            (Prepare::ForSplit, _) if count == MAX_SEPARATORS => self.relieve_inner(cell, parent, inner, version)?,
            (Prepare::ForMerge, Some(parent)) if count < MIN_SEPARATORS => self.mend_inner(cell, root, parent, inner, version)?,
            _ => return Ok(()),
        }
        Err(Restart)
    }
}

impl<'a> Spot<'a> {
    /// The cell of the layer in the spot's slot.
    pub(super) fn cell_below(&self) -> Cell<'a> {
        Cell { guard: self.leaf.0.version(), version: self.version, word: self.leaf.value_word(self.position) }
    }
}
