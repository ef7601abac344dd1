//! Speed and size of the ordered indexes alone, side by side, on a flat log in huge pages.
//!
//! `cargo run --release -p hither-index --example ordered_bench [keys] [threads] [data set, `all` or `size`]`
//!
//! The log's entries are 32 bytes for eight-byte keys, like the real ones. Rates are for all threads together. Each
//! measurement is made on the two indexes in turn, three times; the median counts (for loads: the better of two).

use hither_index::btree::BTreeIndex;
use hither_index::conformance::Rng;
use hither_index::learned::LearnedIndex;
use hither_index::{Hasher, Index, Key, OrderedIndex, Ref, Resolver, Start};
use hither_sync::epoch;
use std::hint::black_box;

/// Bits of a reference that hold the place; the rest is a tag.
const PLACE: u64 = (1 << 44) - 1;

/// Entries of a length word and the key, aligned to 8 bytes. A reference is an offset in 8-byte units, plus one.
struct FlatLog {
    bytes: &'static mut [u8],
    used: usize,
}

impl FlatLog {
    fn new(capacity: usize) -> Self {
        let len = capacity.next_multiple_of(2 << 20);
        // SAFETY: a fresh anonymous mapping, never unmapped; the slice owns all of it.
        let bytes = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let raw = libc::mmap(std::ptr::null_mut(), len + (2 << 20), protection, flags, -1, 0);
            assert_ne!(raw, libc::MAP_FAILED);
            let aligned = raw.map_addr(|address| address.next_multiple_of(2 << 20));
            libc::madvise(aligned, len, libc::MADV_HUGEPAGE);
            std::slice::from_raw_parts_mut(aligned.cast::<u8>(), len)
        };
        FlatLog { bytes, used: 0 }
    }

    fn append(&mut self, key: &[u8]) -> Ref {
        let at = self.used;
        self.bytes[at..at + 8].copy_from_slice(&(key.len() as u64).to_le_bytes());
        self.bytes[at + 8..at + 8 + key.len()].copy_from_slice(key);
        self.used = at + (24 + key.len()).next_multiple_of(8);
        Ref(at as u64 / 8 + 1)
    }
}

impl Resolver for FlatLog {
    #[inline(always)]
    fn prefetch(&self, reference: Ref) {
        hither_sync::prefetch_read(self.bytes.as_ptr().wrapping_add(((reference.0 & PLACE) as usize).wrapping_sub(1).wrapping_mul(8)));
    }

    #[inline(always)]
    fn key(&self, reference: Ref) -> &[u8] {
        let at = ((reference.0 & PLACE) as usize - 1) * 8;
        let len = u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"));
        &self.bytes[at + 8..at + 8 + len as usize]
    }

    fn hash(&self, reference: Ref) -> u64 {
        Hasher::new(0).hash(self.key(reference))
    }
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { bytes, hash: 0 }
}

/// Seconds of processor time that the current thread has used.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the timespec it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `work(thread)` on all threads. Returns millions of operations per second for `ops` in total, by processor time:
/// on a shared machine, wall-clock time would measure the neighbours.
fn timed(threads: usize, ops: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = std::sync::Barrier::new(threads);
    let run = |thread: usize| {
        barrier.wait();
        let begun = processor_time();
        work(thread);
        processor_time() - begun
    };
    let spent = std::thread::scope(|scope| {
        let run = &run;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        handles.into_iter().map(|handle| handle.join().expect("the work does not panic")).sum::<f64>()
    });
    ops as f64 / (spent / threads as f64) / 1e6
}

fn insert<I: Index>(index: &I, log: &FlatLog, reference: Ref) {
    let _pin = epoch::pin_writer();
    let key = key(log.key(reference));
    let located = index.locate(key, log);
    let old = if located.verified || log.matches(located.candidate, key.bytes) { located.candidate } else { Ref::NONE };
    index.install(located.token, key, old, reference, log).expect("one writer per key");
}

fn share<T>(all: &[T], threads: usize, thread: usize) -> &[T] {
    let part = all.len().div_ceil(threads);
    &all[(thread * part).min(all.len())..((thread + 1) * part).min(all.len())]
}

