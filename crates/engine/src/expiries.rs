//! Whether a keyspace has entries with an expiry, when the sweeper must look there, and how many the last search met.
//!
//! A writer that installs such an entry notes it afterwards, in the same writer section. A search that meets none takes
//! the flag down, unless one was noted meanwhile.
//!
//! A search may end before it has seen everything. The next one goes on there, so a round of everything may take
//! several searches. It counts as one search that began with the first of them.
//!
//! A search is due if an entry was noted since the last one began, or the time of one that it met has come. Otherwise
//! only the counts can be out of date, because deletes and overwrites note nothing. For these a search is due after a
//! rest, so that no more than a hundredth of the time goes into them.
//!
//! Thread safety: any number of writers and searches. Crash: recovery sets the flag by what it finds.
//!
//! # Invariants
//!
//! * X1. If there is such an entry, the flag is up outside of writer sections under way, also during a search. A
//!   checkpoint records the flag as it finds it, and a restart from the checkpoint looks nowhere else.

use crate::walk::Place;
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rest before a search that only counts: so many times what the last one took, and at least this long.
const RECOUNT_REST: u32 = 99;
const LEAST_RECOUNT_REST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Expiries {
    /// The flag is the lowest bit. The bits above it count the entries that were noted (and wrap around).
    noted: AtomicU64,
    /// Entries with an expiry yet to come that the last complete search met.
    counted: AtomicU64,
    /// The last complete round.
    last: Mutex<Option<Search>>,
    /// The round that goes on with the next search.
    unfinished: Mutex<Option<Round>>,
}

/// A search of everything, in parts.
pub(crate) struct Round {
    /// Where it goes on.
    pub place: Place,
    /// Where it ends at the latest: the last key of an ordered keyspace when it began. Behind keys that are added all
    /// the time it would not end, and what expires at the front would stay.
    pub until: Option<Vec<u8>>,
    /// How many entries it may still pass. Keys may also be added before the last one.
    pub left: usize,
    pub met: Met,
    /// `noted` when it began.
    noted: u64,
    began: Instant,
    took: Duration,
}

/// How far a search came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Searched {
    /// Everything, from the beginning.
    All,
    /// The rest of a round that an earlier search began.
    Rest,
    /// Something is left.
    Some,
}

/// A complete round.
struct Search {
    /// `noted` when it began.
    noted: u64,
    /// The earliest expiry that it met, in milliseconds since 1970.
    earliest_ms: u64,
    /// When its counts are to be made anew.
    recount: Instant,
}

/// What a search met.
#[derive(Default)]
pub(crate) struct Met {
    /// Entries whose expiry is yet to come.
    pub to_come: u64,
    /// Entries that have expired.
    pub expired: u64,
    /// The earliest of all these expiries, in milliseconds since 1970; 0 if there were none.
    pub earliest_ms: u64,
    /// Whether something was passed over.
    pub skipped: bool,
}

impl Met {
    /// Counts an entry with this expiry (0: none).
    pub fn count(&mut self, expiry_ms: u64, is_expired: bool) {
        if expiry_ms != 0 {
            *if is_expired { &mut self.expired } else { &mut self.to_come } += 1;
            self.earliest_ms = if self.earliest_ms == 0 { expiry_ms } else { self.earliest_ms.min(expiry_ms) };
        }
    }
}

const THERE: u64 = 1;
const NOTE: u64 = 2;

impl Expiries {
    /// Notes that an entry with an expiry was installed, in the caller's section.
    #[cold]
    pub fn note(&self) {
        // The count first: a search under way must not take down the flag that is put up here.
        if self.noted.fetch_add(NOTE, Ordering::AcqRel) & THERE == 0 {
            self.noted.fetch_or(THERE, Ordering::AcqRel);
        }
    }

    /// Notes that recovery found such an entry. No search may run yet.
    pub fn found(&self) {
        if !self.are_there() {
            self.noted.fetch_or(THERE, Ordering::AcqRel);
        }
    }

    /// Whether there may be such entries.
    pub fn are_there(&self) -> bool {
        self.noted.load(Ordering::Acquire) & THERE != 0
    }

