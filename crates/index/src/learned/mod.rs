//! The learned ordered index: c-ALEX (NStore, section III-B, after ALEX, SIGMOD 2020) over keys of eight bytes.
//! B+-trees (`crate::btree`) take the places of leaves where no line fits the keys, or where keys are not eight bytes
//! long.
//!
//! # Structure
//!
//! Inner nodes and leaves are gapped arrays (`gapped`): sorted slots in blocks of two cache lines, a linear model that
//! predicts the block of a slice, and exponential search from there. A leaf holds up to 4096 slots (64 KiB), an inner
//! node up to 12,288 (192 KiB). So five million keys have one inner node, whose lines stay in the cache as the leaves'
//! headers do. A lookup of an eight-byte key then waits for memory once: for the two lines of the predicted block,
//! slices and values, which it loads together.
//!
//! Subtrees (`subtree`) are searched, scanned and changed by the B+-tree's own code. Keys that no line fits from the
//! beginning, and strings, live in a subtree that is the root.
//!
//! # Thread safety
//!
//! Optimistic lock coupling with a version per node, as in the B+-tree: lookups and scans store nothing and take no
//! lock. An array is rebuilt in place under its lock. Headers and pages are type-stable, so a reader that is on its way
//! meanwhile reads harmless words, and starts again.
//!
//! # Invariants
//!
//! B1–B2 in `block`, G1–G3 in `gapped`, S1–S2 in `subtree`, the B+-tree's in subtrees, and:
//!
//! * X1. The first separator of an inner node is the lower end of its range; a child's range ends where the next
//!   child's begins.
//! * X2. A leaf's range of slices changes only under its lock, with a new version. So do its links, except that the
//!   `previous` of a leaf changes under the lock of the leaf whose `next` it is. No link leads to or from a subtree:
//!   where a link is missing, a scan goes on from the root.
//! * X3. A leaf that becomes empty stays only if it is its parent's only child, or the root, or has no leaf beside it.
//!   It may get neighbours later, when inner nodes merge. Inner nodes are never empty.
//! * X4. A leaf knows the lower end of its range, which never changes.
//!
//! # Crash
//!
//! Nothing survives; recovery or [`OrderedIndex::bulk_load`] builds the index anew.

mod block;
mod build;
mod bulk;
mod check;
mod edit;
mod gapped;
mod grow;
mod hint;
mod many;
mod model;
mod read;
mod scan;
mod shrink;
mod subtree;
mod write;

#[cfg(test)]
mod tests;

use crate::btree::BTree;
pub use crate::btree::Token;
use crate::btree::protocol::{Protocol, Sound};
use crate::common::node::LEAF_HEAD;
use crate::common::slice::slice_at;
use crate::common::version::retry;
use crate::{Conflict, Hinted, Index, Key, Located, Look, OrderedIndex, PieceSource, Ref, Resolver, SortedPiece, Start};
use gapped::Gapped;
use std::sync::atomic::Ordering;
use subtree::{SubtreeOf, is_subtree};

/// The learned index. See the head of the module.
pub type LearnedIndex = Learned<Sound>;

/// The learned index with the steps of its protocol exposed to tests.
pub struct Learned<P: Protocol> {
    /// Node memory, the count of keys, the root's cell (of an array or of a subtree) and the subtrees.
    tree: BTree<P>,
}

impl<P: Protocol> Learned<P> {
    /// An empty index. Touches three pages.
    pub fn new() -> Self {
        let tree = BTree::below(|arena| {
            let leaf = arena.allocate(LEAF_HEAD);
            Gapped(leaf.node()).train(arena, &[]);
            Gapped(leaf.node()).set_low(0);
            leaf.publish().address()
        });
        Learned { tree }
    }
}

