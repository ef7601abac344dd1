//! The table of demands: every figure that the engine is to reach is measured, compared and judged. Demands and aims
//! are targets that the project set itself.
//!
//! * [`row`] defines a row and its verdict; [`plan`] lists the rows, and the groups of processes that feed them.
//! * [`process`] starts those processes; [`kill`] measures recovery after a SIGKILL; `dram` measures memory over
//!   several sizes.
//! * [`engine`] runs the table, [`table`] prints it; `counting` decides whether a run counts; `notes` has the errors of
//!   rows.
//! * [`nstore`] is a second table, on what the parts of the NStore paper add; [`compaction`] a third, on those of the
//!   Pacman paper; [`server`] a fourth, of the server beside Redis.
//!
//! Every measurement runs in a process of its own, so that no allocator state or memory of one reaches the next. Rows
//! that are ratios compare figures of the same round: the yardsticks run before and after each group.

pub mod args;
pub mod compaction;
mod counting;
mod dram;
pub mod engine;
pub mod kill;
mod notes;
pub mod nstore;
pub mod plan;
pub mod process;
pub mod restart;
pub mod row;
pub mod server;
pub mod table;