/// The measurements of an index once it is loaded.
const MEASURES: [&str; 7] = ["get", "get_many", "get absent", "update", "scan 100", "scan back", "get, read"];

/// Keys to be looked up, copied from the log.
struct Probes {
    flat: Vec<u8>,
    spans: Vec<(usize, usize)>,
}

impl Probes {
    fn new(log: &FlatLog, refs: &[Ref], rounds: usize) -> Self {
        let (mut rng, mut probes) = (Rng::new(12), Probes { flat: Vec::new(), spans: Vec::with_capacity(rounds) });
        for _ in 0..rounds {
            let key = log.key(refs[rng.below(refs.len())]);
            probes.spans.push((probes.flat.len(), probes.flat.len() + key.len()));
            probes.flat.extend_from_slice(key);
        }
        probes
    }

    fn key(&self, span: (usize, usize)) -> Key<'_> {
        key(&self.flat[span.0..span.1])
    }
}

fn load<I: Index>(index: &I, log: &FlatLog, refs: &[Ref], threads: usize) -> f64 {
    timed(threads, refs.len(), |t| share(refs, threads, t).iter().for_each(|r| insert(index, log, *r)))
}

fn measure<I: OrderedIndex>(index: &I, log: &FlatLog, refs: &[Ref], probes: &Probes, threads: usize, what: usize) -> f64 {
    let spans = &probes.spans[..];
    let scans = &spans[..spans.len() / 8];
    match what {
        0 => timed(threads, spans.len(), |t| {
            for span in share(spans, threads, t) {
                let _pin = epoch::pin();
                assert!(black_box(index.get(probes.key(*span), log)).is_some());
            }
        }),
        1 => timed(threads, spans.len(), |t| {
            let mut found = [Ref::NONE; 16];
            for group in share(spans, threads, t).chunks_exact(16) {
                let _pin = epoch::pin();
                let keys: [Key<'_>; 16] = std::array::from_fn(|i| probes.key(group[i]));
                index.get_many(&keys, &mut found, log);
                assert!(black_box(found).iter().all(|r| r.is_some()));
            }
        }),
        2 => timed(threads, spans.len(), |t| {
            let mut absent = Vec::new();
            for span in share(spans, threads, t) {
                let _pin = epoch::pin();
                absent.clear();
                absent.extend_from_slice(probes.key(*span).bytes);
                *absent.last_mut().expect("no key is empty") ^= 0x55;
                black_box(index.get(key(&absent), log));
            }
        }),
        3 => timed(threads, refs.len(), |t| {
            for r in share(refs, threads, t) {
                let _pin = epoch::pin_writer();
                let key = key(log.key(*r));
                let located = index.locate(key, log);
                index.install(located.token, key, located.candidate, Ref(located.candidate.0 ^ 1 << 50), log).expect("no conflict");
            }
        }),
        // As in a store, each lookup is followed by a read of the log that depends on it.
        6 => timed(threads, spans.len(), |t| {
            for span in share(spans, threads, t) {
                let _pin = epoch::pin();
                let key = probes.key(*span);
                assert!(log.matches(index.get(key, log), key.bytes));
            }
        }),
        _ => timed(threads, scans.len(), |t| {
            let mut out = Vec::new();
            for span in share(scans, threads, t) {
                let _pin = epoch::pin();
                out.clear();
                index.scan(Start::At(probes.key(*span).bytes), what == 5, 100, &mut out, log);
                black_box(&out);
            }
        }),
    }
}

fn delete_all<I: Index>(index: &I, log: &FlatLog, refs: &[Ref], threads: usize) -> f64 {
    timed(threads, refs.len(), |t| {
        for r in share(refs, threads, t) {
            let _pin = epoch::pin_writer();
            let key = key(log.key(*r));
            let located = index.locate(key, log);
            index.install(located.token, key, located.candidate, Ref::NONE, log).expect("no conflict");
        }
    })
}

fn row(what: &str, tree: f64, learned: f64, unit: &str) {
    println!("  {what:<12} {tree:>8.2} {learned:>8.2} {unit:<5} {:>6.2}x", learned / tree);
}

fn middle(mut rates: [f64; 3]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[1]
}

/// Compares both indexes on one data set, which is loaded in the order of `refs`.
fn compare(name: &str, log: &FlatLog, refs: &[Ref], threads: usize) {
    println!("{name} ({} keys): B+-tree, learned", refs.len());
    let (mut tree, mut learned) = (BTreeIndex::new(), LearnedIndex::new());
    let mut loads = [0f64; 2];
    for _ in 0..2 {
        (tree, learned) = (BTreeIndex::new(), LearnedIndex::new());
        loads = [loads[0].max(load(&tree, log, refs, threads)), loads[1].max(load(&learned, log, refs, threads))];
    }
    row("load", loads[0], loads[1], "M/s");
    let per_key = |bytes: usize| bytes as f64 / refs.len() as f64;
    row("memory", per_key(tree.memory_bytes()), per_key(learned.memory_bytes()), "B/key");
    let probes = Probes::new(log, refs, 2_000_000);
    for (what, title) in MEASURES.iter().enumerate() {
        let mut rates = [[0f64; 3]; 2];
        let [trees, arrays] = &mut rates;
        for (tree_rate, array_rate) in trees.iter_mut().zip(arrays) {
            *tree_rate = measure(&tree, log, refs, &probes, threads, what);
            *array_rate = measure(&learned, log, refs, &probes, threads, what);
        }
        row(title, middle(rates[0]), middle(rates[1]), "M/s");
    }
    row("delete all", delete_all(&tree, log, refs, threads), delete_all(&learned, log, refs, threads), "M/s");
}

/// Memory per key after random inserts, over several sizes.
fn sizes(log: &FlatLog, refs: &[Ref]) {
    let (tree, learned) = (BTreeIndex::new(), LearnedIndex::new());
    println!("random words: B+-tree, learned");
    for (i, reference) in refs.iter().enumerate() {
        insert(&tree, log, *reference);
        insert(&learned, log, *reference);
        let n = i + 1;
        if n % 500_000 == 0 && n >= 1_000_000 {
            let per_key = |bytes: usize| bytes as f64 / n as f64;
            row(&format!("{n}"), per_key(tree.memory_bytes()), per_key(learned.memory_bytes()), "B/key");
        }
    }
}

fn shuffle<T>(all: &mut [T], rng: &mut Rng) {
    (1..all.len()).for_each(|i| all.swap(i, rng.below(i + 1)));
}

/// A standard normal number (Box–Muller).
fn normal(rng: &mut Rng) -> f64 {
    let unit = |rng: &mut Rng| (rng.word() >> 11) as f64 / (1u64 << 53) as f64;
    (-2.0 * (1.0 - unit(rng)).ln()).sqrt() * (std::f64::consts::TAU * unit(rng)).cos()
}

/// Longitudes and latitudes around towns, compounded as 180 · ⌊longitude⌋ + latitude and scaled (ALEX, section 6.1).
fn places(n: usize, rng: &mut Rng) -> Vec<u64> {
    let towns: Vec<(f64, f64)> = (0..2000).map(|_| (rng.below(360) as f64 + 0.5, 90.0 + 30.0 * normal(rng))).collect();
    (0..n)
        .map(|_| {
            let town = towns[rng.below(towns.len()).min(rng.below(towns.len()))];
            let (longitude, latitude) = (town.0 + 0.8 * normal(rng), (town.1 + 0.5 * normal(rng)).clamp(0.0, 180.0));
            ((180.0 * longitude.rem_euclid(360.0).floor() + latitude) * 1e12) as u64
        })
        .collect()
}

/// The words of one data set, in the order of loading.
fn words(name: &str, n: usize, rng: &mut Rng) -> Vec<u64> {
    let ascending = |mut words: Vec<u64>| {
        words.sort_unstable();
        words.dedup();
        words
    };
    let mixed = |words: Vec<u64>, rng: &mut Rng| {
        let mut words = ascending(words);
        shuffle(&mut words, rng);
        words
    };
    let count = n as u64;
    match name {
        "uniform" => (0..n).map(|_| rng.word()).collect(),
        "sequential" => (0..count).collect(),
        "descending" => (0..count).rev().collect(),
        "ascending" => ascending((0..n).map(|_| rng.word()).collect()),
        "streams" => (0..count).map(|i| ((i % 20) << 40) | (i / 20)).collect(),
        "clustered" => {
            let centres: Vec<u64> = (0..1000).map(|_| rng.word()).collect();
            let words = (0..n).map(|_| centres[rng.below(centres.len())].wrapping_add(rng.below(1 << 20) as u64)).collect();
            mixed(words, rng)
        }
        "lognormal" => {
            let words = (0..n).map(|_| ((2.0 * normal(rng)).exp() * 1e15) as u64).collect();
            mixed(words, rng)
        }
        "longlat" => {
            let words = places(n, rng);
            mixed(words, rng)
        }
        // Eight phases, each in a range of its own that is narrower than the one before and lies inside it.
        "changing" => {
            let all: Vec<u64> = (0..8)
                .flat_map(|phase| {
                    let mut part: Vec<u64> = (0..n / 8)
                        .map(|_| {
                            (0x5a5a_5a5a_5a5a_5a5a >> (64 - 4 * phase).min(63) << (64 - 4 * phase).min(63)) + (rng.word() >> (4 * phase))
                        })
                        .collect();
                    part.sort_unstable();
                    part.dedup();
                    shuffle(&mut part, rng);
                    part
                })
                .collect();
            all
        }
        // Random words first; then others that no line fits: lognormal in a narrow range, or around centres everywhere.
        "late-skew" | "late-clusters" => {
            let centres: Vec<u64> = (0..1000).map(|_| rng.word()).collect();
            let skewed = |rng: &mut Rng| (0x5a << 56) + ((2.0 * normal(rng)).exp() * 1e12) as u64;
            let clustered = |rng: &mut Rng| centres[rng.below(centres.len())].wrapping_add(rng.below(1 << 20) as u64);
            let early = mixed((0..n / 2).map(|_| rng.word()).collect(), rng);
            let late = mixed((0..n / 2).map(|_| if name == "late-skew" { skewed(rng) } else { clustered(rng) }).collect(), rng);
            early.into_iter().chain(late).collect()
        }
        _ => panic!("no data set {name}"),
    }
}

/// Paths of the files of this machine.
fn paths(n: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![std::path::PathBuf::from("/usr"), "/etc".into(), "/var".into(), "/opt".into(), "/home".into(), "/root".into()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
            found.push(entry.path().to_string_lossy().into_owned());
            if found.len() == n {
                return found;
            }
        }
    }
    found
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: usize = args.get(1).map_or(5_000_000, |arg| arg.parse().expect("a number of keys"));
    let threads: usize = args.get(2).map_or(2, |arg| arg.parse().expect("a number of threads"));
    let what = args.get(3).map_or("all", String::as_str);
    let sets = [
        "uniform",
        "sequential",
        "descending",
        "ascending",
        "streams",
        "clustered",
        "lognormal",
        "longlat",
        "changing",
        "late-skew",
        "late-clusters",
    ];
    for name in sets {
        if what == "all" || what == name {
            let mut rng = Rng::new(1);
            let words = words(name, n, &mut rng);
            let mut log = FlatLog::new(words.len() * 32);
            let refs: Vec<Ref> = words.iter().map(|word| log.append(&word.to_be_bytes())).collect();
            compare(name, &log, &refs, threads);
        }
    }
    if what == "all" || what == "paths" {
        let mut paths = paths(n);
        shuffle(&mut paths, &mut Rng::new(1));
        let mut log = FlatLog::new(paths.iter().map(|path| path.len() + 32).sum());
        let refs: Vec<Ref> = paths.iter().map(|path| log.append(path.as_bytes())).collect();
        compare("paths", &log, &refs, threads);
    }
    if what == "all" || what == "size" {
        let mut rng = Rng::new(1);
        let mut log = FlatLog::new(6_000_000.max(n) * 32);
        let refs: Vec<Ref> = (0..6_000_000.max(n)).map(|_| log.append(&rng.word().to_be_bytes())).collect();
        sizes(&log, &refs);
    }
}
