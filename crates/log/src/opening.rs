//! Opening of segments: which free ones are taken, for what, and how a pool grows.
//!
//! Thread safety: the list of free segments has a lock of its own, which is held while a pool grows.

use crate::entry::Parts;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::SegmentState;
use hither_pmem::{Descriptor, SegmentState as OnMedia};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The shard number of segments for moved entries ("cold"), in descriptors too: no shard has it, however many there are.
pub const COLD_SHARD: u16 = u16::MAX;

/// What a segment is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    pub keyspace: u32,
    pub shard: u32,
    pub kind: Filler,
}

/// Who is going to fill it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filler {
    /// Puts.
    Put,
    /// A delete: may use most of the reserve, so that a full store can be emptied.
    Delete,
    /// A collector: may use all of it, so that there is always room to move what is live.
    Move,
}

impl Purpose {
    pub fn of(parts: &Parts<'_>, shard: usize) -> Purpose {
        let kind = if parts.op == crate::Op::Delete { Filler::Delete } else { Filler::Put };
        Purpose { keyspace: parts.keyspace, shard: shard as u32, kind }
    }
}

/// Free segments of one pool, ascending.
pub(crate) struct Allocator {
    pub free: std::collections::BTreeSet<u32>,
    /// Segments below this were handed out or freed at least once.
    pub count: u32,
}

impl NodePool {
    /// Takes `run_len` adjacent free segments, zeroes what was used before (L1) and makes the descriptor active.
    pub fn open_segments(&self, log: &Log, run_len: u32, purpose: Purpose) -> Result<u32> {
        let index = self.allocate(log, run_len, purpose.kind)?;
        match self.activate(log, index, run_len, purpose) {
            Ok(()) => Ok(index),
            Err(error) => {
                let mut alloc = self.alloc.lock();
                alloc.free.extend(index..index + run_len);
                Err(error)
            }
        }
    }

