//! Things that lie where a store is looked for or made, and are not that store: pools of other places, a checkpoint
//! without its pool, no files at all.

use crate::common::{get, put, small};
use hither_engine::{Error, ErrorKind, Kind, MediumChoice, Options, Result, Store};
use hither_pmem::{FailAt, Failpoints};
use hither_topology::Topology;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn at(places: &[(Option<u32>, &Path)]) -> Options {
    Options { paths: places.iter().map(|(node, path)| (*node, path.to_path_buf())).collect(), medium: MediumChoice::File, ..small() }
}

/// Makes a store with one key, and closes it.
fn made(places: &[(Option<u32>, &Path)]) {
    let store = Store::open(at(places)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    put(&store, &keyspace, b"key", b"value");
    store.close().unwrap();
}

fn refused(outcome: Result<Store>, parts: &[&str]) {
    let error = outcome.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongPool, "{error}");
    assert!(parts.iter().all(|part| error.to_string().contains(part)), "{parts:?}: {error}");
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// Found by hand: empty pools were made beside the old ones, and the store seemed to be empty.
#[test]
fn directories_in_another_order_make_no_new_store() {
    let root = tempfile::tempdir().unwrap();
    let [a, b, new] = ["a", "b", "new"].map(|name| root.path().join(name));
    made(&[(Some(0), &a), (Some(1), &b)]);
    let before = [files(&a), files(&b)];
    let swapped = [(Some(0), b.as_path()), (Some(1), a.as_path())];
    refused(Store::open(at(&swapped)), &["b/node1.hither is the pool of node 1", "/a was given", "give each node"]);
    refused(Store::open(at(&[(Some(0), &b)])), &["b/node1.hither", "no directory was given"]);
    refused(Store::open(at(&[(Some(0), &new), (Some(1), &a)])), &["a/node0.hither is the pool of node 0", "/new was given"]);
    refused(Store::open(Options { create: false, ..at(&swapped) }), &["b/node1.hither"]);
    // As before: the pool's name is right, and the first pool is missing.
    assert!(matches!(Store::open(at(&[(None, &b)])), Err(Error::MissingPool { node: 0, .. })));
    assert_eq!([files(&a), files(&b)], before);
    assert!(!new.exists());
    let store = Store::open(at(&[(Some(0), &a), (Some(1), &b)])).unwrap();
    assert_eq!(get(&store, &store.open_keyspace("k").unwrap(), b"key"), Some(b"value".to_vec()));
}

/// Both pools may lie in one directory, under any of its names; and what an interrupted creation has left is used.
#[test]
fn a_creation_that_was_interrupted_is_made_good() {
    let root = tempfile::tempdir().unwrap();
    let (dir, again) = (root.path().join("dir"), root.path().join("dir/../dir"));
    let both = [(Some(0), dir.as_path()), (Some(1), again.as_path())];
    std::fs::create_dir(&dir).unwrap();
    for name in ["node0.hither", "node1.hither"] {
        std::fs::write(dir.join(name), [0; 8192]).unwrap();
    }
    made(&both);
    assert!(Store::open(at(&both)).unwrap().check().unwrap().is_sound());
}

/// Found by hand: a put made an empty store in place of one whose pool was lost.
#[test]
fn a_store_whose_pool_was_lost_is_not_begun_anew() {
    let root = tempfile::tempdir().unwrap();
    let pool = root.path().join("node0.hither");
    let places = [(None, root.path())];
    made(&places);
    assert!(root.path().join("checkpoint.hither").exists());
    let content = std::fs::read(&pool).unwrap();
    let parts = ["checkpoint.hither belongs to a store whose pool", "node0.hither", "backup", "remove the checkpoint"];
    std::fs::remove_file(&pool).unwrap();
    refused(Store::open(at(&places)), &parts);
    refused(Store::open(Options { create: false, ..at(&places) }), &parts);
    assert!(!pool.exists());
    for nothing in [vec![], vec![0; content.len()]] {
        std::fs::write(&pool, &nothing).unwrap();
        refused(Store::open(at(&places)), &parts);
        assert!(std::fs::read(&pool).unwrap() == nothing);
    }
    std::fs::write(&pool, &content).unwrap();
    let store = Store::open(at(&places)).unwrap();
    assert_eq!(get(&store, &store.open_keyspace("k").unwrap(), b"key"), Some(b"value".to_vec()));
    drop(store);
    // A user who wants a new store gets it.
    std::fs::remove_file(&pool).unwrap();
    std::fs::remove_file(root.path().join("checkpoint.hither")).unwrap();
    assert!(Store::open(at(&places)).unwrap().open_keyspace("k").is_none());
}

/// Found by reading: where the other pool had no entries yet, an empty store was begun in place of one that had been in
/// use.
#[test]
fn a_pool_that_was_opened_shows_that_the_store_was_born() {
    let root = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| root.path().join(name));
    let places = [(Some(0), a.as_path()), (Some(1), b.as_path())];
    made(&places);
    std::fs::remove_file(a.join("checkpoint.hither")).unwrap();
    std::fs::write(a.join("node0.hither"), []).unwrap();
    let other = std::fs::read(b.join("node1.hither")).unwrap();
    refused(Store::open(at(&places)), &["a/node0.hither of node 0 holds nothing any more", "b/node1.hither of node 1 was in use"]);
    assert!(std::fs::read(a.join("node0.hither")).unwrap().is_empty() && std::fs::read(b.join("node1.hither")).unwrap() == other);
}

