//! Snapshots in the histories: taken at one moment, compared with that moment ever after.

use crate::coverage::Item;
use crate::explorer_script::{Life, Shown};
use hither_engine::{Direction, KeyspaceHandle, Kind, ScanRange, Snapshot};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

impl Life {
    /// Takes a snapshot. It keeps showing the current keys, whatever is collected; see [`Life::show_snapshot`].
    pub fn snapshot(&mut self) -> (Snapshot, Shown) {
        (self.store.snapshot(), self.now.clone())
    }

    /// Compares a snapshot with what was there when it was taken: it shows all of that, and nothing else. Counts whether
    /// a collector has moved entries for a snapshot.
    pub fn show_snapshot(&mut self, (snapshot, shown): &(Snapshot, Shown)) {
        for (number, handle) in self.handles.iter().enumerate().filter_map(|(number, handle)| Some((number, handle.as_ref()?))) {
            let here = shown.iter().filter(|((keyspace, _), (_, expired))| *keyspace == number && !expired);
            let wanted: BTreeMap<_, _> = here.map(|((_, key), (value, _))| (key.clone(), value.clone())).collect();
            let found = content_of(snapshot, handle);
            let strangers: Vec<_> = found.keys().filter(|key| !wanted.contains_key(*key)).collect();
            assert!(strangers.is_empty(), "a snapshot of keyspace {number} shows {strangers:?}, which were not there");
            assert_eq!(found, wanted, "a snapshot of keyspace {number}");
        }
        for ((keyspace, key), (value, expired)) in shown {
            let handle = self.handles[*keyspace].as_ref().expect("scripts use keyspaces that are there");
            let found = snapshot.get_with(handle, key, <[u8]>::to_vec).expect("a snapshot can be read");
            assert_eq!(found.as_ref(), Some(value).filter(|_| !expired), "a snapshot of {key:?}");
        }
        if self.store.stats().collections.moved_for_snapshots > 0 {
            self.coverage.hit(Item::MovedForSnapshot);
        }
    }
}

/// All that a snapshot shows of a keyspace.
fn content_of(snapshot: &Snapshot, handle: &KeyspaceHandle) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    if handle.info().kind == Kind::Ordered {
        let everything = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: usize::MAX };
        let visit = |key: &[u8], value: &[u8]| {
            assert!(found.insert(key.to_vec(), value.to_vec()).is_none(), "a snapshot shows {key:?} twice");
            ControlFlow::Continue(())
        };
        snapshot.scan(handle, &everything, visit).expect("a snapshot can be read");
        return found;
    }
    for key in snapshot.sorted_keys(handle).expect("a snapshot can be read") {
        let value = snapshot.get_with(handle, &key, <[u8]>::to_vec).expect("a snapshot can be read");
        found.extend(value.map(|value| (key, value)));
    }
    found
}
