//! Growth: what happens when a slot must go into a full leaf.
//!
//! In this order: a small root leaf is replaced by one of the next class; ascending or descending keys get a new leaf behind or before
//! the full one, which stays full; a sibling with room takes some slots; else the leaf is split in the middle. Each of these
//! inserts the new slot in the same step.
//!
//! The full leaf is claimed first: what follows takes longer than an update, and threads that update the leaf in a loop would else come
//! before it again and again. Everything is prepared in fresh memory; then the nodes concerned are locked, the others at the versions at
//! which they were read; then follow only stores. A failure before that leaves no trace.

use super::BTree;
use super::inner::{Inner, MAX_SEPARATORS};
use super::leaf::{Entries, Entry, LEAF_SLOTS, Leaf, capacity};
use super::protocol::{Point, Protocol, Rule};
use super::read::Found;
use super::spot::{Cell, Parent, Prepare, Spot};
use crate::common::arena::Fresh;
use crate::common::node::{LARGE, Node};
use crate::common::slice::rank_of;
use crate::common::version::{Claimed, Locked, Restart};
use std::sync::atomic::{AtomicU64, Ordering};

/// A sibling with at most this many slots takes some of a full leaf's instead of a split.
const ROOMY: usize = LEAF_SLOTS - 10;

/// What leads to a node, locked and with room for one more child.
pub(super) enum Above<'a> {
    /// The cell: the node is a layer's root and gets a parent.
    Cell { lock: Locked<'a>, word: &'a AtomicU64, root: Fresh<'a> },
    /// An inner node; the child has this index in it.
    Inner { lock: Locked<'a>, inner: Inner<'a>, index: usize },
}

