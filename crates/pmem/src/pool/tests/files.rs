//! Tests of pools in files: creation, locks, full disks, failed syncs, persisted copies.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::{active, on_tmpfs, skipped, small};
use crate::{CreateOptions, Emulate, Error, FailAt, Failpoints, MediumChoice, MediumKind, OpenOptions, PersistenceDomain, Pool};
use crate::{StoreKind, SyncPhase, Tracer};

/// Tests run on whatever medium holds the temporary folder; they state the medium where it matters.
pub(super) fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node0.pool");
    (dir, path)
}

pub(super) fn on_file() -> CreateOptions {
    CreateOptions { medium: MediumChoice::File, ..small() }
}

pub(super) fn born(path: &Path, o: &CreateOptions) -> Pool {
    let pool = Pool::create(path, o).unwrap();
    pool.finish_creation().unwrap();
    pool
}

#[test]
fn create_close_open() {
    for medium in [MediumChoice::Auto, MediumChoice::File, MediumChoice::Volatile, MediumChoice::ShadowFile] {
        let (_dir, path) = folder();
        let pool = born(&path, &CreateOptions { medium, ..small() });
        pool.commit_descriptor(2, &active(4)).unwrap();
        pool.set_catalogue(b"abc").unwrap();
        let (info, off) = (pool.superblock(), pool.segment_offset(2));
        // SAFETY: segment 2 is mapped and only this thread has the pool.
        unsafe { pool.write_words(off, &[42]) };
        pool.persist(off, 8).unwrap();
        assert_eq!(pool.grow(2).unwrap(), 18);
        drop(pool);
        let pool = Pool::open(&path, &OpenOptions { medium, ..OpenOptions::new() }).unwrap();
        assert_eq!((pool.superblock().pool_uuid, pool.segment_count()), (info.pool_uuid, 18), "{medium:?}");
        assert_eq!((pool.descriptor(2).unwrap(), pool.catalogue().unwrap(), pool.load_u64(off)), (active(4), b"abc".to_vec(), 42));
        assert_eq!(pool.path(), Some(path.as_path()));
    }
}

#[test]
fn space_is_never_sparse() {
    let (_dir, path) = folder();
    let pool = born(&path, &on_file());
    pool.grow(8).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(metadata.blocks() * 512 >= metadata.len(), "{} blocks for {} bytes", metadata.blocks(), metadata.len());
    assert_eq!(metadata.len(), pool.segment_offset(24));
}

/// Bytes of the pages of files on a device that this thread made dirty: what syncs will have to write.
fn dirtied_bytes() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    counts.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap().parse().unwrap()
}

/// Regression: zeros written in large pieces were cached in pages of up to 1 MiB, and each small write made such a page dirty.
#[test]
fn a_small_write_makes_no_more_than_its_page_dirty() {
    let (_dir, path) = folder();
    let pool = born(&path, &CreateOptions { capacity_bytes: 32 << 20, max_bytes: 32 << 20, segment_bytes: 1 << 20, ..on_file() });
    let zeroed_and_written = |pool: &Pool, after: &str| {
        // Behind the range that the kernel reads ahead at creation.
        pool.zero_segment(20, 4).unwrap();
        for segment in 20..24 {
            let before = dirtied_bytes();
            pool.store_u64(pool.segment_offset(segment) + 300_000, 1);
            let dirtied = dirtied_bytes() - before;
            pool.sync().unwrap();
            assert!(dirtied <= 4096, "{dirtied} bytes for 8 in segment {segment} {after}");
        }
    };
    zeroed_and_written(&pool, "of a new pool");
    zeroed_and_written(&pool, "that was written before");
    drop(pool);
    let pool = Pool::open(&path, &OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() }).unwrap();
    pool.forget_cached(0, pool.segment_offset(30));
    // Reading also brings in large pages.
    std::fs::read(&path).unwrap();
    zeroed_and_written(&pool, "that was read");
}

