//! What a read thread is asked for at once: references, and the copies of the entries behind them.
//!
//! Thread safety: a batch belongs to one thread at a time; the queue passes it on. Everything is volatile.

use hither_index::Ref;
use hither_log::Log;

/// Entries whose lines are requested ahead of the one that is copied.
const AHEAD: usize = 12;

/// References to entries of one node, and copies of these entries once they are read.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    refs: Vec<Ref>,
    asked_bytes: u64,
    versions: bool,
    /// One for each reference, once read; `None`: the entry could not be read.
    copies: Vec<Option<Span>>,
    bytes: Vec<u8>,
}

/// Where an entry's copy lies in `bytes`, and what was read with it.
#[derive(Clone, Copy, Debug)]
struct Span {
    key: usize,
    value: usize,
    end: usize,
    expiry_ms: u64,
    version: u64,
}

/// A copied entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub expiry_ms: u64,
    /// Version of the entry; 0 if versions were not asked for.
    pub version: u64,
}

impl Batch {
    /// Empties the batch; it keeps its buffers.
    pub fn start(mut self, versions: bool) -> Batch {
        self.refs.clear();
        self.copies.clear();
        self.bytes.clear();
        (self.asked_bytes, self.versions) = (0, versions);
        self
    }

    /// Adds a reference to an entry of about `size` bytes.
    pub fn push(&mut self, reference: Ref, size: u64) {
        self.refs.push(reference);
        self.asked_bytes += size;
    }

    /// Number of references.
    pub fn len(&self) -> usize {
        self.refs.len()
    }

    /// Bytes of the entries asked for, as far as references show them.
    pub fn asked_bytes(&self) -> u64 {
        self.asked_bytes
    }

    /// Bytes of the copied keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Copies all entries. Call while the pin lives under which the references were read.
    pub fn read(&mut self, log: &Log) {
        self.bytes.reserve(usize::try_from(self.asked_bytes).unwrap_or(0));
        self.refs.iter().take(AHEAD).for_each(|reference| prefetch(log, *reference));
        for i in 0..self.refs.len() {
            if let Some(ahead) = self.refs.get(i + AHEAD) {
                prefetch(log, *ahead);
            }
            let copy = self.copy(log, self.refs[i]);
            self.copies.push(copy);
        }
    }

    #[inline(always)]
    fn copy(&mut self, log: &Log, reference: Ref) -> Option<Span> {
        if log.has_unverified() && log.verify_entry(reference.0).is_err() {
            return None;
        }
        let (key, value, expiry_ms) = log.pair(reference.0);
        let version = if self.versions { log.version_of(reference.0, &log.entry(reference.0)) } else { 0 };
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        Some(Span { key: at, value: at + key.len(), end: self.bytes.len(), expiry_ms, version })
    }

    /// Returns the copy for reference number `i`; `None` if the entry could not be read.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<Copied<'_>> {
        let copy = (*self.copies.get(i)?)?;
        let (key, value) = (&self.bytes[copy.key..copy.value], &self.bytes[copy.value..copy.end]);
        Some(Copied { key, value, expiry_ms: copy.expiry_ms, version: copy.version })
    }
}

fn prefetch(log: &Log, reference: Ref) {
    log.prefetch_whole(reference.0);
}
