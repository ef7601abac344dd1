//! Atomic batches (`docs/crash-model.md`): all or nothing after a crash, over any keys, keyspaces and nodes.
//!
//! All keys' latches are taken together. All entries are appended side by side into one chunk (one node, one shard: a
//! batch's lines are contiguous), and each line is flushed once. After one fence all members are installed. [`commit`]
//! gives the order of the steps and its reasons.
//!
//! Crash: every member carries the batch's size and its position. Recovery counts members and drops a batch that is not
//! whole, unless a settled version shows that it was.
//!
//! Thread safety: any number of threads commit batches; a [`Batch`] belongs to one thread at a time. Readers may see
//! some keys of a batch before others; a [`Snapshot`](crate::Snapshot) sees all or none.

mod append;
mod commit;
mod lean;
mod member;

use crate::commit::Ticket;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, KeyspaceHandle};
use crate::options::{Durability, WriteOptions};
use crate::store::{Core, Store};
use crate::write::{Written, check_key, check_value};
use hither_log::entry::{MAX_BATCH, MAX_KEY_BYTES};
use std::cell::Cell;
use std::sync::Arc;

/// A batch under construction. Operations apply in order: if several concern one key, the last counts.
#[derive(Clone)]
pub struct Batch {
    /// Absent only while the batch is dropped.
    contents: Option<Box<Contents>>,
}

/// Content of a batch. When a batch is dropped, the thread keeps it for its next batch.
#[derive(Clone, Default)]
struct Contents {
    /// Keys and values back to back.
    bytes: Vec<u8>,
    keyspaces: Vec<Arc<Keyspace>>,
    operations: Vec<Operation>,
    preconditions: Vec<(Operation, Option<u64>)>,
    error: Option<(usize, usize)>,
    /// Some operation has an expiry of its own.
    expires: bool,
    /// Some key or value has not eight bytes; so do the values of deletes and preconditions.
    mixed: bool,
}

#[derive(Clone, Copy)]
struct Operation {
    hash: u64,
    key_at: usize,
    expiry_ms: u64,
    key_len: u32,
    value_len: u32,
    keyspace: u32,
    delete: bool,
}

const PRESENT: &str = "a batch has its contents until it is dropped";

/// Buffers of more bytes are not kept.
const SPARE_BYTES: usize = 1 << 16;

thread_local! {
    /// The emptied contents of a dropped batch, so that small batches follow each other without an allocation.
    static SPARE: Cell<Option<Box<Contents>>> = const { Cell::new(None) };
}

impl Default for Batch {
    #[inline]
    fn default() -> Batch {
        Batch { contents: Some(SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()) }
    }
}

impl Drop for Batch {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut contents) = self.contents.take_if(|contents| contents.is_small()) {
            // Above all the keyspaces: nothing may keep them alive.
            contents.clear();
            // While the thread ends there is no place for a spare.
            let _ = SPARE.try_with(|spare| spare.set(Some(contents)));
        }
    }
}

impl Contents {
    fn is_small(&self) -> bool {
        let lists = self.operations.capacity() + self.preconditions.capacity();
        self.bytes.capacity() <= SPARE_BYTES && lists * size_of::<Operation>() <= SPARE_BYTES
    }

    #[inline]
    fn clear(&mut self) {
        self.bytes.clear();
        self.keyspaces.clear();
        self.operations.clear();
        self.preconditions.clear();
        self.error = None;
        self.expires = false;
        self.mixed = false;
    }

    /// The keyspace's number in this batch.
    #[inline(always)]
    fn number_of(&mut self, keyspace: &KeyspaceHandle) -> u32 {
        // Most batches are for one keyspace.
        match &*self.keyspaces {
            [only] if Arc::ptr_eq(only, &keyspace.0) => 0,
            _ => self.number_among_several(keyspace),
        }
    }

