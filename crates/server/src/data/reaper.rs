//! Removes the rows of collections that have no head any more.
//!
//! Commands that delete or overwrite a collection announce its number; that is prompt but not needed: a sweep over the registry rows finds all such
//! collections, also those that expired and those that a crash left, at the start and now and then as long as collections expire.
//!
//! # Why it removes nothing that is in use
//!
//! A registry row names the key that a collection has. If that key's entry does not carry the collection's number, the collection is gone — unless a
//! batch that creates or renames it is half visible. So each removal is a batch on the condition that both the registry row and the key's
//! entry still have the versions that were read; a batch under way either is complete by then, and has changed one of them, or waits.
//! Once gone, a number never comes back (rule 1), so the removal may go on in portions. The registry row goes last.

use super::databases::{Database, Databases, Found, member_rows};
use super::encoding::{self, Head, REGISTRY};
use crate::events::{self, Level};
use hither::{Error, Result, WriteOptions};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rows removed by one batch.
const PORTION: usize = 256;
/// Between sweeps while collections may expire.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// Announcements kept; beyond that the next sweep finds them.
const MOST_ANNOUNCED: usize = 1 << 16;

/// The work that is left, and how to stop it.
#[derive(Default)]
pub struct Reaper {
    state: Mutex<State>,
    changed: Condvar,
    expiring: AtomicBool,
    /// Collections whose rows were removed.
    pub reaped: AtomicU64,
}

#[derive(Default)]
struct State {
    announced: VecDeque<(u16, u64)>,
    sweep: bool,
    stopping: bool,
}

impl Reaper {
    /// The collection's head is gone.
    pub fn announce(&self, database: u16, number: u64) {
        let mut state = self.state.lock();
        if state.announced.len() < MOST_ANNOUNCED {
            state.announced.push_back((database, number));
        } else {
            state.sweep = true;
        }
        self.changed.notify_one();
    }

    /// A collection was given an expiry: nobody will announce its end.
    pub fn note_expiring(&self) {
        self.expiring.store(true, Ordering::Relaxed);
    }

