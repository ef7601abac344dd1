//! Measures the hash index alone: two threads, random 8-byte keys, a flat array of 32-byte entries in place of the log.
//!
//! `cargo run --release -p hither-index --example hash_bench [keys] [threads] [turnovers]`; the keys default to 5 M,
//! the threads to 2. Prints millions of operations per second over all threads, and bytes of DRAM per key at several
//! sizes. With a number of turnovers, it prints instead the speed before and after so many times the number of keys
//! have been deleted and replaced by others.

use hither_index::hash::HashIndex;
use hither_index::{Hasher, Index, Key, Ref, Resolver};
use hither_sync::epoch;
use std::alloc::Layout;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const SEED: u64 = 0x5eed;
const ENTRY_WORDS: usize = 4;

/// Entries of 32 bytes: the key, the value, and padding for a header. A reference is the entry's number plus one.
struct FlatLog {
    words: *mut AtomicU64,
    layout: Layout,
    hasher: Hasher,
}

// SAFETY: the words are atomics, allocated for the log's whole life.
unsafe impl Send for FlatLog {}
// SAFETY: as above.
unsafe impl Sync for FlatLog {}

impl FlatLog {
    fn new(entries: usize) -> Self {
        let bytes = (entries * ENTRY_WORDS * 8).next_multiple_of(2 << 20);
        let layout = Layout::from_size_align(bytes, 2 << 20).expect("a sane size");
        // SAFETY: the layout is not empty; advice on own memory; the writes cover exactly the allocation.
        let words = unsafe {
            let raw = std::alloc::alloc(layout);
            assert!(!raw.is_null(), "out of memory");
            libc::madvise(raw.cast(), bytes, libc::MADV_HUGEPAGE);
            raw.write_bytes(0, bytes);
            raw.cast()
        };
        FlatLog { words, layout, hasher: Hasher::new(SEED) }
    }

    #[inline(always)]
    fn word(&self, reference: Ref, word: usize) -> &AtomicU64 {
        let at = (reference.0 as usize - 1) * ENTRY_WORDS + word;
        debug_assert!(at * 8 < self.layout.size());
        // SAFETY: references are made by `write` only, which stays inside the allocation.
        unsafe { &*self.words.add(at) }
    }

    #[inline(always)]
    fn write(&self, number: usize, key: u64) -> Ref {
        let reference = Ref(number as u64 + 1);
        self.word(reference, 0).store(key, Ordering::Relaxed);
        self.word(reference, 1).store(!key, Ordering::Relaxed);
        reference
    }
}

impl Drop for FlatLog {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { std::alloc::dealloc(self.words.cast(), self.layout) };
    }
}

impl Resolver for FlatLog {
    #[inline(always)]
    fn prefetch(&self, reference: Ref) {
        hither_sync::prefetch_read(self.word(reference, 0));
    }

    #[inline(always)]
    fn key(&self, reference: Ref) -> &[u8] {
        // SAFETY: the eight bytes lie inside the allocation; entries do not change once their reference is known.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self.word(reference, 0)).cast(), 8) }
    }

    #[inline(always)]
    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        key.len() == 8 && key == self.key(reference)
    }

    #[inline(always)]
    fn hash(&self, reference: Ref) -> u64 {
        self.hasher.hash(self.key(reference))
    }
}

