//! Ranges written without a flush, on media that need one: a commit writes them back.
//!
//! A writer fills a chunk of each stream from its beginning on, so the newest range of a stream grows. It is put aside
//! when the stream goes on elsewhere. Writes that were flushed at once may lie in between: short ones are written back
//! again, because otherwise each write around them would be a range of its own. So the ranges take 16 bytes for each
//! chunk, or for each [`BRIDGED`] bytes where writes of both kinds alternate.
//!
//! The growth is bounded even if nobody requests a commit: sealing a segment makes everything durable that was written
//! before, and no segment is used again that was not sealed.
//!
//! Thread safety: ranges are part of a writer's slot. Nothing of this is on media.

use crate::log::Log;
use std::mem::{replace, take};
use std::ops::Range;

/// The longest gap that is written back along with the ranges around it: four lines.
const BRIDGED: u64 = 256;

/// Ranges of a pool, as offsets, that one slot's writes have left unflushed.
#[derive(Default)]
pub(crate) struct DirtyRanges {
    /// By stream; an empty range is not in use.
    newest: Vec<Range<u64>>,
    older: Vec<Range<u64>>,
}

impl DirtyRanges {
    /// Remembers a write to a stream.
    pub fn add(&mut self, stream: usize, offset: u64, bytes: u64) {
        if self.newest.len() <= stream {
            self.newest.resize(stream + 1, 0..0);
        }
        let newest = &mut self.newest[stream];
        if !newest.is_empty() && (newest.end..=newest.end + BRIDGED).contains(&offset) {
            newest.end = offset + bytes;
            return;
        }
        let before = replace(newest, offset..offset + bytes);
        if !before.is_empty() {
            self.older.push(before);
        }
    }

    /// Returns all ranges and forgets them.
    fn take(&mut self) -> impl Iterator<Item = Range<u64>> {
        let newest = self.newest.iter_mut().map(take).filter(|range| !range.is_empty());
        self.older.drain(..).chain(newest)
    }

    /// Bytes of DRAM that the ranges take.
    pub fn dram_bytes(&self) -> usize {
        (self.newest.capacity() + self.older.capacity()) * size_of::<Range<u64>>()
    }
}

impl Log {
    /// Writes back everything that was appended with [`Flush::Later`](crate::Flush::Later) by writer sections that have
    /// ended, and fences.
    pub fn flush_dirty(&self) {
        if !self.needs_flush() {
            return;
        }
        let mut dirty: Vec<(usize, Range<u64>)> = Vec::new();
        self.with_slots(|node, slot| dirty.extend(slot.dirty.take().map(|range| (node, range))));
        for (node, range) in dirty {
            self.pools[node].pool.flush(range.start, (range.end - range.start) as usize);
        }
        for pool in &self.pools {
            pool.pool.fence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Parts;
    use crate::{Flush, Log, Op, address};
    use hither_pmem::shadow::{ShadowLog, ShadowRng};
    use hither_pmem::{CreateOptions, Emulate};

    #[test]
    fn a_stream_that_goes_on_has_one_range() {
        let mut dirty = DirtyRanges::default();
        for (stream, offset) in [(0, 4096), (3, 65_536), (0, 4128), (3, 65_568), (0, 4160 + BRIDGED), (0, 4193 + 2 * BRIDGED), (3, 4096)] {
            dirty.add(stream, offset, 32);
        }
        let mut found: Vec<_> = dirty.take().collect();
        found.sort_by_key(|range| range.start);
        let (first, second) = (4096..4192 + BRIDGED, 4193 + 2 * BRIDGED..4225 + 2 * BRIDGED);
        assert_eq!(found, [first, 4096..4128, second, 65_536..65_600]);
        assert_eq!(dirty.take().count(), 0);
        dirty.add(3, 4128, 32);
        assert!(dirty.take().eq(std::iter::once(4128..4160)), "what was taken does not come again");
    }

    /// Entries of several streams and chunks, some of which were flushed at once.
    #[test]
    fn all_that_is_remembered_is_written_back() {
        let (events, sizes) = (ShadowLog::new(), CreateOptions::new(64 << 12));
        let (tracer, emulate) = (events.clone(), Some(Emulate::Adr));
        let log = Log::for_tests_with(&CreateOptions { segment_bytes: 4096, emulate, tracer: Some(tracer), ..sizes }, 4);
        log.pool(0).finish_creation().expect("memory");
        log.load_tables(None).expect("no damage");
        let mut entries = Vec::new();
        for i in 0..300u64 {
            let (key, flush) = (i.to_le_bytes(), if i % 7 == 3 { Flush::Now } else { Flush::Later });
            let parts = Parts { op: Op::Insert, key: &key, value: &[1; 40][..8 + (i % 4) as usize * 8], keyspace: 1, ..Parts::EMPTY };
            entries.push(log.write_to_shard_for_tests(i * i % 4, parts, flush).0);
        }
        log.flush_dirty();
        for image in events.images(Emulate::Adr, events.len(), 40, &mut ShadowRng::new(1)) {
            for at in entries.iter().map(|reference| address::unpack(*reference).offset) {
                for offset in (at..at + 32).step_by(8) {
                    assert_eq!(image[offset as usize..][..8], log.pool(0).load_u64(offset).to_le_bytes(), "offset {offset}");
                }
            }
        }
    }

    /// Regression: each write to another shard than that of the previous write was remembered by itself, with 16 bytes
    /// for 32.
    #[test]
    fn what_is_remembered_is_little_beside_what_was_written() {
        const WRITES: u64 = 100_000;
        let pool = CreateOptions { emulate: Some(Emulate::Adr), segment_bytes: 64 << 10, ..CreateOptions::new(16 << 20) };
        let log = Log::for_tests_with(&pool, 64);
        assert!(log.needs_flush());
        for i in 0..WRITES {
            let key = i.to_le_bytes();
            let parts = Parts { op: Op::Insert, key: &key, value: &key, keyspace: 1, ..Parts::EMPTY };
            // In every other thousand, every other write is flushed at once.
            let flush = if i % 2_000 < 1_000 && i % 2 == 1 { Flush::Now } else { Flush::Later };
            log.write_to_shard_for_tests(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58, parts, flush);
        }
        let mut ranges = 0;
        log.with_slots(|_, slot| ranges += slot.dirty.newest.len() + slot.dirty.older.len());
        assert!((64..=2_000).contains(&ranges), "{ranges} ranges for {WRITES} writes");
        log.flush_dirty();
        let mut left = 0;
        log.with_slots(|_, slot| left += slot.dirty.take().count());
        assert_eq!(left, 0);
    }
}
