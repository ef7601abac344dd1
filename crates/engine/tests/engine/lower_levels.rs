//! Writes below the store's level, on a store whose reads promise durability: they are installed before they are
//! durable.

use crate::common::{get, put, small};
use hither_engine::{
    Batch, CollectorKind, Condition, Direction, Durability, KeyspaceHandle, Kind, MediumChoice, Options, ScanRange, Store, WriteOptions,
};
use std::ops::{Bound, ControlFlow};

/// Keys and values of eight bytes: the shortest reads and writes there are.
const ONE: &[u8] = b"key one.";
const TWO: &[u8] = b"key two.";

/// Runs `f` on stores whose writes at level `sync` end with a fence, and on stores where they end with a sync;
/// `batched` is for the writes below that level.
fn everywhere(f: impl Fn(&Store, &KeyspaceHandle, bool, &str)) {
    for medium in [MediumChoice::ForcedDax, MediumChoice::File] {
        for kind in [Kind::Hash, Kind::Ordered] {
            for batched in [false, true] {
                let dir = tempfile::tempdir_in("/dev/shm").unwrap();
                let paths = vec![(None, dir.path().to_owned())];
                let levels = Options { durability: Durability::Sync, collector: CollectorKind::Chain, ..small() };
                let store = Store::open(Options { medium, paths, ..levels }).unwrap();
                let keyspace = store.create_keyspace("k", kind).unwrap();
                f(&store, &keyspace, batched, &format!("{medium:?} {kind:?} batched {batched}"));
            }
        }
    }
}

/// Writes without waiting; returns the version.
fn relaxed(store: &Store, keyspace: &KeyspaceHandle, key: &[u8], value: Option<&[u8]>, batched: bool) -> u64 {
    let options = WriteOptions::new().durability(Durability::Process);
    if !batched {
        return store.write(keyspace, key, value, Condition::None, &options).unwrap().2.version();
    }
    let mut batch = Batch::default();
    match value {
        Some(value) => batch.put(keyspace, key, value, 0),
        None => batch.delete(keyspace, key),
    }
    store.commit(&batch, &options).unwrap().version()
}

/// Regression: a scan waited for the newest delete of the whole store, so that a delete in another keyspace cost each
/// group of an iterator a sync.
#[test]
fn a_scan_rests_on_deletes_of_its_own_keyspace() {
    everywhere(|store, keyspace, batched, what| {
        let other = store.create_keyspace("other", Kind::Ordered).unwrap();
        [keyspace, &other].iter().for_each(|keyspace| put(store, keyspace, ONE, b"value 1."));
        store.sync().unwrap();
        let version = relaxed(store, keyspace, ONE, None, batched);
        let everything = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: usize::MAX };
        store.scan(&other, &everything, |_, _| ControlFlow::Continue(())).unwrap();
        store.for_each(&other, |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(store.scan_deferred(&other, &everything, |_, _, _| ControlFlow::Continue(())).unwrap(), 0, "{what}");
        assert!(!store.ticket_at(version).is_durable(), "{what}: a delete of another keyspace");

        let version = relaxed(store, &other, ONE, None, batched);
        assert!(store.scan_deferred(&other, &everything, |_, _, _| ControlFlow::Continue(())).unwrap() >= version, "{what}");
        store.scan(&other, &everything, |_, _| ControlFlow::Continue(())).unwrap();
        assert!(store.ticket_at(version).is_durable(), "{what}: a delete that a scan has told of");
    });
}

/// What a read returns is durable, whoever wrote it, and however the read finds that out.
#[test]
fn what_is_read_is_durable() {
    everywhere(|store, keyspace, batched, what| {
        let is_durable = |version| store.ticket_at(version).is_durable();
        let count = || {
            let mut keys = 0;
            let visit = |_: &[u8], _: &[u8]| {
                keys += 1;
                ControlFlow::Continue(())
            };
            store.for_each(keyspace, visit).unwrap();
            keys
        };
        put(store, keyspace, ONE, b"value 1.");
        put(store, keyspace, TWO, b"value 2.");

        let version = relaxed(store, keyspace, ONE, Some(b"value 3."), batched);
        assert!(!is_durable(version), "{what}: a put that nobody waited for");
        assert_eq!(get(store, keyspace, ONE).as_deref(), Some(&b"value 3."[..]));
        assert!(is_durable(version), "{what}: a put that was read");

        let version = relaxed(store, keyspace, ONE, None, batched);
        assert!(!is_durable(version), "{what}: a delete that nobody waited for");
        assert_eq!(get(store, keyspace, ONE), None);
        assert!(is_durable(version), "{what}: a delete that a get has told of");

        let version = relaxed(store, keyspace, TWO, None, batched);
        assert_eq!(count(), 0, "{what}");
        assert!(is_durable(version), "{what}: a delete that a scan has told of");

        put(store, keyspace, ONE, b"value 4.");
        relaxed(store, keyspace, ONE, None, batched);
        let snapshot = store.snapshot();
        assert!(!is_durable(snapshot.version()), "{what}: a delete that nobody waited for");
        assert_eq!(snapshot.get_with(keyspace, ONE, |_| ()).unwrap(), None);
        assert!(is_durable(snapshot.version()), "{what}: a delete that a snapshot has told of");
    });
}

