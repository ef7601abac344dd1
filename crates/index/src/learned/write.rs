//! Installing references: compare and swap of a slot under its leaf's lock.

use super::Learned;
use super::block::{Entry, WHOLE};
use super::gapped::{Gapped, Place};
use super::read::{Found, Slot};
use crate::btree::Token;
use crate::btree::protocol::{Point, Protocol};
use crate::btree::spot::{Above, Cell, Origin};
use crate::common::node::LEAF_HEAD;
use crate::common::slice::{LAYER, LONGER, slice_at};
use crate::common::version::{Restart, back_off};
use crate::{Conflict, Ref, Resolver};

/// The slot of layer 0 that holds the layers of `key`.
struct SlotOf<'a, 'k, P: Protocol> {
    index: &'a Learned<P>,
    key: &'k [u8],
}

impl<'a, P: Protocol> Above<'a> for SlotOf<'a, '_, P> {
    fn origin(&self) -> Result<Origin<'a>, Restart> {
        let (slice, rank) = slice_at(self.key, 0);
        let slot = self.index.try_slot(slice, rank)?;
        if slot.kind != Some(LAYER) {
            return Err(Restart);
        }
        let word = slot.leaf.block(slot.shape, slot.place.block).value_word(slot.place.index);
        Ok(Origin { cell: Cell { guard: slot.leaf.0.version(), version: slot.version, word }, base: 8 })
    }

    fn remove(&self, origin: Origin<'a>) -> Result<(), Restart> {
        let (slice, rank) = slice_at(self.key, 0);
        let slot = self.index.try_slot(slice, rank)?;
        if slot.version != origin.cell.version || !std::ptr::eq(slot.leaf.0.version(), origin.cell.guard) {
            return Err(Restart);
        }
        self.index.remove_slot(&slot, slice)
    }
}

impl<P: Protocol> Learned<P> {
    /// See [`crate::Index::install`].
    #[inline]
    pub(super) fn replace<R: Resolver>(&self, token: Token, key: &[u8], old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict> {
        if token.leaf != u32::MAX && self.replace_at_token(token, key, old, new).is_ok() {
            P::reached(Point::TokenHit);
            return Ok(());
        }
        let mut spins = 0;
        loop {
            match self.try_replace(key, old, new, resolver) {
                Ok(result) => return result,
                Err(Restart) => back_off(&mut spins),
            }
        }
    }

    /// Goes straight to the token's slot if its leaf has not changed since and the search proved the place.
    #[inline]
    fn replace_at_token(&self, token: Token, key: &[u8], old: Ref, new: Ref) -> Result<(), Restart> {
        let node = self.tree.arena.node(token.leaf).ok_or(Restart)?;
        if node.meta().class() != LEAF_HEAD {
            return self.tree.replace_at_token(&SlotOf { index: self, key }, token, key, old, new);
        }
        let (leaf, found, place) = (Gapped(node), token.is_found(), Place::of_slot(token.position));
        if !token.is_exact() || found != old.is_some() || old == new {
            return Err(Restart);
        }
        let lock = node.version().lock(token.version)?;
        let shape = leaf.shape();
        // The bounds hold for tokens of this index; they keep one of another index from reaching beyond the node.
        if !(shape.first()..shape.end()).contains(&place.block) {
            return Err(Restart);
        }
        let block = leaf.block(shape, place.block);
        if !found {
            let (slice, kind) = slice_at(key, 0);
            let entry = Entry { slice, kind, value: new.0 };
            if place.index > block.count() || !leaf.insert_noted(place, entry) {
                return Err(Restart);
            }
        } else if block.value(place.index) != old.0 {
            return Err(Restart);
        } else if new.is_some() {
            block.set_value(place.index, new.0);
        } else if leaf.count() == 1 || !leaf.remove(place) {
            return Err(Restart);
        }
        lock.done();
        self.count_change(leaf, key, old, new);
        Ok(())
    }

    /// Counts keys after a slot of `leaf` was filled or removed, and mends the leaf if it has become sparse.
    #[inline(always)]
    pub(super) fn count_change(&self, leaf: Gapped<'_>, key: &[u8], old: Ref, new: Ref) {
        if old.is_none() {
            self.tree.keys.one_more();
        } else if new.is_none() {
            self.tree.keys.one_less();
            self.mend_sparse(leaf, key);
        }
    }

    /// One attempt by a search from the root.
    fn try_replace<R: Resolver>(&self, key: &[u8], old: Ref, new: Ref, resolver: &R) -> Result<Result<(), Conflict>, Restart> {
        let slot = match self.try_find(key)? {
            Found::Top(slot) => slot,
            Found::Below(_) => return self.tree.try_replace(&SlotOf { index: self, key }, key, old, new, resolver),
        };
        let current = slot.reference(key, resolver);
        if current != old {
            return Ok(Err(Conflict { current }));
        }
        if old == new {
            return Ok(Ok(()));
        }
        if old.is_none() {
            self.insert(key, &slot, new, resolver)?;
        } else if new.is_none() {
            self.remove_slot(&slot, slice_at(key, 0).0)?;
        } else {
            let lock = slot.leaf.0.version().lock(slot.version)?;
            slot.leaf.block(slot.shape, slot.place.block).set_value(slot.place.index, new.0);
            lock.done();
        }
        self.count_change(slot.leaf, key, old, new);
        Ok(Ok(()))
    }

    /// Inserts `key`, which the search did not find.
    fn insert<R: Resolver>(&self, key: &[u8], slot: &Slot<'_>, new: Ref, resolver: &R) -> Result<(), Restart> {
        if slot.kind == Some(LONGER) {
            let fresh = self.tree.layer_of_two(key, new, Ref(slot.value), 8, resolver);
            let lock = slot.leaf.0.version().lock(slot.version)?;
            let block = slot.leaf.block(slot.shape, slot.place.block);
            block.set_kind(slot.place.index, LAYER);
            block.set_value(slot.place.index, fresh.publish().address());
            lock.done();
            P::reached(Point::NewLayer);
            return Ok(());
        }
        let (slice, kind) = slice_at(key, 0);
        let entry = Entry { slice, kind, value: new.0 };
        let lock = slot.leaf.0.version().lock(slot.version)?;
        if slot.leaf.insert_noted(slot.place, entry) {
            lock.done();
            return Ok(());
        }
        drop(lock);
        self.make_room(slot, entry)
    }
}

impl Gapped<'_> {
    /// Inserts if there is a gap near and the blocks can hold the kind, and notes it for runs.
    #[inline(always)]
    fn insert_noted(self, place: Place, entry: Entry) -> bool {
        if entry.kind != WHOLE && !self.shape().narrow() {
            return false;
        }
        let beside = self.beside(place);
        let done = self.insert(place, entry);
        if done {
            self.note(entry.slice, beside);
        }
        done
    }
}
