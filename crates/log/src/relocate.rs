//! Moves entries: appends copies to a node's segments of moved entries.
//!
//! A copy keeps its source's expiry, has neither batch tag nor shortcut, and links to its source. So both are on the
//! key's chain for as long as the source's segment is in use.
//!
//! It keeps its source's version, too. A copy with a value gets the base of its segment instead if that is higher and
//! nothing can tell the two versions apart (`docs/adr/0024`): a version below the base would have to be written out.
//!
//! Not thread-safe: each collector has a relocator of its own, with a chunk of its own.
//!
//! Copies are gathered in DRAM and written around the caches when a batch is complete (Pacman, section 3.3). Nobody may
//! read a copy before [`Relocator::persist`]; one fence then covers all of them.

use crate::address;
use crate::chain::LinkRange;
use crate::entry::{EntryView, LivePair, MIN_BYTES, Op, Parts, Place, PlainPair};
use crate::error::Result;
use crate::log::Log;
use crate::node::NodePool;
use crate::segment::Chunk;
use std::sync::atomic::Ordering;

/// Initial capacity of the buffer for gathered copies.
const BUFFER_BYTES: usize = 16 << 10;

/// The bytes to which entries can be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveRoom {
    /// Bytes in whole segments.
    pub fresh: u64,
    /// Bytes in the segment to which moved entries go now. An entry that does not fit there leaves a gap.
    pub rest: u64,
}

impl MoveRoom {
    /// The most bytes that certainly fit.
    pub fn most(self) -> u64 {
        self.fresh.max(self.rest)
    }
}

/// The segment from which entries are moved.
#[derive(Clone, Copy)]
pub struct SourceSegment<'a> {
    /// Its content, and the offset in the pool at which that begins.
    pub(crate) bytes: &'a [u8],
    pub(crate) start: u64,
    pub(crate) base_version: u64,
    /// Keyspace of the entries that name no other.
    pub(crate) keyspace: u32,
    /// [`Log::generation_tag`] of every reference into it.
    pub(crate) generation_tag: u8,
    /// Whether its entries are themselves copies.
    pub(crate) is_cold: bool,
}

impl SourceSegment<'_> {
    /// The pair that was found at `source`, and its version.
    #[inline(always)]
    fn pair(&self, source: u64) -> Option<(LivePair, u64)> {
        let at = address::unpack(source).offset.wrapping_sub(self.start) as usize;
        let (pair, delta) = LivePair::again(self.bytes.get(at..)?.first_chunk()?);
        Some((pair, self.base_version + delta))
    }
}

/// Appends copies on one node.
pub struct Relocator<'a> {
    log: &'a Log,
    pool: &'a NodePool,
    chunk: Chunk,
    /// Copies that are not written yet; they are contiguous, from offset `start` in the pool on.
    buffer: Vec<u8>,
    start: u64,
    /// The value of [`Log::may_raise_versions`] before anything was found to be live: a version drawn since then may be
    /// that of a write that was not installed at that time.
    settled: u64,
    /// Copies in the chunk get at least this version.
    least: u64,
    /// Links that lead nowhere, and will lead nowhere while the chunk stays the same: none of them can come to lead
    /// into the chunk's segment.
    gone: LinkRange,
}

impl Log {
    /// The room on `node` to which a collector can move entries: free segments and those that can be added, and the
    /// rest of the segment to which moved entries go now.
    pub fn room_to_move(&self, node: usize) -> MoveRoom {
        let pool = &self.pools[node];
        MoveRoom { fresh: pool.within_reach() * pool.segment_bytes(), rest: pool.cold_rest(self) }
    }

