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

use super::effort::Bill;
use super::{Need, STUCK_SHARE, Turn, is_over};
use crate::error::Result;
use crate::keyspace::{Keyspace, with_index};
use crate::store::Core;
use hither_index::{Index, Ref, Resolver};
use hither_log::{EntryView, Op, SegmentLife, Sweeping, TombstoneFilter, Tombstones, Wait};
use hither_sync::epoch;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A sweep reads the log; it is due when tombstones that no sweep has seen take one part in so many of it.
const SWEEP_SHARE: u64 = 16;
/// The same if space is short.
const URGENT_SWEEP_SHARE: u64 = 64;
/// A sweep rests at most so long after a segment.
const LONGEST_REST: Duration = Duration::from_millis(20);

/// How many tombstones make a sweep due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// One part in [`SWEEP_SHARE`] of a node's segments.
    WithTime,
    /// One part in [`URGENT_SWEEP_SHARE`], or as for [`Due::Last`] once deletes have used up half of what is kept for them.
    Urgent,
    /// The same, or a third of what is kept for deletes: in a large store they would have nothing left, and what they have freed would be refused. Where they have nothing left, whatever makes a segment
    /// worth a pass.
    Last,
    /// Any.
    Always,
}

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
    /// Segments whose tombstones are not in the filter yet.
    unread: Vec<SegmentLife>,
    /// Whose tombstones are to be made free to go, and the keys of these.
    swept: Vec<SegmentLife>,
    filter: TombstoneFilter,
    /// Segments that were looked through. Nobody relies on the marks there before the end.
    entered: Vec<SegmentLife>,
    /// The others, the next one last; absent as long as tombstones are read.
    left: Option<Vec<SegmentLife>>,
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
    /// Whether tombstones of a node, of `node` if given, that no sweep has seen take so much.
    pub(super) fn is_sweep_due(&self, node: Option<usize>, due: Due) -> bool {
        let is_due = |node: usize| {
            let pool = self.log.pool(node);
            let all = u64::from(pool.segment_count()) * pool.segment_bytes();
            let most = match due {
                Due::WithTime => all / SWEEP_SHARE,
                Due::Urgent if !self.log.deletes_run_short(node) => all / URGENT_SWEEP_SHARE,
                Due::Urgent | Due::Last => (all / URGENT_SWEEP_SHARE).min(self.log.bytes_for_deletes(node) / 3),
                Due::Always => 0,
            };
            let is_last_resort = || self.log.deletes_have_nothing(node) && self.log.has_unswept_of(node, STUCK_SHARE);
            self.log.unswept_tombstone_bytes(node) > most || due == Due::Last && is_last_resort()
        };
        // Where some page cannot be read, no sweep makes tombstones free to go.
        self.collector.tombstones() == Tombstones::Swept
            && !self.log.has_unreadable()
            && (0..self.log.nodes()).filter(|&other| node.is_none_or(|node| node == other)).any(is_due)
    }

    /// Makes tombstones free to go once that is due. For somebody who waits, collectors do it if it is due for them, or else it ends once there is room, or no time is left; the next sweep goes on there.
    pub(super) fn sweep_if_due(&self, node: Option<usize>, due: Due, turn: Turn) -> Result<()> {
        let is_due = || self.is_sweep_due(node, due);
        if !is_due() {
            return Ok(());
        }
        if let (Turn::Pass(_), Some(node)) = (turn, node)
            && self.leaves_sweeps(node)
            && (due != Due::Last || self.is_sweep_due(Some(node), Due::Urgent))
        {
            self.log.few_free(node).ring();
            return Ok(());
        }
        let done = &self.collections;
        // Collections go on while somebody sweeps. Only who asks for it waits.
        let one_at_a_time = if due == Due::Always { Some(done.sweeping.lock()) } else { done.sweeping.try_lock() };
        // Somebody else may have been at it.
        if let Some(mut rest) = one_at_a_time.filter(|_| is_due()) {
            if due == Due::Always {
                // What was left is about older tombstones only.
                *rest = None;
            }
            let reused = done.reused.load(Ordering::Acquire);
            let is_enough = || matches!(turn, Turn::Pass(end) if done.reused.load(Ordering::Acquire) != reused || is_over(end));
            let between = |took: Duration| {
                self.between_sweeps(due, turn, took)?;
                Ok(if is_enough() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            };
            let swept = self.sweep(Scope::Deleted, &mut rest, &between);
            done.swept.fetch_add(self.heeding_failed_syncs(swept)?, Ordering::Relaxed);
            done.sweeps.fetch_add(u64::from(rest.is_none()), Ordering::Release);
        }
        Ok(())
    }

    /// After a sweep has read a segment, which took so long: collects where space has become short meanwhile, or rests as long, for a sweep of a large log
    /// takes seconds.
    fn between_sweeps(&self, due: Due, turn: Turn, took: Duration) -> Result<()> {
        // A close waits for this thread.
        self.committer.ensure_writable()?;
        let mut is_short = false;
        for node in 0..self.log.nodes() {
            let room = self.log.room(node);
            let need = match self.need_of_space(node) {
                Need::Any => Need::Any,
                _ if room.free < room.before_growth() && self.log.is_collected_first(node) => Need::Growth,
                _ => continue,
            };
            is_short = true;
            self.collect(Some(node), need, turn)?;
            self.reuse_freed(Wait::No)?;
        }
        if !is_short && due == Due::WithTime {
            std::thread::sleep(took.min(LONGEST_REST));
        }
        Ok(())
    }

    /// Sweeps what is left, or all if that is nothing; returns the number of entries marked, and leaves in `rest` what remains to be done if it is cut short. Call outside epoch pins and writer
    /// sections. Any number at a time.
    pub(super) fn sweep(&self, scope: Scope, rest: &mut Option<Rest>, between: Between<'_>) -> Result<u64> {
        let mut on = rest.take().map_or_else(|| self.begin_sweep(scope), Ok)?;
        let sweep = Sweep { core: self, keyspaces: self.keyspaces_by_id(), version: on.version, scope };
        if sweep.read_tombstones(&mut on, between)?.is_break() {
            *rest = Some(on);
            return Ok(0);
        }
        if on.swept.is_empty() && scope == Scope::Deleted {
            return Ok(0);
        }
        let (marked, is_whole) = sweep.mark_all(&mut on, between)?;
        if !is_whole {
            // Another thread may end it.
            (0..self.log.nodes()).for_each(|node| self.log.pool(node).fence());
            *rest = Some(on);
        }
        Ok(marked)
    }

    fn begin_sweep(&self, scope: Scope) -> Result<Rest> {
        let version = self.log.clock.stable();
        self.committer.commit_with_locks(&self.log, version)?;
        let (lives, count) = self.log.lives_with_tombstones();
        let rest = Rest {
            version,
            unread: Vec::new(),
            swept: Vec::new(),
            filter: TombstoneFilter::of_everything(),
            entered: Vec::new(),
            left: None,
        };
        Ok(match scope {
            Scope::Everything => Rest { swept: lives, ..rest },
            Scope::Deleted => Rest { unread: lives, filter: TombstoneFilter::for_tombstones(count), ..rest },
        })
    }

    /// What a sweep does at one segment of `node`: counted, and charged to the node.
    fn at_segment<R>(&self, node: u32, f: impl FnOnce() -> R) -> (R, Duration) {
        let started = Instant::now();
        let done = &self.collections;
        let result = {
            let _bill = Bill::open(&done.efforts, node as usize);
            f()
        };
        let took = started.elapsed();
        done.swept_segments.fetch_add(1, Ordering::Relaxed);
        done.sweep_nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        (result, took)
    }
}

