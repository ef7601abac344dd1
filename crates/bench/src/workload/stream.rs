//! The stream of operations of one thread.
//!
//! Purpose: the measured loop takes operations from here. Streams without a choice (load, insert, delete) are computed on the
//! fly with a few multiplications; the others are drawn beforehand into 8-byte words, because a Zipf rank costs a `powf`.
//! [`generation_ns`] measures what remains in the loop.
//!
//! Ids: `0..keys` are loaded; thread `t` of `T` inserts `keys + t`, `keys + t + T`, … so that threads never wait for each
//! other. The *latest* distribution of a thread counts its own inserts as the newest and then the loaded ids from the end;
//! it therefore never asks for a key that another thread has not written yet.
//!
//! Thread safety: one stream per thread. Invariant: the same seed, thread and counts give the same stream.

use std::time::Instant;

use super::permutation::Permutation;
use super::random::Random;
use super::zipf::{ScrambledZipf, Zipf};
use super::{Distribution, Kind, MAX_YCSB_SCAN, Mix, Workload};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read the key of this id.
    Get(u64),
    /// Write the key of this id.
    Put(u64),
    /// Delete the key of this id.
    Delete(u64),
    /// Read, change and write the key of this id.
    Rmw(u64),
    /// Read this many pairs from the key of this id on.
    Scan(u64, u32),
}

const ID_BITS: u32 = 48;
const LENGTH_BITS: u32 = 12;

impl Op {
    #[inline]
    fn pack(self) -> u64 {
        let (code, length, id) = match self {
            Op::Get(id) => (0u64, 0, id),
            Op::Put(id) => (1, 0, id),
            Op::Delete(id) => (2, 0, id),
            Op::Rmw(id) => (3, 0, id),
            Op::Scan(id, length) => (4, length, id),
        };
        code << (ID_BITS + LENGTH_BITS) | u64::from(length) << ID_BITS | id
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        let id = word & ((1 << ID_BITS) - 1);
        match word >> (ID_BITS + LENGTH_BITS) {
            0 => Op::Get(id),
            1 => Op::Put(id),
            2 => Op::Delete(id),
            3 => Op::Rmw(id),
            _ => Op::Scan(id, ((word >> ID_BITS) & ((1 << LENGTH_BITS) - 1)) as u32),
        }
    }

    /// The id of the key.
    #[inline]
    pub fn id(self) -> u64 {
        match self {
            Op::Get(id) | Op::Put(id) | Op::Delete(id) | Op::Rmw(id) | Op::Scan(id, _) => id,
        }
    }
}

/// Who draws: the run's counts and the thread's place in them.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Keys that are loaded before the run.
    pub keys: u64,
    /// Threads of the run.
    pub threads: usize,
    /// This thread.
    pub thread: usize,
    /// The run's seed.
    pub seed: u64,
}

impl Place {
    /// How many of `0..keys` belong to this thread.
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
    Permuted { order: Permutation, first: u64, stride: u64 },
    Recorded(Vec<u64>),
}

impl Stream {
    /// The stream of `count` operations; load and delete have as many as the thread has keys, whatever `count` says.
    pub fn new(workload: &Workload, place: &Place, count: u64) -> Self {
        let (first, stride) = (place.thread as u64, place.threads as u64);
        let (inner, len) = match workload.kind {
            Kind::Load | Kind::LoadBatch(_) => (Inner::Strided { first, stride }, place.share()),
            Kind::Insert => (Inner::Strided { first: place.keys + first, stride }, count),
            Kind::Delete => (Inner::Permuted { order: Permutation::new(place.keys, place.seed), first, stride }, place.share()),
            _ => (Inner::Recorded(record(workload, place, count)), count),
        };
        Self { inner, next: 0, len }
    }

    /// The number of operations that are left.
    pub fn remaining(&self) -> u64 {
        self.len - self.next
    }

