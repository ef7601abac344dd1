//! What the storage is, and what it promises.
//!
//! Detection asks the kernel: a mapping with `MAP_SYNC` succeeds only where flushed cache lines are durable, including
//! the file's metadata. Every other file on a disk goes through the page cache and needs a sync. tmpfs is memory.
//!
//! Direct access forced onto a page-cached disk file would make a store that looks durable and is not, so it is
//! refused.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags};

use crate::arch::FlushKind;
use crate::error::{Error, Place, Result};
use crate::options::Runtime;
use crate::tracer::Emulate;

/// The kind of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediumKind {
    /// A file on persistent memory, mapped directly.
    FsDax,
    /// A device of persistent memory, mapped directly. Untested on hardware.
    DevDax,
    /// A file on an ordinary file system.
    File,
    /// Memory: tmpfs or anonymous.
    Volatile,
    /// Memory that follows the rules of another medium, for tests.
    Shadow,
}

/// How far a store must get to survive a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PersistenceDomain {
    /// The memory controller: flush and fence.
    Adr,
    /// The caches: fence.
    Eadr,
    /// The device behind the page cache: sync.
    PageCache,
    /// None: nothing survives.
    None,
}

/// How the user wants the storage to be treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MediumChoice {
    /// What detection finds.
    #[default]
    Auto,
    /// Direct access: also on tmpfs (as an emulation that is not durable), never silently on a disk file.
    ForcedDax,
    /// Syncs, whatever the storage is.
    File,
    /// No durability.
    Volatile,
    /// Private memory; only data that was flushed and fenced (or synced) reaches the file. Killing the process equals a
    /// power loss.
    ShadowFile,
    /// A private copy of the file: changes stay in memory and never reach the file, which need not be writable. For
    /// inspecting a damaged store.
    PrivateCopy,
}

/// What a pool's medium is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediumInfo {
    /// Its kind.
    pub kind: MediumKind,
    /// Its persistence domain.
    pub domain: PersistenceDomain,
    /// How lines are flushed.
    pub flush: FlushKind,
    /// Whether data that has reached the domain survives a power loss.
    pub durable: bool,
    /// Whether memory of this medium can be placed on a node (not page-cached files).
    pub locality: bool,
    /// The name of the file system, or of the storage where there is none.
    pub filesystem: String,
}

pub(crate) const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
const HUGETLBFS: &str = "hugetlbfs";
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// What probing a file has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) device: bool,
    /// Of a device: it keeps its content without power, as far as the kernel reports.
    pub(crate) persistent: bool,
    pub(crate) map_sync: bool,
    pub(crate) memory: bool,
    pub(crate) eadr: bool,
    pub(crate) filesystem: String,
}

impl Probe {
    /// Asks the kernel about `file`.
    pub(crate) fn of(file: &File) -> std::io::Result<Probe> {
        let metadata = file.metadata()?;
        let device = metadata.file_type().is_char_device();
        let persistent = device && is_persistent_device(Path::new("/sys/dev/char"), metadata.rdev());
        let magic: i64 = rustix::fs::fstatfs(file)?.f_type;
        let memory = !device && matches!(magic, TMPFS_MAGIC | RAMFS_MAGIC);
        let map_sync = !device && !memory && supports_map_sync(file);
        let eadr = (device || map_sync) && caches_are_persistent(Path::new("/sys/bus/nd/devices"));
        Ok(Probe { device, persistent, map_sync, memory, eadr, filesystem: name_of(magic, device) })
    }
}

/// Whether a dax device is part of persistent memory. Other dax devices are volatile memory that was set apart (CXL
/// memory, high-bandwidth memory): they are on no bus of NVDIMMs.
pub(crate) fn is_persistent_device(root: &Path, number: u64) -> bool {
    let name = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let of_ndbus = |part: std::path::Component<'_>| part.as_os_str().to_string_lossy().starts_with("ndbus");
    root.join(name).canonicalize().is_ok_and(|path| path.components().any(of_ndbus))
}

/// Whether a file lies in memory that supports placement policies and huge pages.
pub(crate) fn is_tmpfs(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| i128::from(stat.f_type) == i128::from(TMPFS_MAGIC))
}

fn name_of(magic: i64, device: bool) -> String {
    let known = match magic {
        _ if device => "a dax device",
        TMPFS_MAGIC => "tmpfs",
        RAMFS_MAGIC => "ramfs",
        HUGETLBFS_MAGIC => HUGETLBFS,
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x794c_7630 => "overlayfs",
        0x6969 => "nfs",
        _ => return format!("a file system of type {magic:#x}"),
    };
    known.to_owned()
}

