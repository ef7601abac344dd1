//! Installing references under the pair's lock.
//!
//! # Why a token may be used
//!
//! A token names a slot by address. It is followed only if the directory still leads to the very segment word that it
//! was made from, checked *before* locking. Then the block is current at that moment and, since the caller is pinned,
//! cannot be recycled during the call. If it is replaced after the check, its pairs are frozen first, and the lock
//! fails. So one look at two cached words and one locked instruction suffice. The slot must still hold `old`, which
//! identifies the key's entry uniquely.
//!
//! # Inserts
//!
//! The caller's key latch keeps other inserts of the key away, so a key found absent without a lock stays absent (a
//! cleaner replaces and removes, but never inserts). Pairs are locked one after the other, never two at once: a full
//! pair gets its overflow flag under its own lock before the next one is tried, and the flag stays.

use super::HashTable;
use super::Token;
use super::directory::{Segment, home_line};
use super::line::{LINE_SLOTS, Line, Pair, tag_of};
use super::lookup::Place;
use super::protocol::{Protocol, Rule};
use crate::{Conflict, Index, Key, Ref, Resolver};

/// How an attempt under a lock ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attempt {
    Done,
    /// The slot holds something else.
    Changed,
    /// The segment is being replaced.
    Frozen,
    /// No free slot on the path.
    Full,
}

impl<P: Protocol> HashTable<P> {
    /// Replaces `old`, which is an entry of `key`, by `new` (or removes it).
    #[inline]
    pub(super) fn replace<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict> {
        let segment = self.segment(key.hash);
        if token.segment == segment.0 && token.slot != 0 {
            let offset = (token.slot as usize).wrapping_sub(segment.block());
            let (number, line, slot) = (offset / size_of::<Pair>(), offset / size_of::<Line>() % 2, offset % size_of::<Line>());
            // A token of this segment lies inside it; the bounds keep an invented one harmless.
            if number < segment.pairs() && slot < LINE_SLOTS && self.swap(segment, number, line, slot, old, new) == Attempt::Done {
                return Ok(());
            }
        }
        if let Some(slot) = self.slot_at_home(segment, key.hash, old)
            && self.swap(segment, segment.pair_number(key.hash, 0), home_line(key.hash), slot, old, new) == Attempt::Done
        {
            return Ok(());
        }
        self.search_and_replace(key, old, new, resolver)
    }

    /// As [`HashTable::replace`], without a useful token. A slot that holds `old` is found without reading the log.
    #[cold]
    fn search_and_replace<R: Resolver>(&self, key: Key<'_>, old: Ref, new: Ref, resolver: &R) -> Result<(), Conflict> {
        let mut spins = 0;
        loop {
            let segment = self.segment(key.hash);
            if let Some(Place { step, line, slot, .. }) = self.walk(segment, key.hash, |place| place.reference == old) {
                match self.swap(segment, segment.pair_number(key.hash, step), line, slot, old, new) {
                    Attempt::Done => return Ok(()),
                    Attempt::Frozen => self.await_successor(segment, key.hash, &mut spins),
                    _ => {}
                }
                continue;
            }
            let current = self.get(key, resolver);
            if current != old {
                return Err(Conflict { current });
            }
        }
    }

    #[inline(always)]
    fn swap(&self, segment: Segment, number: usize, line: usize, slot: usize, old: Ref, new: Ref) -> Attempt {
        // SAFETY: the segment was read from this index's directory during this call, and the number lies inside it.
        let attempt = Self::swap_in(unsafe { segment.pair(number) }, line, slot, old, new);
        if attempt == Attempt::Done && new.is_none() {
            self.counter.add(1u64.wrapping_neg());
        }
        attempt
    }

    /// Replaces `old` by `new` in a slot of a pair, under its lock. The caller updates the counter.
    #[inline(always)]
    pub(super) fn swap_in(pair: &Pair, line: usize, slot: usize, old: Ref, new: Ref) -> Attempt {
        let Some(mut held) = pair.lock(P::heeds(Rule::HeedFrozen)) else {
            return Attempt::Frozen;
        };
        let swapped = held.swap(line, slot, old.0, new.0);
        held.unlock();
        if swapped { Attempt::Done } else { Attempt::Changed }
    }

    /// Adds `key`, unless it is present.
    #[inline]
    pub(super) fn insert<R: Resolver>(&self, key: Key<'_>, new: Ref, resolver: &R) -> Result<(), Conflict> {
        // Usually reads two cached words. A tag that matches by chance costs a read of the log, before any lock is
        // taken.
        let (mut segment, current) = self.find(key, resolver);
        if current.is_some() {
            return Err(Conflict { current });
        }
        let mut spins = 0;
        loop {
            match self.place(segment, key.hash, new) {
                Attempt::Done => {
                    self.counter.add(1);
                    self.look_for_wear(key.hash, new, resolver);
                    return Ok(());
                }
                Attempt::Frozen => self.await_successor(segment, key.hash, &mut spins),
                _ => self.rebuild(segment, key.hash, resolver),
            }
            segment = self.segment(key.hash);
        }
    }

    /// Puts a reference into the first free slot of the path.
    #[inline(always)]
    fn place(&self, segment: Segment, hash: u64, new: Ref) -> Attempt {
        let (tag, home) = (tag_of(hash), home_line(hash));
        for step in 0..segment.path_len() {
            // SAFETY: the segment was read from this index's directory during this call.
            let Some(mut held) = (unsafe { segment.pair(segment.pair_number(hash, step)) }).lock(P::heeds(Rule::HeedFrozen)) else {
                return Attempt::Frozen;
            };
            let put = held.put(home, tag, new.0);
            if !put && step + 1 < segment.path_len() && P::heeds(Rule::SetFlags) {
                held.set_overflow();
            }
            held.unlock();
            if put {
                return Attempt::Done;
            }
        }
        Attempt::Full
    }

    /// Gives the thread that is replacing `segment` time; the caller then tries again. A replacement that a panic undid
    /// thaws the pairs, so the retry decides, not the directory alone.
    #[cold]
    fn await_successor(&self, segment: Segment, hash: u64, spins: &mut u32) {
        if self.segment(hash) == segment {
            hither_sync::pause(spins);
        }
    }
}
