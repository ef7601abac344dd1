//! B+-trees in the places of leaves: for slices that no line fits, and for keys that are not eight bytes long.
//!
//! A *subtree* is a B+-tree (`crate::btree`) over the slices of one child's range, with its layers below it. Its root
//! stands where a leaf would, in an inner node's slot or in the cell of the root. So it grows and shrinks by itself,
//! and everything documented for the B+-tree holds for it. An index whose keys never fit a line is a B+-tree
//! altogether: its root is a subtree's.
//!
//! # Invariants
//!
//! * S1. A subtree stays: it may become empty, but its range is never split, or merged with a neighbour's.
//! * S2. A child of an inner node, or the root, is a gapped array if its class is one of the two classes of their
//!   headers; otherwise it is a subtree's root.

use super::Learned;
use super::block::Entry;
use super::gapped::Gapped;
use super::grow::Spot;
use crate::Ref;
use crate::btree::Token;
use crate::btree::protocol::{Point, Protocol};
use crate::btree::spot::{Above, Cell};
use crate::common::arena::Arena;
use crate::common::node::{INNER_HEAD, LEAF_HEAD, Node};
use crate::common::slice::slice_at;
use crate::common::version::{Locked, Restart};
use std::sync::atomic::Ordering;

/// Slots per leaf of a new subtree, of 60: with room for inserts anywhere ([`FILL`]), or only after a run
/// ([`RUN_FILL`]).
pub(super) const FILL: usize = 45;
pub(super) const RUN_FILL: usize = 58;

/// An index of at most this many leaves may become one subtree.
const FEW_LEAVES: usize = 16;

/// Whether `node` is a subtree's root (S2).
#[inline(always)]
pub(super) fn is_subtree(node: Node<'_>) -> bool {
    node.meta().class() < LEAF_HEAD
}

/// The holder of the subtree for `key`.
pub(super) struct SubtreeOf<'a, 'k, P: Protocol> {
    pub(super) index: &'a Learned<P>,
    pub(super) key: &'k [u8],
}

impl<'a, P: Protocol> Above<'a> for SubtreeOf<'a, '_, P> {
    fn origin(&self) -> Result<Cell<'a>, Restart> {
        let slice = slice_at(self.key, 0).0;
        let tree = &self.index.tree;
        let mut cell = tree.top_cell()?;
        let (mut node, mut version) = tree.root_of(cell)?;
        while node.meta().class() == INNER_HEAD {
            let inner = Gapped(node);
            let place = inner.child_place(inner.shape(), slice);
            let word = inner.block(place.block).value_word(place.index);
            cell = Cell { guard: node.version(), version, word };
            (node, version) = tree.follow(node, version, word.load(Ordering::Acquire))?;
        }
        if is_subtree(node) { Ok(cell) } else { Err(Restart) }
    }
}

impl<P: Protocol> Learned<P> {
    /// Whether the token leads into a subtree.
    #[inline(always)]
    pub(super) fn is_in_subtree(&self, token: Token) -> bool {
        self.tree.arena.node(token.leaf).is_some_and(is_subtree)
    }

    /// Puts a subtree of `entries`, with `fill` slots per leaf, in the place of the locked leaf.
    pub(super) fn plant(&self, spot: &Spot<'_>, lock: Locked<'_>, entries: &[Entry], fill: usize) -> Result<(), Restart> {
        let (leaf, tree) = (spot.leaf, &self.tree);
        let above = match spot.parent {
            Some(parent) => parent.inner.0.version().lock(parent.version)?,
            None => tree.root.version.lock(spot.cell)?,
        };
        let previous = Self::lock_previous(leaf)?;
        let root = tree.build_tree(entries.iter().map(|entry| (entry.slice, Ref(entry.value))), fill);
        match spot.parent {
            Some(parent) => {
                let place = parent.inner.child_place(parent.inner.shape(), leaf.low());
                let block = parent.inner.block(place.block);
                debug_assert_eq!(block.value(place.index), leaf.0.address());
                block.set_value(place.index, root.address());
            }
            None => tree.root.address.store(root.address(), Ordering::Release),
        }
        if let Some((previous, lock)) = previous {
            previous.set_next(0);
            lock.done();
        }
        Self::set_previous_of(leaf.next(), 0);
        above.done();
        let gone = Self::let_go(&tree.arena, leaf.0, lock);
        tree.arena.retire_all(&[gone]);
        P::reached(Point::Subtree);
        Ok(())
    }

