//! Settings, levels and handles at their edges.

use hither::{CollectorKind, Db, Durability, Error, KeyspaceOptions, MediumChoice, WriteOptions};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn on_file(dir: &Path) -> hither::Builder {
    Db::builder().path(dir).medium(MediumChoice::File).capacity(4 << 20)
}

/// Regression: the end of the wait lay beyond the range of the clock, and the write panicked.
#[test]
fn patience_may_have_no_end() {
    let db = Db::builder().in_memory().capacity(1 << 20).max_capacity(1 << 20).space_patience(Duration::MAX).open().unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let refused = (0..10_000u64).find_map(|key| keyspace.put(&key.to_be_bytes(), &[1; 500]).err());
    assert!(matches!(refused, Some(Error::Full { .. })), "what cannot be had is refused all the same: {refused:?}");
}

/// Regression: memory or the machine's threads were used up before the store was open.
#[test]
fn numbers_beyond_any_machine_are_refused_by_name() {
    let refused = |name: &str, builder: hither::Builder| {
        let error = builder.in_memory().open().expect_err(name).to_string();
        assert!(error.contains(name) && error.contains("at most"), "{error}");
    };
    refused("shards", Db::builder().shards(u32::MAX));
    refused("shards", Db::builder().shards(1 << 16));
    refused("threads", Db::builder().threads(usize::MAX));
    refused("gc-threads", Db::builder().gc_threads(usize::MAX));
    refused("read-threads", Db::builder().read_threads(usize::MAX));
    Db::builder().in_memory().shards(4096).threads(1024).open().unwrap();
}

/// Regression: in a store with an interval, a write with a shorter interval became durable only after the store's
/// interval.
#[test]
fn a_write_with_a_shorter_interval_than_the_store_is_durable_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let db = on_file(dir.path()).durability(Durability::Interval(Duration::from_secs(3600))).open().unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let options = WriteOptions::new().durability(Durability::Interval(Duration::from_millis(20)));
    let ticket = keyspace.put_with(b"k", b"v", &options).unwrap();
    let deferred = keyspace.write_deferred(b"l", Some(b"w"), &options).unwrap();
    assert!(deferred.applied);
    let written = db.written_version();
    let began = Instant::now();
    while !(ticket.is_durable() && db.durable_version() >= written) {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody makes it durable");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reports that it is dropped, and whether that happens in a panic.
struct Tell(std::sync::mpsc::Sender<bool>);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::panicking());
    }
}

/// Regression: the thread that runs callbacks waited for its own end and panicked, which left the store as after a
/// crash.
#[test]
fn the_last_handle_may_end_in_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let db = on_file(dir.path()).open().unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let ticket = keyspace.put_with(b"k", b"v", &WriteOptions::new()).unwrap();
    let ((tell, told), (go, gone)) = (channel(), channel::<()>());
    let tell = Tell(tell);
    ticket.on_durable(move |outcome| {
        outcome.unwrap();
        // Waits until this is the only handle.
        let _ = gone.recv();
        let _told_last = tell;
        drop(keyspace);
    });
    drop(db);
    drop(go);
    assert!(!told.recv_timeout(Duration::from_secs(60)).unwrap(), "it panicked");
    let began = Instant::now();
    let db = loop {
        match on_file(dir.path()).open() {
            Err(Error::Locked(_)) if began.elapsed() < Duration::from_secs(60) => std::thread::sleep(Duration::from_millis(5)),
            opened => break opened.unwrap(),
        }
    };
    assert!(db.recovery().clean, "it was closed");
}

