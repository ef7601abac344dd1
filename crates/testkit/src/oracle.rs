//! Defines what a store may hold after a crash, and compares it with what the store does hold.
//!
//! # What is demanded
//!
//! A history is a sequence of [`Deed`]s of one thread. At a crash point each write is one of these:
//!
//! * *not begun*: no effect of the write may be found;
//! * *certain*: the store acknowledged it as durable (sync level, or the ticket was durable), or it was relaxed and
//!   something later covers it. A sync of the store covers it, and so does an answer of the store that depends on it
//!   (rule 2): a read at the store's level, or a refused compare-and-swap. A certain write must be found, unless a
//!   later write of the same key is found instead;
//! * *open*: in flight, or relaxed (process level, or a ticket that was not awaited) and not covered. It may be found
//!   or not.
//!
//! From this follows:
//!
//! * A key holds the effect of its last certain write or of a later open one, never of an earlier one. An older value
//!   never replaces a newer durable one.
//! * No order is promised between open writes of different keys.
//! * A batch is found whole or not at all: one of its keys must not show the batch while another shows an older write.
//! * Keyspace changes are atomic, and durable when they return. An exchange of names under way has happened for all its
//!   pairs or for none; if it has happened, everything before it is certain.
//! * Nothing else is found: no other key, no other value (each value names its write), no other keyspace.
//!
//! After the death of the process alone, every write that returned is certain: see [`Expectation::at_kill`].

use hither_engine::{Direction, Kind, ScanRange, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};

/// One change of one key.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Number of the keyspace in [`History::keyspaces`].
    pub keyspace: usize,
    /// The key.
    pub key: Vec<u8>,
    /// Its new value; `None` deletes.
    pub value: Option<Vec<u8>>,
    /// The value has already expired: readers see no value, but the key may count.
    pub expired: bool,
}

/// The kind of an operation, with its effect.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Changes that happen all or not at all, and whether they were durable when the call returned.
    Write(Vec<Effect>, bool),
    /// The store deleted an expired key; no caller was informed.
    Sweep(Effect),
    /// The store gave an answer that depends on the last write of a key.
    Answer(usize, Vec<u8>),
    /// Everything before became durable.
    Sync,
    /// A keyspace was created.
    Create(usize),
    /// A keyspace was dropped.
    Drop(usize),
    /// Pairs of keyspaces took each other's name, and everything before became durable.
    Swap(Vec<(usize, usize)>),
    /// Anything without effect on the content.
    Other,
}

/// An operation, with the positions of the recording between which it ran.
#[derive(Clone, Debug)]
pub struct Done {
    /// Steps recorded before it began.
    pub begin: usize,
    /// Steps recorded when it returned.
    pub end: usize,
    /// The operation.
    pub deed: Deed,
}

/// All operations of a store's life.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Every keyspace that ever existed, with its first name. A name that is used again gets a new number.
    pub keyspaces: Vec<(String, Kind)>,
    /// The operations.
    pub deeds: Vec<Done>,
}

/// One of the states that a key may have.
#[derive(Clone, Debug)]
struct Candidate {
    /// Position of the write in the history; `None`: the key was never written.
    writer: Option<usize>,
    value: Option<Vec<u8>>,
    expired: bool,
}

impl Candidate {
    fn shown(&self) -> Option<&[u8]> {
        self.value.as_deref().filter(|_| !self.expired)
    }
}

type Slot = (usize, Vec<u8>);

/// What a store may hold after a crash at one position.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// By number: `None` if the keyspace must not exist, `Some(false)` if it may exist, `Some(true)` if it must.
    keyspaces: Vec<Option<bool>>,
    names: Vec<(String, Kind)>,
    keys: BTreeMap<Slot, Vec<Candidate>>,
    /// Open writes of several keys: position in the history, and the keys.
    batches: Vec<(usize, Vec<Slot>)>,
    /// The other possible state: the exchange of names that was under way has happened.
    swapped: Option<Box<Expectation>>,
}

