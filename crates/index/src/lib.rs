//! Volatile indexes over the log: they map a key to the reference of its newest entry.
//!
//! An index holds no values and need not hold whole keys. It may keep a fingerprint or a slice of the key beside the
//! reference and ask a [`Resolver`] for the rest, which reads it from the log. The engine joins the two; this crate
//! does not know the log.
//!
//! # Contract shared by all families
//!
//! * **Thread safety.** Every method takes `&self`. Neither lookups nor scans take a lock. Those of the trees wait
//!   while a writer is inside the short critical section of a node that they read. [`Index::for_each`] of a hash index,
//!   and every other operation that walks its segments, takes the directory's lock briefly for each segment.
//! * **Writers of one key are serialised by the caller** (the engine's key latch). Writers of different keys run
//!   concurrently. A cleaner may install without the latch: that is why [`Index::install`] compares with the old
//!   reference.
//! * **Reclamation.** Callers hold an epoch pin (`hither_sync::epoch`) from before the call until they have finished
//!   with every reference and token it returned. Nodes that a structure change replaced are recycled only after a grace
//!   period. Node memory is type-stable: it never returns to the operating system while the index lives, so following a
//!   stale hint is harmless.
//! * **Linearizability.** A lookup that starts after an `install` returned sees its effect.
//! * **Damage.** An entry that is not sound ([`Resolver::is_sound`]) never displaces another key
//!   ([`Index::unreadable_beside`]) and never causes a panic. A lookup of its key still reaches it, and so does a scan
//!   that starts there.
//! * **Crash.** Nothing here survives a crash; recovery rebuilds an index from the log.

pub mod btree;
mod common;
pub mod conformance;
pub mod hash;
pub mod learned;
pub mod sorted;

pub use sorted::{PieceSource, SortedPiece};

/// A reference to a log entry (NStore's `v_addr`): size tag 16 bits, node 4 bits, offset in the node's pool 44 bits in
/// 8-byte units. Zero means "no entry"; an index must not interpret the bits beyond that and [`Ref::has_size`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Ref(pub u64);

impl Ref {
    /// The absent reference.
    pub const NONE: Ref = Ref(0);

    /// Whether this is the absent reference.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether there is a size tag. [`Ref::NONE`], entries too large for the tag and addresses in memory have
    /// none.
    #[inline(always)]
    pub const fn has_size(self) -> bool {
        self.0 >> 48 != 0
    }

    /// Whether this refers to an entry.
    #[inline(always)]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}

impl std::fmt::Debug for Ref {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ref({:#018x})", self.0)
    }
}

/// A key with its hash, computed once per operation.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// The key's bytes: 1 to 65,536.
    pub bytes: &'a [u8],
    /// Its seeded 64-bit hash ([`Hasher::hash`]).
    pub hash: u64,
}

/// The hash function of one store: xxh3 (for 8-byte keys, [`Hasher::hash_word`]) with a seed drawn at open, so that a
/// hostile client cannot aim at one bucket.
/// The seed is written only into a checkpoint of the indexes, which is as private as the store's data.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    seed: u64,
    /// Masks for the word and for the result of the first round, derived from the seed once.
    mixed: [u64; 2],
}

impl Hasher {
    /// A hasher with this seed.
    pub const fn new(seed: u64) -> Self {
        Hasher { seed, mixed: [seed ^ 0x9e37_79b9_7f4a_7c15, seed.rotate_left(32)] }
    }

    /// The seed, for files that only the store itself reads.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The hash of `bytes`.
    #[inline(always)]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        if let Ok(word) = <[u8; 8]>::try_from(bytes) {
            return self.hash_word(u64::from_ne_bytes(word));
        }
        xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.seed)
    }

    /// The hash of 8 bytes, given as a native-endian word: two rounds of multiply and fold, keyed by the seed, for full
    /// avalanche.
    #[inline(always)]
    pub fn hash_word(&self, word: u64) -> u64 {
        let a = u128::from(word ^ self.mixed[0]) * 0xa076_1d64_78bd_642f_u128;
        let a = (a as u64) ^ ((a >> 64) as u64);
        let b = u128::from(a ^ self.mixed[1]) * 0xe703_7ed1_a0b4_28db_u128;
        (b as u64) ^ ((b >> 64) as u64)
    }

    /// `bytes` with their hash.
    #[inline(always)]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, hash: self.hash(bytes) }
    }
}

/// How an index reads the key that a reference stands for.
///
/// All methods may touch slow media. They are called under the caller's epoch pin with references that the index
/// holds, so the entry is readable for as long as the pin lives.
pub trait Resolver {
    /// Hints that the entry at `reference` will be read soon. Must be harmless for any word: an index may call it
    /// before it knows whether it read the word consistently.
    fn prefetch(&self, reference: Ref);

