//! Passes: they empty a segment so that it can be used again (NStore, section III-E; the protocol is in `docs/adr/0011`).
//!
//! This module knows the log's half: which segments are victims, and freeing (burying is in `bury`). Only the layer with
//! the indexes knows which entries are live; it moves them with a [`Relocator`](crate::Relocator) in between.
//!
//! # Invariants
//!
//! * P1. While a pass that buries is in progress, its victim's descriptor carries [`COLLECTING`], durably, since before the first mark
//!   and the first copy.
//! * P2. A tombstone is dropped only if it is not newer than the newest checkpoint, nor than one being made
//!   ([`Log::keep_tombstones_after`]), or if the index has something newer for its key, or had when the log was scanned (its garbage
//!   bit). In the last case, the entry that has superseded that newer one since keeps out everything older, too.
//!   A pass that buries drops a tombstone only if every older entry of its key is dead, which cannot be told behind a damaged one.
//! * P3. When the descriptor becomes free, every moved entry is durable, and so is every mark.

use crate::address;
use crate::entry::EntryView;
use crate::error::Result;
use crate::log::Log;
use crate::node::NodePool;
use crate::opening::ROOM_BELOW;
use crate::reclaim::{MakeDurable, NO_STAMP};
use crate::replay::{self, ScanTotals};
use crate::segment::{Segment, SegmentState};
use hither_pmem::{Descriptor, MediumKind, Pool, SegmentState as OnMedia};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Flag in a sealed segment's descriptor: a pass was in progress.
pub const COLLECTING: u8 = 2;

/// A segment that may be worth a pass.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Node of its pool.
    pub node: u32,
    /// Number in the pool.
    pub index: u32,
    /// Bytes that a pass would gain.
    pub gain: u64,
    /// Bytes that a pass would have to move.
    pub live: u64,
    /// Bytes of segments opened since this one was opened.
    pub age: u64,
    /// Which life of the segment this is.
    pub generation: u64,
}

impl Candidate {
    /// The share of the segment that a pass gains, 0 to 1.
    pub fn garbage(&self) -> f64 {
        self.gain as f64 / (self.gain + self.live).max(1) as f64
    }

    /// The bytes freed, times the age, divided by the bytes copied (`docs/adr/0014`): (1 − u) · age / u.
    pub fn benefit(&self) -> f64 {
        self.gain as f64 * self.age as f64 / self.live.max(1) as f64
    }
}

/// How deleted keys are kept from coming back, which determines what a pass does with tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tombstones {
    /// Each pass buries the ancestors of its victim's entries first, so tombstones go with their segment (`docs/adr/0011`).
    Buried,
    /// Tombstones are moved like live entries until a sweep has marked what they keep out (`docs/adr/0014`).
    Swept,
}

/// A pass in progress. Dropping it without [`Log::free_victims`] returns the segment to its former state: the links of the copies reach
/// the entries that were moved.
pub struct Pass<'a> {
    log: &'a Log,
    node: usize,
    index: u32,
    tombstones: Tombstones,
    /// The victim is free, or may already be in its next life.
    freed: bool,
}

/// The room that is lost at the ends of segments when `live` bytes of this segment's entries are moved: in each segment of `bytes`, the
/// room of an entry that does not fit. The estimate is the mean length of an entry, which is more than is really lost. When this was
/// counted as nothing, passes over segments of large entries were made in vain, until a full store could not even delete.
fn gaps_of(live: u64, bytes: u64, segment: &Segment) -> u64 {
    let mean = segment.written_bytes.load(Ordering::Relaxed) / u64::from(segment.entries.load(Ordering::Relaxed)).max(1);
    live * mean / bytes.saturating_sub(mean).max(1)
}