/// Regression: a run was zeroed with one sync for each of its segments, and for each MiB.
#[test]
fn zeros_of_a_run_cost_few_syncs() {
    let (_dir, path) = folder();
    let points = Failpoints::new();
    let sizes = CreateOptions { capacity_bytes: 64 << 20, max_bytes: 64 << 20, segment_bytes: 64 << 10, ..on_file() };
    let pool = born(&path, &CreateOptions { failpoints: Some(points.clone()), ..sizes });
    for (run_len, most) in [(1, 1), (2, 1), (16, 1), (17, 2), (128, 8), (129, 8), (640, 8)] {
        points.arm("sync", FailAt { skip: u64::MAX, count: 0, errno: libc::EIO });
        pool.zero_segment(100, run_len).unwrap();
        let syncs = points.reached("sync");
        assert!(syncs > 0 && syncs <= most, "{syncs} syncs for {run_len} segments");
    }
}

#[test]
fn missing_foreign_and_existing_files() {
    let (dir, path) = folder();
    assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::NotFound { .. })));
    assert!(!path.exists(), "opening creates nothing");
    std::fs::write(&path, "#!/bin/sh\necho hello\n").unwrap();
    assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::Foreign { .. })));
    assert!(matches!(Pool::create(&path, &small()), Err(Error::Foreign { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"#!/bin/sh\necho hello\n", "foreign files stay as they are");
    let mut disk_image = vec![0; 8192];
    disk_image[4000] = 1;
    std::fs::write(&path, &disk_image).unwrap();
    assert!(matches!(Pool::create(&path, &small()), Err(Error::Foreign { .. })));
    let second = dir.path().join("second");
    drop(born(&second, &small()));
    assert!(matches!(Pool::create(&second, &small()), Err(Error::AlreadyExists { .. })));
    Pool::create(&second, &CreateOptions { overwrite_unborn: true, ..small() }).unwrap();
    assert!(matches!(Pool::open(&second, &OpenOptions::new()), Err(Error::HalfCreated { .. })));
}

#[test]
fn half_created_pools_are_refused_and_may_be_created_again() {
    let (_dir, path) = folder();
    for medium in [MediumChoice::File, MediumChoice::ShadowFile] {
        let o = CreateOptions { medium, overwrite_unborn: true, ..small() };
        drop(Pool::create(&path, &o).unwrap());
        assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::HalfCreated { .. })));
        drop(born(&path, &CreateOptions { medium, ..small() }));
        Pool::open(&path, &OpenOptions { medium, ..OpenOptions::new() }).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::write(&path, []).unwrap();
    assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::HalfCreated { .. })));
}

#[test]
fn truncated_files_are_refused() {
    let (_dir, path) = folder();
    let pool = born(&path, &on_file());
    let full = pool.len_mapped();
    drop(pool);
    for len in [full - 1, full / 2, 4096, 100, 8] {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        let refused = Pool::open(&path, &OpenOptions::new());
        assert!(matches!(refused, Err(Error::ShortFile { found, .. }) if found == len), "{len}: {refused:?}");
    }
}

