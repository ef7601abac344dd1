//! A process that dies in the middle of a sweep leaves marks that it has stored but not flushed. The next process reads
//! them from the caches; a power loss takes them away.

use hither_engine::{Kind, Store};
use hither_pmem::shadow::{ShadowRng, What};
use hither_pmem::{CreateOptions, Emulate, Pool};
use hither_testkit::explorer_script::{open_pools, store_options};
use hither_testkit::images::{Machine, Recorder};
use hither_topology::Topology;
use std::sync::Arc;

const SEGMENT: u64 = 4096;

fn pools(rules: Emulate, recorder: &Arc<Recorder>) -> Vec<Pool> {
    let (store, member) = (hither_pmem::new_uuid(), hither_pmem::new_uuid());
    let pool = Pool::create_in_memory(&CreateOptions {
        segment_bytes: SEGMENT,
        max_bytes: 256 * SEGMENT,
        hugepages: false,
        emulate: Some(rules),
        tracer: Some(recorder.tracer(0)),
        ..CreateOptions::member(store, vec![member], 0, 128 * SEGMENT)
    })
    .unwrap();
    pool.finish_creation().unwrap();
    vec![pool]
}

fn put(store: &Store, key: u64, byte: u8) {
    let keyspace = store.open_keyspace("k").unwrap();
    store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[byte; 48])).unwrap();
}

fn there(store: &Store, key: u64) -> bool {
    let keyspace = store.open_keyspace("k").unwrap();
    store.get_with(&keyspace, &key.to_be_bytes(), |_| ()).unwrap().is_some()
}

const GONE: std::ops::Range<u64> = 10_000..10_010;

#[test]
fn a_deleted_key_stays_deleted_after_a_kill_in_a_sweep_and_a_power_loss() {
    after_each_mark(|store| {
        // Sweeps, and then empties the segment with the tombstones.
        store.reclaim().unwrap();
        (400..700).for_each(|key| put(store, key, 3));
        (0..3).for_each(|_| assert!(store.reclaim().is_ok()));
    });
}

/// Regression: the first sweep over a segment after that took all marks in it for durable. That included marks that
/// this sweep had no reason to make again: those on entries kept out by tombstones in a segment that was still being
/// filled.
#[test]
fn nor_if_the_first_sweep_afterwards_is_for_other_keys() {
    const OTHER: u64 = 20_000;
    after_each_mark(|store| {
        let keyspace = store.open_keyspace("k").unwrap();
        (400..700).for_each(|key| put(store, key, 3));
        put(store, OTHER, 3);
        assert!(store.write_wait(&keyspace, &OTHER.to_be_bytes(), None).unwrap());
        (700..800).for_each(|key| put(store, key, 3));
        // Moves the tombstones to a segment that stays open, and sweeps for the tombstone of the other key.
        store.reclaim().unwrap();
        assert!(store.stats().collections.moved_tombstones >= GONE.end - GONE.start);
        // Fills that segment with copies, sweeps for its tombstones, and empties it. The entries that they keep out
        // stay where they are.
        (250..380).filter(|key| key % 4 != 0).for_each(|key| put(store, key, 4));
        store.reclaim().unwrap();
        store.reclaim().unwrap();
        let gone = (5..20).any(|byte| {
            // The rest is copied, which fills the segment of copies; the next sweep covers what has become full in this
            // way.
            (200..800).filter(|key| key % 4 != u64::from(byte) % 4).for_each(|key| put(store, key, byte));
            (0..2).for_each(|_| assert!(store.reclaim().is_ok()));
            store.stats().pools[0].usage.tombstones == 0
        });
        assert!(gone, "tombstones are left");
    });
}

/// Kills a process behind each mark of a sweep for the keys `GONE`, lets `then` work in the next process, fails the
/// power, and asserts that those keys are still deleted.
fn after_each_mark(then: impl Fn(&Store)) {
    let rules = Emulate::Adr;
    let topology = Arc::new(Topology::emulated(1));
    topology.bind_current_thread(0).unwrap();
    let recorder = Recorder::new(rules, 1);
    let options = |pools| store_options(pools, &topology, 2, 1, None);
    let store = Store::open(options(pools(rules, &recorder))).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..100).for_each(|key| put(&store, key, 1));
    GONE.for_each(|key| put(&store, key, 2));
    (100..500).for_each(|key| put(&store, key, 1));
    for key in GONE {
        assert!(store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap());
    }
    (500..700).for_each(|key| put(&store, key, 1));
    let begun = recorder.position();
    store.reclaim().unwrap();
    let first = recorder.recording();
    drop(store);
    let is_mark = |what: &What| match what {
        What::Store { off, bytes, .. } => bytes.len() == 8 && *off > 300 * 128 && bytes[4] & 4 != 0,
        _ => false,
    };
    let marks: Vec<usize> = (begun..first.steps.len()).filter(|&at| is_mark(&first.steps[at].what)).collect();
    assert!(marks.len() >= 10, "each deleted key's pair is marked");
    for at in marks {
        // The kill comes between the mark and its flush.
        let mut machine = Machine::new(&first);
        machine.advance_to(at + 1);
        let second = Recorder::new(rules, 1);
        let store = Store::open(options(open_pools(&machine.visible(), rules, Some(&second)).unwrap())).unwrap();
        assert!(GONE.clone().all(|key| !there(&store, key)));
        then(&store);
        assert!(GONE.clone().all(|key| !there(&store, key)));
        assert!(store.check().unwrap().is_sound());
        drop(store);
        let mut machine = Machine::new(&first.killed_then(at + 1, &second.recording()));
        machine.advance_to(usize::MAX);
        for (images, kind) in machine.images(4, &mut ShadowRng::new(1)) {
            let store = Store::open(options(open_pools(&images, rules, None).unwrap())).unwrap();
            let back: Vec<u64> = GONE.clone().filter(|key| there(&store, *key)).collect();
            assert!(back.is_empty(), "killed behind step {at}, power lost, {kind:?}: deleted keys {back:?} are back");
        }
    }
}
