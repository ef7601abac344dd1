//! The batched collector (Pacman, section 3.3; `docs/adr/0014`): copy what is live in batches, one fence each, and swing references by comparison, without latches.
//!
//! Ancestors are not buried: an overwritten version needs no mark, for the newer one wins at recovery. A tombstone is moved like a live entry, unless the
//! index has something newer for its key, or a sweep (the `sweep` module) has seen to it that nothing older is left.
//!
//! An entry with a shortcut (`docs/adr/0020`) is not looked up if the index names it where the shortcut leads: there its reference is swung, too.
//!
//! A batch is one writer section, which sweeps, checkpoints and snapshots wait for when they draw a stable version. What is live is decided inside it.

use super::{Collector, Emptied};
use crate::error::Result;
use crate::keyspace::{Keyspace, Kind, with_index};
use crate::snapshot::Retained;
use crate::store::Core;
use hither_index::{Index, Key, Ref};
use hither_log::{EntryView, Op, Pass, Relocator, Tombstones};
use hither_sync::epoch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of a batch, live or not. When references are swung, the lines of the index that the lookups have brought are in the cache still.
const BATCH: usize = 256;
/// Bytes after which a batch ends early: a section holds up others.
const BATCH_BYTES: u64 = 256 << 10;

/// References are swung so many entries behind the prefetch of their leaf.
const AHEAD: usize = 4;

/// See the module's head.
pub(crate) struct BatchedCollector;

/// An entry of the victim that may still be needed.
struct Item<'a> {
    reference: Ref,
    version: u64,
    entry: EntryView<'a>,
    key: Key<'a>,
    keyspace: &'a Keyspace,
    /// Where the index may name it.
    hint: Option<u64>,
}

/// What an index has for an entry's key.
#[derive(Clone, Copy)]
struct Found {
    current: Ref,
    /// Where it is, if a shortcut led there.
    hint: Option<u64>,
}

/// Why an entry is copied.
enum Need {
    /// The index names it, in this place if a shortcut led there.
    Current(Option<u64>),
    /// A tombstone that keeps something out.
    Tombstone,
    /// Only a snapshot shows it.
    Shown(Arc<Retained>),
}

impl Collector for BatchedCollector {
    fn tombstones(&self) -> Tombstones {
        Tombstones::Swept
    }

    fn empty(&self, core: &Core, pass: &Pass<'_>, emptied: &mut Emptied) -> Result<()> {
        if pass.is_wholly_dead() && !pass.has_tombstones() {
            return Ok(());
        }
        pass.verify().map_err(|error| core.explain(error))?;
        // After the victim was sealed: whatever has entries in it is here, or was dropped.
        let keyspaces = core.keyspaces_by_id();
        let mut batch = Batch { core, pass, relocator: core.log.relocator(pass.node()), items: Vec::with_capacity(BATCH), bytes: 0 };
        let mut outcome = Ok(());
        core.log.visit_segment(pass.node(), pass.segment(), |reference, version, keyspace, entry| {
            // A dead entry may still be shown by a snapshot.
            if outcome.is_err() || (entry.is_dead() && (entry.op() == Op::Delete || !core.snapshots.any())) {
                return;
            }
            if core.log.is_known_garbage(reference) {
                emptied.known_garbage += 1;
                return;
            }
            let Some(keyspace) = keyspaces.get(&keyspace) else { return };
            let hint = core.shortcuts.hint(entry.shortcut());
            let item = Item { reference: Ref(reference), version, entry: *entry, key: core.hasher.key(entry.key), keyspace, hint };
            batch.bytes += entry.size;
            batch.items.push(item);
            if batch.items.len() == BATCH || batch.bytes >= BATCH_BYTES {
                outcome = batch.run(emptied);
            }
        });
        outcome?;
        batch.run(emptied)
    }
}

struct Batch<'a, 'b> {
    core: &'a Core,
    pass: &'a Pass<'a>,
    relocator: Relocator<'a>,
    items: Vec<Item<'b>>,
    bytes: u64,
}

impl Batch<'_, '_> {
    /// Moves what is needed of the gathered entries.
    fn run(&mut self, emptied: &mut Emptied) -> Result<()> {
        let items = std::mem::take(&mut self.items);
        let outcome = self.run_in_section(&items, emptied);
        self.items = items;
        self.items.clear();
        self.bytes = 0;
        outcome
    }

