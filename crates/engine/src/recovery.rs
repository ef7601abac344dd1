//! Recovery: from the log to the indexes.
//!
//! Segments are scanned in parallel. Of a key's entries the newest version wins, in whatever order they are met. So the
//! number of threads, nodes and shards may differ from last time, and recovery may be cut short and repeated at any
//! point.
//!
//! With a checkpoint (see `checkpoint`) the indexes hold most keys already, and only what it does not cover is scanned.
//!
//! # Steps
//!
//! 1. Read the segment tables.
//! 2. Make room in the indexes for as many keys as a sample of the segments promises.
//! 3. Scan every segment, and install the newest reference of each key, tombstones included.
//! 4. Decide batches that are not settled by counting their members; mark members of incomplete ones dead on media.
//! 5. Mend broken chains, and complete collectors' passes that were interrupted (`mending`).
//! 6. Remove tombstones from the indexes.
//! 7. Go on filling the segments that were open.

mod batches;
mod report;

pub use report::{RecoveryReport, RestartSource};

use crate::checkpoint::load::Loaded;
use crate::error::Result;
use crate::keyspace::{Keyspace, with_index};
use crate::options::{Options, Phase, Progress};
use crate::pools::processors;
use crate::resolver::{LogResolver, Wary};
use crate::salvage::keeps_parts_of_batches;
use crate::write::PlaceGuard;
use hither_index::{Hasher, Index, Key, Ref, Resolver};
use hither_log::entry::BatchTag;
use hither_log::replay::{ScanTotals, SegmentToScan, verify_totals};
use hither_log::{EntryView, Log, Op};
use hither_pmem::SegmentState as OnMedia;
use hither_sync::epoch;
use hither_sync::latch::LatchTable;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Number of entries whose index lines are requested ahead of the one that is installed, so that misses overlap.
const AHEAD: usize = 16;

/// Stands for the position of a keyspace that was dropped. Its entries are garbage, but still count as members of their
/// batches.
const DROPPED: usize = usize::MAX;
/// Likewise for a member that is marked dead: it counts, and nothing else is done with it.
const DEAD: usize = usize::MAX - 1;

/// One in this many segments is sampled beforehand.
const SAMPLE: usize = 20;

/// An entry worth remembering after the scan.
#[derive(Clone, Copy)]
struct Found<'a> {
    keyspace: usize,
    key: Key<'a>,
    reference: Ref,
    version: u64,
    op: Op,
    batch: Option<BatchTag>,
}

/// Entries whose index lines are being loaded: a ring.
struct Pending<'a> {
    ring: [Option<Found<'a>>; AHEAD],
    next: usize,
}

impl<'a> Pending<'a> {
    /// Adds an entry; returns the one that it pushes out, which is due.
    #[inline(always)]
    fn push(&mut self, found: Found<'a>) -> Option<Found<'a>> {
        let due = self.ring[self.next].replace(found);
        self.next = (self.next + 1) % AHEAD;
        due
    }
}

pub(super) struct Recovery<'a> {
    pub(super) log: &'a Log,
    pub(super) hasher: Hasher,
    pub(super) keyspaces: &'a [Arc<Keyspace>],
    /// Position in `keyspaces` by id.
    pub(super) by_id: HashMap<u32, usize>,
    /// Keys whose chains may be broken: keyspace id and hash.
    pub(super) broken: Mutex<HashSet<(u32, u64)>>,
    /// Batches that are whole although members may be missing: another member lies in a sealed segment, which is sealed
    /// when all that was being written at that time is durable. Only with `salvage`; otherwise damage is refused.
    whole: Option<Mutex<HashSet<batches::BatchId>>>,
    /// Links to members of batches that were dropped.
    pub(super) dropped: Mutex<HashSet<u64>>,
    /// A damaged entry that a checkpoint led to; 0: none was met.
    damaged: AtomicU64,
    latches: LatchTable,
    settled: u64,
    loaded: Option<&'a Loaded>,
    tombstones: Mutex<Vec<Found<'a>>>,
    batched: Mutex<Vec<Found<'a>>>,
    entries: AtomicU64,
    /// The highest keyspace id among entries whose keyspace does not exist (any more).
    newest_keyspace: AtomicU32,
    last_version: AtomicU64,
}

