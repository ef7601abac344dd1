//! Leaves: sorted slots of (slice, kind, value).
//!
//! ```text
//! word 0 version | 1 meta | 2 next | 3 previous | 4..7 kinds, four bits each | 8.. slices | 8+capacity.. values
//! ```
//!
//! The value is a reference, or the address of a layer's root if the kind is [`LAYER`].
//!
//! # Invariants
//!
//! * L1. Slots ascend by (slice, rank) without equals.
//! * L2. Slots of one slice lie in one leaf, so that separators need no rank. There are at most nine of them.
//! * L3. `next` changes under this leaf's lock. The `previous` of a leaf changes under the lock of the leaf whose
//!   `next` it is.
//! * L4. Every leaf has a slot, except the root of layer 0 when it is a leaf.

use crate::common::node::{LARGE, Meta, Node, node_bytes};
use crate::common::search;
use crate::common::shift;
use crate::common::slice::{LAYER, rank_of};
use crate::common::version::Restart;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const NEXT: usize = 2;
const PREVIOUS: usize = 3;
pub(super) const KINDS: usize = 4;
pub(super) const SLICES: usize = 8;
/// Slots of a large leaf.
pub(super) const LEAF_SLOTS: usize = capacity(LARGE);

/// Slots of a leaf of this class: 4, 12, 28 or 60.
#[inline(always)]
pub(super) const fn capacity(class: usize) -> usize {
    (8 << class) - 4
}

/// One slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) slice: u64,
    pub(super) kind: u8,
    pub(super) value: u64,
}

/// A node seen as a leaf.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Leaf<'a>(pub(super) Node<'a>);

impl<'a> Leaf<'a> {
    /// Number of slots in use; never more than the class has, whatever the words hold.
    #[inline(always)]
    pub(super) fn count(self, meta: Meta) -> usize {
        meta.count().min(capacity(meta.class()))
    }

    #[inline(always)]
    pub(super) fn is_full(self) -> bool {
        let meta = self.0.meta();
        meta.count() == capacity(meta.class())
    }

    #[inline(always)]
    pub(super) fn load(self, word: usize) -> u64 {
        // SAFETY: callers stay below the class's capacity (N1 makes the class reliable).
        unsafe { self.0.word(word) }.load(Relaxed)
    }

    #[inline(always)]
    pub(super) fn store(self, word: usize, value: u64) {
        // SAFETY: as in `load`.
        unsafe { self.0.word(word) }.store(value, Relaxed);
    }

    #[inline(always)]
    pub(super) fn slice(self, i: usize) -> u64 {
        debug_assert!(i < capacity(self.0.meta().class()));
        self.load(SLICES + i)
    }

    #[inline(always)]
    pub(super) fn kind(self, i: usize) -> u8 {
        (self.load(KINDS + i / 16) >> (i % 16 * 4) & 15) as u8
    }

    /// The value of slot `i`. `meta` determines where values begin.
    #[inline(always)]
    pub(super) fn value(self, meta: Meta, i: usize) -> u64 {
        debug_assert!(i < capacity(meta.class()));
        self.load(SLICES + capacity(meta.class()) + i)
    }

    /// As [`Leaf::count`], for a large leaf.
    #[inline(always)]
    pub(super) fn large_count(self, meta: Meta) -> usize {
        meta.count().min(LEAF_SLOTS)
    }

    /// As [`Leaf::value`], for a large leaf.
    #[inline(always)]
    pub(super) fn large_value(self, i: usize) -> u64 {
        debug_assert!(i < LEAF_SLOTS);
        self.load(SLICES + LEAF_SLOTS + i)
    }

