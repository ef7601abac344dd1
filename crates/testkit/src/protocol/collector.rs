//! The collector: settle, bury, move, secure, free.

use super::bounds::{Bounds, KEYS, Medium};
use super::flaw::Flaw;
use super::media::{Entry, Kind, Mark, Place};
use super::state::{CollectorAt, State};
use super::step::Step;
use super::writer::{Next, has_expired};

/// What the collector may do next.
pub fn steps(bounds: &Bounds, state: &State, next: &mut Next) {
    match state.collector.at {
        CollectorAt::Idle => choose(bounds, state, next),
        CollectorAt::Chosen => settle(bounds, state, next),
        CollectorAt::Burying(done) => bury(bounds, state, done, next),
        CollectorAt::Marked(done) => {
            let mut after = state.clone();
            after.media.sync_marks();
            after.collector.at = CollectorAt::Burying(done + 1);
            next.push((Step::Barrier, after));
        }
        CollectorAt::Moving(slot) => relocate(bounds, state, slot, next),
        CollectorAt::Copied(slot, copy) => install_copy(bounds, state, slot, copy, next),
        CollectorAt::Moved => secure(bounds, state, next),
        CollectorAt::Secured => free(bounds, state, next),
    }
}

/// Whether no checkpoint that could be loaded is older than a version.
fn is_in_checkpoints(bounds: &Bounds, state: &State, version: u8, ignoring: Flaw) -> bool {
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
        if entries.filter(|entry| entry.kind == Kind::Delete && entry.alive()).all(free_to_go) {
            let mut after = state.clone();
            after.budget.collections -= 1;
            (after.collector.at, after.collector.victim) = (CollectorAt::Chosen, victim as u8);
            next.push((Step::Choose { victim: victim as u8 }, after));
        }
    }
}

fn settle(bounds: &Bounds, state: &State, next: &mut Next) {
    if !state.writers_idle() {
        return;
    }
    let mut after = state.clone();
    let stable = after.draw_stable();
    after.commit();
    if !bounds.lacks(Flaw::SettledNotPersisted) && !bounds.lacks(Flaw::CopiesKeepTag) {
        after.media.settled = stable;
    }
    let full = |used: u8| used as usize >= bounds.slots;
    after.media.segments.iter_mut().filter(|s| s.in_use && full(s.used)).for_each(|segment| segment.sealed = true);
    after.collector.marks = ancestors_to_bury(bounds, &after);
    after.collector.at = CollectorAt::Burying(0);
    next.push((Step::Settle, after));
}

/// Ancestors, outside the victim, of entries in it; each chain oldest first.
fn ancestors_to_bury(bounds: &Bounds, state: &State) -> Vec<Place> {
    let victim = state.collector.victim;
    let mut marks = Vec::new();
    for entry in state.media.segments[victim as usize].slots.iter().flatten().filter(|entry| entry.alive()) {
        let spared = match entry.kind {
            Kind::Delete => bounds.lacks(Flaw::TombstoneNotBuried),
            Kind::Expiring => bounds.lacks(Flaw::ExpiredNotBuried),
            Kind::Put => false,
        };
        if spared {
            continue;
        }
        for place in state.media.ancestors(entry).into_iter().rev() {
            if place.segment != victim && !marks.contains(&place) {
                marks.push(place);
            }
        }
    }
    if bounds.lacks(Flaw::NewestFirst) {
        marks.reverse();
    }
    marks
}

fn bury(bounds: &Bounds, state: &State, done: u8, next: &mut Next) {
    let mut after = state.clone();
    if let Some(&at) = state.collector.marks.get(done as usize) {
        after.media.entry_mut(at).mark = Mark::Written;
        after.collector.at = CollectorAt::Marked(done);
        next.push((Step::MarkAncestor { at }, after));
        return;
    }
    after.collector.marks.clear();
    after.collector.at = CollectorAt::Moving(0);
    relocate(bounds, &after, 0, next);
}

/// Moves the first entry from `slot` on that somebody needs.
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

fn copy_live(bounds: &Bounds, state: &State, slot: u8, from: Place, entry: &Entry, latch: bool, next: &mut Next) {
    let mut after = state.clone();
    let Some(to) = after.media.reserve(true, bounds.segments, bounds.slots) else { return };
    let mut copy = Entry { parent: Some(from), copy: true, batch: 0, member: 0, durable: false, mark: Mark::Alive, ..*entry };
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
    let Some(to) = after.media.reserve(true, bounds.segments, bounds.slots) else { return };
    let mark = if bounds.lacks(Flaw::SnapshotCopyAlive) { Mark::Alive } else { Mark::Dead };
    let durable = bounds.medium == Medium::Fence;
    after.media.store(to, Entry { parent: None, copy: true, batch: 0, member: 0, durable, mark, ..*entry });
    if let Some(snapshot) = &mut after.snapshot {
        snapshot.saved[entry.key as usize] = Some(to);
    }
    after.collector.at = CollectorAt::Moving(slot + 1);
    next.push((Step::MoveForSnapshot { from, to }, after));
}

fn secure(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    if bounds.lacks(Flaw::FreedEarly) {
        return free(bounds, &after, next);
    }
    if state.writers_idle() {
        after.draw_stable();
        after.commit();
        after.collector.at = CollectorAt::Secured;
        next.push((Step::SecureCopies, after));
    }
}

fn free(bounds: &Bounds, state: &State, next: &mut Next) {
    let victim = state.collector.victim;
    let read = state.reader.is_some() && !bounds.lacks(Flaw::NoGracePeriod);
    // Writers may hold references too, within their sections.
    let named = |place: Option<Place>| place.is_some_and(|place| place.segment == victim);
    let held = state.writers.iter().any(|writer| (0..KEYS).any(|key| named(writer.old[key])));
    if read || held {
        return;
    }
    let mut after = state.clone();
    if bounds.lacks(Flaw::CopiesKeepTag) {
        after.media.settled = after.media.settled.max(after.next_version - 1);
    }
    let segment = &mut after.media.segments[victim as usize];
    segment.in_use = false;
    segment.sealed = false;
    after.collector.at = CollectorAt::Idle;
    after.collector.victim = 0;
    next.push((Step::Free { victim }, after));
}
