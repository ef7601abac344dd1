//! Appending: the path that every write takes.
//!
//! A [`Writer`] uses its thread's slot ([`super::slot`]), or a locked one that threads share.
//!
//! Thread safety: a writer stays on its thread, in one writer section.

use crate::address;
use crate::entry::{self, Op, Parts, Place};
use crate::error::Result;
use crate::hot::SAMPLE_EVERY;
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::{Chunk, Tally};
use crate::slot::{SlotLock, SlotUse};
use crate::victim::MovedEntries;
use hither_sync::epoch;
use std::sync::atomic::Ordering;

/// One operation's access to the log. Create it inside a writer section (`hither_sync::epoch::pin_writer`), and drop it
/// there. It stays on its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<hither_log::Writer<'static>>();
/// ```
pub struct Writer<'a> {
    pub(crate) log: &'a Log,
    pub(crate) pool: &'a NodePool,
    pub(crate) slot: SlotUse<'a>,
}

/// The right to write as long as this lives: with the thread's own slot, or with a locked one.
pub struct WriterGuard<'a> {
    /// Given to nobody as it is: an exchange with another one (`std::mem::swap`) would separate it from its lock.
    writer: Writer<'a>,
    _lock: Option<SlotLock<'a>>,
}

impl WriterGuard<'_> {
    /// The writer.
    #[inline(always)]
    pub fn lent(&mut self) -> Writer<'_> {
        self.writer.lent()
    }
}

/// When an appended entry's lines are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// At once; a fence must follow.
    Now,
    /// By the caller, with [`Writer::flush_range`] (batches: each line once).
    ByCaller,
    /// Later: the range is remembered for [`Log::flush_dirty`].
    Later,
}

/// How an entry is to be appended.
#[derive(Clone, Copy, Debug)]
pub struct Append {
    /// Hash of the key; determines the shard.
    pub hash: u64,
    /// When its lines are written back.
    pub flush: Flush,
}

impl Log {
    /// A writer on the current thread's node.
    #[inline(always)]
    pub fn writer(&self) -> WriterGuard<'_> {
        let node = self.local_node();
        self.writer_on(node)
    }

    /// As [`Log::writer`], in the writer section `pin`, if the thread owns a slot there and nobody keeps it frozen.
    /// Never waits, so it may be called before a latch is taken.
    #[inline(always)]
    pub fn own_writer(&self, pin: &epoch::Guard) -> Option<Writer<'_>> {
        let pool = self.local_pool();
        Some(Writer { log: self, pool, slot: pool.slots.own(pin.thread_number())? })
    }

    /// A writer on a given node.
    #[inline(always)]
    pub fn writer_on(&self, node: usize) -> WriterGuard<'_> {
        let pool = &self.pools[node];
        // While the thread's own slot is frozen, it uses the shared one: waiting here would make the freezing thread
        // wait for this section.
        let (slot, lock) = match pool.slots.own(epoch::thread_number()) {
            Some(own) => (own, None),
            None => {
                let lock = pool.slots.shared().lock();
                // SAFETY: the guard below drops the use before the lock, and lends it only.
                (unsafe { lock.slot_use() }, Some(lock))
            }
        };
        WriterGuard { writer: Writer { log: self, pool, slot }, _lock: lock }
    }
}

