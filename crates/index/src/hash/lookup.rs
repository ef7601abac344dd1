//! Lookups: one key, one key for a writer, and many keys with overlapping cache misses.
//!
//! Thread safety and linearizability: see the head of the parent module. Nothing here writes.

use super::directory::{Segment, home_line};
use super::line::{Line, OVERFLOW, Pair, first_slot, matches, tag_of};
use super::protocol::{Point, Protocol};
use super::{HashTable, Token};
use crate::{Index, Key, Located, Look, Ref, Resolver};
use hither_sync::prefetch_read;
use std::sync::atomic::Ordering;

/// Number of keys whose cache misses `get_many` overlaps.
pub(super) const GROUP: usize = 16;

/// A slot that holds `reference` and the tag that was searched for.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) step: usize,
    pub(super) line: usize,
    pub(super) slot: usize,
    pub(super) reference: Ref,
    address: *const Line,
}

impl Place {
    #[inline(always)]
    fn token(&self, segment: Segment) -> Token {
        Token { segment: segment.0, slot: self.address.addr() as u64 | self.slot as u64 }
    }
}

/// Searches one line for the tag; `accept` returns true to end the search.
#[inline(always)]
fn scan_line(line: &Line, meta: u64, tag: u64, mut accept: impl FnMut(usize, Ref) -> bool) -> Option<(usize, Ref)> {
    let mut set = matches(meta, tag);
    while set != 0 {
        let slot = first_slot(set);
        // Acquire: the entry behind the reference is visible.
        let reference = Ref(line.refs[slot].load(Ordering::Acquire));
        if reference.is_some() && accept(slot, reference) {
            return Some((slot, reference));
        }
        set &= set - 1;
    }
    None
}

impl<P: Protocol> HashTable<P> {
    /// Walks the path of `hash` through the slots of its tag until `accept` takes one.
    #[inline(always)]
    pub(super) fn walk(&self, segment: Segment, hash: u64, mut accept: impl FnMut(&Place) -> bool) -> Option<Place> {
        let (tag, home) = (tag_of(hash), home_line(hash));
        let mut step = 0;
        loop {
            // SAFETY: the segment was read from this index's directory; its arena lives as long as `self`.
            let pair = unsafe { segment.pair(segment.pair_number(hash, step)) };
            let mut flags = 0;
            for line in [home, home ^ 1] {
                let words = &pair.lines[line];
                // Acquire pairs with the release of the tag: the slot's reference is visible (L2).
                let meta = words.meta.load(Ordering::Acquire);
                flags |= meta;
                let mut place = Place { step, line, slot: 0, reference: Ref::NONE, address: words };
                let taken = scan_line(words, meta, tag, |slot, reference| {
                    (place.slot, place.reference) = (slot, reference);
                    accept(&place)
                });
                if taken.is_some() {
                    return Some(place);
                }
            }
            step += 1;
            if flags & OVERFLOW == 0 || step == segment.path_len() {
                return None;
            }
        }
    }

    /// The slot that holds `reference`, if it is the first of its tag in the home line, as most are.
    #[inline(always)]
    pub(super) fn slot_at_home(&self, segment: Segment, hash: u64, reference: Ref) -> Option<usize> {
        // SAFETY: the segment was read from this index's directory; its arena lives as long as `self`.
        let line = unsafe { &segment.home_pair(hash).lines[home_line(hash)] };
        let set = matches(line.meta.load(Ordering::Acquire), tag_of(hash));
        (set != 0).then(|| first_slot(set)).filter(|&slot| line.refs[slot].load(Ordering::Acquire) == reference.0)
    }

    /// The segment that was searched and the key's verified reference in it.
    #[inline(always)]
    pub(super) fn find<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> (Segment, Ref) {
        let segment = self.segment(key.hash);
        P::pause(Point::SegmentChosen);
        let place = self.walk(segment, key.hash, |place| resolver.matches(place.reference, key.bytes));
        (segment, place.map_or(Ref::NONE, |place| place.reference))
    }

    /// See [`Index::peek`]: asks about the first slot of the tag in the home pair, which holds most keys.
    ///
    /// The function is short and does not branch on the line, so that the processor begins the next lookups while this
    /// one waits for the log. It is not inlined, so that its few values all stay in registers. Inlined where many other
    /// values are live, it would compute the line's address from words that were just spilled to the stack, which costs
    /// a third of a lookup.
    #[inline(never)]
    pub(super) fn peek_home<T: Default>(&self, key: u64, look: impl Look<T>) -> (Ref, T) {
        let hash = look.hash(key);
        let segment = self.segment(hash);
        P::pause(Point::SegmentChosen);
        // SAFETY: the segment was read from this index's directory; its arena lives as long as `self`.
        match unsafe { segment.home_pair_in_smallest(hash) } {
            Some(pair) => Self::peek_pair(pair, hash, |found| look.look(found, key)),
            None => Self::peek_large(segment, hash, key, look),
        }
    }

    /// As [`HashTable::peek_home`], in a segment of another class. It is a call away, since even a choice between two
    /// distances would need registers.
    #[cold]
    #[inline(never)]
    fn peek_large<T: Default>(segment: Segment, hash: u64, key: u64, look: impl Look<T>) -> (Ref, T) {
        Self::peek_segment(segment, hash, |found| look.look(found, key))
    }

