//! Bare entries: those with a length word and without an extension, encoded in few instructions.
//!
//! Invariant: the words equal the head that [`Parts::encode_head`], the reference, makes of the same parts.

use super::{ALIGN, HEADER_BYTES, MIN_BYTES, Parts, Place, crc, flag, seed};

/// Bytes before a bare entry's key.
pub(crate) const HEAD_BYTES: u64 = HEADER_BYTES + 8;

/// Size of a bare entry whose key and value together have `bytes` bytes, padding included.
#[inline(always)]
pub fn bare_size_of(bytes: usize) -> u64 {
    (HEAD_BYTES + bytes as u64).next_multiple_of(ALIGN).max(MIN_BYTES)
}

impl Parts<'_> {
    /// Size of the entry in bytes if it is bare: see [`bare_size_of`].
    #[inline(always)]
    pub fn bare_size(&self) -> u64 {
        bare_size_of(self.key.len() + self.value.len())
    }

    /// The words before the key, checksum included; `None` if the entry is not bare in this place.
    #[inline(always)]
    pub fn encode_bare(&self, place: &Place) -> Option<[u64; 3]> {
        if !self.needs_len() || self.batch.is_some() || self.ext_mask(place.keyspace, place.base_version) != 0 {
            return None;
        }
        let (first, second) = self.header(self.op as u8 | flag::LEN, place);
        let mut words = [first, second, self.key.len() as u64 | (self.value.len() as u64) << 32];
        let state = crc::words(seed(place.generation, place.offset), &words);
        words[0] |= u64::from(crc::bytes(crc::bytes(state, self.key), self.value));
        Some(words)
    }

    /// Calls `f` with the words before the key: as [`Parts::encode_head`], but in few instructions if the entry is
    /// bare.
    #[inline(always)]
    pub(crate) fn with_head<R>(&self, place: &Place, f: impl FnOnce(&[u64]) -> R) -> R {
        match self.encode_bare(place) {
            Some(words) => f(&words),
            None => f(self.encode_head(place).words()),
        }
    }
}
