//! Records what all pools of a store do, in one order, and replays it up to a crash.
//!
//! One [`Recorder`] watches every pool of a store. Its steps have one global order, so a crash point is the same moment
//! in all pools.
//!
//! A [`Recording`] may be edited before it is replayed; that is how a forgotten flush is planted. It may also be
//! continued by a second life: after the death of a *process* the next one sees what the caches hold, and only what the
//! next one flushes becomes durable.
//!
//! Thread safety: a recorder may be called from any thread. The replay knows which thread made which step: a fence makes
//! only its own thread's flushes durable.

use hither_pmem::shadow::{Event, ImageKind, Replay, ShadowLog, ShadowRng, What, thread_number};
use hither_pmem::{Emulate, StoreKind, SyncPhase, Tracer};
use std::sync::{Arc, Mutex, PoisonError};

/// The `pool` of a step that is not a step of a pool but a note of the test.
pub const NOTE: usize = usize::MAX;

/// The fewest images of a pool at a crash point that show every kind: everything lost, everything kept, one line lost,
/// one line kept, and two drawn at random.
pub const FEWEST: usize = 6;

/// One step of a recording.
#[derive(Clone, Debug)]
pub struct Step {
    /// The pool it happened in; [`NOTE`] for a note.
    pub pool: usize,
    /// The thread that made it ([`thread_number`]).
    pub thread: u64,
    /// What happened.
    pub what: What,
}

/// All steps of a store's pools during its life on a medium.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The medium's rules.
    pub rules: Emulate,
    /// Content of each pool before the first step.
    pub initial: Vec<Vec<u8>>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Recording {
    /// This life up to `position`, then `later`, which began with what the caches held at that moment: a killed process
    /// and its successor.
    ///
    /// What the dead threads had flushed or stored around the caches is durable with the successor's first fence: their
    /// processors run something else since then, and hold none of it back.
    pub fn killed_then(&self, position: usize, later: &Recording) -> Recording {
        let successor = later.steps.first().map_or(0, |step| step.thread);
        let mut steps: Vec<Step> = self.steps[..position].iter().map(|step| Step { thread: successor, ..step.clone() }).collect();
        steps.extend_from_slice(&later.steps);
        Recording { steps, ..self.clone() }
    }
}

/// Records the pools of one store.
pub struct Recorder(Mutex<Recording>);

impl Recorder {
    /// A recorder of `pools` pools that follow the rules of `rules`.
    pub fn new(rules: Emulate, pools: usize) -> Arc<Recorder> {
        Arc::new(Recorder(Mutex::new(Recording { rules, initial: vec![Vec::new(); pools], steps: Vec::new() })))
    }

    /// The tracer for pool number `pool`.
    pub fn tracer(self: &Arc<Self>, pool: usize) -> Arc<dyn Tracer> {
        Arc::new(PoolTracer { recorder: self.clone(), pool })
    }

    /// The number of steps so far.
    pub fn position(&self) -> usize {
        self.with(|recording| recording.steps.len())
    }

    /// The recording so far.
    pub fn recording(&self) -> Recording {
        self.with(|recording| recording.clone())
    }

    fn with<R>(&self, f: impl FnOnce(&mut Recording) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, pool: usize, what: What) {
        let thread = thread_number();
        self.with(|recording| recording.steps.push(Step { pool, thread, what }));
    }
}

struct PoolTracer {
    recorder: Arc<Recorder>,
    pool: usize,
}

impl Tracer for PoolTracer {
    fn attach(&self, image: &[u8]) {
        self.recorder.with(|recording| recording.initial[self.pool] = image.to_vec());
    }

    fn resize(&self, len: u64) {
        self.recorder.push(self.pool, What::Resize(len));
    }

    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind) {
        let zeros = bytes.len() > 64 && bytes.iter().all(|&byte| byte == 0);
        let what = if zeros { What::Zeros { off, len: bytes.len(), kind } } else { What::Store { off, bytes: bytes.into(), kind } };
        self.recorder.push(self.pool, what);
    }

    fn flush(&self, off: u64, len: usize) {
        self.recorder.push(self.pool, What::Flush { off, len });
    }

    fn fence(&self) {
        self.recorder.push(self.pool, What::Fence);
    }

    fn sync(&self, phase: SyncPhase) {
        self.recorder.push(self.pool, What::Sync(phase));
    }
}

/// The pools of a store being replayed to a crash point.
pub struct Machine {
    replays: Vec<Replay>,
    pools: Vec<usize>,
    /// For each pool, the positions of its own steps in the recording.
    steps: Vec<Vec<usize>>,
    rules: Emulate,
    at: usize,
}

impl Machine {
    /// A machine at the beginning of `recording`.
    pub fn new(recording: &Recording) -> Machine {
        let replays = recording.initial.iter().enumerate().map(|(pool, initial)| {
            let log = ShadowLog::new();
            log.attach(initial);
            for step in recording.steps.iter().filter(|step| step.pool == pool) {
                log.add(Event { thread: step.thread, what: step.what.clone() });
            }
            log.replay(recording.rules)
        });
        let pools: Vec<usize> = recording.steps.iter().map(|step| step.pool).collect();
        let of_pool = |pool: usize| (0..pools.len()).filter(|&step| pools[step] == pool).collect();
        let steps = (0..recording.initial.len()).map(of_pool).collect();
        Machine { replays: replays.collect(), pools, steps, rules: recording.rules, at: 0 }
    }

