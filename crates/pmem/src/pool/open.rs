//! Opening: trusts nothing before it verifies, and names what does not.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use super::Pool;
use super::access::Access;
use super::page0;
use super::salvage::{self, Notes};
use super::storage::{self, Storage, io};
use crate::error::{Error, Place, Result};
use crate::layout::{CHECKPOINT_OFF, CLOCK_OFF, Geometry, PAGE_BYTES, SETTLED_OFF, SUPER_SLOT_A_OFF, SUPER_SLOT_BYTES};
use crate::lock::LockedFile;
use crate::medium::MediumInfo;
use crate::options::{OpenOptions, Runtime};
use crate::record::{Fields, unpack_small};
use crate::sigbus;
use crate::superblock::{POOL_UUID, SUPERBLOCK, SuperblockInfo};
use crate::table::descriptor_place;
use crate::two_slot::CommitWord;

/// The content of page 0 that was read and verified.
pub(super) struct Loaded {
    pub(super) info: SuperblockInfo,
    pub(super) geometry: Geometry,
    pub(super) settled: u64,
    pub(super) clock_ms: u64,
    pub(super) checkpoint: u64,
    pub(super) notes: Notes,
    pub(super) lost_settled: bool,
    /// Number of segments according to the superblock; a salvage looks at more where the superblock may be an older
    /// copy.
    pub(super) known_segments: u64,
}

impl Loaded {
    /// For a pool that was just created.
    pub(super) fn fresh(info: SuperblockInfo, geometry: Geometry) -> Loaded {
        let known_segments = info.segment_count;
        Loaded { info, geometry, settled: 0, clock_ms: 0, checkpoint: 0, notes: Notes::default(), lost_settled: false, known_segments }
    }
}

impl Pool {
    /// Opens a pool.
    pub fn open(path: &Path, o: &OpenOptions) -> Result<Pool> {
        let place = Place::of(Some(path));
        let run = o.runtime();
        let reads_only = run.is_private();
        let file = storage::open_file(&place, path, false, reads_only)?;
        // Network file systems grant the exclusive lock only to processes that may write.
        let file = LockedFile::acquire(&place, file, reads_only)?;
        let storage = Storage::of_file(place.clone(), file, &run)?;
        let length = match &storage.file {
            Some(file) if storage.is_device() => storage::length(&place, file, true)?,
            Some(file) => {
                storage.write_back(&run)?;
                storage.forget_cached(&run, 0, PAGE_BYTES);
                page0::require_candidate(&place, &first_page(&place, file)?, file, run.salvages_file())?;
                storage::length(&place, file, false)?
            }
            None => 0,
        };
        // The superblock is read through a small mapping of its own: it determines how much address space to reserve.
        let header = reopen(&place, &storage)?.map(PAGE_BYTES, PAGE_BYTES, 0, &quiet(&run))?;
        let loaded = load(&header, length, o, run.salvages_file())?;
        drop(header);
        storage.forget_cached(&run, PAGE_BYTES, loaded.geometry.descriptor_offset(loaded.geometry.max_segments as u32));
        Pool::map_loaded(storage, loaded, &run)
    }

    /// Opens a copy of a post-crash image in memory, as a shadow of the medium that `emulate` names.
    pub fn from_image(image: &[u8], o: &OpenOptions) -> Result<Pool> {
        let place = Place(None);
        let run = o.runtime();
        if image.len() < PAGE_BYTES as usize {
            page0::require_born(&place, image)?;
        }
        let header = Storage::in_memory(&run)?.map(PAGE_BYTES, PAGE_BYTES, 0, &quiet(&run))?;
        fill(&header, &image[..PAGE_BYTES as usize]);
        let loaded = load(&header, image.len() as u64, o, o.salvage)?;
        let storage = Storage::in_memory(&run)?;
        let medium = storage.medium.clone();
        let (needed, max_len) =
            (loaded.geometry.pool_bytes(loaded.info.segment_count), loaded.geometry.pool_bytes(loaded.info.max_segments));
        let access = storage.map(needed, max_len, loaded.info.node, &run)?;
        let image = &image[..(needed as usize).min(image.len())];
        fill(&access, image);
        if let Some(tracer) = access.tracer() {
            tracer.attach(image);
        }
        let known = loaded.known_segments;
        Pool::assemble(access, loaded, medium, &run).refuse_older_page_0(known)
    }

