//! Claims: room that is held back for one write that takes many segments at once.
//!
//! Smaller writes would take the space that is made for a large batch, segment by segment, as it is made. So a batch
//! that waits for room may *claim* room in one pool. Puts of other threads then leave that many more segments free.
//! They find no space earlier than otherwise and make some, which the batch needs. Deletes and collectors ignore claims,
//! and so does the last attempt of a write that found no space ([`share_segments`](crate::share_segments)): no write is
//! refused because of a claim.
//!
//! There is at most one claim for each pool. How long it lasts is up to the layer above.
//!
//! Thread safety: any thread may claim; a claim belongs to the thread that made it. Nothing of it is on media.

use crate::log::Log;
use crate::node::NodePool;
use crate::opening::Filler;
use crate::streams;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

thread_local! {
    /// This thread has a claim.
    static IS_CLAIMANT: Cell<bool> = const { Cell::new(false) };
}

/// Room that other threads' puts leave to this thread until this is dropped.
pub struct Claim<'a> {
    claimed: &'a AtomicU64,
    /// It is this thread's.
    not_send: PhantomData<*const ()>,
}

impl Claim<'_> {
    /// Claims so many bytes of segments instead.
    pub fn change_to(&self, log: &Log, node: usize, bytes: u64) {
        self.claimed.store(log.pools[node].segments_of(bytes), Relaxed);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        IS_CLAIMANT.set(false);
        self.claimed.store(0, Relaxed);
    }
}

impl NodePool {
    fn segments_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.segment_bytes()).max(1)
    }

    /// Free segments that this thread may not open for entries of this kind now: the reserve, and what others have
    /// claimed.
    pub fn withheld(&self, kind: Filler) -> u64 {
        let yields = kind == Filler::Put && !IS_CLAIMANT.get() && !streams::shares();
        self.reserve_now(kind) + if yields { self.claimed.load(Relaxed) } else { 0 }
    }
}

impl Log {
    /// Claims so many bytes of segments of a node, unless another thread has a claim there or this one has any.
    pub fn claim(&self, node: usize, bytes: u64) -> Option<Claim<'_>> {
        let pool = &self.pools[node];
        let is_free = !IS_CLAIMANT.get() && pool.claimed.compare_exchange(0, pool.segments_of(bytes), Relaxed, Relaxed).is_ok();
        is_free.then(|| {
            IS_CLAIMANT.set(true);
            Claim { claimed: &pool.claimed, not_send: PhantomData }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opening::Purpose;
    use crate::share_segments;
    use hither_pmem::CreateOptions;

    const SEGMENT: u64 = 64 << 10;

    /// Opens a segment for this; whether there was one.
    fn open(log: &Log, kind: Filler) -> bool {
        log.pools[0].open_segments(log, 1, Purpose { keyspace: 1, shard: 0, kind, version: 1 }).is_ok()
    }

    fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(f).join().unwrap())
    }

    #[test]
    fn what_is_claimed_is_left_to_the_claimant() {
        let log = Log::for_tests(&CreateOptions { segment_bytes: SEGMENT, ..CreateOptions::new(8 << 20) });
        let room = log.bytes_for_puts(0);
        let claim = log.claim(0, room - 2 * SEGMENT).unwrap();
        let reserve = log.room(0).reserve;
        assert_eq!((log.bytes_for_puts(0), elsewhere(|| log.bytes_for_puts(0))), (room, 2 * SEGMENT));
        assert!(log.claim(0, 1).is_none() && elsewhere(|| log.claim(0, 1).is_none()), "one at a time");
        elsewhere(|| {
            assert!(open(&log, Filler::Put) && open(&log, Filler::Put) && !open(&log, Filler::Put));
            assert!(open(&log, Filler::Delete) && open(&log, Filler::Move), "only puts yield");
            assert!(share_segments(|| open(&log, Filler::Put)), "and not with their last attempt");
        });
        assert!(open(&log, Filler::Put));
        claim.change_to(&log, 0, SEGMENT);
        assert!(elsewhere(|| open(&log, Filler::Put)));
        drop(claim);
        assert_eq!(log.bytes_for_puts(0), elsewhere(|| log.bytes_for_puts(0)));
        assert_eq!(reserve - log.room(0).reserve, room / SEGMENT - 2);
        assert!(elsewhere(|| log.claim(0, 1).is_some()));
    }
}