    #[inline(never)]
    fn number_among_several(&mut self, keyspace: &KeyspaceHandle) -> u32 {
        let known = self.keyspaces.iter().rposition(|known| Arc::ptr_eq(known, &keyspace.0));
        known.unwrap_or_else(|| {
            self.keyspaces.push(keyspace.0.clone());
            self.keyspaces.len() - 1
        }) as u32
    }

    #[inline(always)]
    fn keyspace(&self, operation: &Operation) -> &Keyspace {
        &self.keyspaces[operation.keyspace as usize]
    }

    #[inline(always)]
    fn key(&self, operation: &Operation) -> &[u8] {
        &self.bytes[operation.key_at..operation.key_at + operation.key_len as usize]
    }

    #[inline(always)]
    fn value(&self, operation: &Operation) -> Option<&[u8]> {
        let at = operation.key_at + operation.key_len as usize;
        (!operation.delete).then(|| &self.bytes[at..at + operation.value_len as usize])
    }

    /// Copies a key and a value; most have eight bytes each.
    #[inline(always)]
    fn push_bytes(&mut self, key: &[u8], value: &[u8]) {
        if let (Ok(key), Ok(value)) = (<[u8; 8]>::try_from(key), <[u8; 8]>::try_from(value)) {
            self.bytes.extend_from_slice([key, value].as_flattened());
        } else {
            self.push_mixed(key, value);
        }
    }

    #[inline(never)]
    fn push_mixed(&mut self, key: &[u8], value: &[u8]) {
        self.mixed = true;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }
}

impl Batch {
    /// Number of operations.
    pub fn len(&self) -> usize {
        self.contents().operations.len()
    }

    /// Whether the batch has neither operations nor preconditions.
    pub fn is_empty(&self) -> bool {
        self.contents().operations.is_empty() && self.contents().preconditions.is_empty()
    }

    /// Bytes of the keys and values in the batch.
    pub fn bytes(&self) -> usize {
        self.contents().bytes.len()
    }

    /// Removes all operations and preconditions; the memory stays.
    pub fn clear(&mut self) {
        self.contents_mut().clear();
    }

    /// Adds a put; `expires_at_ms` 0 means never.
    #[inline]
    pub fn put(&mut self, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8], expires_at_ms: u64) {
        let operation = self.operation(keyspace, key, value, false, expires_at_ms);
        let contents = self.contents_mut();
        contents.operations.push(operation);
        contents.expires |= expires_at_ms != 0;
    }

    /// Adds a delete.
    pub fn delete(&mut self, keyspace: &KeyspaceHandle, key: &[u8]) {
        let operation = self.operation(keyspace, key, &[], true, 0);
        self.contents_mut().operations.push(operation);
    }

    /// Makes the batch depend on the key having this version (`None`: on the key being absent).
    pub fn require_version(&mut self, keyspace: &KeyspaceHandle, key: &[u8], version: Option<u64>) {
        let operation = self.operation(keyspace, key, &[], false, 0);
        self.contents_mut().preconditions.push((operation, version));
    }

    #[inline(always)]
    fn contents(&self) -> &Contents {
        self.contents.as_deref().expect(PRESENT)
    }

    #[inline(always)]
    fn contents_mut(&mut self) -> &mut Contents {
        self.contents.as_deref_mut().expect(PRESENT)
    }

    #[inline(always)]
    fn operation(&mut self, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8], delete: bool, expiry_ms: u64) -> Operation {
        let contents = self.contents_mut();
        if check_key(key).is_err() || check_value(value).is_err() {
            // Reported at commit, so that calls can be chained.
            contents.error.get_or_insert((key.len(), value.len()));
            return Operation { hash: 0, key_at: 0, expiry_ms: 0, key_len: 0, value_len: 0, keyspace: 0, delete: false };
        }
        // The misses of the bucket pair overlap with the construction of the batch.
        let hash = keyspace.0.prefetch_for_write(key);
        let keyspace = contents.number_of(keyspace);
        let key_at = contents.bytes.len();
        contents.push_bytes(key, value);
        Operation { hash, key_at, expiry_ms, key_len: key.len() as u32, value_len: value.len() as u32, keyspace, delete }
    }

    #[inline(always)]
    pub(crate) fn validate(&self) -> Result<()> {
        if self.contents().error.is_some() || self.contents().operations.len() > MAX_BATCH {
            return Err(self.complaint());
        }
        self.contents().keyspaces.iter().try_for_each(|keyspace| keyspace.ensure_usable())
    }

    #[cold]
    fn complaint(&self) -> Error {
        match self.contents().error {
            None => Error::BatchTooLarge { len: self.contents().operations.len() },
            Some((0, _)) => Error::KeyEmpty,
            Some((bytes, _)) if bytes > MAX_KEY_BYTES => Error::KeyTooLong { bytes },
            Some((_, bytes)) => Error::ValueTooLong { bytes },
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("operations", &self.contents().operations.len()).field("bytes", &self.contents().bytes.len()).finish()
    }
}

