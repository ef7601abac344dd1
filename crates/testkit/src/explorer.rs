//! The explorer: crashes a recorded life at many points, recovers, and judges the result.
//!
//! For each chosen crash point (all of them if the budget allows) the explorer makes images of all pools that a power
//! loss may leave. It opens each image with the production recovery, and the oracle judges the content. A share of the
//! images is examined deeply:
//!
//! * the reference recovery, and an opening with other shards and threads, must find the same content;
//! * a crash during recovery must not change the content;
//! * a second life must write, close and open again.
//!
//! At a share of the crash points only the process dies. Whatever its successor answers must survive a later power
//! loss.
//!
//! Determinism: single-threaded and seeded. A failure names the seed, the crash point and the kind of image.

use crate::checkpoints::{Checkpoints, Kept};
use crate::coverage::{Coverage, Item};
use crate::explorer_script::{Config, Life, lacks_space, open_pools, store_options};
use crate::images::{FEWEST, Machine, NOTE, Recorder, Recording};
use crate::oracle::{Contents, Dump, Expectation, History, sound};
use crate::reference::{Mistake, recover};
use hither_engine::{Options, RestartSource, Store};
use hither_pmem::shadow::{ImageKind, ShadowRng, What};
use hither_pmem::{Emulate, Randomness, SyncPhase};
use hither_topology::Topology;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A finished life, ready to be explored.
#[derive(Clone)]
pub struct Subject {
    /// The configuration of its store.
    pub config: Config,
    /// The nodes it ran on.
    pub topology: Arc<Topology>,
    /// The steps of its pools.
    pub recording: Recording,
    /// The operations it performed.
    pub history: History,
    /// Steps until the creation of the pools was complete.
    pub born: usize,
    /// The first crash point to explore.
    pub from: usize,
    /// What the life covered.
    pub coverage: Coverage,
    /// Its checkpoints, by position.
    pub checkpoints: Checkpoints,
}

impl Life {
    /// Ends the recording without closing the store; the exploration begins at position `from`.
    pub fn finish(mut self, from: usize) -> Subject {
        self.observe();
        Subject {
            config: self.config,
            topology: self.topology,
            recording: self.recorder.recording(),
            history: self.history,
            born: self.born,
            from,
            coverage: self.coverage,
            checkpoints: self.checkpoints,
        }
    }
}

/// What an exploration did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Images opened and judged.
    pub images: usize,
    /// Crash points.
    pub points: usize,
    /// Images examined deeply.
    pub deep: usize,
    /// What the life and its recoveries covered.
    pub coverage: Coverage,
}

/// An image from which recovery gave the wrong answer.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What is wrong.
    pub what: String,
    /// The crash point: steps done before the crash.
    pub position: usize,
    /// How the image was chosen.
    pub kind: ImageKind,
    /// Images judged so far, this one included.
    pub images: usize,
    /// The configuration of the store.
    pub config: Config,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "image {} ({:?}, crash after step {}): {}\n{:?}\nto repeat: HITHER_SEED={} with the same test and budget",
            self.images, self.kind, self.position, self.what, self.config, self.config.seed
        )
    }
}

