//! The steps of writers, snapshots, readers and time.

use super::bounds::{Bounds, Collector, KEYS, Medium, Op};
use super::flaw::Flaw;
use super::media::{Entry, Kind, Mark, Place};
use super::state::{Snapshot, State, Unsettled, WriterAt};
use super::step::Step;

/// The steps that may come next, each with the state that it leads to.
pub type Next = Vec<(Step, State)>;

/// Whether the time of expiry has come.
pub fn has_expired(state: &State, bounds: &Bounds) -> bool {
    state.wall || (state.media.clock && !bounds.lacks(Flaw::ClockRunsBack))
}

/// Adds what the writers may do next.
pub fn steps(bounds: &Bounds, state: &State, next: &mut Next) {
    for number in 0..bounds.writers as u8 {
        match state.writers[number as usize].at {
            WriterAt::Idle => begin(bounds, state, number, next),
            WriterAt::Located => append(bounds, state, number, next),
            WriterAt::Appended if bounds.medium == Medium::Fence => persist(state, number, next),
            WriterAt::Appended | WriterAt::Persisted => install(bounds, state, number, 0, next),
            WriterAt::Installed(done) => install(bounds, state, number, done, next),
        }
    }
    let uncommitted = state.promises.iter().any(|promise| !promise.later.is_empty());
    if bounds.medium == Medium::Sync && uncommitted && state.quiet() {
        let mut after = state.clone();
        after.commit();
        next.push((Step::Commit, after));
    }
}

fn begin(bounds: &Bounds, state: &State, number: u8, next: &mut Next) {
    let latching = !bounds.lacks(Flaw::NoLatch);
    for (at, &(op, _)) in bounds.ops.iter().enumerate() {
        let free = op.keys().iter().all(|&key| !latching || !state.latched[key as usize]);
        // Deleting an absent key writes nothing.
        let vain = match op {
            Op::Delete(key) => state.index[key as usize].is_none(),
            Op::Move => state.index[0].is_none(),
            _ => false,
        };
        if state.budget.ops[at] == 0 || !free || vain {
            continue;
        }
        let mut after = state.clone();
        after.budget.ops[at] -= 1;
        let writer = &mut after.writers[number as usize];
        (writer.at, writer.op) = (WriterAt::Located, op);
        for &key in op.keys() {
            let key = key as usize;
            writer.old[key] = state.index[key];
            let tombstone = state.tombstones[key].filter(|_| !bounds.lacks(Flaw::TombstoneNotLinked));
            writer.links[key] = state.index[key].or(tombstone);
            after.latched[key] = latching;
        }
        next.push((Step::Begin { writer: number, op }, after));
    }
}

fn append(bounds: &Bounds, state: &State, number: u8, next: &mut Next) {
    let mut after = state.clone();
    let (op, links) = (state.writers[number as usize].op, state.writers[number as usize].links);
    let size = op.keys().len() as u8;
    let shard = if bounds.shards > 1 { number } else { 0 };
    let first = after.next_value;
    for (member, &key) in op.keys().iter().enumerate() {
        let Some(place) = after.media.reserve(shard, bounds.segments, bounds.slots) else { return };
        let kind = match op {
            Op::Delete(_) => Kind::Delete,
            Op::Move if key == 0 => Kind::Delete,
            Op::Expiring(_) => Kind::Expiring,
            Op::Put(_) | Op::Batch | Op::Move => Kind::Put,
        };
        let entry = Entry {
            key,
            version: after.next_version,
            value: after.next_value,
            kind,
            parent: links[key as usize],
            copy: false,
            batch: if size > 1 { size } else { 0 },
            member: member as u8,
            mark: Mark::Alive,
            durable: false,
        };
        (after.next_version, after.next_value) = (after.next_version + 1, after.next_value + 1);
        after.media.store(place, entry);
        after.writers[number as usize].new[key as usize] = Some(place);
        let batch = if size > 1 { first } else { 0 };
        after.promises[key as usize].later.push(Unsettled { value: entry.value, kind, batch });
    }
    after.writers[number as usize].at = WriterAt::Appended;
    let at = after.writers[number as usize].new.iter().flatten().next().copied().expect("an operation has a key");
    next.push((Step::Append { writer: number, at }, after));
}

fn persist(state: &State, number: u8, next: &mut Next) {
    let mut after = state.clone();
    for place in state.writers[number as usize].new.into_iter().flatten() {
        after.media.entry_mut(place).durable = true;
    }
    after.writers[number as usize].at = WriterAt::Persisted;
    next.push((Step::Persist { writer: number }, after));
}

