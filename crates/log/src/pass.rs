//! Passes: emptying a segment, so that it can be used again (NStore, section III-E; the protocol is in `docs/adr/0011`).
//!
//! This module knows the log's half: which segments are victims, burying the ancestors of their entries, freeing. Which entries are live only the
//! layer with the indexes knows; it moves them with a [`Relocator`](crate::Relocator) in between.
//!
//! # Invariants
//!
//! * P1. While a pass that buries is in progress its victim's descriptor carries [`COLLECTING`], durably, since before the first mark and the first copy.
//! * P2. A tombstone is dropped only if it is not newer than the newest checkpoint, nor than one being made ([`Log::keep_tombstones_after`]), or if the index has
//!   something newer for its key, or had when the log was scanned (its garbage bit): what has superseded that since keeps out all that is older, too.
//! * P3. When the descriptor becomes free, everything that was moved is durable, and so is every mark.

use crate::address;
use crate::chain::{Child, Link};
use crate::entry::EntryView;
use crate::error::Result;
use crate::log::Log;
use crate::node::NodePool;
use crate::opening::ROOM_BELOW;
use crate::reclaim::{MakeDurable, NO_STAMP};
use crate::replay::{self, ScanTotals, SegmentToScan};
use crate::segment::{Segment, SegmentState};
use hither_pmem::{Descriptor, MediumKind, Pool, SegmentState as OnMedia};
use hither_sync::epoch;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Flag of a sealed segment's descriptor: a pass was in progress.
pub const COLLECTING: u8 = 2;

/// Links followed at the same time: their misses overlap.
const AHEAD: usize = 16;
/// Walks under one epoch pin, which holds up the reuse of freed segments.
const WALKS_PER_PIN: usize = 256;

/// A segment that may be worth a pass.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Node of its pool.
    pub node: u32,
    /// Number in the pool.
    pub index: u32,
    /// Bytes that a pass would gain.
    pub gain: u64,
    /// Bytes that it would have to move.
    pub live: u64,
    /// Bytes of segments opened since it was.
    pub age: u64,
}

impl Candidate {
    /// What a pass gains as a share of the segment, 0 to 1.
    pub fn garbage(&self) -> f64 {
        self.gain as f64 / (self.gain + self.live).max(1) as f64
    }

    /// What is freed, times the age, by what is copied (`docs/adr/0014`): (1 − u) · age / u.
    pub fn benefit(&self) -> f64 {
        self.gain as f64 * self.age as f64 / self.live.max(1) as f64
    }
}

/// What keeps deleted keys from coming back, and so what a pass does with tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tombstones {
    /// Whatever leaves a segment buries its ancestors first, so tombstones go with their segment (`docs/adr/0011`).
    Buried,
    /// Tombstones are moved like live entries until a sweep has marked what they keep out (`docs/adr/0014`).
    Swept,
}

/// A pass in progress. Dropping it without [`Log::free_victims`] gives the segment back as it is: what was moved is reached by the links of the copies.
pub struct Pass<'a> {
    log: &'a Log,
    node: usize,
    index: u32,
    /// The victim is free, or may be in its next life already.
    freed: bool,
}

/// The room that is lost at the ends of segments when so many bytes of this segment's entries are moved: in each segment of `bytes`, an entry that does not fit. It is taken for
/// as long as they are on average, which is more than is lost. Counted as nothing, it made passes over segments of large entries that gained nothing, until a full store could not even
/// delete.
fn gaps_of(live: u64, bytes: u64, segment: &Segment) -> u64 {
    let mean = segment.written_bytes.load(Ordering::Relaxed) / u64::from(segment.entries.load(Ordering::Relaxed)).max(1);
    live * mean / bytes.saturating_sub(mean).max(1)
}

impl Log {
    /// Full segments that are worth a pass, in no order, without those that tombstones keep from one (P2). Folds the writers' counts first.
    pub fn candidates(&self, tombstones: Tombstones, worth: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
        self.fold_dead();
        let sealed = |segment: &Segment| {
            segment.state() == SegmentState::Sealed
                && segment.in_use()
                && !segment.damaged.load(Ordering::Relaxed)
                && !self.must_wait(segment, tombstones)
        };
        let mut found: Vec<_> = self.select(sealed).into_iter().filter_map(|(node, index)| self.weigh(node, index, tombstones)).collect();
        self.count_rests(&mut found);
        found.retain(worth);
        found
    }

