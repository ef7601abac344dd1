//! Expiry beside writes and snapshots that are under way when its time comes.

use crate::common::{put, small};
use hither_engine::{
    Batch, Condition, Direction, Durability, Error, Expiry, KeyspaceHandle, Kind, MediumChoice, Options, ScanRange, Store, WriteOptions,
};
use hither_pmem::Failpoints;
use hither_sync::epoch;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEY: &[u8] = b"a key";

/// Puts the key, to expire after that time; returns until when to wait to be sure that it has.
fn put_expiring(store: &Store, keyspace: &KeyspaceHandle, value: &[u8], life: Duration) -> Instant {
    let options = WriteOptions { expiry: Some(Expiry::After(life)), ..WriteOptions::new() };
    store.write(keyspace, KEY, Some(value), Condition::None, &options).unwrap().2.wait().unwrap();
    Instant::now() + life + Duration::from_millis(2)
}

fn sleep_until(time: Instant) {
    std::thread::sleep(time.saturating_duration_since(Instant::now()));
}

/// A way to read the key; returns the first byte of its value.
type Read = fn(&Store, &KeyspaceHandle) -> Option<u8>;

fn scanned(store: &Store, keyspace: &KeyspaceHandle) -> Option<u8> {
    let mut found = None;
    let take = |key: &[u8], value: &[u8]| {
        assert_eq!(key, KEY);
        found = Some(value[0]);
        ControlFlow::Continue(())
    };
    store.for_each(keyspace, take).unwrap();
    found
}

fn scanned_deferred(store: &Store, keyspace: &KeyspaceHandle) -> Option<u8> {
    let mut found = None;
    let take = |_: &[u8], value: &[u8], _| {
        found = Some(value[0]);
        ControlFlow::Continue(())
    };
    let everything = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: usize::MAX };
    store.scan_deferred(keyspace, &everything, take).unwrap();
    found
}

fn many(store: &Store, keyspace: &KeyspaceHandle) -> Option<u8> {
    let mut found = None;
    store.multi_get_with(keyspace, &[KEY], |_, value| found = value.map(|value| value[0])).unwrap();
    found
}

const READS: [(&str, Read); 7] = [
    ("get", |store, keyspace| store.get_with(keyspace, KEY, |value| value[0]).unwrap()),
    ("versioned", |store, keyspace| store.get_versioned(keyspace, KEY).unwrap().map(|(value, _)| value[0])),
    ("pinned", |store, keyspace| store.get_pinned(keyspace, KEY).unwrap().map(|value| value[0])),
    ("peek", |store, keyspace| store.peek_with(keyspace, KEY, |value, _| value[0]).unwrap().0),
    ("multi-get", many),
    ("scan", scanned),
    ("deferred scan", scanned_deferred),
];

/// Found by reading: a compare-and-swap found its key alive, and waited for a segment. Meanwhile the key's time came,
/// and reads reported that it was gone; then it was there again.
#[test]
fn what_a_write_under_way_has_found_alive_nobody_finds_expired() {
    for kind in [Kind::Ordered, Kind::Hash] {
        // If the time comes before the swap has looked, nothing is swapped; then once more, with more time.
        let mut lives = [300, 1_500, 7_500].map(Duration::from_millis).into_iter();
        assert!(lives.any(|life| swap_beside_reads(kind, life)), "{kind:?}: nothing was swapped");
    }
}

/// Swaps a key, and reads it once its time has come, while the swap waits for a segment; returns whether it was
/// swapped.
fn swap_beside_reads(kind: Kind, life: Duration) -> bool {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let options =
        Options { paths: vec![(None, dir.path().to_owned())], medium: MediumChoice::File, durability: Durability::Sync, ..small() };
    let store = Store::open(Options { failpoints: Some(points.clone()), ..options }).unwrap();
    let keyspace = store.create_keyspace("k", kind).unwrap();
    let expired = put_expiring(&store, &keyspace, b"value", life);
    let mut has_waited = false;
    let reads = READS.iter().filter(|(name, _)| kind == Kind::Ordered || *name != "deferred scan");
    points.hold("zero");
    std::thread::scope(|scope| {
        let (store, keyspace) = (&store, &keyspace);
        let swap = scope.spawn(move || {
            // The value takes segments of its own, which are zeroed first.
            let long = vec![b'w'; 200 << 10];
            let condition = Condition::Value(Some(b"value"));
            let (applied, existed, ticket) = store.write(keyspace, KEY, Some(&long), condition, &WriteOptions::new()).unwrap();
            ticket.wait().unwrap();
            assert_eq!(applied, existed);
            applied
        });
        while !has_waited && !swap.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
            has_waited = points.waiting("zero") > 0;
        }
        sleep_until(expired);
        let readers: Vec<_> = reads.map(|(name, read)| (name, scope.spawn(move || read(store, keyspace)))).collect();
        std::thread::sleep(Duration::from_millis(50));
        points.release("zero");
        let found: Vec<_> = readers.into_iter().map(|(name, reader)| (name, reader.join().unwrap())).collect();
        let swapped = swap.join().unwrap();
        let expected = swapped.then_some(b'w');
        found.into_iter().for_each(|(name, found)| assert_eq!(found, expected, "{kind:?}: {name}"));
        swapped && has_waited
    })
}

