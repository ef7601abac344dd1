//! Replays a record and keeps, for each unit of survival, the values that it may have after a crash.
//!
//! A *cell* is such a unit: an aligned word (ADR, streaming stores), a 512-byte sector (file), or the whole memory
//! (eADR). Its list holds the word stores since its durable state, in order. A crash leaves the durable state plus any
//! prefix of the list, independently for each cell.
//!
//! Invariant: `durable` is contained in every image; `visible` is what the running program sees.

use std::collections::{BTreeMap, HashMap};

use super::images::{self, Choice, ImageKind, ShadowRng};
use super::log::{Event, What};
use crate::LINE_BYTES;
use crate::arch::for_each_line;
use crate::tracer::{Emulate, StoreKind, SyncPhase};

const SECTOR: u64 = 512;

/// A store of one aligned word that may be lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    /// Position of the store's event.
    pub(super) seq: usize,
    /// Offset of the word.
    pub(super) off: u64,
    pub(super) value: [u8; 8],
    thread: u64,
    /// The store went around the caches.
    streamed: bool,
}

/// Names a cell; the order keeps the words of a line together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cell {
    Memory,
    Sector(u64),
    Word(u64),
}

impl Cell {
    /// Cells of the same group are lost or kept together in the one-line images.
    pub(super) fn group(self) -> u64 {
        match self {
            Cell::Memory => u64::MAX,
            Cell::Sector(sector) => sector,
            Cell::Word(off) => off / LINE_BYTES as u64,
        }
    }
}

/// A record being replayed.
pub struct Replay {
    rules: Emulate,
    events: Vec<Event>,
    at: usize,
    visible: Vec<u8>,
    durable: Vec<u8>,
    cells: BTreeMap<Cell, Vec<Pending>>,
    ordered_durable: Option<usize>,
    /// Per thread: flushed lines, and the position of the flush.
    flushed: HashMap<u64, Vec<(u64, usize)>>,
    /// Per thread: streamed words, and the position of the store.
    streamed: HashMap<u64, Vec<(u64, usize)>>,
    /// Per thread: the position at which its running sync began.
    sync_began: HashMap<u64, usize>,
    marks: Vec<u64>,
}

impl Replay {
    pub(super) fn new(rules: Emulate, initial: &[u8], events: Vec<Event>) -> Replay {
        Replay {
            rules,
            events,
            at: 0,
            visible: initial.to_vec(),
            durable: initial.to_vec(),
            cells: BTreeMap::new(),
            ordered_durable: None,
            flushed: HashMap::new(),
            streamed: HashMap::new(),
            sync_began: HashMap::new(),
            marks: Vec::new(),
        }
    }

