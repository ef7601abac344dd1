//! Recovery: from media to an index.
//!
//! 1. *Harden*: make durable what was found, before anything is concluded from it.
//! 2. *Mark* dead: members of unfinished batches; for each entry of an open segment whose link names nothing or such a
//!    member, all older entries of its key; and what interrupted passes of the collector would have marked.
//! 3. *Sync* the marks.
//! 4. *Open*: load the checkpoint, scan what it does not cover, accept writes.

use super::bounds::{Bounds, KEYS, SLOTS};
use super::collector::ancestors_to_bury;
use super::flaw::Flaw;
use super::media::{COLD, Checkpoint, Entry, Kind, Mark, Media, Place};
use super::state::{Phase, State};
use super::step::Step;
use super::writer::{Next, has_expired};

/// Members of batches that are not whole.
fn unfinished(bounds: &Bounds, media: &Media) -> Vec<Place> {
    let settled = media.visible_checkpoint().map_or(0, |checkpoint| checkpoint.version).max(media.settled);
    let counts = |entry: &Entry| entry.batch > 0 && (entry.alive() || !bounds.lacks(Flaw::DeadMembersNotCounted));
    let members = |base: u8| media.entries().filter(|(_, entry)| counts(entry) && entry.base() == base).count();
    let missing = |entry: &Entry| entry.base() > settled && members(entry.base()) != entry.batch as usize;
    media.entries().filter(|(_, entry)| entry.batch > 0 && missing(entry)).map(|(place, _)| place).collect()
}

/// Entries that are older than an entry of the same key whose link is broken.
fn cut_off(bounds: &Bounds, media: &Media, unfinished: &[Place]) -> Vec<Place> {
    let is_broken = |link: Place| {
        let empty = media.segments[link.segment as usize].slots[link.slot as usize].is_none();
        let member = unfinished.contains(&link) && !bounds.lacks(Flaw::UnfinishedMemberPassesForLink);
        media.holds(link) && (empty || member) && !bounds.lacks(Flaw::ChainNotRepaired)
    };
    let mut cut: Vec<Place> = Vec::new();
    for (place, child) in media.entries().filter(|(place, entry)| entry.alive() && !unfinished.contains(place)) {
        if !media.segments[place.segment as usize].sealed && child.parent.is_some_and(is_broken) {
            let older = media.entries().filter(|(_, entry)| entry.alive() && entry.key == child.key && entry.version < child.version);
            cut.extend(older.map(|(place, _)| place));
        }
    }
    cut.sort_unstable_by_key(|place| (place.segment, place.slot));
    cut.dedup();
    cut
}

/// The candidate for a key while an index is built: its place, and whether it was loaded from the checkpoint.
type Slot = Option<(Place, bool)>;

/// The index that an opening builds from media on which all marks were made.
fn index_of(bounds: &Bounds, media: &Media) -> [Option<Place>; KEYS] {
    let checkpoint = media.visible_checkpoint();
    let mut index: [Slot; KEYS] = [None; KEYS];
    if let Some(checkpoint) = checkpoint {
        index = checkpoint.named.map(|named| named.and_then(|place| load(bounds, media, checkpoint, place)));
    }
    if !(media.clean && checkpoint.is_some()) {
        for (place, entry) in media.entries().filter(|(_, entry)| entry.alive()) {
            if !checkpoint.is_some_and(|checkpoint| is_covered(bounds, media, checkpoint, place)) {
                compete(bounds, media, checkpoint, &mut index[entry.key as usize], place, entry);
            }
        }
    }
    let is_tombstone = |place: Place| media.at(place).is_some_and(|entry| entry.kind == Kind::Delete);
    index.map(|slot| slot.map(|(place, _)| place).filter(|&place| !is_tombstone(place)))
}

