//! The layout of a pool. Every offset is derived from the one before it; SPEC: pool file format v1.
//!
//! ```text
//! 0        magic | commit word | .. | superblock slot A | slot B | .. | settled | clock | checkpoint | ..
//! 4096     catalogue header page (commit word)
//! 8192     catalogue slot A (64 KiB) | slot B (64 KiB)
//! 139264   segment table, 128 bytes per descriptor, sized for max_segments
//! data     segments, aligned to min(segment size, 2 MiB)
//! ```

use crate::error::{Error, Place, Result};

/// The most pools (nodes) of one store.
pub const MAX_MEMBERS: usize = 16;

/// The magic of format 1; the last byte is the format's digit. Written last at creation.
pub(crate) const MAGIC: [u8; 8] = *b"hitherP1";
/// The part of the magic that all formats share.
pub(crate) const MAGIC_STEM: [u8; 7] = *b"hitherP";

pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const HUGE_BYTES: u64 = 2 << 20;

pub(crate) const MAGIC_OFF: u64 = 0;
pub(crate) const SUPER_COMMIT_OFF: u64 = MAGIC_OFF + 8;
pub(crate) const SUPER_SLOT_BYTES: u64 = 1024;
pub(crate) const SUPER_SLOT_A_OFF: u64 = 64;
pub(crate) const SUPER_SLOT_B_OFF: u64 = SUPER_SLOT_A_OFF + SUPER_SLOT_BYTES;
/// The first line behind slot B, after a gap of one line.
pub(crate) const SETTLED_OFF: u64 = SUPER_SLOT_B_OFF + SUPER_SLOT_BYTES + 64;
pub(crate) const CLOCK_OFF: u64 = SETTLED_OFF + 8;
pub(crate) const CHECKPOINT_OFF: u64 = CLOCK_OFF + 8;

pub(crate) const CATALOGUE_OFF: u64 = PAGE_BYTES;
pub(crate) const CATALOGUE_SLOT_BYTES: u64 = 64 << 10;
pub(crate) const CATALOGUE_SLOT_A: u64 = PAGE_BYTES;
pub(crate) const CATALOGUE_SLOT_B: u64 = CATALOGUE_SLOT_A + CATALOGUE_SLOT_BYTES;
/// The most bytes a catalogue can hold: a slot less the length prefix.
pub const CATALOGUE_MAX_BYTES: usize = CATALOGUE_SLOT_BYTES as usize - 4;

pub(crate) const TABLE_OFF: u64 = CATALOGUE_OFF + CATALOGUE_SLOT_B + CATALOGUE_SLOT_BYTES;
pub(crate) const DESCRIPTOR_BYTES: u64 = 128;
pub(crate) const DESCRIPTOR_SLOT_BYTES: u64 = 56;
pub(crate) const DESCRIPTOR_SLOT_A: u64 = 8;
pub(crate) const DESCRIPTOR_SLOT_B: u64 = DESCRIPTOR_SLOT_A + DESCRIPTOR_SLOT_BYTES;

const _: () = {
    assert!(SUPER_COMMIT_OFF == 8);
    assert!(SUPER_SLOT_B_OFF == 1088);
    assert!(SETTLED_OFF == 2176);
    assert!(CLOCK_OFF == 2184);
    assert!(CHECKPOINT_OFF == 2192);
    assert!(CHECKPOINT_OFF + 8 <= PAGE_BYTES);
    assert!(TABLE_OFF == 139_264 && TABLE_OFF.is_multiple_of(PAGE_BYTES));
    assert!(DESCRIPTOR_SLOT_B == 64);
    assert!(DESCRIPTOR_SLOT_B + DESCRIPTOR_SLOT_BYTES + 8 == DESCRIPTOR_BYTES);
};

/// The `index` that the checksum in the superblock's commit word covers; descriptors use their own numbers.
pub(crate) const SUPER_INDEX: u64 = u64::MAX;
/// The `index` for the catalogue's commit word.
pub(crate) const CATALOGUE_INDEX: u64 = u64::MAX - 1;

pub(crate) const MIN_SEGMENT_BYTES: u64 = 4 << 10;
pub(crate) const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// A reference holds 44 bits of 8-byte units.
pub(crate) const MAX_POOL_BYTES: u64 = 1 << 47;
/// Segment numbers are `u32`.
pub(crate) const MAX_SEGMENTS: u64 = u32::MAX as u64;

