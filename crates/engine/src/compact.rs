//! Compaction by hand: gives back all garbage now, instead of when space is short.
//!
//! Thread safety: beside readers, writers and the collectors in the background; one compaction at a time. Each segment
//! that is in use at the beginning is emptied at most once, so a compaction ends although writers go on making garbage.
//!
//! Crash: a compaction consists of passes like any other (`collector`); at any step the store is what it was.

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Core, Store};
use hither_log::{Candidate, TakeBack, Wait};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// Space at one moment, all nodes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SpaceUse {
    /// Bytes of segments in use.
    pub used_bytes: u64,
    /// Bytes of entries that count.
    pub live_bytes: u64,
    /// Bytes of superseded entries.
    pub dead_bytes: u64,
    /// Bytes of tombstones.
    pub tombstone_bytes: u64,
}

/// Progress of a compaction.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CompactProgress {
    /// Segments emptied so far.
    pub done: u64,
    /// Segments that were worth it at the beginning. Writers may raise the number, tombstones that stay may lower it.
    pub expected: u64,
}

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CompactReport {
    /// Space before the compaction.
    pub before: SpaceUse,
    /// Space after it.
    pub after: SpaceUse,
    /// Segments emptied and freed, by any thread.
    pub segments: u64,
    /// Bytes of entries that were moved.
    pub moved_bytes: u64,
    /// False if `on_progress` ended it.
    pub complete: bool,
    /// Time taken, in milliseconds.
    pub elapsed_ms: u64,
}

impl Store {
    /// Empties every segment of which at least `garbage` (0 to 1) is not live, until none is left or nothing more can
    /// be gained. Calls `on_progress` after every few segments, which may end the compaction. Blocks no writer for
    /// longer than collection in the background does. O(store).
    ///
    /// What a snapshot shows stays, and so do tombstones that a checkpoint under way needs. So does what is written
    /// meanwhile, up to a segment for each shard.
    ///
    /// # Errors
    /// [`crate::Error::InsideCallback`] if called by `on_progress`; [`crate::Error::SyncFailed`] after a failed sync;
    /// errors of the medium; [`crate::Error::DiskFull`] if there is no room for a checkpoint, when all but deletes was
    /// compacted; [`crate::Error::Damaged`] if damage was found, when all segments without any were compacted. The
    /// store is sound, and as compact as it became.
    pub fn compact(&self, garbage: f64, mut on_progress: impl FnMut(CompactProgress) -> ControlFlow<()>) -> Result<CompactReport> {
        crate::store::ensure_may_wait("compact")?;
        if garbage.is_nan() {
            return Err(Error::Config("the share of garbage is not a number; give one between 0 and 1".into()));
        }
        let core = &self.core;
        if core.compacting.is_owned_by_current_thread() {
            // Called by the progress report of another compaction, for which this one would wait.
            return Err(Error::InsideCallback("compact"));
        }
        let _alone = core.compacting.lock();
        let started = Instant::now();
        core.committer.ensure_writable()?;
        let (before, done_before) = (core.space_use(), core.collections.stats());
        let complete = core.compact(garbage.clamp(0.001, 1.0), &mut on_progress)?;
        let done = core.collections.stats();
        Ok(CompactReport {
            before,
            after: core.space_use(),
            segments: done.segments - done_before.segments,
            moved_bytes: done.moved_bytes - done_before.moved_bytes,
            complete,
            elapsed_ms: started.elapsed().as_millis() as u64,
        })
    }
}

impl Core {
    fn space_use(&self) -> SpaceUse {
        let mut sum = SpaceUse::default();
        for (node, usage) in self.log.usage().iter().enumerate() {
            sum.used_bytes += (usage.segments - usage.free) * self.log.pool(node).segment_bytes();
            sum.live_bytes += usage.live_bytes;
            sum.dead_bytes += usage.dead_bytes;
            sum.tombstone_bytes += usage.tombstone_bytes;
        }
        sum
    }

    /// Returns true unless `on_progress` ended it.
    fn compact(&self, garbage: f64, on_progress: &mut dyn FnMut(CompactProgress) -> ControlFlow<()>) -> Result<bool> {
        let worth = |found: &Candidate| found.gain > 0 && found.garbage() >= garbage;
        // Segments that are being filled can be emptied, too.
        self.log.close_open(self.collector.tombstones(), worth);
        self.seal(TakeBack::All)?;
        self.reuse_what_can_be(Wait::No)?;
        self.sweep_all()?;
        // Tombstones wait for a checkpoint that is newer than they are. Without one they stay, and the rest can be
        // emptied.
        let taken = if self.log.keeps_tombstones() { self.checkpoints.take(self, false, &mut || true).map(drop) } else { Ok(()) };
        let in_use = self.log.usage().iter().map(|usage| usage.segments - usage.free).sum::<u64>();
        let expected = self.log.candidates(self.collector.tombstones(), worth).len();
        let (mut done, mut damage) = (0, None);
        while done < in_use {
            let before = self.collections.stats().segments;
            // A damaged segment stays. It is no victim any more, and no reason to leave out the others.
            let freed = match self.collect_worth(garbage) {
                Err(found) if found.kind() == ErrorKind::Damaged => {
                    damage = damage.or(Some(found));
                    1 + self.collections.stats().segments - before
                }
                freed => freed? as u64,
            };
            self.reuse_what_can_be(Wait::Yes)?;
            done += freed;
            if on_progress(CompactProgress { done, expected: (expected as u64).max(done) }).is_break() {
                return damage.map_or(Ok(false), Err);
            }
            if freed == 0 {
                break;
            }
        }
        let unusable = self.reuse_what_can_be(Wait::Yes)?;
        match taken {
            Err(Error::DiskFull(what)) => Err(Error::DiskFull(format!("the store was compacted but for deletes, which stay: {what}"))),
            taken => taken.and(damage.or(unusable).map_or(Ok(true), Err)),
        }
    }
}
