//! The log over all nodes: pools, writer slots, where threads write, and how much room there is.

use crate::address;
use crate::bound::Bound;
use crate::checkpoint::Placement;
use crate::error::Error;
use crate::node::{NodePool, PoolUsage};
use crate::opening::Filler;
use crate::reclaim::TakeBack;
use crate::replay::Lookout;
use crate::segment::SegmentState;
use crate::version::VersionClock;
use hither_pmem::{Pool, Randomness};
use hither_sync::Bell;
use hither_topology::Topology;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How a log is laid out over threads.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Shards per node, a power of two.
    pub shards: usize,
    /// Writer slots per node: all but the last are owned by one thread each.
    pub slots_per_node: usize,
    /// Bytes of a chunk; 0 derives them from the segment size.
    pub chunk_bytes: u64,
    /// Zeros fresh segments on files before they are opened. Worthwhile where writes wait for syncs; where they do not,
    /// it doubles the bytes written.
    pub zero_ahead: bool,
    /// Gives entries of hot keys segments of their own.
    pub separate_hot: bool,
    /// Remembers in DRAM which entries are garbage.
    pub garbage_bits: bool,
    /// The most live bytes, in per cent of the size to which the pools may grow; `None`: as many as fit.
    pub utilization: Option<u32>,
    /// The nodes on which threads run.
    pub topology: Arc<Topology>,
    /// The source of segment generations.
    pub random: Randomness,
}

/// The log.
pub struct Log {
    pub(crate) pools: Vec<NodePool>,
    /// Base address of each pool: the mapping never moves (address space is reserved for growth).
    pub(crate) bases: [Base; address::MAX_NODES],
    /// As `bases`, less eight times the size tag and node bits of a plain pair's reference: adding eight times the
    /// whole reference then gives the pair's address.
    pub(crate) pair_bases: [Base; address::MAX_NODES],
    /// Some pool reports reads to a meter.
    pub(crate) metered: bool,
    shard_mask: u64,
    separate_hot: bool,
    pub(crate) zero_ahead: bool,
    pub(crate) bound: Bound,
    topology: Arc<Topology>,
    /// The source of segment generations.
    pub(crate) random: Randomness,
    /// The source of versions.
    pub clock: VersionClock,
    /// See [`Log::may_raise_versions`].
    pub(crate) settled_for_copies: AtomicU64,
    /// Held while chunks are taken back and segments sealed, or while all segments are examined.
    pub(crate) reclaim: Mutex<()>,
    /// Held while freed segments are handed on.
    pub(crate) reuse: Mutex<()>,
    /// Number of segments whose entries have not been verified yet.
    pub(crate) unverified: AtomicU64,
    /// How far the verification of segments has come ([`Log::next_life`]).
    pub(crate) verified_to: AtomicU64,
    /// Number of reasons why a reader may not take an entry as it lies there: unverified segments, a meter, and any
    /// that the engine notes. One word, so that the shortest read tests once.
    pub(crate) reasons: AtomicU64,
    /// [`Log::settle`]: how often it has begun, and the number of the last one that has ended.
    pub(crate) settles_begun: AtomicU64,
    pub(crate) settles_done: AtomicU64,
    /// Number of sweeps under way.
    pub(crate) sweeps: AtomicU64,
    /// Held while ancestors are marked, until the marks are durable.
    pub(crate) burials: Mutex<()>,
    /// Held while slots are frozen; see the `writer` module.
    pub(crate) freezing: Mutex<()>,
    /// Set when a segment was opened: the maintenance thread has something to do.
    pub(crate) pressure: AtomicBool,
    /// By node: rung when a segment was opened and few are left free.
    pub(crate) few_free: Box<[Bell]>,
    /// By node: rung when there is something to make ready (`ready`).
    pub(crate) needs_more: Box<[Bell]>,
    /// Installed writes may not be durable yet: a medium needs syncs, or some write has left its flush for later.
    pub(crate) lags: AtomicBool,
    /// Writers are slowed down where space is scarce (`pace`).
    pub(crate) paced: AtomicBool,
    /// Tombstones newer than this stay: a checkpoint may name entries that they deleted.
    pub(crate) tombstone_floor: AtomicU64,
    /// Some page could not be read, or some segment was set aside (`replay::unreadable`, `replay::tables`).
    pub(crate) unreadable: AtomicBool,
    /// The blocks that an opening has checked before it read there.
    pub(crate) lookout: Lookout,
    /// Bytes of segments opened so far: determines when a checkpoint is worthwhile.
    pub(crate) opened_bytes: AtomicU64,
}

/// A pool's base address.
#[derive(Clone, Copy)]
pub(crate) struct Base(pub *const u8);

