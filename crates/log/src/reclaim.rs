//! Sealing of full segments, and reuse of freed ones.
//!
//! A full segment whose chunks are all back is sealed: its descriptor says how many entries and bytes it holds. A collector then empties it
//! (the `pass` module) and frees its descriptor. It may be opened again when every reader that could hold a reference into it has left (an epoch has
//! passed) and no value guard pins it; it is zeroed here, ahead of that, so that no writer waits for it.

use crate::error::Result;
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::{Chunk, Segment, SegmentState};
use hither_pmem::{Descriptor, SegmentState as OnMedia};
use hither_sync::epoch;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Which chunks of segments that are no longer filled are taken back from the writers' slots. A chunk's rest is lost then: a gap, until the segment is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeBack {
    /// None.
    None,
    /// Those into which nothing was written since they were looked at last: a busy writer fills its chunk soon.
    Idle,
    /// All.
    All,
}

/// Whether readers are waited for that may be looking at what was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No.
    No,
    /// However long that takes: as long as the closures of reads run.
    Yes,
    /// Until then.
    Until(Instant),
}

impl Wait {
    /// Until `end`, if there is one.
    pub fn up_to(end: Option<Instant>) -> Wait {
        end.map_or(Wait::Yes, Wait::Until)
    }
}

/// In place of the stamp of a freed segment that has none yet.
pub(crate) const NO_STAMP: u64 = u64::MAX;

/// Makes everything up to a version durable; supplied by the layer that knows about group commit.
pub type MakeDurable<'a> = &'a dyn Fn(u64) -> Result<()>;

impl Log {
    /// Whether a segment was opened since this was last asked.
    pub fn take_pressure(&self) -> bool {
        self.pressure.swap(false, Ordering::Relaxed)
    }

    /// Whether some freed segment waits for its readers.
    pub fn has_retiring(&self) -> bool {
        self.pools.iter().any(|pool| pool.retiring.load(Ordering::Relaxed) > 0)
    }

    /// Whether some freed segment waits for its readers, and not only for guards of values, as far as is known.
    pub fn awaits_readers(&self) -> bool {
        self.pools.iter().any(|pool| pool.awaiting_readers() > 0)
    }

    /// Seals full segments, as far as no writer holds a chunk of them that is not taken back.
    pub fn seal(&self, make_durable: MakeDurable<'_>, chunks: TakeBack) -> Result<()> {
        let _one_at_a_time = self.reclaim.lock();
        if chunks == TakeBack::All {
            // Nothing else is left: full ones count too that nobody asked for more.
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

    /// Gives freed segments whose readers have left to the writers; returns how many. Blocks for readers as `wait` says, and not inside an epoch pin.
    pub fn reuse_freed(&self, wait: Wait) -> Result<usize> {
        if !self.has_retiring() {
            return Ok(0);
        }
        let reused = {
            // Whoever is at it may zero segment after segment: that is left to them.
            let Some(_one_at_a_time) = self.lock_reuse(wait) else { return Ok(0) };
            self.stamp_retired();
            self.free_ready(wait)?
        };
        if reused > 0 || wait == Wait::No || epoch::is_pinned() {
            return Ok(reused);
        }
        match wait {
            Wait::Until(end) => _ = epoch::synchronize_until(end),
            _ => epoch::synchronize(),
        }
        let Some(_one_at_a_time) = self.lock_reuse(wait) else { return Ok(0) };
        self.free_ready(wait)
    }

    fn lock_reuse(&self, wait: Wait) -> Option<MutexGuard<'_, ()>> {
        match wait {
            Wait::No => self.reuse.try_lock(),
            Wait::Yes => Some(self.reuse.lock()),
            Wait::Until(end) => self.reuse.try_lock_until(end),
        }
    }

    /// Waits until all writer sections under way have ended, and makes what they wrote durable; returns the version up to which that is so.
    pub(crate) fn make_stable(&self, make_durable: MakeDurable<'_>) -> Result<u64> {
        let stable = self.clock.stable();
        // Where nothing lags a section ends with what it wrote durable.
        if self.may_lag() {
            make_durable(stable)?;
        }
        Ok(stable)
    }

    /// Gathers from all slots what was written into chunks, and what is garbage; also takes back chunks. Waits for writer sections under way.
    pub(crate) fn fold_slots(&self, chunks: TakeBack) {
        self.with_slots(|number, slot| {
            // Slots lie node by node; a slot's chunks are of its node's pool.
            let pool = &self.pools[number / self.slots_per_node];
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

    /// Closed segments whose chunks are back get a descriptor that says how many entries and bytes they hold.
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

    /// Notes for freed segments that nobody can come upon them from now on. One stamp for all, since it is a barrier on every processor.
    fn stamp_retired(&self) {
        let is_new =
            |segment: &Segment| segment.state() == SegmentState::Retiring && segment.retire_stamp.load(Ordering::Relaxed) == NO_STAMP;
        let new = self.select(is_new);
        // Drawn after they were retired.
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
            // Whoever superseded an entry there has left, but what it counted may not be folded yet (C2).
            self.fold_dead();
        }
        self.free_each(&ready, wait)
    }

    /// Zeroes segments and hands them on; how many: one at least, for who waits until a certain time. What cannot be zeroed stays as it is and holds up no other: the next call meets it again. Its error is returned if nothing else was to be had, or if
    /// it is the end of all writing.
    fn free_each(&self, ready: &[(usize, u32)], wait: Wait) -> Result<usize> {
        let (mut count, mut failed) = (0, None);
        for &(node, index) in ready {
            if count > 0 && matches!(wait, Wait::Until(end) if end <= Instant::now()) {
                break;
            }
            let pool = &self.pools[node];
            // It may be freed unread: nothing in it is needed.
            self.forget_unverified(&pool.segments[index as usize]);
            match pool.free_run(index) {
                Ok(()) => {
                    pool.retiring.fetch_sub(1, Ordering::Relaxed);
                    pool.note_freed();
                    count += 1;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if count == 0 || self.pools.iter().any(|pool| pool.pool.is_poisoned()) => Err(error),
            _ => Ok(count),
        }
    }

    /// Whether every reader has left that could have seen a segment with this stamp.
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
    /// At a clean close: writes into the descriptors of half-filled segments how much they hold, so that the next open notices a loss. Call
    /// when everything is durable and no writer is active.
    pub fn record_totals(&self) -> Result<()> {
        let _one_at_a_time = self.reclaim.lock();
        self.fold_slots(TakeBack::All);
        // Also full ones that nobody sealed yet: their descriptors may hold the totals of an earlier close.
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

    /// Freed segments that wait for their readers: free soon, unlike those that guards of values pin.
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

    /// Regression: a write without space waited for another thread to zero all that it handed on, however little patience it had.
    #[test]
    fn who_has_no_time_leaves_the_handing_on_to_whoever_is_at_it() {
        let log = Log::for_tests(&CreateOptions::new(1 << 20));
        log.pools[0].retiring.fetch_add(1, Ordering::Relaxed);
        let other = log.reuse.lock();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| log.reuse_freed(Wait::Until(Instant::now())));
            // A minute is for ever.
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
