//! The public interface, operation by operation, on each medium that tests can use.

use hither::{Db, Durability, Error, KeyspaceOptions, Kind, MediumChoice, WriteOptions};
use std::time::Duration;

/// Runs a scenario with both kinds of keyspaces on several media.
pub fn everywhere(scenario: impl Fn(&Db, Kind)) {
    for kind in [Kind::Ordered, Kind::Hash] {
        let memory = Db::builder().in_memory().capacity(8 << 20).max_capacity(64 << 20).open().unwrap();
        scenario(&memory, kind);
        let dir = tempfile::tempdir().unwrap();
        let file = Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(8 << 20).max_capacity(64 << 20).open().unwrap();
        scenario(&file, kind);
        assert!(file.check().unwrap().is_sound(), "{:?}", file.check().unwrap().problems);
    }
}

pub fn create(db: &Db, kind: Kind) -> hither::Keyspace {
    let options = if kind == Kind::Hash { KeyspaceOptions::hash() } else { KeyspaceOptions::ordered() };
    db.create_keyspace("test", options).unwrap()
}

#[test]
fn put_get_delete() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        assert_eq!(ks.get(b"k").unwrap(), None);
        ks.put(b"k", b"v1").unwrap();
        ks.put(b"k", b"v2, longer").unwrap();
        ks.put(b"12345678", b"abcdefgh").unwrap();
        ks.put(b"empty", b"").unwrap();
        ks.put(b"\0\0", b"zeros").unwrap();
        assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v2, longer");
        assert_eq!(ks.get(b"12345678").unwrap().unwrap(), b"abcdefgh");
        assert_eq!(ks.get(b"empty").unwrap().unwrap(), b"");
        assert_eq!(ks.get(b"\0\0").unwrap().unwrap(), b"zeros");
        assert_eq!(ks.get(b"\0").unwrap(), None);
        assert_eq!(ks.len(), 4);
        assert!(ks.delete(b"k").unwrap());
        assert!(!ks.delete(b"k").unwrap());
        assert_eq!(ks.get(b"k").unwrap(), None);
        assert_eq!(ks.multi_get(&[&b"k"[..], b"empty", b"12345678"]).unwrap(), [None, Some(vec![]), Some(b"abcdefgh".to_vec())]);
    });
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let db = Db::builder().in_memory().open().unwrap();
    let ks = db.keyspace("a").unwrap();
    assert!(matches!(ks.put(b"", b"v"), Err(Error::KeyEmpty)));
    assert!(matches!(ks.put(&vec![1; 65_537], b"v"), Err(Error::KeyTooLong { bytes: 65_537 })));
    ks.put(&vec![1; 65_536], b"v").unwrap();
    assert_eq!(ks.get(&vec![1; 65_536]).unwrap().unwrap(), b"v");
    let hash = db.create_keyspace("h", KeyspaceOptions::hash()).unwrap();
    assert!(matches!(hash.range(..), Err(Error::NotOrdered(_))));
    assert!(matches!(db.create_keyspace("h", KeyspaceOptions::hash()), Err(Error::KeyspaceExists(_))));
    let other = Db::builder().in_memory().open().unwrap();
    let mut batch = other.batch();
    batch.put(&ks, b"k", b"v");
    assert!(matches!(batch.commit(), Err(Error::ForeignKeyspace(_))));
}

/// Regression: each of these operations waited for the read from inside which it was called.
#[test]
fn what_waits_for_reads_is_refused_inside_one() {
    let db = Db::builder().in_memory().capacity(1 << 20).max_capacity(1 << 20).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    let fill = |byte| (0..700u32).try_for_each(|number| ks.put(&number.to_be_bytes(), &[byte; 1000]));
    fill(1).unwrap();
    let key = 5u32.to_be_bytes();
    let inside = |f: &dyn Fn() -> Result<(), Error>| ks.get_with(&key, |_| f()).unwrap().unwrap();
    for waiting in [
        &(|| db.reclaim().map(drop)) as &dyn Fn() -> Result<(), Error>,
        &|| db.compact().map(drop),
        &|| db.check().map(drop),
        &|| db.checkpoint().map(drop),
        &|| db.clone().close(),
    ] {
        assert!(matches!(inside(waiting), Err(Error::InsideRead(_))));
        waiting_is_over(&ks);
    }
    // Garbage could be collected to make space, but not from inside a read.
    let outcome = inside(&|| (2..20).try_for_each(fill));
    assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
    (2..20).try_for_each(fill).unwrap();
}

