//! Point lookups: from the root through inner nodes to a leaf of layer 0, and on into deeper layers.

use super::Learned;
use super::gapped::{Gapped, Hit, Place, Shape};
use crate::btree::Token;
use crate::btree::protocol::Protocol;
use crate::btree::read::Found as LayerFound;
use crate::common::slice::{LAYER, LONGER, slice_at};
use crate::common::version::{Restart, retry};
use crate::{Located, Ref, Resolver};

/// A slot of layer 0, or the place where it would go.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) leaf: Gapped<'a>,
    pub(super) version: u64,
    pub(super) shape: Shape,
    pub(super) place: Place,
    /// The kind of the slot if slice and rank agree.
    pub(super) kind: Option<u8>,
    pub(super) value: u64,
}

/// The end of a search.
pub(super) enum Found<'a> {
    /// In layer 0; the kind is never [`LAYER`].
    Top(Slot<'a>),
    Below(LayerFound<'a>),
}

impl Slot<'_> {
    /// The reference in the slot, if it is `key`'s.
    #[inline(always)]
    pub(super) fn reference<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        match self.kind {
            None => Ref::NONE,
            Some(LONGER) if !resolver.matches(Ref(self.value), key) => Ref::NONE,
            Some(_) => Ref(self.value),
        }
    }
}

impl Found<'_> {
    #[inline(always)]
    pub(super) fn reference<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        match self {
            Found::Top(slot) => slot.reference(key, resolver),
            Found::Below(found) => found.reference(key, resolver),
        }
    }

    /// As a token and a candidate.
    #[inline(always)]
    pub(super) fn located(&self) -> Located<Token> {
        let slot = match self {
            Found::Below(found) => return found.located(),
            Found::Top(slot) => slot,
        };
        let verified = slot.kind != Some(LONGER);
        let flags = if slot.kind.is_some() { Token::FOUND } else { 0 } | if verified { Token::EXACT } else { 0 };
        let (leaf, position) = (slot.leaf.0.meta().id(), slot.place.slot());
        Located { token: Token { leaf, place: flags, position, version: slot.version }, candidate: Ref(slot.value), verified }
    }
}

impl<P: Protocol> Learned<P> {
    /// The leaf for `slice` and its version.
    #[inline(always)]
    pub(super) fn descend(&self, slice: u64) -> Result<(Gapped<'_>, u64), Restart> {
        let (mut node, mut version) = self.tree.top()?;
        while node.meta().level() > 0 {
            let inner = Gapped(node);
            let address = inner.child(slice);
            inner.prefetch_child(address);
            (node, version) = self.tree.follow(node, version, address)?;
        }
        Ok((Gapped(node), version))
    }

    /// One attempt to find the slot of layer 0 for (slice, rank).
    #[inline(always)]
    pub(super) fn try_slot(&self, slice: u64, rank: u8) -> Result<Slot<'_>, Restart> {
        let (leaf, version) = self.descend(slice)?;
        let shape = leaf.shape();
        let Hit { place, kind, value } = leaf.find(shape, slice, rank);
        leaf.0.version().check(version)?;
        Ok(Slot { leaf, version, shape, place, kind, value })
    }

    /// One attempt to find the slot of `key`.
    #[inline(always)]
    pub(super) fn try_find(&self, key: &[u8]) -> Result<Found<'_>, Restart> {
        let (slice, rank) = slice_at(key, 0);
        let slot = self.try_slot(slice, rank)?;
        if slot.kind != Some(LAYER) {
            return Ok(Found::Top(slot));
        }
        let (root, version) = self.tree.follow(slot.leaf.0, slot.version, slot.value)?;
        Ok(Found::Below(self.tree.find_in(root, version, 8, key)?))
    }

    /// Where `key` is or would go.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u8]) -> Found<'_> {
        self.try_find(key).unwrap_or_else(|Restart| retry(|| self.try_find(key)))
    }

    /// The verified reference of `key`.
    #[inline(always)]
    pub(super) fn lookup<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        if let Ok(word) = <[u8; 8]>::try_from(key)
            && let Ok(found) = self.try_word(u64::from_be_bytes(word))
        {
            return found;
        }
        self.lookup_any(key, resolver)
    }

    /// One attempt to look up a key of eight bytes that lies among wide blocks. How many lookups overlap is a matter of how many instructions
    /// fit into the processor's window, so this does nothing else; whatever is not so simple starts again.
    #[inline(always)]
    fn try_word(&self, slice: u64) -> Result<Ref, Restart> {
        let (leaf, version) = self.descend(slice)?;
        let shape = leaf.shape();
        if shape.narrow() {
            return Err(Restart);
        }
        let (place, mut value) = leaf.probe(shape, leaf.predict(shape, slice), slice);
        if value == 0 && !(1..8).contains(&place.index) {
            value = leaf.find_beside(shape, place, slice).value;
        }
        leaf.0.version().check(version)?;
        Ok(Ref(value))
    }

    #[inline(never)]
    fn lookup_any<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        self.find(key).reference(key, resolver)
    }
}
