//! What a power failure and a death of the process leave.

use super::bounds::{Bounds, KEYS};
use super::media::{Mark, Media};
use super::state::{Phase, State};
use super::step::Step;
use super::writer::Next;

/// One thing that a power failure may lose: an entry, or the mark of an entry, by segment and slot.
enum Loose {
    Entry(usize, usize),
    Mark(usize, usize),
}

fn loose(media: &Media) -> Vec<Loose> {
    let mut all = Vec::new();
    for (number, segment) in media.segments.iter().enumerate().filter(|(_, segment)| segment.in_use) {
        for (slot, entry) in segment.slots.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if !entry.durable {
                all.push(Loose::Entry(number, slot));
            }
            if entry.mark == Mark::Written {
                all.push(Loose::Mark(number, slot));
            }
        }
    }
    all
}

/// The media if only the things in `kept` survive, one bit for each.
fn survivors(media: &Media, loose: &[Loose], kept: u16) -> Media {
    let mut left = media.clone();
    for (bit, thing) in loose.iter().enumerate() {
        let survives = kept & 1 << bit != 0;
        match *thing {
            Loose::Entry(number, slot) => {
                let place = &mut left.segments[number].slots[slot];
                if survives {
                    place.iter_mut().for_each(|entry| entry.durable = true);
                } else {
                    *place = None;
                }
            }
            Loose::Mark(number, slot) => {
                if let Some(entry) = &mut left.segments[number].slots[slot] {
                    entry.mark = if survives { Mark::Dead } else { Mark::Alive };
                }
            }
        }
    }
    left
}

/// Everything that a power failure may leave: the step that describes it, the media, and whether the clock still shows
/// the time of expiry.
pub fn images(state: &State) -> Vec<(Step, Media, bool)> {
    let loose = loose(&state.media);
    let mut images = Vec::new();
    for kept in 0..1u16 << loose.len() {
        let left = survivors(&state.media, &loose, kept);
        let files: &[bool] = if left.pending.is_some() { &[false, true] } else { &[false] };
        for &old_checkpoint in files {
            let mut media = left.clone();
            if let Some(pending) = media.pending.take() {
                media.checkpoint = if old_checkpoint { media.checkpoint } else { pending };
            }
            let clocks: &[bool] = if state.wall { &[false, true] } else { &[false] };
            for &clock_back in clocks {
                let step = Step::PowerFails { kept, of: loose.len() as u8, old_checkpoint, clock_back };
                images.push((step, media.clone(), state.wall && !clock_back));
            }
        }
    }
    images
}

/// Adds power failures and deaths of the process.
pub fn steps(_: &Bounds, state: &State, next: &mut Next) {
    if state.budget.failures > 0 {
        for (step, media, wall) in images(state) {
            let mut after = State { media, wall, ..state.clone() };
            after.budget.failures -= 1;
            after.lose_memory();
            next.push((step, after));
        }
    }
    if state.budget.kills > 0 {
        let mut after = state.clone();
        after.budget.kills -= 1;
        after.lose_memory();
        next.push((Step::Die, after));
    }
    debug_assert!(state.phase == Phase::Running || state.index == [None; KEYS], "an opening has no index yet");
}
