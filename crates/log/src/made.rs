//! Writes in three steps: the writer looks up room and makes the entry before it takes the key's latch, and appends the
//! entry under the latch (`docs/adr/0010`). The members of a batch of pairs are made where they lie, under their
//! latches.
//!
//! Room and entry are valid until the same writer appends anything else. A writer that does not append the entry loses
//! nothing but its versions (and the members of a batch, perhaps, the rest of a chunk).
//!
//! Thread safety: as [`super::writer`]: all steps in one writer section, by the thread that owns the writer's slot.

use crate::address::{self, Address};
use crate::dead::DeadCounts;
use crate::entry::{self, BatchTag, MEMBER_BYTES, Op, Parts, Place, PlainPair};
use crate::hot::SAMPLE_EVERY;
use crate::node::NodePool;
use crate::segment::Chunk;
use crate::slot::Slot;
use crate::writer::{Flush, Writer};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// See [`Writer::past_of`].
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// As [`crate::Log::generation_tag`].
    pub generation: u8,
    mark: Option<Mark<'a>>,
}

/// Where to note that an entry is garbage.
#[derive(Clone, Copy, Debug)]
struct Mark<'a> {
    word: &'a AtomicU64,
    bit: u64,
    count: &'a AtomicU32,
    bytes: u32,
}

impl Past<'_> {
    /// As [`Writer::mark_dead`], by the writer from which this came, in the same section, with everything looked up in
    /// advance. Returns false, with nothing noted, if the lookup was not possible.
    #[inline(always)]
    pub fn mark_dead(&self) -> bool {
        let Some(Mark { word, bit, count, bytes }) = self.mark else { return false };
        word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        DeadCounts::add_at(count, bytes);
        true
    }
}

/// The place of the next entry: see [`Writer::room_for`]. Valid until the same writer appends anything, so it serves
/// one entry.
///
/// It refers to the chunk instead of having a copy of its fields: between this and the making of the entry they would
/// have to be put aside.
#[derive(Clone, Copy, Debug)]
pub struct EntryRoom<'a> {
    shard: usize,
    chunk: &'a Chunk,
    size: u64,
}

impl EntryRoom<'_> {
    /// Makes the entry of a pair of eight bytes each (or the tombstone of an eight-byte key), without expiry or batch,
    /// for room of [`entry::MIN_BYTES`]. `None` if such an entry needs an extension there.
    #[inline(always)]
    pub fn make_pair(&self, pair: &PlainPair) -> Option<MadePair> {
        debug_assert_eq!(self.size, entry::MIN_BYTES);
        let place = self.chunk.place();
        Some(MadePair { words: pair.encode(&place)?, offset: place.offset, shard: self.shard })
    }

    /// As [`EntryRoom::make_pair`], for an entry of other lengths with a length word, for room of its
    /// [`Parts::bare_size`].
    #[inline(always)]
    pub fn make_bare(&self, parts: &Parts<'_>) -> Option<MadeBare> {
        debug_assert_eq!(self.size, parts.bare_size());
        let place = self.chunk.place();
        Some(MadeBare { words: parts.encode_bare(&place)?, offset: place.offset, size: self.size, shard: self.shard })
    }
}

/// The head of an entry that [`EntryRoom::make_bare`] made.
#[derive(Clone, Copy, Debug)]
pub struct MadeBare {
    words: [u64; 3],
    offset: u64,
    size: u64,
    shard: usize,
}

/// An entry that [`EntryRoom::make_pair`] made.
#[derive(Clone, Copy, Debug)]
pub struct MadePair {
    words: [u64; 4],
    offset: u64,
    shard: usize,
}

/// Most members that [`Writer::room_for_members`] takes.
pub const MOST_MEMBERS: usize = 64;

/// Room for all members of a batch, side by side: see [`Writer::room_for_members`]. Valid until the same writer appends
/// anything but these members.
#[derive(Clone, Copy, Debug)]
pub struct MembersRoom {
    shard: usize,
    /// The first member's place.
    place: Place,
    /// Number of members.
    size: u32,
}

