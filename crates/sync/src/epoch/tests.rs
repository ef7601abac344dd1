use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn stamps_pass_only_when_older_pins_end() {
    let (told, wait) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let guard = pin();
        told.send(()).unwrap();
        gone.recv().unwrap();
        drop(guard);
    });
    wait.recv().unwrap();
    let stamp = stamp();
    assert!(!has_passed(stamp), "a pin older than the stamp must hold it back");
    go.send(()).unwrap();
    thread.join().unwrap();
    // Pins of unrelated tests end soon.
    while !has_passed(stamp) {
        std::thread::yield_now();
    }
}

#[test]
fn writer_sections_are_waited_for_and_plain_pins_are_not() {
    let reading = pin();
    std::thread::spawn(synchronize_writers).join().unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let (told, wait) = std::sync::mpsc::channel();
    let flag = ended.clone();
    let writer = std::thread::spawn(move || {
        let outer = pin();
        let section = pin_writer();
        told.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        flag.store(true, Ordering::SeqCst);
        drop(section);
        drop(outer);
    });
    wait.recv().unwrap();
    synchronize_writers();
    assert!(ended.load(Ordering::SeqCst));
    writer.join().unwrap();
    drop(reading);
}

#[test]
fn one_thread_can_be_asked_for_its_writer_sections() {
    let (told, wait) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let reading = pin();
        let section = pin_writer();
        told.send(thread_number()).unwrap();
        gone.recv().unwrap();
        drop(section);
        told.send(0).unwrap();
        gone.recv().unwrap();
        drop(reading);
    });
    let number = wait.recv().unwrap();
    let stamp = stamp();
    assert!(!writer_has_passed(stamp, number), "the section is older than the stamp");
    assert!(writer_has_passed(stamp, thread_number()), "this thread is in none");
    assert!(writer_has_passed(stamp, 1 << 20), "nobody has had this number");
    go.send(()).unwrap();
    wait.recv().unwrap();
    assert!(writer_has_passed(stamp, number), "a reader's pin does not count");
    go.send(()).unwrap();
    thread.join().unwrap();
}

#[test]
fn nested_pins_keep_the_outer_epoch() {
    let outer = pin();
    let stamp = stamp();
    drop(pin_writer());
    assert!(is_pinned());
    assert!(!has_passed(stamp));
    drop(outer);
    assert!(!is_pinned());
}

/// Whichever of a thread's guards ends first, the remaining one protects, and the thread counts as a writer only if the
/// remaining one is a writer section.
#[test]
fn guards_may_end_in_any_order() {
    std::thread::spawn(|| {
        let me = thread_number();
        let elsewhere = move |stamp| std::thread::spawn(move || (has_passed(stamp), writer_has_passed(stamp, me))).join().unwrap();
        for (writers, order) in
            [([true, false], [0, 1]), ([true, false], [1, 0]), ([false, true], [0, 1]), ([true, true], [0, 1]), ([false, false], [0, 1])]
        {
            let mut guards = writers.map(|writer| Some(if writer { pin_writer() } else { pin() }));
            let stamp = stamp();
            assert_eq!(elsewhere(stamp), (false, !writers.contains(&true)), "{writers:?}");
            guards[order[0]] = None;
            assert!(is_pinned());
            assert_eq!(elsewhere(stamp), (false, !writers[order[1]]), "{writers:?}, left {}", order[1]);
            // A third one, taken and ended meanwhile, changes nothing.
            drop(pin());
            assert_eq!(elsewhere(stamp), (false, !writers[order[1]]), "{writers:?}, left {}", order[1]);
            guards[order[1]] = None;
            assert!(!is_pinned());
            assert!(elsewhere(stamp).1, "{writers:?}, none left");
        }
    })
    .join()
    .unwrap();
}

/// Readers dereference a box that a writer keeps replacing; a box freed too early holds a poisoned value.
#[test]
fn nothing_is_freed_under_a_reader() {
    const LIVE: u64 = 0x6c69_7665;
    let current = Arc::new(AtomicPtr::new(Box::into_raw(Box::new(AtomicU64::new(LIVE)))));
    let stop = Arc::new(AtomicBool::new(false));
    let freed = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (current, stop) = (current.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = pin();
                    // SAFETY: freed only after a grace period that this pin holds back.
                    let value = unsafe { (*current.load(Ordering::Acquire)).load(Ordering::Relaxed) };
                    assert_eq!(value, LIVE);
                    drop(guard);
                }
            })
        })
        .collect();
    for _ in 0..2_000 {
        let fresh = Box::into_raw(Box::new(AtomicU64::new(LIVE)));
        let old = current.swap(fresh, Ordering::AcqRel) as usize;
        let freed = freed.clone();
        defer(move || {
            let old = old as *mut AtomicU64;
            // SAFETY: unlinked before `defer`, and the grace period has passed.
            unsafe {
                (*old).store(0xdead, Ordering::Relaxed);
                drop(Box::from_raw(old));
            }
            freed.fetch_add(1, Ordering::Relaxed);
        });
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    while freed.load(Ordering::Relaxed) < 2_000 {
        collect();
        std::thread::yield_now();
    }
    // SAFETY: no reader is left.
    drop(unsafe { Box::from_raw(current.load(Ordering::Relaxed)) });
}

