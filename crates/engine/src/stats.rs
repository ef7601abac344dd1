//! Statistics: what the store holds, where, and how durable it is.
//!
//! Thread safety: any thread may ask for statistics at any time; the numbers need not be of one moment.

use crate::cache::CacheReport;
use crate::keyspace::Kind;
use crate::options::Durability;
use crate::read::ValueGuard;
use crate::store::Store;
use hither_topology::MeterSnapshot;
use serde::Serialize;

/// Statistics of a keyspace.
#[derive(Clone, Debug)]
pub struct KeyspaceStats {
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Number of keys, including expired ones that are not swept yet.
    pub keys: u64,
    /// Keys whose expiry is yet to come, as counted by the last sweep; 0 before the first sweep after an opening.
    pub expiring: u64,
    /// DRAM of the keyspace's index, in bytes.
    pub index_bytes: u64,
}

/// Statistics of a pool.
#[derive(Clone, Debug)]
pub struct PoolStats {
    /// Node of the pool.
    pub node: u32,
    /// Path of the pool's file, or "(memory)".
    pub path: String,
    /// Medium, such as "file" or "fsdax".
    pub medium: String,
    /// Where data must be to survive a power loss: "adr", "eadr", "pagecache" or "none".
    pub persistence_domain: String,
    /// Instruction that flushes cache lines.
    pub flush: String,
    /// Whether acknowledged writes survive a power loss on this medium.
    pub durable: bool,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// How the pool is filled.
    pub usage: hither_log::PoolUsage,
    /// Bytes of entries that writers have appended since the store was opened.
    pub appended_bytes: u64,
    /// Bytes of copies that collectors have appended since the store was opened.
    pub copied_bytes: u64,
    /// Segments that collectors have emptied and freed since the store was opened.
    pub collected_segments: u64,
    /// Bytes of these segments.
    pub collected_bytes: u64,
    /// Processor time of these collections, in nanoseconds, including that of writers that collected by themselves.
    pub collector_cpu_ns: u64,
}

impl PoolStats {
    /// Live bytes as a share of the bytes of all segments that the pool may have, 0 to 1.
    pub fn utilization(&self) -> f64 {
        share(self.usage.live_bytes, self.usage.max_segments * self.segment_bytes)
    }

    /// Bytes appended for each byte that writers appended: 1 if nothing was copied, 0 if nothing was written.
    pub fn write_amplification(&self) -> f64 {
        share(self.appended_bytes + self.copied_bytes, self.appended_bytes)
    }

    /// Bytes of segments emptied per second of the collectors' processor time.
    pub fn collected_per_cpu_second(&self) -> f64 {
        share(self.collected_bytes, self.collector_cpu_ns) * 1e9
    }
}

/// `part / whole`, or 0 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What the garbage collectors have done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CollectionStats {
    /// Segments emptied and freed.
    pub segments: u64,
    /// Entries moved.
    pub moved_entries: u64,
    /// Entries among these that only a snapshot showed.
    pub moved_for_snapshots: u64,
    /// Bytes of entries moved.
    pub moved_bytes: u64,
    /// Superseded entries marked dead on media, so that they cannot come back.
    pub buried: u64,
    /// Tombstones moved. They stay until a sweep has marked the entries that they hide.
    pub moved_tombstones: u64,
    /// Copies that came too late, because their keys were written meanwhile.
    pub too_late: u64,
    /// Entries of emptied segments that were known to be garbage, so that no index was asked for them.
    pub known_garbage: u64,
    /// Current entries whose shortcut led to the leaf of the index that names them.
    pub shortcut_hits: u64,
    /// Current entries whose shortcut led to the leaf beside that one: a split had moved them.
    pub shortcut_sibling_hits: u64,
    /// Current entries whose shortcut led nowhere, so that they were looked up.
    pub shortcut_fallbacks: u64,
    /// Sweeps that allowed tombstones to be dropped.
    pub sweeps: u64,
    /// Entries that these sweeps marked dead on media.
    pub swept: u64,
    /// Time of these sweeps, in milliseconds.
    pub sweep_ms: u64,
    /// Number of times that a write found no space and had to collect by itself.
    pub stalls: u64,
    /// Time of these stalls, in milliseconds.
    pub stall_ms: u64,
    /// Writes that were slowed down because space was scarce.
    pub paced_writes: u64,
    /// Time by which they were slowed down, in nanoseconds, all threads together.
    pub paced_ns: u64,
    /// Time spent in passes, in milliseconds, all threads together.
    pub elapsed_ms: u64,
}

/// Counts of the access meter.
pub type MeterReport = MeterSnapshot;

