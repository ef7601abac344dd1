//! What can be recovered from a place of the commit-word protocol that does not verify, for salvaging a damaged pool.
//!
//! A checksum reveals more than right or wrong:
//!
//! * If the checksum of a slot differs from the commit word's by one bit at most, the word is damaged and the record in
//!   that slot is whole. This also holds for the slot that the word does not name.
//! * Otherwise one bit of the record may have been flipped. Each bit changes the checksum in a way that no other bit
//!   does: if one bit explains the difference, that bit is set right. This finds any single flipped bit.
//! * If the damage is worse, only the record before the current one is left, for which no checksum exists any more. The
//!   caller has to find out whether it makes sense.
//!
//! Thread safety: nobody may write meanwhile. Nothing on the medium is changed.

use crate::pool::Access;
use crate::record::Fields;
use crate::two_slot::{CommitWord, Extent, TwoSlot};

/// CRC-32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Something recovered from a damaged place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged<T> {
    /// The recovered value.
    pub value: T,
    /// Whether a checksum shows that this is the current record. Otherwise it is an earlier one, or only looks like
    /// one.
    pub is_current: bool,
    /// How it was recovered, for a report.
    pub how: &'static str,
}

impl<T> Salvaged<T> {
    /// Replaces the value by what `decode` returns; `None` if that is `None`.
    pub(crate) fn decode<U>(self, decode: impl FnOnce(T) -> Option<U>) -> Option<Salvaged<U>> {
        Some(Salvaged { value: decode(self.value)?, is_current: self.is_current, how: self.how })
    }
}

impl TwoSlot {
    /// The records that may be current at a place that does not verify, or that seems never to have been written:
    /// likeliest first.
    pub(crate) fn salvage(&self, access: &Access, uuid: &[u8; 16]) -> Vec<Salvaged<Vec<u8>>> {
        let word = access.load_u64(self.commit_off);
        let commit = CommitWord::unpack(word);
        let mut found = Vec::new();
        if word != 0 {
            let whole = [commit.slot, 1 - commit.slot].into_iter().find_map(|slot| self.whole(access, uuid, slot, commit.crc));
            let whole = whole.map(|value| (value, "its commit word is damaged, the record is whole"));
            let mended = || Some((self.mended(access, uuid, commit)?, "one bit was flipped, which its checksum shows"));
            found.extend(whole.or_else(mended).map(|(value, how)| Salvaged { value, is_current: true, how }));
        }
        // A word with sequence 0, which no program writes, says nothing about the slots.
        let (doubtful, how): (&[usize], _) = match commit.sequence {
            0 => (&[1 - commit.slot, commit.slot], "what is in its slots is used without a checksum"),
            _ => (&[1 - commit.slot], "the record before it is used instead"),
        };
        let records =
            doubtful.iter().filter_map(|slot| self.read_slot(access, *slot)).filter(|record| record.iter().any(|byte| *byte != 0));
        found.extend(records.map(|value| Salvaged { value, is_current: false, how }));
        found
    }

    /// The record in a slot if its checksum differs from the commit word's by one bit at most.
    fn whole(&self, access: &Access, uuid: &[u8; 16], slot: usize, crc: u32) -> Option<Vec<u8>> {
        self.read_slot(access, slot).filter(|record| (self.checksum(record, uuid) ^ crc).count_ones() <= 1)
    }

    /// The record in the slot that the commit word names, with its one flipped bit set right.
    fn mended(&self, access: &Access, uuid: &[u8; 16], commit: CommitWord) -> Option<Vec<u8>> {
        let Some(mut record) = self.read_slot(access, commit.slot) else { return self.with_mended_length(access, uuid, commit) };
        let behind = uuid.len() + size_of_val(&self.index);
        if let Some(bit) = flipped_bit(self.checksum(&record, uuid) ^ commit.crc, record.len(), behind) {
            record[bit / 8] ^= 1 << (bit % 8);
            // The first 32 bits may be a length, which determines how much the checksum covers: `with_mended_length`
            // handles these.
            if self.extent == Extent::Whole || bit >= 32 {
                return Some(record);
            }
        }
        self.with_mended_length(access, uuid, commit)
    }

    /// As [`TwoSlot::mended`], for a flipped bit of the length prefix.
    fn with_mended_length(&self, access: &Access, uuid: &[u8; 16], commit: CommitWord) -> Option<Vec<u8>> {
        if self.extent == Extent::Whole {
            return None;
        }
        let mut slot = vec![0; self.slot_bytes];
        access.read(self.slot_offs[commit.slot], &mut slot);
        let length = slot[..].u32_at(0);
        (0..u32::BITS).map(|bit| length ^ 1 << bit).find_map(|length| {
            let mut record = slot.get(..(length as usize).checked_add(4)?)?.to_vec();
            record[..4].copy_from_slice(&length.to_le_bytes());
            (self.checksum(&record, uuid) == commit.crc).then_some(record)
        })
    }
}

/// The bit of a record of `bytes` bytes whose flip changes the checksum by `difference`. The checksum covers `behind`
/// more bytes after the record.
fn flipped_bit(difference: u32, bytes: usize, behind: usize) -> Option<usize> {
    // The effect of the last bit; each bit before it goes one step further through the register.
    let mut change = POLYNOMIAL;
    for bit in (0..(bytes + behind) * 8).rev() {
        if change == difference && bit < bytes * 8 {
            return Some(bit);
        }
        change = if change & 1 != 0 { change >> 1 ^ POLYNOMIAL } else { change >> 1 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::crc32c;

    #[test]
    fn every_flipped_bit_is_found_by_its_checksum() {
        let record: Vec<u8> = (0..100).map(|i| i as u8 ^ 0x5a).collect();
        let behind = [7; 24];
        let right = crc32c(&[&record, &behind]);
        for bit in 0..800 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped_bit(crc32c(&[&damaged, &behind]) ^ right, 100, 24), Some(bit));
        }
        let mut worse = record.clone();
        worse[3..9].fill(0xee);
        assert_eq!(flipped_bit(crc32c(&[&worse, &behind]) ^ right, 100, 24), None);
        assert_eq!(flipped_bit(crc32c(&[&record, &[6; 24]]) ^ right, 100, 24), None, "it is not in the record");
    }
}
