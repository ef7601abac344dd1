//! Removes the rows of collections that have no head any more.
//!
//! Commands that delete or overwrite a collection announce its number; that is prompt but not needed: a sweep over the registry rows finds all such
//! collections, also those that expired and those that a crash left, at the start, and now and then as long as collections expire or something could
//! not be removed.
//!
//! # Why it removes nothing that is in use
//!
//! A registry row names the key that a collection has. If that key's entry does not carry the collection's number, the collection is gone — unless a
//! batch that creates or renames it is half visible. So each removal is a batch on the condition that both the registry row and the key's
//! entry still have the versions that were read; a batch under way either is complete by then, and has changed one of them, or waits.
//! Once gone, a number never comes back (rule 1), so the removal may go on in portions. The registry row goes last.
//!
//! Nothing is removed before it is durable that the head is gone: a loss of power could keep the removal and bring back the head. So the reaper waits for a sync,
//! one for all that were announced meanwhile, and takes only what it has seen without a head before that.
//!
//! Nor is anything while something is left to mend ([`super::mend`]): the registry may name a key that a lost RENAME has left without a head, and another one has it.

use super::databases::{Database, Databases, Found, member_rows};
use super::encoding::{self, Head, REGISTRY};
use super::mark::RAISE_EVERY;
use crate::events::{self, Level};
use hither::{Error, Result, WriteOptions};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rows removed by one batch, and collections looked at before one sync.
const PORTION: usize = 256;
/// Between sweeps while collections may expire, or something could not be removed.
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
    /// The same, but not at once.
    sweep_later: bool,
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

    /// Something could not be removed: a sweep tries again, no sooner than [`SWEEP_EVERY`] after the last one.
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
    /// Collections of one database.
    Some(u16, Vec<u64>),
    Sweep,
    /// There was none for a while.
    None,
    Stop,
}

/// Runs until it is stopped. An error ends a piece of work, not the thread: the next sweep finds what was left.
pub fn run(databases: &Databases) {
    // What a crash, or expiry while nothing ran, has left.
    report(databases, sweep(databases));
    let mut swept = Instant::now();
    loop {
        databases.mark.raise_if_due(&databases.db);
        match next(&databases.reaper, swept) {
            Work::Stop => return,
            Work::None => {}
            Work::Some(index, numbers) => reap_announced(databases, index, &numbers),
            Work::Sweep => {
                report(databases, sweep(databases));
                swept = Instant::now();
            }
        }
    }
}

fn reap_announced(databases: &Databases, index: u16, numbers: &[u64]) {
    // In one that is being replaced there is nothing to find, or a sweep follows.
    if let Found::There(database) = databases.find(index) {
        reap(databases, &database, numbers, &mut |outcome| {
            if outcome.is_err() {
                databases.reaper.sweep_later();
            }
        });
    }
}

/// Says in the log that something was left, but for what somebody else has removed meanwhile, and has it tried again.
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
        if let Some((index, _)) = state.announced.front().copied() {
            let same = state.announced.iter().take(PORTION).take_while(|(other, _)| *other == index).count();
            return Work::Some(index, state.announced.drain(..same).map(|(_, number)| number).collect());
        }
        let due = (state.sweep_later || reaper.expiring.load(Ordering::Relaxed)) && swept.elapsed() >= SWEEP_EVERY;
        if std::mem::take(&mut state.sweep) || due {
            state.sweep_later = false;
            return Work::Sweep;
        }
        if reaper.changed.wait_for(&mut state, SWEEP_EVERY.min(RAISE_EVERY)).timed_out() {
            return Work::None;
        }
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

