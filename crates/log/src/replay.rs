//! Reading segments back.
//!
//! Replay accepts the states that a crash can leave (`docs/crash-model.md`) and nothing else. In a segment that was
//! open, any 8-byte-aligned place may be a hole or a torn entry, and scanning goes on behind it. A sealed segment must
//! hold exactly the entries that its descriptor counts.

use crate::address;
use crate::entry::{EntryView, Invalid, LivePair, MIN_BYTES};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::segment::Tally;
use hither_pmem::{Descriptor, Pool, SegmentState as OnMedia, Unreadable};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Flag in an active segment's descriptor: it counts what the segment held at the last clean close.
pub const TOTALS_RECORDED: u8 = 1;

/// A segment that holds entries, found at open.
#[derive(Clone, Copy, Debug)]
pub struct SegmentToScan {
    /// Node of its pool.
    pub node: u32,
    /// Number in the pool.
    pub index: u32,
    /// Its descriptor.
    pub descriptor: Descriptor,
}

/// The totals that a scan finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanTotals {
    /// Valid entries, dead ones included.
    pub entries: u64,
    /// Bytes of these entries.
    pub bytes: u64,
    /// Places that were neither zero nor a valid entry.
    pub torn: u64,
    /// Offset in the pool of the first of them.
    pub first_torn: u64,
    /// The part of the segment that could not be read.
    pub unreadable: Unreadable,
    /// Offset in the pool behind the last word that is not zero. (The last 24 bytes of a segment are not examined: no
    /// entry begins there.)
    pub tail: u64,
    /// Offset behind the space that torn entries would take if they were whole, as far as their heads are there.
    pub torn_end: u64,
}

impl ScanTotals {
    /// Where a segment may go on being filled after a crash.
    ///
    /// Not inside a torn entry: what is missing of it may be one byte, since no checksum covers the padding behind a
    /// value. One new entry in 256 would begin with that byte, make the torn entry whole, and be hidden in it from
    /// every later scan.
    fn resume_at(&self) -> u64 {
        self.tail.max(self.torn_end)
    }
}

/// The bytes of a pool from `offset` to `end`, up to which an entry there may extend.
fn tail_of(pool: &Pool, offset: u64, end: u64) -> &[u8] {
    debug_assert!(end <= pool.len_mapped() && offset <= end);
    // SAFETY: inside the mapping. Bytes of entries change only by a collector's DEAD mark, an aligned word that is
    // re-read whole. Behind the last entry of an open segment writers may be at work, and verification and sweeps read
    // there: a half-written entry that they meet fails its checksum, or is zero. Formally this is a data race; the
    // words are stored by atomics, and the bytes are used for nothing but that verdict.
    unsafe { std::slice::from_raw_parts(pool.base().add(offset as usize), (end - offset) as usize) }
}

/// The entry at `offset`, unverified: for references from the index.
pub fn entry_at(pool: &Pool, offset: u64) -> Option<EntryView<'_>> {
    EntryView::parse(tail_of(pool, offset, pool.len_mapped())).ok()
}

/// The entry at `offset` if its checksum is right.
pub fn verified_entry_at(pool: &Pool, offset: u64, generation: u64) -> Option<EntryView<'_>> {
    EntryView::verify(tail_of(pool, offset, pool.len_mapped()), generation, offset).ok()
}

/// The content of a segment (or run), and the offset in the pool at which it begins.
pub(crate) fn content_of(pool: &Pool, segment: u32, run_len: u32) -> (&[u8], u64) {
    let start = pool.segment_offset(segment);
    (tail_of(pool, start, start + u64::from(run_len.max(1)) * pool.segment_bytes()), start)
}

/// Calls `visit(offset, entry)` for every valid entry of a segment (or run) in order of position.
pub fn scan<'a>(pool: &'a Pool, segment: u32, descriptor: &Descriptor, mut visit: impl FnMut(u64, &EntryView<'a>)) -> ScanTotals {
    let mut walk = Walk::through(pool, segment, descriptor);
    while !walk.has_ended() {
        if let Some((offset, entry)) = walk.step() {
            visit(offset, &entry);
        }
    }
    walk.totals
}

/// Receives a segment's commonest entries apart from the others.
pub(crate) trait ReadApart<'a> {
    /// The error that ends the reading.
    type Error;
    /// Receives a valid pair at this offset in the pool, and its version minus the segment's base.
    fn pair(&mut self, offset: u64, version_delta: u64, pair: &LivePair) -> Result<(), Self::Error>;
    /// Receives any other valid entry.
    fn entry(&mut self, offset: u64, entry: &EntryView<'a>) -> Result<(), Self::Error>;
}

