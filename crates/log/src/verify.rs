//! Verification after a restart that did not read the log: segments taken over from a checkpoint are *unverified* until
//! their checksums have been verified.
//!
//! Until then each entry is verified when it is read, so that damage is found and not served, as if the log had been
//! scanned. A background thread verifies segment by segment. Once all are verified, a read costs one predictable
//! branch. A segment with damage stays unverified: its intact entries can be read, and it is not collected.
//!
//! The background verification meets every entry, as a scan would have, and can find out which entries are garbage
//! ([`Log::verify_next`]). For that it reads the current entries of keys, which may lie in any segment, and checks them
//! for pages that cannot be read ([`Log::look_at_unverified_entry`]).
//!
//! # Thread safety
//!
//! Runs beside writers, readers and collectors, on several threads at once. A segment is pinned while it is read in the
//! background. So a segment that a collector frees meanwhile is not zeroed under the reader, who would take the zeros
//! for damage.

use crate::address;
use crate::entry::{EntryView, MIN_BYTES, Op};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::replay::{self, ScanTotals, SegmentToScan};
use crate::segment::Segment;
use hither_pmem::SegmentState as OnMedia;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// How many entries are passed on together, so that the misses of their lookups overlap.
const GROUP: usize = 64;

/// An entry that a verification has met.
#[derive(Clone, Copy)]
pub struct Met<'a> {
    /// Reference to the entry.
    pub reference: u64,
    /// Keyspace of the entry.
    pub keyspace: u32,
    /// The entry.
    pub entry: EntryView<'a>,
}

impl Log {
    /// Whether some segment is unverified.
    #[inline(always)]
    pub fn has_unverified(&self) -> bool {
        self.unverified.load(Relaxed) != 0
    }

    /// Whether every entry may be read as it lies there: all are intact, nobody counts reads, and the engine has noted
    /// no reason against it.
    #[inline(always)]
    pub fn reads_are_plain(&self) -> bool {
        self.reasons.load(Relaxed) == 0
    }

    /// Makes [`Log::reads_are_plain`] false from now on, for good. SeqCst: a thread that reads a reference installed
    /// afterwards sees that.
    pub fn note_reason(&self) {
        self.reasons.fetch_add(1, SeqCst);
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
        let (pool, first) = (&pool.pool, pool.pool.segment_offset(index as u32));
        let len = self.size_of(reference).clamp(MIN_BYTES, first + pool.segment_bytes() - at.offset);
        let unreadable = pool.cover_unreadable(at.offset, len);
        let what = if unreadable.is_any() { unreadable.to_string() } else { "an entry's checksum does not match".to_owned() };
        Err(Error::Damaged { pool: replay::name_of(pool, at.node), segment: index as u32, offset: at.offset, what })
    }

