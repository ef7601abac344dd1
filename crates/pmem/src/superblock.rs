//! The superblock record: what a pool is, to which store it belongs, how large it is.
//!
//! Encoding is explicit, field by field, so that neither padding nor the host's layout reaches the media.

use crate::error::{Error, Place, Result};
use crate::layout::{
    CATALOGUE_OFF, Geometry, MAX_MEMBERS, SUPER_COMMIT_OFF, SUPER_INDEX, SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF, SUPER_SLOT_BYTES, TABLE_OFF,
};
use crate::record::{Fields, put};
use crate::two_slot::{Extent, TwoSlot};

/// The format that this version writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Feature bits that this version knows; any other bit restricts what it may do with the pool.
const KNOWN_RO_COMPAT: u64 = 0;
const KNOWN_INCOMPAT: u64 = 0;

/// No store is opened so often. A program that goes on counting from there need not expect an overflow.
const MOST_OPENINGS: u64 = 1 << 62;

/// The superblock's place.
pub(crate) const SUPERBLOCK: TwoSlot = TwoSlot {
    commit_off: SUPER_COMMIT_OFF,
    slot_offs: [SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF],
    slot_bytes: SUPER_SLOT_BYTES as usize,
    extent: Extent::Whole,
    index: SUPER_INDEX,
};

const VERSION: usize = 0;
const RESERVED_0: usize = VERSION + 4;
const COMPAT: usize = RESERVED_0 + 4;
const RO_COMPAT: usize = COMPAT + 8;
const INCOMPAT: usize = RO_COMPAT + 8;
const STORE_UUID: usize = INCOMPAT + 8;
pub(crate) const POOL_UUID: usize = STORE_UUID + 16;
const NODE: usize = POOL_UUID + 16;
const MEMBER_COUNT: usize = NODE + 4;
const MEMBERS: usize = MEMBER_COUNT + 4;
const SEGMENT_BYTES: usize = MEMBERS + MAX_MEMBERS * 16;
const TABLE_OFFSET: usize = SEGMENT_BYTES + 8;
const CATALOGUE_OFFSET: usize = TABLE_OFFSET + 8;
const DATA_OFFSET: usize = CATALOGUE_OFFSET + 8;
const SEGMENT_COUNT: usize = DATA_OFFSET + 8;
const MAX_SEGMENTS: usize = SEGMENT_COUNT + 8;
const CREATED_MS: usize = MAX_SEGMENTS + 8;
const CLEAN: usize = CREATED_MS + 8;
const RESERVED_1: usize = CLEAN + 4;
pub(crate) const OPEN_COUNT: usize = RESERVED_1 + 4;
/// Bytes of the record that have a meaning; the rest of the slot is zero.
pub(crate) const USED_BYTES: usize = OPEN_COUNT + 8;

/// Name, offset and length of each field, for the test that checks `docs/format.md`.
pub const FIELDS: [(&str, u64, u64); 20] = [
    ("version", VERSION as u64, 4),
    ("reserved_0", RESERVED_0 as u64, 4),
    ("compat", COMPAT as u64, 8),
    ("ro_compat", RO_COMPAT as u64, 8),
    ("incompat", INCOMPAT as u64, 8),
    ("store_uuid", STORE_UUID as u64, 16),
    ("pool_uuid", POOL_UUID as u64, 16),
    ("node", NODE as u64, 4),
    ("member_count", MEMBER_COUNT as u64, 4),
    ("members", MEMBERS as u64, MAX_MEMBERS as u64 * 16),
    ("segment_bytes", SEGMENT_BYTES as u64, 8),
    ("table_offset", TABLE_OFFSET as u64, 8),
    ("catalogue_offset", CATALOGUE_OFFSET as u64, 8),
    ("data_offset", DATA_OFFSET as u64, 8),
    ("segment_count", SEGMENT_COUNT as u64, 8),
    ("max_segments", MAX_SEGMENTS as u64, 8),
    ("created_ms", CREATED_MS as u64, 8),
    ("clean", CLEAN as u64, 4),
    ("reserved_1", RESERVED_1 as u64, 4),
    ("open_count", OPEN_COUNT as u64, 8),
];

const _: () = {
    assert!(POOL_UUID == 48);
    assert!(NODE == 64 && MEMBERS == 72 && SEGMENT_BYTES == 328);
    assert!(CREATED_MS == 376 && CLEAN == 384 && OPEN_COUNT == 392);
    assert!(SEGMENT_BYTES.is_multiple_of(8) && OPEN_COUNT.is_multiple_of(8));
    assert!(USED_BYTES == 400 && USED_BYTES <= SUPER_SLOT_BYTES as usize);
};

/// The content of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperblockInfo {
    /// Format version.
    pub version: u32,
    /// Features that older versions may ignore.
    pub compat: u64,
    /// Features that older versions may ignore when they only read.
    pub ro_compat: u64,
    /// Features that older versions must not ignore.
    pub incompat: u64,
    /// UUID of the store.
    pub store_uuid: [u8; 16],
    /// UUID of this pool.
    pub pool_uuid: [u8; 16],
    /// The node of this pool.
    pub node: u32,
    /// All pools of the store, in node order.
    pub members: Vec<[u8; 16]>,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Offset of the segment table.
    pub table_offset: u64,
    /// Offset of the catalogue area.
    pub catalogue_offset: u64,
    /// Offset of segment 0.
    pub data_offset: u64,
    /// Number of segments that exist.
    pub segment_count: u64,
    /// Number of segments to which the pool may grow.
    pub max_segments: u64,
    /// Time of creation, milliseconds since 1970.
    pub created_ms: u64,
    /// Whether the pool was closed cleanly.
    pub clean: bool,
    /// Count of openings for writing: each completed one raises it by at least two (`docs/format.md`).
    pub open_count: u64,
}

