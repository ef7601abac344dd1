//! Workloads, harness and reports: the speed of hither, beside yardsticks and peers.
//!
//! Layers, each using only those above it:
//!
//! * [`workload`]: the operations and their keys.
//! * [`yardstick`]: what the machine can do.
//! * [`target`]: the measured stores.
//! * [`harness`]: loops, latencies, records.
//! * [`projection`]: other machines.
//! * [`report`]: tables and charts.
//! * [`figures`]: the tables of demands.
//! * [`nstore`], [`compaction`]: the experiments of the NStore paper, and of the Pacman paper.
//! * [`cli`]: the commands.
//!
//! `docs/benchmarks.md` states how each figure is made.
//!
//! Thread safety: everything that threads share is `Sync`; measured loops share nothing but the target. `unsafe` is
//! allowed in [`yardstick`] only.

#![deny(unsafe_code)]

pub mod cli;
pub mod compaction;
pub mod figures;
pub mod harness;
pub mod nstore;
pub mod projection;
pub mod report;
pub mod target;
pub mod workload;
#[allow(unsafe_code)]
pub mod yardstick;

pub use cli::main_with_prefix;
