//! Hints (`docs/adr/0020`): a leaf's number and a slot, of any age. As in the B+-tree (`crate::btree::hint`), which
//! handles the hints of subtrees.
//!
//! A leaf may have been retrained since. Where the slots beside the hinted one do not hold the reference, the leaf's
//! model leads to it.

use super::Learned;
use super::gapped::{Gapped, Place};
use crate::btree::hint::{hint_to, parts_of};
use crate::btree::protocol::Protocol;
use crate::common::node::{LEAF_HEAD, Node};
use crate::common::slice::slice_at;
use crate::common::version::Restart;
use crate::{Hinted, Ref};
use std::sync::atomic::{Ordering, fence};

/// The result of looking into one leaf.
enum Look<'a> {
    /// The reference is at this place, at this version of the leaf.
    Here(Place, u64),
    /// The reference is not where it should be; with the leaf's neighbour to the right, if it has one.
    NotHere(Option<Node<'a>>),
}

impl<P: Protocol> Learned<P> {
    /// See [`crate::Index::prefetch_hint`]. The header must be read, since only it tells where the slot lies.
    pub(super) fn prefetch_hinted(&self, hint: u64) {
        let Some(node) = self.tree.arena.node(parts_of(hint).0) else { return };
        if node.meta().class() == LEAF_HEAD {
            Gapped(node).prefetch_block(Place::of_slot(parts_of(hint).1).block);
        } else {
            self.tree.prefetch_hinted(hint);
        }
    }

    /// See [`crate::Index::find_at_hint`].
    pub(super) fn find_hinted(&self, hint: u64, key: &[u8], reference: Ref) -> Option<Hinted> {
        let (node, slot) = self.hinted(hint)?;
        let Some(slot) = slot else { return self.tree.find_hinted(hint, reference) };
        if reference.is_none() {
            return None;
        }
        let found = |node: Node<'_>, at: Place, sibling| Hinted { hint: hint_to(node.meta().id(), at.slot()), sibling };
        match Self::look(node, Some(slot), key, reference).ok()? {
            Look::Here(at, _) => Some(found(node, at, false)),
            Look::NotHere(next) => {
                let next = next?;
                let Look::Here(at, _) = Self::look(next, None, key, reference).ok()? else { return None };
                Some(found(next, at, true))
            }
        }
    }

    /// See [`crate::Index::update_at_hint`].
    pub(super) fn replace_at_hint(&self, hint: u64, key: &[u8], old: Ref, new: Ref) -> bool {
        let Some((node, slot)) = self.hinted(hint) else { return false };
        let Some(slot) = slot else { return self.tree.replace_at_hint(hint, old, new) };
        if old.is_none() || new.is_none() {
            return false;
        }
        let replaced = match Self::replace_in_leaf(node, Some(slot), key, old, new) {
            Ok(Look::NotHere(Some(next))) => Self::replace_in_leaf(next, None, key, old, new),
            outcome => outcome,
        };
        matches!(replaced, Ok(Look::Here(..)))
    }

    /// The hinted node, and the place if it is a leaf of the learned layer.
    fn hinted(&self, hint: u64) -> Option<(Node<'_>, Option<Place>)> {
        let (leaf, slot) = parts_of(hint);
        let node = self.tree.arena.node(leaf)?;
        let is_leaf = node.meta().class() == LEAF_HEAD;
        // A node in its first life gets its class after it was marked as not yet alive. So a thread that has seen the
        // class sees either the mark or a complete node (G2).
        fence(Ordering::Acquire);
        Some((node, is_leaf.then(|| Place::of_slot(slot))))
    }

    /// Looks for `reference` in the leaf: first at the place and beside it, if one is given, then where the model puts
    /// the key.
    fn look<'a>(node: Node<'a>, place: Option<Place>, key: &[u8], reference: Ref) -> Result<Look<'a>, Restart> {
        let version = node.version().try_read()?;
        let leaf = Gapped(node);
        let shape = leaf.shape();
        let near = place.and_then(|place| leaf.slot_of(shape, place, reference));
        let at = near.or_else(|| {
            let hit = leaf.find(shape, slice_at(key, 0).0);
            if hit.value == 0 { None } else { leaf.slot_of(shape, hit.place, reference) }
        });
        let next = leaf.next();
        node.version().check(version)?;
        Ok(match at {
            Some(at) => Look::Here(at, version),
            // SAFETY: the version says that the node is a live leaf and this its neighbour (N2); the caller is pinned.
            None => Look::NotHere((next != 0).then(|| unsafe { Node::from_address(next) })),
        })
    }

    /// Replaces `old` if the leaf holds it. The leaf is locked at the version of the search, so `old` is still there
    /// then.
    fn replace_in_leaf<'a>(node: Node<'a>, place: Option<Place>, key: &[u8], old: Ref, new: Ref) -> Result<Look<'a>, Restart> {
        let look = Self::look(node, place, key, old)?;
        if let Look::Here(at, version) = look {
            let leaf = Gapped(node);
            let lock = node.version().lock(version)?;
            leaf.block(at.block).set_value(at.index, new.0);
            lock.done();
        }
        Ok(look)
    }
}
