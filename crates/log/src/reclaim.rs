//! Reuse of segments that hold nothing but garbage, and sealing of full ones.
//!
//! No entry is moved here (the collectors build on this). A segment may be freed when
//!
//! 1. it is full, all its chunks are back, and live bytes are zero (superseded entries were counted by the writers that superseded them);
//! 2. no tombstone in it is needed: the newest one is older than every entry of every other segment in use (decision 7), and no checkpoint
//!    predates it;
//! 3. everything up to a stable version is durable, so that what supersedes its entries cannot be lost, and that version is settled in
//!    the pools (decision 10);
//! 4. every reader that could hold a reference into it has left (an epoch has passed) and no value guard pins it.
//!
//! Only then does its descriptor become free. A crash in between finds it whole, and replay ignores superseded entries anyway.

use crate::error::Result;
use crate::log::{Log, NodePool};
use crate::segment::{Chunk, SegmentState};
use hither_pmem::{Descriptor, SegmentState as OnMedia};
use hither_sync::epoch;
use std::sync::atomic::Ordering;

/// Makes everything up to a version durable; supplied by the layer that knows about group commit.
pub type MakeDurable<'a> = &'a dyn Fn(u64) -> Result<()>;

impl Log {
    /// Whether a segment was opened since this was last asked.
    pub fn take_pressure(&self) -> bool {
        self.pressure.swap(false, Ordering::Relaxed)
    }

    /// Whether some dead segment waits for its readers.
    pub fn has_retiring(&self) -> bool {
        self.pools
            .iter()
            .any(|pool| pool.segments[..pool.pool.segment_count() as usize].iter().any(|segment| segment.state() == SegmentState::Retiring))
    }

    /// Seals full segments and frees dead ones; returns how many became free. Blocks for readers only if `wait`.
    /// Call outside any epoch pin.
    pub fn reclaim(&self, make_durable: MakeDurable<'_>, wait: bool) -> Result<usize> {
        let _one_at_a_time = self.reclaim.lock();
        self.fold_slots(true);
        self.seal_full(make_durable)?;
        self.retire_dead(make_durable)?;
        if wait && !epoch::is_pinned() {
            epoch::synchronize();
        }
        self.free_retired()
    }

    /// Gathers garbage counts from all slots; with `return_chunks`, also takes back chunks of segments that are no longer active.
    pub(crate) fn fold_slots(&self, return_chunks: bool) {
        self.with_slots(|number, slot| {
            for (pool, dead) in self.pools.iter().zip(&mut slot.dead) {
                for (segment, bytes) in dead.iter_mut().enumerate().filter(|(_, bytes)| **bytes != 0) {
                    pool.segments[segment].dead_bytes.fetch_add(u64::from(std::mem::take(bytes)), Ordering::Relaxed);
                }
            }
            // Slots lie node by node; a slot's chunks are of its node's pool.
            let pool = &self.pools[number / self.slots_per_node];
            for chunk in &mut slot.chunks {
                Self::fold_chunk(pool, chunk, return_chunks);
            }
        });
    }

    fn fold_chunk(pool: &NodePool, chunk: &mut Chunk, return_it: bool) {
        if chunk.is_none() {
            return;
        }
        let segment = &pool.segments[chunk.segment as usize];
        if return_it && segment.state() != SegmentState::Open {
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
        make_durable(self.clock.stable())?;
        for (node, index) in full {
            let pool = &self.pools[node];
            let torn = pool.segments[index as usize].torn.load(Ordering::Relaxed);
            let state = if torn { OnMedia::Recovered } else { OnMedia::Sealed };
            pool.pool.commit_descriptor(index, &pool.describe(index, state))?;
            pool.segments[index as usize].set_state(SegmentState::Sealed);
        }
        Ok(())
    }

    fn retire_dead(&self, make_durable: MakeDurable<'_>) -> Result<()> {
        let dead: Vec<_> = self
            .select(|segment| {
                segment.state() == SegmentState::Sealed && segment.run_len.load(Ordering::Relaxed) > 0 && segment.live_bytes() == 0
            })
            .into_iter()
            .filter(|&(node, index)| self.tombstones_unneeded(node, index))
            .collect();
        if dead.is_empty() {
            return Ok(());
        }
        let stable = self.clock.stable();
        make_durable(stable)?;
        for pool in &self.pools {
            pool.pool.set_settled(stable)?;
        }
        for &(node, index) in &dead {
            self.pools[node].segments[index as usize].set_state(SegmentState::Retiring);
        }
        let stamp = epoch::stamp();
        for (node, index) in dead {
            self.pools[node].segments[index as usize].retire_stamp.store(stamp, Ordering::Relaxed);
        }
        Ok(())
    }

    fn free_retired(&self) -> Result<usize> {
        let ready = self.select(|segment| {
            segment.state() == SegmentState::Retiring
                && epoch::has_passed(segment.retire_stamp.load(Ordering::Relaxed))
                && segment.pins.load(Ordering::SeqCst) == 0
        });
        let count = ready.len();
        for (node, index) in ready {
            self.pools[node].free_run(index)?;
        }
        Ok(count)
    }

    /// Whether no entry older than the newest tombstone of this segment exists anywhere else, nor in a checkpoint that predates it.
    fn tombstones_unneeded(&self, node: usize, index: u32) -> bool {
        let this = &self.pools[node].segments[index as usize];
        if this.tombstones.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let newest = this.newest_tombstone.load(Ordering::Relaxed);
        if newest > self.tombstone_floor.load(Ordering::Relaxed) {
            return false;
        }
        self.pools.iter().enumerate().all(|(other_node, pool)| {
            pool.segments[..pool.pool.segment_count() as usize].iter().enumerate().all(|(other, segment)| {
                (other_node, other as u32) == (node, index)
                    || segment.state() == SegmentState::Free
                    || segment.run_len.load(Ordering::Relaxed) == 0
                    // Later entries of an open segment are newer than any tombstone that exists.
                    || segment.oldest_version.load(Ordering::Relaxed) > newest
            })
        })
    }

    pub(crate) fn select(&self, wanted: impl Fn(&crate::segment::Segment) -> bool) -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        for (node, pool) in self.pools.iter().enumerate() {
            for (index, segment) in pool.segments[..pool.pool.segment_count() as usize].iter().enumerate() {
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
        self.fold_slots(true);
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

    fn free_run(&self, index: u32) -> Result<()> {
        let run_len = self.segments[index as usize].run_len.load(Ordering::Relaxed);
        self.pool.commit_descriptor(index, &self.describe(index, OnMedia::Free))?;
        for part in index..index + run_len {
            self.add_free(part);
        }
        Ok(())
    }
}
