//! What is removed when, and what holds it up.

use super::removal::{Orphan, look, remove};
use super::*;
use crate::config::Config;
use crate::data::encoding::{Head, Type};
use crate::session::Session;
use crate::shared::Shared;
use hither::{Db, Durability, MediumChoice, WriteOptions};
use hither_pmem::{FailAt, Failpoints};
use hither_resp::Args;
use std::sync::Arc;

fn in_memory(count: u16) -> Arc<Databases> {
    Databases::open(Db::builder().in_memory().open().unwrap(), count).unwrap()
}

fn long_ago() -> Instant {
    Instant::now().checked_sub(SWEEP_EVERY).unwrap()
}

/// Regression: nobody looked for collections that were given an expiry in an earlier run and reached it in this one.
#[test]
fn what_an_earlier_run_gave_an_expiry_is_removed_when_that_comes() {
    // If the time comes before the first sweep, then once more, with more of it.
    assert!([200, 2_000, 20_000].map(Duration::from_millis).into_iter().any(is_removed_by_the_second_sweep));
}

/// Sweeps before and after a collection's time comes; returns false if it came before the first sweep.
fn is_removed_by_the_second_sweep(life: Duration) -> bool {
    let databases = in_memory(1);
    let database = databases.get(0).unwrap();
    let began = Instant::now();
    collection_at(&databases, 0, b"hash", &WriteOptions::new().ttl(life));
    // The sweep at the start.
    let removed = sweep(&databases).unwrap();
    if began.elapsed() >= life {
        return false;
    }
    assert_eq!(removed, 0);
    std::thread::sleep(life + Duration::from_millis(100));
    assert!(databases.reaper.may_expire(), "there will be more to remove");
    assert!(matches!(next(&databases.reaper, long_ago()), Work::Sweep));
    assert_eq!(sweep(&databases).unwrap(), 1);
    assert!(database.rows.is_empty());
    true
}

/// Regression: a sweep ended at its first error.
#[test]
fn a_sweep_goes_on_behind_what_it_cannot_remove() {
    let databases = in_memory(2);
    let (database, number) = (databases.get(1).unwrap(), databases.next_number().unwrap());
    database.rows.put(&encoding::registry_row(number), b"hash").unwrap();
    databases.db.drop_keyspace("db0.rows").unwrap();
    assert!(matches!(sweep(&databases), Err(Error::KeyspaceDropped(_))));
    assert!(database.rows.is_empty());
}

fn with_failpoints() -> (tempfile::TempDir, Arc<Databases>, Arc<Failpoints>) {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let builder = Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(8 << 20).durability(Durability::Process);
    // Nothing else syncs.
    let builder = builder.with_options(|options| (options.failpoints, options.background) = (Some(points.clone()), false));
    (dir, Databases::open(builder.open().unwrap(), 2).unwrap(), points)
}

/// Makes a hash with one field and returns its number.
fn collection(databases: &Databases) -> u64 {
    collection_at(databases, 0, b"hash", &WriteOptions::new())
}

fn collection_at(databases: &Databases, index: u16, key: &[u8], options: &WriteOptions) -> u64 {
    let (database, number) = (databases.get(index).unwrap(), databases.next_number().unwrap());
    database.rows.put(&encoding::registry_row(number), key).unwrap();
    database.rows.put(&encoding::row(number, encoding::part::FIELD, b"field"), b"value").unwrap();
    database.keys.put_with(key, &Head { kind: Type::Hash, number, count: 1 }.encode(), options).unwrap().wait().unwrap();
    databases.db.sync().unwrap();
    number
}

/// Regression: rows were removed before it was durable that their head is gone; a loss of power could bring back the
/// head without them.
#[test]
fn rows_stay_until_it_is_durable_that_their_head_is_gone() {
    let (_dir, databases, points) = with_failpoints();
    let database = databases.get(0).unwrap();
    collection(&databases);
    points.arm("sync", FailAt { skip: 0, count: u64::MAX, errno: 5 });
    database.keys.delete(b"hash").unwrap();
    assert!(sweep(&databases).is_err());
    assert!(points.reached("sync") >= 1);
    assert_eq!(database.rows.len(), 2);
}

/// Regression: where mending was cut short, rows whose registry row was wrong were removed from under the head that had
/// them.
#[test]
fn nothing_is_removed_while_something_is_left_to_mend() {
    let (_dir, databases, _) = with_failpoints();
    let database = databases.get(0).unwrap();
    collection(&databases);
    database.keys.delete(b"hash").unwrap();
    databases.mark.hold();
    assert_eq!((sweep(&databases).unwrap(), database.rows.len()), (0, 2));
}

