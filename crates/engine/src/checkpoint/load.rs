//! Loading a checkpoint into empty indexes, in parallel.
//!
//! A reference counts if its segment is in use with the generation that the checkpoint lists. Entries of other
//! references were superseded or moved after the reference was copied; what came after them is scanned.
//!
//! References into segments that are scanned anyway are not loaded but remembered ([`Loaded::names`]). Of the entries
//! up to S in such a segment, the scan installs those that are remembered. So all that an index holds of a scanned
//! segment was installed by the scan.
//!
//! The bytes of the references that count are the live bytes of each segment, so the accounting is as exact as after a
//! scan.
//!
//! Whatever does not fit (damage, an older pool, a block that does not verify) makes the whole checkpoint void: the
//! caller throws the indexes away and scans.
//!
//! Thread safety: runs while a store is opened; the threads that it starts share the indexes. Crash: nothing is changed
//! on media.

use super::blocks::{self, Order};
use super::format::{BlockKind, BlockRow, HEADER_BYTES, Header, Index as Tables, KeyspaceRow, TRAILER_BYTES, Trailer, checksum};
use super::store::CheckpointImage;
use crate::keyspace::{AnyIndex, Keyspace, Kind};
use crate::resolver::{LogResolver, Wary};
use hither_index::hash::image::Images;
use hither_index::{Hasher, OrderedIndex, PieceSource, Ref, Resolver, SortedPiece};
use hither_log::VERSION_BITS;
use hither_log::replay::{SegmentToScan, TOTALS_RECORDED};
use hither_log::{COLD_SHARD, Covered, Log, Placement, SegmentRow};
use hither_pmem::SegmentState;
use hither_sync::epoch;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A checkpoint whose header and tables are sound.
pub(crate) struct Saved {
    pub header: Header,
    pub tables: Tables,
    pub bytes: u64,
    image: Box<dyn CheckpointImage>,
}

impl Saved {
    /// Reads header, trailer and index.
    pub fn read(image: Box<dyn CheckpointImage>) -> Result<Saved, String> {
        let bytes = image.bytes();
        if bytes < (HEADER_BYTES + TRAILER_BYTES) as u64 {
            return Err("it is cut off".into());
        }
        let read = |offset: u64, out: &mut [u8]| image.read_at(offset, out).map_err(|error| error.to_string());
        let (mut header, mut trailer) = ([0; HEADER_BYTES], [0; TRAILER_BYTES]);
        read(0, &mut header)?;
        read(bytes - TRAILER_BYTES as u64, &mut trailer)?;
        let header = Header::decode(&header)?;
        let trailer = Trailer::decode(&trailer, bytes)?;
        let mut index = vec![0; trailer.index_bytes];
        read(trailer.index_offset, &mut index)?;
        let tables = Tables::decode(&trailer, &index)?;
        if tables.newest_version < header.version || tables.newest_version >= 1 << VERSION_BITS {
            return Err("it names versions that were never given out".into());
        }
        Ok(Saved { header, tables, bytes, image })
    }
}

/// What recovery has to know about a checkpoint that was loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Everything up to this version is in the indexes (S).
    pub version: u64,
    /// The store was closed cleanly with it: nothing needs to be scanned.
    pub clean: bool,
    /// Segments that need no scan.
    pub covered: Covered,
    /// The same segments, as the checkpoint lists them.
    pub rows: Vec<SegmentRow>,
    /// Those among them that were open at a clean close.
    pub open: Vec<(SegmentToScan, SegmentRow)>,
    pub newest_version: u64,
    pub newest_keyspace: u32,
    /// Keys loaded.
    pub keys: u64,
    pub bytes: u64,
    named: Named,
}

impl Loaded {
    /// Whether a segment needs no scan.
    pub fn covers(&self, segment: &SegmentToScan) -> bool {
        self.covered.get(&(segment.node, segment.index)) == Some(&segment.descriptor.generation)
    }