/// As [`scan`], which is the reference: passes the same entries in the same order. If `pairs`, passes the pairs apart,
/// in few instructions.
#[inline(always)]
pub(crate) fn scan_apart<'a, R: ReadApart<'a>>(
    pool: &'a Pool,
    segment: u32,
    descriptor: &Descriptor,
    pairs: bool,
    reader: &mut R,
) -> Result<ScanTotals, R::Error> {
    read_apart(Walk::through(pool, segment, descriptor), pairs, reader)
}

#[inline(always)]
fn read_apart<'a, R: ReadApart<'a>>(mut walk: Walk<'a>, pairs: bool, reader: &mut R) -> Result<ScanTotals, R::Error> {
    while !walk.has_ended() {
        if pairs && !walk.is_run {
            walk.pairs(reader)?;
        }
        if !walk.has_ended()
            && let Some((offset, entry)) = walk.step()
        {
            reader.entry(offset, &entry)?;
        }
    }
    Ok(walk.totals)
}

/// How many bytes ahead of a pair memory is prefetched.
const AHEAD: usize = 1024;

/// A segment that is being read.
struct Walk<'a> {
    bytes: &'a [u8],
    /// Offset of the segment in the pool.
    start: u64,
    generation: u64,
    is_run: bool,
    at: usize,
    /// The place before this one was torn, too.
    in_torn: bool,
    /// Present once torn bytes that look like long entries were met.
    registers: Option<torn::Registers>,
    totals: ScanTotals,
}

