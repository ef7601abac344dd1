//! Index checkpoints: a restart reads the indexes from a file and scans only what is newer (`docs/adr/0011`).
//!
//! # Taking one
//!
//! 1. *Capture*: cold segments are closed, full ones sealed; the sealed ones are *covered*. From before this step on,
//!    tombstones newer than a version not above S stay.
//! 2. Draw a stable version S. Everything in covered segments is installed now.
//! 3. Copy the indexes, while writers go on; then list all segments in use.
//! 4. Make everything durable that was copied: draw a stable version N, and commit. Persist N as settled in every pool.
//! 5. Publish atomically. Then note in the pool of node 0 that older checkpoints no longer count, before any tombstone
//!    goes that those need.
//!
//! # What recovery makes of it
//!
//! A reference counts if its segment is in use with the generation listed (`load`). Segments in use that are not
//! covered are scanned. In these segments:
//!
//! * Entries of writers up to S count only if the checkpoint refers to them: it holds the truth about their keys.
//! * Tombstones of writers always count.
//! * Entries of *cold* segments that are not covered always count. They were moved after the capture (1), and what
//!   deletes them was written later still, so it is in a segment that is scanned.
//! * Batches up to S are whole.
//!
//! Two kinds of checkpoints do not count:
//!
//! * Its N is above the settled version of some pool. That pool is then older than the checkpoint: an old copy was put
//!   in its place.
//! * It is older than the version that the pool of node 0 names as the oldest that may be used. It was put in place of
//!   a newer checkpoint, and tombstones have gone since that it would need.
//!
//! A checkpoint that does not count is removed, durably, before the settled version is raised and the store accepts a
//! write; otherwise it might seem to fit later.
//!
//! # Thread safety
//!
//! One checkpoint is taken at a time. [`Checkpoints::invalidate`] may come at any moment and makes one under way void.
//!
//! # Crash behaviour
//!
//! Until step 5 the last checkpoint counts, with its tombstones. If space is short, or anything else fails, there is
//! merely no new one.

mod blocks;
pub mod format;
pub(crate) mod load;
pub mod store;
#[cfg(test)]
mod tests;
mod write;

use crate::error::{Error, Result};
use crate::options::{CheckpointMode, Options, wall_clock_ms};
use crate::recovery::{RecoveryReport, thread_count};
use crate::store::Core;
use format::Header;
use hither_log::{Log, SegmentRow};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use store::{CheckpointStore, FileStore};
use write::{Abandoned, GoOn, Writer};

/// Without a setting, a checkpoint is due when this much was written since the last one: a scan of it, eight million
/// pairs, takes one thread a second (hash) or three …
const AUTO_BYTES: u64 = 256 << 20;
/// … or this much where tombstones, and the garbage that they hold up, wait for it …
const AUTO_BYTES_AWAITED: u64 = 96 << 20;
/// … but at least one part in this many of the last one's size, so that a large store does not write checkpoints all
/// the time.
const AUTO_SHARE: u64 = 2;

/// Whether a checkpoint is due after `written` bytes since the last one, which has `last_bytes`. `awaited`: whether
/// tombstones wait for it.
fn is_enough(written: u64, last_bytes: u64, awaited: impl FnOnce() -> bool) -> bool {
    written >= last_bytes / AUTO_SHARE && (written >= AUTO_BYTES || written >= AUTO_BYTES_AWAITED && awaited())
}

/// Time that a scan takes for an entry, and a load for a key, in nanoseconds of one thread (measured,
/// `docs/benchmarks.md`); for predictions. For ordered keyspaces, then hash.
const SCAN_NS: [f64; 2] = [360.0, 100.0];
const LOAD_NS: [f64; 2] = [40.0, 30.0];
/// The same for loading ordered keys that are not of eight bytes.
const LOAD_OTHER_NS: f64 = 250.0;

/// A clean close relies on the last checkpoint if scanning what that does not cover makes the next restart longer by at
/// most one part in this many of the time that loading takes anyway. Writing all keys after one change would cost as
/// much as the store is large. The sum of small changes is written once that is worth it.
const WORTH: f64 = 4.0;