/// A batch of conditions alone reports what holds, so what it has seen is durable: an entry, a delete, also an expired
/// entry below which an older one lies. It does not wait for what happened to other keys.
#[test]
fn conditions_rest_on_what_they_have_seen() {
    everywhere(|store, keyspace, batched, what| {
        let is_durable = |version| store.ticket_at(version).is_durable();
        let ask = |key: &[u8], version| {
            let mut batch = Batch::default();
            batch.require_version(keyspace, key, version);
            let _ = store.commit(&batch, &WriteOptions::new()).unwrap();
        };
        put(store, keyspace, ONE, b"value 1.");
        store.sync().unwrap();
        let (_, first) = store.get_versioned(keyspace, ONE).unwrap().unwrap();
        let other = relaxed(store, keyspace, TWO, Some(b"value 2."), batched);
        ask(ONE, Some(first));
        assert!(!is_durable(other), "{what}: another key's");
        ask(TWO, Some(other));
        assert!(is_durable(other), "{what}: a put");

        let deleted = relaxed(store, keyspace, TWO, None, batched);
        ask(ONE, Some(first));
        assert!(!is_durable(deleted), "{what}: another key's");
        ask(TWO, None);
        assert!(is_durable(deleted), "{what}: a delete");

        let options = WriteOptions::new().durability(Durability::Process).expires_at_ms(1);
        let expired = store.write(keyspace, ONE, Some(b"value 3."), Condition::None, &options).unwrap().2.version();
        assert!(!is_durable(expired), "{what}: a put that nobody waited for");
        ask(ONE, None);
        assert!(is_durable(expired), "{what}: an entry that has expired");
    });
}

/// A put links to the tombstone of a delete that is not durable yet, and only that put does. The next write of the key
/// links to the put, or a walk would miss it.
#[test]
fn only_the_first_write_behind_a_delete_links_to_its_tombstone() {
    everywhere(|store, keyspace, batched, what| {
        for waits in [false, true] {
            put(store, keyspace, ONE, b"value 1.");
            relaxed(store, keyspace, ONE, None, batched);
            if waits {
                put(store, keyspace, ONE, b"value 2.");
            } else {
                relaxed(store, keyspace, ONE, Some(b"value 2."), batched);
            }
            relaxed(store, keyspace, ONE, Some(b"value 3."), !batched);
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{what}, waits {waits}: {report:?}");
        }
    });
}

/// Found by hand: what is written while a sync is under way is not among what that sync makes durable. Nothing noticed
/// when a commit promised that it was.
#[test]
fn what_is_written_during_a_sync_waits_for_the_next() {
    let (dir, points) = (tempfile::tempdir().unwrap(), hither_pmem::Failpoints::new());
    let options = Options { paths: vec![(None, dir.path().to_owned())], medium: MediumChoice::File, ..small() };
    let store = Store::open(Options { failpoints: Some(points.clone()), ..options }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let first = relaxed(&store, &keyspace, ONE, Some(b"value 1."), false);
    points.hold("sync");
    let second = std::thread::scope(|scope| {
        let commit = scope.spawn(|| store.ticket_at(first).wait());
        while points.waiting("sync") == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // Of the same key: it goes to the segment of the first write, and opens no segment, which would wait for the
        // sync.
        let second = relaxed(&store, &keyspace, ONE, Some(b"value 2."), false);
        points.release("sync");
        commit.join().unwrap().unwrap();
        second
    });
    assert!(store.ticket_at(first).is_durable() && !store.ticket_at(second).is_durable());
}

/// Regression: what a write at level `sync` found was durable only if the store's own level promises that.
#[test]
fn what_a_durable_write_finds_is_durable() {
    for medium in [MediumChoice::ForcedDax, MediumChoice::File] {
        for batched in [false, true] {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let store = Store::open(Options { medium, paths: vec![(None, dir.path().to_owned())], ..small() }).unwrap();
            let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
            let durably = WriteOptions::new().durability(Durability::Sync);
            let is_durable = |version| store.durable_version() >= version;
            let what = format!("{medium:?}, batched {batched}");

            store.write(&keyspace, ONE, Some(b"value 1."), Condition::None, &durably).unwrap().2.wait().unwrap();
            let version = relaxed(&store, &keyspace, ONE, None, batched);
            let (_, existed, ticket) = store.write(&keyspace, ONE, None, Condition::None, &durably).unwrap();
            ticket.wait().unwrap();
            assert!(!existed && is_durable(version), "{what}: a delete that found nothing");

            let version = relaxed(&store, &keyspace, ONE, Some(b"value 2."), batched);
            let (applied, _, ticket) = store.write(&keyspace, ONE, Some(b"value 3."), Condition::Value(None), &durably).unwrap();
            ticket.wait().unwrap();
            assert!(!applied && is_durable(version), "{what}: a condition that was not met");

            let version = relaxed(&store, &keyspace, ONE, None, batched);
            let deferred = store.write_deferred(&keyspace, ONE, None, Condition::None, &durably).unwrap();
            assert!(deferred.rests_on >= version, "{what}: {deferred:?}");
        }
    }
}

/// Regression: where each write is made durable by itself, a batch was made durable, and what its conditions had found
/// was not.
#[test]
fn what_a_batch_rests_on_is_durable() {
    everywhere(|store, keyspace, batched, what| {
        put(store, keyspace, ONE, b"value 1.");
        for waits in [true, false] {
            let version = relaxed(store, keyspace, ONE, Some(b"value 2."), batched);
            let mut batch = Batch::default();
            batch.require_version(keyspace, ONE, Some(version));
            batch.put(keyspace, TWO, b"value 2.", 0);
            if waits {
                store.commit_wait(&batch).unwrap();
                assert!(store.ticket_at(version).is_durable(), "{what}");
            } else {
                let deferred = store.commit_deferred(&batch, &WriteOptions::new()).unwrap();
                assert!(deferred.applied && deferred.rests_on >= version, "{what}: {deferred:?}");
            }
        }
    });
}
