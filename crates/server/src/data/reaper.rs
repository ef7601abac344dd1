//! Removes the rows of collections that have no head any more.
//!
//! Commands that delete or overwrite a collection announce its number. This is prompt but not needed: a sweep over the
//! registry rows finds all such collections, including those that expired and those that a crash left. Sweeps run at
//! the start, and then now and then as long as collections may expire or something could not be removed. Announced
//! collections wait for a sweep that is due, not the other way round.
//!
//! # Memory
//!
//! Announcements up to a bound, and what is looked at between two syncs. The head of `removal` explains why nothing is
//! removed that is in use.

mod removal;
#[cfg(test)]
mod tests;

use super::databases::{Database, Databases, Found};
use super::encoding::{self, REGISTRY};
use super::mark::RAISE_EVERY;
use crate::events::{self, Level};
use hither::{Error, Result};
use parking_lot::{Condvar, Mutex};
use removal::reap;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rows removed by one batch, and collections looked at before one sync.
const PORTION: usize = 256;
/// Time between sweeps while collections may expire, or something could not be removed.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// Announcements kept; the next sweep finds the others.
const MOST_ANNOUNCED: usize = 1 << 16;

/// The reaper's pending work and its stop flag.
#[derive(Default)]
pub struct Reaper {
    state: Mutex<State>,
    changed: Condvar,
    /// See [`Reaper::may_expire`]. Set by [`Reaper::note_expiring`], cleared as a sweep begins.
    expiring: AtomicBool,
    /// Number of collections whose rows were removed.
    pub reaped: AtomicU64,
    /// Runs between the two looks at the collections to be removed.
    #[cfg(test)]
    pub(crate) between_looks: Mutex<Option<Box<dyn FnMut() + Send>>>,
}

#[derive(Default)]
struct State {
    announced: VecDeque<(u16, u64)>,
    sweep: bool,
    /// A sweep is wanted, but not at once.
    sweep_later: bool,
    stopping: bool,
}

impl Reaper {
    /// Announces a collection whose head is gone.
    pub fn announce(&self, database: u16, number: u64) {
        let mut state = self.state.lock();
        if state.announced.len() < MOST_ANNOUNCED {
            state.announced.push_back((database, number));
        } else {
            state.sweep = true;
        }
        self.changed.notify_one();
    }

    /// Notes that a collection has an expiry, so nobody will announce its end. The caller must call this once the
    /// expiry is visible: a sweep that has just begun might otherwise be the last.
    pub fn note_expiring(&self) {
        self.expiring.store(true, Ordering::SeqCst);
    }

    /// Whether a collection may expire that the last sweep has not dealt with, or one that it saw has an expiry.
    pub fn may_expire(&self) -> bool {
        self.expiring.load(Ordering::SeqCst)
    }

    /// Requests a sweep because collections may have lost their heads and nobody knows which. It runs as soon as
    /// nothing is announced, or a sweep is due.
    pub fn sweep_soon(&self) {
        self.state.lock().sweep = true;
        self.changed.notify_one();
    }

    /// Requests a sweep because something could not be removed, no sooner than [`SWEEP_EVERY`] after the last one.
    fn sweep_later(&self) {
        self.state.lock().sweep_later = true;
    }

    /// Asks [`run`] to return.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }
}

enum Work {
    /// Announced collections.
    Some(Vec<(u16, u64)>),
    Sweep,
    /// Nothing came up for a while.
    None,
    Stop,
}

/// Runs until it is stopped. An error ends one piece of work, not the thread: the next sweep finds what was left.
pub fn run(databases: &Databases) {
    // What a crash left, or expired while no server ran.
    report(databases, sweep(databases));
    let mut swept = Instant::now();
    loop {
        databases.mark.raise_if_due(&databases.db);
        match next(&databases.reaper, swept) {
            Work::Stop => return,
            Work::None => {}
            Work::Some(announced) => reap_announced(databases, &announced),
            Work::Sweep => {
                report(databases, sweep(databases));
                swept = Instant::now();
            }
        }
    }
}

