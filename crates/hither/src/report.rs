//! Reports of a store about itself, for people and programs.

use hither_engine::Durability;
use serde::Serialize;

pub use hither_engine::{CheckpointStats, CollectionStats, DelegationStats};

/// Statistics of a keyspace.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Name.
    pub name: String,
    /// "ordered" or "hash".
    pub kind: &'static str,
    /// Number of keys, including expired ones that are not swept yet.
    pub keys: u64,
    /// Keys whose expiry is yet to come, as counted by the last sweep.
    pub expiring: u64,
    /// DRAM of its index, in bytes.
    pub index_bytes: u64,
}

/// Statistics of a pool.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// Node of the pool.
    pub node: u32,
    /// Path of the pool's file, or "(memory)".
    pub path: String,
    /// Medium: "fsdax", "devdax", "file", "volatile" or "shadow".
    pub medium: String,
    /// Where data must be to survive a power loss: "adr" (memory controller), "eadr" (caches), "pagecache" (needs a
    /// sync), "none".
    pub persistence_domain: String,
    /// Instruction that flushes cache lines.
    pub flush: String,
    /// Whether acknowledged writes survive a power loss on this medium.
    pub durable: bool,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments that exist.
    pub segments: u64,
    /// Existing segments that are free.
    pub segments_free: u64,
    /// Segments open for appends.
    pub segments_active: u64,
    /// Segments closed for appends.
    pub segments_sealed: u64,
    /// Segments without live entries that wait for readers to leave.
    pub segments_retiring: u64,
    /// Segments that were freed and opened again.
    pub segments_reused: u64,
    /// No segment is left for puts until garbage is collected. The next puts of this node's threads go to another
    /// node's pool, or fail.
    pub full: bool,
    /// Threads of this node write to another node's pool, because this one is full ([`crate::Builder::spill`]). Ends
    /// when segments are freed.
    pub spilling: bool,
    /// How often `spilling` began since the store was opened.
    pub spills: u64,
    /// Bytes of all existing segments.
    pub capacity_bytes: u64,
    /// Bytes of all segments that may exist.
    pub max_bytes: u64,
    /// Bytes of live entries.
    pub live_bytes: u64,
    /// Bytes of superseded entries.
    pub dead_bytes: u64,
    /// Number of tombstones.
    pub tombstones: u64,
    /// Number of entries in segments in use.
    pub entries: u64,
    /// Bytes of entries in segments in use.
    pub written_bytes: u64,
    /// Live bytes as a share of `max_bytes`, 0 to 1.
    pub utilization: f64,
    /// Bytes of entries that writers have appended since the store was opened.
    pub appended_bytes: u64,
    /// Bytes of copies that collectors have appended since the store was opened.
    pub copied_bytes: u64,
    /// Sum of `appended_bytes` and `copied_bytes` divided by `appended_bytes`: 1 if nothing was copied, 0 if nothing
    /// was written.
    pub write_amplification: f64,
    /// Segments that collectors have emptied and freed since the store was opened.
    pub collected_segments: u64,
    /// Bytes of these segments.
    pub collected_bytes: u64,
    /// Processor time of these collections, in milliseconds, including that of writers that collected by themselves.
    pub collector_cpu_ms: u64,
    /// Bytes of segments emptied per second of that processor time: a collector's bandwidth.
    pub collected_per_cpu_second_bytes: u64,
}

/// Accesses from one node to another's pool.
#[derive(Clone, Debug, Serialize)]
pub struct NodeAccess {
    /// Node of the thread.
    pub from: u32,
    /// Node of the pool.
    pub to: u32,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Cache lines that reads touched.
    pub read_lines: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Cache lines flushed.
    pub flushes: u64,
    /// Number of fences.
    pub fences: u64,
}

/// Counts of the access meter.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MeterReport {
    /// Accesses of each pair of nodes.
    pub accesses: Vec<NodeAccess>,
}

