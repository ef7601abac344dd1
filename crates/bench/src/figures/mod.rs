//! The table of demands: every figure that the engine is to reach, measured, compared and judged. Demands and aims are targets that the project set itself.
//!
//! [`row`] defines a row and its verdict, [`plan`] the rows and the groups of processes that feed them, [`process`] starts
//! those processes, [`kill`] measures recovery after a SIGKILL, [`engine`] runs everything and prints it, `counting` says whether a run counts, `dram` measures memory over several sizes. [`nstore`] is a second table, of what
//! the parts of the NStore paper add, [`compaction`] a third, of what the Pacman paper's do, [`server`] a fourth, of the server beside Redis.
//!
//! Every measurement runs in a process of its own, so that no allocator state or memory of one reaches the next. Rows that are
//! ratios compare figures of the same round: the yardsticks run before and after each group.

pub mod args;
pub mod compaction;
mod counting;
mod dram;
pub mod engine;
pub mod kill;
pub mod nstore;
pub mod plan;
pub mod process;
pub mod restart;
pub mod row;
pub mod server;
