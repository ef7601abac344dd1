//! Entries whose keys are not sound, met by scans that have to look for their place again.

use crate::btree::BTree;
use crate::btree::protocol::{Point, Protocol};
use crate::conformance::{FakeLog, ordered};
use crate::{Index, OrderedIndex, Ref, Resolver, SortedPiece, Start};
use hither_sync::epoch;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static BETWEEN: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs a change each time a leaf was read and not yet validated.
struct Interrupted;

impl Protocol for Interrupted {
    fn reached(point: Point) {
        let between = if point == Point::ScanRead { BETWEEN.take() } else { None };
        if let Some(mut between) = between {
            between();
            BETWEEN.set(Some(between));
        }
    }
}

/// A log in which all entries except those of every third key are damaged: these seem to have the same key.
struct Damaged {
    log: FakeLog,
    seeming: &'static [u8],
}

/// Keys are multiples of this, so that there are others between them.
const STEP: u64 = 256;

impl Resolver for Damaged {
    fn prefetch(&self, _reference: Ref) {}
    fn key(&self, reference: Ref) -> &[u8] {
        if self.is_sound(reference) { self.log.key(reference) } else { self.seeming }
    }
    fn hash(&self, reference: Ref) -> u64 {
        self.log.hash(reference)
    }
    fn is_sound(&self, reference: Ref) -> bool {
        let key = self.log.peek(reference);
        (u64::from_be_bytes(*key.first_chunk().unwrap()) / STEP).is_multiple_of(3)
    }
}

struct World {
    index: BTree<Interrupted>,
    resolver: Damaged,
    refs: Vec<Ref>,
    tail: &'static [u8],
}

impl World {
    fn shared(tail: &'static [u8], seeming: &'static [u8]) -> Arc<World> {
        let (index, log) = (BTree::new(), FakeLog::new(1));
        let refs = (0..1500).map(|i: u64| ordered::put(&index, &log, &[&(i * STEP).to_be_bytes(), tail].concat())).collect();
        Arc::new(World { index, resolver: Damaged { log, seeming }, refs, tail })
    }

    /// Changes every leaf, but none of its final content.
    fn stir(&self) {
        for i in (0..self.refs.len() as u64).step_by(10) {
            let key = [&(i * STEP + 1).to_be_bytes(), self.tail].concat();
            ordered::put(&self.index, &self.resolver.log, &key);
            assert!(ordered::delete(&self.index, &self.resolver.log, &key));
        }
    }

    /// Runs `work` while every `nth` leaf changes as it is read.
    fn stirred<T>(self: &Arc<Self>, nth: usize, work: impl FnOnce() -> T) -> T {
        let (world, mut reads) = (self.clone(), 0);
        let between = move || {
            reads += 1;
            if reads % nth == 0 {
                world.stir();
            }
        };
        BETWEEN.set(Some(Box::new(between)));
        let _pin = epoch::pin();
        let result = work();
        BETWEEN.take();
        result
    }
}

/// Regression: a scan that had to look for its place again went on after whatever key the last entry seemed to have. So
/// it left keys out, returned others twice, or began anew.
#[test]
fn scans_go_on_where_they_were_whatever_damaged_entries_pass_for() {
    for tail in [&b""[..], b"a tail that is in the log"] {
        for seeming in [&b""[..], &[0xff; 9], b"\0\0\0\0\0\x03\xe8\0"] {
            let world = World::shared(tail, seeming);
            let World { index, resolver, refs, .. } = &*world;
            for backward in [false, true] {
                let mut found = vec![Ref(7)];
                world.stirred(3, || index.scan(Start::Edge, backward, 2 * refs.len(), &mut found, resolver));
                let mut expected = refs.clone();
                if backward {
                    expected.reverse();
                }
                assert!(found[1..] == expected, "{} of {} keys, damaged ones pass for {seeming:?}", found.len() - 1, refs.len());
            }
            let mut piece = SortedPiece::default();
            world.stirred(3, || index.copy_sorted(Start::Edge, 2 * refs.len(), &mut piece, resolver));
            assert!(piece.refs() == refs.as_slice(), "{} of {} keys were copied", piece.len(), refs.len());
            let mut visited = Vec::new();
            let visit = &mut |reference| {
                visited.push(reference);
                visited.len() < 10 * refs.len()
            };
            world.stirred(7, || index.for_each(resolver, visit));
            assert!(refs.iter().all(|reference| visited.contains(reference)), "a visit left keys out");
        }
    }
}

/// Regression: a long key whose entry had become zeros was copied as a key of eight bytes, indistinguishable from
/// others.
#[test]
fn a_piece_says_that_keys_in_it_were_read() {
    let (index, log) = (BTree::<Interrupted>::new(), FakeLog::new(1));
    let words: Vec<_> = (1..200u64).map(|i| ordered::put(&index, &log, &(i * STEP).to_be_bytes())).collect();
    let resolver = Damaged { log, seeming: &[0; 8] };
    let copied = || {
        let mut piece = SortedPiece::default();
        let _pin = epoch::pin();
        index.copy_sorted(Start::Edge, usize::MAX, &mut piece, &resolver);
        piece
    };
    let piece = copied();
    assert!(piece.refs() == words && !piece.is_resolved());
    ordered::put(&index, &resolver.log, &[&(7 * STEP).to_be_bytes()[..], b"a tail"].concat());
    let mut piece = copied();
    assert_eq!((piece.len(), piece.words().map(|words| words[7])), (words.len() + 1, Some(0)), "it passes for a word");
    assert!(piece.is_resolved());
    piece.clear();
    assert!(!piece.is_resolved());
}
