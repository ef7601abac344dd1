//! The batched collector, and the sweep that lets tombstones go (ADR 0014).
//!
//! A batch runs in one section, in four steps:
//!
//! 1. *Collect* the entries of the victim that the index names, those that only a snapshot shows, and the tombstones
//!    that must stay.
//! 2. *Append* their copies.
//! 3. *Fence*.
//! 4. *Swing* the references that still name the sources to the copies.
//!
//! It holds no latch and buries no ancestors.
//!
//! Invariant, in place of the chain collector's reach: every entry that is neither dead nor the newest of its key has a
//! newer one that is not dead. It holds as long as no newest entry goes. Only a tombstone may go: if the index has
//! something newer for its key by then, or if a *sweep* has ensured that nothing older is left.
//!
//! A sweep draws a stable version. Then it marks every value up to that version that is older than what the index names
//! for its key, or for whose key the index names nothing. The code does this for keys with a tombstone up to that
//! version only. The model does it for all keys, because the code's filter may err. Whatever is marked was superseded
//! by something that is made durable first.

use super::bounds::{Bounds, Collector, Medium};
use super::collector::{is_in_checkpoints, secure, version_of_copy};
use super::flaw::Flaw;
use super::media::{COLD, Entry, Kind, Mark, Place};
use super::state::{CollectorAt, State, SweeperAt};
use super::step::Step;
use super::writer::Next;

fn source(state: &State, slot: usize) -> Option<(Place, Entry)> {
    let victim = state.collector.victim;
    let segment = &state.media.segments[victim as usize];
    let place = Place { segment: victim, slot: slot as u8, generation: segment.generation };
    segment.slots[slot].map(|entry| (place, entry))
}

fn saved(state: &State, place: Place, entry: &Entry) -> bool {
    state.snapshot.is_some_and(|snapshot| snapshot.saved[entry.key as usize] == Some(place))
}

/// Whether a tombstone of the victim must be moved rather than dropped.
fn must_stay(bounds: &Bounds, state: &State, entry: &Entry) -> bool {
    let newer = state.index[entry.key as usize].is_some();
    let swept = entry.version <= state.sweeper.retired || bounds.lacks(Flaw::TombstoneNotSwept);
    let free_to_go = is_in_checkpoints(bounds, state, entry.version, Flaw::SweptBeforeCheckpoint);
    entry.alive() && !newer && !(swept && free_to_go)
}

/// Whether an entry is known to be garbage, so that the index need not be asked: it was overwritten or moved in this
/// life of the segment, and no snapshot shows it.
fn is_known_garbage(bounds: &Bounds, state: &State, place: Place) -> bool {
    match state.garbage[place.segment as usize][place.slot as usize] {
        0 => false,
        generation => generation == place.generation || bounds.lacks(Flaw::GarbageOutlivesSegment),
    }
}

/// Looks through the victim for what must be copied.
pub fn collect(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    for slot in 0..bounds.slots {
        let Some((place, entry)) = source(state, slot) else { continue };
        after.collector.live[slot] = match entry.kind {
            Kind::Put | Kind::Expiring if is_known_garbage(bounds, state, place) => None,
            Kind::Delete => must_stay(bounds, state, &entry).then_some(false),
            Kind::Put | Kind::Expiring if state.index[entry.key as usize] == Some(place) => Some(false),
            Kind::Put | Kind::Expiring => saved(state, place, &entry).then_some(true),
        };
    }
    let count = after.collector.live.iter().flatten().count() as u8;
    if count == 0 {
        after.collector.at = CollectorAt::Moved;
        return secure(bounds, &after, next);
    }
    after.collector.at = CollectorAt::Collected;
    next.push((Step::CollectLive { count }, after));
}

/// Appends the copies.
pub fn append(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    let mut count = 0;
    for slot in 0..bounds.slots {
        let Some(born_dead) = state.collector.live[slot] else { continue };
        let (place, entry) = source(state, slot).expect("it was there");
        let Some(to) = after.media.reserve(COLD, bounds.segments, bounds.slots) else { return };
        let (parent, mark) = if born_dead { (None, Mark::Dead) } else { (Some(place), Mark::Alive) };
        let version = version_of_copy(bounds, state, &entry);
        after.media.store(to, Entry { parent, copy: true, version, batch: 0, member: 0, durable: false, mark, ..entry });
        after.collector.copies[slot] = Some(to);
        count += 1;
    }
    after.collector.at = CollectorAt::Appended;
    next.push((Step::AppendCopies { count }, after));
}

/// Takes the one fence of a batch.
pub fn fence(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    for copy in state.collector.copies.into_iter().flatten() {
        after.media.entry_mut(copy).durable |= bounds.medium == Medium::Fence && !bounds.lacks(Flaw::BatchNotFenced);
    }
    after.collector.at = CollectorAt::Swinging(0);
    next.push((Step::FenceCopies, after));
}

