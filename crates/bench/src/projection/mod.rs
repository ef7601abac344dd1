//! Throughput on a machine that is not available, projected from counted accesses (`docs/projection.md`).
//!
//! An operation is described by its reads and persisted writes of persistent memory, to the own node and to others, and
//! by the processor time that it needs besides. The latencies and bandwidths of the NStore paper (section II-A1,
//! [`LinkCost::LOCAL`] and [`LinkCost::REMOTE`]) then give the rate of any number of threads. The rate is bound by
//! latency as long as no link is full, and otherwise by the fullest link.
//!
//! [`model`] has the formulas, [`paper`] the statements of the paper on its figures and profiles of the stores in them,
//! [`table`] both side by side.
//!
//! Thread safety: plain values. Nothing persistent.

pub mod model;
pub mod paper;
pub mod table;

pub use hither_topology::LinkCost;
pub use model::{Access, Machine, OpCounts, Placement, Point, project};
