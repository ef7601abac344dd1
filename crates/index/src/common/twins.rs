//! Planted bugs of the protocol that the ordered indexes share, and counting of its points, for their tests.
//!
//! A bug is a rule that is left out. One [`Twin`] serves all of them: a type for each bug would compile the trees once
//! more for each.

use crate::btree::protocol::{Point, Protocol, Rule};
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread::LocalKey;
use std::time::{Duration, Instant};

/// Number of steps that all twins' protocols have taken, in any thread.
static STEPS: AtomicUsize = AtomicUsize::new(0);

/// Lets other threads come in between: always at a half-done step, at other points every now and then.
fn pause(point: Point) {
    STEPS.fetch_add(1, Ordering::Relaxed);
    match point {
        Point::HalfDone => await_others(30, Duration::from_micros(300)),
        Point::ScanRead if is_nth(&SCAN_READS, 17) => await_others(600, Duration::from_millis(10)),
        Point::Descend | Point::Claimed if is_nth(&TURNS, 61) => std::thread::yield_now(),
        _ => {}
    }
}

thread_local! {
    static SCAN_READS: Cell<u32> = const { Cell::new(0) };
    static TURNS: Cell<u32> = const { Cell::new(0) };
}

/// Counts a call; returns whether it is every `n`th of this thread.
fn is_nth(counter: &'static LocalKey<Cell<u32>>, n: u32) -> bool {
    counter.set(counter.get().wrapping_add(1));
    counter.get().is_multiple_of(n)
}

/// Waits until other threads have made so many steps, if there are any. A pause of fixed length is too short when they
/// do not get to run, and lets them undo its effect when they do.
fn await_others(steps: usize, at_most: Duration) {
    let (from, since) = (STEPS.load(Ordering::Relaxed), Instant::now());
    while STEPS.load(Ordering::Relaxed).wrapping_sub(from) < steps && since.elapsed() < at_most {
        std::thread::yield_now();
    }
}

/// The protocol with pauses, and without the rule that a test leaves out.
pub(crate) struct Twin;

/// The rule that all twins of a kind leave out, if any. Only one test at a time works with twins.
pub(crate) struct LeftOut {
    /// The rule's number, or [`LeftOut::NONE`].
    rule: AtomicU8,
    alone: Mutex<()>,
}

impl LeftOut {
    const NONE: u8 = u8::MAX;

    pub(crate) const fn new() -> LeftOut {
        LeftOut { rule: AtomicU8::new(LeftOut::NONE), alone: Mutex::new(()) }
    }

    pub(crate) fn is(&self, rule: u8) -> bool {
        self.rule.load(Ordering::Relaxed) == rule
    }

    /// Locks out other tests; held by a test that works with twins.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock()
    }

    /// Runs `test` without a rule. The caller holds [`LeftOut::alone`], and `test` must not panic.
    pub(crate) fn without<T>(&self, rule: u8, test: impl FnOnce() -> T) -> T {
        self.rule.store(rule, Ordering::SeqCst);
        let outcome = test();
        self.rule.store(LeftOut::NONE, Ordering::SeqCst);
        outcome
    }
}

static LEFT_OUT: LeftOut = LeftOut::new();

impl Protocol for Twin {
    fn heeds(rule: Rule) -> bool {
        !LEFT_OUT.is(rule as u8)
    }

    fn reached(point: Point) {
        pause(point);
    }
}

/// Asserts that a part of a suite, run on twins, fails within `limit` runs without the rule, and passes twice with it.
pub(crate) fn assert_caught(rule: Rule, mut part: impl FnMut(), limit: usize) {
    let _alone = LEFT_OUT.alone();
    assert!(fails_without(rule, &mut part, limit), "without {rule:?} nothing goes wrong");
    assert_eq!(runs_to_failure(part, 2), None, "the sound twin passes");
}

/// Runs `work` with sound twins only.
pub(crate) fn with_sound_twins(work: impl FnOnce()) {
    let _alone = LEFT_OUT.alone();
    work();
}

fn fails_without(rule: Rule, part: impl FnMut(), limit: usize) -> bool {
    LEFT_OUT.without(rule as u8, || runs_to_failure(part, limit)).is_some()
}

/// Runs `part` until it fails; returns how many runs that took, or `None`.
fn runs_to_failure(mut part: impl FnMut(), limit: usize) -> Option<usize> {
    (1..=limit).find(|_| catch_unwind(AssertUnwindSafe(&mut part)).is_err())
}

/// How often one test has reached each point of the protocol.
pub(crate) struct Counts([AtomicUsize; 32]);

impl Counts {
    pub(crate) const fn new() -> Counts {
        Counts([const { AtomicUsize::new(0) }; 32])
    }

    /// Counts a point, and yields to other threads now and then.
    pub(crate) fn reached(&self, point: Point) {
        let times = self.0[point as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if point != Point::Descend && times.is_multiple_of(64) {
            std::thread::yield_now();
        }
    }

    /// Fails if one of these structure changes was reached fewer than `least` times, or if a half-done one was reached.
    pub(crate) fn assert_all(&self, points: &[Point], least: usize) {
        let times = |point: Point| self.0[point as usize].load(Ordering::Relaxed);
        for point in points {
            assert!(times(*point) >= least, "{point:?} was reached {} times", times(*point));
        }
        assert_eq!(times(Point::HalfDone), 0);
    }
}
