//! Simulates the cache on its own, to compare policies: a workload of (item, reader) pairs runs through the same
//! structure that the store uses.
//!
//! Deterministic: one thread, no clock (a tick after each 65,536 gets stands for 20 ms). Items are numbers; the caller
//! gives each item's home node. [`optimum`] is the cost that no static choice of the same number of items can beat.

use crate::bucket::Record;
use crate::cache::{Cache, CacheOptions, Holdings};
use crate::policy::{Policy, UNIT, Weights};
use hither_sync::epoch;

/// Bytes of key and value of an item.
const PAIR_BYTES: usize = 16;
const TICK_GETS: u64 = 65_536;

/// The cost of the misses so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Gets.
    pub gets: u64,
    /// Gets that were samples.
    pub samples: u64,
    /// Misses of readers on the item's node.
    pub local_misses: u64,
    /// Misses of readers on other nodes.
    pub remote_misses: u64,
    /// All misses, weighted; one local access costs 1.
    pub weighted: f64,
}

impl Cost {
    /// The cost added since `earlier`.
    pub fn since(&self, earlier: &Cost) -> Cost {
        Cost {
            gets: self.gets - earlier.gets,
            samples: self.samples - earlier.samples,
            local_misses: self.local_misses - earlier.local_misses,
            remote_misses: self.remote_misses - earlier.remote_misses,
            weighted: self.weighted - earlier.weighted,
        }
    }

    /// Weighted cost per get.
    pub fn per_get(&self) -> f64 {
        self.weighted / self.gets.max(1) as f64
    }
}

/// A cache that is driven by a simulated workload.
#[derive(Debug)]
pub struct Simulation {
    cache: Cache,
    weights: Weights,
    cost: Cost,
}

impl Simulation {
    /// A cache of `slots` slots (rounded up to whole buckets) that is on. `sampling` as in [`CacheOptions`].
    pub fn new(policy: Policy, weights: Weights, slots: u64, sampling: Option<u32>) -> Simulation {
        let capacity_bytes = Cache::bytes_for(slots, PAIR_BYTES);
        let cache = Cache::new(CacheOptions { capacity_bytes, policy, weights: weights.clone(), forced: true, sampling });
        let simulation = Simulation { cache, weights, cost: Cost::default() };
        simulation.tick();
        simulation
    }

    fn tick(&self) {
        let holdings = || Holdings { entries: u64::MAX / 4, pair_bytes: PAIR_BYTES };
        self.cache.tick(self.cost.gets / TICK_GETS * 20, 0, &holdings);
    }

    /// Simulates a get of `item`, which lies on `home`, by a thread of `reader`.
    pub fn get(&mut self, item: u64, home: u32, reader: u32) {
        {
            let _pin = epoch::pin();
            self.get_pinned(item, home, reader);
        }
        self.cost.gets += 1;
        if self.cost.gets.is_multiple_of(TICK_GETS) {
            self.tick();
        }
    }

    fn get_pinned(&mut self, item: u64, home: u32, reader: u32) {
        let (hash, key) = (mix(item), item.to_le_bytes());
        if let Some(found) = self.cache.look(hash, &key) {
            let mut value = [0; 8];
            assert!(found.reference == item + 1 && self.cache.copy_value(&found, &mut value) && value == key, "a wrong copy");
            return self.cache.count_hit(&found, reader, home);
        }
        let weight = self.weights.weight(reader, home);
        self.cost.weighted += f64::from(weight) / f64::from(UNIT);
        *if reader == home { &mut self.cost.local_misses } else { &mut self.cost.remote_misses } += 1;
        if self.cache.count_miss(reader, home) {
            self.cache.offer(
                hash,
                reader,
                home,
                true,
                &Record { reference: item + 1, generation: 1, expiry_ms: 0, key: &key, value: &key },
            );
        }
    }

    /// The cost so far.
    pub fn cost(&self) -> Cost {
        Cost { samples: self.cache.samples(), ..self.cost }
    }

    /// Number of slots of the cache.
    pub fn slots(&self) -> u64 {
        self.cache.stats().slots
    }

    /// The present sampling interval: one get in so many is a sample.
    pub fn interval(&self) -> u32 {
        self.cache.stats().sampling_interval
    }
}

/// SplitMix64's finaliser, in place of the store's hash.
fn mix(word: u64) -> u64 {
    let z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// An item for computing the optimum: its share of local and remote gets, and their weight together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Share of all gets that are local gets of this item.
    pub local: f32,
    /// Share of all gets that are remote gets of this item.
    pub remote: f32,
    /// Both shares, weighted.
    pub weighted: f32,
}

/// Cost per get, and remote misses per get, if the `slots` items with the largest `by` are cached for ever.
pub fn optimum(items: &[Share], slots: usize, by: impl Fn(&Share) -> f32) -> (f64, f64) {
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    if slots < order.len() {
        order.select_nth_unstable_by(slots, |a, b| by(&items[*b as usize]).total_cmp(&by(&items[*a as usize])));
    }
    let missed = order.iter().skip(slots).map(|item| &items[*item as usize]);
    missed.fold((0.0, 0.0), |(cost, remote), share| (cost + f64::from(share.weighted), remote + f64::from(share.remote)))
}
