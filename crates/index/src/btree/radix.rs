//! The radix table: leads from the highest bits of a slice to the inner node at which a search of layer 0 may begin,
//! most often one of the lowest level (`docs/adr/0028`).
//!
//! A tree of five million keys has three inner levels. The upper two lie in the cache, but a search waits for one after
//! the other, and the fewer instructions a search has, the more searches the processor has under way at once.
//!
//! # Structure
//!
//! The table divides all slices into *cells* of one width. (The first and the last cell are wider: they also hold what
//! lies before and behind the others.) A cell holds the address of the lowest inner node to which all of its slices
//! lead, as far as the table knows: of the root, if the cell spans several of the root's children. When a table is made
//! there are at least [`CELLS_PER_NODE`] cells for each node of the lowest inner level, and before the next one half as
//! many, so most cells lead to such a node.
//!
//! The cells of one width reach from the end of the first of these nodes to the beginning of the last, so that a few
//! keys far from all others do not make all cells too wide. Keys that use few of the values of each byte (digits,
//! letters) gain little, since most cells are empty and the others span many nodes. A tree with one inner level has no
//! table.
//!
//! # Invariants
//!
//! * R1. What a cell holds is a guess: the address of a node of the tree's arena, of any age. A search begins there
//!   only if the node is a live inner node whose bounds, at the version at which the search goes on, enclose the slice
//!   (I4 in [`super::inner`]); otherwise it begins at the root.
//! * R2. After a change of inner nodes the cells that it touched are looked up anew. There is a new table after as many
//!   splits as there were nodes (so also for keys that move on, as in a queue), or if the number of nodes has halved.
//!   This is done as well as possible: a cell keeps its old guess where the tree keeps changing, or where another thread
//!   works on the table.
//!
//! # Thread safety
//!
//! Searches only load. Whoever has changed an inner node updates the table after that, holding no node, under a lock for
//! which no search or write waits. All tables live as long as the tree, one of each size, and are used again, so a
//! search may read one that is being filled (R1).
//!
//! # Cost
//!
//! Eight bytes for each cell: 0.03 bytes for each key of a large tree, all tables together, and 2 MiB at most. An update
//! takes a descent for each node and each cell between two nodes in the changed range, and up to [`MOST_CELLS`] stores
//! for a node; a new table takes as many for the whole tree.

use super::BTree;
use super::inner::{Bounds, Inner};
use super::protocol::Protocol;
use crate::common::node::{ALL_LINES, Node};
use crate::common::search;
use crate::common::version::{Restart, held};
use parking_lot::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64};

/// The least number of cells for each node of the lowest inner level.
const CELLS_PER_NODE: usize = 3;
/// The most cells that one node gets. More occur where keys lie far apart, above all at a gap without keys: then the
/// node's cells in the middle are left out.
const MOST_CELLS: usize = 32;
/// The size classes of tables, of 2^0 cells and more. A larger one than the largest would not stay in the cache. From
/// some hundred million keys on, more and more cells lead to the level above the lowest.
const CLASSES: usize = 18;
/// How often a descent starts again before it gives up.
const ATTEMPTS: usize = 8;

/// The table of a tree, if it has one.
#[derive(Debug)]
pub(super) struct Radix {
    current: AtomicPtr<Table>,
    /// Whether tables are made.
    used: bool,
    /// Number of nodes of the lowest inner level; 1 if there are none. While threads are between a change and its
    /// count, it may be any number.
    nodes: AtomicIsize,
    state: Mutex<State>,
}

/// A table of 2^n cells.
#[derive(Debug)]
struct Table {
    /// Where the first cell would begin if it were as wide as the others.
    base: AtomicU64,
    /// The width of a cell is 2^shift.
    shift: AtomicU32,
    /// Addresses of nodes, or 0.
    cells: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct State {
    /// The tables, by size class. They are dropped with the tree only.
    tables: [Option<Box<Table>>; CLASSES],
    /// The number of nodes when the table was made; 0 if there is none.
    made_for: usize,
    /// Splits of such nodes since.
    splits: usize,
}

impl Table {
    /// The cell of a slice.
    #[inline(always)]
    fn cell_of(&self, slice: u64) -> usize {
        let cell = slice.saturating_sub(self.base.load(Relaxed)) >> (self.shift.load(Relaxed) & 63);
        (cell as usize).min(self.cells.len() - 1)
    }

    /// The first cell that has a slice behind `last`.
    fn cell_after(&self, last: u64) -> usize {
        let cell = self.cell_of(last);
        if self.slices_of(cell).1 == last { cell + 1 } else { cell }
    }

