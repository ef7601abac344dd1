//! The batched collector (Pacman, section 3.3; `docs/adr/0014`): copies what is live in batches, with one fence for
//! each, and swings references by comparison, without latches.
//!
//! The collector does not bury ancestors: an overwritten version needs no mark, because the newer one wins at recovery.
//! It moves a tombstone like a live entry, unless the index has something newer for its key, or a sweep (the `sweep`
//! module) has ensured that nothing older is left.
//!
//! An entry with a shortcut (`docs/adr/0020`) is not looked up if the index names it where the shortcut leads. Its
//! reference is swung there, too.
//!
//! A batch is one writer section. Sweeps, checkpoints and snapshots wait for it when they draw a stable version. What
//! is live is decided inside it.

use super::pairs::Pairs;
use super::puts::{HashKeyspace, Puts};
use super::{Collector, Emptied};
use crate::error::Result;
use crate::keyspace::{Keyspace, Kind, with_index};
use crate::snapshot::Retained;
use crate::store::Core;
use hither_index::{Index, Key, Ref};
use hither_log::{EntryView, Op, Pass, ReadVictim, Relocator, Tombstones, Writer, address};
use hither_sync::epoch::{self, Guard};
use std::collections::HashMap;
use std::sync::Arc;

/// Entries of a batch, live or not. When references are swung, the index lines that the lookups loaded are still in the
/// cache.
const BATCH: usize = 256;
/// Bytes after which a batch ends early, because a section holds up others.
const BATCH_BYTES: u64 = 256 << 10;
/// Bytes of the victim that may be read in a section, including all that is passed over.
const SECTION_BYTES: u64 = 64 << 10;

/// References are swung this many entries behind the prefetch of their leaf.
const AHEAD: usize = 4;

/// See the module's head.
pub(crate) struct BatchedCollector;

/// An entry of the victim that may still be needed.
struct Item<'a> {
    reference: Ref,
    version: u64,
    entry: EntryView<'a>,
    hash: u64,
    keyspace: &'a Keyspace,
    /// Where the index may name the entry, by its shortcut.
    hint: Option<u64>,
}

impl<'a> Item<'a> {
    fn key(&self) -> Key<'a> {
        Key { bytes: self.entry.key, hash: self.hash }
    }
}

/// What the index has for an entry's key.
#[derive(Clone, Copy)]
enum Found {
    /// This entry. If a shortcut led there, with its place.
    This(Option<u64>),
    /// Something else.
    Other,
    /// Nothing. Looked up for tombstones only.
    Nothing,
}

/// Why an entry is copied.
enum Need {
    /// The index names it. If a shortcut led there, with its place.
    Current(Option<u64>),
    /// A tombstone that keeps something out.
    Tombstone,
    /// Only a snapshot shows it.
    Shown(Arc<Retained>),
}

/// An entry that is copied: which of the batch, why, and where to.
struct Copy {
    item: usize,
    need: Need,
    to: Ref,
}

impl Collector for BatchedCollector {
    fn tombstones(&self) -> Tombstones {
        Tombstones::Swept
    }

    fn empty(&self, core: &Core, pass: &Pass<'_>, emptied: &mut Emptied) -> Result<()> {
        // Also if nothing is live in the victim: an index may still lead to a damaged entry there, which may be any
        // key's.
        pass.verify().map_err(|error| core.explain(error))?;
        if pass.is_wholly_dead() && !pass.has_tombstones() {
            return Ok(());
        }
        // Taken after the victim was sealed: every keyspace with entries in it is here, or was dropped.
        let keyspaces = core.keyspaces_by_id();
        let pairs = keyspaces.get(&pass.keyspace()).and_then(|keyspace| HashKeyspace::of(keyspace));
        let mut gathering = Gathering { batch: Batch::new(core, pass, pairs), emptied, keyspaces: &keyspaces, last: None };
        let read = pass.read(pairs.is_some(), &mut gathering)?;
        let Gathering { mut batch, emptied, .. } = gathering;
        emptied.known_garbage += read.known_garbage;
        batch.run(emptied)?;
        // A damaged entry was not moved: it would be lost with the victim.
        pass.ensure_whole(&read.totals).map_err(|error| core.explain(error))
    }
}

