//! The radix table: leads from the highest bits of a slice to the inner node at which a search of layer 0 may begin,
//! most often one of the lowest level (`docs/adr/0028`).
//!
//! A tree of five million keys has three inner levels. The upper two lie in the cache, but a search waits for one after
//! the other, and the fewer instructions a search has, the more searches the processor has under way at once.
//!
//! # Structure
//!
//! The table divides all slices into *cells* of one width. (The first and the last cell are wider: they also hold what
//! lies before the table's base and behind its end.) A cell holds the address of the lowest inner node to which all of
//! its slices lead, as far as the table knows: of the root, if the cell spans several of the root's children. There are
//! at least [`CELLS_PER_NODE`] cells for each node of the lowest inner level, so few cells span two of them. The table
//! reaches from the second to the last but one of these nodes, so that a few keys far from all others do not make all
//! cells too wide. Keys that use few of the values of each byte (digits, letters) gain little, since most cells are empty
//! and the others span many nodes. A tree with one inner level has no table.
//!
//! # Invariants
//!
//! * R1. What a cell holds is a guess: the address of a node of the tree's arena, of any age. A search begins there
//!   only if the node is a live inner node whose bounds, at the version at which the search goes on, enclose the slice
//!   (I4 in [`super::inner`]); otherwise it begins at the root.
//! * R2. After each change of inner nodes the cells that it touched are looked up anew, and the whole table if the
//!   number of nodes has doubled since, or halved.
//!
//! # Thread safety
//!
//! Searches only load. Whoever has changed an inner node updates the table after that, holding no node, under a lock;
//! until then, and where the update itself met a change, searches begin at nodes that are too high, or at the root. All
//! tables live as long as the tree, one of each size, and are used again, so a search may read one that is being filled
//! (R1).
//!
//! # Cost
//!
//! Eight bytes for each cell: 0.02 bytes for each key of a large tree. An update takes as many descents as there are
//! nodes and cells in the changed range.

use super::BTree;
use super::inner::{Bounds, Inner};
use super::protocol::Protocol;
use crate::common::node::{ALL_LINES, Node};
use crate::common::search;
use crate::common::version::{Restart, held};
use parking_lot::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// The least number of cells for each node of the lowest inner level.
const CELLS_PER_NODE: usize = 3;
/// The size classes of tables, of 2^0 cells and more. The largest one serves 10^10 keys.
const CLASSES: usize = 25;

/// The table of a tree, if it has one.
#[derive(Debug)]
pub(super) struct Radix {
    current: AtomicPtr<Table>,
    /// Whether tables are made.
    used: bool,
    state: Mutex<State>,
}

/// A table of 2^n cells.
#[derive(Debug)]
struct Table {
    /// The first slice of the cell after which cells have one width.
    base: AtomicU64,
    /// The width of a cell is 2^shift.
    shift: AtomicU32,
    /// Addresses of nodes, or 0.
    cells: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct State {
    /// The tables, by size class. They are dropped with the tree only.
    tables: [Option<Box<Table>>; CLASSES],
    /// Number of nodes of the lowest inner level; 1 if there are none.
    nodes: usize,
    /// That number when the table was made; 0 if there is none.
    made_for: usize,
}

impl Default for State {
    fn default() -> Self {
        State { tables: std::array::from_fn(|_| None), nodes: 1, made_for: 0 }
    }
}

impl Table {
    /// The cell of a slice.
    #[inline(always)]
    fn cell_of(&self, slice: u64) -> usize {
        let cell = slice.saturating_sub(self.base.load(Relaxed)) >> (self.shift.load(Relaxed) & 63);
        (cell as usize).min(self.cells.len() - 1)
    }

    /// The first and the last slice of a cell.
    fn slices_of(&self, cell: usize) -> (u64, u64) {
        let (base, shift) = (u128::from(self.base.load(Relaxed)), self.shift.load(Relaxed));
        let from = |cell: usize| (base + ((cell as u128) << shift)).min(u128::from(u64::MAX)) as u64;
        let first = if cell == 0 { 0 } else { from(cell) };
        let last = if cell + 1 == self.cells.len() { u64::MAX } else { from(cell + 1).saturating_sub(1).max(first) };
        (first, last)
    }
}

impl Radix {
    pub(super) fn new() -> Self {
        Radix { current: AtomicPtr::default(), used: true, state: Mutex::default() }
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
        let mut state = self.root.radix.state.lock();
        state.nodes = state.nodes.saturating_add_signed(by);
        let (nodes, before) = (state.nodes, state.made_for);
        if nodes >= 2 * before || nodes <= before / 2 {
            self.make_table(&mut state);
        } else if let Some(table) = self.root.radix.table() {
            self.fill_cells(table, bounds);
        }
    }

