//! The short way to a key's slot, for the commonest writes: of a key whose home pair alone decides where it is or goes.
//!
//! The same protocol as [`super::place`], which handles every other case and is the reference: lock the home pair, append, flush, install by plain
//! stores. What differs is that the pair, line and slot stay in registers instead of being packed into a token and unpacked again.
//!
//! Thread safety: as [`super::place`]. A [`Home`] holds the pair's lock; it must end in [`HashTable::install_home`] or
//! [`HashTable::release_home`], and nothing between may panic or wait for another writer.

use super::directory::home_line;
use super::line::{Held, first_slot, tag_of};
use super::protocol::{Protocol, Rule};
use super::{HashTable, Prepared};
use crate::Ref;

/// A locked home pair that holds a key or has room for it.
#[must_use = "the pair stays locked"]
pub struct Home<'a> {
    held: Held<'a>,
    line: usize,
    slot: usize,
    /// The entry in the only slot of the key's tag, unverified; none if the key is absent.
    pub candidate: Ref,
}

impl<P: Protocol> HashTable<P> {
    /// Locks the home pair of the key with this hash if it decides alone: one slot of the key's tag, or none and a free slot, and none of its tag
    /// farther on. `None`, with nothing locked, in every other case. `prepared` is this key's, under the caller's epoch pin.
    #[inline(always)]
    pub fn lock_home(&self, prepared: Prepared, hash: u64) -> Option<Home<'_>> {
        let segment = prepared.0;
        // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
        let held = unsafe { segment.pair(segment.pair_number(hash, 0)) }.lock(P::heeds(Rule::HeedFrozen))?;
        let (tag, home) = (tag_of(hash), home_line(hash));
        let slots = [held.slots(home, tag), held.slots(home ^ 1, tag)];
        let found = slots[0] | slots[1] >> 1;
        let decides = if found == 0 { held.has_room() } else { found & (found - 1) == 0 };
        if !decides || held.overflows() && self.tag_beyond_home(segment, hash) {
            held.unlock();
            return None;
        }
        if found == 0 {
            return Some(Home { held, line: home, slot: 0, candidate: Ref::NONE });
        }
        let line = if slots[1] == 0 { home } else { home ^ 1 };
        let slot = first_slot(found);
        let candidate = Ref(held.reference(line, slot));
        Some(Home { held, line, slot, candidate })
    }

    /// Ends the lock of [`HashTable::lock_home`] without a change.
    #[inline(always)]
    pub fn release_home(&self, home: Home<'_>) {
        home.held.unlock();
    }

    /// Installs `new` (none deletes) and ends the lock. `old` is the candidate, or none if the key is absent. False, with nothing changed, if
    /// the candidate was another key's and the pair has no room: insert then.
    #[inline(always)]
    pub fn install_home(&self, mut home: Home<'_>, hash: u64, old: Ref, new: Ref) -> bool {
        if old.is_some() {
            let swapped = home.held.swap(home.line, home.slot, old.0, new.0);
            home.held.unlock();
            debug_assert!(swapped, "nobody changes a slot of a locked pair");
            if new.is_none() {
                self.counter.add(1u64.wrapping_neg());
            }
            return true;
        }
        let put = new.is_none() || home.held.put(home_line(hash), tag_of(hash), new.0);
        home.held.unlock();
        if new.is_some() && put {
            self.counter.add(1);
        }
        put
    }
}
