//! Batches above the settled version: those that a crash cut short do not count.
//!
//! Thread safety: runs on the thread that opens the store, when the scan has ended. Crash: members of incomplete batches
//! are marked dead, durably, before anything rests on that; a recovery that is cut short begins anew.

use super::{DEAD, DROPPED, Found, Recovery};
use crate::error::Result;
use hither_log::Op;
use hither_log::address::LINK_MASK;
use hither_sync::epoch;

/// A batch: its first version and its size.
pub(super) type BatchId = (u64, u32);

impl Found<'_> {
    pub(super) fn batch_id(&self) -> Option<BatchId> {
        self.batch.map(|tag| (self.version.saturating_sub(u64::from(tag.index)), tag.size))
    }
}

impl Recovery<'_> {
    /// Installs batches that are whole. Marks the members of the others dead on media, so that no later recovery takes
    /// them for committed. Returns the number of batches dropped.
    pub(super) fn settle_batches(&self) -> Result<u64> {
        let mut batched = std::mem::take(&mut *self.batched.lock());
        if batched.is_empty() {
            return Ok(0);
        }
        batched.sort_unstable_by_key(|found| (found.batch_id(), found.version));
        let mut dropped = 0;
        let _pin = epoch::pin();
        for members in batched.chunk_by(|a, b| a.batch_id() == b.batch_id()) {
            if self.is_whole(members) {
                for member in members.iter().filter(|member| member.keyspace != DEAD) {
                    if member.keyspace == DROPPED {
                        let size = self.log.entry(member.reference.0).size;
                        self.log.note_garbage(member.reference.0, size, member.op == Op::Delete);
                        continue;
                    }
                    if member.op == Op::Delete {
                        self.tombstones.lock().push(*member);
                    }
                    self.install(member);
                }
                continue;
            }
            dropped += 1;
            for member in members {
                self.dropped.lock().insert(member.reference.0 & LINK_MASK);
                // Also a member that is already marked: the mark may not be durable yet.
                self.log.mark_dead_on_media(member.reference.0);
                if member.keyspace != DEAD {
                    self.log.note_garbage(member.reference.0, self.log.entry(member.reference.0).size, member.op == Op::Delete);
                }
            }
        }
        if dropped > 0 {
            for node in 0..self.log.nodes() {
                self.log.pool(node).fence();
                self.log.pool(node).sync()?;
            }
        }
        Ok(dropped)
    }

    /// Whether a batch of which these members were found is whole.
    fn is_whole(&self, members: &[Found<'_>]) -> bool {
        let Some(batch) = members[0].batch_id() else { return false };
        members.len() as u64 == u64::from(batch.1) || self.whole.as_ref().is_some_and(|whole| whole.lock().contains(&batch))
    }
}
