//! The properties that must hold.
//!
//! * *Acknowledged writes are there*: whatever a failure leaves, each key has its newest acknowledged write or a later
//!   one.
//! * *Nothing comes back*: for the same reason a key never has an older write. An expired value stays gone once a
//!   reader was told that it is.
//! * *Batches are whole or absent.*
//! * *Index and recovery agree* on what each key shows, whenever no writer is in its section and no collector moves
//!   entries.
//! * *References hold*: neither the index nor a snapshot nor a reader names a free or reused slot, and each finds the
//!   value that it must find.
//! * *Chains hold*: every entry that is not dead, not a tombstone and not the newest of its key is linked to by one
//!   that is not dead.

use super::bounds::{Bounds, KEYS};
use super::media::{Entry, Kind, Media, Place};
use super::recovery::recover;
use super::state::{Phase, State, Unsettled};
use super::step::Step;
use super::writer::has_expired;

/// A property that does not hold: the power failure that reveals it, if one is needed, and a description.
pub type Broken = (Option<Step>, String);

fn name(key: usize) -> char {
    char::from(b'a' + key as u8)
}

/// The entry at the place that the index names for `key`; an error if no entry of that key lies there.
fn named(media: &Media, key: usize, place: Place) -> Result<&Entry, String> {
    let entry = media.at(place).filter(|entry| entry.key as usize == key);
    entry.ok_or_else(|| format!("the index names {place} for {}, where no entry of that key lies", name(key)))
}

/// Checks a state of a running store.
pub fn running(bounds: &Bounds, state: &State) -> Result<(), String> {
    if state.phase != Phase::Running {
        return Ok(());
    }
    for (key, place) in state.index.iter().enumerate() {
        if let Some(place) = *place {
            named(&state.media, key, place)?;
        }
    }
    if let Some((place, value)) = state.reader
        && state.media.remains(place).is_none_or(|entry| entry.value != value)
    {
        return Err(format!("a reader holds {place}, where its value lies no more"));
    }
    snapshot(state)?;
    if state.writers_idle() && !state.collector_moves() {
        agreement(bounds, state)?;
    }
    Ok(())
}

fn snapshot(state: &State) -> Result<(), String> {
    let Some(snapshot) = &state.snapshot else { return Ok(()) };
    for key in 0..KEYS {
        let current = state.index[key].filter(|&place| state.media.at(place).is_some_and(|entry| entry.version <= snapshot.version));
        let place = current.or(snapshot.saved[key]);
        let found = place.and_then(|place| state.media.at(place)).filter(|entry| entry.key as usize == key).map(|entry| entry.value);
        if found != snapshot.shows[key] {
            return Err(format!("the snapshot shows {found:?} for {}, and must show {:?}", name(key), snapshot.shows[key]));
        }
    }
    Ok(())
}

/// The value that a key shows; none if the entry that the index names has expired.
fn shown(bounds: &Bounds, state: &State, media: &Media, place: Option<Place>) -> Option<u8> {
    let entry = place.and_then(|place| media.at(place))?;
    (entry.kind != Kind::Expiring || !has_expired(state, bounds)).then_some(entry.value)
}

fn agreement(bounds: &Bounds, state: &State) -> Result<(), String> {
    let (media, recovered) = recover(bounds, state.media.clone());
    for (key, (now, then)) in state.index.iter().zip(recovered).enumerate() {
        let (running, after) = (shown(bounds, state, &state.media, *now), shown(bounds, state, &media, then));
        if running != after {
            return Err(format!("{} has write {running:?} in the index, and recovery would find {after:?}", name(key)));
        }
    }
    Ok(())
}

