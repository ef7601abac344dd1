//! The payload of blocks of keys: encoding and decoding of sorted pieces.
//!
//! * *Words*: all keys, then all references, eight bytes each. A key is stored as the number that its bytes are in
//!   big-endian order.
//! * *Keys*: all references; then for each key two varints (LEB128), the number of bytes that it shares with the key
//!   before and the number of those that follow, and the latter bytes.
//!
//! Plain functions without state.

use super::format::BlockKind;
use hither_index::{Ref, SortedPiece};

/// Appends the payload of a piece; returns its kind.
pub fn encode(piece: &SortedPiece, out: &mut Vec<u8>) -> BlockKind {
    let refs = piece.refs().iter().map(|reference| reference.0.to_le_bytes());
    if let Some(words) = piece.words() {
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        refs.for_each(|word| out.extend_from_slice(&word));
        return BlockKind::Words;
    }
    refs.for_each(|word| out.extend_from_slice(&word));
    let mut before = Vec::new();
    let mut word = [0; 8];
    for i in 0..piece.len() {
        let key = piece.key(i, &mut word);
        let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
        put_varint(out, shared);
        put_varint(out, key.len() - shared);
        out.extend_from_slice(&key[shared..]);
        before.truncate(shared);
        before.extend_from_slice(&key[shared..]);
    }
    BlockKind::Keys
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<usize> {
    let mut value = 0usize;
    for shift in (0..21).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A reader's place: keys of blocks must ascend, over all blocks of a run.
#[derive(Default)]
pub struct Order {
    last: Vec<u8>,
}

impl Order {
    /// Notes a stretch of ascending keys; returns whether it comes after all before.
    fn passes(&mut self, first: &[u8], last: &[u8]) -> bool {
        let after = first > self.last.as_slice();
        self.last.clear();
        self.last.extend_from_slice(last);
        after
    }
}

/// Decodes a payload of `items` keys into `piece`, leaving out references that `keep` rejects. Returns `None` if it is
/// no payload that [`encode`] makes.
pub fn decode(
    kind: BlockKind,
    bytes: &[u8],
    items: usize,
    order: &mut Order,
    piece: &mut SortedPiece,
    mut keep: impl FnMut(Ref) -> bool,
) -> Option<()> {
    piece.clear();
    match kind {
        BlockKind::Words if bytes.len() == items * 16 => {
            let (keys, refs) = bytes.split_at(items * 8);
            let (keys, refs) = (keys.as_chunks::<8>().0, refs.as_chunks::<8>().0);
            let mut before = None;
            let mut ascending = true;
            for (key, reference) in keys.iter().zip(refs) {
                let (word, reference) = (u64::from_le_bytes(*key), Ref(u64::from_le_bytes(*reference)));
                ascending &= before.is_none_or(|before| before < word);
                before = Some(word);
                if keep(reference) {
                    piece.push_word(word, reference);
                }
            }
            if let (Some(first), Some(last)) = (keys.first(), before) {
                ascending &= order.passes(&u64::from_le_bytes(*first).to_be_bytes(), &last.to_be_bytes());
            }
            ascending.then_some(())
        }
        BlockKind::Keys => decode_keys(bytes, items, order, piece, keep),
        _ => None,
    }
}

fn decode_keys(bytes: &[u8], items: usize, order: &mut Order, piece: &mut SortedPiece, mut keep: impl FnMut(Ref) -> bool) -> Option<()> {
    let (refs, mut rest) = bytes.split_at_checked(items.checked_mul(8)?)?;
    let mut key = Vec::new();
    for reference in refs.as_chunks::<8>().0 {
        let (shared, len) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
        let (suffix, behind) = rest.split_at_checked(len)?;
        rest = behind;
        if shared > key.len() {
            return None;
        }
        key.truncate(shared);
        key.extend_from_slice(suffix);
        if !order.passes(&key, &key) {
            return None;
        }
        let reference = Ref(u64::from_le_bytes(*reference));
        if keep(reference) {
            piece.push(&key, reference);
        }
    }
    rest.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(keys: &[&[u8]]) -> SortedPiece {
        let mut piece = SortedPiece::default();
        keys.iter().enumerate().for_each(|(i, key)| piece.push(key, Ref(i as u64 + 1)));
        piece
    }

    #[test]
    fn pieces_come_back_without_what_is_rejected() {
        let long = vec![b'x'; 65_536];
        for keys in [&[&b"aaaaaaaa"[..], b"aaaaaaab", b"b1234567"][..], &[b"a", b"aaaaaaaa", b"ab", b"abc", &long], &[]] {
            let (mut bytes, original) = (Vec::new(), piece(keys));
            let kind = encode(&original, &mut bytes);
            let mut read = SortedPiece::default();
            assert_eq!(decode(kind, &bytes, keys.len(), &mut Order::default(), &mut read, |_| true), Some(()));
            assert_eq!(read, original);
            assert_eq!(decode(kind, &bytes, keys.len(), &mut Order::default(), &mut read, |reference| reference.0 != 2), Some(()));
            assert_eq!(read.len(), keys.len() - usize::from(keys.len() > 1));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut read = SortedPiece::default();
        let mut refuse = |kind, bytes: &[u8], items| {
            assert_eq!(decode(kind, bytes, items, &mut Order::default(), &mut read, |_| true), None);
        };
        for keys in [&[&b"aaaaaaaa"[..], b"aaaaaaab"][..], &[b"a", b"ab"]] {
            let mut bytes = Vec::new();
            let kind = encode(&piece(keys), &mut bytes);
            (0..bytes.len()).for_each(|cut| refuse(kind, &bytes[..cut], 2));
            refuse(kind, &bytes, 3);
            refuse(BlockKind::Images, &bytes, 2);
        }
        // Keys out of order, within a block and across two.
        refuse(BlockKind::Words, &[2u64, 1, 7, 7].map(u64::to_le_bytes).concat(), 2);
        let mut order = Order::default();
        let one = [5u64, 7].map(u64::to_le_bytes).concat();
        assert_eq!(decode(BlockKind::Words, &one, 1, &mut order, &mut read, |_| true), Some(()));
        assert_eq!(decode(BlockKind::Words, &one, 1, &mut order, &mut read, |_| true), None);
    }
}
