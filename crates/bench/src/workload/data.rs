//! Keys and values that prove themselves.
//!
//! A key is a bijective function of its id, so keys are unique without a table. A value is a function of its key and a
//! version, and carries the version. So a reader can check every byte of a pair without knowing who wrote it. The check
//! needs only the key, so scans can check every pair they visit.
//!
//! Layout of a value of at least 8 bytes: word 0 has the version in its low half; its high half is a 32-bit hash of the
//! key, combined by XOR with a multiple of the version. Each further word is the word before it plus an odd constant. A
//! shorter value is the start of the word of version 0. The hash can be computed before the value arrives, so that the
//! check of one value does not delay the read of the next.
//!
//! Thread safety: plain values. Invariant: `check(key, fill(key, v)) == Some(v)`.

use super::etc;
use super::permutation::{GOLDEN, GOLDEN_INVERSE, Permutation, mix64, unmix64};

/// Sizes and seed of the data of one run.
#[derive(Clone, Copy, Debug)]
pub struct DataSet {
    key_bytes: usize,
    value_bytes: usize,
    seed: u64,
    short: Option<Permutation>,
    /// Whether the lengths of values are those of [`etc`].
    etc: bool,
}

impl DataSet {
    /// Keys of `key_bytes` (at least 4) and values of `value_bytes`. Keys under 8 bytes allow `2^(8·key_bytes)` ids.
    pub fn new(key_bytes: usize, value_bytes: usize, seed: u64) -> Self {
        assert!((4..=65_536).contains(&key_bytes), "keys have 4 to 65,536 bytes");
        let short = (key_bytes < 8).then(|| Permutation::new(1 << (8 * key_bytes), seed));
        Self { key_bytes, value_bytes, seed, short, etc: false }
    }

    /// Keys of 8 bytes and values of the lengths of [`etc`].
    pub fn etc(seed: u64) -> Self {
        Self { etc: true, ..Self::new(8, etc::MAX_VALUE_BYTES, seed) }
    }

    /// Length of every key in bytes.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Length of the longest value in bytes.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Length of every value in bytes, if it is the same for all.
    pub fn fixed_value_bytes(&self) -> Option<usize> {
        (!self.etc).then_some(self.value_bytes)
    }

    /// Length of the value of `key` in bytes.
    #[inline]
    pub fn value_bytes_of(&self, key: &[u8]) -> usize {
        if self.etc { self.etc_bytes_of(key) } else { self.value_bytes }
    }

    fn etc_bytes_of(&self, key: &[u8]) -> usize {
        // A key that is not of this data has no id, and any length will do: its value is wrong anyway.
        let word = key.try_into().map_or(0, u64::from_be_bytes);
        etc::value_bytes((unmix64(word) ^ self.seed).wrapping_mul(GOLDEN_INVERSE))
    }

    /// A buffer with the right length for [`DataSet::key`].
    pub fn key_buffer(&self) -> Vec<u8> {
        vec![0; self.key_bytes]
    }

    /// The key of `id` if keys have 8 bytes, for callers that need no buffer.
    #[inline(always)]
    pub fn short_key(&self, id: u64) -> Option<[u8; 8]> {
        (self.key_bytes == 8).then(|| self.word(id).to_be_bytes())
    }

