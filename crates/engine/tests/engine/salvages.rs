//! Openings with salvage of damaged stores, also openings that write: what is readable stays, and the damage is not
//! forgotten.

use crate::common::{crash, damage, get, put, small};
use hither_engine::{Batch, CheckpointMode, Durability, ErrorKind, Kind, MediumChoice, Options, Store};
use hither_pmem::{OpenOptions, Pool};
use hither_topology::Topology;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a pool's settled version lies (`docs/format.md`).
const SETTLED: usize = 2176;

fn options(dir: &Path) -> Options {
    Options { paths: vec![(None, dir.to_owned())], medium: MediumChoice::File, durability: Durability::Sync, ..small() }
}

fn value_of(number: u64) -> Vec<u8> {
    format!("value {number:06} {}", "x".repeat(100)).into_bytes()
}

fn assert_refused(options: &Options, when: &str) {
    let error = Store::open(options.clone()).map(drop).expect_err(when);
    assert_eq!(error.kind(), ErrorKind::Damaged, "{when}: {error}");
}

/// Regression: after an opening with salvage that wrote, the next one without it succeeded, and reported nothing of
/// what was missing. In a full segment the damage went when everything else in it was overwritten; in a half-filled one
/// it went when the store was closed.
#[test]
fn damage_that_was_salvaged_is_told_by_every_later_opening() {
    for (keys, checkpoints) in [(20u64, CheckpointMode::Off), (20, CheckpointMode::Auto), (2_000, CheckpointMode::Off)] {
        let dir = tempfile::tempdir().unwrap();
        let (pool, options) = (dir.path().join("node0.hither"), Options { checkpoints, ..options(dir.path()) });
        let store = Store::open(options.clone()).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        (0..keys).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
        store.close().unwrap();
        drop((store, keyspace));
        damage(&pool, &value_of(3), |value| value[50] ^= 1);
        _ = std::fs::remove_file(dir.path().join("checkpoint.hither"));
        assert_refused(&options, "before");
        for round in 0..3 {
            let store = Store::open(Options { salvage: true, ..options.clone() }).unwrap();
            assert_eq!(store.recovery().salvaged.len(), 1, "{:?}", store.recovery().salvaged);
            let keyspace = store.open_keyspace("k").unwrap();
            let missing: Vec<_> = (0..keys).filter(|number| get(&store, &keyspace, &number.to_be_bytes()).is_none()).collect();
            assert_eq!(missing, [3], "{keys} keys, round {round}");
            // All keys but the damaged one, so that nothing else keeps its segment.
            (0..keys).filter(|number| *number != 3).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
            store.reclaim().unwrap();
            let report = store.check().unwrap();
            assert!(!report.is_sound() && report.problems.iter().all(|problem| problem.contains("damaged")), "{:?}", report.problems);
            if round == 1 {
                // After a crash a half-filled segment may hold torn entries; this one may not.
                assert_refused(&Options { paths: vec![(None, crash(dir.path()).path().to_owned())], ..options.clone() }, "after a crash");
            }
            store.close().unwrap();
            drop((store, keyspace));
            assert_refused(&options, &format!("{keys} keys, round {round}"));
        }
    }
}

/// Regression: where the damaged bytes count in no total, the close after a salvage took a checkpoint that covered
/// their segment, and the next opening looked at nothing of it.
#[test]
fn damage_between_entries_is_told_again() {
    const SEGMENT: usize = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let (pool, options) = (dir.path().join("node0.hither"), options(dir.path()));
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..200u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &[7; 3_000]));
    store.reclaim().unwrap();
    store.close().unwrap();
    drop((store, keyspace));
    std::fs::remove_file(dir.path().join("checkpoint.hither")).unwrap();
    let mut bytes = std::fs::read(&pool).unwrap();
    // All 128 segments lie at the end of the file; a full one ends with a rest that was too small for another entry.
    let mut ends = (1..=128).map(|number| bytes.len() - (128 - number) * SEGMENT);
    let is_full =
        |end: &usize| bytes[end - 40..*end].iter().all(|byte| *byte == 0) && bytes[end - 4_000..*end].iter().any(|byte| *byte != 0);
    let end = ends.find(is_full).expect("a full segment with a gap at its end");
    bytes[end - 40] = 1;
    std::fs::write(&pool, bytes).unwrap();
    assert_refused(&options, "before");
    for round in 0..2 {
        let store = Store::open(Options { salvage: true, ..options.clone() }).unwrap();
        assert_eq!(store.recovery().salvaged.len(), 1, "{:?}", store.recovery().salvaged);
        assert_eq!(store.open_keyspace("k").unwrap().len(), 200);
        store.close().unwrap();
        drop(store);
        assert!(!dir.path().join("checkpoint.hither").exists());
        assert_refused(&options, &format!("round {round}"));
    }
}

fn two_keys(options: &Options) -> Store {
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    [b"first", b"other"].iter().for_each(|key| put(&store, &keyspace, *key, b"before"));
    let mut batch = Batch::default();
    batch.put(&keyspace, b"first", b"the new value of the first", 0);
    batch.put(&keyspace, b"other", b"the new value of the other", 0);
    store.commit_wait(&batch).unwrap();
    store
}

