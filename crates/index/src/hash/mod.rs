//! The hash index: extendible hashing in the manner of CCEH (Nam et al., FAST '19), in DRAM over the log.
//!
//! A directory indexed by a position derived from the high hash bits ([`directory`]) leads to segments of 32 pairs of
//! cache lines ([`line`]). A line holds seven one-byte tags and seven references; keys are in the log. A key's *path*
//! is its home pair and the following pairs, for as long as the overflow flag is set, up to eight. Inside a pair the
//! home line comes first. Keys never move within a segment.
//!
//! A segment that cannot take a key is replaced by two ([`rebuild`]). Where a split would not help because the hashes
//! are (nearly) equal, it is replaced by a *wide* one: its paths visit all pairs, and it doubles in size as needed.
//! Segments are never merged: a deleted key's slot is reused. Overflow flags stay until the segment is replaced. A
//! segment with many flags that lead on for nothing is rebuilt ([`wear`]).
//!
//! Of a hash, bits 34 to 63 determine the position, 24 to 31 the tag, 7 and up the home pair (five bits in a segment of
//! the smallest class), and bit 0 the home line.
//!
//! # Thread safety
//!
//! Lookups take no lock. A writer waits for one pair at a time, and a writer that holds several (a batch) only tries,
//! so there is no lock order to respect and no deadlock. A split locks the pairs of one segment in order, for ever
//! ("frozen"); two splits of one segment meet at pair 0. A split holds the directory's mutex only to publish. A thread
//! that meets a frozen pair waits until the directory leads elsewhere.
//!
//! # Why lookups are linearizable without looking at the directory again
//!
//! Let a lookup of key k load the directory word and then the entry E = segment S, and read S's lines afterwards.
//!
//! 1. S was k's segment at some moment t inside the lookup: entries are stored only into the newest array, so E is
//!    current, or its array was replaced after the lookup loaded the directory word, and S was k's segment at that
//!    replacement.
//! 2. If S was not frozen when the lookup read its slots, they are current, and the lookup takes effect there.
//! 3. If S was frozen at f, its content has not changed since, and it was k's content from f until its successor was
//!    published at p > f: no writer can change k in between, as all of S is frozen before the first successor is
//!    reachable. The content at max(f, t) is what the lookup read, and t ≤ max(f, t) ≤ the lookup's end. It takes
//!    effect there.
//! 4. The epoch pin keeps S from being recycled before the lookup ends, and the entries that S refers to from being
//!    freed.
//!
//! A second look at the directory could only replace an answer that was right during the call by a newer one. A lookup
//! must *not* keep S from one call to the next (`twins.rs` plants that bug). Writers do need a check: see [`write`].
//!
//! Presence: a slot's reference is visible before its tag, and overflow flags are visible before the slots that they
//! announce (L2, L4). So a lookup that starts after an insert returned finds the key on its path.
//!
//! # Invariants
//!
//! * H1. Each key lies in one slot, on its path, in the segment that the newest directory names for its position.
//! * H2. A block is reused only after a grace period that starts when the directory stops leading to it, and every pair
//!   of it stays frozen until then.
//!
//! # Panics and crashes
//!
//! Nothing here survives a crash. Resolvers are called without a lock held, except for `Resolver::hash`, `is_sound` and
//! `prefetch` during a split or a renewal. If one of these panics, the replacement is undone (pairs thaw) and the index
//! stays usable.

mod arena;
mod check;
mod directory;
mod home;
pub mod image;
#[cfg(test)]
mod image_tests;
mod line;
mod lookup;
mod place;
pub mod protocol;
mod rebuild;
mod spot;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twins;
mod wear;
mod write;

use crate::common::counter::Counter;
use crate::{Conflict, Index, Key, Located, Look, Ref, Resolver};
use arena::Arena;
use directory::{Directory, DirectoryWord, MIN_DEPTH, Segment, empty_segment, position_of};
use hither_sync::{Padded, prefetch_read};
use parking_lot::Mutex;
use protocol::{Protocol, Sound};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use home::{HomeSight, NearHome};
pub use spot::Spot;

/// The hash index.
pub type HashIndex = HashTable<Sound>;

/// The hash index with a choice of protocol steps; use [`HashIndex`].
pub struct HashTable<P: Protocol> {
    /// The newest directory's [`DirectoryWord`]: lookups read nothing else of this struct.
    word: Padded<AtomicU64>,
    counter: Counter<64>,
    /// Owns the newest directory; its lock is needed to store entries.
    directory: Mutex<Directory>,
    arena: Arc<Arena>,
    protocol: PhantomData<P>,
}

/// Where a key was or would go: a segment word and a slot's address, or zero for none. It is never followed unless the
/// directory still leads to that very segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    segment: u64,
    /// Address of the line plus the slot's number; 0 if no slot is known.
    slot: u64,
}

/// The segment that led to a key.
#[derive(Clone, Copy, Debug)]
pub struct Prepared(Segment);

