//! The lean path of the commonest batches: puts of pairs of eight bytes each into one hash keyspace, without expiry or
//! precondition, durable at return on persistent memory.
//!
//! It is the path of [`super::commit`] without everything that such a batch cannot need, and with its places found as
//! [`crate::lean`] finds them. The general path is the reference. Everything unusual, and every error, is left to it:
//! [`Core::commit_pairs`] then returns `None` and has changed nothing that a reader or a recovery could see.
//!
//! Latches and locks are those of the general path; so are thread safety and crash behaviour. It waits for none of
//! them. With places locked it may take room in the log, as the general path does. The order of the steps, each for all
//! members:
//!
//! 1. Look each place up (a hint), and request the entry that is seen there, and its garbage mark.
//! 2. Take the latches.
//! 3. Lock each place, and check that it is as it was seen.
//! 4. Draw the versions, find or make room. From here on nothing can fail.
//! 5. Write the entries side by side, and flush each line once.
//! 6. In the shadow of the flush: verify the entries that were seen, and account for the garbage.
//! 7. Fence, and install.

use super::{Contents, Operation};
use crate::keyspace::{AnyIndex, Keyspace};
use crate::options::Durability;
use crate::store::Core;
use crate::write::{Written, op_of};
use arrayvec::ArrayVec;
use hither_index::hash::{HashIndex, HomeSight, Token};
use hither_index::{Index, Key, Located, Ref, Resolver};
use hither_log::entry::{MEMBER_BYTES, PlainPair};
use hither_log::{MembersRoom, Past, Writer};
use hither_sync::epoch;

/// Most members of a batch on this path.
const MOST: usize = hither_log::MOST_MEMBERS;

/// Bytes of a pair in [`Contents::bytes`].
const PAIR_BYTES: usize = 16;

/// A put of the batch.
struct Member<'a> {
    /// Key and value as they lie in memory.
    key: u64,
    value: u64,
    hash: u64,
    place: Place<'a>,
    /// The new entry.
    reference: Ref,
}

/// Where a member's key is or goes.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// A single slot, or room, seen without a lock, and what is to be known about the entry there.
    Home(HomeSight<'a>, Past<'a>),
    /// A search has to find it, which is left to the locking.
    Unknown,
    /// Found and locked by a search.
    Found(Located<Token>),
}

impl Member<'_> {
    #[inline(always)]
    fn with_key<R>(&self, f: impl FnOnce(Key<'_>) -> R) -> R {
        f(Key { bytes: &self.key.to_ne_bytes(), hash: self.hash })
    }

    /// The entry that the member is about to replace, if its key is really this one.
    #[inline(always)]
    fn seen(&self) -> Ref {
        match self.place {
            Place::Home(sight, _) => sight.seen,
            Place::Found(located) => located.candidate,
            Place::Unknown => Ref::NONE,
        }
    }
}

impl Contents {
    /// Whether the batch may go the lean path.
    #[inline(always)]
    fn is_lean(&self) -> bool {
        // A batch of one has no members on media.
        !self.mixed && !self.expires && (2..=MOST).contains(&self.operations.len()) && self.preconditions.is_empty()
    }
}

impl Core {
    /// Applies a batch of plain pairs, unless something about the call, the store or the places is unusual.
    #[inline(never)]
    pub(super) fn commit_pairs(&self, batch: &Contents, level: Durability, default_expiry_ms: u64) -> Option<Written> {
        if !batch.is_lean() || !self.durable_by_fence || level != Durability::Sync || default_expiry_ms != 0 {
            return None;
        }
        let [keyspace] = &*batch.keyspaces else { return None };
        let AnyIndex::Hash(index) = &*keyspace.index else { return None };
        let section = epoch::pin_writer();
        let mut writer = self.log.own_writer(&section)?;
        if self.log.is_crowded() || self.committer.refuses() || keyspace.is_dropped() {
            return None;
        }
        // Asked again where it counts. Here they save the work, and the versions.
        if self.snapshots.any() || !writer.suits_members(keyspace.info.id, batch.operations[0].hash) {
            return None;
        }
        let written = LeanBatch { core: self, keyspace, index }.apply(batch, &mut writer)?;
        section.leave();
        #[cfg(test)]
        TAKEN.set(TAKEN.get() + 1);
        Some(written)
    }
}

