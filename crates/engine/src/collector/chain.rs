//! The chain collector (NStore, section III-E): buries the ancestors of the victim's entries, then moves what the index
//! still names.
//!
//! Entries are moved in groups: one set of latches, one stretch of copies, one fence.
//!
//! Thread safety: an entry is moved under its key's latch, so a link names exactly the entry that was current. Crash:
//! recovery completes the burials of an interrupted pass (`mending`).

use super::sweep::Scope;
use super::{Collector, Emptied};
use crate::error::Result;
use crate::keyspace::{Keyspace, with_index};
use crate::store::Core;
use hither_index::{Index, Key, Ref};
use hither_log::{EntryView, Op, Pass, Relocator, Tombstones};
use hither_sync::epoch;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Entries moved under one set of latches.
const GROUP: usize = 32;
/// Bytes after which a group ends early: writers of its keys wait for the copies.
const GROUP_BYTES: u64 = 64 << 10;

/// See the module's head.
pub(crate) struct ChainCollector {
    /// Whether every superseded entry is on a chain, or dead. Another collector leaves entries that no link leads to.
    pub chained: AtomicBool,
}

/// An entry of the victim that may still be needed.
struct Item<'a> {
    reference: Ref,
    version: u64,
    entry: EntryView<'a>,
    key: Key<'a>,
    keyspace: &'a Keyspace,
}

impl Collector for ChainCollector {
    fn tombstones(&self) -> Tombstones {
        Tombstones::Buried
    }

    fn prepare(&self, core: &Core) -> Result<()> {
        if !self.chained.load(Ordering::Acquire) {
            if core.log.outlives_the_process() {
                // Ends the sweep when the store is being closed: the close waits for this thread.
                let between = |_| core.committer.ensure_writable().map(|()| ControlFlow::Continue(()));
                core.sweep(Scope::Everything, &mut None, &between)?;
            }
            self.chained.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn has_chains(&self) -> bool {
        self.chained.load(Ordering::Acquire)
    }

    fn empty(&self, core: &Core, pass: &Pass<'_>, emptied: &mut Emptied) -> Result<()> {
        emptied.buried = pass.bury().map_err(|error| core.explain(error))?;
        if pass.is_wholly_dead() {
            // An index may still lead there: to a damaged entry, which may be any key's.
            return pass.verify().map_err(|error| core.explain(error));
        }
        // Taken after the victim was sealed: every keyspace with entries in it is here, or was dropped.
        let keyspaces = core.keyspaces_by_id();
        let mut mover = Mover { core, relocator: core.log.relocator(pass.node()), group: Vec::with_capacity(GROUP), bytes: 0 };
        let mut outcome = Ok(());
        let found = core.log.visit_segment(pass.node(), pass.segment(), |reference, version, keyspace, entry| {
            // A snapshot may still show a dead entry: one that was buried since, or born dead.
            if outcome.is_err() || entry.op() == Op::Delete || (entry.is_dead() && !core.snapshots.any()) {
                return;
            }
            let Some(keyspace) = keyspaces.get(&keyspace) else { return };
            let item = Item { reference: Ref(reference), version, entry: *entry, key: core.hasher.key(entry.key), keyspace };
            if mover.add(item) {
                outcome = mover.move_group(emptied);
            }
        });
        outcome?;
        mover.move_group(emptied)?;
        // A damaged entry was not moved: it would be lost with the victim.
        pass.ensure_whole(&found).map_err(|error| core.explain(error))
    }
}

struct Mover<'a, 'b> {
    core: &'a Core,
    relocator: Relocator<'a>,
    group: Vec<Item<'b>>,
    bytes: u64,
}

impl<'b> Mover<'_, 'b> {
    /// Adds an entry. Returns true if the group is complete.
    fn add(&mut self, item: Item<'b>) -> bool {
        self.core.latches.prefetch(self.core.latches.stripe_of(item.key.hash));
        item.keyspace.prefetch_for_write(item.key.bytes);
        self.bytes += item.entry.size;
        self.group.push(item);
        self.group.len() == GROUP || self.bytes >= GROUP_BYTES
    }

    /// Moves those entries of the group that are current, or that a snapshot shows.
    fn move_group(&mut self, emptied: &mut Emptied) -> Result<()> {
        self.bytes = 0;
        let core = self.core;
        let mut group = std::mem::take(&mut self.group);
        // An entry that is not current never becomes current again.
        {
            let _pin = epoch::pin();
            group.retain(|item| item.is_current(core) || core.snapshots.any());
        }
        if !group.is_empty() {
            self.move_latched(&group, emptied)?;
            group.clear();
        }
        self.group = group;
        Ok(())
    }

    fn move_latched(&mut self, group: &[Item<'_>], emptied: &mut Emptied) -> Result<()> {
        let core = self.core;
        let mut stripes: Vec<usize> = group.iter().map(|item| core.latches.stripe_of(item.key.hash)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let _section = epoch::pin_writer();
        core.committer.ensure_writable()?;
        let _latches = core.latches.lock_set(&stripes);
        let mut copies: Vec<(usize, Ref)> = Vec::with_capacity(group.len());
        let mut followed = Vec::new();
        let mut outcome = Ok(());
        for (number, item) in group.iter().enumerate() {
            if item.keyspace.is_discarded() {
                continue;
            }
            let current = item.is_current(core);
            let retained = if current { None } else { core.snapshots.retained(item.keyspace, item.key.bytes, item.reference) };
            if !current && retained.is_none() {
                continue;
            }
            match self.relocator.append(item.reference.0, &item.entry, item.version, item.keyspace.info.id, !current) {
                Ok(copy) => {
                    emptied.bytes += item.entry.size;
                    match retained {
                        // A snapshot does not outlive the process, so there is nothing to wait for.
                        Some(retained) => {
                            followed.push((item.reference, retained, Ref(copy)));
                        }
                        None => copies.push((number, Ref(copy))),
                    }
                }
                Err(error) => {
                    outcome = Err(core.explain(error));
                    break;
                }
            }
        }
        self.relocator.persist();
        let mut guard = core.log.writer();
        let mut writer = guard.lent();
        for (number, copy) in copies {
            let item = &group[number];
            item.install(core, copy);
            writer.mark_dead(item.reference.0);
            emptied.moved += 1;
        }
        for (source, retained, copy) in &followed {
            retained.follow(*copy);
            writer.mark_dead(source.0);
        }
        emptied.for_snapshots += followed.len() as u64;
        outcome
    }
}

impl Item<'_> {
    /// Whether the index names this very entry. Call under a pin.
    fn is_current(&self, core: &Core) -> bool {
        // Not `locate`: only `get` is exact beside other writers.
        with_index!(self.keyspace, index => index.get(self.key, &core.resolver())) == self.reference
    }

    /// Puts the copy in the entry's place. Call with the key's latch held since the entry was seen to be current.
    fn install(&self, core: &Core, copy: Ref) {
        let installed = with_index!(self.keyspace, index => {
            index.install(index.any_token(), self.key, self.reference, copy, &core.resolver())
        });
        installed.expect("the latch is held since the entry was seen to be current");
    }
}