    /// The key of the entry at `reference`.
    fn key(&self, reference: Ref) -> &[u8];

    /// Whether the entry at `reference` holds `key`. The default compares [`Resolver::key`].
    #[inline(always)]
    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        self.key(reference) == key
    }

    /// The hash of the key of the entry at `reference`; splits need it.
    fn hash(&self, reference: Ref) -> u64;

    /// Returns whether [`Resolver::key`] is certain to return the bytes that were written. An index asks before it uses
    /// the key to decide where other keys belong. The default returns true.
    #[inline(always)]
    fn is_sound(&self, _reference: Ref) -> bool {
        true
    }

    /// Returns whether [`Resolver::is_sound`] may be slow because it has to verify entries. A caller with many entries
    /// to check then asks about them before it makes other threads wait.
    #[inline(always)]
    fn doubts(&self) -> bool {
        false
    }

    /// The key of the entry at `reference`, if the entry is sound.
    #[inline(always)]
    fn sound_key(&self, reference: Ref) -> Option<&[u8]> {
        self.is_sound(reference).then(|| self.key(reference))
    }
}

/// What [`Index::locate`] found.
#[derive(Clone, Copy, Debug)]
pub struct Located<T> {
    /// Where the key is or would go; a hint for [`Index::install`].
    pub token: T,
    /// The entry that may be the key's newest, or [`Ref::NONE`] if the key is surely absent.
    pub candidate: Ref,
    /// False if only a fingerprint matched. The caller must then ask `Resolver::matches(candidate, key)` before it
    /// treats the key as present; if that returns false, the key is absent. (This lets a writer read the old entry in
    /// the shadow of its flush.) An index returns an unverified candidate only if it is the only possible one.
    pub verified: bool,
}

/// Where [`Index::find_at_hint`] found a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hinted {
    /// A hint that leads to the reference now.
    pub hint: u64,
    /// Whether the reference had moved from the hinted leaf to the next one, where splits move slots to.
    pub sibling: bool,
}

/// Why [`Index::install`] did not change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The reference that the key has now ([`Ref::NONE`]: absent).
    pub current: Ref,
}

/// A question about an entry, for [`Index::peek`]. It is a trait because a closure that is called from several places
/// is inlined into none of them, which would add a call to each lookup.
pub trait Look<T> {
    /// Returns the store's hash of an 8-byte key, given as a native-endian word. The looker provides it so that one
    /// pointer leads to everything that a lookup needs.
    fn hash(&self, key: u64) -> u64;

    /// Returns the answer if the entry at `found` is the put of `key` (8 bytes as a native-endian word), and `None`
    /// otherwise. `found` may be any entry of the index. It may also be a word [without size](Ref::has_size), which
    /// need not be a reference; the answer is `None` then, too.
    fn look(self, found: Ref, key: u64) -> Option<T>;
}

impl<T, F: FnOnce(Ref, u64) -> Option<T>> Look<T> for (Hasher, F) {
    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        self.0.hash_word(key)
    }

    #[inline(always)]
    fn look(self, found: Ref, key: u64) -> Option<T> {
        (self.1)(found, key)
    }
}

/// A concurrent volatile index.
pub trait Index: Send + Sync {
    /// A place in the index. Stale tokens are harmless: `install` then searches anew.
    type Token: Copy + std::fmt::Debug + Send;

    /// What [`Index::prepare_write`] found, to be passed to [`Index::lock_place`] of the same key under the same pin.
    /// It may be out of date by then, but it must not stem from before that pin.
    type Prepared: Copy;