    /// Makes a table for all nodes of the lowest inner level.
    fn make_table(&self, state: &mut State) {
        let Some((first, last)) = self.lowest_edges().filter(|_| state.nodes > 1) else {
            self.root.radix.current.store(std::ptr::null_mut(), Release);
            state.made_for = 0;
            return;
        };
        state.made_for = state.nodes;
        let class = (CELLS_PER_NODE * state.nodes).next_power_of_two().trailing_zeros() as usize;
        let Some(place) = state.tables.get_mut(class) else { return };
        let table = place.get_or_insert_with(|| {
            let cells = (0..1 << class).map(|_| AtomicU64::new(0)).collect();
            Box::new(Table { base: AtomicU64::new(0), shift: AtomicU32::new(0), cells })
        });
        // As narrow as possible, with the last slice in the last cell at most.
        let bits = 64 - (last - first).leading_zeros();
        table.base.store(first, Relaxed);
        table.shift.store(bits.saturating_sub(class as u32), Relaxed);
        self.fill_cells(table, Bounds::ALL);
        self.root.radix.current.store(std::ptr::from_mut(table), Release);
    }

    /// Where the first node of the lowest inner level ends, and where the last one begins. `None` if the tree changes,
    /// or if it has less than two inner levels.
    fn lowest_edges(&self) -> Option<(u64, u64)> {
        let first = self.lowest_for(0, 0)?.1;
        let last = self.lowest_for(u64::MAX, u64::MAX)?.1;
        (first.high < last.low).then(|| (first.high + 1, last.low))
    }

    /// Stores, for each cell that has a slice within `bounds`, the lowest node that leads to all of the cell's slices.
    fn fill_cells(&self, table: &Table, bounds: Bounds) {
        let (mut cell, end) = (table.cell_of(bounds.low), table.cell_of(bounds.high));
        while cell <= end {
            let (first, last) = table.slices_of(cell);
            let found = self.lowest_for(first, last);
            let (address, high) = found.map_or((0, last), |(node, bounds)| (node.address(), bounds.high));
            // The node may lead to the slices of the next cells as well, but there may be a lower one.
            let is_lowest = found.is_some_and(|(node, _)| node.meta().level() == 1);
            table.cells[cell].store(address, Relaxed);
            cell += 1;
            while is_lowest && cell <= end && table.slices_of(cell).1 <= high {
                table.cells[cell].store(address, Relaxed);
                cell += 1;
            }
        }
    }

