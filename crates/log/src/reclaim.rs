//! Seals full segments and reuses freed ones.
//!
//! A full segment whose chunks are all back is sealed: its descriptor records how many entries and bytes it holds. A
//! collector then empties it (the `pass` module) and frees its descriptor. It may be opened again when every reader
//! that could hold a reference into it has left (an epoch has passed) and no value guard pins it. It is zeroed here,
//! ahead of that, so that no writer waits for it.

use crate::error::Result;
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::{Chunk, Segment, SegmentState};
use hither_pmem::{Descriptor, SegmentState as OnMedia};
use hither_sync::epoch;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Which chunks of segments that are no longer filled are taken back from the writers' slots. The rest of such a chunk
/// becomes a gap until the segment is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeBack {
    /// None.
    None,
    /// Chunks to which nothing was written since the last look: a busy writer fills its chunk soon.
    Idle,
    /// All.
    All,
}

/// Whether to wait for readers that may still read freed segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No.
    No,
    /// However long it takes, which is as long as the closures of reads run.
    Yes,
    /// Until this instant.
    Until(Instant),
}

impl Wait {
    /// Waits until `end`, if there is one, otherwise without limit.
    pub fn up_to(end: Option<Instant>) -> Wait {
        end.map_or(Wait::Yes, Wait::Until)
    }
}

/// Placeholder for the stamp of a freed segment that has none yet.
pub(crate) const NO_STAMP: u64 = u64::MAX;

/// Makes everything up to a version durable; supplied by the layer that implements group commit.
pub type MakeDurable<'a> = &'a dyn Fn(u64) -> Result<()>;

impl Log {
    /// Whether a segment was opened since the last call.
    pub fn take_pressure(&self) -> bool {
        self.pressure.swap(false, Ordering::Relaxed)
    }

    /// The pool of `node`, or all of them.
    pub(crate) fn pools_of(&self, node: Option<usize>) -> &[NodePool] {
        node.map_or(&self.pools, |node| std::slice::from_ref(&self.pools[node]))
    }

    /// Whether some freed segment of `node`, or of any node, waits for its readers.
    pub fn has_retiring(&self, node: Option<usize>) -> bool {
        self.pools_of(node).iter().any(|pool| pool.retiring.load(Ordering::Relaxed) > 0)
    }

    /// Whether some freed segment of `node`, or of any node, waits for readers, and not only for value guards or because
    /// it cannot be zeroed, as far as is known.
    pub fn awaits_readers(&self, node: Option<usize>) -> bool {
        self.pools_of(node).iter().any(|pool| pool.awaiting_readers() > 0)
    }

    /// Number of freed segments of `node`, or of all nodes, that were handed on to writers since the store was opened. A
    /// run counts once.
    pub fn handed_on(&self, node: Option<usize>) -> u64 {
        self.pools_of(node).iter().map(|pool| pool.handed_on.load(Ordering::Acquire)).sum()
    }

    /// Seals full segments, except those of which a writer holds a chunk that is not taken back.
    pub fn seal(&self, make_durable: MakeDurable<'_>, chunks: TakeBack) -> Result<()> {
        let _one_at_a_time = self.reclaim.lock();
        if chunks == TakeBack::All {
            // The caller has no other source of space: segments without room are sealed too, even if no entry has
            // failed to fit there.
            for pool in &self.pools {
                pool.close_full();
                pool.give_back_closed_rests();
            }
        }
        let is_held = |segment: &Segment| segment.state() == SegmentState::Closed && segment.open_chunks.load(Ordering::Acquire) > 0;
        if chunks != TakeBack::None && !self.select(is_held).is_empty() {
            self.fold_slots(chunks);
        }
        self.seal_full(make_durable)
    }

    /// Hands freed segments whose readers have left on to the writers. Returns how many. Waits for readers as `wait`
    /// says, but never inside an epoch pin. An error of a segment that cannot be zeroed is returned only if no other one
    /// is to be had, or if it ends all writing.
    pub fn reuse_freed(&self, wait: Wait) -> Result<usize> {
        if !self.has_retiring(None) {
            return Ok(0);
        }
        let first = {
            // The thread that holds the lock may zero segment after segment: the rest is left to it.
            let Some(_one_at_a_time) = self.lock_reuse(wait) else { return Ok(0) };
            self.stamp_retired();
            self.free_ready(wait)
        };
        // Where one cannot be zeroed, others may be had that were being read at that look.
        let is_over = match &first {
            Ok(count) => *count > 0,
            Err(_) => !self.awaits_readers(None) || self.pools.iter().any(|pool| pool.pool.is_poisoned()),
        };
        if is_over || wait == Wait::No || epoch::is_pinned() {
            return first;
        }
        match wait {
            Wait::Until(end) => _ = epoch::synchronize_until(end),
            _ => epoch::synchronize(),
        }
        let Some(_one_at_a_time) = self.lock_reuse(wait) else { return first };
        match self.free_ready(wait) {
            Ok(0) => first,
            second => second,
        }
    }

