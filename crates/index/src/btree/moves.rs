//! Moving many slots at once: between leaves that are evened out or merged, and into a new one.
//!
//! For the holder of the leaves' locks, or of a fresh leaf; a claim suffices for a leaf that is only read. Slots are
//! moved word by word, since the same words are read again soon: a wider load would wait until the words that it spans
//! have left the store buffer, where they stand behind a write's fence ([`shift`](crate::common::shift)).
//!
//! Cost: O(slots of the leaves); two words for the slice and the value of each slot, four words for all kinds.

use super::leaf::{Entry, KINDS, Leaf, SLICES, capacity};

/// The kinds of a leaf's slots, four bits each.
#[derive(Clone, Copy)]
struct Kinds([u64; 4]);

impl Kinds {
    /// The kinds of the first `count` slots.
    fn first(self, count: usize) -> Kinds {
        Kinds(std::array::from_fn(|word| match count.saturating_sub(word * 16) {
            0 => 0,
            used @ 1..16 => self.0[word] & ((1 << (used * 4)) - 1),
            _ => self.0[word],
        }))
    }

    /// All kinds, moved up by `by` slots.
    fn up(self, by: usize) -> Kinds {
        let (words, bits) = (by / 16, by % 16 * 4);
        let at = |word: usize, back: usize| word.checked_sub(words + back).map_or(0, |word| self.0[word]);
        Kinds(std::array::from_fn(|word| at(word, 0) << bits | at(word, 1).checked_shr(64 - bits as u32).unwrap_or(0)))
    }

    /// The kinds from slot `by` on, moved down by `by` slots.
    fn down(self, by: usize) -> Kinds {
        let (words, bits) = (by / 16, by % 16 * 4);
        let at = |word: usize| self.0.get(words + word).copied().unwrap_or(0);
        Kinds(std::array::from_fn(|word| at(word) >> bits | at(word + 1).checked_shl(64 - bits as u32).unwrap_or(0)))
    }

    fn or(self, other: Kinds) -> Kinds {
        Kinds(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
}

impl Leaf<'_> {
    /// Inserts `count` slots of `from`, beginning with its slot `first`, before this leaf's slot `at`. There must be
    /// room for them.
    pub(super) fn take(self, at: usize, from: Leaf<'_>, first: usize, count: usize) {
        let theirs = from.0.meta();
        debug_assert!(first + count <= theirs.count());
        let values = self.open(at, count);
        for (mine, other) in [(SLICES, SLICES), (values, SLICES + capacity(theirs.class()))] {
            for i in 0..count {
                self.store(mine + at + i, from.load(other + first + i));
            }
        }
        self.set_kinds(self.kinds().or(from.kinds().down(first).first(count).up(at)));
    }

    /// As [`Leaf::insert`], where slots have just been moved.
    pub(super) fn insert_among_moved(self, at: usize, entry: Entry) {
        let values = self.open(at, 1);
        self.store(SLICES + at, entry.slice);
        self.store(values + at, entry.value);
        self.set_kind(at, entry.kind);
    }

    /// Moves the slots from `at` on up by `count`, and clears the kinds of the gap. Returns where values begin.
    fn open(self, at: usize, count: usize) -> usize {
        let meta = self.0.meta();
        let (capacity, own) = (capacity(meta.class()), meta.count());
        debug_assert!(at <= own && own + count <= capacity);
        for run in [SLICES, SLICES + capacity] {
            for i in (at..own).rev() {
                self.store(run + i + count, self.load(run + i));
            }
        }
        // The kinds beyond the leaf's own slots may hold anything.
        let kinds = self.kinds().first(own);
        self.set_kinds(kinds.first(at).or(kinds.down(at).up(at + count)));
        self.0.set_meta(meta.with_count(own + count));
        SLICES + capacity
    }

    /// Removes the slots from `count` on.
    pub(super) fn truncate(self, count: usize) {
        debug_assert!(count <= self.0.meta().count());
        self.set_kinds(self.kinds().first(count));
        self.0.set_meta(self.0.meta().with_count(count));
    }

    /// Removes the first `count` slots.
    pub(super) fn remove_first(self, count: usize) {
        let meta = self.0.meta();
        debug_assert!(count <= meta.count());
        for run in [SLICES, SLICES + capacity(meta.class())] {
            for i in count..meta.count() {
                self.store(run + i - count, self.load(run + i));
            }
        }
        self.set_kinds(self.kinds().down(count));
        self.0.set_meta(meta.with_count(meta.count() - count));
    }

    fn kinds(self) -> Kinds {
        Kinds(std::array::from_fn(|word| self.load(KINDS + word)))
    }

    fn set_kinds(self, kinds: Kinds) {
        kinds.0.into_iter().enumerate().for_each(|(i, word)| self.store(KINDS + i, word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::arena::Arena;
    use crate::common::node::LARGE;

    /// Slots that move between leaves arrive unchanged, whatever kinds they have, and nothing is left of removed slots.
    #[test]
    fn slots_move_as_in_vectors() {
        let arena = Arena::new();
        let mut random = 7u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % bound
        };
        let nodes = [arena.allocate(LARGE).publish(), arena.allocate(LARGE).publish(), arena.allocate(LARGE - 1).publish()];
        let leaves = nodes.map(Leaf);
        let mut model: [Vec<Entry>; 3] = Default::default();
        for _ in 0..20_000 {
            let [to, from] = [below(3), below(3)];
            let room = capacity(nodes[to].meta().class()) - model[to].len();
            match below(4) {
                0 => {
                    let kept = below(model[to].len() + 1);
                    leaves[to].truncate(kept);
                    model[to].truncate(kept);
                }
                1 => {
                    let gone = below(model[to].len() + 1);
                    leaves[to].remove_first(gone);
                    model[to].drain(..gone);
                }
                2 if to != from && room > 0 => {
                    let first = below(model[from].len() + 1);
                    let (at, count) = (below(model[to].len() + 1), below((model[from].len() - first).min(room) + 1));
                    leaves[to].take(at, leaves[from], first, count);
                    let taken = model[from][first..first + count].to_vec();
                    model[to].splice(at..at, taken);
                }
                _ => {
                    for _ in 0..room {
                        let (at, kind) = (below(model[to].len() + 1), below(11) as u8);
                        let entry = Entry { slice: below(1 << 30) as u64, kind, value: below(1 << 30) as u64 };
                        if kind % 2 == 0 {
                            leaves[to].insert(at, entry);
                        } else {
                            leaves[to].insert_among_moved(at, entry);
                        }
                        model[to].insert(at, entry);
                    }
                }
            }
            let meta = nodes[to].meta();
            assert_eq!((0..meta.count()).map(|i| leaves[to].entry(meta, i)).collect::<Vec<_>>(), model[to]);
            assert_eq!(leaves[to].kinds().down(meta.count()).0, [0; 4], "nothing is left");
        }
    }
}
