//! Segments whose descriptor is lost, in a store that is opened with salvage and written to: their content is not
//! overwritten, and the damage is not forgotten.

use crate::common::{DESCRIPTOR, TABLE, get, put, small};
use hither_engine::{Durability, ErrorKind, Kind, MediumChoice, Options, Store};
use std::path::Path;

/// Offsets in a descriptor (`docs/format.md`): of its slots; and, in a slot, of the length of a run.
const SLOTS: [usize; 2] = [8, 64];
const RUN_LEN: usize = 36;

const SEGMENT: usize = 64 << 10;

fn options(dir: &Path, medium: MediumChoice) -> Options {
    Options { paths: vec![(None, dir.to_owned())], medium, durability: Durability::Sync, ..small() }
}

fn salvaged(dir: &Path, medium: MediumChoice) -> Store {
    Store::open(Options { salvage: true, ..options(dir, medium) }).unwrap()
}

/// The offset of the current slot of a segment's descriptor.
fn current_slot(pool: &[u8], segment: usize) -> usize {
    let at = TABLE + segment * DESCRIPTOR;
    at + SLOTS[usize::from(pool[at + 7] >> 7)]
}

/// The head of the only run, and its length.
fn run_in(pool: &[u8]) -> (usize, usize) {
    let len = |segment: usize| pool[current_slot(pool, segment) + RUN_LEN] as usize;
    let runs: Vec<_> = (0..128).map(|segment| (segment, len(segment))).filter(|(_, len)| *len > 1).collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0]
}

fn segments(pool: &[u8], first: usize, count: usize) -> &[u8] {
    // All 128 segments lie at the end of the file.
    let start = pool.len() - (128 - first) * SEGMENT;
    &pool[start..start + count * SEGMENT]
}

/// Regression: where one bit of the descriptor of a run's head was wrong, the segments inside the run passed for free
/// ones. They were zeroed and filled. When a copy with the bit set right was read, they were parts of the run again:
/// the value in it was destroyed, and everything was missing that had been acknowledged.
#[test]
fn what_may_be_inside_a_run_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node0.hither");
    let large: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    let store = Store::open(options(dir.path(), MediumChoice::File)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    put(&store, &keyspace, b"large", &large);
    drop((store, keyspace));
    let mut bytes = std::fs::read(&path).unwrap();
    let (head, len) = run_in(&bytes);
    assert_eq!(len, 5);
    let slot = current_slot(&bytes, head);
    bytes[slot + 8] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let value = |number: u64| vec![number as u8; 1_000];
    let store = salvaged(dir.path(), MediumChoice::File);
    assert_eq!(store.recovery().salvaged.len(), 1, "{:?}", store.recovery().salvaged);
    let keyspace = store.open_keyspace("k").unwrap();
    assert_eq!(get(&store, &keyspace, b"large"), None);
    (0..200u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value(number)));
    drop((store, keyspace));
    let written = std::fs::read(&path).unwrap();
    assert!(segments(&written, head, len) == segments(&bytes, head, len), "the run has changed");

    let store = salvaged(dir.path(), MediumChoice::PrivateCopy);
    let keyspace = store.open_keyspace("k").unwrap();
    let kept = (0..200u64).filter(|number| get(&store, &keyspace, &number.to_be_bytes()) == Some(value(*number))).count();
    assert_eq!(kept, 200, "keys that were acknowledged");
    assert!(get(&store, &keyspace, b"large").as_deref() == Some(&large[..]), "the bit was set right");
    drop((store, keyspace));
    let refused = Store::open(options(dir.path(), MediumChoice::File)).err().expect("the damage is there still");
    assert_eq!(refused.kind(), ErrorKind::Damaged);
}

/// Regression: a run that was made for the bound of its entry's size, which takes one segment more than the entry, was
/// set aside where its descriptor was damaged, although the descriptor before it was of the same life.
#[test]
fn a_run_one_segment_longer_than_its_entry_is_salvaged() {
    // Two segments for an entry that fits into one, and for one that takes both.
    for len in [SEGMENT - 60, SEGMENT - 40, SEGMENT - 20] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node0.hither");
        let value = vec![7; len];
        let store = Store::open(options(dir.path(), MediumChoice::File)).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        put(&store, &keyspace, b"key", &value);
        store.reclaim().unwrap();
        drop((store, keyspace));
        let mut bytes = std::fs::read(&path).unwrap();
        let (head, run) = run_in(&bytes);
        let (at, slot) = (TABLE + head * DESCRIPTOR, current_slot(&bytes, head));
        let other = at + SLOTS.into_iter().find(|other| at + other != slot).unwrap();
        assert_eq!((run, bytes[other + RUN_LEN]), (2, 2), "{len}: the slot before is of the same life");
        (8..24).for_each(|byte| bytes[slot + byte] ^= 0xff);
        std::fs::write(&path, &bytes).unwrap();
        let store = salvaged(dir.path(), MediumChoice::PrivateCopy);
        assert!(get(&store, &store.open_keyspace("k").unwrap(), b"key") == Some(value), "{len}: {:?}", store.recovery().salvaged);
    }
}

/// Regression: tombstones were dropped although what they keep out lay in a segment that was set aside. The deleted
/// keys came back when the descriptor of that segment was set right in a copy.
#[test]
fn deletes_of_what_is_set_aside_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node0.hither");
    let options = |medium| Options { shards: 1, ..options(dir.path(), medium) };
    let value = |number: u64| vec![number as u8; 1_000];
    let store = Store::open(options(MediumChoice::File)).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..200u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value(number)));
    let deleted = 0..40u64;
    deleted.clone().for_each(|number| assert!(store.write_wait(&keyspace, &number.to_be_bytes(), None).unwrap()));
    (200..400u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value(number)));
    drop((store, keyspace));
    let mut bytes = std::fs::read(&path).unwrap();
    // The segment that was filled first.
    let slot = current_slot(&bytes, 0);
    bytes[slot + 8] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let store = Store::open(Options { salvage: true, ..options(MediumChoice::File) }).unwrap();
    assert!(!store.recovery().salvaged.is_empty());
    let keyspace = store.open_keyspace("k").unwrap();
    for _ in 0..5 {
        (200..400u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value(number)));
        while store.reclaim().unwrap() > 0 {}
        let _ = store.compact(0.001, |_| std::ops::ControlFlow::Continue(()));
    }
    assert!(store.stats().collections.segments > 5, "{:?}", store.stats().collections);
    drop((store, keyspace));

    let store = Store::open(Options { salvage: true, ..options(MediumChoice::PrivateCopy) }).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    let back: Vec<_> = deleted.filter(|number| get(&store, &keyspace, &number.to_be_bytes()).is_some()).collect();
    let kept = (40..60u64).filter(|number| get(&store, &keyspace, &number.to_be_bytes()) == Some(value(*number))).count();
    assert!(back.is_empty() && kept == 20, "{back:?} are back, {kept} of 20 are there: {:?}", store.recovery().salvaged);
}
