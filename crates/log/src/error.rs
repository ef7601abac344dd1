//! The errors of the log.

/// A result of the log.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the log: what, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No free segment is left on any node.
    #[error(
        "the store is full: {used} of {limit} bytes are in segments and none can be freed yet; delete or expire data, or copy it to a new store with a larger max-capacity"
    )]
    Full {
        /// Bytes in segments in use.
        used: u64,
        /// Bytes the pools may grow to.
        limit: u64,
    },
    /// Enough segments are free, but not as many side by side as a large value takes.
    #[error(
        "no {bytes} adjacent bytes are free, which a value of this size takes; {free} bytes are free, but in pieces: delete or expire data, or copy it to a new store with a larger max-capacity"
    )]
    NotAdjacent {
        /// Bytes of the segments that are needed.
        bytes: u64,
        /// Bytes in free segments of this pool.
        free: u64,
    },
    /// A value takes more segments than it may ever get on any node.
    #[error("{bytes} bytes are more than the {limit} that a value may take in this store")]
    TooLarge {
        /// Bytes of the segments that are needed.
        bytes: u64,
        /// Bytes of the most segments that a write may get.
        limit: u64,
    },
    /// A sealed segment does not hold what its descriptor records.
    #[error(
        "{}; restore the pool from a backup, or open with salvage to keep what is readable",
        damaged(*segment, pool, what, *offset)
    )]
    Damaged {
        /// The pool file.
        pool: String,
        /// Segment number in the pool.
        segment: u32,
        /// Byte offset in the pool.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// The operating system provided no random numbers.
    #[error("no random number for a segment's generation: {0}; check that the system's random source works")]
    Random(getrandom::Error),
    /// A write could not be made durable.
    #[error("{0}")]
    Durability(String),
    /// The pool layer failed.
    #[error(transparent)]
    Pool(#[from] hither_pmem::Error),
}

impl Error {
    /// The finding alone, without the advice that follows it, for damage. Which advice is right depends on who reads
    /// it.
    pub fn finding(&self) -> String {
        match self {
            Error::Damaged { pool, segment, offset, what } => damaged(*segment, pool, what, *offset),
            Error::Pool(error) => error.finding(),
            other => other.to_string(),
        }
    }

    /// Whether there is no room, in the pools or on the disk.
    pub(crate) fn is_lack_of_space(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::NotAdjacent { .. } | Error::Pool(hither_pmem::Error::DiskFull { .. }))
    }
}

fn damaged(segment: u32, pool: &str, what: &str, offset: u64) -> String {
    format!("damaged segment {segment} of pool {pool}: {what} (at byte {offset} of the pool)")
}
