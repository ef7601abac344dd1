//! Reads a victim for the batched collector: the commonest entries in few instructions, and entries known to be garbage
//! are passed over (`docs/adr/0022`).
//!
//! Every entry that is passed to the reader was valid when it was read. A damaged entry is not, and would count as
//! garbage. So at the end the entries found are compared with those that were written, and a victim that lacks some is
//! not freed.

use crate::address;
use crate::dead::DeadCounts;
use crate::entry::{EntryView, LivePair, MIN_BYTES};
use crate::error::{Error, Result};
use crate::garbage::GarbageMap;
use crate::node::NodePool;
use crate::pass::Pass;
use crate::relocate::SourceSegment;
use crate::replay::{self, ReadApart, ScanTotals};
use hither_pmem::SegmentState as OnMedia;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Number of pairs that take some microseconds to read.
pub const GARBAGE_STRETCH: u64 = 1024;

/// Receives the entries of a victim, in order of position.
pub trait ReadVictim<'a> {
    /// The error that ends the reading.
    type Error;
    /// Receives a live pair of the victim's keyspace that is not known to be garbage, with its key as its bytes lie in
    /// memory.
    fn pair(&mut self, reference: u64, key: u64) -> Result<(), Self::Error>;
    /// Called at each [`GARBAGE_STRETCH`]th pair that is passed over: the reader may hold something for which others
    /// wait.
    fn passed_over(&mut self, reference: u64) -> Result<(), Self::Error>;
    /// Receives any other valid entry, and its keyspace.
    fn entry(&mut self, reference: u64, version: u64, keyspace: u32, entry: &EntryView<'a>) -> Result<(), Self::Error>;
}

/// Connects the log's scan to the reader.
struct Reading<'v, 'a, V> {
    reader: &'v mut V,
    garbage: &'a GarbageMap,
    data_offset: u64,
    node: u32,
    base_version: u64,
    keyspace: u32,
    known_garbage: u64,
}

impl<'a, V: ReadVictim<'a>> ReadApart<'a> for Reading<'_, 'a, V> {
    type Error = V::Error;

    #[inline(always)]
    fn pair(&mut self, offset: u64, _: u64, pair: &LivePair) -> Result<(), V::Error> {
        if self.garbage.get(offset - self.data_offset) {
            self.known_garbage += 1;
            if self.known_garbage.is_multiple_of(GARBAGE_STRETCH) {
                self.reader.passed_over(address::pack(self.node, offset, MIN_BYTES))?;
            }
            return Ok(());
        }
        self.reader.pair(address::pack(self.node, offset, MIN_BYTES), pair.key)
    }

    fn entry(&mut self, offset: u64, entry: &EntryView<'a>) -> Result<(), V::Error> {
        let reference = address::pack(self.node, offset, entry.size);
        self.reader.entry(reference, entry.version(self.base_version), entry.keyspace(self.keyspace), entry)
    }
}

/// The result of reading a victim.
#[derive(Clone, Copy, Debug)]
pub struct VictimRead {
    /// The totals that a scan would have found.
    pub totals: ScanTotals,
    /// Pairs passed over because they are known to be garbage.
    pub known_garbage: u64,
}

impl<'a> Pass<'a> {
    /// Keyspace of the victim's entries, except those that name another.
    pub fn keyspace(&self) -> u32 {
        self.victim().keyspace.load(Relaxed)
    }

    /// What copies of the victim's entries need to know about it.
    pub fn source_segment(&self) -> SourceSegment<'a> {
        let victim = self.victim();
        let (bytes, start) = replay::content_of(&self.pool().pool, self.segment(), 1);
        SourceSegment {
            bytes,
            start,
            base_version: victim.base_version.load(Relaxed),
            keyspace: self.keyspace(),
            generation_tag: victim.generation.load(Relaxed) as u8,
            is_cold: victim.is_cold(),
        }
    }

    /// Reads the victim's entries, except pairs known to be garbage. Without `pairs`, pairs are passed as ordinary
    /// entries, as in [`Log::visit_segment`](crate::Log::visit_segment).
    ///
    /// # Errors
    /// An error of the reader, which ends the reading.
    #[inline(always)]
    pub fn read<V: ReadVictim<'a>>(&self, pairs: bool, reader: &mut V) -> Result<VictimRead, V::Error> {
        let pool = self.pool();
        let descriptor = pool.describe(self.segment(), OnMedia::Sealed);
        let mut reading = Reading {
            reader,
            garbage: &pool.garbage,
            data_offset: pool.data_offset,
            node: pool.node,
            base_version: descriptor.base_version,
            keyspace: descriptor.keyspace,
            known_garbage: 0,
        };
        let totals = replay::scan_apart(&pool.pool, self.segment(), &descriptor, pairs, &mut reading)?;
        Ok(VictimRead { totals, known_garbage: reading.known_garbage })
    }

    /// Compares the entries found in the victim with those written into it. If they differ, the victim is never
    /// collected again, and its entries are verified whenever they are read.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn ensure_whole(&self, totals: &ScanTotals) -> Result<()> {
        let segment = self.victim();
        if segment.holds(totals) {
            return Ok(());
        }
        let written = (segment.entries.load(Relaxed), segment.written_bytes.load(Relaxed));
        segment.damaged.store(true, SeqCst);
        self.log().count_as_unverified(segment);
        let pool = &self.pool().pool;
        Err(Error::Damaged {
            pool: replay::name_of(pool, self.pool().node),
            segment: self.segment(),
            offset: if totals.first_torn != 0 { totals.first_torn } else { pool.segment_offset(self.segment()) },
            what: format!(
                "{} entries of {} bytes were found where {} of {} bytes were written",
                totals.entries, totals.bytes, written.0, written.1
            ),
        })
    }

    /// Counts entries of the victim that were moved, and that no snapshot shows, as garbage: all of a batch together.
    pub fn moved_entries(&self) -> MovedEntries<'a> {
        MovedEntries { pool: self.pool(), segment: self.segment() as usize, bytes: 0 }
    }
}

