//! The server in this process: sessions without a socket, and whole servers.

mod acl;
mod backups;
mod bounded;
mod common;
mod contention;
mod cursors;
mod dumps;
mod failed_sync;
mod families;
mod guards;
mod memory;
mod mending;
mod names;
mod network;
mod pipelines;
mod pipes;
mod removals;
mod sessions;
mod transactions;
mod waiting;