impl<P: Protocol> Default for Learned<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Protocol> std::fmt::Debug for Learned<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learned").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<P: Protocol> Index for Learned<P> {
    type Token = Token;
    type Prepared = Located<Token>;

    /// Starts loading the root's header, which is usually in the cache. The levels below are left to the search itself.
    #[inline(always)]
    fn prefetch(&self, _key: Key<'_>) {
        hither_sync::prefetch_read(self.tree.root.address.load(Ordering::Relaxed) as *const u8);
    }

    #[inline(always)]
    fn get<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Ref {
        self.lookup(key.bytes, resolver)
    }

    const PEEKS: bool = true;

    #[inline(always)]
    fn peek<T: Default>(&self, key: u64, look: impl Look<T>) -> (Ref, T) {
        self.peek_word(key, look)
    }

    fn get_many<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R) {
        assert_eq!(keys.len(), found.len(), "one result per key");
        self.lookup_many(keys, found, resolver);
    }

    fn unreadable_beside<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Ref {
        retry(|| match self.descend(slice_at(key.bytes, 0).0)? {
            root if is_subtree(root.0) => self.tree.try_unreadable_beside(root, key.bytes, resolver),
            _ => Ok(Ref::NONE),
        })
    }

    #[inline]
    fn locate<R: Resolver>(&self, key: Key<'_>, _resolver: &R) -> Located<Token> {
        self.locate_slot(key.bytes)
    }

    #[inline]
    fn install<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict> {
        self.replace(token, key.bytes, old, new, resolver)
    }

    #[inline]
    fn prepare_write<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Located<Token> {
        let located = self.locate_slot(key.bytes);
        if located.candidate.is_some() {
            resolver.prefetch(located.candidate);
        }
        located
    }

    #[inline]
    fn lock_place<R: Resolver>(&self, key: Key<'_>, prepared: Located<Token>, _resolver: &R) -> (Located<Token>, bool) {
        let located = if self.tree.still_holds(prepared.token) { prepared } else { self.locate_slot(key.bytes) };
        // Leaves of subtrees are claimed as in the B+-tree. Learned leaves hold many more keys and are not claimed over
        // a flush.
        let claimed = self.is_in_subtree(located.token) && self.tree.claim_place(located.token);
        (located, claimed)
    }

    #[inline]
    fn install_locked<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, _resolver: &R) {
        self.tree.replace_claimed(&SubtreeOf { index: self, key: key.bytes }, token, key.bytes, old, new);
    }

    #[inline]
    fn unlock_place(&self, token: Token) {
        self.tree.release_claim(token);
    }

    fn any_token(&self) -> Token {
        Token::NOWHERE
    }

    #[inline(always)]
    fn hint(&self, token: Token) -> Option<u64> {
        BTree::<P>::hint_of(token)
    }

    #[inline]
    fn prefetch_hint(&self, hint: u64) {
        self.prefetch_hinted(hint);
    }

    #[inline]
    fn find_at_hint(&self, hint: u64, key: Key<'_>, reference: Ref) -> Option<Hinted> {
        self.find_hinted(hint, key.bytes, reference)
    }

    #[inline]
    fn update_at_hint(&self, hint: u64, key: Key<'_>, old: Ref, new: Ref) -> bool {
        self.replace_at_hint(hint, key.bytes, old, new)
    }

    /// Does nothing: leaves grow one by one.
    fn reserve(&self, _keys: usize) {}

    fn len(&self) -> usize {
        self.tree.keys.sum()
    }

    fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes()
    }

    fn for_each<R: Resolver>(&self, resolver: &R, visit: &mut dyn FnMut(Ref) -> bool) {
        self.visit_all(resolver, visit);
    }

    fn check<R: Resolver>(&self, resolver: &R) -> Result<(), String> {
        self.check_all(resolver)
    }
}

impl<P: Protocol> OrderedIndex for Learned<P> {
    fn scan<R: Resolver>(&self, start: Start<'_>, backward: bool, limit: usize, out: &mut Vec<Ref>, resolver: &R) {
        self.scan_into(start, backward, limit, out, resolver);
    }

    fn bulk_load<R: Resolver>(&self, refs: &mut dyn Iterator<Item = Ref>, resolver: &R) {
        self.load_sorted(refs, resolver);
    }

    fn copy_sorted<R: Resolver>(&self, start: Start<'_>, limit: usize, piece: &mut SortedPiece, resolver: &R) {
        self.copy_into(start, limit, piece, resolver);
    }

    fn load_pieces<R: Resolver>(&self, source: &mut dyn PieceSource, resolver: &R) {
        self.load_known(source, resolver);
    }
}