/// The number of images to spend in all: `HITHER_EXPLORE_BUDGET`, or `default`.
pub fn budget(default: usize) -> usize {
    std::env::var("HITHER_EXPLORE_BUDGET").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The seed: `HITHER_SEED`, or `default`.
pub fn seed(default: u64) -> u64 {
    std::env::var("HITHER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Explores `subject` with about `budget` images.
///
/// # Errors
/// The first failure.
pub fn explore(subject: &Subject, budget: usize) -> Result<Outcome, Box<Failure>> {
    explore_at(subject, subject, usize::MAX, budget)
}

/// As [`explore`], at the crash points that it would choose for `like`, up to position `last`.
///
/// # Errors
/// The first failure.
pub fn explore_at(subject: &Subject, like: &Subject, last: usize, budget: usize) -> Result<Outcome, Box<Failure>> {
    let mut rng = ShadowRng::new(subject.config.seed ^ 0xc0ffee);
    let mut points = crash_points(like);
    // Drops points at random until each gets at least the fewest images; a larger budget gives each point more.
    while points.len() * FEWEST > budget.max(FEWEST) {
        points.swap_remove(rng.below(points.len()));
    }
    points.sort_unstable();
    let per_point = (budget / points.len().max(1)).clamp(FEWEST, 256);
    let mut explorer = Explorer { subject, outcome: Outcome { coverage: subject.coverage.clone(), ..Outcome::default() }, opened: 0 };
    let mut machine = Machine::new(&subject.recording);
    for position in points.into_iter().take_while(|position| *position <= last) {
        machine.advance_to(position);
        explorer.outcome.points += 1;
        let expectation = Expectation::at(&subject.history, position);
        for (images, kind) in machine.images(per_point, &mut rng) {
            explorer.outcome.images += 1;
            // Drawn at random: taking every n-th image would always pick the same kind.
            let deep = rng.below(16) == 0;
            explorer.guarded(position, kind, |explorer| explorer.judge(&images, position, &expectation, deep, &mut rng))?;
        }
        if position > subject.born && explorer.outcome.points.is_multiple_of(8) {
            let visible = machine.visible();
            explorer.guarded(position, ImageKind::AllKept, |explorer| explorer.kill(&visible, position, &expectation, &mut rng))?;
        }
    }
    Ok(explorer.outcome)
}

/// Positions behind a step that can change the set of possible images.
pub fn crash_points(subject: &Subject) -> Vec<usize> {
    let steps = &subject.recording.steps;
    let changes = |position: usize| {
        let step = &steps[position - 1];
        step.pool != NOTE && !matches!(step.what, What::Flush { .. } | What::Sync(SyncPhase::Begin))
    };
    (subject.from.max(1)..=steps.len()).filter(|&position| changes(position)).collect()
}

struct Explorer<'a> {
    subject: &'a Subject,
    outcome: Outcome,
    /// Stores opened so far. Each store draws its own random numbers from this count, the same ones when the
    /// exploration is repeated.
    opened: u64,
}

impl Explorer<'_> {
    fn guarded(
        &mut self,
        position: usize,
        kind: ImageKind,
        work: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), Box<Failure>> {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        });
        let (images, config) = (self.outcome.images, self.subject.config.clone());
        outcome.map_err(|what| Box::new(Failure { what, position, kind, images, config }))
    }

    /// Opens images with the checkpoint `kept` beside them.
    fn open(&mut self, images: &[Vec<u8>], kept: &Kept, shards: u32, threads: usize) -> Result<Store, String> {
        self.open_recorded(images, &Checkpoints::new(kept.clone(), None), shards, threads, None)
    }

    fn open_recorded(
        &mut self,
        images: &[Vec<u8>],
        checkpoints: &Checkpoints,
        shards: u32,
        threads: usize,
        recorder: Option<&Arc<Recorder>>,
    ) -> Result<Store, String> {
        let pools = open_pools(images, self.subject.config.rules, recorder).map_err(|error| format!("a pool does not open: {error}"))?;
        self.opened += 1;
        let random = Randomness::seeded(self.subject.config.seed << 32 | self.opened);
        let options = Options { random, ..store_options(pools, &self.subject.topology, shards, threads, Some(checkpoints)) };
        let store = Store::open(options).map_err(|error| format!("the store does not open: {error}"))?;
        match store.recovery() {
            report if !report.checkpoint_refused.is_empty() => {
                return Err(format!("the checkpoint was not used: {}", report.checkpoint_refused));
            }
            report if report.source == RestartSource::Clean => self.outcome.coverage.hit(Item::CleanRestart),
            report if report.source == RestartSource::Checkpoint => self.outcome.coverage.hit(Item::CheckpointRestart),
            _ => {}
        }
        Ok(store)
    }

    fn judge(
        &mut self,
        images: &[Vec<u8>],
        position: usize,
        expectation: &Expectation,
        deep: bool,
        rng: &mut ShadowRng,
    ) -> Result<(), String> {
        if position < self.subject.born
            && let Err(error) = open_pools(&images[..1], self.subject.config.rules, None)
        {
            let unborn = matches!(error, hither_pmem::Error::HalfCreated { .. });
            return if unborn { Ok(()) } else { Err(format!("an unborn store is not recognised: {error}")) };
        }
        let shards = self.subject.config.shards;
        // If a checkpoint was published or removed exactly here, the crash may come before or after it.
        let checkpoints = &self.subject.checkpoints;
        let kept = if rng.below(2) == 0 { checkpoints.at(position) } else { checkpoints.before(position) };
        let store = self.open(images, &kept, shards, 1)?;
        if store.recovery().passes_completed > 0 {
            self.outcome.coverage.hit(Item::PassCompleted);
        }
        if store.recovery().chains_mended > 0 {
            self.outcome.coverage.hit(Item::ChainMended);
        }
        if store.recovery().batches_dropped > 0 {
            self.outcome.coverage.hit(Item::BatchDropped);
        }
        if store.recovery().torn > 0 {
            self.outcome.coverage.hit(Item::Torn);
        }
        let dump = Dump::read(&store)?;
        expectation.judge(&dump)?;
        absent_keys_are_absent(&store, &dump, expectation)?;
        sound(&store)?;
        let mended = store.recovery().chains_mended > 0;
        drop(store);
        if deep {
            self.outcome.deep += 1;
            // The reference ignores chains: it counts entries that the production recovery discards because their chain
            // is cut.
            if !mended {
                same(&recover(images, self.subject.config.rules, Mistake::None)?, &dump, "other than by the reference")?;
            }
            let other = self.open(images, &kept, if shards == 1 { 4 } else { 1 }, 2)?;
            same(&dump, &Dump::read(&other)?, "with other shards and threads")?;
            sound(&other)?;
            drop(other);
            same(&dump, &Dump::read(&self.open(images, &None, shards, 1)?)?, "without the checkpoint")?;
            self.second_life(images, &kept, &dump, rng)?;
        }
        Ok(())
    }

    /// Recovers under observation, writes, crashes within the recovery, and closes and opens again.
    fn second_life(&mut self, images: &[Vec<u8>], kept: &Kept, dump: &Dump, rng: &mut ShadowRng) -> Result<(), String> {
        let shards = self.subject.config.shards;
        let recorder = Recorder::new(self.subject.config.rules, images.len());
        let checkpoints = Checkpoints::new(kept.clone(), Some(recorder.clone()));
        let store = self.open_recorded(images, &checkpoints, shards, 1, Some(&recorder))?;
        let recovered = recorder.position();
        if rng.below(2) == 0 {
            store.checkpoint().map_err(|error| format!("no checkpoint in the second life: {error}"))?;
        }
        let written = write_more(&store, dump, &mut self.outcome.coverage)?;
        same(&written, &Dump::read(&store)?, "after more writes")?;
        sound(&store)?;
        let end = recorder.position();
        drop(store);
        let mut machine = Machine::new(&recorder.recording());
        let mut points: Vec<usize> = (0..2).map(|_| rng.below(recovered + 1)).collect();
        points.sort_unstable();
        for point in points.into_iter().filter(|_| recovered > 0) {
            machine.advance_to(point);
            for (again, _) in machine.images(FEWEST, rng) {
                self.outcome.images += 1;
                self.outcome.coverage.hit(Item::RecoveryCrash);
                let store = self.open(&again, &checkpoints.at(point), shards, 1)?;
                same(dump, &Dump::read(&store)?, "after a crash in recovery")?;
                sound(&store)?;
            }
        }
        self.judge_close(&mut machine, &checkpoints, (0, end..recorder.position()), &written, "after a second life", rng)
    }

    /// Fails the power before the store is closed, at a random step within the close, and after it. Each time recovery
    /// must give `answers`. `before` is the number of steps of an earlier life in the machine's recording.
    fn judge_close(
        &mut self,
        machine: &mut Machine,
        checkpoints: &Checkpoints,
        (before, close): (usize, Range<usize>),
        answers: &Dump,
        when: &str,
        rng: &mut ShadowRng,
    ) -> Result<(), String> {
        let shards = self.subject.config.shards;
        let within = close.start + rng.below(close.len() + 1);
        for (point, what) in [(close.start, "not closed"), (within, "within the close"), (close.end, "closed")] {
            machine.advance_to(before + point);
            // At half of the points before the end of the close there is no checkpoint, so that everything is scanned.
            let kept = if point < close.end && rng.below(2) == 0 { None } else { checkpoints.at(point) };
            for (images, _) in machine.images(FEWEST, rng) {
                self.outcome.images += 1;
                let store = self.open(&images, &kept, shards, 1).map_err(|error| format!("{when}, {what}: {error}"))?;
                same(answers, &Dump::read(&store)?, &format!("{when}, {what}"))?;
                sound(&store)?;
            }
        }
        Ok(())
    }

    /// Kills the process at `position`. The next process recovers and answers, and then the power fails. `expectation`
    /// is that of a power loss without the kill; it holds while the next process is still opening.
    fn kill(&mut self, visible: &[Vec<u8>], position: usize, expectation: &Expectation, rng: &mut ShadowRng) -> Result<(), String> {
        let shards = self.subject.config.shards;
        let recorder = Recorder::new(self.subject.config.rules, visible.len());
        let checkpoints = Checkpoints::new(self.subject.checkpoints.at(position), Some(recorder.clone()));
        let store =
            self.open_recorded(visible, &checkpoints, shards, 1, Some(&recorder)).map_err(|error| format!("after a kill: {error}"))?;
        let recovered = recorder.position();
        let mut answers = Dump::read(&store)?;
        Expectation::at_kill(&self.subject.history, position).judge(&answers).map_err(|what| format!("after a kill: {what}"))?;
        if rng.below(2) == 0 {
            // These writes rest on metadata that the dead process may not have flushed.
            answers = write_more(&store, &answers, &mut self.outcome.coverage)?;
        }
        if rng.below(2) == 0 {
            // What is freed here rests on marks that the dead process may not have flushed. The second round empties
            // the segments that the first has sealed.
            (0..2).try_for_each(|_| store.reclaim().map(drop)).map_err(|error| format!("collecting after a kill: {error}"))?;
        }
        sound(&store)?;
        let end = recorder.position();
        drop(store);
        let mut machine = Machine::new(&self.subject.recording.killed_then(position, &recorder.recording()));
        // Crashes within the opening of the next process, which must not build upon anything that a power loss may
        // still take.
        let mut points: Vec<usize> = (0..2).map(|_| rng.below(recovered + 1)).collect();
        points.sort_unstable();
        for point in points {
            machine.advance_to(position + point);
            for (images, _) in machine.images(FEWEST, rng) {
                self.outcome.images += 1;
                let when = "after a kill and a power loss in the next opening";
                let store = self.open(&images, &checkpoints.at(point), shards, 1).map_err(|error| format!("{when}: {error}"))?;
                expectation.judge(&Dump::read(&store)?).map_err(|what| format!("{when}: {what}"))?;
                sound(&store)?;
            }
        }
        self.outcome.coverage.hit(Item::KillThenPowerLoss);
        let close = (position, end..recorder.position());
        self.judge_close(&mut machine, &checkpoints, close, &answers, "after a kill, answers, and a power loss", rng)
    }
}

