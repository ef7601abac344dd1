//! The directory: from the high hash bits to segment words.
//!
//! # Positions instead of prefixes
//!
//! Plain extendible hashing splits all segments in one wave, because all hold the same number of keys; just after a
//! wave the table is half empty. So the directory is not indexed by the hash bits u themselves but by a *position*
//! x = u(4 − u)/4, whose density rises from 1 to 2 while x goes from 0 to 3/4 (spiral storage: Mullin 1985; the curve
//! is close to a logarithm's). At any number of keys the segments' loads are then spread over a factor of two, splits
//! come one by one, and the fill stays near the mean of that spread at every size, with one block size only.
//!
//! Positions end at 3/4, since stretching them to 1 would cost each lookup a multiplication. So no prefix lies in the
//! last quarter: the root's right half is the third quarter.
//!
//! # Thread safety
//!
//! Readers load the directory word and one entry. Writers of entries hold the directory's mutex (in `rebuild`) and
//! store only into the newest array. The entries of an older array stay as they were when it was replaced; `mod.rs`
//! explains why that is harmless.
//!
//! # Invariants
//!
//! * D1. A segment word holds address, local depth and geometry together, so nothing about a segment changes in two
//!   steps.
//! * D2. A segment of local depth d fills exactly the entries of its d-bit position prefix.

use super::arena::{Arena, Mapping};
use super::line::{PAIR_SLOTS, Pair};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a position.
pub(super) const POSITION_BITS: u32 = 62;
/// The end of all positions.
pub(super) const POSITIONS: u64 = 3 << (POSITION_BITS - 2);
/// Segments at this depth are not split; they grow instead. The curve is applied to 30 bits of the hash, so deeper down
/// few hashes are left to separate.
pub(super) const MAX_DEPTH: u32 = 28;
/// The least depth of a directory: the root's halves have depth 1 and 2.
pub(super) const MIN_DEPTH: u32 = 2;
/// Pairs in the smallest segment (one arena block).
pub(super) const BASE_PAIRS: usize = 32;
/// Pairs that a lookup visits at most in a segment that is not wide.
pub(super) const PROBE_PAIRS: usize = 8;

// Layout of a segment word. All other fields lie below the address, so that the address mask fits into an instruction.
const ADDRESS: u64 = !0xfff;
const CLASS: u64 = 0x1f;
const WIDE: u64 = 0x20;
const DEPTH_SHIFT: u32 = 6;
const DEPTH: u64 = 0x3f;
/// Where the pair number starts in the hash. At this place its bits are also the pair's byte offset in the segment.
const PAIR_SHIFT: u32 = PAIR_BITS;
/// log2 of a pair's bytes.
const PAIR_BITS: u32 = size_of::<Pair>().trailing_zeros();

/// The position of a hash: its top bits, mapped by the curve (see the head of the module).
#[inline(always)]
pub(super) fn position_of(hash: u64) -> u64 {
    let u = hash >> 34;
    // Times 2³² − 1 − u.
    u * u64::from(!(u as u32))
}

/// Where the positions with this prefix of `depth` bits end.
pub(super) fn end_of(prefix: u64, depth: u32) -> u64 {
    ((prefix + 1) << (POSITION_BITS - depth)).min(POSITIONS)
}

/// Whether segments may have this prefix of `depth` bits: it begins among the positions, and no deeper prefix begins
/// and ends at the same positions.
pub(super) fn is_prefix(prefix: u64, depth: u32) -> bool {
    prefix >> depth == 0 && prefix << (POSITION_BITS - depth) < POSITIONS && (prefix, depth) != (1, 1)
}

/// The halves of the positions with this prefix of `depth` bits: prefix and depth of each.
pub(super) fn halves_of(prefix: u64, depth: u32) -> [(u64, u32); 2] {
    let right = if depth == 0 { (0b10, 2) } else { (prefix << 1 | 1, depth + 1) };
    [(prefix << 1, depth + 1), right]
}

/// The share of all hashes whose position has this prefix of `depth` bits.
pub(super) fn share_of(prefix: u64, depth: u32) -> f64 {
    // Solves x = u(4−u)/4 for u.
    let inverse = |position: u64| 2.0 - (4.0 - 4.0 * (position as f64 / (1u64 << POSITION_BITS) as f64)).sqrt();
    inverse(end_of(prefix, depth)) - inverse(prefix << (POSITION_BITS - depth))
}

