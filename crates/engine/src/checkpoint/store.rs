//! Where a checkpoint is kept: a file beside the pool of node 0, or the memory of a test.
//!
//! Publishing is atomic and durable: after a return the new checkpoint is there; after a crash before that, the old or
//! the new one. Removal is durable.
//!
//! Thread safety: the caller makes one draft at a time. Crash: a file may be left over under the temporary name. It is
//! removed at the next opening, unless that only looks at the store.

use super::format::MAGIC;
use hither_pmem::Failpoints;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAME: &str = "checkpoint.hither";
const DRAFT_NAME: &str = "checkpoint.hither.tmp";

/// A place for one checkpoint.
pub trait CheckpointStore: Send + Sync {
    /// The checkpoint, if there is one.
    fn open(&self) -> io::Result<Option<Box<dyn CheckpointImage>>>;

    /// Begins a new one, which nobody sees before it is published.
    fn draft(&self) -> io::Result<Box<dyn CheckpointDraft>>;

    /// Removes the checkpoint, durably, and what crashes left over.
    fn remove(&self) -> io::Result<()>;
}

/// A checkpoint that can be read, by several threads at once.
pub trait CheckpointImage: Send + Sync {
    /// Length of the checkpoint.
    fn bytes(&self) -> u64;

    /// Reads all of `out` at `offset`.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A checkpoint being written. Dropping it leaves none behind.
pub trait CheckpointDraft: Send {
    /// Adds bytes at the end.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was written; may take long.
    fn harden(&mut self) -> io::Result<()>;

    /// Puts the draft, durably, in the place of the last checkpoint.
    fn publish(self: Box<Self>) -> io::Result<()>;
}

/// Checkpoints in a directory.
pub(crate) struct FileStore {
    directory: PathBuf,
    /// The store is only looked at: the directory stays as it is.
    only_looks: bool,
    failpoints: Option<Arc<Failpoints>>,
}

impl FileStore {
    /// The process may change its directory later, so the path that is kept is an absolute one.
    pub fn new(directory: &Path, only_looks: bool, failpoints: Option<Arc<Failpoints>>) -> FileStore {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        FileStore { directory, only_looks, failpoints }
    }

    fn sync_directory(&self) -> io::Result<()> {
        check(&self.failpoints, "checkpoint_directory")?;
        sync_directory(&self.directory)
    }
}

fn check(failpoints: &Option<Arc<Failpoints>>, point: &'static str) -> io::Result<()> {
    failpoints.as_ref().map_or(Ok(()), |failpoints| failpoints.check(point))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}; {}", path.display(), advice(path)))),
        Ok(()) => Ok(()),
    }
}

/// Returns an error that says which file it concerns.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn advice(path: &Path) -> &'static str {
    match path.is_dir() {
        true => "a directory lies where the store keeps a file of its own: move it away",
        false => "give this user write permission for the directory that it is in, or remove it",
    }
}

/// Opens a regular file for reading, but nothing else: opening a FIFO waits for a writer.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no regular file", path.display()))),
    }
}

/// Returns the checkpoint in a directory, if there is one by its first bytes: a store was there once, whatever else is
/// there.
pub(crate) fn of_a_store_in(directory: &Path) -> Option<PathBuf> {
    let path = directory.join(NAME);
    // Of any format.
    let mut stem = [0; MAGIC.len() - 1];
    open_regular(&path).ok()?.read_exact_at(&mut stem, 0).ok()?;
    MAGIC.starts_with(&stem).then_some(path)
}

/// Whether a store keeps a checkpoint, whole or not, under this name.
pub(crate) fn is_name(name: &str) -> bool {
    name == NAME || name == DRAFT_NAME
}

/// Returns what lies in a directory under the name of a checkpoint, whatever it is.
pub(crate) fn lying_in(directory: &Path) -> Option<PathBuf> {
    Some(directory.join(NAME)).filter(|path| path.symlink_metadata().is_ok())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    crate::pools::sync_directory(path).map_err(|error| named(path, &error))
}

impl CheckpointStore for FileStore {
    fn open(&self) -> io::Result<Option<Box<dyn CheckpointImage>>> {
        if !self.only_looks {
            remove_if_there(&self.directory.join(DRAFT_NAME))?;
            // A process that renamed or removed the checkpoint may have been killed before that was durable: a power
            // loss would bring the old one back, and what it names.
            self.sync_directory()?;
        }
        match open_regular(&self.directory.join(NAME)) {
            Ok(file) => Ok(Some(Box::new(FileImage { bytes: file.metadata()?.len(), file }))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn draft(&self) -> io::Result<Box<dyn CheckpointDraft>> {
        let path = self.directory.join(DRAFT_NAME);
        check(&self.failpoints, "checkpoint_create")?;
        let mut options = OpenOptions::new();
        // As in `open_regular`.
        options.write(true).create(true).truncate(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = options.open(&path).map_err(|error| named(&path, &error))?;
        let draft = FileDraft { directory: self.directory.clone(), path, file, published: false, failpoints: self.failpoints.clone() };
        Ok(Box::new(draft))
    }

    fn remove(&self) -> io::Result<()> {
        check(&self.failpoints, "checkpoint_remove")?;
        let removed = [NAME, DRAFT_NAME].map(|name| remove_if_there(&self.directory.join(name)));
        let [named, draft] = removed;
        named.and(draft)?;
        // Also if there was none: another process may have removed it.
        self.sync_directory()
    }
}

struct FileImage {
    file: File,
    bytes: u64,
}

impl CheckpointImage for FileImage {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }
}

struct FileDraft {
    directory: PathBuf,
    path: PathBuf,
    file: File,
    published: bool,
    failpoints: Option<Arc<Failpoints>>,
}

impl CheckpointDraft for FileDraft {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        check(&self.failpoints, "checkpoint_write")?;
        self.file.write_all(bytes).map_err(|error| named(&self.path, &error))
    }

    fn harden(&mut self) -> io::Result<()> {
        check(&self.failpoints, "checkpoint_sync")?;
        self.file.sync_all().map_err(|error| named(&self.path, &error))
    }

    fn publish(mut self: Box<Self>) -> io::Result<()> {
        check(&self.failpoints, "checkpoint_rename")?;
        std::fs::rename(&self.path, self.directory.join(NAME)).map_err(|error| named(&self.path, &error))?;
        self.published = true;
        sync_directory(&self.directory)
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        if !self.published {
            // A file that cannot be removed now is removed at the next opening.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A checkpoint in memory: bytes that can be read at once.
impl CheckpointImage for Arc<Vec<u8>> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)?.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: after a program had changed its directory, checkpoints of a store that it had opened by a relative
    /// path failed, or replaced those of another store.
    #[test]
    fn a_relative_path_is_that_of_the_opening() {
        let here = std::env::current_dir().unwrap();
        for given in ["data", "./data", "."] {
            let directory = FileStore::new(Path::new(given), false, None).directory;
            assert!(directory.is_absolute() && directory.starts_with(&here), "{directory:?}");
        }
        assert_eq!(FileStore::new(Path::new("/data"), false, None).directory, Path::new("/data"));
    }
}
