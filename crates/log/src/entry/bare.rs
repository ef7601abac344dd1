//! Entries without extension whose key or value is not eight bytes long, built in few instructions: header, length word, key, value.
//!
//! Invariant: the words are the head that [`Parts::encode_head`](super::Parts::encode_head), the reference, makes of the same parts.

use super::{ALIGN, HEADER_BYTES, MIN_BYTES, Op, PLAIN_BYTES, Place, crc, flag, header_words, seed, version_fits};

/// Bytes before the key.
pub(crate) const HEAD_BYTES: u64 = HEADER_BYTES + 8;

/// What such an entry holds. Key and value must need a length word: not eight bytes of each, nor the tombstone of an eight-byte key.
#[derive(Clone, Copy, Debug)]
pub struct BareEntry<'a> {
    /// Operation.
    pub op: Op,
    /// Key.
    pub key: &'a [u8],
    /// Value; empty in a tombstone.
    pub value: &'a [u8],
    /// Version.
    pub version: u64,
    /// Reference to the key's previous entry, or 0.
    pub parent: u64,
    /// Low byte of the generation of the parent's segment.
    pub parent_generation: u8,
    /// Keyspace.
    pub keyspace: u32,
}

impl BareEntry<'_> {
    /// Size of the entry in bytes, padding included.
    #[inline(always)]
    pub fn size(&self) -> u64 {
        (HEAD_BYTES + (self.key.len() + self.value.len()) as u64).next_multiple_of(ALIGN).max(MIN_BYTES)
    }

    /// The words before the key, checksum included; `None` if the entry needs an extension in this place.
    #[inline(always)]
    pub fn encode(&self, place: &Place) -> Option<[u64; 3]> {
        debug_assert!(
            self.key.len() != PLAIN_BYTES || self.value.len() != if self.op == Op::Delete { 0 } else { PLAIN_BYTES },
            "a pair has no length word"
        );
        if self.keyspace != place.keyspace || !version_fits(place.base_version, self.version) {
            return None;
        }
        let flags = self.op as u8 | flag::LEN;
        let (first, second) = header_words(flags, self.parent, self.parent_generation, self.version - place.base_version);
        let mut words = [first, second, self.key.len() as u64 | (self.value.len() as u64) << 32];
        let state = crc::words(seed(place.generation, place.offset), &words);
        words[0] |= u64::from(crc::bytes(crc::bytes(state, self.key), self.value));
        Some(words)
    }
}
