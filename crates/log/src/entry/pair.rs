//! The commonest entry, built from registers: eight bytes of key and of value (none in a tombstone), no expiry, no batch.
//!
//! Invariant: the words are those of [`Parts::encode_plain`](super::Parts::encode_plain), the reference.

use super::{Op, Place, crc, header_words, seed, version_fits};

/// An entry of eight bytes of key and of value, or the tombstone of an eight-byte key.
#[derive(Clone, Copy, Debug)]
pub struct PlainPair {
    /// Operation.
    pub op: Op,
    /// Key, as its bytes lie in memory.
    pub key: u64,
    /// Value likewise; ignored in a tombstone.
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
}