/// Gathers the entries of a victim that may still be needed, and moves them batch by batch.
struct Gathering<'e, 'a, 'b> {
    batch: Batch<'a, 'b>,
    emptied: &'e mut Emptied,
    keyspaces: &'b HashMap<u32, Arc<Keyspace>>,
    last: Option<&'b Keyspace>,
}

impl<'p: 'b, 'b> ReadVictim<'p> for Gathering<'_, '_, 'b> {
    type Error = crate::Error;

    #[inline(always)]
    fn pair(&mut self, reference: u64, key: u64) -> Result<()> {
        let batch = &mut self.batch;
        let Some(pairs) = &mut batch.pairs else { return Ok(()) };
        if pairs.add(batch.core, Ref(reference), key) { self.copy_group() } else { Ok(()) }
    }

    fn passed_over(&mut self, reference: u64) -> Result<()> {
        if self.batch.has_long_section(Ref(reference)) { self.batch.run(self.emptied) } else { Ok(()) }
    }

    fn entry(&mut self, reference: u64, version: u64, keyspace: u32, entry: &EntryView<'p>) -> Result<()> {
        self.passed_over(reference)?;
        let core = self.batch.core;
        // A snapshot may still show a dead entry.
        if entry.is_dead() && (entry.op() == Op::Delete || !core.snapshots.any()) {
            return Ok(());
        }
        if core.log.is_known_garbage(reference) {
            self.emptied.known_garbage += 1;
            return Ok(());
        }
        if self.last.is_none_or(|last| last.info.id != keyspace) {
            self.last = self.keyspaces.get(&keyspace).map(AsRef::as_ref);
        }
        let Some(keyspace) = self.last else { return Ok(()) };
        self.batch.add(Ref(reference), version, entry, keyspace);
        self.run_if_full()
    }
}

impl Gathering<'_, '_, '_> {
    #[inline(always)]
    fn run_if_full(&mut self) -> Result<()> {
        if self.batch.is_full() { self.batch.run(self.emptied) } else { Ok(()) }
    }

    /// Copies pairs that were loaded while the last ones were read.
    #[inline(never)]
    fn copy_group(&mut self) -> Result<()> {
        self.batch.enter()?;
        match self.batch.copy_pairs(false, self.emptied) {
            Ok(()) => self.run_if_full(),
            // What was copied still takes its source's place.
            Err(error) => self.batch.run(self.emptied).and(Err(error)),
        }
    }
}

/// Entries of a victim that are moved together, with buffers that every batch of the pass uses again.
pub(super) struct Batch<'a, 'b> {
    core: &'a Core,
    pass: &'a Pass<'a>,
    relocator: Relocator<'a>,
    items: Vec<Item<'b>>,
    /// Entries that go the short way; and pairs, which go the shortest way, if the victim's keyspace has one.
    puts: Puts<'b>,
    pairs: Option<Pairs<'b, 'a>>,
    /// Held while entries are gathered: their places in the index are prefetched, and the index follows pointers even
    /// for a hint. Not held while entries are moved.
    pin: Option<Guard>,
    /// The writer section. It begins with the first group of pairs that is looked up.
    section: Option<Guard>,
    /// Bytes of all these entries.
    bytes: u64,
    found: Vec<Found>,
    copies: Vec<Copy>,
    asked: Asked<'b>,
}

/// Keys for which an index is asked at once, so that the misses overlap.
#[derive(Default)]
struct Asked<'b> {
    items: Vec<usize>,
    keys: Vec<Key<'b>>,
    refs: Vec<Ref>,
    names: Vec<bool>,
}