    /// Starts loading the cache lines that a lookup of `key` touches first.
    fn prefetch(&self, key: Key<'_>);

    /// Like [`Index::prefetch`], for a write: the lines are wanted exclusively.
    #[inline(always)]
    fn prefetch_for_write(&self, key: Key<'_>) {
        self.prefetch(key);
    }

    /// Starts loading what [`Index::locate`] and a write may look at, as far as the lines that
    /// [`Index::prefetch_for_write`] requested show it. Worthwhile between the two if there is other work to do: for
    /// writes of many keys. Call under the pin.
    #[inline(always)]
    fn prefetch_path<R: Resolver>(&self, _key: Key<'_>, _resolver: &R) {}

    /// Returns the newest reference of `key`, verified, or `NONE`.
    fn get<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Ref;

    /// Whether [`Index::peek`] can find anything.
    const PEEKS: bool = false;

    /// The quick half of [`Index::get`], for an 8-byte key given as a native-endian word. Asks `look` about the
    /// reference that most likely belongs to the key's entry. `look` returns `Some` only if it does; `peek` then
    /// returns the reference with that answer. [`Ref::NONE`] is inconclusive: ask [`Index::get`] then.
    #[inline(always)]
    fn peek<T: Default>(&self, _key: u64, _look: impl Look<T>) -> (Ref, T) {
        (Ref::NONE, T::default())
    }

    /// Looks up many keys at once with overlapping cache misses: `found[i]` becomes the *verified* reference of
    /// `keys[i]`. Panics if the slices differ in length.
    fn get_many<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R);

    /// Finds out which references the index names: sets `names[i]` to whether `refs[i]`, which must be an entry of
    /// `keys[i]`, is that key's newest. For a collector, which has the entries and has requested their places before
    /// ([`Index::prefetch_for_write`]). Where references suffice, the log is not read. Panics if the slices differ in
    /// length.
    fn name_many<R: Resolver>(&self, keys: &[Key<'_>], refs: &[Ref], names: &mut [bool], resolver: &R) {
        assert!(keys.len() == refs.len() && keys.len() == names.len(), "name_many needs a reference and a place per key");
        let mut found = vec![Ref::NONE; keys.len()];
        self.get_many(keys, &mut found, resolver);
        for ((names, found), reference) in names.iter_mut().zip(found).zip(refs) {
            *names = found == *reference;
        }
    }

    /// Returns an entry that keeps `key` from being inserted, or `NONE`. The key of such an entry would have to be read
    /// to decide where `key` belongs, but the entry is not sound.
    ///
    /// Where entries may be damaged, ask before [`Index::install`] of a new key. `install` finds a place in any case,
    /// but afterwards the unreadable entry can no longer be found.
    fn unreadable_beside<R: Resolver>(&self, _key: Key<'_>, _resolver: &R) -> Ref {
        Ref::NONE
    }

    /// Finds where `key` is or would go, for a write that follows.
    fn locate<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Located<Self::Token>;

    /// Replaces `old` by `new` for `key`, atomically: `old = NONE` inserts, `new = NONE` removes. `token` comes from
    /// [`Index::locate`] of the same key (or [`Index::any_token`]). Fails without effect if the key's reference is not
    /// `old`.
    fn install<R: Resolver>(&self, token: Self::Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict>;

    /// Looks for the place of a write that follows, without the key's latch, and starts loading what the write will
    /// touch: the place, and the entry that it seems to replace. Taking the latch waits for the flush of the thread's
    /// previous write; this method need not.
    fn prepare_write<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Self::Prepared;

    /// Like [`Index::locate`], and may keep the place locked. The flag reports whether it is locked. If it is, the
    /// caller must call [`Index::install_locked`] or [`Index::unlock_place`] exactly once, on the same thread. A single
    /// write locks *before* it flushes its entry, so that no locked instruction, which would wait for the flush, stands
    /// between its fence and the next write's prefetches.
    ///
    /// `prepared` comes from [`Index::prepare_write`] of the same key under the same pin. While the place is locked,
    /// the holder must not call the index for another key: it might wait for itself.
    fn lock_place<R: Resolver>(&self, key: Key<'_>, prepared: Self::Prepared, resolver: &R) -> (Located<Self::Token>, bool);

    /// Ends [`Index::lock_place`] by replacing `old`, which is the verified candidate or `NONE`, with `new`.
    fn install_locked<R: Resolver>(&self, _token: Self::Token, _key: Key<'_>, _old: Ref, _new: Ref, _resolver: &R) {
        unreachable!("an index that locks places implements this");
    }

    /// Like [`Index::lock_place`] for writers of several keys. It never waits for a lock, so the caller may hold many
    /// places, taken in any order. A place that cannot be had at once is returned unlocked, for example one that the
    /// caller itself holds for another key. While the caller holds any place, the only calls it may make that change an
    /// index are [`Index::install_locked_now`] and [`Index::unlock_place`].
    fn lock_place_now<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> (Located<Self::Token>, bool) {
        (self.locate(key, resolver), false)
    }

    /// Ends [`Index::lock_place_now`] as [`Index::install_locked`] ends a single lock, without waiting. If that is
    /// impossible, it unlocks the place, changes nothing and returns false; the caller then uses [`Index::install`]
    /// once it holds no place.
    fn install_locked_now(&self, _token: Self::Token, _key: Key<'_>, _old: Ref, _new: Ref) -> bool {
        unreachable!("an index that locks places implements this");
    }

    /// Ends [`Index::lock_place`] or [`Index::lock_place_now`] without a change.
    fn unlock_place(&self, _token: Self::Token) {
        unreachable!("an index that locks places implements this");
    }

    /// Returns a token that makes `install` search by itself.
    fn any_token(&self) -> Self::Token;

    /// Returns a 48-bit hint (leaf id and slot) that leads a cleaner to the place behind `token`, or `None` if the
    /// family has no hints.
    fn hint(&self, _token: Self::Token) -> Option<u64> {
        None
    }

    /// Starts loading what [`Index::find_at_hint`] looks at first. Harmless for any word. Call under the pin.
    #[inline(always)]
    fn prefetch_hint(&self, _hint: u64) {}

    /// Looks for `reference`, which must be an entry of `key`, where a hint of unknown age leads, and in the leaf
    /// beside it, without a search from the root. If the reference is found, it is the key's newest, and the result
    /// holds its present place. `None` is inconclusive: the reference may be elsewhere.
    ///
    /// Any word is allowed as a hint, even one of another index. What it leads to is examined only as far as it is a
    /// live leaf of this index.
    fn find_at_hint(&self, _hint: u64, _key: Key<'_>, _reference: Ref) -> Option<Hinted> {
        None
    }

    /// Like [`Index::install`] of an update, but by a hint of unknown age, which is followed as in
    /// [`Index::find_at_hint`]. `old` must be an entry of `key`. Returns whether it was replaced; if not, the caller
    /// installs normally.
    fn update_at_hint(&self, _hint: u64, _key: Key<'_>, _old: Ref, _new: Ref) -> bool {
        false
    }

    /// Prepares for `keys` keys in total, so that a bulk load or recovery does not split step by step. Must not run
    /// beside other threads.
    fn reserve(&self, keys: usize);

    /// Number of keys. May be off by operations under way; exact when no writer is active. O(threads) or O(nodes).
    fn len(&self) -> usize;

    /// Whether [`Index::len`] is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of DRAM held, free lists and spare arena space included.
    fn memory_bytes(&self) -> usize;

    /// Calls `visit` for every reference in unspecified order until it returns false. Every key that is present during
    /// the whole call is visited at least once. Concurrent changes may or may not be seen, and a key that moves may be
    /// seen twice.
    fn for_each<R: Resolver>(&self, resolver: &R, visit: &mut dyn FnMut(Ref) -> bool);

    /// Checks every structural invariant; for tests and `hither check`. An error says what is wrong and where. Call
    /// with no writer active.
    fn check<R: Resolver>(&self, resolver: &R) -> Result<(), String>;
}

/// Where an ordered scan starts.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// The first key (or the last one, backward).
    Edge,
    /// The first key ≥ this one (backward: the last key ≤ it).
    At(&'a [u8]),
    /// The first key > this one (backward: the last key < it).
    After(&'a [u8]),
}

/// An index with keys in bytewise order.
pub trait OrderedIndex: Index {
    /// Appends up to `limit` references of keys in order from `start` to `out`, forward or backward. Fewer than `limit`
    /// mean that the end was reached.
    ///
    /// Each leaf (or a run of a large one) is read atomically. The whole is not a snapshot (see the engine's
    /// snapshots), but every key that is present throughout is returned exactly once, in strictly monotonic order.
    fn scan<R: Resolver>(&self, start: Start<'_>, backward: bool, limit: usize, out: &mut Vec<Ref>, resolver: &R);

    /// Builds the index from references in strictly ascending key order. The index must be empty and idle.
    fn bulk_load<R: Resolver>(&self, refs: &mut dyn Iterator<Item = Ref>, resolver: &R);

    /// Appends up to `limit` keys with their references, in order from `start`, to `piece`. Fewer mean that the end was
    /// reached. The guarantees are those of [`OrderedIndex::scan`]. Keys that the index holds whole are not read from
    /// the log.
    fn copy_sorted<R: Resolver>(&self, start: Start<'_>, limit: usize, piece: &mut SortedPiece, resolver: &R);

    /// Like [`OrderedIndex::bulk_load`], from keys that are at hand, so that the log is hardly read.
    fn load_pieces<R: Resolver>(&self, source: &mut dyn PieceSource, resolver: &R);

    /// Like [`OrderedIndex::load_pieces`], from several runs of 8-byte keys; each run lies wholly before the next one.
    /// An index that supports it builds them in parallel, one thread per run.
    fn load_words<R: Resolver>(&self, runs: &mut [&mut dyn PieceSource], resolver: &R) {
        let mut runs = runs.iter_mut();
        let mut current = runs.next();
        let mut chained = |piece: &mut SortedPiece| {
            while let Some(run) = &mut current {
                if run.next_piece(piece) {
                    return true;
                }
                current = runs.next();
            }
            false
        };
        self.load_pieces(&mut chained, resolver);
    }
}
