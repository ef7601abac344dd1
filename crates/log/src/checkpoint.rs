//! The log's part of a checkpoint of the indexes: which segments it covers, their counters, and where references lead.
//!
//! A checkpoint (`docs/adr/0011`) *covers* segments that are full: their entries need not be read again. It lists all
//! other segments that were in use when the indexes had been copied; those are scanned after a crash. A reference
//! counts only if the generation is still the listed one.
//!
//! Segments of moved entries (*cold* ones, see [`COLD_SHARD`](crate::COLD_SHARD)) are closed at a capture, full or not.
//! So every entry in a cold segment that a checkpoint does not cover was moved after the capture. Recovery relies on
//! that: such entries are old, and only their place shows whether the checkpoint knows them.
//!
//! # Thread safety
//!
//! Writers go on meanwhile. The engine runs no pass beside a capture.
//!
//! # Tombstones
//!
//! While a checkpoint can be loaded, or one is being made, tombstones newer than its version stay
//! ([`Log::keep_tombstones_after`]): the checkpoint may name entries that they deleted.

use crate::address;
use crate::entry::MIN_BYTES;
use crate::error::Result;
use crate::log::Log;
use crate::reclaim::{MakeDurable, TakeBack};
use crate::replay::{ScanTotals, SegmentToScan};
use crate::segment::{Segment, SegmentState};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// A segment in use, as a checkpoint lists it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRow {
    /// Node of its pool.
    pub node: u32,
    /// Number in the pool.
    pub index: u32,
    /// Its generation.
    pub generation: u64,
    /// Nothing is added to the segment any more, and the checkpoint holds all of it.
    pub covered: bool,
    /// A crash left torn bytes in the segment.
    pub torn: bool,
    /// Entries.
    pub entries: u32,
    /// Tombstones among them.
    pub tombstones: u32,
    /// Bytes of entries.
    pub written_bytes: u64,
    /// Bytes of tombstones.
    pub tombstone_bytes: u64,
    /// Version of the newest tombstone.
    pub newest_tombstone: u64,
    /// Where writing goes on, as offset in the pool; 0 if nowhere.
    pub tail: u64,
}

/// The generation of each covered segment, by node and number.
pub type Covered = HashMap<(u32, u32), u64>;

/// A flat numbering of all segments of all pools, in which references are located.
#[derive(Clone, Debug)]
pub struct Placement {
    /// By node: the offset at which segments begin, the logarithm of their size, the flat number of the first, and
    /// their count.
    nodes: [(u64, u32, usize, usize); address::MAX_NODES],
    segments: usize,
}

impl Placement {
    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// The flat number of a segment.
    pub fn number(&self, node: u32, index: u32) -> usize {
        self.nodes[node as usize].2 + index as usize
    }

    /// The segment with a flat number: its node, and its number there.
    pub fn segment(&self, number: usize) -> (usize, usize) {
        let node = self.nodes.iter().rposition(|&(_, _, first, count)| count > 0 && first <= number).unwrap_or(0);
        (node, number - self.nodes[node].2)
    }

    /// The flat number of the segment behind a reference, and the offset in that segment; `None` if the reference leads
    /// nowhere.
    pub fn place(&self, reference: u64) -> Option<(usize, u64)> {
        let at = address::unpack(reference);
        let (offset, shift, ..) = self.nodes[at.node as usize];
        self.of(reference).map(|segment| (segment, (at.offset - offset) & ((1 << shift) - 1)))
    }

    /// The flat number of the segment behind a reference. `None` if the reference leads nowhere, or so near to a
    /// segment's end that no entry begins there: behind the last segment nothing is mapped.
    #[inline(always)]
    pub fn of(&self, reference: u64) -> Option<usize> {
        let at = address::unpack(reference);
        let (offset, shift, first, count) = self.nodes[at.node as usize];
        let from_start = at.offset.wrapping_sub(offset);
        let index = (from_start >> shift) as usize;
        let room = (1 << shift) - (from_start & ((1 << shift) - 1));
        (index < count && room >= MIN_BYTES).then_some(first + index)
    }
}

