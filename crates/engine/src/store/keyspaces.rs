//! Changes of the store's keyspaces: creating, dropping, exchanging names.
//!
//! Thread safety: the catalogue's lock admits one change at a time. A change is durable before it is visible. Crash:
//! the catalogue in the first pool is replaced as a whole.

use crate::catalogue::Catalogue;
use crate::commit;
use crate::error::Result;
use crate::keyspace::{Keyspace, KeyspaceHandle, KeyspaceInfo, Kind, with_index};
use crate::store::{Core, Store, ensure_outside_callbacks};
use hither_index::Index;
use hither_sync::epoch;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Store {
    /// All keyspaces, by id.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let mut infos: Vec<_> = self.core.keyspaces.read().values().map(|keyspace| keyspace.info.clone()).collect();
        infos.sort_by_key(|info| info.id);
        infos
    }

    /// Returns a handle of an existing keyspace. Waits for an exchange of names under way. In the callback of a ticket
    /// it does not wait, so there every operation of the handle may be refused.
    pub fn open_keyspace(&self, name: &str) -> Option<KeyspaceHandle> {
        let find = || self.core.keyspaces.read().get(name).cloned();
        let mut found = find();
        if found.as_ref().is_some_and(|keyspace| keyspace.is_dropped()) && !commit::is_in_callback() {
            let _exchanged = self.core.catalogue.lock();
            found = find();
        }
        found.map(KeyspaceHandle)
    }

    /// Creates a keyspace; durable at return. Refused in the callback of a ticket, as all changes of the catalogue are
    /// ([`crate::Error::InsideCallback`]).
    pub fn create_keyspace(&self, name: &str, kind: Kind) -> Result<KeyspaceHandle> {
        ensure_outside_callbacks("create_keyspace")?;
        self.core.committer.ensure_writable()?;
        let mut catalogue = self.core.catalogue.lock();
        let mut changed = catalogue.clone();
        let info = changed.add(name, kind)?;
        self.core.set_catalogue(&changed)?;
        *catalogue = changed;
        let keyspace = Arc::new(Keyspace::new(info, self.core.hasher, self.core.ordered_index));
        self.core.keyspaces.write().insert(name.to_owned(), keyspace.clone());
        Ok(KeyspaceHandle(keyspace))
    }

    /// Drops a keyspace with all its keys; durable at return. Returns false if there is none of this name. O(keys), to
    /// count its entries as garbage.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        ensure_outside_callbacks("drop_keyspace")?;
        self.core.committer.ensure_writable()?;
        // Pinned before collectors can find the keyspace missing, and until its entries are counted as garbage.
        // Meanwhile no segment that collectors empty is reused. Otherwise the counts would go to the segment's next
        // life: its `live_bytes` would be too small, and live entries might be taken for dead.
        let pin;
        let dropped = {
            let mut catalogue = self.core.catalogue.lock();
            let mut changed = catalogue.clone();
            if changed.remove(name).is_none() {
                return Ok(false);
            }
            self.core.set_catalogue(&changed)?;
            *catalogue = changed;
            pin = epoch::pin();
            let mut keyspaces = self.core.keyspaces.write();
            // Set with the lock held: a reader that does not see the flag began before collectors could find the
            // keyspace missing, so the entries that it reads stay.
            keyspaces.remove(name).inspect(|keyspace| {
                keyspace.dropped.store(true, Ordering::SeqCst);
                keyspace.discarded.store(true, Ordering::SeqCst);
            })
        };
        if let Some(keyspace) = dropped {
            // Writers that did not see the flags finish first; later ones refuse. From now on collectors move none of
            // its entries: nobody would count the copies.
            epoch::synchronize_writers();
            self.core.discard_all(&keyspace);
            self.core.snapshots.forget(&keyspace);
        }
        drop(pin);
        self.core.forget_victims();
        Ok(true)
    }

    /// Exchanges the names of the two keyspaces of each pair, all pairs at once. Returns false and changes nothing if
    /// one of the names does not exist. The pairs apply one after the other, so a name may occur in several of them.
    ///
    /// The change is durable at return, and crash-atomic. Everything written before it is made durable first. Handles
    /// of keyspaces whose name has changed refuse from then on ([`crate::Error::KeyspaceDropped`]), so nothing is
    /// written under a former name: open them again.
    pub fn swap_keyspaces(&self, pairs: &[(&str, &str)]) -> Result<bool> {
        ensure_outside_callbacks("swap_keyspaces")?;
        self.core.committer.ensure_writable()?;
        let mut catalogue = self.core.catalogue.lock();
        let mut changed = catalogue.clone();
        if !pairs.iter().all(|(a, b)| changed.swap(a, b)) {
            return Ok(false);
        }
        // By number: the changed catalogue states which keyspace ends up with which name.
        let keyspaces = self.core.keyspaces_by_id();
        let held = changed.keyspaces.iter().filter_map(|info| Some((info.name.as_str(), keyspaces.get(&info.id)?.clone())));
        let old: Vec<(&str, Arc<Keyspace>)> = held.filter(|(name, keyspace)| keyspace.info.name != *name).collect();
        old.iter().for_each(|(_, keyspace)| keyspace.dropped.store(true, Ordering::SeqCst));
        // Writers that did not see the flag finish first; later ones refuse.
        epoch::synchronize_writers();
        let everything = self.core.log.clock.stable();
        let durable = self.core.committer.commit_with_locks(&self.core.log, everything);
        if let Err(error) = durable.and_then(|()| self.core.set_catalogue(&changed)) {
            old.iter().for_each(|(_, keyspace)| keyspace.dropped.store(false, Ordering::SeqCst));
            return Err(error);
        }
        let mut keyspaces = self.core.keyspaces.write();
        for (name, keyspace) in old {
            keyspaces.insert(name.to_owned(), Arc::new(keyspace.renamed(name)));
        }
        *catalogue = changed;
        Ok(true)
    }
}

impl Core {
    /// The keyspaces that exist now, by their numbers.
    pub fn keyspaces_by_id(&self) -> HashMap<u32, Arc<Keyspace>> {
        self.keyspaces.read().values().map(|keyspace| (keyspace.info.id, keyspace.clone())).collect()
    }

    /// Replaces the catalogue, durably. If a sync fails, the catalogue may or may not have been replaced; then the
    /// store acknowledges nothing more.
    fn set_catalogue(&self, catalogue: &Catalogue) -> Result<()> {
        Ok(self.heeding_failed_syncs(self.log.pool(0).set_catalogue(&catalogue.encode()))?)
    }

    /// Counts all entries of a dropped keyspace as garbage. The caller has held a pin since before the keyspace was
    /// dropped.
    fn discard_all(&self, keyspace: &Keyspace) {
        debug_assert!(epoch::is_pinned(), "their segments must not begin new lives");
        let resolver = self.resolver();
        let mut discard = |reference: hither_index::Ref| {
            self.log.count_dead(reference.0, self.log.size_of(reference.0), false);
            true
        };
        with_index!(keyspace, index => index.for_each(&resolver, &mut discard));
    }
}
