//! Failures on demand: what the store reports, what it still does, and what it holds afterwards.

#![deny(unsafe_code)]

use crate::common::shm;
use hither_engine::{Condition, Durability, Error, ErrorKind, KeyspaceHandle, Kind, MediumChoice, Options, Store, WriteOptions};
use hither_pmem::{FailAt, Failpoints};
use hither_topology::Topology;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ALWAYS: u64 = u64::MAX;

fn options(dir: &Path, points: &Arc<Failpoints>) -> Options {
    Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        capacity: 256 << 10,
        max_capacity: 16 << 20,
        segment_bytes: 16 << 10,
        failpoints: Some(points.clone()),
        ..Options::default()
    }
}

fn put(store: &Store, ks: &KeyspaceHandle, key: u64, value: &[u8]) -> Result<(), Error> {
    store.write_wait(ks, &key.to_be_bytes(), Some(value)).map(drop)
}

fn get(store: &Store, ks: &KeyspaceHandle, key: u64) -> Result<Option<Vec<u8>>, Error> {
    store.get_with(ks, &key.to_be_bytes(), <[u8]>::to_vec)
}

fn fail(errno: i32, skip: u64, count: u64) -> FailAt {
    FailAt { skip, count, errno }
}

#[test]
fn a_full_disk_at_creation_leaves_room_for_another_try() {
    let (dir, points) = (shm(), Failpoints::new());
    points.arm("fallocate", fail(libc::ENOSPC, 0, ALWAYS));
    let error = Store::open(options(dir.path(), &points)).err().expect("no space");
    assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
    assert!(error.to_string().contains("node0.hither"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a creation that failed left something");
    points.disarm("fallocate");
    let store = Store::open(options(dir.path(), &points)).unwrap();
    store.create_keyspace("k", Kind::Ordered).unwrap();
}

#[test]
fn a_store_whose_directories_cannot_be_made_durable_is_not_created() {
    let (dir, points) = (shm(), Failpoints::new());
    let store = dir.path().join("above").join("store");
    // Two directories are created, and the name of the lowest is synced once more when the pool is created in it.
    for skip in 0..3 {
        points.arm("sync_directory", fail(libc::EIO, skip, ALWAYS));
        let error = Store::open(options(&store, &points)).err().expect("a failed sync");
        assert!(error.to_string().contains("above"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a creation that failed left something");
    }
    points.disarm("sync_directory");
    Store::open(options(&store, &points)).unwrap().create_keyspace("k", Kind::Ordered).unwrap();
}

#[test]
fn a_full_disk_at_growth_refuses_and_goes_on_later() {
    let (dir, points) = (shm(), Failpoints::new());
    let store = Store::open(options(dir.path(), &points)).unwrap();
    let ks = store.create_keyspace("k", Kind::Hash).unwrap();
    points.arm("fallocate", fail(libc::ENOSPC, 0, ALWAYS));
    let mut stored = 0;
    let error = loop {
        match put(&store, &ks, stored, &[7; 1000]) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 10_000, "256 KiB took 10 MB");
    };
    assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
    assert!(stored > 100);
    for key in 0..stored {
        assert_eq!(get(&store, &ks, key).unwrap().unwrap(), [7; 1000]);
    }
    assert_eq!(get(&store, &ks, stored).unwrap(), None, "a refused put left something");
    points.disarm("fallocate");
    put(&store, &ks, stored, b"now there is room").unwrap();
    assert!(store.check().unwrap().is_sound(), "{:?}", store.check().unwrap().problems);
}

/// Found on a small file system: the reserve was counted in segments that could not be created, so deletes, overwrites
/// and compaction failed as well.
#[test]
fn a_store_on_a_full_disk_can_be_overwritten_and_emptied() {
    let (dir, points) = (shm(), Failpoints::new());
    let store = Store::open(options(dir.path(), &points)).unwrap();
    let ks = store.create_keyspace("k", Kind::Hash).unwrap();
    points.arm("fallocate", fail(libc::ENOSPC, 0, ALWAYS));
    let stored = (0..10_000).find(|key| put(&store, &ks, *key, &[0; 1000]).is_err()).expect("256 KiB take less than 10 MB");
    let delete = |key: u64| store.write_wait(&ks, &key.to_be_bytes(), None).map(drop).unwrap();
    (0..stored).step_by(3).for_each(delete);
    let kept = || (0..stored).filter(|key| key % 3 != 0);
    for round in 1..20u8 {
        kept().for_each(|key| put(&store, &ks, key, &[round; 1000]).unwrap());
    }
    let refused = put(&store, &ks, stored, &[1; 100_000]).expect_err("there is no room for more");
    assert!(refused.kind().is_lack_of_space(), "{refused}");
    for key in kept() {
        assert_eq!(get(&store, &ks, key).unwrap().unwrap(), [19; 1000], "key {key}");
        delete(key);
    }
    store.compact(0.01, |_| ControlFlow::Continue(())).unwrap();
    for key in 0..stored / 2 {
        put(&store, &ks, key, &[20; 1000]).unwrap();
    }
    assert!(store.check().unwrap().is_sound(), "{:?}", store.check().unwrap().problems);
}

/// Fail-stop: every waiter gets an error, nothing is written or acknowledged afterwards, and reads of durable data go
/// on.
#[test]
fn a_failed_sync_stops_the_store_until_it_is_opened_again() {
    let (dir, points) = (shm(), Failpoints::new());
    let durable = {
        let store = Store::open(options(dir.path(), &points)).unwrap();
        let ks = store.create_keyspace("k", Kind::Ordered).unwrap();
        (0..50).for_each(|key| put(&store, &ks, key, b"durable").unwrap());
        let pending =
            store.write(&ks, b"pending", Some(b"x"), Condition::None, &WriteOptions::new().durability(Durability::Process)).unwrap().2;
        drop(pending);
        let failing = AtomicBool::new(false);
        let acknowledged: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6u64)
                .map(|thread| {
                    let (store, ks, failing) = (&store, &ks, &failing);
                    scope.spawn(move || {
                        let mut acknowledged = Vec::new();
                        for key in (0..1_000_000).map(|i| 1000 + i * 6 + thread) {
                            let late = failing.load(Ordering::SeqCst);
                            match put(store, ks, key, b"perhaps") {
                                Ok(()) => acknowledged.push(key),
                                Err(error) => {
                                    assert_eq!(error.kind(), ErrorKind::SyncFailed, "{error}");
                                    break;
                                }
                            }
                            assert!(!late, "a write that began after the failure was acknowledged");
                        }
                        acknowledged
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(20));
            // The only failure: every later sync would succeed, and must not be believed.
            points.arm("sync", fail(libc::EIO, 0, 1));
            while points.reached("sync") < 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            failing.store(true, Ordering::SeqCst);
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for outcome in
            [put(&store, &ks, 1, b"no"), store.sync(), store.reclaim().map(drop), store.write_wait(&ks, b"pending", None).map(drop)]
        {
            assert_eq!(outcome.err().map(|error| error.kind()), Some(ErrorKind::SyncFailed));
        }
        for key in (0..50).chain(acknowledged.iter().copied()) {
            assert!(get(&store, &ks, key).unwrap().is_some(), "durable data must stay readable");
        }
        assert!(store.close().is_err(), "a poisoned store does not close cleanly");
        acknowledged
    };
    points.disarm("sync");
    let store = Store::open(options(dir.path(), &points)).unwrap();
    assert!(!store.recovery().clean);
    let ks = store.open_keyspace("k").unwrap();
    for key in (0..50).chain(durable) {
        assert!(get(&store, &ks, key).unwrap().is_some(), "key {key} was acknowledged");
    }
    put(&store, &ks, 1, b"writable again").unwrap();
}

#[test]
fn a_short_map_is_an_error() {
    let (dir, points) = (shm(), Failpoints::new());
    drop(Store::open(options(dir.path(), &points)).unwrap());
    points.arm("mmap_short", fail(libc::ENOMEM, 0, ALWAYS));
    let error = Store::open(options(dir.path(), &points)).err().expect("no memory");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    points.disarm("mmap_short");
    let store = Store::open(options(dir.path(), &points)).unwrap();
    let ks = store.create_keyspace("k", Kind::Hash).unwrap();
    points.arm("mmap_short", fail(libc::ENOMEM, 0, ALWAYS));
    let refused = (0..10_000).find_map(|key| put(&store, &ks, key, &[1; 2000]).err()).expect("growth must fail");
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    points.disarm("mmap_short");
    put(&store, &ks, 99_999, &[2; 2000]).unwrap();
    assert!(store.check().unwrap().is_sound(), "{:?}", store.check().unwrap().problems);
}

const DIR: &str = "HITHER_TEST_FAILPOINTS_DIR";

fn child(test: &str, dir: &Path) -> std::process::Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args([test, "--exact", "--nocapture"]).env(DIR, dir).stderr(Stdio::piped()).output().unwrap()
}

/// Runs in a child: reads from a pool whose file was truncated under it.
#[test]
fn child_meets_sigbus() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    hither_pmem::install_sigbus_guard();
    // Without background threads: the one that makes the pool grow would extend the file again, with zeros.
    let options = Options { background: false, ..options(Path::new(&dir), &Failpoints::new()) };
    let store = Store::open(options).unwrap();
    let ks = store.create_keyspace("k", Kind::Hash).unwrap();
    put(&store, &ks, 1, &[1; 3000]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(Path::new(&dir).join("node0.hither")).unwrap();
    // The whole file: if a huge page is cut, the rest of it may stay mapped, as zeros.
    file.set_len(0).unwrap();
    let value = get(&store, &ks, 1);
    println!("SURVIVED {value:?}");
}

#[test]
fn sigbus_names_the_pool_and_aborts() {
    let dir = shm();
    let output = child("failpoints::child_meets_sigbus", dir.path());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!out.contains("SURVIVED"), "{out}");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{out} {err}");
    assert!(err.contains("node0.hither"), "the message must name the pool: {err}");
}

#[test]
fn wrong_pools_are_told_apart() {
    let (dir, points) = (shm(), Failpoints::new());
    let two = |dir: &Path| Options { topology: Some(Arc::new(Topology::emulated(2))), ..options(dir, &points) };
    let kind = |dir: &Path| Store::open(two(dir)).err().map(|error| (error.kind(), error.to_string()));
    let store = Store::open(two(dir.path())).unwrap();
    let locked = kind(dir.path()).expect("it is open here");
    assert_eq!(locked.0, ErrorKind::Locked, "{}", locked.1);
    drop(store);
    let (first, second) = (dir.path().join("node0.hither"), dir.path().join("node1.hither"));
    let away = dir.path().join("away");
    std::fs::rename(&second, &away).unwrap();
    let missing = kind(dir.path()).expect("node 1 is missing");
    assert!(missing.0 == ErrorKind::WrongPool && missing.1.contains("node1.hither"), "{missing:?}");
    let other = shm();
    drop(Store::open(two(other.path())).unwrap());
    std::fs::copy(other.path().join("node1.hither"), &second).unwrap();
    let wrong = kind(dir.path()).expect("another store's pool");
    assert!(wrong.0 == ErrorKind::WrongPool && wrong.1.contains("node1.hither"), "{wrong:?}");
    std::fs::write(&second, b"this is a text, not a pool").unwrap();
    assert_eq!(kind(dir.path()).expect("a foreign file").0, ErrorKind::Format);
    assert_eq!(std::fs::read(&second).unwrap(), b"this is a text, not a pool", "nothing foreign is overwritten");
    std::fs::rename(&away, &second).unwrap();
    assert_eq!(kind(dir.path()), None, "whole again");
    let (good, good_second) = (std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
    // That pool knows all members but does not hold the store's catalogue: the store would seem to be empty.
    std::fs::copy(&second, &first).unwrap();
    let swapped = kind(dir.path()).expect("node 1's pool in the place of node 0's");
    assert!(swapped.0 == ErrorKind::WrongPool && swapped.1.contains("node0.hither"), "{swapped:?}");
    assert_eq!(std::fs::read(&first).unwrap(), good_second, "it was only looked at");
    let newer = [b"hitherP2", &good[8..]].concat();
    std::fs::write(&first, newer).unwrap();
    let newer = kind(dir.path()).expect("format 2");
    assert!(newer.0 == ErrorKind::Format && newer.1.contains("newer"), "{newer:?}");
    std::fs::write(&first, &good[..good.len() - 4096]).unwrap();
    assert_eq!(kind(dir.path()).expect("cut off").0, ErrorKind::Damaged);
    let empty = shm();
    let none = Options { create: false, ..two(empty.path()) };
    assert_eq!(Store::open(none).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
}

#[test]
fn panics_in_closures_release_everything() {
    let store =
        Store::open(Options { in_memory: true, capacity: 1 << 20, max_capacity: 1 << 20, segment_bytes: 16 << 10, ..Options::default() })
            .unwrap();
    let ks = store.create_keyspace("k", Kind::Ordered).unwrap();
    put(&store, &ks, 1, b"value").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let read = catch_unwind(AssertUnwindSafe(|| {
                    store.get_with(&ks, &1u64.to_be_bytes(), |_| panic!("planted")).map(|found: Option<()>| found)
                }));
                assert!(read.is_err());
                let many = catch_unwind(AssertUnwindSafe(|| store.multi_get_with(&ks, &[1u64.to_be_bytes()], |_, _| panic!("planted"))));
                assert!(many.is_err());
            });
        }
    });
    // A pin or latch left behind would stop reuse or writing.
    for round in 0..400u64 {
        for key in 0..20 {
            put(&store, &ks, key, &[round as u8; 500]).unwrap();
        }
    }
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn threads_come_and_go() {
    let store = Store::open(Options { in_memory: true, capacity: 4 << 20, segment_bytes: 16 << 10, ..Options::default() }).unwrap();
    let ks = store.create_keyspace("k", Kind::Hash).unwrap();
    for round in 0..100u64 {
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (store, ks) = (&store, &ks);
                scope.spawn(move || put(store, ks, round * 4 + thread, b"x").unwrap());
            }
        });
    }
    assert_eq!(ks.len(), 400);
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// A forked child lacks the pools' mappings: it can read and write nothing, and the parent continues.
#[test]
#[allow(unsafe_code)]
fn a_forked_child_cannot_touch_the_store() {
    let (dir, points) = (shm(), Failpoints::new());
    let store = Store::open(options(dir.path(), &points)).unwrap();
    let ks = store.create_keyspace("k", Kind::Hash).unwrap();
    put(&store, &ks, 1, b"parent's").unwrap();
    // SAFETY: the child only touches the store, which must fault, and leaves by `_exit`; an alarm ends it if it hangs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: both are async-signal-safe.
        unsafe { libc::alarm(5) };
        let _ = put(&store, &ks, 1, b"child's");
        // SAFETY: leaves without running destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writing the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "the child ended with status {status:#x}");
    assert_eq!(get(&store, &ks, 1).unwrap().unwrap(), b"parent's");
    put(&store, &ks, 2, b"goes on").unwrap();
    store.close().unwrap();
    drop(store);
    let store = Store::open(options(dir.path(), &points)).unwrap();
    let ks = store.open_keyspace("k").unwrap();
    assert_eq!(get(&store, &ks, 1).unwrap().unwrap(), b"parent's");
    assert!(store.check().unwrap().is_sound());
}
