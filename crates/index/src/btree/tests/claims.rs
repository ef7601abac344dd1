//! Claims on leaves: readers pass, writers wait, everything odd is left to the optimistic install.

use crate::btree::BTreeIndex;
use crate::conformance::{FakeLog, ordered};
use crate::{Index, Key, OrderedIndex, Ref, Start};
use hither_sync::epoch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Place = (<BTreeIndex as Index>::Token, Ref, bool);

fn tree(keys: std::ops::Range<u64>) -> (BTreeIndex, FakeLog) {
    let (index, log) = (BTreeIndex::new(), FakeLog::new(1));
    for i in keys {
        ordered::put(&index, &log, &(2 * i).to_be_bytes());
    }
    (index, log)
}

fn lock(index: &BTreeIndex, log: &FakeLog, key: Key<'_>) -> Place {
    let prepared = index.prepare_write(key, log);
    let (located, locked) = index.lock_place(key, prepared, log);
    (located.token, located.candidate, locked)
}

#[test]
fn readers_pass_a_claim_and_writers_wait_for_it() {
    let (index, log) = tree(0..10);
    let _pin = epoch::pin();
    let (mine, theirs) = (5u64.to_be_bytes(), 7u64.to_be_bytes());
    let (token, old, locked) = lock(&index, &log, log.key_of(&mine));
    assert!(locked && old.is_none());
    let installed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Reads in the claimed leaf end, whatever kind they are.
        scope
            .spawn(|| {
                let _pin = epoch::pin();
                let mut out = Vec::new();
                index.scan(Start::Edge, false, 100, &mut out, &log);
                assert_eq!(out.len(), 10);
                assert!(index.get(log.key_of(&4u64.to_be_bytes()), &log).is_some());
                assert!(index.get(log.key_of(&mine), &log).is_none(), "a claim shows nothing");
            })
            .join()
            .expect("readers pass");
        let writer = scope.spawn(|| {
            let _pin = epoch::pin();
            let (_, _, second) = lock(&index, &log, log.key_of(&theirs));
            assert!(!second, "a claimed leaf is not claimed again, and nobody waits to claim");
            ordered::put(&index, &log, &theirs);
            assert!(installed.load(Ordering::SeqCst), "the other writer of the leaf came first");
        });
        std::thread::sleep(Duration::from_millis(20));
        installed.store(true, Ordering::SeqCst);
        index.install_locked(token, log.key_of(&mine), Ref::NONE, log.append(&mine), &log);
        writer.join().expect("the waiting writer goes on");
    });
    for key in [mine, theirs] {
        assert!(index.get(log.key_of(&key), &log).is_some());
    }
    assert_eq!(index.len(), 12);
    index.check(&log).expect("a sound tree");
}

#[test]
fn a_full_leaf_and_a_leafs_last_key_are_not_plain() {
    let full = (1..2000).find(|&keys| {
        let (index, log) = tree(0..keys);
        let _pin = epoch::pin();
        let key = 1u64.to_be_bytes();
        let (token, _, locked) = lock(&index, &log, log.key_of(&key));
        if locked {
            index.unlock_place(token);
        }
        // A claim that was given up keeps nobody out.
        ordered::put(&index, &log, &key);
        !locked
    });
    assert!(full.is_some(), "some leaf of these trees was full");

    let (index, log) = tree(0..1);
    let _pin = epoch::pin();
    let key = log.key_of(&[0; 8]);
    let (token, old, locked) = lock(&index, &log, key);
    assert!(locked && old.is_some());
    index.install_locked(token, key, old, Ref::NONE, &log);
    assert!(index.is_empty() && index.get(key, &log).is_none());
    index.check(&log).expect("a sound tree");
}
