//! The directory: from the high hash bits to segment words.
//!
//! # Positions instead of prefixes
//!
//! Plain extendible hashing splits all segments in one wave, because all hold the same number of keys; just after a wave
//! the table is half empty. So the directory is not indexed by the hash bits u themselves but by a *position*
//! x = u + u(1−u)/3 in [0, 1), whose density rises from 3/4 to 3/2 (spiral storage: Mullin 1985; the curve is close to
//! log2(1+u)). At any number of keys the segments' loads are then spread over a factor of two, splits come one by one, and the fill
//! stays near the mean of that spread at every size, with one block size only.
//!
//! # Thread safety
//!
//! Readers load the directory word and one entry. Writers of entries hold the directory's mutex (in `rebuild`): entries
//! are stored only into the newest array. An older array's entries stay as they were when it was replaced; `mod.rs` says why that is harmless.
//!
//! # Invariants
//!
//! * D1. A segment word holds address, local depth and geometry together, so nothing about a segment changes in two steps.
//! * D2. A segment of local depth d fills exactly the 2^(g−d) entries of its d-bit position prefix, g being the directory's depth.

use super::arena::{Arena, Mapping};
use super::line::{PAIR_SLOTS, Pair};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a position.
pub(super) const POSITION_BITS: u32 = 32;
/// Segments are not split below this depth; they grow instead.
pub(super) const MAX_DEPTH: u32 = 30;
/// Pairs in the smallest segment (one arena block).
pub(super) const BASE_PAIRS: usize = 32;
/// Pairs that a lookup visits at most in a segment that is not wide.
pub(super) const PROBE_PAIRS: usize = 8;

// A segment word: all that is said of the segment lies below the address, whose mask then fits into an instruction.
const ADDRESS: u64 = !0xfff;
const CLASS: u64 = 0x1f;
const WIDE: u64 = 0x20;
const DEPTH_SHIFT: u32 = 6;
const DEPTH: u64 = 0x3f;
/// Where the pair number starts in the hash: above the tag's byte and the home bit.
const PAIR_SHIFT: u32 = 9;
/// log2 of a pair's bytes.
const PAIR_BITS: u32 = size_of::<Pair>().trailing_zeros();

/// The position of a hash: the top half of the hash, bent (see the module's head).
#[inline(always)]
pub(super) fn position_of(hash: u64) -> u64 {
    const THIRD: u64 = u64::MAX / 3;
    let u = hash >> 32;
    let product = u * ((1 << 32) - u);
    u + ((u128::from(product) * u128::from(THIRD)) >> 96) as u64
}

/// The share of all hashes whose position has this prefix of `depth` bits.
pub(super) fn share_of(prefix: u64, depth: u32) -> f64 {
    // Solves x = u + u(1−u)/3 for u.
    let inverse = |x: f64| 2.0 - (4.0 - 3.0 * x).max(0.0).sqrt();
    let scale = (1u64 << depth) as f64;
    inverse((prefix + 1) as f64 / scale) - inverse(prefix as f64 / scale)
}

/// A segment word: where a segment lies (bits 63..12), its local depth (bits 11..6), whether lookups may visit all its pairs (bit 5), and its
/// size class (bits 4..0). Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment(pub(super) u64);

impl Segment {
    pub(super) fn new(block: usize, depth: u32, class: usize, wide: bool) -> Self {
        debug_assert!(block as u64 & !ADDRESS == 0 && depth <= POSITION_BITS && class as u64 <= CLASS);
        let flags = if wide { WIDE } else { 0 };
        Segment(block as u64 | u64::from(depth) << DEPTH_SHIFT | flags | class as u64)
    }

    #[inline(always)]
    pub(super) fn block(self) -> usize {
        (self.0 & ADDRESS) as usize
    }

    #[inline(always)]
    pub(super) fn depth(self) -> u32 {
        (self.0 >> DEPTH_SHIFT & DEPTH) as u32
    }

