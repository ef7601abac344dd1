//! What a restart tells of itself.

/// From what the indexes were made at open.
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
    /// Its name in output.
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
    /// From what the indexes were made.
    pub source: RestartSource,
    /// Segments that a checkpoint covered, so that they were not scanned.
    pub segments_skipped: u64,
    /// Keys that came from the checkpoint.
    pub checkpoint_keys: u64,
    /// Time that loading it took, in milliseconds.
    pub checkpoint_ms: u64,
    /// Why a checkpoint that was there was not used; empty if it was.
    pub checkpoint_refused: String,
    /// Segments scanned.
    pub segments: u64,
    /// Valid entries.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Keys afterwards.
    pub keys: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
    /// Places in segments that were open, torn by the crash.
    pub torn: u64,
    /// Batches that were not whole, and were dropped.
    pub batches_dropped: u64,
    /// Passes of a collector that were interrupted, and were completed.
    pub passes_completed: u64,
    /// Entries marked dead because the chain that led to them was broken.
    pub chains_mended: u64,
    /// Damage that was passed over (only with salvage).
    pub salvaged: Vec<String>,
    /// Threads used.
    pub threads: usize,
    /// Time taken, in milliseconds.
    pub elapsed_ms: u64,
    /// What was written up to this version is there whole. Of what was written later, and was not acknowledged as durable, a power loss may have left some and taken what came before.
    pub settled_version: u64,
    /// The newest version on media.
    pub last_version: u64,
    /// By how much the time that the store remembers is ahead of the machine's clock, in milliseconds: that was set back, or had been wrong. Keys expire by the store's.
    pub clock_ahead_ms: u64,
    /// The highest keyspace id among entries of keyspaces that do not exist.
    pub newest_keyspace: u32,
}
