//! Sweeps: marking what tombstones keep out, so that the tombstones may go (`docs/adr/0014`).
//!
//! With a version S up to which everything is installed: of each key that has a tombstone up to S, every entry up to S that is older than what the index
//! has for the key, if it has anything, is marked dead. When the marks are durable, nothing is left that those tombstones keep out.
//!
//! The keys are in a filter that may take others for such keys. Their entries are marked too, which does no harm: whatever is marked was superseded by something that
//! is made durable before. (An entry of the same version as the index's is its copy in a batch under way, or its source: not marked.)
//!
//! A collector's batch that began before S has ended by then; one that began later copies nothing that such a tombstone keeps out.
//!
//! Cost: one reading of the log, sequential, and a write per mark. It is due when tombstones take a certain share of the log, so per delete it is bounded.

use crate::error::Result;
use crate::keyspace::{Keyspace, with_index};
use crate::store::Core;
use hither_index::{Index, Ref};
use hither_log::{EntryView, Op, SegmentLife, Sweeping, TombstoneFilter};
use hither_sync::epoch;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Whose superseded entries are marked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Keys with tombstones.
    Deleted,
    /// All. With no pass in progress.
    Everything,
}

/// What is left of a sweep that was cut short: the next one goes on there. What is opened meanwhile holds nothing that it is after (see the head).
#[derive(Debug)]
pub(crate) struct Rest {
    version: u64,
    /// Whose tombstones are to be made free to go, and the keys of these.
    swept: Vec<SegmentLife>,
    filter: TombstoneFilter,
    /// Segments that were looked through. Nobody relies on the marks there before the end.
    entered: Vec<SegmentLife>,
    /// The others, the next one last.
    left: Vec<SegmentLife>,
}

/// Called after each segment with the time that it took; whether the sweep goes on.
pub(super) type Between<'a> = &'a dyn Fn(Duration) -> Result<ControlFlow<()>>;

/// One sweep.
struct Sweep<'a> {
    core: &'a Core,
    keyspaces: HashMap<u32, Arc<Keyspace>>,
    version: u64,
    scope: Scope,
}

impl Core {
    /// Sweeps what is left, or all if that is nothing; returns the number of entries marked, and leaves in `rest` what remains to be done if it is cut short. Call outside epoch pins and writer
    /// sections. Any number at a time.
    pub(super) fn sweep(&self, scope: Scope, rest: &mut Option<Rest>, between: Between<'_>) -> Result<u64> {
        let Some(mut on) = rest.take().map_or_else(|| self.begin_sweep(scope), |rest| Ok(Some(rest)))? else { return Ok(0) };
        let sweep = Sweep { core: self, keyspaces: self.keyspaces_by_id(), version: on.version, scope };
        let (mut sweeping, mut marked) = (self.log.begin_sweep(), 0);
        on.entered.iter().for_each(|life| sweeping.enter(life));
        while let Some(life) = on.left.pop() {
            let started = Instant::now();
            on.entered.push(life);
            marked += sweep.mark(&mut sweeping, &life, &on.filter)?;
            self.collections.swept_segments.fetch_add(1, Ordering::Relaxed);
            if between(started.elapsed())?.is_break() && !on.left.is_empty() {
                // Another thread may end it.
                (0..self.log.nodes()).for_each(|node| self.log.pool(node).fence());
                *rest = Some(on);
                return Ok(marked);
            }
        }
        sweeping.end(&on.swept, on.version).map_err(|error| self.explain(error))?;
        Ok(marked)
    }

    /// `None` if there is nothing to sweep.
    fn begin_sweep(&self, scope: Scope) -> Result<Option<Rest>> {
        let version = self.log.clock.stable();
        self.committer.commit_with_locks(&self.log, version)?;
        let (swept, filter) = Sweep { core: self, keyspaces: HashMap::new(), version, scope }.tombstones();
        if swept.is_empty() && scope == Scope::Deleted {
            return Ok(None);
        }
        let mut left = self.log.lives();
        left.reverse();
        Ok(Some(Rest { version, swept, filter, entered: Vec::new(), left }))
    }
}

impl Sweep<'_> {
    /// The segments whose tombstones are to be made free to go, and the keys of these.
    fn tombstones(&self) -> (Vec<SegmentLife>, TombstoneFilter) {
        let log = &self.core.log;
        let (mut lives, count) = log.lives_with_tombstones();
        if self.scope == Scope::Everything {
            return (lives, TombstoneFilter::of_everything());
        }
        let mut filter = TombstoneFilter::for_tombstones(count);
        lives.retain(|life| {
            let add = |_: u64, version: u64, _: u32, entry: &EntryView<'_>| {
                if entry.op() == Op::Delete && version <= self.version {
                    filter.add(self.core.hasher.key(entry.key).hash);
                }
            };
            log.visit_life(life, add, || ()).is_some()
        });
        (lives, filter)
    }

    /// Marks what is superseded in one segment, and again what is marked, if that may not be durable; returns how many are new.
    fn mark(&self, sweeping: &mut Sweeping<'_>, life: &SegmentLife, filter: &TombstoneFilter) -> Result<u64> {
        let core = self.core;
        sweeping.enter(life);
        let (found, again) = (std::cell::RefCell::new(Vec::new()), std::cell::Cell::new(0));
        let collect = |reference: u64, version: u64, keyspace: u32, entry: &EntryView<'_>| {
            if entry.op() == Op::Delete || version > self.version || entry.is_dead() && sweeping.may_trust(life) {
                return;
            }
            let Some(keyspace) = self.keyspaces.get(&keyspace) else { return };
            let key = core.hasher.key(entry.key);
            if filter.may_hold(key.hash) && self.is_superseded(keyspace, key, Ref(reference), version) {
                found.borrow_mut().push(reference);
                again.set(again.get() + u64::from(entry.is_dead()));
            }
        };
        let finish = || {
            let found = found.borrow();
            if found.len() as u64 > again.get() {
                // What superseded them is installed, but need not be durable. (What was marked before was so after that was.)
                core.committer.commit_with_locks(&core.log, core.log.clock.stable())?;
            }
            found.iter().for_each(|reference| core.log.mark_dead_on_media(*reference));
            Ok(found.len() as u64 - again.get())
        };
        core.log.visit_life(life, collect, finish).unwrap_or(Ok(0))
    }

    fn is_superseded(&self, keyspace: &Keyspace, key: hither_index::Key<'_>, reference: Ref, version: u64) -> bool {
        let core = self.core;
        let _pin = epoch::pin();
        let current = with_index!(keyspace, index => index.get(key, &core.resolver()));
        // What is damaged supersedes nothing.
        let supersedes = |current: Ref| {
            core.log.readable_entry(current.0).is_some_and(|entry| match core.log.version_of(current.0, &entry) {
                same if same == version => self.scope == Scope::Everything,
                other => other > version,
            })
        };
        current.is_none() || (current != reference && supersedes(current))
    }
}