fn same(wanted: &Dump, found: &Dump, when: &str) -> Result<(), String> {
    if wanted == found {
        return Ok(());
    }
    for (name, contents) in &wanted.keyspaces {
        let Some(other) = found.keyspaces.get(name) else { return Err(format!("{when}, keyspace \"{name}\" is gone")) };
        for key in contents.pairs.keys().chain(other.pairs.keys()) {
            let (a, b) = (contents.pairs.get(key), other.pairs.get(key));
            if a != b {
                let show = |value: Option<&Vec<u8>>| value.map(|value| crate::oracle::brief(value));
                return Err(format!("{when}, key {} of \"{name}\" is {:?} instead of {:?}", crate::oracle::brief(key), show(b), show(a)));
            }
        }
        if contents != other {
            return Err(format!("{when}, keyspace \"{name}\" counts {} instead of {}", other.len, contents.len));
        }
    }
    Err(format!("{when}, there are other keyspaces: {:?}", found.keyspaces.keys()))
}

fn absent_keys_are_absent(store: &Store, dump: &Dump, expectation: &Expectation) -> Result<(), String> {
    for (name, key) in expectation.known_keys() {
        let Some(contents) = dump.keyspaces.get(name) else { continue };
        let Some(keyspace) = store.open_keyspace(name) else { continue };
        if !contents.pairs.contains_key(key) && store.get_with(&keyspace, key, |_| ()).map_err(|error| error.to_string())?.is_some() {
            return Err(format!("a get finds {} in \"{name}\", iteration does not", crate::oracle::brief(key)));
        }
    }
    Ok(())
}