    /// Writes the key of `id`. The random 8 bytes come first, big-endian, where a comparison or hash sees them first.
    #[inline]
    pub fn key(&self, id: u64, out: &mut [u8]) {
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *out) {
            *word = self.word(id).to_be_bytes();
            return;
        }
        self.key_slow(id, out);
    }

    #[inline]
    fn word(&self, id: u64) -> u64 {
        mix64(id.wrapping_mul(GOLDEN) ^ self.seed)
    }

    fn key_slow(&self, id: u64, out: &mut [u8]) {
        if let Some(short) = self.short {
            let bytes = short.at(id).to_be_bytes();
            out.copy_from_slice(&bytes[8 - self.key_bytes..]);
            return;
        }
        let word = self.word(id);
        for (i, chunk) in out.chunks_mut(8).enumerate() {
            let bytes = if i == 0 { word } else { mix64(word.wrapping_add(i as u64)) }.to_be_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// Fills `out`, which has the value's length, with the value of `key` at `version`.
    #[inline]
    pub fn value(&self, key: &[u8], version: u32, out: &mut [u8]) {
        let first = value_word(key, version);
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *out) {
            *word = first.to_le_bytes();
            return;
        }
        let first = if out.len() < 8 { value_word(key, 0) } else { first };
        fill_rising(first, out);
    }

    /// Checks every byte of a value that was read under `key`; returns its version if it is sound.
    #[inline(always)]
    pub fn check(&self, key: &[u8], value: &[u8]) -> Option<u32> {
        if value.len() != self.value_bytes_of(key) {
            return None;
        }
        let Some((head, rest)) = value.split_first_chunk::<8>() else {
            let expected = value_word(key, 0).to_le_bytes();
            return (value == &expected[..value.len()]).then_some(0);
        };
        let first = u64::from_le_bytes(*head);
        let version = first as u32;
        let sound = first == value_word(key, version) && (rest.is_empty() || is_rising_from(first.wrapping_add(GOLDEN), rest));
        sound.then_some(version)
    }

    /// The first word of the value of version 0 of an 8-byte key, if values have at least 8 bytes. [`is_version_of`]
    /// and [`is_long_version_of`] derive the other versions from it.
    #[inline(always)]
    pub fn first_word(&self, key: [u8; 8]) -> [u8; 8] {
        value_word(&key, 0).to_le_bytes()
    }
}

/// Whether `value` is the value of some version of the key whose value of version 0 is `first`. This is
/// [`DataSet::check`] for values of 8 bytes, with the key hashed beforehand.
#[inline(always)]
pub fn is_version_of(first: [u8; 8], value: &[u8]) -> bool {
    let Ok(value) = value.try_into().map(u64::from_le_bytes) else { return false };
    value == u64::from_le_bytes(first) ^ version_mark(value as u32)
}

/// As [`is_version_of`], for values of `bytes` bytes, at least 8.
#[inline(always)]
pub fn is_long_version_of(first: [u8; 8], bytes: usize, value: &[u8]) -> bool {
    let Some((head, rest)) = value.split_first_chunk::<8>() else { return false };
    value.len() == bytes && is_version_of(first, head) && is_rising_from(u64::from_le_bytes(*head).wrapping_add(GOLDEN), rest)
}

/// Fills `out` with `first` and the words that follow from it, each a constant more than the previous one.
#[inline(always)]
pub(crate) fn fill_rising(first: u64, out: &mut [u8]) {
    let (words, tail) = out.as_chunks_mut::<8>();
    let mut next = first;
    for word in words {
        *word = next.to_le_bytes();
        next = next.wrapping_add(GOLDEN);
    }
    if !tail.is_empty() {
        tail.copy_from_slice(&next.to_le_bytes()[..tail.len()]);
    }
}

/// Whether `bytes` are what [`fill_rising`] makes of `first`.
#[inline(always)]
pub(crate) fn is_rising_from(first: u64, bytes: &[u8]) -> bool {
    let (words, tail) = bytes.as_chunks::<8>();
    let (mut expected, mut differing) = (first, 0);
    for word in words {
        differing |= u64::from_le_bytes(*word) ^ expected;
        expected = expected.wrapping_add(GOLDEN);
    }
    differing == 0 && (tail.is_empty() || tail == &expected.to_le_bytes()[..tail.len()])
}

#[inline(always)]
fn value_word(key: &[u8], version: u32) -> u64 {
    (mix64(key_word(key)) >> 32) << 32 ^ version_mark(version)
}

/// The contribution of the version to the first word of a value.
#[inline(always)]
fn version_mark(version: u32) -> u64 {
    u64::from(version.wrapping_mul(GOLDEN as u32)) << 32 | u64::from(version)
}

