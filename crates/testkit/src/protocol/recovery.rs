//! Recovery: from media to an index.
//!
//! 1. *Harden*: what was found is made durable, before anything is concluded from it.
//! 2. *Mark* dead: members of unfinished batches; then, for each entry of an open segment whose link names nothing, or such a member, all older
//!    entries of its key.
//! 3. *Sync* the marks. 4. *Open*: load the checkpoint, scan what it does not cover, accept writes.

use super::bounds::{Bounds, KEYS, SLOTS};
use super::flaw::Flaw;
use super::media::{Checkpoint, Entry, Kind, Mark, Media, Place};
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

/// Entries that are older than one whose link is broken.
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

/// What a key has while an index is being built.
#[derive(Clone, Copy)]
enum Slot {
    Absent,
    /// The checkpoint names it, but not where it is now.
    Named,
    At {
        place: Place,
        loaded: bool,
    },
}

/// The index that an opening makes of media on which everything is marked.
fn index_of(bounds: &Bounds, media: &Media) -> [Option<Place>; KEYS] {
    let checkpoint = media.visible_checkpoint();
    let mut index = [Slot::Absent; KEYS];
    if let Some(checkpoint) = checkpoint {
        index = checkpoint.named.map(|named| named.map_or(Slot::Absent, |place| load(bounds, media, checkpoint, place)));
    }
    if !(media.clean && checkpoint.is_some()) {
        for (place, entry) in media.entries().filter(|(_, entry)| entry.alive()) {
            if !checkpoint.is_some_and(|checkpoint| is_covered(bounds, media, checkpoint, place)) {
                compete(bounds, media, checkpoint, &mut index[entry.key as usize], place, entry);
            }
        }
    }
    index.map(|slot| match slot {
        Slot::At { place, .. } => Some(place).filter(|&place| media.at(place).is_none_or(|entry| entry.kind != Kind::Delete)),
        Slot::Absent | Slot::Named => None,
    })
}

fn load(bounds: &Bounds, media: &Media, checkpoint: &Checkpoint, place: Place) -> Slot {
    let segment = &media.segments[place.segment as usize];
    let holds = segment.generation == checkpoint.table[place.segment as usize] && segment.generation == place.generation;
    let in_use = segment.in_use || bounds.lacks(Flaw::FreeSegmentsTrusted);
    if (holds && in_use) || bounds.lacks(Flaw::GenerationsIgnored) {
        return Slot::At { place: Place { generation: segment.generation, ..place }, loaded: true };
    }
    Slot::Named
}

fn is_covered(bounds: &Bounds, media: &Media, checkpoint: &Checkpoint, place: Place) -> bool {
    let segment = &media.segments[place.segment as usize];
    checkpoint.covered[place.segment as usize].is_some_and(|(generation, tail)| {
        (generation == segment.generation || bounds.lacks(Flaw::GenerationsIgnored)) && place.slot < tail && (tail as usize) <= SLOTS
    })
}

/// A scanned entry against what its key has.
fn compete(bounds: &Bounds, media: &Media, checkpoint: Option<&Checkpoint>, slot: &mut Slot, place: Place, entry: &Entry) {
    let old_news = checkpoint.is_some_and(|checkpoint| entry.version <= checkpoint.version);
    let wins = match *slot {
        Slot::Absent => !old_news || bounds.lacks(Flaw::OldEntriesInstalled),
        Slot::Named => !old_news || !bounds.lacks(Flaw::OldEntriesIgnored),
        Slot::At { place: current, loaded } => match media.at(current) {
            None => true,
            Some(other) if other.version == entry.version => wins_over_equal(bounds, (place, entry), (current, other), loaded),
            Some(other) => entry.version > other.version && !(old_news && bounds.lacks(Flaw::OldEntriesIgnored)),
        },
    };
    if wins {
        *slot = Slot::At { place, loaded: false };
    }
}

/// Two entries of one version are a copy and its source, or copies of one source.
fn wins_over_equal(bounds: &Bounds, new: (Place, &Entry), old: (Place, &Entry), loaded: bool) -> bool {
    let new_is_source = old.1.parent == Some(new.0);
    let new_is_copy = new.1.parent == Some(old.0);
    if bounds.lacks(Flaw::DuplicateLeft) && !loaded {
        return new_is_source;
    }
    if bounds.lacks(Flaw::ScannedLoses) && loaded {
        return false;
    }
    !new_is_source && (new_is_copy || loaded)
}

/// With [`Flaw::CopyWithoutLink`]: of two entries of one version that meet, the one that lost is marked dead.
fn losers(bounds: &Bounds, media: &Media) -> Vec<Place> {
    if !bounds.lacks(Flaw::CopyWithoutLink) {
        return Vec::new();
    }
    let index = index_of(bounds, media);
    let twin = |place: Place, entry: &Entry| {
        let winner = index[entry.key as usize].and_then(|winner| Some((winner, media.at(winner)?)));
        winner.is_some_and(|(at, winner)| at != place && winner.version == entry.version)
    };
    media.entries().filter(|&(place, entry)| entry.alive() && twin(place, entry)).map(|(place, _)| place).collect()
}

/// Marks what must be dead; how many members of unfinished batches, and others.
fn mark(bounds: &Bounds, media: &mut Media) -> (u8, u8) {
    if media.clean && media.visible_checkpoint().is_some() {
        return (0, 0);
    }
    let unfinished = unfinished(bounds, media);
    let mut others = cut_off(bounds, media, &unfinished);
    others.extend(losers(bounds, media));
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

/// The next step of an opening.
pub fn steps(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    match state.phase {
        Phase::Running => {}
        Phase::Found if !bounds.lacks(Flaw::MarksBeforeHardening) => {
            harden(&mut after.media);
            after.phase = Phase::Hardened;
            next.push((Step::Harden, after));
        }
        Phase::Found | Phase::Hardened => {
            let (batch_members, cut_off) = mark(bounds, &mut after.media);
            after.phase = Phase::Marked;
            next.push((Step::MarkDead { batch_members, cut_off }, after));
        }
        Phase::Marked => {
            harden(&mut after.media);
            after.phase = Phase::Synced;
            next.push((Step::SyncMarks, after));
        }
        Phase::Synced => {
            open(bounds, &mut after);
            next.push((Step::Open, after));
        }
    }
}

/// The index that an undisturbed opening of these media would have, and the media then.
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

/// One open segment of each kind goes on being filled behind its last entry; the others are sealed.
fn resume_segments(bounds: &Bounds, media: &mut Media) {
    let mut resumed = [false; 2];
    for segment in media.segments.iter_mut().filter(|segment| segment.in_use && !segment.sealed) {
        segment.used = segment.slots.iter().rposition(Option::is_some).map_or(0, |last| last as u8 + 1);
        let kind = usize::from(segment.cold);
        if (segment.used as usize) < bounds.slots && !resumed[kind] {
            resumed[kind] = true;
        } else {
            (segment.sealed, segment.used) = (true, bounds.slots as u8);
        }
    }
}
