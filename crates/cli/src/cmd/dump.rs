//! `dump [FILE]`: writes every record of a keyspace in the kv format, in key order, as one snapshot shows it.
//!
//! The order and the escape are canonical: a dump that is loaded into an empty store dumps to the same bytes. A file
//! appears under its name only when it is complete and synced. Files of a store are never replaced. With `--json` the
//! records are JSON lines, as `scan` prints them.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hither::{Entry, Keyspace, Snapshot};

use crate::args::{DumpArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, kv_line};
use crate::store;

/// Runs the command.
pub fn run(args: &StoreArgs, dump: &DumpArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let to_stdout = dump.file.as_os_str() == "-" || is_stdout(&dump.file);
    if out.is_json() && !to_stdout {
        return Err(Failure::Usage("a dump file has the kv format; leave out --json, or dump to standard output".into()));
    }
    let file = if to_stdout { dump.file.clone() } else { followed(&dump.file)? };
    if !to_stdout && (is_of_a_store(&dump.file) || is_of_a_store(&file)) {
        let what = format!("{} belongs to a store, which a dump in its place would destroy; name another file", dump.file.display());
        return Err(Failure::Usage(what));
    }
    let (db, keyspace) = store::open_keyspace(args, store::Missing::RefuseToRead)?;
    let snapshot = db.snapshot();
    if to_stdout {
        entries(&snapshot, &keyspace, |entry| out.record(&entry.key, &entry.value, entry.expires_at_ms))?;
    } else {
        to_file(&file, &snapshot, &keyspace)?;
    }
    Ok(Outcome::Done)
}

/// Calls `each` with every entry in key order.
fn entries(snapshot: &Snapshot, keyspace: &Keyspace, mut each: impl FnMut(&Entry) -> Result<(), Failure>) -> Result<(), Failure> {
    snapshot.iter(keyspace).entries().try_for_each(|entry| each(&entry?))
}

/// Returns the file that a link leads to: the link stays, and the file is replaced. The link is resolved only once. Any
/// other name is returned unchanged.
fn followed(path: &Path) -> Result<PathBuf, Failure> {
    let is_link = !stands_for_open_file(path) && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    match fs::metadata(path) {
        Ok(metadata) if is_link && metadata.is_file() => {}
        Err(error) if is_link && error.kind() == std::io::ErrorKind::NotFound => return Ok(end_of_links(path)),
        _ => return Ok(path.to_owned()),
    }
    // The file is opened first, so that the system refuses links through which nobody may write.
    let opened = File::options().write(true).open(path);
    opened.and_then(|_| fs::canonicalize(path)).map_err(|source| Failure::path("writing", path, source))
}

/// The name at the end of a chain of links that leads to no file yet.
pub(super) fn end_of_links(path: &Path) -> PathBuf {
    let mut end = path.to_owned();
    // As many links as the system follows.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&end) else { break };
        end = directory_of(&end).join(target);
    }
    end
}

/// The directory of a file with this name.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether there is a pool or a checkpoint under this name, or a store would create one. (A dump may begin with a key
/// that looks like the magic of a pool, but it contains no zeros.)
fn is_of_a_store(path: &Path) -> bool {
    has_name_of_a_store(path) || holds_part_of_a_store(path)
}

/// Whether a store in the same directory would take a file of this name for its own.
fn has_name_of_a_store(path: &Path) -> bool {
    let is_pool = |name: &OsStr| name.as_bytes().starts_with(b"node") && name.as_bytes().ends_with(b".hither");
    let directory = directory_of(path);
    let is_taken = path.file_name().is_some_and(|name| is_pool(name) || name == "checkpoint.hither" || name == "checkpoint.hither.tmp");
    is_taken && fs::read_dir(directory).is_ok_and(|files| files.flatten().any(|file| is_pool(&file.file_name())))
}

fn holds_part_of_a_store(path: &Path) -> bool {
    let mut head = [0; 64];
    // A pipe is not read: that would wait for a writer.
    let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let read = is_file && File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok();
    read && (head.starts_with(b"hitherP") || head.starts_with(b"hitherC")) && head.contains(&0)
}

fn to_file(path: &Path, snapshot: &Snapshot, keyspace: &Keyspace) -> Result<(), Failure> {
    // An existing file that is not a regular file (a device, a pipe) is written in place.
    let is_open = stands_for_open_file(path);
    if is_open || fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return write_to(path, File::options().write(true).append(is_open), snapshot, keyspace).map(drop);
    }
    let unfinished = unfinished_name(path);
    // Removes what an earlier dump by a process with the same number left. The file is created anew, so that a link
    // that somebody put there is not followed.
    let _ = fs::remove_file(&unfinished);
    // No more users may read the new file than the one that it replaces.
    let mode = fs::metadata(path).map_or(0o666, |metadata| metadata.mode() & 0o777);
    let mut to = File::options();
    to.write(true).create_new(true).mode(mode);
    let written = write_to(&unfinished, &to, snapshot, keyspace).and_then(|file| {
        let replaced = file.sync_all().and_then(|()| fs::rename(&unfinished, path)).and_then(|()| sync_name(path));
        replaced.map_err(|source| Failure::path("writing", path, source))
    });
    if written.is_err() {
        // The first failure is the one that is reported.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Whether a name stands for standard output. Standard output keeps its own position in its file.
fn is_stdout(path: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    stands_for_open_file(path) && matches!((file(path), file(Path::new("/proc/self/fd/1"))), (Ok(here), Ok(stdout)) if here == stdout)
}

/// Whether a name stands for a file that a process has open, as /dev/stdout does. Neither what has that name nor the
/// content of the file may be replaced.
fn stands_for_open_file(path: &Path) -> bool {
    let Ok(target) = fs::read_link(path) else { return false };
    let is_of_process = |path: &Path| path.parent().and_then(|dir| fs::canonicalize(dir).ok()).is_some_and(|dir| dir.starts_with("/proc"));
    is_of_process(path) || is_of_process(&target)
}

/// Makes a file's name durable: a power loss must not bring back the file that it replaced.
fn sync_name(path: &Path) -> std::io::Result<()> {
    match File::open(directory_of(path)) {
        Ok(directory) => directory.sync_all(),
        // The directory may be written but not read; whoever set it up so is responsible for its names.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

/// Longest name of a file, in bytes.
const NAME_BYTES: usize = 255;

/// The name of the unfinished file: the name, cut if it would be too long, and the process's number.
fn unfinished_name(path: &Path) -> PathBuf {
    let end = format!(".{}.part", std::process::id());
    let name = path.file_name().unwrap_or_default().as_bytes();
    let kept = &name[..name.len().min(NAME_BYTES - end.len())];
    path.with_file_name(OsStr::from_bytes(&[kept, end.as_bytes()].concat()))
}

fn write_to(path: &Path, to: &OpenOptions, snapshot: &Snapshot, keyspace: &Keyspace) -> Result<File, Failure> {
    let failed = |source| Failure::path("writing", path, source);
    let mut file = BufWriter::with_capacity(256 << 10, to.open(path).map_err(failed)?);
    let mut line = Vec::new();
    entries(snapshot, keyspace, |entry| {
        line.clear();
        kv_line(&entry.key, &entry.value, entry.expires_at_ms, &mut line);
        file.write_all(&line).map_err(failed)
    })?;
    file.into_inner().map_err(|error| failed(error.into_error()))
}
