use super::*;
use crate::{Durability, Kind, Store};
use hither_log::TakeBack;
use std::path::Path;

fn open(dir: &Path) -> Store {
    open_by(0, dir)
}

/// With this many threads for a restart.
fn open_by(threads: usize, dir: &Path) -> Store {
    Store::open(Options {
        threads,
        paths: vec![(None, dir.to_owned())],
        capacity: 16 << 20,
        max_capacity: 16 << 20,
        segment_bytes: 64 << 10,
        shards: 1,
        durability: Durability::Process,
        background: false,
        ..Options::default()
    })
    .unwrap()
}

/// Twenty thousand keys, which are copied in five pieces, in an ordered keyspace.
fn open_filled(dir: &Path, name: &str) -> Store {
    let store = open(dir);
    let keyspace = store.create_keyspace(name, Kind::Ordered).unwrap();
    for number in 0..20_000u64 {
        store.write_wait(&keyspace, format!("a key of more than eight bytes {number:08}").as_bytes(), Some(b"value")).unwrap();
    }
    store
}

/// The bound in words: a restart takes at most a quarter longer than it would with a new checkpoint, whatever the
/// number of keys and threads.
#[test]
fn a_close_relies_on_an_older_checkpoint_while_a_restart_gets_a_quarter_longer_at_most() {
    for keys in [[5_000_000, 0], [0, 5_000_000], [2_000_000, 7_000_000], [1, 0], [0, 0]] {
        for threads in [0, 1, 2, 64] {
            let forecast = Forecast { keys, other_keys: keys[0] / 3, threads };
            assert!(forecast.suffices(0), "nothing to scan");
            let most = (0..64).map(|power| 1u64 << power).take_while(|&entries| forecast.suffices(entries)).last();
            match most {
                Some(most) => {
                    let slower = |entries| forecast.scan_ms(entries) / forecast.load_ms();
                    assert!(slower(most) <= 0.25 && slower(2 * most) > 0.25, "{keys:?}, {threads} threads: {most} entries");
                    assert!(most < keys[0] + keys[1], "never more than there are keys");
                }
                None => assert!(keys[0] + keys[1] < 100, "{keys:?}: something may be left to be scanned"),
            }
        }
    }
}

/// The entries of a keyspace that is dropped while it is being copied lie in segments that may be in use again, so the
/// keys read there may be anything. The copying must still come to an end.
#[test]
fn a_keyspace_dropped_while_it_is_copied_does_not_keep_the_checkpoint_from_ending() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_filled(dir.path(), "passing");
    let kept = store.create_keyspace("kept", Kind::Hash).unwrap();
    store.write_wait(&kept, b"key", Some(b"value")).unwrap();
    let mut calls = 0;
    let outcome = store.core.checkpoints.take(&store.core, false, &mut || {
        calls += 1;
        if calls == 3 {
            store.drop_keyspace("passing").unwrap();
            for _ in 0..20 {
                store.reclaim().unwrap();
            }
        }
        calls < 10_000
    });
    assert!(outcome.is_ok() && calls < 10_000, "20,000 keys are five pieces; it has copied {calls}");
    drop(store);
}

/// Copying a hash index locks its pairs for a moment each. A check beside it took that for a fault of the index.
#[test]
fn a_check_waits_for_a_checkpoint_under_way() {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let options = Options { paths: vec![(None, dir.path().to_owned())], capacity: 1 << 20, max_capacity: 1 << 20, ..Options::default() };
    let store = Store::open(Options { segment_bytes: 16 << 10, shards: 1, background: false, ..options }).unwrap();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    store.write_wait(&keyspace, b"key", Some(b"value")).unwrap();
    let (begun, ended) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = true;
            let taken = store.core.checkpoints.take(&store.core, false, &mut || {
                if std::mem::take(&mut first) {
                    begun.wait();
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                ended.store(true, Ordering::SeqCst);
                true
            });
            assert!(taken.unwrap() && !first);
        });
        begun.wait();
        assert!(store.check().unwrap().is_sound());
        assert!(ended.load(Ordering::SeqCst), "a checkpoint is under way still");
    });
}

/// Found by hand: a checkpoint that was made void, for a write that found no space, was written to its end before it
/// was thrown away.
#[test]
fn a_void_checkpoint_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_filled(dir.path(), "keys");
    let checkpoints = &store.core.checkpoints;
    let mut calls = 0;
    let published = checkpoints.take(&store.core, false, &mut || {
        calls += 1;
        checkpoints.invalidate(&store.core.log).is_ok()
    });
    assert_eq!((published.unwrap(), calls), (false, 1));
}

type Change = Box<dyn Fn(&mut format::Index)>;

