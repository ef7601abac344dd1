//! The streams of a pool: the segment that each of them fills, and the chunks that writers and collectors take from it.
//!
//! There is a stream for each shard, one for hot entries of all shards, and one for moved entries. Where no segment is
//! available for a shard, it takes chunks of the segments that the others have open ([`share_segments`]): the shard of
//! an entry does not matter once it is written.
//!
//! A segment that a delete opens when puts may open none is reserved for deletes. Chunks there hold nothing but what
//! deletes write.
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

/// Calls `append`. While it runs, this thread's appends use segments that other shards have open where none can be
/// opened. For a last attempt, after an attempt to make space.
pub fn share_segments<T>(append: impl FnOnce() -> T) -> T {
    hither_sync::with_value(&SHARES, true, append)
}

/// Whether this thread is in [`share_segments`].
pub(crate) fn shares() -> bool {
    SHARES.get()
}

/// A shard's active segment.
pub(crate) struct Active {
    pub segment: Option<u32>,
    /// Next byte to hand out, as offset in the pool.
    pub tail: u64,
    pub end: u64,
    /// A delete opened this segment when puts could open none. It is reserved for deletes: where each delete is
    /// followed by a put, deletes would otherwise have no segment.
    pub for_deletes: bool,
}

impl Active {
    pub const NONE: Active = Active { segment: None, tail: 0, end: 0, for_deletes: false };
}

