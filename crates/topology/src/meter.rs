//! Counts accesses to pool memory per (accessor node, home node).
//!
//! Each thread counts in its own slot, so recording takes plain loads and stores without locked instructions. A later
//! thread takes over the slot of a thread that has ended. Sums are exact once the recording threads are quiet, and
//! monotonic before. `reset` does not touch the slots (that would race with their owners): it moves the base that
//! snapshots subtract.
//!
//! Media lines are the 256-byte units that writes touch. A write that touches the same unit as the thread's previous
//! write does not count it again, as in the write-combining buffer of a module.

use std::cell::RefCell;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::{LINE_BYTES, MEDIA_LINE_BYTES, Topology};

/// Counts of one (accessor, home) pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Read accesses.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Cache lines that reads touched.
    pub read_lines: u64,
    /// Write accesses.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Cache lines that writes touched.
    pub write_lines: u64,
    /// Cache lines flushed.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
    /// 256-byte media lines written.
    pub media_lines: u64,
}

const FIELDS: usize = 9;

impl Counters {
    fn from_array(a: [u64; FIELDS]) -> Counters {
        let [reads, read_bytes, read_lines, writes, write_bytes, write_lines, flushes, fences, media_lines] = a;
        Counters { reads, read_bytes, read_lines, writes, write_bytes, write_lines, flushes, fences, media_lines }
    }

    fn to_array(self) -> [u64; FIELDS] {
        let Counters { reads, read_bytes, read_lines, writes, write_bytes, write_lines, flushes, fences, media_lines } = self;
        [reads, read_bytes, read_lines, writes, write_bytes, write_lines, flushes, fences, media_lines]
    }

    fn zip(self, other: Counters, f: impl Fn(u64, u64) -> u64) -> Counters {
        let (a, b) = (self.to_array(), other.to_array());
        Counters::from_array(std::array::from_fn(|i| f(a[i], b[i])))
    }
}

impl Add for Counters {
    type Output = Counters;
    fn add(self, other: Counters) -> Counters {
        self.zip(other, u64::wrapping_add)
    }
}

impl Sub for Counters {
    type Output = Counters;
    fn sub(self, other: Counters) -> Counters {
        self.zip(other, u64::wrapping_sub)
    }
}

/// Counts of one pair in one slot, on their own cache lines (two, because of the adjacent-line prefetcher).
#[repr(align(128))]
#[derive(Default)]
struct Cell([AtomicU64; FIELDS]);

struct Slot {
    cells: Box<[Cell]>,
    /// The media line that this slot wrote last, plus one; 0 means none.
    last_media_line: AtomicU64,
}

impl Slot {
    fn new(pairs: usize) -> Slot {
        Slot { cells: (0..pairs).map(|_| Cell::default()).collect(), last_media_line: AtomicU64::new(0) }
    }

