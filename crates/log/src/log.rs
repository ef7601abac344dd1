//! The log over all nodes: pools, writer slots, where threads write, what room there is.

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
use crate::writer::Slot;
use hither_pmem::{Pool, Randomness};
use hither_sync::{Bell, Padded};
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
    /// Where generations come from.
    pub random: Randomness,
}

/// The log.
pub struct Log {
    pub(crate) pools: Vec<NodePool>,
    /// Base address of each pool: the mapping never moves (address space is reserved for growth).
    pub(crate) bases: [Base; address::MAX_NODES],
    /// The same less what size tag and node of a plain pair's reference come to, if its words are counted.
    pub(crate) pair_bases: [Base; address::MAX_NODES],
    /// Some pool tells a meter of reads.
    pub(crate) metered: bool,
    pub(crate) slots: Vec<Padded<Slot>>,
    pub(crate) slots_per_node: usize,
    shard_mask: u64,
    separate_hot: bool,
    pub(crate) zero_ahead: bool,
    pub(crate) bound: Bound,
    topology: Arc<Topology>,
    /// Where generations come from.
    pub(crate) random: Randomness,
    /// Where versions come from.
    pub clock: VersionClock,
    /// See [`Log::may_raise_versions`].
    pub(crate) settled_for_copies: AtomicU64,
    /// Held by whoever takes chunks back and seals, or looks at all segments.
    pub(crate) reclaim: Mutex<()>,
    /// Held by whoever hands freed segments on.
    pub(crate) reuse: Mutex<()>,
    /// Segments whose entries nobody has verified yet.
    pub(crate) unverified: AtomicU64,
    /// Where the verification of segments has come to ([`Log::next_life`]).
    pub(crate) verified_to: AtomicU64,
    /// Where the look at pages ahead of it has come to ([`Log::look_at_next`]); held while one segment is looked at.
    pub(crate) looked_to: Mutex<AtomicU64>,
    /// Reasons why a reader may not take an entry as it lies there: unverified segments, a meter, and what the engine knows. One word, so that
    /// the shortest read asks once.
    pub(crate) reasons: AtomicU64,
    /// Passes in progress.
    pub(crate) passes: AtomicU64,
    /// [`Log::settle`]: how often begun, and the number of the last one that has ended.
    pub(crate) settles_begun: AtomicU64,
    pub(crate) settles_done: AtomicU64,
    /// Sweeps under way.
    pub(crate) sweeps: AtomicU64,
    /// Held while ancestors are marked, until the marks are durable.
    pub(crate) burials: Mutex<()>,
    /// Held by whoever freezes slots; see the `writer` module.
    pub(crate) freezing: Mutex<()>,
    /// Raised when a segment was opened: the maintenance thread has something to do.
    pub(crate) pressure: AtomicBool,
    /// By node: rung when a segment was opened and few are left free.
    pub(crate) few_free: Box<[Bell]>,
    /// By node: rung when there is something to make ready (`ready`).
    pub(crate) needs_more: Box<[Bell]>,
    /// What is installed may not be durable yet: a medium needs syncs, or some write left its flush for later.
    pub(crate) lags: AtomicBool,
    /// Writers are slowed down where space is scarce (`pace`).
    pub(crate) paced: AtomicBool,
    /// Tombstones newer than this stay: a checkpoint may name what they deleted.
    pub(crate) tombstone_floor: AtomicU64,
    /// Some page could not be read, or some segment was set aside (`replay::unreadable`, `replay::tables`).
    pub(crate) unreadable: AtomicBool,
    /// What an opening has looked at before it read there.
    pub(crate) lookout: Lookout,
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
            slots,
            slots_per_node: options.slots_per_node,
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
            looked_to: Mutex::default(),
            reasons: AtomicU64::new(metered.into()),
            passes: AtomicU64::new(0),
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

