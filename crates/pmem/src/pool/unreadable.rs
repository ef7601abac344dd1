//! Pages that cannot be read: a sector that has gone bad, poisoned memory, a file that was cut short meanwhile.
//!
//! An access to such a page raises SIGBUS, which ends the process (the `sigbus` module). So code that reads much data
//! that nobody has asked for may check first. From then on the page shows zeros, which no checksum takes for an entry,
//! and nobody can write there (a page of a private copy takes writes, which reach no file). Readers lose nothing else,
//! and a later opening checks again.
//!
//! Thread safety: any number of threads, beside readers. Pages of memory and of devices without a file system are not
//! checked.

use super::Pool;
use crate::error::{Error, Result};
use crate::layout::{DESCRIPTOR_BYTES, PAGE_BYTES, TABLE_OFF};
use crate::mapping::Mapping;
use crate::medium::{MediumInfo, MediumKind};

/// The part of a range that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable {
    /// How many bytes, in whole pages.
    pub bytes: u64,
    /// Offset of the first of them in the pool.
    pub first: u64,
}

/// The part that all messages share.
const WHY: &str = "cannot be read: the device reports an error, or the memory is poisoned";

impl Unreadable {
    /// Whether any byte cannot be read.
    pub fn is_any(&self) -> bool {
        self.bytes > 0
    }
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes {WHY}", self.bytes)
    }
}

impl Pool {
    /// Whether the kernel reports pages that cannot be read (Linux 5.14 and newer do). If not, all pages count as
    /// readable.
    pub fn can_find_unreadable() -> bool {
        Mapping::can_populate()
    }

    /// The unit of a check: a page of the system, or of the format if that is larger.
    pub fn page_bytes(&self) -> u64 {
        PAGE_BYTES.max(rustix::param::page_size() as u64)
    }

    /// Checks whether a mapped range can be read. Pages that cannot be read show zeros from now on and take no writes.
    /// The range is widened to whole pages. O(pages).
    ///
    /// # Panics
    /// If the range is not inside the pool.
    pub fn cover_unreadable(&self, off: u64, len: u64) -> Unreadable {
        assert!(off.checked_add(len).is_some_and(|end| end <= self.len_mapped()), "the range is inside the pool");
        let mut found = Unreadable::default();
        if self.may_be_unreadable() && len > 0 {
            let page = self.page_bytes();
            self.find_unreadable((off / page * page, (off + len).next_multiple_of(page)), &mut found);
        }
        found
    }

    /// Whether pages of this pool are checked. Those of files are; on tmpfs only if the page cache is the medium, or in a
    /// private copy, where nothing is at stake. With failpoints the pages of every pool are checked.
    pub fn may_be_unreadable(&self) -> bool {
        let MediumInfo { kind, filesystem, .. } = &self.medium;
        let is_memory = filesystem == "tmpfs" && *kind != MediumKind::File && !self.is_private;
        let is_file = self.access.file().is_some() && *kind != MediumKind::DevDax;
        is_file && !is_memory || self.access.failpoints().is_some()
    }

    /// Checks page by page only if the whole range cannot be read: a device may take seconds for each attempt to read a
    /// bad page.
    fn find_unreadable(&self, range: (u64, u64), found: &mut Unreadable) {
        if self.is_readable(range.0, range.1) {
            return;
        }
        let page = self.page_bytes();
        for from in (range.0..range.1).step_by(page as usize).filter(|from| !self.is_readable(*from, from + page)) {
            if found.bytes == 0 {
                found.first = from;
            }
            found.bytes += page;
            // Locked until the page shows zeros: another thread that finds it covered reads it. If covering fails too,
            // an access ends the process, as it would have without the check.
            let mut covered = self.covered.lock();
            if !covered.contains(&from) {
                let _ = self.access.mapping().cover(from, page, self.is_private);
                covered.insert(from);
            }
        }
    }

