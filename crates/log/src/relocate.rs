//! Moving entries: appending copies to a node's segments of moved entries.
//!
//! A copy keeps its source's version (decision 6) and expiry, has no batch tag (decision 10), and links to its source: so both are on the key's chain for as
//! long as the source's segment is in use. Not thread-safe: each collector has a relocator of its own, with a chunk of its own.

use crate::address;
use crate::entry::{EntryView, Op, Parts, Place};
use crate::error::Result;
use crate::log::{Log, NodePool};
use crate::segment::Chunk;

/// Appends copies on one node.
pub struct Relocator<'a> {
    log: &'a Log,
    pool: &'a NodePool,
    chunk: Chunk,
    /// What was written since the last [`Relocator::persist`], as (offset, bytes).
    unflushed: Vec<(u64, u64)>,
}

impl Log {
    /// A relocator for `node`.
    pub fn relocator(&self, node: usize) -> Relocator<'_> {
        Relocator { log: self, pool: &self.pools[node], chunk: Chunk::NONE, unflushed: Vec::new() }
    }
}

impl Relocator<'_> {
    /// Appends a copy of `entry`, which is at `source` and has this version and keyspace; returns its reference. `born_dead`: only readers who hold
    /// the reference will ever see it, and it has no link. Durable after [`Relocator::persist`] (and, on files, a sync).
    ///
    /// # Errors
    /// If no segment can be had; nothing was written then.
    pub fn append(&mut self, source: u64, entry: &EntryView<'_>, version: u64, keyspace: u32, born_dead: bool) -> Result<u64> {
        let parent = if born_dead { 0 } else { source };
        let parts = Parts {
            op: Op::Insert,
            key: entry.key,
            value: entry.value,
            version,
            parent,
            parent_generation: self.log.generation_tag(parent),
            keyspace,
            expiry_ms: entry.expiry_ms(),
            batch: None,
        };
        let mut size = parts.size(self.chunk.keyspace, self.chunk.base_version);
        if self.chunk.is_none() || self.chunk.end - self.chunk.cursor < size {
            self.pool.give_back(&std::mem::replace(&mut self.chunk, Chunk::NONE));
            self.chunk = self.pool.take_cold_chunk(self.log, &parts)?;
            size = parts.size(self.chunk.keyspace, self.chunk.base_version);
        }
        let chunk = &mut self.chunk;
        let place =
            Place { generation: chunk.generation, base_version: chunk.base_version, keyspace: chunk.keyspace, offset: chunk.cursor };
        chunk.take(&parts, size);
        self.write(&parts, &place, born_dead);
        match self.unflushed.last_mut() {
            Some((start, bytes)) if *start + *bytes == place.offset => *bytes += size,
            _ => self.unflushed.push((place.offset, size)),
        }
        Ok(address::pack(self.pool.node, place.offset, size))
    }

    fn write(&self, parts: &Parts<'_>, place: &Place, born_dead: bool) {
        let pool = &self.pool.pool;
        if !born_dead && let Some(words) = parts.encode_plain(place) {
            // SAFETY: the chunk is this relocator's alone, inside an active segment, and these bytes were never written before.
            unsafe { pool.write_words(place.offset, &words) };
            return;
        }
        let mut head = parts.encode_head(place);
        if born_dead {
            head.mark_dead();
        }
        let key_at = place.offset + 8 * head.words().len() as u64;
        // SAFETY: as above, for the entry's size.
        unsafe {
            pool.write_words(place.offset, head.words());
            pool.write(key_at, parts.key);
            pool.write(key_at + parts.key.len() as u64, parts.value);
        }
    }

    /// Flushes and fences what was appended.
    pub fn persist(&mut self) {
        for (offset, bytes) in self.unflushed.drain(..) {
            self.pool.pool.flush(offset, bytes as usize);
        }
        self.pool.pool.fence();
    }
}

impl Drop for Relocator<'_> {
    fn drop(&mut self) {
        self.persist();
        if !self.chunk.is_none() {
            self.pool.return_cold_chunk(self.log, &self.chunk);
        }
    }
}
