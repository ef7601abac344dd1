//! Counts what each operation costs the medium and the allocator; no test here measures time.
//!
//! Fences, flushed lines and syncs are counted in the recording of shadow pools. Allocations are counted by a global
//! allocator, per thread, so that the test harness does not disturb. Operations that open a segment cost more; the
//! tests leave them out, but they must be rare.

use hither_engine::{Batch, Condition, KeyspaceHandle, Kind, Store, WriteOptions};
use hither_pmem::shadow::What;
use hither_pmem::{CreateOptions, Emulate, MediumChoice, Pool, SyncPhase};
use hither_testkit::explorer_script::{Config, Life, store_options};
use hither_testkit::images::Step;
use hither_topology::Topology;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Late in a thread's life the cell is gone; then nothing is counted.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator. Counting allocates nothing, because the cell is
// const-initialised and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A lower bound of the offset at which the segments of the histories' pools begin.
const DATA: u64 = 139_264;

fn life(rules: Emulate) -> Life {
    Life::begin(&Config { rules, nodes: 1, shards: 1, max_segments: 200, seed: 1 })
}

/// The steps that one operation records.
fn steps_of(life: &Life, operation: impl FnOnce(&Store)) -> Vec<Step> {
    let before = life.recorder.position();
    operation(&life.store);
    life.recorder.recording().steps.split_off(before)
}

#[derive(Default, Debug)]
struct Cost {
    fences: usize,
    syncs: usize,
    /// How often each line was flushed.
    flushed: BTreeMap<u64, usize>,
    /// How often each line was stored to.
    stored: BTreeMap<u64, usize>,
    metadata: bool,
}

fn cost(steps: &[Step]) -> Cost {
    let mut cost = Cost::default();
    for step in steps {
        match &step.what {
            What::Fence => cost.fences += 1,
            What::Sync(SyncPhase::Begin) => cost.syncs += 1,
            What::Flush { off, len } => {
                (off / 64..=(off + *len as u64 - 1) / 64).for_each(|line| *cost.flushed.entry(line).or_default() += 1)
            }
            What::Store { off, bytes, .. } => {
                cost.metadata |= *off < DATA + 4096;
                (off / 64..=(off + bytes.len() as u64 - 1) / 64).for_each(|line| *cost.stored.entry(line).or_default() += 1);
            }
            What::Zeros { .. } | What::Resize(_) => cost.metadata = true,
            _ => {}
        }
    }
    cost
}

/// Asserts one fence, and that exactly the lines stored to were flushed, each once.
fn assert_one_fence_each_line_once(cost: &Cost, what: &str) {
    assert_eq!(cost.fences, 1, "{what}: {cost:?}");
    assert!(cost.flushed.values().all(|&times| times == 1), "{what} flushes a line twice: {cost:?}");
    let last = cost.stored.keys().next_back().copied();
    // The padding of an entry is flushed without being stored to; it extends to at most one further line.
    let other = cost.flushed.keys().filter(|&line| !cost.stored.contains_key(line) && Some(*line) != last.map(|last| last + 1)).count();
    assert_eq!(other, 0, "{what} flushes other lines than it stored to: {cost:?}");
    assert!(cost.stored.keys().all(|line| cost.flushed.contains_key(line)), "{what} leaves a line unflushed: {cost:?}");
}

fn write(store: &Store, keyspace: &KeyspaceHandle, key: &[u8], value: Option<&[u8]>) {
    store.write(keyspace, key, value, Condition::None, &WriteOptions::new()).unwrap().2.wait().unwrap();
}

#[test]
fn a_write_costs_one_fence_and_its_lines() {
    for kind in [Kind::Ordered, Kind::Hash] {
        let life = life(Emulate::Adr);
        let keyspace = life.store.create_keyspace("k", kind).unwrap();
        let mut measured = 0;
        for i in 0..400u64 {
            let value = vec![i as u8; if i % 3 == 0 { 8 } else { i as usize % 300 }];
            let key = (i % 150).to_be_bytes();
            let delete = i % 7 == 6;
            let cost = cost(&steps_of(&life, |store| write(store, &keyspace, &key, (!delete).then_some(&value))));
            if value.len() == 8 && !delete && !cost.metadata {
                assert!(cost.flushed.keys().eq(cost.stored.keys()), "a plain pair has no padding: {cost:?}");
            }
            if !cost.metadata && !cost.stored.is_empty() {
                measured += 1;
                assert_one_fence_each_line_once(&cost, "a write");
            }
        }
        assert!(measured > 300, "{measured} of 400 writes opened no segment");
    }
}

#[test]
fn a_batch_costs_one_fence_and_each_line_once() {
    let life = life(Emulate::Adr);
    let (one, two) = (life.store.create_keyspace("1", Kind::Ordered).unwrap(), life.store.create_keyspace("2", Kind::Hash).unwrap());
    let mut measured = 0;
    for round in 0..60u64 {
        let mut batch = Batch::default();
        for i in 0..16u64 {
            batch.put(if i % 2 == 0 { &one } else { &two }, &(round % 4 * 100 + i).to_be_bytes(), &round.to_be_bytes(), 0);
        }
        let cost = cost(&steps_of(&life, |store| store.commit(&batch, &WriteOptions::new()).unwrap().wait().unwrap()));
        if !cost.metadata {
            measured += 1;
            assert_one_fence_each_line_once(&cost, "a batch of 16");
        }
    }
    assert!(measured > 30, "{measured} of 60 batches opened no segment");
}

