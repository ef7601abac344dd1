//! Classifies a file by its page 0, before any of its content is trusted.

use crate::error::{Error, Place, Result};
use crate::layout::{
    CHECKPOINT_OFF, CLOCK_OFF, MAGIC, MAGIC_STEM, PAGE_BYTES, SETTLED_OFF, SUPER_COMMIT_OFF, SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF,
};
use crate::record::Fields;
use crate::superblock::{FORMAT_VERSION, OPEN_COUNT, USED_BYTES};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// How much is checked of each page of a device in which only segments can begin.
const LINE_BYTES: u64 = 64;

/// The state of a file according to its first page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page0 {
    /// Empty, or all zero: never used.
    Blank,
    /// Creation began and has not written the magic.
    HalfCreated,
    /// A pool of this format.
    Born,
    /// A pool of a later format.
    Newer(u32),
    /// Something else.
    Foreign([u8; 8]),
}

/// Classifies the first bytes of a file (up to a page; fewer if the file is shorter).
pub(super) fn classify(page: &[u8]) -> Page0 {
    if page.iter().all(|&b| b == 0) {
        return Page0::Blank;
    }
    let mut first = [0; 8];
    let known = page.len().min(8);
    first[..known].copy_from_slice(&page[..known]);
    if first == MAGIC {
        return Page0::Born;
    }
    let digit = first[7];
    if first[..7] == MAGIC_STEM && digit.is_ascii_digit() && u32::from(digit - b'0') > FORMAT_VERSION {
        return Page0::Newer(u32::from(digit - b'0'));
    }
    if first == [0; 8] && only_creation_wrote(page) { Page0::HalfCreated } else { Page0::Foreign(first) }
}

/// Whether all nonzero bytes of page 0 are where creation may write before the magic: the commit word, the used parts
/// of the slots, the small words. A file that happens to begin with eight zeros must not be taken for a pool and
/// overwritten.
fn only_creation_wrote(page: &[u8]) -> bool {
    if page.len() < PAGE_BYTES as usize {
        return false;
    }
    let allowed = |i: usize| {
        let used = USED_BYTES as u64;
        [(SUPER_COMMIT_OFF, 8), (SUPER_SLOT_A_OFF, used), (SUPER_SLOT_B_OFF, used), (SETTLED_OFF, 8), (CLOCK_OFF, 8), (CHECKPOINT_OFF, 8)]
            .iter()
            .any(|&(off, len)| (off..off + len).contains(&(i as u64)))
    };
    let quiet = page.iter().enumerate().all(|(i, &b)| b == 0 || allowed(i));
    let version = page[SUPER_SLOT_A_OFF as usize..SUPER_SLOT_B_OFF as usize].u32_at(0);
    quiet && version <= FORMAT_VERSION
}

/// Whether a record of the superblock counts an opening: before the store is born, none does.
pub(super) fn was_opened(page: &[u8]) -> bool {
    let counts = [SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF].map(|slot| slot as usize + OPEN_COUNT);
    page.len() == PAGE_BYTES as usize && counts.iter().any(|&at| page.u64_at(at) != 0)
}

/// Requires a file beyond its first page to be as creation leaves it: zero. A pool whose first bytes were lost must not
/// be taken for one that was never finished, and created anew over its data.
pub(super) fn require_nothing_else(place: &Place, file: &File) -> Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut at = PAGE_BYTES;
    loop {
        let read = file.read_at(&mut piece, at).map_err(|source| Error::Io {
            pool: place.clone(),
            action: "reading the pool",
            offset: at,
            source,
        })?;
        if read == 0 {
            return Ok(());
        }
        if let Some(found) = piece[..read].iter().position(|&byte| byte != 0) {
            return Err(lost_magic(place, "file", at + found as u64));
        }
        at += read as u64;
    }
}

/// As [`require_nothing_else`], for a device, which is mapped up to `end` and read by `read(offset, bytes)`. Checks all
/// of `[4096, dense)`, where catalogue and table are, and the first line of every page behind: each segment of an
/// earlier pool, whatever its size, began at one of these pages. Reading the rest as well would take as long as writing
/// it.
pub(super) fn require_nothing_mapped(place: &Place, dense: u64, end: u64, read: impl Fn(u64, &mut [u8])) -> Result<()> {
    let mut piece = [0; PAGE_BYTES as usize];
    for at in (PAGE_BYTES..end).step_by(PAGE_BYTES as usize) {
        let wanted = if at < dense { PAGE_BYTES } else { LINE_BYTES };
        let piece = &mut piece[..wanted.min(end - at) as usize];
        read(at, piece);
        if let Some(found) = piece.iter().position(|&byte| byte != 0) {
            return Err(lost_magic(place, "device", at + found as u64));
        }
    }
    Ok(())
}

