//! Space: how urgently a node needs it, and what a write does that finds none.
//!
//! Thread safety: any number of writers make space at the same time, beside the collectors. Each writer empties one
//! victim at a time, and holds no latch and no pin.
//!
//! Crash: as for any pass ([`super`]).

use super::sweep::Due;
use super::{LAST_GAIN, Need, Stopwatch, Turn, is_over};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Core;
use hither_log::{Claim, TakeBack, Tombstones, Wait};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Milliseconds that one search for space on a node waits for passes and sweeps of other threads, and for readers.
const PATIENCE_MS: usize = 1000;

/// Where a write that found no space looks for it.
pub(crate) struct Search<'a> {
    /// The node to be tried next.
    pub node: usize,
    /// Number of consecutive nodes on which nothing was to be gained.
    pub vain: usize,
    /// When the write gives up; absent: never.
    pub end: Option<Instant>,
    /// The room that it has claimed on that node.
    pub claim: Option<Claim<'a>>,
    /// When its claim ends, or ended; absent: it has made none.
    pub claim_end: Option<Instant>,
}

impl Search<'_> {
    /// A search that begins on `node`.
    pub const fn new(node: usize, end: Option<Instant>) -> Self {
        Search { node, vain: 0, end, claim: None, claim_end: None }
    }

    /// How long it may wait now: no longer than its claim lasts, if it has one.
    fn next_end(&self) -> Option<Instant> {
        let claim_end = self.claim_end.filter(|_| self.claim.is_some());
        [self.end, claim_end].into_iter().flatten().min()
    }
}

impl Core {
    /// How urgently `node` needs space.
    pub fn need_of_space(&self, node: usize) -> Need {
        let room = self.log.room(node);
        let (urgent, early) = match self.collector.tombstones() {
            Tombstones::Swept => (room.watermark(), room.early()),
            Tombstones::Buried => ((room.limit / 16).max(3), room.existing / 4),
        };
        if room.left() <= urgent {
            Need::Any
        } else if room.free < early {
            Need::Some
        } else {
            Need::None
        }
    }

    /// How urgently `node` needs space, as seen by its collector thread `number` of `threads`: the less space there is,
    /// the more of them are called in.
    pub fn need_of_collector(&self, node: usize, number: usize, threads: usize) -> Need {
        let room = self.log.room(node);
        if number == 0 && room.free < room.before_growth() && self.has_much_garbage(node) {
            return Need::Growth;
        }
        let need = self.need_of_space(node);
        if number == 0 || need == Need::None {
            return need;
        }
        let span = room.watermark() - room.reserve;
        let call_at = room.reserve + span * (threads - number) as u64 / threads as u64;
        if room.left() <= call_at { need } else { Need::None }
    }

    /// Whether a write that finds no space on `node` leaves sweeps to collectors: the node has some, and they see as
    /// little space as the write does.
    pub(super) fn leaves_sweeps(&self, node: usize) -> bool {
        self.log.has_collectors(node) && self.need_of_space(node) == Need::Any
    }

    /// Whether more than half of the full segments of `node` is garbage.
    pub fn has_much_garbage(&self, node: usize) -> bool {
        self.seal(TakeBack::Idle).is_ok() && self.log.look_for_garbage(node, self.collector.tombstones())
    }

    /// Runs `f` while no pass is in progress.
    pub fn without_passes<R>(&self, f: impl FnOnce() -> R) -> R {
        let _no_new_ones = self.collections.ahead.lock();
        while self.log.passes_in_progress(None) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        f()
    }