/// A salvage reads a short file up to its end; everything behind is zero, and the file stays as it is.
#[test]
fn a_truncated_file_can_be_salvaged() {
    let (_dir, path) = folder();
    let pool = born(&path, &on_file());
    pool.commit_descriptor(0, &super::active(5)).unwrap();
    let (first, last, full) = (pool.segment_offset(0), pool.segment_offset(15), pool.len_mapped());
    // SAFETY: the segments are mapped and only this thread has the pool.
    unsafe { [first, last].into_iter().for_each(|off| pool.write(off, &[1; 8])) };
    pool.sync().unwrap();
    drop(pool);
    let o = OpenOptions { salvage: true, medium: MediumChoice::PrivateCopy, ..OpenOptions::new() };
    for len in [full - 1, last + 1, last, first + 5000, first] {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        let refused = Pool::open(&path, &OpenOptions { medium: MediumChoice::PrivateCopy, ..OpenOptions::new() });
        assert!(matches!(refused, Err(Error::ShortFile { .. })), "{refused:?}");
        let pool = Pool::open(&path, &o).unwrap();
        assert!(pool.salvage_notes()[0].contains("what is behind its end is missing"), "{:?}", pool.salvage_notes());
        assert_eq!((pool.segment_count(), pool.descriptor(0).unwrap()), (16, super::active(5)));
        assert_eq!((pool.load_u64(first) != 0, pool.load_u64(last) != 0), (len > first, len > last), "{len}");
        pool.commit_descriptor(0, &super::active(6)).unwrap();
        pool.store_u64(full - 8, 7);
        drop(pool);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
    }
}

#[test]
fn damage_on_disk_is_found() {
    let (_dir, path) = folder();
    drop(born(&path, &on_file()));
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff], 64 + 48).unwrap();
    let message = Pool::open(&path, &OpenOptions::new()).unwrap_err().to_string();
    assert!(message.contains("damaged") && message.contains("offset 64") && message.contains("node0.pool"), "{message}");
}

const CHILD: &str = "HITHER_TEST_CHILD_POOL";

/// Runs this test binary as a child with one test; the pool's path is in the environment.
fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, path);
    command
}

#[test]
fn child_tries_to_open() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    println!("RESULT {}", Pool::open(Path::new(&path), &OpenOptions::new()).map_or_else(|e| e.to_string(), |_| "opened".into()));
}

#[test]
fn a_second_process_is_locked_out_until_the_first_closes() {
    let (_dir, path) = folder();
    let pool = born(&path, &on_file());
    let again = Pool::open(&path, &OpenOptions::new());
    assert!(matches!(again, Err(Error::Locked { .. })), "{again:?}");
    let run = || {
        let output = child("pool::tests::files::child_tries_to_open", &path).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let refused = run();
    assert!(refused.contains("is in use"), "{refused}");
    drop(pool);
    let opened = run();
    assert!(opened.contains("RESULT opened"), "{opened}");
}

#[test]
fn readers_share_and_change_nothing() {
    let (_dir, path) = folder();
    drop(born(&path, &on_file()));
    let before = std::fs::read(&path).unwrap();
    let o = OpenOptions { medium: MediumChoice::PrivateCopy, ..OpenOptions::new() };
    let (first, second) = (Pool::open(&path, &o).unwrap(), Pool::open(&path, &o).unwrap());
    assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::Locked { .. })));
    first.mark_open(1).unwrap();
    first.zero_segment(0, 1).unwrap();
    assert_eq!((first.superblock().open_count, second.superblock().open_count), (1, 0));
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn a_full_disk_is_an_error_before_anything_changes() {
    let (_dir, path) = folder();
    let points = Failpoints::new();
    let o = CreateOptions { failpoints: Some(points.clone()), ..on_file() };
    points.arm("fallocate", FailAt { skip: 0, count: 1, errno: libc::ENOSPC });
    assert!(matches!(Pool::create(&path, &o), Err(Error::DiskFull { .. })));
    assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::HalfCreated { .. })));
    let pool = born(&path, &o);
    let length = || std::fs::metadata(&path).unwrap().len();
    let before = length();
    points.arm("fallocate", FailAt { skip: 0, count: 1, errno: libc::ENOSPC });
    assert!(matches!(pool.grow(4), Err(Error::DiskFull { .. })));
    assert_eq!((pool.segment_count(), length(), pool.is_poisoned()), (16, before, false));
    points.arm("grow", FailAt { skip: 0, count: 1, errno: libc::EIO });
    assert!(matches!(pool.grow(4), Err(Error::Io { .. })));
    points.arm("mmap_short", FailAt { skip: 0, count: 1, errno: libc::ENOMEM });
    assert!(matches!(pool.grow(4), Err(Error::Io { .. })));
    assert_eq!(pool.segment_count(), 16);
    assert_eq!(pool.grow(4).unwrap(), 20, "and the next attempt works");
}