/// Statistics of the cache of entries. It counts gets only while it is on.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// "on", "off" or "probing".
    pub state: &'static str,
    /// Why the cache is off, or was off before the probe.
    pub why_off: Option<&'static str>,
    /// Bytes of DRAM that the cache may use; 0: there is no cache.
    pub capacity_bytes: u64,
    /// Bytes of DRAM that the cache uses: hardly any before it is switched on for the first time.
    pub used_bytes: u64,
    /// Policy: "raf" (with admission and ageing), "raf-published", "lfu" or "lru".
    pub policy: &'static str,
    /// Slots for entries.
    pub slots: u64,
    /// One get in this many updates a frequency or offers an entry to the cache.
    pub sampling_interval: u32,
    /// Gets that the cache answered for readers on the entry's node.
    pub local_hits: u64,
    /// Gets that the cache answered for readers on other nodes.
    pub remote_hits: u64,
    /// Gets that the cache did not answer, of readers on the entry's node.
    pub local_misses: u64,
    /// Gets that the cache did not answer, of readers on other nodes.
    pub remote_misses: u64,
    /// Share of gets that the cache answered, 0 to 1.
    pub hit_share: f64,
    /// How often the cache was switched on.
    pub switched_on: u64,
}

impl From<&hither_engine::CacheReport> for CacheStats {
    fn from(cache: &hither_engine::CacheReport) -> CacheStats {
        CacheStats {
            state: cache.state.name(),
            why_off: cache.state.why_off(),
            capacity_bytes: cache.capacity_bytes,
            used_bytes: cache.used_bytes,
            policy: cache.policy.name(),
            slots: cache.slots,
            sampling_interval: cache.sampling_interval,
            local_hits: cache.local_hits,
            remote_hits: cache.remote_hits,
            local_misses: cache.local_misses,
            remote_misses: cache.remote_misses,
            hit_share: cache.hit_share(),
            switched_on: cache.switched_on,
        }
    }
}

/// Statistics of a store.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Keyspaces in the order of their creation.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Pools by node.
    pub pools: Vec<PoolStats>,
    /// Live bytes as a share of the bytes of segments in use, 0 to 1.
    pub utilization: f64,
    /// The most that live bytes may take, as a share of the size that the store may grow to
    /// ([`crate::Builder::utilization`]).
    pub utilization_limit: Option<f64>,
    /// The same limit in bytes.
    pub live_limit_bytes: Option<u64>,
    /// Garbage as a share of the bytes written into segments in use, 0 to 1.
    pub garbage: f64,
    /// Shards per node.
    pub shards: u64,
    /// Durability level: "sync", "interval" or "process".
    pub durability: &'static str,
    /// DRAM, in bytes, of the indexes, the states of existing segments, the writer slots with their counts and records,
    /// and the cache.
    pub dram_bytes: u64,
    /// The part of `dram_bytes` that records which entries are garbage: bits, counters of segments, and the counts of
    /// writers.
    pub garbage_info_bytes: u64,
    /// Upper bound of all versions given out.
    pub version: u64,
    /// Everything at or below this version is durable. 0 on media without syncs (persistent memory, memory): there a
    /// write at level `sync` is durable at return, and nothing tracks the others.
    pub durable_version: u64,
    /// Commit groups so far: syncs of the whole store.
    pub commit_groups: u64,
    /// Number of live snapshots.
    pub snapshots: u64,
    /// Age of the oldest snapshot, in milliseconds.
    pub oldest_snapshot_age_ms: u64,
    /// Number of live value guards in this process.
    pub pinned_values: u64,
    /// Upper bound of the age of the oldest value guard of this process, in milliseconds: for how long there has always
    /// been one. It grows as long as short-lived guards of several threads overlap.
    pub oldest_guard_age_ms: u64,
    /// Statistics of the cache of entries.
    pub cache: CacheStats,
    /// Reads that were delegated to threads of other nodes, for scans.
    pub delegation: DelegationStats,
    /// Damage that the verification after a restart, and collectors, have found so far.
    pub damage: Vec<String>,
    /// Work of the garbage collectors since the store was opened.
    pub collections: CollectionStats,
    /// Checkpoints of the indexes, and what a restart would cost.
    pub checkpoints: CheckpointStats,
    /// Accesses by node, if the meter is on ([`crate::Builder::meter`]).
    pub meter: Option<MeterReport>,
}

