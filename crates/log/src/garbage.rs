//! Which entries are known to be garbage: one bit for each 32 bytes of the log, in DRAM (Pacman, section 3.2).
//!
//! No entry is shorter, so no two entries begin in the same unit. The bits take 1/256 of the log (0.39 %). They spare
//! collectors an index lookup for each such entry, which would miss the caches both in the index and in the log.
//!
//! # Invariants
//!
//! * G1. A bit that is set is right: no index leads to the entry, none will, and no snapshot shows it. The thread that
//!   sets it either
//!   - has superseded the entry, in a writer section that ends before anything is freed because of the bit; or
//!   - runs alone, at recovery; or
//!   - has found out, for an entry that existed before the store was opened, that the index does not name it and no
//!     snapshot keeps it. A superseded entry never becomes current again, nor do later snapshots show it.
//! * G2. A bit that is not set means nothing. Bits get lost where two threads set neighbours at the same time (there is
//!   no locked instruction). A restart from a checkpoint begins without any; the verification in the background finds
//!   them (`verify`).
//! * G3. A segment's bits are cleared before it is opened again. No thread that could still set one is left by then:
//!   writers are in sections, and the verification pins the segment; the reuse waits for both.
//!
//! # Crash
//!
//! Nothing of this is on media. Recovery finds the bits again in segments that it scans, and the verification in the
//! background finds them in the others.

use crate::address;
use crate::entry::MIN_BYTES;
use crate::log::Log;
use crate::zeroed::Zeroed;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the log that one word of bits covers.
const WORD_BYTES: u64 = MIN_BYTES * 64;

/// The bits of one pool's segments, contiguous and in the order of the log, so that an entry's word follows from its
/// offset without another load. Memory that was never written is not allocated, so segments without garbage take none.
pub(crate) struct GarbageMap {
    /// Empty if nothing is remembered.
    words: Zeroed<AtomicU64>,
    segment_words: usize,
}

impl GarbageMap {
    pub fn new(segments: usize, segment_bytes: u64) -> GarbageMap {
        debug_assert!(segment_bytes.is_multiple_of(WORD_BYTES), "no word belongs to two segments");
        let segment_words = (segment_bytes / WORD_BYTES) as usize;
        // Without address space for it, the map stays empty: collectors ask the index more often.
        let words = Zeroed::try_new(segments * segment_words).unwrap_or_else(|| Zeroed::new(0));
        GarbageMap { words, segment_words }
    }

    /// Sets the bit of the entry at `offset` from the beginning of the first segment. Relaxed, and not a
    /// read-modify-write: G2.
    #[inline(always)]
    pub fn set(&self, offset: u64) {
        if let Some((word, bit)) = self.word_of(offset) {
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
    }

    /// The word and the bit that [`GarbageMap::set`] changes. `None` if nothing is remembered.
    #[inline(always)]
    pub fn word_of(&self, offset: u64) -> Option<(&AtomicU64, u64)> {
        let (word, bit) = Self::place(offset);
        self.words.get(word).map(|word| (word, bit))
    }

    /// Starts loading the word that [`GarbageMap::set`] is going to change.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64) {
        // A hint is harmless for any address.
        hither_sync::prefetch_write(self.words.as_ptr().wrapping_add(Self::place(offset).0));
    }

    /// Whether the bit of the entry at `offset` is set.
    pub fn get(&self, offset: u64) -> bool {
        let (word, bit) = Self::place(offset);
        self.words.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    #[inline(always)]
    fn place(offset: u64) -> (usize, u64) {
        ((offset / WORD_BYTES) as usize, 1 << (offset / MIN_BYTES % 64))
    }

    /// Clears a segment's bits before its next life. Words that were never written are not touched.
    pub fn clear(&self, segment: usize) {
        let words = self.words.chunks(self.segment_words).nth(segment).unwrap_or(&[]);
        words.iter().filter(|word| word.load(Ordering::Relaxed) != 0).for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The most bytes of DRAM that the bits take if `segments` segments exist.
    pub fn dram_bytes(&self, segments: usize) -> usize {
        (segments * self.segment_words).min(self.words.len()) * size_of::<AtomicU64>()
    }
}

impl Log {
    /// Counts an entry as garbage during recovery, when no writer slot is available, and remembers that collectors need
    /// not ask the index about it. Also for a tombstone that has lost to something newer of its key: the newer entry
    /// keeps out everything that the tombstone kept out.
    pub fn note_garbage(&self, reference: u64, size: u64, tombstone: bool) {
        self.count_dead(reference, size, tombstone);
        self.know_garbage(reference);
    }

    /// Remembers that collectors need not ask the index about the entry behind `reference`, which is already counted as
    /// garbage. G1 must hold, and the segment must be kept from being opened again (G3).
    pub fn know_garbage(&self, reference: u64) {
        let at = address::unpack(reference);
        self.pools[at.node as usize].set_garbage(at.offset);
    }

    /// Whether the entry behind `reference` is known to be garbage. If not, it may be garbage all the same.
    pub fn is_known_garbage(&self, reference: u64) -> bool {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        pool.garbage.get(at.offset - pool.data_offset)
    }

    /// The most bytes of DRAM that the garbage bits of all pools take.
    pub fn garbage_map_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.garbage.dram_bytes(pool.pool.segment_count() as usize)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 64 << 10;

    #[test]
    fn bits_of_neighbours_differ_and_are_cleared_together() {
        let map = GarbageMap::new(3, SEGMENT);
        for offset in [0, 32, 2040, 2048, SEGMENT - 32].map(|offset| SEGMENT + offset) {
            assert!(!map.get(offset));
            map.set(offset);
            assert!(map.get(offset) && !map.get(offset - SEGMENT) && !map.get(offset + SEGMENT));
        }
        assert!(!map.get(SEGMENT + 64) && !map.get(SEGMENT + 2080));
        map.set(SEGMENT - 32);
        map.set(2 * SEGMENT);
        map.clear(1);
        assert!(!map.get(SEGMENT) && !map.get(2 * SEGMENT - 32), "the segment's first and last are forgotten");
        assert!(map.get(SEGMENT - 32) && map.get(2 * SEGMENT), "its neighbours are not");
    }

    #[test]
    fn an_offset_beyond_the_log_is_nothing() {
        let map = GarbageMap::new(1, SEGMENT);
        map.prefetch(u64::MAX);
        map.set(SEGMENT);
        assert!(!map.get(SEGMENT) && (0..SEGMENT).step_by(32).all(|offset| !map.get(offset)));
    }

    #[test]
    fn a_map_of_no_segments_remembers_nothing() {
        let map = GarbageMap::new(0, SEGMENT);
        map.prefetch(3 * SEGMENT);
        map.set(3 * SEGMENT);
        map.clear(3);
        assert!(!map.get(3 * SEGMENT) && map.dram_bytes(4) == 0);
    }

    #[test]
    fn it_takes_at_most_half_a_per_cent_of_the_log() {
        let map = GarbageMap::new(100, 1 << 20);
        assert_eq!(map.dram_bytes(100), size_of_val(&*map.words));
        assert!(map.dram_bytes(100) * 200 <= 100 << 20, "{} bytes for 100 MiB", map.dram_bytes(100));
    }
}