    /// A relocator for `node`. The caller must find the entries that it copies to be live after this call.
    pub fn relocator(&self, node: usize) -> Relocator<'_> {
        Relocator {
            log: self,
            pool: &self.pools[node],
            chunk: Chunk::NONE,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            start: 0,
            settled: self.settled_for_copies(),
            least: 0,
            gone: LinkRange::EMPTY,
        }
    }

    /// Whether every version given out so far, except those below the base, fits into a segment with this base.
    pub(crate) fn reaches_up_to_now(&self, base_version: u64) -> bool {
        self.clock.upper_bound() <= base_version + u64::from(u32::MAX)
    }

    /// The last version passed to [`Log::may_raise_versions`].
    pub fn settled_for_copies(&self) -> u64 {
        self.settled_for_copies.load(Ordering::Acquire)
    }

    /// Applies to relocators created from now on: an entry with a version up to `settled` that is found to be live then
    /// may be copied with any other version up to `settled`. The caller guarantees that no write with such a version is
    /// to come and that every snapshot shows all of them (`docs/adr/0024`).
    pub fn may_raise_versions(&self, settled: u64) {
        self.settled_for_copies.fetch_max(settled, Ordering::Release);
    }
}

impl Relocator<'_> {
    /// Appends a copy of `entry`, which is at `source` and has this version and keyspace. Returns its reference. With
    /// `born_dead`, only readers that hold the reference will ever see the copy, and it has no link. The copy is
    /// written and durable after [`Relocator::persist`] (and, on files, a sync).
    ///
    /// # Errors
    /// If no segment is available; earlier copies stay valid.
    #[inline]
    pub fn append(&mut self, source: u64, entry: &EntryView<'_>, version: u64, keyspace: u32, born_dead: bool) -> Result<u64> {
        if !born_dead && let Some(copy) = self.append_pair(source, entry, version, keyspace) {
            return Ok(copy);
        }
        self.append_any(source, entry, version, keyspace, born_dead)
    }

    /// As [`Relocator::append`], for the entry at `source`, which was verified and has a value. Reads the entry again,
    /// mostly from the caches. Also returns its size.
    ///
    /// # Errors
    /// As [`Relocator::append`].
    #[inline(always)]
    pub fn append_again(&mut self, source: u64, version: u64, keyspace: u32) -> Result<(u64, u64)> {
        let entry = self.log.entry(source);
        Ok((self.append(source, &entry, version, keyspace, false)?, entry.size))
    }

    /// As [`Relocator::append_again`], for an entry that was read as a pair of this victim.
    ///
    /// # Errors
    /// As [`Relocator::append`].
    #[inline(always)]
    pub fn append_pair_again(&mut self, source: u64, victim: &SourceSegment<'_>) -> Result<(u64, u64)> {
        if let Some((pair, version)) = victim.pair(source)
            && let Some(copy) = self.append_words(source, (victim.generation_tag, victim.is_cold), pair, version, victim.keyspace)
        {
            return Ok((copy, MIN_BYTES));
        }
        self.append_pair_elsewhere(source, victim)
    }

    #[cold]
    fn append_pair_elsewhere(&mut self, source: u64, victim: &SourceSegment<'_>) -> Result<(u64, u64)> {
        let entry = self.log.entry(source);
        let copy = self.append_any(source, &entry, entry.version(victim.base_version), victim.keyspace, false)?;
        Ok((copy, entry.size))
    }

    /// Appends a pair of eight bytes each in few instructions, if the entry is one and the chunk has room.
    #[inline(always)]
    fn append_pair(&mut self, source: u64, entry: &EntryView<'_>, version: u64, keyspace: u32) -> Option<u64> {
        let (key, value) = (entry.key.try_into().ok()?, entry.value.try_into().ok()?);
        if entry.op() == Op::Delete || entry.expiry_ms() != 0 {
            return None;
        }
        let parent = address::with_generation(entry.parent(), entry.parent_generation());
        let pair = LivePair { key: u64::from_ne_bytes(key), value: u64::from_ne_bytes(value), parent };
        self.append_words(source, (self.log.generation_tag(source), self.log.is_copy(source)), pair, version, keyspace)
    }

    /// `of_source`: the generation tag of the source's segment, and whether the source is a copy.
    #[inline(always)]
    fn append_words(&mut self, source: u64, of_source: (u8, bool), pair: LivePair, version: u64, keyspace: u32) -> Option<u64> {
        let (parent_generation, is_copy) = of_source;
        if self.chunk.end - self.chunk.cursor < MIN_BYTES {
            return None;
        }
        // In a circle every link leads somewhere. Mostly this one leads nowhere, and the place need not be checked.
        if is_copy && !self.leads_nowhere(pair.parent) {
            return None;
        }
        let LivePair { key, value, .. } = pair;
        let version = version.max(self.least);
        let pair = PlainPair { op: Op::Insert, key, value, version, parent: source, parent_generation, keyspace };
        let words = pair.encode(&self.next_place())?;
        let offset = self.chunk.cursor;
        if self.buffer.is_empty() {
            self.start = offset;
        }
        self.chunk.cursor += MIN_BYTES;
        self.chunk.tally.count(Op::Insert, version, MIN_BYTES);
        let mut bytes = [0; MIN_BYTES as usize];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        self.buffer.extend_from_slice(&bytes);
        Some(address::pack(self.pool.node, offset, MIN_BYTES))
    }

    /// Whether a link, with its generation byte, leads to a segment that is gone. Entries that are copied one after the
    /// other mostly were copied together before, so one lookup serves all of them.
    #[inline(always)]
    fn leads_nowhere(&mut self, link: u64) -> bool {
        self.gone.contains(link) || self.look_where_it_leads(link)
    }

    #[inline(never)]
    fn look_where_it_leads(&mut self, link: u64) -> bool {
        let found = self.log.link(link, address::generation_tag(link));
        if found.is_none() {
            self.gone = self.log.links_beside(link);
        }
        found.is_none()
    }

    /// The place of the next copy, if the chunk has room for it.
    #[inline(always)]
    fn next_place(&self) -> Place {
        self.chunk.place()
    }

    #[inline(never)]
    fn append_any(&mut self, source: u64, entry: &EntryView<'_>, version: u64, keyspace: u32, born_dead: bool) -> Result<u64> {
        let parent = if born_dead { 0 } else { source };
        let mut parts = Parts {
            op: if entry.op() == Op::Delete { Op::Delete } else { Op::Insert },
            key: entry.key,
            value: entry.value,
            version,
            parent,
            parent_generation: self.log.generation_tag(parent),
            keyspace,
            expiry_ms: entry.expiry_ms(),
            batch: None,
            // A moved entry is cold, and likely to stay where it is from then on.
            shortcut: 0,
            frees: false,
        };
        let size = self.find_place(&mut parts)?;
        let place = self.next_place();
        self.chunk.take(&parts, size);
        if self.buffer.is_empty() {
            self.start = place.offset;
        }
        self.gather(&parts, &place, born_dead);
        debug_assert_eq!(self.start + self.buffer.len() as u64, place.offset + size, "copies lie one behind the other");
        Ok(address::pack(self.pool.node, place.offset, size))
    }

    /// Finds a place that has room for the copy, and a version for that place. Returns the copy's size.
    fn find_place(&mut self, parts: &mut Parts<'_>) -> Result<u64> {
        loop {
            // Never for a tombstone: perhaps the index has nothing for its key because of a later delete, which may not
            // be durable.
            if parts.op != Op::Delete {
                parts.version = parts.version.max(self.least);
            }
            let size = parts.size(self.chunk.keyspace, self.chunk.base_version);
            if self.chunk.is_none() || self.chunk.end - self.chunk.cursor < size {
                self.write_out();
                // The chunk is not given up with a gap: the space behind it in its segment may be free, and then the
                // next chunk begins at its rest. So everything that a segment held fits into one.
                self.pool.return_cold_chunk(self.log, &mut std::mem::replace(&mut self.chunk, Chunk::NONE));
                let most = if parts.op == Op::Delete { parts.version } else { parts.version.max(self.settled) };
                self.chunk = self.pool.take_cold_chunk(self.log, &Parts { version: most, ..*parts })?;
                let base = self.chunk.base_version;
                self.least = if base <= self.settled { base } else { 0 };
                self.gone = LinkRange::EMPTY;
            } else if self.would_close_a_circle(parts.parent) {
                self.write_out();
                self.chunk.cursor += MIN_BYTES;
            } else {
                return Ok(size);
            }
        }
    }

    /// Whether the copy at `source`, or a copy that it was made from, remembers the next place as that of its own
    /// source. A copy of it there would close a circle.
    fn would_close_a_circle(&self, source: u64) -> bool {
        // An entry that is not a copy links to an older version only.
        self.log.is_copy(source) && self.log.remembers(source, (self.pool.node, self.chunk.cursor), self.chunk.generation as u8)
    }

    fn gather(&mut self, parts: &Parts<'_>, place: &Place, born_dead: bool) {
        let end = self.buffer.len() + parts.size(place.keyspace, place.base_version) as usize;
        let mut push = |words: &[u64]| words.iter().for_each(|word| self.buffer.extend_from_slice(&word.to_le_bytes()));
        if born_dead {
            let mut head = parts.encode_head(place);
            head.mark_dead();
            push(head.words());
        } else {
            parts.with_head(place, push);
        }
        self.buffer.extend_from_slice(parts.key);
        self.buffer.extend_from_slice(parts.value);
        // Padding up to the next entry.
        self.buffer.resize(end, 0);
    }

    /// Writes the copies gathered so far around the caches.
    fn write_out(&mut self) {
        if !self.buffer.is_empty() {
            // SAFETY: the chunk belongs to this relocator alone, inside an active segment; these bytes of it were given
            // to the gathered copies and never written.
            unsafe { self.pool.pool.write_streaming(self.start, &self.buffer) };
            self.buffer.clear();
        }
    }

    /// Makes the marks made on this node durable.
    pub fn fence(&self) {
        self.pool.pool.fence();
    }

    /// Writes the appended copies, and fences.
    pub fn persist(&mut self) {
        self.write_out();
        self.pool.pool.fence();
    }
}

