//! Outcomes and failures of a command. A failure has an exit status (see the table in the crate's documentation).

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use hither::{CopyError, Error, ErrorKind};

/// A command that ran to its end.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// Done, found, sound.
    Done,
    /// Not found, not sound.
    Negative,
    /// The end of a program that has exit statuses of its own.
    Exit(ExitCode),
}

impl Outcome {
    /// `Done` if `yes`.
    pub fn from_bool(yes: bool) -> Self {
        if yes { Self::Done } else { Self::Negative }
    }

    /// The exit status.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Negative => ExitCode::from(1),
            Self::Exit(code) => code,
        }
    }
}

/// A command that failed.
#[derive(Debug)]
pub enum Failure {
    /// The requested object does not exist.
    NotFound(String),
    /// The command line asks for something that makes no sense.
    Usage(String),
    /// A line of the input is not a record.
    Input {
        /// Name of the input.
        name: String,
        /// Line, counted from one.
        line: u64,
        /// What is wrong with it.
        what: String,
        /// Whether a load can continue with the next line.
        skippable: bool,
    },
    /// The store refused or failed.
    Store(hither::Error),
    /// The store did not open, though `--salvage` was given.
    Salvage {
        /// Why it did not open.
        error: hither::Error,
        /// Whether the command only reads: such commands tolerate more damage.
        only_reads: bool,
    },
    /// The store could not be copied.
    Copy(hither::CopyError),
    /// A file or stream other than the store failed.
    Io {
        /// What was being done, with the name of the file.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Nobody reads standard output any more. This is an end, not an error.
    ClosedPipe,
}

impl Failure {
    /// A failed read or write of `path`.
    pub fn path(doing: &str, path: &Path, source: io::Error) -> Self {
        Self::Io { what: format!("{doing} {}", path.display()), source }
    }

    /// A failed write to standard output.
    pub fn stdout(source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Self::Io { what: "writing to standard output".into(), source }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::ClosedPipe => 0,
            Self::NotFound(_) => 1,
            Self::Usage(_) | Self::Input { .. } => 2,
            Self::Store(error) | Self::Salvage { error, .. } => store_status(error.kind()),
            Self::Copy(error) => error.kind().map_or(3, store_status),
            Self::Io { source, .. } if is_full(source.kind()) => 6,
            Self::Io { .. } => 3,
        }
    }
}

/// Whether there is no more room: on the disk, in the quota, or below the limit on the size of files.
fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// The exit status of an error of the store.
fn store_status(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid | ErrorKind::ReadOnly => 2,
        ErrorKind::Damaged | ErrorKind::Format => 4,
        ErrorKind::Locked => 5,
        ErrorKind::Full | ErrorKind::TooLarge | ErrorKind::DiskFull => 6,
        ErrorKind::NotFound | ErrorKind::WrongPool => 7,
        ErrorKind::SyncFailed | ErrorKind::Closed => 8,
        _ => 3,
    }
}

/// Advice for users of a damaged store.
pub const AGAINST_DAMAGE: &str = "restore the pool from a backup, or use --salvage to keep what is readable";

/// The text of a store's error for users of the program. It replaces the error's own text where that addresses users of
/// the library.
fn store_text(error: &Error) -> String {
    match error {
        Error::NotFound(dir) => {
            format!(
                "no store in {}; give the directory of a store, mount its disk, or make one with `hither load`, `hither put` or `hither serve`",
                dir.display()
            )
        }
        Error::Full { used, limit } => format!(
            "the store is full: {used} of {limit} bytes are in segments and none can be freed yet; delete or expire data, or copy it to a \
             new store with a larger --max-capacity (`hither copy`)"
        ),
        Error::NotAdjacent { bytes, free } => format!(
            "the store has no {bytes} adjacent bytes left, as a value of this size needs; {free} bytes are free, but in pieces: delete or \
             expire data, divide the value, or copy the store to a new one with a larger --max-capacity (`hither copy`)"
        ),
        Error::TooLarge { bytes, limit } => format!(
            "the value or batch takes {bytes} bytes, but the store can hold at most {limit} bytes in one; divide it, or copy the store to a \
             new one with a larger --max-capacity (`hither copy`)"
        ),
        Error::Utilization { live, limit, percent } => format!(
            "the store is full: {live} bytes are live, and --utilization {percent} limits them to {limit}; delete or expire data, give a higher \
             --utilization, or copy it to a new store with a larger --max-capacity (`hither copy`)"
        ),
        Error::SyncFailed(why) => format!(
            "the store accepts no writes because a sync failed ({why}); writes that were not acknowledged may be lost; check the device and \
             run the command again: it recovers the data that reached the medium"
        ),
        Error::TooManyKeyspaces(count) => {
            format!("the store has {count} keyspaces and no room for more; use one of them, or another store")
        }
        Error::NotOrdered(name) => format!("keyspace \"{name}\" is a hash keyspace and has no order; `hither dump` writes it in key order"),
        Error::Damaged(finding) => format!("{finding}; {AGAINST_DAMAGE} (`hither check` lists all damage)"),
        Error::OlderCopy(finding) => {
            format!("{finding}; restore all pools of the store from the same copy, or use --salvage to go on without what is missing")
        }
        Error::NotWritable(finding) => format!(
            "{finding}; give this user write permission for the file and its directory, mount the file system writable, use a copy, or look at \
             it with --read-only and a command that only reads"
        ),
        other => other.to_string(),
    }
}

