//! The constants of the pool format under the names of `docs/format.md`, for the test that compares the two. Not an
//! interface.

use crate::layout as l;
pub use crate::superblock::FIELDS as SUPERBLOCK;
pub use crate::table::FIELDS as DESCRIPTOR_SLOT;

/// Name, offset, bytes.
pub type Field = (&'static str, u64, u64);

/// The areas in front of the segments.
pub const POOL: [Field; 3] =
    [("page_0", 0, l::PAGE_BYTES), ("catalogue", l::CATALOGUE_OFF, l::TABLE_OFF - l::CATALOGUE_OFF), ("segment_table", l::TABLE_OFF, 0)];

/// Page 0.
pub const PAGE0: [Field; 7] = [
    ("magic", l::MAGIC_OFF, l::MAGIC.len() as u64),
    ("superblock_commit", l::SUPER_COMMIT_OFF, 8),
    ("superblock_a", l::SUPER_SLOT_A_OFF, l::SUPER_SLOT_BYTES),
    ("superblock_b", l::SUPER_SLOT_B_OFF, l::SUPER_SLOT_BYTES),
    ("settled", l::SETTLED_OFF, 8),
    ("clock", l::CLOCK_OFF, 8),
    ("checkpoint", l::CHECKPOINT_OFF, 8),
];

/// The catalogue area, from its beginning.
pub const CATALOGUE: [Field; 3] =
    [("commit", 0, 8), ("slot_a", l::CATALOGUE_SLOT_A, l::CATALOGUE_SLOT_BYTES), ("slot_b", l::CATALOGUE_SLOT_B, l::CATALOGUE_SLOT_BYTES)];

/// A descriptor.
pub const DESCRIPTOR: [Field; 4] = [
    ("commit", 0, 8),
    ("slot_a", l::DESCRIPTOR_SLOT_A, l::DESCRIPTOR_SLOT_BYTES),
    ("slot_b", l::DESCRIPTOR_SLOT_B, l::DESCRIPTOR_SLOT_BYTES),
    ("padding", l::DESCRIPTOR_SLOT_B + l::DESCRIPTOR_SLOT_BYTES, l::DESCRIPTOR_BYTES - l::DESCRIPTOR_SLOT_B - l::DESCRIPTOR_SLOT_BYTES),
];

/// Sizes and limits.
pub const SIZES: [(&str, u64); 6] = [
    ("page", l::PAGE_BYTES),
    ("descriptor", l::DESCRIPTOR_BYTES),
    ("smallest_segment", l::MIN_SEGMENT_BYTES),
    ("largest_segment", l::MAX_SEGMENT_BYTES),
    ("largest_pool", l::MAX_POOL_BYTES),
    ("most_members", l::MAX_MEMBERS as u64),
];
