//! The places that writes of the lean path go to: what they need of an index, in addition to [`Index`].
//!
//! Thread safety: a sight is a hint, taken without a lock; [`LeanIndex::lock_seen`] compares it under the place's lock.

use super::entries::Lean;
use hither_index::btree::{BTreeIndex, LeafSight, NearLeaf};
use hither_index::hash::{HashIndex, HomeSight, NearHome};
use hither_index::{Index, Key, Ref, Resolver};

/// An index in which a place is looked up before it is locked, and then only compared.
///
/// A sight belongs to one key, and holds under the epoch pin under which it was taken. Between [`LeanIndex::lock_seen`]
/// and the end of the lock (by [`LeanIndex::replace_seen`], [`LeanIndex::insert_seen`] or [`Index::unlock_place`])
/// nothing may panic or wait for another writer.
pub(super) trait LeanIndex: Index {
    /// Whether the index keeps keys in order. If so, the entry that is seen certainly has the key, and places have
    /// hints for shortcuts ([`Index::hint`]).
    const ORDERED: bool;

    /// What was seen of a place.
    type Sight<'a>: Copy
    where
        Self: 'a;

    /// The way to a key's place, as far as it is known without looking at the place. Holds as long as a sight does.
    type Near<'a>: Copy
    where
        Self: 'a;

    /// Starts loading the place of a key (given with its hash), as far as the place is known without looking at it.
    fn near<L: Lean>(&self, key: (L, u64)) -> Self::Near<'_>;

    /// Looks where a key (given with its hash) is or goes, but not at the entry that likely has the key: see
    /// [`HashIndex::sight_home`]. `near` was found for the key under the same pin. Returns `None` if a write there is
    /// unusual.
    fn sight<'a, R: Resolver, L: Lean>(&'a self, near: Self::Near<'a>, key: (L, u64), resolver: &R) -> Option<Self::Sight<'a>>;

    /// The entry that likely has the key; none if the key is surely absent.
    fn seen(sight: &Self::Sight<'_>) -> Ref;

    /// Locks the place if it is still as it was seen. In every other case returns false, with nothing locked.
    fn lock_seen(&self, sight: &Self::Sight<'_>, hash: u64) -> bool;

    /// Puts `new` (none: removes the key) in place of the entry that was seen, which had the key, and ends the lock.
    fn replace_seen<R: Resolver, L: Lean>(&self, sight: &Self::Sight<'_>, key: (L, u64), new: Ref, resolver: &R);

    /// Installs `new` for a key that was absent, and ends the lock. If there is no room, returns false and changes
    /// nothing: install it without a sight then.
    fn insert_seen<R: Resolver>(&self, sight: &Self::Sight<'_>, key: Key<'_>, new: Ref, resolver: &R) -> bool;

    /// The locked place, for a caller that ends the lock in another way.
    fn token_of(&self, sight: &Self::Sight<'_>) -> Self::Token;
}

impl LeanIndex for HashIndex {
    const ORDERED: bool = false;
    type Sight<'a> = HomeSight<'a>;
    type Near<'a> = NearHome<'a>;

    #[inline(always)]
    fn near<L: Lean>(&self, (_, hash): (L, u64)) -> NearHome<'_> {
        self.near_home(hash)
    }

    #[inline(always)]
    fn sight<'a, R: Resolver, L: Lean>(&'a self, near: NearHome<'a>, (_, hash): (L, u64), _resolver: &R) -> Option<HomeSight<'a>> {
        self.sight_home(near, hash)
    }

    #[inline(always)]
    fn seen(sight: &HomeSight<'_>) -> Ref {
        sight.seen
    }

    #[inline(always)]
    fn lock_seen(&self, sight: &HomeSight<'_>, hash: u64) -> bool {
        self.lock_home(sight, hash)
    }

    #[inline(always)]
    fn replace_seen<R: Resolver, L: Lean>(&self, sight: &HomeSight<'_>, (what, _): (L, u64), new: Ref, _resolver: &R) {
        // Decided by the kind of the write, which the compiler knows.
        if what.puts() {
            self.replace_home(sight, new);
        } else {
            self.remove_home(sight);
        }
    }

    #[inline(always)]
    fn insert_seen<R: Resolver>(&self, sight: &HomeSight<'_>, key: Key<'_>, new: Ref, resolver: &R) -> bool {
        let put = self.insert_home(sight, key.hash, new);
        if put {
            self.look_for_wear(key.hash, new, resolver);
        }
        put
    }

    #[inline(always)]
    fn token_of(&self, sight: &HomeSight<'_>) -> Self::Token {
        self.home_token(sight)
    }
}

impl LeanIndex for BTreeIndex {
    const ORDERED: bool = true;
    type Sight<'a> = LeafSight<'a>;
    type Near<'a> = NearLeaf<'a>;

    #[inline(always)]
    fn near<L: Lean>(&self, (what, _): (L, u64)) -> NearLeaf<'_> {
        match what.word() {
            Some(word) => self.near_leaf(word),
            None => NearLeaf::NONE,
        }
    }

    #[inline(always)]
    fn sight<'a, R: Resolver, L: Lean>(&'a self, near: NearLeaf<'a>, (what, _): (L, u64), _resolver: &R) -> Option<LeafSight<'a>> {
        // What the leaf alone does not prove cannot be claimed. (No closure for a word: it would not be inlined.)
        match what.word() {
            Some(word) => self.sight_word(near, word),
            None => what.with_key(|key| self.sight_key(key)),
        }
    }

    #[inline(always)]
    fn seen(sight: &LeafSight<'_>) -> Ref {
        sight.seen
    }

    #[inline(always)]
    fn lock_seen(&self, sight: &LeafSight<'_>, _hash: u64) -> bool {
        self.claim_seen(sight)
    }

    #[inline(always)]
    fn replace_seen<R: Resolver, L: Lean>(&self, sight: &LeafSight<'_>, (what, _): (L, u64), new: Ref, _resolver: &R) {
        what.with_key(|key| self.replace_seen(sight, key, new));
    }

    #[inline(always)]
    fn insert_seen<R: Resolver>(&self, sight: &LeafSight<'_>, key: Key<'_>, new: Ref, _resolver: &R) -> bool {
        self.replace_seen(sight, key.bytes, new);
        true
    }

    #[inline(always)]
    fn token_of(&self, sight: &LeafSight<'_>) -> Self::Token {
        sight.token
    }
}