/// The same after `--salvage` did not help, so that the text does not advise `--salvage`.
fn salvage_text(error: &Error, only_reads: bool) -> String {
    match error {
        Error::Damaged(_) | Error::OlderCopy(_) if only_reads => {
            format!("{}; --salvage cannot skip this damage: restore all pools of the store from a backup", error.finding())
        }
        Error::Damaged(_) | Error::OlderCopy(_) => format!(
            "{}; commands that write cannot skip this damage; save the readable data in a new store (`hither copy DIR --salvage`), or restore all pools of \
             the store from a backup",
            error.finding()
        ),
        other => store_text(other),
    }
}

/// The same for a copy: the text says which of the two stores failed.
fn copy_text(error: &CopyError) -> String {
    match error {
        CopyError::Source(error) => store_text(error),
        CopyError::Target(Error::Full { limit, .. }) => {
            format!("the new store may grow to {limit} bytes, which is too little; give a larger --max-capacity")
        }
        CopyError::Target(Error::TooLarge { bytes, limit }) => {
            format!("a value takes {bytes} bytes, but the new store can hold at most {limit} in one; give a larger --max-capacity")
        }
        CopyError::Target(Error::NotAdjacent { bytes, .. }) => {
            format!("the new store has no {bytes} adjacent bytes left, as a value needs; give a larger --max-capacity")
        }
        CopyError::Target(error) => format!("the new store cannot be made: {}", store_text(error)),
        other => other.to_string(),
    }
}

impl From<hither::Error> for Failure {
    fn from(error: hither::Error) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(what) | Self::Usage(what) => f.write_str(what),
            Self::Input { name, line, what, skippable } => {
                let advice = if *skippable { "; correct the line, or leave such lines out with --skip-bad" } else { "" };
                write!(f, "{name}, line {line}: {what}{advice}")
            }
            Self::Store(error) => f.write_str(&store_text(error)),
            Self::Salvage { error, only_reads } => f.write_str(&salvage_text(error, *only_reads)),
            Self::Copy(error) => f.write_str(&copy_text(error)),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::ClosedPipe => f.write_str("standard output was closed"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) | Self::Salvage { error, .. } => Some(error),
            Self::Copy(error) => Some(error),
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_a_quiet_end_and_a_full_disk_is_full() {
        assert_eq!(Failure::stdout(io::ErrorKind::BrokenPipe.into()).status(), 0);
        assert_eq!(Failure::stdout(io::ErrorKind::StorageFull.into()).status(), 6);
        assert_eq!(Failure::path("reading", Path::new("x"), io::ErrorKind::NotFound.into()).status(), 3);
        assert_eq!(Outcome::from_bool(false).exit_code(), ExitCode::from(1));
    }

    #[test]
    fn errors_of_the_store_speak_of_commands_and_options() {
        for (error, advice) in [
            (Error::NotFound("/x".into()), "`hither load`"),
            (Error::Full { used: 1, limit: 1 }, "larger --max-capacity"),
            (Error::NotAdjacent { bytes: 2, free: 2 }, "larger --max-capacity"),
            (Error::TooLarge { bytes: 2, limit: 1 }, "larger --max-capacity"),
            (Error::Utilization { live: 1, limit: 1, percent: 50 }, "higher --utilization"),
            (Error::SyncFailed("EIO".into()), "run the command again"),
            (Error::TooManyKeyspaces(9), "another store"),
            (Error::NotOrdered("h".into()), "`hither dump`"),
            (Error::Damaged("segment 1 is torn".into()), "segment 1 is torn; restore the pool from a backup, or use --salvage to keep"),
            (Error::OlderCopy("pool a is an older copy".into()), "use --salvage to go on"),
            (Error::KeyEmpty, "1 to 65536 bytes"),
            (Error::NotWritable("x cannot be opened for writing".into()), "with --read-only"),
        ] {
            let text = Failure::Store(error).to_string();
            assert!(text.contains(advice), "{text}");
        }
    }

    /// Regression: a user who had given `--salvage` was advised to use it.
    #[test]
    fn where_salvage_did_not_help_it_is_not_the_advice() {
        for (only_reads, advice) in [(true, "from a backup"), (false, "`hither copy DIR --salvage`")] {
            for error in [Error::Damaged("page 0 is torn".into()), Error::OlderCopy("pool a is an older copy".into())] {
                let status = store_status(error.kind());
                let failure = Failure::Salvage { error, only_reads };
                let text = failure.to_string();
                assert!(text.contains(advice) && !text.contains("use --salvage"), "{text}");
                assert_eq!(failure.status(), status);
            }
            let other = Failure::Salvage { error: Error::NotFound("/x".into()), only_reads };
            assert!(other.to_string().contains("`hither load`") && other.status() == 7);
        }
    }

    #[test]
    fn a_bad_line_says_where_it_is() {
        let failure = |skippable| Failure::Input { name: "a.kv".into(), line: 7, what: "no tab between key and value".into(), skippable };
        assert!(failure(true).to_string().starts_with("a.kv, line 7: no tab"));
        assert_eq!((failure(true).status(), failure(false).status()), (2, 2));
        assert!(failure(true).to_string().contains("--skip-bad") && !failure(false).to_string().contains("--skip-bad"));
    }
}
