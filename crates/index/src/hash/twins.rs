//! Planted bugs: a twin leaves out each step of the protocol that a [`Rule`] names, and a test shows that the twin is
//! caught while the sound protocol passes the same test, interrupted at the same points. One [`Twin`] serves all rules:
//! a type for each would compile the table once more for each.
//!
//! Tests that interrupt an operation run something else inside it: on the same thread or, where that would wait for the
//! operation, on another one. So they do not depend on scheduling.

use super::protocol::{Point, Protocol, Rule};
use super::{HashTable, Segment};
use crate::common::twins::LeftOut;
use crate::conformance::point::{self, Bench};
use crate::{Index, Ref};
use hither_sync::epoch;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

type Hook = Box<dyn FnMut(Point)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Runs the thread's hook; the hook is not interrupted by itself.
fn run_hook(point: Point) {
    let hook = HOOK.with(|slot| slot.borrow_mut().take());
    if let Some(mut hook) = hook {
        hook(point);
        HOOK.with(|slot| *slot.borrow_mut() = Some(hook));
    }
}

/// Sets the thread's hook until the end of `work`.
fn hooked<T>(hook: impl FnMut(Point) + 'static, work: impl FnOnce() -> T) -> T {
    HOOK.with(|slot| *slot.borrow_mut() = Some(Box::new(hook)));
    let result = work();
    HOOK.with(|slot| slot.borrow_mut().take());
    result
}

/// The protocol with interruptions, and without the rule that a test leaves out.
struct Twin;

static LEFT_OUT: LeftOut = LeftOut::new();
/// Whether all threads sleep in the middle of splits.
static RESTS: AtomicBool = AtomicBool::new(false);

impl Protocol for Twin {
    fn heeds(rule: Rule) -> bool {
        !LEFT_OUT.is(rule as u8)
    }