    /// Whether a search is due: `now_ms` by the store's time, `now` by that of rests.
    pub fn is_due(&self, now_ms: u64, now: Instant) -> bool {
        let noted = self.noted.load(Ordering::Acquire);
        let is_new = |last: &Search| last.noted != noted || last.earliest_ms <= now_ms || last.recount <= now;
        noted & THERE != 0 && self.last.lock().as_ref().is_none_or(is_new)
    }

    /// Entries whose expiry is yet to come, as counted by the last complete search.
    pub fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Runs a search from the round's place on. It adds to what the round has met before, and breaks if it ends early.
    pub fn search(&self, search: impl FnOnce(&mut Round) -> ControlFlow<()>) -> Searched {
        let unfinished = self.unfinished.lock().take();
        let (begins, started) = (unfinished.is_none(), Instant::now());
        let mut round = unfinished.unwrap_or_else(|| self.begin(started));
        let flow = search(&mut round);
        round.took += started.elapsed();
        if flow.is_break() {
            self.put_aside(round);
            return Searched::Some;
        }
        if !round.met.skipped {
            self.conclude(&round);
        }
        if begins { Searched::All } else { Searched::Rest }
    }

    fn begin(&self, now: Instant) -> Round {
        // An entry that was noted before this load was installed before it, so the round meets it. (Or it is gone.)
        let noted = self.noted.load(Ordering::Acquire);
        Round { place: Place::START, until: None, left: 0, met: Met::default(), noted, began: now, took: Duration::ZERO }
    }

    /// Keeps a round for the next search, unless another search has put an older one aside meanwhile, which is likely
    /// farther on.
    fn put_aside(&self, round: Round) {
        let mut unfinished = self.unfinished.lock();
        if unfinished.as_ref().is_none_or(|other| round.began <= other.began) {
            *unfinished = Some(round);
        }
    }

