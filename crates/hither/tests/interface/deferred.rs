//! Operations that never wait report the version that they rest on, and that version becomes durable.

use hither::{Db, Durability, KeyspaceOptions, MediumChoice, WriteOptions};
use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};

fn on_file(dir: &std::path::Path) -> Db {
    Db::builder().path(dir).medium(MediumChoice::File).capacity(1 << 20).open().unwrap()
}

#[test]
fn writes_and_what_read_them_rest_on_their_version_until_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let db = on_file(dir.path());
    let keys = db.keyspace("k").unwrap();
    let written = keys.write_deferred(b"a", Some(b"1"), &WriteOptions::new()).unwrap();
    assert!(written.applied && !written.existed && written.rests_on != 0);
    let (value, rests_on) = keys.peek_with(b"a", |value, found| (value.to_vec(), found)).unwrap();
    let (value, found) = value.unwrap();
    assert_eq!((value, found.version, found.expires_at_ms), (b"1".to_vec(), written.rests_on, 0));
    assert!(rests_on == written.rests_on || db.durable_version() >= written.rests_on);

    let ticket = db.ticket_at(written.rests_on);
    ticket.wait().unwrap();
    assert!(db.durable_version() >= written.rests_on);
    assert_eq!(keys.peek_with(b"a", |_, _| ()).unwrap(), (Some(()), 0));
    assert!(db.ticket_at(written.rests_on).is_durable());
}

