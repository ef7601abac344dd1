use super::*;
use crate::collector::{Need, Turn};
use crate::options::SET_BACK_MS;
use crate::{CollectorKind, Condition, Durability, Expiry, Kind, Options, WriteOptions};
use hither_log::TakeBack;
use hither_topology::Topology;

fn open(collector: CollectorKind) -> Store {
    let options = Options {
        in_memory: true,
        capacity: 64 << 20,
        max_capacity: 64 << 20,
        segment_bytes: 16 << 10,
        shards: 1,
        topology: Some(Arc::new(Topology::single())),
        durability: Durability::Process,
        background: false,
        collector,
        ..Options::default()
    };
    Store::open(options).unwrap()
}

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: u8) {
    store.write_wait(keyspace, &key.to_be_bytes(), Some(&[value; 40])).unwrap();
}

/// Regression: a key that a snapshot had reported absent because it had expired was back once the clock was set back.
#[test]
fn what_a_snapshot_told_to_have_expired_stays_so() {
    for kind in [Kind::Hash, Kind::Ordered] {
        let store = open(CollectorKind::Batched);
        let keyspace = store.create_keyspace("k", kind).unwrap();
        let expiry = store.core.latest_told_ms().max(store.core.now_ms() - 1_000) + 1;
        let options = WriteOptions { expiry: Some(Expiry::AtMs(expiry)), ..WriteOptions::default() };
        store.write(&keyspace, b"key", Some(b"value"), Condition::None, &options).map(drop).unwrap();
        assert!(store.core.latest_told_ms() < expiry, "nobody was told");
        let snapshot = store.snapshot();
        let all = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: 9 };
        SET_BACK_MS.set(3_600_000);
        assert!(snapshot.get_with(&keyspace, b"key", |_| ()).unwrap().is_none());
        if kind == Kind::Ordered {
            snapshot.scan(&keyspace, &all, |_, _| panic!("it has expired")).unwrap();
        }
        assert!(store.get_with(&keyspace, b"key", |_| ()).unwrap().is_none(), "{kind:?}");
        SET_BACK_MS.set(0);
    }
}

/// Regression: nobody remembered the time that a snapshot had read. Once the clock was set back, a write found alive
/// what had expired for the snapshot, and replaced it. The snapshot, although taken before the write, showed nothing.
///
/// It was remembered at first where an entry with an expiry had been noted, which a writer does after it has installed
/// one: too late for the first.
#[test]
fn what_has_expired_for_a_snapshot_has_for_later_writes() {
    [true, false].into_iter().for_each(take_behind_an_expiry);
}

fn take_behind_an_expiry(is_noted: bool) {
    let store = open(CollectorKind::Batched);
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let expiry = store.core.latest_told_ms().max(store.core.now_ms() - 1_000) + 1;
    let options = WriteOptions { expiry: Some(Expiry::AtMs(expiry)), ..WriteOptions::default() };
    store.write(&keyspace, b"key", Some(b"old"), Condition::None, &options).map(drop).unwrap();
    if !is_noted {
        // Takes the note back.
        keyspace.0.expiries.search(|_| std::ops::ControlFlow::Continue(()));
    }
    let snapshot = store.snapshot();
    assert!(store.core.latest_told_ms() < expiry, "nothing that has to be made durable");
    SET_BACK_MS.set(3_600_000);
    let (replaced, ..) = store.write(&keyspace, b"key", Some(b"new"), Condition::Value(Some(b"old")), &WriteOptions::default()).unwrap();
    SET_BACK_MS.set(0);
    let shown = snapshot.get_with(&keyspace, b"key", <[u8]>::to_vec).unwrap();
    assert_eq!((replaced, shown), (false, None));
}

/// A snapshot that ends during the drop of a keyspace has left the list, so that [`Snapshots::forget`] does not meet
/// it, while it still keeps entries of the keyspace. Its pin is younger than the stamp of a segment that was emptied of
/// them.
#[test]
fn a_snapshot_that_ends_beside_a_drop_counts_nothing_in_a_next_life() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        // Does not count if the drop was too fast.
        assert!((0..20).any(|_| end_beside_a_drop(collector)), "{collector:?}");
    }
}

