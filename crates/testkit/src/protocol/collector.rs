//! The collector: settles, buries, moves, secures and frees.

use super::batched;
use super::bounds::{Bounds, Collector, Medium};
use super::flaw::Flaw;
use super::media::{COLD, Entry, Kind, Mark, Media, Place, Segment};
use super::state::{CollectorAt, IDLE_COLLECTOR, State};
use super::step::Step;
use super::writer::{Next, has_expired};

/// Adds what the collector may do next.
pub fn steps(bounds: &Bounds, state: &State, next: &mut Next) {
    match state.collector.at {
        CollectorAt::Idle => choose(bounds, state, next),
        CollectorAt::Chosen => settle(bounds, state, next),
        CollectorAt::Settled => bury(bounds, state, next),
        CollectorAt::Marked => {
            let mut after = state.clone();
            after.media.sync_marks();
            // If marks are left, the next one follows: a flaw marks ancestors one by one.
            after.collector.at = if state.collector.marks.is_empty() { CollectorAt::Moving(0) } else { CollectorAt::Settled };
            next.push((Step::Barrier, after));
        }
        CollectorAt::Moving(_) if bounds.collector == Collector::Batched => batched::collect(bounds, state, next),
        CollectorAt::Collected => batched::append(bounds, state, next),
        CollectorAt::Appended => batched::fence(bounds, state, next),
        CollectorAt::Swinging(slot) => batched::swing(bounds, state, slot, next),
        CollectorAt::Moving(slot) => relocate(bounds, state, slot, next),
        CollectorAt::Copied(slot, copy) => install_copy(bounds, state, slot, copy, next),
        CollectorAt::Moved => secure(bounds, state, next),
        CollectorAt::Secured => free(bounds, state, next),
    }
}

/// Whether no checkpoint that could be loaded is older than `version`. `ignoring` takes out the rule for published
/// checkpoints.
pub fn is_in_checkpoints(bounds: &Bounds, state: &State, version: u8, ignoring: Flaw) -> bool {
    let published = [state.media.checkpoint.as_ref(), state.media.visible_checkpoint()];
    let published = published.into_iter().flatten().all(|checkpoint| checkpoint.version >= version) || bounds.lacks(ignoring);
    let under_way = state.checkpointer.version == 0 || state.checkpointer.version >= version;
    published && (under_way || bounds.lacks(Flaw::TombstoneDuringCheckpoint))
}

fn choose(bounds: &Bounds, state: &State, next: &mut Next) {
    if state.budget.collections == 0 {
        return;
    }
    for victim in 0..bounds.segments {
        let segment = &state.media.segments[victim];
        if !segment.in_use || (!segment.sealed && (segment.used as usize) < bounds.slots) {
            continue;
        }
        let entries = segment.slots.iter().flatten();
        let free_to_go = |entry: &Entry| is_in_checkpoints(bounds, state, entry.version, Flaw::TombstoneBeforeCheckpoint);
        let moves_tombstones = bounds.collector == Collector::Batched;
        if moves_tombstones || entries.filter(|entry| entry.kind == Kind::Delete && entry.alive()).all(free_to_go) {
            let mut after = state.clone();
            after.budget.collections -= 1;
            (after.collector.at, after.collector.victim) = (CollectorAt::Chosen, victim as u8);
            next.push((Step::Choose { victim: victim as u8 }, after));
        }
    }
}

/// Makes everything durable, except with the batched collector on persistent memory: there a commit flushes nothing,
/// because every party that writes, copies or marks also fences. (Of the chain collector's fences only the barrier is a
/// step of its own.)
fn commit(bounds: &Bounds, state: &mut State) {
    if bounds.medium == Medium::Sync || bounds.collector == Collector::Chain {
        state.commit();
    }
}

fn settle(bounds: &Bounds, state: &State, next: &mut Next) {
    if !state.writers_idle() {
        return;
    }
    let mut after = state.clone();
    let stable = after.draw_stable();
    commit(bounds, &mut after);
    if !bounds.lacks(Flaw::SettledNotPersisted) && !bounds.lacks(Flaw::CopiesKeepTag) {
        after.media.settled = stable;
    }
    let full = |used: u8| used as usize >= bounds.slots;
    after.media.segments.iter_mut().filter(|s| s.in_use && full(s.used)).for_each(|segment| segment.sealed = true);
    if bounds.raises {
        let shown = state.snapshot.filter(|_| !bounds.lacks(Flaw::RaisedPastSnapshot)).map_or(stable, |snapshot| snapshot.version);
        after.collector.least = stable.min(shown);
    }
    if bounds.collector == Collector::Batched {
        after.collector.at = CollectorAt::Moving(0);
    } else {
        after.media.segments[state.collector.victim as usize].collecting = !bounds.lacks(Flaw::NewestFirst);
        after.collector.marks = ancestors_to_bury(bounds, &after.media, state.collector.victim, false);
        after.collector.at = CollectorAt::Settled;
    }
    next.push((Step::Settle, after));
}

