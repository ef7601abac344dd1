//! Tests where the kernel places the pages of pools on tmpfs, and how large they are.

use std::path::Path;

use super::on_tmpfs;
use crate::{CreateOptions, OpenOptions, Pool};

const MIB: u64 = 1 << 20;

/// The lines of `/proc/self/FILE` about the mapping of `path`, and those that follow (30 lines at most).
fn told(file: &str, path: &Path) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let is_ours = |line: &str| line.contains(&*path.to_string_lossy());
    maps.lines().skip_while(|line| !is_ours(line)).take(30).map(str::to_owned).collect()
}

fn pool_in(folder: &tempfile::TempDir, o: CreateOptions) -> (std::path::PathBuf, Pool) {
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &CreateOptions { segment_bytes: MIB, max_bytes: 32 * MIB, ..o }).unwrap();
    pool.finish_creation().unwrap();
    (path, pool)
}

/// Regression: the kernel was not asked to place pools on tmpfs on a node, or was asked only after all pages had been
/// allocated.
#[test]
fn pages_on_tmpfs_are_asked_for_on_the_node() {
    let Some(folder) = on_tmpfs() else { return };
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    if !crate::mapping::prefer_node_for_file(&file, 0, 4096, 0) {
        super::skipped("without_placement");
        return;
    }
    let (path, pool) = pool_in(&folder, CreateOptions { bind_os_node: Some(0), ..CreateOptions::new(8 * MIB) });
    let placed = || told("numa_maps", &path).into_iter().filter(|line| line.contains(&*path.to_string_lossy())).collect::<Vec<_>>();
    let are_placed = |lines: &[String]| !lines.is_empty() && lines.iter().all(|line| line.contains("prefer:0"));
    assert!(are_placed(&placed()), "{:?}", placed());
    assert_eq!(pool.grow(8).unwrap(), 16);
    assert!(are_placed(&placed()), "after growth: {:?}", placed());
    drop(pool);
    let _pool = Pool::open(&path, &OpenOptions::new()).unwrap();
    assert!(are_placed(&placed()), "the file remembers it: {:?}", placed());
}

/// Regression: on tmpfs the setting was ignored.
#[test]
fn small_pages_are_small() {
    let Some(folder) = on_tmpfs() else { return };
    let (path, pool) = pool_in(&folder, CreateOptions { hugepages: false, ..CreateOptions::new(16 * MIB) });
    // SAFETY: only this thread has the pool, whose segments nobody uses.
    unsafe { pool.write_words(pool.segment_offset(8), &[7]) };
    let smaps = told("smaps", &path);
    let huge: Vec<_> = smaps.iter().filter(|line| line.starts_with("ShmemPmdMapped:")).collect();
    assert!(!huge.is_empty() && huge.iter().all(|line| line.split_whitespace().nth(1) == Some("0")), "{smaps:?}");
}