/// The first and the last (up to) eight bytes of the key, joined.
#[inline]
fn key_word(key: &[u8]) -> u64 {
    if let Ok(word) = <[u8; 8]>::try_from(key) {
        return u64::from_le_bytes(word);
    }
    let mut head = [0; 8];
    let mut tail = [0; 8];
    let n = key.len().min(8);
    head[..n].copy_from_slice(&key[..n]);
    tail[..n].copy_from_slice(&key[key.len() - n..]);
    u64::from_le_bytes(head) ^ u64::from_le_bytes(tail).rotate_left(17)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_unique_at_every_length() {
        for key_bytes in [4, 7, 8, 9, 16, 33] {
            let data = DataSet::new(key_bytes, 8, 11);
            let mut buffer = data.key_buffer();
            let keys: HashSet<Vec<u8>> = (0..20_000)
                .map(|id| {
                    data.key(id, &mut buffer);
                    buffer.clone()
                })
                .collect();
            assert_eq!(keys.len(), 20_000, "{key_bytes} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_value_is_seen() {
        for value_bytes in [1, 7, 8, 9, 100, 1024] {
            let data = DataSet::new(8, value_bytes, 1);
            let (mut key, mut value) = (data.key_buffer(), vec![0; value_bytes]);
            data.key(77, &mut key);
            data.value(&key, 5, &mut value);
            assert_eq!(data.check(&key, &value), Some(if value_bytes < 8 { 0 } else { 5 }));
            for bit in 0..value_bytes * 8 {
                value[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(data.check(&key, &value), None, "{value_bytes} bytes, bit {bit}");
                value[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(data.check(&key, &value[1..]), None, "a shorter value");
        }
    }

    #[test]
    fn versions_of_a_short_value_are_told_as_by_the_whole_check() {
        let data = DataSet::new(8, 8, 1);
        let (mut key, mut other, mut value) = ([0; 8], [0; 8], [0; 8]);
        data.key(77, &mut key);
        data.key(78, &mut other);
        for version in [0, 1, 0x0100_0005, u32::MAX] {
            data.value(&key, version, &mut value);
            assert!(is_version_of(data.first_word(key), &value));
            assert!(!is_version_of(data.first_word(other), &value));
            assert!(!is_version_of(data.first_word(key), &value[1..]));
            for bit in 0..64 {
                value[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(data.check(&key, &value), None);
                assert!(!is_version_of(data.first_word(key), &value), "version {version}, bit {bit}");
                value[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn versions_of_a_long_value_are_told_as_by_the_whole_check() {
        for bytes in [8, 9, 48, 100] {
            let data = DataSet::new(8, bytes, 1);
            let (mut key, mut other, mut value) = ([0; 8], [0; 8], vec![0; bytes]);
            data.key(77, &mut key);
            data.key(78, &mut other);
            for version in [0, 0x0100_0005] {
                data.value(&key, version, &mut value);
                assert!(is_long_version_of(data.first_word(key), bytes, &value));
                assert!(!is_long_version_of(data.first_word(other), bytes, &value));
                assert!(!is_long_version_of(data.first_word(key), bytes + 1, &value), "a shorter value");
                for bit in 0..bytes * 8 {
                    value[bit / 8] ^= 1 << (bit % 8);
                    assert!(!is_long_version_of(data.first_word(key), bytes, &value), "version {version}, {bytes} bytes, bit {bit}");
                    value[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }

    #[test]
    fn a_key_tells_the_length_of_its_value() {
        let data = DataSet::etc(17);
        let mut key = data.key_buffer();
        for id in 0..5_000 {
            data.key(id, &mut key);
            assert_eq!(data.value_bytes_of(&key), etc::value_bytes(id));
        }
        let mut value = vec![0; data.value_bytes_of(&key)];
        data.value(&key, 3, &mut value);
        assert!(data.check(&key, &value).is_some() && data.check(&key, &value[1..]).is_none());
    }

    #[test]
    fn another_key_or_version_is_another_value() {
        let data = DataSet::new(8, 16, 1);
        let (mut a, mut b) = (data.key_buffer(), data.key_buffer());
        data.key(1, &mut a);
        data.key(2, &mut b);
        let (mut first, mut second) = ([0; 16], [0; 16]);
        data.value(&a, 1, &mut first);
        data.value(&a, 2, &mut second);
        assert_ne!(first, second);
        assert_eq!(data.check(&b, &first), None);
    }
}
