//! The layout of a bucket's words.
//!
//! A bucket is a header and an arena. The header has a place for each of [`SLOTS`] slots. The slots' records lie in the
//! arena, packed by the writer of the bucket. All buckets have one size, chosen for the average record of the store
//! when the cache is switched on, so the memory is exactly as large as was asked for, whatever lengths the values have.
//!
//! | words | content |
//! |---|---|
//! | 0 | control: lock, writing, sequence |
//! | 1–2 | tags, 16 bits for each slot; 0 is an empty slot |
//! | 3–4 | where each slot's record begins: 16 bits, in words from the start of the arena |
//! | 5–8 | access frequencies (or times), 32 bits for each slot |
//! | 9 | clock: updates of the bucket so far |
//! | 10–21 | ghosts: 24 × (tag, frequency), 16 bits each |
//! | 22– | arena |
//!
//! A record is: reference, segment generation, lengths, expiry if there is one, key, value; the last two padded to
//! whole words.

/// Slots of a bucket.
pub const SLOTS: usize = 8;
/// Ghosts of a bucket: items that were seen and have no slot.
pub const GHOSTS: usize = 24;

pub(crate) const CONTROL: usize = 0;
pub(crate) const TAGS: usize = 1;
pub(crate) const OFFSETS: usize = 3;
pub(crate) const FREQUENCIES: usize = 5;
pub(crate) const CLOCK: usize = 9;
pub(crate) const GHOST_WORDS: usize = 10;
pub(crate) const ARENA: usize = GHOST_WORDS + GHOSTS / 2;

/// Words of a record before its expiry or key.
pub(crate) const RECORD_HEAD: usize = 3;
const EXPIRES: u64 = 1 << 63;
const LENGTH_MASK: u64 = 0x7fff_ffff;
/// Offsets have 16 bits.
const MAX_ARENA: usize = 1 << 16;

/// The lengths in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub key_bytes: usize,
    pub value_bytes: usize,
    pub expires: bool,
}

impl Lengths {
    pub fn pack(self) -> u64 {
        (self.key_bytes as u64) | (self.value_bytes as u64) << 32 | if self.expires { EXPIRES } else { 0 }
    }

    pub fn unpack(word: u64) -> Lengths {
        let key_bytes = (word & 0xffff_ffff) as usize;
        Lengths { key_bytes, value_bytes: (word >> 32 & LENGTH_MASK) as usize, expires: word & EXPIRES != 0 }
    }

    /// The offset of the key's first word in the record.
    pub fn key_at(self) -> usize {
        RECORD_HEAD + usize::from(self.expires)
    }

    /// The offset of the value's first word in the record.
    pub fn value_at(self) -> usize {
        self.key_at() + self.key_bytes.div_ceil(8)
    }

    /// Words of the whole record.
    pub fn words(self) -> usize {
        self.value_at() + self.value_bytes.div_ceil(8)
    }
}

/// How the words of the cache are divided into buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Words of a bucket.
    pub bucket_words: usize,
    /// Number of buckets.
    pub buckets: usize,
}

impl Geometry {
    /// Divides `words` words into buckets whose arenas have room for [`SLOTS`] records of `pair_bytes` (key and value)
    /// each.
    pub fn for_pairs(words: usize, pair_bytes: usize) -> Geometry {
        let record = RECORD_HEAD + 1 + pair_bytes.div_ceil(8);
        let bucket_words = (ARENA + SLOTS * record).next_multiple_of(8).min(ARENA + MAX_ARENA - 8).min(words.max(1));
        // Memory no larger than a header holds no bucket.
        Geometry { bucket_words, buckets: if bucket_words > ARENA { words / bucket_words } else { 0 } }
    }

    /// Packs both numbers into one word, so that they can be read at once.
    pub(crate) fn pack(self) -> u64 {
        (self.bucket_words as u64) << 32 | self.buckets as u64
    }

    pub(crate) fn unpack(word: u64) -> Geometry {
        Geometry { bucket_words: (word >> 32) as usize, buckets: (word & 0xffff_ffff) as usize }
    }

    /// The first word of the bucket of `hash`. There must be a bucket.
    #[inline(always)]
    pub(crate) fn bucket_at(self, hash: u64) -> usize {
        let bucket = (u128::from(hash) * self.buckets as u128) >> 64;
        bucket as usize * self.bucket_words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_trip() {
        for expires in [false, true] {
            for (key_bytes, value_bytes) in [(1, 0), (8, 8), (65_536, 1024), (17, 3)] {
                let lengths = Lengths { key_bytes, value_bytes, expires };
                assert_eq!(Lengths::unpack(lengths.pack()), lengths);
            }
        }
        assert_eq!(Lengths { key_bytes: 8, value_bytes: 9, expires: true }.words(), 3 + 1 + 1 + 2);
    }

    #[test]
    fn buckets_fill_the_words_and_hashes_stay_inside() {
        for pair in [16, 108, 1024 + 8, 1 << 20] {
            let geometry = Geometry::for_pairs(1 << 20, pair);
            assert!(geometry.buckets * geometry.bucket_words <= 1 << 20);
            assert!((geometry.buckets + 1) * geometry.bucket_words > 1 << 20);
            assert_eq!(Geometry::unpack(geometry.pack()), geometry);
            for hash in [0, 1, u64::MAX / 2, u64::MAX] {
                assert!(geometry.bucket_at(hash) + geometry.bucket_words <= 1 << 20);
            }
        }
        assert_eq!(Geometry::for_pairs(100, 4096).buckets, 1);
        assert_eq!(Geometry::for_pairs(0, 16).buckets, 0);
    }
}