/// Found by hand: of a store with one blank pool, the message blamed the sound one or advised to create the store
/// again, and the blank file had been changed by then.
#[test]
fn a_blank_pool_is_named_and_the_others_stay() {
    let root = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| root.path().join(name));
    let topology = Arc::new(Topology::emulated(2));
    let places = [(Some(0), a.as_path()), (Some(1), b.as_path())];
    let at = |places: &_| Options { topology: Some(topology.clone()), ..at(places) };
    let store = Store::open(at(&places)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    for node in [0, 1] {
        topology.bind_current_thread(node).unwrap();
        put(&store, &keyspace, &[node as u8], b"value");
    }
    store.close().unwrap();
    drop((keyspace, store));
    std::fs::remove_file(a.join("checkpoint.hither")).unwrap();
    let pools = [a.join("node0.hither"), b.join("node1.hither")];
    let contents = pools.each_ref().map(|pool| std::fs::read(pool).unwrap());
    let blanks = [vec![], vec![0; 4096], vec![0; contents[0].len()]];
    for (node, blank) in [0, 1].into_iter().flat_map(|node| blanks.iter().map(move |blank| (node, blank))) {
        std::fs::write(&pools[node], blank).unwrap();
        let name = format!("{} of node {node} holds nothing any more", pools[node].display());
        refused(Store::open(at(&places)), &[&name, "restore it from a backup or mount its device"]);
        assert!(std::fs::read(&pools[node]).unwrap() == *blank && std::fs::read(&pools[1 - node]).unwrap() == contents[1 - node]);
        std::fs::write(&pools[node], &contents[node]).unwrap();
    }
    let store = Store::open(at(&places)).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    assert_eq!([[0], [1]].map(|key| get(&store, &keyspace, &key)), [Some(b"value".to_vec()), Some(b"value".to_vec())]);
}

fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Found by hand: opening a pipe waited for somebody to write.
#[test]
fn a_pipe_in_place_of_a_file_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let places = [(None, root.path())];
    made(&places);
    let checkpoint = root.path().join("checkpoint.hither");
    std::fs::remove_file(&checkpoint).unwrap();
    fifo(&checkpoint);
    let looks = Options { salvage: true, medium: MediumChoice::PrivateCopy, ..at(&places) };
    assert!(Store::open(looks.clone()).unwrap().open_keyspace("k").is_some());
    let store = Store::open(at(&places)).unwrap();
    assert!(store.recovery().checkpoint_refused.contains("no regular file"), "{}", store.recovery().checkpoint_refused);
    store.close().unwrap();
    drop(store);
    let pool = root.path().join("node0.hither");
    std::fs::remove_file(&pool).unwrap();
    fifo(&pool);
    for options in [looks, at(&places)] {
        let error = Store::open(options).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Format && error.to_string().contains("neither a regular file"), "{error}");
    }
}