fn supports_map_sync(file: &File) -> bool {
    try_map_sync(file).is_ok()
}

fn try_map_sync(file: &File) -> rustix::io::Result<()> {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: a new mapping at an address of the kernel's choice; it is never accessed and unmapped at once.
    unsafe {
        let address = rustix::mm::mmap(ptr::null_mut(), 4096, ProtFlags::READ, flags, file, 0)?;
        rustix::mm::munmap(address, 4096)
    }
}

/// Whether every persistent memory region below `root` has its caches in the persistence domain.
pub(crate) fn caches_are_persistent(root: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(root) else { return false };
    let regions = entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("region"));
    let mut domains = regions.map(|e| std::fs::read_to_string(e.path().join("persistence_domain")).unwrap_or_default()).peekable();
    // One region with a smaller domain decides: the pool may be on it.
    domains.peek().is_some() && domains.all(|domain| domain.trim() == "cpu_cache")
}

/// The medium that a choice gives for a probed file.
pub(crate) fn decide(place: &Place, probe: &Probe, run: &Runtime) -> Result<MediumInfo> {
    let info = |kind, domain, durable, locality| MediumInfo {
        kind,
        domain,
        flush: FlushKind::None,
        durable,
        locality,
        filesystem: probe.filesystem.clone(),
    };
    refuse_unsuitable(place, probe, run.medium)?;
    let domain = if probe.eadr { PersistenceDomain::Eadr } else { PersistenceDomain::Adr };
    let real_dax = probe.device || probe.map_sync;
    let dax_kind = if probe.device { MediumKind::DevDax } else { MediumKind::FsDax };
    let found = match run.medium {
        MediumChoice::ShadowFile => shadow(run.emulate.unwrap_or(Emulate::Adr), run)?,
        MediumChoice::Auto if probe.device && !probe.persistent => info(MediumKind::DevDax, PersistenceDomain::None, false, true),
        MediumChoice::Volatile if probe.device => info(MediumKind::DevDax, PersistenceDomain::None, false, true),
        _ if probe.device => info(MediumKind::DevDax, domain, probe.persistent, true),
        MediumChoice::PrivateCopy => info(MediumKind::Volatile, PersistenceDomain::None, false, false),
        MediumChoice::Volatile => info(MediumKind::Volatile, PersistenceDomain::None, false, probe.memory || probe.map_sync),
        MediumChoice::File => info(MediumKind::File, PersistenceDomain::PageCache, !probe.memory, false),
        MediumChoice::Auto | MediumChoice::ForcedDax if real_dax => info(dax_kind, domain, true, true),
        MediumChoice::ForcedDax if probe.memory => info(MediumKind::FsDax, domain, false, true),
        MediumChoice::ForcedDax if run.allow_not_durable => info(MediumKind::FsDax, domain, false, false),
        MediumChoice::ForcedDax => return Err(Error::NotDurable { pool: place.clone(), filesystem: probe.filesystem.clone() }),
        MediumChoice::Auto if probe.memory => info(MediumKind::Volatile, PersistenceDomain::None, false, true),
        MediumChoice::Auto => info(MediumKind::File, PersistenceDomain::PageCache, true, false),
    };
    with_flush(found, run)
}

/// Refuses to treat storage as something it cannot be. A device has neither syncs nor private mappings. hugetlbfs maps
/// nothing smaller than a huge page, and takes writes only through a mapping.
fn refuse_unsuitable(place: &Place, probe: &Probe, choice: MediumChoice) -> Result<()> {
    let (what, advice) = match choice {
        _ if probe.filesystem == HUGETLBFS => (
            "a pool on hugetlbfs",
            "name a directory on tmpfs (for huge pages mounted with huge=always), or on persistent memory that is mounted with dax",
        ),
        MediumChoice::PrivateCopy if probe.device => (
            "looking only (a read-only opening, or a salvage that reads)",
            "a dax device cannot be mapped privately: copy it to a file and look at that",
        ),
        MediumChoice::File if probe.device => {
            ("the medium \"file\"", "a dax device has no page cache: let the medium be found out (\"auto\")")
        }
        _ => return Ok(()),
    };
    Err(Error::UnsuitableMedium { pool: place.clone(), what, advice })
}

