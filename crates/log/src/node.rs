//! One node's pool, and the state of its segments in DRAM.
//!
//! Thread safety: any number of threads. A segment's counters are atomics; each stream and the list of free segments
//! has a lock of its own.

use crate::garbage::GarbageMap;
use crate::hot::HotSet;
use crate::log::LogOptions;
use crate::opening::{Allocator, Filler};
use crate::segment::{Chunk, Segment, SegmentState};
use crate::slot::Slots;
use crate::streams::Active;
use crate::zeroed::Zeroed;
use hither_pmem::Pool;
use hither_sync::Attendance;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long after a failed growth a pool counts as unable to grow.
const DISK_STAYS_FULL: Duration = Duration::from_secs(1);

/// One node's pool and the state of its segments in DRAM.
pub(crate) struct NodePool {
    pub node: u32,
    pub pool: Pool,
    /// Of the writers that append here.
    pub slots: Slots,
    pub segments: Zeroed<Segment>,
    pub garbage: GarbageMap,
    pub hot: HotSet,
    /// By segment: how much of the slots' counts of garbage is already in the segment's own count.
    pub folded: Mutex<Vec<u32>>,
    pub data_offset: u64,
    pub segment_shift: u32,
    pub chunk_bytes: u64,
    /// By shard, then one stream for hot entries of all shards; the last one is for moved entries.
    pub active: Vec<Mutex<Active>>,
    /// Rests of collectors' chunks. Their segments may be closed; they are not sealed before the rests are back.
    pub cold_rests: Mutex<Vec<Chunk>>,
    pub alloc: Mutex<Allocator>,
    /// Number of the shards' active segments that are reserved for deletes.
    pub open_for_deletes: AtomicU64,
    /// Segments that a write waiting for room has claimed ([`Claim`](crate::Claim)); 0: none.
    pub claimed: AtomicU64,
    /// Held while the pool grows.
    pub growing: Mutex<()>,
    /// Held while a free segment is zeroed ahead of writers, where that is done (`ready`).
    pub zeroing: Mutex<()>,
    /// Number of segments in state Retiring.
    pub retiring: AtomicU64,
    /// How many of them all readers had left at the last look, but value guards still pinned, or could not be zeroed: for
    /// how long is unknown.
    pub pinned: AtomicU64,
    /// Number of freed segments that were handed on to writers since the store was opened; a run counts once.
    pub handed_on: AtomicU64,
    /// Passes under way.
    pub passes: AtomicU64,
    /// When the pool last failed to grow because its disk was full.
    pub disk_full_at: Mutex<Option<Instant>>,
    pub segments_reused: AtomicU64,
    /// Threads that collect here in the background.
    pub collecting: Attendance,
    /// Segments opened for writes since the store was opened.
    pub openings: AtomicU64,
    /// The pool may grow, but more than half of its full segments is garbage, which collectors turn into room instead.
    pub collected_first: AtomicBool,
    /// Nanoseconds that the last round of such passes took for each byte that it gained.
    pub collection_ns_per_byte: AtomicU64,
    /// Why this node's threads may append elsewhere.
    pub away: crate::spill::Away,
    /// How often the pool was declared full and spilled to another.
    pub spills: AtomicU64,
    /// Bytes that freed segments held.
    pub freed: crate::appended::Freed,
}

/// The usage of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolUsage {
    /// Node.
    pub node: u32,
    /// Segments that exist on media.
    pub segments: u64,
    /// Segments that may exist after growth.
    pub max_segments: u64,
    /// Free segments among those that exist.
    pub free: u64,
    /// Segments open for appends.
    pub open: u64,
    /// Segments closed or sealed.
    pub closed: u64,
    /// Segments free on media that wait for readers.
    pub retiring: u64,
    /// Bytes of live entries.
    pub live_bytes: u64,
    /// Bytes of superseded entries.
    pub dead_bytes: u64,
    /// Whether entries of hot keys get segments of their own now.
    pub tells_hot_apart: bool,
    /// Bytes of tombstones.
    pub tombstone_bytes: u64,
    /// Number of tombstones.
    pub tombstones: u64,
    /// Entries written into segments in use.
    pub entries: u64,
    /// Bytes of entries written into segments in use.
    pub written_bytes: u64,
    /// Segments opened again after they had been freed.
    pub reused: u64,
    /// Number of value guards that pin segments.
    pub pins: u64,
    /// Whether no segment is left that a put may open, unless some are freed.
    pub full: bool,
    /// Whether the pool is full and threads of its node append to another pool.
    pub spilling: bool,
    /// How often spilling has begun since the store was opened.
    pub spills: u64,
}

impl NodePool {
    pub fn new(node: u32, pool: Pool, shards: usize, options: &LogOptions) -> NodePool {
        let segment_bytes = pool.segment_bytes();
        let max = pool.max_segments() as usize;
        let chunk_bytes = match options.chunk_bytes {
            0 => (segment_bytes / 16).clamp(512, 64 << 10),
            given => given.min(segment_bytes),
        };
        NodePool {
            node,
            slots: Slots::new(options.slots_per_node, shards),
            data_offset: pool.segment_offset(0),
            segment_shift: segment_bytes.trailing_zeros(),
            chunk_bytes,
            segments: Zeroed::new(max),
            garbage: GarbageMap::new(if options.garbage_bits { max } else { 0 }, segment_bytes),
            hot: HotSet::new(),
            folded: Mutex::default(),
            active: (0..shards + 2).map(|_| Mutex::new(Active::NONE)).collect(),
            cold_rests: Mutex::default(),
            disk_full_at: Mutex::default(),
            retiring: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            alloc: Mutex::new(Allocator { free: std::collections::BTreeSet::new(), count: pool.segment_count() }),
            open_for_deletes: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            growing: Mutex::default(),
            zeroing: Mutex::default(),
            handed_on: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            segments_reused: AtomicU64::new(0),
            collecting: Attendance::default(),
            openings: AtomicU64::new(0),
            collected_first: AtomicBool::new(false),
            collection_ns_per_byte: AtomicU64::new(0),
            away: crate::spill::Away::default(),
            spills: AtomicU64::new(0),
            freed: crate::appended::Freed::default(),
            pool,
        }
    }