impl Sweep<'_> {
    /// Puts the keys of tombstones into the filter; breaks if it is cut short.
    fn read_tombstones(&self, on: &mut Rest, between: Between<'_>) -> Result<ControlFlow<()>> {
        let core = self.core;
        while let Some(life) = on.unread.pop() {
            let filter = &mut on.filter;
            let add = |_: u64, version: u64, _: u32, entry: &EntryView<'_>| {
                if entry.op() == Op::Delete && version <= self.version {
                    filter.add(core.hasher.key(entry.key).hash);
                }
            };
            let (is_there, took) = core.at_segment(life.node, || core.log.visit_life(&life, add, || ()).is_some());
            on.swept.extend(is_there.then_some(life));
            if between(took)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Marks what is superseded in all segments that are left; how many entries, and whether that was all.
    fn mark_all(&self, on: &mut Rest, between: Between<'_>) -> Result<(u64, bool)> {
        let core = self.core;
        let (mut sweeping, mut marked) = (core.log.begin_sweep(), 0);
        on.entered.iter().for_each(|life| sweeping.enter(life));
        let left = on.left.get_or_insert_with(|| core.log.lives().into_iter().rev().collect());
        while let Some(life) = left.pop() {
            on.entered.push(life);
            let (found, took) = core.at_segment(life.node, || self.mark(&mut sweeping, &life, &on.filter));
            marked += found?;
            if between(took)?.is_break() && !left.is_empty() {
                return Ok((marked, false));
            }
        }
        sweeping.end(&on.swept, on.version).map_err(|error| core.explain(error))?;
        Ok((marked, true))
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
        current.is_none() || (current != reference && core.resolver().is_sound(current) && supersedes(current))
    }
}