    /// Notes the outcome of a round.
    fn conclude(&self, Round { met, noted, took, .. }: &Round) {
        self.counted.store(met.to_come, Ordering::Relaxed);
        let recount = Instant::now() + (*took * RECOUNT_REST).max(LEAST_RECOUNT_REST);
        *self.last.lock() = Some(Search { noted: *noted, earliest_ms: met.earliest_ms, recount });
        if met.to_come + met.expired == 0 {
            let _ = self.noted.compare_exchange(*noted, noted & !THERE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SET_BACK_MS;
    use crate::{Condition, Kind, Options, Store, WriteOptions};
    use std::time::Duration;

    fn met(to_come: u64) -> Met {
        let mut met = Met::default();
        (0..to_come).for_each(|number| met.count(1_000 + number, false));
        met
    }

    /// A search that comes to the end.
    fn search(expiries: &Expiries, meets: impl FnOnce() -> Met) {
        expiries.search(|round| {
            round.met = meets();
            ControlFlow::Continue(())
        });
    }

    /// A round of several searches is one search that began with the first.
    #[test]
    fn a_round_counts_from_its_beginning() {
        let (expiries, begin) = (Expiries::default(), Instant::now());
        expiries.note();
        let part = |number: u64, ends: bool| {
            expiries.search(|round| {
                assert!(matches!(round.place, Place::Position(position) if position == number), "goes on where the last one ended");
                round.met.count(1_000 + number, false);
                round.place = Place::Position(number + 1);
                if ends { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        };
        assert_eq!((part(0, false), part(1, false)), (Searched::Some, Searched::Some));
        assert_eq!(expiries.counted(), 0, "not all was seen");
        expiries.note();
        assert_eq!((part(2, true), expiries.counted()), (Searched::Rest, 3));
        assert!(expiries.is_due(0, begin), "an entry was noted after the beginning");
        assert_eq!((part(0, true), expiries.counted()), (Searched::All, 1));
        assert!(!expiries.is_due(999, begin) && expiries.is_due(1_000, begin));
        // What was passed over may be earlier than all else.
        let passed_over = expiries.search(|round| {
            round.met.skipped = true;
            ControlFlow::Continue(())
        });
        assert_eq!((passed_over, expiries.counted()), (Searched::All, 1));
        // A search beside the round's begins another. It does not take the place of the older one.
        part(0, false);
        expiries.search(|round| {
            round.place = Place::Position(7);
            part(0, false);
            ControlFlow::Break(())
        });
        part(7, true);
    }

    #[test]
    fn the_flag_goes_down_only_if_nothing_was_noted_meanwhile() {
        let expiries = Expiries::default();
        assert!(!expiries.are_there());
        expiries.note();
        search(&expiries, || {
            assert!(expiries.are_there(), "also during a search");
            met(3)
        });
        assert_eq!(expiries.counted(), 3);
        search(&expiries, || Met { to_come: 1, expired: 1, earliest_ms: 1, skipped: true });
        assert_eq!(expiries.counted(), 3, "not all was seen");
        assert!(expiries.are_there());
        search(&expiries, || {
            expiries.note();
            met(0)
        });
        assert!(expiries.are_there(), "the search may have missed it");
        search(&expiries, || met(0));
        assert_eq!((expiries.are_there(), expiries.counted()), (false, 0));
        expiries.found();
        assert!(expiries.are_there());
    }

    /// Regression: one entry with an expiry far away had its whole keyspace searched all the time.
    #[test]
    fn a_search_is_due_only_if_it_may_find_something() {
        let (expiries, begin) = (Expiries::default(), Instant::now());
        // No rest has ended at the beginning.
        let is_due = |now_ms| expiries.is_due(now_ms, begin);
        assert!(!is_due(u64::MAX), "nothing is there");
        expiries.note();
        assert!(is_due(0), "nothing is known of it");
        search(&expiries, || met(3));
        assert!(!is_due(999) && is_due(1_000));
        let rested = |rest| expiries.is_due(0, Instant::now() + rest);
        assert!(!expiries.is_due(0, begin + LEAST_RECOUNT_REST) && rested(Duration::from_secs(3600)), "deletes note nothing");
        // Notes before, during and after a search.
        expiries.note();
        assert!(is_due(0));
        search(&expiries, || {
            expiries.note();
            met(3)
        });
        assert!(is_due(0), "the search may have missed it");
        search(&expiries, || met(3));
        assert!(!is_due(999));
        // One that was cut short says nothing.
        expiries.note();
        search(&expiries, || Met { skipped: true, ..met(3) });
        assert!(is_due(0));
        // What has expired may still be there afterwards.
        search(&expiries, || {
            let mut met = met(3);
            met.count(500, true);
            met
        });
        assert!(!is_due(499) && is_due(500));
        search(&expiries, Met::default);
        assert!(!is_due(u64::MAX));
        expiries.found();
        assert!(is_due(u64::MAX));
    }

    /// Regression: an expired key was back if the clock was set back before the time was persisted, which happens once
    /// a second.
    #[test]
    fn what_was_told_to_have_expired_stays_so() {
        let options = Options { in_memory: true, capacity: 4 << 20, max_capacity: 4 << 20, background: false, ..Options::default() };
        let store = Store::open(options).unwrap();
        for kind in [Kind::Hash, Kind::Ordered] {
            let keyspace = store.create_keyspace(&format!("{kind:?}"), kind).unwrap();
            let put = |key: &[u8], ttl_ms: u64| {
                let options = WriteOptions::new().ttl(Duration::from_millis(ttl_ms));
                drop(store.write(&keyspace, key, Some(b"value"), Condition::None, &options).unwrap());
            };
            put(b"short", 20);
            put(b"long", 3_000_000);
            let is_there = |key: &[u8]| store.get_with(&keyspace, key, |_| ()).unwrap().is_some();
            while is_there(b"short") {
                std::thread::sleep(Duration::from_millis(5));
            }
            SET_BACK_MS.set(3_600_000);
            assert!(!is_there(b"short") && is_there(b"long"), "{kind:?}");
            put(b"short", 3_000_000);
            assert!(is_there(b"short"), "{kind:?}: written again");
            SET_BACK_MS.set(0);
        }
    }
}