impl Store {
    /// Applies `batch` atomically if all its preconditions hold.
    ///
    /// # Errors
    /// [`Error::PreconditionFailed`], and the errors of a put: nothing was applied. After [`Error::SyncFailed`] the batch
    /// may have been applied, and may be lost: a sync failed.
    pub fn commit(&self, batch: &Batch, options: &WriteOptions) -> Result<Ticket> {
        batch.validate()?;
        let level = options.durability.unwrap_or(self.core.durability);
        let version = self.core.commit_batch(batch, level, self.core.expiry_ms(options))?;
        Ok(self.core.ticket(version, level))
    }

    /// Applies `batch` at the store's level, and waits for durability if that level promises it.
    ///
    /// # Errors
    /// As [`Store::commit`].
    #[inline]
    pub fn commit_wait(&self, batch: &Batch) -> Result<()> {
        batch.validate()?;
        let core = &self.core;
        let version = core.commit_batch(batch, core.durability, 0)?;
        if core.waits() { core.committer.commit(&core.log, version) } else { Ok(()) }
    }
}

impl Core {
    /// Applies `batch`. Returns its newest version, 0 if there was nothing to do.
    #[inline]
    fn commit_batch(&self, batch: &Batch, level: Durability, default_expiry_ms: u64) -> Result<u64> {
        let mut unmet = 0;
        let written = self.commit_members(batch.contents(), level, default_expiry_ms, &mut unmet).map_err(|error| *error)?;
        // A batch that changed nothing reports what it saw: that must be durable first.
        self.settle_observed(written, level)?;
        if !written.applied() {
            return Err(self.unmet(batch, unmet));
        }
        match self.rests_on_conditions(batch, written, level) {
            0 => {}
            version => self.committer.commit(&self.log, version)?,
        }
        Ok(written.version())
    }

    /// The version that must be durable before the outcome of a batch with conditions may be reported; 0 if there is
    /// none. Where a write is made durable by its own fence, the conditions may have found a weaker write of another
    /// key that is not durable yet. The batch's own version is above that write's.
    #[inline]
    pub(crate) fn rests_on_conditions(&self, batch: &Batch, written: Written, level: Durability) -> u64 {
        let fenced_only = level == Durability::Sync && !self.needs_sync && self.log.may_lag();
        if fenced_only && !batch.contents().preconditions.is_empty() { written.version() } else { 0 }
    }

    /// Applies `batch` without waiting for what its outcome rests on.
    pub(crate) fn commit_unsettled(&self, batch: &Batch, level: Durability, default_expiry_ms: u64) -> Result<Written> {
        let mut unmet = 0;
        self.commit_members(batch.contents(), level, default_expiry_ms, &mut unmet).map_err(|error| *error)
    }

    #[cold]
    fn unmet(&self, batch: &Batch, number: usize) -> Error {
        let contents = batch.contents();
        let (operation, _) = &contents.preconditions[number];
        Error::PreconditionFailed {
            keyspace: contents.keyspace(operation).info.name.clone(),
            key: String::from_utf8_lossy(contents.key(operation)).into_owned(),
        }
    }
}