    fn is_readable(&self, from: u64, to: u64) -> bool {
        let is_planted = || self.access.failpoints().is_some_and(|points| points.is_unreadable_if_checked(from, to));
        // A page that shows zeros since an earlier check can be read, but its content is still missing.
        let is_covered = || self.covered.lock().range(from..to).next().is_some();
        let is_there = || self.access.file().is_none() || self.access.mapping().populate(from, to - from);
        // Again at the end: another thread may have covered it meanwhile. At the beginning because a device may take
        // seconds to read a bad page.
        !is_covered() && !is_planted() && is_there() && !is_covered()
    }

    /// As [`Pool::cover_unreadable`], for catalogue and segment table, before they are trusted. Such pages are passed
    /// over only where nothing is written to them.
    pub(super) fn refuse_unreadable_metadata(mut self) -> Result<Pool> {
        let end = self.geometry.descriptor_offset(self.geometry.max_segments as u32);
        if !self.cover_unreadable(PAGE_BYTES, end - PAGE_BYTES).is_any() {
            return Ok(self);
        }
        let page = self.page_bytes();
        for from in (PAGE_BYTES..end).step_by(page as usize) {
            let unreadable = self.cover_unreadable(from, page.min(end - from));
            if unreadable.is_any() {
                let error = self.unreadable_metadata(from);
                if !self.is_private {
                    return Err(error);
                }
                self.salvage.pass_over(error, "zeros take its place")?;
            }
        }
        Ok(self)
    }

    fn unreadable_metadata(&self, offset: u64) -> Error {
        let (pool, detail) = (self.access.place().clone(), format!("{} bytes {WHY}", self.page_bytes()));
        match offset.checked_sub(TABLE_OFF) {
            None => Error::DamagedSuperblock { pool, what: "the catalogue", offset, detail },
            Some(off) => Error::DamagedDescriptor { pool, segment: (off / DESCRIPTOR_BYTES) as u32, offset, detail },
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::{CATALOGUE_OFF, PAGE_BYTES, TABLE_OFF};
    use crate::pool::tests::skipped;
    use crate::{CreateOptions, Error, Failpoints, MediumChoice, OpenOptions, Pool};
    use std::path::Path;
    use std::sync::Barrier;

    /// A pool in a file that the page cache holds, with a word in each page of its four segments.
    fn fill(path: &Path) -> Pool {
        let sizes = CreateOptions { segment_bytes: 16 << 10, max_bytes: 64 << 10, ..CreateOptions::new(64 << 10) };
        let pool = Pool::create(path, &CreateOptions { medium: MediumChoice::File, ..sizes }).unwrap();
        pool.finish_creation().unwrap();
        (pool.segment_offset(0)..pool.len_mapped()).step_by(PAGE_BYTES as usize).for_each(|page| pool.store_u64(page, page));
        pool.sync().unwrap();
        pool
    }

    fn open(path: &Path, unreadable: u64, medium: MediumChoice, salvage: bool) -> Result<Pool, Error> {
        let points = Failpoints::new();
        points.make_unreadable(unreadable, unreadable + 1);
        Pool::open(path, &OpenOptions { medium, salvage, failpoints: Some(points), ..OpenOptions::new() })
    }

    /// Regression: a page counted as covered before it showed zeros, so another thread that had checked it read what the
    /// first could not.
    #[test]
    fn who_finds_a_page_covered_sees_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        drop(fill(&path));
        for _ in 0..100 {
            let points = Failpoints::new();
            let options = OpenOptions { medium: MediumChoice::File, failpoints: Some(points.clone()), ..OpenOptions::new() };
            let pool = Pool::open(&path, &options).unwrap();
            points.make_unreadable(pool.segment_offset(0), pool.len_mapped());
            let (page, together) = (pool.page_bytes(), Barrier::new(2));
            let look = || {
                let mut not_zero = 0;
                for from in (pool.segment_offset(0)..pool.len_mapped()).step_by(page as usize) {
                    together.wait();
                    let found = pool.cover_unreadable(from, page);
                    not_zero += u32::from(found.bytes != page || pool.load_u64(from) != 0);
                }
                not_zero
            };
            let not_zero = std::thread::scope(|scope| {
                let other = scope.spawn(look);
                look() + other.join().unwrap()
            });
            assert_eq!(not_zero, 0);
        }
    }

    #[test]
    fn what_cannot_be_read_shows_zeros_and_all_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        drop(fill(&path));
        let page = rustix::param::page_size() as u64;
        for at in (0..64 << 10).step_by(page as usize) {
            let bad = TABLE_OFF.next_multiple_of(16 << 10) + at;
            let pool = open(&path, bad + 70, MediumChoice::File, false).unwrap();
            assert_eq!(pool.segment_offset(0) + at, bad);
            let all = || pool.cover_unreadable(pool.segment_offset(0), 64 << 10);
            assert_eq!((all().bytes, all().first), (page, bad));
            assert!(!pool.cover_unreadable(pool.segment_offset(0), at).is_any());
            let is_right = |page: u64| pool.load_u64(page) == if page == bad { 0 } else { page };
            assert!((pool.segment_offset(0)..pool.len_mapped()).step_by(page as usize).all(is_right), "{bad}");
        }
    }