/// A segment word: a segment's address (bits 63..12), its local depth (bits 11..6), whether lookups may visit all its
/// pairs (bit 5), and its size class (bits 4..0). Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment(pub(super) u64);

impl Segment {
    pub(super) fn new(block: usize, depth: u32, class: usize, wide: bool) -> Self {
        debug_assert!(block as u64 & !ADDRESS == 0 && depth <= MAX_DEPTH && class as u64 <= CLASS);
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

    /// The number of pairs on the path of a key.
    #[inline(always)]
    pub(super) fn path_len(self) -> usize {
        if self.wide() { self.pairs() } else { PROBE_PAIRS }
    }

    /// The number of the pair at `step` of the path of `hash`.
    #[inline(always)]
    pub(super) fn pair_number(self, hash: u64, step: usize) -> usize {
        ((hash >> PAIR_SHIFT) as usize + step) & (self.pairs() - 1)
    }

    /// The address of the home pair of `hash`.
    #[inline(always)]
    pub(super) fn home(self, hash: u64) -> *const Pair {
        // Nearly all segments are of the smallest class, and every lookup passes here.
        if self.class() == 0 {
            return self.home_in_smallest(hash);
        }
        std::ptr::with_exposed_provenance::<Pair>(self.block() + (self.pair_number(hash, 0) << PAIR_BITS))
    }

    /// As [`Segment::home`], for a segment of the smallest class.
    #[inline(always)]
    fn home_in_smallest(self, hash: u64) -> *const Pair {
        debug_assert_eq!(self.class(), 0);
        let distance = hash as usize & ((BASE_PAIRS - 1) << PAIR_BITS);
        std::ptr::with_exposed_provenance::<Pair>(self.block() | distance)
    }

    /// The home pair of `hash`.
    ///
    /// # Safety
    /// As [`Segment::pair`].
    #[inline(always)]
    pub(super) unsafe fn home_pair<'a>(self, hash: u64) -> &'a Pair {
        // SAFETY: the word's block holds `pairs()` pairs of atomics, this one among them; blocks are type-stable while
        // the arena lives.
        unsafe { &*self.home(hash) }
    }

    /// As [`Segment::home_pair`], if the segment is of the smallest class.
    ///
    /// # Safety
    /// As [`Segment::pair`].
    #[inline(always)]
    pub(super) unsafe fn home_pair_in_smallest<'a>(self, hash: u64) -> Option<&'a Pair> {
        // SAFETY: as in `home_pair`.
        (self.class() == 0).then(|| unsafe { &*self.home_in_smallest(hash) })
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

/// The line of its pairs that a key prefers.
#[inline(always)]
pub(super) fn home_line(hash: u64) -> usize {
    (hash & 1) as usize
}

/// One array of segment words; its own memory mapping.
#[derive(Debug)]
pub(super) struct Directory {
    entries: Mapping,
    depth: u32,
}

impl Directory {
    /// An array with an entry for each prefix of `depth` bits, all zero.
    pub(super) fn new(depth: u32) -> Self {
        Directory { entries: Mapping::new(size_of::<u64>() * Self::prefixes(depth)), depth }
    }

    /// The number of prefixes of `depth` bits.
    fn prefixes(depth: u32) -> usize {
        debug_assert!((MIN_DEPTH..=MAX_DEPTH).contains(&depth));
        3 << (depth - MIN_DEPTH)
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
        // SAFETY: the mapping holds as many zeroed words at least, is aligned to a page and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.entries.start::<AtomicU64>().as_ptr(), Self::prefixes(self.depth)) }
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

    /// The entries of a segment's prefix.
    pub(super) fn entries_of(&self, prefix: u64, segment_depth: u32) -> std::ops::Range<usize> {
        let at = |position: u64| (position >> (POSITION_BITS - self.depth)) as usize;
        at(prefix << (POSITION_BITS - segment_depth))..at(end_of(prefix, segment_depth))
    }

    /// Makes all entries of the segment's prefix lead to it. Release: a thread that follows an entry sees the complete
    /// segment.
    pub(super) fn set(&self, prefix: u64, segment: Segment) {
        for entry in &self.entries()[self.entries_of(prefix, segment.depth())] {
            entry.store(segment.0, Ordering::Release);
        }
    }
}

/// The word that readers load first: the address of the newest array, and by how many bits a position is shifted to its
/// entry (bits 5..0).
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
        // SAFETY: a position is below POSITIONS, so the array has an entry for its prefix; a replaced array is freed
        // only after a grace period. Acquire pairs with `Directory::set`.
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
            assert!(position >= last && position < POSITIONS, "u {u:#x}");
            last = position;
        }
        assert_eq!(position_of(0), 0);
        let prefix = |position| position >> (POSITION_BITS - MAX_DEPTH);
        assert_eq!(prefix(last), prefix(POSITIONS - 1), "every prefix is that of some hash");
    }

    #[test]
    fn shares_add_up_and_span_a_factor_of_two() {
        let shares: Vec<_> = (0..192).map(|prefix| share_of(prefix, 8) * 256.0).collect();
        assert!((shares.iter().sum::<f64>() - 256.0).abs() < 1e-6);
        assert!((shares[0] - 1.0).abs() < 0.01 && (shares[191] - 2.0).abs() < 0.01);
        assert!((share_of(0, 0) - 1.0).abs() < 1e-9, "the root has all");
        // The share is the one that `position_of` yields.
        let counted = (0..1u64 << 16).filter(|u| position_of(u << 48) >> (POSITION_BITS - 3) == 5).count();
        assert!((counted as f64 / 65_536.0 - share_of(5, 3)).abs() < 0.001);
    }

    #[test]
    fn halves_cover_what_they_halve() {
        for (prefix, depth) in [(0, 0), (0, 1), (0b10, 2), (0b101, 3), (0b01, 2), ((3 << 18) - 1, 20)] {
            let [(left, left_depth), (right, right_depth)] = halves_of(prefix, depth);
            assert!(is_prefix(prefix, depth) && is_prefix(left, left_depth) && is_prefix(right, right_depth));
            assert_eq!(left << (POSITION_BITS - left_depth), prefix << (POSITION_BITS - depth), "{prefix:#b}/{depth}");
            assert_eq!(end_of(left, left_depth), right << (POSITION_BITS - right_depth), "{prefix:#b}/{depth}");
            assert_eq!(end_of(right, right_depth), end_of(prefix, depth), "{prefix:#b}/{depth}");
            assert!(share_of(left, left_depth).min(share_of(right, right_depth)) > 0.4 * share_of(prefix, depth));
        }
    }

    #[test]
    fn nothing_lies_in_the_last_quarter() {
        for (prefix, depth) in [(1, 1), (0b11, 2), (0b110, 3), (0b1000, 3), (1, 0), (3 << 18, 20)] {
            assert!(!is_prefix(prefix, depth), "{prefix:#b}/{depth}");
        }
    }

    #[test]
    fn every_position_has_one_entry() {
        let directory = Directory::new(5);
        assert_eq!(directory.entries_of(0, 0), 0..24);
        assert_eq!((directory.entries_of(0, 1), directory.entries_of(0b10, 2)), (0..16, 16..24));
        assert_eq!((directory.entries().len(), directory.entries_of(23, 5)), (24, 23..24));
        for (at, entry) in directory.entries().iter().enumerate() {
            entry.store(at as u64, Ordering::Relaxed);
        }
        for position in (0..POSITIONS).step_by(1 << 50).chain([POSITIONS - 1]) {
            // SAFETY: the word is that of a directory that lives.
            let segment = unsafe { directory.word().segment(position) };
            assert_eq!(segment.0, position >> (POSITION_BITS - 5));
        }
    }

    #[test]
    fn words_keep_their_parts() {
        let segment = Segment::new(0x7fff_ffff_f000, 27, 17, true);
        assert_eq!((segment.block(), segment.depth(), segment.class(), segment.wide()), (0x7fff_ffff_f000, 27, 17, true));
        assert_eq!(segment.path_len(), 32 << 17);
        let deepest = Segment::new(0x1000, MAX_DEPTH, 31, false);
        assert_eq!((deepest.block(), deepest.depth(), deepest.class(), deepest.wide()), (0x1000, MAX_DEPTH, 31, false));
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
