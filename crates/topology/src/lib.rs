//! NUMA nodes, thread placement and the access meter.
//!
//! A [`Topology`] reports which nodes exist, on which node the calling thread runs, and what an access from one node to
//! the memory of another costs. It is either real (read from sysfs) or emulated. An emulated topology has any number of
//! nodes on any machine: threads are assigned to them logically, and the same code runs. A [`Meter`] counts accesses
//! per (accessor node, home node), and [`MeterSnapshot::cost`] turns the counts into projected time.
//!
//! Thread safety: everything here is `Send + Sync`. A `Topology` is an `Arc` inside: clone it freely.
//! Crash: nothing here is persistent.
//! Paper: NStore, measured figures of section 2 (defaults of the emulation).

#![forbid(unsafe_code)]

mod cost;
mod cpulist;
mod error;
mod meter;
mod sysfs;
mod thread;
mod topology;

pub use cost::{LinkCost, NodeCosts};
pub use cpulist::parse_cpulist;
pub use error::TopologyError;
pub use meter::{Counters, Meter, MeterSnapshot, ProjectedCost};
pub use topology::{Node, Topology, TopologyBuilder};

/// The most nodes a store can span: a reference holds the node in 4 bits.
pub const MAX_NODES: usize = 16;

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// Bytes of the unit in which persistent memory modules write their media.
pub const MEDIA_LINE_BYTES: u64 = 256;