impl From<&hither_engine::Stats> for Stats {
    fn from(stats: &hither_engine::Stats) -> Stats {
        Stats {
            keyspaces: stats.keyspaces.iter().map(KeyspaceStats::from).collect(),
            pools: stats.pools.iter().map(PoolStats::from).collect(),
            utilization: stats.utilization(),
            utilization_limit: stats.utilization_limit.map(|percent| f64::from(percent) / 100.0),
            live_limit_bytes: stats.live_limit_bytes,
            garbage: stats.garbage(),
            shards: stats.shards,
            durability: match stats.durability {
                Durability::Sync => "sync",
                Durability::Interval(_) => "interval",
                Durability::Process => "process",
            },
            dram_bytes: stats.dram_bytes,
            garbage_info_bytes: stats.garbage_info_bytes,
            version: stats.version,
            durable_version: stats.durable_version,
            commit_groups: stats.commits,
            snapshots: stats.snapshots,
            oldest_snapshot_age_ms: stats.oldest_snapshot_ms,
            pinned_values: stats.pinned_values,
            oldest_guard_age_ms: stats.oldest_guard_ms,
            cache: CacheStats::from(&stats.cache),
            delegation: stats.delegation,
            damage: stats.damage.clone(),
            collections: stats.collections,
            checkpoints: stats.checkpoints.clone(),
            meter: stats.meter.as_ref().map(MeterReport::from),
        }
    }
}

impl From<&hither_engine::KeyspaceStats> for KeyspaceStats {
    fn from(keyspace: &hither_engine::KeyspaceStats) -> KeyspaceStats {
        KeyspaceStats {
            name: keyspace.name.clone(),
            kind: keyspace.kind.name(),
            keys: keyspace.keys,
            expiring: keyspace.expiring,
            index_bytes: keyspace.index_bytes,
        }
    }
}

impl From<&hither_engine::PoolStats> for PoolStats {
    fn from(pool: &hither_engine::PoolStats) -> PoolStats {
        let usage = &pool.usage;
        PoolStats {
            node: pool.node,
            path: pool.path.clone(),
            medium: pool.medium.clone(),
            persistence_domain: pool.persistence_domain.clone(),
            flush: pool.flush.clone(),
            durable: pool.durable,
            segment_bytes: pool.segment_bytes,
            segments: usage.segments,
            segments_free: usage.free,
            segments_active: usage.open,
            segments_sealed: usage.closed,
            segments_retiring: usage.retiring,
            segments_reused: usage.reused,
            full: usage.full,
            spilling: usage.spilling,
            spills: usage.spills,
            capacity_bytes: usage.segments * pool.segment_bytes,
            max_bytes: usage.max_segments * pool.segment_bytes,
            live_bytes: usage.live_bytes,
            dead_bytes: usage.dead_bytes,
            tombstones: usage.tombstones,
            entries: usage.entries,
            written_bytes: usage.written_bytes,
            utilization: pool.utilization(),
            appended_bytes: pool.appended_bytes,
            copied_bytes: pool.copied_bytes,
            write_amplification: (pool.write_amplification() * 1000.0).round() / 1000.0,
            collected_segments: pool.collected_segments,
            collected_bytes: pool.collected_bytes,
            collector_cpu_ms: pool.collector_cpu_ns / 1_000_000,
            collected_per_cpu_second_bytes: pool.collected_per_cpu_second() as u64,
        }
    }
}