/// The checkpoints of a store.
pub(crate) struct Checkpoints {
    store: Option<Arc<dyn CheckpointStore>>,
    /// Whether the store keeps checkpoints, even if it is only looked at here.
    kept: bool,
    mode: CheckpointMode,
    threads: u64,
    taking: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    /// S of the newest checkpoint that could be loaded; `u64::MAX`: there is none.
    covered_version: u64,
    current: Option<Current>,
    /// Counts the events that made a checkpoint under way void.
    invalidations: u64,
    /// The bytes that the log had opened when the last checkpoint was captured or given up; and the bytes that the
    /// opening scanned, until then.
    opened_bytes: u64,
    backlog_bytes: u64,
    taken: u64,
    failure: Option<String>,
}

/// The newest checkpoint.
struct Current {
    taken_ms: u64,
    bytes: u64,
    keys: u64,
    /// Those keys of ordered keyspaces that are not of eight bytes.
    other_keys: u64,
    /// The segments that the checkpoint covers.
    rows: HashMap<(u32, u32), SegmentRow>,
}

impl Current {
    fn new(taken_ms: u64, bytes: u64, keys: u64, tables: &format::Index, rows: &[SegmentRow]) -> Current {
        let rows = rows.iter().filter(|row| row.covered).map(|row| ((row.node, row.index), *row)).collect();
        Current { taken_ms, bytes, keys, other_keys: tables.other_keys(), rows }
    }

    fn row_of(&self, segment: &SegmentRow) -> Option<&SegmentRow> {
        self.rows.get(&(segment.node, segment.index)).filter(|row| row.generation == segment.generation)
    }

    /// Whether a restart after a crash need not scan this segment. (A segment that was open might have been written
    /// to.)
    fn covers_after_crash(&self, segment: &SegmentRow) -> bool {
        self.row_of(segment).is_some_and(|row| row.tail == 0)
    }

    /// Whether a restart after a clean close need not scan this segment: the descriptor shows that nothing was added.
    fn covers_after_close(&self, segment: &SegmentRow) -> bool {
        let same = |row: &SegmentRow| (row.entries, row.written_bytes) == (segment.entries, segment.written_bytes);
        self.row_of(segment).is_some_and(|row| row.tail == 0 || (same(row) && !segment.torn))
    }
}

/// Predicted times of restarts, for a store with this many ordered and hash keys.
struct Forecast {
    keys: [u64; 2],
    /// How many of the ordered keys are not of eight bytes, according to the last checkpoint.
    other_keys: u64,
    threads: u64,
}

impl Forecast {
    fn per_thread_ms(&self, nanoseconds: f64) -> f64 {
        nanoseconds / self.threads.max(1) as f64 / 1e6
    }

    /// Time to scan this many entries, of all keyspaces in proportion to their keys.
    fn scan_ms(&self, entries: u64) -> f64 {
        let total = (self.keys[0] + self.keys[1]) as f64;
        // If no keys are left, the entries may have been of the slower kind.
        let ordered = if total > 0.0 { self.keys[0] as f64 / total } else { 1.0 };
        let entry_ns = ordered * SCAN_NS[0] + (1.0 - ordered) * SCAN_NS[1];
        self.per_thread_ms(entries as f64 * entry_ns)
    }

    /// Time to load a checkpoint.
    fn load_ms(&self) -> f64 {
        let other = self.other_keys.min(self.keys[0]);
        let ordered = (self.keys[0] - other) as f64 * LOAD_NS[0] + other as f64 * LOAD_OTHER_NS;
        self.per_thread_ms(ordered + self.keys[1] as f64 * LOAD_NS[1])
    }

    /// Whether a checkpoint that leaves this many entries to be scanned is good enough for a clean close.
    fn suffices(&self, entries: u64) -> bool {
        self.scan_ms(entries) * WORTH <= self.load_ms()
    }
}

