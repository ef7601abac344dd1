//! A state: media, memory, promises, and what may still happen.

use super::bounds::{Bounds, KEYS, OPS, Op, SEGMENTS, SLOTS, WRITERS};
use super::media::{Kind, Media, Place};

/// Where a writer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriterAt {
    /// Between operations.
    Idle,
    /// It has its latches and knows what it replaces.
    Located,
    /// Its entries are in the log.
    Appended,
    /// They are durable (persistent memory).
    Persisted,
    /// So many of its keys are installed.
    Installed(u8),
}

/// One writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    /// Where it is.
    pub at: WriterAt,
    /// What it does.
    pub op: Op,
    /// What its keys had.
    pub old: [Option<Place>; KEYS],
    /// What its entries link to.
    pub links: [Option<Place>; KEYS],
    /// Its entries.
    pub new: [Option<Place>; KEYS],
}

/// Where the collector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectorAt {
    /// Between victims.
    Idle,
    /// It has chosen.
    Chosen,
    /// Everything in the victim is installed, durable, and of whole batches, and its descriptor says that a pass has begun.
    Settled,
    /// The ancestors are marked, not durably.
    Marked,
    /// It moves entries from this slot on.
    Moving(u8),
    /// It has appended a copy of the entry in this slot.
    Copied(u8, Place),
    /// It knows what of the victim is live (batched).
    Collected,
    /// The copies are written, not fenced.
    Appended,
    /// It swings references from this slot on.
    Swinging(u8),
    /// All are moved.
    Moved,
    /// The copies are durable.
    Secured,
}

/// The collector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    /// Where it is.
    pub at: CollectorAt,
    /// Its segment.
    pub victim: u8,
    /// The least version of its copies.
    pub least: u8,
    /// What it has still to mark.
    pub marks: Vec<Place>,
    /// By slot: to be copied, and whether born dead (batched).
    pub live: [Option<bool>; SLOTS],
    /// By slot: the copy (batched).
    pub copies: [Option<Place>; SLOTS],
}

/// Between victims.
pub const IDLE_COLLECTOR: Collector =
    Collector { at: CollectorAt::Idle, victim: 0, least: 0, marks: Vec::new(), live: [None; SLOTS], copies: [None; SLOTS] };

/// Where the sweeper is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SweeperAt {
    /// Between sweeps.
    Idle,
    /// It has its version, and goes through the segments from this one on.
    Sweeping(u8),
}

/// Who marks what tombstones keep out, so that they may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sweeper {
    /// Where it is.
    pub at: SweeperAt,
    /// The version of this sweep.
    pub version: u8,
    /// The version of the last one that ended: of tombstones up to it nothing older is on media.
    pub retired: u8,
}

const IDLE_SWEEPER: Sweeper = Sweeper { at: SweeperAt::Idle, version: 0, retired: 0 };

/// Where the checkpointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointerAt {
    /// Between checkpoints.
    Idle,
    /// It knows the covered segments.
    Captured,
    /// It has its version; so many keys are copied.
    Copying(u8),
    /// What it names is durable.
    Secured,
    /// The new file has its name.
    Published,
}

/// The checkpointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checkpointer {
    /// Where it is.
    pub at: CheckpointerAt,
    /// The version, 0 before it is drawn.
    pub version: u8,
    /// What was copied so far.
    pub named: [Option<Place>; KEYS],
    /// What was captured.
    pub covered: [Option<(u8, u8)>; SEGMENTS],
}

/// A snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Its version.
    pub version: u8,
    /// What it must show.
    pub shows: [Option<u8>; KEYS],
    /// Its side table.
    pub saved: [Option<Place>; KEYS],
}

/// How far an opening is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The store runs.
    Running,
    /// Nothing was done yet.
    Found,
    /// What was found is durable.
    Hardened,
    /// What must be dead is marked.
    Marked,
    /// The marks are durable.
    Synced,
}

/// A write that was not acknowledged as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unsettled {
    /// Which write.
    pub value: u8,
    /// What it says.
    pub kind: Kind,
    /// Its batch, by the first member's value; 0 for none.
    pub batch: u8,
}

/// What was promised about a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The newest acknowledged value.
    pub value: Option<u8>,
    /// It expires.
    pub expiring: bool,
    /// Writes after that one, oldest first.
    pub later: Vec<Unsettled>,
}

/// What may still happen, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Each operation.
    pub ops: [u8; OPS],
    /// The rest as in [`Bounds`].
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
    /// On media.
    pub media: Media,
    /// Running, or how far an opening is.
    pub phase: Phase,
    /// The index.
    pub index: [Option<Place>; KEYS],
    /// Held latches.
    pub latched: [bool; KEYS],
    /// The last tombstone of each key, while it is not durable.
    pub tombstones: [Option<Place>; KEYS],
    /// The next version.
    pub next_version: u8,
    /// The next write's name.
    pub next_value: u8,
    /// Threads.
    pub writers: [Writer; WRITERS],
    /// By segment and slot: the generation in which what lies there is known to be garbage, 0 for none (batched; in memory only).
    pub garbage: [[u8; SLOTS]; SEGMENTS],
    /// The collector.
    pub collector: Collector,
    /// The sweeper.
    pub sweeper: Sweeper,
    /// The checkpointer.
    pub checkpointer: Checkpointer,
    /// The snapshot.
    pub snapshot: Option<Snapshot>,
    /// A lookup that holds a reference, and the value that it must find there.
    pub reader: Option<(Place, u8)>,
    /// The machine's clock says that the time has come.
    pub wall: bool,
    /// It did so once.
    pub time_came: bool,
    /// Somebody was told that the expiring value is gone.
    pub expiry_seen: bool,
    /// What was promised.
    pub promises: [Promise; KEYS],
    /// What may still happen.
    pub budget: Budget,
}

const IDLE_WRITER: Writer = Writer { at: WriterAt::Idle, op: Op::Batch, old: [None; KEYS], links: [None; KEYS], new: [None; KEYS] };
/// Between checkpoints.
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

    /// Whether the collector holds a latch, or is in a section for its batch.
    pub fn collector_moves(&self) -> bool {
        use CollectorAt::{Appended, Collected, Copied, Swinging};
        matches!(self.collector.at, Copied(..) | Collected | Appended | Swinging(_))
    }

    /// Whether nobody is in a section: then a stable version can be drawn.
    pub fn quiet(&self) -> bool {
        self.writers_idle() && !self.collector_moves()
    }

    /// Notes that what lies at a place is garbage.
    pub fn note_garbage(&mut self, place: Place) {
        self.garbage[place.segment as usize][place.slot as usize] = place.generation;
    }

    /// Draws a stable version. Only when nobody is in a section.
    pub fn draw_stable(&mut self) -> u8 {
        self.next_version += 1;
        self.next_version - 1
    }

    /// A commit: everything is durable, and what was written is acknowledged.
    pub fn commit(&mut self) {
        self.media.sync();
        self.tombstones = [None; KEYS];
        self.promises.iter_mut().for_each(|promise| promise.keep(usize::MAX));
    }

    /// Forgets all that is in memory only.
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
    /// Between operations.
    pub fn reset(&mut self) {
        *self = IDLE_WRITER;
    }
}

impl Promise {
    /// The first `count` later writes are acknowledged.
    pub fn keep(&mut self, count: usize) {
        let count = count.min(self.later.len());
        if let Some(last) = count.checked_sub(1).map(|at| self.later[at]) {
            self.value = (last.kind != Kind::Delete).then_some(last.value);
            self.expiring = last.kind == Kind::Expiring;
            self.later.drain(..count);
        }
    }
}