/// Writes a little after recovery; returns what the store should then hold.
fn write_more(store: &Store, dump: &Dump, coverage: &mut Coverage) -> Result<Dump, String> {
    let mut wanted = dump.clone();
    for (name, contents) in &mut wanted.keyspaces {
        let keyspace = store.open_keyspace(name).ok_or("a listed keyspace cannot be opened")?;
        let mut keys = contents.pairs.keys().cloned();
        let (first, second) = (keys.next(), keys.next());
        drop(keys);
        let changes = [(Some(b"second life".to_vec()), Some(vec![7; 90])), (first, Some(vec![8; 8])), (second, None)];
        for (key, value) in changes.into_iter().filter_map(|(key, value)| Some((key?, value))) {
            match store.write_wait(&keyspace, &key, value.as_deref()) {
                Ok(_) => {
                    coverage.hit(Item::SecondLifeWrite);
                    apply(contents, key, value);
                }
                Err(error) => lacks_space(store, &error, 100).map_err(|what| format!("after recovery, {what}"))?,
            }
        }
        contents.len = keyspace.len();
    }
    Ok(wanted)
}

fn apply(contents: &mut Contents, key: Vec<u8>, value: Option<Vec<u8>>) {
    match value {
        Some(value) => contents.pairs.insert(key, value),
        None => contents.pairs.remove(&key),
    };
}

/// The media to explore.
pub const MEDIA: [Emulate; 3] = [Emulate::Adr, Emulate::Eadr, Emulate::File];
