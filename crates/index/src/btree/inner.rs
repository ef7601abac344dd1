//! Inner nodes: separators and children of one layer.
//!
//! ```text
//! word 0 version | 1 meta | 2..63 separators | 64..126 addresses of children
//! ```
//!
//! # Invariants
//!
//! * I1. Separators ascend strictly. All slices under child i are below separator i; those under child i+1 are not.
//! * I2. A node with n separators has n+1 children, all of one level less. n is at least 1, and [`MIN_SEPARATORS`] after the
//!   next delete has passed, except in the root.

use crate::common::node::{Meta, Node};
use crate::common::search;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const SEPARATORS: usize = 2;
const CHILDREN: usize = 64;
/// Separators of a full node.
pub(super) const MAX_SEPARATORS: usize = CHILDREN - SEPARATORS;
/// Below this a delete that passes merges the node with a sibling or evens them out.
pub(super) const MIN_SEPARATORS: usize = 12;

/// A node seen as an inner node. Always of the largest class.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Inner<'a>(pub(super) Node<'a>);

impl<'a> Inner<'a> {
    /// Separators in use; never more than fit, whatever the words hold.
    #[inline(always)]
    pub(super) fn count(self, meta: Meta) -> usize {
        meta.count().min(MAX_SEPARATORS)
    }

    #[inline(always)]
    pub(super) fn separator(self, i: usize) -> u64 {
        debug_assert!(i < MAX_SEPARATORS);
        // SAFETY: inner nodes have 128 words.
        unsafe { self.0.word(SEPARATORS + i) }.load(Relaxed)
    }

    /// The address of child `i`, to be followed once the version is validated (N2).
    #[inline(always)]
    pub(super) fn child(self, i: usize) -> u64 {
        debug_assert!(i <= MAX_SEPARATORS);
        // SAFETY: inner nodes have 128 words. Acquire pairs with the store in `set_child`: the child's words are initialised.
        unsafe { self.0.word(CHILDREN + i) }.load(Acquire)
    }

    /// Which child leads to `slice`.
    #[inline(always)]
    pub(super) fn find(self, meta: Meta, slice: u64) -> usize {
        // SAFETY: inner nodes have 128 words and are aligned to their size; the separators end with word 63.
        unsafe { search::Block { words: self.0.word(0), first: SEPARATORS, count: self.count(meta) }.upper_bound(slice) }
    }

    // ---- for the holder of the lock or of a fresh node ----

    pub(super) fn set_separator(self, i: usize, slice: u64) {
        debug_assert!(i < MAX_SEPARATORS);
        // SAFETY: inner nodes have 128 words.
        unsafe { self.0.word(SEPARATORS + i) }.store(slice, Relaxed);
    }

    pub(super) fn set_child(self, i: usize, address: u64) {
        debug_assert!(i <= MAX_SEPARATORS);
        // SAFETY: inner nodes have 128 words.
        unsafe { self.0.word(CHILDREN + i) }.store(address, Release);
    }

    /// Inserts a separator and the child to its right.
    pub(super) fn insert(self, at: usize, separator: u64, right: u64) {
        let meta = self.0.meta();
        let count = meta.count();
        debug_assert!(count < MAX_SEPARATORS && at <= count);
        for i in (at..count).rev() {
            self.set_separator(i + 1, self.separator(i));
            self.set_child(i + 2, self.child(i + 1));
        }
        self.set_separator(at, separator);
        self.set_child(at + 1, right);
        self.0.set_meta(meta.with_count(count + 1));
    }

    /// Removes separator `at` and the child to its right.
    pub(super) fn remove(self, at: usize) {
        let meta = self.0.meta();
        let count = meta.count();
        debug_assert!(at < count);
        for i in at + 1..count {
            self.set_separator(i - 1, self.separator(i));
            self.set_child(i, self.child(i + 1));
        }
        self.0.set_meta(meta.with_count(count - 1));
    }

    /// Replaces everything.
    pub(super) fn fill(self, separators: &[u64], children: &[u64]) {
        debug_assert_eq!(separators.len() + 1, children.len());
        for (i, separator) in separators.iter().enumerate() {
            self.set_separator(i, *separator);
        }
        for (i, child) in children.iter().enumerate() {
            self.set_child(i, *child);
        }
        self.0.set_meta(self.0.meta().with_count(separators.len()));
    }

    /// Appends what the node holds.
    pub(super) fn take(self, separators: &mut Vec<u64>, children: &mut Vec<u64>) {
        let count = self.count(self.0.meta());
        separators.extend((0..count).map(|i| self.separator(i)));
        children.extend((0..=count).map(|i| self.child(i)));
    }
}
