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
//! [`Db`], [`Keyspace`], [`Iter`], [`Batch`] and [`Snapshot`] have examples of their own.
//!
//! # What is promised
//!
//! * **Durability.** A write at [`Durability::Sync`] (the default) survives a power loss once its call has returned. A
//!   call that returns a [`Ticket`] does not wait: its write survives a power loss once the ticket reports it durable.
//!   (A ticket of a write at `Process` does so at once, because that level promises nothing more; [`Db::sync`] waits
//!   for the medium.) A write at [`Durability::Interval`] or [`Durability::Process`] survives a crash of the process. A
//!   power loss loses at most the writes of the last interval and of the duration of one sync at `Interval`, and the
//!   writes since the last sync at `Process`.
//! * **Reads.** A read never returns data that could still be lost at the store's level. At `Sync` on a file, a read
//!   that finds a write or a delete that is not durable yet waits for a sync. A walk over many keys waits least when it
//!   reads from a [`Snapshot`], which is made durable once.
//! * **Atomicity.** A [`Batch`] is applied entirely or not at all, also across a crash.
//! * **Isolation.** Single operations are linearizable per key. A [`Snapshot`] is a consistent view of all keyspaces.
//!
//! # Thread safety
//!
//! [`Db`], [`Keyspace`] and [`Snapshot`] are `Send + Sync` and cheap to clone or share; [`Batch`], [`Iter`] and
//! [`Ticket`] are `Send`. Reads of the current state take no lock; those that find data that is not durable yet wait.
//! Reads from a [`Snapshot`] lock its table of saved entries for a moment.
//!
//! Closures given to reads (`get_with`, `multi_get_with`, `scan_with`, `scan_first`, `for_each`, `peek_with`,
//! `scan_deferred`, also of a snapshot) hold back reclamation while they run. Keep them short and do not wait for other
//! threads in them. Operations that wait for reads to end (`reclaim`, `compact`, `check`, `checkpoint`, `copy_to`,
//! `close`) fail inside such a closure with [`Error::InsideRead`]. A write inside such a closure fails if it finds no
//! space, and does not wait for any.
//!
//! The callback of a [`Ticket`] may run on a thread of the store. The same operations fail inside it with
//! [`Error::InsideCallback`], and so does every operation that creates, drops or renames keyspaces.
//!
//! A child of `fork` must not use a store of its parent, and must not open a store before it executes another program:
//! the child never releases what other threads held at the fork. A daemon must open its store after daemonising.
//!
//! # Errors
//!
//! An [`Error`] states what failed, where, and what to do about it. Programs should look at [`Error::kind`]. No error
//! loses anything that was acknowledged.
//!
//! * **Reads** fail with [`Error::Damaged`] if the entry is damaged, or if a damaged entry may belong to the key; with
//!   [`Error::KeyEmpty`], [`Error::KeyTooLong`] and [`Error::KeyspaceDropped`]; and with [`Error::SyncFailed`] if they
//!   found data that is not durable and the sync that should have made it durable failed.
//! * **Writes** fail with the same errors; with [`Error::Full`], [`Error::NotAdjacent`], [`Error::Utilization`] and
//!   [`Error::DiskFull`] for lack of space; with [`Error::TooLarge`] and [`Error::ValueTooLong`], where a retry cannot
//!   succeed; with [`Error::Io`] if the medium refuses a segment; with [`Error::OpenedReadOnly`] in a store that was
//!   opened read-only; with [`Error::Closed`] after [`Db::close`]. After any of these errors nothing was written.
//! * **[`Error::SyncFailed`] from a write** is the exception: its outcome is open. The failed sync may be that of the
//!   write itself, so the write may or may not be there when the store is opened again. Until then the store accepts no
//!   writes.
//!
//! # Operations that do not wait
//!
//! A server's threads must not sleep in a sync. For them, [`Keyspace::peek_with`], [`Keyspace::scan_deferred`],
//! [`Keyspace::write_deferred`], [`Keyspace::write_if_deferred`] and [`Batch::commit_deferred`] return at once.
//! Together with the outcome they return the version that it *rests on*. Until that version is durable, do not report
//! the outcome to anyone who takes it for durable. 0 means that the outcome may be reported at once.
//!
//! All other operations wait for that version themselves, or return a [`Ticket`] for it. If the system gives the store
//! no thread for commits, [`Db::ticket_at`] makes the commit itself and does wait, and so do writes at an interval.
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
mod update;

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
pub use update::Change;
