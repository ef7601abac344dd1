//! Hints (`docs/adr/0020`): a leaf's number and a slot, of any age.
//!
//! A hint is used only to find a slot that still holds a reference that the caller knows. A reference names one entry
//! and so one key. Wherever the reference is found in a live leaf, it is the key's newest. If the number was never a
//! leaf's, if the leaf was recycled or is obsolete, or if the slot moved, the reference is merely not found.

use super::leaf::Leaf;
use super::protocol::{Point, Protocol, Rule};
use super::{BTree, Token};
use crate::common::node::{LARGE, Node};
use crate::common::slice::LAYER;
use crate::common::version::Restart;
use crate::{Hinted, Ref};

/// The hint of a slot.
#[inline(always)]
pub(crate) fn hint_to(leaf: u32, slot: u16) -> u64 {
    u64::from(leaf) | u64::from(slot) << 32
}

/// The leaf's number and the slot.
#[inline(always)]
pub(crate) fn parts_of(hint: u64) -> (u32, u16) {
    (hint as u32, (hint >> 32) as u16)
}

/// The result of looking into one leaf.
enum Look<'a> {
    /// The reference is in this slot, at this version of the leaf.
    Here(usize, u64),
    /// The reference is not in the leaf; with the leaf's neighbour to the right, if it has one.
    NotHere(Option<Node<'a>>),
}

impl<P: Protocol> BTree<P> {
    /// Returns a hint: the leaf's number in bits 0..31, the slot in bits 32..47.
    #[inline(always)]
    pub(crate) fn hint_of(token: Token) -> Option<u64> {
        (token.leaf != u32::MAX).then_some(hint_to(token.leaf, token.position))
    }

    /// Returns the hinted node, in whatever state, and the slot.
    #[inline(always)]
    fn hinted(&self, hint: u64) -> Option<(Node<'_>, usize)> {
        let (leaf, slot) = parts_of(hint);
        Some((self.arena.node(leaf)?, usize::from(slot)))
    }

    /// See [`crate::Index::prefetch_hint`]. Loads the header and the line of the value, at their places in a large
    /// leaf.
    #[inline(always)]
    pub(crate) fn prefetch_hinted(&self, hint: u64) {
        let (leaf, slot) = parts_of(hint);
        if let Some(node) = self.arena.node(leaf) {
            Leaf::prefetch_for_hint(node.address(), usize::from(slot));
        }
    }

    /// See [`crate::Index::find_at_hint`]. Looks in the hinted leaf and in the next one, to which a split moves slots.
    pub(crate) fn find_hinted(&self, hint: u64, reference: Ref) -> Option<Hinted> {
        let (node, slot) = self.hinted(hint).filter(|_| reference.is_some())?;
        let found = |node: Node<'_>, at: usize, sibling| Hinted { hint: hint_to(node.meta().id(), at as u16), sibling };
        match Self::look(node, slot, reference).ok()? {
            Look::Here(at, _) => Some(found(node, at, false)),
            Look::NotHere(next) => {
                let next = next?;
                let Look::Here(at, _) = Self::look(next, 0, reference).ok()? else { return None };
                Some(found(next, at, true))
            }
        }
    }

    /// See [`crate::Index::update_at_hint`]. Looks where [`BTree::find_hinted`] looks.
    pub(crate) fn replace_at_hint(&self, hint: u64, old: Ref, new: Ref) -> bool {
        let Some((node, slot)) = self.hinted(hint).filter(|_| old.is_some() && new.is_some()) else { return false };
        let replaced = match Self::replace_in_leaf(node, slot, old, new) {
            Ok(Look::NotHere(Some(next))) => Self::replace_in_leaf(next, 0, old, new),
            outcome => outcome,
        };
        matches!(replaced, Ok(Look::Here(..)))
    }

    /// Looks for `reference` in the leaf, at `slot` first.
    #[inline]
    fn look(node: Node<'_>, slot: usize, reference: Ref) -> Result<Look<'_>, Restart> {
        let version = node.version().try_read()?;
        let (leaf, meta) = (Leaf(node), node.meta());
        // The class bounds the slots. (Memory that was never a node counts as an empty leaf of the smallest class.)
        if meta.level() > 0 || meta.class() > LARGE {
            return Err(Restart);
        }
        let count = leaf.count(meta);
        let holds = |i: usize| i < count && leaf.value(meta, i) == reference.0 && leaf.kind(i) != LAYER;
        let at = if holds(slot) { Some(slot) } else { (0..count).find(|i| holds(*i)) };
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
    fn replace_in_leaf(node: Node<'_>, slot: usize, old: Ref, new: Ref) -> Result<Look<'_>, Restart> {
        let look = Self::look(node, slot, old)?;
        if let Look::Here(at, mut version) = look {
            if !P::heeds(Rule::HintsHold) {
                // A planted bug (only for twins).
                P::reached(Point::HalfDone);
                version = node.version().try_read()?;
            }
            let lock = node.version().lock(version)?;
            Leaf(node).set_value(at, new.0);
            lock.done();
        }
        Ok(look)
    }
}
