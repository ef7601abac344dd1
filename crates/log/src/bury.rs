//! Burying: a pass marks the older entries of its victim's keys dead, because the victim's links are the way to them (NStore, section
//! III-E; step 2 of a pass in `docs/adr/0011`).
//!
//! # Thread safety
//!
//! One burial at a time. Runs beside writers and readers, and beside passes that free segments through which it walks.
//!
//! # Crash behaviour
//!
//! The victim's [`COLLECTING`](crate::pass::COLLECTING) flag is durable before the first mark. Recovery completes what it finds under
//! the flag. The marks are durable before the next burial begins.

use crate::address;
use crate::chain::{Child, Link};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::pass::Pass;
use crate::replay::{self, ScanTotals, SegmentToScan};
use crate::segment::SegmentState;
use hither_pmem::Descriptor;
use hither_sync::epoch;
use std::sync::atomic::Ordering;

/// How many links are followed at the same time, so that their misses overlap.
const AHEAD: usize = 16;
/// How many walks share one epoch pin, which holds up the reuse of freed segments.
const WALKS_PER_PIN: usize = 256;

/// What the walks from a segment's entries did.
pub(crate) struct Burial {
    /// Number of marks.
    pub marked: u64,
    /// The entries of the segment.
    found: ScanTotals,
    /// A place where a walk ended at an entry that was damaged. What lies behind that is not buried.
    ended_at: Option<Link>,
}

impl Log {
    /// Makes marks and moved entries durable.
    pub fn barrier(&self) -> Result<()> {
        for pool in &self.pools {
            pool.pool.fence();
            pool.pool.sync()?;
        }
        Ok(())
    }

    /// Marks dead all ancestors of the entries of a segment, except those in the segment to which its entries link directly.
    ///
    /// `through_marks` is for an interrupted pass. Then a dead entry does not count as the end of a chain, and the ancestors inside the
    /// segment are marked, too, because the segment will not be freed. The marks are durable after the next [`Log::barrier`].
    pub(crate) fn bury_ancestors(&self, node: usize, index: u32, through_marks: bool) -> Burial {
        let mut walks: Vec<(Link, Child<'_>)> = Vec::new();
        let found = self.visit_segment(node, index, |reference, version, keyspace, entry| {
            if entry.is_dead() {
                return;
            }
            if let Some(link) = self.link(entry.parent(), entry.parent_generation())
                && (through_marks || (link.node, link.segment) != (node, index as usize))
            {
                walks.push((link, self.child(reference, entry, keyspace, version)));
            }
        });
        let (mut burial, mut pin) = (Burial { marked: 0, found, ended_at: None }, epoch::pin());
        let (mut known, mut chain) = (Vec::new(), Vec::new());
        for (number, &(link, child)) in walks.iter().enumerate() {
            // Another collector may free segments that a walk passes; a link is looked up and followed under one pin.
            if number % WALKS_PER_PIN == 0 {
                drop(pin);
                pin = epoch::pin();
            }
            let Some(link) = self.link_again(&link) else { continue };
            if let Some((ahead, ..)) = walks.get(number + AHEAD) {
                self.prefetch_link(ahead);
            }
            // A recovery does not ask: an opening that scans the damaged segment is refused, unless it salvages.
            let end = self.walk_chain(link, child, through_marks, &mut chain).filter(|_| !through_marks);
            if let Some(lost) = end.filter(|end| self.may_lead_to_damage(end, &mut known)) {
                burial.ended_at.get_or_insert(lost);
                continue;
            }
            for &(reference, was_dead) in &chain {
                self.mark_dead_on_media(reference);
                burial.marked += u64::from(!was_dead);
            }
        }
        burial
    }

    /// Collects the entries along a chain, and whether each is marked. Returns the link at the end, if it leads to nothing valid.
    ///
    /// Another walk that meets a mark takes everything behind it for marked. So a pass marks either all of these entries or, where
    /// the chain may go on behind damage, none. A chain may lead out of the victim and into it again; its entries in the victim are marked,
    /// too, since the victim may be given up.
    fn walk_chain<'a>(&'a self, first: Link, mut child: Child<'a>, through_marks: bool, chain: &mut Vec<(u64, bool)>) -> Option<Link> {
        chain.clear();
        let mut next = Some(first);
        while let Some(link) = next {
            let Some(found) = self.ancestor(link, &child) else { return self.follow(link).is_none().then_some(link) };
            let was_dead = found.entry.is_dead();
            if was_dead && !through_marks {
                break;
            }
            chain.push((address::pack(link.node as u32, link.offset, 0), was_dead));
            (next, child) = (self.link(found.entry.parent(), found.entry.parent_generation()), found.child);
        }
        None
    }