    /// The first and the last slice of a cell.
    fn slices_of(&self, cell: usize) -> (u64, u64) {
        let (base, shift) = (u128::from(self.base.load(Relaxed)), self.shift.load(Relaxed));
        let from = |cell: usize| base + ((cell as u128) << shift);
        let first = if cell == 0 { 0 } else { from(cell) };
        let last = if cell + 1 == self.cells.len() { u128::MAX } else { from(cell + 1) - 1 };
        // Behind the cell that holds the largest slice there may be empty ones.
        [first, last].map(|slice| slice.min(u128::from(u64::MAX)) as u64).into()
    }
}

impl Radix {
    pub(super) fn new() -> Self {
        Radix { current: AtomicPtr::default(), used: true, nodes: AtomicIsize::new(1), state: Mutex::default() }
    }

    /// For trees whose searches begin elsewhere: no table is ever made.
    pub(super) fn unused() -> Self {
        Radix { used: false, ..Radix::new() }
    }

    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    /// The table in use.
    #[inline(always)]
    fn table(&self) -> Option<&Table> {
        // SAFETY: null, or a table in `state`, which is there as long as this.
        unsafe { self.current.load(Acquire).as_ref() }
    }

    /// The address of the node at which a search for `slice` may begin (R1); 0 if there is none.
    #[inline(always)]
    pub(super) fn guess(&self, slice: u64) -> u64 {
        self.table().map_or(0, |table| table.cells[table.cell_of(slice)].load(Relaxed))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let state = self.state.lock();
        state.tables.iter().flatten().map(|table| size_of::<Table>() + size_of_val(&*table.cells)).sum()
    }
}

impl<P: Protocol> BTree<P> {
    /// Where a search of layer 0 for `slice` begins: a node that leads to the slice's leaf, and the node's version.
    #[inline(always)]
    pub(super) fn begin(&self, slice: u64) -> Result<(Node<'_>, u64), Restart> {
        self.begin_at(self.root.radix.guess(slice), slice)
    }

    /// As above. Prefetches the whole node, as [`BTree::descend`] does.
    #[inline(always)]
    pub(super) fn begin_whole(&self, slice: u64) -> Result<(Node<'_>, u64), Restart> {
        let address = self.root.radix.guess(slice);
        if address != 0 {
            Node::prefetch(address, ALL_LINES);
        }
        self.begin_at(address, slice)
    }

    /// As above, by the address that [`Radix::guess`] returned.
    #[inline(always)]
    pub(super) fn begin_at(&self, address: u64, slice: u64) -> Result<(Node<'_>, u64), Restart> {
        if address != 0 {
            // SAFETY: a node of this tree's arena, of any age (R1).
            let node = unsafe { Node::from_address(address) };
            if let Ok(version) = node.version().try_read()
                && node.meta().is_inner()
                && Inner(node).bounds().contain(slice)
            {
                // The caller follows a child only if the node still has this version (N2), so that level and bounds
                // were those of one state, in which the node led to the slice's leaf.
                return Ok((node, version));
            }
        }
        self.top()
    }

    /// Called when inner nodes of layer 0 that lead to slices within `bounds` have changed, and the number of nodes of
    /// the lowest inner level by `by` (R2). The caller has locked no node.
    #[cold]
    pub(super) fn inner_changed(&self, bounds: Bounds, by: isize) {
        debug_assert!(held::none());
        if !self.root.radix.used || bounds == Bounds::NOTHING {
            return;
        }
        debug_assert!(hither_sync::epoch::is_pinned());
        let nodes = (self.root.radix.nodes.fetch_add(by, Relaxed) + by).max(1) as usize;
        let Some(mut state) = self.root.radix.state.try_lock() else { return };
        state.splits += usize::from(by > 0);
        if state.splits >= state.made_for || nodes <= state.made_for / 2 {
            // Where the tree keeps changing, the next change tries again.
            let _ = self.make_table(&mut state, nodes);
        } else if let Some(table) = self.root.radix.table() {
            let _ = self.fill_cells(table, bounds);
        }
    }

    /// Makes a table for this number of nodes of the lowest inner level, or none if the tree has no second one.
    fn make_table(&self, state: &mut State, nodes: usize) -> Result<(), Restart> {
        let first = self.lowest_for(0, 0)?;
        let last = self.lowest_for(u64::MAX, u64::MAX)?;
        let (Some((_, first)), Some((_, last)), true) = (first, last, nodes > 1) else {
            self.root.radix.current.store(std::ptr::null_mut(), Release);
            (state.made_for, state.splits) = (0, 0);
            return Ok(());
        };
        let class = (CELLS_PER_NODE * nodes).next_power_of_two().trailing_zeros() as usize;
        let class = class.min(CLASSES - 1);
        let table: &Table = state.tables[class].get_or_insert_with(|| {
            let cells = (0..1 << class).map(|_| AtomicU64::new(0)).collect();
            Box::new(Table { base: AtomicU64::new(0), shift: AtomicU32::new(0), cells })
        });
        // As narrow as possible with the beginning of the last node in the last cell at most. The first cell ends with
        // the first node, if that does not end within a cell's width from 0.
        let (from, to) = (first.high, last.low.max(first.high));
        let shift = (64 - (to - from).leading_zeros()).saturating_sub(class as u32);
        table.base.store(from.saturating_sub((1 << shift) - 1), Relaxed);
        table.shift.store(shift, Relaxed);
        // Where much of the tree was locked all the while, the table would lead nowhere.
        if self.fill_cells(table, Bounds::ALL) > table.cells.len() / 8 {
            return Err(Restart);
        }
        self.root.radix.current.store(std::ptr::from_ref(table).cast_mut(), Release);
        (state.made_for, state.splits) = (nodes, 0);
        Ok(())
    }