impl Log {
    /// Full segments that are worth a pass, in no particular order, except those that must wait because of tombstones (P2). Folds the
    /// writers' counts first.
    pub fn candidates(&self, tombstones: Tombstones, worth: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
        self.fold_dead();
        let available = self.select(|segment| self.is_available(segment, tombstones));
        let mut found: Vec<_> = available.into_iter().filter_map(|(node, index)| self.weigh(node, index, tombstones)).collect();
        self.count_rests(&mut found);
        found.retain(worth);
        found
    }

    /// A candidate as it is now, by the counts folded last; rests that [`Log::candidates`] counted as gain are left out. `None` if its
    /// segment is in another life, no longer available, or not settled. Without a search: O(1).
    pub fn look_again(&self, candidate: &Candidate, tombstones: Tombstones) -> Option<Candidate> {
        let (node, index) = (candidate.node as usize, candidate.index);
        let is_available = self.is_available(&self.pools[node].segments[index as usize], tombstones) && self.is_settled(candidate);
        let now = is_available.then(|| self.weigh(node, index, tombstones)).flatten();
        now.filter(|now| now.generation == candidate.generation)
    }

    /// Whether a segment may be a victim, once it is settled.
    fn is_available(&self, segment: &Segment, tombstones: Tombstones) -> bool {
        segment.state() == SegmentState::Sealed
            && segment.in_use()
            && !segment.damaged.load(Ordering::Relaxed)
            && !(tombstones == Tombstones::Buried && segment.leads_to_damage.load(Ordering::Relaxed))
            && !self.must_wait(segment, tombstones)
    }

    /// Determines and remembers whether passes would gain more than half of the bytes of a node's full segments; then they are better
    /// than growth. O(segments × threads).
    pub fn look_for_garbage(&self, node: usize, tombstones: Tombstones) -> bool {
        let (mut gain, mut live) = (0, 0);
        self.candidates(tombstones, |candidate| candidate.node as usize == node).iter().for_each(|candidate| {
            gain += candidate.gain;
            live += candidate.live;
        });
        let is_much = gain > live && gain >= self.pools[node].segment_bytes();
        self.pools[node].collected_first.store(is_much, Ordering::Relaxed);
        is_much
    }

    /// Whether garbage of `node` is collected before its pool grows, according to the last look.
    pub fn is_collected_first(&self, node: usize) -> bool {
        self.pools[node].collected_first.load(Ordering::Relaxed)
    }

    /// Notes that a round of passes before growth has freed `segments` segments of `node`. If it freed none, for whatever reason, the
    /// pool grows as it needs to until the next look.
    pub fn has_collected_first(&self, node: usize, segments: u64, took: Duration) {
        let pool = &self.pools[node];
        match segments {
            0 => pool.collected_first.store(false, Ordering::Relaxed),
            _ => pool.collection_ns_per_byte.store(took.as_nanos() as u64 / (segments * pool.segment_bytes()), Ordering::Relaxed),
        }
    }

    /// What a pass over a segment would gain and cost, by the counts folded last. `None` if it would have to move a run, which is one
    /// entry.
    fn weigh(&self, node: usize, index: u32, tombstones: Tombstones) -> Option<Candidate> {
        let pool = &self.pools[node];
        let segment = &pool.segments[index as usize];
        let run_len = segment.run_len.load(Ordering::Relaxed);
        let bytes = u64::from(run_len) * pool.segment_bytes();
        let generation = segment.generation.load(Ordering::Relaxed);
        let live = (segment.live_bytes() + self.moved_tombstone_bytes(segment, tombstones)).min(bytes);
        if live == 0 {
            return Some(Candidate { node: node as u32, index, gain: bytes, live, age: self.age_of(segment) + bytes, generation });
        }
        // The gaps between writers' chunks are gained too, but the copies will have gaps of their own. Moved entries lie as close as they
        // can: moving them again for their gaps would never end.
        let gained = bytes.saturating_sub(live + gaps_of(live, bytes, segment));
        let dead = segment.written_bytes.load(Ordering::Relaxed).min(bytes).saturating_sub(live);
        let gain = if segment.is_cold() { gained.min(dead) } else { gained };
        (run_len == 1).then(|| Candidate { node: node as u32, index, gain, live, age: self.age_of(segment) + bytes, generation })
    }