impl Expectation {
    /// For a crash after `position` steps.
    pub fn at(history: &History, position: usize) -> Expectation {
        Expectation::with(history, position, certain_writes)
    }

    /// For the death of the process after `position` steps: every write that returned is certain, whatever its level.
    pub fn at_kill(history: &History, position: usize) -> Expectation {
        Expectation::with(history, position, returned_writes)
    }

    fn with(history: &History, position: usize, certain: Certain) -> Expectation {
        let begun = history.deeds.partition_point(|done| done.begin < position || done.end <= position);
        let deeds = &history.deeds[..begun];
        let mut expectation = Expectation::of(history, deeds, position, certain);
        if let Some(Done { end, deed: Deed::Swap(_), .. }) = deeds.last()
            && *end > position
        {
            expectation.swapped = Some(Box::new(Expectation::of(history, deeds, *end, certain)));
        }
        expectation
    }

    /// The expectation after `deeds` and a crash at `position`, if an exchange of names that was under way has not
    /// happened.
    fn of(history: &History, deeds: &[Done], position: usize, certain: Certain) -> Expectation {
        let certain = certain(deeds, position);
        let mut expectation = Expectation {
            keyspaces: vec![None; history.keyspaces.len()],
            names: history.keyspaces.clone(),
            keys: BTreeMap::new(),
            batches: Vec::new(),
            swapped: None,
        };
        for (number, done) in deeds.iter().enumerate() {
            let returned = done.end <= position;
            match &done.deed {
                Deed::Create(keyspace) => expectation.keyspaces[*keyspace] = Some(returned),
                Deed::Drop(keyspace) => expectation.keyspaces[*keyspace] = if returned { None } else { Some(false) },
                Deed::Swap(pairs) if returned => pairs.iter().for_each(|pair| expectation.swap_names(*pair)),
                Deed::Write(effects, _) => expectation.write(number, effects, certain.contains(&number)),
                Deed::Sweep(effect) => expectation.write(number, std::slice::from_ref(effect), certain.contains(&number)),
                _ => {}
            }
        }
        expectation
    }

    fn write(&mut self, number: usize, effects: &[Effect], certain: bool) {
        for effect in effects {
            let nothing = Candidate { writer: None, value: None, expired: false };
            let candidates = self.keys.entry((effect.keyspace, effect.key.clone())).or_insert_with(|| vec![nothing]);
            if certain {
                candidates.clear();
            }
            candidates.push(Candidate { writer: Some(number), value: effect.value.clone(), expired: effect.expired });
        }
        if !certain && effects.len() > 1 {
            self.batches.push((number, effects.iter().map(|effect| (effect.keyspace, effect.key.clone())).collect()));
        }
    }

    fn swap_names(&mut self, (a, b): (usize, usize)) {
        let name = self.names[a].0.clone();
        self.names[a].0 = std::mem::replace(&mut self.names[b].0, name);
    }

    /// Compares the expectation with what was found; an error describes the difference.
    pub fn judge(&self, found: &Dump) -> Result<(), String> {
        self.judge_one(found).or_else(|before| match &self.swapped {
            Some(swapped) => swapped.judge_one(found).map_err(|after| format!("neither before a swap: {before}; nor after it: {after}")),
            None => Err(before),
        })
    }