/// The segment size for a pool of `capacity_bytes`: a power of two in 64 KiB..=8 MiB, between 1/2048 and 1/1024 of the
/// pool.
///
/// The space that collectors and open segments take is counted in segments, and the space that they leave decides how
/// empty victims are (`docs/adr/0014`). For the same reason a pool below 1 MiB has smaller segments, down to 4 KiB, but
/// at least eight of them: with one or two nothing could ever be moved.
pub fn default_segment_bytes(capacity_bytes: u64) -> u64 {
    let share = |parts: u64| (capacity_bytes / parts).checked_next_power_of_two().unwrap_or(8 << 20);
    share(2048).max(share(16).min(64 << 10)).clamp(MIN_SEGMENT_BYTES, 8 << 20)
}

/// Sizes and offsets of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) segment_bytes: u64,
    pub(crate) max_segments: u64,
    pub(crate) data_offset: u64,
}

impl Geometry {
    /// The geometry for a segment size and growth limit, if both are allowed.
    pub(crate) fn new(place: &Place, segment_bytes: u64, max_segments: u64) -> Result<Geometry> {
        if !segment_bytes.is_power_of_two() || !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment_bytes) {
            let advice = "it must be a power of two from 4 KiB to 1 GiB";
            return Err(Error::Invalid { what: "segment size", value: segment_bytes, advice });
        }
        let limit = ((MAX_POOL_BYTES - TABLE_OFF - HUGE_BYTES) / (segment_bytes + DESCRIPTOR_BYTES)).min(MAX_SEGMENTS);
        if max_segments == 0 || max_segments > limit {
            let advice = "lower the maximum capacity or use larger segments";
            return Err(Error::TooLarge { pool: place.clone(), what: "number of segments", value: max_segments, limit, advice });
        }
        let table_end = TABLE_OFF + max_segments * DESCRIPTOR_BYTES;
        let data_offset = table_end.next_multiple_of(segment_bytes.min(HUGE_BYTES));
        Ok(Geometry { segment_bytes, max_segments, data_offset })
    }

    /// Bytes of a pool with this many segments.
    pub(crate) fn pool_bytes(&self, segments: u64) -> u64 {
        self.data_offset + segments * self.segment_bytes
    }

    /// Where segment `i` begins.
    #[inline(always)]
    pub(crate) fn segment_offset(&self, i: u32) -> u64 {
        self.data_offset + u64::from(i) * self.segment_bytes
    }

    /// Where the descriptor of segment `i` is.
    #[inline(always)]
    pub(crate) fn descriptor_offset(&self, i: u32) -> u64 {
        TABLE_OFF + u64::from(i) * DESCRIPTOR_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn segment_size_follows_capacity() {
        assert_eq!(default_segment_bytes(0), 4 << 10);
        assert_eq!(default_segment_bytes(64 << 10), 4 << 10);
        assert_eq!(default_segment_bytes(300 << 10), 32 << 10);
        assert_eq!(default_segment_bytes(1 << 20), 64 << 10);
        assert_eq!(default_segment_bytes(64 << 20), 64 << 10);
        assert_eq!(default_segment_bytes(178 << 20), 128 << 10);
        assert_eq!(default_segment_bytes(4 << 30), 2 << 20);
        assert_eq!(default_segment_bytes(u64::MAX), 8 << 20);
    }

    proptest! {
        #[test]
        fn areas_do_not_overlap(shift in 12u32..31, max in 1u64..100_000) {
            let place = Place(None);
            let segment_bytes = 1u64 << shift;
            if let Ok(g) = Geometry::new(&place, segment_bytes, max) {
                prop_assert!(g.descriptor_offset(max as u32 - 1) + DESCRIPTOR_BYTES <= g.data_offset);
                prop_assert_eq!(g.data_offset % segment_bytes.min(HUGE_BYTES), 0);
                prop_assert!(g.pool_bytes(max) <= MAX_POOL_BYTES);
            } else {
                prop_assert!(max * segment_bytes > MAX_POOL_BYTES / 2);
            }
        }
    }

    #[test]
    fn bad_geometry_is_refused() {
        let place = Place(None);
        assert!(matches!(Geometry::new(&place, 5000, 1), Err(Error::Invalid { .. })));
        assert!(matches!(Geometry::new(&place, 2048, 1), Err(Error::Invalid { .. })));
        assert!(matches!(Geometry::new(&place, 4096, 0), Err(Error::TooLarge { .. })));
        assert!(matches!(Geometry::new(&place, 8 << 20, 1 << 30), Err(Error::TooLarge { .. })));
    }
}
