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
//! 2. A thread holds one of the two at most, and waits for no other thread meanwhile: so there is no deadlock. All turns are taken in the order of the threads.
//! 3. Work in the background (the reaper, expiry, FLUSHALL) holds none. It may disturb a command that runs alone, but not for ever: see [`ATTEMPTS_ALONE`].
//!
//! A thread's own turn is a lock that hardly anybody else ever takes: some ten nanoseconds. The lock is fair in the long run (a thread that was kept waiting for a
//! millisecond is handed it), so running alone begins soon, however busy the others are.
//!
//! Thread safety: any thread. A crash leaves nothing of it.

use parking_lot::{Mutex, MutexGuard};

/// Attempts beside others, before a command runs alone. An attempt fails only if another command has succeeded meanwhile.
pub const ATTEMPTS_BESIDE_OTHERS: u32 = 4;
/// Attempts alone, before the client is told that it cannot be done.
pub const ATTEMPTS_ALONE: u32 = 8;

/// The turns of all threads.
pub struct Turns {
    threads: Vec<Turn>,
}

/// Alone on its line, and on the one that is fetched with it.
#[derive(Default)]
#[repr(align(128))]
struct Turn(Mutex<()>);

/// What was taken; given back when this is dropped.
#[must_use]
pub enum Held<'a> {
    /// Nothing: the command only reads.
    Nothing,
    /// The turn of one thread.
    Own(MutexGuard<'a, ()>),
    /// All turns.
    All(Vec<MutexGuard<'a, ()>>),
}

impl Turns {
    /// For so many threads.
    pub fn new(threads: usize) -> Turns {
        Turns { threads: (0..threads).map(|_| Turn::default()).collect() }
    }

    /// The turn of a thread.
    #[inline]
    pub fn own(&self, thread: usize) -> Held<'_> {
        Held::Own(self.threads[thread].0.lock())
    }

    /// All turns. Waits until the commands under way that may write have ended.
    #[cold]
    pub fn all(&self) -> Held<'_> {
        Held::All(self.threads.iter().map(|turn| turn.0.lock()).collect())
    }
}
