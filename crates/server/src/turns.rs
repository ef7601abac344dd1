//! Lets a command that others are always faster than run alone.
//!
//! Commands are optimistic ([`crate::data::txn`]): a command that read what another has changed since runs again. That
//! is cheap and rare for small commands. A command that reads ten thousand rows loses every time against clients that
//! write one of them a thousand times a second, and while it tries, the other clients of its thread wait. So after a
//! few failed attempts it runs *alone*: no other thread runs a command that may write until it has committed, as if the
//! server had one thread.
//!
//! # Contract
//!
//! 1. A command that may write holds its thread's turn ([`Turns::own`]) from its first read to the end of its commit. A
//!    command that runs alone holds the turns of all threads ([`Turns::all`]). A command that only reads holds none: it
//!    changes nothing that others read.
//! 2. A thread holds at most one of the two, and waits for no other thread meanwhile, so there is no deadlock.
//! 3. Background work (the reaper, expiry, FLUSHALL) holds none. It may disturb a command that runs alone, but not for
//!    ever: see [`ATTEMPTS_ALONE`].
//!
//! A thread's own turn costs next to nothing, and running alone begins soon, however busy the other threads are: see
//! [`hither_sync::turns`].
//!
//! Thread safety: any thread. A crash leaves no trace of it.

pub use hither_sync::turns::Turns;
use hither_sync::turns::{All, Own};

/// Attempts beside others, before a command runs alone. An attempt fails only if another command has succeeded
/// meanwhile.
pub const ATTEMPTS_BESIDE_OTHERS: u32 = 4;
/// Attempts alone, before the command fails.
pub const ATTEMPTS_ALONE: u32 = 8;

/// The turns that a command holds; given back when this is dropped.
#[must_use]
pub enum Held<'a> {
    /// None: the command only reads.
    Nothing,
    /// The turn of its own thread.
    Own(Own<'a>),
    /// The turns of all threads.
    All(All<'a>),
}
