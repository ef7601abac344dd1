//! Deletes that change the structure: leaves that become empty, sparse nodes that are rebuilt smaller or merge.
//!
//! A leaf that loses its last slot is unlinked in the same step, unless no other leaf is beside it: then it stays,
//! empty. Nodes merge with a neighbour under the same parent; subtrees merge with none. All nodes concerned are locked
//! at the versions of the search.

use super::Learned;
use super::gapped::{Gapped, Place};
use super::grow::{Parent, Prepare, Spot};
use super::read::Slot;
use super::subtree::is_subtree;
use crate::btree::protocol::{Point, Protocol};
use crate::common::node::Node;
use crate::common::version::{Locked, Restart};
use std::sync::atomic::Ordering;

/// Two leaves merge if together they have at most this many slots in use. They are examined when one shrinks to a power
/// of two.
const MERGE_LEAVES: usize = 512;
/// Two inner nodes merge if together they have at most this many children and one has at most [`FEW`].
const MERGE_INNER: usize = 4096;
const FEW: usize = 4;
/// An array of more blocks than this is rebuilt smaller when fewer than two slots per block are in use on average.
const SMALL: usize = 16;

/// Two neighbouring nodes and what leads to them, all locked.
struct Pair<'a> {
    parent: Gapped<'a>,
    /// The place of the right node's separator.
    separator: Place,
    left: Gapped<'a>,
    right: Gapped<'a>,
    parent_lock: Locked<'a>,
    left_lock: Locked<'a>,
    right_lock: Locked<'a>,
    /// Set if the parent is the root and will have only one child left: that child becomes the root.
    collapse: Option<Locked<'a>>,
}

impl<P: Protocol> Learned<P> {
    /// Removes the slot that a search found, and its leaf too if that becomes empty.
    pub(super) fn remove_slot(&self, slot: &Slot<'_>, slice: u64) -> Result<(), Restart> {
        if slot.leaf.count() == 1 {
            return self.remove_last(slot, slice);
        }
        let lock = slot.leaf.0.version().lock(slot.version)?;
        if !slot.leaf.remove(slot.place) {
            let mut all = slot.leaf.entries();
            all.remove(slot.leaf.rank(slot.place));
            slot.leaf.train(&self.tree.arena, &all);
        }
        lock.done();
        Ok(())
    }

    fn remove_last(&self, slot: &Slot<'_>, slice: u64) -> Result<(), Restart> {
        let spot = self.try_spot(slice, Prepare::ForMerge)?;
        if spot.leaf != slot.leaf || spot.version != slot.version {
            return Err(Restart);
        }
        match spot.parent {
            Some(parent) if parent.inner.count() > 1 => {
                if let Some(pair) = self.lock_pair(spot.cell, parent, (spot.leaf, spot.version), slice, usize::MAX)? {
                    spot.leaf.remove(slot.place);
                    self.merge_pair(pair);
                    return Ok(());
                }
            }
            _ => {}
        }
        let lock = slot.leaf.0.version().lock(slot.version)?;
        slot.leaf.remove(slot.place);
        lock.done();
        Ok(())
    }

    /// Called after a delete: if the leaf has become sparse, rebuilds it smaller or merges it with a neighbour. Best
    /// effort.
    #[inline(always)]
    pub(super) fn mend_sparse(&self, leaf: Gapped<'_>, key: &[u8]) {
        let (count, blocks) = (leaf.count(), leaf.shape().blocks());
        if (count < 2 * blocks && blocks > SMALL) || (count <= MERGE_LEAVES && count.is_power_of_two()) {
            self.mend_leaf(key);
        }
    }

    #[cold]
    fn mend_leaf(&self, key: &[u8]) {
        let slice = crate::common::slice::slice_at(key, 0).0;
        for _ in 0..4 {
            if self.try_spot(slice, Prepare::ForMerge).and_then(|spot| self.try_mend(&spot, slice)).is_ok() {
                break;
            }
        }
    }

    fn try_mend(&self, spot: &Spot<'_>, slice: u64) -> Result<(), Restart> {
        if let Some(parent) = spot.parent.filter(|parent| parent.inner.count() > 1)
            && spot.leaf.count() <= MERGE_LEAVES
            && let Some(pair) = self.lock_pair(spot.cell, parent, (spot.leaf, spot.version), slice, MERGE_LEAVES)?
        {
            self.merge_pair(pair);
            return Ok(());
        }
        let blocks = spot.leaf.shape().blocks();
        if spot.leaf.count() < 2 * blocks && blocks > SMALL {
            let lock = spot.leaf.0.version().lock(spot.version)?;
            let all = spot.leaf.entries();
            spot.leaf.train(&self.tree.arena, &all);
            lock.done();
        }
        Ok(())
    }