    /// The kernel answers as it does for a bad sector. An access would end the process.
    #[test]
    fn pages_that_the_system_cannot_give_are_found() {
        if !Pool::can_find_unreadable() {
            return skipped("without_populate");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        for medium in [MediumChoice::File, MediumChoice::PrivateCopy, MediumChoice::Volatile] {
            _ = std::fs::remove_file(&path);
            drop(fill(&path));
            let pool = Pool::open(&path, &OpenOptions { medium, ..OpenOptions::new() }).unwrap();
            if medium == MediumChoice::Volatile && pool.medium().filesystem == "tmpfs" {
                continue;
            }
            let page = rustix::param::page_size() as u64;
            let cut = pool.segment_offset(2) + page;
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
            assert!(!pool.cover_unreadable(pool.segment_offset(0), 32 << 10).is_any());
            // Also a second time, when the pages can be read as zeros.
            for _ in 0..2 {
                let rest = pool.cover_unreadable(pool.segment_offset(0), 64 << 10);
                assert_eq!((rest.first, rest.bytes), (cut, pool.len_mapped() - cut), "{medium:?}");
            }
            assert_eq!([pool.load_u64(cut - page), pool.load_u64(cut), pool.load_u64(pool.len_mapped() - 8)], [cut - page, 0, 0]);
        }
    }

    #[test]
    fn unreadable_metadata_is_named_and_passed_over_in_copies_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let pool = fill(&path);
        pool.set_catalogue(b"keyspaces").unwrap();
        drop(pool);
        for (bad, what) in [(CATALOGUE_OFF, "the catalogue"), (TABLE_OFF - 1, "the catalogue"), (TABLE_OFF, "descriptor")] {
            for (medium, salvage) in [(MediumChoice::File, false), (MediumChoice::File, true), (MediumChoice::PrivateCopy, false)] {
                let error = open(&path, bad, medium, salvage).map(drop).unwrap_err();
                assert!(matches!(error, Error::DamagedSuperblock { .. } | Error::DamagedDescriptor { .. }));
                let (text, at) = (error.to_string(), format!("{}", bad / PAGE_BYTES * PAGE_BYTES));
                assert!([what, "cannot be read", &at].iter().all(|part| text.contains(part)), "{text}");
            }
            let copy = open(&path, bad, MediumChoice::PrivateCopy, true).unwrap();
            assert_eq!(copy.salvage_notes().len(), 1, "{:?}", copy.salvage_notes());
            assert_eq!(copy.load_u64(copy.segment_offset(3)), copy.segment_offset(3));
        }
    }
}
