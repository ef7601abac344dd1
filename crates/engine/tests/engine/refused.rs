//! Operations that are refused half-way leave nothing behind that does harm: batches that found no space, changes of
//! the catalogue whose sync failed.

use crate::common::{crash, get, put, small};
use hither_engine::{
    Batch, CheckpointMode, CollectorKind, Condition, Durability, ErrorKind, Kind, MediumChoice, Options, RestartSource, Store, WriteOptions,
};
use hither_pmem::{FailAt, Failpoints};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A store on files whose syncs can be made to fail, and its directory.
fn on_files(options: Options) -> (TempDir, Arc<Failpoints>, Store) {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let paths = vec![(None, dir.path().to_owned())];
    let store = Store::open(Options { paths, medium: MediumChoice::File, failpoints: Some(points.clone()), ..options }).unwrap();
    (dir, points, store)
}

/// A batch that finds no space leaves a dead tombstone. The next write of the key must link to the entry that it
/// replaces, not to that tombstone: a walk ends there, and what is below would come back.
#[test]
fn an_abandoned_delete_is_no_parent() {
    let dir = tempfile::tempdir().unwrap();
    let options = |dir: &Path| Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        collector: CollectorKind::Chain,
        durability: Durability::Process,
        space_patience: Duration::ZERO,
        checkpoints: CheckpointMode::Off,
        shards: 1,
        ..small()
    };
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    let stay = store.create_keyspace("stay", Kind::Hash).unwrap();
    put(&store, &keyspace, b"deleted", b"it has come back");
    // The entry's segment stays: everything else in it is live.
    (0..1_000u64).for_each(|number| put(&store, &stay, &(1 << 40 | number).to_be_bytes(), &[7; 40]));
    let mut batch = Batch::default();
    batch.delete(&keyspace, b"deleted");
    batch.put(&keyspace, b"large", &vec![1; 9 << 20], 0);
    let error = store.commit(&batch, &WriteOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    store.write_wait(&keyspace, b"deleted", None).unwrap();
    let report = store.check().unwrap();
    // The tombstone's segment goes, and the one of the entry stays.
    let mut number = 0u64;
    for round in 0..6 {
        for _ in 0..8_000 {
            number += 1;
            put(&store, &stay, &(number % 4_000).to_be_bytes(), &[round; 40]);
        }
        while store.reclaim().unwrap() > 0 {}
    }
    assert_eq!(get(&store, &keyspace, b"deleted"), None);
    let copy = crash(dir.path());
    let again = Store::open(options(copy.path())).unwrap();
    let keyspace = again.open_keyspace("keys").unwrap();
    let found = get(&again, &keyspace, b"deleted");
    assert_eq!(found, None, "it was deleted");
    assert!(report.is_sound(), "{report:?}");
}

/// A put that is abandoned must not make the store forget that the key's tombstone is not durable yet.
#[test]
fn an_abandoned_put_forgets_no_recent_delete() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        paths: vec![(None, dir.path().to_owned())],
        medium: MediumChoice::File,
        collector: CollectorKind::Chain,
        durability: Durability::Process,
        space_patience: Duration::ZERO,
        shards: 1,
        ..small()
    };
    let store = Store::open(options).unwrap();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    put(&store, &keyspace, b"deleted", b"first");
    store.write_wait(&keyspace, b"deleted", None).unwrap();
    let mut batch = Batch::default();
    batch.put(&keyspace, b"deleted", b"second", 0);
    batch.put(&keyspace, b"large", &vec![1; 9 << 20], 0);
    store.commit(&batch, &WriteOptions::new()).unwrap_err();
    put(&store, &keyspace, b"deleted", b"third");
    // If the tombstone were lost with the power, recovery would recognise the broken chain by the link of the put.
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Nobody can say whether a change of the catalogue happened if a sync of it failed. What is acknowledged afterwards
/// must not be lost because of it. Where nothing is acknowledged, the pair must be where it was before the change or
/// where it is after it (gone, if the change `drops` it). Returns whether something was acknowledged.
fn after_a_failed_change(level: Durability, skip: u64, drops: bool, change: impl Fn(&Store)) -> bool {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let options = |dir: &Path| Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        failpoints: Some(points.clone()),
        durability: level,
        ..small()
    };
    let store = Store::open(options(dir.path())).unwrap();
    let one = store.create_keyspace("one", Kind::Hash).unwrap();
    let _two = store.create_keyspace("two", Kind::Hash).unwrap();
    put(&store, &one, b"key", b"before");
    points.arm("sync", FailAt { skip, count: 1, errno: 5 });
    change(&store);
    points.disarm("sync");
    let names = ["one", "two"];
    let written =
        names.map(|name| store.open_keyspace(name).is_some_and(|keyspace| store.write_wait(&keyspace, b"key", Some(b"after")).is_ok()));
    let copy = crash(dir.path());
    let again = Store::open(options(copy.path())).unwrap();
    let found = names.map(|name| again.open_keyspace(name).and_then(|keyspace| get(&again, &keyspace, b"key")));
    let (before, after) = (Some(b"before".to_vec()), Some(b"after".to_vec()));
    let possible = match written {
        [false, false] => vec![[before.clone(), None], if drops { [None, None] } else { [None, before] }],
        _ => vec![written.map(|written| after.clone().filter(|_| written))],
    };
    assert!(possible.contains(&found), "level {level:?}, {skip} syncs, written {written:?}: {found:?}");
    written[1]
}

