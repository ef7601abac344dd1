//! Opening a store with settings.

use crate::db::Db;
use hither_engine::{CachePolicy, CheckpointMode, CollectorKind, Durability, Options, OrderedKind, Progress, Result, Store};
use hither_topology::Topology;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What the storage is taken for. (The engine knows two more: a private mapping, which is what [`Builder::read_only`] is for, and one that a kill makes lose what a loss of power would, for its tests. Neither
/// keeps what a write that returned has promised, so no user may choose them.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MediumChoice {
    /// What detection finds.
    #[default]
    Auto,
    /// Direct access: also on tmpfs (as an emulation that is not durable), never silently on a disk file.
    ForcedDax,
    /// Syncs, whatever it is.
    File,
    /// No durability.
    Volatile,
}

impl From<MediumChoice> for hither_engine::MediumChoice {
    fn from(choice: MediumChoice) -> Self {
        match choice {
            MediumChoice::Auto => Self::Auto,
            MediumChoice::ForcedDax => Self::ForcedDax,
            MediumChoice::File => Self::File,
            MediumChoice::Volatile => Self::Volatile,
        }
    }
}

/// What would acknowledge writes that reach no file cannot be chosen.
///
/// ```compile_fail,E0599
/// let _ = hither::Db::builder().medium(hither::MediumChoice::PrivateCopy);
/// ```
///
/// ```compile_fail,E0599
/// let _ = hither::Db::builder().medium(hither::MediumChoice::ShadowFile);
/// ```
#[cfg(doctest)]
struct NoOtherMedia;

/// Settings of a store, then [`Builder::open`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing happens before `open`"]
pub struct Builder {
    options: Options,
}

impl Builder {
    /// The store's directory; it gets one pool per NUMA node of the machine. To be given once, and not beside [`Builder::in_memory`].
    pub fn path(mut self, path: impl AsRef<Path>) -> Self {
        self.options.paths.push((None, path.as_ref().to_owned()));
        self
    }

    /// The directory of one node's pool, such as the mount point of its persistent memory. Nodes count from 0 without a gap. Not beside [`Builder::path`]; beside
    /// [`Builder::in_memory`] it says only that the node has a pool, and nothing is kept there.
    pub fn node_path(mut self, node: u32, path: impl AsRef<Path>) -> Self {
        self.options.paths.push((Some(node), path.as_ref().to_owned()));
        self
    }

    /// For tests: changes settings that users do not have, such as failpoints.
    #[doc(hidden)]
    pub fn with_options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// No files: everything is gone when the store is closed. Not beside [`Builder::path`].
    pub fn in_memory(mut self) -> Self {
        self.options.in_memory = true;
        self
    }

