//! Values that take a run of segments of their own.

use crate::common::{get, put, small};
use hither_engine::{CheckpointMode, CollectorKind, Kind, MediumChoice, Options, Store};
use std::path::Path;

/// A run is freed, but not zeroed before the process dies, because somebody still looks at the value. The next process
/// has to know that all segments of the run were used, also those that have no descriptor of their own.
#[test]
fn nothing_of_a_run_is_left_when_its_segments_are_used_again() {
    for collector in [CollectorKind::Chain, CollectorKind::Batched] {
        let options = |dir: &Path| Options {
            paths: vec![(None, dir.to_owned())],
            medium: MediumChoice::ForcedDax,
            checkpoints: CheckpointMode::Off,
            collector,
            ..small()
        };
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = Store::open(options(dir.path())).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let large = vec![7; 500_000];
        put(&store, &keyspace, b"large", &large);
        let guard = store.get_pinned(&keyspace, b"large").unwrap().unwrap();
        store.write_wait(&keyspace, b"large", Some(b"small")).unwrap();
        assert_eq!(store.reclaim().unwrap(), 0, "{collector:?}: nothing is to be had yet");
        // What a crash of the process leaves.
        let copy = tempfile::tempdir_in("/dev/shm").unwrap();
        std::fs::copy(dir.path().join("node0.hither"), copy.path().join("node0.hither")).unwrap();
        assert!(*guard == large[..], "{collector:?}");
        drop((guard, store));

        let store = Store::open(options(copy.path())).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        let free = || store.stats().pools[0].usage.free;
        assert_eq!(free(), 127, "{collector:?}: all but the one that is filled");
        (0..6_000u64).for_each(|key| put(&store, &keyspace, &key.to_be_bytes(), &key.to_le_bytes().repeat(120)));
        assert!(free() < 40, "{collector:?}: the first free ones are taken first");
        // Sealed segments hold entries and zeros, nothing else.
        store.reclaim().unwrap();
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{collector:?}: {report:?}");
        drop(store);
        let store = Store::open(options(copy.path())).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        assert_eq!((keyspace.len(), get(&store, &keyspace, b"large").as_deref()), (6_001, Some(&b"small"[..])), "{collector:?}");
        assert!(store.check().unwrap().is_sound());
    }
}