/// The ancestors of the victim's entries, newest first within each chain. An entry whose parent lies in the victim adds
/// none, because the walk from that parent finds the rest.
pub fn ancestors_to_bury(bounds: &Bounds, media: &Media, victim: u8, pass_dead: bool) -> Vec<Place> {
    let mut marks = Vec::new();
    for entry in media.segments[victim as usize].slots.iter().flatten().filter(|entry| entry.alive()) {
        let spared = match entry.kind {
            Kind::Delete => bounds.lacks(Flaw::TombstoneNotBuried),
            Kind::Expiring => bounds.lacks(Flaw::ExpiredNotBuried),
            Kind::Put => false,
        };
        if spared {
            continue;
        }
        let ancestors = media.ancestors(entry, pass_dead);
        // The parent is a start of its own.
        if ancestors.first().is_some_and(|place| place.segment == victim) {
            continue;
        }
        for place in ancestors {
            if !marks.contains(&place) {
                marks.push(place);
            }
        }
    }
    marks
}

/// Marks all ancestors in one step, in no particular order; a flaw marks them one by one.
fn bury(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    let Some(&at) = state.collector.marks.first() else {
        after.collector.at = CollectorAt::Moving(0);
        return relocate(bounds, &after, 0, next);
    };
    let count = if bounds.lacks(Flaw::NewestFirst) { 1 } else { state.collector.marks.len() };
    for place in after.collector.marks.drain(..count) {
        after.media.entry_mut(place).mark = Mark::Written;
    }
    after.collector.at = CollectorAt::Marked;
    next.push((Step::MarkAncestors { at, count: count as u8 }, after));
}

/// Moves the first entry from `slot` on that the index or a snapshot names.
fn relocate(bounds: &Bounds, state: &State, slot: u8, next: &mut Next) {
    let victim = state.collector.victim;
    let segment = &state.media.segments[victim as usize];
    for slot in slot..bounds.slots as u8 {
        let from = Place { segment: victim, slot, generation: segment.generation };
        let Some(entry) = segment.slots[slot as usize] else { continue };
        let latchless = bounds.lacks(Flaw::FailedCopyLeft) || bounds.lacks(Flaw::CopyGetsNewVersion);
        let latch_free = !state.latched[entry.key as usize] || latchless;
        if state.index[entry.key as usize] == Some(from) {
            if latch_free {
                drop_expired(bounds, state, slot, from, &entry, next);
                copy_live(bounds, state, slot, from, &entry, !latchless, next);
            }
            return;
        }
        if state.snapshot.is_some_and(|snapshot| snapshot.saved[entry.key as usize] == Some(from)) {
            if latch_free && !bounds.lacks(Flaw::SnapshotForgotten) {
                copy_for_snapshot(bounds, state, slot, from, &entry, next);
            }
            if !bounds.lacks(Flaw::SnapshotForgotten) {
                return;
            }
        }
    }
    let mut after = state.clone();
    after.collector.at = CollectorAt::Moved;
    secure(bounds, &after, next);
}

fn drop_expired(bounds: &Bounds, state: &State, slot: u8, at: Place, entry: &Entry, next: &mut Next) {
    let expired = entry.kind == Kind::Expiring && has_expired(state, bounds);
    if expired && is_in_checkpoints(bounds, state, entry.version, Flaw::ExpiredBeforeCheckpoint) {
        let mut after = state.clone();
        after.media.clock |= !bounds.lacks(Flaw::ClockRunsBack);
        after.index[entry.key as usize] = None;
        after.collector.at = CollectorAt::Moving(slot + 1);
        next.push((Step::DropExpired { at }, after));
    }
}

/// The version of a copy. A tombstone keeps its version. Other copies get at least `collector.least`: everything up to
/// that version was installed when the pass began, and every snapshot shows it.
pub fn version_of_copy(bounds: &Bounds, state: &State, entry: &Entry) -> u8 {
    if entry.kind == Kind::Delete && !bounds.lacks(Flaw::RaisedTombstone) {
        return entry.version;
    }
    let least = if bounds.lacks(Flaw::RaisedUnsettled) { state.next_version - 1 } else { state.collector.least };
    entry.version.max(least)
}