/// Regression: a write never became durable if its ticket was only polled.
#[test]
fn a_ticket_that_is_only_asked_becomes_durable() {
    let dir = tempfile::tempdir().unwrap();
    let db = on_file(dir.path());
    let keys = db.keyspace("k").unwrap();
    let written = keys.write_deferred(b"a", Some(b"1"), &WriteOptions::new()).unwrap();
    let (ticket, began) = (db.ticket_at(written.rests_on), Instant::now());
    while !ticket.is_durable() {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody makes it durable");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Regression: the store committed for such a ticket again and again, without an end.
#[test]
fn a_ticket_for_a_version_that_was_never_given_out_is_one_for_all_that_was() {
    let dir = tempfile::tempdir().unwrap();
    let db = on_file(dir.path());
    let keys = db.keyspace("k").unwrap();
    let written = keys.write_deferred(b"a", Some(b"1"), &WriteOptions::new()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    db.ticket_at(u64::MAX).on_durable(move |outcome| tell.send(outcome).unwrap());
    assert!(matches!(told.recv_timeout(Duration::from_secs(60)), Ok(Ok(()))));
    assert!(db.durable_version() >= written.rests_on);
}

/// Regression: if nothing had been written since the last sync, the callback was never called.
#[test]
fn such_a_ticket_is_durable_where_all_is() {
    for durability in [Durability::Sync, Durability::Interval(Duration::from_millis(1)), Durability::Process] {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::builder().path(dir.path()).capacity(1 << 20).medium(MediumChoice::File).durability(durability).open().unwrap();
        db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
        db.sync().unwrap();
        let told = || {
            let (tell, told) = std::sync::mpsc::channel();
            db.ticket_at(u64::MAX).on_durable(move |outcome| tell.send(outcome).unwrap());
            told
        };
        assert!(matches!(told().recv_timeout(Duration::from_secs(60)), Ok(Ok(()))), "{durability:?}");
        db.clone().close().unwrap();
        assert!(matches!(told().recv_timeout(Duration::from_secs(60)), Ok(Ok(()))), "{durability:?}, closed");
    }
}

/// Regression: once the background thread that commits had ended, nobody made the commit that such a ticket asks for.
/// Its callback was never called, and if it held a handle of the store, the store was never released.
#[test]
fn a_ticket_fires_after_a_close_too() {
    for takes_a_snapshot in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let db = on_file(dir.path());
        db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
        db.clone().close().unwrap();
        // Draws a version.
        let snapshot = takes_a_snapshot.then(|| db.snapshot());
        let (tell, told) = std::sync::mpsc::channel();
        for version in [db.written_version(), u64::MAX] {
            let (tell, db) = (tell.clone(), db.clone());
            db.clone().ticket_at(version).on_durable(move |outcome| tell.send((outcome, db.durable_version())).unwrap());
        }
        for _ in 0..2 {
            assert!(matches!(told.recv_timeout(Duration::from_secs(60)), Ok((Ok(()), _))), "{takes_a_snapshot}");
        }
        drop((snapshot, db));
        drop(on_file(dir.path()));
    }
}

/// Regression: when a condition did not hold, a key that had expired was reported as existing.
#[test]
fn what_has_expired_was_not_there() {
    let db = Db::builder().in_memory().capacity(1 << 20).open().unwrap();
    let keys = db.keyspace("k").unwrap();
    drop(keys.put_with(b"a", b"1", &WriteOptions::new().expires_at_ms(1)).unwrap());
    let written = keys.write_if_deferred(b"a", Some(b"2"), Some(u64::MAX >> 8), &WriteOptions::new()).unwrap();
    assert!(!written.applied && !written.existed);
    keys.put(b"a", b"1").unwrap();
    let written = keys.write_if_deferred(b"a", Some(b"2"), Some(u64::MAX >> 8), &WriteOptions::new()).unwrap();
    assert!(!written.applied && written.existed);
}

/// Regression: a snapshot's list of the keys of a hash keyspace left out keys whose delete was not durable yet, so that
/// a power loss could have brought them back.
#[test]
fn what_a_snapshot_does_not_list_is_durably_gone() {
    for options in [KeyspaceOptions::hash(), KeyspaceOptions::ordered()] {
        let dir = tempfile::tempdir().unwrap();
        let db = on_file(dir.path());
        let keys = db.create_keyspace("k", options).unwrap();
        keys.put(b"a", b"1").unwrap();
        let deleted = keys.write_deferred(b"a", None, &WriteOptions::new()).unwrap();
        assert_eq!(db.snapshot().iter(&keys).count(), 0);
        assert!(db.durable_version() >= deleted.rests_on, "{options:?}");
    }
}

#[test]
fn absence_rests_on_the_delete() {
    let dir = tempfile::tempdir().unwrap();
    let db = on_file(dir.path());
    let keys = db.keyspace("k").unwrap();
    keys.put(b"a", b"1").unwrap();
    let deleted = keys.write_deferred(b"a", None, &WriteOptions::new()).unwrap();
    assert!(deleted.existed);
    let (value, rests_on) = keys.peek_with(b"a", |_, _| ()).unwrap();
    assert!(value.is_none() && (rests_on >= deleted.rests_on || db.durable_version() >= deleted.rests_on));
    let rests_on = keys.scan_deferred(Bound::Unbounded, Bound::Unbounded, false, |_, _, _| ControlFlow::Continue(())).unwrap();
    assert!(rests_on >= deleted.rests_on || db.durable_version() >= deleted.rests_on);
}

#[test]
fn conditions_are_outcomes_not_errors() {
    let dir = tempfile::tempdir().unwrap();
    let db = on_file(dir.path());
    let keys = db.keyspace("k").unwrap();
    let options = WriteOptions::new();
    assert!(keys.write_if_deferred(b"a", Some(b"1"), None, &options).unwrap().applied);
    assert!(!keys.write_if_deferred(b"a", Some(b"2"), None, &options).unwrap().applied);
    let version = keys.peek_with(b"a", |_, found| found.version).unwrap().0.unwrap();
    let conditional = |version, value: Option<&[u8]>| {
        let mut batch = db.batch();
        batch.require_version(&keys, b"a", Some(version));
        if let Some(value) = value {
            batch.put_with_expiry(&keys, b"a", value, 4_102_444_800_000).put(&keys, b"b", value);
        }
        batch.commit_deferred(&options).unwrap()
    };
    assert!(conditional(version, None).applied, "a batch without writes checks its conditions");
    assert!(conditional(version, Some(b"3")).applied);
    assert!(!conditional(version, None).applied);
    assert!(!conditional(version, Some(b"4")).applied);
    assert_eq!(
        keys.peek_with(b"a", |value, found| (value.to_vec(), found.expires_at_ms)).unwrap().0,
        Some((b"3".to_vec(), 4_102_444_800_000))
    );
}

#[test]
fn scans_go_both_ways_over_many_groups() {
    let db = Db::builder().in_memory().open().unwrap();
    let keys = db.keyspace("k").unwrap();
    for number in 0..1000u32 {
        keys.put(&number.to_be_bytes(), b"").unwrap();
    }
    let walk = |from: Bound<u32>, to: Bound<u32>, reverse, limit: usize| {
        let (from, to) = (from.map(u32::to_be_bytes), to.map(u32::to_be_bytes));
        let mut seen = Vec::new();
        keys.scan_deferred(from.as_ref().map(|k| &k[..]), to.as_ref().map(|k| &k[..]), reverse, |key, _, _| {
            seen.push(u32::from_be_bytes(key.try_into().unwrap()));
            if seen.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        seen
    };
    assert_eq!(walk(Bound::Unbounded, Bound::Unbounded, false, 5000), (0..1000).collect::<Vec<_>>());
    assert_eq!(walk(Bound::Excluded(9), Bound::Included(300), false, 5000), (10..=300).collect::<Vec<_>>());
    assert_eq!(walk(Bound::Included(9), Bound::Excluded(300), true, 200), (100..300).rev().collect::<Vec<_>>());
    assert!(walk(Bound::Included(5), Bound::Excluded(5), false, 9).is_empty());
}

/// A head's version may stand for rows that the same batch writes before the head. A reader that sees the head sees
/// these rows. A writer that saw a row before it changed finds the head changed at commit. This also holds if all of
/// them begin absent.
#[test]
fn what_a_batch_writes_becomes_visible_in_order() {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 40;
    for store in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let db = if store % 2 == 0 { on_file(dir.path()) } else { Db::builder().in_memory().open().unwrap() };
        let (heads, rows) = (db.keyspace("heads").unwrap(), db.keyspace("rows").unwrap());
        let start = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for round in 0..ROUNDS {
                        increment(&db, &heads, &rows, if round % 2 == 0 { b"even" } else { b"odd" });
                    }
                });
            }
        });
        for row in [&b"even"[..], b"odd"] {
            assert_eq!(count(rows.get(row).unwrap().as_deref()), THREADS * ROUNDS / 2, "store {store}");
        }
    }
}