    /// Merges an inner node that has few children with a neighbour; returns whether it did.
    pub(super) fn merge_inner<'a>(&'a self, cell: u64, parent: Parent<'a>, at: Parent<'a>, slice: u64) -> Result<bool, Restart> {
        if at.inner.count() > FEW || parent.inner.count() < 2 {
            return Ok(false);
        }
        let Some(pair) = self.lock_pair(cell, parent, (at.inner, at.version), slice, MERGE_INNER)? else { return Ok(false) };
        P::reached(Point::ArrayInnerMerge);
        self.merge_pair(pair);
        Ok(true)
    }

    /// Locks `node`, the child of `parent` for `slice`, with the neighbour to its left, or with the one to its right if
    /// there is none to the left that can merge. Returns `None`, with nothing locked, if neither can merge with it, or
    /// if both together have more than `most` slots.
    fn lock_pair<'a>(
        &'a self,
        cell: u64,
        parent: Parent<'a>,
        (node, version): (Gapped<'a>, u64),
        slice: u64,
        most: usize,
    ) -> Result<Option<Pair<'a>>, Restart> {
        let (inner, shape) = (parent.inner, parent.inner.shape());
        let own = inner.child_place(shape, slice);
        let before = if own.index > 0 {
            Some(Place { block: own.block, index: own.index - 1 })
        } else {
            (own.block > shape.first()).then(|| Place { block: own.block - 1, index: inner.block(own.block - 1).count().saturating_sub(1) })
        };
        let after = inner.slot_from(shape, Place { block: own.block, index: own.index + 1 });
        let child = |at: Place| {
            let address = inner.block(at.block).address(at.index);
            inner.0.version().check(parent.version)?;
            // SAFETY: the parent's version says that the address is a live child's (N2); the caller's pin keeps it from
            // being recycled.
            Ok(unsafe { Node::from_address(address) })
        };
        let mut partner = None;
        for (place, separator, is_left) in [(before, own, true), (after, after.unwrap_or(own), false)] {
            if let (None, Some(place)) = (partner, place) {
                partner = Some((child(place)?, separator, is_left)).filter(|(other, ..)| !is_subtree(*other));
            }
        }
        let Some((other, separator, other_is_left)) = partner else { return Ok(None) };
        let (other, two) = (Gapped(other), inner.count() == 2);
        let other_version = other.0.version().try_read()?;
        inner.0.version().check(parent.version)?;
        // Checked before locking, since locks hold up readers: at these versions the counts are valid.
        if node.count() + other.count() > most {
            return Ok(None);
        }
        let is_root = self.tree.root.address.load(Ordering::Acquire) == inner.0.address();
        // A root other than the parent proves nothing: the cell's version is checked when the cell is locked, and the
        // parent's when the parent is locked.
        let collapse = if two && is_root { Some(self.tree.root.version.lock(cell)?) } else { None };
        let parent_lock = inner.0.version().lock(parent.version)?;
        let lock = node.0.version().lock(version)?;
        let other_lock = other.0.version().lock(other_version)?;
        P::reached(Point::ArrayPair);
        let (left, left_lock, right, right_lock) =
            if other_is_left { (other, other_lock, node, lock) } else { (node, lock, other, other_lock) };
        debug_assert!(left.0.meta().level() > 0 || left.next() == right.0.address());
        Ok(Some(Pair { parent: inner, separator, left, right, parent_lock, left_lock, right_lock, collapse }))
    }

    /// Moves all slots of the right node to the left one and unlinks the right one.
    fn merge_pair(&self, pair: Pair<'_>) {
        let Pair { parent, separator, left, right, parent_lock, left_lock, right_lock, collapse } = pair;
        let arena = &self.tree.arena;
        let mut unlinked = vec![right.0];
        if left.count() == 0 {
            left.free_pages(arena);
            left.take_over(right);
        } else {
            if right.count() > 0 {
                let mut all = left.entries();
                all.extend(right.entries());
                left.train(arena, &all);
            }
            right.free_pages(arena);
        }
        if left.0.meta().level() == 0 {
            left.set_next(right.next());
            Self::set_previous_of(right.next(), left.0.address());
            P::reached(Point::ArrayMerge);
        }
        if let Some(cell) = collapse {
            parent.free_pages(arena);
            self.tree.root.address.store(left.0.address(), Ordering::Release);
            parent_lock.obsolete();
            cell.done();
            unlinked.push(parent.0);
            P::reached(Point::ArrayCollapse);
        } else {
            if !parent.remove(separator) {
                let mut all = parent.entries();
                all.remove(parent.rank(separator));
                parent.train(arena, &all);
            }
            parent_lock.done();
        }
        left_lock.done();
        right_lock.obsolete();
        for node in unlinked {
            arena.retire(node);
        }
    }
}

impl Gapped<'_> {
    /// Releases all pages; the header must then be retired, or take over the pages of another one.
    pub(super) fn free_pages(self, arena: &crate::common::arena::Arena) {
        self.pages().for_each(|p| arena.free_page(self.page(p)));
        self.set_pages(0..0);
    }
}
