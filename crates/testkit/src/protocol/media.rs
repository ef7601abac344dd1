//! What lies on media: segments of entries, the settled version, the clock word, checkpoints, the clean flag.

use super::bounds::{KEYS, SEGMENTS, SLOTS};
use std::fmt;

/// Where an entry lies, with the generation that its segment had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Number of the segment.
    pub segment: u8,
    /// Number of the slot in it.
    pub slot: u8,
    /// The segment's generation.
    pub generation: u8,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}.{}g{}", self.segment, self.slot, self.generation)
    }
}

/// What an entry says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It has this value.
    Put,
    /// It is absent.
    Delete,
    /// It has this value until the time comes.
    Expiring,
}

/// The dead mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Not dead.
    Alive,
    /// Marked; a failure of the power may undo it.
    Written,
    /// Dead for good.
    Dead,
}

/// One entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its key.
    pub key: u8,
    /// Its version.
    pub version: u8,
    /// Which write it came from: copies keep it, whatever version they get.
    pub value: u8,
    /// What it says.
    pub kind: Kind,
    /// The entry that it replaced, or was copied from.
    pub parent: Option<Place>,
    /// The collector wrote it (its segment is a cold one).
    pub copy: bool,
    /// Members of its batch, 0 if it has no tag.
    pub batch: u8,
    /// Which of them it is.
    pub member: u8,
    /// The dead mark.
    pub mark: Mark,
    /// It survives a failure of the power.
    pub durable: bool,
}

impl Entry {
    /// Whether it is not marked dead.
    pub fn alive(&self) -> bool {
        self.mark == Mark::Alive
    }

    /// The version of the first member of its batch.
    pub fn base(&self) -> u8 {
        self.version - self.member
    }
}

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Its descriptor does not say free.
    pub in_use: bool,
    /// Its descriptor does not say open.
    pub sealed: bool,
    /// Who fills it: a writer, or the collector ([`COLD`]).
    pub shard: u8,
    /// Its descriptor says that a pass over it has begun.
    pub collecting: bool,
    /// Not to be opened yet: somebody may hold a reference into it. Only in memory.
    pub retiring: bool,
    /// Its life.
    pub generation: u8,
    /// Slots given out.
    pub used: u8,
    /// Its entries; `None` is a hole, or not reached yet.
    pub slots: [Option<Entry>; SLOTS],
}

/// The shard of the collector's segments.
pub const COLD: u8 = 2;

/// A saved index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// Everything up to this version is in it, or superseded.
    pub version: u8,
    /// What each key had.
    pub named: [Option<Place>; KEYS],
    /// Generation of each segment that need not be scanned, and up to which slot.
    pub covered: [Option<(u8, u8)>; SEGMENTS],
    /// Generation of each segment that was in use when the copying ended; 0 of the others.
    pub table: [u8; SEGMENTS],
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Media {
    /// The pool.
    pub segments: [Segment; SEGMENTS],
    /// Batches up to here are whole.
    pub settled: u8,
    /// The clock word says that the time has come.
    pub clock: bool,
    /// The durable checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// A renamed or unlinked one whose directory is not synced.
    pub pending: Option<Option<Checkpoint>>,
    /// Closed cleanly.
    pub clean: bool,
}

impl Media {
    /// Empty media.
    pub fn new() -> Media {
        let free = Segment {
            in_use: false,
            sealed: false,
            shard: 0,
            collecting: false,
            retiring: false,
            generation: 0,
            used: 0,
            slots: [None; SLOTS],
        };
        Media { segments: [free; SEGMENTS], settled: 0, clock: false, checkpoint: None, pending: None, clean: false }
    }

    /// The entry at a place, if its segment is in use in that life and there is one.
    pub fn at(&self, place: Place) -> Option<&Entry> {
        if self.holds(place) { self.segments[place.segment as usize].slots[place.slot as usize].as_ref() } else { None }
    }