fn copy_live(bounds: &Bounds, state: &State, slot: u8, from: Place, entry: &Entry, latch: bool, next: &mut Next) {
    let mut after = state.clone();
    let Some(to) = after.media.reserve(COLD, bounds.segments, bounds.slots) else { return };
    let version = version_of_copy(bounds, state, entry);
    let mut copy = Entry { parent: Some(from), copy: true, version, batch: 0, member: 0, durable: false, mark: Mark::Alive, ..*entry };
    if bounds.lacks(Flaw::CopiesKeepTag) {
        (copy.batch, copy.member) = (entry.batch, entry.member);
    }
    if bounds.lacks(Flaw::CopyWithoutLink) {
        copy.parent = None;
    }
    if bounds.lacks(Flaw::CopyGetsNewVersion) {
        copy.version = after.next_version;
        after.next_version += 1;
    }
    after.media.store(to, copy);
    after.latched[entry.key as usize] |= latch;
    after.collector.at = CollectorAt::Copied(slot, to);
    next.push((Step::MoveCopy { from, to }, after));
}

fn install_copy(bounds: &Bounds, state: &State, slot: u8, copy: Place, next: &mut Next) {
    let mut after = state.clone();
    let victim = state.collector.victim;
    let source = Place { segment: victim, slot, generation: state.media.segments[victim as usize].generation };
    let key = state.media.at(copy).expect("it was just written").key as usize;
    let installed = state.index[key] == Some(source);
    let entry = after.media.entry_mut(copy);
    entry.durable |= bounds.medium == Medium::Fence;
    if !installed && !bounds.lacks(Flaw::FailedCopyLeft) {
        entry.mark = Mark::Dead;
        entry.durable = true;
    }
    if installed {
        after.index[key] = Some(copy);
    }
    if !bounds.lacks(Flaw::FailedCopyLeft) && !bounds.lacks(Flaw::CopyGetsNewVersion) {
        after.latched[key] = false;
    }
    after.collector.at = CollectorAt::Moving(slot + 1);
    next.push((Step::InstallCopy { installed }, after));
}

fn copy_for_snapshot(bounds: &Bounds, state: &State, slot: u8, from: Place, entry: &Entry, next: &mut Next) {
    let mut after = state.clone();
    let Some(to) = after.media.reserve(COLD, bounds.segments, bounds.slots) else { return };
    let mark = if bounds.lacks(Flaw::SnapshotCopyAlive) { Mark::Alive } else { Mark::Dead };
    let (durable, version) = (bounds.medium == Medium::Fence, version_of_copy(bounds, state, entry));
    after.media.store(to, Entry { parent: None, copy: true, version, batch: 0, member: 0, durable, mark, ..*entry });
    if let Some(snapshot) = &mut after.snapshot {
        snapshot.saved[entry.key as usize] = Some(to);
    }
    after.collector.at = CollectorAt::Moving(slot + 1);
    next.push((Step::MoveForSnapshot { from, to }, after));
}

/// Makes the copies durable before the victim is freed.
pub fn secure(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    if bounds.lacks(Flaw::FreedEarly) || bounds.lacks(Flaw::CoveringNotDurable) {
        return free(bounds, &after, next);
    }
    if state.writers_idle() {
        after.draw_stable();
        commit(bounds, &mut after);
        after.collector.at = CollectorAt::Secured;
        next.push((Step::SecureCopies, after));
    }
}

/// Frees the victim. The descriptor becomes free at once; the segment is opened again only when nobody can hold a
/// reference into it.
fn free(bounds: &Bounds, state: &State, next: &mut Next) {
    let victim = state.collector.victim;
    let mut after = state.clone();
    if bounds.lacks(Flaw::CopiesKeepTag) {
        after.media.settled = after.media.settled.max(after.next_version - 1);
    }
    let segment = &mut after.media.segments[victim as usize];
    (segment.in_use, segment.sealed, segment.collecting, segment.retiring) = (false, false, false, true);
    after.collector = IDLE_COLLECTOR;
    next.push((Step::Free { victim }, after));
}

/// Ends the grace period once all readers and writers that might hold a reference have left.
pub fn grace(bounds: &Bounds, state: &State, next: &mut Next) {
    let retiring = |segment: &Segment| segment.retiring;
    let quiet = state.reader.is_none() && state.quiet();
    if state.media.segments.iter().any(retiring) && (quiet || bounds.lacks(Flaw::NoGracePeriod)) {
        let mut after = state.clone();
        after.media.segments.iter_mut().for_each(|segment| segment.retiring = false);
        next.push((Step::GraceEnds, after));
    }
}
