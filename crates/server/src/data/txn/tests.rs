//! What a transaction makes of changes by others, step by step.

use super::*;
use crate::data::Databases;
use hither::Db;
use proptest::prelude::*;
use std::ops::{Bound, ControlFlow, RangeBounds};

fn open() -> (Arc<Databases>, Arc<Database>) {
    let databases = Databases::open(Db::builder().in_memory().open().unwrap(), 1).unwrap();
    let database = databases.get(0).unwrap();
    (databases, database)
}

fn head(count: u64) -> Vec<u8> {
    Head { kind: Type::SortedSet, number: 7, count }.encode()
}

/// Regression: a transaction that saw a key absent, then present, was applied if the key was absent again at the end.
#[test]
fn a_key_that_comes_and_goes_between_two_looks_is_noticed() {
    let (databases, database) = open();
    let mut txn = Txn::new(database.clone(), true, WriteOptions::new());
    assert_eq!(txn.load(b"z").unwrap(), None);
    database.keys.put(b"z", &head(1)).unwrap();
    assert!(txn.load(b"z").unwrap().is_some());
    txn.put(b"z", head(2), 0);
    database.keys.delete(b"z").unwrap();
    assert!(!txn.is_as_read(&databases.db).unwrap());
    assert!(!txn.commit(&databases.db).unwrap().applied);
    assert!(!database.keys.contains(b"z").unwrap());
}

/// Regression: the same for a lone command that looks twice.
#[test]
fn a_lone_command_that_saw_two_states_is_not_applied() {
    let (databases, database) = open();
    let mut txn = Txn::new(database.clone(), false, WriteOptions::new());
    assert_eq!(txn.load(b"z").unwrap(), None);
    database.keys.put(b"z", &head(1)).unwrap();
    assert!(txn.load(b"z").unwrap().is_some());
    database.keys.delete(b"z").unwrap();
    assert!(!txn.commit(&databases.db).unwrap().applied);
}

/// What a model test does to a transaction.
#[derive(Clone, Debug)]
enum Step {
    Put(bool, Vec<u8>),
    Delete(bool, Vec<u8>),
    /// Deletes what there is between two keys.
    Empty(bool, Vec<u8>, Vec<u8>),
    /// Scans until so many entries have come.
    Scan(bool, Bound<Vec<u8>>, Bound<Vec<u8>>, bool, usize),
    Begin,
    Undo,
}

fn a_key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop::sample::select(vec![0, 1, 2, 255]), 1..4)
}

fn a_bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![Just(Bound::Unbounded), a_key().prop_map(Bound::Included), a_key().prop_map(Bound::Excluded)]
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<bool>(), a_key()).prop_map(|(rows, key)| Step::Put(rows, key)),
        2 => (any::<bool>(), a_key()).prop_map(|(rows, key)| Step::Delete(rows, key)),
        2 => (any::<bool>(), a_key(), a_key()).prop_map(|(rows, low, high)| Step::Empty(rows, low, high)),
        6 => (any::<bool>(), a_bound(), a_bound(), any::<bool>(), prop_oneof![1..9_usize, Just(usize::MAX)])
            .prop_map(|(rows, from, to, reverse, most)| Step::Scan(rows, from, to, reverse, most)),
        1 => Just(Step::Begin),
        1 => Just(Step::Undo),
    ]
}

