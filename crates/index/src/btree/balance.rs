//! Inner nodes on the way of a structure change: full ones give entries to a sibling or are split, sparse ones take
//! entries from a sibling or merge with it.
//!
//! A search that is going to change a leaf's parent does this to each inner node that it meets (`spot`), so that the
//! change at its end never has to change nodes farther up; it then starts again. All nodes concerned are locked at the
//! versions of the search.
//!
//! Giving comes before splitting, since half-full nodes make searches wait: in a tree of five million keys the lowest
//! inner level is twice as large as a second-level cache, and whether such a tree has four levels or five
//! depends on how full the levels are.

use super::BTree;
use super::inner::{Bounds, Inner, MAX_SEPARATORS};
use super::protocol::{Point, Protocol, Rule};
use super::shrink::finish_merge;
use super::spot::{Cell, Parent};
use crate::common::node::{LARGE, Node};
use crate::common::version::{Locked, Restart};

/// Two inner nodes merge if together they have at most this many separators, including the one between them.
const MERGE_LIMIT: usize = MAX_SEPARATORS * 3 / 4;
/// A sibling with at most this many separators takes some of a full node's, which then is not split.
const ROOMY: usize = MAX_SEPARATORS - 10;

/// Two neighbouring inner nodes and the separator between them.
struct Siblings<'a> {
    parent: Parent<'a>,
    separator: usize,
    left: Inner<'a>,
    right: Inner<'a>,
    versions: [u64; 2],
}

/// The locks of siblings: the parent's, the left one's and the right one's.
type Locks<'a> = [Locked<'a>; 3];

impl<'a> Siblings<'a> {
    /// Pairs an inner node, which is child `parent.index`, with the sibling that is child `index`.
    fn new(parent: Parent<'a>, (inner, version): (Inner<'a>, u64), index: usize, (other, other_version): (Node<'a>, u64)) -> Self {
        let other = Inner(other);
        if index < parent.index {
            Siblings { parent, separator: index, left: other, right: inner, versions: [other_version, version] }
        } else {
            Siblings { parent, separator: parent.index, left: inner, right: other, versions: [version, other_version] }
        }
    }

    fn lock(&self) -> Result<Locks<'a>, Restart> {
        let parent = self.parent.inner.0.version().lock(self.parent.version)?;
        let left = self.left.0.version().lock(self.versions[0])?;
        let right = self.right.0.version().lock(self.versions[1])?;
        Ok([parent, left, right])
    }

    /// All separators and children of both, with the separator between them. For the holder of the locks.
    fn take(&self) -> (Vec<u64>, Vec<u64>) {
        let (mut separators, mut children) = (Vec::new(), Vec::new());
        self.left.take(&mut separators, &mut children);
        separators.push(self.parent.inner.separator(self.separator));
        self.right.take(&mut separators, &mut children);
        (separators, children)
    }

    /// The bounds of both together. For the holder of the locks.
    fn bounds(&self) -> Bounds {
        Bounds { low: self.left.bounds().low, high: self.right.bounds().high }
    }

    /// Gives each of the two half of all entries.
    fn even_out(&self, locks: Locks<'a>) {
        let (separators, children) = self.take();
        let middle = separators.len() / 2;
        let (left, right) = self.bounds().cut(separators[middle]);
        self.left.set_bounds(left);
        self.right.set_bounds(right);
        self.left.fill(&separators[..middle], &children[..=middle]);
        self.right.fill(&separators[middle + 1..], &children[middle + 1..]);
        self.parent.inner.set_separator(self.separator, separators[middle]);
        for lock in locks {
            lock.done();
        }
    }
}