/// Checkpoints of the indexes, and the time that a restart would take.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct CheckpointStats {
    /// Whether the store keeps checkpoints.
    pub enabled: bool,
    /// Whether there is one now.
    pub present: bool,
    /// Age of the checkpoint, in milliseconds.
    pub age_ms: u64,
    /// Size of the checkpoint, in bytes.
    pub bytes: u64,
    /// Keys in the checkpoint.
    pub keys: u64,
    /// Checkpoints taken since the store was opened.
    pub taken: u64,
    /// Why the last attempt failed, or why none is made; empty otherwise.
    pub failure: String,
    /// Bytes of entries that a restart would scan after a crash now.
    pub scan_bytes: u64,
    /// Predicted time of a restart after a crash now, in milliseconds.
    pub crash_restart_ms: u64,
    /// Predicted time of a restart after a clean close now, in milliseconds.
    pub clean_restart_ms: u64,
}

/// Returns where the options say that the checkpoint is kept; none for stores in memory.
pub(crate) fn store_of(options: &Options) -> Option<Arc<dyn CheckpointStore>> {
    if let Some(store) = &options.checkpoint_store {
        return Some(store.clone());
    }
    let path = (!options.in_memory && options.pools.is_none()).then(|| crate::pools::pool_path(options, 0)).flatten()?;
    Some(Arc::new(FileStore::new(path.parent()?, is_copy(options), options.failpoints.clone())))
}

/// Whether the store is only looked at: then its checkpoint stays as it is, like everything else of it.
pub(crate) fn is_copy(options: &Options) -> bool {
    options.medium == hither_pmem::MediumChoice::PrivateCopy
}

impl Checkpoints {
    /// The state after a recovery that loaded `loaded` (from `saved`) or nothing.
    ///
    /// If a salvage passed over something, no checkpoints are taken: an opening that can read all of it again would
    /// take what the checkpoint does not name for superseded.
    pub fn new(options: &Options, loaded: Option<(&load::Saved, &load::Loaded)>, recovery: &RecoveryReport) -> Checkpoints {
        let current =
            loaded.map(|(saved, loaded)| Current::new(saved.header.taken_ms, loaded.bytes, loaded.keys, &saved.tables, &loaded.rows));
        let is_wanted = options.checkpoints != CheckpointMode::Off;
        let is_whole = recovery.salvaged.is_empty();
        let state = State {
            covered_version: loaded.map_or(u64::MAX, |(_, loaded)| loaded.version),
            current,
            invalidations: 0,
            opened_bytes: 0,
            backlog_bytes: recovery.bytes,
            taken: 0,
            failure: (is_wanted && !is_whole).then(|| String::from("none are taken while damage is passed over by a salvage")),
        };
        let place = (is_wanted && is_whole).then(|| store_of(options)).flatten();
        let kept = place.is_some();
        let store = place.filter(|_| !is_copy(options));
        // Not `recovery.threads`: it may have had few segments to read.
        let (mode, threads) = (options.checkpoints, thread_count(options, usize::MAX) as u64);
        Checkpoints { store, kept, mode, threads, taking: Mutex::new(()), state: Mutex::new(state) }
    }

    /// Whether checkpoints are taken here: the store keeps them, and is not only looked at.
    pub fn enabled(&self) -> bool {
        self.store.is_some()
    }

    /// Removes the checkpoint, durably, and makes one under way void. Tombstones need no longer wait.
    pub fn invalidate(&self, log: &Log) -> Result<()> {
        let mut state = self.state.lock();
        state.invalidations += 1;
        self.remove(&mut state, log)?;
        log.keep_tombstones_after(u64::MAX);
        Ok(())
    }

    fn remove(&self, state: &mut State, log: &Log) -> Result<()> {
        if let Some(store) = &self.store {
            store.remove().map_err(|error| Error::Io(format!("cannot remove the checkpoint of the indexes: {error}")))?;
            // All versions so far: a stable version drawn later is not below this.
            log.pool(0).set_oldest_checkpoint(log.clock.upper_bound())?;
        }
        state.current = None;
        state.covered_version = u64::MAX;
        Ok(())
    }

