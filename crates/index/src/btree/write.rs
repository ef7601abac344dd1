//! Installing references: compare-and-swap of a slot under its leaf's lock.

use super::leaf::{Entry, Leaf};
use super::protocol::{Point, Protocol};
use super::read::{Found, shared_slices};
use super::spot::{Above, Cell, Prepare, Whole};
use super::witness::Witnesses;
use super::{BTree, Token};
use crate::common::node::{LARGE, Node};
use crate::common::slice::{LAYER, LONGER, common_prefix, slice_at};
use crate::common::version::Restart;
use crate::{Conflict, Ref, Resolver};
use std::sync::atomic::Ordering;

/// Leaves that shrink to one of these counts look for a sibling to merge with. A look at every step below the first one
/// would mostly be in vain.
const MERGE_AT: u64 = 1 << 15 | 1 << 10 | 1 << 6 | 1 << 3 | 1 << 1;

impl<P: Protocol> BTree<P> {
    /// See [`crate::Index::install`].
    #[inline]
    pub(super) fn replace<R: Resolver>(&self, token: Token, key: &[u8], old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict> {
        if token.leaf != u32::MAX && self.replace_at_token(&Whole(self), token, key, old, new).is_ok() {
            P::reached(Point::TokenHit);
            return Ok(());
        }
        let mut spins = 0;
        loop {
            match self.try_replace(&Whole(self), key, old, new, resolver) {
                Ok(result) => return result,
                Err(Restart) => hither_sync::pause(&mut spins),
            }
        }
    }

    /// Goes straight to the token's slot, if the slot's leaf has not changed since and the search proved the place.
    #[inline]
    pub(crate) fn replace_at_token<'a>(
        &'a self,
        above: &impl Above<'a>,
        token: Token,
        key: &[u8],
        old: Ref,
        new: Ref,
    ) -> Result<(), Restart> {
        let leaf = Leaf(self.arena.node(token.leaf).ok_or(Restart)?);
        let found = token.is_found();
        if !token.is_exact() || found != old.is_some() || old == new {
            return Err(Restart);
        }
        let at = usize::from(token.position);
        let lock = leaf.0.version().lock(token.version)?;
        let meta = leaf.0.meta();
        let count = leaf.count(meta);
        if found {
            // The bounds hold for tokens of this tree; they keep one of another tree from reaching beyond the node.
            if at >= count || leaf.value(meta, at) != old.0 || (new.is_none() && count == 1) {
                return Err(Restart);
            }
            if new.is_some() { leaf.set_value(at, new.0) } else { leaf.remove(at) }
        } else {
            if at > count || leaf.is_full() || meta.level() > 0 {
                return Err(Restart);
            }
            let (slice, kind) = slice_at(key, token.depth());
            leaf.insert(at, Entry { slice, kind, value: new.0 });
        }
        lock.done();
        self.count_change(above, leaf, key, old, new);
        Ok(())
    }

