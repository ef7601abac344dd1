//! Errors of the store. Each message states what failed, where, and what to do about it.
//!
//! [`Error`] is for people, [`ErrorKind`] for programs. The errors of pools and of the log are converted here. Plain
//! values: nothing here is shared or on media.

use std::path::PathBuf;

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. None of these errors loses an acknowledged write.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No segment is left.
    #[error(
        "the store is full: {used} of {limit} bytes are in segments and none can be freed yet; delete or expire data, or copy it to a new store with a larger max-capacity"
    )]
    Full {
        /// Bytes in segments in use.
        used: u64,
        /// Bytes the pools may grow to.
        limit: u64,
    },
    /// There is room, but no single piece as large as a large value takes.
    #[error(
        "the store has no {bytes} adjacent bytes left, which a value of this size takes; {free} bytes are free, but in pieces: delete or expire data, divide the value, or copy the data to a new store with a larger max-capacity"
    )]
    NotAdjacent {
        /// Bytes that the value takes.
        bytes: u64,
        /// Bytes that are free in pieces.
        free: u64,
    },
    /// A value or batch takes more than the store could hold if it were empty.
    #[error(
        "it takes {bytes} bytes, and the store can hold {limit} bytes at most in one value or batch; divide it, or copy the data to a new store with a larger max-capacity"
    )]
    TooLarge {
        /// Bytes that the value or batch takes, at least.
        bytes: u64,
        /// Most bytes that one value or batch may take.
        limit: u64,
    },
    /// Live data would exceed the bound that the store was opened with.
    #[error(
        "the store is full: {live} bytes are live, and utilization {percent} bounds them to {limit}; delete or expire data, overwrite with values that are no longer, open it with a higher utilization, or copy it to a new store with a larger max-capacity"
    )]
    Utilization {
        /// Bytes of live entries.
        live: u64,
        /// Most bytes that live entries may take.
        limit: u64,
        /// The bound in per cent of what the pools may grow to.
        percent: u32,
    },
    /// A key is longer than 65,536 bytes.
    #[error("a key of {bytes} bytes is too long; keys have 1 to 65536 bytes")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A key is empty.
    #[error("an empty key was given; keys have 1 to 65536 bytes")]
    KeyEmpty,
    /// A value is longer than 512 MiB.
    #[error("a value of {bytes} bytes is too long; values have up to 536870912 bytes (512 MiB)")]
    ValueTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Too many operations in one batch.
    #[error("a batch of {len} operations is too large; one batch has up to 268435455, split it")]
    BatchTooLarge {
        /// Its length.
        len: usize,
    },
    /// The media hold something that no crash leaves. The text states what, and where.
    #[error("{0}; restore the pool from a backup, or open with salvage to keep what is readable (`check` lists all damage)")]
    Damaged(String),
    /// The directory holds no store and none may be created.
    #[error("no store in {}; give the directory of a store, or allow creating one", .0.display())]
    NotFound(PathBuf),
    /// A pool of the store is missing.
    #[error("{} is missing, which holds node {node} of this store; mount its device or give its directory (opening without it would show old data)", path.display())]
    MissingPool {
        /// Node of the missing pool.
        node: u32,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The pool belongs to another store.
    #[error("{0}")]
    WrongPool(String),
    /// One of the pools is an older copy than the others. The text states which, and what shows it.
    #[error("{0}; restore all pools of the store from the same copy, or open with salvage to go on without what is missing")]
    OlderCopy(String),
    /// A pool, or the directory to create it in, cannot be written. The text states which, and why.
    #[error("{0}; give this user write permission for the file and its directory, mount the file system writable, or use a copy")]
    NotWritable(String),
    /// The file is not a pool, or not a finished one.
    #[error("{0}")]
    Foreign(String),
    /// The pool was written by a newer version, or uses features that this version does not know.
    #[error("{0}")]
    NewerFormat(String),
    /// The pool is open elsewhere: in another process, or through another handle of this one.
    #[error("{0}")]
    Locked(String),
    /// No space on the device.
    #[error("{0}")]
    DiskFull(String),
    /// The operating system failed.
    #[error("{0}")]
    Io(String),
    /// A sync failed earlier: the store is read-only until it is opened again.
    #[error(
        "the store is read-only since a sync failed ({0}); writes that were not acknowledged may be lost; close the store, check the device, and open it again: recovery reads what really reached the medium"
    )]
    SyncFailed(String),
    /// The store was opened read-only.
    #[error("the store was opened read-only, so nothing can be written; open it without that to write")]
    OpenedReadOnly,
    /// The store was closed.
    #[error("the store was closed and takes no more writes; open it again")]
    Closed,
    /// The options contradict each other or the store.
    #[error("{0}")]
    Config(String),
    /// A keyspace of this name exists already.
    #[error("keyspace \"{0}\" exists already; open it, or drop it first")]
    KeyspaceExists(String),
    /// The keyspace of this name is of another kind than the caller asked for.
    #[error("keyspace \"{name}\" exists and is {kind}; open it as that, or choose another name")]
    KeyspaceKind {
        /// Name of the keyspace.
        name: String,
        /// The kind that it has.
        kind: &'static str,
    },
    /// A keyspace name is not allowed.
    #[error("keyspace name \"{0}\" cannot be used; names have 1 to 64 bytes without control characters")]
    KeyspaceName(String),
    /// The catalogue has no room for another keyspace.
    #[error("the catalogue is full ({0} keyspaces); drop one first")]
    TooManyKeyspaces(usize),
    /// The keyspace of this handle was dropped or renamed.
    #[error("keyspace \"{0}\" was dropped or renamed; open or create it again")]
    KeyspaceDropped(String),
    /// An ordered operation was called on a hash keyspace.
    #[error("keyspace \"{0}\" is a hash keyspace and has no order; use an ordered keyspace for ranges")]
    NotOrdered(String),
    /// A precondition of a batch does not hold.
    #[error("a precondition does not hold: key {key} of keyspace \"{keyspace}\" has changed; read it again and retry")]
    PreconditionFailed {
        /// Name of the keyspace.
        keyspace: String,
        /// The key as text; bytes that are not UTF-8 are replaced.
        key: String,
    },
    /// The operation was called from a closure that runs during a read.
    #[error("{0} waits for all reads to end, so it cannot be called from inside one; call it when the closure has returned")]
    InsideRead(&'static str),
    /// The operation was called from the callback of a ticket, or a compaction from the progress callback of a
    /// compaction.
    #[error("{0} waits for other work of the store, which may be what called this callback; call it when the callback has returned")]
    InsideCallback(&'static str),
    /// The handle belongs to another store.
    #[error("keyspace \"{0}\" belongs to another store; use handles of this one")]
    ForeignKeyspace(String),
}

/// The kinds of [`Error`], for programs to decide by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No room in the store.
    Full,
    /// More than the store could hold if it were empty. A larger store is needed, or smaller values or batches.
    TooLarge,
    /// Unusable argument.
    Invalid,
    /// Damage on media.
    Damaged,
    /// The store or keyspace does not exist.
    NotFound,
    /// A pool is missing, belongs to another store, or is an older copy than the others.
    WrongPool,
    /// Not a pool, or one of a newer format.
    Format,
    /// Open elsewhere.
    Locked,
    /// Disk full.
    DiskFull,
    /// Input or output failed, or a pool cannot be written.
    Io,
    /// Read-only since a sync failed.
    SyncFailed,
    /// Opened read-only.
    ReadOnly,
    /// Closed.
    Closed,
    /// A precondition failed.
    Conflict,
}