/// Found by hand: the error neither named the directory nor said what to do.
#[test]
fn a_directory_in_place_of_a_checkpoint_is_named() {
    let root = tempfile::tempdir().unwrap();
    let places = [(None, root.path())];
    made(&places);
    for name in ["checkpoint.hither", "checkpoint.hither.tmp"] {
        let path = root.path().join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::create_dir(&path).unwrap();
        let error = Store::open(at(&places)).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(
            error.kind() == ErrorKind::Io && text.contains(&format!("{}: ", path.display())) && text.contains("move it away"),
            "{text}"
        );
        std::fs::remove_dir(&path).unwrap();
        assert!(Store::open(at(&places)).unwrap().check().unwrap().is_sound());
    }
}

/// Found by hand: the error was reported as a failed input or output, and did not say what had become of the
/// compaction.
#[test]
fn a_compaction_on_a_full_disk_says_so_and_what_it_did() {
    let (root, failpoints) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let places = [(None, root.path())];
    made(&places);
    let store = Store::open(Options { failpoints: Some(failpoints.clone()), ..at(&places) }).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    for number in 0..20_000u64 {
        put(&store, &keyspace, &(number % 100).to_be_bytes(), &[1; 100]);
    }
    failpoints.arm("checkpoint_write", FailAt { skip: 0, count: u64::MAX, errno: 28 });
    let used = || store.stats().pools[0].usage.segments - store.stats().pools[0].usage.free;
    let before = used();
    let error = store.compact(0.1, |_| std::ops::ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
    assert!(error.to_string().contains("was compacted") && error.to_string().contains("free space"), "{error}");
    assert!(used() < before / 2, "{before} segments became {}", used());
}

/// Regression: where the pool of node 1 could not be finished, it stayed and that of node 0 was removed, so that the
/// store seemed to have lost it.
#[test]
fn a_creation_that_fails_anywhere_can_begin_again() {
    for point in ["sync", "sync_directory", "fallocate", "mmap_short"] {
        let failures = (0..).take_while(|skip| creation_fails_and_begins_again(point, *skip)).count();
        assert!(failures >= 2, "each of two pools passes {point}");
    }
}

/// Creates a store of two pools in which `point` fails once, after `skip` times, if it is reached that often; then
/// creates it again. Returns whether it failed.
fn creation_fails_and_begins_again(point: &'static str, skip: u64) -> bool {
    let root = tempfile::tempdir().unwrap();
    let points = Failpoints::new();
    let options = || Options { failpoints: Some(points.clone()), ..at(&[(Some(0), root.path()), (Some(1), root.path())]) };
    points.arm(point, FailAt { skip, count: 1, errno: 5 });
    let first = Store::open(options()).map(drop);
    let failed = points.reached(point) > skip;
    points.disarm(point);
    Store::open(options()).map(drop).unwrap_or_else(|error| panic!("after {point} {skip} failed ({first:?}): {error}"));
    failed
}

/// Regression: nothing was durable of what a failed creation took back. After a power loss the pool of node 1 could be
/// there without that of node 0.
#[test]
fn the_first_pool_goes_when_the_others_are_gone_for_sure() {
    let count_syncs = |skip: u64| {
        let (roots, points) = ([0, 1].map(|_| tempfile::tempdir().unwrap()), Failpoints::new());
        points.arm("fallocate", FailAt { skip: 1, count: 1, errno: 28 });
        points.arm("sync_directory", FailAt { skip, count: u64::MAX, errno: 5 });
        let paths = [(Some(0), roots[0].path()), (Some(1), roots[1].path())];
        let error = Store::open(Options { failpoints: Some(points.clone()), ..at(&paths) }).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
        let remains = [0, 1].map(|node| roots[node].path().join(format!("node{node}.hither")).exists());
        (points.reached("sync_directory"), remains)
    };
    let (all, remains) = count_syncs(u64::MAX);
    assert_eq!(remains, [false, false]);
    // The last two syncs follow the removals, that of node 1's pool first.
    assert_eq!(count_syncs(all - 2).1, [true, false]);
}