impl<P: Protocol> BTree<P> {
    /// Inserts `entry` of `key`, for which a search found a full leaf.
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
        let mut entries = Entries::new();
        entries.take(leaf);
        let at = entries.as_slice().partition_point(|e| (e.slice, rank_of(e.kind)) < (entry.slice, rank_of(entry.kind)));
        entries.insert(at, entry);
        if at == LEAF_SLOTS && entries.may_cut(at) {
            return self.split_leaf(&spot, claim, &entries, at, Point::EdgeSplit);
        }
        if at == 0 && entries.may_cut(1) {
            return self.split_leaf(&spot, claim, &entries, 1, Point::EdgeSplit);
        }
        let Some(claim) = self.give_to_sibling(&spot, claim, &entries)? else { return Ok(()) };
        let cut = entries.cut_near(LEAF_SLOTS / 2);
        self.split_leaf(&spot, claim, &entries, cut, Point::LeafSplit)
    }

    /// Replaces a small root leaf by one of the next class.
    fn grow(&self, spot: &Spot<'_>, claim: Claimed<'_>, entry: Entry) -> Result<(), Restart> {
        let old = spot.leaf;
        let meta = old.0.meta();
        let fresh = self.arena.allocate(meta.class() + 1);
        let leaf = Leaf(fresh.node());
        let mut entries = [entry; capacity(LARGE)];
        let count = old.count(meta);
        for (i, slot) in entries[..count].iter_mut().enumerate() {
            *slot = old.entry(meta, i);
        }
        leaf.fill(&entries[..count]);
        leaf.insert(spot.position, entry);
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

    /// Puts `entries` from `cut` on into a new leaf to the right.
    pub(super) fn split_leaf(
        &self,
        spot: &Spot<'_>,
        claim: Claimed<'_>,
        entries: &Entries,
        cut: usize,
        point: Point,
    ) -> Result<(), Restart> {
        let (low, high) = entries.as_slice().split_at(cut);
        let leaf = spot.leaf;
        let fresh = self.arena.allocate(LARGE);
        let right = Leaf(fresh.node());
        right.fill(high);
        right.set_next(leaf.next());
        right.set_previous(leaf.0.address());
        let above = self.lock_above(spot.cell, spot.parent, leaf.0)?;
        let lock = claim.lock();
        if !P::heeds(Rule::LinkFirst) {
            return Self::split_leaf_unlinked(leaf, lock, above, (low, high), fresh);
        }
        if !P::heeds(Rule::RootAtomic) && matches!(above, Above::Cell { .. }) {
            return Self::split_root_in_steps(leaf, lock, above, (low, high), fresh);
        }
        let node = fresh.publish();
        self.set_previous_of(right.next(), node.address());
        leaf.fill(low);
        leaf.set_next(node.address());
        P::reached(point);
        // At an edge, what is to come between the two sides goes to the side that has room.
        let at_end = point == Point::EdgeSplit && high.len() == 1;
        let separator = if at_end { low[cut - 1].slice + 1 } else { high[0].slice };
        Self::lead_to(above, leaf.0, separator, node);
        lock.done();
        Ok(())
    }

    /// Planted bug (only for twins): the parent leads to the sibling before the sibling is filled and linked.
    #[cold]
    fn split_leaf_unlinked(
        leaf: Leaf<'_>,
        lock: Locked<'_>,
        above: Above<'_>,
        (low, high): (&[Entry], &[Entry]),
        fresh: Fresh<'_>,
    ) -> Result<(), Restart> {
        let right = Leaf(fresh.node());
        let kept = right.0.meta();
        right.0.set_meta(kept.with_count(0));
        let node = fresh.publish();
        Self::lead_to(above, leaf.0, high[0].slice, node);
        P::reached(Point::HalfDone);
        right.fill(high);
        leaf.fill(low);
        leaf.set_next(node.address());
        lock.done();
        Ok(())
    }

    /// Planted bug (only for twins): the old root lets go of its slots before the new root is in place, and nothing is locked in between.
    #[cold]
    fn split_root_in_steps(
        leaf: Leaf<'_>,
        lock: Locked<'_>,
        above: Above<'_>,
        (low, high): (&[Entry], &[Entry]),
        fresh: Fresh<'_>,
    ) -> Result<(), Restart> {
        let Above::Cell { lock: guard, word, root } = above else { return Err(Restart) };
        let node = fresh.publish();
        leaf.fill(low);
        leaf.set_next(node.address());
        lock.done();
        drop(guard);
        P::reached(Point::HalfDone);
        Inner(root.node()).fill(&[high[0].slice], &[leaf.0.address(), node.address()]);
        word.store(root.publish().address(), Ordering::Release);
        Ok(())
    }

    /// Evens out a full leaf with a sibling under the same parent, if that has room; else gives the claim back.
    fn give_to_sibling<'a>(&self, spot: &Spot<'_>, mut claim: Claimed<'a>, entries: &Entries) -> Result<Option<Claimed<'a>>, Restart> {
        let Some(parent) = spot.parent else { return Ok(Some(claim)) };
        let count = parent.inner.count(parent.inner.0.meta());
        let sides = [(parent.index < count, true), (parent.index > 0, false)];
        for (_, right) in sides.into_iter().filter(|(exists, _)| *exists) {
            let index = if right { parent.index + 1 } else { parent.index - 1 };
            let Ok((node, version)) = self.sibling(parent, index) else { continue };
            if Leaf(node).count(node.meta()) <= ROOMY {
                match self.even_out((spot, claim), parent, (Leaf(node), version), right, entries)? {
                    Some(kept) => claim = kept,
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(claim))
    }

    /// The child `index` of `parent` and its version; fails instead of waiting.
    pub(super) fn sibling<'a>(&'a self, parent: Parent<'a>, index: usize) -> Result<(Node<'a>, u64), Restart> {
        let address = parent.inner.child(index);
        parent.inner.0.version().check(parent.version)?;
        // SAFETY: the parent's version says that the address is a live child's (N2); the caller's pin keeps it from being recycled.
        let node = unsafe { Node::from_address(address) };
        let version = node.version().try_read()?;
        parent.inner.0.version().check(parent.version)?;
        Ok((node, version))
    }

    /// Distributes `entries` (the full leaf's and the new one) and those of `other` over both; gives the claim back if they cannot be cut so.
    fn even_out<'a>(
        &self,
        (spot, claim): (&Spot<'_>, Claimed<'a>),
        parent: Parent<'_>,
        (other, version): (Leaf<'_>, u64),
        other_is_right: bool,
        entries: &Entries,
    ) -> Result<Option<Claimed<'a>>, Restart> {
        let parent_lock = parent.inner.0.version().lock(parent.version)?;
        let other_lock = other.0.version().lock(version)?;
        let mut all = Entries::new();
        let (left, right) = if other_is_right { (spot.leaf, other) } else { (other, spot.leaf) };
        if other_is_right {
            all.extend(entries.as_slice());
            all.take(other);
        } else {
            all.take(other);
            all.extend(entries.as_slice());
        }
        let total = all.as_slice().len();
        let cut = all.cut_near(total / 2);
        if cut > LEAF_SLOTS || total - cut > LEAF_SLOTS {
            return Ok(Some(claim));
        }
        let lock = claim.lock();
        left.fill(&all.as_slice()[..cut]);
        right.fill(&all.as_slice()[cut..]);
        parent.inner.set_separator(parent.index - usize::from(!other_is_right), all.as_slice()[cut].slice);
        other_lock.done();
        lock.done();
        parent_lock.done();
        P::reached(Point::Redistribute);
        Ok(None)
    }

    /// Locks what leads to `child`: its parent, or the cell if `child` is a root. A new root is made ready beforehand.
    pub(super) fn lock_above<'a>(&'a self, cell: Cell<'a>, parent: Option<Parent<'a>>, child: Node<'a>) -> Result<Above<'a>, Restart> {
        if let Some(parent) = parent {
            let lock = parent.inner.0.version().lock(parent.version)?;
            debug_assert!(parent.inner.count(parent.inner.0.meta()) < MAX_SEPARATORS);
            return Ok(Above::Inner { lock, inner: parent.inner, index: parent.index });
        }
        let root = self.arena.allocate(LARGE);
        let old = child.meta();
        root.node().set_meta(root.node().meta().with_level(old.level() + 1).with_skip(old.skip()));
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

    /// Sets the back link of the leaf at `address`, if there is one. The caller holds the lock of the leaf that leads to it (L3).
    pub(super) fn set_previous_of(&self, address: u64, previous: u64) {
        if address != 0 {
            // SAFETY: the address is the `next` of a leaf that the caller has locked, hence a live leaf.
            let next: Leaf<'_> = Leaf(unsafe { Node::from_address(address) });
            next.set_previous(previous);
        }
    }
}
