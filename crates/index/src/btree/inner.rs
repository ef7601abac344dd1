//! Inner nodes: separators and children of one layer.
//!
//! ```text
//! word 0 version | 1 meta | 2..31 separators | 32, 33 bounds | 34..63 separators | 64..94 addresses of children | 95, 96 unused | 97..126 addresses of children
//! ```
//!
//! Both halves of the separators are searched alike. Each consists of two other words and thirty separators; 63 words
//! after each separator stands the child to its right. So a search takes one comparison to choose the half and four to
//! count in it, and reads neither the number of separators nor the other half.
//!
//! # Invariants
//!
//! * I1. Separators ascend strictly. All slices under child i are below separator i; those under child i+1 are not.
//! * I2. A node with n separators has n+1 children, all of the next lower level. n is at least 1, and at least
//!   [`MIN_SEPARATORS`] after the next delete has passed, except in the root.
//! * I3. Every place after the last separator holds the largest number, and every place after the last child holds that
//!   child again. So a search finds the last child even where it counts too far.
//! * I4. From the root of layer 0, every slice within a node's bounds leads to the node. Nodes of other layers, and of
//!   trees without a radix table, have bounds that contain nothing. (When a node splits, the new part has its content and
//!   bounds before the part is reached from above. So a search that finds the part earlier finds what it should.)

use crate::common::node::{Meta, Node};
use crate::common::search::{HALF_WORDS, Half, is_wide};
use crate::common::shift;
use std::hint::select_unpredictable;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Words before the separators of a half: in the first half, version and meta.
const AHEAD: usize = 2;
/// Separators of a half.
const HALF: usize = HALF_WORDS - AHEAD;
const CHILDREN: usize = 2 * HALF_WORDS;
/// Separators of a full node.
pub(super) const MAX_SEPARATORS: usize = 2 * HALF;
/// A node with fewer separators is merged or evened out with a sibling by the next delete that passes.
pub(super) const MIN_SEPARATORS: usize = 12;

/// Where the bounds stand: between the halves, in the line that every search of the node reads.
const LOW: usize = HALF_WORDS;
const HIGH: usize = HALF_WORDS + 1;

/// The slices from `low` to `high`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Bounds {
    pub(super) const ALL: Bounds = Bounds { low: 0, high: u64::MAX };
    pub(super) const NOTHING: Bounds = Bounds { low: u64::MAX, high: 0 };

    #[inline(always)]
    pub(super) fn contain(self, slice: u64) -> bool {
        self.low <= slice && slice <= self.high
    }

    /// Cuts the bounds at a separator, which is the first slice of the right part. Nothing is cut into nothing.
    pub(super) fn cut(self, separator: u64) -> (Bounds, Bounds) {
        if self == Bounds::NOTHING {
            return (self, self);
        }
        (Bounds { high: separator - 1, ..self }, Bounds { low: separator, ..self })
    }
}

/// A node seen as an inner node.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Inner<'a>(pub(super) Node<'a>);

/// The word of separator `i`.
#[inline(always)]
fn separator_word(i: usize) -> usize {
    debug_assert!(i < MAX_SEPARATORS);
    i + if i < HALF { AHEAD } else { 2 * AHEAD }
}

/// The word of child `i`.
#[inline(always)]
fn child_word(i: usize) -> usize {
    debug_assert!(i <= MAX_SEPARATORS);
    CHILDREN + i + if i <= HALF { 0 } else { AHEAD }
}

impl<'a> Inner<'a> {
    /// Number of separators in use; never more than fit, whatever the words hold.
    #[inline(always)]
    pub(super) fn count(self, meta: Meta) -> usize {
        meta.count().min(MAX_SEPARATORS)
    }

