//! The log over all nodes: pools, writer slots, segment allocation.

use crate::address;
use crate::bound::Bound;
use crate::entry::Parts;
use crate::error::{Error, Result};
use crate::garbage::GarbageMap;
use crate::hot::HotSet;
use crate::reclaim::TakeBack;
use crate::segment::{Chunk, Segment, SegmentState, Tally};
use crate::version::VersionClock;
use crate::writer::Slot;
use hither_pmem::{Descriptor, Pool, SegmentState as OnMedia};
use hither_sync::{Bell, Padded};
use hither_topology::Topology;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// How a log is laid out over threads.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Shards per node (N2), a power of two.
    pub shards: usize,
    /// Writer slots per node: all but the last are owned by one thread each.
    pub slots_per_node: usize,
    /// Bytes of a chunk; 0: derived from the segment size.
    pub chunk_bytes: u64,
    /// Zero fresh segments on files before they are opened: worth it where writes wait for syncs, twice the bytes where they do not.
    pub zero_ahead: bool,
    /// Give entries of hot keys segments of their own.
    pub separate_hot: bool,
    /// Remember in DRAM which entries are garbage.
    pub garbage_bits: bool,
    /// Most live bytes, in per cent of what the pools may grow to; absent: as many as fit.
    pub utilization: Option<u32>,
    /// Where threads run.
    pub topology: Arc<Topology>,
}

/// The log.
pub struct Log {
    pub(crate) pools: Vec<NodePool>,
    /// Base address of each pool: the mapping never moves (address space is reserved for growth).
    pub(crate) bases: [Base; address::MAX_NODES],
    /// Some pool tells a meter of reads.
    pub(crate) metered: bool,
    pub(crate) slots: Vec<Padded<Slot>>,
    pub(crate) slots_per_node: usize,
    shard_mask: u64,
    separate_hot: bool,
    zero_ahead: bool,
    pub(crate) bound: Bound,
    topology: Arc<Topology>,
    /// Where versions come from.
    pub clock: VersionClock,
    pub(crate) reclaim: Mutex<()>,
    /// Segments in state Retiring.
    pub(crate) waiting_for_readers: AtomicU64,
    /// Segments whose entries nobody has verified yet.
    pub(crate) unverified: AtomicU64,
    /// Passes in progress.
    pub(crate) passes: AtomicU64,
    /// [`Log::settle`]: how often begun, and the number of the last one that has ended.
    pub(crate) settles_begun: AtomicU64,
    pub(crate) settles_done: AtomicU64,
    /// When the writers' counts were last folded, in nanoseconds since `started`.
    pub(crate) folded_ns: AtomicU64,
    pub(crate) started: Instant,
    /// Held while ancestors are marked, until the marks are durable.
    pub(crate) burials: Mutex<()>,
    /// Held by whoever freezes slots; see the `writer` module.
    pub(crate) freezing: Mutex<()>,
    /// Raised when a segment was opened: the maintenance thread has something to do.
    pub(crate) pressure: AtomicBool,
    /// By node: rung when a segment was opened and few are left free.
    few_free: Box<[Bell]>,
    /// What is installed may not be durable yet: a medium needs syncs, or some write left its flush for later.
    pub(crate) lags: AtomicBool,
    /// Writers are slowed down where space is scarce (`pace`).
    pub(crate) paced: AtomicBool,
    /// Tombstones newer than this stay: a checkpoint may name what they deleted.
    pub(crate) tombstone_floor: AtomicU64,
    /// Bytes of segments opened so far: tells when a checkpoint is worth while.
    pub(crate) opened_bytes: AtomicU64,
}

/// A pool's base address.
#[derive(Clone, Copy)]
pub(crate) struct Base(pub *const u8);

