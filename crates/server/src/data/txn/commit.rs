//! The commit of a transaction: checks what was read, applies what was written.

use super::{Committed, Space, Txn};
use hither::{Db, Result};

impl Txn {
    /// Whether everything that was read is unchanged; writes nothing. For a command that answers with an error.
    pub fn is_as_read(&self, db: &Db) -> Result<bool> {
        if self.torn {
            return Ok(false);
        }
        let mut batch = db.batch();
        for ((index, key), version) in &self.reads {
            batch.require_version(&self.touched_database(*index).keys, key, *version);
        }
        Ok(self.reads.is_empty() || batch.commit_deferred(&self.options)?.applied)
    }

    /// Applies everything, or nothing if something that was read has changed. Call once only.
    pub fn commit(&mut self, db: &Db) -> Result<Committed> {
        if self.writes.is_empty() && self.reads.is_empty() {
            return Ok(self.committed(true, self.rests_on));
        }
        if self.torn {
            return Ok(self.committed(false, self.rests_on));
        }
        let done = if self.writes.len() == 1 && self.reads.len() <= 1 { self.commit_one(db)? } else { self.commit_batch(db)? };
        Ok(self.committed(done.applied, self.rests_on.max(done.rests_on)))
    }

    fn committed(&mut self, applied: bool, rests_on: u64) -> Committed {
        // If a head was overwritten, it was written behind this note, so the note is seen here.
        let mut databases = self.touched.iter().chain([&self.database]);
        let unseen = databases.any(|database| self.unlooked.contains(&database.index) && database.has_collections());
        Committed { applied, rests_on, orphans: std::mem::take(&mut self.orphans), unseen }
    }

    /// The case of most commands: one key, read and written.
    fn commit_one(&self, db: &Db) -> Result<hither::Deferred> {
        let Some((place, item)) = self.writes.first_key_value() else { return self.commit_batch(db) };
        let version = match self.reads.iter().next() {
            Some(((index, key), version)) if (*index, Space::Keys, key) == (place.0, place.1, &place.2) => Some(*version),
            Some(_) => return self.commit_batch(db),
            None => None,
        };
        let keyspace = self.keyspace(place);
        let expires = item.as_ref().map_or(0, |item| item.expires_at_ms);
        let options = if expires == 0 { self.options } else { self.options.expires_at_ms(expires) };
        let value = item.as_ref().map(|item| item.entry.as_slice());
        match version {
            Some(version) => keyspace.write_if_deferred(&place.2, value, version, &options),
            None => keyspace.write_deferred(&place.2, value, &options),
        }
    }

    fn commit_batch(&self, db: &Db) -> Result<hither::Deferred> {
        let mut batch = db.batch();
        for ((index, key), version) in &self.reads {
            batch.require_version(&self.touched_database(*index).keys, key, *version);
        }
        for (place, item) in &self.writes {
            let keyspace = self.keyspace(place);
            match item {
                Some(item) => batch.put_with_expiry(keyspace, &place.2, &item.entry, item.expires_at_ms),
                None => batch.delete(keyspace, &place.2),
            };
        }
        batch.commit_deferred(&self.options)
    }

    /// Makes the commit depend on the keys that a client watches; returns false if one has changed already.
    pub fn require_unchanged(&mut self, watches: &crate::transaction::Watches) -> Result<bool> {
        if watches.is_broken() {
            return Ok(false);
        }
        for (database, key, before) in watches.iter() {
            let version = match self.version_of(database, key) {
                // The database was flushed.
                Err(hither::Error::KeyspaceDropped(_)) => return Ok(false),
                version => version?,
            };
            if version != before {
                return Ok(false);
            }
            self.require(database, key, version);
        }
        Ok(true)
    }
}