    /// Moves forward to the crash point after `position` steps.
    pub fn advance_to(&mut self, position: usize) {
        while self.at < position.min(self.pools.len()) {
            if let Some(replay) = self.replays.get_mut(self.pools[self.at]) {
                replay.step();
            }
            self.at += 1;
        }
    }

    /// What the running program sees in each pool.
    pub fn visible(&self) -> Vec<Vec<u8>> {
        self.replays.iter().map(|replay| replay.visible().to_vec()).collect()
    }

    /// Returns images of all pools that a power loss at this point may leave: all combinations if they fit the budget,
    /// otherwise the extremes and a sample. `budget` is the number of images per pool. If several pools have pending
    /// lines, the result is larger, because no image of one pool is left out in favour of another's.
    pub fn images(&mut self, budget: usize, rng: &mut ShadowRng) -> Vec<(Vec<Vec<u8>>, ImageKind)> {
        if self.rules == Emulate::Eadr && self.replays.len() > 1 {
            return self.ordered_images(budget, rng);
        }
        let mut combined: Vec<(Vec<Vec<u8>>, ImageKind)> = vec![(Vec::new(), ImageKind::Exhaustive)];
        for replay in &mut self.replays {
            let mut own = Vec::new();
            replay.for_each_image(budget, rng, |image, kind| own.push((image.to_vec(), kind)));
            combined = cross(combined, &own, budget, rng);
        }
        combined
    }
}

impl Machine {
    /// Images for media on which stores become durable in the order in which they were made. That is one order over all
    /// pools: a crash loses everything stored after some moment, in every pool, and any subset of the pending streaming
    /// stores, which go around the caches.
    fn ordered_images(&mut self, budget: usize, rng: &mut ShadowRng) -> Vec<(Vec<Vec<u8>>, ImageKind)> {
        let cuts = self.cuts();
        let (mut chosen, mut rest) = (vec![0], (1..cuts.len()).collect::<Vec<_>>());
        chosen.extend(rest.pop());
        // If streaming stores are pending, each cut takes several images.
        let is_streamed = self.replays.iter().any(|replay| replay.streamed_pending() > 0);
        let most = if is_streamed { (budget / 4).max(2) } else { budget };
        let all = cuts.len() <= most;
        while !rest.is_empty() && (all || chosen.len() < most) {
            chosen.push(rest.swap_remove(rng.below(rest.len())));
        }
        let each = (budget / chosen.len()).max(1);
        let mut images = Vec::new();
        for (number, cut) in chosen.into_iter().enumerate() {
            let kind = match number {
                _ if all => ImageKind::Exhaustive,
                0 => ImageKind::AllLost,
                1 => ImageKind::AllKept,
                _ => ImageKind::Sampled,
            };
            let mut combined: Vec<(Vec<Vec<u8>>, ImageKind)> = vec![(Vec::new(), kind)];
            for (replay, &ordered) in self.replays.iter_mut().zip(&cuts[cut]) {
                let mut own = Vec::new();
                replay.for_each_image_keeping(ordered, each, rng, |image, kind| own.push((image.to_vec(), kind)));
                combined = cross(combined, &own, each, rng);
            }
            images.append(&mut combined);
        }
        images
    }

    /// For each possible moment of the crash, how many of its pending ordered stores each pool keeps; one entry per
    /// different outcome, the earliest moment first.
    fn cuts(&self) -> Vec<Vec<usize>> {
        let (replays, steps) = (&self.replays, &self.steps);
        let mut pending: Vec<(usize, usize)> =
            (0..replays.len()).flat_map(|pool| replays[pool].ordered_pending().map(move |seq| (steps[pool][seq], pool))).collect();
        pending.sort_unstable();
        // If a store is durable in one pool, every earlier store is durable in all pools.
        let newest = (0..replays.len()).filter_map(|pool| Some(steps[pool][replays[pool].ordered_durable()?])).max();
        let certain = pending.partition_point(|(step, _)| Some(*step) < newest);
        let mut kept = vec![0; replays.len()];
        pending[..certain].iter().for_each(|(_, pool)| kept[*pool] += 1);
        let mut cuts = vec![kept];
        for (_, pool) in &pending[certain..] {
            let mut kept = cuts.last().expect("one was put there").clone();
            kept[*pool] += 1;
            cuts.push(kept);
        }
        cuts
    }
}

