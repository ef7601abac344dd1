//! Atomic batches (decision 10): all or nothing after a crash, over any keys, keyspaces and nodes.
//!
//! All keys' latches are taken in stripe order, all entries appended side by side into one chunk (one node, one shard: a batch's lines are contiguous),
//! each line flushed once, one fence, then all installed. Every member carries the batch's size and its position; recovery counts members and drops
//! a batch that is not whole, unless a settled version says that it was.
//!
//! Readers may see some keys of a batch before others; a [`Snapshot`](crate::Snapshot) sees all or none.

use crate::commit::Ticket;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, KeyspaceHandle, with_index};
use crate::options::{Durability, WriteOptions};
use crate::store::{Core, Store};
use crate::write::{Attempt, Condition, PlaceGuard, check_key, check_value, op_of};
use hither_index::{Index, Key, Ref, Resolver};
use hither_log::entry::{BatchTag, MAX_BATCH, Parts};
use hither_log::{Append, Flush};
use hither_sync::epoch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A batch being put together. Operations apply in order: of several on one key, the last counts.
#[derive(Clone, Default)]
pub struct Batch {
    /// Keys and values back to back.
    bytes: Vec<u8>,
    keyspaces: Vec<Arc<Keyspace>>,
    operations: Vec<Operation>,
    preconditions: Vec<(Operation, Option<u64>)>,
    error: Option<(usize, usize)>,
}

#[derive(Clone, Copy)]
struct Operation {
    keyspace: u32,
    key_at: usize,
    key_len: u32,
    value_len: u32,
    delete: bool,
    expiry_ms: u64,
}

impl Batch {
    /// Operations in it.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.preconditions.is_empty()
    }

    /// Adds a put; `expires_at_ms` 0 means never.
    pub fn put(&mut self, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8], expires_at_ms: u64) {
        if expires_at_ms != 0 {
            keyspace.0.has_expiry.store(true, Ordering::Relaxed);
        }
        let operation = self.operation(keyspace, key, value);
        self.operations.push(Operation { expiry_ms: expires_at_ms, ..operation });
    }

    /// Adds a delete.
    pub fn delete(&mut self, keyspace: &KeyspaceHandle, key: &[u8]) {
        let operation = self.operation(keyspace, key, &[]);
        self.operations.push(Operation { delete: true, ..operation });
    }

    /// Makes the batch depend on the key's version being this (`None`: on its absence).
    pub fn require_version(&mut self, keyspace: &KeyspaceHandle, key: &[u8], version: Option<u64>) {
        let operation = self.operation(keyspace, key, &[]);
        self.preconditions.push((operation, version));
    }

    fn operation(&mut self, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8]) -> Operation {
        if check_key(key).is_err() || check_value(value).is_err() {
            // Reported at commit, so that calls can be chained.
            self.error.get_or_insert((key.len(), value.len()));
            return Operation { keyspace: 0, key_at: 0, key_len: 0, value_len: 0, delete: false, expiry_ms: 0 };
        }
        let number = self.keyspaces.iter().rposition(|known| Arc::ptr_eq(known, &keyspace.0)).unwrap_or_else(|| {
            self.keyspaces.push(keyspace.0.clone());
            self.keyspaces.len() - 1
        });
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        Operation { keyspace: number as u32, key_at, key_len: key.len() as u32, value_len: value.len() as u32, delete: false, expiry_ms: 0 }
    }

    fn key(&self, operation: &Operation) -> &[u8] {
        &self.bytes[operation.key_at..operation.key_at + operation.key_len as usize]
    }

    fn value(&self, operation: &Operation) -> Option<&[u8]> {
        let at = operation.key_at + operation.key_len as usize;
        (!operation.delete).then(|| &self.bytes[at..at + operation.value_len as usize])
    }

    fn validate(&self) -> Result<()> {
        if let Some((key_len, value_len)) = self.error {
            return Err(match key_len {
                0 => Error::KeyEmpty,
                bytes if bytes > hither_log::entry::MAX_KEY_BYTES => Error::KeyTooLong { bytes },
                _ => Error::ValueTooLong { bytes: value_len },
            });
        }
        if self.operations.len() > MAX_BATCH {
            return Err(Error::BatchTooLarge { len: self.operations.len() });
        }
        self.keyspaces.iter().try_for_each(|keyspace| keyspace.ensure_usable())
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("operations", &self.operations.len()).field("bytes", &self.bytes.len()).finish()
    }
}

/// A member on its way.
struct Member<'a> {
    keyspace: &'a Keyspace,
    key: Key<'a>,
    value: Option<&'a [u8]>,
    expiry_ms: u64,
    stripe: usize,
    /// The key's entry before the batch, perhaps unverified.
    candidate: Ref,
    verified: bool,
    token: AnyToken,
    reference: Ref,
}