    /// Collections may have lost their heads, and nobody can say which.
    pub fn sweep_soon(&self) {
        self.state.lock().sweep = true;
        self.changed.notify_one();
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
    One(u16, u64),
    Sweep,
    Stop,
}

/// Runs until it is stopped. An error ends a piece of work, not the thread: the next sweep finds what was left.
pub fn run(databases: &Databases) {
    // What a crash, or expiry while nothing ran, has left.
    report(sweep(databases));
    let mut swept = Instant::now();
    loop {
        match next(&databases.reaper, swept) {
            Work::Stop => return,
            Work::One(index, number) => {
                // In one that is being replaced there is nothing to find, or a sweep follows.
                if let Found::There(database) = databases.find(index) {
                    let _ = reap(databases, &database, number);
                }
            }
            Work::Sweep => {
                report(sweep(databases));
                swept = Instant::now();
            }
        }
    }
}

/// Says in the log that something was left, but for what somebody else has removed meanwhile.
fn report(outcome: Result<u64>) {
    if let Err(error) = outcome
        && !matches!(error, Error::KeyspaceDropped(_))
    {
        events::log(Level::Warn, "sweep-incomplete", &[("why", &error)]);
    }
}

fn next(reaper: &Reaper, swept: Instant) -> Work {
    let mut state = reaper.state.lock();
    loop {
        if state.stopping {
            return Work::Stop;
        }
        if let Some((index, number)) = state.announced.pop_front() {
            return Work::One(index, number);
        }
        let due = reaper.expiring.load(Ordering::Relaxed) && swept.elapsed() >= SWEEP_EVERY;
        if std::mem::take(&mut state.sweep) || due {
            return Work::Sweep;
        }
        reaper.changed.wait_for(&mut state, SWEEP_EVERY);
    }
}

/// Removes what no head leads to, in all databases. Returns how many collections that were. What cannot be removed is left for the next time.
///
/// # Errors
/// The first one; it has gone on with everything else.
pub fn sweep(databases: &Databases) -> Result<u64> {
    let (mut removed, mut first_error) = (0, None);
    for database in databases.existing() {
        let swept = sweep_one(databases, &database, &mut |outcome| match outcome {
            Ok(done) => removed += u64::from(done),
            Err(error) => first_error = first_error.take().or(Some(error)),
        });
        first_error = first_error.or(swept.err());
    }
    first_error.map_or(Ok(removed), Err)
}

/// Tells of every registered collection whether it was removed, until the reaper is to stop.
fn sweep_one(databases: &Databases, database: &Database, tell: &mut impl FnMut(Result<bool>)) -> Result<()> {
    let mut after = vec![REGISTRY];
    loop {
        let mut numbers = Vec::new();
        database.rows.scan_deferred(Bound::Excluded(&after), Bound::Excluded(&[REGISTRY + 1]), false, |row, _, _| {
            numbers.extend(encoding::number_of(row));
            if numbers.len() == PORTION { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let Some(last) = numbers.last() else { return Ok(()) };
        after = encoding::registry_row(*last).to_vec();
        for number in numbers {
            if databases.reaper.is_stopping() {
                return Ok(());
            }
            tell(reap(databases, database, number));
        }
    }
}

/// Removes the rows of collection `number` if it has no head; whether it did.
pub fn reap(databases: &Databases, database: &Database, number: u64) -> Result<bool> {
    let registry = encoding::registry_row(number);
    let (found, _) = database.rows.peek_with(&registry, |key, found| (key.to_vec(), found.version))?;
    let Some((key, mut row_version)) = found else { return Ok(false) };
    let (head, _) = database.keys.peek_with(&key, |entry, found| (Head::decode(entry), found))?;
    if let Some((Some(head), found)) = &head
        && head.number == number
    {
        // Of an earlier run, perhaps: nobody else would say so in this one.
        if found.expires_at_ms != 0 {
            databases.reaper.note_expiring();
        }
        return Ok(false);
    }
    let mut key_version = head.map(|(_, found)| found.version);
    let (start, end) = member_rows(number);
    loop {
        let mut rows: Vec<Vec<u8>> = Vec::with_capacity(PORTION);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        database.rows.scan_deferred(Bound::Included(&start), end, false, |row, _, _| {
            rows.push(row.to_vec());
            if rows.len() == PORTION { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let last = rows.len() < PORTION;
        let mut batch = databases.db.batch();
        batch.require_version(&database.rows, &registry, Some(row_version)).require_version(&database.keys, &key, key_version);
        for row in &rows {
            batch.delete(&database.rows, row);
        }
        if last {
            batch.delete(&database.rows, &registry);
        }
        if batch.commit_deferred(&WriteOptions::new())?.applied {
            if last {
                databases.reaper.reaped.fetch_add(1, Ordering::Relaxed);
                return Ok(true);
            }
            continue;
        }
        // The key was written meanwhile, or the registry's row was moved. If the collection is still not its own, that changes nothing.
        let (head, _) = database.keys.peek_with(&key, |entry, found| (Head::decode(entry), found.version))?;
        let (registered, _) = database.rows.peek_with(&registry, |registered, found| (registered == &key[..]).then_some(found.version))?;
        let Some(version) = registered.flatten() else { return Ok(false) };
        row_version = version;
        if head.is_some_and(|(head, _)| head.is_some_and(|head| head.number == number)) {
            return Ok(false);
        }
        key_version = head.map(|(_, version)| version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::encoding::Type;
    use hither::Db;

    /// Regression: nobody looked for collections that were given an expiry in an earlier run and reached it in this one.
    #[test]
    fn what_an_earlier_run_gave_an_expiry_is_removed_when_that_comes() {
        let databases = Databases::open(Db::builder().in_memory().open().unwrap(), 1).unwrap();
        let (database, number) = (databases.get(0).unwrap(), databases.next_number().unwrap());
        let row = [&encoding::members_prefix(number)[..], b"ffield"].concat();
        database.rows.put(&encoding::registry_row(number), b"hash").unwrap();
        database.rows.put(&row, b"value").unwrap();
        let head = Head { kind: Type::Hash, number, count: 1 }.encode();
        let soon = WriteOptions::new().ttl(Duration::from_millis(200));
        database.keys.put_with(b"hash", &head, &soon).unwrap().wait().unwrap();
        // The sweep at the start.
        assert_eq!(sweep(&databases).unwrap(), 0);
        std::thread::sleep(Duration::from_millis(300));
        let long_ago = Instant::now().checked_sub(SWEEP_EVERY).unwrap();
        assert!(databases.reaper.expiring.load(Ordering::Relaxed), "there will be more to remove");
        assert!(matches!(next(&databases.reaper, long_ago), Work::Sweep));
        assert_eq!(sweep(&databases).unwrap(), 1);
        assert!(database.rows.is_empty());
    }

    /// Regression: a sweep ended at its first error.
    #[test]
    fn a_sweep_goes_on_behind_what_it_cannot_remove() {
        let databases = Databases::open(Db::builder().in_memory().open().unwrap(), 2).unwrap();
        let (database, number) = (databases.get(1).unwrap(), databases.next_number().unwrap());
        database.rows.put(&encoding::registry_row(number), b"hash").unwrap();
        databases.db.drop_keyspace("db0.rows").unwrap();
        assert!(matches!(sweep(&databases), Err(Error::KeyspaceDropped(_))));
        assert!(database.rows.is_empty());
    }
}