/// Regression: the thread that runs callbacks waited for its own end and panicked, which left the store as after a
/// crash.
#[test]
fn a_store_is_not_closed_from_a_callback() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let db = on_file(dir.path()).open().unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let (tell, told) = channel();
        keyspace.put_with(b"k", b"v", &WriteOptions::new()).unwrap().on_durable(move |outcome| {
            outcome.unwrap();
            let refused = [db.checkpoint().err(), db.check().err(), db.close().err()];
            tell.send(refused).unwrap();
        });
        let refused = told.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("round {round}: it panicked"));
        assert!(refused.iter().all(|error| matches!(error, Some(Error::InsideCallback(_)))), "round {round}: {refused:?}");
        // Dropping the last handle closes the store.
        keyspace.put(b"l", b"w").unwrap();
        drop(keyspace);
        let began = Instant::now();
        let db = loop {
            match on_file(dir.path()).open() {
                Err(Error::Locked(_)) if began.elapsed() < Duration::from_secs(60) => std::thread::sleep(Duration::from_millis(5)),
                opened => break opened.unwrap(),
            }
        };
        assert!(db.recovery().clean && db.keyspace("k").unwrap().len() == 2, "round {round}");
    }
}

/// Regression: callbacks run after a commit, on the thread that led it. A thread that swaps names leads a commit with
/// the catalogue locked. A callback that took that lock waited for its own thread.
#[test]
fn keyspaces_are_not_changed_from_a_callback() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let db = std::sync::Arc::new(on_file(dir.path()).open().unwrap());
        let (keyspace, _other) = (db.keyspace("k").unwrap(), db.keyspace("l").unwrap());
        let (tell, told) = channel();
        let mine = db.clone();
        keyspace.put_with(b"k", b"v", &WriteOptions::new()).unwrap().on_durable(move |outcome| {
            outcome.unwrap();
            let refused = [mine.keyspace("m").err(), mine.drop_keyspace("l").err(), mine.swap_keyspaces(&[("k", "l")]).err()];
            tell.send(refused).unwrap();
        });
        let swapping = std::thread::spawn(move || db.swap_keyspaces(&[("k", "l")]).unwrap());
        let refused = told.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("round {round}: it waits for itself"));
        assert!(refused.iter().all(|error| matches!(error, Some(Error::InsideCallback(_)))), "round {round}: {refused:?}");
        assert!(swapping.join().unwrap());
    }
}

/// Regression: at levels where a put returned as soon as it was visible, conditional writes and batches waited for a
/// sync.
#[test]
fn no_write_waits_below_the_level_sync() {
    for level in [Durability::Interval(Duration::from_secs(3600)), Durability::Process, Durability::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let db = on_file(dir.path()).durability(level).open().unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let mut writes: [(&str, &mut dyn FnMut()); 5] = [
            ("put", &mut || keyspace.put(b"k", b"1").unwrap()),
            ("compare-and-swap", &mut || assert!(keyspace.compare_and_swap(b"k", Some(b"1"), Some(b"2")).unwrap())),
            ("update", &mut || drop(keyspace.update(b"k", |_| Some(b"3".to_vec())).unwrap())),
            ("batch", &mut || {
                let mut batch = db.batch();
                batch.put(&keyspace, b"k", b"4").delete(&keyspace, b"l");
                batch.commit().unwrap();
            }),
            ("delete", &mut || assert!(keyspace.delete(b"k").unwrap())),
        ];
        for (what, write) in &mut writes {
            let before = db.stats().commit_groups;
            write();
            assert_eq!(db.stats().commit_groups > before, level == Durability::Sync, "{level:?}: {what}");
        }
    }
}

/// Regression: a tombstone so large that it takes segments of its own could use only the space left for puts, so a full
/// store could not be emptied.
#[test]
fn a_full_store_can_be_emptied_of_keys_as_long_as_segments() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let builder = Db::builder().in_memory().capacity(16 << 20).max_capacity(16 << 20).segment_bytes(64 << 10).collector(collector);
        let db = builder.space_patience(Duration::from_secs(20)).open().unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let key = |number: u32| [&number.to_be_bytes()[..], &[7; 65_532]].concat();
        let kept = (0..1000).take_while(|number| keyspace.put(&key(*number), b"v").is_ok()).count() as u32;
        assert!((60..256).contains(&kept), "{kept}");
        for number in 0..kept {
            assert!(keyspace.delete(&key(number)).unwrap(), "{collector:?}: {number} of {kept}");
        }
        assert!(keyspace.is_empty() && db.check().unwrap().is_sound());
        keyspace.put(&key(0), b"v").unwrap();
    }
}