/// The token of either index.
#[derive(Clone, Copy)]
enum AnyToken {
    Ordered(<hither_index::btree::BTreeIndex as Index>::Token),
    Hash(<hither_index::hash::HashIndex as Index>::Token),
    None,
}

impl Store {
    /// Applies `batch` atomically if all its preconditions hold.
    ///
    /// # Errors
    /// [`Error::PreconditionFailed`] and whatever a put may give; nothing was applied then.
    pub fn commit(&self, batch: &Batch, options: &WriteOptions) -> Result<Ticket> {
        batch.validate()?;
        let level = options.durability.unwrap_or(self.core.durability);
        let version =
            self.core.with_room(|| self.core.try_commit(batch, level, options.expires_at_ms.unwrap_or(0))).map_err(|error| *error)?;
        Ok(self.core.ticket(version, level))
    }
}

impl Core {
    fn try_commit(&self, batch: &Batch, level: Durability, default_expiry_ms: u64) -> Attempt<u64> {
        let mut members = self.members(batch, default_expiry_ms);
        let mut stripes: Vec<usize> = members.iter().map(|member| member.stripe).collect();
        stripes.extend(batch.preconditions.iter().map(|(operation, _)| self.latches.stripe_of(self.hasher.hash(batch.key(operation)))));
        for (member, stripe) in members.iter().zip(&stripes) {
            with_index!(member.keyspace, index => index.prefetch_for_write(member.key));
            self.latches.prefetch(*stripe);
        }
        let asked = stripes.len();
        stripes.sort_unstable();
        stripes.dedup();
        if stripes.len() < asked {
            // Only keys of one stripe can be equal.
            drop_overwritten(&mut members);
        }
        let _section = epoch::pin_writer();
        self.committer.ensure_writable()?;
        batch.keyspaces.iter().try_for_each(|keyspace| keyspace.ensure_usable())?;
        // Ascending order: two batches cannot wait for each other.
        let latches: Vec<_> = stripes.iter().map(|&stripe| self.latches.lock(stripe)).collect();
        self.check_preconditions(batch)?;
        for member in &mut members {
            self.locate_member(member);
        }
        members.retain(|member| member.value.is_some() || member.candidate.is_some());
        if members.is_empty() {
            return Ok(0);
        }
        let last = latches.iter().map(|latch| latch.last_version()).max().unwrap_or(0);
        let mut writer = self.log.writer();
        let first = writer.draw_versions(last, members.len() as u64);
        self.append_members(&mut members, first, level, &mut writer)?;
        let newest = first + members.len() as u64 - 1;
        let deletes = members.iter().any(|member| member.value.is_none());
        if level != Durability::Sync && self.durability == Durability::Sync {
            self.committer.note_relaxed_write();
        }
        for latch in &latches {
            latch.set_last_version(newest);
            if deletes {
                latch.set_last_delete(newest);
            }
        }
        if deletes {
            self.note_delete(newest);
        }
        // In the shadow of the flushes: are the candidates really these keys'?
        let resolver = self.resolver();
        for member in &mut members {
            if !member.verified && !resolver.matches(member.candidate, member.key.bytes) {
                member.candidate = Ref::NONE;
            }
        }
        if level == Durability::Sync {
            writer.fence();
        }
        for (i, member) in members.iter().enumerate() {
            self.install_member(member, first + i as u64, &mut writer);
        }
        Ok(newest)
    }