    /// Looks whether passes would gain more than half of the bytes of a node's full segments, so that they are better than growth, and remembers it. O(segments × threads).
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

    /// Whether garbage of `node` is collected before its pool grows, by the last look.
    pub fn is_collected_first(&self, node: usize) -> bool {
        self.pools[node].collected_first.load(Ordering::Relaxed)
    }

    /// A round of passes before growth has freed so many segments of `node`. If none, for whatever reason, its pool grows as it needs to until the next look.
    pub fn has_collected_first(&self, node: usize, segments: u64, took: Duration) {
        let pool = &self.pools[node];
        match segments {
            0 => pool.collected_first.store(false, Ordering::Relaxed),
            _ => pool.collection_ns_per_byte.store(took.as_nanos() as u64 / (segments * pool.segment_bytes()), Ordering::Relaxed),
        }
    }

    /// What a pass over a segment would gain and cost, by the counts that were folded last. `None` if it would have to move a run, which is one entry.
    fn weigh(&self, node: usize, index: u32, tombstones: Tombstones) -> Option<Candidate> {
        let pool = &self.pools[node];
        let segment = &pool.segments[index as usize];
        let run_len = segment.run_len.load(Ordering::Relaxed);
        let bytes = u64::from(run_len) * pool.segment_bytes();
        let kept = match tombstones {
            Tombstones::Swept => self.kept_tombstone_bytes(segment),
            Tombstones::Buried => 0,
        };
        let live = (segment.live_bytes() + kept).min(bytes);
        if live == 0 {
            return Some(Candidate { node: node as u32, index, gain: bytes, live, age: self.age_of(segment) + bytes });
        }
        // The gaps between writers' chunks are gained too, but the copies will have gaps of their own. Moved entries lie as close as they can: moving them again for their
        // gaps would never end.
        let gained = bytes.saturating_sub(live + gaps_of(live, bytes, segment));
        let dead = segment.written_bytes.load(Ordering::Relaxed).min(bytes).saturating_sub(live);
        let gain = if segment.is_cold() { gained.min(dead) } else { gained };
        (run_len == 1).then(|| Candidate { node: node as u32, index, gain, live, age: self.age_of(segment) + bytes })
    }

    /// Whether a segment holds a tombstone that must stay, and would go with it (P2). Or what keeps out an entry on a page that cannot be read: no chain leads behind it.
    fn must_wait(&self, segment: &Segment, tombstones: Tombstones) -> bool {
        let goes_with_a_tombstone = || {
            segment.tombstones.load(Ordering::Relaxed) > 0
                && segment.newest_tombstone.load(Ordering::Relaxed) > self.tombstones_stay_after()
        };
        tombstones == Tombstones::Buried && (self.has_unreadable() || goes_with_a_tombstone())
    }

    /// Bytes of a segment's tombstones, as copies, unless all of them may go.
    fn kept_tombstone_bytes(&self, segment: &Segment) -> u64 {
        let newest = segment.newest_tombstone.load(Ordering::Relaxed);
        if segment.may_drop(newest, self.tombstones_stay_after()) {
            return 0;
        }
        let bytes = segment.tombstone_bytes.load(Ordering::Relaxed);
        let base = segment.base_version.load(Ordering::Relaxed);
        // What was written there, but not moved there, came after the segment was opened. (Not where that was opened for an older version: then the estimate is too low.)
        let oldest = if base == 0 || segment.is_cold() { base } else { base + ROOM_BELOW };
        // Those below the base of a new segment will say their version (`docs/adr/0024`), in half as much again.
        if self.clock.upper_bound() > oldest + ROOM_BELOW / 2 { bytes + bytes / 2 } else { bytes }
    }

    /// Bytes of segments opened since this one was.
    fn age_of(&self, segment: &Segment) -> u64 {
        self.opened_bytes.load(Ordering::Relaxed).saturating_sub(segment.opened_at.load(Ordering::Relaxed))
    }

    /// Segments of moved entries are not full if they were closed early: by a checkpoint, a compaction, an entry that did not fit. Where two such fit into one, their rests are
    /// gained, too. (Not where there is one: it might be moved again and again.)
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

    /// Closes the segments that are being filled, so that they can be sealed and collected: what comes goes to new ones. Those of moved entries only if that
    /// makes them worth a pass, for closing them leaves a rest.
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

