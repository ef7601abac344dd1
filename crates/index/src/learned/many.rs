//! Many lookups at once, in three steps that all of a group take together, so that their cache misses overlap: down to the leaf's header, to
//! the predicted block, to the slot. What a step cannot settle for a key (a prediction that misses, a deeper layer, a writer at work) is
//! looked up singly at the end, when its lines are on their way.

use super::Learned;
use super::block::WHOLE;
use super::gapped::{Gapped, Shape};
use crate::btree::protocol::Protocol;
use crate::common::slice::slice_at;
use crate::common::version::Restart;
use crate::{Key, Ref, Resolver};

/// Lookups in flight. More than the line fill buffers of a core gain nothing.
const GROUP: usize = 16;

/// A lookup under way.
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
        let mut walks = [None; GROUP];
        for (walk, key) in walks.iter_mut().zip(keys) {
            *walk = self.begin(key.bytes).ok();
        }
        for walk in walks.iter_mut().flatten() {
            walk.shape = walk.leaf.shape();
            if walk.shape.first() < walk.shape.end() {
                walk.block = walk.leaf.predict(walk.shape, walk.slice);
                walk.leaf.prefetch_probe(walk.shape, walk.block);
            }
        }
        let mut open = 0u32;
        for (i, walk) in walks[..keys.len()].iter().enumerate() {
            match walk.and_then(Walk::finish) {
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

    /// Finds the leaf of a key of eight bytes.
    #[inline(always)]
    fn begin(&self, key: &[u8]) -> Result<Walk<'_>, Restart> {
        let (slice, rank) = slice_at(key, 0);
        if rank != WHOLE {
            return Err(Restart);
        }
        let (leaf, version) = self.descend(slice)?;
        Ok(Walk { slice, leaf, version, shape: leaf.shape(), block: 0 })
    }
}

impl Walk<'_> {
    /// The reference, if it is where it should be. Else starts loading the block where it may be instead.
    #[inline(always)]
    fn finish(self) -> Option<Ref> {
        let (shape, leaf) = (self.shape, self.leaf);
        if shape.narrow() || shape.first() >= shape.end() {
            return None;
        }
        let (place, value) = leaf.probe(shape, self.block, self.slice);
        if value != 0 {
            return leaf.0.version().same(self.version).then_some(Ref(value));
        }
        let beside = if place.index == 0 { self.block.saturating_sub(1) } else { self.block + 2 };
        leaf.block(shape, beside.min(shape.end() - 1).max(shape.first())).prefetch();
        None
    }
}
