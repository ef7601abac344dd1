//! What the thread in the background does before it leads a commit: it lets the threads run that wait for its processor, so that what they write rides along.
//!
//! On a busy machine a sync is asked for by whoever wrote first, and the others, who would write within some microseconds, wait for a processor that the sync then takes: groups stay
//! small, and each sync costs processor time that the writers need. So the thread gives its processor away until nobody wants it, or for [`LONGEST`]. On a processor
//! with nothing else to do that is one call that returns at once.
//!
//! Giving way is only good among threads that run for a short time each. One that does not stop of itself (a collector, another program) keeps the processor for a whole
//! slice of the scheduler, some milliseconds. So after a turn that took longer than [`TOO_LONG`] there is none for [`REST`]. A commit is put off by at most
//! [`LONGEST`] and one turn.
//!
//! Thread safety: each committing thread has its own.

use std::time::{Duration, Instant};

/// How long others are let run: about a sync on a fast device.
const LONGEST: Duration = Duration::from_micros(100);
/// A call that returned within this let nobody run; it takes 0.3 µs then.
const NOBODY: Duration = Duration::from_nanos(1500);
/// Longer than threads that serve clients, and these, run at a time: half a millisecond mostly, with fifty clients on two processors. (With 0.6 ms, and 3 µs above, half of the gain is lost.)
const TOO_LONG: Duration = Duration::from_millis(1);
/// How long nobody is let run after that: the milliseconds that it has cost are then some thousandths.
const REST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(crate) struct Courtesy {
    /// Until then nobody is let run.
    rests_until: Option<Instant>,
}

impl Courtesy {
    /// Lets others run for a moment, if there are some.
    pub fn let_others_write(&mut self) {
        self.let_others(Instant::now, std::thread::yield_now);
    }

    /// The same with another clock and another scheduler, for tests.
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

    /// The turns that are given when each takes what `takes` says for its number; `clock` goes on by these.
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
