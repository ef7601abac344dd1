//! The errors of a pool: every variant says what went wrong, where, and what to do.
//!
//! After [`Error::SyncFailed`] the pool is poisoned. A failed sync marks pages clean, so nothing written since the last
//! successful sync may be taken for durable; only a reopen from the media shows what is.

use std::fmt;
use std::path::{Path, PathBuf};

/// The result of a pool operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the user can do about a failed system call.
fn io_advice(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::PermissionDenied => "give this user permission for the file and its directory",
        _ => {
            "look into the system's log for what the device or the file system says; if it does not go away, restore the pool from a backup"
        }
    }
}

/// The path of a pool in a message; in-memory pools have none.
#[derive(Clone, PartialEq, Eq)]
pub struct Place(pub(crate) Option<PathBuf>);

impl Place {
    pub(crate) fn of(path: Option<&Path>) -> Place {
        Place(path.map(Path::to_owned))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => write!(f, "pool {}", path.display()),
            None => f.write_str("the in-memory pool"),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a pool could not be created, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file does not exist.
    #[error("{pool} does not exist; mount its device or correct the path (a store is opened only with all its pools)")]
    NotFound {
        /// Which pool.
        pool: Place,
    },
    /// The directory exists but accepts no new file.
    #[error(
        "{pool} cannot be created ({source}): its directory takes no new files, as those of the kernel (/proc, /sys) do not, or the name is a \
             link to nothing; name another directory"
    )]
    NotCreated {
        /// Which pool.
        pool: Place,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The file, or the directory in which it was to be created, cannot be written.
    #[error(
        "{}; give this user write permission for the file and its directory, mount the file system writable, or use a copy",
        not_writable(pool, source)
    )]
    NotWritable {
        /// Which pool.
        pool: Place,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Creation found a complete pool.
    #[error("{pool} already holds a store; open it, or remove the file to make a new one")]
    AlreadyExists {
        /// Which pool.
        pool: Place,
    },
    /// A creation that starts over found a complete pool that has been opened or holds data.
    #[error(
        "{pool} belongs to a store that was in use, and its first pool is blank; restore that one from a backup or mount its device (nothing was changed)"
    )]
    WasInUse {
        /// Which pool.
        pool: Place,
    },
    /// The file is not a pool.
    #[error("{pool} is no hither pool (it begins with {found:02x?}); check the path, nothing was changed")]
    Foreign {
        /// Which file.
        pool: Place,
        /// Its first bytes.
        found: [u8; 8],
    },
    /// A directory, a FIFO or the like.
    #[error("{pool} is neither a regular file nor a dax device; check the path, nothing was changed")]
    NotAFile {
        /// Which one.
        pool: Place,
    },
    /// The pool was written by a later version.
    #[error("{pool} has format {found}, this version reads up to {supported}; use a newer hither")]
    NewerFormat {
        /// Which pool.
        pool: Place,
        /// Its format.
        found: u32,
        /// The newest format known here.
        supported: u32,
    },
    /// Creation was interrupted before the magic.
    #[error("the creation of {pool} was never finished, it holds no data; create the store again")]
    HalfCreated {
        /// Which pool.
        pool: Place,
    },
    /// Another process, or another handle of this process, has the pool open.
    #[error("{pool} is in use{}", holder(*pid))]
    Locked {
        /// Which pool.
        pool: Place,
        /// The holder, if the system reports it.
        pid: Option<u32>,
    },
    /// Bytes of page 0 or of the catalogue do not verify.
    #[error(
        "{}; restore it from a backup, or open with salvage to keep what is readable (nothing was changed)",
        damaged(pool, what, *offset, detail)
    )]
    DamagedSuperblock {
        /// Which pool.
        pool: Place,
        /// Which record or word.
        what: &'static str,
        /// Where it is in the pool.
        offset: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// A segment descriptor does not verify.
    #[error(
        "{}; restore it from a backup, or open with salvage to keep what is readable (nothing was changed)",
        damaged(pool, &descriptor_of(*segment), *offset, detail)
    )]
    DamagedDescriptor {
        /// Which pool.
        pool: Place,
        /// Which segment.
        segment: u32,
        /// Where its descriptor is in the pool.
        offset: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// The pool belongs to another store, or is another member than expected.
    #[error("{pool} is not the pool expected here: its {what} is {found}, expected {expected}; give the pools of one store in node order")]
    WrongStore {
        /// Which pool.
        pool: Place,
        /// What differs.
        what: &'static str,
        /// What the pool says.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// No space on the device.
    #[error(
        "{pool}: no space for {bytes} bytes; free space on the device, raise the quota or the limit on the size of files (ulimit -f), or \
             ask for less (nothing was written beyond the old size)"
    )]
    DiskFull {
        /// Which pool.
        pool: Place,
        /// How much was asked for.
        bytes: u64,
    },
    /// The file ends before its content does.
    #[error(
        "{}; restore it from a complete copy, or open with salvage to keep what is readable (nothing was changed)",
        too_short(pool, *found, *needed)
    )]
    ShortFile {
        /// Which pool.
        pool: Place,
        /// Length found.
        found: u64,
        /// Length needed.
        needed: u64,
    },
    /// A call to the operating system failed.
    #[error("{pool}: {action} at offset {offset} failed: {source}; {}", io_advice(source))]
    Io {
        /// Which pool.
        pool: Place,
        /// What was tried.
        action: &'static str,
        /// Where in the pool.
        offset: u64,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Direct access was forced on storage on which flushed data does not survive a power loss.
    #[error(
        "{pool} is on {filesystem}, where stores reach the disk through the page cache: flushed cache lines would not survive a power \
             loss; choose the medium \"file\", or let it be found out (\"auto\")"
    )]
    NotDurable {
        /// Which pool.
        pool: Place,
        /// The file system.
        filesystem: String,
    },
    /// This storage cannot be the medium that was asked for.
    #[error("{pool}: {what} is not possible here; {advice}")]
    UnsuitableMedium {
        /// Which pool.
        pool: Place,
        /// What was asked for.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A value is beyond a limit.
    #[error("{pool}: {what} is {value}, the limit is {limit}; {advice}")]
    TooLarge {
        /// Which pool.
        pool: Place,
        /// What is too large.
        what: &'static str,
        /// How large it is.
        value: u64,
        /// The limit.
        limit: u64,
        /// What to do.
        advice: &'static str,
    },
    /// The process has fewer free addresses than the pool may grow to.
    #[error(
        "{pool} may grow to {bytes} bytes (max-capacity), and so many addresses are not free in this process; raise `ulimit -v`, or give a new \
             store a smaller max-capacity"
    )]
    NoAddresses {
        /// Which pool.
        pool: Place,
        /// How many bytes of addresses it needs.
        bytes: u64,
    },
    /// A sync failed, now or earlier; the pool is read-only until it is opened again.
    #[error(
        "{pool}: a sync to the device failed ({detail}); writes since the last sync may be lost. The pool takes no writes until it is \
             opened again; check the device first"
    )]
    SyncFailed {
        /// Which pool.
        pool: Place,
        /// The first failure.
        detail: String,
    },
    /// The pool has feature flags that this version must not ignore.
    #[error("{pool} uses features that this version does not know (bits {bits:#x}{}); use a newer hither", read_only_hint(*read_only_possible))]
    IncompatibleFeatures {
        /// Which pool.
        pool: Place,
        /// The unknown bits.
        bits: u64,
        /// Whether opening read-only would work.
        read_only_possible: bool,
    },
    /// A parameter is outside its range.
    #[error("{what} is {value}: {advice}")]
    Invalid {
        /// Which parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        advice: &'static str,
    },
}

