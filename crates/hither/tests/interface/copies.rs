//! Copies of open stores.

use crate::swaps::Stop;
use hither::{Builder, CopyError, Db, Error, Keyspace, KeyspaceOptions, Kind, MediumChoice, Topology, WriteOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const KINDS: [Kind; 2] = [Kind::Ordered, Kind::Hash];

fn keyspace(db: &Db, name: &str, kind: Kind) -> Keyspace {
    let options = if kind == Kind::Hash { KeyspaceOptions::hash() } else { KeyspaceOptions::ordered() };
    db.keyspace_with(name, options).unwrap()
}

/// A store in memory that may grow to 64 MiB.
fn source() -> Db {
    Db::builder().in_memory().capacity(4 << 20).max_capacity(64 << 20).open().unwrap()
}

fn target(path: &Path) -> Builder {
    Db::builder().path(path).capacity(1 << 20).medium(MediumChoice::Volatile)
}

fn open(path: &Path) -> Db {
    let db = target(path).create(false).open().unwrap();
    assert!(db.recovery().clean && db.check().unwrap().is_sound());
    db
}

type Held = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

fn held(keyspace: &Keyspace) -> Held {
    keyspace.iter().entries().map(|entry| entry.map(|entry| (entry.key, (entry.value, entry.expires_at_ms))).unwrap()).collect()
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_copy_has_everything_and_the_limit_of_its_store() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    for kind in KINDS {
        let keyspace = keyspace(&db, kind.name(), kind);
        for i in 0..3_000u32 {
            keyspace.put(format!("key {i}").as_bytes(), &i.to_be_bytes()).unwrap();
        }
        keyspace.put(&[0; 60_000], &vec![7; 3 << 20]).unwrap();
        let soon = WriteOptions::new().expires_at_ms(db.now_ms() + 10_000_000);
        keyspace.put_with(b"expires", b"", &soon).unwrap().wait().unwrap();
        keyspace.put_with(b"expired", b"", &WriteOptions::new().expires_at_ms(1)).unwrap().wait().unwrap();
        keyspace.delete(b"key 17").unwrap();
    }
    keyspace(&db, "nothing in it", Kind::Hash);
    let path = dir.path().join("some/where");
    let report = db.copy_to(target(&path)).unwrap();
    assert_eq!((report.keyspaces, report.keys), (3, 2 * 3_001));
    assert!(report.bytes > 2 * (3 << 20) && report.version > 0);
    assert_eq!(names_in(&path), ["checkpoint.hither", "node0.hither"]);
    let copy = open(&path);
    let infos = |db: &Db| db.keyspaces().into_iter().map(|info| (info.name, info.kind)).collect::<Vec<_>>();
    assert_eq!(infos(&copy), infos(&db));
    for kind in KINDS {
        let (from, to) = (keyspace(&db, kind.name(), kind), keyspace(&copy, kind.name(), kind));
        assert_eq!(held(&from), held(&to));
        assert_eq!(to.len(), 3_001);
    }
    assert_eq!(copy.stats().pools[0].max_bytes, 64 << 20);
    assert_ne!(copy.uuid(), db.uuid());
}

#[test]
fn limits_may_be_others() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    keyspace(&db, "k", Kind::Ordered).put(b"k", b"v").unwrap();
    db.copy_to(target(dir.path()).max_capacity(256 << 20)).unwrap();
    assert_eq!(open(dir.path()).stats().pools[0].max_bytes, 256 << 20);
}

/// Regression: a capacity equal to the default counted as not given, and the copy got the capacity of the old store.
#[test]
fn a_capacity_that_is_named_counts() {
    let (db, dir) = (Db::builder().in_memory().capacity(4 << 20).max_capacity(8 << 20).open().unwrap(), TempDir::new().unwrap());
    keyspace(&db, "k", Kind::Ordered).put(b"k", b"v").unwrap();
    for (name, capacity) in [("more", 65 << 20), ("as by default", 64 << 20)] {
        let path = dir.path().join(name);
        db.copy_to(target(&path).capacity(capacity)).unwrap();
        let pool = open(&path).stats().pools[0].clone();
        assert!(pool.capacity_bytes == capacity && pool.max_bytes == capacity, "{name}: {pool:?}");
    }
    let unnamed = dir.path().join("unnamed");
    db.copy_to(Db::builder().path(&unnamed).medium(MediumChoice::Volatile)).unwrap();
    let pool = open(&unnamed).stats().pools[0].clone();
    assert_eq!((pool.capacity_bytes, pool.max_bytes), (8 << 20, 8 << 20));
}

