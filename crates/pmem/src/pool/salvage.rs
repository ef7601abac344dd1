//! Opens what is left of a damaged pool: in a private copy or an image, from which nothing reaches the medium.
//!
//! Faults that a normal opening refuses are noted here and passed over:
//!
//! * a damaged magic before a superblock that verifies,
//! * a superblock of which one slot can be recovered,
//! * small words that do not verify,
//! * a file that is too short,
//! * segments that the superblock does not know.
//!
//! The readers of the catalogue and the descriptors search for these themselves, because they also know whether an
//! earlier record makes sense: see [`Pool::salvaged_catalogues`] and [`Pool::salvaged_descriptors`].

use super::Pool;
use super::access::Access;
use super::metadata::CATALOGUE;
use crate::error::{Error, Result};
use crate::layout::{Geometry, SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF};
use crate::record::Fields;
use crate::salvage::Salvaged;
use crate::superblock::{POOL_UUID, SUPERBLOCK, SuperblockInfo};
use crate::table::{Descriptor, descriptor_place};

/// The faults that were passed over. Only a salvage may pass over any.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) salvage: bool,
    pub(super) list: Vec<String>,
}

impl Notes {
    /// Notes an error and what is done instead. Returns the error where nothing may be passed over.
    pub(super) fn pass_over(&mut self, error: Error, instead: &str) -> Result<()> {
        if !self.salvage {
            return Err(error);
        }
        self.list.push(format!("{}; {instead}", error.finding()));
        Ok(())
    }
}

/// The superblock that can be recovered where the current one does not verify.
pub(super) fn superblock(header: &Access, page: &[u8]) -> Option<Salvaged<SuperblockInfo>> {
    // Only a slot itself contains the UUID that its checksum covers; it is the same in both.
    let uuids: [[u8; 16]; 2] = [SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF].map(|slot| page.bytes_at(slot as usize + POOL_UUID));
    let mut found: Vec<_> = uuids.iter().flat_map(|uuid| SUPERBLOCK.salvage(header, uuid)).collect();
    found.sort_by_key(|found| !found.is_current);
    // A salvaged pool is never written to.
    let decode = |record: Vec<u8>| SuperblockInfo::decode(header.place(), &record, true).ok();
    let mut found = found.into_iter().find_map(|found| found.decode(decode))?;
    // The clean flag of the record before the current one no longer holds.
    found.value.clean &= found.is_current;
    Some(found)
}

/// How many segments fit in a file of this length; at least as many as the superblock knows, which may be an older
/// copy.
pub(super) fn segments_within(length: u64, info: &SuperblockInfo, geometry: &Geometry) -> u64 {
    let fit = length.saturating_sub(geometry.data_offset) / geometry.segment_bytes;
    fit.clamp(info.segment_count, info.max_segments)
}

impl Pool {
    /// Whether the pool was opened as a salvage, so that no change of it reaches the medium.
    pub fn salvages(&self) -> bool {
        self.salvage.salvage
    }

    /// The faults that opening has passed over.
    pub fn salvage_notes(&self) -> &[String] {
        &self.salvage.list
    }

    /// Whether the settled version could not be read and was replaced by 0.
    pub fn has_lost_settled(&self) -> bool {
        self.lost_settled
    }

    /// The records that may be the catalogue if it cannot be read or seems never to have been written: likeliest first.
    /// Empty unless the pool is salvaged.
    pub fn salvaged_catalogues(&self) -> Vec<Salvaged<Vec<u8>>> {
        let content = |record: Vec<u8>| record.get(4..).map(<[u8]>::to_vec);
        let found = if self.salvages() { CATALOGUE.salvage(&self.access, &self.pool_uuid) } else { Vec::new() };
        found.into_iter().filter_map(|found| found.decode(content)).collect()
    }

    /// As [`Pool::salvaged_catalogues`], for the descriptor of segment `i`. Where none is certain to be current, the
    /// entries of the segment decide: they verify only with the right generation.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn salvaged_descriptors(&self, i: u32) -> Vec<Salvaged<Descriptor>> {
        assert!(i < self.segment_count(), "segment {i} is one of {}", self.segment_count());
        let place = descriptor_place(&self.geometry, i);
        let found = if self.salvages() { place.salvage(&self.access, &self.pool_uuid) } else { Vec::new() };
        // A salvaged pool is never written to.
        let decode = |record: Vec<u8>| Descriptor::decode(&record).ok();
        let mut found: Vec<_> = found.into_iter().filter_map(|found| found.decode(decode)).collect();
        // Of two records of one life of the segment the later one counts.
        found.sort_by_key(|found| (!found.is_current, [0, 3, 1, 2][found.value.state as usize]));
        found
    }
}
