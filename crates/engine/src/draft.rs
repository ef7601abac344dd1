//! A store that is made apart, and appears only when it is whole. A copy of another store must not pass for that store
//! while it is half made, nor after a crash in between.
//!
//! # How
//!
//! The draft's pools are made in directories of their own:
//!
//! * For a place that does not exist yet: `NAME.PID.N.part` beside it, which becomes the place by one rename.
//! * For a directory that exists (a mount point, say): `copy.PID.N.part` in it, whose files are moved up; of all
//!   directories' files, the pool of node 0 comes last. Until then an opening finds no store there, or reports that
//!   something of it is missing.
//!
//! Thread safety: one thread has a draft. Several drafts for one place have directories of their own, and the first to
//! be published gets the place.
//!
//! Crash: directories `*.part` stay. Between two renames into a directory that existed, files without the pool of node
//! 0 stay there. Nothing in them was promised to anybody, and no other draft uses them.

use crate::checkpoint::store as checkpoint;
use crate::error::{Error, Result};
use crate::options::{MediumChoice, Options};
use crate::pools::{Made, cannot_create, node_of_pool_file, pool_file, sync_name};
use crate::remains::pools_in;
use crate::store::ensure_may_wait;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// See the module's head. A draft that is dropped before it is published removes everything that it made.
pub struct StoreDraft {
    parts: Vec<Part>,
    /// Directories that were made above the places.
    made: Made,
    /// Files and directories that were moved: from where, and to where.
    moved: Vec<(PathBuf, PathBuf)>,
    published: bool,
}

struct Part {
    /// Where the pools are to be.
    place: PathBuf,
    /// Where the pools are made.
    apart: PathBuf,
    /// The place does not exist yet: it will be this directory.
    becomes_place: bool,
}

/// A file or directory on its way.
struct Move<'a> {
    part: &'a Part,
    /// It is the pool of node 0, or contains that.
    has_first: bool,
    from: PathBuf,
    to: PathBuf,
}

impl StoreDraft {
    /// Begins a draft: changes `options` so that the store that is opened with them is made apart.
    ///
    /// # Errors
    /// [`Error::Config`] if the store has no files, or a place already has a store; [`Error::Io`];
    /// [`Error::InsideRead`], [`Error::InsideCallback`].
    pub fn begin(options: &mut Options) -> Result<StoreDraft> {
        ensure_may_wait("copy_to")?;
        let is_in_files = !options.in_memory && options.pools.is_none() && options.medium != MediumChoice::PrivateCopy;
        if options.read_only {
            return Err(Error::Config("a copy is written; leave out read_only for the new store".into()));
        }
        if !is_in_files || options.paths.is_empty() || options.paths.iter().any(|(_, path)| path.as_os_str().is_empty()) {
            return Err(Error::Config("a copy is a store in files; give its directory".into()));
        }
        let mut draft = StoreDraft { parts: Vec::new(), made: Made::default(), moved: Vec::new(), published: false };
        // All of them first: a place may lie in another one, which then exists.
        let places = options.paths.iter().map(|(_, path)| draft.locate(path)).collect::<Result<Vec<_>>>()?;
        for ((_, path), place) in options.paths.iter_mut().zip(places) {
            *path = draft.part_for(place)?;
        }
        options.create = true;
        Ok(draft)
    }

    /// Returns the canonical path of a place; makes the directories above it.
    fn locate(&mut self, path: &Path) -> Result<PathBuf> {
        let failed = |error: io::Error| cannot_create(path, &error);
        if fs::symlink_metadata(path).is_ok() {
            return fs::canonicalize(path).map_err(failed);
        }
        let Some(name) = path.file_name() else { return Err(failed(ErrorKind::NotFound.into())) };
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let above = self.made.make_directory(above).and_then(|()| fs::canonicalize(above)).map_err(failed)?;
        Ok(above.join(name))
    }

    fn part_for(&mut self, place: PathBuf) -> Result<PathBuf> {
        if let Some(part) = self.parts.iter().find(|part| part.place == place) {
            return Ok(part.apart.clone());
        }
        refuse_store_in(&place)?;
        let becomes_place = !place.exists();
        let above = if becomes_place { place.parent().unwrap_or(&place) } else { &place };
        let stem = if becomes_place { place.file_name().unwrap_or_default() } else { "copy".as_ref() };
        // The process that made the directory may have been killed before its name was durable.
        let apart = sync_name(above).and_then(|()| claim(above, stem)).map_err(|error| cannot_create(&place, &error))?;
        self.parts.push(Part { place, apart: apart.clone(), becomes_place });
        Ok(apart)
    }

    /// Makes the store, of this many nodes, appear at its place, durably. The caller has closed it.
    ///
    /// # Errors
    /// [`Error::Config`] if there is another store by now; [`Error::Io`], also if somebody has removed files of the
    /// draft. Then nothing is left of the draft, unless its removal fails, too.
    pub fn publish(mut self, nodes: usize) -> Result<()> {
        for part in &self.parts {
            refuse_store_in(&part.place)?;
            part.sync().map_err(|error| cannot_move(&part.place, &error))?;
        }
        self.ensure_all(nodes, |part| &part.apart)?;
        let mut moves = Vec::new();
        for part in &self.parts {
            part.list_moves(&mut moves).map_err(|error| cannot_move(&part.place, &error))?;
        }
        // The pool of node 0 last.
        moves.sort_by_key(|to_move| to_move.has_first);
        for Move { part, from, to, .. } in moves {
            rename(from, to, &mut self.moved).map_err(|error| cannot_move(&part.place, &error))?;
        }
        self.ensure_all(nodes, |part| &part.place)?;
        self.published = true;
        Ok(())
    }