    fn judge_one(&self, found: &Dump) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let mut possible: BTreeMap<&Slot, (Option<usize>, Option<usize>)> = BTreeMap::new();
        for (number, presence) in self.keyspaces.iter().enumerate() {
            let (name, kind) = &self.names[number];
            let Some(certain) = presence else { continue };
            let Some(contents) = found.keyspaces.get(name) else {
                if *certain {
                    return Err(format!("keyspace \"{name}\" is missing"));
                }
                continue;
            };
            if contents.kind != *kind || !seen.insert(name) {
                return Err(format!("keyspace \"{name}\" is of the wrong kind or there twice"));
            }
            self.judge_keyspace(number, contents, &mut possible)?;
        }
        if let Some(stranger) = found.keyspaces.keys().find(|name| !seen.contains(name)) {
            return Err(format!("keyspace \"{stranger}\" should not be there"));
        }
        self.judge_batches(&possible)
    }

    /// Judges one keyspace. For each key, `possible` gets the oldest and the newest write whose effect the key may
    /// show.
    fn judge_keyspace<'a>(
        &'a self,
        number: usize,
        contents: &Contents,
        possible: &mut BTreeMap<&'a Slot, (Option<usize>, Option<usize>)>,
    ) -> Result<(), String> {
        let (mut hidden, mut known) = (0, 0);
        for (slot, candidates) in self.keys.range((number, Vec::new())..(number + 1, Vec::new())) {
            let value = contents.pairs.get(&slot.1).map(Vec::as_slice);
            known += usize::from(value.is_some());
            let mut fitting = candidates.iter().filter(|candidate| candidate.shown() == value).map(|candidate| candidate.writer);
            let Some(first) = fitting.next() else {
                let allowed: Vec<_> = candidates.iter().map(|c| (c.writer, c.shown().map(brief))).collect();
                return Err(format!(
                    "key {} of keyspace {number} is {:?}; allowed (by write): {allowed:?}",
                    brief(&slot.1),
                    value.map(brief)
                ));
            };
            possible.insert(slot, (first, fitting.next_back().unwrap_or(first)));
            hidden += usize::from(value.is_none() && candidates.iter().any(|candidate| candidate.expired));
        }
        if known != contents.pairs.len() {
            let strangers: Vec<_> = contents.pairs.keys().filter(|key| !self.keys.contains_key(&(number, (*key).clone()))).collect();
            return Err(format!("keyspace {number} holds keys that were never written: {strangers:?}"));
        }
        if contents.len < known || contents.len > known + hidden {
            return Err(format!("keyspace {number} counts {} keys, {known} are there and at most {hidden} hidden", contents.len));
        }
        Ok(())
    }

    fn judge_batches(&self, possible: &BTreeMap<&Slot, (Option<usize>, Option<usize>)>) -> Result<(), String> {
        for (number, slots) in &self.batches {
            let ranges: Vec<_> = slots.iter().filter_map(|slot| possible.get(slot)).collect();
            let there = ranges.iter().all(|(_, newest)| *newest >= Some(*number));
            // If the batch was lost, each key shows an older write, or possibly a newer one.
            let lost = ranges.iter().all(|(oldest, newest)| *oldest < Some(*number) || *newest > Some(*number));
            if !there && !lost {
                return Err(format!("batch {number} is there in part: {ranges:?}"));
            }
        }
        Ok(())
    }

    /// All keys ever written, in keyspaces that may exist; for probing with gets.
    pub fn known_keys(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.keys.keys().filter(|slot| self.keyspaces[slot.0].is_some()).map(|slot| (self.names[slot.0].0.as_str(), slot.1.as_slice()))
    }
}

/// Selects the writes that must survive a crash at a position.
type Certain = fn(&[Done], usize) -> BTreeSet<usize>;

/// The writes that must survive the death of the process: all that returned. Sweeps are not among them: they delete
/// what no reader sees, and no caller was informed.
fn returned_writes(deeds: &[Done], position: usize) -> BTreeSet<usize> {
    let returned = |done: &Done| done.end <= position && matches!(done.deed, Deed::Write(..));
    deeds.iter().enumerate().filter(|(_, done)| returned(done)).map(|(number, _)| number).collect()
}