    #[inline(always)]
    pub(super) fn class(self) -> usize {
        (self.0 & CLASS) as usize
    }

    #[inline(always)]
    pub(super) fn wide(self) -> bool {
        self.0 & WIDE != 0
    }

    #[inline(always)]
    pub(super) fn pairs(self) -> usize {
        BASE_PAIRS << self.class()
    }

    pub(super) fn capacity(self) -> usize {
        self.pairs() * PAIR_SLOTS
    }

    /// How many pairs the path of a key has.
    #[inline(always)]
    pub(super) fn path_len(self) -> usize {
        if self.wide() { self.pairs() } else { PROBE_PAIRS }
    }

    /// The pair at `step` of the path of `hash`.
    #[inline(always)]
    pub(super) fn pair_number(self, hash: u64, step: usize) -> usize {
        ((hash >> PAIR_SHIFT) as usize + step) & (self.pairs() - 1)
    }

    /// The home pair of `hash`, as an address.
    #[inline(always)]
    pub(super) fn home(self, hash: u64) -> *const Pair {
        // Nearly all segments are of the smallest class, and every lookup comes by here.
        let distance = if self.class() == 0 {
            (hash >> (PAIR_SHIFT - PAIR_BITS)) as usize & ((BASE_PAIRS - 1) << PAIR_BITS)
        } else {
            self.pair_number(hash, 0) << PAIR_BITS
        };
        std::ptr::with_exposed_provenance::<Pair>(self.block() + distance)
    }

    /// The home pair of `hash`.
    ///
    /// # Safety
    /// As [`Segment::pair`].
    #[inline(always)]
    pub(super) unsafe fn home_pair<'a>(self, hash: u64) -> &'a Pair {
        // SAFETY: the word's block holds `pairs()` pairs of atomics, this one among them; blocks are type-stable while the arena lives.
        unsafe { &*self.home(hash) }
    }

    /// A pair of the segment.
    ///
    /// # Safety
    /// The word comes from a directory whose arena outlives `'a`, or the block was just allocated from such an arena.
    #[inline(always)]
    pub(super) unsafe fn pair<'a>(self, number: usize) -> &'a Pair {
        debug_assert!(number < self.pairs());
        // SAFETY: the word's block holds `pairs()` pairs of atomics; blocks are type-stable while the arena lives.
        unsafe { &*std::ptr::with_exposed_provenance::<Pair>(self.block()).add(number) }
    }

    /// All pairs of the segment.
    ///
    /// # Safety
    /// As [`Segment::pair`].
    pub(super) unsafe fn all<'a>(self) -> impl Iterator<Item = &'a Pair> {
        // SAFETY: the caller's promise.
        (0..self.pairs()).map(move |number| unsafe { self.pair(number) })
    }
}

/// The line of the pair that a key prefers.
#[inline(always)]
pub(super) fn home_line(hash: u64) -> usize {
    (hash >> 8 & 1) as usize
}

/// One array of segment words; its own memory mapping.
#[derive(Debug)]
pub(super) struct Directory {
    entries: Mapping,
    depth: u32,
}

