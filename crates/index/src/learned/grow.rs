//! Growth: handling an insert into a leaf that has no gap near its place.
//!
//! * Inserts that ascend (or descend) one by one get full blocks after (before) the others, then full leaves, as in a
//!   B+-tree. Where they run into the middle of a leaf, it is cut there.
//! * Otherwise the leaf is *expanded*: rebuilt in place with more blocks and a new model.
//! * It is *split* in the middle if it is at its size limit, if the model fits badly, or if it was built only a few
//!   inserts ago. (ALEX, section 4.3, decides by expected cost; these are the cases in which a split is the cheaper
//!   choice, and they bound the cost of adversarial orders.)
//! * If no line fits, and lines would not fit its halves either, a B+-tree takes its place (`subtree`).
//!
//! Inner nodes grow in the same way, and are split on the way down, so that the change below never has to go farther
//! up.

use super::Learned;
use super::block::{Entry, WIDTH};
use super::build::fits;
use super::edit::Run;
use super::gapped::{Gapped, Place, max_blocks};
use super::read::Slot;
use super::subtree::{FILL, RUN_FILL};
use crate::btree::protocol::{Point, Protocol};
use crate::common::arena::Fresh;
use crate::common::node::{INNER_HEAD, LEAF_HEAD, Node};
use crate::common::version::{Locked, Restart};
use std::sync::atomic::Ordering;

/// An array with fewer slots is expanded, however badly its model fits.
const WORTH_SPLITTING: usize = 400;

/// An array with fewer slots becomes a subtree if a line fits only one of its halves: many small arrays would be slower
/// than the B+-tree.
const WORTH_HALVING: usize = 2048;

/// An inner node on the way to a leaf.
#[derive(Clone, Copy)]
pub(super) struct Parent<'a> {
    pub(super) inner: Gapped<'a>,
    pub(super) version: u64,
}

/// A leaf, and what leads to it.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    /// The version of the tree's cell.
    pub(super) cell: u64,
    pub(super) parent: Option<Parent<'a>>,
    pub(super) leaf: Gapped<'a>,
    pub(super) version: u64,
}

/// What a search does to inner nodes on its way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prepare {
    /// Full nodes are split.
    ForSplit,
    /// Nodes with few children are merged.
    ForMerge,
}

/// What leads to a node, locked.
pub(super) enum Above<'a> {
    Cell { lock: Locked<'a>, root: Fresh<'a> },
    Inner { lock: Locked<'a>, inner: Gapped<'a> },
}

/// Whether a node with so many slots (including the new one) has outgrown its class.
fn is_over(node: Gapped<'_>, slots: usize) -> bool {
    slots > max_blocks(node.0.meta().class()) * WIDTH * 3 / 4
}

