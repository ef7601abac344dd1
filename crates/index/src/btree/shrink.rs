//! Deletes that change the structure: leaves that become empty, layers that end, sparse leaves that merge.
//!
//! A leaf never stays empty (L4): the step that removes its last slot also unlinks it. If the leaf was the root of a
//! layer, the same step removes the layer's slot in the leaf above, and so on upward while those leaves become empty.
//! All nodes concerned are locked at the versions of the search, so the whole is one atomic step for readers that
//! couple versions.

use super::BTree;
use super::inner::Inner;
use super::leaf::{LEAF_SLOTS, Leaf};
use super::protocol::{Point, Protocol, Rule};
use super::spot::{Above, Cell, Parent, Prepare, Spot};
use crate::Ref;
use crate::common::node::Node;
use crate::common::version::{Locked, Restart};
use std::sync::atomic::Ordering;

/// Two leaves merge if together they fill at most this many slots.
const MERGE_LIMIT: usize = LEAF_SLOTS * 3 / 4;

/// Two neighbouring leaves and what leads to them, all locked: `right` is about to be merged into `left`.
struct Pair<'a> {
    parent: Parent<'a>,
    /// The separator between the two.
    separator: usize,
    left: Leaf<'a>,
    right: Leaf<'a>,
    parent_lock: Locked<'a>,
    left_lock: Locked<'a>,
    right_lock: Locked<'a>,
    /// Set if the parent is a root that will have only one child left: that child becomes the root.
    collapse: Option<(Locked<'a>, Cell<'a>)>,
}

/// Nodes that were unlinked, and unlocked as obsolete. They are retired once no lock is held any more, because retiring
/// may run work that others have deferred.
#[must_use]
pub(super) struct Unlinked<'a>([Option<Node<'a>>; 2]);

impl Unlinked<'_> {
    const NOTHING: Self = Unlinked([None; 2]);
}

impl<P: Protocol> BTree<P> {
    pub(super) fn retire(&self, unlinked: Unlinked<'_>) {
        unlinked.0.into_iter().flatten().for_each(|node| self.arena.retire(node));
    }

