//! Point lookups: from the root through inner nodes to a leaf of layer 0, and on into deeper layers.

use super::Learned;
use super::gapped::{Gapped, Place, Shape};
use crate::btree::Token;
use crate::btree::protocol::Protocol;
use crate::btree::read::Found as LayerFound;
use crate::common::slice::{LAYER, LONGER, slice_at};
use crate::common::version::{Restart, back_off};
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
        let (place, kind) = leaf.find(shape, slice, rank);
        let value = if kind.is_some() { leaf.block(shape, place.block).value(place.index) } else { 0 };
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
        match self.try_find(key) {
            Ok(found) => found,
            Err(Restart) => self.find_again(key),
        }
    }

    #[cold]
    fn find_again(&self, key: &[u8]) -> Found<'_> {
        let mut spins = 0;
        loop {
            back_off(&mut spins);
            if let Ok(found) = self.try_find(key) {
                return found;
            }
        }
    }

    /// The verified reference of `key`.
    #[inline(always)]
    pub(super) fn lookup<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        self.find(key).reference(key, resolver)
    }
}