    fn pause(point: Point) {
        run_hook(point);
        if RESTS.load(Ordering::Relaxed) && point != Point::SegmentChosen {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// Inserts keys from `from` on until a rebuild has passed `point`; `act` runs there, once. Returns the number of the
/// next key.
fn interrupt(bench: &Arc<Bench<HashTable<Twin>>>, from: u64, point: Point, mut act: impl FnMut() + 'static) -> u64 {
    let (told, seen) = channel();
    let hook = move |at| {
        if at == point && told.send(()).is_ok() {
            act();
        }
    };
    hooked(hook, || {
        let mut i = from;
        while seen.try_recv().is_err() {
            bench.put(&key(i));
            i += 1;
        }
        i
    })
}

/// An update of a key in pair `number` that arrives while the segment's keys are being moved survives.
fn update_during_split(number: usize) {
    let bench = Arc::new(Bench::new(HashTable::<Twin>::new()));
    let mut inside = Vec::new();
    for i in 0..300 {
        bench.put(&key(i));
        let hash = bench.log.hash_of(&key(i));
        let _pin = epoch::pin();
        if bench.index.segment(hash).pair_number(hash, 0) == number {
            inside.push(i);
        }
    }
    let victim = *inside.first().expect("300 keys fall into 32 pairs");
    let (told, updated) = channel();
    let other = bench.clone();
    let act = move || {
        let (told, other, (done, wait)) = (told.clone(), other.clone(), channel());
        std::thread::spawn(move || {
            told.send(other.put(&key(victim))).expect("the test is waiting");
            let _ = done.send(());
        });
        // A sound update waits for the split: go on without it. A broken one gets through and is lost.
        let is_sound = [Rule::FreezeAll, Rule::HeedFrozen].into_iter().all(Twin::heeds);
        let _ = wait.recv_timeout(Duration::from_millis(if is_sound { 200 } else { 60_000 }));
    };
    let keys = interrupt(&bench, 300, Point::Collected, act);
    let expected = updated.recv().expect("the update ended");
    assert_eq!(bench.get(&key(victim)), expected, "an update was lost in a split");
    bench.check(keys as usize);
}

/// All keys are found at the moment when new segments become reachable.
fn lookups_while_publishing() {
    let bench = Arc::new(Bench::new(HashTable::<Twin>::new()));
    let mut next = 0;
    for _ in 0..20 {
        let (other, known) = (bench.clone(), next);
        let act = move || (0..known).for_each(|i| assert!(other.get(&key(i)).is_some(), "key {i} of {known} vanished in a split"));
        next = interrupt(&bench, next, Point::Published, act);
    }
    bench.check(next as usize);
}

/// Asserts that `test` fails without the rule.
fn assert_caught(rule: Rule, test: impl FnOnce()) {
    let _alone = LEFT_OUT.alone();
    let result = LEFT_OUT.without(rule as u8, || catch_unwind(AssertUnwindSafe(test)));
    HOOK.with(|slot| slot.borrow_mut().take());
    assert!(result.is_err(), "without {rule:?} nothing goes wrong");
}

#[test]
fn the_sound_protocol_passes() {
    let _alone = LEFT_OUT.alone();
    update_during_split(31);
    update_during_split(5);
    lookups_while_publishing();
    point::equal_hashes(HashTable::<Twin>::new(), 0, 100);
}

#[test]
fn a_split_that_forgets_a_pair_is_caught() {
    assert_caught(Rule::FreezeAll, || update_during_split(31));
}

#[test]
fn a_writer_that_ignores_frozen_pairs_is_caught() {
    assert_caught(Rule::HeedFrozen, || update_during_split(5));
}

#[test]
fn segments_published_before_they_are_filled_are_caught() {
    assert_caught(Rule::FillFirst, lookups_while_publishing);
}

#[test]
fn missing_overflow_flags_are_caught_by_the_suite() {
    assert_caught(Rule::SetFlags, || point::equal_hashes(HashTable::<Twin>::new(), 0, 100));
    assert_caught(Rule::SetFlags, || point::growth(HashTable::<Twin>::new(), 20_000));
}

/// Inserts enough keys to split every segment several times.
fn churn(bench: &Bench<HashTable<Twin>>, from: u64) {
    (from..from + 5_000).for_each(|i| {
        bench.put(&key(i));
    });
    epoch::collect();
}

/// A lookup that is overtaken by splits, doublings and an update after it chose its segment finds the old or the new
/// reference: both were right while it ran. See the proof at the head of the parent module.
#[test]
fn an_overtaken_lookup_finds_the_old_or_the_new_reference() {
    let _alone = LEFT_OUT.alone();
    let bench = Arc::new(Bench::new(HashTable::<Twin>::new()));
    (0..200).for_each(|i| {
        bench.put(&key(i));
    });
    for (round, i) in (0..200).step_by(17).enumerate() {
        let old = bench.get(&key(i));
        let (told, new) = channel();
        let other = bench.clone();
        let mut first = true;
        let hook = move |at| {
            if at == Point::SegmentChosen && std::mem::take(&mut first) {
                churn(&other, 1000 + 5_000 * round as u64);
                told.send(other.put(&key(i))).expect("the test is waiting");
            }
        };
        let found = hooked(hook, || bench.get(&key(i)));
        let new = new.recv().expect("the hook ran");
        assert!(found == old || found == new, "{found:?} is neither {old:?} nor {new:?}");
        assert_eq!(bench.get(&key(i)), new);
    }
}

/// Lookups must not keep a segment from an earlier call: it yields stale answers, which is why they ask the directory.
#[test]
fn a_segment_kept_between_calls_is_stale() {
    let _alone = LEFT_OUT.alone();
    let bench = Bench::new(HashTable::<Twin>::new());
    let _pin = epoch::pin();
    let old = bench.put(&key(1));
    let hash = bench.log.hash_of(&key(1));
    let kept: Segment = bench.index.segment(hash);
    churn(&bench, 1000);
    let new = bench.put(&key(1));
    let stale = bench.index.walk(kept, hash, |place| bench.log.peek(place.reference) == key(1)).map(|place| place.reference);
    assert_eq!((stale, bench.get(&key(1))), (Some(old), new));
    // A token made from the stale segment is recognised.
    let token = super::Token { segment: kept.0, slot: kept.block() as u64 };
    assert_eq!(bench.install(token, &key(1), new, old), Ok(()));
    assert_eq!(bench.install(token, &key(1), old, Ref::NONE), Ok(()));
    assert_eq!(bench.index.len(), 5_000);
}

/// The shared suite under interruptions that only yield the processor: more interleavings on few cores.
#[test]
fn the_concurrent_suite_passes_with_yields_and_catches_a_twin() {
    let suite = || point::run_concurrent(&HashTable::<Twin>::new, 8_000);
    RESTS.store(true, Ordering::SeqCst);
    {
        let _alone = LEFT_OUT.alone();
        suite();
    }
    assert_caught(Rule::FillFirst, suite);
    RESTS.store(false, Ordering::SeqCst);
}
