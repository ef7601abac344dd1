//! The checkpointer: captures, draws a version, copies, secures and publishes; and discards a checkpoint.

use super::bounds::{Bounds, KEYS, SEGMENTS, SLOTS};
use super::flaw::Flaw;
use super::media::{COLD, Checkpoint, Media};
use super::state::{CheckpointerAt, CollectorAt, IDLE_CHECKPOINTER, Phase, State, SweeperAt};
use super::step::Step;
use super::writer::Next;

/// Adds what the checkpointer may do next.
pub fn steps(bounds: &Bounds, state: &State, next: &mut Next) {
    match state.checkpointer.at {
        CheckpointerAt::Idle => {
            capture(bounds, state, next);
            throw_away(state, next);
        }
        CheckpointerAt::Captured => draw(bounds, state, next),
        CheckpointerAt::Copying(done) if (done as usize) < KEYS => {
            let mut after = state.clone();
            after.checkpointer.named[done as usize] = state.index[done as usize];
            after.checkpointer.at = CheckpointerAt::Copying(done + 1);
            next.push((Step::CopyKey { key: done }, after));
        }
        CheckpointerAt::Copying(_) => secure(bounds, state, next),
        CheckpointerAt::Secured => {
            let mut after = state.clone();
            let c = &state.checkpointer;
            let table = generations(&state.media);
            after.media.pending = Some(Some(Checkpoint { version: c.version, named: c.named, covered: c.covered, table }));
            after.checkpointer = IDLE_CHECKPOINTER;
            after.checkpointer.at = CheckpointerAt::Published;
            next.push((Step::Publish, after));
        }
        CheckpointerAt::Published => {
            let mut after = state.clone();
            if let Some(pending) = after.media.pending.take() {
                after.media.checkpoint = pending;
            }
            after.checkpointer.at = CheckpointerAt::Idle;
            next.push((Step::SyncDirectory, after));
        }
    }
}

/// Generations of the segments in use; 0 for the others.
fn generations(media: &Media) -> [u8; SEGMENTS] {
    media.segments.map(|segment| if segment.in_use { segment.generation } else { 0 })
}

/// The covered segments: those that are full. The victim of a pass in progress counts, because everything in it is
/// installed.
fn covered(bounds: &Bounds, state: &State) -> [Option<(u8, u8)>; SEGMENTS] {
    std::array::from_fn(|number| {
        let segment = &state.media.segments[number];
        let full = segment.in_use && segment.used as usize >= bounds.slots;
        let collected = state.collector.at != CollectorAt::Idle && state.collector.victim as usize == number;
        (full && !(collected && bounds.lacks(Flaw::VictimNotCovered))).then_some((segment.generation, SLOTS as u8))
    })
}

/// Closes the collector's segments, makes everything durable and seals the full segments: these are covered.
fn capture(bounds: &Bounds, state: &State, next: &mut Next) {
    if state.budget.checkpoints == 0 || !state.writers_idle() || state.collector_moves() {
        return;
    }
    let mut after = state.clone();
    after.budget.checkpoints -= 1;
    after.commit();
    for segment in after.media.segments.iter_mut().filter(|segment| segment.in_use) {
        if segment.shard == COLD && !bounds.lacks(Flaw::ColdSegmentsStayOpen) {
            segment.used = bounds.slots as u8;
        }
        segment.sealed |= segment.used as usize >= bounds.slots;
    }
    after.checkpointer.covered = covered(bounds, &after);
    after.checkpointer.at = CheckpointerAt::Captured;
    next.push((Step::Capture, after));
}

fn draw(bounds: &Bounds, state: &State, next: &mut Next) {
    let quiet = state.writers_idle() && !state.collector_moves();
    if quiet || bounds.lacks(Flaw::NoWaitBeforeCopy) {
        let mut after = state.clone();
        let version = after.draw_stable();
        after.checkpointer.version = version;
        after.checkpointer.at = CheckpointerAt::Copying(0);
        next.push((Step::DrawVersion { version }, after));
    }
}

fn secure(bounds: &Bounds, state: &State, next: &mut Next) {
    let mut after = state.clone();
    if bounds.lacks(Flaw::CoveredAfterCopy) {
        after.checkpointer.covered = covered(bounds, state);
    }
    if !bounds.lacks(Flaw::PublishedEarly) {
        if !state.writers_idle() || state.collector_moves() {
            return;
        }
        after.draw_stable();
        after.commit();
    }
    after.checkpointer.at = CheckpointerAt::Secured;
    next.push((Step::SecureNamed, after));
}

fn throw_away(state: &State, next: &mut Next) {
    if state.budget.drops > 0 && state.media.checkpoint.is_some() {
        let mut after = state.clone();
        after.budget.drops -= 1;
        after.media.pending = Some(None);
        after.checkpointer.at = CheckpointerAt::Published;
        next.push((Step::DropCheckpoint, after));
    }
}

/// Closes the store cleanly: everything becomes durable, a checkpoint covers every segment up to its tail, and then the
/// clean flag is set.
pub fn close(state: &State, next: &mut Next) {
    let idle = state.collector.at == CollectorAt::Idle
        && state.sweeper.at == SweeperAt::Idle
        && state.checkpointer.at == CheckpointerAt::Idle
        && state.writers_idle();
    if state.budget.closes == 0 || !idle || state.snapshot.is_some() || state.reader.is_some() {
        return;
    }
    let mut after = state.clone();
    after.budget.closes -= 1;
    let version = after.draw_stable();
    after.commit();
    let covered = after.media.segments.map(|s| s.in_use.then_some((s.generation, if s.sealed { SLOTS as u8 } else { s.used })));
    let table = generations(&after.media);
    after.media.checkpoint = Some(Checkpoint { version, named: after.index, covered, table });
    after.media.pending = None;
    after.media.clean = true;
    after.lose_memory();
    debug_assert_eq!(after.phase, Phase::Found);
    next.push((Step::Close, after));
}
