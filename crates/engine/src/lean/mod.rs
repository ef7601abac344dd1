//! The lean path of the commonest writes: puts and deletes without expiry or condition, in a hash keyspace or a
//! B+-tree, durable at return on persistent memory.
//!
//! It is the path of [`crate::write`] without everything that such a write cannot need, and with its fields in
//! registers. Between two flushes a processor can look only some three to five hundred instructions ahead. So each
//! instruction less lets more of the next operation's cache misses overlap with this one's flush (`docs/adr/0010`).
//!
//! The general path is the reference. Everything unusual, and every error, is left to it: [`Core::write_lean`] then
//! returns `None` and has changed nothing.
//!
//! Latch and locks are those of the general path; so are thread safety and crash behaviour. The order of the steps:
//!
//! 1. Request the place's lines (in a tree: go down to the leaf).
//! 2. Take the writer slot, draw a version, find room.
//! 3. Look the place up (a hint). A delete does this before it draws a version.
//! 4. Make the entry.
//! 5. Take the latch, lock the place (a pair, a leaf), and check that both are as they were seen.
//! 6. Append, start the flush, verify the candidate in its shadow, fence, install.
//!
//! A version is drawn before the latch is taken, within the writer section. It counts only if it is above the latch's
//! last version. If it is not, because others wrote meanwhile, version, room, lookup and entry are made again under the
//! latch. If the place has changed, the general path begins anew.

mod entries;
mod place;

use crate::keyspace::{AnyIndex, Keyspace};
use crate::store::Core;
use crate::write::{PlaceGuard, Written, op_of};
use entries::{Lean, Link, Pair, Strings};
use hither_index::{Key, Located, Ref};
use hither_log::{EntryRoom, Past, Writer};
use hither_sync::epoch;
use hither_sync::latch::LatchGuard;
use place::LeanIndex;

/// Most bytes of key and value together that a write on this path may have.
const LONGEST: usize = 4096;

/// A write whose entry is made and only needs to be appended.
struct Ready<'a, M> {
    /// The entry that it is about to replace, if there is one.
    past: Past<'a>,
    link: Link,
    made: M,
}

impl Core {
    /// Writes a key (`value` `None` deletes), unless something about the call, the store or the key's place is unusual.
    #[inline(always)]
    pub fn write_lean(&self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Option<Written> {
        if !self.durable_by_fence {
            return None;
        }
        match &*keyspace.index {
            AnyIndex::Hash(index) => self.write_lean_in(keyspace, index, key, value),
            // An ordered index must compare a key with its neighbours, and an unverified neighbour may be damaged.
            AnyIndex::Ordered(index) if !self.log.has_unverified() => self.write_lean_in(keyspace, index, key, value),
            _ => None,
        }
    }

    #[inline(always)]
    fn write_lean_in<I: LeanIndex>(&self, keyspace: &Keyspace, index: &I, key: &[u8], value: Option<&[u8]>) -> Option<Written> {
        match (<[u8; 8]>::try_from(key).map(u64::from_ne_bytes), value.map(<[u8; 8]>::try_from)) {
            (Ok(key), Some(Ok(value))) => self.put_pair(keyspace, index, key, u64::from_ne_bytes(value)),
            (Ok(key), None) => self.delete_pair(keyspace, index, key),
            _ => self.write_strings(keyspace, index, key, value),
        }
    }

    #[inline(never)]
    fn put_pair<I: LeanIndex>(&self, keyspace: &Keyspace, index: &I, key: u64, value: u64) -> Option<Written> {
        self.change_lean(keyspace, index, Pair { key, value: Some(value) })
    }

    #[inline(never)]
    fn delete_pair<I: LeanIndex>(&self, keyspace: &Keyspace, index: &I, key: u64) -> Option<Written> {
        self.change_lean(keyspace, index, Pair { key, value: None })
    }

    #[inline(never)]
    fn write_strings<I: LeanIndex>(&self, keyspace: &Keyspace, index: &I, key: &[u8], value: Option<&[u8]>) -> Option<Written> {
        let bytes = key.len() + value.map_or(0, <[u8]>::len);
        // Longer ones take so long that this path gains nothing.
        if key.is_empty() || bytes > LONGEST || I::ORDERED && self.shortcuts.may_have(bytes) {
            return None;
        }
        self.change_lean(keyspace, index, Strings { key, value })
    }

    #[inline(always)]
    fn change_lean<I: LeanIndex, L: Lean>(&self, keyspace: &Keyspace, index: &I, what: L) -> Option<Written> {
        let section = epoch::pin_writer();
        let hash = what.hash(self);
        let near = index.near((what, hash));
        let stripe = self.latches.of(hash);
        stripe.prefetch();
        // Whatever does not depend on the place comes before the first look at it. The place's lines arrive meanwhile,
        // and fewer instructions lie between that look and the next write's request for its lines.
        let mut writer = self.log.own_writer(&section)?;
        if self.log.is_crowded() || self.committer.refuses() || keyspace.is_dropped() {
            return None;
        }
        let last = stripe.last_version_hint();
        let (version, room, sight);
        if what.puts() {
            version = writer.draw_versions(last, 1);
            room = writer.room_for(hash, version, what.size())?;
            sight = self.sight_lean(index, near, what, hash)?;
        } else {
            // A delete of an absent key writes nothing, and uses no version.
            sight = self.sight_lean(index, near, what, hash)?;
            version = writer.draw_versions(last, 1);
            room = writer.room_for(hash, version, what.size())?;
        }
        // The whole entry is made before the latch, as if nothing changed after the look. If something does, the
        // version is never used.
        let Ready { past, link, made } = self.make_ready(keyspace, what, I::seen(&sight), (version, room), &writer)?;
        let latch = stripe.lock();
        // Checked under the latch: a write at another level that deleted this key has noted that by now.
        if self.committer.reads_check() {
            return None;
        }
        if latch.last_version() >= link.version {
            return self.change_after_others(keyspace, index, what, hash, &mut writer.lent(), latch);
        }
        let written = self.commit_lean(keyspace, index, what, (hash, sight), &mut writer, &latch, (link, made, past))?;
        drop(latch);
        section.leave();
        Some(written)
    }

    /// Looks at the place. Returns `None` if a write there is unusual, or there is nothing to delete.
    #[inline(always)]
    fn sight_lean<'a, I: LeanIndex, L: Lean>(&self, index: &'a I, near: I::Near<'a>, what: L, hash: u64) -> Option<I::Sight<'a>> {
        index.sight(near, (what, hash), &self.resolver()).filter(|sight| what.puts() || I::seen(sight).is_some())
    }

    /// Makes the entry that follows `candidate`, of a version that is used up even if the write is given up. Returns
    /// `None` if it needs an extension. Changes nothing.
    #[inline(always)]
    fn make_ready<'w, L: Lean>(
        &self,
        keyspace: &Keyspace,
        what: L,
        candidate: Ref,
        (version, room): (u64, EntryRoom<'_>),
        writer: &Writer<'w>,
    ) -> Option<Ready<'w, L::Made>> {
        let past = writer.past_of(candidate.0);
        let op = op_of(what.puts(), candidate);
        let link = Link { op, version, parent: candidate, parent_generation: past.generation, keyspace: keyspace.info.id };
        let made = what.make(&room, &link)?;
        Some(Ready { past, link, made })
    }

