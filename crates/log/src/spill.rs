//! The pool to which threads append: their own node's, unless that is full.
//!
//! A pool counts as *full* when puts can neither get nor add a segment in it. Its threads then append to the next pool
//! that is not full, until segments of this one are free again or its disk has room again. A single write for which its
//! pool has no place, such as a large value that finds no run, goes elsewhere alone ([`Log::write_to`]): the pool has
//! room for others.
//!
//! Thread safety: any number of threads. That a pool is full is a hint, which is rechecked from time to time: a thread
//! that is sent elsewhere also writes to a good place.

use crate::log::Log;
use crate::node::NodePool;
use crate::opening::Filler;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A thread whose pool counts as full rechecks that at one write in so many.
const LOOK_EVERY: u32 = 64;

thread_local! {
    /// The node to which this thread's attempt goes.
    static SENT_TO: Cell<Option<usize>> = const { Cell::new(None) };
    /// Number of writes of this thread that found their pool full.
    static AWAY: Cell<u32> = const { Cell::new(0) };
}

/// Why a pool's own threads may append elsewhere. One word, so that a write tests once.
#[derive(Default)]
pub(crate) struct Away(AtomicU32);

/// The pool is full.
const FULL: u32 = 1;
/// The unit in which attempts that were sent elsewhere are counted.
const ATTEMPT: u32 = 2;

impl Away {
    #[inline(always)]
    fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    pub fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) & FULL != 0
    }

    /// Sets the flag. Returns whether it was not set before.
    fn set_full(&self) -> bool {
        self.0.fetch_or(FULL, Ordering::Relaxed) & FULL == 0
    }

    fn set_not_full(&self) {
        self.0.fetch_and(!FULL, Ordering::Relaxed);
    }
}

impl NodePool {
    /// Whether a put may get or add a segment, as far as is known.
    pub fn has_room(&self) -> bool {
        self.within_reach() > self.reserve_now(Filler::Put)
    }

    /// Rechecks whether the pool is full, if it counts as full. Returns whether it is.
    pub fn is_full_still(&self) -> bool {
        if !self.away.is_full() {
            return false;
        }
        let has_room = self.has_room();
        if has_room {
            self.away.set_not_full();
        }
        !has_room
    }

    /// Notes that segments were freed.
    pub fn note_freed(&self) {
        if self.free_segments() > self.reserve_now(Filler::Put) {
            self.away.set_not_full();
        }
    }
}

impl Log {
    /// The node to whose pool the calling thread appends: its own, unless that is full and writes spill
    /// ([`Log::spill_from`]).
    #[inline(always)]
    pub fn local_node(&self) -> usize {
        if self.pools.len() == 1 {
            return 0;
        }
        let node = self.home();
        if self.pools[node].away.is_any() { self.node_instead(node) } else { node }
    }

    /// The pool of [`Log::local_node`].
    #[inline(always)]
    pub(crate) fn local_pool(&self) -> &NodePool {
        // Without a multiplication where there is only one pool.
        match &*self.pools {
            [only] => only,
            pools => &pools[self.local_node()],
        }
    }

    /// The calling thread's own node.
    #[inline(always)]
    fn home(&self) -> usize {
        self.topology().current_node() as usize % self.pools.len()
    }

    #[cold]
    fn node_instead(&self, node: usize) -> usize {
        // A closure of this attempt may write to another store, which may have fewer nodes.
        if let Some(sent_to) = SENT_TO.get().filter(|sent_to| *sent_to < self.pools.len()) {
            return sent_to;
        }
        let pool = &self.pools[node];
        let away = AWAY.get().wrapping_add(1);
        AWAY.set(away);
        let looks = away.is_multiple_of(LOOK_EVERY);
        let is_full = if looks { pool.is_full_still() } else { pool.away.is_full() };
        if is_full { self.spill_target(node, looks).unwrap_or(node) } else { node }
    }

    /// The next node that is not full.
    fn spill_target(&self, node: usize, looks: bool) -> Option<usize> {
        let is_full = |other: &usize| {
            let pool = &self.pools[*other];
            if looks { pool.is_full_still() } else { pool.away.is_full() }
        };
        (1..self.pools.len()).map(|step| (node + step) % self.pools.len()).find(|other| !is_full(other))
    }

    /// Declares a node full, if it is and another one is not: its threads append to the next one that is not, until
    /// this one has room again.
    pub fn spill_from(&self, node: usize) {
        let pool = &self.pools[node];
        if !pool.has_room() && self.spill_target(node, true).is_some() && pool.away.set_full() {
            pool.spills.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The node on which puts may get most; `node` if no other has more.
    pub fn roomiest(&self, node: usize) -> usize {
        (0..self.pools.len()).max_by_key(|&other| (self.bytes_for_puts(other), other == node)).unwrap_or(node)
    }

    /// Makes one attempt at a write, which goes to the pool of `node`.
    pub fn write_to<T>(&self, node: usize, attempt: impl FnOnce() -> T) -> T {
        struct Sent<'a>(&'a Away);
        impl Drop for Sent<'_> {
            fn drop(&mut self) {
                self.0.0.fetch_sub(ATTEMPT, Ordering::Relaxed);
            }
        }
        if self.pools.len() == 1 {
            return attempt();
        }
        // A thread that moves to another node meanwhile writes there: that is an attempt, too.
        let away = &self.pools[self.home()].away;
        away.0.fetch_add(ATTEMPT, Ordering::Relaxed);
        let _sent = Sent(away);
        hither_sync::with_value(&SENT_TO, Some(node), attempt)
    }
}
