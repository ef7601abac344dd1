//! The server in this process: sessions without a socket, and whole servers.

mod acl;
mod common;
mod contention;
mod dumps;
mod failed_sync;
mod memory;
mod network;
mod pipelines;
mod sessions;
mod transactions;
mod waiting;
