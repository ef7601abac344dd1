//! The short way to a key's slot, for the commonest writes. It serves a key whose home pair alone decides where the key
//! is or goes. If a full home pair has no slot of the key's tag, it also serves a key that is or goes beyond that pair.
//!
//! The protocol is that of [`super::place`], which handles every other case and is the reference: lock the home pair
//! (or the one beyond), append, flush, install by plain stores. The difference is that most of the work is done before
//! the lock, as if nothing would change in between, and that pair and slot stay in registers.
//!
//! Thread safety: as [`super::place`]. Between [`HashTable::lock_home`] and the end of the lock nothing may panic or
//! wait for a writer that may wait for a pair or a latch. (An append that opens a segment holds up others for longer.)

use super::directory::{Segment, home_line};
use super::line::{Held, LINE_SLOTS, Line, OVERFLOW, Pair, tag_of};
use super::protocol::{Protocol, Rule};
use super::{HashTable, Token};
use crate::{Located, Ref};

/// The way to a key's home pair.
#[derive(Clone, Copy)]
pub struct NearHome<'a> {
    pub(super) segment: Segment,
    pub(super) pair: &'a Pair,
}

/// A bit of [`HomeSight::slots`] that stands for no slot: the pair is not the home pair.
const BEYOND: u64 = 1 << 16;

/// A key's home pair, or one farther on, as seen before it was locked: where the key is or goes if nothing changes
/// meanwhile.
#[derive(Clone, Copy)]
pub struct HomeSight<'a> {
    segment: Segment,
    pair: &'a Pair,
    /// The slots of the key's tag: one, or none. May include [`BEYOND`].
    /// A whole word, because a copy of the sight would load half a word with more than was stored.
    slots: u64,
    /// The reference in that slot, likely the key's entry; none if there is no such slot.
    pub seen: Ref,
}