fn end_beside_a_drop(collector: CollectorKind) -> bool {
    const SHOWN: u64 = 3_000;
    let store = open(collector);
    let core = &store.core;
    let kept = store.create_keyspace("kept", Kind::Hash).unwrap();
    let passing = store.create_keyspace("passing", Kind::Hash).unwrap();
    // Half garbage, so that a pass is worth it.
    (0..2 * SHOWN).for_each(|number| put(&store, &passing, number / 2, 1));
    // So that the drop takes long.
    (SHOWN..200_000).for_each(|key| put(&store, &passing, key, 1));
    let snapshot = store.snapshot();
    (0..SHOWN).for_each(|key| put(&store, &passing, key, 2));
    core.seal(TakeBack::All).unwrap();
    let state = snapshot.state.clone();
    let in_time = std::thread::scope(|scope| {
        let dropping = scope.spawn(|| store.drop_keyspace("passing").unwrap());
        while store.open_keyspace("passing").is_some() {
            std::thread::yield_now();
        }
        core.collect(None, Need::Some, Turn::Round).unwrap();
        if !core.log.has_retiring(None) {
            // Nothing was emptied during the drop.
            dropping.join().unwrap();
            return false;
        }
        // Holds up the end of the snapshot where it is about to let go of what it kept.
        let saved = state.saved.lock();
        if !saved.contains_key(&passing.0.info.id) {
            drop(saved);
            dropping.join().unwrap();
            return false;
        }
        let ending = scope.spawn(move || drop(snapshot));
        while core.snapshots.any() {
            std::thread::yield_now();
        }
        // By then the snapshot has left the list, or waits.
        std::thread::sleep(Duration::from_millis(5));
        // The drop must wait for the snapshot, or let go of the entries itself.
        let begun = Instant::now();
        while !dropping.is_finished() && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(1));
        }
        core.reuse_freed(hither_log::Wait::No).unwrap();
        (0..5 * SHOWN).for_each(|key| put(&store, &kept, key, 3));
        drop(saved);
        ending.join().unwrap();
        true
    });
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{collector:?}: {report:?}");
    in_time
}

/// Regression: while a snapshot that ended let go of what it had kept, it held up all writers of keys that other
/// snapshots showed.
#[test]
fn a_snapshot_that_ends_holds_up_no_writer() {
    let store = open(CollectorKind::Batched);
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..10).for_each(|key| put(&store, &keyspace, key, 1));
    let (ending, other) = (store.snapshot(), store.snapshot());
    put(&store, &keyspace, 0, 2);
    let state = ending.state.clone();
    let (told, written) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let saved = state.saved.lock();
        scope.spawn(move || drop(ending));
        while store.core.snapshots.count.load(Ordering::SeqCst) > 1 {
            std::thread::yield_now();
        }
        // By then the end waits for the lock, with everything that it holds.
        std::thread::sleep(Duration::from_millis(50));
        let (store, keyspace) = (&store, &keyspace);
        scope.spawn(move || {
            put(store, keyspace, 1, 2);
            told.send(()).unwrap();
        });
        let outcome = written.recv_timeout(Duration::from_secs(20));
        drop(saved);
        outcome.expect("a write waits for the end of a snapshot");
    });
    assert_eq!(other.get_with(&keyspace, &1u64.to_be_bytes(), |value| value[0]).unwrap(), Some(1));
    assert_eq!(store.core.snapshots.alive().0, 1);
    drop(other);
    assert!(store.check().unwrap().is_sound());
}

/// Keys that were deleted since are in the side table only. A drop of the keyspace takes them from there while the keys
/// are being listed.
#[test]
fn a_list_of_keys_beside_a_drop_is_whole_or_refused() {
    const KEYS: u64 = 20_000;
    let mut refused = 0;
    for round in 0..40 {
        let store = open(CollectorKind::Batched);
        let keyspace = store.create_keyspace("passing", Kind::Hash).unwrap();
        (0..KEYS).for_each(|key| put(&store, &keyspace, key, 1));
        let snapshot = store.snapshot();
        (0..KEYS / 10).for_each(|key| assert!(store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap()));
        std::thread::scope(|scope| {
            let listing = scope.spawn(|| snapshot.sorted_keys(&keyspace));
            std::thread::sleep(Duration::from_micros(50 * round));
            store.drop_keyspace("passing").unwrap();
            match listing.join().unwrap() {
                Ok(keys) => assert_eq!(keys.len() as u64, KEYS, "round {round}: keys that the snapshot shows are missing"),
                Err(_) => refused += 1,
            }
        });
    }
    assert!(refused > 0);
}

/// Two keys expire at the same time. A snapshot must not show one and lack the other, which was swept just after the
/// snapshot's time was read and just before its version was drawn.
#[test]
fn what_a_snapshot_would_show_alive_is_not_swept_below_it() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let snapshot = store.snapshot();
    let agree = |expiry_ms, version| store.core.snapshots.agree_that_expired(expiry_ms, version);
    let (taken_ms, version) = (snapshot.taken_ms, snapshot.version);
    assert_eq!([agree(taken_ms, version), agree(taken_ms + 1, version)], [true, false]);
    assert!(agree(taken_ms + 1, version + 1), "it keeps what that deletes");
    drop(snapshot);
    assert!(agree(taken_ms + 1, version));
}

