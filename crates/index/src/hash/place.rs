//! Locking a key's home pair before the caller flushes, and installing by plain stores afterwards.
//!
//! The lock is the pair's. It is taken by the one locked instruction that an install pays anyway, only earlier. It is
//! held over the caller's append and fence: a writer of another key of the same pair, or a split of the segment, waits
//! that long (a fraction of a microsecond; longer if the append opens a segment, and then waiters yield).
//!
//! Usually the key is in its home pair or has room there, no second slot carries its tag, and the path ends in this
//! pair. If not, the path is searched without a lock first, and then only the pair that holds the key or will take it
//! is locked. The result of that search stays true: the key latch keeps other writers of the key away, keys never move
//! within a segment, and while the lock is held the pair is not frozen (L3), so its segment stays current. Only a full
//! path, a frozen pair and a cleaner that was faster are left to the unlocked protocol of [`super::write`].

use super::directory::{Segment, home_line};
use super::line::{Held, Line, OVERFLOW, Pair, first_slot, matches, tag_of};
use super::protocol::{Protocol, Rule};
use super::{HashTable, Token};
use crate::{Key, Located, Ref, Resolver};
use hither_sync::prefetch_write;
use std::sync::atomic::Ordering;

/// Copies field by field: values that a function has just stored field by field cannot be forwarded to the wide loads
/// of a plain copy (`docs/adr/0010`).
#[inline(always)]
pub(super) fn by_fields(Located { token: Token { segment, slot }, candidate, verified }: Located<Token>) -> Located<Token> {
    Located { token: Token { segment, slot }, candidate, verified }
}

impl<P: Protocol> HashTable<P> {
    /// Starts loading the home pair for writing, and the entry of the first slot of the key's tag in its home line,
    /// which is usually the key's.
    #[inline(always)]
    pub(super) fn prepare_place<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Segment {
        let segment = self.segment(key.hash);
        let home = home_line(key.hash);
        // SAFETY: the segment was read from this index's directory; its arena lives as long as `self`.
        let pair = unsafe { segment.home_pair(key.hash) };
        // Line 0 carries the lock.
        prefetch_write(&raw const pair.lines[0]);
        prefetch_write(&raw const pair.lines[1]);
        let line = &pair.lines[home];
        let set = matches(line.meta.load(Ordering::Relaxed), tag_of(key.hash));
        if set != 0 {
            resolver.prefetch(Ref(line.refs[first_slot(set)].load(Ordering::Relaxed)));
        }
        segment
    }

    /// Locks the pair that holds `key` or will take it. The directory led to `segment` for this key under the caller's
    /// pin; if it was replaced since, its pairs are frozen.
    #[inline(always)]
    pub(super) fn try_lock_place<R: Resolver>(&self, segment: Segment, key: Key<'_>, resolver: &R) -> Option<Located<Token>> {
        self.lock_place_by(segment, key, resolver, |pair| pair.lock(P::heeds(Rule::HeedFrozen)))
    }

    /// As [`HashTable::try_lock_place`], but never waits, neither for another writer nor for this thread, which may
    /// hold other places.
    #[inline(always)]
    pub(super) fn try_lock_place_now<R: Resolver>(&self, key: Key<'_>, resolver: &R) -> Option<Located<Token>> {
        self.lock_place_by(self.segment(key.hash), key, resolver, |pair| pair.try_lock(P::heeds(Rule::HeedFrozen)))
    }

    /// Common part of the two functions above; `lock` locks a pair.
    #[inline(always)]
    fn lock_place_by<'a, R: Resolver>(
        &'a self,
        segment: Segment,
        key: Key<'_>,
        resolver: &R,
        lock: impl Fn(&'a Pair) -> Option<Held<'a>>,
    ) -> Option<Located<Token>> {
        let number = segment.pair_number(key.hash, 0);
        // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
        let held = lock(unsafe { segment.pair(number) })?;
        match self.keep_home(held, segment, number, key) {
            None => self.lock_on_path(key.bytes, key.hash, resolver, lock).map(by_fields),
            located => located,
        }
    }

    /// Keeps the home pair of `key` locked if the key is there or will go there; otherwise unlocks it.
    #[inline(always)]
    fn keep_home(&self, held: Held<'_>, segment: Segment, number: usize, key: Key<'_>) -> Option<Located<Token>> {
        let (tag, home) = (tag_of(key.hash), home_line(key.hash));
        let slots = [held.slots(home, tag), held.slots(home ^ 1, tag)];
        // One bit per slot, with the bits of the two lines next to each other: nothing has to be counted.
        let found = slots[0] | slots[1] >> 1;
        let decides = if found == 0 { held.has_room() } else { found & (found - 1) == 0 };
        if !decides || held.overflows() && self.tag_beyond_home(segment, key.hash) {
            held.unlock();
            return None;
        }
        let line = if slots[1] == 0 { home } else { home ^ 1 };
        let slot = if found == 0 { 0 } else { first_slot(found) };
        let candidate = if found == 0 { Ref::NONE } else { Ref(held.reference(line, slot)) };
        held.keep();
        Some(Located { token: Self::token_of(segment, number, line, slot), candidate, verified: found == 0 })
    }

