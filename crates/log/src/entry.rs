//! The media format of one entry (format version 1; `docs/format.md` describes the bytes, and a test compares them).
//!
//! One header of 16 bytes with optional fields serves NStore's three layouts (`docs/adr/0002`): a plain pair of 8-byte
//! key and 8-byte value takes exactly 32 bytes, half a cache line.
//!
//! The checksum alone makes an entry valid: there is no commit word to write last, so a write costs one flush and one
//! fence. The checksum is seeded with the segment's generation and the entry's offset, so neither old bytes nor a value
//! that imitates an entry pass for one. It does not cover the DEAD mark.

use crate::crc;

/// Alignment and unit of size of entries.
pub const ALIGN: u64 = 8;
/// Size of the fixed header.
pub const HEADER_BYTES: u64 = 16;
/// Smallest entry: the unit of garbage accounting.
pub const MIN_BYTES: u64 = 32;
/// Size of a batch's member with a key and a value of eight bytes, without expiry.
pub const MEMBER_BYTES: u64 = MIN_BYTES + 8;
/// The most bytes between the header and the key: the extension, its four words, and the lengths.
pub const MOST_SPARE: u64 = 8 * 5 + 8;
/// Longest key.
pub const MAX_KEY_BYTES: usize = 65_536;
/// Longest value.
pub const MAX_VALUE_BYTES: usize = 512 << 20;
/// Most members of one batch.
pub const MAX_BATCH: usize = (1 << 28) - 1;

/// Size of a key and of a value that need no length word.
pub const PLAIN_BYTES: usize = 8;

/// Bit offsets inside the first header word.
pub mod word0 {
    /// First bit of the flags byte.
    pub const FLAGS_SHIFT: u32 = 32;
    /// First bit of the parent-generation tag.
    pub const PARENT_GENERATION_SHIFT: u32 = 40;
    /// First bit of the low part of `h_addr`.
    pub const LINK_LOW_SHIFT: u32 = 48;
}

/// Flag bits of the header.
pub mod flag {
    /// Mask of the operation.
    pub const OP_MASK: u8 = 0b11;
    /// The entry is dead. Outside the checksum. Four bits, set together, so that a single flipped one is noticed.
    pub const DEAD: u8 = 0b1110_0100;
    /// A length word follows.
    pub const LEN: u8 = 1 << 3;
    /// An extension word follows.
    pub const EXT: u8 = 1 << 4;
}

/// Bits of the extension word's field mask.
pub mod ext {
    /// A keyspace word follows.
    pub const KEYSPACE: u8 = 1;
    /// An expiry word follows.
    pub const EXPIRY: u8 = 2;
    /// A full version follows (copies whose version does not fit the segment's base).
    pub const VERSION: u8 = 4;
    /// A shortcut word follows.
    pub const SHORTCUT: u8 = 8;
    /// All fields that format version 1 knows.
    pub const KNOWN: u8 = KEYSPACE | EXPIRY | VERSION | SHORTCUT;
    /// First bit of the batch size.
    pub const BATCH_SIZE_SHIFT: u32 = 8;
    /// First bit of the member index.
    pub const BATCH_INDEX_SHIFT: u32 = 36;
    /// Mask of either.
    pub const BATCH_MASK: u64 = (1 << 28) - 1;
}

const DEAD_BITS: u64 = (flag::DEAD as u64) << word0::FLAGS_SHIFT;
const CRC_MASK: u64 = 0xffff_ffff;

/// The operation that an entry records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The key is deleted.
    Delete = 1,
    /// The key had an entry before.
    Update = 2,
    /// The key is new.
    Insert = 3,
}

/// A batch's tag on one member: the batch id is the entry's version minus `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTag {
    /// Members of the batch.
    pub size: u32,
    /// This member's position.
    pub index: u32,
}

impl BatchTag {
    /// Its bits in the extension word.
    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.size) << ext::BATCH_SIZE_SHIFT | u64::from(self.index) << ext::BATCH_INDEX_SHIFT
    }
}

/// The properties of the place to which an entry is written.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Generation of the segment.
    pub generation: u64,
    /// Base version of the segment.
    pub base_version: u64,
    /// Keyspace of the segment.
    pub keyspace: u32,
    /// Byte offset of the entry in its pool.
    pub offset: u64,
}

impl Place {
    /// Whether entries of this keyspace with the `count` versions from `first` on need no extension here for either.
    #[inline(always)]
    pub(crate) fn suits(&self, keyspace: u32, first: u64, count: u64) -> bool {
        keyspace == self.keyspace && first >= self.base_version && version_fits(self.base_version, first + count - 1)
    }
}

