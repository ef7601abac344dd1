//! Growth of pools in files.

use super::files::{born, folder, on_file};
use super::on_tmpfs;
use crate::{CreateOptions, Error, FailAt, Failpoints, OpenOptions, Pool};
use std::fs::OpenOptions as FileOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A pool in a file, with its failpoints.
fn failing() -> (TempDir, PathBuf, Pool, Arc<Failpoints>) {
    let (dir, path) = folder();
    let points = Failpoints::new();
    let pool = born(&path, &CreateOptions { failpoints: Some(points.clone()), ..on_file() });
    (dir, path, pool, points)
}

#[test]
fn a_failed_sync_while_growing_poisons_too() {
    let (_dir, path, pool, points) = failing();
    points.arm("sync", FailAt { skip: 0, count: 1, errno: libc::EIO });
    assert!(matches!(pool.grow(1), Err(Error::SyncFailed { .. })));
    assert!(pool.is_poisoned());
    drop(pool);
    assert_eq!(Pool::open(&path, &OpenOptions::new()).unwrap().segment_count(), 16);
}

/// Regression: bytes behind a pool's end, where two files had been joined, became its new segments unchanged. These
/// counted as empty, and the next opening refused them.
#[test]
fn what_lies_behind_the_end_is_not_taken_for_new_segments() {
    let grow = |path: &Path| {
        let pool = born(path, &on_file());
        let (end, segment) = (pool.len_mapped(), pool.segment_bytes());
        drop(pool);
        FileOptions::new().append(true).open(path).unwrap().write_all(&vec![0xaa; 5 * segment as usize / 2]).unwrap();
        let pool = Pool::open(path, &OpenOptions::new()).unwrap();
        pool.grow(1).unwrap();
        assert!(pool.is_zero(end, segment).unwrap());
        pool.grow(4).unwrap();
        assert!(pool.is_zero(end, 5 * segment).unwrap());
        assert_eq!(std::fs::metadata(path).unwrap().len(), end + 5 * segment);
    };
    grow(&folder().1);
    if let Some(dir) = on_tmpfs() {
        grow(&dir.path().join("pool"));
    }
}

#[test]
fn a_growth_that_fails_leaves_nothing_behind_the_end() {
    let (_dir, path, pool, points) = failing();
    let end = pool.len_mapped();
    FileOptions::new().append(true).open(&path).unwrap().write_all(&[0xaa; 9_000]).unwrap();
    points.arm("fallocate", FailAt { skip: 0, count: 1, errno: libc::ENOSPC });
    assert!(matches!(pool.grow(1), Err(Error::DiskFull { .. })));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), end);
    pool.grow(1).unwrap();
    assert!(pool.is_zero(end, pool.segment_bytes()).unwrap());
}

/// Regression: a file that had grown when its mapping failed stayed that long.
#[test]
fn a_growth_that_cannot_be_mapped_gives_its_space_back() {
    let (_dir, path, pool, points) = failing();
    let length = || std::fs::metadata(&path).unwrap().len();
    let before = length();
    points.arm("mmap_short", FailAt { skip: 0, count: 1, errno: libc::ENOMEM });
    assert!(pool.grow(4).is_err());
    assert_eq!((length(), pool.segment_count()), (before, 16));
    pool.grow(4).unwrap();
    assert_eq!((length(), pool.segment_count()), (before + 4 * pool.segment_bytes(), 20));
}

/// Regression: where zeros need room, as on file systems that copy blocks when they are written, a full disk was an
/// input/output error, with the advice to look at the device.
#[test]
fn zeros_that_find_no_room_are_a_full_disk() {
    let (_dir, _, pool, points) = failing();
    points.arm("zero", FailAt { skip: 0, count: 1, errno: libc::ENOSPC });
    let error = pool.zero_segment(3, 1).unwrap_err();
    assert!(matches!(error, Error::DiskFull { bytes, .. } if bytes == pool.segment_bytes()), "{error}");
    assert!(!pool.is_poisoned());
    pool.zero_segment(3, 1).unwrap();
}