    /// Whether a link that leads to nothing valid may lead to an entry that was damaged. Most are only old: the segment is in another
    /// life, whose generation has the same low byte. So this is determined from the whole segment. `known` remembers the
    /// answers. Call under the pin under which the link was found.
    fn may_lead_to_damage(&self, link: &Link, known: &mut Vec<((usize, u64), bool)>) -> bool {
        let segment = &self.pools[link.node].segments[link.segment];
        let life = (link.node, link.generation);
        if let Some((_, is_damaged)) = known.iter().find(|(other, _)| *other == life) {
            return *is_damaged;
        }
        let is_damaged = segment.damaged.load(Ordering::Relaxed)
            || self.verify_segment(link.node, link.segment as u32).is_err()
            || matches!(segment.state(), SegmentState::Sealed | SegmentState::Collecting)
                && !segment.holds(&self.visit_segment(link.node, link.segment as u32, |_, _, _, _| ()));
        known.push((life, is_damaged));
        is_damaged
    }

    /// Completes the burials of a pass that a crash interrupted, during recovery. Returns the number of marks. They are durable after the
    /// next [`Log::barrier`]; call [`Log::end_interrupted_pass`] only after that.
    pub fn complete_burials(&self, segment: &SegmentToScan) -> u64 {
        self.bury_ancestors(segment.node as usize, segment.index, true).marked
    }

    /// Clears the flag of an interrupted pass.
    pub fn end_interrupted_pass(&self, segment: &SegmentToScan) -> Result<()> {
        let pool = &self.pools[segment.node as usize];
        Ok(pool.pool.commit_descriptor(segment.index, &Descriptor { flags: 0, ..segment.descriptor })?)
    }
}