    /// The current crash point: how many events have happened.
    pub fn position(&self) -> usize {
        self.at
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The event that happens next.
    pub fn next_event(&self) -> Option<&Event> {
        self.events.get(self.at)
    }

    /// The notes made before the crash point, in order.
    pub fn marks(&self) -> &[u64] {
        &self.marks
    }

    /// The memory as the program sees it at the crash point.
    pub fn visible(&self) -> &[u8] {
        &self.visible
    }

    /// Lets one more event happen. Returns false at the end.
    pub fn step(&mut self) -> bool {
        if self.at == self.events.len() {
            return false;
        }
        let Event { thread, what } = self.events[self.at].clone();
        match what {
            What::Store { off, bytes, kind } => self.store(thread, off, &bytes, kind),
            What::Zeros { off, len, kind } => self.store(thread, off, &vec![0; len], kind),
            What::Flush { off, len } => self.flush(thread, off, len),
            What::Fence => self.fence(thread),
            What::Sync(phase) => self.sync(thread, phase),
            What::Resize(len) => self.resize(len as usize),
            What::Mark(note) => self.marks.push(note),
        }
        self.at += 1;
        true
    }

    /// Moves forward to a crash point.
    pub fn advance_to(&mut self, crash_point: usize) {
        while self.at < crash_point && self.step() {}
    }

    /// Shows images that a crash here may leave: at most about `budget`, all if there are no more than that. Returns
    /// how many.
    pub fn for_each_image(&mut self, budget: usize, rng: &mut ShadowRng, show: impl FnMut(&[u8], ImageKind)) -> usize {
        let cells: Vec<_> = self.cells.iter().map(|(cell, list)| Choice { group: cell.group(), list, least: 0 }).collect();
        images::generate(&mut self.durable, &cells, budget, rng, show)
    }

    /// The positions of the ordered stores that a crash here may lose, oldest first. Only stores through the caches are
    /// ordered, and only where the caches are durable ([`Emulate::Eadr`]); on other media this is empty. A crash loses
    /// all stores after one moment, of *every* pool; see [`Replay::for_each_image_keeping`].
    pub fn ordered_pending(&self) -> impl Iterator<Item = usize> {
        self.cells.get(&Cell::Memory).into_iter().flatten().map(|pending| pending.seq)
    }

    /// The position of the newest ordered store that no crash can lose any more.
    pub fn ordered_durable(&self) -> Option<usize> {
        self.ordered_durable
    }

    /// The number of cells with stores around the caches that a crash here may lose, each independently, where the
    /// stores through the caches are ordered.
    pub fn streamed_pending(&self) -> usize {
        self.cells.keys().filter(|cell| **cell != Cell::Memory).count()
    }

    /// As [`Replay::for_each_image`], with exactly the first `ordered` of [`Replay::ordered_pending`] kept.
    pub fn for_each_image_keeping(
        &mut self,
        ordered: usize,
        budget: usize,
        rng: &mut ShadowRng,
        show: impl FnMut(&[u8], ImageKind),
    ) -> usize {
        let cells = self.cells.iter().map(|(cell, list)| {
            let (least, most) = if *cell == Cell::Memory { (ordered, ordered) } else { (0, list.len()) };
            Choice { group: cell.group(), list: &list[..most], least }
        });
        let cells: Vec<_> = cells.collect();
        images::generate(&mut self.durable, &cells, budget, rng, show)
    }

    fn store(&mut self, thread: u64, off: u64, bytes: &[u8], kind: StoreKind) {
        let (first, end) = (off & !7, off + bytes.len() as u64);
        for word in (first..end).step_by(8) {
            let at = word as usize;
            let mut value = [0; 8];
            value.copy_from_slice(&self.visible[at..at + 8]);
            let before = value;
            for (i, byte) in value.iter_mut().enumerate() {
                let position = word + i as u64;
                if (off..end).contains(&position) {
                    *byte = bytes[(position - off) as usize];
                }
            }
            if kind == StoreKind::Streaming {
                self.streamed.entry(thread).or_default().push((word, self.at));
            }
            // A store of the value that the word already has adds no image.
            if value == before {
                continue;
            }
            self.visible[at..at + 8].copy_from_slice(&value);
            let cell = self.cell(word, kind);
            self.cells.entry(cell).or_default().push(Pending {
                seq: self.at,
                off: word,
                value,
                thread,
                streamed: kind == StoreKind::Streaming,
            });
        }
    }

    fn cell(&self, word: u64, kind: StoreKind) -> Cell {
        match (self.rules, kind) {
            (Emulate::File, _) => Cell::Sector(word / SECTOR),
            (Emulate::Eadr, StoreKind::Plain) => Cell::Memory,
            (Emulate::Adr, _) | (Emulate::Eadr, StoreKind::Streaming) => Cell::Word(word),
        }
    }

    fn flush(&mut self, thread: u64, off: u64, len: usize) {
        let lines = self.flushed.entry(thread).or_default();
        for_each_line(off as usize, len, |line| lines.push((line as u64, self.at)));
    }

    fn fence(&mut self, thread: u64) {
        if self.rules == Emulate::File {
            return;
        }
        for (word, seq) in self.streamed.remove(&thread).unwrap_or_default() {
            self.settle(Cell::Word(word), seq);
        }
        for (line, seq) in self.flushed.remove(&thread).unwrap_or_default() {
            for word in (line..line + LINE_BYTES as u64).step_by(8) {
                self.settle_flushed(Cell::Word(word), seq, thread);
            }
        }
        if self.rules == Emulate::Eadr {
            let list = self.cells.get(&Cell::Memory);
            let fenced = list.and_then(|list| list.iter().rev().find(|p| p.thread == thread)).map(|p| p.seq);
            if let Some(seq) = fenced {
                self.settle(Cell::Memory, seq);
            }
        }
    }

    fn sync(&mut self, thread: u64, phase: SyncPhase) {
        match phase {
            SyncPhase::Begin => {
                self.sync_began.insert(thread, self.at);
            }
            SyncPhase::Failed => {
                self.sync_began.remove(&thread);
            }
            SyncPhase::End => {
                if let Some(seq) = self.sync_began.remove(&thread) {
                    let cells: Vec<Cell> = self.cells.keys().copied().collect();
                    cells.into_iter().for_each(|cell| self.settle(cell, seq));
                }
            }
        }
    }

    /// Makes the stores of a cell up to `seq` durable.
    fn settle(&mut self, cell: Cell, seq: usize) {
        self.settle_while(cell, |pending| pending.seq <= seq);
    }

    /// As [`Replay::settle`], by a flush and fence of `thread`. A store around the caches by another thread may still
    /// be in that processor's buffers, where this flush does not find it.
    fn settle_flushed(&mut self, cell: Cell, seq: usize, thread: u64) {
        self.settle_while(cell, |pending| pending.seq <= seq && (!pending.streamed || pending.thread == thread));
    }

    fn settle_while(&mut self, cell: Cell, is_durable: impl Fn(&Pending) -> bool) {
        let Some(list) = self.cells.get_mut(&cell) else { return };
        let durable = list.iter().take_while(|pending| is_durable(pending)).count();
        for pending in list.drain(..durable) {
            self.durable[pending.off as usize..pending.off as usize + 8].copy_from_slice(&pending.value);
            if cell == Cell::Memory {
                self.ordered_durable = Some(pending.seq);
            }
        }
        if list.is_empty() {
            self.cells.remove(&cell);
        }
    }

    #[cfg(test)]
    pub(super) fn durable_for_test(&self) -> &[u8] {
        &self.durable
    }

    fn resize(&mut self, len: usize) {
        if len > self.durable.len() {
            self.durable.resize(len, 0);
            self.visible.resize(len, 0);
        }
    }
}