    /// The batch's operations, the last one of each key, with their hashes.
    fn members<'a>(&self, batch: &'a Batch, default_expiry_ms: u64) -> Vec<Member<'a>> {
        let mut members: Vec<Member<'a>> = Vec::with_capacity(batch.operations.len());
        for operation in &batch.operations {
            let key = self.hasher.key(batch.key(operation));
            members.push(Member {
                keyspace: &batch.keyspaces[operation.keyspace as usize],
                key,
                value: batch.value(operation),
                expiry_ms: if operation.delete || operation.expiry_ms != 0 { operation.expiry_ms } else { default_expiry_ms },
                stripe: self.latches.stripe_of(key.hash),
                candidate: Ref::NONE,
                verified: true,
                token: AnyToken::None,
                reference: Ref::NONE,
            });
        }
        members
    }

    fn check_preconditions(&self, batch: &Batch) -> Result<()> {
        for (operation, version) in &batch.preconditions {
            let keyspace = &batch.keyspaces[operation.keyspace as usize];
            let key = self.hasher.key(batch.key(operation));
            let current = with_index!(keyspace, index => index.get(key, &self.resolver()));
            if !self.holds(Condition::Version(*version), current) {
                return Err(Error::PreconditionFailed {
                    keyspace: keyspace.info.name.clone(),
                    key: String::from_utf8_lossy(key.bytes).into_owned(),
                });
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn locate_member(&self, member: &mut Member<'_>) {
        let resolver = self.resolver();
        match &member.keyspace.index {
            crate::keyspace::AnyIndex::Ordered(index) => {
                let located = index.locate(member.key, &resolver);
                (member.candidate, member.verified, member.token) = (located.candidate, located.verified, AnyToken::Ordered(located.token));
            }
            crate::keyspace::AnyIndex::Hash(index) => {
                let located = index.locate(member.key, &resolver);
                (member.candidate, member.verified, member.token) = (located.candidate, located.verified, AnyToken::Hash(located.token));
            }
        }
        if member.candidate.is_some() {
            resolver.prefetch(member.candidate);
        }
    }

    fn append_members(&self, members: &mut [Member<'_>], first: u64, level: Durability, writer: &mut hither_log::Writer<'_>) -> Result<()> {
        let size = members.len() as u32;
        // One shard for all: the shard only says which segment an entry lies in, and one chunk means one stretch of lines to flush.
        let hash = members[0].key.hash;
        let flush = if level == Durability::Sync { Flush::ByCaller } else { Flush::Later };
        let (mut start, mut end) = (0, 0);
        for (index, member) in members.iter_mut().enumerate() {
            let parts = Parts {
                op: op_of(member.value, member.candidate),
                key: member.key.bytes,
                value: member.value.unwrap_or(&[]),
                version: first + index as u64,
                parent: member.candidate.0,
                parent_generation: writer.generation_tag(member.candidate.0),
                keyspace: member.keyspace.info.id,
                expiry_ms: member.expiry_ms,
                batch: (size > 1).then_some(BatchTag { size, index: index as u32 }),
            };
            member.reference = match writer.append(&parts, Append { hash, flush }) {
                Ok(reference) => Ref(reference),
                Err(error) => {
                    self.abandon(&members[..index], writer);
                    return Err(error.into());
                }
            };
            let at = hither_log::address::unpack(member.reference.0).offset;
            let bytes = hither_log::address::tagged_size(member.reference.0).unwrap_or_else(|| self.log.entry(member.reference.0).size);
            if at != end && level == Durability::Sync {
                writer.flush_range(start, end - start);
                start = at;
            }
            end = at + bytes;
        }
        if level == Durability::Sync {
            writer.flush_range(start, end - start);
        }
        Ok(())
    }

    /// Marks the members of a batch that could not be appended whole dead on media: once a later version is settled, recovery would
    /// take them for committed.
    #[cold]
    fn abandon(&self, appended: &[Member<'_>], writer: &mut hither_log::Writer<'_>) {
        for member in appended {
            self.log.mark_dead_on_media(member.reference.0);
            // All lines, not just the mark's: the entry is counted when its segment is sealed, and must be whole then.
            let bytes = hither_log::address::tagged_size(member.reference.0).unwrap_or_else(|| self.log.entry(member.reference.0).size);
            writer.flush_range(hither_log::address::unpack(member.reference.0).offset, bytes);
            if member.value.is_some() {
                writer.mark_dead(member.reference.0);
            }
        }
        writer.fence();
    }

    fn install_member(&self, member: &Member<'_>, version: u64, writer: &mut hither_log::Writer<'_>) {
        let new = if member.value.is_some() { member.reference } else { Ref::NONE };
        let keyspace = member.keyspace;
        match (&keyspace.index, member.token) {
            (crate::keyspace::AnyIndex::Ordered(index), AnyToken::Ordered(token)) => {
                self.replace(keyspace, PlaceGuard { index, token, locked: false }, member.key, member.candidate, new, version, writer);
            }
            (crate::keyspace::AnyIndex::Hash(index), AnyToken::Hash(token)) => {
                self.replace(keyspace, PlaceGuard { index, token, locked: false }, member.key, member.candidate, new, version, writer);
            }
            _ => unreachable!("a member's token comes from its keyspace's index"),
        }
    }
}

/// Keeps only the last operation of each key.
fn drop_overwritten(members: &mut Vec<Member<'_>>) {
    let mut order: Vec<u32> = (0..members.len() as u32).collect();
    let identity = |i: u32| {
        let member = &members[i as usize];
        (member.key.hash, member.keyspace.info.id)
    };
    order.sort_unstable_by_key(|&i| (identity(i), i));
    let same = |a: u32, b: u32| identity(a) == identity(b) && members[a as usize].key.bytes == members[b as usize].key.bytes;
    let mut overwritten: Vec<u32> = Vec::new();
    for (position, &earlier) in order.iter().enumerate() {
        // Equal hashes are neighbours; several keys may share one.
        let mut later = order[position + 1..].iter().take_while(|&&other| identity(other) == identity(earlier));
        if later.any(|&other| same(earlier, other)) {
            overwritten.push(earlier);
        }
    }
    if overwritten.is_empty() {
        return;
    }
    overwritten.sort_unstable();
    let mut number = 0;
    members.retain(|_| {
        number += 1;
        overwritten.binary_search(&(number - 1)).is_err()
    });
}