/// The i-th key: a bijection, so that keys are distinct.
#[inline(always)]
fn key_of(i: usize) -> [u8; 8] {
    let mut z = (i as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

fn put(index: &HashIndex, log: &FlatLog, i: usize) {
    put_at(index, log, i, i);
}

/// Puts key `i`, with the entry of this number.
fn put_at(index: &HashIndex, log: &FlatLog, i: usize, number: usize) {
    let bytes = key_of(i);
    let key = log.hasher.key(&bytes);
    let _pin = epoch::pin();
    index.prefetch(key);
    let entry = log.write(number, u64::from_le_bytes(bytes));
    let located = index.locate(key, log);
    let old = match located.candidate {
        candidate if candidate.is_some() && (located.verified || log.matches(candidate, key.bytes)) => candidate,
        _ => Ref::NONE,
    };
    index.install(located.token, key, old, entry, log).expect("keys are distinct");
}

fn update(index: &HashIndex, log: &FlatLog, i: usize, entry: Ref) {
    let bytes = key_of(i);
    let key = log.hasher.key(&bytes);
    let _pin = epoch::pin();
    index.prefetch(key);
    let located = index.locate(key, log);
    assert!(located.verified || log.matches(located.candidate, key.bytes));
    // An update installs the same reference again: the flat log keeps one entry per key.
    index.install(located.token, key, located.candidate, entry, log).expect("one thread per key");
}

/// Processor time of the calling thread in seconds.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(done, 0, "the thread clock exists");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `work(thread)` on each thread and prints the rate of all `operations`: by the wall clock, and per processor
/// time, which other processes disturb less (though they still evict cached data).
fn measure(name: &str, threads: usize, operations: usize, work: impl Fn(usize) + Sync) {
    let start = Instant::now();
    let busy: f64 = std::thread::scope(|scope| {
        let work = &work;
        let timed = |thread| {
            let before = processor_seconds();
            work(thread);
            processor_seconds() - before
        };
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || timed(thread))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no thread panics")).sum()
    });
    let millions = operations as f64 / 1e6;
    let (wall, processor) = (millions / start.elapsed().as_secs_f64(), millions * threads as f64 / busy);
    println!("{name:>28}: {wall:7.2} M/s, {processor:7.2} M/s of processor time");
}

/// Cheap random numbers below `bound`.
struct Draw(u64);

impl Draw {
    #[inline(always)]
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        ((u128::from(self.0) * bound as u128) >> 64) as usize
    }
}

fn speed(log: &FlatLog, keys: usize, threads: usize) {
    let index = HashIndex::new();
    let share = |thread: usize| keys * thread / threads..keys * (thread + 1) / threads;
    measure("load, growing", threads, keys, |thread| share(thread).for_each(|i| put(&index, log, i)));
    println!("{:>28}: {:7.2} B/key", "memory", index.memory_bytes() as f64 / keys as f64);
    lookups(&index, log, keys, threads);
    measure("update", threads, keys, |thread| {
        let mut draw = Draw(thread as u64 + 1);
        let own = share(thread);
        for _ in own.clone() {
            let i = own.start + draw.below(own.len());
            update(&index, log, i, Ref(i as u64 + 1));
        }
    });
    measure("delete", threads, keys, |thread| {
        for i in share(thread) {
            update(&index, log, i, Ref::NONE);
        }
    });
    let reserved = HashIndex::new();
    measure("reserve", 1, keys, |_| reserved.reserve(keys));
    let before = reserved.memory_bytes();
    measure("load, reserved", threads, keys, |thread| share(thread).for_each(|i| put(&reserved, log, i)));
    println!("{:>28}: {:7.2} B/key, {} before", "memory", reserved.memory_bytes() as f64 / keys as f64, before as f64 / keys as f64);
}

fn lookups(index: &HashIndex, log: &FlatLog, keys: usize, threads: usize) {
    let rounds = 2 * keys;
    measure("get uniform", threads, rounds * threads, |thread| {
        let mut draw = Draw(thread as u64 + 7);
        for _ in 0..rounds {
            let bytes = key_of(draw.below(keys));
            let _pin = epoch::pin();
            assert!(index.get(log.hasher.key(&bytes), log).is_some());
        }
    });
    measure("get absent", threads, rounds * threads, |thread| {
        let mut draw = Draw(thread as u64 + 7);
        for _ in 0..rounds {
            let bytes = key_of(keys + draw.below(keys));
            let _pin = epoch::pin();
            black_box(index.get(log.hasher.key(&bytes), log));
        }
    });
    for group in [4, 8, 16, 32] {
        measure(&format!("get_many {group}"), threads, rounds / group * group * threads, |thread| {
            many(index, log, keys, rounds, group, thread)
        });
    }
}

