//! What several modules begin with.

use hither_engine::{Durability, Options};
use hither_topology::Topology;
use std::sync::Arc;

/// A store of 128 segments in two shards that does nothing by itself.
pub fn small() -> Options {
    Options {
        capacity: 8 << 20,
        max_capacity: 8 << 20,
        segment_bytes: 64 << 10,
        shards: 2,
        topology: Some(Arc::new(Topology::single())),
        durability: Durability::Process,
        background: false,
        ..Options::default()
    }
}

/// The number after `random` in a sequence without order. The higher the bit the better.
pub fn scrambled(random: u64) -> u64 {
    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// Such numbers below a bound.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = scrambled(self.0);
        (self.0 >> 33) % bound
    }
}
