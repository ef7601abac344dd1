//! Keys as sequences of 8-byte slices.
//!
//! A layer orders its entries by (slice, rank). The slice is 8 key bytes, big-endian and padded with zeros. The rank is
//! the number of these bytes that belong to the key: 1 to 8 if the key ends here, [`LONGER`] if it goes on. Bytewise
//! order of keys is the order of these pairs, layer by layer.

/// The rank of a key that goes on after the slice. As a slot's kind: the slot refers to the only key that does.
pub(crate) const LONGER: u8 = 9;
/// The kind of a slot that does not hold one key but the layer of all keys that go on after the slice. Its rank is
/// [`LONGER`].
pub(crate) const LAYER: u8 = 10;

/// The rank of a slot's kind.
#[inline(always)]
pub(crate) fn rank_of(kind: u8) -> u8 {
    kind.min(LONGER)
}

/// Returns the slice of `key` at `depth` and its rank. A key that ends before `depth` yields (0, 0), which sorts before
/// every slot.
#[inline(always)]
pub(crate) fn slice_at(key: &[u8], depth: usize) -> (u64, u8) {
    let rest = key.get(depth..).unwrap_or(&[]);
    if let Some(first) = rest.first_chunk::<8>() {
        return (u64::from_be_bytes(*first), if rest.len() > 8 { LONGER } else { 8 });
    }
    let mut padded = [0u8; 8];
    padded[..rest.len()].copy_from_slice(rest);
    (u64::from_be_bytes(padded), rest.len() as u8)
}

/// The length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let shorter = a.len().min(b.len());
    let (a, b) = (&a[..shorter], &b[..shorter]);
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(x, y)| x == y).count();
    let rest = a[words * 8..].iter().zip(&b[words * 8..]).take_while(|(x, y)| x == y).count();
    words * 8 + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_order_as_keys() {
        let keys: [&[u8]; 8] = [b"", b"\0", b"\0\0", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"b"];
        for pair in keys.windows(2) {
            assert!(slice_at(pair[0], 0) < slice_at(pair[1], 0), "{pair:?}");
        }
        assert_eq!(slice_at(b"abcdefghij", 8), (u64::from_be_bytes(*b"ij\0\0\0\0\0\0"), 2));
        assert_eq!(slice_at(b"abc", 8), (0, 0));
    }

    #[test]
    fn prefixes() {
        assert_eq!(common_prefix(b"", b"x"), 0);
        assert_eq!(common_prefix(b"abcdefghijk", b"abcdefghijk"), 11);
        assert_eq!(common_prefix(b"abcdefghijkl", b"abcdefghijxl"), 10);
        assert_eq!(common_prefix(b"abcdefgh", b"abcdefghijxl"), 8);
        assert_eq!(common_prefix(b"abcXefgh", b"abcdefghijxl"), 3);
    }
}
