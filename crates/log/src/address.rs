//! The reference word (NStore's `v_addr`; `docs/format.md`).
//!
//! | bits | meaning |
//! |---|---|
//! | 63..48 | size tag: entry size in 8-byte units; 0 if it does not fit (read the entry) |
//! | 47..44 | node |
//! | 43..0 | offset in the node's pool, in 8-byte units: up to 128 TiB |
//!
//! `h_addr`, the link to a key's previous entry, is the same word without the size tag.

const OFFSET_BITS: u32 = 44;
const NODE_BITS: u32 = 4;
const TAG_SHIFT: u32 = OFFSET_BITS + NODE_BITS;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
/// The bits of a reference that `h_addr` keeps.
pub const LINK_MASK: u64 = (1 << TAG_SHIFT) - 1;
/// Number of nodes that a reference can name.
pub const MAX_NODES: usize = 1 << NODE_BITS;

/// A decoded reference word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// NUMA node whose pool holds the entry.
    pub node: u32,
    /// Byte offset in that pool.
    pub offset: u64,
}

/// The node of an entry of `size` bytes, as its size tag says; [`MAX_NODES`] or more if the reference has another tag.
#[inline(always)]
pub(crate) fn node_if_of_size(word: u64, size: u64) -> usize {
    (word >> OFFSET_BITS).wrapping_sub((size >> 3) << NODE_BITS) as usize
}

/// Packs a reference word.
#[inline(always)]
pub fn pack(node: u32, offset: u64, size: u64) -> u64 {
    debug_assert!(offset.is_multiple_of(8) && offset >> 3 <= OFFSET_MASK && (node as usize) < MAX_NODES);
    let units = size >> 3;
    let tag = if units <= 0xffff { units } else { 0 };
    tag << TAG_SHIFT | u64::from(node) << OFFSET_BITS | offset >> 3
}

/// Unpacks a reference word or a link.
#[inline(always)]
pub fn unpack(word: u64) -> Address {
    Address { node: (word >> OFFSET_BITS) as u32 & (MAX_NODES as u32 - 1), offset: (word & OFFSET_MASK) << 3 }
}

/// A link that carries its generation byte in the place of the size tag.
#[inline(always)]
pub(crate) fn with_generation(link: u64, generation_tag: u8) -> u64 {
    link & LINK_MASK | u64::from(generation_tag) << TAG_SHIFT
}

/// The generation byte of a word made by [`with_generation`].
#[inline(always)]
pub(crate) fn generation_tag(word: u64) -> u8 {
    (word >> TAG_SHIFT) as u8
}

/// The entry's size in bytes if the tag holds it.
#[inline(always)]
pub fn tagged_size(word: u64) -> Option<u64> {
    let units = word >> TAG_SHIFT;
    (units != 0).then_some(units << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_at_the_edges() {
        for node in [0, 1, 15] {
            for offset in [4096, 8, (1 << 47) - 8] {
                for size in [32, 40, 0xffff * 8] {
                    let word = pack(node, offset, size);
                    assert_eq!(unpack(word), Address { node, offset });
                    assert_eq!(unpack(word & LINK_MASK), Address { node, offset });
                    assert_eq!(tagged_size(word), Some(size));
                }
                assert_eq!(tagged_size(pack(node, offset, 0x10000 * 8)), None);
            }
        }
    }
}
