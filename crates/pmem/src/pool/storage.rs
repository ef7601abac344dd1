//! Files behind pools: opening, preallocating, and mapping them into an [`Access`].

use std::fs::{File, OpenOptions as FileOptions};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use super::access::{Access, Parts};
use super::copy_back::CopyBack;
use crate::error::{Error, Place, Result};
use crate::failpoint;
use crate::layout::{HUGE_BYTES, PAGE_BYTES};
use crate::lock::LockedFile;
use crate::mapping::{self, Mapping, Source};
use crate::medium::{self, MediumChoice, MediumInfo, MediumKind, PersistenceDomain, Probe};
use crate::options::Runtime;

pub(super) fn io(place: &Place, action: &'static str, offset: u64) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { pool: place.clone(), action, offset, source }
}

/// Opens a pool's file.
pub(super) fn open_file(place: &Place, path: &Path, create: bool, read_only: bool) -> Result<File> {
    let mut options = FileOptions::new();
    // Without `NONBLOCK`, opening a FIFO for reading would wait for a writer.
    options.read(true).write(!read_only).create(create).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound if create => Error::NotCreated { pool: place.clone(), source: e },
        std::io::ErrorKind::NotFound => Error::NotFound { pool: place.clone() },
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem if !read_only => {
            Error::NotWritable { pool: place.clone(), source: e }
        }
        _ => io(place, "opening the file", 0)(e),
    })?;
    let kind = file.metadata().map_err(io(place, "asking for the file's type", 0))?.file_type();
    if kind.is_file() || kind.is_char_device() { Ok(file) } else { Err(Error::NotAFile { pool: place.clone() }) }
}

