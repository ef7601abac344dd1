//! Reads the segment tables at an opening: which segments are free, which must be scanned, and which nobody may touch
//! because their record is lost.
//!
//! A segment is *set aside* if its descriptor is damaged, or blank although the segment is not empty, and nothing
//! better can be recovered. Its content cannot be read, but a later salvage may know more, so it is not written over.
//! In a run only the head has a descriptor that describes it; the segments inside look free. So those behind a head
//! that is set aside are set aside, too.
//!
//! Thread safety: runs before any other thread has the log. Crash: nothing is written, except descriptors that a
//! salvage makes current in its copy.

use super::{SegmentToScan, name_of, scan, verified_entry_at};
use crate::entry::MOST_SPARE;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::SegmentState;
use crate::version::VERSION_BITS;
use hither_pmem::{Descriptor, Pool, SegmentState as OnMedia};
use std::sync::atomic::Ordering;

/// How much an opening without salvage checks of each segment that seems never used. Entries begin at the first byte.
const HEAD_BYTES: u64 = 64;

/// The descriptor of a segment, or one that can be recovered, which then becomes current; `None` if there is none.
fn salvage_descriptor(pool: &Pool, index: u32, salvaged: &mut Vec<String>) -> Result<Option<Descriptor>> {
    let read = pool.descriptor(index);
    if read.is_ok() && pool.was_used(index) {
        return Ok(Some(read?));
    }
    let found = pool.salvaged_descriptors(index).into_iter().find(|found| found.is_current || holds_entries(pool, index, &found.value));
    match (found, read) {
        (None, Ok(never_used)) => {
            let content = match pool.is_zero(pool.segment_offset(index), pool.segment_bytes()) {
                Ok(true) => return Ok(Some(never_used)),
                Ok(false) => String::from("though the segment is not empty; its entries cannot be read"),
                Err(unreadable) => format!("and {unreadable} (at byte {}); if it was ever used, its entries are lost", unreadable.first),
            };
            salvaged.push(format!("{}, {content}", blank_descriptor(pool, index)));
            Ok(None)
        }
        (None, Err(damage)) => {
            salvaged.push(format!("{}; its entries cannot be read", damage.finding()));
            Ok(None)
        }
        (Some(found), read) => {
            let what = read.map_or_else(|damage| damage.finding(), |_| blank_descriptor(pool, index));
            salvaged.push(format!("{what}; {}", found.how));
            // The flags and totals of an earlier record no longer hold.
            let flags = if found.is_current { found.value.flags } else { 0 };
            let descriptor = Descriptor { flags, ..found.value };
            // In the copy, so that later readers find the same.
            pool.commit_descriptor(index, &descriptor)?;
            Ok(Some(descriptor))
        }
    }
}

fn blank_descriptor(pool: &Pool, index: u32) -> String {
    format!("pool {} is damaged: the commit word of the descriptor of segment {index} is blank", name_of(pool, pool.node()))
}

/// Whether a segment holds what this descriptor, which may be an earlier one, says: entries verify only with the right
/// generation.
fn holds_entries(pool: &Pool, index: u32, descriptor: &Descriptor) -> bool {
    let run_len = descriptor.run_len.max(1);
    if descriptor.generation == 0 || run_len > pool.segment_count() - index {
        return false;
    }
    let start = pool.segment_offset(index);
    // Pages that cannot be read show zeros from now on. Whoever scans the segment later finds them anew.
    pool.cover_unreadable(start, u64::from(run_len) * pool.segment_bytes());
    match verified_entry_at(pool, start, descriptor.generation) {
        _ if run_len == 1 => scan(pool, index, descriptor, |_, _| {}).entries > 0,
        // The segments of another life must not be taken for parts of a run. A run is made for an upper bound of its
        // entry's size.
        Some(entry) => {
            let segments = |size: u64| size.div_ceil(pool.segment_bytes());
            (segments(entry.size)..=segments(entry.size + MOST_SPARE)).contains(&u64::from(run_len))
        }
        None => false,
    }
}

/// How many segments behind `head`, whose record is lost, may belong to its run: they are free, were never freed
/// (nothing is counted in them), and share a generation.
fn orphans(pool: &Pool, head: u32) -> u32 {
    let inside = |index: u32| {
        let descriptor = pool.descriptor(index).ok()?;
        let counts_nothing = descriptor.state == OnMedia::Free && descriptor.entries == 0 && descriptor.sealed_bytes == 0;
        (counts_nothing && descriptor.generation != 0).then_some(descriptor.generation)
    };
    let mut behind = (head + 1..pool.segment_count()).map_while(inside).peekable();
    let Some(&generation) = behind.peek() else { return 0 };
    behind.take_while(|other| *other == generation).count() as u32
}

