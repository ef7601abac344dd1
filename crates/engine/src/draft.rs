//! A store that is made apart, and is there only when it is whole: a copy of another one must not pass for it while it is half made, nor after a crash in between.
//!
//! # How
//!
//! Its pools are made in a directory of their own, `copy.PID.N.part`, within each directory that they are for. When the store is filled and closed, they are moved up: that of node 0
//! last. Until then an opening finds no store there, or says that the pool of node 0 is missing.
//!
//! Thread safety: one thread has it. Crash: the directories `copy.*.part` stay, and hold nothing that anybody was promised; other drafts take other names.

use crate::checkpoint::store::of_a_store_in;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::pools::{node_of_pool_file, sync_name};
use crate::remains::pools_in;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::io;
use std::path::{Path, PathBuf};

/// See the module's head. Dropped before it is published, it takes everything away.
pub struct StoreDraft {
    parts: Vec<Part>,
    /// Files that lie where they are to be.
    moved: Vec<PathBuf>,
    published: bool,
}

struct Part {
    /// Where pools are to be.
    directory: PathBuf,
    /// Where they are made.
    apart: PathBuf,
    /// What was not there before, the innermost first.
    missing: Vec<PathBuf>,
}

impl StoreDraft {
    /// Has the store that is opened with `options` be made apart.
    ///
    /// # Errors
    /// [`Error::Config`] if it has no directory, or one that has a store; [`Error::Io`].
    pub fn begin(options: &mut Options) -> Result<StoreDraft> {
        if options.in_memory || options.pools.is_some() || options.paths.is_empty() {
            return Err(Error::Config("a copy is a store in files; give its directory".into()));
        }
        let mut draft = StoreDraft { parts: Vec::new(), moved: Vec::new(), published: false };
        for (_, directory) in &mut options.paths {
            *directory = draft.part_for(directory)?;
        }
        options.create = true;
        Ok(draft)
    }

    fn part_for(&mut self, directory: &Path) -> Result<PathBuf> {
        if let Some(part) = self.parts.iter().find(|part| part.directory == directory) {
            return Ok(part.apart.clone());
        }
        refuse_store_in(directory)?;
        let id = std::process::id();
        let names = (0..u32::MAX).map(|number| directory.join(format!("copy.{id}.{number}.part")));
        let apart = names.into_iter().find(|name| !name.exists()).unwrap_or_default();
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing = apart.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        self.parts.push(Part { directory: directory.to_owned(), apart: apart.clone(), missing });
        Ok(apart)
    }

    /// It is there from now on, durably. Whoever made it has closed it.
    ///
    /// # Errors
    /// [`Error::Config`] if there is another store by now; [`Error::Io`]. Then nothing is left of it, unless that fails, too.
    pub fn publish(mut self) -> Result<()> {
        self.parts.iter().try_for_each(|part| refuse_store_in(&part.directory))?;
        for is_first in [false, true] {
            for part in &self.parts {
                let which = |name: &str| (node_of_pool_file(name) == Some(0)) == is_first;
                part.move_up(which, &mut self.moved).map_err(|error| cannot_move(&part.directory, &error))?;
            }
        }
        self.published = true;
        Ok(())
    }
}

impl Part {
    /// Moves these files to where they are to be.
    fn move_up(&self, which: impl Fn(&str) -> bool, moved: &mut Vec<PathBuf>) -> io::Result<()> {
        for name in names_in(&self.apart).filter(|name| which(name)) {
            let to = self.directory.join(&name);
            rename_to_new(&self.apart.join(&name), &to)?;
            moved.push(to.clone());
            sync_name(&to)?;
        }
        Ok(())
    }

    /// Best effort: what is reported is why.
    fn remove(&self) {
        for name in names_in(&self.apart) {
            let _ = std::fs::remove_file(self.apart.join(name));
        }
        for directory in &self.missing {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

impl Drop for StoreDraft {
    fn drop(&mut self) {
        if self.published {
            self.parts.iter().for_each(|part| drop(std::fs::remove_dir(&part.apart)));
        } else {
            // The pool of node 0 first: without it there is no store.
            self.moved.iter().rev().for_each(|file| drop(std::fs::remove_file(file)));
            self.parts.iter().for_each(Part::remove);
        }
    }
}

/// The files there; those of a store have names that are text.
fn names_in(directory: &Path) -> impl Iterator<Item = String> {
    let files: Vec<_> = std::fs::read_dir(directory).into_iter().flatten().flatten().collect();
    files.into_iter().filter_map(|file| file.file_name().into_string().ok())
}

fn refuse_store_in(directory: &Path) -> Result<()> {
    let pool = pools_in(directory).into_iter().next().map(|(_, path)| path);
    match pool.or_else(|| of_a_store_in(directory)) {
        None => Ok(()),
        Some(path) => Err(Error::Config(format!("{} belongs to a store; give the copy a directory of its own", path.display()))),
    }
}

/// Nobody's file is replaced, where the file system can tell.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::rename(from, to),
        outcome => Ok(outcome?),
    }
}

fn cannot_move(directory: &Path, error: &io::Error) -> Error {
    Error::Io(format!("the finished copy cannot be moved into {}: {error}; give this user permission to write there", directory.display()))
}