    /// Whether a slot on the path beyond the home pair carries the tag.
    #[inline(always)]
    pub(super) fn tag_beyond_home(&self, segment: Segment, hash: u64) -> bool {
        for step in 1..segment.path_len() {
            // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
            let pair = unsafe { segment.pair(segment.pair_number(hash, step)) };
            let [first, second] = &pair.lines;
            let (first, second) = (first.meta.load(Ordering::Acquire), second.meta.load(Ordering::Acquire));
            if matches(first, tag_of(hash)) | matches(second, tag_of(hash)) != 0 {
                return true;
            }
            if first & OVERFLOW == 0 {
                return false;
            }
        }
        false
    }

    /// As [`HashTable::try_lock_place`], where the home pair alone does not decide. The key is passed in registers for
    /// the sake of the hot path.
    #[inline(never)]
    fn lock_on_path<'a, R: Resolver>(
        &'a self,
        bytes: &[u8],
        hash: u64,
        resolver: &R,
        lock: impl Fn(&'a Pair) -> Option<Held<'a>>,
    ) -> Option<Located<Token>> {
        let located = self.find_candidate(Key { bytes, hash }, resolver);
        if located.candidate.is_none() {
            return self.lock_room(Segment(located.token.segment), hash, lock);
        }
        self.lock_candidate(located, lock)
    }

    /// Locks the pair of a candidate if the candidate's slot still holds it.
    pub(super) fn lock_candidate<'a>(
        &'a self,
        located: Located<Token>,
        lock: impl Fn(&'a Pair) -> Option<Held<'a>>,
    ) -> Option<Located<Token>> {
        let (pair, line, slot) = Self::locked_pair(located.token);
        let held = lock(pair)?;
        if held.reference(line, slot) != located.candidate.0 {
            held.unlock();
            return None;
        }
        held.keep();
        Some(located)
    }

    /// Locks the first pair with room on the path of an absent key, the pair that `place` would fill.
    pub(super) fn lock_room<'a>(
        &'a self,
        segment: Segment,
        hash: u64,
        lock: impl Fn(&'a Pair) -> Option<Held<'a>>,
    ) -> Option<Located<Token>> {
        for step in 0..segment.path_len() {
            let number = segment.pair_number(hash, step);
            // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
            let mut held = lock(unsafe { segment.pair(number) })?;
            if held.has_room() {
                held.keep();
                let token = Self::token_of(segment, number, home_line(hash), 0);
                return Some(Located { token, candidate: Ref::NONE, verified: true });
            }
            if step + 1 < segment.path_len() && P::heeds(Rule::SetFlags) {
                held.set_overflow();
            }
            held.unlock();
        }
        None
    }

    #[inline(always)]
    fn token_of(segment: Segment, number: usize, line: usize, slot: usize) -> Token {
        let address = segment.block() + number * size_of::<Pair>() + line * size_of::<Line>() + slot;
        Token { segment: segment.0, slot: address as u64 }
    }

    /// Installs under the lock of [`HashTable::try_lock_place`] and ends it.
    #[inline(always)]
    pub(super) fn finish_place<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) {
        if !self.try_finish_place(token, key, old, new) {
            self.insert(key, new, resolver).expect("the key latch keeps other inserts of the key away");
        } else if old.is_none() {
            self.look_for_wear(key.hash, new, resolver);
        }
    }

    /// As [`HashTable::finish_place`], taking no further lock. Returns false, with the lock ended and nothing changed,
    /// if the candidate was another key with the same tag and its pair is full.
    #[inline(always)]
    pub(super) fn try_finish_place(&self, token: Token, key: Key<'_>, old: Ref, new: Ref) -> bool {
        let (pair, line, slot) = Self::locked_pair(token);
        let mut held = pair.resume();
        if old.is_some() {
            let swapped = held.swap(line, slot, old.0, new.0);
            held.unlock();
            assert!(swapped, "nobody changes a slot of a locked pair");
            if new.is_none() {
                self.counter.add(1u64.wrapping_neg());
            }
            return true;
        }
        let put = new.is_none() || held.put(home_line(key.hash), tag_of(key.hash), new.0);
        held.unlock();
        if new.is_some() && put {
            self.counter.add(1);
        }
        put
    }

    /// Ends the lock of [`HashTable::try_lock_place`] without a change.
    pub(super) fn release_place(&self, token: Token) {
        Self::locked_pair(token).0.resume().unlock();
    }

    /// The pair, line and slot that a locked token names.
    #[inline(always)]
    pub(super) fn locked_pair<'a>(token: Token) -> (&'a Pair, usize, usize) {
        let segment = Segment(token.segment);
        let offset = token.slot as usize - segment.block();
        let (number, line, slot) = (offset / size_of::<Pair>(), offset / size_of::<Line>() % 2, offset % size_of::<Line>());
        // SAFETY: the token was made by `try_lock_place`, `lock_room` or `home_token` from a segment of this index,
        // under the pin that the caller still holds, and the pair's lock has kept the segment current since.
        (unsafe { segment.pair(number) }, line, slot)
    }
}