/// Regression: keys deleted after an older checkpoint came back when it was restored, because their tombstones were
/// removed after a newer checkpoint.
#[test]
fn an_older_checkpoint_beside_newer_pools_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let builder = on_file(dir.path()).durability(Durability::Process).max_capacity(16 << 20).segment_bytes(64 << 10).shards(1);
        builder.open().unwrap()
    };
    let db = open();
    let keyspace = db.keyspace("k").unwrap();
    let key = |number: u64| number.to_be_bytes();
    (0..5000).for_each(|number| keyspace.put(&key(number), &[1; 100]).unwrap());
    drop(keyspace);
    db.close().unwrap();
    let (current, older) = (dir.path().join("checkpoint.hither"), dir.path().join("older"));
    std::fs::copy(&current, &older).unwrap();
    let db = open();
    assert!(db.recovery().checkpoint_keys == 5000, "the next opening uses it");
    let keyspace = db.keyspace("k").unwrap();
    for number in (0..5000).step_by(3) {
        assert!(keyspace.delete(&key(number)).unwrap());
    }
    // Until the tombstones are gone.
    for round in 0..20 {
        (10_000..11_000).for_each(|number| keyspace.put(&key(number), &[round; 200]).unwrap());
        assert!(db.checkpoint().unwrap());
        db.reclaim().unwrap();
    }
    let pools = db.stats().pools;
    assert_eq!(pools[0].tombstones, 0);
    drop(keyspace);
    db.close().unwrap();
    std::fs::rename(&older, &current).unwrap();
    let db = open();
    let back = (0..5000).step_by(3).filter(|number| db.keyspace("k").unwrap().get(&key(*number)).unwrap().is_some()).count();
    assert_eq!(back, 0, "deleted keys are back");
    assert!(db.recovery().checkpoint_refused.contains("older") && db.keyspace("k").unwrap().len() == 5000 - 1667 + 1000);
}

/// Regression: a word in the pool records that older checkpoints do not count. After a crash between the publishing of
/// a checkpoint and the write of this word, or when a program that does not know the word took the checkpoint, the word
/// was out of date. The checkpoint was used all the same, and tombstones were removed.
#[test]
fn a_checkpoint_that_is_used_makes_older_ones_void() {
    const WORD: std::ops::Range<usize> = 2192..2200;
    let dir = tempfile::tempdir().unwrap();
    let open =
        |dir: &Path| on_file(dir).durability(Durability::Process).max_capacity(16 << 20).segment_bytes(64 << 10).shards(1).open().unwrap();
    let key = |number: u64| number.to_be_bytes();
    let db = open(dir.path());
    let keyspace = db.keyspace("k").unwrap();
    (0..5000).for_each(|number| keyspace.put(&key(number), &[1; 100]).unwrap());
    drop(keyspace);
    db.close().unwrap();
    let (pool, older) = ("node0.hither", std::fs::read(dir.path().join("checkpoint.hither")).unwrap());
    let word = std::fs::read(dir.path().join(pool)).unwrap()[WORD].to_vec();
    let db = open(dir.path());
    let keyspace = db.keyspace("k").unwrap();
    (0..5000).step_by(3).for_each(|number| assert!(keyspace.delete(&key(number)).unwrap()));
    drop(keyspace);
    db.close().unwrap();
    let mut bytes = std::fs::read(dir.path().join(pool)).unwrap();
    assert!(bytes[WORD] != word, "the checkpoint of the close is newer");
    bytes[WORD].copy_from_slice(&word);
    std::fs::write(dir.path().join(pool), &bytes).unwrap();
    let db = open(dir.path());
    assert_eq!(db.recovery().checkpoint_keys, 5000 - 1667);
    let keyspace = db.keyspace("k").unwrap();
    // Until the tombstones are gone.
    for round in 0..20 {
        (10_000..11_000).for_each(|number| keyspace.put(&key(number), &[round; 200]).unwrap());
        db.reclaim().unwrap();
    }
    assert_eq!(db.stats().pools[0].tombstones, 0);
    // The process crashes, and the older checkpoint replaces the newer one.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join(pool), copy.path().join(pool)).unwrap();
    std::fs::write(copy.path().join("checkpoint.hither"), older).unwrap();
    let db = open(copy.path());
    let back = (0..5000).step_by(3).filter(|number| db.keyspace("k").unwrap().get(&key(*number)).unwrap().is_some()).count();
    assert_eq!(back, 0, "deleted keys are back");
    assert!(db.recovery().checkpoint_refused.contains("older") && db.keyspace("k").unwrap().len() == 5000 - 1667 + 1000);
}

