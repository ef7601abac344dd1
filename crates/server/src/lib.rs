//! The server: the Redis protocol on top of a hither store.
//!
//! Reading order: [`data`] (how databases and collections are laid out in the store, and how commands change them),
//! [`commands`] (the command table, one file per family), [`session`] (the state of one client, without any
//! networking), [`net`] (threads, connections, replies that wait for durability).
//!
//! # Guarantees
//!
//! * A reply that reports a write, or a state that a write produced, leaves only after that write is durable at the
//!   store's level. A client may ask for a weaker level for its own writes.
//! * Every command is atomic; so is everything between MULTI and EXEC, also across a crash.
//! * No client can make the server hold more for it than the limits of [`config::Config`] allow.
//!
//! # Thread safety
//!
//! [`shared::Shared`] is shared by all threads; a [`session::Session`] and its connection belong to one thread.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod acl;
pub mod attempts;
pub mod backup;
pub mod changes;
pub mod commands;
pub mod config;
pub mod cursors;
pub mod data;
pub mod events;
pub mod glob;
pub mod info;
pub mod latency;
pub mod metrics;
pub mod monitor;
pub mod net;
pub mod pause;
pub mod rate;
pub mod rdb;
pub mod saving;
pub mod session;
pub mod shared;
pub mod slowlog;
pub mod transaction;
pub mod turns;
pub mod waiting;
pub mod writable;

pub use config::Config;
pub use net::Server;
pub use session::Session;
pub use shared::Shared;