impl SuperblockInfo {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut r = vec![0; SUPER_SLOT_BYTES as usize];
        put(&mut r, VERSION, self.version.to_le_bytes());
        put(&mut r, COMPAT, self.compat.to_le_bytes());
        put(&mut r, RO_COMPAT, self.ro_compat.to_le_bytes());
        put(&mut r, INCOMPAT, self.incompat.to_le_bytes());
        put(&mut r, STORE_UUID, self.store_uuid);
        put(&mut r, POOL_UUID, self.pool_uuid);
        put(&mut r, NODE, self.node.to_le_bytes());
        put(&mut r, MEMBER_COUNT, (self.members.len() as u32).to_le_bytes());
        for (i, member) in self.members.iter().take(MAX_MEMBERS).enumerate() {
            put(&mut r, MEMBERS + i * 16, *member);
        }
        put(&mut r, SEGMENT_BYTES, self.segment_bytes.to_le_bytes());
        put(&mut r, TABLE_OFFSET, self.table_offset.to_le_bytes());
        put(&mut r, CATALOGUE_OFFSET, self.catalogue_offset.to_le_bytes());
        put(&mut r, DATA_OFFSET, self.data_offset.to_le_bytes());
        put(&mut r, SEGMENT_COUNT, self.segment_count.to_le_bytes());
        put(&mut r, MAX_SEGMENTS, self.max_segments.to_le_bytes());
        put(&mut r, CREATED_MS, self.created_ms.to_le_bytes());
        put(&mut r, CLEAN, u32::from(self.clean).to_le_bytes());
        put(&mut r, OPEN_COUNT, self.open_count.to_le_bytes());
        r
    }

    /// Decodes a record whose checksum holds. Version and features come first: the other fields may mean something else
    /// in another format.
    pub(crate) fn decode(place: &Place, r: &[u8], reads_only: bool) -> Result<SuperblockInfo> {
        let version = r.u32_at(VERSION);
        if version > FORMAT_VERSION {
            return Err(Error::NewerFormat { pool: place.clone(), found: version, supported: FORMAT_VERSION });
        }
        let (compat, ro_compat, incompat) = (r.u64_at(COMPAT), r.u64_at(RO_COMPAT), r.u64_at(INCOMPAT));
        check_features(place, ro_compat, incompat, reads_only)?;
        let member_count = r.u32_at(MEMBER_COUNT) as usize;
        let info = SuperblockInfo {
            version,
            compat,
            ro_compat,
            incompat,
            store_uuid: r.bytes_at(STORE_UUID),
            pool_uuid: r.bytes_at(POOL_UUID),
            node: r.u32_at(NODE),
            members: (0..member_count.min(MAX_MEMBERS)).map(|i| r.bytes_at(MEMBERS + i * 16)).collect(),
            segment_bytes: r.u64_at(SEGMENT_BYTES),
            table_offset: r.u64_at(TABLE_OFFSET),
            catalogue_offset: r.u64_at(CATALOGUE_OFFSET),
            data_offset: r.u64_at(DATA_OFFSET),
            segment_count: r.u64_at(SEGMENT_COUNT),
            max_segments: r.u64_at(MAX_SEGMENTS),
            created_ms: r.u64_at(CREATED_MS),
            clean: r.u32_at(CLEAN) != 0,
            open_count: r.u64_at(OPEN_COUNT),
        };
        info.check(place, member_count)?;
        Ok(info)
    }

    /// Refuses fields that no version writes this way, although the checksum holds.
    fn check(&self, place: &Place, member_count: usize) -> Result<()> {
        let geometry = Geometry::new(place, self.segment_bytes, self.max_segments).ok();
        let wrong = if self.version == 0 {
            Some("format version 0")
        } else if !(1..=MAX_MEMBERS).contains(&member_count) {
            Some("an impossible number of members")
        } else if self.members.get(self.node as usize) != Some(&self.pool_uuid) {
            Some("a member list without this pool at its node")
        } else if geometry.is_none_or(|g| g.data_offset != self.data_offset) {
            Some("an impossible segment size, limit or data offset")
        } else if self.table_offset != TABLE_OFF || self.catalogue_offset != CATALOGUE_OFF {
            Some("areas at other places than format 1 has")
        } else if self.segment_count == 0 || self.segment_count > self.max_segments {
            Some("an impossible number of segments")
        } else if self.open_count > MOST_OPENINGS {
            Some("an impossible number of openings")
        } else {
            None
        };
        match wrong {
            None => Ok(()),
            Some(wrong) => Err(Error::DamagedSuperblock {
                pool: place.clone(),
                what: "the superblock",
                offset: SUPER_SLOT_A_OFF,
                detail: format!("has {wrong}"),
            }),
        }
    }
}

fn check_features(place: &Place, ro_compat: u64, incompat: u64, reads_only: bool) -> Result<()> {
    let unknown = incompat & !KNOWN_INCOMPAT;
    if unknown != 0 {
        return Err(Error::IncompatibleFeatures { pool: place.clone(), bits: unknown, read_only_possible: false });
    }
    let unknown = ro_compat & !KNOWN_RO_COMPAT;
    if unknown != 0 && !reads_only {
        return Err(Error::IncompatibleFeatures { pool: place.clone(), bits: unknown, read_only_possible: true });
    }
    Ok(())
}
