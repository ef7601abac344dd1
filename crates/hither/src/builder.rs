//! Opening a store with settings.

use crate::db::Db;
use hither_engine::{CachePolicy, CheckpointMode, CollectorKind, Durability, Options, OrderedKind, Progress, Result, Store};
use hither_topology::Topology;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What kind of medium the store takes its storage for.
///
/// The engine has two more kinds, which users must not choose, because on neither of them a write that has returned
/// keeps its promise. One is a private mapping: [`Builder::read_only`] uses it. The other is for the engine's tests: on
/// it, a kill of the process loses what a power loss would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MediumChoice {
    /// The medium that detection finds.
    #[default]
    Auto,
    /// Persistent memory with direct access. On tmpfs this is an emulation that is not durable. A file behind a page
    /// cache is refused: the store would look durable without being so.
    ForcedDax,
    /// A file that needs syncs, whatever the storage is.
    File,
    /// Volatile memory: nothing is synced. On a file, data survive a crash of the process but not a power loss.
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

/// Media that acknowledge writes that reach no file cannot be chosen.
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

/// Settings of a store. [`Builder::open`] opens it with them.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing happens before `open`"]
pub struct Builder {
    options: Options,
}

impl Builder {
    /// Sets the store's directory, which gets one pool per NUMA node of the machine. Give it once, and not together
    /// with [`Builder::in_memory`].
    pub fn path(mut self, path: impl AsRef<Path>) -> Self {
        self.options.paths.push((None, path.as_ref().to_owned()));
        self
    }

    /// Sets the directory of one node's pool, such as the mount point of its persistent memory. Nodes count from 0
    /// without a gap. Not together with [`Builder::path`]. Together with [`Builder::in_memory`] it only says that the
    /// node has a pool: nothing is stored in the directory.
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

    /// Keeps the store in memory, without files: closing it discards all data. Not together with [`Builder::path`].
    pub fn in_memory(mut self) -> Self {
        self.options.in_memory = true;
        self
    }