    fn map_loaded(storage: Storage, loaded: Loaded, run: &Runtime) -> Result<Pool> {
        let medium = storage.medium.clone();
        let bytes = loaded.geometry.pool_bytes(loaded.info.segment_count);
        let access = storage.map(bytes, loaded.geometry.pool_bytes(loaded.info.max_segments), loaded.info.node, run)?;
        let known = loaded.known_segments;
        Pool::assemble(access, loaded, medium, run).refuse_unreadable_metadata()?.refuse_older_page_0(known)
    }

    /// Refuses a pool whose page 0 was replaced by an older copy: growth commits the new number of segments there
    /// before it uses them. `count` is the number in page 0.
    fn refuse_older_page_0(mut self, count: u64) -> Result<Pool> {
        let place = |segment: u64| descriptor_place(&self.geometry, segment as u32).commit_off;
        let Some(segment) = (count..self.geometry.max_segments).find(|segment| self.access.load_u64(place(*segment)) != 0) else {
            return Ok(self);
        };
        let detail =
            format!("names {count} segments, but segment {segment} has been used: page 0 is an older copy than the rest of the file");
        let pool = self.access.place().clone();
        let error = Error::DamagedSuperblock { pool, what: "the superblock", offset: SUPERBLOCK.commit_off, detail };
        self.salvage.pass_over(error, "all segments within the file are looked at").map(|()| self)
    }

    pub(super) fn assemble(access: Access, loaded: Loaded, medium: MediumInfo, run: &Runtime) -> Pool {
        let Loaded { info, geometry, settled, clock_ms, checkpoint, notes, lost_settled, .. } = loaded;
        let guard = access.file().map(|_| sigbus::Registration::new(access.place(), access.base(), access.mapping().max_len()));
        Pool {
            geometry,
            segment_shift: geometry.segment_bytes.trailing_zeros(),
            segments: AtomicU64::new(info.segment_count),
            settled: AtomicU64::new(settled),
            clock_ms: AtomicU64::new(clock_ms),
            oldest_checkpoint: AtomicU64::new(checkpoint),
            was_clean: info.clean,
            salvage: notes,
            lost_settled,
            is_private: run.is_private(),
            covered: Mutex::default(),
            hugepages: run.hugepages,
            bind_os_node: run.bind_os_node,
            node: info.node,
            pool_uuid: info.pool_uuid,
            medium,
            superblock: Mutex::new(info),
            growing: Mutex::new(()),
            access,
            _guard: guard,
        }
    }
}

/// A second handle for the header's mapping, under the same lock.
fn reopen(place: &Place, storage: &Storage) -> Result<Storage> {
    let file = match &storage.file {
        Some(file) => Some(file.duplicate().map_err(io(place, "duplicating the handle", 0))?),
        None => None,
    };
    Ok(Storage { place: place.clone(), file, medium: storage.medium.clone() })
}

/// The same options without observers: reading a header is not part of a pool's history.
fn quiet(run: &Runtime) -> Runtime {
    Runtime { meter: None, tracer: None, failpoints: None, hugepages: false, bind_os_node: None, ..run.clone() }
}

fn fill(access: &Access, image: &[u8]) {
    // SAFETY: at least `image.len()` bytes were just mapped as private memory, and nobody else has them.
    unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), access.base().cast_mut(), image.len()) };
}

/// The first page of a file; shorter if the file is.
pub(super) fn first_page(place: &Place, file: &File) -> Result<Vec<u8>> {
    let mut page = vec![0; PAGE_BYTES as usize];
    let mut at = 0;
    while at < page.len() {
        match file.read_at(&mut page[at..], at as u64) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io(place, "reading the first page", at as u64)(e)),
        }
    }
    page.truncate(at);
    Ok(page)
}

/// Reads and verifies page 0. With `salvage`, records that do not verify are noted and passed over as far as possible.
fn load(header: &Access, length: u64, o: &OpenOptions, salvage: bool) -> Result<Loaded> {
    let place = header.place();
    let mut page = vec![0; PAGE_BYTES as usize];
    header.read(0, &mut page);
    let mut notes = Notes { salvage, ..Notes::default() };
    let mut info = load_verified(header, &page, o.runtime().is_private(), &mut notes)?;
    check_expectations(place, &info, o)?;
    let geometry = Geometry::new(place, info.segment_bytes, info.max_segments)?;
    let known_segments = info.segment_count;
    let needed = geometry.pool_bytes(known_segments);
    if length < needed {
        let error = Error::ShortFile { pool: place.clone(), found: length, needed };
        notes.pass_over(error, "what is behind its end is missing")?;
    } else if salvage {
        info.segment_count = salvage::segments_within(length, &info, &geometry);
    }
    let settled = load_small(header, SETTLED_OFF, "the settled version", &mut notes)?;
    let clock_ms = load_small(header, CLOCK_OFF, "the clock", &mut notes)?.unwrap_or(0);
    let checkpoint = load_small(header, CHECKPOINT_OFF, "the version of the checkpoint", &mut notes)?.unwrap_or(0);
    let (lost_settled, settled) = (settled.is_none(), settled.unwrap_or(0));
    Ok(Loaded { info, geometry, settled, clock_ms, checkpoint, notes, lost_settled, known_segments })
}