    /// Ensures that the pools of all nodes are there: others may remove what looks to them like a leftover.
    fn ensure_all(&self, nodes: usize, directory: impl Fn(&Part) -> &PathBuf) -> Result<()> {
        let is_gone = |name: &String| !self.parts.iter().any(|part| directory(part).join(name).is_file());
        match (0..nodes as u32).map(pool_file).find(is_gone) {
            None => Ok(()),
            Some(name) => {
                let place = self.parts[0].place.display();
                Err(Error::Io(format!("{name} of the copy in {place} is gone: it was removed while the copy was made; copy again")))
            }
        }
    }
}

impl Part {
    /// Makes the part's files durable, on any medium, and their names.
    fn sync(&self) -> io::Result<()> {
        for name in names_in(&self.apart)? {
            File::open(self.apart.join(name))?.sync_all()?;
        }
        File::open(&self.apart)?.sync_all()
    }

    /// Lists what is to be moved: all of it at once, or one file after the other.
    fn list_moves<'a>(&'a self, moves: &mut Vec<Move<'a>>) -> io::Result<()> {
        let is_first = |name: &String| node_of_pool_file(name) == Some(0);
        let names = names_in(&self.apart)?;
        if self.becomes_place {
            let has_first = names.iter().any(is_first);
            moves.push(Move { part: self, has_first, from: self.apart.clone(), to: self.place.clone() });
        } else {
            let of_name = |name| Move { part: self, has_first: is_first(name), from: self.apart.join(name), to: self.place.join(name) };
            moves.extend(names.iter().map(of_name));
        }
        Ok(())
    }

    /// Removes the part, as far as possible: the error that is reported is the one that caused this. Removes only files
    /// that a store makes.
    fn remove(&self) {
        for name in names_in(&self.apart).unwrap_or_default() {
            let _ = fs::remove_file(self.apart.join(name));
        }
        let _ = fs::remove_dir(&self.apart);
    }
}

impl Drop for StoreDraft {
    fn drop(&mut self) {
        if self.published {
            self.parts.iter().filter(|part| !part.becomes_place).for_each(|part| drop(fs::remove_dir(&part.apart)));
            return;
        }
        // The pool of node 0 first: without it there is no store. As far as possible: the error that is reported is the
        // one that caused this.
        for (from, to) in self.moved.iter().rev() {
            let _ = fs::rename(to, from);
        }
        self.parts.iter().for_each(Part::remove);
        self.made.remove();
    }
}

/// Makes a new directory that nobody else has.
fn claim(above: &Path, stem: &std::ffi::OsStr) -> io::Result<PathBuf> {
    let id = std::process::id();
    for number in 0u32.. {
        let mut name = stem.to_owned();
        name.push(format!(".{id}.{number}.part"));
        let path = above.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            outcome => return outcome.map(|()| path),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Returns the names of a store's files in a directory.
fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let names: Vec<_> = fs::read_dir(directory)?.map(|file| file.map(|file| file.file_name())).collect::<io::Result<_>>()?;
    let is_of_store = |name: &String| node_of_pool_file(name).is_some() || checkpoint::is_name(name);
    let mut names: Vec<_> = names.into_iter().filter_map(|name| name.into_string().ok()).filter(is_of_store).collect();
    // Sorted, so that of two drafts that are moved to one place, one meets the other at its first file.
    names.sort();
    Ok(names)
}

fn refuse_store_in(place: &Path) -> Result<()> {
    let pool = pools_in(place).into_iter().next().map(|(_, path)| path);
    match pool.or_else(|| checkpoint::lying_in(place)) {
        None => Ok(()),
        Some(path) => Err(Error::Config(format!(
            "{} belongs to a store; give the copy a directory of its own (what an interrupted copy left, without the pool of node 0, may be removed)",
            path.display()
        ))),
    }
}

/// Renames a file or directory without replacing anything; records the move.
fn rename(from: PathBuf, to: PathBuf, moved: &mut Vec<(PathBuf, PathBuf)>) -> io::Result<()> {
    match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
        // The file system cannot refuse to replace, so this looks first.
        Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_err() => fs::rename(&from, &to)?,
        Err(Errno::INVAL | Errno::NOSYS) => return Err(ErrorKind::AlreadyExists.into()),
        outcome => outcome?,
    }
    let named = sync_name(&to);
    // Also if that failed: the move is to be undone.
    moved.push((from, to));
    named
}

fn cannot_move(place: &Path, error: &io::Error) -> Error {
    let advice = match error.kind() {
        ErrorKind::AlreadyExists => "something has come there meanwhile; name another directory",
        ErrorKind::NotFound => "it was removed while the copy was made; copy again",
        _ => "give this user permission to write there, or name another directory",
    };
    Error::Io(format!("the finished copy cannot be moved to {}: {error}; {advice}", place.display()))
}
