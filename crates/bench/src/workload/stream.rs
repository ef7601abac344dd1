//! The stream of operations of one thread.
//!
//! Purpose: the measured loop takes its operations from here. Loads and inserts, which count up, are computed on the
//! fly. All others are drawn beforehand into 8-byte words, because a Zipf rank costs a `powf` and a position in a
//! permutation a dozen multiplications. [`generation_ns`] measures what remains in the loop.
//!
//! Ids: `0..keys` are loaded. Thread `t` of `T` inserts `keys + t`, `keys + t + T`, …, so that threads never wait for
//! each other; if earlier phases have inserted, it begins behind their ids. The *latest* distribution of a thread
//! counts its own inserts as the newest and then the loaded ids from the end. So it never asks for a key that another
//! thread has not written yet.
//!
//! Thread safety: one stream per thread. Invariant: the same seed, thread and counts give the same stream.

use std::time::Instant;

use super::etc;
use super::permutation::Permutation;
use super::random::Random;
use super::zipf::{ScrambledZipf, Zipf};
use super::{Distribution, Kind, MAX_YCSB_SCAN, Mix, Workload};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    /// Read the key.
    Get = 0,
    /// Write the key.
    Put = 1,
    /// Delete the key.
    Delete = 2,
    /// Read, change and write the key.
    Rmw = 3,
    /// Read pairs from the key on.
    Scan = 4,
}

/// One operation in a word: kind, length (of scans) and id of the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Op(u64);

const ID_BITS: u32 = 48;
const LENGTH_BITS: u32 = 12;

impl Op {
    /// An operation on the key of `id`.
    #[inline]
    pub fn new(kind: OpKind, id: u64) -> Self {
        Op((kind as u64) << (ID_BITS + LENGTH_BITS) | id)
    }

    /// A scan of `length` pairs from the key of `id` on.
    pub fn scan(id: u64, length: u32) -> Self {
        Op(Op::new(OpKind::Scan, id).0 | u64::from(length) << ID_BITS)
    }

    /// The kind of the operation.
    #[inline]
    pub fn kind(self) -> OpKind {
        match self.0 >> (ID_BITS + LENGTH_BITS) {
            0 => OpKind::Get,
            1 => OpKind::Put,
            2 => OpKind::Delete,
            3 => OpKind::Rmw,
            _ => OpKind::Scan,
        }
    }

    /// The id of the key.
    #[inline]
    pub fn id(self) -> u64 {
        self.0 & ((1 << ID_BITS) - 1)
    }

    /// Number of pairs of a scan.
    #[inline]
    pub fn length(self) -> u32 {
        ((self.0 >> ID_BITS) & ((1 << LENGTH_BITS) - 1)) as u32
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({}, {})", self.kind(), self.id(), self.length())
    }
}

/// The counts of the run, and the thread's place among them.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Number of keys loaded before the run.
    pub keys: u64,
    /// Number of threads of the run.
    pub threads: usize,
    /// Number of this thread.
    pub thread: usize,
    /// Ids behind those of the loaded keys that phases before this one may have inserted.
    pub inserted: u64,
    /// The run's seed.
    pub seed: u64,
}

impl Place {
    /// The first id that this thread inserts.
    fn first_insert(&self) -> u64 {
        self.keys + self.inserted + self.thread as u64
    }

    /// The number of ids in `0..keys` that belong to this thread.
    pub fn share(&self) -> u64 {
        let (threads, thread) = (self.threads as u64, self.thread as u64);
        (self.keys + threads - 1 - thread) / threads
    }
}

/// The operations of one thread.
pub struct Stream {
    inner: Inner,
    next: u64,
    len: u64,
}

enum Inner {
    Strided { first: u64, stride: u64 },
    Recorded(Vec<Op>),
}

impl Stream {
    /// The stream of `count` operations. A load or delete has as many as the thread has keys, whatever `count` is.
    pub fn new(workload: &Workload, place: &Place, count: u64) -> Self {
        let (first, stride) = (place.thread as u64, place.threads as u64);
        let (inner, len) = match workload.kind {
            Kind::Load | Kind::LoadBatch(_) => (Inner::Strided { first, stride }, place.share()),
            Kind::Insert => (Inner::Strided { first: place.first_insert(), stride }, count),
            Kind::Delete => {
                let order = Permutation::new(place.keys, place.seed);
                let ids = (0..place.share()).map(|i| order.at(first + i * stride));
                (Inner::Recorded(ids.map(|id| Op::new(OpKind::Delete, id)).collect()), place.share())
            }
            _ => (Inner::Recorded(record(workload, place, count)), count),
        };
        Self { inner, next: 0, len }
    }

    /// The number of operations left.
    pub fn remaining(&self) -> u64 {
        self.len - self.next
    }

    /// The next operation. Panics past the end; the caller must count.
    #[inline]
    pub fn take(&mut self) -> Op {
        let op = self.at(self.next);
        self.next += 1;
        op
    }

