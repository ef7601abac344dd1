//! A peek confirms its result last: what changes before that is not returned.

use crate::btree::BTree;
use crate::btree::protocol::{Point, Protocol};
use crate::conformance::point::Bench;
use crate::{Index, Ref};
use hither_sync::epoch;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// What this thread does when a peek has found something and has not confirmed it yet.
    static MEDDLE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Meddling;

impl Protocol for Meddling {
    fn reached(point: Point) {
        if point == Point::Peeked
            && let Some(meddle) = MEDDLE.take()
        {
            meddle();
        }
    }
}

type World = Bench<BTree<Meddling>>;
/// A change to a key during the peek, and whether the peek answers in spite of it.
type Change = (fn(&World, u64), bool);

fn put(world: &World, key: u64) {
    let bytes = key.to_be_bytes();
    world.write(&bytes, world.log.append(&bytes));
}

#[test]
fn what_changes_beneath_a_peek_is_not_returned() {
    let overwrite = put;
    let remove = |world: &World, key: u64| assert!(world.write(&key.to_be_bytes(), Ref::NONE).is_some());
    let split_and_overwrite = |world: &World, key: u64| {
        (1..100).for_each(|near| put(world, key + near));
        put(world, key);
    };
    let nothing = |_: &World, _: u64| {};
    let changes: [Change; 4] = [(overwrite, false), (remove, false), (split_and_overwrite, false), (nothing, true)];
    for (i, (change, answers)) in changes.into_iter().enumerate() {
        let world = Arc::new(World::new(BTree::new()));
        (0..300).for_each(|key| put(&world, key * 1_000));
        // Not all keys are removed: an index of one leaf answers no peek.
        for key in (0..100).map(|key| key * 1_000) {
            let meddled = Arc::clone(&world);
            MEDDLE.set(Some(Box::new(move || change(&meddled, key))));
            let word = u64::from_ne_bytes(key.to_be_bytes());
            let look = |found: Ref, _: u64| world.log.is_entry_of(found, &key.to_be_bytes()).then_some(());
            let _pin = epoch::pin();
            let (seen, _) = world.index.peek(word, (world.log.hasher(), look));
            assert!(MEDDLE.take().is_none(), "the peek found something");
            assert_eq!(seen.is_some(), answers, "change {i} of key {key}");
            assert!(!answers || seen == world.get(&key.to_be_bytes()));
        }
    }
}
