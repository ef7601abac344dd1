//! Loading from sorted references.
//!
//! Keys of layer 0 go straight to the end of the last leaf, which is left [`FILL`] full when the next one is started:
//! no search, no split, and room for later inserts.
//!
//! A key that shares its slice with the key before it is inserted by a search, and so is the first key after it that
//! finds the last leaf of their layer full: such leaves are filled completely by edge splits. Other keys of that layer
//! go straight to the end of that leaf, too.

use super::BTree;
use super::leaf::{Entry, LEAF_SLOTS, Leaf};
use super::protocol::{Point, Protocol};
use super::split::New;
use super::spot::{Above, Prepare, Whole};
use crate::common::node::LARGE;
use crate::common::slice::slice_at;
use crate::common::version::{Restart, retry};
use crate::{Ref, Resolver, SortedPiece};
use std::collections::VecDeque;

/// Slots filled per leaf: 93 %.
const FILL: usize = LEAF_SLOTS - 4;
/// Number of references whose keys are being loaded ahead.
const AHEAD: usize = 24;

/// Where the last keys went, if the next one may be put after them without a search. Valid under one pin: a remembered
/// leaf may be retired.
#[derive(Default)]
struct Last<'a> {
    /// The last leaf of layer 0.
    top: Option<Leaf<'a>>,
    /// The last leaf of the layer of the last key that lies below layer 0.
    below: Option<Leaf<'a>>,
    /// The prefix of all keys of that layer: the key up to the slice by which the leaf orders it.
    prefix: Vec<u8>,
}

impl<P: Protocol> BTree<P> {
    /// See [`crate::OrderedIndex::bulk_load`].
    ///
    /// # Panics
    /// If a key comes twice.
    pub(super) fn load_sorted<R: Resolver>(&self, refs: &mut dyn Iterator<Item = Ref>, resolver: &R) {
        let mut ahead = VecDeque::with_capacity(AHEAD);
        let mut last = Last::default();
        loop {
            while ahead.len() < AHEAD
                && let Some(reference) = refs.next()
            {
                resolver.prefetch(reference);
                ahead.push_back(reference);
            }
            let Some(reference) = ahead.pop_front() else { return };
            self.append(&Whole(self), &mut last, resolver.key(reference), reference, resolver);
        }
    }

    /// See [`crate::OrderedIndex::load_pieces`]. The log is read only where a second key goes on after the same slice.
    pub(crate) fn load_keys<'a, R: Resolver>(
        &'a self,
        above: &impl Above<'a>,
        next_piece: &mut dyn FnMut(&mut SortedPiece) -> bool,
        resolver: &R,
    ) {
        let (mut piece, mut last, mut word) = (SortedPiece::default(), Last::default(), [0; 8]);
        while next_piece(&mut piece) {
            for i in 0..piece.len() {
                self.append(above, &mut last, piece.key(i, &mut word), piece.refs()[i], resolver);
            }
        }
    }

    /// Adds the greatest key so far.
    fn append<'a, R: Resolver>(&'a self, above: &impl Above<'a>, last: &mut Last<'a>, key: &[u8], reference: Ref, resolver: &R) {
        debug_assert!(hither_sync::epoch::is_pinned());
        let entry_at = |depth: usize| {
            let (slice, kind) = slice_at(key, depth);
            Entry { slice, kind, value: reference.0 }
        };
        if let Some(leaf) = last.below
            && key.starts_with(&last.prefix)
            && self.append_below(leaf, entry_at(last.prefix.len())).is_ok()
        {
            return;
        }
        if let Some(leaf) = last.top
            && let Ok(leaf) = self.append_to(above, leaf, key, entry_at(0))
        {
            last.top = Some(leaf);
            return;
        }
        let install = || self.try_replace(above, key, Ref::NONE, reference, resolver);
        let installed = install().unwrap_or_else(|Restart| retry(install));
        assert!(installed.is_ok(), "bulk_load needs strictly ascending keys");
        self.note_last(above, last, key);
    }

    /// Remembers the leaf of a key that was just added by a search.
    fn note_last<'a>(&'a self, above: &impl Above<'a>, last: &mut Last<'a>, key: &[u8]) {
        let Ok(found) = above.origin().and_then(|origin| self.find_below(origin, key)) else { return };
        if found.depth == 0 {
            last.top = (found.leaf.0.meta().class() == LARGE).then_some(found.leaf);
        } else if let Some(prefix) = key.get(..found.depth) {
            last.below = Some(found.leaf);
            last.prefix.clear();
            last.prefix.extend_from_slice(prefix);
        }
    }

    /// Appends to the last leaf of a layer below layer 0, if there is room. The key has the layer's prefix, so this
    /// leaf is the one for it.
    fn append_below(&self, leaf: Leaf<'_>, entry: Entry) -> Result<(), Restart> {
        let version = leaf.0.version().try_read()?;
        let count = leaf.count(leaf.0.meta());
        if count == 0 || leaf.is_full() || leaf.next() != 0 || leaf.slice(count - 1) >= entry.slice {
            return Err(Restart);
        }
        let lock = leaf.0.version().lock(version)?;
        leaf.insert(count, entry);
        lock.done();
        self.keys.one_more();
        Ok(())
    }

    /// Appends to the last leaf of layer 0, or to a new one after it.
    fn append_to<'a>(&'a self, above: &impl Above<'a>, leaf: Leaf<'a>, key: &[u8], entry: Entry) -> Result<Leaf<'a>, Restart> {
        let version = leaf.0.version().try_read()?;
        let count = leaf.count(leaf.0.meta());
        if count == 0 || leaf.next() != 0 || leaf.slice(count - 1) >= entry.slice {
            return Err(Restart);
        }
        if count < FILL {
            let lock = leaf.0.version().lock(version)?;
            leaf.insert(count, entry);
            lock.done();
            self.keys.one_more();
            return Ok(leaf);
        }
        let mut spins = 0;
        let spot = loop {
            match above.origin().and_then(|origin| self.try_spot(origin, key, Prepare::ForSplit, |_| ())) {
                Ok(spot) => break spot,
                Err(Restart) if spins < 8 => spins += 1,
                Err(Restart) => return Err(Restart),
            }
        };
        if spot.leaf != leaf || spot.version != version {
            return Err(Restart);
        }
        let claim = leaf.0.version().claim_wanted(version)?;
        self.split_leaf(&spot, claim, count, New { entry, at: count }, Point::EdgeSplit)?;
        self.keys.one_more();
        // SAFETY: the leaf's next is the one that the split has just made; the caller is pinned and the only writer.
        Ok(Leaf(unsafe { crate::common::node::Node::from_address(leaf.next()) }))
    }
}