impl<'a> Writer<'a> {
    /// Whether [`Writer::room_for_members`] is worth a try for members of this keyspace, of which the first has this
    /// hash: in a segment of another keyspace each needs an extension.
    #[inline(always)]
    pub fn suits_members(&self, keyspace: u32, hash: u64) -> bool {
        let chunk = &self.slot.chunks[self.chunk_of(hash)];
        chunk.is_none() || chunk.keyspace == keyspace
    }

    /// Finds or makes the room for a batch of `size` puts of eight-byte pairs that do not expire, at most
    /// [`MOST_MEMBERS`], with consecutive versions from `first` on, in one chunk. `hash` gives a member's hash. Appends
    /// nothing (it may count a sample of hot keys). Returns `None` if there is no room, or a member would need an
    /// extension there.
    #[inline(always)]
    pub fn room_for_members(&mut self, keyspace: u32, first: u64, size: usize, hash: impl Fn(usize) -> u64) -> Option<MembersRoom> {
        debug_assert!((1..=MOST_MEMBERS).contains(&size));
        // As in `stream_of`: one version in so many is sampled.
        let sampled = (first.next_multiple_of(SAMPLE_EVERY) - first) as usize;
        if sampled < size {
            self.sample(hash(sampled));
        }
        let shard = self.chunk_of(hash(0));
        match self.room_of_chunk(shard, keyspace, first, size as u32) {
            None => self.make_room_for_members(shard, keyspace, first, size as u32),
            room => room,
        }
    }

    #[inline(always)]
    fn room_of_chunk(&self, shard: usize, keyspace: u32, first: u64, size: u32) -> Option<MembersRoom> {
        let chunk = &self.slot.chunks[shard];
        let place = chunk.place();
        let fits = chunk.end - chunk.cursor >= u64::from(size) * MEMBER_BYTES && place.suits(keyspace, first, size.into());
        fits.then_some(MembersRoom { shard, place, size })
    }

    /// Lengthens the shard's chunk or takes another, as for one entry of the members' size.
    #[cold]
    #[inline(never)]
    fn make_room_for_members(&mut self, shard: usize, keyspace: u32, first: u64, size: u32) -> Option<MembersRoom> {
        static ZEROS: [u8; MOST_MEMBERS * MEMBER_BYTES as usize] = [0; MOST_MEMBERS * MEMBER_BYTES as usize];
        let bytes = ZEROS.get(..size as usize * MEMBER_BYTES as usize)?;
        let one = Parts { value: &bytes[entry::BARE_HEAD_BYTES as usize..], version: first, keyspace, ..Parts::EMPTY };
        let chunk = &mut self.slot.chunks[shard];
        // Where only the keyspace does not suit, another chunk would be in the same segment.
        if !chunk.is_none() && chunk.keyspace != keyspace || one.max_size() > self.pool.segment_bytes() {
            return None;
        }
        if self.pool.is_long(&one) {
            // Then only the versions do not suit.
            if chunk.end - chunk.cursor >= bytes.len() as u64 {
                return None;
            }
            // In a store of small segments. A long entry gets a chunk of its own, beside which the previous one goes
            // on; members do not.
            let more = self.pool.extend_chunk(shard, chunk, &one)?;
            self.pool.owe_pause(self.log, more);
        } else {
            let set_aside = self.refill(&one, shard).ok()?;
            debug_assert!(set_aside.is_none(), "only beside long entries");
        }
        self.room_of_chunk(shard, keyspace, first, size)
    }

    /// Writes the put `pair` as the member with this number into its room, and returns its reference.
    /// [`Writer::append_members`] must follow.
    #[inline(always)]
    pub fn write_member(&mut self, room: &MembersRoom, index: u32, pair: &PlainPair) -> u64 {
        debug_assert!(index < room.size && self.slot.chunks[room.shard].cursor == room.place.offset);
        let offset = room.place.offset + u64::from(index) * MEMBER_BYTES;
        let words = pair.encode_member(&Place { offset, ..room.place }, BatchTag { size: room.size, index });
        // SAFETY: the chunk belongs to this slot alone, inside an active segment, and has room for all members; these
        // bytes were never written before.
        unsafe { self.pool.pool.write_array(offset, &words) };
        address::pack(self.pool.node, offset, MEMBER_BYTES)
    }

