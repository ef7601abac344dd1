//! Pairs on their shortest way, step by step: changes that come between the reading, the copying and the swing; and
//! that a section ends where there is only garbage.

use super::pairs::Pairs;
use super::puts::HashKeyspace;
use super::tests::{begin, small, small_options};
use super::*;
use crate::keyspace::with_index;
use crate::{KeyspaceHandle, Kind, MediumChoice, Options, Store};
use hither_index::{Index, Ref};
use std::collections::BTreeMap;

const KEYS: u64 = 300;

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64, value: u64) {
    store.write_wait(keyspace, &key.to_le_bytes(), Some(&value.to_le_bytes())).unwrap();
}

fn current(core: &Core, keyspace: &KeyspaceHandle, key: u64) -> Ref {
    let _pin = epoch::pin();
    with_index!(keyspace.0, index => index.get(core.hasher.key(&key.to_le_bytes()), &core.resolver()))
}

/// Moves the pairs of the segment that holds all of [`KEYS`]; `between_reading` and `between_copying` run after these
/// steps. Returns what was done. Verifies what the snapshots show in the end, when all of the victim's space is used
/// again; one is taken at the beginning if `snapshot_first`.
fn move_pairs(
    snapshot_first: bool,
    between_reading: impl Fn(&Store, &KeyspaceHandle),
    between_copying: impl Fn(&Store, &KeyspaceHandle),
) -> Emptied {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    (0..KEYS).for_each(|key| put(&store, &keyspace, key, key));
    let core = &store.core;
    let pass = begin(core, current(core, &keyspace, 0));
    let snapshot = snapshot_first.then(|| store.snapshot());
    let mut pairs = Pairs::with_capacity(HashKeyspace::of(&keyspace.0).unwrap(), pass.source_segment(), 16);
    let mut read = 0;
    core.log.visit_segment(pass.node(), pass.segment(), |reference, _, _, entry| {
        pairs.add(core, Ref(reference), u64::from_le_bytes(entry.key.try_into().unwrap()));
        read += 1;
    });
    assert_eq!(read, KEYS);
    between_reading(&store, &keyspace);
    let later = store.snapshot();
    let expected: BTreeMap<u64, Option<u64>> = (0..KEYS).map(|key| (key, get(&store, &keyspace, key))).collect();
    let mut emptied = Emptied::default();
    {
        let _section = epoch::pin_writer();
        let mut relocator = core.log.relocator(pass.node());
        pairs.copy(core, &mut relocator, false, &mut emptied).unwrap();
        pairs.copy(core, &mut relocator, true, &mut emptied).unwrap();
        between_copying(&store, &keyspace);
        relocator.persist();
        let too_late = pairs.swing(core, &pass, &mut core.log.writer().lent(), &mut emptied);
        assert_eq!(too_late, emptied.too_late > 0);
        pairs.clear();
    }
    let after: BTreeMap<u64, Option<u64>> = (0..KEYS).map(|key| (key, get(&store, &keyspace, key))).collect();
    drop(pairs);
    core.free_victims(vec![pass]).unwrap();
    core.reuse_freed(Wait::Yes).unwrap();
    (KEYS..4 * KEYS).for_each(|key| put(&store, &keyspace, key, key));
    for key in 0..KEYS {
        assert_eq!(get(&store, &keyspace, key), after[&key], "key {key}");
        let shown = |snapshot: &crate::Snapshot| {
            snapshot.get_with(&keyspace, &key.to_le_bytes(), |value| u64::from_le_bytes(value.try_into().unwrap())).unwrap()
        };
        assert_eq!(shown(&later), expected[&key], "key {key} in the later snapshot");
        assert!(snapshot.as_ref().is_none_or(|snapshot| shown(snapshot) == Some(key)), "key {key} in the first snapshot");
    }
    drop((later, snapshot));
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    emptied
}

fn get(store: &Store, keyspace: &KeyspaceHandle, key: u64) -> Option<u64> {
    store.get_with(keyspace, &key.to_le_bytes(), |value| u64::from_le_bytes(value.try_into().unwrap())).unwrap()
}

/// Overwrites a third of the keys, and deletes another.
fn change(store: &Store, keyspace: &KeyspaceHandle) {
    (0..KEYS).step_by(3).for_each(|key| put(store, keyspace, key, key + 1000));
    (1..KEYS).step_by(3).for_each(|key| _ = store.write_wait(keyspace, &key.to_le_bytes(), None).unwrap());
}

