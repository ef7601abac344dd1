//! Comparing segments with what is known about them: their descriptors, and the counters in DRAM.

use super::{ScanTotals, SegmentToScan, scan, verify_totals};
use crate::address;
use crate::entry::{EntryView, Op};
use crate::error::Result;
use crate::log::Log;
use crate::reclaim::TakeBack;
use crate::segment::{Segment, SegmentState};
use std::sync::atomic::Ordering::Relaxed;

/// The result of checking one segment.
#[derive(Clone, Debug)]
pub struct CheckedSegment {
    /// Valid entries.
    pub entries: u64,
    /// Bytes of these entries.
    pub bytes: u64,
    /// Number of torn places.
    pub torn: u64,
    /// The problem that was found, if any.
    pub problem: Option<String>,
}

/// The tombstones that were found in a segment.
#[derive(Default)]
struct Tombstones {
    /// Number and bytes of all.
    all: (u64, u64),
    /// Number and bytes of those that are not known to be garbage.
    needed: (u64, u64),
    /// Version of the newest.
    newest: u64,
}

impl Tombstones {
    fn count(&mut self, version: u64, size: u64, is_garbage: bool) {
        self.all = (self.all.0 + 1, self.all.1 + size);
        if !is_garbage {
            self.needed = (self.needed.0 + 1, self.needed.1 + size);
        }
        self.newest = self.newest.max(version);
    }

    /// What is wrong with the counters of the segment that holds these tombstones. A segment of this opening counts all.
    /// In the others a recovery may have counted some as garbage, and that they are garbage may be forgotten (G2 in
    /// `garbage`, and a restart from a checkpoint). So there, fewer may count than are found.
    fn problem(&self, segment: &Segment) -> Option<String> {
        let counted = (u64::from(segment.tombstones.load(Relaxed)), segment.tombstone_bytes.load(Relaxed));
        let of_this_opening = !segment.marks_unsure.load(Relaxed);
        let (found, is_right) = match of_this_opening {
            true => (self.all, counted == self.all),
            false => (self.needed, counted.0 <= self.needed.0 && counted.1 <= self.needed.1),
        };
        let newest = segment.newest_tombstone.load(Relaxed);
        if !is_right {
            return Some(format!("{} tombstones of {} bytes, but {} of {} bytes are counted", found.0, found.1, counted.0, counted.1));
        }
        (newest < self.newest).then(|| format!("a tombstone of version {}, but {newest} passes for the newest", self.newest))
    }
}

impl Log {
    /// Reads every segment in use again and compares it with its descriptor. Call without writers.
    pub fn check_segments(&self) -> Result<Vec<CheckedSegment>> {
        self.fold_slots(TakeBack::None);
        let mut checked = Vec::new();
        for (node, pool) in self.pools.iter().enumerate() {
            for index in 0..pool.pool.segment_count() {
                let state = &pool.segments[index as usize];
                if matches!(state.state(), SegmentState::Free | SegmentState::Retiring) || state.run_len.load(Relaxed) == 0 {
                    continue;
                }
                checked.push(self.check_segment(node, index)?);
            }
        }
        Ok(checked)
    }

    fn check_segment(&self, node: usize, index: u32) -> Result<CheckedSegment> {
        let pool = &self.pools[node];
        let state = &pool.segments[index as usize];
        let descriptor = pool.pool.descriptor(index)?;
        let unreadable = self.look_at_unverified(node, index);
        let mut tombstones = Tombstones::default();
        let totals = scan(&pool.pool, index, &descriptor, |offset, entry: &EntryView<'_>| {
            if entry.op() == Op::Delete {
                let is_garbage = self.is_known_garbage(address::pack(node as u32, offset, entry.size));
                tombstones.count(entry.version(descriptor.base_version), entry.size, is_garbage);
            }
        });
        let totals = ScanTotals { unreadable, ..totals };
        let segment = SegmentToScan { node: node as u32, index, descriptor };
        let counted = (u64::from(state.entries.load(Relaxed)), state.written_bytes.load(Relaxed));
        let wrong = || {
            let found = (totals.entries, totals.bytes);
            let of_all = format!("{} entries of {} bytes, but {} of {} bytes were written", found.0, found.1, counted.0, counted.1);
            let what = if counted != found { Some(of_all) } else { tombstones.problem(state) };
            what.map(|what| format!("segment {index} of node {node} holds {what}"))
        };
        let problem = verify_totals(&pool.pool, &segment, &totals, false).err().map(|error| error.finding()).or_else(wrong);
        Ok(CheckedSegment { entries: totals.entries, bytes: totals.bytes, torn: totals.torn, problem })
    }
}
