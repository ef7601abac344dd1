//! What the background thread does before it leads a commit: it lets the threads run that wait for its processor, so
//! that their writes ride along.
//!
//! On a busy machine the first writer of a group asks for a sync. The others, which would write within some
//! microseconds, wait for a processor, and the sync takes it. So groups stay small, and each sync costs processor time
//! that the writers need. Therefore the background thread gives its processor away until no thread wants it, or for
//! [`LONGEST`]. On a processor with nothing else to do this is one call that returns at once.
//!
//! Giving way is good only among threads that run for a short time each. A thread that does not stop by itself (a
//! collector, another program) keeps the processor for a whole slice of the scheduler, some milliseconds. So after a
//! turn that took longer than [`TOO_LONG`] there is none for [`REST`]. A commit is put off by at most [`LONGEST`] and
//! one turn.
//!
//! Thread safety: each committing thread has a [`Courtesy`] of its own.

use std::time::{Duration, Instant};

/// How long other threads are let run: about as long as a sync on a fast device.
const LONGEST: Duration = Duration::from_micros(100);
/// A call that returned within this time let no thread run: it takes 0.3 µs then.
const NOBODY: Duration = Duration::from_nanos(1500);
/// Longer than threads that serve clients, and the clients, run at a time: mostly half a millisecond, with fifty
/// clients on two processors. (With 0.6 ms here, and 3 µs above, half of the gain is lost.)
const TOO_LONG: Duration = Duration::from_millis(1);
/// How long no thread is let run after that, so that the milliseconds that such a turn costs are some thousandths of
/// the time.
const REST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(crate) struct Courtesy {
    /// No thread is let run before this time.
    rests_until: Option<Instant>,
}

impl Courtesy {
    /// Lets other threads run for a moment, if any are waiting for the processor.
    pub fn let_others_write(&mut self) {
        self.let_others(Instant::now, std::thread::yield_now);
    }

    /// As [`Courtesy::let_others_write`], with another clock and another scheduler, for tests.
    fn let_others(&mut self, mut now: impl FnMut() -> Instant, mut give_way: impl FnMut()) {
        let began = now();
        if self.rests_until.is_some_and(|until| began < until) {
            return;
        }
        let mut before = began;
        while before.duration_since(began) < LONGEST {
            give_way();
            let after = now();
            let away = after.duration_since(before);
            if away > TOO_LONG {
                self.rests_until = Some(after + REST);
                return;
            }
            if away < NOBODY {
                return;
            }
            before = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Counts the turns that are given if turn number n takes `takes(n)`. `clock` advances by these times.
    fn turns(courtesy: &mut Courtesy, clock: &Cell<Instant>, takes: impl Fn(u32) -> Duration) -> u32 {
        let given = Cell::new(0);
        courtesy.let_others(
            || clock.get(),
            || {
                clock.set(clock.get() + takes(given.get()));
                given.set(given.get() + 1);
            },
        );
        given.get()
    }

    #[test]
    fn an_idle_processor_is_noticed_at_the_first_call() {
        let clock = Cell::new(Instant::now());
        assert_eq!(turns(&mut Courtesy::default(), &clock, |_| Duration::from_nanos(400)), 1);
    }

    #[test]
    fn others_run_until_nobody_wants_to_or_the_time_is_over() {
        let clock = Cell::new(Instant::now());
        let mut courtesy = Courtesy::default();
        let three = |turn| if turn < 3 { Duration::from_micros(10) } else { Duration::from_nanos(300) };
        assert_eq!(turns(&mut courtesy, &clock, three), 4);
        let began = clock.get();
        assert_eq!(turns(&mut courtesy, &clock, |_| Duration::from_micros(30)), 4);
        assert!(clock.get() - began < LONGEST + Duration::from_micros(30));
    }

    #[test]
    fn who_keeps_the_processor_is_given_it_once_a_second_at_most() {
        let clock = Cell::new(Instant::now());
        let mut courtesy = Courtesy::default();
        let slice = |_| Duration::from_millis(3);
        assert_eq!(turns(&mut courtesy, &clock, slice), 1);
        for _ in 0..5 {
            clock.set(clock.get() + REST / 6);
            assert_eq!(turns(&mut courtesy, &clock, slice), 0);
        }
        clock.set(clock.get() + REST / 3);
        assert_eq!(turns(&mut courtesy, &clock, slice), 1);
    }
}