impl Drop for Relocator<'_> {
    fn drop(&mut self) {
        self.persist();
        if !self.chunk.is_none() {
            self.pool.return_cold_chunk(self.log, &mut self.chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flush;
    use crate::opening::{Filler, Purpose};
    use crate::segment::SegmentState;
    use hither_pmem::CreateOptions;
    use hither_sync::epoch;
    use std::sync::atomic::Ordering;

    const KEYSPACE: u32 = 1;

    fn put(log: &Log, key: &[u8; 8], value: &[u8]) -> u64 {
        log.write_for_tests(Parts { key, value, keyspace: KEYSPACE, ..Parts::EMPTY }, Flush::Now).0
    }

    fn segment_of(log: &Log, reference: u64) -> u32 {
        log.segment_of(reference).1
    }

    /// Frees a segment and reopens it until the next opening gives its generation the low byte that it has now.
    fn use_again(log: &Log, index: u32) {
        let pool = &log.pools[0];
        let free = || {
            let _section = epoch::pin_writer();
            pool.segments[index as usize].set_state(SegmentState::Free);
            pool.pool.zero_segment(index, 1).expect("memory");
            pool.add_free(index);
        };
        free();
        for _ in 0..255 {
            let purpose = Purpose { keyspace: KEYSPACE, shard: 0, kind: Filler::Move, version: u64::MAX };
            assert_eq!(pool.open_segments(log, 1, purpose).expect("room"), index, "the lowest free one");
            free();
        }
    }

    /// Regression: where a pass had been given up, its victim's copy remembered the place of its source, and was copied
    /// to that very place once its segment's generation had the same low byte again. Each of the two copies then passed
    /// for the copy of the other: a walk marked both dead, including the current one, and after an interrupted pass it
    /// ran for ever.
    #[test]
    fn a_copy_does_not_go_where_its_source_remembers_its_own() {
        for value in [&b"a value!"[..], b"a value that makes no pair"] {
            let log = Log::for_tests(&CreateOptions { segment_bytes: 4096, ..CreateOptions::new(1 << 20) });
            let first = put(&log, b"one key!", value);
            let tag = log.generation_tag(first);
            log.pools[0].close_from(0);
            log.fold_slots(crate::TakeBack::All);
            let second = log.copy_for_tests(first);
            use_again(&log, segment_of(&log, first));
            let third = log.copy_for_tests(second);
            assert_eq!((segment_of(&log, third), log.generation_tag(third)), (segment_of(&log, first), tag), "as it was meant to be");
            assert!(log.is_copy_of(third, second) && !log.is_copy_of(second, third));
            assert_eq!(log.entry(third).value, value);
            // The ancestors that an interrupted pass over the middle copy would bury: none that is newer.
            assert_eq!(log.bury_ancestors(0, segment_of(&log, second), true).marked, 0);
            assert!(!log.entry(third).is_dead());
            assert_eq!(log.bury_ancestors(0, segment_of(&log, third), true).marked, 1);
            assert!(log.entry(second).is_dead() && !log.entry(third).is_dead());
            let totals = log.visit_segment(0, segment_of(&log, third), |_, _, _, _| ());
            assert_eq!((totals.entries, log.pools[0].segments[segment_of(&log, third) as usize].entries.load(Ordering::Relaxed)), (1, 1));
        }
    }

    /// A link led nowhere in the previous chunk, and its segment was then opened for this one: it is looked up again.
    #[test]
    fn what_led_nowhere_before_may_close_a_circle_in_the_next_segment() {
        const VALUE: &[u8] = b"a value!";
        let log = Log::for_tests(&CreateOptions { segment_bytes: 4096, ..CreateOptions::new(1 << 20) });
        let [_, second, last] = [b"first in", b"second i", b"last key"].map(|key| put(&log, key, VALUE));
        let tag = log.generation_tag(second);
        log.pools[0].close_from(0);
        log.fold_slots(crate::TakeBack::All);
        let other = put(&log, b"another ", VALUE);
        let append = |relocator: &mut Relocator<'_>, source| {
            let entry = log.entry(source);
            relocator.append(source, &entry, log.version_of(source, &entry), KEYSPACE, false).expect("room")
        };
        let mut relocator = log.relocator(0);
        let copies = [last, other, second].map(|source| append(&mut relocator, source));
        drop(relocator);
        log.pools[0].close_from(0);

        let mut relocator = log.relocator(0);
        let filler = append(&mut relocator, other);
        use_again(&log, segment_of(&log, second));
        (2..4096 / MIN_BYTES).for_each(|_| _ = append(&mut relocator, other));
        let copies_of_copies = copies.map(|copy| append(&mut relocator, copy));
        drop(relocator);
        assert_eq!(segment_of(&log, copies_of_copies[0]), segment_of(&log, filler), "the last place there");
        for copy in &copies_of_copies[1..] {
            assert_eq!((segment_of(&log, *copy), log.generation_tag(*copy)), (segment_of(&log, second), tag), "the first life's twin");
        }
        for (copy, source) in copies_of_copies.into_iter().zip(copies) {
            assert!(log.is_copy_of(copy, source) && !log.is_copy_of(source, copy));
        }
    }

    /// Regression: a collector left a rest of its chunk in a segment that another collector had filled and thereby
    /// closed. The rest waited for the next collector, but none came, because nothing else was worth a pass.
    #[test]
    fn a_closed_segment_is_sealed_though_a_collector_left_a_rest_there() {
        let log = Log::for_tests(&CreateOptions { segment_bytes: 4096, ..CreateOptions::new(1 << 20) });
        let source = put(&log, b"one key!", b"a value!");
        let append = |relocator: &mut Relocator<'_>| {
            let entry = log.entry(source);
            relocator.append(source, &entry, log.version_of(source, &entry), KEYSPACE, true).expect("room")
        };
        let (mut slow, mut quick) = (log.relocator(0), log.relocator(0));
        let copy = append(&mut slow);
        let shared = segment_of(&log, copy);
        let mut copies = vec![copy];
        while copies.last().is_some_and(|copy| segment_of(&log, *copy) == shared) {
            copies.push(append(&mut quick));
        }
        drop((slow, quick));
        let segment = &log.pools[0].segments[shared as usize];
        assert_eq!((segment.state(), segment.open_chunks.load(Ordering::Relaxed)), (SegmentState::Closed, 1), "as it was meant to be");
        {
            let _section = epoch::pin_writer();
            let mut guard = log.writer();
            let mut writer = guard.lent();
            copies.iter().for_each(|copy| writer.mark_dead(*copy));
        }
        log.seal(&|_| Ok(()), crate::TakeBack::All).expect("memory");
        log.settle(&|_| Ok(())).expect("memory");
        assert_eq!(segment.state(), SegmentState::Sealed);
        let found = log.candidates(crate::Tombstones::Swept, |_| true);
        assert!(found.iter().any(|candidate| candidate.index == shared && candidate.live == 0), "{found:?}");
    }
}
