//! The members of a batch in the log: they are appended side by side, each line is flushed once. If not all of them can
//! be appended, those that were are taken back.
//!
//! Thread safety: runs in a writer section under the batch's latches. Crash: members of a batch that is not whole do
//! not count; an abandoned batch has its members marked dead durably.

use super::Contents;
use super::commit::Commit;
use super::member::{AnyToken, Member, with_token};
use crate::error::Result;
use crate::keyspace::AnyIndex;
use crate::options::Durability;
use crate::store::Core;
use crate::write::{op_of, room};
use hither_index::Ref;
use hither_log::entry::{BatchTag, Parts};
use hither_log::{Append, Flush, Writer, address};

/// Members being appended. If it is dropped before all are appended, for lack of space or in a panic, none of them
/// counts.
struct Appending<'c, 'a, 'w> {
    commit: &'c mut Commit<'a>,
    writer: &'c mut Writer<'w>,
    appended: usize,
    whole: bool,
}

impl Drop for Appending<'_, '_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.whole {
            self.commit.abandon(self.appended, self.writer);
        }
    }
}

impl Commit<'_> {
    /// Appends all entries side by side and starts the write-back of each line once.
    #[inline(always)]
    pub(super) fn append(&mut self, first: u64, level: Durability, default_expiry_ms: u64, writer: &mut Writer<'_>) -> Result<()> {
        let size = self.members.len() as u32;
        // One shard for all: the shard only decides in which segment an entry lies, and one chunk means one range of
        // lines to flush.
        let hash = self.members[0].operation.hash;
        let flush = if level == Durability::Sync { Flush::ByCaller } else { Flush::Later };
        let (core, batch, frees) = (self.core, self.batch, self.frees(default_expiry_ms));
        let mut appending = Appending { commit: self, writer, appended: 0, whole: false };
        let (mut start, mut end) = (0, 0);
        for index in 0..size as usize {
            let member = &appending.commit.members[index];
            let operation = &member.operation;
            let value = batch.value(operation);
            let name = (batch.keyspace(operation).info.id, operation.hash);
            let deleted = core.committer.recent_deletes.get(name);
            let parent = deleted.unwrap_or(member.candidate).0;
            let parts = Parts {
                op: op_of(value.is_some(), member.candidate),
                key: batch.key(operation),
                value: value.unwrap_or(&[]),
                version: first + index as u64,
                parent,
                parent_generation: appending.writer.generation_tag(parent),
                keyspace: name.0,
                expiry_ms: if operation.delete || operation.expiry_ms != 0 { operation.expiry_ms } else { default_expiry_ms },
                batch: (size > 1).then_some(BatchTag { size, index: index as u32 }),
                shortcut: value.map_or(0, |value| Self::shortcut_to(core, batch, member, operation.key_len as usize + value.len())),
                frees,
            };
            let reference = appending.writer.append(&parts, Append { hash, flush })?;
            appending.commit.members[index].reference = Ref(reference);
            appending.appended = index + 1;
            let (at, bytes) = appending.commit.extent(reference);
            if at != end && level == Durability::Sync {
                appending.writer.flush_range(start, end - start);
                start = at;
            }
            end = at + bytes;
        }
        if level == Durability::Sync {
            appending.writer.flush_range(start, end - start);
        }
        appending.whole = true;
        let lags = core.may_be_lost(flush);
        if lags || core.committer.recent_deletes.any() {
            appending.commit.note_deletes(first, lags);
        }
        Ok(())
    }

    /// Notes deletes that are not durable yet (`lags`), and removes notes of keys that have been written since. Only
    /// after all members are appended: an abandoned entry must not become a parent, nor remove a note.
    #[cold]
    fn note_deletes(&self, first: u64, lags: bool) {
        let deletes = &self.core.committer.recent_deletes;
        for (member, version) in self.members.iter().zip(first..) {
            let operation = &member.operation;
            let name = (self.batch.keyspace(operation).info.id, operation.hash);
            if operation.delete && lags { deletes.note(name, member.reference, version) } else { deletes.remove(name) }
        }
    }

    /// The shortcut of a member whose key and value have `bytes` bytes together.
    #[inline(always)]
    fn shortcut_to(core: &Core, batch: &Contents, member: &Member, bytes: usize) -> u64 {
        if !core.shortcuts.may_have(bytes) {
            return 0;
        }
        with_token!(batch.keyspace(&member.operation), member.token, index, token => core.shortcuts.to(index, token, bytes))
    }

    /// Offset and length of an entry.
    #[inline(always)]
    fn extent(&self, reference: u64) -> (u64, u64) {
        (address::unpack(reference).offset, self.core.log.size_of(reference))
    }

    /// Marks the appended members of an incomplete batch dead on media. Otherwise, once a later version is settled,
    /// recovery would take them for committed.
    #[cold]
    fn abandon(&self, appended: usize, writer: &mut Writer<'_>) {
        // Smaller batches are treated like single writes: room in open segments may suffice for them.
        let wanted = self.bytes_with_gaps();
        if !std::thread::panicking() && wanted > self.core.log.pool(0).segment_bytes() {
            room::note_wanted(wanted);
        }
        for member in &self.members[..appended] {
            self.core.log.mark_dead_on_media(member.reference.0);
            // All lines, not just the one of the mark: the entry is counted when its segment is sealed, and must be
            // whole then.
            let (at, bytes) = self.extent(member.reference.0);
            writer.flush_range(at, bytes);
            if !member.operation.delete {
                writer.mark_dead(member.reference.0);
            }
        }
        writer.fence();
    }
}
