//! Changes of page 0 and the catalogue: clean flag, small words, opaque catalogue bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::MutexGuard;

use super::{Pool, storage};
use crate::error::{Error, Result};
use crate::layout::{
    CATALOGUE_INDEX, CATALOGUE_MAX_BYTES, CATALOGUE_OFF, CATALOGUE_SLOT_A, CATALOGUE_SLOT_B, CATALOGUE_SLOT_BYTES, CHECKPOINT_OFF,
    CLOCK_OFF, SETTLED_OFF,
};
use crate::record::{SMALL_WORD_MAX, pack_small};
use crate::superblock::{SUPERBLOCK, SuperblockInfo};
use crate::two_slot::{Extent, TwoSlot};

pub(super) const CATALOGUE: TwoSlot = TwoSlot {
    commit_off: CATALOGUE_OFF,
    slot_offs: [CATALOGUE_OFF + CATALOGUE_SLOT_A, CATALOGUE_OFF + CATALOGUE_SLOT_B],
    slot_bytes: CATALOGUE_SLOT_BYTES as usize,
    extent: Extent::Prefixed,
    index: CATALOGUE_INDEX,
};

impl Pool {
    /// Takes the metadata lock for a change, if changes are possible.
    pub(super) fn changing(&self) -> Result<MutexGuard<'_, SuperblockInfo>> {
        let guard = self.superblock.lock();
        if self.is_poisoned() { Err(self.access.sync_failed()) } else { Ok(guard) }
    }

    /// Makes a changed superblock current on the medium, then in memory.
    pub(super) fn commit_superblock(&self, current: &mut SuperblockInfo, new: SuperblockInfo) -> Result<()> {
        SUPERBLOCK.commit(&self.access, &new.pool_uuid, &new.encode())?;
        *current = new;
        Ok(())
    }

    /// Makes the current content of the pool's page 0, catalogue and segment table durable, and everything that this
    /// thread flushed or stored before (a fence, or on a file a sync).
    ///
    /// A process that died between a commit word's store and its flush leaves a word that the next process sees but a
    /// power loss may take back. So a process that opens a pool calls this before it builds on anything that it read, and
    /// before others use the pool. O(segments).
    pub fn harden_metadata(&self) -> Result<()> {
        let table_end = self.geometry.descriptor_offset(self.segment_count());
        self.rewrite(0, table_end);
        self.access.persist(0, table_end as usize)
    }

    /// Makes the next sync write a range, including pages that the page cache treats as clean. After a failed sync such
    /// pages may never have reached the device. [`Pool::forget_cached`] cannot have all of them read again, because the
    /// kernel keeps large pages that lie partly outside the range.
    ///
    /// Nobody may write there meanwhile. Does nothing where there are no syncs. O(pages).
    pub fn rewrite(&self, from: u64, to: u64) {
        if self.access.file().is_some() && self.needs_sync() && !self.is_private {
            self.access.touch_pages(from, to);
        }
    }

    /// Makes later reads of a range come from the device. After a failed sync the page cache may hold data that never
    /// reached the device and treat it as clean, and no later sync would write it.
    ///
    /// Call it before the range is read and before anybody writes (the opening has written the dirty pages), or for
    /// segments whose content means nothing any more. Does nothing where there are no syncs. O(bytes that are cached).
    ///
    /// # Panics
    /// If the range is not inside the pool.
    pub fn forget_cached(&self, from: u64, to: u64) {
        assert!(from <= to && to <= self.len_mapped(), "what is forgotten is inside the pool");
        if let Some(file) = self.access.file().filter(|_| self.needs_sync()) {
            self.access.mapping().let_go(from, to - from);
            storage::forget_cached(file, from, to);
        }
    }

    /// The settled version: batches up to it need not be counted.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// Raises the settled version, durably. It never goes back: of two concurrent calls the later version stays.
    pub fn set_settled(&self, version: u64) -> Result<()> {
        self.raise_small(SETTLED_OFF, "the settled version", &self.settled, version)
    }

    /// The persisted clock, milliseconds since 1970: time never goes back behind it.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms.load(Ordering::Acquire)
    }

    /// Raises the persisted clock, durably. It never goes back: of two concurrent calls the later time stays.
    pub fn set_clock_ms(&self, ms: u64) -> Result<()> {
        self.raise_small(CLOCK_OFF, "the clock", &self.clock_ms, ms)
    }

    /// The version of the oldest checkpoint of the indexes that may still be used: tombstones that older ones need
    /// may be gone. 0: any may be used.
    pub fn oldest_checkpoint(&self) -> u64 {
        self.oldest_checkpoint.load(Ordering::Acquire)
    }

    /// Raises that version, durably. It never goes back.
    pub fn set_oldest_checkpoint(&self, version: u64) -> Result<()> {
        self.raise_small(CHECKPOINT_OFF, "the version of the checkpoint", &self.oldest_checkpoint, version)
    }

    /// Raises a small word and its copy in memory, `known`, unless it is already at least as large.
    fn raise_small(&self, off: u64, what: &'static str, known: &AtomicU64, value: u64) -> Result<()> {
        let _serial = self.changing()?;
        if value <= known.load(Ordering::Acquire) {
            return Ok(());
        }
        self.set_small(off, what, value)?;
        known.store(value, Ordering::Release);
        Ok(())
    }

    fn set_small(&self, off: u64, what: &'static str, value: u64) -> Result<()> {
        if value > SMALL_WORD_MAX {
            let advice = "such values do not occur; this is a bug of the caller";
            return Err(Error::TooLarge { pool: self.access.place().clone(), what, value, limit: SMALL_WORD_MAX, advice });
        }
        self.access.store_u64(off, pack_small(value));
        self.access.persist(off, 8)
    }

    /// The catalogue: the bytes last passed to [`Pool::set_catalogue`]; empty if there never were any.
    pub fn catalogue(&self) -> Result<Vec<u8>> {
        match CATALOGUE.read(&self.access, &self.pool_uuid) {
            Ok(record) => Ok(record.map_or_else(Vec::new, |record| record[4..].to_vec())),
            Err(damage) => Err(Error::DamagedSuperblock {
                pool: self.access.place().clone(),
                what: "the catalogue",
                offset: damage.offset,
                detail: damage.detail,
            }),
        }
    }

    /// Replaces the catalogue, durably and atomically. It has at most
    /// [`CATALOGUE_MAX_BYTES`](crate::CATALOGUE_MAX_BYTES).
    pub fn set_catalogue(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > CATALOGUE_MAX_BYTES {
            return Err(Error::TooLarge {
                pool: self.access.place().clone(),
                what: "the catalogue in bytes",
                value: bytes.len() as u64,
                limit: CATALOGUE_MAX_BYTES as u64,
                advice: "drop keyspaces that are not needed",
            });
        }
        let _serial = self.changing()?;
        let mut record = (bytes.len() as u32).to_le_bytes().to_vec();
        record.extend_from_slice(bytes);
        CATALOGUE.commit(&self.access, &self.pool_uuid, &record)
    }

    /// Sets the clean flag, durably.
    pub fn mark_clean(&self) -> Result<()> {
        self.change_superblock(|info| info.clean = true)
    }

    /// Clears the clean flag and sets the count of openings, durably. Call it before the first write after an open.
    pub fn mark_open(&self, open_count: u64) -> Result<()> {
        self.change_superblock(|info| (info.clean, info.open_count) = (false, open_count))
    }

    /// Changes the superblock, durably, unless it already has the wanted content.
    fn change_superblock(&self, change: impl FnOnce(&mut SuperblockInfo)) -> Result<()> {
        let mut current = self.changing()?;
        let mut new = current.clone();
        change(&mut new);
        if new == *current {
            return Ok(());
        }
        self.commit_superblock(&mut current, new)
    }

    /// Whether the pool had been closed cleanly when it was opened (a new pool counts as clean).
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }
}