    /// Seals full segments, collects victims and gives freed segments to the writers, as thoroughly as possible.
    /// Returns how many segments the writers were given meanwhile, by whichever thread.
    pub fn reclaim(&self) -> Result<usize> {
        let before = self.log.handed_on(None);
        self.seal(TakeBack::All)?;
        let damage = match self.collect(None, Need::Some, Turn::Round) {
            // The damaged victim stays, and holds up nothing.
            Err(damage) if damage.kind() == ErrorKind::Damaged => Some(damage),
            collected => collected.map(|_| None)?,
        };
        // The tombstones that this makes free to go leave with the next collection.
        self.sweep_all()?;
        let unusable = self.reuse_what_can_be(Wait::Yes)?;
        let handed_on = (self.log.handed_on(None) - before) as usize;
        damage.or(unusable.filter(|_| handed_on == 0)).map_or(Ok(handed_on), Err)
    }

    /// Seals full segments, so that they can be collected.
    pub fn seal(&self, chunks: TakeBack) -> Result<()> {
        self.committer.ensure_writable()?;
        let sealed = self.heeding_failed_syncs(self.log.seal(&self.make_durable(), chunks));
        sealed.map_err(|error| self.explain(error))
    }

    /// Makes all tombstones free to go that may.
    pub fn sweep_all(&self) -> Result<()> {
        self.sweep_if_due(None, Due::Always, Turn::Round)
    }

    /// For a write that found no space on `search.node`: makes some, waits for a thread that does, or goes on to
    /// another node. Returns false if there is nothing to be gained on any node.
    pub fn make_space(&self, search: &mut Search<'_>) -> Result<bool> {
        let done = &self.collections;
        done.stalls.fetch_add(1, Ordering::Relaxed);
        let _stalled = Stopwatch::start(&done.stall_nanos);
        let others = if self.spill { self.log.nodes() - 1 } else { 0 };
        let is_last = search.vain >= others;
        match self.make_space_on(search.node, is_last, search.next_end()) {
            Ok(true) => {
                search.vain = 0;
                return Ok(true);
            }
            Err(error) if is_last || self.committer.refuses() => return Err(error),
            _ => {}
        }
        if !is_last {
            search.vain += 1;
            search.claim = None;
            self.log.spill_from(search.node);
            search.node = (search.node + 1) % self.log.nodes();
        }
        Ok(!is_last)
    }

