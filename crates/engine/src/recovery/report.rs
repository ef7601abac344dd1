//! The report of a restart: where the indexes came from, and what recovery found and did.
//!
//! Plain data, which is complete when the store is open.

/// Source from which an opening made the indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartSource {
    /// From the whole log.
    #[default]
    Scan,
    /// From a checkpoint and what is newer than it.
    Checkpoint,
    /// From the checkpoint of a clean close; nothing was scanned.
    Clean,
}

impl RestartSource {
    /// The source's name in output.
    pub fn name(self) -> &'static str {
        match self {
            RestartSource::Scan => "scan",
            RestartSource::Checkpoint => "checkpoint",
            RestartSource::Clean => "clean",
        }
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// The store had been closed cleanly.
    pub clean: bool,
    /// Source of the indexes.
    pub source: RestartSource,
    /// Segments that a checkpoint covered, so that they were not scanned.
    pub segments_skipped: u64,
    /// Keys that came from the checkpoint.
    pub checkpoint_keys: u64,
    /// Time that loading the checkpoint took, in milliseconds.
    pub checkpoint_ms: u64,
    /// Why a checkpoint that was there was not used; empty if none was refused.
    pub checkpoint_refused: String,
    /// Segments scanned.
    pub segments: u64,
    /// Valid entries that were scanned.
    pub entries: u64,
    /// Bytes of these entries.
    pub bytes: u64,
    /// Keys after recovery.
    pub keys: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
    /// Places torn by the crash, in segments that were open.
    pub torn: u64,
    /// Incomplete batches, which were dropped.
    pub batches_dropped: u64,
    /// Interrupted passes of a collector, which were completed.
    pub passes_completed: u64,
    /// Entries marked dead because the chain that led to them was broken.
    pub chains_mended: u64,
    /// Damage that was passed over (only with salvage).
    pub salvaged: Vec<String>,
    /// Threads used.
    pub threads: usize,
    /// Time taken, in milliseconds.
    pub elapsed_ms: u64,
    /// Everything that was written up to this version is there. Of later writes that were not acknowledged as durable,
    /// a power loss may have left some and taken earlier ones.
    pub settled_version: u64,
    /// The newest version on media.
    pub last_version: u64,
    /// How far the time that the store remembers is ahead of the machine's clock, in milliseconds: the clock was set
    /// back, or had been wrong. Keys expire by the store's time.
    pub clock_ahead_ms: u64,
    /// The highest keyspace id among entries of keyspaces that do not exist.
    pub newest_keyspace: u32,
}
