//! What happens to a full leaf: for each place of the new slot, each number of slots in a sibling, and slices that
//! several keys share.

use crate::btree::BTree;
use crate::btree::leaf::LEAF_SLOTS;
use crate::btree::protocol::{Point, Protocol};
use crate::conformance::point::Bench;
use crate::{OrderedIndex, Ref, Start};
use hither_sync::epoch;
use std::cell::Cell;

thread_local! {
    /// Number of leaves that gave slots to a sibling, and of leaves that were split.
    static CHANGES: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
}

struct Watched;

impl Protocol for Watched {
    fn reached(point: Point) {
        let [given, split] = CHANGES.get();
        match point {
            Point::Redistribute => CHANGES.set([given + 1, split]),
            Point::LeafSplit | Point::EdgeSplit => CHANGES.set([given, split + 1]),
            _ => {}
        }
    }
}

/// Key `number` of an ascending row in which `group` keys share a slice: all but the first have zero bytes after its
/// bytes.
fn key(number: usize, group: usize) -> Vec<u8> {
    let first = 9 - group;
    let mut key = ((number / group + 1) as u64).to_be_bytes()[8 - first..].to_vec();
    key.resize(first + number % group, 0);
    key
}

/// Inserts the key before slot `at` of a full leaf that has a sibling of `slots` slots on one side. Returns the changes
/// counted.
fn insert_into_full(group: usize, slots: usize, at: usize, sibling_is_right: bool) -> [usize; 2] {
    let bench = Bench::new(BTree::<Watched>::new());
    // Every other key of the row: those between are to come. A group of odd length has one of its keys more or less.
    let present: Vec<usize> = (0..LEAF_SLOTS + slots).map(|i| 2 * i + 1).collect();
    let put = |number: &usize| _ = bench.put(&key(*number, group));
    if sibling_is_right {
        present.iter().for_each(put);
    } else {
        present.iter().rev().for_each(put);
    }
    let full_from = if sibling_is_right { 0 } else { slots };
    let new = 2 * (full_from + at);
    CHANGES.set([0; 2]);
    put(&new);
    bench.check(present.len() + 1);
    let mut expected: Vec<Vec<u8>> = present.iter().chain([&new]).map(|number| key(*number, group)).collect();
    expected.sort();
    let mut found: Vec<Ref> = Vec::new();
    let _pin = epoch::pin();
    bench.index.scan(Start::Edge, false, expected.len() + 1, &mut found, &bench.log);
    assert!(
        found.iter().map(|found| bench.log.peek(*found)).eq(&expected),
        "group {group}, {slots} slots, at {at}, right: {sibling_is_right}"
    );
    assert!(expected.iter().all(|key| bench.get(key).is_some()));
    CHANGES.get()
}

#[test]
fn a_full_leaf_gives_or_is_split_wherever_the_new_slot_goes() {
    let mut all = [0; 2];
    for group in [1, 2, 4, 8] {
        for slots in [1, 2, 7, 8, 20, 49, 50, 51, 52, 58] {
            for at in (0..=LEAF_SLOTS).filter(|at| group > 1 || at % 3 == 0 || slots > 48) {
                for sibling_is_right in [true, false] {
                    let changes = insert_into_full(group, slots, at, sibling_is_right);
                    all = [all[0] + changes[0], all[1] + changes[1]];
                    if group == 1 && (1..LEAF_SLOTS).contains(&at) {
                        assert_eq!(changes, if slots <= 50 { [1, 0] } else { [0, 1] }, "{slots} slots, at {at}");
                    }
                }
            }
        }
    }
    assert!(all.iter().all(|count| *count > 500), "{all:?}");
}
