//! The removal of rows that no head leads to.
//!
//! # Why it removes nothing that is in use
//!
//! A registry row names the key of its collection. If that key's entry does not carry the collection's number, the
//! collection is gone — unless a batch that creates or renames it is half visible. Each batch that gives a number a
//! head at a key writes the registry row, too: a new collection, a copy, RENAME. All other changes of a head are made
//! on the condition that it is there. So:
//!
//! * A registry row that was written before the look began is visible with its head; younger ones are left for the next
//!   time.
//! * Each removal is a batch on the condition that the registry row still has the version that was read. A batch that
//!   gives the number a head is either complete by then, and has changed that row, or waits.
//! * The key is no condition. Whatever is written there is not this collection, and it may be written all the time.
//! * A head that has expired does not come back: once a reader has found it expired, that time is the lower bound of
//!   the clock. A change that looked at the clock just before (EXPIRE, PERSIST) may still be under way, so the head is
//!   looked at again when all such changes have ended.
//!
//! Once gone, a number never comes back (rule 1 of [`super::super`]), so the removal may go on in portions. The
//! registry row goes last.
//!
//! Nothing is removed before it is durable that the head is gone, or that its expiry has passed: otherwise a loss of
//! power could keep the removal and bring back the head. So the reaper waits for a sync, one for all that were
//! announced meanwhile, and removes only collections that it has seen without a head before that sync.
//!
//! Nothing is removed either while something is left to mend ([`crate::data::mend`]). The registry may name a key that
//! a lost RENAME has left without a head, while the collection is at another key.

use super::PORTION;
use crate::data::databases::{Database, Databases, member_rows};
use crate::data::encoding::{self, Head};
use hither::{Result, WriteOptions};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

/// A collection without a head, as it was seen.
pub struct Orphan {
    number: u64,
    /// Version of the registry row.
    row_version: u64,
    /// There was nothing at its key, so it may have expired.
    may_have_expired: bool,
}

/// Removes the rows of those of these collections that have no head, with one sync for all, and reports for each
/// whether it did, until the reaper is to stop.
pub fn reap(databases: &Databases, those: &[(&Database, u64)], tell: &mut impl FnMut(Result<bool>)) {
    if databases.mark.is_held() {
        return;
    }
    // What was registered by then is visible with its head.
    let whole = databases.db.written_version();
    let seen = those.iter().copied().filter_map(|(database, number)| seen_without_head(databases, database, number, whole, tell));
    let seen: Vec<_> = seen.collect();
    if seen.is_empty() {
        return;
    }
    #[cfg(test)]
    databases.reaper.between_looks.lock().take().iter_mut().for_each(|between| between());
    // Waits for the changes that have looked at an earlier clock: they are visible then, and later ones find the heads
    // expired.
    databases.db.written_version();
    let again =
        seen.iter().filter_map(|(database, orphan)| seen_without_head(databases, database, orphan.number, orphan.row_version, tell));
    let orphans: Vec<_> = again.collect();
    // Before anything is removed, and after the last look, so that what the look has seen is durable.
    if let Err(error) = make_durable(databases, orphans.iter().any(|(_, orphan)| orphan.may_have_expired)) {
        return tell(Err(error));
    }
    for (database, orphan) in orphans {
        if databases.reaper.is_stopping() {
            return;
        }
        tell(remove(databases, database, &orphan));
    }
}

/// Returns a collection that is registered with a version up to `whole` and has no head. Reports errors.
fn seen_without_head<'a>(
    databases: &Databases,
    database: &'a Database,
    number: u64,
    whole: u64,
    tell: &mut impl FnMut(Result<bool>),
) -> Option<(&'a Database, Orphan)> {
    match look(databases, database, number) {
        Ok(Some(orphan)) if orphan.row_version <= whole => return Some((database, orphan)),
        // Its head may be about to appear, with an expiry.
        Ok(Some(_)) => databases.reaper.note_expiring(),
        Ok(None) => {}
        Err(error) => tell(Err(error)),
    }
    None
}

/// Otherwise a loss of power, or a clock that is set back at the next start, could bring back a head whose rows are
/// gone.
fn make_durable(databases: &Databases, expired: bool) -> Result<()> {
    databases.db.ticket_at(databases.db.written_version()).wait()?;
    if expired { databases.db.persist_expiries() } else { Ok(()) }
}

/// Collection `number`, if it is registered and has no head.
pub fn look(databases: &Databases, database: &Database, number: u64) -> Result<Option<Orphan>> {
    let (found, _) = database.rows.peek_with(&encoding::registry_row(number), |key, found| (key.to_vec(), found.version))?;
    let Some((key, row_version)) = found else { return Ok(None) };
    let (found, _) = database.keys.peek_with(&key, |entry, found| (Head::decode(entry), found.expires_at_ms))?;
    let may_have_expired = found.is_none();
    if let Some((Some(head), expires_at_ms)) = found
        && head.number == number
    {
        if expires_at_ms != 0 {
            databases.reaper.note_expiring();
        }
        return Ok(None);
    }
    Ok(Some(Orphan { number, row_version, may_have_expired }))
}

/// Removes the rows of a collection; returns whether it did. The collection may be large, so between two portions this
/// checks whether to stop, and raises the mark.
pub fn remove(databases: &Databases, database: &Database, orphan: &Orphan) -> Result<bool> {
    let registry = encoding::registry_row(orphan.number);
    while !databases.reaper.is_stopping() {
        databases.mark.raise_if_due(&databases.db);
        let rows = portion(database, orphan.number)?;
        let last = rows.len() < PORTION;
        let mut batch = databases.db.batch();
        batch.require_version(&database.rows, &registry, Some(orphan.row_version));
        for row in &rows {
            batch.delete(&database.rows, row);
        }
        if last {
            batch.delete(&database.rows, &registry);
        }
        if !batch.commit_deferred(&WriteOptions::new())?.applied {
            // The collection was given another key meanwhile, and may have lost its head just now. Or another remover
            // was faster.
            if look(databases, database, orphan.number)?.is_some() {
                databases.reaper.announce(database.index, orphan.number);
            }
            return Ok(false);
        }
        if last {
            databases.reaper.reaped.fetch_add(1, Ordering::Relaxed);
            return Ok(true);
        }
    }
    Ok(false)
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
