//! Hot entries in segments of their own: reads are right whatever is hot, and skewed writes cause fewer copies
//! (`docs/adr/0016`).

use crate::common::scrambled;
use hither_engine::{Durability, KeyspaceHandle, Kind, Options, Stats, Store};
use hither_topology::Topology;
use std::sync::Arc;

const ENTRY_BYTES: u64 = 32;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = scrambled(self.0);
        self.0 >> 20
    }

    fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 44) as f64
    }
}

/// Ranks by a Zipf law with exponent near one: uniform in the logarithm.
fn skewed(random: &mut Random, keys: u64) -> u64 {
    ((keys as f64).powf(random.unit()) as u64 - 1).min(keys - 1)
}

/// Spreads ranks over the keys.
fn key(rank: u64) -> [u8; 8] {
    (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes()
}

fn open(capacity: u64, segment_bytes: u64, separate_hot: bool) -> (Store, KeyspaceHandle) {
    let store = Store::open(Options {
        in_memory: true,
        capacity,
        max_capacity: capacity,
        segment_bytes,
        shards: 4,
        topology: Some(Arc::new(Topology::single())),
        durability: Durability::Process,
        // Entries are moved only when a write finds no space, so every run moves the same.
        background: false,
        separate_hot,
        ..Options::default()
    })
    .unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (store, keyspace)
}

/// Bytes copied for each byte written by the second half of the updates, in a store of which this share is live.
fn copied(capacity: u64, live: f64, updates: u64, separate_hot: bool, zipf: bool) -> (f64, Stats) {
    let (store, keyspace) = open(capacity, capacity / 256, separate_hot);
    let keys = (capacity as f64 * live) as u64 / ENTRY_BYTES;
    let put = |rank: u64, value: u64| {
        store.write_wait(&keyspace, &key(rank), Some(&value.to_be_bytes())).unwrap();
    };
    (0..keys).for_each(|rank| put(rank, rank));
    let mut random = Random(7);
    let mut draw = || if zipf { skewed(&mut random, keys) } else { random.next() % keys };
    (0..updates / 2).for_each(|number| put(draw(), number));
    let before = store.stats().collections.moved_bytes;
    (0..updates / 2).for_each(|number| put(draw(), number));
    let stats = store.stats();
    let moved = stats.collections.moved_bytes - before;
    assert_eq!(keyspace.len() as u64, keys);
    (moved as f64 / (updates / 2 * ENTRY_BYTES) as f64, stats)
}

#[test]
fn hot_segments_save_copies_under_skew() {
    let (apart, stats) = copied(16 << 20, 0.8, 2_000_000, true, true);
    let (together, _) = copied(16 << 20, 0.8, 2_000_000, false, true);
    assert!(stats.pools[0].usage.tells_hot_apart, "{:?}", stats.pools[0].usage);
    assert!(apart < together * 0.9, "{apart:.3} bytes copied for a byte written, {together:.3} without hot segments");
}

#[test]
fn nothing_is_hot_on_uniform_load() {
    let (_, stats) = copied(16 << 20, 0.7, 1_000_000, true, false);
    assert!(!stats.pools[0].usage.tells_hot_apart);
}

#[test]
fn every_key_has_its_last_value_wherever_it_lies() {
    let (store, keyspace) = open(16 << 20, 64 << 10, true);
    let keys = 300_000;
    let mut last = vec![u64::MAX; keys as usize];
    let mut random = Random(3);
    for number in 0..2_000_000u64 {
        // The hot keys shift.
        let rank = (skewed(&mut random, keys) + number / 500_000 * 1000) % keys;
        store.write_wait(&keyspace, &key(rank), Some(&number.to_be_bytes())).unwrap();
        last[rank as usize] = number;
    }
    for (rank, number) in last.iter().enumerate() {
        let value = store.get_with(&keyspace, &key(rank as u64), <[u8]>::to_vec).unwrap();
        assert_eq!(value, (*number != u64::MAX).then(|| number.to_be_bytes().to_vec()), "rank {rank}");
    }
    assert!(store.stats().collections.segments > 0 && store.check().unwrap().is_sound());
}

/// `cargo test --release -p hither-engine --test engine hot_cold -- --ignored --nocapture`
#[test]
#[ignore = "figures"]
fn figures() {
    for (zipf, name) in [(true, "skewed"), (false, "uniform")] {
        for live in [0.5, 0.8, 0.9] {
            let of = |apart| copied(64 << 20, live, 4_000_000, apart, zipf).0;
            println!(
                "{name}, {:.0} % live: {:.3} bytes copied for a byte written, {:.3} without hot segments",
                live * 100.0,
                of(true),
                of(false)
            );
        }
    }
}