/// Entries longer than a chunk divided by this are long.
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

    /// Takes a chunk of the shard's active segment that has room for `parts`. Opens a new segment if need be.
    pub fn take_chunk(&self, log: &Log, shard: usize, parts: &Parts<'_>) -> Result<Chunk> {
        let fits = |segment: &Segment| crate::entry::version_fits(segment.base_version.load(Ordering::Relaxed), parts.version);
        self.take_chunk_for(&self.active[shard], log, Purpose::of(parts, shard), parts, fits)
    }

    /// Whether an entry is so long that a chunk of its own costs little beside it, while the unused rest of a shared
    /// chunk would be large.
    pub fn is_long(&self, parts: &Parts<'_>) -> bool {
        parts.max_size() > self.chunk_bytes / LONG_SHARE
    }

    /// Whether a chunk's segment is still being filled.
    pub fn is_open(&self, chunk: &Chunk) -> bool {
        !chunk.is_none() && self.segments[chunk.segment as usize].state() == SegmentState::Open
    }

    /// The least size of a chunk that is taken for `parts`: for a long entry only its own.
    fn least_chunk(&self, parts: &Parts<'_>) -> u64 {
        if self.is_long(parts) { 0 } else { self.chunk_bytes }
    }

    /// Lengthens a chunk of the shard until `parts` fits into it, if the space behind it in the segment is still free.
    /// Then no gap is left. Returns by how many bytes.
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
        // Whole lines: the next chunk begins with a line of its own.
        let least = if active.for_deletes { 0 } else { self.least_chunk(parts) };
        let tail = (chunk.cursor + size.max(least)).next_multiple_of(64).min(active.end);
        let end = if active.for_deletes { chunk.cursor + size } else { tail };
        // The chunk's tally is added to the segment, as if this were another chunk: a check of the live
        // bytes counts one chunk's size for each chunk in a writer's hands.
        self.segments[chunk.segment as usize].absorb(&std::mem::replace(&mut chunk.tally, Tally::EMPTY));
        let more = end - chunk.end;
        (active.tail, chunk.end) = (tail, end);
        Some(more)
    }

    /// As [`NodePool::take_chunk`], from another shard's active segment, if this thread may share and one has room.
    /// Never from the segment for moved entries: checkpoints recognise moved entries by it.
    #[cold]
    pub fn share_chunk(&self, shard: usize, parts: &Parts<'_>) -> Option<Chunk> {
        let shards = if shares() { &self.active[..self.active.len() - 1] } else { &[] };
        let (before, behind) = shards.split_at(shard.min(shards.len()));
        behind.iter().chain(before).find_map(|active| {
            let mut active = active.lock();
            let index = active.segment?;
            let base_version = self.segments[index as usize].base_version.load(Ordering::Relaxed);
            let fits = crate::entry::version_fits(base_version, parts.version) && self.admits(&mut active, parts);
            fits.then(|| self.carve(index, &mut active, parts, self.least_chunk(parts))).flatten()
        })
    }

    /// As [`NodePool::take_chunk`], for an entry that a collector moves. (A version below the base is no obstacle: it
    /// is written out in full.)
    ///
    /// # Errors
    /// If no segment is available. Also for an entry that takes a run, because runs are never moved: this happens if a
    /// tombstone turns out to be needed while its run is being emptied.
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
            // Given back, as a segment is closed when an entry does not fit: otherwise this rest's segment would never
            // be sealed.
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
                    return Err(self.nothing_for_puts(log));
                }
                // A collector fills its chunk without a gap and gives the rest back, so the chunk may be large.
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

    /// The error for a put where all that is left is kept for deletes.
    #[cold]
    fn nothing_for_puts(&self, log: &Log) -> Error {
        if self.disk_was_full() { self.pool.disk_full(self.segment_bytes()).into() } else { log.full_error() }
    }

    /// Whether the segment that was just opened is one that puts could not have opened. (In the smallest pools nothing
    /// is kept for deletes.)
    fn is_kept_for_deletes(&self) -> bool {
        self.reserve(Filler::Delete) > 0 && self.within_reach() < self.reserve_now(Filler::Put)
    }

    /// Whether `parts` may go to the active segment. A segment for deletes is for all again once there is room.
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

    /// Gives the rest of a chunk of moved entries back to its segment. If another chunk was taken behind it, leaves the
    /// rest to the next collector.
    pub fn return_cold_chunk(&self, log: &Log, chunk: &mut Chunk) {
        let mut active = self.active[log.shards() + 1].lock();
        let rest = chunk.cursor.next_multiple_of(64).min(chunk.end);
        if active.segment == Some(chunk.segment) && active.tail == chunk.end {
            active.tail = rest;
        } else if rest < chunk.end {
            // Under the lock of the active segment, so that the thread that closes it finds the rest.
            self.segments[chunk.segment as usize].absorb(&std::mem::replace(&mut chunk.tally, Tally::EMPTY));
            self.cold_rests.lock().push(Chunk { cursor: rest, ..*chunk });
            return;
        }
        drop(active);
        self.give_back(chunk);
    }

    /// Bytes left in the segment to which moved entries go now.
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
        // Chunks begin at lines. The rest of the line after a delete's chunk stays unused.
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

    /// Closes the active segments of the streams from `shard` on, and those of moved entries: later entries go to new
    /// ones.
    pub fn close_from(&self, shard: usize) {
        self.close(&self.active[shard..]);
        self.cold_rests.lock().drain(..).for_each(|rest| self.give_back(&rest));
    }

    /// Gives back the rests of collectors' chunks in segments that are no longer filled. Those segments cannot be
    /// sealed before, and perhaps no collector will go on there. Each such rest becomes a gap, unlike rests in the
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

    /// Closes the shards' active segments that have no room left. They are closed anyway when an entry does not fit.
    /// But the shard may get no entry for a long time, where other shards share its segment.
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

    /// The segment to which moved entries go now.
    pub fn segment_of_moved(&self) -> Option<u32> {
        self.active.last().expect("every pool has a stream of moved entries").lock().segment
    }

    /// The next byte to hand out from a segment, if it is a stream's active one.
    pub fn active_tail(&self, index: u32) -> Option<u64> {
        self.active.iter().find_map(|active| {
            let active = active.lock();
            (active.segment == Some(index)).then_some(active.tail)
        })
    }

    /// Makes a half-filled segment the active one of its shard, if the shard has none and there is room behind `tail`.
    pub fn resume_segment(&self, index: u32, shard: u32, tail: u64) -> bool {
        let (cold, shards) = self.active.split_last().expect("every pool has a stream of moved entries");
        // There may be fewer shards than at the last opening.
        let stream = if shard == u32::from(COLD_SHARD) { Some(cold) } else { shards.get(shard as usize) };
        let Some(active) = stream else { return false };
        let mut active = active.lock();
        // Whole lines: no line is shared with bytes from before the restart.
        let tail = tail.next_multiple_of(64);
        let end = self.segment_end(index);
        if active.segment.is_some() || end.saturating_sub(tail) < self.chunk_bytes {
            return false;
        }
        self.segments[index as usize].set_state(SegmentState::Open);
        // As many segments are marked for deletes as the reserve is short of: there is no record of which they were.
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

    /// Closes a run, which is full as soon as its entry is written.
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

    /// Regression: an entry that did not fit into the rest of a chunk left a gap there, although the space behind it
    /// was free. Where entries took a little more than half a chunk, half of the space was lost until a collector came.
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
            // An entry that does not fit into a segment's end leaves a gap shorter than itself there.
            let (in_use, gap) = (usage.open + usage.closed, value_bytes as u64 + 32);
            let least = usage.written_bytes + (in_use - 1) * gap;
            assert!((in_use - 1) * (16 << 10) <= least, "{value_bytes}: {in_use} segments for {} bytes", usage.written_bytes);
        }
    }

    /// Another thread's chunk lies behind this thread's. Long entries get chunks of their own then, and short ones go
    /// on in their chunk.
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
