//! Finding a reference without its key, and replacing it where it was found. For collectors, which move entries of
//! which they know only hash and reference.
//!
//! A [`Spot`] is valid under the epoch pin under which it was found, like the segment in [`super::home`]. If the
//! segment was replaced since, its pairs are frozen and the lock fails; its block cannot have been reused. Every case
//! that fails here is left to [`Index::install`](crate::Index::install), which is the reference.

use super::HashTable;
use super::directory::Segment;
use super::home::NearHome;
use super::line::{LINE_SLOTS, OVERFLOW, Pair};
use super::protocol::{Point, Protocol};
use super::write::Attempt;
use crate::Ref;

/// A slot that held a reference: its pair, and its number as in [`Pair::slots`].
#[derive(Clone, Copy)]
pub struct Spot<'a> {
    pair: &'a Pair,
    slot: u32,
}

impl<P: Protocol> HashTable<P> {
    /// Returns the slot that holds `reference`, an entry of a key with this hash; `None` if no slot does. Does not read
    /// the log.
    #[inline(always)]
    pub fn find_reference(&self, hash: u64, reference: Ref) -> Option<Spot<'_>> {
        let near = self.way_home(hash);
        P::pause(Point::SegmentChosen);
        self.find_reference_near(near, hash, reference)
    }

    /// As [`HashTable::find_reference`], as of some moment since `near` was found for this hash, which must have been
    /// under the epoch pin that the caller still holds. A split that came in between has left everything that it moved
    /// in place.
    #[inline(always)]
    pub fn find_reference_near<'a>(&'a self, near: NearHome<'a>, hash: u64, reference: Ref) -> Option<Spot<'a>> {
        self.find_at_home(near, hash, reference).or_else(|| self.find_on_path(near.segment, hash, reference))
    }

    /// As [`HashTable::find_reference_near`], in the home pair only.
    #[inline(always)]
    pub fn find_at_home<'a>(&'a self, near: NearHome<'a>, hash: u64, reference: Ref) -> Option<Spot<'a>> {
        let pair = near.pair;
        let mut slots = pair.slots_of(hash);
        while slots != 0 {
            let slot = slots.trailing_zeros();
            // SAFETY: a bit of the set.
            if unsafe { pair.reference_at(slot) } == reference.0 {
                return Some(Spot { pair, slot });
            }
            slots &= slots - 1;
        }
        None
    }

    /// Returns whether the path may lead beyond the home pair. If so, starts loading the next pair.
    #[inline(always)]
    pub fn prefetch_beyond(&self, near: NearHome<'_>, hash: u64) -> bool {
        let leads_on = near.pair.flags() & OVERFLOW != 0;
        if leads_on {
            // SAFETY: as in `find_on_path`.
            unsafe { near.segment.pair(near.segment.pair_number(hash, 1)) }.prefetch_for_write();
        }
        leads_on
    }

    #[inline(never)]
    fn find_on_path(&self, segment: Segment, hash: u64, reference: Ref) -> Option<Spot<'_>> {
        let place = self.walk(segment, hash, |place| place.reference == reference)?;
        // SAFETY: the callers have read the segment from their directory; its arena lives as long as the index that
        // they lend to the spot.
        let pair = unsafe { segment.pair(segment.pair_number(hash, place.step)) };
        const { assert!(LINE_SLOTS < 8) };
        Some(Spot { pair, slot: (8 * place.line + place.slot) as u32 })
    }

    /// Replaces `old`, which was found in `spot` under the epoch pin that the caller still holds, by `new`. Returns
    /// false, with nothing changed, if `old` is not there any more or must not be changed there: then use
    /// [`Index::install`](crate::Index::install).
    #[inline(always)]
    pub fn swing(&self, spot: Spot<'_>, old: Ref, new: Ref) -> bool {
        debug_assert!(old.is_some() && new.is_some(), "a collector replaces, it neither adds nor removes");
        let (line, slot) = (spot.slot as usize / 8 % 2, spot.slot as usize % 8);
        slot < LINE_SLOTS && Self::swap_in(spot.pair, line, slot, old, new) == Attempt::Done
    }
}
