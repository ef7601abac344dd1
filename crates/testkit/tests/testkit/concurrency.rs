//! The version clock and the snapshot protocol as a small model under shuttle: random schedules, sequentially
//! consistent. (The effects of weak memory are left to loom: `crates/sync/tests/loom.rs`.)
//!
//! The model keeps the essential parts of `hither_log::version`, `hither_engine::snapshot` and the write path: versions
//! in blocks, a floor, the key's latch, writer sections, a count of snapshots, and one key whose old entry a writer
//! must save for every snapshot that shows it. The planted variant checks for snapshots *before* it draws its version;
//! a snapshot taken in between then misses the old entry.

#![forbid(unsafe_code)]

use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const BLOCK: u64 = 4;
const WRITERS: usize = 2;
const PENDING: u64 = u64::MAX;

/// When a writer checks whether there are snapshots.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    AfterDrawing,
    BeforeDrawing,
}

/// Whether a snapshot waits for the writer sections under way.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    ForWriters,
    No,
}

struct Snapshot {
    version: AtomicU64,
    /// The entry of the key that this snapshot shows although the index has a newer one.
    saved: Mutex<Option<u64>>,
}

struct Store {
    ask: Ask,
    wait: Wait,
    next: AtomicU64,
    floor: AtomicU64,
    /// Writer sections under way.
    sections: [AtomicBool; WRITERS],
    /// The latch, with the last version given out under it.
    latch: Mutex<u64>,
    /// The index: version of the key's entry (which is also its value).
    current: AtomicU64,
    snapshots: AtomicUsize,
    list: Mutex<Vec<Arc<Snapshot>>>,
}

impl Store {
    fn new(ask: Ask, wait: Wait) -> Store {
        Store {
            ask,
            wait,
            next: AtomicU64::new(2),
            floor: AtomicU64::new(1),
            sections: Default::default(),
            latch: Mutex::new(1),
            current: AtomicU64::new(1),
            snapshots: AtomicUsize::new(0),
            list: Mutex::new(Vec::new()),
        }
    }

    fn draw(&self, block: &mut (u64, u64), last: u64) -> u64 {
        let first = block.0.max(last + 1);
        if first + 1 > block.1 || first <= self.floor.load(SeqCst) {
            let start = self.next.fetch_add(BLOCK, SeqCst);
            *block = (start + 1, start + BLOCK);
            return start;
        }
        block.0 = first + 1;
        first
    }

    fn write(&self, writer: usize, block: &mut (u64, u64)) {
        self.sections[writer].store(true, SeqCst);
        let mut last = self.latch.lock().unwrap();
        let early = self.ask == Ask::BeforeDrawing && self.snapshots.load(SeqCst) != 0;
        let version = self.draw(block, *last);
        assert!(version > *last, "versions of a key grow");
        *last = version;
        let any = if self.ask == Ask::AfterDrawing { self.snapshots.load(SeqCst) != 0 } else { early };
        if any {
            self.retain(self.current.load(SeqCst), version);
        }
        self.current.store(version, SeqCst);
        drop(last);
        self.sections[writer].store(false, SeqCst);
    }

    fn retain(&self, old: u64, version: u64) {
        let list = self.list.lock().unwrap().clone();
        for snapshot in list {
            let shows = loop {
                match snapshot.version.load(SeqCst) {
                    PENDING => thread::yield_now(),
                    shows => break shows,
                }
            };
            if old <= shows && version > shows {
                snapshot.saved.lock().unwrap().get_or_insert(old);
            }
        }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        let snapshot = Arc::new(Snapshot { version: AtomicU64::new(PENDING), saved: Mutex::new(None) });
        self.list.lock().unwrap().push(snapshot.clone());
        self.snapshots.fetch_add(1, SeqCst);
        let version = self.next.fetch_add(1, SeqCst);
        self.floor.fetch_max(version, SeqCst);
        snapshot.version.store(version, SeqCst);
        if self.wait == Wait::ForWriters {
            for section in &self.sections {
                while section.load(SeqCst) {
                    thread::yield_now();
                }
            }
        }
        snapshot
    }

    /// What a snapshot shows for the key.
    fn read(&self, snapshot: &Snapshot) -> Option<u64> {
        let current = self.current.load(SeqCst);
        if current <= snapshot.version.load(SeqCst) { Some(current) } else { *snapshot.saved.lock().unwrap() }
    }
}

fn scenario(ask: Ask, wait: Wait) {
    let store = Arc::new(Store::new(ask, wait));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            thread::spawn(move || {
                let mut block = (0, 0);
                (0..2).for_each(|_| store.write(writer, &mut block));
            })
        })
        .collect();
    let acknowledged = store.current.load(SeqCst);
    let snapshot = store.snapshot();
    let first = store.read(&snapshot).expect("the key was always there: the snapshot misses it");
    assert!(first >= acknowledged, "the snapshot misses an acknowledged write");
    assert_eq!(store.read(&snapshot), Some(first), "the snapshot changed");
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(store.read(&snapshot), Some(first), "the snapshot changed");
}

fn schedules() -> usize {
    std::env::var("HITHER_SHUTTLE_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(6_000)
}

fn is_caught(ask: Ask, wait: Wait) -> bool {
    std::panic::catch_unwind(|| shuttle::check_pct(move || scenario(ask, wait), schedules(), 3)).is_err()
}

#[test]
fn snapshots_stand_still_in_every_schedule() {
    shuttle::check_random(|| scenario(Ask::AfterDrawing, Wait::ForWriters), schedules());
    shuttle::check_pct(|| scenario(Ask::AfterDrawing, Wait::ForWriters), schedules(), 3);
}

#[test]
fn planted_asking_before_drawing_is_found() {
    assert!(is_caught(Ask::BeforeDrawing, Wait::ForWriters));
}

#[test]
fn planted_not_waiting_for_writers_is_found() {
    assert!(is_caught(Ask::AfterDrawing, Wait::No));
}