/// The copy does not contain what is written while it is made, whether a key changes before or after it is copied.
#[test]
fn a_copy_shows_the_moment_that_it_was_begun_at() {
    for kind in KINDS {
        let (db, dir) = (source(), TempDir::new().unwrap());
        let from = keyspace(&db, "k", kind);
        (0..8_000u32).for_each(|i| from.put(&i.to_be_bytes(), b"before").unwrap());
        let before = held(&from);
        let (mut calls, mut next) = (0, 0);
        let report = db.copy_to_with(target(dir.path()), |progress| {
            assert!(progress.keys <= 8_000 && (8_000..25_000).contains(&progress.expected), "{progress:?}");
            if progress.keys < next {
                return ControlFlow::Continue(());
            }
            // From time to time a third of the keys is overwritten, a third deleted, and new keys are put.
            for i in (calls % 3..8_000).step_by(3) {
                from.put(&u32::to_be_bytes(i), b"after").unwrap();
                from.delete(&u32::to_be_bytes(i + 1)).unwrap();
                from.put(&u32::to_be_bytes(i + 100_000 * calls), b"new").unwrap();
            }
            (calls, next) = (calls + 1, progress.keys + 700);
            ControlFlow::Continue(())
        });
        assert_eq!(report.unwrap().keys, 8_000);
        assert!(calls > 6);
        assert!(held(&keyspace(&open(dir.path()), "k", kind)) == before, "{kind:?}");
    }
}

/// Batches move keys between two keyspaces while copies are made: each copy has each key once.
#[test]
fn a_copy_is_of_one_moment_beside_writers() {
    let (db, dir, stop) = (source(), TempDir::new().unwrap(), AtomicBool::new(false));
    let places = KINDS.map(|kind| keyspace(&db, kind.name(), kind));
    for i in 0..1_000u32 {
        places[0].put(&i.to_be_bytes(), b"0").unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                let key = u32::to_be_bytes(round % 1_000);
                let (from, to) = if places[0].contains(&key).unwrap() { (&places[0], &places[1]) } else { (&places[1], &places[0]) };
                let mut batch = db.batch();
                batch.delete(from, &key).put(to, &key, round.to_string().as_bytes());
                batch.commit().unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        // Stops the writer even if an assertion below fails.
        let _stop = Stop(&stop);
        for number in 0..5 {
            let path = dir.path().join(number.to_string());
            assert_eq!(db.copy_to(target(&path)).unwrap().keys, 1_000);
            let copy = open(&path);
            let [ordered, hash] = KINDS.map(|kind| keyspace(&copy, kind.name(), kind));
            assert_eq!(ordered.len() + hash.len(), 1_000);
            assert!((0..1_000u32).all(|i| ordered.contains(&i.to_be_bytes()).unwrap() != hash.contains(&i.to_be_bytes()).unwrap()));
        }
    });
}

#[test]
fn nothing_is_left_of_a_copy_that_failed() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    for kind in KINDS {
        let keyspace = keyspace(&db, kind.name(), kind);
        (0..5_000u32).for_each(|i| keyspace.put(&i.to_be_bytes(), &[0; 200]).unwrap());
    }
    let path = dir.path().join("a/b");
    let stopped =
        db.copy_to_with(target(&path), |progress| if progress.keys > 2_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
    assert!(matches!(stopped, Err(CopyError::Stopped)), "{stopped:?}");
    let full = db.copy_to(target(&path).max_capacity(1 << 20));
    assert!(matches!(full, Err(CopyError::Target(Error::Full { .. }))), "{full:?}");
    for name in ["ordered", "hash"] {
        let dropped = db.copy_to_with(target(&path), |progress| {
            if progress.keys > 1_000 {
                db.drop_keyspace(name).unwrap();
            }
            ControlFlow::Continue(())
        });
        assert!(matches!(dropped, Err(CopyError::Source(Error::KeyspaceDropped(_)))), "{dropped:?}");
    }
    assert_eq!(names_in(dir.path()), [""; 0]);
}