/// Regression: what could not be removed when it was announced stayed until the next start.
#[test]
fn a_sweep_follows_what_could_not_be_removed() {
    let (_dir, databases, points) = with_failpoints();
    let number = collection(&databases);
    points.arm("sync", FailAt { skip: 0, count: u64::MAX, errno: 5 });
    databases.get(0).unwrap().keys.delete(b"hash").unwrap();
    databases.reaper.announce(0, number);
    let Work::Some(announced) = next(&databases.reaper, Instant::now()) else { panic!("it was announced") };
    reap_announced(&databases, &announced);
    assert!(matches!(next(&databases.reaper, long_ago()), Work::Sweep));
}

/// Regression: as long as something was announced, no sweep ran.
#[test]
fn a_sweep_that_is_due_comes_before_what_is_announced() {
    let reaper = Reaper::default();
    reaper.announce(0, 1);
    reaper.note_expiring();
    assert!(matches!(next(&reaper, long_ago()), Work::Sweep));
    // More than it keeps.
    let reaper = Reaper::default();
    (0..=MOST_ANNOUNCED as u64).for_each(|number| reaper.announce(0, number));
    assert!(matches!(next(&reaper, Instant::now()), Work::Some(some) if some.len() == PORTION));
    assert!(matches!(next(&reaper, long_ago()), Work::Sweep));
    assert!(matches!(next(&reaper, long_ago()), Work::Some(_)));
}

/// Regression: after one EXPIRE, all collections were looked at twice a minute for good.
#[test]
fn sweeps_end_when_nothing_is_left_that_may_expire() {
    let databases = in_memory(1);
    collection(&databases);
    databases.reaper.note_expiring();
    sweep(&databases).unwrap();
    assert!(!databases.reaper.may_expire());
    databases.reaper.note_expiring();
    databases.reaper.stop();
    sweep(&databases).unwrap();
    assert!(databases.reaper.may_expire(), "it was cut short");
}

/// A collection of this many rows without a head, as a sweep finds it.
fn orphan(databases: &Databases, rows: u32) -> Orphan {
    let database = databases.get(0).unwrap();
    let number = collection(databases);
    for field in 1..rows {
        database.rows.put(&encoding::row(number, encoding::part::FIELD, &field.to_be_bytes()), b"").unwrap();
    }
    database.keys.delete(b"hash").unwrap();
    look(databases, &database, number).unwrap().unwrap()
}

/// Regression: a stop waited until all rows of the current collection were gone.
#[test]
fn it_stops_between_two_portions() {
    let databases = in_memory(1);
    let orphan = orphan(&databases, 1000);
    databases.reaper.stop();
    assert!(!remove(&databases, &databases.get(0).unwrap(), &orphan).unwrap());
    assert_eq!(databases.get(0).unwrap().rows.len(), 1001);
}

/// Regression: while a large collection was removed, what was durable was not noted.
#[test]
fn the_mark_is_raised_during_a_removal() {
    let databases = in_memory(1);
    let orphan = orphan(&databases, 1000);
    let before = databases.mark.due(&databases.db).unwrap();
    databases.mark.make_due();
    assert!(remove(&databases, &databases.get(0).unwrap(), &orphan).unwrap());
    assert!(databases.mark.due(&databases.db).unwrap() > before);
}

/// Regression: each portion was removed on the condition that nobody had written the key meanwhile, but a client wrote
/// it all the time.
#[test]
fn a_key_that_is_written_all_the_time_does_not_hold_it_up() {
    let databases = in_memory(1);
    let (database, orphan) = (databases.get(0).unwrap(), orphan(&databases, 20_000));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                database.keys.put(b"hash", b"\0text").unwrap();
            }
        });
        let removed = remove(&databases, &database, &orphan);
        done.store(true, Ordering::Relaxed);
        assert!(removed.unwrap());
    });
    assert!(database.rows.is_empty());
}

/// A collection that has another key by now is in use.
#[test]
fn what_was_renamed_meanwhile_is_not_removed() {
    let databases = in_memory(1);
    let (database, number) = (databases.get(0).unwrap(), collection(&databases));
    let head = database.keys.get(b"hash").unwrap().unwrap();
    database.keys.delete(b"hash").unwrap();
    let orphan = look(&databases, &database, number).unwrap().unwrap();
    let mut batch = databases.db.batch();
    batch.put(&database.rows, &encoding::registry_row(number), b"other").put(&database.keys, b"other", &head);
    batch.commit().unwrap();
    assert!(!remove(&databases, &database, &orphan).unwrap());
    assert_eq!(database.rows.len(), 2);
}

