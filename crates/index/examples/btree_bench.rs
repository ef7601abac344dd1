//! Speed and size of the ordered index alone, on a flat log in huge pages.
//!
//! `cargo run --release -p hither-index --example btree_bench [keys] [threads] [all|words|quick|paths|size]`
//!
//! The log's entries are 32 bytes for eight-byte keys, as the real ones (decision 14). Rates are for all threads together.

use hither_index::btree::BTreeIndex;
use hither_index::conformance::Rng;
use hither_index::{Hasher, Index, Key, OrderedIndex, Ref, Resolver, Start};
use hither_sync::epoch;
use std::hint::black_box;

/// Bits of a reference that tell the place; the rest is a tag.
const PLACE: u64 = (1 << 44) - 1;

/// Entries of a length word and the key, 8-byte aligned; a reference is an offset in 8-byte units, plus one.
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
        hither_sync::prefetch_read(self.bytes.as_ptr().wrapping_add(((reference.0 & PLACE) as usize - 1) * 8));
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

/// Seconds of processor time that the current thread has had.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the timespec it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `work(thread)` on all threads; returns million operations per second for `ops` in total, by processor time: on a shared machine
/// the clock on the wall measures the neighbours.
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

fn insert(index: &BTreeIndex, log: &FlatLog, reference: Ref) {
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

fn bench(name: &str, log: &FlatLog, refs: &[Ref], threads: usize, quick: bool) {
    let index = BTreeIndex::new();
    let load = timed(threads, refs.len(), |t| share(refs, threads, t).iter().for_each(|r| insert(&index, log, *r)));
    let per_key = index.memory_bytes() as f64 / refs.len() as f64;
    println!("{name}: load {load:.2} M/s, {per_key:.1} B/key");
    let rounds = 4_000_000usize;
    let keys: Vec<Vec<u8>> = {
        let mut rng = Rng::new(12);
        (0..rounds).map(|_| log.key(refs[rng.below(refs.len())]).to_vec()).collect()
    };
    let flat: Vec<u8> = keys.iter().flatten().copied().collect();
    let mut spans = Vec::with_capacity(rounds);
    let mut at = 0;
    for key in &keys {
        spans.push((at, at + key.len()));
        at += key.len();
    }
    drop(keys);
    let get = timed(threads, rounds, |t| {
        for (from, to) in share(&spans, threads, t) {
            let _pin = epoch::pin();
            assert!(black_box(index.get(key(&flat[*from..*to]), log)).is_some());
        }
    });
    let many = timed(threads, rounds, |t| {
        let mut found = [Ref::NONE; 16];
        for group in share(&spans, threads, t).chunks_exact(16) {
            let _pin = epoch::pin();
            let keys: [Key<'_>; 16] = std::array::from_fn(|i| key(&flat[group[i].0..group[i].1]));
            index.get_many(&keys, &mut found, log);
            assert!(black_box(found).iter().all(|r| r.is_some()));
        }
    });
    let update = timed(threads, refs.len(), |t| {
        for r in share(refs, threads, t) {
            let _pin = epoch::pin_writer();
            let key = key(log.key(*r));
            let located = index.locate(key, log);
            index.install(located.token, key, located.candidate, Ref(located.candidate.0 ^ 1 << 50), log).expect("no conflict");
        }
    });
    let scans = rounds / 8;
    let scan = |backward: bool| {
        timed(threads, scans, |t| {
            let mut out = Vec::new();
            for (from, to) in share(&spans[..scans], threads, t) {
                let _pin = epoch::pin();
                out.clear();
                index.scan(Start::At(&flat[*from..*to]), backward, 100, &mut out, log);
                black_box(&out);
            }
        })
    };
    let (forward, backward) = (scan(false), scan(true));
    println!(
        "{name}: get {get:.2} M/s, get_many {many:.2} M/s ({:.2}x), update {update:.2} M/s, scan100 {forward:.2} M/s, backward {backward:.2} M/s",
        many / get
    );
    if quick {
        return;
    }
    let delete = timed(threads, refs.len(), |t| {
        for r in share(refs, threads, t) {
            let _pin = epoch::pin_writer();
            let key = key(log.key(*r));
            let located = index.locate(key, log);
            index.install(located.token, key, located.candidate, Ref::NONE, log).expect("no conflict");
        }
    });
    println!("{name}: delete all {delete:.2} M/s, {} bytes left", index.memory_bytes());
}

fn sizes(log: &FlatLog, refs: &[Ref]) {
    let index = BTreeIndex::new();
    for (i, reference) in refs.iter().enumerate() {
        insert(&index, log, *reference);
        let n = i + 1;
        if n % 500_000 == 0 && n >= 1_000_000 {
            println!("{n} random words: {:.2} B/key", index.memory_bytes() as f64 / n as f64);
        }
    }
}

fn path(i: u64, rng: &mut Rng) -> String {
    format!("/srv/www/site-{:03}/users/{:05}/photos/2024/{:08x}-{i}.jpg", rng.below(100), rng.below(20_000), rng.word() as u32)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: usize = args.get(1).map_or(5_000_000, |arg| arg.parse().expect("a number of keys"));
    let threads: usize = args.get(2).map_or(2, |arg| arg.parse().expect("a number of threads"));
    let what = args.get(3).map_or("all", String::as_str);
    let mut rng = Rng::new(1);
    if what != "paths" {
        let mut log = FlatLog::new(6_000_000.max(n) * 32);
        let refs: Vec<Ref> = (0..6_000_000.max(n)).map(|_| log.append(&rng.word().to_be_bytes())).collect();
        if ["all", "words", "quick"].contains(&what) {
            bench("words", &log, &refs[..n], threads, what == "quick");
            if what == "quick" {
                return;
            }
            let mut sorted = refs[..n].to_vec();
            sorted.sort_by(|a, b| log.key(*a).cmp(log.key(*b)));
            let index = BTreeIndex::new();
            let rate = timed(1, n, |_| sorted.iter().for_each(|r| insert(&index, &log, *r)));
            println!("ascending: load {rate:.2} M/s with one thread, {:.2} B/key", index.memory_bytes() as f64 / n as f64);
            let index = BTreeIndex::new();
            let rate = timed(1, n, |_| {
                let _pin = epoch::pin();
                index.bulk_load(&mut sorted.iter().copied(), &log);
            });
            println!("bulk_load: {rate:.2} M/s, {:.2} B/key", index.memory_bytes() as f64 / n as f64);
        }
        if what == "all" || what == "size" {
            sizes(&log, &refs);
        }
    }
    if what == "all" || what == "paths" {
        let n = n / 5 * 2;
        let mut log = FlatLog::new(n * 104);
        let refs: Vec<Ref> = (0..n as u64).map(|i| log.append(path(i, &mut rng).as_bytes())).collect();
        bench("paths", &log, &refs, threads, false);
    }
}
