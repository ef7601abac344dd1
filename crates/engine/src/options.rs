//! How a store is opened and how a write is made.
//!
//! Thread safety: plain values. Settings that are fixed when a store is created are on media, in its superblocks; all
//! others apply to one opening.

use crate::cache::CacheSetting;
use crate::delegation::DelegationSetting;
use crate::keyspace::OrderedKind;
use hither_pmem::Randomness;
use hither_topology::Topology;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use hither_pmem::MediumChoice;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A power loss.
    Sync,
    /// A crash of the process. A power loss, too, except for what was written in the last interval and during the sync
    /// after it.
    Interval(Duration),
    /// A crash of the process. A power loss may take everything since the last sync.
    Process,
}

/// What recovery is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Reading segments.
    Scan,
    /// Settling batches and tombstones.
    Settle,
}

/// Progress of recovery.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// Segments done.
    pub done: u64,
    /// Segments in all.
    pub total: u64,
    /// Entries read so far.
    pub entries: u64,
}

/// How segments full of garbage are emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectorKind {
    /// In batches without latches; tombstones stay until a sweep (Pacman; `docs/adr/0014`).
    #[default]
    Batched,
    /// Under latches, after burying ancestors by their links (NStore; `docs/adr/0011`).
    Chain,
}

/// When the store takes checkpoints of its indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointMode {
    /// Never. An existing checkpoint is removed.
    Off,
    /// At a clean close, and in the background so that a restart after a crash scans little.
    #[default]
    Auto,
    /// At a clean close, and in the background whenever segments of this many bytes in all were opened since the last
    /// checkpoint.
    Every(u64),
}

/// Parts of garbage collection that can be left out to measure what each is worth (option `--techniques` of
/// `hither-bench compaction`). There is no other reason to leave one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Techniques {
    /// A bit in DRAM marks each entry that is known to be garbage.
    pub garbage_bits: bool,
    /// Writers are slowed down while space is scarce.
    pub pacing: bool,
    /// The collector lays the copies of a batch in the order of their keys.
    pub key_order: bool,
}

impl Default for Techniques {
    /// All of them.
    fn default() -> Self {
        Techniques { garbage_bits: true, pacing: true, key_order: true }
    }
}

/// A progress callback.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Default of the least size of key and value, in bytes, from which on entries carry a shortcut. From this size on a
/// shortcut takes at most a sixteenth of the entry.
pub const SHORTCUT_FROM_BYTES: usize = 256;