impl Log {
    /// Reads the segment tables: registers free segments and returns those to scan. Call once, before anything is
    /// written.
    ///
    /// With `salvaged`, a segment whose descriptor is lost is noted there. In a pool that is salvaged
    /// ([`Pool::salvages`]), the descriptor is searched for in what is left. A segment without one is set aside: its
    /// content cannot be read, but is not written over either.
    pub fn load_tables(&self, mut salvaged: Option<&mut Vec<String>>) -> Result<Vec<SegmentToScan>> {
        let mut found = Vec::new();
        for pool in &self.pools {
            let mut index = 0;
            while index < pool.pool.segment_count() {
                let descriptor = match salvaged.as_deref_mut() {
                    None => Some(pool.believed_descriptor(index)?),
                    Some(salvaged) => salvage_descriptor(&pool.pool, index, salvaged)?,
                };
                index += match descriptor {
                    None => {
                        // Its content may be readable again some day, and deleted entries in it must stay deleted.
                        self.unreadable.store(true, Ordering::SeqCst);
                        pool.set_aside(index)
                    }
                    Some(descriptor) if descriptor.state == OnMedia::Free => pool.register_free(index, &descriptor)?,
                    Some(descriptor) => {
                        found.push(SegmentToScan { node: pool.node, index, descriptor });
                        pool.register_used(index, &descriptor)?
                    }
                };
            }
        }
        Ok(found)
    }
}

/// More versions than are given out while everything that is written goes into segments that a salvage cannot read.
const UNSEEN_VERSIONS: u64 = 1 << 40;

impl Log {
    /// A version above those of all entries that a salvage could not read; `newest` is the highest version that was
    /// seen. Those entries may be readable again some day, and entries written from now on must win over them. Call
    /// after [`Log::load_tables`].
    pub fn beyond_unseen_versions(&self, newest: u64) -> u64 {
        let bases = self.pools.iter().flat_map(|pool| pool.existing()).map(|segment| segment.base_version.load(Ordering::Relaxed));
        let newest = bases.max().unwrap_or(0).max(newest);
        newest + UNSEEN_VERSIONS.min(((1 << VERSION_BITS) - newest.min(1 << VERSION_BITS)) / 2)
    }
}

impl NodePool {
    fn damaged(&self, index: u32, what: String) -> Error {
        Error::Damaged { pool: name_of(&self.pool, self.node), segment: index, offset: self.pool.segment_offset(index), what }
    }

    /// The descriptor of a segment. A blank one is not trusted if the segment begins with anything but zeros: the
    /// segment would be taken for a fresh one and written over.
    fn believed_descriptor(&self, index: u32) -> Result<Descriptor> {
        let descriptor = self.pool.descriptor(index)?;
        if self.pool.was_used(index) {
            return Ok(descriptor);
        }
        match self.pool.is_zero(self.pool.segment_offset(index), HEAD_BYTES) {
            Ok(true) => Ok(descriptor),
            Ok(false) => Err(self.damaged(index, String::from("its descriptor is blank, but the segment is not empty"))),
            Err(unreadable) => Err(self.damaged(index, format!("its descriptor is blank, and the first {unreadable}"))),
        }
    }

    /// Sets a segment aside, and those that may be the rest of its run. Returns how many.
    fn set_aside(&self, head: u32) -> u32 {
        let count = 1 + orphans(&self.pool, head);
        for index in head..head + count {
            self.segments[index as usize].reset(0, 0, 0, 0, 0);
            self.segments[index as usize].set_state(SegmentState::Sealed);
        }
        count
    }

    /// Takes over a segment's descriptor. Returns the length of its run.
    fn take_over(&self, index: u32, descriptor: &Descriptor) -> Result<u32> {
        let (run_len, count) = (descriptor.run_len.max(1), self.pool.segment_count());
        if run_len > count - index {
            return Err(self.damaged(index, format!("its run of {run_len} segments reaches beyond the pool's {count}")));
        }
        // Versions of the segment's entries are up to 32 bits above its base.
        if descriptor.base_version.saturating_add(u64::from(u32::MAX)) >> VERSION_BITS != 0 {
            return Err(self.damaged(index, format!("its base version {} is beyond all versions", descriptor.base_version)));
        }
        let Descriptor { generation, base_version, keyspace, shard, .. } = *descriptor;
        self.segments[index as usize].reset(generation, base_version, keyspace, u32::from(shard), run_len);
        Ok(run_len)
    }

    fn register_free(&self, index: u32, descriptor: &Descriptor) -> Result<u32> {
        self.take_over(index, descriptor)?;
        self.add_free(index);
        Ok(1)
    }

    fn register_used(&self, index: u32, descriptor: &Descriptor) -> Result<u32> {
        let run_len = self.take_over(index, descriptor)?;
        if descriptor.state == OnMedia::Active {
            // The other segments were sealed when their content had been synced.
            let start = self.pool.segment_offset(index);
            self.pool.forget_cached(start, start + u64::from(run_len) * self.segment_bytes());
        }
        let state = &self.segments[index as usize];
        state.set_state(SegmentState::Sealed);
        state.was_open.store(descriptor.state == OnMedia::Active, Ordering::Relaxed);
        state.marks_unsure.store(true, Ordering::Relaxed);
        // For good: every later descriptor of the segment must record it, too.
        state.torn.store(descriptor.state == OnMedia::Recovered, Ordering::Relaxed);
        for part in index + 1..index + run_len {
            self.segments[part as usize].reset(descriptor.generation, descriptor.base_version, descriptor.keyspace, 0, 0);
            self.segments[part as usize].set_state(SegmentState::Sealed);
        }
        Ok(run_len)
    }
}
