//! Tests of the engine through its own interface, one module for each subject. They are in one program, because each
//! program would link all of the engine again.
//!
//! Tests of all modules run beside each other in one process. A test that counts something of the process (threads,
//! memory) or changes it belongs in a program of its own, such as `delegation`.

mod batches;
mod cache;
mod callbacks;
mod check;
mod close;
mod collector;
mod common;
mod compaction;
mod damaged_heads;
mod drops;
mod expiry;
mod growth;
mod hot_cold;
mod known_garbage;
mod lean;
mod limits;
mod lives;
mod lower_levels;
mod nearly_full;
mod old_versions;
mod pacing;
mod placement;
mod read_only;
mod refused;
mod remains;
mod restores;
mod runs;
mod salvages;
mod set_aside;
mod shortcuts;
mod too_large;
mod torn;
mod unread_damage;
mod unreadable;
mod utilization;
mod verification;
mod walks;
mod wedged;
