//! What a write does that found no space, and how writers pay with pauses for scarce space.
//!
//! Thread safety: any number of writers, called outside writer sections and without latches. Crash: nothing here is on
//! media, except for what collectors do.

use super::Attempt;
use crate::collector::{Search, is_over};
use crate::commit::is_in_callback;
use crate::error::{Error, Result};
use crate::store::Core;
use hither_log::{pace, share_segments};
use hither_sync::epoch;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A batch that waits for room holds it back from others for so long at most.
const MOST_CLAIM_TIME: Duration = Duration::from_secs(1);

impl Core {
    /// Makes `attempt`. If the store is full, frees what can be freed and tries again.
    #[inline(always)]
    pub fn with_room<T>(&self, mut attempt: impl FnMut() -> Attempt<T>) -> Attempt<T> {
        let outcome = match attempt() {
            Err(error) => self.after_vain_attempt(error, attempt),
            outcome => outcome,
        };
        self.pay_if_owed();
        outcome
    }

    /// Called when a write is complete: pauses if this thread took space while it was scarce, and owes enough for a
    /// pause.
    #[inline(always)]
    pub fn pay_if_owed(&self) {
        if pace::is_owed() {
            self.pay_pause();
        }
    }

    /// Sleeps for as long as this thread owes for space that it took while space was scarce. Call outside sections and
    /// without latches. Inside a read or a callback the debt remains: the pin of a read keeps freed segments from being
    /// reused, and a callback may hold up threads that wait for a commit.
    #[cold]
    #[inline(never)]
    fn pay_pause(&self) {
        if epoch::is_pinned() || is_in_callback() {
            return;
        }
        let pause = pace::pay();
        let done = &self.collections;
        done.paced_writes.fetch_add(1, Ordering::Relaxed);
        done.paced_nanos.fetch_add(pause.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Called after a failed attempt. If space was lacking, makes some and tries again. If a sync failed (perhaps of a
    /// descriptor), the store takes no more writes.
    #[cold]
    #[inline(never)]
    pub(super) fn after_vain_attempt<T>(&self, error: Box<Error>, attempt: impl FnMut() -> Attempt<T>) -> Attempt<T> {
        let wanted = WANTED.take();
        let can_help = error.kind().is_lack_of_space();
        let outcome = if can_help { self.make_room(is_bound(&error), wanted, attempt) } else { Err(error) };
        // What the last attempt noted does not concern the next write.
        WANTED.set(0);
        let outcome = self.heeding_failed_syncs(outcome);
        if outcome.is_err() && !epoch::is_pinned() && !crate::sweeps::is_sweeping() && self.committer.nobody_else_calls_back() {
            // Left to here: the thread that found a failed sync may have held locks, as a sweep does, and there may be no
            // background thread. Other callbacks are the business of that thread: the caller may hold locks of its own.
            self.committer.call_back();
        }
        outcome
    }

    /// Tries again, as long as space is being made, after an attempt that met the bound of live bytes or found no
    /// space. Releases everything between attempts, so that readers and collectors can proceed.
    #[cold]
    #[inline(never)]
    fn make_room<T>(&self, mut bound: bool, mut wanted: u64, mut attempt: impl FnMut() -> Attempt<T>) -> Attempt<T> {
        if epoch::is_pinned() {
            // Inside a closure of a read: waiting for readers would be waiting for this thread itself. Measuring waits
            // for writer sections only.
            if bound {
                self.room_to_live()?;
            }
            let node = self.log.local_node();
            let node = if self.spill { self.log.roomiest(node) } else { node };
            return self.log.write_to(node, || share_segments(attempt));
        }
        // Needs a limit, because others can take the space that is made, again and again. Near the limit of the store a
        // collector needs most of what it frees, so many rounds may pass before something is left.
        let end = Instant::now().checked_add(self.space_patience);
        let mut search = Search::new(self.log.local_node(), end);
        loop {
            if bound || wanted == 0 {
                // It waits for something else, or for any segment.
                search.claim = None;
            }
            let made = if bound { self.make_room_to_live(end)? } else { self.make_space_for(wanted, &mut search)? };
            let goes_on = made && !is_over(end);
            if !goes_on && self.spill {
                // The node where the search ended need not be the one that has room.
                search.node = self.log.roomiest(search.node);
            }
            let had = self.log.bytes_for_puts(search.node);
            // The last attempt also uses room in segments that other shards have open.
            let attempt = || if goes_on { attempt() } else { share_segments(&mut attempt) };
            let outcome = self.log.write_to(search.node, attempt);
            match outcome {
                Err(error) if error.kind().is_lack_of_space() && goes_on => {
                    bound = is_bound(&error);
                    wanted = self.wanted_now(WANTED.take(), had, search.node);
                    if let Some(claim) = &search.claim {
                        claim.change_to(&self.log, search.node, wanted);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Bytes of room to wait for before retrying a batch that takes `least` bytes of segments (0: any room suffices) and
    /// did not fit into `had` bytes. More than `had`: otherwise the batch would be tried for as long as its own garbage
    /// makes space. (Writers leave gaps beside others.) But not more than such gaps explain: other writers may have been
    /// faster.
    fn wanted_now(&self, least: u64, had: u64, node: usize) -> u64 {
        if least == 0 {
            return 0;
        }
        let segment = self.log.pool(node).segment_bytes();
        least.max((had + had / 4 + segment).min(least + least / 3 + 2 * segment))
    }

    /// Claims the room that a batch waits for, as soon as no other has a claim there, and gives the claim up in time:
    /// other puts wait because of it, and must not do so for longer than they have patience.
    fn see_to_claim<'a>(&'a self, wanted: u64, search: &mut Search<'a>) {
        let now = Instant::now();
        if search.claim_end.is_some_and(|end| now >= end) {
            search.claim = None;
        } else if wanted > 0 && search.claim.is_none() {
            search.claim = self.log.claim(search.node, wanted);
            if search.claim.is_some() && search.claim_end.is_none() {
                search.claim_end = Some(now + MOST_CLAIM_TIME.min(self.space_patience / 4 * 3));
            }
        }
    }

    fn make_room_to_live(&self, end: Option<Instant>) -> Result<bool> {
        if self.room_to_live().is_err() && !self.sweep_for_space(end) {
            // The sweep may have found nothing because another one has just deleted everything that had expired.
            self.room_to_live()?;
        }
        Ok(true)
    }

    /// Makes `wanted` bytes of segments available, for a whole batch, before it is tried again: what a failed attempt has
    /// appended is garbage. Returns false if there is no such space to be had.
    fn make_space_for<'a>(&'a self, wanted: u64, search: &mut Search<'a>) -> Result<bool> {
        loop {
            self.see_to_claim(wanted, search);
            let made = self.make_space(search);
            if !matches!(made, Ok(true)) {
                // It may wait for long.
                search.claim = None;
                if !self.sweep_for_space(search.end) {
                    return made;
                }
                search.vain = 0;
            }
            if self.log.bytes_for_puts(search.node) >= wanted || is_over(search.end) {
                return Ok(true);
            }
        }
    }
}

/// Notes that a batch that takes `bytes` bytes of segments was given up for lack of space.
#[cold]
pub(crate) fn note_wanted(bytes: u64) {
    WANTED.set(bytes);
}

thread_local! {
    /// Bytes of segments that this thread's last attempt would have taken, if it was a batch that was given up half-way;
    /// otherwise 0.
    static WANTED: Cell<u64> = const { Cell::new(0) };
}

/// Whether a write was refused for the live bytes that it would add, not for lack of space.
#[cold]
fn is_bound(error: &Error) -> bool {
    matches!(error, Error::Utilization { .. })
}

#[cfg(test)]
mod tests {
    use super::WANTED;
    use crate::{Batch, Kind, Options, Store};
    use hither_topology::Topology;
    use std::sync::Arc;
    use std::time::Duration;

    fn open(nodes: usize) -> Store {
        let topology = Arc::new(Topology::emulated(nodes));
        topology.bind_current_thread(0).unwrap();
        let sizes = Options { capacity: 1 << 20, max_capacity: 1 << 20, segment_bytes: 16 << 10, shards: 1, ..Options::default() };
        Store::open(Options { in_memory: true, background: false, topology: Some(topology), space_patience: Duration::ZERO, ..sizes })
            .unwrap()
    }

    /// Regression: what a refused batch had wanted was left to the thread's next write, which then waited for as much
    /// space.
    #[test]
    fn what_a_refused_batch_wanted_is_forgotten() {
        let store = open(1);
        let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
        let full = (0..).find_map(|key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 500])).err()).unwrap();
        assert!(full.kind().is_lack_of_space(), "{full}");
        let mut batch = Batch::default();
        (0..400u64).for_each(|key| batch.put(&keyspace, &(1 << 40 | key).to_be_bytes(), &[2; 500], 0));
        assert!(store.commit_wait(&batch).is_err_and(|error| error.kind().is_lack_of_space()));
        assert_eq!(WANTED.get(), 0);
    }

    /// Regression: with each attempt in which others were faster, a batch wanted more, in the end all there is.
    #[test]
    fn a_batch_wants_no_more_than_gaps_explain() {
        let store = open(1);
        let (segment, least) = (16 << 10, 100_000);
        let mut wanted = 0;
        for _ in 0..50 {
            wanted = store.core.wanted_now(least, wanted, 0);
        }
        assert!(wanted >= least && wanted <= least + least / 3 + 2 * segment, "{wanted}");
        assert_eq!(store.core.wanted_now(0, 1 << 20, 0), 0);
    }

    /// Found by reading: a write inside the closure of a read was refused where its own node was full, though another
    /// one had room.
    #[test]
    fn a_write_inside_a_read_goes_where_there_is_room() {
        let store = open(2);
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        store.write_wait(&keyspace, b"read", Some(b"value")).unwrap();
        // Half as much again as one node holds.
        for key in 0..1_400u64 {
            let put = || store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 468]));
            store.get_with(&keyspace, b"read", |_| put()).unwrap().unwrap().unwrap();
        }
        assert!(store.stats().pools.iter().all(|pool| pool.usage.live_bytes > 200_000), "{:?}", store.stats().pools);
    }

    #[test]
    fn the_last_attempt_goes_where_there_is_room() {
        let store = open(2);
        let log = &store.core.log;
        assert_eq!((log.roomiest(0), log.roomiest(1)), (0, 1), "all have the same");
        let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
        for key in 0..200u64 {
            store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 500])).unwrap();
        }
        assert_eq!((log.roomiest(0), log.roomiest(1)), (1, 1));
    }
}