impl Directory {
    /// An array of 2^depth entries, all zero.
    pub(super) fn new(depth: u32) -> Self {
        Directory { entries: Mapping::new(size_of::<u64>() << depth), depth }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn word(&self) -> DirectoryWord {
        DirectoryWord(self.entries.address() as u64 | u64::from(POSITION_BITS - self.depth))
    }

    pub(super) fn entries(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds 2^depth zeroed words at least, is aligned to a page and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.entries.start::<AtomicU64>().as_ptr(), 1 << self.depth) }
    }

    /// A directory of `depth` with the same segments.
    pub(super) fn deepened(&self, depth: u32) -> Directory {
        let deeper = Directory::new(depth);
        let shift = depth - self.depth;
        for (i, entry) in deeper.entries().iter().enumerate() {
            // Relaxed: the new array is published afterwards with release, and the mutex orders the loads.
            entry.store(self.entries()[i >> shift].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        deeper
    }

    /// Lets all entries of the segment's prefix lead to it. Release: who follows an entry sees the segment built.
    pub(super) fn set(&self, prefix: u64, segment: Segment) {
        let shift = self.depth - segment.depth();
        let first = (prefix << shift) as usize;
        for entry in &self.entries()[first..first + (1 << shift)] {
            entry.store(segment.0, Ordering::Release);
        }
    }
}

/// What readers load first: the address of the newest array, and by how many bits a position is shifted to its entry (bits 5..0).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct DirectoryWord(pub(super) u64);

impl DirectoryWord {
    /// The segment of a position.
    ///
    /// # Safety
    /// The word was loaded from the index under an epoch pin that still lives, or with the directory's mutex held.
    #[inline(always)]
    pub(super) unsafe fn segment(self, position: u64) -> Segment {
        let entries = std::ptr::with_exposed_provenance::<AtomicU64>((self.0 & !0xfff) as usize);
        // A wrapping shift takes the low six bits by itself.
        let at = position.wrapping_shr(self.0 as u32) as usize;
        // SAFETY: positions have 32 bits, so the index is below 2^depth; a replaced array is freed only after a grace period.
        // Acquire pairs with `Directory::set`.
        Segment(unsafe { &*entries.add(at) }.load(Ordering::Acquire))
    }
}

/// A segment without keys.
pub(super) fn empty_segment(arena: &Arena, depth: u32, class: usize, wide: bool) -> Segment {
    let segment = Segment::new(arena.allocate(class), depth, class, wide);
    // SAFETY: the block was just allocated, from the caller's arena, and nobody else knows it.
    unsafe { segment.all() }.for_each(Pair::clear);
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_rise_with_the_hash_and_stay_in_range() {
        let mut last = 0;
        for u in (0..1u64 << 32).step_by(65_537).chain([u64::from(u32::MAX)]) {
            let position = position_of(u << 32 | 0xffff_ffff);
            assert!(position >= last && position < 1 << POSITION_BITS, "u {u:#x}");
            last = position;
        }
        assert_eq!(position_of(0), 0);
    }

    #[test]
    fn shares_add_up_and_span_a_factor_of_two() {
        let shares: Vec<_> = (0..256).map(|prefix| share_of(prefix, 8) * 256.0).collect();
        assert!((shares.iter().sum::<f64>() - 256.0).abs() < 1e-6);
        assert!((shares[0] - 0.75).abs() < 0.01 && (shares[255] - 1.5).abs() < 0.01);
        // The share is the one that `position_of` yields.
        let counted = (0..1u64 << 16).filter(|u| position_of(u << 48) >> (POSITION_BITS - 3) == 5).count();
        assert!((counted as f64 / 65_536.0 - share_of(5, 3)).abs() < 0.001);
    }

    #[test]
    fn words_keep_their_parts() {
        let segment = Segment::new(0x7fff_ffff_f000, 29, 17, true);
        assert_eq!((segment.block(), segment.depth(), segment.class(), segment.wide()), (0x7fff_ffff_f000, 29, 17, true));
        assert_eq!(segment.path_len(), 32 << 17);
        let deepest = Segment::new(0x1000, POSITION_BITS, 31, false);
        assert_eq!((deepest.block(), deepest.depth(), deepest.class(), deepest.wide()), (0x1000, POSITION_BITS, 31, false));
    }

    #[test]
    fn the_home_pair_is_that_of_the_paths_beginning() {
        for class in [0, 1, 2, 9] {
            let segment = Segment::new(0x7f00_0000_0000, 3, class, false);
            for hash in (0..64).map(|bit| 1 << bit).chain([0, u64::MAX, 0x1234_5678_9abc_def0]) {
                let expected = segment.block() + segment.pair_number(hash, 0) * size_of::<Pair>();
                assert_eq!(segment.home(hash).addr(), expected, "class {class}, hash {hash:#x}");
            }
        }
    }
}
