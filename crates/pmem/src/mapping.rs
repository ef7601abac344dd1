//! The address space of a pool: reserved once for the largest size, mapped piece by piece, never moved.
//!
//! The base is aligned to 2 MiB so that huge pages are possible; the reserve is inaccessible and costs no memory.
//!
//! A mapping is excluded from forked children (`MADV_DONTFORK`): a child that touches it faults or reaches memory of
//! its own, so no second process can write despite the lock. If another program truncates the mapped file, an access
//! faults with SIGBUS: see the `sigbus` module.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::error::{Error, Place, Result};
use crate::layout::HUGE_BYTES;

/// Reserved and partly mapped address space.
pub(crate) struct Mapping {
    place: Place,
    reserved: *mut u8,
    reserved_len: usize,
    base: *mut u8,
    max_len: u64,
    /// The process that made the mapping.
    process: u32,
}

// SAFETY: the struct only holds addresses. The memory behind them is shared by design and accessed through `Access`,
// which states its rules.
unsafe impl Send for Mapping {}
// SAFETY: as above; `map` takes `&self`, but the pool's lock `growing` serialises its callers.
unsafe impl Sync for Mapping {}

/// What is mapped.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A shared mapping of a file, or with `private` a copy-on-write one, whose changes never reach the file.
    File { file: &'a File, map_sync: bool, private: bool },
    /// Private memory.
    Anonymous,
}

/// The size of the address space that a processor gives a process.
const ADDRESS_SPACE: u64 = 1 << 47;