    /// Whether the root is an inner node with few children, all of them leaves.
    pub(super) fn is_small(&self, spot: &Spot<'_>) -> bool {
        let Some(parent) = spot.parent.filter(|parent| parent.inner.count() <= FEW_LEAVES) else { return false };
        // SAFETY: children of a parent that has not changed are live (N2); if it has changed, a thread that locks it at
        // its version notices.
        let child = |entry: &Entry| unsafe { Node::from_address(entry.value) };
        let children = parent.inner.entries();
        parent.inner.0.version().same(parent.version)
            && self.tree.root.address.load(Ordering::Acquire) == parent.inner.0.address()
            && children.iter().all(|entry| child(entry).meta().class() == LEAF_HEAD)
    }

    /// Makes an index that [`Learned::is_small`] one subtree: keys that no line fits from the beginning then cost as
    /// much as in the B+-tree.
    pub(super) fn plant_all(&self, spot: &Spot<'_>) -> Result<(), Restart> {
        let (Some(parent), tree) = (spot.parent, &self.tree) else { return Err(Restart) };
        let cell = tree.root.version.lock(spot.cell)?;
        let above = parent.inner.0.version().lock(parent.version)?;
        let (mut entries, mut gone) = (Vec::new(), Vec::new());
        for child in parent.inner.entries() {
            // SAFETY: the parent is locked at the version of the search, so its children are live (N2).
            let node: Node<'_> = unsafe { Node::from_address(child.value) };
            gone.push((node, node.version().lock(node.version().try_read()?)?));
            entries.extend(Gapped(node).entries());
        }
        let whole = tree.build_tree(entries.iter().map(|entry| (entry.slice, Ref(entry.value))), FILL);
        tree.root.address.store(whole.address(), Ordering::Release);
        cell.done();
        gone.push((parent.inner.0, above));
        let gone: Vec<_> = gone.into_iter().map(|(node, lock)| Self::let_go(&tree.arena, node, lock)).collect();
        tree.arena.retire_all(&gone);
        P::reached(Point::Subtree);
        Ok(())
    }

    /// Unlocks an unlinked array as obsolete, to be retired.
    fn let_go(arena: &Arena, node: Node<'_>, lock: Locked<'_>) -> (u64, usize) {
        Gapped(node).free_pages(arena);
        lock.obsolete();
        (node.address(), node.meta().class())
    }

    /// Locks the leaf whose `next` is `leaf`, which is locked.
    fn lock_previous(leaf: Gapped<'_>) -> Result<Option<(Gapped<'_>, Locked<'_>)>, Restart> {
        // One load: whoever locks the leaf before may set the link to zero at any time (X2).
        let address = leaf.previous();
        if address == 0 {
            return Ok(None);
        }
        // SAFETY: the back link of a live leaf leads to one that was its neighbour under the caller's pin, so it is not
        // recycled.
        let previous = Gapped(unsafe { Node::from_address(address) });
        let version = previous.0.version().try_read()?;
        if previous.next() != leaf.0.address() {
            return Err(Restart);
        }
        Ok(Some((previous, previous.0.version().lock(version)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::protocol::Sound;
    use hither_sync::epoch;
    use std::sync::atomic::AtomicBool;

    /// Found by reading: the link was loaded twice. When the leaf before became a subtree in between, the second load
    /// was zero, and was taken for an address.
    #[test]
    fn the_leaf_before_may_go_at_any_time() {
        let arena = Arena::new();
        let [before, leaf] = [(); 2].map(|()| Gapped(arena.allocate(LEAF_HEAD).publish()));
        before.set_next(leaf.0.address());
        let [before, after] = [before.0.address(), leaf.0.address()];
        /// Ends the other thread whatever happens.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ends = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: the arena lives longer than the scope.
                let leaf = Gapped(unsafe { Node::from_address(after) });
                while !ends.load(Ordering::Relaxed) {
                    leaf.set_previous(0);
                    leaf.set_previous(before);
                }
            });
            let _end = End(ends);
            for _ in 0..2_000 {
                let _pin = epoch::pin();
                for _ in 0..10_000 {
                    let found = Learned::<Sound>::lock_previous(leaf).expect("nobody else locks it");
                    assert!(found.is_none_or(|(previous, _lock)| previous.0.address() == before));
                }
            }
        });
    }
}
