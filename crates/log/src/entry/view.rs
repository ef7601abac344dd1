//! Reading an entry: it is decoded in place, and verified.
//!
//! Whatever the bytes are, decoding returns a view inside them or the reason why they are no entry. Thread safety: none
//! needed, because a view borrows bytes that nobody changes except for the DEAD mark.

use super::{
    ALIGN, BatchTag, CRC_MASK, DEAD_BITS, HEADER_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_BYTES, Op, PLAIN_BYTES, crc, ext, flag, seed,
    word0,
};
use crate::version::VERSION_BITS;

/// A decoded entry that borrows from the pool.
#[derive(Clone, Copy, Debug)]
pub struct EntryView<'a> {
    /// First header word, checksum included.
    first: u64,
    second: u64,
    ext: u64,
    fields: [u64; 4],
    /// The key.
    pub key: &'a [u8],
    /// The value; empty for a delete.
    pub value: &'a [u8],
    /// Bytes from the entry's start to the next possible entry.
    pub size: u64,
    head_bytes: usize,
}

/// Why bytes are not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// All zero where the operation would be: never written.
    Empty,
    /// Unknown flags, impossible lengths or versions, or bytes beyond the end.
    Malformed,
    /// The checksum does not match.
    Checksum,
}

impl<'a> EntryView<'a> {
    /// Decodes the entry at the start of `bytes` without verifying its checksum.
    ///
    /// For references that come from the index: those entries were verified when they were installed.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<EntryView<'a>, Invalid> {
        let first = word(bytes, 0).ok_or(Invalid::Malformed)?;
        let flags = (first >> word0::FLAGS_SHIFT) as u8;
        if flags & flag::OP_MASK == 0 {
            return Err(if first == 0 { Invalid::Empty } else { Invalid::Malformed });
        }
        let second = word(bytes, 8).ok_or(Invalid::Malformed)?;
        let mut view =
            EntryView { first, second, ext: 0, fields: [0; 4], key: &[], value: &[], size: 0, head_bytes: HEADER_BYTES as usize };
        let value_len = if view.op() == Op::Delete { 0 } else { PLAIN_BYTES };
        let (key_len, value_len) =
            if flags & (flag::LEN | flag::EXT) == 0 { (PLAIN_BYTES, value_len) } else { view.parse_optional(bytes, flags, value_len)? };
        if !matches!(flags & flag::DEAD, 0 | flag::DEAD) {
            return Err(Invalid::Malformed);
        }
        let (head, rest) = bytes.split_at_checked(view.head_bytes).ok_or(Invalid::Malformed)?;
        let (key, rest) = rest.split_at_checked(key_len).ok_or(Invalid::Malformed)?;
        view.key = key;
        view.value = rest.get(..value_len).ok_or(Invalid::Malformed)?;
        view.size = ((head.len() + key_len + value_len) as u64).next_multiple_of(ALIGN).max(MIN_BYTES);
        Ok(view)
    }

    fn parse_optional(&mut self, bytes: &[u8], flags: u8, plain_value: usize) -> Result<(usize, usize), Invalid> {
        let mut next = || {
            let word = word(bytes, self.head_bytes).ok_or(Invalid::Malformed);
            self.head_bytes += 8;
            word
        };
        if flags & flag::EXT != 0 {
            self.ext = next()?;
            let mask = self.ext as u8;
            if mask & !ext::KNOWN != 0 {
                return Err(Invalid::Malformed);
            }
            for (bit, field) in self.fields.iter_mut().enumerate() {
                if mask & 1 << bit != 0 {
                    *field = next()?;
                }
            }
            if mask & ext::VERSION != 0 && self.fields[2] >> VERSION_BITS != 0 {
                return Err(Invalid::Malformed);
            }
        }
        if flags & flag::LEN == 0 {
            return Ok((PLAIN_BYTES, plain_value));
        }
        let lengths = next()?;
        let (key_len, value_len) = ((lengths & 0xffff_ffff) as usize, (lengths >> 32) as usize);
        if key_len == 0 || key_len > MAX_KEY_BYTES || value_len > MAX_VALUE_BYTES {
            return Err(Invalid::Malformed);
        }
        Ok((key_len, value_len))
    }

    /// Decodes the entry and verifies its checksum against its place; in few instructions if it is a pair of eight
    /// bytes each.
    #[inline(always)]
    pub fn verify(bytes: &'a [u8], generation: u64, offset: u64) -> Result<EntryView<'a>, Invalid> {
        match Self::verify_pair(bytes, generation, offset) {
            Some(pair) => Ok(pair),
            None => Self::verify_any(bytes, generation, offset),
        }
    }

    #[inline(never)]
    fn verify_any(bytes: &'a [u8], generation: u64, offset: u64) -> Result<EntryView<'a>, Invalid> {
        let view = Self::parse(bytes)?;
        let masked = view.first & !(CRC_MASK | DEAD_BITS);
        let state = crc::words(seed(generation, offset), &[masked, view.second]);
        let state = crc::bytes(state, &bytes[HEADER_BYTES as usize..view.head_bytes]);
        let state = crc::bytes(crc::bytes(state, view.key), view.value);
        if u64::from(state) == view.first & CRC_MASK { Ok(view) } else { Err(Invalid::Checksum) }
    }

    /// Whether the checksum is right, computed as in [`EntryView::verify`]; `continue_over(state, from, to)` continues
    /// a checksum over bytes of the entry.
    pub(crate) fn has_checksum(&self, generation: u64, offset: u64, continue_over: impl FnOnce(u32, usize, usize) -> u32) -> bool {
        let state = crc::words(seed(generation, offset), &[self.first & !(CRC_MASK | DEAD_BITS), self.second]);
        let end = self.head_bytes + self.key.len() + self.value.len();
        u64::from(continue_over(state, HEADER_BYTES as usize, end)) == self.first & CRC_MASK
    }

    /// Decodes and verifies a pair of eight bytes each; `None` if the bytes are no such pair or its checksum is wrong.
    #[inline(always)]
    fn verify_pair(bytes: &'a [u8], generation: u64, offset: u64) -> Option<EntryView<'a>> {
        let bytes = bytes.first_chunk::<{ MIN_BYTES as usize }>()?;
        let (first, second) = (word(bytes, 0)?, word(bytes, 8)?);
        let flags = (first >> word0::FLAGS_SHIFT) as u8;
        if flags & flag::OP_MASK <= Op::Delete as u8 || !matches!(flags & !flag::OP_MASK, 0 | flag::DEAD) {
            return None;
        }
        let words = [first & !(CRC_MASK | DEAD_BITS), second, word(bytes, 16)?, word(bytes, 24)?];
        let state = crc::words(seed(generation, offset), &words);
        let (key, value) = (&bytes[16..24], &bytes[24..]);
        let view = EntryView { first, second, ext: 0, fields: [0; 4], key, value, size: MIN_BYTES, head_bytes: HEADER_BYTES as usize };
        (u64::from(state) == first & CRC_MASK).then_some(view)
    }

    /// The operation.
    #[inline(always)]
    pub fn op(&self) -> Op {
        match (self.first >> word0::FLAGS_SHIFT) as u8 & flag::OP_MASK {
            1 => Op::Delete,
            2 => Op::Update,
            _ => Op::Insert,
        }
    }

    /// Whether a collector or recovery marked the entry dead.
    #[inline(always)]
    pub fn is_dead(&self) -> bool {
        self.first & DEAD_BITS == DEAD_BITS
    }

    /// The link to the key's previous entry (a reference without size tag), or 0.
    #[inline(always)]
    pub fn parent(&self) -> u64 {
        (self.first >> word0::LINK_LOW_SHIFT | self.second << 16) & crate::address::LINK_MASK
    }

    /// Low byte of the generation of the parent's segment when the link was made.
    pub fn parent_generation(&self) -> u8 {
        (self.first >> word0::PARENT_GENERATION_SHIFT) as u8
    }

    /// The version, given the base version of the segment.
    #[inline(always)]
    pub fn version(&self, base_version: u64) -> u64 {
        if self.ext as u8 & ext::VERSION != 0 { self.fields[2] } else { base_version + (self.second >> 32) }
    }

    /// The keyspace, given that of the segment.
    #[inline(always)]
    pub fn keyspace(&self, segment_keyspace: u32) -> u32 {
        if self.ext as u8 & ext::KEYSPACE != 0 { self.fields[0] as u32 } else { segment_keyspace }
    }

    /// Expiry in milliseconds since the epoch, or 0.
    #[inline(always)]
    pub fn expiry_ms(&self) -> u64 {
        self.fields[1]
    }

    /// Batch membership.
    #[inline(always)]
    pub fn batch(&self) -> Option<BatchTag> {
        let size = (self.ext >> ext::BATCH_SIZE_SHIFT & ext::BATCH_MASK) as u32;
        (size != 0).then_some(BatchTag { size, index: (self.ext >> ext::BATCH_INDEX_SHIFT & ext::BATCH_MASK) as u32 })
    }

    /// The word of its [`shortcut`](super::shortcut), or 0.
    #[inline(always)]
    pub fn shortcut(&self) -> u64 {
        self.fields[3]
    }

    /// The first header word with the DEAD mark set: a collector stores it to mark the entry.
    pub fn dead_word(&self) -> u64 {
        self.first | DEAD_BITS
    }
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).map(|slice| u64::from_le_bytes(slice.try_into().expect("a slice of 8 bytes")))
}