/// Regression: one of two contradicting settings was ignored silently.
#[test]
fn settings_that_contradict_each_other_are_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let refused = |builder: hither::Builder, what: &str| match builder.open() {
        Err(Error::Config(why)) if why.contains(what) => {}
        outcome => panic!("{what}: {outcome:?}"),
    };
    refused(Db::builder().path(one.path()).in_memory(), "in memory");
    refused(Db::builder().path(one.path()).path(other.path()), "two directories");
    refused(Db::builder().path(one.path()).gc_threshold(f64::NAN), "not a number");
    assert!([one.path(), other.path()].iter().all(|dir| std::fs::read_dir(dir).unwrap().next().is_none()));
    let db = Db::builder().in_memory().open().unwrap();
    assert!(matches!(db.compact_with(f64::NAN, |_| std::ops::ControlFlow::Continue(())), Err(Error::Config(_))));
}

#[test]
fn a_keyspace_is_of_the_kind_that_was_asked_for() {
    let db = Db::builder().in_memory().open().unwrap();
    for (name, options, other) in
        [("h", KeyspaceOptions::hash(), KeyspaceOptions::ordered()), ("o", KeyspaceOptions::ordered(), KeyspaceOptions::hash())]
    {
        // One of the threads creates the keyspace, and all of them get it.
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| db.keyspace_with(name, options).unwrap()))));
        let refused = db.keyspace_with(name, other).unwrap_err();
        assert!(matches!(refused, Error::KeyspaceKind { .. }) && refused.kind() == hither::ErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains(&format!("keyspace \"{name}\" exists and is")), "{refused}");
    }
    assert_eq!(db.keyspaces().len(), 2);
    assert!(matches!(db.keyspace_with("", KeyspaceOptions::hash()), Err(Error::KeyspaceName(_))));
}

/// The code that the README shows compiles, because it is `examples/readme.rs`.
#[test]
fn the_example_of_the_readme_is_one_that_compiles() {
    let (readme, example) = (include_str!("../../../../README.md"), include_str!("../../examples/readme.rs"));
    let (_, code) = example.split_once("\n\n").unwrap();
    assert!(readme.contains(&format!("```rust\n{code}```\n")), "README.md has another one than examples/readme.rs");
}

