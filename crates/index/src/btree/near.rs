//! The short way of a single write to its leaf, for the commonest writes. The tree is descended as soon as the key is
//! known, and the leaf is remembered until the write ends.
//!
//! A leaf has sixteen lines. A writer that requests them early has other work to do until they arrive. The fewer
//! instructions lie between the flush of one write and the lines that the next one requests, the likelier the processor
//! does both at once (`docs/adr/0010`).
//!
//! The protocol is that of [`super::claim`]: what is found is a hint until the leaf is claimed at the version of the
//! search. Thread safety: as there. What is found is valid under the epoch pin under which it was found.

use super::leaf::Leaf;
use super::protocol::Protocol;
use super::spot::Whole;
use super::{BTree, Token};
use crate::Ref;
use crate::common::version::Restart;

/// The leaf to which a key leads, and the leaf's version, if they are known.
#[derive(Clone, Copy)]
pub struct NearLeaf<'a>(Option<(Leaf<'a>, u64)>);

/// A key's place as seen before the leaf was claimed: where the key is or goes if the leaf does not change.
#[derive(Clone, Copy)]
pub struct LeafSight<'a> {
    leaf: Leaf<'a>,
    /// The place, for a caller that ends the claim in another way: see [`crate::Index::install_locked`].
    pub token: Token,
    /// The key's entry; none if the key is absent.
    pub seen: Ref,
}

impl NearLeaf<'_> {
    /// No leaf is known.
    pub const NONE: Self = NearLeaf(None);
}