    pub fn segment_bytes(&self) -> u64 {
        1 << self.segment_shift
    }

    pub fn max_segments(&self) -> usize {
        self.segments.len()
    }

    #[inline(always)]
    pub fn segment_index(&self, offset: u64) -> usize {
        ((offset - self.data_offset) >> self.segment_shift) as usize
    }

    /// Notes that the entry at `offset` is known to be garbage.
    #[inline(always)]
    pub fn set_garbage(&self, offset: u64) {
        self.garbage.set(offset - self.data_offset);
    }

    /// Size of the entry at `offset`, read from media (its reference has no size tag).
    #[cold]
    pub fn entry_size(&self, offset: u64) -> u64 {
        crate::replay::entry_at(&self.pool, offset).map_or(0, |entry| entry.size)
    }

    /// Registers a segment as free (at open).
    pub fn add_free(&self, segment: u32) {
        self.segments[segment as usize].set_state(SegmentState::Free);
        self.alloc.lock().free.insert(segment);
    }

    /// The existing segments; the array has room for all that may ever exist.
    pub fn existing(&self) -> &[Segment] {
        &self.segments[..self.pool.segment_count() as usize]
    }

    pub fn free_segments(&self) -> u64 {
        self.alloc.lock().free.len() as u64
    }

    pub fn count_in_state(&self, state: SegmentState) -> u64 {
        self.existing().iter().filter(|segment| segment.state() == state).count() as u64
    }

    /// How many segments can still be added, as far as is known: none for a while after the disk was full.
    pub fn can_grow_by(&self) -> u64 {
        if self.disk_was_full() {
            return 0;
        }
        u64::from(self.pool.max_segments() - self.pool.segment_count())
    }

    /// Whether the disk counts as full.
    pub fn disk_was_full(&self) -> bool {
        self.disk_full_at.lock().is_some_and(|at| at.elapsed() < DISK_STAYS_FULL)
    }

    /// Segments that are free or can be added.
    pub fn within_reach(&self) -> u64 {
        self.free_segments() + self.can_grow_by()
    }

    /// Free segments that entries of this kind may not open.
    pub fn reserve(&self, kind: Filler) -> u64 {
        let (max, existing) = (u64::from(self.pool.max_segments()), u64::from(self.pool.segment_count()));
        // A small store that has not grown yet has few segments; it need not grow for the reserve's sake.
        let reserve = (max / 64).clamp(3, 9).min(max / 4).min(existing / 2);
        match kind {
            Filler::Put => reserve,
            // Copies of one victim may take half as much again as the victim.
            Filler::Delete => (reserve / 3).max(2).min(reserve.saturating_sub(1)),
            Filler::Move => 0,
        }
    }

    /// As [`NodePool::reserve`], less the segments of it that deletes have open: those are already at their service.
    pub fn reserve_now(&self, kind: Filler) -> u64 {
        let reserve = self.reserve(kind);
        if kind != Filler::Put {
            return reserve;
        }
        reserve.saturating_sub(self.open_for_deletes.load(Ordering::Relaxed)).max(self.reserve(Filler::Delete))
    }

    pub fn usage(&self) -> PoolUsage {
        let free = self.free_segments();
        let mut usage = PoolUsage {
            node: self.node,
            segments: self.pool.segment_count().into(),
            max_segments: self.pool.max_segments().into(),
            free,
            full: !self.has_room(),
            reused: self.segments_reused.load(Ordering::Relaxed),
            spilling: self.away.is_full(),
            tells_hot_apart: self.hot.is_on(),
            spills: self.spills.load(Ordering::Relaxed),
            ..PoolUsage::default()
        };
        for segment in self.existing() {
            match segment.state() {
                SegmentState::Free => continue,
                SegmentState::Open => usage.open += 1,
                SegmentState::Closed | SegmentState::Sealed | SegmentState::Collecting => usage.closed += 1,
                SegmentState::Retiring => {
                    usage.retiring += 1;
                    usage.pins += u64::from(segment.pins.load(Ordering::Relaxed));
                    continue;
                }
            }
            if segment.run_len.load(Ordering::Relaxed) == 0 {
                continue;
            }
            usage.live_bytes += segment.live_bytes();
            usage.dead_bytes += segment.dead_bytes.load(Ordering::Relaxed);
            usage.tombstones += u64::from(segment.tombstones.load(Ordering::Relaxed));
            usage.tombstone_bytes += segment.tombstone_bytes.load(Ordering::Relaxed);
            usage.entries += u64::from(segment.entries.load(Ordering::Relaxed));
            usage.written_bytes += segment.written_bytes.load(Ordering::Relaxed);
            usage.pins += u64::from(segment.pins.load(Ordering::Relaxed));
        }
        usage
    }
}