    /// Bytes of log to preallocate at creation, all nodes together. Default, also for 0: 64 MiB, or the maximum
    /// capacity if that is less. Ignored for an existing store.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.options.capacity = bytes;
        self
    }

    /// Bytes of log that the store may grow to, all nodes together. Default: 64 GiB, or the capacity if that is larger.
    /// Fixed at creation.
    pub fn max_capacity(mut self, bytes: u64) -> Self {
        self.options.max_capacity = bytes;
        self
    }

    /// The most that live data may take, in per cent of what the store may grow to, 1 to 95. Default: as much as fits
    /// beside the store's reserve of a few segments. Applies to this open store only.
    ///
    /// At the limit, writes that would add live data fail with [`crate::Error::Utilization`], at once unless keys have
    /// expired whose deletion may make room. Deletes, overwrites with values at most as long as the old ones, and
    /// batches that free at least as much as they take still succeed. The more room there is beside live data, the
    /// cheaper collection is. The limit is checked when a segment is opened, so live data may exceed it by the rest of
    /// the open segments.
    ///
    /// What counts there are lengths of keys and values. An overwrite may still take more room than the old entry: a
    /// time to live, being one of several operations of a batch, and a value of another length in the place of one of
    /// eight bytes behind a key of eight take 8 to 24 bytes more. Where entries are that short (32 bytes), such
    /// overwrites can lead to nearly twice as much; leave room for that.
    pub fn utilization(mut self, percent: u32) -> Self {
        self.options.utilization = Some(percent);
        self
    }

    /// How long a write that finds no space waits for collectors to free some before it fails (default 60 s). Choose
    /// less for a thread that serves many clients: all of them wait with it.
    pub fn space_patience(mut self, patience: Duration) -> Self {
        self.options.space_patience = patience;
        self
    }

    /// What an acknowledged write survives (default: a power loss). An interval below a millisecond counts as one
    /// millisecond.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// What kind of medium to take the storage for (default: the one that detection finds).
    pub fn medium(mut self, medium: MediumChoice) -> Self {
        self.options.medium = medium.into();
        self
    }

    /// The NUMA topology (default: that of the machine).
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

    /// Bytes of DRAM for a cache of entries (default 64 MiB; 0: no cache). The cache serves stores over several nodes,
    /// where reads of another node's memory are slower. It switches itself off while it does not help; a store that
    /// cannot gain from it never has one. Only `get`, `get_with` and their forms for many keys use it.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.options.cache.bytes = Some(bytes);
        self
    }

    /// Which entries stay in the cache (default: [`CachePolicy::Adaptive`]).
    pub fn cache_policy(mut self, policy: CachePolicy) -> Self {
        self.options.cache.policy = policy;
        self
    }

    /// Keeps the cache switched on whatever the workload, for comparisons (default no).
    pub fn cache_forced(mut self, forced: bool) -> Self {
        self.options.cache.forced = forced;
        self
    }

    /// Number of read threads of each node (default 2; 0: none). They read their node's entries for scans that run on
    /// other nodes. A store that cannot gain from them has none in any case: a store of one node, over links of equal
    /// latency, or on media that are DRAM.
    pub fn read_threads(mut self, threads: usize) -> Self {
        self.options.delegation.threads = threads;
        self
    }

    /// Mean size of a scan's remote entries, in bytes, from which on read threads of the entries' node read them
    /// (default 0: never). An entry is its key, its value and 16 to 40 bytes more. On slow remote media with idle
    /// processors this may begin to pay at 512: measure.
    pub fn delegate_from_bytes(mut self, bytes: u64) -> Self {
        self.options.delegation.from_bytes = bytes;
        self
    }

    /// When the store takes checkpoints of its indexes, so that a restart scans little. Default: at a clean close, and
    /// in the background as needed.
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

    /// Whether threads of a node whose pool is full write to the pool of another node (default yes). Remote writes are
    /// slower, but no write fails before all nodes are full; [`crate::PoolStats::spilling`] and
    /// [`crate::PoolStats::spills`] report them. If not, a write to a full pool fails with [`crate::Error::Full`].
    pub fn spill(mut self, spill: bool) -> Self {
        self.options.spill = spill;
        self
    }

    /// The index of ordered keyspaces (default [`OrderedKind::BTree`]). The format of the media does not depend on it.
    pub fn ordered_index(mut self, kind: OrderedKind) -> Self {
        self.options.ordered_index = kind;
        self
    }

    /// How segments full of garbage are emptied (default [`CollectorKind::Batched`]). The format of the media does not
    /// depend on it.
    pub fn collector(mut self, kind: CollectorKind) -> Self {
        self.options.collector = kind;
        self
    }

    /// Least size of key and value, in bytes, from which on entries of ordered keyspaces carry a shortcut (default
    /// [`SHORTCUT_FROM_BYTES`](crate::SHORTCUT_FROM_BYTES); `None`: no entry does). A shortcut records where the index
    /// names the entry, so that a collector need not search for it.
    ///
    /// A shortcut takes 16 bytes of media, which is not worth it for smaller entries; a pair of 8 and 8 bytes never
    /// carries one. The setting applies to entries written from now on.
    pub fn shortcut_from_bytes(mut self, bytes: Option<usize>) -> Self {
        self.options.shortcut_from_bytes = bytes;
        self
    }

    /// Whether entries of keys that are written often get segments of their own where that is worth it (default yes).
    /// Never on files, whose log has one tail.
    pub fn separate_hot(mut self, separate: bool) -> Self {
        self.options.separate_hot = separate;
        self
    }

    /// Share of garbage, 0 to 1, from which on a segment is worth collecting in the background (default 0.5). A value
    /// below 0.01 counts as 0.01, one above 1 as 1. [`Builder::open`] refuses a value that is not a number.
    pub fn gc_threshold(mut self, share: f64) -> Self {
        self.options.gc_threshold = share;
        self
    }

    /// Collector threads per node (default 1). With 0, writers collect garbage themselves when the store is full.
    pub fn gc_threads(mut self, threads: usize) -> Self {
        self.options.gc_threads = threads;
        self
    }

    /// Opens the store for reading only (default no). Not a byte of its files changes, and no write permission is
    /// needed. A checkpoint is used and left as it is; after a crash each opening recovers anew, in memory. Keys that
    /// have expired are not shown. Writes and all other changes fail with [`crate::Error::OpenedReadOnly`].
    ///
    /// Several processes may have a store open for reading at the same time. Meanwhile an opening for writing is
    /// refused, and the other way round ([`crate::Error::Locked`]).
    ///
    /// After a failed sync, open the store for writing once before you open it read-only: a read-only opening shows the
    /// system's cache of the files, whose content may never have reached the device.
    ///
    /// A store that does not exist is not created. Stores in memory cannot be opened read-only, nor can dax devices,
    /// which cannot be mapped privately. The choice of a medium has no effect; the statistics report the medium of the
    /// private mapping, `volatile`.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.options.read_only = read_only;
        self
    }

    /// Opens a damaged store with the data that is readable (default no). [`crate::RecoveryReport::salvaged`] lists the
    /// damage.
    ///
    /// Damage of page 0 and of the catalogue is tolerated only where nothing reaches the files
    /// ([`Builder::read_only`]). There, a damaged segment descriptor is mended, too. Elsewhere its segment is set
    /// aside: it is neither read nor overwritten.
    pub fn salvage(mut self, salvage: bool) -> Self {
        self.options.salvage = salvage;
        self
    }

    /// Sets a function that recovery's threads call now and then to report their progress.
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

    /// Opens the store. Creates it if there is none, or recovers it, as needed.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if settings contradict each other or the existing store (sizes,
    /// directories, media, nodes); [`NotFound`](crate::Error::NotFound) if there is no store and none may be created;
    /// [`MissingPool`](crate::Error::MissingPool), [`WrongPool`](crate::Error::WrongPool) and
    /// [`OlderCopy`](crate::Error::OlderCopy) if the pools do not belong together; [`Foreign`](crate::Error::Foreign),
    /// [`NewerFormat`](crate::Error::NewerFormat) and [`Damaged`](crate::Error::Damaged) for the content of the pools;
    /// [`Locked`](crate::Error::Locked) while another process has the store open;
    /// [`NotWritable`](crate::Error::NotWritable), [`DiskFull`](crate::Error::DiskFull) and [`Io`](crate::Error::Io)
    /// for files and devices.
    pub fn open(self) -> Result<Db> {
        Ok(Db::from_store(Store::open(self.options)?))
    }
}