    /// As [`Index::peek`], for any key with this hash.
    #[inline(always)]
    pub fn peek_hash<T: Default>(&self, hash: u64, look: impl FnOnce(Ref) -> Option<T>) -> (Ref, T) {
        let segment = self.segment(hash);
        P::pause(Point::SegmentChosen);
        Self::peek_segment(segment, hash, look)
    }

    #[inline(always)]
    fn peek_segment<T: Default>(segment: Segment, hash: u64, look: impl FnOnce(Ref) -> Option<T>) -> (Ref, T) {
        // SAFETY: callers read the segment from this index's directory; its arena lives as long as `self`.
        Self::peek_pair(unsafe { segment.home_pair(hash) }, hash, look)
    }

    /// Asks about the first slot of the tag in a home pair.
    #[inline(always)]
    fn peek_pair<T: Default>(pair: &Pair, hash: u64, look: impl FnOnce(Ref) -> Option<T>) -> (Ref, T) {
        let set = pair.slots_of(hash);
        if set != 0 {
            // SAFETY: a bit of the set.
            let reference = Ref(unsafe { pair.reference_at(set.trailing_zeros()) });
            if let Some(seen) = look(reference) {
                return (reference, seen);
            }
        }
        (Ref::NONE, T::default())
    }

    /// Returns the key's verified reference. Most keys are the first of their tag in their home pair; for the others,
    /// the path is walked.
    #[inline(always)]
    pub(super) fn lookup<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Ref {
        let segment = self.segment(key.hash);
        P::pause(Point::SegmentChosen);
        // SAFETY: the segment was read from this index's directory; its arena lives as long as `self`.
        let pair = unsafe { segment.home_pair(key.hash) };
        let set = pair.slots_of(key.hash);
        if set != 0 {
            // SAFETY: a bit of the set.
            let reference = Ref(unsafe { pair.reference_at(set.trailing_zeros()) });
            if reference.is_some() && resolver.matches(reference, key.bytes) {
                return reference;
            }
        }
        self.lookup_on_path(segment, key.bytes, key.hash, resolver)
    }

    /// Prefetches the entries of all slots of the key's tag in its home pair, and the next pair if the path leads
    /// there.
    #[inline(always)]
    pub(super) fn peek_further<R: Resolver>(&self, key: Key<'_>, resolver: &R) {
        let segment = self.segment(key.hash);
        // SAFETY: the segment was read from this index's directory; its arena lives as long as `self`.
        let pair = unsafe { segment.home_pair(key.hash) };
        for line in &pair.lines {
            let mut set = matches(line.meta.load(Ordering::Relaxed), tag_of(key.hash));
            while set != 0 {
                resolver.prefetch(Ref(line.refs[first_slot(set)].load(Ordering::Relaxed)));
                set &= set - 1;
            }
        }
        if pair.flags() & OVERFLOW != 0 {
            // SAFETY: as above.
            let next = unsafe { segment.pair(segment.pair_number(key.hash, 1)) };
            prefetch_read(&raw const next.lines[0]);
            prefetch_read(&raw const next.lines[1]);
        }
    }

    /// Takes the key's parts in registers: a [`Key`] would go through memory, for every key.
    #[inline(never)]
    fn lookup_on_path<R: Resolver>(&self, segment: Segment, bytes: &[u8], hash: u64, resolver: &R) -> Ref {
        let place = self.walk(segment, hash, |place| resolver.matches(place.reference, bytes));
        place.map_or(Ref::NONE, |place| place.reference)
    }

    /// Returns the only slot of the key's tag, without reading its entry; if there are several, the one that holds the
    /// key.
    #[inline(always)]
    pub(super) fn find_candidate<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Located<Token> {
        let segment = self.segment(key.hash);
        let mut only = None;
        let second = self.walk(segment, key.hash, |place| only.replace(*place).is_some());
        match (second, only) {
            (None, None) => Located { token: Token { segment: segment.0, slot: 0 }, candidate: Ref::NONE, verified: true },
            (None, Some(place)) => Located { token: place.token(segment), candidate: place.reference, verified: false },
            _ => self.find_among_several(segment, key.bytes, key.hash, resolver),
        }
    }

    #[cold]
    fn find_among_several<R: Resolver>(&self, segment: Segment, bytes: &[u8], hash: u64, resolver: &R) -> Located<Token> {
        let place = self.walk(segment, hash, |place| resolver.matches(place.reference, bytes));
        let token = place.map_or(Token { segment: segment.0, slot: 0 }, |place| place.token(segment));
        Located { token, candidate: place.map_or(Ref::NONE, |place| place.reference), verified: true }
    }

    /// Looks up at most [`GROUP`] keys in three rounds: lines, log entries, comparison.
    pub(super) fn find_group<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R) {
        let mut segments = [Segment(0); GROUP];
        for (segment, key) in segments.iter_mut().zip(keys) {
            *segment = self.segment(key.hash);
            let home = segment.home(key.hash).cast::<Line>();
            prefetch_read(home.wrapping_add(home_line(key.hash)));
        }
        P::pause(Point::SegmentChosen);
        for ((found, key), segment) in found.iter_mut().zip(keys).zip(segments) {
            let place = self.walk(segment, key.hash, |_| true);
            *found = place.map_or(Ref::NONE, |place| place.reference);
            if found.is_some() {
                resolver.prefetch(*found);
            }
        }
        for (found, key) in found.iter_mut().zip(keys) {
            // The first slot of the tag is usually the key's; if not, another one may be. No slot at all is final.
            if found.is_some() && !resolver.matches(*found, key.bytes) {
                *found = self.get(*key, resolver);
            }
        }
    }
}
