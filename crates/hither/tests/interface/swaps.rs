//! Swapping the names of keyspaces: atomic for all users, also across a crash.

use hither::{Db, Durability, Error, KeyspaceOptions, MediumChoice, WriteOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn on_file(dir: &Path) -> Db {
    Db::builder().path(dir).medium(MediumChoice::File).capacity(4 << 20).open().unwrap()
}

fn get(db: &Db, keyspace: &str, key: &[u8]) -> Option<Vec<u8>> {
    db.open_keyspace(keyspace).unwrap().unwrap().get(key).unwrap()
}

/// Opens what a crash leaves: a copy of the files as they are while the store is open.
fn crashed(from: &Path, to: &Path) -> Db {
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    on_file(to)
}

#[test]
fn names_change_with_everything_under_them_and_stay_changed() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ids = swap_four(dir.path(), copy.path());
    // With all data written before the swap, though nobody had asked for it to be durable.
    for dir in [dir.path(), copy.path()] {
        let db = on_file(dir);
        assert_eq!([get(&db, "a", b"k"), get(&db, "b", b"k")], [Some(b"of b".to_vec()), Some(b"of a".to_vec())]);
        assert_eq!([get(&db, "c", b"k"), get(&db, "d", b"k")], [None, Some(b"of c".to_vec())]);
        let info = |name: &str| db.keyspaces().into_iter().find(|info| info.name == name).unwrap();
        assert_eq!([info("b").id, info("d").id], ids);
        assert!(db.check().unwrap().is_sound());
    }
}

/// Swaps a with b and c with d in a store, copies it as a crash would leave it, and closes it. Returns the ids that a
/// and c had.
fn swap_four(dir: &Path, copy: &Path) -> [u32; 2] {
    let db = on_file(dir);
    let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    let hash = db.create_keyspace("c", KeyspaceOptions::hash()).unwrap();
    db.keyspace("d").unwrap();
    let relaxed = WriteOptions::new().durability(Durability::Process);
    let _ = a.put_with(b"k", b"of a", &relaxed).unwrap();
    let _ = b.put_with(b"k", b"of b", &relaxed).unwrap();
    let _ = hash.put_with(b"k", b"of c", &relaxed.expires_at_ms(4_102_444_800_000)).unwrap();
    assert!(!db.swap_keyspaces(&[("a", "b"), ("c", "nothing")]).unwrap());
    assert_eq!(a.get(b"k").unwrap().unwrap(), b"of a", "nothing has happened");
    assert!(db.swap_keyspaces(&[("a", "b"), ("c", "d")]).unwrap());
    crashed(dir, copy);
    assert!(matches!(a.get(b"k"), Err(Error::KeyspaceDropped(_))));
    assert!(matches!(b.put(b"k", b"late"), Err(Error::KeyspaceDropped(_))));
    let mut batch = db.batch();
    batch.put(&db.keyspace("a").unwrap(), b"k", b"late").put(&hash, b"k", b"late");
    assert!(matches!(batch.commit(), Err(Error::KeyspaceDropped(_))), "one old handle is enough");
    [a.info().id, hash.info().id]
}

/// Regression: the names changed differently in memory and in the catalogue. Two names led to one keyspace, its keys
/// were in the checkpoint of the close twice, and loading that checkpoint panicked.
#[test]
fn a_name_in_several_pairs_goes_from_one_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let all = |db: &Db| ["a", "b", "c"].map(|name| String::from_utf8(get(db, name, b"k").unwrap()).unwrap());
    let db = on_file(dir.path());
    for name in ["a", "b", "c"] {
        db.keyspace(name).unwrap().put(b"k", name.as_bytes()).unwrap();
    }
    assert!(db.swap_keyspaces(&[("a", "b"), ("b", "c")]).unwrap());
    assert_eq!(all(&db), ["b", "c", "a"]);
    assert!(db.swap_keyspaces(&[("a", "b"), ("a", "b"), ("c", "c")]).unwrap());
    assert_eq!(all(&db), ["b", "c", "a"], "there and back");
    db.close().unwrap();
    let db = on_file(dir.path());
    assert_eq!(all(&db), ["b", "c", "a"]);
    assert!(db.check().unwrap().is_sound());
}

#[test]
fn a_crash_right_after_it_keeps_it() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let db = on_file(dir.path());
    let (a, _) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    let _ = a.put_with(b"k", b"v", &WriteOptions::new().durability(Durability::Process)).unwrap();
    db.swap_keyspaces(&[("a", "b")]).unwrap();
    let after = crashed(dir.path(), copy.path());
    assert_eq!([get(&after, "a", b"k"), get(&after, "b", b"k")], [None, Some(b"v".to_vec())]);
    db.swap_keyspaces(&[("a", "b")]).unwrap();
    db.keyspace("a").unwrap().put(b"l", b"w").unwrap();
    assert_eq!([get(&db, "a", b"k"), get(&db, "a", b"l")], [Some(b"v".to_vec()), Some(b"w".to_vec())]);
}

/// Stops the other threads of a test when it is dropped, also if the test fails.
pub struct Stop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_written_under_the_name_of_before() {
    let db = Db::builder().in_memory().open().unwrap();
    db.keyspace("a").unwrap();
    db.keyspace("b").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u8 {
            let (db, stop) = (&db, &stop);
            scope.spawn(move || {
                let (mut handle, mut count) = (db.keyspace("a").unwrap(), 0u64);
                while !stop.load(Ordering::Relaxed) {
                    count += 1;
                    let put = if writer == 0 {
                        handle.put(b"single", &count.to_le_bytes())
                    } else {
                        let mut batch = db.batch();
                        batch.put(&handle, b"x", &count.to_le_bytes()).put(&handle, b"y", &count.to_le_bytes());
                        batch.commit()
                    };
                    match put {
                        Err(Error::KeyspaceDropped(_)) => handle = db.keyspace("a").unwrap(),
                        outcome => outcome.unwrap(),
                    }
                }
            });
        }
        let _stop = Stop(&stop);
        for _ in 0..300 {
            assert!(db.swap_keyspaces(&[("a", "b")]).unwrap());
            let look = || [&b"single"[..], b"x", b"y"].map(|key| get(&db, "b", key));
            let first = look();
            assert_eq!(first[1], first[2]);
            (0..20).for_each(|_| assert_eq!(look(), first, "everybody writes to the other one"));
        }
    });
}

/// Regression: while a swap waited for its sync, opening a name returned a handle that failed, although its error says
/// to open the keyspace again.
#[test]
fn a_name_leads_to_a_handle_that_can_be_used_also_during_an_exchange() {
    let (dir, points) = (tempfile::tempdir().unwrap(), hither_pmem::Failpoints::new());
    let builder = Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(4 << 20);
    let db = builder.with_options(|options| options.failpoints = Some(points.clone())).open().unwrap();
    let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    let _ = a.put_with(b"k", b"of a", &WriteOptions::new().durability(Durability::Process)).unwrap();
    points.hold("sync");
    let (swapped, opened) = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| db.swap_keyspaces(&[("a", "b")]));
        while b.get(b"k").is_ok() && !swapping.is_finished() {
            std::thread::yield_now();
        }
        let opening = scope.spawn(|| db.keyspace("b").and_then(|handle| handle.get(b"k")));
        // Long enough for opening a keyspace that does not wait.
        std::thread::sleep(std::time::Duration::from_millis(50));
        points.release("sync");
        (swapping.join().unwrap(), opening.join().unwrap())
    });
    assert!(swapped.unwrap());
    assert_eq!(opened.unwrap().as_deref(), Some(&b"of a"[..]));
}
