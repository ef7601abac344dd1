//! # hither
//!
//! An embedded key–value store that keeps every byte near the thread that needs it and loses nothing that it acknowledged.
//!
//! ```
//! # fn main() -> hither::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path();
//! let db = hither::Db::open(path)?;
//! let users = db.keyspace("users")?;
//! users.put(b"alice", b"1815")?; // durable when it returns
//! assert_eq!(users.get(b"alice")?.as_deref(), Some(&b"1815"[..]));
//!
//! let mut batch = db.batch();
//! batch.put(&users, b"bob", b"1903").delete(&users, b"alice");
//! batch.commit()?; // both or neither, whatever happens
//!
//! for pair in users.prefix(b"b")? {
//!     let (key, value) = pair?;
//!     println!("{key:?} = {value:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Examples of its own have [`Db`], [`Keyspace`], [`Iter`], [`Batch`] and [`Snapshot`].
//!
//! # What is promised
//!
//! * **Durability.** A write at [`Durability::Sync`] (the default) survives a power loss once its call returned (or its [`Ticket`] says so).
//!   [`Durability::Interval`] and [`Durability::Process`] survive a crash of the process; a power loss takes at most what was written within the interval before it and
//!   while a sync took, or, at `Process`, what was not synced yet. A read never returns what could still be lost at the store's level: at
//!   `Sync` on a file it may have to wait for a sync, if it finds what was written or deleted just now. (A walk over many keys waits least by a [`Snapshot`], which is
//!   made durable once.)
//! * **Atomicity.** A [`Batch`] is applied entirely or not at all, also across a crash.
//! * **Isolation.** Single operations are linearizable per key. A [`Snapshot`] is a consistent view of all keyspaces.
//!
//! # Thread safety
//!
//! [`Db`], [`Keyspace`] and [`Snapshot`] are `Send + Sync` and cheap to clone or share; reads take no lock, but for those that meet what is not durable yet. Closures given to reads (`get_with`, `multi_get_with`, `scan_with`,
//! `scan_first`, `for_each`, `peek_with`, `scan_deferred`, also of a snapshot) run while reclamation is held back: keep them short and do not wait for other threads in them. What waits for reads to end
//! (`reclaim`, `compact`, `check`, `checkpoint`, `copy_to`, `close`) is refused there with [`Error::InsideRead`], and a write that finds no space fails at once.
//! A child of `fork` must not use a store of its parent's, nor open one before it executes another program: what other threads held at the fork is never released in it. Open after daemonising.
//! In the callback of a [`Ticket`], which may run on a thread of the store, the same is refused with [`Error::InsideCallback`], and so is whatever makes, drops or renames keyspaces.
//!
//! # Errors
//!
//! [`Error`] says what, where and what to do; [`Error::kind`] is for programs. None of them loses anything that was acknowledged.
//!
//! * **Reads** fail with [`Error::Damaged`] (the entry, or one that may be the key's), [`Error::KeyEmpty`] and [`Error::KeyTooLong`], [`Error::KeyspaceDropped`], and with
//!   [`Error::ReadOnly`] if what they found is not durable and the sync that was to make it so failed.
//! * **Writes** fail with these; with [`Error::Full`], [`Error::NotAdjacent`], [`Error::Utilization`] and [`Error::DiskFull`] for lack of space; with [`Error::TooLarge`] and [`Error::ValueTooLong`], where it is no use to try again; with
//!   [`Error::Io`] if the medium refuses a segment; with [`Error::OpenedReadOnly`] in a store that was opened so; with [`Error::Closed`] after [`Db::close`]. Then nothing was written. After **[`Error::ReadOnly`]** the outcome is open: the sync behind the write itself may be the one that failed, so it may have
//!   been made, and may be there when the store is opened again, or not. Until then the store takes no writes.
//!
//! # Operations that do not wait
//!
//! For servers, whose threads must not sleep in a sync, [`Keyspace::peek_with`], [`Keyspace::scan_deferred`], [`Keyspace::write_deferred`], [`Keyspace::write_if_deferred`] and [`Batch::commit_deferred`] tell
//! at once, and with the outcome the version that it *rests on*: whoever takes what is told for durable must not be told before that version is. 0 means that it may be told at once.
//! The other operations do the same by waiting. (Where the system gives the store no thread for commits, these make the commit themselves, and wait.)
//!
//! ```
//! # fn main() -> hither::Result<()> {
//! # let db = hither::Db::builder().in_memory().open()?;
//! # let users = db.keyspace("users")?;
//! let put = users.write_deferred(b"alice", Some(b"1815"), &hither::WriteOptions::new())?;
//! let (born, rests_on) = users.peek_with(b"alice", |value, _| value.to_vec())?;
//! // Other requests are served here, and then, once for many of them:
//! db.ticket_at(rests_on.max(put.rests_on)).wait()?;
//! assert_eq!(born.as_deref(), Some(&b"1815"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! Keys have 1 to 65,536 bytes, values 0 to 512 MiB, batches up to 2^28 − 1 operations.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod batch;
mod builder;
mod copy;
mod db;
mod deferred;
mod iter;
mod keyspace;
mod report;
mod snapshot;

pub use batch::Batch;
pub use builder::{Builder, MediumChoice};
pub use copy::{CopyError, CopyProgress, CopyReport};
pub use db::Db;
#[doc(hidden)]
pub use hither_engine::without_bound;
pub use hither_engine::{
    CachePolicy, CheckpointMode, CollectorKind, CompactProgress, CompactReport, Deferred, Durability, Error, ErrorKind, Expiry, Found,
    KeyspaceInfo, Kind, OrderedKind, Phase, Progress, Result, SHORTCUT_FROM_BYTES, SpaceUse, Ticket, ValueGuard, WriteOptions,
};
pub use hither_engine::{ignore_file_size_signal, install_sigbus_guard};
pub use hither_topology::Topology;
pub use iter::{Entries, Entry, Iter};
pub use keyspace::{Keyspace, KeyspaceOptions, after_prefix};
pub use report::{
    CacheStats, CheckReport, CheckpointStats, CollectionStats, DelegationStats, KeyspaceStats, MeterReport, NodeAccess, PoolStats,
    RecoveryReport, Stats,
};
pub use snapshot::Snapshot;