/// Found by reading: a snapshot read its time after it had waited for writers. It showed a key that was written anew
/// meanwhile neither as it was nor as it became.
#[test]
fn a_snapshot_keeps_what_has_not_expired_when_its_version_is_drawn() {
    let mut lives = [400, 2_000, 10_000].map(Duration::from_millis).into_iter();
    assert!(lives.any(snapshot_beside_expiry), "the time always came too early");
}

/// Draws a snapshot's version after a key's time has come; returns whether the key was overwritten before that.
fn snapshot_beside_expiry(life: Duration) -> bool {
    let store = Arc::new(Store::open(Options { in_memory: true, ..small() }).unwrap());
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    let expired = put_expiring(&store, &keyspace, b"before", life);
    let (entered, has_entered) = std::sync::mpsc::channel();
    let (leave, may_leave) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _section = epoch::pin_writer();
            entered.send(()).unwrap();
            may_leave.recv().unwrap();
        });
        has_entered.recv().unwrap();
        let snapshot = scope.spawn(|| store.snapshot());
        // By then the snapshot waits for the section, on all but the slowest machines.
        std::thread::sleep(Duration::from_millis(100));
        put(&store, &keyspace, KEY, b"after");
        let was_in_time = Instant::now() + Duration::from_millis(4) < expired;
        sleep_until(expired);
        leave.send(()).unwrap();
        let snapshot = snapshot.join().unwrap();
        let shown = snapshot.get_with(&keyspace, KEY, <[u8]>::to_vec).unwrap();
        assert!(!was_in_time || matches!(shown.as_deref(), Some(b"before" | b"after")), "{shown:?}");
        assert_eq!(store.get_with(&keyspace, KEY, <[u8]>::to_vec).unwrap(), Some(b"after".to_vec()));
        was_in_time
    })
}

/// Found by reading: a put-if-absent was refused because its key was there; when the key's time had come a moment
/// later, the outcome said that there had been no key.
#[test]
fn a_condition_and_its_outcome_are_judged_at_one_moment() {
    let store = Store::open(Options { in_memory: true, ..small() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    for number in 0..100u32 {
        let options = WriteOptions { expiry: Some(Expiry::AtMs(store.now_ms() + 2)), ..WriteOptions::new() };
        let put_if_absent = || store.write(&keyspace, &number.to_le_bytes(), Some(b"value"), Condition::Version(None), &options).unwrap();
        assert!(put_if_absent().0);
        while let (false, existed, _) = put_if_absent() {
            assert!(existed, "key {number} was there, and was not");
        }
    }
}

/// Found by reading: each condition of a batch looked at the time anew, so that of two keys that expired at once one
/// was there and the other was not.
#[test]
fn conditions_of_a_batch_hold_at_one_moment() {
    let store = Store::open(Options { in_memory: true, ..small() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    // How long both keys live: until about half of the conditions were looked at, which the rounds find out.
    let mut life_ms = 1_000;
    for round in 0..40 {
        let options = WriteOptions { expiry: Some(Expiry::AtMs(store.now_ms() + life_ms)), ..WriteOptions::new() };
        let (began, mut batch) = (Instant::now(), Batch::default());
        let written = [b"first", b"last."].map(|key| store.write(&keyspace, key, Some(b"value"), Condition::None, &options).unwrap().2);
        batch.require_version(&keyspace, b"first", Some(written[0].version()));
        (0..100_000u32).for_each(|number| batch.require_version(&keyspace, &number.to_le_bytes(), None));
        batch.require_version(&keyspace, b"last.", None);
        let outcome = store.commit(&batch, &WriteOptions::new());
        let Err(Error::PreconditionFailed { key, .. }) = outcome else { panic!("round {round}: {outcome:?}") };
        // The condition on the first key fails if both had expired when it was looked at; that on the last fails if
        // neither had at the end.
        life_ms = match (round, &*key) {
            (0, _) => began.elapsed().as_millis() as u64,
            (_, "first") => life_ms + 1,
            _ => life_ms.saturating_sub(1),
        };
    }
}