    /// Appends the members, all of which are written, and starts the write-back of each of their lines once.
    #[inline(always)]
    pub fn append_members(&mut self, room: &MembersRoom) {
        let bytes = u64::from(room.size) * MEMBER_BYTES;
        self.pool.pool.flush(room.place.offset, bytes as usize);
        let chunk = &mut self.slot.chunks[room.shard];
        chunk.cursor += bytes;
        chunk.tally.count_puts(room.size, bytes);
    }

    /// The room that the next entry of `size` bytes with this hash and version would take, if its chunk has that much.
    /// Does everything of [`Writer::append`] that needs neither the latch nor the entry. Appends nothing (it may count
    /// a sample of hot keys).
    #[inline(always)]
    pub fn room_for(&self, hash: u64, version: u64, size: u64) -> Option<EntryRoom<'_>> {
        let shard = self.stream_of(hash, version);
        let chunk = self.slot.chunks.get(shard)?;
        (chunk.end - chunk.cursor >= size).then_some(EntryRoom { shard, chunk, size })
    }

    /// Appends the entry that [`EntryRoom::make_pair`] has just made, with nothing else appended meanwhile, and starts
    /// its write-back. Returns its reference.
    #[inline(always)]
    pub fn append_made(&mut self, made: &MadePair, op: Op, version: u64) -> u64 {
        let reference = self.write_plain(made.shard, made.offset, &made.words, Flush::Now);
        self.take_made(made.shard, made.offset, entry::MIN_BYTES, (op, version));
        reference
    }

    /// As [`Writer::append_made`], for the entry that [`EntryRoom::make_bare`] made of these parts.
    #[inline(always)]
    pub fn append_bare(&mut self, made: &MadeBare, parts: &Parts<'_>) -> u64 {
        let pool = &self.pool.pool;
        let key_at = made.offset + entry::BARE_HEAD_BYTES;
        // SAFETY: the chunk belongs to this slot alone, inside an active segment, and has room for the entry; these
        // bytes were never written before.
        unsafe {
            pool.write_array(made.offset, &made.words);
            pool.write(key_at, parts.key);
            pool.write(key_at + parts.key.len() as u64, parts.value);
        }
        pool.flush(made.offset, made.size as usize);
        // The lines of this shard's next entry, if it is no longer than this one, up to two lines.
        for distance in [64, 128] {
            hither_sync::prefetch_write(pool.base().wrapping_add((made.offset + made.size) as usize + distance - 64));
        }
        self.take_made(made.shard, made.offset, made.size, (parts.op, parts.version));
        address::pack(self.pool.node, made.offset, made.size)
    }

    /// Takes the space of an entry that was made and written: after its flush, which need not wait for this.
    #[inline(always)]
    fn take_made(&mut self, shard: usize, offset: u64, size: u64, (op, version): (Op, u64)) {
        let chunk = &mut self.slot.chunks[shard];
        debug_assert_eq!(chunk.cursor, offset, "nothing is appended between making an entry and appending it");
        chunk.cursor += size;
        chunk.tally.count(op, version, size);
    }

    /// What a write needs to know about the entry behind `reference` (0: none) that it is going to replace. Also starts
    /// loading what [`Past::mark_dead`] changes: its store would otherwise wait in front of those of the next write.
    #[inline(always)]
    pub fn past_of(&self, reference: u64) -> Past<'a> {
        if reference == 0 {
            return Past { generation: 0, mark: None };
        }
        let at = address::unpack(reference);
        // Most entries are of this writer's pool, which is at hand.
        let pool = if at.node == self.pool.node { self.pool } else { &self.log.pools[at.node as usize] };
        let segment = pool.segment_index(at.offset);
        let mark = self.mark_at(pool, at, segment, address::tagged_size(reference));
        Past { generation: pool.segments[segment].generation.load(Ordering::Relaxed) as u8, mark }
    }

    #[inline(always)]
    fn mark_at(&self, pool: &'a NodePool, at: Address, segment: usize, size: Option<u64>) -> Option<Mark<'a>> {
        let (word, bit) = pool.garbage.word_of(at.offset - pool.data_offset)?;
        hither_sync::prefetch_write(word);
        let slot: &'a Slot = self.slot.slot();
        let count = slot.dead[at.node as usize].count_of(segment)?;
        Some(Mark { word, bit, count, bytes: size? as u32 })
    }
}