impl<P: Protocol> HashTable<P> {
    /// Finds the home pair of the key with this hash and starts loading it for writing. Call under an epoch pin.
    #[inline(always)]
    pub fn near_home(&self, hash: u64) -> NearHome<'_> {
        let near = self.way_home(hash);
        near.pair.prefetch_for_write();
        near
    }

    /// As [`HashTable::near_home`], but loads nothing of the pair.
    #[inline(always)]
    pub(super) fn way_home(&self, hash: u64) -> NearHome<'_> {
        let segment = self.segment(hash);
        // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
        NearHome { segment, pair: unsafe { segment.home_pair(hash) } }
    }

    /// Looks at the home pair of the key with this hash, and farther on if that pair is full. `None` if no single pair
    /// decides, see [`HashTable::lock_home`]. `near` was found for this hash under the epoch pin that the caller still
    /// holds.
    ///
    /// The entry that is likely the key's is not prefetched. A writer reads it in the shadow of a flush, while a
    /// prefetch that also misses the address translation delays the work before it (`docs/adr/0010`).
    #[inline(always)]
    pub fn sight_home<'a>(&'a self, near: NearHome<'a>, hash: u64) -> Option<HomeSight<'a>> {
        Self::sight_home_or(near, hash, || self.sight_beyond(near.segment, hash))
    }

    /// As [`HashTable::sight_home`], but also `None` if the home pair is full and has no slot of the key's tag.
    #[inline(always)]
    pub fn sight_only_home<'a>(&'a self, near: NearHome<'a>, hash: u64) -> Option<HomeSight<'a>> {
        Self::sight_home_or(near, hash, || None)
    }

    /// Common part of the two functions above; `beyond` looks farther on.
    #[inline(always)]
    fn sight_home_or<'a>(near: NearHome<'a>, hash: u64, beyond: impl FnOnce() -> Option<HomeSight<'a>>) -> Option<HomeSight<'a>> {
        let NearHome { segment, pair } = near;
        let slots = u64::from(pair.slots_of(hash));
        if slots == 0 {
            if pair.slots(0) == 0 {
                return beyond();
            }
            return Some(HomeSight { segment, pair, slots, seen: Ref::NONE });
        }
        // SAFETY: a bit of the set.
        let seen = Ref(unsafe { pair.reference_at(slots.trailing_zeros()) });
        (slots & (slots - 1) == 0 && seen.is_some()).then_some(HomeSight { segment, pair, slots, seen })
    }

    /// As [`HashTable::sight_home`], where the home pair has neither a slot of the key's tag nor room. Sees the only
    /// slot of the tag on the rest of the path, or else the first pair with room there.
    #[inline(never)]
    fn sight_beyond(&self, segment: Segment, hash: u64) -> Option<HomeSight<'_>> {
        // The path of a wide segment covers all its pairs.
        if segment.wide() {
            return None;
        }
        // SAFETY: the segment was read from this index's directory under the pin that the caller holds.
        let pair_at = |step| unsafe { segment.pair(segment.pair_number(hash, step)) };
        let (mut found, mut room): (Option<HomeSight<'_>>, Option<HomeSight<'_>>) = (None, None);
        let mut leads_on = pair_at(0).flags() & OVERFLOW != 0;
        for step in 1..segment.path_len() {
            let pair: &Pair = pair_at(step);
            if leads_on {
                let slots = u64::from(pair.slots_of(hash));
                if slots != 0 {
                    // SAFETY: a bit of the set.
                    let seen = Ref(unsafe { pair.reference_at(slots.trailing_zeros()) });
                    if slots & (slots - 1) != 0 || seen.is_none() || found.is_some() {
                        return None;
                    }
                    found = Some(HomeSight { segment, pair, slots: slots | BEYOND, seen });
                }
                leads_on = pair.flags() & OVERFLOW != 0;
            }
            if room.is_none() && pair.slots(0) != 0 {
                room = Some(HomeSight { segment, pair, slots: BEYOND, seen: Ref::NONE });
            }
            if !leads_on && (found.is_some() || room.is_some()) {
                break;
            }
        }
        found.or(room)
    }

    /// Locks the pair of a sight beyond the home pair, as [`HashTable::lock_home`] does. The path is walked again. What
    /// is found under the key's latch stays so until the pair is locked, except that collectors may replace references,
    /// as in [`super::place`].
    #[inline(never)]
    fn lock_beyond<'a>(&'a self, sight: HomeSight<'_>, hash: u64, lock: impl Fn(&'a Pair) -> Option<Held<'a>>) -> bool {
        let segment = sight.segment;
        // SAFETY: as in `sight_beyond`.
        let home_has_tag = unsafe { segment.home_pair(hash) }.slots_of(hash) != 0;
        let same = |again: HomeSight<'_>| std::ptr::eq(again.pair, sight.pair) && (again.slots, again.seen) == (sight.slots, sight.seen);
        if home_has_tag || !self.sight_beyond(segment, hash).is_some_and(same) {
            return false;
        }
        if sight.seen.is_some() {
            let located = Located { token: self.home_token(&sight), candidate: sight.seen, verified: false };
            return self.lock_candidate(located, lock).is_some();
        }
        let Some(located) = self.lock_room(segment, hash, lock) else { return false };
        let here = std::ptr::eq(Self::locked_pair(located.token).0, sight.pair);
        if !here {
            self.release_place(located.token);
        }
        here
    }

    /// Locks the pair that was seen if it decides alone and is unchanged: it has one slot of the key's tag with the
    /// same reference, or none, and the rest of the path has no slot of the tag. Returns false, with nothing locked, in
    /// every other case.
    ///
    /// The sight is this key's and was taken under the caller's epoch pin. The caller holds the key's latch, so that
    /// nobody else inserts or removes the key.
    #[inline(always)]
    pub fn lock_home(&self, sight: &HomeSight<'_>, hash: u64) -> bool {
        // Not one closure for both calls: it would not be inlined here.
        if sight.slots & BEYOND != 0 {
            return self.lock_beyond(*sight, hash, |pair| pair.lock(P::heeds(Rule::HeedFrozen)));
        }
        self.keep_seen(sight, hash, sight.pair.lock(P::heeds(Rule::HeedFrozen)))
    }

    /// As [`HashTable::lock_home`], but never waits, neither for another writer nor for this thread, which may hold
    /// other pairs. Also returns false if somebody holds the pair.
    #[inline(always)]
    pub fn lock_home_now(&self, sight: &HomeSight<'_>, hash: u64) -> bool {
        if sight.slots & BEYOND != 0 {
            return self.lock_beyond(*sight, hash, |pair| pair.try_lock(P::heeds(Rule::HeedFrozen)));
        }
        self.keep_seen(sight, hash, sight.pair.try_lock(P::heeds(Rule::HeedFrozen)))
    }

    /// Keeps the home pair locked if it was locked, decides alone and is as it was seen; otherwise unlocks it.
    #[inline(always)]
    fn keep_seen(&self, sight: &HomeSight<'_>, hash: u64, held: Option<Held<'_>>) -> bool {
        let &HomeSight { segment, pair, slots, seen } = sight;
        let Some(held) = held else { return false };
        let same = u64::from(pair.slots_of(hash)) == slots
            // SAFETY: a bit of the set.
            && (slots == 0 || unsafe { pair.reference_at(slots.trailing_zeros()) } == seen.0);
        if !same || held.overflows() && self.tag_beyond_home(segment, hash) {
            held.unlock();
            return false;
        }
        held.keep();
        true
    }

    /// Installs `new` in the slot that was seen, whose entry was this key's, and ends the lock.
    #[inline(always)]
    pub fn replace_home(&self, sight: &HomeSight<'_>, new: Ref) {
        debug_assert!(new.is_some() && sight.seen.is_some());
        // SAFETY: a bit of the set.
        unsafe { sight.pair.set_reference_at(sight.slots.trailing_zeros(), new.0) };
        sight.pair.resume().unlock();
    }

    /// Removes the entry that was seen, which was this key's, and ends the lock.
    #[inline(always)]
    pub fn remove_home(&self, sight: &HomeSight<'_>) {
        let (line, slot) = sight.place();
        let mut held = sight.pair.resume();
        let removed = held.swap(line, slot, sight.seen.0, 0);
        held.unlock();
        debug_assert!(removed, "nobody changes a slot of a locked pair");
        self.counter.add(1u64.wrapping_neg());
    }

    /// Installs `new` where no slot had the key's tag, and ends the lock. Returns false, with nothing changed, if there
    /// is no room: the caller then inserts.
    #[inline(always)]
    pub fn insert_home(&self, sight: &HomeSight<'_>, hash: u64, new: Ref) -> bool {
        let mut held = sight.pair.resume();
        let put = held.put(home_line(hash), tag_of(hash), new.0);
        held.unlock();
        if put {
            self.counter.add(1);
        }
        put
    }

    /// The place that [`HashTable::lock_home`] locked, for a caller that ends the lock in another way: see
    /// [`crate::Index::install_locked`].
    #[inline(always)]
    pub fn home_token(&self, sight: &HomeSight<'_>) -> Token {
        const { assert!(align_of::<Line>() > LINE_SLOTS) };
        let (line, slot) = sight.place();
        Token { segment: sight.segment.0, slot: (&raw const sight.pair.lines[line]).addr() as u64 | slot as u64 }
    }
}

