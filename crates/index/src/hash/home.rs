//! The short way to a key's slot, for the commonest writes: of a key whose home pair alone decides where it is or goes.
//!
//! The same protocol as [`super::place`], which handles every other case and is the reference: lock the home pair, append, flush, install by plain
//! stores. What differs is that the pair, line and slot stay in registers instead of being packed into a token and unpacked again.
//!
//! Thread safety: as [`super::place`]. A [`Home`] holds the pair's lock; it must end in [`HashTable::install_home`] or
//! [`HashTable::release_home`], and nothing between may panic or wait for another writer.

use super::HashTable;
use super::directory::{Segment, home_line};
use super::line::{Held, LOCK, first_slot, free_slots, matches, tag_of};
use super::protocol::{Protocol, Rule};
use crate::{Ref, Resolver};
use hither_sync::prefetch_write;
use std::sync::atomic::Ordering;

/// What was seen of a key's home pair before it was locked: where the key is or goes, if nothing changes meanwhile.
#[derive(Clone, Copy)]
pub struct HomeSight {
    segment: Segment,
    /// The lines' tags and flags, without the lock.
    metas: [u64; 2],
    line: usize,
    slot: usize,
    /// Whether a slot has the key's tag.
    found: bool,
}

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
    /// Looks at the home pair of the key with this hash, starts loading it for writing, and with it the entry that is likely the key's. `None` if
    /// the pair does not decide alone, see [`HashTable::lock_home`]. Under the caller's epoch pin. Looking is half of the work, and is done here so that it
    /// need not be done between the lock and the flush, where nothing else goes on.
    #[inline(always)]
    pub fn sight_home<R: Resolver>(&self, hash: u64, resolver: &R) -> Option<HomeSight> {
        let segment = self.segment(hash);
        // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
        let pair = unsafe { segment.pair(segment.pair_number(hash, 0)) };
        // Line 0 carries the lock.
        prefetch_write(&raw const pair.lines[0]);
        prefetch_write(&raw const pair.lines[1]);
        let (tag, home) = (tag_of(hash), home_line(hash));
        let [first, second] = &pair.lines;
        let metas = [first.meta.load(Ordering::Acquire) & !LOCK, second.meta.load(Ordering::Acquire)];
        // One bit per slot, the two lines' beside each other: nothing to count.
        let slots = [matches(metas[home], tag), matches(metas[home ^ 1], tag)];
        let found = slots[0] | slots[1] >> 1;
        let decides = if found == 0 { free_slots(metas[0]) | free_slots(metas[1]) != 0 } else { found & (found - 1) == 0 };
        if !decides {
            return None;
        }
        let mut sight = HomeSight { segment, metas, line: home, slot: 0, found: found != 0 };
        if found != 0 {
            sight.line = if slots[1] == 0 { home } else { home ^ 1 };
            sight.slot = first_slot(found);
            resolver.prefetch(Ref(pair.lines[sight.line].refs[sight.slot].load(Ordering::Relaxed)));
        }
        Some(sight)
    }

    /// Locks the home pair of the key with this hash if it decides alone: one slot of the key's tag, or none and a free slot, and none of its tag
    /// farther on. `None`, with nothing locked, in every other case, and if a key came or went since the sight, which is this key's and was taken
    /// under the caller's epoch pin.
    #[inline(always)]
    pub fn lock_home(&self, sight: HomeSight, hash: u64) -> Option<Home<'_>> {
        let HomeSight { segment, metas, line, slot, found } = sight;
        // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
        let pair = unsafe { segment.pair(segment.pair_number(hash, 0)) };
        let held = pair.lock(P::heeds(Rule::HeedFrozen))?;
        if !held.is_as(metas) || held.overflows() && self.tag_beyond_home(segment, hash) {
            held.unlock();
            return None;
        }
        let candidate = if found { Ref(held.reference(line, slot)) } else { Ref::NONE };
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