impl ErrorKind {
    /// Whether a retry may succeed: once garbage is collected, keys are deleted or the disk has room again.
    pub fn is_lack_of_space(self) -> bool {
        matches!(self, ErrorKind::Full | ErrorKind::DiskFull)
    }
}

impl Error {
    /// The error's kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Full { .. } | Error::NotAdjacent { .. } | Error::Utilization { .. } => ErrorKind::Full,
            Error::TooLarge { .. } => ErrorKind::TooLarge,
            Error::Damaged(_) => ErrorKind::Damaged,
            Error::NotFound(_) | Error::KeyspaceDropped(_) => ErrorKind::NotFound,
            Error::MissingPool { .. } | Error::WrongPool(_) | Error::OlderCopy(_) => ErrorKind::WrongPool,
            Error::Foreign(_) | Error::NewerFormat(_) => ErrorKind::Format,
            Error::Locked(_) => ErrorKind::Locked,
            Error::DiskFull(_) => ErrorKind::DiskFull,
            Error::Io(_) | Error::NotWritable(_) => ErrorKind::Io,
            Error::SyncFailed(_) => ErrorKind::SyncFailed,
            Error::OpenedReadOnly => ErrorKind::ReadOnly,
            Error::Closed => ErrorKind::Closed,
            Error::PreconditionFailed { .. } => ErrorKind::Conflict,
            _ => ErrorKind::Invalid,
        }
    }

    /// Returns what was found. The advice of [`Error::Damaged`], [`Error::OlderCopy`] and [`Error::NotWritable`] is
    /// left out, because it depends on who reads it; other errors return their whole message.
    pub fn finding(&self) -> String {
        match self {
            Error::Damaged(finding) | Error::OlderCopy(finding) | Error::NotWritable(finding) => finding.clone(),
            other => other.to_string(),
        }
    }
}

impl From<hither_pmem::Error> for Error {
    fn from(error: hither_pmem::Error) -> Error {
        use hither_pmem::Error as Pool;
        let text = error.finding();
        match error {
            Pool::Foreign { .. } | Pool::HalfCreated { .. } | Pool::NotAFile { .. } => Error::Foreign(text),
            Pool::NewerFormat { .. } | Pool::IncompatibleFeatures { .. } => Error::NewerFormat(text),
            Pool::Locked { .. } => Error::Locked(text),
            Pool::DamagedSuperblock { .. } | Pool::DamagedDescriptor { .. } | Pool::ShortFile { .. } => Error::Damaged(text),
            Pool::WrongStore { .. } | Pool::WasInUse { .. } => Error::WrongPool(text),
            Pool::NotWritable { .. } => Error::NotWritable(text),
            Pool::DiskFull { .. } => Error::DiskFull(text),
            Pool::SyncFailed { .. } => Error::SyncFailed(text),
            Pool::AlreadyExists { .. }
            | Pool::NotDurable { .. }
            | Pool::UnsuitableMedium { .. }
            | Pool::TooLarge { .. }
            | Pool::Invalid { .. } => Error::Config(text),
            _ => Error::Io(text),
        }
    }
}

impl From<hither_log::Error> for Error {
    fn from(error: hither_log::Error) -> Error {
        match error {
            hither_log::Error::Full { used, limit } => Error::Full { used, limit },
            hither_log::Error::NotAdjacent { bytes, free } => Error::NotAdjacent { bytes, free },
            hither_log::Error::TooLarge { bytes, limit } => Error::TooLarge { bytes, limit },
            hither_log::Error::Pool(error) => error.into(),
            error @ hither_log::Error::Damaged { .. } => Error::Damaged(error.finding()),
            error => Error::Io(error.to_string()),
        }
    }
}
