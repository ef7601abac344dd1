//! Tests of what the page cache holds of a file.

use std::fs::File;

use rustix::mm::{MapFlags, ProtFlags};

use super::skipped;
use crate::layout::{DESCRIPTOR_BYTES, PAGE_BYTES, TABLE_OFF};
use crate::medium::Probe;
use crate::pool::storage::{forget_cached, write_zeros};
use crate::{FailAt, Failpoints, MediumChoice, OpenOptions, Pool};

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

/// Regression: the kernel keeps a page that is to be dropped only in part. So the last descriptors of a table that does
/// not end at a page boundary came from the cache, and with a small table all of them.
#[test]
fn what_is_forgotten_in_part_is_forgotten() {
    if rustix::param::page_size() as u64 != PAGE_BYTES {
        return skipped("with_large_pages");
    }
    let file = tempfile::tempfile().unwrap();
    if Probe::of(&file).unwrap().memory {
        return skipped("without_disk");
    }
    write_zeros(&file, 0, 6 * PAGE_BYTES).unwrap();
    file.sync_all().unwrap();
    if cached_pages(&file, 6) != [true; 6] {
        return skipped("without_cached_pages");
    }
    forget_cached(&file, 2 * PAGE_BYTES, 3 * PAGE_BYTES + 128);
    assert_eq!(cached_pages(&file, 6), [true, true, false, false, true, true]);
}

/// How much of the mapping of a file is dirty, in kibibytes; `None` if the system does not report it.
fn dirty_kb(path: &std::path::Path) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap())).skip(1);
    let dirty = |line: &str| line.starts_with("Shared_Dirty:") || line.starts_with("Private_Dirty:");
    let counts = lines.by_ref().take_while(|line| !line.starts_with("VmFlags:")).filter(|line| dirty(line));
    Some(counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
}

/// Regression: after a failed sync, pages whose content on the device is older count as clean. An opening relied on
/// having dropped them from the cache, but the kernel keeps large pages that begin before a range or end after it.
#[test]
fn what_is_hardened_is_written_also_where_it_passes_for_clean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let o = crate::CreateOptions { medium: MediumChoice::File, ..super::small() };
    Pool::create(&path, &o).unwrap().finish_creation().unwrap();
    let points = Failpoints::new();
    let o = OpenOptions { medium: MediumChoice::File, failpoints: Some(points.clone()), ..OpenOptions::new() };
    let pool = Pool::open(&path, &o).unwrap();
    pool.sync().unwrap();
    let Some(0) = dirty_kb(&path) else {
        eprintln!("this system does not tell which pages are dirty, or not of files in the temporary directory");
        skipped("without_dirty_pages");
        return;
    };
    let before = super::image_of(&pool);
    let start = pool.segment_offset(2);
    // The kernel may write some of the pages before they are counted.
    let three_pages = || {
        pool.rewrite(start + 8, start + 2 * PAGE_BYTES + 8);
        dirty_kb(&path) == Some(3 * 4)
    };
    assert!((0..10).any(|_| three_pages()), "{:?}", dirty_kb(&path));
    pool.sync().unwrap();
    assert_eq!(dirty_kb(&path), Some(0));
    // Pages that a failed sync was to write stay dirty.
    points.arm("sync", FailAt { skip: 0, count: 1, errno: libc::EIO });
    pool.harden_metadata().unwrap_err();
    let pages = (TABLE_OFF + 16 * DESCRIPTOR_BYTES).div_ceil(PAGE_BYTES);
    assert_eq!(dirty_kb(&path), Some(4 * pages), "page 0, the catalogue and the table");
    assert!(super::image_of(&pool) == before, "nothing has changed");
}

/// Regression: a salvage in a copy requested a writer's lock on a file that it had opened for reading, which network
/// file systems refuse.
#[test]
fn whoever_only_looks_locks_as_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    Pool::create(&path, &crate::CreateOptions { medium: MediumChoice::File, ..super::small() }).unwrap().finish_creation().unwrap();
    let private = OpenOptions { salvage: true, medium: MediumChoice::PrivateCopy, ..OpenOptions::new() };
    let file = File::open(&path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).unwrap();
    drop(Pool::open(&path, &private).unwrap());
    drop(file);
    let _writer = Pool::open(&path, &OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() }).unwrap();
    assert!(matches!(Pool::open(&path, &private), Err(crate::Error::Locked { .. })));
}