/// Length of a file, or of a dax device.
pub(super) fn length(place: &Place, file: &File, device: bool) -> Result<u64> {
    let metadata = file.metadata().map_err(io(place, "asking for the length", 0))?;
    if !device {
        return Ok(metadata.len());
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let text =
        std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size")).map_err(io(place, "asking for the device's size", 0))?;
    let malformed = || std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{:?} is no size", text.trim()));
    text.trim().parse().map_err(|_| io(place, "asking for the device's size", 0)(malformed()))
}

/// Returns the length of a pool's file, which must be at least `needed`. A shorter file was truncated meanwhile and is
/// an error: a write behind its end would make it long again, with zeros where data were.
pub(super) fn require_length(place: &Place, file: &File, needed: u64) -> Result<u64> {
    match length(place, file, false)? {
        found if found < needed => Err(Error::ShortFile { pool: place.clone(), found, needed }),
        found => Ok(found),
    }
}

/// What creation and opening know before they map the storage.
pub(super) struct Storage {
    pub(super) place: Place,
    pub(super) file: Option<LockedFile>,
    pub(super) medium: MediumInfo,
}

impl Storage {
    /// Probes a file's medium.
    pub(super) fn of_file(place: Place, file: LockedFile, run: &Runtime) -> Result<Storage> {
        let probe = Probe::of(&file).map_err(io(&place, "asking for the file system", 0))?;
        let medium = medium::decide(&place, &probe, run)?;
        Ok(Storage { place, file: Some(file), medium })
    }

    /// The file, if reads of it may come from a page cache that this process is to write back.
    fn cached(&self, run: &Runtime) -> Option<&File> {
        let is_cached = self.medium.domain == PersistenceDomain::PageCache && !run.is_private();
        self.file.as_deref().filter(|_| is_cached)
    }

    /// Writes the pages that an earlier process has left dirty: only clean pages can be dropped from the cache.
    pub(super) fn write_back(&self, run: &Runtime) -> Result<()> {
        let action = "writing what an earlier process left";
        self.cached(run).map_or(Ok(()), File::sync_data).map_err(io(&self.place, action, 0))
    }

    /// As [`super::Pool::forget_cached`], before anything is mapped.
    pub(super) fn forget_cached(&self, run: &Runtime, from: u64, to: u64) {
        if let Some(file) = self.cached(run) {
            forget_cached(file, from, to);
        }
    }

    /// Memory without a file.
    pub(super) fn in_memory(run: &Runtime) -> Result<Storage> {
        Ok(Storage { place: Place(None), file: None, medium: medium::in_memory(run)? })
    }

    pub(super) fn is_device(&self) -> bool {
        self.medium.kind == MediumKind::DevDax
    }

    /// Reserves room for `max_len` bytes and maps the first `len`.
    pub(super) fn map(self, len: u64, max_len: u64, node: u32, run: &Runtime) -> Result<Access> {
        let mapping = Mapping::reserve(&self.place, max_len.max(len))?;
        let copies = run.medium == MediumChoice::ShadowFile;
        let (file, copy_file) = if copies { (None, self.file) } else { (self.file, None) };
        let emulates_file = self.medium.domain == PersistenceDomain::PageCache;
        let copy = copy_file.map(|f| CopyBack::new(f, emulates_file, mapping.max_len()));
        let access = Access::new(Parts {
            place: self.place,
            mapping,
            mapped: 0,
            medium: self.medium.clone(),
            node,
            file,
            copy,
            meter: run.meter.clone(),
            // A tracer observes in-memory pools only: their content is known from the first byte.
            tracer: if copies { None } else { run.tracer.clone() },
            failpoints: run.failpoints.clone(),
        });
        extend(&access, &self.medium, len, run)?;
        Ok(access)
    }
}

/// Extends the mapping of an access up to `len`. The file already has that length.
pub(super) fn extend(access: &Access, medium: &MediumInfo, len: u64, run: &Runtime) -> Result<()> {
    let place = access.place();
    let off = access.mapped();
    // A device maps only whole 2 MiB pages, and no kernel maps less than its own page, which may be larger than ours.
    let page = PAGE_BYTES.max(rustix::param::page_size() as u64);
    let unit = if medium.kind == MediumKind::DevDax { HUGE_BYTES } else { page };
    let (from, to) = (off.next_multiple_of(unit), len.next_multiple_of(unit));
    failpoint::check(access.failpoints(), "mmap_short").map_err(io(place, "mapping the file", from))?;
    let mut file_end = to;
    if let Some(file) = access.file() {
        let found = length(place, file, medium.kind == MediumKind::DevDax)?;
        if found < len {
            if !run.salvages_file() {
                return Err(Error::ShortFile { pool: place.clone(), found, needed: len });
            }
            // Addresses behind the file's last page cannot be read, not even as zeros.
            file_end = found.next_multiple_of(page).clamp(from, to);
        }
    }
    let source = match access.file() {
        Some(file) => {
            let map_sync = medium.kind == MediumKind::FsDax && medium.durable;
            Source::File { file, map_sync, private: run.is_private() }
        }
        None => Source::Anonymous,
    };
    // Huge pages are for memory that is mapped directly; page-cached files do not support them.
    let hugepages = run.hugepages && matches!(medium.kind, MediumKind::FsDax | MediumKind::Volatile | MediumKind::Shadow);
    access.mapping().map(source, from, file_end - from, hugepages)?;
    access.mapping().map(Source::Anonymous, file_end, to - file_end, false)?;
    let shared = !run.is_private();
    if hugepages && access.file().is_some() && medium.filesystem == "tmpfs" && shared {
        access.mapping().collapse(from, to - from);
    }
    if let (MediumKind::Volatile | MediumKind::Shadow, Some(node)) = (medium.kind, run.bind_os_node) {
        access.mapping().prefer_node(from, to - from, node);
    }
    if let Some(copy) = access.copy() {
        load(access, copy.file(), from, to)?;
    }
    access.set_mapped(len);
    Ok(())
}

/// Reads a file's bytes into private memory.
fn load(access: &Access, file: &File, from: u64, to: u64) -> Result<()> {
    // SAFETY: the range was just mapped as private memory and nobody else knows of it yet.
    let memory = unsafe { std::slice::from_raw_parts_mut(access.base().cast_mut().add(from as usize), (to - from) as usize) };
    let mut at = 0;
    while at < memory.len() {
        match file.read_at(&mut memory[at..], from + at as u64) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io(access.place(), "reading the file", from + at as u64)(e)),
        }
    }
    Ok(())
}

/// Makes later reads of a range of a file come from the device. This is advice: dirty pages stay in the cache.
pub(super) fn forget_cached(file: &File, from: u64, to: u64) {
    // Whole pages: the kernel keeps a page that is to be dropped only in part.
    let page = rustix::param::page_size() as u64;
    let (from, to) = (from / page * page, to.next_multiple_of(page));
    let _ = rustix::fs::fadvise(file, from, NonZeroU64::new(to - from), rustix::fs::Advice::DontNeed);
}

