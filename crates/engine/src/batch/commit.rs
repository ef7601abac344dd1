//! Committing a batch, in rounds over all members, so that their cache misses overlap.
//!
//! 1. Prefetch bucket pairs (when an operation is added), latches and then, from the pairs, the old entries and the
//!    pairs behind.
//! 2. Take the latches: first in the order of the operations, without waiting. Only if one is held, or two keys share
//!    one, take them in sorted order.
//! 3. Locate each key, and lock its place if that takes no waiting. (Why before the flush: `docs/adr/0010`.)
//! 4. Append all entries and flush each line once.
//! 5. In the shadow of the flush: verify the candidates and account for the garbage.
//! 6. Fence. Install by plain stores at the locked places, then at the places that could not be locked. Members in
//!    ordered keyspaces, which lock no places, become visible in the order of the operations: users of batches are
//!    promised that.
//!
//! # Deadlocks
//!
//! A batch waits for latches in ascending order and with nothing else held, then for the writer slot, then for nothing
//! that others hold for long. With a place locked it waits for no latch, slot or place, only for a snapshot that is
//! just being taken. It may meet a split that waits for its places, so it gives them all back before it installs
//! elsewhere.

use super::Contents;
use super::member::{AnyToken, Member, Scratch, drop_overwritten, with_token};
use crate::error::{Error, Result};
use crate::keyspace::{AnyIndex, Kind, with_index};
use crate::options::Durability;
use crate::store::Core;
use crate::write::{Attempt, Condition, PlaceGuard, Written};
use hither_index::{Index, Key, Ref};
use hither_log::Writer;
use hither_log::entry::{BatchTag, MEMBER_BYTES, MOST_SPARE, Parts};
use hither_sync::epoch;
use hither_sync::latch::LatchSet;
use std::cell::OnceCell;

/// Bytes by which an entry is longer that names its keyspace, because its segment is of another one.
const NAME_BYTES: u64 = 8;

/// Most places that a batch holds: the bits of a word. Larger batches lock no places, in order not to hold up others
/// for so long.
const MAX_PLACES: usize = 64;

/// Least bytes of a member besides key and value: those of the member of a batch of one.
const LEAST_HEAD_BYTES: u64 = 16;

impl Core {
    /// Applies `batch`. Returns the outcome in one word, as everything that is returned after a fence. If the batch was
    /// not applied, sets `unmet` to the number of a precondition that does not hold.
    #[inline(never)]
    pub(super) fn commit_members(
        &self,
        batch: &Contents,
        level: Durability,
        default_expiry_ms: u64,
        unmet: &mut usize,
    ) -> Attempt<Written> {
        if let Some(written) = self.commit_pairs(batch, level, default_expiry_ms) {
            self.pay_if_owed();
            return Ok(written);
        }
        self.with_room(|| {
            let mut scratch = Scratch::take();
            let outcome = self.try_commit(batch, level, default_expiry_ms, &mut scratch, unmet);
            scratch.give_back();
            outcome
        })
    }

    #[inline(always)]
    fn try_commit(
        &self,
        batch: &Contents,
        level: Durability,
        default_expiry_ms: u64,
        scratch: &mut Scratch,
        unmet: &mut usize,
    ) -> Attempt<Written> {
        let _section = epoch::pin_writer();
        let writes = !batch.operations.is_empty();
        if writes {
            self.committer.ensure_writable()?;
        }
        batch.keyspaces.iter().try_for_each(|keyspace| keyspace.ensure_usable())?;
        scratch.gather(batch);
        let Scratch { members, stripes, sorted } = scratch;
        let latches = self.lock_all(batch, members, stripes, sorted);
        let Examined { unmet: unmet_one, newest: seen, soonest } = self.examine_preconditions(batch)?;
        if let Some(number) = unmet_one {
            *unmet = number;
            return Ok(Written::nothing(latches.last_version(), false, false));
        }
        if !writes {
            return Ok(Written::nothing(seen, true, false));
        }
        if self.log.has_unverified() {
            self.ensure_members_writable(batch, members)?;
        }
        // Before any place is locked: see "Deadlocks" in the module's head.
        let mut guard = self.log.writer();
        let mut writer = guard.lent();
        let mut commit = Commit { core: self, batch, members, held: 0, deletes: false };
        commit.locate(&mut writer);
        if commit.members.is_empty() {
            return Ok(Written::nothing(latches.last_version(), true, false));
        }
        if self.is_bounded() && commit.grows() {
            return self.refuse_growth();
        }
        if batch.bytes.len() as u64 > self.log.pool(0).segment_bytes() {
            commit.ensure_may_fit()?;
        }
        let first = writer.draw_versions(latches.last_version(), commit.members.len() as u64);
        // Checked again with the versions drawn: see the head of `crate::snapshot`.
        if let Some((expiry_ms, number)) = soonest
            && self.is_expired(expiry_ms)
        {
            *unmet = number;
            return Ok(Written::nothing(latches.last_version(), false, false));
        }
        commit.append(first, level, default_expiry_ms, &mut writer)?;
        let newest = first + commit.members.len() as u64 - 1;
        if level != Durability::Sync && self.durability == Durability::Sync {
            self.committer.note_relaxed_write(&self.log);
        }
        latches.set_last_version(newest);
        if commit.deletes {
            commit.announce_deletes(&latches, newest);
        }
        commit.verify(first, &mut writer);
        if level == Durability::Sync {
            writer.fence();
        }
        commit.install(first, &mut writer);
        if default_expiry_ms != 0 || batch.expires {
            batch.keyspaces.iter().for_each(|keyspace| keyspace.expiries.note());
        }
        Ok(Written::entry(newest, false))
    }