/// Reads the superblock behind a magic that is right or damaged: a file whose superblock verifies is a pool.
fn load_verified(header: &Access, page: &[u8], reads_only: bool, notes: &mut Notes) -> Result<SuperblockInfo> {
    let place = header.place();
    let born = page0::require_born(place, page);
    let unborn = matches!(born, Err(Error::HalfCreated { .. }));
    let superblock = load_superblock(header, page, reads_only);
    let salvaged = if notes.salvage && superblock.is_err() { salvage::superblock(header, page) } else { None };
    let damaged_magic = |detail| Error::DamagedSuperblock { pool: place.clone(), what: "the magic", offset: 0, detail };
    if let Err(error) = born {
        let is_pool = if notes.salvage { superblock.is_ok() || salvaged.is_some() } else { superblock.is_ok() && !unborn };
        if !is_pool {
            return Err(if notes.salvage && unborn { damaged_magic("is missing, and so is the superblock".to_owned()) } else { error });
        }
        let first: [u8; 8] = page.bytes_at(0);
        notes.pass_over(damaged_magic(format!("is {first:02x?}, but a superblock follows")), "it is passed over")?;
    }
    match (superblock, salvaged) {
        (Err(error), Some(found)) => notes.pass_over(error, found.how).map(|()| found.value),
        (superblock, _) => superblock,
    }
}

fn load_superblock(header: &Access, page: &[u8], reads_only: bool) -> Result<SuperblockInfo> {
    let place = header.place();
    let damaged = |offset, detail| Error::DamagedSuperblock { pool: place.clone(), what: "the superblock", offset, detail };
    // The checksum covers the pool's UUID, which only the slot itself contains: a flipped bit in the UUID still fails
    // the check.
    let slot = CommitWord::unpack(header.load_u64(SUPERBLOCK.commit_off)).slot;
    let at = (SUPER_SLOT_A_OFF + slot as u64 * SUPER_SLOT_BYTES) as usize;
    let uuid: [u8; 16] = page.bytes_at(at + POOL_UUID);
    match SUPERBLOCK.read(header, &uuid) {
        Ok(Some(record)) => SuperblockInfo::decode(place, &record, reads_only),
        Ok(None) => Err(damaged(SUPERBLOCK.commit_off, "was never committed, although the magic is there".to_owned())),
        Err(damage) => Err(damaged(damage.offset, damage.detail)),
    }
}

/// The value of a small word; `None` if it does not verify and was passed over.
fn load_small(header: &Access, offset: u64, what: &'static str, notes: &mut Notes) -> Result<Option<u64>> {
    let word = header.load_u64(offset);
    let Some(value) = unpack_small(word) else {
        let detail = format!("is {word:#018x}, whose check byte is wrong");
        let error = Error::DamagedSuperblock { pool: header.place().clone(), what, offset, detail };
        return notes.pass_over(error, "it is passed over").map(|()| None);
    };
    Ok(Some(value))
}

fn check_expectations(place: &Place, info: &SuperblockInfo, o: &OpenOptions) -> Result<()> {
    let wrong = |what, found, expected| Err(Error::WrongStore { pool: place.clone(), what, found, expected });
    match (o.store_uuid, o.pool_uuid, o.node, &o.members) {
        (Some(expected), ..) if expected != info.store_uuid => wrong("store", hex(&info.store_uuid), hex(&expected)),
        (_, _, Some(expected), _) if expected != info.node => wrong("node", info.node.to_string(), expected.to_string()),
        (_, Some(expected), ..) if expected != info.pool_uuid => wrong("UUID", hex(&info.pool_uuid), hex(&expected)),
        (_, _, _, Some(expected)) if *expected != info.members => {
            let list = |members: &[[u8; 16]]| members.iter().map(hex).collect::<Vec<_>>().join(" ");
            wrong("member list", list(&info.members), list(expected))
        }
        _ => Ok(()),
    }
}

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|b| format!("{b:02x}")).collect()
}
