//! The DRAM that the log takes. Thread safety: sums over growing structures; nothing is stopped except writers for a
//! moment, as in [`Log::usage`].

use crate::log::Log;
use crate::node::NodePool;
use crate::segment::{Chunk, Segment};
use crate::slot::Slot;
use hither_sync::Padded;

impl Log {
    /// Bytes of DRAM for the states of existing segments, for the garbage map, and for writer slots: the slots
    /// themselves, their counts, and the ranges that they remember for write-back. (The states of segments that do not
    /// exist yet take address space, but no memory.) O(segments + slots).
    pub fn dram_bytes(&self) -> usize {
        let states: usize = self.pools.iter().map(|pool| size_of_val(pool.existing())).sum();
        let slot = size_of::<Padded<Slot>>() + (self.shards() + 1) * size_of::<Chunk>();
        let mut dirty = 0;
        self.with_slots(|_, slot| dirty += slot.dirty.dram_bytes());
        states + self.garbage_map_bytes() + self.counts_bytes() + self.slots().count() * slot + dirty
    }

    /// The part of that which accounts for garbage: the counters of existing segments, the bits of entries, and the
    /// counts that writers keep until they are folded.
    pub fn garbage_dram_bytes(&self) -> usize {
        let counters: usize = self.pools.iter().map(|pool| pool.existing().len() * Segment::COUNTER_BYTES).sum();
        counters + self.garbage_map_bytes() + self.counts_bytes()
    }

    /// Bytes of the writers' counts by segment, and of those already folded.
    fn counts_bytes(&self) -> usize {
        let of_pool = |pool: &NodePool| {
            let segments = pool.existing().len();
            self.slots().map(|slot| slot.dead[pool.node as usize].dram_bytes(segments)).sum::<usize>()
        };
        let counts: usize = self.pools.iter().map(of_pool).sum();
        let folded: usize = self.pools.iter().map(|pool| size_of_val(&**pool.folded.lock())).sum();
        counts + folded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flush;
    use crate::entry::Parts;
    use hither_pmem::{CreateOptions, Emulate};
    use hither_sync::epoch;
    use std::sync::Barrier;

    const SEGMENT: u64 = 64 << 10;

    fn log(max_bytes: u64) -> Log {
        Log::for_tests(&CreateOptions { segment_bytes: SEGMENT, max_bytes, emulate: Some(Emulate::Adr), ..CreateOptions::new(8 * SEGMENT) })
    }

    /// Regression: the states of all segments that might ever exist were counted.
    #[test]
    fn a_fresh_store_takes_no_more_the_more_it_may_grow() {
        assert_eq!(log(1 << 20).dram_bytes(), log(1 << 30).dram_bytes());
    }

    /// Regression: the writers' counts were part of the accounts of garbage but not of the whole.
    #[test]
    fn the_accounts_of_garbage_are_part_of_the_whole() {
        const WRITERS: usize = 32;
        let log = log(1 << 30);
        let (fresh, fresh_accounts) = (log.dram_bytes(), log.garbage_dram_bytes());
        assert!(fresh_accounts <= fresh);
        // All at once, so that each thread has a slot of its own.
        let barrier = Barrier::new(WRITERS);
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    let (reference, _) = log.write_for_tests(Parts { key: b"one key!", value: b"a value.", ..Parts::EMPTY }, Flush::Later);
                    let section = epoch::pin_writer();
                    log.writer().lent().mark_dead(reference);
                    drop(section);
                    barrier.wait();
                });
            }
        });
        log.usage();
        let (whole, accounts) = (log.dram_bytes(), log.garbage_dram_bytes());
        assert!(accounts > fresh_accounts + 2 * 4096, "several writers have counted: {accounts}");
        assert!(accounts <= whole, "{accounts} of {whole}");
        // The rest is for the ranges written without a flush.
        assert!(whole - fresh > accounts - fresh_accounts, "{whole}, {accounts}");
    }
}
