//! Finding a reference without its key, and replacing it where it was found: for collectors, which move entries of which they know only hash and reference.
//!
//! A [`Spot`] holds under the epoch pin under which it was found, like the segment in [`super::home`]: if the segment was replaced since, its pairs are frozen, and the
//! lock fails; its block cannot have been used again. What does not work here is left to [`Index::install`](crate::Index::install), the reference.

use super::HashTable;
use super::directory::home_line;
use super::line::{LINE_SLOTS, Pair, first_slot, matches, tag_of};
use super::protocol::{Point, Protocol};
use crate::Ref;
use std::sync::atomic::Ordering;

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
        // SAFETY: the segment was read from this index's directory; its arena lives as long as `self`.
        let pair = unsafe { segment.pair(segment.pair_number(hash, 0)) };
        // Most keys are the first of their tag in their home line.
        let line = &pair.lines[home_line(hash)];
        let set = matches(line.meta.load(Ordering::Acquire), tag_of(hash));
        let slot = first_slot(set);
        if set != 0 && line.refs[slot].load(Ordering::Acquire) == reference.0 {
            return Some(Spot { pair, line: home_line(hash) as u8, slot: slot as u8 });
        }
        self.find_on_path(hash, reference)
    }

    #[inline(never)]
    fn find_on_path(&self, hash: u64, reference: Ref) -> Option<Spot<'_>> {
        let segment = self.segment(hash);
        let place = self.walk(segment, hash, |place| place.reference == reference)?;
        // SAFETY: as above.
        let pair = unsafe { segment.pair(segment.pair_number(hash, place.step)) };
        Some(Spot { pair, line: place.line as u8, slot: place.slot as u8 })
    }

    /// Replaces `old`, which was found in `spot` under the epoch pin that the caller still holds, by `new`. False, with nothing changed, if it is there no longer, or may not be
    /// changed there: then [`Index::install`](crate::Index::install) knows.
    #[inline(always)]
    pub fn swing(&self, spot: Spot<'_>, old: Ref, new: Ref) -> bool {
        debug_assert!(old.is_some() && new.is_some(), "a collector replaces, it neither adds nor removes");
        let (line, slot) = (usize::from(spot.line & 1), usize::from(spot.slot));
        let Some(mut held) = (slot < LINE_SLOTS).then(|| spot.pair.lock(P::HEED_FROZEN)).flatten() else { return false };
        let swapped = held.swap(line, slot, old.0, new.0);
        held.unlock();
        swapped
    }
}
