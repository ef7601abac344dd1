//! Shortcuts (Pacman, section 3.1; `docs/adr/0020`): which entries carry one, and what it says.
//!
//! A write knows the leaf that names its entry, because it has just searched it. An entry that is large enough takes
//! that along, and a collector that meets the entry later need not search. Entries of keys that are written often carry
//! none (the log takes it off); nor do copies, tombstones, and entries of hash keyspaces.
//!
//! Thread safety: nothing changes after the opening. Crash: nothing here outlives the process; after a restart, the
//! words on media are those of another opening.

use crate::error::{Error, Result};
use crate::options::{CollectorKind, Options};
use hither_index::Index;
use hither_log::entry::shortcut;

/// Entries with fewer bytes than this never carry one: a pair of 8 and 8 bytes stays at 32.
const LEAST_BYTES: usize = 32;

/// How this opening writes and reads shortcuts.
pub(crate) struct Shortcuts {
    /// Entries carry one if their key and value have at least this many bytes.
    from_bytes: usize,
    /// The number of this opening, which its shortcuts carry.
    opening: u16,
}

impl Shortcuts {
    /// Draws the number of an opening, for a store that is being opened.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(options: &Options) -> Result<Shortcuts> {
        let random = options.random.next_u64().map_err(|error| Error::Io(format!("no random number for an opening: {error}")))?;
        // Only the batched collector follows them.
        let from_bytes = options.shortcut_from_bytes.filter(|_| options.collector == CollectorKind::Batched);
        Ok(Shortcuts { from_bytes: from_bytes.map_or(usize::MAX, |bytes| bytes.max(LEAST_BYTES)), opening: (random as u16).max(1) })
    }

    /// Returns the shortcut of an entry with this many bytes of key and value whose place in the index is `token`; 0
    /// for none.
    #[inline(always)]
    pub fn to<I: Index>(&self, index: &I, token: I::Token, bytes: usize) -> u64 {
        if !self.may_have(bytes) {
            return 0;
        }
        index.hint(token).map_or(0, |hint| shortcut::word(hint, self.opening))
    }

    /// Whether an entry with this many bytes of key and value is large enough for one.
    #[inline(always)]
    pub fn may_have(&self, bytes: usize) -> bool {
        bytes >= self.from_bytes
    }

    /// Returns the hint in an entry's shortcut, if that was written since the store was opened.
    pub fn hint(&self, word: u64) -> Option<u64> {
        shortcut::hint(word, self.opening)
    }
}
