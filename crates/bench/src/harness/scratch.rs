//! Directories for what is measured, and what interrupted programs left of theirs.
//!
//! A directory is called `hither-KIND-PROCESS-RANDOM` and is removed with its value. If the program is ended before, it
//! stays, and on tmpfs keeps its memory. So whoever makes a directory first removes those beside it whose process is
//! gone, and names them on standard error.
//!
//! Nothing else is removed: the name must have this form, with a kind of this program; it must be a directory of this
//! user; no running process may have its number; and nobody may hold its lock. (A process of another container may
//! share `/dev/shm` without being visible here. It holds the lock.)
//!
//! Thread safety: plain calls of the system. Invariant: where directories can be locked, the lock is held as long as the
//! directory is in use.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};
use tempfile::TempDir;

use crate::target::{Error, Result};

/// What a directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Workloads.
    Bench,
    /// A store to be killed.
    Kill,
    /// A store that is nearly full.
    Compaction,
    /// Endless updates.
    Endless,
    /// A server.
    Serve,
    /// An experiment of the NStore paper.
    Nstore,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Bench, Kind::Kill, Kind::Compaction, Kind::Endless, Kind::Serve, Kind::Nstore];

    fn name(self) -> &'static str {
        match self {
            Kind::Bench => "bench",
            Kind::Kill => "kill",
            Kind::Compaction => "compaction",
            Kind::Endless => "endless",
            Kind::Serve => "serve",
            Kind::Nstore => "nstore",
        }
    }
}

/// Length of the random end of a name.
const RANDOM: usize = 6;

/// A directory, removed with the value.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
    _lock: Option<File>,
}

impl Scratch {
    /// Makes a directory in `parent`, and removes what interrupted programs left there.
    ///
    /// # Errors
    /// The system's.
    pub fn new(kind: Kind, parent: &Path) -> Result<Scratch> {
        sweep(parent);
        let failed = |e: std::io::Error| Error::io(format!("making a directory in {}", parent.display()), e);
        let prefix = format!("hither-{}-{}-", kind.name(), std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).rand_bytes(RANDOM).tempdir_in(parent).map_err(failed)?;
        // Some file systems lock no directories (NFS). Without a lock, a program in another container could take this for
        // a leftover.
        let lock = locked(directory.path()).ok();
        Ok(Scratch { directory, _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the directories in `parent` that programs left which have ended. What cannot be removed stays.
pub fn sweep(parent: &Path) {
    for path in left_behind(parent) {
        match std::fs::remove_dir_all(&path) {
            Ok(()) => eprintln!("removed {}, which an interrupted measurement had left", path.display()),
            Err(error) => eprintln!("an interrupted measurement has left {}: {error}", path.display()),
        }
    }
}

fn left_behind(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let left = entries.filter(|entry| {
        let own = || entry.metadata().is_ok_and(|info| info.is_dir() && info.uid() == geteuid().as_raw());
        process_of(&entry.file_name()).is_some_and(is_gone) && own() && locked(&entry.path()).is_ok()
    });
    left.map(|entry| entry.path()).collect()
}

/// The process in the name of a directory, if the name has the form of this module.
fn process_of(name: &OsStr) -> Option<Pid> {
    let mut parts = name.to_str()?.split('-');
    let (hither, kind, process, random) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let ours = hither == "hither" && Kind::ALL.iter().any(|known| known.name() == kind) && parts.next().is_none();
    let plain = process.bytes().all(|byte| byte.is_ascii_digit());
    let random = random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if ours && plain && random { Pid::from_raw(process.parse().ok()?) } else { None }
}

/// True if there is no such process, or only what a parent that waits for nobody keeps of it.
fn is_gone(process: Pid) -> bool {
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(process) == Err(Errno::SRCH) || has_ended(&stat())
}

/// Reads the state behind the name, which may hold any characters.
fn has_ended(stat: &str) -> bool {
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    matches!(state, Some("Z" | "X"))
}

/// The directory, open and locked; an error if another holds the lock.
fn locked(directory: &Path) -> rustix::io::Result<File> {
    let file = open(directory, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No system has as many processes.
    const NOBODY: u32 = 999_999_999;

    /// Regression: where nobody waits for orphans, what they had left stayed.
    #[test]
    fn a_process_that_nobody_has_waited_for_has_ended() {
        assert!(has_ended("7 (hither-bench) Z 1 7") && has_ended("7 (a) R) X 1 7"));
        assert!(!has_ended("7 (hither-bench) S 1 7") && !has_ended("7 (a) Z) R 1 7") && !has_ended(""));
        assert!(!is_gone(rustix::process::getpid()));
    }

    /// Regression: a store of gigabytes stayed in memory after an interrupt.
    #[test]
    fn only_what_a_process_has_left_is_removed() {
        let parent = tempfile::tempdir().expect("a directory");
        let make = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir_all(path.join("store")).expect("a directory");
            path
        };
        let left = Kind::ALL.map(|kind| make(&format!("hither-{}-{NOBODY}-a1B2c3", kind.name())));
        let mut kept: Vec<PathBuf> = [
            format!("hither-kill-{}-a1B2c3", std::process::id()),
            format!("hither-other-{NOBODY}-a1B2c3"),
            format!("hither-kill-{NOBODY}-a1B2c"),
            format!("hither-kill-{NOBODY}-a1B2c3-more"),
            format!("hither-kill-{NOBODY}-a1B2._"),
            format!("hither-kill-+{NOBODY}-a1B2c3"),
            format!("other-kill-{NOBODY}-a1B2c3"),
            "hither-kill-0-a1B2c3".into(),
            "hither-kill-a1B2c3".into(),
            "hither".into(),
        ]
        .iter()
        .map(|name| make(name))
        .collect();
        let file = parent.path().join(format!("hither-bench-{NOBODY}-afile0"));
        std::fs::write(&file, "").expect("a file");
        let link = parent.path().join(format!("hither-bench-{NOBODY}-alink0"));
        std::os::unix::fs::symlink(make("target"), &link).expect("a link");
        let used = make(&format!("hither-bench-{NOBODY}-in0use"));
        let _lock = locked(&used).expect("the lock");
        kept.extend([file, link.join("store"), parent.path().join("target/store"), used.join("store")]);
        let scratch = Scratch::new(Kind::Bench, parent.path()).expect("a directory");
        assert!(left.iter().all(|path| !path.exists()), "{left:?}");
        assert!(kept.iter().all(|path| path.exists()), "{kept:?}");
        let path = scratch.path().to_owned();
        assert!(process_of(path.file_name().expect("a name")).is_some_and(|process| !is_gone(process)));
        drop(scratch);
        assert!(!path.exists());
    }
}
