//! The golden image of the layouts that the images in [`crate::golden`] lack: entries with a shortcut and with a full
//! version, entries marked DEAD, segments of hot entries and of moved ones, and a checkpoint in use.
//!
//! `tests/data/format1-layouts` was copied while it was open, after a checkpoint and one more write. It has one pool,
//! on which both collectors have worked. It is never replaced.
//!
//! `cargo test -p hither-testkit --test testkit golden_layouts::regenerate -- --ignored` writes it anew. Do that only
//! while version 1 is not released.

#![forbid(unsafe_code)]

use crate::golden::{data, pack, unpack};
use hither_engine::{CheckpointMode, CollectorKind, KeyspaceHandle, Kind, MediumChoice, Options, RestartSource, Store};
use hither_log::entry::{ext, flag, word0};
use hither_log::{COLD_SHARD, EntryView};
use hither_pmem::{OpenOptions, Pool, SegmentState};
use hither_topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const FILES: [&str; 2] = ["node0.hither", "checkpoint.hither"];
const NAMES: [(&str, Kind); 2] = [("ordered", Kind::Ordered), ("hash", Kind::Hash)];
const SHARDS: u32 = 2;
/// Number of writes to a few keys after which these are hot.
const HOT_WRITES: u64 = 600_000;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The steps by which the image is filled, first with one collector, then with the other.
enum Step {
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    /// The versions of entries moved after this step are too far from those of new segments.
    SkipVersions,
    Reclaim,
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Rounds of puts and deletes over the same keys, with collections in between.
fn rounds(rounds: std::ops::Range<u64>) -> Vec<Step> {
    let mut steps = Vec::new();
    for round in rounds {
        steps.push(Step::SkipVersions);
        for number in (0..120).filter(|number| round == 0 || (number * number + round) % 3 != 0) {
            let space = (number % 2) as usize;
            match (number + round) % 5 {
                0 => steps.push(Step::Delete(space, key(number))),
                _ => steps.push(Step::Put(space, key(number), vec![round as u8; 40 + (number * 37 + round * 11) as usize % 150])),
            }
        }
        steps.extend([Step::Reclaim, Step::Reclaim]);
    }
    steps
}

fn hot() -> impl Iterator<Item = Step> {
    (0..HOT_WRITES).map(|number| Step::Put(1, (number % 8).to_be_bytes().to_vec(), number.to_be_bytes().to_vec()))
}

/// The write behind the checkpoint.
fn last() -> Step {
    Step::Put(0, b"behind the checkpoint".to_vec(), vec![9; 100])
}

fn contents() -> [Pairs; 2] {
    let mut spaces = [Pairs::new(), Pairs::new()];
    for step in hot().skip(HOT_WRITES as usize - 8).chain(rounds(0..8)).chain([last()]) {
        match step {
            Step::Put(space, key, value) => drop(spaces[space].insert(key, value)),
            Step::Delete(space, key) => drop(spaces[space].remove(&key)),
            Step::SkipVersions | Step::Reclaim => {}
        }
    }
    spaces
}

fn open(dir: &Path, medium: MediumChoice, collector: CollectorKind) -> Store {
    let options = Options {
        paths: vec![(None, dir.to_owned())],
        capacity: 256 << 10,
        max_capacity: 256 << 10,
        segment_bytes: 4096,
        shards: SHARDS,
        topology: Some(Arc::new(Topology::single())),
        medium,
        background: false,
        collector,
        gc_threshold: 0.2,
        shortcut_from_bytes: Some(64),
        checkpoints: CheckpointMode::Every(1 << 40),
        ..Options::default()
    };
    Store::open(options).unwrap()
}

fn apply(store: &Store, spaces: &[KeyspaceHandle], step: Step) {
    match step {
        Step::Put(space, key, value) => drop(store.write_wait(&spaces[space], &key, Some(&value)).unwrap()),
        Step::Delete(space, key) => drop(store.write_wait(&spaces[space], &key, None).unwrap()),
        Step::SkipVersions => store.skip_versions(1 << 33),
        Step::Reclaim => drop(store.reclaim().unwrap()),
    }
}

#[test]
#[ignore = "writes the golden image anew"]
fn regenerate() {
    // On files, hot entries have no segments of their own.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = open(dir.path(), MediumChoice::ForcedDax, CollectorKind::Chain);
    let spaces = NAMES.map(|(name, kind)| store.create_keyspace(name, kind).unwrap());
    rounds(0..3).into_iter().for_each(|step| apply(&store, &spaces, step));
    drop(spaces);
    store.close().unwrap();
    drop(store);
    let store = open(dir.path(), MediumChoice::ForcedDax, CollectorKind::Batched);
    let spaces = NAMES.map(|(name, _)| store.open_keyspace(name).unwrap());
    hot().chain(rounds(3..8)).for_each(|step| apply(&store, &spaces, step));
    assert!(store.checkpoint().unwrap());
    apply(&store, &spaces, last());
    for file in FILES {
        let packed = pack(&std::fs::read(dir.path().join(file)).unwrap());
        std::fs::write(data(&format!("format1-layouts-{file}")), packed).unwrap();
    }
}

/// The names of the layouts that a pool holds.
fn layouts(path: &Path) -> BTreeSet<&'static str> {
    let pool = Pool::open(path, &OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() }).unwrap();
    let mut found = BTreeSet::new();
    for index in 0..pool.segment_count() {
        let descriptor = pool.descriptor(index).unwrap();
        if descriptor.state == SegmentState::Free {
            continue;
        }
        let segment = match descriptor.shard {
            COLD_SHARD => "moved",
            shard if u32::from(shard) == SHARDS => "hot",
            _ => "plain",
        };
        found.insert(segment);
        let (start, words) = (pool.segment_offset(index), pool.segment_bytes() / 8);
        let bytes: Vec<u8> = (0..words).flat_map(|word| pool.load_u64(start + 8 * word).to_le_bytes()).collect();
        let mut at = 0;
        while at < bytes.len() {
            let entry = EntryView::verify(&bytes[at..], descriptor.generation, start + at as u64);
            let Ok(entry) = entry else {
                at += 8;
                continue;
            };
            found.extend(layouts_of(&entry, &bytes[at..]));
            at += entry.size as usize;
        }
    }
    found
}