impl Error {
    /// The finding alone, without the advice that follows it, for damage and for files that cannot be written. Which
    /// advice is right depends on who reads it.
    pub fn finding(&self) -> String {
        match self {
            Error::DamagedSuperblock { pool, what, offset, detail } => damaged(pool, what, *offset, detail),
            Error::DamagedDescriptor { pool, segment, offset, detail } => damaged(pool, &descriptor_of(*segment), *offset, detail),
            Error::ShortFile { pool, found, needed } => too_short(pool, *found, *needed),
            Error::NotWritable { pool, source } => not_writable(pool, source),
            other => other.to_string(),
        }
    }
}

fn damaged(pool: &Place, what: &str, offset: u64, detail: &str) -> String {
    format!("{pool} is damaged: {what} at offset {offset} {detail}")
}

fn descriptor_of(segment: u32) -> String {
    format!("the descriptor of segment {segment}")
}

fn too_short(pool: &Place, found: u64, needed: u64) -> String {
    format!("{pool} is {found} bytes long but needs {needed}: it was truncated or copied in part")
}

fn not_writable(pool: &Place, source: &std::io::Error) -> String {
    format!("{pool} cannot be opened for writing ({source}), which every opening needs that is not read-only")
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if pid == std::process::id() => {
            " by this process itself; drop what still keeps it open: handles, batches, snapshots, iterators, pinned values, tickets".into()
        }
        Some(pid) => format!(" by process {pid}; stop that process first"),
        None => "; stop the process that has it first".into(),
    }
}

fn read_only_hint(possible: bool) -> &'static str {
    if possible { "; reading only is possible" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    /// Regression: reading a pool that another user had created failed, and no message said what to do.
    #[test]
    fn a_call_that_failed_says_what_to_do() {
        for (kind, advice) in [(ErrorKind::PermissionDenied, "give this user permission"), (ErrorKind::Other, "system's log")] {
            let (pool, action) = (Place::of(Some(Path::new("/a/pool"))), "opening the file");
            let text = Error::Io { pool, action, offset: 7, source: kind.into() }.to_string();
            assert!(text.contains("/a/pool: opening the file at offset 7 failed: ") && text.contains(advice), "{text}");
        }
    }
}
