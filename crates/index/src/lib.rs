//! Volatile indexes over the log: from a key to the reference of its newest entry.
//!
//! An index holds no value and need not hold whole keys: it may keep a fingerprint or a slice of the key beside
//! the reference and ask a [`Resolver`] for the rest, which reads it from the log. The engine joins the two; this crate knows no log.
//!
//! # Contract shared by all families
//!
//! * **Thread safety.** Every method takes `&self`. Lookups take no lock, nor do scans; those of the trees wait while a writer is inside the short section of a node that they read. [`Index::for_each`] of a
//!   hash index, and what else goes through its segments, takes the lock of its directory for a look at each of them.
//! * **Writers of one key are serialised by the caller** (the engine's key latch). Writers of different keys run
//!   concurrently. A cleaner may install without the latch: that is why [`Index::install`] compares with the old reference.
//! * **Reclamation.** Callers hold an epoch pin (`hither_sync::epoch`) from before the call until they have finished with every
//!   reference and token it returned. Nodes that a structure change replaced are recycled only after a grace period, and
//!   node memory is type-stable: it never returns to the operating system while the index lives, so that following a
//!   stale hint is harmless.
//! * **Linearizability.** A lookup that starts after an `install` returned sees its effect.
//! * **Damage.** An entry that is not sound ([`Resolver::is_sound`]) costs no other key its place ([`Index::unreadable_beside`]), and nothing panics because of it.
//!   Who looks for its key meets it, and so does a scan that begins there.
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

    /// Whether there is a size tag. [`Ref::NONE`] and entries that are too large for it have none, nor has an address in memory.
    #[inline(always)]
    pub const fn has_size(self) -> bool {
        self.0 >> 48 != 0
    }

    /// Whether this stands for an entry.
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

/// The hash function of one store: xxh3 with a seed drawn at open, so that a hostile client cannot aim at one bucket.
/// Written only into a checkpoint of the indexes, which is as private as the store's data.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    seed: u64,
    /// What a word and the first round's result are mixed with, made of the seed once.
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

    /// The hash of 8 bytes, as they lie in memory: two rounds of multiply and fold, keyed by the seed, for full avalanche.
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
    /// Hints that the entry at `reference` will be read soon. Harmless for any word: an index asks before it knows whether what it read was whole.
    fn prefetch(&self, reference: Ref);

    /// The key of the entry at `reference`.
    fn key(&self, reference: Ref) -> &[u8];

    /// Whether the entry at `reference` holds `key`. The default compares [`Resolver::key`].
    #[inline(always)]
    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        self.key(reference) == key
    }

    /// The hash of the key of the entry at `reference` (for splits).
    fn hash(&self, reference: Ref) -> u64;

    /// Whether [`Resolver::key`] surely is what was written: asked before it decides where other keys belong. The default believes it.
    #[inline(always)]
    fn is_sound(&self, _reference: Ref) -> bool {
        true
    }

    /// Whether [`Resolver::is_sound`] may take long, since it has to look: who asks about much does so before others wait for it.
    #[inline(always)]
    fn doubts(&self) -> bool {
        false
    }

    /// The key of the entry at `reference`, if that is sound.
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
    /// False if only a fingerprint matched: the caller must ask `Resolver::matches(candidate, key)` before it treats
    /// the key as present, and if that fails, the key is absent. (This lets a writer read the old entry in the
    /// shadow of its flush.) An index returns an unverified candidate only if it is the only possible one.
    pub verified: bool,
}

/// Where [`Index::find_at_hint`] found a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hinted {
    /// A hint that leads to it now.
    pub hint: u64,
    /// It was not in the hinted leaf any more but in the one behind, where splits move slots to.
    pub sibling: bool,
}

/// Why [`Index::install`] did not change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The reference that the key has now ([`Ref::NONE`]: absent).
    pub current: Ref,
}

/// Asks about an entry: see [`Index::peek`]. A trait, since a closure that is called from several places is no part of any, and each lookup is the longer by a call.
pub trait Look<T> {
    /// The hash of a key of 8 bytes, as they lie in memory, by the store's hasher. Asked of who looks, so that one pointer leads to all that a lookup needs.
    fn hash(&self, key: u64) -> u64;

    /// What is asked of the entry at `found` if it is the put of `key`, 8 bytes as they lie in memory; `None` of all else. `found` may be any entry of the index, or
    /// a word [without size](Ref::has_size): that is `None`, too, for it need be no reference.
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