    /// Only the slot's owner adds, so no read-modify-write instruction is needed.
    #[inline(always)]
    fn add(&self, pair: usize, field: usize, amount: u64) {
        let counter = &self.cells[pair].0[field];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

thread_local! {
    /// The slots of this thread, by the meter's identity; the newest last.
    static SLOTS: RefCell<Vec<(u64, Arc<Slot>)>> = const { RefCell::new(Vec::new()) };
}

/// Number of meters whose slots a thread keeps; beyond it, the thread gives the oldest slot back.
const SLOTS_PER_THREAD: usize = 8;

static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// The access meter of a store.
pub struct Meter {
    identity: u64,
    topology: Topology,
    nodes: usize,
    slots: Mutex<Vec<Arc<Slot>>>,
    base: Mutex<MeterSnapshot>,
}

impl Meter {
    /// A meter that takes the accessor's node from `topology`.
    pub fn new(topology: &Topology) -> Arc<Meter> {
        let nodes = topology.node_count() as usize;
        Arc::new(Meter {
            identity: NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed),
            topology: topology.clone(),
            nodes,
            slots: Mutex::new(Vec::new()),
            base: Mutex::new(MeterSnapshot::empty(nodes)),
        })
    }

    /// The topology from which the meter takes nodes.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Counts a read of `len` bytes at offset `off` of the pool of node `home`.
    #[cold]
    #[inline(never)]
    pub fn record_read(&self, home: u32, off: u64, len: usize) {
        self.record(home, |slot, pair| {
            slot.add(pair, 0, 1);
            slot.add(pair, 1, len as u64);
            slot.add(pair, 2, units(off, len, LINE_BYTES));
        });
    }

    /// Counts a write of `len` bytes at offset `off` of the pool of node `home`.
    #[cold]
    #[inline(never)]
    pub fn record_write(&self, home: u32, off: u64, len: usize) {
        self.record(home, |slot, pair| {
            slot.add(pair, 3, 1);
            slot.add(pair, 4, len as u64);
            slot.add(pair, 5, units(off, len, LINE_BYTES));
            let lines = units(off, len, MEDIA_LINE_BYTES);
            if lines > 0 {
                // The name includes the home node: the same offset of another pool is another line.
                let name = |line: u64| (u64::from(home) << 56 | line) + 1;
                let first = name(off / MEDIA_LINE_BYTES);
                let joined = u64::from(slot.last_media_line.load(Ordering::Relaxed) == first);
                slot.add(pair, 8, lines - joined);
                slot.last_media_line.store(name((off + len as u64 - 1) / MEDIA_LINE_BYTES), Ordering::Relaxed);
            }
        });
    }

    /// Counts a flush of the cache lines of `len` bytes at `off`.
    #[cold]
    #[inline(never)]
    pub fn record_flush(&self, home: u32, off: u64, len: usize) {
        self.record(home, |slot, pair| slot.add(pair, 6, units(off, len, LINE_BYTES)));
    }

    /// Counts a fence after writes to the pool of `home`.
    #[cold]
    #[inline(never)]
    pub fn record_fence(&self, home: u32) {
        self.record(home, |slot, pair| slot.add(pair, 7, 1));
    }

    /// Returns the counts since the last reset.
    pub fn snapshot(&self) -> MeterSnapshot {
        let base = self.base.lock();
        self.totals().since(&base)
    }

    /// Restarts counting from zero.
    pub fn reset(&self) {
        let mut base = self.base.lock();
        *base = self.totals();
    }

    fn totals(&self) -> MeterSnapshot {
        let mut sum = MeterSnapshot::empty(self.nodes);
        for slot in self.slots.lock().iter() {
            for (total, cell) in sum.pairs.iter_mut().zip(slot.cells.iter()) {
                *total = *total + Counters::from_array(std::array::from_fn(|i| cell.0[i].load(Ordering::Relaxed)));
            }
        }
        sum
    }

    fn record(&self, home: u32, f: impl FnOnce(&Slot, usize)) {
        let home = (home as usize).min(self.nodes - 1);
        let pair = self.topology.current_node() as usize * self.nodes + home;
        // A thread that is being torn down has no slot any more: its last accesses are not counted.
        let _ = SLOTS.try_with(|slots| {
            let mut slots = slots.borrow_mut();
            if let Some((identity, slot)) = slots.last()
                && *identity == self.identity
            {
                return f(slot, pair);
            }
            self.bring_to_front(&mut slots);
            if let Some((_, slot)) = slots.last() {
                f(slot, pair);
            }
        });
    }

    #[cold]
    fn bring_to_front(&self, slots: &mut Vec<(u64, Arc<Slot>)>) {
        if let Some(at) = slots.iter().position(|s| s.0 == self.identity) {
            let entry = slots.remove(at);
            slots.push(entry);
            return;
        }
        if slots.len() >= SLOTS_PER_THREAD {
            slots.remove(0);
        }
        slots.push((self.identity, self.claim_slot()));
    }

    /// Returns a slot in which nobody else counts: one whose thread has ended (only the meter still holds it), or a new
    /// one.
    fn claim_slot(&self) -> Arc<Slot> {
        let mut all = self.slots.lock();
        if let Some(slot) = all.iter().find(|slot| Arc::strong_count(slot) == 1) {
            // Pairs with the release in the previous owner's `Arc` drop: its last counts are visible before ours.
            fence(Ordering::Acquire);
            return slot.clone();
        }
        let slot = Arc::new(Slot::new(self.nodes * self.nodes));
        all.push(slot.clone());
        slot
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("nodes", &self.nodes).field("total", &self.snapshot().total()).finish()
    }
}

/// Time that a link of this bandwidth needs for `bytes` bytes. 0 for no bytes, even without bandwidth.
fn transfer_ns(bytes: u64, gb_s: f64) -> f64 {
    // 1 GB/s is one byte per nanosecond.
    if bytes == 0 { 0.0 } else { bytes as f64 / gb_s }
}

/// Number of aligned units of `unit` bytes that the range touches.
#[inline(always)]
fn units(off: u64, len: usize, unit: u64) -> u64 {
    if len == 0 { 0 } else { (off + len as u64 - 1) / unit - off / unit + 1 }
}

/// Counts at one moment, or between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterSnapshot {
    nodes: usize,
    pairs: Vec<Counters>,
}

