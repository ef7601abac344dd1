//! The short way of a batch: entries with a value, in hash keyspaces, while there is no snapshot. They are what a collector mostly moves, so each instruction here counts
//! (`docs/adr/0022`).
//!
//! The steps, their order and the writer section are those of [`super::batched`], the reference, which does all that is unusual. What is left out: nothing but
//! the newest version is needed, the order of the copies does not matter, and whether the index names an entry is seen without its key, which is not read again.

use super::Emptied;
use crate::error::Result;
use crate::keyspace::{AnyIndex, Keyspace};
use crate::store::Core;
use hither_index::hash::{HashIndex, Spot};
use hither_index::{Index, Key, Ref};
use hither_log::{Relocator, Writer};

/// An entry that may be current.
struct Put<'a> {
    reference: Ref,
    version: u64,
    hash: u64,
    keyspace: &'a Keyspace,
    index: &'a HashIndex,
    /// Where the index names it, and its copy. `None`: it is not needed, or there was no room.
    copied: Option<(Spot<'a>, Ref)>,
}

/// Such entries of a batch.
pub(super) struct Puts<'a> {
    puts: Vec<Put<'a>>,
}

impl<'a> Puts<'a> {
    pub(super) fn with_capacity(count: usize) -> Puts<'a> {
        Puts { puts: Vec::with_capacity(count) }
    }

    pub(super) fn len(&self) -> usize {
        self.puts.len()
    }

    pub(super) fn clear(&mut self) {
        self.puts.clear();
    }

    /// Adds an entry that is no tombstone, and starts loading what the index has for it. False, with nothing done, if its keyspace has no hash index.
    #[inline(always)]
    pub(super) fn add(&mut self, reference: Ref, version: u64, key: Key<'_>, keyspace: &'a Keyspace) -> bool {
        let AnyIndex::Hash(index) = &*keyspace.index else { return false };
        index.prefetch_for_write(key);
        self.puts.push(Put { reference, version, hash: key.hash, keyspace, index, copied: None });
        true
    }

    /// Appends copies of those that are current. Where space ends, so do they. In the section that swings them.
    pub(super) fn copy(&mut self, core: &Core, relocator: &mut Relocator<'_>, emptied: &mut Emptied) -> Result<()> {
        for put in &mut self.puts {
            if put.keyspace.is_discarded() {
                continue;
            }
            let Some(spot) = put.index.find_reference(put.hash, put.reference) else { continue };
            let (copy, size) =
                relocator.append_again(put.reference.0, put.version, put.keyspace.info.id).map_err(|error| core.explain(error))?;
            put.copied = Some((spot, Ref(copy)));
            emptied.bytes += size;
        }
        Ok(())
    }

    /// Puts the copies in the place of their sources, where these are current still; true if some were not. A fence must follow then.
    pub(super) fn swing(&self, core: &Core, writer: &mut Writer<'_>, emptied: &mut Emptied) -> bool {
        let mut too_late = false;
        for put in &self.puts {
            let Some((spot, copy)) = put.copied else { continue };
            if put.index.swing(spot, put.reference, copy) || put.install(core, copy) {
                writer.mark_dead(put.reference.0);
                emptied.moved += 1;
            } else {
                too_late = true;
                core.came_too_late(writer, put.keyspace, core.log.key(put.reference.0), put.reference, copy, emptied);
            }
        }
        too_late
    }
}

impl Put<'_> {
    /// The copy in the entry's place, wherever that is now.
    #[cold]
    fn install(&self, core: &Core, copy: Ref) -> bool {
        let key = Key { bytes: core.log.key(self.reference.0), hash: self.hash };
        self.index.install(self.index.any_token(), key, self.reference, copy, &core.resolver()).is_ok()
    }
}