#[test]
fn reads_touch_no_medium() {
    for rules in [Emulate::Adr, Emulate::Eadr, Emulate::File] {
        let life = life(rules);
        for kind in [Kind::Ordered, Kind::Hash] {
            let keyspace = life.store.create_keyspace(kind.name(), kind).unwrap();
            (0..100u64).for_each(|i| write(&life.store, &keyspace, &i.to_be_bytes(), Some(b"value")));
            let steps = steps_of(&life, |store| {
                for i in 0..200u64 {
                    store.get_with(&keyspace, &i.to_be_bytes(), |_| ()).unwrap();
                }
            });
            assert!(steps.is_empty(), "{rules:?} {kind:?}: gets store, flush, fence or sync: {steps:?}");
        }
    }
}

#[test]
fn a_commit_group_costs_one_sync() {
    let life = life(Emulate::File);
    let keyspace = life.store.create_keyspace("k", Kind::Hash).unwrap();
    write(&life.store, &keyspace, b"first", Some(b"opens the segment"));
    let single = cost(&steps_of(&life, |store| write(store, &keyspace, b"single", Some(b"value"))));
    assert_eq!((single.syncs, single.fences, single.flushed.len()), (1, 0, 0));
    let group = cost(&steps_of(&life, |store| {
        let put = |i: u64| store.write(&keyspace, &i.to_be_bytes(), Some(b"value"), Condition::None, &WriteOptions::new()).unwrap().2;
        let tickets: Vec<_> = (0..20).map(put).collect();
        tickets.iter().for_each(|ticket| ticket.wait().unwrap());
        store.sync().unwrap();
    }));
    // One for the twenty tickets, one for the sync that follows.
    assert_eq!(group.syncs, 2, "{group:?}");
}

/// The cost of writing a value that takes `segments` segments, all of which exist already.
fn cost_of_a_run(rules: Emulate, segments: usize) -> Cost {
    let life = life(rules);
    let keyspace = life.store.create_keyspace("k", Kind::Hash).unwrap();
    let segment = life.store.stats().pools[0].segment_bytes as usize;
    let value = vec![7; (segments - 1) * segment];
    // Two large values, written and deleted, make the pool grow and use some of its segments before.
    for key in [b"1", b"2"] {
        write(&life.store, &keyspace, key, Some(&vec![7; 60 * segment]));
        write(&life.store, &keyspace, key, None);
        while life.store.reclaim().unwrap() > 0 {}
    }
    let steps = steps_of(&life, |store| write(store, &keyspace, b"large", Some(&value)));
    assert!(!steps.iter().any(|step| matches!(step.what, What::Resize(_))), "the pool grows");
    cost(&steps)
}

/// Regression: each segment of a run cost two syncs for its descriptor and one for its zeros. For 40 MiB in segments of
/// 64 KiB that made 544 syncs, while all clients waited.
#[test]
fn a_long_run_costs_no_more_syncs_than_a_short_one() {
    for rules in [Emulate::File, Emulate::Adr] {
        let (short, long) = (cost_of_a_run(rules, 3), cost_of_a_run(rules, 50));
        assert!(short.metadata && long.metadata && short.syncs + short.fences > 3, "{rules:?}: {short:?}");
        assert_eq!((long.syncs, long.fences), (short.syncs, short.fences), "{rules:?}: a run of 50 segments, and one of 3");
    }
}

/// Number of bytes zeroed by the write that opens the first segment.
fn zeroed_ahead(rules: Emulate) -> usize {
    let life = life(rules);
    let keyspace = life.store.create_keyspace("k", Kind::Hash).unwrap();
    let steps = steps_of(&life, |store| write(store, &keyspace, b"first", Some(b"opens the segment")));
    steps.iter().map(|step| if let What::Zeros { len, .. } = step.what { len } else { 0 }).sum()
}

#[test]
fn a_log_on_files_writes_into_written_blocks_only() {
    // The first sync of a block that was only reserved costs a commit of the file system's journal.
    let segment = life(Emulate::File).store.stats().pools[0].segment_bytes;
    assert_eq!(zeroed_ahead(Emulate::File) as u64, segment);
    assert_eq!(zeroed_ahead(Emulate::Adr), 0, "persistent memory has nothing to gain");
}

#[test]
fn a_get_allocates_nothing() {
    let topology = Arc::new(Topology::single());
    let pool =
        Pool::create_in_memory(&CreateOptions { medium: MediumChoice::Volatile, hugepages: false, ..CreateOptions::new(4 << 20) }).unwrap();
    pool.finish_creation().unwrap();
    let store = Store::open(store_options(vec![pool], &topology, 2, 1, None)).unwrap();
    for kind in [Kind::Ordered, Kind::Hash] {
        let keyspace = store.create_keyspace(kind.name(), kind).unwrap();
        let key = |i: u64| if i.is_multiple_of(2) { i.to_be_bytes().to_vec() } else { format!("a longer key {i}").into_bytes() };
        let keys: Vec<_> = (0..2000).map(key).collect();
        keys.iter().step_by(2).for_each(|key| write(&store, &keyspace, key, Some(key)));
        store.get_with(&keyspace, &keys[0], |_| ()).unwrap();
        let before = ALLOCATIONS.with(Cell::get);
        let mut found = 0;
        for key in &keys {
            found += usize::from(store.get_with(&keyspace, key, |value| value == key.as_slice()).unwrap() == Some(true));
        }
        store.multi_get_with(&keyspace, &keys, |_, value| found += usize::from(value.is_some())).unwrap();
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "{kind:?}: gets allocate");
        assert_eq!(found, 2000);
    }
}
