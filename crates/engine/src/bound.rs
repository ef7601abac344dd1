//! Writes to a store whose live bytes have reached the bound that it was opened with (`utilization`; `hither_log`'s `bound` says how that is found out).
//!
//! What adds no live bytes goes on: deletes, overwrites with values that are no longer, and batches that take no more than they give back. Lengths of keys and values count, and an
//! allowance for each entry. What adds some is refused at once: nobody could make room by waiting, for what is live cannot be collected. Keys whose time has come count until they are swept, and
//! so does what a snapshot shows.
//!
//! The little that a program on top of the store needs for itself may be exempt ([`without_bound`]).

use crate::error::{Error, Result};
use crate::store::Core;
use crate::write::Attempt;
use hither_index::Ref;
use std::cell::Cell;

/// Bytes of an entry beside key and value, about.
const ENTRY_BYTES: u64 = 24;

thread_local! {
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`. None of the writes that this thread makes in it is refused for the bound: for the few bytes that a program keeps beside its users' data, without which it could not even
/// delete.
pub fn without_bound<R>(f: impl FnOnce() -> R) -> R {
    hither_sync::with_value(&EXEMPT, true, f)
}

impl Core {
    /// Whether a write of this thread has to look how much it adds.
    #[inline(always)]
    pub fn is_bounded(&self) -> bool {
        self.log.is_crowded() && is_bounded_here()
    }

    /// Refuses a write, in its section, for the live bytes that it adds; where it may have them, is decided outside ([`Core::room_to_live`]).
    #[cold]
    pub fn refuse_growth<T>(&self) -> Attempt<T> {
        let limit = self.log.most_live_bytes().unwrap_or(u64::MAX);
        Err(Box::new(Error::Utilization { live: limit, limit, percent: self.utilization.unwrap_or(100) }))
    }

    /// Bytes that an entry takes, about.
    pub fn live_size(key: &[u8], value: &[u8]) -> u64 {
        ENTRY_BYTES + (key.len() + value.len()) as u64
    }

    /// Bytes that the entry behind `candidate` takes, about; 0 if it is not this key's. Call under a pin.
    #[cold]
    pub fn live_size_of(&self, candidate: Ref, verified: bool, key: &[u8]) -> u64 {
        if candidate.is_none() || !(verified || self.log.key_matches(candidate.0, key)) {
            return 0;
        }
        self.log.readable_entry(candidate.0).map_or(0, |entry| Core::live_size(key, entry.value))
    }

    /// After a write was refused: looks closely whether there is room for more live bytes. Call outside writer sections.
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