fn waiting_is_over(ks: &hither::Keyspace) {
    ks.put(b"after", b"that").unwrap();
}

/// Regression: a callback that panicked ended the thread that commits in the background, and the callbacks behind it
/// were lost.
#[test]
fn a_callback_that_panics_harms_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder().path(dir.path()).capacity(1 << 20).medium(hither::MediumChoice::File).open().unwrap();
    let ks = db.keyspace("k").unwrap();
    let (told, tell) = std::sync::mpsc::channel();
    for round in 0..2 {
        for number in 0..20u32 {
            let told = told.clone();
            ks.put_with(&number.to_be_bytes(), b"v", &WriteOptions::default()).unwrap().on_durable(move |outcome| {
                told.send(outcome.is_ok()).unwrap();
                assert!(number % 7 > 0, "meant to be seen in the test's output");
            });
        }
        // Nobody waits for these tickets, so the background must commit.
        for number in 0..20 {
            assert!(
                tell.recv_timeout(std::time::Duration::from_secs(30))
                    .unwrap_or_else(|_| panic!("round {round}, callback {number} was not called"))
            );
        }
    }
}

#[test]
fn compare_and_swap_and_update() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        assert!(ks.compare_and_swap(b"k", None, Some(b"1")).unwrap());
        assert!(!ks.compare_and_swap(b"k", None, Some(b"2")).unwrap());
        assert!(!ks.compare_and_swap(b"k", Some(b"2"), Some(b"3")).unwrap());
        assert!(ks.compare_and_swap(b"k", Some(b"1"), Some(b"2")).unwrap());
        assert_eq!(ks.get(b"k").unwrap().unwrap(), b"2");
        assert!(ks.compare_and_swap(b"k", Some(b"2"), None).unwrap());
        assert_eq!(ks.get(b"k").unwrap(), None);
        for _ in 0..10 {
            ks.update(b"n", |old| Some(vec![old.map_or(0, |old| old[0]) + 1])).unwrap();
        }
        assert_eq!(ks.get(b"n").unwrap().unwrap(), [10]);
    });
}

#[test]
fn concurrent_updates_lose_nothing() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..50u8 {
                        let add = |old: Option<&[u8]>| {
                            let old = old.map_or(0, |old| u32::from_le_bytes(old.try_into().unwrap()));
                            Some((old + 1).to_le_bytes().to_vec())
                        };
                        ks.update(&[i % 3 + 1], add).unwrap();
                    }
                });
            }
        });
        let total: u32 = (1..=3u8).map(|k| u32::from_le_bytes(ks.get(&[k]).unwrap().unwrap().try_into().unwrap())).sum();
        assert_eq!(total, 200);
    });
}

#[test]
fn batches_apply_entirely_or_not_at_all() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        let other = db.keyspace("other").unwrap();
        ks.put(b"gone", b"x").unwrap();
        let mut batch = db.batch();
        batch.put(&ks, b"a", b"1").put(&other, b"b", b"2").delete(&ks, b"gone").put(&ks, b"a", b"3").delete(&ks, b"never there");
        batch.commit().unwrap();
        assert_eq!(ks.get(b"a").unwrap().unwrap(), b"3");
        assert_eq!(other.get(b"b").unwrap().unwrap(), b"2");
        assert_eq!(ks.get(b"gone").unwrap(), None);
        let (_, version) = ks.get_versioned(b"a").unwrap().unwrap();
        let mut batch = db.batch();
        batch.require_version(&ks, b"a", Some(version)).require_version(&ks, b"gone", None).put(&ks, b"a", b"4");
        batch.commit().unwrap();
        let mut stale = db.batch();
        stale.require_version(&ks, b"a", Some(version)).put(&ks, b"a", b"5").put(&ks, b"c", b"5");
        assert!(matches!(stale.commit(), Err(Error::PreconditionFailed { .. })));
        assert_eq!(ks.get(b"a").unwrap().unwrap(), b"4");
        assert_eq!(ks.get(b"c").unwrap(), None);
    });
}

