//! Makes space, and on files zeros, ready for writers in the background.
//!
//! A segment is zeroed before it is opened. On every medium this applies to segments that were used before; on files
//! also to those that never were, where writes wait for syncs (`docs/adr/0004`). On a file it takes a write and a sync
//! of the whole segment, some milliseconds. So a few free segments are kept zeroed there.
//!
//! They stay free meanwhile: a thread that takes one that is just being zeroed waits until that is done, and the store
//! is not reported as full because of it.
//!
//! Thread safety: one segment of a pool is zeroed ahead at a time, under a lock of its own; the list of free segments
//! is locked briefly within it. A thread that has taken segments zeros them under no lock, but passes through that lock
//! first.
//!
//! Crash: the content of a free segment means nothing, and the record of its zeros does not outlive the process.

use crate::error::Result;
use crate::log::Log;
use crate::node::NodePool;
use hither_sync::Bell;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes of free segments that are kept zeroed; at least [`FEWEST`] segments.
const AHEAD_BYTES: u64 = 16 << 20;
/// Shards open segments independently, perhaps two at once.
const FEWEST: usize = 2;

impl Log {
    /// Makes segments of `node` ready for writers: grows its pool if puts have used it up and it may grow, and zeros
    /// some free segments where that is worthwhile. For a thread that waits for [`Log::needs_more`].
    ///
    /// # Errors
    /// An error of the medium; a writer that needs the segments meets it, too.
    pub fn make_ready(&self, node: usize) -> Result<()> {
        let pool = &self.pools[node];
        pool.grow_ahead()?;
        if self.zeroes_fresh(pool) {
            pool.zero_first_free()?;
        }
        Ok(())
    }

    /// The bell that is rung whenever puts have opened a segment of `node` and there may be something to make ready.
    pub fn needs_more(&self, node: usize) -> &Bell {
        &self.needs_more[node]
    }

    /// Whether segments that were never used are zeroed, too, before they are opened. The first write into an extent of
    /// a file that was only reserved costs a commit of the file system's journal with every sync.
    pub(crate) fn zeroes_fresh(&self, pool: &NodePool) -> bool {
        self.zero_ahead && pool.pool.needs_sync()
    }
}

impl NodePool {
    /// Zeros the first free segments. One that cannot be zeroed holds up no other; its error is returned at the end.
    fn zero_first_free(&self) -> Result<()> {
        let (mut outcome, mut from) = (Ok(()), 0);
        while let Some(segment) = self.first_to_zero(from) {
            if let Err(error) = self.zero_if_free(segment) {
                outcome = outcome.and(Err(error));
                from = segment + 1;
            }
        }
        outcome
    }

    /// The first segment to zero among the first free ones, starting at number `from`.
    fn first_to_zero(&self, from: u32) -> Option<u32> {
        let ahead = FEWEST.max((AHEAD_BYTES >> self.segment_shift) as usize);
        let alloc = self.alloc.lock();
        alloc.free.range(from..).take(ahead).copied().find(|segment| !self.is_zeroed(*segment))
    }

    fn is_zeroed(&self, segment: u32) -> bool {
        self.segments[segment as usize].zeroed.load(Ordering::Acquire)
    }

    fn zero_if_free(&self, segment: u32) -> Result<()> {
        let _one_at_a_time = self.zeroing.lock();
        // A thread that takes the segment from here on finds that it is not zeroed, and waits.
        if self.is_zeroed(segment) || !self.alloc.lock().free.contains(&segment) {
            return Ok(());
        }
        self.pool.zero_segment(segment, 1)?;
        self.segments[segment as usize].zeroed.store(true, Ordering::Release);
        Ok(())
    }

    /// Zeros the part of a run, which the caller has taken from the free segments, that must be zeroed: segments that
    /// were used before and, where fresh segments are zeroed, all of them, unless they were zeroed ahead. All at once:
    /// segments in between are zeroed, too.
    pub fn ensure_zeroed(&self, log: &Log, run: Range<u32>) -> Result<()> {
        let fresh = log.zeroes_fresh(self);
        if fresh && run.clone().any(|part| !self.is_zeroed(part)) {
            // Another thread may be zeroing one of them ahead. None begins any more, because they are taken.
            drop(self.zeroing.lock());
        }
        let mut lacking = run.filter(|part| !self.is_zeroed(*part) && (fresh || self.was_used(*part)));
        let Some(first) = lacking.next() else { return Ok(()) };
        let last = lacking.last().unwrap_or(first);
        Ok(self.pool.zero_segment(first, last + 1 - first)?)
    }

    pub fn was_used(&self, segment: u32) -> bool {
        self.segments[segment as usize].generation.load(Ordering::Relaxed) != 0
    }
}

/// Regression: one free segment that could not be zeroed held up all others.
#[cfg(test)]
mod tests {
    use crate::entry::Parts;
    use crate::opening::{Filler, Purpose};
    use crate::{Candidate, Flush, Log, TakeBack, Tombstones, Wait};
    use hither_pmem::{CreateOptions, Emulate, FailAt, Failpoints};
    use std::sync::Arc;