    #[inline(always)]
    fn word(self, i: usize) -> &'a AtomicU64 {
        debug_assert!(i < 4 * HALF_WORDS);
        // SAFETY: inner nodes have 128 words.
        unsafe { self.0.word(i) }
    }

    #[inline(always)]
    pub(super) fn separator(self, i: usize) -> u64 {
        self.word(separator_word(i)).load(Relaxed)
    }

    /// The bounds (I4).
    #[inline(always)]
    pub(super) fn bounds(self) -> Bounds {
        Bounds { low: self.word(LOW).load(Relaxed), high: self.word(HIGH).load(Relaxed) }
    }

    /// The address of child `i`. May be followed only after the version is validated (N2).
    #[inline(always)]
    pub(super) fn child(self, i: usize) -> u64 {
        // The child's words are visible by this node's version, which was loaded with acquire before and is validated
        // before the address is followed.
        self.word(child_word(i)).load(Relaxed)
    }

    /// Returns the first word of the half that leads to `slice`, and how many of its words are not above `slice`,
    /// including those before the separators.
    #[inline(always)]
    fn count_in_half(self, wide: bool, slice: u64) -> (usize, usize) {
        let start = select_unpredictable(self.separator(HALF) <= slice, HALF_WORDS, 0);
        // SAFETY: inner nodes have 128 words and are aligned to their size, and the halves of separators begin at the
        // words 0 and 32.
        (start, unsafe { Half { words: self.word(start), ahead: AHEAD }.not_above(wide, slice) })
    }

    /// The address of the child that leads to `slice`. May be followed only after the version is validated (N2). `wide`
    /// is the result of [`search::is_wide`](crate::common::search::is_wide).
    #[inline(always)]
    pub(super) fn child_for(self, wide: bool, slice: u64) -> u64 {
        let (start, count) = self.count_in_half(wide, slice);
        self.word(CHILDREN - AHEAD + start + count).load(Relaxed)
    }

    /// The index of the child that leads to `slice`.
    #[inline(always)]
    pub(super) fn find(self, meta: Meta, slice: u64) -> usize {
        let (start, count) = self.count_in_half(is_wide(), slice);
        let before = if start == 0 { 0 } else { HALF };
        (before + count - AHEAD).min(self.count(meta))
    }

    // ---- for the holder of the lock or of a fresh node ----

    pub(super) fn set_separator(self, i: usize, slice: u64) {
        self.word(separator_word(i)).store(slice, Relaxed);
    }

    pub(super) fn set_bounds(self, bounds: Bounds) {
        self.word(LOW).store(bounds.low, Relaxed);
        self.word(HIGH).store(bounds.high, Relaxed);
    }

    fn set_child(self, i: usize, address: u64) {
        self.word(child_word(i)).store(address, Relaxed);
    }

    /// Inserts a separator and the child to its right.
    pub(super) fn insert(self, at: usize, separator: u64, right: u64) {
        let meta = self.0.meta();
        let count = meta.count();
        debug_assert!(count < MAX_SEPARATORS && at <= count);
        let (mut next, mut from) = ((separator, right), at);
        if at < HALF {
            // The last entry of the first half moves to the second one.
            let last = (self.separator(HALF - 1), self.child(HALF));
            // SAFETY: the words from these to the end of the half; the caller has the node locked.
            unsafe { shift::up(self.places(at), HALF - 1 - at) };
            self.set_separator(at, separator);
            self.set_child(at + 1, right);
            (next, from) = (last, HALF);
        }
        // SAFETY: as above, for the second half.
        unsafe { shift::up(self.places(from), MAX_SEPARATORS - 1 - from) };
        self.set_separator(from, next.0);
        self.set_child(from + 1, next.1);
        if at == count {
            self.repeat_child(count + 1);
        }
        self.0.set_meta(meta.with_count(count + 1));
    }

    /// Removes separator `at` and the child to its right.
    pub(super) fn remove(self, at: usize) {
        let meta = self.0.meta();
        let count = meta.count();
        debug_assert!(at < count);
        if at < HALF {
            // SAFETY: the words from these to the end of the half; the caller has the node locked.
            unsafe { shift::down(self.places(at), HALF - 1 - at) };
            self.set_separator(HALF - 1, self.separator(HALF));
            self.set_child(HALF, self.child(HALF + 1));
        }
        let from = at.max(HALF);
        // SAFETY: as above, for the second half.
        unsafe { shift::down(self.places(from), MAX_SEPARATORS - 1 - from) };
        self.set_separator(MAX_SEPARATORS - 1, u64::MAX);
        self.repeat_child(count - 1);
        self.0.set_meta(meta.with_count(count - 1));
    }

    /// Pointers to separator `i` and to the child to its right.
    fn places(self, i: usize) -> [*const AtomicU64; 2] {
        [self.word(separator_word(i)), self.word(child_word(i + 1))].map(std::ptr::from_ref)
    }

    /// Copies child `last` to all places after it (I3).
    fn repeat_child(self, last: usize) {
        let address = self.child(last);
        (last + 1..=MAX_SEPARATORS).for_each(|i| self.set_child(i, address));
    }

    /// Replaces everything but the bounds.
    pub(super) fn fill(self, separators: &[u64], children: &[u64]) {
        debug_assert_eq!(separators.len() + 1, children.len());
        let rest = std::iter::repeat(&u64::MAX);
        separators.iter().chain(rest).take(MAX_SEPARATORS).enumerate().for_each(|(i, separator)| self.set_separator(i, *separator));
        children.iter().enumerate().for_each(|(i, child)| self.set_child(i, *child));
        self.repeat_child(separators.len());
        self.0.set_meta(self.0.meta().with_count(separators.len()));
    }

    /// Appends the node's separators and children.
    pub(super) fn take(self, separators: &mut Vec<u64>, children: &mut Vec<u64>) {
        let count = self.count(self.0.meta());
        separators.extend((0..count).map(|i| self.separator(i)));
        children.extend((0..=count).map(|i| self.child(i)));
    }

    /// Whether I3 holds.
    pub(super) fn is_padded(self) -> bool {
        let count = self.count(self.0.meta());
        let separators = (count..MAX_SEPARATORS).all(|i| self.separator(i) == u64::MAX);
        separators && (count..=MAX_SEPARATORS).all(|i| self.child(i) == self.child(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::arena::Arena;
    use crate::common::node::LARGE;
    use crate::conformance::Rng;

    /// A node, with plain lists of what it should hold.
    struct Pair<'a> {
        inner: Inner<'a>,
        separators: Vec<u64>,
        children: Vec<u64>,
    }

    impl Pair<'_> {
        /// Compares everything, and searches at and around each separator.
        fn check(&self) {
            let (mut separators, mut children) = (Vec::new(), Vec::new());
            self.inner.take(&mut separators, &mut children);
            assert_eq!((&separators, &children), (&self.separators, &self.children));
            assert!(self.inner.is_padded());
            assert_eq!(self.inner.bounds(), Bounds { low: 7, high: 1 << 60 });
            let around = separators.iter().flat_map(|separator| [separator.wrapping_sub(1), *separator, separator.wrapping_add(1)]);
            for slice in around.chain([0, u64::MAX]) {
                let expected = separators.partition_point(|separator| *separator <= slice);
                assert_eq!(self.inner.find(self.inner.0.meta(), slice), expected);
                for wide in [false, is_wide()] {
                    assert_eq!(self.inner.child_for(wide, slice), children[expected], "{slice:x} among {separators:x?}");
                }
            }
        }

        fn insert(&mut self, separator: u64, child: u64) {
            let at = self.separators.partition_point(|other| *other < separator);
            self.inner.insert(at, separator, child);
            self.separators.insert(at, separator);
            self.children.insert(at + 1, child);
        }

        fn remove(&mut self, at: usize) {
            self.inner.remove(at);
            self.separators.remove(at);
            self.children.remove(at + 1);
        }
    }

    #[test]
    fn nodes_agree_with_lists() {
        let arena = Arena::new();
        for seed in 0..40 {
            let fresh = arena.allocate(LARGE);
            let mut pair = Pair { inner: Inner(fresh.node()), separators: vec![1 << 40], children: vec![1, 2] };
            pair.inner.fill(&pair.separators, &pair.children);
            pair.inner.set_bounds(Bounds { low: 7, high: 1 << 60 });
            let mut random = Rng::new(seed);
            for step in 0..400 {
                let count = pair.separators.len();
                // Full at times, nearly empty at times, with changes at either end and in the middle.
                let grow = random.below(100) < if step / 100 % 2 == 0 { 80 } else { 20 };
                if grow && count < MAX_SEPARATORS {
                    let separator = match random.below(8) {
                        0 => u64::MAX - random.below(3) as u64,
                        1 => pair.separators[count - 1].saturating_add(1),
                        2 => pair.separators[0].saturating_sub(1),
                        _ => (random.below(1 << 30) as u64) << random.below(34),
                    };
                    if !pair.separators.contains(&separator) {
                        pair.insert(separator, 1_000 + step);
                    }
                } else if !grow && count > 1 {
                    pair.remove(random.below(count));
                }
                pair.check();
            }
        }
    }
}