    /// Whether the segment of a place is in use in that life.
    pub fn holds(&self, place: Place) -> bool {
        let segment = &self.segments[place.segment as usize];
        segment.in_use && segment.generation == place.generation
    }

    /// The entry at a place that must hold one.
    pub fn entry_mut(&mut self, place: Place) -> &mut Entry {
        self.segments[place.segment as usize].slots[place.slot as usize].as_mut().expect("an entry lies at this place")
    }

    /// All entries of segments in use, with their places.
    pub fn entries(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.segments.iter().enumerate().filter(|(_, segment)| segment.in_use).flat_map(|(number, segment)| {
            segment.slots.iter().enumerate().filter_map(move |(slot, entry)| {
                let place = Place { segment: number as u8, slot: slot as u8, generation: segment.generation };
                entry.as_ref().map(|entry| (place, entry))
            })
        })
    }

    /// All entries of all segments, to change them.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.segments.iter_mut().filter(|segment| segment.in_use).flat_map(|segment| segment.slots.iter_mut().flatten())
    }

    /// Takes a slot of an open segment of a shard, opening one if none has room; `None` if the pool is full.
    pub fn reserve(&mut self, shard: u8, segments: usize, slots: usize) -> Option<Place> {
        let all = &mut self.segments[..segments];
        let open = all.iter().position(|s| s.in_use && !s.sealed && s.shard == shard && (s.used as usize) < slots);
        let number = open.or_else(|| {
            let free = all.iter().position(|s| !s.in_use && !s.retiring)?;
            let generation = all[free].generation + 1;
            all[free] = Segment {
                in_use: true,
                sealed: false,
                shard,
                collecting: false,
                retiring: false,
                generation,
                used: 0,
                slots: [None; SLOTS],
            };
            Some(free)
        })?;
        let segment = &mut all[number];
        segment.used += 1;
        Some(Place { segment: number as u8, slot: segment.used - 1, generation: segment.generation })
    }

    /// Stores an entry at a reserved place.
    pub fn store(&mut self, place: Place, entry: Entry) {
        self.segments[place.segment as usize].slots[place.slot as usize] = Some(entry);
    }

    /// What lies at a place, in use or not, as long as nobody has opened its segment again.
    pub fn remains(&self, place: Place) -> Option<&Entry> {
        let segment = &self.segments[place.segment as usize];
        segment.slots[place.slot as usize].as_ref().filter(|_| segment.generation == place.generation)
    }

    /// Makes every entry and every mark durable.
    pub fn sync(&mut self) {
        self.entries_mut().for_each(|entry| entry.durable = true);
        self.sync_marks();
    }

    /// Makes every mark durable.
    pub fn sync_marks(&mut self) {
        self.entries_mut().filter(|entry| entry.mark == Mark::Written).for_each(|entry| entry.mark = Mark::Dead);
    }

    /// The checkpoint that an opening would load now.
    pub fn visible_checkpoint(&self) -> Option<&Checkpoint> {
        self.pending.as_ref().unwrap_or(&self.checkpoint).as_ref()
    }

    /// The entry behind an entry's link, if the link holds: a copy's source has its version or a lower one, any other parent a lower one.
    fn parent(&self, entry: &Entry) -> Option<(Place, &Entry)> {
        let place = entry.parent?;
        let parent = self.at(place).filter(|parent| parent.key == entry.key)?;
        let fits = parent.version < entry.version || parent.version == entry.version && entry.copy;
        fits.then_some((place, parent))
    }

    /// The ancestors of an entry, newest first: as long as links hold, and up to the first dead one unless the walk passes those too.
    pub fn ancestors(&self, entry: &Entry, pass_dead: bool) -> Vec<Place> {
        let mut passed = Vec::new();
        let mut next = self.parent(entry);
        while let Some((place, parent)) = next.filter(|(_, parent)| pass_dead || parent.alive()) {
            passed.push(place);
            next = self.parent(parent);
        }
        passed
    }
}

impl Default for Media {
    fn default() -> Media {
        Media::new()
    }
}
