//! Installing references: compare-and-swap of a slot under its leaf's lock.

use super::Learned;
use super::block::{Entry, WIDTH};
use super::gapped::{Gapped, Place};
use super::grow::Prepare;
use super::read::{Found, Slot};
use super::subtree::{FILL, SubtreeOf};
use crate::btree::Token;
use crate::btree::protocol::{Point, Protocol};
use crate::common::node::LEAF_HEAD;
use crate::common::slice::slice_at;
use crate::common::version::Restart;
use crate::{Conflict, Ref, Resolver};

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
                Err(Restart) => hither_sync::pause(&mut spins),
            }
        }
    }

    /// Goes straight to the token's slot, if the slot's leaf has not changed since and the search proved the place.
    #[inline]
    fn replace_at_token(&self, token: Token, key: &[u8], old: Ref, new: Ref) -> Result<(), Restart> {
        let node = self.tree.arena.node(token.leaf).ok_or(Restart)?;
        if node.meta().class() != LEAF_HEAD {
            return self.tree.replace_at_token(&SubtreeOf { index: self, key }, token, key, old, new);
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
        let block = leaf.block(place.block);
        if !found {
            let slice = slice_at(key, 0).0;
            if place.index > block.count() || !leaf.insert_noted(place, Entry { slice, value: new.0 }) {
                return Err(Restart);
            }
        } else if place.index >= WIDTH || block.value(place.index) != old.0 {
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

    /// Updates the count of keys after a slot of `leaf` was filled or removed, and mends the leaf if it has become
    /// sparse.
    #[inline(always)]
    pub(super) fn count_change(&self, leaf: Gapped<'_>, key: &[u8], old: Ref, new: Ref) {
        if old.is_none() {
            self.tree.keys.one_more();
        } else if new.is_none() {
            self.tree.keys.one_less();
            self.mend_sparse(leaf, key);
        }
    }

    /// One attempt, by a search from the root.
    fn try_replace<R: Resolver>(&self, key: &[u8], old: Ref, new: Ref, resolver: &R) -> Result<Result<(), Conflict>, Restart> {
        let found = self.try_find(key)?;
        let (Found::Leaf(slot) | Found::Foreign(slot)) = &found else {
            return self.tree.try_replace(&SubtreeOf { index: self, key }, key, old, new, resolver);
        };
        let current = found.reference(key, resolver);
        if current != old {
            return Ok(Err(Conflict { current }));
        }
        if old == new {
            return Ok(Ok(()));
        }
        let slice = slice_at(key, 0).0;
        if old.is_some() && new.is_some() {
            let lock = slot.leaf.0.version().lock(slot.version)?;
            slot.leaf.block(slot.place.block).set_value(slot.place.index, new.0);
            lock.done();
        } else if new.is_none() {
            self.remove_slot(slot, slice)?;
        } else if let Found::Foreign(slot) = &found {
            self.plant_at(slot, slice)?;
            return Err(Restart);
        } else {
            self.insert(slot, Entry { slice, value: new.0 })?;
        }
        self.count_change(slot.leaf, key, old, new);
        Ok(Ok(()))
    }

    /// Inserts `entry`, which the search did not find.
    fn insert(&self, slot: &Slot<'_>, entry: Entry) -> Result<(), Restart> {
        let lock = slot.leaf.0.version().lock(slot.version)?;
        if slot.leaf.insert_noted(slot.place, entry) {
            lock.done();
            return Ok(());
        }
        drop(lock);
        self.make_room(slot, entry)
    }

    /// Puts a subtree in the place of the leaf to which a key leads that is not eight bytes long.
    #[cold]
    fn plant_at(&self, slot: &Slot<'_>, slice: u64) -> Result<(), Restart> {
        let spot = self.try_spot(slice, Prepare::ForSplit)?;
        let lock = spot.leaf.0.version().lock(spot.version)?;
        if spot.leaf != slot.leaf {
            return Err(Restart);
        }
        self.plant(&spot, lock, &spot.leaf.entries(), FILL)
    }
}

impl Gapped<'_> {
    /// Inserts if there is a gap nearby, and records the insert for runs.
    #[inline(always)]
    fn insert_noted(self, place: Place, entry: Entry) -> bool {
        let beside = self.beside(place);
        let done = self.insert(place, entry);
        if done {
            self.note(entry.slice, beside);
        }
        done
    }
}