    /// Whether the store decides when checkpoints are taken, and so must not take them all the time.
    pub fn is_paced(&self) -> bool {
        self.mode == CheckpointMode::Auto
    }

    /// Whether enough was written since the last checkpoint.
    pub fn due(&self, log: &Log) -> bool {
        let (written, last_bytes) = {
            let state = self.state.lock();
            let written = state.backlog_bytes + log.opened_bytes().saturating_sub(state.opened_bytes);
            (written, state.current.as_ref().map_or(0, |current| current.bytes))
        };
        let is_enough = match self.mode {
            CheckpointMode::Off => false,
            CheckpointMode::Every(bytes) => written >= bytes.max(1),
            CheckpointMode::Auto => is_enough(written, last_bytes, || log.tombstones_await_checkpoint()),
        };
        is_enough && self.store.is_some()
    }

    /// Waits for a checkpoint under way. None begins until the returned guard is dropped. Lock order: before the locks
    /// of the sweeper and of the collectors.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.taking.lock()
    }

    /// Takes a checkpoint. Calls `go_on` between pieces; this may wait, and gives the checkpoint up by returning false.
    /// Returns whether one was published.
    ///
    /// Call outside any epoch pin. An error is also kept for the statistics.
    pub fn take(&self, core: &Core, is_final: bool, go_on: GoOn<'_>) -> Result<bool> {
        let Some(store) = self.store.clone() else { return Ok(false) };
        let _one_at_a_time = self.taking.lock();
        let invalidations = self.state.lock().invalidations;
        // Before S is drawn: the tombstone of whatever is deleted from here on stays while the new checkpoint may come.
        self.keep_tombstones(core, core.log.clock.upper_bound());
        let outcome = core.heeding_failed_syncs(self.attempt(core, &store, is_final, invalidations, go_on));
        let mut state = self.state.lock();
        core.log.keep_tombstones_after(state.covered_version);
        match outcome {
            Ok(()) => {
                state.failure = None;
                state.taken += 1;
                Ok(true)
            }
            Err(Abandoned::Stopped) => {
                (state.opened_bytes, state.backlog_bytes) = (core.log.opened_bytes(), 0);
                Ok(false)
            }
            Err(Abandoned::Failed(error)) => {
                // Not again before as much was written once more.
                (state.opened_bytes, state.backlog_bytes) = (core.log.opened_bytes(), 0);
                state.failure = Some(error.to_string());
                let what = format!("no checkpoint of the indexes could be taken: {}", error.finding());
                // Of the same kind, because the remedy depends on the kind.
                Err(match error {
                    Error::DiskFull(_) => Error::DiskFull(format!("{what}; free space on the device")),
                    Error::Damaged(_) => Error::Damaged(what),
                    error @ (Error::SyncFailed(_) | Error::Closed) => error,
                    _ => Error::Io(what),
                })
            }
        }
    }

    fn keep_tombstones(&self, core: &Core, version: u64) {
        let state = self.state.lock();
        core.log.keep_tombstones_after(version.min(state.covered_version));
    }

    fn attempt(
        &self,
        core: &Core,
        store: &Arc<dyn CheckpointStore>,
        is_final: bool,
        invalidations: u64,
        go_on: GoOn<'_>,
    ) -> std::result::Result<(), Abandoned> {
        let log = &core.log;
        let make_durable = core.make_durable();
        let opened = log.opened_bytes();
        // No pass is in progress: its victim would be scanned, and if that is a cold segment, its entries would take
        // part.
        let covered = core.without_passes(|| log.capture(&make_durable)).map_err(|error| core.explain(error))?;
        let version = log.clock.stable();
        let header = Header {
            is_final,
            store_uuid: log.pool(0).superblock().store_uuid,
            version,
            hash_seed: core.hasher.seed(),
            taken_ms: wall_clock_ms(),
        };
        let mut draft = store.draft()?;
        // A void checkpoint need not be written to its end, least of all to a full disk.
        let mut go_on = || go_on() && self.state.lock().invalidations == invalidations;
        let mut writer = Writer::begin(&mut *draft, &header, &mut go_on)?;
        let keyspaces: Vec<_> = core.keyspaces.read().values().cloned().collect();
        for keyspace in keyspaces {
            writer.keyspace(&keyspace, core.resolver())?;
        }
        let rows = if is_final { log.final_rows() } else { log.segment_rows(&covered) };
        // The copy may name entries in place of those that the pools held when it was begun: pools that were copied
        // meanwhile are older than it.
        let newest = log.clock.stable();
        core.committer.commit_with_locks(log, newest)?;
        log.note_settled(newest).map_err(Error::from)?;
        let (bytes, tables) = writer.finish(rows.clone(), newest)?;
        let mut state = self.state.lock();
        if state.invalidations != invalidations {
            return Err(Abandoned::Stopped);
        }
        if let Err(error) = draft.publish() {
            // The checkpoint may or may not be there now.
            if self.remove(&mut state, log).is_err() {
                state.covered_version = state.covered_version.min(version);
            }
            return Err(error.into());
        }
        log.pool(0).set_oldest_checkpoint(version).map_err(crate::Error::from)?;
        state.covered_version = version;
        (state.opened_bytes, state.backlog_bytes) = (opened, 0);
        state.current = Some(Current::new(header.taken_ms, bytes, tables.keys(), &tables, &rows));
        Ok(())
    }

    /// At a clean close, when everything is durable, nobody writes and the descriptors say what open segments hold:
    /// takes a checkpoint that covers everything, unless the last one covers everything, or all but little ([`WORTH`]).
    ///
    /// If none is taken, for whatever reason, the last one stays. The next restart tells by generations and totals what
    /// that one does not cover, and scans it.
    pub fn take_final(&self, core: &Core) {
        if self.store.is_some() && !self.holds_most(core) {
            // An error would be in the statistics of a store that nobody can ask any more; the log holds everything.
            let _ = self.take(core, true, &mut || true);
        }
    }

    fn holds_most(&self, core: &Core) -> bool {
        let rows = core.log.final_rows();
        let state = self.state.lock();
        let Some(current) = &state.current else { return false };
        let entries = rows.iter().filter(|row| !current.covers_after_close(row)).map(|row| u64::from(row.entries)).sum();
        self.forecast(core.keys_by_kind(), Some(current)).suffices(entries)
    }

    fn forecast(&self, keys: [u64; 2], current: Option<&Current>) -> Forecast {
        Forecast { keys, other_keys: current.map_or(0, |current| current.other_keys), threads: self.threads }
    }

    /// Checkpoints in numbers; `keys` of ordered and of hash keyspaces. For exact figures, the slots must be folded.
    pub fn stats(&self, log: &Log, keys: [u64; 2]) -> CheckpointStats {
        let state = self.state.lock();
        let current = state.current.as_ref();
        let forecast = self.forecast(keys, current);
        let (entries, bytes) = log.uncovered(|row| current.is_some_and(|current| current.covers_after_crash(row)));
        let load = forecast.load_ms();
        let crash = forecast.scan_ms(entries) + if current.is_some() { load } else { 0.0 };
        let (changed, _) = log.uncovered(|row| current.is_some_and(|current| current.covers_after_close(row)));
        let clean = match current {
            Some(_) if forecast.suffices(changed) => load + forecast.scan_ms(changed),
            _ if self.kept => load,
            _ => forecast.scan_ms(changed),
        };
        CheckpointStats {
            enabled: self.kept,
            present: current.is_some(),
            age_ms: current.map_or(0, |current| wall_clock_ms().saturating_sub(current.taken_ms)),
            bytes: current.map_or(0, |current| current.bytes),
            keys: current.map_or(0, |current| current.keys),
            taken: state.taken,
            failure: state.failure.clone().unwrap_or_default(),
            scan_bytes: bytes,
            crash_restart_ms: crash.ceil() as u64,
            clean_restart_ms: clean.ceil() as u64,
        }
    }
}
