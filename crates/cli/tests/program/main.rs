//! The real program: its commands, its server, its packaging.

#[path = "../common/mod.rs"]
mod common;

mod advice;
mod closed_connections;
mod commands;
mod compact;
mod copy;
mod edges;
mod load;
mod log;
mod packaging;
mod refusals;
mod serve;
