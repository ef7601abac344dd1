use crate::scan::Part;
use crate::write::Condition;
use crate::{Durability, Kind, MediumChoice, Options, Store, WriteOptions};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Waits until `is_so`. Returns false if that takes more than a minute, which counts as for ever.
fn comes(is_so: impl Fn() -> bool) -> bool {
    (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        is_so()
    })
}

/// Regression: a time to live below a millisecond became none, and a key written with it was never there.
#[test]
fn a_time_to_live_is_not_shortened() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    for (micros, least_ms) in [(1, 1), (999, 1), (1_000, 1), (1_001, 2), (0, 0)] {
        let before = store.core.now_ms();
        let expiry_ms = store.core.expiry_ms(&WriteOptions::new().ttl(Duration::from_micros(micros)));
        assert!((before + least_ms..=store.core.now_ms() + least_ms).contains(&expiry_ms), "{micros} \u{b5}s");
    }
}

/// Regression: a writer without space gave up if another thread had deleted all expired keys that it had found.
#[test]
fn what_others_sweep_makes_room_too() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let core = &store.core;
    let others_sweep = |power: u32| {
        let expired = WriteOptions::new().expires_at_ms(1);
        drop(store.write(&keyspace, b"key", Some(b"value"), Condition::None, &expired).unwrap());
        *core.space_sweep.lock() = None;
        std::thread::scope(|scope| {
            let deletes = core.sweeping.lock();
            let sweep = scope.spawn(|| core.sweep_for_space(None));
            // By then the sweep has found the key, or will in a later round.
            std::thread::sleep(Duration::from_millis(1 << power));
            store.write_wait(&keyspace, b"key", Some(b"another")).unwrap();
            drop(deletes);
            sweep.join().unwrap()
        })
    };
    assert!((3..13).any(others_sweep));
}

/// Regression: a write that found no space waited, however little patience it had, for a check of the whole store,
/// during which no expired key is deleted.
#[test]
fn a_write_without_patience_waits_for_no_check() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let expired = WriteOptions::new().expires_at_ms(1);
    drop(store.write(&keyspace, b"key", Some(b"value"), Condition::None, &expired).unwrap());
    let check = store.core.sweeping.lock();
    let made = std::thread::scope(|scope| {
        let sweep = scope.spawn(|| store.core.sweep_for_space(Some(Instant::now() + Duration::from_millis(50))));
        let is_over = comes(|| sweep.is_finished());
        drop(check);
        assert!(is_over, "it has waited for the check");
        sweep.join().unwrap()
    });
    assert!(!made);
    // Regression: the search that gave up passed for one that had found nothing.
    assert!(store.core.sweep_for_space(Some(Instant::now() + Duration::from_secs(60))));
    assert_eq!(store.core.sweep_expired(), 0);
}

/// Regression: where only the background thread that sweeps was missing, each writer without space searched only
/// the first keys, and for ever found nothing.
#[test]
fn who_has_no_thread_that_sweeps_searches_everything() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    let core = &store.core;
    for key in 0..2_000u64 {
        store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"value")).unwrap();
    }
    drop(store.write(&keyspace, b"last", Some(b"value"), Condition::None, &WriteOptions::new().expires_at_ms(1)).unwrap());
    core.committer.while_in_background(|| {
        assert!(!core.expiring.during(|| core.sweep_for_space(Some(Instant::now()))), "somebody else will find it");
        assert!(core.sweep_for_space(Some(Instant::now())));
    });
}

/// Regression: each search began at the front. Where keys expired there all the time, those behind them stayed for
/// ever.
#[test]
fn what_expires_at_the_front_keeps_nothing_behind_it() {
    const FRONT: u64 = super::SWEEP as u64;
    for kind in [Kind::Ordered, Kind::Hash] {
        let options = Options { in_memory: true, capacity: 64 << 20, max_capacity: 64 << 20, background: false, ..Options::default() };
        let store = Store::open(options).unwrap();
        let keyspace = store.create_keyspace("k", kind).unwrap();
        let put = |key: u64, expires_at_ms: u64| {
            let options = WriteOptions::new().expires_at_ms(expires_at_ms);
            drop(store.write(&keyspace, &key.to_be_bytes(), Some(b"value"), Condition::None, &options).unwrap());
        };
        (0..3 * FRONT).for_each(|key| put(key, 1));
        for _ in 0..6 {
            assert!(store.sweep_expired() > 0);
            // As many again, where a search begins.
            (0..FRONT).for_each(|key| put(key, 1));
        }
        let mut old = 0;
        let walked = store.core.walk(&keyspace.0, Part::Head, |reference| {
            let key = store.core.log.key(reference.0).try_into().unwrap();
            old += u64::from(u64::from_be_bytes(key) >= FRONT);
            Ok(ControlFlow::Continue(()))
        });
        walked.unwrap();
        assert_eq!(old, 0, "{kind:?}");
        // The count of those to come is kept, too, whatever expires meanwhile.
        (0..2_000).for_each(|key| put(5 * FRONT + key, u64::MAX));
        for _ in 0..4 {
            store.sweep_expired();
            (0..FRONT).for_each(|key| put(key, 1));
        }
        assert_eq!(keyspace.0.expiries.counted(), 2_000, "{kind:?}");
    }
}