impl MeterSnapshot {
    fn empty(nodes: usize) -> MeterSnapshot {
        MeterSnapshot { nodes, pairs: vec![Counters::default(); nodes * nodes] }
    }

    /// Number of nodes that it covers.
    pub fn node_count(&self) -> u32 {
        self.nodes as u32
    }

    /// The counts of one pair; zero for unknown nodes.
    pub fn pair(&self, accessor: u32, home: u32) -> Counters {
        let (a, h) = (accessor as usize, home as usize);
        if a < self.nodes && h < self.nodes { self.pairs[a * self.nodes + h] } else { Counters::default() }
    }

    /// Accesses to the accessor's own node.
    pub fn local(&self) -> Counters {
        self.sum(|a, h| a == h)
    }

    /// Accesses to other nodes.
    pub fn remote(&self) -> Counters {
        self.sum(|a, h| a != h)
    }

    /// All accesses.
    pub fn total(&self) -> Counters {
        self.sum(|_, _| true)
    }

    /// The counts added since `earlier` was taken, from the same meter and without a reset in between.
    pub fn since(&self, earlier: &MeterSnapshot) -> MeterSnapshot {
        let pairs = self.pairs.iter().zip(&earlier.pairs).map(|(&now, &then)| now - then).collect();
        MeterSnapshot { nodes: self.nodes, pairs }
    }

    /// Weights the counts with the costs of `topology`, for `threads_per_node` working threads on each node.
    pub fn cost(&self, topology: &Topology, threads_per_node: u32) -> ProjectedCost {
        let mut cost = ProjectedCost::default();
        for accessor in 0..self.nodes as u32 {
            for home in 0..self.nodes as u32 {
                let (count, link) = (self.pair(accessor, home), topology.link(accessor, home));
                cost.latency_ns += count.reads as f64 * link.read_ns + count.fences as f64 * link.write_ns;
                // Media write whole 256-byte lines, however little was stored.
                cost.read_transfer_ns += transfer_ns(count.read_lines * LINE_BYTES, link.read_gb_s);
                cost.write_transfer_ns += transfer_ns(count.media_lines * MEDIA_LINE_BYTES, link.write_bandwidth(threads_per_node));
            }
        }
        cost
    }

    fn sum(&self, wanted: impl Fn(usize, usize) -> bool) -> Counters {
        let pairs = self.pairs.iter().enumerate().filter(|(i, _)| wanted(i / self.nodes, i % self.nodes));
        pairs.fold(Counters::default(), |sum, (_, &c)| sum + c)
    }
}

/// Projected time of the counted accesses. Each thread pays latency by itself; all threads share the transfers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProjectedCost {
    /// Sum of the latencies: reads pay the read latency, each fence pays the write latency of its pair.
    pub latency_ns: f64,
    /// Time that the links need to transfer the lines read.
    pub read_transfer_ns: f64,
    /// Time that the media need to absorb the lines written.
    pub write_transfer_ns: f64,
}