    /// How errors name the pool of a node.
    pub fn pool_name(&self, node: usize) -> String {
        crate::replay::name_of(self.pool(node), node as u32)
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
        // Not the bits of the hash index's directory and tags, nor the latches'. Some are those of its pairs: the keys of a shard are those of some pairs of each segment.
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

    /// Pins the segment behind `reference`, so that it is not reused while the guard lives. Call under an epoch pin with a
    /// reference that was read from the index under the same pin.
    pub fn pin_segment(self: &Arc<Self>, reference: u64) -> SegmentPin {
        let at = address::unpack(reference);
        let segment = self.pools[at.node as usize].segment_index(at.offset);
        // Who frees the segment for use looks at the pins once, when the stamp that was drawn after it was retired has passed. Either the caller's epoch pin is older than that stamp: then this is seen, for the pin has ended
        // by then. Or it is not: then the index no longer had the reference when the caller read it.
        self.pools[at.node as usize].segments[segment].pins.fetch_add(1, Ordering::SeqCst);
        SegmentPin { log: self.clone(), node: at.node, segment: segment as u32 }
    }

    /// What room the pool of `node` has.
    pub fn room(&self, node: usize) -> Room {
        let pool = &self.pools[node];
        let existing = u64::from(pool.pool.segment_count());
        let limit = u64::from(pool.pool.max_segments());
        Room {
            free: pool.free_segments() + pool.awaiting_readers(),
            existing,
            growth: pool.can_grow_by(),
            limit,
            reserve: pool.reserve(Filler::Put),
        }
    }

    /// Segments of `node` that were opened for writes since the store was opened.
    pub fn openings(&self, node: usize) -> u64 {
        self.pools[node].openings.load(Ordering::Relaxed)
    }

    /// Rung whenever a segment of `node` is opened and fewer are free than collectors begin with ([`Room::early`], [`Room::before_growth`]).
    pub fn few_free(&self, node: usize) -> &Bell {
        &self.few_free[node]
    }

    /// How full each pool is. Folds the writer slots first, so that the figures are exact when no writer is active.
    pub fn usage(&self) -> Vec<PoolUsage> {
        self.fold_slots(TakeBack::None);
        self.pools.iter().map(NodePool::usage).collect()
    }

    /// Live bytes of each segment, by the numbers of a placement, so that pools may grow meanwhile: 0 where nothing is in use. As exact as [`Log::usage`].
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

#[cfg(test)]
impl Log {
    /// A log in memory with one shard, on one node, for tests.
    pub(crate) fn for_tests(pool: &hither_pmem::CreateOptions) -> Log {
        Log::for_tests_with(pool, 1)
    }

    /// The same with more shards.
    pub(crate) fn for_tests_with(pool: &hither_pmem::CreateOptions, shards: usize) -> Log {
        Log::for_tests_on(pool, 1, shards)
    }

    /// The same with a pool for each of so many nodes; threads write to the first.
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

    /// Writes an entry, with a version that is drawn here; returns its reference and that.
    pub(crate) fn write_for_tests(&self, parts: crate::entry::Parts<'_>, flush: crate::Flush) -> (u64, u64) {
        self.write_to_shard_for_tests(0, parts, flush)
    }

    /// The same to another shard than the first.
    pub(crate) fn write_to_shard_for_tests(&self, shard: u64, parts: crate::entry::Parts<'_>, flush: crate::Flush) -> (u64, u64) {
        let _section = hither_sync::epoch::pin_writer();
        let mut writer = self.writer();
        let version = writer.draw_versions(0, 1);
        let reference = writer.append(&crate::entry::Parts { version, ..parts }, crate::Append { hash: shard << 8, flush }).expect("room");
        writer.fence();
        (reference, version)
    }

    /// Copies an entry into a segment that nothing more is moved to.
    pub(crate) fn copy_for_tests(&self, source: u64) -> u64 {
        self.copy_to_node_for_tests(0, source)
    }

    /// The same on a node.
    pub(crate) fn copy_to_node_for_tests(&self, node: usize, source: u64) -> u64 {
        let entry = self.entry(source);
        let (version, keyspace) = (self.version_of(source, &entry), self.keyspace_of(source, &entry));
        let copy = self.relocator(node).append(source, &entry, version, keyspace, false).expect("room");
        self.pools[node].close_from(0);
        copy
    }
}