impl<P: Protocol> BTree<P> {
    /// Makes room in a full inner node. Its parent, if it has one, is not full.
    pub(super) fn relieve_inner<'a>(
        &'a self,
        cell: Cell<'a>,
        parent: Option<Parent<'a>>,
        inner: Inner<'a>,
        version: u64,
    ) -> Result<(), Restart> {
        if let Some(parent) = parent {
            let count = parent.inner.count(parent.inner.0.meta());
            let beside = [parent.index.checked_sub(1), Some(parent.index + 1).filter(|next| *next <= count)];
            for index in beside.into_iter().flatten() {
                let other = self.sibling(parent, index)?;
                if Inner(other.0).count(other.0.meta()) <= ROOMY {
                    let siblings = Siblings::new(parent, (inner, version), index, other);
                    let locks = siblings.lock()?;
                    let bounds = siblings.bounds();
                    siblings.even_out(locks);
                    P::reached(Point::InnerRedistribute);
                    self.inner_changed(bounds, 0);
                    return Ok(());
                }
            }
        }
        self.split_inner(cell, parent, inner, version)
    }

    fn split_inner<'a>(&'a self, cell: Cell<'a>, parent: Option<Parent<'a>>, inner: Inner<'a>, version: u64) -> Result<(), Restart> {
        let fresh = self.arena.allocate(LARGE);
        let above = self.lock_above(cell, parent, inner.0)?;
        let lock = inner.0.version().lock(version)?;
        let (mut separators, mut children) = (Vec::new(), Vec::new());
        inner.take(&mut separators, &mut children);
        let (middle, level, bounds) = (separators.len() / 2, inner.0.meta().level(), inner.bounds());
        let (low, high) = bounds.cut(separators[middle]);
        fresh.node().set_meta(fresh.node().meta().with_level(level));
        Inner(fresh.node()).fill(&separators[middle + 1..], &children[middle + 1..]);
        Inner(fresh.node()).set_bounds(high);
        let right = fresh.publish();
        inner.fill(&separators[..middle], &children[..=middle]);
        // A planted bug (only for twins) leaves the bounds as they were.
        if P::heeds(Rule::BoundsHold) {
            inner.set_bounds(low);
        }
        Self::lead_to(above, inner.0, separators[middle], right);
        lock.done();
        P::reached(Point::InnerSplit);
        if !P::heeds(Rule::BoundsHold) {
            P::reached(Point::HalfDone);
        }
        self.inner_changed(bounds, isize::from(level == 1));
        Ok(())
    }

    /// Merges an inner node that has few children with a sibling, or evens them out.
    pub(super) fn mend_inner<'a>(
        &'a self,
        cell: Cell<'a>,
        root: Node<'a>,
        parent: Parent<'a>,
        inner: Inner<'a>,
        version: u64,
    ) -> Result<(), Restart> {
        let index = if parent.index > 0 { parent.index - 1 } else { 1 };
        let siblings = Siblings::new(parent, (inner, version), index, self.sibling(parent, index)?);
        let total = siblings.left.count(siblings.left.0.meta()) + siblings.right.count(siblings.right.0.meta()) + 1;
        let merge = total <= MERGE_LIMIT;
        let single = parent.inner.count(parent.inner.0.meta()) == 1;
        if single && merge && parent.inner.0 != root {
            return Err(Restart);
        }
        let collapse = if single && merge { Some((cell.guard.lock(cell.version)?, cell)) } else { None };
        let locks = siblings.lock()?;
        let (bounds, level) = (siblings.bounds(), inner.0.meta().level());
        if !merge {
            siblings.even_out(locks);
            P::reached(Point::InnerRedistribute);
            self.inner_changed(bounds, 0);
            return Ok(());
        }
        let (separators, children) = siblings.take();
        siblings.left.fill(&separators, &children);
        siblings.left.set_bounds(bounds);
        parent.inner.remove(siblings.separator);
        let [parent_lock, left_lock, right_lock] = locks;
        let (left, right) = ((siblings.left.0, left_lock), (siblings.right.0, right_lock));
        self.retire(finish_merge::<P>((parent.inner, parent_lock), left, right, collapse));
        P::reached(Point::InnerMerge);
        self.inner_changed(bounds, -isize::from(level == 1));
        Ok(())
    }
}
