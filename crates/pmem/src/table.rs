//! Segment descriptors: one 128-byte place of the commit-word protocol per segment.

use crate::layout::{DESCRIPTOR_SLOT_A, DESCRIPTOR_SLOT_B, DESCRIPTOR_SLOT_BYTES, Geometry};
use crate::record::{Fields, put};
use crate::two_slot::{Extent, TwoSlot};

/// The state of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum SegmentState {
    /// Holds nothing.
    #[default]
    Free = 0,
    /// Open for appends.
    Active = 1,
    /// Full or closed.
    Sealed = 2,
    /// Sealed after a crash: torn bytes are allowed in it.
    Recovered = 3,
}

impl SegmentState {
    fn from_byte(byte: u8) -> Option<SegmentState> {
        [SegmentState::Free, SegmentState::Active, SegmentState::Sealed, SegmentState::Recovered].into_iter().find(|&s| s as u8 == byte)
    }
}

/// The durable facts about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Random and not zero: seeds the checksums of the segment's entries.
    pub generation: u64,
    /// Base of the entries' versions, which are relative to it.
    pub base_version: u64,
    /// Epoch of the owner that wrote the segment.
    pub owner_epoch: u64,
    /// Bytes in use when the segment was sealed. With all bits set here and in `entries`, a salvage has passed over damage
    /// in the segment, and how much it should hold is not known.
    pub sealed_bytes: u64,
    /// The keyspace of entries that name none.
    pub keyspace: u32,
    /// Number of segments in this run; 0 and 1 both mean a single segment. Descriptors of the segments inside a run say
    /// free.
    pub run_len: u32,
    /// Number of entries when the segment was sealed.
    pub entries: u32,
    /// The shard that appends to the segment.
    pub shard: u16,
    /// State of the segment.
    pub state: SegmentState,
    /// Flags that the log defines.
    pub flags: u8,
    /// Reserved, zero.
    pub reserved: u64,
}

const GENERATION: usize = 0;
const BASE_VERSION: usize = GENERATION + 8;
const OWNER_EPOCH: usize = BASE_VERSION + 8;
const SEALED_BYTES: usize = OWNER_EPOCH + 8;
const KEYSPACE: usize = SEALED_BYTES + 8;
const RUN_LEN: usize = KEYSPACE + 4;
const ENTRIES: usize = RUN_LEN + 4;
const SHARD: usize = ENTRIES + 4;
const STATE: usize = SHARD + 2;
const FLAGS: usize = STATE + 1;
const RESERVED: usize = FLAGS + 1;

/// Name, offset and length of each field of a slot, for the test that checks `docs/format.md`.
pub const FIELDS: [(&str, u64, u64); 11] = [
    ("generation", GENERATION as u64, 8),
    ("base_version", BASE_VERSION as u64, 8),
    ("owner_epoch", OWNER_EPOCH as u64, 8),
    ("sealed_bytes", SEALED_BYTES as u64, 8),
    ("keyspace", KEYSPACE as u64, 4),
    ("run_len", RUN_LEN as u64, 4),
    ("entries", ENTRIES as u64, 4),
    ("shard", SHARD as u64, 2),
    ("state", STATE as u64, 1),
    ("flags", FLAGS as u64, 1),
    ("reserved", RESERVED as u64, 8),
];

const _: () = {
    assert!(KEYSPACE == 32 && ENTRIES == 40 && SHARD == 44 && STATE == 46 && FLAGS == 47 && RESERVED == 48);
    assert!(RESERVED + 8 == DESCRIPTOR_SLOT_BYTES as usize);
};

impl Descriptor {
    pub(crate) fn encode(&self) -> [u8; DESCRIPTOR_SLOT_BYTES as usize] {
        let mut r = [0; DESCRIPTOR_SLOT_BYTES as usize];
        put(&mut r, GENERATION, self.generation.to_le_bytes());
        put(&mut r, BASE_VERSION, self.base_version.to_le_bytes());
        put(&mut r, OWNER_EPOCH, self.owner_epoch.to_le_bytes());
        put(&mut r, SEALED_BYTES, self.sealed_bytes.to_le_bytes());
        put(&mut r, KEYSPACE, self.keyspace.to_le_bytes());
        put(&mut r, RUN_LEN, self.run_len.to_le_bytes());
        put(&mut r, ENTRIES, self.entries.to_le_bytes());
        put(&mut r, SHARD, self.shard.to_le_bytes());
        put(&mut r, STATE, [self.state as u8]);
        put(&mut r, FLAGS, [self.flags]);
        put(&mut r, RESERVED, self.reserved.to_le_bytes());
        r
    }

    /// Decodes a descriptor from a verified slot; `Err` is a state byte that no version writes.
    pub(crate) fn decode(r: &[u8]) -> Result<Descriptor, u8> {
        let [state] = r.bytes_at(STATE);
        let [flags] = r.bytes_at(FLAGS);
        Ok(Descriptor {
            generation: r.u64_at(GENERATION),
            base_version: r.u64_at(BASE_VERSION),
            owner_epoch: r.u64_at(OWNER_EPOCH),
            sealed_bytes: r.u64_at(SEALED_BYTES),
            keyspace: r.u32_at(KEYSPACE),
            run_len: r.u32_at(RUN_LEN),
            entries: r.u32_at(ENTRIES),
            shard: r.u16_at(SHARD),
            state: SegmentState::from_byte(state).ok_or(state)?,
            flags,
            reserved: r.u64_at(RESERVED),
        })
    }
}

/// The place of the descriptor of segment `i`.
pub(crate) fn descriptor_place(geometry: &Geometry, i: u32) -> TwoSlot {
    let commit_off = geometry.descriptor_offset(i);
    TwoSlot {
        commit_off,
        slot_offs: [commit_off + DESCRIPTOR_SLOT_A, commit_off + DESCRIPTOR_SLOT_B],
        slot_bytes: DESCRIPTOR_SLOT_BYTES as usize,
        extent: Extent::Whole,
        index: u64::from(i),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_round_trip_at_the_offsets_of_the_format() {
        let d = Descriptor {
            generation: 0x0102_0304_0506_0708,
            base_version: 9,
            owner_epoch: 10,
            sealed_bytes: 11,
            keyspace: 12,
            run_len: 13,
            entries: 14,
            shard: 15,
            state: SegmentState::Recovered,
            flags: 16,
            reserved: 17,
        };
        let bytes = d.encode();
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!((bytes[32], bytes[36], bytes[40], bytes[44], bytes[46], bytes[47], bytes[48]), (12, 13, 14, 15, 3, 16, 17));
        assert_eq!(Descriptor::decode(&bytes), Ok(d));
        let mut bad = bytes;
        bad[46] = 4;
        assert_eq!(Descriptor::decode(&bad), Err(4));
    }
}