impl<'a> Walk<'a> {
    fn through(pool: &'a Pool, segment: u32, descriptor: &Descriptor) -> Walk<'a> {
        let (bytes, start) = content_of(pool, segment, descriptor.run_len);
        Walk::of(bytes, start, descriptor.generation, descriptor.run_len > 1)
    }

    fn of(bytes: &'a [u8], start: u64, generation: u64, is_run: bool) -> Walk<'a> {
        let totals = ScanTotals { tail: start, ..ScanTotals::default() };
        Walk { bytes, start, generation, is_run, at: 0, in_torn: false, registers: None, totals }
    }

    #[inline(always)]
    fn has_ended(&self) -> bool {
        // A run holds one entry, at its beginning: whatever lies behind it is not examined.
        self.at + MIN_BYTES as usize > self.bytes.len() || (self.is_run && self.at > 0)
    }

    /// Advances past what is here. Returns the entry and its offset if it is a valid one.
    #[inline(always)]
    fn step(&mut self) -> Option<(u64, EntryView<'a>)> {
        let offset = self.start + self.at as u64;
        // From the first torn place on, because zeros between torn words end a torn place, and the words of a value may
        // have zeros between them, too.
        if self.totals.torn > 0 && torn::is_no_long_entry(&mut self.registers, self.bytes, self.at, self.generation, offset) {
            self.pass_torn(offset);
            return None;
        }
        match EntryView::verify(&self.bytes[self.at..], self.generation, offset) {
            Ok(entry) => {
                self.pass_over(1, entry.size as usize);
                Some((offset, entry))
            }
            Err(Invalid::Empty) => {
                self.at = skip_zeros(self.bytes, self.at);
                self.in_torn = false;
                None
            }
            Err(_) => {
                self.pass_torn(offset);
                None
            }
        }
    }

    /// Advances past all the live pairs from here on.
    #[inline(always)]
    fn pairs<R: ReadApart<'a>>(&mut self, reader: &mut R) -> Result<(), R::Error> {
        const SIZE: usize = MIN_BYTES as usize;
        let (bytes, mut at) = (self.bytes, self.at);
        while let Some(words) = bytes.get(at..).and_then(|rest| rest.first_chunk::<SIZE>())
            && let Some((pair, version_delta)) = LivePair::verify(words, self.generation, self.start + at as u64)
        {
            // The processor's own prefetching ends at each page of 4 KiB. A hint is harmless beyond the mapping, too.
            hither_sync::prefetch_read(bytes.as_ptr().wrapping_add(at + AHEAD));
            reader.pair(self.start + at as u64, version_delta, &pair)?;
            at += SIZE;
        }
        let read = at - self.at;
        if read > 0 {
            self.pass_over((read / SIZE) as u64, read);
        }
        Ok(())
    }

    #[inline(always)]
    fn pass_over(&mut self, entries: u64, bytes: usize) {
        self.totals.entries += entries;
        self.totals.bytes += bytes as u64;
        self.at += bytes;
        self.totals.tail = self.start + self.at as u64;
        self.in_torn = false;
    }

    fn pass_torn(&mut self, offset: u64) {
        if !self.in_torn {
            self.totals.torn += 1;
            if self.totals.first_torn == 0 {
                self.totals.first_torn = offset;
            }
        }
        self.in_torn = true;
        if let Ok(torn) = EntryView::parse(&self.bytes[self.at..]) {
            self.totals.torn_end = self.totals.torn_end.max(offset + torn.size);
        }
        self.at += 8;
        self.totals.tail = self.start + self.at as u64;
    }
}

/// The next 8-byte-aligned position at or after `at` whose word is not zero.
fn skip_zeros(bytes: &[u8], mut at: usize) -> usize {
    while let Some(line) = bytes.get(at..at + 64) {
        if line.iter().any(|byte| *byte != 0) {
            break;
        }
        at += 64;
    }
    while bytes.get(at..at + 8).is_some_and(|word| word == [0; 8]) {
        at += 8;
    }
    at
}

/// The name of a pool in errors.
pub fn name_of(pool: &Pool, node: u32) -> String {
    pool.path().map_or_else(|| format!("of node {node}"), |path| path.display().to_string())
}

/// Compares a scan with the descriptor: everything must be readable, sealed segments must be whole, and so must open
/// ones if the store was closed cleanly (`clean`).
pub fn verify_totals(pool: &Pool, segment: &SegmentToScan, totals: &ScanTotals, clean: bool) -> Result<()> {
    let damaged = |what: String| Error::Damaged {
        pool: name_of(pool, segment.node),
        segment: segment.index,
        offset: if totals.first_torn != 0 { totals.first_torn } else { pool.segment_offset(segment.index) },
        what,
    };
    if totals.unreadable.is_any() {
        let (pool, offset) = (name_of(pool, segment.node), totals.unreadable.first);
        return Err(Error::Damaged { pool, segment: segment.index, offset, what: totals.unreadable.to_string() });
    }
    let d = &segment.descriptor;
    if d.state == OnMedia::Sealed && totals.torn > 0 {
        return Err(damaged(format!("{} places hold neither zeros nor a valid entry", totals.torn)));
    }
    let counted = d.state != OnMedia::Active || (clean && d.flags & TOTALS_RECORDED != 0);
    if counted && (d.entries, d.sealed_bytes) == UNKNOWN {
        return Err(damaged(String::from("a salvage has passed over damage here, and how much the segment should hold is not known")));
    }
    if counted && (totals.entries != u64::from(d.entries) || totals.bytes != d.sealed_bytes) {
        return Err(damaged(format!(
            "{} entries of {} bytes were found where {} of {} bytes were sealed",
            totals.entries, totals.bytes, d.entries, d.sealed_bytes
        )));
    }
    Ok(())
}

/// The totals of a segment of which a salvage knows only that something is missing. No segment holds as much.
const UNKNOWN: (u32, u64) = (u32::MAX, u64::MAX);

/// The descriptor under which a half-filled segment with damage is sealed: an open segment's damage would pass for torn
/// bytes after the next crash. Its totals are those of the last close, or unknown ones if it was written after that:
/// what is still readable may happen to agree with those of an earlier close.
fn sealed_as_damaged(found: &Descriptor, was_clean: bool) -> Descriptor {
    let recorded = was_clean && found.flags & TOTALS_RECORDED != 0;
    let (entries, sealed_bytes) = if recorded { (found.entries, found.sealed_bytes) } else { UNKNOWN };
    Descriptor { state: OnMedia::Sealed, flags: found.flags & !TOTALS_RECORDED, entries, sealed_bytes, ..*found }
}

impl Log {
    /// Scans one segment and counts its entries into the segment's state. Different segments may be scanned in
    /// parallel.
    pub fn scan_segment<'a>(&'a self, segment: &SegmentToScan, mut visit: impl FnMut(u64, u64, &EntryView<'a>)) -> ScanTotals {
        let pool = &self.pools[segment.node as usize];
        let mut tally = Tally::EMPTY;
        let unreadable = self.cover_unreadable(segment.node as usize, segment.index, segment.descriptor.run_len);
        let totals = scan(&pool.pool, segment.index, &segment.descriptor, |offset, entry| {
            let version = entry.version(segment.descriptor.base_version);
            tally.count(entry.op(), version, entry.size);
            visit(address::pack(segment.node, offset, entry.size), version, entry);
        });
        pool.segments[segment.index as usize].absorb(&tally);
        ScanTotals { unreadable, ..totals }
    }

    /// The keyspaces of all entries in these segments.
    pub fn keyspaces_in(&self, segments: &[SegmentToScan]) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for segment in segments {
            self.peek_segment(segment, |entry| {
                found.insert(entry.keyspace(segment.descriptor.keyspace));
            });
        }
        found
    }

