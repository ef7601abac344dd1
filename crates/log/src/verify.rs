//! Verification after a restart that did not read the log: segments taken over from a checkpoint are *unverified* until their checksums were compared.
//!
//! Until then each entry is verified when it is read, so that damage is found and not served, as if the log had been scanned; a thread in the background
//! verifies segment by segment. Once all are, a read costs one predictable branch. A segment with damage stays unverified: what is whole
//! in it can be read, and it is not collected.

use crate::address;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::replay::{self, ScanTotals, SegmentToScan};
use crate::segment::Segment;
use hither_pmem::SegmentState as OnMedia;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Log {
    /// Whether some segment is unverified.
    #[inline(always)]
    pub fn has_unverified(&self) -> bool {
        self.unverified.load(Relaxed) != 0
    }

    /// Verifies the entry behind a reference of the index, if its segment is unverified. Call under an epoch pin.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    #[cold]
    #[inline(never)]
    pub fn verify_entry(&self, reference: u64) -> Result<()> {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        let index = pool.segment_index(at.offset);
        if !pool.segments[index].unverified.load(Relaxed) || self.verified_entry(reference).is_some() {
            return Ok(());
        }
        let what = "an entry's checksum does not match; `check` lists all damage, and opening with salvage keeps what is readable";
        Err(Error::Damaged { pool: replay::name_of(&pool.pool, at.node), segment: index as u32, offset: at.offset, what: what.into() })
    }

    /// Verifies the next unverified segment; `Ok(false)` if there is none left to do.
    ///
    /// # Errors
    /// [`Error::Damaged`]; the next call goes on with another segment.
    pub fn verify_next(&self) -> Result<bool> {
        let wanted = |segment: &Segment| segment.in_use() && segment.unverified.load(Relaxed) && !segment.damaged.load(Relaxed);
        // Not while a collector could free it.
        let _alone = self.burials.lock();
        let Some((node, index)) = self.select(wanted).into_iter().next() else { return Ok(false) };
        self.verify_segment(node, index).map(|()| true)
    }

    /// Compares what a segment held when the store was opened with its descriptor: with what was sealed, or with what the last close recorded.
    pub(crate) fn verify_segment(&self, node: usize, index: u32) -> Result<()> {
        let pool = &self.pools[node];
        let segment = &pool.segments[index as usize];
        if !segment.unverified.load(Acquire) {
            return Ok(());
        }
        let descriptor = pool.pool.descriptor(index)?;
        let end = match segment.tail_at_open.load(Relaxed) {
            tail if tail != 0 && descriptor.state == OnMedia::Active => tail,
            _ => u64::MAX,
        };
        let (mut entries, mut bytes) = (0, 0);
        let totals = replay::scan(&pool.pool, index, &descriptor, |offset, entry| {
            // Writers may be at work behind the end.
            let counts = offset < end;
            entries += u64::from(counts);
            bytes += entry.size * u64::from(counts);
        });
        let totals = ScanTotals { entries, bytes, ..totals };
        let scanned = SegmentToScan { node: node as u32, index, descriptor };
        if let Err(damage) = replay::verify_totals(&pool.pool, &scanned, &totals, true) {
            segment.damaged.store(true, Relaxed);
            return Err(damage);
        }
        if segment.unverified.swap(false, Relaxed) {
            self.unverified.fetch_sub(1, Relaxed);
        }
        Ok(())
    }
}