// SAFETY: the address is only read; the mapping behind it lives as long as the log's pools.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// One node's pool and what DRAM knows of its segments.
pub(crate) struct NodePool {
    pub node: u32,
    pub pool: Pool,
    pub segments: Box<[Segment]>,
    pub garbage: GarbageMap,
    pub hot: HotSet,
    pub data_offset: u64,
    segment_shift: u32,
    pub chunk_bytes: u64,
    /// By shard, then one for hot entries of all shards; the last one is for moved entries.
    active: Vec<Mutex<Active>>,
    /// What collectors left of their chunks. Their segments may be closed; they are not sealed before.
    cold_rests: Mutex<Vec<Chunk>>,
    alloc: Mutex<Allocator>,
    pub segments_reused: AtomicU64,
    /// Its threads append elsewhere.
    pub full: AtomicBool,
    /// How often that began.
    pub spills: AtomicU64,
    /// What freed segments held.
    pub freed: crate::appended::Freed,
}

/// A shard's active segment.
struct Active {
    segment: Option<u32>,
    /// Next byte to hand out, as offset in the pool.
    tail: u64,
    end: u64,
}

/// The shard number of segments for moved entries ("cold"), in descriptors too: no shard has it, however many there are.
pub const COLD_SHARD: u16 = u16::MAX;

/// What a segment is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    pub keyspace: u32,
    pub shard: u32,
    pub kind: Filler,
}

/// Who is going to fill it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filler {
    /// Puts.
    Put,
    /// A delete: may use most of the reserve, so that a full store can be emptied.
    Delete,
    /// A collector: may use all of it, so that there is always room to move what is live.
    Move,
}

impl Purpose {
    pub fn of(parts: &Parts<'_>, shard: usize) -> Purpose {
        let kind = if parts.op == crate::Op::Delete { Filler::Delete } else { Filler::Put };
        Purpose { keyspace: parts.keyspace, shard: shard as u32, kind }
    }
}

/// Free segments of one pool, ascending.
struct Allocator {
    free: std::collections::BTreeSet<u32>,
    /// Segments below this were handed out or freed at least once.
    count: u32,
}

/// What room a pool has, in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free ones, those that wait for readers included.
    pub free: u64,
    /// Existing ones.
    pub existing: u64,
    /// How many more may be made.
    pub growth: u64,
    /// The most that may exist.
    pub limit: u64,
    /// Free ones that puts do not get.
    pub reserve: u64,
}

/// How a pool is filled.
#[derive(Clone, Debug, Default)]
pub struct PoolUsage {
    /// Node.
    pub node: u32,
    /// Segments that exist on media.
    pub segments: u64,
    /// Segments that may exist after growth.
    pub max_segments: u64,
    /// Free ones among those that exist.
    pub free: u64,
    /// Open for appends.
    pub open: u64,
    /// Closed or sealed.
    pub closed: u64,
    /// Free on media, waiting for readers.
    pub retiring: u64,
    /// Bytes of entries that count.
    pub live_bytes: u64,
    /// Bytes of superseded entries.
    pub dead_bytes: u64,
    /// Entries of hot keys get segments of their own now.
    pub tells_hot_apart: bool,
    /// Bytes of tombstones.
    pub tombstone_bytes: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Entries written into segments in use.
    pub entries: u64,
    /// Bytes of entries written into segments in use.
    pub written_bytes: u64,
    /// Segments opened again after they had been freed.
    pub reused: u64,
    /// Value guards that pin segments.
    pub pins: u64,
    /// No segment is left that a put may open, unless some are freed.
    pub full: bool,
    /// The pool is full, and threads of its node append to another one's.
    pub spilling: bool,
    /// How often that has begun since the store was opened.
    pub spills: u64,
}