    fn activate(&self, log: &Log, index: u32, run_len: u32, purpose: Purpose) -> Result<()> {
        let Purpose { keyspace, shard, kind } = purpose;
        for part in index..index + run_len {
            let segment = &self.segments[part as usize];
            let used = segment.generation.load(Ordering::Relaxed) != 0;
            let zeroed = segment.zeroed.load(Ordering::Relaxed);
            // On files fresh ones too: the first write into an extent that was only reserved costs a commit of the file system's journal
            // with every sync (decision 20).
            if !zeroed && (used || (log.zero_ahead && self.pool.needs_sync())) {
                self.pool.zero_segment(part, 1)?;
            }
            self.segments_reused.fetch_add(u64::from(used), Ordering::Relaxed);
        }
        // Threads may hold blocks of versions drawn long ago: the base leaves room below. Moved entries are older than any to come.
        let room_below = if kind == Filler::Move { u64::from(u32::MAX) } else { 1 << 31 };
        let base_version = log.clock.upper_bound().saturating_sub(room_below);
        let descriptor = Descriptor {
            generation: next_generation(self.segments[index as usize].generation.load(Ordering::Relaxed))?,
            base_version,
            owner_epoch: 0,
            sealed_bytes: 0,
            keyspace,
            run_len,
            entries: 0,
            shard: shard as u16,
            state: OnMedia::Active,
            ..Descriptor::default()
        };
        // Interior segments of a run have no descriptor of their own, but must be known as used once the run is freed.
        for part in index + 1..index + run_len {
            self.pool.commit_descriptor(part, &Descriptor { state: OnMedia::Free, run_len: 1, ..descriptor })?;
        }
        self.pool.commit_descriptor(index, &descriptor)?;
        let segment = &self.segments[index as usize];
        segment.reset(descriptor.generation, base_version, keyspace, shard, run_len);
        self.garbage.clear(index as usize);
        for part in index + 1..index + run_len {
            // Interior segments: remembered as used, so that they are zeroed before they are opened again.
            self.segments[part as usize].reset(descriptor.generation, base_version, keyspace, shard, 0);
            self.garbage.clear(part as usize);
            self.segments[part as usize].set_state(SegmentState::Sealed);
        }
        segment.opened_at.store(log.opened_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        segment.set_state(SegmentState::Open);
        log.pressure.store(true, Ordering::Relaxed);
        let room = log.room(self.node as usize);
        if room.free < room.early() {
            log.few_free[self.node as usize].ring();
        }
        log.opened_bytes.fetch_add(u64::from(run_len) * self.segment_bytes(), Ordering::Relaxed);
        if kind == Filler::Put {
            log.look_at_bound();
        }
        Ok(())
    }

    /// Finds `run_len` adjacent free segments, growing the pool within its limit. The reserve is kept of segments that exist: when the disk turns out to be full, there is no other.
    fn allocate(&self, log: &Log, run_len: u32, kind: Filler) -> Result<u32> {
        let mut alloc = self.alloc.lock();
        let reserve = self.reserve(kind);
        loop {
            let missing = (u64::from(run_len) + reserve).saturating_sub(alloc.free.len() as u64);
            if missing == 0
                && let Some(first) = first_run(&alloc.free, run_len)
            {
                for part in first..first + run_len {
                    alloc.free.remove(&part);
                }
                return Ok(first);
            }
            // Enough free ones, but not side by side: what is made is.
            let least = if missing == 0 { run_len.into() } else { missing };
            let limit = u64::from(self.pool.max_segments() - alloc.count);
            if limit < least {
                let (bytes, free) = (u64::from(run_len) * self.segment_bytes(), alloc.free.len() as u64 * self.segment_bytes());
                // All that is missing is that they lie side by side.
                return Err(if missing == 0 { Error::NotAdjacent { bytes, free } } else { log.full_error() });
            }
            let now = self.grow(limit.min(least.max(u64::from(alloc.count) / 4)), least)? as u32;
            let before = alloc.count;
            alloc.free.extend(before..now);
            alloc.count = now;
        }
    }

    /// Adds `most` segments, or, on a disk that has no room for them, half as many, and so on down to `least`; returns how many there are then.
    fn grow(&self, most: u64, least: u64) -> Result<u64> {
        let mut by = most;
        loop {
            match self.pool.grow(by) {
                Err(hither_pmem::Error::DiskFull { .. }) if by > least => by = (by / 2).max(least),
                grown => {
                    let is_full = matches!(grown, Err(hither_pmem::Error::DiskFull { .. }));
                    *self.disk_full_at.lock() = is_full.then(Instant::now);
                    return Ok(grown?);
                }
            }
        }
    }
}

/// First of `len` adjacent members of `free`.
fn first_run(free: &std::collections::BTreeSet<u32>, len: u32) -> Option<u32> {
    let (mut first, mut count) = (0, 0);
    for &segment in free {
        if count == 0 || segment != first + count {
            (first, count) = (segment, 0);
        }
        count += 1;
        if count == len {
            return Some(first);
        }
    }
    None
}

/// A generation: random, so that it cannot be foreseen, and never zero, which means "never used". Its low byte, all that a link remembers, counts
/// up from the one `before`.
fn next_generation(before: u64) -> Result<u64> {
    loop {
        let random = getrandom::u64().map_err(Error::Random)?;
        let generation = if before == 0 { random } else { random & !0xff | before.wrapping_add(1) & 0xff };
        if generation != 0 {
            return Ok(generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_lowest_first() {
        let free: std::collections::BTreeSet<u32> = [1, 3, 4, 6, 7, 8].into();
        assert_eq!(first_run(&free, 1), Some(1));
        assert_eq!(first_run(&free, 2), Some(3));
        assert_eq!(first_run(&free, 3), Some(6));
        assert_eq!(first_run(&free, 4), None);
    }
}
