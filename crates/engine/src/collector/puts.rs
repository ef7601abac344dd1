//! The short way of a batch: entries with a value, in hash keyspaces. Most pairs of eight bytes each have a shorter one
//! ([`super::pairs`]).
//!
//! The steps, their order and the writer section are those of [`super::batched`], the reference, which handles
//! everything unusual. This way leaves out two things. The order of the copies does not matter. And whether the index
//! names an entry is seen without its key, which is not read again.
//!
//! A snapshot may be taken at any time, also between the reading of an entry and its batch. A writer that replaces what
//! a snapshot shows saves it for the snapshot before. So the collector asks the snapshots after it has found that the
//! index does not name the entry.

use super::Emptied;
use crate::error::Result;
use crate::keyspace::{AnyIndex, Keyspace};
use crate::snapshot::Retained;
use crate::store::Core;
use hither_index::hash::{HashIndex, Spot};
use hither_index::{Index, Key, Ref};
use hither_log::{MovedEntries, Pass, Relocator, Writer};
use std::sync::Arc;

/// An entry that may be current.
struct Put<'a> {
    reference: Ref,
    version: u64,
    hash: u64,
    of: HashKeyspace<'a>,
    /// Where the index names the entry, and its copy. `None`: the entry is not needed, or there was no room.
    copied: Option<(Spot<'a>, Ref)>,
}

/// A keyspace with a hash index.
#[derive(Clone, Copy)]
pub(super) struct HashKeyspace<'a> {
    pub keyspace: &'a Keyspace,
    pub index: &'a HashIndex,
}

/// An entry that only a snapshot shows: its source and its copy.
pub(super) struct Shown {
    retained: Arc<Retained>,
    source: Ref,
    copy: Ref,
}

impl Shown {
    /// Lets the snapshot show the copy. A snapshot does not outlive the process, so there is nothing to wait for.
    pub(super) fn follow(&self, moved: &mut MovedEntries<'_>, emptied: &mut Emptied) {
        self.retained.follow(self.copy);
        moved.add(self.source.0);
        emptied.for_snapshots += 1;
    }
}

impl<'a> HashKeyspace<'a> {
    /// Returns `None` if the keyspace has another index.
    pub(super) fn of(keyspace: &'a Keyspace) -> Option<HashKeyspace<'a>> {
        let AnyIndex::Hash(index) = &*keyspace.index else { return None };
        Some(HashKeyspace { keyspace, index })
    }

    /// Copies the entry at `source` for the snapshots that show it. Returns `None` if there is none.
    #[cold]
    pub(super) fn copy_shown(
        self,
        core: &Core,
        source: Ref,
        relocator: &mut Relocator<'_>,
        emptied: &mut Emptied,
    ) -> Result<Option<Shown>> {
        let entry = core.log.entry(source.0);
        let Some(retained) = core.snapshots.retained(self.keyspace, entry.key, source) else { return Ok(None) };
        let version = core.log.version_of(source.0, &entry);
        let appended = relocator.append(source.0, &entry, version, self.keyspace.info.id, true);
        let copy = Ref(appended.map_err(|error| core.explain(error))?);
        emptied.bytes += entry.size;
        Ok(Some(Shown { retained, source, copy }))
    }

    /// Puts the copy in the place of its source, if that is still current. Returns false if not: the copy came too
    /// late.
    #[inline(always)]
    pub(super) fn swing(
        self,
        core: &Core,
        (spot, source, copy): (Spot<'_>, Ref, Ref),
        writer: &mut Writer<'_>,
        moved: &mut MovedEntries<'_>,
        emptied: &mut Emptied,
    ) -> bool {
        let is_in_place = self.index.swing(spot, source, copy) || self.install(core, source, copy);
        if is_in_place {
            moved.add(source.0);
            emptied.moved += 1;
        } else {
            core.came_too_late(writer, self.keyspace, core.log.key(source.0), source, copy, emptied);
        }
        is_in_place
    }

    /// Puts the copy in the place of its source, wherever the index has that now. Returns false if it is not there.
    #[cold]
    fn install(self, core: &Core, source: Ref, copy: Ref) -> bool {
        let (index, key) = (self.index, core.hasher.key(core.log.key(source.0)));
        index.install(index.any_token(), key, source, copy, &core.resolver()).is_ok()
    }
}

/// Such entries of a batch.
pub(super) struct Puts<'a> {
    puts: Vec<Put<'a>>,
    shown: Vec<Shown>,
}

impl<'a> Puts<'a> {
    pub(super) fn with_capacity(count: usize) -> Puts<'a> {
        Puts { puts: Vec::with_capacity(count), shown: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.puts.len()
    }

    pub(super) fn clear(&mut self) {
        self.puts.clear();
        self.shown.clear();
    }

    /// Adds an entry that is no tombstone, and starts loading what the index has for it. Call under an epoch pin.
    pub(super) fn add(&mut self, reference: Ref, version: u64, key: Key<'_>, of: HashKeyspace<'a>) {
        of.index.prefetch_for_write(key);
        self.puts.push(Put { reference, version, hash: key.hash, of, copied: None });
    }

    /// Appends copies of those that are current, or that a snapshot shows. Where space ends, the remaining entries are
    /// not copied. Call in the section that swings the copies.
    pub(super) fn copy(&mut self, core: &Core, relocator: &mut Relocator<'_>, emptied: &mut Emptied) -> Result<()> {
        for put in &mut self.puts {
            let HashKeyspace { keyspace, index } = put.of;
            if keyspace.is_discarded() {
                continue;
            }
            let Some(spot) = index.find_reference(put.hash, put.reference) else {
                // After the look at the index: see the module's head.
                if core.snapshots.any() {
                    self.shown.extend(put.of.copy_shown(core, put.reference, relocator, emptied)?);
                }
                continue;
            };
            let appended = relocator.append_again(put.reference.0, put.version, keyspace.info.id);
            let (copy, size) = appended.map_err(|error| core.explain(error))?;
            put.copied = Some((spot, Ref(copy)));
            emptied.bytes += size;
        }
        Ok(())
    }

    /// Puts the copies in the place of their sources, where these are still current. Returns true if some were not; a
    /// fence must follow then.
    pub(super) fn swing(&self, core: &Core, pass: &Pass<'_>, writer: &mut Writer<'_>, emptied: &mut Emptied) -> bool {
        let mut too_late = false;
        let mut moved = pass.moved_entries();
        for put in &self.puts {
            let Some((spot, copy)) = put.copied else { continue };
            too_late |= !put.of.swing(core, (spot, put.reference, copy), writer, &mut moved, emptied);
        }
        self.shown.iter().for_each(|shown| shown.follow(&mut moved, emptied));
        writer.count_moved(moved);
        too_late
    }
}