#[test]
fn slots_are_reused_after_thread_exit() {
    let first = std::thread::spawn(thread_number).join().unwrap();
    let mut seen = Vec::new();
    for _ in 0..200 {
        seen.push(std::thread::spawn(thread_number).join().unwrap());
    }
    assert!(seen.iter().all(|n| *n < first + 128), "200 short threads must not take 200 slots: {seen:?}");
}

/// A guard in a thread-local value that is dropped after the thread's own bookkeeping protects until its end; so do
/// pins that are taken beside it.
#[test]
fn a_guard_in_thread_local_storage_protects_to_its_end() {
    struct Late(std::cell::RefCell<Option<(Guard, std::sync::mpsc::Sender<[bool; 3]>)>>);

    impl Drop for Late {
        fn drop(&mut self) {
            let Some((guard, told)) = self.0.borrow_mut().take() else { return };
            let elsewhere = |stamp| std::thread::spawn(move || has_passed(stamp)).join().unwrap();
            let old = !elsewhere(stamp());
            let section = pin_writer();
            let new = !elsewhere(stamp());
            drop(section);
            let number = guard.thread_number();
            drop(guard);
            // Another thread may own the slot by now, and be in a section of its own.
            let stamp = stamp();
            while !writer_has_passed(stamp, number) {
                std::thread::yield_now();
            }
            told.send([old, new, !is_pinned()]).unwrap();
        }
    }

    thread_local! {
        static LATE: Late = const { Late(std::cell::RefCell::new(None)) };
    }

    let (told, wait) = std::sync::mpsc::channel();
    // Thread-local values are dropped in the order in which they were made or in the reverse order: one of the two
    // threads meets the order that matters.
    for first in [true, false] {
        let told = told.clone();
        std::thread::spawn(move || {
            if first {
                LATE.with(|_| ());
            }
            let guard = pin();
            LATE.with(|late| *late.0.borrow_mut() = Some((guard, told)));
        })
        .join()
        .unwrap();
        assert_eq!(wait.recv().unwrap(), [true, true, true], "made first: {first}");
    }
}

/// The work of a thread-local value's destructor that runs after the thread's slot was given back.
struct AtEnd(std::cell::RefCell<Option<Box<dyn FnOnce()>>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|work| work());
    }
}

/// Regression: each thread whose thread-local values used epochs while they were destroyed kept a slot taken for ever.
/// The slots, all of which every grace period scans, grew with the number of threads that had ever existed, and later
/// threads had no number small enough for words of their own.
#[test]
fn thread_local_values_that_use_epochs_at_the_end_leave_no_slot_behind() {
    thread_local! {
        static AT_END: AtEnd = const { AtEnd(std::cell::RefCell::new(None)) };
    }

    let uses: [fn() -> usize; 4] = [
        || pin().thread_number(),
        || (pin_writer(), pin()).1.thread_number(),
        thread_number,
        || {
            let caught = std::panic::catch_unwind(|| {
                let _pins = (pin(), pin_writer());
                std::panic::resume_unwind(Box::new(thread_number()));
            });
            *caught.unwrap_err().downcast().unwrap()
        },
    ];
    let first = std::thread::spawn(thread_number).join().unwrap();
    let (told, numbers) = std::sync::mpsc::channel();
    for i in 0..400 {
        let (told, used) = (told.clone(), uses[i % uses.len()]);
        let thread = std::thread::spawn(move || {
            // Made before the thread's first pin, so it is destroyed after the slot was given back.
            AT_END.with(|_| ());
            let guard = (i % 3 == 0).then(pin);
            let _ = thread_number();
            let work = move || {
                drop(guard);
                told.send([used(), used()]).unwrap();
                assert!(!is_pinned());
            };
            AT_END.with(|at_end| *at_end.0.borrow_mut() = Some(Box::new(work)));
        });
        thread.join().unwrap();
    }
    drop(told);
    let highest = numbers.iter().flatten().max().unwrap();
    assert!(highest < first + 128, "400 short threads must not take 400 slots: {first} to {highest}");
}

/// Regression: whoever waited for a writer that waited for a disk kept a processor busy.
#[test]
fn who_waits_for_long_leaves_the_processor_to_others() {
    type Wait = fn();
    let until: Wait = || assert!(synchronize_until(Instant::now() + Duration::from_secs(3600)));
    for wait in [synchronize_writers, synchronize, until] {
        let section = pin_writer();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                wait();
                crate::pause::tests::processor_time()
            });
            std::thread::sleep(Duration::from_millis(500));
            drop(section);
            let used = waiter.join().expect("it ends");
            assert!(used < Duration::from_millis(200), "{used:?} of processor time");
        });
    }
}