    /// Bytes of log to preallocate at creation, all nodes together (default, and 0: 64 MiB, or what the store may grow to if that is less). Ignored for an existing store.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.options.capacity = bytes;
        self
    }

    /// Bytes of log that the store may grow to, all nodes together (default 64 GiB, or the capacity if larger). Fixed at creation.
    pub fn max_capacity(mut self, bytes: u64) -> Self {
        self.options.max_capacity = bytes;
        self
    }

    /// The most that live data may take, in per cent of what the store may grow to, 1 to 95 (default: what fits beside the store's reserve, a few segments). Writes that would add to it are refused with
    /// [`crate::Error::Utilization`] then, at once; deletes, overwrites with values that are no longer, and batches that take no more than they give go on. Collection is the cheaper the more room
    /// there is beside live data. Looked at when a segment is opened, so the open segments' rest may come on top. For this open store only.
    pub fn utilization(mut self, percent: u32) -> Self {
        self.options.utilization = Some(percent);
        self
    }

    /// How long a write that finds no space waits while collectors make some, before it is refused (default 60 s). A thread that serves many at once has less.
    pub fn space_patience(mut self, patience: Duration) -> Self {
        self.options.space_patience = patience;
        self
    }

    /// What an acknowledged write survives (default: a power loss). An interval below a millisecond counts as one.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// What to take the storage for (default: what detection finds).
    pub fn medium(mut self, medium: MediumChoice) -> Self {
        self.options.medium = medium.into();
        self
    }

    /// The NUMA topology (default: the machine's).
    pub fn topology(mut self, topology: Arc<Topology>) -> Self {
        self.options.topology = Some(topology);
        self
    }

    /// Counts every access to pool memory by node (default off).
    pub fn meter(mut self, on: bool) -> Self {
        self.options.meter = on;
        self
    }

    /// Shards per node, 4096 at most, rounded down to a power of two (default: derived from medium and capacity).
    pub fn shards(mut self, shards: u32) -> Self {
        self.options.shards = shards;
        self
    }

    /// Bytes of DRAM for a cache of entries (default 64 MiB; 0: none). It serves stores over several nodes, where reads of another node's
    /// memory are slower, and switches itself off while it does not help; a store that cannot gain from it never has one. Only `get`, `get_with`
    /// and their forms for many keys ask it.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.options.cache.bytes = Some(bytes);
        self
    }

    /// Who stays in the cache (default: [`CachePolicy::Adaptive`]).
    pub fn cache_policy(mut self, policy: CachePolicy) -> Self {
        self.options.cache.policy = policy;
        self
    }

    /// Keeps the cache on whatever the workload: for comparisons (default no).
    pub fn cache_forced(mut self, forced: bool) -> Self {
        self.options.cache.forced = forced;
        self
    }

    /// Threads of each node that read for scans of other nodes what lies on theirs (default 2; 0: none). A store that cannot gain from them has none in
    /// any case: one node, links of equal latency, or media that are DRAM.
    pub fn read_threads(mut self, threads: usize) -> Self {
        self.options.delegation.threads = threads;
        self
    }

    /// Mean bytes of the entries on other nodes from which on a scan has them read there (default 0: never; 512 is where it may begin to
    /// pay on slow remote media with idle processors: measure). An entry is its key, its value and 16 to 40 bytes more.
    pub fn delegate_from_bytes(mut self, bytes: u64) -> Self {
        self.options.delegation.from_bytes = bytes;
        self
    }

    /// When checkpoints of the indexes are taken, so that a restart scans little (default: at a clean close, and in the background as needed).
    pub fn checkpoints(mut self, mode: CheckpointMode) -> Self {
        self.options.checkpoints = mode;
        self
    }

    /// Threads of recovery, 1024 at most (default: all cores).
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.threads = threads;
        self
    }

    /// Bytes of a segment, a power of two (default: derived from the maximum capacity, up to 8 MiB). Fixed at creation.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.options.segment_bytes = bytes;
        self
    }

    /// Whether to create the store if there is none (default yes).
    pub fn create(mut self, create: bool) -> Self {
        self.options.create = create;
        self
    }

    /// Whether threads of a node whose pool is full write to another node's (default yes): remote writes are slower, but nothing fails before all
    /// nodes are full. [`crate::PoolStats::spilling`] and [`crate::PoolStats::spills`] say when that happens. If not, such a write fails with [`crate::Error::Full`].
    pub fn spill(mut self, spill: bool) -> Self {
        self.options.spill = spill;
        self
    }

    /// The index of ordered keyspaces (default [`OrderedKind::BTree`]). The media do not depend on it.
    pub fn ordered_index(mut self, kind: OrderedKind) -> Self {
        self.options.ordered_index = kind;
        self
    }

    /// How segments full of garbage are emptied (default [`CollectorKind::Batched`]). The media do not depend on it.
    pub fn collector(mut self, kind: CollectorKind) -> Self {
        self.options.collector = kind;
        self
    }

    /// Entries of ordered keyspaces whose key and value have at least so many bytes (default [`SHORTCUT_FROM_BYTES`](crate::SHORTCUT_FROM_BYTES), `None`: none do) carry a
    /// shortcut: where the index names them, so that a collector need not search. It takes 16 bytes of media; smaller entries are not worth it, and a pair of 8 and 8 bytes never
    /// carries one. Takes effect on what is written from now on.
    pub fn shortcut_from_bytes(mut self, bytes: Option<usize>) -> Self {
        self.options.shortcut_from_bytes = bytes;
        self
    }

    /// Whether entries of keys that are written often get segments of their own (default yes), where that is worth it; never on files, whose log has one tail.
    pub fn separate_hot(mut self, separate: bool) -> Self {
        self.options.separate_hot = separate;
        self
    }

    /// Share of garbage, 0 to 1, from which on a segment is worth collecting in the background (default 0.5). Less than 0.01 counts as that, more than 1 as 1; what is no number is refused at [`Builder::open`].
    pub fn gc_threshold(mut self, share: f64) -> Self {
        self.options.gc_threshold = share;
        self
    }

    /// Collector threads per node (default 1). With 0, writers collect by themselves when the store is full.
    pub fn gc_threads(mut self, threads: usize) -> Self {
        self.options.gc_threads = threads;
        self
    }

    /// Opens the store to look at it (default no). Not a byte of its files changes, and no permission to write is needed: a checkpoint is used and left as it is, and after a crash
    /// each opening recovers anew, in memory. Several may have a store open so at the same time; one that writes is refused meanwhile, and the other way round
    /// ([`crate::Error::Locked`]). Writes, and whatever else changes the store, fail with [`crate::Error::OpenedReadOnly`]. Keys that have expired are not shown.
    ///
    /// After a failed sync open the store once without this first: a read-only opening shows what the system's cache of the files holds, which may never have reached the device.
    ///
    /// A store that is not there is not made. Not for stores in memory, nor for dax devices, which cannot be mapped privately. The choice of a medium has no effect, and the statistics
    /// tell that of the private mapping, `volatile`.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.options.read_only = read_only;
        self
    }

    /// Opens a damaged store with what is readable (default no). See [`crate::RecoveryReport::salvaged`]. Damage of page 0 and of the catalogue is made do with only
    /// where nothing reaches the files ([`Builder::read_only`]). So is a descriptor mended; elsewhere its segment is set aside: nobody reads it, and nobody writes over it.
    pub fn salvage(mut self, salvage: bool) -> Self {
        self.options.salvage = salvage;
        self
    }

    /// Is called now and then during recovery, from recovery's threads.
    pub fn on_progress(mut self, f: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.options.on_progress = Some(Arc::new(f));
        self
    }

    pub(crate) fn from_options(options: Options) -> Self {
        Builder { options }
    }

    pub(crate) fn into_options(self) -> Options {
        self.options
    }

    /// Opens the store, creating or recovering it as need be.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for settings that contradict each other or what is there (sizes, directories, media, nodes);
    /// [`NotFound`](crate::Error::NotFound) where there is no store and none is to be made; [`MissingPool`](crate::Error::MissingPool), [`WrongPool`](crate::Error::WrongPool), [`OlderCopy`](crate::Error::OlderCopy)
    /// where pools do not belong together; [`Foreign`](crate::Error::Foreign), [`NewerFormat`](crate::Error::NewerFormat) and [`Damaged`](crate::Error::Damaged) for what is in them; [`Locked`](crate::Error::Locked) while another process
    /// has it open; [`NotWritable`](crate::Error::NotWritable), [`DiskFull`](crate::Error::DiskFull) and [`Io`](crate::Error::Io) for files and devices.
    pub fn open(self) -> Result<Db> {
        Ok(Db::from_store(Store::open(self.options)?))
    }
}
