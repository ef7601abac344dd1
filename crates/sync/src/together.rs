//! Work that several threads share. If the system refuses further threads, fewer threads do it: a limit of processes or
//! memory makes the work slower, not impossible.
//!
//! The calling thread is always one of them. A panic of any of them reaches the caller when all have ended.

use parking_lot::Mutex;
use std::thread::{Builder, scope};

/// Runs `work` on `threads` threads at once, including the calling one, and waits for all of them.
pub fn together(threads: usize, work: impl Fn() + Sync) {
    together_as(Builder::new, threads, work);
}

/// Applies `f` to all items, on up to `threads` threads. The results are in the order of the items.
pub fn map_together<T: Send, R: Send>(threads: usize, items: impl ExactSizeIterator<Item = T> + Send, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    let (count, results) = (items.len(), Mutex::new(Vec::with_capacity(items.len())));
    let items = Mutex::new(items.enumerate());
    together(threads.min(count), || {
        loop {
            // A statement of its own, so that the lock ends with it.
            let next = items.lock().next();
            let Some((number, item)) = next else { break };
            let result = f(item);
            results.lock().push((number, result));
        }
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

fn together_as(builder: impl Fn() -> Builder, threads: usize, work: impl Fn() + Sync) {
    scope(|scope| {
        for _ in 1..threads {
            if builder().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_work_at_once() {
        let (barrier, ran) = (Barrier::new(4), AtomicU32::new(0));
        together(4, || {
            barrier.wait();
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 4);
    }

    #[test]
    fn the_calling_thread_works_alone_where_no_thread_is_to_be_had() {
        let ran = AtomicU32::new(0);
        // No address space has room for such a stack.
        together_as(|| Builder::new().stack_size(1 << 60), 4, || _ = ran.fetch_add(1, Ordering::Relaxed));
        assert_eq!(ran.into_inner(), 1);
    }

    #[test]
    fn results_are_in_order() {
        for (threads, count) in [(3, 1000), (1, 5), (4, 0), (0, 2)] {
            let doubled = map_together(threads, (0..count).collect::<Vec<u64>>().into_iter(), |number| 2 * number);
            assert_eq!(doubled, (0..count).map(|number| 2 * number).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_passes_on() {
        let failing = |number: i32| assert!(number != 5, "the fifth");
        assert!(catch_unwind(|| map_together(2, 0..10, failing)).is_err());
    }
}
