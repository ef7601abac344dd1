//! Opens segments: which free ones are taken and for what, and how a pool grows.
//!
//! # Growth
//!
//! A pool grows when puts have taken its last free segment above the reserve. It grows in the background
//! ([`Log::make_ready`]), while writers fill the segments that they have. Allocating space takes long (tens of
//! milliseconds for 16 MiB of tmpfs with busy processors, because its pages are zeroed), so it is done in small steps.
//! A writer that finds no segment before a step is done waits for it, or, where no thread works in the background,
//! grows the pool itself.
//!
//! Where enough garbage is available, growth may be unnecessary: collectors look for it first
//! ([`Log::look_for_garbage`]). Growth does not wait for them, but takes small steps meanwhile.
//!
//! Thread safety: the list of free segments has a lock of its own, held for a few set operations. Growth is serialised
//! by another lock, which is taken before it.

use crate::entry::Parts;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::SegmentState;
use hither_pmem::{Descriptor, Randomness, SegmentState as OnMedia};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The shard number of segments for moved entries ("cold"), in descriptors too: no shard has this number, however many
/// there are.
pub const COLD_SHARD: u16 = u16::MAX;
/// A new segment's base lies this many versions below the newest one, or more if it is opened for an older version. As
/// many versions again fit above the newest.
pub const ROOM_BELOW: u64 = 1 << 31;

/// What a segment is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    pub keyspace: u32,
    pub shard: u32,
    pub kind: Filler,
    /// An upper bound of the base. For a write it is the version that must fit into the segment, which may be old if
    /// the thread was idle while others drew very many.
    pub version: u64,
}

/// What is going to fill a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filler {
    /// Puts.
    Put,
    /// A delete: may use most of the reserve, so that a full store can be emptied.
    Delete,
    /// A collector: may use all of the reserve, so that there is always room to move live entries.
    Move,
}

impl Purpose {
    pub fn of(parts: &Parts<'_>, shard: usize) -> Purpose {
        let kind = if parts.makes_room() { Filler::Delete } else { Filler::Put };
        Purpose { keyspace: parts.keyspace, shard: shard as u32, kind, version: parts.version }
    }
}

/// The most bytes added in one step, if no more are needed: space that is being allocated is of no use until all of it
/// is there.
const STEP_BYTES: u64 = 16 << 20;
/// The same where a step takes a sync: there space is allocated at once, but the sync also writes everything that waits
/// to be written.
const SYNCED_STEP_BYTES: u64 = 64 << 20;

/// Free segments of one pool, ascending.
pub(crate) struct Allocator {
    pub free: std::collections::BTreeSet<u32>,
    /// Number of segments that exist, fresh ones included.
    pub count: u32,
}

impl Allocator {
    /// Takes the first `run_len` adjacent free segments.
    fn take(&mut self, run_len: u32) -> Option<u32> {
        let first = first_run(&self.free, run_len)?;
        for part in first..first + run_len {
            self.free.remove(&part);
        }
        Some(first)
    }
}

impl NodePool {
    /// Takes `run_len` adjacent free segments, zeros those that were used before (L1), and makes the descriptor active.
    /// If the medium fails for the first ones, others are tried once.
    pub fn open_segments(&self, log: &Log, run_len: u32, purpose: Purpose) -> Result<u32> {
        let first = self.allocate(log, run_len, purpose.kind)?;
        let Err(error) = self.activate(log, first, run_len, purpose) else { return Ok(first) };
        // While the first segments are still taken.
        let other = self.allocate(log, run_len, purpose.kind).ok();
        let opened = other.filter(|other| self.activate(log, *other, run_len, purpose).is_ok());
        let mut alloc = self.alloc.lock();
        for index in [Some(first), other.filter(|_| opened.is_none())].into_iter().flatten() {
            alloc.free.extend(index..index + run_len);
        }
        opened.ok_or(error)
    }