impl Mapping {
    /// Reserves address space for `max_len` bytes.
    pub(crate) fn reserve(place: &Place, max_len: u64) -> Result<Mapping> {
        if max_len >= ADDRESS_SPACE {
            let what = "the growth limit in bytes (max-capacity)";
            let advice = "no process has more addresses: lower it";
            return Err(Error::TooLarge { pool: place.clone(), what, value: max_len, limit: ADDRESS_SPACE, advice });
        }
        let too_large = || Error::NoAddresses { pool: place.clone(), bytes: max_len };
        let max_len = max_len.next_multiple_of(HUGE_BYTES);
        let reserved_len = usize::try_from(max_len + HUGE_BYTES).map_err(|_| too_large())?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let reserved = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), reserved_len, ProtFlags::empty(), flags) };
        let reserved = reserved.map_err(|_| too_large())?.cast::<u8>();
        let padding = reserved.align_offset(HUGE_BYTES as usize);
        // SAFETY: padding < 2 MiB, by which the reserve is longer than `max_len`.
        let base = unsafe { reserved.add(padding) };
        Ok(Mapping { place: place.clone(), reserved, reserved_len, base, max_len, process: std::process::id() })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn max_len(&self) -> u64 {
        self.max_len
    }

    /// Maps `[off, off + len)` of the source at the same offset of the reserve. Ranges mapped before stay as they are.
    pub(crate) fn map(&self, source: Source<'_>, off: u64, len: u64, hugepages: bool) -> Result<()> {
        assert!(off + len <= self.max_len, "mappings stay inside the reserve");
        if len == 0 {
            return Ok(());
        }
        let failed = |action, e: rustix::io::Errno| Error::Io { pool: self.place.clone(), action, offset: off, source: e.into() };
        // SAFETY: [off, off + len) lies in the reserve, which this struct owns, and was not mapped before: the pool
        // maps each piece once.
        unsafe {
            let at = self.base.add(off as usize).cast();
            match source {
                Source::File { file, map_sync, private } => {
                    let protection = ProtFlags::READ | ProtFlags::WRITE;
                    let sharing = match (private, map_sync) {
                        // Only changed pages take memory.
                        (true, _) => MapFlags::PRIVATE | MapFlags::NORESERVE,
                        (false, true) => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
                        (false, false) => MapFlags::SHARED,
                    };
                    rustix::mm::mmap(at, len as usize, protection, sharing | MapFlags::FIXED, file, off)
                        .map_err(|e| failed("mapping the file", e))?;
                }
                Source::Anonymous => rustix::mm::mprotect(at, len as usize, MprotectFlags::READ | MprotectFlags::WRITE)
                    .map_err(|e| failed("getting memory", e))?,
            }
            rustix::mm::madvise(at, len as usize, Advice::LinuxDontFork).map_err(|e| failed("excluding the mapping from forks", e))?;
            if hugepages {
                // A kernel without huge pages refuses; that only costs speed.
                let _ = rustix::mm::madvise(at, len as usize, Advice::LinuxHugepage);
            }
        }
        Ok(())
    }

    /// Gathers the pages of the range into huge ones now. tmpfs ignores the advice given at mapping unless the system
    /// is configured to heed it, but collapses on request. Best effort: without huge pages, lookups merely miss the TLB
    /// more often.
    pub(crate) fn collapse(&self, off: u64, len: u64) {
        // SAFETY: the range lies in this struct's reserve; collapsing moves pages and changes no content.
        let _ = unsafe { libc::madvise(self.base.add(off as usize).cast(), len as usize, libc::MADV_COLLAPSE) };
    }

    /// Drops the pages of a range of a shared file from the mapping; an access maps them again. Best effort.
    pub(crate) fn let_go(&self, off: u64, len: u64) {
        // SAFETY: the range lies in this struct's reserve and is mapped from a file and shared, so nothing is lost.
        let _ = unsafe { rustix::mm::madvise(self.base.add(off as usize).cast(), len as usize, Advice::LinuxDontNeed) };
    }

    /// Reads in the pages of a range. Returns false if one cannot be read: its device reports an error, its memory is
    /// poisoned, or the file ends before it. An access to such a page would raise SIGBUS. Also returns true where the
    /// kernel cannot report such pages (before Linux 5.14).
    pub(crate) fn populate(&self, off: u64, len: u64) -> bool {
        // SAFETY: the range lies in this struct's reserve and is mapped; to read pages in changes nothing.
        let outcome = unsafe { rustix::mm::madvise(self.base.add(off as usize).cast(), len as usize, Advice::LinuxPopulateRead) };
        !matches!(outcome, Err(Errno::FAULT | Errno::HWPOISON | Errno::IO))
    }

    /// Whether the kernel can report pages that cannot be read.
    pub(crate) fn can_populate() -> bool {
        let page = rustix::param::page_size();
        // SAFETY: a new page of anonymous memory, which is unmapped at once.
        unsafe {
            let Ok(at) = rustix::mm::mmap_anonymous(ptr::null_mut(), page, ProtFlags::READ, MapFlags::PRIVATE) else { return false };
            let told = rustix::mm::madvise(at, page, Advice::LinuxPopulateRead).is_ok();
            let _ = rustix::mm::munmap(at, page);
            told
        }
    }

    /// Replaces a range that cannot be read by zeros. The zeros may be written to if nothing reaches the file anyway.
    pub(crate) fn cover(&self, off: u64, len: u64, writable: bool) -> std::io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the range lies in this struct's reserve and is mapped; a concurrent reader finds zeros instead of a
        // fault.
        unsafe { rustix::mm::mmap_anonymous(self.base.add(off as usize).cast(), len as usize, protection, flags) }?;
        Ok(())
    }

    /// Makes huge pages of a range of a file on tmpfs that has no pages yet; this saves copying small pages together
    /// later. Best effort. The kernel does not collapse a range without pages, so one byte of each huge page is written
    /// first.
    pub(crate) fn huge_ahead(file: &File, off: u64, len: u64) {
        let from = off.next_multiple_of(HUGE_BYTES);
        let to = (off + len) / HUGE_BYTES * HUGE_BYTES;
        if to <= from || file.metadata().is_ok_and(|metadata| metadata.len() > from) || file.set_len(off + len).is_err() {
            return;
        }
        // Through the file, not through the mapping: a full tmpfs answers a write with an error but a store with
        // SIGBUS.
        if (from..to).step_by(HUGE_BYTES as usize).any(|page| file.write_all_at(&[0], page).is_err()) {
            return;
        }
        // The address must be a multiple of 2 MiB: only there can a page be huge.
        let reserve = (to - from + HUGE_BYTES) as usize;
        // SAFETY: a fresh reservation, a mapping inside it, and its removal; no other code knows the addresses.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let Ok(reserved) = rustix::mm::mmap_anonymous(ptr::null_mut(), reserve, ProtFlags::empty(), flags) else { return };
            let at = reserved.cast::<u8>().add(reserved.cast::<u8>().align_offset(HUGE_BYTES as usize));
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            if rustix::mm::mmap(at.cast(), (to - from) as usize, protection, MapFlags::SHARED | MapFlags::FIXED, file, from).is_ok() {
                let _ = libc::madvise(at.cast(), (to - from) as usize, libc::MADV_COLLAPSE);
            }
            let _ = rustix::mm::munmap(reserved, reserve);
        }
    }

    /// Asks the kernel to place the pages of the range on a node. Best effort; returns whether the kernel agreed.
    pub(crate) fn prefer_node(&self, off: u64, len: u64, os_node: u32) -> bool {
        // SAFETY: the range lies in this struct's reserve.
        prefer_node(unsafe { self.base.add(off as usize) }, len, os_node)
    }
}