impl Log {
    /// A log over `pools`, one per node, in node order. Scan the segments ([`crate::replay`]) before the first write.
    pub fn new(pools: Vec<Pool>, options: &LogOptions, last_version: u64) -> Log {
        let nodes = pools.len();
        assert!(nodes <= address::MAX_NODES, "a reference names at most {} nodes", address::MAX_NODES);
        let shards = options.shards.next_power_of_two();
        let bytes = pools.iter().map(|pool| u64::from(pool.max_segments()) * pool.segment_bytes()).sum();
        let lags = AtomicBool::new(pools.iter().any(Pool::needs_sync));
        let slots: Vec<_> = (0..nodes * options.slots_per_node).map(|_| Slot::new(shards + 1, nodes)).collect();
        let mut bases = [Base(std::ptr::null()); address::MAX_NODES];
        for (base, pool) in bases.iter_mut().zip(&pools) {
            *base = Base(pool.base());
        }
        Log {
            bases,
            metered: pools.iter().any(Pool::is_metered),
            pools: pools.into_iter().enumerate().map(|(node, pool)| NodePool::new(node as u32, pool, shards, options)).collect(),
            slots,
            slots_per_node: options.slots_per_node,
            shard_mask: shards as u64 - 1,
            separate_hot: options.separate_hot,
            zero_ahead: options.zero_ahead,
            bound: Bound::new(options.utilization, bytes),
            topology: options.topology.clone(),
            clock: VersionClock::after(last_version),
            reclaim: Mutex::new(()),
            waiting_for_readers: AtomicU64::new(0),
            unverified: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            settles_begun: AtomicU64::new(0),
            settles_done: AtomicU64::new(0),
            folded_ns: AtomicU64::new(0),
            started: Instant::now(),
            burials: Mutex::default(),
            freezing: Mutex::new(()),
            pressure: AtomicBool::new(false),
            few_free: (0..nodes).map(|_| Bell::default()).collect(),
            lags,
            paced: AtomicBool::new(false),
            tombstone_floor: AtomicU64::new(u64::MAX),
            opened_bytes: AtomicU64::new(0),
        }
    }

    /// Number of pools.
    pub fn nodes(&self) -> usize {
        self.pools.len()
    }

    /// Shards per node.
    pub fn shards(&self) -> usize {
        self.shard_mask as usize + 1
    }

    /// The pool of a node.
    pub fn pool(&self, node: usize) -> &Pool {
        &self.pools[node].pool
    }

    /// Whether some pool needs flushes for durability.
    pub fn needs_flush(&self) -> bool {
        self.pools.iter().any(|pool| pool.pool.needs_flush())
    }

    /// Whether something may not be durable that was written in a section that has ended.
    pub fn may_lag(&self) -> bool {
        self.lags.load(Ordering::Relaxed)
    }

    /// The topology.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// Shard of a key with this hash.
    #[inline(always)]
    pub fn shard_of(&self, hash: u64) -> usize {
        // Bits that neither the index's directory (high) nor its tags and latches use.
        ((hash >> 8) & self.shard_mask) as usize
    }

    /// Whether entries of hot keys get segments of their own.
    #[inline(always)]
    pub(crate) fn separates_hot(&self) -> bool {
        self.separate_hot
    }

    /// The node whose pool the calling thread appends to: its own, unless that is full and writes spill ([`Log::spill_from`]).
    #[inline(always)]
    pub fn local_node(&self) -> usize {
        if self.pools.len() == 1 {
            return 0;
        }
        let node = self.topology.current_node() as usize % self.pools.len();
        if self.pools[node].full.load(Ordering::Relaxed) { self.spill_target(node).unwrap_or(node) } else { node }
    }

    /// The next node that is not full.
    #[cold]
    fn spill_target(&self, node: usize) -> Option<usize> {
        (1..self.pools.len()).map(|step| (node + step) % self.pools.len()).find(|&other| !self.pools[other].full.load(Ordering::Relaxed))
    }