/// Swings the next reference to its copy, if the reference still names the source.
pub fn swing(bounds: &Bounds, state: &State, slot: u8, next: &mut Next) {
    let mut after = state.clone();
    let left = (slot as usize..bounds.slots).find(|&slot| state.collector.copies[slot].is_some());
    let Some(slot) = left else {
        after.media.sync_marks();
        after.collector.at = CollectorAt::Moved;
        return secure_later(after, next);
    };
    let copy = state.collector.copies[slot].expect("it was found");
    let (at, entry) = source(state, slot).expect("the victim is whole");
    let key = entry.key as usize;
    after.collector.at = CollectorAt::Swinging(slot as u8 + 1);
    if entry.kind == Kind::Delete {
        next.push((Step::SwingReference { at, swung: true }, after));
        return;
    }
    let swung = state.index[key] == Some(at) || bounds.lacks(Flaw::SwungBlindly);
    if swung {
        after.index[key] = Some(copy);
        after.note_garbage(at);
    } else {
        let mark = &mut after.media.entry_mut(copy).mark;
        // This rule goes together with the wait of the sweep: either of the two alone would suffice.
        *mark = if *mark == Mark::Alive && !bounds.lacks(Flaw::SweepDoesNotWait) { Mark::Written } else { *mark };
        if saved(state, at, &entry)
            && !bounds.lacks(Flaw::FailedCopyNotRetained)
            && let Some(snapshot) = &mut after.snapshot
        {
            snapshot.saved[key] = Some(copy);
        }
    }
    next.push((Step::SwingReference { at, swung }, after));
}

/// Ends the section.
fn secure_later(after: State, next: &mut Next) {
    next.push((Step::FenceCopies, after));
}

/// Adds what the sweeper may do next.
pub fn sweeps(bounds: &Bounds, state: &State, next: &mut Next) {
    if bounds.collector != Collector::Batched {
        return;
    }
    match state.sweeper.at {
        SweeperAt::Idle => begin_sweep(bounds, state, next),
        SweeperAt::Sweeping(segment) => sweep(bounds, state, segment, next),
    }
}

fn begin_sweep(bounds: &Bounds, state: &State, next: &mut Next) {
    let waits = !bounds.lacks(Flaw::SweepDoesNotWait);
    let tombstones = state.media.entries().any(|(_, entry)| entry.kind == Kind::Delete);
    if state.budget.sweeps == 0 || !tombstones || !state.writers_idle() || (waits && state.collector_moves()) {
        return;
    }
    let mut after = state.clone();
    after.budget.sweeps -= 1;
    let version = after.draw_stable();
    after.sweeper.version = version;
    after.sweeper.at = SweeperAt::Sweeping(0);
    next.push((Step::BeginSweep { version }, after));
}

/// Marks superseded entries in the next segment. Behind the last segment, makes the marks durable.
fn sweep(bounds: &Bounds, state: &State, segment: u8, next: &mut Next) {
    let mut after = state.clone();
    if segment as usize == bounds.segments {
        if !bounds.lacks(Flaw::RetiredBeforeBarrier) {
            after.media.sync_marks();
        }
        after.sweeper.retired = state.sweeper.version;
        after.sweeper.at = SweeperAt::Idle;
        next.push((Step::EndSweep, after));
        return;
    }
    let blind = bounds.lacks(Flaw::CopyInFlightSwept);
    let superseded = |place: Place, entry: &Entry| {
        let counts = entry.kind != Kind::Delete && entry.alive() && entry.version <= state.sweeper.version;
        let newer = match state.index[entry.key as usize] {
            None => true,
            Some(current) if current == place => false,
            // The copy of a batch under way has the version of the entry that the index names, and the index will name
            // the copy.
            Some(current) => state.media.at(current).is_some_and(|other| other.version > entry.version) || blind,
        };
        counts && place.segment == segment && newer
    };
    let places: Vec<Place> = state.media.entries().filter(|&(place, entry)| superseded(place, entry)).map(|(place, _)| place).collect();
    if !places.is_empty() && bounds.medium == Medium::Sync && !bounds.lacks(Flaw::SweptEarly) {
        if !state.quiet() {
            return;
        }
        after.draw_stable();
        after.commit();
    }
    for &place in &places {
        after.media.entry_mut(place).mark = Mark::Written;
    }
    after.sweeper.at = SweeperAt::Sweeping(segment + 1);
    next.push((Step::SweepSegment { segment, marked: places.len() as u8 }, after));
}

/// Adds what the verification after a restart may find to be garbage. The code asks only about entries that were there
/// when the store was opened. The model may ask about every entry that is not in the hands of a writer or the
/// collector.
pub fn verification(bounds: &Bounds, state: &State, next: &mut Next) {
    if bounds.collector != Collector::Batched {
        return;
    }
    for (place, entry) in state.media.entries() {
        let key = entry.key as usize;
        let on_its_way = state.writers.iter().any(|writer| writer.new[key] == Some(place)) || state.collector.copies.contains(&Some(place));
        let known = state.garbage[place.segment as usize][place.slot as usize] == place.generation;
        if entry.kind != Kind::Delete
            && !known
            && state.index[key] != Some(place)
            && (!on_its_way || bounds.lacks(Flaw::VerificationTakesNew))
            && (!saved(state, place, entry) || bounds.lacks(Flaw::VerificationForgetsSnapshots))
        {
            let mut after = state.clone();
            after.note_garbage(place);
            next.push((Step::FindGarbage { at: place }, after));
        }
    }
}
