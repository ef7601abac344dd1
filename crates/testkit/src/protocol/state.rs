//! A state: media, memory, promises, and which events may still happen.

use super::bounds::{Bounds, KEYS, OPS, Op, SEGMENTS, SLOTS, WRITERS};
use super::media::{Kind, Media, Place};

/// The point that a writer has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriterAt {
    /// Between operations.
    Idle,
    /// It holds its latches and knows what it replaces.
    Located,
    /// Its entries are in the log.
    Appended,
    /// Its entries are durable (persistent memory).
    Persisted,
    /// This many of its keys are installed.
    Installed(u8),
}

/// One writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    /// The point that it has reached.
    pub at: WriterAt,
    /// Its operation.
    pub op: Op,
    /// For each key of the operation, what the index named at the beginning.
    pub old: [Option<Place>; KEYS],
    /// For each key, what its entry links to.
    pub links: [Option<Place>; KEYS],
    /// For each key, its new entry.
    pub new: [Option<Place>; KEYS],
}

/// The point that the collector has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectorAt {
    /// Between victims.
    Idle,
    /// It has chosen a victim.
    Chosen,
    /// Everything in the victim is installed, durable and of whole batches, and with the chain collector its descriptor
    /// carries the *collecting* flag.
    Settled,
    /// The ancestors are marked, but not durably.
    Marked,
    /// It moves entries from this slot on.
    Moving(u8),
    /// It has appended a copy of the entry in this slot.
    Copied(u8, Place),
    /// It has determined what is live in the victim (batched).
    Collected,
    /// The copies are written, but not fenced (batched).
    Appended,
    /// It swings references from this slot on (batched).
    Swinging(u8),
    /// All entries are moved.
    Moved,
    /// The copies are durable.
    Secured,
}

/// The collector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    /// The point that it has reached.
    pub at: CollectorAt,
    /// The victim's number.
    pub victim: u8,
    /// The lowest version that a raised copy gets; see [`Bounds::raises`].
    pub least: u8,
    /// The ancestors that are still to be marked.
    pub marks: Vec<Place>,
    /// By slot: `Some` if the entry is to be copied, with whether the copy is born dead (batched).
    pub live: [Option<bool>; SLOTS],
    /// By slot: the place of the copy (batched).
    pub copies: [Option<Place>; SLOTS],
}

/// A collector between victims.
pub const IDLE_COLLECTOR: Collector =
    Collector { at: CollectorAt::Idle, victim: 0, least: 0, marks: Vec::new(), live: [None; SLOTS], copies: [None; SLOTS] };

/// The point that the sweeper has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SweeperAt {
    /// Between sweeps.
    Idle,
    /// It has drawn its version and sweeps from this segment on.
    Sweeping(u8),
}

/// The sweeper marks entries that tombstones keep out, so that the tombstones may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sweeper {
    /// The point that it has reached.
    pub at: SweeperAt,
    /// The stable version drawn by this sweep.
    pub version: u8,
    /// The version of the last sweep that ended. On media there is nothing older beneath a tombstone up to this
    /// version.
    pub retired: u8,
}

const IDLE_SWEEPER: Sweeper = Sweeper { at: SweeperAt::Idle, version: 0, retired: 0 };

/// The point that the checkpointer has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointerAt {
    /// Between checkpoints.
    Idle,
    /// It has captured the covered segments.
    Captured,
    /// It has drawn its version and copied this many keys.
    Copying(u8),
    /// Everything that the checkpoint names is durable.
    Secured,
    /// The new file has its name, or the old one was removed, but the directory is not synced.
    Published,
}

/// The checkpointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checkpointer {
    /// The point that it has reached.
    pub at: CheckpointerAt,
    /// The checkpoint's version; 0 before it is drawn.
    pub version: u8,
    /// What was copied so far, by key.
    pub named: [Option<Place>; KEYS],
    /// The captured segments; see [`super::media::Checkpoint::covered`].
    pub covered: [Option<(u8, u8)>; SEGMENTS],
}

/// A snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Its version.
    pub version: u8,
    /// The value that it must show for each key.
    pub shows: [Option<u8>; KEYS],
    /// Its side table: the places of overwritten entries that it shows.
    pub saved: [Option<Place>; KEYS],
}

/// How far an opening has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The store runs.
    Running,
    /// Nothing has been done.
    Found,
    /// What was found is durable.
    Hardened,
    /// Everything that must be dead is marked.
    Marked,
    /// The marks are durable.
    Synced,
}

/// A write that was not acknowledged as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unsettled {
    /// The number of the write.
    pub value: u8,
    /// What it states about its key.
    pub kind: Kind,
    /// Its batch, by the number of the batch's first write; 0 if it has none.
    pub batch: u8,
}

/// What was promised about a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The newest acknowledged value; `None` if the key is absent.
    pub value: Option<u8>,
    /// The value expires.
    pub expiring: bool,
    /// Writes after the acknowledged one, oldest first.
    pub later: Vec<Unsettled>,
}

