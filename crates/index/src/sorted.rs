//! Stretches of an ordered index outside of it: sorted keys with their references, as a checkpoint holds them.
//!
//! Keys of eight bytes are kept as big-endian numbers, whose order is the keys' order; a piece with any other key keeps the bytes of all.
//!
//! * **Thread safety.** Plain data.
//! * **Invariant.** Keys ascend strictly; there is one reference per key. (Those that were read through a resolver only if what was read is sound.)

use crate::{Ref, Resolver};

/// Entries whose keys are being loaded while a piece is filled through a resolver.
const AHEAD: usize = 24;

/// Sorted keys and their references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedPiece {
    words: Vec<u64>,
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`; empty while all keys are words.
    ends: Vec<usize>,
    refs: Vec<Ref>,
    /// Some key was read through a resolver.
    resolved: bool,
}

impl SortedPiece {
    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.words.clear();
        self.bytes.clear();
        self.ends.clear();
        self.refs.clear();
        self.resolved = false;
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.refs.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }

    /// The references, in the order of the keys.
    pub fn refs(&self) -> &[Ref] {
        &self.refs
    }

    /// The keys as big-endian numbers, if all have eight bytes.
    pub fn words(&self) -> Option<&[u64]> {
        (self.words.len() == self.refs.len()).then_some(&self.words)
    }

    /// Whether some key was read through a resolver, which believes what it reads: any bytes may look like a key, of eight bytes too.
    pub fn is_resolved(&self) -> bool {
        self.resolved
    }

    /// Key `i`; `word` is where it lies if the piece keeps numbers.
    pub fn key<'a>(&'a self, i: usize, word: &'a mut [u8; 8]) -> &'a [u8] {
        if let Some(words) = self.words() {
            *word = words[i].to_be_bytes();
            return word;
        }
        let from = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[from..self.ends[i]]
    }

    /// Appends a key greater than all before.
    pub fn push(&mut self, key: &[u8], reference: Ref) {
        match <[u8; 8]>::try_from(key) {
            Ok(word) if self.ends.is_empty() => self.words.push(u64::from_be_bytes(word)),
            _ => self.push_bytes(key),
        }
        self.refs.push(reference);
    }

    /// Appends a key of eight bytes, as a big-endian number, to a piece of such keys.
    #[inline(always)]
    pub fn push_word(&mut self, word: u64, reference: Ref) {
        debug_assert!(self.ends.is_empty(), "a piece with other keys keeps bytes");
        self.words.push(word);
        self.refs.push(reference);
    }

    fn push_bytes(&mut self, key: &[u8]) {
        for word in self.words.drain(..) {
            self.bytes.extend_from_slice(&word.to_be_bytes());
            self.ends.push(self.bytes.len());
        }
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// Appends references with the keys that a resolver reads.
    pub fn extend_resolved<R: Resolver>(&mut self, refs: &[Ref], resolver: &R) {
        self.resolved |= !refs.is_empty();
        refs.iter().take(AHEAD).for_each(|reference| resolver.prefetch(*reference));
        for (i, reference) in refs.iter().enumerate() {
            if let Some(later) = refs.get(i + AHEAD) {
                resolver.prefetch(*later);
            }
            self.push(resolver.key(*reference), *reference);
        }
    }
}

/// Where an index that is being loaded gets its keys from: pieces in ascending order.
pub trait PieceSource: Send {
    /// Puts the next piece in place of `piece`, empty or not; false at the end (or when the source fails, which its owner knows).
    fn next_piece(&mut self, piece: &mut SortedPiece) -> bool;
}

impl<F: FnMut(&mut SortedPiece) -> bool + Send> PieceSource for F {
    fn next_piece(&mut self, piece: &mut SortedPiece) -> bool {
        self(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_whatever_their_lengths() {
        let keys: [&[u8]; 5] = [b"12345678", b"22345678", b"3", b"a long key that is no word", b"b2345678"];
        for mixed in [2, 5] {
            let mut piece = SortedPiece::default();
            for (i, key) in keys[..mixed].iter().enumerate() {
                piece.push(key, Ref(i as u64 + 1));
            }
            assert_eq!(piece.words().is_some(), mixed == 2);
            for (i, key) in keys[..mixed].iter().enumerate() {
                assert_eq!((piece.key(i, &mut [0; 8]), piece.refs()[i]), (*key, Ref(i as u64 + 1)));
            }
            piece.clear();
            assert!(piece.is_empty() && piece.words().is_some());
        }
    }
}