/// Changes the tables of the checkpoint in `dir`, with checksums that are right.
fn craft(dir: &Path, change: impl FnOnce(&mut format::Index)) {
    use format::{Index, TRAILER_BYTES, Trailer};
    let path = dir.join("checkpoint.hither");
    let mut bytes = std::fs::read(&path).unwrap();
    let (rest, end) = bytes.split_at(bytes.len() - TRAILER_BYTES);
    let trailer = Trailer::decode(end.try_into().unwrap(), bytes.len() as u64).unwrap();
    let mut index = Index::decode(&trailer, &rest[trailer.index_offset as usize..]).unwrap();
    change(&mut index);
    bytes.truncate(trailer.index_offset as usize);
    bytes.extend_from_slice(&index.encode(trailer.index_offset));
    std::fs::write(path, bytes).unwrap();
}

/// Names all keyspaces and their blocks twice.
fn double(index: &mut format::Index) {
    index.keyspaces.extend_from_within(..);
    index.blocks.extend_from_within(..);
}

/// Names the blocks of each keyspace twice.
fn repeat_blocks(index: &mut format::Index) {
    let mut rest = std::mem::take(&mut index.blocks);
    for row in &mut index.keyspaces {
        let behind = rest.split_off(row.blocks as usize);
        index.blocks.extend([&rest[..], &rest].concat());
        (rest, row.blocks) = (behind, 2 * row.blocks);
    }
}

/// Regression: what a checkpoint says was believed if its checksums are right. Writers went on at a tail in page 0, or
/// among entries; versions began anew behind the last one; an opening panicked if a keyspace was there twice.
#[test]
fn a_checkpoint_that_says_what_cannot_be_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_filled(dir.path(), "keys");
    let keyspace = store.create_keyspace("hashed", Kind::Hash).unwrap();
    assert!((0..500u64).all(|key| store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"value")).is_ok()));
    drop((keyspace, store));
    let files = ["node0.hither", "checkpoint.hither"].map(|name| dir.path().join(name));
    let bytes = files.each_ref().map(|path| std::fs::read(path).unwrap());
    let tail = |change: fn(u64, &SegmentRow) -> u64| {
        move |index: &mut format::Index| {
            let open: Vec<_> = index.segments.iter_mut().filter(|row| row.tail != 0).collect();
            assert!(!open.is_empty());
            open.into_iter().for_each(|row| row.tail = change(row.tail, row));
        }
    };
    let crafted: [(&str, Change); 10] = [
        ("in page 0", Box::new(tail(|_, _| 64))),
        ("before what was written", Box::new(tail(|tail, row| tail - row.written_bytes))),
        ("in another segment", Box::new(tail(|tail, _| tail + (64 << 10)))),
        ("beyond everything", Box::new(tail(|_, _| u64::MAX - 7))),
        ("within a word", Box::new(tail(|tail, _| tail - 4))),
        ("versions beyond all", Box::new(|index: &mut format::Index| index.newest_version = u64::MAX)),
        ("versions below its own", Box::new(|index: &mut format::Index| index.newest_version = 1)),
        ("all keyspaces twice", Box::new(double)),
        (
            "a hash keyspace twice",
            Box::new(|index: &mut format::Index| {
                double(index);
                index.blocks.drain(..index.keyspaces.remove(0).blocks as usize);
            }),
        ),
        ("all blocks twice", Box::new(repeat_blocks)),
    ];
    for (what, change) in crafted {
        craft(dir.path(), change);
        let store = open(dir.path());
        let recovery = store.recovery();
        assert_eq!((recovery.source, recovery.checkpoint_refused.is_empty()), (crate::RestartSource::Scan, false), "{what}");
        let keyspace = store.open_keyspace("keys").unwrap();
        assert_eq!(keyspace.len(), 20_000, "{what}");
        store.write_wait(&keyspace, b"one more", Some(b"value")).unwrap();
        assert!(store.check().unwrap().is_sound(), "{what}");
        drop(store);
        files.iter().zip(&bytes).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    }
    craft(dir.path(), |_| {});
    assert_eq!(open(dir.path()).recovery().source, crate::RestartSource::Clean, "nothing was changed");
}

/// A checkpoint that an older or a newer program wrote, whole and of this store: the meaning of its tables and images
/// is not known, so the log is scanned, and everything is there.
#[test]
fn a_checkpoint_of_another_format_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    let keys = || (0..5000u64).map(u64::to_be_bytes);
    keys().for_each(|key| assert!(store.write_wait(&keyspace, &key, Some(&key)).is_ok()));
    drop((keyspace, store));
    let path = dir.path().join("checkpoint.hither");
    let own = std::fs::read(&path).unwrap();
    for format in [1, 2, format::FORMAT + 1] {
        let mut bytes = own.clone();
        bytes[8..12].copy_from_slice(&format.to_le_bytes());
        let sum = format::checksum(&bytes[..60]);
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let store = open(dir.path());
        let recovery = store.recovery();
        assert_eq!(recovery.source, crate::RestartSource::Scan, "format {format}");
        assert!(recovery.checkpoint_refused.contains(&format!("format {format}")), "{}", recovery.checkpoint_refused);
        let keyspace = store.open_keyspace("keys").unwrap();
        keys().for_each(|key| assert_eq!(store.get_with(&keyspace, &key, |value| value == key).unwrap(), Some(true)));
        assert!(store.check().unwrap().is_sound(), "format {format}");
    }
    assert_eq!(open(dir.path()).recovery().source, crate::RestartSource::Clean, "the last close has written its own");
}