    /// The next operation. Panics past the end: the caller counts.
    #[inline]
    pub fn take(&mut self) -> Op {
        let i = self.next;
        self.next += 1;
        match &self.inner {
            Inner::Recorded(words) => Op::unpack(words[i as usize]),
            Inner::Strided { first, stride } => Op::Put(first + i * stride),
            Inner::Permuted { order, first, stride } => Op::Delete(order.at(first + i * stride)),
        }
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
}

impl Chooser {
    fn new(distribution: Distribution, place: &Place) -> Self {
        let source = match distribution {
            Distribution::Uniform => Source::Uniform,
            Distribution::Zipf(theta) => Source::Zipf(ScrambledZipf::new(place.keys, theta)),
            Distribution::Latest => Source::Latest(Zipf::new(place.keys, 0.99)),
        };
        Self { keys: place.keys, inserted: 0, next_insert: place.keys + place.thread as u64, stride: place.threads as u64, source }
    }

    fn choose(&self, random: &mut Random) -> u64 {
        match &self.source {
            Source::Uniform => random.below(self.keys),
            Source::Zipf(zipf) => zipf.draw(random),
            Source::Latest(zipf) => {
                let age = zipf.draw(random);
                if age < self.inserted { self.next_insert - (age + 1) * self.stride } else { self.keys - 1 - (age - self.inserted) }
            }
        }
    }

    fn insert(&mut self) -> u64 {
        let id = self.next_insert;
        self.next_insert += self.stride;
        self.inserted += 1;
        id
    }
}

fn record(workload: &Workload, place: &Place, count: u64) -> Vec<u64> {
    let mut random = Random::for_thread(place.seed, place.thread);
    let mut chooser = Chooser::new(workload.distribution, place);
    let mut draw = |random: &mut Random| match workload.kind {
        Kind::Update | Kind::PutBatch(_) => Op::Put(chooser.choose(random)),
        Kind::Rmw => Op::Rmw(chooser.choose(random)),
        Kind::Scan(n) => Op::Scan(chooser.choose(random), n),
        kind => match kind.mix() {
            Some(mix) => mixed(mix, &mut chooser, random),
            None => Op::Get(chooser.choose(random)),
        },
    };
    (0..count).map(|_| draw(&mut random).pack()).collect()
}

fn mixed(mix: Mix, chooser: &mut Chooser, random: &mut Random) -> Op {
    let mut lot = random.below(100);
    let mut falls = |share: u64| {
        let hit = lot < share;
        lot = lot.wrapping_sub(share);
        hit
    };
    if falls(mix.read) {
        Op::Get(chooser.choose(random))
    } else if falls(mix.update) {
        Op::Put(chooser.choose(random))
    } else if falls(mix.insert) {
        Op::Put(chooser.insert())
    } else if falls(mix.scan) {
        Op::Scan(chooser.choose(random), 1 + random.below(MAX_YCSB_SCAN) as u32)
    } else {
        Op::Rmw(chooser.choose(random))
    }
}

/// Nanoseconds per operation that the measured loop spends on its stream and on building 8-byte keys: its own cost.
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
        Place { keys: 1001, threads: 3, thread, seed: 9 }
    }

    fn all(workload: &str, thread: usize, count: u64) -> Vec<Op> {
        let mut stream = Stream::new(&workload.parse().expect("valid"), &place(thread), count);
        (0..stream.remaining()).map(|_| stream.take()).collect()
    }

    #[test]
    fn packing_keeps_everything() {
        for op in [Op::Get(0), Op::Put(1 << 47), Op::Delete(5), Op::Rmw(6), Op::Scan(7, 4000)] {
            assert_eq!(Op::unpack(op.pack()), op);
        }
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
                match op {
                    Op::Put(id) => assert!(written.insert(id), "an insert is new"),
                    Op::Get(id) => {
                        assert!(written.contains(&id));
                        newest += u64::from(id >= 1001);
                    }
                    _ => panic!("not in this mix"),
                }
            }
            assert!(newest > 5_000, "new keys are read most: {newest}");
        }
    }

    #[test]
    fn mixes_have_their_shares() {
        let ops = all("ycsb-e", 0, 20_000);
        let scans = ops.iter().filter(|op| matches!(op, Op::Scan(_, 1..=100))).count();
        let inserts = ops.iter().filter(|op| matches!(op, Op::Put(id) if *id >= 1001)).count();
        assert_eq!(scans + inserts, 20_000);
        assert!((800..1200).contains(&inserts), "{inserts}");
    }
}