impl From<&hither_engine::MeterReport> for MeterReport {
    fn from(meter: &hither_engine::MeterReport) -> MeterReport {
        let nodes = meter.node_count();
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let accesses = pairs.map(|(from, to)| {
            let count = meter.pair(from, to);
            NodeAccess {
                from,
                to,
                reads: count.reads,
                read_bytes: count.read_bytes,
                read_lines: count.read_lines,
                writes: count.writes,
                write_bytes: count.write_bytes,
                flushes: count.flushes,
                fences: count.fences,
            }
        });
        MeterReport { accesses: accesses.collect() }
    }
}

/// Result of a check.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CheckReport {
    /// Whether the store is sound.
    pub sound: bool,
    /// Segments read.
    pub segments: u64,
    /// Entries with a correct checksum.
    pub entries: u64,
    /// Bytes of these entries.
    pub bytes: u64,
    /// Torn places where a crash may leave them: these are not problems.
    pub torn: u64,
    /// Number of keys.
    pub keys: u64,
    /// The first hundred problems found.
    pub problems: Vec<String>,
    /// Number of all problems found.
    pub problem_count: u64,
}

impl CheckReport {
    /// Whether the store is sound.
    pub fn is_sound(&self) -> bool {
        self.sound
    }
}

impl From<hither_engine::CheckReport> for CheckReport {
    fn from(report: hither_engine::CheckReport) -> CheckReport {
        CheckReport {
            sound: report.is_sound(),
            segments: report.segments,
            entries: report.entries,
            bytes: report.bytes,
            torn: report.torn,
            keys: report.keys,
            problem_count: report.problem_count,
            problems: report.problems,
        }
    }
}

/// Report of what recovery did when the store was opened.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Source of the indexes: "scan" (of the whole log), "checkpoint" (and what is newer in the log), or "clean"
    /// (nothing was scanned).
    pub source: &'static str,
    /// Segments that were not scanned, because the checkpoint covered them.
    pub segments_skipped: u64,
    /// Keys that came from the checkpoint.
    pub checkpoint_keys: u64,
    /// Time that loading the checkpoint took, in milliseconds.
    pub checkpoint_ms: u64,
    /// Why an existing checkpoint was not used; empty if it was used, or if there was none.
    pub checkpoint_refused: String,
    /// Number of segments scanned.
    pub segments: u64,
    /// Number of valid entries.
    pub entries: u64,
    /// Bytes of these entries.
    pub bytes: u64,
    /// Number of keys after recovery.
    pub keys: u64,
    /// Tombstones among the valid entries.
    pub tombstones: u64,
    /// Places torn by the crash, in segments that were open.
    pub torn: u64,
    /// Incomplete batches, which recovery dropped.
    pub batches_dropped: u64,
    /// Every write at or below this version is there. Of later writes that were not acknowledged as durable, a power
    /// loss may have kept some and lost earlier ones.
    pub settled_version: u64,
    /// Damage that the opening passed over (only with salvage).
    pub salvaged: Vec<String>,
    /// How far the time that the store remembers is ahead of the machine's clock, in milliseconds. The clock was set
    /// back, or had been wrong before. Keys expire by the store's time.
    pub clock_ahead_ms: u64,
    /// Number of threads used.
    pub threads: usize,
    /// Time taken, in milliseconds.
    pub elapsed_ms: u64,
}

impl From<&hither_engine::RecoveryReport> for RecoveryReport {
    fn from(report: &hither_engine::RecoveryReport) -> RecoveryReport {
        RecoveryReport {
            clean: report.clean,
            source: report.source.name(),
            segments_skipped: report.segments_skipped,
            checkpoint_keys: report.checkpoint_keys,
            checkpoint_ms: report.checkpoint_ms,
            checkpoint_refused: report.checkpoint_refused.clone(),
            segments: report.segments,
            entries: report.entries,
            bytes: report.bytes,
            keys: report.keys,
            tombstones: report.tombstones,
            torn: report.torn,
            batches_dropped: report.batches_dropped,
            settled_version: report.settled_version,
            salvaged: report.salvaged.clone(),
            clock_ahead_ms: report.clock_ahead_ms,
            threads: report.threads,
            elapsed_ms: report.elapsed_ms,
        }
    }
}
