//! Sweeps: deleting expired keys, so that their space can be collected.
//!
//! The background thread sweeps from time to time. A write that finds no space sweeps itself before it gives up.
//!
//! A sweep ends its search of a keyspace when it has found many keys, or for lack of time. The next one goes on there
//! ([`crate::expiries`]): otherwise keys that expire at the front all the time would keep those behind them for ever.
//!
//! Thread safety: any number of threads may sweep. Crash: a sweep deletes like any other delete, on the condition that
//! the key still has the version that was found expired. So a crash at any point leaves keys that read as absent.

use crate::collector::{is_over, lock_until};
use crate::error::ErrorKind;
use crate::expiries::{Round, Searched};
use crate::keyspace::Keyspace;
use crate::scan::Part;
use crate::store::Core;
use crate::walk::Place;
use crate::write::{Attempt, Change, Condition, Written};
use hither_index::Start;
use hither_sync::epoch;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parts of rest for each part of sweeping: sweeps take a tenth of the time.
pub(crate) const SWEEP_REST: u32 = 9;
/// The same while there are more expired keys than one sweep deletes: a quarter of the time.
pub(crate) const LAG_REST: u32 = 3;
/// Most expired keys that are deleted per pass and keyspace.
const SWEEP: usize = 10_000;
/// Bytes of expired keys after which a search ends: they are held until they are deleted.
const SWEEP_BYTES: usize = 1 << 20;
/// Entries that a round may pass besides twice as many as there are.
const LEAST_ROUND: usize = 10_000;
/// If expired keys have more bytes than this on average, a search ends at once, instead of at the end of a piece.
const LONG_KEY: usize = 1 << 10;

/// Longest search of one keyspace by the background thread. Then the other keyspaces have their turn.
pub(crate) const LONGEST_SEARCH: Duration = Duration::from_secs(1);

impl Core {
    /// Deletes expired keys: an expired entry retires like a tombstone. Returns how many; some may be left.
    pub fn sweep_expired(&self) -> usize {
        self.sweep_those_there(None).deleted
    }

    /// Sweeps the keyspaces in which a search is due, and searches each for so long at most. Call without locks of the
    /// store.
    pub(crate) fn sweep_those_there(&self, longest_search: Option<Duration>) -> Swept {
        let swept = self.sweep_until(Limits { longest_search, ..Limits::default() });
        self.request_deletes(&swept);
        swept
    }

    /// Has a sweep's deletes made durable. Otherwise the next read of an absent key would wait for them: nobody else
    /// asks for them. Call without locks of the store: where there is no commit thread, this makes the commit itself,
    /// and runs callbacks.
    fn request_deletes(&self, swept: &Swept) {
        if swept.newest > 0 && self.waits() {
            self.committer.request(&self.log, swept.newest);
        }
    }

    /// Sweeps the keyspaces in which a search is due. [`Core::request_deletes`] is left to the caller.
    fn sweep_until(&self, limits: Limits) -> Swept {
        let (now_ms, now) = (self.now_ms(), Instant::now());
        let keyspaces: Vec<_> = self.keyspaces.read().values().filter(|keyspace| keyspace.expiries.is_due(now_ms, now)).cloned().collect();
        let mut swept = Swept::default();
        if keyspaces.is_empty() || self.committer.ensure_writable().is_err() {
            return swept;
        }
        // Without time to wait for the lock, the search would be in vain.
        swept.cut_short = is_over(limits.waits_until) && self.sweeping.is_locked();
        if !swept.cut_short {
            self.sweep_keyspaces(&keyspaces, &limits, &mut swept);
        }
        swept
    }