impl ProjectedCost {
    /// Time until `threads` threads have finished: bound by latency or by bandwidth, whichever takes longer.
    pub fn elapsed_ns(&self, threads: u32) -> f64 {
        (self.latency_ns / f64::from(threads.max(1))).max(self.read_transfer_ns + self.write_transfer_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkCost;

    #[test]
    fn counts_lines_and_media_lines() {
        let topology = Topology::emulated(2);
        let meter = Meter::new(&topology);
        topology.bind_current_thread(1).unwrap();
        meter.record_read(0, 60, 8);
        meter.record_write(1, 0, 32);
        meter.record_write(1, 32, 32);
        meter.record_write(1, 250, 10);
        meter.record_write(1, 4096, 0);
        meter.record_flush(1, 63, 2);
        meter.record_fence(1);
        let shot = meter.snapshot();
        let remote = Counters { reads: 1, read_bytes: 8, read_lines: 2, ..Counters::default() };
        assert_eq!(shot.pair(1, 0), remote);
        assert_eq!(shot.remote(), remote);
        let local = shot.pair(1, 1);
        assert_eq!((local.writes, local.write_bytes, local.write_lines), (4, 74, 4));
        assert_eq!((local.flushes, local.fences, local.media_lines), (2, 1, 2));
        assert_eq!(shot.pair(0, 0), Counters::default());
    }

    #[test]
    fn reset_and_difference() {
        let topology = Topology::emulated(1);
        let meter = Meter::new(&topology);
        meter.record_read(0, 0, 64);
        let first = meter.snapshot();
        meter.record_read(0, 0, 64);
        assert_eq!(meter.snapshot().since(&first).total().reads, 1);
        meter.reset();
        assert_eq!(meter.snapshot().total(), Counters::default());
        meter.record_fence(0);
        assert_eq!(meter.snapshot().total().fences, 1);
    }

    #[test]
    fn threads_that_end_hand_their_slot_on_and_nothing_is_lost() {
        let topology = Topology::emulated(2);
        let meter = Meter::new(&topology);
        for round in 1..=20 {
            std::thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| (0..100).for_each(|i| meter.record_write(0, i * 64, 64)));
                }
            });
            assert_eq!(meter.snapshot().total().writes, round * 400);
        }
        assert!(meter.slots.lock().len() <= 8, "slots are reused");
    }

    #[test]
    fn one_thread_may_use_many_meters() {
        let topology = Topology::emulated(1);
        let meters: Vec<_> = (0..20).map(|_| Meter::new(&topology)).collect();
        for _ in 0..3 {
            meters.iter().for_each(|m| m.record_fence(0));
        }
        assert!(meters.iter().all(|m| m.snapshot().total().fences == 3));
    }

    /// Regression: a link without bandwidth made the cost of all other links disappear, although nothing was
    /// transferred over it.
    #[test]
    fn a_link_that_nobody_uses_costs_nothing() {
        let dead = LinkCost { read_gb_s: 0.0, write_gb_s: 0.0, ..LinkCost::REMOTE };
        let lonely = LinkCost { collapse_threads: Some(0), ..LinkCost::REMOTE };
        let topology = crate::TopologyBuilder::emulated(2).link(0, 1, dead).link(1, 0, lonely).build();
        let meter = Meter::new(&topology);
        topology.bind_current_thread(0).unwrap();
        meter.record_read(0, 0, 64);
        meter.record_write(0, 0, 256);
        let cost = meter.snapshot().cost(&topology, 1);
        assert_eq!(cost.read_transfer_ns, 64.0 / LinkCost::LOCAL.read_gb_s);
        assert_eq!(cost.write_transfer_ns, 256.0 / LinkCost::LOCAL.write_gb_s);
        assert_eq!(cost.elapsed_ns(1), cost.read_transfer_ns + cost.write_transfer_ns);
    }

    #[test]
    fn cost_weighs_remote_accesses_more() {
        let topology = Topology::emulated(2);
        let meter = Meter::new(&topology);
        topology.bind_current_thread(0).unwrap();
        meter.record_read(0, 0, 8);
        let local = meter.snapshot().cost(&topology, 1);
        meter.reset();
        meter.record_read(1, 0, 8);
        let remote = meter.snapshot().cost(&topology, 1);
        assert_eq!(local.latency_ns, LinkCost::LOCAL.read_ns);
        assert_eq!(remote.latency_ns, LinkCost::REMOTE.read_ns);
        assert!(remote.elapsed_ns(1) > local.elapsed_ns(1));
    }
}