    fn activate(&self, log: &Log, index: u32, run_len: u32, purpose: Purpose) -> Result<()> {
        let Purpose { keyspace, shard, kind, version } = purpose;
        self.ensure_zeroed(log, index..index + run_len)?;
        let reused = (index..index + run_len).filter(|part| self.was_used(*part)).count();
        self.segments_reused.fetch_add(reused as u64, Ordering::Relaxed);
        // Threads may hold blocks of versions drawn long ago: the base leaves room below the newest version.
        let base_version = log.clock.upper_bound().saturating_sub(ROOM_BELOW).min(version);
        let descriptor = Descriptor {
            generation: next_generation(&log.random, self.segments[index as usize].generation.load(Ordering::Relaxed))?,
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
        // The segments inside a run get free descriptors, so that they are known as used once the run is freed. Written
        // before the head's descriptor, which makes them a run.
        self.pool.commit_descriptors(index + 1..index + run_len, &Descriptor { state: OnMedia::Free, run_len: 1, ..descriptor })?;
        self.pool.commit_descriptor(index, &descriptor)?;
        let segment = &self.segments[index as usize];
        segment.reset(descriptor.generation, base_version, keyspace, shard, run_len);
        self.garbage.clear(index as usize);
        for part in index + 1..index + run_len {
            // Segments inside a run are remembered as used, so that they are zeroed before they are opened again.
            self.segments[part as usize].reset(descriptor.generation, base_version, keyspace, shard, 0);
            self.garbage.clear(part as usize);
            self.segments[part as usize].set_state(SegmentState::Sealed);
        }
        segment.opened_at.store(log.opened_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        segment.set_state(SegmentState::Open);
        log.pressure.store(true, Ordering::Relaxed);
        let room = log.room(self.node as usize);
        if room.free < room.early().max(room.before_growth()) {
            log.few_free[self.node as usize].ring();
        }
        if kind != Filler::Move {
            self.openings.fetch_add(1, Ordering::Relaxed);
        }
        log.opened_bytes.fetch_add(u64::from(run_len) * self.segment_bytes(), Ordering::Relaxed);
        if kind == Filler::Put {
            log.look_at_bound();
            if self.is_used_up() || log.zeroes_fresh(self) {
                log.needs_more(self.node as usize).ring();
            }
        }
        Ok(())
    }

    /// Finds `run_len` adjacent free segments, growing the pool within its limit. The reserve consists of segments that
    /// exist: if the disk turns out to be full, there are no others.
    fn allocate(&self, log: &Log, run_len: u32, kind: Filler) -> Result<u32> {
        let reserve = self.withheld(kind);
        loop {
            let (missing, count, free) = {
                let mut alloc = self.alloc.lock();
                let missing = (u64::from(run_len) + reserve).saturating_sub(alloc.free.len() as u64);
                if missing == 0
                    && let Some(first) = alloc.take(run_len)
                {
                    return Ok(first);
                }
                (missing, alloc.count, alloc.free.len() as u64 * self.segment_bytes())
            };
            // Enough segments are free, but not side by side; new ones are.
            let least = if missing == 0 { run_len.into() } else { missing };
            if u64::from(self.pool.max_segments() - count) < least {
                let bytes = u64::from(run_len) * self.segment_bytes();
                let limit = log.most_bytes(kind);
                if bytes > limit {
                    return Err(Error::TooLarge { bytes, limit });
                }
                // Enough segments are free; they only do not lie side by side.
                return Err(if missing == 0 { Error::NotAdjacent { bytes, free } } else { log.full_error() });
            }
            self.grow_from(count, least)?;
        }
    }

    /// Grows the pool by a quarter, limited to a step but at least by `least` segments, unless it has already grown
    /// beyond `seen`.
    fn grow_from(&self, seen: u32, least: u64) -> Result<()> {
        let _one_at_a_time = self.growing.lock();
        if self.alloc.lock().count != seen {
            return Ok(());
        }
        let limit = u64::from(self.pool.max_segments() - seen);
        let most = if self.pool.needs_sync() { SYNCED_STEP_BYTES } else { STEP_BYTES };
        // No more than is needed now where a collector has fallen behind.
        let step = if self.collected_first.load(Ordering::Relaxed) { 0 } else { (u64::from(seen) / 4).min(most >> self.segment_shift) };
        let now = self.grow(limit.min(least.max(step)), least)? as u32;
        let mut alloc = self.alloc.lock();
        alloc.free.extend(seen..now);
        alloc.count = now;
        Ok(())
    }

    /// Whether the next segment for puts would have to be added, or nearly so.
    fn is_used_up(&self) -> bool {
        self.free_segments() <= self.reserve(Filler::Put) && self.can_grow_by() > 0
    }

    /// Grows the pool if its segments are used up; see [`Log::make_ready`].
    pub fn grow_ahead(&self) -> Result<()> {
        let count = self.alloc.lock().count;
        if self.is_used_up() { self.grow_from(count, 1) } else { Ok(()) }
    }

    /// Adds `most` segments or, on a disk without room for them, half as many, and so on down to `least`. Returns how
    /// many exist then.
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

impl Log {
    /// Bytes of the segments that a batch could get if the store were empty: it gets all of them on one node. A batch
    /// that deletes may get segments that puts leave to deletes.
    pub fn most_bytes_of_a_batch(&self, deletes: bool) -> u64 {
        self.most_bytes(if deletes { Filler::Delete } else { Filler::Put })
    }

    /// Bytes of the segments of a node that puts may get now.
    pub fn bytes_for_puts(&self, node: usize) -> u64 {
        let pool = &self.pools[node];
        pool.within_reach().saturating_sub(pool.withheld(Filler::Put)) * pool.segment_bytes()
    }

    fn most_bytes(&self, kind: Filler) -> u64 {
        // Growth does not make the reserve smaller.
        let most = |pool: &NodePool| (u64::from(pool.pool.max_segments()) - pool.reserve(kind)) * pool.segment_bytes();
        self.pools.iter().map(most).max().unwrap_or(0)
    }
}

/// The first of `len` adjacent members of `free`.
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

/// A new generation: random, so that it cannot be foreseen, and never zero, which means "never used". Its low byte, the
/// only part that a link remembers, counts up from that of `before`.
fn next_generation(random: &Randomness, before: u64) -> Result<u64> {
    loop {
        let random = random.next_u64().map_err(Error::Random)?;
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

    /// Regression: where a thread had kept a block of versions while very many were drawn, each segment that was opened
    /// for its next write began above that write's version and was closed again, until no segment was left.
    #[test]
    fn an_old_version_has_a_place_in_a_new_segment() {
        let log = Log::for_tests(&hither_pmem::CreateOptions { segment_bytes: 4096, ..hither_pmem::CreateOptions::new(1 << 20) });
        let put = |key: u64| {
            let (key, value) = (&key.to_ne_bytes(), &[7; 200][..]);
            log.write_for_tests(Parts { key, value, keyspace: 1, ..Parts::EMPTY }, crate::Flush::Now)
        };
        let (_, first) = put(0);
        log.clock.draw(&mut crate::version::VersionBlock::default(), 0, 1 << 32);
        let written: Vec<_> = (1..40).map(put).collect();
        for (number, (reference, version)) in (1..).zip(written) {
            let entry = log.entry(reference);
            assert_eq!((version, log.version_of(reference, &entry), entry.key), (first + number, version, &number.to_ne_bytes()[..]));
        }
        assert_eq!(log.openings(0), 3, "of 4 KiB each, for 40 entries of 232 bytes");
        // Versions drawn from here on do not fit beside them.
        let newest = (100..164).map(|key| put(key).1).max();
        assert!(newest > Some(1 << 32) && log.openings(0) <= 8, "{newest:?}, {}", log.openings(0));
    }
}
