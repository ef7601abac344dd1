//! Shadow mode at full speed: the store works on private memory, and only data that it persists reaches the file.
//!
//! ADR: a fence copies the lines that its thread has flushed (or streamed) since its last fence. File: a sync copies
//! every page stored to. So killing the process loses exactly what a power loss may lose.
//!
//! Not modelled: lines that a cache evicts early, and lines of which only a part survives; the recording shadow
//! explores those.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::LINE_BYTES;
use crate::lock::LockedFile;
use crate::tracer::StoreKind;

const PAGE: u64 = 4096;

thread_local! {
    /// Ranges that this thread has flushed and not yet fenced: (the copy's identity, offset, length).
    static FLUSHED: RefCell<Vec<(u64, u64, usize)>> = const { RefCell::new(Vec::new()) };
}

static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// The file behind private memory.
pub(crate) struct CopyBack {
    identity: u64,
    file: LockedFile,
    /// One bit for each page stored to since it was last copied; empty unless a file is emulated.
    dirty: Box<[AtomicU64]>,
    turn: Mutex<()>,
}

impl CopyBack {
    /// Copies to `file`; `max_len` sizes the page map of an emulated file.
    pub(crate) fn new(file: LockedFile, emulates_file: bool, max_len: u64) -> CopyBack {
        let words = if emulates_file { max_len.div_ceil(PAGE * 64) } else { 0 };
        let identity = NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed);
        CopyBack { identity, file, dirty: (0..words).map(|_| AtomicU64::new(0)).collect(), turn: Mutex::new(()) }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn stored(&self, off: u64, len: usize, kind: StoreKind) {
        if self.dirty.is_empty() {
            if kind == StoreKind::Streaming {
                self.flushed(off, len);
            }
            return;
        }
        for page in off / PAGE..=(off + len as u64 - 1) / PAGE {
            // Release: the sync that clears the bit sees the store.
            self.dirty[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Release);
        }
    }

    pub(crate) fn flushed(&self, off: u64, len: usize) {
        let line = LINE_BYTES as u64;
        let (start, end) = (off & !(line - 1), (off + len as u64).next_multiple_of(line));
        FLUSHED.with_borrow_mut(|ranges| ranges.push((self.identity, start, (end - start) as usize)));
    }

    pub(crate) fn fenced(&self, base: *const u8) -> io::Result<()> {
        FLUSHED.with_borrow_mut(|ranges| {
            let mine = ranges.extract_if(.., |range| range.0 == self.identity);
            mine.map(|(_, off, len)| self.copy(base, off, len)).fold(Ok(()), io::Result::and)
        })
    }

    /// Copies all dirty pages. Syncs take turns: a page whose bit another sync has cleared must be in the file when
    /// this one returns.
    pub(crate) fn sync(&self, base: *const u8) -> io::Result<()> {
        let _turn = self.turn.lock();
        for (i, word) in self.dirty.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let page = i as u64 * 64 + u64::from(bits.trailing_zeros());
                self.copy(base, page * PAGE, PAGE as usize)?;
                bits &= bits - 1;
            }
        }
        Ok(())
    }

    fn copy(&self, base: *const u8, off: u64, len: usize) -> io::Result<()> {
        // SAFETY: every range that was stored to or flushed is mapped (lengths are multiples of pages). Other threads
        // may store meanwhile; the kernel reads the memory as a device would, and either value of a word is legal.
        let bytes = unsafe { std::slice::from_raw_parts(base.add(off as usize), len) };
        self.file.write_all_at(bytes, off)
    }
}