impl Log {
    /// The present numbering of segments.
    pub fn placement(&self) -> Placement {
        let mut placement = Placement { nodes: [(0, 0, 0, 0); address::MAX_NODES], segments: 0 };
        for (slot, pool) in placement.nodes.iter_mut().zip(&self.pools) {
            let count = pool.pool.segment_count() as usize;
            *slot = (pool.pool.segment_offset(0), pool.segment_bytes().trailing_zeros(), placement.segments, count);
            placement.segments += count;
        }
        placement
    }

    /// Keeps tombstones newer than `version`; `u64::MAX` keeps none.
    pub fn keep_tombstones_after(&self, version: u64) {
        // A pass under way does not take this lock, and may still go by the old rule. It ends before `capture`, so what it
        // drops is below the version S that the checkpoint draws then.
        let _one_at_a_time = self.reclaim.lock();
        self.tombstone_floor.store(version, Relaxed);
    }

    /// Whether some tombstones stay because of a checkpoint that exists, or of one under way that may still be
    /// published.
    pub fn keeps_tombstones(&self) -> bool {
        self.tombstone_floor.load(Relaxed) != u64::MAX
    }

    /// Bytes of segments opened since the log was opened.
    pub fn opened_bytes(&self) -> u64 {
        self.opened_bytes.load(Relaxed)
    }

    /// Begins a capture: closes cold segments, seals full segments, and returns the sealed ones. Call outside any epoch
    /// pin.
    pub fn capture(&self, make_durable: MakeDurable<'_>) -> Result<Covered> {
        let _one_at_a_time = self.reclaim.lock();
        self.close_cold();
        self.fold_slots(TakeBack::All);
        self.seal_full(make_durable)?;
        let sealed = self.select(|segment| segment.state() == SegmentState::Sealed && segment.run_len.load(Relaxed) > 0);
        let generation = |node: usize, index: u32| self.pools[node].segments[index as usize].generation.load(Relaxed);
        Ok(sealed.into_iter().map(|(node, index)| ((node as u32, index), generation(node, index))).collect())
    }

    /// Closes the cold segments, so that nothing more is moved to them.
    fn close_cold(&self) {
        for pool in &self.pools {
            pool.close_from(self.shards() + 1);
        }
    }

    /// All segments in use now; those in `covered` with their counters. Call when the indexes have been copied.
    pub fn segment_rows(&self, covered: &Covered) -> Vec<SegmentRow> {
        let _one_at_a_time = self.reclaim.lock();
        let used = self.select(Segment::in_use);
        let row = |(node, index): (usize, u32)| {
            let segment = &self.pools[node].segments[index as usize];
            let generation = segment.generation.load(Relaxed);
            let row = SegmentRow { node: node as u32, index, generation, ..SegmentRow::default() };
            if covered.get(&(row.node, index)) == Some(&generation) { counted(row, segment) } else { row }
        };
        used.into_iter().map(row).collect()
    }

    /// All segments in use with counters and tails, all covered. Call when nobody writes any more and everything is
    /// durable.
    pub fn final_rows(&self) -> Vec<SegmentRow> {
        let _one_at_a_time = self.reclaim.lock();
        self.close_cold();
        self.fold_slots(TakeBack::All);
        let used = self.select(Segment::in_use);
        let tail = |node: usize, index| self.pools[node].active_tail(index).unwrap_or(0);
        used.into_iter().map(|(node, index)| SegmentRow { tail: tail(node, index), ..self.row(node, index) }).collect()
    }

    /// Takes over the counters of a segment that is not scanned; `live_bytes` of its entries are referred to.
    pub fn restore_segment(&self, row: &SegmentRow, live_bytes: u64) {
        let segment = &self.pools[row.node as usize].segments[row.index as usize];
        segment.entries.store(row.entries, Relaxed);
        segment.tombstones.store(row.tombstones, Relaxed);
        segment.written_bytes.store(row.written_bytes, Relaxed);
        segment.tombstone_bytes.store(row.tombstone_bytes, Relaxed);
        segment.newest_tombstone.store(row.newest_tombstone, Relaxed);
        segment.torn.fetch_or(row.torn, Relaxed);
        segment.tail_at_open.store(row.tail, Relaxed);
        self.count_as_unverified(segment);
        let dead = row.written_bytes.saturating_sub(row.tombstone_bytes).saturating_sub(live_bytes);
        segment.dead_bytes.store(dead, Relaxed);
    }

