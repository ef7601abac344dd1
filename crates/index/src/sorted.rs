//! Runs of an ordered index kept outside of it: sorted keys with their references, as a checkpoint holds them.
//!
//! Keys of eight bytes are kept as big-endian numbers, whose order is the keys' order. A piece that holds any other key
//! keeps the bytes of all its keys.
//!
//! * **Thread safety.** Plain data.
//! * **Invariant.** Keys ascend strictly; there is one reference per key. (For keys that were read through a resolver,
//!   this holds only if the entries were sound.)

use crate::{Ref, Resolver};

/// Number of entries whose keys are being loaded ahead while a piece is filled through a resolver.
const AHEAD: usize = 24;

/// Sorted keys and their references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedPiece {
    words: Vec<u64>,
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`; empty while all keys are words.
    ends: Vec<usize>,
    refs: Vec<Ref>,
    /// Whether some key was read through a resolver.
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

    /// Returns whether some key was read through a resolver. A resolver does not verify what it reads: any bytes may
    /// look like a key, even like one of eight bytes.
    pub fn is_resolved(&self) -> bool {
        self.resolved
    }

    /// Returns key `i`. If the piece keeps numbers, `word` receives the key's bytes.
    pub fn key<'a>(&'a self, i: usize, word: &'a mut [u8; 8]) -> &'a [u8] {
        if let Some(words) = self.words() {
            *word = words[i].to_be_bytes();
            return word;
        }
        let from = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[from..self.ends[i]]
    }

    /// Appends a key, which must be greater than all before it.
    pub fn push(&mut self, key: &[u8], reference: Ref) {
        match <[u8; 8]>::try_from(key) {
            Ok(word) if self.ends.is_empty() => self.words.push(u64::from_be_bytes(word)),
            _ => self.push_bytes(key),
        }
        self.refs.push(reference);
    }

    /// Appends a key of eight bytes, given as a big-endian number. All keys of the piece must have eight bytes.
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

/// The source of the keys of an index that is being loaded: pieces in ascending order.
pub trait PieceSource: Send {
    /// Replaces the content of `piece` with the next piece, which may be empty. Returns false at the end (or when the
    /// source fails, which its owner knows).
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