/// Removes announced collections, of whatever databases: one sync for all.
fn reap_announced(databases: &Databases, announced: &[(u16, u64)]) {
    let mut found = BTreeMap::new();
    for (index, _) in announced {
        found.entry(*index).or_insert_with(|| match databases.find(*index) {
            Found::There(database) => Some(database),
            // In a database that is being replaced there is nothing to find, or a sweep follows.
            _ => None,
        });
    }
    let place = |(index, number): &(u16, u64)| Some((found.get(index)?.as_deref()?, *number));
    let mut those: Vec<(&Database, u64)> = announced.iter().filter_map(place).collect();
    those.sort_by_key(|(database, _)| database.index);
    reap(databases, &those, &mut |outcome| {
        if outcome.is_err() {
            databases.reaper.sweep_later();
        }
    });
}

/// Logs that something was left and has it tried again, unless somebody else has removed it meanwhile.
fn report(databases: &Databases, outcome: Result<u64>) {
    if let Err(error) = outcome
        && !matches!(error, Error::KeyspaceDropped(_))
    {
        databases.reaper.sweep_later();
        events::log(Level::Warn, "sweep-incomplete", &[("why", &error)]);
    }
}

fn next(reaper: &Reaper, swept: Instant) -> Work {
    let mut state = reaper.state.lock();
    loop {
        if state.stopping {
            return Work::Stop;
        }
        let wanted = state.sweep || state.sweep_later || reaper.may_expire();
        if wanted && swept.elapsed() >= SWEEP_EVERY || state.sweep && state.announced.is_empty() {
            (state.sweep, state.sweep_later) = (false, false);
            return Work::Sweep;
        }
        let some = state.announced.len().min(PORTION);
        if some > 0 {
            return Work::Some(state.announced.drain(..some).collect());
        }
        if reaper.changed.wait_for(&mut state, SWEEP_EVERY.min(RAISE_EVERY)).timed_out() {
            return Work::None;
        }
    }
}

/// Removes the rows that no head leads to, in all databases. Returns the number of collections removed. What cannot be
/// removed is left for the next sweep.
///
/// # Errors
/// The first error; the sweep has gone on with everything else.
pub fn sweep(databases: &Databases) -> Result<u64> {
    let (mut removed, mut first_error) = (0, None);
    // This sweep sees the collections that expire now; commands report later ones.
    databases.reaper.expiring.store(false, Ordering::SeqCst);
    for database in databases.existing() {
        let swept = sweep_one(databases, &database, &mut |outcome| match outcome {
            Ok(done) => removed += u64::from(done),
            Err(error) => first_error = first_error.take().or(Some(error)),
        });
        first_error = first_error.or(swept.err());
    }
    if first_error.is_some() || databases.reaper.is_stopping() {
        // Collections that it has not reached may expire.
        databases.reaper.note_expiring();
    }
    first_error.map_or(Ok(removed), Err)
}

/// Reports for every registered collection without a head whether it was removed, until the reaper is to stop.
fn sweep_one(databases: &Databases, database: &Database, tell: &mut impl FnMut(Result<bool>)) -> Result<()> {
    let mut after = vec![REGISTRY];
    while !databases.reaper.is_stopping() {
        databases.mark.raise_if_due(&databases.db);
        let mut numbers = Vec::new();
        database.rows.scan_deferred(Bound::Excluded(&after), Bound::Excluded(&[REGISTRY + 1]), false, |row, _, _| {
            numbers.extend(encoding::number_of(row).map(|number| (database, number)));
            if numbers.len() == PORTION { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let Some((_, last)) = numbers.last() else { return Ok(()) };
        after = encoding::registry_row(*last).to_vec();
        reap(databases, &numbers, tell);
    }
    Ok(())
}
