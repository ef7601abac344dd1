//! What of a file is in the page cache.

use std::fs::File;

use rustix::mm::{MapFlags, ProtFlags};

use crate::layout::PAGE_BYTES;
use crate::medium::Probe;
use crate::pool::storage::{forget_cached, write_zeros};

/// Which of the first pages of a file are in the page cache.
fn cached_pages(file: &File, pages: usize) -> Vec<bool> {
    let bytes = pages * PAGE_BYTES as usize;
    let mut states = vec![0u8; pages];
    // SAFETY: a new mapping, which nobody touches and which is unmapped at once; `states` has a byte for each page.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap();
        assert_eq!(libc::mincore(at, bytes, states.as_mut_ptr()), 0);
        rustix::mm::munmap(at, bytes).unwrap();
    }
    states.iter().map(|state| state & 1 != 0).collect()
}

/// Regression: the kernel keeps a page of which only a part is to be forgotten, so the last descriptors of a table that does not end with a page came from
/// the cache, and with a small table all of them.
#[test]
fn what_is_forgotten_in_part_is_forgotten() {
    if rustix::param::page_size() as u64 != PAGE_BYTES {
        return;
    }
    let file = tempfile::tempfile().unwrap();
    if Probe::of(&file).unwrap().memory {
        return;
    }
    write_zeros(&file, 0, 6 * PAGE_BYTES).unwrap();
    file.sync_all().unwrap();
    if cached_pages(&file, 6) != [true; 6] {
        return;
    }
    forget_cached(&file, 2 * PAGE_BYTES, 3 * PAGE_BYTES + 128);
    assert_eq!(cached_pages(&file, 6), [true, true, false, false, true, true]);
}