    /// Whether a segment holds a tombstone that must stay but would go with the segment (P2). Also true while entries may exist that
    /// cannot be read: no chain leads behind them, and any tombstone may keep one of them out.
    fn must_wait(&self, segment: &Segment, tombstones: Tombstones) -> bool {
        let goes_with_a_tombstone = || {
            segment.tombstones.load(Ordering::Relaxed) > 0
                && segment.newest_tombstone.load(Ordering::Relaxed) > self.tombstones_stay_after()
        };
        tombstones == Tombstones::Buried && (self.has_unreadable() || goes_with_a_tombstone())
    }

    /// Bytes that a segment's tombstones take as copies; 0 if all of them may go.
    fn moved_tombstone_bytes(&self, segment: &Segment, tombstones: Tombstones) -> u64 {
        let newest = segment.newest_tombstone.load(Ordering::Relaxed);
        if tombstones == Tombstones::Buried || segment.may_drop(newest, self.tombstones_stay_after()) {
            return 0;
        }
        let bytes = segment.tombstone_bytes.load(Ordering::Relaxed);
        let base = segment.base_version.load(Ordering::Relaxed);
        // Entries that were written there, not moved there, came after the segment was opened. (If it was opened for an older version,
        // the estimate is too low.)
        let oldest = if base == 0 || segment.is_cold() { base } else { base + ROOM_BELOW };
        // Copies of tombstones below the base of a new segment write out their version (`docs/adr/0024`), which takes half as much again.
        if self.clock.upper_bound() > oldest + ROOM_BELOW / 2 { bytes + bytes / 2 } else { bytes }
    }

    /// Bytes of segments opened since this one was opened.
    fn age_of(&self, segment: &Segment) -> u64 {
        self.opened_bytes.load(Ordering::Relaxed).saturating_sub(segment.opened_at.load(Ordering::Relaxed))
    }

    /// Counts the unused rests of moved entries' segments as gain. Such segments are not full if they were closed early: by a checkpoint,
    /// a compaction, an entry that did not fit. Where two of them fit into one, their rests are gained, too. (Not where there is only
    /// one: it might be moved again and again.)
    fn count_rests(&self, found: &mut [Candidate]) {
        for pool in &self.pools {
            let bytes = pool.segment_bytes();
            let is_loose = |candidate: &Candidate| {
                candidate.node == pool.node
                    && pool.segments[candidate.index as usize].is_cold()
                    && candidate.gain + candidate.live <= bytes / 2
            };
            if found.iter().filter(|candidate| is_loose(candidate)).count() > 1 {
                found.iter_mut().filter(|candidate| is_loose(candidate)).for_each(|candidate| candidate.gain = bytes - candidate.live);
            }
        }
    }

    /// Closes the segments that are being filled, so that they can be sealed and collected: later entries go to new ones. Segments of
    /// moved entries are closed only if that makes them worth a pass, because closing them leaves a rest.
    pub fn close_open(&self, tombstones: Tombstones, worth: impl Fn(&Candidate) -> bool) {
        self.fold_dead();
        for (node, pool) in self.pools.iter().enumerate() {
            let moved = pool.segment_of_moved().and_then(|index| self.weigh(node, index, tombstones));
            if moved.is_some_and(|candidate| worth(&candidate)) {
                pool.close_from(0);
            } else {
                pool.close_shards();
            }
        }
    }

