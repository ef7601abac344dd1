//! Layers in a chain, each with a slot for the next one and nothing else. They are left where keys that branched off
//! from a long common prefix are gone.

use crate::btree::BTree;
use crate::btree::protocol::{Point, Protocol};
use crate::conformance::{FakeLog, ordered};
use crate::{Index, OrderedIndex, Ref, Start};
use hither_sync::epoch;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

type Change = Box<dyn FnOnce()>;

thread_local! {
    /// Number of nodes that this thread has descended to.
    static VISITED: Cell<usize> = const { Cell::new(0) };
    /// A change that is made when so many nodes have been visited.
    static CHANGE: RefCell<Option<(usize, Change)>> = const { RefCell::new(None) };
}

struct Counting;

impl Protocol for Counting {
    fn reached(point: Point) {
        if point == Point::Descend {
            VISITED.set(VISITED.get() + 1);
            if let Some((_, change)) = CHANGE.with_borrow_mut(|change| change.take_if(|(at, _)| *at == VISITED.get())) {
                change();
            }
        }
    }
}

const LAYERS: usize = 300;

/// A key that leaves the common prefix at its `branch`th other slice.
fn branch(branch: usize) -> Vec<u8> {
    [&[b'p'; 16 * LAYERS][..16 * branch + 8], b"branches off"].concat()
}

fn end(last: u8) -> Vec<u8> {
    end_of(LAYERS, last)
}

fn end_of(layers: usize, last: u8) -> Vec<u8> {
    [&[b'p'; 16 * LAYERS][..16 * layers], &[last]].concat()
}

/// Leaves a chain of so many layers behind; returns the references at its end.
fn chain(index: &BTree<Counting>, log: &FakeLog, layers: usize) -> [Ref; 2] {
    let ends = [b'b', b'd'].map(|last| ordered::put(index, log, &end_of(layers, last)));
    (0..layers).for_each(|i| _ = ordered::put(index, log, &branch(i)));
    (0..layers).for_each(|i| assert!(ordered::delete(index, log, &branch(i))));
    ends
}

/// Runs `work`; returns its result and the number of nodes that it descended to.
fn visited<T>(work: impl FnOnce() -> T) -> (T, usize) {
    VISITED.set(0);
    let result = work();
    (result, VISITED.get())
}

/// Regression: at each layer a scan that began below it looked for a key of the layer, which is at the end of the
/// chain, so the nodes visited grew with the square of the number of layers.
#[test]
fn the_way_down_a_chain_takes_a_walk_or_two() {
    let (index, log) = (BTree::<Counting>::new(), FakeLog::new(1));
    let ends = chain(&index, &log, LAYERS);
    let _pin = epoch::pin();
    let found = visited(|| index.get(log.key_of(&end(b'b')), &log));
    assert!(found.0 == ends[0] && found.1 >= LAYERS, "{} layers are left", found.1);
    for (last, expected) in
        [(b'a', [Some(ends[0]), None]), (b'b', [Some(ends[0]); 2]), (b'c', [Some(ends[1]), Some(ends[0])]), (b'e', [None, Some(ends[1])])]
    {
        for backward in [false, true] {
            let mut out = Vec::new();
            let (_, nodes) = visited(|| index.scan(Start::At(&end(last)), backward, 1, &mut out, &log));
            assert_eq!(out.first().copied(), expected[usize::from(backward)], "{last} {backward}");
            assert!(nodes < 8 * LAYERS, "{nodes} nodes");
        }
    }
    assert!(index.check(&log).is_ok());
    // Placing a scan at a key that branches off, and looking for unreadable entries, do not take more walks either.
    for i in (0..LAYERS).step_by(7) {
        let mut out = Vec::new();
        let (_, nodes) = visited(|| index.scan(Start::At(&branch(i)), false, 1, &mut out, &log));
        assert!(out == ends[..1] && nodes < 8 * LAYERS, "{nodes} nodes");
        let (beside, nodes) = visited(|| index.unreadable_beside(log.key_of(&branch(i)), &log));
        assert!(beside == Ref::NONE && nodes < 8 * LAYERS, "{nodes} nodes");
    }
    let (_, nodes) = visited(|| ordered::put(&index, &log, &branch(LAYERS - 1)));
    assert!(nodes < 12 * LAYERS, "{nodes} nodes");
    assert!(index.check(&log).is_ok());
}

/// Keys of eight layers whose skipped slices differ from the `from`th one on.
fn others(from: usize) -> [Vec<u8>; 2] {
    [b'b', b'd'].map(|last| {
        let mut key = end_of(8, last);
        key[16 * from..128].fill(b'o');
        key
    })
}

/// Whatever happens to the chain while a scan descends, and at whichever node it is, the scan begins where it would
/// have begun before the change or after it.
#[test]
fn a_chain_may_change_on_the_way_down() {
    let probes = [end_of(8, b'a'), end_of(8, b'c'), others(6)[0].clone(), branch(6), [&[b'p'; 100][..], b"q"].concat()];
    for (probe, backward) in probes.iter().flat_map(|probe| [(probe, false), (probe, true)]) {
        for kind in 0..4 {
            for at in 1.. {
                let world = Arc::new((BTree::<Counting>::new(), FakeLog::new(1)));
                let (index, log) = &*world;
                let old = chain(index, log, 8);
                let (there, new) = (world.clone(), Arc::new(std::sync::OnceLock::new()));
                let told = new.clone();
                let change = move || {
                    let (index, log) = &*there;
                    let put = |key: &[u8]| ordered::put(index, log, key);
                    // Other keys below other layers (0); the layers cut (1); both (2); another chain behind the same
                    // beginning (3).
                    if kind == 3 {
                        put(&branch(5));
                    }
                    if kind != 1 {
                        [b'b', b'd'].iter().for_each(|last| assert!(ordered::delete(index, log, &end_of(8, *last))));
                        others(6).iter().for_each(|key| _ = put(key));
                    }
                    if kind == 3 {
                        let branch = |i: usize| [&others(6)[0][..16 * i + 8], b"branches off"].concat();
                        (6..8).for_each(|i| _ = put(&branch(i)));
                        (6..8).for_each(|i| assert!(ordered::delete(index, log, &branch(i))));
                    } else if kind != 0 {
                        (2..8).for_each(|i| _ = put(&[&[b'p'; 128][..16 * i + 3], b"cut"].concat()));
                    }
                    let mut after = Vec::new();
                    index.scan(Start::Edge, false, usize::MAX, &mut after, log);
                    told.set(after).expect("once");
                };
                let _pin = epoch::pin();
                CHANGE.set(Some((at, Box::new(change))));
                let mut out = Vec::new();
                visited(|| index.scan(Start::At(probe), backward, 1, &mut out, log));
                CHANGE.take();
                let place = |refs: &[Ref]| {
                    let beside =
                        |reference: &&Ref| if backward { log.peek(**reference) <= &probe[..] } else { log.peek(**reference) >= &probe[..] };
                    if backward { refs.iter().rfind(beside).copied() } else { refs.iter().find(beside).copied() }
                };
                let Some(after) = new.get() else {
                    assert_eq!(out.first().copied(), place(&old));
                    break;
                };
                let allowed = [place(&old), place(after)];
                assert!(allowed.contains(&out.first().copied()), "change {kind} at node {at}: {out:?} is none of {allowed:?}");
                assert!(index.check(log).is_ok());
            }
        }
    }
}