    /// Stores, for each cell that has a slice within `bounds`, the lowest node that leads to all of the cell's slices.
    /// Returns the number of cells for which none was found.
    fn fill_cells(&self, table: &Table, bounds: Bounds) -> usize {
        let (mut cell, end, mut missed) = (table.cell_of(bounds.low), table.cell_of(bounds.high), 0);
        while cell <= end {
            let (first, last) = table.slices_of(cell);
            let Ok(Some((node, bounds))) = self.lowest_for(first, last) else {
                (cell, missed) = (cell + 1, missed + 1);
                continue;
            };
            table.cells[cell].store(node.address(), Relaxed);
            // A node of a higher level may lead to the slices of the next cells as well, but there may be a lower one.
            let whole = if node.meta().level() == 1 { table.cell_after(bounds.high).min(end + 1).max(cell + 1) } else { cell + 1 };
            let near = (cell + MOST_CELLS / 2).min(whole);
            let far = whole.saturating_sub(MOST_CELLS / 2).max(near);
            for at in (cell + 1..near).chain(far..whole) {
                table.cells[at].store(node.address(), Relaxed);
            }
            cell = whole;
        }
        missed
    }

    /// The lowest inner node that leads to all slices from `first` to `last`, and its bounds. `None` if the root is a
    /// leaf.
    fn lowest_for(&self, first: u64, last: u64) -> Result<Option<(Node<'_>, Bounds)>, Restart> {
        let mut attempts = (0..ATTEMPTS).map(|_| self.try_lowest_for(first, last));
        attempts.find(Result::is_ok).unwrap_or(Err(Restart))
    }

    fn try_lowest_for(&self, first: u64, last: u64) -> Result<Option<(Node<'_>, Bounds)>, Restart> {
        let (mut node, mut version) = self.top()?;
        if !node.meta().is_inner() {
            node.version().check(version)?;
            return Ok(None);
        }
        let mut bounds = Inner(node).bounds();
        while node.meta().level() > 1 {
            let child = Inner(node).child_for(search::is_wide(), first);
            let (child, below) = self.follow(node, version, child)?;
            let inside = Inner(child).bounds();
            child.version().check(below)?;
            if !inside.contain(first) || !inside.contain(last) {
                break;
            }
            (node, version, bounds) = (child, below, inside);
        }
        node.version().check(version)?;
        Ok(Some((node, bounds)))
    }

    /// Gives bounds to all inner nodes and makes a table. For a tree that was built as a whole and has no writers yet.
    pub(super) fn begin_table(&self) {
        let Some((root, _)) = self.top().ok().filter(|(root, _)| self.root.radix.used && root.meta().is_inner()) else { return };
        let (mut stack, mut lowest) = (vec![(Inner(root), Bounds::ALL)], 0);
        while let Some((inner, bounds)) = stack.pop() {
            inner.set_bounds(bounds);
            if inner.0.meta().level() == 1 {
                lowest += 1;
                continue;
            }
            let (mut rest, count) = (bounds, inner.count(inner.0.meta()));
            for i in 0..=count {
                let (own, behind) = if i < count { rest.cut(inner.separator(i)) } else { (rest, rest) };
                // SAFETY: the tree has no writers, so all its children are live (N2).
                stack.push((Inner(unsafe { Node::from_address(inner.child(i)) }), own));
                rest = behind;
            }
        }
        let nodes = lowest.max(1);
        self.root.radix.nodes.store(nodes as isize, Relaxed);
        let _ = self.make_table(&mut self.root.radix.state.lock(), nodes);
    }

    /// Checks the number of nodes while no writer is active.
    pub(super) fn check_radix(&self, root: Node<'_>) -> Result<(), String> {
        let nodes = if root.meta().is_inner() { Self::lowest_below(Inner(root)) } else { 1 };
        let counted = self.root.radix.nodes.load(Relaxed);
        if self.root.radix.used && counted != nodes as isize {
            return Err(format!("the tree has {nodes} inner nodes of the lowest level, but {counted} were counted"));
        }
        Ok(())
    }

    /// The number of nodes of the lowest inner level, from this node on down, while no writer is active.
    fn lowest_below(inner: Inner<'_>) -> usize {
        if inner.0.meta().level() == 1 {
            return 1;
        }
        let (mut separators, mut children) = (Vec::new(), Vec::new());
        inner.take(&mut separators, &mut children);
        // SAFETY: no writer is active, so the children are live (N2).
        children.into_iter().map(|child| Self::lowest_below(Inner(unsafe { Node::from_address(child) }))).sum()
    }
}

#[cfg(test)]
mod tests;
