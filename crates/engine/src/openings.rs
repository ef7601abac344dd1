//! Counts the openings of a store, to recognise pools that are older copies.
//!
//! A pool that was restored from an older copy lacks what was written to it since, deletes included, and the pools
//! beside it do not show that. So all pools count the openings of the store, in their superblocks. With several pools
//! an opening takes two steps: every pool gets an odd count, and once all have it, the even count above. Nobody writes
//! before that.
//!
//! Crash behaviour: a crash within an opening leaves counts that differ by one at most. The next opening completes that
//! step first, and then takes counts of its own. A pool of an earlier opening is behind by two or more.
//!
//! This does not recognise a pool that was copied and restored within one opening, nor one pool alone, which has
//! nothing to be compared with. A checkpoint that is newer than such a pool reveals it (see [`crate::checkpoint`]).
//!
//! Thread safety: runs while a store is opened, before any other thread has it.

use crate::error::Result;
use hither_log::Log;
use hither_pmem::Pool;

/// Returns what is wrong if one of the pools is an older copy than the others.
pub(crate) fn older_copy(pools: &[Pool]) -> Option<String> {
    let count = |pool: &&Pool| pool.superblock().open_count;
    let (oldest, newest) = (pools.iter().min_by_key(count)?, pools.iter().max_by_key(count)?);
    if count(&newest) - count(&oldest) < 2 {
        return None;
    }
    let name = |pool: &Pool| hither_log::replay::name_of(pool, pool.node());
    Some(format!(
        "pool {} is an older copy than pool {} (it has seen {} openings of the store, the other {}): what was written to it since is not there",
        name(oldest),
        name(newest),
        count(&oldest).div_ceil(2),
        count(&newest).div_ceil(2)
    ))
}

/// Counts this opening, durably, and clears the clean flags: the store is going to be written to.
pub(crate) fn count(log: &Log) -> Result<()> {
    let pools: Vec<&Pool> = (0..log.nodes()).map(|node| log.pool(node)).collect();
    let newest = pools.iter().map(|pool| pool.superblock().open_count).max().unwrap_or(0);
    // A single pool has no other to agree with, so it takes the last step at once.
    let first = if pools.len() == 1 { after(newest) } else { newest };
    for step in first..=after(newest) {
        pools.iter().filter(|pool| pool.superblock().open_count < step).try_for_each(|pool| pool.mark_open(step))?;
    }
    Ok(())
}

/// Returns the count with which an opening ends if the newest of the pools has the count `newest`: the one above the
/// next odd number. The opening goes there by single steps from `newest` on, beginning with one that was cut short, so
/// no two pools are ever further apart than one.
fn after(newest: u64) -> u64 {
    if newest.is_multiple_of(2) { newest + 2 } else { newest + 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opening_is_two_steps_ahead_of_whatever_was_there() {
        for newest in 0..100 {
            let count = after(newest);
            assert!(count.is_multiple_of(2) && count >= newest + 2 && count - 1 > newest, "{newest}");
        }
    }
}