fn load(bounds: &Bounds, media: &Media, checkpoint: &Checkpoint, place: Place) -> Slot {
    let segment = &media.segments[place.segment as usize];
    let holds = segment.generation == checkpoint.table[place.segment as usize] && segment.generation == place.generation;
    let in_use = segment.in_use || bounds.lacks(Flaw::FreeSegmentsTrusted);
    let counts = (holds && in_use) || bounds.lacks(Flaw::GenerationsIgnored);
    counts.then_some((Place { generation: segment.generation, ..place }, true))
}

fn is_covered(bounds: &Bounds, media: &Media, checkpoint: &Checkpoint, place: Place) -> bool {
    let segment = &media.segments[place.segment as usize];
    checkpoint.covered[place.segment as usize].is_some_and(|(generation, tail)| {
        (generation == segment.generation || bounds.lacks(Flaw::GenerationsIgnored)) && place.slot < tail && (tail as usize) <= SLOTS
    })
}

/// Lets a scanned entry compete with its key's candidate.
fn compete(bounds: &Bounds, media: &Media, checkpoint: Option<&Checkpoint>, slot: &mut Slot, place: Place, entry: &Entry) {
    let old_news = checkpoint.is_some_and(|checkpoint| entry.version <= checkpoint.version);
    if old_news && !takes_part(bounds, entry) {
        return;
    }
    let wins = match *slot {
        None => true,
        Some((current, loaded)) => match media.at(current) {
            None => true,
            Some(other) if other.version == entry.version => wins_over_equal(bounds, (place, entry), (current, other), loaded),
            Some(other) => entry.version > other.version,
        },
    };
    if wins {
        *slot = Some((place, false));
    }
}

/// Whether an entry takes part that is not newer than the checkpoint and lies in a segment that the checkpoint does not
/// cover. Copies do, because they were moved after the capture. Tombstones do, because they may delete such a copy.
/// About all other entries the checkpoint knows better.
fn takes_part(bounds: &Bounds, entry: &Entry) -> bool {
    match entry.kind {
        _ if bounds.lacks(Flaw::OldEntriesInstalled) => true,
        _ if entry.copy => !bounds.lacks(Flaw::OldCopiesIgnored),
        Kind::Delete => !bounds.lacks(Flaw::OldTombstonesIgnored),
        Kind::Put | Kind::Expiring => false,
    }
}

/// Whether the new one of two entries of one version wins. They are a copy and its source, or copies of one source.
fn wins_over_equal(bounds: &Bounds, new: (Place, &Entry), old: (Place, &Entry), loaded: bool) -> bool {
    let new_is_source = old.1.parent == Some(new.0);
    let new_is_copy = new.1.parent == Some(old.0);
    if bounds.lacks(Flaw::DuplicateLeft) && !loaded {
        return new_is_source;
    }
    if bounds.lacks(Flaw::CopyWithoutLink) && new.1.copy != old.1.copy {
        return new.1.copy;
    }
    if bounds.lacks(Flaw::ScannedLoses) && loaded {
        return false;
    }
    !new_is_source && (new_is_copy || loaded)
}

/// What interrupted passes would have marked. This walk passes dead entries, because an interrupted walk may have left
/// gaps.
fn unburied(bounds: &Bounds, media: &Media) -> Vec<Place> {
    let flagged = (0..media.segments.len() as u8).filter(|&number| {
        let segment = &media.segments[number as usize];
        segment.in_use && segment.collecting && !bounds.lacks(Flaw::PassNotFinished)
    });
    let pass_dead = !bounds.lacks(Flaw::WalkStopsInGap);
    flagged.flat_map(|victim| ancestors_to_bury(bounds, media, victim, pass_dead)).collect()
}

/// With [`Flaw::CopyWithoutLink`]: entries of interrupted victims that are not the current ones of their keys.
fn not_current(bounds: &Bounds, media: &Media) -> Vec<Place> {
    if !bounds.lacks(Flaw::CopyWithoutLink) {
        return Vec::new();
    }
    let index = index_of(bounds, media);
    let flagged = |place: Place| media.segments[place.segment as usize].collecting;
    media.entries().filter(|&(at, entry)| flagged(at) && index[entry.key as usize] != Some(at)).map(|(at, _)| at).collect()
}

