//! Back-pressure: where space is scarce, writers are slowed down in small steps. Where nobody collects, or space is
//! plentiful, they are not (`docs/adr/0016`).

use crate::common::scrambled;
use hither_engine::{Durability, Kind, Options, Store};
use hither_topology::Topology;
use std::sync::Arc;
use std::time::Duration;

const CAPACITY: u64 = 8 << 20;
const ENTRY_BYTES: u64 = 80;

/// A store in memory.
fn store(gc_threads: usize) -> Store {
    Store::open(Options {
        in_memory: true,
        capacity: CAPACITY,
        max_capacity: CAPACITY,
        segment_bytes: 64 << 10,
        shards: 2,
        topology: Some(Arc::new(Topology::single())),
        durability: Durability::Process,
        gc_threads,
        ..Options::default()
    })
    .unwrap()
}

/// A store of which this share is live, after as many overwrites, from two threads, as it has room for entries.
fn overwritten(live: f64, gc_threads: usize) -> Store {
    let store = store(gc_threads);
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let keys = (CAPACITY as f64 * live) as u64 / ENTRY_BYTES;
    let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[7; 48])).unwrap();
    (0..keys).for_each(|key| assert!(!put(key)));
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let put = &put;
            scope.spawn(move || {
                let mut random = thread + 1;
                for _ in 0..CAPACITY / ENTRY_BYTES {
                    random = scrambled(random);
                    assert!(put((random >> 33) % keys));
                }
            });
        }
    });
    assert_eq!(keyspace.len() as u64, keys);
    store
}

#[test]
fn writers_are_slowed_down_where_space_is_scarce() {
    let done = overwritten(0.8, 1).stats().collections;
    assert!(done.paced_writes > 0 && done.paced_ns > 0, "{done:?}");
    let mean = Duration::from_nanos(done.paced_ns / done.paced_writes);
    assert!(mean >= Duration::from_micros(50), "shorter pauses are saved up: {mean:?}");
}

#[test]
fn nobody_is_slowed_down_where_nobody_collects() {
    let done = overwritten(0.8, 0).stats().collections;
    assert!(done.stalls > 0 && done.segments > 0, "writers collect by themselves: {done:?}");
    assert_eq!((done.paced_writes, done.paced_ns), (0, 0), "{done:?}");
}

/// Regression: a put that a reader made in its closure slept with the reader's pin. Nothing that had been freed could
/// be handed on, least of all while space was short.
#[test]
fn nobody_sleeps_inside_a_read() {
    let store = store(1);
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let keys = (CAPACITY as f64 * 0.8) as u64 / ENTRY_BYTES;
    (0..keys).for_each(|key| assert!(!store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[7; 48])).unwrap()));
    let (paced, mut random) = (|| store.stats().collections.paced_writes, 1);
    let mut put_some = |how_many: u64| {
        for _ in 0..how_many {
            random = scrambled(random);
            // Inside a read nobody waits for space.
            let _ = store.write_wait(&keyspace, &((random >> 33) % keys).to_be_bytes(), Some(&[7; 48]));
        }
    };
    while paced() < 20 {
        put_some(100);
        let before = paced();
        store.get_with(&keyspace, &0u64.to_be_bytes(), |_| put_some(400)).unwrap();
        assert_eq!(paced(), before);
    }
}
