//! Loading from sorted references: leaves are built whole, each with its model, and linked behind the last one.

use super::Learned;
use super::block::Entry;
use super::gapped::max_blocks;
use crate::btree::Token;
use crate::btree::protocol::Protocol;
use crate::common::node::LEAF_HEAD;
use crate::common::slice::slice_at;
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
        // Keys that share their slice with one before them take the ordinary way, once the slot of the first one is in place.
        let mut doubles: Vec<Ref> = Vec::new();
        loop {
            while ahead.len() < AHEAD
                && let Some(reference) = refs.next()
            {
                resolver.prefetch(reference);
                ahead.push_back(reference);
            }
            let next = ahead.pop_front().map(|reference| {
                let (slice, kind) = slice_at(resolver.key(reference), 0);
                Entry { slice, kind, value: reference.0 }
            });
            if let Some(entry) = next {
                if leaf.last().is_some_and(|last| last.slice == entry.slice) {
                    doubles.push(Ref(entry.value));
                    continue;
                }
                if leaf.len() < LEAF {
                    leaf.push(entry);
                    continue;
                }
            }
            self.append_leaf(&leaf, resolver);
            leaf.clear();
            for double in doubles.drain(..) {
                self.append_one(double, resolver);
            }
            let Some(entry) = next else { return };
            leaf.push(entry);
        }
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
    }
}
