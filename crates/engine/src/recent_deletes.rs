//! Deletes that are not durable yet, by key: a put that follows such a delete links to its tombstone.
//!
//! Where writes are installed before they are durable, a power loss may lose the tombstone and keep the put. Without
//! the link nothing would show that. The entries that the tombstone deleted would then lie on media on no chain
//! (`docs/adr/0011`, "Broken chains"), and the next delete of the key would not bury them.
//!
//! Keys are distinguished by hash. If two keys share a hash, at worst one gets a link that does not hold.
//!
//! Which deletes are noted (`Core::may_be_lost`): on media whose fence makes a delete durable before it is installed,
//! only those of a weaker level. Where nothing is flushed, none: a crash there loses only what came last, or
//! everything, and nothing would come by to forget the notes. While no delete is noted, asking costs one load.
//!
//! Thread safety: all methods except [`RecentDeletes::forget`] are called under the key's latch. Crash: in DRAM only.

use hither_index::Ref;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of the keyspace, and hash of the key.
type Name = (u32, u64);

/// Deletes for which the table keeps its room when they are forgotten.
const KEPT: usize = 1024;

/// The deletes that are not durable yet: see the module's head.
#[derive(Default)]
pub(crate) struct RecentDeletes {
    any: AtomicBool,
    tombstones: Mutex<HashMap<Name, (Ref, u64)>>,
}

impl RecentDeletes {
    /// Notes the tombstone of a delete.
    #[cold]
    pub fn note(&self, name: Name, tombstone: Ref, version: u64) {
        self.tombstones.lock().insert(name, (tombstone, version));
        self.any.store(true, Ordering::Release);
    }

    /// Whether any delete is noted.
    #[inline(always)]
    pub fn any(&self) -> bool {
        // Acquire suffices: the key's latch orders this load after the delete.
        self.any.load(Ordering::Acquire)
    }

    /// Returns the tombstone of the key, if the key's last write was a delete that may not be durable.
    #[inline(always)]
    pub fn get(&self, name: Name) -> Option<Ref> {
        if self.any() { self.search(name) } else { None }
    }

    #[cold]
    fn search(&self, name: Name) -> Option<Ref> {
        self.tombstones.lock().get(&name).map(|(tombstone, _)| *tombstone)
    }

    /// Forgets the tombstone of a key that was written again.
    #[cold]
    pub fn remove(&self, name: Name) {
        self.tombstones.lock().remove(&name);
    }

    /// Forgets the tombstones up to this version, which are durable.
    pub fn forget(&self, durable: u64) {
        if !self.any() {
            return;
        }
        let mut tombstones = self.tombstones.lock();
        tombstones.retain(|_, (_, version)| *version > durable);
        if tombstones.is_empty() {
            self.any.store(false, Ordering::Release);
        }
        // A commit looks at all the room that the table has, with writers waiting, and a large batch may have left much.
        if tombstones.capacity() > KEPT && tombstones.len() < tombstones.capacity() / 4 {
            tombstones.shrink_to(KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: in memory, where nobody commits, each delete at the level `process` was remembered for ever.
    #[test]
    fn nothing_is_remembered_where_nothing_is_flushed() {
        use crate::{Durability, Kind, Options, Store};
        let store =
            Store::open(Options { in_memory: true, background: false, durability: Durability::Process, ..Options::default() }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        for batched in [false, true] {
            store.write_wait(&keyspace, b"key", Some(b"value")).unwrap();
            let mut batch = crate::Batch::default();
            batch.delete(&keyspace, b"key");
            let deleted = if batched { store.commit_wait(&batch) } else { store.write_wait(&keyspace, b"key", None).map(drop) };
            deleted.unwrap();
            assert!(!store.core.committer.recent_deletes.any(), "batched: {batched}");
        }
    }

    /// Regression: after a large batch of deletes each commit walked a table as large as the batch.
    #[test]
    fn the_room_of_a_large_batch_is_given_back() {
        let recent = RecentDeletes::default();
        (0..100 * KEPT as u64).for_each(|key| recent.note((1, key), Ref(key), key));
        let capacity = || recent.tombstones.lock().capacity();
        assert!(capacity() >= 100 * KEPT);
        recent.forget(99 * KEPT as u64);
        assert!(capacity() < 4 * KEPT && recent.get((1, 99 * KEPT as u64 + 1)).is_some(), "{}", capacity());
        recent.forget(u64::MAX);
        assert!(capacity() < 4 * KEPT && !recent.any());
    }

    #[test]
    fn remembers_until_written_again_or_durable() {
        let recent = RecentDeletes::default();
        assert_eq!(recent.get((1, 7)), None);
        recent.note((1, 7), Ref(70), 5);
        recent.note((2, 7), Ref(71), 6);
        recent.note((1, 8), Ref(72), 9);
        assert_eq!((recent.get((1, 7)), recent.get((2, 7)), recent.get((3, 7))), (Some(Ref(70)), Some(Ref(71)), None));
        recent.remove((2, 7));
        recent.forget(5);
        assert_eq!((recent.get((1, 7)), recent.get((2, 7)), recent.get((1, 8))), (None, None, Some(Ref(72))));
        recent.forget(9);
        assert!(!recent.any.load(Ordering::Relaxed));
    }
}