fn many(index: &HashIndex, log: &FlatLog, keys: usize, rounds: usize, group: usize, thread: usize) {
    let mut draw = Draw(thread as u64 + 7);
    let mut found = vec![Ref::NONE; group];
    for _ in 0..rounds / group {
        let bytes: [[u8; 8]; 32] = std::array::from_fn(|i| if i < group { key_of(draw.below(keys)) } else { [0; 8] });
        let hashed: [Key<'_>; 32] =
            std::array::from_fn(|i| if i < group { log.hasher.key(&bytes[i]) } else { Key { bytes: &[], hash: 0 } });
        let _pin = epoch::pin();
        index.get_many(&hashed[..group], &mut found, log);
        assert!(found.iter().all(|reference| reference.is_some()));
    }
}

/// Measures a fresh index, and then the index after keys have been deleted, oldest first, and others inserted.
fn turnover(log: &FlatLog, keys: usize, threads: usize, times: usize) {
    let (index, entries) = (HashIndex::new(), keys * 6 / 5);
    measure("load", threads, keys, |thread| (thread..keys).step_by(threads).for_each(|i| put(&index, log, i)));
    aged(&index, log, keys, threads, 0);
    measure("delete and insert", threads, keys * times, |thread| {
        for i in (thread..keys * times).step_by(threads) {
            update(&index, log, i, Ref::NONE);
            put_at(&index, log, i + keys, (i + keys) % entries);
        }
    });
    aged(&index, log, keys, threads, keys * times);
}

/// Measures an index whose keys begin with the key of number `first`.
fn aged(index: &HashIndex, log: &FlatLog, keys: usize, threads: usize, first: usize) {
    println!("{:>28}: {:7.2} B/key", "memory", index.memory_bytes() as f64 / keys as f64);
    for (name, from) in [("get uniform", first), ("get absent", first + keys)] {
        measure(name, threads, keys * threads, |thread| {
            let mut draw = Draw(thread as u64 + 7);
            for _ in 0..keys {
                let bytes = key_of(from + draw.below(keys));
                let _pin = epoch::pin();
                assert_eq!(index.get(log.hasher.key(&bytes), log).is_some(), from == first);
            }
        });
    }
    let share = keys / threads;
    measure("update", threads, share * threads, |thread| {
        let mut draw = Draw(thread as u64 + 1);
        for _ in 0..share {
            let i = first + thread * share + draw.below(share);
            update(index, log, i, Ref((i % (keys * 6 / 5)) as u64 + 1));
        }
    });
}

/// This process's anonymous resident memory in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("RssAnon is there since Linux 4.5");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number of KiB") << 10
}

fn footprint(log: &FlatLog, keys: usize) {
    let before = resident_bytes();
    let index = HashIndex::new();
    println!("empty: {} B by its own account", index.memory_bytes());
    let (mut worst, mut next) = (0f64, 1_000_000);
    for i in 0..keys {
        put(&index, log, i);
        if i + 1 == next || i + 1 == keys {
            let own = index.memory_bytes() as f64 / (i + 1) as f64;
            let resident = resident_bytes().saturating_sub(before) as f64 / (i + 1) as f64;
            println!("{:9} keys: {own:6.2} B/key by its own account, {resident:6.2} B/key resident", i + 1);
            worst = worst.max(own).max(resident);
            next += 250_000;
        }
    }
    println!("worst: {worst:.2} B/key");
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>().expect("a number"));
    let keys = arguments.next().unwrap_or(5_000_000);
    let threads = arguments.next().unwrap_or(2);
    let log = FlatLog::new(keys * 6 / 5);
    if let Some(times) = arguments.next() {
        return turnover(&log, keys, threads, times);
    }
    speed(&log, keys, threads);
    footprint(&log, keys * 6 / 5);
}
