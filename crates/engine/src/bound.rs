//! Writes to a store whose live bytes have reached the bound that it was opened with (`utilization`; `hither_log`'s
//! `bound` explains how that is found out).
//!
//! Writes that add no live bytes proceed: deletes, overwrites with values at most as long as the old ones, and batches
//! that take no more than they give back. Lengths of keys and values count, and an allowance for each entry. Writes
//! that add live bytes are refused: waiting would make no room, because live entries cannot be collected. Expired keys
//! count until they are swept, which such a write does first unless it is inside a read, and so do entries that a
//! snapshot shows.
//!
//! The few bytes that a program on top of the store needs for itself may be exempt ([`without_bound`]).
//!
//! Thread safety: any number of writers; the exemption is per thread. Crash: the bound is not on media.

use crate::error::{Error, Result};
use crate::store::Core;
use crate::write::Attempt;
use hither_index::Ref;
use std::cell::Cell;

/// Approximate bytes of an entry besides key and value.
const ENTRY_BYTES: u64 = 24;

thread_local! {
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, and refuses none of this thread's writes in it for the bound. For the few bytes that a program keeps
/// besides its users' data, without which it could not even delete.
pub fn without_bound<R>(f: impl FnOnce() -> R) -> R {
    hither_sync::with_value(&EXEMPT, true, f)
}

impl Core {
    /// Whether a write of this thread must check how many live bytes it adds.
    #[inline(always)]
    pub fn is_bounded(&self) -> bool {
        self.log.is_crowded() && is_bounded_here()
    }

    /// Refuses a write, inside its section, because of the live bytes that it adds. Whether there is room for them
    /// after all is decided outside the section ([`Core::room_to_live`]).
    #[cold]
    pub fn refuse_growth<T>(&self) -> Attempt<T> {
        let limit = self.log.most_live_bytes().unwrap_or(u64::MAX);
        Err(Box::new(Error::Utilization { live: limit, limit, percent: self.utilization.unwrap_or(100) }))
    }

    /// Approximate bytes that an entry takes.
    pub fn live_size(key: &[u8], value: &[u8]) -> u64 {
        ENTRY_BYTES + (key.len() + value.len()) as u64
    }

    /// Approximate bytes that the entry behind `candidate` takes; 0 if it does not have this key. Call under a pin.
    #[cold]
    pub fn live_size_of(&self, candidate: Ref, verified: bool, key: &[u8]) -> u64 {
        if candidate.is_none() || !(verified || self.log.key_matches(candidate.0, key)) {
            return 0;
        }
        self.log.readable_entry(candidate.0).map_or(0, |entry| Core::live_size(key, entry.value))
    }

    /// Called after a write was refused: measures whether there is room for more live bytes. Call outside writer
    /// sections.
    ///
    /// # Errors
    /// [`Error::Utilization`] if there is none.
    #[cold]
    pub fn room_to_live(&self) -> Result<()> {
        match (self.log.measure_live(), self.log.most_live_bytes(), self.utilization) {
            ((live, false), Some(limit), Some(percent)) => Err(Error::Utilization { live, limit, percent }),
            _ => Ok(()),
        }
    }
}

#[cold]
fn is_bounded_here() -> bool {
    !EXEMPT.get()
}