#[test]
fn only_what_was_never_born_and_belongs_to_nobody_is_discarded() {
    let (_dir, path) = folder();
    let unfinished = Pool::create(&path, &on_file()).unwrap();
    assert!(matches!(Pool::discard_unborn(&path), Err(Error::Locked { .. })));
    drop(unfinished);
    Pool::discard_unborn(&path).unwrap();
    assert!(!path.exists());
    drop(born(&path, &on_file()));
    Pool::discard_unborn(&path).unwrap();
    drop(Pool::open(&path, &OpenOptions::new()).unwrap());
    std::fs::write(&path, b"something else").unwrap();
    Pool::discard_unborn(&path).unwrap();
    assert!(path.exists());
}

#[test]
fn a_really_full_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| Command::new("mount").args(args).arg(dir.path()).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if !mount(&["-t", "tmpfs", "-o", "size=1m", "none"]) {
        skipped("without_mounting");
        return;
    }
    let path = dir.path().join("pool");
    let mut o = small();
    o.max_bytes = 8 << 20;
    let pool = born(&path, &o);
    let full = pool.grow(1000);
    let survived = pool.grow(1);
    drop(pool);
    let reopened = Pool::open(&path, &OpenOptions::new()).map(|p| p.segment_count());
    o.capacity_bytes = 4 << 20;
    let too_large = Pool::create(&dir.path().join("large"), &o);
    assert!(Command::new("umount").arg(dir.path()).status().is_ok_and(|s| s.success()));
    assert!(matches!(full, Err(Error::DiskFull { .. })), "{full:?}");
    assert_eq!((survived.unwrap(), reopened.unwrap()), (17, 17));
    assert!(matches!(too_large, Err(Error::DiskFull { .. })), "{too_large:?}");
}

#[test]
fn a_failed_sync_poisons_until_reopened() {
    let (_dir, path) = folder();
    let points = Failpoints::new();
    let pool = born(&path, &CreateOptions { failpoints: Some(points.clone()), ..on_file() });
    pool.sync().unwrap();
    points.arm("sync", FailAt { skip: 0, count: 1, errno: libc::EIO });
    assert!(matches!(pool.sync(), Err(Error::SyncFailed { .. })));
    assert!(pool.is_poisoned());
    assert!(matches!(pool.sync(), Err(Error::SyncFailed { .. })), "never retried as if clean");
    assert_eq!(points.reached("sync"), 1);
    assert!(matches!(pool.commit_descriptor(0, &active(1)), Err(Error::SyncFailed { .. })));
    assert!(matches!(pool.set_settled(5), Err(Error::SyncFailed { .. })));
    assert!(matches!(pool.persist(0, 8), Err(Error::SyncFailed { .. })));
    assert!(matches!(pool.grow(1), Err(Error::SyncFailed { .. })));
    drop(pool);
    let pool = Pool::open(&path, &OpenOptions::new()).unwrap();
    assert!(!pool.is_poisoned());
    pool.commit_descriptor(0, &active(1)).unwrap();
}

#[test]
fn a_pool_used_before_it_is_born_is_still_half_created() {
    let (_dir, path) = folder();
    let pool = Pool::create(&path, &on_file()).unwrap();
    pool.set_settled(9).unwrap();
    pool.set_clock_ms(9).unwrap();
    pool.mark_open(1).unwrap();
    drop(pool);
    assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::HalfCreated { .. })));
    let pool = born(&path, &on_file());
    assert_eq!((pool.settled(), pool.catalogue().unwrap()), (0, vec![]), "starting over leaves nothing of the first attempt");
}

