//! The lean path of the commonest write: a pair of eight bytes each, or the delete of an eight-byte key, in a hash keyspace, durable at return on
//! persistent memory.
//!
//! It is the path of [`crate::write`] with everything left out that such a write cannot need, and its fields in registers. Why that
//! matters: between two flushes a processor can look only some five hundred instructions ahead, so each instruction less lets more of the next
//! operation's cache misses overlap with this one's flush (`docs/adr/0010`). The general path is the reference; whatever is unusual, and
//! every error, is left to it: [`Core::write_pair`] then returns `None` and has changed nothing.
//!
//! Latch and locks are those of the general path, so thread safety and crash behaviour are too: look up (a hint), writer slot, version, make the
//! entry, latch, home pair, look whether both are as they were seen (if not, make another entry), append, start the flush, verify the candidate in its
//! shadow, fence, install. A version is drawn before the latch, within the writer section; it counts only if it is above the latch's.

use crate::keyspace::{AnyIndex, Keyspace};
use crate::store::Core;
use crate::write::{PlaceGuard, Written, op_of};
use hither_index::hash::{HashIndex, Token};
use hither_index::{Index, Key, Located, Ref};
use hither_log::{PlainPair, Writer};
use hither_sync::epoch;

impl Core {
    /// Writes a pair (`value` `None` deletes) if nothing about the call, the store and the key's place is unusual.
    #[inline(always)]
    pub fn write_pair(&self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Option<Written> {
        let AnyIndex::Hash(index) = &*keyspace.index else { return None };
        let key = u64::from_ne_bytes(key.try_into().ok()?);
        if !self.durable_by_fence {
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
        let section = epoch::pin_writer();
        // First of all: all that follows up to the latch is done while the pair's lines come.
        let hash = self.hasher.hash_word(key);
        let sight = index.sight_home(hash, &self.resolver())?;
        let candidate = sight.seen;
        if value.is_none() && candidate.is_none() {
            return None;
        }
        let stripe = self.latches.of(hash);
        stripe.prefetch();
        let mut writer = self.log.own_writer(&section)?;
        if self.log.is_crowded() || self.committer.ensure_writable().is_err() || keyspace.ensure_usable().is_err() {
            return None;
        }
        // The whole entry is made before the latch, as if what was seen stayed so. If it does not, the version is never used.
        let past = writer.past_of(candidate.0);
        let version = writer.draw_versions(stripe.last_version_hint(), 1);
        let pair = PlainPair {
            op: op_of(value.is_some(), candidate),
            key,
            value: value.unwrap_or(0),
            version,
            parent: candidate.0,
            parent_generation: past.generation,
            keyspace: keyspace.info.id,
        };
        let made = writer.make_pair(hash, &pair)?;
        let latch = stripe.lock();
        // Under the latch, so that a delete of this key by a write at another level has been noted by now.
        if self.committer.reads_check() || latch.last_version() >= version || !index.lock_home(&sight, hash) {
            return None;
        }
        let reference = Ref(writer.append_made(&made, pair.op, version));
        latch.set_last_version(version);
        if value.is_none() {
            latch.set_last_delete(version);
        }
        let new = if value.is_some() { reference } else { Ref::NONE };
        // The version was drawn before this load: a snapshot that may need the old entry is visible by now. The rest is in the shadow of the flush: is the
        // candidate really this key's? Branches, not choices between values: what follows from a choice waits for the entry, and with it, soon, all of
        // the next write.
        if candidate.is_none() {
            writer.fence();
            if !index.insert_home(&sight, hash, new) {
                let key = Key { bytes: &key.to_ne_bytes(), hash };
                index
                    .install(index.any_token(), key, Ref::NONE, new, &self.resolver())
                    .expect("the key latch keeps other inserts of the key away");
            }
            return Some(Written::entry(version, false));
        }
        if self.snapshots.any() || !self.log.has_plain_key(candidate.0, key) {
            let place = (index, index.home_token(&sight));
            let existed = self.finish_closely(keyspace, place, (key, hash), (candidate, new), version, &mut writer);
            return Some(Written::entry(version, existed));
        }
        writer.fence();
        match value {
            Some(_) => index.replace_home(&sight, new),
            None => index.remove_home(&sight),
        }
        if !past.mark_dead() {
            writer.mark_dead(candidate.0);
        }
        drop(latch);
        section.leave();
        Some(Written::entry(version, true))
    }

    /// Ends the write of a pair whose entry was appended, whatever the candidate is and whoever may need it; returns whether the key was there.
    #[inline(never)]
    fn finish_closely(
        &self,
        keyspace: &Keyspace,
        (index, token): (&HashIndex, Token),
        (key, hash): (u64, u64),
        (candidate, new): (Ref, Ref),
        version: u64,
        writer: &mut Writer<'_>,
    ) -> bool {
        let bytes = &key.to_ne_bytes();
        let place = PlaceGuard { index, token, locked: true };
        let (old, expired) = self.verify(Located { token, candidate, verified: false }, bytes);
        writer.fence();
        self.replace(keyspace, place, Key { bytes, hash }, old, new, version, writer);
        old.is_some() && !expired
    }
}