// SAFETY: the address is only read; the mapping behind it lives as long as the log's pools.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// The room in a pool, in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free segments, including those that wait for readers.
    pub free: u64,
    /// Existing segments.
    pub existing: u64,
    /// Segments that may still be added.
    pub growth: u64,
    /// The most segments that may exist.
    pub limit: u64,
    /// Free segments that puts do not get, or only the one that has claimed them.
    pub reserve: u64,
}

impl Log {
    /// A log over `pools`, one per node, in node order. Scan the segments ([`crate::replay`]) before the first write.
    pub fn new(pools: Vec<Pool>, options: &LogOptions, last_version: u64) -> Log {
        crate::crc::detect();
        let nodes = pools.len();
        assert!(nodes <= address::MAX_NODES, "a reference names at most {} nodes", address::MAX_NODES);
        let shards = options.shards.next_power_of_two();
        let bytes = pools.iter().map(|pool| u64::from(pool.max_segments()) * pool.segment_bytes()).sum();
        let lags = AtomicBool::new(pools.iter().any(Pool::needs_sync));
        let mut bases = [Base(std::ptr::null()); address::MAX_NODES];
        let mut pair_bases = bases;
        for (node, pool) in pools.iter().enumerate() {
            bases[node] = Base(pool.base());
            pair_bases[node] =
                Base(pool.base().wrapping_sub((address::pack(node as u32, 0, crate::entry::MIN_BYTES) as usize).wrapping_mul(8)));
        }
        let metered = pools.iter().any(Pool::is_metered);
        Log {
            bases,
            pair_bases,
            metered,
            pools: pools.into_iter().enumerate().map(|(node, pool)| NodePool::new(node as u32, pool, shards, options)).collect(),
            shard_mask: shards as u64 - 1,
            separate_hot: options.separate_hot,
            zero_ahead: options.zero_ahead,
            bound: Bound::new(options.utilization, bytes),
            topology: options.topology.clone(),
            random: options.random.clone(),
            clock: VersionClock::after(last_version),
            settled_for_copies: AtomicU64::new(0),
            reclaim: Mutex::new(()),
            reuse: Mutex::new(()),
            unverified: AtomicU64::new(0),
            verified_to: AtomicU64::new(0),
            reasons: AtomicU64::new(metered.into()),
            settles_begun: AtomicU64::new(0),
            sweeps: AtomicU64::new(0),
            settles_done: AtomicU64::new(0),
            burials: Mutex::default(),
            freezing: Mutex::new(()),
            pressure: AtomicBool::new(false),
            few_free: (0..nodes).map(|_| Bell::default()).collect(),
            needs_more: (0..nodes).map(|_| Bell::default()).collect(),
            lags,
            paced: AtomicBool::new(false),
            tombstone_floor: AtomicU64::new(u64::MAX),
            unreadable: AtomicBool::new(false),
            lookout: Lookout::default(),
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

    /// The name of a node's pool in errors.
    pub fn pool_name(&self, node: usize) -> String {
        crate::replay::name_of(self.pool(node), node as u32)
    }

    /// Whether some pool needs flushes for durability.
    pub fn needs_flush(&self) -> bool {
        self.pools.iter().any(|pool| pool.pool.needs_flush())
    }

    /// Whether writes of sections that have ended may not be durable yet.
    pub fn may_lag(&self) -> bool {
        self.lags.load(Ordering::Relaxed)
    }

    /// The topology.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The shard of a key with this hash.
    #[inline(always)]
    pub fn shard_of(&self, hash: u64) -> usize {
        // These are neither the bits of the hash index's directory and tags nor those of the latches. Some of them
        // select the index's pairs, so the keys of a shard are those of some pairs of each index segment.
        ((hash >> 8) & self.shard_mask) as usize
    }

    /// Whether entries of hot keys get segments of their own.
    #[inline(always)]
    pub(crate) fn separates_hot(&self) -> bool {
        self.separate_hot
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

    /// Pins the segment behind `reference`, so that it is not reused while the guard lives. Call under an epoch pin
    /// with a reference that was read from the index under the same pin.
    pub fn pin_segment(self: &Arc<Self>, reference: u64) -> SegmentPin {
        let at = address::unpack(reference);
        let segment = self.pools[at.node as usize].segment_index(at.offset);
        // A thread that frees the segment for use checks the pins once, when the stamp that was drawn after the segment
        // was retired has passed. If the caller's epoch pin is older than that stamp, the thread sees this count,
        // because the pin has ended by then. If it is not, the index no longer held the reference when the caller read
        // it.
        self.pools[at.node as usize].segments[segment].pins.fetch_add(1, Ordering::SeqCst);
        SegmentPin { log: self.clone(), node: at.node, segment: segment as u32 }
    }

    /// The room in the pool of `node`.
    pub fn room(&self, node: usize) -> Room {
        let pool = &self.pools[node];
        let existing = u64::from(pool.pool.segment_count());
        let limit = u64::from(pool.pool.max_segments());
        Room {
            free: pool.free_segments() + pool.awaiting_readers(),
            existing,
            growth: pool.can_grow_by(),
            limit,
            reserve: pool.reserve(Filler::Put) + pool.claimed.load(Ordering::Relaxed),
        }
    }

    /// Segments of `node` that were opened for writes since the store was opened.
    pub fn openings(&self, node: usize) -> u64 {
        self.pools[node].openings.load(Ordering::Relaxed)
    }

    /// The bell that is rung whenever a segment of `node` is opened while fewer are free than collectors begin with
    /// ([`Room::early`], [`Room::before_growth`]).
    pub fn few_free(&self, node: usize) -> &Bell {
        &self.few_free[node]
    }

    /// The usage of each pool. Folds the writer slots first, so the figures are exact when no writer is active.
    pub fn usage(&self) -> Vec<PoolUsage> {
        self.fold_slots(TakeBack::None);
        self.pools.iter().map(NodePool::usage).collect()
    }

    /// Live bytes of each segment, by the numbers of a placement, so that pools may grow meanwhile; 0 for segments not
    /// in use. As exact as [`Log::usage`].
    pub fn live_bytes(&self, placement: &Placement) -> Vec<u64> {
        self.fold_slots(TakeBack::None);
        let segments = (0..placement.segments()).map(|number| placement.segment(number));
        let segments = segments.map(|(node, index)| &self.pools[node].segments[index]);
        segments.map(|segment| if segment.in_use() { segment.live_bytes() } else { 0 }).collect()
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

impl Log {
    /// The error for a full store: bytes in segments in use, and the growth limit, over all pools.
    pub(crate) fn full_error(&self) -> Error {
        let (mut used, mut limit) = (0, 0);
        for pool in &self.pools {
            limit += u64::from(pool.pool.max_segments()) * pool.segment_bytes();
            // The caller may hold the allocator's lock: count states instead of taking it.
            let free = pool.count_in_state(SegmentState::Free);
            used += (u64::from(pool.pool.segment_count()) - free) * pool.segment_bytes();
        }
        Error::Full { used, limit }
    }
}

#[cfg(test)]
impl Log {
    /// A log in memory with one shard, on one node, for tests.
    pub(crate) fn for_tests(pool: &hither_pmem::CreateOptions) -> Log {
        Log::for_tests_with(pool, 1)
    }

    /// As [`Log::for_tests`], with more shards.
    pub(crate) fn for_tests_with(pool: &hither_pmem::CreateOptions, shards: usize) -> Log {
        Log::for_tests_on(pool, 1, shards)
    }

    /// As [`Log::for_tests_with`], with a pool for each of `nodes` nodes; threads write to the first.
    pub(crate) fn for_tests_on(pool: &hither_pmem::CreateOptions, nodes: usize, shards: usize) -> Log {
        let pools = (0..nodes).map(|_| Pool::create_in_memory(pool).expect("memory")).collect();
        let options = LogOptions {
            shards,
            // Enough for the threads of all tests that run at the same time.
            slots_per_node: 129,
            chunk_bytes: 0,
            zero_ahead: false,
            separate_hot: false,
            garbage_bits: true,
            utilization: None,
            topology: Arc::new(Topology::single()),
            random: Randomness::System,
        };
        Log::new(pools, &options, 0)
    }

    /// Writes an entry with a version that is drawn here. Returns its reference and version.
    pub(crate) fn write_for_tests(&self, parts: crate::entry::Parts<'_>, flush: crate::Flush) -> (u64, u64) {
        self.write_to_shard_for_tests(0, parts, flush)
    }

    /// As [`Log::write_for_tests`], to a given shard.
    pub(crate) fn write_to_shard_for_tests(&self, shard: u64, parts: crate::entry::Parts<'_>, flush: crate::Flush) -> (u64, u64) {
        let _section = hither_sync::epoch::pin_writer();
        let mut guard = self.writer();
        let mut writer = guard.lent();
        let version = writer.draw_versions(0, 1);
        let reference = writer.append(&crate::entry::Parts { version, ..parts }, crate::Append { hash: shard << 8, flush }).expect("room");
        writer.fence();
        (reference, version)
    }

    /// Copies an entry into a segment to which nothing more is moved.
    pub(crate) fn copy_for_tests(&self, source: u64) -> u64 {
        self.copy_to_node_for_tests(0, source)
    }

    /// As [`Log::copy_for_tests`], to a given node.
    pub(crate) fn copy_to_node_for_tests(&self, node: usize, source: u64) -> u64 {
        let entry = self.entry(source);
        let (version, keyspace) = (self.version_of(source, &entry), self.keyspace_of(source, &entry));
        let copy = self.relocator(node).append(source, &entry, version, keyspace, false).expect("room");
        self.pools[node].close_from(0);
        copy
    }
}