    /// A log whose next zeroing fails once `fail_next` was called.
    fn failing(emulate: Option<Emulate>) -> (Log, Arc<Failpoints>) {
        let failpoints = Failpoints::new();
        let options = CreateOptions { segment_bytes: 4096, emulate, failpoints: Some(failpoints.clone()), ..CreateOptions::new(1 << 20) };
        (Log::for_tests(&options), failpoints)
    }

    fn fail_next(failpoints: &Failpoints) {
        failpoints.arm("zero", FailAt { skip: 0, count: 1, errno: 5 });
    }

    /// `count` segments that were used and hold nothing any more: freed, but not zeroed yet.
    fn freed(log: &Log, count: usize) -> Vec<u32> {
        let put = |_| {
            let (reference, _) = log.write_for_tests(Parts { key: b"one key!", value: b"value", keyspace: 1, ..Parts::EMPTY }, Flush::Now);
            log.pools[0].close_from(0);
            log.segment_of(reference).1
        };
        let segments: Vec<_> = (0..count).map(put).collect();
        log.seal(&|_| Ok(()), TakeBack::All).expect("memory");
        log.settle(&|_| Ok(())).expect("memory");
        let begin = |index: &u32| {
            let candidate = Candidate { node: 0, index: *index, gain: 0, live: 0, age: 0, generation: 0 };
            log.begin_pass(&candidate, Tombstones::Swept).expect("memory").expect("it is sealed")
        };
        log.free_victims(segments.iter().map(begin).collect(), &|_| Ok(())).expect("memory");
        segments
    }

    #[test]
    fn others_are_handed_on() {
        let (log, failpoints) = failing(None);
        freed(&log, 3);
        let free = log.pools[0].free_segments();
        fail_next(&failpoints);
        assert_eq!(log.reuse_freed(Wait::Yes).expect("two of three"), 2);
        assert!(log.has_retiring(None) && log.pools[0].free_segments() == free + 2);
        fail_next(&failpoints);
        assert!(log.reuse_freed(Wait::Yes).is_err(), "there is no other");
        assert_eq!(log.reuse_freed(Wait::Yes).expect("memory"), 1);
        assert!(!log.has_retiring(None) && log.pools[0].free_segments() == free + 3);
    }

    /// Found by reading: whoever needed space was given the error of a segment that cannot be zeroed, though another one
    /// had only to wait for a reader.
    #[test]
    fn others_are_waited_for() {
        let (log, failpoints) = failing(None);
        freed(&log, 1);
        fail_next(&failpoints);
        assert!(log.reuse_freed(Wait::Yes).is_err() && log.has_retiring(None) && !log.awaits_readers(None));
        let (begun, has_begun) = std::sync::mpsc::channel();
        // It fails in the first look, while there is a reader, and in the second.
        failpoints.arm("zero", FailAt { skip: 0, count: 2, errno: 5 });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _pin = hither_sync::epoch::pin();
                begun.send(()).expect("the test waits");
                let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
                while failpoints.reached("zero") == 0 && std::time::Instant::now() < end {
                    std::thread::yield_now();
                }
            });
            has_begun.recv().expect("the reader reads");
            freed(&log, 1);
            assert_eq!(log.reuse_freed(Wait::Yes).expect("the other one"), 1);
        });
        assert!(log.has_retiring(None));
    }

    #[test]
    fn another_one_is_opened() {
        let (log, failpoints) = failing(None);
        let segments = freed(&log, 2);
        log.reuse_freed(Wait::Yes).expect("memory");
        segments.iter().for_each(|index| log.pools[0].segments[*index as usize].zeroed.store(false, super::Ordering::Relaxed));
        let free = log.pools[0].free_segments();
        let open = || log.pools[0].open_segments(&log, 1, Purpose { keyspace: 1, shard: 0, kind: Filler::Put, version: u64::MAX });
        fail_next(&failpoints);
        assert_eq!(open().expect("the second"), segments[1]);
        assert_eq!(log.pools[0].free_segments(), free - 1);
        failpoints.arm("zero", FailAt { skip: 0, count: u64::MAX, errno: 5 });
        log.pools[0].segments.iter().skip(2).for_each(|segment| segment.generation.store(7, super::Ordering::Relaxed));
        assert!(open().is_err(), "nor the one after it");
        assert_eq!(log.pools[0].free_segments(), free - 1);
        failpoints.disarm("zero");
        assert_eq!(open().expect("memory"), segments[0]);
    }

    #[test]
    fn others_are_zeroed_ahead() {
        let (mut log, failpoints) = failing(Some(Emulate::File));
        log.zero_ahead = true;
        log.load_tables(None).expect("no damage");
        assert!(log.zeroes_fresh(&log.pools[0]) && log.pools[0].free_segments() > 3);
        fail_next(&failpoints);
        assert!(log.make_ready(0).is_err());
        let is_zeroed = |index| log.pools[0].is_zeroed(index);
        assert_eq!([0, 1, 2, 3].map(is_zeroed), [false, true, true, true]);
        log.make_ready(0).expect("memory");
        assert!(is_zeroed(0));
    }
}
