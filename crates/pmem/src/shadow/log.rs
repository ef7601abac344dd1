//! Records what a pool does to its medium.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::images::ShadowRng;
use super::replay::Replay;
use crate::tracer::{Emulate, StoreKind, SyncPhase, Tracer};

/// One recorded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The thread, numbered in order of first appearance.
    pub thread: u64,
    /// What the thread did.
    pub what: What,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Bytes were stored.
    Store {
        /// Offset in the pool.
        off: u64,
        /// The bytes.
        bytes: Box<[u8]>,
        /// How they were stored.
        kind: StoreKind,
    },
    /// Zeros were stored.
    Zeros {
        /// Offset in the pool.
        off: u64,
        /// Number of bytes.
        len: usize,
        /// How they were stored.
        kind: StoreKind,
    },
    /// Lines were written back.
    Flush {
        /// Start of the range in the pool.
        off: u64,
        /// Length of the range in bytes.
        len: usize,
    },
    /// A fence.
    Fence,
    /// A phase of a sync.
    Sync(SyncPhase),
    /// The pool grew to this length.
    Resize(u64),
    /// A note of the test.
    Mark(u64),
}

#[derive(Default)]
struct Record {
    initial: Arc<Vec<u8>>,
    events: Vec<Event>,
}

/// A tracer that remembers everything. Thread safety: the events of all threads get one order.
#[derive(Default)]
pub struct ShadowLog {
    record: Mutex<Record>,
}

/// The calling thread's number in events: in order of first appearance, never used again.
pub fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl ShadowLog {
    /// An empty record.
    pub fn new() -> Arc<ShadowLog> {
        Arc::new(ShadowLog::default())
    }

    /// How many events were recorded: crash points are `0..=len()`.
    pub fn len(&self) -> usize {
        self.record.lock().events.len()
    }

    /// Whether nothing was recorded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All events.
    pub fn events(&self) -> Vec<Event> {
        self.record.lock().events.clone()
    }

    /// Replays the record so far by the rules of a medium. Crash points are visited in order at the cost of one pass.
    pub fn replay(&self, rules: Emulate) -> Replay {
        let record = self.record.lock();
        Replay::new(rules, &record.initial, record.events.clone())
    }

    /// Images that a crash after the first `crash_point` events may leave: at most about `budget`, exhaustive if that
    /// suffices.
    pub fn images(&self, rules: Emulate, crash_point: usize, budget: usize, rng: &mut ShadowRng) -> Vec<Vec<u8>> {
        let mut replay = self.replay(rules);
        replay.advance_to(crash_point);
        let mut images = Vec::new();
        replay.for_each_image(budget, rng, |image, _| images.push(image.to_vec()));
        images
    }

    fn push(&self, what: What) {
        self.add(Event { thread: thread_number(), what });
    }

    /// Adds an event that was recorded elsewhere.
    pub fn add(&self, event: Event) {
        self.record.lock().events.push(event);
    }
}

impl Tracer for ShadowLog {
    fn attach(&self, image: &[u8]) {
        *self.record.lock() = Record { initial: Arc::new(image.to_vec()), events: Vec::new() };
    }

    fn resize(&self, len: u64) {
        self.push(What::Resize(len));
    }

    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind) {
        // Recorded by their number: zeroed segments would otherwise fill the test's memory.
        if bytes.len() > 64 && bytes.iter().all(|&b| b == 0) {
            self.push(What::Zeros { off, len: bytes.len(), kind });
        } else {
            self.push(What::Store { off, bytes: bytes.into(), kind });
        }
    }

    fn flush(&self, off: u64, len: usize) {
        self.push(What::Flush { off, len });
    }

    fn fence(&self) {
        self.push(What::Fence);
    }

    fn sync(&self, phase: SyncPhase) {
        self.push(What::Sync(phase));
    }

    fn mark(&self, note: u64) {
        self.push(What::Mark(note));
    }
}
