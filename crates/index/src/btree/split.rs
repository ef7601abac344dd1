//! Growth: handling a slot that must go into a full leaf.
//!
//! The cases are tried in this order. A small root leaf is replaced by one of the next class. Ascending or descending
//! keys get a new leaf after or before the full one, which stays full. A sibling with room takes some slots. Otherwise
//! the leaf is split in the middle. Each of these inserts the new slot in the same step.
//!
//! The full leaf is claimed first: the work that follows takes longer than an update, and otherwise threads that update
//! the leaf in a loop would come before it again and again. Everything is prepared in fresh memory. Then the nodes
//! concerned are locked, the others at the versions at which they were read. After that only stores follow. A failure
//! before that point leaves no trace.

use super::BTree;
use super::inner::{Inner, MAX_SEPARATORS};
use super::leaf::{Entry, LEAF_SLOTS, Leaf};
use super::protocol::{Point, Protocol, Rule};
use super::read::Found;
use super::spot::{Cell, Parent, Prepare, Spot};
use crate::common::arena::Fresh;
use crate::common::node::{LARGE, Node};
use crate::common::version::{Claimed, Locked, Restart};
use std::sync::atomic::{AtomicU64, Ordering};

/// A sibling with at most this many slots takes some slots of a full leaf, which then is not split.
const ROOMY: usize = LEAF_SLOTS - 10;

/// What leads to a node; locked, and with room for one more child.
pub(super) enum Above<'a> {
    /// The cell: the node is a layer's root and gets a parent.
    Cell { lock: Locked<'a>, word: &'a AtomicU64, root: Fresh<'a> },
    /// An inner node; the child has this index in it.
    Inner { lock: Locked<'a>, inner: Inner<'a>, index: usize },
}

/// A slot to be inserted, and its position in the full leaf.
#[derive(Clone, Copy)]
pub(super) struct New {
    pub(super) entry: Entry,
    pub(super) at: usize,
}

impl New {
    /// Whether the slot goes to the right of the cut of `leaf`. Where both sides are possible it goes to the left,
    /// unless nothing is cut off.
    fn goes_right(self, leaf: Leaf<'_>, cut: usize) -> bool {
        self.at > cut || self.at == cut && (cut == leaf.count(leaf.0.meta()) || leaf.slice(cut) == self.entry.slice)
    }
}