    /// Takes the latches of all keys, including those of preconditions. Removes members whose key a later operation
    /// writes.
    #[inline(always)]
    fn lock_all<'a>(
        &'a self,
        batch: &Contents,
        members: &mut Vec<Member>,
        stripes: &'a mut Vec<usize>,
        sorted: &'a mut Vec<usize>,
    ) -> LatchSet<'a> {
        stripes.clear();
        for member in &*members {
            let stripe = self.latches.stripe_of(member.operation.hash);
            self.latches.prefetch(stripe);
            stripes.push(stripe);
        }
        // Before the first latch, so that the entries' misses overlap with the latches'.
        for member in &*members {
            with_index!(batch.keyspace(&member.operation), index => index.prefetch_path(member.key(batch), &self.resolver()));
        }
        if batch.preconditions.is_empty()
            && let Some(set) = self.latches.try_lock_set(stripes)
        {
            // All stripes differ, so all keys differ.
            return set;
        }
        sorted.clone_from(stripes);
        self.lock_sorted(batch, members, sorted)
    }

    #[inline(never)]
    fn lock_sorted<'a>(&'a self, batch: &Contents, members: &mut Vec<Member>, stripes: &'a mut Vec<usize>) -> LatchSet<'a> {
        stripes.extend(batch.preconditions.iter().map(|(operation, _)| self.latches.stripe_of(operation.hash)));
        let asked = stripes.len();
        stripes.sort_unstable();
        stripes.dedup();
        if stripes.len() < asked {
            // Equal keys have the same stripe, so without a shared stripe there are none.
            drop_overwritten(batch, members);
        }
        self.latches.lock_set(stripes)
    }

    /// Refuses members of ordered keyspaces whose places have damaged entries.
    #[cold]
    fn ensure_members_writable(&self, batch: &Contents, members: &[Member]) -> Result<()> {
        for member in members {
            let keyspace = batch.keyspace(&member.operation);
            if keyspace.info.kind == Kind::Ordered {
                self.look_whether_placeable(keyspace, member.key(batch))?;
            }
        }
        Ok(())
    }

    /// Checks the preconditions in order, up to the first that does not hold.
    #[inline(always)]
    fn examine_preconditions(&self, batch: &Contents) -> Result<Examined> {
        let mut examined = Examined::default();
        // One time for all conditions, read when all latches are held: of two keys that expire at the same time, both
        // are present or neither. Read only if needed: most batches ask about nothing that expires.
        let now_ms = OnceCell::new();
        let is_expired = |expiry_ms| expiry_ms != 0 && self.was_expired(expiry_ms, *now_ms.get_or_init(|| self.now_ms()));
        for (number, (operation, version)) in batch.preconditions.iter().enumerate() {
            let keyspace = batch.keyspace(operation);
            let key = Key { bytes: batch.key(operation), hash: operation.hash };
            self.ensure_readable(keyspace, key)?;
            let current = with_index!(keyspace, index => index.get(key, &self.resolver()));
            if !self.holds(Condition::Version(*version), current, is_expired) {
                examined.unmet = Some(number);
                return Ok(examined);
            }
            let seen = match current {
                Ref::NONE => self.latches.last_delete(self.latches.stripe_of(key.hash)),
                current => self.log.version_of(current.0, &self.log.entry(current.0)),
            };
            examined.newest = examined.newest.max(seen);
            let expiry_ms = if version.is_some() { self.log.expiry_of(current.0) } else { 0 };
            if expiry_ms != 0 && examined.soonest.is_none_or(|(soonest, _)| expiry_ms < soonest) {
                examined.soonest = Some((expiry_ms, number));
            }
        }
        Ok(examined)
    }
}

