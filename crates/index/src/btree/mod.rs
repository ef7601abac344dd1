//! The ordered index: a tree of B+-trees over 8-byte slices of the keys, in the manner of Masstree.
//!
//! # Structure
//!
//! A *layer* is a B+-tree over one slice of the key (see `slice`). Layer 0 covers the first eight bytes. A slot of a
//! leaf holds one of three things:
//!
//! * the reference of a key that ends in this slice;
//! * the reference of the only key that goes on after it (the rest of that key is not stored: the [`Resolver`] knows
//!   it);
//! * the next layer, if two or more keys go on after it.
//!
//! Keys of eight bytes live in layer 0 alone and are verified by their slot, without reading the log.
//!
//! A layer leaves out the slices that all its keys share (`skip`), so two keys with a common prefix of 64 KiB cost one
//! leaf of 128 bytes. A path through a skip is verified against the log once, at its end.
//!
//! # Thread safety
//!
//! Optimistic lock coupling (`version`). Lookups and scans store nothing and take no lock. They wait only while a
//! writer is inside the short section of a node that they read, and start again if that node changed. Writers lock the
//! nodes that they change, at the versions at which they read them; they never wait for a second lock. A single write
//! claims its leaf before the caller's flush and changes it afterwards (`claim`).
//!
//! # Invariants
//!
//! N1–N2 in `node`, L1–L4 in `leaf`, I1–I4 in `inner`, R1–R2 in `radix`, and:
//!
//! * T1. Every layer but the first has at least one key; the root of an inner level has at least two children.
//! * T2. A change of a root changes one word, under the lock of what holds it: the tree's own cell for layer 0, the
//!   leaf above for other layers. After that store the old root gets a new version (or becomes obsolete), and so does a
//!   node that becomes the root, unless it is fresh. Because of this, readers of layer 0 need not check the cell's
//!   version.
//! * T3. A leaf's range of slices only changes under its lock, with a new version. So a writer that locks a leaf at
//!   the version of its search inserts in the right place.
//! * T4. Only leaves are claimed.
//!
//! # Crash
//!
//! Nothing survives; recovery or [`OrderedIndex::bulk_load`] builds the tree anew.
//!
//! [`Resolver`]: crate::Resolver

mod balance;
pub(crate) mod bulk;
pub(crate) mod check;
mod claim;
pub(crate) mod cursor;
pub(crate) mod hint;
mod inner;
mod leaf;
pub(crate) mod many;
mod moves;
mod near;
pub mod protocol;
mod radix;
pub(crate) mod read;
mod seek;
mod shrink;
mod split;
pub(crate) mod spot;
mod witness;
mod words;
mod write;

pub use near::{LeafSight, NearLeaf};

#[cfg(test)]
mod tests;

use crate::common::arena::Arena;
use crate::common::counter::Counter;
use crate::common::version::{Version, retry};
use crate::{Conflict, Hinted, Index, Key, Located, Look, OrderedIndex, PieceSource, Ref, Resolver, SortedPiece, Start};
use hither_sync::Padded;
use protocol::{Protocol, Sound};
use radix::Radix;
use spot::Whole;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The ordered index. See the head of the module.
pub type BTreeIndex = BTree<Sound>;

/// The ordered index with the steps of its protocol exposed to tests.
pub struct BTree<P: Protocol> {
    /// The root of layer 0.
    pub(crate) root: Padded<RootCell>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) keys: Counter<31>,
    protocol: PhantomData<P>,
}

/// The cell of layer 0's root (T2).
pub(crate) struct RootCell {
    pub(crate) version: Version,
    pub(crate) address: AtomicU64,
    radix: Radix,
}

/// Where a key is or would go. It holds only numbers and is harmless at any age.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    pub(crate) leaf: u32,
    /// The layer's number, with the flags: if no layer on the way skips slices, this layer's slices begin at eight
    /// times it.
    pub(crate) place: u16,
    pub(crate) position: u16,
    pub(crate) version: u64,
}