/// What a recovery builds upon.
pub(crate) struct Basis<'a> {
    pub in_use: &'a [SegmentToScan],
    pub loaded: Option<&'a Loaded>,
    /// A salvage has already passed over something.
    pub passed_over: bool,
    /// Removes a checkpoint that does not count, durably.
    pub drop_unusable: &'a dyn Fn() -> Result<()>,
}

/// Rebuilds the indexes of `keyspaces` from `log`.
///
/// `next_keyspace` is the first keyspace id that the catalogue has not given out. An entry that names such an id shows
/// that the catalogue was lost.
///
/// With `basis.loaded`, the indexes already hold a checkpoint; of the segments in use, only those that it does not
/// cover are scanned.
pub(crate) fn run(
    log: &Log,
    hasher: Hasher,
    keyspaces: &[Arc<Keyspace>],
    next_keyspace: u32,
    options: &Options,
    basis: &Basis<'_>,
) -> Result<RecoveryReport> {
    let started = Instant::now();
    let Basis { in_use, loaded, .. } = *basis;
    let segments: Vec<_> = in_use.iter().filter(|segment| !loaded.is_some_and(|loaded| loaded.covers(segment))).copied().collect();
    let settled = (0..log.nodes()).map(|node| log.pool(node).settled()).max().unwrap_or(0);
    let settled = settled.max(loaded.map_or(0, |loaded| loaded.version));
    // The next checkpoint's version must not be below this, although not all earlier versions need be on media.
    let newest = loaded.map_or(0, |loaded| loaded.newest_version).max(log.pool(0).oldest_checkpoint());
    let keeps_parts = options.salvage && keeps_parts_of_batches(log);
    let recovery = Recovery {
        log,
        hasher,
        keyspaces,
        by_id: keyspaces.iter().enumerate().map(|(at, keyspace)| (keyspace.info.id, at)).collect(),
        broken: Mutex::default(),
        whole: options.salvage.then(Mutex::default),
        dropped: Mutex::default(),
        damaged: AtomicU64::new(0),
        latches: LatchTable::new(1024, 0),
        settled: if keeps_parts { u64::MAX } else { settled },
        loaded,
        tombstones: Mutex::default(),
        batched: Mutex::default(),
        entries: AtomicU64::new(0),
        last_version: AtomicU64::new(settled.max(newest)),
        newest_keyspace: AtomicU32::new(loaded.map_or(0, |loaded| loaded.newest_keyspace)),
    };
    let threads = thread_count(options, segments.len());
    if loaded.is_none() {
        recovery.make_room(&segments);
    }
    let totals = recovery.scan_all(&segments, threads, options);
    recovery.ensure_nothing_damaged()?;
    let mut report = RecoveryReport {
        clean: (0..log.nodes()).all(|node| log.pool(node).was_clean()),
        source: match loaded {
            None => RestartSource::Scan,
            Some(loaded) if loaded.clean => RestartSource::Clean,
            Some(_) => RestartSource::Checkpoint,
        },
        segments_skipped: (in_use.len() - segments.len()) as u64,
        checkpoint_keys: loaded.map_or(0, |loaded| loaded.keys),
        segments: segments.len() as u64,
        threads,
        ..RecoveryReport::default()
    };
    for (segment, found) in segments.iter().zip(&totals) {
        report.entries += found.entries;
        report.bytes += found.bytes;
        report.torn += found.torn;
        let pool = log.pool(segment.node as usize);
        if let Err(damage) = verify_totals(pool, segment, found, pool.was_clean()) {
            if !options.salvage {
                return Err(damage.into());
            }
            log.keep_damaged(segment);
            report.salvaged.push(damage.finding());
        }
    }
    report.settled_version = settled;
    report.newest_keyspace = recovery.newest_keyspace.load(Ordering::Relaxed);
    if report.newest_keyspace >= next_keyspace {
        let what = format!(
            "entries name keyspace number {}, but the catalogue has given out none above {}: it was lost or is an old copy",
            report.newest_keyspace,
            next_keyspace - 1
        );
        if !options.salvage {
            return Err(crate::Error::Damaged(what));
        }
        report.salvaged.push(what);
    }
    let scanned: Vec<_> = segments.iter().copied().zip(totals).collect();
    log.harden(&scanned)?;
    report.last_version = recovery.last_version.load(Ordering::Relaxed);
    report.batches_dropped = recovery.settle_batches()?;
    if report.batches_dropped > 0 && (basis.passed_over || !report.salvaged.is_empty()) {
        let dropped = report.batches_dropped;
        report.salvaged.push(format!("{dropped} batches lack members, unwritten or unreadable ones, and are left out whole"));
    }
    recovery.ensure_nothing_damaged()?;
    report.chains_mended = recovery.mend_chains(in_use);
    report.passes_completed = recovery.complete_passes(in_use)?;
    if loaded.is_none() {
        // Removed before the settled version is raised: the checkpoint may not count only because that is too low.
        (basis.drop_unusable)()?;
    }
    // So that the next opening need not count the members of these batches. Where parts of batches were kept, it must
    // not take them for batches that a crash cut short. Raised only when the marks of the chains are durable: if this
    // recovery is cut short, the next one finds the children of dropped batches by these batches' members, and knows
    // those members only above the settled version.
    log.note_settled(report.last_version)?;
    report.tombstones = recovery.remove_tombstones();
    let unscanned = loaded.map_or(Vec::new(), |loaded| log.unscanned(&loaded.open));
    log.resume(&[scanned, unscanned].concat())?;
    let is_whole = !basis.passed_over && report.salvaged.is_empty();
    log.clock.raise(if is_whole { report.last_version } else { log.beyond_unseen_versions(report.last_version) });
    report.keys = keyspaces.iter().map(|keyspace| keyspace.len() as u64).sum();
    report.elapsed_ms = started.elapsed().as_millis() as u64;
    Ok(report)
}