impl<'a, 'b> Batch<'a, 'b> {
    /// `pairs`: the victim's keyspace, if its pairs go the shortest way.
    pub(super) fn new(core: &'a Core, pass: &'a Pass<'a>, pairs: Option<HashKeyspace<'b>>) -> Self {
        let relocator = core.log.relocator(pass.node());
        let (items, found, copies) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        let (puts, pairs) = (Puts::with_capacity(BATCH), pairs.map(|of| Pairs::with_capacity(of, pass.source_segment(), BATCH)));
        Batch { core, pass, relocator, items, puts, pairs, pin: None, section: None, bytes: 0, found, copies, asked: Asked::default() }
    }

    fn is_full(&self) -> bool {
        let pairs = self.pairs.as_ref().map_or(0, Pairs::len);
        pairs + self.puts.len() + self.items.len() >= BATCH || self.bytes >= BATCH_BYTES
    }

    /// Whether the section began long before this entry of the victim.
    fn has_long_section(&self, now: Ref) -> bool {
        let offset = |reference: Ref| address::unpack(reference.0).offset;
        let first = self.pairs.as_ref().and_then(Pairs::first).filter(|_| self.section.is_some());
        first.is_some_and(|first| offset(now) - offset(first) > SECTION_BYTES)
    }

    /// Adds an entry, and starts loading what the index has for it, so that it is there by the time the batch is full.
    pub(super) fn add(&mut self, reference: Ref, version: u64, entry: &EntryView<'b>, keyspace: &'b Keyspace) {
        let key = self.core.hasher.key(entry.key);
        self.pin.get_or_insert_with(epoch::pin);
        self.bytes += entry.size;
        if entry.op() != Op::Delete
            && let Some(of) = HashKeyspace::of(keyspace)
        {
            self.puts.add(reference, version, key, of);
            return;
        }
        let hint = self.core.shortcuts.hint(entry.shortcut());
        with_index!(keyspace, index => match hint {
            Some(hint) => index.prefetch_hint(hint),
            None => index.prefetch_for_write(key),
        });
        self.items.push(Item { reference, version, entry: *entry, hash: key.hash, keyspace, hint });
    }

    /// Begins the writer section, unless it has begun.
    fn enter(&mut self) -> Result<()> {
        if self.section.is_none() {
            let section = epoch::pin_writer();
            self.core.committer.ensure_writable()?;
            self.section = Some(section);
        }
        Ok(())
    }

    /// Moves those of the gathered entries that are needed.
    #[inline(never)]
    pub(super) fn run(&mut self, emptied: &mut Emptied) -> Result<()> {
        let core = self.core;
        self.pin = None;
        self.enter()?;
        let _section = self.section.take();
        self.look_up(emptied);
        self.choose();
        let outcome = match self.copy_shortly(emptied) {
            Ok(()) => self.copy(emptied),
            Err(error) => {
                // Without copies, nothing can take the place of their sources.
                self.copies.clear();
                Err(error)
            }
        };
        self.relocator.persist();
        let mut guard = core.log.writer();
        let mut writer = guard.lent();
        let mut too_late = self.pairs.as_ref().is_some_and(|pairs| pairs.swing(core, self.pass, &mut writer, emptied));
        too_late |= self.puts.swing(core, self.pass, &mut writer, emptied) | self.swing(&mut writer, emptied);
        drop(guard);
        if too_late {
            self.relocator.fence();
        }
        // Within the section: what a snapshot has let go of meanwhile ends here.
        self.copies.clear();
        self.pairs.iter_mut().for_each(Pairs::clear);
        self.puts.clear();
        self.items.clear();
        self.bytes = 0;
        outcome
    }

