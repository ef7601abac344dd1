//! Damage in victims: it is reported and stays where it is, and fails only those that read it.

use super::tests::small_options;
use crate::keyspace::KeyspaceHandle;
use crate::options::CollectorKind;
use crate::{ErrorKind, Kind, Options, Store};
use std::ops::ControlFlow;

const KEYS: u64 = 2000;
/// The key whose entry is damaged.
const DAMAGED: u64 = 600;

fn put(store: &Store, keyspace: &KeyspaceHandle, key: u64) -> crate::Result<()> {
    store.write_wait(keyspace, &key.to_be_bytes(), Some(&key.to_le_bytes())).map(drop)
}

/// A store of which a third is garbage, with a flipped bit in one entry that is none.
fn damaged(collector: CollectorKind, kind: Kind) -> (Store, KeyspaceHandle) {
    let store = Store::open(Options { collector, ..small_options() }).unwrap();
    let keyspace = store.create_keyspace("keys", kind).unwrap();
    (0..KEYS).chain((1..KEYS).step_by(3)).for_each(|key| put(&store, &keyspace, key).unwrap());
    damage(&store, DAMAGED);
    (store, keyspace)
}

/// Flips a bit of the key's last entry.
fn damage(store: &Store, key: u64) {
    let log = &store.core.log;
    let mut victim = None;
    log.visit_all(|reference, _, _, entry| {
        if entry.key == key.to_be_bytes() {
            victim = Some((hither_log::address::unpack(reference).offset, u64::from_le_bytes(entry.value.try_into().unwrap())));
        }
    });
    let (offset, value) = victim.unwrap();
    log.pool(0).store_u64(offset + 24, value ^ 1 << 40);
}

fn all() -> impl Iterator<Item = (CollectorKind, Kind)> {
    [CollectorKind::Batched, CollectorKind::Chain].into_iter().flat_map(|one| [(one, Kind::Hash), (one, Kind::Ordered)])
}

/// Verifies that all keys but the damaged one are there.
fn verify(store: &Store, keyspace: &KeyspaceHandle, what: &str) {
    for key in 0..KEYS {
        match store.get_with(keyspace, &key.to_be_bytes(), <[u8]>::to_vec) {
            Err(error) if key == DAMAGED => assert_eq!(error.kind(), ErrorKind::Damaged, "{what}"),
            found => assert_eq!(found.unwrap().unwrap(), key.to_le_bytes(), "{what} {key}"),
        }
    }
    assert!(store.get_with(keyspace, &DAMAGED.to_be_bytes(), <[u8]>::to_vec).is_err(), "{what}");
    assert!(!store.check().unwrap().is_sound(), "{what}");
}

/// Regression: a collector took an entry that was damaged for garbage, and freed its segment under the index's
/// reference.
#[test]
fn a_victim_with_damage_is_kept_and_the_damage_told() {
    for (collector, kind) in all() {
        let (store, keyspace) = damaged(collector, kind);
        let what = format!("{collector:?} {kind:?}");
        let outcome = store.compact(0.01, |_| ControlFlow::Continue(()));
        assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::Damaged), "{what}");
        assert_eq!(store.stats().damage.len(), 1, "{what}");
        // The rest is collected, and the space used again.
        store.compact(0.01, |_| ControlFlow::Continue(())).unwrap();
        (0..3 * KEYS).map(|key| key % KEYS).filter(|key| *key != DAMAGED).for_each(|key| put(&store, &keyspace, key).unwrap());
        store.compact(0.01, |_| ControlFlow::Continue(())).unwrap();
        verify(&store, &keyspace, &what);
    }
}

/// Regression: a write that looked for space came upon the damage of another key, and was refused because of it.
#[test]
fn a_write_that_looks_for_space_has_nothing_to_do_with_damage_that_it_finds() {
    for (collector, kind) in all() {
        let (store, keyspace) = damaged(collector, kind);
        let what = format!("{collector:?} {kind:?}");
        let mut written = 0;
        while store.stats().damage.is_empty() {
            written += 1;
            assert!(written < 100 * KEYS, "{what}: no collection has come upon it");
            let key = written % KEYS;
            if key != DAMAGED {
                put(&store, &keyspace, key).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
        verify(&store, &keyspace, &what);
    }
}

/// Regression: a compaction ended with the first round of victims that had damage, and left all others.
#[test]
fn a_compaction_leaves_out_nothing_but_the_damaged() {
    for (collector, kind) in all() {
        let store = Store::open(Options { collector, ..small_options() }).unwrap();
        let keyspace = store.create_keyspace("keys", kind).unwrap();
        // Thirty segments, of which a round takes sixteen.
        (0..8 * KEYS).chain((1..8 * KEYS).step_by(3)).for_each(|key| put(&store, &keyspace, key).unwrap());
        let keys = [DAMAGED, 3 * KEYS, 6 * KEYS];
        keys.iter().for_each(|key| damage(&store, *key));
        let what = format!("{collector:?} {kind:?}");
        let mut rounds = 0;
        let outcome = store.compact(0.01, |_| {
            if rounds == 0 {
                rounds += 1;
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let found = store.stats().damage.len();
        assert_eq!(outcome.is_err(), found > 0, "{what}: whoever ends it is told what was found");
        let outcome = store.compact(0.01, |_| ControlFlow::Continue(()));
        assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::Damaged), "{what}");
        assert_eq!(store.stats().damage.len(), keys.len(), "{what}");
        let again = store.compact(0.01, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((again.segments, again.moved_bytes), (0, 0), "{what}: it had left some");
    }
}