    /// Updates the count of keys after a slot of `leaf` was filled or removed, and merges the leaf if it has become
    /// sparse.
    #[inline(always)]
    pub(super) fn count_change<'a>(&'a self, above: &impl Above<'a>, leaf: Leaf<'_>, key: &[u8], old: Ref, new: Ref) {
        if old.is_none() {
            self.keys.one_more();
        } else if new.is_none() {
            self.keys.one_less();
            let meta = leaf.0.meta();
            if meta.class() == LARGE && MERGE_AT >> meta.count().min(63) & 1 == 1 {
                self.merge_around(above, key);
            }
        }
    }

    /// One attempt, by a search that starts at the first layer's cell.
    pub(crate) fn try_replace<'a, R: Resolver>(
        &'a self,
        above: &impl Above<'a>,
        key: &[u8],
        old: Ref,
        new: Ref,
        resolver: &R,
    ) -> Result<Result<(), Conflict>, Restart> {
        let found = self.find_below(above.origin()?, key)?;
        let current = found.reference(key, resolver);
        if current != old {
            return Ok(Err(Conflict { current }));
        }
        if old == new {
            return Ok(Ok(()));
        }
        if old.is_none() {
            self.insert(above, key, &found, new, resolver)?;
            self.keys.one_more();
            return Ok(Ok(()));
        }
        if new.is_none() && found.leaf.0.meta().count() == 1 {
            self.remove_last(above, key, old)?;
            self.keys.one_less();
            return Ok(Ok(()));
        }
        let lock = found.leaf.0.version().lock(found.version)?;
        if new.is_some() {
            found.leaf.set_value(found.position, new.0);
        } else {
            found.leaf.remove(found.position);
        }
        lock.done();
        self.count_change(above, found.leaf, key, old, new);
        Ok(Ok(()))
    }

    /// Inserts `key`, which the search did not find.
    fn insert<'a, R: Resolver>(
        &'a self,
        above: &impl Above<'a>,
        key: &[u8],
        found: &Found<'_>,
        new: Ref,
        resolver: &R,
    ) -> Result<(), Restart> {
        if !found.exact {
            let shares = self.shares_prefix(key, found, resolver)?;
            if shares != Some(true) && self.split_prefix(above.origin()?, key, (new, found), resolver)? {
                return Ok(());
            }
            if shares == Some(false) {
                return Err(Restart);
            }
        }
        if found.kind == Some(LONGER) {
            return self.add_layer(key, found, new, resolver);
        }
        if found.kind.is_some() {
            return self.replace_unreadable(found, new);
        }
        let (slice, kind) = slice_at(key, found.depth);
        let entry = Entry { slice, kind, value: new.0 };
        if found.leaf.is_full() {
            return self.insert_into_full(above.origin()?, key, found, entry);
        }
        let lock = found.leaf.0.version().lock(found.version)?;
        found.leaf.insert(found.position, entry);
        lock.done();
        Ok(())
    }

    /// Replaces the value of the slot that was found. A shorter key with the same prefix and slice is the same key, so
    /// the slot holds an entry whose key cannot be read.
    #[cold]
    fn replace_unreadable(&self, found: &Found<'_>, new: Ref) -> Result<(), Restart> {
        let lock = found.leaf.0.version().lock(found.version)?;
        found.leaf.set_value(found.position, new.0);
        lock.done();
        // The caller counts one key more.
        self.keys.one_less();
        Ok(())
    }

    /// Returns whether `key` has the bytes that the layers on its way leave out, by reading a key of the same layer
    /// from the log. `None` if no such key in its leaf can be read.
    fn shares_prefix<R: Resolver>(&self, key: &[u8], found: &Found<'_>, resolver: &R) -> Result<Option<bool>, Restart> {
        if key.len() <= found.depth {
            return Ok(Some(false));
        }
        let own = found.kind.and_then(|_| resolver.sound_key(Ref(found.value)));
        let witness = match own {
            Some(_) => own,
            None => self.witness(found.leaf.0, found.version, resolver)?,
        };
        Ok(witness.map(|witness| common_prefix(witness, key) >= found.depth))
    }

    /// Adds `key`, which goes on after a slice that so far only one other key had: both move to a layer of their own.
    fn add_layer<R: Resolver>(&self, key: &[u8], found: &Found<'_>, new: Ref, resolver: &R) -> Result<(), Restart> {
        let fresh = self.layer_of_two(key, new, Ref(found.value), found.depth + 8, resolver);
        let lock = found.leaf.0.version().lock(found.version)?;
        found.leaf.set_kind(found.position, LAYER);
        found.leaf.value_word(found.position).store(fresh.publish().address(), Ordering::Release);
        lock.done();
        P::reached(Point::NewLayer);
        Ok(())
    }

    /// Makes a layer of `key` and of the key of `other`, which both go on at byte `base`.
    fn layer_of_two<R: Resolver>(&self, key: &[u8], new: Ref, other: Ref, base: usize, resolver: &R) -> crate::common::arena::Fresh<'_> {
        debug_assert!(key.len() > base);
        let (value, other) = (other.0, resolver.sound_key(other).filter(|other| other.len() > base && other[..base] == key[..base]));
        let Some(other) = other else { return self.layer_beside_unreadable(key, new, value, base) };
        // Each key needs a byte of its own in the new layer, lest one of them end above it.
        let shared = common_prefix(&other[base..], &key[base..]).min(other.len().min(key.len()) - base - 1);
        let skip = shared / 8;
        let slot = |key: &[u8], value: u64| {
            let (slice, kind) = slice_at(key, base + 8 * skip);
            Entry { slice, kind, value }
        };
        let mut slots = [slot(other, value), slot(key, new.0)];
        slots.sort_unstable_by_key(|entry| (entry.slice, entry.kind));
        self.small_root(&slots, skip)
    }

    /// Makes a layer of `key` and of a reference whose key cannot be read. Any layer will do: nobody finds that
    /// reference by its key any more.
    #[cold]
    fn layer_beside_unreadable(&self, key: &[u8], new: Ref, value: u64, base: usize) -> crate::common::arena::Fresh<'_> {
        let (slice, kind) = slice_at(key, base);
        let other = Entry { slice: u64::from(slice == 0), kind: LONGER, value };
        let mut slots = [other, Entry { slice, kind, value: new.0 }];
        slots.sort_unstable_by_key(|entry| (entry.slice, entry.kind));
        self.small_root(&slots, 0)
    }

    /// Makes a layer of one small leaf.
    fn small_root(&self, slots: &[Entry], skip: usize) -> crate::common::arena::Fresh<'_> {
        let fresh = self.arena.allocate(0);
        Leaf(fresh.node()).fill(slots);
        fresh.node().set_meta(fresh.node().meta().with_skip(skip));
        fresh
    }

    /// If `key` differs from a layer's keys in the bytes that the layer skips, puts a layer above it that ends at the
    /// difference. A layer of which no key can be read is taken to share nothing. Returns false if there is no such
    /// layer on the way to `found`.
    fn split_prefix<'a, R: Resolver>(
        &'a self,
        origin: Cell<'a>,
        key: &[u8],
        (new, found): (Ref, &Found<'_>),
        resolver: &R,
    ) -> Result<bool, Restart> {
        let (mut cell, mut base, mut witnesses) = (origin, 0, Witnesses::default());
        loop {
            let (root, version) = self.root_of(cell)?;
            let skip = root.meta().skip();
            if skip > 0 {
                let witness = witnesses.of(self, (root, version), resolver)?;
                let shared = witness.map_or(0, |witness| shared_slices(witness, key, base));
                if shared < skip {
                    let depth = base + 8 * shared;
                    let old_slice = witness.map_or_else(|| !slice_at(key, depth).0, |witness| slice_at(witness, depth).0);
                    return self.cut_layer(cell, (root, version), shared, old_slice, (slice_at(key, depth), new)).map(|()| true);
                }
            }
            let spot = self.spot_in_layer(cell, base, key, Prepare::ForSplit)?;
            if spot.kind != Some(LAYER) {
                return if (spot.leaf, spot.version) == (found.leaf, found.version) { Ok(false) } else { Err(Restart) };
            }
            cell = spot.cell_below();
            base = spot.depth + 8;
        }
    }

    /// Replaces the layer in `cell` by one that skips only `shared` slices. From there, `old_slice` leads to the old
    /// layer, and another slot to the new key.
    fn cut_layer(
        &self,
        cell: Cell<'_>,
        (root, version): (Node<'_>, u64),
        shared: usize,
        old_slice: u64,
        ((slice, kind), new): ((u64, u8), Ref),
    ) -> Result<(), Restart> {
        let mut slots = [Entry { slice: old_slice, kind: LAYER, value: root.address() }, Entry { slice, kind, value: new.0 }];
        slots.sort_unstable_by_key(|entry| (entry.slice, entry.kind));
        let fresh = self.small_root(&slots, shared);
        let guard = cell.guard.lock(cell.version)?;
        let lock = root.version().lock(version)?;
        let meta = root.meta();
        root.set_meta(meta.with_skip(meta.skip() - shared - 1));
        cell.word.store(fresh.publish().address(), Ordering::Release);
        lock.done();
        guard.done();
        P::reached(Point::PrefixSplit);
        Ok(())
    }
}