impl<P: Protocol> BTree<P> {
    /// Inserts `entry` of `key`, whose search led to a full leaf.
    pub(super) fn insert_into_full<'a>(&'a self, origin: Cell<'a>, key: &[u8], found: &Found<'_>, entry: Entry) -> Result<(), Restart> {
        let spot = self.try_spot(origin, key, Prepare::ForSplit, |_| ())?;
        let leaf = spot.leaf;
        // The same leaf in the same state: what the search has proved about the key's prefix still holds.
        if leaf != found.leaf || spot.version != found.version {
            return Err(Restart);
        }
        let claim = leaf.0.version().claim_wanted(spot.version)?;
        if leaf.0.meta().class() < LARGE {
            return self.grow(&spot, claim, entry);
        }
        let new = New { entry, at: spot.position };
        if new.at == LEAF_SLOTS && leaf.slice(LEAF_SLOTS - 1) != entry.slice {
            return self.split_leaf(&spot, claim, LEAF_SLOTS, new, Point::EdgeSplit);
        }
        if new.at == 0 && leaf.slice(0) != entry.slice {
            return self.split_leaf(&spot, claim, 0, new, Point::EdgeSplit);
        }
        let Some(claim) = self.give_to_sibling(&spot, claim, new)? else { return Ok(()) };
        let cut = leaf.cut_near(LEAF_SLOTS / 2, 1..=LEAF_SLOTS - 1).expect("more slots than one slice can have (L2), so a cut exists");
        self.split_leaf(&spot, claim, cut, new, Point::LeafSplit)
    }

    /// Replaces a small root leaf by one of the next class.
    fn grow(&self, spot: &Spot<'_>, claim: Claimed<'_>, entry: Entry) -> Result<(), Restart> {
        let old = spot.leaf;
        let meta = old.0.meta();
        let fresh = self.arena.allocate(meta.class() + 1);
        let leaf = Leaf(fresh.node());
        leaf.take(0, old, 0, old.count(meta));
        leaf.insert_among_moved(spot.position, entry);
        fresh.node().set_meta(fresh.node().meta().with_skip(meta.skip()));
        let guard = spot.cell.guard.lock(spot.cell.version)?;
        let lock = claim.lock();
        spot.cell.word.store(fresh.publish().address(), Ordering::Release);
        lock.obsolete();
        guard.done();
        self.arena.retire(old.0);
        P::reached(Point::Grow);
        Ok(())
    }

    /// Moves the slots from `cut` on into a new leaf to the right, and inserts `new` on the side where it belongs.
    pub(super) fn split_leaf(&self, spot: &Spot<'_>, claim: Claimed<'_>, cut: usize, new: New, point: Point) -> Result<(), Restart> {
        let leaf = spot.leaf;
        let fresh = self.arena.allocate(LARGE);
        let right = Leaf(fresh.node());
        right.take(0, leaf, cut, leaf.count(leaf.0.meta()) - cut);
        let goes_right = new.goes_right(leaf, cut);
        if goes_right {
            right.insert_among_moved(new.at - cut, new.entry);
        }
        right.set_next(leaf.next());
        right.set_previous(leaf.0.address());
        let above = self.lock_above(spot.cell, spot.parent, leaf.0)?;
        let lock = claim.lock();
        let keep_low = || {
            leaf.truncate(cut);
            if !goes_right {
                leaf.insert(new.at, new.entry);
            }
        };
        if !P::heeds(Rule::LinkFirst) {
            return Self::split_leaf_unlinked(leaf, lock, above, keep_low, fresh);
        }
        if !P::heeds(Rule::RootAtomic) && matches!(above, Above::Cell { .. }) {
            return Self::split_root_in_steps(leaf, lock, above, keep_low, fresh);
        }
        let node = fresh.publish();
        self.set_previous_of(right.next(), node.address());
        keep_low();
        leaf.set_next(node.address());
        P::reached(point);
        // At an edge, keys that will come between the two sides go to the side that has room.
        let at_end = point == Point::EdgeSplit && cut > 0;
        let separator = if at_end { leaf.slice(cut - 1) + 1 } else { right.slice(0) };
        Self::lead_to(above, leaf.0, separator, node);
        lock.done();
        Ok(())
    }

    /// Planted bug (only for twins): the parent leads to the sibling before that is filled and linked.
    #[cold]
    fn split_leaf_unlinked(
        leaf: Leaf<'_>,
        lock: Locked<'_>,
        above: Above<'_>,
        keep_low: impl FnOnce(),
        fresh: Fresh<'_>,
    ) -> Result<(), Restart> {
        let right = Leaf(fresh.node());
        let whole = right.0.meta();
        right.0.set_meta(whole.with_count(0));
        let node = fresh.publish();
        Self::lead_to(above, leaf.0, right.slice(0), node);
        P::reached(Point::HalfDone);
        right.0.set_meta(whole);
        keep_low();
        leaf.set_next(node.address());
        lock.done();
        Ok(())
    }

    /// Planted bug (only for twins): the old root gives up its slots before the new root is in place, and nothing is
    /// locked in between.
    #[cold]
    fn split_root_in_steps(
        leaf: Leaf<'_>,
        lock: Locked<'_>,
        above: Above<'_>,
        keep_low: impl FnOnce(),
        fresh: Fresh<'_>,
    ) -> Result<(), Restart> {
        let Above::Cell { lock: guard, word, root } = above else { return Err(Restart) };
        let separator = Leaf(fresh.node()).slice(0);
        let node = fresh.publish();
        keep_low();
        leaf.set_next(node.address());
        lock.done();
        drop(guard);
        P::reached(Point::HalfDone);
        Inner(root.node()).fill(&[separator], &[leaf.0.address(), node.address()]);
        word.store(root.publish().address(), Ordering::Release);
        Ok(())
    }

    /// Moves slots of a full leaf to a sibling under the same parent, if one has room, until both have equally many.
    /// Otherwise returns the claim.
    fn give_to_sibling<'a>(&self, spot: &Spot<'_>, claim: Claimed<'a>, new: New) -> Result<Option<Claimed<'a>>, Restart> {
        let Some(parent) = spot.parent else { return Ok(Some(claim)) };
        let count = parent.inner.count(parent.inner.0.meta());
        let sides = [(parent.index < count, true), (parent.index > 0, false)];
        for (_, right) in sides.into_iter().filter(|(exists, _)| *exists) {
            let index = if right { parent.index + 1 } else { parent.index - 1 };
            let Ok((node, version)) = self.sibling(parent, index) else { continue };
            let slots = Leaf(node).count(node.meta());
            if slots > ROOMY {
                continue;
            }
            // Each side must have room for the new slot.
            let (half, most) = ((LEAF_SLOTS - slots) / 2, LEAF_SLOTS - slots - 1);
            let cut = if right {
                spot.leaf.cut_near(LEAF_SLOTS - half, LEAF_SLOTS - most..=LEAF_SLOTS - 1)
            } else {
                spot.leaf.cut_near(half, 1..=most)
            };
            if let Some(cut) = cut {
                self.even_out((spot.leaf, claim), parent, (Leaf(node), version), right, (cut, new))?;
                return Ok(None);
            }
        }
        Ok(Some(claim))
    }

    /// Returns child `index` of `parent` and its version; fails instead of waiting.
    pub(super) fn sibling<'a>(&'a self, parent: Parent<'a>, index: usize) -> Result<(Node<'a>, u64), Restart> {
        let address = parent.inner.child(index);
        parent.inner.0.version().check(parent.version)?;
        // SAFETY: the parent's version says that the address is a live child's (N2); the caller's pin keeps it from
        // being recycled.
        let node = unsafe { Node::from_address(address) };
        let version = node.version().try_read()?;
        parent.inner.0.version().check(parent.version)?;
        Ok((node, version))
    }

    /// Moves the slots before (or from) `cut` to the sibling, which has room for them and for the new slot.
    fn even_out(
        &self,
        (leaf, claim): (Leaf<'_>, Claimed<'_>),
        parent: Parent<'_>,
        (other, version): (Leaf<'_>, u64),
        other_is_right: bool,
        (cut, new): (usize, New),
    ) -> Result<(), Restart> {
        let parent_lock = parent.inner.0.version().lock(parent.version)?;
        let other_lock = other.0.version().lock(version)?;
        let lock = claim.lock();
        let goes_right = new.goes_right(leaf, cut);
        let (left, right) = if other_is_right { (leaf, other) } else { (other, leaf) };
        // Where the slots of the left leaf will end, before the new one is inserted.
        let end = if other_is_right {
            right.take(0, leaf, cut, LEAF_SLOTS - cut);
            leaf.truncate(cut);
            cut
        } else {
            let before = left.count(left.0.meta());
            left.take(before, leaf, 0, cut);
            leaf.remove_first(cut);
            before + cut
        };
        if goes_right {
            right.insert_among_moved(new.at - cut, new.entry);
        } else {
            left.insert_among_moved(end - (cut - new.at), new.entry);
        }
        parent.inner.set_separator(parent.index - usize::from(!other_is_right), right.slice(0));
        other_lock.done();
        lock.done();
        parent_lock.done();
        P::reached(Point::Redistribute);
        Ok(())
    }

    /// Locks what leads to `child`: its parent, or the cell if `child` is a root. A new root is prepared beforehand.
    pub(super) fn lock_above<'a>(&'a self, cell: Cell<'a>, parent: Option<Parent<'a>>, child: Node<'a>) -> Result<Above<'a>, Restart> {
        if let Some(parent) = parent {
            let lock = parent.inner.0.version().lock(parent.version)?;
            debug_assert!(parent.inner.count(parent.inner.0.meta()) < MAX_SEPARATORS);
            return Ok(Above::Inner { lock, inner: parent.inner, index: parent.index });
        }
        let root = self.arena.allocate(LARGE);
        let old = child.meta();
        root.node().set_meta(root.node().meta().with_level(old.level() + 1).with_skip(old.skip()));
        Inner(root.node()).set_bounds(self.bounds_of_root(cell));
        Ok(Above::Cell { lock: cell.guard.lock(cell.version)?, word: cell.word, root })
    }

    /// Makes `right` reachable beside `left`, which is locked.
    pub(super) fn lead_to(above: Above<'_>, left: Node<'_>, separator: u64, right: Node<'_>) {
        match above {
            Above::Inner { lock, inner, index } => {
                inner.insert(index, separator, right.address());
                lock.done();
            }
            Above::Cell { lock, word, root } => {
                Inner(root.node()).fill(&[separator], &[left.address(), right.address()]);
                word.store(root.publish().address(), Ordering::Release);
                lock.done();
                P::reached(Point::RootSplit);
            }
        }
    }

    /// Sets the back link of the leaf at `address`, if there is one. The caller holds the lock of the leaf whose `next`
    /// it is (L3).
    pub(super) fn set_previous_of(&self, address: u64, previous: u64) {
        if address != 0 {
            // SAFETY: the address is the `next` of a leaf that the caller has locked, hence a live leaf.
            let next: Leaf<'_> = Leaf(unsafe { Node::from_address(address) });
            next.set_previous(previous);
        }
    }
}