fn count(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
}

/// Adds one to a row, on the condition that the head has not changed since before the row was read.
fn increment(db: &Db, heads: &hither::Keyspace, rows: &hither::Keyspace, row: &[u8]) {
    loop {
        let version = heads.peek_with(b"head", |_, found| found.version).unwrap().0;
        let new = (count(rows.get(row).unwrap().as_deref()) + 1).to_be_bytes();
        let mut batch = db.batch();
        batch.require_version(heads, b"head", version).put(rows, row, &new).put(heads, b"head", b"");
        if batch.commit_deferred(&WriteOptions::new()).unwrap().applied {
            return;
        }
    }
}

/// What has expired and was not removed yet is told apart, and a scan can end at it.
#[test]
fn a_scan_may_end_at_an_expired_key() {
    let builder = Db::builder().in_memory().with_options(|options| options.background = false);
    let keys = builder.open().unwrap().keyspace("k").unwrap();
    for (key, expires_at_ms) in [(b"a", 1), (b"b", 0), (b"c", 1), (b"d", 0)] {
        drop(keys.put_with(key, b"1", &WriteOptions::new().expires_at_ms(expires_at_ms)).unwrap());
    }
    let walk = |reverse, until: &[u8]| {
        let mut seen = Vec::new();
        keys.scan_deferred_with_expired(Bound::Unbounded, Bound::Unbounded, reverse, |key, there| {
            seen.push((key[0] as char, there.is_some()));
            if key == until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        seen
    };
    assert_eq!(walk(false, b"c"), [('a', false), ('b', true), ('c', false)]);
    assert_eq!(walk(true, b""), [('d', true), ('c', false), ('b', true), ('a', false)]);
}