/// Tells of every registered collection without a head whether it was removed, until the reaper is to stop.
fn sweep_one(databases: &Databases, database: &Database, tell: &mut impl FnMut(Result<bool>)) -> Result<()> {
    let mut after = vec![REGISTRY];
    while !databases.reaper.is_stopping() {
        let mut numbers = Vec::new();
        database.rows.scan_deferred(Bound::Excluded(&after), Bound::Excluded(&[REGISTRY + 1]), false, |row, _, _| {
            numbers.extend(encoding::number_of(row));
            if numbers.len() == PORTION { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let Some(last) = numbers.last() else { return Ok(()) };
        after = encoding::registry_row(*last).to_vec();
        reap(databases, database, &numbers, tell);
    }
    Ok(())
}

/// A collection without a head, as it was seen.
struct Orphan {
    number: u64,
    /// The key that it had.
    key: Vec<u8>,
    /// Version of the registry row.
    row_version: u64,
    /// What is at the key now.
    key_version: Option<u64>,
}

/// Removes the rows of those of these collections that have no head, and tells of each whether it did, until the reaper is to stop. One sync for all.
fn reap(databases: &Databases, database: &Database, numbers: &[u64], tell: &mut impl FnMut(Result<bool>)) {
    if databases.mark.is_held() {
        return;
    }
    // What was registered by then is visible with its head.
    let whole = databases.db.written_version();
    let mut orphans = Vec::new();
    for number in numbers {
        match look(databases, database, *number) {
            Ok(found) => orphans.extend(found.filter(|orphan| orphan.row_version <= whole)),
            Err(error) => tell(Err(error)),
        }
    }
    if orphans.is_empty() {
        return;
    }
    // Or a loss of power could bring back a head whose rows are gone.
    if let Err(error) = databases.db.ticket_at(databases.db.written_version()).wait() {
        return tell(Err(error));
    }
    for orphan in orphans {
        if databases.reaper.is_stopping() {
            return;
        }
        tell(remove(databases, database, orphan));
    }
}

/// Collection `number`, if it is registered and has no head.
fn look(databases: &Databases, database: &Database, number: u64) -> Result<Option<Orphan>> {
    let (found, _) = database.rows.peek_with(&encoding::registry_row(number), |key, found| (key.to_vec(), found.version))?;
    let Some((key, row_version)) = found else { return Ok(None) };
    let (head, _) = database.keys.peek_with(&key, |entry, found| (Head::decode(entry), found))?;
    if let Some((Some(head), found)) = &head
        && head.number == number
    {
        // Of an earlier run, perhaps: nobody else would say so in this one.
        if found.expires_at_ms != 0 {
            databases.reaper.note_expiring();
        }
        return Ok(None);
    }
    Ok(Some(Orphan { number, key, row_version, key_version: head.map(|(_, found)| found.version) }))
}

/// Removes the rows of a collection; whether it did.
fn remove(databases: &Databases, database: &Database, mut orphan: Orphan) -> Result<bool> {
    let registry = encoding::registry_row(orphan.number);
    loop {
        let rows = portion(database, orphan.number)?;
        let last = rows.len() < PORTION;
        let mut batch = databases.db.batch();
        batch.require_version(&database.rows, &registry, Some(orphan.row_version));
        batch.require_version(&database.keys, &orphan.key, orphan.key_version);
        for row in &rows {
            batch.delete(&database.rows, row);
        }
        if last {
            batch.delete(&database.rows, &registry);
        }
        if !batch.commit_deferred(&WriteOptions::new())?.applied {
            let Some(seen) = look(databases, database, orphan.number)? else { return Ok(false) };
            // It had another key in the meantime, and may have lost its head just now.
            if seen.row_version != orphan.row_version {
                databases.reaper.announce(database.index, orphan.number);
                return Ok(false);
            }
            // The key was written, which changes nothing.
            orphan = seen;
        } else if last {
            databases.reaper.reaped.fetch_add(1, Ordering::Relaxed);
            return Ok(true);
        }
    }
}

/// The first rows of a collection.
fn portion(database: &Database, number: u64) -> Result<Vec<Vec<u8>>> {
    let (start, end) = member_rows(number);
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut rows = Vec::with_capacity(PORTION);
    database.rows.scan_deferred(Bound::Included(&start), end, false, |row, _, _| {
        rows.push(row.to_vec());
        if rows.len() == PORTION { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::encoding::Type;
    use hither::{Db, Durability, MediumChoice};
    use std::sync::Arc;

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

    fn with_failpoints() -> (tempfile::TempDir, Arc<Databases>, Arc<hither_pmem::Failpoints>) {
        let (dir, points) = (tempfile::tempdir().unwrap(), hither_pmem::Failpoints::new());
        let builder = Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(8 << 20).durability(Durability::Process);
        let db = builder.with_options(|options| options.failpoints = Some(points.clone())).open().unwrap();
        (dir, Databases::open(db, 1).unwrap(), points)
    }

    /// The number of a hash with one field.
    fn collection(databases: &Databases) -> u64 {
        let (database, number) = (databases.get(0).unwrap(), databases.next_number().unwrap());
        let row = encoding::row(number, encoding::part::FIELD, b"field");
        database.rows.put(&encoding::registry_row(number), b"hash").unwrap();
        database.rows.put(&row, b"value").unwrap();
        database.keys.put(b"hash", &Head { kind: Type::Hash, number, count: 1 }.encode()).unwrap();
        databases.db.sync().unwrap();
        number
    }

    /// Regression: rows were removed before it was durable that their head is gone; a loss of power could bring back the head without them.
    #[test]
    fn rows_stay_until_it_is_durable_that_their_head_is_gone() {
        let (_dir, databases, points) = with_failpoints();
        let database = databases.get(0).unwrap();
        collection(&databases);
        points.arm("sync", hither_pmem::FailAt { skip: 0, count: u64::MAX, errno: 5 });
        database.keys.delete(b"hash").unwrap();
        assert!(sweep(&databases).is_err());
        assert!(points.reached("sync") >= 1);
        assert_eq!(database.rows.len(), 2);
    }

    /// Regression: where mending was cut short, what the registry named wrongly was removed from under the head that had it.
    #[test]
    fn nothing_is_removed_while_something_is_left_to_mend() {
        let (_dir, databases, _) = with_failpoints();
        let database = databases.get(0).unwrap();
        collection(&databases);
        database.keys.delete(b"hash").unwrap();
        databases.mark.hold();
        assert_eq!((sweep(&databases).unwrap(), database.rows.len()), (0, 2));
    }

    /// Regression: what could not be removed when it was announced stayed until the next start.
    #[test]
    fn a_sweep_follows_what_could_not_be_removed() {
        let (_dir, databases, points) = with_failpoints();
        let number = collection(&databases);
        points.arm("sync", hither_pmem::FailAt { skip: 0, count: u64::MAX, errno: 5 });
        databases.get(0).unwrap().keys.delete(b"hash").unwrap();
        databases.reaper.announce(0, number);
        let long_ago = Instant::now().checked_sub(SWEEP_EVERY).unwrap();
        let Work::Some(index, numbers) = next(&databases.reaper, long_ago) else { panic!("it was announced") };
        reap_announced(&databases, index, &numbers);
        assert!(matches!(next(&databases.reaper, long_ago), Work::Sweep));
    }
}