/// How often each event may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// For each operation of [`Bounds::ops`].
    pub ops: [u8; OPS],
    /// This and all others as in [`Bounds`].
    pub collections: u8,
    /// See [`Bounds`].
    pub sweeps: u8,
    /// See [`Bounds`].
    pub checkpoints: u8,
    /// See [`Bounds`].
    pub drops: u8,
    /// See [`Bounds`].
    pub failures: u8,
    /// See [`Bounds`].
    pub kills: u8,
    /// See [`Bounds`].
    pub closes: u8,
    /// See [`Bounds`].
    pub snapshots: u8,
    /// See [`Bounds`].
    pub reads: u8,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The content of the media.
    pub media: Media,
    /// Whether the store runs, or how far an opening has come.
    pub phase: Phase,
    /// The index: the place of each key's current entry.
    pub index: [Option<Place>; KEYS],
    /// The keys whose latch is held.
    pub latched: [bool; KEYS],
    /// The last tombstone of each key, as long as it is not durable.
    pub tombstones: [Option<Place>; KEYS],
    /// The next version.
    pub next_version: u8,
    /// The number of the next write.
    pub next_value: u8,
    /// The writers.
    pub writers: [Writer; WRITERS],
    /// By segment and slot: the generation in which the entry there is known to be garbage, 0 for none (batched; in
    /// memory only).
    pub garbage: [[u8; SLOTS]; SEGMENTS],
    /// The collector.
    pub collector: Collector,
    /// The sweeper.
    pub sweeper: Sweeper,
    /// The checkpointer.
    pub checkpointer: Checkpointer,
    /// The snapshot, if one is held.
    pub snapshot: Option<Snapshot>,
    /// A lookup that holds a reference: the place, and the value that it must find there.
    pub reader: Option<(Place, u8)>,
    /// The machine's clock shows that the time of expiry has come.
    pub wall: bool,
    /// It has shown so at least once.
    pub time_came: bool,
    /// A reader was told that the expiring value is gone.
    pub expiry_seen: bool,
    /// What was promised about each key.
    pub promises: [Promise; KEYS],
    /// How often each event may still happen.
    pub budget: Budget,
}

const IDLE_WRITER: Writer = Writer { at: WriterAt::Idle, op: Op::Batch, old: [None; KEYS], links: [None; KEYS], new: [None; KEYS] };
/// A checkpointer between checkpoints.
pub const IDLE_CHECKPOINTER: Checkpointer =
    Checkpointer { at: CheckpointerAt::Idle, version: 0, named: [None; KEYS], covered: [None; SEGMENTS] };

impl State {
    /// An empty store, just opened.
    pub fn new(bounds: &Bounds) -> State {
        let mut ops = [0; OPS];
        bounds.ops.iter().zip(&mut ops).for_each(|((_, times), left)| *left = *times);
        State {
            media: Media::new(),
            phase: Phase::Running,
            index: [None; KEYS],
            latched: [false; KEYS],
            tombstones: [None; KEYS],
            next_version: 1,
            next_value: 1,
            writers: [IDLE_WRITER; WRITERS],
            garbage: [[0; SLOTS]; SEGMENTS],
            collector: IDLE_COLLECTOR,
            sweeper: IDLE_SWEEPER,
            checkpointer: IDLE_CHECKPOINTER,
            snapshot: None,
            reader: None,
            wall: false,
            time_came: false,
            expiry_seen: false,
            promises: std::array::from_fn(|_| Promise { value: None, expiring: false, later: Vec::new() }),
            budget: Budget {
                ops,
                collections: bounds.collections,
                sweeps: bounds.sweeps,
                checkpoints: bounds.checkpoints,
                drops: bounds.drops,
                failures: bounds.failures,
                kills: bounds.kills,
                closes: bounds.closes,
                snapshots: bounds.snapshots,
                reads: bounds.reads,
            },
        }
    }

    /// Whether no writer is in its section.
    pub fn writers_idle(&self) -> bool {
        self.writers.iter().all(|writer| writer.at == WriterAt::Idle)
    }

    /// Whether the collector holds a latch, or is in the section of a batch.
    pub fn collector_moves(&self) -> bool {
        use CollectorAt::{Appended, Collected, Copied, Swinging};
        matches!(self.collector.at, Copied(..) | Collected | Appended | Swinging(_))
    }

    /// Whether nobody is in a section, so that a stable version can be drawn.
    pub fn quiet(&self) -> bool {
        self.writers_idle() && !self.collector_moves()
    }

    /// Records that the entry at a place is garbage.
    pub fn note_garbage(&mut self, place: Place) {
        self.garbage[place.segment as usize][place.slot as usize] = place.generation;
    }

    /// Draws a stable version. Must be called only when nobody is in a section.
    pub fn draw_stable(&mut self) -> u8 {
        self.next_version += 1;
        self.next_version - 1
    }

    /// Commits: makes everything durable and acknowledges what was written.
    pub fn commit(&mut self) {
        self.media.sync();
        self.tombstones = [None; KEYS];
        self.promises.iter_mut().for_each(|promise| promise.keep(usize::MAX));
    }

    /// Loses everything that is only in memory.
    pub fn lose_memory(&mut self) {
        self.phase = Phase::Found;
        self.index = [None; KEYS];
        self.latched = [false; KEYS];
        self.tombstones = [None; KEYS];
        self.writers = [IDLE_WRITER; WRITERS];
        self.garbage = [[0; SLOTS]; SEGMENTS];
        self.collector = IDLE_COLLECTOR;
        self.sweeper = IDLE_SWEEPER;
        self.checkpointer = IDLE_CHECKPOINTER;
        self.snapshot = None;
        self.reader = None;
        self.media.segments.iter_mut().for_each(|segment| segment.retiring = false);
        self.next_version = 0;
    }
}

impl Writer {
    /// Puts the writer between operations.
    pub fn reset(&mut self) {
        *self = IDLE_WRITER;
    }
}

impl Promise {
    /// Acknowledges the first `count` later writes.
    pub fn keep(&mut self, count: usize) {
        let count = count.min(self.later.len());
        if let Some(last) = count.checked_sub(1).map(|at| self.later[at]) {
            self.value = (last.kind != Kind::Delete).then_some(last.value);
            self.expiring = last.kind == Kind::Expiring;
            self.later.drain(..count);
        }
    }
}
