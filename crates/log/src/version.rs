//! Versions: one order over all writes of the store (`docs/adr/0003`).
//!
//! A store-wide counter would be a hot line, so threads draw blocks of [`BLOCK`] versions. The key's latch keeps the
//! versions of *one key* growing: it remembers the last version given out under it. A write takes the larger of its
//! block's next version and the latch's last version plus one, and a new block if that lies beyond its own. Versions
//! are unique and below 2^56 ([`VERSION_BITS`]).
//!
//! # Stable versions
//!
//! [`VersionClock::stable`] returns S such that every write with a version ≤ S is installed and none with such a
//! version will come: it raises a floor that writers check when they draw, then waits for the sections under way.
//! Snapshots, the durable watermark of group commit and the settled version of batches all depend on it.

use hither_sync::epoch;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most bits of a version: the small words of page 0 hold so many.
pub const VERSION_BITS: u32 = 56;
/// How many versions a writer draws at once.
pub const BLOCK: u64 = 64;

/// The store-wide source of versions.
#[derive(Debug)]
pub struct VersionClock {
    next: AtomicU64,
    floor: AtomicU64,
    /// Number of versions below `next` that no write will have: the rests of blocks that were given up, and versions
    /// skipped otherwise.
    unused: AtomicU64,
}

/// A writer's private range of versions.
#[derive(Debug, Default, Clone, Copy)]
pub struct VersionBlock {
    next: u64,
    end: u64,
}

impl VersionClock {
    /// A clock whose versions are all greater than `seen`.
    pub fn after(seen: u64) -> Self {
        VersionClock { next: AtomicU64::new(seen + 1), floor: AtomicU64::new(seen), unused: AtomicU64::new(seen + 1) }
    }

    /// Makes later versions greater than `seen` (after recovery or an import).
    pub fn raise(&self, seen: u64) {
        let before = self.next.fetch_max(seen + 1, Ordering::SeqCst);
        self.unused.fetch_add((seen + 1).saturating_sub(before), Ordering::Release);
        self.floor.fetch_max(seen, Ordering::SeqCst);
    }

    /// An upper bound of every version given out so far.
    pub fn upper_bound(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// How many versions were given out, except for an uncertainty of the blocks that writers have at the moment: a
    /// block counts whole from when it is drawn until it is given up.
    ///
    /// Writers of many threads on few keys give up most of each block, so [`VersionClock::upper_bound`] is far above
    /// the number of their writes.
    pub fn given_out(&self) -> u64 {
        // In this order: the versions counted as unused were drawn before.
        let unused = self.unused.load(Ordering::Acquire);
        self.upper_bound().saturating_sub(unused)
    }

    /// Draws `count` consecutive versions, all greater than `last`. Returns the first. Call inside a writer section.
    #[inline(always)]
    pub fn draw(&self, block: &mut VersionBlock, last: u64, count: u64) -> u64 {
        let first = block.next.max(last + 1);
        if first + count > block.end || first <= self.floor.load(Ordering::Relaxed) {
            return self.draw_from_new_block(block, last, count);
        }
        block.next = first + count;
        first
    }

    #[cold]
    fn draw_from_new_block(&self, block: &mut VersionBlock, last: u64, count: u64) -> u64 {
        let size = BLOCK.max(count);
        self.unused.fetch_add(block.end - block.next, Ordering::Release);
        // SeqCst: a writer whose block starts above a snapshot's version must also see that snapshot registered.
        let start = self.next.fetch_add(size, Ordering::SeqCst);
        debug_assert!(start > last, "every version given out lies below the counter");
        *block = VersionBlock { next: start + count, end: start + size };
        start
    }

    /// Returns the largest version at or below which everything is installed. Waits for writer sections that are under
    /// way; O(threads).
    ///
    /// # Panics
    /// If called inside a writer section.
    pub fn stable(&self) -> u64 {
        self.stable_with(|_| {})
    }

    /// As [`VersionClock::stable`], but calls `publish` with the version before it waits, so that writers that wait for
    /// that version can finish.
    pub fn stable_with(&self, publish: impl FnOnce(u64)) -> u64 {
        let version = self.next.fetch_add(1, Ordering::SeqCst);
        self.unused.fetch_add(1, Ordering::Release);
        self.floor.fetch_max(version, Ordering::SeqCst);
        publish(version);
        epoch::synchronize_writers();
        version
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn versions_are_unique_and_grow_under_one_latch() {
        let clock = VersionClock::after(10);
        let (mut a, mut b) = (VersionBlock::default(), VersionBlock::default());
        let mut seen = HashSet::new();
        let mut last = 0;
        for i in 0..1_000 {
            let _section = epoch::pin_writer();
            let version = clock.draw(if i % 3 == 0 { &mut a } else { &mut b }, last, 1);
            assert!(version > last && version > 10);
            assert!(seen.insert(version));
            last = version;
        }
        let first = clock.draw(&mut a, last, 500);
        assert!(first > last);
        assert!(clock.draw(&mut a, 0, 1) >= first + 500);
    }

    /// Found by measuring: two writers that take turns on one key use one version of each block, but whole blocks
    /// counted as written.
    #[test]
    fn what_is_left_of_blocks_does_not_count_as_given_out() {
        let clock = VersionClock::after(1_000);
        let mut blocks = [VersionBlock::default(); 2];
        let mut last = 0;
        for turn in 0..1_000 {
            last = clock.draw(&mut blocks[turn % 2], last, 1);
        }
        assert!(clock.upper_bound() > 1_000 + 900 * BLOCK, "each turn gives up a block");
        assert!((1_000..1_000 + 2 * BLOCK).contains(&clock.given_out()), "{}", clock.given_out());
        let before = clock.given_out();
        (0..500).for_each(|_| assert_ne!(clock.stable(), 0));
        clock.raise(clock.upper_bound() + 5_000);
        assert_eq!(clock.given_out(), before, "neither is a write");
        clock.draw(&mut blocks[0], 0, 10 * BLOCK);
        assert!((before + 9 * BLOCK..before + 11 * BLOCK).contains(&clock.given_out()));
    }

    #[test]
    fn nothing_at_or_below_a_stable_version_comes_later() {
        let clock = VersionClock::after(0);
        let mut block = VersionBlock::default();
        clock.draw(&mut block, 0, 1);
        let stable = clock.stable();
        assert!(clock.draw(&mut block, 0, 1) > stable, "the rest of the old block must be given up");
    }

    #[test]
    fn stable_waits_for_sections_under_way() {
        let clock = VersionClock::after(0);
        let (told, wait) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let clock = &clock;
            let writer = scope.spawn(move || {
                let _section = epoch::pin_writer();
                let version = clock.draw(&mut VersionBlock::default(), 0, 1);
                told.send(version).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(10));
                std::time::Instant::now()
            });
            let version = wait.recv().unwrap();
            assert!(clock.stable() > version);
            assert!(std::time::Instant::now() >= writer.join().unwrap());
        });
    }
}
