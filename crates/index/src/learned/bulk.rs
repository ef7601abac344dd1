//! Loading from sorted references: leaves are built whole, each with its model, and linked behind the last one. Where no line fits, they are
//! subtrees; if none fits the first leaf, or if the first key is not eight bytes long, the B+-tree loads everything. So it does with all that comes behind a subtree that takes
//! whatever is greater.

use super::Learned;
use super::block::Entry;
use super::build::fits;
use super::gapped::max_blocks;
use super::grow::Prepare;
use super::read::WORD;
use super::subtree::{RUN_FILL, SubtreeOf, is_subtree};
use crate::btree::Token;
use crate::btree::protocol::Protocol;
use crate::btree::spot::Whole;
use crate::common::node::LEAF_HEAD;
use crate::common::slice::slice_at;
use crate::common::version::retry;
use crate::{Ref, Resolver};
use std::collections::VecDeque;

/// References whose keys are being loaded.
const AHEAD: usize = 24;
/// Slots of a leaf that is built: half of what it holds at most. Where models fit badly, inserts will split it further.
const LEAF: usize = max_blocks(LEAF_HEAD) * 8 / 2;

impl<P: Protocol> Learned<P> {
    /// See [`crate::OrderedIndex::bulk_load`].
    ///
    /// # Panics
    /// If a key comes twice.
    pub(super) fn load_sorted<R: Resolver>(&self, refs: &mut dyn Iterator<Item = Ref>, resolver: &R) {
        let mut ahead = VecDeque::with_capacity(AHEAD);
        let mut leaf: Vec<Entry> = Vec::with_capacity(LEAF);
        loop {
            while ahead.len() < AHEAD
                && let Some(reference) = refs.next()
            {
                resolver.prefetch(reference);
                ahead.push_back(reference);
            }
            let next = ahead.pop_front().map(|reference| (reference, slice_at(resolver.key(reference), 0)));
            if let Some((reference, (slice, WORD))) = next
                && leaf.len() < LEAF
            {
                assert!(leaf.last().is_none_or(|last| last.slice < slice), "bulk_load needs strictly ascending keys");
                leaf.push(Entry { slice, value: reference.0 });
                continue;
            }
            let fits = || if leaf.is_empty() { next.is_none() } else { fits(&leaf) };
            if self.is_empty_leaf() && !fits() {
                let rest = next.map(|(reference, _)| reference).into_iter().chain(ahead).chain(refs);
                let mut all = leaf.iter().map(|entry| Ref(entry.value)).chain(rest);
                self.plant_root();
                return self.tree.load_sorted(&Whole(&self.tree), &mut all, resolver);
            }
            self.append_leaf(&leaf, resolver);
            leaf.clear();
            match next {
                None => return,
                Some((reference, (slice, WORD))) if !self.ends_in_subtree(slice) => leaf.push(Entry { slice, value: reference.0 }),
                Some((reference, (slice, _))) => {
                    self.append_one(reference, resolver);
                    if self.ends_in_subtree(slice) {
                        return self.load_last(&mut ahead.into_iter().chain(refs), resolver);
                    }
                }
            }
        }
    }

    /// Whether `slice` belongs into a subtree, and so does whatever is greater.
    fn ends_in_subtree(&self, slice: u64) -> bool {
        self.descend_ranged(slice).is_ok_and(|range| range.high.is_none() && is_subtree(range.node))
    }

    /// Loads what comes behind all there is, into the last subtree.
    fn load_last<R: Resolver>(&self, refs: &mut dyn Iterator<Item = Ref>, resolver: &R) {
        self.tree.load_sorted(&SubtreeOf { index: self, key: &[0xff; 8] }, refs, resolver);
    }

    /// Whether one leaf is all there is: an index that was emptied may have more, subtrees among them (S1).
    fn is_empty_leaf(&self) -> bool {
        self.tree.top().is_ok_and(|(root, _)| root.meta().class() == LEAF_HEAD && self.tree.keys.sum() == 0)
    }

    /// Makes the root of an empty, idle index a subtree's.
    fn plant_root(&self) {
        let planted = self.try_spot(0, Prepare::ForSplit).and_then(|spot| {
            let lock = spot.leaf.0.version().lock(spot.version)?;
            self.plant(&spot, lock, &[], RUN_FILL)
        });
        planted.expect("an idle index has no other writer");
    }

    /// Adds the greatest key so far by a search.
    fn append_one<R: Resolver>(&self, reference: Ref, resolver: &R) {
        let installed = self.replace(Token::NOWHERE, resolver.key(reference), Ref::NONE, reference, resolver);
        assert!(installed.is_ok(), "bulk_load needs strictly ascending keys");
    }

    /// Adds a leaf of entries that are greater than all there are.
    fn append_leaf<R: Resolver>(&self, entries: &[Entry], resolver: &R) {
        if entries.is_empty() {
            return;
        }
        if self.append_whole(entries).is_err() {
            return entries.iter().for_each(|entry| self.append_one(Ref(entry.value), resolver));
        }
        entries.iter().for_each(|_| self.tree.keys.one_more());
        if !fits(entries) {
            // Again if the search has split a full inner node first.
            retry(|| {
                let spot = self.try_spot(entries[0].slice, Prepare::ForSplit)?;
                let lock = spot.leaf.0.version().lock(spot.version)?;
                self.plant(&spot, lock, &spot.leaf.entries(), RUN_FILL)
            });
        }
    }
}