#[test]
fn expiry_hides_and_sweeps() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        ks.put(b"short", b"old").unwrap();
        ks.put_with(b"short", b"x", &WriteOptions::new().ttl(Duration::from_millis(5))).unwrap().wait().unwrap();
        ks.put_with(b"long", b"y", &WriteOptions::new().ttl(Duration::from_secs(3600))).unwrap().wait().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(ks.get(b"short").unwrap(), None);
        assert_eq!(ks.get(b"long").unwrap().unwrap(), b"y");
        assert!(!ks.delete(b"short").unwrap(), "an expired key was not there");
    });
}

/// Regression: updating a key that was to expire removed its expiry.
#[test]
fn an_update_leaves_the_time_of_expiry() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        let expiry = |key: &[u8]| ks.peek_with(key, |_, found| found.expires_at_ms).unwrap().0;
        let at = 4_102_444_800_000;
        ks.put_with(b"a", b"1", &WriteOptions::new().expires_at_ms(at)).unwrap().wait().unwrap();
        assert_eq!(ks.update(b"a", |old| Some([old.unwrap(), b"2"].concat())).unwrap().unwrap(), b"12");
        assert_eq!(expiry(b"a"), Some(at));
        assert_eq!(ks.update(b"b", |old| Some(vec![u8::from(old.is_none())])).unwrap().unwrap(), [1]);
        assert_eq!(expiry(b"b"), Some(0));
        assert!(ks.compare_and_swap(b"a", Some(b"12"), Some(b"3")).unwrap());
        assert_eq!(expiry(b"a"), Some(0), "what is put does not expire");
        assert_eq!(ks.update(b"a", |_| None).unwrap(), None);
        assert!(!ks.contains(b"a").unwrap());
    });
}

#[test]
fn values_of_every_size_and_guards() {
    let db = Db::builder().in_memory().capacity(8 << 20).max_capacity(256 << 20).open().unwrap();
    let ks = db.keyspace("v").unwrap();
    let sizes = [0, 1, 7, 8, 9, 100, 4096, 70_000, 600_000, 3 << 20, 20 << 20];
    let value = |size: usize| (0..size).map(|i| (i * 31 + size) as u8).collect::<Vec<_>>();
    for size in sizes {
        ks.put(format!("{size}").as_bytes(), &value(size)).unwrap();
    }
    let guard = ks.get_pinned(b"600000").unwrap().unwrap();
    for size in sizes {
        ks.put(format!("{size}").as_bytes(), &value(size + 1)).unwrap();
    }
    db.reclaim().unwrap();
    assert_eq!(*guard, value(600_000)[..], "a guard keeps its value");
    for size in sizes {
        assert_eq!(ks.get(format!("{size}").as_bytes()).unwrap().unwrap(), value(size + 1));
    }
}

#[test]
fn everything_is_back_after_reopen() {
    for kind in [Kind::Ordered, Kind::Hash] {
        let dir = tempfile::tempdir().unwrap();
        let open = |shards| Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(4 << 20).shards(shards).open().unwrap();
        {
            let db = open(4);
            let ks = create(&db, kind);
            for i in 0..3000u32 {
                ks.put_with(&i.to_be_bytes(), &i.to_le_bytes(), &WriteOptions::new().durability(Durability::Process))
                    .unwrap()
                    .wait()
                    .unwrap();
            }
            for i in (0..3000u32).step_by(3) {
                let (existed, _) = ks.delete_with(&i.to_be_bytes(), &WriteOptions::new().durability(Durability::Process)).unwrap();
                assert!(existed);
            }
            db.close().unwrap();
        }
        for shards in [1, 8, 2] {
            let db = open(shards);
            let ks = db.open_keyspace("test").unwrap().unwrap();
            assert_eq!(ks.len(), 2000);
            for i in 0..3000u32 {
                assert_eq!(ks.get(&i.to_be_bytes()).unwrap().is_some(), i % 3 != 0, "key {i}");
            }
            assert!(db.check().unwrap().is_sound(), "{:?}", db.check().unwrap().problems);
            ks.put(b"another", b"one").unwrap();
            ks.delete(b"another").unwrap();
        }
    }
}

#[test]
fn a_closed_store_reads_but_does_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let ks = db.keyspace("a").unwrap();
    ks.put(b"k", b"v").unwrap();
    db.clone().close().unwrap();
    assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v");
    assert!(matches!(ks.put(b"k", b"w"), Err(Error::Closed)));
    assert!(matches!(db.keyspace("b"), Err(Error::Closed)));
    let mut batch = db.batch();
    batch.put(&ks, b"k", b"w");
    assert!(matches!(batch.commit(), Err(Error::Closed)));
    drop((db, ks));
    let refused = Db::open(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("batches"), "a batch keeps the store open: {refused}");
    drop(batch);
    let db = Db::open(dir.path()).unwrap();
    assert!(db.recovery().clean);
    assert_eq!(db.keyspace("a").unwrap().get(b"k").unwrap().unwrap(), b"v");
}

