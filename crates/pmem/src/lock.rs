//! A pool is open at most once: an exclusive `flock` on its file, a shared one for read-only opens.
//!
//! The lock belongs to the open file description. It ends with the process, however that ends, and a second open in the
//! same process conflicts too.
//!
//! Closing the pool unlocks explicitly, because a child of this process that is between `fork` and `exec` still holds a
//! duplicate. `exec` closes the duplicate; a child that does not call it shares the lock until it exits or closes the
//! file, which is why forked children must not outlive the store. A child that drops its copy of the handle unlocks
//! nothing.
//!
//! The holder's process id is looked up in `/proc/locks` for the message only.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::{Error, Place, Result};

/// A file under this process's lock, unlocked when dropped.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    /// The process whose drop of this handle releases the lock; `None` for a duplicate.
    owner: Option<u32>,
}

impl LockedFile {
    /// Takes the lock, or reports who holds it.
    pub(crate) fn acquire(place: &Place, file: File, shared: bool) -> Result<LockedFile> {
        lock(place, &file, shared)?;
        Ok(LockedFile { file, owner: Some(std::process::id()) })
    }

    /// A second handle under the same lock; dropping it does not release the lock.
    pub(crate) fn duplicate(&self) -> std::io::Result<LockedFile> {
        Ok(LockedFile { file: self.file.try_clone()?, owner: None })
    }
}

impl std::ops::Deref for LockedFile {
    type Target = File;
    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // If a forked child dropped its copy of the handle and unlocked, it would end its parent's lock.
        if self.owner == Some(std::process::id()) {
            // Closing would unlock as well, unless a forked child has a duplicate.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

fn lock(place: &Place, file: &File, shared: bool) -> Result<()> {
    let operation = if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::Locked { pool: place.clone(), pid: holder(file) }),
        Err(e) => Err(Error::Io { pool: place.clone(), action: "locking the file", offset: 0, source: e.into() }),
    }
}

fn holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    find_holder(&locks, &format!("{major:02x}:{minor:02x}:{}", metadata.ino()))
}

/// The process that holds a `flock` on `file` (`major:minor:inode`) according to the text of `/proc/locks`.
fn find_holder(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // Waiting locks have an arrow in the place of `kind` and hold nothing.
        let (kind, _, _, pid, place) = (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        (kind == "FLOCK" && place == file).then(|| pid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_holder_among_other_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:02:99 0 EOF\n2: -> FLOCK ADVISORY WRITE 12 08:02:99 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 08:02:99 0 EOF\n4: FLOCK ADVISORY WRITE 14 08:02:98 0 EOF\nnonsense\n";
        assert_eq!(find_holder(locks, "08:02:99"), Some(13));
        assert_eq!(find_holder(locks, "08:02:98"), Some(14));
        assert_eq!(find_holder(locks, "00:00:1"), None);
    }

    #[test]
    fn second_handle_is_refused_and_names_this_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let place = Place::of(Some(file.path()));
        let open = || File::open(file.path()).unwrap();
        let first = LockedFile::acquire(&place, open(), false).unwrap();
        let refused = LockedFile::acquire(&place, open(), false);
        assert!(matches!(refused, Err(Error::Locked { pid, .. }) if pid.is_none() || pid == Some(std::process::id())), "{refused:?}");
        let text = |pid| Error::Locked { pool: place.clone(), pid }.to_string();
        let (own, other) = (text(Some(std::process::id())), text(Some(1)));
        assert!(own.contains("this process itself") && !own.contains("stop"), "nobody should stop himself: {own}");
        assert!(other.contains("by process 1; stop that process"), "{other}");
        let duplicate = first.duplicate().unwrap();
        drop(duplicate);
        assert!(LockedFile::acquire(&place, open(), false).is_err(), "a duplicate does not end the lock");
        let leaked = first.duplicate().unwrap();
        drop(first);
        LockedFile::acquire(&place, open(), false).unwrap();
        drop(leaked);
    }

    /// Regression: a forked child that dropped the handle ended the lock of its parent, which went on using the file.
    #[test]
    fn a_forked_child_does_not_end_the_lock_of_its_parent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let place = Place(None);
        let open = || File::open(file.path()).unwrap();
        let first = LockedFile::acquire(&place, open(), false).unwrap();
        // SAFETY: the child drops a value that owns a descriptor only, and exits without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(first);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the status is written to a variable of this frame.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(matches!(LockedFile::acquire(&place, open(), false), Err(Error::Locked { .. })));
        drop(first);
        LockedFile::acquire(&place, open(), false).unwrap();
    }

    #[test]
    fn readers_share() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let place = Place(None);
        let open = || File::open(file.path()).unwrap();
        let _first = LockedFile::acquire(&place, open(), true).unwrap();
        let _second = LockedFile::acquire(&place, open(), true).unwrap();
        assert!(matches!(LockedFile::acquire(&place, open(), false), Err(Error::Locked { .. })));
    }
}