    /// The best of them, at most so many, best first. That is what frees most for its copies: with [`Tombstones::Swept`], what is old counts for more, for it will not lose
    /// much more by waiting.
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
        for pool in &self.pools {
            pool.pool.set_settled(stable)?;
        }
        self.settles_done.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Whether a segment was sealed before a [`Log::settle`] began that has ended.
    pub fn is_settled(&self, candidate: &Candidate) -> bool {
        let segment = &self.pools[candidate.node as usize].segments[candidate.index as usize];
        segment.sealed_after.load(Ordering::SeqCst) < self.settles_done.load(Ordering::SeqCst)
    }

    /// Begins a pass over a segment that is settled ([`Log::is_settled`]). `None` if it is no longer there to be had, or if it
    /// holds a tombstone that must stay (P2).
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
        self.passes.fetch_add(1, Ordering::AcqRel);
        let pass = Pass { log: self, node, index, freed: false };
        if tombstones == Tombstones::Buried {
            pool.pool.commit_descriptor(index, &Descriptor { flags: COLLECTING, ..pool.describe(index, pass.state_on_media()) })?;
        }
        Ok(Some(pass))
    }

    /// Ends passes: everything worth keeping was moved. Makes that durable, then frees the segments on media; they are opened again only after every
    /// reader has left. Call outside writer sections, for which it waits: one wait for all of them.
    pub fn free_victims(&self, passes: Vec<Pass<'_>>, make_durable: MakeDurable<'_>) -> Result<()> {
        if passes.is_empty() {
            return Ok(());
        }
        // Not only for the version: a batch that is under way says of what it replaces that it is garbage, before it is durable itself.
        self.make_stable(make_durable)?;
        passes.into_iter().try_for_each(|mut pass| pass.free())
    }

    /// Whether there can be a recovery: not if all pools are anonymous memory.
    pub fn outlives_the_process(&self) -> bool {
        let anonymous = |pool: &Pool| pool.path().is_none() && pool.medium().kind == MediumKind::Volatile;
        !self.pools.iter().all(|pool| anonymous(&pool.pool))
    }

    /// Passes under way.
    pub fn passes_in_progress(&self) -> u64 {
        self.passes.load(Ordering::Acquire)
    }

    /// Makes marks and moved entries durable.
    pub fn barrier(&self) -> Result<()> {
        for pool in &self.pools {
            pool.pool.fence();
            pool.pool.sync()?;
        }
        Ok(())
    }

    /// Marks dead all ancestors of the entries of a segment, but for those that entries of it lead to directly; returns how many. `through_marks`, after an interrupted pass: does not take a dead
    /// entry for the end of a chain, and marks all those inside, too, for the segment will not be freed. The marks are durable after the next [`Log::barrier`].
    pub fn bury_ancestors(&self, node: usize, index: u32, through_marks: bool) -> u64 {
        let mut walks: Vec<(Link, Child<'_>)> = Vec::new();
        self.visit_segment(node, index, |reference, version, keyspace, entry| {
            if entry.is_dead() {
                return;
            }
            if let Some(link) = self.link(entry.parent(), entry.parent_generation())
                && (through_marks || (link.node, link.segment) != (node, index as usize))
            {
                walks.push((link, self.child(reference, entry, keyspace, version)));
            }
        });
        let (mut marked, mut pin) = (0, epoch::pin());
        for (number, &(link, child)) in walks.iter().enumerate() {
            // Another collector may free what is walked over; a link is looked up and followed under one pin.
            if number % WALKS_PER_PIN == 0 {
                drop(pin);
                pin = epoch::pin();
            }
            let Some(link) = self.link_again(&link) else { continue };
            if let Some((ahead, ..)) = walks.get(number + AHEAD) {
                self.prefetch_link(ahead);
            }
            marked += self.bury_chain(link, child, through_marks);
        }
        marked
    }

    /// A chain may lead out of the victim and into it again. What it has there is marked, too: whoever else comes to a mark above it must not find anything alive behind it, and the
    /// victim may be given up.
    fn bury_chain(&self, first: Link, child: Child<'_>, through_marks: bool) -> u64 {
        let (mut next, mut child, mut marked) = (Some(first), child, 0);
        while let Some(link) = next {
            let Some(found) = self.ancestor(link, &child) else { break };
            let was_dead = found.entry.is_dead();
            if was_dead && !through_marks {
                break;
            }
            self.mark_dead_on_media(address::pack(link.node as u32, link.offset, 0));
            marked += u64::from(!was_dead);
            (next, child) = (self.link(found.entry.parent(), found.entry.parent_generation()), found.child);
        }
        marked
    }

    /// Calls `visit(reference, version, keyspace, entry)` for every valid entry of the log. Run it without writers and passes.
    pub fn visit_all<'a>(&'a self, mut visit: impl FnMut(u64, u64, u32, &EntryView<'a>)) {
        for (node, index) in self.select(Segment::in_use) {
            self.visit_segment(node, index, &mut visit);
        }
    }

    /// Calls `visit(reference, version, keyspace, entry)` for every valid entry of a segment in use; returns what was found.
    pub fn visit_segment<'a>(&'a self, node: usize, index: u32, mut visit: impl FnMut(u64, u64, u32, &EntryView<'a>)) -> ScanTotals {
        let pool = &self.pools[node];
        self.look_at_unverified(node, index);
        let descriptor = pool.describe(index, OnMedia::Sealed);
        replay::scan(&pool.pool, index, &descriptor, |offset, entry| {
            let reference = address::pack(node as u32, offset, entry.size);
            visit(reference, entry.version(descriptor.base_version), entry.keyspace(descriptor.keyspace), entry);
        })
    }

    /// Completes the burials of a pass that a crash interrupted, during recovery; returns the number of marks. They are durable after the next
    /// [`Log::barrier`]; only then [`Log::end_interrupted_pass`].
    pub fn complete_burials(&self, segment: &SegmentToScan) -> u64 {
        self.bury_ancestors(segment.node as usize, segment.index, true)
    }

    /// Takes the flag of an interrupted pass back.
    pub fn end_interrupted_pass(&self, segment: &SegmentToScan) -> Result<()> {
        let pool = &self.pools[segment.node as usize];
        Ok(pool.pool.commit_descriptor(segment.index, &Descriptor { flags: 0, ..segment.descriptor })?)
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

    /// Whether it is certain that the victim holds nothing that is live, or that a snapshot shows.
    pub fn is_wholly_dead(&self) -> bool {
        self.victim().is_wholly_dead()
    }

    /// The most that is to be moved: what counts as live, and tombstones that may not go. 0 if the victim holds neither.
    pub fn bytes_to_move(&self) -> u64 {
        self.victim().live_bytes() + self.log.kept_tombstone_bytes(self.victim())
    }

    /// Whether the victim holds tombstones.
    pub fn has_tombstones(&self) -> bool {
        self.victim().tombstones.load(Ordering::Relaxed) > 0
    }

    /// Whether a tombstone of the victim may go although nothing newer of its key is there.
    pub fn may_drop_tombstone(&self, version: u64) -> bool {
        self.victim().may_drop(version, self.log.tombstones_stay_after())
    }

    /// Reads the victim before it is trusted, if nobody has since the store was opened.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`]: what is damaged would be taken for garbage.
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

    /// Marks dead the ancestors of the victim's entries, durably; returns how many.
    ///
    /// Nothing if no pool outlives the process.
    pub fn bury(&self) -> Result<u64> {
        if !self.log.outlives_the_process() {
            return Ok(0);
        }
        // What is damaged would be taken for garbage.
        self.log.verify_segment(self.node, self.index)?;
        // One at a time: a walk must not take another's mark for the end of a chain before that mark is durable.
        let _alone = self.log.burials.lock();
        let marked = self.log.bury_ancestors(self.node, self.index, false);
        if marked > 0 {
            self.log.barrier()?;
        }
        Ok(marked)
    }

    pub(crate) fn free(&mut self) -> Result<()> {
        let (pool, index) = (&self.log.pools[self.node], self.index);
        let segment = &pool.segments[index as usize];
        assert_eq!(segment.state(), SegmentState::Collecting, "a segment is freed by the one pass that has it");
        pool.pool.commit_descriptor(index, &pool.describe(index, OnMedia::Free))?;
        // Before the state says so: from then on it is anybody's.
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
            // As it was. First, for who waits for the passes to end goes by the states of the segments then.
            self.victim().change_state(SegmentState::Collecting, SegmentState::Sealed);
        }
        self.log.passes.fetch_sub(1, Ordering::AcqRel);
    }
}