/// What a scan shows, in its order.
fn scanned(txn: &mut Txn, rows: bool, bounds: (Bound<&[u8]>, Bound<&[u8]>), reverse: bool, most: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let take = |key: &[u8], _: &[u8]| {
        found.push(key.to_vec());
        if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    if rows {
        txn.rows(bounds.0, bounds.1, reverse, take).unwrap()
    } else {
        txn.keys(bounds.0, bounds.1, reverse, take).unwrap()
    }
    found
}

/// The keys that a transaction must show; rows and keys.
#[derive(Clone, Default)]
struct Model([BTreeSet<Vec<u8>>; 2]);

impl Model {
    fn step(&mut self, txn: &mut Txn, step: Step) {
        let space = |rows| if rows { Space::Rows } else { Space::Keys };
        let item = || Item { entry: b"own".to_vec(), expires_at_ms: 0 };
        match step {
            Step::Put(rows, key) => {
                txn.write(space(rows), &key, Some(item()));
                self.0[usize::from(rows)].insert(key);
            }
            Step::Delete(rows, key) => {
                txn.write(space(rows), &key, None);
                self.0[usize::from(rows)].remove(&key);
            }
            Step::Empty(rows, low, high) => {
                let keys = &mut self.0[usize::from(rows)];
                keys.extract_if(low.clone()..high.max(low), |_| true).for_each(|key| txn.write(space(rows), &key, None));
            }
            Step::Scan(rows, from, to, reverse, most) => {
                let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                let within = self.0[usize::from(rows)].iter().filter(|key| bounds.contains(&key.as_slice())).cloned();
                let expected: Vec<_> = if reverse { within.rev().take(most).collect() } else { within.take(most).collect() };
                assert_eq!(scanned(txn, rows, bounds, reverse, most), expected, "{rows} {bounds:?} {reverse} {most}");
            }
            Step::Begin | Step::Undo => unreachable!("the test does it"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn scans_show_what_a_map_would(
        committed in proptest::collection::vec((any::<bool>(), a_key()), 0..80),
        steps in proptest::collection::vec(a_step(), 1..80),
    ) {
        let (_databases, database) = open();
        let mut model = Model::default();
        for (rows, key) in committed {
            let keyspace = if rows { &database.rows } else { &database.keys };
            keyspace.put(&key, b"committed").unwrap();
            model.0[usize::from(rows)].insert(key);
        }
        let mut txn = Txn::new(database, true, WriteOptions::new());
        let mut before = model.clone();
        txn.begin_command();
        for step in steps {
            match step {
                Step::Begin => {
                    txn.begin_command();
                    before = model.clone();
                }
                Step::Undo => {
                    txn.undo_command();
                    model = before.clone();
                    txn.begin_command();
                }
                step => model.step(&mut txn, step),
            }
        }
        for (rows, reverse) in [(false, false), (false, true), (true, false), (true, true)] {
            model.step(&mut txn, Step::Scan(rows, Bound::Unbounded, Bound::Unbounded, reverse, usize::MAX));
        }
    }
}

fn row_of(set: u8, place: u32) -> Vec<u8> {
    [&[set][..], &place.to_be_bytes()].concat()
}

/// A transaction on sets of `members` rows each.
fn with_sets(sets: u8, members: u32) -> (Arc<Databases>, Txn) {
    let (databases, database) = open();
    for (set, member) in (0..sets).flat_map(|set| (0..members).map(move |member| (set, member))) {
        database.rows.put(&row_of(set, 1_000_000 + member), b"").unwrap();
    }
    (databases, Txn::new(database, true, WriteOptions::new()))
}

/// Takes the first or last members of a set, and returns them.
fn pop(txn: &mut Txn, set: u8, count: usize, reverse: bool) -> Vec<Vec<u8>> {
    let popped = scanned(txn, true, (Bound::Included(&[set]), Bound::Excluded(&[set + 1])), reverse, count);
    popped.iter().for_each(|row| txn.delete_row(row));
    popped
}

/// Regression: a row that was put among those that were taken before had them all passed over again.
#[test]
fn what_is_put_among_taken_rows_hides_them_no_less() {
    let (_databases, mut txn) = with_sets(1, 4000);
    steps::take();
    for round in 0..2000 {
        assert_eq!(pop(&mut txn, 0, 2, false).len(), 2);
        // The same place, a place before all others, places in between.
        txn.put_row(&row_of(0, [5, 900_000 - round, 1_000_000 + round][round as usize % 3]), Vec::new());
    }
    let steps = steps::take();
    assert!(steps < 2000 * 16, "{steps}");
}

/// Regression: it was remembered for a few sets only what had been taken from them.
#[test]
fn rows_may_be_taken_from_many_sets_in_turn() {
    let (_databases, mut txn) = with_sets(40, 100);
    steps::take();
    for round in 0..4000_u32 {
        assert_eq!(pop(&mut txn, (round % 40) as u8, 1, round % 80 < 40).len(), 1);
    }
    let steps = steps::take();
    assert!(steps < 4000 * 10, "{steps}");
}

/// Regression: scans of keys passed over each key that the transaction had deleted.
#[test]
fn deleted_keys_are_passed_over_once() {
    let (_databases, database) = open();
    (0..5000_u32).for_each(|key| database.keys.put(&key.to_be_bytes(), b"\0value").unwrap());
    let mut txn = Txn::new(database, true, WriteOptions::new());
    (0..5000_u32).filter(|key| key % 1000 != 500).for_each(|key| assert!(txn.delete(&key.to_be_bytes()).unwrap()));
    steps::take();
    for round in 0..200_u32 {
        let middle = (round * 25).to_be_bytes();
        let from = if round % 2 == 0 { Bound::Unbounded } else { Bound::Excluded(&middle[..]) };
        assert!(scanned(&mut txn, false, (from, Bound::Unbounded), round % 3 == 0, 1).len() <= 1);
    }
    let steps = steps::take();
    assert!(steps < 5000 + 200 * 10, "{steps}");
}

#[test]
fn a_failed_command_brings_back_what_it_had_taken() {
    let (_databases, mut txn) = with_sets(1, 100);
    txn.begin_command();
    assert_eq!(pop(&mut txn, 0, 50, false).len(), 50);
    txn.begin_command();
    assert_eq!(pop(&mut txn, 0, 20, false)[0], row_of(0, 1_000_050));
    assert_eq!(pop(&mut txn, 0, 20, false)[0], row_of(0, 1_000_070));
    txn.undo_command();
    assert_eq!(pop(&mut txn, 0, 100, false).len(), 50);
}