/// Statistics of a store.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Keyspaces, by id.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Pools, by node.
    pub pools: Vec<PoolStats>,
    /// Shards per node.
    pub shards: u64,
    /// The store's durability level.
    pub durability: Durability,
    /// Most live bytes, in per cent of what the store may grow to, if they are bounded.
    pub utilization_limit: Option<u32>,
    /// The same bound in bytes.
    pub live_limit_bytes: Option<u64>,
    /// DRAM, in bytes, of the indexes, the states of existing segments, the writer slots with their counts and records,
    /// and the cache.
    pub dram_bytes: u64,
    /// The part of `dram_bytes` that records which entries are garbage: bits, counters of segments, and the counts of
    /// writers.
    pub garbage_info_bytes: u64,
    /// Upper bound of the versions given out.
    pub version: u64,
    /// Everything at or below this version is durable. 0 on media without syncs (persistent memory, memory): there a
    /// write at level `sync` is durable at return, and nothing tracks the others.
    pub durable_version: u64,
    /// Number of commits: syncs of the whole store.
    pub commits: u64,
    /// Work of the garbage collectors.
    pub collections: CollectionStats,
    /// Damage that the verification after a restart, and collectors, have found so far.
    pub damage: Vec<String>,
    /// Number of live snapshots.
    pub snapshots: u64,
    /// Age of the oldest snapshot, in milliseconds.
    pub oldest_snapshot_ms: u64,
    /// Number of live value guards in this process.
    pub pinned_values: u64,
    /// Upper bound of the age of the oldest value guard, in milliseconds.
    pub oldest_guard_ms: u64,
    /// Statistics of the cache of entries.
    pub cache: CacheReport,
    /// Reads that were delegated to threads of other nodes, for scans.
    pub delegation: crate::delegation::DelegationStats,
    /// Checkpoints of the indexes, and what a restart would cost.
    pub checkpoints: crate::checkpoint::CheckpointStats,
    /// Accesses by node, if the meter is on.
    pub meter: Option<MeterReport>,
}

impl Stats {
    /// Live bytes as a share of the bytes of segments in use, 0 to 1.
    pub fn utilization(&self) -> f64 {
        let used: u64 = self.pools.iter().map(|pool| (pool.usage.segments - pool.usage.free) * pool.segment_bytes).sum();
        let live: u64 = self.pools.iter().map(|pool| pool.usage.live_bytes).sum();
        share(live, used)
    }

    /// Garbage as a share of the bytes written into segments in use, 0 to 1.
    pub fn garbage(&self) -> f64 {
        let written: u64 = self.pools.iter().map(|pool| pool.usage.written_bytes).sum();
        let dead: u64 = self.pools.iter().map(|pool| pool.usage.dead_bytes).sum();
        share(dead, written)
    }
}

impl Store {
    /// Returns the store's statistics. O(segments).
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        let (snapshots, oldest_snapshot) = core.snapshots.alive();
        let (pinned, oldest_guard) = ValueGuard::alive();
        let mut keyspaces: Vec<_> = core.keyspaces.read().values().cloned().collect();
        keyspaces.sort_by_key(|keyspace| keyspace.info.id);
        // Folds the writers' slots, which the checkpoint's figures need.
        let pools = self.pool_stats();
        // The part is read before the whole, which may grow meanwhile.
        let garbage_info_bytes = core.log.garbage_dram_bytes() as u64;
        Stats {
            keyspaces: keyspaces
                .iter()
                .map(|keyspace| KeyspaceStats {
                    name: keyspace.info.name.clone(),
                    kind: keyspace.info.kind,
                    keys: keyspace.len() as u64,
                    expiring: keyspace.expiries.counted(),
                    index_bytes: keyspace.memory_bytes() as u64,
                })
                .collect(),
            pools,
            shards: core.log.shards() as u64,
            durability: core.durability,
            utilization_limit: core.utilization,
            live_limit_bytes: core.log.most_live_bytes(),
            dram_bytes: (core.index_bytes() + core.log.dram_bytes()) as u64 + core.cache.stats().used_bytes,
            garbage_info_bytes,
            version: core.log.clock.upper_bound(),
            durable_version: if core.needs_sync { core.committer.durable() } else { 0 },
            commits: core.committer.commits.load(std::sync::atomic::Ordering::Relaxed),
            collections: core.collections.stats(),
            damage: core.damage.lock().clone(),
            snapshots: snapshots as u64,
            oldest_snapshot_ms: oldest_snapshot.as_millis() as u64,
            pinned_values: pinned as u64,
            oldest_guard_ms: oldest_guard.as_millis() as u64,
            cache: core.cache.stats(),
            checkpoints: core.checkpoints.stats(&core.log, core.keys_by_kind()),
            delegation: core.delegation.stats(),
            meter: core.meter.as_ref().map(|meter| meter.snapshot()),
        }
    }

    fn pool_stats(&self) -> Vec<PoolStats> {
        let core = &self.core;
        let usage = core.log.usage();
        let appended = core.log.appended();
        usage
            .into_iter()
            .zip(&core.pool_paths)
            .map(|(usage, path)| {
                let node = usage.node as usize;
                let (appended, at_open) = (appended[node], core.appended_at_open[node]);
                let (collected_segments, collected_bytes, collector_cpu_ns) = core.collections.efforts[node].read();
                let pool = core.log.pool(usage.node as usize);
                let medium = pool.medium();
                PoolStats {
                    node: usage.node,
                    path: path.clone(),
                    medium: format!("{:?}", medium.kind).to_lowercase(),
                    persistence_domain: format!("{:?}", medium.domain).to_lowercase(),
                    flush: format!("{:?}", medium.flush).to_lowercase(),
                    durable: medium.durable,
                    segment_bytes: pool.segment_bytes(),
                    appended_bytes: appended.fresh.saturating_sub(at_open.fresh),
                    copied_bytes: appended.moved.saturating_sub(at_open.moved),
                    collected_segments,
                    collected_bytes,
                    collector_cpu_ns,
                    usage,
                }
            })
            .collect()
    }
}
