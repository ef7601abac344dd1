//! Creation: everything but the magic, then the magic (rule 8).
//!
//! Steps: lock; allocate; zero the metadata; write the superblock by the commit-word protocol; `finish_creation` writes
//! and persists the magic.
//!
//! A crash before the magic leaves a file that opening reports as half-created and over which creation may start again.
//! The caller finishes the lowest pool last: its magic makes the store born.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use super::Pool;
use super::access::Access;
use super::open::Loaded;
use super::page0::{self, Page0};
use super::storage::{self, Storage, io};
use crate::error::{Error, Place, Result};
use crate::layout::{CATALOGUE_OFF, Geometry, MAGIC, MAGIC_OFF, MAX_MEMBERS, PAGE_BYTES, TABLE_OFF};
use crate::lock::LockedFile;
use crate::options::{CreateOptions, Runtime};
use crate::superblock::{FORMAT_VERSION, SUPERBLOCK, SuperblockInfo};

impl Pool {
    /// Creates a pool in a file (or on a dax device): everything but the magic.
    ///
    /// An existing file is reused if it is blank or half-created. An existing pool is refused unless
    /// `overwrite_unborn`; any other content is always refused.
    pub fn create(path: &Path, o: &CreateOptions) -> Result<Pool> {
        let place = Place::of(Some(path));
        let (info, geometry) = plan(&place, o)?;
        let run = o.runtime();
        let file = lock_target(&place, path)?;
        check_target(&place, &file, o.overwrite_unborn)?;
        let storage = Storage::of_file(place.clone(), file, &run)?;
        let bytes = geometry.pool_bytes(info.segment_count);
        prepare(&place, &storage, bytes, o)?;
        storage::sync_parent(&place, path)?;
        let device = storage.is_device().then_some(o.overwrite_unborn);
        build(storage, info, geometry, &run, device)
    }

    /// Refuses an existing file that [`Pool::create`] would refuse, and changes nothing. For stores of several pools:
    /// none of them is changed unless all may be.
    pub fn check_creatable(path: &Path, o: &CreateOptions) -> Result<()> {
        let place = Place::of(Some(path));
        let (info, geometry) = plan(&place, o)?;
        let file = match storage::open_file(&place, path, false, false) {
            Err(Error::NotFound { .. }) => return Ok(()),
            found => LockedFile::acquire(&place, found?, false)?,
        };
        check_target(&place, &file, o.overwrite_unborn)?;
        let run = o.runtime();
        let storage = Storage::of_file(place.clone(), file, &run)?;
        if !storage.is_device() {
            return Ok(());
        }
        let bytes = geometry.pool_bytes(info.segment_count);
        prepare(&place, &storage, bytes, o)?;
        check_device(&storage.map(bytes, bytes, info.node, &run)?, &geometry, o.overwrite_unborn)
    }

    /// Removes the file that a failed creation has left, unless another process has it by now or it holds data.
    pub fn discard_unborn(path: &Path) -> Result<()> {
        let place = Place::of(Some(path));
        let file = LockedFile::acquire(&place, storage::open_file(&place, path, false, false)?, false)?;
        let found = file.metadata().map_err(io(&place, "asking for the file's type", 0))?;
        // Between opening and locking, another process may have removed the file and created another one.
        if !found.is_file()
            || !is_named(path, &found)
            || !matches!(page0::classify(&super::open::first_page(&place, &file)?), Page0::Blank | Page0::HalfCreated)
        {
            return Ok(());
        }
        page0::require_nothing_else(&place, &file)?;
        // Removed under the lock: a process that locks this file later finds out that it has lost its name. A link to
        // the file stays, because the user chose with it where the file is to be.
        path.canonicalize().and_then(std::fs::remove_file).map_err(io(&place, "removing the file", 0))
    }

    /// Creates a pool in anonymous memory: volatile, or a shadow of the medium that `emulate` names.
    pub fn create_in_memory(o: &CreateOptions) -> Result<Pool> {
        let (info, geometry) = plan(&Place(None), o)?;
        let run = o.runtime();
        build(Storage::in_memory(&run)?, info, geometry, &run, None)
    }

    /// Ends the creation: writes and persists the magic. Call it for the store's lowest pool last.
    pub fn finish_creation(&self) -> Result<()> {
        let _serial = self.changing()?;
        self.access.store_u64(MAGIC_OFF, u64::from_le_bytes(MAGIC));
        self.access.persist(MAGIC_OFF, 8)
    }
}

/// The superblock and geometry that the options ask for.
fn plan(place: &Place, o: &CreateOptions) -> Result<(SuperblockInfo, Geometry)> {
    let members = o.members.len();
    if members == 0 || members > MAX_MEMBERS {
        return Err(Error::Invalid { what: "the number of members", value: members as u64, advice: "a store has 1 to 16 pools" });
    }
    if o.members.get(o.node as usize) != Some(&o.pool_uuid) {
        let advice = "the pool's UUID must be the member list's entry of its node";
        return Err(Error::Invalid { what: "the node", value: u64::from(o.node), advice });
    }
    if o.capacity_bytes == 0 || o.segment_bytes == 0 {
        return Err(Error::Invalid { what: "the capacity or segment size", value: 0, advice: "it must not be zero" });
    }
    let segment_count = o.capacity_bytes.div_ceil(o.segment_bytes);
    let max_segments = o.max_bytes.div_ceil(o.segment_bytes).max(segment_count);
    let geometry = Geometry::new(place, o.segment_bytes, max_segments)?;
    let info = SuperblockInfo {
        version: FORMAT_VERSION,
        compat: 0,
        ro_compat: 0,
        incompat: 0,
        store_uuid: o.store_uuid,
        pool_uuid: o.pool_uuid,
        node: o.node,
        members: o.members.clone(),
        segment_bytes: o.segment_bytes,
        table_offset: TABLE_OFF,
        catalogue_offset: CATALOGUE_OFF,
        data_offset: geometry.data_offset,
        segment_count,
        max_segments,
        created_ms: o.created_ms,
        clean: true,
        open_count: 0,
    };
    Ok((info, geometry))
}

