//! Hints (decision 16): a leaf's number and a slot, of any age.
//!
//! A hint is used only to find a slot that still holds the old reference. A reference names one entry and so one key; wherever it
//! is found in a live leaf, it is the key's. A number that was never a leaf's, a recycled or obsolete leaf, a slot that moved: all of
//! these only mean that the reference is not found.

use super::leaf::Leaf;
use super::protocol::Protocol;
use super::{BTree, Token};
use crate::common::node::{LARGE, Node};
use crate::common::slice::LAYER;
use crate::common::version::Restart;
use crate::{Conflict, Ref, Resolver};

impl<P: Protocol> BTree<P> {
    /// Bits 0..31 the leaf's number, 32..47 the slot.
    pub(crate) fn hint_of(token: Token) -> Option<u64> {
        (token.leaf != u32::MAX).then_some(u64::from(token.leaf) | u64::from(token.position) << 32)
    }

    /// See [`crate::Index::update_at_hint`]. Looks in the hinted leaf and in the next one, where a split moves slots to.
    pub(crate) fn replace_at_hint<R: Resolver>(
        &self,
        hint: u64,
        key: &[u8],
        old: Ref,
        new: Ref,
        resolver: &R,
    ) -> Option<Result<(), Conflict>> {
        let node = self.arena.node(hint as u32).filter(|node| node.meta().class() <= LARGE)?;
        let slot = (hint >> 32 & 0xffff) as usize;
        if old.is_none() || new.is_none() || !resolver.matches(old, key) {
            return None;
        }
        let next = match self.replace_in_leaf(node, slot, old, new) {
            Ok(None) => return Some(Ok(())),
            Ok(Some(next)) => next?,
            Err(Restart) => return None,
        };
        matches!(self.replace_in_leaf(next, 0, old, new), Ok(None)).then_some(Ok(()))
    }

    /// Replaces `old` if the leaf holds it (`None`), else returns its neighbour.
    fn replace_in_leaf<'a>(&'a self, node: Node<'a>, slot: usize, old: Ref, new: Ref) -> Result<Option<Option<Node<'a>>>, Restart> {
        let version = node.version().try_read()?;
        let (leaf, meta) = (Leaf(node), node.meta());
        if meta.level() > 0 {
            return Err(Restart);
        }
        let count = leaf.count(meta);
        let holds = |i: &usize| *i < count && leaf.value(meta, *i) == old.0 && leaf.kind(*i) != LAYER;
        let Some(at) = Some(slot).filter(holds).or_else(|| (0..count).find(holds)) else {
            let next = leaf.next();
            node.version().check(version)?;
            // SAFETY: the version says that the node is a live leaf and this its neighbour (N2); the caller is pinned.
            return Ok(Some((next != 0).then(|| unsafe { Node::from_address(next) })));
        };
        let lock = node.version().lock(version)?;
        leaf.set_value(at, new.0);
        lock.done();
        Ok(None)
    }
}