    /// What [`Index::prepare_write`] found: for [`Index::lock_place`] of the same key, under the same pin. Then it may be out of date, not before.
    type Prepared: Copy;

    /// Starts loading the cache lines that a lookup of `key` touches first.
    fn prefetch(&self, key: Key<'_>);

    /// Like [`Index::prefetch`], for a write: the lines are wanted exclusively.
    #[inline(always)]
    fn prefetch_for_write(&self, key: Key<'_>) {
        self.prefetch(key);
    }

    /// Starts loading what [`Index::locate`] and a write may look at, as far as the lines that [`Index::prefetch_for_write`] asked for tell.
    /// Worth while between them if there is other work to do: for writes of many keys. Call under the pin.
    #[inline(always)]
    fn prefetch_path<R: Resolver>(&self, _key: Key<'_>, _resolver: &R) {}

    /// The newest reference of `key`, verified, or `NONE`.
    fn get<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Ref;

    /// Whether [`Index::peek`] ever answers.
    const PEEKS: bool = false;

    /// The quick half of a [`Index::get`], for a key of 8 bytes, given as they lie in memory: asks `look` about what most likely
    /// stands for the entry that holds it. `look` says `Some` only if it does; the reference is returned with that. [`Ref::NONE`] says nothing: then ask [`Index::get`].
    #[inline(always)]
    fn peek<T: Default>(&self, _key: u64, _look: impl Look<T>) -> (Ref, T) {
        (Ref::NONE, T::default())
    }

    /// Looks up many keys at once with overlapping cache misses: `found[i]` becomes the *verified* reference of `keys[i]`.
    /// Panics if the slices differ in length.
    fn get_many<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R);

    /// Which references the index names: `names[i]` becomes whether `refs[i]`, which must be an entry of `keys[i]`, is that key's newest. For a collector, which has the
    /// entries and asked for their places before ([`Index::prefetch_for_write`]): where references suffice, the log is not read. Panics if the slices differ in length.
    fn name_many<R: Resolver>(&self, keys: &[Key<'_>], refs: &[Ref], names: &mut [bool], resolver: &R) {
        assert!(keys.len() == refs.len() && keys.len() == names.len(), "name_many needs a reference and a place per key");
        let mut found = vec![Ref::NONE; keys.len()];
        self.get_many(keys, &mut found, resolver);
        for ((names, found), reference) in names.iter_mut().zip(found).zip(refs) {
            *names = found == *reference;
        }
    }

    /// An entry that keeps `key` from being inserted, or `NONE`: its key would have to be read to tell where the new one belongs, and it is not
    /// sound. Ask before [`Index::install`] of a new key where entries may be damaged: that finds a place in any case, but what cannot be read is not found any more then.
    fn unreadable_beside<R: Resolver>(&self, _key: Key<'_>, _resolver: &R) -> Ref {
        Ref::NONE
    }

    /// Finds where `key` is or would go, for a write that follows.
    fn locate<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Located<Self::Token>;

    /// Replaces `old` by `new` for `key`, atomically: `old = NONE` inserts, `new = NONE` removes. `token` comes from
    /// [`Index::locate`] of the same key (or [`Index::any_token`]). Fails without effect if the key's reference is not `old`.
    fn install<R: Resolver>(&self, token: Self::Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict>;

    /// Looks for the place of a write that follows, without the key's latch, and starts loading what it will touch: the place, and the
    /// entry that it seems to replace. Taking the latch waits for the flush of the thread's previous write; this need not.
    fn prepare_write<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Self::Prepared;

    /// Like [`Index::locate`], and may keep the place locked until [`Index::install_locked`] or [`Index::unlock_place`], which the caller
    /// must then call exactly once, on the same thread; the flag says whether it is locked. A single write locks *before* it flushes its
    /// entry, so that no locked instruction, which would wait for the flush, stands between its fence and the next write's prefetches.
    ///
    /// `prepared` comes from [`Index::prepare_write`] of the same key under the same pin. The holder must not call the index for another
    /// key in between (it may wait for itself).
    fn lock_place<R: Resolver>(&self, key: Key<'_>, prepared: Self::Prepared, resolver: &R) -> (Located<Self::Token>, bool);

    /// Ends [`Index::lock_place`] by replacing `old`, which is the verified candidate or `NONE`, by `new`.
    fn install_locked<R: Resolver>(&self, _token: Self::Token, _key: Key<'_>, _old: Ref, _new: Ref, _resolver: &R) {
        unreachable!("an index that locks places implements this");
    }

    /// Like [`Index::lock_place`] for writers of several keys: never waits for a lock, so that the caller may hold many places, taken in any
    /// order. A place that cannot be had at once, for example one that the caller itself holds for another key, comes back unlocked. While the
    /// caller holds any it may call nothing else that changes an index but [`Index::install_locked_now`] and [`Index::unlock_place`].
    fn lock_place_now<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> (Located<Self::Token>, bool) {
        (self.locate(key, resolver), false)
    }

    /// Ends [`Index::lock_place_now`] as [`Index::install_locked`] ends a single lock, without waiting. If that is impossible the place is
    /// unlocked and nothing changed: false; the caller then uses [`Index::install`] once it holds no place.
    fn install_locked_now(&self, _token: Self::Token, _key: Key<'_>, _old: Ref, _new: Ref) -> bool {
        unreachable!("an index that locks places implements this");
    }

    /// Ends [`Index::lock_place`] or [`Index::lock_place_now`] without a change.
    fn unlock_place(&self, _token: Self::Token) {
        unreachable!("an index that locks places implements this");
    }

    /// A token that makes `install` search by itself.
    fn any_token(&self) -> Self::Token;

    /// A 48-bit hint (leaf id and slot) that leads a cleaner to the place behind `token`, or `None` if the
    /// family has none.
    fn hint(&self, _token: Self::Token) -> Option<u64> {
        None
    }

    /// Starts loading what [`Index::find_at_hint`] looks at first. Harmless for any word. Call under the pin.
    #[inline(always)]
    fn prefetch_hint(&self, _hint: u64) {}

    /// Looks for `reference`, which must be an entry of `key`, where a hint of unknown age leads to, and beside it, without a search from the root.
    /// If it is found it is the key's newest, and the answer says where it is now. `None` says nothing: it may be elsewhere. Any word will do as a hint, also
    /// one of another index; what it leads to is looked at only as far as it is a live leaf of this one.
    fn find_at_hint(&self, _hint: u64, _key: Key<'_>, _reference: Ref) -> Option<Hinted> {
        None
    }

    /// Like [`Index::install`] of an update, but by a hint of unknown age, as [`Index::find_at_hint`] follows it; `old` must be an entry of `key`. Whether it was
    /// replaced; if not, the caller installs normally.
    fn update_at_hint(&self, _hint: u64, _key: Key<'_>, _old: Ref, _new: Ref) -> bool {
        false
    }

    /// Prepares for `keys` keys in total, so that a bulk load or recovery does not split step by step. Not beside other threads.
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
    /// the whole call is visited at least once; concurrent changes may or may not be seen, and a key may be seen twice if it moves.
    fn for_each<R: Resolver>(&self, resolver: &R, visit: &mut dyn FnMut(Ref) -> bool);

    /// Checks every structural invariant; for tests and `hither check`. Returns what is wrong, where. Call with no writer active.
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
    /// means that the end was reached. Each leaf (or a run of a large one) is read atomically; the whole is not a snapshot (see the engine's snapshots), but every
    /// key that is present throughout is returned exactly once, in strictly monotonic order.
    fn scan<R: Resolver>(&self, start: Start<'_>, backward: bool, limit: usize, out: &mut Vec<Ref>, resolver: &R);

    /// Builds the index from references in strictly ascending key order. The index must be empty and idle.
    fn bulk_load<R: Resolver>(&self, refs: &mut dyn Iterator<Item = Ref>, resolver: &R);

    /// Appends up to `limit` keys with their references, in order from `start`, to `piece`; fewer mean that the end was reached. Guarantees as
    /// [`OrderedIndex::scan`]. Keys that the index holds whole are not read from the log.
    fn copy_sorted<R: Resolver>(&self, start: Start<'_>, limit: usize, piece: &mut SortedPiece, resolver: &R);

    /// As [`OrderedIndex::bulk_load`], from keys that are at hand, so that the log need hardly be read.
    fn load_pieces<R: Resolver>(&self, source: &mut dyn PieceSource, resolver: &R);

    /// As [`OrderedIndex::load_pieces`], from several runs of keys of eight bytes, each wholly before the next one. An index that can builds them
    /// in parallel, one thread per run.
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
