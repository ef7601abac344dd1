//! The commonest entry, encoded and decoded in registers: eight bytes of key and of value (none in a tombstone), no
//! expiry. It is also encoded, but not decoded, as the member of a batch.
//!
//! Invariants: the encoded words equal those of [`Parts::encode_plain`](super::Parts::encode_plain) and
//! [`Parts::encode_plain_member`](super::Parts::encode_plain_member), the reference; the decoded content equals what
//! [`EntryView::verify`](super::EntryView::verify) finds.

use crate::address;

use super::{BatchTag, CRC_MASK, MIN_BYTES, Op, Place, crc, flag, header_words, seed, version_fits, word0};

/// An entry of eight bytes of key and of value, or the tombstone of an eight-byte key.
#[derive(Clone, Copy, Debug)]
pub struct PlainPair {
    /// Operation.
    pub op: Op,
    /// Key, as its bytes lie in memory.
    pub key: u64,
    /// Value, as its bytes lie in memory; ignored in a tombstone.
    pub value: u64,
    /// Version.
    pub version: u64,
    /// Reference to the key's previous entry, or 0.
    pub parent: u64,
    /// Low byte of the generation of the parent's segment.
    pub parent_generation: u8,
    /// Keyspace.
    pub keyspace: u32,
}

impl PlainPair {
    /// The entry as its four words; `None` if it needs an extension in this place.
    #[inline(always)]
    pub fn encode(&self, place: &Place) -> Option<[u64; 4]> {
        if self.keyspace != place.keyspace || !version_fits(place.base_version, self.version) {
            return None;
        }
        let (first, second) = header_words(self.op as u8, self.parent, self.parent_generation, self.version - place.base_version);
        let mut words = [first, second, u64::from_le(self.key), 0];
        if self.op == Op::Delete {
            // The last word is padding, which no checksum covers.
            words[0] |= u64::from(crc::words(seed(place.generation, place.offset), &words[..3]));
        } else {
            words[3] = u64::from_le(self.value);
            words[0] |= u64::from(crc::words(seed(place.generation, place.offset), &words));
        }
        Some(words)
    }

    /// The put of this pair as a member of a batch, in a place that [`Place::suits`] its keyspace and version.
    #[inline(always)]
    pub(crate) fn encode_member(&self, place: &Place, tag: BatchTag) -> [u64; 5] {
        debug_assert!(self.op != Op::Delete && place.suits(self.keyspace, self.version, 1));
        let flags = self.op as u8 | flag::EXT;
        let (first, second) = header_words(flags, self.parent, self.parent_generation, self.version - place.base_version);
        let mut words = [first, second, tag.word(), u64::from_le(self.key), u64::from_le(self.value)];
        words[0] |= u64::from(crc::words(seed(place.generation, place.offset), &words));
        words
    }
}

/// Content of a valid entry of eight bytes of key and of value, of its segment's keyspace, that is neither dead nor a
/// tombstone and has neither expiry nor batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivePair {
    /// Key, as its bytes lie in memory.
    pub key: u64,
    /// Value, as its bytes lie in memory.
    pub value: u64,
    /// Reference to the key's previous entry, or 0. The low byte of its segment's generation is in the place of the
    /// size tag.
    pub parent: u64,
}

impl LivePair {
    /// The pair at `offset`, and its version minus the segment's base; `None` if there is no such entry or its checksum
    /// is wrong.
    #[inline(always)]
    pub(crate) fn verify(bytes: &[u8; MIN_BYTES as usize], generation: u64, offset: u64) -> Option<(LivePair, u64)> {
        let words @ [first, second, key, value] = words_of(bytes);
        // No flag but the operation, which is one of the two with a value.
        let flags = (first >> word0::FLAGS_SHIFT) as u8;
        if flags != Op::Update as u8 && flags != Op::Insert as u8 {
            return None;
        }
        let state = crc::words(seed(generation, offset), &[first & !CRC_MASK, second, key, value]);
        (u64::from(state) == first & CRC_MASK).then(|| Self::in_words(words))
    }

    /// Decodes a pair that [`LivePair::verify`] has found in these bytes. It may have been marked dead since.
    #[inline(always)]
    pub(crate) fn again(bytes: &[u8; MIN_BYTES as usize]) -> (LivePair, u64) {
        Self::in_words(words_of(bytes))
    }

    #[inline(always)]
    fn in_words([first, second, key, value]: [u64; 4]) -> (LivePair, u64) {
        let link = (second & u64::from(u32::MAX)) << 16 | first >> word0::LINK_LOW_SHIFT;
        let parent = address::with_generation(link, (first >> word0::PARENT_GENERATION_SHIFT) as u8);
        (LivePair { key: key.to_le(), value: value.to_le(), parent }, second >> 32)
    }
}

#[inline(always)]
fn words_of(bytes: &[u8; MIN_BYTES as usize]) -> [u64; 4] {
    let (words, _) = bytes.as_chunks::<8>();
    [words[0], words[1], words[2], words[3]].map(u64::from_le_bytes)
}