#[test]
fn a_copy_goes_where_no_store_is() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    keyspace(&db, "k", Kind::Ordered).put(b"k", b"v").unwrap();
    let refusal = |target: Builder| match db.copy_to(target) {
        Err(CopyError::Target(Error::Config(what))) => what,
        other => panic!("{other:?}"),
    };
    assert!(refusal(Db::builder().in_memory()).contains("give its directory"));
    assert!(refusal(Db::builder()).contains("give its directory"));
    assert!(refusal(Db::builder().path("")).contains("give its directory"));
    assert!(
        refusal(target(dir.path()).with_options(|options| options.medium = hither_engine::MediumChoice::PrivateCopy))
            .contains("give its directory")
    );
    std::fs::write(dir.path().join("something else"), b"").unwrap();
    db.copy_to(target(dir.path())).unwrap();
    assert!(refusal(target(dir.path())).contains("node0.hither belongs to a store"));
    // The pool of another node is enough for a refusal.
    let other = TempDir::new().unwrap();
    std::fs::write(other.path().join("node1.hither"), b"").unwrap();
    assert!(refusal(target(other.path())).contains("node1.hither belongs to a store"));
    // A pool that somebody creates meanwhile stays untouched.
    let late = TempDir::new().unwrap();
    let pool = late.path().join("node0.hither");
    let outcome = db.copy_to_with(target(late.path()), |_| {
        std::fs::write(&pool, b"somebody's").unwrap();
        ControlFlow::Continue(())
    });
    assert!(matches!(outcome, Err(CopyError::Target(Error::Config(_)))), "{outcome:?}");
    assert_eq!(std::fs::read(&pool).unwrap(), b"somebody's");
    assert_eq!(names_in(late.path()), ["node0.hither"]);
    open(dir.path());
}

/// A killed copy leaves files that neither pass for a store nor stand in the way of another copy.
#[test]
fn a_copy_is_there_when_it_is_whole() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    keyspace(&db, "k", Kind::Ordered).put(b"k", b"v").unwrap();
    let new = dir.path().join("new");
    // The place exists already, or does not exist yet.
    for (place, prefix) in [(dir.path(), "copy."), (&new, "new.")] {
        let above = if place == new { dir.path() } else { place };
        let image = TempDir::new().unwrap();
        db.copy_to_with(target(place), |_| {
            let parts: Vec<_> = names_in(above).into_iter().filter(|name| name.ends_with(".part")).collect();
            assert!(parts.len() == 1 && parts[0].starts_with(prefix), "{parts:?}");
            assert!(!new.exists());
            let part = image.path().join(&parts[0]);
            std::fs::create_dir_all(&part).unwrap();
            for file in names_in(&above.join(&parts[0])) {
                std::fs::copy(above.join(&parts[0]).join(&file), part.join(&file)).unwrap();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        let place = if place == new { image.path().join("new") } else { image.path().to_owned() };
        assert!(matches!(target(&place).create(false).open(), Err(Error::NotFound(_))));
        db.copy_to(target(&place)).unwrap();
        assert_eq!(open(&place).stats().keyspaces[0].keys, 1);
    }
    assert_eq!(names_in(dir.path()), ["checkpoint.hither", "new", "node0.hither"]);
}

/// Regression: both copies used one directory. The first to fail removed it, and the other one was reported as made.
#[test]
fn of_two_copies_to_one_place_one_is_made() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    let from = keyspace(&db, "k", Kind::Hash);
    (0..2_000u32).for_each(|i| from.put(&i.to_be_bytes(), b"v").unwrap());
    for place in [dir.path().join("new"), dir.path().to_owned()] {
        let begun = AtomicUsize::new(0);
        let copy = || {
            let (mut is_first, until) = (true, Instant::now() + Duration::from_secs(20));
            db.copy_to_with(target(&place), |_| {
                if std::mem::take(&mut is_first) {
                    begun.fetch_add(1, Ordering::SeqCst);
                    while begun.load(Ordering::SeqCst) < 2 && Instant::now() < until {
                        std::thread::yield_now();
                    }
                }
                ControlFlow::Continue(())
            })
        };
        let outcomes = std::thread::scope(|scope| [scope.spawn(copy), scope.spawn(copy)].map(|thread| thread.join().unwrap()));
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(CopyError::Target(_)))), "{outcomes:?}");
        assert_eq!(held(&keyspace(&open(&place), "k", Kind::Hash)), held(&from));
    }
    assert_eq!(names_in(dir.path()), ["checkpoint.hither", "new", "node0.hither"]);
}

