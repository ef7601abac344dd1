//! The part of recovery that restores what collectors rely on (`docs/adr/0011`, "Recovery"): links from a newer entry
//! lead to every entry that is neither dead nor current. It comes after the indexes are built, while they still hold
//! tombstones, and before anything is written.
//!
//! Thread safety: one thread, while the store is opened. Crash: everything here can be repeated, because a crash in the
//! middle leaves the flags and the broken links that call for it.

use crate::error::Result;
use crate::keyspace::with_index;
use crate::recovery::Recovery;
use hither_index::{Index, Ref};
use hither_log::pass::COLLECTING;
use hither_log::replay::SegmentToScan;
use hither_log::{EntryView, Op};
use hither_pmem::SegmentState;
use hither_sync::epoch;

impl Recovery<'_> {
    /// Completes the passes that a crash interrupted, and makes all marks durable; returns how many passes there were.
    pub(super) fn complete_passes(&self, segments: &[SegmentToScan]) -> Result<u64> {
        let interrupted: Vec<_> = segments.iter().filter(|segment| segment.descriptor.flags & COLLECTING != 0).collect();
        for segment in &interrupted {
            self.log.complete_burials(segment);
        }
        self.log.barrier()?;
        for segment in &interrupted {
            self.log.end_interrupted_pass(segment)?;
        }
        Ok(interrupted.len() as u64)
    }

    /// Whether the index names this very entry. An entry of a keyspace that was dropped is not current.
    fn is_current(&self, reference: Ref, entry: &EntryView<'_>, keyspace: u32) -> bool {
        let Some(&at) = self.by_id.get(&keyspace) else { return false };
        with_index!(self.keyspaces[at], index => index.get(self.hasher.key(entry.key), &self.resolver())) == reference
    }

    /// Of the keys whose chains are broken, marks dead every entry that is not current; returns the number of marks.
    /// Reads the whole log if there are such keys. Only a power loss among writes that were installed before they were
    /// durable leaves any.
    pub(super) fn mend_chains(&self, segments: &[SegmentToScan]) -> u64 {
        let _pin = epoch::pin();
        self.find_children_of_dropped(segments);
        let broken = std::mem::take(&mut *self.broken.lock());
        if broken.is_empty() {
            return 0;
        }
        let mut marked = 0;
        for segment in segments {
            self.log.visit_segment(segment.node as usize, segment.index, |reference, _, keyspace, entry| {
                let doubtful = entry.op() != Op::Delete && broken.contains(&(keyspace, self.hasher.hash(entry.key)));
                if doubtful && (entry.is_dead() || !self.is_current(Ref(reference), entry, keyspace)) {
                    // Existing marks may not be durable yet.
                    self.log.mark_dead_on_media(reference);
                    marked += 1;
                }
            });
        }
        marked
    }

    /// Finds the keys of children of dropped members. A member of a dropped batch may have a child if nobody waited for
    /// the child to be durable either. The walk from the child would end at the member.
    fn find_children_of_dropped(&self, segments: &[SegmentToScan]) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        if dropped.is_empty() {
            return;
        }
        let mut broken = self.broken.lock();
        for segment in segments.iter().filter(|segment| segment.descriptor.state == SegmentState::Active) {
            self.log.visit_segment(segment.node as usize, segment.index, |_, _, keyspace, entry| {
                if dropped.contains(&entry.parent()) {
                    broken.insert((keyspace, self.hasher.hash(entry.key)));
                }
            });
        }
    }
}