/// Regression: the predicted time of a restart of a store with ordinary keys was a sixth of the actual time.
#[test]
fn keys_that_are_no_words_are_counted_for_the_forecast() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_filled(dir.path(), "strings");
    let words = store.create_keyspace("words", Kind::Ordered).unwrap();
    (0..100u64).for_each(|word| assert!(store.write_wait(&words, &word.to_be_bytes(), Some(b"value")).is_ok()));
    assert!(store.checkpoint().unwrap());
    let others = |store: &Store| store.core.checkpoints.state.lock().current.as_ref().map(|current| current.other_keys);
    assert_eq!(others(&store), Some(20_000));
    drop((words, store));
    // Regression: the restart after a close scanned nothing, and the forecast was that of one thread.
    for threads in [1, 2] {
        let store = open_by(threads, dir.path());
        assert_eq!(others(&store), Some(20_000));
        let [keys, other] = [20_100, 20_000];
        let ns = ((keys - other) as f64 * LOAD_NS[0] + other as f64 * LOAD_OTHER_NS) / threads as f64;
        assert_eq!(store.stats().checkpoints.clean_restart_ms, ns.div_euclid(1e6) as u64 + 1, "{threads} threads");
        store.close().unwrap();
    }
}

#[test]
fn checkpoints_come_sooner_where_tombstones_wait_and_later_where_they_are_large() {
    const MIB: u64 = 1 << 20;
    for (last, awaited, least) in
        [(0, false, 256), (0, true, 96), (75, false, 256), (75, true, 96), (300, true, 150), (750, true, 375), (750, false, 375)]
    {
        let due = |written| is_enough(written * MIB, last * MIB, || awaited);
        assert!(due(least) && due(1000) && !due(least - 1) && !due(0), "last {last} MiB, awaited: {awaited}");
    }
}

/// Tombstones of full segments wait for a checkpoint if there is one that they are newer than. They no longer wait when
/// the next one has come.
#[test]
fn tombstones_await_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let keyspace = store.create_keyspace("one", Kind::Hash).unwrap();
    let awaited = || store.core.log.tombstones_await_checkpoint();
    let delete_some = |from: u64| {
        for key in from..from + 4000 {
            store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"value")).unwrap();
            store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap();
        }
        // Collectors look at full segments only.
        store.core.seal(TakeBack::All).unwrap();
    };
    delete_some(0);
    assert!(!awaited(), "there is no checkpoint");
    assert!(store.checkpoint().unwrap() && !awaited());
    delete_some(10_000);
    assert!(awaited());
    assert!(store.checkpoint().unwrap() && !awaited());
}

/// Found by reading: four thousand keys were read at once, whatever their length. A block of keys of 64 KiB each had
/// 256 MiB, both when it was written and when it was loaded.
#[test]
fn blocks_of_long_keys_are_no_larger_than_a_few_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let keyspace = store.create_keyspace("long", Kind::Ordered).unwrap();
    // Short keys before them, from which one might conclude that many more fit.
    let long = |number: u32| [&number.to_be_bytes()[..], &[7; 16_000]].concat();
    let short = |number: u32| [&[0; 10][..], &number.to_be_bytes()].concat();
    (0..100).for_each(|number| _ = store.write_wait(&keyspace, &short(number), Some(b"value")).unwrap());
    (1 << 24..(1 << 24) + 400).for_each(|number| _ = store.write_wait(&keyspace, &long(number), Some(b"value")).unwrap());
    assert!(store.checkpoint().unwrap());
    let place = store.core.checkpoints.store.as_ref().expect("a store on files has one");
    let saved = load::Saved::read(place.open().unwrap().expect("it was published")).unwrap();
    let blocks: Vec<_> = saved.tables.blocks.iter().map(|block| block.bytes).collect();
    assert!(blocks.len() > 4 && blocks.iter().all(|bytes| *bytes < 128 * 16_100), "{blocks:?}");
    store.close().unwrap();
    drop((store, keyspace));
    let store = open(dir.path());
    assert_ne!(store.recovery().source, crate::RestartSource::Scan);
    assert_eq!(store.open_keyspace("long").unwrap().len(), 500);
}