/// Joins the images of the pools so far with those of the next pool.
fn cross(
    combined: Vec<(Vec<Vec<u8>>, ImageKind)>,
    own: &[(Vec<u8>, ImageKind)],
    budget: usize,
    rng: &mut ShadowRng,
) -> Vec<(Vec<Vec<u8>>, ImageKind)> {
    let join = |(before, kind): &(Vec<Vec<u8>>, ImageKind), (image, own_kind): &(Vec<u8>, ImageKind)| {
        let mut images = before.clone();
        images.push(image.clone());
        // The kind of an image that is lost or kept in part says more than that of an extreme beside it.
        let extreme = matches!(own_kind, ImageKind::AllLost | ImageKind::AllKept) && !matches!(kind, ImageKind::Exhaustive);
        (images, if own.len() > 1 && !extreme { *own_kind } else { *kind })
    };
    if combined.len() == 1 || own.len() == 1 || combined.len() * own.len() <= budget {
        return combined.iter().flat_map(|before| own.iter().map(move |image| join(before, image))).collect();
    }
    // Everything lost and everything kept come first in each list: those are paired in all four ways, and each other
    // image with one of the extremes of the other list.
    let mut pairs = vec![(0, 0), (0, 1), (1, 0), (1, 1)];
    pairs.extend((2..own.len()).map(|b| (rng.below(2), b)));
    pairs.extend((2..combined.len()).map(|a| (a, rng.below(2))));
    while pairs.len() < budget {
        pairs.push((rng.below(combined.len()), rng.below(own.len())));
    }
    pairs.into_iter().map(|(a, b)| join(&combined[a], &own[b])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PLACE: usize = 4096;

    /// What one byte of each of two pools holds after a crash behind all of these steps.
    fn outcomes(rules: Emulate, steps: &[(usize, What)]) -> BTreeSet<(u8, u8)> {
        outcomes_of(rules, steps.iter().map(|(pool, what)| Step { pool: *pool, thread: 0, what: what.clone() }).collect())
    }

    fn outcomes_of(rules: Emulate, steps: Vec<Step>) -> BTreeSet<(u8, u8)> {
        let recording = Recording { rules, initial: vec![vec![0; 2 * PLACE]; 2], steps };
        let mut machine = Machine::new(&recording);
        machine.advance_to(recording.steps.len());
        let images = machine.images(64, &mut ShadowRng::new(7));
        images.into_iter().map(|(pools, _)| (pools[0][PLACE], pools[1][PLACE])).collect()
    }

    fn store(value: u8, kind: StoreKind) -> What {
        What::Store { off: PLACE as u64, bytes: Box::new([value; 8]), kind }
    }

    /// Found by a long campaign: a store to one pool could be lost although a later store to another pool was kept,
    /// which no such machine does.
    #[test]
    fn the_order_of_stores_is_that_of_all_pools() {
        let plain = |value| store(value, StoreKind::Plain);
        let in_turn = [(1, plain(1)), (0, plain(1)), (1, plain(2))];
        assert_eq!(outcomes(Emulate::Eadr, &in_turn), [(0, 0), (0, 1), (1, 1), (1, 2)].into());
        // Whatever was stored before a durable store is durable, too, in every pool. (A later store waits for a fence
        // of its own pool, although one fence of the processor covers all pools.)
        let fenced = [(1, plain(1)), (0, plain(1)), (0, What::Fence), (1, plain(2))];
        assert_eq!(outcomes(Emulate::Eadr, &fenced), [(1, 1), (1, 2)].into());
        // With volatile caches there is no order.
        assert_eq!(outcomes(Emulate::Adr, &in_turn).len(), 6);
    }

    /// Found by hand: all steps were replayed as those of one thread.
    #[test]
    fn a_fence_covers_the_flushes_of_its_own_thread() {
        let flush = What::Flush { off: PLACE as u64, len: 8 };
        let outcomes = |fencing| {
            let steps = [(0, store(1, StoreKind::Plain)), (0, flush.clone()), (fencing, What::Fence)];
            outcomes_of(Emulate::Adr, steps.map(|(thread, what)| Step { pool: 0, thread, what }).to_vec())
        };
        assert_eq!(outcomes(0), [(1, 0)].into());
        assert_eq!(outcomes(1), [(0, 0), (1, 0)].into());
    }

    /// Found by a long campaign: what a dead thread had stored around the caches stayed in its processor for ever.
    #[test]
    fn a_successor_fences_what_the_dead_have_stored() {
        let step = |thread, what| Step { pool: 0, thread, what };
        let recording = |steps| Recording { rules: Emulate::Adr, initial: vec![vec![0; 2 * PLACE]; 2], steps };
        let dead = recording(vec![step(1, store(1, StoreKind::Streaming)), step(2, What::Fence)]);
        let outcomes = |later: Vec<Step>| outcomes_of(Emulate::Adr, dead.killed_then(1, &recording(later)).steps);
        assert_eq!(outcomes(Vec::new()), [(0, 0), (1, 0)].into());
        assert_eq!(outcomes(vec![step(3, What::Fence)]), [(1, 0)].into());
    }

    #[test]
    fn what_goes_around_the_caches_has_no_order() {
        let steps = [(1, store(1, StoreKind::Streaming)), (0, store(1, StoreKind::Plain))];
        assert_eq!(outcomes(Emulate::Eadr, &steps), [(0, 0), (0, 1), (1, 0), (1, 1)].into());
        let fenced = [steps[0].clone(), (1, What::Fence), steps[1].clone()];
        assert_eq!(outcomes(Emulate::Eadr, &fenced), [(0, 1), (1, 1)].into());
    }
}