    /// Whether the checkpoint refers to this entry of a segment that is scanned.
    pub fn names(&self, reference: u64) -> bool {
        self.named.contains(reference)
    }

    /// Whether the indexes have the entries of an uncovered segment up to this checkpoint's version, as far as those
    /// entries count. They do not have what the collector moved: its copies carry old versions.
    pub fn knows(&self, segment: &SegmentToScan, version: u64) -> bool {
        version <= self.version && segment.descriptor.shard != COLD_SHARD
    }
}

/// References into segments that are scanned: one bit for each place where an entry may begin.
#[derive(Debug)]
struct Named {
    placement: Placement,
    /// By segment; empty where nothing is remembered.
    bits: Vec<Box<[AtomicU64]>>,
}

impl Named {
    fn new(placement: Placement, bytes: impl Fn(usize) -> u64) -> Named {
        let words = |segment| (0..bytes(segment).div_ceil(8 * 64)).map(|_| AtomicU64::new(0)).collect();
        Named { bits: (0..placement.segments()).map(words).collect(), placement }
    }

    /// The word and the bit of a reference.
    fn place(&self, reference: u64) -> Option<(&AtomicU64, u64)> {
        let (segment, offset) = self.placement.place(reference)?;
        self.bits[segment].get((offset / (8 * 64)) as usize).map(|word| (word, 1 << (offset / 8 % 64)))
    }

    fn insert(&self, reference: u64) {
        if let Some((word, bit)) = self.place(reference) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn contains(&self, reference: u64) -> bool {
        self.place(reference).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}

/// What becomes of references into a segment.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// Those references do not count: the segment has another generation, or is free.
    Stale,
    /// They are remembered: the segment is scanned.
    Remembered,
    Loaded,
}

/// Decides which references count, and sums the bytes of those that were admitted, by segment.
struct Sieve<'a> {
    log: &'a Log,
    placement: &'a Placement,
    fates: &'a [Fate],
    named: &'a Named,
    live: Vec<u64>,
}

impl Sieve<'_> {
    #[inline(always)]
    fn admit(&mut self, reference: Ref) -> bool {
        match self.placement.of(reference.0) {
            Some(segment) if self.fates[segment] == Fate::Loaded => {
                self.live[segment] += self.log.size_to_load(reference.0);
                true
            }
            Some(segment) if self.fates[segment] == Fate::Remembered => {
                self.named.insert(reference.0);
                false
            }
            _ => false,
        }
    }
}

/// A load under way.
struct Loader<'a> {
    saved: &'a Saved,
    log: &'a Log,
    placement: Placement,
    fates: Vec<Fate>,
    named: Named,
    threads: usize,
    /// Live bytes by segment, added up when a thread has finished.
    live: Mutex<Vec<u64>>,
    failure: Mutex<Option<String>>,
}

/// Whether a pool is a copy from before the end of the checkpoint. The checkpoint may then name entries that the pool
/// does not have.
fn is_newer(saved: &Saved, log: &Log) -> bool {
    (0..log.nodes()).any(|node| log.pool(node).settled() < saved.tables.newest_version)
}

/// Returns a description of a segment that was in use when the checkpoint was taken and of which the pool has no
/// record at all. Such a segment was not freed: its descriptor is gone. A scan would take it for a fresh one, find
/// nothing missing, and have it written over.
pub(crate) fn lost_segment(saved: &Saved, log: &Log) -> Option<String> {
    if is_newer(saved, log) || saved.header.store_uuid != log.pool(0).superblock().store_uuid {
        return None;
    }
    let there = |row: &&SegmentRow| (row.node as usize) < log.nodes() && row.index < log.pool(row.node as usize).segment_count();
    let lost = saved.tables.segments.iter().filter(there).find(|row| !log.pool(row.node as usize).was_used(row.index))?;
    let place = log.pool_name(lost.node as usize);
    // The checkpoint does not list how many entries other segments held.
    let held = if lost.covered { format!("held {} entries", lost.entries) } else { "was in use".to_owned() };
    Some(format!(
        "pool {place} is damaged: segment {} {held} when the checkpoint of the indexes was taken, and its descriptor is blank now",
        lost.index
    ))
}