/// Regression: where one member of a batch was damaged, an opening with salvage that writes took the batch for one that
/// a crash had cut short, and marked the other members dead.
#[test]
fn a_damaged_member_does_not_cost_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { checkpoints: CheckpointMode::Off, ..options(dir.path()) };
    two_keys(&options).close().unwrap();
    damage(&dir.path().join("node0.hither"), b"the new value of the first", |value| value[5] ^= 1);
    let read = |options: Options, when: &str| {
        let store = Store::open(Options { salvage: true, ..options }).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        let found = [b"first", b"other"].map(|key| get(&store, &keyspace, key));
        assert_eq!(found, [Some(b"before".to_vec()), Some(b"the new value of the other".to_vec())], "{when}");
        store
    };
    drop(read(Options { read_only: true, medium: MediumChoice::PrivateCopy, ..options.clone() }, "looked at only"));
    let store = read(options.clone(), "written to");
    put(&store, &store.open_keyspace("k").unwrap(), b"more", b"value");
    // The next opening does not follow an orderly close, and must not take the batch for one that the crash has cut
    // short.
    let crashed = crash(dir.path());
    read(Options { paths: vec![(None, crashed.path().to_owned())], ..options.clone() }, "after a crash").close().unwrap();
    store.close().unwrap();
    drop(store);
    drop(read(options, "after a close"));
}

/// Regression: a batch was taken for one that the crash had cut short although another member of it lies in a sealed
/// segment, so that it was whole; and what was left out was named nowhere.
#[test]
fn a_damaged_member_in_a_sealed_segment_does_not_cost_its_batch_after_a_crash_either() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { checkpoints: CheckpointMode::Off, ..options(dir.path()) };
    let store = two_keys(&options);
    let open = crash(dir.path());
    let keyspace = store.open_keyspace("k").unwrap();
    (0..2_000u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
    store.reclaim().unwrap();
    let sealed = crash(dir.path());
    drop((store, keyspace));
    for (crashed, kept, when) in [(sealed, &b"the new value of the other"[..], "sealed"), (open, b"before", "still open")] {
        damage(&crashed.path().join("node0.hither"), b"the new value of the first", |value| value[5] ^= 1);
        let at = |crashed: &Path| Options { paths: vec![(None, crashed.to_owned())], salvage: true, ..options.clone() };
        let store = Store::open(at(crashed.path())).unwrap();
        let found = get(&store, &store.open_keyspace("k").unwrap(), b"other");
        assert_eq!(found.as_deref(), Some(kept), "{when}");
        drop(store);
        // And the answer stays.
        let store = Store::open(at(crashed.path())).unwrap();
        assert_eq!(get(&store, &store.open_keyspace("k").unwrap(), b"other").as_deref(), Some(kept), "{when}, again");
    }
}

/// Regression: an opening of a store that was closed in order, without a checkpoint, gathered the members of all its
/// batches, since nothing had noted that they are whole.
#[test]
fn a_close_notes_that_all_batches_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { checkpoints: CheckpointMode::Off, ..options(dir.path()) };
    let store = two_keys(&options);
    let last = store.stats().version;
    store.close().unwrap();
    drop(store);
    let file = OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() };
    let settled = Pool::open(&dir.path().join("node0.hither"), &file).unwrap().settled();
    assert!(settled >= last && last >= 4, "{settled} of {last}");
}

/// Regression: where one pool's settled version was damaged, a batch that a crash had cut short was salvaged as if it
/// were whole, although the other pool's settled version says that this is not known.
#[test]
fn one_settled_version_is_enough_to_leave_out_half_a_batch() {
    let root = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| root.path().join(name));
    let at = |dirs: [&PathBuf; 2]| Options {
        paths: vec![(Some(0), dirs[0].clone()), (Some(1), dirs[1].clone())],
        topology: Some(Arc::new(Topology::emulated(2))),
        checkpoints: CheckpointMode::Off,
        ..options(root.path())
    };
    drop(Store::open(at([&a, &b])).unwrap());
    let store = two_keys(&at([&a, &b]));
    let crashed = [&a, &b].map(|dir| crash(dir));
    drop(store);
    let [a, b] = crashed.each_ref().map(|dir| dir.path().to_path_buf());
    let holds_it = |pool: &PathBuf| std::fs::read(pool).unwrap().windows(26).any(|window| window == b"the new value of the first");
    let pools = [a.join("node0.hither"), b.join("node1.hither")];
    // This member was not written yet when the power failed.
    damage(pools.iter().find(|pool| holds_it(pool)).unwrap(), b"the new value of the first", |value| value.fill(0));
    for lost in [&[0][..], &[1], &[0, 1]] {
        let damaged = pools.each_ref().map(|pool| std::fs::read(pool).unwrap());
        for node in lost {
            let mut bytes = damaged[*node].clone();
            bytes[SETTLED + 7] ^= 1;
            std::fs::write(&pools[*node], bytes).unwrap();
        }
        let private = Options { salvage: true, read_only: true, medium: MediumChoice::PrivateCopy, ..at([&a, &b]) };
        let store = Store::open(private).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        assert_eq!(get(&store, &keyspace, b"first"), Some(b"before".to_vec()), "{lost:?}");
        // If no settled version can be read, nobody knows.
        let other = if lost.len() == 2 { b"the new value of the other" } else { &b"before"[..] };
        assert_eq!(get(&store, &keyspace, b"other"), Some(other.to_vec()), "{lost:?}");
        drop((store, keyspace));
        pools.iter().zip(damaged).for_each(|(pool, bytes)| std::fs::write(pool, bytes).unwrap());
    }
}