/// Regression: a search that had passed over long keys passed for one that had seen everything when it came to the end.
#[test]
fn a_writer_without_space_finds_long_keys_too() {
    let options = Options { in_memory: true, capacity: 64 << 20, max_capacity: 64 << 20, background: false, ..Options::default() };
    let store = Store::open(options).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    let expired = WriteOptions::new().expires_at_ms(1);
    for key in 0..100u64 {
        let key = [&key.to_be_bytes()[..], &[b'x'; 60_000]].concat();
        drop(store.write(&keyspace, &key, Some(b"value"), Condition::None, &expired).unwrap());
    }
    for key in 0..1_000u64 {
        store.write_wait(&keyspace, &[&[0xff; 8][..], &key.to_be_bytes()].concat(), Some(b"value")).unwrap();
    }
    let stored = || store.stats().keyspaces.iter().map(|keyspace| keyspace.keys).sum::<u64>();
    while stored() > 1_000 {
        let before = stored();
        assert!(store.core.sweep_for_space(None) && stored() < before, "{before} are left");
    }
    assert!(!store.core.sweep_for_space(None));
}

/// Regression: where keys were added ahead of it all the time, at the end or before a last key, a round did not come to
/// an end, and what had expired at the front stayed.
#[test]
fn a_round_does_not_follow_keys_that_are_added() {
    for last in [None, Some(u64::MAX)] {
        let options = Options { in_memory: true, capacity: 64 << 20, max_capacity: 64 << 20, background: false, ..Options::default() };
        let store = Store::open(options).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
        let put = |key: u64, expires_at_ms: u64| {
            let options = WriteOptions::new().expires_at_ms(expires_at_ms);
            drop(store.write(&keyspace, &key.to_be_bytes(), Some(b"value"), Condition::None, &options).unwrap());
        };
        (1..1_000).chain(last).for_each(|key| put(key, u64::MAX));
        put(0, 1);
        // A piece at a time.
        let sweep = || store.core.sweep_those_there(Some(Duration::ZERO)).deleted;
        assert_eq!(sweep(), 1, "it is in the first piece");
        let swept_again = (1..200u64).find(|round| {
            put(0, 1);
            (0..300).for_each(|key| put(1_000 * round + key, u64::MAX));
            sweep() > 0
        });
        assert!(swept_again.is_some(), "the round that began with the first one has not ended");
    }
}

/// A store on files without threads of its own, and its directory.
fn on_files() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let paths = vec![(None, dir.path().to_owned())];
    let store = Store::open(Options { paths, medium: MediumChoice::File, background: false, ..Options::default() }).unwrap();
    (dir, store)
}

/// Regression: nobody asked for the deletes of a sweep to be made durable. So the next client that read an absent
/// key waited for the disk.
#[test]
fn what_was_swept_is_durable_soon() {
    let (_dir, store) = on_files();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    drop(store.write(&keyspace, b"key", Some(b"value"), Condition::None, &WriteOptions::new().expires_at_ms(1)).unwrap());
    assert_eq!(store.core.sweep_expired(), 1);
    let deleted = keyspace.0.last_delete.load(Relaxed);
    assert!(deleted > 0 && store.core.committer.requested() >= deleted);
}

/// Regression: where no thread commits, a write that swept for space ran callbacks while it held the lock for which
/// other writes without space wait, a callback's own included.
#[test]
fn callbacks_of_a_sweep_hold_up_no_sweep() {
    let (_dir, store) = on_files();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let plain = WriteOptions::new();
    drop(store.write(&keyspace, b"key", Some(b"value"), Condition::None, &plain.expires_at_ms(1)).unwrap());
    let (_, _, ticket) = store.write(&keyspace, b"other", Some(b"value"), Condition::None, &plain).unwrap();
    let (core, (tell, told)) = (store.core.clone(), std::sync::mpsc::channel());
    ticket.on_durable(move |_| tell.send(core.space_sweep.try_lock().is_some()).unwrap());
    store.core.committer.note_alone();
    assert!(store.core.sweep_for_space(None));
    assert_eq!(told.try_recv(), Ok(true));
}

