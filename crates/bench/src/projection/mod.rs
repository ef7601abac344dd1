//! Throughput on a machine that is not at hand, projected from counted accesses (`docs/projection.md`).
//!
//! An operation is known by what it does: reads and persisted writes of persistent memory, to the own node and to others, and the time that the
//! processor needs besides. With the latencies and bandwidths of the NStore paper (section II-A1, [`LinkCost::LOCAL`] and [`LinkCost::REMOTE`]) follows the
//! rate of any number of threads: bound by latency as long as no link is full, by the fullest link then.
//!
//! [`model`] has the formulas, [`paper`] what the paper says of its figures and profiles of the stores in them, [`table`] both side by side.
//!
//! Thread safety: plain values. Nothing persistent.

pub mod model;
pub mod paper;
pub mod table;

pub use hither_topology::LinkCost;
pub use model::{Access, Machine, OpCounts, Placement, Point, project};