    fn run_in_section(&mut self, items: &[Item<'_>], emptied: &mut Emptied) -> Result<()> {
        let core = self.core;
        let _section = epoch::pin_writer();
        core.committer.ensure_writable()?;
        let found = self.look_up(items, emptied);
        let needed = items.iter().zip(found).filter_map(|(item, found)| Some((item, self.need_of(item, found)?)));
        let mut needed: Vec<(&Item<'_>, Need)> = needed.collect();
        if core.techniques.key_order && needed.iter().any(|(item, _)| item.keyspace.info.kind == Kind::Ordered) {
            // Copies lie as scans will read them (P4).
            needed.sort_unstable_by_key(|(item, _)| (item.keyspace.info.id, item.key.bytes));
        }
        let mut copies: Vec<(&Item<'_>, Need, Ref)> = Vec::with_capacity(needed.len());
        let mut outcome = Ok(());
        for (item, need) in needed {
            let born_dead = matches!(need, Need::Shown(_));
            match self.relocator.append(item.reference.0, &item.entry, item.version, item.keyspace.info.id, born_dead) {
                Ok(copy) => {
                    emptied.bytes += item.entry.size;
                    copies.push((item, need, Ref(copy)));
                }
                Err(error) => {
                    outcome = Err(core.explain(error));
                    break;
                }
            }
        }
        self.relocator.persist();
        self.swing(&copies, emptied);
        outcome
    }

    /// What the indexes have for the entries' keys: where shortcuts lead, and for the others by lookups with overlapping misses. In the section that copies what is
    /// found.
    fn look_up(&self, items: &[Item<'_>], emptied: &mut Emptied) -> Vec<Found> {
        let mut found = vec![Found { current: Ref::NONE, hint: None }; items.len()];
        follow_shortcuts(items, &mut found, emptied);
        let rest: Vec<usize> = (0..items.len()).filter(|&at| found[at].hint.is_none()).collect();
        let keys: Vec<Key<'_>> = rest.iter().map(|&at| items[at].key).collect();
        let mut current = vec![Ref::NONE; rest.len()];
        let mut at = 0;
        for same in rest.chunk_by(|&a, &b| std::ptr::eq(items[a].keyspace, items[b].keyspace)) {
            let part = at..at + same.len();
            at = part.end;
            with_index!(items[same[0]].keyspace, index => {
                index.get_many(&keys[part.clone()], &mut current[part], &self.core.resolver());
            });
        }
        for (at, current) in rest.into_iter().zip(current) {
            found[at].current = current;
            emptied.shortcuts[2] += u64::from(items[at].hint.is_some() && current == items[at].reference);
        }
        found
    }

    /// Whether an entry is needed, and what for, if this is what the index has for its key.
    fn need_of(&self, item: &Item<'_>, Found { current, hint }: Found) -> Option<Need> {
        let core = self.core;
        if item.entry.op() == Op::Delete {
            // Under something newer it is not needed: that, or what comes above it, stays.
            let stays = current.is_none() && !self.pass.may_drop_tombstone(item.version);
            return stays.then_some(Need::Tombstone);
        }
        if current == item.reference {
            return Some(Need::Current(hint));
        }
        if !core.snapshots.any() {
            return None;
        }
        core.snapshots.retained(item.keyspace, item.key.bytes, item.reference).map(Need::Shown)
    }

    /// Puts the copies in the place of their sources, where these are current still.
    fn swing(&self, copies: &[(&Item<'_>, Need, Ref)], emptied: &mut Emptied) {
        let core = self.core;
        let mut writer = core.log.writer();
        let mut too_late = false;
        for (number, (item, need, copy)) in copies.iter().enumerate() {
            if let Some((item, Need::Current(Some(hint)), _)) = copies.get(number + AHEAD) {
                with_index!(item.keyspace, index => index.prefetch_hint(*hint));
            }
            match need {
                Need::Tombstone => emptied.tombstones += 1,
                Need::Shown(retained) => {
                    // A snapshot does not outlive the process: nothing to wait for.
                    retained.reference.store(copy.0, Ordering::Release);
                    emptied.for_snapshots += 1;
                }
                Need::Current(hint) if item.swing(core, *hint, *copy) => {
                    writer.mark_dead(item.reference.0);
                    emptied.moved += 1;
                }
                Need::Current(_) => {
                    core.log.mark_dead_on_media(copy.0);
                    too_late = true;
                    emptied.too_late += 1;
                    // Whoever replaced the entry has saved it for the snapshots that show it, before it was replaced.
                    let retained = core.snapshots.any().then(|| core.snapshots.retained(item.keyspace, item.key.bytes, item.reference));
                    match retained.flatten() {
                        Some(retained) => retained.reference.store(copy.0, Ordering::Release),
                        None => writer.mark_dead(copy.0),
                    }
                }
            }
        }
        if too_late {
            self.relocator.fence();
        }
    }
}

/// Looks for the entries where their shortcuts lead. A reference names one entry: if the index has it there, the entry is current, and its key need not be
/// compared.
fn follow_shortcuts(items: &[Item<'_>], found: &mut [Found], emptied: &mut Emptied) {
    let with_hint = || items.iter().enumerate().filter_map(|(at, item)| Some((at, item, item.hint?)));
    for (_, item, hint) in with_hint() {
        with_index!(item.keyspace, index => index.prefetch_hint(hint));
    }
    for (at, item, hint) in with_hint() {
        if let Some(there) = with_index!(item.keyspace, index => index.find_at_hint(hint, item.key, item.reference)) {
            found[at] = Found { current: item.reference, hint: Some(there.hint) };
            emptied.shortcuts[usize::from(there.sibling)] += 1;
        }
    }
}

impl Item<'_> {
    /// Replaces the entry in the index if it is there still. (Its place cannot have been used again: the victim is not free.)
    fn swing(&self, core: &Core, hint: Option<u64>, copy: Ref) -> bool {
        with_index!(self.keyspace, index => {
            hint.is_some_and(|hint| index.update_at_hint(hint, self.key, self.reference, copy))
                || index.install(index.any_token(), self.key, self.reference, copy, &core.resolver()).is_ok()
        })
    }
}