/// The writes that must survive a power loss.
fn certain_writes(deeds: &[Done], position: usize) -> BTreeSet<usize> {
    let mut certain = BTreeSet::new();
    let mut last: BTreeMap<Slot, usize> = BTreeMap::new();
    for (number, done) in deeds.iter().enumerate().filter(|(_, done)| done.end <= position) {
        match &done.deed {
            Deed::Write(effects, durable) => {
                last.extend(effects.iter().map(|effect| ((effect.keyspace, effect.key.clone()), number)));
                if *durable {
                    certain.insert(number);
                }
            }
            Deed::Sweep(effect) => drop(last.insert((effect.keyspace, effect.key.clone()), number)),
            Deed::Answer(keyspace, key) => certain.extend(last.get(&(*keyspace, key.clone()))),
            Deed::Sync | Deed::Swap(_) => certain.extend(last.values()),
            _ => {}
        }
    }
    certain
}

/// The content of a keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Its kind.
    pub kind: Kind,
    /// Keys and values.
    pub pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The number of keys that the keyspace reports.
    pub len: usize,
}

/// The content of a store.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Dump {
    /// Contents by the keyspace's name.
    pub keyspaces: BTreeMap<String, Contents>,
}

impl Dump {
    /// Reads a store in every way there is; returns an error if the results differ.
    pub fn read(store: &Store) -> Result<Dump, String> {
        let mut dump = Dump::default();
        for info in store.keyspaces() {
            let keyspace = store.open_keyspace(&info.name).ok_or("a listed keyspace cannot be opened")?;
            let mut pairs = BTreeMap::new();
            let mut twice = false;
            store
                .for_each(&keyspace, |key, value| {
                    twice |= pairs.insert(key.to_vec(), value.to_vec()).is_some();
                    ControlFlow::Continue(())
                })
                .map_err(|error| error.to_string())?;
            if twice {
                return Err(format!("a key of \"{}\" was visited twice", info.name));
            }
            for (key, value) in &pairs {
                let same = store.get_with(&keyspace, key, |found| found == value.as_slice()).map_err(|error| error.to_string())?;
                if same != Some(true) {
                    return Err(format!("a get of {} in \"{}\" does not agree with iteration", brief(key), info.name));
                }
            }
            if info.kind == Kind::Ordered {
                scans_agree(store, &info.name, &pairs)?;
            }
            dump.keyspaces.insert(info.name, Contents { kind: info.kind, pairs, len: keyspace.len() });
        }
        Ok(dump)
    }
}

fn scans_agree(store: &Store, name: &str, pairs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), String> {
    let keyspace = store.open_keyspace(name).ok_or("a listed keyspace cannot be opened")?;
    for direction in [Direction::Forward, Direction::Backward] {
        let mut found = Vec::new();
        let range = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction, expect: usize::MAX };
        store
            .scan(&keyspace, &range, |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .map_err(|error| error.to_string())?;
        if direction == Direction::Backward {
            found.reverse();
        }
        if !found.iter().map(|(key, value)| (key, value)).eq(pairs.iter()) {
            return Err(format!("a scan {direction:?} of \"{name}\" does not agree with gets"));
        }
    }
    Ok(())
}

/// Runs the store's own check and verifies that its byte and segment counts add up exactly.
pub fn sound(store: &Store) -> Result<(), String> {
    let report = store.check().map_err(|error| error.to_string())?;
    if !report.is_sound() {
        return Err(format!("check: {:?}", report.problems));
    }
    for pool in store.stats().pools {
        let usage = &pool.usage;
        // Live is what is left in each segment, so this fails where more counts as dead or tombstones than was written.
        // Whether what is left is live, and the tombstones are there, was part of the check.
        if usage.written_bytes != usage.live_bytes + usage.dead_bytes + usage.tombstone_bytes {
            return Err(format!("node {}: written bytes are not live, dead and tombstone bytes: {usage:?}", pool.node));
        }
        if usage.segments != usage.free + usage.open + usage.closed + usage.retiring {
            return Err(format!("node {}: segments do not add up: {usage:?}", pool.node));
        }
    }
    Ok(())
}

/// Describes a long byte string: its first bytes and its length.
pub fn brief(bytes: &[u8]) -> String {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(16)]).escape_debug().to_string();
    format!("\"{head}\"({})", bytes.len())
}