    /// Makes space on a node. Returns false if there is nothing to be gained, or, unless this is the `last` node to be
    /// asked, not at once. Any number of writers: each empties one victim at a time, beside the collectors.
    ///
    /// What others do on other nodes is of no use to the write, unless it goes there next: otherwise it would neither
    /// spill nor be refused as long as there is space being made elsewhere.
    fn make_space_on(&self, node: usize, last: bool, end: Option<Instant>) -> Result<bool> {
        let done = &self.collections;
        let of_use = if last && self.spill { None } else { Some(node) };
        let before = self.log.handed_on(of_use);
        let others_made_some = || self.log.handed_on(of_use) != before;
        let (mut is_at_it, mut unusable) = (true, None);
        for _ in 0..PATIENCE_MS {
            let sweeps = done.sweeps.load(Ordering::Acquire);
            let made = self.reclaim_for(node, end, &mut unusable)?;
            if made || others_made_some() {
                return Ok(true);
            }
            // Another thread may have the last victims, a reader may be looking at what was freed, or a sweep may make
            // tombstones free to go that keep victims.
            let sweeping = done.sweeping.is_locked() || done.sweeps.load(Ordering::Acquire) != sweeps || self.awaits_sweep(node);
            is_at_it = self.log.passes_in_progress(of_use) > 0 || self.log.awaits_readers(of_use) || sweeping;
            if !last || !is_at_it && (unusable.is_some() || !self.log.has_retiring(of_use)) {
                let made = others_made_some() || last && self.give_up_checkpoint(of_use)?;
                return if made { Ok(true) } else { unusable.map_or(Ok(false), Err) };
            }
            if is_over(end) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Where others are still making space, the write decides how long it waits for them. Nobody works on what
        // guards of values keep, or what cannot be zeroed.
        if is_at_it || self.give_up_checkpoint(of_use)? { Ok(true) } else { unusable.map_or(Ok(false), Err) }
    }

    /// Removes the checkpoint, if tombstones that hold up garbage on `node`, or on any node, wait for the next one: there
    /// is no time for that. Returns whether something can be gained now.
    fn give_up_checkpoint(&self, node: Option<usize>) -> Result<bool> {
        let waits = self.log.keeps_tombstones() && self.log.tombstones_hold_garbage(node, LAST_GAIN, self.collector.tombstones());
        if waits {
            self.checkpoints.invalidate(&self.log)?;
        }
        Ok(waits)
    }

    /// Whether a sweep of `node` is still due, of which another thread may just have done a part. Where writes go to
    /// other nodes as well, also whether a sweep of another node is due that its collectors may not have begun yet.
    fn awaits_sweep(&self, node: usize) -> bool {
        let awaits = |other: usize| (other == node || self.leaves_sweeps(other)) && self.is_sweep_due(Some(other), Due::Urgent);
        (0..self.log.nodes()).filter(|&other| self.spill || other == node).any(awaits)
    }

    /// Empties a victim of `node`, a good one rather than one that brings little. Returns whether one was emptied, or
    /// segments became free otherwise. Notes in `unusable` why a freed segment cannot be used again.
    fn reclaim_for(&self, node: usize, end: Option<Instant>, unusable: &mut Option<Error>) -> Result<bool> {
        // Victims left behind are the best that `Need::Some` would find, or it would find none.
        let first = if self.has_victims_ahead(node, end) { Need::Any } else { Need::Some };
        for (need, then_seal) in [(first, Some(TakeBack::Idle)), (Need::Any, Some(TakeBack::All)), (Need::Last, None)] {
            let before = self.log.handed_on(Some(node));
            let freed = self.collect(Some(node), need, Turn::Pass(end))?;
            *unusable = self.reuse_what_can_be(Wait::up_to(end))?;
            // Freed segments count, even if another thread hands them on.
            if freed > 0 || self.log.handed_on(Some(node)) != before {
                return Ok(true);
            }
            if let Some(chunks) = then_seal {
                self.seal(chunks)?;
            }
        }
        Ok(false)
    }

    /// Hands freed segments on. Returns the error of a segment that cannot be used again: where there are others, that
    /// is no reason to end what space is made for.
    pub fn reuse_what_can_be(&self, wait: Wait) -> Result<Option<Error>> {
        match self.reuse_freed(wait) {
            Err(error) if !self.committer.refuses() => Ok(Some(error)),
            outcome => outcome.map(|_| None),
        }
    }

    pub fn reuse_freed(&self, wait: Wait) -> Result<usize> {
        self.heeding_failed_syncs(self.log.reuse_freed(wait)).map_err(|error| self.explain(error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::small_options;
    use super::{Need, Search, TakeBack, Turn};
    use crate::{KeyspaceHandle, Kind, Options, Store};
    use hither_pmem::{FailAt, Failpoints};
    use hither_topology::Topology;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    /// For a write that would wait for ever.
    const ASKED: Search<'static> = Search::new(0, None);

    /// Options under which a write waits only briefly.
    fn small() -> Options {
        Options { space_patience: Duration::from_secs(2), ..small_options() }
    }

    /// Regression: freed segments that guards of values keep passed for free ones. Collectors slept, nobody was slowed
    /// down, and a write to a store without any other space waited out its patience.
    #[test]
    fn what_guards_keep_is_no_room() {
        let store = Store::open(small()).unwrap();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 500]));
        (0..1000).for_each(|key| put(key).map(drop).unwrap());
        // In ten segments.
        let guards: Vec<_> =
            (0..600).step_by(60).map(|key| store.get_pinned(&keyspace, &u64::to_be_bytes(key)).unwrap().unwrap()).collect();
        (0..600).for_each(|key| put(key).map(drop).unwrap());
        let core = &store.core;
        core.reclaim().unwrap();
        assert!(core.log.has_retiring(None) && !core.log.awaits_readers(None), "freed, and kept");
        (1000..).find(|&key| put(key).is_err()).unwrap();
        assert!(core.need_of_space(0) == Need::Any && core.log.room(0).left() < guards.len() as u64);
        assert!(!core.make_space(&mut { ASKED }).unwrap(), "nobody is at it");
        drop(guards);
        put(5000).unwrap();
        assert!(!core.log.has_retiring(None));
    }

    /// Regression: a write that found no space waited for readers to end, and for a check of the whole store, however
    /// little patience it had.
    #[test]
    fn a_write_without_patience_waits_for_nobody() {
        type Hold = dyn Fn(&Store, &KeyspaceHandle, &dyn Fn() -> bool) -> bool + Sync;
        let by_reading = |store: &Store, keyspace: &KeyspaceHandle, wait: &dyn Fn() -> bool| {
            store.get_with(keyspace, &1u64.to_be_bytes(), |_| wait()).unwrap().unwrap()
        };
        let by_checking = |store: &Store, _: &KeyspaceHandle, wait: &dyn Fn() -> bool| store.core.without_passes(wait);
        for (what, hold) in [("a reader", &by_reading as &Hold), ("a check", &by_checking)] {
            let store = Store::open(Options { space_patience: Duration::ZERO, ..small() }).unwrap();
            let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
            let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 500]));
            (0..1000).for_each(|key| put(key).map(drop).unwrap());
            let (begun, refused) = (Barrier::new(2), AtomicBool::new(false));
            // A minute is for ever.
            let wait = || {
                begun.wait();
                (0..6000).any(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    refused.load(Ordering::Acquire)
                })
            };
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(hold(&store, &keyspace, &wait), "a write has waited for {what}"));
                begun.wait();
                // Garbage, of which nothing can be used again meanwhile.
                assert!((0..5000).any(|number| put(number % 1000).is_err()), "{what}");
                refused.store(true, Ordering::Release);
            });
            assert!(store.reclaim().unwrap() > 0, "now it is there");
            put(0).unwrap();
        }
    }

    /// Found by reading: what was handed on to writers of other nodes passed for space on the node that a write had found
    /// full. It neither went elsewhere nor was refused.
    #[test]
    fn what_is_freed_on_another_node_is_no_space_on_this_one() {
        for spill in [true, false] {
            let topology = Arc::new(Topology::emulated(2));
            topology.bind_current_thread(0).unwrap();
            let store = Store::open(Options { topology: Some(topology.clone()), spill, ..small() }).unwrap();
            let (keyspace, core) = (store.create_keyspace("keys", Kind::Hash).unwrap(), &store.core);
            let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 8])).map(drop).unwrap();
            (0..).take_while(|_| core.log.bytes_for_puts(0) > 0).for_each(put);
            topology.bind_current_thread(1).unwrap();
            (0..2).for_each(|_| (1 << 40..(1 << 40) + 4_000).for_each(put));
            core.seal(TakeBack::All).unwrap();
            // Its readers keep it until they end.
            let (begun, ends) = (Barrier::new(2), Barrier::new(2));
            let freed = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _pin = hither_sync::epoch::pin();
                    begun.wait();
                    ends.wait();
                });
                begun.wait();
                let freed = core.collect(Some(1), Need::Some, Turn::Round);
                ends.wait();
                freed
            });
            assert!(freed.unwrap() > 0 && core.log.has_retiring(Some(1)) && !core.log.has_retiring(Some(0)));
            topology.bind_current_thread(0).unwrap();
            let mut search = { ASKED };
            assert_eq!((core.make_space(&mut search).unwrap(), search.node), (spill, usize::from(spill)));
        }
    }

    /// Found by reading: a segment that could not be zeroed failed a write though another one had just been freed for it.
    #[test]
    fn a_segment_that_cannot_be_zeroed_fails_no_write_that_others_serve() {
        let points = Failpoints::new();
        let store = Store::open(Options { failpoints: Some(points.clone()), ..small() }).unwrap();
        let (keyspace, core) = (store.create_keyspace("keys", Kind::Hash).unwrap(), &store.core);
        let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 500])).map(drop).unwrap();
        // A segment holds thirty.
        (0..800).for_each(put);
        (600..720).for_each(put);
        core.seal(TakeBack::All).unwrap();
        points.arm("zero", FailAt { skip: 0, count: 1, errno: 5 });
        assert!(core.collect(Some(0), Need::Some, Turn::Round).unwrap() > 1 && core.log.has_retiring(None));
        // Before that one.
        (0..120).for_each(put);
        points.arm("zero", FailAt { skip: 1, count: u64::MAX, errno: 5 });
        assert!(core.make_space(&mut { ASKED }).unwrap());
        assert!(points.reached("zero") > 1 && core.log.has_retiring(None));
        core.reclaim().unwrap_err();
        points.disarm("zero");
        core.reclaim().unwrap();
        assert!(!core.log.has_retiring(None) && store.check().unwrap().is_sound());
    }

    /// Regression: a write that found no space removed the checkpoint where some tombstone was newer, though that
    /// gained nothing. Such a store was scanned as a whole after each crash.
    #[test]
    fn a_checkpoint_stays_where_nothing_is_gained_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options { in_memory: false, paths: vec![(None, dir.path().to_owned())], ..small() }).unwrap();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        let write = |key: u64, value: Option<&[u8]>| store.write_wait(&keyspace, &key.to_be_bytes(), value).map(drop);
        (0..1000).for_each(|key| write(key, Some(&[1; 500])).unwrap());
        assert!(store.checkpoint().unwrap());
        // Tombstones that no sweep has seen, fewer than make one due.
        (0..3).for_each(|key| write(key, None).unwrap());
        (1000..).find(|&key| write(key, Some(&[1; 500])).is_err()).unwrap();
        assert!(!store.core.make_space(&mut { ASKED }).unwrap(), "nothing can be had");
        assert!(store.core.log.keeps_tombstones() && dir.path().join("checkpoint.hither").exists());
    }

    /// Regression: a thread that held checkpoints up, as a check does, passed for a checkpoint that keeps tombstones. A
    /// write to a full store removed the checkpoint again and again as long as that lasted, took this for progress, and
    /// neither went to another node nor looked for expired keys.
    #[test]
    fn a_check_under_way_is_no_checkpoint_that_could_make_room() {
        let store = Store::open(small()).unwrap();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        let full = (0..).find_map(|key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 500])).err()).unwrap();
        assert!(full.kind().is_lack_of_space(), "{full}");
        let paused = store.core.checkpoints.pause();
        assert!(!store.core.make_space(&mut { ASKED }).unwrap(), "nothing can be had");
        drop(paused);
    }

    /// Regression: a write that found no space read the whole log for tombstones before it was refused or made, however
    /// little patience it had. Now each such write continues where the last one ended.
    #[test]
    fn a_write_without_patience_sweeps_little() {
        let options = Options { capacity: 4 << 20, max_capacity: 4 << 20, space_patience: Duration::ZERO, ..small() };
        let store = Store::open(options).unwrap();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        let swept = || store.core.collections.swept_segments.load(Ordering::Relaxed);
        let (mut most, mut refused) = (0, 0);
        // Keys that come and go, so that tombstones fill the store.
        for number in 0..400_000u64 {
            let (key, value) = ((number / 2).to_be_bytes(), (number % 2 == 0).then_some(&b"t"[..]));
            loop {
                let before = swept();
                let outcome = store.write_wait(&keyspace, &key, value);
                most = most.max(swept() - before);
                match outcome {
                    Ok(_) => break,
                    Err(error) => assert!(error.kind().is_lack_of_space() && refused < 20_000, "{error}"),
                }
                refused += 1;
            }
        }
        let sweeps = store.core.collections.sweeps.load(Ordering::Relaxed);
        assert!(
            most <= 16 && sweeps > 0,
            "a write has swept {most} of 256 segments; {refused} were refused, {sweeps} sweeps came to an end"
        );
        assert!(store.check().unwrap().is_sound());
    }
}