/// Regression: each update of a key waited until the one before it was durable, so each sync made only one update of a
/// counter durable, however many threads there were.
#[test]
fn updates_of_one_key_share_a_sync() {
    let (dir, points) = (tempfile::tempdir().unwrap(), hither_pmem::Failpoints::new());
    // A single segment, which is open already: a write that opens another one would wait for a sync.
    let db = on_file(dir.path()).shards(1).with_options(|options| options.failpoints = Some(points.clone())).open().unwrap();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"k", &[0]).unwrap();
    points.hold("sync");
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let add = |old: Option<&[u8]>| Some(vec![old.unwrap()[0] + 1]);
                tell.send(keyspace.update(b"k", add).unwrap().unwrap()[0]).unwrap();
            });
        }
        // Reads without waiting, as an update does.
        let seen = || keyspace.peek_with(b"k", |value, _| value[0]).unwrap().0.unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while seen() < 8 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (written, returned) = (seen(), told.try_recv());
        points.release("sync");
        assert_eq!(written, 8, "others wait for the sync of the first");
        assert!(returned.is_err(), "an update returned before it was durable");
    });
    let mut values: Vec<u8> = told.try_iter().collect();
    values.sort_unstable();
    assert_eq!(values, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// Deletes ranges of durable and not yet durable keys, of many keys and of none. The keys around a range stay, and
/// deletes are durable when they are reported.
#[test]
fn ranges_and_prefixes_are_deleted() {
    let (dir, points) = (tempfile::tempdir().unwrap(), hither_pmem::Failpoints::new());
    let builder = on_file(dir.path()).max_capacity(64 << 20).with_options(|options| options.failpoints = Some(points.clone()));
    let db = builder.open().unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let relaxed = WriteOptions::new().durability(Durability::Process);
    let key = |number: u32| [&b"k"[..], &number.to_be_bytes()].concat();
    let fill = || (0..5_000).for_each(|number| drop(keyspace.put_with(&key(number), b"v", &relaxed).unwrap()));
    let left = || keyspace.iter().map(|pair| pair.unwrap().0).collect::<Vec<_>>();
    fill();
    keyspace.put(b"j", b"before").unwrap();
    keyspace.put(b"l", b"behind").unwrap();
    let before = db.snapshot();
    let (from, to) = (key(10), key(4_990));
    assert_eq!(keyspace.delete_range(&from[..]..&to[..]).unwrap(), 4_980);
    let expected = [b"j".to_vec()].into_iter().chain((0..10).chain(4_990..5_000).map(key)).chain([b"l".to_vec()]);
    assert_eq!(left(), expected.collect::<Vec<_>>());
    assert_eq!(before.iter(&keyspace).count(), 5_002);
    fill();
    assert_eq!(keyspace.delete_prefix(b"k").unwrap(), 5_000);
    assert_eq!(left(), [b"j", b"l"]);
    assert_eq!((keyspace.delete_prefix(b"k").unwrap(), keyspace.delete_range(&to[..]..&from[..]).unwrap()), (0, 0));
    // A few large keys fill a batch.
    let long = |number: u8| [&b"k"[..], &vec![number; 60_000]].concat();
    (0..40).for_each(|number| keyspace.put(&long(number), b"v").unwrap());
    assert_eq!(keyspace.delete_range(..&b"l"[..]).unwrap(), 41);
    points.hold("sync");
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let mine = &keyspace;
        scope.spawn(move || tell.send(mine.delete_range(..).unwrap()).unwrap());
        let early = told.recv_timeout(Duration::from_millis(50));
        points.release("sync");
        assert!(early.is_err(), "it is not durable yet");
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(1));
    });
    assert!(keyspace.is_empty() && db.check().unwrap().is_sound());
    let hash = db.create_keyspace("h", KeyspaceOptions::hash()).unwrap();
    assert!(matches!(hash.delete_range(..), Err(Error::NotOrdered(_))));
    assert!(matches!(hash.delete_prefix(b"k"), Err(Error::NotOrdered(_))));
}

/// Regression: a batch of deletes needed more than the space that a full store reserves for deletes. It was refused,
/// although single deletes are not.
#[test]
fn a_range_is_deleted_from_a_full_store() {
    for (capacity, segment) in [(4 << 20, 64 << 10), (256 << 10, 4 << 10)] {
        let builder = Db::builder().in_memory().capacity(capacity).max_capacity(capacity).segment_bytes(segment);
        let db = builder.space_patience(Duration::from_secs(2)).open().unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let full = (0..200_000u32).take_while(|number| keyspace.put(&number.to_be_bytes(), b"some value").is_ok()).count() as u64;
        assert!((1_000..200_000).contains(&full), "{full} pairs fill it");
        assert_eq!(keyspace.delete_range(&10u32.to_be_bytes()[..]..).unwrap(), full - 10);
        assert_eq!(keyspace.len(), 10);
        keyspace.put(b"again", &[7; 100]).unwrap();
        assert!(db.check().unwrap().is_sound());
    }
}
