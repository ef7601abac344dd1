//! Waking background threads when there is something to do ([`Bell`]).
//!
//! Thread safety: any number of threads ring and wait. No ring is lost: a thread that has not heard the last ring does
//! not wait.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// A thread that has work for others rings it; the others wait for it.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    /// Wakes every waiting thread. Takes some tens of nanoseconds if nobody waits.
    pub fn ring(&self) {
        *self.rung.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until the bell has been rung more often than `heard`, for at most `timeout`, and stores the number of
    /// rings in `heard`. Callers begin with zero. Returns whether the bell was rung.
    pub fn wait(&self, heard: &mut u64, timeout: Duration) -> bool {
        let mut rung = self.rung.lock();
        if *rung == *heard {
            self.changed.wait_for(&mut rung, timeout);
        }
        let before = std::mem::replace(heard, *rung);
        *heard != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn everybody_hears_each_ring_also_an_earlier_one() {
        let (bell, started) = (Bell::default(), Instant::now());
        bell.ring();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut heard = 0;
                    bell.wait(&mut heard, LONG);
                    bell.wait(&mut heard, LONG);
                    assert_eq!(heard, 2);
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            bell.ring();
        });
        assert!(started.elapsed() < LONG, "nobody waited for the end of the time");
    }

    #[test]
    fn a_ring_is_heard_once() {
        let (bell, mut heard) = (Bell::default(), 0);
        bell.ring();
        bell.ring();
        bell.wait(&mut heard, LONG);
        let started = Instant::now();
        assert!(!bell.wait(&mut heard, Duration::from_millis(5)));
        assert!(started.elapsed() >= Duration::from_millis(5));
    }
}