#[cfg(test)]
mod tests {
    use super::super::effort::thread_time;
    use super::super::tests::small_options;
    use super::super::{Need, Turn};
    use crate::{KeyspaceHandle, Kind, Options, Store};
    use std::sync::atomic::Ordering;

    /// A store, its keyspace, and how many of its full segments hold tombstones.
    fn store_of_tombstones() -> (Store, KeyspaceHandle, usize) {
        let store = Store::open(Options { capacity: 4 << 20, max_capacity: 4 << 20, ..small_options() }).unwrap();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        for key in 0..20_000u64 {
            store.write_wait(&keyspace, &(key / 2).to_be_bytes(), (key % 2 == 0).then_some(&b"t"[..])).unwrap();
        }
        store.core.seal(hither_log::TakeBack::All).unwrap();
        let (lives, _) = store.core.log.lives_with_tombstones();
        let held = lives.len();
        (store, keyspace, held)
    }

    /// Regression: a close waited for the whole sweep of a collector, rests included: hours, of a large log.
    #[test]
    fn a_sweep_ends_when_the_store_is_being_closed() {
        let (store, _keyspace, held) = store_of_tombstones();
        let core = &store.core;
        assert!(held > 10, "{held}");
        core.committer.refuse_writes();
        assert!(core.sweep_all().is_err(), "it was given up");
        assert!(core.collections.swept_segments.load(Ordering::Relaxed) <= 1);
    }

    /// Regression: what was collected in the middle of a sweep was charged twice, and the time in which a sweep rested or others collected counted as its own.
    #[test]
    fn what_is_collected_within_a_sweep_is_charged_once() {
        let (store, keyspace, _) = store_of_tombstones();
        let core = &store.core;
        let mut key = 0u64;
        while core.need_of_space(0) != Need::Any {
            key += 1;
            store.write_wait(&keyspace, &(key % 1000).to_be_bytes(), Some(&[1; 100])).unwrap();
        }
        core.seal(hither_log::TakeBack::All).unwrap();
        let used = thread_time();
        core.collect(Some(0), Need::Any, Turn::Round).unwrap();
        let used = thread_time() - used;
        let charged = core.collections.efforts[0].read().2;
        let collected = core.collections.segments.load(Ordering::Relaxed);
        assert!(core.collections.swept_segments.load(Ordering::Relaxed) > 0 && collected > 0);
        assert!(charged > 0 && u128::from(charged) <= used.as_nanos(), "{charged} of {used:?}");
    }
}
