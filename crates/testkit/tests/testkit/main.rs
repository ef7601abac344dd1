//! What needs the test kit or several layers at once, and has no stage of its own.

#![deny(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod cache;
mod checkpoints;
mod concurrency;
mod damage;
mod failpoints;
mod golden;
mod golden_layouts;
mod protocol;
mod salvage;
mod snapshots;