/// Asks the kernel to place all pages that are allocated from now on in a range of a tmpfs file on a node. The kernel
/// remembers this with the file. Best effort; returns whether the kernel agreed.
pub(crate) fn prefer_node_for_file(file: &File, off: u64, len: u64, os_node: u32) -> bool {
    // SAFETY: a new mapping at an address of the kernel's choice; it is never accessed, and unmapped at once.
    unsafe {
        let Ok(at) = rustix::mm::mmap(ptr::null_mut(), len as usize, ProtFlags::empty(), MapFlags::SHARED, file, off) else { return false };
        let agreed = prefer_node(at.cast(), len, os_node);
        let _ = rustix::mm::munmap(at, len as usize);
        agreed
    }
}

fn prefer_node(at: *mut u8, len: u64, os_node: u32) -> bool {
    const MPOL_PREFERRED: libc::c_long = 1;
    if os_node >= 1024 {
        return false;
    }
    let mut mask = [0u64; 16];
    mask[os_node as usize / 64] = 1 << (os_node % 64);
    // SAFETY: the mask outlives the call and has as many bits as announced; the call changes the policy and moves no
    // data, whatever lies there.
    unsafe {
        libc::syscall(libc::SYS_mbind, at, len as libc::size_t, MPOL_PREFERRED, mask.as_ptr(), 1024 as libc::c_ulong, 0 as libc::c_uint)
            == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // A forked child: what was mapped is a hole there, in which something else may lie by now.
            return;
        }
        // SAFETY: the reserve belongs to this struct, and nobody may use a pool's memory after it is dropped.
        let _ = unsafe { rustix::mm::munmap(self.reserved.cast(), self.reserved_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn growth_does_not_move_what_is_mapped() {
        let place = Place(None);
        let mapping = Mapping::reserve(&place, 64 << 20).unwrap();
        assert_eq!(mapping.base() as usize % HUGE_BYTES as usize, 0);
        mapping.map(Source::Anonymous, 0, 4096, true).unwrap();
        // SAFETY: the first page is mapped, then the second.
        unsafe {
            mapping.base().write(7);
            mapping.map(Source::Anonymous, 4096, 1 << 20, true).unwrap();
            assert_eq!((mapping.base().read(), mapping.base().add(4096).read()), (7, 0));
        }
    }

    #[test]
    fn file_pieces_show_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(12_288).unwrap();
        let mapping = Mapping::reserve(&Place(None), 1 << 20).unwrap();
        let source = Source::File { file: &file, map_sync: false, private: false };
        mapping.map(source, 0, 4096, false).unwrap();
        mapping.map(source, 4096, 8192, false).unwrap();
        // SAFETY: offset 8192 is mapped.
        unsafe { mapping.base().add(8192).write(9) };
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes[8192], 9);
    }

    #[test]
    fn impossible_reserve_is_an_error() {
        assert!(matches!(Mapping::reserve(&Place(None), 1 << 60), Err(Error::TooLarge { .. })));
    }
}
