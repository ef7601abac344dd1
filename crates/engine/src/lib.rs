//! The engine: joins the log and the indexes into a store with keyspaces, versions, snapshots and recovery.
//!
//! Reading order: [`store`] (what a store consists of), `write` (the path that every put takes), `read`, `commit`
//! (durability), `recovery`. The public library (`hither`) wraps this crate. Nothing here is meant for applications.
//!
//! # Guarantees
//!
//! * An operation acknowledged at level *sync* survives a power loss. *Process* survives a crash of the process.
//!   *Interval* is sync, late by at most the interval and the time of a sync. A read at the store's level never returns
//!   what could still be lost at that level (`docs/durability.md`).
//! * Writes of one key are ordered by their versions; index, log and recovery agree on the newest.
//! * After a crash a batch is there entirely or not at all.
//!
//! # Thread safety
//!
//! A [`Store`] is `Send + Sync`; any number of threads may use it. Reads take no lock, except reads that wait until
//! what they found is durable, and reads of a snapshot, which may look into its side table.

#![forbid(unsafe_code)]

mod batch;
mod bound;
mod cache;
mod catalogue;
mod check;
pub mod checkpoint;
mod collector;
mod commit;
mod compact;
mod courtesy;
mod deferred;
mod delegation;
mod draft;
mod error;
mod expiries;
mod keyspace;
mod lean;
mod maintenance;
mod mending;
mod openings;
mod options;
mod pools;
mod read;
mod recent_deletes;
mod recovery;
mod remains;
mod resolver;
mod restart;
mod salvage;
mod scan;
mod shortcuts;
mod snapshot;
mod stats;
pub mod store;
mod sweeps;
mod verification;
mod walk;
mod write;

pub use batch::Batch;
#[doc(hidden)]
pub use bound::without_bound;
pub use cache::{CacheReport, CacheSetting};
pub use catalogue::check_name;
pub use check::CheckReport;
pub use checkpoint::CheckpointStats;
pub use checkpoint::store::{CheckpointDraft, CheckpointImage, CheckpointStore};
pub use commit::Ticket;
pub use compact::{CompactProgress, CompactReport, SpaceUse};
pub use deferred::{Deferred, Found};
pub use delegation::{DelegationSetting, DelegationStats};
pub use draft::StoreDraft;
pub use error::{Error, ErrorKind, Result};
pub use hither_cache::Policy as CachePolicy;
pub use hither_pmem::{ignore_file_size_signal, install_sigbus_guard};
pub use keyspace::{KeyspaceHandle, KeyspaceInfo, Kind, OrderedKind};
pub use options::{
    CheckpointMode, CollectorKind, Durability, Expiry, MediumChoice, Options, Phase, Progress, SHORTCUT_FROM_BYTES, Techniques,
    WriteOptions,
};
pub use read::ValueGuard;
pub use recovery::{RecoveryReport, RestartSource};
pub use scan::{Direction, ScanRange};
pub use snapshot::Snapshot;
pub use stats::{CollectionStats, KeyspaceStats, MeterReport, PoolStats, Stats};
pub use store::Store;
pub use walk::KeyPieces;
pub use write::{Condition, check_key, check_value};
