//! A command that others are always faster than gets its turn alone.
//!
//! Commands are optimistic ([`crate::data::txn`]): one that read what another has changed since runs again. That is cheap and rare for small ones; a command that reads
//! ten thousand rows loses every time against clients that write one of them a thousand times a second, and while it tries, the other clients of its thread wait. So after a
//! few attempts in vain it runs *alone*: no other thread runs a command that may write until it has committed, just as if the server had one thread.
//!
//! # Contract
//!
//! 1. Whoever may write holds its thread's turn ([`Turns::own`]) from its first read to the end of its commit. Who runs alone holds the turns of all threads
//!    ([`Turns::all`]). What only reads holds none: it changes nothing that others read.
//! 2. A thread holds one of the two at most, and waits for no other thread meanwhile: so there is no deadlock.
//! 3. Work in the background (the reaper, expiry, FLUSHALL) holds none. It may disturb a command that runs alone, but not for ever: see [`ATTEMPTS_ALONE`].
//!
//! A thread's own turn costs next to nothing, and running alone begins soon, however busy the others are: see [`hither_sync::turns`].
//!
//! Thread safety: any thread. A crash leaves nothing of it.

pub use hither_sync::turns::Turns;
use hither_sync::turns::{All, Own};

/// Attempts beside others, before a command runs alone. An attempt fails only if another command has succeeded meanwhile.
pub const ATTEMPTS_BESIDE_OTHERS: u32 = 4;
/// Attempts alone, before the client is told that it cannot be done.
pub const ATTEMPTS_ALONE: u32 = 8;

/// What was taken; given back when this is dropped.
#[must_use]
pub enum Held<'a> {
    /// Nothing: the command only reads.
    Nothing,
    /// The turn of one thread.
    Own(Own<'a>),
    /// All turns.
    All(All<'a>),
}
