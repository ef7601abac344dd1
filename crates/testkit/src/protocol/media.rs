//! The content of the media: segments of entries, the settled version, the clock word, checkpoints, the clean flag.

use super::bounds::{KEYS, SEGMENTS, SLOTS};
use std::fmt;

/// The place of an entry, with the generation that its segment had.
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

/// What an entry states about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The key has this value.
    Put,
    /// The key is absent.
    Delete,
    /// The key has this value until the time of expiry comes.
    Expiring,
}

/// The state of an entry's DEAD mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Not dead.
    Alive,
    /// Marked; a power failure may undo the mark.
    Written,
    /// Marked durably.
    Dead,
}

/// One entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The key's number.
    pub key: u8,
    /// Its version.
    pub version: u8,
    /// The number of the write that it came from. Copies keep it, whatever version they get.
    pub value: u8,
    /// What it states about its key.
    pub kind: Kind,
    /// The entry that it replaced or was copied from.
    pub parent: Option<Place>,
    /// The collector wrote it, into a cold segment.
    pub copy: bool,
    /// Number of members of its batch; 0 if it has no batch tag.
    pub batch: u8,
    /// Its position in the batch, from 0.
    pub member: u8,
    /// The state of its DEAD mark.
    pub mark: Mark,
    /// It survives a power failure.
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
    /// Its descriptor is not in the state free.
    pub in_use: bool,
    /// Its descriptor is not in the state open.
    pub sealed: bool,
    /// The shard that fills it: a writer's, or the collector's ([`COLD`]).
    pub shard: u8,
    /// Its descriptor carries the *collecting* flag: a pass over it has begun.
    pub collecting: bool,
    /// It must not be opened yet, because somebody may hold a reference into it. Only in memory.
    pub retiring: bool,
    /// Counts its lives.
    pub generation: u8,
    /// Number of slots given out.
    pub used: u8,
    /// Its entries. `None` is a hole or a slot that was not reached.
    pub slots: [Option<Entry>; SLOTS],
}

/// The shard of the collector's segments.
pub const COLD: u8 = 2;

/// A saved index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// Everything up to this version is in the checkpoint, or superseded.
    pub version: u8,
    /// The place that the index named for each key.
    pub named: [Option<Place>; KEYS],
    /// For each covered segment, which need not be scanned: its generation, and the number of slots covered.
    pub covered: [Option<(u8, u8)>; SEGMENTS],
    /// Generation of each segment that was in use when the copying ended; 0 for the others.
    pub table: [u8; SEGMENTS],
}

/// Everything on media.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Media {
    /// The segments of the pool.
    pub segments: [Segment; SEGMENTS],
    /// The settled version: batches up to it are whole.
    pub settled: u8,
    /// The clock word shows that the time of expiry has come.
    pub clock: bool,
    /// The durable checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// A checkpoint that was renamed into place, or the removal of one, while the directory is not synced.
    pub pending: Option<Option<Checkpoint>>,
    /// The clean flag.
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

    /// The entry at a place, if its segment is in use with that generation and the slot holds one.
    pub fn at(&self, place: Place) -> Option<&Entry> {
        if self.holds(place) { self.segments[place.segment as usize].slots[place.slot as usize].as_ref() } else { None }
    }

    /// Whether the segment of a place is in use with that generation.
    pub fn holds(&self, place: Place) -> bool {
        let segment = &self.segments[place.segment as usize];
        segment.in_use && segment.generation == place.generation
    }

    /// The entry at a place that must hold one, for changes.
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

    /// All entries of segments in use, for changes.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.segments.iter_mut().filter(|segment| segment.in_use).flat_map(|segment| segment.slots.iter_mut().flatten())
    }

    /// Takes a slot of an open segment of a shard, and opens a segment if none has room. Returns `None` if the pool is
    /// full.
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

    /// The entry at a place, in use or not, as long as its segment was not opened again.
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

    /// The entry that an entry's link names, if the link holds. A copy's source has the same version or a lower one,
    /// any other parent a lower one.
    fn parent(&self, entry: &Entry) -> Option<(Place, &Entry)> {
        let place = entry.parent?;
        let parent = self.at(place).filter(|parent| parent.key == entry.key)?;
        let fits = parent.version < entry.version || parent.version == entry.version && entry.copy;
        fits.then_some((place, parent))
    }

    /// The ancestors of an entry, newest first, as long as links hold. The walk ends before the first dead one unless
    /// `pass_dead` is set.
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