/// Regression: a search gathered ten thousand keys, however long they were.
#[test]
fn a_search_holds_few_long_keys() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let key = |number: u64| [vec![b'k'; 60_000], number.to_be_bytes().to_vec()].concat();
    for number in 0..100 {
        drop(store.write(&keyspace, &key(number), Some(b"v"), Condition::None, &WriteOptions::new().expires_at_ms(1)).unwrap());
    }
    let swept: Vec<_> = std::iter::from_fn(|| Some(store.core.sweep_those_there(None)).filter(|swept| swept.deleted > 0)).collect();
    assert_eq!(swept.iter().map(|swept| swept.deleted).sum::<usize>(), 100);
    assert!(swept.iter().all(|swept| swept.deleted < 20) && swept.iter().rev().skip(1).all(|swept| swept.more));
}

/// Regression: the time was remembered only before each sweep, and a check of the whole store, or a long search,
/// held up the next sweep.
#[test]
fn the_time_is_remembered_though_nobody_sweeps() {
    let store = Store::open(Options { in_memory: true, ..Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let core = &store.core;
    let _check = core.sweeping.lock();
    for round in 0..2 {
        let soon = WriteOptions::new().ttl(Duration::from_millis(20));
        drop(store.write(&keyspace, b"key", Some(b"value"), Condition::None, &soon).unwrap());
        assert!(comes(|| store.get_versioned(&keyspace, b"key").unwrap().is_none()));
        let told = core.latest_told_ms();
        assert!(comes(|| core.log.pool(0).clock_ms() >= told), "round {round}: what was told is forgotten at a crash");
    }
}

/// Regression: as long as there was an entry with an expiry, the time was made durable once a second, with a sync
/// of the whole pool, also in a store in which nothing happened.
#[test]
fn the_time_is_persisted_only_before_something_is_deleted() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let (core, begin) = (&store.core, store.core.now_ms());
    let put = |key: &[u8], options| drop(store.write(&keyspace, key, Some(b"value"), Condition::None, &options).unwrap());
    put(b"later", WriteOptions::new().ttl(Duration::from_secs(3600)));
    let before = core.log.pool(0).clock_ms();
    let now = Instant::now();
    for _ in 0..3 {
        keyspace.0.expiries.note();
        assert_eq!(core.sweep_expired(), 0);
        assert!(!keyspace.0.expiries.is_due(core.now_ms(), now) && keyspace.0.expiries.are_there());
    }
    assert_eq!(core.log.pool(0).clock_ms(), before);
    put(b"over", WriteOptions::new().expires_at_ms(1));
    assert_eq!((core.sweep_expired(), core.sweep_expired()), (1, 0));
    assert!(core.log.pool(0).clock_ms() >= begin && !keyspace.0.expiries.is_due(core.now_ms(), now));
}

/// Regression: a search for expired keys took the flag that there are any down while it lasted. A checkpoint taken
/// meanwhile recorded that there were none, and after a crash nobody would ever have looked for them.
#[test]
fn a_checkpoint_beside_a_search_knows_of_expiry() {
    let dir = tempfile::tempdir().unwrap();
    let options = |dir: &std::path::Path| Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        durability: Durability::Process,
        capacity: 16 << 20,
        max_capacity: 16 << 20,
        segment_bytes: 64 << 10,
        shards: 1,
        background: false,
        ..Options::default()
    };
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let later = WriteOptions::new().ttl(Duration::from_secs(3600));
    for key in 0..50_000u64 {
        drop(store.write(&keyspace, &key.to_be_bytes(), Some(b"value"), Condition::None, &later).unwrap());
    }
    // So that no segment that holds such a key is scanned.
    for key in 50_000..56_000u64 {
        drop(store.write(&keyspace, &key.to_be_bytes(), Some(b"value"), Condition::None, &WriteOptions::new()).unwrap());
    }
    for round in 0..50 {
        // Otherwise there is nothing to search for.
        keyspace.0.expiries.note();
        std::thread::scope(|scope| {
            let searching = scope.spawn(|| store.sweep_expired());
            std::thread::sleep(Duration::from_micros(20 * round));
            assert!(store.checkpoint().unwrap());
            searching.join().unwrap();
        });
        let copy = tempfile::tempdir().unwrap();
        for name in ["node0.hither", "checkpoint.hither"] {
            std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
        }
        let again = Store::open(options(copy.path())).unwrap();
        let keyspace = again.open_keyspace("k").unwrap();
        assert!(again.recovery().checkpoint_keys >= 50_000);
        assert!(keyspace.0.expiries.are_there(), "round {round}: nobody will look for expired keys");
    }
}
