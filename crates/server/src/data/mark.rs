//! Up to which version all collections are known to be whole, on media.
//!
//! The row is there from the start of a server to its orderly end, whatever opens and closes the store in between. All that a loss of power can take, or leave half changed, has a
//! higher version: it says what was durable.

use hither::{Db, Durability, Keyspace, Result, WriteOptions};
use parking_lot::Mutex;

/// See the module's head.
pub struct Mark {
    keyspace: Keyspace,
    /// When it was raised last.
    raised: Mutex<Raised>,
}

#[derive(Clone, Copy)]
enum Raised {
    /// When so many bytes had been appended to the store.
    At(u64),
    /// Something is left to mend: it stays where it is.
    Never,
}

impl Mark {
    const KEY: &[u8] = b"collections whole";

    /// The one of a store.
    pub fn new(keyspace: Keyspace) -> Mark {
        Mark { keyspace, raised: Mutex::new(Raised::At(u64::MAX)) }
    }

    /// Above which version collections may be half changed; [`None`] if the last server ended in order. It stays so until [`Mark::raise`]. Waits for a sync.
    pub fn due(&self, db: &Db) -> Result<Option<u64>> {
        let recovery = db.recovery();
        let Some(bytes) = self.keyspace.get(Self::KEY)? else {
            let settled = (!recovery.clean).then_some(recovery.settled_version);
            // The next opening may take all that is there for settled.
            return settled.map(|settled| self.set(settled).map(|()| settled)).transpose();
        };
        let version = bytes.try_into().map_or(0, u64::from_be_bytes);
        // Of another store, by a dump: its versions say nothing here.
        Ok(Some(if version <= db.written_version() { version } else { 0 }))
    }

    /// What is written by now is whole once it is durable. Waits for that; does nothing if nothing was written since. O(segments).
    pub fn raise(&self, db: &Db) -> Result<()> {
        let mut raised = self.raised.lock();
        if matches!(*raised, Raised::At(before) if before != appended(db)) {
            let version = db.written_version();
            db.ticket_at(version).wait()?;
            self.set(version)?;
            *raised = Raised::At(appended(db));
        }
        Ok(())
    }

    /// Something is left to mend, for the next start.
    pub fn hold(&self) {
        *self.raised.lock() = Raised::Never;
    }

    /// Whether something is left to mend.
    pub fn is_held(&self) -> bool {
        matches!(*self.raised.lock(), Raised::Never)
    }

    /// The server ends, and writes nothing more. Waits for syncs.
    pub fn remove(&self, db: &Db) -> Result<()> {
        if matches!(*self.raised.lock(), Raised::At(_)) {
            db.sync()?;
            self.keyspace.delete_with(Self::KEY, &durably())?.1.wait()?;
        }
        Ok(())
    }

    fn set(&self, version: u64) -> Result<()> {
        self.keyspace.put_with(Self::KEY, &version.to_be_bytes(), &durably())?.wait()
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

    #[test]
    fn it_is_there_until_the_end_and_says_what_was_durable() {
        let db = Db::builder().in_memory().open().unwrap();
        let (mark, keyspace) = (Mark::new(db.keyspace("server").unwrap()), db.keyspace("db0").unwrap());
        assert_eq!(mark.due(&db).unwrap(), None);
        keyspace.put(b"k", b"v").unwrap();
        let version = keyspace.get_versioned(b"k").unwrap().unwrap().1;
        mark.raise(&db).unwrap();
        let due = mark.due(&db).unwrap().unwrap();
        assert!(due >= version);
        mark.raise(&db).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(due), "nothing was written");
        keyspace.put(b"k", b"w").unwrap();
        mark.raise(&db).unwrap();
        assert!(mark.due(&db).unwrap().unwrap() > due);
        mark.remove(&db).unwrap();
        assert_eq!(mark.due(&db).unwrap(), None);
    }

    #[test]
    fn it_stays_as_long_as_something_is_left_to_mend() {
        let db = Db::builder().in_memory().open().unwrap();
        let mark = Mark::new(db.keyspace("server").unwrap());
        mark.set(1).unwrap();
        mark.hold();
        db.keyspace("db0").unwrap().put(b"k", b"v").unwrap();
        mark.raise(&db).unwrap();
        mark.remove(&db).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(1));
    }

    #[test]
    fn that_of_another_store_says_nothing() {
        let db = Db::builder().in_memory().open().unwrap();
        let mark = Mark::new(db.keyspace("server").unwrap());
        mark.set(u64::MAX).unwrap();
        assert_eq!(mark.due(&db).unwrap(), Some(0));
    }
}
