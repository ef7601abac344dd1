//! The state of a segment in DRAM, and the chunks that writers carve from it.

use crate::entry::{Op, Parts, Place};
use crate::replay::ScanTotals;
use crate::zeroed::FromZeros;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The life of a segment, as DRAM sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    /// Not in use; may be opened.
    Free = 0,
    /// Chunks are handed out from it.
    Open = 1,
    /// Full; some chunk may still be in a writer's hands.
    Closed = 2,
    /// Full, and its descriptor records what it holds.
    Sealed = 3,
    /// Free on media; waits for readers to leave.
    Retiring = 4,
    /// Full, and a collector is emptying it.
    Collecting = 5,
}

impl SegmentState {
    fn from_u8(value: u8) -> SegmentState {
        match value {
            1 => SegmentState::Open,
            2 => SegmentState::Closed,
            3 => SegmentState::Sealed,
            4 => SegmentState::Retiring,
            5 => SegmentState::Collecting,
            _ => SegmentState::Free,
        }
    }
}

/// The volatile state of one segment. All-zero bytes are a free segment.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Segment {
    pub generation: AtomicU64,
    pub base_version: AtomicU64,
    pub keyspace: AtomicU32,
    pub shard: AtomicU32,
    pub run_len: AtomicU32,
    state: AtomicU8,
    /// A crash left torn bytes in it: it is sealed as recovered instead of sealed.
    pub torn: AtomicBool,
    /// Its entries are verified when they are read: they were taken over from a checkpoint and not verified since, or
    /// damage was found.
    pub unverified: AtomicBool,
    /// The end of its entries at the opening, as offset in the pool; 0 if it was full.
    pub tail_at_open: AtomicU64,
    /// Its verification found damage.
    pub damaged: AtomicBool,
    /// Links from its entries lead to an entry that was damaged, so no pass can bury what lies behind.
    pub leads_to_damage: AtomicBool,
    /// This opening has passed over damage in it.
    pub salvaged: AtomicBool,
    /// It was open when the store was opened: a crash may have torn holes into it.
    pub was_open: AtomicBool,
    /// Some of its DEAD marks may not be durable: they are of an earlier process, or of a sweep that was cut short.
    pub marks_unsure: AtomicBool,
    /// Free, and zeroed since it became free: it may be opened as it is.
    pub zeroed: AtomicBool,
    /// Chunks in writers' hands.
    pub open_chunks: AtomicU32,
    pub entries: AtomicU32,
    /// Bytes of entries, from chunks that were given back.
    pub written_bytes: AtomicU64,
    /// Bytes of dead entries, folded in from the writer slots.
    pub dead_bytes: AtomicU64,
    /// Number of tombstones; they count neither as live nor as dead.
    pub tombstones: AtomicU32,
    pub tombstone_bytes: AtomicU64,
    pub newest_tombstone: AtomicU64,
    /// For its tombstones up to this version, every older entry of their keys on media is dead
    /// ([`Log::end_sweep`](crate::Log::end_sweep)).
    pub swept_to: AtomicU64,
    /// Bytes of segments opened before it. Its age follows from this, on a clock that advances with the bytes opened.
    pub opened_at: AtomicU64,
    /// How many [`Log::settle`](crate::Log::settle) had begun when it was sealed.
    pub sealed_after: AtomicU64,
    /// Value guards that point into it.
    pub pins: AtomicU32,
    /// Epoch stamp after which nobody can hold a reference into it (state Retiring).
    pub retire_stamp: AtomicU64,
}

// SAFETY: only numbers and flags, for which all zeros are valid and mean a free segment.
unsafe impl FromZeros for Segment {}

impl Segment {
    /// Bytes of the counters that say how much of a segment is garbage: written and dead bytes, tombstones.
    pub const COUNTER_BYTES: usize = 5 * size_of::<AtomicU64>() + size_of::<AtomicU32>();

    pub fn state(&self) -> SegmentState {
        SegmentState::from_u8(self.state.load(Ordering::Acquire))
    }