    fn lock_reuse(&self, wait: Wait) -> Option<MutexGuard<'_, ()>> {
        match wait {
            Wait::No => self.reuse.try_lock(),
            Wait::Yes => Some(self.reuse.lock()),
            Wait::Until(end) => self.reuse.try_lock_until(end),
        }
    }

    /// Waits until all writer sections under way have ended and makes their writes durable. Returns the version up to
    /// which everything is durable.
    pub(crate) fn make_stable(&self, make_durable: MakeDurable<'_>) -> Result<u64> {
        let stable = self.clock.stable();
        // If nothing lags, the writes of a section are durable when it ends.
        if self.may_lag() {
            make_durable(stable)?;
        }
        Ok(stable)
    }

    /// Gathers from all slots the tallies of chunks and the counts of garbage; also takes back chunks. Waits for writer
    /// sections under way.
    pub(crate) fn fold_slots(&self, chunks: TakeBack) {
        self.with_slots(|node, slot| {
            // A slot's chunks are of its node's pool.
            let pool = &self.pools[node];
            for chunk in &mut slot.chunks {
                Self::fold_chunk(pool, chunk, chunks);
            }
        });
        self.fold_dead();
    }

    fn fold_chunk(pool: &NodePool, chunk: &mut Chunk, chunks: TakeBack) {
        if chunk.is_none() {
            return;
        }
        let segment = &pool.segments[chunk.segment as usize];
        let is_wanted = segment.state() != SegmentState::Open
            && match chunks {
                TakeBack::None => false,
                TakeBack::Idle => chunk.is_idle(),
                TakeBack::All => true,
            };
        if is_wanted {
            pool.give_back(chunk);
            *chunk = Chunk::NONE;
        } else {
            segment.absorb(&chunk.tally);
            chunk.tally = crate::segment::Tally::EMPTY;
        }
    }

    /// Writes the descriptors of closed segments whose chunks are back: they record how many entries and bytes the
    /// segments hold.
    pub(crate) fn seal_full(&self, make_durable: MakeDurable<'_>) -> Result<()> {
        let full = self.select(|segment| segment.state() == SegmentState::Closed && segment.open_chunks.load(Ordering::Acquire) == 0);
        if full.is_empty() {
            return Ok(());
        }
        self.make_stable(make_durable)?;
        for (node, index) in full {
            let pool = &self.pools[node];
            let torn = pool.segments[index as usize].torn.load(Ordering::Relaxed);
            let state = if torn { OnMedia::Recovered } else { OnMedia::Sealed };
            pool.pool.commit_descriptor(index, &pool.describe(index, state))?;
            pool.segments[index as usize].sealed_after.store(self.settles_begun.load(Ordering::SeqCst), Ordering::SeqCst);
            pool.segments[index as usize].set_state(SegmentState::Sealed);
        }
        Ok(())
    }

    /// Stamps freed segments to which no reference can be obtained from now on. One stamp for all, because a stamp is a
    /// barrier on every processor.
    fn stamp_retired(&self) {
        let is_new =
            |segment: &Segment| segment.state() == SegmentState::Retiring && segment.retire_stamp.load(Ordering::Relaxed) == NO_STAMP;
        let new = self.select(is_new);
        // Drawn after the segments were retired.
        let stamp = if new.is_empty() { return } else { epoch::stamp() };
        for (node, index) in new {
            self.pools[node].segments[index as usize].retire_stamp.store(stamp, Ordering::Relaxed);
        }
    }

    fn free_ready(&self, wait: Wait) -> Result<usize> {
        let mut ready = self
            .select(|segment| segment.state() == SegmentState::Retiring && Self::has_left(segment.retire_stamp.load(Ordering::Relaxed)));
        let mut pinned = vec![0; self.pools.len()];
        ready.retain(|(node, index)| {
            let is_pinned = self.pools[*node].segments[*index as usize].pins.load(Ordering::SeqCst) > 0;
            pinned[*node] += u64::from(is_pinned);
            !is_pinned
        });
        self.pools.iter().zip(pinned).for_each(|(pool, pinned)| pool.pinned.store(pinned, Ordering::Relaxed));
        if !ready.is_empty() {
            // Every thread that superseded an entry there has left, but its counts may not be folded yet (C2).
            self.fold_dead();
        }
        self.free_each(&ready, wait)
    }

    /// Zeros segments and hands them on. Returns how many: at least one, also if `wait` ends before. A segment that
    /// cannot be zeroed stays as it is and holds up no other; the next call meets it again. Its error is returned if no
    /// other segment was handed on, or if it ends all writing.
    fn free_each(&self, ready: &[(usize, u32)], wait: Wait) -> Result<usize> {
        let (mut count, mut failed) = (0, None);
        for &(node, index) in ready {
            if count > 0 && matches!(wait, Wait::Until(end) if end <= Instant::now()) {
                break;
            }
            let pool = &self.pools[node];
            // The segment may be freed without having been verified: nothing in it is needed.
            self.forget_unverified(&pool.segments[index as usize]);
            match pool.free_run(index) {
                Ok(()) => {
                    pool.retiring.fetch_sub(1, Ordering::Relaxed);
                    pool.note_freed();
                    pool.handed_on.fetch_add(1, Ordering::Release);
                    count += 1;
                }
                Err(error) => {
                    // It is no more to be had soon than one that a guard of a value pins.
                    pool.pinned.fetch_add(1, Ordering::Relaxed);
                    failed = failed.or(Some(error));
                }
            }
        }
        match failed {
            Some(error) if count == 0 || self.pools.iter().any(|pool| pool.pool.is_poisoned()) => Err(error),
            _ => Ok(count),
        }
    }

    /// Whether every reader that could have seen a segment with this stamp has left.
    fn has_left(stamp: u64) -> bool {
        stamp != NO_STAMP && epoch::has_passed(stamp)
    }

    pub(crate) fn select(&self, wanted: impl Fn(&crate::segment::Segment) -> bool) -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        for (node, pool) in self.pools.iter().enumerate() {
            for (index, segment) in pool.existing().iter().enumerate() {
                if wanted(segment) {
                    found.push((node, index as u32));
                }
            }
        }
        found
    }
}