    /// The word of slot `i`'s value, which may be the cell of a layer.
    pub(super) fn value_word(self, i: usize) -> &'a AtomicU64 {
        let capacity = capacity(self.0.meta().class());
        debug_assert!(i < capacity);
        // SAFETY: `i` is below the capacity.
        unsafe { self.0.word(SLICES + capacity + i) }
    }

    /// Starts loading slot `i`'s value.
    #[inline(always)]
    pub(super) fn prefetch_value(self, meta: Meta, i: usize) {
        let word = SLICES + capacity(meta.class()) + i;
        hither_sync::prefetch_read((self.0.address() as *const u64).wrapping_add(word));
    }

    #[cfg(test)]
    pub(super) fn entry(self, meta: Meta, i: usize) -> Entry {
        Entry { slice: self.slice(i), kind: self.kind(i), value: self.value(meta, i) }
    }

    /// Starts loading the parts of the large leaf at `address` that a scan reads: its header and its values.
    #[inline(always)]
    pub(super) fn prefetch_for_scan(address: u64) {
        for line in std::iter::once(0).chain((SLICES + LEAF_SLOTS) / 8..node_bytes(LARGE) / 64) {
            hither_sync::prefetch_read((address as *const u8).wrapping_add(line * 64));
        }
    }

    /// Starts loading the parts of the leaf at `address` that a hint is compared with, if the leaf is large: its header
    /// and slot `i`'s value.
    #[inline(always)]
    pub(super) fn prefetch_for_hint(address: u64, i: usize) {
        hither_sync::prefetch_read(address as *const u8);
        hither_sync::prefetch_read((address as *const u64).wrapping_add(SLICES + LEAF_SLOTS + i.min(LEAF_SLOTS - 1)));
    }

    /// The address of the next leaf of the layer, or 0. May be followed only after the version is validated (N2).
    #[inline(always)]
    pub(super) fn next(self) -> u64 {
        self.load(NEXT)
    }

    /// The address of the previous leaf of the layer, or 0.
    #[inline(always)]
    pub(super) fn previous(self) -> u64 {
        self.load(PREVIOUS)
    }

    /// Returns the first position not before (slice, rank), and the kind of the slot there if the slot is that pair.
    #[inline(always)]
    pub(super) fn find(self, meta: Meta, slice: u64, rank: u8) -> (usize, Option<u8>) {
        let count = self.count(meta);
        let mut at = if meta.class() == LARGE {
            self.find_word(meta, slice)
        } else {
            // SAFETY: `count` words follow the header in every class.
            unsafe { search::lower_bound(self.0.word(SLICES), count, slice) }
        };
        while at < count && self.slice(at) == slice {
            let kind = self.kind(at);
            if rank_of(kind) >= rank {
                return (at, (rank_of(kind) == rank).then_some(kind));
            }
            at += 1;
        }
        (at, None)
    }

    /// As [`Leaf::find`], with the value of that slot (0 if there is none), everything as it was at `version`.
    #[inline(always)]
    pub(super) fn find_at(self, version: u64, slice: u64, rank: u8) -> Result<(usize, Option<u8>, u64), Restart> {
        let meta = self.0.meta();
        let (position, kind) = self.find(meta, slice, rank);
        let value = if kind.is_some() { self.value(meta, position) } else { 0 };
        self.0.version().check(version)?;
        Ok((position, kind, value))
    }

    /// Returns the first position not before `slice`, in a large leaf.
    #[inline(always)]
    pub(super) fn find_word(self, meta: Meta, slice: u64) -> usize {
        debug_assert_eq!(meta.class(), LARGE);
        // SAFETY: a large node has 128 words, and the slices begin at its second line.
        unsafe { search::Block { words: self.0.word(SLICES), first: 0, count: self.count(meta) }.lower_bound(slice) }
    }

    /// Returns the position of the first slot of `slice` in a large leaf; not below the count if it has none. `wide` is
    /// the result of [`search::is_wide`].
    #[inline(always)]
    pub(super) fn position_of(self, wide: bool, meta: Meta, slice: u64) -> usize {
        debug_assert_eq!(meta.class(), LARGE);
        // SAFETY: as in `find_word`.
        unsafe { search::Block { words: self.0.word(SLICES), first: 0, count: self.large_count(meta) }.position(wide, slice) }
    }

    /// The position nearest to `wanted` among `places` at which the leaf may be cut, between two slots (L2).
    pub(super) fn cut_near(self, wanted: usize, places: RangeInclusive<usize>) -> Option<usize> {
        let may_cut = |at: &usize| places.contains(at) && self.slice(*at - 1) != self.slice(*at);
        (0..LEAF_SLOTS).flat_map(|distance| [wanted.wrapping_sub(distance), wanted + distance]).find(may_cut)
    }

    /// The first slot from `from` below `to` that holds a layer, or `to`.
    #[inline]
    pub(super) fn layer_from(self, from: usize, to: usize) -> usize {
        let mut at = from;
        while at < to {
            let hits = layers_in(self.load(KINDS + at / 16)) & u64::MAX << (at % 16 * 4);
            if hits != 0 {
                return (at / 16 * 16 + hits.trailing_zeros() as usize / 4).min(to);
            }
            at = (at / 16 + 1) * 16;
        }
        to
    }

    /// One past the last slot below `to` that holds a layer, or 0.
    #[inline]
    pub(super) fn layer_before(self, to: usize) -> usize {
        let mut end = to;
        while end > 0 {
            let word = (end - 1) / 16;
            let hits = layers_in(self.load(KINDS + word)) & u64::MAX >> (64 - (end - word * 16) * 4);
            if hits != 0 {
                return word * 16 + (63 - hits.leading_zeros() as usize) / 4 + 1;
            }
            end = word * 16;
        }
        0
    }

    // ---- for the holder of the lock or of a fresh node ----

    pub(super) fn set_next(self, address: u64) {
        self.store(NEXT, address);
    }

    /// See L3 for who may call this.
    pub(super) fn set_previous(self, address: u64) {
        self.store(PREVIOUS, address);
    }

    pub(super) fn set_value(self, i: usize, value: u64) {
        self.value_word(i).store(value, Relaxed);
    }

    pub(super) fn set_kind(self, i: usize, kind: u8) {
        let shift = i % 16 * 4;
        let word = self.load(KINDS + i / 16) & !(15 << shift) | u64::from(kind) << shift;
        self.store(KINDS + i / 16, word);
    }

    /// Inserts a slot at `at`. The leaf must not be full.
    #[inline]
    pub(super) fn insert(self, at: usize, entry: Entry) {
        let meta = self.0.meta();
        let (count, values) = (meta.count(), SLICES + capacity(meta.class()));
        debug_assert!(count < capacity(meta.class()) && at <= count);
        let moved = count.min(capacity(meta.class()) - 1).saturating_sub(at);
        // SAFETY: slices and values each have room for one more after these and do not overlap; the caller has the leaf
        // locked.
        unsafe { shift::up(self.pointers([SLICES + at, values + at]), moved) };
        self.store(SLICES + at, entry.slice);
        self.store(values + at, entry.value);
        self.insert_kind(at, entry.kind);
        self.0.set_meta(meta.with_count(count + 1));
    }

    /// Pointers to these words. They may be followed within the node.
    #[inline(always)]
    fn pointers(self, words: [usize; 2]) -> [*const AtomicU64; 2] {
        words.map(|word| (self.0.address() as *const AtomicU64).wrapping_add(word))
    }

    #[inline(always)]
    fn insert_kind(self, at: usize, kind: u8) {
        let (word, shift) = (at / 16, at % 16 * 4);
        let old = self.load(KINDS + word);
        let below = (1u64 << shift) - 1;
        self.store(KINDS + word, old & below | u64::from(kind) << shift | (old & !below) << 4);
        let mut carry = old >> 60;
        for word in word + 1..4 {
            let old = self.load(KINDS + word);
            self.store(KINDS + word, old << 4 | carry);
            carry = old >> 60;
        }
    }

    /// Removes slot `at`.
    pub(super) fn remove(self, at: usize) {
        let meta = self.0.meta();
        let (count, values) = (meta.count(), SLICES + capacity(meta.class()));
        debug_assert!(at < count);
        let moved = count.min(capacity(meta.class())).saturating_sub(at + 1);
        // SAFETY: the words are those of the slots from `at` on, and slices and values do not overlap; the caller has
        // the leaf locked.
        unsafe { shift::down(self.pointers([SLICES + at, values + at]), moved) };
        let (word, shift) = (at / 16, at % 16 * 4);
        let mut carry = 0;
        for word in (word + 1..4).rev() {
            let old = self.load(KINDS + word);
            self.store(KINDS + word, old >> 4 | carry << 60);
            carry = old & 15;
        }
        let old = self.load(KINDS + word);
        let below = (1u64 << shift) - 1;
        self.store(KINDS + word, old & below | (old >> 4) & !below | carry << 60);
        self.0.set_meta(meta.with_count(count - 1));
    }

    /// Fills a fresh large leaf with keys of eight bytes.
    #[inline(always)]
    pub(super) fn fill_words(self, slices: &[u64], refs: &[crate::Ref]) {
        let meta = self.0.meta();
        debug_assert!(meta.class() == LARGE && slices.len() == refs.len() && slices.len() <= LEAF_SLOTS);
        for (i, (slice, reference)) in slices.iter().zip(refs).enumerate() {
            self.store(SLICES + i, *slice);
            self.store(SLICES + LEAF_SLOTS + i, reference.0);
        }
        for word in 0..4 {
            let used = slices.len().saturating_sub(word * 16).min(16);
            let mask = if used == 16 { u64::MAX } else { (1 << (used * 4)) - 1 };
            self.store(KINDS + word, 0x8888_8888_8888_8888 & mask);
        }
        self.0.set_meta(meta.with_count(slices.len()));
    }

    /// Replaces all slots.
    pub(super) fn fill(self, entries: &[Entry]) {
        let meta = self.0.meta();
        let values = SLICES + capacity(meta.class());
        debug_assert!(entries.len() <= capacity(meta.class()));
        let mut kinds = [0u64; 4];
        for (i, entry) in entries.iter().enumerate() {
            self.store(SLICES + i, entry.slice);
            self.store(values + i, entry.value);
            kinds[i / 16] |= u64::from(entry.kind) << (i % 16 * 4);
        }
        for (i, word) in kinds.into_iter().enumerate() {
            self.store(KINDS + i, word);
        }
        self.0.set_meta(meta.with_count(entries.len()));
    }
}

