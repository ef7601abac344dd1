//! The commit-word protocol: a record changes by one 8-byte store to a fully persisted copy.
//!
//! Two slots hold the current and the previous record. The commit word names the current one and holds its checksum:
//! bits 31..0 crc32c of (slot bytes, pool UUID, index as u64), bits 62..32 sequence (1 to 2^31 − 1, skips 0), bit 63
//! the slot.
//!
//! A change writes the slot that is not current, persists it, then stores and persists the commit word. After a crash
//! at any point the word is the old or the new one, and the slot it names is complete. So *a commit word whose slot
//! does not verify is damage*.
//!
//! The checksum binds record, pool and place: a slot copied from elsewhere does not verify.
//!
//! Thread safety: callers serialise writers. Readers need no lock: see [`TwoSlot::read`].

use crate::error::Result;
use crate::pool::Access;
use crate::record::{Fields, crc32c};

/// How much of a slot the checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All.
    Whole,
    /// A u32 length in front and that many bytes behind it.
    Prefixed,
}

/// The decoded commit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommitWord {
    pub(crate) crc: u32,
    pub(crate) sequence: u32,
    pub(crate) slot: usize,
}

impl CommitWord {
    pub(crate) fn unpack(word: u64) -> CommitWord {
        CommitWord { crc: word as u32, sequence: (word >> 32) as u32 & 0x7fff_ffff, slot: (word >> 63) as usize }
    }

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.crc) | u64::from(self.sequence) << 32 | (self.slot as u64) << 63
    }

    /// The sequence number after this one.
    fn next_sequence(self) -> u32 {
        if self.sequence >= 0x7fff_ffff { 1 } else { self.sequence + 1 }
    }
}

/// The verdict of the decision table on a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing was ever committed.
    Never,
    /// The record in this slot is current.
    Current(usize),
    /// The commit word cannot have been written by the protocol.
    BadWord,
    /// The word names this slot, whose bytes do not match it.
    BadSlot(usize),
}

/// The decision table: total over every commit word and every state of the two slots (`matches[i]`: slot i has the
/// word's checksum).
///
/// | word | sequence | named slot matches | verdict |
/// |---|---|---|---|
/// | 0 | any | any | never committed |
/// | other | 0 | any | bad word |
/// | other | not 0 | yes | current |
/// | other | not 0 | no | bad slot |
///
/// The slot that the word does not name is never looked at: a crash may have left anything there.
pub(crate) fn decide(word: u64, matches: [bool; 2]) -> Verdict {
    let commit = CommitWord::unpack(word);
    match (word, commit.sequence, matches[commit.slot]) {
        (0, _, _) => Verdict::Never,
        (_, 0, _) => Verdict::BadWord,
        (_, _, true) => Verdict::Current(commit.slot),
        (_, _, false) => Verdict::BadSlot(commit.slot),
    }
}

/// Damage at a place, for the caller's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) offset: u64,
    pub(crate) detail: String,
}

/// One place of the protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TwoSlot {
    pub(crate) commit_off: u64,
    pub(crate) slot_offs: [u64; 2],
    pub(crate) slot_bytes: usize,
    pub(crate) extent: Extent,
    pub(crate) index: u64,
}

impl TwoSlot {
    /// Reads the current record; `None` if there never was one.
    ///
    /// Safe against one concurrent writer. The slot being read is rewritten only by the change after next, and
    /// the next change has replaced the word by then. So a mismatch counts only if the word is still the same afterwards.
    pub(crate) fn read(&self, access: &Access, uuid: &[u8; 16]) -> Result<Option<Vec<u8>>, Damage> {
        loop {
            let word = access.load_u64(self.commit_off);
            if word == 0 {
                return Ok(None);
            }
            let commit = CommitWord::unpack(word);
            let record = self.read_slot(access, commit.slot);
            let mut matches = [false; 2];
            matches[commit.slot] = record.as_ref().is_some_and(|r| self.checksum(r, uuid) == commit.crc);
            match (decide(word, matches), record) {
                (Verdict::Current(_), Some(record)) => return Ok(Some(record)),
                _ if Self::word_after(access, self.commit_off) != word => continue,
                (Verdict::BadWord, _) => {
                    let detail = format!("has commit word {word:#018x} with sequence 0, which is never written");
                    return Err(Damage { offset: self.commit_off, detail });
                }
                _ => {
                    let name = ["A", "B"][commit.slot];
                    let detail = format!("(slot {name}) does not match its commit word {word:#018x} at offset {}", self.commit_off);
                    return Err(Damage { offset: self.slot_offs[commit.slot], detail });
                }
            }
        }
    }