/// Creation writes page 0 only. Data behind it without a magic belongs to a pool that lost its first bytes, and is never overwritten.
#[test]
fn data_without_a_magic_is_damage_and_stays() {
    let (_dir, path) = folder();
    let pool = Pool::create(&path, &on_file()).unwrap();
    pool.set_catalogue(b"keyspaces").unwrap();
    drop(pool);
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(Pool::open(&path, &OpenOptions::new()), Err(Error::DamagedSuperblock { what: "the magic", .. })));
    let over = CreateOptions { overwrite_unborn: true, ..on_file() };
    assert!(matches!(Pool::create(&path, &over), Err(Error::DamagedSuperblock { .. })));
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn tmpfs_is_volatile_or_an_emulation() {
    let Some(dir) = on_tmpfs() else { return };
    let path = dir.path().join("pool");
    let pool = born(&path, &small());
    assert_eq!((pool.medium().kind, pool.medium().durable, pool.needs_flush()), (MediumKind::Volatile, false, false));
    drop(pool);
    let o = OpenOptions { medium: MediumChoice::ForcedDax, ..OpenOptions::new() };
    let pool = Pool::open(&path, &o).unwrap();
    let medium = pool.medium();
    assert_eq!((medium.kind, medium.domain, medium.durable), (MediumKind::FsDax, PersistenceDomain::Adr, false));
    assert!(pool.needs_flush());
    pool.commit_descriptor(0, &active(1)).unwrap();
}

#[test]
fn forced_dax_on_a_disk_is_refused() {
    let (_dir, path) = folder();
    let probe = born(&path, &small());
    if probe.medium().kind != MediumKind::File {
        return skipped("without_disk");
    }
    drop(probe);
    let mut o = OpenOptions { medium: MediumChoice::ForcedDax, ..OpenOptions::new() };
    let refused = Pool::open(&path, &o).unwrap_err();
    assert!(matches!(refused, Error::NotDurable { .. }), "{refused}");
    o.allow_not_durable = true;
    assert!(!Pool::open(&path, &o).unwrap().medium().durable);
}

/// Runs in a child: persists one word, stores another without persisting it, and is killed by its parent.
#[test]
fn child_writes_and_waits_to_be_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let emulate = std::env::var("HITHER_TEST_EMULATE").map(|e| if e == "file" { Emulate::File } else { Emulate::Adr }).ok();
    let pool = born(Path::new(&path), &CreateOptions { medium: MediumChoice::ShadowFile, emulate, ..small() });
    let (a, b, c) = (pool.segment_offset(0), pool.segment_offset(1), pool.segment_offset(2));
    // SAFETY: the segments are mapped and only this thread has the pool.
    unsafe {
        pool.write_words(a, &[1, 2]);
        pool.flush(a, 16);
        pool.write_streaming(c, &[3; 100]);
    }
    pool.fence();
    pool.sync().unwrap();
    // SAFETY: as above.
    unsafe { pool.write_words(b, &[9]) };
    pool.flush(b, 8);
    println!("READY");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn killing_a_shadow_file_process_equals_a_power_loss() {
    use std::io::{BufRead, BufReader};
    for emulate in ["adr", "file"] {
        let (_dir, path) = folder();
        let mut process = child("pool::tests::files::child_writes_and_waits_to_be_killed", &path)
            .env("HITHER_TEST_EMULATE", emulate)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("READY")));
        process.kill().unwrap();
        assert_eq!(process.wait().unwrap().signal(), Some(libc::SIGKILL));
        let pool = Pool::open(&path, &OpenOptions { medium: MediumChoice::ShadowFile, ..OpenOptions::new() }).unwrap();
        let word = |segment, i: u64| pool.load_u64(pool.segment_offset(segment) + i * 8);
        assert_eq!((word(0, 0), word(0, 1)), (1, 2), "{emulate}: persisted");
        assert_eq!((word(2, 0), word(2, 12)), (0x0303_0303_0303_0303, 0x0303_0303), "{emulate}: streamed and fenced");
        assert_eq!(word(1, 0), 0, "{emulate}: flushed but not fenced or synced");
    }
}

