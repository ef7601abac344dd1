//! Which entries are known to be garbage: one bit per 32 bytes of the log, in DRAM (Pacman, section 3.2; P3).
//!
//! No entry is shorter, so no two begin in the same unit. That is 1/256 of the log (0.39 %), and only for segments that hold garbage. It spares
//! collectors a lookup in the index for each such entry, which would miss the caches both there and in the log.
//!
//! # Invariants
//!
//! * G1. A bit that is set is right: no index leads to the entry, none will, and no snapshot shows it. Whoever sets it has superseded the entry, in a writer section that
//!   ends before anything is freed because of the bit; or runs alone, at recovery.
//! * G2. A bit that is not set says nothing: bits get lost where two threads set neighbours at the same time (there is no locked instruction), and a restart from a
//!   checkpoint begins without any.
//! * G3. A segment's bits are cleared before it is opened again. Nobody who could still set one is left by then: writers are in sections, which the reuse waits for.
//!
//! # Crash
//!
//! Nothing of this is on media. A recovery that scans finds most of the bits again.

use crate::address;
use crate::entry::MIN_BYTES;
use crate::log::Log;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bits of one pool's segments.
pub(crate) struct GarbageMap {
    /// By segment; allocated when its first entry becomes garbage.
    segments: Box<[OnceLock<Box<[AtomicU64]>>]>,
    words: usize,
}

impl GarbageMap {
    pub fn new(segments: usize, segment_bytes: u64) -> GarbageMap {
        let words = segment_bytes.div_ceil(MIN_BYTES * 64) as usize;
        GarbageMap { segments: (0..segments).map(|_| OnceLock::new()).collect(), words }
    }

    /// Sets the bit of the entry at `offset` in a segment. It is `Relaxed` and no read-modify-write: G2.
    #[inline(always)]
    pub fn set(&self, segment: usize, offset: u64) {
        let Some(words) = self.segments[segment].get() else { return self.set_first(segment, offset) };
        Self::set_in(words, offset);
    }

    /// Starts loading what [`GarbageMap::set`] is going to change.
    #[inline(always)]
    pub fn prefetch(&self, segment: usize, offset: u64) {
        if let Some(word) = self.segments[segment].get().and_then(|words| words.get(Self::place(offset).0)) {
            hither_sync::prefetch_write(word.as_ptr());
        }
    }

    #[cold]
    fn set_first(&self, segment: usize, offset: u64) {
        let words = self.segments[segment].get_or_init(|| (0..self.words).map(|_| AtomicU64::new(0)).collect());
        Self::set_in(words, offset);
    }

    #[inline(always)]
    fn set_in(words: &[AtomicU64], offset: u64) {
        let (word, bit) = Self::place(offset);
        // An entry of a run begins at the run's first byte.
        if let Some(word) = words.get(word) {
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
    }

    /// Whether the bit of the entry at `offset` in a segment is set.
    pub fn get(&self, segment: usize, offset: u64) -> bool {
        let (word, bit) = Self::place(offset);
        self.segments[segment].get().and_then(|words| words.get(word)).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn place(offset: u64) -> (usize, u64) {
        let unit = offset / MIN_BYTES;
        ((unit / 64) as usize, 1 << (unit % 64))
    }

    /// Forgets a segment's bits, before its next life.
    pub fn clear(&self, segment: usize) {
        if let Some(words) = self.segments[segment].get() {
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    /// Bytes of DRAM.
    pub fn dram_bytes(&self) -> usize {
        let allocated = self.segments.iter().filter(|words| words.get().is_some()).count();
        size_of_val(&*self.segments) + allocated * self.words * 8
    }
}

impl Log {
    /// Counts an entry as garbage during recovery, when no writer slot is at hand, and remembers that collectors need not ask for it.
    pub fn note_garbage(&self, reference: u64, size: u64, tombstone: bool) {
        self.count_dead(reference, size, tombstone);
        // A tombstone may be needed although the index has nothing for its key.
        if !tombstone {
            let at = address::unpack(reference);
            let pool = &self.pools[at.node as usize];
            pool.garbage.set(pool.segment_index(at.offset), pool.offset_in_segment(at.offset));
        }
    }

    /// Whether the entry behind `reference` is known to be garbage. If not, it may be all the same.
    pub fn is_known_garbage(&self, reference: u64) -> bool {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        pool.garbage.get(pool.segment_index(at.offset), pool.offset_in_segment(at.offset))
    }

    /// Bytes of DRAM for what is known to be garbage.
    pub fn garbage_map_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.garbage.dram_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_neighbours_differ_and_are_cleared_together() {
        let map = GarbageMap::new(2, 64 << 10);
        for offset in [0, 32, 2040, 2048, (64 << 10) - 32] {
            assert!(!map.get(1, offset));
            map.set(1, offset);
            assert!(map.get(1, offset) && !map.get(0, offset));
        }
        assert!(!map.get(1, 64) && !map.get(1, 2080));
        map.clear(1);
        map.clear(0);
        assert!(!map.get(1, 0) && !map.get(1, (64 << 10) - 32));
    }

    #[test]
    fn it_takes_at_most_half_a_per_cent_of_the_log_once_segments_hold_garbage() {
        let map = GarbageMap::new(100, 1 << 20);
        assert!(map.dram_bytes() < 100 * 64, "nothing for segments without garbage: {}", map.dram_bytes());
        (0..100).for_each(|segment| map.set(segment, 72));
        assert!(map.dram_bytes() * 200 <= 100 << 20, "{} bytes for 100 MiB", map.dram_bytes());
    }
}