    /// Declares a node full: its threads append to the next one that is not, until segments of this one are free again. False if all are full.
    pub fn spill_from(&self, node: usize) -> bool {
        if self.spill_target(node).is_none() {
            return false;
        }
        if !self.pools[node].full.swap(true, Ordering::Relaxed) {
            self.pools[node].spills.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Base version of the segment behind a reference.
    #[inline(always)]
    pub fn base_version(&self, node: u32, offset: u64) -> u64 {
        let pool = &self.pools[node as usize];
        pool.segments[pool.segment_index(offset)].base_version.load(Ordering::Relaxed)
    }

    /// Keyspace of the segment behind a reference.
    #[inline(always)]
    pub fn segment_keyspace(&self, node: u32, offset: u64) -> u32 {
        let pool = &self.pools[node as usize];
        pool.segments[pool.segment_index(offset)].keyspace.load(Ordering::Relaxed)
    }

    /// Node and number of the segment behind a reference.
    pub fn segment_of(&self, reference: u64) -> (u32, u32) {
        let at = address::unpack(reference);
        (at.node, self.pools[at.node as usize].segment_index(at.offset) as u32)
    }

    /// Pins the segment behind `reference`, so that it is not reused while the guard lives. Call under an epoch pin with a
    /// reference that was read from the index under the same pin.
    pub fn pin_segment(self: &Arc<Self>, reference: u64) -> SegmentPin {
        let at = address::unpack(reference);
        let segment = self.pools[at.node as usize].segment_index(at.offset);
        // SeqCst: the reclaimer draws its epoch stamp after it has seen no pins, and waits for our epoch pin; afterwards it looks again.
        self.pools[at.node as usize].segments[segment].pins.fetch_add(1, Ordering::SeqCst);
        SegmentPin { log: self.clone(), node: at.node, segment: segment as u32 }
    }

    /// What room the pool of `node` has. O(segments) only while some wait for readers.
    pub fn room(&self, node: usize) -> Room {
        let pool = &self.pools[node];
        let existing = u64::from(pool.pool.segment_count());
        let limit = u64::from(pool.pool.max_segments());
        let waiting = self.waiting_for_readers.load(Ordering::Relaxed);
        let retiring = if waiting == 0 { 0 } else { pool.count_in_state(SegmentState::Retiring) };
        Room { free: pool.free_segments() + retiring, existing, growth: limit - existing, limit, reserve: pool.reserve(Filler::Put) }
    }

    /// Rung whenever a segment of `node` is opened and fewer are free than collectors begin with ([`Room::early`]).
    pub fn few_free(&self, node: usize) -> &Bell {
        &self.few_free[node]
    }

    /// How full each pool is. Folds the writer slots first, so that the figures are exact when no writer is active.
    pub fn usage(&self) -> Vec<PoolUsage> {
        self.fold_slots(TakeBack::None);
        self.pools.iter().map(NodePool::usage).collect()
    }

    /// Bytes of DRAM for segment states, for what is known to be garbage, and for writer slots.
    pub fn dram_bytes(&self) -> usize {
        let segments: usize = self.pools.iter().map(|pool| pool.segments.len() * size_of::<Segment>()).sum();
        segments + self.garbage_map_bytes() + self.slots.len() * (size_of::<Padded<Slot>>() + (self.shards() + 1) * size_of::<Chunk>())
    }
}

/// Keeps a segment from being reused.
pub struct SegmentPin {
    log: Arc<Log>,
    node: u32,
    segment: u32,
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        self.log.pools[self.node as usize].segments[self.segment as usize].pins.fetch_sub(1, Ordering::SeqCst);
    }
}

impl NodePool {
    fn new(node: u32, pool: Pool, shards: usize, options: &LogOptions) -> NodePool {
        let segment_bytes = pool.segment_bytes();
        let max = pool.max_segments() as usize;
        let chunk_bytes = match options.chunk_bytes {
            0 => (segment_bytes / 16).clamp(512, 64 << 10),
            given => given.min(segment_bytes),
        };
        NodePool {
            node,
            data_offset: pool.segment_offset(0),
            segment_shift: segment_bytes.trailing_zeros(),
            chunk_bytes,
            segments: zeroed_segments(max),
            garbage: GarbageMap::new(if options.garbage_bits { max } else { 0 }, segment_bytes),
            hot: HotSet::new(),
            active: (0..shards + 2).map(|_| Mutex::new(Active { segment: None, tail: 0, end: 0 })).collect(),
            cold_rests: Mutex::default(),
            alloc: Mutex::new(Allocator { free: std::collections::BTreeSet::new(), count: pool.segment_count() }),
            segments_reused: AtomicU64::new(0),
            full: AtomicBool::new(false),
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

    pub fn free_segments(&self) -> u64 {
        self.alloc.lock().free.len() as u64
    }

    fn count_in_state(&self, state: SegmentState) -> u64 {
        self.segments[..self.pool.segment_count() as usize].iter().filter(|segment| segment.state() == state).count() as u64
    }

    /// Segments that can be made still.
    pub fn can_grow_by(&self) -> u64 {
        u64::from(self.pool.max_segments() - self.pool.segment_count())
    }

    /// Free segments that are not for everybody.
    pub fn reserve(&self, kind: Filler) -> u64 {
        let max = u64::from(self.pool.max_segments());
        let reserve = (max / 64).clamp(3, 9).min(max / 4);
        match kind {
            Filler::Put => reserve,
            Filler::Delete => reserve / 3,
            Filler::Move => 0,
        }
    }

    /// Counts a chunk's entries into its segment.
    pub fn give_back(&self, chunk: &Chunk) {
        if chunk.is_none() {
            return;
        }
        let segment = &self.segments[chunk.segment as usize];
        segment.absorb(&chunk.tally);
        segment.open_chunks.fetch_sub(1, Ordering::Release);
    }

    /// A chunk of the shard's active segment that `parts` fits into; opens a new segment if need be.
    pub fn take_chunk(&self, log: &Log, shard: usize, parts: &Parts<'_>) -> Result<Chunk> {
        let fits = |segment: &Segment| crate::entry::version_fits(segment.base_version.load(Ordering::Relaxed), parts.version);
        self.take_chunk_for(&self.active[shard], log, Purpose::of(parts, shard), parts, fits)
    }

    /// As [`NodePool::take_chunk`], for an entry that a collector moves. (A version below the base is no obstacle: it is written out.)
    pub fn take_cold_chunk(&self, log: &Log, parts: &Parts<'_>) -> Result<Chunk> {
        let mut rests = self.cold_rests.lock();
        let fits = |chunk: &Chunk| chunk.end - chunk.cursor >= parts.size(chunk.keyspace, chunk.base_version);
        if let Some(at) = rests.iter().position(fits) {
            return Ok(rests.swap_remove(at));
        }
        drop(rests);
        let purpose = Purpose { keyspace: parts.keyspace, shard: COLD_SHARD.into(), kind: Filler::Move };
        self.take_chunk_for(&self.active[log.shards() + 1], log, purpose, parts, |_| true)
    }

    fn take_chunk_for(
        &self,
        active: &Mutex<Active>,
        log: &Log,
        purpose: Purpose,
        parts: &Parts<'_>,
        fits: impl Fn(&Segment) -> bool,
    ) -> Result<Chunk> {
        let mut active = active.lock();
        loop {
            if let Some(segment) = active.segment {
                // A collector fills its chunk without a gap, and gives the rest back: it may be large.
                let least = if purpose.kind == Filler::Move { self.segment_bytes() / 2 } else { self.chunk_bytes };
                if fits(&self.segments[segment as usize])
                    && let Some(chunk) = self.carve(segment, &mut active, parts, least)
                {
                    return Ok(chunk);
                }
                self.segments[segment as usize].set_state(SegmentState::Closed);
                active.segment = None;
            }
            let segment = self.open_segments(log, 1, purpose)?;
            *active = Active { segment: Some(segment), tail: self.pool.segment_offset(segment), end: self.segment_end(segment) };
        }
    }

    /// Gives the rest of a moved entries' chunk back to its segment, or, if another one was taken since, leaves it to the next collector.
    pub fn return_cold_chunk(&self, log: &Log, chunk: &mut Chunk) {
        let mut active = self.active[log.shards() + 1].lock();
        let rest = chunk.cursor.next_multiple_of(64).min(chunk.end);
        if active.segment == Some(chunk.segment) && active.tail == chunk.end {
            active.tail = rest;
        } else if rest < chunk.end {
            // Under the lock of the active segment: whoever closes it finds the rest.
            self.segments[chunk.segment as usize].absorb(&std::mem::replace(&mut chunk.tally, Tally::EMPTY));
            self.cold_rests.lock().push(Chunk { cursor: rest, ..*chunk });
            return;
        }
        drop(active);
        self.give_back(chunk);
    }

    /// Bytes left in the segment that moved entries go to now.
    pub fn cold_rest(&self) -> u64 {
        let active = self.active.last().expect("every pool has a stream of moved entries").lock();
        active.segment.map_or(0, |_| active.end - active.tail)
    }

    fn carve(&self, index: u32, active: &mut Active, parts: &Parts<'_>, least: u64) -> Option<Chunk> {
        let segment = &self.segments[index as usize];
        let base_version = segment.base_version.load(Ordering::Relaxed);
        let keyspace = segment.keyspace.load(Ordering::Relaxed);
        let size = parts.size(keyspace, base_version);
        let left = active.end - active.tail;
        if left < size {
            return None;
        }
        let bytes = size.next_multiple_of(64).max(least).min(left);
        let cursor = active.tail;
        active.tail += bytes;
        segment.open_chunks.fetch_add(1, Ordering::Relaxed);
        Some(Chunk {
            segment: index,
            cursor,
            end: cursor + bytes,
            generation: segment.generation.load(Ordering::Relaxed),
            base_version,
            keyspace,
            tally: Tally::EMPTY,
            seen: 0,
        })
    }

    /// Closes the active segments of the shards from `shard` on, and those of moved entries: what comes goes to new ones.
    pub fn close_from(&self, shard: usize) {
        for active in self.active.iter().skip(shard) {
            let mut active = active.lock();
            if let Some(segment) = active.segment.take() {
                self.segments[segment as usize].set_state(SegmentState::Closed);
            }
        }
        self.cold_rests.lock().drain(..).for_each(|rest| self.give_back(&rest));
    }

    /// The next byte to hand out of a segment, if it is a shard's active one.
    pub fn active_tail(&self, index: u32) -> Option<u64> {
        self.active.iter().find_map(|active| {
            let active = active.lock();
            (active.segment == Some(index)).then_some(active.tail)
        })
    }

    /// Makes a half-filled segment the active one of its shard, if the shard has none and there is room behind `tail`.
    pub fn resume_segment(&self, index: u32, shard: u32, tail: u64) -> bool {
        let (cold, shards) = self.active.split_last().expect("every pool has a stream of moved entries");
        // There may be fewer shards than last time.
        let stream = if shard == u32::from(COLD_SHARD) { Some(cold) } else { shards.get(shard as usize) };
        let Some(active) = stream else { return false };
        let mut active = active.lock();
        // Whole lines: no line is shared with what was there before the restart.
        let tail = tail.next_multiple_of(64);
        let end = self.segment_end(index);
        if active.segment.is_some() || end.saturating_sub(tail) < self.chunk_bytes {
            return false;
        }
        self.segments[index as usize].set_state(SegmentState::Open);
        *active = Active { segment: Some(index), tail, end };
        true
    }

    fn segment_end(&self, segment: u32) -> u64 {
        self.pool.segment_offset(segment) + self.segment_bytes()
    }

    /// Opens a run of segments for one large entry.
    pub fn open_run(&self, log: &Log, size: u64, keyspace: u32, shard: u32) -> Result<Chunk> {
        let run_len = size.div_ceil(self.segment_bytes()) as u32;
        let index = self.open_segments(log, run_len, Purpose { keyspace, shard, kind: Filler::Put })?;
        let segment = &self.segments[index as usize];
        segment.open_chunks.fetch_add(1, Ordering::Relaxed);
        Ok(Chunk {
            segment: index,
            cursor: self.pool.segment_offset(index),
            end: self.pool.segment_offset(index) + u64::from(run_len) * self.segment_bytes(),
            generation: segment.generation.load(Ordering::Relaxed),
            base_version: segment.base_version.load(Ordering::Relaxed),
            keyspace,
            tally: Tally::EMPTY,
            seen: 0,
        })
    }

    /// A run is full as soon as its entry is written.
    pub fn close_run(&self, segment: u32, tally: &Tally) {
        let state = &self.segments[segment as usize];
        state.absorb(tally);
        state.set_state(SegmentState::Closed);
        state.open_chunks.fetch_sub(1, Ordering::Release);
    }

    /// Takes `run_len` adjacent free segments, zeroes what was used before (L1) and makes the descriptor active.
    fn open_segments(&self, log: &Log, run_len: u32, purpose: Purpose) -> Result<u32> {
        let index = self.allocate(log, run_len, purpose.kind)?;
        match self.activate(log, index, run_len, purpose) {
            Ok(()) => Ok(index),
            Err(error) => {
                let mut alloc = self.alloc.lock();
                alloc.free.extend(index..index + run_len);
                Err(error)
            }
        }
    }

    fn activate(&self, log: &Log, index: u32, run_len: u32, purpose: Purpose) -> Result<()> {
        let Purpose { keyspace, shard, kind } = purpose;
        for part in index..index + run_len {
            let segment = &self.segments[part as usize];
            let used = segment.generation.load(Ordering::Relaxed) != 0;
            let zeroed = segment.zeroed.load(Ordering::Relaxed);
            // On files fresh ones too: the first write into an extent that was only reserved costs a commit of the file system's journal
            // with every sync (decision 20).
            if !zeroed && (used || (log.zero_ahead && self.pool.needs_sync())) {
                self.pool.zero_segment(part, 1)?;
            }
            self.segments_reused.fetch_add(u64::from(used), Ordering::Relaxed);
        }
        // Threads may hold blocks of versions drawn long ago: the base leaves room below. Moved entries are older than any to come.
        let room_below = if kind == Filler::Move { u64::from(u32::MAX) } else { 1 << 31 };
        let base_version = log.clock.upper_bound().saturating_sub(room_below);
        let descriptor = Descriptor {
            generation: next_generation(self.segments[index as usize].generation.load(Ordering::Relaxed))?,
            base_version,
            owner_epoch: 0,
            sealed_bytes: 0,
            keyspace,
            run_len,
            entries: 0,
            shard: shard as u16,
            state: OnMedia::Active,
            ..Descriptor::default()
        };
        // Interior segments of a run have no descriptor of their own, but must be known as used once the run is freed.
        for part in index + 1..index + run_len {
            self.pool.commit_descriptor(part, &Descriptor { state: OnMedia::Free, run_len: 1, ..descriptor })?;
        }
        self.pool.commit_descriptor(index, &descriptor)?;
        let segment = &self.segments[index as usize];
        segment.reset(descriptor.generation, base_version, keyspace, shard, run_len);
        self.garbage.clear(index as usize);
        for part in index + 1..index + run_len {
            // Interior segments: remembered as used, so that they are zeroed before they are opened again.
            self.segments[part as usize].reset(descriptor.generation, base_version, keyspace, shard, 0);
            self.garbage.clear(part as usize);
            self.segments[part as usize].set_state(SegmentState::Sealed);
        }
        segment.opened_at.store(log.opened_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        segment.set_state(SegmentState::Open);
        log.pressure.store(true, Ordering::Relaxed);
        let room = log.room(self.node as usize);
        if room.free < room.early() {
            log.few_free[self.node as usize].ring();
        }
        log.opened_bytes.fetch_add(u64::from(run_len) * self.segment_bytes(), Ordering::Relaxed);
        if kind == Filler::Put {
            log.look_at_bound();
        }
        Ok(())
    }

    /// Finds `run_len` adjacent free segments, growing the pool within its limit.
    fn allocate(&self, log: &Log, run_len: u32, kind: Filler) -> Result<u32> {
        let mut alloc = self.alloc.lock();
        let reserve = self.reserve(kind);
        loop {
            let available = alloc.free.len() as u64 + self.can_grow_by();
            if available >= u64::from(run_len) + reserve
                && let Some(first) = first_run(&alloc.free, run_len)
            {
                for part in first..first + run_len {
                    alloc.free.remove(&part);
                }
                return Ok(first);
            }
            let by = self.can_grow_by().min(u64::from(run_len).max(u64::from(alloc.count) / 4).max(1));
            if by == 0 || available < u64::from(run_len) + reserve {
                return Err(log.full_error());
            }
            let now = self.grow(by, u64::from(run_len).min(by))? as u32;
            let before = alloc.count;
            alloc.free.extend(before..now);
            alloc.count = now;
        }
    }

    /// Adds `most` segments, or, on a disk that has no room for them, half as many, and so on down to `least`; returns how many there are then.
    fn grow(&self, most: u64, least: u64) -> Result<u64> {
        let mut by = most;
        loop {
            match self.pool.grow(by) {
                Err(hither_pmem::Error::DiskFull { .. }) if by > least => by = (by / 2).max(least),
                grown => return Ok(grown?),
            }
        }
    }

    fn usage(&self) -> PoolUsage {
        let free = self.free_segments();
        let mut usage = PoolUsage {
            node: self.node,
            segments: self.pool.segment_count().into(),
            max_segments: self.pool.max_segments().into(),
            free,
            full: free + self.can_grow_by() <= self.reserve(Filler::Put),
            reused: self.segments_reused.load(Ordering::Relaxed),
            spilling: self.full.load(Ordering::Relaxed),
            tells_hot_apart: self.hot.is_on(),
            spills: self.spills.load(Ordering::Relaxed),
            ..PoolUsage::default()
        };
        for segment in &self.segments[..self.pool.segment_count() as usize] {
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

impl Log {
    /// Bytes in segments in use and the growth limit, over all pools.
    pub(crate) fn full_error(&self) -> Error {
        let (mut used, mut limit) = (0, 0);
        for pool in &self.pools {
            limit += u64::from(pool.pool.max_segments()) * pool.segment_bytes();
            // The caller may hold the allocator's lock: count states instead of asking it.
            let free = pool.count_in_state(SegmentState::Free);
            used += (u64::from(pool.pool.segment_count()) - free) * pool.segment_bytes();
        }
        Error::Full { used, limit }
    }
}

/// First of `len` adjacent members of `free`.
fn first_run(free: &std::collections::BTreeSet<u32>, len: u32) -> Option<u32> {
    let (mut first, mut count) = (0, 0);
    for &segment in free {
        if count == 0 || segment != first + count {
            (first, count) = (segment, 0);
        }
        count += 1;
        if count == len {
            return Some(first);
        }
    }
    None
}

/// A generation: random, so that it cannot be foreseen, and never zero, which means "never used". Its low byte, all that a link remembers, counts
/// up from the one `before`.
fn next_generation(before: u64) -> Result<u64> {
    loop {
        let random = getrandom::u64().map_err(Error::Random)?;
        let generation = if before == 0 { random } else { random & !0xff | before.wrapping_add(1) & 0xff };
        if generation != 0 {
            return Ok(generation);
        }
    }
}

fn zeroed_segments(count: usize) -> Box<[Segment]> {
    let zeroed = Box::<[Segment]>::new_zeroed_slice(count);
    // SAFETY: a segment consists of atomics, for which zero bytes are valid. (Zeroed pages are not touched until used.)
    unsafe { zeroed.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_lowest_first() {
        let free: std::collections::BTreeSet<u32> = [1, 3, 4, 6, 7, 8].into();
        assert_eq!(first_run(&free, 1), Some(1));
        assert_eq!(first_run(&free, 2), Some(3));
        assert_eq!(first_run(&free, 3), Some(6));
        assert_eq!(first_run(&free, 4), None);
    }
}