/// The content of an entry, before it has a place.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Operation.
    pub op: Op,
    /// Key.
    pub key: &'a [u8],
    /// Value (empty for a delete).
    pub value: &'a [u8],
    /// Version.
    pub version: u64,
    /// Reference to the key's previous entry, or 0.
    pub parent: u64,
    /// Low byte of the generation of the parent's segment.
    pub parent_generation: u8,
    /// Keyspace.
    pub keyspace: u32,
    /// Expiry in milliseconds since the epoch, or 0.
    pub expiry_ms: u64,
    /// Batch membership.
    pub batch: Option<BatchTag>,
    /// The word of a [`shortcut`], or 0. Entries without a length word carry none.
    pub shortcut: u64,
    /// The entry belongs to a batch that deletes and surely takes no more space than it gives back, so it may use the
    /// space that is kept for deletes. Not a part of the entry.
    pub frees: bool,
}

impl Parts<'_> {
    /// Whether the entry may use the space that is kept for deletes.
    pub(crate) fn makes_room(&self) -> bool {
        self.op == Op::Delete || self.frees
    }
}

impl Parts<'static> {
    /// An insert of an empty key and value: a base for struct updates.
    pub const EMPTY: Parts<'static> = Parts {
        op: Op::Insert,
        key: &[],
        value: &[],
        version: 0,
        parent: 0,
        parent_generation: 0,
        keyspace: 0,
        expiry_ms: 0,
        batch: None,
        shortcut: 0,
        frees: false,
    };
}

/// Whether `version` can be expressed in a segment with this base.
#[inline(always)]
pub fn version_fits(base_version: u64, version: u64) -> bool {
    version >= base_version && version - base_version <= u64::from(u32::MAX)
}

/// The words before the key: header, extension, lengths.
pub struct Head {
    words: [u64; 8],
    len: usize,
}

impl Head {
    /// The words.
    #[inline(always)]
    pub fn words(&self) -> &[u64] {
        &self.words[..self.len]
    }

    /// Sets the DEAD mark: the entry can be read, but recovery ignores it.
    pub fn mark_dead(&mut self) {
        self.words[0] |= DEAD_BITS;
    }

    #[inline(always)]
    fn push(&mut self, word: u64) {
        self.words[self.len] = word;
        self.len += 1;
    }
}