impl HomeSight<'_> {
    /// The slot's line and its number in that line.
    #[inline(always)]
    fn place(&self) -> (usize, usize) {
        let slot = self.slots.trailing_zeros() as usize % 16;
        (slot / 8, slot % 8)
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::TAG_BITS;
    use super::*;
    use crate::conformance::point::Bench;
    use crate::conformance::{FakeLog, Rng};
    use crate::hash::HashIndex;
    use crate::{Index, Key};
    use hither_sync::epoch;
    use std::collections::BTreeMap;

    /// How a write by the short way ended.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Way {
        Replaced,
        Inserted,
        Removed,
        /// The write is left to the long way; nothing was changed.
        Left,
    }

    /// Writes as the engine's lean path does; `change` runs between sight and lock.
    fn write_short(bench: &Bench<HashIndex>, key: Key<'_>, new: Ref, change: impl FnOnce()) -> Way {
        write_short_after(bench, key, new, || {}, change)
    }

    /// As [`write_short`]; `early` runs before the pair that was found is looked at.
    fn write_short_after(bench: &Bench<HashIndex>, key: Key<'_>, new: Ref, early: impl FnOnce(), change: impl FnOnce()) -> Way {
        let (index, log) = (&bench.index, &bench.log);
        let _pin = epoch::pin();
        let near = index.near_home(key.hash);
        early();
        let Some(sight) = index.sight_home(near, key.hash) else { return Way::Left };
        change();
        if !index.lock_home(&sight, key.hash) {
            return Way::Left;
        }
        let is_keys = sight.seen.is_some() && log.peek(sight.seen) == key.bytes;
        match (sight.seen.is_some(), is_keys, new.is_some()) {
            (false, _, true) if index.insert_home(&sight, key.hash, new) => Way::Inserted,
            (true, true, true) => {
                index.replace_home(&sight, new);
                Way::Replaced
            }
            (true, true, false) => {
                index.remove_home(&sight);
                Way::Removed
            }
            (false, _, true) => Way::Left,
            _ => {
                index.unlock_place(index.home_token(&sight));
                Way::Left
            }
        }
    }

    #[test]
    fn the_short_way_agrees_with_a_map_and_the_long_way() {
        for (seed, mask) in [(1, u64::MAX), (2, 0xf << 60 | TAG_BITS), (3, !(0xf << 24)), (4, TAG_BITS | 1)] {
            let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(seed, mask) };
            let (mut map, mut random) = (BTreeMap::new(), Rng::new(seed));
            let mut ways = [0; 4];
            for _ in 0..20_000 {
                let bytes = (random.below(400) as u64).to_be_bytes();
                let new = if random.below(3) == 0 { Ref::NONE } else { bench.log.append(&bytes) };
                let old = map.get(&bytes).copied().unwrap_or(Ref::NONE);
                let way = write_short(&bench, bench.log.key_of(&bytes), new, || {});
                ways[way as usize] += 1;
                match way {
                    Way::Left => assert_eq!(bench.write(&bytes, new), old),
                    Way::Inserted => assert!(old.is_none() && new.is_some()),
                    Way::Replaced | Way::Removed => assert!(old.is_some(), "{way:?} where nothing was"),
                }
                if new.is_some() {
                    map.insert(bytes, new)
                } else {
                    map.remove(&bytes)
                };
                assert_eq!(bench.get(&bytes), new);
            }
            bench.check(map.len());
            assert!(mask != u64::MAX || ways[..3].iter().all(|count| *count > 2_000), "most go the short way: {ways:?}");
        }
    }

    /// The lock must fail where what was seen has changed: for each change of the key's slot, of another slot of its
    /// tag, and of its segment.
    #[test]
    fn what_changes_between_sight_and_lock_is_noticed() {
        // All keys in one pair, with different tags.
        let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(7, TAG_BITS) };
        let keys: Vec<[u8; 8]> = (0..4000u64).map(u64::to_be_bytes).collect();
        let tag = |key: &[u8; 8]| tag_of(bench.log.hash_of(key));
        let (key, same) = (keys[0], *keys[1..].iter().find(|other| tag(other) == tag(&keys[0])).unwrap());
        let other = *keys[1..].iter().find(|other| tag(other) != tag(&key)).unwrap();
        let put = |key: &[u8; 8]| {
            bench.write(key, bench.log.append(key));
        };
        let short = |new: Ref, change: &dyn Fn()| write_short(&bench, bench.log.key_of(&key), new, change);
        let fresh = || bench.log.append(&key);

        assert_eq!(short(fresh(), &|| put(&key)), Way::Left, "it came");
        assert_eq!(short(fresh(), &|| put(&key)), Way::Left, "it was replaced");
        assert_eq!(short(fresh(), &|| put(&other)), Way::Replaced, "another tag does not matter");
        assert_eq!(short(fresh(), &|| put(&same)), Way::Left, "another key of its tag came");
        bench.write(&same, Ref::NONE);
        assert_eq!(
            short(fresh(), &|| {
                bench.write(&key, Ref::NONE);
            }),
            Way::Left,
            "it went"
        );
        assert_eq!(short(fresh(), &|| put(&same)), Way::Left, "absent, and another key of its tag came");
        bench.write(&same, Ref::NONE);
        assert_eq!(short(fresh(), &|| {}), Way::Inserted);
        bench.check(2);

        // A split freezes the pair that was found, before or after the pair is looked at.
        for early in [true, false] {
            let bench = Bench::new(HashIndex::new());
            let split = |now: bool| {
                (0..if now { 2_000u64 } else { 0 }).for_each(|i| {
                    bench.write(&i.to_be_bytes(), bench.log.append(&i.to_be_bytes()));
                })
            };
            let key = 5_000u64.to_be_bytes();
            let way = write_short_after(&bench, bench.log.key_of(&key), bench.log.append(&key), || split(early), || split(!early));
            assert_eq!(way, Way::Left, "early: {early}");
            assert_eq!(bench.get(&key), Ref::NONE);
        }
    }

    /// Keys with distinct tags that all have the same home pair, which the first fourteen fill.
    fn crowd(log: &FakeLog, count: usize) -> Vec<[u8; 8]> {
        let mut tags = std::collections::HashSet::new();
        let own_tag = |key: &[u8; 8]| tags.insert(tag_of(log.hash_of(key)));
        (0..100_000u64).map(u64::to_be_bytes).filter(own_tag).take(count).collect()
    }

    #[test]
    fn keys_beyond_a_full_home_pair_go_the_short_way() {
        let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(3, TAG_BITS | 1) };
        let keys = crowd(&bench.log, 90);
        let short = |key: &[u8; 8], new: Ref| write_short(&bench, bench.log.key_of(key), new, || {});
        for way in [Way::Inserted, Way::Replaced, Way::Removed, Way::Inserted] {
            for i in 0..keys.len() {
                // Keys in the home pair are removed last: until then it is full.
                let key = if way == Way::Removed { &keys[keys.len() - 1 - i] } else { &keys[i] };
                let new = if way == Way::Removed { Ref::NONE } else { bench.log.append(key) };
                assert_eq!(short(key, new), way);
                assert_eq!(bench.get(key), new);
            }
            bench.check(if way == Way::Removed { 0 } else { keys.len() });
        }
    }

    /// Whoever holds places may not wait for another one, least of all for one that it holds itself.
    #[test]
    fn a_lock_taken_without_waiting_fails_where_the_pair_is_held() {
        let world = Crowded::with(20);
        let (index, log) = (&world.bench.index, &world.bench.log);
        let _pin = epoch::pin();
        let hash = |key: usize| log.hash_of(&world.keys[key]);
        let sight = |key: usize| index.sight_home(index.near_home(hash(key)), hash(key)).expect("one pair decides");
        // Two keys in the home pair, two in the next one; a key that goes there.
        for (first, second) in [(3, 4), (15, 16), (15, 30), (30, 31)] {
            let [held, wanted] = [first, second].map(sight);
            assert!(index.lock_home_now(&held, hash(first)), "{first}");
            assert!(!index.lock_home_now(&wanted, hash(second)), "{second} beside {first}");
            index.unlock_place(index.home_token(&held));
            assert!(index.lock_home_now(&wanted, hash(second)), "{second} after {first}");
            index.unlock_place(index.home_token(&wanted));
        }
        // A lock that fails has left nothing behind.
        world.put(30);
        world.remove(15);
        world.bench.check(20);
    }

    #[test]
    fn the_home_pair_alone_shows_no_key_beyond_it() {
        let world = Crowded::with(20);
        let (index, log) = (&world.bench.index, &world.bench.log);
        let _pin = epoch::pin();
        for key in [0, 13, 14, 19, 30] {
            let hash = log.hash_of(&world.keys[key]);
            let near = index.near_home(hash);
            let [all, only] = [index.sight_home(near, hash), index.sight_only_home(near, hash)].map(|sight| sight.map(|sight| sight.seen));
            assert_eq!(only, if key < 14 { all } else { None }, "key {key}");
            assert!(all.is_some());
        }
    }

    /// An index in which keys 0 to 13 fill the home pair of all keys, and 14 to 27 the next pair.
    struct Crowded {
        bench: Bench<HashIndex>,
        keys: Vec<[u8; 8]>,
    }

    impl Crowded {
        fn with(count: usize) -> Crowded {
            let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(5, TAG_BITS | 1) };
            let crowded = Crowded { keys: crowd(&bench.log, 60), bench };
            (0..count).for_each(|key| crowded.put(key));
            crowded
        }

        fn put(&self, key: usize) {
            self.bench.write(&self.keys[key], self.bench.log.append(&self.keys[key]));
        }

        fn remove(&self, key: usize) {
            self.bench.write(&self.keys[key], Ref::NONE);
        }

        /// A split freezes all pairs.
        fn split(&self) {
            for key in (100_000..101_000u64).map(u64::to_be_bytes) {
                self.bench.write(&key, self.bench.log.append(&key));
            }
        }

        /// Writes a key by the short way; `change` runs between sight and lock.
        fn short(&self, key: usize, change: impl FnOnce(&Self)) -> Way {
            let (bench, key) = (&self.bench, &self.keys[key]);
            let new = bench.log.append(key);
            let way = write_short(bench, bench.log.key_of(key), new, || change(self));
            assert_eq!(bench.get(key) == new, way != Way::Left);
            way
        }
    }

    #[test]
    fn what_changes_beyond_the_home_pair_is_noticed() {
        let world = Crowded::with(20);
        assert_eq!(world.short(30, |world| world.put(31)), Way::Inserted, "another key beside it does not matter");
        assert_eq!(world.short(32, |world| world.put(32)), Way::Left, "it came");
        assert_eq!(world.short(32, |world| world.put(32)), Way::Left, "it was replaced");
        assert_eq!(world.short(32, |world| world.remove(32)), Way::Left, "it went");
        assert_eq!(world.short(32, |world| world.remove(3)), Way::Left, "the home pair has room");
        assert_eq!(world.short(32, |_| {}), Way::Inserted, "there");
        let into_home = |world: &Crowded| {
            world.remove(4);
            world.put(33);
        };
        assert_eq!(world.short(33, into_home), Way::Left, "it came into the home pair, which is full again");

        let world = Crowded::with(27);
        assert_eq!(world.short(40, |world| world.put(41)), Way::Left, "the next pair is full");
        assert_eq!(world.short(40, |_| {}), Way::Inserted, "in the third one");
        assert_eq!(world.short(42, |world| world.remove(20)), Way::Left, "the next pair has room");

        assert_eq!(Crowded::with(20).short(30, Crowded::split), Way::Left, "absent, and its segment was replaced");
        assert_eq!(Crowded::with(20).short(18, Crowded::split), Way::Left, "its segment was replaced");
    }
}