    /// The operation that comes next, if one is left.
    #[inline]
    pub fn peek(&self) -> Option<Op> {
        (self.next < self.len).then(|| self.at(self.next))
    }

    #[inline]
    fn at(&self, i: u64) -> Op {
        match &self.inner {
            Inner::Recorded(ops) => ops[i as usize],
            Inner::Strided { first, stride } => Op::new(OpKind::Put, first + i * stride),
        }
    }
}

impl Stream {
    /// Calls `f` with up to `most` of the next operations; returns how many. The loop is in here, so that no operation
    /// checks where it comes from.
    #[inline(always)]
    pub fn each<E>(&mut self, most: u64, mut f: impl FnMut(Op) -> Result<(), E>) -> Result<u64, E> {
        let count = most.min(self.remaining());
        let range = self.next..self.next + count;
        self.next = range.end;
        match &self.inner {
            Inner::Recorded(ops) => ops[range.start as usize..range.end as usize].iter().try_for_each(|op| f(*op))?,
            Inner::Strided { first, stride } => range.into_iter().try_for_each(|i| f(Op::new(OpKind::Put, first + i * stride)))?,
        }
        Ok(count)
    }
}

struct Chooser {
    keys: u64,
    inserted: u64,
    next_insert: u64,
    stride: u64,
    source: Source,
}

enum Source {
    Uniform,
    Zipf(ScrambledZipf),
    Latest(Zipf),
    /// With the half of the keys by which the hot spot has moved.
    Moved(ScrambledZipf, u64),
    Etc(ScrambledZipf),
}

impl Chooser {
    fn new(distribution: Distribution, place: &Place) -> Self {
        let source = match distribution {
            Distribution::Uniform => Source::Uniform,
            Distribution::Zipf(theta) => Source::Zipf(ScrambledZipf::new(place.keys, theta)),
            Distribution::Latest => Source::Latest(Zipf::new(place.keys, 0.99)),
            Distribution::MovedZipf(theta) => Source::Moved(ScrambledZipf::new(place.keys, theta), place.keys / 2),
            Distribution::Etc => Source::Etc(ScrambledZipf::new(place.keys, 0.99)),
        };
        Self { keys: place.keys, inserted: 0, next_insert: place.first_insert(), stride: place.threads as u64, source }
    }

    fn choose(&self, random: &mut Random) -> u64 {
        match &self.source {
            Source::Uniform => random.below(self.keys),
            Source::Zipf(zipf) => zipf.draw(random),
            Source::Moved(zipf, by) => (zipf.draw(random) + by) % self.keys,
            Source::Etc(zipf) => self.choose_etc(zipf, random),
            Source::Latest(zipf) => {
                let age = zipf.draw(random);
                if age < self.inserted { self.next_insert - (age + 1) * self.stride } else { self.keys - 1 - (age - self.inserted) }
            }
        }
    }

    /// Chooses a key of ETC; large values have their share of the requests.
    fn choose_etc(&self, zipf: &ScrambledZipf, random: &mut Random) -> u64 {
        let large = etc::count_large(self.keys);
        if large > 0 && etc::is_large(random.below(self.keys)) {
            return etc::large(random.below(large));
        }
        let id = zipf.draw(random);
        if etc::is_large(id) { id - 1 } else { id }
    }

    fn insert(&mut self) -> u64 {
        let id = self.next_insert;
        self.next_insert += self.stride;
        self.inserted += 1;
        id
    }
}

fn record(workload: &Workload, place: &Place, count: u64) -> Vec<Op> {
    let mut random = Random::for_thread(place.seed, place.thread);
    let mut chooser = Chooser::new(workload.distribution, place);
    let mut draw = |random: &mut Random| match workload.kind {
        Kind::Update | Kind::PutBatch(_) => Op::new(OpKind::Put, chooser.choose(random)),
        Kind::Rmw => Op::new(OpKind::Rmw, chooser.choose(random)),
        Kind::Scan(n) => Op::scan(chooser.choose(random), n),
        kind => match kind.mix() {
            Some(mix) => mixed(mix, &mut chooser, random),
            None => Op::new(OpKind::Get, chooser.choose(random)),
        },
    };
    (0..count).map(|_| draw(&mut random)).collect()
}

fn mixed(mix: Mix, chooser: &mut Chooser, random: &mut Random) -> Op {
    let mut lot = random.below(100);
    let mut falls = |share: u64| {
        let hit = lot < share;
        lot = lot.wrapping_sub(share);
        hit
    };
    if falls(mix.read) {
        Op::new(OpKind::Get, chooser.choose(random))
    } else if falls(mix.update) {
        Op::new(OpKind::Put, chooser.choose(random))
    } else if falls(mix.insert) {
        Op::new(OpKind::Put, chooser.insert())
    } else if falls(mix.scan) {
        Op::scan(chooser.choose(random), 1 + random.below(MAX_YCSB_SCAN) as u32)
    } else {
        Op::new(OpKind::Rmw, chooser.choose(random))
    }
}