impl<P: Protocol> BTree<P> {
    /// Descends to the leaf for a key of eight bytes, given as a native-endian word, and starts loading it. Call under
    /// an epoch pin.
    #[inline(always)]
    pub fn near_leaf(&self, word: u64) -> NearLeaf<'_> {
        NearLeaf(self.try_near(u64::from_be(word)).ok())
    }

    #[inline(always)]
    fn try_near(&self, slice: u64) -> Result<(Leaf<'_>, u64), Restart> {
        let (node, version) = self.begin_whole(slice)?;
        self.descend_from_inner(node, version, slice)
    }

    /// Looks for the key for which `near` was found under the caller's epoch pin. `None` if the leaf alone does not
    /// prove whether it holds the key.
    #[inline(always)]
    pub fn sight_word<'a>(&'a self, near: NearLeaf<'a>, word: u64) -> Option<LeafSight<'a>> {
        if let NearLeaf(Some(near)) = near
            && let Ok(sight) = self.try_sight(near, word)
        {
            return Some(sight);
        }
        self.sight_word_again(word)
    }

    #[inline(always)]
    fn try_sight<'a>(&'a self, (leaf, version): (Leaf<'a>, u64), word: u64) -> Result<LeafSight<'a>, Restart> {
        let located = self.word_in(leaf, version, u64::from_be(word))?.located();
        Ok(LeafSight { leaf, token: located.token, seen: located.candidate })
    }

    /// Repeats the search: the leaf has changed since or was locked, or the root is a leaf.
    #[inline(never)]
    fn sight_word_again(&self, word: u64) -> Option<LeafSight<'_>> {
        match self.try_near(u64::from_be(word)).and_then(|near| self.try_sight(near, word)) {
            Ok(sight) => Some(sight),
            Err(Restart) => self.sight_key(&word.to_ne_bytes()),
        }
    }

    /// As [`BTree::sight_word`], for any key.
    #[inline(never)]
    pub fn sight_key(&self, key: &[u8]) -> Option<LeafSight<'_>> {
        let found = self.find(key);
        let located = found.located();
        located.verified.then_some(LeafSight { leaf: found.leaf, token: located.token, seen: located.candidate })
    }

    /// Claims the leaf, as [`BTree::claim_place`] does.
    #[inline(always)]
    pub fn claim_seen(&self, sight: &LeafSight<'_>) -> bool {
        self.claim_leaf(sight.leaf, sight.token)
    }

    /// Ends [`BTree::claim_seen`] by putting `new` in the place that was seen; if `new` is none, removes the key.
    #[inline(always)]
    pub fn replace_seen(&self, sight: &LeafSight<'_>, key: &[u8], new: Ref) {
        self.replace_in_claimed(&Whole(self), (sight.leaf, sight.token), key, sight.seen, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::BTreeIndex;
    use crate::conformance::Rng;
    use crate::conformance::point::Bench;
    use hither_sync::epoch;
    use std::collections::BTreeMap;

    /// How a write by the short way ended.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Way {
        Written,
        /// The write is left to the long way; nothing was changed.
        Left,
    }

    /// Writes eight bytes as the engine's lean path does. `early` runs between the descent and the look at the leaf,
    /// `late` between that look and the claim.
    fn write_short(bench: &Bench<BTreeIndex>, key: u64, new: Ref, early: impl FnOnce(), late: impl FnOnce()) -> (Way, Ref) {
        let index = &bench.index;
        let _pin = epoch::pin();
        let near = index.near_leaf(key);
        early();
        let sight = index.sight_word(near, key).expect("a leaf proves what it says of eight bytes");
        late();
        if sight.seen.is_none() && new.is_none() || !index.claim_seen(&sight) {
            return (Way::Left, sight.seen);
        }
        index.replace_seen(&sight, &key.to_ne_bytes(), new);
        (Way::Written, sight.seen)
    }

    /// As [`write_short`]; if that fails, writes by the long way. `map` is what the index holds of the writer's keys,
    /// and is updated.
    fn write_noted(
        bench: &Bench<BTreeIndex>,
        map: &mut BTreeMap<[u8; 8], Ref>,
        (key, new): (u64, Ref),
        early: impl FnOnce(),
        late: impl FnOnce(),
    ) -> Way {
        let bytes = key.to_ne_bytes();
        let old = map.get(&bytes).copied().unwrap_or(Ref::NONE);
        let (way, seen) = write_short(bench, key, new, early, late);
        assert_eq!(seen, old, "what is seen is the key's");
        if way == Way::Left {
            assert_eq!(bench.write(&bytes, new), old);
        }
        if new.is_some() {
            map.insert(bytes, new)
        } else {
            map.remove(&bytes)
        };
        way
    }

    fn key_of(random: &mut Rng, among: usize) -> u64 {
        u64::from_ne_bytes((random.below(among) as u64 * 977).to_be_bytes())
    }

    #[test]
    fn the_short_way_agrees_with_a_map_and_the_long_way() {
        for (seed, among) in [(1, 30), (2, 500), (3, 5_000)] {
            let bench = Bench::new(BTreeIndex::new());
            let (mut map, mut random) = (BTreeMap::new(), Rng::new(seed));
            let mut ways = [0; 2];
            // Longer and shorter keys that begin alike: some words have a layer in their place, or next to it.
            for word in (0..among).step_by(7).map(|i| u64::from_ne_bytes((i as u64 * 977).to_be_bytes())) {
                for other in [[&word.to_ne_bytes()[..], b"more"].concat(), word.to_ne_bytes()[..7].to_vec()] {
                    bench.write(&other, bench.log.append(&other));
                }
            }
            for _ in 0..20_000 {
                let key = key_of(&mut random, among);
                let bytes = key.to_ne_bytes();
                // The index grows at first and shrinks later, so that leaves split and merge.
                let new = if random.below(20_000) < ways[0] + ways[1] { Ref::NONE } else { bench.log.append(&bytes) };
                ways[write_noted(&bench, &mut map, (key, new), || {}, || {}) as usize] += 1;
            }
            for (bytes, reference) in &map {
                assert_eq!(bench.get(bytes), *reference);
            }
            assert!(ways[0] > 8_000 && ways[1] > 100, "both ways were gone: {ways:?}");
        }
    }

    #[test]
    fn a_leaf_that_changes_meanwhile_is_searched_anew_or_left() {
        let mut ways = [0; 2];
        for (late, round) in (0..200).flat_map(|round| [(false, round), (true, round)]) {
            let bench = Bench::new(BTreeIndex::new());
            let mut random = Rng::new(round);
            for _ in 0..300 {
                let bytes = key_of(&mut random, 1_000).to_ne_bytes();
                bench.write(&bytes, bench.log.append(&bytes));
            }
            let key = key_of(&mut random, 1_000);
            // Enough neighbours to split the leaf, and the key itself.
            let others = || {
                for near in 1..40u64 {
                    let bytes = (u64::from_be(key) + near).to_be_bytes();
                    bench.write(&bytes, bench.log.append(&bytes));
                }
                bench.write(&key.to_ne_bytes(), bench.log.append(&key.to_ne_bytes()));
            };
            let new = bench.log.append(&key.to_ne_bytes());
            let (way, _) = if late { write_short(&bench, key, new, || {}, others) } else { write_short(&bench, key, new, others, || {}) };
            ways[way as usize] += 1;
            assert!(!(late && way == Way::Written), "a claim by what is no more");
            let found = bench.get(&key.to_ne_bytes());
            assert!(found.is_some());
            assert_eq!(found == new, way == Way::Written);
        }
        assert!(ways[0] > 100 && ways[1] >= 200, "{ways:?}");
    }

    #[test]
    fn what_a_leaf_does_not_prove_is_not_seen() {
        let bench = Bench::new(BTreeIndex::new());
        let stored: [&[u8]; 4] = [b"eight by", b"eleven byte", b"seven b", b"nine byte"];
        let references = stored.map(|key| bench.put(key));
        let _pin = epoch::pin();
        let seen = |key: &[u8]| bench.index.sight_key(key).map(|sight| sight.seen);
        assert_eq!([stored[0], stored[2]].map(seen), [references[0], references[2]].map(Some));
        assert_eq!(seen(b"absent"), Some(Ref::NONE));
        // The rests of these keys are in the log alone.
        assert_eq!([stored[1], stored[3], b"eleven bits"].map(seen), [None; 3]);
    }

    /// Threads write neighbouring keys in the same few leaves, each thread its own keys. No thread undoes what another
    /// one did, and each reads what it wrote last.
    #[test]
    fn neighbours_do_not_disturb_each_other() {
        const THREADS: usize = 4;
        let bench = Bench::new(BTreeIndex::new());
        let own_key = |thread: usize, i: usize| u64::from_ne_bytes(((i * THREADS + thread) as u64).to_be_bytes());
        let write_own = |thread: usize| {
            let (mut map, mut random, mut short) = (BTreeMap::new(), Rng::new(thread as u64), 0);
            for round in 0..20_000 {
                let key = own_key(thread, random.below(100));
                let bytes = key.to_ne_bytes();
                let new = if random.below(20_000) < round / 2 { Ref::NONE } else { bench.log.append(&bytes) };
                // Lets others write between the descent, the look and the claim.
                let pause = |when| {
                    if round % 8 == when {
                        std::thread::yield_now()
                    }
                };
                let way = write_noted(&bench, &mut map, (key, new), || pause(0), || pause(1));
                short += usize::from(way == Way::Written);
                assert_eq!(bench.get(&bytes), new);
            }
            (map, short)
        };
        let done: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || write_own(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        });
        for (bytes, reference) in done.iter().flat_map(|(map, _)| map) {
            assert_eq!(bench.get(bytes), *reference);
        }
        bench.check(done.iter().map(|(map, _)| map.len()).sum());
        assert!(done.iter().all(|(_, short)| *short > 5_000), "the short way is gone by all");
    }
}