/// A byte that changes in a half-filled segment of a cleanly closed store is damage, not an entry torn by a crash.
#[test]
fn damage_in_a_half_filled_segment_is_noticed() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    {
        let db = Db::builder().path(dir.path()).capacity(1 << 20).open().unwrap();
        let ks = db.keyspace("a").unwrap();
        ks.put(b"a key to find", b"a value to damage").unwrap();
        ks.put(b"another key", b"another value").unwrap();
    }
    let path = dir.path().join("node0.hither");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(17).position(|window| window == b"a value to damage").unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"A", at as u64).unwrap();
    // A clean restart reads only the checkpoint of the indexes. The damage is found by a read of the entry, by the
    // verification in the background, by `check`, and by an open that scans.
    let db = Db::open(dir.path()).unwrap();
    assert_eq!(db.recovery().source, "clean");
    let ks = db.keyspace("a").unwrap();
    assert!(matches!(ks.get(b"a key to find"), Err(Error::Damaged(_))));
    assert_eq!(ks.get(b"another key").unwrap().unwrap(), b"another value");
    while db.stats().damage.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(ks.get(b"a key to find"), Err(Error::Damaged(_))), "still not served");
    assert!(!db.check().unwrap().is_sound());
    drop((db, ks));
    std::fs::remove_file(dir.path().join("checkpoint.hither")).unwrap();
    let error = Db::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Damaged(_)), "{error}");
    let salvaged = Db::builder().path(dir.path()).salvage(true).open().unwrap();
    assert_eq!(salvaged.recovery().salvaged.len(), 1);
    assert_eq!(salvaged.keyspace("a").unwrap().get(b"another key").unwrap().unwrap(), b"another value");
}

/// The magic or the catalogue are overwritten with zeros. A store full of data must not pass for one whose creation was
/// never finished.
#[test]
fn lost_first_bytes_or_catalogue_are_damage() {
    use std::os::unix::fs::FileExt;
    for (at, len) in [(0, 8), (0, 64), (0, 4096), (0, 65_536), (4096, 8)] {
        let dir = tempfile::tempdir().unwrap();
        {
            let db = Db::builder().path(dir.path()).capacity(1 << 20).open().unwrap();
            let ks = db.keyspace("a").unwrap();
            ks.put(b"key", b"value").unwrap();
        }
        let path = dir.path().join("node0.hither");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&vec![0; len], at).unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = Db::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{len} bytes at {at}: {error}");
        assert!(std::fs::read(&path).unwrap() == before, "nothing is changed");
    }
}

#[test]
fn keyspaces_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    {
        let db = Db::builder().path(dir.path()).open().unwrap();
        let a = db.keyspace("a").unwrap();
        a.put(b"k", b"a").unwrap();
        assert!(db.drop_keyspace("a").unwrap());
        assert!(!db.drop_keyspace("a").unwrap());
        assert!(matches!(a.put(b"k", b"v"), Err(Error::KeyspaceDropped(_))));
        let again = db.create_keyspace("a", KeyspaceOptions::hash()).unwrap();
        assert!(again.info().id > a.info().id);
        assert_eq!(again.get(b"k").unwrap(), None);
    }
    let db = Db::builder().path(dir.path()).open().unwrap();
    assert_eq!(db.keyspaces().len(), 1);
    assert_eq!(db.open_keyspace("a").unwrap().unwrap().get(b"k").unwrap(), None);
    assert!(matches!(Db::open(dir.path()), Err(Error::Locked(_))));
    assert!(matches!(Db::builder().path(dir.path().join("none")).create(false).open(), Err(Error::NotFound(_))));
}

/// Which threads may have what. It is checked when this is compiled.
#[test]
fn handles_go_to_other_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<Db>();
    shared::<hither::Keyspace>();
    shared::<hither::Snapshot>();
    shared::<hither::Builder>();
    shared::<hither::ValueGuard>();
    shared::<Error>();
    sent::<hither::Batch>();
    sent::<hither::Iter>();
    sent::<hither::Ticket>();
}