    /// Whether the tail in a row is possible: 0, or inside its segment, which exists, behind at least as many bytes as
    /// the row counts. Content of a file is not trusted.
    pub fn is_tail(&self, row: &SegmentRow) -> bool {
        let pool = &self.pools[row.node as usize];
        let filled = row.tail.checked_sub(pool.pool.segment_offset(row.index));
        let is_behind = filled.is_some_and(|filled| filled <= pool.segment_bytes() && filled >= row.written_bytes);
        row.tail == 0 || (is_behind && row.tail.is_multiple_of(8))
    }

    /// The totals that a scan of open segments that a checkpoint covers would have found: for [`Log::resume`], which
    /// goes on at the tails that the checkpoint names.
    pub fn unscanned(&self, open: &[(SegmentToScan, SegmentRow)]) -> Vec<(SegmentToScan, ScanTotals)> {
        let found = |(segment, row): &(SegmentToScan, SegmentRow)| {
            let end = self.pools[segment.node as usize].pool.segment_offset(segment.index + segment.descriptor.run_len.max(1) - 1)
                + self.pools[segment.node as usize].segment_bytes();
            let tail = if row.tail == 0 { end } else { row.tail };
            (*segment, ScanTotals { tail, torn: u64::from(row.torn), ..ScanTotals::default() })
        };
        open.iter().map(found).collect()
    }

    /// Bytes of an entry, read from media if its reference has no size tag.
    #[inline(always)]
    pub fn size_of(&self, reference: u64) -> u64 {
        let at = address::unpack(reference);
        address::tagged_size(reference).unwrap_or_else(|| self.pools[at.node as usize].entry_size(at.offset))
    }

    /// Entries and bytes of entries in segments in use, except those that `covered` accepts: what a scan would read.
    /// Folds nothing, so what writers have not reported yet is missing.
    pub fn uncovered(&self, covered: impl Fn(&SegmentRow) -> bool) -> (u64, u64) {
        let used = self.select(Segment::in_use);
        let rows = used.into_iter().map(|(node, index)| self.row(node, index)).filter(|row| !covered(row));
        rows.fold((0, 0), |(entries, bytes), row| (entries + u64::from(row.entries), bytes + row.written_bytes))
    }

    fn row(&self, node: usize, index: u32) -> SegmentRow {
        let segment = &self.pools[node].segments[index as usize];
        let row = SegmentRow { node: node as u32, index, generation: segment.generation.load(Relaxed), ..SegmentRow::default() };
        counted(row, segment)
    }
}

fn counted(row: SegmentRow, segment: &Segment) -> SegmentRow {
    SegmentRow {
        covered: true,
        torn: segment.torn.load(Relaxed),
        entries: segment.entries.load(Relaxed),
        tombstones: segment.tombstones.load(Relaxed),
        written_bytes: segment.written_bytes.load(Relaxed),
        tombstone_bytes: segment.tombstone_bytes.load(Relaxed),
        newest_tombstone: segment.newest_tombstone.load(Relaxed),
        ..row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_pmem::CreateOptions;

    /// Found by hand: a forged checkpoint could lead to the last bytes of a pool, and reading an entry there went
    /// beyond the mapped range.
    #[test]
    fn references_lead_to_where_an_entry_can_begin() {
        let log = Log::for_tests(&CreateOptions::new(1 << 20));
        let (placement, pool) = (log.placement(), log.pool(0));
        let count = pool.segment_count();
        let begin = |segment: u32| pool.segment_offset(segment);
        let of = |offset: u64| placement.of(address::pack(0, offset, MIN_BYTES));
        for segment in 0..count {
            let (from, last) = (begin(segment), begin(segment) + pool.segment_bytes() - MIN_BYTES);
            assert_eq!((of(from), of(last)), (Some(segment as usize), Some(segment as usize)));
            assert_eq!((of(last + 8), of(last + MIN_BYTES - 8)), (None, None));
        }
        assert_eq!((of(begin(0) - 8), of(begin(count))), (None, None));
    }
}