    /// Calls `visit` for every entry of a segment, without counting anything. Call during recovery.
    pub fn peek_segment(&self, segment: &SegmentToScan, mut visit: impl FnMut(&EntryView<'_>)) {
        self.cover_unreadable(segment.node as usize, segment.index, segment.descriptor.run_len);
        scan(&self.pools[segment.node as usize].pool, segment.index, &segment.descriptor, |_, entry| visit(entry));
    }

    /// Counts an entry as garbage during recovery, when no writer slot is available.
    pub fn count_dead(&self, reference: u64, size: u64, tombstone: bool) {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        let segment = &pool.segments[pool.segment_index(at.offset)];
        segment.dead_bytes.fetch_add(size, Ordering::Relaxed);
        if tombstone {
            segment.tombstones.fetch_sub(1, Ordering::Relaxed);
            segment.tombstone_bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }

    /// Marks an entry dead on media (outside the checksum) and starts its write-back; a fence or sync must follow. An
    /// entry that is already marked is marked again: the process that marked it may have died before the mark was
    /// durable, and after a failed sync a file's page counts as clean.
    pub fn mark_dead_on_media(&self, reference: u64) {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize].pool;
        if let Some(entry) = entry_at(pool, at.offset) {
            pool.store_u64(at.offset, entry.dead_word());
            pool.flush(at.offset, 8);
        }
    }

    /// Excludes a segment from writing and collection because damage in it was found and passed over. Then the damaged
    /// bytes stay where a later salvage may know more, and every opening finds them. Call before [`Log::resume`].
    pub fn keep_damaged(&self, segment: &SegmentToScan) {
        let state = &self.pools[segment.node as usize].segments[segment.index as usize];
        state.damaged.store(true, Ordering::Relaxed);
        state.salvaged.store(true, Ordering::Relaxed);
    }

    /// Resumes open segments after recovery. For each shard, the emptiest segment that was open goes on being filled
    /// behind its last byte, and behind what is torn there ([`ScanTotals::torn_end`]). The other open ones are sealed as
    /// recovered, with what was found in them, and those with damage as `sealed_as_damaged` says.
    pub fn resume(&self, scanned: &[(SegmentToScan, ScanTotals)]) -> Result<()> {
        let mut open: Vec<_> = scanned.iter().filter(|(segment, _)| segment.descriptor.state == OnMedia::Active).collect();
        open.sort_by_key(|(segment, totals)| totals.tail - self.pools[segment.node as usize].pool.segment_offset(segment.index));
        for (segment, totals) in open {
            let pool = &self.pools[segment.node as usize];
            if pool.segments[segment.index as usize].salvaged.load(Ordering::Relaxed) {
                pool.pool.commit_descriptor(segment.index, &sealed_as_damaged(&segment.descriptor, pool.pool.was_clean()))?;
                continue;
            }
            if totals.torn > 0 {
                pool.segments[segment.index as usize].torn.store(true, Ordering::Relaxed);
            }
            if segment.descriptor.run_len > 1
                || !pool.resume_segment(segment.index, u32::from(segment.descriptor.shard), totals.resume_at())
            {
                pool.segments[segment.index as usize].torn.store(true, Ordering::Relaxed);
                pool.pool.commit_descriptor(segment.index, &pool.describe(segment.index, OnMedia::Recovered))?;
            }
        }
        Ok(())
    }
}

impl Log {
    /// Makes durable what a process left unflushed or unsynced when it crashed, because readers will take it for
    /// durable, and recovery marks other entries dead because of it.
    pub fn harden(&self, scanned: &[(SegmentToScan, ScanTotals)]) -> Result<()> {
        for (segment, totals) in scanned.iter().filter(|(segment, _)| segment.descriptor.state == OnMedia::Active) {
            let pool = &self.pools[segment.node as usize].pool;
            let start = pool.segment_offset(segment.index);
            // After an orderly close the last sync has succeeded. Damaged segments stay as they are.
            let is_kept = self.pools[segment.node as usize].segments[segment.index as usize].salvaged.load(Ordering::Relaxed);
            if !pool.was_clean() && !is_kept {
                pool.rewrite(start, totals.tail);
            }
            pool.flush(start, (totals.tail - start) as usize);
        }
        for pool in &self.pools {
            pool.pool.harden_metadata()?;
        }
        Ok(())
    }
}

mod check;
mod tables;
mod torn;
mod unreadable;

pub use check::CheckedSegment;
pub use unreadable::Looking;
pub(crate) use unreadable::Lookout;

#[cfg(test)]
mod tests;
