//! Stores that are opened only to be read: nothing reaches the files, and several processes may look at them at once.

use crate::common::{self, get, put};
use hither_engine::{CheckpointMode, Condition, Durability, Error, ErrorKind, Kind, Options, Store, WriteOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

fn on(dir: &Path) -> Options {
    Options { paths: vec![(None, dir.to_owned())], durability: Durability::Sync, ..common::small() }
}

fn reading(dir: &Path) -> Options {
    Options { read_only: true, background: true, ..on(dir) }
}

/// Returns every file with its content.
fn bytes(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

/// Puts 2,000 keys into each of two keyspaces, overwrites a third of them and deletes a fifth.
fn fill(store: &Store) {
    for (name, kind) in [("ordered", Kind::Ordered), ("hash", Kind::Hash)] {
        let keyspace = store.create_keyspace(name, kind).unwrap();
        (0..2_000u64).for_each(|key| put(store, &keyspace, &key.to_be_bytes(), b"first"));
        (0..2_000u64).step_by(3).for_each(|key| put(store, &keyspace, &key.to_be_bytes(), b"second"));
        (0..2_000u64).step_by(5).for_each(|key| store.write_wait(&keyspace, &key.to_be_bytes(), None).map(drop).unwrap());
    }
}

/// A directory with a store that was filled and closed.
fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on(dir.path())).unwrap();
    fill(&store);
    store.close().unwrap();
    drop(store);
    dir
}

fn assert_filled(store: &Store) {
    for name in ["ordered", "hash"] {
        let keyspace = store.open_keyspace(name).unwrap();
        for key in 0..2_000u64 {
            let expected = if key % 5 == 0 { None } else { Some(if key % 3 == 0 { &b"second"[..] } else { b"first" }) };
            assert_eq!(get(store, &keyspace, &key.to_be_bytes()).as_deref(), expected, "{key} of {name}");
        }
    }
}

fn refused<T>(outcome: hither_engine::Result<T>) {
    match outcome {
        Err(error @ Error::OpenedReadOnly) => assert_eq!(error.kind(), ErrorKind::ReadOnly),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("was done"),
    }
}

fn assert_refuses_writes(store: &Store) {
    for name in ["ordered", "hash"] {
        let keyspace = store.open_keyspace(name).unwrap();
        refused(store.write_wait(&keyspace, &1u64.to_be_bytes(), Some(b"third")));
        refused(store.write_wait(&keyspace, b"new", Some(b"third")));
        refused(store.write_wait(&keyspace, &1u64.to_be_bytes(), None));
    }
    refused(store.create_keyspace("new", Kind::Hash).map(drop));
    refused(store.drop_keyspace("hash"));
    refused(store.swap_keyspaces(&[("hash", "ordered")]));
    refused(store.reclaim());
    refused(store.compact(0.5, |_| std::ops::ControlFlow::Continue(())));
    refused(store.checkpoint());
    store.sync().expect("nothing is waiting to be made durable");
}

/// After a clean close, and after a crash, from which the store recovers in memory: every read is right, every write is
/// refused, and not a byte of the directory changes.
#[test]
fn reading_changes_no_byte_and_writes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on(dir.path())).unwrap();
    fill(&store);
    let crashed = common::crash(dir.path());
    store.close().unwrap();
    drop(store);
    for dir in [dir.path(), crashed.path()] {
        let before = bytes(dir);
        for _ in 0..2 {
            let store = Store::open(reading(dir)).unwrap();
            assert_filled(&store);
            assert_refuses_writes(&store);
            assert_filled(&store);
            assert!(store.check().unwrap().is_sound());
            store.close().unwrap();
            refused(store.write_wait(&store.open_keyspace("hash").unwrap(), b"new", Some(b"third")));
        }
        assert!(bytes(dir) == before, "a file has changed");
        let store = Store::open(on(dir)).unwrap();
        assert_filled(&store);
        put(&store, &store.open_keyspace("hash").unwrap(), b"new", b"third");
    }
}

#[test]
fn a_clean_store_is_opened_from_its_checkpoint() {
    let dir = filled();
    let by_reading = Store::open(reading(dir.path())).unwrap();
    let recovery = by_reading.recovery();
    assert_eq!((recovery.checkpoint_refused.as_str(), recovery.entries), ("", 0), "the checkpoint was not used");
    assert_filled(&by_reading);
}

/// The statistics of checkpoints are those of the store, not of a process that only looks at it.
#[test]
fn checkpoints_are_told_of_as_by_who_may_write() {
    let dir = filled();
    let told = |options: Options| {
        let store = Store::open(options).unwrap();
        let told = store.stats().checkpoints;
        (told.enabled, told.present, told.keys, told.scan_bytes)
    };
    let read = told(reading(dir.path()));
    assert_eq!(read, told(on(dir.path())));
    assert!(read.0 && read.1 && read.2 > 0);
    let without = Options { checkpoints: CheckpointMode::Off, ..reading(dir.path()) };
    assert!(!told(without).0);
}

/// Readers share the store, and exclude writers as writers exclude them.
#[test]
fn several_read_at_once_and_nobody_writes_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on(dir.path())).unwrap();
    fill(&store);
    let locked = |options| match Store::open(options).map(drop) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Locked, "{error}"),
        Ok(()) => panic!("opened beside another"),
    };
    locked(reading(dir.path()));
    drop(store);
    let readers: Vec<Store> = (0..3).map(|_| Store::open(reading(dir.path())).unwrap()).collect();
    locked(on(dir.path()));
    readers.iter().for_each(assert_filled);
    drop(readers);
    drop(Store::open(on(dir.path())).unwrap());
}

#[test]
fn nothing_is_made_where_there_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    for place in [dir.path().to_owned(), dir.path().join("absent")] {
        let error = Store::open(reading(&place)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert!(bytes(dir.path()).is_empty() && !dir.path().join("absent").exists());
    let in_memory = Options { in_memory: true, paths: Vec::new(), ..reading(dir.path()) };
    let error = Store::open(in_memory).map(drop).unwrap_err();
    assert!(matches!(&error, Error::Config(what) if what.contains("nothing to be read")), "{error}");
}

/// Expired keys are not shown, although nobody deletes them; nor are keys that expire meanwhile.
#[test]
fn keys_expire_before_the_eyes_of_who_reads() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    let lives = |ms| WriteOptions::new().ttl(Duration::from_millis(ms));
    let write = |key: &[u8], ms| store.write(&keyspace, key, Some(b"v"), Condition::None, &lives(ms)).unwrap().2.wait().unwrap();
    write(b"soon", 1);
    write(b"late", 1_000_000_000);
    drop((keyspace, store));
    std::thread::sleep(Duration::from_millis(2));
    let before = bytes(dir.path());
    let store = Store::open(reading(dir.path())).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    assert_eq!((get(&store, &keyspace, b"soon"), get(&store, &keyspace, b"late")), (None, Some(b"v".to_vec())));
    assert_eq!(store.sweep_expired(), 0);
    store.persist_expiries().unwrap();
    drop((keyspace, store));
    assert!(bytes(dir.path()) == before, "a file has changed");
}
