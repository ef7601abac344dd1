//! Sweeps: marking dead what tombstones keep out, so that the tombstones may go (`docs/adr/0014`).
//!
//! A sweep draws a version S up to which everything is installed. For each key with a tombstone up to S, it marks dead
//! every entry up to S that is older than what the index has for the key, or all of them if the index has nothing. When
//! the marks are durable, nothing is left that those tombstones keep out.
//!
//! The keys are in a filter that may take other keys for such keys. Entries of those keys are marked too, which does no
//! harm: whatever is marked was superseded by something that is made durable before. (An entry of the same version as
//! the index's is not marked: it is that entry's copy in a batch under way, or its source.)
//!
//! # Batches under way
//!
//! A collector's batch whose section began before S was drawn has ended by then, with its late copies marked dead. One
//! that began later may still find an entry live whose delete, although up to S, is not installed yet: drawing S waits
//! for writer sections slot by slot, and may have passed the collector's slot while it waits for the slot of the
//! delete.
//!
//! * If the batch swings the reference before the delete is installed, its copy was written before the sweep reads any
//!   segment, so the sweep marks it.
//! * Otherwise the delete's tombstone is what keeps the copy out, and the copy may reach the media after the sweep has
//!   read that segment. The batch's swing fails, so the batch marks the copy dead within its section. Freeing the
//!   tombstone's segment waits for that section and makes the mark durable first (`Log::free_victims`).
//!
//! So correctness needs the mark of a late copy; that sweeps wait for batches is not enough.
//!
//! # Cost
//!
//! One sequential reading of the log, and a write per mark. A sweep is due when tombstones take a certain share of the
//! log, so the cost per delete is bounded.

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

/// A sweep reads the log. It is due when tombstones that no sweep has seen take one part in this many of the log.
const SWEEP_SHARE: u64 = 16;
/// The same if space is short.
const URGENT_SWEEP_SHARE: u64 = 64;
/// The longest rest of a sweep after a segment.
const LONGEST_REST: Duration = Duration::from_millis(20);

/// How many tombstones make a sweep due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// One part in [`SWEEP_SHARE`] of a node's segments.
    WithTime,
    /// One part in [`URGENT_SWEEP_SHARE`], or as for [`Due::Last`] once deletes have used up half of the space kept for
    /// them.
    Urgent,
    /// The same, or a third of the space kept for deletes, if that is less: in a large store deletes would otherwise
    /// have no space left, and what they have freed would be refused. Where deletes have nothing left, as much as makes
    /// one segment worth a pass.
    Last,
    /// Any.
    Always,
}

/// Whose superseded entries are marked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of keys with tombstones.
    Deleted,
    /// Those of all keys. Only with no pass in progress.
    Everything,
}

/// What is left of a sweep that was cut short: the next sweep continues there. Segments opened meanwhile hold nothing
/// that the sweep has to mark (see the module's head).
#[derive(Debug)]
pub(crate) struct Rest {
    version: u64,
    /// Segments whose tombstones are not in the filter yet.
    unread: Vec<SegmentLife>,
    /// Segments whose tombstones this sweep makes free to go. The filter has the keys of these tombstones.
    swept: Vec<SegmentLife>,
    filter: TombstoneFilter,
    /// Segments that were looked through. Nobody relies on the marks there before the end of the sweep.
    entered: Vec<SegmentLife>,
    /// Segments still to be looked through, the next one last; absent as long as tombstones are read.
    left: Option<Vec<SegmentLife>>,
}

/// Called after each segment with the time that it took; returns whether the sweep goes on.
pub(super) type Between<'a> = &'a dyn Fn(Duration) -> Result<ControlFlow<()>>;

/// One sweep.
struct Sweep<'a> {
    core: &'a Core,
    keyspaces: HashMap<u32, Arc<Keyspace>>,
    version: u64,
    scope: Scope,
}

impl Core {
    /// Whether tombstones that no sweep has seen take as much as `due` says: on `node`, or on any node if none is
    /// given.
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

    /// Sweeps if that is due. A caller that waits for space leaves the sweep to the node's collectors, if it is due for
    /// them as well. Otherwise such a caller sweeps only until there is room or its time is over; the next sweep
    /// continues there.
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
        // Collections go on while another thread sweeps. Only a call that asks for a sweep in any case waits for that
        // thread.
        let one_at_a_time = if due == Due::Always { Some(done.sweeping.lock()) } else { done.sweeping.try_lock() };
        // Asked again: another thread may have swept meanwhile.
        if let Some(mut rest) = one_at_a_time.filter(|_| is_due()) {
            if due == Due::Always {
                // The rest of an earlier sweep is about older tombstones only.
                *rest = None;
            }
            let before = self.log.handed_on(node);
            let is_enough = || matches!(turn, Turn::Pass(end) if self.log.handed_on(node) != before || is_over(end));
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

    /// Called after a sweep has read a segment, which took this long. Collects where space has become short meanwhile;
    /// otherwise rests for as long, unless the sweep is urgent: a sweep of a large log takes seconds.
    fn between_sweeps(&self, due: Due, turn: Turn, took: Duration) -> Result<()> {
        // Ends the sweep when the store is being closed: the close waits for this thread.
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
            self.reuse_what_can_be(Wait::No)?;
        }
        if !is_short && due == Due::WithTime {
            std::thread::sleep(took.min(LONGEST_REST));
        }
        Ok(())
    }

    /// Sweeps what is left in `rest`, or everything if that is nothing. Returns the number of entries marked; leaves in
    /// `rest` what remains to be done if the sweep is cut short. Any number of sweeps may run at a time. Call outside
    /// epoch pins and writer sections.
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
            // Another thread may end the sweep, so this one fences its marks.
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

    /// Runs the part `f` of a sweep, which concerns one segment of `node`: counts it and charges it to the node.
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
    /// Puts the keys of tombstones into the filter. Breaks if the sweep is cut short.
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

    /// Marks what is superseded in all segments that are left. Returns the number of entries marked, and whether those
    /// were all segments.
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

    /// Marks what is superseded in one segment. Marks again what is already marked, if that mark may not be durable.
    /// Returns the number of new marks.
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
                // What superseded these entries is installed, but may not be durable yet. (Of entries that were marked
                // before, it was durable before that mark.)
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
        // A damaged entry supersedes nothing.
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

    /// Regression: a close waited for the whole sweep of a collector, rests included: hours, in a large log.
    #[test]
    fn a_sweep_ends_when_the_store_is_being_closed() {
        let (store, _keyspace, held) = store_of_tombstones();
        let core = &store.core;
        assert!(held > 10, "{held}");
        core.committer.refuse_writes();
        assert!(core.sweep_all().is_err(), "it was given up");
        assert!(core.collections.swept_segments.load(Ordering::Relaxed) <= 1);
    }

    /// Regression: what was collected in the middle of a sweep was charged twice, and the time in which a sweep rested
    /// or others collected counted as its own.
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
