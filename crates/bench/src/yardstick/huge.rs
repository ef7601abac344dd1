//! Memory on huge pages: a 2 MiB-aligned, advised mapping, and an allocator for `hashbrown` on top of it.
//!
//! Transparent huge pages are in *madvise* mode on most servers, so ordinary allocations stay on 4 KiB pages.
//! [`HugeArena`] hands out pieces of 32 MiB regions and takes none back before it is dropped. So a growing table wastes
//! at most as much as it holds, which a yardstick may.
//!
//! Thread safety: the arena is locked; pieces are disjoint. Invariant: regions live as long as any clone of the arena.

use std::alloc::Layout;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator};
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::target::{Error, Result};

const HUGE: usize = 2 << 20;
const REGION: usize = 32 << 20;

/// A readable and writable mapping of whole huge pages, zero at first, unmapped when dropped.
pub struct HugeMapping {
    reserved: NonNull<u8>,
    reserved_len: usize,
    start: NonNull<u8>,
    len: usize,
    advised: bool,
}

// SAFETY: the mapping is plain memory owned by this value; nothing in it refers to a thread.
unsafe impl Send for HugeMapping {}
// SAFETY: `&HugeMapping` gives out only the address and lengths; code that writes through the address is responsible
// for that access.
unsafe impl Sync for HugeMapping {}

impl HugeMapping {
    /// Anonymous memory of at least `len` bytes.
    pub fn anonymous(len: usize) -> Result<Self> {
        let mut this = Self::reserve(len)?;
        this.advised = this.advise();
        Ok(this)
    }

    /// The first `len` bytes of a file, shared.
    pub fn of_file(file: &File, len: usize) -> Result<Self> {
        let mut this = Self::reserve(len)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the fixed range `start..start+len` lies inside the reservation that `this` owns, so nothing else is
        // replaced.
        unsafe { mmap(this.start.as_ptr().cast(), this.len, prot, flags, file, 0) }
            .map_err(|e| Error::io("mapping a yardstick file", e))?;
        this.advised = this.advise();
        Ok(this)
    }

    fn reserve(len: usize) -> Result<Self> {
        let len = len.next_multiple_of(HUGE).max(HUGE);
        let reserved_len = len + HUGE;
        // SAFETY: a new private mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), reserved_len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(|e| Error::io("mapping yardstick memory", e))?;
        let reserved = NonNull::new(base.cast::<u8>()).ok_or_else(|| Error::Config("the kernel mapped address 0".into()))?;
        let skip = reserved.as_ptr().align_offset(HUGE);
        // SAFETY: `skip` is below `HUGE` (a byte pointer can always be aligned), so the result is inside the
        // reservation.
        let start = unsafe { reserved.add(skip) };
        Ok(Self { reserved, reserved_len, start, len, advised: false })
    }

    fn advise(&self) -> bool {
        // SAFETY: the range is mapped and owned; the advice changes no content.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) }.is_ok()
    }

    /// The first byte; aligned to 2 MiB.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the mapping has no bytes, which never happens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if the kernel took the advice to use huge pages; after [`HugeMapping::touch`], true if it made them.
    pub fn advised(&self) -> bool {
        self.advised
    }

    /// Touches every page, so that no later access faults, and requests huge pages at once. On tmpfs the advice alone
    /// does nothing if the system has huge pages switched off for shared memory; `MADV_COLLAPSE` still makes them.
    pub fn touch(&mut self) {
        for offset in (0..self.len).step_by(4096) {
            // SAFETY: the offset is inside the mapping, and no other code has the address yet: callers touch before
            // they share.
            unsafe { self.start.add(offset).write_volatile(0) };
        }
        // SAFETY: the range is mapped and owned; collapsing moves the pages and changes no content.
        self.advised = unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_COLLAPSE) } == 0;
    }
}

impl Drop for HugeMapping {
    fn drop(&mut self) {
        // SAFETY: the whole reservation is owned by this value and nothing borrowed from it outlives it.
        let _ = unsafe { munmap(self.reserved.as_ptr().cast(), self.reserved_len) };
    }
}

struct Regions {
    full: Vec<HugeMapping>,
    used: usize,
    huge: bool,
}

/// A bump allocator over huge regions, shared by clones.
#[derive(Clone)]
pub struct HugeArena {
    regions: Arc<Mutex<Regions>>,
}

impl HugeArena {
    /// An empty arena.
    pub fn new() -> Self {
        Self { regions: Arc::new(Mutex::new(Regions { full: Vec::new(), used: 0, huge: true })) }
    }

    /// True if the kernel made huge pages of every region.
    pub fn huge_pages(&self) -> bool {
        self.regions.lock().huge
    }
}

impl Default for HugeArena {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: pieces are disjoint parts of regions. Regions live until the last clone of the arena is dropped, and a
// container that holds pieces holds a clone. Moving a clone does not move regions. Any clone may free a piece, because
// freeing does nothing.
unsafe impl Allocator for HugeArena {
    fn allocate(&self, layout: Layout) -> std::result::Result<NonNull<[u8]>, AllocError> {
        let mut regions = self.regions.lock();
        if layout.align() > HUGE {
            return Err(AllocError);
        }
        let fits = regions.full.last().and_then(|region| {
            let offset = regions.used.next_multiple_of(layout.align());
            (offset.checked_add(layout.size())? <= region.len()).then_some((region.start(), offset))
        });
        let (start, offset) = match fits {
            Some(place) => place,
            None => {
                let mut region = HugeMapping::anonymous(layout.size().max(REGION)).map_err(|_| AllocError)?;
                // The kernel takes the advice even if it is configured never to make huge pages. Touching and
                // collapsing shows whether the region is on them.
                region.touch();
                regions.huge &= region.advised();
                let start = region.start();
                regions.full.push(region);
                (start, 0)
            }
        };
        regions.used = offset + layout.size();
        // SAFETY: `offset + size` was checked against the region's length (a new region is at least `size` long).
        let piece = unsafe { start.add(offset) };
        Ok(NonNull::slice_from_raw_parts(piece, layout.size()))
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: Layout) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_writable() {
        let arena = HugeArena::new();
        let mut pieces = Vec::new();
        for (i, size) in [1usize, 100, 4096, 40 << 20, 3].into_iter().enumerate() {
            let layout = Layout::from_size_align(size, 64).expect("a valid layout");
            let piece = arena.allocate(layout).expect("memory");
            assert_eq!(piece.cast::<u8>().as_ptr() as usize % 64, 0);
            // SAFETY: the piece has `size` bytes.
            unsafe { piece.cast::<u8>().write_bytes(i as u8 + 1, size) };
            pieces.push((piece, size, i as u8 + 1));
        }
        for (piece, size, byte) in pieces {
            // SAFETY: as above; the bytes were written.
            let bytes = unsafe { std::slice::from_raw_parts(piece.cast::<u8>().as_ptr(), size) };
            assert!(bytes.iter().all(|b| *b == byte));
        }
    }
}