impl Log {
    /// Writes into the descriptors of half-filled segments how much they hold, at a clean close, so that the next open
    /// notices a loss. Call when everything is durable and no writer is active.
    pub fn record_totals(&self) -> Result<()> {
        let _one_at_a_time = self.reclaim.lock();
        self.fold_slots(TakeBack::All);
        // Also full segments that are not sealed yet: their descriptors may hold the totals of an earlier close.
        for (node, index) in self.select(|segment| matches!(segment.state(), SegmentState::Open | SegmentState::Closed)) {
            let pool = &self.pools[node];
            let torn = pool.segments[index as usize].torn.load(Ordering::Relaxed);
            let flags = if torn { 0 } else { crate::replay::TOTALS_RECORDED };
            pool.pool.commit_descriptor(index, &Descriptor { flags, ..pool.describe(index, OnMedia::Active) })?;
        }
        Ok(())
    }
}

impl NodePool {
    pub(crate) fn describe(&self, index: u32, state: OnMedia) -> Descriptor {
        let segment = &self.segments[index as usize];
        Descriptor {
            generation: segment.generation.load(Ordering::Relaxed),
            base_version: segment.base_version.load(Ordering::Relaxed),
            owner_epoch: 0,
            sealed_bytes: segment.written_bytes.load(Ordering::Relaxed),
            keyspace: segment.keyspace.load(Ordering::Relaxed),
            run_len: segment.run_len.load(Ordering::Relaxed),
            entries: segment.entries.load(Ordering::Relaxed),
            shard: segment.shard.load(Ordering::Relaxed) as u16,
            state,
            ..Descriptor::default()
        }
    }

    /// Freed segments that wait for their readers. They will be free soon, unlike those that value guards pin or that
    /// cannot be zeroed.
    pub(crate) fn awaiting_readers(&self) -> u64 {
        self.retiring.load(Ordering::Relaxed).saturating_sub(self.pinned.load(Ordering::Relaxed))
    }

    fn free_run(&self, index: u32) -> Result<()> {
        let run_len = self.segments[index as usize].run_len.load(Ordering::Relaxed);
        self.pool.zero_segment(index, run_len)?;
        self.freed.remember(&self.segments[index as usize]);
        for part in index..index + run_len {
            self.segments[part as usize].zeroed.store(true, Ordering::Relaxed);
            self.add_free(part);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_pmem::CreateOptions;
    use std::time::Duration;

    /// Regression: a write without space waited until another thread had zeroed everything that it handed on, however
    /// short the write's time limit was.
    #[test]
    fn who_has_no_time_leaves_the_handing_on_to_whoever_is_at_it() {
        let log = Log::for_tests(&CreateOptions::new(1 << 20));
        log.pools[0].retiring.fetch_add(1, Ordering::Relaxed);
        let other = log.reuse.lock();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| log.reuse_freed(Wait::Until(Instant::now())));
            // A minute counts as for ever.
            let is_over = (0..6000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                asks.is_finished()
            });
            drop(other);
            assert!(is_over, "it has waited for the other");
            assert_eq!(asks.join().unwrap().unwrap(), 0);
        });
        log.pools[0].retiring.fetch_sub(1, Ordering::Relaxed);
    }
}
