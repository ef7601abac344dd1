//! Tests the epoch domain, the key latch and turns under loom: every schedule within the bound, with weak memory.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p hither-sync --release --test loom`. Some properties have a
//! planted variant, whose bug must be found.

#![cfg(loom)]

use hither_sync::epoch::Domain;
use hither_sync::latch::LatchTable;
use hither_sync::turns::Turns;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

/// Explores every schedule with at most three preemptions (`LOOM_MAX_PREEMPTIONS` overrides that, if set).
fn explore(scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(scenario);
}

/// A reader accesses an object that a writer unlinks; the writer destroys it after a grace period (or at once: the
/// planted bug).
fn reclamation(wait: bool) {
    explore(move || {
        let domain = Arc::new(Domain::new());
        let (linked, destroyed) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (domain, linked, destroyed) = (domain.clone(), linked.clone(), destroyed.clone());
            thread::spawn(move || {
                let slot = domain.acquire();
                domain.announce(slot, false);
                if linked.load(Ordering::Acquire) {
                    assert!(!destroyed.load(Ordering::Acquire), "destroyed under a reader");
                }
                slot.leave();
            })
        };
        linked.store(false, Ordering::Release);
        if wait {
            domain.synchronize(false);
        }
        destroyed.store(true, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn nothing_is_destroyed_under_a_reader() {
    reclamation(true);
}

#[test]
#[should_panic(expected = "destroyed under a reader")]
fn planted_no_grace_period_is_found() {
    reclamation(false);
}

/// `synchronize` for writers waits for sections under way and sees their effects, relaxed stores included.
fn writer_section(announce_as_writer: bool) {
    explore(move || {
        let domain = Arc::new(Domain::new());
        let (begun, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writer = {
            let (domain, begun, written) = (domain.clone(), begun.clone(), written.clone());
            thread::spawn(move || {
                let slot = domain.acquire();
                domain.announce(slot, announce_as_writer);
                begun.store(true, Ordering::Release);
                written.store(1, Ordering::Relaxed);
                slot.leave();
            })
        };
        if begun.load(Ordering::Acquire) {
            domain.synchronize(true);
            assert_eq!(written.load(Ordering::Relaxed), 1, "a writer section was not waited for");
        }
        writer.join().unwrap();
    });
}

#[test]
fn writer_sections_are_waited_for() {
    writer_section(true);
}

#[test]
#[should_panic(expected = "was not waited for")]
fn planted_section_without_the_writer_bit_is_found() {
    writer_section(false);
}

/// A writer bit that is added to an outer pin counts like a section of its own.
#[test]
fn a_section_inside_a_pin_is_waited_for() {
    explore(|| {
        let domain = Arc::new(Domain::new());
        let (begun, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writer = {
            let (domain, begun, written) = (domain.clone(), begun.clone(), written.clone());
            thread::spawn(move || {
                let slot = domain.acquire();
                domain.announce(slot, false);
                domain.mark_writer(slot);
                begun.store(true, Ordering::Release);
                written.store(1, Ordering::Relaxed);
                slot.leave();
            })
        };
        if begun.load(Ordering::Acquire) {
            domain.synchronize(true);
            assert_eq!(written.load(Ordering::Relaxed), 1);
        }
        writer.join().unwrap();
    });
}

/// A stamp passes only when older pins are gone.
#[test]
fn stamps_do_not_pass_under_older_pins() {
    explore(|| {
        let domain = Arc::new(Domain::new());
        let inside = Arc::new(AtomicU64::new(0));
        let reader = {
            let (domain, inside) = (domain.clone(), inside.clone());
            thread::spawn(move || {
                let slot = domain.acquire();
                domain.announce(slot, false);
                inside.store(1, Ordering::SeqCst);
                inside.store(2, Ordering::SeqCst);
                slot.leave();
            })
        };
        let was_inside = inside.load(Ordering::SeqCst) == 1;
        let stamp = domain.stamp();
        let passed = domain.has_passed(stamp, false);
        if was_inside && passed {
            assert_eq!(inside.load(Ordering::SeqCst), 2, "passed although the reader was inside");
        }
        reader.join().unwrap();
    });
}

/// Slots have one owner at a time.
#[test]
fn slots_are_not_shared() {
    explore(|| {
        let domain = Arc::new(Domain::new());
        let other = {
            let domain = domain.clone();
            thread::spawn(move || std::ptr::from_ref(domain.acquire()) as usize)
        };
        let mine = std::ptr::from_ref(domain.acquire()) as usize;
        assert_ne!(mine, other.join().unwrap());
    });
}

/// After two writers of one stripe, the sum and the last version are right; data under the latch needs no ordering of
/// its own.
#[test]
fn latches_exclude_and_publish() {
    explore(|| {
        let table = Arc::new(LatchTable::new(1, 10));
        let data = Arc::new(AtomicU64::new(0));
        let work = |table: &LatchTable, data: &AtomicU64| {
            let guard = table.lock(0);
            guard.set_last_version(guard.last_version() + 1);
            let seen = data.load(Ordering::Relaxed);
            data.store(seen + 1, Ordering::Relaxed);
        };
        let other = {
            let (table, data) = (table.clone(), data.clone());
            thread::spawn(move || work(&table, &data))
        };
        work(&table, &data);
        other.join().unwrap();
        assert_eq!(table.lock(0).last_version(), 12);
        assert_eq!(data.load(Ordering::Relaxed), 2);
    });
}

/// Two threads each change a counter in their turns; another thread changes both while it holds all turns (or after it
/// has held them: the planted bug). No step is lost.
fn turns(stay: bool) {
    explore(move || {
        let turns = Arc::new(Turns::new(2));
        let counters = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let step = |counter: &AtomicU64| counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let owner = |thread: usize| {
            let (turns, counters) = (turns.clone(), counters.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let _turn = turns.own(thread);
                    step(&counters[thread]);
                }
            })
        };
        let owners = [owner(0), owner(1)];
        let all = Some(turns.all()).filter(|_| stay);
        counters.iter().for_each(step);
        drop(all);
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        assert!(counters.iter().all(|counter| counter.load(Ordering::Relaxed) == 3), "a step was lost");
    });
}

#[test]
fn turns_exclude_and_publish() {
    turns(true);
}

#[test]
#[should_panic(expected = "a step was lost")]
fn having_been_alone_does_not_suffice() {
    turns(false);
}
