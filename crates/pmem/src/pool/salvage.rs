//! Opening what is left of a damaged pool: a private copy or an image, of which nothing reaches the medium.
//!
//! What normal opening refuses is noted here and passed over: a magic that is damaged before a superblock that verifies, a superblock of which one slot can be had,
//! small words that do not verify, a file that is too short, segments that the superblock does not know. Catalogue and descriptors are looked for by whoever reads them,
//! who also knows whether an earlier record makes sense: see [`Pool::salvaged_catalogues`] and [`Pool::salvaged_descriptors`].

use super::Pool;
use super::access::Access;
use super::metadata::CATALOGUE;
use crate::error::{Error, Result};
use crate::layout::{Geometry, SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF};
use crate::record::Fields;
use crate::salvage::Salvaged;
use crate::superblock::{POOL_UUID, SUPERBLOCK, SuperblockInfo};
use crate::table::{Descriptor, descriptor_place};

/// What was passed over; nothing may be unless this is a salvage.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) salvage: bool,
    pub(super) list: Vec<String>,
}

impl Notes {
    /// Notes an error and what is done instead; gives it back where nothing may be passed over.
    pub(super) fn pass_over(&mut self, error: Error, instead: &str) -> Result<()> {
        if !self.salvage {
            return Err(error);
        }
        self.list.push(format!("{}; {instead}", error.finding()));
        Ok(())
    }
}

/// The superblock that can be had where the current one does not verify.
pub(super) fn superblock(header: &Access, page: &[u8]) -> Option<Salvaged<SuperblockInfo>> {
    // Only a slot itself tells the UUID that its checksum covers; it is the same in both.
    let uuids: [[u8; 16]; 2] = [SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF].map(|slot| page.bytes_at(slot as usize + POOL_UUID));
    let mut found: Vec<_> = uuids.iter().flat_map(|uuid| SUPERBLOCK.salvage(header, uuid)).collect();
    found.sort_by_key(|found| !found.is_current);
    // Nothing that is salvaged is written to.
    let decode = |record: Vec<u8>| SuperblockInfo::decode(header.place(), &record, true).ok();
    let mut found = found.into_iter().find_map(|found| found.decode(decode))?;
    // What the one before it says of the last close no longer holds.
    found.value.clean &= found.is_current;
    Some(found)
}

/// How many segments a file of this length holds, beyond those that the superblock knows: that may be an older one.
pub(super) fn segments_within(length: u64, info: &SuperblockInfo, geometry: &Geometry) -> u64 {
    let fit = length.saturating_sub(geometry.data_offset) / geometry.segment_bytes;
    fit.clamp(info.segment_count, info.max_segments)
}

impl Pool {
    /// Whether the pool is opened with what can be had of it, and nothing that is done to it reaches the medium.
    pub fn salvages(&self) -> bool {
        self.salvage.salvage
    }

    /// What opening has passed over.
    pub fn salvage_notes(&self) -> &[String] {
        &self.salvage.list
    }

    /// Whether the settled version could not be read, and is 0 for that.
    pub fn has_lost_settled(&self) -> bool {
        self.lost_settled
    }

    /// What the catalogue may have been that cannot be read, or seems never to have been written: likeliest first. Nothing unless the pool is salvaged.
    pub fn salvaged_catalogues(&self) -> Vec<Salvaged<Vec<u8>>> {
        let content = |record: Vec<u8>| record.get(4..).map(<[u8]>::to_vec);
        let found = if self.salvages() { CATALOGUE.salvage(&self.access, &self.pool_uuid) } else { Vec::new() };
        found.into_iter().filter_map(|found| found.decode(content)).collect()
    }

    /// As [`Pool::salvaged_catalogues`], for the descriptor of segment `i`. Of those that are not certain to be current the entries of the segment tell: they verify only with the right
    /// generation.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn salvaged_descriptors(&self, i: u32) -> Vec<Salvaged<Descriptor>> {
        assert!(i < self.segment_count(), "segment {i} is one of {}", self.segment_count());
        let place = descriptor_place(&self.geometry, i);
        let found = if self.salvages() { place.salvage(&self.access, &self.pool_uuid) } else { Vec::new() };
        // Nothing that is salvaged is written to.
        let decode = |record: Vec<u8>| Descriptor::decode(&record).ok();
        let mut found: Vec<_> = found.into_iter().filter_map(|found| found.decode(decode)).collect();
        // Of two records of one life of the segment the later one counts.
        found.sort_by_key(|found| (!found.is_current, [0, 3, 1, 2][found.value.state as usize]));
        found
    }
}
