//! What the cells of the radix table hold, and what searches make of it.

use super::*;
use crate::btree::BTreeIndex;
use crate::btree::leaf::Leaf;
use crate::conformance::Rng;
use crate::conformance::point::Bench;
use crate::{Index, OrderedIndex, PieceSource, Ref, SortedPiece};
use hither_sync::epoch;

type World = Bench<BTreeIndex>;
/// The slice of the key of this number.
type Slices<'a> = &'a dyn Fn(u64) -> u64;

const KEYS: u64 = 40_000;

fn put(world: &World, slice: u64) {
    world.write(&slice.to_be_bytes(), world.log.append(&slice.to_be_bytes()));
}

fn level_of_root(world: &World) -> usize {
    world.index.top().expect("no writer is active").0.meta().level()
}

fn table(world: &World) -> Option<&Table> {
    world.index.root.radix.table()
}

#[test]
fn cells_divide_all_slices() {
    for (class, shift, base) in (0..=6).flat_map(|class| [0, 1, 17, 58, 61].map(|shift| (class, shift))).flat_map(|(class, shift)| {
        let near_end = u64::MAX - (3 << shift.min(60));
        [0, 1, 12_345, 1 << 40, near_end, u64::MAX].map(|base| (class, shift, base))
    }) {
        let cells: Box<[AtomicU64]> = (0..1 << class).map(|_| AtomicU64::new(0)).collect();
        let table = Table { base: AtomicU64::new(base), shift: AtomicU32::new(shift), cells };
        let mut next = Some(0);
        for cell in 0..table.cells.len() {
            let (first, last) = table.slices_of(cell);
            // Cells behind the one with the largest slice hold nothing.
            let Some(expected) = next else { continue };
            assert_eq!(first, expected, "cell {cell} of 2^{class}, 2^{shift} wide from {base:x}");
            assert!(first <= last);
            assert_eq!([first, last].map(|slice| table.cell_of(slice)), [cell; 2], "2^{class} cells, 2^{shift} wide from {base:x}");
            assert_eq!(table.cell_after(last), cell + 1);
            next = last.checked_add(1);
        }
        assert_eq!(next, None, "2^{class} cells, 2^{shift} wide from {base:x}");
    }
}

/// Checks that the cells of these slices, and the number of nodes, are as exact as they are without other threads.
/// Returns how many of the slices begin at the lowest inner level.
fn check_cells(world: &World, slices: &[u64]) -> usize {
    let (index, _pin) = (&world.index, epoch::pin());
    let (root, _) = index.top().expect("no writer is active");
    index.check_radix(root).expect("the nodes are counted");
    assert_eq!(table(world).is_some(), root.meta().level() >= 2);
    let is_lowest = |slice: &&u64| {
        let (node, _) = index.begin(**slice).expect("no writer is active");
        if let Some(table) = table(world) {
            let (first, last) = table.slices_of(table.cell_of(**slice));
            assert!(first <= **slice && **slice <= last);
            let (best, bounds) = index.lowest_for(first, last).expect("no writer is active").expect("the root is an inner node");
            assert!(bounds.contain(**slice) && node == best, "slice {slice:x} begins elsewhere");
        }
        node.meta().level() == 1
    };
    slices.iter().filter(is_lowest).count()
}

#[test]
fn most_searches_begin_at_the_lowest_level() {
    let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let digits = |i: u64| u64::from_be_bytes(format!("{i:08}").into_bytes().try_into().expect("eight digits"));
    let kinds: [(&str, Slices<'_>, usize); 5] = [
        ("random", &|i| spread(i), 60),
        ("in a narrow range, and two far away", &|i| if i < 2 { i * (u64::MAX - 1) } else { (1 << 40) + (spread(i) >> 30) }, 60),
        ("descending", &|i| (KEYS - i) << 20, 30),
        ("ascending", &|i| i, 30),
        ("digits in random order", &|i| digits(i * 7_919 % KEYS), 5),
    ];
    for (what, slice, percent) in kinds {
        let world = Bench::new(BTreeIndex::new());
        let slices: Vec<u64> = (0..KEYS).map(slice).collect();
        for (i, slice) in slices.iter().enumerate() {
            put(&world, *slice);
            if i % 4_000 == 0 {
                check_cells(&world, &slices[i / 2..i]);
            }
        }
        let lowest = check_cells(&world, &slices);
        assert!(lowest * 100 >= slices.len() * percent, "{what}: {lowest} of {KEYS} at the lowest level");
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
            let level = level_of_root(&world);
            assert_eq!(table(&world).is_some(), level >= 2, "level {level} at key {i} of round {round}");
        }
        // Each size is allocated once.
        let bytes = world.index.root.radix.memory_bytes();
        assert!((500..4_000).contains(&bytes), "{bytes} bytes in round {round}");
        let kept = slices.split_off(500);
        for (i, slice) in kept.iter().enumerate() {
            assert!(world.write(&slice.to_be_bytes(), Ref::NONE).is_some());
            if i % 4_000 == 0 {
                check_cells(&world, &slices);
            }
        }
        check_cells(&world, &slices);
        world.check(slices.len());
        assert!(level_of_root(&world) < 2, "the tree has shrunk");
        slices.extend(kept);
    }
}