/// Regression: a copy whose files somebody had removed meanwhile was reported as made.
#[test]
fn what_was_removed_meanwhile_is_no_copy() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    keyspace(&db, "k", Kind::Ordered).put(b"k", b"v").unwrap();
    for place in [dir.path().join("new"), dir.path().to_owned()] {
        for whole in [true, false] {
            let outcome = db.copy_to_with(target(&place), |_| {
                for part in names_in(dir.path()) {
                    let part = dir.path().join(part);
                    std::fs::remove_file(part.join("node0.hither")).unwrap_or_default();
                    if whole {
                        std::fs::remove_dir(part).unwrap_or_default();
                    }
                }
                ControlFlow::Continue(())
            });
            assert!(matches!(&outcome, Err(CopyError::Target(Error::Io(what))) if what.contains("copy again")), "{outcome:?}");
            assert_eq!(names_in(dir.path()), [""; 0]);
        }
    }
}

/// Regression: the copy did all its work before it was refused.
#[test]
fn a_copy_is_not_made_inside_a_read() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    let from = keyspace(&db, "k", Kind::Ordered);
    from.put(b"k", b"v").unwrap();
    let outcome = from.get_with(b"k", |_| db.copy_to_with(target(dir.path()), |_| panic!("it has begun"))).unwrap().unwrap();
    assert!(matches!(outcome, Err(CopyError::Target(Error::InsideRead(_)))), "{outcome:?}");
    assert_eq!(names_in(dir.path()), [""; 0]);
}

#[test]
fn a_copy_may_have_other_nodes() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    let from = keyspace(&db, "k", Kind::Ordered);
    (0..1_000u32).for_each(|i| from.put(&i.to_be_bytes(), b"v").unwrap());
    let paths = [dir.path().join("a"), dir.path().join("b/c")];
    let two = || {
        let builder = Db::builder().capacity(2 << 20).topology(Arc::new(Topology::emulated(2))).medium(MediumChoice::Volatile);
        builder.node_path(0, &paths[0]).node_path(1, &paths[1])
    };
    db.copy_to(two()).unwrap();
    assert_eq!(names_in(&paths[0]), ["checkpoint.hither", "node0.hither"]);
    assert_eq!(names_in(&paths[1]), ["node1.hither"]);
    let copy = two().create(false).open().unwrap();
    assert_eq!(held(&keyspace(&copy, "k", Kind::Ordered)), held(&from));
    assert_eq!(copy.stats().pools.len(), 2);
}

/// Regression: after all its work the copy found its own directory in the way.
#[test]
fn places_may_lie_in_each_other_and_have_several_names() {
    let (db, dir) = (source(), TempDir::new().unwrap());
    let from = keyspace(&db, "k", Kind::Ordered);
    (0..1_000u32).for_each(|i| from.put(&i.to_be_bytes(), b"v").unwrap());
    for (number, (a, b)) in
        [("new", "new/n"), ("new/n", "new"), ("new", "./new"), ("new/", "there/../new"), ("there", "link/")].into_iter().enumerate()
    {
        let at = dir.path().join(number.to_string());
        std::fs::create_dir(&at).unwrap();
        std::fs::create_dir(at.join("there")).unwrap();
        std::os::unix::fs::symlink("there", at.join("link")).unwrap();
        let two = || {
            let builder = Db::builder().capacity(2 << 20).topology(Arc::new(Topology::emulated(2))).medium(MediumChoice::Volatile);
            builder.node_path(0, at.join(a)).node_path(1, at.join(b))
        };
        db.copy_to(two()).unwrap_or_else(|error| panic!("{a} {b}: {error}"));
        let copy = two().create(false).open().unwrap();
        assert_eq!(held(&keyspace(&copy, "k", Kind::Ordered)), held(&from), "{a} {b}");
    }
    let outcome = db.copy_to(target(&dir.path().join("nothing/..")));
    assert!(matches!(outcome, Err(CopyError::Target(Error::Io(_)))), "{outcome:?}");
    assert!(!dir.path().join("nothing").exists());
}
