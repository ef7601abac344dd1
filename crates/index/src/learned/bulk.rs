//! Loading from sorted references: leaves are built whole, each with its model, and linked after the last one. Where no
//! line fits, they are subtrees.
//!
//! If no line fits the first leaf, or if the first key is not eight bytes long, the B+-tree loads everything. It also
//! loads all keys after a subtree that has no upper bound.

use super::Learned;
use super::block::Entry;
use super::build::fits;
use super::gapped::max_blocks;
use super::grow::Prepare;
use super::read::WORD;
use super::subtree::{RUN_FILL, SubtreeOf, is_subtree};
use crate::btree::Token;
use crate::btree::protocol::Protocol;
use crate::btree::spot::{Above, Whole};
use crate::common::node::LEAF_HEAD;
use crate::common::slice::slice_at;
use crate::common::version::retry;
use crate::{PieceSource, Ref, Resolver, SortedPiece};
use std::collections::VecDeque;

/// Number of references whose keys are being loaded ahead.
const AHEAD: usize = 24;
/// Number of keys that are handed to the B+-tree together.
const PIECE: usize = 64;
/// Slots of a leaf that is built: half of what it holds at most. Where models fit badly, inserts will split it further.
const LEAF: usize = max_blocks(LEAF_HEAD) * 8 / 2;

/// A reference that is to be loaded.
#[derive(Clone, Copy)]
struct Coming {
    reference: Ref,
    /// Its key, if it has eight bytes and is at hand. Other keys are read from the log.
    word: Option<u64>,
}

impl Coming {
    fn of(entry: &Entry) -> Coming {
        Coming { reference: Ref(entry.value), word: Some(entry.slice) }
    }

    /// The key; if it is at hand, its bytes are written into `word`.
    fn key<'a, R: Resolver>(self, word: &'a mut [u8; 8], resolver: &'a R) -> &'a [u8] {
        match self.word {
            Some(known) => {
                *word = known.to_be_bytes();
                word
            }
            None => resolver.key(self.reference),
        }
    }

    fn prefetch<R: Resolver>(self, resolver: &R) {
        if self.word.is_none() {
            resolver.prefetch(self.reference);
        }
    }
}

impl<P: Protocol> Learned<P> {
    /// See [`crate::OrderedIndex::bulk_load`].
    ///
    /// # Panics
    /// If a key comes twice.
    pub(super) fn load_sorted<R: Resolver>(&self, refs: &mut dyn Iterator<Item = Ref>, resolver: &R) {
        self.load(&mut refs.map(|reference| Coming { reference, word: None }), resolver);
    }

    /// See [`crate::OrderedIndex::load_pieces`]. For pieces that consist of words, the log is not read.
    pub(super) fn load_known<R: Resolver>(&self, source: &mut dyn PieceSource, resolver: &R) {
        let (mut piece, mut at) = (SortedPiece::default(), 0);
        let mut coming = std::iter::from_fn(|| {
            while at == piece.len() {
                at = 0;
                if !source.next_piece(&mut piece) {
                    piece.clear();
                    return None;
                }
            }
            at += 1;
            Some(Coming { reference: piece.refs()[at - 1], word: piece.words().map(|words| words[at - 1]) })
        });
        self.load(&mut coming, resolver);
    }

