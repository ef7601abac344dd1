//! The commands: one file per family, each with its part of the one table ([`table`]).
//!
//! A command is a function of a [`Context`]. It may run several times (see [`Session::run`]), so it changes nothing but through the transaction, the
//! reply and, where it is its business, the session. It checks all arguments and types before it writes: an error leaves nothing behind.

pub mod acl;
pub mod arguments;
pub mod bitfield;
pub mod bits;
pub mod blocking;
pub mod client;
pub mod collection;
pub mod connection;
pub mod dump;
pub mod failure;
pub mod hashes;
pub mod help;
pub mod keys;
pub mod latency;
pub mod lcs;
pub mod objects;
pub mod ordered;
pub mod saving;
pub mod server;
pub mod sort;
pub mod strings;
pub mod table;
pub mod transactions;
pub mod zsets;

use crate::data::Txn;
use crate::session::Session;
use crate::shared::Shared;
use failure::Failure;
use hither_resp::{Args, Writer};
use std::sync::Arc;

/// What a command works with.
pub struct Context<'a> {
    /// What all threads share.
    pub shared: &'a Arc<Shared>,
    /// The client.
    pub session: &'a mut Session,
    /// The arguments, the command's name first.
    pub args: Args<'a>,
    /// What it reads and writes.
    pub txn: &'a mut Txn,
    /// Where the reply goes.
    pub reply: Writer<'a>,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
}

/// What a command's function gives.
pub type Outcome = Result<(), Failure>;