/// Regression: removals alternating between two databases had a sync each.
#[test]
fn one_sync_serves_all_databases() {
    let (_dir, databases, points) = with_failpoints();
    for (index, key) in [(0, b"a"), (1, b"b"), (0, b"c")] {
        let number = collection_at(&databases, index, key, &WriteOptions::new());
        databases.get(index).unwrap().keys.delete(key).unwrap();
        databases.reaper.announce(index, number);
    }
    points.arm("sync", FailAt { skip: u64::MAX, count: 0, errno: 5 });
    let Work::Some(announced) = next(&databases.reaper, Instant::now()) else { panic!("they were announced") };
    reap_announced(&databases, &announced);
    assert_eq!(points.reached("sync"), 1);
    assert!(databases.existing().iter().all(|database| database.rows.is_empty()));
}

/// Regression: a string that was put, without a look, where the first collection of the database had come meanwhile left
/// that collection's rows behind.
#[test]
fn rows_of_a_first_collection_that_was_overwritten_unseen_are_removed() {
    for at_once in [false, true] {
        let shared = Shared::new(Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
        let client = shared.clients.add("test".into(), "test".into(), 0);
        let (mut session, database) = (Session::new(shared.clone(), client), shared.databases.get(0).unwrap());
        let (string, mut out, mut rests_on) = (encoding::string_entry(b"text"), Vec::new(), 0);
        let done = session.run(&shared, &mut out, &mut rests_on, None, true, |_, txn, _| {
            let fails = |error: Error| Box::new(error.into());
            if !at_once {
                txn.forget_collection(b"hash").map_err(fails)?;
            }
            database.note_collection().map_err(fails)?;
            collection(&shared.databases);
            match at_once {
                false => txn.put(b"hash", string.clone(), 0),
                true => txn.overwrite_unlooked(b"hash", &string, 0).map_err(fails)?,
            }
            Ok(())
        });
        assert!(done.is_ok());
        assert!(matches!(next(&shared.databases.reaper, Instant::now()), Work::Sweep));
        assert_eq!((sweep(&shared.databases).unwrap(), database.keys.len()), (1, 1));
        assert!(database.rows.iter().all(|row| row.unwrap().0 == encoding::MARKER));
    }
}

/// Regression: each EXEC that put a string into a database without collections and touched one with some had all rows
/// of all databases looked at.
#[test]
fn a_database_without_collections_beside_one_with_some_asks_for_no_sweep() {
    let shared = Shared::new(Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
    let client = shared.clients.add("test".into(), "test".into(), 0);
    let mut session = Session::new(shared.clone(), client);
    let mut run = |line: &str| {
        let ends = line.match_indices(' ').map(|(at, _)| at).chain([line.len()]);
        let starts = [0].into_iter().chain(line.match_indices(' ').map(|(at, _)| at + 1));
        let (ranges, mut out): (Vec<_>, Vec<u8>) = (starts.zip(ends).map(|(start, end)| start..end).collect(), Vec::new());
        // The database that it names is made meanwhile.
        while out.is_empty() {
            session.execute(&shared, Args::new(line.as_bytes(), &ranges), &mut out);
            std::thread::yield_now();
        }
        String::from_utf8(out).unwrap()
    };
    ["MULTI", "SET a 1", "SELECT 1", "HSET h f v"].into_iter().for_each(|line| drop(run(line)));
    assert_eq!(run("EXEC"), "*3\r\n+OK\r\n+OK\r\n:1\r\n");
    assert!(!shared.databases.reaper.state.lock().sweep);
}

/// Regression: rows of a collection were removed before it was durable that it had expired; if the clock was set back,
/// its head would have been there again without them.
#[test]
fn rows_stay_until_it_is_durable_that_their_head_has_expired() {
    let (_dir, databases, points) = with_failpoints();
    let number = collection_at(&databases, 0, b"hash", &WriteOptions::new().ttl(Duration::from_millis(1)));
    let database = databases.get(0).unwrap();
    while look(&databases, &database, number).unwrap().is_none() {
        std::thread::yield_now();
    }
    // The first sync is for what was written.
    points.arm("sync", FailAt { skip: 1, count: u64::MAX, errno: 5 });
    assert!(sweep(&databases).is_err());
    assert_eq!(database.rows.len(), 2);
}

/// Regression: an EXPIRE or PERSIST that had found the collection just before it expired, and was still under way, kept
/// the head and lost the rows.
#[test]
fn what_is_given_more_time_at_the_last_moment_stays() {
    let databases = in_memory(1);
    let database = databases.get(0).unwrap();
    let number = collection_at(&databases, 0, b"hash", &WriteOptions::new().expires_at_ms(1));
    let keys = database.keys.clone();
    let persist = move || drop(keys.put(b"hash", &Head { kind: Type::Hash, number, count: 1 }.encode()));
    *databases.reaper.between_looks.lock() = Some(Box::new(persist));
    assert_eq!(sweep(&databases).unwrap(), 0);
    assert_eq!(database.rows.len(), 2);
    database.keys.delete(b"hash").unwrap();
    assert_eq!((sweep(&databases).unwrap(), database.rows.len()), (1, 0));
}