impl Pass<'_> {
    /// Marks the ancestors of the victim's entries dead, durably. Returns how many.
    ///
    /// Does nothing if no pool outlives the process.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`]: the victim is damaged, or an entry on a chain from it. Older entries of that key are not marked then,
    /// and the victim must stay, because it may hold what keeps them out. It is no candidate any more.
    pub fn bury(&self) -> Result<u64> {
        let log = self.log();
        if !log.outlives_the_process() {
            return Ok(0);
        }
        // Damaged entries would count as garbage.
        log.verify_segment(self.node(), self.segment())?;
        // One at a time: a walk must not take another walk's mark for the end of a chain before that mark is durable.
        let _alone = log.burials.lock();
        let burial = log.bury_ancestors(self.node(), self.segment(), false);
        if burial.marked > 0 {
            log.barrier()?;
        }
        self.ensure_whole(&burial.found)?;
        match burial.ended_at {
            Some(link) => Err(self.leads_to_damage(link)),
            None => Ok(burial.marked),
        }
    }

    fn leads_to_damage(&self, link: Link) -> Error {
        self.victim().leads_to_damage.store(true, Ordering::Relaxed);
        Error::Damaged {
            pool: replay::name_of(&self.log().pools[link.node].pool, link.node as u32),
            segment: link.segment as u32,
            offset: link.offset,
            what: format!("an older entry there cannot be read, and segment {} may hold what keeps it out", self.segment()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::entry::{Op, Parts};
    use crate::pass::Pass;
    use crate::{Candidate, Error, Flush, Log, TakeBack, Tombstones, address};
    use hither_pmem::{CreateOptions, Emulate};

    /// A log of which each shard fills one segment.
    fn log() -> Log {
        let log =
            Log::for_tests_with(&CreateOptions { segment_bytes: 4096, emulate: Some(Emulate::Adr), ..CreateOptions::new(1 << 20) }, 4);
        log.pool(0).finish_creation().expect("memory");
        log.load_tables(None).expect("no damage");
        log
    }

    fn write(log: &Log, shard: u64, op: Op, parent: u64) -> u64 {
        let value: &[u8] = if op == Op::Delete { b"" } else { b"a value!" };
        let parts =
            Parts { op, key: b"one key!", value, keyspace: 1, parent, parent_generation: log.generation_tag(parent), ..Parts::EMPTY };
        log.write_to_shard_for_tests(shard, parts, Flush::Now).0
    }

    fn seal(log: &Log) {
        log.pools[0].close_from(0);
        log.seal(&|_| Ok(()), TakeBack::All).expect("memory");
        log.settle(&|_| Ok(())).expect("memory");
    }

    fn damage(log: &Log, reference: u64) {
        let value = address::unpack(reference).offset + 24;
        log.pool(0).store_u64(value, log.pool(0).load_u64(value) ^ 1 << 40);
    }

    fn begin(log: &Log, index: u32, tombstones: Tombstones) -> Pass<'_> {
        let candidate = Candidate { node: 0, index, gain: 0, live: 0, age: 0, generation: 0 };
        log.begin_pass(&candidate, tombstones).expect("memory").expect("it is sealed")
    }

    /// Buries what the entries of a segment have superseded.
    fn bury(log: &Log, index: u32) -> crate::Result<u64> {
        begin(log, index, Tombstones::Buried).bury()
    }

    /// Regression: they were thought to be moved as by the other collector, so their pass asked for room that it did not need.
    #[test]
    fn tombstones_that_go_with_their_segment_need_no_room() {
        let log = log();
        let tombstone = write(&log, 0, Op::Delete, 0);
        seal(&log);
        let index = log.segment_of(tombstone).1;
        assert_eq!(begin(&log, index, Tombstones::Buried).bytes_to_move(), 0);
        assert!(begin(&log, index, Tombstones::Swept).bytes_to_move() > 0, "until they were swept");
    }

    /// Regression: a walk ended at a damaged entry as at the end of a chain. The tombstone went with its segment, and the deleted key
    /// was back after a restart.
    #[test]
    fn a_tombstone_stays_while_a_damaged_entry_hides_what_it_keeps_out() {
        // The damaged entry lies in a segment of its own, or with the tombstone.
        for middle_shard in [1, 2] {
            let log = log();
            let oldest = write(&log, 0, Op::Insert, 0);
            let middle = write(&log, middle_shard, Op::Update, oldest);
            let tombstone = write(&log, 2, Op::Delete, middle);
            seal(&log);
            damage(&log, middle);
            let index = log.segment_of(tombstone).1;
            let outcome = bury(&log, index);
            assert!(matches!(outcome, Err(Error::Damaged { .. })), "{outcome:?}");
            assert!(!log.entry(oldest).is_dead() && !log.entry(tombstone).is_dead());
            // It is not tried again and again.
            let is_tried = |tombstones| log.candidates(tombstones, |_| true).iter().any(|candidate| candidate.index == index);
            assert!(!is_tried(Tombstones::Buried));
            assert_eq!(is_tried(Tombstones::Swept), middle_shard == 1, "others can find out what the tombstone keeps out");
        }
    }

    /// Regression: such a walk left marks above the damaged entry. The walk from a tombstone met them, took everything behind them for
    /// marked, and the tombstone went with its segment.
    #[test]
    fn a_walk_that_ends_at_damage_leaves_no_mark_for_another_to_trust() {
        let log = log();
        let oldest = write(&log, 0, Op::Insert, 0);
        let damaged = write(&log, 1, Op::Update, oldest);
        let above = write(&log, 2, Op::Update, damaged);
        let newest = write(&log, 3, Op::Update, above);
        seal(&log);
        damage(&log, damaged);
        let outcome = bury(&log, log.segment_of(newest).1);
        assert!(matches!(outcome, Err(Error::Damaged { .. })), "{outcome:?}");
        assert!(!log.entry(above).is_dead());
        let tombstone = write(&log, 0, Op::Delete, newest);
        seal(&log);
        let outcome = bury(&log, log.segment_of(tombstone).1);
        assert!(matches!(outcome, Err(Error::Damaged { .. })), "{outcome:?}");
        assert!(!log.entry(oldest).is_dead());
    }

    /// What a link named may be long gone, and its segment in a life whose generation looks the same.
    #[test]
    fn an_old_link_into_another_life_is_the_end_of_a_chain() {
        let log = log();
        let of_another_life = write(&log, 0, Op::Insert, 0);
        let update = write(&log, 1, Op::Update, of_another_life + 8);
        seal(&log);
        assert_eq!(bury(&log, log.segment_of(update).1).expect("no damage"), 0);
        assert!(!log.entry(of_another_life).is_dead());
    }
}