impl Token {
    /// The position holds the key's slot.
    pub(crate) const FOUND: u16 = 1 << 14;
    /// No layer on the way skips slices, and the slot (if found) holds the whole key.
    pub(crate) const EXACT: u16 = 1 << 15;
    /// A token that leads nowhere.
    pub(crate) const NOWHERE: Token = Token { leaf: u32::MAX, place: 0, position: 0, version: 0 };

    #[inline(always)]
    pub(crate) fn is_found(self) -> bool {
        self.place & Self::FOUND != 0
    }

    #[inline(always)]
    pub(crate) fn is_exact(self) -> bool {
        self.place & Self::EXACT != 0
    }

    /// The byte at which the layer's slices begin.
    #[inline(always)]
    fn depth(self) -> usize {
        usize::from(self.place & !(Self::FOUND | Self::EXACT)) * 8
    }
}

impl<P: Protocol> BTree<P> {
    /// An empty index. Touches one page.
    pub fn new() -> Self {
        Self::over(|arena| arena.allocate(0).publish().address(), Radix::new())
    }

    /// The trees below the root that `make` returns, which is a node of another index. They have no radix table.
    pub(crate) fn below(make: impl FnOnce(&Arena) -> u64) -> Self {
        Self::over(make, Radix::unused())
    }

    fn over(make: impl FnOnce(&Arena) -> u64, radix: Radix) -> Self {
        let arena = Arena::new();
        let root = Padded(RootCell { version: Version::new(), address: AtomicU64::new(make(&arena)), radix });
        BTree { root, arena, keys: Counter::new(), protocol: PhantomData }
    }
}

impl<P: Protocol> Default for BTree<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Protocol> std::fmt::Debug for BTree<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BTree").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<P: Protocol> Index for BTree<P> {
    type Token = Token;
    type Prepared = Located<Token>;

    /// Reads the root's cell and starts loading the root's first line. The levels below are left to the search itself.
    #[inline(always)]
    fn prefetch(&self, _key: Key<'_>) {
        hither_sync::prefetch_read(self.root.address.load(Ordering::Relaxed) as *const u8);
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
        retry(|| self.try_unreadable_beside(self.top()?, key.bytes, resolver))
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
        let located = if self.still_holds(prepared.token) { prepared } else { self.locate_slot(key.bytes) };
        let claimed = self.claim_place(located.token);
        (located, claimed)
    }

    #[inline]
    fn install_locked<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, _resolver: &R) {
        self.replace_claimed(&Whole(self), token, key.bytes, old, new);
    }

    #[inline]
    fn unlock_place(&self, token: Token) {
        self.release_claim(token);
    }

    fn any_token(&self) -> Token {
        Token::NOWHERE
    }

    #[inline(always)]
    fn hint(&self, token: Token) -> Option<u64> {
        Self::hint_of(token)
    }

    #[inline(always)]
    fn prefetch_hint(&self, hint: u64) {
        self.prefetch_hinted(hint);
    }

    #[inline]
    fn find_at_hint(&self, hint: u64, _key: Key<'_>, reference: Ref) -> Option<Hinted> {
        self.find_hinted(hint, reference)
    }

    #[inline]
    fn update_at_hint(&self, hint: u64, _key: Key<'_>, old: Ref, new: Ref) -> bool {
        self.replace_at_hint(hint, old, new)
    }

    /// Does nothing: a tree grows leaf by leaf.
    fn reserve(&self, _keys: usize) {}

    fn len(&self) -> usize {
        self.keys.sum()
    }

    fn memory_bytes(&self) -> usize {
        self.arena.memory_bytes() + self.keys.memory_bytes() + self.root.radix.memory_bytes() + size_of::<Self>()
    }

    fn for_each<R: Resolver>(&self, resolver: &R, visit: &mut dyn FnMut(Ref) -> bool) {
        self.visit_all(resolver, visit);
    }

    fn check<R: Resolver>(&self, resolver: &R) -> Result<(), String> {
        self.check_all(resolver)
    }
}

impl<P: Protocol> OrderedIndex for BTree<P> {
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
        self.load_keys(&Whole(self), &mut |piece| source.next_piece(piece), resolver);
    }

    fn load_words<R: Resolver>(&self, runs: &mut [&mut dyn PieceSource], _resolver: &R) {
        self.load_runs(runs);
    }
}
