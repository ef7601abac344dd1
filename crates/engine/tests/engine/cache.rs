//! The cache of entries in a store over two emulated nodes: when there is one, what it saves, and that every change
//! shows at once.

use crate::common::{get, put, scrambled};
use hither_engine::{Batch, CachePolicy, CacheSetting, Condition, KeyspaceHandle, Kind, Options, Store, WriteOptions};
use hither_pmem::Randomness;
use hither_topology::{Topology, TopologyBuilder};
use std::sync::Arc;

fn options(topology: Topology) -> Options {
    Options {
        in_memory: true,
        topology: Some(Arc::new(topology)),
        meter: true,
        background: false,
        // By other seeds of hashes, two of a few keys could share a pair and a tag, and then both entries are read.
        random: Randomness::seeded(1),
        cache: CacheSetting { bytes: Some(1 << 20), forced: true, policy: CachePolicy::Adaptive },
        ..Options::default()
    }
}

/// A store whose cache is on, divided for values of this length, and a keyspace.
fn cached(kind: Kind, value_bytes: usize) -> (Store, KeyspaceHandle) {
    let topology = Topology::emulated(2);
    topology.bind_current_thread(0).unwrap();
    let store = Store::open(options(topology)).unwrap();
    let keyspace = store.create_keyspace("k", kind).unwrap();
    put(&store, &keyspace, b"filler", &vec![0; value_bytes]);
    store.tick_cache();
    assert_eq!(store.stats().cache.state.name(), "on");
    (store, keyspace)
}