/// Installs the next key; if all are installed, acknowledges the write.
fn install(bounds: &Bounds, state: &State, number: u8, done: u8, next: &mut Next) {
    let writer = state.writers[number as usize];
    let mut after = state.clone();
    let Some(&key) = writer.op.keys().get(done as usize) else {
        return acknowledge(bounds, after, number, next);
    };
    let new = writer.new[key as usize].expect("it was appended");
    let entry = *state.media.at(new).expect("its segment is open");
    // Takes the current reference, not the one that the writer read: a collector without latches may have moved the
    // entry since.
    let stale = bounds.lacks(Flaw::RetainedAtSource) || bounds.lacks(Flaw::NoLatch) || bounds.lacks(Flaw::CopyGetsNewVersion);
    let old = if stale { writer.old[key as usize] } else { state.index[key as usize] };
    retain(&mut after, key, old, entry.version);
    note_garbage(bounds, &mut after, key, old);
    after.index[key as usize] = (entry.kind != Kind::Delete).then_some(new);
    after.tombstones[key as usize] = (entry.kind == Kind::Delete && !entry.durable).then_some(new);
    after.writers[number as usize].at = WriterAt::Installed(done + 1);
    next.push((Step::Install { writer: number, key }, after));
}

fn acknowledge(bounds: &Bounds, mut after: State, number: u8, next: &mut Next) {
    let writer = after.writers[number as usize];
    for &key in writer.op.keys() {
        after.latched[key as usize] = false;
        if bounds.medium == Medium::Fence {
            let new = writer.new[key as usize].expect("it was appended");
            let value = after.media.at(new).expect("its segment is not freed in its section").value;
            let promise = &mut after.promises[key as usize];
            let count = promise.later.iter().position(|write| write.value == value).map_or(0, |at| at + 1);
            promise.keep(count);
        }
    }
    after.writers[number as usize].reset();
    next.push((Step::Acknowledge { writer: number }, after));
}

/// Records the overwritten entry as garbage, unless it was saved for the snapshot.
fn note_garbage(bounds: &Bounds, state: &mut State, key: u8, old: Option<Place>) {
    let Some(old) = old.filter(|_| bounds.collector == Collector::Batched) else { return };
    let retained = state.snapshot.is_some_and(|snapshot| snapshot.saved[key as usize] == Some(old));
    if !retained || bounds.lacks(Flaw::ShownPassesForGarbage) {
        state.note_garbage(old);
    }
}

/// Saves the old reference for the snapshot, at the first overwrite.
fn retain(state: &mut State, key: u8, old: Option<Place>, version: u8) {
    let (Some(snapshot), Some(old)) = (&mut state.snapshot, old) else { return };
    let shown = state.media.at(old).is_some_and(|entry| entry.version <= snapshot.version);
    if shown && version > snapshot.version && snapshot.saved[key as usize].is_none() {
        snapshot.saved[key as usize] = Some(old);
    }
}

/// Adds the steps of snapshots and lookups.
pub fn readers(bounds: &Bounds, state: &State, next: &mut Next) {
    if state.snapshot.is_some() {
        next.push((Step::ReleaseSnapshot, State { snapshot: None, ..state.clone() }));
    } else if state.budget.snapshots > 0 && state.quiet() {
        let mut after = state.clone();
        after.budget.snapshots -= 1;
        let version = after.draw_stable();
        let shows = state.index.map(|place| place.and_then(|place| state.media.at(place)).map(|entry| entry.value));
        after.snapshot = Some(Snapshot { version, shows, saved: [None; KEYS] });
        next.push((Step::TakeSnapshot { version }, after));
    }
    if state.reader.is_some() {
        next.push((Step::EndRead, State { reader: None, ..state.clone() }));
    }
    for key in 0..KEYS as u8 {
        let Some((place, entry)) = state.index[key as usize].and_then(|place| Some((place, *state.media.at(place)?))) else { continue };
        if state.reader.is_none() && state.budget.reads > 0 {
            let mut after = State { reader: Some((place, entry.value)), ..state.clone() };
            after.budget.reads -= 1;
            next.push((Step::Read { key }, after));
        }
        if entry.kind == Kind::Expiring && has_expired(state, bounds) && !state.expiry_seen {
            let mut after = State { expiry_seen: true, ..state.clone() };
            after.media.clock = true;
            next.push((Step::SeeExpiry { key }, after));
        }
    }
}

/// Adds the step of the clock.
pub fn time(bounds: &Bounds, state: &State, next: &mut Next) {
    let expires = bounds.ops.iter().any(|(op, _)| matches!(op, Op::Expiring(_)));
    if expires && !state.wall && state.media.entries().any(|(_, entry)| entry.kind == Kind::Expiring) {
        next.push((Step::TimeComes, State { wall: true, time_came: true, ..state.clone() }));
    }
}