/// Loads `saved` into the indexes of `keyspaces`, which are empty and hash with the checkpoint's seed. `clean`: all
/// pools were closed cleanly.
pub(crate) fn load(
    saved: &Saved,
    log: &Log,
    keyspaces: &[Arc<Keyspace>],
    segments: &[SegmentToScan],
    threads: usize,
    clean: bool,
) -> Result<Loaded, String> {
    if is_newer(saved, log) {
        return Err("it is newer than the pools".into());
    }
    if saved.header.version < log.pool(0).oldest_checkpoint() {
        return Err("it is older than another one that was there since".into());
    }
    let rows: HashMap<(u32, u32), &SegmentRow> = saved.tables.segments.iter().map(|row| ((row.node, row.index), row)).collect();
    let placement = log.placement();
    let mut fates = vec![Fate::Stale; placement.segments()];
    let (mut covered, mut open) = (Vec::new(), Vec::new());
    for segment in segments {
        let row = rows.get(&(segment.node, segment.index)).filter(|row| row.generation == segment.descriptor.generation);
        let Some(&&row) = row else { continue };
        fates[placement.number(segment.node, segment.index)] = Fate::Remembered;
        if !log.is_tail(&row) {
            return Err(format!(
                "writing would go on at byte {} of a pool, which is no place behind the entries of segment {}",
                row.tail, row.index
            ));
        }
        if row.covered && same_totals(segment, &row) {
            covered.push(row);
            if segment.descriptor.state == SegmentState::Active {
                open.push((*segment, row));
            }
        }
    }
    // A segment that was open may have been written to since. After an orderly close its totals would show it. Torn
    // bytes behind its entries are in no total, so a segment that has some records none.
    let told = |segment: &SegmentToScan| clean && segment.descriptor.flags & TOTALS_RECORDED != 0;
    let doubtful = |row: &SegmentRow| open.iter().any(|(segment, open)| !told(segment) && (open.node, open.index) == (row.node, row.index));
    covered.retain(|row| !doubtful(row));
    open.retain(|(segment, _)| told(segment));
    let complete = clean && saved.header.is_final && covered.len() == segments.len() && rows.len() == segments.len();
    covered.iter().for_each(|row| fates[placement.number(row.node, row.index)] = Fate::Loaded);
    let segment_bytes = (0..log.nodes()).map(|node| log.pool(node).segment_bytes()).max().unwrap_or(0);
    let named = Named::new(placement.clone(), |segment| if fates[segment] == Fate::Remembered { segment_bytes } else { 0 });
    let live = Mutex::new(vec![0; placement.segments()]);
    let loader = Loader { saved, log, placement, fates, named, threads: threads.max(1), live, failure: Mutex::new(None) };
    let keys = loader.keyspaces(keyspaces)?;
    let live = loader.live.into_inner();
    for row in &covered {
        log.restore_segment(row, live[loader.placement.number(row.node, row.index)]);
    }
    Ok(Loaded {
        version: saved.header.version,
        clean: complete,
        covered: covered.iter().map(|row| ((row.node, row.index), row.generation)).collect(),
        rows: covered,
        open,
        newest_version: saved.tables.newest_version,
        newest_keyspace: saved.tables.keyspaces.iter().map(|row| row.id).max().unwrap_or(0),
        keys,
        bytes: saved.bytes,
        named: loader.named,
    })
}

/// Whether a descriptor holds the same totals as the checkpoint does for its segment.
fn same_totals(segment: &SegmentToScan, row: &SegmentRow) -> bool {
    segment.descriptor.entries == row.entries && segment.descriptor.sealed_bytes == row.written_bytes
}

