//! Loading sorted keys of eight bytes, in parallel and without searches: leaves are built from the left, one thread per
//! run, then linked, and the inner levels are built on top of them.
//!
//! Nobody can reach a node before the root's cell leads to it, so everything up to that store is plain work on fresh
//! memory.

use super::BTree;
use super::inner::{Bounds, Inner, MAX_SEPARATORS};
use super::leaf::{LEAF_SLOTS, Leaf};
use super::protocol::Protocol;
use crate::common::node::{LARGE, Node};
use crate::{PieceSource, SortedPiece};
use std::sync::atomic::Ordering;

/// Slots filled per leaf, and separators per inner node: 93 %, as in `bulk`.
pub(crate) const FILL: usize = LEAF_SLOTS - 4;
const INNER_FILL: usize = MAX_SEPARATORS - 4;

/// A finished node and the first slice below it.
#[derive(Clone, Copy)]
struct Built {
    first: u64,
    address: u64,
}

/// The leaves of one run.
#[derive(Default)]
struct Run {
    leaves: Vec<Built>,
    keys: u64,
    last: Option<u64>,
}

impl<P: Protocol> BTree<P> {
    /// See [`crate::OrderedIndex::load_words`].
    ///
    /// # Panics
    /// If the index is not empty, or keys do not ascend.
    pub(super) fn load_runs(&self, runs: &mut [&mut dyn PieceSource]) {
        assert_eq!(self.keys.sum(), 0, "only an empty index is loaded");
        let built = hither_sync::map_together(runs.len(), runs.iter_mut(), |run| self.build_run(*run));
        let mut leaves = Vec::with_capacity(built.iter().map(|run| run.leaves.len()).sum());
        let (mut keys, mut last) = (0, None);
        for run in built {
            let Some(first) = run.leaves.first() else { continue };
            assert!(last.is_none_or(|last| last < first.first), "runs must ascend");
            if let Some(before) = leaves.last() {
                link(*before, *first);
            }
            (keys, last) = (keys + run.keys, run.last);
            leaves.extend(run.leaves);
        }
        if !leaves.is_empty() {
            self.plant(leaves);
            self.keys.add(keys);
        }
    }

    /// Builds and links the leaves of one run.
    fn build_run(&self, source: &mut dyn PieceSource) -> Run {
        let mut run = Run::default();
        let (mut piece, mut slices, mut refs) = (SortedPiece::default(), Vec::new(), Vec::new());
        while source.next_piece(&mut piece) {
            let words = piece.words().expect("a run of words holds words");
            let ascending = words.windows(2).fold(true, |so_far, pair| so_far & (pair[0] < pair[1]));
            let after = words.first().is_none_or(|first| run.last.is_none_or(|last| last < *first));
            assert!(ascending && after, "bulk loads need strictly ascending keys");
            run.last = words.last().copied().or(run.last);
            run.keys += words.len() as u64;
            // The slots left over from the previous piece go first.
            let take = if slices.is_empty() { 0 } else { (FILL - slices.len()).min(words.len()) };
            slices.extend_from_slice(&words[..take]);
            refs.extend_from_slice(&piece.refs()[..take]);
            if slices.len() == FILL {
                self.build_leaf(&mut run.leaves, &slices, &refs);
                slices.clear();
                refs.clear();
            }
            let whole = take + (words.len() - take) / FILL * FILL;
            for from in (take..whole).step_by(FILL) {
                self.build_leaf(&mut run.leaves, &words[from..from + FILL], &piece.refs()[from..from + FILL]);
            }
            slices.extend_from_slice(&words[whole..]);
            refs.extend_from_slice(&piece.refs()[whole..]);
        }
        if !slices.is_empty() {
            self.build_leaf(&mut run.leaves, &slices, &refs);
        }
        run
    }

    fn build_leaf(&self, leaves: &mut Vec<Built>, slices: &[u64], refs: &[crate::Ref]) {
        let fresh = self.arena.allocate(LARGE);
        Leaf(fresh.node()).fill_words(slices, refs);
        let built = Built { first: slices[0], address: fresh.publish().address() };
        if let Some(before) = leaves.last() {
            link(*before, built);
        }
        leaves.push(built);
    }

    /// Builds the tree of layer 0 from ascending keys of eight bytes, with `fill` slots per leaf. Nobody knows the tree
    /// yet.
    pub(crate) fn build_tree(&self, words: impl ExactSizeIterator<Item = (u64, crate::Ref)>, fill: usize) -> Node<'_> {
        let (mut slices, mut refs, mut leaves) = (Vec::with_capacity(fill), Vec::with_capacity(fill), Vec::new());
        if words.len() == 0 {
            return self.arena.allocate(0).publish();
        }
        // Evenly, so that no leaf is left with a few slots.
        let (count, parts) = (words.len(), words.len().div_ceil(fill.min(LEAF_SLOTS)));
        for (i, (slice, reference)) in words.enumerate() {
            slices.push(slice);
            refs.push(reference);
            if i + 1 == (leaves.len() + 1) * count / parts {
                self.build_leaf(&mut leaves, &slices, &refs);
                slices.clear();
                refs.clear();
            }
        }
        // SAFETY: the address of a node that was built just now.
        unsafe { Node::from_address(self.raise(leaves).address) }
    }

    /// Builds the levels above the leaves; returns the top.
    fn raise(&self, mut nodes: Vec<Built>) -> Built {
        let mut level = 0;
        while nodes.len() > 1 {
            level += 1;
            // Evenly, so that no node is left with a single child.
            let parents = nodes.len().div_ceil(INNER_FILL + 1);
            let above = (0..parents).map(|i| {
                let children = &nodes[i * nodes.len() / parents..(i + 1) * nodes.len() / parents];
                self.build_inner(children, level)
            });
            nodes = above.collect();
        }
        nodes[0]
    }

    /// Replaces the root of an idle, empty tree.
    fn plant(&self, leaves: Vec<Built>) {
        let top = self.raise(leaves);
        // SAFETY: the cell holds a node, and nobody replaces it while the index is idle.
        let old: Node<'_> = unsafe { Node::from_address(self.root.address.load(Ordering::Acquire)) };
        let version = self.root.version.try_read().expect("an idle index is not locked");
        let guard = self.root.version.lock(version).expect("an idle index has no other writer");
        let seen = old.version().try_read().expect("an idle index is not locked");
        let lock = old.version().lock(seen).expect("an idle index has no other writer");
        self.root.address.store(top.address, Ordering::Release);
        lock.obsolete();
        guard.done();
        self.arena.retire(old);
        self.begin_table();
    }

    fn build_inner(&self, children: &[Built], level: usize) -> Built {
        let fresh = self.arena.allocate(LARGE);
        Inner(fresh.node()).set_bounds(Bounds::NOTHING);
        let separators: Vec<u64> = children[1..].iter().map(|child| child.first).collect();
        let addresses: Vec<u64> = children.iter().map(|child| child.address).collect();
        fresh.node().set_meta(fresh.node().meta().with_level(level));
        Inner(fresh.node()).fill(&separators, &addresses);
        Built { first: children[0].first, address: fresh.publish().address() }
    }
}

/// Links two neighbouring leaves that nobody else can reach.
fn link(left: Built, right: Built) {
    // SAFETY: both addresses are those of leaves that this load has allocated, from an arena that outlives it.
    let [left, right] = [left, right].map(|built| Leaf(unsafe { Node::from_address(built.address) }));
    left.set_next(right.0.address());
    right.set_previous(left.0.address());
}