impl Writer<'_> {
    /// This writer for a call that needs it in memory: passing this one itself would put it there on every path.
    #[inline(always)]
    pub fn lent(&mut self) -> Writer<'_> {
        Writer { log: self.log, pool: self.pool, slot: self.slot.lent() }
    }

    /// Draws `count` consecutive new versions above `last`. Returns the first.
    #[inline(always)]
    pub fn draw_versions(&mut self, last: u64, count: u64) -> u64 {
        self.log.clock.draw(&mut self.slot.block, last, count)
    }

    /// Starts loading the lines to which the next `bytes` of appends with this hash go (a hint, so a KiB at most). A
    /// batch's stores would otherwise wait for memory between the batch's first entry and its fence.
    #[inline(always)]
    pub fn prefetch_room(&self, hash: u64, bytes: u64) {
        let at = self.pool.pool.base().wrapping_add(self.slot.chunks[self.log.shard_of(hash)].cursor as usize);
        for distance in (0..bytes.min(1024)).step_by(64) {
            hither_sync::prefetch_write(at.wrapping_add(distance as usize));
        }
    }

    /// The chunk for an entry with this hash and version: that of its shard or, if its key is hot, the one for hot
    /// entries.
    #[inline(always)]
    pub(crate) fn stream_of(&self, hash: u64, version: u64) -> usize {
        // A slot's versions are consecutive, so they serve as its count of appends.
        if version.is_multiple_of(SAMPLE_EVERY) {
            self.sample(hash);
        }
        self.chunk_of(hash)
    }

    /// Counts a key among the samples of hot keys, if there are such samples.
    #[inline(always)]
    pub(crate) fn sample(&self, hash: u64) {
        if self.log.separates_hot() {
            self.pool.hot.sample(hash);
        }
    }

    /// The chunk for an entry with this hash, whether it is sampled or not.
    #[inline(always)]
    pub(crate) fn chunk_of(&self, hash: u64) -> usize {
        // A key can be hot only if samples are taken.
        if self.pool.hot.is_hot(hash) { self.log.shards() } else { self.log.shard_of(hash) }
    }

    /// Appends an entry and starts its write-back. Returns its reference. Not durable before [`Writer::fence`] (or a
    /// sync).
    ///
    /// O(size). Fails only if no segment is available; then nothing was written.
    #[inline(always)]
    pub fn append(&mut self, parts: &Parts<'_>, how: Append) -> Result<u64> {
        let shard = self.stream_of(how.hash, parts.version);
        let chunk = &mut self.slot.chunks[shard];
        let place = chunk.place();
        let room = chunk.end - chunk.cursor;
        if parts.batch.is_none() {
            if room >= entry::MIN_BYTES
                && let Some(words) = parts.encode_plain(&place)
            {
                chunk.take(parts, entry::MIN_BYTES);
                return Ok(self.write_plain(shard, place.offset, &words, how.flush));
            }
        } else if room >= entry::MEMBER_BYTES
            && let Some(words) = parts.encode_plain_member(&place)
        {
            chunk.take(parts, entry::MEMBER_BYTES);
            return Ok(self.write_plain(shard, place.offset, &words, how.flush));
        }
        // A copy, so that the parts themselves need not be in memory.
        let copy = *parts;
        self.append_any(&copy, shard, how)
    }

    /// Writes an encoded entry into space that a chunk has given to it.
    #[inline(always)]
    pub(crate) fn write_plain<const N: usize>(&mut self, shard: usize, offset: u64, words: &[u64; N], flush: Flush) -> u64 {
        let size = 8 * N as u64;
        let pool = &self.pool.pool;
        let at = if flush == Flush::Now {
            // SAFETY: the chunk belongs to this slot alone, inside an active segment, and these bytes were never written
            // before.
            unsafe { pool.write_back_array(offset, words) }
        } else {
            // SAFETY: as above.
            unsafe { pool.write_array(offset, words) };
            self.finish(shard, offset, size, flush);
            self.pool.pool.base().wrapping_add(offset as usize)
        };
        // By the time this shard has its next turn, the line is loaded.
        hither_sync::prefetch_write(at.wrapping_add(64));
        address::pack(self.pool.node, offset, size)
    }

    #[inline(never)]
    fn append_any(&mut self, parts: &Parts<'_>, shard: usize, how: Append) -> Result<u64> {
        let is_run = parts.max_size() > self.pool.segment_bytes();
        // No shortcut for these: hot entries are garbage before a collector comes, and runs are never moved.
        let bare;
        let parts = if parts.shortcut != 0 && (is_run || shard == self.log.shards()) {
            bare = Parts { shortcut: 0, ..*parts };
            &bare
        } else {
            parts
        };
        if is_run {
            return self.append_run(parts, shard, how);
        }
        let mut size = parts.size(self.slot.chunks[shard].keyspace, self.slot.chunks[shard].base_version);
        let mut set_aside = None;
        if !self.slot.chunks[shard].fits(parts, size) {
            set_aside = self.refill(parts, shard)?;
            size = parts.size(self.slot.chunks[shard].keyspace, self.slot.chunks[shard].base_version);
        }
        let chunk = &mut self.slot.chunks[shard];
        debug_assert!(chunk.end - chunk.cursor >= size, "a refilled chunk holds the entry");
        let place = chunk.place();
        chunk.take(parts, size);
        self.write_entry(parts, (shard, &place), size, how.flush);
        if let Some(before) = set_aside {
            let own = std::mem::replace(&mut self.slot.chunks[shard], before);
            self.pool.give_back(&own);
        }
        Ok(address::pack(self.pool.node, place.offset, size))
    }

    /// Appends a value too large for a segment to a run of segments of its own.
    fn append_run(&mut self, parts: &Parts<'_>, shard: usize, how: Append) -> Result<u64> {
        let run = self.pool.open_run(self.log, parts, shard)?;
        if parts.op != Op::Delete {
            self.pool.owe_pause(self.log, run.end - run.cursor);
        }
        let size = parts.size(run.keyspace, run.base_version);
        let place = Place { generation: run.generation, base_version: run.base_version, keyspace: run.keyspace, offset: run.cursor };
        self.write_entry(parts, (shard, &place), size, how.flush);
        let mut tally = Tally::EMPTY;
        tally.count(parts.op, parts.version, size);
        self.pool.close_run(run.segment, &tally);
        Ok(address::pack(self.pool.node, place.offset, size))
    }

    fn write_entry(&mut self, parts: &Parts<'_>, (shard, place): (usize, &Place), size: u64, flush: Flush) {
        parts.with_head(place, |words| {
            let key_at = place.offset + 8 * words.len() as u64;
            let pool = &self.pool.pool;
            // SAFETY: [offset, offset + size) was reserved for this entry, inside an active segment, and never written
            // before.
            unsafe {
                pool.write_words(place.offset, words);
                pool.write(key_at, parts.key);
                pool.write(key_at + parts.key.len() as u64, parts.value);
            }
        });
        self.finish(shard, place.offset, size, flush);
    }

    #[inline(always)]
    fn finish(&mut self, shard: usize, offset: u64, size: u64, flush: Flush) {
        match flush {
            Flush::Now => self.pool.pool.flush(offset, size as usize),
            Flush::ByCaller => {}
            Flush::Later if self.pool.pool.needs_flush() => self.remember_dirty(shard, offset, size),
            Flush::Later => {}
        }
    }

    /// Starts the write-back of a range of this writer's pool.
    pub fn flush_range(&self, offset: u64, bytes: u64) {
        self.pool.pool.flush(offset, bytes as usize);
    }

    #[cold]
    fn remember_dirty(&mut self, shard: usize, offset: u64, size: u64) {
        // Before the entry is installed: a thread that finds the entry in the index also sees this.
        self.log.lags.store(true, Ordering::Relaxed);
        self.slot.dirty.add(shard, offset, size);
    }

    /// Makes room for `parts` in the shard's chunk: lengthens it, or takes another. For a long entry, which gets a
    /// chunk of its own, returns the previous chunk if it still has room for other entries, so that they go on there.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(&mut self, parts: &Parts<'_>, shard: usize) -> Result<Option<Chunk>> {
        let (taken, before) = match self.pool.extend_chunk(shard, &mut self.slot.chunks[shard], parts) {
            Some(more) => (more, None),
            None => self.replace_chunk(parts, shard)?,
        };
        if parts.op != Op::Delete {
            self.pool.owe_pause(self.log, taken);
        }
        Ok(before)
    }

    /// Takes another chunk for `parts` and returns its bytes. The previous chunk is given back, or returned.
    fn replace_chunk(&mut self, parts: &Parts<'_>, shard: usize) -> Result<(u64, Option<Chunk>)> {
        let before = std::mem::replace(&mut self.slot.chunks[shard], Chunk::NONE);
        // Not if the previous chunk's segment is closed: a closed segment is sealed only when its chunks are back.
        let goes_on = self.pool.is_long(parts) && self.pool.is_open(&before) && before.end - before.cursor >= entry::MIN_BYTES;
        if !goes_on {
            self.pool.give_back(&before);
        }
        let chunk = match self.pool.take_chunk(self.log, shard, parts) {
            Err(error) if error.is_lack_of_space() => self.pool.share_chunk(shard, parts).ok_or(error),
            taken => taken,
        };
        if goes_on && chunk.is_err() {
            self.slot.chunks[shard] = before;
        }
        let chunk = chunk?;
        let taken = chunk.end - chunk.cursor;
        self.slot.chunks[shard] = chunk;
        Ok((taken, goes_on.then_some(before)))
    }

    /// Orders everything appended with `flush` before everything that follows: the one fence of a write.
    #[inline(always)]
    pub fn fence(&self) {
        self.pool.pool.fence();
    }

    /// Starts loading the word that [`Writer::mark_dead`] is going to change for the entry behind `reference`: see
    /// [`Writer::past_of`].
    #[inline(always)]
    pub fn prefetch_mark(&self, reference: u64) {
        if reference != 0 {
            let at = address::unpack(reference);
            let pool = &self.log.pools[at.node as usize];
            pool.garbage.prefetch(at.offset - pool.data_offset);
        }
    }

    /// Notes that the entry behind `reference` is garbage, and shown by no snapshot. Touches no media.
    #[inline(always)]
    pub fn mark_dead(&mut self, reference: u64) {
        let at = address::unpack(reference);
        let pool = &self.log.pools[at.node as usize];
        let size = address::tagged_size(reference).unwrap_or_else(|| pool.entry_size(at.offset)) as u32;
        let segment = pool.segment_index(at.offset);
        pool.set_garbage(at.offset);
        self.slot.slot().dead[at.node as usize].add(segment, size, || pool.max_segments());
    }

    /// Counts the bytes of entries that a collector has moved.
    pub fn count_moved(&mut self, moved: MovedEntries<'_>) {
        moved.count_into(&self.slot.slot().dead);
    }

    /// Node whose pool this writer appends to.
    pub fn node(&self) -> u32 {
        self.pool.node
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use crate::Log;
    use hither_sync::epoch;

    /// Outside a section the owner of a slot is unknown: other threads may be inspecting it.
    #[test]
    #[should_panic(expected = "in a writer section only")]
    fn there_is_no_writer_outside_a_section() {
        let log = Log::for_tests(&hither_pmem::CreateOptions::new(1 << 20));
        let _reading = epoch::pin();
        log.writer();
    }
}