    fn load<R: Resolver>(&self, coming: &mut dyn Iterator<Item = Coming>, resolver: &R) {
        let mut ahead = VecDeque::with_capacity(AHEAD);
        let mut leaf: Vec<Entry> = Vec::with_capacity(LEAF);
        let mut word = [0; 8];
        loop {
            while ahead.len() < AHEAD
                && let Some(next) = coming.next()
            {
                next.prefetch(resolver);
                ahead.push_back(next);
            }
            let next = ahead.pop_front().map(|next| (next, slice_at(next.key(&mut word, resolver), 0)));
            if let Some((Coming { reference, .. }, (slice, WORD))) = next
                && leaf.len() < LEAF
            {
                assert!(leaf.last().is_none_or(|last| last.slice < slice), "bulk_load needs strictly ascending keys");
                leaf.push(Entry { slice, value: reference.0 });
                continue;
            }
            let fits = || if leaf.is_empty() { next.is_none() } else { fits(&leaf) };
            if self.is_empty_leaf() && !fits() {
                let rest = next.map(|(next, _)| next).into_iter().chain(ahead).chain(coming);
                self.plant_root();
                return self.load_below(&Whole(&self.tree), &mut leaf.iter().map(Coming::of).chain(rest), resolver);
            }
            self.append_leaf(&leaf, resolver);
            leaf.clear();
            match next {
                None => return,
                Some((next, (slice, WORD))) if !self.ends_in_subtree(slice) => leaf.push(Entry { slice, value: next.reference.0 }),
                Some((next, (slice, _))) => {
                    self.append_one(next, resolver);
                    if self.ends_in_subtree(slice) {
                        let last = SubtreeOf { index: self, key: &[0xff; 8] };
                        return self.load_below(&last, &mut ahead.into_iter().chain(coming), resolver);
                    }
                }
            }
        }
    }

    /// Loads the coming keys into the B+-tree below this cell, after all keys that it holds.
    fn load_below<'a, R: Resolver>(&'a self, above: &impl Above<'a>, coming: &mut dyn Iterator<Item = Coming>, resolver: &R) {
        let (mut some, mut word) = (Vec::with_capacity(PIECE), [0; 8]);
        let mut pieces = |piece: &mut SortedPiece| {
            some.clear();
            some.extend(coming.take(PIECE).inspect(|next| next.prefetch(resolver)));
            piece.clear();
            some.iter().for_each(|next| piece.push(next.key(&mut word, resolver), next.reference));
            !piece.is_empty()
        };
        self.tree.load_keys(above, &mut pieces, resolver);
    }

    /// Whether `slice` and all greater ones belong to one subtree.
    fn ends_in_subtree(&self, slice: u64) -> bool {
        self.descend_ranged(slice).is_ok_and(|range| range.high.is_none() && is_subtree(range.node))
    }

    /// Whether the index is a single empty leaf. An index that was emptied may have more nodes, even subtrees (S1).
    fn is_empty_leaf(&self) -> bool {
        self.tree.top().is_ok_and(|(root, _)| root.meta().class() == LEAF_HEAD && self.tree.keys.sum() == 0)
    }

    /// Replaces the root of an empty, idle index by that of a subtree.
    fn plant_root(&self) {
        let planted = self.try_spot(0, Prepare::ForSplit).and_then(|spot| {
            let lock = spot.leaf.0.version().lock(spot.version)?;
            self.plant(&spot, lock, &[], RUN_FILL)
        });
        planted.expect("an idle index has no other writer");
    }

    /// Adds the greatest key so far by a search.
    fn append_one<R: Resolver>(&self, next: Coming, resolver: &R) {
        let mut word = [0; 8];
        let installed = self.replace(Token::NOWHERE, next.key(&mut word, resolver), Ref::NONE, next.reference, resolver);
        assert!(installed.is_ok(), "bulk_load needs strictly ascending keys");
    }

    /// Adds a leaf of entries that are greater than all entries in the index.
    fn append_leaf<R: Resolver>(&self, entries: &[Entry], resolver: &R) {
        if entries.is_empty() {
            return;
        }
        if self.append_whole(entries).is_err() {
            return entries.iter().for_each(|entry| self.append_one(Coming::of(entry), resolver));
        }
        entries.iter().for_each(|_| self.tree.keys.one_more());
        if !fits(entries) {
            // Repeated if the search has split a full inner node first.
            retry(|| {
                let spot = self.try_spot(entries[0].slice, Prepare::ForSplit)?;
                let lock = spot.leaf.0.version().lock(spot.version)?;
                self.plant(&spot, lock, &spot.leaf.entries(), RUN_FILL)
            });
        }
    }
}