    pub fn set_state(&self, state: SegmentState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Changes the state if it is `from`. Returns whether it was.
    pub fn change_state(&self, from: SegmentState, to: SegmentState) -> bool {
        self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether it holds entries, also according to its descriptor. (Segments inside a run do not.)
    pub fn in_use(&self) -> bool {
        !matches!(self.state(), SegmentState::Free | SegmentState::Retiring) && self.run_len.load(Ordering::Relaxed) > 0
    }

    /// Whether it holds entries that a collector moved.
    pub fn is_cold(&self) -> bool {
        self.shard.load(Ordering::Relaxed) == u32::from(crate::opening::COLD_SHARD)
    }

    /// Adds the counts of a chunk.
    pub fn absorb(&self, tally: &Tally) {
        self.entries.fetch_add(tally.entries, Ordering::Relaxed);
        self.written_bytes.fetch_add(tally.bytes, Ordering::Relaxed);
        if tally.tombstones > 0 {
            self.tombstones.fetch_add(tally.tombstones, Ordering::Relaxed);
            self.tombstone_bytes.fetch_add(tally.tombstone_bytes, Ordering::Relaxed);
            self.newest_tombstone.fetch_max(tally.newest_tombstone, Ordering::Relaxed);
        }
    }

    /// Resets everything for a new generation.
    pub fn reset(&self, generation: u64, base_version: u64, keyspace: u32, shard: u32, run_len: u32) {
        self.generation.store(generation, Ordering::Relaxed);
        self.base_version.store(base_version, Ordering::Relaxed);
        self.keyspace.store(keyspace, Ordering::Relaxed);
        self.shard.store(shard, Ordering::Relaxed);
        self.run_len.store(run_len, Ordering::Relaxed);
        for counter in [&self.open_chunks, &self.entries, &self.tombstones, &self.pins] {
            counter.store(0, Ordering::Relaxed);
        }
        for counter in
            [&self.written_bytes, &self.dead_bytes, &self.tombstone_bytes, &self.newest_tombstone, &self.swept_to, &self.tail_at_open]
        {
            counter.store(0, Ordering::Relaxed);
        }
        self.torn.store(false, Ordering::Relaxed);
        self.zeroed.store(false, Ordering::Relaxed);
        self.was_open.store(false, Ordering::Relaxed);
        for flag in [&self.unverified, &self.damaged, &self.leads_to_damage, &self.salvaged, &self.marks_unsure] {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// Whether a scan found everything that was written into it. Exact once all chunks are back.
    pub fn holds(&self, found: &ScanTotals) -> bool {
        (u64::from(self.entries.load(Ordering::Relaxed)), self.written_bytes.load(Ordering::Relaxed)) == (found.entries, found.bytes)
    }

    /// Whether its tombstones up to `version` may be dropped: a sweep has covered them, and no checkpoint predates
    /// them, of which the newest ends at `floor`.
    pub fn may_drop(&self, version: u64, floor: u64) -> bool {
        version <= self.swept_to.load(Ordering::Relaxed).min(floor)
    }

    /// Bytes of entries that are neither dead nor tombstones. Exact once all chunks are back and all slots are folded.
    pub fn live_bytes(&self) -> u64 {
        let [written, gone] = self.written_and_gone();
        written.saturating_sub(gone)
    }

    /// Whether there are no such bytes, once all chunks are back and all slots are folded. If more bytes count as dead
    /// than were written, something was counted twice, and nobody can tell what else is live. Then returns false, so
    /// that the index is asked.
    pub fn is_wholly_dead(&self) -> bool {
        let [written, gone] = self.written_and_gone();
        debug_assert!(gone <= written, "{gone} bytes of {written} are called dead");
        gone == written
    }

    fn written_and_gone(&self) -> [u64; 2] {
        let gone = self.dead_bytes.load(Ordering::Relaxed) + self.tombstone_bytes.load(Ordering::Relaxed);
        [self.written_bytes.load(Ordering::Relaxed), gone]
    }
}

/// The counts of the entries written into a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub entries: u32,
    pub bytes: u64,
    pub tombstones: u32,
    pub tombstone_bytes: u64,
    pub newest_tombstone: u64,
}

impl Tally {
    pub const EMPTY: Tally = Tally { entries: 0, bytes: 0, tombstones: 0, tombstone_bytes: 0, newest_tombstone: 0 };

    #[inline(always)]
    pub fn count(&mut self, op: Op, version: u64, size: u64) {
        self.entries += 1;
        self.bytes += size;
        if op == Op::Delete {
            self.tombstones += 1;
            self.tombstone_bytes += size;
            self.newest_tombstone = self.newest_tombstone.max(version);
        }
    }

    /// Counts entries of puts with `bytes` bytes together.
    #[inline(always)]
    pub fn count_puts(&mut self, entries: u32, bytes: u64) {
        self.entries += entries;
        self.bytes += bytes;
    }
}

/// A range of a segment that one writer slot fills alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// The segment that contains it; meaningless while `cursor == end == 0`.
    pub segment: u32,
    /// Next byte to write, as offset in the pool.
    pub cursor: u64,
    /// End of the chunk, as offset in the pool.
    pub end: u64,
    pub generation: u64,
    pub base_version: u64,
    pub keyspace: u32,
    pub tally: Tally,
    /// Position of the cursor at the last look for idle chunks.
    pub seen: u64,
}

impl Chunk {
    /// Where the next entry goes.
    #[inline(always)]
    pub fn place(&self) -> Place {
        Place { generation: self.generation, base_version: self.base_version, keyspace: self.keyspace, offset: self.cursor }
    }

    /// Gives the next `size` bytes to an entry.
    #[inline(always)]
    pub fn take(&mut self, parts: &Parts<'_>, size: u64) {
        self.cursor += size;
        self.tally.count(parts.op, parts.version, size);
    }

    /// No chunk: no entry fits.
    pub const NONE: Chunk =
        Chunk { segment: u32::MAX, cursor: 0, end: 0, generation: 0, base_version: 0, keyspace: 0, tally: Tally::EMPTY, seen: 0 };

    /// Whether nothing was written since the last call.
    pub fn is_idle(&mut self) -> bool {
        std::mem::replace(&mut self.seen, self.cursor) == self.cursor
    }

    pub fn is_none(&self) -> bool {
        self.segment == u32::MAX
    }

    /// Whether `parts`, of this size, fits into the rest.
    #[inline(always)]
    pub fn fits(&self, parts: &Parts<'_>, size: u64) -> bool {
        self.end - self.cursor >= size && crate::entry::version_fits(self.base_version, parts.version)
    }
}