/// A batch in its keyspace, inside a writer section.
struct LeanBatch<'a> {
    core: &'a Core,
    keyspace: &'a Keyspace,
    index: &'a HashIndex,
}

impl<'a> LeanBatch<'a> {
    #[inline(always)]
    fn apply(&self, batch: &Contents, writer: &mut Writer<'a>) -> Option<Written> {
        let core = self.core;
        let operations = &*batch.operations;
        let mut stripes = ArrayVec::<usize, MOST>::new();
        for operation in operations {
            let stripe = core.latches.stripe_of(operation.hash);
            core.latches.prefetch(stripe);
            stripes.push(stripe);
        }
        writer.prefetch_room(operations[0].hash, operations.len() as u64 * MEMBER_BYTES);
        let mut members = ArrayVec::<Member<'_>, MOST>::new();
        for (operation, pair) in operations.iter().zip(batch.bytes.as_chunks::<PAIR_BYTES>().0) {
            members.push(self.look(operation, pair, writer));
        }
        let latches = core.latches.try_lock_set(&stripes)?;
        // Checked under the latches: a write at another level that deleted one of the keys has noted that by now.
        if core.committer.reads_check() {
            return None;
        }
        let locked = self.lock(&mut members)?;
        let first = writer.draw_versions(latches.last_version(), operations.len() as u64);
        let room = self.room(operations, first, writer)?;
        // Nothing fails any more, and `install` ends the locks.
        std::mem::forget(locked);
        self.append(&mut members, &room, first, writer);
        let newest = first + members.len() as u64 - 1;
        latches.set_last_version(newest);
        self.verify(&mut members, writer);
        writer.fence();
        self.install(&members);
        Some(Written::entry(newest, false))
    }

    /// The members' room. None if a snapshot may need an old entry, too: the versions were drawn before this look, so
    /// such a snapshot is visible by now.
    #[inline(always)]
    fn room(&self, operations: &[Operation], first: u64, writer: &mut Writer<'a>) -> Option<MembersRoom> {
        if self.core.snapshots.any() {
            return None;
        }
        writer.room_for_members(self.keyspace.info.id, first, operations.len(), |number| operations[number].hash)
    }