/// Entries of one victim that became garbage. They are counted when this is passed to
/// [`Writer::count_moved`](crate::Writer::count_moved).
pub struct MovedEntries<'a> {
    pool: &'a NodePool,
    segment: usize,
    bytes: u32,
}

impl MovedEntries<'_> {
    /// As [`Writer::mark_dead`](crate::Writer::mark_dead) for an entry of the victim, except that its bytes are counted
    /// later.
    #[inline(always)]
    pub fn add(&mut self, reference: u64) {
        let offset = address::unpack(reference).offset;
        debug_assert_eq!(self.pool.segment_index(offset), self.segment, "entries of one victim");
        self.bytes += address::tagged_size(reference).unwrap_or_else(|| self.pool.entry_size(offset)) as u32;
        self.pool.set_garbage(offset);
    }

    /// Adds the bytes to a slot's counts.
    pub(crate) fn count_into(self, dead: &[DeadCounts]) {
        if self.bytes > 0 {
            dead[self.pool.node as usize].add(self.segment, self.bytes, || self.pool.max_segments());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Parts;
    use crate::{Candidate, Flush, Log, TakeBack, Tombstones};
    use hither_pmem::CreateOptions;

    #[derive(Default)]
    struct Counted {
        keys: Vec<u64>,
        /// At each call: how many pairs had been read, and the reference.
        passed_over: Vec<(usize, u64)>,
        entries: u64,
    }

    impl<'a> ReadVictim<'a> for Counted {
        type Error = Error;
        fn pair(&mut self, _: u64, key: u64) -> Result<()> {
            self.keys.push(key);
            Ok(())
        }
        fn passed_over(&mut self, reference: u64) -> Result<()> {
            self.passed_over.push((self.keys.len(), reference));
            Ok(())
        }
        fn entry(&mut self, _: u64, _: u64, _: u32, _: &EntryView<'a>) -> Result<()> {
            self.entries += 1;
            Ok(())
        }
    }

    /// A reader holds up others between two pairs, between which a segment may hold thousands of garbage pairs.
    #[test]
    fn now_and_then_the_reader_is_told_of_garbage() {
        const GARBAGE: u64 = 3 * GARBAGE_STRETCH - 1;
        let log = Log::for_tests(&CreateOptions { segment_bytes: 1 << 20, ..CreateOptions::new(8 << 20) });
        let put = |key: u64| {
            let (key, keyspace) = (&key.to_ne_bytes(), 1);
            log.write_for_tests(Parts { key, value: b"8 bytes!", keyspace, ..Parts::EMPTY }, Flush::Now).0
        };
        let first = put(0);
        let garbage: Vec<u64> = (1..=GARBAGE).map(put).collect();
        garbage.iter().for_each(|reference| log.pools[0].set_garbage(address::unpack(*reference).offset));
        let last = GARBAGE + 1;
        assert_eq!(log.segment_of(put(last)), log.segment_of(first));
        log.pools[0].close_from(0);
        log.seal(&|_| Ok(()), TakeBack::All).expect("memory");
        log.settle(&|_| Ok(())).expect("memory");
        let candidate = Candidate { node: 0, index: log.segment_of(first).1, gain: 0, live: 0, age: 0, generation: 0 };
        let pass = log.begin_pass(&candidate, Tombstones::Swept).expect("memory").expect("it is sealed");
        let mut counted = Counted::default();
        let read = pass.read(true, &mut counted).expect("no damage");
        pass.ensure_whole(&read.totals).expect("no damage");
        assert_eq!((counted.keys, read.known_garbage), (vec![0, last], GARBAGE));
        let told = [1, 2].map(|times| (1, garbage[(times * GARBAGE_STRETCH) as usize - 1]));
        assert_eq!((counted.passed_over, counted.entries), (told.to_vec(), 0));
    }
}
