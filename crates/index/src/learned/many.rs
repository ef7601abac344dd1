//! Many lookups at once, in three steps that all lookups of a group take together, so that their cache misses overlap:
//! to the leaf's header, to the predicted block, to the slot. A key that a step cannot settle (because a prediction
//! misses, or a writer is at work) is looked up singly at the end, when its lines are on their way. Keys in subtrees
//! are looked up as in the B+-tree.

use super::Learned;
use super::gapped::{Gapped, Shape};
use super::subtree::is_subtree;
use crate::btree::many::GROUP;
use crate::btree::protocol::Protocol;
use crate::common::slice::slice_at;
use crate::{Key, Ref, Resolver};

/// A lookup under way in a leaf.
#[derive(Clone, Copy)]
struct Walk<'a> {
    slice: u64,
    leaf: Gapped<'a>,
    version: u64,
    shape: Shape,
    block: usize,
}

impl<P: Protocol> Learned<P> {
    pub(super) fn lookup_many<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R) {
        for (keys, found) in keys.chunks(GROUP).zip(found.chunks_mut(GROUP)) {
            self.lookup_group(keys, found, resolver);
        }
    }

    fn lookup_group<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R) {
        let (mut walks, mut roots) = ([None; GROUP], [None; GROUP]);
        let (mut open, mut below) = (0u32, false);
        for (i, key) in keys.iter().enumerate() {
            let (slice, _) = slice_at(key.bytes, 0);
            match self.descend(slice) {
                Ok((node, version)) if is_subtree(node) => (roots[i], below) = (Some((node, version)), true),
                Ok((node, version)) if key.bytes.len() == 8 => {
                    let leaf = Gapped(node);
                    walks[i] = Some(Walk { slice, leaf, version, shape: leaf.shape(), block: 0 });
                }
                _ => open |= 1 << i,
            }
        }
        for walk in walks.iter_mut().flatten() {
            walk.shape = walk.leaf.shape();
            if walk.shape.first() < walk.shape.end() {
                walk.block = walk.leaf.predict(walk.shape, walk.slice);
                walk.leaf.prefetch_probe(walk.shape, walk.block);
            }
        }
        if below {
            self.tree.lookup_group(&roots, keys, found, resolver, &|key| self.lookup(key, resolver));
        }
        for (i, walk) in walks.iter().enumerate() {
            let Some(walk) = walk else { continue };
            match walk.finish() {
                Some(reference) => found[i] = reference,
                None => open |= 1 << i,
            }
        }
        while open != 0 {
            let i = open.trailing_zeros() as usize;
            open &= open - 1;
            found[i] = self.lookup(keys[i].bytes, resolver);
        }
    }
}

impl Walk<'_> {
    /// Returns the reference if it is where it should be. Otherwise starts loading the block where it may be instead.
    #[inline(always)]
    fn finish(self) -> Option<Ref> {
        let (shape, leaf) = (self.shape, self.leaf);
        if shape.first() >= shape.end() {
            return None;
        }
        let (place, value) = leaf.probe(shape, self.block, self.slice);
        if value != 0 {
            return leaf.0.version().same(self.version).then_some(Ref(value));
        }
        let beside = if place.index == 0 { self.block.saturating_sub(1) } else { self.block + 2 };
        leaf.block(beside.min(shape.end() - 1).max(shape.first())).prefetch();
        None
    }
}