impl Loader<'_> {
    fn keyspaces(&self, keyspaces: &[Arc<Keyspace>]) -> Result<u64, String> {
        let (mut from, mut keys) = (0, 0);
        for row in &self.saved.tables.keyspaces {
            let blocks = &self.saved.tables.blocks[from..from + row.blocks as usize];
            from += row.blocks as usize;
            // Other keyspaces were dropped since.
            if let Some(keyspace) = keyspaces.iter().find(|keyspace| keyspace.info.id == row.id) {
                self.keyspace(keyspace, row, blocks)?;
                keys += keyspace.len() as u64;
            }
        }
        Ok(keys)
    }

    fn keyspace(&self, keyspace: &Keyspace, row: &KeyspaceRow, blocks: &[BlockRow]) -> Result<(), String> {
        if row.kind != if keyspace.info.kind == Kind::Ordered { 1 } else { 2 } {
            return Err(format!("it takes keyspace \"{}\" for one of another kind", keyspace.info.name));
        }
        if row.has_expiry {
            keyspace.expiries.found();
        }
        match &*keyspace.index {
            AnyIndex::Ordered(index) => self.ordered(index, blocks, keyspace.hasher(), false)?,
            AnyIndex::Learned(index) => self.ordered(index, blocks, keyspace.hasher(), true)?,
            AnyIndex::Hash(index) => self.hash(index, blocks)?,
        }
        self.failure.lock().take().map_or(Ok(()), Err)
    }

    fn sieve(&self) -> Sieve<'_> {
        Sieve {
            log: self.log,
            placement: &self.placement,
            fates: &self.fates,
            named: &self.named,
            live: vec![0; self.placement.segments()],
        }
    }

    fn add_live(&self, sieve: &Sieve<'_>) {
        self.live.lock().iter_mut().zip(&sieve.live).for_each(|(sum, bytes)| *sum += bytes);
    }

    fn fail(&self, what: String) {
        self.failure.lock().get_or_insert(what);
    }

    /// Reads and verifies a block.
    fn read(&self, block: &BlockRow, into: &mut Vec<u8>) -> Result<(), String> {
        into.resize(block.bytes as usize, 0);
        self.saved.image.read_at(block.offset, into).map_err(|error| error.to_string())?;
        if checksum(into) == block.checksum { Ok(()) } else { Err(format!("the block at {} is damaged", block.offset)) }
    }

    /// `reads_log`: the index takes keys from the log, unless they are words, so that damage would put them out of
    /// order.
    fn ordered<I: OrderedIndex>(&self, index: &I, blocks: &[BlockRow], hasher: Hasher, reads_log: bool) -> Result<(), String> {
        if blocks.iter().any(|block| block.kind == BlockKind::Images) {
            return Err("it holds images of a table for an ordered keyspace".into());
        }
        let damaged = AtomicU64::new(0);
        let resolver = Wary::new(LogResolver { log: self.log, hasher }, true, &damaged);
        let _pin = epoch::pin();
        if blocks.iter().all(|block| block.kind == BlockKind::Words) {
            self.ordered_words(index, blocks, reads_log, &resolver)?;
        } else {
            // Where keys begin alike, any ordered index reads some of them.
            index.load_pieces(&mut Run::new(self, blocks, reads_log), &resolver);
        }
        match damaged.into_inner() {
            0 => Ok(()),
            reference => Err(format!("{:?} leads to no valid entry", Ref(reference))),
        }
    }

    /// Loads blocks that hold words only, several runs of them at a time.
    fn ordered_words<I: OrderedIndex>(
        &self,
        index: &I,
        blocks: &[BlockRow],
        reads_log: bool,
        resolver: &impl Resolver,
    ) -> Result<(), String> {
        let firsts = self.first_words(blocks)?;
        if !firsts.is_sorted() {
            return Err("its blocks are out of order".into());
        }
        let share = blocks.len().div_ceil(self.threads).max(1);
        let mut runs: Vec<Run<'_>> = blocks.chunks(share).map(|run| Run::new(self, run, reads_log)).collect();
        for (i, run) in runs.iter_mut().enumerate() {
            run.before = firsts.get((i + 1) * share).copied();
        }
        let mut sources: Vec<&mut dyn PieceSource> = runs.iter_mut().map(|run| run as &mut dyn PieceSource).collect();
        index.load_words(&mut sources, resolver);
        Ok(())
    }

    /// Returns the first key of each block of words, unverified: it serves only to keep runs apart.
    fn first_words(&self, blocks: &[BlockRow]) -> Result<Vec<u64>, String> {
        let first = |block: &BlockRow| {
            let mut word = [0; 8];
            self.saved.image.read_at(block.offset, &mut word).map_err(|error| error.to_string())?;
            Ok(u64::from_le_bytes(word))
        };
        blocks.iter().map(first).collect()
    }

    fn hash(&self, index: &hither_index::hash::HashIndex, blocks: &[BlockRow]) -> Result<(), String> {
        let share = blocks.len().div_ceil(self.threads).max(1);
        let build = |run: &[BlockRow]| {
            let (mut images, mut sieve, mut payload) = (Images::default(), self.sieve(), Vec::new());
            for block in run {
                self.read(block, &mut payload)?;
                let sound = block.kind == BlockKind::Images
                    && index.rebuild_images(&payload, &mut images, |reference| sieve.admit(reference)).is_ok();
                if !sound {
                    return Err(format!("the block at {} holds no images of a table", block.offset));
                }
            }
            self.add_live(&sieve);
            Ok(images)
        };
        // The store opens without the checkpoint, too, so a panic here must not keep it from opening.
        let build = |run: &[BlockRow]| catch_unwind(AssertUnwindSafe(|| build(run))).unwrap_or_else(|_| Err("reading it panicked".into()));
        let parts = hither_sync::map_together(self.threads, blocks.chunks(share), build);
        let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
        index.adopt_images(parts).map_err(|_| "its images do not make a table".into())
    }
}

