//! Finding a reference without its key, and replacing it where it was found: for collectors, which move entries of which they know only hash and reference.
//!
//! A [`Spot`] holds under the epoch pin under which it was found, like the segment in [`super::home`]: if the segment was replaced since, its pairs are frozen, and the
//! lock fails; its block cannot have been used again. What does not work here is left to [`Index::install`](crate::Index::install), the reference.

use super::HashTable;
use super::directory::{Segment, home_line};
use super::line::{LINE_SLOTS, Pair};
use super::protocol::{Point, Protocol};
use super::write::Attempt;
use crate::Ref;

/// A slot that held a reference.
#[derive(Clone, Copy)]
pub struct Spot<'a> {
    pair: &'a Pair,
    line: u8,
    slot: u8,
}

impl<P: Protocol> HashTable<P> {
    /// The slot that holds `reference`, an entry of a key with this hash; `None` if no slot does. Reads no log.
    #[inline(always)]
    pub fn find_reference(&self, hash: u64, reference: Ref) -> Option<Spot<'_>> {
        let segment = self.segment(hash);
        P::pause(Point::SegmentChosen);
        match self.slot_at_home(segment, hash, reference) {
            Some(slot) => Some(Self::spot(segment, hash, (0, home_line(hash), slot))),
            None => self.find_on_path(segment, hash, reference),
        }
    }

    #[inline(never)]
    fn find_on_path(&self, segment: Segment, hash: u64, reference: Ref) -> Option<Spot<'_>> {
        let place = self.walk(segment, hash, |place| place.reference == reference)?;
        Some(Self::spot(segment, hash, (place.step, place.line, place.slot)))
    }

    #[inline(always)]
    fn spot<'a>(segment: Segment, hash: u64, (step, line, slot): (usize, usize, usize)) -> Spot<'a> {
        // SAFETY: the callers have read the segment from their directory; its arena lives as long as the index that they lend to the spot.
        Spot { pair: unsafe { segment.pair(segment.pair_number(hash, step)) }, line: line as u8, slot: slot as u8 }
    }

    /// Replaces `old`, which was found in `spot` under the epoch pin that the caller still holds, by `new`. False, with nothing changed, if it is there no longer, or may not be
    /// changed there: then [`Index::install`](crate::Index::install) knows.
    #[inline(always)]
    pub fn swing(&self, spot: Spot<'_>, old: Ref, new: Ref) -> bool {
        debug_assert!(old.is_some() && new.is_some(), "a collector replaces, it neither adds nor removes");
        let (line, slot) = (usize::from(spot.line & 1), usize::from(spot.slot));
        slot < LINE_SLOTS && Self::swap_in(spot.pair, line, slot, old, new) == Attempt::Done
    }
}