impl<P: Protocol> Learned<P> {
    /// One attempt to find the leaf for `slice` with its parent. Fails if the slice lies in a subtree.
    pub(super) fn try_spot(&self, slice: u64, prepare: Prepare) -> Result<Spot<'_>, Restart> {
        let cell = self.tree.root.version.read()?;
        let (mut node, mut version) = self.tree.top()?;
        let mut parent = None;
        while node.meta().class() == INNER_HEAD {
            let inner = Gapped(node);
            self.prepare(prepare, cell, parent, Parent { inner, version }, slice)?;
            let address = inner.child(slice);
            parent = Some(Parent { inner, version });
            (node, version) = self.tree.follow(node, version, address)?;
        }
        self.tree.root.version.check(cell)?;
        if node.meta().class() != LEAF_HEAD {
            return Err(Restart);
        }
        Ok(Spot { cell, parent, leaf: Gapped(node), version })
    }

    fn prepare<'a>(&'a self, prepare: Prepare, cell: u64, parent: Option<Parent<'a>>, at: Parent<'a>, slice: u64) -> Result<(), Restart> {
        let count = at.inner.count();
        let changed = match (prepare, parent) {
            (Prepare::ForSplit, _) if is_over(at.inner, count + 1) || (count >= WORTH_SPLITTING && at.inner.is_misfit()) => {
                self.split_inner(cell, parent, at)?;
                true
            }
            (Prepare::ForMerge, Some(parent)) => self.merge_inner(cell, parent, at, slice)?,
            _ => false,
        };
        if changed { Err(Restart) } else { Ok(()) }
    }

    /// Inserts `entry`, whose search led to `slot`, into a leaf that has no gap near it.
    #[cold]
    pub(super) fn make_room(&self, slot: &Slot<'_>, entry: Entry) -> Result<(), Restart> {
        let spot = self.try_spot(entry.slice, Prepare::ForSplit)?;
        let (leaf, place) = (spot.leaf, slot.place);
        // The same leaf in the same state.
        if leaf != slot.leaf || spot.version != slot.version {
            return Err(Restart);
        }
        let last = Place { block: slot.shape.end() - 1, index: leaf.block(slot.shape.end() - 1).count() };
        let first = Place { block: slot.shape.first(), index: 0 };
        match leaf.run() {
            Run::Ascending if place == last => self.append(&spot, entry),
            Run::Descending if place == first => self.prepend(&spot, entry),
            Run::Ascending if place != first => self.cut(&spot, place, entry),
            Run::Descending => self.cut_below(&spot, place, entry),
            _ => self.expand_or_split(&spot, place, entry),
        }
    }

    /// Puts `entry` after all others: into a new block, or into a new leaf.
    fn append(&self, spot: &Spot<'_>, entry: Entry) -> Result<(), Restart> {
        let (leaf, arena) = (spot.leaf, &self.tree.arena);
        let lock = leaf.0.version().lock(spot.version)?;
        if leaf.grow_up(arena, entry) {
            leaf.note(entry.slice, Run::Ascending);
            lock.done();
            return Ok(());
        }
        let last = leaf.block(leaf.shape().end() - 1).slice(WIDTH - 1);
        if leaf.run_misfits() {
            // The restart continues the run in the subtree.
            self.plant(spot, lock, &leaf.entries(), RUN_FILL)?;
            return Err(Restart);
        }
        let (fresh, above) = (arena.allocate(LEAF_HEAD), self.lock_above(spot)?);
        Gapped(fresh.node()).begin_with(arena, entry, false);
        self.link_right(leaf, fresh, above, last + 1);
        lock.done();
        P::reached(Point::ArrayEdgeSplit);
        Ok(())
    }

    /// Puts `entry` before all others: into a new block, or alone into the leaf, whose slots move to a new one.
    fn prepend(&self, spot: &Spot<'_>, entry: Entry) -> Result<(), Restart> {
        let (leaf, arena) = (spot.leaf, &self.tree.arena);
        let lock = leaf.0.version().lock(spot.version)?;
        if leaf.grow_down(arena, entry) {
            leaf.note(entry.slice, Run::Descending);
            lock.done();
            return Ok(());
        }
        let shape = leaf.shape();
        if leaf.count() < WORTH_SPLITTING {
            drop(lock);
            return self.expand_or_split(spot, Place { block: shape.first(), index: 0 }, entry);
        }
        if leaf.run_misfits() {
            self.plant(spot, lock, &leaf.entries(), RUN_FILL)?;
            return Err(Restart);
        }
        let separator = leaf.block(shape.first()).slice(0);
        let (fresh, above) = (arena.allocate(LEAF_HEAD), self.lock_above(spot)?);
        let right = Gapped(fresh.node());
        right.take_over(leaf);
        leaf.set_pages(0..0);
        leaf.begin_with(arena, entry, true);
        self.link_right(leaf, fresh, above, separator);
        lock.done();
        P::reached(Point::ArrayEdgeSplit);
        Ok(())
    }

    /// Moves the slots from `place` on to a new leaf, so that `entry` and those that follow it are appended.
    fn cut(&self, spot: &Spot<'_>, place: Place, entry: Entry) -> Result<(), Restart> {
        let (leaf, arena) = (spot.leaf, &self.tree.arena);
        let shape = leaf.shape();
        let Some(next) = leaf.slot_from(shape, place) else { return self.expand_or_split(spot, place, entry) };
        let separator = leaf.block(next.block).slice(next.index);
        let (fresh, above) = (arena.allocate(LEAF_HEAD), self.lock_above(spot)?);
        let lock = leaf.0.version().lock(spot.version)?;
        let behind = leaf.cut_at(arena, place);
        Gapped(fresh.node()).train(arena, &behind);
        if !leaf.grow_up(arena, entry) {
            let mut all = leaf.entries();
            all.push(entry);
            leaf.train(arena, &all);
        }
        leaf.note(entry.slice, Run::Ascending);
        self.link_right(leaf, fresh, above, separator);
        lock.done();
        P::reached(Point::ArraySplit);
        Ok(())
    }

    /// Moves the slots from `place` on to a new leaf, after `entry` and those that will come before it in turn.
    fn cut_below(&self, spot: &Spot<'_>, place: Place, entry: Entry) -> Result<(), Restart> {
        let (leaf, arena) = (spot.leaf, &self.tree.arena);
        let lock = leaf.0.version().lock(spot.version)?;
        let all = leaf.entries();
        let (before, behind) = all.split_at(leaf.rank(place));
        let Some(last) = before.last().map(|last| last.slice) else {
            drop(lock);
            return self.expand_or_split(spot, place, entry);
        };
        let (fresh, above) = (arena.allocate(LEAF_HEAD), self.lock_above(spot)?);
        let right = Gapped(fresh.node());
        leaf.note(entry.slice, Run::Descending);
        let (last_insert, runs) = leaf.last_insert();
        right.set_last_insert(last_insert, runs);
        if behind.is_empty() {
            right.begin_with(arena, entry, true);
        } else {
            right.train(arena, &[&[entry], behind].concat());
        }
        leaf.cut_at(arena, place);
        // All slices that will come before `entry` belong to the right leaf.
        self.link_right(leaf, fresh, above, last + 1);
        lock.done();
        P::reached(Point::ArraySplit);
        Ok(())
    }

    /// Rebuilds the leaf with `entry`: as one array with room, as two, or as a subtree.
    fn expand_or_split(&self, spot: &Spot<'_>, place: Place, entry: Entry) -> Result<(), Restart> {
        let leaf = spot.leaf;
        let lock = leaf.0.version().lock(spot.version)?;
        let mut all = leaf.entries();
        all.insert(leaf.rank(place), entry);
        let soon = all.len() - leaf.built_with().min(all.len()) < all.len() / 16;
        let large = all.len() >= WORTH_SPLITTING;
        if large && (soon || leaf.is_misfit()) {
            return self.divide(spot, lock, &all);
        }
        if is_over(leaf, all.len()) {
            return self.split(spot, lock, &all);
        }
        leaf.note(entry.slice, leaf.beside(place));
        leaf.train(&self.tree.arena, &all);
        let misfits = large && leaf.is_misfit();
        lock.done();
        P::reached(Point::ArrayGrow);
        if misfits {
            self.divide_misfit(entry.slice);
        }
        Ok(())
    }

    /// Replaces the locked leaf's slots by `all`, in two leaves or in a subtree.
    fn divide(&self, spot: &Spot<'_>, lock: Locked<'_>, all: &[Entry]) -> Result<(), Restart> {
        let (low, high) = all.split_at(all.len() / 2);
        let halves = usize::from(fits(low)) + usize::from(fits(high));
        if halves == 0 || (halves == 1 && all.len() < WORTH_HALVING) {
            return self.plant_misfit(spot, lock, all);
        }
        self.split(spot, lock, all)
    }

    /// Puts a subtree of `all` in the place of the locked leaf, or one of everything in the place of all leaves.
    fn plant_misfit(&self, spot: &Spot<'_>, lock: Locked<'_>, all: &[Entry]) -> Result<(), Restart> {
        if self.is_small(spot) {
            drop(lock);
            self.plant_all(spot)?;
            // The restart inserts the entry into the subtree.
            return Err(Restart);
        }
        self.plant(spot, lock, all, FILL)
    }

    /// Divides the leaf for `slice` if its model fits badly. Best effort: a leaf that is not divided now is divided
    /// when it grows.
    fn divide_misfit(&self, slice: u64) {
        let Ok(spot) = self.try_spot(slice, Prepare::ForSplit) else { return };
        if spot.leaf.is_misfit()
            && spot.leaf.count() >= WORTH_SPLITTING
            && let Ok(lock) = spot.leaf.0.version().lock(spot.version)
        {
            let _ = self.divide(&spot, lock, &spot.leaf.entries());
        }
    }

    /// Builds two leaves of `all`, which replaces the locked leaf's slots, and divides them further if they fit badly.
    fn split(&self, spot: &Spot<'_>, lock: Locked<'_>, all: &[Entry]) -> Result<(), Restart> {
        let (leaf, arena, cut) = (spot.leaf, &self.tree.arena, all.len() / 2);
        let (fresh, above) = (arena.allocate(LEAF_HEAD), self.lock_above(spot)?);
        let (right, (last, runs)) = (Gapped(fresh.node()), leaf.last_insert());
        right.set_last_insert(last, runs);
        right.train(arena, &all[cut..]);
        leaf.train(arena, &all[..cut]);
        let misfits = [(0, leaf.is_misfit()), (cut, right.is_misfit())];
        self.link_right(leaf, fresh, above, all[cut].slice);
        lock.done();
        P::reached(Point::ArraySplit);
        misfits.iter().filter(|(_, misfits)| *misfits).for_each(|(at, _)| self.divide_misfit(all[*at].slice));
        Ok(())
    }

    /// Adds a leaf of entries that all come after the last one of an idle index. An empty index takes them into its
    /// only leaf.
    pub(super) fn append_whole(&self, entries: &[Entry]) -> Result<(), Restart> {
        let spot = self.try_spot(u64::MAX, Prepare::ForSplit)?;
        let (leaf, arena) = (spot.leaf, &self.tree.arena);
        let last = leaf.entries().last().copied();
        // An empty leaf that is not the only one may begin after these entries.
        if last.map_or(spot.parent.is_some(), |last| last.slice >= entries[0].slice) {
            return Err(Restart);
        }
        let lock = leaf.0.version().lock(spot.version)?;
        if last.is_none() {
            leaf.train(arena, entries);
        } else {
            let (fresh, above) = (arena.allocate(LEAF_HEAD), self.lock_above(&spot)?);
            Gapped(fresh.node()).train(arena, entries);
            self.link_right(leaf, fresh, above, entries[0].slice);
        }
        lock.done();
        Ok(())
    }

    /// Brings a filled leaf to life to the right of `leaf`, which is locked.
    fn link_right(&self, leaf: Gapped<'_>, fresh: Fresh<'_>, above: Above<'_>, separator: u64) {
        let right = Gapped(fresh.node());
        right.set_next(leaf.next());
        right.set_previous(leaf.0.address());
        right.set_low(separator);
        let node = fresh.publish();
        Self::set_previous_of(right.next(), node.address());
        leaf.set_next(node.address());
        self.lead_to(above, leaf.0, separator, node);
    }

    /// Sets the back link of the leaf at `address`, if there is one. The caller holds the lock of the leaf whose `next`
    /// it is.
    pub(super) fn set_previous_of(address: u64, previous: u64) {
        if address != 0 {
            // SAFETY: the address is the `next` of a leaf that the caller has locked, hence a live leaf.
            let next: Gapped<'_> = Gapped(unsafe { Node::from_address(address) });
            next.set_previous(previous);
        }
    }

    fn lock_above<'a>(&'a self, spot: &Spot<'a>) -> Result<Above<'a>, Restart> {
        self.lock_over(spot.cell, spot.parent, spot.leaf.0)
    }

    /// Locks what leads to `child`: its parent, or the cell if `child` is the root. A new root is prepared beforehand.
    fn lock_over<'a>(&'a self, cell: u64, parent: Option<Parent<'a>>, child: Node<'a>) -> Result<Above<'a>, Restart> {
        if let Some(Parent { inner, version }) = parent {
            return Ok(Above::Inner { lock: inner.0.version().lock(version)?, inner });
        }
        let root = self.tree.arena.allocate(INNER_HEAD);
        root.node().set_meta(root.node().meta().with_level(child.meta().level() + 1));
        Ok(Above::Cell { lock: self.tree.root.version.lock(cell)?, root })
    }

    /// Makes `right` reachable beside `left`, which is locked.
    fn lead_to(&self, above: Above<'_>, left: Node<'_>, separator: u64, right: Node<'_>) {
        let child = |slice, node: Node<'_>| Entry { slice, value: node.address() };
        match above {
            Above::Inner { lock, inner } => {
                let place = inner.find(inner.shape(), separator).place;
                if !inner.insert(place, child(separator, right)) {
                    let mut all = inner.entries();
                    all.insert(inner.rank(place), child(separator, right));
                    inner.train(&self.tree.arena, &all);
                }
                lock.done();
            }
            Above::Cell { lock, root } => {
                Gapped(root.node()).train(&self.tree.arena, &[child(0, left), child(separator, right)]);
                self.tree.root.address.store(root.publish().address(), Ordering::Release);
                lock.done();
                P::reached(Point::ArrayRootSplit);
            }
        }
    }

    /// Splits an inner node. Its parent, if it has one, has room.
    fn split_inner<'a>(&'a self, cell: u64, parent: Option<Parent<'a>>, Parent { inner, version }: Parent<'a>) -> Result<(), Restart> {
        let arena = &self.tree.arena;
        let fresh = arena.allocate(INNER_HEAD);
        let above = self.lock_over(cell, parent, inner.0)?;
        let lock = inner.0.version().lock(version)?;
        let all = inner.entries();
        let (low, high) = all.split_at(all.len() / 2);
        fresh.node().set_meta(fresh.node().meta().with_level(inner.0.meta().level()));
        Gapped(fresh.node()).train(arena, high);
        inner.train(arena, low);
        self.lead_to(above, inner.0, high[0].slice, fresh.publish());
        lock.done();
        P::reached(Point::ArrayInnerSplit);
        Ok(())
    }
}

impl Gapped<'_> {
    /// Builds the array, and records how well the model fits and how many slots there were.
    pub(super) fn train(self, arena: &crate::common::arena::Arena, entries: &[Entry]) {
        let misfit = self.build(arena, entries);
        let (last, runs) = self.last_insert();
        self.set_last_insert(last, runs & 0xffff | u64::from(misfit) << 16 | (entries.len() as u64) << 32);
    }

    fn is_misfit(self) -> bool {
        self.last_insert().1 >> 16 & 1 == 1
    }

    fn built_with(self) -> usize {
        (self.last_insert().1 >> 32) as usize
    }
}
