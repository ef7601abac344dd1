//! Verification in the background of what recovery did not read. On the way it finds out which entries are garbage
//! (`docs/adr/0016`).
//!
//! An entry that was there before the store was opened is garbage if the index does not name it and no snapshot keeps
//! it. The index is asked first: a writer that replaces an entry that a snapshot shows saves it for the snapshot
//! before. Both answers stay true: a superseded entry never becomes current again, and later snapshots do not show it.
//!
//! Thread safety: beside writers, collectors and snapshots; the segment is pinned, so that a bit cannot be meant for
//! its next life. Crash: nothing is changed on media.

use crate::keyspace::{Keyspace, with_index};
use crate::resolver::Looking;
use crate::store::{Core, Store};
use hither_index::{Index, Key, Ref};
use hither_log::Met;
use hither_sync::epoch;
use std::collections::HashMap;
use std::sync::Arc;

type Keyspaces = HashMap<u32, Arc<Keyspace>>;

impl Core {
    /// Verifies another segment. Returns false if none is left. Damage goes to the statistics. Call outside epoch pins.
    pub fn verify_next(&self) -> bool {
        // Every keyspace with entries that were there at the opening is here, or was dropped.
        let keyspaces = self.keyspaces_by_id();
        self.log.verify_next(|met| self.know_garbage_among(met, &keyspaces)).unwrap_or_else(|damage| {
            self.damage.lock().push(damage.finding());
            true
        })
    }

    /// Sets the bits of those entries that are garbage.
    fn know_garbage_among(&self, met: &[Met<'_>], keyspaces: &Keyspaces) {
        let _pin = epoch::pin();
        for same in met.chunk_by(|a, b| a.keyspace == b.keyspace) {
            match keyspaces.get(&same[0].keyspace) {
                Some(keyspace) => self.know_superseded(same, keyspace),
                // The keyspace was dropped.
                None => same.iter().for_each(|met| self.log.know_garbage(met.reference)),
            }
        }
    }

    fn know_superseded(&self, met: &[Met<'_>], keyspace: &Keyspace) {
        let keys: Vec<Key<'_>> = met.iter().map(|met| self.hasher.key(met.entry.key)).collect();
        let mut current = vec![Ref::NONE; keys.len()];
        let resolver = Looking { resolver: self.resolver(), checked: met[0].reference };
        with_index!(keyspace, index => index.get_many(&keys, &mut current, &resolver));
        for ((met, key), current) in met.iter().zip(keys).zip(current) {
            let reference = Ref(met.reference);
            // After the look-up: see the module's head.
            if current == reference || (self.snapshots.any() && self.snapshots.retained(keyspace, key.bytes, reference).is_some()) {
                continue;
            }
            self.log.know_garbage(met.reference);
            debug_assert_ne!(with_index!(keyspace, index => index.get(key, &resolver)), reference, "a bit that is set is right (G1)");
        }
    }
}

impl Store {
    /// Verifies what recovery did not read, as the background does; for tests, which run without it.
    #[doc(hidden)]
    pub fn verify_unread(&self) {
        while self.core.verify_next() {}
    }

    /// Whether some segment is not verified yet.
    #[doc(hidden)]
    pub fn has_unverified(&self) -> bool {
        self.core.log.has_unverified()
    }

    /// The entries that are known to be garbage, in no order. Run it without writers and collectors. O(store).
    #[doc(hidden)]
    pub fn known_garbage(&self) -> Vec<u64> {
        let mut known = Vec::new();
        self.core.log.visit_all(|reference, _, _, _| known.extend(self.core.log.is_known_garbage(reference).then_some(reference)));
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Options, RestartSource};
    use std::path::Path;

    const KEYS: u64 = 5_000;

    fn open(dir: &Path) -> Store {
        let paths = vec![(None, dir.to_owned())];
        let durability = crate::Durability::Process;
        let sizes = Options { capacity: 4 << 20, max_capacity: 4 << 20, segment_bytes: 64 << 10, shards: 1, ..Options::default() };
        Store::open(Options { paths, durability, background: false, ..sizes }).unwrap()
    }

    /// A store with `KEYS` keys, of which every third was overwritten, opened again without a scan.
    fn reopened(dir: &Path) -> (Store, crate::KeyspaceHandle) {
        let store = open(dir);
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        (0..KEYS).chain((0..KEYS).step_by(3)).for_each(|key| put(&store, &keyspace, key, 1));
        drop((store, keyspace));
        let store = open(dir);
        assert_eq!(store.recovery().source, RestartSource::Clean);
        let keyspace = store.open_keyspace("k").unwrap();
        (store, keyspace)
    }

    fn put(store: &Store, keyspace: &crate::KeyspaceHandle, key: u64, value: u8) {
        store.write_wait(keyspace, &key.to_be_bytes(), Some(&[value; 48])).unwrap();
    }

    /// Regression: nothing kept a segment that was being verified from being freed, zeroed and filled again, which then
    /// passed for damage.
    #[test]
    fn a_segment_that_is_freed_meanwhile_is_not_taken_for_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let (store, keyspace) = reopened(dir.path());
        let mut met = 0;
        let verified = store.core.log.verify_next(|group| {
            if met == 0 {
                for round in 0..3 {
                    (0..KEYS).for_each(|key| put(&store, &keyspace, key, round));
                    (0..4).for_each(|_| assert!(store.reclaim().is_ok()));
                }
                assert!(store.stats().collections.segments > 10, "{:?}", store.stats().collections);
            }
            met += group.len();
        });
        assert!(met > 500 && matches!(verified, Ok(true)), "{met} entries met: {verified:?}");
        store.verify_unread();
        assert!(store.core.damage.lock().is_empty(), "{:?}", store.core.damage.lock());
        assert!(store.check().unwrap().is_sound());
    }

    /// Regression: a segment freed before anybody had verified it counted as unverified for ever, and all reads took
    /// the long way.
    #[test]
    fn what_is_freed_unread_need_not_be_verified_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let (store, keyspace) = reopened(dir.path());
        assert!(store.has_unverified());
        (0..KEYS).for_each(|key| put(&store, &keyspace, key, 2));
        while store.reclaim().unwrap() > 0 {}
        store.verify_unread();
        assert!(!store.has_unverified());
    }
}
