//! The lean path of the commonest write: a pair of eight bytes each, or the delete of an eight-byte key, in a hash keyspace, durable at return on
//! persistent memory.
//!
//! It is the path of [`crate::write`] with everything left out that such a write cannot need, and its fields in registers. Why that
//! matters: between two flushes a processor can look only some five hundred instructions ahead, so each instruction less lets more of the next
//! operation's cache misses overlap with this one's flush (`docs/adr/0010`). The general path is the reference; whatever is unusual, and
//! every error, is left to it: [`Core::write_pair`] then returns `None` and has changed nothing.
//!
//! Order, latch and locks are those of the general path, so thread safety and crash behaviour are too: look up (a hint), latch, writer slot, home
//! pair, version, append, start the flush, verify the candidate in its shadow, fence, install.

use crate::keyspace::{AnyIndex, Keyspace};
use crate::options::Durability;
use crate::store::Core;
use crate::write::{Written, op_of};
use hither_index::hash::HashIndex;
use hither_index::{Index, Located, Ref};
use hither_log::PlainPair;
use hither_sync::epoch;

impl Core {
    /// As [`Core::verify`], for who has looked for the usual.
    #[cold]
    #[inline(never)]
    fn verify_closely(&self, candidate: Ref, key: &[u8; 8]) -> (Ref, bool) {
        self.verify(Located { token: (), candidate, verified: false }, key)
    }

    /// Writes a pair (`value` `None` deletes) if nothing about the call, the store and the key's place is unusual.
    #[inline(always)]
    pub fn write_pair(&self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Option<Written> {
        let AnyIndex::Hash(index) = &*keyspace.index else { return None };
        let key = u64::from_ne_bytes(key.try_into().ok()?);
        if self.needs_sync || self.durability != Durability::Sync {
            return None;
        }
        match value {
            Some(value) => self.put_pair(keyspace, index, key, u64::from_ne_bytes(value.try_into().ok()?)),
            None => self.delete_pair(keyspace, index, key),
        }
    }

    #[inline(never)]
    fn put_pair(&self, keyspace: &Keyspace, index: &HashIndex, key: u64, value: u64) -> Option<Written> {
        self.change_pair(keyspace, index, key, Some(value))
    }

    #[inline(never)]
    fn delete_pair(&self, keyspace: &Keyspace, index: &HashIndex, key: u64) -> Option<Written> {
        self.change_pair(keyspace, index, key, None)
    }

    #[inline(always)]
    fn change_pair(&self, keyspace: &Keyspace, index: &HashIndex, key: u64, value: Option<u64>) -> Option<Written> {
        let bytes = key.to_ne_bytes();
        let _section = epoch::pin_writer();
        // First of all: all that follows up to the latch is done while the pair's lines come.
        let key = self.hasher.key(&bytes);
        let sight = index.sight_home(key.hash, &self.resolver())?;
        let stripe = self.latches.of(key.hash);
        stripe.prefetch();
        let mut writer = self.log.own_writer()?;
        if self.log.is_crowded() || self.committer.ensure_writable().is_err() || keyspace.ensure_usable().is_err() {
            return None;
        }
        let latch = stripe.lock();
        // Under the latch, so that a delete of this key by a write at another level has been noted by now.
        if self.committer.reads_check() {
            return None;
        }
        let home = index.lock_home(sight, key.hash)?;
        let candidate = home.candidate;
        if value.is_none() && candidate.is_none() {
            index.release_home(home);
            return None;
        }
        writer.prefetch_mark(candidate.0);
        let version = writer.draw_versions(latch.last_version(), 1);
        let pair = PlainPair {
            op: op_of(value.is_some(), candidate),
            key: u64::from_ne_bytes(bytes),
            value: value.unwrap_or(0),
            version,
            parent: candidate.0,
            parent_generation: writer.generation_tag(candidate.0),
            keyspace: keyspace.info.id,
        };
        let Some(reference) = writer.append_pair(key.hash, &pair) else {
            index.release_home(home);
            return None;
        };
        latch.set_last_version(version);
        if value.is_none() {
            latch.set_last_delete(version);
        }
        // In the shadow of the flush: is the candidate really this key's? A branch, not a choice between two values: what follows from a choice
        // waits for the entry, and with it, soon, all of the next write.
        let plain = candidate.is_none() || self.log.has_plain_key(candidate.0, u64::from_ne_bytes(bytes));
        let (old, expired) = if plain { (candidate, false) } else { self.verify_closely(candidate, &bytes) };
        writer.fence();
        let new = if value.is_some() { Ref(reference) } else { Ref::NONE };
        // The version was drawn before this load: a snapshot that may need `old` is visible by now.
        let retained = self.snapshots.any() && old.is_some() && self.snapshots.retain(self, keyspace, &bytes, old, version).is_some();
        if !index.install_home(home, key.hash, old, new) {
            index.install(index.any_token(), key, old, new, &self.resolver()).expect("the key latch keeps other writers of the key away");
        }
        if old.is_some() && !retained {
            writer.mark_dead(old.0);
        }
        Some(Written::entry(version, old.is_some() && !expired))
    }
}