    /// Removes the slot of `key`, which held `old` and was alone in its leaf.
    pub(super) fn remove_last<'a>(&'a self, above: &impl Above<'a>, key: &[u8], old: Ref) -> Result<(), Restart> {
        let mut spots = Vec::new();
        let last = self.try_spot(above.origin()?, key, Prepare::ForMerge, |spot| spots.push(spot))?;
        if last.kind.is_none() || last.value != old.0 {
            return Err(Restart);
        }
        // Bottom up: roots that lose their only slot are removed with their layer.
        let mut gone = Vec::new();
        while spots.len() > 1
            && let Some(spot) = spots.pop_if(|spot| spot.is_single_root())
        {
            gone.push((spot.leaf.0, spot.leaf.0.version().lock(spot.version)?));
        }
        let unlinked = self.remove_slot(spots.last().expect("the first layer stays when its last key leaves"))?;
        let unlock = |(node, lock): (_, Locked<'_>)| {
            lock.obsolete();
            node
        };
        let nodes: Vec<_> = gone.into_iter().map(unlock).collect();
        self.retire(unlinked);
        for node in nodes {
            self.arena.retire(node);
            P::reached(Point::LayerGone);
        }
        Ok(())
    }

    /// Removes the slot at `spot`, and its leaf too if that becomes empty and is not the root of layer 0.
    fn remove_slot<'a>(&'a self, spot: &Spot<'a>) -> Result<Unlinked<'a>, Restart> {
        let count = spot.leaf.count(spot.leaf.0.meta());
        let Some(parent) = spot.parent.filter(|_| count == 1) else {
            let lock = spot.leaf.0.version().lock(spot.version)?;
            spot.leaf.remove(spot.position);
            lock.done();
            return Ok(Unlinked::NOTHING);
        };
        if !P::heeds(Rule::UnlinkAtomic) {
            return self.unlink_in_steps(spot);
        }
        let separator = parent.index.saturating_sub(1);
        let pair = self.lock_pair(spot, parent, separator, LEAF_SLOTS + 1)?;
        spot.leaf.remove(spot.position);
        Ok(self.merge_pair(pair))
    }

    /// Planted bug (only for twins): the leaf is given up before the parent stops leading to it, so inserts into it are
    /// lost.
    #[cold]
    fn unlink_in_steps<'a>(&'a self, spot: &Spot<'a>) -> Result<Unlinked<'a>, Restart> {
        let parent = spot.parent.expect("only leaves with a parent are unlinked");
        let lock = spot.leaf.0.version().lock(spot.version)?;
        spot.leaf.remove(spot.position);
        lock.done();
        P::reached(Point::HalfDone);
        // Ignores the leaf's new version and its present content.
        let Ok(fresh) = spot.leaf.0.version().read() else { return Ok(Unlinked::NOTHING) };
        let emptied = Spot { version: fresh, ..*spot };
        let Ok(pair) = self.lock_pair(&emptied, parent, parent.index.saturating_sub(1), usize::MAX) else { return Ok(Unlinked::NOTHING) };
        let meta = spot.leaf.0.meta();
        spot.leaf.0.set_meta(meta.with_count(0));
        Ok(self.merge_pair(pair))
    }

    /// Called after a delete left few slots in the leaf of `key`: merges the leaf with a sibling if both fit into one.
    /// Best effort.
    #[cold]
    pub(super) fn merge_around<'a>(&'a self, above: &impl Above<'a>, key: &[u8]) {
        for _ in 0..4 {
            if self.try_merge(above, key).is_ok() {
                break;
            }
        }
    }

    fn try_merge<'a>(&'a self, above: &impl Above<'a>, key: &[u8]) -> Result<(), Restart> {
        let spot = self.try_spot(above.origin()?, key, Prepare::ForMerge, |_| ())?;
        let Some(parent) = spot.parent else { return Ok(()) };
        let count = spot.leaf.count(spot.leaf.0.meta());
        let separators = parent.inner.count(parent.inner.0.meta());
        let sides = [(parent.index < separators, 0), (parent.index > 0, 1)];
        for (_, back) in sides.into_iter().filter(|(exists, _)| *exists) {
            let (other, _) = self.sibling(parent, parent.index + 1 - 2 * back)?;
            if Leaf(other).count(other.meta()) + count <= MERGE_LIMIT {
                let pair = self.lock_pair(&spot, parent, parent.index - back, LEAF_SLOTS)?;
                let unlinked = self.merge_pair(pair);
                self.retire(unlinked);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Locks the leaves on both sides of `separator`, one of which is the spot's, their parent, and the cell if the
    /// parent is going to collapse. Fails if the two leaves fill more than `limit` slots.
    fn lock_pair<'a>(&'a self, spot: &Spot<'a>, parent: Parent<'a>, separator: usize, limit: usize) -> Result<Pair<'a>, Restart> {
        let spot_is_left = parent.index == separator;
        let (other, version) = self.sibling(parent, if spot_is_left { separator + 1 } else { separator })?;
        let single = parent.inner.count(parent.inner.0.meta()) == 1;
        if single && parent.inner.0 != spot.root {
            return Err(Restart);
        }
        let collapse = if single { Some((spot.cell.guard.lock(spot.cell.version)?, spot.cell)) } else { None };
        let parent_lock = parent.inner.0.version().lock(parent.version)?;
        let spot_lock = spot.leaf.0.version().lock(spot.version)?;
        let other_lock = other.version().lock(version)?;
        let other = Leaf(other);
        if other.count(other.0.meta()) + spot.leaf.count(spot.leaf.0.meta()) > limit {
            return Err(Restart);
        }
        let (left, right) = if spot_is_left { (spot.leaf, other) } else { (other, spot.leaf) };
        let (left_lock, right_lock) = if spot_is_left { (spot_lock, other_lock) } else { (other_lock, spot_lock) };
        Ok(Pair { parent, separator, left, right, parent_lock, left_lock, right_lock, collapse })
    }

    /// Moves all slots of the right leaf to the left one and unlinks the right one.
    fn merge_pair<'a>(&'a self, pair: Pair<'a>) -> Unlinked<'a> {
        let Pair { parent, separator, left, right, parent_lock, left_lock, right_lock, collapse } = pair;
        left.take(left.count(left.0.meta()), right, 0, right.count(right.0.meta()));
        left.set_next(right.next());
        self.set_previous_of(right.next(), left.0.address());
        parent.inner.remove(separator);
        P::reached(Point::LeafMerge);
        finish_merge::<P>((parent.inner, parent_lock), (left.0, left_lock), (right.0, right_lock), collapse)
    }
}

/// Unlocks after `right` was merged into `left`. If the parent has no separator left, `left` takes its place.
pub(super) fn finish_merge<'a, P: Protocol>(
    (parent, parent_lock): (Inner<'a>, Locked<'a>),
    (left, left_lock): (Node<'a>, Locked<'a>),
    (right, right_lock): (Node<'a>, Locked<'a>),
    collapse: Option<(Locked<'a>, Cell<'a>)>,
) -> Unlinked<'a> {
    let collapsed = collapse.is_some().then_some(parent.0);
    if let Some((guard, cell)) = collapse {
        left.set_meta(left.meta().with_skip(parent.0.meta().skip()));
        cell.word.store(left.address(), Ordering::Release);
        parent_lock.obsolete();
        guard.done();
        P::reached(Point::RootCollapse);
    } else {
        parent_lock.done();
    }
    left_lock.done();
    right_lock.obsolete();
    Unlinked([Some(right), collapsed])
}

impl Spot<'_> {
    /// Whether the leaf is its layer's root and this slot its only one.
    fn is_single_root(&self) -> bool {
        self.parent.is_none() && self.leaf.count(self.leaf.0.meta()) == 1
    }
}