/// Opens or creates the file, and locks it.
fn lock_target(place: &Place, path: &Path) -> Result<LockedFile> {
    loop {
        let file = LockedFile::acquire(place, storage::open_file(place, path, true, false)?, false)?;
        let found = file.metadata().map_err(io(place, "asking for the file's type", 0))?;
        // Between opening and locking, another process whose creation failed may have removed the file: a pool in it
        // would be lost.
        if is_named(path, &found) {
            return Ok(file);
        }
    }
}

/// Whether the name still leads to this file.
fn is_named(path: &Path, file: &std::fs::Metadata) -> bool {
    std::fs::metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (file.dev(), file.ino()))
}

/// Refuses to overwrite anything but what a creation left behind.
fn check_target(place: &Place, file: &File, overwrite_unborn: bool) -> Result<()> {
    let metadata = file.metadata().map_err(io(place, "asking for the file's type", 0))?;
    if metadata.file_type().is_char_device() {
        // A dax device cannot be read, only mapped: `check_device` checks it.
        return Ok(());
    }
    let page = super::open::first_page(place, file)?;
    may_overwrite(place, &page, overwrite_unborn, || page0::require_nothing_else(place, file))
}

/// Whether a file or device that begins with this page may be created anew; `look` fails if there is data behind the
/// page.
fn may_overwrite(place: &Place, page: &[u8], overwrite_unborn: bool, look: impl FnOnce() -> Result<()>) -> Result<()> {
    match page0::classify(page) {
        Page0::Blank | Page0::HalfCreated => look(),
        Page0::Born if overwrite_unborn && page0::was_opened(page) => Err(Error::WasInUse { pool: place.clone() }),
        Page0::Born if overwrite_unborn => look().map_err(|error| match error {
            Error::DamagedSuperblock { pool, .. } => Error::WasInUse { pool },
            other => other,
        }),
        Page0::Born => Err(Error::AlreadyExists { pool: place.clone() }),
        Page0::Newer(found) => Err(Error::NewerFormat { pool: place.clone(), found, supported: FORMAT_VERSION }),
        Page0::Foreign(found) => Err(Error::Foreign { pool: place.clone(), found }),
    }
}

/// Allocates the file's blocks. The magic of an unborn pool is cleared first, durably: no half-overwritten file may
/// look like a pool.
fn prepare(place: &Place, storage: &Storage, bytes: u64, o: &CreateOptions) -> Result<()> {
    let Some(file) = &storage.file else { return Ok(()) };
    if storage.is_device() {
        let found = storage::length(place, file, true)?;
        return if found < bytes { Err(Error::DiskFull { pool: place.clone(), bytes }) } else { Ok(()) };
    }
    let length = storage::length(place, file, false)?;
    if length >= PAGE_BYTES {
        file.write_all_at(&[0; 8], 0).map_err(io(place, "clearing the old magic", 0))?;
        file.sync_data().map_err(io(place, "clearing the old magic", 0))?;
    }
    file.set_len(0).map_err(io(place, "emptying the file", 0))?;
    storage::preallocate(place, file, 0, bytes, &o.runtime())
}

/// Maps the storage and writes the superblock. `device` is `Some` for a device: whether an unborn pool on it may be
/// overwritten.
fn build(storage: Storage, info: SuperblockInfo, geometry: Geometry, run: &Runtime, device: Option<bool>) -> Result<Pool> {
    let (medium, max_len) = (storage.medium.clone(), geometry.pool_bytes(info.max_segments));
    let access = storage.map(geometry.pool_bytes(info.segment_count), max_len, info.node, run)?;
    if let Some(overwrite_unborn) = device {
        check_device(&access, &geometry, overwrite_unborn)?;
        clear_device(&access)?;
    } else if let Some(tracer) = access.tracer() {
        // SAFETY: the pool is mapped, zero, and nobody else has it.
        tracer.attach(unsafe { std::slice::from_raw_parts(access.base(), access.mapped() as usize) });
    }
    SUPERBLOCK.commit(&access, &info.pool_uuid, &info.encode())?;
    Ok(Pool::assemble(access, Loaded::fresh(info, geometry), medium, run))
}

/// Refuses to zero anything but what a creation left behind: [`check_target`] for a device.
pub(super) fn check_device(access: &Access, geometry: &Geometry, overwrite_unborn: bool) -> Result<()> {
    let mut page = vec![0; PAGE_BYTES as usize];
    access.read(0, &mut page);
    let place = access.place();
    may_overwrite(place, &page, overwrite_unborn, || {
        page0::require_nothing_mapped(place, geometry.data_offset, access.mapped(), |at, piece| access.read(at, piece))
    })
}

/// Zeros a device, which keeps its old content. Slow once; afterwards fresh segments are zero as on every other medium.
fn clear_device(access: &Access) -> Result<()> {
    // The magic is cleared first, durably: no half-cleared device may look like a pool.
    access.store_u64(MAGIC_OFF, 0);
    access.persist(MAGIC_OFF, 8)?;
    // SAFETY: the pool is mapped and nobody else has it.
    unsafe { access.zero_streaming(0, access.mapped()) };
    access.sync()
}
