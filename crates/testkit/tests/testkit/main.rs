//! Tests that need the test kit or several layers at once, and have no stage of their own.

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