/// The medium of an in-memory pool.
pub(crate) fn in_memory(run: &Runtime) -> Result<MediumInfo> {
    if let Some(emulate) = run.emulate {
        return with_flush(shadow(emulate, run)?, run);
    }
    Ok(MediumInfo {
        kind: if run.tracer.is_some() { MediumKind::Shadow } else { MediumKind::Volatile },
        domain: PersistenceDomain::None,
        flush: FlushKind::None,
        durable: false,
        locality: true,
        filesystem: "anonymous memory".to_owned(),
    })
}

fn shadow(emulate: Emulate, run: &Runtime) -> Result<MediumInfo> {
    let domain = match emulate {
        Emulate::Adr => PersistenceDomain::Adr,
        Emulate::Eadr => PersistenceDomain::Eadr,
        Emulate::File => PersistenceDomain::PageCache,
    };
    if run.medium == MediumChoice::ShadowFile && emulate == Emulate::Eadr {
        let advice = "persisted copies need flushes or syncs to act on: emulate ADR or a file";
        return Err(Error::Invalid { what: "the domain of a shadow file", value: 0, advice });
    }
    let filesystem = "shadow memory".to_owned();
    Ok(MediumInfo { kind: MediumKind::Shadow, domain, flush: FlushKind::None, durable: false, locality: true, filesystem })
}

