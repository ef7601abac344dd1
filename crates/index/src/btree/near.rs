//! The short way of a single write to its leaf, for the commonest: the tree is gone down as soon as the key is known, and the leaf is kept until the write ends.
//!
//! A leaf is sixteen lines. Whoever asks for them early has other work to do until they come, and the fewer instructions lie between the flush of
//! one write and the lines that the next one asks for, the likelier the processor does both at once (`docs/adr/0010`).
//!
//! The protocol is that of [`super::claim`]: what is found is a hint until the leaf is claimed at the version of the search. Thread safety as there; what is found
//! holds under the epoch pin under which it was.

use super::leaf::Leaf;
use super::protocol::Protocol;
use super::spot::Whole;
use super::{BTree, Token};
use crate::Ref;
use crate::common::version::Restart;

/// The leaf to which a key leads, and its version, if they are known.
#[derive(Clone, Copy)]
pub struct NearLeaf<'a>(Option<(Leaf<'a>, u64)>);

/// What was seen of a key's place before the leaf was claimed: where the key is or goes, if the leaf does not change.
#[derive(Clone, Copy)]
pub struct LeafSight<'a> {
    leaf: Leaf<'a>,
    /// The place, for whoever ends the claim otherwise: see [`crate::Index::install_locked`].
    pub token: Token,
    /// The key's entry; none if the key is absent.
    pub seen: Ref,
}

impl NearLeaf<'_> {
    /// Nothing is known.
    pub const NONE: Self = NearLeaf(None);
}

impl<P: Protocol> BTree<P> {
    /// Goes down to the leaf for a key of eight bytes, given as they lie in memory, and starts loading it. Under the caller's epoch pin.
    #[inline(always)]
    pub fn near_leaf(&self, word: u64) -> NearLeaf<'_> {
        NearLeaf(self.try_near(u64::from_be(word)).ok())
    }

    #[inline(always)]
    fn try_near(&self, slice: u64) -> Result<(Leaf<'_>, u64), Restart> {
        let (root, version) = self.top()?;
        self.descend_from_inner(root, version, slice)
    }

    /// Looks for `key`, by whose bytes `near` was found under the caller's epoch pin. `None` if the leaf alone does not prove what it says of the key.
    #[inline(always)]
    pub fn sight_leaf<'a>(&'a self, near: NearLeaf<'a>, key: &[u8]) -> Option<LeafSight<'a>> {
        if let (NearLeaf(Some((leaf, version))), Ok(word)) = (near, <[u8; 8]>::try_from(key))
            && let Ok(found) = self.word_in(leaf, version, u64::from_be_bytes(word))
        {
            let located = found.located();
            return Some(LeafSight { leaf, token: located.token, seen: located.candidate });
        }
        self.sight_anyhow(key)
    }

    #[inline(never)]
    fn sight_anyhow(&self, key: &[u8]) -> Option<LeafSight<'_>> {
        let found = self.find(key);
        let located = found.located();
        located.verified.then_some(LeafSight { leaf: found.leaf, token: located.token, seen: located.candidate })
    }

    /// Claims the leaf, as [`BTree::claim_place`] does.
    #[inline(always)]
    pub fn claim_seen(&self, sight: &LeafSight<'_>) -> bool {
        self.claim_leaf(sight.leaf, sight.token)
    }

    /// Ends [`BTree::claim_seen`] by putting `new` (none: removes the key) in the place that was seen.
    #[inline(always)]
    pub fn replace_seen(&self, sight: &LeafSight<'_>, key: &[u8], new: Ref) {
        self.replace_in_claimed(&Whole(self), (sight.leaf, sight.token), key, sight.seen, new);
    }
}