fn layouts_of(entry: &EntryView<'_>, bytes: &[u8]) -> impl Iterator<Item = &'static str> {
    let flags = bytes[word0::FLAGS_SHIFT as usize / 8];
    // The extension word follows the two words of the header; its first byte is the mask of the fields that follow.
    let fields = if flags & flag::EXT == 0 { 0 } else { bytes[16] };
    let dead = entry.is_dead().then_some("DEAD");
    let of_field = [(ext::SHORTCUT, "shortcut"), (ext::VERSION, "full version")];
    dead.into_iter().chain(of_field.into_iter().filter(move |(bit, _)| fields & bit != 0).map(|(_, name)| name))
}

fn verify(store: &Store) {
    for ((name, _), expected) in NAMES.iter().zip(contents()) {
        let space = store.open_keyspace(name).unwrap();
        assert_eq!(space.len(), expected.len(), "{name}");
        for (key, value) in &expected {
            assert_eq!(store.get_with(&space, key, <[u8]>::to_vec).unwrap().as_ref(), Some(value), "{name}: {key:?}");
        }
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// Writes the files of the image into a directory.
fn unpack_into(dir: &Path) {
    for file in FILES {
        let packed = std::fs::read(data(&format!("format1-layouts-{file}"))).unwrap();
        assert!(packed.len() < 200 << 10);
        std::fs::write(dir.join(file), unpack(&packed)).unwrap();
    }
}

#[test]
fn the_image_holds_every_layout_that_the_others_lack() {
    let dir = crate::common::shm();
    unpack_into(dir.path());
    let found = layouts(&dir.path().join(FILES[0]));
    for layout in ["shortcut", "full version", "DEAD", "hot", "moved", "plain"] {
        assert!(found.contains(layout), "no {layout} among {found:?}");
    }
}

/// Nothing is promised for the checkpoint: a program that knows only another checkpoint format scans the log, and this
/// test then fails.
#[test]
fn the_image_opens_with_all_its_contents_by_the_checkpoint_and_by_a_scan() {
    for source in [RestartSource::Checkpoint, RestartSource::Scan] {
        let dir = crate::common::shm();
        unpack_into(dir.path());
        if source == RestartSource::Scan {
            std::fs::remove_file(dir.path().join(FILES[1])).unwrap();
        }
        let store = open(dir.path(), MediumChoice::File, CollectorKind::Batched);
        assert_eq!(store.recovery().source, source);
        verify(&store);
        store.close().unwrap();
        drop(store);
        let store = open(dir.path(), MediumChoice::File, CollectorKind::Chain);
        store.reclaim().unwrap();
        verify(&store);
    }
}