    /// Loads the commit word after the slot has been read: without the fence a processor may load the word first.
    fn word_after(access: &Access, off: u64) -> u64 {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        access.load_u64(off)
    }

    /// The bytes of a slot that the checksum covers; `None` if a length prefix is impossible.
    pub(crate) fn read_slot(&self, access: &Access, slot: usize) -> Option<Vec<u8>> {
        let off = self.slot_offs[slot];
        let len = match self.extent {
            Extent::Whole => self.slot_bytes,
            Extent::Prefixed => {
                let mut prefix = [0; 4];
                access.read(off, &mut prefix);
                (prefix[..].u32_at(0) as usize).checked_add(4).filter(|&len| len <= self.slot_bytes)?
            }
        };
        let mut bytes = vec![0; len];
        access.read(off, &mut bytes);
        Some(bytes)
    }

    pub(crate) fn checksum(&self, record: &[u8], uuid: &[u8; 16]) -> u32 {
        crc32c(&[record, uuid, &self.index.to_le_bytes()])
    }

    /// Makes `record` current: slot, persist, word, persist. After an error either the old record stays current in
    /// memory or the pool is poisoned.
    pub(crate) fn commit(&self, access: &Access, uuid: &[u8; 16], record: &[u8]) -> Result<()> {
        Self::commit_at_each(std::slice::from_ref(self), access, uuid, record)
    }

    /// As [`TwoSlot::commit`], for several places: all slots, persist, all words, persist. After a crash each place
    /// holds the old or the new record.
    pub(crate) fn commit_at_each(places: &[TwoSlot], access: &Access, uuid: &[u8; 16], record: &[u8]) -> Result<()> {
        let words: Vec<CommitWord> = places.iter().map(|place| place.write_slot(access, uuid, record)).collect();
        access.persist_flushed()?;
        for (place, word) in places.iter().zip(words) {
            access.store_u64(place.commit_off, word.pack());
            access.flush(place.commit_off, 8);
        }
        access.persist_flushed()
    }

    /// Writes the slot that is not current and starts its write-back. Returns the commit word that will make it
    /// current.
    fn write_slot(&self, access: &Access, uuid: &[u8; 16], record: &[u8]) -> CommitWord {
        assert!(record.len() <= self.slot_bytes, "a record fits its slot");
        debug_assert!(self.extent == Extent::Prefixed || record.len() == self.slot_bytes);
        let old = access.load_u64(self.commit_off);
        let current = CommitWord::unpack(old);
        let slot = if old == 0 { 0 } else { 1 - current.slot };
        let off = self.slot_offs[slot];
        // A reader that meets what is written here sees the word that made the other slot current, and reads again. On
        // media that need no fence nothing else orders the two.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        // SAFETY: the slot lies in the metadata area, which is mapped for the life of the pool, and callers serialise
        // writers.
        unsafe { access.write(off, record) };
        access.flush(off, record.len());
        CommitWord { crc: self.checksum(record, uuid), sequence: current.next_sequence(), slot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_table_is_total() {
        let words = [0u64, 1, 0xffff_ffff, 1 << 32, 0x7fff_ffff << 32, 1 << 63, 1 << 63 | 1, 1 << 63 | 1 << 32, u64::MAX];
        for word in words {
            for state in 0..4u8 {
                let matches = [state & 1 != 0, state & 2 != 0];
                let slot = (word >> 63) as usize;
                let sequence_is_zero = (word >> 32) & 0x7fff_ffff == 0;
                let expected = match (word == 0, sequence_is_zero, matches[slot]) {
                    (true, _, _) => Verdict::Never,
                    (false, true, _) => Verdict::BadWord,
                    (false, false, true) => Verdict::Current(slot),
                    (false, false, false) => Verdict::BadSlot(slot),
                };
                assert_eq!(decide(word, matches), expected, "word {word:#x}, slots {matches:?}");
            }
        }
    }

    #[test]
    fn commit_word_packs_all_fields() {
        for word in [0u64, u64::MAX, 0x8000_0001_dead_beef, 0x7fff_ffff_0000_0000] {
            assert_eq!(CommitWord::unpack(word).pack(), word);
        }
    }

    #[test]
    fn sequence_wraps_past_zero() {
        let word = |sequence| CommitWord { crc: 0, sequence, slot: 0 };
        assert_eq!(word(0).next_sequence(), 1);
        assert_eq!(word(7).next_sequence(), 8);
        assert_eq!(word(0x7fff_ffff).next_sequence(), 1);
    }
}