/// Adds the flush instruction that the domain needs.
fn with_flush(mut info: MediumInfo, run: &Runtime) -> Result<MediumInfo> {
    if info.domain != PersistenceDomain::Adr {
        return Ok(info);
    }
    let kind = run.flush.unwrap_or_else(FlushKind::detect);
    if kind == FlushKind::None || !kind.is_supported() {
        let advice = "this processor has no such flush instruction; leave the choice to detection or use the file medium";
        return Err(Error::Invalid { what: "the flush kind", value: kind as u64, advice });
    }
    info.flush = kind;
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OpenOptions;

    fn probe(map_sync: bool, memory: bool, eadr: bool) -> Probe {
        Probe { device: false, persistent: false, map_sync, memory, eadr, filesystem: "ext4".into() }
    }

    fn run(medium: MediumChoice, allow_not_durable: bool) -> Runtime {
        OpenOptions { medium, allow_not_durable, ..OpenOptions::new() }.runtime()
    }

    #[test]
    fn choices_and_findings_give_the_promised_medium() {
        use MediumChoice::*;
        use MediumKind::{File as FileKind, FsDax, Volatile as VolatileKind};
        let place = Place(None);
        let table = [
            (Auto, probe(true, false, false), FsDax, PersistenceDomain::Adr, true),
            (Auto, probe(true, false, true), FsDax, PersistenceDomain::Eadr, true),
            (Auto, probe(false, true, false), VolatileKind, PersistenceDomain::None, false),
            (Auto, probe(false, false, false), FileKind, PersistenceDomain::PageCache, true),
            (ForcedDax, probe(true, false, false), FsDax, PersistenceDomain::Adr, true),
            (ForcedDax, probe(false, true, false), FsDax, PersistenceDomain::Adr, false),
            (File, probe(false, true, false), FileKind, PersistenceDomain::PageCache, false),
            (File, probe(true, false, false), FileKind, PersistenceDomain::PageCache, true),
            (Volatile, probe(false, false, false), VolatileKind, PersistenceDomain::None, false),
        ];
        for (choice, probe, kind, domain, durable) in table {
            let info = decide(&place, &probe, &run(choice, false)).unwrap();
            assert_eq!((info.kind, info.domain, info.durable), (kind, domain, durable), "{choice:?} on {probe:?}");
            assert_eq!(info.flush != FlushKind::None, domain == PersistenceDomain::Adr);
        }
    }

    /// Found by hand: volatile memory that was set apart as a device passed for persistent memory, and an explicit
    /// choice of the user was ignored silently.
    #[test]
    fn only_devices_of_persistent_memory_are_durable() {
        use MediumChoice::*;
        let place = Place(None);
        let device = |persistent| Probe { device: true, persistent, filesystem: "a dax device".into(), ..probe(false, false, false) };
        let of = |choice, persistent| {
            decide(&place, &device(persistent), &run(choice, false)).map(|info| (info.kind, info.domain, info.durable)).ok()
        };
        let found = |domain, durable| Some((MediumKind::DevDax, domain, durable));
        assert_eq!(of(Auto, true), found(PersistenceDomain::Adr, true));
        assert_eq!(of(Auto, false), found(PersistenceDomain::None, false));
        assert_eq!(of(ForcedDax, false), found(PersistenceDomain::Adr, false));
        assert_eq!(of(Volatile, true), found(PersistenceDomain::None, false));
        for (choice, named) in [(File, "the medium \"file\""), (PrivateCopy, "looking only")] {
            let pool = Place::of(Some(Path::new("/dev/dax0.0")));
            let error = decide(&pool, &device(true), &run(choice, false)).unwrap_err().to_string();
            assert!(error.starts_with("pool /dev/dax0.0: ") && error.contains(named) && !error.contains("is 0"), "{error}");
        }
    }

    /// Found by hand: hugetlbfs passed for volatile memory, and each mapping failed with "invalid argument".
    #[test]
    fn hugetlbfs_is_refused_by_name() {
        use MediumChoice::*;
        assert_eq!([HUGETLBFS_MAGIC, TMPFS_MAGIC, RAMFS_MAGIC].map(|magic| name_of(magic, false)), ["hugetlbfs", "tmpfs", "ramfs"]);
        let probe = Probe { filesystem: name_of(HUGETLBFS_MAGIC, false), ..probe(false, false, false) };
        for choice in [Auto, ForcedDax, File, Volatile, PrivateCopy] {
            let error = decide(&Place(None), &probe, &run(choice, false)).unwrap_err();
            assert!(matches!(error, Error::UnsuitableMedium { what: "a pool on hugetlbfs", .. }), "{choice:?}: {error}");
            assert!(error.to_string().contains("tmpfs"), "{error}");
        }
    }

    #[test]
    fn persistent_devices_are_those_on_a_bus_of_nvdimms() {
        let dir = tempfile::tempdir().unwrap();
        let (numbers, devices) = (dir.path().join("dev/char"), dir.path().join("devices"));
        std::fs::create_dir_all(&numbers).unwrap();
        for (minor, device) in [(1, "LNXSYSTM:00/ndbus0/region0/dax0.0"), (2, "platform/hmem.0/dax1.0")] {
            std::fs::create_dir_all(devices.join(device)).unwrap();
            std::os::unix::fs::symlink(devices.join(device), numbers.join(format!("252:{minor}"))).unwrap();
        }
        let is_persistent = |minor| is_persistent_device(&numbers, rustix::fs::makedev(252, minor));
        assert_eq!([1, 2, 3].map(is_persistent), [true, false, false]);
    }

    #[test]
    fn forced_dax_on_a_disk_file_is_refused_or_reported() {
        let place = Place(None);
        let disk = probe(false, false, false);
        let refused = decide(&place, &disk, &run(MediumChoice::ForcedDax, false));
        assert!(matches!(refused, Err(Error::NotDurable { .. })), "{refused:?}");
        let info = decide(&place, &disk, &run(MediumChoice::ForcedDax, true)).unwrap();
        assert_eq!((info.kind, info.durable, info.locality), (MediumKind::FsDax, false, false));
    }

    #[test]
    fn flush_kind_can_be_forced_but_must_exist() {
        let place = Place(None);
        let mut run = run(MediumChoice::Auto, false);
        run.flush = Some(FlushKind::None);
        assert!(matches!(decide(&place, &probe(true, false, false), &run), Err(Error::Invalid { .. })));
        #[cfg(target_arch = "x86_64")]
        {
            run.flush = Some(FlushKind::Clflush);
            assert_eq!(decide(&place, &probe(true, false, false), &run).unwrap().flush, FlushKind::Clflush);
        }
    }

    #[test]
    fn eadr_needs_every_region() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!caches_are_persistent(dir.path()));
        let region = |name: &str, domain: &str| {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("persistence_domain"), domain).unwrap();
        };
        std::fs::create_dir_all(dir.path().join("namespace0.0")).unwrap();
        assert!(!caches_are_persistent(dir.path()));
        region("region0", "cpu_cache\n");
        assert!(caches_are_persistent(dir.path()));
        region("region1", "memory_controller\n");
        assert!(!caches_are_persistent(dir.path()));
        assert!(!caches_are_persistent(&dir.path().join("absent")));
    }

    /// Regression: a file that was opened for reading was never recognised as being on persistent memory, because a
    /// writable mapping is refused for it.
    #[test]
    fn what_a_medium_can_does_not_depend_on_how_the_file_was_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(try_map_sync(&File::open(file.path()).unwrap()), try_map_sync(file.as_file()));
    }

    #[test]
    fn tmpfs_is_recognised() {
        let Some(dir) = crate::pool::tests::on_tmpfs() else { return };
        let file = tempfile::tempfile_in(dir.path()).unwrap();
        let probe = Probe::of(&file).unwrap();
        assert!(probe.memory && !probe.map_sync, "{probe:?}");
    }
}