#[test]
fn what_nobody_changes_is_moved() {
    let emptied = move_pairs(false, |_, _| (), |_, _| ());
    assert_eq!((emptied.moved, emptied.too_late, emptied.for_snapshots), (KEYS, 0, 0));
}

/// Keys are changed between the reading and the copying: first without, then with a snapshot from before the reading.
#[test]
fn what_is_changed_before_it_is_copied_is_moved_for_snapshots_only() {
    let emptied = move_pairs(false, change, |_, _| ());
    assert_eq!((emptied.moved, emptied.too_late, emptied.for_snapshots), (KEYS / 3, 0, 0));
    let emptied = move_pairs(true, change, |_, _| ());
    assert_eq!((emptied.moved, emptied.too_late, emptied.for_snapshots), (KEYS / 3, 0, KEYS / 3 * 2));
}

/// There is a snapshot either way: the one after the reading. A copy that comes too late is not visible, and is what
/// the snapshot shows.
#[test]
fn what_is_changed_before_its_copy_takes_its_place_comes_too_late() {
    for snapshot_first in [false, true] {
        let emptied = move_pairs(snapshot_first, |_, _| (), change);
        assert_eq!((emptied.moved, emptied.too_late, emptied.for_snapshots), (KEYS / 3, KEYS / 3 * 2, 0));
    }
}

/// Inserts split the index's segments between the copying and the swing: the places that were found are frozen, and
/// found again.
#[test]
fn splits_come_between() {
    let split = |store: &Store, keyspace: &KeyspaceHandle| (KEYS..20 * KEYS).for_each(|key| put(store, keyspace, key, key));
    for changes in [false, true] {
        let emptied = move_pairs(
            true,
            |_, _| (),
            |store, keyspace| {
                split(store, keyspace);
                if changes {
                    change(store, keyspace);
                }
            },
        );
        let moved = if changes { KEYS / 3 } else { KEYS };
        assert_eq!((emptied.moved, emptied.too_late), (moved, KEYS - moved));
    }
}

/// Some live pairs here and there between long entries that are garbage: a section begins each time, and others wait
/// for its end.
#[test]
fn a_section_ends_where_there_is_only_garbage() {
    const BLOCKS: u64 = 6;
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        // To standard output itself: the output of a test that passes is not shown otherwise. The reader may be gone.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), b"HITHER_COUNT skipped_without_shm 1\n");
        return;
    };
    let store = Store::open(Options {
        in_memory: false,
        paths: vec![(None, dir.path().to_owned())],
        medium: MediumChoice::ForcedDax,
        checkpoints: crate::CheckpointMode::Off,
        capacity: 8 << 20,
        max_capacity: 8 << 20,
        segment_bytes: 1 << 20,
        meter: true,
        ..small_options()
    })
    .unwrap();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    let long = |key: u64, length: usize| {
        store.write_wait(&keyspace, &(1000 + key).to_le_bytes(), Some(&vec![1; length])).unwrap();
    };
    for block in 0..BLOCKS {
        (0..20).for_each(|key| put(&store, &keyspace, 100 * block + key, key));
        (0..30).for_each(|key| long(100 * block + key, 4000));
    }
    let core = &store.core;
    let first = current(core, &keyspace, 0);
    assert_eq!(
        core.log.segment_of(current(core, &keyspace, 100 * (BLOCKS - 1)).0),
        core.log.segment_of(first.0),
        "one segment has them all"
    );
    core.log.close_open(core.collector.tombstones(), |_| true);
    core.seal(hither_log::TakeBack::All).unwrap();
    (0..BLOCKS).for_each(|block| (0..30).for_each(|key| long(100 * block + key, 1)));
    let pass = begin(core, first);
    let fences = || store.stats().meter.unwrap().total().fences;
    let (before, mut emptied) = (fences(), Emptied::default());
    core.collector.empty(core, &pass, &mut emptied).unwrap();
    assert_eq!((emptied.moved, emptied.known_garbage), (20 * BLOCKS, 30 * BLOCKS));
    assert!(!epoch::is_pinned());
    // One for each batch, with which a section ends, and few more.
    let fences = fences() - before;
    assert!((BLOCKS..2 * BLOCKS).contains(&fences), "{fences} fences");
}