/// Whether the file system knows that nothing was ever written in a range. `false` does not mean that something was.
/// Reads no data.
///
/// Looking for data is slow in memory, where the system goes page by page through everything empty, also behind the
/// range.
pub(super) fn is_unwritten(file: &File, off: u64, len: u64) -> bool {
    let begins_empty = rustix::fs::seek(file, SeekFrom::Hole(off)) == Ok(off);
    let is_fast = || !Probe::of(file).is_ok_and(|probe| probe.memory);
    let ends_empty = || match rustix::fs::seek(file, SeekFrom::Data(off)) {
        Ok(data) => data >= off + len,
        Err(error) => error == Errno::NXIO,
    };
    begins_empty && is_fast() && ends_empty()
}

/// Allocates blocks for `[off, off + len)` of the file, never sparse and holding zeros, and makes that durable. On
/// failure the file ends at `off`.
///
/// Bytes that lie there already, from a growth that a crash cut short or from two files that were joined, are given
/// back first: nothing checks them, and new segments count as empty.
pub(super) fn preallocate(place: &Place, file: &File, off: u64, len: u64, run: &Runtime) -> Result<()> {
    if require_length(place, file, off)? > off {
        file.set_len(off).map_err(io(place, "cutting off what lies behind the pool's end", off))?;
    }
    let synced = || failpoint::check(run.failpoints.as_ref(), "sync").and_then(|()| file.sync_all());
    let failed = |e: std::io::Error| Error::SyncFailed { pool: place.clone(), detail: e.to_string() };
    let result = allocate(place, file, off, len, run).and_then(|()| synced().map_err(failed));
    if result.is_err() {
        // Best effort: the allocated blocks are beyond the pool's end and harmless, but would keep the disk full.
        let _ = file.set_len(off);
    }
    result
}

fn allocate(place: &Place, file: &File, off: u64, len: u64, run: &Runtime) -> Result<()> {
    let failed = no_room_or_io(place, "preallocating", off, len);
    failpoint::check(run.failpoints.as_ref(), "fallocate").and_then(|()| require_room(file, off + len)).map_err(&failed)?;
    if medium::is_tmpfs(file) {
        // Before there are any pages, because pages stay where they are allocated.
        if let Some(node) = run.bind_os_node {
            mapping::prefer_node_for_file(file, off, len, node);
        }
        if run.hugepages {
            Mapping::huge_ahead(file, off, len);
        }
    }
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), off, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return write_zeros(file, off, len).map_err(failed),
            Err(e) => return Err(failed(e.into())),
        }
    }
}

/// The error of writing or allocating so many bytes at this offset.
pub(super) fn no_room_or_io<'a>(place: &'a Place, what: &'static str, off: u64, bytes: u64) -> impl Fn(std::io::Error) -> Error + 'a {
    move |error| match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Error::DiskFull { pool: place.clone(), bytes },
        _ => io(place, what, off)(error),
    }
}

/// Fails if the file system has no room for the file to end at `end`. Asking first spares other programs a device that
/// is full for a while. Where memory is the device, it keeps the system from killing processes for lack of memory.
fn require_room(file: &File, end: u64) -> std::io::Result<()> {
    let stat = rustix::fs::fstatvfs(file)?;
    let needed = end.saturating_sub(file.metadata()?.len());
    // Where a file system does not report its size, the allocation itself decides.
    if stat.f_blocks > 0 && needed > stat.f_bfree.saturating_mul(stat.f_frsize) {
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}

/// Writes zeros through the file, page by page. The cache keeps bytes that are written in one call in one large page,
/// up to 1 MiB, and after a change of a single byte the next sync writes all of that page.
pub(super) fn write_zeros(file: &File, off: u64, len: u64) -> std::io::Result<()> {
    let zeros = [0; PAGE_BYTES as usize];
    let (mut at, end) = (off, off + len);
    while at < end {
        let part = (end - at).min(PAGE_BYTES - at % PAGE_BYTES);
        file.write_all_at(&zeros[..part as usize], at)?;
        at += part;
    }
    Ok(())
}

/// Makes a new file's name durable, and the name of the link through which it was opened.
pub(super) fn sync_parent(place: &Place, path: &Path) -> Result<()> {
    let folders = folders_of_name(path).map_err(io(place, "finding the folder", 0))?;
    folders.iter().try_for_each(|folder| {
        let folder = File::open(folder).map_err(io(place, "opening the folder", 0))?;
        folder.sync_all().map_err(io(place, "syncing the folder", 0))
    })
}

/// The folders that hold names of a file: the one in its path and, behind a link, the one that contains the file.
pub(super) fn folders_of_name(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let named = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file = path.canonicalize()?;
    let behind = file.parent().filter(|behind| named.canonicalize().is_ok_and(|named| named != *behind));
    Ok(std::iter::once(named).chain(behind).map(Path::to_owned).collect())
}