/// Lets each of the first syncs fail, at both levels. Some cases must be followed by an acknowledged write, and some
/// must not.
fn after_failed_changes(drops: bool, change: impl Fn(&Store)) {
    let levels = [Durability::Sync, Durability::Process].into_iter();
    let cases = levels.flat_map(|level| (0..4).map(move |skip| (level, skip)));
    let written = cases.map(|(level, skip)| after_a_failed_change(level, skip, drops, &change)).collect::<Vec<_>>();
    assert!(written.contains(&true) && written.contains(&false), "{written:?}");
}

#[test]
fn a_failed_drop_loses_nothing_acknowledged_later() {
    after_failed_changes(true, |store| drop(store.drop_keyspace("one")));
}

#[test]
fn a_failed_swap_loses_nothing_acknowledged_later() {
    after_failed_changes(false, |store| drop(store.swap_keyspaces(&[("one", "two")])));
}

/// Regression: if a sync failed for a segment that a write opened, that write was refused, and those behind it were
/// accepted as long as there was room in the open segments.
#[test]
fn writes_after_a_failed_sync_of_metadata_are_refused() {
    for level in [Durability::Sync, Durability::Process] {
        for batched in [false, true] {
            let (_dir, points, store) = on_files(Options { durability: level, ..small() });
            let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
            let write = |key: u64, batched: bool| {
                let (key, relaxed) = (key.to_be_bytes(), WriteOptions::new().durability(Durability::Process));
                if !batched {
                    return store.write(&keyspace, &key, Some(&[1; 200]), Condition::None, &relaxed).map(drop);
                }
                let mut batch = Batch::default();
                batch.put(&keyspace, &key, &[1; 200], 0);
                store.commit(&batch, &relaxed).map(drop)
            };
            (0..10).for_each(|key| write(key, false).unwrap());
            let pending = store.ticket_at(u64::MAX >> 8);
            points.arm("sync", FailAt { skip: 0, count: 1, errno: 5 });
            let (first, error) = (10..10_000).find_map(|key| write(key, batched).err().map(|error| (key, error))).unwrap();
            assert!(error.kind() == ErrorKind::SyncFailed && points.reached("sync") >= 1, "{error}");
            let accepted = (first..first + 50).filter(|key| write(*key, key % 2 == 0).is_ok()).count();
            assert_eq!(accepted, 0, "of 50 writes behind the failure, at level {level:?}; batched: {batched}");
            assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::SyncFailed);
        }
    }
}