/// What a batch's preconditions found.
#[derive(Default)]
struct Examined {
    /// Number of the first precondition that does not hold.
    unmet: Option<usize>,
    /// The newest version that they saw: that of an entry, even an expired one, or else of a delete.
    newest: u64,
    /// The earliest expiry among the entries that were found alive, and the number of its precondition.
    soonest: Option<(u64, usize)>,
}

/// A commit under its latches. When dropped, it gives back the places that are still locked.
pub(super) struct Commit<'a> {
    pub core: &'a Core,
    pub batch: &'a Contents,
    pub members: &'a mut Vec<Member>,
    /// Members whose places are locked, one bit each.
    held: u64,
    /// Some member is a delete.
    deletes: bool,
}

impl Commit<'_> {
    /// Finds each key's entry, locks places, and drops deletes of keys that are surely and durably absent.
    #[inline(always)]
    fn locate(&mut self, writer: &mut Writer<'_>) {
        let Some(first) = self.members.first() else { return };
        writer.prefetch_room(first.operation.hash, self.members.len() as u64 * MEMBER_BYTES);
        let lock = self.members.len() <= MAX_PLACES;
        let mut kept = 0;
        for number in 0..self.members.len() {
            let locked = Self::locate_member(self.core, self.batch, &mut self.members[number], lock);
            let member = &self.members[number];
            writer.prefetch_mark(member.candidate.0);
            if member.operation.delete {
                if member.candidate.is_none() && self.is_durably_gone(member) {
                    if locked {
                        self.unlock(member);
                    }
                    continue;
                }
                self.deletes = true;
            }
            if kept < number {
                self.members[kept] = *member;
            }
            self.held |= u64::from(locked) << (kept % MAX_PLACES);
            kept += 1;
        }
        self.members.truncate(kept);
    }

    /// Whether the key of a member that was found absent has no delete that could still be lost. With such a delete,
    /// the key might be back after a power loss that the other members survive.
    #[inline(always)]
    fn is_durably_gone(&self, member: &Member) -> bool {
        let operation = &member.operation;
        self.core.committer.recent_deletes.get((self.batch.keyspace(operation).info.id, operation.hash)).is_none()
    }

    /// Fails if the batch would not fit into an empty store, before anything of it is appended.
    #[cold]
    fn ensure_may_fit(&self) -> Result<()> {
        let (bytes, limit) = (self.least_bytes(), self.core.log.most_bytes_of_a_batch(self.deletes));
        if bytes > limit { Err(Error::TooLarge { bytes, limit }) } else { Ok(()) }
    }

    /// Least bytes that each member takes. An entry that may be longer than a segment has a run of segments to itself,
    /// as many as it may take.
    fn least_sizes(&self) -> impl Iterator<Item = u64> {
        let segment = self.core.log.pool(0).segment_bytes();
        self.members.iter().map(move |member| {
            let operation = &member.operation;
            let pair = operation.key_len as usize + self.batch.value(operation).map_or(0, <[u8]>::len);
            let bytes = LEAST_HEAD_BYTES + pair.next_multiple_of(8) as u64;
            let most = bytes + MOST_SPARE;
            if most > segment { most.next_multiple_of(segment) } else { bytes }
        })
    }

    /// Least bytes that the batch takes, in whatever order its members lie. Of members longer than half a segment no two
    /// share a segment.
    fn least_bytes(&self) -> u64 {
        let segment = self.core.log.pool(0).segment_bytes();
        let (mut all, mut apart) = (0, 0);
        for bytes in self.least_sizes() {
            all += bytes;
            apart += if bytes > segment / 2 { bytes.next_multiple_of(segment) } else { 0 };
        }
        all.max(apart)
    }

    /// Bytes of the segments that the batch takes if each member lies behind the one before it, or begins a segment.
    #[cold]
    pub(super) fn bytes_with_gaps(&self) -> u64 {
        let segment = self.core.log.pool(0).segment_bytes();
        let (mut taken, mut left) = (0, 0);
        for bytes in self.least_sizes() {
            if bytes > segment {
                taken += bytes;
            } else if bytes <= left {
                left -= bytes;
            } else {
                taken += segment;
                left = segment - bytes;
            }
        }
        taken
    }

    /// Whether the batch deletes something, and gives back at least the bytes that its entries take. In a full store it
    /// then proceeds as a delete does. Its tombstones do not count: they can be collected.
    ///
    /// What entries take is an upper bound, but for versions that are written out and for gaps beside long entries. It is
    /// above what a batch takes that replaces entries by others as long, so that such a batch frees nothing. By an
    /// estimate, a batch of a delete and many overwrites might take more than it gives back; a few of those would use up
    /// what is kept for deletes, and nothing could be deleted any more.
    #[inline(always)]
    pub(super) fn frees(&self, default_expiry_ms: u64) -> bool {
        self.deletes && self.gives_back(default_expiry_ms)
    }

    #[cold]
    fn gives_back(&self, default_expiry_ms: u64) -> bool {
        let (core, batch, segment) = (self.core, self.batch, self.core.log.pool(0).segment_bytes());
        // What may be longer than a segment has a run of segments to itself.
        let whole = |most: u64, bytes: u64| if most > segment { most.next_multiple_of(segment) } else { bytes };
        let (mut taken, mut given) = (0, 0);
        for member in &*self.members {
            let (operation, key) = (&member.operation, member.key(batch).bytes);
            if let Some(value) = batch.value(operation) {
                let parts = Parts {
                    key,
                    value,
                    expiry_ms: if operation.expiry_ms != 0 { operation.expiry_ms } else { default_expiry_ms },
                    batch: Some(BatchTag { size: 2, index: 0 }),
                    shortcut: u64::from(core.shortcuts.may_have(key.len() + value.len())),
                    ..Parts::EMPTY
                };
                taken += whole(parts.max_size(), parts.size(parts.keyspace, parts.version) + NAME_BYTES);
            }
            if member.candidate.is_some() && (member.verified || core.log.key_matches(member.candidate.0, key)) {
                let bytes = core.log.size_of(member.candidate.0);
                given += whole(bytes, bytes);
            }
        }
        taken <= given
    }

    /// Whether the batch takes more live bytes than it gives back, by the estimate that the bound of live bytes uses.
    #[cold]
    fn grows(&self) -> bool {
        let (mut taken, mut given) = (0, 0);
        for member in &*self.members {
            let key = member.key(self.batch).bytes;
            taken += self.batch.value(&member.operation).map_or(0, |value| Core::live_size(key, value));
            given += self.core.live_size_of(member.candidate, member.verified, key);
        }
        taken > given
    }

    #[inline(always)]
    fn locate_member(core: &Core, batch: &Contents, member: &mut Member, lock: bool) -> bool {
        let resolver = core.resolver();
        let key = member.key(batch);
        match &*batch.keyspace(&member.operation).index {
            AnyIndex::Ordered(index) => member.note(index.locate(key, &resolver), AnyToken::Ordered),
            AnyIndex::Learned(index) => member.note(index.locate(key, &resolver), AnyToken::Learned),
            AnyIndex::Hash(index) => {
                let (located, locked) = if lock { index.lock_place_now(key, &resolver) } else { (index.locate(key, &resolver), false) };
                member.note(located, AnyToken::Hash);
                return locked;
            }
        }
        false
    }

    /// Notes the batch's newest version as that of a delete, for the stripes and the keyspaces in which it deletes.
    #[cold]
    fn announce_deletes(&self, latches: &LatchSet<'_>, newest: u64) {
        for operation in self.members.iter().map(|member| &member.operation).filter(|operation| operation.delete) {
            latches.set_last_delete(self.core.latches.stripe_of(operation.hash), newest);
            self.core.note_delete(self.batch.keyspace(operation), newest);
        }
    }

    /// Verifies that the candidates have the members' keys. Entries at locked places are certain to be replaced, so
    /// they are counted as garbage here, or kept for snapshots: every store made before the fence is one less that
    /// waits for it.
    #[inline(always)]
    fn verify(&mut self, first: u64, writer: &mut Writer<'_>) {
        let core = self.core;
        // The versions were drawn before this load, so a snapshot that may need an old entry is visible by now.
        let snapshots = core.snapshots.any();
        for number in 0..self.members.len() {
            let member = &self.members[number];
            let (old, key) = (member.candidate, member.key(self.batch));
            if old.is_none() {
                continue;
            }
            if !member.verified && !core.log.key_matches(old.0, key.bytes) {
                self.members[number].candidate = Ref::NONE;
            } else if number < MAX_PLACES && self.held >> number & 1 != 0 {
                let keyspace = self.batch.keyspace(&member.operation);
                if !(snapshots && core.snapshots.retain(core, keyspace, key.bytes, old, first + number as u64).is_some()) {
                    writer.mark_dead(old.0);
                }
            }
        }
    }

    /// Makes the members visible.
    #[inline(always)]
    fn install(&mut self, first: u64, writer: &mut Writer<'_>) {
        let all = if self.members.len() < MAX_PLACES { (1 << self.members.len()) - 1 } else { u64::MAX };
        let mut rest = all & !self.held;
        while self.held != 0 {
            let number = self.held.trailing_zeros() as usize;
            self.held &= self.held - 1;
            let member = &self.members[number];
            let (AnyIndex::Hash(index), AnyToken::Hash(token)) = (&*self.batch.keyspace(&member.operation).index, member.token) else {
                unreachable!("only the hash index locks places for batches")
            };
            if !index.install_locked_now(token, member.key(self.batch), member.candidate, self.new_reference(member)) {
                rest |= 1 << number;
            }
        }
        // If there are more members than bits, no place is locked (`locate`), so some bit is set in that case.
        if rest != 0 {
            self.install_unlocked(rest, first, writer);
        }
        // Only now, with no place locked.
        for member in self.members.iter().filter(|member| member.candidate.is_none()) {
            if let AnyIndex::Hash(index) = &*self.batch.keyspace(&member.operation).index {
                index.look_for_wear(member.operation.hash, member.reference, &self.core.resolver());
            }
        }
    }

    /// Installs the members of `rest`, and those beyond its bits. No place is locked any more.
    #[inline(never)]
    fn install_unlocked(&self, rest: u64, first: u64, writer: &mut Writer<'_>) {
        for (number, member) in self.members.iter().enumerate() {
            if number < MAX_PLACES && rest >> number & 1 == 0 {
                continue;
            }
            let (new, version) = (self.new_reference(member), first + number as u64);
            let keyspace = self.batch.keyspace(&member.operation);
            let key = member.key(self.batch);
            with_token!(keyspace, member.token, index, token => {
                let place = PlaceGuard { index, token, locked: false };
                self.core.replace(keyspace, place, key, member.candidate, new, version, writer);
            });
        }
    }

    /// The reference that the index is to hold for the member.
    #[inline(always)]
    fn new_reference(&self, member: &Member) -> Ref {
        if member.operation.delete { Ref::NONE } else { member.reference }
    }

    /// Gives a locked place back unchanged.
    #[cold]
    fn unlock(&self, member: &Member) {
        if let (AnyIndex::Hash(index), AnyToken::Hash(token)) = (&*self.batch.keyspace(&member.operation).index, member.token) {
            index.unlock_place(token);
        }
    }
}