/// Checks the chain of each key.
pub fn chains(state: &State) -> Result<(), String> {
    let media = &state.media;
    for (place, entry) in media.entries().filter(|(_, entry)| entry.alive() && entry.kind == Kind::Put) {
        let of_key = || media.entries().filter(|(at, other)| other.alive() && other.key == entry.key && *at != place);
        let behind = media.ancestors(entry, false);
        let newest = of_key().all(|(at, other)| other.version < entry.version || (other.version == entry.version && behind.contains(&at)));
        if !newest && !of_key().any(|(_, other)| other.parent == Some(place)) {
            return Err(format!("the entry of {} at {place} is not dead, not the newest, and on no chain", name(entry.key as usize)));
        }
    }
    Ok(())
}

/// Checks that what recovery finds in an image keeps the promises.
pub fn image(bounds: &Bounds, state: &State, media: Media, wall: bool) -> Result<(), String> {
    let (media, index) = recover(bounds, media);
    let after = State { wall, ..state.clone() };
    let after = State { media, ..after };
    for (key, place) in index.iter().enumerate() {
        if let Some(place) = *place {
            named(&after.media, key, place)?;
        }
        keeps_promise(&after, key, shown(bounds, &after, &after.media, *place))?;
    }
    batches(bounds, &after, &index)
}

fn keeps_promise(state: &State, key: usize, found: Option<u8>) -> Result<(), String> {
    let promise = &state.promises[key];
    let later = |wanted: &dyn Fn(Kind, u8) -> bool| promise.later.iter().any(|write| wanted(write.kind, write.value));
    let allowed = match found {
        None => {
            let expired = promise.expiring && state.time_came;
            promise.value.is_none() || expired || later(&|kind, _| kind == Kind::Delete || (kind == Kind::Expiring && state.time_came))
        }
        Some(value) => {
            let expires = state.media.entries().any(|(_, entry)| entry.value == value && entry.kind == Kind::Expiring);
            (promise.value == Some(value) || later(&|_, write| write == value)) && !(expires && state.expiry_seen)
        }
    };
    if allowed {
        return Ok(());
    }
    let found = found.map_or("nothing".to_owned(), |value| format!("write {value}"));
    let wanted = promise.value.map_or("that it is absent".to_owned(), |value| format!("write {value}"));
    Err(format!("recovery finds {found} for {}; acknowledged was {wanted}, later writes {:?}", name(key), promise.later))
}

/// Checks each batch that was not acknowledged: either all of it or nothing of it can have happened.
fn batches(bounds: &Bounds, state: &State, index: &[Option<Place>; KEYS]) -> Result<(), String> {
    let all = state.promises.iter().flat_map(|promise| &promise.later).filter(|write| write.batch != 0).map(|write| write.batch);
    for batch in all {
        let (mut may_be_there, mut may_be_absent) = (true, true);
        for key in 0..KEYS {
            if let Some((there, absent)) = member(bounds, state, index, batch, key) {
                may_be_there &= there;
                may_be_absent &= absent;
            }
        }
        if !may_be_there && !may_be_absent {
            return Err(format!("only a part of the batch of write {batch} is there"));
        }
    }
    Ok(())
}

/// Whether the batch's write of a key may have happened, and whether it may not have; `None` if the batch did not write
/// it.
fn member(bounds: &Bounds, state: &State, index: &[Option<Place>; KEYS], batch: u8, key: usize) -> Option<(bool, bool)> {
    let promise = &state.promises[key];
    let at = promise.later.iter().position(|write| write.batch == batch)?;
    match shown(bounds, state, &state.media, index[key]) {
        Some(value) => {
            // A later write of this key hides whether the write of the batch was there before.
            let found = promise.later.iter().position(|write| write.value == value);
            Some((found.is_some_and(|found| found >= at), found != Some(at)))
        }
        None => {
            let deletes = |kind: Kind| kind != Kind::Put;
            let there = promise.later[at..].iter().any(|write| deletes(write.kind));
            // If the batch did not happen, something else must have made the key absent.
            let others = |write: &Unsettled| write.batch != batch && deletes(write.kind);
            let absent = promise.value.is_none() || promise.expiring || promise.later.iter().any(others);
            Some((there, absent))
        }
    }
}