impl<P: Protocol> HashTable<P> {
    /// An empty index: about 17 KiB.
    pub fn new() -> Self {
        let arena = Arc::new(Arena::new());
        let directory = Directory::new(MIN_DEPTH);
        directory.set(0, empty_segment(&arena, 0, 0, false));
        HashTable {
            word: Padded(AtomicU64::new(directory.word().0)),
            counter: Counter::new(),
            directory: Mutex::new(directory),
            arena,
            protocol: PhantomData,
        }
    }

    /// The segment of a hash.
    #[inline(always)]
    fn segment(&self, hash: u64) -> Segment {
        debug_assert!(hither_sync::epoch::is_pinned(), "a replaced directory is unmapped once nobody is pinned");
        // Acquire pairs with the release that publishes a doubled directory.
        let word = DirectoryWord(self.word.load(Ordering::Acquire));
        // SAFETY: the contract asks callers to hold an epoch pin around every call.
        unsafe { word.segment(position_of(hash)) }
    }
}

impl<P: Protocol> Default for HashTable<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Protocol> std::fmt::Debug for HashTable<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashTable").field("len", &self.counter.sum()).field("depth", &self.directory.lock().depth()).finish()
    }
}

impl<P: Protocol> Index for HashTable<P> {
    type Token = Token;
    type Prepared = Prepared;

    #[inline(always)]
    fn prefetch(&self, key: Key<'_>) {
        let home = self.segment(key.hash).home(key.hash).cast::<line::Line>();
        prefetch_read(home.wrapping_add(directory::home_line(key.hash)));
    }

    #[inline(always)]
    fn prefetch_for_write(&self, key: Key<'_>) {
        self.near_home(key.hash);
    }

    #[inline(always)]
    fn prefetch_path<R: Resolver>(&self, key: Key<'_>, resolver: &R) {
        self.peek_further(key, resolver);
    }

    #[inline]
    fn get<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Ref {
        self.lookup(key, resolver)
    }

    const PEEKS: bool = true;

    #[inline(always)]
    fn peek<T: Default>(&self, key: u64, look: impl Look<T>) -> (Ref, T) {
        self.peek_home(key, look)
    }

    fn get_many<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R) {
        assert_eq!(keys.len(), found.len(), "get_many needs one place per key");
        for (keys, found) in keys.chunks(lookup::GROUP).zip(found.chunks_mut(lookup::GROUP)) {
            self.find_group(keys, found, resolver);
        }
    }

    fn name_many<R: Resolver>(&self, keys: &[Key<'_>], refs: &[Ref], names: &mut [bool], _resolver: &R) {
        assert!(keys.len() == refs.len() && keys.len() == names.len(), "name_many needs a reference and a place per key");
        for ((names, key), reference) in names.iter_mut().zip(keys).zip(refs) {
            *names = self.find_reference(key.hash, *reference).is_some();
        }
    }

    #[inline]
    fn locate<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Located<Token> {
        self.find_candidate(key, resolver)
    }

    #[inline]
    fn install<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict> {
        if old.is_some() {
            self.replace(token, key, old, new, resolver)
        } else if new.is_some() {
            self.insert(key, new, resolver)
        } else {
            match self.get(key, resolver) {
                Ref::NONE => Ok(()),
                current => Err(Conflict { current }),
            }
        }
    }

    #[inline(always)]
    fn prepare_write<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Prepared {
        Prepared(self.prepare_place(key, resolver))
    }

    #[inline(always)]
    fn lock_place<R: Resolver>(&self, key: Key<'_>, prepared: Prepared, resolver: &R) -> (Located<Token>, bool) {
        match self.try_lock_place(prepared.0, key, resolver) {
            Some(located) => (located, true),
            None => (self.locate(key, resolver), false),
        }
    }

    #[inline(always)]
    fn install_locked<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) {
        self.finish_place(token, key, old, new, resolver);
    }

    #[inline(always)]
    fn lock_place_now<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> (Located<Token>, bool) {
        match self.try_lock_place_now(key, resolver) {
            Some(located) => (located, true),
            None => (place::by_fields(self.locate(key, resolver)), false),
        }
    }

    #[inline(always)]
    fn install_locked_now(&self, token: Token, key: Key<'_>, old: Ref, new: Ref) -> bool {
        self.try_finish_place(token, key, old, new)
    }

    fn unlock_place(&self, token: Token) {
        self.release_place(token);
    }

    fn any_token(&self) -> Token {
        Token { segment: 0, slot: 0 }
    }

    fn reserve(&self, keys: usize) {
        self.reserve_segments(keys);
    }

    fn len(&self) -> usize {
        self.counter.sum()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.counter.memory_bytes() + self.arena.memory_bytes() + self.directory.lock().memory_bytes()
    }

    fn for_each<R: Resolver>(&self, _resolver: &R, visit: &mut dyn FnMut(Ref) -> bool) {
        self.visit_all(visit);
    }

    fn check<R: Resolver>(&self, resolver: &R) -> Result<(), String> {
        self.check_all(resolver)
    }
}