/// Regression: to get one pair, hundreds of saved keys of any length were copied, with the table locked that writers
/// wait for.
#[test]
fn of_saved_keys_few_are_listed_at_once_and_none_is_left_out() {
    let store = open(CollectorKind::Batched);
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    // Some keys are so long that a few of them end a listing. A stretch between them stays in the index.
    let key_of = |number: u32| {
        let mut key = number.to_be_bytes().to_vec();
        key.resize(if number.is_multiple_of(5) { 60_000 } else { 8 }, b'x');
        key
    };
    let keys: Vec<_> = (0..60).map(key_of).collect();
    for key in &keys {
        store.write_wait(&keyspace, key, Some(&key[..4])).unwrap();
    }
    let snapshot = store.snapshot();
    let is_kept = |number: usize| (20..30).contains(&number);
    for (number, key) in keys.iter().enumerate().filter(|(number, _)| !is_kept(*number)) {
        let value = number.is_multiple_of(2).then_some(&b"newer"[..]);
        store.write_wait(&keyspace, key, value).unwrap();
    }
    let everything = |direction| ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction, expect: usize::MAX };
    let some = snapshot.saved_between(&keyspace.0, &everything(Direction::Forward), 3);
    assert!(some.keys.len() == 3 && some.more);
    let some = snapshot.saved_between(&keyspace.0, &everything(Direction::Backward), 60);
    let bytes: usize = some.keys.iter().map(|(key, _)| key.len()).sum();
    assert!(some.more && bytes < PIECE_BYTES + 60_000, "{bytes} bytes of {} keys", some.keys.len());
    assert!(snapshot.saved_behind(&keyspace.0, None).len() < 50);
    for direction in [Direction::Forward, Direction::Backward] {
        for expect in [1, 2, 7, usize::MAX] {
            let mut shown = Vec::new();
            let range = ScanRange { expect, ..everything(direction) };
            let collect = |key: &[u8], value: &[u8]| {
                assert_eq!(value, &key[..4]);
                shown.push(key.to_vec());
                std::ops::ControlFlow::Continue(())
            };
            snapshot.scan(&keyspace, &range, collect).unwrap();
            if direction == Direction::Backward {
                shown.reverse();
            }
            assert!(shown == keys, "{direction:?} {expect}: {} of {} keys", shown.len(), keys.len());
        }
    }
}

/// Regression: a snapshot that had read its time, but had no version yet, showed a key alive beside a write that was
/// made because that key had expired.
#[test]
fn what_was_written_because_a_key_had_expired_is_not_shown_beside_it() {
    let store = &open(CollectorKind::Batched);
    let keyspace = &store.create_keyspace("k", Kind::Hash).unwrap();
    let core = &store.core;
    for told_first in [false, true] {
        let expiry = core.latest_told_ms().max(core.now_ms() - 1_000) + 1;
        let options = WriteOptions { expiry: Some(Expiry::AtMs(expiry)), ..WriteOptions::default() };
        store.write(keyspace, b"lease", Some(b"mine"), Condition::None, &options).map(drop).unwrap();
        store.write_wait(keyspace, b"holder", None).unwrap();
        // As in `Store::snapshot`, by a thread that is preempted between its time and its version.
        let state = Arc::new(State::pending());
        core.snapshots.list.write().push(state.clone());
        core.snapshots.count.fetch_add(1, Ordering::SeqCst);
        let taken_ms = expiry - 1;
        state.taken_ms.store(taken_ms, Ordering::Relaxed);
        let snapshot = std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let mut batch = crate::Batch::default();
                if told_first {
                    assert!(store.get_with(keyspace, b"lease", |_| ()).unwrap().is_none());
                } else {
                    batch.require_version(keyspace, b"lease", None);
                }
                batch.put(keyspace, b"holder", b"yours", 0);
                store.commit_wait(&batch).unwrap();
            });
            // Time for the write, if nothing holds it up.
            (0..50).take_while(|_| !writer.is_finished()).for_each(|_| std::thread::sleep(Duration::from_millis(2)));
            let version = core.log.clock.stable_with(|version| state.version.store(version, Ordering::Release));
            Snapshot { core: core.clone(), state, version, taken_ms }
        });
        let [lease, holder] = [&b"lease"[..], b"holder"].map(|key| snapshot.get_with(keyspace, key, |_| ()).unwrap().is_some());
        assert!(lease && !holder, "told first: {told_first}, lease: {lease}, holder: {holder}");
        drop(snapshot);
        assert!(store.get_with(keyspace, b"holder", |_| ()).unwrap().is_some());
    }
}