/// The blocks of one run, as pieces.
struct Run<'a> {
    loader: &'a Loader<'a>,
    blocks: std::slice::Iter<'a, BlockRow>,
    sieve: Sieve<'a>,
    order: Order,
    payload: Vec<u8>,
    /// All words of this run lie below this one.
    before: Option<u64>,
    reads_log: bool,
}

impl<'a> Run<'a> {
    fn new(loader: &'a Loader<'a>, blocks: &'a [BlockRow], reads_log: bool) -> Run<'a> {
        let blocks = blocks.iter();
        Run { loader, blocks, sieve: loader.sieve(), order: Order::default(), payload: Vec::new(), before: None, reads_log }
    }

    fn next(&mut self, block: &BlockRow, piece: &mut SortedPiece) -> Result<(), String> {
        self.loader.read(block, &mut self.payload)?;
        let sieve = &mut self.sieve;
        let decoded =
            blocks::decode(block.kind, &self.payload, block.items as usize, &mut self.order, piece, |reference| sieve.admit(reference));
        let inside = self.before.is_none_or(|before| piece.words().is_some_and(|words| words.last().is_none_or(|last| *last < before)));
        decoded.filter(|()| inside).ok_or_else(|| format!("the block at {} holds no keys in order", block.offset))?;
        let log = self.loader.log;
        let damaged = |reference: &&Ref| !log.look_before(reference.0, u64::MAX) || log.verified_entry(reference.0).is_none();
        let reads_log = self.reads_log && piece.words().is_none();
        match piece.refs().iter().filter(|_| reads_log).find(damaged) {
            None => Ok(()),
            Some(reference) => Err(format!("{reference:?} leads to no valid entry")),
        }
    }
}

impl PieceSource for Run<'_> {
    fn next_piece(&mut self, piece: &mut SortedPiece) -> bool {
        let Some(block) = self.blocks.next() else {
            self.loader.add_live(&self.sieve);
            self.sieve.live.fill(0);
            return false;
        };
        if let Err(what) = self.next(block, piece) {
            self.loader.fail(what);
            return false;
        }
        true
    }
}