    /// Looks where a key is or goes, and requests what will be needed of the entry that is seen there.
    #[inline(always)]
    fn look(&self, operation: &Operation, pair: &[u8; PAIR_BYTES], writer: &Writer<'a>) -> Member<'a> {
        let ([key, value], hash) = (words_of(pair), operation.hash);
        let resolver = self.core.resolver();
        let near = self.index.near_home(hash);
        self.index.prefetch_beyond(near, hash);
        let place = match self.index.sight_only_home(near, hash) {
            Some(sight) => {
                if sight.seen.is_some() {
                    resolver.prefetch(sight.seen);
                }
                Place::Home(sight, writer.past_of(sight.seen.0))
            }
            None => {
                self.index.prefetch_path(Key { bytes: &pair[..8], hash }, &resolver);
                Place::Unknown
            }
        };
        Member { key, value, hash, place, reference: Ref::NONE }
    }

    /// Locks the places of all members, or none.
    #[inline(always)]
    fn lock<'m>(&'m self, members: &'m mut [Member<'a>]) -> Option<Locked<'m, 'a>> {
        let all = members.len();
        let mut locked = Locked { batch: self, members, count: 0 };
        while locked.count < all {
            let member = &mut locked.members[locked.count];
            let home = match member.place {
                Place::Home(sight, _) => self.index.lock_home_now(&sight, member.hash),
                _ => false,
            };
            if !home && !self.lock_by_search(member) {
                return None;
            }
            locked.count += 1;
        }
        Some(locked)
    }

    /// Locks the place of a key that is not where it was seen, or where another slot has the key's tag, too.
    #[inline(never)]
    fn lock_by_search(&self, member: &mut Member<'a>) -> bool {
        let (located, locked) = member.with_key(|key| self.index.lock_place_now(key, &self.core.resolver()));
        member.place = Place::Found(located);
        locked
    }

    /// Writes all entries and starts the write-back of their lines.
    #[inline(always)]
    fn append(&self, members: &mut [Member<'a>], room: &MembersRoom, first: u64, writer: &mut Writer<'a>) {
        for (member, number) in members.iter_mut().zip(0..) {
            let seen = member.seen();
            let parent_generation = match member.place {
                Place::Home(_, past) => past.generation,
                _ => writer.generation_tag(seen.0),
            };
            let pair = PlainPair {
                op: op_of(true, seen),
                key: member.key,
                value: member.value,
                version: first + u64::from(number),
                parent: seen.0,
                parent_generation,
                keyspace: self.keyspace.info.id,
            };
            member.reference = Ref(writer.write_member(room, number, &pair));
        }
        writer.append_members(room);
    }

    /// Checks which of the entries that were seen have the members' keys, and counts these as garbage: at locked places
    /// they are certain to be replaced.
    #[inline(always)]
    fn verify(&self, members: &mut [Member<'a>], writer: &mut Writer<'a>) {
        for member in members {
            if let Place::Home(sight, past) = member.place
                && sight.seen.is_some()
                && (self.core.log.surely_is_member(sight.seen.0, member.key) || self.core.log.surely_has_word(sight.seen.0, member.key))
            {
                if !past.mark_dead() {
                    writer.mark_dead(sight.seen.0);
                }
            } else if member.seen().is_some() {
                self.verify_closely(member, writer);
            }
        }
    }

    #[inline(never)]
    fn verify_closely(&self, member: &mut Member<'a>, writer: &mut Writer<'a>) {
        let located = match member.place {
            Place::Home(sight, _) => Located { token: self.index.home_token(&sight), candidate: sight.seen, verified: false },
            Place::Found(located) => located,
            Place::Unknown => return,
        };
        let seen = located.candidate;
        let is_old = located.verified || self.core.log.key_matches(seen.0, &member.key.to_ne_bytes());
        if is_old {
            writer.mark_dead(seen.0);
        }
        member.place = Place::Found(Located { candidate: if is_old { seen } else { Ref::NONE }, ..located });
    }

    /// Makes the members visible.
    #[inline(always)]
    fn install(&self, members: &[Member<'a>]) {
        let (mut homeless, mut new) = (0u64, 0u64);
        for (number, member) in members.iter().enumerate() {
            let installed = match member.place {
                Place::Home(sight, _) if sight.seen.is_some() => {
                    self.index.replace_home(&sight, member.reference);
                    true
                }
                Place::Home(sight, _) => {
                    new |= 1 << number;
                    self.index.insert_home(&sight, member.hash, member.reference)
                }
                Place::Found(located) => {
                    new |= u64::from(located.candidate.is_none()) << number;
                    member.with_key(|key| self.index.install_locked_now(located.token, key, located.candidate, member.reference))
                }
                Place::Unknown => false,
            };
            homeless |= u64::from(!installed) << number;
        }
        // Only now, with no place locked.
        if homeless != 0 {
            self.install_unlocked(members, homeless);
        }
        while new != 0 {
            let member = &members[new.trailing_zeros() as usize];
            self.index.look_for_wear(member.hash, member.reference, &self.core.resolver());
            new &= new - 1;
        }
    }

    /// Installs new keys whose places had no room.
    #[inline(never)]
    fn install_unlocked(&self, members: &[Member<'a>], homeless: u64) {
        for (number, member) in members.iter().enumerate().filter(|(number, _)| homeless >> number & 1 != 0) {
            let installed =
                member.with_key(|key| self.index.install(self.index.any_token(), key, Ref::NONE, member.reference, &self.core.resolver()));
            installed.unwrap_or_else(|_| unreachable!("the key latch of member {number} keeps other inserts of the key away"));
        }
    }
}

/// Members of which the first `count` have their places locked. When dropped, gives the places back unchanged.
struct Locked<'m, 'a> {
    batch: &'m LeanBatch<'a>,
    members: &'m mut [Member<'a>],
    count: usize,
}

impl Drop for Locked<'_, '_> {
    #[cold]
    fn drop(&mut self) {
        let index = self.batch.index;
        for member in &self.members[..self.count] {
            match member.place {
                Place::Home(sight, _) => index.unlock_place(index.home_token(&sight)),
                Place::Found(located) => index.unlock_place(located.token),
                Place::Unknown => {}
            }
        }
    }
}

/// Key and value as they lie in memory.
#[inline(always)]
fn words_of(pair: &[u8; PAIR_BYTES]) -> [u64; 2] {
    let (words, _) = pair.as_chunks::<8>();
    [words[0], words[1]].map(u64::from_ne_bytes)
}

#[cfg(test)]
thread_local! {
    /// The number of batches of this thread that went the lean path.
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
#[path = "lean_tests.rs"]
mod tests;
