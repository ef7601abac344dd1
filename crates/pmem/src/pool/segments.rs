//! Segments: descriptors, zeroing, growth.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::Pool;
use super::storage::{self, io};
use super::unreadable::Unreadable;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::layout::PAGE_BYTES;
use crate::options::Runtime;
use crate::superblock::SuperblockInfo;
use crate::table::{Descriptor, descriptor_place};
use crate::two_slot::TwoSlot;

/// Zeros that one sync writes. Other syncs wait for as much meanwhile.
const SYNCED_ZEROS: u64 = 1 << 20;
/// The most syncs for the zeros of a run: the writer that waits for the run will sync a value of that size at once
/// anyway.
const SYNCS_PER_RUN: u64 = 8;

/// How many zeros of a run one sync writes.
fn synced_zeros(run_len: u32, run_bytes: u64) -> u64 {
    if run_len > 1 { (run_bytes / SYNCS_PER_RUN).next_multiple_of(SYNCED_ZEROS).max(SYNCED_ZEROS) } else { SYNCED_ZEROS }
}

impl Pool {
    /// The descriptor of segment `i`; free and all zero if none was ever written.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn descriptor(&self, i: u32) -> Result<Descriptor> {
        assert!(i < self.segment_count(), "segment {i} is one of {}", self.segment_count());
        let place = descriptor_place(&self.geometry, i);
        let damaged = |offset, detail| Error::DamagedDescriptor { pool: self.access.place().clone(), segment: i, offset, detail };
        match place.read(&self.access, &self.pool_uuid) {
            Ok(None) => Ok(Descriptor::default()),
            Ok(Some(record)) => Descriptor::decode(&record)
                .map_err(|state| damaged(place.commit_off, format!("has state {state}, which no version of this format writes"))),
            Err(damage) => Err(damaged(damage.offset, damage.detail)),
        }
    }

    /// Whether segment `i` was ever in use: its descriptor has been written since the pool was created.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn was_used(&self, i: u32) -> bool {
        assert!(i < self.segment_count(), "segment {i} is one of {}", self.segment_count());
        self.access.load_u64(descriptor_place(&self.geometry, i).commit_off) != 0
    }

    /// Whether a range holds nothing but zeros. Nobody may write there meanwhile. O(bytes), except for ranges that the
    /// file system knows to have never been written.
    ///
    /// # Errors
    /// What cannot be read. Of ranges longer than a page, what cannot be read shows zeros from now on, as after
    /// [`Pool::cover_unreadable`].
    ///
    /// # Panics
    /// If the range is not inside the pool.
    pub fn is_zero(&self, off: u64, len: u64) -> std::result::Result<bool, Unreadable> {
        let end = off.checked_add(len).filter(|end| *end <= self.len_mapped()).expect("the range is inside the pool");
        let file = self.access.file().filter(|_| self.medium.kind != crate::MediumKind::DevDax);
        match file {
            // A read through the file allocates no page for a range that was never written.
            Some(file) if len <= PAGE_BYTES => {
                let bytes = &mut [0; PAGE_BYTES as usize][..len as usize];
                let is_planted = self.access.failpoints().is_some_and(|points| points.is_unreadable(off, end));
                // A file that was cut short has nothing behind its end.
                let is_read = file.read_exact_at(bytes, off).map_or_else(|error| error.kind() == ErrorKind::UnexpectedEof, |()| true);
                return if is_read && !is_planted {
                    Ok(bytes.iter().all(|byte| *byte == 0))
                } else {
                    Err(Unreadable { bytes: len, first: off })
                };
            }
            Some(file) if storage::is_unwritten(file, off, len) => return Ok(true),
            _ => {}
        }
        let unreadable = self.cover_unreadable(off, len);
        if unreadable.is_any() {
            return Err(unreadable);
        }
        // SAFETY: the range is mapped, which was checked, and nobody writes there by the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(self.base().add(off as usize), (end - off) as usize) };
        Ok(bytes.iter().all(|byte| *byte == 0))
    }

    /// Replaces the descriptor of segment `i`, durably and atomically.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn commit_descriptor(&self, i: u32, descriptor: &Descriptor) -> Result<()> {
        assert!(i < self.segment_count(), "segment {i} is one of {}", self.segment_count());
        let _serial = self.changing()?;
        descriptor_place(&self.geometry, i).commit(&self.access, &self.pool_uuid, &descriptor.encode())
    }

    /// Replaces the descriptors of several segments by the same one, durably, at the cost of one. After a crash each is
    /// the old or the new one.
    ///
    /// # Panics
    /// If there are no such segments.
    pub fn commit_descriptors(&self, segments: Range<u32>, descriptor: &Descriptor) -> Result<()> {
        assert!(segments.end <= self.segment_count(), "segments {segments:?} are among {}", self.segment_count());
        if segments.is_empty() {
            return Ok(());
        }
        let _serial = self.changing()?;
        let places: Vec<TwoSlot> = segments.map(|i| descriptor_place(&self.geometry, i)).collect();
        TwoSlot::commit_at_each(&places, &self.access, &self.pool_uuid, &descriptor.encode())
    }

    /// Zeros `run_len` segments from `i`, durably: required before the descriptor of a reused segment becomes active.
    ///
    /// On a file the zeros are written through the file and synced, so that the blocks are written and journalled ahead
    /// of the log (`docs/adr/0004`): there, call it for fresh segments too.
    ///
    /// # Panics
    /// If there are no such segments.
    pub fn zero_segment(&self, i: u32, run_len: u32) -> Result<()> {
        let end = u64::from(i) + u64::from(run_len);
        assert!(end <= u64::from(self.segment_count()), "segments {i}..{end} are among {}", self.segment_count());
        if self.is_poisoned() {
            return Err(self.access.sync_failed());
        }
        let (off, len) = (self.segment_offset(i), u64::from(run_len) * self.segment_bytes());
        // Where blocks are copied when they are written, zeros need room.
        let failed = storage::no_room_or_io(self.access.place(), "zeroing a segment", off, len);
        failpoint::check(self.access.failpoints(), "zero").map_err(&failed)?;
        match self.access.file() {
            Some(file) if self.needs_sync() => {
                // A reader of the file, perhaps a backup, may have left it in the cache in large pages: see
                // `write_zeros`.
                self.forget_cached(off, off + len);
                let step = synced_zeros(run_len, len);
                for at in (off..off + len).step_by(step as usize) {
                    let part = step.min(off + len - at);
                    storage::require_length(self.access.place(), file, at + part)?;
                    storage::write_zeros(file, at, part).map_err(&failed)?;
                    self.access.sync()?;
                }
            }
            _ => {
                // SAFETY: the segments are mapped, and a segment that is being prepared belongs to the caller alone.
                unsafe { self.access.zero_streaming(off, len) };
                // After streaming stores a fence is enough.
                self.access.sync()?;
            }
        }
        if self.is_poisoned() { Err(self.access.sync_failed()) } else { Ok(()) }
    }

    /// Adds up to `segments` segments (fewer at the limit) and returns how many there are now. The space is allocated
    /// and durable before the superblock includes it; a full disk is an error and changes nothing.
    ///
    /// Takes as long as the system needs to allocate the space. Meanwhile everything else goes on, except other growth
    /// and, on files, syncs.
    pub fn grow(&self, segments: u64) -> Result<u64> {
        let _one_at_a_time = self.growing.lock();
        let (count, limit) = (self.changing()?.segment_count, self.geometry.max_segments);
        let new_count = count.saturating_add(segments).min(limit);
        if new_count == count {
            if segments == 0 {
                return Ok(count);
            }
            let advice = "the pool was created with this limit; make a larger one";
            let value = count.saturating_add(segments);
            return Err(Error::TooLarge { pool: self.access.place().clone(), what: "the number of segments", value, limit, advice });
        }
        self.extend_storage(self.geometry.pool_bytes(count), self.geometry.pool_bytes(new_count))?;
        let mut current = self.changing()?;
        let new = SuperblockInfo { segment_count: new_count, ..current.clone() };
        self.commit_superblock(&mut current, new)?;
        self.segments.store(new_count, Ordering::Release);
        Ok(new_count)
    }

    fn extend_storage(&self, old: u64, new: u64) -> Result<()> {
        let place = self.access.place();
        failpoint::check(self.access.failpoints(), "grow").map_err(io(place, "growing", old))?;
        if self.is_private {
            return Err(Error::DiskFull { pool: place.clone(), bytes: new - old });
        }
        let file = self.access.file().or(self.access.copy().map(|copy| copy.file()));
        // The file's length is made durable by a separate sync.
        let alone = self.access.alone_at_sync();
        match file {
            Some(file) if self.medium.kind == crate::MediumKind::DevDax => {
                if storage::length(place, file, true)? < new {
                    return Err(Error::DiskFull { pool: place.clone(), bytes: new - old });
                }
            }
            Some(file) => storage::preallocate(place, file, old, new - old, &self.runtime()).map_err(|e| match e {
                // That sync covered the pool's data as well: its failure leaves the same doubt as that of any other
                // sync.
                Error::SyncFailed { detail, .. } => self.access.poison(&detail),
                e => e,
            })?,
            None => failpoint::check(self.access.failpoints(), "fallocate")
                .map_err(|_| Error::DiskFull { pool: place.clone(), bytes: new - old })?,
        }
        drop(alone);
        if self.access.mapped() >= new {
            // An earlier growth mapped this much and then failed to commit.
            return Ok(());
        }
        if let Err(error) = storage::extend(&self.access, &self.medium, new, &self.runtime()) {
            if let Some(file) = file.filter(|_| self.medium.kind != crate::MediumKind::DevDax) {
                // Best effort: what lies behind the pool's end is harmless, but takes room.
                let _ = file.set_len(old);
            }
            return Err(error);
        }
        if self.medium.kind == crate::MediumKind::DevDax {
            // SAFETY: the new range is mapped and belongs to no segment yet.
            unsafe { self.access.zero_streaming(old, new - old) };
            self.access.sync()?;
        }
        Ok(())
    }

    /// The options of the opening, as far as growth depends on them.
    fn runtime(&self) -> Runtime {
        let failpoints = self.access.failpoints().cloned();
        Runtime { hugepages: self.hugepages, bind_os_node: self.bind_os_node, failpoints, ..crate::OpenOptions::default().runtime() }
    }
}
