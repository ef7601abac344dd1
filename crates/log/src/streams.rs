//! Where entries go: the segment that each stream of a pool fills, and the chunks that writers and collectors take of it.
//!
//! There is a stream for each shard, one for hot entries of all shards, and one for moved entries. Where no segment is to be had for a shard, it takes of what
//! the others have open ([`share_segments`]): an entry's shard is of no importance once it lies somewhere.
//!
//! What a delete opens when there is no more for puts stays with deletes, and their chunks there hold nothing but what they write.
//!
//! Thread safety: one lock for each stream, held while a chunk is carved or a segment opened.

use crate::entry::Parts;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::node::NodePool;
use crate::opening::{COLD_SHARD, Filler, Purpose};
use crate::segment::{Chunk, Segment, SegmentState, Tally};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::Ordering;

thread_local! {
    static SHARES: Cell<bool> = const { Cell::new(false) };
}

/// Calls `append`, with this thread's appends going to segments that other shards have open where none can be opened. For a last attempt: first, space should have been made.
pub fn share_segments<T>(append: impl FnOnce() -> T) -> T {
    hither_sync::with_value(&SHARES, true, append)
}

/// A shard's active segment.
pub(crate) struct Active {
    pub segment: Option<u32>,
    /// Next byte to hand out, as offset in the pool.
    pub tail: u64,
    pub end: u64,
    /// A delete has opened it, when there was none for puts any more: it is for deletes, or they would have none where a put comes after each of them.
    pub for_deletes: bool,
}

impl Active {
    pub const NONE: Active = Active { segment: None, tail: 0, end: 0, for_deletes: false };
}

/// Entries longer than this part of a chunk are long.
const LONG_SHARE: u64 = 8;

impl NodePool {
    /// Counts a chunk's entries into its segment.
    pub fn give_back(&self, chunk: &Chunk) {
        if chunk.is_none() {
            return;
        }
        let segment = &self.segments[chunk.segment as usize];
        segment.absorb(&chunk.tally);
        segment.open_chunks.fetch_sub(1, Ordering::Release);
    }

    /// A chunk of the shard's active segment that `parts` fits into; opens a new segment if need be.
    pub fn take_chunk(&self, log: &Log, shard: usize, parts: &Parts<'_>) -> Result<Chunk> {
        let fits = |segment: &Segment| crate::entry::version_fits(segment.base_version.load(Ordering::Relaxed), parts.version);
        self.take_chunk_for(&self.active[shard], log, Purpose::of(parts, shard), parts, fits)
    }

    /// Whether an entry is so long that a chunk of its own costs little beside it, and the rest of one that others fit into would be much.
    pub fn is_long(&self, parts: &Parts<'_>) -> bool {
        parts.max_size() > self.chunk_bytes / LONG_SHARE
    }

    /// Whether a chunk's segment is still being filled.
    pub fn is_open(&self, chunk: &Chunk) -> bool {
        !chunk.is_none() && self.segments[chunk.segment as usize].state() == SegmentState::Open
    }

    /// Bytes of a chunk that is taken for `parts`, at least: none but its own for a long one.
    fn least_chunk(&self, parts: &Parts<'_>) -> u64 {
        if self.is_long(parts) { 0 } else { self.chunk_bytes }
    }

    /// Lengthens a chunk of the shard until `parts` fits into it, if what follows in the segment is still nobody's; by how much. No gap is left then.
    pub fn extend_chunk(&self, shard: usize, chunk: &mut Chunk, parts: &Parts<'_>) -> Option<u64> {
        if chunk.is_none() || !crate::entry::version_fits(chunk.base_version, parts.version) {
            return None;
        }
        let mut active = self.active[shard].lock();
        let size = parts.size(chunk.keyspace, chunk.base_version);
        let is_last = active.segment == Some(chunk.segment) && active.tail == chunk.end.next_multiple_of(64);
        if !is_last || active.end - chunk.cursor < size || !self.admits(&mut active, parts) {
            return None;
        }
        // Whole lines: the next one's are its own.
        let least = if active.for_deletes { 0 } else { self.least_chunk(parts) };
        let tail = (chunk.cursor + size.max(least)).next_multiple_of(64).min(active.end);
        let end = if active.for_deletes { chunk.cursor + size } else { tail };
        // What is in it is counted with the segment, as if this were another chunk: whoever asks how much is live counts a chunk for what is in a writer's hands.
        self.segments[chunk.segment as usize].absorb(&std::mem::replace(&mut chunk.tally, Tally::EMPTY));
        let more = end - chunk.end;
        (active.tail, chunk.end) = (tail, end);
        Some(more)
    }

