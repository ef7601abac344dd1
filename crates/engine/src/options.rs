//! How a store is opened and how a write is made.

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
    /// A power loss, except for what was written in the last interval and while a sync took its time; and a crash of the process.
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
    /// What is being done.
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

/// When checkpoints of the indexes are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointMode {
    /// Never; one that is there is removed.
    Off,
    /// At a clean close, and in the background so that a restart after a crash scans little.
    #[default]
    Auto,
    /// At a clean close, and in the background whenever segments of so many bytes were opened since the last one.
    Every(u64),
}

/// Parts of garbage collection that can be left out, to measure what each is worth (`hither-bench compaction --techniques`). Nobody else has a reason to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Techniques {
    /// Entries that are known to be garbage have a bit in DRAM.
    pub garbage_bits: bool,
    /// Writers are slowed down where space is scarce.
    pub pacing: bool,
    /// Copies of a batch lie in the order of their keys.
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

/// The least key and value, in bytes, of entries that carry a shortcut: it then takes no more than a sixteenth of them.
pub const SHORTCUT_FROM_BYTES: usize = 256;

/// All settings of a store.
#[derive(Clone)]
pub struct Options {
    /// Directory of each node's pool; a single one serves all nodes of the machine.
    pub paths: Vec<(Option<u32>, PathBuf)>,
    /// No files at all.
    pub in_memory: bool,
    /// Pools supplied by a test instead of files.
    pub pools: Option<Arc<dyn Fn() -> hither_pmem::Result<Vec<hither_pmem::Pool>> + Send + Sync>>,
    /// Bytes of segments to preallocate, all nodes together; 0: derived.
    pub capacity: u64,
    /// Bytes of segments that the store may grow to; 0: derived.
    pub max_capacity: u64,
    /// Most live bytes, in per cent of what the store may grow to, 1 to 95; absent: as many as fit beside the reserve. Not kept on media.
    pub utilization: Option<u32>,
    /// The store's durability level.
    pub durability: Durability,
    /// Which medium to take the storage for.
    pub medium: MediumChoice,
    /// NUMA topology; detected if absent.
    pub topology: Option<Arc<Topology>>,
    /// Counts accesses.
    pub meter: bool,
    /// Shards per node; 0: derived.
    pub shards: u32,
    /// Threads of recovery; 0: all.
    pub threads: usize,
    /// Bytes of a segment; 0: derived.
    pub segment_bytes: u64,
    /// Creates the store if there is none.
    pub create: bool,
    /// Opens a store to look at it: nothing reaches its files, and writes are refused.
    pub read_only: bool,
    /// Opens a damaged store with what is readable.
    pub salvage: bool,
    /// Asks for huge pages.
    pub hugepages: bool,
    /// Runs background threads. Off only in crash tests, which need determinism.
    pub background: bool,
    /// Where random numbers come from; a seed in crash tests that are to be repeated.
    #[doc(hidden)]
    pub random: Randomness,
    /// How segments full of garbage are emptied.
    pub collector: CollectorKind,
    /// Give entries of keys that are written often segments of their own, where that is worth it; not on files, whose log has one tail.
    pub separate_hot: bool,
    /// Entries of ordered keyspaces whose key and value have at least so many bytes carry a shortcut for the collector, 16 bytes of media; `None`: none do. Never entries
    /// of keys that are written often, and only with the batched collector.
    pub shortcut_from_bytes: Option<usize>,
    /// What the batched collector does.
    #[doc(hidden)]
    pub techniques: Techniques,
    /// Share of garbage (0 to 1) from which on a segment is collected in the background.
    pub gc_threshold: f64,
    /// Collector threads per node; 0: none, writers collect by themselves when the store is full.
    pub gc_threads: usize,
    /// How long a write that finds no space waits while space is being made, before it is refused. What a vain attempt costs comes on top.
    pub space_patience: Duration,
    /// When a node's pool is full, its threads write to another node's: slower, but no failure. `stat` tells.
    pub spill: bool,
    /// The index of ordered keyspaces.
    pub ordered_index: OrderedKind,
    /// Key latches.
    pub latches: usize,
    /// Reports recovery's progress.
    pub on_progress: Option<OnProgress>,
    /// Cache of entries in DRAM, for stores over several nodes.
    pub cache: CacheSetting,
    /// Which scans hand remote entries to threads of their node.
    pub delegation: DelegationSetting,
    /// When checkpoints of the indexes are taken.
    pub checkpoints: CheckpointMode,
    /// Where tests keep the checkpoint; else it lies beside the pool of node 0.
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
    /// What follows from `read_only` for other settings: the pools are mapped privately, nothing is made, nothing is collected.
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
    /// So long after the write, by the store's time (`Db::now_ms`).
    After(Duration),
}

impl WriteOptions {
    /// The store's level, no expiry.
    pub fn new() -> WriteOptions {
        WriteOptions::default()
    }

    /// With this durability level.
    pub fn durability(mut self, durability: Durability) -> WriteOptions {
        self.durability = Some(durability);
        self
    }

    /// Expiring at this time, in milliseconds since 1970; 0: never.
    pub fn expires_at_ms(mut self, at: u64) -> WriteOptions {
        self.expiry = Some(Expiry::AtMs(at));
        self
    }

    /// Expiring so long after each call that writes with these options, what it waits for space included. Counted by the store's time, which does not go back when the machine's clock does
    /// (see `RecoveryReport::clock_ahead_ms`), and in whole milliseconds, rounded up. With [`Duration::ZERO`] it has expired when it is written.
    pub fn ttl(mut self, ttl: Duration) -> WriteOptions {
        self.expiry = Some(Expiry::After(ttl));
        self
    }
}

/// Milliseconds since 1970.
pub fn wall_clock_ms() -> u64 {
    let ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    #[cfg(test)]
    let ms = ms - SET_BACK_MS.get();
    ms
}

#[cfg(test)]
thread_local! {
    /// By how much the clock is set back for this thread.
    pub(crate) static SET_BACK_MS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