/// Bit 4i is set if nibble i is [`LAYER`].
#[inline(always)]
fn layers_in(kinds: u64) -> u64 {
    const ONES: u64 = 0x1111_1111_1111_1111;
    let other = kinds ^ (ONES * LAYER as u64);
    !(other | other >> 1 | other >> 2 | other >> 3) & ONES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::arena::Arena;

    #[test]
    fn slots_match_a_vector() {
        let arena = Arena::new();
        for class in 0..=LARGE {
            let node = arena.allocate(class).publish();
            let leaf = Leaf(node);
            let mut model: Vec<Entry> = Vec::new();
            let mut state = 1u64;
            for round in 0..4000 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let random = (state >> 33) as usize;
                let grow = (round % 400 < 200) != random.is_multiple_of(4);
                if grow && !leaf.is_full() {
                    let at = random / 4 % (model.len() + 1);
                    let entry = Entry { slice: state, kind: (random % 11) as u8, value: !state };
                    leaf.insert(at, entry);
                    model.insert(at, entry);
                } else if !model.is_empty() {
                    let at = random / 4 % model.len();
                    leaf.remove(at);
                    model.remove(at);
                }
                let meta = node.meta();
                assert_eq!((0..meta.count()).map(|i| leaf.entry(meta, i)).collect::<Vec<_>>(), model);
                let from = random % (model.len() + 1);
                let next = model[from..].iter().position(|e| e.kind == LAYER).map_or(model.len(), |i| from + i);
                assert_eq!(leaf.layer_from(from, model.len()), next);
                let before = model[..from].iter().rposition(|e| e.kind == LAYER).map_or(0, |i| i + 1);
                assert_eq!(leaf.layer_before(from), before);
            }
        }
    }
    #[test]
    fn a_leaf_is_cut_between_slices_nearest_to_where_it_is_wanted() {
        let arena = Arena::new();
        let leaf = Leaf(arena.allocate(LARGE).publish());
        for (at, slice) in [1, 1, 2, 3, 3, 3, 3, 4].into_iter().enumerate() {
            leaf.insert(at, Entry { slice, kind: 8, value: 0 });
        }
        for (wanted, places, cut) in [
            (3, 1..=7, Some(3)),
            (4, 1..=7, Some(3)),
            (5, 1..=7, Some(3)),
            (6, 1..=7, Some(7)),
            (1, 1..=7, Some(2)),
            (4, 4..=6, None),
            (0, 4..=7, Some(7)),
        ] {
            assert_eq!(leaf.cut_near(wanted, places.clone()), cut, "near {wanted} in {places:?}");
        }
    }
}