    fn sweep_keyspaces(&self, keyspaces: &[Arc<Keyspace>], limits: &Limits, swept: &mut Swept) {
        let mut persisted = false;
        for keyspace in keyspaces {
            let started = Instant::now();
            let expired = self.expired_keys(keyspace, limits.longest_search.map(|longest| started + longest).or(limits.end));
            swept.busy += started.elapsed();
            swept.more |= expired.are_many();
            // Once, and only if something is deleted: an idle store makes no syncs.
            if !expired.keys.is_empty() && !persisted {
                if self.persist_told().is_err() {
                    return;
                }
                persisted = true;
            }
            for (key, version) in expired.keys {
                // May wait for long: a check holds the lock.
                let locked = if is_over(limits.end) { None } else { lock_until(&self.sweeping, limits.waits_until) };
                swept.cut_short = locked.is_none();
                let Some(_no_check) = locked else { return };
                let change = Change { key: &key, value: None, expiry_ms: 0, condition: Condition::Sweep(version) };
                let started = Instant::now();
                let written = self.delete_swept(keyspace, &change);
                // A delete that failed has waited, most likely for room.
                swept.busy += if written.is_ok() { started.elapsed() } else { Duration::ZERO };
                match written {
                    Ok(written) if written.applied() => {
                        swept.deleted += 1;
                        swept.newest = swept.newest.max(written.version());
                    }
                    Ok(_) => swept.late += 1,
                    Err(error) if error.kind() == ErrorKind::Damaged => {}
                    // The keyspace was dropped or exchanged meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    // For lack of space, most likely: the next search would not get any further.
                    Err(_) => return,
                }
            }
        }
        swept.cut_short = is_over(limits.end);
    }

    fn delete_swept(&self, keyspace: &Keyspace, change: &Change<'_>) -> Attempt<Written> {
        hither_sync::with_value(&SWEEPS, true, || self.write(keyspace, change, self.durability))
    }

    /// For a write that found neither space nor anything to collect: makes garbage of expired entries, or waits for a
    /// thread that does. Returns false if there is nothing to delete; if there was nothing a short time ago, because a
    /// search may be long; if this is a delete of a sweep itself; or if no time is left.
    #[cold]
    pub fn sweep_for_space(&self, end: Option<Instant>) -> bool {
        if is_sweeping() {
            return false;
        }
        // Where no background thread searches everything, this search must do so, whatever the time.
        let waits_until = end;
        let end = end.filter(|_| self.expiring.any());
        let asked = Instant::now();
        let Some(mut last) = lock_until(&self.space_sweep, waits_until) else { return false };
        if let Some(last) = &*last {
            if last.ended > asked {
                return last.made;
            }
            if !last.made && last.ended.elapsed() < last.took * SWEEP_REST {
                return false;
            }
        }
        let swept = self.sweep_until(Limits { end, waits_until, longest_search: None });
        // Keys that others have deleted first count, too: there is room all the same, and perhaps more expired keys
        // than these searches were after.
        let made = swept.deleted + swept.late > 0;
        // A search that was cut short says nothing for a writer that has more time.
        if made || !swept.cut_short {
            *last = Some(SpaceSweep { ended: Instant::now(), took: swept.busy, made });
        }
        // A callback may write, and then wait here for space.
        drop(last);
        self.request_deletes(&swept);
        made
    }

    /// Finds expired keys, until there are many, and until `end` at most.
    fn expired_keys(&self, keyspace: &Keyspace, end: Option<Instant>) -> ExpiredKeys {
        let mut found = ExpiredKeys::default();
        // A search that has seen the rest and found nothing has not looked at what comes before.
        while keyspace.expiries.search(|round| self.find_expired(keyspace, round, &mut found, end)) == Searched::Rest
            && found.keys.is_empty()
            && !is_over(end)
            && keyspace.expiries.is_due(self.now_ms(), Instant::now())
        {}
        found
    }