pub(crate) fn thread_count(options: &Options, segments: usize) -> usize {
    let wanted = if options.threads == 0 { processors() } else { options.threads };
    wanted.min(segments).max(1)
}

impl<'a> Recovery<'a> {
    fn scan_all(&self, segments: &[SegmentToScan], threads: usize, options: &Options) -> Vec<ScanTotals> {
        let next = AtomicUsize::new(0);
        let done = AtomicU64::new(0);
        let totals = Mutex::new(vec![ScanTotals::default(); segments.len()]);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(segment) = segments.get(at) else { break };
                let found = self.scan_one(segment);
                totals.lock()[at] = found;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if let Some(report) = &options.on_progress {
                    let entries = self.entries.load(Ordering::Relaxed);
                    report(Progress { phase: Phase::Scan, done, total: segments.len() as u64, entries });
                }
            }
        };
        hither_sync::together(threads, work);
        totals.into_inner()
    }

    /// Reserves room for the keys that are to be expected: in a sample of the segments, the entries that made a key
    /// less those that removed one. This is a guess, for speed only; splits make up for what it misses.
    fn make_room(&self, segments: &[SegmentToScan]) {
        let sample: Vec<_> = segments.iter().skip(SAMPLE / 2).step_by(SAMPLE).collect();
        let mut keys = vec![0i64; self.keyspaces.len()];
        for segment in &sample {
            self.log.peek_segment(segment, |entry| {
                let at = self.by_id.get(&entry.keyspace(segment.descriptor.keyspace));
                if let Some(keys) = at.and_then(|&at| keys.get_mut(at)) {
                    *keys += i64::from(entry.op() == Op::Insert) - i64::from(entry.op() == Op::Delete);
                }
            });
        }
        for (keyspace, keys) in self.keyspaces.iter().zip(keys) {
            let expected = keys.max(0) as usize * segments.len() / sample.len().max(1);
            with_index!(keyspace, index => index.reserve(expected));
        }
    }

    fn scan_one(&self, segment: &SegmentToScan) -> ScanTotals {
        let _pin = epoch::pin();
        let mut pending = Pending { ring: [None; AHEAD], next: 0 };
        let (mut tombstones, mut batched, mut broken) = (Vec::new(), Vec::new(), Vec::new());
        let doubtful = segment.descriptor.state == OnMedia::Active && !self.log.pool(segment.node as usize).was_clean();
        let mut last_version = 0;
        let totals = self.log.scan_segment(segment, |reference, version, entry| {
            last_version = last_version.max(version);
            // Also of dead entries: an earlier recovery that was cut short may have marked this one, and nothing of
            // what lies below.
            if doubtful && self.log.parent_is_lost(entry) {
                broken.push((entry.keyspace(segment.descriptor.keyspace), self.hasher.hash(entry.key)));
            }
            let Some(found) = self.admit(segment, Ref(reference), version, entry) else {
                batched.extend(self.dead_member(Ref(reference), version, entry));
                self.log.note_garbage(reference, entry.size, entry.op() == Op::Delete);
                return;
            };
            if let Some(batch) = found.batch_id() {
                if let Some(whole) = self.whole.as_ref().filter(|_| segment.descriptor.state == OnMedia::Sealed) {
                    whole.lock().insert(batch);
                }
                batched.push(found);
                return;
            }
            if found.op == Op::Delete {
                tombstones.push(found);
            }
            with_index!(self.keyspaces[found.keyspace], index => index.prefetch_for_write(found.key));
            if let Some(due) = pending.push(found) {
                self.install(&due);
            }
        });
        let Pending { mut ring, next } = pending;
        // Oldest first.
        ring.rotate_left(next);
        ring.iter().flatten().for_each(|found| self.install(found));
        self.tombstones.lock().append(&mut tombstones);
        self.batched.lock().append(&mut batched);
        if !broken.is_empty() {
            self.broken.lock().extend(broken);
        }
        self.entries.fetch_add(totals.entries, Ordering::Relaxed);
        self.last_version.fetch_max(last_version, Ordering::Relaxed);
        totals
    }

    /// Returns a member of a batch above the settled version that is marked dead. It counts: a whole batch may have
    /// lost a superseded member to a mark, and a recovery that was cut short may have marked some or all members of an
    /// incomplete batch.
    #[inline(always)]
    fn dead_member(&self, reference: Ref, version: u64, entry: &EntryView<'a>) -> Option<Found<'a>> {
        let batch = self.unsettled(version, entry).filter(|_| entry.is_dead())?;
        Some(Found { keyspace: DEAD, key: self.hasher.key(entry.key), reference, version, op: entry.op(), batch: Some(batch) })
    }

    /// Returns the tag of a member of a batch that is not known to be whole. Batches up to the settled version are
    /// whole.
    #[inline(always)]
    fn unsettled(&self, version: u64, entry: &EntryView<'_>) -> Option<BatchTag> {
        entry.batch().filter(|tag| version.saturating_sub(u64::from(tag.index)) > self.settled)
    }

    /// Returns the entry if it takes part: it is not marked dead, its keyspace exists or its batch is to be counted,
    /// and the checkpoint does not know it to be superseded.
    #[inline(always)]
    fn admit(&self, segment: &SegmentToScan, reference: Ref, version: u64, entry: &EntryView<'a>) -> Option<Found<'a>> {
        if entry.is_dead() {
            return None;
        }
        let id = entry.keyspace(segment.descriptor.keyspace);
        let keyspace = match self.keyspaces {
            [only] if only.info.id == id => 0,
            _ => self.by_id.get(&id).copied().unwrap_or_else(|| {
                self.newest_keyspace.fetch_max(id, Ordering::Relaxed);
                DROPPED
            }),
        };
        let batch = self.unsettled(version, entry);
        // A tombstone counts in any case: it may have deleted an entry that the collector moved after the capture.
        if entry.op() != Op::Delete
            && let Some(loaded) = self.loaded
            && loaded.knows(segment, version)
            && !loaded.names(reference.0)
        {
            return None;
        }
        let found = Found { keyspace, key: self.hasher.key(entry.key), reference, version, op: entry.op(), batch };
        if keyspace == DROPPED {
            return batch.map(|_| found);
        }
        if entry.expiry_ms() != 0 {
            self.keyspaces[keyspace].expiries.found();
        }
        Some(found)
    }

    /// Installs an entry unless the index has a newer one. The older of the two is counted as garbage.
    #[inline(always)]
    fn install(&self, found: &Found<'_>) {
        with_index!(self.keyspaces[found.keyspace], index => self.install_in(index, found));
    }

    #[inline(always)]
    fn install_in<I: Index>(&self, index: &I, found: &Found<'_>) {
        let resolver = self.resolver();
        let key = found.key;
        let prepared = index.prepare_write(key, &resolver);
        let _latch = self.latches.of(key.hash).lock();
        let (located, locked) = index.lock_place(key, prepared, &resolver);
        let mut place = PlaceGuard { index, token: located.token, locked };
        let present = located.candidate.is_some() && (located.verified || resolver.matches(located.candidate, key.bytes));
        let old = if present { located.candidate } else { Ref::NONE };
        // Whether a damaged entry is newer, or the key's at all, is not known.
        if old.is_some() && (!resolver.is_sound(old) || !self.is_newer(found, old)) {
            return;
        }
        if old.is_none() && resolver.doubts && index.unreadable_beside(key, &resolver).is_some() {
            return;
        }
        if place.locked {
            place.locked = false;
            index.install_locked(place.token, key, old, found.reference, &resolver);
            return;
        }
        index.install(place.token, key, old, found.reference, &resolver).expect("the latch is held, so the reference read is still there");
    }

    /// The resolver through which the indexes see the log during recovery.
    #[inline(always)]
    pub(super) fn resolver(&self) -> Wary<'_> {
        Wary::new(LogResolver { log: self.log, hasher: self.hasher }, self.loaded.is_some(), &self.damaged)
    }

    /// Refuses indexes made of a checkpoint that led to a damaged entry. A scan of everything would be refused, too.
    fn ensure_nothing_damaged(&self) -> Result<()> {
        let reference = Ref(self.damaged.load(Ordering::Relaxed));
        if reference.is_none() {
            return Ok(());
        }
        self.log.verify_entry(reference.0)?;
        Err(crate::Error::Damaged(format!("{reference:?} leads to no valid entry")))
    }

    /// Whether `found` is newer than the key's entry at `old`; counts the older one as garbage.
    fn is_newer(&self, found: &Found<'_>, old: Ref) -> bool {
        let entry = self.log.entry(old.0);
        let old_version = self.log.version_of(old.0, &entry);
        // Of an entry and its copy, the copy is kept. If neither is a copy of the other, the scanned one is kept: the
        // index has an entry that a checkpoint named too late.
        let newer = old_version < found.version || (old_version == found.version && !self.log.is_copy_of(old.0, found.reference.0));
        if newer {
            self.log.note_garbage(old.0, entry.size, entry.op() == Op::Delete);
        } else {
            let size = self.log.entry(found.reference.0).size;
            self.log.note_garbage(found.reference.0, size, found.op == Op::Delete);
        }
        newer
    }

    /// Removes the tombstones from the indexes, where they have done their work; returns their number.
    fn remove_tombstones(&self) -> u64 {
        let resolver = self.resolver();
        let _pin = epoch::pin();
        let tombstones = self.tombstones.lock();
        for found in &*tombstones {
            // A conflict means that a newer entry won.
            with_index!(self.keyspaces[found.keyspace], index => {
                let _ = index.install(index.any_token(), found.key, found.reference, Ref::NONE, &resolver);
            });
        }
        tombstones.len() as u64
    }
}