/// The same, if a thread in the background meets the failed sync.
#[test]
fn writes_after_a_failed_seal_are_refused() {
    let (_dir, points, store) = on_files(small());
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..1_000u64).for_each(|key| put(&store, &keyspace, &key.to_be_bytes(), &[1; 200]));
    store.sync().unwrap();
    // The sync of what is sealed succeeds; that of the segment's descriptor fails.
    points.arm("sync", FailAt { skip: 1, count: 1, errno: 5 });
    assert_eq!(store.reclaim().unwrap_err().kind(), ErrorKind::SyncFailed);
    let refused = store.write_wait(&keyspace, b"key", Some(b"value")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SyncFailed);
    assert_eq!(get(&store, &keyspace, &7u64.to_be_bytes()).as_deref(), Some(&[1; 200][..]), "reads go on");
}

/// A process that removed a checkpoint, or put a newer one in its place, may have been killed before that was durable.
/// A checkpoint that is found is not used before the directory is synced: a power loss could bring the older one back
/// later, when what it names has been deleted.
#[test]
fn a_checkpoint_counts_only_in_a_directory_that_is_synced() {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let options = |dir: &Path| Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        failpoints: Some(points.clone()),
        ..small()
    };
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    (0..1_000u64).for_each(|key| put(&store, &keyspace, &key.to_be_bytes(), b"value"));
    assert!(store.checkpoint().unwrap());
    for (fails, source) in [(false, RestartSource::Checkpoint), (true, RestartSource::Scan)] {
        let copy = crash(dir.path());
        if fails {
            points.arm("checkpoint_directory", FailAt { skip: 0, count: 1, errno: 5 });
        }
        let again = Store::open(options(copy.path())).unwrap();
        points.disarm("checkpoint_directory");
        assert_eq!((again.recovery().source, again.recovery().checkpoint_refused.is_empty()), (source, !fails));
        assert_eq!(again.open_keyspace("keys").unwrap().len(), 1_000);
    }
}

/// Regression: the error that said why a checkpoint could not be taken did not name the file.
#[test]
fn a_checkpoint_that_cannot_be_written_names_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options { paths: vec![(None, dir.path().to_owned())], medium: MediumChoice::File, ..small() }).unwrap();
    let draft = dir.path().join("checkpoint.hither.tmp");
    std::fs::create_dir(&draft).unwrap();
    let error = store.checkpoint().unwrap_err().to_string();
    assert!(error.contains(draft.to_str().unwrap()), "{error}");
    assert!(store.stats().checkpoints.failure.contains(draft.to_str().unwrap()));
}

/// Regression: the failure was reported as an error of the checkpoint, after which writes go on, not as one of the
/// store, which accepts none any more.
#[test]
fn a_sync_that_fails_within_a_checkpoint_is_told_as_that() {
    let mut failed = 0;
    for skip in 0..8 {
        let (_dir, points, store) = on_files(small());
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let relaxed = WriteOptions::new().durability(Durability::Process);
        // Several segments, with full ones among them.
        for key in 0..1_000u64 {
            store.write(&keyspace, &key.to_be_bytes(), Some(&[1; 200]), Condition::None, &relaxed).map(drop).unwrap();
        }
        points.arm("sync", FailAt { skip, count: 1, errno: 5 });
        let Err(error) = store.checkpoint() else { continue };
        failed += 1;
        assert_eq!(error.kind(), ErrorKind::SyncFailed, "sync {skip}: {error}");
        assert_eq!(store.write_wait(&keyspace, b"key", Some(b"again")).unwrap_err().kind(), ErrorKind::SyncFailed);
    }
    assert!(failed > 0, "a checkpoint needs a sync");
}

/// Regression: of two calls that closed a store, only the first was told of a sync that failed behind the last commit;
/// for the other one all was well.
#[test]
fn a_close_that_failed_fails_for_all() {
    let mut failed = 0;
    for skip in 0..12 {
        let (_dir, points, store) = on_files(small());
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        (0..1_000u64).for_each(|key| assert!(!store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 200])).unwrap()));
        points.arm("sync", FailAt { skip, count: 1, errno: 5 });
        let Err(error) = store.close() else { continue };
        failed += 1;
        let again = store.close().expect_err("the store is not closed cleanly");
        assert_eq!((error.kind(), again.kind()), (ErrorKind::SyncFailed, ErrorKind::SyncFailed), "sync {skip}: {error}, {again}");
    }
    assert!(failed > 2, "a close makes several syncs: {failed}");
}
