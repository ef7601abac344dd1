//! One test suite per trait, run by every index: [`point`] for [`Index`](crate::Index), [`ordered`] for
//! [`OrderedIndex`](crate::OrderedIndex).
//!
//! The suites are ordinary functions, so that an index in another crate can run them in its own tests. They are based
//! on [`FakeLog`], a log that lives in DRAM and holds only keys, and on [`Rng`], a small reproducible generator.
//!
//! * **Thread safety.** [`FakeLog`] is `Sync`: appends are atomic, reads are lock-free. `Rng` is per thread.
//! * **Crash.** Nothing here survives a crash.

use crate::{Hasher, Key, Ref, Resolver};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub mod ordered;
pub mod point;

/// The size of the first chunk of a [`FakeLog`]; each further one is twice as large.
const FIRST_CHUNK: usize = 1024;
/// Enough chunks for 2^42 entries.
const CHUNKS: usize = 32;

type Cells = Box<[OnceLock<Box<[u8]>>]>;

/// A log of keys in DRAM, as an index sees the real one.
///
/// A reference is the entry's position plus one, with a size tag in the top 16 bits as in the real log.
/// Entries never move and live as long as the log.
pub struct FakeLog {
    hasher: Hasher,
    /// Which bits of the hash survive; all of them unless the log is degenerate.
    mask: u64,
    next: AtomicUsize,
    chunks: [OnceLock<Cells>; CHUNKS],
    reads: AtomicU64,
}

impl FakeLog {
    /// An empty log whose hashes are drawn with `seed`.
    pub fn new(seed: u64) -> Self {
        Self::degenerate(seed, u64::MAX)
    }

    /// An empty log whose hashes keep only the bits in `mask`: zero gives all keys one hash.
    pub fn degenerate(seed: u64, mask: u64) -> Self {
        FakeLog {
            hasher: Hasher::new(seed),
            mask,
            next: AtomicUsize::new(0),
            chunks: [const { OnceLock::new() }; CHUNKS],
            reads: AtomicU64::new(0),
        }
    }

    /// The hash function (before degeneration).
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// `bytes` with their hash as this log sees it.
    pub fn key_of<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, hash: self.hash_of(bytes) }
    }

    /// The hash of `bytes`, degenerate if the log is.
    pub fn hash_of(&self, bytes: &[u8]) -> u64 {
        self.hasher.hash(bytes) & self.mask
    }

    /// Appends an entry with this key. O(key); lock-free except for the first entry of a chunk.
    pub fn append(&self, key: &[u8]) -> Ref {
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        let (chunk, cell) = Self::place(position);
        let cells = self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| OnceLock::new()).collect());
        let fresh = cells[cell].set(key.into());
        assert!(fresh.is_ok(), "a position is handed out once");
        let units = (32 + key.len()).div_ceil(8);
        let tag = u16::try_from(units).unwrap_or(0);
        Ref(u64::from(tag) << 48 | (position as u64 + 1))
    }

    /// Whether the word that an index has found is an entry of `key`: for [`crate::Look`], which may be asked about a
    /// word that is no reference.
    pub fn is_entry_of(&self, found: Ref, key: &[u8]) -> bool {
        found.has_size() && self.peek(found) == key
    }

    /// Number of entries appended.
    pub fn len(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// Whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of times that an index has read an entry's key (or its hash).
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// The entry's key, without counting it as a read.
    pub fn peek(&self, reference: Ref) -> &[u8] {
        let position = (reference.0 & ((1 << 44) - 1)).checked_sub(1).expect("an index asks for real references only");
        let (chunk, cell) = Self::place(position as usize);
        self.chunks[chunk].get().and_then(|cells| cells[cell].get()).expect("a reference leads to an entry that was appended")
    }

    /// Chunk k holds `FIRST_CHUNK << k` entries, so position p lies in the chunk of the leading bit of
    /// p/FIRST_CHUNK + 1.
    fn place(position: usize) -> (usize, usize) {
        let chunk = (position / FIRST_CHUNK + 1).ilog2() as usize;
        (chunk, position - FIRST_CHUNK * ((1 << chunk) - 1))
    }
}

impl Resolver for FakeLog {
    fn prefetch(&self, _reference: Ref) {}

    fn key(&self, reference: Ref) -> &[u8] {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.peek(reference)
    }

    fn hash(&self, reference: Ref) -> u64 {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.hash_of(self.peek(reference))
    }
}

/// A reproducible generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }
}
