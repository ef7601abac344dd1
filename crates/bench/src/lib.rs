//! Workloads, harness and reports: how fast hither is, against yardsticks and peers.
//!
//! Layers, each using only those above it: [`workload`] (what is asked for), [`yardstick`] (what the machine can do),
//! [`target`] (who is asked), [`harness`] (loops, latencies, records), [`projection`] (other machines), [`report`] (tables and charts), [`figures`] (the
//! table of demands), [`nstore`] (the experiments of the NStore paper), [`compaction`] (those of the Pacman paper), [`cli`] (the commands). `docs/benchmarks.md` says how each figure is made.
//!
//! Thread safety: everything that threads share is `Sync`; measured loops share nothing but the target.
//! `unsafe` is allowed in [`yardstick`] only.

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

pub use cli::{main_with_args, main_with_prefix};