impl Parts<'_> {
    #[inline(always)]
    fn needs_len(&self) -> bool {
        let plain_value = if self.op == Op::Delete { 0 } else { PLAIN_BYTES };
        self.key.len() != PLAIN_BYTES || self.value.len() != plain_value
    }

    /// Extension fields that this entry needs in a segment of `segment_keyspace` whose base is `base_version`.
    #[inline(always)]
    fn ext_mask(&self, segment_keyspace: u32, base_version: u64) -> u8 {
        let carries = self.shortcut != 0 && self.needs_len();
        self.plain_ext_mask(segment_keyspace, base_version) | if carries { ext::SHORTCUT } else { 0 }
    }

    /// As [`Parts::ext_mask`], for a key and value that need no length word: such an entry carries no shortcut.
    #[inline(always)]
    fn plain_ext_mask(&self, segment_keyspace: u32, base_version: u64) -> u8 {
        let mut mask = 0;
        if self.keyspace != segment_keyspace {
            mask |= ext::KEYSPACE;
        }
        if self.expiry_ms != 0 {
            mask |= ext::EXPIRY;
        }
        if !version_fits(base_version, self.version) {
            mask |= ext::VERSION;
        }
        mask
    }

    /// Size of the entry in bytes, padding included, in a segment of `segment_keyspace` whose base is `base_version`.
    #[inline(always)]
    pub fn size(&self, segment_keyspace: u32, base_version: u64) -> u64 {
        let mask = self.ext_mask(segment_keyspace, base_version);
        let mut bytes = HEADER_BYTES;
        if mask != 0 || self.batch.is_some() {
            bytes += 8 + 8 * u64::from(mask.count_ones());
        }
        if self.needs_len() {
            bytes += 8;
        }
        bytes += (self.key.len() + self.value.len()) as u64;
        bytes.next_multiple_of(ALIGN).max(MIN_BYTES)
    }

    /// An upper bound of [`Parts::size`] in any segment, larger by [`MOST_SPARE`] at most.
    #[inline(always)]
    pub fn max_size(&self) -> u64 {
        HEADER_BYTES + MOST_SPARE + (self.key.len() + self.value.len()).next_multiple_of(8) as u64
    }

    /// The entry as its four words, if it is a plain 8-byte pair or the tombstone of an 8-byte key, without extension:
    /// the hot path.
    #[inline(always)]
    pub fn encode_plain(&self, place: &Place) -> Option<[u64; 4]> {
        let key = u64::from_le_bytes(self.key.try_into().ok()?);
        if self.batch.is_some() || self.plain_ext_mask(place.keyspace, place.base_version) != 0 {
            return None;
        }
        let mut words = [0, 0, key, 0];
        (words[0], words[1]) = self.header(self.op as u8, place);
        if self.op == Op::Delete && self.value.is_empty() {
            // The last word is padding, which no checksum covers.
            words[0] |= u64::from(crc::words(seed(place.generation, place.offset), &words[..3]));
        } else {
            words[3] = u64::from_le_bytes(self.value.try_into().ok()?);
            words[0] |= u64::from(crc::words(seed(place.generation, place.offset), &words));
        }
        Some(words)
    }

    /// As [`Parts::encode_plain`] for a member of a batch: the extension word stands between header and key.
    #[inline(always)]
    pub fn encode_plain_member(&self, place: &Place) -> Option<[u64; 5]> {
        let key = u64::from_le_bytes(self.key.try_into().ok()?);
        let value = u64::from_le_bytes(self.value.try_into().ok()?);
        let tag = self.batch?;
        if self.op == Op::Delete || self.plain_ext_mask(place.keyspace, place.base_version) != 0 {
            return None;
        }
        let mut words = [0, 0, tag.word(), key, value];
        (words[0], words[1]) = self.header(self.op as u8 | flag::EXT, place);
        words[0] |= u64::from(crc::words(seed(place.generation, place.offset), &words));
        Some(words)
    }

    /// Header, extension and lengths, with the checksum over everything filled in.
    pub fn encode_head(&self, place: &Place) -> Head {
        let mask = self.ext_mask(place.keyspace, place.base_version);
        let mut flags = self.op as u8;
        if mask != 0 || self.batch.is_some() {
            flags |= flag::EXT;
        }
        if self.needs_len() {
            flags |= flag::LEN;
        }
        let mut head = Head { words: [0; 8], len: 0 };
        let (first, second) = self.header(flags, place);
        head.push(first);
        head.push(second);
        if flags & flag::EXT != 0 {
            self.push_ext(mask, &mut head);
        }
        if flags & flag::LEN != 0 {
            head.push(self.key.len() as u64 | (self.value.len() as u64) << 32);
        }
        let state = crc::words(seed(place.generation, place.offset), head.words());
        let state = crc::bytes(crc::bytes(state, self.key), self.value);
        head.words[0] |= u64::from(state);
        head
    }

    #[inline(always)]
    fn header(&self, flags: u8, place: &Place) -> (u64, u64) {
        let delta = if version_fits(place.base_version, self.version) { self.version - place.base_version } else { 0 };
        header_words(flags, self.parent, self.parent_generation, delta)
    }

    fn push_ext(&self, mask: u8, head: &mut Head) {
        let batch = self.batch.map_or(0, BatchTag::word);
        head.push(u64::from(mask) | batch);
        if mask & ext::KEYSPACE != 0 {
            head.push(u64::from(self.keyspace));
        }
        if mask & ext::EXPIRY != 0 {
            head.push(self.expiry_ms);
        }
        if mask & ext::VERSION != 0 {
            head.push(self.version);
        }
        if mask & ext::SHORTCUT != 0 {
            head.push(self.shortcut);
        }
    }
}

/// The two header words without the checksum.
#[inline(always)]
fn header_words(flags: u8, parent: u64, parent_generation: u8, version_delta: u64) -> (u64, u64) {
    let link = parent & crate::address::LINK_MASK;
    let first = u64::from(flags) << word0::FLAGS_SHIFT
        | u64::from(parent_generation) << word0::PARENT_GENERATION_SHIFT
        | link << word0::LINK_LOW_SHIFT;
    (first, link >> 16 | version_delta << 32)
}

#[inline(always)]
fn seed(generation: u64, offset: u64) -> u32 {
    (generation as u32) ^ (generation >> 32) as u32 ^ (offset >> 3) as u32
}

mod bare;
mod pair;
pub mod shortcut;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use bare::HEAD_BYTES as BARE_HEAD_BYTES;
pub use bare::bare_size_of;
pub use pair::{LivePair, PlainPair};
pub use view::{EntryView, Invalid};
