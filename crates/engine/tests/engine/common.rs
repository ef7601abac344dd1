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