/// The cache hits and media reads of `act`.
fn count(store: &Store, act: impl FnOnce()) -> (u64, u64) {
    let now = || {
        let stats = store.stats();
        (stats.cache.local_hits + stats.cache.remote_hits, stats.meter.unwrap().total().reads)
    };
    let before = now();
    act();
    let after = now();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn there_is_a_cache_only_where_it_can_help() {
    let reason = |options| Store::open(options).unwrap().stats().cache.state.why_off();
    let nothing_to_gain = Some("nothing to gain on these nodes and media");
    assert_eq!(reason(options(Topology::single())), nothing_to_gain);
    let mut two_pools = options(Topology::single());
    two_pools.paths = (0..2).map(|node| (Some(node), format!("node{node}").into())).collect();
    assert_eq!(Store::open(two_pools.clone()).unwrap().stats().pools.len(), 2);
    assert_eq!(reason(two_pools), nothing_to_gain, "nobody reads from the other node");
    let equal = TopologyBuilder::emulated(2).latency(0, 1, 113.4, 1.0).latency(1, 0, 113.4, 1.0).build();
    assert_eq!(reason(options(equal)), nothing_to_gain);
    let mut none = options(Topology::emulated(2));
    none.cache.bytes = Some(0);
    assert_eq!(reason(none), nothing_to_gain);
    let by_default = Options { cache: CacheSetting::default(), ..options(Topology::emulated(2)) };
    let stats = Store::open(by_default).unwrap().stats();
    assert_eq!((stats.cache.capacity_bytes, stats.cache.state.name()), (64 << 20, "off"));
    assert!(stats.cache.used_bytes < 64 << 10, "nothing is allocated before it is needed");
}

#[test]
fn hits_read_no_media() {
    for kind in [Kind::Hash, Kind::Ordered] {
        let (store, k) = cached(kind, 1024);
        let keys: Vec<Vec<u8>> = [&b"8 bytes!"[..], b"k", b"a key of many more bytes than eight"].map(<[u8]>::to_vec).into();
        for (i, key) in keys.iter().enumerate() {
            for value in [&b"12345678"[..], b"", &[i as u8; 100], &[7; 1024]] {
                put(&store, &k, key, value);
                assert_eq!(count(&store, || assert_eq!(get(&store, &k, key).unwrap(), value)).0, 0, "the first get fills");
                assert_eq!(
                    count(&store, || assert_eq!(get(&store, &k, key).unwrap(), value)),
                    (1, 0),
                    "{kind:?}, value of {}",
                    value.len()
                );
                let many = || store.multi_get_with(&k, &[key, key], |_, found| assert_eq!(found, Some(value))).unwrap();
                assert_eq!(count(&store, many), (2, 0));
            }
            put(&store, &k, key, &[1; 1025]);
            assert_eq!(get(&store, &k, key).unwrap().len(), 1025);
            assert_eq!(count(&store, || assert_eq!(get(&store, &k, key).unwrap(), [1; 1025])).0, 0, "too long to be cached");
        }
    }
}

#[test]
fn every_change_shows_at_once() {
    for kind in [Kind::Hash, Kind::Ordered] {
        let (store, k) = cached(kind, 8);
        let other = store.create_keyspace("other", kind).unwrap();
        for round in 0..50u64 {
            let value = round.to_le_bytes();
            put(&store, &k, b"key", &value);
            put(&store, &other, b"key", b"another's");
            (0..3).for_each(|_| assert_eq!(get(&store, &k, b"key").unwrap(), value));
            (0..3).for_each(|_| assert_eq!(get(&store, &other, b"key").unwrap(), b"another's"));

            let snapshot = store.snapshot();
            let mut batch = Batch::default();
            batch.put(&k, b"key", b"batched", 0);
            batch.delete(&other, b"key");
            store.commit_wait(&batch).unwrap();
            (0..2).for_each(|_| assert_eq!(get(&store, &k, b"key").unwrap(), b"batched"));
            assert_eq!(get(&store, &other, b"key"), None);
            assert_eq!(snapshot.get_with(&k, b"key", <[u8]>::to_vec).unwrap().unwrap(), value, "a snapshot does not ask the cache");

            store.write_wait(&k, b"key", None).unwrap();
            assert_eq!(get(&store, &k, b"key"), None);
        }
        store.drop_keyspace("k").unwrap();
        assert!(store.get_with(&k, b"key", |_| ()).is_err());
    }
}

#[test]
fn copies_expire() {
    let (store, k) = cached(Kind::Hash, 16);
    // On a busy machine a short life may be over before the first get.
    let hits = [60, 600, 6_000].into_iter().find_map(|life_ms| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        let write = WriteOptions::new().expires_at_ms(now + life_ms);
        store.write(&k, b"key", Some(b"short-lived"), Condition::None, &write).unwrap().2.wait().unwrap();
        let (hits, _) = count(&store, || {
            while let Some(value) = get(&store, &k, b"key") {
                assert_eq!(value, b"short-lived");
            }
        });
        (hits > 0).then_some(hits)
    });
    assert!(hits.is_some(), "the copy was asked");
    store.multi_get_with(&k, &[b"key"], |_, found| assert_eq!(found, None)).unwrap();
}

/// The index is asked first. Its answer may lie in the place of an earlier entry of the same key, of which there is a
/// cached copy: only the segment's generation shows the difference.
#[test]
fn reused_addresses_do_not_revive_copies() {
    let topology = Topology::emulated(2);
    topology.bind_current_thread(1).unwrap();
    let small = Options { capacity: 64 << 10, max_capacity: 64 << 10, segment_bytes: 4 << 10, ..options(topology) };
    let store = Store::open(small).unwrap();
    let k = store.create_keyspace("k", Kind::Hash).unwrap();
    store.tick_cache();
    let (mut hits, mut random, mut next_look) = (0, 1u64, 0);
    for round in 0..600_000u64 {
        let key = (round % 2).to_le_bytes();
        put(&store, &k, &key, &round.to_le_bytes());
        // Seldom and at random: the cached copy has to outlive its segment, and the key has to come to lie there again.
        if round >= next_look {
            random = scrambled(random);
            next_look = round + (random >> 33) % 400;
            hits += count(&store, || (0..2).for_each(|_| assert_eq!(get(&store, &k, &key).unwrap(), round.to_le_bytes()))).0;
        }
    }
    let reused: u64 = store.stats().pools.iter().map(|pool| pool.usage.reused).sum();
    assert!(reused > 1_000 && hits > 2_000, "{reused} segments reused, {hits} hits");
}