/// Keys that are appended while as many are deleted at the front: the number of nodes stays, and the table follows.
#[test]
fn a_table_follows_keys_that_move_on() {
    let world = Bench::new(BTreeIndex::new());
    let mut lowest = 0;
    for i in 0..5 * KEYS {
        put(&world, i);
        if i >= KEYS {
            world.write(&(i - KEYS).to_be_bytes(), Ref::NONE);
        }
        if i > KEYS && i % 1_000 == 0 {
            lowest += check_cells(&world, &(i - KEYS + 1..=i).step_by(100).collect::<Vec<_>>());
        }
    }
    let all = 4 * KEYS as usize / 1_000 * KEYS as usize / 100;
    assert!(lowest * 10 >= all * 3, "{lowest} of {all} at the lowest level");
    world.check(KEYS as usize);
}

#[test]
fn a_tree_that_is_loaded_as_a_whole_has_a_table() {
    let world = Bench::new(BTreeIndex::new());
    let slices: Vec<u64> = (0..KEYS).map(|i| (i << 30) | (i * i)).collect();
    let mut rest = slices.chunks(1_000);
    let mut source = |piece: &mut SortedPiece| {
        piece.clear();
        let next = rest.next();
        next.into_iter().flatten().for_each(|slice| piece.push(&slice.to_be_bytes(), world.log.append(&slice.to_be_bytes())));
        next.is_some()
    };
    {
        let _pin = epoch::pin();
        world.index.load_words(&mut [&mut source as &mut dyn PieceSource], &world.log);
    }
    let lowest = check_cells(&world, &slices);
    assert!(lowest * 10 >= slices.len() * 7, "{lowest} of {KEYS} at the lowest level");
    world.check(slices.len());
}

/// Keys in two clusters: the node between them spans nearly all cells, and takes few stores nevertheless.
#[test]
fn a_gap_between_keys_is_left_out() {
    let world = Bench::new(BTreeIndex::new());
    let keys = 4 * KEYS;
    for i in 0..keys {
        put(&world, i / 2 + (i % 2) * (1 << 50));
    }
    let table = table(&world).expect("the tree has two inner levels");
    let filled = table.cells.iter().filter(|cell| cell.load(Relaxed) != 0).count();
    assert!(table.cells.len() >= 4 * MOST_CELLS && filled <= 3 * MOST_CELLS, "{filled} of {} cells", table.cells.len());
    for i in 0..1_000 {
        let slice = i << 40 | 7;
        put(&world, slice);
        assert!(world.get(&slice.to_be_bytes()).is_some());
    }
    // The first of them overwrites a key.
    world.check(keys as usize + 999);
}

/// Whatever the cells hold (leaves, roots of layers, nodes of other slices, nodes that are gone), searches find what they
/// should.
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
    let table = table(&world).expect("the tree has two inner levels");
    let nodes: Vec<Node<'_>> = (0..1 << 17).filter_map(|id| world.index.arena.node(id)).collect();
    let (alive, dead): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.version().try_read().is_ok());
    let (inner, leaves): (Vec<_>, Vec<_>) = alive.into_iter().partition(|node| node.meta().is_inner());
    let (deep, first): (Vec<_>, Vec<_>) = inner.into_iter().partition(|node| Inner(*node).bounds() == Bounds::NOTHING);
    // Where an inner node has its bounds, a leaf has slices: those of its own keys lie between them.
    for leaf in leaves.iter().map(|node| Leaf(*node)).filter(|leaf| leaf.0.meta().count() > 30) {
        let slice = leaf.load(32);
        table.cells[table.cell_of(slice)].store(leaf.0.address(), Relaxed);
        let _pin = epoch::pin();
        let (node, _) = world.index.begin(slice).expect("no writer is active");
        assert!(node.meta().is_inner());
    }
    let mut refused = 0;
    for nodes in [dead, leaves, deep, first] {
        assert!(nodes.len() >= 3, "{} nodes", nodes.len());
        for _ in 0..4 {
            table.cells.iter().for_each(|cell| cell.store(nodes[random.below(nodes.len())].address(), Relaxed));
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
    }
    assert!((24_000..32_000).contains(&refused), "{refused} of 32,000 guesses were refused");
    // Writes repair what they touch, and end well.
    gone.iter().for_each(|slice| put(&world, *slice));
    world.check(slices.len() + 600);
}