    /// Verifies the next unverified segment. Returns `Ok(false)` if none is left. Call outside epoch pins.
    ///
    /// If a segment holds garbage, `meet` gets all its entries that were there when the store was opened, in groups,
    /// except tombstones. A caller with the indexes can find out which of them are garbage ([`Log::know_garbage`]). The
    /// segment is not opened again meanwhile.
    ///
    /// # Errors
    /// [`Error::Damaged`]; the next call goes on with another segment.
    pub fn verify_next<'a>(&'a self, mut meet: impl FnMut(&[Met<'a>])) -> Result<bool> {
        let wanted = |segment: &Segment| segment.in_use() && segment.unverified.load(Relaxed) && !segment.damaged.load(Relaxed);
        // A segment is unverified from the beginning or because damage was found in it; in the latter case it is not
        // wanted. So the cursor never has to go back.
        while let Some(life) = self.next_life(&self.verified_to, wanted) {
            // Runs beside collectors: one may free the segment, but the bytes that are read stay as they are. A freed
            // segment counts as verified, or is about to.
            if let Some(_pinned) = self.pin_life(&life) {
                return self.verify_pinned(life.node as usize, life.index, &mut meet).map(|()| true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// Compares what a segment held when the store was opened with its descriptor: with the sealed totals, or with
    /// those that the last close recorded. The segment must not be freed, or must be pinned.
    pub(crate) fn verify_segment(&self, node: usize, index: u32) -> Result<()> {
        self.read_unverified(node, index, |_| {})
    }

    fn verify_pinned<'a>(&'a self, node: usize, index: u32, meet: &mut impl FnMut(&[Met<'a>])) -> Result<()> {
        let segment = &self.pools[node].segments[index as usize];
        if segment.dead_bytes.load(Relaxed) == 0 {
            return self.read_unverified(node, index, |_| {});
        }
        let mut group = Vec::with_capacity(GROUP);
        let outcome = self.read_unverified(node, index, |met| {
            group.push(met);
            if group.len() == GROUP {
                meet(&group);
                group.clear();
            }
        });
        meet(&group);
        outcome
    }

    /// Verifies a segment. `visit` gets the entries, except tombstones, that were there when the store was opened.
    fn read_unverified<'a>(&'a self, node: usize, index: u32, mut visit: impl FnMut(Met<'a>)) -> Result<()> {
        let pool = &self.pools[node];
        let segment = &pool.segments[index as usize];
        if !segment.unverified.load(Acquire) {
            return Ok(());
        }
        let descriptor = pool.pool.descriptor(index).inspect_err(|_| segment.damaged.store(true, Relaxed))?;
        let tail_at_open = match segment.tail_at_open.load(Relaxed) {
            0 => u64::MAX,
            tail => tail,
        };
        let end = if descriptor.state == OnMedia::Active { tail_at_open } else { u64::MAX };
        let (mut entries, mut bytes) = (0, 0);
        let unreadable = self.look_at_unverified(node, index);
        let totals = replay::scan(&pool.pool, index, &descriptor, |offset, entry| {
            // Writers may be at work behind the end.
            let counts = offset < end;
            entries += u64::from(counts);
            bytes += entry.size * u64::from(counts);
            // Entries appended since may not be in the index yet.
            if offset < tail_at_open && entry.op() != Op::Delete {
                let reference = address::pack(node as u32, offset, entry.size);
                visit(Met { reference, keyspace: entry.keyspace(descriptor.keyspace), entry: *entry });
            }
        });
        let totals = ScanTotals { entries, bytes, unreadable, ..totals };
        let scanned = SegmentToScan { node: node as u32, index, descriptor };
        if let Err(damage) = replay::verify_totals(&pool.pool, &scanned, &totals, true) {
            segment.damaged.store(true, SeqCst);
            return Err(damage);
        }
        self.count_as_verified(segment);
        Ok(())
    }

    /// Makes the entries of a segment be verified when they are read, from now on, because damage was found in it after
    /// it had been verified or written. (Or because it was not read since the store was opened.)
    pub(crate) fn count_as_unverified(&self, segment: &Segment) {
        // The counts are raised first: a thread that takes the mark back at once then subtracts only what was added, so
        // the counts never hide what others have counted.
        self.reasons.fetch_add(1, SeqCst);
        self.unverified.fetch_add(1, SeqCst);
        if segment.unverified.swap(true, SeqCst) {
            self.discount_unverified();
        }
    }

    /// Notes that a segment was verified. This is void if damage was found in it meanwhile.
    fn count_as_verified(&self, segment: &Segment) {
        self.forget_unverified(segment);
        // A thread that finds damage sets `damaged` before it marks the segment as unverified: at least one of the two
        // threads sees the other's store.
        if segment.damaged.load(SeqCst) {
            self.count_as_unverified(segment);
        }
    }

    /// Takes the mark of an unverified segment back, also when the segment is no longer in use. Call before it is free:
    /// opening it again clears the mark without counting.
    pub(crate) fn forget_unverified(&self, segment: &Segment) {
        if segment.unverified.swap(false, SeqCst) {
            self.discount_unverified();
        }
    }

    fn discount_unverified(&self) {
        self.unverified.fetch_sub(1, SeqCst);
        self.reasons.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use crate::log::Log;
    use hither_pmem::CreateOptions;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;

    /// Regression: for each segment that was verified, all segments of the store were examined.
    #[test]
    fn each_segment_is_looked_at_once_or_twice() {
        let log = Log::for_tests(&CreateOptions::new(8 << 20));
        let segments = log.pools[0].existing().len();
        let (cursor, mut looks, mut given) = (AtomicU64::new(0), 0, Vec::new());
        let mut next = || {
            log.next_life(&cursor, |segment| {
                looks += 1;
                // Two of three.
                segment.generation.load(SeqCst) == 0 && looks % 3 != 0
            })
        };
        while let Some(life) = next() {
            log.pools[0].segments[life.index as usize].generation.store(1, SeqCst);
            given.push(life.index);
        }
        assert!(given.len() > 20 && given.is_sorted_by(|a, b| a < b), "{given:?}");
        assert!(looks <= segments + given.len(), "{looks} looks at {segments} segments");
    }

    /// A verification beside a collector that finds damage: in the end the segment is unverified, and at no time does
    /// the count hide a reason that another thread has noted.
    #[test]
    fn damage_found_beside_a_verification_is_not_forgotten() {
        let log = Log::for_tests(&CreateOptions::new(1 << 20));
        log.note_reason();
        let segment = &log.pools[0].segments[0];
        for round in 0..3_000 {
            log.count_as_unverified(segment);
            segment.damaged.store(false, SeqCst);
            let start = Barrier::new(3);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    log.count_as_verified(segment);
                });
                scope.spawn(|| {
                    start.wait();
                    segment.damaged.store(true, SeqCst);
                    log.count_as_unverified(segment);
                });
                start.wait();
                assert!((0..20).all(|_| !log.reads_are_plain()), "round {round}: a reason was hidden");
            });
            assert!(segment.unverified.load(SeqCst), "round {round}: a damaged segment passes for verified");
            assert_eq!((log.unverified.load(SeqCst), log.reasons.load(SeqCst)), (1, 2), "round {round}");
            log.forget_unverified(segment);
        }
    }
}