    /// As [`NodePool::take_chunk`], of another shard's active segment, if this thread may share and one has room. (Not of the one for moved entries: a checkpoint tells
    /// by it what was moved.)
    #[cold]
    pub fn share_chunk(&self, shard: usize, parts: &Parts<'_>) -> Option<Chunk> {
        let shards = if SHARES.get() { &self.active[..self.active.len() - 1] } else { &[] };
        let (before, behind) = shards.split_at(shard.min(shards.len()));
        behind.iter().chain(before).find_map(|active| {
            let mut active = active.lock();
            let index = active.segment?;
            let base_version = self.segments[index as usize].base_version.load(Ordering::Relaxed);
            let fits = crate::entry::version_fits(base_version, parts.version) && self.admits(&mut active, parts);
            fits.then(|| self.carve(index, &mut active, parts, self.least_chunk(parts))).flatten()
        })
    }

    /// As [`NodePool::take_chunk`], for an entry that a collector moves. (A version below the base is no obstacle: it is written out.)
    ///
    /// # Errors
    /// If no segment can be had; also for what takes a run, and is never moved: a tombstone that turns out to be needed when its run is being emptied.
    pub fn take_cold_chunk(&self, log: &Log, parts: &Parts<'_>) -> Result<Chunk> {
        if parts.max_size() > self.segment_bytes() {
            let free = self.free_segments() * self.segment_bytes();
            return Err(Error::NotAdjacent { bytes: parts.max_size().next_multiple_of(self.segment_bytes()), free });
        }
        let mut rests = self.cold_rests.lock();
        while let Some(rest) = rests.pop() {
            if log.reaches_up_to_now(rest.base_version) && rest.end - rest.cursor >= parts.size(rest.keyspace, rest.base_version) {
                return Ok(rest);
            }
            // As a segment is closed when an entry does not fit: otherwise this one's would never be sealed.
            self.give_back(&rest);
        }
        drop(rests);
        let purpose = Purpose { keyspace: parts.keyspace, shard: COLD_SHARD.into(), kind: Filler::Move, version: u64::MAX };
        let reaches = |segment: &Segment| log.reaches_up_to_now(segment.base_version.load(Ordering::Relaxed));
        self.take_chunk_for(&self.active[log.shards() + 1], log, purpose, parts, reaches)
    }

    fn take_chunk_for(
        &self,
        active: &Mutex<Active>,
        log: &Log,
        purpose: Purpose,
        parts: &Parts<'_>,
        fits: impl Fn(&Segment) -> bool,
    ) -> Result<Chunk> {
        let mut active = active.lock();
        loop {
            if let Some(segment) = active.segment {
                if !self.admits(&mut active, parts) {
                    return Err(log.full_error());
                }
                // A collector fills its chunk without a gap, and gives the rest back: it may be large.
                let least = if purpose.kind == Filler::Move { self.segment_bytes() / 2 } else { self.least_chunk(parts) };
                if fits(&self.segments[segment as usize])
                    && let Some(chunk) = self.carve(segment, &mut active, parts, least)
                {
                    return Ok(chunk);
                }
                self.close_active(&mut active);
            }
            let segment = self.open_segments(log, 1, purpose)?;
            let (tail, end) = (self.pool.segment_offset(segment), self.segment_end(segment));
            let for_deletes = purpose.kind == Filler::Delete && self.is_kept_for_deletes();
            self.open_for_deletes.fetch_add(for_deletes.into(), Ordering::Relaxed);
            *active = Active { segment: Some(segment), tail, end, for_deletes };
        }
    }

    /// Whether the segment that was opened just now is one of those that puts could not have had. (In the smallest pools nothing is kept.)
    fn is_kept_for_deletes(&self) -> bool {
        self.reserve(Filler::Delete) > 0 && self.within_reach() < self.reserve_now(Filler::Put)
    }

    /// Whether `parts` may go to the active segment. What is for deletes is for all again once there is room.
    fn admits(&self, active: &mut Active, parts: &Parts<'_>) -> bool {
        if active.for_deletes && !parts.makes_room() && self.has_room() {
            self.give_to_all(active);
        }
        !active.for_deletes || parts.makes_room()
    }