impl Drop for Commit<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        while self.held != 0 {
            let number = self.held.trailing_zeros() as usize;
            self.held &= self.held - 1;
            self.unlock(&self.members[number]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::batch::Batch;
    use crate::{Kind, Options, Store};

    /// Regression: all keys of a batch with one delete counted as deleted, and reads of absent keys near them waited
    /// for the disk.
    #[test]
    fn only_what_a_batch_deletes_counts_as_deleted() {
        let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let stripe = |key: &[u8]| store.core.latches.stripe_of(store.core.hasher.hash(key));
        let last_delete = |key: &[u8]| store.core.latches.last_delete(stripe(key));
        // Keys of different stripes, of which there are many.
        let mut others = (0u64..).map(u64::to_be_bytes).filter(|key| stripe(key) != stripe(b"deleted"));
        let (put, asked_about) = (others.next().expect("endless"), others.next().expect("endless"));
        store.write_wait(&keyspace, b"deleted", Some(b"value")).unwrap();
        let before = [put, asked_about].map(|key| last_delete(&key));
        let mut batch = Batch::default();
        batch.require_version(&keyspace, &asked_about, None);
        batch.put(&keyspace, &put, b"value", 0);
        batch.delete(&keyspace, b"deleted");
        store.commit_wait(&batch).unwrap();
        assert!(last_delete(b"deleted") > 0);
        assert_eq!([put, asked_about].map(|key| last_delete(&key)), before);
    }
}
