//! Bytes of records: little-endian fields, checksums, and small checked words.
//!
//! A small word (settled version, clock, checkpoint) is one aligned 8-byte store: 56 bits of value below 8 bits of
//! check. Zero means that it was never set.

use crc_fast::{CrcAlgorithm, Digest};

/// The largest value of a small word.
pub(crate) const SMALL_WORD_MAX: u64 = (1 << 56) - 1;

/// CRC-32C of the concatenation of `parts`.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// A small word that holds `value` (its low 56 bits).
pub(crate) fn pack_small(value: u64) -> u64 {
    let value = value & SMALL_WORD_MAX;
    value | u64::from(small_check(value)) << 56
}

/// The value of a small word; `None` if its check fails.
pub(crate) fn unpack_small(word: u64) -> Option<u64> {
    let value = word & SMALL_WORD_MAX;
    (word == 0 || pack_small(value) == word).then_some(value)
}

fn small_check(value: u64) -> u8 {
    crc32c(&[&value.to_le_bytes()[..7]]) as u8 ^ 0xA5
}

/// Fields of a record at fixed offsets.
pub(crate) trait Fields {
    fn bytes_at<const N: usize>(&self, off: usize) -> [u8; N];
    fn u16_at(&self, off: usize) -> u16 {
        u16::from_le_bytes(self.bytes_at(off))
    }
    fn u32_at(&self, off: usize) -> u32 {
        u32::from_le_bytes(self.bytes_at(off))
    }
    fn u64_at(&self, off: usize) -> u64 {
        u64::from_le_bytes(self.bytes_at(off))
    }
}

impl Fields for [u8] {
    /// Offsets are constants of a record and checked against its size at compile time; an offset beyond the record is a
    /// bug.
    fn bytes_at<const N: usize>(&self, off: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self[off..off + N]);
        bytes
    }
}

/// Writes a field.
pub(crate) fn put<const N: usize>(record: &mut [u8], off: usize, bytes: [u8; N]) {
    record[off..off + N].copy_from_slice(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn crc_is_castagnoli_and_concatenates() {
        assert_eq!(crc32c(&[b"123456789"]), 0xE306_9283);
        assert_eq!(crc32c(&[b"1234", b"", b"56789"]), 0xE306_9283);
    }

    proptest! {
        #[test]
        fn small_words_round_trip_and_notice_a_flipped_bit(value in 0..=SMALL_WORD_MAX, bit in 0..64u32) {
            let word = pack_small(value);
            prop_assert_eq!(unpack_small(word), Some(value));
            prop_assert_ne!(word, 0);
            // Every bit of the value changes the low byte of the CRC. (A word of zeros means that none was ever set.)
            let flipped = word ^ (1 << bit);
            prop_assert!(unpack_small(flipped).is_none() || flipped == 0);
        }
    }

    #[test]
    fn zero_means_never_set() {
        assert_eq!(unpack_small(0), Some(0));
        assert_ne!(pack_small(0), 0);
        assert_eq!(unpack_small(2), None);
    }
}