    fn give_to_all(&self, active: &mut Active) {
        if std::mem::take(&mut active.for_deletes) {
            self.open_for_deletes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives the rest of a moved entries' chunk back to its segment, or, if another one was taken since, leaves it to the next collector.
    pub fn return_cold_chunk(&self, log: &Log, chunk: &mut Chunk) {
        let mut active = self.active[log.shards() + 1].lock();
        let rest = chunk.cursor.next_multiple_of(64).min(chunk.end);
        if active.segment == Some(chunk.segment) && active.tail == chunk.end {
            active.tail = rest;
        } else if rest < chunk.end {
            // Under the lock of the active segment: whoever closes it finds the rest.
            self.segments[chunk.segment as usize].absorb(&std::mem::replace(&mut chunk.tally, Tally::EMPTY));
            self.cold_rests.lock().push(Chunk { cursor: rest, ..*chunk });
            return;
        }
        drop(active);
        self.give_back(chunk);
    }

    /// Bytes left in the segment that moved entries go to now.
    pub fn cold_rest(&self, log: &Log) -> u64 {
        let active = self.active.last().expect("every pool has a stream of moved entries").lock();
        let base = active.segment.map(|segment| self.segments[segment as usize].base_version.load(Ordering::Relaxed));
        base.filter(|base| log.reaches_up_to_now(*base)).map_or(0, |_| active.end - active.tail)
    }

    fn carve(&self, index: u32, active: &mut Active, parts: &Parts<'_>, least: u64) -> Option<Chunk> {
        let segment = &self.segments[index as usize];
        let base_version = segment.base_version.load(Ordering::Relaxed);
        let keyspace = segment.keyspace.load(Ordering::Relaxed);
        let size = parts.size(keyspace, base_version);
        let left = active.end - active.tail;
        if left < size {
            return None;
        }
        // Chunks begin with lines. What is left of a delete's line is nobody's.
        let (least, line) = if active.for_deletes { (0, 1) } else { (least, 64) };
        let bytes = size.next_multiple_of(line).max(least).min(left);
        let cursor = active.tail;
        active.tail = (cursor + bytes).next_multiple_of(64).min(active.end);
        segment.open_chunks.fetch_add(1, Ordering::Relaxed);
        Some(Chunk {
            segment: index,
            cursor,
            end: cursor + bytes,
            generation: segment.generation.load(Ordering::Relaxed),
            base_version,
            keyspace,
            tally: Tally::EMPTY,
            seen: 0,
        })
    }

    /// Closes the active segments of the shards from `shard` on, and those of moved entries: what comes goes to new ones.
    pub fn close_from(&self, shard: usize) {
        self.close(&self.active[shard..]);
        self.cold_rests.lock().drain(..).for_each(|rest| self.give_back(&rest));
    }

    /// Gives back what collectors left of their chunks in segments that are no longer filled: these cannot be sealed before, and perhaps no collector will go on there. A gap each, unlike rests in the
    /// segment that is being filled.
    pub fn give_back_closed_rests(&self) {
        self.cold_rests.lock().retain(|rest| {
            let stays = self.is_open(rest);
            if !stays {
                self.give_back(rest);
            }
            stays
        });
    }

    /// Closes the active segments of the shards, not those of moved entries.
    pub fn close_shards(&self) {
        self.close(&self.active[..self.active.len() - 1]);
    }

    /// Closes the shards' active segments that have no room left. They are closed anyway when an entry does not fit; but the shard may get none for long, where others
    /// share its segment.
    pub fn close_full(&self) {
        for active in &self.active[..self.active.len() - 1] {
            let mut active = active.lock();
            if active.tail == active.end {
                self.close_active(&mut active);
            }
        }
    }

    fn close(&self, streams: &[Mutex<Active>]) {
        for active in streams {
            self.close_active(&mut active.lock());
        }
    }

    fn close_active(&self, active: &mut Active) {
        self.give_to_all(active);
        if let Some(segment) = active.segment.take() {
            self.segments[segment as usize].set_state(SegmentState::Closed);
        }
    }

    /// The segment that moved entries go to now.
    pub fn segment_of_moved(&self) -> Option<u32> {
        self.active.last().expect("every pool has a stream of moved entries").lock().segment
    }

    /// The next byte to hand out of a segment, if it is a shard's active one.
    pub fn active_tail(&self, index: u32) -> Option<u64> {
        self.active.iter().find_map(|active| {
            let active = active.lock();
            (active.segment == Some(index)).then_some(active.tail)
        })
    }

    /// Makes a half-filled segment the active one of its shard, if the shard has none and there is room behind `tail`.
    pub fn resume_segment(&self, index: u32, shard: u32, tail: u64) -> bool {
        let (cold, shards) = self.active.split_last().expect("every pool has a stream of moved entries");
        // There may be fewer shards than last time.
        let stream = if shard == u32::from(COLD_SHARD) { Some(cold) } else { shards.get(shard as usize) };
        let Some(active) = stream else { return false };
        let mut active = active.lock();
        // Whole lines: no line is shared with what was there before the restart.
        let tail = tail.next_multiple_of(64);
        let end = self.segment_end(index);
        if active.segment.is_some() || end.saturating_sub(tail) < self.chunk_bytes {
            return false;
        }
        self.segments[index as usize].set_state(SegmentState::Open);
        // As many as there are missing of what is kept: nobody remembers which.
        let for_deletes = shard != u32::from(COLD_SHARD) && self.is_kept_for_deletes();
        self.open_for_deletes.fetch_add(for_deletes.into(), Ordering::Relaxed);
        *active = Active { segment: Some(index), tail, end, for_deletes };
        true
    }

    fn segment_end(&self, segment: u32) -> u64 {
        self.pool.segment_offset(segment) + self.segment_bytes()
    }

    /// Opens a run of segments for one large entry.
    pub fn open_run(&self, log: &Log, parts: &Parts<'_>, shard: usize) -> Result<Chunk> {
        let run_len = parts.max_size().div_ceil(self.segment_bytes()) as u32;
        let index = self.open_segments(log, run_len, Purpose::of(parts, shard))?;
        let segment = &self.segments[index as usize];
        segment.open_chunks.fetch_add(1, Ordering::Relaxed);
        Ok(Chunk {
            segment: index,
            cursor: self.pool.segment_offset(index),
            end: self.pool.segment_offset(index) + u64::from(run_len) * self.segment_bytes(),
            generation: segment.generation.load(Ordering::Relaxed),
            base_version: segment.base_version.load(Ordering::Relaxed),
            keyspace: parts.keyspace,
            tally: Tally::EMPTY,
            seen: 0,
        })
    }

    /// A run is full as soon as its entry is written.
    pub fn close_run(&self, segment: u32, tally: &Tally) {
        let state = &self.segments[segment as usize];
        state.absorb(tally);
        state.set_state(SegmentState::Closed);
        state.open_chunks.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use crate::entry::Parts;
    use crate::{Flush, Log};
    use hither_pmem::CreateOptions;

    /// Regression: an entry that did not fit into the rest of a chunk left a gap there, though what follows was nobody's. Where entries took a little more than half a chunk, half of the
    /// space was lost until a collector came.
    #[test]
    fn entries_of_half_a_chunk_and_more_leave_no_gaps() {
        for value_bytes in [100, 600, 700, 1000, 3000] {
            let log = Log::for_tests(&CreateOptions { segment_bytes: 16 << 10, ..CreateOptions::new(1 << 20) });
            let value = vec![7; value_bytes];
            let put = |key: u64| {
                let (key, value) = (&key.to_ne_bytes(), value.as_slice());
                log.write_for_tests(Parts { key, value, keyspace: 1, ..Parts::EMPTY }, Flush::Now)
            };
            let count = (400 << 10) / value_bytes as u64;
            (0..count).for_each(|key| _ = put(key));
            let usage = &log.usage()[0];
            assert_eq!(usage.entries, count);
            // One that does not fit into a segment's end leaves less than its length there.
            let (in_use, gap) = (usage.open + usage.closed, value_bytes as u64 + 32);
            let least = usage.written_bytes + (in_use - 1) * gap;
            assert!((in_use - 1) * (16 << 10) <= least, "{value_bytes}: {in_use} segments for {} bytes", usage.written_bytes);
        }
    }

    /// What another thread took lies behind the chunk. Long entries have chunks of their own then, and short ones go on in theirs.
    #[test]
    fn long_entries_leave_no_gaps_beside_another_thread() {
        let log = Log::for_tests(&CreateOptions { segment_bytes: 16 << 10, ..CreateOptions::new(1 << 20) });
        let put = |key: u64, value_bytes: usize| {
            let (key, value) = (&key.to_ne_bytes(), &[7; 1000][..value_bytes]);
            crate::address::unpack(log.write_for_tests(Parts { key, value, keyspace: 1, ..Parts::EMPTY }, Flush::Now).0).offset
        };
        let by_another = |key| std::thread::scope(|scope| scope.spawn(|| put(key, 8)).join().expect("it has room"));
        let (short, others, long) = (put(1, 8), by_another(2), put(3, 1000));
        assert!(others >= short + 1024 && long > others, "each has a chunk: {short}, {others}, {long}");
        assert_eq!(put(4, 8), short + 32, "it goes on in its chunk");
        assert_eq!((put(5, 1000), put(6, 1000)), (long + 1088, long + 2 * 1088), "whole lines, one behind the other");
        assert_eq!(put(7, 8), short + 64);
    }
}