    /// Adds expired keys from the round's place on. Breaks if it ends early.
    fn find_expired(&self, keyspace: &Keyspace, round: &mut Round, found: &mut ExpiredKeys, end: Option<Instant>) -> ControlFlow<()> {
        if round.place == Place::START {
            (round.until, round.left) = (self.last_key(keyspace), 2 * keyspace.len() + LEAST_ROUND);
        }
        let mut refs = Vec::new();
        loop {
            let _pin = epoch::pin();
            let met = &mut round.met;
            let piece = self.visit_piece(keyspace, &round.place, Part::Head, &mut refs, |reference| {
                let expiry = self.log.expiry_of(reference.0);
                let is_expired = self.is_expired(expiry);
                met.count(expiry, is_expired);
                // The expiry of a damaged entry is not reliable.
                if is_expired && self.ensure_whole(reference).is_ok() {
                    let entry = self.log.entry(reference.0);
                    found.bytes += entry.key.len();
                    found.keys.push((entry.key.to_vec(), self.log.version_of(reference.0, &entry)));
                }
                Ok(if found.are_many_long() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            // After a drop of the keyspace, in the middle of a piece, or after so many entries, the rest is left to the
            // next round. So each search gets further, whatever is deleted, and each round ends, whatever is added.
            round.left = round.left.saturating_sub(refs.len());
            met.skipped |= round.left == 0 || !matches!(piece, Ok((ControlFlow::Continue(()), _)));
            match piece {
                Ok((_, Some(behind))) if round.left > 0 && !behind.is_at(round.until.as_deref()) => round.place = behind,
                _ => return ControlFlow::Continue(()),
            }
            // A close waits for the background's search, so it ends then.
            if found.are_many() || is_over(end) || self.committer.refuses() {
                return ControlFlow::Break(());
            }
        }
    }

    /// The last key of an ordered keyspace, if it has any and the last one can be read.
    fn last_key(&self, keyspace: &Keyspace) -> Option<Vec<u8>> {
        let mut last = Vec::new();
        let _pin = epoch::pin();
        if keyspace.ensure_usable().is_ok() && keyspace.ensure_ordered().is_ok() {
            keyspace.scan(Start::Edge, true, 1, &mut last, &self.resolver());
        }
        let last = last.first().filter(|last| self.ensure_whole(**last).is_ok())?;
        Some(self.log.key(last.0).to_vec())
    }
}

/// How long a sweep may take.
#[derive(Default)]
struct Limits {
    /// The end of searches and deletes.
    end: Option<Instant>,
    /// The end of waits for other threads.
    waits_until: Option<Instant>,
    /// The longest search of a keyspace; `None`: until `end`.
    longest_search: Option<Duration>,
}

thread_local! {
    /// Whether this thread is deleting expired keys.
    static SWEEPS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is deleting expired keys, with the locks of sweeps held.
pub(crate) fn is_sweeping() -> bool {
    SWEEPS.get()
}

/// Expired keys with the versions of their entries.
#[derive(Default)]
struct ExpiredKeys {
    keys: Vec<(Vec<u8>, u64)>,
    /// Bytes of the keys.
    bytes: usize,
}

impl ExpiredKeys {
    /// Whether they are as many as are deleted at once, so that there may be more.
    fn are_many(&self) -> bool {
        self.keys.len() >= SWEEP || self.bytes >= SWEEP_BYTES
    }

    /// Whether they are many, and so long that no more should come.
    fn are_many_long(&self) -> bool {
        self.are_many() && self.bytes > LONG_KEY * self.keys.len()
    }
}

/// Outcome of a sweep.
#[derive(Default)]
pub(crate) struct Swept {
    pub deleted: usize,
    /// There are many expired keys, of which this sweep found some.
    pub more: bool,
    /// The version of the newest delete; 0 without any.
    newest: u64,
    /// Time of searching and deleting, without waits for other threads or for room.
    pub busy: Duration,
    /// It ended early for lack of time, so that there may be more.
    cut_short: bool,
    /// Keys that were found but not deleted: others have deleted or written them meanwhile, or a snapshot for which they
    /// had not expired will show the delete (`Snapshots::agree_that_expired`). The latter made no room.
    late: usize,
}

/// A sweep of a writer that found no space.
pub(crate) struct SpaceSweep {
    ended: Instant,
    took: Duration,
    /// Whether there was anything to delete.
    made: bool,
}

#[cfg(test)]
mod tests;