fn lost_magic(place: &Place, what: &str, data: u64) -> Error {
    let detail = format!("is missing, yet the {what} holds data (at offset {data})");
    Error::DamagedSuperblock { pool: place.clone(), what: "the magic", offset: 0, detail }
}

/// Requires a pool of this format.
pub(super) fn require_born(place: &Place, page: &[u8]) -> Result<()> {
    let pool = place.clone();
    match classify(page) {
        Page0::Born if page.len() < PAGE_BYTES as usize => Err(Error::ShortFile { pool, found: page.len() as u64, needed: PAGE_BYTES }),
        Page0::Born => Ok(()),
        Page0::Blank | Page0::HalfCreated => Err(Error::HalfCreated { pool }),
        Page0::Newer(found) => Err(Error::NewerFormat { pool, found, supported: FORMAT_VERSION }),
        Page0::Foreign(found) => Err(Error::Foreign { pool, found }),
    }
}

/// Requires a first page that may be a pool's, even a damaged one's: where the magic does not decide, the superblock
/// does. The magic of a newer format is trusted unless flipping a single bit turns it into this format's.
pub(super) fn require_candidate(place: &Place, page: &[u8], file: &File, salvage: bool) -> Result<()> {
    match require_born(place, page) {
        Err(error @ Error::NewerFormat { .. }) if bits_off(page) > 1 => Err(error),
        Err(Error::Foreign { .. } | Error::NewerFormat { .. }) if page.len() == PAGE_BYTES as usize => Ok(()),
        Err(error @ Error::HalfCreated { .. }) => match require_nothing_else(place, file) {
            Err(Error::DamagedSuperblock { .. }) if salvage && page.len() == PAGE_BYTES as usize => Ok(()),
            nothing => nothing.and(Err(error)),
        },
        born => born,
    }
}

/// How many bits of a page's magic differ from this format's.
fn bits_off(page: &[u8]) -> u32 {
    page.iter().zip(MAGIC).map(|(found, wanted)| (found ^ wanted).count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_first_page() {
        let page = |first: &[u8]| {
            let mut page = vec![0; 4096];
            page[..first.len()].copy_from_slice(first);
            page
        };
        assert_eq!(classify(&[]), Page0::Blank);
        assert_eq!(classify(&page(b"")), Page0::Blank);
        assert_eq!(classify(&page(b"hitherP1")), Page0::Born);
        assert_eq!(classify(&page(b"hitherP2")), Page0::Newer(2));
        assert_eq!(classify(&page(b"hitherPx")), Page0::Foreign(*b"hitherPx"));
        assert_eq!(classify(&page(b"hitherP0")), Page0::Foreign(*b"hitherP0"));
        assert_eq!(classify(b"#!"), Page0::Foreign([b'#', b'!', 0, 0, 0, 0, 0, 0]));
        assert_eq!(classify(&page(&[0, 0, 0, 0, 0, 0, 0, 0, 9])), Page0::HalfCreated);
        let mut foreign = page(b"");
        foreign[3000] = 1;
        assert!(matches!(classify(&foreign), Page0::Foreign(_)));
        assert!(matches!(require_born(&Place(None), b"hitherP1"), Err(Error::ShortFile { .. })));
    }

    /// Data on a device is found wherever a pool has its catalogue and table, and wherever a segment can begin.
    #[test]
    fn data_behind_a_blank_page_of_a_device_is_found() {
        let (dense, end) = (5 * PAGE_BYTES, 9 * PAGE_BYTES);
        let found = |byte: u64| {
            let mut device = vec![0u8; 10 * PAGE_BYTES as usize];
            device[byte as usize] = 1;
            let read = |at: u64, piece: &mut [u8]| piece.copy_from_slice(&device[at as usize..][..piece.len()]);
            match require_nothing_mapped(&Place(None), dense, end, read) {
                Ok(()) => None,
                Err(Error::DamagedSuperblock { what: "the magic", detail, .. }) => Some(detail),
                Err(other) => panic!("{other}"),
            }
        };
        for byte in [4096, 4097, dense - 1, dense, dense + 63, end - PAGE_BYTES] {
            assert_eq!(found(byte), Some(format!("is missing, yet the device holds data (at offset {byte})")));
        }
        assert_eq!([0, 4095, dense + 64, end].map(found), [None, None, None, None]);
    }
}