    /// Finds what the indexes have for the entries' keys: where shortcuts lead, and for the others by lookups with
    /// overlapping misses. Call in the section that copies what is found.
    fn look_up(&mut self, emptied: &mut Emptied) {
        self.found.clear();
        self.found.resize(self.items.len(), Found::Other);
        follow_shortcuts(&self.items, &mut self.found, emptied);
        let mut from = 0;
        for same in self.items.chunk_by(|a, b| std::ptr::eq(a.keyspace, b.keyspace)) {
            self.asked.clear();
            for (at, item) in (from..).zip(same) {
                if item.entry.op() == Op::Delete {
                    self.found[at] = self.core.find_for_tombstone(item);
                } else if matches!(self.found[at], Found::Other) {
                    self.asked.add(at, item);
                }
            }
            from += same.len();
            self.asked.ask(self.core, same[0].keyspace);
            for (&at, _) in self.asked.items.iter().zip(&self.asked.names).filter(|(_, named)| **named) {
                self.found[at] = Found::This(None);
                emptied.shortcuts[2] += u64::from(self.items[at].hint.is_some());
            }
        }
    }

    /// Finds out which entries are needed, in the order that their copies shall have.
    fn choose(&mut self) {
        self.copies.clear();
        for (at, (item, found)) in self.items.iter().zip(&self.found).enumerate() {
            if item.keyspace.is_discarded() {
                continue;
            }
            if let Some(need) = self.core.need_of(self.pass, item, *found) {
                self.copies.push(Copy { item: at, need, to: Ref::NONE });
            }
        }
        let items = &self.items;
        if self.core.techniques.key_order && items.iter().any(|item| item.keyspace.info.kind == Kind::Ordered) {
            // Copies lie in the order in which scans will read them.
            self.copies.sort_unstable_by_key(|copy| (items[copy.item].keyspace.info.id, items[copy.item].entry.key));
        }
    }

    /// See [`Pairs::copy`]. Call in the section.
    fn copy_pairs(&mut self, rest: bool, emptied: &mut Emptied) -> Result<()> {
        let Some(pairs) = &mut self.pairs else { return Ok(()) };
        pairs.copy(self.core, &mut self.relocator, rest, emptied)
    }

    /// Appends the copies of the entries that go the short ways.
    fn copy_shortly(&mut self, emptied: &mut Emptied) -> Result<()> {
        self.copy_pairs(true, emptied)?;
        self.puts.copy(self.core, &mut self.relocator, emptied)
    }

    /// Appends the copies. Where space ends, the remaining entries are not copied.
    fn copy(&mut self, emptied: &mut Emptied) -> Result<()> {
        for at in 0..self.copies.len() {
            let copy = &mut self.copies[at];
            let item = &self.items[copy.item];
            let born_dead = matches!(copy.need, Need::Shown(_));
            match self.relocator.append(item.reference.0, &item.entry, item.version, item.keyspace.info.id, born_dead) {
                Ok(to) => {
                    emptied.bytes += item.entry.size;
                    copy.to = Ref(to);
                }
                Err(error) => {
                    self.copies.truncate(at);
                    return Err(self.core.explain(error));
                }
            }
        }
        Ok(())
    }

    /// Puts the copies in the place of their sources, where these are still current. Returns true if some were not; a
    /// fence must follow then.
    fn swing(&self, writer: &mut Writer<'_>, emptied: &mut Emptied) -> bool {
        let core = self.core;
        let mut too_late = false;
        for (number, Copy { item, need, to }) in self.copies.iter().enumerate() {
            let item = &self.items[*item];
            if let Some(Copy { item: next, need: Need::Current(Some(hint)), .. }) = self.copies.get(number + AHEAD) {
                with_index!(self.items[*next].keyspace, index => index.prefetch_hint(*hint));
            }
            match need {
                Need::Tombstone => emptied.tombstones += 1,
                Need::Shown(retained) => {
                    // A snapshot does not outlive the process, so there is nothing to wait for.
                    retained.follow(*to);
                    writer.mark_dead(item.reference.0);
                    emptied.for_snapshots += 1;
                }
                Need::Current(hint) if item.swing(core, *hint, *to) => {
                    writer.mark_dead(item.reference.0);
                    emptied.moved += 1;
                }
                Need::Current(_) => {
                    too_late = true;
                    core.came_too_late(writer, item.keyspace, item.entry.key, item.reference, *to, emptied);
                }
            }
        }
        too_late
    }
}