    /// The best candidates, at most `most`, best first: those that free most in proportion to their copies. With [`Tombstones::Swept`],
    /// old segments count for more, because waiting will not make much more of them garbage.
    pub fn best_candidates(&self, tombstones: Tombstones, most: usize, worth: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
        let merit = |candidate: &Candidate| match tombstones {
            Tombstones::Buried => candidate.garbage(),
            Tombstones::Swept => candidate.benefit(),
        };
        let by_merit = |a: &Candidate, b: &Candidate| merit(b).total_cmp(&merit(a));
        let mut found = self.candidates(tombstones, worth);
        if found.len() > most {
            found.select_nth_unstable_by(most, by_merit);
            found.truncate(most);
        }
        found.sort_unstable_by(by_merit);
        found
    }

    /// Makes everything written so far durable and settled: the first step of passes.
    pub fn settle(&self, make_durable: MakeDurable<'_>) -> Result<()> {
        let number = self.settles_begun.fetch_add(1, Ordering::SeqCst) + 1;
        let stable = self.make_stable(make_durable)?;
        self.note_settled(stable)?;
        self.settles_done.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Notes on all media that every batch up to this version is whole and durable.
    pub fn note_settled(&self, version: u64) -> Result<()> {
        self.pools.iter().try_for_each(|pool| Ok(pool.pool.set_settled(version)?))
    }

    /// Whether a segment was sealed before a [`Log::settle`] began that has ended.
    pub fn is_settled(&self, candidate: &Candidate) -> bool {
        let segment = &self.pools[candidate.node as usize].segments[candidate.index as usize];
        segment.sealed_after.load(Ordering::SeqCst) < self.settles_done.load(Ordering::SeqCst)
    }

    /// Begins a pass over a settled segment ([`Log::is_settled`]). `None` if the segment is no longer available, or if it holds a
    /// tombstone that must stay (P2).
    pub fn begin_pass(&self, candidate: &Candidate, tombstones: Tombstones) -> Result<Option<Pass<'_>>> {
        let (node, index) = (candidate.node as usize, candidate.index);
        let pool = &self.pools[node];
        let segment = &pool.segments[index as usize];
        if self.must_wait(segment, tombstones) {
            return Ok(None);
        }
        if !segment.change_state(SegmentState::Sealed, SegmentState::Collecting) {
            return Ok(None);
        }
        pool.passes.fetch_add(1, Ordering::AcqRel);
        let pass = Pass { log: self, node, index, tombstones, freed: false };
        if tombstones == Tombstones::Buried {
            pool.pool.commit_descriptor(index, &Descriptor { flags: COLLECTING, ..pool.describe(index, pass.state_on_media()) })?;
        }
        Ok(Some(pass))
    }

    /// Ends passes whose entries worth keeping were moved. Makes the moves durable, then frees the segments on media; they are opened
    /// again only after every reader has left. Waits for writer sections, once for all passes, so it must be called outside them.
    pub fn free_victims(&self, passes: Vec<Pass<'_>>, make_durable: MakeDurable<'_>) -> Result<()> {
        if passes.is_empty() {
            return Ok(());
        }
        // Needed not only for the version: a batch under way counts the entries that it replaces as garbage before it is durable itself.
        self.make_stable(make_durable)?;
        passes.into_iter().try_for_each(|mut pass| pass.free())
    }

    /// Whether a recovery is possible: not if all pools are anonymous memory.
    pub fn outlives_the_process(&self) -> bool {
        let anonymous = |pool: &Pool| pool.path().is_none() && pool.medium().kind == MediumKind::Volatile;
        !self.pools.iter().all(|pool| anonymous(&pool.pool))
    }

    /// Number of passes under way on `node`, or on all nodes.
    pub fn passes_in_progress(&self, node: Option<usize>) -> u64 {
        self.pools_of(node).iter().map(|pool| pool.passes.load(Ordering::Acquire)).sum()
    }

    /// Calls `visit(reference, version, keyspace, entry)` for every valid entry of the log. Run it without writers and passes.
    pub fn visit_all<'a>(&'a self, mut visit: impl FnMut(u64, u64, u32, &EntryView<'a>)) {
        for (node, index) in self.select(Segment::in_use) {
            self.visit_segment(node, index, &mut visit);
        }
    }