/// All settings of a store.
#[derive(Clone)]
pub struct Options {
    /// Directory of each node's pool. A single directory without a node holds the pools of all nodes of the machine.
    pub paths: Vec<(Option<u32>, PathBuf)>,
    /// Keeps the store in memory, without files.
    pub in_memory: bool,
    /// Pools supplied by a test instead of files.
    pub pools: Option<Arc<dyn Fn() -> hither_pmem::Result<Vec<hither_pmem::Pool>> + Send + Sync>>,
    /// Bytes of segments to preallocate, all nodes together; 0: derived.
    pub capacity: u64,
    /// Bytes of segments that the store may grow to; 0: derived.
    pub max_capacity: u64,
    /// Most live bytes, in per cent of what the store may grow to, 1 to 95; absent: as many as fit beside the reserve.
    /// Applies to this opening only: it is not kept on media.
    pub utilization: Option<u32>,
    /// The store's durability level.
    pub durability: Durability,
    /// The kind of medium to take the storage for.
    pub medium: MediumChoice,
    /// NUMA topology; detected if absent.
    pub topology: Option<Arc<Topology>>,
    /// Counts accesses to pool memory by node.
    pub meter: bool,
    /// Shards per node; 0: derived.
    pub shards: u32,
    /// Threads of recovery; 0: all cores.
    pub threads: usize,
    /// Bytes of a segment; 0: derived.
    pub segment_bytes: u64,
    /// Creates the store if there is none.
    pub create: bool,
    /// Opens the store for reading only: nothing reaches its files, and writes are refused.
    pub read_only: bool,
    /// Opens a damaged store with the data that is readable.
    pub salvage: bool,
    /// Asks for huge pages.
    pub hugepages: bool,
    /// Runs background threads. Off only in tests that need determinism.
    pub background: bool,
    /// Source of random numbers; a seed in crash tests that are to be repeatable.
    #[doc(hidden)]
    pub random: Randomness,
    /// How segments full of garbage are emptied.
    pub collector: CollectorKind,
    /// Gives entries of keys that are written often segments of their own where that is worth it. Never on files, whose
    /// log has one tail.
    pub separate_hot: bool,
    /// Least size of key and value, in bytes, from which on entries of ordered keyspaces carry a shortcut for the
    /// collector, which takes 16 bytes of media; `None`: no entry does. Entries of keys that are written often never
    /// carry one. Only the batched collector uses shortcuts.
    pub shortcut_from_bytes: Option<usize>,
    /// What the batched collector does, for measurements.
    #[doc(hidden)]
    pub techniques: Techniques,
    /// Share of garbage, 0 to 1, from which on a segment is collected in the background.
    pub gc_threshold: f64,
    /// Collector threads per node; 0: none, writers collect garbage themselves when the store is full.
    pub gc_threads: usize,
    /// How long a write that finds no space waits while space is being made, before it fails. The time of a failed
    /// attempt comes on top.
    pub space_patience: Duration,
    /// Whether threads of a node whose pool is full write to another node's pool: slower, but the writes do not fail.
    /// `stat` reports it.
    pub spill: bool,
    /// The index of ordered keyspaces.
    pub ordered_index: OrderedKind,
    /// Number of key latches.
    pub latches: usize,
    /// Is called with recovery's progress.
    pub on_progress: Option<OnProgress>,
    /// Cache of entries in DRAM, for stores over several nodes.
    pub cache: CacheSetting,
    /// Which scans hand remote entries to threads of their node.
    pub delegation: DelegationSetting,
    /// When the store takes checkpoints of its indexes.
    pub checkpoints: CheckpointMode,
    /// Where tests keep the checkpoint. Otherwise it lies beside the pool of node 0.
    pub checkpoint_store: Option<Arc<dyn crate::checkpoint::store::CheckpointStore>>,
    /// Failures on demand, for tests.
    pub failpoints: Option<Arc<hither_pmem::Failpoints>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            paths: Vec::new(),
            in_memory: false,
            pools: None,
            capacity: 0,
            max_capacity: 0,
            utilization: None,
            durability: Durability::Sync,
            medium: MediumChoice::Auto,
            topology: None,
            meter: false,
            shards: 0,
            threads: 0,
            segment_bytes: 0,
            create: true,
            read_only: false,
            salvage: false,
            hugepages: true,
            background: true,
            collector: CollectorKind::default(),
            separate_hot: true,
            shortcut_from_bytes: Some(SHORTCUT_FROM_BYTES),
            techniques: Techniques::default(),
            random: Randomness::System,
            gc_threshold: 0.5,
            gc_threads: 1,
            space_patience: Duration::from_secs(60),
            spill: true,
            ordered_index: OrderedKind::default(),
            latches: 4096,
            on_progress: None,
            cache: CacheSetting::default(),
            delegation: DelegationSetting::default(),
            checkpoints: CheckpointMode::Auto,
            checkpoint_store: None,
            failpoints: None,
        }
    }
}

impl Options {
    /// Sets what follows from `read_only` for other settings: the pools are mapped privately, nothing is created,
    /// nothing is collected.
    pub(crate) fn settle_read_only(&mut self) {
        if self.read_only {
            (self.medium, self.create, self.gc_threads) = (MediumChoice::PrivateCopy, false, 0);
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("paths", &self.paths).field("durability", &self.durability).finish_non_exhaustive()
    }
}

/// How one write is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    /// Durability level; the store's if absent.
    pub durability: Option<Durability>,
    /// When the key expires; never if absent.
    pub expiry: Option<Expiry>,
}

/// When a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// At this time, in milliseconds since 1970; 0: never.
    AtMs(u64),
    /// This long after the write, by the store's time (`Db::now_ms`).
    After(Duration),
}

impl WriteOptions {
    /// Options with the store's level and without expiry.
    pub fn new() -> WriteOptions {
        WriteOptions::default()
    }

    /// Sets the durability level.
    pub fn durability(mut self, durability: Durability) -> WriteOptions {
        self.durability = Some(durability);
        self
    }

    /// Lets the key expire at this time, in milliseconds since 1970; 0: never.
    pub fn expires_at_ms(mut self, at: u64) -> WriteOptions {
        self.expiry = Some(Expiry::AtMs(at));
        self
    }

    /// Lets the key expire this long after each call that writes with these options. Time that the write waits for
    /// space counts.
    ///
    /// The store's time decides, which does not go back when the machine's clock does (see
    /// `RecoveryReport::clock_ahead_ms`). It counts in whole milliseconds; a fraction is rounded up. With
    /// [`Duration::ZERO`] the key has expired when it is written.
    pub fn ttl(mut self, ttl: Duration) -> WriteOptions {
        self.expiry = Some(Expiry::After(ttl));
        self
    }
}

/// The machine's time, in milliseconds since 1970.
pub fn wall_clock_ms() -> u64 {
    let ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    #[cfg(test)]
    let ms = ms - SET_BACK_MS.get();
    ms
}

#[cfg(test)]
thread_local! {
    /// Milliseconds by which the clock is set back for this thread.
    pub(crate) static SET_BACK_MS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
