//! SIGKILL of the real program, in the middle of a load and under clients.

#[path = "../common/mod.rs"]
mod common;

mod load;
mod server;