    /// Calls `visit(reference, version, keyspace, entry)` for every valid entry of a segment in use. Returns the totals of the scan.
    pub fn visit_segment<'a>(&'a self, node: usize, index: u32, mut visit: impl FnMut(u64, u64, u32, &EntryView<'a>)) -> ScanTotals {
        let pool = &self.pools[node];
        self.look_at_unverified(node, index);
        let descriptor = pool.describe(index, OnMedia::Sealed);
        replay::scan(&pool.pool, index, &descriptor, |offset, entry| {
            let reference = address::pack(node as u32, offset, entry.size);
            visit(reference, entry.version(descriptor.base_version), entry.keyspace(descriptor.keyspace), entry);
        })
    }
}

impl<'a> Pass<'a> {
    pub(crate) fn log(&self) -> &'a Log {
        self.log
    }

    pub(crate) fn pool(&self) -> &'a NodePool {
        &self.log.pools[self.node]
    }

    pub(crate) fn victim(&self) -> &'a Segment {
        &self.pool().segments[self.index as usize]
    }
}

impl Pass<'_> {
    /// Node of the victim.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Whether the victim certainly holds nothing that is live or that a snapshot shows.
    pub fn is_wholly_dead(&self) -> bool {
        self.victim().is_wholly_dead()
    }

    /// The most bytes that must be moved: those that count as live, and tombstones that may not go. 0 if the victim holds neither.
    pub fn bytes_to_move(&self) -> u64 {
        self.victim().live_bytes() + self.log.moved_tombstone_bytes(self.victim(), self.tombstones)
    }

    /// Whether the victim holds tombstones.
    pub fn has_tombstones(&self) -> bool {
        self.victim().tombstones.load(Ordering::Relaxed) > 0
    }

    /// Whether a tombstone of the victim may go although the index has nothing newer for its key.
    pub fn may_drop_tombstone(&self, version: u64) -> bool {
        self.victim().may_drop(version, self.log.tombstones_stay_after())
    }

    /// Verifies the victim before its content is trusted, unless that was done since the store was opened.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`]: damaged entries would count as garbage.
    pub fn verify(&self) -> Result<()> {
        self.log.verify_segment(self.node, self.index)
    }

    /// The victim's number in its pool.
    pub fn segment(&self) -> u32 {
        self.index
    }

    /// Bytes of the victim.
    pub fn bytes(&self) -> u64 {
        let pool = &self.log.pools[self.node];
        u64::from(pool.segments[self.index as usize].run_len.load(Ordering::Relaxed)) * pool.segment_bytes()
    }

    fn state_on_media(&self) -> OnMedia {
        let torn = self.victim().torn.load(Ordering::Relaxed);
        if torn { OnMedia::Recovered } else { OnMedia::Sealed }
    }

    pub(crate) fn free(&mut self) -> Result<()> {
        let (pool, index) = (&self.log.pools[self.node], self.index);
        let segment = &pool.segments[index as usize];
        assert_eq!(segment.state(), SegmentState::Collecting, "a segment is freed by the one pass that has it");
        pool.pool.commit_descriptor(index, &pool.describe(index, OnMedia::Free))?;
        // Before the state is set: from then on the segment may belong to anyone.
        self.freed = true;
        segment.retire_stamp.store(NO_STAMP, Ordering::Relaxed);
        pool.retiring.fetch_add(1, Ordering::Relaxed);
        segment.set_state(SegmentState::Retiring);
        Ok(())
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.freed {
            // Restores the former state. Before the count, because a thread that waits for the passes to end relies on the segments'
            // states after that.
            self.victim().change_state(SegmentState::Collecting, SegmentState::Sealed);
        }
        self.log.pools[self.node].passes.fetch_sub(1, Ordering::AcqRel);
    }
}