/// Marks what must be dead. Returns how many members of unfinished batches it marked, and how many other entries.
fn mark(bounds: &Bounds, media: &mut Media) -> (u8, u8) {
    if media.clean && media.visible_checkpoint().is_some() {
        return (0, 0);
    }
    let unfinished = unfinished(bounds, media);
    let mut others = cut_off(bounds, media, &unfinished);
    others.extend(unburied(bounds, media));
    others.extend(not_current(bounds, media));
    let mut count = |places: &[Place]| {
        let mut marked = 0;
        for &place in places {
            let entry = media.entry_mut(place);
            if entry.alive() {
                entry.mark = Mark::Written;
                marked += 1;
            }
        }
        marked
    };
    (count(&unfinished), count(&others))
}

fn harden(media: &mut Media) {
    media.sync();
    if let Some(pending) = media.pending.take() {
        media.checkpoint = pending;
    }
}

/// Adds the next step of an opening.
pub fn steps(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    match state.phase {
        Phase::Running => {}
        Phase::Found => {
            if !bounds.lacks(Flaw::NotHardened) {
                harden(&mut after.media);
            }
            after.phase = Phase::Hardened;
            next.push((Step::Harden, after));
        }
        Phase::Hardened => {
            let (batch_members, cut_off) = mark(bounds, &mut after.media);
            after.phase = Phase::Marked;
            next.push((Step::MarkDead { batch_members, cut_off }, after));
        }
        Phase::Marked => {
            after.media.sync_marks();
            after.phase = Phase::Synced;
            next.push((Step::SyncMarks, after));
        }
        Phase::Synced => {
            open(bounds, &mut after);
            next.push((Step::Open, after));
        }
    }
}

/// The media after an opening that nothing disturbs, and the index that it builds.
pub fn recover(bounds: &Bounds, mut media: Media) -> (Media, [Option<Place>; KEYS]) {
    harden(&mut media);
    mark(bounds, &mut media);
    media.sync_marks();
    let index = index_of(bounds, &media);
    (media, index)
}

fn open(bounds: &Bounds, state: &mut State) {
    state.index = index_of(bounds, &state.media);
    let on_media = state.media.entries().map(|(_, entry)| entry.version).max().unwrap_or(0);
    let checkpoint = state.media.checkpoint.map_or(0, |checkpoint| checkpoint.version);
    state.next_version = on_media.max(checkpoint).max(state.media.settled) + 1;
    state.media.clean &= bounds.lacks(Flaw::CleanFlagKept);
    state.media.segments.iter_mut().for_each(|segment| segment.collecting = false);
    resume_segments(bounds, &mut state.media);
    for key in 0..KEYS {
        let found = state.index[key].and_then(|place| state.media.at(place)).copied();
        let gone = found.is_some_and(|entry| entry.kind == Kind::Expiring) && has_expired(state, bounds);
        let promise = &mut state.promises[key];
        promise.later.clear();
        promise.value = found.map(|entry| entry.value);
        promise.expiring = found.is_some_and(|entry| entry.kind == Kind::Expiring);
        debug_assert!(!gone || promise.expiring, "only what expires is gone");
    }
    state.phase = Phase::Running;
}

/// Keeps one open segment of each shard, to be filled behind its last entry; seals the others.
fn resume_segments(bounds: &Bounds, media: &mut Media) {
    let mut resumed = [false; COLD as usize + 1];
    for segment in media.segments.iter_mut().filter(|segment| segment.in_use && !segment.sealed) {
        segment.used = segment.slots.iter().rposition(Option::is_some).map_or(0, |last| last as u8 + 1);
        let kind = segment.shard as usize;
        if (segment.used as usize) < bounds.slots && !resumed[kind] {
            resumed[kind] = true;
        } else {
            (segment.sealed, segment.used) = (true, bounds.slots as u8);
        }
    }
}