#[test]
fn shadow_file_syncs_of_many_threads_lose_nothing() {
    let (_dir, path) = folder();
    let o = CreateOptions { medium: MediumChoice::ShadowFile, emulate: Some(Emulate::File), ..small() };
    let pool = born(&path, &o);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (pool, path) = (&pool, &path);
            s.spawn(move || {
                let file = std::fs::File::open(path).unwrap();
                for round in 1..200u64 {
                    let off = pool.segment_offset(0) + t * 8;
                    pool.store_u64(off, round);
                    pool.sync().unwrap();
                    let mut word = [0; 8];
                    file.read_exact_at(&mut word, off).unwrap();
                    assert_eq!(u64::from_le_bytes(word), round);
                }
            });
        }
    });
}

/// Notices if two syncs are ever under way at once.
#[derive(Default)]
struct Watch {
    syncs: AtomicU32,
    overlapped: AtomicBool,
}

impl Tracer for Watch {
    fn store(&self, _: u64, _: &[u8], _: StoreKind) {}
    fn flush(&self, _: u64, _: usize) {}
    fn fence(&self) {}
    fn sync(&self, phase: SyncPhase) {
        if phase == SyncPhase::Begin {
            self.overlapped.fetch_or(self.syncs.fetch_add(1, Ordering::SeqCst) > 0, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        } else {
            self.syncs.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Regression: the kernel reports a failed write once. Of two concurrent syncs, the one without the report would have succeeded.
#[test]
fn syncs_come_one_after_the_other() {
    let (_dir, path) = folder();
    drop(born(&path, &on_file()));
    let watch = Arc::new(Watch::default());
    let options = OpenOptions { medium: MediumChoice::File, tracer: Some(watch.clone()), ..OpenOptions::new() };
    let pool = Pool::open(&path, &options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let pool = &pool;
            scope.spawn(move || {
                (0..20).for_each(
                    |round| if thread % 2 == 0 { pool.sync().unwrap() } else { pool.set_clock_ms(thread * 100 + round).unwrap() },
                );
            });
        }
    });
    assert!(!watch.overlapped.load(Ordering::SeqCst));
}

/// Regression: a checkpoint and a collector settled at the same time. The older version, stored later, undid the newer one, so a recovery
/// would have counted, and dropped, batches that had been settled.
#[test]
fn the_settled_version_never_goes_back() {
    let (_dir, path) = folder();
    let pool = born(&path, &on_file());
    pool.set_settled(70).unwrap();
    pool.set_settled(50).unwrap();
    assert_eq!(pool.settled(), 70);
    drop(pool);
    assert_eq!(Pool::open(&path, &OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() }).unwrap().settled(), 70);
}

#[test]
fn what_is_zero_is_known_with_and_without_reading() {
    for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let o = CreateOptions { medium: MediumChoice::File, ..small() };
        let pool = Pool::create(&dir.path().join("pool"), &o).unwrap();
        let (start, bytes) = (pool.segment_offset(1), 3 * pool.segment_bytes());
        assert!(pool.is_zero(start, bytes).unwrap() && pool.is_zero(start, 64).unwrap(), "fresh");
        for off in [start, start + 63, start + bytes - 1] {
            // SAFETY: the segments are mapped, and only this thread has the pool.
            unsafe { pool.write(off, &[1]) };
            assert_eq!((pool.is_zero(start, bytes).unwrap(), pool.is_zero(start, 64).unwrap()), (false, off >= start + 64), "{off}");
            assert!(pool.is_zero(start + bytes, 64).unwrap() && pool.is_zero(off + 1, 1).unwrap());
            // SAFETY: as above.
            unsafe { pool.write(off, &[0]) };
            assert!(pool.is_zero(start, bytes).unwrap(), "written with zeros");
        }
    }
}