    /// Makes a write again from the draw of its version on, under the latch: others wrote while it waited for the
    /// latch.
    #[cold]
    #[inline(never)]
    fn change_after_others<I: LeanIndex, L: Lean>(
        &self,
        keyspace: &Keyspace,
        index: &I,
        what: L,
        hash: u64,
        writer: &mut Writer<'_>,
        latch: LatchGuard<'_>,
    ) -> Option<Written> {
        let version = writer.draw_versions(latch.last_version(), 1);
        let room = writer.room_for(hash, version, what.size())?;
        let sight = self.sight_lean(index, index.near((what, hash)), what, hash)?;
        let Ready { past, link, made } = self.make_ready(keyspace, what, I::seen(&sight), (version, room), writer)?;
        self.commit_lean(keyspace, index, what, (hash, sight), writer, &latch, (link, made, past))
    }

    /// Appends the entry and installs it if the place is as it was seen. Otherwise returns `None` and changes nothing.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn commit_lean<I: LeanIndex, L: Lean>(
        &self,
        keyspace: &Keyspace,
        index: &I,
        what: L,
        (hash, sight): (u64, I::Sight<'_>),
        writer: &mut Writer<'_>,
        latch: &LatchGuard<'_>,
        (link, made, past): (Link, L::Made, Past<'_>),
    ) -> Option<Written> {
        let (candidate, version) = (I::seen(&sight), link.version);
        if !index.lock_seen(&sight, hash) {
            return None;
        }
        let reference = what.append(writer, &made, &link);
        latch.set_last_version(version);
        if !what.puts() {
            latch.set_last_delete(version);
        }
        let new = if what.puts() { reference } else { Ref::NONE };
        if candidate.is_none() {
            writer.fence();
            self.insert_lean(index, what, hash, sight, new);
            return Some(Written::entry(version, false));
        }
        // The version was drawn before this load, so a snapshot that may need the old entry is visible by now. The rest
        // is in the shadow of the flush: does the candidate really have this key? The answer leads to branches, not to
        // a choice between values: what follows from a choice waits for the entry, and soon all of the next write would
        // wait with it.
        if self.snapshots.any() || !what.is_of(self, candidate) {
            let place = (index, index.token_of(&sight));
            let mut writer = writer.lent();
            let existed =
                what.with_key(move |key| self.finish_closely(keyspace, place, (key, hash), (candidate, new), version, &mut writer));
            return Some(Written::entry(version, existed));
        }
        writer.fence();
        index.replace_seen(&sight, (what, hash), new, &self.resolver());
        if !past.mark_dead() {
            writer.mark_dead(candidate.0);
        }
        Some(Written::entry(version, true))
    }

    /// Installs a key that was absent.
    #[inline(never)]
    fn insert_lean<I: LeanIndex, L: Lean>(&self, index: &I, what: L, hash: u64, sight: I::Sight<'_>, new: Ref) {
        what.with_key(|bytes| {
            let (key, resolver) = (Key { bytes, hash }, self.resolver());
            if !index.insert_seen(&sight, key, new, &resolver) {
                let installed = index.install(index.any_token(), key, Ref::NONE, new, &resolver);
                installed.expect("the key latch keeps other inserts of the key away");
            }
        });
    }

    /// Completes a write whose entry is appended, whatever key the candidate has and whatever snapshot may need it.
    /// Returns whether the key was there.
    #[inline(never)]
    fn finish_closely<I: LeanIndex>(
        &self,
        keyspace: &Keyspace,
        (index, token): (&I, I::Token),
        (bytes, hash): (&[u8], u64),
        (candidate, new): (Ref, Ref),
        version: u64,
        writer: &mut Writer<'_>,
    ) -> bool {
        let place = PlaceGuard { index, token, locked: true };
        let (old, expired) = self.verify(Located { token, candidate, verified: I::ORDERED }, bytes);
        writer.fence();
        self.replace(keyspace, place, Key { bytes, hash }, old, new, version, writer);
        old.is_some() && !expired
    }
}
