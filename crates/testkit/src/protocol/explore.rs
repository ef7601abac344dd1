//! Walks all states breadth first, so that the trace of a violation is a shortest one.
//!
//! Visited states are kept as 128-bit hashes. For the numbers of states at hand, two states collide with a probability
//! of about 10^-24.

use super::bounds::{Bounds, Collector};
use super::check;
use super::state::{Phase, State};
use super::step::{KINDS, Step};
use super::writer::Next;
use super::{batched, checkpointer, collector, crash, recovery, writer};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};

/// The most states that an exploration may have; more do not fit into memory.
const LIMIT: usize = 30_000_000;

/// The figures of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Different states.
    pub states: usize,
    /// Step transitions taken.
    pub steps: usize,
    /// Images of power failures that were recovered and judged.
    pub images: usize,
    /// Steps on the longest path from the first state, by shortest paths.
    pub depth: usize,
    /// How often each kind of step was taken, in the order of [`KINDS`].
    pub taken: Vec<u64>,
    /// Recoveries that marked members of unfinished batches dead.
    pub batches_dropped: u64,
    /// Recoveries that marked entries dead because their chain was cut or a pass was interrupted.
    pub repairs: u64,
}

/// A property that does not hold, and the trace to it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The steps that lead to it.
    pub steps: Vec<Step>,
    /// States found before it.
    pub states: usize,
    /// A description of the last state.
    pub last: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:3}. {step}", number + 1)?;
        }
        writeln!(f, "  => {}", self.what)?;
        write!(f, "{}", self.last)
    }
}

/// A hasher that keeps two hashes of the words that a state feeds.
struct Wide(u64, u64);

impl Hasher for Wide {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.write_u64(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
        }
        chunks.remainder().iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.1 = (self.1 ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn hash_of(thing: &impl Hash) -> u128 {
    let mut wide = Wide(0x2545_f491_4f6c_dd1d, 0x1234_5678_9abc_def1);
    thing.hash(&mut wide);
    let mix = |word: u64| (word ^ word >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd);
    u128::from(mix(wide.0) ^ wide.0 >> 29) << 64 | u128::from(mix(wide.1) ^ wide.1 >> 29)
}

/// Adds everything that may happen next.
pub fn successors(bounds: &Bounds, state: &State, next: &mut Next) {
    crash::steps(bounds, state, next);
    if state.phase != Phase::Running {
        return recovery::steps(bounds, state, next);
    }
    writer::steps(bounds, state, next);
    writer::readers(bounds, state, next);
    writer::time(bounds, state, next);
    collector::steps(bounds, state, next);
    collector::grace(bounds, state, next);
    batched::sweeps(bounds, state, next);
    batched::verification(bounds, state, next);
    checkpointer::steps(bounds, state, next);
    checkpointer::close(state, next);
}

struct Explorer<'a> {
    bounds: &'a Bounds,
    seen: HashSet<u128>,
    judged: HashSet<u128>,
    /// For each state, by number: the state before it, and the step between.
    came_from: Vec<(u32, Step)>,
    queue: VecDeque<(State, u32, u32)>,
    outcome: Outcome,
}

/// Walks all states within `bounds`.
///
/// # Errors
/// The first violation.
pub fn explore(bounds: &Bounds) -> Result<Outcome, Box<Violation>> {
    let first = State::new(bounds);
    let mut explorer = Explorer {
        bounds,
        seen: HashSet::from([hash_of(&first)]),
        judged: HashSet::new(),
        came_from: vec![(0, Step::Open)],
        queue: VecDeque::from([(first, 0, 0)]),
        outcome: Outcome { taken: vec![0; KINDS.len()], ..Outcome::default() },
    };
    explorer.walk()?;
    Ok(explorer.outcome)
}

impl Explorer<'_> {
    fn walk(&mut self) -> Result<(), Box<Violation>> {
        let mut next = Vec::new();
        while let Some((state, number, depth)) = self.queue.pop_front() {
            self.outcome.depth = depth as usize;
            assert!(self.came_from.len() < LIMIT, "the bounds of \"{}\" are too wide", self.bounds.name);
            self.judge(&state, number)?;
            successors(self.bounds, &state, &mut next);
            for (step, after) in next.drain(..) {
                self.note(&step);
                if self.seen.insert(hash_of(&after)) {
                    self.came_from.push((number, step));
                    self.queue.push_back((after, self.came_from.len() as u32 - 1, depth + 1));
                }
            }
        }
        self.outcome.states = self.came_from.len();
        Ok(())
    }

    fn note(&mut self, step: &Step) {
        self.outcome.steps += 1;
        self.outcome.taken[step.kind()] += 1;
        if let Step::MarkDead { batch_members, cut_off } = *step {
            self.outcome.batches_dropped += u64::from(batch_members > 0);
            self.outcome.repairs += u64::from(cut_off > 0);
        }
    }

    fn judge(&mut self, state: &State, number: u32) -> Result<(), Box<Violation>> {
        check::running(self.bounds, state).map_err(|what| self.violation(state, number, None, what))?;
        // In a store with a rule taken out, chains break long before a key is wrong. There, only wrong results count.
        if self.bounds.flaw.is_none() && self.bounds.collector == Collector::Chain && state.phase == Phase::Running {
            check::chains(state).map_err(|what| self.violation(state, number, None, what))?;
        }
        let matters = (&state.media, &state.promises, state.wall, state.time_came, state.expiry_seen);
        if !self.judged.insert(hash_of(&matters)) {
            return Ok(());
        }
        for (step, media, wall) in crash::images(state) {
            self.outcome.images += 1;
            check::image(self.bounds, state, media, wall).map_err(|what| self.violation(state, number, Some(step), what))?;
        }
        Ok(())
    }

    fn violation(&self, state: &State, mut number: u32, last: Option<Step>, what: String) -> Box<Violation> {
        let mut steps: Vec<Step> = last.into_iter().collect();
        while number != 0 {
            let (from, step) = self.came_from[number as usize];
            steps.push(step);
            number = from;
        }
        steps.reverse();
        Box::new(Violation { what, steps, states: self.came_from.len(), last: describe(state) })
    }
}

/// Describes the media and the index of a state.
fn describe(state: &State) -> String {
    let mut lines = String::from("  before that:\n");
    for (number, segment) in state.media.segments.iter().enumerate().filter(|(_, segment)| segment.generation > 0) {
        let kind = if !segment.in_use {
            "free"
        } else if segment.sealed {
            "sealed"
        } else {
            "open"
        };
        lines += &format!("    s{number}g{} {kind}{}:", segment.generation, if segment.shard == super::media::COLD { " cold" } else { "" });
        for entry in segment.slots.iter().flatten() {
            let key = char::from(b'a' + entry.key);
            let link = entry.parent.map_or("-".to_owned(), |place| place.to_string());
            let durable = if entry.durable { "" } else { " not durable" };
            lines += &format!(" [{key} v{} write {} {:?} link {link} {:?}{durable}]", entry.version, entry.value, entry.kind, entry.mark);
        }
        lines += "\n";
    }
    let index = state.index.map(|place| place.map_or("-".to_owned(), |place| place.to_string()));
    lines += &format!("    index a {} b {}, settled {}, phase {:?}\n", index[0], index[1], state.media.settled, state.phase);
    if let Some(checkpoint) = state.media.visible_checkpoint() {
        lines += &format!("    checkpoint up to {}, covers {:?}, names {:?}\n", checkpoint.version, checkpoint.covered, checkpoint.named);
    }
    lines
}