/// Nanoseconds per operation that the measured loop spends on its stream and on building 8-byte keys: the loop's own
/// cost.
pub fn generation_ns(workload: &Workload, place: &Place, count: u64) -> f64 {
    let mut stream = Stream::new(workload, place, count);
    let data = super::data::DataSet::new(8, 8, place.seed);
    let n = stream.remaining().max(1);
    let (mut key, mut sum) = ([0u8; 8], 0u64);
    let start = Instant::now();
    for _ in 0..n {
        data.key(stream.take().id(), &mut key);
        sum = sum.wrapping_add(u64::from_le_bytes(key));
    }
    let elapsed = start.elapsed();
    std::hint::black_box(sum);
    elapsed.as_nanos() as f64 / n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn place(thread: usize) -> Place {
        Place { keys: 1001, threads: 3, thread, inserted: 0, seed: 9 }
    }

    fn all(workload: &str, thread: usize, count: u64) -> Vec<Op> {
        let mut stream = Stream::new(&workload.parse().expect("valid"), &place(thread), count);
        (0..stream.remaining()).map(|_| stream.take()).collect()
    }

    #[test]
    fn packing_keeps_everything() {
        for (kind, id) in [(OpKind::Get, 0), (OpKind::Put, 1 << 47), (OpKind::Delete, 5), (OpKind::Rmw, 6)] {
            let op = Op::new(kind, id);
            assert_eq!((op.kind(), op.id(), op.length()), (kind, id, 0));
        }
        let scan = Op::scan(7, 4000);
        assert_eq!((scan.kind(), scan.id(), scan.length()), (OpKind::Scan, 7, 4000));
    }

    #[test]
    fn threads_share_load_and_delete_without_overlap() {
        for workload in ["load", "delete"] {
            let ids: Vec<u64> = (0..3).flat_map(|t| all(workload, t, 0)).map(Op::id).collect();
            assert_eq!(ids.len(), 1001);
            assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1001);
            assert!(ids.iter().all(|&id| id < 1001));
        }
    }

    #[test]
    fn streams_are_reproducible() {
        assert_eq!(all("ycsb-e", 1, 500), all("ycsb-e", 1, 500));
        assert_ne!(all("ycsb-a", 0, 500), all("ycsb-a", 1, 500));
    }

    #[test]
    fn latest_reads_only_what_the_thread_or_the_load_wrote() {
        for thread in 0..3 {
            let mut written: HashSet<u64> = (0..1001).collect();
            let mut newest = 0;
            for op in all("ycsb-d", thread, 20_000) {
                match op.kind() {
                    OpKind::Put => assert!(written.insert(op.id()), "an insert is new"),
                    OpKind::Get => {
                        assert!(written.contains(&op.id()));
                        newest += u64::from(op.id() >= 1001);
                    }
                    _ => panic!("not in this mix"),
                }
            }
            assert!(newest > 5_000, "new keys are read most: {newest}");
        }
    }

    /// Regression: the insertions of a later phase overwrote those of an earlier one.
    #[test]
    fn a_later_phase_inserts_behind_an_earlier_one() {
        for workload in ["insert", "ycsb-d", "ycsb-e"] {
            let mut written: HashSet<u64> = (0..1001).collect();
            for inserted in [0, 3_000] {
                for thread in 0..3 {
                    let place = Place { inserted, ..place(thread) };
                    let mut stream = Stream::new(&workload.parse().expect("valid"), &place, 1_000);
                    let ops = (0..1_000).map(|_| stream.take());
                    for op in ops.filter(|op| op.kind() == OpKind::Put) {
                        assert!(written.insert(op.id()), "an insert is new");
                    }
                }
            }
        }
    }

    #[test]
    fn a_hot_spot_that_moved_is_as_hot_elsewhere() {
        let hottest = |workload| {
            let mut counts = vec![0u32; 1001];
            all(workload, 0, 20_000).iter().for_each(|op| counts[op.id() as usize] += 1);
            (0..1001).max_by_key(|id| counts[*id]).expect("keys")
        };
        assert_eq!(hottest("update:moved-zipf"), (hottest("update:zipf") + 500) % 1001);
    }

    #[test]
    fn etc_asks_for_large_values_uniformly() {
        let ops = all("update:etc", 0, 40_000);
        let mut large = std::collections::HashMap::new();
        ops.iter().filter(|op| etc::is_large(op.id())).for_each(|op| *large.entry(op.id()).or_insert(0u32) += 1);
        let asked: u32 = large.values().sum();
        assert!((1_600..2_400).contains(&asked), "{asked}");
        assert!(large.len() == 50 && large.values().all(|count| *count < 90), "{large:?}");
    }

    #[test]
    fn mixes_have_their_shares() {
        let ops = all("ycsb-e", 0, 20_000);
        let scans = ops.iter().filter(|op| op.kind() == OpKind::Scan && (1..=100).contains(&op.length())).count();
        let inserts = ops.iter().filter(|op| op.kind() == OpKind::Put && op.id() >= 1001).count();
        assert_eq!(scans + inserts, 20_000);
        assert!((800..1200).contains(&inserts), "{inserts}");
    }
}