    /// The lowest inner node that leads to all slices from `first` to `last`, and its bounds. `None` if the tree changes
    /// meanwhile, or if its root is a leaf.
    fn lowest_for(&self, first: u64, last: u64) -> Option<(Node<'_>, Bounds)> {
        let (mut node, mut version) = self.top().ok()?;
        if !node.meta().is_inner() {
            return None;
        }
        let mut bounds = Inner(node).bounds();
        while node.meta().level() > 1 {
            let child = Inner(node).child_for(search::is_wide(), first);
            let (child, below) = self.follow(node, version, child).ok()?;
            let inside = Inner(child).bounds();
            child.version().check(below).ok()?;
            if !inside.contain(first) || !inside.contain(last) {
                break;
            }
            (node, version, bounds) = (child, below, inside);
        }
        node.version().check(version).ok()?;
        Some((node, bounds))
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
        let mut state = self.root.radix.state.lock();
        state.nodes = lowest.max(1);
        self.make_table(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::BTreeIndex;
    use crate::conformance::Rng;
    use crate::conformance::point::Bench;
    use crate::{Index, Ref};
    use hither_sync::epoch;

    type World = Bench<BTreeIndex>;
    /// The slice of the key of this number.
    type Slices<'a> = &'a dyn Fn(u64) -> u64;

    /// Of these slices, how many begin at the lowest inner level, and how many at the root.
    fn begins(index: &BTreeIndex, slices: &[u64]) -> (usize, usize) {
        let _pin = epoch::pin();
        let (root, _) = index.top().expect("no writer is active");
        let levels = slices.iter().map(|slice| {
            let (node, _) = index.begin(*slice).expect("no writer is active");
            assert!(node == root || Inner(node).bounds().contain(*slice));
            (node.meta().level() == 1, node == root)
        });
        levels.fold((0, 0), |(low, high), (lowest, root)| (low + usize::from(lowest), high + usize::from(root)))
    }

    fn put(world: &World, slice: u64) {
        world.write(&slice.to_be_bytes(), world.log.append(&slice.to_be_bytes()));
    }

    fn has_table(world: &World) -> bool {
        world.index.root.radix.table().is_some()
    }

    const KEYS: u64 = 40_000;

    #[test]
    fn most_searches_begin_at_the_lowest_level() {
        let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let digits = |i: u64| u64::from_be_bytes(format!("{i:08}").into_bytes().try_into().expect("eight digits"));
        let kinds: [(&str, Slices<'_>, usize); 5] = [
            ("random", &|i| spread(i), 60),
            ("in a narrow range, and two far away", &|i| if i < 2 { i * (u64::MAX - 1) } else { (1 << 40) + (spread(i) >> 30) }, 60),
            ("descending", &|i| (KEYS - i) << 20, 30),
            ("ascending", &|i| i, 30),
            ("digits in random order", &|i| digits(i * 7_919 % KEYS), 2),
        ];
        for (what, slice, percent) in kinds {
            let world = Bench::new(BTreeIndex::new());
            let slices: Vec<u64> = (0..KEYS).map(slice).collect();
            slices.iter().for_each(|slice| put(&world, *slice));
            let (lowest, root) = begins(&world.index, &slices);
            assert!(lowest * 100 >= slices.len() * percent, "{what}: {lowest} of {KEYS} at the lowest level, {root} at the root");
            world.check(slices.len());
        }
    }

    #[test]
    fn a_table_comes_and_goes_with_the_second_inner_level() {
        let world = Bench::new(BTreeIndex::new());
        let mut random = Rng::new(1);
        let mut slices: Vec<u64> = (0..KEYS).map(|_| random.word()).collect();
        for round in 0..2 {
            for (i, slice) in slices.iter().enumerate() {
                put(&world, *slice);
                let level = world.index.top().expect("no writer is active").0.meta().level();
                assert_eq!(has_table(&world), level >= 2, "level {level} at key {i} of round {round}");
            }
            // Each size is allocated once.
            let bytes = world.index.root.radix.memory_bytes();
            assert!((500..4_000).contains(&bytes), "{bytes} bytes in round {round}");
            let kept = slices.split_off(500);
            for slice in &kept {
                assert!(world.write(&slice.to_be_bytes(), Ref::NONE).is_some());
            }
            world.check(slices.len());
            let level = world.index.top().expect("no writer is active").0.meta().level();
            assert_eq!(has_table(&world), level >= 2, "level {level} in the end of round {round}");
            assert!(level < 2, "the tree has shrunk");
            slices.extend(kept);
        }
    }

    /// Whatever the cells hold (leaves, roots of layers, nodes of other slices, nodes that are gone), searches find what
    /// they should.
    #[test]
    fn a_wrong_guess_is_harmless() {
        let world = Bench::new(BTreeIndex::new());
        let mut random = Rng::new(2);
        let slices: Vec<u64> = (0..KEYS).map(|_| random.word()).collect();
        slices.iter().for_each(|slice| put(&world, *slice));
        // Layers with inner nodes.
        for (slice, i) in slices.iter().take(3).flat_map(|slice| (0..200u64).map(move |i| (slice, i))) {
            let key = [slice.to_be_bytes(), random.word().to_be_bytes(), i.to_be_bytes()].concat();
            world.write(&key, world.log.append(&key));
        }
        // Some nodes are obsolete.
        let (gone, stay) = slices.split_at(KEYS as usize / 2);
        for slice in gone.iter().skip(3) {
            world.write(&slice.to_be_bytes(), Ref::NONE);
        }
        let table = world.index.root.radix.table().expect("the tree has two inner levels");
        let nodes: Vec<u64> = (0..u32::MAX).map_while(|id| world.index.arena.node(id)).map(Node::address).collect();
        assert!(nodes.len() > 500, "{} nodes", nodes.len());
        let mut refused = 0;
        for _ in 0..20 {
            table.cells.iter().for_each(|cell| cell.store(nodes[random.below(nodes.len())], Relaxed));
            for slice in stay.iter().take(2_000) {
                let _pin = epoch::pin();
                let key = slice.to_be_bytes();
                let (node, _) = world.index.begin(*slice).expect("no writer is active");
                refused += usize::from(node.address() != world.index.root.radix.guess(*slice));
                let found = world.get(&key);
                assert!(found.is_some());
                let look = |seen: Ref, _: u64| (seen == found).then_some(());
                assert_eq!(world.index.peek(u64::from_ne_bytes(key), (world.log.hasher(), look)).0, found);
            }
        }
        assert!(refused > 30_000, "{refused} of 40,000 guesses were refused");
        // Writes repair what they touch, and end well.
        gone.iter().for_each(|slice| put(&world, *slice));
        world.check(slices.len() + 600);
    }
}