impl<'b> Asked<'b> {
    fn clear(&mut self) {
        self.items.clear();
        self.keys.clear();
        self.refs.clear();
    }

    #[inline(always)]
    fn add(&mut self, at: usize, item: &Item<'b>) {
        self.items.push(at);
        self.keys.push(item.key());
        self.refs.push(item.reference);
    }

    fn ask(&mut self, core: &Core, keyspace: &Keyspace) {
        self.names.clear();
        self.names.resize(self.keys.len(), false);
        with_index!(keyspace, index => index.name_many(&self.keys, &self.refs, &mut self.names, &core.resolver()));
    }
}

impl Core {
    fn find_for_tombstone(&self, item: &Item<'_>) -> Found {
        let current = with_index!(item.keyspace, index => index.get(item.key(), &self.resolver()));
        if current.is_none() { Found::Nothing } else { Found::Other }
    }

    /// Handles a copy whose key was written meanwhile: marks it dead on media. The copy is garbage, unless a snapshot
    /// shows its source; that snapshot sees the copy from now on, and the source is garbage.
    pub(super) fn came_too_late(
        &self,
        writer: &mut Writer<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        source: Ref,
        copy: Ref,
        emptied: &mut Emptied,
    ) {
        emptied.too_late += 1;
        self.log.mark_dead_on_media(copy.0);
        // The writer that replaced the entry has saved it, before replacing it, for the snapshots that show it.
        let retained = self.snapshots.any().then(|| self.snapshots.retained(keyspace, key, source));
        match retained.flatten() {
            Some(retained) => {
                retained.follow(copy);
                writer.mark_dead(source.0);
            }
            None => writer.mark_dead(copy.0),
        }
    }

    /// Whether an entry is needed, and what for, given what the index has for its key.
    #[inline(always)]
    fn need_of(&self, pass: &Pass<'_>, item: &Item<'_>, found: Found) -> Option<Need> {
        match found {
            Found::This(hint) => return Some(Need::Current(hint)),
            // Under something newer a tombstone is not needed: that entry, or one that supersedes it, stays.
            Found::Nothing => return (!pass.may_drop_tombstone(item.version)).then_some(Need::Tombstone),
            Found::Other => {}
        }
        if item.entry.op() == Op::Delete || !self.snapshots.any() {
            return None;
        }
        self.snapshots.retained(item.keyspace, item.entry.key, item.reference).map(Need::Shown)
    }
}

/// Looks for the entries where their shortcuts lead. A reference names one entry: if the index has it there, the entry
/// is current, and its key need not be compared.
fn follow_shortcuts(items: &[Item<'_>], found: &mut [Found], emptied: &mut Emptied) {
    for (item, found) in items.iter().zip(found) {
        let Some(hint) = item.hint else { continue };
        if let Some(there) = with_index!(item.keyspace, index => index.find_at_hint(hint, item.key(), item.reference)) {
            *found = Found::This(Some(there.hint));
            emptied.shortcuts[usize::from(there.sibling)] += 1;
        }
    }
}

impl Item<'_> {
    /// Replaces the entry in the index if it is still there. (Its place cannot have been used again: the victim is not
    /// free.)
    #[inline(always)]
    fn swing(&self, core: &Core, hint: Option<u64>, copy: Ref) -> bool {
        with_index!(self.keyspace, index => {
            hint.is_some_and(|hint| index.update_at_hint(hint, self.key(), self.reference, copy))
                || index.install(index.any_token(), self.key(), self.reference, copy, &core.resolver()).is_ok()
        })
    }
}
