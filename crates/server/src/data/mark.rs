//! The version up to which all collections are known to be whole, on media.
//!
//! The row exists from the first start of a server on. It holds a version that was durable when it was written:
//! everything that a loss of power can take, or leave half changed, has a higher version, whatever opens and closes the
//! store in between. After an orderly end it holds a special value instead. Its length never changes, so a store that
//! takes no further data still takes this row.
//!
//! ```text
//! version u64, all ones after an orderly end | UUID of the store, 16 bytes
//! ```
//!
//! Rows of earlier servers hold the version only. After such a row, or one that a dump has brought here from another
//! store, everything is checked, because its version says nothing about this store.

use crate::events::{self, Level};
use hither::{Db, Durability, Keyspace, Result, WriteOptions, without_bound};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Time between two raises of the mark: what was changed since the last one is checked after a crash.
pub const RAISE_EVERY: Duration = Duration::from_secs(30);
/// In place of a version: a server has ended in order.
const ENDED: u64 = u64::MAX;

/// The mark of a store: the version up to which its collections are whole.
pub struct Mark {
    keyspace: Keyspace,
    /// When the mark was raised last.
    raised: Mutex<Raised>,
    /// When [`Mark::raise_if_due`] last tried to raise it.
    tried: Mutex<Instant>,
}

#[derive(Clone, Copy)]
enum Raised {
    /// When this many bytes had been appended to the store.
    At(u64),
    /// Something is left to mend, so the mark stays where it is.
    Never,
}

/// What the row holds.
enum Found {
    /// A version of this store.
    Own(u64),
    /// A version of another store, or without a store.
    Other(u64),
}

impl Mark {
    const KEY: &[u8] = b"collections whole";

    /// The mark of the store whose server keyspace this is.
    pub fn new(keyspace: Keyspace) -> Mark {
        Mark { keyspace, raised: Mutex::new(Raised::At(u64::MAX)), tried: Mutex::new(Instant::now()) }
    }

    /// Returns the version above which collections may be half changed; [`None`] if the last server ended in order. The
    /// answer stays the same until [`Mark::begin`]. Waits for a sync.
    pub fn due(&self, db: &Db) -> Result<Option<u64>> {
        let recovery = db.recovery();
        let due = match self.find(db)? {
            Some(Found::Own(ENDED)) => None,
            Some(Found::Own(version)) if version <= db.written_version() => return Ok(Some(version)),
            Some(Found::Other(ENDED)) => (!recovery.clean).then_some(0),
            Some(_) => return Ok(Some(0)),
            None => (!recovery.clean).then_some(recovery.settled_version),
        };
        if let Some(version) = due {
            // The next opening may take everything that is there for settled.
            self.or_without(db, self.set(db, version))?;
        }
        Ok(due)
    }

    /// A server begins, and what may have been half changed is mended: from here on everything that is there counts as
    /// whole. If the store has no room for the row, an earlier row stays, or there is no row and the version that
    /// recovery takes for settled counts. Waits for syncs.
    pub fn begin(&self, db: &Db) -> Result<()> {
        self.or_without(db, self.raise(db))
    }

    /// A row that cannot be written is no reason to serve nobody, since deletes are what helps. But the row must not
    /// claim that a server has ended in order.
    fn or_without(&self, db: &Db, outcome: Result<()>) -> Result<()> {
        let Some(error) = outcome.as_ref().err().filter(|error| error.kind().is_lack_of_space()) else { return outcome };
        events::log(Level::Warn, "no-room-for-mark", &[("why", error)]);
        match self.find(db)? {
            Some(Found::Own(ENDED) | Found::Other(ENDED)) => self.remove(db),
            _ => Ok(()),
        }
    }

    /// Removes the row. Where not even a delete has room, first collects everything that frees any.
    fn remove(&self, db: &Db) -> Result<()> {
        let remove = || self.keyspace.delete_with(Self::KEY, &durably()).and_then(|(_, ticket)| ticket.wait());
        match remove() {
            Err(error) if error.kind().is_lack_of_space() => {
                // A failure does not matter if there is room afterwards.
                if let Err(error) = db.compact_with(0.001, |_| std::ops::ControlFlow::Continue(())) {
                    events::log(Level::Warn, "no-room-for-mark", &[("why", &error)]);
                }
                remove()
            }
            removed => removed,
        }
    }

    /// Raises the mark: what is written by now is whole once it is durable. Waits for that; does nothing if nothing was
    /// written since the last raise. O(segments).
    pub fn raise(&self, db: &Db) -> Result<()> {
        let mut raised = self.raised.lock();
        if matches!(*raised, Raised::At(before) if before != appended(db)) {
            let version = db.written_version();
            db.ticket_at(version).wait()?;
            self.set(db, version)?;
            *raised = Raised::At(appended(db));
        }
        Ok(())
    }

    /// As [`Mark::raise`], unless that was tried within [`RAISE_EVERY`]. If it fails, the next start checks more.
    pub fn raise_if_due(&self, db: &Db) {
        let mut tried = self.tried.lock();
        if tried.elapsed() >= RAISE_EVERY {
            let _ = self.raise(db);
            *tried = Instant::now();
        }
    }

    /// Keeps the mark where it is: something is left for the next start to mend.
    pub fn hold(&self) {
        *self.raised.lock() = Raised::Never;
    }

    /// Whether something is left to mend.
    pub fn is_held(&self) -> bool {
        matches!(*self.raised.lock(), Raised::Never)
    }

    /// Marks an orderly end; the server writes nothing more. Waits for syncs.
    pub fn end(&self, db: &Db) -> Result<()> {
        if matches!(*self.raised.lock(), Raised::At(_)) {
            db.sync()?;
            self.set(db, ENDED)?;
        }
        Ok(())
    }

    /// Whether a server of this store has written the row.
    pub fn is_own(&self, db: &Db) -> Result<bool> {
        Ok(matches!(self.find(db)?, Some(Found::Own(_))))
    }

    fn find(&self, db: &Db) -> Result<Option<Found>> {
        let Some(bytes) = self.keyspace.get(Self::KEY)? else { return Ok(None) };
        let Some((version, store)) = bytes.split_first_chunk() else { return Ok(Some(Found::Other(0))) };
        let version = u64::from_be_bytes(*version);
        Ok(Some(if store == db.uuid() { Found::Own(version) } else { Found::Other(version) }))
    }

    fn set(&self, db: &Db, version: u64) -> Result<()> {
        let row = [&version.to_be_bytes()[..], &db.uuid()].concat();
        without_bound(|| self.keyspace.put_with(Self::KEY, &row, &durably()))?.wait()
    }

    /// Pretends that nobody has tried to raise the mark for a long time.
    #[cfg(test)]
    pub fn make_due(&self) {
        *self.tried.lock() = Instant::now().checked_sub(RAISE_EVERY).unwrap();
    }
}

fn appended(db: &Db) -> u64 {
    db.stats().pools.iter().map(|pool| pool.appended_bytes).sum()
}

fn durably() -> WriteOptions {
    WriteOptions::new().durability(Durability::Sync)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (Db, Mark) {
        let db = Db::builder().in_memory().open().unwrap();
        let mark = Mark::new(db.keyspace("server").unwrap());
        (db, mark)
    }

    #[test]
    fn it_says_what_was_durable_until_the_end() {
        let (db, mark) = store();
        let keyspace = db.keyspace("db0").unwrap();
        assert_eq!(mark.due(&db).unwrap(), None);
        keyspace.put(b"k", b"v").unwrap();
        let version = keyspace.get_versioned(b"k").unwrap().unwrap().1;
        mark.begin(&db).unwrap();
        let due = mark.due(&db).unwrap().unwrap();
        assert!(due >= version);
        mark.raise(&db).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(due), "nothing was written");
        keyspace.put(b"k", b"w").unwrap();
        mark.raise_if_due(&db);
        assert_eq!(mark.due(&db).unwrap(), Some(due), "it is too early");
        mark.make_due();
        mark.raise_if_due(&db);
        assert!(mark.due(&db).unwrap().unwrap() > due);
        mark.end(&db).unwrap();
        assert_eq!(mark.due(&db).unwrap(), None);
    }

    #[test]
    fn it_stays_as_long_as_something_is_left_to_mend() {
        let (db, mark) = store();
        mark.set(&db, 1).unwrap();
        mark.hold();
        db.keyspace("db0").unwrap().put(b"k", b"v").unwrap();
        mark.raise(&db).unwrap();
        mark.end(&db).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(1));
    }

    /// Regression: a version that a dump had brought along counted if this store's versions had come as far.
    #[test]
    fn that_of_another_store_says_nothing() {
        let ((db, mark), (other, others)) = (store(), store());
        let keyspace = db.keyspace("db0").unwrap();
        (0..100).for_each(|_| keyspace.put(b"k", b"v").unwrap());
        others.set(&other, 1).unwrap();
        let foreign = others.keyspace.get(Mark::KEY).unwrap().unwrap();
        mark.keyspace.put(Mark::KEY, &foreign).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(0));
        // A version that this store has not reached is another store's, too.
        mark.set(&db, ENDED - 1).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(0));
    }

    /// A server of an earlier version has written the version only.
    #[test]
    fn one_without_a_store_has_everything_looked_at() {
        let (db, mark) = store();
        mark.keyspace.put(Mark::KEY, &1u64.to_be_bytes()).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(0));
    }
}
